//! libarchive, if the system has it.

#[cfg(not(feature = "libarchive"))]
mod absent;
mod engine;
mod plan;
mod process;
#[cfg(feature = "libarchive")]
mod sys;

#[cfg(not(feature = "libarchive"))]
use absent as sys;

pub(crate) use engine::{Answer, Description, Engine, Fatal};
pub(crate) use plan::Plan;
pub use process::{ArchiveProcess, serve};
pub(crate) use sys::{Setup, version};
