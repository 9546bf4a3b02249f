//! What precedes the FLAC stream in a payload.

use redwarfs_format::block_header::FlacBlockHeader;

use crate::content::{ByteOrder, Padding, PcmFormat};
use crate::{Error, Result, varint};

/// What precedes the FLAC stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Framing {
    /// Size of the data in bytes.
    pub(super) raw_size: u64,
    pub(super) format: PcmFormat,
    /// Where the FLAC stream starts in the payload.
    #[cfg(feature = "flac")]
    pub(super) stream: usize,
}

impl Framing {
    pub(super) fn parse(payload: &[u8]) -> Result<Self> {
        let (raw_size, prefix) = raw_size(payload)?;
        let rest = payload.get(prefix..).unwrap_or_default();
        let (header, _length) = FlacBlockHeader::parse(rest)?;
        let format = PcmFormat::from_header(&header)?;
        if !raw_size.is_multiple_of(format.frame_bytes() as u64) {
            return Err(Error::corrupt(format!(
                "FLAC block of {raw_size} bytes ends inside of a sample"
            )));
        }
        Ok(Self {
            format,
            raw_size,
            #[cfg(feature = "flac")]
            stream: prefix + _length,
        })
    }
}

/// The announced size, and the number of bytes that announce it.
pub(super) fn raw_size(payload: &[u8]) -> Result<(u64, usize)> {
    varint::read(payload).ok_or_else(|| Error::corrupt("FLAC payload does not start with a size"))
}

/// Bits of a FLAC block header's flags.
const BIG_ENDIAN: u8 = 0x80;
const SIGNED: u8 = 0x40;
const PADDING_LSB: u8 = 0x20;
const RESERVED: u8 = 0x1c;
const BYTES_MASK: u8 = 0x03;

impl PcmFormat {
    pub(super) fn from_header(header: &FlacBlockHeader) -> Result<Self> {
        let flags = header.flags;
        if flags & RESERVED != 0 {
            return Err(Error::Unsupported(format!("FLAC block flags {flags:#04x}")));
        }
        let format = Self {
            channels: u8::try_from(header.num_channels).unwrap_or(0),
            bits: header.bits_per_sample,
            bytes: (flags & BYTES_MASK) + 1,
            byte_order: ByteOrder::from_big(flags & BIG_ENDIAN != 0),
            signed: flags & SIGNED != 0,
            padding: if flags & PADDING_LSB != 0 {
                Padding::Lsb
            } else {
                Padding::Msb
            },
        };
        if !format.is_valid() {
            return Err(Error::corrupt(format!(
                "FLAC block announces {} channels with {} bits in {} bytes",
                header.num_channels, format.bits, format.bytes
            )));
        }
        Ok(format)
    }

    #[cfg(any(feature = "flac", test))]
    pub(super) fn header(&self) -> FlacBlockHeader {
        let mut flags = self.bytes - 1;
        for (set, bit) in [
            (self.byte_order.is_big(), BIG_ENDIAN),
            (self.signed, SIGNED),
            (self.padding == Padding::Lsb, PADDING_LSB),
        ] {
            if set {
                flags |= bit;
            }
        }
        FlacBlockHeader {
            num_channels: u16::from(self.channels),
            bits_per_sample: self.bits,
            flags,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails by panicking

    use super::*;

    #[test]
    fn flags_of_flac_headers() {
        for (flags, header) in [
            (0x61u8, 16u8),
            (0xe1, 16),
            (0x20, 8),
            (0x63, 20),
            (0xc2, 24),
        ] {
            let header = FlacBlockHeader {
                num_channels: 2,
                bits_per_sample: header,
                flags,
            };
            let format = PcmFormat::from_header(&header).unwrap();
            assert_eq!(format.header(), header);
            assert_eq!(usize::from(format.bytes) - 1, usize::from(flags & 3));
        }
        for (channels, bits, flags) in [
            (0, 16, 1),
            (9, 16, 1),
            (256, 16, 1),
            (1, 7, 1),
            (1, 17, 1),
            (1, 33, 3),
            (1, 16, 0),
        ] {
            let header = FlacBlockHeader {
                num_channels: channels,
                bits_per_sample: bits,
                flags,
            };
            assert!(matches!(
                PcmFormat::from_header(&header),
                Err(Error::Corrupt { .. })
            ));
        }
        for flags in [0x05, 0x09, 0x11] {
            let header = FlacBlockHeader {
                num_channels: 1,
                bits_per_sample: 16,
                flags,
            };
            assert!(matches!(
                PcmFormat::from_header(&header),
                Err(Error::Unsupported(_))
            ));
        }
    }
}
