//! Output files that appear under their name only when they are complete.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Permissions of a new file; the system subtracts the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// How often a new temporary name is tried before giving up.
const NAME_ATTEMPTS: u32 = 1000;

/// Longest chain of symbolic links that is followed, as in the Linux kernel.
const MAX_LINKS: u32 = 40;

/// Whether an existing file may be replaced.
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
/// A symbolic link is followed when overwriting: its target is replaced and the link stays. If
/// the path leads to something that is not a regular file (a pipe, `/dev/null`, `/dev/stdout`),
/// [`Overwrite::Yes`] simply writes to it, and committing only flushes.
///
/// New files have mode 0666 less the umask. Writes are not buffered.
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    state: State,
}

enum State {
    /// Written in place: not a regular file.
    Direct,
    /// No name yet.
    Unnamed {
        dir: OwnedFd,
        name: OsString,
        overwrite: Overwrite,
    },
    /// A hidden name beside the target, removed on drop.
    Hidden {
        dir: OwnedFd,
        name: OsString,
        temp: OsString,
        overwrite: Overwrite,
    },
    /// Nothing left to clean up.
    Done,
}

impl AtomicFile {
    /// Starts a file that will be called `path`.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if something has that name
    /// and `overwrite` is [`Overwrite::No`]; [`io::ErrorKind::IsADirectory`] for a directory;
    /// otherwise whatever creating a file in the directory gives.
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> io::Result<Self> {
        let path = path.as_ref();
        Self::create_inner(path, overwrite, true).map_err(|e| with_path(path, &e))
    }

    fn create_inner(path: &Path, overwrite: Overwrite, unnamed: bool) -> io::Result<Self> {
        let target = match overwrite {
            Overwrite::No => {
                if std::fs::symlink_metadata(path).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                path.to_owned()
            }
            Overwrite::Yes => {
                if let Some(file) = open_special(path)? {
                    return Ok(Self {
                        file,
                        path: path.to_owned(),
                        state: State::Direct,
                    });
                }
                follow_links(path)?
            }
        };
        let name = target.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let dir = rustix::fs::open(
            parent,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        if unnamed && let Some(file) = open_unnamed(&dir)? {
            return Ok(Self {
                file,
                path: path.to_owned(),
                state: State::Unnamed {
                    dir,
                    name,
                    overwrite,
                },
            });
        }
        let (file, temp) = create_hidden(&dir, &name)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            state: State::Hidden {
                dir,
                name,
                temp,
                overwrite,
            },
        })
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
        if matches!(self.state, State::Direct) {
            return self.file.flush();
        }
        self.file.sync_all()?;
        if let State::Unnamed {
            dir,
            name,
            overwrite,
        } = &self.state
        {
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
            dir,
            name,
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
            State::Unnamed {
                dir,
                name,
                overwrite,
            } => State::Hidden {
                dir,
                name,
                temp,
                overwrite,
            },
            other => other,
        };
    }

    /// Last resort for a file system that makes unnamed files but cannot link them.
    fn copy_to_hidden(&mut self) -> io::Result<()> {
        let State::Unnamed { dir, name, .. } = &self.state else {
            return Ok(());
        };
        let (mut copy, temp) = create_hidden(dir, name)?;
        self.become_hidden(temp);
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
        if let State::Hidden { dir, temp, .. } = &self.state {
            // Nobody is left to tell; the name shows that the file is incomplete.
            let _ = rustix::fs::unlinkat(dir, temp, AtFlags::empty());
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

/// Opens what is there if it is to be written in place.
fn open_special(path: &Path) -> io::Result<Option<File>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if metadata.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if metadata.is_file() && !names_open_descriptor(path) {
        return Ok(None);
    }
    File::options().write(true).open(path).map(Some)
}

/// Whether the path names a descriptor of this process, such as `/dev/stdout`. A regular file
/// behind it belongs to whoever opened it and must not be swapped for another one.
fn names_open_descriptor(path: &Path) -> bool {
    if ["/dev/stdout", "/dev/stderr", "/dev/stdin"]
        .iter()
        .any(|p| path == Path::new(p))
    {
        return true;
    }
    path.parent().is_some_and(|parent| {
        parent == Path::new("/dev/fd")
            || std::fs::canonicalize(parent).is_ok_and(|p| p.starts_with("/proc"))
    })
}

/// Where a file has to be created so that `path` leads to it.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(path);
            }
            Err(e) => return Err(e),
        }
    }
    Err(Errno::LOOP.into())
}

/// An unnamed file in `dir`, or nothing if the file system or the system cannot do that.
fn open_unnamed(dir: &OwnedFd) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags, MODE) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn create(path: &Path, overwrite: Overwrite, unnamed: bool) -> io::Result<AtomicFile> {
        AtomicFile::create_inner(path, overwrite, unnamed)
    }

    #[test]
    fn appears_complete_or_not_at_all() {
        for unnamed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("out");
            let mut file = create(&path, Overwrite::No, unnamed).unwrap();
            file.write_all(b"data").unwrap();
            assert!(!path.exists());
            if unnamed && matches!(file.state, State::Unnamed { .. }) {
                assert!(names(dir.path()).is_empty());
            }
            file.commit().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"data");
            assert_eq!(names(dir.path()), ["out"]);

            let other = dir.path().join("other");
            let mut file = create(&other, Overwrite::No, unnamed).unwrap();
            file.write_all(b"data").unwrap();
            drop(file);
            assert_eq!(names(dir.path()), ["out"]);
        }
    }

    #[test]
    fn never_clobbers_without_permission() {
        for unnamed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("out");
            let mut file = create(&path, Overwrite::No, unnamed).unwrap();
            file.write_all(b"late").unwrap();
            std::fs::write(&path, b"early").unwrap();
            let e = file.commit().unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), b"early");
            assert_eq!(names(dir.path()), ["out"]);
            let e = AtomicFile::create(&path, Overwrite::No).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
            assert!(e.to_string().contains("out"), "{e}");
        }
    }

    #[test]
    fn of_two_writers_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let files: Vec<_> = (0..4)
            .map(|i| {
                let mut f = create(&path, Overwrite::No, i % 2 == 0).unwrap();
                f.write_all(&[i; 10]).unwrap();
                f
            })
            .collect();
        let results: Vec<_> = files.into_iter().map(AtomicFile::commit).collect();
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn overwriting_keeps_the_old_file_until_the_end() {
        for unnamed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("out");
            std::fs::write(&path, b"old").unwrap();
            let mut file = create(&path, Overwrite::Yes, unnamed).unwrap();
            file.write_all(b"new").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            drop(file);
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            assert_eq!(names(dir.path()), ["out"]);
            let mut file = create(&path, Overwrite::Yes, unnamed).unwrap();
            file.write_all(b"new").unwrap();
            file.commit().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
            assert_eq!(names(dir.path()), ["out"]);
        }
    }

    #[test]
    fn copies_when_linking_is_impossible() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = create(&path, Overwrite::No, true).unwrap();
        if !matches!(file.state, State::Unnamed { .. }) {
            eprintln!("note: no unnamed files here, nothing to test");
            return;
        }
        file.write_all(b"data").unwrap();
        file.copy_to_hidden().unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn mode_follows_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        File::create(&plain).unwrap();
        let expected = std::fs::metadata(&plain).unwrap().mode();
        for unnamed in [true, false] {
            let path = dir.path().join(format!("out-{unnamed}"));
            create(&path, Overwrite::No, unnamed)
                .unwrap()
                .commit()
                .unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().mode(), expected);
        }
    }

    #[test]
    fn links_are_followed_when_overwriting() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let link = dir.path().join("link");
        symlink("sub/real", &link).unwrap();
        for content in ["first", "second"] {
            let mut file = AtomicFile::create(&link, Overwrite::Yes).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.commit().unwrap();
            assert_eq!(std::fs::read_to_string(&link).unwrap(), content);
            assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        }
        let e = AtomicFile::create(&link, Overwrite::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        let a = dir.path().join("a");
        symlink("a", &a).unwrap();
        assert!(AtomicFile::create(&a, Overwrite::Yes).is_err());
    }

    #[test]
    fn special_files_are_written_in_place() {
        let mut file = AtomicFile::create("/dev/null", Overwrite::Yes).unwrap();
        file.write_all(b"data").unwrap();
        file.commit().unwrap();
        let meta = std::fs::metadata("/dev/null").unwrap();
        assert!(meta.file_type().is_char_device());
        assert!(AtomicFile::create("/dev/null", Overwrite::No).is_err());

        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, MODE, 0).unwrap();
        let reader = {
            let fifo = fifo.clone();
            std::thread::spawn(move || std::fs::read(fifo).unwrap())
        };
        let mut file = AtomicFile::create(&fifo, Overwrite::Yes).unwrap();
        file.write_all(b"through the pipe").unwrap();
        file.commit().unwrap();
        assert_eq!(reader.join().unwrap(), b"through the pipe");
        assert!(std::fs::metadata(&fifo).unwrap().file_type().is_fifo());
    }

    #[test]
    fn errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let e = AtomicFile::create(dir.path(), Overwrite::Yes).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::IsADirectory);
        let e = AtomicFile::create(dir.path().join("no/such"), Overwrite::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        assert!(e.to_string().contains("no/such"), "{e}");
        let long = dir.path().join("n".repeat(250));
        let mut file = create(&long, Overwrite::Yes, true).unwrap();
        file.write_all(b"data").unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read(&long).unwrap(), b"data");
    }
}
