//! The block cache beside blocks that are larger than it, and blocks that are not compressed, with real
//! mounts and the tools.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::driver::{Mount, can_mount, driver_of};
use crate::support;
use redwarfs_testkit::tree::Random;
use rustix::process::Signal;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

fn temp() -> TempDir {
    TempDir::with_prefix("redwarfs-cache-").expect("a temporary directory")
}

/// An image with one file `big`.
fn image(dir: &Path, content: &[u8], options: &[&str]) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).expect("mkdir");
    fs::write(tree.join("big"), content).expect("write");
    let image = dir.join("big.dwarfs");
    support::build(&tree, &image, options);
    image
}

/// Letters at random, which compress to half their size.
fn letters(length: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    let letter = || b"etaoin shrdlu\n"[random.below(14) as usize];
    std::iter::repeat_with(letter).take(length).collect()
}

/// Bytes at random.
fn noise(length: usize) -> Vec<u8> {
    let mut random = Random::new(2);
    let byte = || random.below(256) as u8;
    std::iter::repeat_with(byte).take(length).collect()
}

/// Reads a file from front to back in small pieces, and compares it.
fn compare(path: &Path, content: &[u8]) {
    let mut file = File::open(path).expect("open");
    let mut piece = vec![0; 50_000];
    let mut at = 0;
    loop {
        let n = file.read(&mut piece).expect("read");
        if n == 0 {
            break;
        }
        assert!(piece[..n] == content[at..at + n], "at {at}");
        at += n;
    }
    assert_eq!(at, content.len());
}

/// The last value of a line `name: value` in a log.
fn statistic(log: &str, name: &str) -> Option<u64> {
    let mark = format!(" {name}: ");
    let line = log.lines().rev().find(|line| line.contains(&mark))?;
    line.split(&mark).nth(1)?.parse().ok()
}

/// The log of a mount in which `work` was done.
fn log_of(image: &Path, options: &str, work: impl FnOnce(&Path)) -> String {
    let options = format!("debuglevel=verbose,{options}");
    let mut mount = Mount::foreground(image, &["-o", &options]);
    work(mount.point());
    mount.signal(Signal::TERM);
    let (code, log) = mount.finish();
    assert_eq!(code, Some(0), "{log}");
    log
}

/// Memory of the driver that no file backs, in KiB.
fn resident(point: &Path) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", driver_of(point)));
    let status = status.expect("a running driver");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let number = line.expect("RssAnon").trim().trim_end_matches(" kB");
    number.parse().expect("a number")
}

#[test]
fn a_block_larger_than_the_cache_is_decompressed_once_and_warned_of() {
    if !can_mount("a_block_larger_than_the_cache_is_decompressed_once_and_warned_of") {
        return;
    }
    let dir = temp();
    let content = letters(9 * MIB);
    // Blocks of 4 MiB.
    let image = image(dir.path(), &content, &["-l3", "-S22"]);
    for (options, warned) in [
        ("cachesize=0", true),
        ("cachesize=1m", true),
        ("cachesize=5m", false),
    ] {
        let log = log_of(&image, options, |point| {
            compare(&point.join("big"), &content);
        });
        let bytes = statistic(&log, "total bytes decompressed").expect("statistics");
        assert_eq!(bytes, content.len() as u64, "{options}");
        let says = log.contains("cannot hold one block of the image (4 MiB)");
        assert_eq!(says, warned, "{options}: {log}");
        assert_eq!(log.contains("-o cachesize=5m holds one"), warned, "{log}");
    }
}

#[test]
fn archives_of_blocks_larger_than_the_cache_decompress_them_once() {
    let dir = temp();
    let content = letters(5 * MIB);
    let image = image(dir.path(), &content, &["-l3", "-S23"]);
    let args = [
        "-s",
        "100k",
        "-f",
        "pax",
        "--log-level=verbose",
        "-o",
        "/dev/null",
        "-i",
    ];
    let args = args.map(Path::new).into_iter().chain([image.as_path()]);
    let output = support::must(support::DWARFSEXTRACT, args);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("decoded 1 block for "), "{log}");
}

#[test]
fn plain_blocks_do_not_fill_the_cache() {
    if !can_mount("plain_blocks_do_not_fill_the_cache") {
        return;
    }
    let dir = temp();
    let content = noise(40 * MIB);
    let image = image(dir.path(), &content, &["-l0"]);
    // Neither does a cache that cannot hold one matter.
    for options in ["", "cachesize=100k"] {
        let log = log_of(&image, options, |point| {
            compare(&point.join("big"), &content);
            let used = resident(point);
            assert!(used < 12 << 10, "{options}: {used} KiB");
        });
        let bytes = statistic(&log, "total bytes decompressed").expect("statistics");
        assert_eq!(bytes, content.len() as u64, "verified once");
        assert!(!log.contains("cannot hold"), "{log}");
    }
}

#[test]
fn plain_bytes_that_change_in_the_file_are_not_shown() {
    if !can_mount("plain_bytes_that_change_in_the_file_are_not_shown") {
        return;
    }
    let dir = temp();
    let content = noise(3 * MIB);
    let image = image(dir.path(), &content, &["-l0"]);
    let stored = fs::read(&image).expect("an image");
    let start = stored
        .windows(64)
        .position(|window| window == &content[..64])
        .expect("plain data") as u64;
    let file = File::options().write(true).open(&image).expect("open");
    let mount = Mount::background(&image, "no_cache_files");
    let big = mount.point().join("big");
    compare(&big, &content);
    let at = 500_000;
    let read = |at: u64| {
        let mut piece = [0; 4096];
        let read = File::open(&big).and_then(|big| big.read_exact_at(&mut piece, at));
        read.map(|()| piece)
    };
    file.write_all_at(&[!content[at]], start + at as u64)
        .expect("write");
    // The byte that was changed, and one beside it.
    for at in [at as u64 & !4095, (at as u64 & !4095) + 4096] {
        let error = read(at).expect_err("a changed byte is shown");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    }
    // Another block is not concerned, and the old bytes are good.
    let far = 2 * MIB;
    assert_eq!(
        read(far as u64).expect("read")[..],
        content[far..far + 4096]
    );
    file.write_all_at(&[content[at]], start + at as u64)
        .expect("write");
    compare(&big, &content);
}
