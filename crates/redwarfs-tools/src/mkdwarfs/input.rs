//! The input of a build: a directory or archives, with everything that selects, changes or adds entries.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_append::Layered;
use redwarfs_archive::Whiteouts;
use redwarfs_io::path;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_writer::{
    BuildOptions, Declaration, DeclaredSource, DirItem, DirectorySource, FileType, ListReport,
    Source, Tag, TimedSource, Timestamp,
};

use super::archives::{ArchiveTree, Archives};
use super::args::Args;
use super::difference::Below;
use super::display::Report;
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
    /// If the input is a directory.
    directory: Option<Arc<DirectorySource>>,
    declared: Option<Arc<DeclaredSource>>,
    errors: u64,
    excluded: Arc<AtomicU64>,
}

/// The input without the entries of pseudo files.
pub(super) enum Base {
    Directory(Box<Directory>),
    /// Archives, which are read when everything else is ready.
    Archives(Archives),
    /// An image with the changes of a layer.
    Layered(Arc<Layered>),
}

/// The input in a form that can be listed.
pub(super) enum Tree {
    Directory(Box<Directory>),
    Archives(Box<ArchiveTree>),
    Layered(Arc<Layered>),
}

impl Base {
    /// Looks at the input. A directory is opened. `filter` leaves out entries that the rules exclude.
    pub(super) fn open(args: &Args, filter: Rules, logger: &Logger) -> Result<Self> {
        Ok(match Archives::among(args)? {
            Some(archives) => Self::Archives(archives.with_rules(filter)),
            None => Self::Directory(Box::new(Directory::open(args, Some(filter), logger)?)),
        })
    }

    /// Leaves the file `output` out of its own image, if it is below the input.
    pub(super) fn without(self, output: &Path) -> Self {
        match self {
            Self::Directory(directory) => Self::Directory(Box::new(directory.without(output))),
            other => other,
        }
    }

    /// Changes the source, if it is a directory.
    pub(super) fn map(self, change: impl FnOnce(DirectorySource) -> DirectorySource) -> Self {
        match self {
            Self::Directory(directory) => Self::Directory(Box::new(directory.map(change))),
            other => other,
        }
    }

    /// Reads archives.
    pub(super) fn read(self, args: &Args, report: &Report, stop: &AtomicBool) -> Result<Tree> {
        Ok(match self {
            Self::Directory(directory) => Tree::Directory(directory),
            Self::Archives(archives) => {
                Tree::Archives(Box::new(archives.read(args, report, stop)?))
            }
            Self::Layered(layered) => Tree::Layered(layered),
        })
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => f.write_str(&display_path(directory.source.path())),
            Self::Archives(archives) => archives.fmt(f),
            Self::Layered(_) => f.write_str("the image and the changes of the layer"),
        }
    }
}

impl Tree {
    /// Adds the layers on top.
    pub(super) fn layered(self, args: &Args, layer: Option<Layer>) -> Result<Input> {
        let (mut source, directory, errors, excluded): (Arc<dyn Source>, _, _, _) = match self {
            Self::Directory(directory) => {
                let Directory {
                    source,
                    errors,
                    excluded,
                } = *directory;
                let directory = Arc::new(source);
                let source = Arc::<DirectorySource>::clone(&directory);
                (source, Some(directory), errors, excluded)
            }
            Self::Archives(tree) => (
                Arc::new(tree.source.for_one_build()),
                None,
                tree.errors,
                tree.excluded,
            ),
            Self::Layered(layered) => (layered, None, 0, Arc::default()),
        };
        if let Some(limit) = args.file_timeout {
            source = Arc::new(TimedSource::new(source, limit));
        }
        let mut declared = None;
        if let Some(Layer { declarations, time }) = layer {
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
            errors,
            excluded,
        })
    }

    fn source(&self) -> &dyn Source {
        match self {
            Self::Directory(directory) => &directory.source,
            Self::Archives(tree) => &tree.source,
            Self::Layered(layered) => &**layered,
        }
    }

    /// The entries of a directory, and of each whether it is part of the tree.
    fn list(&self, path: &[u8]) -> io::Result<Vec<(DirItem, bool)>> {
        match self {
            Self::Directory(directory) => directory.source.list(path),
            Self::Archives(tree) => tree.source.list(path),
            Self::Layered(layered) => {
                let items = layered.read_dir(path)?.into_iter();
                Ok(items.map(|item| (item, true)).collect())
            }
        }
    }
}

/// The entries that pseudo files declare.
pub(super) struct Layer {
    declarations: Vec<Declaration>,
    /// The latest time of the files.
    time: Timestamp,
}

/// Reads the pseudo files, if there are any.
pub(super) fn declarations(args: &Args) -> Result<Option<Layer>> {
    let mut layer: Option<Layer> = None;
    for file in &args.pseudo_file {
        let mut pseudo = pseudo::read(file)?;
        match &mut layer {
            Some(layer) => {
                layer.declarations.append(&mut pseudo.declarations);
                let key = |time: Timestamp| (time.sec, time.nsec);
                if key(layer.time) < key(pseudo.time) {
                    layer.time = pseudo.time;
                }
            }
            None => {
                layer = Some(Layer {
                    declarations: pseudo.declarations,
                    time: pseudo.time,
                });
            }
        }
    }
    Ok(layer)
}

impl Directory {
    /// Opens the input. `filter` leaves out entries that the rules exclude.
    pub(super) fn open(args: &Args, filter: Option<Rules>, logger: &Logger) -> Result<Self> {
        let given = args.first_input().unwrap_or(Path::new("."));
        let root = canonical(given).map_err(|e| read_error(given, &e))?;
        let mut source = DirectorySource::new(&root)
            .map_err(|e| read_error(&root, &e))?
            .with_symlinks(args.symlinks);
        source = args.xattrs.read(source);
        if args.one_file_system {
            source = source
                .one_file_system()
                .map_err(|e| read_error(&root, &e))?;
        }
        source = source.without_tagged(tags(args));
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
}

/// Whether devices and specials of the input are stored.
pub(super) fn keeps(args: &Args) -> (bool, bool) {
    let listed = args.input_list.is_some();
    let overlay = args.whiteouts() == Whiteouts::Overlay;
    let layer = args.append.layer.is_some();
    // What the image has stays.
    let commit = args.append.commit.is_some();
    let devices = args.with_devices || listed || overlay || layer || commit;
    (devices, args.with_specials || listed || commit)
}

impl Input {
    /// Leaves out what is below the layer, if the input becomes one.
    pub(super) fn above(
        self,
        below: Option<&Below<'_>>,
        options: &BuildOptions,
        stop: &AtomicBool,
    ) -> Result<Self> {
        Ok(match below {
            Some(below) => Self {
                source: below.difference(self.source, options, stop)?,
                ..self
            },
            None => self,
        })
    }

    /// How many entries the rules of `-F` have excluded. Entries below an excluded directory do not count.
    pub(super) fn excluded(&self) -> u64 {
        self.excluded.load(Ordering::Relaxed)
    }

    /// How much was left out because of `--one-file-system`; says what.
    pub(super) fn elsewhere(&self, logger: &Logger) -> u64 {
        let Some(directory) = &self.directory else {
            return 0;
        };
        let elsewhere = directory.elsewhere();
        for path in &elsewhere {
            let shown = directory.display_path(path);
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

/// The marks of directories whose contents are left out.
pub(super) fn tags(args: &Args) -> Vec<Tag> {
    let caches = args.exclude_caches.then_some(Tag::Cache);
    let named = args.exclude_if_present.iter();
    let tags = named.map(|name| Tag::Name(path::bytes(name).into_owned()));
    tags.chain(caches).collect()
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
    // Without handlers a signal ends the process, and the script with it.
    let stop = Arc::new(AtomicBool::new(false));
    let report = Report::new(logger.clone(), false, false);
    let tree = Base::open(args, Rules::default(), logger)?.read(args, &report, &stop)?;
    let root = match &tree {
        Tree::Directory(directory) => directory.source.path().to_owned(),
        Tree::Archives(_) | Tree::Layered(_) => PathBuf::from("/"),
    };
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
    let identity = tree
        .source()
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
        let mut items = match tree.list(&path) {
            Ok(items) => items,
            Err(e) => {
                let shown = tree.source().display_path(&path);
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

/// The paths of the input list `list`.
pub(super) fn listed(list: &Path, args: &Args) -> Result<Vec<PathBuf>> {
    let entries = read_list(list, args.null)
        .map_err(|e| ToolError::new("cannot read input list").path(list).io(&e))?;
    let paths = entries.into_iter();
    Ok(paths
        .map(|path| PathBuf::from(path::shown(&path).into_owned()))
        .collect())
}

/// Restricts the source to the entries of the list `list`. Also returns the number of paths in the list
/// that are not in the source.
fn restrict(
    source: DirectorySource,
    list: &Path,
    args: &Args,
    logger: &Logger,
) -> Result<(DirectorySource, u64)> {
    let mut paths = listed(list, args)?;
    // The way in which the user writes the root may lead through symlinks.
    if let Some(given) = args.first_input()
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
    let listed = match args.file_timeout {
        Some(limit) => source.with_list_in_time(paths, limit),
        None => Ok(source.with_list(paths)),
    };
    let (source, report) = listed.map_err(|e| read_error(&root_path, &e))?;
    Ok((source, say_listed(&report, &root_path, logger)))
}

/// Says what is wrong with a list of entries below `root`. Returns how many of them are not in the source.
pub(super) fn say_listed(report: &ListReport, root: &Path, logger: &Logger) -> u64 {
    let root = display_path(root);
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
    (report.outside.len() + report.missing.len()) as u64
}

/// The input cannot be used at all.
pub(super) fn read_error(path: &Path, error: &io::Error) -> ToolError {
    let mut cause = cause_at(path, error);
    // The user probably expects that an image is packed again.
    if error.kind() == io::ErrorKind::NotADirectory && is_image(path) {
        cause += ", but an image; --recompress, --rebuild-metadata and --change-block-size rewrite it, \
                  --filter, --remove, --rename and --add change its tree";
    }
    ToolError::new("cannot read input").path(path).cause(cause)
}

/// Whether a file is an image, also one behind a header. An archive may have an image in it.
pub(super) fn is_image(path: &Path) -> bool {
    path.is_file()
        && !redwarfs_archive::is_archive(path)
        && Image::open(path, &OpenOptions::default()).is_ok()
}
