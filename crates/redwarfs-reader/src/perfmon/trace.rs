//! Keeps operations with their times, for a timeline.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::thread::ThreadId;
use std::time::Duration;

use super::component::{Component, lock};

/// Operations that a trace keeps; later ones are only counted.
pub const TRACE_LIMIT: usize = 1 << 18;

/// Numbers that an operation is about.
pub(super) type Context = [Option<(&'static str, u64)>; 3];

/// One operation.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) component: Component,
    pub(super) name: &'static str,
    /// Since the monitor was made.
    pub(super) begin: Duration,
    pub(super) duration: Duration,
    pub(super) context: Context,
}

#[derive(Debug, Default)]
pub(super) struct Trace(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    samples: Vec<(Sample, u32)>,
    /// Small numbers for threads, from 1, in the order of their first operation.
    threads: HashMap<ThreadId, u32>,
    left_out: u64,
}

impl Trace {
    pub(super) fn add(&self, sample: Sample) {
        let mut kept = lock(&self.0);
        if kept.samples.len() >= TRACE_LIMIT {
            kept.left_out += 1;
            return;
        }
        let next = u32::try_from(kept.threads.len() + 1).unwrap_or(u32::MAX);
        let thread = *kept
            .threads
            .entry(std::thread::current().id())
            .or_insert(next);
        kept.samples.push((sample, thread));
    }

    pub(super) fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let (samples, left_out) = {
            let kept = lock(&self.0);
            (kept.samples.clone(), kept.left_out)
        };
        let pid = std::process::id();
        let mut first = true;
        out.write_all(b"[\n")?;
        for (index, is_begin) in in_order(&samples) {
            let Some((sample, thread)) = samples.get(index) else {
                continue;
            };
            if !std::mem::take(&mut first) {
                out.write_all(b",\n")?;
            }
            let name = full_name(sample);
            let component = sample.component;
            let (phase, at) = match is_begin {
                true => ("B", sample.begin),
                false => ("E", sample.begin + sample.duration),
            };
            let (us, ns) = (at.as_micros(), at.subsec_nanos() % 1000);
            write!(
                out,
                r#"{{"name": "{name}", "cat": "{component}", "ph": "{phase}", "ts": {us}.{ns:03}, "pid": {pid}, "tid": {thread}"#
            )?;
            if is_begin && sample.context.iter().any(Option::is_some) {
                let args: Vec<String> = sample
                    .context
                    .iter()
                    .flatten()
                    .map(|(key, value)| format!(r#""{key}": {value}"#))
                    .collect();
                write!(out, r#", "args": {{{}}}"#, args.join(", "))?;
            }
            out.write_all(b"}")?;
        }
        if left_out > 0 {
            let comma = if first { "" } else { ",\n" };
            write!(
                out,
                r#"{comma}{{"name": "{left_out} operations left out", "cat": "trace", "ph": "i", "s": "g", "ts": 0, "pid": {pid}, "tid": 0}}"#
            )?;
        }
        out.write_all(b"\n]\n")
    }
}

/// Begins and ends in the order of time. Operations of one thread are nested. An operation is recorded
/// when it ends, so an inner one comes before its outer one.
fn in_order(samples: &[(Sample, u32)]) -> Vec<(usize, bool)> {
    let mut events: Vec<(u128, u8, u64, usize, bool)> = Vec::with_capacity(samples.len() * 2);
    for (index, (sample, _)) in samples.iter().enumerate() {
        let begin = sample.begin.as_nanos();
        let end = begin + sample.duration.as_nanos();
        let at = index as u64;
        // At one instant: first the ends, inner ones first, then the begins, outer ones first.
        // Something that takes no time at all begins with the begins and ends after them.
        events.push((begin, 1, u64::MAX - at, index, true));
        events.push((end, if end == begin { 2 } else { 0 }, at, index, false));
    }
    events.sort_unstable();
    events
        .into_iter()
        .map(|(_, _, _, index, is_begin)| (index, is_begin))
        .collect()
}

fn full_name(sample: &Sample) -> String {
    let values: Vec<String> = sample
        .context
        .iter()
        .flatten()
        .map(|(_, value)| value.to_string())
        .collect();
    if values.is_empty() {
        return sample.name.to_owned();
    }
    format!("{}({})", sample.name, values.join(", "))
}
