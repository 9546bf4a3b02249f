//! `--repair-patch` and `--apply-patch`: repairs as a file of the corrected bytes.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use redwarfs_io::Source;
use redwarfs_recovery::{Error, Repaired, apply_patch};
use serde_json::json;

use super::args::Args;
use super::meter::with_bytes;
use super::recovery::{
    examine, in_json, intact, lock, log_lost, open_ranges, say, say_open, written,
};
use crate::common::error::{EXIT_OK, display_path};
use crate::common::number::{counted, format_size};
use crate::common::output::{commit, create_medium};
use crate::common::recovery::{Access, failure, open};
use crate::common::{Logger, Result, ToolError};

/// Writes what a repair of the file would write to a patch.
pub(super) fn write(
    args: &Args,
    input: &Path,
    patch: &Path,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<u8> {
    let what = "cannot make a patch";
    let source = open(input, what)?;
    let (found, damage) = examine(args, &source, Access::Read, what, input, logger, stop)?;
    let open = open_ranges(&found, &source, what, input)?;
    if damage.is_none() {
        let json = json!({"patch": in_json(Repaired::default(), &open)});
        say(
            args,
            &format!("patch:    none, {}", intact(&open, &found)),
            &json,
        )?;
        return Ok(say_open(&open, &found, logger));
    }
    let (out, file) = create_medium(patch, input, what, logger)?;
    let total = source.len().unwrap_or(0);
    let (done, _) = with_bytes(args, "summing up", total, logger, |done| {
        found.data.write_patch(&source, &damage, &file, done, stop)
    });
    let done = done.map_err(|error| {
        log_lost(&damage, &found, logger);
        failure(what, input, &error)
    })?;
    let size = file.len().unwrap_or(0);
    drop(file);
    commit(out, what)?;
    let mut json = in_json(done, &open);
    json["file"] = patch.to_string_lossy().into();
    json["bytes"] = size.into();
    say(
        args,
        &format!(
            "patch:    {}, {}: {}",
            display_path(patch),
            format_size(size),
            written(done)
        ),
        &json!({ "patch": json }),
    )?;
    Ok(say_open(&open, &found, logger))
}

/// Puts the bytes of a patch into the file.
pub(super) fn apply(
    args: &Args,
    input: &Path,
    patch: &Path,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<u8> {
    let what = "cannot apply the patch";
    let source = open(patch, what)?;
    let file = lock(input)?;
    let total = file.len().unwrap_or(0);
    let (applied, took) = with_bytes(args, "comparing", total, logger, |done| {
        apply_patch(&file, &source, done, stop)
    });
    logger.verbose(format_args!("compared {took}"));
    let applied = applied.map_err(|error| match error {
        Error::Foreign => ToolError::new(what)
            .path(input)
            .cause("it was made for another file, or for other damage; nothing was written"),
        Error::Format(error) => ToolError::new(what).path(patch).cause(error),
        error => failure(what, input, &error),
    })?;
    say(
        args,
        &match applied.entries {
            0 => "applied:  nothing, the file is as the patch makes it".to_owned(),
            entries => format!(
                "applied:  {}, {}; the file is what the maker of the patch had",
                counted(entries, "change", "changes"),
                format_size(applied.bytes)
            ),
        },
        &json!({"applied": {"entries": applied.entries, "bytes": applied.bytes}}),
    )?;
    Ok(EXIT_OK)
}
