//! Decoding frames.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use zstd_safe::{DCtx, InBuffer, OutBuffer, zstd_sys};

use super::decoder_context::{
    WINDOW_LOG_MAX, WINDOW_TOO_LARGE, decoder_error, new_context, stream_context,
};
use super::in_place::{IN_PLACE_STATE, InPlaceDecoder};
use crate::codec::Decode;
use crate::{Error, Result};

const FRAME_MAGIC: u32 = 0xfd2f_b528;
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
const SKIPPABLE_MASK: u32 = 0xffff_fff0;

/// The content size of the first frame.
pub(super) fn raw_size(payload: &[u8]) -> Result<u64> {
    if magic(payload) != Some(FRAME_MAGIC) {
        return Err(Error::corrupt("zstd payload does not start with a frame"));
    }
    match zstd_safe::get_frame_content_size(payload) {
        Ok(Some(size)) => Ok(size),
        Ok(None) => Err(Error::corrupt("zstd frame without its content size")),
        Err(_) => Err(Error::corrupt("zstd frame header is damaged")),
    }
}

fn magic(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

thread_local! {
    /// One decoder per thread for decoding whole frames, which needs no state that
    /// outlives the call.
    static WHOLE: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Decodes a whole frame into `out`, which must be filled exactly.
fn decode_frame(frame: &[u8], out: &mut [u8]) -> Result<()> {
    let produced = WHOLE.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => decoder,
            None => slot.insert(new_context()?),
        };
        decoder.decompress(out, frame).map_err(decoder_error)
    })?;
    if produced != out.len() {
        return Err(Error::corrupt(format!(
            "zstd frame holds {produced} bytes, {} were announced",
            out.len()
        )));
    }
    Ok(())
}

/// Decodes one frame, by steps or at once.
///
/// Memory: a step-wise decoder holds a window of at most the content size, and a few hundred KiB. A
/// decoder that decodes at once or in place needs no window.
pub(super) struct ZstdDecoder {
    /// Length of the frame in the payload. The bytes after it hold no data.
    frame: usize,
    /// How much of the frame the step-wise decoder has consumed.
    consumed: usize,
    context: Option<DCtx<'static>>,
    /// The step-wise decoder in place, and how much it has written.
    in_place: Option<InPlaceDecoder>,
    written: usize,
    /// The frame has been decoded and verified to its end.
    ended: bool,
}

impl ZstdDecoder {
    pub(super) fn new(payload: &[u8]) -> Result<Self> {
        let frame = frame_length(payload)?;
        check_window(payload)?;
        check_tail(payload.get(frame..).unwrap_or_default())?;
        Ok(Self {
            frame,
            consumed: 0,
            context: None,
            in_place: None,
            written: 0,
            ended: false,
        })
    }

    /// One call of the library. Returns how many bytes it produced; none only if
    /// the frame has ended or input has been consumed.
    fn step(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize> {
        let context = match &mut self.context {
            Some(context) => context,
            None => self.context.insert(stream_context()?),
        };
        let mut input = InBuffer::around(&payload[..self.frame]);
        input.set_pos(self.consumed);
        let mut output = OutBuffer::around(out);
        let more = context
            .decompress_stream(&mut output, &mut input)
            .map_err(decoder_error)?;
        let produced = output.pos();
        let consumed = input.pos();
        let progress = produced > 0 || consumed > self.consumed;
        self.consumed = consumed;
        if more == 0 {
            self.ended = true;
            self.context = None;
        } else if !progress {
            return Err(Error::corrupt("zstd frame is incomplete"));
        }
        Ok(produced)
    }
}

impl Decode for ZstdDecoder {
    fn fill(&mut self, payload: &[u8], out: &mut [u8], _done: u64, whole: bool) -> Result<()> {
        if whole {
            decode_frame(&payload[..self.frame], out)?;
            self.ended = true;
            return Ok(());
        }
        let mut filled = 0;
        if self.written > 0 {
            return Err(Error::corrupt("a zstd frame is decoded to two places"));
        }
        while filled < out.len() {
            if self.ended {
                return Err(Error::corrupt("zstd frame ends early"));
            }
            filled += self.step(payload, &mut out[filled..])?;
        }
        Ok(())
    }

    /// Without a window in addition to the data. The end of the frame is also verified when `to` is
    /// `size`.
    unsafe fn fill_in_place(
        &mut self,
        payload: &[u8],
        start: *mut u8,
        size: usize,
        from: usize,
        to: usize,
    ) -> Result<()> {
        if to - from == size {
            // SAFETY: the bytes are valid, and no other code accesses them.
            let out = unsafe { std::slice::from_raw_parts_mut(start, size) };
            return self.fill(payload, out, 0, true);
        }
        while !self.ended && (self.written < to || to == size) {
            let decoder = match &mut self.in_place {
                Some(decoder) => decoder,
                None => self.in_place.insert(InPlaceDecoder::new()?),
            };
            // SAFETY: `start` is valid for `size` bytes in all calls. No other code writes to the first
            // bytes, and no other code accesses the bytes that are not written yet.
            unsafe { decoder.step(&payload[..self.frame], start, size)? };
            (self.consumed, self.written) = (decoder.consumed(), decoder.written());
            if decoder.has_ended() {
                self.ended = true;
                self.in_place = None;
            }
        }
        if self.written < to {
            return Err(Error::corrupt("zstd frame ends early"));
        }
        Ok(())
    }

    fn finish(&mut self, payload: &[u8]) -> Result<()> {
        let mut surplus = [0];
        while !self.ended {
            if self.step(payload, &mut surplus)? > 0 {
                return Err(Error::corrupt("zstd frame holds more than it announces"));
            }
        }
        Ok(())
    }

    fn state_in_place(&self) -> Option<u64> {
        Some(IN_PLACE_STATE)
    }

    fn spent(&self) -> usize {
        self.consumed
    }
}

fn frame_length(payload: &[u8]) -> Result<usize> {
    match zstd_safe::find_frame_compressed_size(payload) {
        Ok(length) if length <= payload.len() => Ok(length),
        Ok(_) => Err(Error::corrupt("zstd frame is cut off")),
        Err(code) => Err(decoder_error(code)),
    }
}

/// Refuses windows that only some ways of decoding could handle.
fn check_window(payload: &[u8]) -> Result<()> {
    let mut header = MaybeUninit::<zstd_sys::ZSTD_FrameHeader>::zeroed();
    // SAFETY: the header is for the library to fill, and the payload is valid for its length. All
    // members are integers but the kind of the frame, of which zero is one.
    let (code, window) = unsafe {
        let (start, len) = (payload.as_ptr().cast::<c_void>(), payload.len());
        let code = zstd_sys::ZSTD_getFrameHeader(header.as_mut_ptr(), start, len);
        (code, header.assume_init().windowSize)
    };
    if code == WINDOW_TOO_LARGE {
        return Err(Error::Unsupported(
            "a zstd window that this processor cannot address".into(),
        ));
    }
    if code != 0 {
        return Err(Error::corrupt("zstd frame header is damaged"));
    }
    if window > 1 << WINDOW_LOG_MAX {
        return Err(Error::Unsupported(format!(
            "a zstd window of {window} bytes"
        )));
    }
    Ok(())
}

/// Accepts what may follow the frame: skippable frames and frames without data.
fn check_tail(mut tail: &[u8]) -> Result<()> {
    while !tail.is_empty() {
        let length = match magic(tail) {
            Some(magic) if magic & SKIPPABLE_MASK == SKIPPABLE_MAGIC => frame_length(tail)?,
            Some(FRAME_MAGIC) => {
                let length = frame_length(tail)?;
                if matches!(zstd_safe::get_frame_content_size(tail), Ok(Some(1..))) {
                    return Err(Error::corrupt("data follows the zstd frame"));
                }
                decode_frame(&tail[..length], &mut [])?;
                length
            }
            _ => return Err(Error::corrupt("bytes follow the zstd frame")),
        };
        tail = match tail.get(length..) {
            Some(rest) if length > 0 => rest,
            _ => return Err(Error::corrupt("bytes follow the zstd frame")),
        };
    }
    Ok(())
}
