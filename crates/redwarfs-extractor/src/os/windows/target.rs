//! The directory that receives a tree: opens entries below it, and only there, and sets attributes.

use std::fs::{File, FileTimes};
use std::io;
use std::os::windows::fs::FileTimesExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redwarfs_format::metadata::{FileType, Stat, Timestamp};
use redwarfs_reader::Image;
use redwarfs_windows::file::{self, Access};

use super::place::entry_name;
use super::{
    Dir, ERROR_CALL_NOT_IMPLEMENTED, ERROR_INVALID_FUNCTION, ERROR_INVALID_PARAMETER,
    ERROR_NOT_SUPPORTED, OutFile,
};
use crate::Progress;
use crate::error::{Result, cause, target};
use crate::flags::as_text;
use crate::unset::Unset;
use crate::xattrs::Stored;

/// The modes that `mkdwarfs` stores on Windows. They say no more than the read-only attribute and the name.
const KNOWN_MODES: [u32; 4] = [0o644, 0o755, 0o444, 0o555];

/// The directory that receives a tree.
#[derive(Debug)]
pub(crate) struct Target {
    root: Dir,
    owners: Unset,
    times: Unset,
    /// The extended attributes of the image, which have no place here.
    stored: Option<Stored>,
    xattrs: Unset,
    flags: Unset,
    /// The image, if it has birth times.
    births: Option<Image>,
}

impl Target {
    /// Opens an existing directory. The path itself may contain symbolic links, because the user gives
    /// it.
    pub(crate) fn open(path: &Path, stored: Option<Stored>) -> Result<Self> {
        let opened = std::fs::canonicalize(path).and_then(hold);
        let root = opened.map_err(|e| {
            target(
                "cannot open output directory",
                path.display().to_string(),
                e,
            )
        })?;
        Ok(Self {
            root,
            owners: Unset::default(),
            times: Unset::default(),
            stored,
            xattrs: Unset::default(),
            flags: Unset::default(),
            births: None,
        })
    }

    /// Also sets the birth times of this image.
    pub(crate) fn with_births(self, image: &Image) -> Self {
        let births = image.metadata().options().has_btime.then(|| image.clone());
        Self { births, ..self }
    }

    /// Counts a file or directory whose flags Windows does not have.
    pub(crate) fn set_flags_at(
        &self,
        _dir: &Dir,
        _name: &[u8],
        _is_dir: bool,
        flags: u32,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.flags.note(|| {
            let (path, flags) = (shown(), as_text(flags));
            progress.warn(&format!(
                "cannot set file flags '{flags}': {path}: Windows has none (said once)"
            ));
        });
        Ok(())
    }

    /// The same for the target itself.
    pub(crate) fn set_root_flags(&self, flags: u32, progress: &dyn Progress) -> Result<()> {
        let root = self.root.path.clone();
        let dir = hold(root).map_err(|e| target("cannot open output directory", ".".into(), e))?;
        self.set_flags_at(&dir, b".", true, flags, &|| ".".to_owned(), progress)
    }

    fn birth(&self, stat: &Stat) -> Option<Timestamp> {
        let metadata = self.births.as_ref()?.metadata();
        metadata.birth_time(stat.ino).ok().flatten()
    }

    /// Whether the target has no entries; false if it cannot be listed.
    pub(crate) fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.root.path).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Whether the target treats names that differ only in case as equal.
    pub(crate) fn is_caseless(&self) -> bool {
        let name = format!(".case-{}", std::process::id());
        let made = self.root.path.join(&name);
        // If this fails, creating entries fails, too.
        if std::fs::create_dir(&made).is_err() {
            return false;
        }
        let other = std::fs::symlink_metadata(self.root.path.join(name.to_uppercase()));
        let _ = std::fs::remove_dir(&made);
        other.is_ok()
    }

    /// Sets the times of the target itself.
    pub(crate) fn set_root_attributes(&self, stat: &Stat, progress: &dyn Progress) -> Result<()> {
        self.set_attributes_of(&self.root.path, stat, &|| ".".to_owned(), progress)
    }

    /// Opens the directory at a path below the target (empty: the target).
    pub(crate) fn open_dir(&self, path: &[u8]) -> io::Result<Dir> {
        let mut current = hold(self.root.path.clone())?;
        // The directory below is opened while the one above cannot be replaced by a link.
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            current = self.open_dir_in(&current, name)?;
        }
        Ok(current)
    }

    /// Opens a directory in an open one.
    pub(crate) fn open_dir_in(&self, parent: &Dir, name: &[u8]) -> io::Result<Dir> {
        hold(parent.path.join(entry_name(name)?))
    }

    /// Sets times and the read-only attribute of an open file.
    pub(crate) fn set_attributes(
        &self,
        file: &OutFile,
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.note_mode(stat, shown, progress);
        self.times_result(set_times(file, stat, self.birth(stat)), shown, progress)?;
        if stat.mode & 0o200 == 0 {
            let set = file.metadata().and_then(|metadata| {
                let mut permissions = metadata.permissions();
                permissions.set_readonly(true);
                file.set_permissions(permissions)
            });
            set.map_err(|e| target("cannot set read-only attribute", shown(), e))?;
        }
        Ok(())
    }

    /// Sets the times of symbolic links and directories. Never follows a link.
    pub(crate) fn set_attributes_at(
        &self,
        dir: &Dir,
        name: &[u8],
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        match entry_name(name) {
            Ok(name) => self.set_attributes_of(&dir.path.join(name), stat, shown, progress),
            Err(e) => Err(target("cannot set times", shown(), e)),
        }
    }

    fn set_attributes_of(
        &self,
        path: &Path,
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.note_mode(stat, shown, progress);
        let birth = self.birth(stat);
        let set = file::open(path, Access::Change).and_then(|file| set_times(&file, stat, birth));
        self.times_result(set, shown, progress)
    }

    /// Counts an entry with an owner or a mode that Windows cannot hold.
    fn note_mode(&self, stat: &Stat, shown: &dyn Fn() -> String, progress: &dyn Progress) {
        let stored = self.stored.as_ref();
        let stored = stored.map(|stored| stored.of(stat.ino, shown));
        if stored.is_some_and(|of| of.is_ok_and(|(xattrs, _)| !xattrs.is_empty())) {
            self.xattrs.note(|| {
                let path = shown();
                progress.warn(&format!(
                    "cannot set extended attributes: {path}: Windows has none (said once)"
                ));
            });
        }
        let is_link = FileType::from_mode(stat.mode) == Some(FileType::Symlink);
        let known = is_link || KNOWN_MODES.contains(&(stat.mode & 0o7777));
        if (stat.uid, stat.gid) == (0, 0) && known {
            return;
        }
        self.owners.note(|| {
            let path = shown();
            progress.warn(&format!(
                "cannot set owner and mode: {path}: Windows keeps only the read-only attribute (said once)"
            ));
        });
    }

    fn times_result(
        &self,
        result: io::Result<()>,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        let what = "cannot set times";
        match result {
            Err(e) if is_unsupported(&e) => {
                self.times.note(|| {
                    let (path, cause) = (shown(), cause(&e));
                    progress.warn(&format!("{what}: {path}: {cause} (said once)"));
                });
                Ok(())
            }
            other => other.map_err(|e| target(what, shown(), e)),
        }
    }

    /// Reports how many entries lack an attribute, after a warning about the first one.
    /// Returns the sum.
    pub(crate) fn report(&self, progress: &dyn Progress) -> u64 {
        self.owners.report("owner and mode", progress);
        self.times.report("times", progress);
        self.xattrs.report("extended attributes", progress);
        self.flags.report("file flags", progress);
        let unset = [&self.owners, &self.times, &self.xattrs, &self.flags];
        unset.into_iter().map(Unset::number).sum()
    }
}

/// Opens the directory at a path that leads to it as long as all directories above are held.
fn hold(path: PathBuf) -> io::Result<Dir> {
    let held = file::open(&path, Access::Hold)?;
    let info = file::info(&held)?;
    if info.is_reparse_point() || !info.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(Dir { path, _held: held })
}

/// Whether an attribute cannot be set because the file system has no such attribute or value.
fn is_unsupported(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Unsupported
        || matches!(
            e.raw_os_error(),
            Some(
                ERROR_INVALID_PARAMETER
                    | ERROR_NOT_SUPPORTED
                    | ERROR_INVALID_FUNCTION
                    | ERROR_CALL_NOT_IMPLEMENTED
            )
        )
}

fn set_times(file: &File, stat: &Stat, birth: Option<Timestamp>) -> io::Result<()> {
    let time = |sec: i64, nsec: u32| -> Option<SystemTime> {
        let second = match u64::try_from(sec) {
            Ok(after) => UNIX_EPOCH.checked_add(Duration::from_secs(after))?,
            Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(sec.unsigned_abs()))?,
        };
        second.checked_add(Duration::from_nanos(nsec.min(999_999_999).into()))
    };
    let times = time(stat.atime.sec, stat.atime.nsec).zip(time(stat.mtime.sec, stat.mtime.nsec));
    let Some((accessed, modified)) = times else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there is no such time on Windows",
        ));
    };
    let mut times = FileTimes::new()
        .set_accessed(accessed)
        .set_modified(modified);
    if let Some(birth) = birth.and_then(|birth| time(birth.sec, birth.nsec)) {
        times = times.set_created(birth);
    }
    file.set_times(times)
}
