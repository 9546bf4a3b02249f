//! The messages of the FUSE protocol, as far as a read-only file system needs them.
//!
//! Layouts are those of the system header `linux/fuse.h`. All numbers are in the byte order of the
//! machine. Replies are appended to a buffer, and [`crate::device`] writes their common header.

use redwarfs_format::metadata::Timestamp;

/// Version of the protocol that the driver uses: the first with all flags used here.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 39;
/// Oldest version of the kernel that is supported (Linux 3.9, READDIRPLUS).
pub(crate) const OLDEST_MINOR: u32 = 21;

/// Largest request of the kernel with the default limits, and so the largest reply, in bytes.
pub(crate) const MAX_REQUEST: u32 = 1 << 20;

/// Kinds of requests.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// Flags of INIT.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u32 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u32 = 1 << 4;
    pub(crate) const DO_READDIRPLUS: u32 = 1 << 13;
    pub(crate) const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(crate) const POSIX_ACL: u32 = 1 << 20;
    pub(crate) const MAX_PAGES: u32 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u32 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u32 = 1 << 25;
    /// There is a second word of flags.
    pub(crate) const INIT_EXT: u32 = 1 << 30;
    /// Of the second word: requests may come over io_uring.
    pub(crate) const OVER_IO_URING: u32 = 1 << 9;
}

/// Flags of the reply to OPEN and OPENDIR.
pub(crate) mod opened {
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
}

/// Appends the reply to OPEN or OPENDIR.
pub(crate) fn put_opened(flags: u32, out: &mut Vec<u8>) {
    // File handle, flags, padding.
    out.put64(0);
    out.put32(flags);
    out.put32(0);
}

/// The common header of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// Identifies the request in its reply.
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Thread that waits for the reply; 0 if the kernel cannot name it here.
    pub(crate) pid: u32,
}

/// The unread part of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All of it.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    /// A name that ends with a zero byte.
    pub(crate) fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (name, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(name)
    }
}

/// Parses a request; none if it is incomplete.
pub(crate) fn parse(message: &[u8]) -> Option<(Header, Body<'_>)> {
    let mut body = Body(message);
    let len = body.u32()?;
    if usize::try_from(len).ok()? != message.len() {
        return None;
    }
    let header = Header {
        opcode: body.u32()?,
        unique: body.u64()?,
        node: body.u64()?,
        uid: body.u32()?,
        gid: body.u32()?,
        pid: body.u32()?,
    };
    // Padding.
    body.u32()?;
    Some((header, body))
}

/// The range that a READ requests. Its handle is of no use: the node of the header tells the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadIn {
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

impl ReadIn {
    pub(crate) fn parse(mut body: Body<'_>) -> Option<Self> {
        let _handle = body.u64()?;
        Some(Self {
            offset: body.u64()?,
            size: body.u32()?,
        })
    }
}

/// Number of data bytes that a READ requests; 0 for all other requests.
pub(crate) fn read_size(header: &Header, body: Body<'_>) -> u32 {
    match header.opcode {
        op::READ => ReadIn::parse(body).map_or(0, |read| read.size),
        _ => 0,
    }
}

/// The parameters of the kernel in INIT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    /// The second word of flags.
    pub(crate) flags2: u32,
}

impl InitIn {
    pub(crate) fn parse(mut body: Body<'_>) -> Option<Self> {
        let (major, minor) = (body.u32()?, body.u32()?);
        let (max_readahead, flags) = (body.u32()?, body.u32()?);
        let flags2 = match flags & init::INIT_EXT {
            0 => 0,
            _ => body.u32()?,
        };
        Some(Self {
            major,
            minor,
            max_readahead,
            flags,
            flags2,
        })
    }
}

/// Appends numbers to a reply.
pub(crate) trait Put {
    fn put16(&mut self, value: u16);
    fn put32(&mut self, value: u32);
    fn put64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn put16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_ne_bytes());
    }
}

/// The driver's part of the negotiation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitOut {
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    /// The second word of flags; counts only with [`init::INIT_EXT`].
    pub(crate) flags2: u32,
    pub(crate) max_background: u16,
    /// Number of background requests at which the kernel considers the driver busy.
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) max_pages: u16,
}

impl InitOut {
    /// `minor`: version of the kernel, on which the size depends.
    pub(crate) fn put(&self, minor: u32, out: &mut Vec<u8>) {
        out.put32(MAJOR);
        out.put32(MINOR);
        out.put32(self.max_readahead);
        out.put32(self.flags);
        out.put16(self.max_background);
        out.put16(self.congestion_threshold);
        out.put32(self.max_write);
        if minor < 23 {
            return;
        }
        // Resolution of times in nanoseconds.
        out.put32(1);
        out.put16(self.max_pages);
        out.put16(0);
        out.put32(self.flags2);
        // Depth of stacked file systems, reserved.
        out.extend_from_slice(&[0; 4 + 6 * 4]);
    }
}

/// Time that the kernel may keep a value, in seconds.
pub(crate) type Validity = u64;

/// Attributes in the form of the protocol.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attr {
    /// The node id, by which the kernel names the inode. 0 means that there is none.
    pub(crate) node: u64,
    /// The inode number that programs see.
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) block_size: u32,
}

impl Attr {
    fn put(&self, out: &mut Vec<u8>) {
        out.put64(self.number);
        out.put64(self.size);
        out.put64(self.blocks);
        for time in [self.atime, self.mtime, self.ctime] {
            // In the protocol, negative times are in two's complement.
            out.put64(time.sec.cast_unsigned());
        }
        for time in [self.atime, self.mtime, self.ctime] {
            // The kernel refuses larger values, and the metadata of an untrusted image may have them.
            out.put32(time.nsec.min(999_999_999));
        }
        for value in [
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
            self.block_size,
            0,
        ] {
            out.put32(value);
        }
    }

    /// Reply to GETATTR.
    pub(crate) fn put_attr(&self, valid: Validity, out: &mut Vec<u8>) {
        out.put64(valid);
        out.put64(0);
        self.put(out);
    }

    /// Reply to STATX.
    pub(crate) fn put_statx(&self, birth: Option<Timestamp>, valid: Validity, out: &mut Vec<u8>) {
        const BASIC_STATS: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        let time = |time: Timestamp, out: &mut Vec<u8>| {
            out.put64(time.sec.cast_unsigned());
            out.put32(time.nsec.min(999_999_999));
            out.put32(0);
        };
        out.put64(valid);
        // Nanoseconds of it, flags, spare.
        out.extend_from_slice(&[0; 4 + 4 + 16]);
        out.put32(BASIC_STATS | birth.map_or(0, |_| BTIME));
        out.put32(self.block_size);
        // Attributes.
        out.put64(0);
        for value in [self.nlink, self.uid, self.gid] {
            out.put32(value);
        }
        // The upper half is spare; a mode has 16 bits.
        out.put16(self.mode as u16);
        out.put16(0);
        for value in [self.number, self.size, self.blocks, 0] {
            out.put64(value);
        }
        for of in [
            self.atime,
            birth.unwrap_or_default(),
            self.ctime,
            self.mtime,
        ] {
            time(of, out);
        }
        let (major, minor) = major_minor(self.rdev);
        for value in [major, minor, 0, 0] {
            out.put32(value);
        }
        out.extend_from_slice(&[0; 14 * 8]);
    }

    /// Reply to LOOKUP.
    pub(crate) fn put_entry(&self, names: Validity, attributes: Validity, out: &mut Vec<u8>) {
        out.put64(self.node);
        // Inode numbers are never reused, so one generation is enough.
        out.put64(1);
        out.put64(names);
        out.put64(attributes);
        out.put64(0);
        self.put(out);
    }
}

/// Major and minor number of a device in the 32-bit form of the protocol.
fn major_minor(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
    )
}

/// Size of an entry of READDIR, or of READDIRPLUS with `plus`.
pub(crate) fn dirent_size(name: &[u8], plus: bool) -> usize {
    let head = if plus { 128 + 24 } else { 24 };
    head + name.len().next_multiple_of(8)
}

/// Appends an entry of READDIR. `next` is the position after it.
pub(crate) fn put_dirent(node: u64, next: u64, mode: u32, name: &[u8], out: &mut Vec<u8>) {
    out.put64(node);
    out.put64(next);
    // The caller has refused names of more than a few thousand bytes.
    out.put32(name.len() as u32);
    out.put32((mode & 0o170_000) >> 12);
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_header_file() {
        let size = |fill: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            fill(&mut out);
            out.len()
        };
        let attr = Attr::default();
        assert_eq!(size(&|out| attr.put(out)), 88);
        assert_eq!(size(&|out| attr.put_attr(1, out)), 104);
        assert_eq!(size(&|out| attr.put_entry(1, 1, out)), 128);
        let init = InitOut {
            max_readahead: 0,
            flags: 0,
            flags2: 0,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            max_pages: 256,
        };
        assert_eq!(size(&|out| init.put(22, out)), 24);
        assert_eq!(size(&|out| init.put(23, out)), 64);
        let attr = Attr::default();
        let birth = Timestamp::default();
        assert_eq!(size(&|out| attr.put_statx(Some(birth), 1, out)), 32 + 256);
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            assert_eq!(
                size(&|out| put_dirent(1, 2, 0o100_000, name, out)),
                dirent_size(name, false)
            );
        }
    }

    #[test]
    fn second_word_of_flags() {
        let mut body = Vec::new();
        for value in [7, 45, 0, init::INIT_EXT, init::OVER_IO_URING] {
            body.put32(value);
        }
        let parse = |bytes: &[u8]| InitIn::parse(Body::new(bytes));
        let init = parse(&body).expect("whole");
        assert_eq!((init.minor, init.flags2), (45, init::OVER_IO_URING));
        assert!(parse(&body[..16]).is_none());
        // An old kernel has one word, and what follows means nothing.
        body[12..16].fill(0);
        assert_eq!(parse(&body).map(|init| init.flags2), Some(0));
        assert_eq!(parse(&body[..16]).map(|init| init.flags2), Some(0));
        let mut out = Vec::new();
        let answer = InitOut {
            max_readahead: 0,
            flags: init::INIT_EXT,
            flags2: init::OVER_IO_URING,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            max_pages: 256,
        };
        answer.put(45, &mut out);
        assert_eq!(out[32..36], init::OVER_IO_URING.to_ne_bytes());
    }

    #[test]
    fn requests_are_taken_apart() {
        let mut message = Vec::new();
        message.put32(40 + 5);
        message.put32(op::LOOKUP);
        message.put64(77);
        message.put64(1);
        for value in [1000, 100, 4242, 0] {
            message.put32(value);
        }
        message.extend_from_slice(b"name\0");
        let (header, mut body) = parse(&message).expect("a whole request");
        assert_eq!((header.opcode, header.unique), (op::LOOKUP, 77));
        assert_eq!((header.node, header.pid), (1, 4242));
        assert_eq!((header.uid, header.gid), (1000, 100));
        assert_eq!(body.name(), Some(&b"name"[..]));
        assert_eq!(body.u32(), None);
        for cut in 0..message.len() {
            assert!(parse(&message[..cut]).is_none(), "{cut} bytes");
        }
        assert_eq!(Body::new(b"no end").name(), None);
    }
}
