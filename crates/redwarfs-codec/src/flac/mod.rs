//! FLAC: a varint with the raw size, a header with the layout of the samples, then one native
//! FLAC stream.
//!
//! [`Framing`] and [`pcm`] are safe code. Of the stream, the metadata blocks are read here too:
//! libFLAC, which [`codec`] binds, gets to see only the one that describes the samples, and the
//! audio frames.

#[cfg(feature = "flac")]
mod codec;
#[cfg(feature = "flac")]
mod pcm;

#[cfg(feature = "flac")]
pub(crate) use codec::{FlacDecoder, FlacEncoder, library_version};

use redwarfs_format::block_header::FlacBlockHeader;

use crate::content::PcmFormat;
use crate::{Error, Result, varint};

/// What precedes the FLAC stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    /// Size of the data in bytes.
    #[cfg(feature = "flac")]
    raw_size: u64,
    pub(crate) format: PcmFormat,
    /// Where the FLAC stream starts in the payload.
    #[cfg(feature = "flac")]
    stream: usize,
}

impl Framing {
    pub(crate) fn parse(payload: &[u8]) -> Result<Self> {
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
            #[cfg(feature = "flac")]
            raw_size,
            #[cfg(feature = "flac")]
            stream: prefix + _length,
        })
    }
}

/// The announced size, and the number of bytes that announce it.
pub(crate) fn raw_size(payload: &[u8]) -> Result<(u64, usize)> {
    varint::read(payload).ok_or_else(|| Error::corrupt("FLAC payload does not start with a size"))
}

/// Bytes that the encoder needs besides the block itself.
#[cfg(feature = "flac")]
pub(crate) fn encoder_memory(raw_size: usize) -> u64 {
    // The payload, and what libFLAC keeps for one of its blocks: eight channels of 4096 samples
    // in a dozen arrays of up to eight bytes a sample.
    const LIBRARY: u64 = 4 << 20;
    LIBRARY + raw_size as u64
}
