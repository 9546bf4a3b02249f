//! FUSE over io_uring: one system call sends replies and receives requests.
//!
//! There is a queue for every CPU. Its entries hold a request and then the reply. The kernel puts a
//! request into the queue of the CPU on which the requesting process runs. A thread on that CPU serves
//! requests that need no decompression. It returns the replies with the system call that waits for the
//! next request. A worker writes its reply into the entry, and passes the entry to the thread of the
//! queue.
//!
//! FORGET, INTERRUPT and notifications to the kernel go through the device. So one thread reads requests
//! there as well.
//!
//! # Memory and limits
//!
//! For each CPU that the system may have, the driver needs a thread, some pages for a ring, and address
//! space for `DEPTH` (16) replies of the largest size. Only the part that replies have filled takes
//! memory. The kernel takes the entry that was used last, so usually a few replies are enough, unless many
//! are pending at the same time.
//!
//! A pending read occupies its entry. If an image file does not answer, pending reads of one CPU can
//! occupy all entries of its queue. Further requests from that CPU then wait until a read gets its
//! reply, or is killed. Readahead of the kernel cannot occupy all entries: [`Queues::max_background`].
//!
//! # CPUs
//!
//! The io_uring crate supports five architectures. On all others, and without the
//! feature `uring`, requests come from the device.

#[cfg_attr(
    not(all(
        feature = "uring",
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64",
            target_arch = "powerpc64"
        )
    )),
    path = "absent.rs"
)]
mod queues;

pub(crate) use queues::{AVAILABLE, Queues};
