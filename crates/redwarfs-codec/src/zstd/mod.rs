//! Zstandard: one frame that carries its content size.

mod context;
mod decode;
mod decoder_context;
mod encode;
mod in_place;
mod options;

use std::sync::Arc;

use crate::CompressionId;
use crate::codec::{Decoding, Encoding, Settings, any_content};
use crate::content::ContentKind;

#[cfg(feature = "lzma")]
pub(crate) use self::encode::{ZstdEncoder, encoder_memory};
pub(crate) use self::options::ZstdOptions;

pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::ZSTD,
    raw_size: decode::raw_size,
    content: any_content,
    decoder: |payload, _| Ok(Box::new(decode::ZstdDecoder::new(payload)?)),
};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "zstd",
    options: options::OPTIONS,
    id: CompressionId::ZSTD,
    takes: ContentKind::Bytes,
    settings: |values| Ok(Arc::new(ZstdOptions::of(values))),
};

/// The settings that find out what a block is worth: a fast level.
pub(crate) fn probe() -> Arc<dyn Settings> {
    Arc::new(ZstdOptions::PROBE)
}

pub(crate) fn library_version() -> String {
    format!("zstd-{}", zstd_safe::version_string())
}
