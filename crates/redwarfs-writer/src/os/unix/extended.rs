//! Extended attributes of entries.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs;
use rustix::io::Errno;

use super::{Dir, DirRef};
use crate::os::PATH_STEP;
use crate::source::extended::ExtendedAttributes;

/// Attributes that the system gives to every file. Their loss does not count.
const GIVEN: [&[u8]; 5] = [
    b"security.selinux",
    b"security.SMACK64",
    b"system.nfs4_acl",
    b"system.cifs_acl",
    b"system.ntfs_security",
];

/// Enough for nearly all lists of names.
const USUAL: usize = 1024;
/// The longest list that the kernel returns.
const LONGEST: usize = 1 << 16;

/// From a list of names that end in NUL.
fn of_names(names: &[u8]) -> ExtendedAttributes {
    let mut found = ExtendedAttributes::default();
    for name in names.split(|&b| b == 0) {
        if name.is_empty() || GIVEN.contains(&name) {
            continue;
        }
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" => found.acl = true,
            b"security.capability" => found.capability = true,
            _ => found.other = true,
        }
    }
    found
}

/// The entry whose attributes are listed.
enum Of<'a> {
    /// An open file or directory.
    Open(DirRef<'a>),
    /// The entry at a path.
    Followed(&'a [u8]),
    /// The entry at a path, without following a symlink.
    Itself(&'a [u8]),
}

/// The attributes, or none if the file system has none, or they cannot be read.
fn list(of: &Of<'_>) -> Option<ExtendedAttributes> {
    let ask = |names: &mut [u8]| match of {
        Of::Open(fd) => fs::flistxattr(fd, names),
        Of::Followed(path) => fs::listxattr(as_path(path), names),
        Of::Itself(path) => fs::llistxattr(as_path(path), names),
    };
    let mut usual = [0; USUAL];
    let mut many = Vec::new();
    let names = match ask(&mut usual) {
        Ok(length) => usual.get(..length),
        Err(Errno::RANGE) => {
            many.resize(LONGEST, 0);
            match ask(&mut many) {
                Ok(length) => many.get(..length),
                Err(_) => None,
            }
        }
        Err(Errno::OPNOTSUPP) => return None,
        Err(_) => None,
    };
    Some(names.map_or(ExtendedAttributes::default(), of_names))
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// The attributes of an open directory; none if its file system has none.
pub(crate) fn extended_of(dir: &Dir) -> Option<ExtendedAttributes> {
    list(&Of::Open(dir.as_fd()))
}

/// The attributes of an entry, of its target with `follow`; none if its file system has none.
///
/// They are only counted, so it does no harm if a directory has become a symlink.
pub(crate) fn extended_at(
    root: &Path,
    dir: DirRef<'_>,
    path: &[u8],
    name: &[u8],
    follow: bool,
) -> Option<ExtendedAttributes> {
    let mut whole = root.as_os_str().as_bytes().to_vec();
    if whole.len() + path.len() + name.len() < PATH_STEP {
        // For a path of ordinary length, this takes half the time of opening in steps.
        for part in [path, name] {
            if !part.is_empty() {
                whole.push(b'/');
                whole.extend_from_slice(part);
            }
        }
    } else {
        whole = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        whole.extend_from_slice(name);
    }
    list(&match follow {
        true => Of::Followed(&whole),
        false => Of::Itself(&whole),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_into_kinds() {
        let of = |names: &str| of_names(names.as_bytes());
        assert!(!of("").any());
        assert!(!of("security.selinux\0system.nfs4_acl\0").any());
        let acl = of("system.posix_acl_default\0security.selinux\0");
        assert!(acl.any() && acl.acl && !acl.capability && !acl.other);
        let both = of("user.a\0security.capability\0");
        assert!(both.any() && !both.acl && both.capability && both.other);
    }
}
