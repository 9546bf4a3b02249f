//! Real mounts, in this process, of images made in memory.
// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub)]

mod maker;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use redwarfs_fuse::{MountOptions, Mounted, Observer, mount};
use redwarfs_io::Source;
use redwarfs_reader::{Image, OpenOptions};
use tempfile::TempDir;

#[allow(unused_imports)]
pub use maker::{BLOCK, FilePart, Maker};
#[allow(unused_imports)]
pub use redwarfs_testkit::can_mount;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// With this variable in the environment (any value) all mounts ask for io_uring.
pub const OVER_RING: &str = "REDWARFS_TEST_URING";
/// Says whether the kernel offers io_uring for FUSE.
const RING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The options, with io_uring if the environment asks for it.
pub fn as_asked(options: &MountOptions) -> MountOptions {
    let mut mount = options.clone();
    mount.uring = options.uring || std::env::var_os(OVER_RING).is_some();
    mount
}

/// Whether mounts that ask for io_uring get it, said aloud.
pub fn ring_is_offered(test: &str) -> bool {
    let parameter = std::fs::read_to_string(RING_PARAMETER).unwrap_or_default();
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let offered = parameter.trim() == "Y" && disabled.is_ok_and(|value| value.trim() == "0");
    let what = if offered {
        "over io_uring"
    } else {
        "falling back to /dev/fuse, because the kernel does not offer io_uring"
    };
    let line = format!("{test}: {what}\n");
    // Past the capture of the test harness.
    io::Write::write_all(&mut io::stderr(), line.as_bytes()).expect("stderr");
    offered
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes in memory, of which some may be withheld for a while.
pub struct Gate {
    bytes: Vec<u8>,
    /// Reads that begin in this range wait.
    closed: Mutex<Option<std::ops::Range<u64>>>,
    changed: Condvar,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            closed: Mutex::new(None),
            changed: Condvar::new(),
        })
    }

    pub fn close(&self, range: std::ops::Range<u64>) {
        *self.closed.lock().expect("not poisoned") = Some(range);
    }

    pub fn open(&self) {
        *self.closed.lock().expect("not poisoned") = None;
        self.changed.notify_all();
    }
}

impl Source for Gate {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut closed = self.closed.lock().expect("not poisoned");
        while closed.as_ref().is_some_and(|range| range.contains(&offset)) {
            closed = self.changed.wait(closed).expect("not poisoned");
        }
        drop(closed);
        let start = usize::try_from(offset).expect("a small image");
        let data = self.bytes.get(start..start + buf.len());
        buf.copy_from_slice(data.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn abandon(&self) {
        self.open();
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let closed = self.closed.lock().expect("not poisoned").clone();
        !closed.is_some_and(|range| range.contains(&offset))
            && self.read_exact_at(offset, buf).is_ok()
    }
}

/// A mount in this process; taken off at the end.
pub struct Mount {
    mounted: Option<Mounted>,
    pub observer: Observer,
    dir: TempDir,
}

impl Mount {
    pub fn new(maker: &Maker, options: &MountOptions) -> Self {
        Self::with(Gate::new(maker.image().0), &OpenOptions::default(), options)
    }

    pub fn with(source: Arc<dyn Source>, open: &OpenOptions, options: &MountOptions) -> Self {
        let image = Image::from_source(source, open).expect("a valid image");
        let dir = TempDir::with_prefix("redwarfs-fuse-").expect("a temporary directory");
        let mounted = mount(image, dir.path(), &as_asked(options)).expect("mounting works");
        Self {
            observer: mounted.observer(),
            mounted: Some(mounted),
            dir,
        }
    }

    pub fn point(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn device(&self) -> u64 {
        self.mounted.as_ref().expect("mounted").device()
    }

    /// A number from the statistics; 0 if it is not there.
    pub fn count(&self, name: &str) -> u64 {
        let text = self.observer.statistics();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |value| value.parse().expect("a number"))
    }

    /// Takes the mount out of this, to be ended in another way.
    pub fn take(&mut self) -> Mounted {
        self.mounted.take().expect("mounted")
    }

    pub fn unmount(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmounter().unmount().expect("unmounting works");
            mounted.wait().expect("the session ends well");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.unmounter().unmount();
            if !std::thread::panicking() {
                let _ = mounted.wait();
            }
        }
    }
}
