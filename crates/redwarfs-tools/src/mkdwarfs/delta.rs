//! What one image lacks of another one: `--delta`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_append::{Base, BaseOptions, Trust};
use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::snapshot_time_name;
use redwarfs_io::FileSource;
use redwarfs_reader::OpenOptions;
use redwarfs_rewrite::merge::{MergeOptions, continued};
use redwarfs_writer::Progress as _;

use super::append::failure;
use super::args::Args;
use super::display::Report;
use super::output::{self, Target};
use super::rewrite::rewrite_error;
use super::run::{build_options, left_out};
use super::summary::Summary;
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, io_cause};
use crate::common::number::format_size;
use crate::common::open::{Spelling, open_image};
use crate::common::os::stop_flag;
use crate::common::{Result, ToolError};

/// Writes the delta file. Returns the exit code.
pub(super) fn run(args: &Args, images: &[PathBuf], command_line: &[OsString]) -> Result<u8> {
    let ([old, new], Some(output)) = (images, &args.output) else {
        return Err(ToolError::new(
            "option '--delta' needs two images and '--output'",
        ));
    };
    let logger = args.logger();
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let mut options = MergeOptions::level(args.compress_level);
    options.metadata = build_options(args, command_line, &logger, None)?;
    let spelling = Spelling {
        auto: "--delta",
        size: None,
    };
    let image = open_image(new, &OpenOptions::default(), spelling)?;
    let base = base(args, old, &image)?;
    let target = Target::open(
        output,
        args.force,
        &[old.as_path(), new.as_path()],
        &stop,
        &logger,
    )?
    .without_image();
    let report = Arc::new(Report::new(logger, false, args.verbose));
    let mode = args.progress.mode();
    let summary = output::produce(target, 0, &report, mode, &stop, |out| {
        let done = continued(&image, &base, &options, out, &*report, &stop);
        done.map_err(|e| rewrite_error(e, args, new))
    })?;
    let added = summary
        .image_size
        .saturating_sub(base.image().container().size);
    let last_words = Summary {
        output,
        verb: "created",
        resumed: None,
        snapshot: Some(format!(
            "snapshot: {} '{}', {} added",
            base.number(),
            base.name(),
            format_size(added)
        )),
        image_size: summary.image_size,
        input_size: summary.original_size,
        allocated_size: summary.allocated_size,
        front: None,
        errors: summary.errors,
        left_out: left_out(report.counters()),
        verbose: args.verbose,
    };
    last_words.show(&report, mode);
    Ok(match summary.errors {
        0 => EXIT_OK,
        _ => EXIT_PARTIAL,
    })
}

/// The old image, to be continued with the tree of the new one, whose time the snapshot gets.
fn base(args: &Args, old: &Path, new: &redwarfs_reader::Image) -> Result<Base> {
    let time = new.metadata().create_timestamp();
    let sec = time.map_or(0, |time| i64::try_from(time).unwrap_or(i64::MAX));
    let named = args.append.snapshot_name.as_ref();
    // No name of a time is longer than that of this one.
    let name = named.map_or_else(|| snapshot_time_name(sec.min(1 << 40)), String::clone);
    let mut options = BaseOptions::new(name, Timestamp { sec, nsec: 0 });
    options.numbered = named.is_none();
    // Equal times of files of two images say nothing about their contents.
    options.trust = Trust::Nothing;
    let source = FileSource::open(old).map_err(|e| failure(old, e.into()))?;
    Base::open(Arc::new(source), options).map_err(|e| failure(old, e))
}
