//! The cache on disk that options ask for.

use std::path::PathBuf;

use redwarfs_io::DiskCache;

use super::Logger;
use super::error::{Result, ToolError, display_path};
use super::number::{counted, format_size};

/// What options say about the cache on disk.
#[derive(Debug, Clone, Default)]
pub struct CacheChoice {
    /// Its directory.
    pub directory: Option<PathBuf>,
    /// Bytes that entries may take.
    pub limit: Option<u64>,
    /// Whether servers are not to be asked.
    pub offline: bool,
}

impl CacheChoice {
    /// Opens the cache. If it cannot be used, a warning says so, and there is none.
    ///
    /// # Errors
    /// Offline, there is none, or it cannot be used.
    pub fn open(&self, logger: &Logger) -> Result<Option<DiskCache>> {
        let Some(directory) = &self.directory else {
            return match self.offline {
                true => Err(ToolError::new("offline needs cache_dir")),
                false => Ok(None),
            };
        };
        let limit = self.limit.unwrap_or(DiskCache::DEFAULT_LIMIT);
        match DiskCache::open(directory, limit) {
            Ok(cache) => Ok(Some(cache.offline(self.offline))),
            // The text has the path.
            Err(error) if self.offline => Err(ToolError::new("cannot use the cache").cause(error)),
            Err(error) => {
                logger.warn(format_args!(
                    "cannot use the cache: {error}: continuing without it"
                ));
                Ok(None)
            }
        }
    }
}

/// Waits until everything is written, and logs what the cache did.
pub fn finish_cache(cache: Option<&DiskCache>, logger: &Logger) {
    let Some(cache) = cache else { return };
    cache.flush();
    logger.verbose(cache_use(cache));
}

/// One line about the use of a cache: what its directory holds, and what this process has done.
#[must_use]
pub fn cache_use(cache: &DiskCache) -> String {
    let stats = cache.stats();
    let (entries, bytes) = cache.usage();
    format!(
        "cache {}: {}, {} of {} used; {} found, {} not there, {} stored, {} left out, {} damaged",
        display_path(cache.path()),
        counted(entries, "entry", "entries"),
        format_size(bytes),
        format_size(cache.limit()),
        stats.hits,
        stats.misses,
        stats.stored,
        stats.left_out,
        stats.damaged
    )
}
