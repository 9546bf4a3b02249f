//! The attributes by which overlayfs marks files and directories of `upper`.

use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::layer::{Layer, path_of};
use crate::xattr;

/// What the attributes of overlayfs begin with.
const ALL: [&str; 2] = ["trusted.overlay.", "user.overlay."];
/// Room for the names of the attributes of almost every file.
const FEW: usize = 512;

/// Whether an extended attribute is one of overlayfs.
pub(super) fn is_mark(name: &[u8]) -> bool {
    mark_of(name).is_some()
}

/// The mark that an attribute is.
fn mark_of(name: &[u8]) -> Option<&[u8]> {
    ALL.iter()
        .find_map(|marks| name.strip_prefix(marks.as_bytes()))
}

/// Which marks a file or directory has that change what it shows.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) whiteout: bool,
    /// One that the driver does not know how to show: data or names are elsewhere.
    pub(super) foreign: Option<&'static str>,
}

impl Marks {
    /// The names of attributes can be read whatever the mode is.
    pub(super) fn of(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let path = path_of(file);
        let mut few = [0; FEW];
        match rustix::fs::listxattr(&*path, &mut few) {
            Ok(length) => Ok(Self::among(few.get(..length).unwrap_or_default())),
            Err(Errno::OPNOTSUPP) => Ok(Self::default()),
            Err(Errno::RANGE) => {
                let mut all = vec![0; xattr::LARGEST];
                let length = rustix::fs::listxattr(&*path, all.as_mut_slice())?;
                Ok(Self::among(all.get(..length).unwrap_or_default()))
            }
            Err(error) => Err(error),
        }
    }

    fn among(names: &[u8]) -> Self {
        let mut found = Self::default();
        for mark in names.split(|&byte| byte == 0).filter_map(mark_of) {
            match mark {
                b"whiteout" => found.whiteout = true,
                b"metacopy" => found.foreign = Some("overlay.metacopy"),
                b"redirect" => found.foreign = found.foreign.or(Some("overlay.redirect")),
                _ => {}
            }
        }
        found
    }
}

impl Layer {
    /// The value of a mark, of which the first byte counts.
    pub(super) fn mark(&self, of: BorrowedFd<'_>, mark: &str) -> Result<Option<u8>, Errno> {
        let path = path_of(of);
        for marks in ALL {
            let name = format!("{marks}{mark}");
            let value = self.modes.lend(&[of], || {
                let mut value = [0; 16];
                match rustix::fs::getxattr(&*path, &*name, &mut value) {
                    // It may have an empty value.
                    Ok(_) | Err(Errno::RANGE) => Ok(Some(value[0])),
                    Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
                    Err(error) => Err(error),
                }
            })?;
            if value.is_some() {
                return Ok(value);
            }
        }
        Ok(None)
    }

    pub(super) fn set_mark(
        &self,
        of: BorrowedFd<'_>,
        mark: &str,
        value: &[u8],
    ) -> Result<(), Errno> {
        let (path, name) = (path_of(of), format!("{}{mark}", self.marks));
        self.modes.lend(&[of], || {
            rustix::fs::setxattr(&*path, &*name, value, XattrFlags::empty())
        })
    }

    /// Whether a directory of `upper` shows nothing of the lower tree.
    pub(super) fn is_opaque(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.mark(dir, "opaque")? == Some(b'y'))
    }

    /// Whether a directory of `upper` may have whiteouts that are files.
    pub(super) fn has_file_whiteouts(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.mark(dir, "opaque")? == Some(b'x'))
    }

    /// Lets a directory show nothing of the lower tree.
    pub(super) fn make_opaque(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        self.set_mark(dir, "opaque", b"y")
    }
}
