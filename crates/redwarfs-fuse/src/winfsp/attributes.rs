//! The attributes of entries as Windows has them.

use redwarfs_format::metadata::{FileType, Stat, Timestamp};
use redwarfs_windows::time::Time;

use crate::policy::{Policy, node_id};
use crate::winfsp::binding::abi::FileInfo;
use crate::winfsp::reparse;

const READ_ONLY: u32 = 0x0001;
pub(super) const DIRECTORY: u32 = 0x0010;
const NORMAL: u32 = 0x0080;
pub(super) const REPARSE_POINT: u32 = 0x0400;

/// Bytes of a unit in which the size of files on the medium is counted.
pub(super) const UNIT: u64 = 4096;

/// The time in the form of Windows. Times before 1601 are shown as 1601.
fn ticks(time: Timestamp) -> u64 {
    let ticks = Time::from_unix(time.sec, time.nsec).ticks();
    u64::try_from(ticks).unwrap_or(0)
}

/// Rounds up to whole units.
pub(super) fn whole_units(size: u64) -> u64 {
    size.checked_next_multiple_of(UNIT)
        .unwrap_or(u64::MAX - u64::MAX % UNIT)
}

/// The attributes for Windows. `to_directory` is for a symbolic link that leads to one, and `born` for an
/// image that has times of creation.
pub(super) fn file_info(
    policy: &Policy,
    stat: &Stat,
    ty: FileType,
    to_directory: bool,
    born: Option<Timestamp>,
) -> FileInfo {
    let mut attributes = 0;
    if ty == FileType::Directory || to_directory {
        attributes |= DIRECTORY;
    }
    // On directories this attribute has another meaning.
    if ty == FileType::Regular && policy.mode(stat) & 0o200 == 0 {
        attributes |= READ_ONLY;
    }
    let tag = reparse::tag(ty);
    if tag != 0 {
        attributes |= REPARSE_POINT;
    }
    if attributes == 0 {
        attributes = NORMAL;
    }
    // Windows computes with signed sizes.
    let size = match ty {
        FileType::Regular => stat.size.min(i64::MAX.cast_unsigned()),
        _ => 0,
    };
    FileInfo {
        attributes,
        reparse_tag: tag,
        allocation_size: whole_units(size),
        file_size: size,
        creation_time: ticks(born.unwrap_or(stat.mtime)),
        last_access_time: ticks(stat.atime),
        last_write_time: ticks(stat.mtime),
        change_time: ticks(stat.ctime),
        index_number: node_id(stat.ino),
        hard_links: 0,
        ea_size: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redwarfs_format::ids::InodeNo;

    use crate::options::MountOptions;

    fn stat(mode: u32, size: u64) -> Stat {
        let time = |sec| Timestamp {
            sec,
            nsec: 123_456_789,
        };
        Stat {
            ino: InodeNo(4),
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            allocated: size,
            atime: time(1),
            mtime: time(0),
            ctime: time(-20_000_000_000),
        }
    }

    #[test]
    fn attributes_of_types() {
        let plain = Policy::new(&MountOptions::default());
        let info = |mode, ty, to| file_info(&plain, &stat(mode, 5000), ty, to, None);
        assert_eq!(info(0o100_644, FileType::Regular, false).attributes, NORMAL);
        assert_eq!(
            info(0o100_444, FileType::Regular, false).attributes,
            READ_ONLY
        );
        assert_eq!(
            info(0o040_555, FileType::Directory, false).attributes,
            DIRECTORY
        );
        let link = info(0o120_777, FileType::Symlink, false);
        assert_eq!((link.attributes, link.file_size), (REPARSE_POINT, 0));
        let link = info(0o120_777, FileType::Symlink, true);
        assert_eq!(link.attributes, REPARSE_POINT | DIRECTORY);
        let hidden = MountOptions {
            hide_write_bits: true,
            ..MountOptions::default()
        };
        let hidden = file_info(
            &Policy::new(&hidden),
            &stat(0o100_644, 0),
            FileType::Regular,
            false,
            None,
        );
        assert_eq!(hidden.attributes, READ_ONLY);
    }

    #[test]
    fn sizes_and_times() {
        let policy = Policy::new(&MountOptions::default());
        let info = file_info(
            &policy,
            &stat(0o100_644, 5000),
            FileType::Regular,
            false,
            None,
        );
        assert_eq!((info.file_size, info.allocation_size), (5000, 8192));
        assert_eq!(info.last_write_time, 116_444_736_001_234_567);
        assert_eq!(info.last_access_time, 116_444_736_011_234_567);
        assert_eq!(info.creation_time, info.last_write_time);
        let born = Some(Timestamp { sec: -1, nsec: 0 });
        let known = file_info(&policy, &stat(0o100_644, 0), FileType::Regular, false, born);
        assert_eq!(known.creation_time, 116_444_735_990_000_000);
        assert_eq!(info.change_time, 0);
        assert_eq!(info.index_number, 5);
        let large = file_info(
            &policy,
            &stat(0o100_644, u64::MAX),
            FileType::Regular,
            false,
            None,
        );
        assert_eq!(large.file_size, i64::MAX as u64);
        assert!(large.allocation_size >= large.file_size);
        assert_eq!(whole_units(u64::MAX), u64::MAX - 4095);
        assert_eq!((whole_units(0), whole_units(4096)), (0, 4096));
    }
}
