//! Compressing blocks.

use crate::brotli_codec::BrotliEncoder;
use crate::lz4::Lz4Encoder;
use crate::options::Options;
use crate::xz::XzEncoder;
use crate::zstd::ZstdEncoder;
use crate::{CompressionId, Result};

/// What became of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressed {
    /// The compression id to write into the section header.
    pub id: CompressionId,
    /// The payload; `None` if the raw bytes are to be stored as they are, in which
    /// case `id` is [`CompressionId::NONE`].
    pub data: Option<Vec<u8>>,
}

/// Compresses blocks one after another with the same settings.
///
/// Library contexts and scratch memory are kept between blocks, so a worker thread
/// should own one compressor for as long as it works. The result depends on the
/// settings and the block only, never on earlier blocks.
#[derive(Debug)]
pub struct Compressor {
    encoder: Encoder,
}

#[derive(Debug)]
enum Encoder {
    None,
    Zstd(ZstdEncoder),
    Xz(XzEncoder),
    Lz4(Lz4Encoder),
    Brotli(BrotliEncoder),
}

impl Compressor {
    pub(crate) fn new(options: &Options) -> Self {
        let encoder = match options {
            Options::Null => Encoder::None,
            Options::Zstd(options) => Encoder::Zstd(ZstdEncoder::new(options.clone())),
            Options::Lzma(options) => Encoder::Xz(XzEncoder::new(options.clone())),
            Options::Lz4 => Encoder::Lz4(Lz4Encoder::fast()),
            Options::Lz4hc { level } => Encoder::Lz4(Lz4Encoder::high(*level)),
            Options::Brotli { quality, lgwin } => {
                Encoder::Brotli(BrotliEncoder::new(*quality, *lgwin))
            }
        };
        Self { encoder }
    }

    /// Compresses one block.
    ///
    /// The payload is returned only if it is strictly smaller than `raw`, framing
    /// included; otherwise the block is to be stored as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the library cannot get the memory it needs.
    pub fn compress(&mut self, raw: &[u8]) -> Result<Compressed> {
        // One byte of payload cannot hold anything in any of the formats.
        let (id, data) = if raw.len() < 2 {
            (CompressionId::NONE, None)
        } else {
            match &mut self.encoder {
                Encoder::None => (CompressionId::NONE, None),
                Encoder::Zstd(encoder) => (CompressionId::ZSTD, encoder.compress(raw)?),
                Encoder::Xz(encoder) => (CompressionId::LZMA, encoder.compress(raw)?),
                // Both LZ4 compressors write the same format and the same id.
                Encoder::Lz4(encoder) => (CompressionId::LZ4, encoder.compress(raw)?),
                Encoder::Brotli(encoder) => (CompressionId::BROTLI, encoder.compress(raw)?),
            }
        };
        Ok(match data {
            Some(data) if data.len() < raw.len() => Compressed {
                id,
                data: Some(data),
            },
            _ => Compressed {
                id: CompressionId::NONE,
                data: None,
            },
        })
    }
}
