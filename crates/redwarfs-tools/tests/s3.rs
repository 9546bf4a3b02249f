//! The tools with images in an object store. `scripts/test-s3` starts one, and names it in `REDWARFS_TEST_S3`.
#![cfg(feature = "remote")]

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::driver;
use crate::driver::{can_mount, stderr, table_line, temp, wait_until};
use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS};
use redwarfs_testkit::skip;

/// A bucket of its own on the server.
struct Bucket {
    /// Host and port.
    server: String,
    name: String,
}

impl Bucket {
    /// None, with a note, without a server.
    fn new(test: &str) -> Option<Self> {
        let Ok(url) = std::env::var("REDWARFS_TEST_S3") else {
            skip(test, "REDWARFS_TEST_S3 is not set (scripts/test-s3)");
            return None;
        };
        let server = url.trim_start_matches("http://").trim_end_matches('/');
        let bucket = Self {
            server: server.to_owned(),
            name: test.replace(' ', "-"),
        };
        let answer = bucket.ask("PUT", "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(bucket)
    }

    /// The answer to a request without a signature.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.server).unwrap();
        let (server, name) = (&self.server, &self.name);
        write!(
            stream,
            "{method} /{name}{path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }

    /// Whether there is an object, and whether there are parts of one that is not complete.
    fn has(&self, key: &str) -> (bool, bool) {
        // Without a signature, some objects may not be read.
        let answer = self.ask("HEAD", &format!("/{key}"));
        let found = ["200", "403"].map(|status| answer.starts_with(&format!("HTTP/1.1 {status}")));
        let found = found.contains(&true);
        let uploads = self.ask("GET", "?uploads");
        assert!(uploads.contains("ListMultipartUploadsResult"), "{uploads}");
        (found, uploads.contains("<UploadId>"))
    }

    /// A program with credentials for the store.
    fn tool(&self, program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.server))
            .env("AWS_ACCESS_KEY_ID", "AKIDHIDDEN")
            .env("AWS_SECRET_ACCESS_KEY", "hidden")
            .env("AWS_REGION", "us-east-1")
            .env("HOME", "/nonexistent")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        self.tool(program, args).output().unwrap()
    }

    fn must(&self, program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        let out = self.run(program, args);
        assert!(out.status.success(), "{}", stderr(&out));
    }
}

fn noise(n: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// A tree of `size` bytes.
fn tree(dir: &Path, size: usize) -> std::path::PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("large"), noise(size, 1)).unwrap();
    fs::write(tree.join("sub/text"), "some text\n".repeat(5000)).unwrap();
    tree
}

fn same_trees(one: &Path, two: &Path) {
    let diff = Command::new("diff")
        .arg("-r")
        .args([one, two])
        .output()
        .unwrap();
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
}

#[test]
fn an_image_is_written_and_used() {
    let Some(bucket) = Bucket::new("written and used") else {
        return;
    };
    let dir = temp();
    // Several parts.
    let tree = tree(dir.path(), 40 << 20);
    let url = bucket.url("images/a b.dwarfs");
    let build = [
        "-i",
        tree.to_str().unwrap(),
        "-o",
        &url,
        "-l1",
        "--no-progress",
    ];
    bucket.must(MKDWARFS, build);
    assert_eq!(bucket.has("images/a%20b.dwarfs"), (true, false));
    bucket.must(DWARFSCK, [&url, "--check-integrity"]);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    bucket.must(DWARFSEXTRACT, ["-i", &url, "-o", out.to_str().unwrap()]);
    same_trees(&tree, &out);

    // An object that is there stays, unless it is to be replaced.
    let again = bucket.run(MKDWARFS, build);
    assert!(!again.status.success());
    assert!(
        stderr(&again).contains("exists, use --force"),
        "{}",
        stderr(&again)
    );
    fs::write(tree.join("new"), "new").unwrap();
    bucket.must(MKDWARFS, build.iter().chain(&["--force"]));
    let list = bucket.run(DWARFSCK, [&url, "--list", "-q"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("new"));

    if !can_mount("mounting from an object store") {
        return;
    }
    let point = dir.path().join("mnt");
    fs::create_dir(&point).unwrap();
    bucket.must(DWARFS, [OsStr::new(&url), point.as_ref()]);
    assert!(
        table_line(&point)
            .is_some_and(|line| line.starts_with("s3://written-and-used/images/a\\040b"))
    );
    let same = std::panic::catch_unwind(|| same_trees(&tree, &point));
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    same.unwrap();
}

#[test]
fn images_of_a_prefix_are_one_mount() {
    let test = "images of a prefix are one mount";
    let Some(bucket) = Bucket::new(test).filter(|_| can_mount(test)) else {
        return;
    };
    let dir = temp();
    for name in ["a", "b", "odd name+1"] {
        let tree = dir.path().join(name);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("who"), name).unwrap();
        let image = dir.path().join(format!("{name}.dwarfs"));
        let quiet = ["-l1", "--log-level=warn", "-o"].map(OsStr::new);
        let input = [OsStr::new("-i"), tree.as_os_str()];
        let local = [&input[..], &quiet, &[image.as_os_str()]].concat();
        bucket.must(MKDWARFS, local);
        let key = format!("images/{name}.dwarfs");
        let key = key.replace(' ', "%20").replace('+', "%2B");
        let url = bucket.url(&key);
        bucket.must(MKDWARFS, [&input[..], &quiet, &[OsStr::new(&url)]].concat());
    }
    let url = bucket.url("other.dwarfs");
    let input = dir.path().join("a");
    bucket.must(
        MKDWARFS,
        [
            "-i",
            input.to_str().unwrap(),
            "-l1",
            "--log-level=warn",
            "-o",
            &url,
        ],
    );
    let point = dir.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let names = || {
        let entries = fs::read_dir(&point).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    for (images, wanted) in [
        ("images/", &["a", "b", "odd name+1"][..]),
        ("images/[ab].dwarfs", &["a", "b"]),
        ("images/o*", &["odd name+1"]),
        ("*.dwarfs", &["other"]),
    ] {
        let options = format!("dir={}", point.display());
        bucket.must(DWARFS, ["-o", &options, &bucket.url(images)]);
        assert_eq!(names(), wanted, "{images}");
        for name in wanted {
            let text = fs::read_to_string(point.join(name).join("who")).unwrap();
            assert_eq!(text, if *name == "other" { "a" } else { name });
        }
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
        wait_until("the end of the mount", || table_line(&point).is_none());
    }
    for (images, cause) in [
        ("images/z*", "no image found"),
        ("nothing/", "no image found"),
    ] {
        let options = format!("dir={}", point.display());
        let out = bucket.run(DWARFS, ["-o", &options, &bucket.url(images)]);
        assert!(
            !out.status.success() && stderr(&out).contains(cause),
            "{}",
            stderr(&out)
        );
    }
}

#[test]
fn images_are_joined() {
    let Some(bucket) = Bucket::new("joined") else {
        return;
    };
    let dir = temp();
    // Hive's form of keys: the equals sign separates no name.
    let parts = ["part=1/a.dwarfs", "part=2/b.dwarfs"].map(|key| bucket.url(key));
    for (number, url) in parts.iter().enumerate() {
        let tree = dir.path().join(number.to_string());
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join(format!("file{number}")), noise(100_000, 1)).unwrap();
        let tree = tree.to_str().unwrap();
        bucket.must(MKDWARFS, ["-i", tree, "-o", url, "-l1", "--no-progress"]);
    }
    let joined = bucket.url("joined.dwarfs");
    let [one, two] = &parts;
    let join = ["--merge=overlay", "-o", &joined, one, two, "--no-progress"];
    bucket.must(MKDWARFS, join);
    let list = bucket.run(DWARFSCK, [&joined, "--list", "-q"]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("file0") && list.contains("file1"), "{list}");

    let named = format!("second={two}");
    let local = dir.path().join("local.dwarfs");
    let side = ["--merge", "-o", local.to_str().unwrap(), one, &named];
    bucket.must(MKDWARFS, side);
    let list = bucket.run(DWARFSCK, [local.to_str().unwrap(), "--list", "-q"]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(
        list.contains("a/file0") && list.contains("second/file1"),
        "{list}"
    );
}

#[test]
fn of_builds_at_the_same_time_those_that_find_the_object_are_refused() {
    let Some(bucket) = Bucket::new("same time") else {
        return;
    };
    let dir = temp();
    // Of one part: the server does not complete those of several at once.
    let tree = tree(dir.path(), 1000);
    for round in 0..3 {
        let url = bucket.url(&round.to_string());
        let start = |_| {
            let args = ["-i", tree.to_str().unwrap(), "-o", &url, "-l0"];
            let mut command = bucket.tool(MKDWARFS, args);
            command
                .arg("--no-progress")
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let builds: Vec<_> = (0..5).map(start).collect();
        let outcomes = builds
            .into_iter()
            .map(std::process::Child::wait_with_output);
        let outcomes: Vec<Output> = outcomes.map(Result::unwrap).collect();
        let failed = outcomes.iter().filter(|outcome| !outcome.status.success());
        let failed: Vec<_> = failed.map(stderr).collect();
        // On a busy machine, moto looks for the object of one request while it makes that of another.
        assert!(failed.len() < 5, "{failed:?}");
        let late = start(5).wait_with_output().unwrap();
        assert!(!late.status.success());
        for text in failed.into_iter().chain([stderr(&late)]) {
            assert!(text.contains("exists"), "{text}");
        }
        assert_eq!(bucket.has(&round.to_string()), (true, false));
        bucket.must(DWARFSCK, [&url, "--check-integrity", "-q"]);
    }
}

#[test]
fn a_build_that_fails_leaves_nothing() {
    let Some(bucket) = Bucket::new("failing build") else {
        return;
    };
    let dir = temp();
    let tree = tree(dir.path(), 1 << 20);
    let url = bucket.url("a");
    // Letters at random take the strongest level a long time.
    let letters = noise(30 << 20, 2)
        .iter()
        .map(|byte| b'a' + byte % 16)
        .collect::<Vec<_>>();
    fs::write(tree.join("letters"), letters).unwrap();
    let mut child = bucket
        .tool(
            MKDWARFS,
            [
                "-i",
                tree.to_str().unwrap(),
                "-o",
                &url,
                "-l9",
                "--no-progress",
                "-N1",
            ],
        )
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the upload", || bucket.has("a").1);
    driver::kill(child.id(), rustix::process::Signal::INT);
    assert!(!child.wait().unwrap().success());
    assert_eq!(bucket.has("a"), (false, false));
}

#[test]
fn errors_name_the_object_and_no_secrets() {
    let Some(bucket) = Bucket::new("errors") else {
        return;
    };
    let missing = bucket.url("none");
    for (program, args, cause) in [
        (DWARFSCK, vec![missing.as_str()], "404 Not Found"),
        (DWARFS, vec![&missing, "/mnt"], "404 Not Found"),
        (
            MKDWARFS,
            vec!["-i", "/etc/hostname", "-o", "s3://no-such-bucket/a"],
            "s3://no-such-bucket/a",
        ),
    ] {
        let out = bucket.run(program, &args);
        let text = stderr(&out);
        assert!(!out.status.success(), "{text}");
        assert!(text.contains(cause), "{text}");
        assert!(!text.to_lowercase().contains("hidden"), "{text}");
    }
}
