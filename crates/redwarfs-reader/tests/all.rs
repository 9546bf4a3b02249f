//! The tests of the public interface, as one program: each program more takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

mod bombs;
mod by_index;
mod every_bit;
mod fragmented;
mod golden;
mod hints;
mod hostile;
mod lazy;
mod mutations;
mod plain;
mod ranges;
mod services;
mod streams;
