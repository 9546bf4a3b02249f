//! Creating entries in a directory, and further names of them.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::{symlink_dir, symlink_file};
use std::path::PathBuf;

use redwarfs_format::metadata::{FileType, Stat};
use redwarfs_windows::file::{self, Access};
use redwarfs_windows::name;

use super::{ERROR_CALL_NOT_IMPLEMENTED, ERROR_PRIVILEGE_NOT_HELD, OutFile};
use crate::create::{NameInDir, collision, folded};

/// The name of an entry, if Windows can hold it.
pub(super) fn entry_name(name: &[u8]) -> io::Result<OsString> {
    let bad = |e| io::Error::new(io::ErrorKind::InvalidFilename, e);
    name::check(name).map_err(bad)?;
    name::os_string(name).ok_or_else(|| bad(name::BadName::Encoding))
}

impl NameInDir<'_> {
    fn path(&self) -> io::Result<PathBuf> {
        Ok(self.dir.path.join(entry_name(self.name)?))
    }

    /// Fails if the existing entry was made for another name of the image: one in another case, or one
    /// whose short name is the given name.
    fn check_taken(&self) -> io::Result<()> {
        let listed =
            file::open(&self.path()?, Access::Examine).and_then(|file| file::listed_name(&file));
        let Ok(listed) = listed else {
            return Ok(());
        };
        let listed = name::bytes(&listed);
        if *listed != *self.name && (self.taken)(&folded(&listed)) {
            return Err(collision(&listed));
        }
        Ok(())
    }

    /// Runs a creating call. If there is an existing entry, removes it and tries again.
    fn replacing<T>(&self, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..8 {
            match create() {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    self.check_taken()?;
                    self.unlink()?;
                }
                other => return other,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes a directory, or takes over an existing one. Anything else of that name is removed.
    pub(crate) fn make_dir(&self, _mode: u32) -> io::Result<()> {
        let path = self.path()?;
        for _ in 0..8 {
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.check_taken()?,
                Err(e) => return Err(e),
            }
            match file::open(&path, Access::Examine).and_then(|found| file::info(&found)) {
                Ok(found) if found.is_dir() && !found.is_reparse_point() => return Ok(()),
                Ok(_) => self.unlink()?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Removes a name that is not a directory; no error if there is none.
    pub(crate) fn unlink(&self) -> io::Result<()> {
        let path = self.path()?;
        let found = match file::open(&path, Access::Remove) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let info = file::info(&found)?;
        if info.is_dir() && !info.is_reparse_point() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if info.is_read_only() {
            let mut permissions = found.metadata()?.permissions();
            #[expect(
                clippy::permissions_set_readonly_false,
                reason = "on Windows it removes the attribute, and gives no rights"
            )]
            permissions.set_readonly(false);
            found.set_permissions(permissions)?;
        }
        drop(found);
        if info.is_dir() {
            std::fs::remove_dir(&path)
        } else {
            std::fs::remove_file(&path)
        }
    }

    /// Removes a name that is not a directory, unless it leads to an entry that another name of the
    /// image made.
    pub(crate) fn clear(&self) -> io::Result<()> {
        match self.check_taken() {
            Ok(()) => self.unlink(),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Creates a new file for writing. Removes an existing entry.
    pub(crate) fn create_file(&self, _mode: u32) -> io::Result<OutFile> {
        let path = self.path()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        self.replacing(|| options.open(&path))
    }

    /// Opens a file that [`Self::create_file`] made, once more for writing.
    pub(crate) fn reopen_file(&self) -> io::Result<OutFile> {
        use std::os::windows::fs::OpenOptionsExt;
        const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x20_0000;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
        let file = options.open(self.path()?)?;
        let found = file::info(&file)?;
        if found.is_dir() || found.is_reparse_point() || found.links > 1 {
            return Err(io::Error::other(
                "replaced by something else during extraction",
            ));
        }
        Ok(file)
    }

    /// Creates a symbolic link. Removes an existing entry. On Windows, links to directories are of another
    /// kind than links to files; `to_dir` tells whether the target is a directory.
    pub(crate) fn make_symlink(&self, to: &[u8], to_dir: &dyn Fn() -> bool) -> io::Result<()> {
        let path = self.path()?;
        let native: Vec<u8> = to
            .iter()
            .map(|&b| if b == b'/' { b'\\' } else { b })
            .collect();
        let target = name::os_string(&native)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, name::BadName::Encoding))?;
        let make = if to_dir() { symlink_dir } else { symlink_file };
        self.replacing(|| match make(&target, &path) {
            Err(e) if e.raw_os_error() == Some(ERROR_PRIVILEGE_NOT_HELD) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "only administrators, and users in developer mode, may make links on Windows",
            )),
            other => other,
        })?;
        // Some versions of Wine report success without a link.
        match std::fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::from_raw_os_error(ERROR_CALL_NOT_IMPLEMENTED))
            }
            other => other.map(drop),
        }
    }

    /// Fails: there are no such entries.
    pub(crate) fn make_node(&self, stat: &Stat) -> io::Result<()> {
        let what = match FileType::from_mode(stat.mode) {
            Some(FileType::Fifo) => "FIFOs",
            Some(FileType::Socket) => "sockets",
            _ => "device files",
        };
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("there are no {what} on Windows"),
        ))
    }

    /// Creates a hard link to the file `from`. Removes an existing entry.
    pub(crate) fn make_hard_link(&self, from: &NameInDir<'_>) -> io::Result<()> {
        let (from, path) = (from.path()?, self.path()?);
        self.replacing(|| std::fs::hard_link(&from, &path))
    }

    /// Creates a file with the contents of `from`.
    pub(crate) fn make_copy(&self, from: &NameInDir<'_>, mode: u32) -> io::Result<OutFile> {
        let mut source: File = file::open(&from.path()?, Access::Read)?;
        let found = file::info(&source)?;
        if found.is_dir() || found.is_reparse_point() {
            return Err(io::Error::other(
                "the file was replaced by something else during extraction",
            ));
        }
        let mut copy = self.create_file(mode)?;
        if let Err(e) = io::copy(&mut source, &mut copy) {
            drop(copy);
            // Incomplete, and the reason is reported.
            let _ = self.unlink();
            return Err(e);
        }
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::os::{Dir, Target};

    fn place<'a>(dir: &'a Dir, name: &'a [u8]) -> NameInDir<'a> {
        NameInDir {
            dir,
            name,
            taken: &|_| false,
            caseless: true,
        }
    }

    fn open(path: &Path) -> (Target, Dir) {
        let target = Target::open(path, None).unwrap();
        let root = target.open_dir(b"").unwrap();
        (target, root)
    }

    #[test]
    fn bad_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (target, root) = open(dir.path());
        for name in [
            &b"a:b"[..],
            b"NUL",
            b"aux.txt",
            b"end.",
            b"end ",
            b"a\\b",
            b"\xff",
            b"what?",
        ] {
            let at = place(&root, name);
            for e in [
                at.create_file(0o644).unwrap_err(),
                at.make_dir(0o755).unwrap_err(),
                at.make_symlink(b"x", &|| false).unwrap_err(),
                target.open_dir_in(&root, name).unwrap_err(),
            ] {
                assert_eq!(e.kind(), io::ErrorKind::InvalidFilename, "{name:?}: {e}");
            }
        }
        assert!(target.is_empty());
    }

    #[test]
    fn whatever_is_in_the_way_goes_but_directories_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (target, root) = open(dir.path());
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("f"), "old").unwrap();
        let mut permissions = at("f").metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(at("f"), permissions).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/kept"), "k").unwrap();
        let file = place(&root, b"f").create_file(0o644).unwrap();
        super::super::write_at(&file, 0, &[b"n", b"", b"ew"]).unwrap();
        drop(file);
        assert_eq!(std::fs::read(at("f")).unwrap(), b"new");
        place(&root, b"d").make_dir(0o755).unwrap();
        assert_eq!(std::fs::read(at("d/kept")).unwrap(), b"k");
        let e = place(&root, b"d").create_file(0o644).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::IsADirectory);
        place(&root, b"f").make_dir(0o755).unwrap();
        assert!(at("f").is_dir() && target.open_dir_in(&root, b"f").is_ok());
    }

    #[test]
    fn names_that_another_name_of_the_image_has_are_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, root) = open(dir.path());
        assert!(target.is_caseless());
        std::fs::write(dir.path().join("README"), "first").unwrap();
        let taken = |name: &str| name == "readme";
        let other = NameInDir {
            taken: &taken,
            ..place(&root, b"readme")
        };
        let made = other.create_file(0o644);
        if std::fs::read(dir.path().join("README")).unwrap_or_default() != b"first" {
            // Wine knows an open file only by the name with which it was opened.
            eprintln!("SKIPPED: this system does not tell the listed name of a file");
            return;
        }
        assert_eq!(made.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        other.clear().unwrap();
        assert!(dir.path().join("README").exists());
    }

    #[test]
    fn held_directories_stay_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (target, root) = open(dir.path());
        place(&root, b"a").make_dir(0o755).unwrap();
        let held = target.open_dir(b"a").unwrap();
        assert!(std::fs::rename(dir.path().join("a"), dir.path().join("b")).is_err());
        place(&held, b"f").create_file(0o644).unwrap();
        drop(held);
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(dir.path().join("b").join("f").exists());
        assert!(target.open_dir(b"b/f").is_err());
    }

    #[test]
    fn copies_and_links_have_the_contents() {
        let dir = tempfile::tempdir().unwrap();
        let (_target, root) = open(dir.path());
        let file = place(&root, b"a").create_file(0o644).unwrap();
        super::super::reserve_size(&file, 1 << 20).unwrap();
        super::super::write_at(&file, 5000, &[b"data"]).unwrap();
        drop(file);
        place(&root, b"b")
            .make_copy(&place(&root, b"a"), 0o644)
            .unwrap();
        place(&root, b"c")
            .make_hard_link(&place(&root, b"a"))
            .unwrap();
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        assert_eq!(read("a").len(), 1 << 20);
        assert!(read("a") == read("b") && read("a") == read("c"));
        assert!(place(&root, b"a").reopen_file().is_err());
        assert!(place(&root, b"b").reopen_file().is_ok());
    }

    #[test]
    fn links_are_made_or_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (target, root) = open(dir.path());
        std::fs::create_dir(dir.path().join("d")).unwrap();
        match place(&root, b"l").make_symlink(b"d", &|| true) {
            Ok(()) => {
                assert!(
                    dir.path()
                        .join("l")
                        .symlink_metadata()
                        .unwrap()
                        .is_symlink()
                );
                assert!(target.open_dir(b"l").is_err());
                place(&root, b"l").unlink().unwrap();
                assert!(dir.path().join("d").exists());
            }
            Err(e) => {
                assert!(!dir.path().join("l").exists());
                eprintln!("SKIPPED: no symbolic links here: {e}");
            }
        }
    }
}
