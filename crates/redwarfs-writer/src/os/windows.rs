//! Entries, files and threads on Windows.
//!
//! There are no calls relative to an open directory, so a directory is a path in the verbatim form
//! (`\\?\`), in which Windows changes no names and allows more than 260 characters.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use redwarfs_windows::file::{self, Access, Info};
use redwarfs_windows::name;

pub(crate) use redwarfs_windows::process::{lower_priority, physical_memory, thread_cpu_ns};
pub(crate) use std::os::windows::io::AsHandle as AsFile;

use super::{EntryLocation, Found, Wanted};
use crate::source::extended::ExtendedAttributes;
use crate::source::{Content, FileType, Meta, Stamp, Timestamp};

/// Endings of names of programs, in lower case.
const PROGRAMS: [&str; 4] = ["bat", "cmd", "com", "exe"];

/// A directory.
#[derive(Debug)]
pub(crate) struct Dir(PathBuf);

/// A borrowed [`Dir`].
pub(crate) type DirRef<'a> = &'a Dir;

/// Borrows a directory.
pub(crate) fn dir_ref(dir: &Dir) -> DirRef<'_> {
    dir
}

impl Dir {
    /// The path of an entry below this directory.
    fn join(&self, path: &[u8]) -> io::Result<PathBuf> {
        let mut whole = self.0.clone();
        for name in path.split(|&b| b == b'/') {
            if !matches!(name, b"" | b".") {
                let bad =
                    || io::Error::new(io::ErrorKind::InvalidFilename, name::BadName::Encoding);
                whole.push(name::os_string(name).ok_or_else(bad)?);
            }
        }
        Ok(whole)
    }
}

fn open(path: &Path, access: Access, follow: bool) -> io::Result<File> {
    if follow {
        file::open_following(path, access)
    } else {
        file::open(path, access)
    }
}

/// Device and number of an open regular file; none for another kind.
pub(crate) fn identity_of_file(file: &impl AsFile) -> Option<(u64, u64)> {
    let info = file::info(file).ok()?;
    (!info.is_dir()).then_some(info.identity)
}

/// Serial number of the volume of a directory, and its number there.
pub(crate) fn identity_of_dir(dir: &Dir) -> io::Result<(u64, u64)> {
    Ok(file::info(&file::open(&dir.0, Access::Examine)?)?.identity)
}

/// Opens the root of a tree; a link to a directory is followed.
pub(crate) fn open_root(path: &Path) -> io::Result<Dir> {
    let dir = Dir(std::fs::canonicalize(path)?);
    check_dir(&dir.0, false)?;
    Ok(dir)
}

fn check_dir(path: &Path, follow: bool) -> io::Result<()> {
    let info = file::info(&open(path, Access::Examine, follow)?)?;
    if !info.is_dir() || info.is_reparse_point() && std::fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(())
}

/// Opens a directory to list it.
pub(crate) fn open_dir(at: DirRef<'_>, path: &[u8], follow: bool) -> io::Result<Dir> {
    let path = at.join(path)?;
    check_dir(&path, follow)?;
    Ok(Dir(path))
}

/// Opens a directory to look up names in it.
pub(crate) fn open_anchor(at: DirRef<'_>, path: &[u8], follow: bool) -> io::Result<Dir> {
    open_dir(at, path, follow)
}

/// Opens a regular file below a directory.
pub(crate) fn open_content(
    at: DirRef<'_>,
    path: &[u8],
    follow: bool,
    _quiet: &AtomicBool,
) -> io::Result<Box<dyn Content>> {
    content(&at.join(path)?, follow)
}

/// Opens a regular file in a directory.
pub(crate) fn open_in(dir: DirRef<'_>, name: &[u8]) -> io::Result<Box<dyn Content>> {
    content(&dir.join(name)?, false)
}

/// Opens a regular file by its path.
pub(crate) fn open_file(path: &Path) -> io::Result<Box<dyn Content>> {
    content(path, true)
}

fn content(path: &Path, follow: bool) -> io::Result<Box<dyn Content>> {
    let mut file = open(path, Access::Read, follow)?;
    let metadata = file.metadata()?;
    let mut info = file::info(&file)?;
    if metadata.is_symlink() || info.is_dir() {
        return Err(io::Error::other("no longer a regular file"));
    }
    if info.is_reparse_point() {
        // The contents are elsewhere, as for files in a cloud; opening the file itself brings them.
        file = file::open_following(path, Access::Read)?;
        info = file::info(&file)?;
    }
    Ok(Box::new(HostFile {
        file,
        opened: Cell::new(Some(stamp(&info))),
    }))
}

/// The names in a directory, one after another.
pub(crate) struct Listing(Dir);

impl Listing {
    pub(crate) fn new(dir: Dir) -> io::Result<Self> {
        Ok(Self(dir))
    }

    /// Calls `each` with every name, except those of the directory itself and of its parent.
    pub(crate) fn each(
        &mut self,
        mut each: impl FnMut(DirRef<'_>, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0.0)? {
            each(&self.0, &name::bytes(&entry?.file_name()))?;
        }
        Ok(())
    }

    /// The directory.
    pub(crate) fn dir(&self) -> io::Result<DirRef<'_>> {
        Ok(&self.0)
    }
}

/// Attributes of one entry, including the target of a symbolic link.
pub(crate) fn find_at(dir: DirRef<'_>, name: &[u8], follow: bool) -> io::Result<Found> {
    let path = dir.join(name)?;
    let file = open(&path, Access::Examine, follow)?;
    let info = file::info(&file)?;
    let is_link = info.is_reparse_point() && file.metadata()?.is_symlink();
    let kind = match (is_link, info.is_dir()) {
        (true, _) => FileType::Symlink,
        (false, true) => FileType::Directory,
        (false, false) => FileType::Regular,
    };
    let target = is_link.then(|| std::fs::read_link(&path)).transpose()?;
    let size = if kind == FileType::Regular {
        info.size
    } else {
        0
    };
    let meta = Meta {
        kind,
        permissions: permissions(kind, &path, &info),
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        allocated: size,
        nlink: if kind == FileType::Regular {
            info.links.into()
        } else {
            1
        },
        identity: info.identity,
        atime: time(info.accessed),
        mtime: time(info.written),
        ctime: time(info.changed),
        target: target.map(|target| stored_target(target.as_os_str())),
        extended: ExtendedAttributes::default(),
    };
    Ok(Found {
        meta,
        mount: None,
        birth: Some(time(info.created)),
    })
}

/// The mode that an entry gets, which has none: all may read, the owner may write unless the file is
/// read-only, and programs by their name are executable.
fn permissions(kind: FileType, path: &Path, info: &Info) -> u32 {
    let is_program = || {
        let ending = path.extension().map(OsStr::to_ascii_lowercase);
        PROGRAMS
            .iter()
            .any(|program| ending.as_deref() == Some(OsStr::new(program)))
    };
    match kind {
        FileType::Symlink => 0o777,
        FileType::Directory => 0o755,
        _ => {
            let mode = if is_program() { 0o755 } else { 0o644 };
            if info.is_read_only() {
                mode & !0o222
            } else {
                mode
            }
        }
    }
}

/// The target of a link in the form of images, with slashes.
fn stored_target(target: &OsStr) -> Vec<u8> {
    let bytes = name::bytes(target);
    let plain = bytes.strip_prefix(br"\\?\").unwrap_or(&bytes);
    plain
        .iter()
        .map(|&b| if b == b'\\' { b'/' } else { b })
        .collect()
}

fn time(time: redwarfs_windows::time::Time) -> Timestamp {
    let (sec, nsec) = time.to_unix();
    Timestamp { sec, nsec }
}

/// Attributes of a regular file.
pub(crate) fn meta_of_file(path: &Path) -> io::Result<Meta> {
    let path = std::fs::canonicalize(path)?;
    let name = path.file_name().map(name::bytes).unwrap_or_default();
    let dir = Dir(path.parent().unwrap_or(Path::new("")).to_owned());
    let meta = find_at(&dir, &name, true)?.meta;
    if meta.kind != FileType::Regular {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(meta)
}

/// Access control lists and alternate streams are not stored.
pub(crate) fn read_extended(
    _place: &EntryLocation<'_>,
    _meta: &mut Meta,
    _wanted: Wanted<'_>,
) -> io::Result<()> {
    Ok(())
}

struct HostFile {
    file: File,
    /// The attributes from `open`, for the first caller.
    opened: Cell<Option<Stamp>>,
}

fn stamp(info: &Info) -> Stamp {
    Stamp {
        size: info.size,
        mtime: time(info.written),
    }
}

impl Content for HostFile {
    fn stamp(&self) -> io::Result<Stamp> {
        match self.opened.take() {
            Some(stamp) => Ok(stamp),
            None => Ok(stamp(&file::info(&self.file)?)),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.seek_read(buf, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_follow_names_and_the_read_only_attribute() {
        let dir = tempfile::tempdir().unwrap();
        let root = open_root(dir.path()).unwrap();
        let mode = |name: &str| {
            find_at(&root, name.as_bytes(), false)
                .unwrap()
                .meta
                .permissions
        };
        for (name, expected) in [
            ("a.txt", 0o644),
            ("a.exe", 0o755),
            ("B.CMD", 0o755),
            ("exe", 0o644),
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
            assert_eq!(mode(name), expected, "{name}");
        }
        let path = dir.path().join("a.exe");
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions).unwrap();
        assert_eq!((mode("a.exe"), mode(".")), (0o555, 0o755));
    }

    #[test]
    fn entries_have_sizes_links_and_times() {
        let dir = tempfile::tempdir().unwrap();
        let root = open_root(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        let file = File::create(dir.path().join("d").join("f")).unwrap();
        file.set_len(300).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_600_000_000, 5_000_000);
        file.set_modified(time).unwrap();
        std::fs::hard_link(dir.path().join("d").join("f"), dir.path().join("g")).unwrap();
        let (f, g) = (
            find_at(&root, b"d/f", false).unwrap().meta,
            find_at(&root, b"g", true).unwrap().meta,
        );
        assert_eq!(
            (f.size, f.nlink, f.uid, f.identity),
            (300, 2, 0, g.identity)
        );
        assert_eq!((f.mtime.sec, f.mtime.nsec), (1_600_000_000, 5_000_000));
        let d = open_dir(&root, b"d", false).unwrap();
        let mut names = Vec::new();
        let mut listing = Listing::new(d).unwrap();
        listing
            .each(|_, name| {
                names.push(name.to_vec());
                Ok(())
            })
            .unwrap();
        assert_eq!(names, [b"f"]);
        assert!(open_dir(&root, b"g", false).is_err());
        let content = open_content(&root, b"d/f", false, &AtomicBool::new(true)).unwrap();
        assert_eq!(content.stamp().unwrap().size, 300);
        assert_eq!(content.read_at(290, &mut [0; 20]).unwrap(), 10);
        assert_eq!(content.read_at(300, &mut [0; 20]).unwrap(), 0);
        assert!(open_content(&root, b"d", false, &AtomicBool::new(true)).is_err());
        assert_eq!(identity_of_file(&file), Some(f.identity));
        assert_eq!(meta_of_file(&dir.path().join("g")).unwrap().size, 300);
    }

    #[test]
    fn targets_are_stored_with_slashes() {
        for (target, stored) in [(r"..\a\b", "../a/b"), ("a/b", "a/b"), (r"\\?\C:\x", "C:/x")] {
            assert_eq!(stored_target(OsStr::new(target)), stored.as_bytes());
        }
    }
}
