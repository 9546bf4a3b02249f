//! The file that this program runs from, and the image in it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use redwarfs_format::elf::Elf;
use redwarfs_format::recovery::{PAGE, page_kind};
use redwarfs_format::section::{MAGIC, locate_image_from};
use twox_hash::XxHash3_64;

use crate::error::{EXIT_FAILURE, Failure, Result};

/// Largest part of a section that is read. The ones that are asked for have 1 KiB.
const MOST: u64 = 64 << 10;

/// The file of the running program, also if it has no name.
const OWN_FILE: &str = "/proc/self/exe";

/// What helps if a part of the file is missing or wrong.
const CUT_OFF: &str = ": get the file again, it is damaged or not complete";
/// The same, if parity of the file was found.
const REPAIR: &str =
    ": dwarfsck --repair FILE can repair it, as there is recovery data; or get the file again";
/// What the name of a file with recovery data ends with, behind the name of the file that it protects.
const SIDECAR: &str = ".dwrec";
/// How much of the end of a file is searched for recovery data, and how much of it at a time.
const SEARCHED: u64 = 64 << 20;
const PIECE: u64 = 1 << 20;

/// A file with an image.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) file: File,
    /// Where it is, for the program inside and for messages.
    pub(crate) path: PathBuf,
    metadata: Metadata,
}

impl Program {
    /// Finds the file: the one that `TARGET_APPIMAGE` names, or the one that runs.
    pub(crate) fn find(called: Option<&OsStr>) -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(target) = variable("TARGET_APPIMAGE").map(PathBuf::from) {
            let cannot = |error| Failure::io("cannot open TARGET_APPIMAGE", &target, &error);
            let file = File::open(&target).map_err(cannot)?;
            return Ok(Self {
                metadata: file.metadata().map_err(cannot)?,
                path: target.canonicalize().map_err(cannot)?,
                file,
            });
        }
        let called = called.map(PathBuf::from);
        let given = variable("APPIMAGE").map(PathBuf::from);
        // Without /proc, there are the names by which the program was called.
        let places = [Some(PathBuf::from(OWN_FILE)), called.clone(), given.clone()];
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for place in places.into_iter().flatten() {
            match File::open(&place).and_then(|file| Ok((file.metadata()?, file))) {
                Ok((metadata, file)) => {
                    let path = path_of(&place, &metadata, called, given);
                    return Ok(Self {
                        file,
                        path,
                        metadata,
                    });
                }
                Err(error) => failure = error,
            }
        }
        Err(Failure::io(
            "cannot open this program's file",
            Path::new(OWN_FILE),
            &failure,
        ))
    }

    /// Where the image starts: at the end of the ELF file, or at the first place behind it where there is one.
    pub(crate) fn image_offset(&self) -> Result<u64> {
        let size = self.metadata.len();
        let read = |at: u64, buf: &mut [u8]| self.file.read_exact_at(buf, at);
        let end = Elf::read(&read).and_then(Elf::end);
        let start = end.filter(|&end| end <= size).unwrap_or_default();
        let mut magic = [0; MAGIC.len()];
        if start > 0 && read(start, &mut magic).is_ok() && magic == MAGIC {
            // Nearly always; the search takes as long as the rest of the start of a small image.
            return Ok(start);
        }
        locate_image_from(start, size, &read).map_err(|error| match error {
            redwarfs_format::Error::NotAnImage(_) if end > Some(size) => {
                Failure::new(format_args!(
                    "the file ends within the program in front: {}{}",
                    self.path.display(),
                    self.advice()
                ))
            }
            redwarfs_format::Error::NotAnImage(_) => Failure::new(format_args!(
                "there is no image behind the program: {}: append one (mkdwarfs --header=runtime does); \
                 --appimage-help and --appimage-version need none",
                self.path.display()
            )),
            redwarfs_format::Error::Io(error) => {
                Failure::io("cannot read the image", &self.path, &error)
            }
            other => Failure::new(format_args!(
                "cannot find the image: {}: {other}{}",
                self.path.display(),
                self.hint(&other)
            )),
        })
    }

    /// What the user can do about an image that cannot be used.
    pub(crate) fn hint(&self, error: &redwarfs_format::Error) -> &'static str {
        match error {
            redwarfs_format::Error::Corrupt { .. } => self.advice(),
            _ => "",
        }
    }

    /// What helps if a part of the file is missing or wrong.
    pub(crate) fn advice(&self) -> &'static str {
        match self.has_recovery_data() || with_ending(&self.path, SIDECAR).is_file() {
            true => REPAIR,
            false => CUT_OFF,
        }
    }

    /// Whether an intact page of recovery data is near the end of the file.
    fn has_recovery_data(&self) -> bool {
        let size = self.file.metadata().map_or(0, |found| found.len());
        let first = size.saturating_sub(SEARCHED);
        let mut end = size;
        while end > first {
            let start = end.saturating_sub(PIECE).max(first);
            // A page may begin in this piece and end in the one behind it.
            let length = size.min(end + PAGE as u64) - start;
            let mut bytes = vec![0; length as usize];
            if self.file.read_exact_at(&mut bytes, start).is_ok()
                && bytes.windows(PAGE).any(is_recovery_page)
            {
                return true;
            }
            end = start;
        }
        false
    }

    /// The text in a section of the program.
    pub(crate) fn section(&self, name: &str) -> Result<OsString> {
        let read = |at: u64, buf: &mut [u8]| self.file.read_exact_at(buf, at);
        let found = Elf::read(&read).and_then(|elf| elf.section(&read, name));
        let found = found.ok_or_else(|| {
            let path = self.path.display();
            Failure::new(format_args!("no section {name}: {path}")).code(EXIT_FAILURE)
        })?;
        let mut bytes = vec![0; usize::try_from(found.size.min(MOST)).unwrap_or_default()];
        // What has no contents in the file is of no use to anybody.
        if read(found.offset, &mut bytes).is_err() {
            bytes.clear();
        }
        let end = bytes.iter().position(|&byte| byte == 0);
        bytes.truncate(end.unwrap_or(bytes.len()));
        Ok(OsString::from_vec(bytes))
    }

    /// A number that differs between files, and between states of one file. What has another `purpose` has
    /// another one.
    pub(crate) fn identity(&self, offset: u64, purpose: &[u8]) -> u64 {
        let meta = &self.metadata;
        let mut bytes = purpose.to_vec();
        for number in [meta.dev(), meta.ino(), meta.size(), offset] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        XxHash3_64::oneshot(&bytes)
    }

    /// The beginning of the file's name, of characters that need no quoting.
    pub(crate) fn short_name(&self) -> String {
        short_name(self.path.file_name().unwrap_or_default())
    }
}

fn is_recovery_page(bytes: &[u8]) -> bool {
    let page = bytes.first_chunk();
    page.is_some_and(|page| page_kind(page).is_some())
}

/// Longest part of a file's name in the name of a directory; scripts have a limit of 127 bytes for the
/// path of their interpreter.
const SHORT: usize = 12;

fn short_name(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let safe = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .map(|c| if safe(&c) { c } else { '_' })
        .take(SHORT)
        .collect()
}

/// The absolute path of the opened file `place`: as the system knows it, or one of the paths by which it was
/// called. A file in memory has none; then it is the one that the caller has put into `APPIMAGE`.
fn path_of(
    place: &Path,
    metadata: &Metadata,
    called: Option<PathBuf>,
    given: Option<PathBuf>,
) -> PathBuf {
    let is_it = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino()))
    };
    let known = std::fs::read_link(place).ok();
    let candidates = [known.clone(), called, given.clone()];
    let found = candidates
        .into_iter()
        .flatten()
        .filter(|path| is_it(path))
        .find_map(|path| path.canonicalize().ok());
    found
        .or_else(|| given.filter(|path| path.is_absolute()))
        .or(known)
        .unwrap_or_else(|| place.to_owned())
}

/// Adds to a path without a separator.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_need_no_quoting() {
        assert_eq!(short_name(OsStr::new("My App.AppImage")), "My_App.AppIm");
        assert_eq!(short_name(OsStr::new("")), "");
        assert_eq!(short_name(OsStr::new("/memfd:x")), "_memfd_x");
    }

    #[test]
    fn another_state_of_a_file_is_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let program = |contents: &str| {
            std::fs::write(&path, contents).unwrap();
            let file = File::open(&path).unwrap();
            Program {
                metadata: file.metadata().unwrap(),
                file,
                path: path.clone(),
            }
        };
        let first = program("a");
        assert_eq!(first.identity(0, b""), first.identity(0, b""));
        assert_ne!(first.identity(0, b""), first.identity(1, b""));
        assert_ne!(first.identity(0, b""), first.identity(0, b"/list"));
        assert_ne!(first.identity(0, b""), program("ab").identity(0, b""));
    }

    #[test]
    fn a_file_without_a_name_has_the_one_that_its_caller_gave() {
        let file = redwarfs_testkit::process::unnamed_file(Path::new("/tmp")).unwrap();
        let metadata = file.metadata().unwrap();
        let place = Path::new("/nowhere");
        let path = |given: Option<&str>| path_of(place, &metadata, None, given.map(PathBuf::from));
        assert_eq!(path(Some("/opt/x.AppImage")), Path::new("/opt/x.AppImage"));
        assert_eq!(path(Some("x.AppImage")), place);
        assert_eq!(path(None), place);
    }
}
