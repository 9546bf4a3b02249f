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
//! | 15 | 16 bits each, the bytes of the data |

#[cfg(feature = "ricepp")]
mod decode;
#[cfg(feature = "ricepp")]
mod encode;
#[cfg_attr(not(feature = "ricepp"), allow(dead_code))] // what only decoding and encoding need
mod framing;

#[cfg(feature = "ricepp")]
pub(crate) use encode::ENCODING;

use crate::codec::{Decode, Decoding};
use crate::content::Content;
use crate::{CompressionId, Result};
use framing::Framing;

/// In a build without the codec, what payloads announce can be read, but not the data.
pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::RICEPP,
    raw_size: |payload| framing::raw_size(payload).map(|(size, _)| size),
    content: |payload| Ok(Content::Pixels(Framing::parse(payload)?.format)),
    decoder,
};

#[cfg(feature = "ricepp")]
fn decoder(payload: &[u8], _raw_size: u64) -> Result<Box<dyn Decode>> {
    Ok(Box::new(decode::RiceppDecoder::new(payload)?))
}

#[cfg(not(feature = "ricepp"))]
fn decoder(payload: &[u8], _raw_size: u64) -> Result<Box<dyn Decode>> {
    Framing::parse(payload)?;
    Err(crate::codec::not_in_this_build(CompressionId::RICEPP))
}
