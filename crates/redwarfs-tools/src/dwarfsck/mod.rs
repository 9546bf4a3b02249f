//! `dwarfsck`: verifies an image and shows what is in it.

mod args;
mod checksum;
mod detail;
mod info;
mod list;
mod sections;
mod verify;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use redwarfs_extractor::display_path;
use redwarfs_reader::{CacheOptions, Image, OpenOptions, VerifyMode};

use crate::common::cli::parse_into;
use crate::common::error::{EXIT_FAILURE, EXIT_OK};
use crate::common::open::{Spelling, open_image};
use crate::common::{Result, ToolError};
use args::Args;

const TOOL: &str = "dwarfsck";

/// Exit code for `--print-header` on an image without a header.
const EXIT_NO_HEADER: u8 = 2;

/// The command line, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Args::prepared()
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    let args = match parse_into::<Args>(command(), &args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(code) => code,
        Err(error) => error.report(TOOL),
    }
}

fn run(args: &Args) -> Result<u8> {
    let logger = args.log.logger();
    let input = check(args)?;
    let workers = args.num_workers.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
    });
    let options = OpenOptions {
        offset: args.image_offset,
        check: !args.no_check && !args.print_header,
        cache: CacheOptions {
            size: args.cache_size,
            workers,
            ..CacheOptions::default()
        },
        ..OpenOptions::default()
    };
    let spelling = Spelling {
        auto: "--image-offset=auto",
        size: None,
    };
    let image = open_image(input, &options, spelling)?;
    if args.print_header {
        return print_header(&image, input);
    }

    let mut errors = 0;
    let details = !args.quiet
        && !args.list
        && args.checksum.is_none()
        && args.detail.has(detail::Feature::SectionDetails);
    let mut reports = None;
    if !args.no_check || details {
        let mode = if args.check_integrity {
            VerifyMode::Integrity
        } else {
            VerifyMode::Fast
        };
        let verified = verify::verify(&image, mode, workers)?;
        if !args.no_check {
            errors += verify::report(
                &image,
                &verified,
                args.check_integrity,
                args.verbose,
                &logger,
            )?;
        }
        reports = Some(verified);
    }

    let mut out = Output::new();
    if args.list {
        if args.verbose {
            list::long(&image, &mut out)?;
        } else {
            list::short(&image, &mut out)?;
        }
    } else if let Some(algorithm) = args.checksum {
        errors += checksum::print(&image, algorithm, workers, &logger)?;
    } else if !args.quiet {
        info::print(&image, &args.detail, reports.as_ref(), &mut out)?;
    }
    out.finish()?;
    Ok(if errors == 0 { EXIT_OK } else { EXIT_FAILURE })
}

/// Checks combinations of options; returns the image.
fn check(args: &Args) -> Result<&PathBuf> {
    let mut inputs = args.input.iter().chain(&args.image);
    let Some(input) = inputs.next() else {
        return Err(ToolError::new("no image given").hint("dwarfsck [-i] IMAGE"));
    };
    if inputs.next().is_some() {
        return Err(ToolError::new(
            "option '--input' cannot be specified more than once",
        ));
    }
    if args.no_check && args.check_integrity {
        return Err(ToolError::new(
            "--no-check and --check-integrity are mutually exclusive",
        ));
    }
    if args.print_header
        && (args.json
            || args.export_metadata.is_some()
            || args.check_integrity
            || args.list
            || args.checksum.is_some())
    {
        return Err(ToolError::new(
            "--print-header is mutually exclusive with --json, --export-metadata, --check-integrity, --list and \
             --checksum",
        ));
    }
    if args.json {
        return Err(ToolError::new("--json is not supported yet"));
    }
    if args.export_metadata.is_some() {
        return Err(ToolError::new("--export-metadata is not supported yet"));
    }
    Ok(input)
}

fn print_header(image: &Image, input: &PathBuf) -> Result<u8> {
    if image.header_len() == 0 {
        return Err(ToolError::new("filesystem does not contain a header")
            .path(input)
            .code(EXIT_NO_HEADER));
    }
    let mut out = io::stdout().lock();
    match image.copy_header(&mut out).map(|_| out.flush()) {
        Ok(Ok(())) => Ok(EXIT_OK),
        Ok(Err(e)) | Err(redwarfs_format::Error::Io(e))
            if e.kind() == io::ErrorKind::BrokenPipe =>
        {
            Err(ToolError::silent(EXIT_FAILURE))
        }
        Ok(Err(e)) => Err(ToolError::new("cannot write to standard output").io(&e)),
        Err(e) => Err(ToolError::new("cannot copy the header")
            .path(input)
            .cause(ToolError::from(e))),
    }
}

/// The line for a file with which something is wrong.
fn file_error(what: &str, path: &[u8], e: &redwarfs_format::Error) -> String {
    format!("{what}: {}: {e}", display_path(path))
}

/// Standard output, buffered; a reader that went away ends the tool quietly.
#[derive(Debug)]
struct Output(BufWriter<io::Stdout>);

impl Output {
    fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    fn line(&mut self, text: &str) -> Result<()> {
        let result = self
            .0
            .write_all(text.as_bytes())
            .and_then(|()| self.0.write_all(b"\n"));
        result.map_err(|e| Self::error(&e))
    }

    fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(|e| Self::error(&e))
    }

    fn error(e: &io::Error) -> ToolError {
        if e.kind() == io::ErrorKind::BrokenPipe {
            ToolError::silent(EXIT_FAILURE)
        } else {
            ToolError::new("cannot write to standard output").io(e)
        }
    }
}
