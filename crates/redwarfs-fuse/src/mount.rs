//! Mounting an image, and the handles of a live mount.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_reader::Image;
use rustix::process::{getegid, geteuid};

use crate::attach::{KernelMount, Unmounted, target_of};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::guard;
use crate::idle::{IdleWatch, Uses};
use crate::images::{ImageSet, Images};
use crate::mount_state::MountState;
use crate::newest::Mover;
use crate::options::{Layer, LayerDriver, MountOptions};
use crate::overlay::{self, PrivateDirectory, ReadyLayer};
use crate::ring;
use crate::session::{self, Session};
use crate::statistics;
use crate::writable::{self, ForKernel, WritableDriver};

/// Threads of a writable mount in addition to those that decode: they also write to the layer.
const SERVING: usize = 2;

/// Whether io_uring is supported on the CPUs for which this library is compiled, see
/// [`MountOptions::uring`]. The kernel must support it, too.
pub const HAS_URING: bool = ring::AVAILABLE;

/// Mounts `image` on the directory `mountpoint` and starts answering requests.
///
/// When this returns, the mount is usable. The calling process must not change its set of threads
/// by `fork` afterwards: the driver's threads live in this process.
///
/// # Errors
///
/// [`Error`] names the step that failed. Nothing stays mounted.
pub fn mount(image: Image, mountpoint: &Path, options: &MountOptions) -> Result<Mounted> {
    mount_guarded(image, mountpoint, options, None)
}

/// As [`mount`]. If the device number can be read from the mount table, `guard` watches the mount
/// before the first request is served. If not, or if the guard has ended, a later
/// [`guard::Guard::watch`] fails.
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
    let options = &*for_layer(options);
    let mut guard = guard;
    if let Some(layer) = &options.layer
        && options.layer_driver != LayerDriver::Own
    {
        let by_kernel = mount_overlay(&image, mountpoint, layer, options, guard.as_deref_mut());
        match by_kernel {
            Err(error @ Error::Overlay { .. }) if options.layer_driver == LayerDriver::Auto => {
                tracing::info!(target: "redwarfs_fuse::verbose", "the own driver writes to the layer: {error}");
            }
            other => return other,
        }
    }
    let state = Arc::new(MountState::new(image, options)?);
    // Before the mount, which may hide its directory.
    let writable = layer_driver(&state, options)?;
    let (device, mount) = KernelMount::new(mountpoint, options)?;
    start(state, writable, device, mount, options, guard)
}

/// Mounts an overlay of the kernel. Fails with [`Error::Overlay`] if that cannot be; then nothing is mounted.
fn mount_overlay(
    image: &Image,
    mountpoint: &Path,
    layer: &Layer,
    options: &MountOptions,
    mut guard: Option<&mut guard::Guard>,
) -> Result<Mounted> {
    let target = target_of(mountpoint)?;
    let refused = |source| Error::Overlay {
        path: target.clone(),
        source,
    };
    overlay::refusal(options).map_err(refused)?;
    // Makes the layer. The image stays in use.
    let making = MountOptions {
        owns_image: false,
        ..options.clone()
    };
    let state = Arc::new(MountState::new(image.clone(), &making)?);
    let opened = ForKernel::open(&state, layer.path(), layer.keeps());
    let opened = opened.map_err(|source| Error::Changes {
        path: layer.path().to_owned(),
        source,
    })?;
    let ready = ReadyLayer::new(opened, layer).map_err(refused)?;
    let lower = PrivateDirectory::new().map_err(refused)?;
    ready.try_out(&lower, options).map_err(refused)?;
    let below = overlay::of_image(options);
    let state = Arc::new(MountState::new(image.clone(), &below)?);
    let (device, mount) = KernelMount::new(lower.path(), &below)?;
    let mounted = start(state, None, device, mount, &below, guard.as_deref_mut())?;
    let over = ready.mount(&lower, &target, options);
    // The end of the driver below gives up the image: no other one can follow.
    let (mount, lock) = over.map_err(|source| Error::Mount {
        path: target.clone(),
        source,
    })?;
    let mount = Arc::new(mount);
    watch(guard, &mount);
    Ok(Mounted {
        mount,
        _layer: Some(lock),
        ..mounted
    })
}

/// As [`mount_guarded`], for several images: each has a directory in the root of the mount. An image is opened when
/// somebody looks at its directory. If that fails, an empty directory is in its place, whose attribute
/// `user.dwarfs.error` says why. With [`MountOptions::union`], they are opened at once, and are layers of one tree.
///
/// # Errors
///
/// As [`mount`].
pub fn mount_images(
    images: ImageSet,
    mountpoint: &Path,
    options: &MountOptions,
    guard: Option<&mut guard::Guard>,
) -> Result<Mounted> {
    let options = &of_several(options);
    let state = Arc::new(MountState::of_images(images, options)?);
    let (device, mount) = KernelMount::new(mountpoint, options)?;
    start(state, None, device, mount, options, guard)
}

/// The options of a mount of several images.
fn of_several(options: &MountOptions) -> MountOptions {
    MountOptions {
        side_by_side: true,
        snapshots: None,
        follow_newest: false,
        analysis_file: None,
        ..options.clone()
    }
}

/// Serves a mount that the caller has made: `device` is the opened `/dev/fuse` of a mount without a
/// server. The caller chooses the settings of the mount itself (access, permissions, flags, names), and
/// unmounts. `name` is the mount point in messages.
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
    check(&device, name)?;
    if options.layer.is_some() && options.layer_driver == LayerDriver::Kernel {
        let why = "the caller has mounted the device";
        return Err(Error::Overlay {
            path: name.to_owned(),
            source: io::Error::new(io::ErrorKind::Unsupported, why),
        });
    }
    let options = &*for_layer(options);
    let state = Arc::new(MountState::new(image, options)?);
    let writable = layer_driver(&state, options)?;
    let mount = KernelMount::foreign(name);
    start(state, writable, device, mount, options, None)
}

/// As [`serve_device`], for several images as with [`mount_images`].
///
/// # Errors
///
/// As [`serve_device`].
pub fn serve_device_images(
    images: ImageSet,
    device: OwnedFd,
    name: &Path,
    options: &MountOptions,
) -> Result<Mounted> {
    check(&device, name)?;
    let options = &of_several(options);
    let state = Arc::new(MountState::of_images(images, options)?);
    let mount = KernelMount::foreign(name);
    start(state, None, device, mount, options, None)
}

fn check(device: &OwnedFd, name: &Path) -> Result<()> {
    Device::check(device).map_err(|source| Error::MountPoint {
        path: name.to_owned(),
        source,
    })
}

/// Replies to the first request, and starts the threads.
fn start(
    state: Arc<MountState>,
    writable: Option<WritableDriver>,
    device: OwnedFd,
    mount: KernelMount,
    options: &MountOptions,
    guard: Option<&mut guard::Guard>,
) -> Result<Mounted> {
    let mount = Arc::new(mount);
    let start = || -> io::Result<(Session, Mover, Images)> {
        let device = Arc::new(Device::new(device));
        if let Some(driver) = writable {
            session::handshake(&device, &driver, false)?;
            watch(guard, &mount);
            let threads = options.workers.max(1) + SERVING;
            let session = Session::of_workers(&device, &Arc::new(driver), threads)?;
            mount.probe()?;
            let mover = Mover::new(&state, &device);
            return Ok((session, mover, Images::new(&state, &device)));
        }
        let driver = Driver::new(&state, &device, options)?;
        let queues = session::handshake(&device, &driver, options.uring)?;
        let driver = Arc::new(driver);
        watch(guard, &mount);
        let session = Session::start(&device, &driver, options, queues)?;
        mount.probe()?;
        let mover = Mover::new(&state, &device);
        Ok((session, mover, Images::new(&state, &device)))
    };
    match start() {
        Ok((session, mover, images)) => Ok(Mounted {
            session,
            mover,
            images,
            mount,
            _layer: None,
            idle: options.idle,
            observer: Observer(state),
        }),
        Err(error) => {
            mount.abandon();
            Err(Error::Session(error))
        }
    }
}

/// The options, completed for a writable layer. A user who cannot give files to others sees all files of the image as own
/// ones, because copies of them are. Permissions count, because programs that write expect that.
fn for_layer(options: &MountOptions) -> Cow<'_, MountOptions> {
    if options.layer.is_none() {
        return Cow::Borrowed(options);
    }
    let mut options = options.clone();
    if !writable::is_privileged() {
        options.uid.get_or_insert(geteuid().as_raw());
        options.gid.get_or_insert(getegid().as_raw());
    }
    options.default_permissions.get_or_insert(true);
    // The layer is about one generation, and finds names itself.
    options.snapshots = None;
    options.follow_newest = false;
    options.case_insensitive = false;
    options.analysis_file = None;
    Cow::Owned(options)
}

/// The driver of a mount with a writable layer.
fn layer_driver(state: &Arc<MountState>, options: &MountOptions) -> Result<Option<WritableDriver>> {
    let Some(layer) = &options.layer else {
        return Ok(None);
    };
    let path = layer.path();
    let driver = WritableDriver::new(state, options, path, layer.keeps());
    driver.map(Some).map_err(|source| Error::Changes {
        path: path.to_owned(),
        source,
    })
}

/// Lets the guard watch the mount, if the number of the mount is known.
fn watch(guard: Option<&mut guard::Guard>, mount: &KernelMount) {
    if let Some(guard) = guard.filter(|_| mount.device() != 0) {
        // The caller calls the guard again, and gets the error there.
        let _ = mount.watch(guard);
    }
}

/// A live mount.
#[derive(Debug)]
pub struct Mounted {
    session: Session,
    mover: Mover,
    images: Images,
    mount: Arc<KernelMount>,
    /// The lock of the layer of an overlay.
    _layer: Option<OwnedFd>,
    idle: Option<Duration>,
    observer: Observer,
}

impl Mounted {
    /// A handle that shows statistics of the mount from another thread.
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

    /// Detects that the mount was idle for the time of [`MountOptions::idle`]; none without this
    /// option.
    #[must_use]
    pub fn idle_watch(&self) -> Option<IdleWatch> {
        let state = Arc::clone(&self.observer.0);
        self.idle
            .map(|limit| IdleWatch::new(state as Arc<dyn Uses>, limit))
    }

    /// A handle that moves the mount to the newest generation of the file of its image.
    #[must_use]
    pub fn mover(&self) -> Mover {
        self.mover.clone()
    }

    /// A handle that adds, removes and lists the images of a mount of several ones.
    #[must_use]
    pub fn images(&self) -> Images {
        self.images.clone()
    }

    /// Lets a guard take off the mount if this process dies.
    ///
    /// # Errors
    /// The guard has ended.
    pub fn watch_by(&self, guard: &mut guard::Guard) -> io::Result<()> {
        self.mount.watch(guard)
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

    /// Waits until the file system is unmounted. If the connection ended in another way (it was
    /// aborted), the dead mount is removed.
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

/// Shows statistics of a mount, also after its end.
#[derive(Debug, Clone)]
pub struct Observer(Arc<MountState>);

impl Observer {
    /// Statistics of block cache and driver: lines of text without a final newline.
    #[must_use]
    pub fn statistics(&self) -> String {
        statistics::text(&self.0.cache.stats(), &self.0.shared.counters)
    }

    /// Times of the monitored components; none if nothing is monitored.
    #[must_use]
    pub fn perfmon_summary(&self) -> Option<String> {
        self.0.perfmon.summary()
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

impl Unmounter {
    /// Unmounts. A file system in use is detached from the tree at once.
    ///
    /// # Errors
    ///
    /// The unmount was refused; or the error of running `fusermount3`.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        self.0.unmount()
    }

    /// Unmounts, unless a file or directory of the mount is open. Returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Unmounter::unmount`].
    pub fn unmount_unused(&self) -> io::Result<bool> {
        self.0.unmount_unused()
    }
}
