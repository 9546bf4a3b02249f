//! Digests and signatures: made by `dwarfsck`, and demanded by `dwarfs` and `dwarfsextract`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS, Mount, build, must, run};
use redwarfs_testkit::{is_installed, skip};

fn key(name: &str) -> String {
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/keys");
    keys.join(name).to_str().unwrap().to_owned()
}

struct TestDir {
    dir: tempfile::TempDir,
    image: PathBuf,
}

impl TestDir {
    /// A directory with an image, made with some options.
    fn new(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let noise = (0..300_000_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8);
        fs::write(tree.join("noise"), noise.collect::<Vec<_>>()).unwrap();
        fs::write(tree.join("text"), "words ".repeat(1000)).unwrap();
        let image = dir.path().join("image");
        build(&tree, &image, options);
        Self { dir, image }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn check(&self, options: &[&str]) -> Output {
        let mut args = vec![self.image.to_str().unwrap()];
        args.extend(options);
        run(DWARFSCK, &args)
    }

    fn expect(&self, code: i32, options: &[&str]) -> String {
        let out = self.check(options);
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        assert_eq!(out.status.code(), Some(code), "{options:?}: {text}");
        text
    }

    /// The error of extracting with `how`, or none, after a comparison with the tree.
    fn extract(&self, how: &str) -> Option<String> {
        let to = tempfile::tempdir().unwrap();
        let verify = format!("--verify={how}");
        let args = [
            "-i",
            self.image.to_str().unwrap(),
            "-o",
            to.path().to_str().unwrap(),
            &verify,
        ];
        let out = run(DWARFSEXTRACT, args);
        if !out.status.success() {
            return Some(String::from_utf8(out.stderr).unwrap());
        }
        for name in ["noise", "text"] {
            let tree = self.dir.path().join("tree").join(name);
            let (was, is) = (
                fs::read(tree).unwrap(),
                fs::read(to.path().join(name)).unwrap(),
            );
            assert!(was == is, "{name}");
        }
        // The name of a snapshot could be another one, but not its time.
        let said = String::from_utf8(out.stderr).unwrap();
        let has_time = said.contains("; the tree is of 2");
        assert_eq!(has_time, how != "checksums", "{how}: {said}");
        None
    }

    fn damage(&self, at: usize) {
        let mut bytes = fs::read(&self.image).unwrap();
        bytes[at] ^= 1;
        fs::write(&self.image, bytes).unwrap();
    }
}

#[test]
fn images_are_signed_and_verified() {
    for level in ["-l0", "-l7"] {
        let place = TestDir::new(&[level]);
        let before = fs::read(&place.image).unwrap();
        let text = place.expect(0, &["--sign", &key("minisign.key")]);
        assert!(
            text.contains("added:    BLAKE3 digests of 5 sections"),
            "{text}"
        );
        assert!(text.contains("signed:   by minisign key "), "{text}");
        assert_eq!(text.contains("leaves of 1 block"), level == "-l0", "{text}");
        let password = place.path("password");
        fs::write(&password, "open sesame\n").unwrap();
        let (ssh, public) = (key("ssh"), key("ssh.pub"));
        // The second signature is for the same digests.
        let sign = ["--sign", &ssh, "--password-file", &password];
        let text = place.expect(0, &sign);
        assert!(
            text.contains("signed:   by SSH key SHA256:") && !text.contains("added"),
            "{text}"
        );
        assert!(fs::read(&place.image).unwrap().starts_with(&before));
        for name in ["minisign.pub", "ssh.pub"] {
            let text = place.expect(0, &["--verify-signature", &key(name)]);
            assert!(
                text.contains("OK: 5 sections, all as they were signed"),
                "{text}"
            );
            assert_eq!(place.extract(&format!("signed:{}", key(name))), None);
        }
        // The key itself instead of a file.
        let text = fs::read_to_string(&public).unwrap();
        assert_eq!(place.extract(&format!("signed:{}", text.trim())), None);
        let text = fs::read_to_string(key("minisign.pub")).unwrap();
        let line = text.lines().nth(1).unwrap();
        assert_eq!(place.extract(&format!("signed:{line}")), None);
        assert_eq!(place.extract("digests"), None);
        let json = place.expect(0, &["--verify-signature", line, "-j"]);
        assert!(
            json.contains("\"intact\":true") && json.contains("\"signer\":\"minisign"),
            "{json}"
        );
        // A plain check finds nothing to complain of, and shows the sections.
        let text = place.expect(0, &["--check-integrity", "-d3"]);
        assert!(
            text.contains("DIGESTS") && text.contains("SIGNATURE"),
            "{text}"
        );
    }
}

#[test]
fn changed_images_are_refused() {
    let place = TestDir::new(&["-l7"]);
    place.expect(0, &["--sign", &key("minisign.key")]);
    let public = key("minisign.pub");
    let signed = format!("signed:{public}");
    place.damage(1000);
    let text = place.expect(1, &["--verify-signature", &public]);
    assert!(
        text.contains("section 0 at offset 64: BLOCK does not have its digest"),
        "{text}"
    );
    assert!(
        text.contains("changed: 1 section of 5 sections not as stated"),
        "{text}"
    );
    let json = place.expect(1, &["--check-digests", "-j"]);
    assert!(
        json.contains("\"mismatches\":[{\"offset\":64,\"section\":0,\"type\":\"BLOCK\"}]"),
        "{json}"
    );
    assert!(
        place
            .extract(&signed)
            .unwrap()
            .contains("does not have its digest")
    );
    // Nothing is signed that is damaged.
    let text = place.expect(1, &["--sign", &key("minisign.key")]);
    assert!(text.contains("is damaged, and was left as it is"), "{text}");
}

#[test]
fn unsigned_images_are_refused() {
    let place = TestDir::new(&["-l7"]);
    let (minisign, ssh) = (key("minisign.pub"), key("ssh.pub"));
    let text = place.expect(1, &["--verify-signature", &minisign]);
    assert!(text.contains("the image is not signed"), "{text}");
    assert!(
        place
            .extract("digests")
            .unwrap()
            .contains("the image has no digests")
    );
    let text = place.expect(1, &["--export-digests", "-"]);
    assert!(
        text.contains("the image has no digests (--add-digests"),
        "{text}"
    );
    place.expect(0, &["--add-digests=sha512-256"]);
    let text = place.expect(0, &["--check-digests"]);
    assert!(
        text.contains("SHA-512/256") && text.contains("OK: 5 sections"),
        "{text}"
    );
    assert_eq!(place.extract("digests"), None);
    let refused = place.extract(&format!("signed:{minisign}")).unwrap();
    assert!(
        refused.contains("not verified: the image is not signed"),
        "{refused}"
    );
    place.expect(
        0,
        &[
            "--sign",
            &key("minisign.key"),
            "--trusted-comment=version 3",
        ],
    );
    let text = place.expect(0, &["--verify-signature", &minisign]);
    assert!(
        text.contains("(version 3)") && text.contains("SHA-512/256"),
        "{text}"
    );
    let text = place.expect(1, &["--verify-signature", &ssh]);
    assert!(text.contains("no signature counts"), "{text}");
}

#[test]
fn wrong_keys_and_passwords_are_named_and_not_shown() {
    let place = TestDir::new(&["-l7"]);
    let before = fs::read(&place.image).unwrap();
    let password = place.path("password");
    fs::write(&password, "another word\n").unwrap();
    let text = place.expect(1, &["--sign", &key("ssh"), "--password-file", &password]);
    assert!(
        text.contains("the password does not open the key"),
        "{text}"
    );
    assert!(
        !text.contains("another word") && !text.contains("BEGIN"),
        "{text}"
    );
    let text = place.expect(1, &["--sign", &key("ssh.pub")]);
    assert!(
        text.contains("no secret key of minisign, and no private key of OpenSSH"),
        "{text}"
    );
    let text = place.expect(1, &["--verify-signature", &key("ssh")]);
    assert!(
        text.contains("a private key: give the public one"),
        "{text}"
    );
    let text = place.expect(1, &["--add-signature", &key("ssh.pub")]);
    assert!(text.contains("no signature of minisign or SSH"), "{text}");
    let refused = place.extract("signed:/nonexistent").unwrap();
    assert!(
        refused.contains("cannot use the public key: /nonexistent"),
        "{refused}"
    );
    assert!(
        place
            .extract("odd")
            .unwrap()
            .contains("no such verification: odd")
    );
    // One of them at a time, and not with other tasks.
    place.expect(1, &["--add-digests", "--check-digests"]);
    place.expect(1, &["--check-digests", "--repair"]);
    place.expect(1, &["--check-digests", "--list"]);
    assert_eq!(fs::read(&place.image).unwrap(), before);
}

/// Each snapshot is verified by the digests and signatures of its day.
#[test]
fn snapshots_are_verified_one_by_one() {
    let place = TestDir::new(&["-l7"]);
    let (secret, public) = (key("minisign.key"), key("minisign.pub"));
    let append = |name: &str| {
        fs::write(place.path(&format!("tree/{name}")), name.repeat(20_000)).unwrap();
        let (tree, image) = (place.path("tree"), place.path("image"));
        let name = format!("--snapshot-name={name}");
        must(MKDWARFS, ["-i", &tree, "--append", &image, &name, "-l7"]);
    };
    place.expect(0, &["--sign", &secret]);
    let first = fs::metadata(&place.image).unwrap().len() as usize;
    append("second");
    let second = fs::metadata(&place.image).unwrap().len() as usize;
    append("third");
    place.expect(0, &["--add-digests=sha512-256"]);
    let verify = ["--verify-signature", &public];
    let of = |options: &[&str], snapshot: &str, code: i32| {
        let option = format!("--snapshot={snapshot}");
        place.expect(code, &[options, &[&option]].concat())
    };
    let text = place.expect(1, &verify);
    assert!(
        text.contains("image: the newest snapshot is not signed (snapshot 1 '")
            && text.contains("' is signed: --snapshot=1 verifies it)"),
        "{text}"
    );
    let text = of(&verify, "1", 0);
    assert!(
        text.starts_with("snapshot: 1 '")
            && text.contains("OK: 5 sections, all as they were signed"),
        "{text}"
    );
    let json = of(&["--verify-signature", &public, "-j"], "1", 0);
    let json: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(json["snapshot"]["number"], 1);
    assert_eq!(json["digests"]["intact"], true);
    let text = of(&["--check-digests"], "1", 0);
    assert!(
        text.contains("OK: 5 sections, all with their digests"),
        "{text}"
    );
    for (options, lacks) in [
        (&verify[..], "is not signed"),
        (&["--check-digests"], "has no digests"),
    ] {
        let text = of(options, "second", 1);
        assert!(
            text.contains(&format!(
                "snapshot 'second' {lacks} (--snapshots names those"
            )),
            "{text}"
        );
    }
    let text = of(&["--check-digests"], "third", 0);
    assert!(
        text.starts_with("snapshot: 3 'third'") && text.contains("SHA-512/256"),
        "{text}"
    );
    let text = of(&verify, "third", 1);
    assert!(text.contains("snapshot 'third' is not signed"), "{text}");
    let text = of(&verify, "fourth", 1);
    assert!(text.contains("there is no snapshot 'fourth'"), "{text}");
    // Damage of what only a later snapshot has does not matter, and damage of what both have does.
    let whole = fs::read(&place.image).unwrap();
    place.damage((first + second) / 2);
    of(&verify, "1", 0);
    fs::write(&place.image, &whole).unwrap();
    place.damage(1000);
    assert!(of(&verify, "1", 1).contains("changed: 1 section"));
    assert!(of(&["--check-digests"], "third", 1).contains("changed: 1 section"));
    fs::write(&place.image, &whole).unwrap();
    // What is about the newest snapshot, or the whole file.
    let sign = format!("--sign={secret}");
    let add = format!("--add-signature={secret}");
    for option in [
        sign.as_str(),
        "--add-digests",
        &add,
        "--add-recovery=5%",
        "--check-recovery",
    ] {
        let text = of(&[option], "1", 1);
        assert!(
            text.contains("--snapshot does not go with "),
            "{option}: {text}"
        );
    }
    assert!(fs::read(&place.image).unwrap() == whole);
    // An archive has neither.
    let copy = place.path("copy");
    place.expect(0, &["--compact", &copy, "--archive"]);
    fs::copy(&copy, &place.image).unwrap();
    place.expect(0, &["--sign", &secret]);
    place.expect(0, &verify);
    let text = of(&verify, "second", 1);
    assert!(
        text.contains("snapshot 'second' is in an archive, which is not signed"),
        "{text}"
    );
    let text = of(&["--check-digests"], "1", 1);
    assert!(
        text.contains("' is in an archive, which has no digests"),
        "{text}"
    );
    assert!(of(&verify, "third", 0).contains("OK: "));
}

/// The password from standard input, and signatures that other programs make of the exported message.
#[test]
fn other_programs_sign_what_is_exported() {
    let place = TestDir::new(&["-l7"]);
    place.expect(0, &["--add-digests"]);
    let message = place.path("message");
    place.expect(0, &["--export-digests", &message]);
    let private = place.path("key");
    fs::write(&private, fs::read(key("minisign.key")).unwrap()).unwrap();
    if is_installed("minisign") {
        let out = Command::new("minisign")
            .args(["-S", "-s", &private, "-m", &message])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        let text = place.expect(0, &["--add-signature", &format!("{message}.minisig")]);
        assert!(text.contains("added:    a signature by minisign"), "{text}");
        place.expect(0, &["--verify-signature", &key("minisign.pub")]);
    } else {
        skip("minisign", "it is not installed");
    }
    let mut child = Command::new(DWARFSCK)
        .arg(&place.image)
        .args(["--sign", &key("ssh"), "--password-file=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"open sesame\n")
        .unwrap();
    assert!(child.wait().unwrap().success());
    place.expect(0, &["--verify-signature", &key("ssh.pub")]);
}

#[test]
fn mounts_demand_signatures() {
    let place = TestDir::new(&["-l0"]);
    let at = place.dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let signed = format!("verify=signed:{}", key("minisign.pub"));
    let refused = |option: &str| {
        let args = [
            place.image.to_str().unwrap(),
            at.to_str().unwrap(),
            "-f",
            "-o",
            option,
        ];
        let out = run(DWARFS, args);
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(refused(&signed).contains("not verified: the image is not signed"));
    assert!(refused("verify=odd").contains("no such verification"));
    place.expect(0, &["--sign", &key("minisign.key")]);
    let Some(mount) = Mount::new(&place.image, &at, &["-o", &signed]) else {
        return;
    };
    for name in ["noise", "text"] {
        let tree = place.dir.path().join("tree").join(name);
        assert!(
            fs::read(tree).unwrap() == fs::read(at.join(name)).unwrap(),
            "{name}"
        );
    }
    drop(mount);
    place.damage(100_000);
    let Some(_mount) = Mount::new(&place.image, &at, &["-o", &signed]) else {
        return;
    };
    fs::read(at.join("noise")).unwrap_err();
    fs::read(at.join("text")).unwrap();
}
