//! Where the entries go: a directory, an archive, or the standard output.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use redwarfs_extractor::{
    ArchiveSpec, Error, ExtractOptions, ExtractSummary, Progress, extract_file, extract_to_archive,
    extract_to_directory, is_of_entry,
};
use redwarfs_io::path::with_slashes;
use redwarfs_io::{AtomicFile, Overwrite};
use redwarfs_reader::Image;

use super::args::Args;
use crate::common::error::{display_path, io_cause};
use crate::common::os::{raw_stdout, stdout_is_closed};
use crate::common::output::{STDOUT_IS_CLOSED, create_derived};
use crate::common::suggest::one_of;
use crate::common::{Logger, Result, ToolError};

/// Size of the buffer between the archive and its file or pipe.
const OUTPUT_BUFFER: usize = 256 << 10;

/// Where everything goes.
#[derive(Debug)]
pub(super) enum Destination<'a> {
    Directory(&'a Path),
    Archive(&'a Path, ArchiveSpec),
    Pipe(ArchiveSpec),
    /// The contents of one file, to the standard output.
    Contents(Cow<'a, [u8]>),
}

impl<'a> Destination<'a> {
    pub(super) fn of(args: &'a Args) -> Result<Self> {
        if let Some(path) = &args.stdout {
            return Ok(Self::Contents(with_slashes(path)));
        }
        let output = args.output.as_deref().filter(|p| *p != Path::new("-"));
        let Some(format) = &args.format else {
            if !args.format_options.is_empty() {
                return Err(ToolError::new("--format-options needs --format"));
            }
            if output.is_none() && args.output.is_some() {
                return Err(ToolError::new(
                    "an archive format is needed to write to standard output",
                )
                .hint("for example -f pax"));
            }
            return Self::directory(output.unwrap_or_else(|| Path::new(".")));
        };
        let wrong = |e: Error| match advice(&e, format, &args.format_filters) {
            Some(advice) => ToolError::new(e.to_string()).hint(advice),
            None => ToolError::new(e.to_string()),
        };
        let spec = if format == "auto" {
            let path = output.ok_or_else(|| ToolError::new("auto format requires output path"))?;
            if !args.format_filters.is_empty() {
                return Err(ToolError::new("auto format does not support filters"));
            }
            ArchiveSpec::for_file_name(path, &args.format_options)
        } else {
            ArchiveSpec::new(format, &args.format_filters, &args.format_options)
        }
        .map_err(wrong)?;
        match output {
            Some(path) => Ok(Self::Archive(path, spec)),
            None if io::stdout().is_terminal() => {
                Err(ToolError::new("refusing to write an archive to a terminal")
                    .hint("redirect the output or use -o FILE"))
            }
            None => Ok(Self::Pipe(spec)),
        }
    }

    fn directory(path: &'a Path) -> Result<Self> {
        let failed = |e: &io::Error| {
            ToolError::new("cannot open output directory")
                .path(path)
                .io(e)
        };
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Self::Directory(path)),
            Ok(_) => Err(ToolError::new("output is not a directory")
                .path(path)
                .hint("give a directory to extract to, or a format (-f pax) to write an archive")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(failed(&e).hint("create the directory first"))
            }
            Err(e) => Err(failed(&e)),
        }
    }

    /// Whether the data itself goes to the standard output.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Pipe(_) | Self::Contents(_))
    }

    pub(super) fn extract(
        &self,
        image: &Image,
        input: &Path,
        options: &ExtractOptions,
        progress: &dyn Progress,
        logger: &Logger,
    ) -> std::result::Result<ExtractSummary, Error> {
        match self {
            Self::Directory(path) => extract_to_directory(image, path, options, progress),
            Self::Archive(path, spec) => {
                let failed = |source| Error::Target {
                    what: WRITE_ARCHIVE,
                    path: display_path(path),
                    source,
                };
                // An archive that cannot be completed leaves nothing, or the old one.
                let file =
                    create_derived(path, Overwrite::Yes, &[input], logger).map_err(failed)?;
                let mut out = BufWriter::with_capacity(OUTPUT_BUFFER, file);
                let summary = extract_to_archive(image, &mut out, spec, options, progress)
                    .map_err(|error| match error {
                        Error::Output(source) => failed(source),
                        other => other,
                    })?;
                out.into_inner()
                    .map_err(io::IntoInnerError::into_error)
                    .and_then(AtomicFile::commit)
                    .map_err(failed)?;
                Ok(summary)
            }
            Self::Pipe(spec) => {
                let mut out = stdout()?;
                let summary = extract_to_archive(image, &mut out, spec, options, progress)?;
                out.flush().map_err(Error::Output)?;
                Ok(summary)
            }
            Self::Contents(path) => {
                let mut summary = ExtractSummary::default();
                summary.bytes = extract_file(image, path, &mut stdout()?, progress)?;
                summary.files = 1;
                Ok(summary)
            }
        }
    }
}

/// What to write instead of a format or filter that does not exist.
fn advice(error: &Error, format: &str, filters: &[String]) -> Option<String> {
    let text = error.to_string();
    if text.starts_with("No such filter") {
        return Some(one_of(ArchiveSpec::filters()));
    }
    if !text.starts_with("No such format") {
        return None;
    }
    if format == "auto" {
        let known = "the name of the output says nothing about its format";
        return Some(format!("{known}: -f FORMAT, for example -f pax"));
    }
    let Some((known, needed)) = ArchiveSpec::of_ending(format) else {
        return Some(one_of(ArchiveSpec::formats()));
    };
    let needed: Vec<&str> = needed
        .iter()
        .copied()
        .chain(filters.iter().map(String::as_str))
        .collect();
    Some(match needed.is_empty() {
        true => format!("write -f {known}"),
        false => format!("write -f {known} --format-filters={}", needed.join(",")),
    })
}

/// The standard output without its own buffer, which would flush at every newline of binary data.
fn stdout() -> std::result::Result<BufWriter<File>, Error> {
    if stdout_is_closed() {
        return Err(Error::Output(io::Error::other(STDOUT_IS_CLOSED)));
    }
    let stdout = raw_stdout().map_err(Error::Output)?;
    Ok(BufWriter::with_capacity(OUTPUT_BUFFER, stdout))
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

/// The operation in errors of an archive file.
const WRITE_ARCHIVE: &str = "cannot write archive";

/// The line for an extraction that ended early.
pub(super) fn abort(e: &Error, options: &ExtractOptions, single: bool) -> ToolError {
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
            ToolError::new("extraction aborted: cannot write output").io(source)
        }
        Error::NotAFile { path, reason } => {
            ToolError::new(format!("cannot extract: {path}")).cause(reason)
        }
        other => ToolError::new(format!("extraction aborted: {other}")),
    };
    match e {
        Error::Target {
            what: "cannot create device",
            ..
        } if !options.skip_devices => error.hint("--skip-devices leaves out devices"),
        Error::Target {
            what: "cannot create symbolic link",
            ..
        } if !options.continue_on_error => error.hint(
            "--skip-symlinks leaves out symbolic links, --continue-on-error all that cannot be written",
        ),
        Error::Target { what, source, .. }
            if !options.continue_on_error && *what != WRITE_ARCHIVE && is_of_entry(source) =>
        {
            error.hint("--continue-on-error leaves out what cannot be written")
        }
        Error::NotRepresentable { what, .. } if matches!(*what, "sockets" | "fifos") => {
            error.hint("--skip-specials leaves out fifos and sockets")
        }
        Error::NotRepresentable { what, .. } if what.ends_with("devices") => {
            error.hint("--skip-devices leaves out devices")
        }
        Error::Content { .. } if !single => {
            error.hint("--continue-on-error leaves out files that cannot be read")
        }
        _ => error,
    }
}
