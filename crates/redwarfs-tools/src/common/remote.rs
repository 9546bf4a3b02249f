//! Images on servers, if this program was built with the feature `remote`.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;

use redwarfs_io::place::{FileLocation, is_remote};
use redwarfs_io::{DiskCache, Source};

use super::error::{Result, ToolError, io_cause};

/// Opens the object of a URL, with a cache on disk. A request to stop ends waiting for the server.
///
/// # Errors
/// As [`RemoteSource::open_until`](redwarfs_remote::RemoteSource::open_until). The text begins with the URL as messages show it.
#[cfg(feature = "remote")]
pub fn open(url: &str, cache: Option<&DiskCache>) -> io::Result<Arc<dyn Source>> {
    use redwarfs_remote::{Limits, RemoteSource};
    let stop = super::os::stop_request();
    let source = RemoteSource::open_until(url, Limits::default(), cache, Some(stop))?;
    Ok(Arc::new(source))
}

/// Opens nothing.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`], always.
#[cfg(not(feature = "remote"))]
pub fn open(_url: &str, _cache: Option<&DiskCache>) -> io::Result<Arc<dyn Source>> {
    Err(unsupported())
}

/// The objects of a directory of an object store: names and URLs.
///
/// # Errors
/// As [`list`](redwarfs_remote::list). The text begins with the URL as messages show it.
#[cfg(feature = "remote")]
pub fn list(directory: &str) -> io::Result<Vec<(String, String)>> {
    let listed = redwarfs_remote::list(directory, redwarfs_remote::Limits::default())?;
    Ok(listed.into_iter().map(|one| (one.name, one.url)).collect())
}

/// Lists nothing.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`], always.
#[cfg(not(feature = "remote"))]
pub fn list(_directory: &str) -> io::Result<Vec<(String, String)>> {
    Err(unsupported())
}

/// The error of a program without the feature.
#[cfg(not(feature = "remote"))]
pub(crate) fn unsupported() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "unsupported: this program was built without the feature 'remote'",
    )
}

/// Refuses an image on a server, for what needs a file: `what` cannot be done.
///
/// # Errors
/// The image is on a server.
pub fn refuse(what: &str, image: &Path) -> Result<()> {
    if !is_remote(image) {
        return Ok(());
    }
    Err(ToolError::new(what)
        .path(image)
        .cause("the image is on a server")
        .hint("copy it to a file first"))
}

/// The path of an image, which may be a `file` URL, for what needs a file: `what` cannot be done.
///
/// # Errors
/// The image is on a server; the URL has no path.
pub fn local<'a>(what: &str, image: &'a Path) -> Result<Cow<'a, Path>> {
    refuse(what, image)?;
    match FileLocation::of(image) {
        Ok(FileLocation::File(path)) => Ok(path),
        Ok(FileLocation::Remote(_)) => Ok(image.into()),
        Err(e) => Err(ToolError::new(what).cause(io_cause(&e))),
    }
}
