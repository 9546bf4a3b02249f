//! Recovery data: how a file is cut into shards, and the pages that describe it (format chapter 11).
//!
//! A protected range is cut into shards of equal size, which belong to groups in turn. Each group has parity
//! shards, from which any as many of its shards can be restored. Pages with the geometry and with a
//! checksum for each shard locate themselves, so that they can be found in a file of which anything may
//! be damaged.

mod geometry;
mod pages;
mod patch;

pub use geometry::{Geometry, GeometryError, ShardGroup};
pub use pages::{Blank, HashPage, HeaderPage, PAGE, PageKind, hash_pages, page_kind, shard_hash};
pub use patch::{EntryHead, FileHasher, PatchHeader};

#[cfg(test)]
mod tests;
