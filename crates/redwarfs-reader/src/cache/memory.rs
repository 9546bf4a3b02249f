//! Memory of decoded blocks.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use redwarfs_format::{Error, Result};

use crate::options::BlockAllocator;

/// A piece of a block.
pub(super) enum Segment {
    Heap(Box<[u8]>),
    Mapped(MmapMut),
}

impl Segment {
    /// `len` zeros, or an error where an allocation would abort.
    ///
    /// Large buffers come from the system without being touched. So a block that announces far
    /// more than its payload yields costs address space, not memory.
    pub(super) fn zeroed(allocator: BlockAllocator, len: usize) -> Result<Self> {
        let no_memory = || Error::Limit(format!("no memory for {len} bytes of a block"));
        // A mapping of nothing would still take a page.
        if allocator == BlockAllocator::Mmap && len > 0 {
            return MmapMut::map_anon(len)
                .map(Self::Mapped)
                .map_err(|_| no_memory());
        }
        Vec::<u8>::new()
            .try_reserve_exact(len)
            .map_err(|_| no_memory())?;
        // Unlike `resize`, `vec!` asks for memory that is zero already.
        Ok(Self::Heap(vec![0; len].into_boxed_slice()))
    }

    /// Bytes that the segment takes: whole pages if it is mapped.
    pub(super) fn memory(&self) -> u64 {
        match self {
            Self::Heap(bytes) => bytes.len() as u64,
            Self::Mapped(bytes) => bytes.len().next_multiple_of(rustix::param::page_size()) as u64,
        }
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Heap(_) => "Heap",
            Self::Mapped(_) => "Mapped",
        };
        write!(f, "{kind}({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_both_kinds() {
        for allocator in [BlockAllocator::Malloc, BlockAllocator::Mmap] {
            for len in [0, 1, 5000] {
                let mut segment = Segment::zeroed(allocator, len).unwrap();
                assert_eq!(*segment, vec![0; len]);
                segment.fill(7);
                assert_eq!(*segment, vec![7; len]);
                assert!(segment.memory() >= len as u64);
            }
            assert!(Segment::zeroed(allocator, usize::MAX / 2).is_err());
        }
        let page = rustix::param::page_size() as u64;
        let one = Segment::zeroed(BlockAllocator::Mmap, 1).unwrap();
        assert_eq!(one.memory(), page);
    }
}
