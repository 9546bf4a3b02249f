//! FLAC: a varint with the raw size, a header with the layout of the samples, then one native
//! FLAC stream.
//!
//! [`framing`] and [`pcm`] are safe code. This module also reads the metadata blocks of the stream.
//! libFLAC, which [`codec`] binds, only gets the metadata block that describes the samples, and the
//! audio frames.

#[cfg(feature = "flac")]
mod codec;
#[cfg_attr(not(feature = "flac"), allow(dead_code))] // what only decoding and encoding need
mod framing;
#[cfg(feature = "flac")]
mod pcm;

#[cfg(feature = "flac")]
pub(crate) use codec::{ENCODING, library_version};

use crate::codec::{Decode, Decoding};
use crate::content::Content;
use crate::{CompressionId, Result};
use framing::Framing;

/// In a build without the codec, what payloads announce can be read, but not the data.
pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::FLAC,
    raw_size: |payload| framing::raw_size(payload).map(|(size, _)| size),
    content: |payload| Ok(Content::Pcm(Framing::parse(payload)?.format)),
    decoder,
};

#[cfg(feature = "flac")]
fn decoder(payload: &[u8], _raw_size: u64) -> Result<Box<dyn Decode>> {
    Ok(Box::new(codec::FlacDecoder::new(payload)?))
}

#[cfg(not(feature = "flac"))]
fn decoder(payload: &[u8], _raw_size: u64) -> Result<Box<dyn Decode>> {
    Framing::parse(payload)?;
    Err(crate::codec::not_in_this_build(CompressionId::FLAC))
}
