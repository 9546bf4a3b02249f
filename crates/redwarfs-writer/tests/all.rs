//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

mod categories;
mod checkpoint;
mod equal_files;
mod families;
mod hook;
mod host_xattrs;
mod inputs;
mod roundtrip;
mod sources;
mod spill;
mod streams;
mod xattrs;
