//! Section codecs: from the payload of a section to bytes and back, and the grammar of `-C` that
//! chooses a codec.
//!
//! ```
//! use redwarfs_codec::{CodecSpec, decompress};
//!
//! let spec: CodecSpec = "zstd:level=19".parse()?;
//! let mut compressor = spec.compressor();
//! let raw = b"the same words, the same words, the same words".repeat(10);
//! let block = compressor.compress(&raw)?;
//! let payload = block.data.as_deref().unwrap_or(&raw); // no data: stored as it is
//! assert!(payload.len() < raw.len());
//! assert_eq!(decompress(block.id, payload, 1 << 20)?, raw);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`CodecSpec`] makes [`Compressor`]s, one for each worker. A compressor keeps its library context and
//! scratch memory from block to block. A [`Decoder`] decodes a payload step by step, [`decompress`] at
//! once.
//!
//! Payloads are untrusted. For any input, this crate does not panic, does not loop without progress, and
//! does not produce more bytes than the payload announces. It allocates the announced size and a small
//! codec state. The caller gives a limit for the announced size.
//!
//! FLAC and RICEPP compress only audio and pixels. A categorizer says what a block holds
//! ([`Content`]), and [`Compressor::compress_with`] takes it.
//!
//! Each codec but `null` has a cargo feature: `zstd`, `lzma`, `lz4` (with `lz4hc`), `brotli`, `ricepp`, and
//! `flac`, which builds libFLAC with cmake and is not on by default. Without its feature, this crate
//! refuses the specs and payloads of a codec by name: [`SpecError::Unsupported`],
//! [`Error::Unsupported`]. `lzma` and `brotli` include `zstd`, which finds out whether a block is worth
//! their time. A codec therefore writes the same bytes in every build.

#[cfg(feature = "brotli")]
mod brotli;
mod codec;
mod codecs;
mod compress;
mod content;
mod decode;
mod flac;
#[cfg_attr(
    not(all(feature = "zstd", feature = "lzma", feature = "lz4")),
    allow(dead_code) // what only the options of some codecs need
)]
mod grammar;
#[cfg(feature = "lz4")]
mod lz4;
mod memory;
mod null;
mod ricepp;
mod spec;
mod table;
#[cfg_attr(
    not(any(feature = "brotli", feature = "flac", feature = "ricepp")),
    allow(dead_code)
)]
mod varint;
#[cfg(feature = "lzma")]
mod xz;
#[cfg(feature = "zstd")]
mod zstd;

/// Counts the changes of what this crate makes of a block with the same codec, content and [libraries](library_versions). What is
/// kept of earlier results has it in its key. A test pins the payloads, so that it cannot be forgotten.
pub const PAYLOADS: u32 = 1;

pub use codecs::{codec_names, library_versions, missing_codec_names};
pub use compress::{Compressed, Compressor};
pub use content::{ByteOrder, Content, ContentKind, Padding, PcmFormat, PixelFormat};
pub use decode::{Decoder, decompress, raw_size};
pub use grammar::SpecError;
pub use redwarfs_format::section::CompressionId;
pub use redwarfs_format::{Error, Result};
pub use spec::{CodecSpec, help};
pub use table::Table;
