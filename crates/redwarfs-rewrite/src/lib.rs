//! Rewriting DwarFS images: other compression, other block size, other metadata.
//!
//! ```text
//! image -> check -> plan (what happens to which section) -> decode, compress -> emit in order
//! ```
//!
//! The result is a function of the source image and the options; the number of workers and their
//! timing never change a byte. Images of all old formats can be rewritten and become images of
//! the current one: their sections get headers with checksums, an index and a history; the
//! metadata is converted only if asked for ([`RewriteOptions::rebuild`]), and is copied with
//! everything in it otherwise. Sections of unknown types are copied.
//!
//! Memory: [`RewriteOptions::memory_limit`] bounds what is resident. Beside the metadata of the
//! image there are a job for each worker (a block of the source and of the result, and the
//! compressor), and payloads that wait to be written. Rebuilding metadata takes about 250 bytes
//! for each inode, 40 for each entry and each chunk and twice the length of all names on top.

mod attributes;
mod error;
mod memory;
mod metadata;
mod options;
mod plan;
mod pool;
mod recut;
mod rewriter;

pub use error::{Error, Result};
pub use options::{CategoryCodec, CategoryFilter, Leading, Rebuild, RewriteOptions};
pub use rewriter::{RewriteSummary, rewrite};
