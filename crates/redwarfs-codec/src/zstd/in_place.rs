//! Decoding a frame by steps into memory for all of its data, without an additional window.

#![allow(unsafe_code)]

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, WriteBuf};

use super::decoder_context::{decoder_error, stream_context};
use crate::{Error, Result};

/// The first bytes that the library requests: enough to detect that a frame follows.
const FRAME_START: usize = 5;

/// What a decoder in place holds (224 KiB): its state, and room for a block of the payload that the
/// library touches only if the block comes in parts.
pub(super) const IN_PLACE_STATE: u64 = 224 << 10;

/// The memory that a frame is decoded to.
struct Destination {
    start: *mut u8,
    size: usize,
    /// How many of the first bytes are decoded.
    written: usize,
}

// SAFETY: `start` is valid for reading and writing `size` bytes as long as the value exists, by the
// conditions of `InPlaceDecoder::step`, which makes it for one call. The slice has only written bytes,
// which no code changes meanwhile.
unsafe impl WriteBuf for Destination {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start, self.written) }
    }

    fn capacity(&self) -> usize {
        self.size
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    unsafe fn filled_until(&mut self, written: usize) {
        self.written = written;
    }
}

/// Decodes one frame. The library reads its output instead of keeping a copy.
pub(super) struct InPlaceDecoder {
    context: DCtx<'static>,
    /// How many bytes of the frame the next step takes.
    wanted: usize,
    /// How much of the frame has been taken, and how much data written.
    consumed: usize,
    written: usize,
}

impl InPlaceDecoder {
    pub(super) fn new() -> Result<Self> {
        let mut context = stream_context()?;
        context
            .set_parameter(DParameter::StableOutBuffer(true))
            .map_err(decoder_error)?;
        Ok(Self {
            context,
            wanted: FRAME_START,
            consumed: 0,
            written: 0,
        })
    }

    pub(super) fn consumed(&self) -> usize {
        self.consumed
    }

    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Whether the frame has been decoded and verified to its end.
    pub(super) fn has_ended(&self) -> bool {
        self.wanted == 0
    }

    /// Decodes the next piece of `frame`, about one block of it (128 KiB).
    ///
    /// # Safety
    /// * `start` is valid for reading and writing `size` bytes, and the same in all calls.
    /// * No code changes the first [`written`](Self::written) bytes between two calls. During a call,
    ///   no other code accesses the bytes after them.
    pub(super) unsafe fn step(&mut self, frame: &[u8], start: *mut u8, size: usize) -> Result<()> {
        let end = self.consumed.saturating_add(self.wanted);
        let known = frame
            .get(..end)
            .ok_or_else(|| Error::corrupt("zstd frame is incomplete"))?;
        let mut input = InBuffer::around(known);
        input.set_pos(self.consumed);
        let written = self.written;
        let mut destination = Destination {
            start,
            size,
            written,
        };
        let mut output = OutBuffer::around_pos(&mut destination, written);
        self.wanted = self
            .context
            .decompress_stream(&mut output, &mut input)
            .map_err(decoder_error)?;
        let progress = input.pos() > self.consumed || output.pos() > written;
        (self.consumed, self.written) = (input.pos(), output.pos());
        if progress || self.has_ended() {
            Ok(())
        } else {
            Err(Error::corrupt("zstd frame makes no progress"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of two kinds, so that a frame has compressed blocks and others.
    fn data() -> Vec<u8> {
        let mut bits = 1u32;
        let bytes = (0..1_000_000u32).map(|i| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (bits >> if i & 1 << 18 == 0 { 30 } else { 24 }) as u8
        });
        bytes.collect()
    }

    #[test]
    fn a_step_decodes_about_a_block_and_a_decoder_is_counted_in_full() {
        let raw = data();
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
        zstd_safe::compress(&mut frame, &raw, 3).unwrap();
        let mut out = vec![0; raw.len()];
        let mut decoder = InPlaceDecoder::new().unwrap();
        while !decoder.has_ended() {
            let before = decoder.written();
            // SAFETY: `out` is as long as all of the data and used for nothing else.
            unsafe { decoder.step(&frame, out.as_mut_ptr(), out.len()).unwrap() };
            assert!(decoder.written() - before <= 128 << 10);
        }
        assert!(out == raw && decoder.consumed() == frame.len());
        let (size, most) = (decoder.context.sizeof() as u64, IN_PLACE_STATE);
        assert!(size <= most && size > most / 2, "{size}");
    }
}
