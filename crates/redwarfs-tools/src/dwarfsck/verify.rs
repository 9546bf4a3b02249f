//! Verifying all sections and saying what is wrong with which.

use std::collections::BTreeSet;

use redwarfs_format::BlockNo;
use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_format::section::{IndexState, SectionType};
use redwarfs_reader::{Image, SectionOutcome, SectionReport, VerifyMode};

use super::sections::payload_offset;
use crate::common::Result;
use crate::common::log::Logger;

/// What the verification found.
#[derive(Debug)]
pub(crate) struct Verified {
    /// In file order.
    pub(crate) reports: Vec<SectionReport>,
    problems: Vec<String>,
}

/// Verifies every section on `workers` threads.
pub(crate) fn verify(image: &Image, mode: VerifyMode, workers: usize) -> Result<Verified> {
    let mut reports = Vec::new();
    let summary = image.verify(mode, workers, &mut |report| reports.push(report))?;
    let mut problems = summary.problems;
    // Opening may have fallen back on walking the headers, for a reason the walk cannot see.
    if let IndexState::Invalid(reason) = &image.container().index {
        let text = format!("the section index is invalid: {reason}");
        if !problems.contains(&text) {
            problems.push(text);
        }
    }
    Ok(Verified { reports, problems })
}

/// Logs everything that is wrong, with `files` also the files that damaged blocks affect. Returns the
/// number of errors.
pub(crate) fn report(
    image: &Image,
    verified: &Verified,
    integrity: bool,
    files: bool,
    logger: &Logger,
) -> Result<u64> {
    let what = if integrity {
        "integrity check error"
    } else {
        "checksum error"
    };
    let mut errors = 0;
    let mut blocks = 0_u32;
    let mut damaged = BTreeSet::new();
    for report in &verified.reports {
        let block = (report.ty == SectionType::BLOCK).then(|| {
            blocks = blocks.saturating_add(1);
            BlockNo(blocks - 1)
        });
        let name = block.map_or_else(
            || report.ty.to_string(),
            |block| format!("{} {block}", report.ty),
        );
        let place = format!(
            "in section {} ({name}) at offset {}",
            report.position,
            payload_offset(image, report)
        );
        match &report.outcome {
            outcome if outcome.is_ok() => continue,
            SectionOutcome::Failed(e) => logger.error(format_args!("cannot read {place}: {e}")),
            _ => logger.error(format_args!("{what} {place}")),
        }
        errors += 1;
        damaged.extend(block);
    }
    for problem in &verified.problems {
        logger.error(problem);
        errors += 1;
    }
    if files && !damaged.is_empty() {
        affected(image, &damaged, logger)?;
    }
    Ok(errors)
}

/// Names the files that have data in damaged blocks.
fn affected(image: &Image, damaged: &BTreeSet<BlockNo>, logger: &Logger) -> Result<()> {
    for item in image.walk() {
        let item = item?;
        if image.metadata().file_type(item.inode)? != FileType::Regular {
            continue;
        }
        for extent in image.metadata().extents(item.inode)? {
            if let Extent::Data { block, .. } = extent?
                && damaged.contains(&block)
            {
                let path = redwarfs_extractor::display_path(&item.path);
                logger.error(format_args!("affected file: {path} (block {block})"));
                break;
            }
        }
    }
    Ok(())
}
