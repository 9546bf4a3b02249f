//! Brotli: a varint with the raw size, then one stream, possibly in the
//! large-window format.

use std::fmt;
use std::sync::Arc;

use ::brotli::enc::StandardAlloc;
use ::brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter,
    BrotliEncoderStateStruct,
};
use ::brotli::{BrotliDecompressStream, BrotliResult, BrotliState};

use crate::codec::{Decode, Decoding, Encode, Encoding, Settings, any_content};
use crate::content::{Content, ContentKind};
use crate::grammar::{Kind, option};
use crate::{CompressionId, Error, Result, varint};

pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::BROTLI,
    raw_size: |payload| raw_size(payload).map(|(size, _)| size),
    content: any_content,
    decoder: |payload, _| Ok(Box::new(BrotliDecoder::new(payload)?)),
};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "brotli",
    options: &[
        option(
            "quality",
            Kind::Int(0..=11),
            Some(11),
            "compression quality",
        ),
        option("lgwin", Kind::Int(10..=30), Some(22), "window size (log2)"),
    ],
    id: CompressionId::BROTLI,
    takes: ContentKind::Bytes,
    settings: |values| {
        Ok(Arc::new(BrotliOptions {
            quality: values.signed("quality"),
            lgwin: values.signed("lgwin"),
        }))
    },
};

/// Settings of the encoder.
#[derive(Debug, Clone, Copy)]
struct BrotliOptions {
    /// 0..=11
    quality: i32,
    /// 10..=30, above 24 in the large-window format.
    lgwin: i32,
}

impl Settings for BrotliOptions {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(BrotliEncoder::new(self.quality, self.lgwin))
    }

    fn memory(&self, raw_size: usize) -> u64 {
        encoder_memory(self.quality, self.lgwin, raw_size)
    }

    fn are_slow(&self) -> bool {
        self.quality > 4
    }
}

/// Version of the encoder crate, which does not export its own.
const VERSION: &str = "9.1";
/// Largest window of the standard format.
const STANDARD_WINDOW: i32 = 24;
/// A window of `w` bits reaches `2^w - 16` bytes back.
const WINDOW_GAP: u64 = 16;

pub(crate) fn library_version() -> String {
    format!("brotli-{VERSION}")
}

/// The smallest window that reaches over all of `raw_size` bytes, or `lgwin` if
/// that is smaller.
fn useful_window(lgwin: i32, raw_size: usize) -> i32 {
    let needed = (raw_size as u64).saturating_add(WINDOW_GAP);
    (10..lgwin)
        .find(|bits| 1u64 << bits >= needed)
        .unwrap_or(lgwin)
}

/// Compresses blocks. The library offers no way to keep its state, so only the
/// output buffer lives on.
struct BrotliEncoder {
    quality: i32,
    lgwin: i32,
    scratch: Vec<u8>,
}

impl fmt::Debug for BrotliEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrotliEncoder")
            .field("quality", &self.quality)
            .field("lgwin", &self.lgwin)
            .finish_non_exhaustive()
    }
}

impl BrotliEncoder {
    fn new(quality: i32, lgwin: i32) -> Self {
        Self {
            quality,
            lgwin,
            scratch: Vec::new(),
        }
    }
}

impl Encode for BrotliEncoder {
    fn compress(
        &mut self,
        raw: &[u8],
        _content: &Content,
        _probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        use BrotliEncoderParameter as P;

        self.scratch.clear();
        varint::write(raw.len() as u64, &mut self.scratch);
        let prefix = self.scratch.len();
        self.scratch.resize(raw.len(), 0);
        let Some(space) = self.scratch.get_mut(prefix..) else {
            return Ok(None);
        };

        let lgwin = useful_window(self.lgwin, raw.len());
        let mut encoder = BrotliEncoderStateStruct::new(StandardAlloc::default());
        encoder.set_parameter(P::BROTLI_PARAM_QUALITY, self.quality as u32);
        if lgwin > STANDARD_WINDOW {
            encoder.set_parameter(P::BROTLI_PARAM_LARGE_WINDOW, 1);
        }
        encoder.set_parameter(P::BROTLI_PARAM_LGWIN, lgwin as u32);
        let hint = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        encoder.set_parameter(P::BROTLI_PARAM_SIZE_HINT, hint);

        let (mut available_in, mut in_offset) = (raw.len(), 0);
        let (mut available_out, mut out_offset) = (space.len(), 0);
        let mut total_out = Some(0);
        loop {
            let before = (in_offset, out_offset);
            let ok = encoder.compress_stream(
                BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
                &mut available_in,
                raw,
                &mut in_offset,
                &mut available_out,
                space,
                &mut out_offset,
                &mut total_out,
                &mut |_, _, _, _| (),
            );
            if !ok || encoder.is_finished() || available_out == 0 {
                break;
            }
            if before == (in_offset, out_offset) {
                break;
            }
        }
        let finished = encoder.is_finished();
        BrotliEncoderDestroyInstance(&mut encoder);
        let size = prefix + out_offset;
        if !finished || size >= raw.len() {
            return Ok(None);
        }
        Ok(self.scratch.get(..size).map(<[u8]>::to_vec))
    }
}

/// Bytes that the encoder needs besides the block itself: ring buffer, hash
/// tables, the block's commands and the output buffer, rounded up.
fn encoder_memory(quality: i32, lgwin: i32, raw_size: usize) -> u64 {
    let window = 1u64 << useful_window(lgwin, raw_size);
    // The ring buffer is twice the window; beyond quality 9 the match finder keeps
    // two 32-bit links for each position of the window.
    let ring = 2 * window;
    let tables = match quality {
        ..=1 => 512 << 10,
        2..=4 => 2 << 20,
        5..=9 => 16 << 20,
        _ => (2 << 20) + 8 * window,
    };
    const COMMANDS: u64 = 8 << 20;
    (ring + tables + COMMANDS).saturating_add(raw_size as u64)
}

/// The announced size, and the number of bytes that announce it.
fn raw_size(payload: &[u8]) -> Result<(u64, usize)> {
    varint::read(payload).ok_or_else(|| Error::corrupt("Brotli payload does not start with a size"))
}

/// Input that the decoder gets at a time in steps (16 KiB). It does not stop where the output is full but
/// where its ring buffer is, or its input: with all of it, a short step would decode a whole window.
/// Where everything is wanted at once, portions would only cost time.
const PORTION: usize = 16 << 10;

type LibraryState = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// Decodes one stream.
///
/// Memory: the library's ring buffer follows the length that the stream's parts
/// announce, 16 MiB at most for each part, never simply the window.
struct BrotliDecoder {
    state: LibraryState,
    consumed: usize,
    ended: bool,
}

impl BrotliDecoder {
    fn new(payload: &[u8]) -> Result<Self> {
        let (_, consumed) = raw_size(payload)?;
        Ok(Self {
            // This constructor enables large windows.
            state: BrotliState::new(
                StandardAlloc::default(),
                StandardAlloc::default(),
                StandardAlloc::default(),
            ),
            consumed,
            ended: false,
        })
    }

    /// One call of the library. Returns how many bytes it produced; none only if
    /// the stream has ended or input has been consumed.
    fn step(&mut self, payload: &[u8], out: &mut [u8], portion: usize) -> Result<usize> {
        let before = self.consumed;
        let mut available_in = payload.len().saturating_sub(self.consumed).min(portion);
        let mut available_out = out.len();
        let mut produced = 0;
        let mut total = 0;
        let result = BrotliDecompressStream(
            &mut available_in,
            &mut self.consumed,
            payload,
            &mut available_out,
            &mut produced,
            out,
            &mut total,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultSuccess => self.ended = true,
            BrotliResult::ResultFailure => return Err(Error::corrupt("Brotli stream is damaged")),
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {
                if produced == 0 && self.consumed == before {
                    return Err(Error::corrupt("Brotli stream is incomplete"));
                }
            }
        }
        Ok(produced)
    }
}

impl Decode for BrotliDecoder {
    fn fill(&mut self, payload: &[u8], out: &mut [u8], _done: u64, whole: bool) -> Result<()> {
        let portion = if whole { usize::MAX } else { PORTION };
        let mut filled = 0;
        while filled < out.len() {
            if self.ended {
                return Err(Error::corrupt("Brotli stream ends early"));
            }
            filled += self.step(payload, &mut out[filled..], portion)?;
        }
        Ok(())
    }

    /// Bytes after the end of the stream are ignored, as the format's readers do.
    fn finish(&mut self, payload: &[u8]) -> Result<()> {
        let mut surplus = [0];
        while !self.ended {
            if self.step(payload, &mut surplus, PORTION)? > 0 {
                return Err(Error::corrupt(
                    "Brotli stream holds more than was announced",
                ));
            }
        }
        Ok(())
    }
}
