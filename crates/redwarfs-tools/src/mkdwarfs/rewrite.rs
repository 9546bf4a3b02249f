//! From an image to another one: `--recompress` and its relatives.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use clap::ArgMatches;
use clap::parser::ValueSource;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_rewrite::{
    CategoryCodec, Error as RewriteError, Leading, Rebuild, RewriteOptions, rewrite,
};
use redwarfs_writer::{BuildOptions, Category, Error as WriteError};

use super::args::{self, Args};
use super::definition::{Changes, check_rewrite};
use super::display::Report;
use super::header::Front;
use super::output::{self, Target};
use super::rewrite_args::Recompress;
use super::run::{build_error, build_options};
use super::summary::{LeftOut, Summary};
use crate::common::error::{EXIT_OK, io_cause};
use crate::common::open::{Spelling, open_image};
use crate::common::os::stop_flag;
use crate::common::suggest::one_of;
use crate::common::{Result, ToolError};

/// Rewrites the image. Returns the exit code.
pub(super) fn run(args: &Args, matches: &ArgMatches, command_line: &[OsString]) -> Result<u8> {
    let hint = "try 'mkdwarfs --help'";
    let logger = args.logger();
    let changes = Changes {
        rebuilds: args.rewrite.rebuilds(),
        block_size: args.rewrite.change_block_size,
        tree: false,
        adds: false,
    };
    check_rewrite(args::command(), matches, changes, &logger)?;
    let [input] = &args.input[..] else {
        return Err(match args.input.is_empty() {
            true => ToolError::new("missing option '--input'").hint(hint),
            false => ToolError::new("one image can be rewritten at a time"),
        });
    };
    let Some(output) = &args.output else {
        return Err(ToolError::new("missing option '--output'").hint(hint));
    };
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let build = build_options(args, command_line, &logger, None)?;
    let named = named_categories(&build);
    let mut options = rewrite_options(args, matches, build);
    options.check().map_err(|e| rewrite_error(e, args, input))?;

    let mut open = OpenOptions::default();
    open.check = options.check;

    // Every block is read once, past the cache.
    open.cache.size = 0;
    open.cache.workers = 1;
    // The image is searched for, and its size is found.
    let spelling = Spelling {
        auto: "--input",
        size: None,
    };
    let image = open_image(input, &open, spelling)?;
    let following = image.trailing_bytes();
    if following > 0 {
        logger.warn(format_args!(
            "{following} bytes that follow the image in its file are left out (see dwarfsck)"
        ));
    }
    check_categories(&named, &[&image])?;
    let front = Front::settle(&mut options.leading, args, &image, input, &logger)?;
    let target = Target::open(output, args.force, &[input], &stop, &logger)?
        .executable(front.runs)
        .protected(args, &stop)?;
    let report = Arc::new(Report::new(logger, true, args.verbose));
    let mode = args.progress.mode();
    let summary = output::produce(target, front.length, &report, mode, &stop, |out| {
        rewrite(&image, &options, out, &*report, &stop).map_err(|e| rewrite_error(e, args, input))
    })?;
    let last_words = Summary {
        output,
        verb: "rewritten",
        resumed: None,
        snapshot: None,
        image_size: summary.image_size,
        input_size: image.container().size,
        allocated_size: image.container().size,
        front: front.header,
        errors: 0,
        left_out: LeftOut::default(),
        verbose: args.verbose,
    };
    last_words.show(&report, mode);
    Ok(EXIT_OK)
}

/// The categories for which the arguments name a compression.
pub(super) fn named_categories(build: &BuildOptions) -> Vec<Category> {
    let named = build.categories.iter();
    let named = named.filter(|(_, own)| own.compression.is_some());
    named.map(|(category, _)| *category).collect()
}

/// Refuses categories that neither this program nor one of the images knows.
pub(super) fn check_categories(named: &[Category], images: &[&Image]) -> Result<()> {
    let mut stored: BTreeSet<Vec<u8>> = BTreeSet::new();
    for image in images {
        stored.extend(image.metadata().category_names()?.unwrap_or_default());
    }
    let unknown = named.iter().find(|category| {
        let own = matches!(category, Category::Named(_));
        own && !stored.iter().any(|name| name == category.name().as_bytes())
    });
    match unknown {
        Some(category) => {
            let built_in = Category::ALL.iter().map(|known| known.name().to_owned());
            let stored = stored.iter().map(|name| String::from_utf8_lossy(name));
            let known: BTreeSet<String> = built_in.chain(stored.map(Into::into)).collect();
            Err(ToolError::new(format!(
                "unknown category: '{category}' in option '--compression'"
            ))
            .hint(one_of(known)))
        }
        None => Ok(()),
    }
}

/// The options of a rewrite, from those of a build with the same arguments.
pub(super) fn rewrite_options(
    args: &Args,
    matches: &ArgMatches,
    build: BuildOptions,
) -> RewriteOptions {
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut o = RewriteOptions::level(args.compress_level);
    let mode = args.rewrite.recompress.unwrap_or(Recompress::None);
    o.blocks = matches!(mode, Recompress::All | Recompress::Block);
    o.metadata = matches!(mode, Recompress::All | Recompress::Metadata);
    o.categories = args.rewrite.recompress_categories.clone();
    let mut rebuild = Rebuild::default();
    rebuild.set_owner = build.set_owner;
    rebuild.set_group = build.set_group;
    rebuild.set_time = build.set_time;
    rebuild.keep_all_times = build.keep_all_times;
    rebuild.time_resolution = given("time_resolution").then_some(build.time_resolution);
    rebuild.chmod = build.chmod;
    rebuild.packing = build.packing;
    rebuild.category_names = build.category_names;
    rebuild.category_metadata = build.category_metadata;
    rebuild.create_timestamp = build.create_timestamp;
    rebuild.hardlink_table = build.hardlink_table;
    rebuild.version_history = !args.rewrite.no_metadata_version_history;
    args.xattrs.apply_to_rewrite(&mut rebuild);
    o.rebuild = args.rewrite.rebuilds().then_some(rebuild);
    o.block_size_bits = args
        .rewrite
        .change_block_size
        .then_some(build.block_size_bits);
    // The codec of a preset for a category is only a preference; the codec of the user is a
    // requirement.
    let preset = BuildOptions::level(args.compress_level).categories;
    o.category_compression = build
        .categories
        .iter()
        .filter_map(|(&category, own)| {
            let codec = own.compression.clone()?;
            let wished = preset
                .get(&category)
                .and_then(|own| own.compression.as_ref());
            let required = wished != Some(&codec);
            Some(CategoryCodec::new(category.name(), codec, required))
        })
        .collect();
    o.compression = build.compression;
    o.schema_compression = build.schema_compression;
    o.metadata_compression = build.metadata_compression;
    o.metadata_alternative = build.metadata_alternative;
    o.history_compression = build.history_compression;
    o.leading = match build.header {
        Some(bytes) => Leading::Replace(bytes),
        None if args.rewrite.remove_header => Leading::Remove,
        None => Leading::Keep,
    };
    o.check = !args.rewrite.no_check;
    o.history = build.history;
    o.section_index = build.section_index;
    o.hints = build.hints;
    o.workers = build.workers;
    o.compress_niceness = build.compress_niceness;
    o.memory_limit = build.memory_limit;
    o.machine_memory = build.machine_memory;
    o
}

/// An error of rewriting the image `input`.
pub(super) fn rewrite_error(error: RewriteError, args: &Args, input: &Path) -> ToolError {
    let otherwise = ToolError::new("cannot rewrite image").path(input);
    match error {
        RewriteError::Write(
            error @ (WriteError::Format(_) | WriteError::Limit(_) | WriteError::Thread(_)),
        ) => otherwise.cause(error),
        RewriteError::Write(error) => build_error(error, args),
        other => otherwise.cause(other),
    }
}
