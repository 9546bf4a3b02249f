//! One block to decode, up to which offset, and how urgently.

use redwarfs_format::BlockNo;

/// How urgently bytes of a block are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A reader waits for them.
    Wanted,
    /// A reader will need them soon.
    Ahead,
    /// A reader may need them. Gives way to every other thread that wants to decode.
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
    /// Bytes that a reader will need soon.
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
