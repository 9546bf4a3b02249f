//! What every codec is: a row for reading payloads and a row for making them.

#![allow(unsafe_code)]

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::content::{Content, ContentKind};
use crate::grammar::{OptionDef, SpecError, Values};
use crate::table::Table;
use crate::{CompressionId, Error, Result};

type MakeDecoder = fn(&[u8], u64) -> Result<Box<dyn Decode>>;

/// How payloads with one compression id are read.
pub(crate) struct Decoding {
    pub(crate) id: CompressionId,
    /// The size that a payload announces, in bytes.
    pub(crate) raw_size: fn(&[u8]) -> Result<u64>,
    /// The content that a payload was made from, as far as it says so.
    pub(crate) content: fn(&[u8]) -> Result<Content>,
    /// A decoder for a payload with this raw size, which fits into memory.
    pub(crate) decoder: MakeDecoder,
}

/// The content of payloads that say nothing about it.
pub(crate) fn any_content(_payload: &[u8]) -> Result<Content> {
    Ok(Content::Bytes)
}

/// The error for a payload whose codec this build is without.
pub(crate) fn not_in_this_build(id: CompressionId) -> Error {
    Error::Unsupported(format!("{id} compression is not in this build"))
}

/// A part of a payload that can be decoded alone.
pub(crate) struct Part {
    pub(crate) payload: Vec<u8>,
    pub(crate) raw_size: u64,
    pub(crate) stream: Box<dyn Decode>,
}

/// Decodes one payload, which is passed to every call.
///
/// `Decoder` checks each call: the request does not exceed the announced size, and there is none after
/// an error.
pub(crate) trait Decode: Send {
    /// Decodes until `out`, which is not empty, is full. `done` bytes were decoded before. `whole`:
    /// `out` is for everything.
    fn fill(&mut self, payload: &[u8], out: &mut [u8], done: u64, whole: bool) -> Result<()>;

    /// Verifies the end, after the last byte.
    fn finish(&mut self, payload: &[u8]) -> Result<()>;

    /// As `fill`, from byte `from` to byte `to` of the `size` bytes at `start`. `from` is the `to` of
    /// the call before, and less than `to`.
    ///
    /// # Safety
    /// `start` is valid for reading and writing `size` bytes, and stays valid in all calls for this
    /// payload. No other code writes there between the calls. During a call, no other code accesses the
    /// bytes from `from` on. The bytes before it may be read.
    unsafe fn fill_in_place(
        &mut self,
        payload: &[u8],
        start: *mut u8,
        size: usize,
        from: usize,
        to: usize,
    ) -> Result<()> {
        // SAFETY: `from..to` lies within `size`, and no other code accesses these bytes.
        let out = unsafe { std::slice::from_raw_parts_mut(start.add(from), to - from) };
        self.fill(payload, out, from as u64, out.len() == size)
    }

    /// Decodes everything, parts of it by up to `threads` threads if there are any.
    fn fill_by_parts(
        &mut self,
        payload: &[u8],
        out: &mut [u8],
        _threads: NonZeroUsize,
    ) -> Result<()> {
        self.fill(payload, out, 0, true)
    }

    /// In how many parts the data can be decoded at the same time.
    fn parts(&self) -> u64 {
        1
    }

    /// Those of these parts that have data, if it has any parts. The others are verified. Nothing was decoded so far.
    fn apart(&self, _payload: &[u8]) -> Result<Option<Vec<Part>>> {
        Ok(None)
    }

    /// Whether a small first step costs less than decoding everything.
    fn is_incremental(&self) -> bool {
        true
    }

    /// Most bytes that `fill_in_place` holds from call to call, if that is not the raw size.
    fn state_in_place(&self) -> Option<u64> {
        None
    }

    /// Bytes at the start of the payload that no further call looks at.
    fn spent(&self) -> usize {
        0
    }
}

/// How payloads are made: a codec that a spec can name.
pub(crate) struct Encoding {
    pub(crate) name: &'static str,
    pub(crate) options: &'static [OptionDef],
    /// The id of its payloads.
    pub(crate) id: CompressionId,
    /// What it compresses. For all but bytes its payloads are decoded before they are used.
    pub(crate) takes: ContentKind,
    pub(crate) settings: fn(&Values) -> Result<Arc<dyn Settings>, SpecError>,
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A codec with the values of its options.
pub(crate) trait Settings: fmt::Debug + Send + Sync {
    fn encoder(&self) -> Box<dyn Encode>;

    /// Bytes that an encoder needs for a block of `raw_size` bytes besides the block itself.
    fn memory(&self, raw_size: usize) -> u64;

    /// Whether a block takes seconds.
    fn are_slow(&self) -> bool {
        false
    }
}

/// Compresses blocks one after another with the same settings.
pub(crate) trait Encode: fmt::Debug + Send {
    /// The payload of a block of at least two bytes. `None` if it is of another content, or if the
    /// payload would not be smaller. `probed` is the size that a fast encoder makes of the block, if
    /// that is known.
    fn compress(
        &mut self,
        raw: &[u8],
        content: &Content,
        probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>>;

    /// The encoder for data with tables, if it compresses them separately.
    fn for_tables(&mut self) -> Option<&mut dyn EncodeTables> {
        None
    }
}

/// Compresses data that consists of tables and other things.
pub(crate) trait EncodeTables {
    /// The payload, or `None` if it would not have fewer bytes than `raw` and than `limit`. More than that is not kept
    /// in memory either.
    fn compress(&mut self, raw: &[u8], tables: &[Table], limit: usize) -> Result<Option<Vec<u8>>>;
}
