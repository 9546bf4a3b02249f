//! An image that is opened when it is first used, and once more in each process that a fork makes.
//!
//! After a fork, the child has the memory of the parent but not its threads. A lock may be held by a
//! thread that is gone, and the threads of the block cache are gone. So the child opens the image anew,
//! from the same descriptor, and never touches or frees the state of the parent. Descriptors are only
//! read by position, so processes can share them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use redwarfs::io::{FileSource, Source};
use redwarfs::{Error, Image, OpenOptions, Result};

/// Number of forks above this process, as far as the interpreter knows.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Is called in the child after each fork of the interpreter. A process id alone could repeat.
#[pyfunction]
#[pyo3(name = "_forked")]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// What distinguishes this process from its parents. The id is for forks outside of the interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    forks: u64,
    id: u32,
}

impl Process {
    fn current() -> Self {
        Self {
            forks: FORKS.load(Ordering::Relaxed),
            id: std::process::id(),
        }
    }
}

/// Where an image comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    Path(PathBuf),
    Source(Arc<dyn Source>),
}

/// An image, opened or not.
#[derive(Debug)]
pub(crate) struct Handle {
    origin: Origin,
    options: OpenOptions,
    /// The open file of `Origin::Path`.
    file: OnceLock<Arc<dyn Source>>,
    first: OnceLock<Opened>,
}

/// An image as one process has opened it, and what its children have opened.
#[derive(Debug)]
struct Opened {
    process: Process,
    image: Option<Image>,
    next: OnceLock<Box<Opened>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.process != Process::current() {
            // Dropping it could wait for threads that this process does not have.
            std::mem::forget(self.image.take());
        }
    }
}

impl Handle {
    pub(crate) fn new(origin: Origin, options: OpenOptions) -> Self {
        Self {
            origin,
            options,
            file: OnceLock::new(),
            first: OnceLock::new(),
        }
    }

    /// The image of this process. Must be called without the lock of the interpreter, because opening
    /// may wait for a medium, and for a file of Python.
    pub(crate) fn image(&self) -> Result<&Image> {
        let process = Process::current();
        let Some(mut opened) = self.first.get() else {
            let opened = self.open(process)?;
            // Another thread may have been faster; then its image is used.
            let _ = self.first.set(opened);
            return self.image();
        };
        loop {
            if opened.process == process
                && let Some(image) = &opened.image
            {
                return Ok(image);
            }
            match opened.next.get() {
                Some(next) => opened = next,
                None => {
                    let _ = opened.next.set(Box::new(self.open(process)?));
                }
            }
        }
    }

    fn open(&self, process: Process) -> Result<Opened> {
        let failed = |error| match &self.origin {
            Origin::Path(path) => Error::Open {
                path: path.clone(),
                source: error,
            },
            Origin::Source(_) => Error::Open {
                path: PathBuf::new(),
                source: error,
            },
        };
        let image = redwarfs::reader::Image::from_source(self.source()?, &self.options);
        Ok(Opened {
            process,
            image: Some(image.map_err(failed)?.into()),
            next: OnceLock::new(),
        })
    }

    fn source(&self) -> Result<Arc<dyn Source>> {
        let path = match &self.origin {
            Origin::Source(source) => return Ok(Arc::clone(source)),
            Origin::Path(path) => path,
        };
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        let file = FileSource::open(path).map_err(|e| Error::Open {
            path: path.clone(),
            source: e.into(),
        })?;
        let _ = self.file.set(Arc::new(file));
        self.source()
    }
}
