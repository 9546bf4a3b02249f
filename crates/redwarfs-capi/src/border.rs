//! Where pointers of C become references of Rust.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

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

/// A struct of the interface that begins with its size, and may get more members at its end.
///
/// # Safety
/// It is `repr(C)`, its first member is a `usize`, it ends without padding, and it has a valid value for
/// all bytes that a caller may pass, and for zeros.
pub(crate) unsafe trait Growing: Copy {
    /// Its size in the first version.
    const FIRST: usize;
}

/// The most that a caller's struct can have (4 KiB). A larger number is no size.
const LARGEST: usize = 4096;

/// A struct that begins with its size, as a caller of any version has it. Members that the caller does
/// not know are zero, and those that are unknown here must be.
///
/// # Safety
/// `start` is null, or points to a size of type `usize` and to as many bytes as it says, itself
/// included. None of them is uninitialized.
pub(crate) unsafe fn sized<T: Growing>(
    start: *const T,
    what: &'static str,
) -> Result<Option<T>, Failure> {
    if start.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; a struct of the caller begins with its size.
    let size = unsafe { start.cast::<usize>().read() };
    if !(T::FIRST..=LARGEST).contains(&size) {
        return Err(argument(what));
    }
    // SAFETY: the caller has this many bytes, and they have values.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(argument("a member of a struct is unknown and not 0"));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: these are at most as many bytes as the value has, and it is new. The type is valid for
    // bytes of the caller, and for zeros.
    Ok(Some(unsafe {
        ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast(), known.len());
        value.assume_init()
    }))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A struct that once had a member less, and later has one more.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    struct Now {
        size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: it begins with the size, and has integers only.
    unsafe impl Growing for Now {
        const FIRST: usize = 16;
    }

    fn read(size: usize, words: [usize; 4]) -> Option<Now> {
        let mut words = words;
        words[0] = size;
        // SAFETY: wrong sizes are refused before more is read, and the others lie within the words.
        unsafe { sized(words.as_ptr().cast::<Now>(), "size") }
            .map(Option::unwrap)
            .ok()
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_of_other_versions_are_read() {
        let older = read(16, [0, 7, 8, 9]).unwrap();
        assert_eq!((older.size, older.old, older.new), (16, 7, 0));
        let same = read(24, [0, 7, 8, 9]).unwrap();
        assert_eq!((same.old, same.new), (7, 8));
        let later = read(32, [0, 7, 8, 0]).unwrap();
        assert_eq!((later.old, later.new), (7, 8));
        assert!(read(32, [0, 7, 8, 9]).is_none());
        for size in [0, 8, 15, 4097, usize::MAX] {
            assert!(read(size, [0; 4]).is_none(), "{size}");
        }
        // SAFETY: null is allowed.
        let none = unsafe { sized(ptr::null::<Now>(), "size") };
        assert!(none.unwrap().is_none());
    }
}
