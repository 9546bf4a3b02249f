//! The directory that holds a layer: its lock, and the generation of the image that it is about.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redwarfs_format::section::GenerationId;
use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, fstat, fsync, mkdirat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::access::Modes;
use super::layer::{TEMPORARY, check_private};
use crate::mount_table::overlay_on;
use crate::removal::remove_at;

/// How long another driver may need to end, and how often its lock is tried.
const PATIENCE: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_millis(5);
/// The file with the record, a line for each fact: which generation the layer is about, and which marks it has.
const RECORD: &str = "image";
const NEW_RECORD: &str = "image.new";
const GENERATION: &str = "generation";
const MARKS: &str = "marks";
const NEXT: &str = "next";
/// What follows the generation in the line of an intended one.
const MOVED: &str = "moved";
/// Longest such file that is read.
const LONGEST: usize = 256;
/// Name of what was `upper`, in `work`.
const OLD: &str = "#rw-old";
/// Name of a directory in `work` that is made and removed again.
const TRIAL: &str = "#rw-trial";
/// Inode number of the first user namespace, in its file below `/proc`.
const FIRST_NAMESPACE: u64 = 0xefff_fffd;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// The directory of a writable layer ([`Layer::Directory`](crate::Layer)), locked: no mount uses it.
#[derive(Debug)]
pub struct LayerDirectory {
    path: PathBuf,
    /// Locked as long as it is open.
    directory: OwnedFd,
    /// Opened for its name only.
    upper: OwnedFd,
}

impl LayerDirectory {
    /// Locks the directory of a layer. A driver whose mount was just unmounted needs a moment to end.
    ///
    /// # Errors
    /// It cannot be opened, or is none ([`NotFound`](io::ErrorKind::NotFound)), or a mount uses it
    /// ([`ResourceBusy`](io::ErrorKind::ResourceBusy)). This process is privileged, and others may change the layer.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let directory = openat(CWD, path.as_os_str().as_bytes(), DIRECTORY, Mode::empty())?;
        check_private(path, &directory)?;
        lock(&directory, path)?;
        let flags = DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH;
        let upper = match openat(&directory, "upper", flags, Mode::empty()) {
            Ok(upper) => upper,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let text = "it is no writable layer: there is no directory 'upper' in it";
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            path: path.to_owned(),
            directory,
            upper,
        })
    }

    /// The path of the directory with the changes, for messages.
    #[must_use]
    pub fn upper_path(&self) -> PathBuf {
        self.path.join("upper")
    }

    /// The directory with the changes, opened to look up names in it.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn upper(&self) -> io::Result<OwnedFd> {
        self.upper.try_clone()
    }

    /// Whether a path leads to something below the directory with the changes. The last name may be missing.
    ///
    /// # Errors
    /// The attributes of the directory cannot be read.
    pub fn has_changed(&self, path: &Path) -> io::Result<bool> {
        let upper = fstat(&self.upper)?;
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let Ok(found) = path.canonicalize().or_else(|_| parent.canonicalize()) else {
            return Ok(false);
        };
        Ok(found.ancestors().any(|above| {
            rustix::fs::stat(above)
                .is_ok_and(|above| (above.st_dev, above.st_ino) == (upper.st_dev, upper.st_ino))
        }))
    }

    /// Whether the layer may have marks that this process cannot read: marks in `trusted` are there for
    /// `CAP_SYS_ADMIN` in the first user namespace only. Without them, what was deleted is there again.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn may_hide_marks(&self) -> io::Result<bool> {
        if sees_trusted() {
            return Ok(false);
        }
        let record = Record::read(self.directory.as_fd())?;
        Ok(record.and_then(|record| record.marks) != Some(MarkKind::User))
    }

    /// Whether overlayfs has kept a table of hard links here (its option `index=on`). Then the changes of a file may be
    /// those of other names of it, and only overlayfs can tell.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn has_index(&self) -> io::Result<bool> {
        let index = match openat(&self.directory, "work/index", DIRECTORY, Mode::empty()) {
            Ok(index) => index,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&index)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The generation of an image that the layer is about. None if nothing says it.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn generation(&self) -> io::Result<Option<GenerationId>> {
        let record = Record::read(self.directory.as_fd())?;
        Ok(record.and_then(|record| record.generation))
    }

    /// Tells a layer about the generation of its image. If that is the one of an [intended](Self::intend) commit, the image
    /// has the changes: the commit has ended before it could record this. From here on, the layer is about this generation.
    /// Returns true if it cannot be, because it renames what was in the generation before.
    ///
    /// # Errors
    /// The record cannot be read or written.
    pub fn settle(&self, own: Option<GenerationId>) -> io::Result<bool> {
        let directory = self.directory.as_fd();
        let Some(mut record) = Record::read(directory)? else {
            return Ok(false);
        };
        if record.settle(own) {
            record.write(directory)?;
        }
        let next = record.next.filter(|next| next.moved);
        Ok(next.is_some_and(|next| Some(next.generation) == own))
    }

    /// Says that an image is about to get a generation with the changes. `moved`: the layer renames what is in the
    /// generation before.
    ///
    /// # Errors
    /// The record cannot be written. The old one stays.
    pub fn intend(&self, generation: GenerationId, moved: bool) -> io::Result<()> {
        let directory = self.directory.as_fd();
        let old = Record::read(directory)?.unwrap_or_default();
        let new = Record {
            next: Some(Next { generation, moved }),
            ..old
        };
        new.write(directory)?;
        Ok(fsync(&self.directory)?)
    }

    /// Whether a record can be written, and, if `empties`, all changes be removed.
    ///
    /// # Errors
    /// They cannot.
    pub fn check_writable(&self, empties: bool) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(
            &self.directory,
            NEW_RECORD,
            flags,
            Mode::from_raw_mode(0o600),
        )?;
        unlinkat(&self.directory, NEW_RECORD, AtFlags::empty())?;
        if empties {
            let work = self.work()?;
            mkdirat(&work, TRIAL, Mode::from_raw_mode(0o700))?;
            unlinkat(&work, TRIAL, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    /// Says which generation the layer is about from here on.
    ///
    /// # Errors
    /// The record cannot be written. The old one stays.
    pub fn record(&self, generation: GenerationId) -> io::Result<()> {
        let directory = self.directory.as_fd();
        let old = Record::read(directory)?.unwrap_or_default();
        let new = Record {
            generation: Some(generation),
            next: None,
            ..old
        };
        new.write(directory)
    }

    /// The directory for what is incomplete.
    fn work(&self) -> io::Result<OwnedFd> {
        match mkdirat(&self.directory, "work", Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        Ok(openat(&self.directory, "work", flags, Mode::empty())?)
    }

    /// Removes all changes. First, they get another name at once; so a crash leaves all of them or none.
    ///
    /// # Errors
    /// They cannot be removed. If they were renamed, the next mount removes the rest.
    pub fn empty(&self) -> io::Result<()> {
        let work = self.work()?;
        debug_assert!(OLD.starts_with(TEMPORARY) && TRIAL.starts_with(TEMPORARY));
        match remove_at(work.as_fd(), OLD.as_bytes()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        // A directory that moves must be writable, whatever mode the root of the mount has.
        Modes::default().lend(&[self.upper.as_fd()], || {
            renameat(&self.directory, "upper", &work, OLD)
        })?;
        fsync(&self.directory)?;
        Ok(remove_at(work.as_fd(), OLD.as_bytes())?)
    }
}

/// Whether this process sees attributes in `trusted`.
fn sees_trusted() -> bool {
    let capable = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let namespace = rustix::fs::stat("/proc/self/ns/user");
    capable && namespace.is_ok_and(|namespace| namespace.st_ino == FIRST_NAMESPACE)
}

/// Locks the directory of a layer, unless an overlay of the kernel has it.
pub(super) fn lock(directory: &OwnedFd, path: &Path) -> io::Result<()> {
    let busy = |text: String| io::Error::new(io::ErrorKind::ResourceBusy, text);
    let end = Instant::now() + PATIENCE;
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PERIOD),
            Err(Errno::WOULDBLOCK) => return Err(busy("another mount uses it".to_owned())),
            other => break other?,
        }
    }
    let upper = path.join("upper").canonicalize();
    match upper.ok().and_then(|upper| overlay_on(&upper)) {
        Some(point) => Err(busy(format!("the overlay on {} uses it", point.display()))),
        None => Ok(()),
    }
}

/// What is kept beside a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The generation that the layer is about.
    pub(super) generation: Option<GenerationId>,
    /// The kind of all marks in the layer. None if that is not known.
    pub(super) marks: Option<MarkKind>,
    /// The generation that a commit is about to make of the changes. If there is such a generation, it was made.
    pub(super) next: Option<Next>,
}

/// An intended generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    generation: GenerationId,
    /// On top of it, the layer would show something else.
    moved: bool,
}

/// How whiteouts and opaque directories are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// By devices, and by attributes in `trusted`.
    Trusted,
    /// By devices, and by attributes in `user`.
    User,
    /// By both, or by files. Only this driver understands all of them.
    Mixed,
}

impl MarkKind {
    const NAMES: [(Self, &'static str); 3] = [
        (Self::Trusted, "trusted"),
        (Self::User, "user"),
        (Self::Mixed, "mixed"),
    ];
}

impl Record {
    /// None if there is none.
    pub(super) fn read(directory: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(directory, RECORD, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = [0; LONGEST];
        let read = rustix::io::read(&file, &mut text)?;
        let text = std::str::from_utf8(text.get(..read).unwrap_or_default());
        Ok(text.ok().map(Self::parse))
    }

    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some((GENERATION, digits)) => found.generation = parse_generation(digits),
                Some((NEXT, rest)) => {
                    let (digits, moved) = match rest.split_once(' ') {
                        Some((digits, word)) => (digits, word == MOVED),
                        None => (rest, false),
                    };
                    let generation = parse_generation(digits);
                    found.next = generation.map(|generation| Next { generation, moved });
                }
                Some((MARKS, name)) => {
                    let kind = MarkKind::NAMES.iter().find(|(_, known)| *known == name);
                    found.marks = kind.map(|(kind, _)| *kind);
                }
                _ => {}
            }
        }
        found
    }

    /// Notes that an intended commit was made, if `own` is its generation and the layer fits on top. Returns whether
    /// something has changed.
    pub(super) fn settle(&mut self, own: Option<GenerationId>) -> bool {
        let next = self
            .next
            .filter(|next| !next.moved)
            .map(|next| next.generation);
        let settled = next.is_some() && next == own;
        if settled {
            (self.generation, self.next) = (next, None);
        }
        settled
    }

    /// Puts it into the place of the old one.
    pub(super) fn write(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let mut text = String::new();
        let digits = |generation: GenerationId| u128::from_be_bytes(generation.0);
        if let Some(generation) = self.generation {
            text += &format!("{GENERATION} {:032x}\n", digits(generation));
        }
        if let Some(Next { generation, moved }) = self.next {
            let moved = if moved { " moved" } else { "" };
            text += &format!("{NEXT} {:032x}{moved}\n", digits(generation));
        }
        let marks = MarkKind::NAMES
            .iter()
            .find(|(kind, _)| Some(*kind) == self.marks);
        if let Some((_, name)) = marks {
            text += &format!("{MARKS} {name}\n");
        }
        match unlinkat(directory, NEW_RECORD, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(directory, NEW_RECORD, flags, Mode::from_raw_mode(0o600))?;
        super::tree::write_all(&file, text.as_bytes(), 0)?;
        fsync(&file)?;
        Ok(renameat(directory, NEW_RECORD, directory, RECORD)?)
    }
}

fn parse_generation(digits: &str) -> Option<GenerationId> {
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(digits, 16).ok()?;
    Some(GenerationId(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn private() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        dir
    }

    #[test]
    fn an_intended_generation_is_known() {
        let dir = private();
        std::fs::create_dir(dir.path().join("upper")).unwrap();
        let layer = LayerDirectory::lock(dir.path()).unwrap();
        let [old, new] = [1, 2].map(|byte| GenerationId([byte; 16]));
        layer.record(old).unwrap();
        layer.intend(new, true).unwrap();
        assert!(!layer.settle(Some(old)).unwrap());
        assert!(layer.settle(Some(new)).unwrap());
        layer.intend(new, false).unwrap();
        assert!(!layer.settle(Some(old)).unwrap());
        assert_eq!(layer.generation().unwrap(), Some(old));
        assert!(!layer.settle(Some(new)).unwrap());
        assert_eq!(layer.generation().unwrap(), Some(new));
    }

    #[test]
    fn the_generation_is_kept() {
        let dir = private();
        let error = LayerDirectory::lock(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(dir.path().join("upper")).unwrap();
        let layer = LayerDirectory::lock(dir.path()).unwrap();
        assert_eq!(layer.generation().unwrap(), None);
        let id = GenerationId(*b"0123456789abcdef");
        layer.record(id).unwrap();
        assert_eq!(layer.generation().unwrap(), Some(id));
        let record = dir.path().join(RECORD);
        let text = std::fs::read_to_string(&record).unwrap();
        assert_eq!(text, "generation 30313233343536373839616263646566\n");
        let marked = Record {
            generation: Some(id),
            marks: Some(MarkKind::User),
            next: None,
        };
        marked.write(layer.directory.as_fd()).unwrap();
        let other = GenerationId([7; 16]);
        layer.record(other).unwrap();
        let text = std::fs::read_to_string(&record).unwrap();
        assert!(text.ends_with("0707\nmarks user\n"), "{text}");
        for text in ["something else", "generation 12\nmarks x\n", ""] {
            std::fs::write(&record, text).unwrap();
            assert_eq!(layer.generation().unwrap(), None);
        }
    }

    #[test]
    fn a_layer_is_emptied_at_once() {
        let dir = private();
        std::fs::create_dir_all(dir.path().join("upper/a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("work/#rw-old/c")).unwrap();
        let layer = LayerDirectory::lock(dir.path()).unwrap();
        let error = LayerDirectory::lock(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        layer.empty().unwrap();
        assert!(!layer.upper_path().exists());
        let left = std::fs::read_dir(dir.path().join("work")).unwrap().count();
        assert_eq!(left, 0);
    }

    #[test]
    fn an_index_of_links_is_found() {
        let dir = private();
        std::fs::create_dir_all(dir.path().join("upper")).unwrap();
        let layer = LayerDirectory::lock(dir.path()).unwrap();
        assert!(!layer.has_index().unwrap());
        std::fs::create_dir_all(dir.path().join("work/index")).unwrap();
        assert!(!layer.has_index().unwrap());
        std::fs::write(dir.path().join("work/index/00fb"), "").unwrap();
        assert!(layer.has_index().unwrap());
    }
}
