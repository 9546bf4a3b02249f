//! The installer of a release, against a server of this test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use redwarfs_testkit::skip;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROGRAM: &str = "#!/bin/sh\necho ran as \"${0##*/}\"\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// Writes a program. Another process writes it: if a test in another thread started a program while the file is
/// open here, the file could not be executed at once.
fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    run(Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(path)
        .arg(text));
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Serves the files of a directory to one client after the other, for as long as the test runs. The
/// address.
fn serve(dir: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            // Up to the empty line, so that the client is not cut off.
            lines.find(|line| line.as_ref().is_ok_and(String::is_empty));
            let name = request
                .split(' ')
                .nth(1)
                .unwrap()
                .trim_start_matches('/')
                .to_owned();
            let answer = match fs::read(dir.join(name)) {
                Ok(body) => {
                    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    [head.into_bytes(), body].concat()
                }
                Err(_) => b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
            };
            let _ = stream.write_all(&answer);
        }
    });
    address
}

/// A release with one program for `x86_64`, signed, and its installer.
struct Release {
    dir: tempfile::TempDir,
}

impl Release {
    /// `None`, and a note, if a program that all of this needs is missing.
    fn new(test: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
        if !has("openssl") || !(has("curl") || has("wget")) {
            skip(test, "openssl, or both of curl and wget, are not installed");
            return None;
        }
        let release = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(release.dist()).unwrap();
        fs::write(release.dist().join(Self::name()), PROGRAM).unwrap();
        release.new_key();
        run(Command::new("openssl")
            .args(["ec", "-pubout", "-in"])
            .arg(release.path("key"))
            .arg("-out")
            .arg(release.path("public")));
        release.sign();
        let address = serve(release.dist());
        run(release
            .package()
            .args(["installer", &address])
            .arg(release.path("public")));
        for (name, text) in [
            (
                "uname",
                "case $1 in -m) echo x86_64 ;; *) echo Linux ;; esac",
            ),
            ("id", "echo 1000"),
        ] {
            executable(
                &release.path("fake").join(name),
                &format!("#!/bin/sh\n{text}\n"),
            );
        }
        Some(release)
    }

    fn name() -> String {
        format!("redwarfs-universal-{VERSION}-Linux-x86_64")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn dist(&self) -> PathBuf {
        self.path("dist")
    }

    /// Where a user without root installs.
    fn bin(&self) -> PathBuf {
        self.path("home/.local/bin")
    }

    fn package(&self) -> Command {
        let mut command = Command::new(root().join("scripts/package"));
        command.env("DIST", self.dist());
        command
    }

    /// Makes the private key, in the place of an older one.
    fn new_key(&self) {
        run(Command::new("openssl")
            .args(["ecparam", "-name", "prime256v1", "-genkey", "-noout"])
            .arg("-out")
            .arg(self.path("key")));
    }

    /// Writes the checksums of what is there, and their signature.
    fn sign(&self) {
        let script =
            "cd \"$1\" && openssl dgst -sha256 -r redwarfs-* | sed 's/ \\*/  /' >SHA256SUMS";
        run(Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(self.dist()));
        run(self.package().arg("sign").arg(self.path("key")));
    }

    fn install(&self, args: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("sh");
        command.arg(self.dist().join("install.sh")).args(args);
        command.env("PATH", format!("{}:{path}", self.path("fake").display()));
        command
            .env("HOME", self.path("home"))
            .env_remove("http_proxy");
        command.output().unwrap()
    }

    /// The installer has refused with these words and installed nothing.
    fn refused(&self, output: &Output, words: &str) {
        let text = said(output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(words), "{text}");
        let left = fs::read_dir(self.bin()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{text}");
    }
}

#[test]
fn it_installs_for_one_user_and_again() {
    let Some(release) = Release::new("it_installs_for_one_user_and_again") else {
        return;
    };
    let output = release.install(&[]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("is not in PATH"), "{text}");
    let mut names: Vec<_> = fs::read_dir(release.bin())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "dwarfs",
            "dwarfsck",
            "dwarfsextract",
            "mkdwarfs",
            "redwarfs"
        ]
    );
    let ran = Command::new(release.bin().join("mkdwarfs"))
        .output()
        .unwrap();
    assert_eq!(said(&ran), "ran as mkdwarfs\n");

    // The second time there is nothing to download, so the program may be missing there.
    fs::remove_file(release.dist().join(Release::name())).unwrap();
    let output = release.install(&[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("already"), "{}", said(&output));

    // Another directory, by its option.
    fs::write(release.dist().join(Release::name()), PROGRAM).unwrap();
    let other = release.path("other");
    let output = release.install(&["--prefix", other.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(other.join("bin/redwarfs").is_file());
}

#[test]
fn it_refuses_what_does_not_verify() {
    let Some(release) = Release::new("it_refuses_what_does_not_verify") else {
        return;
    };
    let program = release.dist().join(Release::name());
    fs::write(&program, format!("{PROGRAM}# changed\n")).unwrap();
    release.refused(&release.install(&[]), "the checksum of");

    // A list that goes with the changed program has no signature of ours.
    let sums = release.dist().join("SHA256SUMS");
    let good = fs::read(&sums).unwrap();
    let signature = fs::read(release.dist().join("SHA256SUMS.sig")).unwrap();
    release.sign();
    fs::write(release.dist().join("SHA256SUMS.sig"), &signature).unwrap();
    release.refused(&release.install(&[]), "the signature of");

    // Signed by another key.
    release.new_key();
    release.sign();
    release.refused(&release.install(&[]), "the signature of");

    // No signature.
    fs::write(&sums, good).unwrap();
    fs::remove_file(release.dist().join("SHA256SUMS.sig")).unwrap();
    release.refused(&release.install(&[]), "cannot download");
}

#[test]
fn it_refuses_other_processors_and_programs_that_do_not_run() {
    let Some(release) = Release::new("it_refuses_other_processors_and_programs_that_do_not_run")
    else {
        return;
    };
    let uname = release.path("fake/uname");
    executable(
        &uname,
        "#!/bin/sh\ncase $1 in -m) echo mips ;; *) echo Linux ;; esac\n",
    );
    release.refused(&release.install(&[]), "for mips, only for: x86_64");
    executable(&uname, "#!/bin/sh\necho FreeBSD\n");
    release.refused(&release.install(&[]), "for Linux, and this is FreeBSD");
    executable(
        &uname,
        "#!/bin/sh\ncase $1 in -m) echo amd64 ;; *) echo Linux ;; esac\n",
    );
    fs::write(release.dist().join(Release::name()), "#!/bin/sh\nexit 1\n").unwrap();
    release.sign();
    release.refused(&release.install(&[]), "does not run here");
}

#[test]
fn it_keeps_programs_of_others() {
    let Some(release) = Release::new("it_keeps_programs_of_others") else {
        return;
    };
    fs::create_dir_all(release.bin()).unwrap();
    let theirs = release.bin().join("mkdwarfs");
    fs::write(&theirs, "theirs").unwrap();
    symlink("dwarfs-universal", release.bin().join("dwarfs")).unwrap();
    let output = release.install(&[]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("bin/mkdwarfs") && text.contains("bin/dwarfs:"),
        "{text}"
    );
    assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    assert!(!release.bin().join("redwarfs").exists());
    let output = release.install(&["--force"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read_link(&theirs).unwrap(), Path::new("redwarfs"));
}
