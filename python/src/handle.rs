//! An image that is opened when it is first used, and once more in each process that a fork makes.
//!
//! After a fork, the child has the memory of the parent but not its threads. A lock may be held by a
//! thread that is gone, and the threads of the block cache and those that talk to servers are gone. So the
//! child opens the image anew, and never touches or frees the state of the parent. It takes the same
//! descriptor: descriptors are only read by position, so processes can share them. An object of a server is
//! opened by its URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use redwarfs::io::process::{self, Process};
use redwarfs::io::{DiskCache, Source};
use redwarfs::{Error, Image, OpenOptions, Result, open_source};

use crate::error::exception;
use crate::run::Watch;

/// Is called in the child after each fork of the interpreter. A process id alone could repeat.
#[pyfunction]
#[pyo3(name = "_forked")]
pub(crate) fn forked() {
    process::forked();
}

/// Where an image comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    Path(PathBuf),
    Server(Url),
    Source(Arc<dyn Source>),
}

/// The URL of an object.
#[derive(Clone)]
pub(crate) struct Url {
    /// It may have secrets.
    pub(crate) text: String,
    /// The URL for messages.
    pub(crate) shown: PathBuf,
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.fmt(f)
    }
}

/// A cache on disk.
#[derive(Debug, Clone)]
pub(crate) struct CacheChoice {
    pub(crate) directory: PathBuf,
    pub(crate) limit: u64,
    pub(crate) offline: bool,
}

/// How an image is opened.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    pub(crate) options: OpenOptions,
    /// The cache has a thread, so each process opens its own one.
    pub(crate) cache: Option<CacheChoice>,
}

impl Choices {
    /// Opens the image in `source`, which has a name unless that is empty.
    fn open(
        &self,
        source: Arc<dyn Source>,
        name: &Path,
        cache: Option<DiskCache>,
    ) -> Result<Image> {
        let mut options = self.options.clone();
        options.disk_cache = cache;
        let image = redwarfs::reader::Image::from_source(source, &options);
        image.map(Image::from).map_err(|source| Error::Open {
            path: name.to_owned(),
            source,
        })
    }

    fn cache(&self) -> Result<Option<DiskCache>> {
        let Some(choice) = &self.cache else {
            return Ok(None);
        };
        match DiskCache::open(&choice.directory, choice.limit) {
            Ok(cache) => Ok(Some(cache.offline(choice.offline))),
            Err(e) => Err(Error::Open {
                path: choice.directory.clone(),
                source: e.into(),
            }),
        }
    }
}

/// An image, opened or not.
#[derive(Debug)]
pub(crate) struct Handle {
    origin: Origin,
    choices: Choices,
    /// The open file of `Origin::Path`.
    file: OnceLock<Arc<dyn Source>>,
    first: OnceLock<Box<Opened>>,
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
        let mut image = self.image.take();
        if !self.process.is_current() {
            // Dropping it could wait for threads that this process does not have.
            std::mem::forget(image);
            return;
        }
        if let Some(image) = &image {
            // Threads may wait for the server.
            image.reader().source().abandon();
        }
        // The cache on disk waits until everything is written.
        Python::try_attach(|py| py.detach(|| drop(image.take())));
    }
}

impl Handle {
    pub(crate) fn new(origin: Origin, choices: Choices) -> Self {
        Self {
            origin,
            choices,
            file: OnceLock::new(),
            first: OnceLock::new(),
        }
    }

    /// How it is opened.
    pub(crate) fn options(&self) -> &OpenOptions {
        &self.choices.options
    }

    /// The image of this process. If it must be opened, other threads of the interpreter run meanwhile, because
    /// that may wait for a medium, and for a file of Python. A signal ends waiting for a server.
    ///
    /// # Errors
    /// The exception of opening, or that of a signal.
    pub(crate) fn image(&self, py: Python<'_>) -> PyResult<&Image> {
        let mut place = &self.first;
        loop {
            let Some(opened) = place.get() else {
                let opened = Box::new(Opened {
                    process: Process::current(),
                    image: Some(self.open(py)?),
                    next: OnceLock::new(),
                });
                // Another thread may have been faster. Then its image is used.
                let _ = place.set(opened);
                continue;
            };
            match &opened.image {
                Some(image) if opened.process.is_current() => return Ok(image),
                _ => place = &opened.next,
            }
        }
    }

    fn open(&self, py: Python<'_>) -> PyResult<Image> {
        let choices = &self.choices;
        let opened = match &self.origin {
            Origin::Server(url) => open_object(py, url.clone(), choices.clone())?,
            Origin::Path(path) => py.detach(|| {
                let source = self.file(path)?;
                choices.open(source, path, choices.cache()?)
            }),
            Origin::Source(source) => py.detach(|| {
                let cache = choices.cache()?;
                choices.open(Arc::clone(source), Path::new(""), cache)
            }),
        };
        opened.map_err(|e| exception(py, &e))
    }

    fn file(&self, path: &Path) -> Result<Arc<dyn Source>> {
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        let file = open_source(path, None, None)?;
        let _ = self.file.set(Arc::clone(&file));
        Ok(self.file.get().map_or(file, Arc::clone))
    }
}

/// Opens the image of an object. A signal ends that.
fn open_object(py: Python<'_>, url: Url, choices: Choices) -> PyResult<Result<Image>> {
    let watch = Watch::new();
    let stop = watch.stop();
    watch.run(py, None, move || {
        let cache = choices.cache()?;
        let source = open_source(&url.text, cache.as_ref(), Some(stop))?;
        choices.open(source, &url.shown, cache)
    })
}
