//! Statistics of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the block cache.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Limit in bytes.
    pub limit: u64,
    /// Bytes that the cache holds, as counted for the limit.
    pub used: u64,
    /// Largest number of bytes held at any time, including blocks in use.
    pub peak: u64,
    /// Blocks that the cache holds.
    pub blocks: u64,
    /// Blocks that entered the cache.
    pub blocks_created: u64,
    /// Blocks that were dropped to make room.
    pub blocks_evicted: u64,
    /// Blocks that were dropped because they were idle.
    pub blocks_tidied: u64,
    /// Requests that joined other requests for the same block.
    pub request_sets_merged: u64,
    /// Requests for bytes of a block.
    pub requests: u64,
    /// Blocks that were decoded because the previous blocks were read in sequence.
    pub sequential_prefetches: u64,
    /// Requests whose bytes were decoded already, while the block was being decoded for another
    /// request.
    pub active_hits_fast: u64,
    /// Requests that waited for a block that was being decoded for another request.
    pub active_hits_slow: u64,
    /// Requests whose bytes were decoded already.
    pub cache_hits_fast: u64,
    /// Requests that continued a partly decoded block.
    pub cache_hits_slow: u64,
    /// Requests for a block that was not in the cache.
    pub misses: u64,
    /// Bytes that were decoded, or verified in blocks that are not compressed.
    pub bytes_decoded: u64,
    /// Raw sizes of all blocks that were decoded at least in part.
    pub bytes_of_decoded_blocks: u64,
    /// Background jobs that started too late: another thread had decoded the block, or the block was
    /// not needed.
    pub expired_active_requests: u64,
    /// Blocks that were being decoded whenever a request came.
    pub active_set_size: ActiveSetSize,
    /// Requests that ended in an error.
    pub errors: u64,
    /// Blocks that a server was asked for before they were requested, because of earlier requests.
    pub blocks_fetched_ahead: u64,
    /// Those of them that were requested later.
    pub fetched_ahead_used: u64,
    /// Those of them that were not requested for a long time.
    pub fetched_ahead_unused: u64,
    /// Stored bytes of the latter.
    pub fetched_ahead_unused_bytes: u64,
}

/// Quantiles of a number: the smallest value that at least this percentage of all samples does not
/// exceed. Exact up to 63; larger values are 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ActiveSetSize {
    pub p50: u64,
    pub p75: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
}

impl CacheStats {
    /// Decoded share of the blocks that were decoded at least in part, 0 to 1.
    pub fn average_decoded(&self) -> f64 {
        ratio(self.bytes_decoded, self.bytes_of_decoded_blocks)
    }

    /// Share of requests that did not wait, 0 to 1.
    pub fn fast_hit_rate(&self) -> f64 {
        ratio(self.active_hits_fast + self.cache_hits_fast, self.requests)
    }

    /// Share of requests that found the block, but not all of its needed bytes, 0 to 1.
    pub fn slow_hit_rate(&self) -> f64 {
        ratio(self.active_hits_slow + self.cache_hits_slow, self.requests)
    }

    /// Share of requests that did not find the block, 0 to 1.
    pub fn miss_rate(&self) -> f64 {
        ratio(self.misses, self.requests)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) created: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) tidied: AtomicU64,
    pub(super) merged: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) prefetches: AtomicU64,
    pub(super) active_fast: AtomicU64,
    pub(super) active_slow: AtomicU64,
    pub(super) cache_fast: AtomicU64,
    pub(super) cache_slow: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) decoded: AtomicU64,
    pub(super) decoded_of: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) fetched_ahead: AtomicU64,
    pub(super) fetched_used: AtomicU64,
    pub(super) fetched_unused: AtomicU64,
    pub(super) fetched_unused_bytes: AtomicU64,
    pub(super) active: ActiveSet,
}

impl Counters {
    /// The counters, without what the cache has at present.
    pub(super) fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            blocks_created: get(&self.created),
            blocks_evicted: get(&self.evicted),
            blocks_tidied: get(&self.tidied),
            request_sets_merged: get(&self.merged),
            requests: get(&self.requests),
            sequential_prefetches: get(&self.prefetches),
            active_hits_fast: get(&self.active_fast),
            active_hits_slow: get(&self.active_slow),
            cache_hits_fast: get(&self.cache_fast),
            cache_hits_slow: get(&self.cache_slow),
            misses: get(&self.misses),
            bytes_decoded: get(&self.decoded),
            bytes_of_decoded_blocks: get(&self.decoded_of),
            expired_active_requests: get(&self.expired),
            active_set_size: self.active.quantiles(),
            errors: get(&self.errors),
            blocks_fetched_ahead: get(&self.fetched_ahead),
            fetched_ahead_used: get(&self.fetched_used),
            fetched_ahead_unused: get(&self.fetched_unused),
            fetched_ahead_unused_bytes: get(&self.fetched_unused_bytes),
            ..CacheStats::default()
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Number of blocks that are being decoded, at present and at each request.
#[derive(Debug)]
pub(super) struct ActiveSet {
    now: AtomicU64,
    /// Number of requests with this value.
    seen: [AtomicU64; 65],
}

impl Default for ActiveSet {
    fn default() -> Self {
        Self {
            now: AtomicU64::new(0),
            seen: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// A block that is being decoded.
pub(super) struct Active<'a>(&'a AtomicU64);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ActiveSet {
    /// Counts a block while the result exists.
    pub(super) fn enter(&self) -> Active<'_> {
        count(&self.now);
        Active(&self.now)
    }

    /// Notes the present number.
    pub(super) fn sample(&self) {
        let now = usize::try_from(self.now.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if let Some(n) = self.seen.get(now.min(self.seen.len() - 1)) {
            count(n);
        }
    }

    pub(super) fn quantiles(&self) -> ActiveSetSize {
        let seen: Vec<u64> = self
            .seen
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .collect();
        let total: u64 = seen.iter().sum();
        let quantile = |percent: u64| {
            let rank = (u128::from(total) * u128::from(percent)).div_ceil(100);
            let mut sum = 0;
            let found = seen.iter().position(|&n| {
                sum += u128::from(n);
                sum >= rank
            });
            found.unwrap_or(0) as u64
        };
        ActiveSetSize {
            p50: quantile(50),
            p75: quantile(75),
            p90: quantile(90),
            p95: quantile(95),
            p99: quantile(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_active_set() {
        let set = ActiveSet::default();
        assert_eq!(set.quantiles(), ActiveSetSize::default());
        // 50 times nothing, 40 times one block, 10 times a hundred.
        let mut active = Vec::new();
        for n in 0..100 {
            match n {
                50 => active.push(set.enter()),
                90 => active.extend((0..99).map(|_| set.enter())),
                _ => {}
            }
            set.sample();
        }
        let found = set.quantiles();
        assert_eq!((found.p50, found.p75, found.p90), (0, 1, 1));
        assert_eq!((found.p95, found.p99), (64, 64));
        drop(active);
        set.sample();
        assert_eq!(set.seen[0].load(Ordering::Relaxed), 51);
    }

    #[test]
    fn rates_of_nothing_are_zero() {
        let stats = CacheStats::default();
        assert_eq!(stats.fast_hit_rate() + stats.slow_hit_rate(), 0.0);
        assert_eq!(stats.miss_rate() + stats.average_decoded(), 0.0);
    }
}
