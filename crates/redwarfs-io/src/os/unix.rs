//! Files and names on Unix.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

pub(crate) fn bytes(text: &OsStr) -> Cow<'_, [u8]> {
    text.as_bytes().into()
}

pub(crate) fn with_slashes(path: &OsStr) -> Cow<'_, [u8]> {
    bytes(path)
}

pub(crate) fn os_str(bytes: &[u8]) -> Option<Cow<'_, OsStr>> {
    Some(OsStr::from_bytes(bytes).into())
}

pub(crate) fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

pub(crate) fn read_exact_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Lets the allocator of the process return unused memory to the system.
#[allow(unsafe_code)]
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: has no preconditions and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes the lock of writers, without waiting. False if another open file has it.
pub(crate) fn lock_exclusive(file: &File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        // A file system without locks.
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Whether an open file is what a path names.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |found: Metadata| (found.dev(), found.ino());
    let open = file.metadata().map(identity);
    open.is_ok_and(|open| std::fs::metadata(path).is_ok_and(|named| identity(named) == open))
}

/// Which disk a directory is on.
pub(crate) fn disk(directory: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(directory).ok().map(|found| found.dev())
}

/// Free bytes and all bytes of the file system of a directory, if it says so.
pub(crate) fn space(directory: &Path) -> Option<(u64, u64)> {
    let system = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
    (system.f_blocks > 0).then(|| (bytes(system.f_bavail), bytes(system.f_blocks)))
}

/// Reads from the page cache, as [`crate::Source::try_read_exact_at`].
#[cfg(target_os = "linux")]
pub(crate) fn try_read_exact_at(file: &File, offset: u64, buf: &mut [u8]) -> bool {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..)
        && !rest.is_empty()
    {
        let at = offset.saturating_add(done as u64);
        // A negative offset would mean the position of the descriptor.
        if i64::try_from(at).is_err() {
            return false;
        }
        let mut rest = [io::IoSliceMut::new(rest)];
        match preadv2(file, &mut rest, at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return false,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // The bytes are not cached, or the file system cannot tell.
            Err(_) => return false,
        }
    }
    true
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn try_read_exact_at(_file: &File, _offset: u64, _buf: &mut [u8]) -> bool {
    false
}

/// As [`crate::Source::will_need`].
#[cfg(target_os = "linux")]
pub(crate) fn will_need(file: &File, range: &Range<u64>) {
    use rustix::fs::{Advice, fadvise};
    use std::num::NonZero;
    // A call reads no more than the larger one of the read-ahead and the largest request of the device. This is the default of
    // the former.
    const STEP: u64 = 128 << 10;
    let mut at = range.start;
    while let Some(length) = NonZero::new(range.end.saturating_sub(at).min(STEP)) {
        // A file system without a page cache refuses, and reads without this.
        if fadvise(file, at, Some(length), Advice::WillNeed).is_err() {
            return;
        }
        at += length.get();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn will_need(_file: &File, _range: &Range<u64>) {}

/// As [`crate::Source::next_data`], for a file of `len` bytes.
pub(crate) fn next_data(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    use rustix::io::Errno;
    // This changes the position of the file, which no code here uses.
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(found) => Ok(found),
        Err(Errno::NXIO) => Ok(len),
        // A file system or a device without holes.
        Err(_) => Ok(offset),
    }
}

/// As [`crate::Medium::punch`].
#[cfg(target_os = "linux")]
pub(crate) fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, offset, length)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn punch(_file: &File, _offset: u64, _length: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
