//! Builds images of directories, and of entries that Python gives one by one.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use redwarfs::{
    Attributes, BuildOptions, Builder, Built, Collection, FileType, Timestamp, set_option,
};

use crate::error::{exception, of_system};
use crate::path::{EntryPath, text};
use crate::run::{Failure, Target, Watch, Writer, keep};

/// Bytes that are read from an object at a time.
const PIECE: usize = 1 << 20;

/// Names of all options, and the form of each value.
#[pyfunction]
#[pyo3(name = "_option_names")]
pub(crate) fn option_names() -> Vec<(&'static str, &'static str)> {
    redwarfs::OPTION_NAMES.to_vec()
}

/// Refuses options that no build can have. The number of threads is that of another machine, unless an option has it.
#[pyfunction]
#[pyo3(name = "_check_options")]
pub(crate) fn check_options(
    py: Python<'_>,
    level: u8,
    options: Vec<(String, String)>,
) -> PyResult<()> {
    let mut all = BuildOptions::level(level);
    all.workers = 1;
    let checked = options
        .iter()
        .try_for_each(|(name, value)| set_option(&mut all, name, value))
        .and_then(|()| Ok(all.check()?));
    checked.map_err(|e| exception(py, &e))
}

/// Permissions, owner, group, and times of modification, access and change in nanoseconds.
type Given = (u32, u32, u32, i128, i128, i128);

/// The entries of an image that is to be built.
///
/// Code of Python runs while the collection is locked: it gives contents. So nobody waits for the lock
/// in the thread that has it, or while it keeps other threads of the interpreter from running.
#[pyclass(frozen, module = "redwarfs._redwarfs")]
#[derive(Debug)]
pub(crate) struct Entries {
    /// None once the build has begun.
    collection: Mutex<Option<Collection>>,
    /// The thread that has the lock of the collection. This one is never locked for long.
    user: Mutex<Option<ThreadId>>,
}

/// Forgets the thread that has the lock.
struct Using<'a>(&'a Mutex<Option<ThreadId>>);

impl Drop for Using<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Entries {
    fn of(collection: Collection) -> Self {
        Self {
            collection: Mutex::new(Some(collection)),
            user: Mutex::new(None),
        }
    }

    /// Changes the collection while other threads of the interpreter run.
    fn change<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&mut Collection) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let thread = Some(thread::current().id());
        if *self.user.lock().unwrap_or_else(PoisonError::into_inner) == thread {
            return Err(in_use());
        }
        let done = py.detach(|| {
            let mut collection = self
                .collection
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *self.user.lock().unwrap_or_else(PoisonError::into_inner) = thread;
            let _using = Using(&self.user);
            collection.as_mut().map(operation)
        });
        done.ok_or_else(finished)?.map_err(|e| of_system(&e))
    }

    /// Takes the collection out, unless a thread changes it.
    fn taken(&self) -> PyResult<Collection> {
        match self.collection.try_lock() {
            Ok(mut collection) => collection.take().ok_or_else(finished),
            Err(TryLockError::WouldBlock) => Err(in_use()),
            Err(TryLockError::Poisoned(_)) => Err(finished()),
        }
    }
}

fn finished() -> PyErr {
    PyValueError::new_err("the writer is closed")
}

fn in_use() -> PyErr {
    PyValueError::new_err("the writer is in use")
}

#[pymethods]
impl Entries {
    #[new]
    fn new() -> Self {
        Self::of(Collection::new())
    }

    /// Moves all entries into a new object. Fails if a thread is adding one.
    fn take(&self) -> PyResult<Self> {
        Ok(Self::of(self.taken()?))
    }

    /// Adds a regular file with the bytes of an object, or those that `read(size)` of an object gives.
    fn add_file(
        &self,
        py: Python<'_>,
        path: EntryPath,
        content: &Bound<'_, PyAny>,
        given: Given,
    ) -> PyResult<u64> {
        let attributes = attributes(given)?;
        if let Ok(bytes) = content.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return self.change(py, |collection| {
                collection.file(path.as_path(), &mut &*bytes, attributes)
            });
        }
        let mut reader = Reader {
            object: content.clone().unbind(),
            left: Vec::new(),
            used: 0,
            failed: None,
        };
        let done = self.change(py, |collection| {
            collection.file(path.as_path(), &mut reader, attributes)
        });
        match reader.failed {
            Some(error) => Err(error),
            None => done,
        }
    }

    /// Adds a regular file of the disk.
    fn add_path(
        &self,
        py: Python<'_>,
        path: EntryPath,
        from: PathBuf,
        given: Option<Given>,
    ) -> PyResult<u64> {
        let attributes = given.map(attributes).transpose()?;
        self.change(py, |collection| {
            collection.file_on_disk(path.as_path(), from, attributes)
        })
    }

    /// Adds a directory, or changes its attributes.
    fn add_directory(&self, py: Python<'_>, path: EntryPath, given: Given) -> PyResult<()> {
        let attributes = attributes(given)?;
        self.change(py, |collection| {
            collection.directory(path.as_path(), attributes)
        })
    }

    /// Adds a symbolic link.
    fn add_symlink(
        &self,
        py: Python<'_>,
        path: EntryPath,
        target: EntryPath,
        given: Given,
    ) -> PyResult<()> {
        let attributes = attributes(given)?;
        self.change(py, |collection| {
            collection.symlink(path.as_path(), target.as_path(), attributes)
        })
    }

    /// Adds another name for a file.
    fn add_hard_link(&self, py: Python<'_>, path: EntryPath, existing: EntryPath) -> PyResult<()> {
        self.change(py, |collection| {
            collection.hard_link(path.as_path(), existing.as_path())
        })
    }

    /// Adds a device, FIFO or socket; `mode` has its type.
    fn add_special(
        &self,
        py: Python<'_>,
        path: EntryPath,
        mode: u32,
        rdev: u64,
        given: Given,
    ) -> PyResult<()> {
        let attributes = attributes(given)?;
        let kind = FileType::from_mode(mode)
            .ok_or_else(|| PyValueError::new_err("the mode has no known type"))?;
        self.change(py, |collection| {
            collection.special(path.as_path(), kind, rdev, attributes)
        })
    }
}

fn attributes((permissions, uid, gid, mtime, atime, ctime): Given) -> PyResult<Attributes> {
    let mut attributes = Attributes::new(permissions);
    (attributes.uid, attributes.gid) = (uid, gid);
    attributes.mtime = timestamp(mtime)?;
    attributes.atime = timestamp(atime)?;
    attributes.ctime = timestamp(ctime)?;
    Ok(attributes)
}

fn timestamp(ns: i128) -> PyResult<Timestamp> {
    const SECOND: i128 = 1_000_000_000;
    let sec = i64::try_from(ns.div_euclid(SECOND));
    let nsec = u32::try_from(ns.rem_euclid(SECOND));
    match (sec, nsec) {
        (Ok(sec), Ok(nsec)) => Ok(Timestamp { sec, nsec }),
        _ => Err(PyValueError::new_err("a time out of range")),
    }
}

/// Builds an image of a directory or of entries, into a path or an object with `write`. Returns
/// numbers, and messages of two kinds.
#[pyfunction]
#[pyo3(name = "_build")]
#[expect(clippy::too_many_arguments, reason = "arguments of Python")]
pub(crate) fn build<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    level: u8,
    options: Vec<(String, String)>,
    overwrite: bool,
    continue_on_error: bool,
    filter: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut builder = match source.cast::<Entries>() {
        Ok(entries) => Builder::from_source(Arc::new(entries.get().taken()?)),
        Err(_) => Builder::new(source.extract::<PathBuf>()?),
    };
    builder = builder
        .level(level)
        .overwrite(overwrite)
        .continue_on_error(continue_on_error);
    for (name, value) in &options {
        builder = builder.option(name, value).map_err(|e| exception(py, &e))?;
    }
    let watch = Watch::new();
    if let Some(filter) = filter {
        let (failed, stop) = (watch.failure(), watch.stop());
        builder = builder.filter(move |path, kind| wanted(&filter, path, kind, &failed, &stop));
    }
    let builder = builder.progress(watch.events()).stop_flag(watch.stop());
    let target = Target::of(target);
    let failed = watch.failure();
    let built = watch.run(py, progress.as_ref(), move || match target {
        Target::Path(path) => builder.write_to(path),
        Target::Object(object) => builder.write(&mut Writer::new(object, failed)),
    })?;
    let built = built.map_err(|e| exception(py, &e))?;
    watch.tell(py, progress.as_ref())?;
    summary(py, built)
}

fn summary(py: Python<'_>, built: Built) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    for (name, number) in [
        ("image_size", built.summary.image_size),
        ("original_size", built.summary.original_size),
        ("block_bytes", built.summary.block_bytes),
        ("blocks", built.summary.blocks),
        ("inodes", built.summary.inodes),
        ("errors", built.summary.errors),
    ] {
        result.set_item(name, number)?;
    }
    result.set_item("warnings", built.warnings)?;
    result.set_item("problems", built.problems)?;
    Ok(result)
}

fn wanted(
    filter: &Py<PyAny>,
    path: &std::path::Path,
    kind: FileType,
    failed: &Failure,
    stop: &AtomicBool,
) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let asked = Python::try_attach(|py| -> PyResult<bool> {
        let path = text(py, path.as_os_str().as_bytes())?;
        filter.call1(py, (path, kind.mode_bits()))?.is_truthy(py)
    });
    match asked {
        Some(Ok(wanted)) => wanted,
        Some(Err(error)) => {
            keep(failed, error);
            stop.store(true, Ordering::Relaxed);
            false
        }
        None => false,
    }
}

/// Reads from an object of Python.
struct Reader {
    object: Py<PyAny>,
    left: Vec<u8>,
    used: usize,
    failed: Option<PyErr>,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.used == self.left.len() {
            let next = Python::try_attach(|py| -> PyResult<Vec<u8>> {
                let bytes = self.object.call_method1(py, "read", (PIECE,))?;
                Ok(bytes.bind(py).cast::<PyBytes>()?.as_bytes().to_vec())
            });
            self.left = match next {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    self.failed = Some(error);
                    return Err(io::Error::other("the object cannot be read"));
                }
                None => return Err(io::Error::other("the interpreter ends")),
            };
            self.used = 0;
        }
        let left = self.left.get(self.used..).unwrap_or_default();
        let count = left.len().min(buf.len());
        let (to, _) = buf.split_at_mut(count);
        to.copy_from_slice(left.get(..count).unwrap_or_default());
        self.used += count;
        Ok(count)
    }
}
