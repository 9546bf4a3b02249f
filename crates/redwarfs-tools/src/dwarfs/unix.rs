//! `dwarfs` on Unix: mounts through FUSE, in the background or in the foreground.

use std::io;
use std::time::Instant;

use redwarfs_fuse::guard::Guard;
use redwarfs_fuse::{
    Access, Error as FuseError, ImageSet, mount_guarded, mount_images, serve_device,
    serve_device_images,
};
use redwarfs_io::place::{FileLocation, shown_name};
use redwarfs_reader::Image;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::arguments::Arguments;
use super::background::{self, Fork, Outcome, Report};
use super::descriptors::Inherited;
use super::exit::{EXIT_BACKGROUND, EXIT_MOUNT, EXIT_SETUP, EXIT_SIGNALS, TOOL};
use super::hints::HintsOfMount;
use super::mountpoint::MountPoint;
use super::serve::{End, Signals, serve};
use super::settings::Settings;
use super::several::control::Control;
use super::several::{self, Opener};
use super::{Measurements, Opening, layer, load_behind, logging, options, remount, report_life};
use crate::common::cache::finish_cache;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, Result, ToolError, display_path};
use crate::common::os::code_of;
use crate::common::version::VERSION;
use crate::common::{LogLevel, Logger};

/// The text without arguments. It fits a small terminal.
pub(super) const USAGE: &str = "\
Usage: dwarfs IMAGE MOUNTPOINT [OPTIONS...]
       dwarfs IMAGE --auto-mountpoint [OPTIONS...]
       dwarfs -o dir=MOUNTPOINT [NAME=]IMAGE...

Mounts a DwarFS image. 'fusermount3 -u MOUNTPOINT' unmounts it.

  -o OPT[,OPT...]      options of the mount; the most used ones are:
                         offset=auto     search for the image in its file
                         cachesize=SIZE  memory for decompressed data (512m)
                         allow_other     let all users use the mount
                         rw=DIR          let programs write; DIR gets the changes
  -f                   stay in the foreground
  -d                   stay in the foreground, and log every request
  --auto-mountpoint    mount on the path of the image without its extension

Examples:
  dwarfs data.dwarfs mnt
  dwarfs program.AppImage mnt -o offset=auto,cachesize=1g

'dwarfs -h' shows all options, 'dwarfs --man' the manual.
";

/// The end of the help text.
pub(super) const ENDING: &str = "\
Examples:
  dwarfs data.dwarfs mnt
  dwarfs data.dwarfs --auto-mountpoint -o cachesize=1g,workers=4
  dwarfs program.AppImage mnt -o offset=auto
  dwarfs data.dwarfs mnt -f -o debuglevel=verbose

Write a comma in a value as '\\,'. The driver accepts options for /etc/fstab
and for other drivers, and obsolete options, without effect; see --man.
The mount is read-only without -o rw=DIR. Unmount with 'umount MOUNTPOINT',
'fusermount3 -u MOUNTPOINT', or by SIGINT or SIGTERM.";

/// Mounts as requested. Returns the exit code.
pub(super) fn start(arguments: &Arguments) -> Result<u8> {
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
            Outcome::Signal(signal @ (SIGINT | SIGTERM | SIGHUP)) => {
                Err(ToolError::new("interrupted").code(code_of(signal)))
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

/// What means several images in the place of the image is shown as with `-o dir`.
fn with_directory(arguments: &Arguments) -> Arguments {
    let mut arguments = arguments.clone();
    let one = arguments.several.is_none() && arguments.mountpoint.is_some();
    if one && several::is_many(&arguments.image) {
        let image = std::mem::take(&mut arguments.image);
        arguments.several = Some(vec![image.into_os_string()]);
    }
    arguments
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
    // Not earlier: a medium that does not answer must not hold the process of the user.
    let arguments = &with_directory(arguments);
    let level = super::level(arguments, &settings, report.is_none());
    let logger = logging::start(&settings.log, level)?;
    let outcome = mount_and_serve(arguments, settings, report, inherited, &logger);
    if let Err(error) = &outcome {
        // Standard error has the message already, or is closed.
        logger.record(error);
    }
    outcome
}

/// What is mounted.
#[derive(Debug)]
enum Content {
    One(Image),
    Several(ImageSet),
}

/// Opens the image, or says how several ones are opened. These have a control socket.
fn content(
    arguments: &Arguments,
    opening: Opening,
    settings: &Settings,
    logger: &Logger,
) -> Result<(Content, Option<(Control, Opener)>)> {
    let is_union = settings.mount.union.is_some();
    let Some(list) = &arguments.several else {
        if is_union {
            let error = ToolError::new("union needs several images");
            return Err(error.hint("dwarfs -o union,dir=MOUNTPOINT UPPER... LOWER"));
        }
        let image = opening.image(&arguments.image, logger)?;
        return Ok((Content::One(image), None));
    };
    several::check(settings)?;
    let given = several::expand(list)?;
    let opener = Opener::new(opening, is_union, logger);
    // A union opens all of its layers.
    if !is_union {
        opener.need_one(&given)?;
    }
    let set = opener.set(given);
    // The layers of a union stay as they are.
    if arguments.fake || is_union {
        return Ok((Content::Several(set), None));
    }
    let control = match Control::bind(settings.control.as_deref()) {
        Ok(control) => Some((control, opener)),
        Err(error) => match &settings.control {
            Some(path) => {
                let failed = ToolError::new("cannot make the control socket").path(path);
                return Err(failed.io(&error));
            }
            None => {
                no_control(&error, logger);
                None
            }
        },
    };
    Ok((Content::Several(set), control))
}

fn no_control(error: &io::Error, logger: &Logger) {
    logger.warn(format_args!("no control socket: {error}"));
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
    if settings.writable && settings.layer.is_none() && !arguments.helper {
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
    let measurements = Measurements::new(&settings)?;
    let cache = settings.disk_cache.open(logger)?;
    let opening = Opening::new(&settings, cache.as_ref(), &measurements);
    let (content, control) = content(arguments, opening, &settings, logger)?;
    let hints = match &content {
        Content::One(image) => HintsOfMount::begin(&settings, image)?,
        Content::Several(_) => HintsOfMount::default(),
    };
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
    mount_options.push &= !hints.records();
    let follows = mount_options.follow_newest;
    if mount_options.access == Access::OwnerAndRoot && rustix::process::geteuid().is_root() {
        // The same, and the kernel itself keeps others out.
        mount_options.access = Access::Owner;
    }
    if !settings.named && arguments.several.is_none() {
        // The image was opened a moment ago: the path of a file resolves unless it was just removed.
        let resolved = match FileLocation::of(&arguments.image) {
            Ok(FileLocation::File(path)) => path.canonicalize().ok(),
            _ => None,
        };
        mount_options.source = resolved
            .unwrap_or_else(|| shown_name(&arguments.image).into_owned())
            .into_os_string();
    }
    let mut temporary = None;
    if let Some(choice) = &settings.layer {
        let (layer, made) = layer::prepare(choice, guard.as_mut())?;
        mount_options.layer = Some(layer);
        temporary = made;
    }
    mount_options.control = control
        .as_ref()
        .map(|(control, _)| control.path().to_owned());
    let image = match &content {
        Content::One(image) => Some(image.clone()),
        Content::Several(_) => None,
    };
    let options = &mount_options;
    let (mounted, _made) = match target {
        MountPoint::Device(device, name) => {
            if options.idle.is_some() {
                logger.warn("timeout has no effect: the caller has to unmount what it mounted");
            }
            let mounted = match content {
                Content::One(image) => serve_device(image, device, &name, options),
                Content::Several(set) => serve_device_images(set, device, &name, options),
            };
            (mounted, None)
        }
        target => {
            let (path, guard) = (target.path(), guard.as_mut());
            let mounted = match content {
                Content::One(image) => mount_guarded(image, path, options, guard),
                Content::Several(set) => mount_images(set, path, options, guard),
            };
            (mounted, Some(target))
        }
    };
    let mounted = mounted.map_err(|error| {
        let code = match error {
            FuseError::Device(_) | FuseError::Session(_) => EXIT_SETUP,
            FuseError::AnalysisFile { .. }
            | FuseError::Image(_)
            | FuseError::Layer(_)
            | FuseError::Name(_)
            | FuseError::Changes { .. } => EXIT_FAILURE,
            _ => EXIT_MOUNT,
        };
        ToolError::new(error.to_string()).code(code)
    })?;
    if let Some(guard) = &mut guard
        && let Err(error) = mounted.watch_by(guard)
    {
        logger.warn(format_args!("no guard against being killed: {error}"));
    }
    if let Some(image) = image {
        let preload = hints.preload.iter().cloned().chain(settings.preload);
        load_behind(&image, preload, &settings.prefetch, logger);
    }
    let _control = control.and_then(|(control, opener)| {
        let served = control.serve(mounted.images(), opener, logger);
        served.map_err(|error| no_control(&error, logger)).ok()
    });
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
    let end = serve(mounted, &signals, follows, &hints, cache.as_ref(), logger);
    hints.write(logger);
    let status = end.as_ref().map_or_else(ToolError::exit_code, |_| EXIT_OK);
    logger.verbose(format_args!("FUSE loop exited with status: {status}"));
    report_life(&observer.statistics(), observer.perfmon_summary(), logger);
    finish_cache(cache.as_ref(), logger);
    measurements.write_trace(logger);
    match end? {
        End::Unmounted => logger.info("file system unmounted"),
        End::Detached => logger.warn("the file system is in use: detached"),
        End::Left => logger.warn("the caller has to unmount what it mounted"),
    }
    if let Some(temporary) = temporary {
        temporary.remove(logger);
    }
    if let Some(guard) = guard {
        guard.dismiss();
    }
    Ok(EXIT_OK)
}
