//! The DwarFS image format: bytes to structures and back.
//!
//! Nothing in this crate opens a file, starts a thread or uses `unsafe`. Image bytes come in as
//! slices or through a positional read function, and everything that is taken from them is
//! treated as untrusted: bad input leads to an [`Error`], never to a panic, and never to more
//! memory or time than the size of the input justifies.
//!
//! | module | what it covers |
//! |---|---|
//! | [`section`] | headers, hashes, section index, opening a container, finding an image in a file |
//! | [`thrift`] | the subset of the Thrift compact protocol that images use |
//! | [`history`] | the HISTORY payload |
//! | [`block_header`] | the small structs in front of FLAC and Rice++ payloads |
//! | [`fsst`] | string compression of the name and symlink tables |
//! | [`frozen`] | the bit-packed encoding of the metadata |
//! | [`metadata`] | the metadata: model, in-place view, packing, checks |
#![forbid(unsafe_code)]

pub mod block_header;
pub mod error;
pub mod frozen;
pub mod fsst;
pub mod history;
pub mod ids;
pub mod metadata;
pub mod section;
pub mod thrift;

pub use error::{Error, Location, Result};
pub use ids::{BlockNo, CategoryId, ChunkIndex, EntryIndex, InodeNo};
