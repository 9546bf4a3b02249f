//! A coder of liblzma, and its errors.

#![allow(unsafe_code)]

use std::ptr;

use liblzma_sys as sys;

use crate::{Error, Result};

/// An `lzma_stream`: a coder of liblzma with its memory.
pub(super) struct Coder(pub(super) sys::lzma_stream);

// SAFETY: liblzma's single-threaded coders keep no thread-local state; the pointers
// inside are owned by the stream or replaced at each call.
unsafe impl Send for Coder {}

impl Coder {
    pub(super) fn new() -> Self {
        Self(sys::lzma_stream {
            next_in: ptr::null(),
            avail_in: 0,
            total_in: 0,
            next_out: ptr::null_mut(),
            avail_out: 0,
            total_out: 0,
            allocator: ptr::null(),
            internal: ptr::null_mut(),
            reserved_ptr1: ptr::null_mut(),
            reserved_ptr2: ptr::null_mut(),
            reserved_ptr3: ptr::null_mut(),
            reserved_ptr4: ptr::null_mut(),
            seek_pos: 0,
            reserved_int2: 0,
            reserved_int3: 0,
            reserved_int4: 0,
            reserved_enum1: 0,
            reserved_enum2: 0,
        })
    }

    /// Runs the coder once over `input` and `out`. Returns its verdict and how many
    /// bytes it consumed and produced.
    pub(super) fn run(
        &mut self,
        input: &[u8],
        out: &mut [u8],
        action: sys::lzma_action,
    ) -> (sys::lzma_ret, usize, usize) {
        self.0.next_in = input.as_ptr();
        self.0.avail_in = input.len();
        self.0.next_out = out.as_mut_ptr();
        self.0.avail_out = out.len();
        // SAFETY: the pointers and lengths describe the two slices, which live
        // through the call and are dropped from the stream after it.
        let verdict = unsafe { sys::lzma_code(&mut self.0, action) };
        let consumed = input.len() - self.0.avail_in;
        let produced = out.len() - self.0.avail_out;
        self.0.next_in = ptr::null();
        self.0.avail_in = 0;
        self.0.next_out = ptr::null_mut();
        self.0.avail_out = 0;
        (verdict, consumed, produced)
    }
}

impl Drop for Coder {
    fn drop(&mut self) {
        // SAFETY: the stream was zero-initialised and perhaps given to a coder's
        // initialiser; both are states that `lzma_end` takes.
        unsafe {
            sys::lzma_end(&mut self.0);
        }
    }
}

/// Error for a verdict other than success, from decoding.
pub(super) fn decoder_error(verdict: sys::lzma_ret) -> Error {
    match verdict {
        sys::LZMA_MEM_ERROR => Error::Limit("no memory for an LZMA decoder".into()),
        sys::LZMA_MEMLIMIT_ERROR => Error::Limit("LZMA decoder needs too much memory".into()),
        sys::LZMA_OPTIONS_ERROR => {
            Error::Unsupported("LZMA: filter or option of the stream".into())
        }
        sys::LZMA_BUF_ERROR => Error::corrupt("LZMA stream is incomplete"),
        _ => Error::corrupt("LZMA stream is damaged"),
    }
}

pub(super) fn check_decoder(verdict: sys::lzma_ret) -> Result<()> {
    if verdict == sys::LZMA_OK {
        Ok(())
    } else {
        Err(decoder_error(verdict))
    }
}

pub(super) fn encoder_error(verdict: sys::lzma_ret) -> Error {
    Error::Limit(match verdict {
        sys::LZMA_MEM_ERROR => "no memory for an LZMA encoder".into(),
        other => format!("LZMA encoder failed with code {other}"),
    })
}
