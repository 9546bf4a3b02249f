//! What there is to say about an image.

use std::collections::BTreeMap;

use redwarfs_format::BlockNo;
use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::{FsOptions, Metadata};
use redwarfs_format::section::SectionType;
use redwarfs_reader::Image;

use super::Output;
use super::detail::{Detail, Feature};
use super::sections::{self, category_name, percent, sizes};
use super::verify::Verified;
use crate::common::Result;
use crate::common::error::one_line;
use crate::common::number::format_size;
use crate::common::time::LocalTime;

/// Metadata up to this size (bytes, uncompressed) is expanded to see how its tables are packed. The
/// expanded form takes a multiple of it.
const EXPAND_LIMIT: u64 = 64 << 20;

/// Prints what `detail` asks for.
pub(crate) fn print(
    image: &Image,
    detail: &Detail,
    verified: Option<&Verified>,
    out: &mut Output,
) -> Result<()> {
    if detail.has(Feature::Version) {
        version(image, out)?;
    }
    if let Some(verified) = verified
        && detail.has(Feature::SectionDetails)
    {
        sections::print(image, verified, out)?;
    }
    if detail.has(Feature::History) {
        history(image, out)?;
    }
    created(image, out)?;
    let expanded = if detail.has(Feature::MetadataSummary) || detail.has(Feature::MetadataDetails) {
        expand(image)
    } else {
        None
    };
    if detail.has(Feature::MetadataSummary) {
        summary(image, expanded.as_ref(), out)?;
    }
    if detail.has(Feature::MetadataDetails) {
        details(image, expanded.as_ref(), out)?;
    }
    Ok(())
}

fn version(image: &Image, out: &mut Output) -> Result<()> {
    let container = image.container();
    let style = if container.has_hashes() { 2 } else { 1 };
    let mut line = format!("DwarFS version {} [{style}]", container.version);
    if container.offset > 0 {
        line.push_str(&format!(" at offset {}", container.offset));
    }
    out.line(&line)
}

fn history(image: &Image, out: &mut Output) -> Result<()> {
    let history = image.history()?;
    if history.entries.is_empty() {
        return Ok(());
    }
    out.line("History:")?;
    for (number, entry) in history.entries.iter().enumerate() {
        for line in history_lines(number + 1, entry) {
            out.line(&line)?;
        }
    }
    Ok(())
}

fn history_lines(number: usize, entry: &HistoryEntry) -> Vec<String> {
    let v = &entry.version;
    let mut line = format!("{number:>3}: ");
    if let Some(t) = entry.timestamp {
        line.push_str(&format!("[{}] ", unix_time(t)));
    }
    let name = match &v.git_desc {
        Some(desc) if !v.is_release => one_line(desc),
        _ => format!("v{}.{}.{}", v.major, v.minor, v.patch),
    };
    line.push_str(&format!("libdwarfs {name}"));
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
        out.line(&format!("created on: {}", unix_time(t)))?;
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

fn unix_time(seconds: u64) -> String {
    i64::try_from(seconds).map_or_else(
        |_| seconds.to_string(),
        |t| LocalTime::from_unix(t).date_time(),
    )
}

/// The metadata as plain tables, unless that takes too much memory.
fn expand(image: &Image) -> Option<Metadata> {
    let section = image
        .container()
        .section_of_type(SectionType::METADATA_V2)
        .next()?;
    let raw = sizes(image, section).ok()?.raw?;
    (raw <= EXPAND_LIMIT)
        .then(|| image.metadata().thaw().ok())
        .flatten()
}

/// Sums over blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    blocks: u64,
    stored: u64,
    raw: u64,
    /// Some block does not tell its uncompressed size.
    unknown: bool,
    /// Some block is not stored as it is.
    compressed: bool,
}

impl Sum {
    fn add(&mut self, sizes: sections::Sizes) {
        self.blocks += 1;
        self.stored = self.stored.saturating_add(sizes.stored);
        self.raw = self.raw.saturating_add(sizes.raw.unwrap_or(0));
        self.unknown |= sizes.raw.is_none();
        self.compressed |= sizes.compression != redwarfs_format::section::CompressionId::NONE;
    }
}

fn summary(image: &Image, expanded: Option<&Metadata>, out: &mut Output) -> Result<()> {
    let metadata = image.metadata();
    let container = image.container();
    let names = metadata.category_names()?.unwrap_or_default();
    let mut all = Sum::default();
    let mut categories: BTreeMap<u32, Sum> = BTreeMap::new();
    for (number, section) in (0_u32..).zip(container.blocks()) {
        // A block whose header cannot be read has been reported by the verification.
        let sizes = sizes(image, section).unwrap_or(sections::Sizes {
            compression: redwarfs_format::section::CompressionId(u16::MAX),
            stored: section.length,
            raw: None,
        });
        all.add(sizes);
        if let Ok(Some(category)) = metadata.block_category(BlockNo(number)) {
            categories.entry(category.0).or_default().add(sizes);
        }
    }
    let totals = metadata.totals();
    out.line(&format!(
        "block size: {}",
        format_size(metadata.block_size().into())
    ))?;
    out.line(&format!("block count: {}", container.block_count()))?;
    out.line(&format!("inode count: {}", metadata.inode_count()))?;
    out.line(&format!(
        "preferred path separator: {}",
        char::from(metadata.preferred_path_separator())
    ))?;
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
    let at_least = if all.unknown { "(at least) " } else { "" };
    out.line(&format!(
        "compressed block size: {} ({})",
        format_size(all.stored),
        percent(all.stored, all.raw)
    ))?;
    out.line(&format!(
        "uncompressed block size: {at_least}{}",
        format_size(all.raw)
    ))?;
    if let Some(section) = container.section_of_type(SectionType::METADATA_V2).next() {
        let sizes = sizes(image, section)?;
        let raw = sizes.raw.unwrap_or(sizes.stored);
        out.line(&format!(
            "compressed metadata size: {} ({})",
            format_size(sizes.stored),
            percent(sizes.stored, raw)
        ))?;
        out.line(&format!("uncompressed metadata size: {}", format_size(raw)))?;
    }
    let options = option_names(metadata.options(), expanded);
    for (position, name) in options.iter().enumerate() {
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
    if !categories.is_empty() {
        out.line("categories:")?;
        let mut named: Vec<(String, Sum)> = categories
            .into_iter()
            .map(|(number, sum)| (category_name(&names, number), sum))
            .collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, sum) in named {
            out.line(&format!(
                "  {name}: {} blocks, {}",
                sum.blocks,
                category_sizes(sum)
            ))?;
        }
    }
    previous_versions(expanded, out)
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
            percent(sum.stored, sum.raw)
        )
    }
}

fn option_names(options: &FsOptions, expanded: Option<&Metadata>) -> Vec<&'static str> {
    let names = expanded.and_then(|m| m.compact_names.as_ref());
    let symlinks = expanded.and_then(|m| m.compact_symlinks.as_ref());
    [
        (options.mtime_only, "mtime_only"),
        (options.inodes_have_nlink, "inodes_have_nlink"),
        (options.packed_chunk_table, "packed_chunk_table"),
        (options.packed_directories, "packed_directories"),
        (
            options.packed_shared_files_table,
            "packed_shared_files_table",
        ),
        (names.is_some_and(|t| t.symtab.is_some()), "packed_names"),
        (names.is_some_and(|t| t.packed_index), "packed_names_index"),
        (
            symlinks.is_some_and(|t| t.symtab.is_some()),
            "packed_symlinks",
        ),
        (
            symlinks.is_some_and(|t| t.packed_index),
            "packed_symlinks_index",
        ),
    ]
    .into_iter()
    .filter_map(|(set, name)| set.then_some(name))
    .collect()
}

fn resolution(options: &FsOptions) -> String {
    match options.subsecond_resolution_nsec_multiplier {
        Some(n) if n > 0 && n % 1_000_000 == 0 => format!("{} ms", n / 1_000_000),
        Some(n) if n > 0 && n % 1_000 == 0 => format!("{} µs", n / 1_000),
        Some(n) if n > 0 => format!("{n} ns"),
        _ => format!("{} seconds", options.time_resolution_sec.unwrap_or(1)),
    }
}

fn previous_versions(expanded: Option<&Metadata>, out: &mut Output) -> Result<()> {
    let entries = expanded
        .and_then(|m| m.metadata_version_history.as_deref())
        .unwrap_or_default();
    if entries.is_empty() {
        return Ok(());
    }
    out.line("previous metadata versions:")?;
    for entry in entries {
        let by = entry
            .dwarfs_version
            .as_deref()
            .map_or_else(String::new, |v| {
                format!(", {}", one_line(&String::from_utf8_lossy(v)))
            });
        out.line(&format!(
            "  [{}.{}] {} blocks{by}",
            entry.major,
            entry.minor,
            format_size(entry.block_size.into())
        ))?;
        if let Some(options) = &entry.options {
            let names = option_names(options, None);
            if !names.is_empty() {
                out.line(&format!("        options: {}", names.join(", ")))?;
            }
            out.line(&format!("        time resolution: {}", resolution(options)))?;
        }
    }
    Ok(())
}

fn details(image: &Image, expanded: Option<&Metadata>, out: &mut Output) -> Result<()> {
    let c = image.metadata().counts();
    let mut rows: Vec<(&str, u64)> = vec![
        ("symlink_inode_offset", c.symlink_offset.into()),
        ("file_inode_offset", c.file_offset.into()),
        ("dev_inode_offset", c.device_offset.into()),
        ("chunks", c.chunks.into()),
        ("directories", c.directories.into()),
        ("inodes", c.inodes.into()),
        ("contents", c.contents.into()),
    ];
    if let Some(m) = expanded {
        let length = |n: usize| n as u64;
        rows.extend([
            ("chunk_table", length(m.chunk_table.len())),
            ("entry_table_v2_2", length(m.entry_table_v2_2.len())),
            ("symlink_table", length(m.symlink_table.len())),
            ("uids", length(m.uids.len())),
            ("gids", length(m.gids.len())),
            ("modes", length(m.modes.len())),
            ("names", length(m.names.len())),
            ("symlinks", length(m.symlinks.len())),
            ("devices", length(m.devices.as_ref().map_or(0, Vec::len))),
            (
                "dir_entries",
                length(m.dir_entries.as_ref().map_or(0, Vec::len)),
            ),
            (
                "shared_files_table",
                length(m.shared_files_table.as_ref().map_or(0, Vec::len)),
            ),
        ]);
    }
    rows.push(("unique files", c.unique_files.into()));
    rows.push(("shared files", c.shared_files.into()));
    for (name, value) in rows {
        out.line(&format!("{name}: {value}"))?;
    }
    Ok(())
}
