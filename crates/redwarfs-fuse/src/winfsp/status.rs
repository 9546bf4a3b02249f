//! The codes with which Windows' native interface reports results.

use std::fmt;

use redwarfs_format::Error;

/// An `NTSTATUS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub(super) i32);

/// The numbers of the documentation have 32 bits without a sign.
const fn code(number: u32) -> Status {
    Status(number.cast_signed())
}

impl Status {
    pub(super) const SUCCESS: Self = code(0);
    /// A name has a reparse point before its last component.
    pub(super) const REPARSE: Self = code(0x0000_0104);
    pub(super) const BUFFER_OVERFLOW: Self = code(0x8000_0005);
    pub(super) const INVALID_HANDLE: Self = code(0xc000_0008);
    pub(super) const NO_SUCH_DEVICE: Self = code(0xc000_000e);
    pub(super) const INVALID_DEVICE_REQUEST: Self = code(0xc000_0010);
    pub(super) const END_OF_FILE: Self = code(0xc000_0011);
    pub(super) const ACCESS_DENIED: Self = code(0xc000_0022);
    pub(super) const BUFFER_TOO_SMALL: Self = code(0xc000_0023);
    pub(super) const OBJECT_NAME_INVALID: Self = code(0xc000_0033);
    pub(super) const OBJECT_NAME_NOT_FOUND: Self = code(0xc000_0034);
    pub(super) const OBJECT_NAME_COLLISION: Self = code(0xc000_0035);
    pub(super) const OBJECT_PATH_NOT_FOUND: Self = code(0xc000_003a);
    /// The text of this code is about checksums.
    pub(super) const DATA_ERROR: Self = code(0xc000_003e);
    pub(super) const INSUFFICIENT_RESOURCES: Self = code(0xc000_009a);
    pub(super) const MEDIA_WRITE_PROTECTED: Self = code(0xc000_00a2);
    pub(super) const NOT_SUPPORTED: Self = code(0xc000_00bb);
    pub(super) const INTERNAL_ERROR: Self = code(0xc000_00e5);
    pub(super) const NOT_A_DIRECTORY: Self = code(0xc000_0103);
    pub(super) const IO_DEVICE_ERROR: Self = code(0xc000_0185);
    pub(super) const NOT_A_REPARSE_POINT: Self = code(0xc000_0275);
    pub(super) const IO_REPARSE_DATA_INVALID: Self = code(0xc000_0278);

    /// `Ok` for success, and for codes that only inform.
    pub(super) fn check(self) -> Result<(), Self> {
        match self.0 {
            0.. => Ok(()),
            _ => Err(self),
        }
    }

    /// The code for an image that cannot be read.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::NotAnImage(_) | Error::Corrupt { .. } => Self::DATA_ERROR,
            Error::Unsupported(_) => Self::NOT_SUPPORTED,
            Error::Limit(_) => Self::INSUFFICIENT_RESOURCES,
            // And kinds that this crate does not know.
            _ => Self::IO_DEVICE_ERROR,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::OBJECT_NAME_COLLISION => "it is in use already",
            Self::OBJECT_NAME_NOT_FOUND | Self::OBJECT_PATH_NOT_FOUND => "no such path",
            Self::OBJECT_NAME_INVALID => "it is no path of a mount point",
            Self::ACCESS_DENIED => "access denied",
            Self::NO_SUCH_DEVICE => "the driver of WinFsp does not run",
            _ => return write!(f, "NTSTATUS {:#010x}", self.0),
        };
        write!(f, "{text} (NTSTATUS {:#010x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_errors() {
        let corrupt = Error::corrupt("x");
        assert_eq!(Status::of(&corrupt), Status::DATA_ERROR);
        let io = Error::Io(std::io::Error::other("x"));
        assert_eq!(Status::of(&io), Status::IO_DEVICE_ERROR);
        assert_eq!(
            Status::of(&Error::Limit("x".into())),
            Status::INSUFFICIENT_RESOURCES
        );
        assert_eq!(
            Status::of(&Error::Unsupported("x".into())),
            Status::NOT_SUPPORTED
        );
    }

    #[test]
    fn errors_are_negative() {
        for good in [Status::SUCCESS, Status::REPARSE] {
            assert_eq!(good.check(), Ok(()));
        }
        for bad in [Status::BUFFER_OVERFLOW, Status::END_OF_FILE] {
            assert_eq!(bad.check(), Err(bad));
        }
        assert_eq!(Status::END_OF_FILE.to_string(), "NTSTATUS 0xc0000011");
        let taken = Status::OBJECT_NAME_COLLISION.to_string();
        assert_eq!(taken, "it is in use already (NTSTATUS 0xc0000035)");
    }
}
