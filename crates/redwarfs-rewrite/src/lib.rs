//! Rewriting DwarFS images: other compression, other block size, other metadata.
//!
//! | step | module | what it does |
//! |---|---|---|
//! | check | `rewriter` | verifies the checksums of the source image |
//! | plan | `plan` | decides for each block whether to copy or to compress it, and how |
//! | cut | `recut` | joins the data of old blocks and cuts it into blocks of the new size |
//! | compress | `pool` | decodes and compresses in several threads, and writes in order |
//! | metadata | `metadata`, `attributes` | converts the metadata, if the options ask for it |
//! | several images | `merge` | joins images, and changes their trees |
//!
//! [`rewrite`] calls these steps one after the other. The result depends on the source image and the
//! options alone: neither the number of threads nor their timing changes a byte.
//!
//! Images of all old formats become images of the current one. Their sections get headers with
//! checksums, and the image gets an index and a history. The metadata is copied unchanged, unless the
//! options request a conversion ([`RewriteOptions::rebuild`]). Sections of unknown types are copied.
//!
//! [`RewriteOptions::memory_limit`] bounds the resident memory. A rewrite holds the metadata of the
//! image, and a job for each worker: an old block, a new block and a compressor. It also holds payloads
//! that wait for their turn in the output. Rebuilding metadata takes about 250 bytes for each inode, 40
//! bytes for each entry and each chunk, and twice the length of all names on top.

mod attributes;
mod error;
mod extensions;
mod hidden;
mod memory;
pub mod merge;
mod metadata;
mod options;
mod plan;
mod pool;
mod recut;
mod rewriter;
mod stored;

pub use error::{Error, Result};
pub use options::{CategoryCodec, CategoryFilter, Leading, Rebuild, RewriteOptions};
pub use rewriter::{RewriteSummary, rewrite};
pub use stored::{StoredContent, StoredMeta};
