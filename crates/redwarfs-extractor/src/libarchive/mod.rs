//! libarchive, if the system has it.

mod sys;

pub(crate) use sys::{Answer, Description, Fatal, PATH_VARIABLE, Setup, Writer, version};
