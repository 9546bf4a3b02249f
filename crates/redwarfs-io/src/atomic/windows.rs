//! Output files on Windows: hidden names until they are complete.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::path::{Path, PathBuf};

use super::{NAME_ATTEMPTS, Notice, Overwrite, hidden_name, with_path};
use crate::in_place::LockedFile;
use crate::source::FileSource;

/// A file without its final name, which [`AtomicFile::commit`] gives to it.
///
/// Until then, an existing file of the final name stays unchanged. Dropping an [`AtomicFile`] removes
/// the written data. A killed process leaves a file `.NAME.XXXXXX.tmp` in the directory of the target.
///
/// A symbolic link is followed when overwriting: its target is replaced and the link stays. The new file
/// has the permissions that its directory gives to new files. A read-only file, and a file that another
/// program has open without the permission to remove it, are not replaced.
///
/// A device such as `NUL` and a named pipe are written to directly, and committing only flushes.
/// [`AtomicFile::notice`] reports this.
///
/// Writes are not buffered.
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    state: OutputState,
}

/// The files that a new file is made from. On Windows, the directory of the new file decides who may read it.
#[derive(Debug, Clone)]
pub struct Origin(());

impl Origin {
    /// Of the file that a path leads to.
    ///
    /// # Errors
    /// Its attributes cannot be read. The error names the path.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        std::fs::metadata(path).map_err(|e| with_path(path, &e))?;
        Ok(Self(()))
    }

    /// Of these files and another one.
    #[must_use]
    pub fn and(self, _: &Self) -> Self {
        self
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if there is an entry of this name.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        std::fs::create_dir(path).map_err(|e| with_path(path, &e))
    }
}

enum OutputState {
    /// Written directly.
    Stream,
    /// A hidden name, removed on drop, and the name that the file gets.
    Hidden {
        temp: PathBuf,
        target: PathBuf,
        overwrite: Overwrite,
    },
    /// Nothing to clean up.
    Done,
}

impl AtomicFile {
    /// Starts a file with the final name `path`. If it replaces a file, checks that this is possible.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if a file has that name and `overwrite`
    /// is [`Overwrite::No`]. [`io::ErrorKind::IsADirectory`] for a directory. The reason, if a file cannot
    /// be replaced. Otherwise the error of creating a file in the directory.
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> io::Result<Self> {
        let path = path.as_ref();
        Self::create_inner(path, overwrite).map_err(|e| with_path(path, &e))
    }

    /// As [`AtomicFile::create`]: a new file has the permissions that its directory gives to it.
    ///
    /// # Errors
    /// Those of [`AtomicFile::create`].
    pub fn create_from(
        path: impl AsRef<Path>,
        overwrite: Overwrite,
        _: &Origin,
    ) -> io::Result<Self> {
        Self::create(path, overwrite)
    }

    fn create_inner(path: &Path, overwrite: Overwrite) -> io::Result<Self> {
        if is_stream(path) {
            return Ok(Self {
                file: OpenOptions::new().write(true).open(path)?,
                path: path.to_owned(),
                state: OutputState::Stream,
            });
        }
        let target = match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(e),
            Ok(_) if path.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) if overwrite == Overwrite::No => return Err(io::ErrorKind::AlreadyExists.into()),
            Ok(found) if found.is_symlink() => behind_link(path)?,
            Ok(_) => path.to_owned(),
        };
        if std::fs::metadata(&target).is_ok_and(|found| found.permissions().readonly()) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "cannot be replaced, because it is read-only (see attrib)",
            ));
        }
        let (file, temp) = create_hidden(&target)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            state: OutputState::Hidden {
                temp,
                target,
                overwrite,
            },
        })
    }

    /// Information about this output for the user.
    pub fn notice(&self) -> Option<Notice> {
        matches!(self.state, OutputState::Stream).then_some(Notice::Stream("a device or a pipe"))
    }

    /// The data written so far, for reading; none if it was written directly.
    ///
    /// # Errors
    /// The error of the system.
    pub fn written(&self) -> io::Result<Option<FileSource>> {
        match &self.state {
            // Opened once more: a clone would have the position of the writer, which reading changes.
            OutputState::Hidden { temp, .. } => {
                FileSource::of(File::open(temp)?, &self.path).map(Some)
            }
            OutputState::Stream | OutputState::Done => Ok(None),
        }
    }

    /// The data written so far, to be changed in place before the file gets its name; none if it was written
    /// directly. What is written to this output later goes where it would have gone without the changes.
    ///
    /// # Errors
    /// The error of the system.
    pub fn unfinished(&self) -> io::Result<Option<LockedFile>> {
        match &self.state {
            OutputState::Hidden { temp, .. } => {
                let file = OpenOptions::new().read(true).write(true).open(temp)?;
                Ok(Some(LockedFile::of(file, &self.path)))
            }
            OutputState::Stream | OutputState::Done => Ok(None),
        }
    }

    /// Does nothing: on Windows, the name of a file decides whether it can be executed.
    ///
    /// # Errors
    /// None.
    pub fn allow_execution(&self) -> io::Result<()> {
        Ok(())
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
        let OutputState::Hidden {
            temp,
            target,
            overwrite,
        } = &self.state
        else {
            return self.file.flush();
        };
        self.file.sync_all()?;
        match overwrite {
            Overwrite::Yes => std::fs::rename(temp, target).map_err(in_use)?,
            Overwrite::No => rename_to_free_name(temp, target)?,
        }
        self.state = OutputState::Done;
        Ok(())
    }
}

impl AsHandle for AtomicFile {
    /// The file that is being written, for reading its attributes.
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.file.as_handle()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let OutputState::Hidden { temp, .. } = &self.state {
            // No caller could see an error. The name shows that the file is incomplete.
            let _ = std::fs::remove_file(temp);
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

/// Whether a path leads to a device or a pipe.
fn is_stream(path: &Path) -> bool {
    use redwarfs_windows::name::{BadName, bytes, check};
    let device = |name: &OsStr| check(&bytes(name)) == Err(BadName::Device);
    let is = |&b: &u8, c: u8| b == c || (c == b'\\' && b == b'/');
    let whole = bytes(path.as_os_str());
    let prefix = whole.iter().zip(br"\\.\").filter(|&(b, &c)| is(b, c));
    path.file_name().is_some_and(device) || prefix.count() == 4
}

/// The path that a symbolic link leads to, also if nothing is there yet.
fn behind_link(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let target = std::fs::read_link(path)?;
            Ok(path.parent().unwrap_or(Path::new("")).join(target))
        }
        other => other,
    }
}

/// Longest name, in bytes, that gets into a hidden name.
const MAX_NAME: usize = 200;

/// The system removes the file when it is closed.
const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;

/// A temporary file for reading and writing in `directory`. It disappears when it is closed, also if the
/// process is killed.
///
/// # Errors
/// No file can be created in the directory.
pub fn temporary_file(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    let (file, _) = create_hidden_with(&directory.join("redwarfs"), options)?;
    Ok(file)
}

/// Whether the contents of a file take memory until it is removed. Windows has no such file systems of its own.
pub fn is_in_memory(_file: &File) -> bool {
    false
}

fn create_hidden(target: &Path) -> io::Result<(File, PathBuf)> {
    create_hidden_with(target, OpenOptions::new())
}

fn create_hidden_with(target: &Path, mut options: OpenOptions) -> io::Result<(File, PathBuf)> {
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    options.read(true).write(true).create_new(true);
    // With prefix and suffix, a long name would be too long.
    let is_long = redwarfs_windows::name::bytes(name).len() > MAX_NAME;
    let name = if is_long {
        OsStr::new("redwarfs")
    } else {
        name
    };
    for attempt in 0..NAME_ATTEMPTS {
        let temp = target.with_file_name(hidden_name(name, attempt));
        match options.open(&temp) {
            Ok(file) => return Ok((file, temp)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Renames without replacing an existing entry.
fn rename_to_free_name(temp: &Path, target: &Path) -> io::Result<()> {
    match std::fs::hard_link(temp, target) {
        Ok(()) => return std::fs::remove_file(temp),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(e),
        Err(_) => {}
    }
    // The file system has no links: an empty file reserves the name, and is replaced at once.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(target)?;
    std::fs::rename(temp, target).inspect_err(|_| {
        let _ = std::fs::remove_file(target);
    })
}

/// Says what can be done if another program has the old file open.
fn in_use(e: io::Error) -> io::Error {
    const ERROR_ACCESS_DENIED: i32 = 5;
    const ERROR_SHARING_VIOLATION: i32 = 32;
    match e.raw_os_error() {
        // Before Windows 10, the system denies access to files that are open in any way.
        Some(ERROR_SHARING_VIOLATION | ERROR_ACCESS_DENIED) => io::Error::new(
            e.kind(),
            "cannot be replaced: close the programs that have it open, or write to another file",
        ),
        _ => e,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn appears_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = AtomicFile::create(&path, Overwrite::No).unwrap();
        file.write_all(b"data").unwrap();
        assert!(!path.exists());
        let source = file.written().unwrap().unwrap();
        let mut four = [0; 4];
        crate::Source::read_exact_at(&source, 0, &mut four).unwrap();
        assert_eq!(&four, b"data");
        file.write_all(b" and more").unwrap();
        drop(source);
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data and more");
        let mut file = AtomicFile::create(dir.path().join("other"), Overwrite::No).unwrap();
        file.write_all(b"data").unwrap();
        drop(file);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn never_clobbers_without_permission() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = AtomicFile::create(&path, Overwrite::No).unwrap();
        file.write_all(b"late").unwrap();
        std::fs::write(&path, b"early").unwrap();
        let e = file.commit().unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"early");
        let e = AtomicFile::create(&path, Overwrite::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert!(e.to_string().contains("out"), "{e}");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn replaces_at_the_end_also_a_file_that_is_being_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, b"old").unwrap();
        // As the standard library opens files, with permission to remove them.
        let reader = File::open(&path).unwrap();
        let mut file = AtomicFile::create(&path, Overwrite::Yes).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let committed = file.commit();
        drop(reader);
        let found = std::fs::read(&path).unwrap();
        match committed {
            Ok(()) => assert_eq!(found, b"new"),
            // Wine and old versions of Windows.
            Err(e) => {
                assert!(e.to_string().contains("close the programs"), "{e}");
                assert_eq!(found, b"old");
                eprintln!("SKIPPED: this system does not replace open files");
            }
        }
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn keeps_the_old_file_while_another_program_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, b"old").unwrap();
        let holder = OpenOptions::new()
            .read(true)
            .share_mode(1)
            .open(&path)
            .unwrap();
        let mut file = AtomicFile::create(&path, Overwrite::Yes).unwrap();
        file.write_all(b"new").unwrap();
        assert!(file.commit().is_err());
        drop(holder);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn read_only_files_and_directories_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, b"old").unwrap();
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions.clone()).unwrap();
        let text = AtomicFile::create(&path, Overwrite::Yes)
            .unwrap_err()
            .to_string();
        assert!(
            text.ends_with("because it is read-only (see attrib)"),
            "{text}"
        );
        permissions.set_readonly(false);
        std::fs::set_permissions(&path, permissions).unwrap();
        let e = AtomicFile::create(dir.path(), Overwrite::Yes).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::IsADirectory);
        let e = AtomicFile::create(dir.path().join("no/such"), Overwrite::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn devices_are_written_directly() {
        let mut file = AtomicFile::create("NUL", Overwrite::No).unwrap();
        assert!(matches!(file.notice(), Some(Notice::Stream(_))));
        assert!(file.written().unwrap().is_none());
        file.write_all(b"data").unwrap();
        file.commit().unwrap();
        for (path, stream) in [
            ("nul", true),
            (r"\\.\pipe\x", true),
            ("a/b", false),
            (r"C:\nulls", false),
        ] {
            assert_eq!(is_stream(Path::new(path)), stream, "{path}");
        }
    }

    #[test]
    fn long_paths_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let deep = (0..8).fold(dir.path().to_owned(), |path, _| path.join("d".repeat(50)));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("n".repeat(250));
        let mut file = AtomicFile::create(&path, Overwrite::Yes).unwrap();
        file.write_all(b"data").unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
