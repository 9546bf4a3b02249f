//! What the driver did, in words.

use redwarfs_reader::CacheStats;

/// One line per number, those of the block cache.
pub(crate) fn text(cache: &CacheStats) -> String {
    let percent = |share: f64, digits: usize| format!("{:.*}%", digits, share * 100.0);
    [
        format!("blocks created: {}", cache.blocks_created),
        format!("blocks evicted: {}", cache.blocks_evicted),
        format!("blocks tidied: {}", cache.blocks_tidied),
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
    ]
    .join("\n")
}
