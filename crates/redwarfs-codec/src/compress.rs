//! Compressing blocks.

use std::ops::Range;

use crate::brotli_codec::BrotliEncoder;
use crate::content::Content;
use crate::decode::decodes_to;
#[cfg(feature = "flac")]
use crate::flac::FlacEncoder;
use crate::lz4::Lz4Encoder;
use crate::options::{Options, ZstdOptions};
use crate::ricepp::RiceppEncoder;
use crate::spec::CodecSpec;
use crate::xz::XzEncoder;
use crate::zstd::{self, ZstdEncoder};
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

/// Records of one size that follow each other in data to be compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Where they are, in bytes.
    pub range: Range<usize>,
    /// Bytes of a record; 0 if it is no whole number.
    pub record: usize,
}

/// Compresses blocks one after another with the same settings.
///
/// Library contexts and scratch memory are kept between blocks, so a worker thread
/// should own one compressor for as long as it works. The result depends on the
/// settings and the block only, never on earlier blocks.
#[derive(Debug)]
pub struct Compressor {
    encoder: Encoder,
    /// Finds out about blocks that are not worth the time of a slow encoder, or all of it.
    probe: Option<ZstdEncoder>,
    fallback: Option<Fallback>,
}

/// A block that a fast encoder does not make smaller by one part in this number is stored: a slow
/// one takes hundreds of times as long to gain next to nothing.
const WORTHWHILE: usize = 256;

/// A fast level of zstd, with a window that covers most blocks.
const PROBE: ZstdOptions = ZstdOptions {
    level: 1,
    window_log: Some(24),
    ..ZstdOptions::NONE
};
/// Blocks below this size are not probed: they take no time. In bytes.
const PROBED: usize = 1 << 18;

/// The codec for blocks that the first choice cannot compress.
#[derive(Debug)]
struct Fallback {
    spec: CodecSpec,
    /// Made when it is needed for the first time.
    compressor: Option<Box<Compressor>>,
}

#[derive(Debug)]
enum Encoder {
    None,
    Zstd(ZstdEncoder),
    Xz(XzEncoder),
    Lz4(Lz4Encoder),
    Brotli(BrotliEncoder),
    #[cfg(feature = "flac")]
    Flac(FlacEncoder),
    Ricepp(RiceppEncoder),
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
            #[cfg(feature = "flac")]
            Options::Flac(options) => Encoder::Flac(FlacEncoder::new(*options)),
            Options::Ricepp { block_size } => Encoder::Ricepp(RiceppEncoder::new(*block_size)),
        };
        Self {
            encoder,
            probe: options.are_slow().then(|| ZstdEncoder::new(PROBE)),
            fallback: None,
        }
    }

    /// Compresses with `spec` what a codec for audio or pixels cannot compress losslessly to
    /// less than it was, instead of leaving it as it is. Other codecs never make use of it.
    #[must_use]
    pub fn with_fallback(mut self, spec: &CodecSpec) -> Self {
        self.fallback = Some(Fallback {
            spec: spec.clone(),
            compressor: None,
        });
        self
    }

    /// Compresses one block of which nothing is known; see [`compress_with`](Self::compress_with).
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the library cannot get the memory it needs.
    pub fn compress(&mut self, raw: &[u8]) -> Result<Compressed> {
        self.compress_with(raw, &Content::Bytes)
    }

    /// Compresses data that consists of tables and other things. A codec that can treat each
    /// table in a way of its own does so; for the others it is one block.
    ///
    /// `tables` are ascending; what does not lie within `raw` is no table.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the library cannot get the memory it needs.
    pub fn compress_tables(&mut self, raw: &[u8], tables: &[Table]) -> Result<Compressed> {
        let Encoder::Xz(encoder) = &mut self.encoder else {
            return self.compress(raw);
        };
        Ok(match encoder.compress_tables(raw, tables)? {
            Some(data) => Compressed {
                id: CompressionId::LZMA,
                data: Some(data),
            },
            None => Compressed {
                id: CompressionId::NONE,
                data: None,
            },
        })
    }

    /// Compresses one block of `content`.
    ///
    /// The payload is returned only if it is strictly smaller than `raw`, framing
    /// included; otherwise the block is to be stored as it is.
    ///
    /// FLAC and RICEPP drop bits that by `content` are zero or copies of others. Their payloads
    /// are decoded and compared with `raw` before they are returned. Blocks that would not come
    /// back exactly, do not consist of whole units or are of other content go to the
    /// [fallback](Self::with_fallback), or are stored.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the library cannot get the memory it needs.
    pub fn compress_with(&mut self, raw: &[u8], content: &Content) -> Result<Compressed> {
        // One byte of payload cannot hold anything in any of the formats.
        let probed = self.probe(raw)?;
        let hopeless = probed.is_some_and(|size| size > raw.len() - raw.len() / WORTHWHILE);
        let (id, data) = if raw.len() < 2 || hopeless {
            (CompressionId::NONE, None)
        } else {
            match (&mut self.encoder, content) {
                (Encoder::None, _) => (CompressionId::NONE, None),
                (Encoder::Zstd(encoder), _) => {
                    (CompressionId::ZSTD, encoder.compress(raw, probed)?)
                }
                (Encoder::Xz(encoder), _) => (CompressionId::LZMA, encoder.compress(raw)?),
                // Both LZ4 compressors write the same format and the same id.
                (Encoder::Lz4(encoder), _) => (CompressionId::LZ4, encoder.compress(raw)?),
                (Encoder::Brotli(encoder), _) => (CompressionId::BROTLI, encoder.compress(raw)?),
                #[cfg(feature = "flac")]
                (Encoder::Flac(encoder), Content::Pcm(format)) => {
                    let id = CompressionId::FLAC;
                    (id, proven(id, encoder.compress(raw, format)?, raw))
                }
                (Encoder::Ricepp(encoder), Content::Pixels(format)) => {
                    let id = CompressionId::RICEPP;
                    (id, proven(id, encoder.compress(raw, format)?, raw))
                }
                #[cfg(feature = "flac")]
                (Encoder::Flac(_), _) => (CompressionId::FLAC, None),
                (Encoder::Ricepp(_), _) => (CompressionId::RICEPP, None),
            }
        };
        let media = matches!(id, CompressionId::FLAC | CompressionId::RICEPP);
        match (data, &mut self.fallback) {
            (Some(data), _) if data.len() < raw.len() => Ok(Compressed {
                id,
                data: Some(data),
            }),
            (_, Some(fallback)) if media => fallback.compressor().compress(raw),
            _ => Ok(Compressed {
                id: CompressionId::NONE,
                data: None,
            }),
        }
    }
}

impl Compressor {
    /// Memory of the probe, in bytes.
    pub(crate) fn probe_memory(raw_size: usize) -> u64 {
        zstd::encoder_memory(&PROBE, raw_size)
    }

    /// What a fast encoder makes of a block, in bytes, if it is worth asking.
    fn probe(&mut self, raw: &[u8]) -> Result<Option<usize>> {
        match &mut self.probe {
            Some(probe) if raw.len() >= PROBED => Ok(Some(probe.frame(raw)?.len())),
            _ => Ok(None),
        }
    }
}

impl Fallback {
    fn compressor(&mut self) -> &mut Compressor {
        self.compressor
            .get_or_insert_with(|| Box::new(self.spec.compressor()))
    }
}

/// The payload if it decodes to `raw`.
fn proven(id: CompressionId, payload: Option<Vec<u8>>, raw: &[u8]) -> Option<Vec<u8>> {
    payload.filter(|payload| decodes_to(id, payload, raw))
}
