//! Long work on a thread of its own, which progress functions watch and signals end.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use redwarfs::writer::{Counters, Level, Phase, Progress};

use crate::error::{internal, into_io, of_system};

/// Time between two calls of a progress function (100 ms). Signals are handled then, too.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Messages that are kept.
const MOST_MESSAGES: usize = 1000;

/// The first exception of a function that the work called.
pub(crate) type Failure = Arc<Mutex<Option<PyErr>>>;

/// Remembers an exception, unless there is one.
pub(crate) fn keep(failed: &Mutex<Option<PyErr>>, error: PyErr) {
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    failed.get_or_insert(error);
}

/// The calling thread while another one works.
pub(crate) struct Watch {
    events: Arc<Events>,
    failed: Failure,
    stop: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            events: Arc::default(),
            failed: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// What the work reports to.
    pub(crate) fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    /// Where functions of Python that the work calls leave their exception.
    pub(crate) fn failure(&self) -> Failure {
        Arc::clone(&self.failed)
    }

    /// Is set when the work must end.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Runs `work` on a thread of its own, and waits for it without the lock of the interpreter. Meanwhile
    /// it handles signals, and calls `progress`.
    ///
    /// # Errors
    /// The first exception of a function of Python, or of a signal.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        progress: Option<&Py<PyAny>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        let (done, result) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("redwarfs-work".to_owned());
        let thread = thread.spawn(move || {
            let _ = done.send(work());
        });
        let thread = thread.map_err(|e| of_system(&e))?;
        let result = Mutex::new(result);
        let result = loop {
            let waited = py.detach(|| {
                let result = result.lock().unwrap_or_else(PoisonError::into_inner);
                result.recv_timeout(PAUSE)
            });
            match waited {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(internal("the work panicked")),
            }
            let told = py.check_signals().and_then(|()| self.tell(py, progress));
            if let Err(error) = told {
                keep(&self.failed, error);
                self.stop.store(true, Ordering::Relaxed);
            }
        };
        let _ = py.detach(|| thread.join());
        let failed = self.failed.lock();
        if let Some(error) = failed.unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        Ok(result)
    }

    /// Calls a progress function, if there is one, with the name of the phase and the counters.
    pub(crate) fn tell(&self, py: Python<'_>, progress: Option<&Py<PyAny>>) -> PyResult<()> {
        let phase = self.events.phase.lock();
        let phase = *phase.unwrap_or_else(PoisonError::into_inner);
        let (Some(progress), Some(phase)) = (progress, phase) else {
            return Ok(());
        };
        let counters = PyDict::new(py);
        for (name, number) in self.events.counters.snapshot() {
            counters.set_item(name, number)?;
        }
        let phase = format!("{phase:?}").to_lowercase();
        progress.call1(py, (phase, counters))?;
        Ok(())
    }
}

/// What the work has reported so far.
#[derive(Default)]
pub(crate) struct Events {
    counters: Counters,
    phase: Mutex<Option<Phase>>,
    messages: Mutex<Messages>,
}

/// Messages of the work, a bounded number of each kind.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) warnings: Vec<String>,
    pub(crate) problems: Vec<String>,
}

impl Events {
    /// Takes the messages out.
    pub(crate) fn messages(&self) -> Messages {
        let messages = self.messages.lock();
        std::mem::take(&mut messages.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress for Events {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn phase(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
    }

    fn log(&self, level: Level, message: &str) {
        let messages = self.messages.lock();
        let mut messages = messages.unwrap_or_else(PoisonError::into_inner);
        let kept = match level {
            Level::Error => &mut messages.problems,
            Level::Warn => &mut messages.warnings,
            _ => return,
        };
        if kept.len() < MOST_MESSAGES {
            kept.push(message.to_owned());
        }
    }
}

/// Where an image goes.
pub(crate) enum Target {
    Path(PathBuf),
    Object(Py<PyAny>),
}

impl Target {
    /// A path, or an object with `write`.
    pub(crate) fn of(target: &Bound<'_, PyAny>) -> Self {
        match target.extract::<PathBuf>() {
            Ok(path) => Self::Path(path),
            Err(_) => Self::Object(target.clone().unbind()),
        }
    }
}

/// Writes to an object of Python.
pub(crate) struct Writer {
    object: Py<PyAny>,
    failed: Failure,
}

impl Writer {
    /// An exception of the object goes to `failed`.
    pub(crate) fn new(object: Py<PyAny>, failed: Failure) -> Self {
        Self { object, failed }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl Write for Writer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = Python::try_attach(|py| -> PyResult<usize> {
            let count = self
                .object
                .call_method1(py, "write", (PyBytes::new(py, buf),))?;
            // Objects that write everything may return None.
            match count.is_none(py) {
                true => Ok(buf.len()),
                false => Ok(count.extract::<usize>(py)?.min(buf.len())),
            }
        });
        match written {
            Some(Ok(count)) => Ok(count),
            Some(Err(error)) => {
                let copy = Python::try_attach(|py| error.clone_ref(py));
                if let Some(copy) = copy {
                    keep(&self.failed, copy);
                }
                Err(into_io(error))
            }
            None => Err(io::Error::other("the interpreter ends")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
