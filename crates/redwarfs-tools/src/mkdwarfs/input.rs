//! The input of a build: the directory, with everything that selects, changes or adds entries.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_io::path;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_writer::{DeclaredSource, DirectorySource, FileType, Source, Tag, TimedSource};

use super::args::Args;
use super::filter::{DebugMode, Rules};
use super::pseudo;
use super::script::Script;
use crate::common::error::{EXIT_OK, cause_at, display_path, io_cause};
use crate::common::os::{canonical, open_to_compare};
use crate::common::output::need_stdout;
use crate::common::{Logger, Result, ToolError};

/// The input directory as the command line wants it, before it becomes a [`Source`].
pub(super) struct Directory {
    pub(super) source: DirectorySource,
    /// Entries of the input list that are not in the image.
    errors: u64,
    excluded: Arc<AtomicU64>,
}

/// The source of a build.
pub(super) struct Input {
    pub(super) source: Arc<dyn Source>,
    directory: Arc<DirectorySource>,
    declared: Option<Arc<DeclaredSource>>,
    errors: u64,
    excluded: Arc<AtomicU64>,
}

impl Directory {
    /// Opens the input. `filter` leaves out entries that the rules exclude.
    pub(super) fn open(args: &Args, filter: Option<Rules>, logger: &Logger) -> Result<Self> {
        let given = args.input.as_deref().unwrap_or(Path::new("."));
        let root = canonical(given).map_err(|e| read_error(given, &e))?;
        let mut source = DirectorySource::new(&root)
            .map_err(|e| read_error(&root, &e))?
            .with_symlinks(args.symlinks);
        if args.one_file_system {
            source = source
                .one_file_system()
                .map_err(|e| read_error(&root, &e))?;
        }
        let caches = args.exclude_caches.then_some(Tag::Cache);
        let named = args.exclude_if_present.iter();
        let tags = named.map(|name| Tag::Name(path::bytes(name).into_owned()));
        source = source.without_tagged(tags.chain(caches).collect());
        let excluded = Arc::new(AtomicU64::new(0));
        if let Some(rules) = filter.filter(|rules| !rules.is_empty()) {
            let excluded = Arc::clone(&excluded);
            source = source.with_filter(Box::new(move |path: &[u8], kind| {
                let included = rules.include(&root, path, kind);
                excluded.fetch_add(u64::from(!included), Ordering::Relaxed);
                included
            }));
        }
        let (source, errors) = match &args.input_list {
            Some(list) => restrict(source, list, args, logger)?,
            None => (source, 0),
        };
        Ok(Self {
            source,
            errors,
            excluded,
        })
    }

    /// Leaves the file `output` out of its own image, if it is below the input.
    pub(super) fn without(self, output: &Path) -> Self {
        if output == Path::new("-") {
            return self.map(|source| source.skip_file(io::stdout()));
        }
        match open_to_compare(output) {
            Ok(file) => self.map(|source| source.skip_file(&file)),
            // There is none yet.
            Err(_) => self,
        }
    }

    /// Changes the source.
    pub(super) fn map(self, change: impl FnOnce(DirectorySource) -> DirectorySource) -> Self {
        Self {
            source: change(self.source),
            ..self
        }
    }

    /// Adds the layers on top of the directory.
    pub(super) fn layered(self, args: &Args) -> Result<Input> {
        let directory = Arc::new(self.source);
        let mut source: Arc<dyn Source> = Arc::<DirectorySource>::clone(&directory);
        if let Some(limit) = args.file_timeout {
            source = Arc::new(TimedSource::new(source, limit));
        }
        let mut declared = None;
        let mut declarations = Vec::new();
        let mut time = None;
        for file in &args.pseudo_file {
            let mut pseudo = pseudo::read(file)?;
            declarations.append(&mut pseudo.declarations);
            let latest = time.map_or(pseudo.time, |time: redwarfs_writer::Timestamp| {
                if (time.sec, time.nsec) < (pseudo.time.sec, pseudo.time.nsec) {
                    pseudo.time
                } else {
                    time
                }
            });
            time = Some(latest);
        }
        if let Some(time) = time {
            let (devices, specials) = keeps(args);
            let layer = DeclaredSource::new(source, declarations, time, devices, specials)
                .map_err(|e| ToolError::new("bad pseudo file").cause(e))?;
            let layer = Arc::new(layer);
            declared = Some(Arc::clone(&layer));
            source = layer;
        }
        Ok(Input {
            source,
            directory,
            declared,
            errors: self.errors,
            excluded: self.excluded,
        })
    }
}

/// Whether devices and specials of the input directory are stored.
pub(super) fn keeps(args: &Args) -> (bool, bool) {
    let listed = args.input_list.is_some();
    (args.with_devices || listed, args.with_specials || listed)
}

impl Input {
    /// How many entries the rules of `-F` have excluded. Entries below an excluded directory do not count.
    pub(super) fn excluded(&self) -> u64 {
        self.excluded.load(Ordering::Relaxed)
    }

    /// How much was left out because of `--one-file-system`; says what.
    pub(super) fn elsewhere(&self, logger: &Logger) -> u64 {
        let elsewhere = self.directory.elsewhere();
        for path in &elsewhere {
            let shown = self.directory.display_path(path);
            logger.verbose(format_args!("of another file system, left out: {shown}"));
        }
        elsewhere.len() as u64
    }

    /// Says which declarations came to nothing. Returns the number of errors that the build does
    /// not know of.
    pub(super) fn finish(&self, logger: &Logger) -> u64 {
        let unused = self.declared.as_ref().map_or(Vec::new(), |d| d.unused());
        for path in &unused {
            logger.error(format_args!(
                "declared in a pseudo file, but not in the tree: {}",
                display_path(Path::new(&path::shown(path)))
            ));
        }
        self.errors + unused.len() as u64
    }
}

/// Reads the rules of `-F`.
pub(super) fn rules(args: &Args) -> Result<Rules> {
    let mut rules = Rules::default();
    for rule in &args.filter {
        rules.add(rule)?;
    }
    Ok(rules)
}

/// `--debug-filter`: prints the decision of the rules for each entry of the input.
pub(super) fn debug_filter(args: &Args, mode: DebugMode, logger: &Logger) -> Result<u8> {
    need_stdout()?;
    let rules = rules(args)?;
    let directory = Directory::open(args, None, logger)?.source;
    let root = directory.path().to_owned();
    // Without handlers a signal ends the process, and the script with it.
    let stop = Arc::new(AtomicBool::new(false));
    let script = args.script.as_deref();
    let script = script
        .map(|file| Script::load(file, &stop, logger))
        .transpose()?;
    let (devices, specials) = keeps(args);
    let asked = |kind| match kind {
        FileType::CharDevice | FileType::BlockDevice => devices,
        FileType::Fifo | FileType::Socket => specials,
        _ => true,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    // Directories to list, each with the inodes of those above it: a tree may contain itself.
    let identity = directory
        .root()
        .map_err(|e| read_error(&root, &e))?
        .identity;
    let top = Rc::new(Above(Some((identity, Rc::default()))));
    let mut todo: Vec<(Vec<u8>, Rc<Above>)> = vec![(Vec::new(), top)];
    let mut show = |line: Vec<u8>| match out.write_all(&line) {
        Ok(()) => Ok(true),
        // The reader of the pipe has closed it.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(ToolError::new("cannot write to standard output").io(&e)),
    };
    while let Some((path, above)) = todo.pop() {
        let mut items = match directory.list(&path) {
            Ok(items) => items,
            Err(e) => {
                let shown = directory.display_path(&path);
                logger.error(format_args!(
                    "cannot read directory '{shown}': {}",
                    io_cause(&e)
                ));
                continue;
            }
        };
        items.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let mut below = Vec::new();
        for (item, kept) in items {
            let mut whole = path.clone();
            if !whole.is_empty() {
                whole.push(b'/');
            }
            whole.extend_from_slice(&item.name);
            let Ok(meta) = item.meta else { continue };
            let mut included = kept && rules.include(&root, &whole, meta.kind);
            if let Some(script) = &script
                && included
                && asked(meta.kind)
            {
                included = script.keeps(&whole, &meta)?;
            }
            let is_directory = meta.kind == FileType::Directory;
            let absolute = root.join(path::shown(&whole));
            let line = mode.line(&path::bytes(absolute.as_os_str()), is_directory, included);
            if let Some(line) = line
                && !show(line)?
            {
                return Ok(EXIT_OK);
            }
            if included && is_directory && !above.contains(meta.identity) {
                let chain = Above(Some((meta.identity, Rc::clone(&above))));
                below.push((whole, Rc::new(chain)));
            }
        }
        todo.extend(below.into_iter().rev());
    }
    match out.flush() {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(ToolError::new("cannot write to standard output").io(&e))
        }
        _ => Ok(EXIT_OK),
    }
}

/// Inodes of the directories on the way to one.
#[derive(Default)]
struct Above(Option<((u64, u64), Rc<Above>)>);

impl Above {
    fn contains(&self, identity: (u64, u64)) -> bool {
        let mut at = &self.0;
        while let Some((found, up)) = at {
            // File systems without inode numbers show zeros.
            if *found == identity && identity.1 != 0 {
                return true;
            }
            at = &up.0;
        }
        false
    }
}

/// The entries of a list in a file, or of standard input for `-`; empty ones do not count.
pub(super) fn read_list(path: &Path, null: bool) -> io::Result<Vec<Vec<u8>>> {
    let text = if path == Path::new("-") {
        let mut text = Vec::new();
        io::stdin().read_to_end(&mut text)?;
        text
    } else {
        std::fs::read(path)?
    };
    let end = if null { b'\0' } else { b'\n' };
    let entries = text.split(|&b| b == end).filter(|entry| !entry.is_empty());
    Ok(entries.map(<[u8]>::to_vec).collect())
}

/// Restricts the source to the entries of the list `list`. Also returns the number of paths in the list
/// that are not in the source.
fn restrict(
    source: DirectorySource,
    list: &Path,
    args: &Args,
    logger: &Logger,
) -> Result<(DirectorySource, u64)> {
    let mut paths = read_list(list, args.null)
        .map_err(|e| ToolError::new("cannot read input list").path(list).io(&e))?
        .into_iter()
        .map(|path| PathBuf::from(path::shown(&path).into_owned()))
        .collect::<Vec<_>>();
    // The way in which the user writes the root may lead through symlinks.
    if let Some(given) = args.input.as_deref()
        && given.is_absolute()
        && given != source.path()
    {
        for path in &mut paths {
            if let Ok(below) = path.strip_prefix(given) {
                *path = below.to_owned();
            }
        }
    }
    let root_path = source.path().to_owned();
    let root = display_path(&root_path);
    let listed = match args.file_timeout {
        Some(limit) => source.with_list_in_time(paths, limit),
        None => Ok(source.with_list(paths)),
    };
    let (source, report) = listed.map_err(|e| read_error(&root_path, &e))?;
    for path in &report.duplicates {
        let path = display_path(path);
        logger.info(format_args!(
            "skipping duplicate entry '{path}' in input list"
        ));
    }
    for path in &report.outside {
        let path = display_path(path);
        logger.error(format_args!(
            "ignoring path '{path}' not below input path '{root}'"
        ));
    }
    for (path, cause) in &report.missing {
        logger.error(format_args!(
            "error reading entry: {}: {cause}",
            display_path(path)
        ));
    }
    let errors = report.outside.len() + report.missing.len();
    Ok((source, errors as u64))
}

/// The input cannot be used at all.
pub(super) fn read_error(path: &Path, error: &io::Error) -> ToolError {
    let mut cause = cause_at(path, error);
    // The user probably expects that an image is packed again.
    if error.kind() == io::ErrorKind::NotADirectory
        && path.is_file()
        && Image::open(path, &OpenOptions::default()).is_ok()
    {
        cause +=
            ", but an image; --recompress, --rebuild-metadata and --change-block-size rewrite it";
    }
    ToolError::new("cannot read input").path(path).cause(cause)
}
