//! Manifests of directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::{Entry, Manifest, device, hash, is_device, nanoseconds};

impl Manifest {
    /// What a directory shows: a mount point, an extracted tree or a source tree.
    pub fn from_directory(root: &Path, content: bool) -> std::io::Result<Self> {
        let mut map = BTreeMap::new();
        map.insert(b".".to_vec(), disk_entry(root, content)?);
        let mut todo = vec![Vec::new()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(root.join(OsStr::from_bytes(&dir)))? {
                let mut path = dir.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend(entry?.file_name().into_vec());
                let on_disk = disk_entry(&root.join(OsStr::from_bytes(&path)), content)?;
                if on_disk.is_dir() {
                    todo.push(path.clone());
                }
                map.insert(path, on_disk);
            }
        }
        Ok(Manifest(map))
    }
}

fn disk_entry(path: &Path, content: bool) -> std::io::Result<Entry> {
    let meta = std::fs::symlink_metadata(path)?;
    let sha256 = if meta.is_file() && content {
        let file = File::open(path)?;
        Some(hash(meta.size(), |at, buf| file.read_at(buf, at))?)
    } else {
        None
    };
    Ok(Entry {
        mode: meta.mode(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        blocks: meta.blocks(),
        nlink: meta.nlink(),
        ino: meta.ino(),
        mtime_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
        atime_ns: nanoseconds(meta.atime(), meta.atime_nsec()),
        ctime_ns: nanoseconds(meta.ctime(), meta.ctime_nsec()),
        target: if meta.file_type().is_symlink() {
            Some(std::fs::read_link(path)?.into_os_string().into_vec())
        } else {
            None
        },
        rdev: is_device(meta.mode()).then(|| device(meta.rdev())),
        sha256,
    })
}
