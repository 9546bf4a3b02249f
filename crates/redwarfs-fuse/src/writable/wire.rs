//! The messages that only a writable mount needs.

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::ops::answer::{Answer, Outcome};
use crate::ops::lseek::{SEEK_DATA, SEEK_HOLE};
use crate::proto::{Attr, Body, Put, Validity};
use redwarfs_format::metadata::Timestamp;

/// Largest WRITE, in bytes.
pub(super) const MAX_WRITE: u32 = 1 << 20;

/// Flags of INIT.
pub(super) mod init {
    pub(crate) const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub(crate) const BIG_WRITES: u32 = 1 << 5;
    pub(crate) const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
}

/// Flags of OPEN, WRITE and SETATTR: take set-user-id and set-group-id from the mode.
pub(super) const OPEN_KILLS: u32 = 1 << 0;
pub(super) const WRITE_KILLS: u32 = 1 << 2;
/// Flag of WRITE: data that was written to memory, by whatever process.
pub(super) const WRITE_CACHE: u32 = 1 << 0;

/// What SETATTR changes.
pub(super) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILLS: u32 = 1 << 11;
}

/// SETATTR.
#[derive(Debug, Clone, Copy)]
pub(super) struct SetAttrIn {
    pub(super) valid: u32,
    pub(super) handle: u64,
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl SetAttrIn {
    pub(super) fn parse(mut body: Body<'_>) -> Option<Self> {
        let valid = body.u32()?;
        body.u32()?;
        let (handle, size) = (body.u64()?, body.u64()?);
        let _lock_owner = body.u64()?;
        let (atime, mtime, _ctime) = (body.u64()?, body.u64()?, body.u64()?);
        let (atime_nsec, mtime_nsec, _ctime) = (body.u32()?, body.u32()?, body.u32()?);
        let mode = body.u32()?;
        body.u32()?;
        let time = |sec: u64, nsec| Timestamp {
            sec: sec.cast_signed(),
            nsec,
        };
        Some(Self {
            valid,
            handle,
            size,
            atime: time(atime, atime_nsec),
            mtime: time(mtime, mtime_nsec),
            mode,
            uid: body.u32()?,
            gid: body.u32()?,
        })
    }

    pub(super) fn has(&self, what: u32) -> bool {
        self.valid & what != 0
    }
}

/// WRITE.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteIn<'a> {
    pub(super) handle: u64,
    pub(super) offset: u64,
    pub(super) flags: u32,
    /// Flags of the open file; without meaning if [`WRITE_CACHE`] is set.
    pub(super) open_flags: u32,
    pub(super) data: &'a [u8],
}

impl<'a> WriteIn<'a> {
    pub(super) fn parse(mut body: Body<'a>) -> Option<Self> {
        let (handle, offset) = (body.u64()?, body.u64()?);
        let (size, flags) = (body.u32()?, body.u32()?);
        let _lock_owner = body.u64()?;
        let (open_flags, _padding) = (body.u32()?, body.u32()?);
        Some(Self {
            handle,
            offset,
            flags,
            open_flags,
            data: body.rest().get(..usize::try_from(size).ok()?)?,
        })
    }
}

/// The reply to WRITE and COPY_FILE_RANGE.
pub(super) fn put_written(count: usize, out: &mut Vec<u8>) {
    // At most a request, or 1 GiB.
    out.put32(u32::try_from(count).unwrap_or(u32::MAX));
    out.put32(0);
}

/// The reply to OPEN, OPENDIR, and the end of the reply to CREATE.
pub(super) fn put_opened(handle: u64, flags: u32, out: &mut Vec<u8>) {
    out.put64(handle);
    out.put32(flags);
    out.put32(0);
}

/// The reply to LSEEK in a file without holes.
pub(super) fn put_seek_without_holes(
    offset: u64,
    whence: u32,
    size: u64,
    out: &mut Vec<u8>,
) -> Outcome {
    if offset >= size {
        return Err(Errno::NXIO);
    }
    out.put64(match whence {
        SEEK_DATA => offset,
        SEEK_HOLE => size,
        _ => return Err(Errno::INVAL),
    });
    Ok(Answer::Reply)
}

/// How long the kernel may keep names and attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Valid {
    pub(super) names: Validity,
    pub(super) attributes: Validity,
}

/// The reply to what makes or finds a name. The kernel knows the inode as `node`, and programs by the number in `attr`.
pub(super) fn put_entry(node: u64, attr: &Attr, valid: Valid, out: &mut Vec<u8>) {
    let attr = Attr { node, ..*attr };
    attr.put_entry(valid.names, valid.attributes, out);
}

/// The attributes of a file of the upper directory. `number` is for programs.
pub(super) fn attr_of(stat: &Stat, number: u64, block_size: u32) -> Attr {
    // The types of the fields differ between processors.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev as u64),
        rustix::fs::minor(stat.st_rdev as u64),
    );
    let time = |sec: i64, nsec: i64| Timestamp {
        sec,
        nsec: u32::try_from(nsec).unwrap_or_default(),
    };
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_lossless,
        clippy::useless_conversion
    )]
    Attr {
        node: number,
        number,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
        ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        mode: stat.st_mode as u32,
        nlink: u32::try_from(stat.st_nlink as u64).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        // 12 bits of major, 20 bits of minor.
        rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
        block_size,
    }
}

/// The device number of the system in that of the protocol.
pub(super) fn device_number(rdev: u32) -> u64 {
    let (major, minor) = (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
    );
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers() {
        for (protocol, major, minor) in [(0x0103, 1, 3), (0x0010_0801, 8, 0x101), (0, 0, 0)] {
            let number = device_number(protocol);
            assert_eq!(rustix::fs::major(number), major);
            assert_eq!(rustix::fs::minor(number), minor);
        }
    }

    #[test]
    fn writes_are_whole() {
        let mut message = Vec::new();
        for value in [7u64, 100] {
            message.put64(value);
        }
        message.put32(3);
        message.put32(WRITE_KILLS);
        message.put64(0);
        message.put32(0o2000);
        message.put32(0);
        message.extend_from_slice(b"abc");
        let write = WriteIn::parse(Body::new(&message)).expect("whole");
        assert_eq!((write.handle, write.offset), (7, 100));
        assert_eq!((write.flags, write.open_flags), (WRITE_KILLS, 0o2000));
        assert_eq!(write.data, b"abc");
        assert!(WriteIn::parse(Body::new(&message[..message.len() - 1])).is_none());
    }

    #[test]
    fn the_end_of_a_file_is_a_hole() {
        let seek = |offset, whence| {
            let mut out = Vec::new();
            put_seek_without_holes(offset, whence, 10, &mut out).map(|_| out)
        };
        assert_eq!(seek(4, 3), Ok(4u64.to_ne_bytes().to_vec()));
        assert_eq!(seek(4, 4), Ok(10u64.to_ne_bytes().to_vec()));
        assert_eq!(seek(10, 3), Err(Errno::NXIO));
        assert_eq!(seek(1, 9), Err(Errno::INVAL));
    }
}
