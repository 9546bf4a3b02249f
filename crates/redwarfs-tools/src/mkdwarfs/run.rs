//! From parsed arguments to an image.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgMatches, Args as _, Command};
use redwarfs_format::hints::{Hints, MAX_HINTS_TEXT};
use redwarfs_io::place::shown_argument;
use redwarfs_writer::{
    BuildOptions, Builder, Category, Counters, Error as BuildError, FileHash, HistoryOptions,
    Progress, ThreadGroup, ThreadStart,
};

use super::append::{self, Continued};
use super::archives::spool;
use super::args::{self, Args};
use super::commit::Changes;
use super::definition::check_build;
use super::difference::Below;
use super::display::Report;
use super::header::{self, Header};
use super::input::{self, Base, read_error};
use super::order::OrderSpec;
use super::output::{self, Target, interrupted, write_error};
use super::rewrite_args::RewriteArgs;
use super::script::{self, Script};
use super::summary::{LeftOut, Summary};
use super::values::{LinkPolicy, TimeSpec, Verification, source_date_epoch};
use super::{checkpoint, chmod, owners};
use crate::common::error::{EXIT_OK, EXIT_PARTIAL, io_cause};
use crate::common::number::{counted, format_size};
use crate::common::os::{stop_flag, umask};
use crate::common::{Logger, Result, ToolError, env};

/// Builds the image. Returns the exit code.
pub(super) fn run(args: &Args, matches: &ArgMatches, command_line: &[OsString]) -> Result<u8> {
    let hint = "try 'mkdwarfs --help'";
    let only = RewriteArgs::augment_args(Command::new(""));
    check_build(args::command(), matches, &only)?;
    if args.input.is_empty() && args.input_list.is_none() && args.append.commit.is_none() {
        return Err(ToolError::new("missing option '--input' or '--input-list'").hint(hint));
    }
    if let Some(mode) = args.debug_filter {
        return input::debug_filter(args, mode, &args.logger());
    }
    if args.output.is_none() && args.append.append.is_none() {
        return Err(ToolError::new("missing option '--output'").hint(hint));
    }
    append::check(args)?;
    let logger = args.logger();
    let stop =
        stop_flag().map_err(|e| ToolError::new("cannot handle signals").cause(io_cause(&e)))?;

    let script = args.script.as_deref();
    let script = script
        .map(|file| Script::load(file, &stop, &logger))
        .transpose()?;
    let mut options = build_options(args, command_line, &logger, script.as_ref())?;
    options.check().map_err(|e| build_error(e, args))?;
    args.streams.warn_without_effect(&logger);

    // The input is looked at first: a wrong one must not touch the output.
    let rules = input::rules(args)?;
    let old = Continued::open(args, epoch()?.unwrap_or_else(now))?;
    let below = Below::open(args)?;
    let changes = Changes::open(args, old.as_ref())?;
    let output = match (&old, &args.output) {
        (Some(old), _) => old.output(),
        (None, output) => output.as_deref().unwrap_or(Path::new("-")),
    };
    let mut base = match &changes {
        Some(changes) => Base::Layered(changes.source()),
        None => Base::open(args, rules, &logger)?.without(output),
    };
    if let Some(old) = &old {
        base = base.without(old.path());
    }
    let runtime = args.header.as_deref().is_some_and(header::is_runtime);
    let front = args.header.as_deref().zip(options.header.as_deref());
    let front = front.map(|(path, bytes)| {
        let front = Header::new(path, bytes);
        front.warn_if_no_program(path, &logger);
        front
    });
    if let Base::Directory(directory) = &base
        && runtime
        && args.pseudo_file.is_empty()
    {
        header::warn_without_program(directory.source.path(), &logger);
    }
    let layer = input::declarations(args)?;
    (options.checkpoint, base) = checkpoint::open(args, base, &logger)?;
    let target = match &old {
        Some(old) => {
            old.refuse_damage(args, &stop)?;
            old.warn_if_open(args, &logger);
            old.target(args, &stop, &logger)?
        }
        None => Target::open(output, args.force, &[], &stop, &logger)?,
    };
    let target = target
        .executable(front.as_ref().is_some_and(|front| front.runs))
        .beside(options.checkpoint.as_ref())
        .protected(args, &stop)?;
    let base = base.map(|source| target.leave_out(source));
    let report = Arc::new(Report::new(logger.clone(), false, args.verbose));
    logger.verbose(format_args!("building from {base}"));
    let mode = args.progress.mode();
    let builder = Builder::new(options);
    let start = match &old {
        Some(old) => old.base().image().container().offset,
        None => builder.options().header.as_ref().map_or(0, Vec::len) as u64,
    };
    let (input, summary, errors) = output::produce(target, start, &report, mode, &stop, |out| {
        let input = base.read(args, &report, &stop)?.layered(args, layer)?;
        let input = input.above(below.as_ref(), builder.options(), &stop)?;
        let built = match &old {
            Some(old) => {
                old.copy(out).map_err(|e| write_error(output, &e))?;
                builder.append(old.base(), &*input.source, out, &*report, &stop)
            }
            None => builder.build(&*input.source, out, &*report, &stop),
        };
        let built = built.map_err(|e| build_error(e, args))?;
        let errors = built.errors + input.finish(&logger);
        if let (Some(changes), Some(old)) = (&changes, &old) {
            changes.seal(old, errors)?;
        }
        Ok((input, built, errors))
    })?;
    if let Some(script) = &script {
        for category in builder.options().categories.keys() {
            if matches!(category, Category::Named(_)) && !script.has_made(*category) {
                logger.warn(format_args!(
                    "the script has put no file into category '{category}'"
                ));
            }
        }
    }
    let mut left_out = left_out(report.counters());
    let ids_change =
        args.set_owner.is_some() || args.set_group.is_some() || args.owner_map.is_some();
    let lists = report.counters().access_lists.load(Ordering::Relaxed);
    if ids_change && lists > 0 {
        logger.warn(format_args!(
            "owners and groups are changed, but not those in the access control lists of {}",
            counted(lists, "entry", "entries")
        ));
    }
    let elsewhere = input.elsewhere(&logger);
    left_out.add(
        elsewhere,
        "mount point of another file system",
        "mount points of other file systems",
        "--one-file-system",
    );
    left_out.add(
        input.excluded(),
        "entry that rules exclude",
        "entries that rules exclude",
        "-F",
    );
    if args.hollow {
        let files = report.counters().files_found.load(Ordering::Relaxed);
        left_out.add(files, "content of a file", "contents of files", "--hollow");
    }
    let last_words = Summary {
        output,
        verb: match &old {
            Some(_) => "appended",
            None => "created",
        },
        snapshot: old.as_ref().map(|old| old.line(summary.image_size)),
        resumed: checkpoint::line(report.counters()),
        image_size: summary.image_size,
        input_size: summary.original_size,
        allocated_size: summary.allocated_size,
        front,
        errors,
        left_out,
        verbose: args.verbose,
    };
    last_words.show(&report, mode);
    if let Some(checkpoint) = &builder.options().checkpoint {
        checkpoint::finish(checkpoint, errors, &logger);
    }
    if let (Some(changes), Some(old)) = (&changes, &old) {
        changes.finish(args, old, &logger)?;
    }
    Ok(if errors > 0 { EXIT_PARTIAL } else { EXIT_OK })
}

/// Says where the level means a codec that this program was built without, and something else takes
/// its place.
fn say_what_is_missing(options: &BuildOptions, logger: &Logger) {
    let alternative = options.metadata_alternative.as_ref();
    if let Some(codec) = alternative.filter(|codec| !codec.is_available()) {
        logger.warn(format_args!(
            "compression '{codec}' is not in this build: the metadata are not tried with it"
        ));
    }
    let missing = redwarfs_codec::missing_codec_names();
    for (codec, categorizer, content) in [
        ("flac", "pcmaudio", "samples of audio"),
        ("ricepp", "fits", "pixels of astronomical images"),
    ] {
        let mut used = options.categorizers.iter();
        if missing.contains(&codec) && used.any(|used| used.name() == categorizer) {
            logger.warn(format_args!(
                "compression '{codec}' is not in this build: {content} are compressed like other data"
            ));
        }
    }
}

/// The options of a build with these arguments.
pub(super) fn build_options(
    args: &Args,
    command_line: &[OsString],
    logger: &Logger,
    script: Option<&Script>,
) -> Result<BuildOptions> {
    let mut o = BuildOptions::level(args.compress_level);
    o.block_size_bits = args.block_size_bits.unwrap_or(o.block_size_bits);
    let any = args.rewrite.is_wanted() || args.merge.is_wanted() || script.is_some();
    let has_order = script.is_some_and(Script::has_order);
    let usual = has_order.then_some(&OrderSpec::Script);
    args.streams
        .apply(&mut o, logger, any, usual, |spec, rest| {
            if *spec == OrderSpec::Script && !has_order {
                let what = "order 'script' needs a script with a function 'order'";
                return Err(ToolError::new(what));
            }
            spec.read(rest, args.null, logger)
        })?;
    if has_order && !o.uses_keys() {
        logger.warn("the order of the script has no effect: '--order' names another one");
    }
    o.hook = script.map(Script::hook);
    for (codec, given) in [
        (&mut o.schema_compression, &args.schema_compression),
        (&mut o.metadata_compression, &args.metadata_compression),
        (&mut o.history_compression, &args.history_compression),
    ] {
        if let Some(given) = given {
            *codec = given.clone();
        }
    }
    if args.metadata_compression.is_some() {
        o.metadata_alternative = None;
    }
    say_what_is_missing(&o, logger);
    o.max_similarity_size = args.max_similarity_size.filter(|&size| size > 0);
    o.file_hash = args.file_hash.0;
    o.workers = args
        .num_workers
        .map_or_else(env::concurrency, |workers| workers as usize);
    o.scanner_workers = args.num_scanner_workers.map(|workers| workers as usize);
    o.segmenter_workers = args.num_segmenter_workers.map(|workers| workers as usize);
    o.thread_start = thread_start();
    o.compress_niceness = i32::try_from(args.compress_niceness).unwrap_or(0);
    o.memory_limit = args.memory_limit.0;
    o.spool = Some(spool(args));
    o.machine_memory = env::memory_available();
    (o.with_devices, o.with_specials) = input::keeps(args);
    if !args.pseudo_file.is_empty() {
        // Declared ones always; those of the input are sorted out before.
        (o.with_devices, o.with_specials) = (true, true);
    }
    o.dissolve_hard_links = args.hard_links == LinkPolicy::Dissolve;
    o.verify_duplicates = match args.verify_dedup {
        Verification::Auto => !o.file_hash.is_some_and(FileHash::is_cryptographic),
        Verification::Always => true,
        Verification::Never => false,
    };
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
    if let Some(path) = &args.owner_map {
        let map = owners::read(path)?;
        (o.map_owner, o.map_group) = (map.users, map.groups);
    }
    if let Some(mode) = &args.chmod {
        let change = chmod::parse(mode, umask()).map_err(|cause| {
            ToolError::new(format!("invalid argument for option '--chmod': {cause}"))
        })?;
        o.chmod = Some(change);
    }
    let epoch = epoch()?;
    o.latest_time = epoch.map(|epoch| i64::try_from(epoch).unwrap_or(i64::MAX));
    let now = epoch.unwrap_or_else(now);
    o.set_time = args.set_time.map(|time| match time {
        TimeSpec::Now => i64::try_from(now).unwrap_or(i64::MAX),
        TimeSpec::At(seconds) => seconds,
    });
    o.create_timestamp = (!args.no_create_timestamp).then_some(now);
    o.history = (!args.no_history).then(|| {
        let mut history = HistoryOptions::default();
        history.arguments = (!args.no_history_command_line).then(|| {
            command_line
                .iter()
                .map(|arg| shown_argument(&arg.to_string_lossy()))
                .collect()
        });
        history.timestamp = (!args.no_history_timestamps).then_some(now);
        history
    });
    o.section_index = !args.no_section_index;
    o.match_index = args.append.match_index;
    o.hints = args.hints.as_deref().map(read_hints).transpose()?;
    o.hardlink_table = !args.no_hardlink_table;
    if let Some(path) = &args.header {
        o.header = Some(header::read(path, logger)?);
    }
    o.packing = args.pack_metadata;
    args.xattrs.apply(&mut o);
    Ok(o)
}

/// Reads the file of `--hints`.
fn read_hints(path: &Path) -> Result<Hints> {
    let cannot = || ToolError::new("cannot read hints").path(path);
    let mut text = Vec::new();
    let file = File::open(path)
        .and_then(|file| file.take(MAX_HINTS_TEXT as u64 + 1).read_to_end(&mut text));
    file.map_err(|e| cannot().io(&e))?;
    Hints::parse(&text).map_err(|e| cannot().cause(e))
}

/// Binds threads to CPUs, if `DWARFS_WORKER_GROUP_AFFINITY` names one of their groups.
fn thread_start() -> Option<ThreadStart> {
    let groups = [
        (ThreadGroup::Scanner, "scanner"),
        (ThreadGroup::Ordering, "ordering"),
        (ThreadGroup::Segmenter, "blockify"),
        (ThreadGroup::Compress, "compress"),
    ];
    let bound: Vec<_> = groups
        .into_iter()
        .filter_map(|(group, name)| Some((group, env::affinity(name)?)))
        .collect();
    (!bound.is_empty()).then(|| {
        ThreadStart::new(move |group| {
            for (_, cpus) in bound.iter().filter(|(of, _)| *of == group) {
                // Where the system has none of them, the thread runs anywhere.
                let _ = cpus.pin_current_thread();
            }
        })
    })
}

/// `SOURCE_DATE_EPOCH`, for reproducible builds: the time of the image, and the latest of anything
/// in it.
fn epoch() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let epoch = source_date_epoch(&text.to_string_lossy()).map_err(|cause| {
        ToolError::new("invalid SOURCE_DATE_EPOCH")
            .path(Path::new(&text))
            .cause(cause)
    })?;
    Ok(Some(epoch))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs()
}

pub(super) fn build_error(error: BuildError, args: &Args) -> ToolError {
    let output = args.written().unwrap_or(Path::new("-"));
    let input = args.first_input().unwrap_or(Path::new("."));
    match error {
        BuildError::InvalidOption(text) => ToolError::new(text),
        BuildError::Source(e) => read_error(input, &e),
        BuildError::Output(e) => write_error(output, &e),
        BuildError::Interrupted => interrupted(),
        BuildError::Hook(text) => script::error(text),
        BuildError::MemoryLimit {
            limit,
            needed,
            whole,
            enough,
            entries,
        } => {
            let least = if whole { "" } else { "at least " };
            // In the units in which the option takes it.
            let needed = format_size(needed.div_ceil(1 << 20) << 20);
            let enough = enough.div_ceil(1 << 20);
            let entries =
                entries.map(|count| format!(" for {}", counted(count, "entry", "entries")));
            let entries = entries.unwrap_or_default();
            limit_error(limit).hint(format!(
                "{least}{needed} are needed, -L {enough}m is enough{entries}"
            ))
        }
        other => ToolError::new("cannot build image").cause(other),
    }
}

/// The memory limit does not allow this input.
pub(super) fn limit_error(limit: u64) -> ToolError {
    ToolError::new(format!("memory limit of {} is too low", format_size(limit)))
}

/// Entries and metadata of the input that are not in the image, without an error.
pub(super) fn left_out(counters: &Counters) -> LeftOut {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut left_out = LeftOut::default();
    left_out.add(
        count(&counters.devices_left_out),
        "device",
        "devices",
        "see --with-devices",
    );
    left_out.add(
        count(&counters.specials_left_out),
        "FIFO or socket",
        "FIFOs and sockets",
        "see --with-specials",
    );
    left_out.add(
        count(&counters.extended_left_out),
        "extended attribute",
        "extended attributes",
        "see --xattrs",
    );
    left_out
}
