//! From the mount to its end: signals, statistics, unmounting.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use redwarfs_fuse::{IdleWatch, Mounted, Move, Mover, Unmounted};
use redwarfs_io::DiskCache;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::exit::{EXIT_LOOP, EXIT_SETUP};
use super::hints::HintsOfMount;
use super::report_times;
use crate::common::cache::cache_use;
use crate::common::error::{Result, ToolError};
use crate::common::{LogLevel, Logger};

/// How long the driver waits for the kernel to end the connection after an unmount.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often the driver looks for new snapshots.
const LOOK: Duration = Duration::from_secs(1);

/// The requests of signals.
#[derive(Debug)]
pub(super) struct Signals {
    /// Becomes readable when the process is asked to end.
    stop: UnixStream,
    /// Becomes readable when statistics are requested.
    report: UnixStream,
    /// Becomes readable when the mount is to move to the newest snapshot.
    advance: UnixStream,
}

impl Signals {
    /// Takes over the signals. Before, they end the process at once, even while it waits for a medium
    /// that does not answer. With a handler, the process would wait for the medium.
    pub(super) fn new() -> io::Result<Self> {
        let (stop, write) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        let (report, write) = UnixStream::pair()?;
        report.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGUSR1, write)?;
        let (advance, write) = UnixStream::pair()?;
        advance.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGUSR2, write)?;
        Ok(Self {
            stop,
            report,
            advance,
        })
    }
}

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Unmounted,
    /// It left the tree but programs still use it.
    Detached,
    /// The caller that made the mount still has it, without a server.
    Left,
}

/// A thread that moves the mount to the newest snapshot: moving waits for requests, which may wait for a medium.
fn follow(mover: Mover, always: bool, logger: &Logger) -> io::Result<SyncSender<()>> {
    // Signals that come while it moves are one.
    let (ask, asked) = sync_channel(1);
    let logger = logger.clone();
    std::thread::Builder::new()
        .name(String::from("newest"))
        .spawn(move || {
            // A cause that stays is said once.
            let mut said = None;
            loop {
                let by_hand = match always {
                    true => asked.recv_timeout(LOOK),
                    false => asked.recv().map_err(RecvTimeoutError::from),
                };
                let by_hand = match by_hand {
                    Ok(()) => true,
                    Err(RecvTimeoutError::Timeout) => false,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let moved = mover.move_on(by_hand);
                match &moved {
                    Ok(Move::To { name, number }) => logger.always(
                        LogLevel::Info,
                        format_args!("moved to snapshot {number} '{name}'"),
                    ),
                    Ok(_) if by_hand => {
                        logger.always(LogLevel::Info, "this is the newest snapshot");
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let text = format!("cannot move to the newest snapshot: {error}");
                        if by_hand || said.as_ref() != Some(&text) {
                            logger.error(&*text);
                            said = Some(text);
                        }
                    }
                }
                if matches!(moved, Ok(Move::To { .. })) {
                    said = None;
                }
            }
        })?;
    Ok(ask)
}

/// Waits for the end of the mount, or for a signal, which ends it. With `follows`, the mount moves to each new snapshot.
pub(super) fn serve(
    mounted: Mounted,
    signals: &Signals,
    follows: bool,
    hints: &HintsOfMount,
    cache: Option<&DiskCache>,
    logger: &Logger,
) -> Result<End> {
    let setup = |error: &io::Error| {
        ToolError::new("cannot watch the mount")
            .io(error)
            .code(EXIT_SETUP)
    };
    let unmounter = mounted.unmounter();
    let mut idle = mounted.idle_watch();
    let observer = mounted.observer();
    let advance = follow(mounted.mover(), follows, logger).map_err(|error| setup(&error))?;
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
    let over = loop {
        let period = idle.as_ref().map(IdleWatch::period);
        match wait(&ended, Some(signals), period).map_err(|error| setup(&error))? {
            Event::Nothing => {
                if idle.as_mut().is_some_and(IdleWatch::is_over) {
                    match unmounter.unmount_unused() {
                        Ok(true) => {
                            logger.info("unmounted, because nobody has used the file system");
                            // If the file system is also in use elsewhere, as a layer of another one,
                            // it stays there.
                            idle = None;
                        }
                        Ok(false) => logger.verbose("nobody asks, but something is in use"),
                        Err(error) => logger.verbose(format_args!("cannot unmount: {error}")),
                    }
                }
            }
            Event::Report => {
                drain(&signals.report);
                let statistics = observer.statistics();
                let lines = statistics.lines();
                lines.for_each(|line| logger.always(LogLevel::Info, line));
                if let Some(cache) = cache {
                    logger.always(LogLevel::Info, cache_use(cache));
                }
                report_times(observer.perfmon_summary(), logger);
                hints.write(logger);
            }
            Event::Advance => {
                drain(&signals.advance);
                // If the channel is full, the thread will look in any case.
                let _ = advance.try_send(());
            }
            event => break event == Event::Ended,
        }
    };
    if !over {
        logger.verbose("stopping");
        match unmounter.unmount() {
            Ok(Unmounted::Gone) => {
                let event = wait(&ended, None, Some(FAREWELL)).map_err(|error| setup(&error))?;
                if event != Event::Ended {
                    return Ok(End::Unmounted);
                }
            }
            Ok(Unmounted::Detached) => return Ok(End::Detached),
            Ok(Unmounted::NotOurs) => return Ok(End::Left),
            Err(error) => return Err(ToolError::new("cannot unmount").path(&point).io(&error)),
        }
    }
    match session.join() {
        Ok(Ok(())) => Ok(End::Unmounted),
        Ok(Err(error)) => Err(ToolError::new(error.to_string()).code(EXIT_LOOP)),
        Err(_) => Err(ToolError::new("FUSE session failed").code(EXIT_LOOP)),
    }
}

/// Takes the bytes of the signals that are being handled.
fn drain(mut pipe: &UnixStream) {
    let mut buffer = [0; 64];
    while pipe.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Ended,
    Stop,
    Report,
    Advance,
    /// Nothing happened in time.
    Nothing,
}

/// Waits until `ended` closes, a signal arrives or the time is over.
fn wait(
    ended: &UnixStream,
    signals: Option<&Signals>,
    patience: Option<Duration>,
) -> io::Result<Event> {
    let timeout = patience.map(|patience| Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    });
    loop {
        let mut watched = vec![PollFd::new(ended, PollFlags::IN)];
        for pipe in signals
            .iter()
            .flat_map(|s| [&s.stop, &s.report, &s.advance])
        {
            watched.push(PollFd::new(pipe, PollFlags::IN));
        }
        match poll(&mut watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                let events = [Event::Ended, Event::Stop, Event::Report, Event::Advance];
                let found = watched
                    .iter()
                    .zip(events)
                    .find(|(fd, _)| !fd.revents().is_empty());
                return Ok(found.map_or(Event::Nothing, |(_, event)| event));
            }
        }
    }
}
