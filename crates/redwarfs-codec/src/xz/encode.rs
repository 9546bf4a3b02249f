//! Compressing blocks into `.xz` streams.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr;

use liblzma_sys as sys;

use super::coder::{Coder, encoder_error};
use super::options::{Branch, Filter, LzmaOptions, lzma_options};
use super::tables;
use crate::Result;
use crate::codec::{Encode, EncodeTables, Settings};
use crate::content::Content;
use crate::table::Table;
use crate::zstd::{self, ZstdEncoder, ZstdOptions};

/// Compresses blocks with one coder, whose memory is kept from block to block.
struct XzEncoder {
    options: LzmaOptions,
    coder: Coder,
    scratch: Vec<u8>,
    /// Output of the attempt with the branch filter.
    filtered: Vec<u8>,
}

impl fmt::Debug for XzEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XzEncoder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl XzEncoder {
    fn new(options: LzmaOptions) -> Self {
        Self {
            options,
            coder: Coder::new(),
            scratch: Vec::new(),
            filtered: Vec::new(),
        }
    }

    /// The payload, or `None` if it would not be smaller than the input. With a
    /// certain branch filter both variants are tried; the plain one wins a tie.
    fn payload(&mut self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let space = raw.len().saturating_sub(1);
        self.scratch.resize(space, 0);
        let (first, second) = match self.options.branch {
            None => (None, None),
            Some(Filter::Fixed(branch)) => (None, Some(branch)),
            Some(Filter::Automatic) => (self.helpful_filter(raw)?, None),
        };
        let plain = encode(
            &mut self.coder,
            &self.options,
            first,
            raw,
            &mut self.scratch,
        )?;
        let Some(branch) = second else {
            return Ok(plain.map(|size| self.scratch[..size].to_vec()));
        };
        // The filtered variant is used only if it is smaller than the unfiltered one.
        let space = plain.map_or(space, |size| size.saturating_sub(1));
        self.filtered.resize(space, 0);
        let filtered = encode(
            &mut self.coder,
            &self.options,
            Some(branch),
            raw,
            &mut self.filtered,
        )?;
        Ok(match (filtered, plain) {
            (Some(size), _) => Some(self.filtered[..size].to_vec()),
            (None, Some(size)) => Some(self.scratch[..size].to_vec()),
            (None, None) => None,
        })
    }

    /// The branch filter with which a fast encoder makes some pieces of the block noticeably smaller.
    /// None if an encoder that finds distant matches makes the whole block larger with it.
    fn helpful_filter(&mut self, raw: &[u8]) -> Result<Option<Branch>> {
        let distance = (raw.len() / PIECES).max(1);
        let pieces = raw.chunks(distance);
        let sample: Vec<u8> = pieces
            .flat_map(|piece| &piece[..piece.len().min(PIECE)])
            .copied()
            .collect();
        let fast = LzmaOptions {
            level: 0,
            ..LzmaOptions::default()
        };
        let mut out = vec![0; sample.len() + sample.len() / 8 + 256];
        let mut size = |branch| -> Result<usize> {
            let size = encode(&mut self.coder, &fast, branch, &sample, &mut out)?;
            Ok(size.unwrap_or(usize::MAX))
        };
        let plain = size(None)?;
        let mut best = (plain - plain / NOTICEABLE, None);
        for branch in [Branch::X86, Branch::Arm64] {
            let size = size(Some(branch))?;
            if size < best.0 {
                best = (size, Some(branch));
            }
        }
        Ok(match best.1 {
            Some(branch) if Self::harms_the_whole(raw, branch)? => None,
            found => found,
        })
    }

    /// Whether filtering makes a block larger. Calls of the same function from different places get
    /// equal, but copies of the same code at different places, as versions of a program have, get different.
    fn harms_the_whole(raw: &[u8], branch: Branch) -> Result<bool> {
        // The coder has just been used for a sample, so it holds little memory at present.
        let mut filtered = raw.to_vec();
        let (data, len) = (filtered.as_mut_ptr(), filtered.len());
        // SAFETY: the functions change the bytes of the buffer in place, within its length.
        unsafe {
            match branch {
                Branch::X86 => sys::lzma_bcj_x86_encode(0, data, len),
                Branch::Arm64 => sys::lzma_bcj_arm64_encode(0, data, len),
                _ => return Ok(false),
            }
        };
        let mut encoder = ZstdEncoder::new(FAR_MATCHES);
        Ok(encoder.frame(&filtered)?.len() >= encoder.frame(raw)?.len())
    }
}

impl Encode for XzEncoder {
    fn compress(
        &mut self,
        raw: &[u8],
        _content: &Content,
        _probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        self.payload(raw)
    }

    fn for_tables(&mut self) -> Option<&mut dyn EncodeTables> {
        Some(self)
    }
}

impl EncodeTables for XzEncoder {
    fn compress(&mut self, raw: &[u8], tables: &[Table], limit: usize) -> Result<Option<Vec<u8>>> {
        tables::compress(&self.options, raw, tables, limit)
    }
}

impl Settings for LzmaOptions {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(XzEncoder::new(self.clone()))
    }

    fn memory(&self, raw_size: usize) -> u64 {
        encoder_memory(self, raw_size)
    }

    fn are_slow(&self) -> bool {
        true
    }
}

/// What compares a whole block with and without a filter: a hundredth of the time of LZMA.
const FAR_MATCHES: ZstdOptions = ZstdOptions {
    level: 1,
    long: true,
    ..ZstdOptions::NONE
};

/// Pieces of a block that branch filters are tried with, and the size of each in bytes.
const PIECES: usize = 16;
const PIECE: usize = 1 << 16;
/// A filter is used if it saves one part in this number, because it may make data larger that is no
/// code.
const NOTICEABLE: usize = 100;

/// Writes one stream into `out`. `None` if it does not fit.
fn encode(
    coder: &mut Coder,
    options: &LzmaOptions,
    branch: Option<Branch>,
    raw: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>> {
    let mut lzma = lzma_options(options, raw.len());
    let filters = filter_chain(&mut lzma, branch);
    // SAFETY: the filters and their options live through the call, which copies the needed values. The
    // coder is zeroed, or was used before.
    let verdict =
        unsafe { sys::lzma_stream_encoder(&mut coder.0, filters.as_ptr(), sys::LZMA_CHECK_CRC64) };
    if verdict != sys::LZMA_OK {
        return Err(encoder_error(verdict));
    }
    let (mut read, mut written) = (0, 0);
    loop {
        let (verdict, consumed, produced) =
            coder.run(&raw[read..], &mut out[written..], sys::LZMA_FINISH);
        read += consumed;
        written += produced;
        match verdict {
            sys::LZMA_STREAM_END => return Ok(Some(written)),
            sys::LZMA_OK if written < out.len() => {}
            sys::LZMA_OK | sys::LZMA_BUF_ERROR => return Ok(None),
            other => return Err(encoder_error(other)),
        }
    }
}

const END: sys::lzma_filter = sys::lzma_filter {
    id: sys::LZMA_VLI_UNKNOWN,
    options: ptr::null_mut(),
};

/// The chain that ends in LZMA2. It points to `lzma`, which must outlive its use.
fn filter_chain(
    lzma: &mut sys::lzma_options_lzma,
    branch: Option<Branch>,
) -> [sys::lzma_filter; 3] {
    let last = sys::lzma_filter {
        id: sys::LZMA_FILTER_LZMA2,
        options: ptr::from_mut(lzma).cast(),
    };
    match branch {
        None => [last, END, END],
        Some(branch) => {
            let first = sys::lzma_filter {
                id: match branch {
                    Branch::X86 => sys::LZMA_FILTER_X86,
                    Branch::PowerPc => sys::LZMA_FILTER_POWERPC,
                    Branch::Ia64 => sys::LZMA_FILTER_IA64,
                    Branch::Arm => sys::LZMA_FILTER_ARM,
                    Branch::ArmThumb => sys::LZMA_FILTER_ARMTHUMB,
                    Branch::Arm64 => sys::LZMA_FILTER_ARM64,
                    Branch::Sparc => sys::LZMA_FILTER_SPARC,
                    Branch::RiscV => sys::LZMA_FILTER_RISCV,
                },
                options: ptr::null_mut(),
            };
            [first, last, END]
        }
    }
}

/// Bytes that the encoder needs besides the block itself: what liblzma reports,
/// and the output buffers.
fn encoder_memory(options: &LzmaOptions, raw_size: usize) -> u64 {
    let mut lzma = lzma_options(options, raw_size);
    let filter = match options.branch {
        Some(Filter::Fixed(branch)) => Some(branch),
        Some(Filter::Automatic) => Some(Branch::X86),
        None => None,
    };
    let filters = filter_chain(&mut lzma, filter);
    // SAFETY: the filters and the options they point to live through the call.
    let state = unsafe { sys::lzma_raw_encoder_memusage(filters.as_ptr()) };
    let block = raw_size as u64;
    let buffers = match options.branch {
        Some(Filter::Fixed(_)) => 2,
        _ => 1,
    };
    // Before LZMA begins: the filtered block, and an encoder with its output.
    let trial = match options.branch {
        Some(Filter::Automatic) => {
            zstd::encoder_memory(&FAR_MATCHES, raw_size).saturating_add(block)
        }
        _ => 0,
    };
    // The library says u64::MAX for options it cannot take; the spec allows none.
    let state = if state == u64::MAX { 0 } else { state };
    state
        .max(trial)
        .saturating_add(block.saturating_mul(buffers))
}
