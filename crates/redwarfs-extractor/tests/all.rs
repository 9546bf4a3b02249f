//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden;
mod hostile;
mod parts;
mod windows;
