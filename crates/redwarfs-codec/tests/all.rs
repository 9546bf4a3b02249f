//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

mod choices;
mod flac;
mod formats;
mod golden;
mod payloads;
mod properties;
mod ricepp;
mod spec;
