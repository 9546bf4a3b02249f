//! The check of all generations of a file: its messages, a line for each snapshot, and its JSON.

use std::io::Write;
use std::sync::Arc;

use redwarfs_io::Source;
use redwarfs_reader::OpenOptions;
use redwarfs_reader::check::{
    CheckOptions, CheckReport, GenerationsCheck, GenerationsReport, OlderFinding, SnapshotReport,
    SnapshotVerdict,
};

use super::args::Args;
use super::message::{self, counted, message};
use super::meter::with_bytes;
use super::output::{Output, error_text};
use crate::common::json::JsonWriter;
use crate::common::{Logger, Result};

/// Checks all generations, after a check of the newest one.
///
/// # Errors
/// Why the generations cannot be found.
pub(super) fn check(
    args: &Args,
    source: &Arc<dyn Source>,
    open: &OpenOptions,
    newest: &CheckReport,
    options: &CheckOptions,
    logger: &Logger,
) -> redwarfs_format::Result<GenerationsReport> {
    let check = GenerationsCheck::find(Arc::clone(source), open)?;
    let total = check.bytes().saturating_sub(newest.list.payload_bytes());
    let work = |done: &(dyn Fn(u64) + Sync)| check.check(newest, options, done);
    let (report, took) = with_bytes(args, "checking older snapshots", total, logger, work);
    logger.verbose(format_args!(
        "verified {} of all snapshots, {took}",
        counted(report.sections, "section")
    ));
    Ok(report)
}

/// Names what is damaged beside the findings of the newest generation.
pub(super) fn log(report: &GenerationsReport, logger: &Logger) {
    for OlderFinding { finding, snapshot } in &report.findings {
        let what = message(finding);
        let named = snapshot.and_then(|number| {
            let found = report
                .snapshots
                .binary_search_by_key(&number, |one| one.snapshot.number);
            report.snapshots.get(found.ok()?)
        });
        match named {
            Some(SnapshotReport { snapshot, .. }) => {
                let mut line = format!("snapshot {} '{}': {what}", snapshot.number, snapshot.name);
                if let Some(affected) = &finding.affected {
                    line.push_str(": ");
                    line.push_str(&message::affected(affected));
                }
                logger.error(line);
            }
            None => logger.error(format_args!("{what}: no snapshot needs it")),
        }
    }
}

/// Names the snapshots that damage affects. Returns their number.
pub(super) fn log_damaged(report: &GenerationsReport, logger: &Logger) -> u64 {
    let bad = report.snapshots.iter().filter(|one| one.verdict.is_bad());
    let mut count = 0;
    for SnapshotReport { snapshot, verdict } in bad {
        logger.error(format_args!(
            "snapshot {} '{}': {}",
            snapshot.number,
            snapshot.name,
            in_words(verdict)
        ));
        count += 1;
    }
    count
}

/// A line for each snapshot.
pub(super) fn print(report: &GenerationsReport, out: &mut Output) -> Result<()> {
    out.line("snapshots:")?;
    let numbers = report.snapshots.iter();
    let width = numbers.map(|one| one.snapshot.number.to_string().len());
    let width = width.max().unwrap_or(0);
    for SnapshotReport { snapshot, verdict } in &report.snapshots {
        let number = snapshot.number.to_string();
        out.line(&format!(
            "  {number:>width$}  {}: {}",
            snapshot.name,
            in_words(verdict)
        ))?;
    }
    Ok(())
}

fn in_words(verdict: &SnapshotVerdict) -> String {
    match verdict {
        SnapshotVerdict::Good { files } => format!("ok, {}", counted((*files).into(), "file")),
        SnapshotVerdict::Damaged {
            errors, affected, ..
        } => {
            let mut words = format!("damaged: {}", counted(*errors, "error"));
            if let Some(affected) = affected {
                words.push_str(&format!(", {} affected", counted(*affected, "file")));
            }
            words
        }
        SnapshotVerdict::Lost(error) => format!("cannot be opened: {}", error_text(error)),
        SnapshotVerdict::Gone => "its data is gone".to_owned(),
    }
}

/// Writes the member `snapshots`.
pub(super) fn json<W: Write>(
    report: &GenerationsReport,
    json: &mut JsonWriter<W>,
) -> redwarfs_format::Result<()> {
    json.key("snapshots")?;
    json.begin_array()?;
    for SnapshotReport { snapshot, verdict } in &report.snapshots {
        json.begin_object()?;
        if let SnapshotVerdict::Damaged {
            errors, affected, ..
        } = verdict
        {
            if let Some(affected) = affected {
                json.number_at("affected_files", *affected)?;
            }
            json.number_at("errors", *errors)?;
        }
        if let SnapshotVerdict::Good { files } | SnapshotVerdict::Damaged { files, .. } = verdict {
            json.number_at("files", *files)?;
        }
        json.string_at("name", &snapshot.name)?;
        json.number_at("number", snapshot.number.0)?;
        if let SnapshotVerdict::Lost(error) = verdict {
            json.string_at("reason", &error_text(error))?;
        }
        json.string_at("verdict", verdict.name())?;
        json.end_object()?;
    }
    json.end_array()?;
    Ok(())
}
