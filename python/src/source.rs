//! Sources of images that Python gives.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};
use redwarfs::Error;
use redwarfs::io::place::{FileLocation, shown_name};
use redwarfs::io::{FileSource, MemorySource, Source};

use crate::error::{exception, into_io, of_system};
use crate::handle::{Origin, Url};
use crate::path::{EntryPath, text};
use crate::raw;

/// Where the image of an argument is: a path or URL, a descriptor, or an object with `size` and
/// `read_at(offset, size)`, which `redwarfs._source` makes of file objects.
pub(crate) fn origin(object: &Bound<'_, PyAny>) -> PyResult<Origin> {
    if object.is_instance_of::<PyInt>() {
        let descriptor: i32 = object.extract()?;
        let file = raw::duplicate(descriptor).map_err(|e| of_system(&e))?;
        let name = format!("descriptor {descriptor}");
        let source = FileSource::of(file, Path::new(&name)).map_err(|e| of_system(&e))?;
        return Ok(Origin::Source(Arc::new(source)));
    }
    let is_path = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.hasattr("__fspath__")?;
    if is_path {
        let path: EntryPath = object.extract()?;
        return Ok(match place(object.py(), path.as_path())? {
            FileLocation::File(path) => Origin::Path(path.into_owned()),
            FileLocation::Remote(text) => Origin::Server(Url {
                text: text.to_owned(),
                shown: shown_name(path.as_path()).into_owned(),
            }),
        });
    }
    if let Ok(memory) = object.getattr("memory") {
        let bytes = memory.cast_into::<PyBytes>()?.as_bytes().to_vec();
        return Ok(Origin::Source(Arc::new(MemorySource::new(bytes))));
    }
    let size: u64 = object.getattr("size")?.extract()?;
    let object = object.clone().unbind();
    Ok(Origin::Source(Arc::new(ObjectSource { object, size })))
}

/// The file of a path or of a `file` URL, or the URL of an object.
fn place<'a>(py: Python<'_>, path: &'a Path) -> PyResult<FileLocation<'a>> {
    FileLocation::of(path).map_err(|e| {
        let path = path.to_owned();
        let source = e.into();
        exception(py, &Error::Open { path, source })
    })
}

/// What names the image of a path or URL in messages: its path, or its URL without secrets; and whether it is on a server.
#[pyfunction]
#[pyo3(name = "_place")]
pub(crate) fn named_place(
    py: Python<'_>,
    path: EntryPath,
) -> PyResult<(Bound<'_, PyString>, bool)> {
    let (name, is_remote) = match place(py, path.as_path())? {
        FileLocation::File(path) => (path, false),
        FileLocation::Remote(_) => (shown_name(path.as_path()), true),
    };
    Ok((text(py, name.as_os_str().as_bytes())?, is_remote))
}

/// A file object of Python that is read by position.
struct ObjectSource {
    object: Py<PyAny>,
    size: u64,
}

impl fmt::Debug for ObjectSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectSource")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Source for ObjectSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = Python::try_attach(|py| {
            let bytes = self
                .object
                .call_method1(py, "read_at", (offset, buf.len()))
                .map_err(into_io)?;
            let bytes = bytes.bind(py);
            let bytes = bytes
                .cast::<PyBytes>()
                .map_err(|_| io::Error::other("the file object does not read bytes"))?;
            let bytes = bytes.as_bytes();
            if bytes.len() != buf.len() {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!(
                        "{} bytes instead of {} at offset {offset} of the file object",
                        bytes.len(),
                        buf.len()
                    ),
                ));
            }
            buf.copy_from_slice(bytes);
            Ok(())
        });
        // Threads of the cache may still run when the interpreter ends.
        read.unwrap_or_else(|| Err(io::Error::other("the interpreter ends")))
    }
}
