//! Recovery data: `--add-recovery`, `--check-recovery`, `--repair` and `--remove-recovery`.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::section::SectionType;
use redwarfs_io::{FileSource, LockedFile, Medium, Source};
use redwarfs_reader::Image;
use redwarfs_reader::check::{CheckOptions, DeclaredImage, Finding, FindingKind, VerifyMode};
use redwarfs_recovery::{Added, Damage, Error, Geometry, Protection, Repaired};
use serde_json::{Value, json};

use super::args::Args;
use super::meter::with_bytes;
use super::output::Output;
use super::{check_options, open_error, open_options};
use crate::common::error::{EXIT_FAILURE, EXIT_OK, display_path, io_cause};
use crate::common::number::{counted, format_size};
use crate::common::os::{is_executable, stop_flag};
use crate::common::output::{commit, create_medium};
use crate::common::program::signature;
use crate::common::protect::{Precheck, Protected};
use crate::common::recovery::{Access, Amount, Found, failure, find, open, say_zeros, sidecar_of};
use crate::common::{Logger, Result, ToolError};

const NOT_ADDED: &str = "cannot add recovery data";
const NO_CHECK: &str = "--no-check takes the image as it is";

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task<'a> {
    /// Protect the image.
    Add(Amount),
    Check,
    /// In place, or to a copy.
    Repair(Option<&'a Path>),
    /// Write a patch.
    Patch(&'a Path),
    /// Apply one.
    Apply(&'a Path),
    Remove,
}

impl<'a> Task<'a> {
    /// The task of a command line, which must not have two.
    pub(super) fn of(args: &'a Args) -> Result<Option<Self>> {
        let repair = args
            .repair
            .as_ref()
            .map(|file| Self::Repair(file.as_deref()));
        let tasks = [
            args.add_recovery.map(Self::Add),
            args.check_recovery.then_some(Self::Check),
            repair,
            args.repair_patch.as_deref().map(Self::Patch),
            args.apply_patch.as_deref().map(Self::Apply),
            args.remove_recovery.then_some(Self::Remove),
        ];
        let mut tasks = tasks.into_iter().flatten();
        let task = tasks.next();
        let others = args.list
            || args.print_header
            || args.checksum.is_some()
            || args.export_metadata.is_some()
            || super::signing::Task::of(args).is_some();
        if task.is_some() && (others || tasks.next().is_some()) {
            return Err(ToolError::new(
                "--add-recovery, --check-recovery, --repair, --repair-patch, --apply-patch, --remove-recovery, --list, \
                 --print-header, --checksum and --export-metadata are mutually exclusive",
            ));
        }
        if args.sidecar.is_some() && !args.salvage_report {
            match task {
                Some(Self::Remove) => {
                    return Err(
                        ToolError::new("--sidecar does not go with --remove-recovery")
                            .hint("just delete the file"),
                    );
                }
                Some(Self::Apply(_)) => {
                    return Err(ToolError::new("--sidecar does not go with --apply-patch")
                        .hint("a patch has all that it needs"));
                }
                None => {
                    return Err(ToolError::new(
                        "--sidecar needs --add-recovery, --check-recovery, --repair or --salvage-report",
                    ));
                }
                Some(_) => {}
            }
        }
        if task.is_some() && args.snapshots.snapshot.is_some() {
            return Err(ToolError::new("--snapshot does not go with recovery data")
                .hint("it is for the whole file"));
        }
        if task.is_some() && args.image_size.is_some() {
            return Err(
                ToolError::new("--image-size does not go with recovery data")
                    .hint("it has to be the last thing in the file"),
            );
        }
        Ok(task)
    }
}

pub(super) fn run(
    args: &Args,
    task: Task<'_>,
    input: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<u8> {
    let stop = stop_flag().map_err(|e| ToolError::new("cannot handle signals").io(&e))?;
    match task {
        Task::Add(amount) => add(args, input, amount, workers, logger, &stop),
        Task::Check => check(args, input, logger, &stop),
        Task::Repair(None) => repair(args, input, logger, &stop),
        Task::Repair(Some(copy)) => repair_copy(args, input, copy, logger, &stop),
        Task::Patch(patch) => super::patch::write(args, input, patch, logger, &stop),
        Task::Apply(patch) => super::patch::apply(args, input, patch, logger, &stop),
        Task::Remove => remove(args, input, logger),
    }
}

pub(super) fn lock(input: &Path) -> Result<LockedFile> {
    LockedFile::open(input).map_err(|e| not_opened(&e))
}

fn not_opened(error: &io::Error) -> ToolError {
    ToolError::new("cannot open").cause(io_cause(error))
}

/// Opens a file for a repair where it is. If it cannot be written, a copy can.
fn lock_to_repair(input: &Path) -> Result<LockedFile> {
    use io::ErrorKind::{ExecutableFileBusy, PermissionDenied, ReadOnlyFilesystem};
    LockedFile::open(input).map_err(|e| match e.kind() {
        ExecutableFileBusy | PermissionDenied | ReadOnlyFilesystem => {
            not_opened(&e).hint("--repair=FILE writes a repaired copy")
        }
        _ => not_opened(&e),
    })
}

/// Where the image is in the file.
pub(super) fn image_offset(args: &Args, input: &Path) -> Result<(Image, u64)> {
    let options = open_options(args, 1);
    let source: Arc<dyn Source> = match FileSource::open(input) {
        Ok(source) => Arc::new(source),
        Err(e) => return Err(open_error(input, &options, e.into())),
    };
    let image = Image::from_source(source, &options).map_err(|e| open_error(input, &options, e))?;
    let offset = image.container().offset;
    Ok((image, offset))
}

fn add(
    args: &Args,
    input: &Path,
    amount: Amount,
    workers: usize,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<u8> {
    let (image, offset) = image_offset(args, input)?;
    if !args.no_check {
        let (advice, options) = (NO_CHECK, fast_check(args, workers));
        let check = Precheck::of(&image, input, options, Protected::Compare, advice, stop)?;
        let total = check.bytes();
        let work = |done: &(dyn Fn(u64) + Sync)| check.check(done, stop);
        let (checked, took) = with_bytes(args, "checking", total, logger, work);
        logger.verbose(format_args!("checked {took}"));
        checked?;
    }
    drop(image);
    let protection = amount.protection(workers);
    let (added, place) = match &args.sidecar {
        None => {
            let file = lock(input)?;
            warn_of_signature(&file, offset, input, logger);
            let total = file.len().unwrap_or(0);
            let (added, took) = with_bytes(args, "protecting", total, logger, |done| {
                redwarfs_recovery::add(file, offset, &protection, done, stop)
            });
            logger.verbose(format_args!("made parity of {took}"));
            let added = added.map_err(|e| failure(NOT_ADDED, input, &e))?;
            (added, String::new())
        }
        Some(sidecar) => {
            let sidecar = sidecar.clone().unwrap_or_else(|| sidecar_of(input));
            let added = add_beside(args, input, offset, &protection, &sidecar, logger, stop)?;
            (added, format!(" in {}", display_path(&sidecar)))
        }
    };
    let mut text = format!(
        "added:    {} of recovery data{place}, {}",
        format_size(added.bytes),
        described(&added.geometry)
    );
    if added.left_out > 0 {
        let bytes = counted(added.left_out, "byte", "bytes");
        text += &format!("\nleft out: {bytes} of sections for update information and signature");
    }
    let of = &added.geometry;
    let json = json!({"added": {
        "bytes": added.bytes,
        "length": of.length(),
        "shard_size": of.shard_size(),
        "groups": of.groups(),
        "data_shards": of.data_shards(),
        "parity_shards": of.parity_shards(),
        "left_out": added.left_out,
    }});
    say(args, &text, &json)?;
    Ok(EXIT_OK)
}

/// Writes recovery data to a file of its own.
fn add_beside(
    args: &Args,
    input: &Path,
    offset: u64,
    protection: &Protection,
    sidecar: &Path,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<Added> {
    let source = open(input, NOT_ADDED)?;
    let (out, file) = create_medium(sidecar, input, NOT_ADDED, logger)?;
    let total = source.len().unwrap_or(0);
    let (added, took) = with_bytes(args, "protecting", total, logger, |done| {
        redwarfs_recovery::add_sidecar(&source, offset, protection, &file, done, stop)
    });
    logger.verbose(format_args!("made parity of {took}"));
    let added = added.map_err(|e| failure(NOT_ADDED, input, &e))?;
    drop(file);
    commit(out, NOT_ADDED)?;
    Ok(added)
}

/// A signature in the program in front covers the whole file.
fn warn_of_signature(file: &LockedFile, offset: u64, input: &Path, logger: &Logger) {
    let read = |at: u64, out: &mut [u8]| file.read_exact_at(at, out);
    if !signature(&read, offset).is_empty() {
        logger.warn(format_args!(
            "{}: the signature in it covers the file as it was: sign it again",
            display_path(input)
        ));
    }
}

/// Warns that the recovery data of an image does not protect `what` was added behind it.
pub(super) fn warn_if_open(image: &Image, what: &str, input: &Path, logger: &Logger) {
    let mut trailers = image.container().trailers.iter();
    if trailers.any(|section| section.ty == SectionType::RECOVERY) {
        logger.warn(format_args!(
            "{}: its recovery data does not protect {what}: --add-recovery=PERCENT adds more",
            display_path(input)
        ));
    }
}

/// A check of the fast checksums.
fn fast_check(args: &Args, workers: usize) -> CheckOptions {
    let mut options = check_options(args, workers);
    options.mode = VerifyMode::Fast;
    options
}

/// A signature of a damaged snapshot would be one of the damage.
pub(super) fn refuse_damage(
    args: &Args,
    input: &Path,
    image: &Image,
    workers: usize,
    logger: &Logger,
) -> Result<()> {
    let failed = |e| ToolError::new("cannot check").path(input).cause(e);
    let list = image.list_sections().map_err(failed)?;
    let options = fast_check(args, workers);
    let total = list.payload_bytes();
    let (report, _) = with_bytes(args, "checking", total, logger, |done| {
        image.check(list, DeclaredImage::default(), &options, done)
    });
    let report = report.map_err(failed)?;
    // The rest of an append that was not finished is cut off.
    let unused = image.container().unused_tail > 0;
    let is_rest = |finding: &&Finding| unused && finding.kind == FindingKind::Trailing;
    match report.findings.iter().find(|finding| !is_rest(finding)) {
        None => Ok(()),
        Some(first) => Err(ToolError::new("is damaged, and was left as it is")
            .path(input)
            .cause(first)
            .hint(NO_CHECK)),
    }
}

fn check(args: &Args, input: &Path, logger: &Logger, stop: &AtomicBool) -> Result<u8> {
    let what = "cannot check with recovery data";
    let file = open(input, what)?;
    let (found, damage) = examine(args, &file, Access::Read, what, input, logger, stop)?;
    let open = open_ranges(&found, &file, what, input)?;
    super::recovery_report::print(args, &found, &damage, &open)?;
    Ok(match damage.is_none() && open.is_empty() {
        true => EXIT_OK,
        false => EXIT_FAILURE,
    })
}

pub(super) fn examine(
    args: &Args,
    file: &dyn Source,
    access: Access,
    what: &str,
    input: &Path,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<(Found, Damage)> {
    let found = find(file, input, &args.sidecar, access, stop).map_err(|e| e.failure(what))?;
    let (damage, took) = with_bytes(args, "comparing", found.data.bytes(), logger, |done| {
        found.data.check(file, done, stop)
    });
    logger.verbose(format_args!("compared {took}"));
    Ok((found, damage.map_err(|e| failure(what, input, &e))?))
}

fn repair(args: &Args, input: &Path, logger: &Logger, stop: &AtomicBool) -> Result<u8> {
    let what = "cannot repair";
    let file = lock_to_repair(input)?;
    let (found, damage) = examine(args, &file, Access::Write, what, input, logger, stop)?;
    let open = open_ranges(&found, &file, what, input)?;
    if damage.is_none() {
        let json = json!({"repaired": in_json(Repaired::default(), &open)});
        say(
            args,
            &format!("repaired: nothing, {}", intact(&open, &found)),
            &json,
        )?;
        return Ok(say_open(&open, &found, logger));
    }
    let done = mend(&found, &file, &damage, input, stop, logger)?;
    let json = json!({"repaired": in_json(done, &open)});
    let text = format!("repaired: {}{}", written(done), restored(&open, &found));
    say(args, &text, &json)?;
    Ok(say_open(&open, &found, logger))
}

/// Ranges of a file, relative to the image, that nothing protects.
pub(super) fn open_ranges(
    found: &Found,
    file: &dyn Source,
    what: &str,
    input: &Path,
) -> Result<Vec<(i64, u64)>> {
    let open = found.data.unprotected(file);
    open.map_err(|e| failure(what, input, &e))
}

/// What is so if no damage was found.
pub(super) fn intact(open: &[(i64, u64)], found: &Found) -> String {
    match open.is_empty() {
        true => format!("the file is intact{}", found.but_for()),
        false => "what is protected is intact".to_owned(),
    }
}

/// What a repair came to, if the file has parts that it does not compare.
fn restored(open: &[(i64, u64)], found: &Found) -> String {
    match (found.but_for(), open.is_empty()) {
        (but_for, true) if !but_for.is_empty() => format!("; the file is as it was{but_for}"),
        _ => String::new(),
    }
}

/// Names what nothing protects, and so may be damaged. Returns the exit code, which is that of a check.
pub(super) fn say_open(open: &[(i64, u64)], found: &Found, logger: &Logger) -> u8 {
    for (start, length) in open {
        logger.warn(format_args!(
            "{} {} have no recovery data, and may be damaged",
            counted(*length, "byte", "bytes"),
            found.place(*start)
        ));
    }
    match open.is_empty() {
        true => EXIT_OK,
        false => EXIT_FAILURE,
    }
}

fn mend(
    found: &Found,
    file: &dyn Medium,
    damage: &Damage,
    input: &Path,
    stop: &AtomicBool,
    logger: &Logger,
) -> Result<Repaired> {
    let done = found.data.repair(file, damage, stop);
    let done = done.map_err(|error| {
        log_lost(damage, found, logger);
        failure("cannot repair", input, &error)
    })?;
    if let Some(sidecar) = found.sidecar.as_ref().filter(|_| done.left > 0) {
        logger.warn(format_args!(
            "{}: {} of it stay damaged: --add-recovery --sidecar makes a new one",
            display_path(sidecar),
            counted(done.left, "part", "parts")
        ));
    }
    Ok(done)
}

/// Names what cannot be repaired.
pub(super) fn log_lost(damage: &Damage, found: &Found, logger: &Logger) {
    for (start, length) in damage.lost_ranges() {
        logger.error(format_args!(
            "lost: {} {}",
            counted(length, "byte", "bytes"),
            found.place(start)
        ));
    }
}

fn repair_copy(
    args: &Args,
    input: &Path,
    copy: &Path,
    logger: &Logger,
    stop: &AtomicBool,
) -> Result<u8> {
    let what = "cannot repair";
    let io = |path: &Path, e: &std::io::Error| ToolError::new(what).path(path).io(e);
    let source = open(input, what)?;
    let found = find(&source, input, &args.sidecar, Access::Read, stop);
    let found = found.map_err(|e| e.failure(what))?;
    let (out, file) = create_medium(copy, input, what, logger)?;
    let total = source.len().unwrap_or(0);
    let (copied, took) = with_bytes(args, "copying", total, logger, |done| {
        found.data.copy(&source, &file, done, stop)
    });
    logger.verbose(format_args!("copied {took}"));
    let copied = copied.map_err(|e| match e {
        Error::Io(e) => io(copy, &e),
        other => failure(what, input, &other),
    })?;
    let (found, damage) = examine(args, &file, Access::Read, what, input, logger, stop)?;
    let open = open_ranges(&found, &file, what, input)?;
    let done = match damage.is_none() {
        true => Repaired::default(),
        false => mend(&found, &file, &damage, input, stop, logger)?,
    };
    let zeros = copied.zeros(&found.data, &file);
    let zeros = zeros.map_err(|e| failure(what, copy, &e))?;
    drop(file);
    if std::fs::metadata(input).is_ok_and(|found| is_executable(&found)) {
        out.allow_execution().map_err(|e| io(copy, &e))?;
    }
    commit(out, what)?;
    let mut json = in_json(done, &open);
    json["copy"] = copy.to_string_lossy().into();
    json["zeros"] = ranges(&zeros);
    say(
        args,
        &format!(
            "repaired: {}, in {}{}",
            written(done),
            copy.display(),
            restored(&open, &found)
        ),
        &json!({ "repaired": json }),
    )?;
    say_zeros(&found, &zeros, copy, logger);
    Ok(match (say_open(&open, &found, logger), zeros.is_empty()) {
        (code, true) => code,
        (_, false) => EXIT_FAILURE,
    })
}

fn remove(args: &Args, input: &Path, logger: &Logger) -> Result<u8> {
    let (_, offset) = image_offset(args, input)?;
    let file = lock(input)?;
    warn_of_signature(&file, offset, input, logger);
    let bytes = redwarfs_recovery::remove(&file, offset)
        .map_err(|e| failure("cannot remove recovery data", input, &e))?;
    say(
        args,
        &format!("removed:  {} of recovery data", format_size(bytes)),
        &json!({"removed": {"bytes": bytes}}),
    )?;
    Ok(EXIT_OK)
}

/// Prints what was done, as a text or as a line of JSON.
pub(super) fn say(args: &Args, text: &str, json: &Value) -> Result<()> {
    let mut out = Output::new();
    match (args.json, args.quiet) {
        (true, _) => out.line(&json.to_string())?,
        (false, true) => return Ok(()),
        (false, false) => out.line(text)?,
    }
    out.finish()
}

/// Ranges that are relative to the image.
fn ranges(ranges: &[(i64, u64)]) -> Value {
    let ranges = ranges.iter();
    ranges
        .map(|(start, length)| json!({"offset": start, "bytes": length}))
        .collect()
}

/// What a repair has written, and the ranges that nothing protects.
pub(super) fn in_json(repaired: Repaired, open: &[(i64, u64)]) -> Value {
    json!({
        "data_shards": repaired.data,
        "parity_shards": repaired.parity,
        "pages": repaired.pages,
        "left": repaired.left,
        "open": ranges(open),
    })
}

/// Groups, shards, and the largest damage in one piece that can be repaired.
pub(super) fn described(geometry: &Geometry) -> String {
    let group = redwarfs_recovery::ShardGroup(0);
    let burst = geometry
        .parity_shards()
        .saturating_mul(geometry.shard_size() as u64);
    format!(
        "{} of {}+{} shards of {}; it repairs up to {} in one piece",
        counted(u64::from(geometry.groups()), "group", "groups"),
        geometry.data_of(group),
        geometry.parity(),
        format_size(geometry.shard_size() as u64),
        format_size(burst)
    )
}

pub(super) fn written(repaired: Repaired) -> String {
    format!(
        "{} of data and {} of parity, {}",
        counted(repaired.data, "shard", "shards"),
        counted(repaired.parity, "shard", "shards"),
        counted(repaired.pages, "page", "pages")
    )
}
