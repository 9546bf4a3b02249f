//! The C declarations of WinFsp that this crate uses, after its public reference (WinFsp API, `winfsp.h`).
//!
//! Field names are those of the reference in the spelling of Rust. Sizes and places of all fields are
//! checked when this is compiled.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// Result of a function of Windows' native interface: negative for errors.
pub(in crate::winfsp) type NtStatus = i32;
/// `BOOLEAN`.
pub(in crate::winfsp) type Boolean = u8;

/// Units of a volume's prefix, which only network file systems have.
const PREFIX: usize = 192;
/// Units of the name of a type of file systems, with the final NUL.
pub(in crate::winfsp) const TYPE_NAME: usize = 16;
/// Units of a label.
pub(in crate::winfsp) const LABEL: usize = 32;
/// Longest name in a directory, in units.
pub(in crate::winfsp) const MAX_NAME: usize = redwarfs_windows::name::MAX_UNITS;

/// Bits of [`VolumeParams::flags`].
pub(in crate::winfsp) mod flag {
    pub(in crate::winfsp) const CASE_SENSITIVE_SEARCH: u32 = 1 << 0;
    pub(in crate::winfsp) const CASE_PRESERVED_NAMES: u32 = 1 << 1;
    pub(in crate::winfsp) const UNICODE_ON_DISK: u32 = 1 << 2;
    /// Windows takes access lists from the file system, and obeys them.
    pub(in crate::winfsp) const PERSISTENT_ACLS: u32 = 1 << 3;
    pub(in crate::winfsp) const REPARSE_POINTS: u32 = 1 << 4;
    pub(in crate::winfsp) const READ_ONLY_VOLUME: u32 = 1 << 9;
    /// Files that were not changed need no `Cleanup`.
    pub(in crate::winfsp) const POST_CLEANUP_WHEN_MODIFIED_ONLY: u32 = 1 << 10;
    /// The context of a file belongs to one opening of it.
    pub(in crate::winfsp) const UM_FILE_CONTEXT_IS_USER_CONTEXT2: u32 = 1 << 16;
}

/// `FSP_FSCTL_VOLUME_PARAMS`: the parameters of a volume.
#[repr(C)]
#[derive(Debug, Clone)]
pub(in crate::winfsp) struct VolumeParams {
    /// Size of this structure.
    pub(in crate::winfsp) version: u16,
    pub(in crate::winfsp) sector_size: u16,
    pub(in crate::winfsp) sectors_per_allocation_unit: u16,
    pub(in crate::winfsp) max_component_length: u16,
    pub(in crate::winfsp) volume_creation_time: u64,
    pub(in crate::winfsp) volume_serial_number: u32,
    pub(in crate::winfsp) transact_timeout: u32,
    pub(in crate::winfsp) irp_timeout: u32,
    pub(in crate::winfsp) irp_capacity: u32,
    /// Milliseconds for which Windows keeps attributes; all bits set: for ever, and data, too.
    pub(in crate::winfsp) file_info_timeout: u32,
    /// A bit field in C, see [`flag`].
    pub(in crate::winfsp) flags: u32,
    pub(in crate::winfsp) prefix: [u16; PREFIX],
    pub(in crate::winfsp) file_system_name: [u16; TYPE_NAME],
    /// A bit field in C: which of the following times count. The others are as `file_info_timeout`.
    pub(in crate::winfsp) flags2: u32,
    pub(in crate::winfsp) volume_info_timeout: u32,
    pub(in crate::winfsp) dir_info_timeout: u32,
    pub(in crate::winfsp) security_timeout: u32,
    pub(in crate::winfsp) stream_info_timeout: u32,
    pub(in crate::winfsp) ea_timeout: u32,
    pub(in crate::winfsp) fsext_control_code: u32,
    pub(in crate::winfsp) reserved32: [u32; 1],
    pub(in crate::winfsp) reserved64: [u64; 2],
}

impl Default for VolumeParams {
    fn default() -> Self {
        Self {
            version: size_of::<Self>() as u16,
            sector_size: 0,
            sectors_per_allocation_unit: 0,
            max_component_length: 0,
            volume_creation_time: 0,
            volume_serial_number: 0,
            transact_timeout: 0,
            irp_timeout: 0,
            irp_capacity: 0,
            file_info_timeout: 0,
            flags: 0,
            prefix: [0; PREFIX],
            file_system_name: [0; TYPE_NAME],
            flags2: 0,
            volume_info_timeout: 0,
            dir_info_timeout: 0,
            security_timeout: 0,
            stream_info_timeout: 0,
            ea_timeout: 0,
            fsext_control_code: 0,
            reserved32: [0; 1],
            reserved64: [0; 2],
        }
    }
}

const _: () = {
    assert!(size_of::<VolumeParams>() == 504);
    assert!(offset_of!(VolumeParams, max_component_length) == 6);
    assert!(offset_of!(VolumeParams, volume_creation_time) == 8);
    assert!(offset_of!(VolumeParams, volume_serial_number) == 16);
    assert!(offset_of!(VolumeParams, file_info_timeout) == 32);
    assert!(offset_of!(VolumeParams, flags) == 36);
    assert!(offset_of!(VolumeParams, prefix) == 40);
    assert!(offset_of!(VolumeParams, file_system_name) == 424);
    assert!(offset_of!(VolumeParams, flags2) == 456);
    assert!(offset_of!(VolumeParams, volume_info_timeout) == 460);
    assert!(offset_of!(VolumeParams, fsext_control_code) == 480);
    assert!(offset_of!(VolumeParams, reserved64) == 488);
};

/// `FSP_FSCTL_VOLUME_INFO`: sizes and label of a volume.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::winfsp) struct VolumeInfo {
    /// In bytes.
    pub(in crate::winfsp) total_size: u64,
    pub(in crate::winfsp) free_size: u64,
    /// In bytes.
    pub(in crate::winfsp) label_length: u16,
    pub(in crate::winfsp) label: [u16; LABEL],
}

const _: () = {
    assert!(size_of::<VolumeInfo>() == 88);
    assert!(offset_of!(VolumeInfo, label_length) == 16);
    assert!(offset_of!(VolumeInfo, label) == 18);
};

/// `FSP_FSCTL_FILE_INFO`: attributes of an entry. Times are in units of 100 ns since 1601.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::winfsp) struct FileInfo {
    pub(in crate::winfsp) attributes: u32,
    pub(in crate::winfsp) reparse_tag: u32,
    pub(in crate::winfsp) allocation_size: u64,
    pub(in crate::winfsp) file_size: u64,
    pub(in crate::winfsp) creation_time: u64,
    pub(in crate::winfsp) last_access_time: u64,
    pub(in crate::winfsp) last_write_time: u64,
    pub(in crate::winfsp) change_time: u64,
    pub(in crate::winfsp) index_number: u64,
    /// Not used by WinFsp.
    pub(in crate::winfsp) hard_links: u32,
    pub(in crate::winfsp) ea_size: u32,
}

const _: () = {
    assert!(size_of::<FileInfo>() == 72);
    assert!(offset_of!(FileInfo, allocation_size) == 8);
    assert!(offset_of!(FileInfo, change_time) == 48);
    assert!(offset_of!(FileInfo, index_number) == 56);
    assert!(offset_of!(FileInfo, ea_size) == 68);
};

/// `FSP_FSCTL_DIR_INFO`, with room for the longest name after it.
#[repr(C)]
#[derive(Debug)]
pub(in crate::winfsp) struct DirInfo {
    /// Size of the head and of the name.
    pub(in crate::winfsp) size: u16,
    pub(in crate::winfsp) info: FileInfo,
    /// A union in C: place of the next entry, or padding.
    pub(in crate::winfsp) padding: [u64; 3],
    pub(in crate::winfsp) name: [u16; MAX_NAME],
}

/// Size of a [`DirInfo`] without its name.
pub(in crate::winfsp) const DIR_INFO_HEAD: usize = offset_of!(DirInfo, name);

const _: () = {
    assert!(offset_of!(DirInfo, info) == 8);
    assert!(offset_of!(DirInfo, padding) == 80);
    assert!(DIR_INFO_HEAD == 104);
};

/// The beginning of `FSP_FILE_SYSTEM`, whose rest belongs to WinFsp.
#[repr(C)]
#[derive(Debug)]
pub(in crate::winfsp) struct FileSystem {
    pub(in crate::winfsp) version: u16,
    /// For the user of WinFsp.
    pub(in crate::winfsp) user_context: *mut c_void,
}

const _: () = assert!(offset_of!(FileSystem, user_context) == size_of::<usize>());

type Fs = *mut FileSystem;
type Context = *mut c_void;
type Text = *mut u16;

/// A callback that this crate leaves out, or a reserved place.
pub(in crate::winfsp) type Absent = Option<unsafe extern "system" fn()>;

/// `FSP_FILE_SYSTEM_INTERFACE`: the callbacks, in the order of the reference's header.
#[repr(C)]
#[derive(Debug, Default)]
#[rustfmt::skip]
pub(in crate::winfsp) struct Interface {
    pub(in crate::winfsp) get_volume_info: Option<unsafe extern "system" fn(Fs, *mut VolumeInfo) -> NtStatus>,
    pub(in crate::winfsp) set_volume_label: Option<unsafe extern "system" fn(Fs, Text, *mut VolumeInfo) -> NtStatus>,
    pub(in crate::winfsp) get_security_by_name: Option<unsafe extern "system" fn(Fs, Text, *mut u32, *mut c_void, *mut usize) -> NtStatus>,
    pub(in crate::winfsp) create: Option<unsafe extern "system" fn(Fs, Text, u32, u32, u32, *mut c_void, u64, *mut Context, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) open: Option<unsafe extern "system" fn(Fs, Text, u32, u32, *mut Context, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) overwrite: Option<unsafe extern "system" fn(Fs, Context, u32, Boolean, u64, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) cleanup: Absent,
    pub(in crate::winfsp) close: Option<unsafe extern "system" fn(Fs, Context)>,
    pub(in crate::winfsp) read: Option<unsafe extern "system" fn(Fs, Context, *mut c_void, u64, u32, *mut u32) -> NtStatus>,
    pub(in crate::winfsp) write: Option<unsafe extern "system" fn(Fs, Context, *mut c_void, u64, u32, Boolean, Boolean, *mut u32, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) flush: Option<unsafe extern "system" fn(Fs, Context, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) get_file_info: Option<unsafe extern "system" fn(Fs, Context, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) set_basic_info: Option<unsafe extern "system" fn(Fs, Context, u32, u64, u64, u64, u64, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) set_file_size: Option<unsafe extern "system" fn(Fs, Context, u64, Boolean, *mut FileInfo) -> NtStatus>,
    pub(in crate::winfsp) can_delete: Option<unsafe extern "system" fn(Fs, Context, Text) -> NtStatus>,
    pub(in crate::winfsp) rename: Option<unsafe extern "system" fn(Fs, Context, Text, Text, Boolean) -> NtStatus>,
    pub(in crate::winfsp) get_security: Option<unsafe extern "system" fn(Fs, Context, *mut c_void, *mut usize) -> NtStatus>,
    pub(in crate::winfsp) set_security: Option<unsafe extern "system" fn(Fs, Context, u32, *mut c_void) -> NtStatus>,
    pub(in crate::winfsp) read_directory: Option<unsafe extern "system" fn(Fs, Context, Text, Text, *mut c_void, u32, *mut u32) -> NtStatus>,
    pub(in crate::winfsp) resolve_reparse_points: Option<unsafe extern "system" fn(Fs, Text, u32, Boolean, *mut c_void, *mut c_void, *mut usize) -> NtStatus>,
    pub(in crate::winfsp) get_reparse_point: Option<unsafe extern "system" fn(Fs, Context, Text, *mut c_void, *mut usize) -> NtStatus>,
    pub(in crate::winfsp) set_reparse_point: Option<unsafe extern "system" fn(Fs, Context, Text, *mut c_void, usize) -> NtStatus>,
    pub(in crate::winfsp) delete_reparse_point: Option<unsafe extern "system" fn(Fs, Context, Text, *mut c_void, usize) -> NtStatus>,
    pub(in crate::winfsp) get_stream_info: Absent,
    pub(in crate::winfsp) get_dir_info_by_name: Absent,
    pub(in crate::winfsp) control: Absent,
    pub(in crate::winfsp) set_delete: Absent,
    pub(in crate::winfsp) create_ex: Absent,
    pub(in crate::winfsp) overwrite_ex: Absent,
    pub(in crate::winfsp) get_ea: Absent,
    pub(in crate::winfsp) set_ea: Absent,
    pub(in crate::winfsp) obsolete0: Absent,
    pub(in crate::winfsp) dispatcher_stopped: Option<unsafe extern "system" fn(Fs, Boolean)>,
    pub(in crate::winfsp) reserved: [Absent; 31],
}

const _: () = {
    const PLACE: usize = size_of::<usize>();
    assert!(size_of::<Interface>() == 64 * PLACE);
    assert!(offset_of!(Interface, open) == 4 * PLACE);
    assert!(offset_of!(Interface, read) == 8 * PLACE);
    assert!(offset_of!(Interface, get_security) == 16 * PLACE);
    assert!(offset_of!(Interface, read_directory) == 18 * PLACE);
    assert!(offset_of!(Interface, get_reparse_point) == 20 * PLACE);
    assert!(offset_of!(Interface, get_dir_info_by_name) == 24 * PLACE);
    assert!(offset_of!(Interface, dispatcher_stopped) == 32 * PLACE);
};

/// The functions of the library.
#[rustfmt::skip]
pub(in crate::winfsp) mod function {
    use super::{Boolean, Fs, Interface, NtStatus, Text, VolumeParams};
    use std::ffi::c_void;

    pub(in crate::winfsp) type Create = unsafe extern "system" fn(Text, *const VolumeParams, *const Interface, *mut Fs) -> NtStatus;
    pub(in crate::winfsp) type Delete = unsafe extern "system" fn(Fs);
    pub(in crate::winfsp) type SetMountPoint = unsafe extern "system" fn(Fs, Text) -> NtStatus;
    pub(in crate::winfsp) type RemoveMountPoint = unsafe extern "system" fn(Fs);
    pub(in crate::winfsp) type StartDispatcher = unsafe extern "system" fn(Fs, u32) -> NtStatus;
    pub(in crate::winfsp) type StopDispatcher = unsafe extern "system" fn(Fs);
    /// Its first argument is a `FSP_FSCTL_DIR_INFO`, or null for the end of the directory.
    pub(in crate::winfsp) type AddDirInfo = unsafe extern "system" fn(*const c_void, *mut c_void, u32, *mut u32) -> Boolean;
    pub(in crate::winfsp) type GetReparsePointByName = unsafe extern "system" fn(Fs, *mut c_void, Text, Boolean, *mut c_void, *mut usize) -> NtStatus;
    pub(in crate::winfsp) type ResolveReparsePoints = unsafe extern "system" fn(Fs, GetReparsePointByName, *mut c_void, Text, u32, Boolean, *mut c_void, *mut c_void, *mut usize) -> NtStatus;
}
