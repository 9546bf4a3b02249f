//! Errors of the library as exceptions of Python.

use std::io;

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use redwarfs::io::place::is_remote;
use redwarfs::{Error, ErrorKind};

use crate::path::text;

/// The exception for an error. Most are classes of the package below `OSError`; errors of the system,
/// and wrong paths, are the usual subclasses of `OSError`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    match try_exception(py, error) {
        Ok(exception) | Err(exception) => exception,
    }
}

fn try_exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    use std::os::unix::ffi::OsStrExt;
    let class = match error.kind() {
        ErrorKind::NotAnImage => "NotAnImageError",
        ErrorKind::Corrupt => "CorruptImageError",
        ErrorKind::Unverified => "UnverifiedError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Limit => "LimitError",
        ErrorKind::Option => "OptionError",
        ErrorKind::Build => "BuildError",
        ErrorKind::Extract => "ExtractError",
        _ => "",
    };
    let class = match class {
        "" => py.get_type::<PyOSError>(),
        name => errors(py)?.getattr(name)?.cast_into::<PyType>()?,
    };
    let exception = match error.path() {
        Some(path) => {
            let path = text(py, path.as_os_str().as_bytes())?;
            class.call1((error.errno(), words(py, error)?, path))?
        }
        None => class.call1((error.errno(), error.to_string()))?,
    };
    Ok(PyErr::from_value(exception))
}

/// The message beside the path: that of the system where the system says all.
fn words(py: Python<'_>, error: &Error) -> PyResult<String> {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    if let Error::Open {
        source: redwarfs::FormatError::Io(e),
        path,
    } = error
        && !is_remote(path)
        && matches!(e.kind(), NotFound | PermissionDenied | IsADirectory)
    {
        let os = py.import("os")?;
        return os.call_method1("strerror", (error.errno(),))?.extract();
    }
    Ok(error.cause())
}

/// The module with the exceptions of the package.
fn errors(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ERRORS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = ERRORS.get_or_try_init(py, || {
        PyResult::Ok(py.import("redwarfs._errors")?.into_any().unbind())
    })?;
    Ok(module.bind(py))
}

/// The exception for an error of the system. The number is that of the system, if it gave one.
pub(crate) fn of_system(error: &io::Error) -> PyErr {
    let known = Error::Output(io::Error::from(error.kind()));
    let number = error.raw_os_error().unwrap_or_else(|| known.errno());
    PyOSError::new_err((number, error.to_string()))
}

/// An operation that must not fail for a reason that callers can cause.
pub(crate) fn internal(what: &str) -> PyErr {
    PyRuntimeError::new_err(what.to_owned())
}

/// The error of a call of Python, for the library.
pub(crate) fn into_io(error: PyErr) -> io::Error {
    Python::try_attach(|py| {
        let number = error.value(py).getattr("errno").ok();
        let number = number.and_then(|number| number.extract::<i32>().ok());
        let kind = number.map(|number| io::Error::from_raw_os_error(number).kind());
        io::Error::new(kind.unwrap_or(io::ErrorKind::Other), error.to_string())
    })
    .unwrap_or_else(|| io::Error::other("the interpreter ends"))
}
