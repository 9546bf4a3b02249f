//! Tar headers: the 512-byte block, extended records of pax, long names of GNU tar.
//!
//! POSIX.1-2008 (`pax`, "ustar Interchange Format" and "pax Interchange Format") and the GNU tar manual
//! ("Basic Tar Format", "Storing Sparse Files").

use std::ops::Range;

use super::TarFormat;
use crate::flags;
use crate::xattrs::{self, Xattr};

/// Size of a record of the archive.
pub(crate) const BLOCK: usize = 512;

/// What a header says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
    /// Path; directories end in a slash.
    pub(crate) path: Vec<u8>,
    /// Type flag of the ustar format.
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Bytes that follow the header.
    pub(crate) size: u64,
    pub(crate) mtime: (i64, u32),
    /// Access time, where it is to be recorded.
    pub(crate) atime: Option<(i64, u32)>,
    /// Target of a symbolic or hard link.
    pub(crate) link: Vec<u8>,
    pub(crate) device: (u32, u32),
    /// For files with holes. Then `size` counts the data, and in pax the map.
    pub(crate) sparse: Option<Sparse>,
    /// Only in pax.
    pub(crate) birth: Option<(i64, u32)>,
    /// File flags.
    pub(crate) flags: u32,
    /// Only in pax.
    pub(crate) xattrs: Vec<Xattr>,
}

/// Where the data of a file with holes belongs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sparse {
    pub(crate) real_size: u64,
    /// Position and size; a hole at the end is followed by an empty range.
    pub(crate) ranges: Vec<(u64, u64)>,
}

pub(crate) const REGULAR: u8 = b'0';
pub(crate) const HARD_LINK: u8 = b'1';
pub(crate) const SYMLINK: u8 = b'2';
pub(crate) const CHAR_DEVICE: u8 = b'3';
pub(crate) const BLOCK_DEVICE: u8 = b'4';
pub(crate) const DIRECTORY: u8 = b'5';
pub(crate) const FIFO: u8 = b'6';
const GNU_SPARSE_FILE: u8 = b'S';

/// Offset and width of the fields used here.
mod field {
    use std::ops::Range;
    pub(super) const NAME: Range<usize> = 0..100;
    pub(super) const MODE: Range<usize> = 100..108;
    pub(super) const UID: Range<usize> = 108..116;
    pub(super) const GID: Range<usize> = 116..124;
    pub(super) const SIZE: Range<usize> = 124..136;
    pub(super) const MTIME: Range<usize> = 136..148;
    pub(super) const CHECKSUM: Range<usize> = 148..156;
    pub(super) const KIND: usize = 156;
    pub(super) const LINK: Range<usize> = 157..257;
    pub(super) const MAGIC: Range<usize> = 257..265;
    pub(super) const MAJOR: Range<usize> = 329..337;
    pub(super) const MINOR: Range<usize> = 337..345;
    pub(super) const PREFIX: Range<usize> = 345..500;
    /// Instead of a prefix, in the old GNU sparse format: ranges of 24 bytes each.
    pub(super) const GNU_SPARSE: usize = 386;
    pub(super) const GNU_RANGES: usize = 4;
    pub(super) const GNU_MORE: usize = 482;
    pub(super) const GNU_REAL_SIZE: Range<usize> = 483..495;
    /// The same in the blocks that follow.
    pub(super) const GNU_MORE_RANGES: usize = 21;
    pub(super) const GNU_MORE_MORE: usize = 504;
}

/// All bytes that precede the data of an entry. The error names the value that the format cannot hold.
pub(crate) fn encode(format: TarFormat, entry: &Entry) -> Result<Vec<u8>, String> {
    match format {
        TarFormat::Ustar => ustar(entry),
        TarFormat::Pax => Ok(pax(entry)),
        TarFormat::Gnutar => Ok(gnu(entry)),
    }
}

fn ustar(entry: &Entry) -> Result<Vec<u8>, String> {
    let mut h = [0; BLOCK];
    let (prefix, name) = split_name(&entry.path)
        .ok_or_else(|| format!("path of {} bytes is too long", entry.path.len()))?;
    put(&mut h, field::NAME, name);
    put(&mut h, field::PREFIX, prefix);
    if entry.link.len() > field::LINK.len() {
        return Err(format!(
            "link target of {} bytes is too long",
            entry.link.len()
        ));
    }
    put(&mut h, field::LINK, &entry.link);
    let number = |h: &mut [u8; BLOCK], at, value: u64, what: &str| {
        octal(h, at, value)
            .then_some(())
            .ok_or_else(|| format!("{what} {value} is too large"))
    };
    number(&mut h, field::MODE, entry.mode.into(), "mode")?;
    number(&mut h, field::UID, entry.uid, "user id")?;
    number(&mut h, field::GID, entry.gid, "group id")?;
    number(&mut h, field::SIZE, entry.size, "size")?;
    let mtime = u64::try_from(entry.mtime.0).map_err(|_| "modification time is before 1970")?;
    number(&mut h, field::MTIME, mtime, "modification time")?;
    number(
        &mut h,
        field::MAJOR,
        entry.device.0.into(),
        "major device number",
    )?;
    number(
        &mut h,
        field::MINOR,
        entry.device.1.into(),
        "minor device number",
    )?;
    Ok(seal(h, entry.kind, b"ustar\x0000").to_vec())
}

fn pax(entry: &Entry) -> Vec<u8> {
    let mut h = [0; BLOCK];
    let mut records = Vec::new();
    let mut texts: Vec<(&str, &[u8])> = Vec::new();
    // With a sparse map, a separate record holds the real name. The name in the header is for programs
    // that do not know such files.
    let stand_in;
    let path = if entry.sparse.is_some() {
        stand_in = sparse_name(&entry.path);
        texts.push(("GNU.sparse.name", &entry.path));
        &stand_in
    } else {
        &entry.path
    };
    match split_name(path) {
        Some((prefix, name)) if path.is_ascii() => {
            put(&mut h, field::NAME, name);
            put(&mut h, field::PREFIX, prefix);
        }
        _ => {
            texts.push(("path", path));
            put(
                &mut h,
                field::NAME,
                path.get(..field::NAME.len()).unwrap_or(path),
            );
        }
    }
    if entry.link.len() > field::LINK.len() || !entry.link.is_ascii() {
        texts.push(("linkpath", &entry.link));
    }
    put(
        &mut h,
        field::LINK,
        entry.link.get(..field::LINK.len()).unwrap_or(&entry.link),
    );
    if texts
        .iter()
        .any(|(_, value)| std::str::from_utf8(value).is_err())
    {
        record(&mut records, "hdrcharset", b"BINARY");
    }
    for (key, value) in texts {
        record(&mut records, key, value);
    }
    if let Some(sparse) = &entry.sparse {
        record(&mut records, "GNU.sparse.major", b"1");
        record(&mut records, "GNU.sparse.minor", b"0");
        record(
            &mut records,
            "GNU.sparse.realsize",
            sparse.real_size.to_string().as_bytes(),
        );
    }
    octal(&mut h, field::MODE, entry.mode.into());
    for (at, key, value) in [
        (field::UID, "uid", entry.uid),
        (field::GID, "gid", entry.gid),
        (field::SIZE, "size", entry.size),
    ] {
        if !octal(&mut h, at, value) {
            record(&mut records, key, value.to_string().as_bytes());
        }
    }
    let whole = u64::try_from(entry.mtime.0).is_ok_and(|sec| octal(&mut h, field::MTIME, sec));
    if !whole || entry.mtime.1 != 0 {
        record(&mut records, "mtime", time(entry.mtime).as_bytes());
    }
    if let Some(atime) = entry.atime {
        record(&mut records, "atime", time(atime).as_bytes());
    }
    if let Some(birth) = entry.birth {
        let birth = time(birth);
        record(&mut records, "LIBARCHIVE.creationtime", birth.as_bytes());
    }
    if entry.flags != 0 {
        record(
            &mut records,
            "SCHILY.fflags",
            flags::as_text(entry.flags).as_bytes(),
        );
    }
    for xattr in &entry.xattrs {
        xattr_record(&mut records, xattr);
    }
    for (at, key, value) in [
        (field::MAJOR, "SCHILY.devmajor", entry.device.0),
        (field::MINOR, "SCHILY.devminor", entry.device.1),
    ] {
        if !octal(&mut h, at, value.into()) {
            record(&mut records, key, value.to_string().as_bytes());
        }
    }
    let mut out = Vec::new();
    if !records.is_empty() {
        let mut x = [0; BLOCK];
        put(&mut x, field::NAME, &extended_name(path));
        octal(&mut x, field::MODE, 0o644);
        octal(&mut x, field::UID, 0);
        octal(&mut x, field::GID, 0);
        octal(&mut x, field::SIZE, records.len() as u64);
        octal(&mut x, field::MTIME, 0);
        out.extend_from_slice(&seal(x, b'x', b"ustar\x0000"));
        out.extend_from_slice(&records);
        pad(&mut out);
    }
    out.extend_from_slice(&seal(h, entry.kind, b"ustar\x0000"));
    out
}

fn gnu(entry: &Entry) -> Vec<u8> {
    const MAGIC: &[u8] = b"ustar  \0";
    let mut out = Vec::new();
    for (text, kind, room) in [
        (&entry.link, b'K', field::LINK.len()),
        (&entry.path, b'L', field::NAME.len()),
    ] {
        if text.len() > room {
            let mut h = [0; BLOCK];
            put(&mut h, field::NAME, b"././@LongLink");
            for at in [field::MODE, field::UID, field::GID, field::MTIME] {
                octal(&mut h, at, 0);
            }
            // The final NUL counts.
            octal(&mut h, field::SIZE, text.len() as u64 + 1);
            out.extend_from_slice(&seal(h, kind, MAGIC));
            out.extend_from_slice(text);
            out.push(0);
            pad(&mut out);
        }
    }
    let mut h = [0; BLOCK];
    put(
        &mut h,
        field::NAME,
        entry.path.get(..field::NAME.len()).unwrap_or(&entry.path),
    );
    put(
        &mut h,
        field::LINK,
        entry.link.get(..field::LINK.len()).unwrap_or(&entry.link),
    );
    octal(&mut h, field::MODE, entry.mode.into());
    for (at, value) in [
        (field::UID, entry.uid),
        (field::GID, entry.gid),
        (field::SIZE, entry.size),
        (field::MAJOR, entry.device.0.into()),
        (field::MINOR, entry.device.1.into()),
    ] {
        if !octal(&mut h, at.clone(), value) {
            base256(&mut h, at, i128::from(value));
        }
    }
    match u64::try_from(entry.mtime.0) {
        Ok(sec) if octal(&mut h, field::MTIME, sec) => {}
        _ => base256(&mut h, field::MTIME, entry.mtime.0.into()),
    }
    let Some(sparse) = &entry.sparse else {
        out.extend_from_slice(&seal(h, entry.kind, MAGIC));
        return out;
    };
    let size = |h: &mut [u8; BLOCK], at: Range<usize>, value: u64| {
        if !octal(h, at.clone(), value) {
            base256(h, at, value.into());
        }
    };
    let list = |h: &mut [u8; BLOCK], at: usize, ranges: &[(u64, u64)]| {
        for (slot, (start, length)) in (at..).step_by(24).zip(ranges) {
            size(h, slot..slot + 12, *start);
            size(h, slot + 12..slot + 24, *length);
        }
    };
    let (first, rest) = sparse
        .ranges
        .split_at(sparse.ranges.len().min(field::GNU_RANGES));
    list(&mut h, field::GNU_SPARSE, first);
    h[field::GNU_MORE] = u8::from(!rest.is_empty());
    size(&mut h, field::GNU_REAL_SIZE, sparse.real_size);
    out.extend_from_slice(&seal(h, GNU_SPARSE_FILE, MAGIC));
    let mut chunks = rest.chunks(field::GNU_MORE_RANGES).peekable();
    while let Some(ranges) = chunks.next() {
        let mut more = [0; BLOCK];
        list(&mut more, 0, ranges);
        more[field::GNU_MORE_MORE] = u8::from(chunks.peek().is_some());
        out.extend_from_slice(&more);
    }
    out
}

/// Fills up to a whole record with zeros.
pub(crate) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

/// Splits a path for the prefix and name fields.
fn split_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= field::NAME.len() {
        return Some((b"", path));
    }
    // The slash between the two is not stored. A trailing slash must stay with a name.
    let slash = path.iter().enumerate().position(|(at, &b)| {
        b == b'/'
            && at > 0
            && at <= field::PREFIX.len()
            && at + 1 < path.len()
            && path.len() - at - 1 <= field::NAME.len()
    })?;
    Some((path.get(..slash)?, path.get(slash + 1..)?))
}

fn parent_and_base(path: &[u8]) -> (&[u8], &[u8]) {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (
            path.get(..=at).unwrap_or_default(),
            path.get(at + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

/// Name of an extended header: an old program would create a file with this name.
fn extended_name(path: &[u8]) -> Vec<u8> {
    let (_, base) = parent_and_base(path);
    let mut name = b"PaxHeader/".to_vec();
    name.extend(
        base.iter()
            .map(|&b| if b.is_ascii_graphic() { b } else { b'_' })
            .take(80),
    );
    name
}

fn sparse_name(path: &[u8]) -> Vec<u8> {
    let (parent, base) = parent_and_base(path);
    [parent, b"GNUSparseFile.0/", base].concat()
}

/// Appends an extended attribute; access lists as text, as GNU tar and libarchive do. A name with an equal
/// sign, which ends a key, has no form: it is in the form of libarchive, which encodes it.
fn xattr_record(out: &mut Vec<u8>, xattr: &Xattr) {
    let list = match xattr.name.as_slice() {
        xattrs::ACCESS => Some("SCHILY.acl.access"),
        xattrs::DEFAULT => Some("SCHILY.acl.default"),
        _ => None,
    };
    if let Some((key, text)) = list.zip(xattrs::list_as_text(&xattr.value)) {
        return record(out, key, text.as_bytes());
    }
    if xattr.name.contains(&b'=') {
        let mut key = b"LIBARCHIVE.xattr.".to_vec();
        for &byte in &xattr.name {
            match byte {
                b'=' | b'%' => key.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                byte => key.push(byte),
            }
        }
        return record(out, key, base64(&xattr.value).as_bytes());
    }
    record(
        out,
        [b"SCHILY.xattr.", xattr.name.as_slice()].concat(),
        &xattr.value,
    );
}

/// Base64 without padding, as in libarchive.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=group.len() {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(char::from(
                DIGITS.get(index as usize).copied().unwrap_or(b'A'),
            ));
        }
    }
    text
}

/// Appends `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(out: &mut Vec<u8>, key: impl AsRef<[u8]>, value: &[u8]) {
    let key = key.as_ref();
    // Space, equal sign and newline.
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Decimal seconds with as many fraction digits as needed.
fn time((sec, nsec): (i64, u32)) -> String {
    if nsec == 0 {
        return sec.to_string();
    }
    // The fraction counts forward in time, also before 1970.
    let nanoseconds = i128::from(sec) * 1_000_000_000 + i128::from(nsec);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let n = nanoseconds.unsigned_abs();
    let text = format!("{sign}{}.{:09}", n / 1_000_000_000, n % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn put(h: &mut [u8; BLOCK], at: Range<usize>, value: &[u8]) {
    for (to, from) in h[at].iter_mut().zip(value) {
        *to = *from;
    }
}

/// Writes octal digits and a NUL if they fit; otherwise leaves zeros.
fn octal(h: &mut [u8; BLOCK], at: Range<usize>, value: u64) -> bool {
    let width = at.len() - 1;
    let digits = format!("{value:0width$o}");
    let fits = digits.len() <= width;
    put(h, at, if fits { digits.as_bytes() } else { b"0" });
    fits
}

/// The GNU form of numbers that do not fit: big-endian two's complement with the top bit set.
fn base256(h: &mut [u8; BLOCK], at: Range<usize>, value: i128) {
    let bytes = value.to_be_bytes();
    let width = at.len();
    put(h, at.clone(), &bytes[bytes.len() - width..]);
    h[at.start] = if value < 0 { 0xff } else { 0x80 };
}

fn seal(mut h: [u8; BLOCK], kind: u8, magic: &[u8]) -> [u8; BLOCK] {
    h[field::KIND] = kind;
    put(&mut h, field::MAGIC, magic);
    put(&mut h, field::CHECKSUM, b"        ");
    let sum: u32 = h.iter().map(|&b| u32::from(b)).sum();
    put(&mut h, field::CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &[u8]) -> Entry {
        Entry {
            path: path.to_vec(),
            kind: REGULAR,
            mode: 0o644,
            ..Entry::default()
        }
    }

    #[test]
    fn records_count_themselves() {
        for n in [
            1, 2, 3, 4, 5, 90, 91, 92, 93, 94, 95, 990, 991, 992, 993, 994,
        ] {
            let mut out = Vec::new();
            record(&mut out, "k", &vec![b'v'; n]);
            let text = String::from_utf8(out).unwrap();
            let length: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(length, text.len(), "{n}");
        }
    }

    #[test]
    fn times() {
        for (t, expected) in [
            ((0, 0), "0"),
            ((5, 500_000_000), "5.5"),
            ((5, 1), "5.000000001"),
            ((-1, 0), "-1"),
            ((-1, 500_000_000), "-0.5"),
            ((-2, 999_999_999), "-1.000000001"),
        ] {
            assert_eq!(time(t), expected);
        }
    }

    #[test]
    fn names_are_split_only_where_both_halves_fit() {
        let short = b"a".repeat(100);
        assert_eq!(split_name(&short), Some((&b""[..], &short[..])));
        assert_eq!(split_name(&b"a".repeat(101)), None);
        let two = [b"p".repeat(60), b"/".to_vec(), b"n".repeat(60)].concat();
        assert_eq!(split_name(&two), Some((&two[..60], &two[61..])));
        let dir = [
            b"p".repeat(99),
            b"/".to_vec(),
            b"n".repeat(99),
            b"/".to_vec(),
        ]
        .concat();
        assert_eq!(split_name(&dir), Some((&dir[..99], &dir[100..])));
        assert_eq!(
            split_name(&[b"p".repeat(101), b"/".to_vec()].concat()),
            None
        );
        assert_eq!(
            split_name(&[b"p".repeat(156), b"/n".to_vec()].concat()),
            None
        );
    }

    #[test]
    fn checksums_and_sizes() {
        for format in [TarFormat::Ustar, TarFormat::Pax, TarFormat::Gnutar] {
            let out = encode(format, &entry(b"x")).unwrap();
            assert_eq!(out.len(), BLOCK);
            let sum: u32 = out
                .iter()
                .enumerate()
                .map(|(i, &b)| {
                    if field::CHECKSUM.contains(&i) {
                        32
                    } else {
                        u32::from(b)
                    }
                })
                .sum();
            assert_eq!(&out[field::CHECKSUM], format!("{sum:06o}\0 ").as_bytes());
        }
    }

    #[test]
    fn ustar_says_what_does_not_fit() {
        let mut big = entry(b"x");
        big.size = 8 << 30;
        assert!(encode(TarFormat::Ustar, &big).unwrap_err().contains("size"));
        assert!(
            encode(TarFormat::Ustar, &entry(&b"x".repeat(101)))
                .unwrap_err()
                .contains("path")
        );
        let gnu = encode(TarFormat::Gnutar, &big).unwrap();
        assert_eq!(gnu[124..136], [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        let pax = encode(TarFormat::Pax, &big).unwrap();
        assert!(pax.windows(15).any(|w| w == b"size=8589934592"));
    }
}
