//! Output files on Unix: unnamed files where the system has them.

#[cfg(test)]
mod origin_tests;
mod permissions;
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

pub use self::permissions::Origin;
use self::permissions::Permissions;
use self::target::{NameInDir, Old};
use super::{NAME_ATTEMPTS, Notice, Overwrite, hidden_name, with_path};
use crate::in_place::LockedFile;
use crate::source::FileSource;

/// Permissions of a new file; the system subtracts the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// Permissions of a file for this process.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// A file without its final name, which [`AtomicFile::commit`] gives to it.
///
/// Until then, an existing file of the final name stays unchanged. Dropping an [`AtomicFile`] removes
/// the written data. If the file system has unnamed files (`O_TMPFILE`), a killed process leaves
/// nothing. Otherwise it leaves a hidden file `.NAME.XXXXXX.tmp` in the directory of the target. When a
/// file is replaced, such a hidden name also exists for a short time between linking and renaming.
///
/// A symbolic link is followed when overwriting: its target is replaced and the link stays. The new
/// file gets the permissions (without set-id bits), owner, group and ACL of the old file, as far as the
/// process may set them. Other new files have mode 0666 less the umask, or less than that if they are made from
/// files that not everybody may read ([`AtomicFile::create_from`]).
///
/// If the path leads to an entry that is no regular file (a pipe, `/dev/null`), or that the process has
/// open (`/dev/stdout`), data is written to it directly, and committing only flushes. A regular file
/// that can be written, but not replaced, such as a mount point, gets its new contents when these are
/// complete. [`AtomicFile::notice`] reports such cases.
///
/// Writes are not buffered.
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    state: OutputState,
    /// The permissions that are not those of every new file.
    like: Option<Box<Like>>,
    notice: Option<Notice>,
}

/// Where the permissions of a new file come from.
#[derive(Debug, Clone)]
enum Like {
    /// The file to replace.
    Old(Permissions),
    /// The files that it is made from.
    Origin(Origin),
}

impl Like {
    /// Gives them to a file. Returns whether one that it replaces keeps its owner.
    fn give(&self, new: &File) -> io::Result<bool> {
        match self {
            Self::Old(old) => old.bequeath(new),
            Self::Origin(origin) => origin.restrict(new).map(|()| true),
        }
    }

    /// Mode of a file that has a name before they are given to it.
    fn first_mode(&self) -> Mode {
        match self {
            Self::Old(_) => PRIVATE,
            Self::Origin(origin) => origin.first_mode(),
        }
    }
}

enum OutputState {
    /// Written directly.
    Stream,
    /// Overwrites this file at the end, from an unnamed file.
    InPlace { target: File },
    /// No name yet.
    Unnamed {
        place: NameInDir,
        overwrite: Overwrite,
    },
    /// A hidden name in the directory of the target, removed on drop.
    Hidden {
        place: NameInDir,
        temp: OsString,
        overwrite: Overwrite,
    },
    /// Nothing to clean up.
    Done,
}

impl AtomicFile {
    /// Starts a file with the final name `path`. If it replaces a file, checks that this is possible.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if a regular file has that name and
    /// `overwrite` is [`Overwrite::No`]. [`io::ErrorKind::IsADirectory`] for a directory. The reason,
    /// if a file can neither be replaced nor written to. Otherwise the error of creating a file in the
    /// directory.
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> io::Result<Self> {
        let path = path.as_ref();
        Self::create_inner(path, overwrite, None, true).map_err(|e| with_path(path, &e))
    }

    /// As [`AtomicFile::create`], for a file that is made from others: a new file is never readable by more users than
    /// these. One that replaces a file has the permissions of that file, which the user has chosen.
    ///
    /// # Errors
    /// Those of [`AtomicFile::create`].
    pub fn create_from(
        path: impl AsRef<Path>,
        overwrite: Overwrite,
        origin: &Origin,
    ) -> io::Result<Self> {
        let path = path.as_ref();
        Self::create_inner(path, overwrite, Some(origin), true).map_err(|e| with_path(path, &e))
    }

    fn create_inner(
        path: &Path,
        overwrite: Overwrite,
        origin: Option<&Origin>,
        unnamed: bool,
    ) -> io::Result<Self> {
        let made = |(file, state), like: Option<Like>, notice| Self {
            file,
            path: path.to_owned(),
            state,
            like: like.map(Box::new),
            notice,
        };
        if let Some((file, what)) = target::open_stream(path)? {
            let notice = Some(Notice::Stream(what));
            return Ok(made((file, OutputState::Stream), None, notice));
        }
        let (place, old) = match overwrite {
            Overwrite::No => {
                if std::fs::symlink_metadata(path).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                (NameInDir::of(path)?, None)
            }
            Overwrite::Yes => {
                let place = NameInDir::behind_links(path)?;
                let old = Old::find(&place)?;
                (place, old)
            }
        };
        let Some(old) = old else {
            let like = origin.cloned().map(Like::Origin);
            let begun = scratch(place, overwrite, like.as_ref(), unnamed)?;
            let new = made(begun, like, None);
            if let Some(like) = &new.like {
                like.give(&new.file)?;
            }
            return Ok(new);
        };
        if let Some(why) = old.obstacle {
            let notice = Some(Notice::InPlace(why));
            return Ok(made(in_place(&place, why)?, None, notice));
        }
        let like = Like::Old(old.permissions);
        let begun = match scratch(place, overwrite, Some(&like), unnamed) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                let why = "its directory cannot be changed";
                let begun = in_place(&NameInDir::behind_links(path)?, why).map_err(|_| e)?;
                return Ok(made(begun, None, Some(Notice::InPlace(why))));
            }
            other => other?,
        };
        let mut new = made(begun, Some(like), None);
        if let Some(like) = &new.like {
            new.notice = (!like.give(&new.file)?).then_some(Notice::Owner);
        }
        Ok(new)
    }

    /// Information about this output for the user.
    pub fn notice(&self) -> Option<Notice> {
        self.notice
    }

    /// The data written so far, for reading; none if it was written directly.
    ///
    /// # Errors
    /// The error of the system.
    pub fn written(&self) -> io::Result<Option<FileSource>> {
        if matches!(self.state, OutputState::Stream) {
            return Ok(None);
        }
        FileSource::of(self.file.try_clone()?, &self.path).map(Some)
    }

    /// The data written so far, to be changed in place before the file gets its name; none if it was written
    /// directly. What is written to this output later goes where it would have gone without the changes.
    ///
    /// # Errors
    /// The error of the system.
    pub fn unfinished(&self) -> io::Result<Option<LockedFile>> {
        if matches!(self.state, OutputState::Stream) {
            return Ok(None);
        }
        let file = self.file.try_clone()?;
        Ok(Some(LockedFile::of(file, &self.path)))
    }

    /// Lets every user who may read the file execute it. Does nothing to what is written as it goes.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn allow_execution(&self) -> io::Result<()> {
        let file = match &self.state {
            OutputState::Stream => return Ok(()),
            OutputState::InPlace { target } => target,
            _ => &self.file,
        };
        let mode = rustix::fs::fstat(file)?.st_mode & 0o777;
        let mode = Mode::from_raw_mode(mode | (mode & 0o444) >> 2);
        Ok(rustix::fs::fchmod(file, mode)?)
    }

    /// The path that was given to [`AtomicFile::create`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything to the medium and gives the file its name.
    ///
    /// # Errors
    /// Every error names the path. After an error, an existing file of this name is unchanged.
    /// [`io::ErrorKind::AlreadyExists`] if another process has created the file, and it must not be
    /// overwritten.
    pub fn commit(mut self) -> io::Result<()> {
        let path = std::mem::take(&mut self.path);
        self.commit_inner().map_err(|e| with_path(&path, &e))
    }

    fn commit_inner(&mut self) -> io::Result<()> {
        match &mut self.state {
            OutputState::Stream => {
                self.file.flush()?;
                if target::is_block_device(self.file.as_fd()) {
                    self.file.sync_all()?;
                }
                return Ok(());
            }
            OutputState::InPlace { target } => {
                overwrite_with(target, &mut self.file)
                    .map_err(|e| io::Error::new(e.kind(), format!("incomplete now: {e}")))?;
                self.state = OutputState::Done;
                return Ok(());
            }
            OutputState::Unnamed { .. } | OutputState::Hidden { .. } | OutputState::Done => {}
        }
        self.file.sync_all()?;
        if let OutputState::Unnamed { place, overwrite } = &self.state {
            let NameInDir { dir, name, .. } = place;
            let linked = match overwrite {
                Overwrite::No => link_unnamed(&self.file, dir, name).map(|()| None),
                Overwrite::Yes => with_free_name(name, |temp| link_unnamed(&self.file, dir, temp))
                    .map(|((), temp)| Some(temp)),
            };
            match linked {
                Ok(None) => {
                    sync_dir(dir);
                    self.state = OutputState::Done;
                    return Ok(());
                }
                Ok(Some(temp)) => self.become_hidden(temp),
                Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
                Err(_) => self.copy_to_hidden()?,
            }
        }
        if let OutputState::Hidden {
            place: NameInDir { dir, name, .. },
            temp,
            overwrite,
        } = &self.state
        {
            match overwrite {
                Overwrite::Yes => rustix::fs::renameat(dir, temp, dir, name)?,
                Overwrite::No => rename_to_free_name(dir, temp, name)?,
            }
            sync_dir(dir);
            self.state = OutputState::Done;
        }
        Ok(())
    }

    fn become_hidden(&mut self, temp: OsString) {
        self.state = match std::mem::replace(&mut self.state, OutputState::Done) {
            OutputState::Unnamed { place, overwrite } => OutputState::Hidden {
                place,
                temp,
                overwrite,
            },
            other => other,
        };
    }

    /// Last resort for a file system that makes unnamed files but cannot link them.
    fn copy_to_hidden(&mut self) -> io::Result<()> {
        let OutputState::Unnamed { place, .. } = &self.state else {
            return Ok(());
        };
        let (mut copy, temp) = create_hidden(&place.dir, &place.name, PRIVATE)?;
        self.become_hidden(temp);
        if let Some(like) = &self.like {
            like.give(&copy)?;
        }
        let mode = rustix::fs::fstat(&self.file)?.st_mode & 0o777;
        rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode))?;
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.file, &mut copy)?;
        copy.sync_all()?;
        self.file = copy;
        Ok(())
    }
}

impl AsFd for AtomicFile {
    /// The file that is being written, for reading its attributes.
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
        if let OutputState::Hidden { place, temp, .. } = &self.state {
            // No caller could see an error. The name shows that the file is incomplete.
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

/// A file for the final name, and the way in which it gets the name.
fn scratch(
    place: NameInDir,
    overwrite: Overwrite,
    like: Option<&Like>,
    unnamed: bool,
) -> io::Result<(File, OutputState)> {
    // Without a name, nobody else can open it.
    if unnamed && let Some(file) = open_unnamed(&place.dir, MODE)? {
        return Ok((file, OutputState::Unnamed { place, overwrite }));
    }
    let mode = like.map_or(MODE, Like::first_mode);
    let (file, temp) = create_hidden(&place.dir, &place.name, mode)?;
    let state = OutputState::Hidden {
        place,
        temp,
        overwrite,
    };
    Ok((file, state))
}

/// Opens a file whose contents will be overwritten because it cannot be replaced, and a file for the
/// new contents until then.
fn in_place(place: &NameInDir, why: &str) -> io::Result<(File, OutputState)> {
    let target = place.open().map_err(|e| {
        let nor = match e {
            Errno::PERM | Errno::ACCESS => String::new(),
            other => format!(", and it cannot be written to: {}", io::Error::from(other)),
        };
        let kind = io::Error::from(e).kind();
        io::Error::new(kind, format!("cannot be replaced, because {why}{nor}"))
    })?;
    Ok((nameless(&place.dir)?, OutputState::InPlace { target }))
}

/// A file that never gets a name, in `dir` or, if that fails, in the directory for temporary files.
fn nameless(dir: &OwnedFd) -> io::Result<File> {
    let in_dir = |dir: &OwnedFd| {
        if let Some(file) = open_unnamed(dir, PRIVATE)? {
            return Ok(file);
        }
        let (file, temp) = create_hidden(dir, OsStr::new("redwarfs"), PRIVATE)?;
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

/// Replaces the contents of `target` by those of `new`.
fn overwrite_with(target: &mut File, new: &mut File) -> io::Result<()> {
    new.seek(SeekFrom::Start(0))?;
    target.set_len(0)?;
    io::copy(new, target)?;
    target.sync_all()
}

/// A temporary file for reading and writing, without a name, in `directory`. It disappears when it is closed,
/// also if the process is killed.
///
/// # Errors
/// The directory cannot be opened, or no file can be created in it.
pub fn temporary_file(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
    if let Some(file) = open_unnamed(&dir, PRIVATE)? {
        return Ok(file);
    }
    let (file, name) = create_hidden(&dir, OsStr::new("redwarfs"), PRIVATE)?;
    rustix::fs::unlinkat(&dir, &name, AtFlags::empty())?;
    Ok(file)
}

/// Whether the contents of a file take memory until it is removed, as in a tmpfs. Known on Linux only: false elsewhere.
pub fn is_in_memory(file: &File) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // tmpfs and ramfs, in a number of another type on each processor, which may have a sign.
        let kinds = [0x0102_1994, 0x8584_58f6];
        let found = rustix::fs::fstatfs(file);
        found.is_ok_and(|found| kinds.contains(&(i128::from(found.f_type) & 0xffff_ffff)))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = file;
        false
    }
}

/// An unnamed file in `dir`, or none if the file system or the kernel does not support that.
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

fn create_hidden(dir: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<(File, OsString)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let (fd, temp) = with_free_name(name, |temp| rustix::fs::openat(dir, temp, flags, mode))?;
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
            // Prefix and suffix may make a long name too long.
            Err(Errno::NAMETOOLONG) if name.len() > 8 => {
                return with_free_name(OsStr::new("redwarfs"), make);
            }
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

/// Renames without replacing an existing entry, with the means of the file system.
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
    // Neither is supported: an empty file reserves the name, and is replaced at once.
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
