//! What is looked at before recovery data is made: that would keep damage as it is.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::Error as FormatError;
use redwarfs_format::section::SectionType;
use redwarfs_reader::check::{
    CheckOptions, DeclaredImage, FileSections, Finding, FindingKind, GenerationsCheck,
    GenerationsReport, ListedSection,
};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_recovery::Error;

use super::cut;
use super::error::{Result, ToolError};
use super::recovery::{Access, FindError, Found, failure, find, sidecar_of};

const WHAT: &str = "is damaged, and was left as it is";
/// Snapshots that a message names.
const NAMED: usize = 3;

/// What old recovery data protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protected {
    /// It is compared with that data.
    Compare,
    /// It is not read, because the new recovery data does not cover it.
    Leave,
}

/// The check of everything that recovery data is made from.
#[derive(Debug)]
pub struct Precheck<'a> {
    path: &'a Path,
    image: &'a Image,
    options: CheckOptions,
    plan: GenerationsCheck,
    sections: FileSections,
    old: Option<Found>,
    protected: Protected,
    /// How to go on in spite of damage.
    advice: &'static str,
}

impl<'a> Precheck<'a> {
    /// Finds what is to be checked of the newest generation of an image, and of its older ones.
    ///
    /// # Errors
    /// The sections cannot be listed, or `stop` is set.
    pub fn of(
        image: &'a Image,
        path: &'a Path,
        options: CheckOptions,
        protected: Protected,
        advice: &'static str,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let failed = |e| cannot(path, e);
        let mut open = OpenOptions::default();
        open.offset = ImageOffset::At(image.container().offset);
        let source = image.source();
        let plan = GenerationsCheck::find(Arc::clone(source), &open).map_err(failed)?;
        let sections = plan.sections(image.list_sections().map_err(failed)?);
        let mut all = sections.list.sections.iter();
        // Without a sign of it, the whole file would be searched.
        let has_some = all.any(is_recovery) || sidecar_of(path).is_file();
        let found = has_some.then(|| find(source.as_ref(), path, &None, Access::Read, stop));
        let old = match found {
            Some(Ok(found)) => Some(found),
            Some(Err(error @ FindError::Data(_, Error::Interrupted))) => {
                return Err(error.failure("cannot check"));
            }
            // Then it protects nothing.
            Some(Err(_)) | None => None,
        };
        // That in a file of its own is not continued.
        let counts = |found: &Found| protected == Protected::Compare || found.sidecar.is_none();
        Ok(Self {
            path,
            image,
            options,
            plan,
            sections,
            old: old.filter(counts),
            protected,
            advice,
        })
    }

    /// Bytes that the check reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Some(old) = &self.old else {
            return self.plan.bytes();
        };
        let compared = match self.protected {
            Protected::Compare => old.data.bytes(),
            Protected::Leave => 0,
        };
        let rest = self.sections.list.sections.iter();
        let rest = rest.filter(|listed| !is_protected(old, listed));
        rest.fold(compared, |sum, listed| {
            sum.saturating_add(listed.section.length)
        })
    }

    /// Checks it. `done` is called with the number of bytes after each piece.
    ///
    /// # Errors
    /// What is damaged, and which snapshots that affects.
    pub fn check(mut self, done: &(dyn Fn(u64) + Sync), stop: &AtomicBool) -> Result<()> {
        let Some(old) = self.old.take() else {
            return self.check_all(done);
        };
        let source = self.image.source();
        if self.protected == Protected::Compare {
            let damage = old.data.check(source.as_ref(), &|bytes| done(bytes), stop);
            let damage = damage.map_err(|e| failure("cannot check", self.path, &e))?;
            if !damage.is_none() && damage.lost_groups() == 0 {
                return Err(ToolError::new(WHAT)
                    .path(self.path)
                    .cause("bytes that its recovery data protects have changed")
                    .hint(format!("{}; {}", old.repair(), self.advice)));
            }
            if !damage.is_none() {
                let what = "more is damaged than its recovery data can repair".to_owned();
                return self.check_sections(Some(what), done);
            }
        }
        let list = &mut self.sections.list;
        list.sections.retain(|listed| !is_protected(&old, listed));
        self.check_sections(None, done)
    }

    /// Checks everything, and that the newest generation is consistent.
    fn check_all(self, done: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let failed = |e| cannot(self.path, e);
        let list = self.image.list_sections().map_err(failed)?;
        let declared = DeclaredImage::default();
        let newest = self.image.check(list, declared, &self.options, done);
        let newest = newest.map_err(failed)?;
        // The rest of an append that was not finished is cut off.
        let unused = self.image.container().unused_tail > 0;
        let is_rest = |finding: &&Finding| unused && finding.kind == FindingKind::Trailing;
        let first = newest.findings.iter().find(|finding| !is_rest(finding));
        let first = first.map(ToString::to_string);
        let report = self.plan.check(&newest, &self.options, done);
        let older = report.findings.first();
        match first.or_else(|| older.map(|older| older.finding.to_string())) {
            None => Ok(()),
            Some(what) => {
                let advice = cut::advice_of(self.image, self.path);
                let advice = advice.as_deref().unwrap_or(self.advice);
                Err(refused(self.path, &what, &report, advice))
            }
        }
    }

    /// Checks the sections of the list. `what` is damage that is known already.
    fn check_sections(self, what: Option<String>, done: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let FileSections { list, lost } = self.sections;
        let source = self.image.source();
        let checked = list.check(source.as_ref(), &self.options, done);
        let sections = checked.list.sections.iter().zip(&checked.outcomes);
        let damaged = sections.filter(|(_, outcome)| !outcome.is_ok());
        let damaged: BTreeSet<u64> = damaged
            .map(|(listed, _)| listed.section.header_offset)
            .collect();
        let first = checked.findings.first().map(ToString::to_string);
        let header = || {
            let at = damaged.first()?;
            Some(format!("the header of a section at offset {at} is damaged"))
        };
        let index = || {
            let number = lost.first()?;
            Some(format!("the index of snapshot {number} is damaged"))
        };
        let Some(what) = what.or(first).or_else(header).or_else(index) else {
            return Ok(());
        };
        let report = self.plan.judge(self.image, &damaged);
        let report = report.map_err(|e| cannot(self.path, e))?;
        Err(refused(self.path, &what, &report, self.advice))
    }
}

fn cannot(path: &Path, error: FormatError) -> ToolError {
    ToolError::new("cannot check")
        .path(path)
        .cause(ToolError::from(error))
}

fn is_recovery(listed: &ListedSection) -> bool {
    listed.section.ty == SectionType::RECOVERY
}

/// Whether the comparison with old recovery data covers a section.
fn is_protected(old: &Found, listed: &ListedSection) -> bool {
    let section = &listed.section;
    let end = section.payload_offset.saturating_add(section.length);
    let covers = |start: i64, length: u64| {
        let last = start.saturating_add_unsigned(length);
        let at = section.header_offset.cast_signed();
        start <= at && end.cast_signed() <= last
    };
    is_recovery(listed)
        || old
            .data
            .geometries()
            .any(|geometry| covers(geometry.start(), geometry.length()))
}

/// The error for damage, with the snapshots that it affects.
fn refused(path: &Path, what: &str, report: &GenerationsReport, advice: &str) -> ToolError {
    let bad = report.snapshots.iter().filter(|one| one.verdict.is_bad());
    let bad: Vec<String> = bad
        .map(|one| format!("{} '{}'", one.snapshot.number, one.snapshot.name))
        .collect();
    let more = match bad.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<&str> = bad.iter().take(NAMED).map(String::as_str).collect();
    let failure = ToolError::new(WHAT).path(path).hint(advice);
    match named.is_empty() {
        true => failure.cause(what),
        false => failure.cause(format!(
            "{what}; this affects snapshot {}{more}",
            named.join(", ")
        )),
    }
}
