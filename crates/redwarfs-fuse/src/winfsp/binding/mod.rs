//! The binding to WinFsp: the one place with unsafe code about it.
//!
//! WinFsp is under another licence than this crate, so nothing of it is linked or included. The
//! declarations (`abi.rs`) are written from its public reference, and the program loads the library when
//! it mounts (`library.rs`).

#![allow(unsafe_code)]

pub(super) mod abi;
mod callbacks;
#[cfg(test)]
pub(super) mod fake;
#[cfg(windows)]
pub(super) mod library;

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::winfsp::binding::abi::function;
use crate::winfsp::status::Status;
use crate::winfsp::volume::Volume;

/// The device of the driver that serves file systems on drives and directories.
const DEVICE: &str = "WinFsp.Disk";

/// The functions of WinFsp.
pub(super) struct Functions {
    create: function::Create,
    delete: function::Delete,
    set_mount_point: function::SetMountPoint,
    remove_mount_point: function::RemoveMountPoint,
    start_dispatcher: function::StartDispatcher,
    stop_dispatcher: function::StopDispatcher,
    add_dir_info: function::AddDirInfo,
    resolve_reparse_points: function::ResolveReparsePoints,
    /// Keeps the functions in memory.
    #[cfg(windows)]
    _library: Option<libloading::Library>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functions")
    }
}

/// What the callbacks need.
#[derive(Debug)]
struct CallbackContext {
    functions: Arc<Functions>,
    volume: Arc<Volume>,
    /// The system has ended the file system.
    ended: AtomicBool,
}

/// A file system of WinFsp. It ends when this goes.
#[derive(Debug)]
pub(super) struct Host {
    raw: NonNull<abi::FileSystem>,
    /// In `user_context` of `raw`.
    shared: Arc<CallbackContext>,
    serves: bool,
}

impl Host {
    /// Makes a file system, which is not mounted yet.
    ///
    /// # Errors
    /// WinFsp refuses; for example, its driver does not run.
    pub(super) fn new(functions: Arc<Functions>, volume: Arc<Volume>) -> Result<Self, Status> {
        let params = volume.params();
        let shared = Arc::new(CallbackContext {
            functions,
            volume,
            ended: AtomicBool::new(false),
        });
        let mut device = with_nul(DEVICE.encode_utf16());
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends with NUL; the parameters live during the call, which copies them; the
        // callbacks live as long as the program, and have the declared types.
        let status = unsafe {
            (shared.functions.create)(
                device.as_mut_ptr(),
                &raw const params,
                &raw const callbacks::INTERFACE,
                &raw mut raw,
            )
        };
        Status(status).check()?;
        let raw = NonNull::new(raw).ok_or(Status::INTERNAL_ERROR)?;
        // SAFETY: WinFsp made the object, whose first fields are declared, and gives this one to its
        // user. No request comes before the dispatcher starts. The shared data keeps its place in memory
        // until `drop` has deleted the object.
        unsafe {
            (*raw.as_ptr()).user_context = Arc::as_ptr(&shared).cast_mut().cast::<c_void>();
        }
        Ok(Self {
            raw,
            shared,
            serves: false,
        })
    }

    /// Mounts on a drive (`X:`), or on a directory that does not exist.
    ///
    /// # Errors
    /// WinFsp refuses.
    pub(super) fn mount_on(&mut self, point: &[u16]) -> Result<(), Status> {
        let mut point = with_nul(point.iter().copied());
        // SAFETY: the object lives until `drop`, and the text ends with NUL; the call copies it.
        let status = unsafe {
            (self.shared.functions.set_mount_point)(self.raw.as_ptr(), point.as_mut_ptr())
        };
        Status(status).check()
    }

    /// Starts to answer requests.
    ///
    /// # Errors
    /// WinFsp cannot start its threads.
    pub(super) fn start(&mut self) -> Result<(), Status> {
        // SAFETY: the object lives until `drop`. The callbacks use only what is shared, which lives
        // longer than the threads that the call starts. 0 lets WinFsp choose their number.
        let status = unsafe { (self.shared.functions.start_dispatcher)(self.raw.as_ptr(), 0) };
        Status(status).check()?;
        self.serves = true;
        Ok(())
    }

    /// Whether the system has ended the file system by itself, for example because WinFsp is removed.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let functions = &self.shared.functions;
        // SAFETY: the object was made by `new`, and is deleted only here. After `stop_dispatcher`, no
        // thread of WinFsp calls back.
        unsafe {
            (functions.remove_mount_point)(self.raw.as_ptr());
            if self.serves {
                (functions.stop_dispatcher)(self.raw.as_ptr());
            }
            (functions.delete)(self.raw.as_ptr());
        }
    }
}

/// The units and a final NUL.
fn with_nul(units: impl Iterator<Item = u16>) -> Vec<u16> {
    units.chain([0]).collect()
}
