//! What precedes the bit stream in a payload, and what both of its directions agree on.

use redwarfs_format::block_header::RiceppBlockHeader;

use crate::content::{BYTES_PER_PIXEL, ByteOrder, PixelFormat};
use crate::{Error, Result, varint};

/// The newest version of the bit stream; its predecessor 0 differs in nothing that matters here.
pub(super) const VERSION: u16 = 1;
/// Largest number of pixels in a block.
pub(super) const MAX_BLOCK_SIZE: u32 = 512;
/// Code of a block whose pixels all repeat the one before.
pub(super) const CODE_SAME: u64 = 0;
/// Code of a block of raw pixels.
pub(super) const CODE_RAW: u64 = 15;
/// Bits of a code.
pub(super) const CODE_BITS: u32 = 4;

/// What precedes the bit stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Framing {
    /// Size of the data in bytes.
    pub(super) raw_size: u64,
    pub(super) format: PixelFormat,
    /// Pixels of a block, 1..=512.
    pub(super) block_size: usize,
    /// Where the bit stream starts in the payload.
    pub(super) stream: usize,
}

impl Framing {
    pub(super) fn parse(payload: &[u8]) -> Result<Self> {
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
    pub(super) fn group_bytes(&self) -> usize {
        self.block_size * self.format.group_bytes()
    }
}

impl PixelFormat {
    /// `block_size` in pixels.
    pub(super) fn header(&self, block_size: u32) -> RiceppBlockHeader {
        RiceppBlockHeader {
            block_size,
            component_count: u16::from(self.components),
            bytes_per_sample: BYTES_PER_PIXEL,
            unused_lsb_count: self.unused_lsb,
            big_endian: self.byte_order.is_big(),
            ricepp_version: VERSION,
        }
    }
}

/// The announced size, and the number of bytes that announce it.
pub(super) fn raw_size(payload: &[u8]) -> Result<(u64, usize)> {
    varint::read(payload).ok_or_else(|| Error::corrupt("RICEPP payload does not start with a size"))
}

/// The value of a pixel: its bytes in their order, without the unused bits.
pub(super) fn load<const BIG: bool>(bytes: [u8; 2], unused: u32) -> u16 {
    let unit = if BIG {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    };
    unit >> unused
}

/// The bytes of a pixel.
pub(super) fn store<const BIG: bool>(value: u16, unused: u32) -> [u8; 2] {
    let unit = value << unused;
    if BIG {
        unit.to_be_bytes()
    } else {
        unit.to_le_bytes()
    }
}
