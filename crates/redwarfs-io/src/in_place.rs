//! Files that are changed in place: behind their end, so that the old contents stay valid at every moment, or
//! where bytes are wrong anyway.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::os;
use crate::source::Source;

/// A file that this process alone changes. Readers need no lock.
pub struct LockedFile {
    file: File,
    path: PathBuf,
}

impl fmt::Debug for LockedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockedFile").field(&self.path).finish()
    }
}

impl LockedFile {
    /// Opens an existing regular file for reading and writing, and takes the lock of writers on it (advisory, by
    /// `flock` on Unix, on Windows on a byte that no file has).
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::ResourceBusy`] if another program has the lock,
    /// [`io::ErrorKind::ExecutableFileBusy`] if the program in the file runs,
    /// [`io::ErrorKind::InvalidInput`] if it is no regular file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let refused = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !std::fs::metadata(path).map_err(named)?.is_file() {
            return Err(named(refused("is no regular file")));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| named(runs(e)))?;
        if !file.metadata().map_err(named)?.is_file() {
            return Err(named(refused("is no regular file")));
        }
        if !os::lock_exclusive(&file).map_err(named)? {
            let busy = io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another program is changing it; wait for that",
            );
            return Err(named(busy));
        }
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    /// A file that is open for reading and writing, and that nobody else knows yet.
    pub(crate) fn of(file: File, path: &Path) -> Self {
        Self {
            file,
            path: path.to_owned(),
        }
    }

    /// Whether it is what its path names: nobody has removed or replaced it.
    pub(crate) fn is_at_its_path(&self) -> bool {
        os::is_at(&self.file, &self.path)
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// With what the user can do if the program in the file runs.
fn runs(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::ExecutableFileBusy => io::Error::new(
            kind,
            "text file busy: the program in it runs; end that first",
        ),
        _ => error,
    }
}

/// A file that is changed in place: a [`LockedFile`], or one of a test that fails when it is told to.
pub trait Medium: Source {
    /// Writes all bytes at an offset. The file grows if they go beyond its end.
    ///
    /// # Errors
    /// The error of the medium.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the file longer, with zeros, or shorter.
    ///
    /// # Errors
    /// The error of the medium.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Waits until everything that was written is on the medium.
    ///
    /// # Errors
    /// The error of the medium.
    fn sync(&self) -> io::Result<()>;

    /// Makes a range of bytes zeros that take no space. The file keeps its length. What is behind its end is left alone.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if it cannot have holes; otherwise the error of the medium.
    fn punch(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Medium for LockedFile {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        os::write_all_at(&self.file, offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        os::punch(&self.file, offset, length)
    }
}

impl<M: Medium + ?Sized> Medium for Arc<M> {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_all_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        (**self).punch(offset, length)
    }
}

impl Source for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        os::read_exact_at(&self.file, offset, buf)
    }
}

/// Writes new bytes behind the end of a file whose last eight bytes lead to what counts (a *tail pointer*, in
/// images that to the section index).
///
/// At every moment the file ends with the old tail pointer or, from the commit on, with the new one, which the new
/// bytes end with. For this, the old pointer is written once more, far behind the end, before anything
/// else; the range up to it is a hole. The commit cuts the file behind the new bytes. Bytes that were in
/// the file before are never written.
///
/// Dropped without a commit, the file gets its old end back. If the process is killed, the file stays
/// longer, and its end still leads to the old contents.
#[derive(Debug)]
pub struct Append {
    file: Box<dyn Medium>,
    start: u64,
    pointer: [u8; 8],
    reserved: u64,
    committed: bool,
}

/// The reserve ends at a multiple of this, so that its pointer is in one sector.
const ALIGN: u64 = 64;

impl Append {
    /// Starts behind `start`, where what counts ends with `pointer`. Bytes between `start` and the end of the
    /// file, of an append that was not finished, are cut off.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if `pointer` is not in front of `start` or not at the end of the file:
    /// somebody has changed it. Otherwise the error of the medium.
    pub fn begin(file: impl Medium + 'static, start: u64, pointer: [u8; 8]) -> io::Result<Self> {
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "the file has changed");
        let len = file.len()?;
        for end in [start, len] {
            let at = end
                .checked_sub(8)
                .filter(|_| len >= start)
                .ok_or_else(changed)?;
            let mut found = [0; 8];
            file.read_exact_at(at, &mut found)?;
            if found != pointer {
                return Err(changed());
            }
        }
        if len > start {
            file.set_len(start)?;
            file.sync()?;
        }
        Ok(Self {
            file: Box::new(file),
            start,
            pointer,
            reserved: start,
            committed: false,
        })
    }

    /// Makes room for new bytes up to the offset `end`: they may be written then.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn reserve(&mut self, end: u64) -> io::Result<()> {
        let wanted = end
            .checked_add(8 + ALIGN)
            .ok_or(io::ErrorKind::FileTooLarge)?
            / ALIGN
            * ALIGN;
        if wanted > self.reserved {
            self.file.write_all_at(wanted - 8, &self.pointer)?;
            self.file.sync()?;
            self.reserved = wanted;
        }
        Ok(())
    }

    /// Writes new bytes at an offset, inside what is reserved.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for bytes that are old or not reserved; otherwise the error of the medium.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if offset < self.start || end.is_none_or(|end| end > self.reserved.saturating_sub(8)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a write outside of what is reserved",
            ));
        }
        self.file.write_all_at(offset, bytes)
    }

    /// The file with all bytes that were written.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.file
    }

    /// Ends the file behind the new bytes, at `end`, when they are on the medium.
    ///
    /// # Errors
    /// The error of the medium. Then the file gets its old end back, if that is still possible.
    pub fn commit(mut self, end: u64) -> io::Result<()> {
        if end < self.start || end > self.reserved.saturating_sub(8) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.sync()?;
        self.file.set_len(end)?;
        self.committed = true;
        self.file.sync()
    }
}

impl Drop for Append {
    fn drop(&mut self) {
        if !self.committed {
            // If this fails, the end of the file still leads to the old contents.
            let _ = self.file.set_len(self.start);
        }
    }
}

/// Bytes that are reserved at a time (64 MiB).
const STEP: u64 = 64 << 20;

/// Appends a stream of bytes.
#[derive(Debug)]
pub struct AppendWriter {
    append: Append,
    at: u64,
}

impl AppendWriter {
    /// Writes behind the old contents of a file.
    #[must_use]
    pub fn new(append: Append) -> Self {
        Self {
            at: append.start,
            append,
        }
    }

    /// The append, and the offset behind what was written, for more bytes that count together with them.
    #[must_use]
    pub fn into_parts(self) -> (Append, u64) {
        (self.append, self.at)
    }

    /// Makes what was written count.
    ///
    /// # Errors
    /// Those of [`Append::commit`].
    pub fn commit(self) -> io::Result<()> {
        self.append.commit(self.at)
    }
}

impl io::Write for AppendWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self
            .at
            .checked_add(bytes.len() as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if end > self.append.reserved.saturating_sub(8) {
            self.append.reserve(end.saturating_add(STEP))?;
        }
        self.append.write_all_at(self.at, bytes)?;
        self.at = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, contents).unwrap();
        (dir, path)
    }

    #[test]
    fn one_writer_has_the_lock_and_readers_need_none() {
        let (_dir, path) = file(b"contents");
        let first = LockedFile::open(&path).unwrap();
        let refused = LockedFile::open(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy, "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"contents");
        first.write_all_at(8, b" and more").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"contents and more");
        drop(first);
        LockedFile::open(&path).unwrap();
    }

    #[test]
    fn the_end_is_the_old_or_the_new_one() {
        let (_dir, path) = file(b"contents, pointer1");
        let bytes = || std::fs::read(&path).unwrap();
        let begin = || Append::begin(LockedFile::open(&path).unwrap(), 18, *b"pointer1");
        for finish in [false, true] {
            let mut append = begin().unwrap();
            append.reserve(1000).unwrap();
            assert!(bytes().ends_with(b"pointer1") && bytes().len() % 64 == 0);
            append.write_all_at(18, b"news").unwrap();
            append.write_all_at(22, b"pointer2").unwrap();
            assert!(append.write_all_at(17, b"old").is_err());
            assert!(append.write_all_at(1100, &[0; 200]).is_err());
            assert!(bytes().ends_with(b"pointer1") && bytes().starts_with(b"contents, pointer1"));
            if finish {
                append.commit(30).unwrap();
                assert_eq!(bytes(), b"contents, pointer1newspointer2");
            } else {
                drop(append);
                assert_eq!(bytes(), b"contents, pointer1");
            }
        }
        // The file is another one now.
        assert_eq!(begin().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn an_unfinished_append_is_cut_off() {
        let (_dir, path) = file(b"contents, pointer1junk\0\0\0pointer1");
        let append = Append::begin(LockedFile::open(&path).unwrap(), 18, *b"pointer1").unwrap();
        drop(append);
        assert_eq!(std::fs::read(&path).unwrap(), b"contents, pointer1");
        for start in [0, 7, 19, 100] {
            let file = LockedFile::open(&path).unwrap();
            assert!(Append::begin(file, start, *b"pointer1").is_err(), "{start}");
        }
    }

    #[test]
    fn a_stream_is_appended() {
        use io::Write as _;
        let (_dir, path) = file(b"contents, pointer1");
        let append = Append::begin(LockedFile::open(&path).unwrap(), 18, *b"pointer1").unwrap();
        let mut writer = AppendWriter::new(append);
        writer.write_all(b"news").unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length > STEP && length.is_multiple_of(64));
        writer.write_all(b"pointer2").unwrap();
        writer.commit().unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"contents, pointer1newspointer2"
        );
    }

    /// A file of which the system does not say that it is a program, and so why it cannot be written.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_runs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        // Another process writes it: what is open for writing here would be so in the processes of other tests.
        let script = "cp \"$(command -v sleep)\" \"$1\"";
        let mut copy = std::process::Command::new("sh");
        assert!(
            copy.args(["-c", script, "sh"])
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let mut program = std::process::Command::new(&path).arg("60").spawn().unwrap();
        let error = LockedFile::open(&path).unwrap_err();
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ExecutableFileBusy);
        let text = format!(
            "{}: text file busy: the program in it runs; end that first",
            path.display()
        );
        assert_eq!(error.to_string(), text);
        LockedFile::open(&path).unwrap();
    }

    #[test]
    fn one_writer_at_a_time() {
        let (dir, path) = file(b"x");
        let first = LockedFile::open(&path).unwrap();
        if cfg!(unix) {
            let error = LockedFile::open(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
            assert!(error.to_string().contains("another program is changing it"));
        }
        drop(first);
        LockedFile::open(&path).unwrap();
        let error = LockedFile::open(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(LockedFile::open(dir.path().join("none")).is_err());
    }
}
