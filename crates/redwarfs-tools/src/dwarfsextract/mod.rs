//! `dwarfsextract`: unpacks an image to a directory or turns it into an archive.

mod args;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_extractor::{
    Error, ExtractOptions, ExtractSummary, Progress, TarFormat, extract_to_directory,
    extract_to_tar,
};
use redwarfs_io::{AtomicFile, Overwrite};
use redwarfs_reader::{CacheOptions, Image, OpenOptions};

use crate::common::cli::parse_into;
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, display_path, io_cause};
use crate::common::log::Logger;
use crate::common::open::{Spelling, open_image};
use crate::common::{Result, ToolError};
use args::Args;

const TOOL: &str = "dwarfsextract";

/// Size of the buffer between the archive and its file or pipe.
const OUTPUT_BUFFER: usize = 256 << 10;

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
    let Some(input) = &args.input else {
        return Err(ToolError::new("no image given").hint("dwarfsextract -i IMAGE -o DIR"));
    };
    if !args.pattern.is_empty() || !args.patterns.is_empty() {
        return Err(ToolError::new("patterns are not supported yet")
            .hint("without them everything is extracted"));
    }
    let destination = Destination::of(args)?;
    if args.stdout_progress && matches!(destination, Destination::Pipe(_)) {
        return Err(ToolError::new(
            "cannot use --stdout-progress with --output=-",
        ));
    }
    if args.num_disk_writers > 0 && args.format.is_some() {
        logger.info("--num-disk-writers option is only used when extracting to disk");
    }

    let options = OpenOptions {
        offset: args.image_offset,
        // The extractor checks what it uses, and the names above all.
        check: false,
        cache: CacheOptions {
            size: args.cache_size,
            workers: args.num_workers,
            seq_detector: 1,
            ..CacheOptions::default()
        },
        ..OpenOptions::default()
    };
    let spelling = Spelling {
        auto: "--image-offset=auto",
        size: None,
    };
    let image = open_image(input, &options, spelling)?;

    let mut extract = ExtractOptions::default();
    extract.threads = args.num_workers;
    extract.writers = args.num_disk_writers;
    extract.memory = args.cache_size;
    extract.skip_devices = args.skip_devices;
    extract.skip_specials = args.skip_specials;
    extract.continue_on_error = args.continue_on_error;

    let listener = Listener::new(&logger, args.stdout_progress);
    let result = destination.extract(&image, &extract, &listener);
    listener.end(result.is_ok());
    let summary = match result {
        Ok(summary) => summary,
        Err(e) => return Err(abort(&e, &extract)),
    };
    let ExtractSummary {
        directories,
        files,
        hard_links,
        symlinks,
        specials,
        ..
    } = summary;
    logger.verbose(format_args!(
        "extracted {directories} directories, {files} files, {hard_links} hard links, {symlinks} symbolic links, \
         {specials} devices and specials"
    ));
    if summary.skipped > 0 {
        logger.verbose(format_args!(
            "skipped {} devices and specials",
            summary.skipped
        ));
    }
    if summary.damaged > 0 {
        logger.error(format_args!(
            "extraction finished with {} error(s)",
            summary.damaged
        ));
        return Ok(EXIT_PARTIAL);
    }
    logger.verbose("extraction finished without errors");
    Ok(EXIT_OK)
}

/// A text of the system in the middle of a line.
fn lower(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// The line for an extraction that ended early.
fn abort(e: &Error, options: &ExtractOptions) -> ToolError {
    if e.is_broken_pipe() {
        return ToolError::silent(1);
    }
    let error = match e {
        Error::Target { what, path, source } => {
            // Errors of the archive file name it already.
            let cause = io_cause(source);
            let cause = cause.strip_prefix(&format!("{path}: ")).unwrap_or(&cause);
            ToolError::new(format!("extraction aborted: {what}: {path}")).cause(lower(cause))
        }
        Error::Output(source) => {
            ToolError::new("extraction aborted: cannot write archive").io(source)
        }
        other => ToolError::new(format!("extraction aborted: {other}")),
    };
    match e {
        Error::Target {
            what: "cannot create device",
            ..
        } if !options.skip_devices => error.hint("--skip-devices leaves out devices"),
        Error::NotRepresentable { reason, .. } if reason.contains("socket") => {
            error.hint("--skip-specials leaves out fifos and sockets")
        }
        Error::Content { .. } => {
            error.hint("--continue-on-error leaves out files that cannot be read")
        }
        _ => error,
    }
}

/// Where everything goes.
#[derive(Debug)]
enum Destination<'a> {
    Directory(&'a Path),
    Archive(&'a Path, TarFormat),
    Pipe(TarFormat),
}

impl<'a> Destination<'a> {
    fn of(args: &'a Args) -> Result<Self> {
        match (args.format, args.output.as_deref()) {
            (None, Some(path)) if path == Path::new("-") => Err(ToolError::new(
                "an archive format is needed to write to standard output",
            )
            .hint("for example -f pax")),
            (None, output) => {
                let path = output.unwrap_or_else(|| Path::new("."));
                match std::fs::metadata(path) {
                    Ok(found) if found.is_dir() => Ok(Self::Directory(path)),
                    Ok(_) => Err(ToolError::new("output is not a directory").path(path).hint(
                        "give a directory to extract to, or a format (-f pax) to write an archive",
                    )),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        Err(ToolError::new("cannot open output directory")
                            .path(path)
                            .io(&e)
                            .hint("create the directory first"))
                    }
                    Err(e) => Err(ToolError::new("cannot open output directory")
                        .path(path)
                        .io(&e)),
                }
            }
            (Some(format), None) => Self::pipe(format),
            (Some(format), Some(path)) if path == Path::new("-") => Self::pipe(format),
            (Some(format), Some(path)) => Ok(Self::Archive(path, format)),
        }
    }

    fn pipe(format: TarFormat) -> Result<Self> {
        if io::stdout().is_terminal() {
            return Err(ToolError::new("refusing to write an archive to a terminal")
                .hint("redirect the output or use -o FILE"));
        }
        Ok(Self::Pipe(format))
    }

    fn extract(
        &self,
        image: &Image,
        options: &ExtractOptions,
        progress: &dyn Progress,
    ) -> std::result::Result<ExtractSummary, Error> {
        match self {
            Self::Directory(path) => extract_to_directory(image, path, options, progress),
            Self::Archive(path, format) => {
                let failed = |source| Error::Target {
                    what: "cannot write archive",
                    path: display_path(path),
                    source,
                };
                // An archive that cannot be completed leaves nothing, or the old one.
                let file = AtomicFile::create(path, Overwrite::Yes).map_err(failed)?;
                let mut out = BufWriter::with_capacity(OUTPUT_BUFFER, file);
                let summary = extract_to_tar(image, &mut out, *format, options, progress).map_err(
                    |error| match error {
                        Error::Output(source) => failed(source),
                        other => other,
                    },
                )?;
                out.into_inner()
                    .map_err(io::IntoInnerError::into_error)
                    .and_then(AtomicFile::commit)
                    .map_err(failed)?;
                Ok(summary)
            }
            Self::Pipe(format) => {
                // The buffer of the standard output would flush at every newline of binary data.
                let stdout = rustix::io::dup(io::stdout()).map_err(|e| Error::Output(e.into()))?;
                let mut out = BufWriter::with_capacity(OUTPUT_BUFFER, File::from(stdout));
                extract_to_tar(image, &mut out, *format, options, progress)
            }
        }
    }
}

/// Passes on warnings and shows the percentage.
struct Listener<'a> {
    logger: &'a Logger,
    percent: bool,
    total: AtomicU64,
    done: AtomicU64,
    shown: Mutex<Option<u64>>,
}

impl<'a> Listener<'a> {
    fn new(logger: &'a Logger, percent: bool) -> Self {
        let listener = Self {
            logger,
            percent,
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            shown: Mutex::new(None),
        };
        listener.show(0);
        listener
    }

    fn show(&self, percent: u64) {
        if !self.percent {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none_or(|old| old < percent) {
            *shown = Some(percent);
            let mut out = io::stdout().lock();
            // Whoever closed the output does not want to see it.
            let _ = write!(out, "\r{percent}%").and_then(|()| out.flush());
        }
    }

    fn end(&self, complete: bool) {
        if complete {
            self.show(100);
        }
        if self.percent {
            let _ = writeln!(io::stdout());
        }
    }
}

impl Progress for Listener<'_> {
    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let done = self
            .done
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if self.percent {
            let total = u128::from(self.total.load(Ordering::Relaxed).max(1));
            // The end is shown when it is reached, with times and modes set.
            let percent = (u128::from(done) * 100 / total).min(99);
            self.show(u64::try_from(percent).unwrap_or(99));
        }
    }

    fn warn(&self, message: &str) {
        self.logger.warn(message);
    }

    fn damaged(&self, path: &str, cause: &str) {
        self.logger
            .error(format_args!("cannot read: {path}: {cause}"));
    }
}

impl From<&Error> for ToolError {
    fn from(e: &Error) -> Self {
        match e {
            Error::Output(source) => Self::new("cannot write archive").cause(io_cause(source)),
            other => Self::new(other.to_string()),
        }
    }
}
