//! Where pointers of C become references of Rust.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Code, Error, Failure, argument};

/// Runs the body of a function of the interface: turns failures into a code and an error object, and
/// panics into a failure.
pub(crate) fn run(
    error: Option<&mut *mut Error>,
    body: impl FnOnce() -> Result<(), Failure>,
) -> Code {
    // After a panic, the caller can only free objects. They hold no broken promises that matter then.
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Failure::internal(text.unwrap_or("a panic")))
    });
    match done {
        Ok(()) => Code::RedwarfsOk,
        Err(failure) => failure.report(error),
    }
}

/// Runs the body of a function without an error, which must not panic across the border.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// A path or text that a caller passes.
///
/// # Safety
/// `text` is null or points to bytes that end with NUL, and that nobody changes while the result lives.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    what: &'static str,
) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(argument(what));
    }
    // SAFETY: not null; the rest is promised by the caller.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path that a caller passes.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(
    path: *const c_char,
    what: &'static str,
) -> Result<&'a Path, Failure> {
    // SAFETY: promised by the caller.
    let bytes = unsafe { text(path, what) }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Bytes that a caller passes.
///
/// # Safety
/// If `len` is not 0, `start` is null or points to `len` bytes that nobody changes while the result
/// lives.
pub(crate) unsafe fn bytes<'a>(
    start: *const c_void,
    len: usize,
    what: &'static str,
) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() || isize::try_from(len).is_err() {
        return Err(argument(what));
    }
    // SAFETY: not null, and no longer than an object can be; the rest is promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) })
}

/// Memory of the caller that is to be filled.
///
/// # Safety
/// If `len` is not 0, `start` is null or points to `len` writable bytes that nobody else uses while
/// the result lives.
pub(crate) unsafe fn buffer<'a>(
    start: *mut c_void,
    len: usize,
    what: &'static str,
) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if start.is_null() || isize::try_from(len).is_err() {
        return Err(argument(what));
    }
    // SAFETY: not null, and no longer than an object can be; the rest is promised by the caller.
    // Memory of C has bytes of some value.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) })
}

/// A struct that begins with its size, as a caller of this or of a later version has it.
///
/// # Safety
/// `start` is null, or points to a size of type `usize` and to as many bytes as it says, itself
/// included. `T` begins with the size, and has a valid value for all bytes.
pub(crate) unsafe fn sized<T: Copy>(
    start: *const T,
    what: &'static str,
) -> Result<Option<T>, Failure> {
    if start.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; a struct of the caller begins with its size.
    let size = unsafe { start.cast::<usize>().read() };
    if size < size_of::<T>() {
        return Err(argument(what));
    }
    // SAFETY: the caller has at least this many bytes, of a type that any bytes are valid for.
    Ok(Some(unsafe { start.read() }))
}

/// Stores a result where the caller wants it.
pub(crate) fn put<T>(
    place: Option<&mut MaybeUninit<T>>,
    value: T,
    what: &'static str,
) -> Result<(), Failure> {
    let place = place.ok_or_else(|| argument(what))?;
    place.write(value);
    Ok(())
}

/// Context of callbacks, which moves to the threads that call them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is only handed back to the functions of its owner. The header says from which
// threads they are called, and that they must be prepared for that.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The pointer. A method, so that closures capture the whole context.
    pub(crate) fn pointer(self) -> *mut c_void {
        self.0
    }
}
