//! Images on servers whose names or credentials stop working while they are mounted.
#![cfg(all(feature = "remote", target_os = "linux"))]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::driver;
use crate::driver::{Mount, can_mount, dwarfs, errno, in_namespace, stderr, temp, wait_until};
use crate::support::build;
use redwarfs_testkit::mutate::Rng;
use redwarfs_testkit::web::{WebFault, WebServer};

const SIZE: usize = 2 << 20;

/// An image of two files on a server.
struct Site {
    dir: tempfile::TempDir,
    server: WebServer,
}

impl Site {
    fn new(path: &str) -> Self {
        let dir = temp();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for (name, seed) in [("first", 1), ("second", 2)] {
            let mut random = Rng::new(seed);
            let bytes: Vec<u8> = (0..SIZE).map(|_| random.bits() as u8).collect();
            fs::write(tree.join(name), bytes).unwrap();
        }
        let image = dir.path().join("image");
        build(&tree, &image, &["-l1", "-S18", "--no-progress"]);
        let server = WebServer::start().unwrap();
        server.put(path, fs::read(&image).unwrap());
        Self { dir, server }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }
}

#[test]
fn a_name_that_is_gone_for_a_while_holds_up_a_read() {
    let test = "a_name_that_is_gone_for_a_while_holds_up_a_read";
    if !can_mount(test) {
        return;
    }
    let site = Site::new("/image");
    let hosts = site.dir.path().join("hosts");
    let entry = "127.0.0.1 images.example\n";
    fs::write(&hosts, entry).unwrap();
    let script = r#"
        echo "hosts: files" >"$1/switch"; mkdir "$1/mnt"
        mount --bind "$1/switch" /etc/nsswitch.conf
        mount --bind "$1/hosts" /etc/hosts
        "$2" "$3" "$1/mnt"
        : >"$1/hosts"
        cmp "$1/tree/first" "$1/mnt/first"
        umount "$1/mnt"
    "#;
    let url = format!(
        "http://images.example:{}/image",
        site.server.address().port()
    );
    // Opening needs none of this.
    let blocks = 0..2 * SIZE as u64;
    site.server.fail_in(blocks.clone(), WebFault::Refuse);
    let asked = || {
        let requests = site.server.take_requests();
        let for_blocks = |first: Option<u64>| first.is_some_and(|first| blocks.contains(&first));
        requests.iter().filter(|r| for_blocks(r.first())).count()
    };
    let output = std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| in_namespace(test, script, site.dir.path(), &[OsStr::new(&url)]));
        wait_until("a request that ends the connection", || {
            asked() > 0 || reader.is_finished()
        });
        // The driver has lost its connections.
        site.server.release();
        site.server.hang_up();
        asked();
        std::thread::sleep(Duration::from_millis(700));
        let meanwhile = asked();
        fs::write(&hosts, entry).unwrap();
        let output = reader.join().unwrap();
        assert!(output.is_none() || meanwhile == 0, "{meanwhile}");
        output
    });
    if let Some(output) = output {
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(asked() > 0);
    }
}

/// What a server for credentials answers: they are valid for a minute.
fn credentials(token: &str) -> Vec<u8> {
    let mut date = Command::new("date");
    date.args(["-u", "-d", "60 seconds", "+%Y-%m-%dT%H:%M:%SZ"]);
    let end = driver::stdout(&date.output().unwrap());
    let answer = serde_json::json!({
        "AccessKeyId": "key",
        "SecretAccessKey": "secret",
        "Token": token,
        "Expiration": end.trim(),
    });
    answer.to_string().into_bytes()
}

#[test]
fn credentials_that_expire_are_asked_for_again() {
    if !can_mount("credentials_that_expire_are_asked_for_again") {
        return;
    }
    let site = Site::new("/bucket/image");
    let secret = site.dir.path().join("token");
    fs::write(&secret, "hidden").unwrap();
    site.server.put("/credentials", credentials("first"));
    let log = site.dir.path().join("log");
    let mount = Mount::on(Mount::new_dir());
    let output = dwarfs()
        .arg("s3://bucket/image")
        .arg(mount.point())
        .arg("-o")
        // Nothing is fetched before somebody reads it.
        .arg(format!("log_file={},seq_detector=0", log.display()))
        .env_remove("AWS_ACCESS_KEY_ID")
        .env("HOME", site.dir.path())
        .env("AWS_REGION", "here")
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ENDPOINT_URL", site.server.url(""))
        .env(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            site.server.url("/credentials"),
        )
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &secret)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let tokens = || -> Vec<String> {
        let requests = site.server.take_requests().into_iter();
        let of_image = requests.filter(|request| request.target == "/bucket/image");
        let token = of_image.filter_map(|r| r.header("x-amz-security-token").map(str::to_owned));
        token.collect()
    };
    assert!(tokens().iter().all(|token| token == "first"));
    let read = |name: &str| fs::read(mount.point().join(name));
    let right = |name: &str| fs::read(site.tree().join(name)).unwrap();
    site.server.put("/credentials", credentials("second"));
    // Those that were asked for a moment ago are used again.
    std::thread::sleep(Duration::from_millis(200));
    assert!(read("first").unwrap() == right("first"));
    let used = tokens();
    assert!(
        !used.is_empty() && used.iter().all(|token| token == "second"),
        "{used:?}"
    );

    // Those that a server does not accept give an error at once, and the next read tries again.
    site.server
        .fail_in(0..u64::MAX, WebFault::Status(403, Vec::new()));
    assert_eq!(errno(read("second")), rustix::io::Errno::IO.raw_os_error());
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("s3://bucket/image: bytes "), "{text}");
    assert!(text.contains("403") && !text.contains("hidden"), "{text}");
    site.server.release();
    assert!(read("second").unwrap() == right("second"));
}

#[test]
fn the_cache_of_a_mount_may_have_no_room() {
    if !can_mount("the_cache_of_a_mount_may_have_no_room") {
        return;
    }
    let site = Site::new("/image");
    let small = site.dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let (target, none) = (small.as_path(), Path::new("none"));
    let options = std::ffi::CString::new("size=1m,mode=700").unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(none, target, "tmpfs", flags, options.as_c_str()).unwrap();
    for _ in 0..2 {
        let mounted = Mount::background(
            Path::new(&site.server.url("/image")),
            &format!("cache_dir={}", small.display()),
        );
        for name in ["first", "second"] {
            let read = fs::read(mounted.point().join(name)).unwrap();
            assert!(read == fs::read(site.tree().join(name)).unwrap(), "{name}");
        }
        // There are blocks in it, and not all.
        let used = |room: rustix::fs::StatVfs| (room.f_blocks - room.f_bfree) * room.f_bsize;
        wait_until("the cache is used", || {
            used(rustix::fs::statvfs(&small).unwrap()) > 256 << 10
        });
    }
    // The driver may still write to it.
    let detach = rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(&small, detach).unwrap();
}
