//! A small tree with something in it for every option of `mkdwarfs`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};

use crate::media::{self, Samples};
use crate::tree::Random;

/// What a tree may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Names and targets in UTF-8, no holes, times of the last decades: what every reader of the
    /// format can show.
    Plain,
    /// Names and targets of any bytes, sparse files, times before 1970 and after 2106, too.
    Full,
}

/// The first line of a `CACHEDIR.TAG`.
const CACHE_SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55\n";

/// Fills `root` (an existing directory) with about 5 MB:
///
/// * `text`: texts, near duplicates, one that is larger than a MiB; `text/keep` is always there
/// * `media`: WAV, W64, RF64, AIFF, AIFF-C, CAF and FITS of many layouts, some of them damaged
/// * `bin`: ELF, PE and Mach-O
/// * `noise`: data that does not compress, and data that does in parts
/// * `dup`, `links`: duplicates, hard links, symbolic links (`links/dangling` points nowhere)
/// * `cache`, `backup`: with a `CACHEDIR.TAG` and a `.nobackup`
/// * `empty`: directories and files without content; `wavs` holds nothing but a WAV file
/// * `odd`: names, modes, owners and times
/// * `special`: devices, a FIFO, a socket; `sparse`: files with holes, if `extent` has them
///
/// The result says whether there are devices, which not every user may make. Access times lie in
/// the future, so that reading the tree does not change them on most file systems.
///
/// # Errors
/// The tree cannot be made.
pub fn assorted_tree(root: &Path, extent: Extent) -> io::Result<bool> {
    let mut random = Random::new(11);
    for dir in [
        "text",
        "media",
        "bin",
        "noise",
        "dup/more",
        "links/deep",
        "cache/sub",
        "backup",
        "empty/a/b",
        "empty/c",
        "wavs",
        "odd",
        "special",
        "sparse",
    ] {
        fs::create_dir_all(root.join(dir))?;
    }
    texts(root, &mut random)?;
    audio(&root.join("media"))?;
    fs::copy(root.join("media/cd.wav"), root.join("wavs/only.wav"))?;
    programs(&root.join("bin"), &mut random)?;

    fs::write(root.join("noise/all"), random.bytes(150_000))?;
    let parts = [
        random.text(90_000),
        random.bytes(130_000),
        random.text(50_000),
    ];
    fs::write(root.join("noise/parts"), parts.concat())?;
    fs::write(root.join("noise/zeros"), vec![0; 200_000])?;
    fs::write(root.join("noise/periodic"), b"twelve bytes".repeat(9000))?;

    let body = random.bytes(40_000);
    for name in ["dup/one", "dup/two", "dup/more/three"] {
        fs::write(root.join(name), &body)?;
    }
    let shifted = [random.text(777), body, random.text(99)].concat();
    fs::write(root.join("dup/shifted"), shifted)?;
    fs::write(root.join("dup/small-1"), b"small")?;
    fs::write(root.join("dup/small-2"), b"small")?;

    links(root)?;
    fs::write(root.join("cache/CACHEDIR.TAG"), CACHE_SIGNATURE)?;
    fs::write(root.join("cache/sub/entry"), random.text(5000))?;
    fs::write(root.join("cache/other"), random.text(3000))?;
    fs::write(root.join("backup/.nobackup"), b"")?;
    fs::write(root.join("backup/data"), random.text(4000))?;
    fs::write(root.join("empty/file"), b"")?;
    fs::write(root.join("empty-too"), b"")?;
    fs::write(root.join("one-byte"), b"x")?;
    odd(&root.join("odd"), extent, &mut random)?;
    if extent == Extent::Full {
        sparse(&root.join("sparse"), &mut random)?;
    }
    let devices = special(&root.join("special"))?;
    set_times(root, extent)?;
    Ok(devices)
}

fn texts(root: &Path, random: &mut Random) -> io::Result<()> {
    fs::write(root.join("text/keep"), random.text(2000))?;
    for i in 0..16 {
        let len = 500 + random.below(6000) as usize;
        fs::write(root.join(format!("text/{i:02}.txt")), random.text(len))?;
    }
    let original = random.text(30_000);
    for i in 0..5 {
        let mut near = original.clone();
        for _ in 0..=i {
            let at = random.below(near.len() as u64) as usize;
            near.splice(at..at, random.text(30));
        }
        fs::write(root.join(format!("text/near-{i}.txt")), near)?;
    }
    fs::write(root.join("text/large"), random.text(1_300_000))
}

fn audio(dir: &Path) -> io::Result<()> {
    let write = |name: &str, data: Vec<u8>| fs::write(dir.join(name), data);
    let samples = |channels, bits, bytes, big, signed| Samples {
        channels,
        bits,
        bytes,
        big,
        signed,
    };
    let cd = Samples::CD;
    write("cd.wav", media::wav(&cd, &cd.walk(20_000, 1)))?;
    let wide = samples(1, 24, 3, false, true);
    let mut odd_size = wide.walk(7000, 2);
    odd_size.truncate(odd_size.len() - 2);
    write("wide.wav", media::wav(&wide, &odd_size))?;
    let byte = samples(2, 8, 1, false, false);
    write("byte.wav", media::wav(&byte, &byte.walk(9000, 3)))?;
    let padded = samples(2, 20, 3, false, true);
    write("padded.wav", media::wav(&padded, &padded.walk(5000, 4)))?;
    // Bits that should be zero are not: FLAC would lose them.
    write(
        "dirty.wav",
        media::wav(&padded, &Random::new(5).bytes(24_000)),
    )?;
    let eight = samples(8, 16, 2, false, true);
    write("eight.wav", media::wav(&eight, &eight.walk(2500, 6)))?;
    let nine = samples(9, 16, 2, false, true);
    write("nine.wav", media::wav(&nine, &nine.walk(900, 7)))?;
    let full = samples(1, 32, 4, false, true);
    write("full.wav", media::wav(&full, &full.walk(4000, 8)))?;
    let mut cut = media::wav(&cd, &cd.walk(3000, 9));
    cut.truncate(cut.len() - 1501);
    write("cut.wav", cut)?;
    write("long.w64", media::wave64(&cd, &cd.walk(6000, 10)))?;
    write("long.rf64", media::rf64(&cd, &cd.walk(6000, 11)))?;
    let big = samples(2, 16, 2, true, true);
    write("big.aiff", media::aiff(&big, None, &big.walk(8000, 12)))?;
    write(
        "little.aifc",
        media::aiff(&cd, Some(b"sowt"), &cd.walk(5000, 13)),
    )?;
    let big = samples(3, 24, 3, true, true);
    write("big.caf", media::caf(&big, &big.walk(3000, 14)))?;

    let pixels = media::sky(200 * 150, 2, 15);
    write("sky.fits", media::fits(200, 150, false, &pixels))?;
    let pixels = media::sky(128 * 96, 0, 16);
    write("bayer.fits", media::fits(128, 96, true, &pixels))?;
    let pixels = media::sky(91 * 33, 4, 17);
    write("odd-bayer.fits", media::fits(91, 33, true, &pixels))?;
    let noise = Random::new(18).bytes(100 * 50 * 2);
    write("noise.fits", media::fits(100, 50, false, &noise))?;
    let half = media::sky(100 * 20, 0, 19);
    write("short.fits", media::fits(100, 50, false, &half))
}

/// Machine code as a branch filter sees it: calls of few targets from everywhere.
fn code(len: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        let target = 4096 * (1 + random.below(6) as u32);
        let here = out.len() as u32 + 5;
        out.push(0xe8);
        out.extend(target.wrapping_sub(here).to_le_bytes());
        out.extend(random.text(6));
    }
    out.truncate(len);
    out
}

fn programs(dir: &Path, random: &mut Random) -> io::Result<()> {
    for (name, machine) in [("x86-64", 0x3e_u16), ("arm64", 0xb7), ("other", 0xfff0)] {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
        file.extend(machine.to_le_bytes());
        file.extend(code(60_000, random));
        fs::write(dir.join(format!("{name}.so")), file)?;
    }
    let mut file = vec![0; 0x80];
    file[..2].copy_from_slice(b"MZ");
    file[0x3c] = 0x80;
    file.extend(b"PE\0\0\x64\x86\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\xf0\0\x22\0\x0b\x02");
    file.extend(code(50_000, random));
    fs::write(dir.join("program.exe"), file)?;
    let mut file = b"\xcf\xfa\xed\xfe\x07\0\0\x01\x03\0\0\0\x02\0\0\0".to_vec();
    file.extend(code(20_000, random));
    fs::write(dir.join("program.macho"), file)
}

fn links(root: &Path) -> io::Result<()> {
    fs::write(
        root.join("links/first"),
        b"one file with three names\n".repeat(50),
    )?;
    fs::hard_link(root.join("links/first"), root.join("links/deep/second"))?;
    fs::hard_link(root.join("links/first"), root.join("third"))?;
    fs::hard_link(root.join("text/large"), root.join("links/large"))?;
    symlink("first", root.join("links/to-first"))?;
    symlink("../text", root.join("links/to-text"))?;
    symlink("../dup/one", root.join("links/to-dup"))?;
    symlink("/nowhere/at all", root.join("links/dangling"))?;
    symlink("first", root.join("links/to-first-again"))
}

fn odd(dir: &Path, extent: Extent, random: &mut Random) -> io::Result<()> {
    let mut names: Vec<&[u8]> = vec![
        b" leading and trailing ",
        b"new\nline",
        b"tab\tand\x07bell",
        b"back\\slash",
        b"quote'\"$`",
        b"-rf",
        b"*?[a]{b}",
        b"..hidden",
        b"...",
        "\u{1d11e}\u{202e}unicode\u{0301}".as_bytes(),
        &[b'n'; 255],
    ];
    if extent == Extent::Full {
        names.push(b"latin1-\xe9\xff\xfe");
        names.push(b"\x80");
        symlink(OsStr::from_bytes(b"bytes-\xff"), dir.join("target"))?;
    }
    for name in names {
        fs::write(dir.join(OsStr::from_bytes(name)), random.text(90))?;
    }
    symlink("t".repeat(4000), dir.join("long-target"))?;
    for (i, mode) in [0o000, 0o111, 0o444, 0o4755, 0o2755, 0o1777, 0o7777]
        .into_iter()
        .enumerate()
    {
        let name = dir.join(format!("mode-{i}"));
        fs::write(&name, format!("mode {mode:o}"))?;
        fs::set_permissions(&name, fs::Permissions::from_mode(mode))?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o3751))?;
    // Not allowed to everybody, and then everything belongs to one.
    for (name, uid, gid) in [("...", 1000, 100), ("-rf", 70_000, 3_000_000_000)] {
        let _ = chown(dir.join(name), Some(uid), Some(gid));
    }
    let _ = lchown(dir.join("long-target"), Some(1000), Some(5));
    Ok(())
}

fn sparse(dir: &Path, random: &mut Random) -> io::Result<()> {
    let middle = File::create(dir.join("middle"))?;
    middle.write_all_at(b"begin", 0)?;
    middle.write_all_at(b"end", (2 << 20) + 12_345)?;
    let tail = File::create(dir.join("tail"))?;
    tail.write_all_at(&random.text(10_000), 0)?;
    tail.set_len(900_001)?;
    File::create(dir.join("all"))?.set_len(3_000_007)?;
    let many = File::create(dir.join("many"))?;
    for i in 0..12 {
        many.write_all_at(&random.bytes(3000), i * 70_000)?;
    }
    Ok(())
}

fn special(dir: &Path) -> io::Result<bool> {
    drop(UnixListener::bind(dir.join("socket"))?);
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from(0o640), 0)?;
    let mut devices = true;
    for (name, kind, dev) in [
        ("char", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, makedev(259, 70_000)),
    ] {
        devices &= mknodat(CWD, dir.join(name), kind, Mode::from(0o644), dev).is_ok();
    }
    Ok(devices)
}

/// Gives every entry times of its own, with nanoseconds.
fn set_times(root: &Path, extent: Extent) -> io::Result<()> {
    let mut paths = vec![root.to_owned()];
    let mut at = 0;
    while let Some(path) = paths.get(at).cloned() {
        at += 1;
        if fs::symlink_metadata(&path)?.is_dir() {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path)? {
                names.push(entry?.path());
            }
            names.sort();
            paths.extend(names);
        }
    }
    for (i, path) in (0i64..).zip(&paths) {
        // 1980 to 2019, and 2053.
        let mut seconds = 320_000_000 + i * 9_876_543;
        if extent == Extent::Full {
            match i {
                7 => seconds = -315_619_200,
                8 => seconds = -1,
                9 => seconds = 6_000_000_000,
                _ => {}
            }
        }
        let nanoseconds = (i * 123_456_789) % 1_000_000_000;
        // Later than every change, or reading moves it.
        let access = 2_650_000_000.max(seconds + 1) + 61 * i;
        let time = |tv_sec| Timespec {
            tv_sec,
            tv_nsec: nanoseconds,
        };
        let times = Timestamps {
            last_access: time(access),
            last_modification: time(seconds),
        };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Manifest;

    /// The two trees in a directory of this process.
    fn made(name: &str, extent: Extent) -> Manifest {
        let root = std::env::temp_dir().join(format!("redwarfs-{name}-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        assorted_tree(&root, extent).unwrap();
        let manifest = Manifest::from_directory(&root, true).unwrap();
        fs::remove_dir_all(&root).unwrap();
        manifest
    }

    #[test]
    fn trees_differ_in_what_not_every_reader_shows() {
        let plain = made("plain", Extent::Plain);
        assert!(plain.0.keys().all(|path| std::str::from_utf8(path).is_ok()));
        let regular = |m: u32| m & 0o170_000 == 0o100_000;
        for (path, entry) in &plain.0 {
            let sparse = regular(entry.mode) && entry.blocks * 512 < entry.size;
            assert!(!sparse, "{}", path.escape_ascii());
            let seconds = entry.mtime_ns / 1_000_000_000;
            assert!((0..=i128::from(u32::MAX)).contains(&seconds));
        }
        let full = made("full", Extent::Full);
        assert!(full.0.keys().any(|path| std::str::from_utf8(path).is_err()));
        assert!(full.0.values().any(|entry| entry.mtime_ns < 0));
        let size: u64 = plain.0.values().map(|entry| entry.size).sum();
        assert!((3 << 20..8 << 20).contains(&size), "{size}");
    }
}
