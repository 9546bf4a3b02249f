//! The native module of the Python package: images, and what builds them. `redwarfs/` has the classes
//! that users see, and calls this module.
//!
//! | file | what it does |
//! |---|---|
//! | `handle.rs` | opens an image when it is first used, and again after a fork |
//! | `source.rs` | images from paths, URLs, descriptors, memory and file objects of Python |
//! | `image.rs` | the base class of `redwarfs.Image` |
//! | `read.rs` | reads of one file, which signals end if they wait for a server |
//! | `build.rs` | builds, and the entries of a `redwarfs.Writer` |
//! | `merge.rs` | joins images |
//! | `run.rs` | long work, which progress functions watch and signals end |
//! | `path.rs`, `error.rs` | paths and errors in both languages |
//! | `raw.rs` | memory and descriptors of the interpreter; the only file with `unsafe` |

mod build;
mod error;
mod handle;
mod image;
mod merge;
mod path;
mod raw;
mod read;
mod run;
mod source;

use pyo3::prelude::*;

/// The native part of the package redwarfs.
#[pymodule(gil_used = false)]
mod _redwarfs {
    #[pymodule_export]
    use super::build::check_options;
    #[pymodule_export]
    use super::build::{Entries, build, option_names};
    #[pymodule_export]
    use super::handle::forked;
    #[pymodule_export]
    use super::image::Image;
    #[pymodule_export]
    use super::merge::merge;
    #[pymodule_export]
    use super::source::named_place;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
