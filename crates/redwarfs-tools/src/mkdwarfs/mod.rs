//! `mkdwarfs`: builds an image from a directory or from another image.
//!
//! Parsing only validates single values; `run` turns the parsed set into build options,
//! source and output, and shows progress while the library works.

mod args;
mod categories;
mod chmod;
mod definition;
mod display;
mod filter;
mod header;
mod input;
mod output;
mod owners;
mod pseudo;
mod rewrite;
mod rewrite_args;
mod run;
mod script;
mod summary;
mod values;

use std::ffi::OsString;

use clap::FromArgMatches;

use args::TOOL;

use crate::common::cli;
use crate::common::tool::Tool;

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    Tool::new(args::command(), include_str!("../../manual/mkdwarfs.md"))
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code: 0 for a complete
/// image or help, 1 without an image, 2 for an image that lacks something of its input.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
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
    let done = if parsed.rewrite.is_wanted() {
        rewrite::run(&parsed, &matches, &args)
    } else {
        run::run(&parsed, &matches, &args)
    };
    match done {
        Ok(code) => code,
        Err(error) => error.report(TOOL),
    }
}
