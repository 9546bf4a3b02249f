//! `dwarfs`: mounts an image.

mod arguments;
mod background;
mod descriptors;
mod entry;
mod exit;
mod logging;
mod mountpoint;
mod options;
mod remount;
mod serve;
mod settings;
mod table;
mod table_text;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command};
use redwarfs_fuse::guard::Guard;
use redwarfs_fuse::{Access, Error as FuseError, mount_guarded, serve_device};
use redwarfs_reader::Image;
use redwarfs_reader::perfmon::PerfMonitor;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::common::cli::prepare;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, Result, ToolError, display_path};
use crate::common::man::{print_long, show};
use crate::common::number::format_size;
use crate::common::open::{Spelling, open_image};
use crate::common::tool::Tool;
use crate::common::version::VERSION;
use crate::common::{LogLevel, Logger};
pub(crate) use arguments::is_mount_helper;
use arguments::{Arguments, Request};
use background::{Fork, Outcome, Report};
use descriptors::Inherited;
use exit::{
    EXIT_BACKGROUND, EXIT_INTERRUPTED, EXIT_MOUNT, EXIT_NO_IMAGE, EXIT_SETUP, EXIT_SIGNALS, TOOL,
};
use mountpoint::MountPoint;
use serve::{End, Signals, serve};
use settings::{Lock, LogTarget, Settings};

/// The text without arguments. It fits a small terminal.
const USAGE: &str = "\
Usage: dwarfs IMAGE MOUNTPOINT [OPTIONS...]
       dwarfs IMAGE --auto-mountpoint [OPTIONS...]

Mounts a DwarFS image, read-only. 'fusermount3 -u MOUNTPOINT' unmounts it.

  -o OPT[,OPT...]      options of the mount; the most used ones are:
                         offset=auto     search for the image in its file
                         cachesize=SIZE  memory for decompressed data (512m)
                         workers=N       decompression threads (2)
                         allow_other     let all users use the mount
  -f                   stay in the foreground
  -d                   stay in the foreground, and log every request
  --auto-mountpoint    mount on the path of the image without its extension
  --log-file FILE      append messages to a file

Examples:
  dwarfs data.dwarfs mnt
  dwarfs program.AppImage mnt -o offset=auto,cachesize=1g

'dwarfs -h' shows all options, 'dwarfs --man' the manual.
";

const ENDING: &str = "\
Examples:
  dwarfs data.dwarfs mnt
  dwarfs data.dwarfs --auto-mountpoint -o cachesize=1g,workers=4
  dwarfs program.AppImage mnt -o offset=auto
  dwarfs data.dwarfs mnt -f -o debuglevel=verbose

Write a comma in a value as '\\,'. The driver accepts options for /etc/fstab
and for other drivers, and obsolete options, without effect; see --man.
The mount is always read-only. Unmount with 'fusermount3 -u MOUNTPOINT',
'umount MOUNTPOINT', or by SIGINT or SIGTERM.";

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    Tool::new(command(), include_str!("../../manual/dwarfs.md")).with_options(table_text::manual())
}

/// The command line, for help, manual and completions. Parsing follows FUSE's own conventions.
fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).action(ArgAction::SetTrue).help(help)
    };
    let names = table::OPTIONS.iter().flat_map(|entry| {
        let end = if entry.takes_value() { "=" } else { "" };
        let names = entry.names();
        let opposite = names.first().map(|name| format!("opposite of {name}"));
        let texts = [Some(entry.help.to_owned()), opposite]
            .into_iter()
            .flatten();
        let described = names.into_iter().zip(texts);
        described.map(move |(name, text)| PossibleValue::new(format!("{name}{end}")).help(text))
    });
    prepare(Command::new(TOOL))
        .about("Mount a DwarFS image")
        .override_usage(
            "dwarfs IMAGE MOUNTPOINT [OPTIONS...]\n       dwarfs IMAGE --auto-mountpoint [OPTIONS...]",
        )
        .max_term_width(80)
        .arg(
            Arg::new("image")
                .value_name("IMAGE")
                .required(true)
                .help("The image"),
        )
        .arg(
            Arg::new("mountpoint")
                .value_name("MOUNTPOINT")
                .help("The directory to mount on"),
        )
        .arg(
            Arg::new("options")
                .short('o')
                .value_name("OPT[,OPT...]")
                .value_parser(PossibleValuesParser::new(names))
                .hide_possible_values(true)
                .help("Options, see below"),
        )
        .arg(flag("foreground", "Stay in the foreground").short('f'))
        .arg(
            flag("debug", "Stay in the foreground and log every request").short('d'),
        )
        .arg(flag("single", "No effect, for compatibility with FUSE").short('s'))
        .arg(
            flag(
                "auto-mountpoint",
                "Mount on the image's path without its extension",
            )
            .long("auto-mountpoint"),
        )
        .arg(
            Arg::new("log-file")
                .long("log-file")
                .value_name("FILE")
                .help("Append messages to a file (as -o log_file=FILE)"),
        )
        .after_help(format!("{}{ENDING}", table_text::help()))
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
///
/// Unless `-f` is given, this forks; it must be called while the process has one thread.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    if args.len() <= 1 {
        print_out(USAGE);
        return EXIT_NO_IMAGE;
    }
    let called = args.first().map(Path::new).and_then(Path::file_name);
    let helper = called.is_some_and(is_mount_helper);
    match arguments::parse(args.into_iter().skip(1), helper) {
        Ok(Request::Help) => {
            let text = command().render_help();
            print_long(&text.to_string(), &text.ansi().to_string());
        }
        Ok(Request::Manual) => show(&tool().manual()),
        Ok(Request::Version) => print_out(&format!("{TOOL} {VERSION} (RedwarFS)\n")),
        Ok(Request::Mount(arguments)) => match start(&arguments) {
            Ok(code) => return code,
            Err(error) => return error.report(TOOL),
        },
        Err(error) => return error.report(TOOL),
    }
    EXIT_OK
}

/// A closed pipe (`| head`) is no reason to complain.
fn print_out(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn start(arguments: &Arguments) -> Result<u8> {
    let mut inherited = Inherited::take_over();
    if remount::is_wanted(&arguments.options) {
        return change(arguments);
    }
    let settings = options::interpret(&arguments.options)?;
    if arguments.fake || arguments.foreground || arguments.debug || settings.debug {
        return run(arguments, settings, None, &mut inherited);
    }
    let cannot = |error: &io::Error| {
        ToolError::new("cannot go to the background")
            .io(error)
            .code(EXIT_BACKGROUND)
    };
    match background::fork().map_err(|error| cannot(&error))? {
        Fork::Parent(outcome) => match outcome.wait() {
            Outcome::Code(code) => Ok(code),
            Outcome::Signal(SIGINT | SIGTERM | SIGHUP) => {
                Err(ToolError::new("interrupted").code(EXIT_INTERRUPTED))
            }
            Outcome::Signal(_) | Outcome::Unknown => {
                Err(ToolError::new("the driver died while mounting").code(EXIT_BACKGROUND))
            }
        },
        Fork::Child(report) => {
            let mut report = Some(report);
            let code = match run(arguments, settings, Some(&mut report), &mut inherited) {
                Ok(code) => code,
                Err(error) => error.report(TOOL),
            };
            if let Some(report) = report {
                report.failed(code);
            }
            Ok(code)
        }
    }
}

/// Changes a mount that is there.
fn change(arguments: &Arguments) -> Result<u8> {
    // A mistake in the other options is one here, too.
    let settings = options::interpret(&arguments.options)?;
    let level = settings.level.unwrap_or(LogLevel::Warn);
    let logger = logging::start(&settings.log, level)?;
    let Some(mountpoint) = &arguments.mountpoint else {
        return Err(ToolError::new("no mountpoint specified"));
    };
    if arguments.fake {
        return Ok(EXIT_OK);
    }
    let complete = arguments.helper;
    if remount::remount(mountpoint, &arguments.options, complete)? {
        logger.warn(options::READ_ONLY);
    }
    Ok(EXIT_OK)
}

/// Mounts and serves until the end. With `report`, goes to the background once mounted.
fn run(
    arguments: &Arguments,
    settings: Settings,
    report: Option<&mut Option<Report>>,
    inherited: &mut Inherited,
) -> Result<u8> {
    let level = settings.level.unwrap_or({
        if arguments.debug || settings.debug {
            LogLevel::Debug
        } else if report.is_none() || arguments.verbose || settings.log != LogTarget::Stderr {
            LogLevel::Info
        } else {
            LogLevel::Warn
        }
    });
    let logger = logging::start(&settings.log, level)?;
    let outcome = mount_and_serve(arguments, settings, report, inherited, &logger);
    if let Err(error) = &outcome {
        // Standard error has the message already, or is closed.
        logger.record(error);
    }
    outcome
}

fn mount_and_serve(
    arguments: &Arguments,
    settings: Settings,
    report: Option<&mut Option<Report>>,
    inherited: &mut Inherited,
    logger: &logging::DriverLog,
) -> Result<u8> {
    let began = Instant::now();
    logger.info(format_args!("{TOOL} (RedwarFS {VERSION})"));
    for warning in &settings.warnings {
        logger.warn(warning);
    }
    if settings.writable && !arguments.helper {
        // mount(8) says `rw` to its helpers unasked.
        logger.warn(options::READ_ONLY);
    }
    let given = arguments.mountpoint.as_deref();
    let given = given.map(|path| MountPoint::given(path, inherited));
    let given = given.transpose()?;
    // Before anything starts a thread. There is nothing to take off where the caller mounted.
    let mut guard = None;
    if settings.mount.guard && !arguments.fake && !matches!(given, Some(MountPoint::Device(..))) {
        guard = Guard::spawn()
            .map_err(|error| logger.warn(format_args!("no guard against being killed: {error}")))
            .ok();
    }
    let trace = settings.trace.as_deref().map(create_trace).transpose()?;
    let perfmon = PerfMonitor::new(&settings.perfmon, trace.is_some());
    let image = open(&arguments.image, &settings, &perfmon, logger)?;
    if arguments.fake {
        return Ok(EXIT_OK);
    }

    let signals = Signals::new().map_err(|error| {
        ToolError::new("cannot install signal handlers")
            .io(&error)
            .code(EXIT_SIGNALS)
    })?;
    let target = match given {
        Some(target) => target,
        None => MountPoint::automatic(&arguments.image)?,
    };
    if !settings.over_others && target.hides_something() {
        logger.warn(format_args!(
            "the mount hides what is in the directory: {} (-o nonempty silences this)",
            display_path(target.path())
        ));
    }
    let mut mount_options = settings.mount;
    if mount_options.access == Access::OwnerAndRoot && rustix::process::geteuid().is_root() {
        // The same, and the kernel itself keeps others out.
        mount_options.access = Access::Owner;
    }
    if !settings.named {
        // The image was opened a moment ago: its path resolves unless it was just removed.
        mount_options.source = arguments
            .image
            .canonicalize()
            .unwrap_or_else(|_| arguments.image.clone())
            .into_os_string();
    }
    let (mounted, _made) = match target {
        MountPoint::Device(device, name) => {
            if mount_options.idle.is_some() {
                logger.warn("timeout has no effect: the caller has to unmount what it mounted");
            }
            (
                serve_device(image.clone(), device, &name, &mount_options),
                None,
            )
        }
        target => (
            mount_guarded(image.clone(), target.path(), &mount_options, guard.as_mut()),
            Some(target),
        ),
    };
    let mounted = mounted.map_err(|error| {
        let code = match error {
            FuseError::Device(_) | FuseError::Session(_) => EXIT_SETUP,
            FuseError::AnalysisFile { .. } | FuseError::Image(_) => EXIT_FAILURE,
            _ => EXIT_MOUNT,
        };
        ToolError::new(error.to_string()).code(code)
    })?;
    if let Some(guard) = &mut guard
        && let Err(error) = guard.watch(mounted.mountpoint(), mounted.device())
    {
        logger.warn(format_args!("no guard against being killed: {error}"));
    }
    // The thread that reads requests must not wait for the medium later.
    if let Err(error) = image.load_metadata(LOAD_AFTER) {
        logger.warn(format_args!("cannot load the metadata: {error}"));
    }
    for which in settings.preload {
        match image.preload(which) {
            Ok(_) => {}
            // Says which categories there are.
            Err(redwarfs_format::Error::Unsupported(text)) => {
                logger.warn(format_args!("nothing is preloaded: {text}"));
            }
            Err(error) => logger.warn(format_args!("cannot preload: {error}")),
        }
    }
    drop(image);
    logger.timed(LogLevel::Info, "file system initialized", began.elapsed());
    if let Some(report) = report
        && let Some(report) = report.take()
    {
        logger.leave_stderr();
        // Before the caller continues: it may need a lock at once.
        inherited.close();
        if let Err(error) = report.ready() {
            // Unmounting is all that is left to do; the first failure is the one to tell.
            let _ = mounted.unmounter().unmount();
            return Err(ToolError::new("cannot go to the background")
                .io(&error)
                .code(EXIT_BACKGROUND));
        }
    }
    let observer = mounted.observer();
    let end = serve(mounted, &signals, logger);
    let status = end.as_ref().map_or_else(ToolError::exit_code, |_| EXIT_OK);
    logger.verbose(format_args!("FUSE loop exited with status: {status}"));
    serve::at_exit(&observer, logger);
    if let Some((mut file, path)) = trace.zip(settings.trace)
        && let Err(error) = perfmon.write_trace(&mut file)
    {
        let error = ToolError::new("cannot write trace").path(path).io(&error);
        logger.error(error);
    }
    match end? {
        End::Unmounted => logger.info("file system unmounted"),
        End::Detached => logger.warn("the file system is in use: detached"),
        End::Left => logger.warn("the caller has to unmount what it mounted"),
    }
    if let Some(guard) = guard {
        guard.dismiss();
    }
    Ok(EXIT_OK)
}

/// When the metadata of a mount is loaded that was not needed so far: not while its first user
/// waits for an answer.
const LOAD_AFTER: Duration = Duration::from_millis(500);

/// Creates the file here, because later a failure could not be reported.
fn create_trace(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| {
        ToolError::new("cannot create trace file")
            .path(path)
            .io(&error)
    })
}

/// The warning about a cache of `cache` bytes that cannot hold a block of `block` bytes.
fn cache_too_small(cache: u64, block: u64) -> String {
    // The cache's own memory for a block must fit, too.
    let enough = (block >> 20) + 1;
    format!(
        "the cache ({}) cannot hold one block of the image ({}): a block takes memory beyond it while \
         it is read, and is decompressed again when it is read again; -o cachesize={enough}m holds one",
        format_size(cache),
        format_size(block),
    )
}

/// Opens the image, and does everything that must succeed before the mount.
fn open(path: &Path, settings: &Settings, perfmon: &PerfMonitor, logger: &Logger) -> Result<Image> {
    let spelling = Spelling {
        auto: "-o offset=auto",
        size: Some("-o imagesize=BYTES"),
    };
    let mut options = settings.open.clone();
    options.perfmon = perfmon.clone();
    let image = open_image(path, &options, spelling)?;
    if settings.open.image_size.is_none() && image.trailing_bytes() > 0 {
        logger.info(format_args!(
            "{} bytes follow the image in its file",
            image.trailing_bytes()
        ));
    }
    // If a header cannot be read, the error is reported when the block is needed.
    if let Ok(Some(block)) = image.block_beyond_cache() {
        logger.warn(cache_too_small(settings.open.cache.size, block));
    }
    if settings.lock != Lock::No
        && let Err(error) = image.lock_metadata()
    {
        let error = ToolError::new("cannot lock metadata in memory")
            .io(&error)
            .hint("see 'ulimit -l'");
        if settings.lock == Lock::Must {
            return Err(error);
        }
        logger.warn(error);
    }
    Ok(image)
}
