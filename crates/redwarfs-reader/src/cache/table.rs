//! Which blocks are in the cache, and in which order they were used.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use redwarfs_format::BlockNo;

use super::plan::Plan;
use super::slot::Slot;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) slot: Arc<Slot>,
    /// Key in `Table::order`.
    tick: u64,
    pub(super) used_at: Instant,
}

/// Which blocks are in the cache, and in which order they were used.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<BlockNo, Entry>,
    /// Oldest first.
    order: BTreeMap<u64, BlockNo>,
    tick: u64,
    /// The last different blocks that were asked for.
    recent: VecDeque<BlockNo>,
    /// What will be asked for, where that is known.
    pub(super) plan: Option<Plan>,
}

impl Table {
    pub(super) fn touch(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.get_mut(&block)?;
        entry.used_at = Instant::now();
        if entry.tick != self.tick {
            self.order.remove(&entry.tick);
            self.tick += 1;
            entry.tick = self.tick;
            self.order.insert(self.tick, block);
        }
        Some(Arc::clone(&entry.slot))
    }

    pub(super) fn entry(&self, block: BlockNo) -> Option<&Entry> {
        self.entries.get(&block)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All blocks, the one that was not used for the longest time first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = (BlockNo, &Entry)> {
        self.order
            .values()
            .filter_map(|block| Some((*block, self.entries.get(block)?)))
    }

    /// The first block after `tick` in that order that nobody uses, and its own tick.
    pub(super) fn first_idle(&self, tick: u64) -> Option<(u64, BlockNo)> {
        self.order.range(tick..).find_map(|(&tick, block)| {
            // Only the table hands out references, and it is locked: a count of one stays one.
            let entry = self.entries.get(block)?;
            (Arc::strong_count(&entry.slot) == 1).then_some((tick, *block))
        })
    }

    pub(super) fn insert(&mut self, block: BlockNo, slot: Arc<Slot>) {
        self.tick += 1;
        self.order.insert(self.tick, block);
        let entry = Entry {
            slot,
            tick: self.tick,
            used_at: Instant::now(),
        };
        self.entries.insert(block, entry);
    }

    pub(super) fn remove(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.remove(&block)?;
        self.order.remove(&entry.tick);
        Some(entry.slot)
    }

    /// The block after the last `n` requested ones, if those are consecutive.
    pub(super) fn next_in_sequence(&mut self, block: BlockNo, n: usize) -> Option<BlockNo> {
        if n == 0 || self.recent.contains(&block) {
            return None;
        }
        if self.recent.len() >= n {
            self.recent.pop_front();
        }
        self.recent.push_back(block);
        if self.recent.len() < n {
            return None;
        }
        // All different, so they are consecutive if they span exactly their number.
        let first = self.recent.iter().min()?.0;
        let last = self.recent.iter().max()?.0;
        if u64::from(last - first) + 1 == n as u64 {
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
        let mut table = Table::default();
        let mut ask = |n| table.next_in_sequence(BlockNo(n), 3).map(|b| b.0);
        assert_eq!(ask(4), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(6), Some(7));
        assert_eq!(ask(6), None);
        assert_eq!(ask(8), None);
        assert_eq!(ask(7), Some(9));
        assert_eq!(ask(20), None);
        assert_eq!(ask(u32::MAX), None);
        assert_eq!(table.next_in_sequence(BlockNo(1), 0), None);
    }

    #[test]
    fn least_recently_used_is_first_in_order() {
        let account = Arc::default();
        let mut table = Table::default();
        for n in 0..3 {
            table.insert(BlockNo(n), Arc::new(Slot::new(BlockNo(n), &account)));
        }
        assert!(table.touch(BlockNo(0)).is_some());
        assert!(table.touch(BlockNo(7)).is_none());
        let order: Vec<u32> = table.order.values().map(|b| b.0).collect();
        assert_eq!(order, [1, 2, 0]);
        drop(table);
        assert_eq!(account.used(), 0);
    }
}
