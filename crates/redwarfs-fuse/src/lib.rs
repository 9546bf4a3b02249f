//! The FUSE driver: mounts an opened DwarFS image on a directory (Linux).
//!
//! A mount made here is always read-only. The kernel may keep everything it learns (names, missing
//! names, attributes, directory contents, symbolic links, file data) for as long as it likes,
//! because an image never changes while it is mounted.
//!
//! # Threads
//!
//! One thread reads requests from the kernel and answers whatever needs no decompression: all
//! metadata and reads whose blocks are cached. Other reads go to a pool of workers, each of which
//! replies on its own. One more thread pushes small files ahead of their reader ([`MountOptions::push`]),
//! and one looks after reads whose reader was signalled, while there are such. Where waking it takes
//! long, the reading thread looks for the next request for a moment before it sleeps, if that has
//! proved to be quicker.
//!
//! While one program asks for one small thing after the other, the reading thread follows it to its
//! processor ([`MountOptions::follow`]): it is bound to that processor and gets the policy `SCHED_IDLE`,
//! so that the system wakes the program where it is and lets it go on at once. 2,000 files at random
//! needed 0.4 to 0.85 of the time, a walk through a tree 0.5 to 0.75 (medians of pairs, 2 virtual
//! CPUs). Such a thread hardly runs where others want the processor, so a second one, which exists from the
//! first time on, looks every millisecond whether it gets on, and undoes it after 4 ms without progress,
//! after 10 ms without a request, and if it is not a tenth quicker. Only processes that may undo the
//! policy do this: with `CAP_SYS_NICE`, as root has, or with a limit `RLIMIT_NICE` that allows their
//! priority.
//!
//! With several idle readers requests tend to change thread and CPU, which costs a single process
//! that walks or reads a tree, so one is the default. [`MountOptions::readers`] asks for more, which
//! pays for several processes that read at random: four of them, 80,000 direct reads of 4 KiB of
//! decoded data, needed 2.06 s of CPU time and 4.0 s with two readers, 2.58 s and 6.0 s with one
//! (three alternating pairs, means and medians, 2 CPUs with much other load). A reader that came and
//! went with the load was tried and is not here: it needed as little CPU time as two fixed ones
//! (2.08 s), but its runs took 33 s, where two fixed readers beside it took 7 to 33 s.
//!
//! # io_uring
//!
//! With [`MountOptions::uring`], where the kernel offers it, requests come through queues in shared
//! memory, one for each CPU with a thread of its own, instead of being read from the device. The
//! requests, who answers them and what they are answered are the same. Where the kernel does not
//! offer it, or io_uring cannot be used, requests come from the device, and only the log tells.
//!
//! # Interrupted reads
//!
//! If an image stalls (a network file system, a failing disk), a program that waits for data can
//! be killed; other signals end its read with `EINTR` if the data is not there within a second.
//! Everything that needs nothing from the image goes on.
//!
//! # When the driver dies
//!
//! If the process is killed without a chance to unmount, the mount point answers `ENOTCONN`
//! ("Transport endpoint is not connected") until somebody unmounts it. A [`guard::Guard`] does
//! that; with [`MountOptions::auto_unmount`] the helper program `fusermount3` does.
//!
//! # Memory
//!
//! Besides the image: 128 KiB per reader; up to 1 MiB per reader and worker for holes and small
//! pieces, while everything else is answered from the cache, of which an answer keeps at most two
//! blocks; for pushing 2 bits per inode, and
//! 4 bytes per regular file from the first pushed sequence on. With io_uring, for each CPU that the
//! system may have, some pages and a thread, and 16 MiB of address space, of which memory is used as
//! far as answers have reached: a few of the usual 128 KiB, and all of it only if many reads of
//! 1 MiB were on their way at the same time. [`MountOptions`] says what the index
//! of [`MountOptions::case_insensitive`] and the [`MountOptions::analysis_file`] cost.

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
mod options;
mod patience;
mod pool;
mod prepared;
mod proto;
mod push;
mod ring;
mod session;
mod shared;
mod statistics;
mod table;
mod text;
mod ticket;
mod xattr;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_reader::Image;

pub use error::{Error, Result, io_text};
pub use idle::IdleWatch;
pub use options::{Access, KernelFlags, MountOptions};

use device::Device;
use driver::Driver;
use kernel::KernelMount;
use prepared::Prepared;
use session::Session;
use shared::Shared;

/// Whether requests can come over io_uring on the processor that this is built for, see
/// [`MountOptions::uring`]. The kernel has to offer it as well.
pub const HAS_URING: bool = ring::AVAILABLE;

/// Mounts `image` on the directory `mountpoint` and starts answering requests.
///
/// When this returns, the mount is usable. The calling process must not change its set of threads
/// by `fork` afterwards: the driver's threads live in this process.
///
/// # Errors
///
/// [`Error`] says which step failed; nothing stays mounted then.
pub fn mount(image: Image, mountpoint: &Path, options: &MountOptions) -> Result<Mounted> {
    mount_guarded(image, mountpoint, options, None)
}

/// As [`mount`]; `guard` watches the mount before anybody gets an answer from it, if its device number can
/// be read from the mount table. If not, or if the guard is gone, that shows in [`guard::Guard::watch`]
/// afterwards.
///
/// # Errors
///
/// As [`mount`].
pub fn mount_guarded(
    image: Image,
    mountpoint: &Path,
    options: &MountOptions,
    guard: Option<&mut guard::Guard>,
) -> Result<Mounted> {
    let prepared = Prepared::new(&image, options)?;
    let (device, mount) = KernelMount::new(mountpoint, options)?;
    start(image, prepared, device, mount, options, guard)
}

/// Serves a mount that the caller has made: `device` is the opened `/dev/fuse` of a mount without a
/// server. The settings that belong to the mount itself (access, permissions, flags, names) are the
/// caller's, and so is unmounting. `name` stands for the mount point in messages.
///
/// # Errors
///
/// As [`mount`]; [`Error::MountPoint`] if it is no FUSE device.
pub fn serve_device(
    image: Image,
    device: OwnedFd,
    name: &Path,
    options: &MountOptions,
) -> Result<Mounted> {
    Device::check(&device).map_err(|source| Error::MountPoint {
        path: name.to_owned(),
        source,
    })?;
    let prepared = Prepared::new(&image, options)?;
    let mount = KernelMount::foreign(name);
    start(image, prepared, device, mount, options, None)
}

/// Answers the first request and starts the threads.
fn start(
    image: Image,
    prepared: Prepared,
    device: OwnedFd,
    mount: KernelMount,
    options: &MountOptions,
    guard: Option<&mut guard::Guard>,
) -> Result<Mounted> {
    let shared = Arc::new(Shared::new(image));
    let mount = Arc::new(mount);
    let start = || -> io::Result<Session> {
        let device = Arc::new(Device::new(device));
        let mut driver = Driver::new(&shared, prepared, &device, options)?;
        let queues = session::handshake(&device, &mut driver, options.uring)?;
        let driver = Arc::new(driver);
        if let Some(guard) = guard.filter(|_| mount.device() != 0) {
            // Who mounts tells it again, and hears of errors then.
            let _ = guard.watch(mount.mountpoint(), mount.device());
        }
        let session = Session::start(&device, &driver, options, queues)?;
        mount.probe()?;
        Ok(session)
    };
    match start() {
        Ok(session) => Ok(Mounted {
            session,
            mount,
            idle: options.idle,
            observer: Observer(shared),
        }),
        Err(error) => {
            mount.abandon();
            Err(Error::Session(error))
        }
    }
}

/// A live mount.
#[derive(Debug)]
pub struct Mounted {
    session: Session,
    mount: Arc<KernelMount>,
    idle: Option<Duration>,
    observer: Observer,
}

impl Mounted {
    /// A handle that tells from another thread how the mount is doing.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// As [`Observer::statistics`].
    #[must_use]
    pub fn statistics(&self) -> String {
        self.observer.statistics()
    }

    /// As [`Observer::perfmon_summary`].
    #[must_use]
    pub fn perfmon_summary(&self) -> Option<String> {
        self.observer.perfmon_summary()
    }

    /// Tells when the mount has been idle for as long as [`MountOptions::idle`] says; none without it.
    #[must_use]
    pub fn idle_watch(&self) -> Option<IdleWatch> {
        let shared = Arc::clone(&self.observer.0);
        self.idle.map(|limit| IdleWatch::new(shared, limit))
    }

    /// Device number of the mounted file system (`st_dev` of its files), for
    /// [`guard::Guard::watch`]; 0 if the caller mounted it.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.mount.device()
    }

    /// A handle that unmounts from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::clone(&self.mount))
    }

    /// The mount point as an absolute path without symbolic links.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        self.mount.mountpoint()
    }

    /// Waits until the file system is unmounted, by whomever. If the connection ended in another
    /// way (it was aborted), the dead mount is removed.
    ///
    /// # Errors
    ///
    /// The error that ended the request loop.
    pub fn wait(self) -> Result<()> {
        // Also if a thread of the session panicked.
        let _remains = Remains(&self.mount);
        self.session.join().map_err(Error::Session)
    }
}

/// Tells how a mount is doing, also after its end.
#[derive(Debug, Clone)]
pub struct Observer(Arc<Shared>);

impl Observer {
    /// What block cache and driver did so far: lines of text without a newline at the end.
    #[must_use]
    pub fn statistics(&self) -> String {
        statistics::text(&self.0.image.cache_stats(), &self.0.counters)
    }

    /// Times of the monitored components; none if nothing is monitored.
    #[must_use]
    pub fn perfmon_summary(&self) -> Option<String> {
        self.0.image.perfmon().summary()
    }
}

/// Removes a dead mount when it goes out of scope.
struct Remains<'a>(&'a KernelMount);

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        self.0.clear_remains();
    }
}

/// Unmounts a [`Mounted`] file system.
#[derive(Debug, Clone)]
pub struct Unmounter(Arc<KernelMount>);

/// How an attempt to unmount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// The file system is gone.
    Gone,
    /// It was in use and is detached from the tree; programs that still use it lose it when the
    /// driver's process ends.
    Detached,
    /// The caller mounted it, and has to unmount it.
    NotOurs,
}

impl Unmounter {
    /// Unmounts. A file system in use is detached from the tree at once.
    ///
    /// # Errors
    ///
    /// The unmount was refused; or the error of running `fusermount3`.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        self.0.unmount()
    }

    /// Unmounts if nobody has a file or directory of the mount open. Returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Unmounter::unmount`].
    pub fn unmount_unused(&self) -> io::Result<bool> {
        self.0.unmount_unused()
    }
}
