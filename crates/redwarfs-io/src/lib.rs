//! Positional reads behind one trait, and output files that appear complete or not at all.
//!
//! Image files are touched through this crate only. [`Source`] is what a reader needs from
//! whatever holds an image; [`AtomicFile`] is what a writer needs from a file system.

mod atomic;
mod fault;
mod map;
mod source;

pub use atomic::{AtomicFile, Notice, Overwrite};
pub use fault::{Fault, FaultSource};
pub use map::MapSource;
pub use source::{FileSource, MemorySource, Source};
