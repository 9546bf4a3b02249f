//! Compressing blocks.

use std::sync::Arc;

use crate::codec::{Encode, Settings};
use crate::codecs::probe;
use crate::content::{Content, ContentKind};
use crate::decode::decodes_to;
use crate::spec::CodecSpec;
use crate::table::Table;
use crate::{CompressionId, Result};

/// What became of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressed {
    /// The compression id to write into the section header.
    pub id: CompressionId,
    /// The payload; `None` if the raw bytes are to be stored. Then `id` is [`CompressionId::NONE`].
    pub data: Option<Vec<u8>>,
}

/// Compresses blocks one after another with the same settings.
///
/// Library contexts and scratch memory are kept between blocks, so a worker thread
/// should own one compressor for as long as it works. The result depends on the
/// settings and the block only, never on earlier blocks.
#[derive(Debug)]
pub struct Compressor {
    /// The id of the encoder's payloads.
    id: CompressionId,
    /// The encoder takes audio or pixels only.
    media: bool,
    encoder: Box<dyn Encode>,
    /// Finds out about blocks that are not worth the time of a slow encoder, or all of it.
    probe: Option<Box<dyn Encode>>,
    fallback: Option<Fallback>,
}

/// If a fast encoder does not make a block smaller by one part in this number, no slow one is asked: it would take
/// hundreds of times as long, and save almost nothing.
const HOPEFUL: usize = 256;

/// A large block is stored uncompressed if compression does not make it smaller by one part in this number. Whoever
/// reads a small file from it would have to decompress up to a whole block, and the reader maps stored blocks.
const WORTHWHILE: usize = 100;

/// Blocks below this size are not probed, and compressed whatever that saves: they take no time. In bytes.
const LARGE: usize = 1 << 18;

/// The codec for blocks that the first choice cannot compress.
#[derive(Debug)]
struct Fallback {
    spec: CodecSpec,
    /// Made when it is needed for the first time.
    compressor: Option<Box<Compressor>>,
}

impl Compressor {
    /// Uses `spec` for blocks that a codec for audio or pixels cannot make smaller without loss,
    /// instead of storing them uncompressed. Other codecs never make use of it.
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

    /// Compresses data that consists of tables and other things. A codec that can compress each table
    /// separately does so. For all others, it is one block.
    ///
    /// `tables` are ascending; what does not lie within `raw` is no table. A payload of `limit` bytes or more is given
    /// up, as one that is not smaller than `raw`. A codec that compresses tables takes no more memory than `limit` for it.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the library cannot get the memory it needs.
    pub fn compress_tables(
        &mut self,
        raw: &[u8],
        tables: &[Table],
        limit: usize,
    ) -> Result<Compressed> {
        let payload = match self.encoder.for_tables() {
            Some(encoder) => encoder.compress(raw, tables, limit)?,
            None => self.compress(raw)?.data.filter(|data| data.len() < limit),
        };
        Ok(match payload {
            Some(data) => Compressed {
                id: self.id,
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
    /// The payload, with its framing, is returned only if it is smaller than `raw`: by 1 % if `raw` has 256 KiB or more,
    /// and otherwise by a byte. If not, the block is to be stored uncompressed.
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
        let hopeless = probed.is_some_and(|size| size > raw.len() - raw.len() / HOPEFUL);
        let data = if raw.len() < 2 || hopeless {
            None
        } else {
            let payload = self.encoder.compress(raw, content, probed)?;
            payload.filter(|payload| !self.media || decodes_to(self.id, payload, raw))
        };
        match (data, &mut self.fallback) {
            (Some(data), _) if data.len() <= most(raw.len()) => Ok(Compressed {
                id: self.id,
                data: Some(data),
            }),
            (_, Some(fallback)) if self.media && raw.len() >= 2 => {
                fallback.compressor().compress(raw)
            }
            _ => Ok(Compressed {
                id: CompressionId::NONE,
                data: None,
            }),
        }
    }

    /// What a fast encoder makes of a block, in bytes, if it is worth asking.
    fn probe(&mut self, raw: &[u8]) -> Result<Option<usize>> {
        match &mut self.probe {
            Some(probe) if raw.len() >= LARGE => {
                let payload = probe.compress(raw, &Content::Bytes, None)?;
                Ok(Some(payload.map_or(raw.len(), |payload| payload.len())))
            }
            _ => Ok(None),
        }
    }
}

/// The largest payload that is better than a stored block of `size` bytes; `size` is above 0.
fn most(size: usize) -> usize {
    let saved = if size < LARGE { 1 } else { size / WORTHWHILE };
    size - saved
}

impl Fallback {
    fn compressor(&mut self) -> &mut Compressor {
        self.compressor
            .get_or_insert_with(|| Box::new(self.spec.compressor()))
    }
}

/// The settings of the probe for an encoder with `settings`, if it needs one.
fn probe_of(settings: &dyn Settings) -> Option<Arc<dyn Settings>> {
    settings.are_slow().then(probe).flatten()
}

impl CodecSpec {
    /// A compressor with these settings; one for each worker. For codecs that take only some
    /// data, see also [`Compressor::with_fallback`].
    pub fn compressor(&self) -> Compressor {
        let settings = self.settings();
        Compressor {
            id: self.codec().map_or(CompressionId::NONE, |codec| codec.id),
            media: self.requires() != ContentKind::Bytes,
            encoder: settings.encoder(),
            probe: probe_of(settings).map(|probe| probe.encoder()),
            fallback: None,
        }
    }

    /// An estimate of the memory, in bytes, that a [`Compressor`] holds while it works on a block of
    /// `raw_size` bytes, the block itself not included. For zstd and lzma it is the library's own (with
    /// `long`, for assumed sizes of its tables), for brotli and flac a formula. A fallback takes
    /// additional memory.
    pub fn encoder_memory(&self, raw_size: usize) -> u64 {
        let settings = self.settings();
        let probe = probe_of(settings).map_or(0, |probe| probe.memory(raw_size));
        probe.saturating_add(settings.memory(raw_size))
    }
}
