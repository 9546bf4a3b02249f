//! Output files that appear under their name only when they are complete.

mod target;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use self::target::{Old, Place};
use crate::source::FileSource;

/// Permissions of a new file; the system subtracts the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// How often a new temporary name is tried before giving up.
const NAME_ATTEMPTS: u32 = 1000;

/// Whether an existing regular file may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// An existing file is an error, and stays as it is.
    No,
    /// An existing file is replaced, in one step, when the new one is complete.
    Yes,
}

/// A file that is written out of sight and gets its name by [`AtomicFile::commit`].
///
/// Until then there is nothing under the final name (or the old file, untouched). Dropping it
/// removes what was written. Where the file system has unnamed files (`O_TMPFILE`), a process
/// that is killed leaves nothing at all; elsewhere it leaves a hidden file `.NAME.XXXXXX.tmp`
/// beside the target. When replacing a file, such a hidden name also exists for the short
/// moment between linking and renaming.
///
/// A symbolic link is followed when overwriting: its target is replaced and the link stays. The
/// new file has permissions (without set-id bits), owner, group and ACL of the one that it
/// replaces, as far as the process may set them. Other new files have mode 0666 less the umask.
///
/// If the path leads to something that is not a regular file (a pipe, `/dev/null`) or that the
/// process has open already (`/dev/stdout`), that is written to, and committing only flushes. A
/// regular file that cannot be replaced but written to, such as a mount point, gets its new
/// content when that is complete. [`AtomicFile::notice`] tells.
///
/// Writes are not buffered.
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    state: State,
    /// What is replaced.
    old: Option<Box<Old>>,
    notice: Option<Notice>,
}

/// What is different from a new file, for the user to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The output is written as it goes: it is no regular file, or open already. Says what it is.
    Stream(&'static str),
    /// The old content is overwritten when the new one is complete, because the file cannot be
    /// replaced. Says why.
    InPlace(&'static str),
    /// The new file does not have the owner and the group of the old one.
    Owner,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(what) => write!(f, "is {what}, which is written to directly"),
            Self::InPlace(why) => write!(
                f,
                "cannot be replaced, because {why}; it is overwritten when the new content is complete"
            ),
            Self::Owner => f.write_str("loses its owner or group, which only root can keep"),
        }
    }
}

enum State {
    /// Written as it goes.
    Stream,
    /// Overwrites this file at the end. Has no name itself.
    InPlace { target: File },
    /// No name yet.
    Unnamed { place: Place, overwrite: Overwrite },
    /// A hidden name beside the target, removed on drop.
    Hidden {
        place: Place,
        temp: OsString,
        overwrite: Overwrite,
    },
    /// Nothing left to clean up.
    Done,
}

impl AtomicFile {
    /// Starts a file that will be called `path`. If it is to replace a file, finds out whether it
    /// will be able to.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if a regular file has that name
    /// and `overwrite` is [`Overwrite::No`]; [`io::ErrorKind::IsADirectory`] for a directory;
    /// the reason if a file can neither be replaced nor written to;
    /// otherwise whatever creating a file in the directory gives.
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> io::Result<Self> {
        let path = path.as_ref();
        Self::create_inner(path, overwrite, true).map_err(|e| with_path(path, &e))
    }

    fn create_inner(path: &Path, overwrite: Overwrite, unnamed: bool) -> io::Result<Self> {
        let made = |(file, state), notice| Self {
            file,
            path: path.to_owned(),
            state,
            old: None,
            notice,
        };
        if let Some((file, what)) = target::open_stream(path)? {
            return Ok(made((file, State::Stream), Some(Notice::Stream(what))));
        }
        let (place, old) = match overwrite {
            Overwrite::No => {
                if std::fs::symlink_metadata(path).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                (Place::of(path)?, None)
            }
            Overwrite::Yes => {
                let place = Place::behind_links(path)?;
                let old = Old::find(&place)?;
                (place, old)
            }
        };
        let Some(old) = old else {
            return Ok(made(scratch(place, overwrite, unnamed)?, None));
        };
        if let Some(why) = old.obstacle {
            return Ok(made(in_place(&place, why)?, Some(Notice::InPlace(why))));
        }
        let begun = match scratch(place, overwrite, unnamed) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                let why = "its directory cannot be changed";
                let begun = in_place(&Place::behind_links(path)?, why).map_err(|_| e)?;
                return Ok(made(begun, Some(Notice::InPlace(why))));
            }
            other => other?,
        };
        let mut new = made(begun, None);
        new.notice = (!old.bequeath(&new.file)?).then_some(Notice::Owner);
        new.old = Some(Box::new(old));
        Ok(new)
    }

    /// What the user should know about this output.
    pub fn notice(&self) -> Option<Notice> {
        self.notice
    }

    /// What was written so far, to read it; nothing if it has gone out already.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn written(&self) -> io::Result<Option<FileSource>> {
        if matches!(self.state, State::Stream) {
            return Ok(None);
        }
        FileSource::of(self.file.try_clone()?, &self.path).map(Some)
    }

    /// The path that was given to [`AtomicFile::create`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything to the medium and gives the file its name.
    ///
    /// # Errors
    /// Every error names the path, and nothing has changed under it: in particular
    /// [`io::ErrorKind::AlreadyExists`] if the name was taken meanwhile and must not be
    /// overwritten.
    pub fn commit(mut self) -> io::Result<()> {
        let path = std::mem::take(&mut self.path);
        self.commit_inner().map_err(|e| with_path(&path, &e))
    }

    fn commit_inner(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Stream => {
                self.file.flush()?;
                if target::is_block_device(self.file.as_fd()) {
                    self.file.sync_all()?;
                }
                return Ok(());
            }
            State::InPlace { target } => {
                overwrite_with(target, &mut self.file)
                    .map_err(|e| io::Error::new(e.kind(), format!("incomplete now: {e}")))?;
                self.state = State::Done;
                return Ok(());
            }
            State::Unnamed { .. } | State::Hidden { .. } | State::Done => {}
        }
        self.file.sync_all()?;
        if let State::Unnamed { place, overwrite } = &self.state {
            let Place { dir, name, .. } = place;
            let linked = match overwrite {
                Overwrite::No => link_unnamed(&self.file, dir, name).map(|()| None),
                Overwrite::Yes => with_free_name(name, |temp| link_unnamed(&self.file, dir, temp))
                    .map(|((), temp)| Some(temp)),
            };
            match linked {
                Ok(None) => {
                    sync_dir(dir);
                    self.state = State::Done;
                    return Ok(());
                }
                Ok(Some(temp)) => self.become_hidden(temp),
                Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
                Err(_) => self.copy_to_hidden()?,
            }
        }
        if let State::Hidden {
            place: Place { dir, name, .. },
            temp,
            overwrite,
        } = &self.state
        {
            match overwrite {
                Overwrite::Yes => rustix::fs::renameat(dir, temp, dir, name)?,
                Overwrite::No => rename_to_free_name(dir, temp, name)?,
            }
            sync_dir(dir);
            self.state = State::Done;
        }
        Ok(())
    }

    fn become_hidden(&mut self, temp: OsString) {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Unnamed { place, overwrite } => State::Hidden {
                place,
                temp,
                overwrite,
            },
            other => other,
        };
    }

    /// Last resort for a file system that makes unnamed files but cannot link them.
    fn copy_to_hidden(&mut self) -> io::Result<()> {
        let State::Unnamed { place, .. } = &self.state else {
            return Ok(());
        };
        let (mut copy, temp) = create_hidden(&place.dir, &place.name)?;
        self.become_hidden(temp);
        if let Some(old) = &self.old {
            old.bequeath(&copy)?;
        }
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.file, &mut copy)?;
        copy.sync_all()?;
        self.file = copy;
        Ok(())
    }
}

impl AsFd for AtomicFile {
    /// The file that is being written, to ask for its attributes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.file.write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let State::Hidden { place, temp, .. } = &self.state {
            // Nobody is left to tell; the name shows that the file is incomplete.
            let _ = rustix::fs::unlinkat(&place.dir, temp, AtFlags::empty());
        }
    }
}

impl fmt::Debug for AtomicFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn with_path(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// A file that will get the name, and how.
fn scratch(place: Place, overwrite: Overwrite, unnamed: bool) -> io::Result<(File, State)> {
    if unnamed && let Some(file) = open_unnamed(&place.dir, MODE)? {
        return Ok((file, State::Unnamed { place, overwrite }));
    }
    let (file, temp) = create_hidden(&place.dir, &place.name)?;
    let state = State::Hidden {
        place,
        temp,
        overwrite,
    };
    Ok((file, state))
}

/// Opens a file whose content will be overwritten because it cannot be replaced, and what will
/// hold the new content until then.
fn in_place(place: &Place, why: &str) -> io::Result<(File, State)> {
    let target = place.open().map_err(|e| {
        let nor = match e {
            Errno::PERM | Errno::ACCESS => String::new(),
            other => format!(", and it cannot be written to: {}", io::Error::from(other)),
        };
        let kind = io::Error::from(e).kind();
        io::Error::new(kind, format!("cannot be replaced, because {why}{nor}"))
    })?;
    Ok((nameless(&place.dir)?, State::InPlace { target }))
}

/// A file that never gets a name, in `dir` or else in the directory for temporary files.
fn nameless(dir: &OwnedFd) -> io::Result<File> {
    let private = Mode::RUSR | Mode::WUSR;
    let in_dir = |dir: &OwnedFd| {
        if let Some(file) = open_unnamed(dir, private)? {
            return Ok(file);
        }
        let (file, temp) = create_hidden(dir, OsStr::new("redwarfs"))?;
        rustix::fs::unlinkat(dir, temp, AtFlags::empty())?;
        Ok(file)
    };
    in_dir(dir).or_else(|_: io::Error| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        in_dir(&rustix::fs::open(
            std::env::temp_dir(),
            flags,
            Mode::empty(),
        )?)
    })
}

/// Replaces the content of `target` by that of `new`.
fn overwrite_with(target: &mut File, new: &mut File) -> io::Result<()> {
    new.seek(SeekFrom::Start(0))?;
    target.set_len(0)?;
    io::copy(new, target)?;
    target.sync_all()
}

/// An unnamed file in `dir`, or nothing if the file system or the system cannot do that.
fn open_unnamed(dir: &OwnedFd, mode: Mode) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags, mode) {
        Ok(fd) => {
            let file = File::from(fd);
            // Without it the file could not be linked later.
            let reachable = std::fs::symlink_metadata(proc_path(&file)).is_ok();
            Ok(reachable.then_some(file))
        }
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => {
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}

fn proc_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn link_unnamed(file: &File, dir: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    rustix::fs::linkat(CWD, proc_path(file), dir, name, AtFlags::SYMLINK_FOLLOW)
}

fn create_hidden(dir: &OwnedFd, name: &OsStr) -> io::Result<(File, OsString)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let (fd, temp) = with_free_name(name, |temp| rustix::fs::openat(dir, temp, flags, MODE))?;
    Ok((File::from(fd), temp))
}

/// Calls `make` with hidden names until one is free.
fn with_free_name<T>(
    name: &OsStr,
    make: impl Fn(&OsStr) -> Result<T, Errno>,
) -> Result<(T, OsString), Errno> {
    for attempt in 0..NAME_ATTEMPTS {
        let temp = hidden_name(name, attempt);
        match make(&temp) {
            Ok(made) => return Ok((made, temp)),
            Err(Errno::EXIST) => {}
            // The prefix and suffix may make a long name too long.
            Err(Errno::NAMETOOLONG) if name.len() > 8 => {
                return with_free_name(OsStr::new("redwarfs"), make);
            }
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

/// `.NAME.XXXXXX.tmp` with six characters that differ between processes and attempts.
fn hidden_name(name: &OsStr, attempt: u32) -> OsString {
    use std::hash::{BuildHasher, RandomState};
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bits = RandomState::new().hash_one(attempt);
    let mut temp = OsString::from(".");
    temp.push(name);
    temp.push(".");
    for _ in 0..6 {
        let letter = ALPHABET[(bits % 32) as usize];
        temp.push(char::from(letter).encode_utf8(&mut [0; 4]));
        bits /= 32;
    }
    temp.push(".tmp");
    temp
}

/// Renames without ever replacing something, with whatever the file system offers.
fn rename_to_free_name(dir: &OwnedFd, temp: &OsStr, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, temp, dir, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        done => return done,
    }
    match rustix::fs::linkat(dir, temp, dir, name, AtFlags::empty()) {
        Ok(()) => return rustix::fs::unlinkat(dir, temp, AtFlags::empty()),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {}
        Err(e) => return Err(e),
    }
    // Neither: an empty file claims the name and is replaced at once.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, MODE)?;
    rustix::fs::renameat(dir, temp, dir, name).inspect_err(|_| {
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
    })
}

/// Makes the new name durable. Failure is ignored: the file itself is safe and complete, and
/// not every file system can do this.
fn sync_dir(dir: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::openat(dir, ".", flags, Mode::empty()) {
        let _ = rustix::fs::fsync(fd);
    }
}
