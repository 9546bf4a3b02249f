//! The driver: mounts an opened DwarFS image on a directory, through FUSE (Linux) or WinFsp (Windows).
//!
//! All of this is about Linux; the module `winfsp` describes the driver for Windows. What both need has no
//! system in it: options, the attributes that a mount shows (`policy.rs`), lookups that ignore case,
//! the record of opened files, the log of failures, and statistics.
//!
//! A mount is read-only, unless it has a writable layer ([`MountOptions::layer`], modules `writable` and `overlay`). An image does not change
//! while it is mounted, so the kernel may keep everything that it learns: names, missing names, attributes, directory contents, symbolic links
//! and file data.
//!
//! # The path of a READ request
//!
//! | step | file |
//! |---|---|
//! | A thread reads the request from `/dev/fuse`. | `session.rs` (`serve`), `device.rs` |
//! | With io_uring, the thread of a CPU takes it from a queue instead. | `ring/queues/mod.rs`, `ring/queues/os.rs` |
//! | The thread parses the message and makes a ticket, which allows exactly one reply. | `session.rs` (`serve`), with `proto.rs` and `ticket.rs` |
//! | The driver chooses the operation by its number. | `driver.rs` (`Driver::handle`) |
//! | The operation replies at once in two cases: the block cache has the bytes, or the block is uncompressed and the page cache has the bytes. | `ops/read.rs` (`answer`), `Image::try_read_pinned` in `redwarfs-reader/src/pinned.rs` |
//! | Otherwise it registers the ticket, so that a signal can end the wait. | `pending_reads.rs` |
//! | A worker (`pool.rs`) runs the job of the read. | `ops/read.rs` (`ReadJob::run`) |
//! | The job calls `Image::read_pinned`. This calls `BlockCache::get` for each block, which finds the block or adds it. | `redwarfs-reader/src/`: `pinned.rs`, `cache/mod.rs` |
//! | `SharedCache::ensure` waits for the bytes, or reads, verifies and decodes the block (`advance_inner`). | `redwarfs-reader/src/cache/decode.rs` |
//! | The ticket (`reply_parts`) sends the reply over the transport of the request. | `ticket.rs`, then `device.rs` or `ring/queues/queue.rs` |
//!
//! The table is about READ. For every other request, the thread that receives it also handles it. Each operation with code of its own has a file in
//! `ops`. Operations that always have the same result are in `driver.rs`.
//! [`mount`] is in `mount.rs`. It attaches the file system (`attach.rs`), negotiates the parameters of
//! the connection with the kernel (`session.rs`, `ops/init.rs`), and starts the threads. They share one
//! `ImageState` (`mount_state.rs`).
//!
//! # Threads
//!
//! - One *reading thread* reads requests from the kernel. It answers all requests for metadata. It
//!   also answers READ requests that need no decoding and no waiting. [`MountOptions::readers`] asks for more such threads. They help several processes that
//!   read at random, and slow a single process that walks or reads a tree.
//! - [`MountOptions::workers`] threads carry out the other reads, and reply themselves. In a mount of several images, an
//!   image of which no read runs gets a further one if all are busy.
//! - One thread pushes small files into the page cache before a program reads them
//!   ([`MountOptions::push`]).
//! - One thread ends reads whose program got a signal (see "Interrupted reads"). It exists only while
//!   there are such reads, or, with io_uring, while any read waits.
//! - One thread watches the reading thread while the reading thread runs on the CPU of a program (see
//!   below).
//!
//! With io_uring, one thread for each CPU does the work of the reading thread. One reading thread remains
//! for FORGET and INTERRUPT, and [`MountOptions::readers`] has no effect.
//!
//! With exactly one reading thread, two methods save time: polling and following.
//!
//! *Polling.* If the system takes long to wake the reading thread, this thread polls for the next request
//! for a moment before it sleeps. It does so only while polling proves to be faster (`patience.rs`).
//!
//! *Following.* While one program sends many small requests, the reading thread follows that program to its CPU
//! ([`MountOptions::follow`]). The driver binds the thread to that CPU and gives it the policy
//! `SCHED_IDLE`. Then the scheduler wakes the program on the same CPU, and `find` needs half to three
//! quarters of the time that it needs without following.
//! A thread with `SCHED_IDLE` hardly runs while other threads want its CPU. So a watcher checks the
//! progress of the reading thread every millisecond. The watcher restores the normal
//! scheduling policy after 4 checks in which a request waits without progress, and after 10 checks without
//! a request. It also restores it if several processes send requests, if one reads much data, or if
//! following saves less than a tenth of the time.
//! The driver follows only if it may restore the normal policy: with `CAP_SYS_NICE`, or with a limit `RLIMIT_NICE` that
//! allows its present priority.
//!
//! # io_uring
//!
//! With [`MountOptions::uring`], requests come through queues in shared memory: one queue and one
//! thread for each CPU. Requests and answers have the same form as those of the device. If the kernel
//! does not offer queues, or the process cannot use io_uring, requests come from the device, and the log
//! says so.
//!
//! # Interrupted reads
//!
//! If an image stalls (a network file system, a failing disk), the user can still kill a
//! program that waits for data: the driver ends its read. Any other signal ends its read with `EINTR` if the data is not there within a second.
//! Requests that need nothing from the image are still answered. There are two exceptions:
//!
//! - In the first moments of a mount, some metadata is not in memory yet. The thread that answers a
//!   request then reads this metadata from the image. If the image stalls at that time, the requests of this thread
//!   wait.
//! - With io_uring, a queue whose places are all taken by stalled reads answers nothing until one of them
//!   ends.
//!
//! # When the driver dies
//!
//! If the process is killed and cannot unmount, every operation on the mount point fails with
//! `ENOTCONN` ("Transport endpoint is not connected") until it is unmounted. A [`guard::Guard`]
//! unmounts it. With [`MountOptions::auto_unmount`], the helper program `fusermount3` unmounts it.
//!
//! # Memory
//!
//! In addition to the opened image, a mount needs:
//!
//! - A buffer of 128 KiB for each reading thread, which holds one request.
//! - Up to 1 MiB for each reading thread (with io_uring, each CPU) and worker, for the parts of a reply that are copied. These are zeros
//!   of holes, small pieces, and bytes of uncompressed blocks. If a reply needs more than two blocks (of a
//!   worker: more than one), bytes of the further blocks are copied, too. All other parts are sent from the cache. A reply keeps at most two blocks in the cache until it is sent.
//! - For pushing, 2 bits for each inode. Once files have been pushed, 4 bytes for each regular file.
//! - With io_uring, for each CPU that the system may have: a thread, some pages, and 16 MiB of
//!   address space. It has room for 16 replies. Only the parts that replies have filled take memory.
//! - The amounts that [`MountOptions::case_insensitive`] and [`MountOptions::analysis_file`] state.

mod analysis;
#[cfg(unix)]
mod attach;
#[cfg(unix)]
mod attr;
mod bits;
mod case;
#[cfg(unix)]
mod descriptors;
#[cfg(unix)]
mod device;
#[cfg(unix)]
mod driver;
mod error;
mod failures;
#[cfg(unix)]
mod follow;
#[cfg(unix)]
pub mod guard;
mod idle;
#[cfg(unix)]
mod image_state;
#[cfg(unix)]
mod images;
#[cfg(unix)]
mod mount;
#[cfg(unix)]
mod mount_state;
#[cfg(unix)]
mod mount_table;
#[cfg(unix)]
mod newest;
#[cfg(unix)]
mod numbers;
#[cfg(unix)]
mod ops;
mod options;
#[cfg(unix)]
mod order;
#[cfg(unix)]
mod overlay;
#[cfg(unix)]
mod patience;
#[cfg(unix)]
mod pending_reads;
mod policy;
#[cfg(unix)]
mod pool;
#[cfg(unix)]
mod proto;
#[cfg(unix)]
mod push;
#[cfg(unix)]
mod removal;
#[cfg(unix)]
mod ring;
#[cfg(unix)]
mod routing;
#[cfg(unix)]
mod session;
#[cfg(unix)]
mod settings;
#[cfg(unix)]
mod slots;
#[cfg(unix)]
mod snapshots;
mod statistics;
#[cfg(unix)]
mod synthetic;
#[cfg(feature = "case-insensitive")]
mod text;
#[cfg(unix)]
mod ticket;
#[cfg(unix)]
mod union;
#[cfg(all(any(windows, test), target_pointer_width = "64"))]
pub mod winfsp;
#[cfg(unix)]
#[cfg_attr(not(feature = "layer"), path = "writable/absent.rs")]
mod writable;
#[cfg(unix)]
mod xattr;

#[cfg(unix)]
pub use attach::Unmounted;
pub use error::{Error, Result, io_text};
pub use idle::IdleWatch;
#[cfg(unix)]
pub use images::{ChangeError, ImageSet, Images, ListedImage, NamedImage};
#[cfg(unix)]
pub use mount::{
    HAS_URING, Mounted, Observer, Unmounter, mount, mount_guarded, mount_images, serve_device,
    serve_device_images,
};
#[cfg(unix)]
pub use mount_table::take_off_dead;
#[cfg(unix)]
pub use newest::{Move, Mover};
pub use options::{Access, KernelFlags, Layer, LayerDriver, MountOptions, Whiteouts};
#[cfg(unix)]
pub use removal::remove_tree;
#[cfg(unix)]
pub use slots::{OpenError, Opener, SlotStatus};
#[cfg(all(unix, feature = "layer"))]
pub use writable::LayerDirectory;
