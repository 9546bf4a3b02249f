//! Where the messages of a driver go, also when it is in the background.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use super::exit::TOOL;
use super::settings::LogTarget;
use crate::common::error::{Result, ToolError};
use crate::common::log::install_tracing;
use crate::common::os::open_syslog;
use crate::common::{Console, LogLevel, Logger};

/// A logger that knows whether standard error is still in use.
#[derive(Debug)]
pub(super) struct DriverLog {
    logger: Logger,
    /// Messages go to standard error, and that leads to the user.
    on_stderr: AtomicBool,
}

impl Deref for DriverLog {
    type Target = Logger;

    fn deref(&self) -> &Logger {
        &self.logger
    }
}

impl DriverLog {
    /// From here on, standard error is closed.
    #[cfg(unix)]
    pub(super) fn leave_stderr(&self) {
        self.on_stderr.store(false, Ordering::Relaxed);
    }

    /// Logs an error that is going to be shown on standard error, unless the log is there, too.
    pub(super) fn record(&self, error: &ToolError) {
        if !self.on_stderr.load(Ordering::Relaxed) {
            self.logger.error(error);
        }
    }
}

/// Opens the log and makes it the one for libraries and panics.
pub(super) fn start(target: &LogTarget, level: LogLevel) -> Result<DriverLog> {
    let context = level >= LogLevel::Debug;
    let logger = match target {
        LogTarget::Stderr => Logger::new(Console::stderr(), level, context),
        LogTarget::File(path) => Logger::file(path, level, context)
            .map_err(|error| ToolError::new("cannot open log file").path(path).io(&error))?,
        LogTarget::Syslog => Logger::syslog(open_syslog(TOOL)?, level, context),
    };
    install_tracing(&logger);
    // A panic costs one request at most; its message must not be lost in the background.
    let log = logger.clone();
    std::panic::set_hook(Box::new(move |panic| {
        log.error(format_args!("internal error: {panic}"));
    }));
    Ok(DriverLog {
        logger,
        on_stderr: AtomicBool::new(*target == LogTarget::Stderr),
    })
}
