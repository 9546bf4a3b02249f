//! The process that keeps a mount or an extracted tree as long as somebody uses it.
//!
//! It is started by the first user and outlives it. It has no terminal, no open file of its starter, and ignores
//! the signals of a terminal and a shutdown: it ends when its last user does.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redwarfs_extractor::{ExtractOptions, Silent, extract_to_directory};
use redwarfs_fuse::{Error as FuseError, Unmounter, io_text, mount};
use redwarfs_io::FileSource;
use redwarfs_reader::{Image, ImageOffset, OpenOptions, Preload};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, setsid, waitpid};

use crate::environment::Settings;
use crate::error::{self, Failure, Result};
use crate::program::Program;
use crate::share::{KeeperRecord, Kept, Share};
use crate::tree::remove_tree;
use crate::{namespace, os};

/// When metadata is loaded that was not needed so far: not while the program starts.
const LOAD_AFTER: Duration = Duration::from_millis(500);

/// How long the keeper waits before it tries again to unmount what a process without our lock uses.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Category of the blocks that a start needs.
const HOTNESS: &str = "hotness";

/// Shown by `ps`.
const NAME: &std::ffi::CStr = c"dwarfs-runtime";

/// What to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// A mount that all processes of the user can see.
    Mount,
    /// A mount in namespaces of its own.
    MountInNamespace,
    /// An extracted tree.
    Extract,
}

/// Why there is nothing to keep.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// There is no FUSE here, or it is refused.
    NoFuse(Failure),
    /// The list of opened files cannot be written; the cause alone.
    NoRecord(Failure),
    /// Nothing else would help either.
    Fatal(Failure),
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Self::Fatal(failure)
    }
}

/// Starts a keeper and waits until it has what it keeps. `lock` is that of the keeper, which it takes over.
pub(crate) fn start(
    task: Task,
    program: &Program,
    offset: u64,
    settings: &Settings,
    share: &Share,
    lock: File,
) -> Result<(), Obstacle> {
    let cannot = |error: io::Error| Failure::new(format_args!("cannot start the driver: {error}"));
    let (read, write): (OwnedFd, OwnedFd) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| cannot(error.into()))?;
    // Not a child of the program: that one may wait for its children.
    let between = os::fork().map_err(cannot)?;
    let Some(between) = between else {
        match os::fork() {
            Ok(None) => {}
            Ok(Some(_)) => os::leave(0),
            Err(_) => os::leave(1),
        }
        let keeper = Keeper {
            task,
            kept: Kept {
                directory: share.directory().to_owned(),
            },
            offset,
            settings,
            lock: &lock,
        };
        keeper.run(program, write);
    };
    drop((write, lock));
    while let Err(rustix::io::Errno::INTR) = waitpid(Some(between), WaitOptions::empty()) {}
    let mut report = Vec::new();
    File::from(read).read_to_end(&mut report).map_err(cannot)?;
    let (&kind, text) = report
        .split_first()
        .ok_or_else(|| Failure::new("the driver died while starting"))?;
    let failure = Failure::new(String::from_utf8_lossy(text));
    match kind {
        READY => Ok(()),
        NO_FUSE => Err(Obstacle::NoFuse(failure)),
        NO_RECORD => Err(Obstacle::NoRecord(failure)),
        _ => Err(Obstacle::Fatal(failure)),
    }
}

/// First bytes of a keeper's report; the text of a failure follows.
const READY: u8 = b'r';
const NO_FUSE: u8 = b'n';
const NO_RECORD: u8 = b'l';
const FATAL: u8 = b'f';

/// Opens the image in the file of a program.
pub(crate) fn open_image(program: &Program, offset: u64, settings: &Settings) -> Result<Image> {
    let open = || -> redwarfs_format::Result<Image> {
        let source = FileSource::of(program.file.try_clone()?, &program.path)?;
        let mut options = OpenOptions::default();
        options.offset = ImageOffset::At(offset);
        options.lazy_metadata = true;
        options.cache = settings.cache;
        Image::from_source(Arc::new(source), &options)
    };
    open().map_err(|error| {
        Failure::new(format_args!(
            "cannot open the image: {}: {error}{}",
            program.path.display(),
            program.hint(&error)
        ))
    })
}

struct Keeper<'a> {
    task: Task,
    kept: Kept,
    offset: u64,
    settings: &'a Settings,
    lock: &'a File,
}

impl Keeper<'_> {
    fn run(&self, program: &Program, pipe: OwnedFd) -> ! {
        os::close_all_but(&[program.file.as_fd(), self.lock.as_fd(), pipe.as_fd()]);
        let mut report = Report(Some(pipe.into()));
        let done = self.leave_surroundings(program).map_err(|error| {
            Failure::new(format_args!("cannot go to the background: {error}")).into()
        });
        let done = done.and_then(|()| match self.task {
            Task::Extract => self.keep_tree(program, &mut report),
            Task::Mount | Task::MountInNamespace => self.keep_mount(program, &mut report),
        });
        if let Err(obstacle) = done {
            report.failed(&obstacle);
        }
        os::leave(0)
    }

    /// Lets go of terminal, signals, working directory and standard streams.
    fn leave_surroundings(&self, program: &Program) -> io::Result<()> {
        os::ignore_signals();
        // Fails only for the leader of a process group, which a child is not.
        let _ = setsid();
        let _ = rustix::thread::set_name(NAME);
        rustix::process::chdir("/")?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        // Where `/dev` is empty, any file does: nobody reads or writes.
        let null = null.or_else(|_| rustix::io::dup(&program.file))?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    }

    fn say_state(&self) -> Result<()> {
        let namespace = match self.task {
            Task::MountInNamespace => namespace::current().map(Some),
            Task::Mount | Task::Extract => Ok(None),
        };
        let state = namespace.map(|namespace| KeeperRecord {
            process: std::process::id(),
            namespace,
        });
        state
            .and_then(|state| state.write(self.lock))
            .map_err(|error| Failure::io("cannot write", &self.kept.directory, &error))
    }

    fn keep_mount(&self, program: &Program, report: &mut Report) -> Result<(), Obstacle> {
        let point = mount_point(&self.kept.directory);
        let image = open_image(program, self.offset, self.settings)?;
        if self.task == Task::MountInNamespace {
            namespace::make().map_err(|error| {
                Obstacle::NoFuse(Failure::new(format_args!(
                    "cannot make a user namespace: {error}"
                )))
            })?;
        }
        match fs::create_dir(&point) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Failure::io("cannot create mount point", &point, &error).into());
            }
            _ => {}
        }
        redwarfs_fuse::take_off_dead(&point);
        let mut options = self.settings.mount.clone();
        options.source = program.path.clone().into_os_string();
        let mounted = mount(image.clone(), &point, &options).map_err(|error| {
            let failure = Failure::new(&error);
            match error {
                FuseError::AnalysisFile { source, .. } => {
                    Obstacle::NoRecord(Failure::new(io_text(&source)))
                }
                FuseError::Image(_) => Obstacle::Fatal(failure),
                _ => Obstacle::NoFuse(failure),
            }
        })?;
        self.say_state()?;
        report.ready();
        // The program starts meanwhile. What fails here costs only time.
        let _ = image.load_metadata(LOAD_AFTER);
        let hot = Preload::Category(HOTNESS.to_owned());
        let all = self.settings.preload.then_some(Preload::All);
        for which in [Preload::Hints(None), hot].into_iter().chain(all) {
            let _ = image.preload(which);
        }
        drop(image);
        let unmounter = mounted.unmounter();
        let kept = self.kept.clone();
        let lock = self.lock.try_clone();
        let ends = Arc::new(Mutex::new(()));
        let also_ends = Arc::clone(&ends);
        // Ends the process if somebody else unmounts.
        let watcher = thread::Builder::new().spawn(move || {
            let _ = mounted.wait();
            // Waits for ever if the other thread is the one that unmounts.
            let _ends = also_ends.lock();
            if let Ok(Some(ending)) = lock.and_then(|lock| kept.end_without_keeping(&lock)) {
                let _ = fs::remove_dir(mount_point(&kept.directory));
                ending.remove();
            }
            os::leave(0)
        });
        if watcher.is_err() {
            let _ = unmounter.unmount();
            return Ok(());
        }
        self.unmount_after_last_user(&unmounter, &ends)
    }

    /// Ends the process when the mount is gone. `ends` is locked meanwhile, so that the thread that watches the mount
    /// does not end it before everything is removed.
    fn unmount_after_last_user(&self, unmounter: &Unmounter, ends: &Mutex<()>) -> ! {
        let mut retry = FIRST_RETRY;
        loop {
            self.wait_for_last_user();
            let ends = ends.lock();
            if let Ok(Some(ending)) = self.kept.end() {
                if matches!(unmounter.unmount_unused(), Ok(true)) {
                    let _ = fs::remove_dir(mount_point(&self.kept.directory));
                    ending.remove();
                    os::leave(0);
                }
                drop((ending, ends));
                // A process that has closed our descriptor uses it.
                thread::sleep(retry);
                retry = (retry * 2).min(LAST_RETRY);
            } else {
                retry = FIRST_RETRY;
            }
        }
    }

    /// Waits for the moment from which on nobody has used it for as long as the settings say.
    fn wait_for_last_user(&self) {
        let Some(linger) = self.settings.linger else {
            // Only somebody else ends it.
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        };
        if self.kept.wait_until_unused().is_err() {
            // The directory was removed by somebody else. Nobody can find what is kept any more.
            thread::sleep(LAST_RETRY);
        }
        thread::sleep(linger);
    }

    fn keep_tree(&self, program: &Program, report: &mut Report) -> Result<(), Obstacle> {
        let tree = tree(&self.kept.directory);
        if !tree.is_dir() {
            let image = open_image(program, self.offset, self.settings)?;
            extract(&image, &self.kept.directory, &tree)?;
        }
        self.say_state()?;
        report.ready();
        if self.settings.keep_extracted {
            return Ok(());
        }
        loop {
            self.wait_for_last_user();
            if let Ok(Some(ending)) = self.kept.end() {
                let _ = remove_tree(&tree);
                ending.remove();
                return Ok(());
            }
        }
    }
}

/// Extracts the whole image. `tree` appears when it is complete.
fn extract(image: &Image, directory: &Path, tree: &Path) -> Result<()> {
    let part = directory.join("tree.part");
    let cannot = |error: io::Error| Failure::io("cannot create directory", &part, &error);
    match remove_tree(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
        _ => {}
    }
    fs::create_dir(&part).map_err(cannot)?;
    let mut options = ExtractOptions::default();
    // Immutable entries could be neither renamed nor removed.
    options.file_flags = false;
    if let Err(error) = extract_to_directory(image, &part, &options, &Silent) {
        let _ = remove_tree(&part);
        return Err(Failure::new(format_args!(
            "cannot extract: {}: {error}{}",
            directory.display(),
            error::ELSEWHERE
        )));
    }
    fs::rename(&part, tree).map_err(cannot)
}

/// Where the image is mounted in a shared directory.
pub(crate) fn mount_point(directory: &Path) -> std::path::PathBuf {
    directory.join("mnt")
}

/// Where the image is extracted to in a shared directory.
pub(crate) fn tree(directory: &Path) -> std::path::PathBuf {
    directory.join("tree")
}

/// The keeper's end of the pipe to its starter, who may be gone.
struct Report(Option<File>);

impl Report {
    fn send(&mut self, kind: u8, text: &str) {
        if let Some(mut pipe) = self.0.take() {
            let mut message = vec![kind];
            message.extend_from_slice(text.as_bytes());
            let _ = pipe.write_all(&message);
        }
    }

    fn ready(&mut self) {
        self.send(READY, "");
    }

    fn failed(&mut self, obstacle: &Obstacle) {
        match obstacle {
            Obstacle::NoFuse(failure) => self.send(NO_FUSE, &failure.text),
            Obstacle::NoRecord(failure) => self.send(NO_RECORD, &failure.text),
            Obstacle::Fatal(failure) => self.send(FATAL, &failure.text),
        }
    }
}
