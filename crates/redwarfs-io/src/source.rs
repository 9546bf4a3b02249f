//! Sources of image bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::os;

/// Random access to immutable bytes.
///
/// Several threads use an implementation at once, so it must not depend on a shared position.
pub trait Source: Send + Sync + fmt::Debug {
    /// Number of bytes that can be read.
    ///
    /// # Errors
    /// The error of the medium.
    fn len(&self) -> io::Result<u64>;

    /// Whether the source is empty.
    ///
    /// # Errors
    /// The same as for [`Source::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` with the bytes from absolute offset `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends before `buf` is full, otherwise the error of
    /// the medium. The contents of `buf` are unspecified after an error.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Fills `buf` like [`Source::read_exact_at`], if this need not wait for a medium. Returns false if
    /// it would wait, if it fails, or if the source cannot tell. Then the contents of `buf` are
    /// unspecified.
    fn try_read_exact_at(&self, _offset: u64, _buf: &mut [u8]) -> bool {
        false
    }

    /// The first offset, from `offset` on, at which there may be other bytes than zeros. The length of
    /// the source if there are none, and `offset` itself if holes are unknown.
    ///
    /// # Errors
    /// The error of the medium.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// The same file with its length of now, if it can become longer.
    ///
    /// # Errors
    /// The error of the medium.
    fn of_now(&self) -> io::Result<Option<Arc<dyn Source>>> {
        Ok(None)
    }

    /// What changes when somebody writes to the file. None if the source cannot tell, or nobody can write to it.
    ///
    /// # Errors
    /// The error of the medium.
    fn revision(&self) -> io::Result<Option<Revision>> {
        Ok(None)
    }

    /// Whether every read may cost a round trip over a network. Then a reader announces what it will read
    /// with [`Source::will_need`], keeps what it has read, and leaves out what it can do without.
    fn is_remote(&self) -> bool {
        false
    }

    /// Announces ranges that will be read soon, in this order. The source may begin to fetch them, several at a
    /// time. Never waits and never fails: a read of the range does.
    fn will_need(&self, _ranges: &[Range<u64>]) {}

    /// As [`Source::will_need`], for ranges that nobody waits for: other reads and ranges come first.
    fn may_need(&self, _ranges: &[Range<u64>]) {}

    /// Whether all bytes of a range are in memory or on their way: false if an announcement had no effect, because there is
    /// no room or no server.
    fn is_coming(&self, _range: &Range<u64>) -> bool {
        true
    }

    /// The line to a server, as it was measured so far. None if there is no line, or nothing was measured.
    fn line(&self) -> Option<Line> {
        None
    }

    /// A text that names these bytes: another file or object has another one, and so has this one after a change. None
    /// if the source cannot tell.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Says that an image was opened: everything that this needs was read. A source with a cache keeps these bytes for the
    /// next time.
    fn opened(&self) {}

    /// Says that nobody needs the bytes any more. Reads that wait for a server fail soon, and so do later ones. Other
    /// sources ignore this.
    fn abandon(&self) {}
}

/// A line to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Bytes that arrive in a second, if nothing else holds them up.
    pub rate: u64,
    /// Time from a request to the start of its answer.
    pub delay: Duration,
}

impl Line {
    /// Bytes that must be on their way at any time so that the line is never idle: the bandwidth-delay product.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let bytes = u128::from(self.rate) * self.delay.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The length of a file, and when it was last written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision {
    length: u64,
    modified: Option<SystemTime>,
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        (**self).try_read_exact_at(offset, buf)
    }

    fn of_now(&self) -> io::Result<Option<Arc<dyn Source>>> {
        (**self).of_now()
    }

    fn revision(&self) -> io::Result<Option<Revision>> {
        (**self).revision()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        (**self).next_data(offset)
    }

    fn is_remote(&self) -> bool {
        (**self).is_remote()
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        (**self).will_need(ranges);
    }

    fn may_need(&self, ranges: &[Range<u64>]) {
        (**self).may_need(ranges);
    }

    fn is_coming(&self, range: &Range<u64>) -> bool {
        (**self).is_coming(range)
    }

    fn line(&self) -> Option<Line> {
        (**self).line()
    }

    fn identity(&self) -> Option<String> {
        (**self).identity()
    }

    fn opened(&self) {
        (**self).opened();
    }

    fn abandon(&self) {
        (**self).abandon();
    }
}

/// A regular file or a block device, read with `pread`.
///
/// The size is determined once, at opening. If the file shrinks afterwards, reads fail.
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileSource {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// Every error names the path. A directory gives [`io::ErrorKind::IsADirectory`]. Pipes, sockets
    /// and character devices give [`io::ErrorKind::InvalidInput`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |e: io::Error| {
            let shown = crate::place::shown_name(path);
            io::Error::new(e.kind(), format!("{}: {e}", shown.display()))
        };
        // Checked before opening: opening a pipe would block, and opening some devices has side
        // effects.
        check_type(path, &std::fs::metadata(path).map_err(named)?)?;
        let mut file = File::open(path).map_err(named)?;
        let metadata = file.metadata().map_err(named)?;
        check_type(path, &metadata)?;
        let len = if os::is_block_device(&metadata) {
            file.seek(SeekFrom::End(0)).map_err(named)?
        } else {
            metadata.len()
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            len,
        })
    }

    /// A regular file that is open already, and was found at `path`.
    ///
    /// # Errors
    /// Its size cannot be read.
    pub fn of(file: File, path: &Path) -> io::Result<Self> {
        Ok(Self {
            len: file.metadata()?.len(),
            file,
            path: path.to_owned(),
        })
    }

    /// The path that was given to [`FileSource::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

fn check_type(path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    let ty = metadata.file_type();
    if ty.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            format!("{}: is a directory, not an image file", path.display()),
        ));
    }
    if ty.is_file() || os::is_block_device(metadata) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "{}: is neither a regular file nor a block device",
            path.display()
        ),
    ))
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Source for FileSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        os::read_exact_at(&self.file, offset, buf).map_err(|e| {
            let what = if e.kind() == io::ErrorKind::UnexpectedEof {
                "the file ends before the requested bytes".to_owned()
            } else {
                e.to_string()
            };
            io::Error::new(
                e.kind(),
                format!(
                    "{}: reading {} bytes at offset {offset}: {what}",
                    self.path.display(),
                    buf.len()
                ),
            )
        })
    }

    /// From the page cache.
    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        os::try_read_exact_at(&self.file, offset, buf)
    }

    fn of_now(&self) -> io::Result<Option<Arc<dyn Source>>> {
        let file = self.file.try_clone()?;
        Ok(Some(Arc::new(Self::of(file, &self.path)?)))
    }

    /// Reads into the page cache, and no more than these ranges: what the kernel reads ahead of a request for a block is mostly
    /// of another block.
    fn will_need(&self, ranges: &[Range<u64>]) {
        for range in ranges {
            os::will_need(&self.file, range);
        }
    }

    fn revision(&self) -> io::Result<Option<Revision>> {
        let found = self.file.metadata()?;
        Ok(Some(Revision {
            length: found.len(),
            modified: found.modified().ok(),
        }))
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        os::next_data(&self.file, offset, self.len)
    }

    /// Path, length and time of the last change.
    fn identity(&self) -> Option<String> {
        let modified = self.file.metadata().ok()?.modified().ok()?;
        let path = self.path.canonicalize().ok()?;
        Some(format!("{} {} {modified:?}", path.display(), self.len))
    }
}

/// Bytes in memory.
#[derive(Clone)]
pub struct MemorySource(Arc<[u8]>);

impl MemorySource {
    /// Wraps `bytes`.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.0
    }
}

impl From<Vec<u8>> for MemorySource {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource")
            .field("len", &self.0.len())
            .finish()
    }
}

impl Source for MemorySource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| Some(start..start.checked_add(buf.len())?))
            .and_then(|range| self.0.get(range))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!(
                        "{} bytes at offset {offset} reach beyond the end",
                        buf.len()
                    ),
                )
            })?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.read_exact_at(offset, buf).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_and_bounds() {
        let source = MemorySource::new(b"hello".to_vec());
        let mut buf = [0; 3];
        source.read_exact_at(2, &mut buf).unwrap();
        assert_eq!(&buf, b"llo");
        for offset in [3, 5, u64::MAX] {
            let e = source.read_exact_at(offset, &mut buf).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof, "offset {offset}");
        }
        source.read_exact_at(5, &mut []).unwrap();
        assert_eq!(source.len().unwrap(), 5);
        assert!(!source.is_empty().unwrap());
    }

    /// Bytes that this thread made the system read from a medium.
    #[cfg(target_os = "linux")]
    fn from_media() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        line.unwrap().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn announced_bytes_come_from_the_medium_and_no_others() {
        use rustix::fs::{Advice, fadvise};
        // Not the directory for temporary files, which may be in memory.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 32 << 20]).unwrap();
        let source = FileSource::open(&path).unwrap();
        source.file().sync_all().unwrap();
        fadvise(source.file(), 0, None, Advice::DontNeed).unwrap();
        let mut buf = [0; 4096];
        let before = from_media();
        source.read_exact_at(16 << 20, &mut buf).unwrap();
        if from_media() == before {
            println!("SKIPPED: announced bytes: this file system is in memory");
            return;
        }
        fadvise(source.file(), 0, None, Advice::DontNeed).unwrap();
        let before = from_media();
        // What makes no sense is ignored.
        source.will_need(&[5..5, (u64::MAX - 1)..u64::MAX]);
        assert_eq!(from_media(), before);
        source.will_need(std::slice::from_ref(&(0..1 << 20)));
        assert_eq!(from_media() - before, 1 << 20);
        source.read_exact_at((1 << 20) - 4096, &mut buf).unwrap();
        assert_eq!(buf, [7; 4096]);
        assert_eq!(from_media() - before, 1 << 20);
    }

    #[test]
    fn file_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, b"0123456789").unwrap();
        let source = FileSource::open(&path).unwrap();
        assert_eq!(source.len().unwrap(), 10);
        let mut buf = [0; 4];
        source.read_exact_at(6, &mut buf).unwrap();
        assert_eq!(&buf, b"6789");
        let e = source.read_exact_at(7, &mut buf).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        assert!(e.to_string().contains("image"), "{e}");

        let identity = source.identity();
        assert!(identity.is_some() && Arc::new(source).identity() == identity);
        std::fs::write(&path, b"0123456789a").unwrap();
        assert_ne!(FileSource::open(&path).unwrap().identity(), identity);
        assert_eq!(MemorySource::new(Vec::new()).identity(), None);
    }

    #[test]
    fn reads_without_waiting_give_the_same_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let sources: [Arc<dyn Source>; 2] = [
            Arc::new(FileSource::open(&path).unwrap()),
            Arc::new(MemorySource::new(bytes.clone())),
        ];
        let mut there = 0;
        for source in sources {
            for (at, len) in [(0, 300_000), (5, 100), (299_999, 1), (300_000, 0)] {
                let mut buf = vec![0xa5; len];
                if source.try_read_exact_at(at as u64, &mut buf) {
                    assert!(buf == bytes[at..at + len], "{at}");
                    there += 1;
                }
            }
            assert!(!source.try_read_exact_at(299_999, &mut [0; 2]));
            assert!(!source.try_read_exact_at(u64::MAX, &mut [0; 2]));
        }
        // Memory needs no waiting; files depend on their file system.
        assert!(there >= 4, "{there}");
    }

    #[test]
    fn holes_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let mut file = File::create(&path).unwrap();
        file.set_len(1 << 26).unwrap();
        file.seek(SeekFrom::Start(1 << 25)).unwrap();
        io::Write::write_all(&mut file, b"data").unwrap();
        let source: Arc<dyn Source> = Arc::new(FileSource::open(&path).unwrap());
        let found = source.next_data(0).unwrap();
        // 0 on a file system without holes.
        assert!(found <= 1 << 25, "{found}");
        assert_eq!(source.next_data(1 << 25).unwrap(), 1 << 25);
        assert_eq!(source.next_data((1 << 25) + 1).unwrap(), (1 << 25) + 1);
        let memory = MemorySource::new(vec![0; 10]);
        assert_eq!(memory.next_data(3).unwrap(), 3);
    }

    #[test]
    fn what_is_no_file_is_named_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        let e = FileSource::open(dir.path()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::IsADirectory);
        assert!(
            e.to_string().contains(&dir.path().display().to_string()),
            "{e}"
        );
        if cfg!(unix) {
            let e = FileSource::open("/dev/null").unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        }
        let missing = dir.path().join("missing");
        let e = FileSource::open(&missing).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        assert!(e.to_string().contains("missing"), "{e}");
    }
}
