//! `dwarfs`: mounts an image.

mod arguments;
mod background;
mod mountpoint;
mod options;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, Command};
use redwarfs_fuse::{Error as FuseError, Mounted, mount};
use redwarfs_reader::Image;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::common::cli::{VERSION, prepare};
use crate::common::error::{EXIT_FAILURE, EXIT_OK, Result, ToolError};
use crate::common::log::install_tracing;
use crate::common::open::{Spelling, open_image};
use crate::common::{LogLevel, Logger};
use arguments::{Arguments, Request};
use background::{Fork, Report};
use mountpoint::MountPoint;
use options::Settings;

const TOOL: &str = "dwarfs";
/// No image was named.
const EXIT_NO_IMAGE: u8 = EXIT_FAILURE;
/// The FUSE connection could not be set up, or an option is unknown.
const EXIT_SETUP: u8 = 3;
/// The mount was refused.
const EXIT_MOUNT: u8 = 4;
/// The driver could not go to the background.
const EXIT_BACKGROUND: u8 = 5;
/// Signal handlers could not be installed.
const EXIT_SIGNALS: u8 = 6;
/// The connection to the kernel failed while mounted.
const EXIT_LOOP: u8 = 7;
/// How long the driver waits for the kernel to end the connection after an unmount.
const FAREWELL: Duration = Duration::from_secs(5);

const OPTIONS_HELP: &str = "\
Options for -o:
  cachesize=SIZE         memory for decompressed blocks (512M)
  workers=N              decompression threads (2)
  decratio=RATIO         decompress the whole block once this much was needed (0.8)
  seq_detector=N         prefetch after N blocks in sequence, 0: never (4)
  offset=N|auto          where the image starts in the file (0)
  imagesize=N            size of the image in bytes (the rest of the file)
  blocksize=SIZE         preferred I/O size shown by stat(2), 0: the system's (512K)
  uid=N, gid=N           owner and group of every file (as in the image)
  readonly               hide the write permissions
  (no_)cache_files       keep file data cached when files are opened again (on)
  debuglevel=LEVEL       error, warn, info, verbose, debug, trace (warn; info with -f)

FUSE options for -o:
  allow_other            let all users use the mount
  allow_root             let root use the mount
  auto_unmount           unmount however the driver ends
  (no_)default_permissions  let the kernel check permissions (on)
  fsname=NAME            name in the mount table (the path of the image)
  subtype=NAME           second part of the type in the mount table (dwarfs)
  (no)suid, (no)dev, (no)exec  as for every mount (nosuid, nodev, exec)
  max_read=N             largest read request in bytes

A comma in a value is written as '\\,'. The mount is always read-only.
Unmount with 'fusermount3 -u MOUNTPOINT', 'umount MOUNTPOINT', or by SIGINT or SIGTERM.";

/// The command line, for help and manual pages. Parsing follows FUSE's own conventions.
#[must_use]
pub fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).action(ArgAction::SetTrue).help(help)
    };
    prepare(Command::new(TOOL))
        .about("Mount a DwarFS image")
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
                .help("Options, see below"),
        )
        .arg(flag("foreground", "Stay in the foreground").short('f'))
        .arg(flag("debug", "Stay in the foreground and log every request").short('d'))
        .arg(
            flag(
                "single",
                "Accepted for compatibility: one thread reads requests",
            )
            .short('s'),
        )
        .arg(
            flag(
                "auto-mountpoint",
                "Mount on the image's path without its extension",
            )
            .long("auto-mountpoint"),
        )
        .after_help(OPTIONS_HELP)
}

/// Runs the tool; `args` starts with the program's name. Returns the exit code.
///
/// Unless `-f` is given, this forks; it must be called while the process has one thread.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    if args.len() <= 1 {
        print_out(&command().render_help().to_string());
        return EXIT_NO_IMAGE;
    }
    match arguments::parse(args.into_iter().skip(1)) {
        Ok(Request::Help) => print_out(&command().render_help().to_string()),
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
    let settings = options::interpret(&arguments.options)?;
    if arguments.foreground || arguments.debug || settings.debug {
        return run(arguments, settings, None);
    }
    let cannot = |error: &io::Error| {
        ToolError::new("cannot go to the background")
            .io(error)
            .code(EXIT_BACKGROUND)
    };
    match background::fork().map_err(|error| cannot(&error))? {
        Fork::Parent(outcome) => match outcome.wait() {
            Some(code) => Ok(code),
            None => Err(ToolError::new("the driver died while mounting").code(EXIT_BACKGROUND)),
        },
        Fork::Child(report) => {
            let mut report = Some(report);
            let code = match run(arguments, settings, Some(&mut report)) {
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

/// Mounts and serves until the end. With `report`, goes to the background once mounted.
fn run(
    arguments: &Arguments,
    settings: Settings,
    report: Option<&mut Option<Report>>,
) -> Result<u8> {
    let began = Instant::now();
    let debug = arguments.debug || settings.debug;
    let level = settings.level.unwrap_or(match (debug, &report) {
        (true, _) => LogLevel::Debug,
        (false, None) => LogLevel::Info,
        (false, Some(_)) => LogLevel::Warn,
    });
    let logger = Logger::stderr(level, false);
    install_tracing(&logger);
    logger.info(format_args!("{TOOL} (RedwarFS {VERSION})"));
    for warning in &settings.warnings {
        logger.warn(warning);
    }
    let signals = Signals::new().map_err(|error| {
        ToolError::new("cannot install signal handlers")
            .io(&error)
            .code(EXIT_SIGNALS)
    })?;

    let image = open(&arguments.image, &settings)?;
    let target = match &arguments.mountpoint {
        Some(path) => MountPoint::Given(path.clone()),
        None => MountPoint::automatic(&arguments.image)?,
    };
    let mut mount_options = settings.mount;
    if !settings.named {
        // The image was opened a moment ago: its path resolves unless it was just removed.
        mount_options.source = arguments
            .image
            .canonicalize()
            .unwrap_or_else(|_| arguments.image.clone())
            .into_os_string();
    }
    let mounted = mount(image, target.path(), &mount_options).map_err(|error| {
        let code = match error {
            FuseError::Device(_) | FuseError::Session(_) => EXIT_SETUP,
            _ => EXIT_MOUNT,
        };
        ToolError::new(error.to_string()).code(code)
    })?;
    logger.timed(LogLevel::Info, "file system initialized", began.elapsed());
    if let Some(report) = report
        && let Some(report) = report.take()
        && let Err(error) = report.ready()
    {
        // Unmounting is all that is left to do; the first failure is the one to tell.
        let _ = mounted.unmounter().unmount();
        return Err(ToolError::new("cannot go to the background")
            .io(&error)
            .code(EXIT_BACKGROUND));
    }
    serve(mounted, &signals, &logger)
}

fn open(path: &Path, settings: &Settings) -> Result<Image> {
    let spelling = Spelling {
        auto: "-o offset=auto",
        size: Some("-o imagesize=BYTES"),
    };
    open_image(path, &settings.open, spelling)
}

/// Waits for the end of the mount, or for a signal, which ends it.
fn serve(mounted: Mounted, signals: &Signals, logger: &Logger) -> Result<u8> {
    let setup = |error: &io::Error| {
        ToolError::new("cannot watch the mount")
            .io(error)
            .code(EXIT_SETUP)
    };
    let unmounter = mounted.unmounter();
    let point = mounted.mountpoint().to_owned();
    // The far end closes when the thread that holds it ends.
    let (ended, held) = UnixStream::pair().map_err(|error| setup(&error))?;
    let session = std::thread::Builder::new()
        .name(String::from("session"))
        .spawn(move || {
            let result = mounted.wait();
            drop(held);
            result
        })
        .map_err(|error| setup(&error))?;
    let over = wait(&ended, Some(signals), None).map_err(|error| setup(&error))?;
    if !over {
        logger.verbose("stopping");
        match unmounter.unmount() {
            Ok(true) => {
                let over = wait(&ended, None, Some(FAREWELL)).map_err(|error| setup(&error))?;
                if !over {
                    return Ok(EXIT_OK);
                }
            }
            Ok(false) => {
                logger.warn("the file system is in use: detached");
                return Ok(EXIT_OK);
            }
            Err(error) => return Err(ToolError::new("cannot unmount").path(&point).io(&error)),
        }
    }
    match session.join() {
        Ok(Ok(())) => Ok(EXIT_OK),
        Ok(Err(error)) => Err(ToolError::new(error.to_string()).code(EXIT_LOOP)),
        Err(_) => Err(ToolError::new("FUSE session failed").code(EXIT_LOOP)),
    }
}

/// Waits until `ended` closes (true), a signal arrives or the time is over (false).
fn wait(
    ended: &UnixStream,
    signals: Option<&Signals>,
    patience: Option<Duration>,
) -> io::Result<bool> {
    let timeout = patience.map(|patience| Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    });
    loop {
        let mut watched = vec![PollFd::new(ended, PollFlags::IN)];
        watched.extend(signals.map(|signals| PollFd::new(&signals.0, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                return Ok(watched
                    .first()
                    .is_some_and(|ended| !ended.revents().is_empty()));
            }
        }
    }
}

/// A descriptor that becomes readable when the process is asked to end.
#[derive(Debug)]
struct Signals(UnixStream);

impl Signals {
    fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self(read))
    }
}
