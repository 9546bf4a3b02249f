//! Memory that is reused for payloads.

use std::sync::{Mutex, PoisonError};

/// Number of buffers that are kept.
const KEPT: usize = 2;
/// Largest buffer that is kept (2 MiB). Decoding a larger payload takes much longer than getting new
/// memory.
pub(super) const LARGEST: usize = 2 << 20;

/// At most 4 MiB of buffers are kept, so that not every block needs new pages of the system.
#[derive(Debug, Default)]
pub(super) struct Scratch(Mutex<Vec<Vec<u8>>>);

impl Scratch {
    /// A buffer for `len` bytes if there is one, otherwise an empty one. Its contents are
    /// arbitrary.
    pub(super) fn take(&self, len: u64) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |buffer: &Vec<u8>| buffer.capacity() as u64 >= len;
        match kept.iter().position(fits) {
            Some(at) => kept.swap_remove(at),
            None => Vec::new(),
        }
    }

    /// Keeps a buffer if it is suitable.
    pub(super) fn put(&self, buffer: Vec<u8>) {
        if buffer.capacity() > LARGEST {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(buffer);
        } else if let Some(least) = kept.iter_mut().min_by_key(|kept| kept.capacity())
            && least.capacity() < buffer.capacity()
        {
            *least = buffer;
        }
    }

    /// Releases all memory.
    pub(super) fn clear(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_buffers_are_kept_within_bounds() {
        let scratch = Scratch::default();
        for len in [10, 30, 20, LARGEST + 1] {
            scratch.put(Vec::with_capacity(len));
        }
        assert_eq!(scratch.take(31).capacity(), 0);
        assert_eq!(scratch.take(30).capacity(), 30);
        assert_eq!(scratch.take(5).capacity(), 20);
        assert_eq!(scratch.take(1).capacity(), 0);
        scratch.put(Vec::with_capacity(10));
        scratch.clear();
        assert_eq!(scratch.take(1).capacity(), 0);
    }
}
