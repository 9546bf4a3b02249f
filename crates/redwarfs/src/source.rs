//! Where the bytes of an image come from.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_io::place::{FileLocation, shown_name};
use redwarfs_io::{DiskCache, FileSource, Source};

use crate::error::{Error, Result};

/// Opens the file that an image is in, or the object of a server: whatever [`Image::open`](crate::Image::open) takes. This is
/// for programs that open the image in it later, or several times.
///
/// What opening an object needs is kept in `cache`. Once another thread sets `stop`, opening and reads do not wait for a server.
///
/// ```
/// # let work = tempfile::tempdir()?;
/// # std::fs::write(work.path().join("note"), "x")?;
/// # let path = work.path().join("image");
/// # redwarfs::Builder::new(work.path()).level(1).write_to(&path)?;
/// let source = redwarfs::open_source(&path, None, None)?;
/// let image = redwarfs::Image::from_source(source, &Default::default())?;
/// assert_eq!(image.metadata("note")?.size, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Open`] if the file or object cannot be read, or `stop` is set while it waits for a server.
pub fn open_source(
    path: impl AsRef<Path>,
    cache: Option<&DiskCache>,
    stop: Option<Arc<AtomicBool>>,
) -> Result<Arc<dyn Source>> {
    let path = path.as_ref();
    open(path, cache, stop).map_err(|e| Error::Open {
        path: shown_name(path).into_owned(),
        source: e.into(),
    })
}

fn open(
    path: &Path,
    cache: Option<&DiskCache>,
    stop: Option<Arc<AtomicBool>>,
) -> std::io::Result<Arc<dyn Source>> {
    #[cfg(not(feature = "remote"))]
    let _ = (cache, stop);
    match FileLocation::of(path)? {
        FileLocation::File(path) => Ok(Arc::new(FileSource::open(path)?)),
        #[cfg(feature = "remote")]
        FileLocation::Remote(url) => {
            use redwarfs_remote::{Limits, RemoteSource};
            let source = RemoteSource::open_until(url, Limits::default(), cache, stop)?;
            Ok(Arc::new(source))
        }
        #[cfg(not(feature = "remote"))]
        FileLocation::Remote(_) => Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "unsupported: this program was built without the feature 'remote'",
        )),
    }
}
