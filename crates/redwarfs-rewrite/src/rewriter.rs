//! The whole rewrite.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redwarfs_codec::CodecSpec;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::{MetadataView, unknown_members};
use redwarfs_format::section::{CompressionId, SectionType};
use redwarfs_reader::check::{CheckReport, Finding, FindingKind};
use redwarfs_reader::{CheckOptions, Image};
use redwarfs_writer::emit::{
    Emitter, MetadataCodecs, freeze_for, hint_table, history_entry, write_hints,
};
use redwarfs_writer::{Error as WriteError, Level, Phase, Progress};

use crate::error::{Error, Result};
use crate::hidden;
use crate::memory::{self, block_job, metadata_job};
use crate::metadata;
use crate::options::{Leading, Rebuild, RewriteOptions};
use crate::plan::{Plan, check_categories};
use crate::pool::{self, Queue, Task, Work, add};
use crate::recut::{self, Recut};

/// The result of a finished rewrite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RewriteSummary {
    /// Blocks of the new image.
    pub blocks: u64,
    /// Bytes in them, uncompressed.
    pub block_bytes: u64,
    /// Bytes of the new image, including the bytes before it.
    pub image_size: u64,
    /// CPU time of decoding and compressing, nanoseconds.
    pub compress_cpu_ns: u64,
    /// Wall time, nanoseconds.
    pub wall_ns: u64,
}

/// Target of the events that `--verbose` shows.
const VERBOSE: &str = "redwarfs_rewrite::verbose";

/// Rewrites `image` to `out` with `options`, from front to back and without seeking.
///
/// It uses the counters of `progress` for blocks, chunks, inodes, compression and output. The counters
/// for fragments count the blocks of the source. If `stop` is set, the rewrite ends with
/// [`WriteError::Interrupted`].
///
/// # Errors
/// The image is damaged, the output cannot be written, or options are invalid or do not apply to the
/// image. With [`RewriteOptions::check`], damage is found before anything is written.
pub fn rewrite(
    image: &Image,
    options: &RewriteOptions,
    out: &mut dyn Write,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<RewriteSummary> {
    options.check()?;
    let started = Instant::now();
    let counters = progress.counters();
    let view = image.metadata();
    let interrupted = || stop.load(Ordering::Relaxed);

    if options.check {
        progress.phase(Phase::Checking);
        check(image, options, stop)?;
        tracing::info!(
            target: VERBOSE,
            sections = image.container().sections.len(),
            took = ?started.elapsed(),
            "verified the image"
        );
    }
    let default = Rebuild::default();
    let rebuild = match (&options.rebuild, options.block_size_bits) {
        (Some(rebuild), _) => Some(rebuild),
        (None, Some(_)) => Some(&default),
        // Its metadata is in no section.
        (None, None) if image.is_archived() => Some(&default),
        (None, None) => None,
    };
    if let Some(rebuild) = rebuild {
        // All indices are used without further checks.
        view.check(image.container().block_count(), None)?;
        crate::attributes::resolution(view.options(), rebuild)?;
        warn_of_unknown_members(image, progress)?;
    }
    check_categories(&[image], options)?;
    let plan = Plan::new(image, options)?;
    let allowance = memory::plan(image, options, &plan, rebuild.is_some(), progress)?;
    let history = match &options.history {
        Some(history) => {
            let mut old = image.history()?;
            // A reader can skip damaged parts. A rewrite would lose them for good.
            for section in image.container().section_of_type(SectionType::HISTORY) {
                image.stored_payload(&image.section_with_header(section)?)?;
            }
            old.entries.push(history_entry(history));
            Some(old)
        }
        None => None,
    };

    tracing::debug!(
        blocks = options.blocks,
        metadata = options.metadata,
        rebuild = rebuild.is_some(),
        codec = %options.compression,
        "what is compressed anew"
    );
    progress.phase(Phase::Rewriting);
    let counts = view.counts();
    add(&counters.inodes, u64::from(counts.inodes));
    let old_blocks = u64::from(image.container().block_count());
    add(&counters.fragments_found, old_blocks);
    let mut emitter = Emitter::new(out, counters);
    leading(image, &options.leading, &mut emitter)?;

    let block_size = options
        .block_size_bits
        .map_or(view.block_size(), |n| 1 << n);
    let task = Task {
        image,
        options,
        plan: &plan,
        counters,
    };
    let recut = pool::run(task, allowance, &mut emitter, stop, |queue| {
        if options.block_size_bits.is_some() {
            recut_blocks(image, &plan, block_size, allowance.ahead, progress, queue).map(Some)
        } else {
            sections(image, &plan, options, rebuild.is_some(), progress, queue)?;
            Ok(None)
        }
    })?;

    let mut hints = None;
    if let Some(rebuild) = rebuild {
        progress.phase(Phase::Metadata);
        let blocks = match &recut {
            Some(recut) => {
                // Pieces that reach beyond the data of their block would get other data.
                view.check(image.container().block_count(), Some(&recut.old_sizes))?;
                recut.block_count()?
            }
            None => image.container().block_count(),
        };
        let version = image.container().version;
        let mut metadata =
            metadata::build(image, version, rebuild, block_size, blocks, recut.as_ref())?;
        let compressed = options.metadata_compression != CodecSpec::none();
        metadata.pack(&rebuild.packing.for_metadata(compressed));
        add(&counters.chunks, metadata.chunks.len() as u64);
        drop(recut);
        if interrupted() {
            return Err(Error::interrupted());
        }
        let frozen = freeze_for(&metadata, &options.metadata_compression)?;
        drop(metadata);
        if let Some(wanted) = &options.hints {
            let view = MetadataView::parse(&frozen.schema, frozen.data.clone())?;
            hints = hint_table(wanted, &view, progress)?;
        }
        let codecs = MetadataCodecs {
            schema: &options.schema_compression,
            main: &options.metadata_compression,
            alternative: options.metadata_alternative.as_ref(),
            has_room: &|_, _, _| options.memory_limit.is_none(),
        };
        emitter.metadata(frozen, &codecs)?;
    } else {
        add(&counters.chunks, u64::from(counts.chunks));
        if let Some(wanted) = &options.hints {
            hints = hint_table(wanted, view, progress)?;
        }
    }
    if let Some(history) = history {
        let codec = &options.history_compression;
        emitter.section(SectionType::HISTORY, codec, history.encode())?;
    }
    if options.section_index {
        emitter.index()?;
    }
    let rewritten = hidden::Rewritten {
        rebuilt: rebuild.is_some(),
        recut: options.block_size_bits.is_some(),
        indexed: options.section_index,
        hinted: options.hints.is_some(),
    };
    if let Some(table) = &hints {
        write_hints(table, &mut emitter)?;
    }
    hidden::keep(image, rewritten, &mut emitter, progress)?;
    emitter.finish()?;
    if interrupted() {
        return Err(Error::interrupted());
    }
    progress.phase(Phase::Done);
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    tracing::info!(
        target: VERBOSE,
        blocks = get(&counters.blocks_written),
        bytes = get(&counters.block_bytes),
        compressed = get(&counters.compressed_size),
        image = emitter.written(),
        took = ?started.elapsed(),
        "rewrote the image"
    );
    Ok(RewriteSummary {
        blocks: get(&counters.blocks_written),
        block_bytes: get(&counters.block_bytes),
        image_size: emitter.written(),
        compress_cpu_ns: get(&counters.compress_cpu_ns),
        wall_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
    })
}

/// Writes the bytes before the image.
pub(crate) fn leading(image: &Image, leading: &Leading, emitter: &mut Emitter<'_>) -> Result<()> {
    match leading {
        Leading::Keep => {
            image
                .copy_header(&mut InFront(emitter))
                .map_err(|e| match e {
                    // The error of the writer includes that of the emitter.
                    redwarfs_format::Error::Io(e) => e.downcast().map_or_else(
                        |e| Error::from(redwarfs_format::Error::Io(e)),
                        |Refused(e)| Error::from(WriteError::Output(e)),
                    ),
                    other => other.into(),
                })?;
        }
        Leading::Remove => {}
        Leading::Replace(bytes) => emitter.leading(bytes)?,
    }
    Ok(())
}

/// Writes the bytes before the image.
struct InFront<'a, 'b>(&'a mut Emitter<'b>);

/// The output failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(io::Error);

impl Write for InFront<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.0.leading(buf) {
            Ok(()) => Ok(buf.len()),
            Err(WriteError::Output(e)) => Err(io::Error::other(Refused(e))),
            Err(other) => Err(io::Error::other(other)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Names the members of the metadata that are dropped because this version does not know them. Members
/// that are needed to read an image correctly are features, and images with unknown features are
/// refused.
pub(crate) fn warn_of_unknown_members(image: &Image, progress: &dyn Progress) -> Result<()> {
    let schema = image
        .container()
        .only_section_of_type(SectionType::METADATA_V2_SCHEMA)?;
    let mut unknown = unknown_members(&image.decode_section(schema)?)?;
    let ignored = image.metadata().ignored_tables()?;
    unknown.extend(ignored.into_iter().map(str::to_owned));
    if !unknown.is_empty() {
        progress.log(
            Level::Warn,
            &format!(
                "rebuilding drops {} member(s) of the metadata that this version does not know: {}",
                unknown.len(),
                unknown.join(", ")
            ),
        );
    }
    Ok(())
}

/// Verifies the checksums of all sections.
pub(crate) fn check(image: &Image, options: &RewriteOptions, stop: &AtomicBool) -> Result<()> {
    let report = image.check_sections(&{
        let mut check = CheckOptions::default();
        check.threads = options.workers;
        check
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::interrupted());
    }
    let mut faults = report.findings.iter().filter(|f| is_fault(&report, f));
    match faults.next() {
        None => Ok(()),
        Some(first) => Err(Error::CorruptInput {
            first: first.to_string(),
            errors: 1 + faults.count(),
        }),
    }
}

/// Whether a finding keeps a section from being read. An unusable index, a wrong number or version in a
/// header, and a duplicate section do not prevent a rewrite: the new image has new headers and a new
/// index. Nor does a damaged trailer, which is dropped.
fn is_fault(report: &CheckReport, finding: &Finding) -> bool {
    let ty = finding.section.and_then(|section| section.ty);
    if ty.is_some_and(SectionType::is_hidden) {
        return false;
    }
    let outcome = finding
        .section
        .and_then(|section| report.outcomes.get(section.position as usize));
    match finding.kind {
        FindingKind::Checksum | FindingKind::Integrity | FindingKind::Read | FindingKind::Gap => {
            true
        }
        FindingKind::Header => outcome.is_none_or(|outcome| !outcome.is_ok()),
        _ => false,
    }
}

/// Submits all sections in their order, except the sections that are made anew.
fn sections(
    image: &Image,
    plan: &Plan,
    options: &RewriteOptions,
    rebuild: bool,
    progress: &dyn Progress,
    mut queue: Queue<'_>,
) -> Result<()> {
    let counters = progress.counters();
    let raw_limit = u64::from(image.metadata().block_size());
    add(
        &counters.blocks_created,
        u64::from(image.container().block_count()),
    );
    let mut block = 0u32;
    for section in &image.container().sections {
        match section.ty {
            SectionType::HISTORY | SectionType::SECTION_INDEX => {}
            SectionType::BLOCK => {
                let number = BlockNo(block);
                block += 1;
                let section = image.section_with_header(section)?;
                let kind = plan.kind(image, number, &section)?;
                let codec = plan.codec_of(&kind, number)?;
                let (cost, work) = match codec {
                    None => (section.length, Work::Copy(section)),
                    Some(codec) => {
                        let raw = match section.compression {
                            Some(CompressionId::NONE) => section.length.min(raw_limit),
                            _ => raw_limit,
                        };
                        let memory = plan
                            .codec(codec)
                            .memory(usize::try_from(raw).unwrap_or(usize::MAX));
                        let cost = block_job(section.length, raw, memory);
                        let work = Work::Recompress {
                            block: number,
                            codec,
                            content: kind.content,
                        };
                        (cost, work)
                    }
                };
                queue.submit(cost, work)?;
                add(&counters.fragments_written, 1);
            }
            SectionType::METADATA_V2_SCHEMA | SectionType::METADATA_V2 if rebuild => {}
            SectionType::METADATA_V2_SCHEMA if options.metadata => {
                let work = Work::Recode(section.clone(), options.schema_compression.clone());
                queue.submit(section.length, work)?;
            }
            SectionType::METADATA_V2 if options.metadata => {
                let codec = options.metadata_compression.clone();
                let cost = metadata_job(image, options, section);
                queue.submit(cost, Work::Recode(section.clone(), codec))?;
            }
            _ => queue.submit(section.length, Work::Copy(section.clone()))?,
        }
    }
    Ok(())
}

/// Submits the blocks cut anew, then the sections of unknown types.
fn recut_blocks(
    image: &Image,
    plan: &Plan,
    block_size: u32,
    ahead: usize,
    progress: &dyn Progress,
    mut queue: Queue<'_>,
) -> Result<Recut> {
    let counters = progress.counters();
    let recut = recut::cut(image, plan, counters, block_size, ahead, &mut queue)?;
    for section in &image.container().sections {
        if section.ty.name().is_none() {
            queue.submit(section.length, Work::Copy(section.clone()))?;
        }
    }
    Ok(recut)
}
