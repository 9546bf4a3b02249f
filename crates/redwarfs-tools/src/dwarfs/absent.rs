//! `dwarfs` on systems on which it cannot mount.

use std::ffi::{OsStr, OsString};

use crate::common::ToolError;

/// Says that there are no mounts. Returns the exit code.
#[must_use]
pub fn main(_args: Vec<OsString>) -> u8 {
    ToolError::new("mounting is not supported on this system")
        .hint("dwarfsextract IMAGE -o DIR extracts an image")
        .report("dwarfs")
}

/// Nothing calls helpers for mounts here.
pub(crate) fn is_mount_helper(_name: &OsStr) -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_are_no_mounts() {
        assert_eq!(
            super::main(vec!["dwarfs".into(), "image".into(), "dir".into()]),
            1
        );
    }
}
