//! A block to decode, the offset up to which to decode it, and the urgency.

use redwarfs_format::BlockNo;

/// Urgency of bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A request waits for them.
    Wanted,
    /// They will be needed soon.
    Ahead,
    /// They may be needed. Decoding them yields to every other thread that waits to decode.
    Speculative,
}

/// Bytes of a block that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) block: BlockNo,
    /// The end of the needed bytes, from the start of the block.
    pub(crate) end: u64,
    pub(crate) urgency: Urgency,
}

impl Need {
    /// Bytes that will be needed soon.
    pub(crate) fn ahead(block: BlockNo, end: u64) -> Self {
        Self {
            block,
            end,
            urgency: Urgency::Ahead,
        }
    }
}

/// Takes the needs in order. False if the threads are too busy; then the rest of the list is left out.
pub(crate) type Submit<'a> = dyn FnMut(Need) -> bool + 'a;
