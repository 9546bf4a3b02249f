//! Extended attributes of entries. Images do not hold them, so they are only counted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs;
use rustix::io::Errno;

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

/// Kinds of extended attributes that an entry has. Attributes that a security policy or a network file
/// system gives to every file do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedAttributes {
    /// Access control lists, also those for new entries of a directory.
    pub acl: bool,
    /// File capabilities.
    pub capability: bool,
    /// Other attributes.
    pub other: bool,
}

impl ExtendedAttributes {
    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self.acl || self.capability || self.other
    }

    /// From a list of names that end in NUL.
    fn of_names(names: &[u8]) -> Self {
        let mut found = Self::default();
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
}

/// The entry whose attributes are listed.
pub(super) enum Of<'a> {
    /// An open file or directory.
    Open(rustix::fd::BorrowedFd<'a>),
    /// The entry at a path.
    Followed(&'a [u8]),
    /// The entry at a path, without following a symlink.
    Itself(&'a [u8]),
}

/// The attributes, or none if the file system has none, or they cannot be read.
pub(super) fn list(of: &Of<'_>) -> Option<ExtendedAttributes> {
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
    Some(names.map_or(ExtendedAttributes::default(), ExtendedAttributes::of_names))
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_into_kinds() {
        let of = |names: &str| ExtendedAttributes::of_names(names.as_bytes());
        assert!(!of("").any());
        assert!(!of("security.selinux\0system.nfs4_acl\0").any());
        let acl = of("system.posix_acl_default\0security.selinux\0");
        assert!(acl.any() && acl.acl && !acl.capability && !acl.other);
        let both = of("user.a\0security.capability\0");
        assert!(both.any() && !both.acl && both.capability && both.other);
    }
}
