//! A file on a medium that fails on request: a FUSE file system with one file, between the image
//! and the program that reads it.
//!
//! The kernel caches nothing of it: every read of the program arrives here.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request,
};

const FILE: INodeNo = INodeNo(2);
const NAME: &str = "image";
/// Looking this up waits until the medium no longer stalls.
const GATE: &str = "gate";

/// The behaviour of the medium.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Medium {
    /// What it should.
    #[default]
    Good,
    /// Reads that touch these bytes fail with `EIO`.
    Fails(Range<u64>),
    /// The file ends here.
    EndsAt(u64),
    /// It holds something else, which may be shorter.
    Holds(Vec<u8>),
}

#[derive(Debug, Default)]
struct MediumState {
    medium: Medium,
    stalled: bool,
    /// Whether the loop that answers requests stands still.
    standing: bool,
}

#[derive(Debug)]
struct SharedMedium {
    content: Vec<u8>,
    state: Mutex<MediumState>,
    changed: Condvar,
    reads: AtomicU64,
}

impl SharedMedium {
    fn state(&self) -> MutexGuard<'_, MediumState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mounted file.
#[derive(Debug)]
pub struct FaultyFile {
    shared: Arc<SharedMedium>,
    session: Option<BackgroundSession>,
    gate: Mutex<Option<JoinHandle<()>>>,
    point: PathBuf,
}

impl FaultyFile {
    /// Mounts the file system on the directory `point`, with a file that holds `content`.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mount(point: &Path, content: Vec<u8>) -> io::Result<Self> {
        let shared = Arc::new(SharedMedium {
            content,
            state: Mutex::default(),
            changed: Condvar::new(),
            reads: AtomicU64::new(0),
        });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("faulty".to_owned())];
        let session = fuser::spawn_mount(Disk(Arc::clone(&shared)), point, &config)?;
        // The answer to the first FLUSH tells the kernel to send none. Processes that wait for a
        // request during a stall could not be killed.
        drop(std::fs::File::open(point.join(NAME))?);
        Ok(Self {
            shared,
            session: Some(session),
            gate: Mutex::default(),
            point: point.to_owned(),
        })
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.point.join(NAME)
    }

    /// Changes the behaviour of the medium from the next read on.
    pub fn set(&self, medium: Medium) {
        self.shared.state().medium = medium;
    }

    /// Number of reads that were answered, failed ones included.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::SeqCst)
    }

    /// From here on, until [`FaultyFile::go_on`], no request is answered. Requests stay in the queue of
    /// the kernel, so that a process that waits for one can be killed, as with a disk on a network.
    pub fn stall(&self) {
        self.shared.state().stalled = true;
        let gate = self.point.join(GATE);
        // This is the request at which the loop stops. It comes from this process, not from the
        // program.
        let thread = std::thread::spawn(move || {
            let _ = std::fs::symlink_metadata(gate);
        });
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        let mut state = self.shared.state();
        while !state.standing {
            state = self.wait(state);
        }
    }

    /// Ends a stall. What waited is answered.
    pub fn go_on(&self) {
        self.shared.state().stalled = false;
        self.shared.changed.notify_all();
        let gate = self
            .gate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = gate {
            let _ = thread.join();
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, MediumState>) -> MutexGuard<'a, MediumState> {
        self.shared
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.go_on();
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

struct Disk(Arc<SharedMedium>);

impl Disk {
    fn len(&self) -> u64 {
        let len = self.0.content.len() as u64;
        match &self.0.state().medium {
            Medium::EndsAt(end) => len.min(*end),
            Medium::Holds(other) => other.len() as u64,
            _ => len,
        }
    }

    fn attr(&self, node: INodeNo) -> FileAttr {
        let file = node == FILE;
        FileAttr {
            ino: node,
            size: if file { self.len() } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if file { 0o644 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            return reply.entry(&Duration::ZERO, &self.attr(FILE), Generation(0));
        }
        if name == GATE {
            let mut state = self.0.state();
            state.standing = true;
            self.0.changed.notify_all();
            while state.stalled {
                state = self
                    .0
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            state.standing = false;
        }
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        let state = self.0.state();
        let content = match &state.medium {
            Medium::Holds(other) => other,
            _ => &self.0.content,
        };
        let mut end = content.len() as u64;
        if let Medium::EndsAt(at) = state.medium {
            end = end.min(at);
        }
        let start = offset.min(end);
        let end = offset.saturating_add(u64::from(size)).min(end).max(start);
        if let Medium::Fails(range) = &state.medium
            && start < range.end
            && range.start < end
        {
            return reply.error(Errno::EIO);
        }
        // Both are at most the length of a vector.
        reply.data(&content[start as usize..end as usize]);
    }
}
