//! Bindings to the operating system: locks memory, gives memory back, finds swapped pages, binds threads
//! to CPUs.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

use crate::options::CpuSet;

/// Binds the calling thread, if wanted; a failure is logged, since the thread can run anyway.
pub(crate) fn pin(affinity: Option<CpuSet>) {
    if let Some(cpus) = affinity
        && let Err(e) = cpus.pin_current_thread()
    {
        tracing::warn!("cannot bind a thread to processors {cpus:?}: {e}");
    }
}
