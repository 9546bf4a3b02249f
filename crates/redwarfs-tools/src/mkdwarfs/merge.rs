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
use redwarfs_rewrite::merge::{MergeOptions, Part, Selection, Whiteouts, merge};
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
use super::rewrite::{rewrite_error, rewrite_options};
use super::run::{build_error, build_options, left_out};
use super::summary::Summary;
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, io_cause};
use crate::common::open::{Spelling, open_image};
use crate::common::os::stop_flag;
use crate::common::{Logger, Result, ToolError};

/// Decoded blocks that are kept for extended attributes, in bytes.
const CACHE: u64 = 64 << 20;

/// An image with its place in the new tree.
struct Input {
    image: Image,
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
        adds: !args.merge.add.is_empty(),
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
    let options = merge_options(args, matches, build.clone())?;
    let own = &options.rewrite;
    own.check().map_err(|e| rewrite_error(e, args))?;

    let inputs = given
        .iter()
        .map(|given| input(given, args, own.check, &logger));
    let inputs: Vec<Input> = inputs.collect::<Result<_>>()?;
    same_names(&inputs)?;
    let excluded = Arc::new(AtomicU64::new(0));
    let mut options = with_rules(options, rules(args)?, &excluded);
    let first = inputs.first().map(|input| &input.image);
    let front = match first.zip(given.first()) {
        Some((image, path)) => {
            Front::settle(&mut options.rewrite.leading, args, image, path, &logger)?
        }
        None => Front::default(),
    };
    let target = Target::open(output, args.force, &logger)?
        .executable(front.runs)
        .protected(args, &stop)?;
    let report = Arc::new(Report::new(logger, true, args.verbose));
    let mode = args.progress.mode();
    let parts: Vec<Part<'_>> = inputs.iter().map(Input::part).collect();
    let mut input_size: u64 = sizes(&inputs);
    let summary = output::produce(target, front.length, &report, mode, &stop, |out| {
        let mut added = Vec::new();
        let mut errors = 0;
        for pair in &args.merge.add {
            let (input, missing) = add(pair, args, &build, own_check(&options), &report, &stop)?;
            errors += missing;
            added.push(input);
        }
        input_size += sizes(&added);
        let added: Vec<Part<'_>> = added.iter().map(Input::part).collect();
        let done = merge(&parts, &added, &options, out, &*report, &stop);
        let mut summary = done.map_err(|e| rewrite_error(e, args))?;
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
    let last_words = Summary {
        output,
        verb: "rewritten",
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

fn own_check(options: &MergeOptions) -> bool {
    options.rewrite.check
}

fn sizes(inputs: &[Input]) -> u64 {
    let sizes = inputs.iter().map(|input| input.image.container().size);
    sizes.sum()
}

fn open_options(check: bool) -> OpenOptions {
    let mut open = OpenOptions::default();
    open.check = check;
    // Every block is read once, past the cache.
    open.cache.size = CACHE;
    open.cache.workers = 1;
    open
}

/// Opens an input image.
fn input(given: &Path, args: &Args, check: bool, logger: &Logger) -> Result<Input> {
    let named = named(given)?;
    // The image is searched for, and its size is found.
    let spelling = Spelling {
        auto: "--input",
        size: None,
    };
    let image = open_image(&named.path, &open_options(check), spelling)?;
    let following = image.trailing_bytes();
    if following > 0 {
        let path = named.path.display();
        logger.warn(format_args!(
            "{following} bytes that follow the image in '{path}' are left out (see dwarfsck)"
        ));
    }
    let at = match (named.name, args.merge.merge) {
        (Some(name), _) => name,
        (None, Some(Mode::Side)) => {
            let stem = named.path.file_stem().unwrap_or_default();
            path::bytes(stem).into_owned()
        }
        (None, _) => Vec::new(),
    };
    Ok(Input { image, at })
}

/// Refuses images that would go into the same directory.
fn same_names(inputs: &[Input]) -> Result<()> {
    for (at, input) in inputs.iter().enumerate() {
        let earlier = inputs.iter().take(at);
        if !input.at.is_empty() && earlier.into_iter().any(|other| other.at == input.at) {
            let name = String::from_utf8_lossy(&input.at);
            return Err(ToolError::new(format!("two images have the name '{name}'"))
                .hint("NAME=IMAGE gives an image another name"));
        }
    }
    Ok(())
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

/// Packs what is to be added into a temporary image. Also returns the number of entries that could not be
/// stored.
fn add(
    pair: &Pair,
    args: &Args,
    build: &BuildOptions,
    check: bool,
    report: &Report,
    stop: &AtomicBool,
) -> Result<(Input, u64)> {
    let at = pair.first.clone();
    if is_image(&pair.second) {
        let spelling = Spelling {
            auto: "--add",
            size: None,
        };
        let image = open_image(&pair.second, &open_options(check), spelling)?;
        return Ok((Input { image, at }, 0));
    }
    let logger = report.logger();
    let mut own = args.clone();
    own.input = vec![pair.second.clone()];
    let base = Base::open(&own, Rules::default(), logger)?;
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
    let image = Image::from_source(Arc::new(source), &open_options(check))?;
    Ok((Input { image, at }, missing))
}
