//! The binding to libFLAC.
//!
//! Callbacks get a pointer to a structure of ours that outlives the coder. They cannot panic:
//! they index nothing unchecked, and ask for memory only by means that can fail.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use libflac_sys as sys;

use super::framing::Framing;
use super::pcm;
use crate::codec::{Decode, Encode, Encoding, Settings};
use crate::content::{Content, ContentKind, PcmFormat};
use crate::grammar::{Kind, flag, option};
use crate::{CompressionId, Error, Result, varint};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "flac",
    options: &[
        option("level", Kind::Int(0..=8), Some(5), "compression level"),
        flag("exhaustive", "try every model"),
    ],
    id: CompressionId::FLAC,
    takes: ContentKind::Pcm,
    settings: |values| {
        Ok(Arc::new(FlacOptions {
            level: values.unsigned("level").unwrap_or_default(),
            exhaustive: values.flag("exhaustive"),
        }))
    },
};

/// Settings of the encoder.
#[derive(Debug, Clone, Copy)]
struct FlacOptions {
    /// 0..=8
    level: u32,
    /// Try every model instead of estimating which is best.
    exhaustive: bool,
}

impl Settings for FlacOptions {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(FlacEncoder::new(*self))
    }

    /// The payload, and what libFLAC keeps for one of its blocks: eight channels of 4096 samples
    /// in a dozen arrays of up to eight bytes a sample.
    fn memory(&self, raw_size: usize) -> u64 {
        const LIBRARY: u64 = 4 << 20;
        LIBRARY + raw_size as u64
    }
}

const MARKER: [u8; 4] = *b"fLaC";
/// Length of the marker and of a metadata block's header.
const MARKER_LEN: usize = 4;
const BLOCK_HEADER_LEN: usize = 4;
/// Type of the metadata block that describes the samples, and its length.
const STREAMINFO: u8 = 0;
const STREAMINFO_LEN: usize = 34;
/// Type that no metadata block can have.
const INVALID_BLOCK: u8 = 0x7f;
/// Set in the type of the last metadata block.
const LAST_BLOCK: u8 = 0x80;
/// Length of marker and STREAMINFO.
const HEAD_LEN: usize = MARKER_LEN + BLOCK_HEADER_LEN + STREAMINFO_LEN;
/// The sample rate that streams carry. It means nothing, as the data's own is not known.
const SAMPLE_RATE: u32 = 48_000;
/// Frames that are converted before the library gets them.
const FRAMES_PER_CALL: usize = 4096;

const TRUE: sys::FLAC__bool = 1;

pub(crate) fn library_version() -> String {
    // SAFETY: a pointer that is set when the library is built and never again, to a
    // zero-terminated string.
    let version = unsafe { CStr::from_ptr(sys::FLAC__VERSION_STRING) };
    format!("libFLAC-{}", version.to_string_lossy())
}

/// Marker and STREAMINFO of a stream as if no other metadata followed, and where in `stream` the
/// audio frames start.
fn read_metadata(stream: &[u8]) -> Result<([u8; HEAD_LEN], usize)> {
    let damaged = || Error::corrupt("FLAC stream has damaged metadata");
    if !stream.starts_with(&MARKER) {
        return Err(Error::corrupt("FLAC payload does not hold a FLAC stream"));
    }
    let mut head: [u8; HEAD_LEN] = *stream.first_chunk().ok_or_else(damaged)?;
    let mut position = MARKER_LEN;
    loop {
        let rest = stream.get(position..).ok_or_else(damaged)?;
        let [kind, length @ ..] = *rest.first_chunk::<BLOCK_HEADER_LEN>().ok_or_else(damaged)?;
        let length = length
            .iter()
            .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
        let is_info = kind & !LAST_BLOCK == STREAMINFO;
        let is_first = position == MARKER_LEN;
        if is_info != is_first
            || is_info && length != STREAMINFO_LEN
            || kind & !LAST_BLOCK == INVALID_BLOCK
        {
            return Err(damaged());
        }
        // Both summands are far below the limits of the type.
        position += BLOCK_HEADER_LEN + length;
        if kind & LAST_BLOCK != 0 {
            break;
        }
    }
    if position > stream.len() {
        return Err(damaged());
    }
    head[MARKER_LEN] |= LAST_BLOCK;
    Ok((head, position))
}

/// Why a decoder stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    Damaged,
    OtherLayout,
    TooLong,
    NoMemory,
}

impl Problem {
    fn error(self) -> Error {
        match self {
            Self::Damaged => Error::corrupt("FLAC stream is damaged"),
            Self::OtherLayout => {
                Error::corrupt("FLAC stream has other channels or bits than its block announces")
            }
            Self::TooLong => Error::corrupt("FLAC stream holds more than its block announces"),
            Self::NoMemory => Error::Limit("no memory for a FLAC decoder".into()),
        }
    }
}

/// The data for the callbacks of a decoder.
struct Source {
    format: PcmFormat,
    head: [u8; HEAD_LEN],
    /// Bytes of `head` that the library has.
    head_read: usize,
    /// The payload, during a call of the library only.
    payload: *const [u8],
    /// Where the next byte is in the payload.
    position: usize,
    /// Bytes of data that frames have not brought yet.
    left: u64,
    /// Data of the last frame.
    frame: Vec<u8>,
    /// Bytes of it that have been delivered.
    delivered: usize,
    problem: Option<Problem>,
}

impl Source {
    /// The bytes that the library gets next.
    ///
    /// # Safety
    ///
    /// `self.payload` must point to bytes that live as long as the result.
    unsafe fn input<'a>(&'a self) -> &'a [u8] {
        match self.head.get(self.head_read..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => {
                // SAFETY: the caller's promise.
                let payload: &'a [u8] = unsafe { &*self.payload };
                payload.get(self.position..).unwrap_or_default()
            }
        }
    }

    fn advance(&mut self, count: usize) {
        if self.head_read < HEAD_LEN {
            self.head_read += count;
        } else {
            self.position += count;
        }
    }

    /// Takes the samples of a frame, one slice for each channel.
    fn take_frame<'a>(
        &mut self,
        samples_of: impl Fn(usize) -> &'a [i32],
        frames: usize,
    ) -> Option<Problem> {
        // 65535 samples in eight channels of four bytes at most.
        let size = frames * self.format.frame_bytes();
        if size as u64 > self.left {
            return Some(Problem::TooLong);
        }
        let missing = size.saturating_sub(self.frame.len());
        if self.frame.try_reserve(missing).is_err() {
            return Some(Problem::NoMemory);
        }
        self.frame.resize(size, 0);
        for channel in 0..usize::from(self.format.channels) {
            pcm::store(&self.format, channel, samples_of(channel), &mut self.frame);
        }
        self.left -= size as u64;
        self.delivered = 0;
        None
    }
}

unsafe extern "C" fn on_read(
    _decoder: *const sys::FLAC__StreamDecoder,
    buffer: *mut sys::FLAC__byte,
    bytes: *mut usize,
    client: *mut c_void,
) -> sys::FLAC__StreamDecoderReadStatus {
    // SAFETY: the library passes the pointer it was given, to a `Source` that outlives it and
    // that nothing else refers to during a call of the library.
    let source = unsafe { &mut *client.cast::<Source>() };
    // SAFETY: `bytes` is valid, and holds the size of `buffer` on entry. The input does not overlap the
    // library's buffer, and at most `room` bytes are copied. The payload lives through the call of the
    // library, see `FlacDecoder::step`.
    unsafe {
        let room = mem::take(&mut *bytes);
        if source.problem.is_some() {
            return sys::FLAC__STREAM_DECODER_READ_STATUS_ABORT;
        }
        let input = source.input();
        let count = room.min(input.len());
        if count == 0 {
            return sys::FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM;
        }
        ptr::copy_nonoverlapping(input.as_ptr(), buffer, count);
        *bytes = count;
        source.advance(count);
    }
    sys::FLAC__STREAM_DECODER_READ_STATUS_CONTINUE
}

unsafe extern "C" fn on_frame(
    _decoder: *const sys::FLAC__StreamDecoder,
    frame: *const sys::FLAC__Frame,
    buffer: *const *const sys::FLAC__int32,
    client: *mut c_void,
) -> sys::FLAC__StreamDecoderWriteStatus {
    // SAFETY: as in `on_read`.
    let source = unsafe { &mut *client.cast::<Source>() };
    // SAFETY: the library passes a valid frame.
    let header = unsafe { &(*frame).header };
    let format = &source.format;
    if source.problem.is_none() {
        source.problem = if header.channels != u32::from(format.channels)
            || header.bits_per_sample != u32::from(format.bits)
        {
            Some(Problem::OtherLayout)
        } else if source.delivered < source.frame.len() {
            // More than one frame at a time: the library fills a gap with silence.
            Some(Problem::Damaged)
        } else {
            let frames = header.blocksize as usize;
            // SAFETY: `buffer` has a pointer for each channel of the frame, which are as many as
            // the format has, to as many samples as the frame's block size says.
            let samples_of =
                |channel| unsafe { slice::from_raw_parts(*buffer.add(channel), frames) };
            source.take_frame(samples_of, frames)
        };
    }
    if source.problem.is_some() {
        sys::FLAC__STREAM_DECODER_WRITE_STATUS_ABORT
    } else {
        sys::FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE
    }
}

unsafe extern "C" fn on_error(
    _decoder: *const sys::FLAC__StreamDecoder,
    _status: sys::FLAC__StreamDecoderErrorStatus,
    client: *mut c_void,
) {
    // SAFETY: as in `on_read`.
    let source = unsafe { &mut *client.cast::<Source>() };
    source.problem.get_or_insert(Problem::Damaged);
}

/// Decodes one stream, frame by frame.
///
/// Memory: the library's and our buffers for one frame, at most 8 MiB for 65535 samples of eight
/// channels, and never ours for more than the announced size.
pub(super) struct FlacDecoder {
    decoder: NonNull<sys::FLAC__StreamDecoder>,
    /// From a box; the library keeps a copy of the pointer.
    source: NonNull<Source>,
}

// SAFETY: the library keeps no state outside of the decoder, which is owned and used by one
// thread at a time, as is the source.
unsafe impl Send for FlacDecoder {}

impl FlacDecoder {
    pub(super) fn new(payload: &[u8]) -> Result<Self> {
        let framing = Framing::parse(payload)?;
        let stream = payload.get(framing.stream..).unwrap_or_default();
        let (head, frames) = read_metadata(stream)?;
        let source = Box::new(Source {
            format: framing.format,
            head,
            head_read: 0,
            payload: &[],
            position: framing.stream + frames,
            left: framing.raw_size,
            frame: Vec::new(),
            delivered: 0,
            problem: None,
        });
        // SAFETY: takes nothing, returns null or a new decoder.
        let decoder = NonNull::new(unsafe { sys::FLAC__stream_decoder_new() })
            .ok_or_else(|| Problem::NoMemory.error())?;
        let this = Self {
            decoder,
            source: NonNull::from(Box::leak(source)),
        };
        // SAFETY: the decoder is new, the callbacks have the registered types, and the source outlives
        // the decoder, see `drop`.
        let status = unsafe {
            sys::FLAC__stream_decoder_init_stream(
                this.decoder.as_ptr(),
                Some(on_read),
                None,
                None,
                None,
                None,
                Some(on_frame),
                None,
                Some(on_error),
                this.source.as_ptr().cast(),
            )
        };
        match status {
            sys::FLAC__STREAM_DECODER_INIT_STATUS_OK => Ok(this),
            _ => Err(Problem::NoMemory.error()),
        }
    }

    /// Decodes one frame. All of the last one must have been delivered.
    fn step(&mut self, payload: &[u8]) -> Result<()> {
        let (decoder, source) = (self.decoder.as_ptr(), self.source.as_ptr());
        // SAFETY: no reference to the source exists while the library runs; the payload is set
        // for just this time. The first call reads the metadata block that `head` holds.
        let (going, state) = unsafe {
            (*source).payload = payload;
            let in_head = (*source).head_read < HEAD_LEN;
            let going = (!in_head
                || sys::FLAC__stream_decoder_process_until_end_of_metadata(decoder) != 0)
                && sys::FLAC__stream_decoder_process_single(decoder) != 0;
            (*source).payload = &[];
            (going, sys::FLAC__stream_decoder_get_state(decoder))
        };
        // SAFETY: the library has returned, so this is the only reference.
        let source = unsafe { self.source.as_ref() };
        if let Some(problem) = source.problem {
            return Err(problem.error());
        }
        match state {
            sys::FLAC__STREAM_DECODER_MEMORY_ALLOCATION_ERROR => Err(Problem::NoMemory.error()),
            _ if source.delivered < source.frame.len() => Ok(()),
            sys::FLAC__STREAM_DECODER_END_OF_STREAM => {
                Err(Error::corrupt("FLAC stream ends early"))
            }
            _ if going => Err(Error::corrupt("FLAC stream makes no progress")),
            _ => Err(Problem::Damaged.error()),
        }
    }
}

impl Decode for FlacDecoder {
    fn fill(&mut self, payload: &[u8], mut out: &mut [u8], _done: u64, _whole: bool) -> Result<()> {
        while !out.is_empty() {
            // SAFETY: the library is not running, so this is the only reference.
            let source = unsafe { self.source.as_mut() };
            let waiting = source.frame.get(source.delivered..).unwrap_or_default();
            if waiting.is_empty() {
                if source.left == 0 {
                    return Err(Error::corrupt("FLAC stream ends early"));
                }
                self.step(payload)?;
                continue;
            }
            let count = waiting.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&waiting[..count]);
            source.delivered += count;
            out = later;
        }
        Ok(())
    }

    /// Bytes after the last frame are ignored, as the format's readers do.
    fn finish(&mut self, _payload: &[u8]) -> Result<()> {
        // SAFETY: the library is not running, so this is the only reference.
        let source = unsafe { self.source.as_mut() };
        source.frame = Vec::new();
        source.delivered = 0;
        Ok(())
    }
}

impl Drop for FlacDecoder {
    fn drop(&mut self) {
        // SAFETY: both come from their constructors and are released once, the decoder first,
        // because it has a pointer to the source.
        unsafe {
            sys::FLAC__stream_decoder_delete(self.decoder.as_ptr());
            drop(Box::from_raw(self.source.as_ptr()));
        }
    }
}

/// The data for the callbacks of an encoder.
struct Sink {
    /// The payload.
    bytes: Vec<u8>,
    /// Where the FLAC stream starts in it.
    start: usize,
    /// Where the next bytes go.
    position: usize,
    /// The length at which the payload is of no use.
    limit: usize,
    problem: Option<SinkProblem>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinkProblem {
    TooLong,
    NoMemory,
}

impl Sink {
    /// Writes at the current position, over existing bytes or after them.
    fn write(&mut self, data: &[u8]) -> std::result::Result<(), SinkProblem> {
        let end = self.position.saturating_add(data.len());
        if end >= self.limit {
            return Err(SinkProblem::TooLong);
        }
        if end > self.bytes.len() {
            self.bytes
                .try_reserve(end - self.bytes.len())
                .map_err(|_| SinkProblem::NoMemory)?;
            self.bytes.resize(end, 0);
        }
        if let Some(place) = self.bytes.get_mut(self.position..end) {
            place.copy_from_slice(data);
        }
        self.position = end;
        Ok(())
    }
}

unsafe extern "C" fn on_write(
    _encoder: *const sys::FLAC__StreamEncoder,
    buffer: *const sys::FLAC__byte,
    bytes: usize,
    _samples: u32,
    _current_frame: u32,
    client: *mut c_void,
) -> sys::FLAC__StreamEncoderWriteStatus {
    // SAFETY: the library passes the given pointer. Its `Sink` outlives the library's object, and no
    // other code refers to it during a call of the library. `buffer` has `bytes` bytes.
    let (sink, data) = unsafe {
        (
            &mut *client.cast::<Sink>(),
            slice::from_raw_parts(buffer, bytes),
        )
    };
    match sink.write(data) {
        Ok(()) => sys::FLAC__STREAM_ENCODER_WRITE_STATUS_OK,
        Err(problem) => {
            sink.problem = Some(problem);
            sys::FLAC__STREAM_ENCODER_WRITE_STATUS_FATAL_ERROR
        }
    }
}

unsafe extern "C" fn on_seek(
    _encoder: *const sys::FLAC__StreamEncoder,
    offset: sys::FLAC__uint64,
    client: *mut c_void,
) -> sys::FLAC__StreamEncoderSeekStatus {
    // SAFETY: as in `on_write`.
    let sink = unsafe { &mut *client.cast::<Sink>() };
    let position = usize::try_from(offset)
        .ok()
        .and_then(|offset| sink.start.checked_add(offset))
        .filter(|&position| position <= sink.bytes.len());
    match position {
        Some(position) => {
            sink.position = position;
            sys::FLAC__STREAM_ENCODER_SEEK_STATUS_OK
        }
        None => sys::FLAC__STREAM_ENCODER_SEEK_STATUS_ERROR,
    }
}

unsafe extern "C" fn on_tell(
    _encoder: *const sys::FLAC__StreamEncoder,
    offset: *mut sys::FLAC__uint64,
    client: *mut c_void,
) -> sys::FLAC__StreamEncoderTellStatus {
    // SAFETY: as in `on_write`; `offset` is valid for a write.
    unsafe {
        let sink = &*client.cast::<Sink>();
        *offset = sink.position.saturating_sub(sink.start) as u64;
    }
    sys::FLAC__STREAM_ENCODER_TELL_STATUS_OK
}

/// An encoder of libFLAC.
struct Handle(NonNull<sys::FLAC__StreamEncoder>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: comes from its constructor and is released once.
        unsafe { sys::FLAC__stream_encoder_delete(self.0.as_ptr()) };
    }
}

/// Compresses blocks with one buffer for samples. The library offers no way to keep its state.
#[derive(Debug)]
struct FlacEncoder {
    options: FlacOptions,
    samples: Vec<i32>,
}

impl FlacEncoder {
    fn new(options: FlacOptions) -> Self {
        Self {
            options,
            samples: Vec::new(),
        }
    }

    /// The payload. `None` if the data is not what `format` says, or if it would not be smaller
    /// than the data.
    fn payload(&mut self, raw: &[u8], format: &PcmFormat) -> Result<Option<Vec<u8>>> {
        if !format.is_valid() || !raw.len().is_multiple_of(format.frame_bytes()) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        varint::write(raw.len() as u64, &mut bytes);
        bytes.extend_from_slice(&format.header().encode());
        let mut sink = Sink {
            start: bytes.len(),
            position: bytes.len(),
            bytes,
            limit: raw.len(),
            problem: None,
        };
        let outcome = self.encode(raw, format, &mut sink)?;
        match sink.problem {
            Some(SinkProblem::NoMemory) => Err(no_encoder_memory()),
            Some(SinkProblem::TooLong) => Ok(None),
            None => Ok(outcome.then_some(sink.bytes)),
        }
    }

    /// Writes the stream. False if the data is not what `format` says or the library refuses.
    fn encode(&mut self, raw: &[u8], format: &PcmFormat, sink: &mut Sink) -> Result<bool> {
        // SAFETY: takes nothing, returns null or a new encoder.
        let encoder = NonNull::new(unsafe { sys::FLAC__stream_encoder_new() })
            .map(Handle)
            .ok_or_else(no_encoder_memory)?;
        let handle = encoder.0.as_ptr();
        let client = ptr::from_mut(sink).cast::<c_void>();
        let frames = raw.len() / format.frame_bytes();
        // SAFETY: the encoder is not initialised yet, which is when settings can be made; level first,
        // because it overwrites others. The callbacks have the registered types. The sink outlives the
        // encoder, because it is borrowed for longer than this function. Until the encoder is dropped,
        // it is accessed only through `client`.
        let status = unsafe {
            sys::FLAC__stream_encoder_set_streamable_subset(handle, 0);
            sys::FLAC__stream_encoder_set_channels(handle, u32::from(format.channels));
            sys::FLAC__stream_encoder_set_bits_per_sample(handle, u32::from(format.bits));
            sys::FLAC__stream_encoder_set_sample_rate(handle, SAMPLE_RATE);
            sys::FLAC__stream_encoder_set_total_samples_estimate(handle, frames as u64);
            sys::FLAC__stream_encoder_set_compression_level(handle, self.options.level);
            if self.options.exhaustive {
                sys::FLAC__stream_encoder_set_do_exhaustive_model_search(handle, TRUE);
            }
            sys::FLAC__stream_encoder_init_stream(
                handle,
                Some(on_write),
                Some(on_seek),
                Some(on_tell),
                None,
                client,
            )
        };
        if status != sys::FLAC__STREAM_ENCODER_INIT_STATUS_OK {
            return Self::refused(&encoder);
        }
        for part in raw.chunks(FRAMES_PER_CALL * format.frame_bytes()) {
            self.samples.clear();
            if !pcm::load(format, part, &mut self.samples) {
                return Ok(false);
            }
            let count = self.samples.len() / usize::from(format.channels);
            // SAFETY: the encoder is initialised; the buffer has `count` samples for each
            // channel.
            let ok = unsafe {
                sys::FLAC__stream_encoder_process_interleaved(
                    handle,
                    self.samples.as_ptr(),
                    count as u32,
                )
            };
            if ok == 0 {
                return Self::refused(&encoder);
            }
        }
        // SAFETY: the encoder is initialised.
        let ok = unsafe { sys::FLAC__stream_encoder_finish(handle) };
        if ok == 0 {
            return Self::refused(&encoder);
        }
        Ok(true)
    }

    /// After a failure: an error if it was for lack of memory.
    fn refused(encoder: &Handle) -> Result<bool> {
        // SAFETY: the state can be read at any time.
        match unsafe { sys::FLAC__stream_encoder_get_state(encoder.0.as_ptr()) } {
            sys::FLAC__STREAM_ENCODER_MEMORY_ALLOCATION_ERROR => Err(no_encoder_memory()),
            _ => Ok(false),
        }
    }
}

impl Encode for FlacEncoder {
    fn compress(
        &mut self,
        raw: &[u8],
        content: &Content,
        _probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        match content {
            Content::Pcm(format) => self.payload(raw, format),
            _ => Ok(None),
        }
    }
}

fn no_encoder_memory() -> Error {
    Error::Limit("no memory for a FLAC encoder".into())
}
