//! Statistics of the requests of the kernel, as numbers and as text.

use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_reader::CacheStats;

use crate::proto::op;
use crate::statistics::of_cache;

/// Operations that are counted one by one, with their names.
const NAMES: [(u32, &str); 16] = [
    (op::LOOKUP, "op_lookup"),
    (op::GETATTR, "op_getattr"),
    (op::READLINK, "op_readlink"),
    (op::OPEN, "op_open"),
    (op::READ, "op_read"),
    (op::STATFS, "op_statfs"),
    (op::OPENDIR, "op_opendir"),
    (op::READDIR, "op_readdir"),
    (op::READDIRPLUS, "op_readdirplus"),
    (op::GETXATTR, "op_getxattr"),
    (op::LISTXATTR, "op_listxattr"),
    (op::ACCESS, "op_access"),
    (op::LSEEK, "op_lseek"),
    (op::FORGET, "op_forget"),
    (op::BATCH_FORGET, "op_batch_forget"),
    (op::INTERRUPT, "op_interrupt"),
];

/// Counts what happens.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: [AtomicU64; 64],
    over_ring: AtomicU64,
    deferred: AtomicU64,
    pushed_files: AtomicU64,
    pushed_bytes: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; 64],
            over_ring: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            pushed_files: AtomicU64::new(0),
            pushed_bytes: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// A request came.
    pub(crate) fn request(&self, opcode: u32) {
        if let Some(count) = self.requests.get(opcode as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of requests from processes that use the files. Other requests come from the kernel
    /// itself, or from programs that show the free space of every file system.
    pub(crate) fn uses(&self) -> u64 {
        const OTHERS: [u32; 4] = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::STATFS];
        let counted = |(opcode, _): &(usize, &AtomicU64)| {
            !OTHERS.iter().any(|&other| other as usize == *opcode)
        };
        let requests = self.requests.iter().enumerate().filter(counted);
        requests
            .map(|(_, count)| count.load(Ordering::Relaxed))
            .sum()
    }

    /// A request came over io_uring.
    pub(crate) fn over_ring(&self) {
        self.over_ring.fetch_add(1, Ordering::Relaxed);
    }

    /// A read needs a worker.
    pub(crate) fn deferred(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    /// A file was pushed.
    pub(crate) fn pushed(&self, bytes: usize) {
        self.pushed_files.fetch_add(1, Ordering::Relaxed);
        self.pushed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// One line per number, those of the block cache first.
pub(crate) fn text(cache: &CacheStats, counters: &Counters) -> String {
    let mut lines = of_cache(cache);
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    for (opcode, name) in NAMES {
        let count = counters.requests.get(opcode as usize).map_or(0, get);
        if count > 0 {
            lines.push(format!("requests {name}: {count}"));
        }
    }
    let over_ring = get(&counters.over_ring);
    if over_ring > 0 {
        lines.push(format!("requests over io_uring: {over_ring}"));
    }
    lines.push(format!("reads by workers: {}", get(&counters.deferred)));
    lines.push(format!("files pushed: {}", get(&counters.pushed_files)));
    lines.push(format!("bytes pushed: {}", get(&counters.pushed_bytes)));
    lines.join("\n")
}
