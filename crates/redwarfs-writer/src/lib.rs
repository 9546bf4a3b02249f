//! Building DwarFS images: a [`Source`] of entries becomes a finished image.
//!
//! ```text
//! source -> tree -> scan (hash equal sizes, categorize, similarity) -> order -> segment
//!        -> compress -> emit
//! ```
//!
//! The image is a function of input, options and version alone: the number of workers and
//! their timing never change a byte. File contents are never held in memory as a whole; what
//! is held stays below [`BuildOptions::memory_limit`], see there.

mod builder;
mod category;
pub mod emit;
mod error;
mod fingerprint;
mod hash;
mod holes;
mod hook;
mod memory;
mod meta;
mod options;
mod order;
mod pipeline;
mod progress;
mod scan;
mod segment;
mod settings;
mod source;
mod store;
mod together;
pub(crate) mod tree;

pub use builder::{BuildSummary, Builder};
pub use category::{
    BadCategoryName, Categorizer, Category, CategoryName, HotPaths, HotPathsError, Incompressible,
    UnknownCategory,
};
pub use error::{Error, Result};
pub use hash::{FileHash, UnknownFileHash};
pub use holes::{HoleTable, MIN_CACHED_CHUNKS};
pub use hook::{Decision, EntryHook, HookEntry, OrderKey};
pub use options::{
    BuildOptions, CategoryOptions, FamilyOptions, HistoryOptions, IdTransform, ModeTransform,
    NilsimsaOptions, Order, ThreadGroup, ThreadStart, TimeResolution, TimeResolutionError,
};
pub use pipeline::physical_memory;
pub use progress::{Counters, Level, Phase, Progress, SilentProgress, thread_cpu_ns};
pub use source::declared::{Declaration, DeclarationError, Declared, DeclaredSource};
pub use source::directory::{DirectorySource, EntryFilter, Symlinks, Tag};
pub use source::extended::ExtendedAttributes;
pub use source::list::{ListReport, plain_path};
pub use source::memory::{MemoryNode, MemoryTree, Piece};
pub use source::timed::TimedSource;
pub use source::{Content, DataExtent, DirItem, FileType, Meta, Source, Stamp, Timestamp};
