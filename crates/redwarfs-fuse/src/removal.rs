//! Removal of directories with all that is in them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Deepest tree that is removed. Each level takes a descriptor.
const DEEPEST: usize = 1 << 10;

/// Removes a directory with all that is in it, whatever the modes of own directories in it are. Follows no symbolic link.
/// Goes on after an error.
///
/// # Errors
/// The first error. Something is left, or directories lie in each other more than 1024 deep.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    Ok(remove_at(CWD, path.as_os_str().as_bytes())?)
}

/// As [`remove_tree`], for a file or directory in an open directory.
pub(crate) fn remove_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    remove(dir, name, DEEPEST)
}

fn remove(dir: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if depth > 0 => {}
        other => return other,
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = openat(dir, name, flags | OFlags::PATH, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", named.as_raw_fd());
    // Fails for a directory of somebody else, which then shows below.
    let _ = rustix::fs::chmod(path, Mode::RWXU);
    let inner = openat(&named, ".", flags, Mode::empty())?;
    drop(named);
    let mut names = Vec::new();
    for entry in Dir::read_from(&inner)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    let mut first = Ok(());
    for name in names {
        first = first.and(remove(inner.as_fd(), &name, depth - 1));
    }
    first.and(unlinkat(dir, name, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn modes_keep_nothing_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        std::fs::write(&kept, "x").unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(tree.join("a/b/file"), "x").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        symlink(dir.path(), tree.join("a/b/up")).unwrap();
        for name in ["a/b", "a", ""] {
            let mode = PermissionsExt::from_mode(0o111);
            std::fs::set_permissions(tree.join(name), mode).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && kept.exists());
    }
}
