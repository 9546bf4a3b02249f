//! LZ4 and LZ4HC: a little-endian u32 with the raw size, then one LZ4 block.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::codec::{Decode, Decoding, Encode, Encoding, Settings, any_content};
use crate::content::{Content, ContentKind};
use crate::grammar::{Kind, option};
use crate::memory::zeroed;
use crate::{CompressionId, Error, Result};

/// The largest input of the block format's reference implementation, in bytes.
const MAX_INPUT: usize = 0x7e00_0000;
/// Bytes of the announced size before the block.
const PREFIX: usize = 4;

pub(crate) static DECODING: Decoding = decoding(CompressionId::LZ4);

/// The same format under an id that [`ENCODING_OF_LZ4HC`] does not use.
pub(crate) static DECODING_OF_LZ4HC: Decoding = decoding(CompressionId::LZ4HC);

const fn decoding(id: CompressionId) -> Decoding {
    Decoding {
        id,
        raw_size,
        content: any_content,
        decoder: |payload, raw_size| Ok(Box::new(Lz4Decoder::new(payload, raw_size)?)),
    }
}

pub(crate) static ENCODING: Encoding = Encoding {
    name: "lz4",
    options: &[],
    id: CompressionId::LZ4,
    takes: ContentKind::Bytes,
    settings: |_| Ok(Arc::new(Method::Fast)),
};

pub(crate) static ENCODING_OF_LZ4HC: Encoding = Encoding {
    name: "lz4hc",
    options: &[option(
        "level",
        Kind::Int(0..=12),
        Some(9),
        "compression level",
    )],
    id: CompressionId::LZ4,
    takes: ContentKind::Bytes,
    settings: |values| Ok(Arc::new(Method::High(values.signed("level")))),
};

unsafe extern "C" {
    fn LZ4_versionString() -> *const c_char;
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_size: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_extStateHC(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_size: c_int,
        dest_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

pub(crate) fn library_version() -> String {
    // SAFETY: the function returns a static, zero-terminated string.
    let version = unsafe { std::ffi::CStr::from_ptr(LZ4_versionString()) };
    format!("lz4-{}", version.to_string_lossy())
}

#[derive(Debug, Clone, Copy)]
enum Method {
    Fast,
    /// The level, 1..=12; the library takes 0 for 9.
    High(i32),
}

impl Method {
    fn state_size(self) -> usize {
        // SAFETY: both functions only return a constant.
        let size = unsafe {
            match self {
                Self::Fast => LZ4_sizeofState(),
                Self::High(_) => LZ4_sizeofStateHC(),
            }
        };
        usize::try_from(size).expect("a state size is positive")
    }
}

/// Compresses blocks with one state and one output buffer.
#[derive(Debug)]
struct Lz4Encoder {
    method: Method,
    /// The library's working memory; u64 for its alignment.
    state: Vec<u64>,
    scratch: Vec<u8>,
}

impl Lz4Encoder {
    fn new(method: Method) -> Self {
        Self {
            method,
            state: vec![0; method.state_size().div_ceil(8)],
            scratch: Vec::new(),
        }
    }
}

impl Encode for Lz4Encoder {
    fn compress(
        &mut self,
        raw: &[u8],
        _content: &Content,
        _probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        if raw.len() > MAX_INPUT {
            return Ok(None);
        }
        // With room for the worst case the library takes a faster path.
        let capacity = bound(raw.len());
        self.scratch.clear();
        self.scratch.reserve_exact(PREFIX + capacity);
        self.scratch
            .extend_from_slice(&(raw.len() as u32).to_le_bytes());
        let state = self.state.as_mut_ptr().cast::<c_void>();
        let source = raw.as_ptr().cast::<c_char>();
        let dest = self
            .scratch
            .spare_capacity_mut()
            .as_mut_ptr()
            .cast::<c_char>();
        // SAFETY: the state has the size that the library requires, and is aligned to eight bytes.
        // `dest` has room for `capacity` bytes. With `raw.len() <= MAX_INPUT`, this number and the
        // input's length fit an int.
        let written = unsafe {
            match self.method {
                Method::Fast => LZ4_compress_fast_extState(
                    state,
                    source,
                    dest,
                    raw.len() as c_int,
                    capacity as c_int,
                    1,
                ),
                Method::High(level) => LZ4_compress_HC_extStateHC(
                    state,
                    source,
                    dest,
                    raw.len() as c_int,
                    capacity as c_int,
                    level,
                ),
            }
        };
        let written = usize::try_from(written).unwrap_or(0);
        if written == 0 {
            return Ok(None);
        }
        debug_assert!(written <= capacity);
        // SAFETY: the library has initialised `written` bytes after the prefix, all of them inside the
        // reserved capacity.
        unsafe { self.scratch.set_len(PREFIX + written) };
        Ok(Some(self.scratch.as_slice().to_vec()))
    }
}

impl Settings for Method {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(Lz4Encoder::new(*self))
    }

    fn memory(&self, raw_size: usize) -> u64 {
        (self.state_size() as u64)
            .saturating_add(bound(raw_size.min(MAX_INPUT)) as u64)
            .saturating_add(PREFIX as u64)
    }
}

/// The largest block that `len` bytes can become (the format's published bound).
fn bound(len: usize) -> usize {
    len + len / 255 + 16
}

/// The announced size.
fn raw_size(payload: &[u8]) -> Result<u64> {
    let size = payload
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or_else(|| Error::corrupt("LZ4 payload is too short to hold its size"))?;
    Ok(u64::from(size))
}

/// Decodes one block; everything happens in the first step.
struct Lz4Decoder {
    raw_size: usize,
    /// The decoded block, after the first step.
    decoded: Vec<u8>,
    done: bool,
}

impl Lz4Decoder {
    fn new(payload: &[u8], raw_size: u64) -> Result<Self> {
        let block = payload.len().saturating_sub(PREFIX);
        // A byte of a match length adds at most 255 bytes, so a larger size can be
        // refused before memory is spent on it.
        let reachable = (block as u64).saturating_mul(255).saturating_add(64);
        if raw_size > reachable || raw_size > MAX_INPUT as u64 {
            return Err(Error::corrupt(format!(
                "LZ4 block of {block} bytes announces {raw_size} bytes"
            )));
        }
        if block > c_int::MAX as usize {
            return Err(Error::corrupt("LZ4 block is longer than the format allows"));
        }
        Ok(Self {
            raw_size: raw_size as usize,
            decoded: Vec::new(),
            done: false,
        })
    }
}

impl Decode for Lz4Decoder {
    fn fill(&mut self, payload: &[u8], out: &mut [u8], done: u64, whole: bool) -> Result<()> {
        if !self.done && whole {
            decode_block(&payload[PREFIX..], out)?;
            self.done = true;
            return Ok(());
        }
        if !self.done {
            let mut decoded = zeroed(self.raw_size)?;
            decode_block(&payload[PREFIX..], &mut decoded)?;
            self.decoded = decoded;
            self.done = true;
        }
        let start = done as usize;
        let part = self
            .decoded
            .get(start..)
            .and_then(|rest| rest.get(..out.len()))
            .ok_or_else(|| Error::corrupt("LZ4 block ends early"))?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn finish(&mut self, payload: &[u8]) -> Result<()> {
        if !self.done {
            // Reached only with a raw size of zero.
            decode_block(&payload[PREFIX..], &mut [])?;
            self.done = true;
        }
        self.decoded = Vec::new();
        Ok(())
    }

    /// The first step decodes everything.
    fn is_incremental(&self) -> bool {
        false
    }
}

/// Decodes a block that must fill `out` exactly and end with its input.
fn decode_block(block: &[u8], out: &mut [u8]) -> Result<()> {
    // SAFETY: the function reads at most `block.len()` and writes at most
    // `out.len()` bytes; both fit an int, see `Lz4Decoder::new`.
    let produced = unsafe {
        lz4_sys::LZ4_decompress_safe(
            block.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            block.len() as c_int,
            out.len() as c_int,
        )
    };
    match usize::try_from(produced) {
        Ok(produced) if produced == out.len() => Ok(()),
        Ok(produced) => Err(Error::corrupt(format!(
            "LZ4 block holds {produced} bytes, {} were announced",
            out.len()
        ))),
        Err(_) => Err(Error::corrupt("LZ4 block is damaged")),
    }
}
