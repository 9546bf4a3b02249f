//! Decompressing payloads, at once or step by step.

#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use crate::codec::{Decode, Part};
use crate::codecs::decoding;
use crate::content::Content;
use crate::memory::{yields, zeroed};
use crate::{CompressionId, Error, Result};

/// The raw size that a payload announces, in bytes.
///
/// # Errors
///
/// [`Error::Unsupported`] for unknown ids and codecs that are not in this build; [`Error::Corrupt`]
/// if the payload does not carry a readable size.
pub fn raw_size(id: CompressionId, payload: &[u8]) -> Result<u64> {
    (decoding(id)?.raw_size)(payload)
}

impl Content {
    /// The content that a payload was made from, as far as it says so: FLAC and RICEPP payloads
    /// carry the parameters they were compressed with. [`Content::Bytes`] for all others.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] or [`Error::Unsupported`] if the parameters cannot be read.
    pub fn of_payload(id: CompressionId, payload: &[u8]) -> Result<Self> {
        decoding(id).map_or(Ok(Self::Bytes), |decoding| (decoding.content)(payload))
    }
}

/// Decompresses a whole payload by the fastest way there is.
///
/// # Errors
///
/// As [`Decoder::new`], [`Decoder::fill`] and [`Decoder::finish`].
pub fn decompress(id: CompressionId, payload: &[u8], limit: u64) -> Result<Vec<u8>> {
    let mut state = DecoderState::new(id, payload, limit)?;
    if id == CompressionId::NONE {
        return Ok(payload.to_vec());
    }
    // Fits: `DecoderState::new` has compared it with the address space.
    let mut out = zeroed(state.raw_size as usize)?;
    state.fill(payload, &mut out)?;
    state.finish(payload)?;
    Ok(out)
}

/// Whether a payload decodes to `raw`, found out without holding the data a second time.
pub(crate) fn decodes_to(id: CompressionId, payload: &[u8], raw: &[u8]) -> bool {
    let compare = || -> Result<bool> {
        let mut state = DecoderState::new(id, payload, raw.len() as u64)?;
        let same = yields(raw, |part| state.fill(payload, part))?;
        Ok(same && state.raw_size == raw.len() as u64 && state.finish(payload).is_ok())
    };
    compare().unwrap_or(false)
}

/// Decodes one payload front to back, in steps of the caller's choice.
///
/// The step that delivers the last byte also verifies the end of the stream. So damage at the end of a
/// payload is reported with the last byte.
pub struct Decoder {
    payload: Vec<u8>,
    state: DecoderState,
}

impl Decoder {
    /// Prepares to decode `payload`, checking its framing.
    ///
    /// `limit` is the largest raw size in bytes that is acceptable.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] if the announced size exceeds `limit`; otherwise
    /// as [`raw_size`].
    pub fn new(id: CompressionId, payload: impl Into<Vec<u8>>, limit: u64) -> Result<Self> {
        let payload = payload.into();
        let state = DecoderState::new(id, &payload, limit)?;
        Ok(Self { payload, state })
    }

    /// The announced size of the decoded data, in bytes.
    pub fn raw_size(&self) -> u64 {
        self.state.raw_size
    }

    /// How many bytes have been delivered.
    pub fn position(&self) -> u64 {
        self.state.position
    }

    /// Whether a small first step costs less than decoding everything.
    ///
    /// LZ4 blocks are decoded as a whole in the first step: one buffer of
    /// [`raw_size`](Self::raw_size) bytes is the cheap way, smaller steps work but
    /// hold the data a second time.
    pub fn is_incremental(&self) -> bool {
        self.state.stream.is_incremental()
    }

    /// Decodes the next `out.len()` bytes, exactly.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the payload is damaged, ends early, or makes no progress, or if the
    /// request exceeds its announced size. After an error every further call fails too, and the
    /// contents of `out` are of no use.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.state.fill(&self.payload, out)
    }

    /// In how many parts the data can be decoded at the same time: blocks of an `.xz` stream, as tables of
    /// metadata have; 1 for everything else.
    pub fn parts(&self) -> u64 {
        self.state.stream.parts()
    }

    /// Decodes everything at once, its [`parts`](Self::parts) by up to `threads` threads, of which the
    /// caller's is one, and verifies the end. Takes up to as much memory again as there is data, and 40
    /// bytes for each part. Memory for announced bytes that do not come is not touched.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill) and [`finish`](Self::finish); also [`Error::Corrupt`] if something has been
    /// decoded before, and [`Error::Limit`] if there is no memory.
    pub fn decode_by_parts(mut self, threads: NonZeroUsize) -> Result<Vec<u8>> {
        // Fits: `DecoderState::new` has compared it with the address space.
        let mut out = zeroed(self.raw_size() as usize)?;
        self.state.fill_by_parts(&self.payload, &mut out, threads)?;
        self.finish()?;
        Ok(out)
    }

    /// A decoder for each of the [`parts`](Self::parts) that have data, in order. Each has a copy of its own bytes of the
    /// payload. Of an `.xz` stream, what surrounds the parts is verified here, so that nothing is left to verify when all parts
    /// have been decoded.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the start of a part is damaged, or if something has been decoded before; [`Error::Limit`] if
    /// decoding a part would take too much memory.
    pub fn apart(self) -> Result<Vec<Self>> {
        if self.state.position != 0 {
            return Err(Error::corrupt("decoding has begun"));
        }
        let Some(parts) = self.state.stream.apart(&self.payload)? else {
            return Ok(vec![self]);
        };
        let id = self.state.id;
        let decoder = |part: Part| Self {
            payload: part.payload,
            state: DecoderState {
                id,
                raw_size: part.raw_size,
                position: 0,
                progress: Progress::Running,
                stream: part.stream,
            },
        };
        Ok(parts.into_iter().map(decoder).collect())
    }

    /// Like [`fill`](Self::fill), into memory for all of the data: `len` bytes from
    /// [`position`](Self::position) on. If possible, the decoder uses its output as window, and keeps
    /// none of its own. One payload is decoded either this way or by `fill`.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    ///
    /// # Safety
    ///
    /// * `start` is valid for reading and writing [`raw_size`](Self::raw_size) initialised bytes
    ///   as long as this decoder is used, and the same in all calls.
    /// * No other code writes to them. During a call, no other code reads the bytes from `position` on.
    ///   The bytes before it may be read at any time.
    /// * Bytes after `position` may be written already, so no other code writes there between two calls
    ///   either.
    pub unsafe fn fill_in_place(&mut self, start: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the same conditions.
        unsafe { self.state.fill_in_place(&self.payload, start, len) }
    }

    /// Decodes the first `len` bytes into `out`, like [`fill_in_place`](Self::fill_in_place), and
    /// returns the payload. `out` is as long as all of the data. Afterwards, the bytes of `out` after
    /// the first `len` have any contents. How the payload ends is verified only if `len` is
    /// [`raw_size`](Self::raw_size).
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill); also [`Error::Corrupt`] if `out` has another length, or if something
    /// has been decoded before.
    pub fn decode_start(mut self, out: &mut [u8], len: usize) -> Result<Vec<u8>> {
        self.state.check_whole(out.len())?;
        // SAFETY: `out` has `raw_size` initialised bytes and is borrowed exclusively until the
        // decoder, which makes no further step, is gone.
        unsafe { self.fill_in_place(out.as_mut_ptr(), len)? };
        Ok(self.into_payload())
    }

    /// Upper bound of the memory in bytes that decoding in place holds from step to step, in addition
    /// to the payload and the data.
    pub fn state_size(&self) -> u64 {
        let state = self.state.stream.state_in_place();
        state.unwrap_or(self.state.raw_size)
    }

    /// The first part of the payload that no further step looks at; empty if that is not known.
    /// Whatever becomes of its contents, it changes nothing.
    pub fn spent(&mut self) -> &mut [u8] {
        let end = self.state.stream.spent();
        self.payload.get_mut(..end).unwrap_or_default()
    }

    /// Gives the payload back.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// Verifies the end of the stream: checksums, and that no bytes follow where the format has no room
    /// for them. Call it after the last byte.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the end is not as it must be or not reached yet.
    pub fn finish(&mut self) -> Result<()> {
        self.state.finish(&self.payload)
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("id", &self.state.id)
            .field("payload_size", &self.payload.len())
            .field("raw_size", &self.state.raw_size)
            .field("position", &self.state.position)
            .field("progress", &self.state.progress)
            .finish()
    }
}

/// The state of a decoder without the payload, which is passed to every step.
struct DecoderState {
    id: CompressionId,
    raw_size: u64,
    position: u64,
    progress: Progress,
    stream: Box<dyn Decode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// The end has been verified.
    Finished,
    Failed,
}

impl DecoderState {
    fn new(id: CompressionId, payload: &[u8], limit: u64) -> Result<Self> {
        let decoding = decoding(id)?;
        let raw_size = (decoding.raw_size)(payload)?;
        if raw_size > limit {
            return Err(Error::Limit(format!(
                "{id} payload announces {raw_size} bytes, at most {limit} are allowed"
            )));
        }
        if isize::try_from(raw_size).is_err() {
            return Err(Error::Limit(format!(
                "{id} payload of {raw_size} bytes does not fit into memory"
            )));
        }
        Ok(Self {
            id,
            raw_size,
            position: 0,
            progress: Progress::Running,
            stream: (decoding.decoder)(payload, raw_size)?,
        })
    }

    fn fill(&mut self, payload: &[u8], out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        self.check_step(out.len())?;
        let whole = out.len() as u64 == self.raw_size;
        let step = self.stream.fill(payload, out, self.position, whole);
        self.stepped(payload, out.len(), step)
    }

    fn fill_by_parts(
        &mut self,
        payload: &[u8],
        out: &mut [u8],
        threads: NonZeroUsize,
    ) -> Result<()> {
        self.check_whole(out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        self.check_step(out.len())?;
        let step = self.stream.fill_by_parts(payload, out, threads);
        self.stepped(payload, out.len(), step)
    }

    /// Whether `len` is the whole size, and no byte was decoded yet.
    fn check_whole(&self, len: usize) -> Result<()> {
        if len as u64 != self.raw_size || self.position != 0 {
            return Err(Error::corrupt(format!(
                "{len} bytes of memory for a section with {}, decoded up to {}",
                self.raw_size, self.position
            )));
        }
        Ok(())
    }

    /// # Safety
    /// As [`Decoder::fill_in_place`].
    unsafe fn fill_in_place(&mut self, payload: &[u8], start: *mut u8, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.check_step(len)?;
        // Both fit: `DecoderState::new` has compared the raw size with the address space.
        let (at, size) = (self.position as usize, self.raw_size as usize);
        // SAFETY: the conditions are those of the caller. `at` is the `to` of the call before, and
        // `check_step` has found the bytes to be within the raw size.
        let step = unsafe {
            let stream = &mut self.stream;
            stream.fill_in_place(payload, start, size, at, at + len)
        };
        self.stepped(payload, len, step)
    }

    fn check_step(&self, len: usize) -> Result<()> {
        if self.progress == Progress::Failed {
            return Err(Error::corrupt("payload has already failed to decode"));
        }
        if len as u64 > self.raw_size - self.position {
            return Err(Error::corrupt(format!(
                "{len} bytes wanted at offset {} of a section with {} bytes",
                self.position, self.raw_size
            )));
        }
        Ok(())
    }

    /// Takes note of a step.
    fn stepped(&mut self, payload: &[u8], len: usize, step: Result<()>) -> Result<()> {
        match step {
            Ok(()) => self.position += len as u64,
            Err(error) => {
                self.progress = Progress::Failed;
                return Err(error);
            }
        }
        if self.position == self.raw_size {
            self.finish(payload)?;
        }
        Ok(())
    }

    fn finish(&mut self, payload: &[u8]) -> Result<()> {
        match self.progress {
            Progress::Finished => return Ok(()),
            Progress::Failed => return Err(Error::corrupt("payload has already failed to decode")),
            Progress::Running => {}
        }
        if self.position < self.raw_size {
            return Err(Error::corrupt(format!(
                "only {} of {} bytes have been decoded",
                self.position, self.raw_size
            )));
        }
        let end = self.stream.finish(payload);
        self.progress = if end.is_ok() {
            Progress::Finished
        } else {
            Progress::Failed
        };
        end
    }
}

const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<Decoder>();
    assert_send::<crate::Compressor>();
    const fn assert_share<T: Send + Sync>() {}
    assert_share::<crate::CodecSpec>();
};
