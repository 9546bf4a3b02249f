//! Recovery data of a file: in the file, or in a sidecar.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::elf::appimage;
use redwarfs_io::{FileSource, LockedFile, Source};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_recovery::{
    Error, Mended, Protection, RecoveryData, RepairingSource, Sidecar, locate, locate_sidecar,
};

use super::Logger;
use super::env::{self, IoLayer};
use super::error::{ToolError, cause_at, display_path, io_cause};
use super::number::counted;

/// What the name of a sidecar ends with, behind the name of the image.
const ENDING: &str = ".dwrec";

/// Ranges that a message names.
const SHOWN: usize = 3;

/// The value of an option `--sidecar[=FILE]`: none without the option.
pub type SidecarChoice = Option<Option<PathBuf>>;

/// How much recovery data an option asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// Per cent of what is protected, above 0 and at most 1000.
    pub percent: f64,
    /// Whether it protects everything, and not only what no recovery data of an older snapshot does.
    pub merge: bool,
}

impl Amount {
    /// Parses `PERCENT[,merge]`, where the number may have its sign.
    ///
    /// # Errors
    /// What it has to be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (number, merge) = match text.strip_suffix(",merge") {
            Some(number) => (number, true),
            None => (text, false),
        };
        match number.strip_suffix('%').unwrap_or(number).parse() {
            Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(Self { percent, merge }),
            _ => Err("must be a number of per cent above 0, at most 1000, and may have ',merge' behind it".to_owned()),
        }
    }

    /// Protection with so much, of the image and what is in front of it.
    #[must_use]
    pub fn protection(self, threads: usize) -> Protection {
        let mut protection = Protection::percent(self.percent);
        protection.whole = self.merge;
        protection.leading = true;
        protection.threads = threads;
        protection
    }
}

/// The usual name of the sidecar of an image.
#[must_use]
pub fn sidecar_of(image: &Path) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(ENDING);
    PathBuf::from(name)
}

/// Whether damage of a sidecar is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It stays as it is.
    Read,
    /// It is repaired, if it can be written.
    Write,
}

/// Recovery data that was found.
#[derive(Debug)]
pub struct Found {
    /// It.
    pub data: RecoveryData,
    /// Its file, if that is a sidecar.
    pub sidecar: Option<PathBuf>,
}

/// Why none was found.
#[derive(Debug)]
pub enum FindError {
    /// The sidecar cannot be opened. The error names it.
    Open(io::Error),
    /// What is wrong with the recovery data, or the file that should have it.
    Data(PathBuf, Error),
}

impl FindError {
    /// As an error of a tool that cannot do `what`.
    #[must_use]
    pub fn failure(&self, what: &str) -> ToolError {
        match self {
            Self::Open(e) => ToolError::new(what).cause(io_cause(e)),
            Self::Data(path, error) => failure(what, path, error),
        }
    }
}

/// What could not be done with recovery data, as an error of a tool.
#[must_use]
pub fn failure(what: &str, path: &Path, error: &Error) -> ToolError {
    let failure = ToolError::new(what).path(path);
    match error {
        Error::Io(e) => failure.io(e),
        Error::Present => failure
            .cause(error)
            .hint("--remove-recovery removes it, and --sidecar adds more in another file"),
        Error::NotLast => failure.cause(error).hint(
            "--add-recovery protects what follows it, and --compact writes a copy without recovery data",
        ),
        Error::NotFound => failure.cause(error).hint(
            "--add-recovery makes it while the image is intact, and --sidecar=FILE names a sidecar",
        ),
        Error::Changed => failure
            .cause(error)
            .hint("delete the sidecar, and --add-recovery --sidecar makes a new one"),
        Error::LostStart => failure
            .cause(error)
            .hint("--repair=FILE makes a repaired copy"),
        _ => failure.cause(error),
    }
}

/// Finds the recovery data of a file that was opened as `path`. Without a choice, that is what the file itself has, or
/// else what the sidecar with the usual name has.
///
/// # Errors
/// [`FindError`].
pub fn find(
    source: &dyn Source,
    path: &Path,
    choice: &SidecarChoice,
    access: Access,
    stop: &AtomicBool,
) -> Result<Found, FindError> {
    let usual = sidecar_of(path);
    let sidecar = match choice {
        Some(Some(file)) => file.clone(),
        Some(None) => usual,
        None => match locate(source, stop) {
            Ok(data) => {
                return Ok(Found {
                    data,
                    sidecar: None,
                });
            }
            Err(Error::NotFound | Error::Format(_)) if usual.is_file() => usual,
            Err(error) => return Err(FindError::Data(path.to_owned(), error)),
        },
    };
    let opened = open_sidecar(&sidecar, access).map_err(FindError::Open)?;
    match locate_sidecar(source, opened, stop) {
        Ok(data) => Ok(Found {
            data,
            sidecar: Some(sidecar),
        }),
        Err(error) => Err(FindError::Data(sidecar, error)),
    }
}

/// Opens an image whose damaged parts are repaired when they are read, in memory.
///
/// # Errors
/// There is no recovery data, or the image cannot be opened with it.
pub fn open_repairing(
    path: &Path,
    options: &OpenOptions,
    choice: &SidecarChoice,
    logger: &Logger,
) -> Result<Image, ToolError> {
    let what = "cannot open image";
    let never = AtomicBool::new(false);
    let source = IoLayer::from_env().open_cached(path, options.disk_cache.as_ref());
    let source = source.map_err(|e| ToolError::new(what).path(path).cause(cause_at(path, &e)))?;
    let found = find(source.as_ref(), path, choice, Access::Read, &never);
    let found = found.map_err(|e| e.failure(what))?;
    let source = repairing(source, &found, logger).map_err(|e| failure(what, path, &e))?;
    let mut options = options.clone();
    options.cache.affinity = options.cache.affinity.or_else(|| env::affinity("blkcache"));
    Image::from_source(source, &options).map_err(|e| ToolError::new(what).path(path).cause(e))
}

/// A file of which damaged parts are repaired when they are read, in memory. Each repair is logged once.
///
/// # Errors
/// Those of [`RepairingSource::new`].
pub fn repairing(
    source: Arc<dyn Source>,
    found: &Found,
    logger: &Logger,
) -> Result<Arc<dyn Source>, Error> {
    let logger = logger.clone();
    let listener = move |mended: &Mended| match mended {
        Mended::Repaired { ranges, total } => logger.warn(format_args!(
            "repaired in memory: {}; {} so far",
            places(ranges),
            counted(*total, "place", "places")
        )),
        Mended::Lost { ranges } => logger.error(format_args!(
            "more is damaged than the recovery data can repair: {}",
            places(ranges)
        )),
    };
    let source = RepairingSource::new(source, &found.data, Box::new(listener))?;
    Ok(Arc::new(source))
}

impl Found {
    /// Where a range begins that is relative to the image: in the image, or in the file in front of it.
    #[must_use]
    pub fn place(&self, start: i64) -> String {
        let in_file = self.data.image_offset().saturating_add(start);
        match (start, in_file) {
            (0.., _) => format!("at offset {start} of the image"),
            (_, 0..) => format!("at offset {in_file} of the file"),
            _ => format!(
                "{} before the file",
                counted(in_file.unsigned_abs(), "byte", "bytes")
            ),
        }
    }

    /// What restores damage that can be repaired.
    #[must_use]
    pub fn repair(&self) -> &'static str {
        match self.data.lost_at_start() {
            Ok(0) | Err(_) => "dwarfsck --repair restores them",
            Ok(_) => "the file has lost its start, so dwarfsck --repair=FILE makes a repaired copy",
        }
    }

    /// What the comparison leaves out of a program, to follow that the file is as it was.
    #[must_use]
    pub fn but_for(&self) -> String {
        match self.data.left_out() {
            0 => String::new(),
            bytes => format!(
                " but for {} in sections of the program ({}), which are not compared",
                counted(bytes, "byte", "bytes"),
                appimage::ALL.join(", ")
            ),
        }
    }
}

/// Names ranges, relative to the image, that have zeros in a repaired copy.
pub fn say_zeros(found: &Found, zeros: &[(i64, u64)], copy: &Path, logger: &Logger) {
    for (start, length) in zeros {
        logger.error(format_args!(
            "lost: {} {}: the file cannot be read there, and nothing protects them; \
             {} has zeros instead",
            counted(*length, "byte", "bytes"),
            found.place(*start),
            display_path(copy)
        ));
    }
}

/// Some ranges of an image.
fn places(ranges: &[(i64, u64)]) -> String {
    let shown: Vec<String> = ranges
        .iter()
        .take(SHOWN)
        .map(|(start, length)| format!("{} at offset {start}", counted(*length, "byte", "bytes")))
        .collect();
    let more = match ranges.len() > SHOWN {
        true => ", ...",
        false => "",
    };
    format!("{}{more}", shown.join(", "))
}

/// Opens a file that a tool reads to do `what`.
///
/// # Errors
/// Those of [`FileSource::open`].
pub fn open(path: &Path, what: &str) -> Result<FileSource, ToolError> {
    FileSource::open(path).map_err(|e| ToolError::new(what).cause(io_cause(&e)))
}

fn open_sidecar(path: &Path, access: Access) -> io::Result<Sidecar> {
    if access == Access::Write {
        match LockedFile::open(path) {
            Ok(file) => return Ok(Sidecar::writable(Arc::new(file))),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Sidecar::read_only(Arc::new(FileSource::open(path)?)))
}
