//! `mkdwarfs`.

use std::ffi::OsString;

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
#[must_use]
pub fn main(_args: Vec<OsString>) -> u8 {
    crate::common::ToolError::new("not built into this program").report("mkdwarfs")
}
