//! A directory, or another source of entries, becomes an image.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::metadata::FileType;
use redwarfs_io::{AtomicFile, Overwrite};
use redwarfs_writer::{
    BuildOptions, BuildSummary, Counters, DirectorySource, Level, Phase, Progress, SilentProgress,
    Source,
};
use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::messages::Messages;
use crate::named::set_option;

/// Packs a directory, or a [`Collection`](crate::Collection), into an image.
///
/// ```
/// # let work = tempfile::tempdir()?;
/// # let (dir, path) = (work.path().join("site"), work.path().join("site.dwarfs"));
/// # std::fs::create_dir(&dir)?;
/// # std::fs::write(dir.join("index.html"), "<p>")?;
/// # std::fs::write(dir.join("index.html~"), "<p")?;
/// let built = redwarfs::Builder::new(&dir)
///     .level(9)
///     .filter(|path, _| !path.to_string_lossy().ends_with('~'))
///     .write_to(&path)?;
/// assert_eq!(built.summary.image_size, std::fs::metadata(&path)?.len());
/// assert_eq!(redwarfs::Image::open(&path)?.read_dir("")?.count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    input: Input,
    options: BuildOptions,
    overwrite: bool,
    continue_on_error: bool,
    filter: Option<Arc<Filter>>,
    progress: Option<Arc<dyn Progress>>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug, Clone)]
enum Input {
    Directory(PathBuf),
    Source(Arc<dyn Source>),
}

type Filter = dyn Fn(&Path, FileType) -> bool + Send + Sync;

/// The result of a build.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Built {
    /// Sizes, numbers and times.
    pub summary: BuildSummary,
    /// Messages about data that images cannot hold, such as extended attributes; at most 1,000.
    pub warnings: Vec<String>,
    /// With [`Builder::continue_on_error`]: one message for each entry that was not stored unchanged,
    /// at most 1,000. [`BuildSummary::errors`] counts all.
    pub problems: Vec<String>,
}

impl Builder {
    /// A builder for the directory `dir` with the settings of level 7.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::of(Input::Directory(dir.into()))
    }

    /// A builder for the entries of a source, with the settings of level 7.
    pub fn from_source(source: Arc<dyn Source>) -> Self {
        Self::of(Input::Source(source))
    }

    fn of(input: Input) -> Self {
        Self {
            input,
            options: BuildOptions::default(),
            overwrite: false,
            continue_on_error: false,
            filter: None,
            progress: None,
            stop: Arc::default(),
        }
    }

    /// Chooses the preset: from 0 (no compression) and 1 (fast) to 9 (small). Replaces all
    /// [`options`](Self::options).
    #[must_use]
    pub fn level(mut self, level: u8) -> Self {
        self.options = BuildOptions::level(level);
        self
    }

    /// Replaces the preset by options of your own.
    ///
    /// ```
    /// use redwarfs::{BuildOptions, Builder};
    ///
    /// let mut options = BuildOptions::level(5);
    /// options.set_owner = Some(0);
    /// options.set_group = Some(0);
    /// let builder = Builder::new("/usr/share/doc").options(options);
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn options(mut self, options: BuildOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets an option by the name that it has in `mkdwarfs`, and a text value. `-` and `_` in names are
    /// equal. [`OPTION_NAMES`](crate::OPTION_NAMES) has all names.
    ///
    /// ```
    /// let builder = redwarfs::Builder::new("/usr/share/doc")
    ///     .level(5)
    ///     .option("block-size-bits", "20")?
    ///     .option("order", "similarity")?;
    /// assert!(builder.clone().option("order", "random").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::InvalidOption`](crate::BuildError::InvalidOption) if there is no such option, or
    /// the value is invalid.
    pub fn option(mut self, name: &str, value: &str) -> Result<Self> {
        set_option(&mut self.options, name, value)?;
        Ok(self)
    }

    /// Lets [`write_to`](Self::write_to) replace a file. By default a file of that name is an error.
    #[must_use]
    pub fn overwrite(mut self, yes: bool) -> Self {
        self.overwrite = yes;
        self
    }

    /// Stores everything else if some entry cannot be read; [`Built::problems`] names it. By default
    /// such an entry ends the build, and there is no image.
    #[must_use]
    pub fn continue_on_error(mut self, yes: bool) -> Self {
        self.continue_on_error = yes;
        self
    }

    /// Stores only entries that `wanted` accepts. It gets the path below the directory and the type. A
    /// directory that it refuses is left out with everything below. It works only with a directory: a
    /// build of another source fails.
    #[must_use]
    pub fn filter(
        mut self,
        wanted: impl Fn(&Path, FileType) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Arc::new(wanted));
        self
    }

    /// Reports phases, counters and messages to `progress` during the build.
    #[must_use]
    pub fn progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Ends the build with [`BuildError::Interrupted`](crate::BuildError::Interrupted) when another
    /// thread sets `stop`.
    #[must_use]
    pub fn stop_flag(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// Builds the image and gives it the name `path` when it is complete. An image inside of the
    /// directory does not store itself.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Incomplete`], [`Error::Build`], or [`Error::Output`] with
    /// [`io::ErrorKind::AlreadyExists`] if there is a file of that name. The old file, if any, is
    /// unchanged.
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<Built> {
        let overwrite = match self.overwrite {
            true => Overwrite::Yes,
            false => Overwrite::No,
        };
        let source = self.source()?;
        // The old file is no part of the new image either.
        let old = rustix::fs::open(path.as_ref(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let file = AtomicFile::create(path, overwrite).map_err(Error::Output)?;
        let notice = file.notice();
        let source: Arc<dyn Source> = match source {
            Opened::Directory(source) => {
                let source = *source;
                let source = match old {
                    Ok(old) => source.skip_file(old),
                    Err(_) => source,
                };
                Arc::new(source.skip_file(&file))
            }
            Opened::Source(source) => source,
        };
        let mut out = BufWriter::new(file);
        let mut built = self.build(source.as_ref(), &mut out)?;
        let file = out.into_inner().map_err(|e| Error::Output(e.into()))?;
        let name = file.path().display().to_string();
        file.commit().map_err(Error::Output)?;
        built
            .warnings
            .extend(notice.map(|notice| format!("{name} {notice}")));
        Ok(built)
    }

    /// Builds the image into anything that takes bytes. After an error, the output holds a part of an
    /// image.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Incomplete`] or [`Error::Build`].
    pub fn write(&self, out: &mut dyn Write) -> Result<Built> {
        match self.source()? {
            Opened::Directory(source) => self.build(source.as_ref(), out),
            Opened::Source(source) => self.build(source.as_ref(), out),
        }
    }

    fn source(&self) -> Result<Opened> {
        let dir = match (&self.input, &self.filter) {
            (Input::Directory(dir), _) => dir,
            (Input::Source(source), None) => return Ok(Opened::Source(Arc::clone(source))),
            (Input::Source(_), Some(_)) => {
                let text = "only the entries of a directory can be filtered";
                return Err(redwarfs_writer::Error::InvalidOption(text.to_owned()).into());
            }
        };
        let source = DirectorySource::new(dir).map_err(|source| Error::Input {
            path: dir.clone(),
            source,
        })?;
        Ok(Opened::Directory(Box::new(match self.filter.clone() {
            Some(wanted) => source.with_filter(Box::new(move |path, kind| {
                wanted(Path::new(std::ffi::OsStr::from_bytes(path)), kind)
            })),
            None => source,
        })))
    }

    fn build(&self, source: &dyn Source, out: &mut dyn Write) -> Result<Built> {
        let listener = Listener {
            to: match &self.progress {
                Some(progress) => progress.as_ref(),
                None => &SilentProgress::default(),
            },
            warnings: Messages::default(),
            problems: Messages::default(),
            failed: AtomicBool::new(false),
        };
        let failed = (!self.continue_on_error).then_some(&listener.failed);
        let builder = redwarfs_writer::Builder::new(self.options.clone());
        let mut out = Guarded { out, failed };
        let summary = builder.build(source, &mut out, &listener, &self.stop);
        if !self.continue_on_error
            && let Some(problem) = listener.problems.first()
        {
            return Err(Error::Incomplete(problem));
        }
        Ok(Built {
            summary: summary?,
            warnings: listener.warnings.take(),
            problems: listener.problems.take(),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("input", &self.input)
            .field("options", &self.options)
            .field("overwrite", &self.overwrite)
            .field("continue_on_error", &self.continue_on_error)
            .finish_non_exhaustive()
    }
}

/// The input of one build.
enum Opened {
    Directory(Box<DirectorySource>),
    Source(Arc<dyn Source>),
}

/// Keeps messages, and passes everything on.
struct Listener<'a> {
    to: &'a dyn Progress,
    warnings: Messages,
    problems: Messages,
    failed: AtomicBool,
}

impl Progress for Listener<'_> {
    fn counters(&self) -> &Counters {
        self.to.counters()
    }

    fn phase(&self, phase: Phase) {
        self.to.phase(phase);
    }

    fn log(&self, level: Level, message: &str) {
        match level {
            Level::Error => {
                self.problems.push(message);
                self.failed.store(true, Ordering::Relaxed);
            }
            Level::Warn => self.warnings.push(message),
            _ => {}
        }
        self.to.log(level, message);
    }
}

/// Refuses bytes of an image that is not wanted, which ends the build.
struct Guarded<'a> {
    out: &'a mut dyn Write,
    failed: Option<&'a AtomicBool>,
}

impl Write for Guarded<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self
            .failed
            .is_some_and(|failed| failed.load(Ordering::Relaxed))
        {
            return Err(io::Error::other("the image would be incomplete"));
        }
        self.out.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
