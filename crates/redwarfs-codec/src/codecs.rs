//! The codecs of this build. Each cargo feature of the crate decides here, and only here, whether
//! its codec can be used.

use std::sync::Arc;

#[cfg(feature = "brotli")]
use crate::brotli;
use crate::codec::{Decoding, Encoding, Settings, not_in_this_build};
#[cfg(feature = "lz4")]
use crate::lz4;
#[cfg(feature = "lzma")]
use crate::xz;
#[cfg(feature = "zstd")]
use crate::zstd;
use crate::{CompressionId, Error, Result};
use crate::{flac, null, ricepp};

/// The codecs whose payloads can be read. FLAC and RICEPP are here in any case: what their payloads
/// say about the content is read without them.
static DECODINGS: &[&Decoding] = &[
    &null::DECODING,
    #[cfg(feature = "zstd")]
    &zstd::DECODING,
    #[cfg(feature = "lzma")]
    &xz::DECODING,
    #[cfg(feature = "lz4")]
    &lz4::DECODING,
    #[cfg(feature = "lz4")]
    &lz4::DECODING_OF_LZ4HC,
    #[cfg(feature = "brotli")]
    &brotli::DECODING,
    &flac::DECODING,
    &ricepp::DECODING,
];

/// The codecs that a spec can name, in the order of the help text.
pub(crate) static ENCODINGS: &[&Encoding] = &[
    &null::ENCODING,
    #[cfg(feature = "zstd")]
    &zstd::ENCODING,
    #[cfg(feature = "lzma")]
    &xz::ENCODING,
    #[cfg(feature = "lz4")]
    &lz4::ENCODING,
    #[cfg(feature = "lz4")]
    &lz4::ENCODING_OF_LZ4HC,
    #[cfg(feature = "brotli")]
    &brotli::ENCODING,
    #[cfg(feature = "flac")]
    &flac::ENCODING,
    #[cfg(feature = "ricepp")]
    &ricepp::ENCODING,
];

/// Names of all codecs of the format, in the order of the help text, and whether this build has them.
/// Not taken from [`ENCODINGS`], so that a program that only reads has no encoder.
const NAMES: [(&str, bool); 8] = [
    ("null", true),
    ("zstd", cfg!(feature = "zstd")),
    ("lzma", cfg!(feature = "lzma")),
    ("lz4", cfg!(feature = "lz4")),
    ("lz4hc", cfg!(feature = "lz4")),
    ("brotli", cfg!(feature = "brotli")),
    ("flac", cfg!(feature = "flac")),
    ("ricepp", cfg!(feature = "ricepp")),
];

fn names(built: bool) -> Vec<&'static str> {
    let names = NAMES.into_iter().filter(|&(_, here)| here == built);
    names.map(|(name, _)| name).collect()
}

/// How payloads with this id are read.
///
/// # Errors
///
/// [`Error::Unsupported`] for an unknown id, or an id whose codec is not in this build.
pub(crate) fn decoding(id: CompressionId) -> Result<&'static Decoding> {
    let known = DECODINGS.iter().find(|decoding| decoding.id == id);
    known.copied().ok_or_else(|| match id.name() {
        Some(_) => not_in_this_build(id),
        None => Error::Unsupported(format!("compression type {}", id.0)),
    })
}

/// The settings that find out whether a block is worth the time of a slow encoder. Codecs with slow
/// settings come with zstd, so that what they make is the same in all builds.
pub(crate) fn probe() -> Option<Arc<dyn Settings>> {
    #[cfg(feature = "zstd")]
    let probe = Some(zstd::probe());
    #[cfg(not(feature = "zstd"))]
    let probe = None;
    probe
}

/// Names of the codecs that this build can compress with and decompress, for example `zstd`.
pub fn codec_names() -> Vec<&'static str> {
    names(true)
}

/// Names of the codecs of the format that this build is without.
pub fn missing_codec_names() -> Vec<&'static str> {
    names(false)
}

/// Names and versions of the compression libraries in this build, for example
/// `zstd-1.5.7`, in alphabetical order.
pub fn library_versions() -> Vec<String> {
    vec![
        #[cfg(feature = "brotli")]
        brotli::library_version(),
        #[cfg(feature = "flac")]
        flac::library_version(),
        #[cfg(feature = "lzma")]
        xz::library_version(),
        #[cfg(feature = "lz4")]
        lz4::library_version(),
        #[cfg(feature = "zstd")]
        zstd::library_version(),
    ]
}
