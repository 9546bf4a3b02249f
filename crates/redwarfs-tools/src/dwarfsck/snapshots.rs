//! Snapshots: listing, comparing, changing and deleting them, going back to one, and giving space back.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redwarfs_append::{
    Archiving, Change, ChangeKind, Compacted, Compaction, Error, Punched, RollBack,
};
use redwarfs_format::metadata::FileType;
use redwarfs_format::section::{HiddenClass, SectionType, Snapshot, SnapshotTable};
use redwarfs_io::{AtomicFile, LockedFile, Medium, Overwrite};
use redwarfs_reader::{Image, ImageOffset, SnapshotChoice};
use redwarfs_rewrite::merge::MergeOptions;
use redwarfs_writer::{Counters, Level, Progress};
use serde_json::json;

use super::args::Args;
use super::output::{Output, output_error, shown};
use super::recovery::say;
use super::{open_error, open_options, snapshot_changes};
use crate::common::cut;
use crate::common::env::IoLayer;
use crate::common::error::{EXIT_OK, cause_at, display_path, io_cause};
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::os::stop_flag;
use crate::common::output::{cannot_create, create_derived, need_stdout};
use crate::common::time::LocalTime;
use crate::common::{Logger, Result, ToolError};

/// The level of --archive without --repack, as that of mkdwarfs.
const LEVEL: u8 = 7;
/// Older snapshots in which a signature is looked for.
const LOOKED_AT: usize = 64;

/// The snapshots of a file that has a table of them. Older parts of it can be in older generations. If `is_newest`, it warns
/// of a newest snapshot that no signature covers, if an older one has any.
///
/// # Errors
/// Why the snapshots of the file cannot be found.
pub(super) fn check_tables(
    image: &Image,
    is_newest: bool,
    logger: &Logger,
) -> redwarfs_format::Result<Option<SnapshotTable>> {
    let mut trailers = image.container().trailers.iter();
    if !trailers.any(|section| section.ty == SectionType::SNAPSHOTS) {
        return Ok(None);
    }
    let (table, _) = image.snapshot_tables()?;
    if is_newest {
        warn_of_old_signature(image, &table, logger);
    }
    Ok(Some(table))
}

/// How many snapshots there are, and which is the newest one: a line about the extensions of an image.
pub(super) fn summary(table: &SnapshotTable) -> Option<String> {
    let newest = table.present().next_back()?;
    let count = table.present().count() as u64;
    let archived = table.present().filter(|one| one.archived).count();
    let archived = match archived {
        0 => String::new(),
        many => format!(", {many} archived"),
    };
    Some(format!(
        "  {}{archived}; the newest is '{}' ({} added)",
        counted(count, "snapshot", "snapshots"),
        newest.name,
        format_size(newest.added)
    ))
}

/// The same in JSON.
pub(super) fn summary_json<W: std::io::Write>(
    table: &SnapshotTable,
    json: &mut JsonWriter<W>,
) -> std::io::Result<()> {
    json.begin_object()?;
    let archived = table.present().filter(|one| one.archived).count();
    json.number_at("archived", archived as u64)?;
    json.number_at("count", table.present().count() as u64)?;
    if let Some(newest) = table.present().next_back() {
        json.number_at("newest_added", newest.added)?;
        json.string_at("newest_name", &newest.name)?;
    }
    json.end_object()
}

/// The last snapshot that is signed.
pub(super) fn last_signed<'t>(image: &Image, table: &'t SnapshotTable) -> Option<&'t Snapshot> {
    let mut latest = table.present().rev().take(LOOKED_AT);
    latest.find(|one| image.snapshot_is_signed(one))
}

fn warn_of_old_signature(image: &Image, table: &SnapshotTable, logger: &Logger) {
    let newest = table.present().next_back();
    let older = |signed: &&Snapshot| newest.is_some_and(|newest| newest.number != signed.number);
    if let Some(signed) = last_signed(image, table).filter(older) {
        logger.warn(format_args!(
            "the newest snapshot is not signed; the last one that is: {} '{}'",
            signed.number, signed.name
        ));
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) enum Task<'a> {
    List,
    Diff(&'a SnapshotChoice, &'a SnapshotChoice),
    RollBack(&'a SnapshotChoice),
    /// Changes of the table, by options.
    Change,
    /// Give space back in place.
    Punch,
    Compact(&'a Path),
}

impl<'a> Task<'a> {
    /// The task of a command line, which must not have two.
    pub(super) fn of(args: &'a Args) -> Result<Option<Self>> {
        let own = &args.snapshots;
        let diff = match own.diff.as_deref() {
            Some([old, new]) => Some(Self::Diff(old, new)),
            _ => None,
        };
        let changes = own.rename_snapshot.is_some()
            || !own.pin_snapshot.is_empty()
            || !own.unpin_snapshot.is_empty()
            || !own.delete_snapshot.is_empty()
            || own.has_rules();
        let tasks = [
            own.list_snapshots.then_some(Self::List),
            diff,
            own.roll_back.as_ref().map(Self::RollBack),
            changes.then_some(Self::Change),
            own.punch.then_some(Self::Punch),
            own.compact.as_deref().map(Self::Compact),
        ];
        let mut tasks = tasks.into_iter().flatten();
        let task = tasks.next();
        let others = args.list
            || args.print_header
            || args.xattrs
            || args.checksum.is_some()
            || args.export_metadata.is_some()
            || own.all_generations
            || own.snapshot.is_some();
        if task.is_some() && (others || tasks.next().is_some()) {
            return Err(ToolError::new(
                "--snapshots, --diff, --roll-back, --punch, --compact, changes of snapshots, checks of them, and other \
                 things to show are mutually exclusive",
            ));
        }
        if task.is_some() && args.image_size.is_some() {
            return Err(ToolError::new("--image-size does not go with snapshots"));
        }
        if own.block_size_bits.is_some() && !own.is_anew() {
            return Err(
                ToolError::new("--block-size-bits needs --repack or --archive")
                    .hint("a plain copy has the blocks of the image"),
            );
        }
        if own.dry_run
            && !matches!(
                task,
                Some(Self::RollBack(_) | Self::Change | Self::Punch | Self::Compact(_))
            )
        {
            return Err(ToolError::new(
                "--dry-run needs --roll-back, --punch, --compact, or a change of snapshots",
            ));
        }
        Ok(task)
    }
}

pub(super) fn run(
    args: &Args,
    task: &Task<'_>,
    input: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<u8> {
    need_stdout()?;
    match task {
        Task::List => {
            let image = open(args, None, input, workers)?;
            if let Some(advice) = cut::advice_of(&image, input) {
                logger.warn(format_args!("{}: {advice}", display_path(input)));
            }
            list(args, &image)?;
        }
        Task::Diff(old, new) => diff(args, [old, new], input, workers, logger)?,
        Task::RollBack(choice) => roll_back(args, choice, input, workers, logger)?,
        Task::Change => snapshot_changes::run(args, input, workers, logger)?,
        Task::Punch => punch(args, input, workers, logger)?,
        Task::Compact(output) => compact(args, input, output, workers, logger)?,
    }
    Ok(EXIT_OK)
}

/// `offset` is that of the image.
pub(super) fn failed(what: &str, path: &Path, offset: ImageOffset, error: Error) -> ToolError {
    let failure = ToolError::new(what).path(path);
    match &error {
        Error::Io(e) => failure.cause(cause_at(path, e)),
        Error::Archived(_) => failure
            .cause(error)
            .hint("dwarfsextract --snapshot extracts it"),
        Error::OnlyArchive => failure
            .cause(error)
            .hint(
                "if nothing else is damaged, --compact with --repack writes a copy whose newest snapshot can be \
                 continued; dwarfsextract --snapshot extracts each tree",
            ),
        Error::Pinned(_) => failure.cause(error).hint("--unpin-snapshot allows it"),
        Error::Unfit(_) => match cut::advice(path, offset) {
            Some(advice) => failure.cause(error).hint(advice),
            None => failure.cause(error),
        },
        Error::Recovery => failure
            .cause(error)
            .hint("if it ends the file, --remove-recovery removes it; --compact writes a copy without it"),
        _ => failure.cause(error),
    }
}

pub(super) fn open(
    args: &Args,
    snapshot: Option<&SnapshotChoice>,
    input: &Path,
    workers: usize,
) -> Result<Image> {
    let mut options = open_options(args, workers);
    options.snapshot = snapshot.cloned();
    let source = IoLayer::from_env().open(input);
    let source = source.map_err(|e| open_error(input, &options, e.into()))?;
    Image::from_source(source, &options).map_err(|e| open_error(input, &options, e))
}

pub(super) fn table(image: &Image) -> Result<SnapshotTable> {
    let read = image.snapshot_tables().map(|(table, _)| table);
    read.map_err(|e| ToolError::new("cannot read the snapshots").cause(ToolError::from(e)))
}

fn list(args: &Args, image: &Image) -> Result<()> {
    let table = table(image)?;
    let mut out = Output::new();
    if args.json {
        for snapshot in table.present() {
            let mut json = JsonWriter::compact(&mut out);
            let signed = image.snapshot_is_signed(snapshot);
            write_json(&mut json, snapshot, signed).map_err(|e| output_error(&e))?;
        }
        return out.finish();
    }
    let rows = table.present().map(|snapshot| {
        let signed = image.snapshot_is_signed(snapshot);
        [
            snapshot.number.to_string(),
            LocalTime::from_unix(snapshot.seconds).date_time(),
            format_size(snapshot.size),
            format_size(snapshot.added),
            format!(
                "{}{}{}{}{}",
                snapshot.name,
                if snapshot.archived { " (archived)" } else { "" },
                if snapshot.pinned { " (pinned)" } else { "" },
                if signed { " (signed)" } else { "" },
                if snapshot.end.is_none() {
                    " (gone)"
                } else {
                    ""
                }
            ),
        ]
    });
    let head = ["number", "time", "size", "added", "name"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
    for [number, time, size, added, name] in &rows {
        let (a, b, c, d) = (widths[0], widths[1], widths[2], widths[3]);
        out.line(&format!(
            "{number:>a$}  {time:b$}  {size:>c$}  {added:>d$}  {name}"
        ))?;
    }
    out.finish()
}

fn write_json(
    json: &mut JsonWriter<&mut Output>,
    snapshot: &Snapshot,
    signed: bool,
) -> std::io::Result<()> {
    json.begin_object()?;
    json.number_at("number", snapshot.number.0)?;
    json.string_at("name", &snapshot.name)?;
    json.number_at("time", snapshot.seconds)?;
    json.number_at("nanoseconds", snapshot.nanoseconds)?;
    json.number_at("size", snapshot.size)?;
    json.number_at("added", snapshot.added)?;
    json.number_at("inodes", snapshot.inodes)?;
    json.key("image_size")?;
    match snapshot.end {
        Some(end) => json.number(end)?,
        None => json.null()?,
    }
    json.key("directory")?;
    match snapshot.directory() {
        Some(directory) => json.string(&directory)?,
        None => json.null()?,
    }
    json.key("parent")?;
    match snapshot.parent {
        Some(parent) => json.number(parent.0)?,
        None => json.null()?,
    }
    json.boolean_at("pinned", snapshot.pinned)?;
    json.boolean_at("signed", signed)?;
    json.end_object()?;
    json.finish()
}

fn diff(
    args: &Args,
    choices: [&SnapshotChoice; 2],
    input: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<()> {
    let table = table(&open(args, None, input, workers)?)?;
    let [old, new] = choices.map(|choice| find(choice, &table, input, args.image_offset));
    let (old, new) = (old?, new?);
    // Others are named by the caller.
    let by_time = |(choice, found): (&SnapshotChoice, &Snapshot)| {
        choice.text != found.name && choice.text.parse() != Ok(found.number.0)
    };
    if !args.quiet && choices.into_iter().zip([old, new]).any(by_time) {
        let named = [old, new].map(|one| {
            let time = LocalTime::from_unix(one.seconds).date_time();
            format!("{} '{}' of {time}", one.number, one.name)
        });
        logger.info(format_args!("from snapshot {} to {}", named[0], named[1]));
    }
    let opened = choices.map(|choice| open(args, Some(choice), input, workers));
    let [old, new] = opened;
    let (old, new) = (old?, new?);
    let mut out = Output::new();
    let mut stopped = Ok(());
    let found = &mut |change: Change| {
        let written = match args.json {
            true => change_json(&change, &mut out).map_err(|e| output_error(&e)),
            false => out.line(&format!("{} {}", letter(change.kind), shown(&change.path))),
        };
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                stopped = Err(error);
                ControlFlow::Break(())
            }
        }
    };
    redwarfs_append::diff(&old, &new, true, found).map_err(|e| {
        ToolError::new("cannot compare the snapshots")
            .path(input)
            .cause(ToolError::from(e))
    })?;
    stopped?;
    out.finish()
}

fn letter(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Added => '+',
        ChangeKind::Removed => '-',
        ChangeKind::Content => 'M',
        ChangeKind::Attributes => 'm',
    }
}

fn change_json(change: &Change, out: &mut Output) -> std::io::Result<()> {
    let mut json = JsonWriter::compact(out);
    json.begin_object()?;
    let kind = match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Content => "content",
        ChangeKind::Attributes => "attributes",
    };
    json.string_at("change", kind)?;
    json.name("path", &change.path)?;
    let kind = match change.file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    };
    json.string_at("type", kind)?;
    json.number_at("old_size", change.old_size)?;
    json.number_at("new_size", change.new_size)?;
    json.end_object()?;
    json.finish()
}

/// The file, for this process alone.
pub(super) fn lock(input: &Path) -> Result<Arc<dyn Medium>> {
    let locked = LockedFile::open(input);
    let locked = locked.map_err(|e| ToolError::new("cannot open").cause(io_cause(&e)))?;
    Ok(Arc::new(locked))
}

/// The snapshot that a user names.
pub(super) fn find<'t>(
    choice: &SnapshotChoice,
    table: &'t SnapshotTable,
    path: &Path,
    offset: ImageOffset,
) -> Result<&'t Snapshot> {
    choice.find(table).map_err(|e| {
        let advice = cut::advice(path, offset);
        ToolError::new("cannot find the snapshot")
            .path(path)
            .cause(ToolError::from(e))
            .hint(advice.unwrap_or_else(|| "--snapshots lists all".to_owned()))
    })
}

/// Warns in a dry run of what would keep the file from being changed: no permission, or somebody who writes to it.
pub(super) fn try_lock(input: &Path, logger: &Logger) {
    if let Err(error) = lock(input) {
        warn_of_failure(&error, logger);
    }
}

fn warn_of_failure(error: &ToolError, logger: &Logger) {
    logger.warn(format_args!("without --dry-run, this would fail: {error}"));
}

fn roll_back(
    args: &Args,
    choice: &SnapshotChoice,
    input: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<()> {
    let image = open(args, None, input, workers)?;
    let table = table(&image)?;
    let found = find(choice, &table, input, args.image_offset)?;
    let later = table.snapshots.iter().filter(|s| s.number > found.number);
    let lost = later.count() as u64;
    let later = counted(lost, "later snapshot", "later snapshots");
    let dry_run = args.snapshots.dry_run;
    let cut = if dry_run {
        try_lock(input, logger);
        RollBack::plan(&image, choice).map(|plan| plan.freed)
    } else {
        redwarfs_append::roll_back(&lock(input)?, args.image_offset, choice)
    };
    let cut = cut.map_err(|e| failed("cannot roll back", input, args.image_offset, e))?;
    let done = json!({
        "dry_run": dry_run,
        "rolled_back": {"number": found.number.0, "name": found.name, "later": lost, "bytes": cut},
    });
    let (name, size) = (&found.name, format_size(cut));
    let text = match dry_run {
        true => format!("would go back to snapshot '{name}', and lose {size} and {later}"),
        false => format!("rolled back to snapshot '{name}': {size} and {later} are gone"),
    };
    say(args, &text, &done)
}

/// Shows warnings and errors.
struct Logged<'a> {
    counters: Counters,
    logger: &'a Logger,
}

impl Progress for Logged<'_> {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn log(&self, level: Level, message: &str) {
        match level {
            Level::Error => self.logger.error(message),
            Level::Warn => self.logger.warn(message),
            _ => {}
        }
    }
}

/// Names the hidden sections of any kept snapshot that a copy does not have, because they describe the bytes of the old
/// file. A copy that is built anew has an index of anchors.
fn warn_of_dropped(image: &Image, plan: &Compaction, anew: bool, logger: &Logger) {
    let is_dropped = |ty: &SectionType| {
        ty.hidden_class() == Some(HiddenClass::Bytes)
            && *ty != SectionType::SNAPSHOTS
            && (*ty != SectionType::MATCH || !anew)
    };
    let newest = &image.container().trailers;
    let name = |ty: SectionType| match newest.iter().any(|section| section.ty == ty) {
        true => ty.to_string(),
        false => format!("{ty} of older snapshots"),
    };
    let names: Vec<String> = plan.trailers().filter(is_dropped).map(name).collect();
    if !names.is_empty() {
        let has = match names.len() {
            1 => "it has",
            _ => "they have",
        };
        logger.warn(format_args!(
            "the copy has no {}: {has} to be made again",
            names.join(", no ")
        ));
    }
}

/// The image may have small blocks on purpose.
fn warn_of_larger_blocks(image: &Image, bits: u32, logger: &Logger) {
    let old = image.metadata().block_size();
    if old > 0 && u64::from(old) < 1 << bits {
        logger.warn(format_args!(
            "the copy gets blocks of {} instead of {}, so that damage in one place affects more files: -S{} keeps the size",
            format_size(1 << bits),
            format_size(old.into()),
            old.ilog2().clamp(10, 30)
        ));
    }
}

fn punch(args: &Args, input: &Path, workers: usize, logger: &Logger) -> Result<()> {
    let image = open(args, None, input, workers)?;
    let what = "cannot give space back";
    let fail = |e| match e {
        Error::Io(e) if e.kind() == std::io::ErrorKind::Unsupported => ToolError::new(what)
            .path(input)
            .cause("the file system has no holes")
            .hint("--compact writes a smaller copy"),
        e => failed(what, input, args.image_offset, e),
    };
    let report = |verb: &str, done: &Punched| {
        let what = match (done.blocks, done.bytes) {
            (0, 1..) => "the metadata".to_owned(),
            (blocks, _) => counted(u64::from(blocks), "block", "blocks"),
        };
        format!(
            "{verb} {} in {what} of {}",
            format_size(done.bytes),
            counted(
                u64::from(done.snapshots),
                "deleted snapshot",
                "deleted snapshots"
            )
        )
    };
    let in_json = |done: &Punched| {
        json!({
            "dry_run": args.snapshots.dry_run,
            "punched": {"snapshots": done.snapshots, "blocks": done.blocks, "bytes": done.bytes},
        })
    };
    if args.snapshots.dry_run {
        redwarfs_append::changeable(&image).map_err(fail)?;
        try_lock(input, logger);
        let plan = redwarfs_append::Punching::of(&image).map_err(fail)?;
        let result = plan.result();
        return say(args, &report("would free", &result), &in_json(&result));
    }
    let mut trailers = image.container().trailers.iter();
    let has_digests = trailers.any(|section| section.ty == SectionType::DIGESTS);
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let done = redwarfs_append::punch(&lock(input)?, args.image_offset, &stop).map_err(fail)?;
    if has_digests && done.blocks > 0 {
        logger.warn(format_args!(
            "{}: its digests and signatures are of the blocks as they were: --add-digests or --sign makes new ones",
            display_path(input)
        ));
    }
    say(args, &report("freed", &done), &in_json(&done))
}

fn compact(
    args: &Args,
    input: &Path,
    output: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<()> {
    let image = open(args, None, input, workers)?;
    let fail = |e| failed("cannot compact", input, args.image_offset, e);
    // The copy would not have the snapshots that a cut table names.
    if let Some(advice) = cut::advice_of(&image, input) {
        return Err(ToolError::new("cannot compact")
            .path(input)
            .cause("something that is not complete follows the image")
            .hint(advice));
    }
    let plan = Compaction::of(&image).map_err(fail)?;
    let own = &args.snapshots;
    let report = |verb: &str, done: &Compacted| {
        let archived = match done.archived {
            0 => String::new(),
            some => format!(", {some} of them archived"),
        };
        let size = match done.old_size.checked_sub(done.new_size) {
            Some(less) => format!("{verb} {} of", format_size(less)),
            // It has other blocks or codecs than before.
            None => {
                let more = format_size(done.new_size - done.old_size);
                format!(
                    "the copy {} {more} larger than",
                    if own.dry_run { "would be" } else { "is" }
                )
            }
        };
        format!(
            "{size} {}: {}{archived}, {} of {} left",
            format_size(done.old_size),
            counted(u64::from(done.snapshots), "snapshot", "snapshots"),
            done.live_blocks,
            counted(u64::from(done.blocks), "block", "blocks")
        )
    };
    let in_json = |done: &Compacted| {
        json!({
            "dry_run": own.dry_run,
            "compacted": {
                "old_size": done.old_size,
                "new_size": done.new_size,
                "snapshots": done.snapshots,
                "archived": done.archived,
                "blocks": done.blocks,
                "live_blocks": done.live_blocks,
            },
        })
    };
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;
    let anew = own.is_anew();
    let mut options = MergeOptions::level(own.repack.unwrap_or(LEVEL));
    options.version_history = false;
    options.metadata.workers = workers;
    match own.block_size_bits {
        Some(bits) => options.metadata.block_size_bits = bits,
        None if anew => warn_of_larger_blocks(&image, options.metadata.block_size_bits, logger),
        None => {}
    }
    let write = |out: &mut dyn std::io::Write| {
        if !anew {
            return plan.write(out, &stop);
        }
        let archiving = match own.archive {
            Some(newest) => Archiving::AllBut(newest),
            None => Archiving::AsBefore,
        };
        let progress = Logged {
            counters: Counters::default(),
            logger,
        };
        plan.rebuild(&options, archiving, out, &progress, &stop)
    };
    let cannot = |e: std::io::Error| cannot_create("cannot write image", output, &e);
    let create = || create_derived(output, Overwrite::No, &[input], logger).map_err(cannot);
    if own.dry_run {
        // Opening a pipe would wait for its reader.
        let is_stream =
            std::fs::metadata(output).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if !is_stream && let Err(error) = create() {
            warn_of_failure(&error, logger);
        }
        let result = match anew {
            // Nobody knows before what it comes to.
            true => write(&mut std::io::sink()).map_err(fail)?,
            false => plan.writable().map(|()| plan.result()).map_err(fail)?,
        };
        return say(args, &report("would free", &result), &in_json(&result));
    }
    let file: AtomicFile = create()?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
    warn_of_dropped(&image, &plan, anew, logger);
    let done = write(&mut out).map_err(fail)?;
    let file = out.into_inner().map_err(|e| cannot(e.into_error()))?;
    file.commit().map_err(cannot)?;
    say(args, &report("freed", &done), &in_json(&done))
}
