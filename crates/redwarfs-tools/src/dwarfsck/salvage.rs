//! `--salvage-report`: what can be saved of an image of which anything may be damaged or missing.

use std::path::Path;
use std::sync::Arc;

use redwarfs_extractor::display_path;
use redwarfs_io::Source;
use redwarfs_salvage::{DamagedFile, Error, Salvage};

use super::args::Args;
use super::meter::with_bytes;
use super::open_options;
use super::output::{Output, output_error};
use crate::common::error::{EXIT_FAILURE, EXIT_OK};
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::os::stop_flag;
use crate::common::recovery::{Access, find, open};
use crate::common::{Logger, Result, ToolError};
use crate::dwarfsextract::{failed, write_file, write_found};

/// Ranges that a line names.
const SHOWN: usize = 3;

pub(super) fn run(args: &Args, input: &Path, logger: &Logger) -> Result<u8> {
    let what = "cannot salvage";
    let stop = stop_flag().map_err(|e| ToolError::new("cannot handle signals").io(&e))?;
    let failed = |e: Error| failed(input, &e);
    let source: Arc<dyn Source> = Arc::new(open(input, what)?);
    let total = source.len().unwrap_or(0);
    let options = open_options(args, 1);
    let recovery = match find(source.as_ref(), input, &args.sidecar, Access::Read, &stop) {
        Ok(_) => true,
        // A sidecar that was named has to be one.
        Err(e) if args.sidecar.is_some() => return Err(e.failure(what)),
        Err(_) => false,
    };
    let (found, took) = with_bytes(args, "searching", total, logger, |done| {
        Salvage::of(Arc::clone(&source), &options, done, &stop)
    });
    logger.verbose(format_args!("searched {took}"));
    let found = found.map_err(|e| match recovery {
        true if !matches!(e, Error::Snapshot { .. }) => {
            failed(e).hint("there is recovery data: --check-recovery says what it can repair")
        }
        _ => failed(e),
    })?;
    let mut damaged: Vec<DamagedFile> = Vec::new();
    found
        .for_each_damaged(&mut |file| {
            damaged.push(file);
            Ok(())
        })
        .map_err(failed)?;
    let broken = found.sections().iter().filter(|s| !s.intact).count();
    let lost =
        found.image().is_none() || !damaged.is_empty() || found.newer_damaged().next().is_some();
    let mut out = Output::new();
    if args.json {
        let mut json = JsonWriter::compact(&mut out);
        let write = |json: &mut JsonWriter<_>| {
            json.begin_object()?;
            write_found(json, &found)?;
            json.key("files")?;
            json.begin_array()?;
            for file in &damaged {
                write_file(json, file)?;
            }
            json.end_array()?;
            json.boolean_at("lost", lost)?;
            json.boolean_at("recovery", recovery)?;
            json.end_object()?;
            json.finish()
        };
        write(&mut json).map_err(|e| output_error(&e))?;
        out.finish()?;
    } else if !args.quiet {
        text(&found, &damaged, broken, recovery, &mut out)?;
        out.finish()?;
    }
    Ok(if lost { EXIT_FAILURE } else { EXIT_OK })
}

fn text(
    found: &Salvage,
    damaged: &[DamagedFile],
    broken: usize,
    recovery: bool,
    out: &mut Output,
) -> Result<()> {
    out.line(&format!(
        "found:    {}, {broken} of them damaged",
        counted(found.sections().len() as u64, "section", "sections")
    ))?;
    if recovery {
        out.line("recovery: there is recovery data; --check-recovery says what it can repair")?;
    }
    for why in found.passed_over() {
        out.line(&format!("newer:    {why}"))?;
    }
    for at in found.newer_damaged() {
        out.line(&format!("newer:    metadata at offset {at} is damaged"))?;
    }
    let (Some(image), Some(at), Some(lost)) = (found.image(), found.tree_at(), found.lost_blocks())
    else {
        return out.line("salvage:  there is no usable metadata: only raw blocks can be saved");
    };
    out.line(&format!(
        "tree:     at offset {at}, its blocks found by {}",
        match found.is_indexed() {
            true => "the section index",
            false => "their numbers",
        }
    ))?;
    out.line(&format!(
        "lost:     {} of {}",
        lost.len(),
        counted(
            u64::from(image.container().block_count()),
            "block",
            "blocks"
        )
    ))?;
    for file in damaged {
        let ranges: Vec<String> = file
            .missing
            .iter()
            .take(SHOWN)
            .map(|range| format!("{} at {}", range.length, range.offset))
            .collect();
        let more = match file.missing.len() > SHOWN {
            true => ", ...",
            false => "",
        };
        out.line(&format!(
            "damaged:  {}: {} of {} bytes are lost: {}{more}",
            display_path(&file.path),
            file.lost(),
            file.size,
            ranges.join(", ")
        ))?;
    }
    let gone: u64 = damaged.iter().map(DamagedFile::lost).sum();
    out.line(&match damaged.is_empty() {
        true => "salvage:  every file is whole".to_owned(),
        false => format!(
            "salvage:  {} damaged, {} lost; all others are whole",
            counted(damaged.len() as u64, "file is", "files are"),
            format_size(gone)
        ),
    })
}
