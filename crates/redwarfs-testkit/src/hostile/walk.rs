//! Everything that a program can do with a mounted image, within bounds.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, XattrFlags};

/// Entries that are looked at, all directories together.
const ENTRIES: usize = 250;
/// Bytes that are read, all files together.
const BYTES: usize = 4 << 20;
const DEPTH: usize = 10;

/// Looks at everything below `root`. Errors of single files are what damage gives and are not
/// reported.
///
/// # Errors
/// What must not happen: the file system is gone, an attribute that is not what it should be,
/// more bytes than the file has.
pub(super) fn walk(root: &Path) -> Result<(), String> {
    let mut left = (ENTRIES, BYTES);
    let mut todo = vec![(root.to_owned(), 0)];
    alive(fs::symlink_metadata(root).map(drop))?;
    let _ = rustix::fs::statvfs(root);
    for name in ["user.dwarfs.driver.pid", "user.dwarfs.driver.perfmon"] {
        xattr(root, name)?;
    }
    let _ = fs::symlink_metadata(root.join("no such name"));
    let _ = fs::symlink_metadata(root.join(OsStr::from_bytes(&[0xff; 255])));
    let _ = File::create(root.join("new"));
    let _ = rustix::fs::lsetxattr(root, "user.x", b"x", XattrFlags::empty());
    while let Some((dir, depth)) = todo.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) => {
                alive(Err(e))?;
                continue;
            }
        };
        for entry in entries.take(ENTRIES) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    alive(Err(e))?;
                    break;
                }
            };
            if left.0 == 0 {
                return Ok(());
            }
            left.0 -= 1;
            let path = entry.path();
            if one(&path, &mut left.1)? && depth < DEPTH {
                todo.push((path, depth + 1));
            }
        }
    }
    alive(fs::symlink_metadata(root).map(drop))
}

/// Looks at one entry; whether it is a directory.
fn one(path: &Path, left: &mut usize) -> Result<bool, String> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) => {
            alive(Err(e))?;
            return Ok(false);
        }
    };
    xattr(path, "user.dwarfs.inodeinfo").and_then(|text| match text {
        Some(text) if serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_err() => {
            Err(format!("{}: inodeinfo is not JSON", path.display()))
        }
        _ => Ok(()),
    })?;
    let mut names = [0; 4096];
    let _ = rustix::fs::llistxattr(path, &mut names[..]);
    let ty = meta.file_type();
    if ty.is_symlink() {
        let _: Result<PathBuf, _> = fs::read_link(path);
    } else if ty.is_file() {
        read(path, meta.len(), left)?;
    } else if !ty.is_dir() {
        debug_assert!(
            ty.is_fifo() || ty.is_socket() || ty.is_char_device() || ty.is_block_device()
        );
    }
    Ok(ty.is_dir())
}

fn read(path: &Path, size: u64, left: &mut usize) -> Result<(), String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(e) => return alive(Err(e)),
    };
    let mut buffer = vec![0; 128 << 10];
    let last = size.saturating_sub(4096);
    for (offset, len) in [
        (0, buffer.len()),
        (size / 2, 5000),
        (last, 4096),
        (size.min(1 << 62), 10),
        ((1 << 62) + 1, 10),
    ] {
        if *left == 0 {
            break;
        }
        match file.read_at(&mut buffer[..len], offset) {
            Ok(n) => {
                if n as u64 > size.saturating_sub(offset) {
                    return Err(format!("{}: {n} bytes at {offset}", path.display()));
                }
                *left = left.saturating_sub(n);
            }
            Err(e) => alive(Err(e))?,
        }
    }
    for position in [
        SeekFrom::Data(0),
        SeekFrom::Hole(0),
        SeekFrom::Data(size / 2),
    ] {
        let _ = rustix::fs::seek(&file, position);
    }
    Ok(())
}

fn xattr(path: &Path, name: &str) -> Result<Option<Vec<u8>>, String> {
    let mut buffer = vec![0; 64 << 10];
    match rustix::fs::lgetxattr(path, name, &mut buffer[..]) {
        Ok(length) => {
            buffer.truncate(length);
            Ok(Some(buffer))
        }
        Err(e) => alive(Err(e.into())).map(|()| None),
    }
}

/// Reports an error that means that the driver has ended.
fn alive(result: io::Result<()>) -> Result<(), String> {
    let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV];
    match result {
        Err(e) if e.raw_os_error().is_some_and(|code| gone.contains(&code)) => {
            Err(format!("the file system is gone: {e}"))
        }
        _ => Ok(()),
    }
}
