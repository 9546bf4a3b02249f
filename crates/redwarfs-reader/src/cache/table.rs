//! The blocks in the cache, in the order of their last use.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redwarfs_format::BlockNo;

use super::slot::Slot;
use crate::ahead::AheadOfBlocks;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) slot: Arc<Slot>,
    /// Key in `Table::order`.
    tick: u64,
    pub(super) used_at: Instant,
}

/// Number of remembered requests, without repeated requests for the same block.
const REMEMBERED: usize = 64;

/// Number of most recently used blocks that [`Table::in_use`] examines. If this many blocks that were
/// read to their end fit, there is room for blocks that were not.
const LOOKED_AT: usize = 64;

/// The time of a use. No other block of the group has the same.
fn next_tick(clock: &AtomicU64) -> u64 {
    clock.fetch_add(1, Ordering::Relaxed) + 1
}

/// The blocks of an image in the cache, in the order of their last use.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<BlockNo, Entry>,
    /// Oldest first.
    order: BTreeMap<u64, BlockNo>,
    /// The last use of a block of any image of the group.
    clock: Arc<AtomicU64>,
    /// The blocks of the last requests, without repeated requests for the same block.
    asked: VecDeque<BlockNo>,
    /// Number of requests that `asked` has seen.
    asks: u64,
    /// The read-ahead that depends on requests.
    pub(super) ahead: AheadOfBlocks,
}

impl Table {
    pub(super) fn new(ahead: AheadOfBlocks, clock: &Arc<AtomicU64>) -> Self {
        Self {
            ahead,
            clock: Arc::clone(clock),
            ..Self::default()
        }
    }

    pub(super) fn touch(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.get_mut(&block)?;
        entry.used_at = Instant::now();
        if entry.tick != self.clock.load(Ordering::Relaxed) {
            self.order.remove(&entry.tick);
            entry.tick = next_tick(&self.clock);
            self.order.insert(entry.tick, block);
        }
        Some(Arc::clone(&entry.slot))
    }

    /// Notes a request.
    pub(super) fn ask(&mut self, block: BlockNo) {
        if self.asked.back() == Some(&block) {
            return;
        }
        if self.asked.len() >= REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back(block);
        self.asks += 1;
    }

    /// The present time for [`Table::was_asked_since`].
    pub(super) fn asks(&self) -> u64 {
        self.asks
    }

    /// Whether there was a request for the block after the time `since` of [`Table::asks`], as far as
    /// requests are remembered.
    pub(super) fn was_asked_since(&self, block: BlockNo, since: u64) -> bool {
        let new = usize::try_from(self.asks.saturating_sub(since)).unwrap_or(usize::MAX);
        self.asked.iter().rev().take(new).any(|&b| b == block)
    }

    pub(super) fn entry(&self, block: BlockNo) -> Option<&Entry> {
        self.entries.get(&block)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All blocks, the least recently used one first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = (BlockNo, &Entry)> {
        self.order
            .values()
            .filter_map(|block| Some((*block, self.entries.get(block)?)))
    }

    /// The ticks of up to `most` blocks that were used last and not read to their end. Their files will
    /// be read further, and without these blocks decoding would start again.
    pub(super) fn in_use(&self, most: usize) -> Vec<u64> {
        let latest = self.order.iter().rev().take(LOOKED_AT.max(most));
        latest
            .filter(|(_, block)| {
                let entry = self.entries.get(block);
                entry.is_some_and(|entry| !entry.slot.is_used_up())
            })
            .map(|(&tick, _)| tick)
            .take(most)
            .collect()
    }

    /// The least recently used block from `tick` on that no request holds and that is not `in_use`, and
    /// its own tick.
    pub(super) fn first_idle(&self, tick: u64, in_use: &[u64]) -> Option<(u64, BlockNo)> {
        self.order.range(tick..).find_map(|(&tick, block)| {
            // Only the table hands out references, and it is locked: a count of one stays one.
            let entry = self.entries.get(block)?;
            let idle = Arc::strong_count(&entry.slot) == 1 && !in_use.contains(&tick);
            idle.then_some((tick, *block))
        })
    }

    pub(super) fn insert(&mut self, block: BlockNo, slot: Arc<Slot>) {
        let tick = next_tick(&self.clock);
        self.order.insert(tick, block);
        let entry = Entry {
            slot,
            tick,
            used_at: Instant::now(),
        };
        self.entries.insert(block, entry);
    }

    pub(super) fn remove(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.remove(&block)?;
        self.order.remove(&entry.tick);
        Some(entry.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_remembered_for_a_while() {
        let mut table = Table::default();
        table.ask(BlockNo(1));
        let since = table.asks();
        assert!(!table.was_asked_since(BlockNo(1), since));
        assert!(table.was_asked_since(BlockNo(1), 0));
        table.ask(BlockNo(2));
        table.ask(BlockNo(2));
        assert!(table.was_asked_since(BlockNo(2), since));
        assert!(!table.was_asked_since(BlockNo(1), since));
        for n in 0..REMEMBERED as u32 {
            table.ask(BlockNo(10 + n));
        }
        assert!(!table.was_asked_since(BlockNo(2), since));
        assert!(table.was_asked_since(BlockNo(10), since));
        assert_eq!(table.asked.len(), REMEMBERED);
    }

    #[test]
    fn blocks_in_use_were_not_read_to_their_end() {
        let account = Arc::default();
        let mut table = Table::default();
        for n in 0..5 {
            let slot = Slot::new(BlockNo(n), &account);
            slot.served(10);
            table.insert(BlockNo(n), Arc::new(slot));
        }
        // Their sizes are not known yet, so nobody is through.
        let in_use = table.in_use(2);
        assert_eq!(in_use, [5, 4]);
        assert_eq!(table.first_idle(0, &in_use), Some((1, BlockNo(0))));
        assert_eq!(table.first_idle(4, &in_use), None);
        let held = table.touch(BlockNo(0));
        assert_eq!(table.first_idle(0, &[2]), Some((3, BlockNo(2))));
        drop(held);
        assert_eq!(table.in_use(9).len(), 5);
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
