//! libarchive, if the system has it.

#[cfg(not(all(unix, feature = "libarchive")))]
mod absent;
mod engine;
mod plan;
mod process;
#[cfg(all(unix, feature = "libarchive"))]
mod sys;

#[cfg(not(all(unix, feature = "libarchive")))]
use absent as sys;

pub(crate) use engine::{Answer, Description, Engine, Fatal};
pub(crate) use plan::Plan;
pub use process::{ArchiveProcess, serve};
pub(crate) use sys::{Setup, version};
