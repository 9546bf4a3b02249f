//! What the caches of several images share: one limit of bytes, one order of use, and the threads.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redwarfs_format::Result;
use redwarfs_format::metadata::MetadataView;
use redwarfs_format::section::MetadataId;

use super::gate::Gate;
use super::pool::Pool;
use super::scratch::Scratch;
use super::shared::SharedCache;
use super::slot::{Account, Slot};
use super::stats::{CacheStats, Counters};
use super::table::Table;
use super::tidier::Tidier;
use crate::identity::ImageIdentity;
use crate::options::CacheOptions;

/// Largest number of blocks in use that no request holds, minus one.
const MAX_IN_USE: usize = 1 << 10;

/// The block cache of several images: one limit of bytes for all their blocks, of which the least recently used one
/// goes first, and one set of threads that decode. An image without a group has one of its own.
///
/// The images also share the metadata of an archive of snapshots, of which they are parts.
///
/// Cloning gives another handle to the same group.
#[derive(Clone)]
pub struct CacheGroup(pub(super) Arc<Group>);

/// Tells the metadata of archives apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ArchiveKey {
    /// The generation, with the checksums of its headers.
    pub(crate) generation: ImageIdentity,
    pub(crate) tree: MetadataId,
    pub(crate) without_xattrs: bool,
    /// Whether its digests were compared.
    pub(crate) is_verified: bool,
}

impl CacheGroup {
    /// A group without images. Size, threads, CPUs and tidying of `options` are those of the group; the rest is said
    /// for each image.
    pub fn new(options: &CacheOptions) -> Self {
        Self(Arc::new(Group {
            limit: options.size,
            in_use: options.workers.clamp(1, MAX_IN_USE) + 1,
            account: Arc::default(),
            clock: Arc::default(),
            counters: Counters::default(),
            gate: Gate::new(),
            pool: Pool::new(options.workers, options.affinity),
            reserved: AtomicU64::new(0),
            scratch: Scratch::default(),
            tidier: Tidier::new(options.tidy, options.affinity),
            members: Mutex::default(),
            archives: Mutex::default(),
        }))
    }

    /// The metadata of an archive: what an open image of the group holds, or else what `decode` returns. Who needs the
    /// same one meanwhile waits.
    pub(crate) fn archive(
        &self,
        key: ArchiveKey,
        decode: impl FnOnce() -> Result<MetadataView>,
    ) -> Result<Arc<MetadataView>> {
        let slot = {
            let archives = self.0.archives.lock();
            let mut archives = archives.unwrap_or_else(PoisonError::into_inner);
            archives.retain(|_, slot| {
                let is_held = |known: MutexGuard<'_, Weak<_>>| known.strong_count() > 0;
                Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(is_held)
            });
            Arc::clone(archives.entry(key).or_default())
        };
        let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = known.upgrade() {
            return Ok(view);
        }
        let view = Arc::new(decode()?);
        *known = Arc::downgrade(&view);
        Ok(view)
    }

    /// The counters of the cache: of all images that the group has or had.
    pub fn stats(&self) -> CacheStats {
        let group = &self.0;
        let mut stats = group.counters.stats();
        stats.limit = group.limit;
        stats.used = group.account.used();
        stats.peak = group.account.peak();
        let members = group.members();
        stats.blocks = members.iter().map(|of| of.table().len() as u64).sum();
        stats
    }
}

impl fmt::Debug for CacheGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheGroup")
            .field("limit", &self.0.limit)
            .finish_non_exhaustive()
    }
}

/// Whether they are handles to the same group.
impl PartialEq for CacheGroup {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What the images of a group share.
#[derive(Debug)]
pub(super) struct Group {
    archives: Mutex<HashMap<ArchiveKey, Arc<Mutex<Weak<MetadataView>>>>>,
    pub(super) limit: u64,
    /// Largest number of blocks in use that no request holds.
    in_use: usize,
    pub(super) account: Arc<Account>,
    /// The last use of a block of any image, see [`Table`].
    pub(super) clock: Arc<AtomicU64>,
    pub(super) counters: Counters,
    pub(super) gate: Gate,
    pub(super) pool: Pool,
    /// Bytes that the blocks that are being preloaded will take.
    pub(super) reserved: AtomicU64,
    pub(super) scratch: Scratch,
    pub(super) tidier: Tidier,
    members: Mutex<Vec<Weak<SharedCache>>>,
}

impl Group {
    /// Adds the cache of an image.
    pub(super) fn add(&self, member: &Arc<SharedCache>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(member));
    }

    /// The caches of the images that are open.
    pub(super) fn members(&self) -> Vec<Arc<SharedCache>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes idle blocks out of the cache, the least recently used one of all images first, as long as `excess` says of
    /// the freed bytes that they are too few.
    pub(super) fn evict(&self, excess: &dyn Fn(u64) -> bool) -> Vec<Arc<Slot>> {
        let mut dropped = Vec::new();
        if !excess(0) {
            return dropped;
        }
        let members = self.members();
        {
            // All threads that lock several tables lock them in this order.
            let mut tables: Vec<MutexGuard<'_, Table>> =
                members.iter().map(|member| member.table()).collect();
            let mut in_use: Vec<u64> = tables
                .iter()
                .flat_map(|table| table.in_use(self.in_use))
                .collect();
            in_use.sort_unstable_by_key(|&tick| std::cmp::Reverse(tick));
            in_use.truncate(self.in_use);
            let mut next: Vec<_> = tables
                .iter()
                .map(|table| table.first_idle(0, &in_use))
                .collect();
            let mut freed = 0;
            while excess(freed) {
                let candidates = next.iter().enumerate();
                let oldest = candidates
                    .filter_map(|(at, found)| found.map(|(tick, block)| (tick, at, block)))
                    .min_by_key(|&(tick, ..)| tick);
                let Some((tick, at, block)) = oldest else {
                    break;
                };
                let (Some(table), Some(place)) = (tables.get_mut(at), next.get_mut(at)) else {
                    break;
                };
                if let Some(slot) = table.remove(block) {
                    freed += slot.charged();
                    dropped.push(slot);
                }
                *place = table.first_idle(tick, &in_use);
            }
        }
        let n = dropped.len() as u64;
        self.counters.evicted.fetch_add(n, Ordering::Relaxed);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redwarfs_format::BlockNo;

    use super::*;
    use crate::cache::BlockCache;
    use crate::cache::tests::{Fixture, fixture, quiet};
    use crate::perfmon::PerfMonitor;

    fn member(of: &Fixture, group: &CacheGroup) -> BlockCache {
        BlockCache::in_group(group, of.payloads.clone(), &quiet(), &PerfMonitor::off())
    }

    #[test]
    fn images_share_one_limit_and_the_oldest_block_of_all_goes() {
        let codecs = ["zstd:level=1"; 4];
        let (a, b) = (fixture(&codecs), fixture(&codecs));
        let mut options = quiet();
        // Room for three blocks and what decodes a fourth one.
        options.size = (4 << 20) - (100 << 10);
        options.workers = 1;
        let group = CacheGroup::new(&options);
        let (first, second) = (member(&a, &group), member(&b, &group));
        let whole = |fixture: &Fixture, cache: &BlockCache, block| {
            fixture.check(cache, block, 0, fixture.raw[block].len());
        };
        whole(&a, &first, 0);
        whole(&b, &second, 0);
        whole(&a, &first, 1);
        assert_eq!(group.stats().blocks, 3);
        // Used again, so the block of the other image is the oldest one.
        whole(&a, &first, 0);
        whole(&a, &first, 2);
        assert!(first.contains(BlockNo(0), 1) && !second.contains(BlockNo(0), 1));
        for block in 0..codecs.len() {
            whole(&b, &second, block);
            whole(&a, &first, block);
            let stats = group.stats();
            assert!(stats.used <= options.size, "{stats:?}");
        }
        assert_eq!(first.stats(), group.stats());
        assert!(group.stats().peak <= options.size + (2 << 20));
        // What a closed image had is free.
        drop((first, second));
        assert_eq!((group.stats().used, group.stats().blocks), (0, 0));
        assert!(group.stats().blocks_evicted > 0);
    }

    #[test]
    fn few_blocks_are_in_use_however_many_images_there_are() {
        let all: Vec<_> = (0..20).map(|_| fixture(&["zstd:level=1"])).collect();
        let mut options = quiet();
        options.size = 0;
        options.workers = 1;
        let group = CacheGroup::new(&options);
        let caches: Vec<_> = all.iter().map(|of| member(of, &group)).collect();
        for (of, cache) in all.iter().zip(&caches) {
            // Not to the end.
            of.check(cache, 0, 0, 1000);
        }
        assert_eq!(group.stats().blocks, 2);
    }

    #[test]
    fn groups_are_equal_if_they_are_the_same() {
        let group = CacheGroup::new(&quiet());
        assert_eq!(group, group.clone());
        assert_ne!(group, CacheGroup::new(&quiet()));
        assert!(Arc::strong_count(&group.0) == 1);
    }
}
