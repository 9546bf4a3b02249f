//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

mod golden_metadata;
mod members;
mod metadata_properties;
mod xattrs;
