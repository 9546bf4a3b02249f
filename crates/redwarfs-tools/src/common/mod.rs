//! Code that the tools share: messages, numbers, arguments, terminals, signals.
//!
//! The tools pass a [`Logger`] around instead of using global state. The exceptions are the subscriber of
//! `tracing` ([`log::install_tracing`]), and values that a process computes once, such as what [`mod@env`]
//! has read from the environment.

pub mod cache;
pub mod cli;
pub mod console;
pub mod cut;
pub mod env;
pub mod error;
pub mod glob;
pub mod json;
pub mod log;
pub mod log_level;
pub mod man;
pub mod number;
pub mod open;
pub(crate) mod os;
pub mod output;
pub mod program;
pub mod progress;
pub mod protect;
pub mod recovery;
pub mod remote;
pub mod suggest;
pub mod time;
pub mod tool;
pub mod users;
pub mod verify;
pub mod version;
pub(crate) mod xattr_list;

pub use console::Console;
pub use error::{Result, ToolError};
pub use log::Logger;
pub use log_level::LogLevel;
