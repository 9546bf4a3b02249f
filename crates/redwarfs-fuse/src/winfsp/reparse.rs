//! Symbolic links and special files as reparse points.
//!
//! The forms are those of the protocol description MS-FSCC, sections 2.1.2.4 and 2.1.2.6.

use redwarfs_format::metadata::FileType;

use crate::winfsp::names;
use crate::winfsp::status::Status;

const TAG_SYMLINK: u32 = 0xa000_000c;
const TAG_NFS: u32 = 0x8000_0014;

/// Largest reparse point that Windows takes, with its head.
const LARGEST: usize = 16 << 10;
/// The target has no drive.
const RELATIVE: u32 = 1;

/// The tag of a type of entries; 0 if it needs none.
pub(super) fn tag(ty: FileType) -> u32 {
    match ty {
        FileType::Directory | FileType::Regular => 0,
        FileType::Symlink => TAG_SYMLINK,
        FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => TAG_NFS,
    }
}

/// Where the target of a link is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// In the volume: from its root, or from the directory of the link. The components, of which none is
    /// empty.
    Inside(bool, Vec<&'a [u8]>),
    /// On a drive, for example `C:`: the drive, and the components.
    Drive(&'a [u8], Vec<&'a [u8]>),
}

impl<'a> Target<'a> {
    /// `None` for an empty target.
    ///
    /// Paths of network shares (`//server/share`) are taken for paths from the root of the volume, as
    /// elsewhere: an image cannot make this system connect to a server.
    pub(super) fn parse(target: &'a [u8]) -> Option<Self> {
        let parts = |path: &'a [u8]| {
            let parts = path.split(|&byte| byte == b'/');
            parts.filter(|part| !part.is_empty()).collect()
        };
        match target {
            [] => None,
            [letter, b':', b'/', rest @ ..] if letter.is_ascii_alphabetic() => {
                Some(Self::Drive(target.get(..2)?, parts(rest)))
            }
            [b'/', ..] => Some(Self::Inside(true, parts(target))),
            _ => Some(Self::Inside(false, parts(target))),
        }
    }
}

/// The data of a symbolic link.
///
/// # Errors
/// The target is empty or too long.
pub(super) fn symlink(target: &[u8]) -> Result<Vec<u8>, Status> {
    let (prefix, path, flags) = match Target::parse(target) {
        None => return Err(Status::IO_REPARSE_DATA_INVALID),
        Some(Target::Inside(from_root, parts)) => {
            let root = if from_root { "\\" } else { "" };
            (
                "",
                [root.encode_utf16().collect(), joined(&parts)].concat(),
                RELATIVE,
            )
        }
        Some(Target::Drive(drive, parts)) => {
            let drive = drive.iter().copied().chain([b'\\']).map(u16::from);
            (r"\??\", [drive.collect(), joined(&parts)].concat(), 0)
        }
    };
    let print = bytes(path.iter().copied());
    let substitute = bytes(prefix.encode_utf16().chain(path.iter().copied()));
    // The names are shown, and followed.
    let size = |name: &[u8]| u16::try_from(name.len()).map_err(|_| Status::IO_REPARSE_DATA_INVALID);
    let (print_size, substitute_size) = (size(&print)?, size(&substitute)?);
    let mut data = Vec::with_capacity(12 + print.len() + substitute.len());
    for number in [print_size, substitute_size, 0, print_size] {
        data.extend(number.to_le_bytes());
    }
    data.extend(flags.to_le_bytes());
    data.extend(print);
    data.extend(substitute);
    with_head(TAG_SYMLINK, &data)
}

/// The data of a device, a FIFO or a socket. The numbers of a device are those that Linux shows.
///
/// # Errors
/// The type needs no reparse point.
pub(super) fn special(ty: FileType, rdev: u64) -> Result<Vec<u8>, Status> {
    let (kind, numbered) = match ty {
        FileType::CharDevice => (b"CHR\0\0\0\0\0", true),
        FileType::BlockDevice => (b"BLK\0\0\0\0\0", true),
        FileType::Fifo => (b"FIFO\0\0\0\0", false),
        FileType::Socket => (b"SOCK\0\0\0\0", false),
        FileType::Directory | FileType::Regular | FileType::Symlink => {
            return Err(Status::NOT_A_REPARSE_POINT);
        }
    };
    let mut data = kind.to_vec();
    if numbered {
        let major = rdev >> 8 & 0xfff | rdev >> 32 & 0xffff_f000;
        let minor = rdev & 0xff | rdev >> 12 & 0xffff_ff00;
        for number in [major, minor] {
            data.extend((number as u32).to_le_bytes());
        }
    }
    with_head(TAG_NFS, &data)
}

fn with_head(tag: u32, data: &[u8]) -> Result<Vec<u8>, Status> {
    let size = u16::try_from(data.len()).map_err(|_| Status::IO_REPARSE_DATA_INVALID)?;
    let mut out = Vec::with_capacity(8 + data.len());
    out.extend(tag.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend([0, 0]);
    out.extend(data);
    if out.len() > LARGEST {
        return Err(Status::IO_REPARSE_DATA_INVALID);
    }
    Ok(out)
}

/// The components as a path of Windows.
fn joined(parts: &[&[u8]]) -> Vec<u16> {
    let part = |part: &&[u8]| match *part {
        b"." | b".." => part.iter().copied().map(u16::from).collect(),
        name => names::shown(name),
    };
    let parts: Vec<Vec<u16>> = parts.iter().map(part).collect();
    parts.join(&u16::from(b'\\'))
}

fn bytes(units: impl Iterator<Item = u16>) -> Vec<u8> {
    units.flat_map(u16::to_le_bytes).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Substitute name, print name and flags of a symbolic link.
    pub(in crate::winfsp) fn parse_symlink(data: &[u8]) -> (String, String, u32) {
        let le16 =
            |at: usize| usize::from(u16::from_le_bytes(data[at..at + 2].try_into().unwrap()));
        let le32 = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!(
            (le32(0), le16(4), le16(6)),
            (TAG_SYMLINK, data.len() - 8, 0)
        );
        let name = |at: usize, size: usize| {
            let units = data[20 + at..20 + at + size].chunks_exact(2);
            let units: Vec<u16> = units
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
                .collect();
            String::from_utf16(&units).unwrap()
        };
        (name(le16(8), le16(10)), name(le16(12), le16(14)), le32(16))
    }

    #[test]
    fn targets_of_links() {
        for (target, substitute, print, flags) in [
            ("a", "a", "a", 1),
            ("../b/./c", r"..\b\.\c", r"..\b\.\c", 1),
            ("a//b/", r"a\b", r"a\b", 1),
            ("/usr/lib", r"\usr\lib", r"\usr\lib", 1),
            ("/", r"\", r"\", 1),
            ("//server/share", r"\server\share", r"\server\share", 1),
            ("a:b", "a\u{f03a}b", "a\u{f03a}b", 1),
            ("back\\slash", "back\u{f05c}slash", "back\u{f05c}slash", 1),
            ("c:rest", "c\u{f03a}rest", "c\u{f03a}rest", 1),
            ("C:/Users/x", r"\??\C:\Users\x", r"C:\Users\x", 0),
            ("C:/", r"\??\C:\", r"C:\", 0),
        ] {
            let data = symlink(target.as_bytes()).unwrap();
            let want = (substitute.to_owned(), print.to_owned(), flags);
            assert_eq!(parse_symlink(&data), want, "{target}");
        }
        assert_eq!(symlink(b""), Err(Status::IO_REPARSE_DATA_INVALID));
        assert!(symlink(&[b'x'; 4000]).is_ok());
        for length in [5000, 20_000, 40_000] {
            assert_eq!(
                symlink(&vec![b'x'; length]),
                Err(Status::IO_REPARSE_DATA_INVALID)
            );
        }
    }

    #[test]
    fn special_files() {
        let fifo = special(FileType::Fifo, 7).unwrap();
        assert_eq!(fifo, *b"\x14\0\0\x80\x08\0\0\0FIFO\0\0\0\0");
        let disk = special(FileType::BlockDevice, 0x0801).unwrap();
        assert_eq!(
            disk,
            *b"\x14\0\0\x80\x10\0\0\0BLK\0\0\0\0\0\x08\0\0\0\x01\0\0\0"
        );
        // Major 0x12345, minor 0x678ab.
        let rdev = 0x0001_2000_0000_0000 | 0x6780_0000 | 0x345 << 8 | 0xab;
        let large = special(FileType::CharDevice, rdev).unwrap();
        assert_eq!(large[16..], [0x45, 0x23, 1, 0, 0xab, 0x78, 6, 0]);
        assert_eq!(
            special(FileType::Regular, 0),
            Err(Status::NOT_A_REPARSE_POINT)
        );
        for ty in [FileType::Directory, FileType::Regular] {
            assert_eq!(tag(ty), 0);
        }
        assert_eq!(tag(FileType::Symlink), TAG_SYMLINK);
        assert_eq!(tag(FileType::Socket), TAG_NFS);
    }
}
