//! The last line of the information: what a check came to.

use super::checked::Checked;
use super::message::{self, counted};

/// One line: `OK: 11 sections, 28 files, no errors` and the bytes that are not covered, or `damaged: 2
/// errors` and the number of affected files, or `not checked: 11 sections, 28 files`. Of all generations, it counts
/// snapshots instead of files.
pub(super) fn line(checked: &Checked, errors: u64) -> String {
    let sections = checked.report.list.sections.len() as u64;
    let files = checked
        .image
        .as_ref()
        .map_or(0, |image| image.metadata().counts().files);
    let contents = format!(
        "{}, {}",
        counted(sections, "section"),
        counted(files.into(), "file")
    );
    let contents = match &checked.generations {
        Some(generations) => format!(
            "{}, {}",
            counted(generations.snapshots.len() as u64, "snapshot"),
            counted(generations.sections, "section")
        ),
        None => contents,
    };
    if errors > 0 {
        if let Some(generations) = &checked.generations {
            let snapshots = &generations.snapshots;
            let bad = snapshots.iter().filter(|one| one.verdict.is_bad()).count();
            return format!(
                "damaged: {}, {bad} of {} affected",
                counted(errors, "error"),
                counted(snapshots.len() as u64, "snapshot")
            );
        }
        let mut line = format!("damaged: {}", counted(errors, "error"));
        if let Some(files) = affected(checked) {
            line.push_str(&format!(", {} affected", counted(files, "file")));
        }
        return line;
    }
    if !checked.verified {
        return format!("not checked: {contents}");
    }
    let mut line = format!("OK: {contents}, no errors");
    let uncovered = checked.uncovered().iter().map(message::uncovered);
    let uncovered: Vec<String> = uncovered.collect();
    if !uncovered.is_empty() {
        line.push_str("; not covered: ");
        line.push_str(&uncovered.join(", "));
    }
    line
}

/// Number of the names that the damage affects, if it is one of blocks.
fn affected(checked: &Checked) -> Option<u64> {
    let (files, image) = (checked.report.affected.as_ref()?, checked.image.as_ref()?);
    let mut count = 0_u64;
    files
        .for_each(image, &mut |_, _| {
            count = count.saturating_add(1);
            Ok(())
        })
        .ok()?;
    Some(count)
}
