//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

mod campaign;
mod copy;
mod hostile;
mod patch;
mod repair;
mod sections;
mod sidecar;
