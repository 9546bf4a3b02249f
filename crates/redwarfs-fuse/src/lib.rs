//! The FUSE driver: mounts an opened DwarFS image on a directory (Linux).
//!
//! A mount is always read-only. An image does not change while it is mounted, so the kernel may keep
//! everything that it learns: names, missing names, attributes, directory contents, symbolic links
//! and file data.
//!
//! # The way of a READ request
//!
//! | step | file |
//! |---|---|
//! | A thread reads the request from `/dev/fuse`. | `session.rs`, `device.rs` |
//! | Or the thread of a CPU takes it from a queue of io_uring. | `ring/queues.rs`, `ring/queues/os.rs` |
//! | The thread takes the message apart and makes a ticket, the right to answer once. | `proto.rs`, `ticket.rs` |
//! | The driver chooses the operation by its number. | `driver.rs` |
//! | If the blocks are decoded, the operation replies with their bytes and is done. | `ops/read.rs` |
//! | Otherwise it registers the ticket, so that a signal can end the wait. | `interrupts.rs` |
//! | A worker decodes the blocks and replies. | `pool.rs` |
//! | The ticket sends the reply the way that the request came. | `ticket.rs`, then `device.rs` or `ring/queues/queue.rs` |
//!
//! All other operations reply at once: `ops` has one file for each. [`mount`] is in `mount.rs`; it
//! attaches the file system (`kernel.rs`), agrees with the kernel on the connection (`session.rs`,
//! `ops/init.rs`), and starts the threads. They share one `MountState` (`mount_state.rs`).
//!
//! # Threads
//!
//! - One thread reads requests from the kernel. It answers all metadata, and reads of decoded blocks.
//!   [`MountOptions::readers`] asks for more such threads. They help several processes that read at
//!   random, and slow a single process that walks or reads a tree.
//! - [`MountOptions::workers`] threads carry out the other reads, and reply themselves.
//! - One thread pushes small files into the page cache ahead of their reader ([`MountOptions::push`]).
//! - While a program waits for a read and has got a signal, one thread looks after that read.
//! - From the first time that the reading thread follows a program, one thread watches it.
//!
//! If waking the reading thread takes long, it polls for the next request for a moment before it
//! sleeps. It does so only while that proves to be faster (`patience.rs`).
//!
//! While one program asks for many small things, the reading thread follows that program to its CPU
//! ([`MountOptions::follow`]). The driver binds the thread to that CPU and gives it the policy
//! `SCHED_IDLE`. Then the scheduler wakes the program on the same CPU, and `find` takes half the time.
//! A thread with that policy hardly runs while other threads want its CPU. So a watcher looks every
//! millisecond. It takes the policy back after 4 looks without progress, after 10 looks without a
//! request, and if following is not a tenth faster. The driver follows only if it may take the policy
//! back: with `CAP_SYS_NICE`, or with a limit `RLIMIT_NICE` that allows its present priority.
//!
//! # io_uring
//!
//! With [`MountOptions::uring`], requests come through queues in shared memory: one queue and one
//! thread for each CPU. Requests and answers are the same as those of the device. If the kernel does
//! not offer queues, or the process cannot use io_uring, requests come from the device, and the log
//! says so.
//!
//! # Interrupted reads
//!
//! If an image stalls (a network file system, a failing disk), a program that waits for data can be
//! killed. Any other signal ends its read with `EINTR` if the data is not there within a second.
//! Requests that need nothing from the image go on.
//!
//! # When the driver dies
//!
//! If the process is killed without a chance to unmount, the mount point answers `ENOTCONN`
//! ("Transport endpoint is not connected") until somebody unmounts it. A [`guard::Guard`] does
//! that; with [`MountOptions::auto_unmount`] the helper program `fusermount3` does.
//!
//! # Memory
//!
//! Besides the image:
//!
//! - 128 KiB for each reader.
//! - Up to 1 MiB for each reader and worker, for holes and small pieces. Other answers come from the
//!   cache; an answer keeps at most two blocks there.
//! - For pushing, 2 bits for each inode, and 4 bytes for each regular file from the first pushed
//!   sequence on.
//! - With io_uring, for each CPU that the system may have: a thread, some pages, and 16 MiB of
//!   address space. The system backs the address space as far as answers have reached.
//! - What [`MountOptions::case_insensitive`] and [`MountOptions::analysis_file`] say.

mod analysis;
mod attr;
mod bits;
mod case;
mod device;
mod driver;
mod error;
mod failures;
mod follow;
pub mod guard;
mod idle;
mod interrupts;
mod kernel;
mod mount;
mod mount_state;
mod ops;
mod options;
mod patience;
mod pool;
mod proto;
mod push;
mod ring;
mod session;
mod settings;
mod statistics;
mod table;
mod text;
mod ticket;
mod xattr;

pub use error::{Error, Result, io_text};
pub use idle::IdleWatch;
pub use kernel::Unmounted;
pub use mount::{HAS_URING, Mounted, Observer, Unmounter, mount, mount_guarded, serve_device};
pub use options::{Access, KernelFlags, MountOptions};
