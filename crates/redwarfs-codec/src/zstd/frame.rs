//! A decoder for frames that are decoded to one place, see `decoder.c`.

use std::ffi::c_void;
use std::ptr::NonNull;

use zstd_safe::zstd_sys;

use super::decoder_error;
use crate::{Error, Result};

/// `ZSTD_DCtx` of the library as `decoder.c` compiles it, which is not that of the binding.
#[repr(C)]
struct State {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn redwarfs_zstd_create() -> *mut State;
    fn redwarfs_zstd_free(state: *mut State);
    #[cfg(test)]
    fn redwarfs_zstd_size(state: *const State) -> usize;
    #[cfg(test)]
    fn redwarfs_zstd_was_far(state: *const State) -> std::ffi::c_int;
    fn redwarfs_zstd_begin(state: *mut State) -> usize;
    fn redwarfs_zstd_wanted(state: *mut State) -> usize;
    fn redwarfs_zstd_step(
        state: *mut State,
        to: *mut c_void,
        room: usize,
        from: *const c_void,
        size: usize,
    ) -> usize;
}

/// Decodes frames, one after another, each to one place and front to back. What is no valid frame is
/// judged as by the library where it decodes by steps, with one exception: whether as much has come
/// as the frame announces is not looked at if its last block is empty.
pub(super) struct FrameDecoder(NonNull<State>);

// SAFETY: the state is owned, and the library ties it to no thread.
unsafe impl Send for FrameDecoder {}

impl Drop for FrameDecoder {
    fn drop(&mut self) {
        // SAFETY: it is a state that is used by nobody else and freed once.
        unsafe { redwarfs_zstd_free(self.0.as_ptr()) };
    }
}

/// A size that a function returned, or the error that it stands for.
fn check(code: usize) -> Result<usize> {
    // SAFETY: the function takes any number. Errors have the same numbers in both copies of the
    // library.
    if unsafe { zstd_sys::ZSTD_isError(code) } == 0 {
        Ok(code)
    } else {
        Err(decoder_error(code))
    }
}

impl FrameDecoder {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: the function has no preconditions.
        let state = unsafe { redwarfs_zstd_create() };
        NonNull::new(state)
            .map(Self)
            .ok_or_else(|| Error::Limit("no memory for a zstd decoder".into()))
    }

    /// Begins a frame. What was decoded before is forgotten.
    pub(super) fn begin(&mut self) -> Result<()> {
        // SAFETY: `self` is a state of the library.
        check(unsafe { redwarfs_zstd_begin(self.0.as_ptr()) }).map(|_| ())
    }

    /// How many bytes of the frame the next step takes; none once it has ended and been verified.
    /// No more than a block, 128 KiB.
    pub(super) fn wanted(&mut self) -> usize {
        // SAFETY: `self` is a state of the library.
        unsafe { redwarfs_zstd_wanted(self.0.as_ptr()) }
    }

    /// Takes the next [`wanted`](Self::wanted) bytes of the frame, and writes what they hold to
    /// `to`. Returns how many bytes that is. After an error the frame has to begin anew.
    ///
    /// # Safety
    /// * `to` is valid for writing `room` bytes. What is behind the bytes written has any contents
    ///   afterwards.
    /// * What the steps since [`begin`](Self::begin) have written lies right before `to`, still as
    ///   it was written, and can be read.
    pub(super) unsafe fn step(&mut self, to: *mut u8, room: usize, from: &[u8]) -> Result<usize> {
        let from_start = from.as_ptr().cast::<c_void>();
        let to = to.cast::<c_void>();
        // SAFETY: the input is valid for its length, the output by the conditions above. Matches
        // can refer only to what the library has written since the frame began.
        let code = unsafe { redwarfs_zstd_step(self.0.as_ptr(), to, room, from_start, from.len()) };
        check(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a frame of `raw`, and says what was found out about its matches.
    fn distance(raw: &[u8]) -> i32 {
        let frame = zstd_safe::compress_bound(raw.len());
        let mut frame = Vec::with_capacity(frame);
        zstd_safe::compress(&mut frame, raw, 3).unwrap();
        let mut decoder = FrameDecoder::new().unwrap();
        decoder.begin().unwrap();
        let mut out = vec![0; raw.len()];
        let (mut at, mut written) = (0, 0);
        while let part @ 1.. = decoder.wanted() {
            let (to, room) = (out[written..].as_mut_ptr(), out.len() - written);
            // SAFETY: `to` has room for `room` bytes and is where the step before has ended.
            written += unsafe { decoder.step(to, room, &frame[at..at + part]).unwrap() };
            at += part;
        }
        assert!((at, written) == (frame.len(), raw.len()) && out == raw);
        // SAFETY: it is a state of the library.
        unsafe { redwarfs_zstd_was_far(decoder.0.as_ptr()) }
    }

    #[test]
    fn far_matches_are_told_from_near_ones() {
        let mut bits = 1u64;
        let mut random = || {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            (bits >> 20) as usize
        };
        let mut far: Vec<u8> = (0..400_000).map(|_| random() as u8).collect();
        let mut near = far[..1000].to_vec();
        while far.len() < 900_000 {
            let (start, len) = (random() % 100_000, 5 + random() % 30);
            far.extend_from_within(start..start + len);
            far.push(random() as u8);
        }
        while near.len() < 900_000 {
            let (back, len) = (100 + random() % 900, 5 + random() % 30);
            let start = near.len() - back;
            near.extend_from_within(start..start + len);
            near.push(random() as u8);
        }
        let (far, near) = (distance(&far), distance(&near));
        if far == -1 {
            eprintln!("SKIPPED: the sources of zstd are not at hand");
            return;
        }
        assert_eq!((far, near), (1, 0));
    }

    #[test]
    fn a_decoder_takes_no_more_than_it_is_counted_with() {
        let decoder = FrameDecoder::new().unwrap();
        // SAFETY: it is a state of the library.
        let size = unsafe { redwarfs_zstd_size(decoder.0.as_ptr()) } as u64;
        assert!(
            size <= super::super::IN_PLACE_STATE && size > super::super::IN_PLACE_STATE / 2,
            "{size}"
        );
    }
}
