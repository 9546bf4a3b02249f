//! From images to an image with another tree: `--merge` and its relatives.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::ArgMatches;
use clap::parser::ValueSource;
use redwarfs_archive::Whiteouts as ArchiveWhiteouts;
use redwarfs_io::{FileSource, path, temporary_file};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_rewrite::Error as RewriteError;
use redwarfs_rewrite::merge::{
    Error as MergeError, MergeOptions, Part, Selection, Whiteouts, merge,
};
use redwarfs_writer::{BuildOptions, Builder, Progress as _};

use super::archives::{named, spool};
use super::args::{self, Args};
use super::definition::{Changes, check_rewrite};
use super::display::Report;
use super::filter::Rules;
use super::header::Front;
use super::input::{Base, is_image, rules};
use super::merge_args::{Mode, Pair};
use super::output::{self, Target};
use super::rewrite::{check_categories, named_categories, rewrite_error, rewrite_options};
use super::run::{build_error, build_options, left_out};
use super::summary::Summary;
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, io_cause};
use crate::common::open::{Spelling, open_image};
use crate::common::os::stop_flag;
use crate::common::{Logger, Result, ToolError};

/// Decoded blocks that all images together keep for extended attributes, in bytes.
const CACHES: u64 = 64 << 20;

/// An image with its place in the new tree.
struct Input {
    image: Image,
    /// Where it comes from.
    path: PathBuf,
    at: Vec<u8>,
}

impl Input {
    fn part(&self) -> Part<'_> {
        Part::new(&self.image, &self.at)
    }
}

/// Whether the arguments ask for a change of the tree of images.
pub(super) fn is_wanted(args: &Args) -> bool {
    let rewrites = args.rewrite.is_wanted();
    // Rules alone are enough for an image. With a rewrite, they need one, too.
    let filters = !args.filter.is_empty() && args.debug_filter.is_none();
    args.merge.is_wanted() || (filters && (rewrites || args.first_input().is_some_and(is_image)))
}

/// Joins and changes images. Returns the exit code.
pub(super) fn run(args: &Args, matches: &ArgMatches, command_line: &[OsString]) -> Result<u8> {
    let hint = "try 'mkdwarfs --help'";
    let logger = args.logger();
    let changes = Changes {
        rebuilds: true,
        block_size: false,
        tree: true,
        adds: args.merge.add.iter().any(|pair| !is_image(&pair.second)),
    };
    check_rewrite(args::command(), matches, changes, &logger)?;
    if args.rewrite.change_block_size {
        let what = "option '--change-block-size' cannot be used when a tree is changed";
        return Err(ToolError::new(what).hint("rewrite the new image in a second step"));
    }
    let given: Vec<&PathBuf> = args.input.iter().chain(&args.merge.images).collect();
    if given.is_empty() {
        return Err(ToolError::new("missing option '--input'").hint(hint));
    }
    if given.len() > 1 && args.merge.merge.is_none() {
        return Err(ToolError::new("several images need '--merge'").hint(hint));
    }
    let Some(output) = &args.output else {
        return Err(ToolError::new("missing option '--output'").hint(hint));
    };
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let build = build_options(args, command_line, &logger, None)?;
    let named = named_categories(&build);
    let mut options = merge_options(args, matches, build.clone())?;
    let own = &options.rewrite;
    let unnamed = Path::new("-");
    own.check().map_err(|e| rewrite_error(e, args, unnamed))?;

    let check = own.check;
    let cache = cache_of_each(args, given.len() + args.merge.add.len());
    options.caches = cache * (given.len() + args.merge.add.len()) as u64;
    let inputs = given
        .iter()
        .map(|given| input(given, args, check, cache, &logger));
    let inputs: Vec<Input> = inputs.collect::<Result<_>>()?;
    let sources = args.merge.add.iter();
    let sources: Vec<Added<'_>> = sources
        .map(|pair| Added::open(pair, args, output, check, cache, &logger))
        .collect::<Result<_>>()?;
    let mut images: Vec<&Image> = inputs.iter().map(|input| &input.image).collect();
    images.extend(sources.iter().filter_map(Added::image));
    // What is packed has the categories that this program knows.
    check_categories(&named, &images)?;
    let excluded = Arc::new(AtomicU64::new(0));
    let mut options = with_rules(options, rules(args)?, &excluded);
    let front = match inputs.first() {
        Some(Input { image, path, .. }) => {
            Front::settle(&mut options.rewrite.leading, args, image, path, &logger)?
        }
        None => Front::default(),
    };
    let from = inputs.iter().chain(sources.iter().filter_map(Added::input));
    let from: Vec<&Path> = from.map(|input| input.path.as_path()).collect();
    let target = Target::open(output, args.force, &from, &stop, &logger)?
        .executable(front.runs)
        .protected(args, &stop)?;
    let sources: Vec<Added<'_>> = sources
        .into_iter()
        .map(|source| source.without(&target))
        .collect();
    let report = Arc::new(Report::new(logger, true, args.verbose));
    let mode = args.progress.mode();
    let parts: Vec<Part<'_>> = inputs.iter().map(Input::part).collect();
    let mut input_size: u64 = sizes(&inputs);
    let mut elsewhere = 0;
    let summary = output::produce(target, front.length, &report, mode, &stop, |out| {
        let mut added = Vec::new();
        let mut errors = 0;
        let open = open_options(check, cache);
        for source in sources {
            let packed = source.pack(args, &build, &open, &report, &stop)?;
            errors += packed.errors;
            elsewhere += packed.elsewhere;
            added.push(packed.input);
        }
        input_size += sizes(&added);
        let paths = inputs.iter().chain(&added);
        let paths: Vec<&Path> = paths.map(|input| input.path.as_path()).collect();
        let added: Vec<Part<'_>> = added.iter().map(Input::part).collect();
        let done = merge(&parts, &added, &options, out, &*report, &stop);
        let mut summary = done.map_err(|e| merge_error(e, args, &paths))?;
        summary.errors += errors;
        Ok(summary)
    })?;
    report.logger().verbose(format_args!(
        "of {} blocks, {} are not in the new image, and the data of {} was compressed anew",
        summary.old_blocks, summary.left_out, summary.repacked
    ));
    let mut left_out = left_out(report.counters());
    left_out.add(
        excluded.load(Ordering::Relaxed),
        "entry that rules exclude",
        "entries that rules exclude",
        "-F",
    );
    left_out.add(
        elsewhere,
        "mount point of another file system",
        "mount points of other file systems",
        "--one-file-system",
    );
    let last_words = Summary {
        output,
        verb: "rewritten",
        resumed: None,
        snapshot: None,
        image_size: summary.rewritten.image_size,
        input_size,
        allocated_size: input_size,
        front: front.header,
        errors: summary.errors,
        left_out,
        verbose: args.verbose,
    };
    last_words.show(&report, mode);
    Ok(match summary.errors {
        0 => EXIT_OK,
        _ => EXIT_PARTIAL,
    })
}

/// An error of a merge of the images at `paths`.
fn merge_error(error: RewriteError, args: &Args, paths: &[&Path]) -> ToolError {
    let (error, number) = match error {
        RewriteError::Part { number, error } => (*error, number),
        other => (other, 0),
    };
    match error {
        RewriteError::Merge(error @ (MergeError::Name(_) | MergeError::Nested { .. })) => {
            ToolError::new(error.to_string()).hint("NAME=IMAGE gives an image another name")
        }
        other => {
            let path = paths.get(number).copied().unwrap_or(Path::new("-"));
            rewrite_error(other, args, path)
        }
    }
}

fn sizes(inputs: &[Input]) -> u64 {
    let sizes = inputs.iter().map(|input| input.image.container().size);
    sizes.sum()
}

/// Bytes of the cache of each of `count` images.
fn cache_of_each(args: &Args, count: usize) -> u64 {
    let all = args
        .memory_limit
        .0
        .map_or(CACHES, |limit| CACHES.min(limit / 16));
    all / count.max(1) as u64
}

fn open_options(check: bool, cache: u64) -> OpenOptions {
    let mut open = OpenOptions::default();
    open.check = check;
    // Blocks with data of files are read once, past the cache.
    open.cache.size = cache;
    open.cache.workers = 1;
    open
}

/// Opens an input image.
fn input(given: &Path, args: &Args, check: bool, cache: u64, logger: &Logger) -> Result<Input> {
    let named = named(given)?;
    let image = opened(&named.path, "--input", &open_options(check, cache), logger)?;
    let at = match (named.name, args.merge.merge) {
        (Some(name), _) => name,
        (None, Some(Mode::Side)) => {
            let stem = named.path.file_stem().unwrap_or_default();
            path::bytes(stem).into_owned()
        }
        (None, _) => Vec::new(),
    };
    Ok(Input {
        image,
        path: named.path,
        at,
    })
}

/// Opens the image that an option names. Says what follows it in its file.
fn opened(path: &Path, option: &'static str, open: &OpenOptions, logger: &Logger) -> Result<Image> {
    // The image is searched for, and its size is found.
    let spelling = Spelling {
        auto: option,
        size: None,
    };
    let image = open_image(path, open, spelling)?;
    let following = image.trailing_bytes();
    if following > 0 {
        let path = path.display();
        logger.warn(format_args!(
            "{following} bytes that follow the image in '{path}' are left out (see dwarfsck)"
        ));
    }
    Ok(image)
}

fn merge_options(args: &Args, matches: &ArgMatches, build: BuildOptions) -> Result<MergeOptions> {
    let mut options = MergeOptions::level(args.compress_level);
    options.rewrite = rewrite_options(args, matches, build.clone());
    options.rewrite.rebuild = None;
    options.metadata = build;
    // What the images have is kept.
    options.metadata.keep_all_times = true;
    options.metadata.keep_birth_times = !args.xattrs.canonical;
    options.metadata.file_flags = !args.xattrs.canonical;
    options.coarsen = matches.value_source("time_resolution") == Some(ValueSource::CommandLine);
    options.version_history = !args.rewrite.no_metadata_version_history;
    options.whiteouts = match args.whiteouts() {
        ArchiveWhiteouts::Keep => Whiteouts::Keep,
        ArchiveWhiteouts::Apply => Whiteouts::Apply,
        ArchiveWhiteouts::Overlay => Whiteouts::Overlay,
    };
    let paths = args.merge.remove.iter();
    options.remove = paths.map(|path| path::bytes(path).into_owned()).collect();
    let pairs = args.merge.rename.iter();
    options.rename = pairs
        .map(|pair| {
            let new = path::bytes(pair.second.as_os_str()).into_owned();
            (pair.first.clone(), new)
        })
        .collect();
    options.repack = args.merge.repack.unwrap_or(0);
    Ok(options)
}

/// With the rules of `--filter`; `excluded` counts the entries that they exclude.
fn with_rules(mut options: MergeOptions, rules: Rules, excluded: &Arc<AtomicU64>) -> MergeOptions {
    if !rules.is_empty() {
        let excluded = Arc::clone(excluded);
        options.filter = Some(Selection::new(move |path, kind| {
            let included = rules.include(Path::new("/"), path, kind);
            excluded.fetch_add(u64::from(!included), Ordering::Relaxed);
            included
        }));
    }
    options
}

/// What `--add` names.
struct Added<'a> {
    pair: &'a Pair,
    source: AddedSource,
}

enum AddedSource {
    Image(Input),
    /// A directory or archives, with the arguments that have it as input.
    Base(Box<Args>, Base),
}

/// An image of what is added.
struct Packed {
    input: Input,
    /// Entries that could not be stored.
    errors: u64,
    /// Mount points of other file systems.
    elsewhere: u64,
}

impl<'a> Added<'a> {
    /// Looks at the source. The file `output` is not part of it.
    fn open(
        pair: &'a Pair,
        args: &Args,
        output: &Path,
        check: bool,
        cache: u64,
        logger: &Logger,
    ) -> Result<Self> {
        let source = if is_image(&pair.second) {
            let open = open_options(check, cache);
            AddedSource::Image(Input {
                image: opened(&pair.second, "--add", &open, logger)?,
                path: pair.second.clone(),
                at: pair.first.clone(),
            })
        } else {
            let mut own = args.clone();
            own.input = vec![pair.second.clone()];
            let base = Base::open(&own, Rules::default(), logger)?.without(output);
            AddedSource::Base(Box::new(own), base)
        };
        Ok(Self { pair, source })
    }

    fn input(&self) -> Option<&Input> {
        match &self.source {
            AddedSource::Image(input) => Some(input),
            AddedSource::Base(..) => None,
        }
    }

    fn image(&self) -> Option<&Image> {
        self.input().map(|input| &input.image)
    }

    /// Leaves the file that is being written out of the source.
    fn without(self, target: &Target) -> Self {
        let source = match self.source {
            AddedSource::Base(own, base) => {
                AddedSource::Base(own, base.map(|source| target.leave_out(source)))
            }
            image => image,
        };
        Self { source, ..self }
    }

    /// Packs the source into a temporary image.
    fn pack(
        self,
        args: &Args,
        build: &BuildOptions,
        open: &OpenOptions,
        report: &Report,
        stop: &AtomicBool,
    ) -> Result<Packed> {
        let (own, base) = match self.source {
            AddedSource::Image(input) => {
                return Ok(Packed {
                    input,
                    errors: 0,
                    elsewhere: 0,
                });
            }
            AddedSource::Base(own, base) => (own, base),
        };
        let logger = report.logger();
        let input = base.read(&own, report, stop)?.layered(&own, None)?;
        let directory = spool(args);
        let cannot = |e: &std::io::Error| {
            ToolError::new("cannot write temporary image")
                .path(&directory)
                .cause(io_cause(e))
        };
        let file = temporary_file(&directory).map_err(|e| cannot(&e))?;
        let written: File = file.try_clone().map_err(|e| cannot(&e))?;
        // The new image says how it was made. What changes entries happens once, at its end.
        let mut options = build.clone();
        options.history = None;
        options.header = None;
        options.section_index = true;
        (options.set_owner, options.set_group) = (None, None);
        (options.map_owner, options.map_group) = (None, None);
        (options.chmod, options.set_time) = (None, None);
        options.set_xattrs = Vec::new();
        // Not counted as part of the merge, which counts these entries again.
        let own_report = Report::new(logger.clone(), false, false);
        let builder = Builder::new(options);
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let built = builder.build(&*input.source, &mut out, &own_report, stop);
        let built = built.map_err(|e| build_error(e, &own))?;
        out.into_inner()
            .map_err(|e| cannot(&e.into_error()))
            .map(drop)?;
        let (counters, own_counters) = (report.counters(), own_report.counters());
        for (all, own) in [
            (&counters.devices_left_out, &own_counters.devices_left_out),
            (&counters.specials_left_out, &own_counters.specials_left_out),
            (&counters.extended_left_out, &own_counters.extended_left_out),
        ] {
            all.fetch_add(own.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let missing = built.errors + input.finish(logger);
        let source = FileSource::of(written, &directory).map_err(|e| cannot(&e))?;
        let image = Image::from_source(Arc::new(source), open)?;
        let elsewhere = input.elsewhere(logger);
        Ok(Packed {
            input: Input {
                image,
                path: self.pair.second.clone(),
                at: self.pair.first.clone(),
            },
            errors: missing,
            elsewhere,
        })
    }
}
