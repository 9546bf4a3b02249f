//! FUSE over io_uring: requests and answers without a system call for each way.
//!
//! There is a queue for every CPU, with entries that hold one request and then its answer. The
//! kernel puts a request into the queue of the CPU that asks. A thread on that CPU answers what
//! needs no decompression, and gives the answers back with the call that waits for the next
//! request. A worker writes its answer into the entry and passes it to the thread of the queue.
//!
//! FORGET, INTERRUPT and what we tell the kernel unasked go through the device as always, so a
//! thread goes on reading there.
//!
//! # What it costs
//!
//! For each CPU that the system may have: a thread, some pages for its ring, and the address space of
//! `DEPTH` (16) answers of the largest size. Memory is used as far as answers have reached: the kernel
//! takes the entry that was used last, so this is a few of the usual answers unless many are on
//! their way at the same time.
//!
//! An unanswered read keeps its entry. If an image stalls and as many programs as a queue has entries
//! wait on one CPU, others that ask on that CPU wait with them, until one of the reads is answered or
//! killed. What the kernel reads ahead cannot bring this about: [`Queues::max_background`].
//!
//! # Processors
//!
//! The crate for the system calls knows five architectures. On the others there are no queues, and
//! requests come from the device.

#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )),
    path = "absent.rs"
)]
mod queues;

pub(crate) use queues::{AVAILABLE, Queues};
