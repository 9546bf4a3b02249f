//! Paths in an image: bytes for the library, text for Python as `os.fsdecode` makes it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// A path that a caller gives: `str`, `bytes`, or an object with `__fspath__`.
#[derive(Debug, Clone)]
pub(crate) struct EntryPath(OsString);

impl EntryPath {
    pub(crate) fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl<'py> FromPyObject<'_, 'py> for EntryPath {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Self(object.extract::<OsString>()?));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(OsString::from_vec(bytes.as_bytes().to_vec())));
        }
        let os = object.py().import("os")?;
        let bytes = os.call_method1("fsencode", (object,))?;
        let bytes = bytes.cast_into::<PyBytes>()?;
        Ok(Self(OsString::from_vec(bytes.as_bytes().to_vec())))
    }
}

/// The text of a name or path of an image.
pub(crate) fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => Ok(OsStr::from_bytes(bytes).into_pyobject(py)?),
    }
}
