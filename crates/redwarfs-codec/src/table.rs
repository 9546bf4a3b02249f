//! Tables within data.

use std::ops::Range;

/// Records of one size that follow each other in data to be compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Where they are, in bytes.
    pub range: Range<usize>,
    /// Bytes of a record; 0 if it is no whole number.
    pub record: usize,
}
