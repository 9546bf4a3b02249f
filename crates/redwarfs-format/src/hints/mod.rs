//! Hints: what a program reads first, so that it can be loaded in one wave (format chapter 14).
//!
//! There are two forms. [`Hints`] name ranges of files. They are a text file, and fit every image that has these
//! files. A [`HintTable`] names blocks. It is the HINTS section of one generation of one image. Both are advice:
//! wrong hints cost time, and nothing else.

mod record;
mod table;

pub use record::{Hint, HintedBlocks, Hints, MAX_HINTS, MAX_HINTS_TEXT, ParseHintsError};
pub use table::{HINTS_TAG, HintKind, HintTable, HintedBlock, MAX_HINTS_SECTION};
