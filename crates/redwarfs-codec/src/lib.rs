//! Section codecs: how the payload of a section becomes bytes and back, and the
//! grammar by which a codec is chosen on a command line.
//!
//! A [`CodecSpec`] is parsed from text such as `zstd:level=19:long`. It makes
//! [`Compressor`]s, one per worker, which keep their library context and scratch
//! memory from block to block. A [`Decoder`] undoes one payload step by step;
//! [`decompress`] does it in one go.
//!
//! Payloads are untrusted. No input makes this crate panic, loop without
//! progress, or produce more bytes than the payload announces, and nothing larger
//! than the announced size plus a small codec state is allocated. The announced
//! size itself is held against a limit that the caller gives.
//!
//! FLAC and RICEPP compress only audio and pixels. What a block holds is its [`Content`], which
//! comes from whoever recognised it; [`Compressor::compress_with`] takes it. FLAC needs the cargo
//! feature `flac`, which builds libFLAC with cmake. Without it, specs and payloads of it are
//! refused by name.

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
