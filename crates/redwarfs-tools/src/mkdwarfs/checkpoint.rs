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

/// Opens the checkpoint that the options name, if they do, and says what is in it. It is left out of the image, if it is below
/// the input.
pub(super) fn open(args: &Args, base: Base, logger: &Logger) -> Result<(Option<Checkpoint>, Base)> {
    let Some(path) = &args.checkpoint else {
        return Ok((None, base));
    };
    // An input is refused before anything is made in it.
    let base = match path.exists() {
        true => leave_out(path, base)?,
        false => base,
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
    let base = leave_out(checkpoint.path(), base)?;
    Ok((Some(checkpoint), base))
}

fn leave_out(path: &Path, base: Base) -> Result<Base> {
    let mut failed = None;
    let base = base.map(|mut source| {
        failed = source.skip_directory(path).err();
        source
    });
    match failed {
        None => Ok(base),
        Some(e) if e.kind() == io::ErrorKind::InvalidInput => {
            Err(error().path(path).cause("it is the input"))
        }
        // It is none, which opening it says.
        Some(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(base),
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

/// Removes the checkpoint when there is an image, unless something that can be mended is missing in it. Then results stay that
/// this build has used.
pub(super) fn finish(checkpoint: &Checkpoint, errors: u64, logger: &Logger) {
    if errors == 0 {
        return checkpoint.remove();
    }
    checkpoint.remove_unused();
    logger.warn(format_args!(
        "the checkpoint {} stays for another build, because there were errors",
        display_path(checkpoint.path())
    ));
}

/// Says what is left of a build without an image, after which the process may exit at once.
pub(super) fn give_up(checkpoint: &Checkpoint, logger: &Logger) {
    let entries = checkpoint.leave();
    if entries > 0 {
        logger.info(format_args!(
            "{} in the checkpoint {}: the same command goes on with them",
            counted(entries, "result stays", "results stay"),
            display_path(checkpoint.path())
        ));
    }
}

/// Makes room for the image on its disk. Returns whether there may be some now.
pub(super) fn give_way(checkpoint: &Checkpoint, output: &Path, logger: &Logger) -> bool {
    if !checkpoint.shares_disk(output) {
        return false;
    }
    let bytes = checkpoint.give_way();
    if bytes > 0 {
        logger.warn(format_args!(
            "no space is left for the image: going on without the checkpoint {}, which took {}",
            display_path(checkpoint.path()),
            format_size(bytes)
        ));
    }
    bytes > 0
}

/// Whether a disk, or what its user may take of it, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
