//! `dwarfsextract`: unpacks an image to a directory or turns it into an archive.

mod args;
mod destination;
mod listener;
mod patterns;
mod salvage;

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use redwarfs_extractor::{
    ArchiveProcess, ArchiveSpec, ExtractOptions, ExtractSummary, Selection, XattrSelection,
    serve_archive_process,
};
use redwarfs_io::Overwrite;
use redwarfs_reader::OpenOptions;
use redwarfs_reader::perfmon::PerfMonitor;

use crate::common::cache::{CacheChoice, finish_cache};
use crate::common::cli::parse_into;
use crate::common::console::write_stderr;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, EXIT_PARTIAL};
use crate::common::number::{counted, format_duration, format_size};
use crate::common::open::{Spelling, open_image};
use crate::common::os::{own_program, stop_flag};
use crate::common::output::create_output;
use crate::common::progress::{Activity, Display, ProgressMode};
use crate::common::recovery::open_repairing;
use crate::common::remote;
use crate::common::tool::Tool;
use crate::common::verify::log_verified;
use crate::common::{LogLevel, Logger, Result, ToolError, env};
use args::Args;
use destination::{Destination, abort};
use listener::Listener;
pub(crate) use patterns::Patterns;
use salvage::Salvaging;
pub(crate) use salvage::{failed, write_file, write_found};

const TOOL: &str = "dwarfsextract";

/// The only argument of a process that writes an archive for its parent.
const ARCHIVE_PROCESS: &str = "--write-archive-for-parent";

/// Exit code of a run in which a pattern matched nothing.
const EXIT_NO_MATCH: u8 = 3;

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    Tool::new(
        Args::prepared(),
        include_str!("../../manual/dwarfsextract.md"),
    )
    .offering(
        "format",
        std::iter::once("auto").chain(ArchiveSpec::formats().iter().copied()),
    )
    .offering("format-filters", ArchiveSpec::filters().iter().copied())
    .offering("verify", ["checksums", "digests", "signed:"])
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    if args.get(1).is_some_and(|arg| arg == ARCHIVE_PROCESS) {
        let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
        // It fails when the process that waits for it is gone.
        return match serve_archive_process(&mut input, &mut output) {
            Ok(()) => EXIT_OK,
            Err(_) => EXIT_FAILURE,
        };
    }
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
    let Some(input) = args.image() else {
        return Err(ToolError::new("no image given").hint("dwarfsextract IMAGE -o DIR"));
    };
    let patterns = Arc::new(Patterns::new(args.patterns())?);
    if args.stdout.is_some() && !patterns.is_empty() {
        return Err(ToolError::new("--stdout takes one path and no patterns"));
    }
    let destination = Destination::of(args)?;
    if args.stdout_progress && destination.is_stdout() {
        return Err(ToolError::new(
            "cannot use --stdout-progress with --output=-",
        ));
    }
    if args.num_disk_writers > 0 && !matches!(destination, Destination::Directory(_)) {
        logger.info("--num-disk-writers option is only used when extracting to disk");
    }

    let components = args.perfmon.as_ref().map(|c| &c.0[..]).unwrap_or_default();
    let perfmon = PerfMonitor::new(components, args.perfmon_trace.is_some());
    let mut options = OpenOptions::default();
    options.offset = args.image_offset;
    options.snapshot.clone_from(&args.snapshot);

    // The extractor checks what it uses, and the names above all.
    options.check = false;
    options.cache.size = args.cache_size;
    options.cache.workers = args.workers();
    options.perfmon = perfmon.clone();
    options.trust_blocks = args.disable_integrity_check;
    let spelling = Spelling {
        auto: "--image-offset=auto",
        size: None,
    };
    options.verification = args.verify.clone();
    let cache = CacheChoice {
        directory: args.cache_dir.clone(),
        limit: Some(args.cache_limit),
        offline: args.offline,
    };
    options.disk_cache = cache.open(&logger)?;
    let sidecar = args.sidecar.clone().map(Some);
    if sidecar.is_some() && args.salvage.is_none() && args.repair.is_none() {
        return Err(ToolError::new("--sidecar needs --repair or --salvage"));
    }
    if args.salvage.is_some() {
        remote::refuse("cannot salvage", input)?;
    }
    let salvaging = match &args.salvage {
        None => None,
        Some(parts) => {
            let stop = stop_flag().map_err(|e| ToolError::new("cannot handle signals").io(&e))?;
            let salvaging = Salvaging::begin(input, parts, &sidecar, &options, stop, &logger)?;
            if salvaging.found.image().is_none() {
                salvaging.finish(&logger)?;
                return Ok(EXIT_PARTIAL);
            }
            Some(salvaging)
        }
    };
    let salvaged = salvaging
        .as_ref()
        .and_then(|salvaging| salvaging.found.image());
    let image = match salvaged {
        Some(image) => image.clone(),
        None if args.repair.is_some() => open_repairing(input, &options, &sidecar, &logger)?,
        None => open_image(input, &options, spelling)?,
    };
    log_verified(&image, &logger);

    let mut extract = ExtractOptions::default();
    extract.threads = args.workers();
    extract.writers = args.num_disk_writers;
    extract.decoder_cpus = env::affinity("blkcache");
    extract.writer_cpus = env::affinity("arch-reg");
    extract.memory = args.cache_size;
    extract.skip_devices = args.skip_devices;
    extract.skip_specials = args.skip_specials;
    extract.skip_symlinks = args.skip_symlinks;
    extract.skip_hard_links = args.skip_hardlinks;
    extract.continue_on_error = args.continue_on_error || salvaging.is_some();
    extract.file_flags = !args.skip_file_flags;
    if !args.xattrs.is_all() {
        let filter = args.xattrs.clone();
        extract.xattrs = XattrSelection::new(move |name| filter.keeps(name));
    }
    extract.archive_process = own_program().map(|program| ArchiveProcess {
        program,
        name: TOOL.into(),
        arguments: vec![ARCHIVE_PROCESS.into()],
    });
    if !patterns.is_empty() {
        let patterns = Arc::clone(&patterns);
        extract.select = Some(Selection::new(move |path, kind| patterns.want(path, kind)));
    }

    // Where data or the percentage go to the terminal there is no place for more.
    let mode = match args.stdout_progress || (destination.is_stdout() && io::stdout().is_terminal())
    {
        true => ProgressMode::None,
        false => args.progress.mode(),
    };
    let listener = Arc::new(Listener::new(&logger, args.stdout_progress));
    let mut display = Display::start(&listener, logger.console(), mode)
        .map_err(|e| ToolError::new("cannot show progress").io(&e))?;
    let archive = !matches!(destination, Destination::Directory(_));
    if let Some(cpus) = env::affinity("archiver").filter(|_| archive) {
        // Archives are made in this thread. Where the system has none of them, it runs anywhere.
        let _ = cpus.pin_current_thread();
    }
    let result = destination.extract(&image, input, &extract, &*listener, &logger);
    display.finish();
    listener.end(result.is_ok());
    finish_cache(options.disk_cache.as_ref(), &logger);
    report_times(&perfmon, args.perfmon_trace.as_deref(), &logger)?;
    let single = args.stdout.is_some();
    let summary = result.map_err(|e| abort(&e, &extract, single))?;
    // Without a terminal there is silence unless there is something to say.
    let level = match mode {
        ProgressMode::None => LogLevel::Verbose,
        _ => LogLevel::Info,
    };
    let (files, rate) = (counted(summary.files, "file", "files"), listener.rate());
    let took = format_duration(listener.stopwatch().elapsed());
    let bytes = format_size(summary.bytes);
    logger.log(
        level,
        format_args!("extracted {files}, {bytes} in {took}, {rate}"),
    );
    report(&summary, &logger);
    let lost = match salvaging {
        Some(salvaging) => salvaging.finish(&logger)?,
        None => false,
    };
    if matches!(destination, Destination::Directory(_)) {
        logger.verbose(format_args!(
            "decoded {}, at most {} of them in memory at a time",
            counted(summary.blocks, "block", "blocks"),
            format_size(summary.peak_block_bytes)
        ));
    } else {
        let stats = image.cache_stats();
        logger.verbose(format_args!(
            "decoded {} for {}",
            counted(stats.blocks_created, "block", "blocks"),
            counted(stats.requests, "request", "requests")
        ));
    }
    if summary.damaged > 0 {
        logger.error(format_args!(
            "extraction finished with {} error(s)",
            summary.damaged
        ));
        return Ok(EXIT_PARTIAL);
    }
    if lost {
        return Ok(EXIT_PARTIAL);
    }
    if args.strict && summary.unset > 0 {
        logger.error(format_args!(
            "{} could not be set (--strict)",
            counted(summary.unset, "attribute", "attributes")
        ));
        return Ok(EXIT_PARTIAL);
    }
    logger.verbose("extraction finished without errors");
    Ok(if warn_of_unused(&patterns, &logger) {
        EXIT_NO_MATCH
    } else {
        EXIT_OK
    })
}

fn report(summary: &ExtractSummary, logger: &Logger) {
    let ExtractSummary {
        directories,
        files,
        hard_links,
        copies,
        symlinks,
        specials,
        skipped,
        ..
    } = summary;
    logger.verbose(format_args!(
        "extracted {directories} directories, {files} files, {hard_links} hard links, {symlinks} symbolic links, \
         {specials} devices and specials"
    ));
    if *copies > 0 {
        logger.verbose(format_args!(
            "copied {copies} files instead of linking them"
        ));
    }
    if *skipped > 0 {
        logger.verbose(format_args!(
            "skipped {skipped} devices, specials and links"
        ));
    }
}

/// Says which patterns matched nothing; whether there was one.
fn warn_of_unused(patterns: &Patterns, logger: &Logger) -> bool {
    let unused = patterns.unused();
    if unused.len() == patterns.len() && !patterns.is_empty() {
        logger.warn("no matching files found");
    } else {
        for pattern in &unused {
            logger.warn(format_args!("no matching files found for {pattern}"));
        }
    }
    !unused.is_empty()
}

/// Shows the measurements, and writes the trace.
fn report_times(perfmon: &PerfMonitor, trace: Option<&Path>, logger: &Logger) -> Result<()> {
    if let Some(summary) = perfmon.summary()
        && !summary.trim_end().is_empty()
    {
        write_stderr(summary.trim_end());
    }
    let Some(path) = trace else {
        return Ok(());
    };
    let written = create_output(path, Overwrite::Yes, logger).and_then(|file| {
        let mut out = BufWriter::new(file);
        perfmon.write_trace(&mut out)?;
        out.into_inner()
            .map_err(std::io::IntoInnerError::into_error)?
            .commit()
    });
    written.map_err(|e| ToolError::new("cannot write trace").path(path).io(&e))
}
