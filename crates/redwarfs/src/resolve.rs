//! From a path in an image to an inode.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::FileType;

use crate::error::{DIRECTORY, Error, Result};

/// Symbolic links that one path may lead through: as many as Linux follows.
const MAX_LINKS: u32 = 40;

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    /// Go to its target.
    Follow,
    /// The link is the result.
    Keep,
}

/// The inode at `path`. Links lead nowhere outside the image.
pub(crate) fn resolve(
    image: &redwarfs_reader::Image,
    path: &Path,
    last: LastLink,
) -> Result<InodeNo> {
    let fail = || Error::read(path);
    let mut at = image.root();
    let mut links = 0;
    // Names to go through, the next one at the end.
    let mut names: Vec<Vec<u8>> = Vec::new();
    push(&mut names, path.as_os_str().as_bytes());
    while let Some(name) = names.pop() {
        let found = image.metadata().file_type(at).map_err(fail())?;
        if found != FileType::Directory {
            return Err(Error::WrongType {
                path: path.to_owned(),
                wanted: DIRECTORY,
                found,
            });
        }
        if name == b".." {
            at = image.metadata().parent(at).map_err(fail())?;
            continue;
        }
        let Some(child) = image.lookup(at, &name).map_err(fail())? else {
            return Err(Error::NotFound(path.to_owned()));
        };
        let is_link = image.metadata().file_type(child).map_err(fail())? == FileType::Symlink;
        if !is_link || (names.is_empty() && last == LastLink::Keep) {
            at = child;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Error::TooManyLinks(path.to_owned()));
        }
        let target = image.read_link(child).map_err(fail())?;
        if target.starts_with(b"/") {
            at = image.root();
        }
        push(&mut names, &target);
    }
    Ok(at)
}

/// Puts the names of a path before the remaining names.
fn push(names: &mut Vec<Vec<u8>>, path: &[u8]) {
    let parts = path.split(|&byte| byte == b'/').rev();
    names.extend(
        parts
            .filter(|name| !name.is_empty() && *name != b".")
            .map(<[u8]>::to_vec),
    );
}
