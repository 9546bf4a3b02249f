//! The functions that WinFsp calls, from any of its threads and from several at once.
//!
//! Each one turns pointers into values, calls the volume, and stores the answer. The reference of WinFsp
//! says which pointers may be null: those that are checked here.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::Ordering;

use tracing::error;

use crate::winfsp::binding::CallbackContext;
use crate::winfsp::binding::abi::{
    Boolean, DIR_INFO_HEAD, DirInfo, FileInfo, FileSystem, Interface, MAX_NAME, NtStatus,
    VolumeInfo,
};
use crate::winfsp::status::Status;
use crate::winfsp::volume::Node;

type Fs = *mut FileSystem;
type Context = *mut c_void;
type Text = *mut u16;

/// All callbacks. WinFsp refuses what is not here.
pub(super) static INTERFACE: Interface = Interface {
    get_volume_info: Some(get_volume_info),
    set_volume_label: Some(set_volume_label),
    get_security_by_name: Some(get_security_by_name),
    create: Some(create),
    open: Some(open),
    overwrite: Some(overwrite),
    cleanup: None,
    close: Some(close),
    read: Some(read),
    write: Some(write),
    flush: Some(flush),
    get_file_info: Some(get_file_info),
    set_basic_info: Some(set_basic_info),
    set_file_size: Some(set_file_size),
    can_delete: Some(can_delete),
    rename: Some(rename),
    get_security: Some(get_security),
    set_security: Some(set_security),
    read_directory: Some(read_directory),
    resolve_reparse_points: Some(resolve_reparse_points),
    get_reparse_point: Some(get_reparse_point),
    set_reparse_point: Some(set_reparse_point),
    delete_reparse_point: Some(delete_reparse_point),
    get_stream_info: None,
    get_dir_info_by_name: None,
    control: None,
    set_delete: None,
    create_ex: None,
    overwrite_ex: None,
    get_ea: None,
    set_ea: None,
    obsolete0: None,
    dispatcher_stopped: Some(dispatcher_stopped),
    reserved: [None; 31],
};

/// Runs a callback. A panic must fail one request, and must not reach the frames of WinFsp.
///
/// # Safety
/// `fs` is a file system that [`super::Host::new`] has made and that is not deleted.
unsafe fn answer(
    fs: Fs,
    name: &str,
    run: impl FnOnce(&CallbackContext) -> Result<Status, Status>,
) -> NtStatus {
    // SAFETY: `Host::new` sets the field to the shared data, which outlives all callbacks.
    let shared = unsafe { &*(*fs).user_context.cast::<CallbackContext>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(shared)));
    let status = outcome.unwrap_or_else(|_| {
        error!("operation {name} failed by a panic");
        Err(Status::INTERNAL_ERROR)
    });
    let (Ok(status) | Err(status)) = status;
    status.0
}

/// The units before the final NUL.
///
/// # Safety
/// `text` is not null, ends with NUL, and neither changes nor goes during `'a`.
unsafe fn units<'a>(text: Text) -> &'a [u16] {
    let mut length = 0;
    // SAFETY: the caller promises a NUL, up to which all units are readable.
    unsafe {
        while *text.add(length) != 0 {
            length += 1;
        }
        slice::from_raw_parts(text, length)
    }
}

/// The node that [`open`] put into a context.
fn node(context: Context) -> Result<Node, Status> {
    Node::from_context(context as usize as u64).ok_or(Status::INVALID_HANDLE)
}

/// Copies `data` to a buffer whose size is in `size`, and stores the length there. Without a buffer,
/// only the length. `small` is the answer if the buffer is too small.
///
/// # Safety
/// `size` can be read and written, and `buffer` is null or has this size.
unsafe fn put(
    data: &[u8],
    buffer: *mut c_void,
    size: *mut usize,
    small: Status,
) -> Result<(), Status> {
    // SAFETY: see above; the ranges do not overlap, because `data` belongs to this crate.
    unsafe {
        let room = std::mem::replace(&mut *size, data.len());
        if buffer.is_null() {
            return Ok(());
        }
        if data.len() > room {
            return Err(small);
        }
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(data.as_ptr(), data.len());
    }
    Ok(())
}

unsafe extern "system" fn get_volume_info(fs: Fs, out: *mut VolumeInfo) -> NtStatus {
    // SAFETY: WinFsp passes the file system, and a structure for the answer.
    unsafe {
        answer(fs, "GetVolumeInfo", |shared| {
            out.write(shared.volume.info());
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn get_security_by_name(
    fs: Fs,
    path: Text,
    attributes: *mut u32,
    descriptor: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a text with a final NUL, and for each part of the answer
    // null or a place. `size` is the size of `descriptor`.
    unsafe {
        answer(fs, "GetSecurityByName", |shared| {
            let (found, security) = match shared.volume.security_by_name(units(path)) {
                Ok(found) => found,
                Err(Status::REPARSE) => {
                    // Index of the reparse point: from the start of the path.
                    if !attributes.is_null() {
                        attributes.write(0);
                    }
                    return Ok(Status::REPARSE);
                }
                Err(status) => return Err(status),
            };
            if !attributes.is_null() {
                attributes.write(found);
            }
            if !size.is_null() {
                put(&security, descriptor, size, Status::BUFFER_OVERFLOW)?;
            }
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn open(
    fs: Fs,
    path: Text,
    _options: u32,
    rights: u32,
    context: *mut Context,
    out: *mut FileInfo,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a text with a final NUL, and places for both parts of the
    // answer.
    unsafe {
        answer(fs, "Open", |shared| {
            let (node, info) = shared.volume.open(units(path), rights)?;
            context.write(node.to_context() as usize as Context);
            out.write(info);
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn close(fs: Fs, context: Context) {
    // SAFETY: WinFsp passes the file system.
    unsafe {
        answer(fs, "Close", |shared| {
            shared.volume.close(node(context)?);
            Ok(Status::SUCCESS)
        })
    };
}

unsafe extern "system" fn read(
    fs: Fs,
    context: Context,
    buffer: *mut c_void,
    offset: u64,
    length: u32,
    out: *mut u32,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a buffer of `length` bytes, all of them initialized (it
    // keeps the buffers of its threads), which nobody else uses during the call, and a place for
    // the number of bytes.
    unsafe {
        answer(fs, "Read", |shared| {
            out.write(0);
            let buffer = match length {
                0 => &mut [],
                _ => slice::from_raw_parts_mut(buffer.cast::<u8>(), length as usize),
            };
            let done = shared.volume.read(node(context)?, offset, buffer)?;
            out.write(u32::try_from(done).map_err(|_| Status::INTERNAL_ERROR)?);
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn flush(fs: Fs, context: Context, out: *mut FileInfo) -> NtStatus {
    // SAFETY: WinFsp passes the file system, and, for a file, a structure for the answer. Without a
    // context the request is for the volume.
    unsafe {
        answer(fs, "Flush", |shared| {
            if !context.is_null() && !out.is_null() {
                out.write(shared.volume.file_info(node(context)?)?);
            }
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn get_file_info(fs: Fs, context: Context, out: *mut FileInfo) -> NtStatus {
    // SAFETY: WinFsp passes the file system, and a structure for the answer.
    unsafe {
        answer(fs, "GetFileInfo", |shared| {
            out.write(shared.volume.file_info(node(context)?)?);
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn get_security(
    fs: Fs,
    context: Context,
    descriptor: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a buffer or null, and its size.
    unsafe {
        answer(fs, "GetSecurity", |shared| {
            let security = shared.volume.security(node(context)?)?;
            put(&security, descriptor, size, Status::BUFFER_OVERFLOW)?;
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn read_directory(
    fs: Fs,
    context: Context,
    _pattern: Text,
    marker: Text,
    buffer: *mut c_void,
    length: u32,
    done: *mut u32,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, null or a text with a final NUL, a buffer of `length` bytes,
    // and a place for the number of bytes. Its function `add_dir_info` gets them as they are,
    // and an entry of the size that is in it.
    unsafe {
        answer(fs, "ReadDirectory", |shared| {
            done.write(0);
            let marker = (!marker.is_null()).then(|| units(marker));
            let add = shared.functions.add_dir_info;
            let mut entry = DirInfo {
                size: 0,
                info: FileInfo::default(),
                padding: [0; 3],
                name: [0; MAX_NAME],
            };
            let complete = shared.volume.list(node(context)?, marker, |name, info| {
                let Some(place) = entry.name.get_mut(..name.len()) else {
                    return true;
                };
                place.copy_from_slice(name);
                // At most 104 + 2 * 255.
                entry.size = (DIR_INFO_HEAD + size_of_val(name)) as u16;
                entry.info = *info;
                add((&raw const entry).cast(), buffer, length, done) != 0
            })?;
            if complete {
                add(std::ptr::null(), buffer, length, done);
            }
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn resolve_reparse_points(
    fs: Fs,
    path: Text,
    index: u32,
    last: Boolean,
    status: *mut c_void,
    buffer: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, and the arguments for its own function, which calls
    // `get_reparse_point_by_name`.
    unsafe {
        answer(fs, "ResolveReparsePoints", |shared| {
            let resolve = shared.functions.resolve_reparse_points;
            let context = std::ptr::null_mut();
            let by_name = get_reparse_point_by_name;
            let done = resolve(
                fs, by_name, context, path, index, last, status, buffer, size,
            );
            Ok(Status(done))
        })
    }
}

unsafe extern "system" fn get_reparse_point_by_name(
    fs: Fs,
    _context: *mut c_void,
    path: Text,
    _is_directory: Boolean,
    buffer: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a text with a final NUL, and a buffer with its size, or two
    // null pointers if it only asks whether there is a reparse point.
    unsafe {
        answer(fs, "GetReparsePointByName", |shared| {
            let data = shared.volume.reparse_point_by_name(units(path))?;
            if !size.is_null() {
                put(&data, buffer, size, Status::BUFFER_TOO_SMALL)?;
            }
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn get_reparse_point(
    fs: Fs,
    context: Context,
    _path: Text,
    buffer: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: WinFsp passes the file system, a buffer, and its size.
    unsafe {
        answer(fs, "GetReparsePoint", |shared| {
            let data = shared.volume.reparse_point(node(context)?)?;
            put(&data, buffer, size, Status::BUFFER_TOO_SMALL)?;
            Ok(Status::SUCCESS)
        })
    }
}

unsafe extern "system" fn dispatcher_stopped(fs: Fs, normally: Boolean) {
    // SAFETY: WinFsp passes the file system.
    unsafe {
        answer(fs, "DispatcherStopped", |shared| {
            if normally == 0 {
                shared.ended.store(true, Ordering::Relaxed);
            }
            Ok(Status::SUCCESS)
        })
    };
}

/// Callbacks of requests that would change something. Windows refuses them itself for a read-only volume.
/// If one arrives, the answer is the same.
macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(unsafe extern "system" fn $name(_: Fs, $(_: $argument),*) -> NtStatus {
            Status::MEDIA_WRITE_PROTECTED.0
        })*
    };
}

refused! {
    set_volume_label(Text, *mut VolumeInfo);
    create(Text, u32, u32, u32, *mut c_void, u64, *mut Context, *mut FileInfo);
    overwrite(Context, u32, Boolean, u64, *mut FileInfo);
    write(Context, *mut c_void, u64, u32, Boolean, Boolean, *mut u32, *mut FileInfo);
    set_basic_info(Context, u32, u64, u64, u64, u64, *mut FileInfo);
    set_file_size(Context, u64, Boolean, *mut FileInfo);
    can_delete(Context, Text);
    rename(Context, Text, Text, Boolean);
    set_security(Context, u32, *mut c_void);
    set_reparse_point(Context, Text, *mut c_void, usize);
    delete_reparse_point(Context, Text, *mut c_void, usize);
}
