//! The options of a merge.

use std::fmt;
use std::sync::Arc;

use redwarfs_reader::Image;
use redwarfs_writer::{BuildOptions, FileType};

use crate::options::RewriteOptions;

/// An image, and its place in the new tree.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Part<'a> {
    /// The image.
    pub image: &'a Image,
    /// Path of the directory that its root becomes; empty for the root of the new tree.
    pub at: &'a [u8],
}

impl<'a> Part<'a> {
    /// All of it.
    pub fn new(image: &'a Image, at: &'a [u8]) -> Self {
        Self { image, at }
    }
}

/// The meaning of whiteouts: entries by which a layer removes entries of the layers before it. These are
/// the names that begin with `.wh.` in layers of containers, and devices with the number 0, marked empty
/// files and opaque directories of overlayfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// They are entries like others.
    #[default]
    Keep,
    /// They remove what the images before have, and are left out.
    Apply,
    /// They remove what the images before have, and stay in the form that overlayfs knows.
    Overlay,
}

/// Decides about an entry by its path and type.
type Select = dyn Fn(&[u8], FileType) -> bool + Send + Sync;

/// Selects entries.
#[derive(Clone)]
pub struct Selection(Arc<Select>);

impl Selection {
    /// Keeps the entries for which the function returns true. It must be a pure function. It gets the path
    /// without a leading slash. It is not asked about entries below a directory that is left out.
    pub fn new(keep: impl Fn(&[u8], FileType) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(keep))
    }

    pub(crate) fn keeps(&self, path: &[u8], kind: FileType) -> bool {
        (self.0)(path, kind)
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selection")
    }
}

/// All options of a merge. Changes of the tree happen in the order of the fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MergeOptions {
    /// What happens to whiteouts of the parts.
    pub whiteouts: Whiteouts,
    /// Which entries stay.
    pub filter: Option<Selection>,
    /// Paths of entries to remove, with everything below them.
    pub remove: Vec<Vec<u8>>,
    /// Paths to rename, one after the other: the old one and the new one. Missing directories of the new
    /// path are made.
    pub rename: Vec<(Vec<u8>, Vec<u8>)>,
    /// Decode blocks of which less than so many per cent are in use, and put the data that is in use into
    /// new blocks: 0 for none, 100 for every block with unused data.
    pub repack: u8,
    /// Codecs, threads, memory, history and the bytes before the image. The new block size is that of the
    /// parts, and metadata is always made anew, with `metadata`.
    pub rewrite: RewriteOptions,
    /// The metadata. Block size, resolution of times, and what kinds of entries and times are stored follow
    /// from the parts. `keep_all_times` only counts if the parts have these times.
    pub metadata: BuildOptions,
    /// Coarsen the times to the resolution of `metadata`. Otherwise the coarsest resolution counts in which
    /// no time of any part changes.
    pub coarsen: bool,
    /// Bytes that the block caches of all parts keep together. They count for the memory limit.
    pub caches: u64,
    /// Keep the records of earlier versions of the metadata, and add the present ones.
    pub version_history: bool,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self::level(7)
    }
}

impl MergeOptions {
    /// Changes nothing. The codecs are those of the preset `level`, 0..=9, of a build.
    pub fn level(level: u8) -> Self {
        Self {
            whiteouts: Whiteouts::Keep,
            filter: None,
            remove: Vec::new(),
            rename: Vec::new(),
            repack: 0,
            rewrite: RewriteOptions::level(level),
            metadata: BuildOptions::level(level),
            coarsen: false,
            caches: 0,
            version_history: true,
        }
    }
}
