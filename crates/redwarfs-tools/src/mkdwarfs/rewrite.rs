//! From an image to another one: `--recompress` and its relatives.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use clap::ArgMatches;
use clap::parser::ValueSource;
use redwarfs_reader::{CacheOptions, Image, OpenOptions};
use redwarfs_rewrite::{
    CategoryCodec, CategoryFilter, Error as RewriteError, Leading, Rebuild, RewriteOptions, rewrite,
};
use redwarfs_writer::{BuildOptions, Category, Error as WriteError};

use super::args::Args;
use super::display::Report;
use super::output::{self, Target};
use super::run::{build_error, build_options};
use super::summary::{LeftOut, Summary};
use crate::common::error::{EXIT_OK, io_cause};
use crate::common::open::{Spelling, open_image};
use crate::common::suggest::one_of;
use crate::common::{Logger, Result, ToolError, signal};

/// Which parts of an image are compressed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recompress {
    All,
    Block,
    Metadata,
    None,
}

fn recompress(text: &str) -> Result<Recompress, String> {
    match text {
        "all" => Ok(Recompress::All),
        "block" => Ok(Recompress::Block),
        "metadata" => Ok(Recompress::Metadata),
        "none" => Ok(Recompress::None),
        _ => Err(format!(
            "invalid recompress mode: {text} (all, block, metadata, none)"
        )),
    }
}

fn categories(text: &str) -> Result<CategoryFilter, String> {
    let (exclude, list) = match text.strip_prefix('!') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let names: Vec<String> = list.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err(format!("empty name of a category: '{text}'"));
    }
    Ok(CategoryFilter { names, exclude })
}

/// Options that turn the input into an image that is rewritten.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RewriteArgs {
    /// Rewrite the image given as input with other compression: all, block, metadata, none
    ///
    /// What is not recompressed is copied. Even 'none' brings old images to the current format.
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "all", hide_short_help = true, help_heading = "Rewriting options", value_parser = crate::common::cli::whole(recompress))]
    pub recompress: Option<Recompress>,

    /// Recompress only blocks of these categories, or with a leading '!' all others
    #[arg(long, value_name = "[!]CATEGORY,...", hide_short_help = true, help_heading = "Rewriting options", value_parser = crate::common::cli::whole(categories))]
    pub recompress_categories: Option<CategoryFilter>,

    /// Rewrite the image given as input with metadata of the current version, changed as the
    /// metadata options say
    #[arg(long, hide_short_help = true, help_heading = "Rewriting options")]
    pub rebuild_metadata: bool,

    /// Rewrite the image given as input with the block size of --block-size-bits
    #[arg(long, hide_short_help = true, help_heading = "Rewriting options")]
    pub change_block_size: bool,

    /// Do not record which version the metadata was rebuilt from, and forget earlier records
    #[arg(long, hide_short_help = true, help_heading = "Rewriting options")]
    pub no_metadata_version_history: bool,

    /// Do not verify the whole image before rewriting it
    ///
    /// Parts are verified all the same when they are read.
    #[arg(long, hide_short_help = true, help_heading = "Rewriting options")]
    pub no_check: bool,

    /// Drop what is in front of the image given as input
    #[arg(
        long,
        hide_short_help = true,
        help_heading = "Rewriting options",
        conflicts_with = "header"
    )]
    pub remove_header: bool,
}

impl RewriteArgs {
    /// Whether the input is an image to rewrite.
    pub(crate) fn is_wanted(&self) -> bool {
        self.recompress.is_some() || self.rebuild_metadata || self.change_block_size
    }

    fn rebuilds(&self) -> bool {
        self.rebuild_metadata || self.change_block_size
    }

    /// Refuses options of a rewrite when nothing is rewritten.
    pub(crate) fn check_build(&self) -> Result<()> {
        let stray = [
            (
                self.recompress_categories.is_some(),
                "recompress-categories",
                "--recompress",
            ),
            (
                self.no_metadata_version_history,
                "no-metadata-version-history",
                "--rebuild-metadata",
            ),
            (self.no_check, "no-check", "--recompress"),
            (self.remove_header, "remove-header", "--recompress"),
        ];
        match stray.into_iter().find(|(given, ..)| *given) {
            Some((_, option, needs)) => Err(needs_error(option, needs)),
            None => Ok(()),
        }
    }
}

fn needs_error(option: &str, needs: &str) -> ToolError {
    ToolError::new(format!("option '--{option}' needs '{needs}'"))
}

/// Options that a rewrite uses.
const USED: [&str; 27] = [
    "input",
    "verbose",
    "output",
    "force",
    "compress-level",
    "log-level",
    "log-with-context",
    "num-workers",
    "compress-niceness",
    "memory-limit",
    "progress",
    "no-progress",
    "compression",
    "schema-compression",
    "metadata-compression",
    "history-compression",
    "header",
    "no-section-index",
    "no-history",
    "no-history-timestamps",
    "no-history-command-line",
    "recompress",
    "recompress-categories",
    "rebuild-metadata",
    "change-block-size",
    "no-check",
    "remove-header",
];

/// Options that it uses if metadata is rebuilt.
const METADATA: [&str; 12] = [
    "set-owner",
    "set-group",
    "set-time",
    "keep-all-times",
    "time-resolution",
    "chmod",
    "pack-metadata",
    "no-category-names",
    "no-category-metadata",
    "no-create-timestamp",
    "no-hardlink-table",
    "no-metadata-version-history",
];

/// Options that tune a build, and whose absence changes nothing of what is in the image.
const TUNING: [&str; 12] = [
    "block-size-bits",
    "order",
    "max-similarity-size",
    "file-hash",
    "verify-dedup",
    "num-scanner-workers",
    "num-segmenter-workers",
    "max-lookback-blocks",
    "window-size",
    "window-step",
    "bloom-filter-size",
    "categorize",
];

/// Refuses options that cannot do what they are for, and warns of those that do nothing.
fn check_options(args: &Args, matches: &ArgMatches, logger: &Logger) -> Result<()> {
    let command = super::command();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let name = arg.get_long().unwrap_or(id);
        let block_size = name == "block-size-bits";
        if USED.contains(&name) || (block_size && args.rewrite.change_block_size) {
            continue;
        }
        if METADATA.contains(&name) {
            if !args.rewrite.rebuilds() {
                return Err(needs_error(name, "--rebuild-metadata"));
            }
        } else if TUNING.contains(&name) {
            let unless = if block_size {
                " without '--change-block-size'"
            } else {
                ""
            };
            logger.warn(format_args!(
                "option '--{name}' has no effect when an image is rewritten{unless}"
            ));
        } else {
            return Err(ToolError::new(format!(
                "option '--{name}' cannot be used when an image is rewritten"
            )));
        }
    }
    Ok(())
}

/// Rewrites the image. Returns the exit code.
pub(super) fn run(args: &Args, matches: &ArgMatches, command_line: &[OsString]) -> Result<u8> {
    let hint = "try 'mkdwarfs --help'";
    let logger = args.logger();
    check_options(args, matches, &logger)?;
    let Some(input) = &args.input else {
        return Err(ToolError::new("missing option '--input'").hint(hint));
    };
    let Some(output) = &args.output else {
        return Err(ToolError::new("missing option '--output'").hint(hint));
    };
    let stop = signal::stop_flag()
        .map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let build = build_options(args, command_line, &logger, None)?;
    let named = build.categories.iter();
    let named = named.filter(|(_, own)| own.compression.is_some());
    let named: Vec<Category> = named.map(|(category, _)| *category).collect();
    let options = rewrite_options(args, matches, build);
    options.check().map_err(|e| rewrite_error(e, args))?;

    let open = OpenOptions {
        check: options.check,
        // Every block is read once, past the cache.
        cache: CacheOptions {
            size: 0,
            workers: 1,
            ..CacheOptions::default()
        },
        ..OpenOptions::default()
    };
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
    check_categories(&named, &image)?;
    let target = Target::open(output, args.force, &logger)?;
    let start = match &options.leading {
        Leading::Replace(header) => header.len() as u64,
        Leading::Remove => 0,
        Leading::Keep => image.container().offset,
    };
    let report = Arc::new(Report::new(logger, true, args.verbose));
    let mode = args.progress.mode();
    let summary = output::produce(target, start, &report, mode, &stop, |out| {
        rewrite(&image, &options, out, &*report, &stop).map_err(|e| rewrite_error(e, args))
    })?;
    let last_words = Summary {
        output,
        verb: "rewritten",
        image_size: summary.image_size,
        input_size: image.container().size,
        allocated_size: image.container().size,
        errors: 0,
        left_out: LeftOut::default(),
        verbose: args.verbose,
    };
    last_words.show(&report, mode);
    Ok(EXIT_OK)
}

/// Refuses categories that neither this program nor the image knows.
fn check_categories(named: &[Category], image: &Image) -> Result<()> {
    let stored = image.metadata().category_names()?.unwrap_or_default();
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
fn rewrite_options(args: &Args, matches: &ArgMatches, build: BuildOptions) -> RewriteOptions {
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut o = RewriteOptions::level(args.compress_level);
    let mode = args.rewrite.recompress.unwrap_or(Recompress::None);
    o.blocks = matches!(mode, Recompress::All | Recompress::Block);
    o.metadata = matches!(mode, Recompress::All | Recompress::Metadata);
    o.categories = args.rewrite.recompress_categories.clone();
    let rebuild = Rebuild {
        set_owner: build.set_owner,
        set_group: build.set_group,
        set_time: build.set_time,
        keep_all_times: build.keep_all_times,
        time_resolution: given("time_resolution").then_some(build.time_resolution),
        chmod: build.chmod,
        packing: build.packing,
        category_names: build.category_names,
        category_metadata: build.category_metadata,
        create_timestamp: build.create_timestamp,
        hardlink_table: build.hardlink_table,
        version_history: !args.rewrite.no_metadata_version_history,
    };
    o.rebuild = args.rewrite.rebuilds().then_some(rebuild);
    o.block_size_bits = args
        .rewrite
        .change_block_size
        .then_some(build.block_size_bits);
    // What a preset says about a category is a wish; what the user says is not.
    let preset = BuildOptions::level(args.compress_level).categories;
    o.category_compression = build
        .categories
        .iter()
        .filter_map(|(&category, own)| {
            let codec = own.compression.clone()?;
            let wished = preset
                .get(&category)
                .and_then(|own| own.compression.as_ref());
            Some(CategoryCodec {
                category: category.name().to_owned(),
                required: wished != Some(&codec),
                codec,
            })
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
    o.workers = build.workers;
    o.compress_niceness = build.compress_niceness;
    o.memory_limit = build.memory_limit;
    o.machine_memory = build.machine_memory;
    o
}

fn rewrite_error(error: RewriteError, args: &Args) -> ToolError {
    let input = args.input.as_deref().unwrap_or(Path::new("-"));
    let otherwise = ToolError::new("cannot rewrite image").path(input);
    match error {
        RewriteError::Write(
            error @ (WriteError::Format(_) | WriteError::Limit(_) | WriteError::Thread(_)),
        ) => otherwise.cause(error),
        RewriteError::Write(error) => build_error(error, args),
        other => otherwise.cause(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_categories() {
        let filter = |names: &[&str], exclude| CategoryFilter {
            names: names.iter().map(|&n| n.to_owned()).collect(),
            exclude,
        };
        assert_eq!(categories("a"), Ok(filter(&["a"], false)));
        assert_eq!(categories("a/b,c"), Ok(filter(&["a/b", "c"], false)));
        assert_eq!(categories("!a,c"), Ok(filter(&["a", "c"], true)));
        for bad in ["", "!", "a,", ",a", "!a,,b"] {
            assert!(categories(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_name_options_that_exist() {
        let command = super::super::command();
        let all: Vec<&str> = command
            .get_arguments()
            .filter_map(|a| a.get_long())
            .collect();
        for name in USED.iter().chain(&METADATA).chain(&TUNING) {
            assert!(all.contains(name), "{name}");
        }
    }
}
