//! Provides the contents of the image as a directory: joins what another process has made, or makes it.

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::environment::{Extraction, Settings};
use crate::error::{Failure, Result};
use crate::keeper::{self, Obstacle, Task};
use crate::namespace;
use crate::program::{Program, with_ending};
use crate::share::{KeeperRecord, Share, Use, is_mounted, is_private};

/// Where directories are made if the environment says nothing.
const TEMPORARY: &str = "/tmp";

/// How many names are tried if others have taken the first ones.
const NAMES: u32 = 8;

/// The contents of the image.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) directory: PathBuf,
    /// Has `keeper` in it.
    pub(crate) shared: PathBuf,
    /// Keeps them there.
    _held: Use,
}

/// Mounts the image, or extracts it if that is wanted or the only way.
pub(crate) fn provide(program: &Program, settings: &Settings) -> Result<Contents> {
    if settings.extraction == Extraction::Always {
        return Finder::new(program, settings)?.extract();
    }
    let mut settings = settings.clone();
    match mount(program, &mut settings) {
        Ok(contents) => Ok(contents),
        Err(Obstacle::Fatal(failure) | Obstacle::NoRecord(failure)) => Err(failure),
        Err(Obstacle::NoFuse(failure)) => {
            let note = format!("{}: the program runs from a copy instead", failure.text);
            Finder::new(program, &settings)?.extract_saying(Some(&note))
        }
    }
}

/// Mounts the image.
pub(crate) fn provide_mount(program: &Program, settings: &Settings) -> Result<Contents> {
    match mount(program, &mut settings.clone()) {
        Ok(contents) => Ok(contents),
        Err(Obstacle::Fatal(failure) | Obstacle::NoRecord(failure)) => Err(failure),
        Err(Obstacle::NoFuse(failure)) => {
            Err(failure.hint(": --appimage-extract works without FUSE"))
        }
    }
}

/// Mounts the image. If the list of opened files cannot be written, there is none, and a line says so.
fn mount(program: &Program, settings: &mut Settings) -> Result<Contents, Obstacle> {
    let mounted = Finder::new(program, settings)?.mount();
    let Err(Obstacle::NoRecord(failure)) = mounted else {
        return mounted;
    };
    let record = settings.mount.analysis_file.take().unwrap_or_default();
    crate::say(&format!(
        "ignoring DWARFS_ANALYSIS_FILE: {}: {}",
        record.display(),
        failure.text
    ));
    Finder::new(program, settings)?.mount()
}

struct Finder<'a> {
    program: &'a Program,
    settings: &'a Settings,
    offset: u64,
}

impl<'a> Finder<'a> {
    fn new(program: &'a Program, settings: &'a Settings) -> Result<Self> {
        let offset = program.image_offset()?;
        Ok(Self {
            program,
            settings,
            offset,
        })
    }

    /// Name, and number of the image for a purpose.
    fn suffix(&self, purpose: &[u8]) -> String {
        let number = self.program.identity(self.offset, purpose);
        format!("{}-{number:016x}", self.program.short_name())
    }

    /// The list of opened files that a mount writes.
    fn record(&self) -> Option<&Path> {
        self.settings.mount.analysis_file.as_deref()
    }

    fn mount(&self) -> Result<Contents, Obstacle> {
        let base = base_of_mounts(self.settings);
        // A mount of somebody who wants no list, or another one, writes none.
        let record = self.record().map(|path| path.as_os_str().as_bytes());
        let first = base.join(format!(
            ".mount_{}",
            self.suffix(record.unwrap_or_default())
        ));
        if self.settings.own_namespace {
            return self.find(&first, Task::MountInNamespace, None);
        }
        match self.find(&first, Task::Mount, None) {
            Err(Obstacle::NoFuse(failure)) => {
                let again = self.find(&first, Task::MountInNamespace, None);
                // What is said is why the usual way fails.
                again.map_err(|obstacle| match obstacle {
                    Obstacle::NoFuse(_) => Obstacle::NoFuse(failure),
                    other => other,
                })
            }
            other => other,
        }
    }

    fn extract(&self) -> Result<Contents> {
        self.extract_saying(None)
    }

    /// Extracts the image if that has not been done, and says `note` then.
    fn extract_saying(&self, note: Option<&str>) -> Result<Contents> {
        let base = self
            .settings
            .base
            .as_deref()
            .unwrap_or(Path::new(TEMPORARY));
        if let Some(record) = self.record() {
            crate::say(&format!(
                "nothing is written to DWARFS_ANALYSIS_FILE: {}: the program runs from a copy",
                record.display()
            ));
        }
        let first = base.join(format!(".extracted_{}", self.suffix(b"")));
        match self.find(&first, Task::Extract, note) {
            Ok(contents) => Ok(contents),
            Err(
                Obstacle::Fatal(failure) | Obstacle::NoFuse(failure) | Obstacle::NoRecord(failure),
            ) => Err(failure),
        }
    }

    /// Takes part in the first shared directory that can be used, or sets it up.
    fn find(&self, first: &Path, task: Task, note: Option<&str>) -> Result<Contents, Obstacle> {
        let mut failure = None;
        for number in 0..NAMES {
            let directory = match number {
                0 => first.to_owned(),
                _ => with_ending(first, &format!(".{number}")),
            };
            match self.try_in(&directory, task, note) {
                Ok(Some(contents)) => return Ok(contents),
                Ok(None) => {}
                Err(Obstacle::Fatal(error)) if !directory.is_dir() => {
                    // The place is wrong, not the name.
                    return Err(Obstacle::Fatal(error));
                }
                Err(Obstacle::Fatal(error)) if !is_private(&directory) => failure = Some(error),
                Err(obstacle) => return Err(obstacle),
            }
        }
        Err(Obstacle::Fatal(failure.unwrap_or_else(|| {
            Failure::new(format_args!(
                "cannot share: {}: other processes use it in a way that this one cannot see",
                first.display()
            ))
        })))
    }

    /// As [`Finder::find`], in one directory; none if somebody keeps it in a way that is of no use here.
    fn try_in(
        &self,
        directory: &Path,
        task: Task,
        note: Option<&str>,
    ) -> Result<Option<Contents>, Obstacle> {
        let share = Share::open(directory)?;
        let contents = match task {
            Task::Extract => keeper::tree(directory),
            Task::Mount | Task::MountInNamespace => keeper::mount_point(directory),
        };
        match share.claim_keeper()? {
            Some(lock) => {
                if let Some(note) = note.filter(|_| !contents.is_dir()) {
                    crate::say(note);
                }
                let started =
                    keeper::start(task, self.program, self.offset, self.settings, &share, lock);
                if let Err(obstacle) = started {
                    share.discard(&contents);
                    return Err(obstacle);
                }
                if task == Task::MountInNamespace && !see(share.keeper(), &contents) {
                    return Err(Obstacle::NoFuse(Failure::new(
                        "cannot enter the namespace of the mount",
                    )));
                }
            }
            None => {
                let state = share.keeper();
                let visible = match task {
                    Task::Extract => contents.is_dir(),
                    Task::Mount | Task::MountInNamespace => {
                        // If the list was removed, the mount writes to a file without a name.
                        self.record().is_none_or(Path::exists) && see(state, &contents)
                    }
                };
                if !visible {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Contents {
            directory: contents,
            shared: directory.to_owned(),
            _held: share.join()?,
        }))
    }
}

/// Makes the mount of a keeper visible to this process, if it is not. Whether it is.
fn see(state: Option<KeeperRecord>, point: &Path) -> bool {
    let Some(state) = state else {
        return false;
    };
    if let Some(namespace) = state.namespace
        && !is_mounted(point)
        && namespace::enter(state.process, namespace).is_err()
    {
        return false;
    }
    is_mounted(point)
}

/// The directory for mount points: `TMPDIR`, or `XDG_RUNTIME_DIR` if it is one of this user alone, or `/tmp`.
fn base_of_mounts(settings: &Settings) -> PathBuf {
    if let Some(base) = &settings.base {
        return base.clone();
    }
    env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|directory| directory.is_absolute() && is_private(directory))
        .unwrap_or_else(|| PathBuf::from(TEMPORARY))
}
