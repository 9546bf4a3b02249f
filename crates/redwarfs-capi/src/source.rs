//! Images that callbacks read.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use redwarfs::io::Source;

use crate::border::{Context, Growing};
use crate::error::{Failure, argument};

/// Functions that read an image from a medium of the caller.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Io {
    /// `sizeof(redwarfs_io)`.
    pub size: usize,
    /// Is passed to the functions.
    pub context: *mut c_void,
    /// Number of bytes of the medium.
    pub length: u64,
    /// Fills `buffer` with the `length` bytes at `offset`, and returns 0 or a number of `errno.h`. The
    /// library never asks for bytes beyond the end. Several threads may call this function at once.
    pub read_at: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            buffer: *mut c_void,
            length: usize,
        ) -> c_int,
    >,
    /// Is called once, when nothing reads the medium any longer. May be null.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

// SAFETY: it begins with the size, and has integers and pointers only, which may be null.
unsafe impl Growing for Io {
    const FIRST: usize = offset_of!(Self, release) + size_of::<usize>();
}

type ReadAt = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> c_int;

#[derive(Debug)]
struct Callbacks {
    context: Context,
    length: u64,
    read_at: ReadAt,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller gave the function for this context, and it is called once.
            unsafe { release(self.context.0) };
        }
    }
}

/// The source that callbacks read. From here on, `release` will be called.
pub(crate) fn callbacks(io: &Io) -> Result<Arc<dyn Source>, Failure> {
    let read_at = io.read_at.ok_or_else(|| argument("io->read_at is null"))?;
    Ok(Arc::new(Callbacks {
        context: Context(io.context),
        length: io.length,
        read_at,
        release: io.release,
    }))
}

impl Source for Callbacks {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the caller gave the function for this context, and says that threads may call it at
        // once. The buffer has as many bytes as it is told.
        let code =
            unsafe { (self.read_at)(self.context.0, offset, buf.as_mut_ptr().cast(), buf.len()) };
        match code {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// A file of its own for a descriptor of the caller.
pub(crate) fn duplicate(descriptor: c_int) -> Result<File, Failure> {
    if descriptor < 0 {
        return Err(argument("a negative descriptor"));
    }
    // SAFETY: not -1. It is borrowed for one call of the system, which refuses descriptors that are
    // not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(File::from(descriptor.try_clone_to_owned()?))
}
