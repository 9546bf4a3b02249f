//! Building DwarFS images: a [`Source`] of entries becomes a finished image.
//!
//! A build consists of stages. Each stage is one file or folder in `src/stages/`:
//!
//! | stage | from | to | what it does |
//! |---|---|---|---|
//! | `tree` | [`Source`] | `Tree` | lists all entries, with their metadata |
//! | `hash` | `Tree` | `Contents` | finds equal files by their hashes, and compares their bytes if [`BuildOptions::verify_duplicates`] is set |
//! | `categorize` | `Contents` | `Fragments` | cuts each content into fragments, each of one category (audio, ...) |
//! | `digest` | `Fragments` | `Digests` | computes similarity digests, if the order needs them |
//! | `order` | `Fragments`, `Digests` | `Sequences` | sorts each stream: the fragments of one category and kind of data |
//! | `segment` | `Sequences` | blocks, `Stored` | fills blocks, and refers to data that is already there |
//! | `compress` | blocks | sections | compresses blocks in any order, and writes them in order |
//! | `emit` | `Tree`, `Stored` | sections | writes metadata, history and section index |
//!
//! `segment` and `compress` run at the same time. All other stages run one after the other.
//! [`Builder::build`] calls the stages in this order. `hash`, `categorize` and `digest` read a file only if
//! they need its bytes. For example, `hash` reads a file only if another file has the same size. `segment` reads every
//! content and puts it into blocks, and `compress` turns each block into a section. The bytes of small
//! files stay in memory between these stages as long as there is room.
//!
//! Around the stages:
//!
//! | module | what it holds |
//! |---|---|
//! | `contents`, `tree` | the data that the stages hand on |
//! | `base` | the image that a build continues, if it does |
//! | `checkpoint` | results of an earlier build that was interrupted |
//! | `settings` | what the options say about one stream: order, segmenter |
//! | `ordered` | the worker pool whose results come in the order of the jobs |
//! | `memory` | how much memory a build needs, and how many threads and blocks a limit allows |
//! | `spill` | messages about tables that wait in a temporary file |
//! | `category` | the categorizers: how files of each kind are cut |
//! | `assemble` | metadata for data that is in blocks already: the stages `tree` and `emit` alone |
//! | `fingerprint` | the similarity digests |
//! | `segmenter` | the search for data that is already in a block |
//! | `source` | directories, lists, declared entries, trees in memory |
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//!
//! use redwarfs_writer::{BuildOptions, Builder, MemoryNode, MemoryTree, SilentProgress};
//!
//! let mut source = MemoryTree::new();
//! source.insert("hello.txt", MemoryNode::file("Hello!\n"));
//! let mut image = Vec::new();
//! let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
//! let builder = Builder::new(BuildOptions::level(4));
//! let summary = builder.build(&source, &mut image, &progress, &stop)?;
//! assert_eq!((summary.errors, summary.original_size), (0, 7));
//! assert_eq!(summary.image_size, image.len() as u64);
//! # Ok::<(), redwarfs_writer::Error>(())
//! ```
//!
//! The image depends on input, options and version alone: neither the number of threads nor their
//! timing changes a byte. The time of creation is one of the options. A build does not need all
//! contents in memory at once. [`BuildOptions::memory_limit`] bounds its memory.

mod acl;
mod assemble;
mod base;
mod builder;
mod category;
mod check;
mod checkpoint;
mod contents;
mod context;
mod error;
mod fingerprint;
mod hash;
mod holes;
mod hook;
mod layers;
mod memory;
mod options;
pub mod ordered;
mod os;
mod progress;
mod read;
mod report;
mod segmenter;
mod settings;
#[cfg(all(test, target_pointer_width = "64"))]
mod sizes;
mod source;
mod spill;
mod stages;
mod stored;
mod tree;
mod xattrs;

pub use acl::{chmod_access_list, is_mode as access_list_is_mode};
pub use assemble::{Assembled, BlockCategories, Placed, ValueDigest, assemble};
pub use base::{BaseBlock, BaseContent, BaseImage, NewGeneration};
pub use builder::{BuildSummary, Builder};
pub use category::{
    BadCategoryName, Categorizer, Category, CategoryName, HotPaths, HotPathsError, Incompressible,
    UnknownCategory,
};
pub use error::{Error, Result};
pub use hash::{FileHash, UnknownFileHash};
pub use holes::{HoleTable, MIN_CACHED_CHUNKS};
pub use hook::{Decision, EntryHook, HookEntry, OrderKey};
pub use layers::{LayerName, OPAQUE_ATTRIBUTE};
pub use memory::physical_memory;
pub use options::{
    BuildOptions, CategoryOptions, FamilyOptions, HistoryOptions, IdTransform, ModeTransform,
    NilsimsaOptions, Order, ThreadGroup, ThreadStart, TimeResolution, TimeResolutionError,
};
pub use progress::{Counters, Level, Phase, Progress, SilentProgress, thread_cpu_ns};
pub use source::declared::{Declaration, DeclarationError, Declared, DeclaredSource};
pub use source::directory::{DirectorySource, EntryFilter, Symlinks, Tag};
pub use source::extended::{ExtendedAttributes, Xattr, XattrFilter, can_be_stored};
pub use source::list::{InputList, ListReport, plain_path};
pub use source::memory::{MemoryExtent, MemoryNode, MemoryTree};
pub use source::timed::TimedSource;
pub use source::{
    Content, DataExtent, DirItem, FileIdentity, FileType, Meta, PackedTime, Source, Stamp,
    Timestamp, join,
};
pub use spill::log_spilled;
pub use stages::emit;
