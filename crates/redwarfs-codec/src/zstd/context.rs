//! The compression context of the library, with the functions that its safe binding leaves out.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

use zstd_safe::zstd_sys::{self, ZSTD_CCtx, ZSTD_ResetDirective, ZSTD_Sequence, ZSTD_cParameter};

use crate::{Error, Result};

/// The oldest version of the library whose lists of sequences are known to stay within their memory
/// (1.5.7). The library of the system can be older: 1.5.4 corrupts the heap.
const LISTS_SEQUENCES: u32 = 1_05_07;

/// The shortest match that a frame can hold, in bytes.
const MIN_MATCH: u32 = 3;

/// A context for frames, one after another.
pub(super) struct Context(NonNull<ZSTD_CCtx>);

// SAFETY: the context is owned, and the library ties it to no thread.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is used by no other code, and freed once.
        unsafe { zstd_sys::ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

fn check(code: usize) -> Result<usize> {
    // SAFETY: the function takes any number.
    if unsafe { zstd_sys::ZSTD_isError(code) } == 0 {
        Ok(code)
    } else {
        let name = zstd_safe::get_error_name(code);
        Err(Error::Limit(format!("zstd encoder: {name}")))
    }
}

impl Context {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: the function has no preconditions.
        let context = unsafe { zstd_sys::ZSTD_createCCtx() };
        NonNull::new(context)
            .map(Self)
            .ok_or_else(|| Error::Limit("no memory for a zstd encoder".into()))
    }

    /// Puts these parameters into force, and takes all others back.
    pub(super) fn configure(&mut self, parameters: &[(ZSTD_cParameter, i32)]) -> Result<()> {
        // SAFETY: `self` is a context between two frames.
        unsafe {
            let directive = ZSTD_ResetDirective::ZSTD_reset_session_and_parameters;
            check(zstd_sys::ZSTD_CCtx_reset(self.0.as_ptr(), directive))?;
            for &(parameter, value) in parameters {
                let context = self.0.as_ptr();
                check(zstd_sys::ZSTD_CCtx_setParameter(context, parameter, value))?;
            }
        }
        Ok(())
    }

    /// Compresses a whole frame.
    pub(super) fn compress(&mut self, raw: &[u8]) -> Result<Vec<u8>> {
        let mut payload: Vec<u8> = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
        // SAFETY: both buffers are valid for the sizes given, and the library has initialised as
        // many bytes of the first one as it returns.
        unsafe {
            let size = check(zstd_sys::ZSTD_compress2(
                self.0.as_ptr(),
                payload.as_mut_ptr().cast::<c_void>(),
                payload.capacity(),
                raw.as_ptr().cast::<c_void>(),
                raw.len(),
            ))?;
            payload.set_len(size);
        }
        Ok(payload)
    }

    /// The sequences of matches and literals that [`compress`](Self::compress) would write, if
    /// they are no more than `most`. Every block of the frame ends with one without a match.
    ///
    /// The library warns that this function is for debugging, and sometimes fails. The caller must
    /// check the result. Afterwards it continues to collect into the same place, so the context must
    /// not be used again.
    pub(super) fn sequences(self, raw: &[u8], most: usize) -> Result<Vec<ZSTD_Sequence>> {
        if zstd_safe::version_number() < LISTS_SEQUENCES {
            return Err(Error::Unsupported("sequences of this zstd library".into()));
        }
        let mut sequences: Vec<ZSTD_Sequence> = Vec::new();
        sequences
            .try_reserve_exact(most)
            .map_err(|_| Error::Limit("no memory for sequences".into()))?;
        // SAFETY: both buffers are valid for the sizes given, and the context is not used again
        // once the first one may be gone. The library has initialised all members of as many
        // sequences as it returns but `rep`, which it leaves alone at the ends of blocks.
        #[allow(deprecated)]
        unsafe {
            let count = check(zstd_sys::ZSTD_generateSequences(
                self.0.as_ptr(),
                sequences.as_mut_ptr(),
                sequences.capacity(),
                raw.as_ptr().cast::<c_void>(),
                raw.len(),
            ))?;
            for sequence in &mut sequences.spare_capacity_mut()[..count] {
                (&raw mut (*sequence.as_mut_ptr()).rep).write(0);
            }
            sequences.set_len(count);
        }
        Ok(sequences)
    }

    /// Writes a frame of these sequences, which must be ones of `raw` and end with one without a
    /// match.
    ///
    /// What they describe may differ from `raw`: that is not looked at.
    pub(super) fn write(&mut self, raw: &[u8], sequences: &[ZSTD_Sequence]) -> Result<Vec<u8>> {
        if !fit(raw.len(), sequences) {
            return Err(Error::Limit("zstd encoder: unusable sequences".into()));
        }
        let mut payload: Vec<u8> = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
        // SAFETY: all buffers are valid for the given sizes. The sequences together are as long as
        // `raw`, none of them refers to data before it, and the last one ends a block. The library has
        // initialised as many bytes of the payload as it returns.
        unsafe {
            let size = check(zstd_sys::ZSTD_compressSequences(
                self.0.as_ptr(),
                payload.as_mut_ptr().cast::<c_void>(),
                payload.capacity(),
                sequences.as_ptr(),
                sequences.len(),
                raw.as_ptr().cast::<c_void>(),
                raw.len(),
            ))?;
            payload.set_len(size);
        }
        Ok(payload)
    }
}

#[cfg(test)]
impl Context {
    /// Bytes that the library holds.
    pub(super) fn size(&self) -> usize {
        // SAFETY: `self` is a context.
        unsafe { zstd_sys::ZSTD_sizeof_CCtx(self.0.as_ptr()) }
    }
}

/// The most that a frame is made of from sequences (2 GiB): the library adds in 32 bits.
const MOST: usize = 1 << 31;

/// Whether sequences cover exactly `size` bytes, with nothing from before them.
fn fit(size: usize, sequences: &[ZSTD_Sequence]) -> bool {
    if size > MOST {
        return false;
    }
    let mut position = 0usize;
    for sequence in sequences {
        position = position.saturating_add(sequence.litLength as usize);
        let good = if sequence.offset == 0 {
            sequence.matchLength == 0
        } else {
            sequence.matchLength >= MIN_MATCH && sequence.offset as usize <= position
        };
        if !good {
            return false;
        }
        position = position.saturating_add(sequence.matchLength as usize);
    }
    position == size && sequences.last().is_some_and(|last| last.offset == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(literals: u32, offset: u32, length: u32) -> ZSTD_Sequence {
        ZSTD_Sequence {
            offset,
            litLength: literals,
            matchLength: length,
            rep: 0,
        }
    }

    #[test]
    fn sequences_that_do_not_fit_are_refused() {
        let end = sequence(2, 0, 0);
        assert!(fit(12, &[sequence(5, 5, 5), end]));
        for (size, bad) in [
            (11, vec![sequence(5, 5, 5), end]),
            (13, vec![sequence(5, 5, 5), end]),
            (12, vec![sequence(5, 6, 5), end]),
            (12, vec![sequence(5, 0, 5), end]),
            (9, vec![sequence(5, 5, 2), end]),
            (10, vec![sequence(5, 5, 5)]),
            (0, vec![]),
        ] {
            assert!(!fit(size, &bad), "{bad:?} of {size}");
            assert!(
                Context::new()
                    .unwrap()
                    .write(&[0; 13][..size], &bad)
                    .is_err()
            );
        }
    }
}
