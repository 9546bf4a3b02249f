//! The tools: `mkdwarfs`, `dwarfs`, `dwarfsck`, `dwarfsextract`, and the program that is all four.
//!
//! This crate is arguments, messages and glue over the libraries; it is a library only so that
//! the programs, the universal one and the generator of manual pages can share it. Each tool has
//! `main`, which takes the arguments (program name first) and returns the exit code.

pub mod common;
pub mod dwarfs;
pub mod dwarfsck;
pub mod dwarfsextract;
pub mod mkdwarfs;
pub mod universal;
