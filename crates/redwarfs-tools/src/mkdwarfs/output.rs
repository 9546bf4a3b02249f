//! Where an image goes: a file that appears when it is complete, or standard output.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use redwarfs_io::place::FileLocation;
use redwarfs_io::{AppendWriter, AtomicFile, Checkpoint, Medium, Overwrite};
use redwarfs_recovery::Protection;
use redwarfs_writer::DirectorySource;

use super::args::{Args, TOOL};
use super::checkpoint;
use super::display::Report;
use super::header;
use crate::common::env;
use crate::common::error::{cause_at, io_cause};
use crate::common::os::{raw_stdout, stdout_is_closed};
use crate::common::output::{STDOUT_IS_CLOSED, create_derived};
use crate::common::progress::{Display, ProgressMode};
use crate::common::{Logger, Result, ToolError};

/// What fails when there is no image.
const CANNOT_WRITE: &str = "cannot write image";

/// Size of writes to the output.
const WRITE_BUFFER: usize = 1 << 20;

/// How often a request to stop is looked for, and how long the work may take to notice it.
const STOP_POLL: Duration = Duration::from_millis(50);
const STOP_GRACE: Duration = Duration::from_millis(500);

/// How long the upload of an object, whose parts must be removed, may take to notice it.
const UPLOAD_GRACE: Duration = Duration::from_secs(3);

/// Runs `work`, which writes an image to `target` after `start` bytes of other data. Shows the progress
/// meanwhile, and completes the output. Nothing is left of an image that `work` could not finish or
/// that `stop` ended.
///
/// # Errors
/// Those of `work` and of the output.
pub(super) fn produce<T>(
    target: Target<'_>,
    start: u64,
    report: &Arc<Report>,
    mode: ProgressMode,
    stop: &AtomicBool,
    work: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    let display = Display::start(report, report.logger().console(), mode)
        .map_err(|e| ToolError::new("cannot show progress").cause(io_cause(&e)))?;
    let display = Mutex::new(display);
    let uploads = target.uploads();
    let checkpoint = target.checkpoint.clone();
    let give_up = || {
        if let Some(checkpoint) = &checkpoint {
            checkpoint::give_up(checkpoint, report.logger());
        }
    };
    let target = Mutex::new(Some(target.heard_by(report.logger())));
    let made = std::thread::scope(|scope| {
        let (running, ended) = channel();
        let (target, display) = (&target, &display);
        let give_up = &give_up;
        scope.spawn(move || give_up_late(stop, &ended, target, uploads, display, give_up));
        let made = work(&mut SharedTarget(target));
        drop(running);
        made
    });
    let made = match made {
        // The last moment at which a request to stop can still be met.
        _ if stop.load(Ordering::Relaxed) => Err(interrupted()),
        other => other,
    };
    let target = target.into_inner().unwrap_or_else(PoisonError::into_inner);
    let commit = |target: Target<'_>| target.commit(start);
    let finished = made.and_then(|made| target.map_or(Ok(()), commit).map(|()| made));
    display
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .finish();
    if finished.is_err() {
        give_up();
    }
    finished
}

/// Ends the process if a build does not notice a request to stop soon: a strong compressor
/// works on one block for minutes. `ended` tells when the build is over. `last` is done before the process ends.
fn give_up_late(
    stop: &AtomicBool,
    ended: &Receiver<()>,
    target: &Mutex<Option<Target<'_>>>,
    uploads: bool,
    display: &Mutex<Display>,
    last: &(impl Fn() + Sync),
) {
    let over = |time| ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    while !stop.load(Ordering::Relaxed) {
        if over(STOP_POLL) {
            return;
        }
    }
    if over(STOP_GRACE) {
        return;
    }
    // If the output is stuck in a write it stays locked; then it is a pipe or a device, and
    // there is nothing to remove.
    let late = Instant::now()
        + if uploads {
            UPLOAD_GRACE
        } else {
            Duration::ZERO
        };
    let taken = loop {
        match target.try_lock() {
            Ok(mut target) => break target.take(),
            Err(TryLockError::WouldBlock) if Instant::now() < late => {
                std::thread::sleep(STOP_POLL);
            }
            Err(_) => break None,
        }
    };
    if let Some(target) = taken {
        target.give_up();
    }
    if let Ok(mut display) = display.lock() {
        display.finish();
    }
    last();
    let code = interrupted().report(TOOL);
    std::process::exit(i32::from(code));
}

pub(super) fn interrupted() -> ToolError {
    ToolError::new("interrupted, no image was written")
}

/// Where the image goes.
pub(super) struct Target<'a> {
    path: &'a Path,
    /// Whoever may read the file may execute it.
    executable: bool,
    /// Whether an image must be found in the file.
    image: bool,
    recovery: Option<Recovery<'a>>,
    /// Which gives way if the disk is full.
    checkpoint: Option<Checkpoint>,
    logger: Option<Logger>,
    out: Output,
}

/// The recovery data that the image gets.
struct Recovery<'a> {
    protection: Protection,
    stop: &'a AtomicBool,
}

enum Output {
    File(Box<BufWriter<AtomicFile>>),
    Append(Box<BufWriter<AppendWriter>>),
    Stdout(BufWriter<File>),
    /// An object of a server, which appears when it is complete.
    #[cfg(feature = "remote")]
    Object(Box<redwarfs_remote::Upload>),
}

#[cfg(feature = "remote")]
fn upload(url: &str, force: bool, stop: &Arc<AtomicBool>) -> io::Result<Output> {
    let upload = redwarfs_remote::Upload::create(url, force, Arc::clone(stop))?;
    Ok(Output::Object(Box::new(upload)))
}

#[cfg(not(feature = "remote"))]
fn upload(_url: &str, _force: bool, _stop: &Arc<AtomicBool>) -> io::Result<Output> {
    Err(crate::common::remote::unsupported())
}

impl<'a> Target<'a> {
    /// Starts the output, which is made from the images `from`. Everything that could prevent its completion is checked
    /// here.
    pub(super) fn open(
        path: &'a Path,
        force: bool,
        from: &[&Path],
        stop: &Arc<AtomicBool>,
        logger: &Logger,
    ) -> Result<Self> {
        let out = if path == Path::new("-") {
            if stdout_is_closed() {
                return Err(write_error(path, &io::Error::other(STDOUT_IS_CLOSED)));
            }
            if io::stdout().is_terminal() {
                return Err(ToolError::new("refusing to write an image to a terminal")
                    .hint("redirect standard output, or name a file with -o"));
            }
            // Not `io::stdout()`: that one looks for line ends in everything.
            let stdout = raw_stdout().map_err(|e| write_error(path, &e))?;
            Output::Stdout(BufWriter::with_capacity(WRITE_BUFFER, stdout))
        } else {
            Self::named(path, force, from, stop, logger).map_err(|e| {
                match stop.load(Ordering::Relaxed) {
                    true => interrupted(),
                    false => write_error(path, &e),
                }
            })?
        };
        Ok(Self {
            path,
            executable: false,
            image: true,
            recovery: None,
            checkpoint: None,
            logger: None,
            out,
        })
    }

    /// A file, or an object of a server.
    fn named(
        path: &Path,
        force: bool,
        from: &[&Path],
        stop: &Arc<AtomicBool>,
        logger: &Logger,
    ) -> io::Result<Output> {
        match FileLocation::of(path)? {
            FileLocation::Remote(url) => upload(url, force, stop),
            FileLocation::File(path) => {
                let overwrite = if force { Overwrite::Yes } else { Overwrite::No };
                let file = create_derived(&path, overwrite, from, logger)?;
                let out = BufWriter::with_capacity(WRITE_BUFFER, file);
                Ok(Output::File(Box::new(out)))
            }
        }
    }

    /// Writes behind the image in its file.
    pub(super) fn append(path: &'a Path, writer: AppendWriter) -> Self {
        let out = BufWriter::with_capacity(WRITE_BUFFER, writer);
        Self {
            path,
            executable: false,
            image: false,
            recovery: None,
            checkpoint: None,
            logger: None,
            out: Output::Append(Box::new(out)),
        }
    }

    /// Whether it is an object of a server.
    fn uploads(&self) -> bool {
        #[cfg(feature = "remote")]
        return matches!(self.out, Output::Object(_));
        #[cfg(not(feature = "remote"))]
        false
    }

    /// The file is not an image by itself.
    pub(super) fn without_image(self) -> Self {
        Self {
            image: false,
            ..self
        }
    }

    /// With the recovery data that the options ask for.
    pub(super) fn protected(self, args: &Args, stop: &'a AtomicBool) -> Result<Self> {
        let Some(amount) = args.recovery else {
            return Ok(self);
        };
        let unfit = |why| Err(ToolError::new(format!("--recovery needs {why}")));
        if args.no_section_index {
            return unfit("a section index");
        }
        match &self.out {
            Output::File(file) if file.get_ref().written().is_ok_and(|file| file.is_some()) => {}
            Output::Append(_) => {}
            _ => return unfit("an output that is a regular file"),
        }
        let threads = args
            .num_workers
            .map_or_else(env::concurrency, |n| n as usize);
        let protection = amount.protection(threads);
        Ok(Self {
            recovery: Some(Recovery { protection, stop }),
            ..self
        })
    }

    /// With the checkpoint of the build.
    pub(super) fn beside(self, checkpoint: Option<&Checkpoint>) -> Self {
        Self {
            checkpoint: checkpoint.cloned(),
            ..self
        }
    }

    fn heard_by(self, logger: &Logger) -> Self {
        Self {
            logger: Some(logger.clone()),
            ..self
        }
    }

    /// Whether there may be room on the disk now, where there was none.
    fn makes_room(&self) -> bool {
        // Nobody knows the disk behind standard output.
        if matches!(self.out, Output::Stdout(_)) {
            return false;
        }
        let (Some(checkpoint), Some(logger)) = (&self.checkpoint, &self.logger) else {
            return false;
        };
        checkpoint::give_way(checkpoint, self.path, logger)
    }

    /// Whether the file gets permission to be executed when it is complete.
    pub(super) fn executable(self, executable: bool) -> Self {
        Self { executable, ..self }
    }

    /// Keeps the file that is being written out of the image, should it have a name already.
    pub(super) fn leave_out(&self, source: DirectorySource) -> DirectorySource {
        let Output::File(out) = &self.out else {
            return source;
        };
        source.skip_file(out.get_ref())
    }

    /// Removes the written part. Buffered bytes are dropped, because writing them to a pipe could block
    /// forever.
    fn give_up(self) {
        match self.out {
            Output::File(out) => drop(out.into_parts()),
            Output::Append(out) => drop(out.into_parts()),
            Output::Stdout(out) => drop(out.into_parts()),
            #[cfg(feature = "remote")]
            Output::Object(upload) => drop(upload),
        }
    }

    /// Completes the output, if the image is found in it at `start`.
    fn commit(mut self, start: u64) -> Result<()> {
        self.flush().map_err(|e| write_error(self.path, &e))?;
        let finish = |file: AtomicFile| {
            if self.image
                && let Some(written) = file.written()?
            {
                header::check_found(&written, start)?;
            }
            if let (Some(recovery), Some(image)) = (&self.recovery, file.unfinished()?) {
                recovery.add(image, start)?;
            }
            if self.executable {
                file.allow_execution()?;
            }
            file.commit()
        };
        let done = match self.out {
            Output::File(out) => out
                .into_inner()
                .map_err(io::IntoInnerError::into_error)
                .and_then(finish),
            Output::Append(out) => out
                .into_inner()
                .map_err(io::IntoInnerError::into_error)
                .and_then(|writer| match &self.recovery {
                    None => writer.commit(),
                    Some(recovery) => recovery.add_to(writer, start),
                }),
            Output::Stdout(mut out) => out.flush(),
            #[cfg(feature = "remote")]
            Output::Object(upload) => upload.commit(),
        };
        done.map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => interrupted(),
            _ => write_error(self.path, &e),
        })
    }
}

impl Recovery<'_> {
    fn add(&self, image: impl Medium + 'static, start: u64) -> io::Result<()> {
        let added = redwarfs_recovery::add(image, start, &self.protection, &|_| {}, self.stop);
        added.map(drop).map_err(recovery_error)
    }

    /// Completes an append with recovery data for it: the image has both, or neither.
    fn add_to(&self, writer: AppendWriter, start: u64) -> io::Result<()> {
        let (append, end) = writer.into_parts();
        let (protection, stop) = (&self.protection, self.stop);
        let added = redwarfs_recovery::add_to_append(append, end, start, protection, &|_| {}, stop);
        added.map(drop).map_err(recovery_error)
    }
}

fn recovery_error(error: redwarfs_recovery::Error) -> io::Error {
    match error {
        redwarfs_recovery::Error::Io(e) if checkpoint::is_full(&e) => {
            let text = format!("recovery data: {}", io_cause(&e));
            io::Error::new(io::ErrorKind::StorageFull, text)
        }
        redwarfs_recovery::Error::Io(e) => e,
        redwarfs_recovery::Error::Interrupted => io::ErrorKind::Interrupted.into(),
        e => io::Error::other(format!("recovery data: {e}")),
    }
}

/// The output as the build sees it, until it is taken away.
struct SharedTarget<'a, 'b>(&'a Mutex<Option<Target<'b>>>);

impl<'b> SharedTarget<'_, 'b> {
    fn with<T>(&self, act: impl FnOnce(&mut Target<'b>) -> io::Result<T>) -> io::Result<T> {
        let mut target = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Not `Interrupted`: writers try again then.
        let gone = || io::Error::other("the output was given up");
        act(target.as_mut().ok_or_else(gone)?)
    }
}

impl Write for SharedTarget<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.with(|target| target.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Target::flush)
    }
}

impl Write for Target<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.out.write(buf) {
            // What is buffered stays, and nothing of `buf` was taken.
            Err(e) if checkpoint::is_full(&e) && self.makes_room() => self.out.write(buf),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.out.flush() {
            Err(e) if checkpoint::is_full(&e) && self.makes_room() => self.out.flush(),
            other => other,
        }
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(out) => out.write(buf),
            Self::Append(out) => out.write(buf),
            Self::Stdout(out) => out.write(buf),
            #[cfg(feature = "remote")]
            Self::Object(out) => out.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(out) => out.flush(),
            Self::Append(out) => out.flush(),
            Self::Stdout(out) => out.flush(),
            #[cfg(feature = "remote")]
            Self::Object(out) => out.flush(),
        }
    }
}

pub(super) fn write_error(path: &Path, error: &io::Error) -> ToolError {
    let shown = if path == Path::new("-") {
        Path::new("standard output")
    } else {
        path
    };
    let message = ToolError::new(CANNOT_WRITE).path(shown);
    if error.kind() == io::ErrorKind::AlreadyExists {
        return message.cause("file exists, use --force to overwrite");
    }
    message.cause(cause_at(path, error))
}
