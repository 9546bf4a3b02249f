//! `dwarfs`: mounts an image.

mod arguments;
#[cfg(unix)]
mod background;
mod beside;
#[cfg(unix)]
mod descriptors;
mod entry;
mod exit;
mod hints;
#[cfg(unix)]
mod layer;
mod logging;
#[cfg(unix)]
mod mountpoint;
mod options;
mod prefetch;
#[cfg(unix)]
mod remount;
#[cfg(unix)]
mod serve;
mod settings;
#[cfg(unix)]
mod several;
mod table;
mod table_hints;
mod table_ignored;
mod table_images;
mod table_layer;
mod table_text;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command};
use redwarfs_io::DiskCache;
use redwarfs_reader::perfmon::PerfMonitor;
use redwarfs_reader::{Image, OpenOptions, Preload};

use crate::common::cli::{prepare, version};
use crate::common::error::{EXIT_OK, Result, ToolError};
use crate::common::man::{print_long, show};
use crate::common::number::format_size;
use crate::common::open::{Spelling, open_image};
use crate::common::recovery::open_repairing;
use crate::common::tool::Tool;
use crate::common::verify::log_verified;
use crate::common::{LogLevel, Logger};
pub(crate) use arguments::is_mount_helper;
use arguments::{Arguments, Control, Request};
use exit::{EXIT_NO_IMAGE, TOOL};
use settings::{Lock, LogTarget, Settings};
#[cfg(unix)]
use unix::{ENDING, USAGE, start};
#[cfg(windows)]
use windows::{ENDING, USAGE, start};

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
            "dwarfs IMAGE MOUNTPOINT [OPTIONS...]\n       dwarfs IMAGE --auto-mountpoint [OPTIONS...]\n       dwarfs -o dir=MOUNTPOINT[,OPT...] [NAME=]IMAGE...\n       dwarfs --ctl SOCKET|MOUNTPOINT add [NAME=]IMAGE...\n       dwarfs --ctl SOCKET|MOUNTPOINT {remove NAME... | list [--json]}",
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
            Arg::new("ctl")
                .long("ctl")
                .value_name("SOCKET|MOUNTPOINT")
                .help("Add, remove or list the images of a mount of several ones"),
        )
        .arg(
            flag("json", "Let --ctl list print one line of JSON for each image")
                .long("json")
                .short('j'),
        )
        .arg(
            Arg::new("log-file")
                .long("log-file")
                .value_name("FILE")
                .help("Append messages to a file (as -o log_file=FILE)"),
        )
        .arg(
            Arg::new("prefetch")
                .long("prefetch")
                .value_name("PATTERN")
                .help("Fetch the data of these files after mounting (as -o prefetch=PATTERN)"),
        )
        .after_help(format!("{}{ENDING}", table_text::help()))
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
///
/// On Unix, unless `-f` is given, this forks; it must be called while the process has one thread.
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
        Ok(Request::Version) => print_out(&format!("{TOOL} {}\n", version())),
        Ok(Request::Mount(arguments)) => match start(&arguments) {
            Ok(code) => return code,
            Err(error) => return error.report(TOOL),
        },
        Ok(Request::Control(control)) => {
            if let Err(error) = change(&control) {
                return error.report(TOOL);
            }
        }
        Err(error) => return error.report(TOOL),
    }
    EXIT_OK
}

/// Asks the driver of a mount to change or list its images.
#[cfg(unix)]
fn change(control: &Control) -> Result<()> {
    several::ctl::run(&control.target, &control.command, control.json)
}

#[cfg(windows)]
fn change(_control: &Control) -> Result<()> {
    Err(ToolError::new("--ctl has no effect on Windows"))
}

/// A closed pipe (`| head`) is no reason to complain.
fn print_out(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// When the metadata of a mount is loaded that was not needed so far: not while its first user
/// waits for an answer.
const LOAD_AFTER: Duration = Duration::from_millis(500);

/// The level of messages. `attended`: somebody sees standard error all the time.
fn level(arguments: &Arguments, settings: &Settings, attended: bool) -> LogLevel {
    settings.level.unwrap_or({
        if arguments.debug || settings.debug {
            LogLevel::Debug
        } else if attended || arguments.verbose || settings.log != LogTarget::Stderr {
            LogLevel::Info
        } else {
            LogLevel::Warn
        }
    })
}

/// Loads and decompresses in the background what was requested, and what makes the mount faster.
fn load_behind(
    image: &Image,
    preload: impl IntoIterator<Item = Preload>,
    prefetch: &[OsString],
    logger: &Logger,
) {
    // The thread that reads requests must not wait for the medium later.
    if let Err(error) = image.load_metadata(LOAD_AFTER) {
        logger.warn(format_args!("cannot load the metadata: {error}"));
    }
    if !prefetch.is_empty() {
        // The options were checked.
        let begun = prefetch::patterns(prefetch).map(|found| prefetch::begin(image, found, logger));
        if let Ok(Err(error)) = begun {
            logger.warn(format_args!("cannot prefetch: {error}"));
        }
    }
    for which in preload {
        match image.preload(which) {
            Ok(_) => {}
            // Says which categories there are.
            Err(redwarfs_format::Error::Unsupported(text)) => {
                logger.warn(format_args!("nothing is preloaded: {text}"));
            }
            Err(error) => logger.warn(format_args!("cannot preload: {error}")),
        }
    }
}

/// Logs the measured times. They are shown at every level, because an option requested them.
fn report_times(summary: Option<String>, logger: &Logger) {
    if let Some(summary) = summary {
        logger.always(LogLevel::Info, summary.trim_end());
    }
}

/// Logs what a mount did in its life.
fn report_life(statistics: &str, summary: Option<String>, logger: &Logger) {
    statistics.lines().for_each(|line| logger.verbose(line));
    report_times(summary, logger);
}

/// The measured times of a mount, and the file for their trace.
#[derive(Debug)]
struct Measurements {
    perfmon: PerfMonitor,
    trace: Option<(File, PathBuf)>,
}

impl Measurements {
    /// Creates the file here, because later a failure could not be reported.
    fn new(settings: &Settings) -> Result<Self> {
        let trace = settings
            .trace
            .as_ref()
            .map(|path| match File::create(path) {
                Ok(file) => Ok((file, path.clone())),
                Err(error) => Err(ToolError::new("cannot create trace file")
                    .path(path)
                    .io(&error)),
            });
        let trace = trace.transpose()?;
        Ok(Self {
            perfmon: PerfMonitor::new(&settings.perfmon, trace.is_some()),
            trace,
        })
    }

    /// Writes the trace, if there is a file for it.
    fn write_trace(self, logger: &Logger) {
        if let Some((mut file, path)) = self.trace
            && let Err(error) = self.perfmon.write_trace(&mut file)
        {
            logger.error(ToolError::new("cannot write trace").path(path).io(&error));
        }
    }
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

/// How the images of a mount are opened.
#[derive(Debug, Clone)]
struct Opening {
    options: OpenOptions,
    repair: bool,
    sidecar: Option<PathBuf>,
    lock: Lock,
    #[cfg_attr(windows, allow(dead_code))]
    hints: bool,
}

impl Opening {
    fn new(
        settings: &Settings,
        disk_cache: Option<&DiskCache>,
        measurements: &Measurements,
    ) -> Self {
        let mut options = settings.open.clone();
        options.perfmon = measurements.perfmon.clone();
        options.disk_cache = disk_cache.cloned();
        Self {
            options,
            repair: settings.repair,
            sidecar: settings.sidecar.clone(),
            lock: settings.lock,
            hints: settings.hints,
        }
    }

    /// Loads what the hints of one of several images name.
    #[cfg(unix)]
    fn load_hints(&self, image: &Image, logger: &Logger) {
        if self.hints
            && let Err(error) = image.preload(Preload::Hints(None))
        {
            logger.warn(format_args!("cannot preload: {error}"));
        }
    }

    /// Opens an image.
    fn open(&self, path: &Path, logger: &Logger) -> Result<Image> {
        let spelling = Spelling {
            auto: "-o offset=auto",
            size: Some("-o imagesize=BYTES"),
        };
        let options = &self.options;
        match self.repair {
            true => open_repairing(path, options, &self.sidecar.clone().map(Some), logger),
            false => open_image(path, options, spelling),
        }
    }

    /// Opens an image, and does everything that must succeed before it is shown.
    fn image(&self, path: &Path, logger: &Logger) -> Result<Image> {
        let options = &self.options;
        let image = self.open(path, logger)?;
        log_verified(&image, logger);
        if options.image_size.is_none() && image.trailing_bytes() > 0 {
            logger.info(format_args!(
                "{} bytes follow the image in its file",
                image.trailing_bytes()
            ));
        }
        // If a header cannot be read, the error is reported when the block is needed.
        if let Ok(Some(block)) = image.block_beyond_cache() {
            logger.warn(cache_too_small(options.cache.size, block));
        }
        if self.lock != Lock::No
            && let Err(error) = image.lock_metadata()
        {
            let error = ToolError::new("cannot lock metadata in memory")
                .io(&error)
                .hint("see 'ulimit -l'");
            if self.lock == Lock::Must {
                return Err(error);
            }
            logger.warn(error);
        }
        Ok(image)
    }
}
