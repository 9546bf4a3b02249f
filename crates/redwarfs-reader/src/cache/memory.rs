//! Memory of decoded blocks.
//!
//! The only [`Filler`] of a [`Buffer`] fills it from its start, while any number of threads read the
//! published bytes.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapMut, MmapRaw};
use redwarfs_codec::Decoder;
use redwarfs_format::{Error, Result};

use crate::options::BlockAllocator;
use crate::sys;

/// Smallest buffer that gets a separate mapping with either allocator (128 KiB). The allocator of the
/// process also maps such sizes, but cannot prepare several pages at once.
const MAPPED_FROM: usize = 128 << 10;

/// Smallest number of bytes that are prepared at once, because each preparation is a syscall. It is a
/// 32nd of the buffer, but at most 1 MiB, and at least 128 KiB, the most that zstd decodes at a time.
/// Eight blocks of 16 MiB (zstd 22) took 263 ms of CPU time with 1 MiB at a time, and 312 ms with 128
/// KiB.
const PREPARED: (usize, usize) = (128 << 10, 1 << 20);

/// Memory for one block, of which a prefix can be read.
pub(super) struct Buffer {
    memory: Memory,
    len: usize,
    /// Number of published bytes, which never change. It only grows.
    published: AtomicUsize,
}

enum Memory {
    /// From `Box<[u8]>` of the length of the buffer.
    Heap(*mut u8),
    Mapped(MmapRaw),
}

// SAFETY: the memory belongs only to the buffer, and to no particular thread. Threads that share a
// buffer only read the published bytes, which no thread writes. All other bytes are accessed only
// through the one `Filler`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory for `len` bytes, with the right to fill it; an error where an allocation would
    /// abort.
    ///
    /// Only written bytes take memory, not reserved ones.
    pub(super) fn new(allocator: BlockAllocator, len: usize) -> Result<(Arc<Self>, Filler)> {
        // A mapping of nothing would still take a page.
        let mapped = len > 0 && (allocator == BlockAllocator::Mmap || len >= MAPPED_FROM);
        let memory = match mapped.then(|| MmapMut::map_anon(len)) {
            Some(Ok(map)) => Memory::Mapped(map.into()),
            Some(Err(_)) | None => {
                Vec::<u8>::new()
                    .try_reserve_exact(len)
                    .map_err(|_| Error::Limit(format!("no memory for {len} bytes of a block")))?;
                Memory::Heap(Box::into_raw(vec![0; len].into_boxed_slice()).cast())
            }
        };
        let buffer = Self {
            memory,
            len,
            published: AtomicUsize::new(0),
        };
        Ok(buffer.begin(0))
    }

    /// Whether the memory is suitable for `len` bytes.
    pub(super) fn is_reusable_for(&self, len: usize) -> bool {
        self.len == len && matches!(self.memory, Memory::Mapped(_))
    }

    /// The same memory for another block. The old contents are still in it, but not published.
    pub(super) fn again(mut self) -> (Arc<Self>, Filler) {
        let prepared = std::mem::take(self.published.get_mut());
        self.begin(prepared)
    }

    fn begin(self, prepared: usize) -> (Arc<Self>, Filler) {
        let buffer = Arc::new(self);
        let filler = Filler {
            buffer: Arc::clone(&buffer),
            prepared,
            told: 0,
        };
        (buffer, filler)
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Heap(start) => *start,
            Memory::Mapped(map) => map.as_mut_ptr(),
        }
    }

    /// The bytes that have been published.
    pub(super) fn bytes(&self) -> &[u8] {
        let len = self.published.load(Ordering::Acquire);
        // SAFETY: the memory has at least `self.len` bytes, all initialised (zeros at first), and `len`
        // does not exceed that. No thread writes to published bytes: `Filler` starts after them. They
        // were written before `published` was stored with release.
        unsafe { std::slice::from_raw_parts(self.start(), len) }
    }

    pub(super) fn published(&self) -> usize {
        self.published.load(Ordering::Acquire)
    }

    /// Memory that the first `len` bytes take: whole pages if it is mapped.
    fn memory(&self, len: usize) -> u64 {
        match self.memory {
            Memory::Heap(_) => len as u64,
            Memory::Mapped(_) => len.next_multiple_of(sys::page_size()) as u64,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Heap(start) = self.memory {
            let slice = std::ptr::slice_from_raw_parts_mut(start, self.len);
            // SAFETY: made by `Box::into_raw` from a slice of this length; dropped once.
            drop(unsafe { Box::from_raw(slice) });
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.memory {
            Memory::Heap(_) => "Heap",
            Memory::Mapped(_) => "Mapped",
        };
        write!(f, "{kind}({} of {} bytes)", self.published(), self.len)
    }
}

/// The only way to write to a [`Buffer`].
#[derive(Debug)]
pub(super) struct Filler {
    buffer: Arc<Buffer>,
    /// Pages up to here exist already, or preparing them is useless.
    prepared: usize,
    /// Memory that [`Filler::publish`] has reported.
    told: u64,
}

impl Filler {
    /// Prepares all pages for the next `len` bytes at once, which takes half the time of a page fault
    /// for each.
    pub(super) fn prepare(&mut self, len: usize) {
        let at = self.buffer.published();
        // The bytes that zstd needs at a time may go beyond `len`.
        let needed = at.saturating_add(len.max(PREPARED.0)).min(self.buffer.len);
        if self.prepared >= needed {
            return;
        }
        let piece = (self.buffer.len / 32).clamp(PREPARED.0, PREPARED.1);
        let end = needed.max(at.saturating_add(piece)).min(self.buffer.len);
        let start = self.prepared.max(at) / sys::page_size() * sys::page_size();
        if let Memory::Mapped(map) = &self.buffer.memory {
            // Old kernels do not support this. Then each page is a page fault.
            sys::populate(map, start, end - start);
        }
        self.prepared = end;
    }

    /// The next `len` bytes, or the rest, for tests that write like a decoder.
    #[cfg(test)]
    pub(super) fn next(&mut self, len: usize) -> &mut [u8] {
        let at = self.buffer.published();
        let len = len.min(self.buffer.len - at);
        // SAFETY: within the memory, which is initialised. The bytes after the published ones are
        // accessed only through this filler, which is borrowed as long as the slice exists.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.start().add(at), len) }
    }

    /// Decodes the next `len` bytes.
    pub(super) fn decode(&mut self, decoder: &mut Decoder, len: usize) -> Result<()> {
        let at = self.buffer.published() as u64;
        if decoder.raw_size() != self.buffer.len as u64 || decoder.position() != at {
            return Err(Error::corrupt("a decoder that belongs to another block"));
        }
        // SAFETY: the buffer has `raw_size` initialised bytes. A decoder is kept together with its
        // filler (`slot::Decoding`) and used for nothing else, so `start` is always the same and the
        // memory lives as long as it. Only this filler, which is borrowed exclusively, gives access to
        // bytes from `position` on, and no other thread writes to any byte.
        unsafe { decoder.fill_in_place(self.buffer.start(), len) }
    }

    /// Lets all threads read the next `len` bytes. Returns by how much this and the preparation
    /// increased the memory of the buffer.
    pub(super) fn publish(&mut self, len: usize) -> u64 {
        let at = self.buffer.published();
        let end = at.saturating_add(len).min(self.buffer.len);
        self.buffer.published.store(end, Ordering::Release);
        let memory = self.buffer.memory(end.max(self.prepared));
        let more = memory.saturating_sub(self.told);
        self.told += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_both_kinds() {
        for allocator in [BlockAllocator::Malloc, BlockAllocator::Mmap] {
            for len in [0, 1, 5000, MAPPED_FROM, 300_000] {
                let (buffer, mut filler) = Buffer::new(allocator, len).unwrap();
                let (mut at, mut memory) = (0, 0);
                for (step, value) in [(1, 7), (4096, 8), (usize::MAX, 9)] {
                    filler.prepare(step);
                    let next = filler.next(step);
                    let step = next.len();
                    assert_eq!(next, vec![0; step]);
                    next.fill(value);
                    assert_eq!(buffer.bytes().len(), at);
                    memory += filler.publish(step);
                    assert_eq!(buffer.bytes()[at..], vec![value; step]);
                    at += step;
                }
                assert_eq!(at, len);
                assert!(filler.next(1).is_empty());
                drop(filler);
                assert_eq!(buffer.bytes().first(), (len > 0).then_some(&7));
                assert!((len as u64..len as u64 + (1 << 17)).contains(&memory));
            }
            // More than an object may have.
            assert!(Buffer::new(allocator, usize::MAX / 2 + 1).is_err());
        }
        let (_, mut one) = Buffer::new(BlockAllocator::Mmap, 1).unwrap();
        assert_eq!(one.publish(1), sys::page_size() as u64);
    }

    #[test]
    fn memory_can_be_used_again() {
        let (buffer, mut filler) = Buffer::new(BlockAllocator::Malloc, MAPPED_FROM).unwrap();
        filler.next(10).fill(1);
        filler.publish(10);
        drop(filler);
        let buffer = Arc::into_inner(buffer).unwrap();
        assert!(buffer.is_reusable_for(MAPPED_FROM) && !buffer.is_reusable_for(MAPPED_FROM - 1));
        let (buffer, mut filler) = buffer.again();
        assert!(buffer.bytes().is_empty());
        filler.prepare(MAPPED_FROM);
        filler.next(2).fill(2);
        filler.publish(2);
        assert_eq!(buffer.bytes(), [2, 2]);
        let (small, _) = Buffer::new(BlockAllocator::Malloc, 10).unwrap();
        assert!(!small.is_reusable_for(10));
    }

    #[test]
    fn readers_beside_the_filler_see_whole_steps() {
        let (buffer, mut filler) = Buffer::new(BlockAllocator::Malloc, 200_000).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let buffer = Arc::clone(&buffer);
                scope.spawn(move || {
                    loop {
                        let bytes = buffer.bytes();
                        assert_eq!(bytes.len() % 1000, 0);
                        let right = |(i, &b): (usize, &u8)| b == (i / 1000) as u8 + 1;
                        assert!(bytes.iter().enumerate().all(right));
                        if bytes.len() == 200_000 {
                            return;
                        }
                        std::thread::yield_now();
                    }
                });
            }
            for step in 0..200 {
                filler.next(1000).fill(step + 1);
                filler.publish(1000);
            }
        });
    }

    #[test]
    fn a_decoder_of_another_block_is_refused() {
        let id = redwarfs_codec::CompressionId::NONE;
        let (_, mut filler) = Buffer::new(BlockAllocator::Malloc, 4).unwrap();
        let mut decoder = Decoder::new(id, &b"12345"[..], 10).unwrap();
        assert!(filler.decode(&mut decoder, 4).is_err());
        let mut decoder = Decoder::new(id, &b"1234"[..], 10).unwrap();
        filler.decode(&mut decoder, 3).unwrap();
        assert!(filler.decode(&mut decoder, 1).is_err());
        filler.publish(3);
        filler.decode(&mut decoder, 1).unwrap();
        assert!(filler.next(9) == b"4");
    }
}
