//! Archives as the input of a build.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_archive::{
    Account, Accounts, Archive, ArchiveOptions, ArchiveSource, Error, LibraryProcess,
};
use redwarfs_io::path;
use redwarfs_io::place::is_remote;

use super::args::{Args, TOOL};
use super::display::Report;
use super::filter::Rules;
use super::input::{is_image, listed, read_error, say_listed, tags};
use super::output::interrupted;
use super::run::limit_error;
use crate::common::error::{cause_at, display_path, io_cause};
use crate::common::os::{canonical, own_program};
use crate::common::program::{squashfs_advice, squashfs_behind, squashfs_in};
use crate::common::users::{parse_group, parse_user};
use crate::common::{Result, ToolError};

/// First argument of the process that reads an archive with libarchive.
pub(super) const ARCHIVE_PROCESS: &str = "--read-archive-for-parent";

/// The archives that `-i` names.
pub(super) struct Archives {
    archives: Vec<Archive>,
    options: ArchiveOptions,
    rules: Rules,
}

/// The archives when they have been read.
pub(super) struct ArchiveTree {
    pub(super) source: ArchiveSource,
    /// Entries of the input list that are not in the image.
    pub(super) errors: u64,
    pub(super) excluded: Arc<AtomicU64>,
}

/// What a value of `-i` names.
pub(super) fn named(value: &Path) -> Result<Archive> {
    let whole = |path: &Path| Archive {
        path: path.to_owned(),
        name: None,
    };
    // An equals sign in a URL is one of the URL.
    if is_remote(value) || value.symlink_metadata().is_ok() {
        return Ok(whole(value));
    }
    let bytes = path::bytes(value.as_os_str());
    let Some(equals) = bytes.iter().position(|&b| b == b'=') else {
        return Ok(whole(value));
    };
    let (name, file) = bytes.split_at(equals);
    let file = file.get(1..).unwrap_or_default();
    let plain = redwarfs_writer::plain_path(name);
    let bad = || ToolError::new("invalid name of an input").path(Path::new(&*path::shown(name)));
    if plain.is_empty() || plain.split(|&b| b == b'/').any(|part| part == b"..") {
        return Err(bad());
    }
    let file = path::os_str(file).ok_or_else(bad)?;
    Ok(Archive {
        path: PathBuf::from(AsRef::<OsStr>::as_ref(&file)),
        name: Some(plain),
    })
}

impl Archives {
    /// The archives, if the input is not a directory.
    pub(super) fn among(args: &Args) -> Result<Option<Self>> {
        let archives = args.input.iter().map(|value| named(value));
        let archives = archives.collect::<Result<Vec<_>>>()?;
        let stdin = Path::new("-");
        let is_stdin = |archive: &&Archive| archive.path == stdin;
        let is_archive = |archive: &Archive| {
            let metadata = std::fs::metadata(&archive.path);
            // A directory may have this name, too.
            metadata.map_or(archive.path == stdin, |metadata| !metadata.is_dir())
        };
        if archives.len() <= 1
            && !archives
                .iter()
                .any(|archive| is_archive(archive) || archive.name.is_some())
        {
            if args.input_format != redwarfs_archive::Format::Auto {
                let what = "option '--input-format' needs an archive as input";
                return Err(ToolError::new(what));
            }
            return Ok(None);
        }
        for archive in &archives {
            if !is_archive(archive) {
                let error = ToolError::new("cannot read input").path(&archive.path);
                let metadata = std::fs::metadata(&archive.path);
                return Err(match metadata {
                    Ok(_) => error.cause("a directory; only archives can have names or be several"),
                    Err(e) => error.cause(cause_at(&archive.path, &e)),
                });
            }
            if let Some(at) = squashfs_in(&archive.path) {
                return Err(squashfs_error(&archive.path, at));
            }
            if is_image(&archive.path) {
                let path = canonical(&archive.path).unwrap_or_else(|_| archive.path.clone());
                return Err(read_error(&path, &io::ErrorKind::NotADirectory.into()));
            }
        }
        for (given, option) in [
            (args.one_file_system, "one-file-system"),
            (args.file_timeout.is_some(), "file-timeout"),
        ] {
            if given {
                return Err(ToolError::new(format!(
                    "option '--{option}' cannot be used with an archive as input"
                )));
            }
        }
        let list = args.input_list.as_deref() == Some(stdin);
        if archives.iter().filter(is_stdin).count() + usize::from(list) > 1 {
            return Err(ToolError::new("standard input can be read once only"));
        }
        let options = ArchiveOptions {
            format: args.input_format,
            whiteouts: args.whiteouts(),
            spool: spool(args),
            memory_limit: args.memory_limit.0,
            accounts: Accounts::new(|account, name| {
                let found = match account {
                    Account::User => parse_user(name),
                    Account::Group => parse_group(name),
                };
                found.ok()
            }),
            library: own_program().map(|program| LibraryProcess {
                program,
                name: TOOL.into(),
                arguments: vec![ARCHIVE_PROCESS.into()],
            }),
        };
        Ok(Some(Self {
            archives,
            options,
            rules: Rules::default(),
        }))
    }

    /// Leaves out entries that the rules exclude.
    pub(super) fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Reads the archives.
    pub(super) fn read(
        self,
        args: &Args,
        report: &Report,
        stop: &AtomicBool,
    ) -> Result<ArchiveTree> {
        let list = (args.input_list.as_deref())
            .map(|list| listed(list, args))
            .transpose()?;
        let source = redwarfs_archive::read(&self.archives, &self.options, report, stop);
        let mut source = source
            .map_err(archive_error)?
            .with_symlinks(args.symlinks)
            .without_tagged(tags(args));
        let excluded = Arc::new(AtomicU64::new(0));
        if !self.rules.is_empty() {
            let (rules, excluded) = (self.rules, Arc::clone(&excluded));
            source = source.with_filter(Box::new(move |path: &[u8], kind| {
                let included = rules.include(Path::new("/"), path, kind);
                excluded.fetch_add(u64::from(!included), Ordering::Relaxed);
                included
            }));
        }
        let mut errors = 0;
        if let Some(list) = list {
            let found;
            (source, found) = source.with_list(list);
            errors = say_listed(&found, Path::new("/"), report.logger());
        }
        Ok(ArchiveTree {
            source,
            errors,
            excluded,
        })
    }
}

impl fmt::Display for Archives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, archive) in self.archives.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{}", display_path(&archive.path))?;
        }
        Ok(())
    }
}

/// Directory of the temporary file: where the user wants it, or else beside the output, which needs room
/// in any case.
pub(super) fn spool(args: &Args) -> PathBuf {
    let wanted = args.spool.clone();
    let temporary = || std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    let beside = || {
        let output = args
            .output
            .as_deref()
            .filter(|path| *path != Path::new("-"))?;
        // A device has no directory for files.
        let file = std::fs::metadata(output).map_or(true, |metadata| metadata.is_file());
        let directory = output.parent().filter(|_| file)?;
        Some(match directory.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => directory.to_owned(),
        })
    };
    wanted
        .or_else(|| temporary().map(PathBuf::from))
        .or_else(beside)
        .unwrap_or_else(std::env::temp_dir)
}

fn squashfs_error(path: &Path, at: u64) -> ToolError {
    let (what, how) = squashfs_advice(at);
    ToolError::new("cannot read input")
        .path(path)
        .cause(what)
        .hint(how)
}

fn archive_error(error: Error) -> ToolError {
    let what = "cannot read input";
    let shown = |path: &Path| match path == Path::new("-") {
        true => PathBuf::from("standard input"),
        false => path.to_owned(),
    };
    match error {
        Error::Read { path, source } => ToolError::new(what)
            .path(shown(&path))
            .cause(cause_at(&path, &source)),
        Error::Truncated { path, place } => ToolError::new(what)
            .path(shown(&path))
            .cause(format!("the archive is truncated {place}")),
        Error::Damaged {
            path,
            place,
            what: cause,
        } => ToolError::new(what)
            .path(shown(&path))
            .cause(format!("the archive is damaged {place}"))
            .cause(cause),
        Error::Unsupported { path, what: cause } => match squashfs_behind(&path) {
            Some(at) => squashfs_error(&path, at),
            None => ToolError::new(what).path(shown(&path)).cause(cause),
        },
        Error::Spool { directory, source } => ToolError::new("cannot write the temporary file")
            .path(&directory)
            .cause(io_cause(&source))
            .hint("--spool names another directory"),
        Error::Memory { limit } => limit_error(limit).hint("the entries of the archive do not fit"),
        Error::Interrupted => interrupted(),
        other => ToolError::new(what).cause(other),
    }
}
