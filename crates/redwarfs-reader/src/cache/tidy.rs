//! Drops idle blocks even when the cache has room.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use redwarfs_format::BlockNo;
use redwarfs_io::trim_heap;

use super::group::Group;
use super::shared::SharedCache;
use super::slot::{SEGMENT, Slot};
use super::table::Entry;
use super::tidier::SwapProbe;
use crate::options::{BlockAllocator, Tidy};
use crate::sys::{PageMap, pin};

/// Shortest time between two checks.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Checks the cache once. Returns false if further checks are useless.
fn look(group: &Weak<Group>, tidy: Tidy, since: Instant) -> bool {
    let Some(group) = group.upgrade() else {
        return false;
    };
    match tidy {
        Tidy::None => return false,
        Tidy::Time { max_age, .. } => {
            for shared in group.members() {
                shared.tidy_old(max_age);
            }
        }
        Tidy::Swap { .. } => {
            let mut probe = group
                .tidier
                .probe
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if probe.is_none() {
                match PageMap::open() {
                    Ok(map) => {
                        *probe = Some(Box::new(move |bytes| {
                            map.any_swapped(bytes).unwrap_or(false)
                        }));
                    }
                    Err(e) => {
                        tracing::warn!("cannot find out which blocks are swapped out: {e}");
                        return false;
                    }
                }
            }
            if let Some(probe) = &mut *probe {
                for shared in group.members() {
                    shared.tidy_swapped(since, &mut **probe);
                }
            }
        }
    }
    true
}

impl Group {
    /// Starts the thread unless it runs already or there is nothing for it to do.
    pub(super) fn start_tidying(self: &Arc<Self>) {
        let interval = match self.tidier.tidy {
            Tidy::None => return,
            Tidy::Time { interval, .. } | Tidy::Swap { interval } => interval.max(MIN_INTERVAL),
        };
        let mut alive = self
            .tidier
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if alive.is_some() {
            return;
        }
        let (sender, receiver) = bounded::<()>(0);
        let group = Arc::downgrade(self);
        let (tidy, affinity) = (self.tidier.tidy, self.tidier.affinity);
        let thread = std::thread::Builder::new().name("redwarfs-tidy".to_owned());
        let started = thread.spawn(move || {
            pin(affinity);
            let mut last = Instant::now();
            while receiver.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let since = std::mem::replace(&mut last, Instant::now());
                if !look(&group, tidy, since) {
                    return;
                }
            }
        });
        match started {
            Ok(_detached) => *alive = Some(sender),
            Err(e) => tracing::warn!("cannot start a thread that tidies the cache: {e}"),
        }
    }
}

impl SharedCache {
    /// Drops idle blocks that were not used for `age`; returns their number.
    pub(super) fn tidy_old(&self, age: Duration) -> u64 {
        let now = Instant::now();
        let mut dropped = Vec::new();
        {
            let mut table = self.table();
            let old: Vec<BlockNo> = table
                .oldest_first()
                .take_while(|(_, entry)| now.saturating_duration_since(entry.used_at) >= age)
                .filter(|(_, entry)| Arc::strong_count(&entry.slot) == 1)
                .map(|(block, _)| block)
                .collect();
            dropped.extend(old.into_iter().filter_map(|block| table.remove(block)));
        }
        self.tidied(dropped)
    }

    /// Drops idle blocks that were not used after `since` and are swapped out, even if only in
    /// part; returns their number.
    pub(super) fn tidy_swapped(&self, since: Instant, probe: &mut SwapProbe) -> u64 {
        let is_idle = |entry: &Entry| {
            // Only the table hands out references, and it is locked: a count of one stays one.
            entry.used_at <= since && Arc::strong_count(&entry.slot) == 1
        };
        let candidates: Vec<BlockNo> = {
            let table = self.table();
            table
                .oldest_first()
                .take_while(|(_, entry)| entry.used_at <= since)
                .filter(|(_, entry)| is_idle(entry))
                .map(|(block, _)| block)
                .collect()
        };
        let mut dropped = Vec::new();
        for block in candidates {
            let slot = {
                let table = self.table();
                match table.entry(block) {
                    Some(entry) if is_idle(entry) => Arc::clone(&entry.slot),
                    _ => continue,
                }
            };
            // Without the lock, because it takes time.
            if !slot.bytes().chunks(SEGMENT).any(&mut *probe) {
                continue;
            }
            let mut table = self.table();
            let unused = table.entry(slot.block).is_some_and(|entry| {
                // Only the table and this function refer to it.
                Arc::ptr_eq(&entry.slot, &slot)
                    && entry.used_at <= since
                    && Arc::strong_count(&slot) == 2
            });
            if unused {
                dropped.extend(table.remove(slot.block));
            }
        }
        self.tidied(dropped)
    }

    /// Returns the memory of dropped blocks to the system.
    fn tidied(&self, dropped: Vec<Arc<Slot>>) -> u64 {
        let n = dropped.len() as u64;
        if n > 0 {
            drop(dropped);
            self.group.scratch.clear();
            if self.allocator == BlockAllocator::Malloc {
                trim_heap();
            }
            self.group.counters.tidied.fetch_add(n, Ordering::Relaxed);
        }
        n
    }
}
