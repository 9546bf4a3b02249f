//! Statistics of a mount, as numbers and as text.

#[cfg(unix)]
mod requests;

use redwarfs_reader::CacheStats;

#[cfg(unix)]
pub(crate) use requests::{Counters, text};

/// One line per number of the block cache.
pub(crate) fn of_cache(cache: &CacheStats) -> Vec<String> {
    let percent = |share: f64, digits: usize| format!("{:.*}%", digits, share * 100.0);
    let active = &cache.active_set_size;
    vec![
        format!("blocks created: {}", cache.blocks_created),
        format!("blocks evicted: {}", cache.blocks_evicted),
        format!("blocks tidied: {}", cache.blocks_tidied),
        format!("request sets merged: {}", cache.request_sets_merged),
        format!("total requests: {}", cache.requests),
        format!("sequential prefetches: {}", cache.sequential_prefetches),
        format!("active hits (fast): {}", cache.active_hits_fast),
        format!("active hits (slow): {}", cache.active_hits_slow),
        format!("cache hits (fast): {}", cache.cache_hits_fast),
        format!("cache hits (slow): {}", cache.cache_hits_slow),
        format!("total bytes decompressed: {}", cache.bytes_decoded),
        format!(
            "average block decompression: {}",
            percent(cache.average_decoded(), 1)
        ),
        format!("fast hit rate: {}", percent(cache.fast_hit_rate(), 3)),
        format!("slow hit rate: {}", percent(cache.slow_hit_rate(), 3)),
        format!("miss rate: {}", percent(cache.miss_rate(), 3)),
        format!(
            "blocks fetched ahead: {}, used: {}, given up: {} ({} bytes)",
            cache.blocks_fetched_ahead,
            cache.fetched_ahead_used,
            cache.fetched_ahead_unused,
            cache.fetched_ahead_unused_bytes
        ),
        format!("expired active requests: {}", cache.expired_active_requests),
        format!(
            "active set size p50: {}, p75: {}, p90: {}, p95: {}, p99: {}",
            active.p50, active.p75, active.p90, active.p95, active.p99
        ),
    ]
}
