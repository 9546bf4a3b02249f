//! `dwarfsck`: verifies an image, and shows its properties and contents.

mod args;
mod checked;
mod checksum;
mod detail;
mod dump;
mod export;
mod frozen;
mod generations;
mod hints;
mod list;
mod message;
mod meter;
mod output;
mod overview;
mod patch;
mod recovery;
mod recovery_report;
mod report;
mod salvage;
mod scrub;
mod signing;
mod snapshot_args;
mod snapshot_changes;
mod snapshots;
mod text;
mod tree;
mod verdict;
mod xattrs;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_format::Error;
use redwarfs_format::section::{locate_image, locate_image_number};
use redwarfs_io::{Overwrite, Source};
use redwarfs_reader::check::{
    CheckOptions, CheckReport, DeclaredImage, Finding, FindingKind, SectionList, VerifyMode,
};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};

use crate::common::cli::parse_into;
use crate::common::env::{self, IoLayer};
use crate::common::error::{EXIT_FAILURE, EXIT_OK, io_cause};
use crate::common::json::JsonWriter;
use crate::common::open::{self, Spelling};
use crate::common::os::is_block_device;
use crate::common::output::{create_derived, need_stdout};
use crate::common::remote;
use crate::common::tool::Tool;
use crate::common::{Logger, Result, ToolError};
use args::Args;
use checked::Checked;
use checksum::Algorithm;
use detail::{Detail, Feature};
use message::message;
use meter::with_meter;
use output::{Failures, Output, shown};

const TOOL: &str = "dwarfsck";

/// Exit code for `--print-header` on an image without a header.
const EXIT_NO_HEADER: u8 = 2;

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    Tool::new(Args::prepared(), include_str!("../../manual/dwarfsck.md"))
        .offering("checksum", Algorithm::names())
        .offering("detail", Detail::names())
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    let args = match parse_into::<Args>(&tool(), &args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(code) => code,
        Err(error) => error.report(TOOL),
    }
}

fn run(args: &Args) -> Result<u8> {
    let logger = args.log.logger();
    let input = check(args)?;
    let to_stdout = args.export_metadata.as_deref() == Some(Path::new("-"));
    if to_stdout
        || args.print_header
        || args.list
        || args.xattrs
        || args.json
        || args.checksum.is_some()
    {
        need_stdout()?;
    }
    let workers = args.num_workers.unwrap_or_else(env::concurrency);
    if needs_file(args)? {
        remote::refuse("cannot do this", input)?;
        // The copy is another file.
        if args.snapshots.compact.is_none() {
            open::refuse_joined("cannot do this", input)?;
        }
    }
    if let Some(task) = recovery::Task::of(args)? {
        return recovery::run(args, task, input, workers, &logger);
    }
    if let Some(state) = &args.scrub {
        return scrub::run(args, state, input, &logger);
    }
    if args.salvage_report {
        return salvage::run(args, input, &logger);
    }
    if let Some(task) = signing::Task::of(args) {
        return signing::run(args, task, input, workers, &logger);
    }
    if let Some(task) = snapshots::Task::of(args)? {
        return snapshots::run(args, &task, input, workers, &logger);
    }
    let options = open_options(args, workers);
    let source = match IoLayer::from_env().open(input) {
        Ok(source) => source,
        Err(e) => return Err(open_error(input, &options, e.into())),
    };
    let image = match Image::from_source(Arc::clone(&source), &options) {
        Ok(image) => image,
        Err(failed) => {
            if !args.print_header && !args.no_check {
                list_damage(args, &source, &failed, workers, &logger)?;
            }
            return Err(open_error(input, &options, failed));
        }
    };
    if args.print_header {
        return print_header(&image, input);
    }

    let showing = !args.list && !args.xattrs && args.checksum.is_none();
    let wants_sections = showing && !args.quiet && args.detail.has(Feature::SectionDetails);
    let mut failures = Failures::new(&logger);
    let mut errors = 0;
    let mut checked = None;
    if !args.no_check || (showing && !args.quiet) {
        let verifying = !args.no_check || wants_sections;
        let mut result = examine(args, input, image.clone(), verifying, workers, &logger)?;
        errors += result.report.findings.len() as u64;
        log_findings(&result, args.verbose, &mut failures, &logger);
        if !args.no_check {
            let is_newest = args.snapshots.snapshot.is_none() && args.image_size.is_none();
            let table = snapshots::check_tables(&image, is_newest, &logger);
            let more = table.and_then(|table| {
                result.snapshots = table.filter(|_| is_newest);
                check_generations(args, &source, &mut result, &options, workers, &logger)
            });
            match more {
                Ok(more) => errors += more,
                Err(e) => failures.add("snapshots cannot be found", None, &e),
            }
        }
        checked = Some(result);
    }

    if let Some(path) = &args.export_metadata {
        export_metadata(&image, input, path, &mut failures, &logger)?;
    }
    let mut out = Output::new();
    let form = args.form();
    if args.xattrs {
        xattrs::dump(&image, &mut failures, &mut out)?;
    } else if args.list {
        list::print(&image, args.verbose, form, &mut failures, &mut out)?;
    } else if let Some(algorithm) = args.checksum {
        errors += checksum::print(&image, algorithm, workers, form, &logger)?;
    } else if let Some(checked) = &checked
        && !to_stdout
        && !args.quiet
    {
        if args.json {
            let mut json = JsonWriter::compact(&mut out);
            let done = report::write(
                checked,
                &args.detail,
                args.verbose,
                &mut failures,
                &mut json,
            );
            failures.absorb("cannot show everything", done)?;
        } else {
            text::print(checked, &args.detail, &mut failures, &mut out)?;
            if let Some(generations) = &checked.generations {
                generations::print(generations, &mut out)?;
            }
            let errors = errors.saturating_add(failures.count());
            out.line(&verdict::line(checked, errors))?;
        }
    }
    out.finish()?;
    if args.is_canonical {
        errors += not_canonical(&image, &mut failures, &logger);
    }
    errors += failures.count();
    Ok(if errors == 0 { EXIT_OK } else { EXIT_FAILURE })
}

/// Names what the original implementation does not know. Returns the number of these things.
fn not_canonical(image: &Image, failures: &mut Failures<'_>, logger: &Logger) -> u64 {
    match xattrs::extensions(image) {
        Ok(names) => {
            for name in &names {
                logger.error(format_args!("the image is not canonical: it has {name}"));
            }
            names.len() as u64
        }
        Err(e) => {
            failures.add("cannot look for extensions", None, &e);
            0
        }
    }
}

/// Whether the task changes the image, or reads it as a file that may be damaged anywhere.
fn needs_file(args: &Args) -> Result<bool> {
    let snapshots = match snapshots::Task::of(args)? {
        None | Some(snapshots::Task::List | snapshots::Task::Diff(..)) => false,
        Some(_) => true,
    };
    let signing = match signing::Task::of(args) {
        None | Some(signing::Task::Verify(_)) => false,
        Some(_) => true,
    };
    Ok(snapshots
        || signing
        || recovery::Task::of(args)?.is_some()
        || args.scrub.is_some()
        || args.salvage_report)
}

/// How the image is opened.
fn open_options(args: &Args, workers: usize) -> OpenOptions {
    let mut open = OpenOptions::default();
    open.offset = args.image_offset;
    open.image_size = args.image_size;
    open.snapshot.clone_from(&args.snapshots.snapshot);
    open.cache.size = args.cache_size;
    open.cache.workers = workers;
    open.cache.affinity = env::affinity("blkcache");
    open
}

/// Checks combinations of options; returns the image.
fn check(args: &Args) -> Result<&PathBuf> {
    let mut inputs = args.input.iter().chain(&args.image);
    let Some(input) = inputs.next() else {
        return Err(ToolError::new("no image given").hint("dwarfsck [-i] IMAGE"));
    };
    if inputs.next().is_some() {
        return Err(ToolError::new(
            "option '--input' cannot be specified more than once",
        ));
    }
    if args.no_check && args.check_integrity {
        return Err(ToolError::new(
            "--no-check and --check-integrity are mutually exclusive",
        ));
    }
    if args.no_check && args.decode {
        return Err(ToolError::new(
            "--no-check and --decode are mutually exclusive",
        ));
    }
    if args.print_header
        && (args.json
            || args.export_metadata.is_some()
            || args.check_integrity
            || args.list
            || args.checksum.is_some())
    {
        return Err(ToolError::new(
            "--print-header is mutually exclusive with --json, --export-metadata, --check-integrity, --list and \
             --checksum",
        ));
    }
    if args.null && !args.list && args.checksum.is_none() {
        return Err(ToolError::new("--null needs --list or --checksum"));
    }
    if args.null && args.json {
        return Err(ToolError::new("--null and --json are mutually exclusive"));
    }
    if args.list && args.checksum.is_some() {
        return Err(ToolError::new(
            "--list and --checksum are mutually exclusive",
        ));
    }
    if args.export_metadata.as_deref() == Some(Path::new("-"))
        && (args.json || args.list || args.checksum.is_some())
    {
        return Err(ToolError::new(
            "--export-metadata=- is mutually exclusive with --json, --list and --checksum",
        ));
    }
    Ok(input)
}

/// The error for an image that cannot be opened, with advice.
fn open_error(input: &Path, options: &OpenOptions, failed: Error) -> ToolError {
    let spelling = Spelling {
        auto: "--image-offset=auto",
        size: Some("--image-size=BYTES"),
    };
    open::open_error(input, options, failed, spelling)
}

/// Looks at everything; `verifying` is false if only sizes and places are wanted.
fn examine(
    args: &Args,
    input: &Path,
    image: Image,
    verifying: bool,
    workers: usize,
    logger: &Logger,
) -> Result<Checked> {
    let failed = |e: Error| {
        ToolError::new("cannot check image")
            .path(input)
            .cause(ToolError::from(e))
    };
    let source = Arc::clone(image.source());
    let list = image.list_sections().map_err(failed)?;
    let options = check_options(args, workers);
    let report = if !args.no_check {
        // Later ones may follow it.
        let older = args.snapshots.snapshot.is_some();
        let declared = DeclaredImage {
            offset: args.image_offset,
            size: args
                .image_size
                .or_else(|| older.then_some(image.container().size)),
            device: is_device(input),
        };
        with_meter(args, list, logger, |list, done| {
            image.check(list, declared, &options, done)
        })
        .map_err(failed)?
    } else {
        let mut report = if verifying {
            with_meter(args, list, logger, |list, done| {
                list.check(source.as_ref(), &options, done)
            })
        } else {
            CheckReport::from(list)
        };
        // They are looked at, not judged.
        report.findings.clear();
        report.block_sizes = image.block_sizes(&report.list);
        report
    };
    Ok(Checked {
        source,
        image: Some(image),
        report,
        generations: None,
        snapshots: None,
        verified: verifying && !args.no_check,
    })
}

fn is_device(input: &Path) -> bool {
    std::fs::metadata(input).is_ok_and(|found| is_block_device(&found))
}

fn check_options(args: &Args, workers: usize) -> CheckOptions {
    let mut check = CheckOptions::default();
    check.mode = match args.check_integrity {
        true => VerifyMode::Integrity,
        false => VerifyMode::Fast,
    };
    check.threads = workers;
    check.affinity = env::affinity("fscheck");
    check.decode = args.decode;
    check.memory = args.cache_size;
    check
}

/// Says which sections of an image are damaged that cannot be opened.
fn list_damage(
    args: &Args,
    source: &Arc<dyn Source>,
    failed: &Error,
    workers: usize,
    logger: &Logger,
) -> Result<()> {
    let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
    let Ok(size) = source.len() else {
        return Ok(());
    };
    let offset = match args.image_offset {
        ImageOffset::Auto => locate_image(size, &read).unwrap_or(0),
        ImageOffset::Nth(number) => {
            match locate_image_number(number, size, &read, &|at| source.next_data(at)) {
                Ok(offset) => offset,
                Err(_) => return Ok(()),
            }
        }
        ImageOffset::At(offset) => offset,
    };
    let Ok(list) = SectionList::read(source.as_ref(), offset, args.image_size) else {
        return Ok(());
    };
    let options = check_options(args, workers);
    let mut report = with_meter(args, list, logger, |list, done| {
        list.check(source.as_ref(), &options, done)
    });
    // The last line has this already. Where no image was found, that line is about the start of the
    // file.
    let at_start = match (failed, args.image_offset) {
        (Error::NotAnImage(_), ImageOffset::Auto) => {
            let mut options = open_options(args, 1);
            options.offset = ImageOffset::At(0);
            Image::from_source(Arc::clone(source), &options).err()
        }
        _ => None,
    };
    let fatal = match at_start.as_ref().unwrap_or(failed) {
        Error::Corrupt { at, .. } => at.section,
        _ => None,
    };
    for finding in &report.findings {
        if fatal.is_none() || finding.section.map(|place| place.position) != fatal {
            logger.error(message(finding));
        }
    }
    report.findings.push(Finding::new(
        FindingKind::Open,
        format!("cannot open the image: {}", output::error_text(failed)),
    ));
    let mut checked = Checked {
        source: Arc::clone(source),
        image: None,
        report,
        generations: None,
        snapshots: None,
        verified: true,
    };
    let options = open_options(args, workers);
    if let Err(e) = check_generations(args, source, &mut checked, &options, workers, logger) {
        let what = output::error_text(&e);
        logger.error(format_args!("snapshots cannot be found: {what}"));
    }
    if args.quiet || args.list || args.checksum.is_some() {
        return Ok(());
    }
    let mut failures = Failures::new(logger);
    let mut out = Output::new();
    if args.json {
        let mut json = JsonWriter::compact(&mut out);
        let done = report::write(&checked, &args.detail, false, &mut failures, &mut json);
        failures.absorb("cannot show everything", done)?;
    } else if args.detail.has(Feature::SectionDetails) {
        text::print(&checked, &args.detail, &mut failures, &mut out)?;
    }
    if let Some(generations) = &checked.generations
        && !args.json
    {
        generations::print(generations, &mut out)?;
        let errors = checked.report.findings.len() + generations.findings.len();
        out.line(&verdict::line(&checked, errors as u64))?;
    }
    out.finish()
}

/// If asked for, checks all generations after the newest one, and returns the number of errors that it has not.
fn check_generations(
    args: &Args,
    source: &Arc<dyn Source>,
    checked: &mut Checked,
    open: &OpenOptions,
    workers: usize,
    logger: &Logger,
) -> redwarfs_format::Result<u64> {
    if !args.snapshots.all_generations {
        return Ok(0);
    }
    let options = check_options(args, workers);
    let report = generations::check(args, source, open, &checked.report, &options, logger)?;
    generations::log(&report, logger);
    let errors = report.findings.len() as u64;
    checked.generations = Some(report);
    Ok(errors)
}

fn log_findings(checked: &Checked, verbose: bool, failures: &mut Failures<'_>, logger: &Logger) {
    for finding in &checked.report.findings {
        match &finding.affected {
            Some(affected) if !verbose => logger.error(format_args!(
                "{}: {}",
                message(finding),
                message::affected(affected)
            )),
            _ => logger.error(message(finding)),
        }
    }
    let (Some(files), Some(image)) = (&checked.report.affected, &checked.image) else {
        return;
    };
    if !verbose {
        return;
    }
    let listed = files.for_each(image, &mut |path, blocks| {
        let numbers: Vec<String> = blocks.iter().map(ToString::to_string).collect();
        let word = if numbers.len() == 1 {
            "block"
        } else {
            "blocks"
        };
        logger.error(format_args!(
            "affected file: {} ({word} {})",
            shown(path),
            numbers.join(", ")
        ));
        Ok(())
    });
    if let Err(e) = listed {
        failures.add("cannot list the affected files", None, &e);
    }
}

fn print_header(image: &Image, input: &PathBuf) -> Result<u8> {
    if image.header_len() == 0 {
        return Err(ToolError::new("filesystem does not contain a header")
            .path(input)
            .code(EXIT_NO_HEADER));
    }
    let mut out = io::stdout().lock();
    match image.copy_header(&mut out).map(|_| out.flush()) {
        Ok(Ok(())) => Ok(EXIT_OK),
        Ok(Err(e)) | Err(Error::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe => {
            Err(ToolError::silent(EXIT_FAILURE))
        }
        Ok(Err(e)) => Err(ToolError::new("cannot write to standard output").io(&e)),
        Err(e) => Err(ToolError::new("cannot copy the header")
            .path(input)
            .cause(ToolError::from(e))),
    }
}

/// Writes the metadata to standard output or a file, which appears only when it is complete.
fn export_metadata(
    image: &Image,
    input: &Path,
    path: &Path,
    failures: &mut Failures<'_>,
    logger: &Logger,
) -> Result<()> {
    let view = image.metadata();
    if path == Path::new("-") {
        let mut out = Output::new();
        let mut json = JsonWriter::pretty(&mut out);
        let done = export::metadata(view, export::Style::Full, &mut json)
            .and_then(|()| Ok(json.finish()?));
        failures.absorb("cannot export the metadata", done)?;
        return out.finish();
    }
    // The errors of the file name it already, and then begin with a capital.
    let named = |e: &io::Error| {
        let text = io_cause(e);
        let prefix = format!("{}: ", crate::common::error::display_path(path));
        let Some(cause) = text.strip_prefix(&prefix) else {
            return text;
        };
        let mut chars = cause.chars();
        let first = chars.next().map(char::to_lowercase);
        first.into_iter().flatten().chain(chars).collect()
    };
    let file = create_derived(path, Overwrite::Yes, &[input], logger).map_err(|e| {
        ToolError::new("failed to open metadata output file")
            .path(path)
            .cause(named(&e))
    })?;
    let write_error = |e: &io::Error| {
        ToolError::new("cannot write metadata output file")
            .path(path)
            .cause(named(e))
    };
    let mut json = JsonWriter::pretty(BufWriter::new(file));
    let done =
        export::metadata(view, export::Style::Full, &mut json).and_then(|()| Ok(json.finish()?));
    match done {
        Ok(()) => {}
        Err(Error::Io(e)) => return Err(write_error(&e)),
        Err(e) => {
            failures.add("cannot export the metadata", None, &e);
            return Ok(());
        }
    }
    json.into_inner()
        .into_inner()
        .map_err(|e| write_error(e.error()))?
        .commit()
        .map_err(|e| write_error(&e))
}
