//! Times the operations of a reader: how many, how long, and optionally when.
//!
//! A module asks the [`PerfMonitor`] once for a [`Timer`] and starts it for each operation. The guard
//! that [`Timer::start`] returns stops the timer on drop. The timer of a component that is not monitored
//! is empty, and starting it is one test of a pointer.
//!
//! # Cost
//! Off: starting and stopping an empty timer adds 10 instructions to a function (callgrind,
//! `start_with` and drop, optimised build). On: two readings of the clock and one short lock per
//! operation, below half a microsecond. Each timer that was used holds at most 8 KiB of single
//! durations and, from the 1025th on, 20 KiB of histogram. A trace holds up to [`TRACE_LIMIT`]
//! operations of 136 bytes (34 MiB), and three times that while it is written.

mod component;
mod latency;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use component::lock;
pub use component::{Component, UnknownComponent};
use latency::Latency;
pub use trace::TRACE_LIMIT;
use trace::{Context, Sample, Trace};

/// Collects timings. Clones share what they collect; the default is off.
#[derive(Debug, Clone, Default)]
pub struct PerfMonitor(Option<Arc<Collected>>);

#[derive(Debug)]
struct Collected {
    components: Vec<Component>,
    start: Instant,
    timers: Mutex<BTreeMap<(&'static str, &'static str), Arc<Recorder>>>,
    trace: Option<Trace>,
}

/// What one timer has measured.
#[derive(Debug)]
struct Recorder {
    component: Component,
    name: &'static str,
    latency: Mutex<Latency>,
    shared: std::sync::Weak<Collected>,
    start: Instant,
    tracing: bool,
}

impl PartialEq for PerfMonitor {
    /// Whether both are off or collect in the same place.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl PerfMonitor {
    /// A monitor that collects nothing and costs nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Monitors the given components; `trace` also keeps when each operation began and ended.
    /// Off if there are no components.
    #[must_use]
    pub fn new(components: &[Component], trace: bool) -> Self {
        if components.is_empty() {
            return Self::off();
        }
        Self(Some(Arc::new(Collected {
            components: components.to_vec(),
            start: Instant::now(),
            timers: Mutex::default(),
            trace: trace.then(Trace::default),
        })))
    }

    /// Whether anything is monitored.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The timer for one kind of operation. Takes a lock: call it once per kind, not for each
    /// operation. Timers of the same name collect together.
    #[must_use]
    pub fn timer(&self, component: Component, name: &'static str) -> Timer {
        let Some(shared) = &self.0 else {
            return Timer(None);
        };
        if !shared.components.contains(&component) {
            return Timer(None);
        }
        let mut timers = lock(&shared.timers);
        let recorder = timers.entry((component.name(), name)).or_insert_with(|| {
            Arc::new(Recorder {
                component,
                name,
                latency: Mutex::default(),
                shared: Arc::downgrade(shared),
                start: shared.start,
                tracing: shared.trace.is_some(),
            })
        });
        Timer(Some(Arc::clone(recorder)))
    }

    /// The timings as text: for each kind of operation that happened, number, total, average and
    /// quantiles; grouped by component, and in a component the largest total first. `None` if
    /// off.
    ///
    /// Quantiles are exact up to 1024 operations; beyond, they are off by less than 1 %.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let shared = self.0.as_ref()?;
        let timers: Vec<Arc<Recorder>> = lock(&shared.timers).values().cloned().collect();
        let mut found: Vec<(&Recorder, Latency)> = timers
            .iter()
            .map(|recorder| (&**recorder, lock(&recorder.latency).clone()))
            .filter(|(_, latency)| latency.count() > 0)
            .collect();
        found.sort_by(|(a, x), (b, y)| {
            a.component
                .name()
                .cmp(b.component.name())
                .then(y.total().cmp(&x.total()))
                .then(a.name.cmp(b.name))
        });
        let mut text = String::new();
        for (recorder, latency) in found {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "[{}.{}]", recorder.component, recorder.name);
            let _ = writeln!(text, "      samples: {}", latency.count());
            let _ = writeln!(text, "      overall: {}", short(latency.total()));
            let _ = writeln!(text, "  avg latency: {}", short(latency.average()));
            let quantiles = latency.quantiles(&[50, 90, 99]);
            for (percent, value) in [50, 90, 99].into_iter().zip(quantiles) {
                let _ = writeln!(text, "  p{percent} latency: {}", short(value));
            }
            text.push('\n');
        }
        Some(text)
    }

    /// Writes the trace as a JSON array in the Chrome trace event format; an empty array if
    /// there is none. Begin and end events are in the order of their times. If operations were
    /// left out because there were more than [`TRACE_LIMIT`], the last event says how many.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_trace(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self.0.as_ref().and_then(|shared| shared.trace.as_ref()) {
            Some(trace) => trace.write(out),
            None => out.write_all(b"[\n]\n"),
        }
    }
}

/// Times one kind of operation. The default does nothing.
#[derive(Debug, Clone, Default)]
pub struct Timer(Option<Arc<Recorder>>);

impl Timer {
    /// Starts an operation, which ends when the result is dropped.
    #[inline]
    pub fn start(&self) -> Running<'_> {
        Running(self.0.as_ref().map(|recorder| recorder.begin(&[])))
    }

    /// Starts an operation about certain numbers, which the trace shows. The first three are
    /// kept.
    #[inline]
    pub fn start_with(&self, context: &[(&'static str, u64)]) -> Running<'_> {
        Running(self.0.as_ref().map(|recorder| recorder.begin(context)))
    }
}

/// An operation that is being timed.
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct Running<'a>(Option<Begun<'a>>);

impl Running<'_> {
    /// Takes the operation back: it leaves no sample.
    #[inline]
    pub fn discard(mut self) {
        self.0 = None;
    }
}

#[derive(Debug)]
struct Begun<'a> {
    recorder: &'a Recorder,
    at: Instant,
    context: Context,
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            begun.end();
        }
    }
}

impl Recorder {
    #[cold]
    fn begin(&self, context: &[(&'static str, u64)]) -> Begun<'_> {
        let mut kept = Context::default();
        if self.tracing {
            for (to, from) in kept.iter_mut().zip(context) {
                *to = Some(*from);
            }
        }
        Begun {
            recorder: self,
            at: Instant::now(),
            context: kept,
        }
    }
}

impl Begun<'_> {
    #[cold]
    fn end(self) {
        let duration = self.at.elapsed();
        let recorder = self.recorder;
        lock(&recorder.latency).add(duration);
        if recorder.tracing
            && let Some(shared) = recorder.shared.upgrade()
            && let Some(trace) = &shared.trace
        {
            trace.add(Sample {
                component: recorder.component,
                name: recorder.name,
                begin: self.at.saturating_duration_since(recorder.start),
                duration,
                context: self.context,
            });
        }
    }
}

/// A duration with 4 significant digits, cut: `3.967us`, `137.7us`, `0s`. Minutes and more stay
/// seconds.
fn short(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let (unit, name) = match ns {
        0 => return "0s".to_owned(),
        1_000_000_000.. => (1_000_000_000, "s"),
        1_000_000.. => (1_000_000, "ms"),
        1_000.. => (1_000, "us"),
        _ => (1, "ns"),
    };
    let whole = (ns / unit).to_string();
    let fraction = format!("{:0width$}", ns % unit, width = unit.ilog10() as usize);
    let places = 4_usize.saturating_sub(whole.len());
    let kept = fraction.get(..places).unwrap_or(&fraction);
    let kept = if unit == 1 {
        ""
    } else {
        kept.trim_end_matches('0')
    };
    if kept.is_empty() {
        format!("{whole}{name}")
    } else {
        format!("{whole}.{kept}{name}")
    }
}

#[cfg(test)]
mod tests;
