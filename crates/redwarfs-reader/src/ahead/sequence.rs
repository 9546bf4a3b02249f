//! Recognizes requests for consecutive blocks.

use std::collections::VecDeque;

use redwarfs_format::BlockNo;

/// Longest sequence that counts. A longer one would make every request slower.
const MAX_SEQUENCE: usize = 64;

/// The last different requested blocks.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    recent: VecDeque<BlockNo>,
    /// Length of a sequence; 0 is off.
    length: usize,
}

impl Sequence {
    pub(super) fn new(length: usize) -> Self {
        Self {
            recent: VecDeque::new(),
            length: length.min(MAX_SEQUENCE),
        }
    }

    /// Notes a request. Returns the block after the last requested ones, if these are consecutive, in
    /// any order.
    pub(super) fn after(&mut self, block: BlockNo) -> Option<BlockNo> {
        if self.length == 0 || self.recent.contains(&block) {
            return None;
        }
        if self.recent.len() >= self.length {
            self.recent.pop_front();
        }
        self.recent.push_back(block);
        if self.recent.len() < self.length {
            return None;
        }
        // They are all different, so they are consecutive if their range equals their number.
        let first = self.recent.iter().min()?.0;
        let last = self.recent.iter().max()?.0;
        if u64::from(last - first) + 1 == self.length as u64 {
            last.checked_add(1).map(BlockNo)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_found_in_any_order_and_only_once() {
        let mut sequence = Sequence::new(3);
        let mut ask = |n| sequence.after(BlockNo(n)).map(|b| b.0);
        assert_eq!(ask(4), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(6), Some(7));
        assert_eq!(ask(6), None);
        assert_eq!(ask(8), None);
        assert_eq!(ask(7), Some(9));
        assert_eq!(ask(20), None);
        assert_eq!(ask(u32::MAX), None);
        assert_eq!(Sequence::new(0).after(BlockNo(1)), None);
    }
}
