//! `dwarfs` on Windows: mounts through WinFsp, in the foreground.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redwarfs_fuse::IdleWatch;
use redwarfs_fuse::winfsp::{Error as MountError, Mounted, mount};

use super::arguments::Arguments;
use super::beside::beside;
use super::exit::{EXIT_LOOP, EXIT_MOUNT, EXIT_SETUP, EXIT_SIGNALS, TOOL};
use super::hints::HintsOfMount;
use super::settings::Settings;
use super::{Measurements, Opening, load_behind, logging, options, report_life};
use crate::common::Logger;
use crate::common::cache::finish_cache;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, Result, ToolError};
use crate::common::os::stop_flag;
use crate::common::version::VERSION;

/// The text without arguments. It fits a small terminal.
pub(super) const USAGE: &str = "\
Usage: dwarfs IMAGE DRIVE [OPTIONS...]
       dwarfs IMAGE DIRECTORY [OPTIONS...]
       dwarfs IMAGE --auto-mountpoint [OPTIONS...]

Mounts a DwarFS image, read-only, until Ctrl-C. Needs WinFsp (https://winfsp.dev).

  -o OPT[,OPT...]      options of the mount; the most used ones are:
                         offset=auto     search for the image in its file
                         cachesize=SIZE  memory for decompressed data (512m)
                         workers=N       decompression threads (2)
                         case_insensitive  find names in any letter case
  -d                   log every request
  --auto-mountpoint    mount on the path of the image without its extension
  --log-file FILE      append messages to a file

Examples:
  dwarfs data.dwarfs X:
  dwarfs data.dwarfs * -o cachesize=1g

'dwarfs -h' shows all options, 'dwarfs --man' the manual.
";

/// The end of the help text.
pub(super) const ENDING: &str = "\
Examples:
  dwarfs data.dwarfs X:
  dwarfs data.dwarfs C:\\mnt\\data -o case_insensitive
  dwarfs data.dwarfs --auto-mountpoint -o cachesize=1g,workers=4

A directory must not exist: WinFsp makes it, and removes it at the end. '*' is
the last free drive. Write a comma in a value as '\\,'. The driver accepts
options for other systems, and obsolete options, without effect; see --man.
The mount is always read-only, and ends with Ctrl-C or the console.";

/// Time between two looks at the requests to stop.
const PERIOD: Duration = Duration::from_millis(100);

/// Mounts as requested. Returns the exit code.
pub(super) fn start(arguments: &Arguments) -> Result<u8> {
    let settings = options::interpret(&arguments.options)?;
    if arguments.several.is_some() {
        return Err(ToolError::new("dir has no effect on Windows").code(EXIT_SETUP));
    }
    let level = super::level(arguments, &settings, true);
    let logger = logging::start(&settings.log, level)?;
    let outcome = mount_and_serve(arguments, settings, &logger);
    if let Err(error) = &outcome {
        // Standard error has the message already.
        logger.record(error);
    }
    outcome
}

fn mount_and_serve(arguments: &Arguments, settings: Settings, logger: &Logger) -> Result<u8> {
    let began = Instant::now();
    logger.info(format_args!("{TOOL} (RedwarFS {VERSION})"));
    for warning in &settings.warnings {
        logger.warn(warning);
    }
    if settings.writable {
        logger.warn(options::READ_ONLY);
    }
    let measurements = Measurements::new(&settings)?;
    let cache = settings.disk_cache.open(logger)?;
    let opening = Opening::new(&settings, cache.as_ref(), &measurements);
    let image = opening.image(&arguments.image, logger)?;
    let hints = HintsOfMount::begin(&settings, &image)?;
    if arguments.fake {
        return Ok(EXIT_OK);
    }
    let stop = stop_flag().map_err(|error| {
        ToolError::new("cannot install signal handlers")
            .io(&error)
            .code(EXIT_SIGNALS)
    })?;
    let point = match &arguments.mountpoint {
        Some(point) => point.clone(),
        None => beside(&arguments.image)?,
    };
    let mut mount_options = settings.mount;
    if !settings.named {
        mount_options.source = label(&arguments.image).into_os_string();
    }
    let mounted = mount(image.clone(), &point, &mount_options).map_err(|error| {
        let code = match error {
            MountError::Mount { .. } | MountError::WrongPoint { .. } => EXIT_MOUNT,
            MountError::Common(_) => EXIT_FAILURE,
            _ => EXIT_SETUP,
        };
        ToolError::new(error.to_string()).code(code)
    })?;
    let preload = hints.preload.iter().cloned().chain(settings.preload);
    load_behind(&image, preload, &settings.prefetch, logger);
    drop(image);
    logger.info(format_args!("mounted on {}", mounted.point()));
    logger.timed(
        crate::common::LogLevel::Info,
        "file system initialized",
        began.elapsed(),
    );
    let observer = mounted.observer();
    let ended = wait(&mounted, || stop.load(Ordering::Relaxed), logger);
    drop(mounted);
    hints.write(logger);
    report_life(&observer.statistics(), observer.perfmon_summary(), logger);
    finish_cache(cache.as_ref(), logger);
    measurements.write_trace(logger);
    match ended {
        End::Wanted => logger.info("file system unmounted"),
        End::BySystem => {
            return Err(ToolError::new("WinFsp has ended the mount").code(EXIT_LOOP));
        }
    }
    Ok(EXIT_OK)
}

/// The name of the image for the label of the volume.
fn label(image: &Path) -> PathBuf {
    image.file_stem().map(PathBuf::from).unwrap_or_default()
}

/// Why a mount ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The user wants it, or nobody uses the mount.
    Wanted,
    BySystem,
}

/// Waits for the end of the mount.
fn wait(mounted: &Mounted, stops: impl Fn() -> bool, logger: &Logger) -> End {
    let mut idle = mounted.idle_watch();
    loop {
        if stops() {
            logger.verbose("stopping");
            return End::Wanted;
        }
        if mounted.has_ended() {
            return End::BySystem;
        }
        if idle.as_mut().is_some_and(IdleWatch::is_over) {
            if !mounted.is_in_use() {
                logger.info("unmounted, because nobody has used the file system");
                return End::Wanted;
            }
            logger.verbose("nobody asks, but something is in use");
        }
        std::thread::sleep(PERIOD);
    }
}
