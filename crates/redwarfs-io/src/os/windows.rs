//! Files and names on Windows.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::windows::fs::FileExt;
use std::path::Path;

pub(crate) fn bytes(text: &OsStr) -> Cow<'_, [u8]> {
    redwarfs_windows::name::bytes(text)
}

/// The allocator of the system needs no request.
pub fn trim_heap() {}

pub(crate) fn with_slashes(path: &OsStr) -> Cow<'_, [u8]> {
    let mut bytes = bytes(path).into_owned();
    for byte in bytes.iter_mut().filter(|byte| **byte == b'\\') {
        *byte = b'/';
    }
    bytes.into()
}

pub(crate) fn os_str(bytes: &[u8]) -> Option<Cow<'_, OsStr>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(OsStr::new(text).into()),
        Err(_) => redwarfs_windows::name::os_string(bytes).map(Cow::Owned),
    }
}

pub(crate) fn is_block_device(_metadata: &Metadata) -> bool {
    false
}

pub(crate) fn read_exact_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..)
        && !rest.is_empty()
    {
        // Beyond this, the system takes offsets for special values.
        let at = offset
            .checked_add(done as u64)
            .filter(|&at| i64::try_from(at).is_ok())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        match file.seek_read(rest, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..)
        && !rest.is_empty()
    {
        let at = offset
            .checked_add(done as u64)
            .filter(|&at| i64::try_from(at).is_ok())
            .ok_or(io::ErrorKind::FileTooLarge)?;
        match file.seek_write(rest, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(crate) fn lock_exclusive(file: &File) -> io::Result<bool> {
    redwarfs_windows::file::try_lock_exclusive(file)
}

pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use redwarfs_windows::file::{Access, info, open};
    let named = || info(&open(path, Access::Examine)?);
    let identity = info(file).map(|found| found.identity);
    identity.is_ok_and(|identity| named().is_ok_and(|found| found.identity == identity))
}

pub(crate) fn disk(directory: &Path) -> Option<u64> {
    use redwarfs_windows::file::{Access, info, open_following};
    let directory = open_following(directory, Access::Examine).ok()?;
    info(&directory).ok().map(|found| found.identity.0)
}

pub(crate) fn space(_directory: &Path) -> Option<(u64, u64)> {
    None
}

pub(crate) fn try_read_exact_at(_file: &File, _offset: u64, _buf: &mut [u8]) -> bool {
    false
}

pub(crate) fn will_need(_file: &File, _range: &Range<u64>) {}

pub(crate) fn punch(_file: &File, _offset: u64, _length: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn next_data(_file: &File, offset: u64, _len: u64) -> io::Result<u64> {
    Ok(offset)
}
