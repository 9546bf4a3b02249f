//! The information about an image as one JSON object, its keys in alphabetical order.

use std::io::Write;

use redwarfs_format::GenerationNo;
use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::FsOptions;
use redwarfs_format::section::{IndexState, SectionType};
use redwarfs_reader::Image;
use redwarfs_reader::check::{Finding, SectionList, SectionOutcome};

use super::checked::Checked;
use super::detail::{Detail, Feature};
use super::message::message;
use super::output::Failures;
use super::overview::{self, QUANTILES, Scatter, Summary, category_name, flag_names, quantile};
use super::text::unix_time;
use super::xattrs;
use super::{export, frozen, tree};
use crate::common::json::JsonWriter;

type Result<T> = redwarfs_format::Result<T>;

/// Writes the object. `verbose` adds all files that are affected by a damage.
///
/// # Errors
/// `Io` if writing failed; what cannot be shown of a damaged image goes to `failures`.
pub(super) fn write<W: Write>(
    checked: &Checked,
    detail: &Detail,
    verbose: bool,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let image = checked.image.as_ref();
    let list = &checked.report.list;
    let has = |feature| detail.has(feature);
    let summary = match image {
        Some(image) if has(Feature::MetadataSummary) => {
            Some(Summary::of(image, list, &checked.report.block_sizes)?)
        }
        _ => None,
    };
    json.begin_object()?;
    if verbose && let Some(image) = image {
        affected_files(checked, image, failures, json)?;
    }
    if let (Some(image), Some(summary)) = (image, &summary) {
        block_numbers(image, summary, json)?;
    }
    if let Some(image) = image {
        created(image, json)?;
    }
    json.key("errors")?;
    json.begin_array()?;
    for finding in &checked.report.findings {
        error(finding, None, json)?;
    }
    if let Some(generations) = &checked.generations {
        for older in &generations.findings {
            error(&older.finding, Some(older.snapshot), json)?;
        }
    }
    json.end_array()?;
    if let Some(image) = image {
        if summary.is_some() {
            let table = checked.snapshots.as_ref();
            xattrs::json(image, table, has(Feature::SectionDetails), json)?;
        }
        json.key("features")?;
        json.begin_array()?;
        for feature in image.metadata().features() {
            json.bytes(feature)?;
        }
        json.end_array()?;
        encoding(image, detail, failures, json)?;
        if has(Feature::MetadataFullDump) {
            json.key("full_metadata")?;
            export::metadata(image.metadata(), export::Style::Sparse, json)?;
        }
        if has(Feature::History) {
            history(image, failures, json)?;
        }
    }
    if has(Feature::Version) {
        json.number_at("image_offset", list.offset)?;
    }
    if let Some(image) = image {
        if summary.is_some() {
            json.number_at("inode_count", image.metadata().inode_count())?;
        }
        if has(Feature::MetadataDetails) {
            meta(image, json)?;
        }
        if let Some(summary) = &summary {
            json.key("options")?;
            names(&summary.options, json)?;
            let totals = image.metadata().totals();
            if totals.allocated != totals.size {
                json.number_at("original_allocated_filesystem_size", totals.allocated)?;
            }
            json.number_at("original_filesystem_size", totals.size)?;
            if totals.hardlink_size > 0 {
                json.number_at("original_hardlink_size", totals.hardlink_size)?;
            }
            if let Some(separator) = &summary.separator {
                json.string_at("preferred_path_separator", separator)?;
            }
        }
        if has(Feature::DirectoryTree) {
            json.key("root")?;
            tree::json(image, has(Feature::ChunkDetails), failures, json)?;
        }
    }
    if has(Feature::SchemaRawDump) && image.is_some() {
        match checked.schema() {
            Ok(schema) => {
                json.key("schema")?;
                frozen::schema_json(json, &schema)?;
            }
            Err(e) => failures.add("cannot show the schema", None, &e),
        }
    }
    if has(Feature::SectionDetails) {
        sections(checked, json)?;
    }
    if let Some(generations) = &checked.generations {
        super::generations::json(generations, json)?;
    }
    if let (Some(image), Some(summary)) = (image, &summary) {
        json.key("time_resolution")?;
        resolution(image.metadata().options(), json)?;
        if list.trailing > 0 {
            json.number_at("trailing_bytes", list.trailing)?;
        }
        if !summary.blocks.unknown {
            json.number_at("uncompressed_block_size", summary.blocks.raw)?;
        }
        if let Some((_, raw)) = summary.metadata {
            json.number_at("uncompressed_metadata_size", raw)?;
        }
    }
    json.key("uncovered")?;
    json.begin_array()?;
    for bytes in checked.uncovered() {
        json.begin_object()?;
        json.number_at("bytes", bytes.bytes)?;
        if let Some(offset) = bytes.offset {
            json.number_at("offset", offset)?;
        }
        json.string_at("reason", bytes.reason.name())?;
        json.end_object()?;
    }
    json.end_array()?;
    if has(Feature::SectionDetails) {
        json.boolean_at("valid_section_index", list.index == IndexState::Valid)?;
    }
    if has(Feature::Version) {
        version(list, json)?;
    }
    json.end_object()?;
    json.finish()?;
    Ok(())
}

fn names<W: Write>(names: &[&str], json: &mut JsonWriter<W>) -> Result<()> {
    json.begin_array()?;
    for name in names {
        json.string(name)?;
    }
    json.end_array()?;
    Ok(())
}

fn version<W: Write>(list: &SectionList, json: &mut JsonWriter<W>) -> Result<()> {
    json.key("version")?;
    json.begin_object()?;
    json.number_at("header", if list.has_hashes() { 2 } else { 1 })?;
    json.number_at("major", list.version.major)?;
    json.number_at("minor", list.version.minor)?;
    json.end_object()?;
    Ok(())
}

/// One thing that is wrong. If it is one of an older generation, `older` is the newest snapshot that has it, or that there
/// is none.
fn error<W: Write>(
    finding: &Finding,
    older: Option<Option<GenerationNo>>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let snapshot = |json: &mut JsonWriter<W>| -> Result<()> {
        match older {
            Some(Some(number)) => json.number_at("snapshot", number.0)?,
            Some(None) => {
                json.key("snapshot")?;
                json.null()?;
            }
            None => {}
        }
        Ok(())
    };
    json.begin_object()?;
    if let Some(affected) = &finding.affected {
        json.key("affected")?;
        json.begin_object()?;
        json.number_at("count", affected.count)?;
        json.key("first")?;
        json.begin_array()?;
        for path in &affected.first {
            json.begin_object()?;
            json.name("path", path)?;
            json.end_object()?;
        }
        json.end_array()?;
        json.end_object()?;
    }
    if let Some(place) = &finding.section {
        if let Some(block) = place.block {
            json.number_at("block", block.0)?;
        }
        json.string_at("kind", finding.kind.name())?;
        json.string_at("message", &message(finding))?;
        json.number_at("offset", place.offset)?;
        json.number_at("section", place.position)?;
        snapshot(json)?;
        if let Some(ty) = place.ty {
            json.string_at("type", &ty.to_string())?;
        }
    } else {
        json.string_at("kind", finding.kind.name())?;
        json.string_at("message", &message(finding))?;
        snapshot(json)?;
    }
    json.end_object()?;
    Ok(())
}

fn affected_files<W: Write>(
    checked: &Checked,
    image: &Image,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let Some(files) = &checked.report.affected else {
        return Ok(());
    };
    json.key("affected_files")?;
    json.begin_array()?;
    let done = files.for_each(image, &mut |path, blocks| {
        json.begin_object()?;
        json.key("blocks")?;
        json.begin_array()?;
        for block in blocks {
            json.number(block.0)?;
        }
        json.end_array()?;
        json.name("path", path)?;
        json.end_object()?;
        Ok(())
    });
    match done {
        Err(redwarfs_format::Error::Io(e)) => return Err(e.into()),
        Err(e) => failures.add("cannot find the affected files", None, &e),
        Ok(()) => {}
    }
    json.end_array()?;
    Ok(())
}

fn block_numbers<W: Write>(
    image: &Image,
    summary: &Summary,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    json.number_at("block_count", summary.blocks.blocks)?;
    json.number_at("block_size", image.metadata().block_size())?;
    if !summary.categories.is_empty() {
        json.key("categories")?;
        json.begin_object()?;
        for (name, sum) in &summary.categories {
            json.key(name)?;
            json.begin_object()?;
            json.number_at("block_count", sum.blocks)?;
            json.number_at("compressed_size", sum.stored)?;
            if !sum.unknown {
                json.number_at("uncompressed_size", sum.raw)?;
            }
            json.end_object()?;
        }
        json.end_object()?;
    }
    json.number_at("compressed_block_size", summary.blocks.stored)?;
    if let Some((stored, _)) = summary.metadata {
        json.number_at("compressed_metadata_size", stored)?;
    }
    Ok(())
}

fn created<W: Write>(image: &Image, json: &mut JsonWriter<W>) -> Result<()> {
    let metadata = image.metadata();
    if let Some(version) = metadata.dwarfs_version() {
        json.name("created_by", version)?;
    }
    if let Some(t) = metadata.create_timestamp() {
        json.string_at("created_on", &unix_time(t, 'T'))?;
    }
    Ok(())
}

fn encoding<W: Write>(
    image: &Image,
    detail: &Detail,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let analysis = detail.has(Feature::FrozenAnalysis);
    let details = detail.has(Feature::FrozenDetails);
    if analysis || details {
        match image.metadata().memory_usage() {
            Ok(usage) => {
                let wanted = [
                    (analysis, "frozen_analysis", frozen::Order::Size),
                    (details, "frozen_details", frozen::Order::Address),
                ];
                for (_, key, order) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
                    json.key(key)?;
                    frozen::memory_json(json, &usage, order)?;
                }
            }
            Err(e) => failures.add("cannot analyse the metadata", None, &e),
        }
    }
    if detail.has(Feature::FrozenLayout) {
        json.key("frozen_layout")?;
        frozen::layout_json(json, &image.metadata().layout())?;
    }
    Ok(())
}

fn history<W: Write>(
    image: &Image,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let history = match image.history() {
        Ok(history) => history,
        Err(e) => {
            failures.add("cannot show the history", None, &e);
            return Ok(());
        }
    };
    json.key("history")?;
    json.begin_array()?;
    for entry in &history.entries {
        history_entry(entry, json)?;
    }
    json.end_array()?;
    Ok(())
}

fn history_entry<W: Write>(entry: &HistoryEntry, json: &mut JsonWriter<W>) -> Result<()> {
    json.begin_object()?;
    if let Some(arguments) = &entry.arguments {
        json.key("arguments")?;
        json.begin_array()?;
        for argument in arguments {
            json.string(argument)?;
        }
        json.end_array()?;
    }
    json.string_at("compiler_id", &entry.compiler_id)?;
    json.key("libdwarfs_version")?;
    json.begin_object()?;
    let v = &entry.version;
    for (key, value) in [
        ("git_branch", &v.git_branch),
        ("git_desc", &v.git_desc),
        ("git_rev", &v.git_rev),
    ] {
        if let Some(value) = value {
            json.string_at(key, value)?;
        }
    }
    json.boolean_at("is_release", v.is_release)?;
    json.number_at("major", v.major)?;
    json.number_at("minor", v.minor)?;
    json.number_at("patch", v.patch)?;
    json.end_object()?;
    if let Some(libraries) = &entry.library_versions {
        json.key("library_versions")?;
        json.begin_array()?;
        for library in libraries {
            json.string(library)?;
        }
        json.end_array()?;
    }
    json.string_at("system_id", &entry.system_id)?;
    if let Some(t) = entry.timestamp {
        json.key("timestamp")?;
        json.begin_object()?;
        json.number_at("epoch", t)?;
        json.string_at("local", &unix_time(t, 'T'))?;
        json.end_object()?;
    }
    json.end_object()?;
    Ok(())
}

/// Seconds: a whole number, or a fraction.
fn resolution<W: Write>(options: &FsOptions, json: &mut JsonWriter<W>) -> Result<()> {
    match options.subsecond_resolution_nsec_multiplier {
        Some(n) if n > 0 => json.float(f64::from(n) / 1e9)?,
        _ => json.number(options.time_resolution_sec.unwrap_or(1))?,
    }
    Ok(())
}

fn meta<W: Write>(image: &Image, json: &mut JsonWriter<W>) -> Result<()> {
    let view = image.metadata();
    let mut rows = overview::counts(view)?;
    rows.sort_by_key(|row| row.key);
    let previous = overview::previous_versions(view)?;
    let scatter = Scatter::of(view, image.container().block_count());
    json.key("meta")?;
    json.begin_object()?;
    // Sorted with the rest would be more trouble than it is worth: objects have no order.
    for (key, histogram) in [
        ("block_refs", &scatter.blocks),
        ("chunk_count", &scatter.chunks),
    ] {
        json.key(key)?;
        json.begin_object()?;
        for (name, share) in QUANTILES {
            json.key(name)?;
            match quantile(histogram, share) {
                Some(value) => json.number(value)?,
                None => json.null()?,
            }
        }
        json.end_object()?;
    }
    for row in rows {
        json.number_at(row.key, row.value)?;
    }
    json.number_at("mergeable_chunks", scatter.mergeable)?;
    if !previous.is_empty() {
        json.key("metadata_version_history")?;
        json.begin_array()?;
        for version in &previous {
            json.begin_object()?;
            json.number_at("block_size", version.block_size)?;
            if let Some(by) = &version.version {
                json.name("dwarfs_version", by)?;
            }
            json.number_at("major", version.major)?;
            json.number_at("minor", version.minor)?;
            if let Some(options) = &version.options {
                json.key("options")?;
                names(&flag_names(options), json)?;
                json.key("time_resolution")?;
                resolution(options, json)?;
            }
            json.end_object()?;
        }
        json.end_array()?;
    }
    json.end_object()?;
    Ok(())
}

fn sections<W: Write>(checked: &Checked, json: &mut JsonWriter<W>) -> Result<()> {
    let list = &checked.report.list;
    let metadata = checked.image.as_ref().map(Image::metadata);
    let names = metadata
        .and_then(|m| m.category_names().ok().flatten())
        .unwrap_or_default();
    json.key("sections")?;
    json.begin_array()?;
    for (entry, outcome) in list.sections.iter().zip(&checked.report.outcomes) {
        let section = &entry.section;
        let sizes = checked.sizes(entry);
        json.begin_object()?;
        if let Some(block) = entry.block {
            json.number_at("block", block.0)?;
            if let Some(metadata) = metadata
                && let Ok(Some(category)) = metadata.block_category(block)
            {
                json.string_at("category", &category_name(&names, category.0))?;
            }
        }
        if let Some(header) = &section.header {
            json.string_at("checksum", &format!("{:016x}", header.xxh))?;
        }
        json.boolean_at(
            "checksum_ok",
            !matches!(
                outcome,
                SectionOutcome::Mismatch | SectionOutcome::Failed(_) | SectionOutcome::Lost
            ),
        )?;
        json.number_at("compressed_size", section.length)?;
        if let Some(compression) = section.compression {
            json.string_at("compression", &compression.to_string())?;
        }
        if let (Some(block), Some(metadata)) = (entry.block, metadata)
            && let Ok(Some(bytes)) = metadata.block_metadata(block)
        {
            // Not everything that an image holds is JSON.
            match serde_json::from_slice::<serde_json::Value>(&bytes) {
                Ok(value) => {
                    json.key("metadata")?;
                    json.value(&value)?;
                }
                Err(_) => json.name("metadata_text", &bytes)?,
            }
        }
        json.number_at("number", section.number)?;
        json.number_at("offset", section.payload_offset)?;
        if let Some(raw) = sizes.and_then(|s| s.raw) {
            if raw > 0 {
                json.key("ratio")?;
                json.float(section.length as f64 / raw as f64)?;
            }
            json.number_at("size", raw)?;
        }
        json.string_at("type", &section.ty.to_string())?;
        if section.ty == SectionType::SECTION_INDEX {
            json.boolean_at("valid", list.index == IndexState::Valid)?;
        }
        json.end_object()?;
    }
    json.end_array()?;
    Ok(())
}
