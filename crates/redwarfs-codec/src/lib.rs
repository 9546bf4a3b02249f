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
//! ([`Content`]), and [`Compressor::compress_with`] takes it. FLAC needs the cargo feature `flac`, which
//! builds libFLAC with cmake. Without the feature, this crate refuses FLAC specs and payloads by name.

mod brotli_codec;
mod compress;
mod content;
mod decode;
mod flac;
mod lz4;
mod options;
mod ricepp;
mod spec;
mod varint;
mod xz;
mod zstd;

pub use compress::{Compressed, Compressor, Table};
pub use content::{ByteOrder, Content, ContentKind, Padding, PcmFormat, PixelFormat};
pub use decode::{Decoder, decompress, raw_size};
pub use redwarfs_format::section::CompressionId;
pub use redwarfs_format::{Error, Result};
pub use spec::{CodecSpec, SpecError, help};

/// Names and versions of the compression libraries in this build, for example
/// `zstd-1.5.7`, in alphabetical order.
pub fn library_versions() -> Vec<String> {
    vec![
        brotli_codec::library_version(),
        #[cfg(feature = "flac")]
        flac::library_version(),
        xz::library_version(),
        lz4::library_version(),
        zstd::library_version(),
    ]
}
