//! Attributes of open files.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_LOCK_VIOLATION, FILETIME};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, DELETE, FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_READONLY,
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_BASIC_INFO, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_NAME_NORMALIZED, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE,
    FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_WRITE_ATTRIBUTES, FileBasicInfo,
    GetFileInformationByHandle, GetFileInformationByHandleEx, GetFinalPathNameByHandleW,
    LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx,
};
use windows_sys::Win32::System::IO::{DeviceIoControl, OVERLAPPED};
use windows_sys::Win32::System::Ioctl::FSCTL_SET_SPARSE;

use crate::time::Time;

/// Attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    attributes: u32,
    /// Size of a file in bytes.
    pub size: u64,
    /// Number of names.
    pub links: u32,
    /// Serial number of the volume, and number of the file on it.
    pub identity: (u64, u64),
    /// Creation.
    pub created: Time,
    /// Last access.
    pub accessed: Time,
    /// Last change of the contents.
    pub written: Time,
    /// Last change of contents or attributes; that of the contents where the file system has no other.
    pub changed: Time,
}

impl Info {
    /// Whether it is a directory, or a link that is made for directories.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.attributes & FILE_ATTRIBUTE_DIRECTORY != 0
    }

    /// Whether it is a link or another reparse point.
    #[must_use]
    pub fn is_reparse_point(&self) -> bool {
        self.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0
    }

    /// Whether it has the read-only attribute.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.attributes & FILE_ATTRIBUTE_READONLY != 0
    }
}

/// The attributes of an open file or directory.
///
/// # Errors
/// The error of the system.
pub fn info(file: &impl AsHandle) -> io::Result<Info> {
    let handle = file.as_handle().as_raw_handle();
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open during the call, and `found` has the type that the call fills.
    if unsafe { GetFileInformationByHandle(handle, &raw mut found) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut basic = FILE_BASIC_INFO::default();
    // SAFETY: as above; the size is that of the structure of this class.
    let has_basic = unsafe {
        GetFileInformationByHandleEx(
            handle,
            FileBasicInfo,
            (&raw mut basic).cast(),
            size_of::<FILE_BASIC_INFO>() as u32,
        )
    } != 0;
    let time = |time: FILETIME| {
        Time::from_ticks(i64::from(time.dwHighDateTime) << 32 | i64::from(time.dwLowDateTime))
    };
    let written = time(found.ftLastWriteTime);
    let changed = match basic.ChangeTime {
        ticks if has_basic && ticks > 0 => Time::from_ticks(ticks),
        _ => written,
    };
    let long = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    Ok(Info {
        attributes: found.dwFileAttributes,
        size: long(found.nFileSizeHigh, found.nFileSizeLow),
        links: found.nNumberOfLinks,
        identity: (
            found.dwVolumeSerialNumber.into(),
            long(found.nFileIndexHigh, found.nFileIndexLow),
        ),
        created: time(found.ftCreationTime),
        accessed: time(found.ftLastAccessTime),
        written,
        changed,
    })
}

/// Lets an open file have holes: ranges that were never written take no space. Does nothing where the
/// file system has no such files.
pub fn make_sparse(file: &impl AsHandle) {
    let mut returned = 0;
    // SAFETY: the handle is open during the call. This request takes no input, which means that the file
    // becomes sparse, and gives no output but the number of its bytes.
    let _ = unsafe {
        DeviceIoControl(
            file.as_handle().as_raw_handle(),
            FSCTL_SET_SPARSE,
            ptr::null(),
            0,
            ptr::null_mut(),
            0,
            &raw mut returned,
            ptr::null_mut(),
        )
    };
}

/// Takes the exclusive lock of programs that change a file, until the file is closed. `false` if another
/// handle has it.
///
/// The lock is on the last byte that a file could have, since Windows keeps others from reading and writing
/// locked bytes.
///
/// # Errors
/// The error of the system, for instance for a file that cannot be locked.
pub fn try_lock_exclusive(file: &impl AsHandle) -> io::Result<bool> {
    let handle = file.as_handle().as_raw_handle();
    // SAFETY: all zeros is a valid value of the structure.
    let mut place: OVERLAPPED = unsafe { std::mem::zeroed() };
    place.Anonymous.Anonymous.Offset = u32::MAX - 1;
    place.Anonymous.Anonymous.OffsetHigh = u32::MAX >> 1;
    let flags = LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY;
    // SAFETY: the handle is open, and the call ends before `place` does, because it does not wait.
    if unsafe { LockFileEx(handle, flags, 0, 1, 0, &raw mut place) } != 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(ERROR_LOCK_VIOLATION | ERROR_IO_PENDING) => Ok(false),
        _ => Err(error),
    }
}

/// The name of an open entry as its directory lists it: for a file that was opened by a name in another
/// case, or by its short name, this differs from that name.
///
/// # Errors
/// The error of the system.
pub fn listed_name(file: &impl AsHandle) -> io::Result<OsString> {
    let mut path = vec![0_u16; 512];
    loop {
        let size = u32::try_from(path.len()).unwrap_or(u32::MAX);
        // SAFETY: the handle is open during the call, and the buffer has the given size.
        let length = unsafe {
            GetFinalPathNameByHandleW(
                file.as_handle().as_raw_handle(),
                path.as_mut_ptr(),
                size,
                FILE_NAME_NORMALIZED,
            )
        } as usize;
        match path.get(..length) {
            _ if length == 0 => return Err(io::Error::last_os_error()),
            Some(found) => {
                let name = found.rsplit(|&unit| unit == u16::from(b'\\')).next();
                return Ok(OsString::from_wide(name.unwrap_or_default()));
            }
            // The size that is needed, with the final NUL.
            None => path.resize(length, 0),
        }
    }
}

/// The use for which [`open`] opens an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read its attributes.
    Examine,
    /// To set its attributes.
    Change,
    /// To list a directory. While it is open, nobody can rename or remove it, nor a directory above it.
    Hold,
    /// To read a file.
    Read,
    /// To remove its name.
    Remove,
}

/// Opens an entry of any kind, without following it if it is a link.
///
/// # Errors
/// The error of the system.
pub fn open(path: &Path, access: Access) -> io::Result<File> {
    open_with(path, access, FILE_FLAG_OPEN_REPARSE_POINT)
}

/// Opens an entry of any kind; the target of a link.
///
/// # Errors
/// The error of the system.
pub fn open_following(path: &Path, access: Access) -> io::Result<File> {
    open_with(path, access, 0)
}

fn open_with(path: &Path, access: Access, flags: u32) -> io::Result<File> {
    const FILE_LIST_DIRECTORY: u32 = 1;
    const FILE_READ_DATA: u32 = 1;
    const SYNCHRONIZE: u32 = 1 << 20;
    let wanted = match access {
        Access::Examine => FILE_READ_ATTRIBUTES,
        Access::Change => FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES,
        Access::Hold => FILE_READ_ATTRIBUTES | FILE_LIST_DIRECTORY,
        Access::Read => FILE_READ_ATTRIBUTES | FILE_READ_DATA,
        Access::Remove => FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES | DELETE,
    };
    let share = match access {
        Access::Hold => FILE_SHARE_READ | FILE_SHARE_WRITE,
        _ => FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
    };
    std::fs::OpenOptions::new()
        .access_mode(wanted | SYNCHRONIZE)
        .share_mode(share)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | flags)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_file_have_one_identity() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, b"12345").unwrap();
        let one = info(&open(&a, Access::Examine).unwrap()).unwrap();
        assert_eq!((one.size, one.links, one.is_dir()), (5, 1, false));
        std::fs::hard_link(&a, &b).unwrap();
        let [a, b] = [a, b].map(|path| info(&open(&path, Access::Examine).unwrap()).unwrap());
        assert_eq!(a.identity, b.identity);
        assert_eq!((a.links, b.links), (2, 2));
        let named = listed_name(&open(&dir.path().join("a"), Access::Examine).unwrap());
        assert_eq!(named.unwrap(), "a");
        let own = info(&open(dir.path(), Access::Hold).unwrap()).unwrap();
        assert!(own.is_dir() && !own.is_reparse_point());
    }

    #[test]
    fn read_only_and_times_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create(&path).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_700);
        file.set_modified(time).unwrap();
        make_sparse(&file);
        file.set_len(1 << 20).unwrap();
        file.set_modified(time).unwrap();
        let mut permissions = file.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        file.set_permissions(permissions).unwrap();
        let found = info(&file).unwrap();
        assert!(found.is_read_only());
        assert_eq!(found.written.to_unix(), (1_000_000_000, 123_456_700));
        assert_eq!(found.size, 1 << 20);
    }
}
