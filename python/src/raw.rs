//! Memory, descriptors and threads of the interpreter, used while it runs other threads.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::BorrowedFd;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyOverflowError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Makes `bytes` objects of these lengths, and lets `fill` write into all of them while other threads
/// run.
///
/// # Errors
/// `MemoryError`, or the error of `fill`.
pub(crate) fn fill_many<'py, E: Send>(
    py: Python<'py>,
    lengths: &[usize],
    fill: impl FnOnce(Vec<&mut [u8]>) -> Result<(), E> + Send,
) -> PyResult<Result<Vec<Bound<'py, PyBytes>>, E>> {
    let mut objects: Vec<Bound<'py, PyBytes>> = Vec::with_capacity(lengths.len());
    let mut buffers: Vec<&mut [u8]> = Vec::with_capacity(lengths.len());
    for &len in lengths {
        let size = ffi::Py_ssize_t::try_from(len)
            .map_err(|_| PyOverflowError::new_err("more bytes than an object can hold"))?;
        // SAFETY: the call makes a new object, or returns null with an exception set, which
        // `from_owned_ptr_or_err` turns into an error. The object is a bytes object.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
            Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
        };
        if len > 0 {
            // SAFETY: the object has `len` bytes, and is new: nothing but `objects` refers to it
            // until this function returns, and `buffers` has ended by then. Each byte is written
            // before a reference to it exists.
            let buffer = unsafe {
                let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
                start.write_bytes(0, len);
                std::slice::from_raw_parts_mut(start, len)
            };
            buffers.push(buffer);
        } else {
            buffers.push(&mut []);
        }
        objects.push(object);
    }
    Ok(py.detach(|| fill(buffers)).map(|()| objects))
}

/// Lets `fill` write into a writable buffer of Python while other threads run.
///
/// # Errors
/// `BufferError` if the buffer is not writable or not contiguous.
pub(crate) fn fill_buffer<T: Send>(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [u8]) -> T + Send,
) -> PyResult<T> {
    let buffer = PyUntypedBuffer::get(buffer)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is not writable"));
    }
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(py.detach(|| fill(&mut [])));
    }
    // SAFETY: the exporter keeps `len` contiguous, writable bytes at this address until `buffer` is
    // released, which happens after `fill`. A program must not use the bytes from another thread
    // meanwhile; the same holds for `readinto` of the files of the interpreter.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), len) };
    let done = py.detach(|| fill(bytes));
    buffer.release(py);
    Ok(done)
}

/// A file of its own for an open descriptor of the program.
///
/// # Errors
/// `EBADF` if the descriptor is not open.
pub(crate) fn duplicate(descriptor: i32) -> std::io::Result<File> {
    if descriptor < 0 {
        return Err(std::io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is not -1, and is borrowed for one call of the system, which refuses
    // descriptors that are not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    descriptor.try_clone_to_owned().map(File::from)
}

/// Whether this is the first thread of the process. Only there, the interpreter handles signals.
pub(crate) fn is_main_thread() -> bool {
    // SAFETY: both calls take nothing, and cannot fail.
    let (thread, process) = unsafe { (libc::syscall(libc::SYS_gettid), libc::getpid()) };
    thread == libc::c_long::from(process)
}
