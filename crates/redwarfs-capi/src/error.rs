//! Codes and error objects.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::io;

use redwarfs::{ErrorKind, FormatError};

use crate::border::guarded;

/// The result of a function. Later versions may add codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// Success.
    RedwarfsOk = 0,
    /// The system, a medium or a callback failed; `redwarfs_error_errno` says how.
    RedwarfsErrorIo = 1,
    /// The input holds no image.
    RedwarfsErrorNotAnImage = 2,
    /// The image contradicts itself or its checksums.
    RedwarfsErrorCorrupt = 3,
    /// The image needs a version, feature or codec that this library does not have.
    RedwarfsErrorUnsupported = 4,
    /// More is asked for than a limit allows.
    RedwarfsErrorLimit = 5,
    /// The image has no such entry.
    RedwarfsErrorNotFound = 6,
    /// The function needs a directory.
    RedwarfsErrorNotADirectory = 7,
    /// The function does not work with a directory.
    RedwarfsErrorIsADirectory = 8,
    /// The entry has another wrong type.
    RedwarfsErrorWrongType = 9,
    /// A path leads through too many symbolic links.
    RedwarfsErrorLinks = 10,
    /// An option or its value is invalid.
    RedwarfsErrorOption = 11,
    /// An entry of the input cannot be stored unchanged, or the build failed for another reason.
    RedwarfsErrorBuild = 12,
    /// A callback ended the build.
    RedwarfsErrorInterrupted = 13,
    /// An argument is wrong: a null pointer, an unknown flag, a struct that is too small.
    RedwarfsErrorArgument = 14,
    /// The buffer is too small for the result.
    RedwarfsErrorRange = 15,
    /// A bug of the library. The object that the function was called with can only be freed.
    RedwarfsErrorInternal = 16,
    /// The image does not prove what the options ask for: it is not signed by the key, for example.
    RedwarfsErrorUnverified = 17,
}

/// What went wrong: a code, a number of `errno.h`, and a message.
#[derive(Debug)]
pub struct Error {
    code: Code,
    errno: i32,
    message: CString,
}

/// An error that is not reported yet.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    errno: i32,
    message: String,
}

const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ERANGE: i32 = 34;

impl Failure {
    /// A bug of the library.
    pub(crate) fn internal(text: &str) -> Self {
        Self {
            code: Code::RedwarfsErrorInternal,
            errno: EIO,
            message: format!("internal error: {text}"),
        }
    }

    /// The buffer of the caller is too small.
    pub(crate) fn range(needed: usize) -> Self {
        Self {
            code: Code::RedwarfsErrorRange,
            errno: ERANGE,
            message: format!("the buffer needs {needed} bytes"),
        }
    }

    /// Whether an argument of the function was wrong.
    pub(crate) fn is_argument(&self) -> bool {
        self.code == Code::RedwarfsErrorArgument
    }

    /// Stores an error object if the caller wants one; returns the code.
    pub(crate) fn report(self, place: Option<&mut *mut Error>) -> Code {
        if let Some(place) = place {
            // Messages have no NUL; paths in them are shown with escapes.
            let message = CString::new(self.message).unwrap_or_default();
            *place = Box::into_raw(Box::new(Error {
                code: self.code,
                errno: self.errno,
                message,
            }));
        }
        self.code
    }
}

/// A wrong argument of a function.
pub(crate) fn argument(what: &'static str) -> Failure {
    Failure {
        code: Code::RedwarfsErrorArgument,
        errno: EINVAL,
        message: format!("invalid argument: {what}"),
    }
}

impl From<redwarfs::Error> for Failure {
    fn from(error: redwarfs::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotAnImage => Code::RedwarfsErrorNotAnImage,
            ErrorKind::Corrupt => Code::RedwarfsErrorCorrupt,
            ErrorKind::Unverified => Code::RedwarfsErrorUnverified,
            ErrorKind::Unsupported => Code::RedwarfsErrorUnsupported,
            ErrorKind::Limit => Code::RedwarfsErrorLimit,
            ErrorKind::NotFound => Code::RedwarfsErrorNotFound,
            ErrorKind::NotADirectory => Code::RedwarfsErrorNotADirectory,
            ErrorKind::IsADirectory => Code::RedwarfsErrorIsADirectory,
            ErrorKind::WrongType => Code::RedwarfsErrorWrongType,
            ErrorKind::Links => Code::RedwarfsErrorLinks,
            ErrorKind::Option => Code::RedwarfsErrorOption,
            ErrorKind::Build => Code::RedwarfsErrorBuild,
            ErrorKind::Interrupted => Code::RedwarfsErrorInterrupted,
            _ => Code::RedwarfsErrorIo,
        };
        Self {
            code,
            errno: error.errno(),
            message: error.to_string(),
        }
    }
}

impl From<FormatError> for Failure {
    /// An error of an operation on an inode.
    fn from(source: FormatError) -> Self {
        let wrong_type =
            matches!(&source, FormatError::Io(e) if e.kind() == io::ErrorKind::InvalidInput);
        let message = source.to_string();
        let mut failure = Self::from(redwarfs::Error::Read {
            path: std::path::PathBuf::new(),
            source,
        });
        if wrong_type {
            failure.code = Code::RedwarfsErrorWrongType;
        }
        Self { message, ..failure }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let message = error.to_string();
        let failure = Self::from(redwarfs::Error::Output(error));
        Self { message, ..failure }
    }
}

/// The code of an error, as the function returned it. Null gives `REDWARFS_OK`.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_error_code(error: Option<&Error>) -> Code {
    error.map_or(Code::RedwarfsOk, |error| error.code)
}

/// The number of an error as in `errno.h`. Null gives 0.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_error_errno(error: Option<&Error>) -> i32 {
    error.map_or(0, |error| error.errno)
}

/// The message of an error: one line, without a full stop. It is valid until the error is freed. Null
/// gives an empty text.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_error_message(error: Option<&Error>) -> *const c_char {
    error.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_error_free(error: Option<Box<Error>>) {
    guarded((), || drop(error));
}
