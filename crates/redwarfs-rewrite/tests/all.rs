//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

mod changes;
mod extensions;
mod golden;
mod hidden;
mod merge;
mod merge_layers;
