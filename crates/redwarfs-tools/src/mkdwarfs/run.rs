//! From parsed arguments to an image.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redwarfs_writer::{
    BuildOptions, BuildSummary, Builder, DirectorySource, Error as BuildError, HistoryOptions,
    Order, Progress,
};

use super::args::{Args, ProgressMode};
use super::display::Report;
use super::output::{self, Target, cause_at, interrupted, write_error};
use super::values::{OrderSpec, TimeSpec, source_date_epoch};
use crate::common::console::{locale_is_utf8, stderr_is_fancy};
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, display_path, io_cause};
use crate::common::number::{format_duration, format_ratio, format_size};
use crate::common::{LogLevel, Logger, Result, ToolError, env, signal};

/// What fails when the input is of no use.
const CANNOT_READ: &str = "cannot read input";

/// Builds the image. Returns the exit code.
pub(super) fn run(args: &Args, command_line: &[OsString]) -> Result<u8> {
    let hint = "try 'mkdwarfs --help'";
    if args.input.is_none() && args.input_list.is_none() {
        return Err(ToolError::new("missing option '--input' or '--input-list'").hint(hint));
    }
    let Some(output) = &args.output else {
        return Err(ToolError::new("missing option '--output'").hint(hint));
    };
    let logger = args.log.logger();
    let stop = signal::stop_flag()
        .map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;

    let options = build_options(args, command_line, &logger)?;
    options.check().map_err(|e| build_error(e, args))?;

    // The input is looked at first: a wrong one must not touch the output.
    let root = match &args.input {
        Some(input) => input.clone(),
        None => PathBuf::from("."),
    };
    let root = std::fs::canonicalize(&root).map_err(|e| read_error(&root, &e))?;
    let source = DirectorySource::new(&root).map_err(|e| read_error(&root, &e))?;
    let source = skip_output(source, output);
    let source = match &args.input_list {
        Some(list) => restrict(source, list, &logger)?,
        None => Listed { source, errors: 0 },
    };

    let target = Target::open(output, args.force)?;
    let source = Listed {
        source: target.leave_out(source.source),
        ..source
    };
    let report = Arc::new(Report::new(logger.clone()));
    logger.info(format_args!("scanning \"{}\"", display_path(&root)));
    let mode = progress_mode(args);
    let builder = Builder::new(options);
    let summary = output::produce(target, &report, mode, &stop, |out| {
        let built = builder.build(&source.source, out, &*report, &stop);
        built.map_err(|e| build_error(e, args))
    })?;
    let errors = summary.errors + source.errors;
    conclude(&logger, &report, &summary, errors, mode);
    Ok(if errors > 0 { EXIT_PARTIAL } else { EXIT_OK })
}

fn build_options(args: &Args, command_line: &[OsString], logger: &Logger) -> Result<BuildOptions> {
    let mut o = BuildOptions::level(args.compress_level);
    o.block_size_bits = args.block_size_bits.unwrap_or(o.block_size_bits);
    o.window_bits = args.window_size.unwrap_or(o.window_bits);
    o.window_step = args.window_step.unwrap_or(o.window_step);
    o.lookback = args.max_lookback_blocks;
    for (codec, given) in [
        (&mut o.compression, &args.compression),
        (&mut o.schema_compression, &args.schema_compression),
        (&mut o.metadata_compression, &args.metadata_compression),
        (&mut o.history_compression, &args.history_compression),
    ] {
        if let Some(given) = given {
            *codec = given.clone();
        }
    }
    if let Some(order) = &args.order {
        o.order = match order {
            OrderSpec::None => Order::None,
            OrderSpec::Path => Order::Path,
            OrderSpec::RevPath => Order::RevPath,
            OrderSpec::Similarity => Order::Similarity,
            OrderSpec::Nilsimsa => {
                logger.info("order 'nilsimsa' is not available, using 'similarity'");
                Order::Similarity
            }
            OrderSpec::Explicit(file) => Order::Explicit(explicit_order(file)?),
        };
    }
    o.max_similarity_size = args.max_similarity_size.filter(|&size| size > 0);
    o.file_hash = args.file_hash.0;
    o.workers = args
        .num_workers
        .map_or_else(env::concurrency, |workers| workers as usize);
    if args.num_scanner_workers.is_some() || args.num_segmenter_workers.is_some() {
        logger.verbose("the number of threads is set by --num-workers alone");
    }
    if args.bloom_filter_size.is_some() {
        logger.verbose("--bloom-filter-size does not change the image");
    }
    o.compress_niceness = i32::try_from(args.compress_niceness).unwrap_or(0);
    o.memory_limit = args.memory_limit.0;
    o.machine_memory = env::memory_available();
    o.with_devices = args.with_devices || args.input_list.is_some();
    o.with_specials = args.with_specials || args.input_list.is_some();
    o.remove_empty_dirs = args.remove_empty_dirs;
    o.sparse = !args.no_sparse_files;
    o.hollow = args.hollow;
    if args.hollow {
        logger.warn("creating hollow filesystem, no actual file data will be stored");
    }
    o.keep_all_times = args.keep_all_times;
    o.time_resolution = args.time_resolution;
    o.set_owner = args.set_owner;
    o.set_group = args.set_group;
    let now = now()?;
    o.set_time = args.set_time.map(|time| match time {
        TimeSpec::Now => i64::try_from(now).unwrap_or(i64::MAX),
        TimeSpec::At(seconds) => seconds,
    });
    o.create_timestamp = (!args.no_create_timestamp).then_some(now);
    o.history = (!args.no_history).then(|| HistoryOptions {
        arguments: (!args.no_history_command_line).then(|| {
            command_line
                .iter()
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect()
        }),
        timestamp: (!args.no_history_timestamps).then_some(now),
    });
    o.section_index = !args.no_section_index;
    o.hardlink_table = !args.no_hardlink_table;
    if let Some(path) = &args.header {
        let header = std::fs::read(path)
            .map_err(|e| ToolError::new("cannot open header file").path(path).io(&e))?;
        o.header = Some(header);
    }
    o.packing = args.pack_metadata;
    Ok(o)
}

/// The time that the image carries: `SOURCE_DATE_EPOCH` if set, for reproducible builds.
fn now() -> Result<u64> {
    if let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") {
        return source_date_epoch(&text.to_string_lossy()).map_err(|cause| {
            ToolError::new("invalid SOURCE_DATE_EPOCH")
                .path(Path::new(&text))
                .cause(cause)
        });
    }
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Ok(since.as_secs())
}

fn explicit_order(file: &Path) -> Result<Vec<Vec<u8>>> {
    let text = std::fs::read(file).map_err(|e| {
        ToolError::new("failed to open explicit order file")
            .path(file)
            .io(&e)
    })?;
    let lines = text.split(|&b| b == b'\n').map(|line| {
        let start = line.iter().position(|&b| b != b'/').unwrap_or(line.len());
        line[start..].to_vec()
    });
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

struct Listed {
    source: DirectorySource,
    /// Entries of the list that are not in the image.
    errors: u64,
}

fn restrict(source: DirectorySource, list: &Path, logger: &Logger) -> Result<Listed> {
    let cannot = |e: &io::Error| ToolError::new("cannot read input list").path(list).io(e);
    let reader: Box<dyn Read> = if list == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(list).map_err(|e| cannot(&e))?)
    };
    let mut paths = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(|e| cannot(&e))?;
        if !line.is_empty() {
            paths.push(PathBuf::from(OsString::from_vec(line)));
        }
    }
    let root = display_path(source.path());
    let (source, report) = source
        .with_list(paths)
        .map_err(|e| ToolError::new("invalid path in input list").cause(io_cause(&e)))?;
    for path in &report.duplicates {
        let path = display_path(path);
        logger.info(format_args!(
            "skipping duplicate entry '{path}' in input list"
        ));
    }
    for path in &report.outside {
        let path = display_path(path);
        logger.error(format_args!(
            "ignoring path '{path}' not below input path '{root}'"
        ));
    }
    for (path, cause) in &report.missing {
        logger.error(format_args!(
            "error reading entry: {}: {cause}",
            display_path(path)
        ));
    }
    let errors = report.outside.len() + report.missing.len();
    Ok(Listed {
        source,
        errors: errors as u64,
    })
}

/// Keeps the output file out of its own image, should it be below the input.
fn skip_output(source: DirectorySource, output: &Path) -> DirectorySource {
    let found = if output == Path::new("-") {
        rustix::fs::fstat(io::stdout()).ok().map(|stat| {
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            (
                kind == rustix::fs::FileType::RegularFile,
                stat.st_dev,
                stat.st_ino,
            )
        })
    } else {
        std::fs::metadata(output)
            .ok()
            .map(|stat| (stat.is_file(), stat.dev(), stat.ino()))
    };
    match found {
        Some((true, device, inode)) => source.skip_inode(device, inode),
        _ => source,
    }
}

fn progress_mode(args: &Args) -> ProgressMode {
    let fancy = stderr_is_fancy();
    match args.progress {
        _ if args.no_progress => ProgressMode::None,
        // Redrawing needs a terminal; elsewhere it would only leave escape sequences.
        Some(ProgressMode::Ascii | ProgressMode::Unicode) if !fancy => ProgressMode::Simple,
        Some(mode) => mode,
        None if !fancy => ProgressMode::None,
        None if locale_is_utf8() => ProgressMode::Unicode,
        None => ProgressMode::Ascii,
    }
}

fn read_error(path: &Path, error: &io::Error) -> ToolError {
    ToolError::new(CANNOT_READ)
        .path(path)
        .cause(cause_at(path, error))
}

fn build_error(error: BuildError, args: &Args) -> ToolError {
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    let input = args.input.as_deref().unwrap_or(Path::new("."));
    match error {
        BuildError::InvalidOption(text) => ToolError::new(text),
        BuildError::Source(e) => read_error(input, &e),
        BuildError::Output(e) => write_error(output, &e),
        BuildError::Interrupted => interrupted(),
        other => ToolError::new("cannot build image").cause(other),
    }
}

fn conclude(
    logger: &Logger,
    report: &Report,
    summary: &BuildSummary,
    errors: u64,
    mode: ProgressMode,
) {
    let (original, allocated) = (summary.original_size, summary.allocated_size);
    let compressed = report.counters().compressed_size.load(Ordering::Relaxed);
    let (mut also, mut ratio) = (String::new(), format_ratio(compressed, original));
    if original != allocated {
        also = format!(" ({} allocated)", format_size(allocated));
        ratio = format!("{ratio} / {}", format_ratio(compressed, allocated));
    }
    logger.info(format_args!(
        "compressed {}{also} to {} ({ratio})",
        format_size(original),
        format_size(compressed),
    ));
    let cpu = Duration::from_nanos(summary.compress_cpu_ns);
    logger.info(format_args!(
        "compression CPU time: {}",
        format_duration(cpu)
    ));
    let outcome = match errors {
        0 => "filesystem created without errors".to_owned(),
        1 => "filesystem created with 1 error".to_owned(),
        n => format!("filesystem created with {n} errors"),
    };
    let took = Duration::from_nanos(summary.wall_ns);
    let level = if errors == 0 {
        LogLevel::Info
    } else {
        LogLevel::Error
    };
    logger.timed(level, outcome, took);
    if mode != ProgressMode::None || logger.enabled(LogLevel::Info) {
        logger.console().line(&report.statistics().join("\n"));
    }
}
