//! `--checkpoint`: results of a build that is interrupted, for the next one.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use redwarfs_io::Checkpoint;
use redwarfs_writer::Counters;

use super::args::Args;
use super::input::Base;
use crate::common::error::{display_path, io_cause};
use crate::common::number::{counted, format_size};
use crate::common::{Logger, Result, ToolError};

/// Opens the checkpoint that the options name, if they do, and says what is in it.
pub(super) fn open(args: &Args, logger: &Logger) -> Result<Option<Checkpoint>> {
    let Some(path) = &args.checkpoint else {
        return Ok(None);
    };
    // The text has the path.
    let checkpoint = Checkpoint::open(path).map_err(|e| error().cause(e))?;
    let (entries, bytes) = checkpoint.usage();
    if entries > 0 {
        logger.info(format_args!(
            "going on with the checkpoint {}: {} of an earlier build, {}",
            display_path(path),
            counted(entries, "result", "results"),
            format_size(bytes)
        ));
    }
    Ok(Some(checkpoint))
}

/// Leaves the checkpoint out of the image, if it is below the input.
pub(super) fn leave_out(checkpoint: &Checkpoint, base: Base) -> Result<Base> {
    let path = checkpoint.path();
    let mut failed = None;
    let base = base.map(|mut source| {
        failed = source.skip_directory(path).err();
        source
    });
    match failed {
        None => Ok(base),
        Some(e) if e.kind() == io::ErrorKind::InvalidInput => {
            // Nothing of it stays in the input.
            checkpoint.remove();
            Err(error().path(path).cause("it is the input"))
        }
        Some(e) => Err(error().path(path).cause(io_cause(&e))),
    }
}

fn error() -> ToolError {
    ToolError::new("cannot use the checkpoint")
}

/// A line about what came from an earlier build.
pub(super) fn line(counters: &Counters) -> Option<String> {
    let blocks = counters.blocks_reused.load(Ordering::Relaxed);
    let bytes = counters.block_bytes_reused.load(Ordering::Relaxed);
    let files = counters.files_reused.load(Ordering::Relaxed);
    if (blocks, files) == (0, 0) {
        return None;
    }
    let files = match files {
        0 => String::new(),
        files => format!(
            ", {}",
            counted(files, "digest of a file", "digests of files")
        ),
    };
    Some(format!(
        "resumed:  {} ({}){files} of an earlier build used again",
        counted(blocks, "block", "blocks"),
        format_size(bytes)
    ))
}

/// Removes the checkpoint when there is an image, unless something that can be mended is missing in it.
pub(super) fn finish(checkpoint: &Checkpoint, path: &Path, errors: u64, logger: &Logger) {
    if errors == 0 {
        return checkpoint.remove();
    }
    logger.warn(format_args!(
        "the checkpoint {} stays for another build, because there were errors",
        display_path(path)
    ));
}
