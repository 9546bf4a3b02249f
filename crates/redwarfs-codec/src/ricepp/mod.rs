//! RICEPP: an adaptive Rice code for 16-bit pixels.
//!
//! A payload is a varint with the raw size, a header with the parameters, and a bit stream, least
//! significant bit first. The stream starts with 16 bits per component, the first predictor.
//! After it the pixels come in groups of `block size × components`, of which the last may be
//! shorter; a group holds one block per component: a code of four bits, then
//!
//! | code | pixels |
//! |---|---|
//! | 0 | all as the one before |
//! | 1..=14 | differences in a Rice code with `code - 1` low bits |
//! | 15 | 16 bits each, the bytes as they are in the data |

mod decode;
mod encode;

pub(crate) use decode::RiceppDecoder;
pub(crate) use encode::{RiceppEncoder, encoder_memory};

use redwarfs_format::block_header::RiceppBlockHeader;

use crate::content::{ByteOrder, PixelFormat};
use crate::{Error, Result, varint};

/// The only size of a pixel.
pub(crate) const BYTES_PER_PIXEL: u8 = 2;
/// The newest version of the bit stream; its predecessor 0 differs in nothing that matters here.
pub(crate) const VERSION: u16 = 1;
/// Largest number of pixels in a block.
const MAX_BLOCK_SIZE: u32 = 512;
/// Code of a block whose pixels all repeat the one before.
const CODE_SAME: u64 = 0;
/// Code of a block of raw pixels.
const CODE_RAW: u64 = 15;
/// Bits of a code.
const CODE_BITS: u32 = 4;

/// What precedes the bit stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    /// Size of the data in bytes.
    pub(crate) raw_size: u64,
    pub(crate) format: PixelFormat,
    /// Pixels of a block, 1..=512.
    block_size: usize,
    /// Where the bit stream starts in the payload.
    stream: usize,
}

impl Framing {
    pub(crate) fn parse(payload: &[u8]) -> Result<Self> {
        let (raw_size, prefix) = raw_size(payload)?;
        let rest = payload.get(prefix..).unwrap_or_default();
        let (header, length) = RiceppBlockHeader::parse(rest)?;
        if header.ricepp_version > VERSION {
            return Err(Error::Unsupported(format!(
                "RICEPP version {}",
                header.ricepp_version
            )));
        }
        if header.bytes_per_sample != BYTES_PER_PIXEL {
            return Err(Error::Unsupported(format!(
                "RICEPP with {} bytes per pixel",
                header.bytes_per_sample
            )));
        }
        let components = u8::try_from(header.component_count).unwrap_or(0);
        if !(1..=2).contains(&components)
            || !(1..=MAX_BLOCK_SIZE).contains(&header.block_size)
            || header.unused_lsb_count > 15
        {
            return Err(Error::corrupt(format!(
                "RICEPP block announces {} components, {} pixels per block, {} unused bits",
                header.component_count, header.block_size, header.unused_lsb_count
            )));
        }
        let format = PixelFormat {
            components,
            unused_lsb: header.unused_lsb_count,
            byte_order: ByteOrder::from_big(header.big_endian),
        };
        if !raw_size.is_multiple_of(format.group_bytes() as u64) {
            return Err(Error::corrupt(format!(
                "RICEPP block of {raw_size} bytes ends inside of a pixel"
            )));
        }
        Ok(Self {
            raw_size,
            format,
            block_size: header.block_size as usize,
            stream: prefix + length,
        })
    }

    /// Bytes of a whole group of blocks.
    fn group_bytes(&self) -> usize {
        self.block_size * self.format.group_bytes()
    }
}

/// The announced size, and the number of bytes that announce it.
pub(crate) fn raw_size(payload: &[u8]) -> Result<(u64, usize)> {
    varint::read(payload).ok_or_else(|| Error::corrupt("RICEPP payload does not start with a size"))
}

/// The value of a pixel: its bytes in their order, without the unused bits.
fn load<const BIG: bool>(bytes: [u8; 2], unused: u32) -> u16 {
    let unit = if BIG {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    };
    unit >> unused
}

/// The bytes of a pixel.
fn store<const BIG: bool>(value: u16, unused: u32) -> [u8; 2] {
    let unit = value << unused;
    if BIG {
        unit.to_be_bytes()
    } else {
        unit.to_le_bytes()
    }
}
