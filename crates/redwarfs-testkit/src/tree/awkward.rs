//! A directory tree with everything that is hard to store.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::Random;

/// Fills `root` (an existing directory) with every file type, odd names, odd modes and times,
/// sparse, duplicate and hard-linked files. Devices are left out when the user may not make
/// them; the result says whether they are there.
pub fn awkward_tree(root: &Path) -> io::Result<bool> {
    let mut random = Random::new(1);
    let path = |name: &[u8]| root.join(OsStr::from_bytes(name));

    for dir in ["empty", "a/b/c/d/e", "many", "modes", "sparse", "dup"] {
        fs::create_dir_all(root.join(dir))?;
    }
    for i in 0..300 {
        let len = random.below(3000) as usize;
        fs::write(root.join(format!("many/file-{i:03}.txt")), random.text(len))?;
    }

    let names: [&[u8]; 12] = [
        b" leading and trailing ",
        b"new\nline",
        b"tab\tand\x07bell",
        b"back\\slash",
        b"quote'\"$`",
        b"latin1-\xe9\xff\xfe",
        b"-rf",
        b"*?[a]{b}",
        b"..hidden",
        b"...",
        "\u{1d11e}\u{202e}unicode\u{0301}".as_bytes(),
        &[b'n'; 255],
    ];
    for name in names {
        fs::write(path(name), random.text(100))?;
    }
    fs::write(root.join("empty-file"), b"")?;
    fs::write(root.join("a/empty-too"), b"")?;
    fs::write(root.join("one-byte"), b"x")?;
    fs::write(root.join("noise"), random.bytes(300_000))?;
    fs::write(root.join("long-text"), random.text(3_000_000))?;
    fs::write(root.join("zeros"), vec![0; 2_500_000])?;
    let period: Vec<u8> = b"twelve bytes".repeat(40_000);
    fs::write(root.join("periodic"), &period)?;

    let body = random.bytes(150_000);
    fs::write(root.join("dup/one"), &body)?;
    fs::write(root.join("dup/two"), &body)?;
    let mut shifted = random.text(777);
    shifted.extend(&body);
    shifted.extend(random.text(99));
    fs::write(root.join("dup/shifted"), &shifted)?;
    fs::hard_link(root.join("dup/one"), root.join("a/b/hard-1"))?;
    fs::hard_link(root.join("dup/one"), root.join("hard-2"))?;
    fs::write(root.join("a/b/c/linked"), b"linked")?;
    fs::hard_link(root.join("a/b/c/linked"), root.join("a/linked-again"))?;

    symlink("long-text", root.join("link"))?;
    symlink("/nowhere/at all", root.join("dangling"))?;
    symlink("../../..", root.join("a/b/up"))?;
    symlink(OsStr::from_bytes(b"bytes-\xff"), root.join("odd-target"))?;
    symlink("t".repeat(4000), root.join("long-target"))?;

    let sparse = File::create(root.join("sparse/middle"))?;
    sparse.write_all_at(b"begin", 0)?;
    sparse.write_all_at(b"end", (5 << 20) + 12_345)?;
    let tail = File::create(root.join("sparse/tail"))?;
    tail.write_all_at(&random.text(10_000), 0)?;
    tail.set_len(9_000_001)?;
    File::create(root.join("sparse/all"))?.set_len(6_000_000_007)?;
    let many = File::create(root.join("sparse/many-holes"))?;
    for i in 0..40 {
        many.write_all_at(&random.bytes(3000), i * 200_000)?;
    }

    for (i, mode) in [0o000, 0o111, 0o222, 0o444, 0o4755, 0o2755, 0o1777, 0o7777]
        .iter()
        .enumerate()
    {
        let name = root.join(format!("modes/{i}"));
        fs::write(&name, format!("mode {mode:o}"))?;
        fs::set_permissions(&name, fs::Permissions::from_mode(*mode))?;
    }
    fs::set_permissions(root.join("modes"), fs::Permissions::from_mode(0o3751))?;

    let past = SystemTime::UNIX_EPOCH - Duration::from_secs(315_619_200);
    let future = SystemTime::UNIX_EPOCH + Duration::from_secs(6_000_000_000);
    File::open(root.join("one-byte"))?.set_modified(past)?;
    File::open(root.join("noise"))?.set_modified(future)?;

    drop(UnixListener::bind(root.join("socket"))?);
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from(0o640), 0)?;
    let mut devices = true;
    for (name, kind, dev) in [
        ("char", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, makedev(259, 70_000)),
    ] {
        devices &= mknodat(CWD, root.join(name), kind, Mode::from(0o644), dev).is_ok();
    }
    Ok(devices)
}
