//! The information about an image as text.

use redwarfs_codec::CompressionId;
use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::FsOptions;
use redwarfs_format::section::{IndexState, SectionType};
use redwarfs_reader::Image;
use redwarfs_reader::check::{SectionList, SectionOutcome};

use super::checked::Checked;
use super::detail::{Detail, Feature};
use super::message::counted;
use super::output::{Failures, Output};
use super::overview::{
    self, QUANTILES, Scatter, Sum, Summary, category_name, flag_names, quantile,
};
use super::xattrs;
use super::{dump, frozen, tree};
use crate::common::Result;
use crate::common::error::one_line;
use crate::common::number::{format_percent, format_size};
use crate::common::time::LocalTime;

/// Prints what `detail` asks for, as far as the image could be opened.
pub(super) fn print(
    checked: &Checked,
    detail: &Detail,
    failures: &mut Failures<'_>,
    out: &mut Output,
) -> Result<()> {
    let list = &checked.report.list;
    if detail.has(Feature::Version) {
        version(list, out)?;
    }
    let image = checked.image.as_ref();
    if detail.has(Feature::SectionDetails) {
        sections(checked, out)?;
    }
    let Some(image) = image else {
        return Ok(());
    };
    if detail.has(Feature::History) {
        history(image, failures, out)?;
    }
    created(image, out)?;
    if detail.has(Feature::MetadataSummary) {
        let details = detail.has(Feature::SectionDetails);
        summary(image, checked, details, out)?;
    }
    let analysis = detail.has(Feature::FrozenAnalysis);
    let details = detail.has(Feature::FrozenDetails);
    if analysis || details {
        let order = if details {
            frozen::Order::Address
        } else {
            frozen::Order::Size
        };
        match image.metadata().memory_usage() {
            Ok(usage) => {
                out.line("metadata memory usage:")?;
                out.lines(&frozen::memory_table(&usage, order))?;
            }
            Err(e) => failures.add("cannot analyse the metadata", None, &e),
        }
    }
    if detail.has(Feature::FrozenLayout) {
        out.line("")?;
        out.lines(&frozen::layout_lines(&image.metadata().layout()))?;
    }
    if detail.has(Feature::SchemaRawDump) {
        match checked.schema() {
            Ok(schema) => out.lines(&frozen::schema_lines(&schema))?,
            Err(e) => failures.add("cannot show the schema", None, &e),
        }
    }
    if detail.has(Feature::MetadataDetails) {
        metadata_details(image, out)?;
    }
    if detail.has(Feature::MetadataFullDump) {
        let done = dump::metadata(image.metadata(), out);
        failures.absorb("cannot dump the metadata", done)?;
    }
    if detail.has(Feature::DirectoryTree) {
        let done = tree::text(image, detail.has(Feature::ChunkDetails), failures, out);
        failures.absorb("cannot show the tree", done)?;
    }
    Ok(())
}

fn version(list: &SectionList, out: &mut Output) -> Result<()> {
    let style = if list.has_hashes() { 2 } else { 1 };
    let mut line = format!("DwarFS version {} [{style}]", list.version);
    if list.offset > 0 {
        line.push_str(&format!(" at offset {}", list.offset));
    }
    out.line(&line)
}

/// A line for each section.
fn sections(checked: &Checked, out: &mut Output) -> Result<()> {
    let list = &checked.report.list;
    let metadata = checked.image.as_ref().map(Image::metadata);
    let names = metadata
        .and_then(|m| m.category_names().ok().flatten())
        .unwrap_or_default();
    for (entry, outcome) in list.sections.iter().zip(&checked.report.outcomes) {
        let section = &entry.section;
        let sizes = checked.sizes(entry);
        let compression = section
            .compression
            .map_or_else(|| "?".to_owned(), |c: CompressionId| c.to_string());
        // Without long headers there are neither versions nor numbers of sections.
        let head = if list.has_hashes() {
            format!("[V{}] num={}, ", list.version, section.number)
        } else {
            "[V1] ".to_owned()
        };
        let mut line = format!(
            "SECTION {head}type={}, compression={compression}, length={}",
            section.ty, section.length
        );
        if let Some(header) = &section.header {
            line.push_str(&format!(", checksum=0x{:016x}", header.xxh));
        }
        line.push_str(match outcome {
            SectionOutcome::NoHash => "",
            SectionOutcome::Good => " [OK]",
            SectionOutcome::Mismatch => " [CHECKSUM ERROR]",
            SectionOutcome::Failed(_) => " [READ ERROR]",
            SectionOutcome::Lost => " [HEADER ERROR]",
            SectionOutcome::Undecodable(_) => " [DECODING ERROR]",
        });
        line.push_str(&format!(", offset={}", section.payload_offset));
        match sizes.and_then(|s| s.raw) {
            Some(raw) => {
                let ratio = format_percent(section.length, raw);
                line.push_str(&format!(", blocksize={raw}, ratio={ratio}"));
            }
            None => line.push_str(&format!(", blocksize={} (estimate)", section.length)),
        }
        if let (Some(block), Some(metadata)) = (entry.block, metadata) {
            if let Ok(Some(category)) = metadata.block_category(block) {
                let name = category_name(&names, category.0);
                line.push_str(&format!(", category={name}"));
            }
            if let Ok(Some(json)) = metadata.block_metadata(block) {
                let json = one_line(&String::from_utf8_lossy(&json));
                line.push_str(&format!(", metadata={json}"));
            }
        }
        if section.ty == SectionType::SECTION_INDEX {
            line.push_str(match list.index {
                IndexState::Valid => " [VALID]",
                _ => " [INVALID]",
            });
        }
        out.line(&line)?;
    }
    Ok(())
}

fn history(image: &Image, failures: &mut Failures<'_>, out: &mut Output) -> Result<()> {
    let history = match image.history() {
        Ok(history) => history,
        Err(e) => {
            failures.add("cannot show the history", None, &e);
            return Ok(());
        }
    };
    if history.entries.is_empty() {
        return Ok(());
    }
    out.line("History:")?;
    for (number, entry) in history.entries.iter().enumerate() {
        out.lines(&history_lines(number + 1, entry))?;
    }
    Ok(())
}

fn history_lines(number: usize, entry: &HistoryEntry) -> Vec<String> {
    let v = &entry.version;
    let mut line = format!("{number:>3}: ");
    if let Some(t) = entry.timestamp {
        line.push_str(&format!("[{}] ", unix_time(t, ' ')));
    }
    line.push_str(&one_line(&v.library()));
    if let Some(branch) = &v.git_branch {
        line.push_str(&format!(" ({})", one_line(branch)));
    }
    line.push_str(&format!(
        " on {}, {}",
        one_line(&entry.system_id),
        one_line(&entry.compiler_id)
    ));
    let mut lines = vec![line];
    if let Some(arguments) = &entry.arguments {
        let arguments: Vec<String> = arguments.iter().map(|a| one_line(a)).collect();
        lines.push(format!("     args: {}", arguments.join(" ")));
    }
    lines
}

fn created(image: &Image, out: &mut Output) -> Result<()> {
    let metadata = image.metadata();
    if let Some(version) = metadata.dwarfs_version() {
        out.line(&format!(
            "created by: {}",
            one_line(&String::from_utf8_lossy(version))
        ))?;
    }
    if let Some(t) = metadata.create_timestamp() {
        out.line(&format!("created on: {}", unix_time(t, ' ')))?;
    }
    let features: Vec<String> = metadata
        .features()
        .iter()
        .map(|f| one_line(&String::from_utf8_lossy(f)))
        .collect();
    if !features.is_empty() {
        out.line(&format!("features: {}", features.join(", ")))?;
    }
    Ok(())
}

/// Local date and time with `between` in between, or the number if it is no time.
pub(super) fn unix_time(seconds: u64, between: char) -> String {
    // Up to the year 9999. Later times are invalid, and need not look like a date.
    const LAST: i64 = 253_402_300_799;
    match i64::try_from(seconds) {
        Ok(t) if t <= LAST => {
            let text = LocalTime::from_unix(t).date_time();
            text.replace(' ', &between.to_string())
        }
        _ => seconds.to_string(),
    }
}

fn summary(image: &Image, checked: &Checked, details: bool, out: &mut Output) -> Result<()> {
    let (list, sizes) = (&checked.report.list, &checked.report.block_sizes);
    let metadata = image.metadata();
    let summary = Summary::of(image, list, sizes)?;
    let totals = metadata.totals();
    let blocks = &summary.blocks;
    out.line(&format!(
        "block size: {}",
        format_size(metadata.block_size().into())
    ))?;
    out.line(&format!("block count: {}", blocks.blocks))?;
    out.line(&format!("inode count: {}", metadata.inode_count()))?;
    if let Some(separator) = summary.separator {
        out.line(&format!("preferred path separator: {separator}"))?;
    }
    out.line(&format!(
        "original filesystem size: {}",
        format_size(totals.size)
    ))?;
    if totals.allocated != totals.size {
        out.line(&format!(
            "original allocated filesystem size: {}",
            format_size(totals.allocated)
        ))?;
    }
    if totals.hardlink_size > 0 {
        out.line(&format!(
            "original hardlink size: {}",
            format_size(totals.hardlink_size)
        ))?;
    }
    let (share, at_least) = if blocks.unknown {
        (String::new(), "(at least) ")
    } else {
        let share = format_percent(blocks.stored, blocks.raw);
        (format!(" ({share})"), "")
    };
    out.line(&format!(
        "compressed block size: {}{share}",
        format_size(blocks.stored)
    ))?;
    out.line(&format!(
        "uncompressed block size: {at_least}{}",
        format_size(blocks.raw)
    ))?;
    if let Some((stored, raw)) = summary.metadata {
        out.line(&format!(
            "compressed metadata size: {} ({})",
            format_size(stored),
            format_percent(stored, raw)
        ))?;
        out.line(&format!("uncompressed metadata size: {}", format_size(raw)))?;
    }
    for (position, name) in summary.options.iter().enumerate() {
        let head = if position == 0 {
            "options: "
        } else {
            "         "
        };
        out.line(&format!("{head}{name}"))?;
    }
    out.line(&format!(
        "time resolution: {}",
        resolution(metadata.options())
    ))?;
    out.lines(&xattrs::text(image, checked.snapshots.as_ref(), details)?)?;
    if !summary.categories.is_empty() {
        out.line("categories:")?;
        for (name, sum) in &summary.categories {
            out.line(&format!(
                "  {name}: {}, {}",
                counted(sum.blocks, "block"),
                category_sizes(*sum)
            ))?;
        }
    }
    previous_versions(image, out)
}

fn category_sizes(sum: Sum) -> String {
    if sum.unknown {
        format!("{} compressed", format_size(sum.stored))
    } else if !sum.compressed {
        format!("{} uncompressed", format_size(sum.raw))
    } else {
        format!(
            "{} compressed, {} uncompressed ({})",
            format_size(sum.stored),
            format_size(sum.raw),
            format_percent(sum.stored, sum.raw)
        )
    }
}

fn resolution(options: &FsOptions) -> String {
    match options.subsecond_resolution_nsec_multiplier {
        Some(n) if n > 0 && n % 1_000_000 == 0 => format!("{} ms", n / 1_000_000),
        Some(n) if n > 0 && n % 1_000 == 0 => format!("{} µs", n / 1_000),
        Some(n) if n > 0 => format!("{n} ns"),
        _ => format!("{} seconds", options.time_resolution_sec.unwrap_or(1)),
    }
}

fn previous_versions(image: &Image, out: &mut Output) -> Result<()> {
    let versions = overview::previous_versions(image.metadata())?;
    if versions.is_empty() {
        return Ok(());
    }
    out.line("previous metadata versions:")?;
    for version in versions {
        let by = version.version.map_or_else(String::new, |v| {
            format!(", {}", one_line(&String::from_utf8_lossy(&v)))
        });
        out.line(&format!(
            "  [{}.{}] {} blocks{by}",
            version.major,
            version.minor,
            format_size(version.block_size)
        ))?;
        if let Some(options) = &version.options {
            let names = flag_names(options);
            if !names.is_empty() {
                out.line(&format!("        options: {}", names.join(", ")))?;
            }
            out.line(&format!("        time resolution: {}", resolution(options)))?;
        }
    }
    Ok(())
}

fn metadata_details(image: &Image, out: &mut Output) -> Result<()> {
    let view = image.metadata();
    for row in overview::counts(view)? {
        out.line(&format!("{}: {}", row.text.unwrap_or(row.key), row.value))?;
    }
    let scatter = Scatter::of(view, image.container().block_count());
    for (what, histogram) in [
        ("block refs", &scatter.blocks),
        ("chunk count", &scatter.chunks),
    ] {
        let values: Vec<String> = QUANTILES
            .iter()
            .map(|(name, share)| {
                let value = quantile(histogram, *share);
                let value = value.map_or_else(|| "N/A".to_owned(), |v| v.to_string());
                format!("{name}: {value}")
            })
            .collect();
        out.line(&format!("single file {what} {}", values.join(", ")))?;
    }
    out.line(&format!(
        "mergeable chunks: {}/{}",
        scatter.mergeable, scatter.all_chunks
    ))
}
