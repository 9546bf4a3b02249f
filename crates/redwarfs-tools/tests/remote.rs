//! The tools with images on a server.
#![cfg(feature = "remote")]

use crate::driver;
use crate::driver::{Mount, can_mount, driver_of, stderr, table_line, temp, wait_until};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, build, must, run};
use redwarfs_testkit::web::{WebFault, WebRequest, WebServer};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Bytes that cannot be compressed.
fn noise(n: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// A tree with files of several blocks, and its image on a server.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: WebServer,
    pub(crate) url: String,
}

impl Site {
    pub(crate) fn new(options: &[&str]) -> Self {
        let dir = temp();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("large"), noise(3 << 20, 1)).unwrap();
        fs::write(tree.join("sub/text"), "some text\n".repeat(5000)).unwrap();
        for i in 0..200 {
            fs::write(tree.join(format!("sub/{i}")), noise(3000, i + 2)).unwrap();
        }
        let image = dir.path().join("tree.dwarfs");
        let size = options.iter().find(|option| option.starts_with("-S"));
        let mut all = options.to_vec();
        all.extend(size.is_none().then_some("-S18"));
        all.push("--no-progress");
        build(&tree, &image, &all);
        let server = WebServer::start().unwrap();
        server.put("/tree.dwarfs", fs::read(&image).unwrap());
        let url = server.url("/tree.dwarfs");
        Self { dir, server, url }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn same_trees(one: &Path, two: &Path) {
    let diff = std::process::Command::new("diff")
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
fn mounting_takes_two_requests_and_each_block_one() {
    if !can_mount("remote mount") {
        return;
    }
    let site = Site::new(&[]);
    let mount = Mount::background(Path::new(&site.url), "");
    let opening = site.server.take_requests();
    let shown: Vec<_> = opening
        .iter()
        .map(|r| (r.header("range"), r.sent))
        .collect();
    assert!(opening.len() <= 2, "{shown:?}");
    assert!(opening.iter().all(|r| r.sent <= 128 << 10), "{shown:?}");

    // Names and attributes need no block.
    let names = fs::read_dir(mount.point().join("sub")).unwrap();
    assert_eq!(
        names
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .filter(|len| *len == 3000)
            .count(),
        200
    );
    assert_eq!(site.server.take_requests().len(), 0);

    same_trees(&site.path("tree"), mount.point());
    let image = fs::metadata(site.path("tree.dwarfs")).unwrap().len();
    let requests = site.server.take_requests();
    let bytes: u64 = requests.iter().map(|r| r.sent).sum();
    // About as much as the image has, in one request for a block or less.
    assert!(bytes <= image + (256 << 10), "{bytes} of {image}");
    let blocks = usize::try_from(image >> 18).unwrap() + 2;
    assert!(
        requests.len() <= blocks,
        "{} for {blocks} blocks",
        requests.len()
    );
    assert!(
        requests
            .iter()
            .all(|r| r.header("if-match") == Some("\"v1\""))
    );
    let line = table_line(mount.point()).unwrap();
    assert!(line.starts_with(&site.url), "{line}");
}

/// A tree of 300 small files, and its image of about 100 blocks of 64 KiB on a server.
fn many_small_files() -> Site {
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir_all(&tree).unwrap();
    let mut x = 7_u32;
    for i in 0..300 {
        let noise = std::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        });
        fs::write(
            tree.join(format!("{i}")),
            noise.take(20_000).collect::<Vec<u8>>(),
        )
        .unwrap();
    }
    let image = dir.path().join("tree.dwarfs");
    build(&tree, &image, &["-S16", "--no-progress"]);
    let server = WebServer::start().unwrap();
    server.put("/tree.dwarfs", fs::read(&image).unwrap());
    let url = server.url("/tree.dwarfs");
    Site { dir, server, url }
}

/// Reads a file of the mount, and compares it with that of the tree.
fn read_again(site: &Site, mount: &Mount, number: usize) {
    let name = number.to_string();
    let right = fs::read(site.path("tree").join(&name)).unwrap();
    assert!(
        fs::read(mount.point().join(&name)).unwrap() == right,
        "{name}"
    );
}

#[test]
fn blocks_near_each_other_are_fetched_before_somebody_waits_for_them() {
    if !can_mount("remote mount") {
        return;
    }
    let site = many_small_files();
    site.server.delay(Duration::from_millis(20));
    let mount = Mount::background(Path::new(&site.url), "");
    site.server.take_requests();
    // One file is one block, or two.
    read_again(&site, &mount, 150);
    let first = site.server.take_requests();
    let bytes: u64 = first.iter().map(|request| request.sent).sum();
    assert!(first.len() <= 2 && bytes <= 2 << 17, "{first:?}");
    // In an order that is not that of blocks.
    for i in 0..300 {
        read_again(&site, &mount, i * 7 % 300);
    }
    let requests = site.server.take_requests();
    let bytes: u64 = requests.iter().map(|request| request.sent).sum();
    let waits = redwarfs_testkit::web::round_trips(&requests);
    assert!(bytes < 7_000_000, "{bytes}");
    assert!(
        requests.len() < 70 && waits < 40,
        "{} {waits}",
        requests.len()
    );
}

#[test]
fn a_large_file_takes_few_requests() {
    if !can_mount("remote mount") {
        return;
    }
    let site = Site::new(&[]);
    site.server.delay(Duration::from_millis(20));
    let mount = Mount::background(Path::new(&site.url), "");
    site.server.take_requests();
    let right = fs::read(site.path("tree/large")).unwrap();
    assert!(fs::read(mount.point().join("large")).unwrap() == right);
    let requests = site.server.take_requests();
    let shown: Vec<_> = requests.iter().map(|r| r.header("range")).collect();
    // Twelve blocks.
    assert!(requests.len() <= 6, "{shown:?}");
    let bytes: u64 = requests.iter().map(|request| request.sent).sum();
    assert!(bytes <= 4 << 20, "{shown:?}");
}

/// The files of the first blocks of an image in their order, and the first byte of the blocks behind them, which none of them
/// needs.
fn files_of_first_blocks(site: &Site) -> (Vec<usize>, u64) {
    let image = fs::metadata(site.path("tree.dwarfs")).unwrap().len();
    let mount = Mount::background(Path::new(&site.url), "seq_detector=0");
    site.server.take_requests();
    let mut files = Vec::new();
    for number in 0..300 {
        read_again(site, &mount, number);
        let requests = site.server.take_requests();
        files.extend(
            requests
                .iter()
                .filter_map(WebRequest::first)
                .max()
                .map(|first| (first, number)),
        );
    }
    files.sort();
    let border = image / 3;
    // A file has parts of two blocks or less, and one of them was perhaps there.
    let is_first = |(first, _): &&(u64, usize)| first + (3 << 16) < border;
    let first = files.iter().filter(is_first).map(|(_, number)| *number);
    (first.collect(), border)
}

#[test]
fn faults_of_what_nobody_asked_for_are_no_errors() {
    if !can_mount("remote mount") {
        return;
    }
    let site = many_small_files();
    let (files, border) = files_of_first_blocks(&site);
    assert!(files.len() >= 10, "{files:?}");
    site.server.delay(Duration::from_millis(20));
    let refused = WebFault::Status(403, vec![]);
    for fault in [refused, WebFault::Refuse, WebFault::Stall(10)] {
        let mount = Mount::background(Path::new(&site.url), "");
        site.server.fail_in(border..u64::MAX, fault);
        site.server.take_requests();
        files
            .iter()
            .for_each(|number| read_again(&site, &mount, *number));
        let requests = site.server.take_requests();
        let behind = |first: u64| first >= border;
        assert!(requests.iter().filter_map(WebRequest::first).any(behind));
        // What did not come is asked for again when somebody needs it.
        site.server.release();
        (0..300).for_each(|number| read_again(&site, &mount, number));
    }
}

#[test]
fn faults_are_errors_of_requests_only_and_hold_up_nobody() {
    if !can_mount("remote mount") {
        return;
    }
    let site = many_small_files();
    site.server.delay(Duration::from_millis(20));
    let mount = Mount::background(Path::new(&site.url), "");
    (0..10).for_each(|number| read_again(&site, &mount, number));
    // What is fetched ahead fails, too, but only requests have errors.
    let refused = WebFault::Status(403, vec![]);
    site.server.fail(std::iter::repeat_n(refused, 1000));
    let mut failed = 0;
    for number in (10..150).step_by(10) {
        match fs::read(mount.point().join(number.to_string())) {
            Ok(found) => {
                let right = fs::read(site.path("tree").join(number.to_string())).unwrap();
                assert!(found == right, "{number}");
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO));
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
    // Nothing of it is remembered.
    site.server.release();
    (0..200).for_each(|number| read_again(&site, &mount, number));

    drop(mount);

    // What is on its way and does not come holds up nobody.
    let mount = Mount::background(Path::new(&site.url), "");
    (0..3).for_each(|number| read_again(&site, &mount, number));
    site.server
        .fail(std::iter::repeat_n(WebFault::Stall(10), 1000));
    let mut reader = std::process::Command::new("cat")
        .arg(mount.point().join("290"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    site.server.take_requests();
    wait_until("the read", || !site.server.take_requests().is_empty());
    (0..3).for_each(|number| read_again(&site, &mount, number));
    reader.kill().unwrap();
    reader.wait().unwrap();
    let driver = driver_of(mount.point());
    drop(mount);
    wait_until("the end of the driver", || {
        driver::stat_field(driver, 0).is_none_or(|state| state == "Z")
    });
    site.server.release();
}

#[test]
fn check_and_extraction_read_from_a_server() {
    let site = Site::new(&[]);
    must(DWARFSCK, ["-i", &site.url, "--check-integrity"]);
    must(DWARFSCK, [&site.url]);
    site.server.take_requests();
    let out = site.path("out");
    fs::create_dir(&out).unwrap();
    must(
        DWARFSEXTRACT,
        [
            OsStr::new("-i"),
            site.url.as_ref(),
            "-o".as_ref(),
            out.as_ref(),
        ],
    );
    same_trees(&site.path("tree"), &out);
    let requests = site.server.take_requests();
    assert!(requests.len() <= 10, "{}", requests.len());

    let tar = site.path("out.tar");
    must(
        DWARFSEXTRACT,
        [
            OsStr::new("-i"),
            site.url.as_ref(),
            "-f".as_ref(),
            "ustar".as_ref(),
            "-o".as_ref(),
            tar.as_ref(),
        ],
    );
    assert!(fs::metadata(&tar).unwrap().len() > 3 << 20);

    // A file as a URL.
    let file = format!("file://{}", site.path("tree.dwarfs").display());
    must(DWARFSCK, ["-i", &file]);
}

#[test]
fn uncompressed_images_and_metadata_are_read_from_a_server() {
    for options in [
        &["-l0"][..],
        &["-l0", "--no-history"],
        &["--no-section-index"],
        &["--recovery=10%"],
    ] {
        let site = Site::new(options);
        let out = site.path("out");
        fs::create_dir(&out).unwrap();
        must(
            DWARFSEXTRACT,
            [
                OsStr::new("-i"),
                site.url.as_ref(),
                "-o".as_ref(),
                out.as_ref(),
            ],
        );
        same_trees(&site.path("tree"), &out);
        if can_mount("remote mount") {
            let mount = Mount::background(Path::new(&site.url), "");
            same_trees(&site.path("tree"), mount.point());
            // From the cache.
            site.server.take_requests();
            fs::read(mount.point().join("sub/7")).unwrap();
            fs::read(mount.point().join("sub/text")).unwrap();
            assert_eq!(site.server.take_requests().len(), 0, "{options:?}");
        }
    }
}

#[test]
fn an_image_with_trailers_opens_in_two_requests() {
    let site = Site::new(&["--recovery=10%"]);
    must(DWARFSCK, ["-i", &site.url, "--no-check", "--list", "-q"]);
    let requests = site.server.take_requests();
    assert!(
        requests.len() <= 2,
        "{:?}",
        requests
            .iter()
            .map(|r| r.header("range"))
            .collect::<Vec<_>>()
    );
}

/// The index of so many blocks is longer than the first answer. What is in front of it comes with the rest of it.
#[test]
fn an_image_with_a_long_index_opens_in_two_requests() {
    let site = Site::new(&["-S10", "--compression=null"]);
    must(DWARFSCK, ["-i", &site.url, "--no-check", "--list", "-q"]);
    let requests = site.server.take_requests();
    let shown: Vec<_> = requests
        .iter()
        .map(|r| (r.header("range"), r.sent))
        .collect();
    assert_eq!(requests.len(), 2, "{shown:?}");
    let sent = requests[1].sent;
    assert!(4 * (12 << 10) < sent && sent < 320 << 10, "{shown:?}");
}

/// A new connection sends about 14 KiB in its first round trip.
#[test]
fn a_small_image_is_mounted_with_its_end_and_its_blocks_follow() {
    if !can_mount("small remote image") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let bytes = noise(40_000, 1);
    fs::write(tree.join("noise"), &bytes).unwrap();
    let image = dir.path().join("small.dwarfs");
    build(&tree, &image, &["-l1", "--no-progress"]);
    let size = fs::metadata(&image).unwrap().len();
    assert!((30_000..64_000).contains(&size), "{size}");
    let server = WebServer::start().unwrap();
    server.put("/a", fs::read(&image).unwrap());
    // What follows waits for nobody.
    let mount = Mount::background(Path::new(&server.url("/a")), "");
    let mut requests = Vec::new();
    wait_until("the blocks are fetched", || {
        requests.extend(server.take_requests());
        requests.len() >= 2
    });
    assert_eq!(requests[0].header("range"), Some("bytes=-12288"));
    assert_eq!(requests[1].first(), Some(0));
    assert_eq!(fs::read(mount.point().join("noise")).unwrap(), bytes);
    requests.extend(server.take_requests());
    assert_eq!(requests.len(), 2, "{requests:?}");
}

#[test]
fn errors_name_the_object_and_no_secrets() {
    let site = Site::new(&[]);
    let secret = site.url.replace("http://", "http://someone:hidden@") + "?signature=hidden";
    let missing = secret.replace("tree.dwarfs", "none");
    let shown = site.url.replace("tree.dwarfs", "none?...");
    for (program, args) in [
        (DWARFSCK, vec!["-i", &missing]),
        (DWARFSEXTRACT, vec!["-i", &missing, "-o", "/tmp"]),
        (driver::DWARFS, vec![&missing, "/mnt"]),
        (DWARFSCK, vec!["-i", &missing, "--scrub", "/tmp/x"]),
        (driver::DWARFS, vec![&missing, "--auto-mountpoint"]),
        (MKDWARFS, vec!["-i", "/etc", "-o", &missing]),
    ] {
        let out = run(program, &args);
        let text = stderr(&out);
        assert!(!out.status.success(), "{args:?}");
        assert!(text.contains(&shown), "{args:?}: {text}");
        assert!(
            !text.contains("hidden") && !text.contains("someone"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let out = run(DWARFSCK, ["-i", &site.url, "--add-recovery=5%"]);
    assert!(
        stderr(&out).contains("the image is on a server"),
        "{}",
        stderr(&out)
    );

    if can_mount("remote mount") {
        let mount = Mount::background(Path::new(&secret), "");
        let line = table_line(mount.point()).unwrap();
        assert!(!line.contains("hidden") && line.contains("?..."), "{line}");
    }
}

#[test]
fn images_are_made_from_urls_and_do_not_keep_their_secrets() {
    let site = Site::new(&[]);
    let secret = site.url.replace("http://", "http://someone:hidden@") + "?signature=hidden";
    let out = site.path("again.dwarfs");
    let input = format!("--input={secret}");
    let rewritten = [OsStr::new("--recompress=none"), "-o".as_ref(), out.as_ref()];
    must(MKDWARFS, [OsStr::new(&input)].into_iter().chain(rewritten));
    let image = fs::read(&out).unwrap();
    for word in ["hidden", "someone"] {
        let mut parts = image.windows(word.len());
        assert!(!parts.any(|part| part == word.as_bytes()), "{word}");
    }
    let url = format!("file://{}", site.path("tree.dwarfs").display());
    let copy = site.path("copy.dwarfs");
    must(
        MKDWARFS,
        [
            "-i",
            &url,
            "--recompress=none",
            "-o",
            copy.to_str().unwrap(),
        ],
    );
    let tree = site.path("tree/sub");
    let appended = |image: &str| {
        run(
            MKDWARFS,
            [
                "-i",
                tree.to_str().unwrap(),
                "--append",
                image,
                "--no-progress",
            ],
        )
    };
    let url = format!("file://{}", copy.display());
    let done = appended(&url);
    assert!(done.status.success(), "{}", stderr(&done));
    let refused = stderr(&appended(&secret));
    assert!(refused.contains("the image is on a server"), "{refused}");
    assert!(!refused.contains("hidden"), "{refused}");
}

#[test]
fn credentials_are_asked_for_again_and_their_errors_are_named() {
    let site = Site::new(&[]);
    let token = site.path("token");
    fs::write(&token, "hidden").unwrap();
    let passing = [503, 429].map(|status| WebFault::Status(status, vec![]));
    let lasting = std::iter::repeat_n(WebFault::Status(403, vec![]), 9);
    site.server.fail(passing.into_iter().chain(lasting));
    let out = std::process::Command::new(DWARFSCK)
        .args(["-i", "s3://bucket/key"])
        .env_remove("AWS_ACCESS_KEY_ID")
        .env("HOME", site.dir.path())
        .env("AWS_REGION", "here")
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ENDPOINT_URL", site.server.url(""))
        .env(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            site.server.url("/credentials"),
        )
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token)
        .output()
        .unwrap();
    let text = stderr(&out);
    let requests = site.server.take_requests();
    assert!(
        text.contains("s3://bucket/key: credentials: the server answers 403"),
        "{text}{requests:?}"
    );
    assert!(!text.contains("hidden"), "{text}");
    assert!((3..9).contains(&requests.len()), "{requests:?}");
    assert!(requests.iter().all(|r| r.target == "/credentials"));
}
