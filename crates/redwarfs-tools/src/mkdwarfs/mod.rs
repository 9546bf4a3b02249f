//! `mkdwarfs`: builds an image from a directory, from archives, or from another image.
//!
//! To follow an option:
//!
//! | step | file |
//! |---|---|
//! | definition: names, value, help, meaning for a rewrite | `args.rs`; `stream_args.rs` for options with a value for each category (`-B`, `-W`, `-w`, `--bloom-filter-size`, `-C`, `--order`); `xattr_args.rs` for extended attributes; `append_args.rs`; `rewrite_args.rs`; `merge_args.rs` |
//! | what such a definition may say beyond clap | `definition.rs` |
//! | text to value | `order.rs` for `--order`, else `values/`; sizes: `common/number.rs` |
//! | value to options of the library | `run.rs` (`build_options`), `stream_args.rs` (`apply`), `rewrite.rs`, `merge.rs` |
//! | what the input becomes before the build | `input.rs`, with `archives.rs`, `filter.rs`, `pseudo.rs`, `owners.rs`, `chmod.rs`, `script/` |
//! | where the image goes | `output.rs`, `header.rs`, `append.rs`, `commit.rs`; what is left of an interrupted build: `checkpoint.rs` |
//! | what the user sees | `display.rs`, `summary.rs` |
//!
//! Manuals, completions and the checks of a rewrite are made from the definitions.

mod append;
mod append_args;
mod archives;
mod args;
mod checkpoint;
mod chmod;
mod commit;
mod definition;
mod delta;
mod difference;
mod display;
mod filter;
mod header;
mod input;
mod merge;
mod merge_args;
mod order;
mod output;
mod owners;
mod pseudo;
mod rewrite;
mod rewrite_args;
mod run;
mod script;
mod stream_args;
mod summary;
mod values;
mod xattr_args;

use std::ffi::OsString;

use clap::FromArgMatches;

use args::TOOL;
use order::ORDERS;

use crate::common::cli;
use crate::common::error::{EXIT_FAILURE, EXIT_OK};
use crate::common::tool::Tool;

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    Tool::new(args::command(), include_str!("../../manual/mkdwarfs.md"))
        .offering("file-hash", values::hash_names())
        .offering("verify-dedup", ["auto", "always", "never"])
        .offering("symlinks", ["keep", "follow", "drop"])
        .offering("hard-links", ["keep", "dissolve"])
        .offering("whiteouts", ["keep", "apply", "overlay"])
        .offering("input-format", values::format_names())
        .offering("recompress", ["all", "block", "metadata", "none"])
        .offering("merge", ["side", "overlay"])
        .offering(
            "order",
            ORDERS.map(|name| {
                if name == "explicit" {
                    "explicit:file="
                } else {
                    name
                }
            }),
        )
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code: 0 for a complete
/// image or help, 1 without an image, 2 for an image that lacks something of its input.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    if args
        .get(1)
        .is_some_and(|arg| arg == archives::ARCHIVE_PROCESS)
    {
        // It fails when the process that waits for it is gone.
        let formats = args.get(2..).unwrap_or_default();
        return match redwarfs_archive::serve(formats, std::io::stdout().lock()) {
            Ok(()) => EXIT_OK,
            Err(_) => EXIT_FAILURE,
        };
    }
    let tool = tool();
    let spread = args::spread_lists(&args);
    let advice = |stray: &str| Some(args::place_of_stray(stray, &spread));
    let matches = match cli::parse_advised(&tool, &spread, advice) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    if let Some(option) = args::unsupported(&matches) {
        return crate::common::ToolError::new(format!(
            "option '--{option}' is not supported in this version"
        ))
        .report(TOOL);
    }
    let parsed = match args::Args::from_arg_matches(&matches) {
        Ok(parsed) => parsed,
        Err(error) => return cli::describe(&tool.command, &error).report(TOOL),
    };
    if let Some(stray) = parsed.stray() {
        let advice = args::place_of_stray(&stray, &spread);
        return crate::common::ToolError::new(format!("unrecognized argument '{stray}'"))
            .hint(advice)
            .report(TOOL);
    }
    let done = if let Some(images) = &parsed.append.delta {
        delta::run(&parsed, images, &args)
    } else if merge::is_wanted(&parsed) {
        merge::run(&parsed, &matches, &args)
    } else if parsed.rewrite.is_wanted() {
        rewrite::run(&parsed, &matches, &args)
    } else {
        run::run(&parsed, &matches, &args)
    };
    match done {
        Ok(code) => code,
        Err(error) => error.report(TOOL),
    }
}
