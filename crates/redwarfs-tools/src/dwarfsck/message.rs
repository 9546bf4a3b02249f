//! What a check found, in words for people.

use redwarfs_format::Error;
use redwarfs_reader::check::{
    AffectedPaths, Declaration, Finding, FindingKind, Uncovered, UncoveredReason,
};

use super::output::shown;
use crate::common::error::io_cause;

/// The message of a finding: the damage, the cause, and the option that declares it harmless.
pub(super) fn message(finding: &Finding) -> String {
    let mut text = finding.what.clone();
    if let Some(cause) = &finding.cause {
        text.push_str(": ");
        text.push_str(&plain(cause));
    }
    match (finding.kind, finding.unless_declared) {
        (_, None) => {}
        (_, Some(Declaration::ImageNumber)) => {
            text.push_str(": choose one with --image-offset=auto:N");
        }
        (FindingKind::End, Some(Declaration::ImageSize(size))) => text.push_str(&format!(
            ": if it has been written without, say so with --image-size={size}"
        )),
        (_, Some(Declaration::ImageSize(size))) => {
            text.push_str(&format!(" (then say so with --image-size={size})"));
        }
    }
    text
}

/// An error without its place, which the message names already.
fn plain(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.clone(),
        Error::Io(e) => io_cause(e),
        other => other.to_string(),
    }
}

/// `no file is affected`, `12 files are affected: a, b, c, ...`.
pub(super) fn affected(paths: &AffectedPaths) -> String {
    let names: Vec<String> = paths.first.iter().map(|path| shown(path)).collect();
    let more = paths.count.saturating_sub(names.len() as u64);
    let names = names.join(", ");
    match (paths.count, more) {
        (0, _) => "no file is affected".to_owned(),
        (1, 0) => format!("1 file is affected: {names}"),
        (n, 0) => format!("{n} files are affected: {names}"),
        (n, more) if names.is_empty() => format!("{n} files are affected, {more} not named"),
        (n, more) => format!("{n} files are affected: {names} and {more} more (-v names all)"),
    }
}

/// What a check does not cover.
pub(super) fn uncovered(uncovered: &Uncovered) -> String {
    let bytes = counted(uncovered.bytes, "byte");
    match uncovered.reason {
        UncoveredReason::Before => format!("{bytes} before the image"),
        UncoveredReason::Behind => format!("{bytes} behind the image"),
        UncoveredReason::Digests => format!("{bytes} of digests (see --check-integrity)"),
        UncoveredReason::NoChecksums => format!("{bytes} of a format without checksums"),
        UncoveredReason::Older => format!("{bytes} of older snapshots or hidden sections"),
        UncoveredReason::Unused => format!("{bytes} that no snapshot needs"),
        UncoveredReason::End => "a missing end (there is no section index)".to_owned(),
    }
}

/// A number with its unit, in the plural unless it is 1.
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
