//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

mod all_generations;
mod append;
mod append_snapshots;
mod archive;
mod archive_states;
mod budget;
mod golden;
mod nights;
mod punch;
