//! The base class of `redwarfs.Image`: everything that needs the library.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use redwarfs::extractor::{Progress, Selection};
use redwarfs::format::InodeNo;
use redwarfs::io::DiskCache;
use redwarfs::reader::check::DeclaredImage;
use redwarfs::reader::{CheckOptions, ImageOffset, VerifyMode};
use redwarfs::{
    DirEntry, Error, ExtractOptions, FileType, FormatError, OpenOptions, SnapshotChoice, Stat,
};

use crate::error::exception;
use crate::handle::{CacheChoice, Choices, Handle};
use crate::path::{EntryPath, text};
use crate::raw;
use crate::read::{read_at, unnamed};
use crate::source::origin;

/// Largest number of threads that a call may ask for.
const MOST_THREADS: usize = 256;

/// Attributes as Python gets them: mode, inode, links, owner, group, size, device, 512-byte units, and
/// three times in nanoseconds.
type Attributes = (u32, u32, u32, u32, u32, u64, u64, u64, i128, i128, i128);

/// A finding as Python gets it: kind, message, number of affected files, the first of their paths.
type Found<'py> = (&'static str, String, u64, Vec<Bound<'py, PyString>>);

/// The keyword `verify`.
#[derive(Debug, FromPyObject)]
enum Trust {
    /// Whether checksums of blocks are compared.
    Checksums(bool),
    /// What the image must prove.
    Text(String),
}

/// The native part of an image.
#[pyclass(subclass, frozen, module = "redwarfs._redwarfs")]
#[derive(Debug)]
pub(crate) struct Image {
    handle: Handle,
}

impl Image {
    /// Runs an operation on the image while other threads of the interpreter run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&redwarfs::Image) -> redwarfs::Result<T> + Send,
    ) -> PyResult<T> {
        let image = self.handle.image(py)?;
        let done = py.detach(|| operation(image));
        done.map_err(|e| exception(py, &e))
    }

    /// The image, opened in this process.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<redwarfs::Image> {
        self.with(py, |image| Ok(image.clone()))
    }
}

#[pymethods]
impl Image {
    #[new]
    #[pyo3(signature = (source, *, cache_size=512 << 20, readahead=true, verify=Trust::Checksums(true), check=false, offset=None, image_size=None, snapshot=None, cache_dir=None, cache_limit=None, offline=false, lazy=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        cache_size: u64,
        readahead: bool,
        verify: Trust,
        check: bool,
        offset: Option<u64>,
        image_size: Option<u64>,
        snapshot: Option<&str>,
        cache_dir: Option<PathBuf>,
        cache_limit: Option<u64>,
        offline: bool,
        lazy: bool,
    ) -> PyResult<Self> {
        let mut options = OpenOptions::default();
        options.cache.size = cache_size;
        if !readahead {
            options.cache.seq_detector = 0;
            // A value above 1 never finishes a block in the background.
            options.cache.partial_ratio = 2.0;
        }
        match verify {
            Trust::Checksums(verify) => options.trust_blocks = !verify,
            Trust::Text(text) => {
                let verification = py.detach(|| redwarfs::verification(&text));
                options.verification = verification.map_err(|e| exception(py, &e))?;
            }
        }
        options.check = check;
        options.offset = offset.map_or(ImageOffset::Auto, ImageOffset::At);
        options.image_size = image_size;
        options.snapshot = snapshot.map(SnapshotChoice::from);
        if cache_dir.is_none() && (offline || cache_limit.is_some()) {
            return Err(PyValueError::new_err(
                "offline and cache_limit need cache_dir",
            ));
        }
        let cache = cache_dir.map(|directory| -> PyResult<CacheChoice> {
            Ok(CacheChoice {
                // It is opened later, perhaps in another process.
                directory: std::path::absolute(directory)?,
                limit: cache_limit.unwrap_or(DiskCache::DEFAULT_LIMIT),
                offline,
            })
        });
        let cache = cache.transpose()?;
        let image = Self {
            handle: Handle::new(origin(source)?, Choices { options, cache }),
        };
        if !lazy {
            image.with(py, |_| Ok(()))?;
        }
        Ok(image)
    }

    /// Opens the image in this process, unless it is open.
    fn _ensure_open(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.image(py).map(drop)
    }

    /// Inode and mode of the entry at a path.
    #[pyo3(signature = (path, follow=true))]
    fn _lookup(&self, py: Python<'_>, path: EntryPath, follow: bool) -> PyResult<(u32, u32)> {
        self.with(py, |image| {
            let entry = find(image, &path, follow)?;
            Ok((entry.inode().0, entry.file_type()?.mode_bits()))
        })
    }

    /// Attributes of the entry at a path.
    #[pyo3(signature = (path, follow=true))]
    fn _stat(&self, py: Python<'_>, path: EntryPath, follow: bool) -> PyResult<Attributes> {
        self.with(py, |image| {
            find(image, &path, follow)?.metadata().map(attributes)
        })
    }

    /// Attributes of an inode.
    fn _stat_inode(&self, py: Python<'_>, inode: u32) -> PyResult<Attributes> {
        self.with(py, |image| {
            let stat = image.reader().stat(InodeNo(inode));
            stat.map(attributes).map_err(unnamed)
        })
    }

    /// The entries of a directory, in the order of their names: name, inode, type as bits of a mode.
    fn _list<'py>(&self, py: Python<'py>, inode: u32) -> PyResult<Bound<'py, PyList>> {
        let entries = self.with(py, |image| {
            let reader = image.reader();
            let mut entries = Vec::new();
            for entry in reader.read_dir(InodeNo(inode)).map_err(unnamed)? {
                let entry = entry.map_err(unnamed)?;
                let kind = reader.metadata().file_type(entry.inode).map_err(unnamed)?;
                entries.push((entry.name.into_owned(), entry.inode.0, kind.mode_bits()));
            }
            Ok(entries)
        })?;
        let list = PyList::empty(py);
        for (name, inode, mode) in entries {
            list.append((text(py, &name)?, inode, mode))?;
        }
        Ok(list)
    }

    /// The target of the symbolic link at a path.
    fn _readlink<'py>(&self, py: Python<'py>, path: EntryPath) -> PyResult<Bound<'py, PyString>> {
        use std::os::unix::ffi::OsStrExt;
        let target = self.with(py, |image| image.read_link(path.as_path()))?;
        text(py, target.as_os_str().as_bytes())
    }

    /// The names of the extended attributes of the entry at a path.
    #[pyo3(signature = (path, follow=true))]
    fn _listxattr<'py>(
        &self,
        py: Python<'py>,
        path: EntryPath,
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyString>>> {
        let names = self.with(py, |image| {
            let entry = find(image, &path, follow)?;
            let failed = |source| Error::Read {
                path: path.as_path().to_owned(),
                source,
            };
            let xattrs = image.reader().xattrs(entry.inode()).map_err(failed)?;
            let names = xattrs.map(|xattr| xattr.name().map(Cow::into_owned).map_err(failed));
            names.collect::<redwarfs::Result<Vec<Vec<u8>>>>()
        })?;
        names.iter().map(|name| text(py, name)).collect()
    }

    /// The value of an extended attribute of the entry at a path; `None` if it has no such one.
    #[pyo3(signature = (path, name, follow=true))]
    fn _getxattr<'py>(
        &self,
        py: Python<'py>,
        path: EntryPath,
        name: EntryPath,
        follow: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |image| {
            let entry = find(image, &path, follow)?;
            let name = name.as_path().as_os_str().as_encoded_bytes();
            let value = image.reader().xattr(entry.inode(), name);
            let value = value.map_err(|source| Error::Read {
                path: path.as_path().to_owned(),
                source,
            });
            Ok(value?.map(Cow::into_owned))
        })?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// Inode and length of the regular file at a path.
    fn _file(&self, py: Python<'_>, path: EntryPath) -> PyResult<(u32, u64)> {
        self.with(py, |image| {
            let entry = image.entry(path.as_path())?;
            let len = entry.open()?.len();
            Ok((entry.inode().0, len))
        })
    }

    /// Up to `size` bytes of a file from `offset` on.
    fn _read<'py>(
        &self,
        py: Python<'py>,
        inode: u32,
        offset: u64,
        size: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let stat = self.with(py, |image| {
            image.reader().stat(InodeNo(inode)).map_err(unnamed)
        })?;
        let len = length(stat.size.saturating_sub(offset).min(size))?;
        self.bytes(py, InodeNo(inode), offset, len)
    }

    /// Reads into a writable buffer; returns the number of bytes.
    fn _readinto(
        &self,
        py: Python<'_>,
        inode: u32,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let image = self.handle.image(py)?;
        raw::fill_buffer(py, buffer, |bytes| {
            read_at(image, InodeNo(inode), offset, bytes)
        })?
    }

    /// The bytes of a regular file, from `offset` on, `size` of them at most.
    #[pyo3(signature = (path, offset=0, size=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: EntryPath,
        offset: u64,
        size: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (inode, len) = self._file(py, path)?;
        let left = len.saturating_sub(offset);
        let len = length(size.map_or(left, |size| size.min(left)))?;
        self.bytes(py, InodeNo(inode), offset, len)
    }

    /// The bytes of many regular files, in the given order.
    #[pyo3(signature = (paths, threads=None))]
    fn _read_many<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<EntryPath>,
        threads: Option<usize>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let threads = match threads {
            Some(0) => return Err(PyValueError::new_err("threads must be at least 1")),
            Some(threads) => threads.min(MOST_THREADS),
            None => thread::available_parallelism().map_or(1, usize::from),
        };
        let entries: Vec<(DirEntry, u64)> = self.with(py, |image| {
            let found = paths.iter().map(|path| {
                let entry = image.entry(path.as_path())?;
                let len = entry.open()?.len();
                Ok((entry, len))
            });
            found.collect()
        })?;
        let lengths: Vec<usize> = entries
            .iter()
            .map(|(_, len)| length(*len))
            .collect::<PyResult<_>>()?;
        let image = self.handle.image(py)?;
        let filled = raw::fill_many(py, &lengths, |buffers| {
            let entries = entries.into_iter().map(|(entry, _)| entry);
            image.read_many(entries.zip(buffers), threads)
        })?;
        filled.map_err(|e| exception(py, &e))
    }

    /// The number of the first block of each file; -1 for files without data.
    fn _first_blocks(&self, py: Python<'_>, paths: Vec<EntryPath>) -> PyResult<Vec<i64>> {
        self.with(py, |image| {
            let blocks = paths.iter().map(|path| {
                let entry = image.entry(path.as_path())?;
                let block = image.first_block(&entry)?;
                Ok(block.map_or(-1, |block| i64::from(block.0)))
            });
            blocks.collect()
        })
    }

    /// Numbers about the image.
    fn _info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (version, numbers, verified) = self.with(py, |image| {
            let reader = image.reader();
            let (view, container) = (reader.metadata(), reader.container());
            let (counts, totals) = (view.counts(), view.totals());
            let numbers = [
                ("offset", container.offset),
                ("image_size", container.size),
                ("block_size", u64::from(view.block_size())),
                ("blocks", u64::from(container.block_count())),
                ("inodes", u64::from(counts.inodes)),
                ("files", u64::from(counts.files)),
                ("original_size", totals.size),
            ];
            let verified = image.verified().cloned();
            Ok((container.version.to_string(), numbers, verified))
        })?;
        let info = PyDict::new(py);
        info.set_item("version", version)?;
        for (name, number) in numbers {
            info.set_item(name, number)?;
        }
        info.set_item("digests_time", verified.as_ref().map(|found| found.time))?;
        info.set_item("signer", verified.and_then(|found| found.signer))?;
        Ok(info)
    }

    /// Checks all checksums, and with `deep` also SHA-512/256 and the decoding of all blocks. Returns
    /// findings: kind, message, number of affected files, the first of their paths.
    fn _verify<'py>(
        &self,
        py: Python<'py>,
        deep: bool,
        threads: usize,
    ) -> PyResult<Vec<Found<'py>>> {
        let mut options = CheckOptions::default();
        options.threads = threads.clamp(1, MOST_THREADS);
        if deep {
            options.mode = VerifyMode::Integrity;
            options.decode = true;
        }
        let findings = self.with(py, |image| {
            let reader = image.reader();
            let list = reader.list_sections().map_err(unnamed)?;
            let opened = self.handle.options();
            // Later snapshots may follow the one that was asked for.
            let older = opened.snapshot.is_some();
            let declared = DeclaredImage {
                offset: opened.offset,
                size: opened
                    .image_size
                    .or_else(|| older.then_some(reader.container().size)),
                device: false,
            };
            let report = reader.check(list, declared, &options, &|_| {});
            Ok(report.map_err(unnamed)?.findings)
        })?;
        let shown = findings.into_iter().map(|finding| {
            let affected = finding.affected.clone().unwrap_or_default();
            let paths = affected.first.iter().map(|path| text(py, path));
            let paths = paths.collect::<PyResult<_>>()?;
            Ok((
                finding.kind.name(),
                finding.to_string(),
                affected.count,
                paths,
            ))
        });
        shown.collect()
    }

    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    /// Extracts entries into a directory; returns the numbers of files, bytes and errors, and messages.
    fn _extract<'py>(
        &self,
        py: Python<'py>,
        target: PathBuf,
        select: Option<Py<PyAny>>,
        threads: Option<usize>,
        continue_on_error: bool,
        skip_devices: bool,
        skip_specials: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut options = ExtractOptions::default();
        options.threads = threads.unwrap_or(options.threads).clamp(1, MOST_THREADS);
        options.continue_on_error = continue_on_error;
        options.skip_devices = skip_devices;
        options.skip_specials = skip_specials;
        let failed: Arc<std::sync::Mutex<Option<PyErr>>> = Arc::default();
        if let Some(select) = select {
            let failed = Arc::clone(&failed);
            options.select = Some(Selection::new(move |path, kind| {
                wanted(&select, path, kind, &failed)
            }));
        }
        let messages = Messages::default();
        let summary = self.with(py, |image| {
            redwarfs::extract_with(image, &target, &options, &messages)
        });
        if let Some(error) = failed.lock().ok().and_then(|mut failed| failed.take()) {
            return Err(error);
        }
        let summary = summary?;
        let result = PyDict::new(py);
        result.set_item("files", summary.files)?;
        result.set_item("bytes", summary.bytes)?;
        result.set_item("errors", summary.damaged)?;
        result.set_item("warnings", messages.take(&messages.warnings))?;
        result.set_item("damaged", messages.take(&messages.damaged))?;
        Ok(result)
    }
}

impl Image {
    fn bytes<'py>(
        &self,
        py: Python<'py>,
        inode: InodeNo,
        offset: u64,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let image = self.handle.image(py)?;
        let filled = raw::fill_many(py, &[len], |buffers| {
            for buffer in buffers {
                let count = read_at(image, inode, offset, buffer)?;
                if count < buffer.len() {
                    let what = format!("the file ends after {count} bytes");
                    let short = unnamed(FormatError::corrupt(what));
                    return Err(Python::attach(|py| exception(py, &short)));
                }
            }
            PyResult::Ok(())
        })?;
        let mut filled = filled?;
        let bytes = filled.pop();
        bytes.ok_or_else(|| crate::error::internal("no object was made"))
    }
}

fn find(image: &redwarfs::Image, path: &EntryPath, follow: bool) -> redwarfs::Result<DirEntry> {
    match follow {
        true => image.entry(path.as_path()),
        false => image.symlink_entry(path.as_path()),
    }
}

fn length(len: u64) -> PyResult<usize> {
    isize::try_from(len)
        .ok()
        .and_then(|len| usize::try_from(len).ok())
        .ok_or_else(|| PyOverflowError::new_err("the file is larger than the memory can be"))
}

fn attributes(stat: Stat) -> Attributes {
    let ns =
        |time: redwarfs::Timestamp| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    (
        stat.mode,
        stat.ino.0,
        stat.nlink,
        stat.uid,
        stat.gid,
        stat.size,
        stat.rdev,
        stat.blocks(),
        ns(stat.atime),
        ns(stat.mtime),
        ns(stat.ctime),
    )
}

/// Asks a function of Python about an entry. After its first exception nothing is wanted.
fn wanted(
    select: &Py<PyAny>,
    path: &[u8],
    kind: FileType,
    failed: &std::sync::Mutex<Option<PyErr>>,
) -> bool {
    let asked = Python::try_attach(|py| -> PyResult<bool> {
        if failed.lock().is_ok_and(|failed| failed.is_some()) {
            return Ok(false);
        }
        select
            .call1(py, (text(py, path)?, kind.mode_bits()))?
            .is_truthy(py)
    });
    match asked {
        Some(Ok(wanted)) => wanted,
        Some(Err(error)) => {
            if let Ok(mut failed) = failed.lock() {
                failed.get_or_insert(error);
            }
            false
        }
        None => false,
    }
}

/// Largest number of messages of each kind that a result has.
const MOST_MESSAGES: usize = 1000;

#[derive(Default)]
struct Messages {
    warnings: std::sync::Mutex<Vec<String>>,
    damaged: std::sync::Mutex<Vec<String>>,
}

impl Messages {
    fn take(&self, list: &std::sync::Mutex<Vec<String>>) -> Vec<String> {
        list.lock()
            .map(|mut list| std::mem::take(&mut *list))
            .unwrap_or_default()
    }
}

impl Progress for Messages {
    fn warn(&self, message: &str) {
        push(&self.warnings, message.to_owned());
    }

    fn damaged(&self, path: &str, cause: &str) {
        push(&self.damaged, format!("{path}: {cause}"));
    }
}

fn push(list: &std::sync::Mutex<Vec<String>>, message: String) {
    if let Ok(mut list) = list.lock()
        && list.len() < MOST_MESSAGES
    {
        list.push(message);
    }
}
