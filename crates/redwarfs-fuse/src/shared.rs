//! What the parts of a mount have in common.

use redwarfs_reader::Image;
use redwarfs_reader::perfmon::{Component, PerfMonitor, Timer};

use crate::failures::Failures;
use crate::interrupts::Interrupts;
use crate::statistics::Counters;

/// What readers of requests, workers and observers have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) image: Image,
    pub(crate) failures: Failures,
    pub(crate) interrupts: Interrupts,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
}

impl Shared {
    pub(crate) fn new(image: Image) -> Self {
        Self {
            failures: Failures::default(),
            interrupts: Interrupts::default(),
            counters: Counters::default(),
            timers: Timers::new(image.perfmon()),
            image,
        }
    }
}

/// Timers of the operations.
#[derive(Debug)]
pub(crate) struct Timers {
    pub(crate) init: Timer,
    pub(crate) lookup: Timer,
    pub(crate) getattr: Timer,
    pub(crate) readlink: Timer,
    pub(crate) open: Timer,
    pub(crate) lseek: Timer,
    pub(crate) read: Timer,
    pub(crate) readdir: Timer,
    pub(crate) statfs: Timer,
    pub(crate) getxattr: Timer,
    pub(crate) listxattr: Timer,
}

impl Timers {
    fn new(perfmon: &PerfMonitor) -> Self {
        let timer = |name| perfmon.timer(Component::Fuse, name);
        Self {
            init: timer("op_init"),
            lookup: timer("op_lookup"),
            getattr: timer("op_getattr"),
            readlink: timer("op_readlink"),
            open: timer("op_open"),
            lseek: timer("op_lseek"),
            read: timer("op_read"),
            readdir: timer("op_readdir"),
            statfs: timer("op_statfs"),
            getxattr: timer("op_getxattr"),
            listxattr: timer("op_listxattr"),
        }
    }
}
