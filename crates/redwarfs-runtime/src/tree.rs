//! Removing extracted trees.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Removes a tree of this user, also if there are directories in it that the user may not write to.
pub(crate) fn remove_tree(tree: &Path) -> io::Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_directories(tree)?;
            fs::remove_dir_all(tree)
        }
        other => other,
    }
}

/// Lets the user into all directories below one.
fn open_directories(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_directories(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_without_permissions_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let closed = tree.join("closed");
        fs::create_dir_all(closed.join("below")).unwrap();
        fs::write(closed.join("file"), "x").unwrap();
        for directory in [closed.join("below"), closed, tree.clone()] {
            fs::set_permissions(directory, Permissions::from_mode(0o0)).unwrap();
        }
        open_directories(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
