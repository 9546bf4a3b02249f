//! What a script language provides.

use redwarfs_writer::{Category, EntryHook};

use crate::common::ToolError;

/// What errors of a script begin with.
const SCRIPT: &str = "script";

/// What scripts are asked beyond entries.
pub(super) trait Decider: EntryHook {
    /// Whether it gives order keys.
    fn has_order(&self) -> bool;

    /// Whether it has put a file into this category.
    fn has_made(&self, category: Category) -> bool;
}

/// The error for the words of a script.
pub(in crate::mkdwarfs) fn error(text: impl std::fmt::Display) -> ToolError {
    ToolError::new(SCRIPT).cause(text)
}
