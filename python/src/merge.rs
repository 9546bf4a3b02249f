//! Joins images.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use redwarfs::io::{AtomicFile, Overwrite};
use redwarfs::writer::{BuildOptions, Error as WriteError};
use redwarfs::{BuildError, Error, FormatError, Result, set_option};
use redwarfs_rewrite::Error as RewriteError;
use redwarfs_rewrite::merge::{MergeOptions, MergeSummary, Part, merge as join};

use crate::error::exception;
use crate::image::Image;
use crate::run::{Events, Target, Watch, Writer};

/// An image and its place in the new tree.
type Given<'py> = (PyRef<'py, Image>, Vec<u8>, PathBuf);

/// Joins images, each with its place in the new tree and its name for messages, into a path or an object
/// with `write`. Their caches have `caches` bytes together. Returns numbers, and messages of two kinds.
#[pyfunction]
#[pyo3(name = "_merge")]
#[expect(clippy::too_many_arguments, reason = "arguments of Python")]
pub(crate) fn merge<'py>(
    py: Python<'py>,
    images: Vec<Given<'py>>,
    target: &Bound<'py, PyAny>,
    level: u8,
    options: Vec<(String, String)>,
    overwrite: bool,
    repack: u8,
    caches: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut build = BuildOptions::level(level);
    for (name, value) in &options {
        set_option(&mut build, name, value).map_err(|e| exception(py, &e))?;
    }
    let mut merge = merge_options(level, build);
    merge.repack = repack;
    let mut parts = Vec::new();
    for (image, at, name) in &images {
        parts.push((image.opened(py)?, at.clone(), name.clone()));
    }
    merge.caches = caches;
    let watch = Watch::new();
    let target = Target::of(target);
    let (events, failed, stop) = (watch.events(), watch.failure(), watch.stop());
    let done = watch.run(py, progress.as_ref(), move || match target {
        Target::Path(path) => {
            let overwrite = match overwrite {
                true => Overwrite::Yes,
                false => Overwrite::No,
            };
            let file = AtomicFile::create(path, overwrite).map_err(Error::Output)?;
            let mut out = BufWriter::new(file);
            let done = joined(&parts, &merge, &mut out, &events, &stop)?;
            let file = out.into_inner().map_err(|e| Error::Output(e.into()))?;
            file.commit().map_err(Error::Output)?;
            Ok(done)
        }
        Target::Object(object) => {
            let mut out = Writer::new(object, failed);
            joined(&parts, &merge, &mut out, &events, &stop)
        }
    })?;
    let done: MergeSummary = done.map_err(|e: Error| exception(py, &e))?;
    watch.tell(py, progress.as_ref())?;
    let result = PyDict::new(py);
    for (name, number) in [
        ("image_size", done.rewritten.image_size),
        ("blocks", done.rewritten.blocks),
        ("old_blocks", done.old_blocks),
        ("left_out", done.left_out),
        ("repacked", done.repacked),
        ("contents", done.contents),
        ("errors", done.errors),
    ] {
        result.set_item(name, number)?;
    }
    let messages = watch.events().messages();
    result.set_item("warnings", messages.warnings)?;
    result.set_item("problems", messages.problems)?;
    Ok(result)
}

/// The options of a merge that follow from those of a build.
fn merge_options(level: u8, build: BuildOptions) -> MergeOptions {
    let mut options = MergeOptions::level(level);
    let own = &mut options.rewrite;
    own.compression = build.compression.clone();
    own.schema_compression = build.schema_compression.clone();
    own.metadata_compression = build.metadata_compression.clone();
    own.metadata_alternative = build.metadata_alternative.clone();
    own.history_compression = build.history_compression.clone();
    own.history = build.history.clone();
    own.section_index = build.section_index;
    own.workers = build.workers;
    own.compress_niceness = build.compress_niceness;
    own.memory_limit = build.memory_limit;
    // A checksum is compared when its section is read. So the images are read once.
    own.check = false;
    options.metadata = build;
    options.metadata.keep_all_times = true;
    options.metadata.keep_birth_times = true;
    options.metadata.file_flags = true;
    options
}

fn joined(
    images: &[(redwarfs::Image, Vec<u8>, PathBuf)],
    options: &MergeOptions,
    out: &mut dyn Write,
    events: &Events,
    stop: &AtomicBool,
) -> Result<MergeSummary> {
    let parts = images.iter();
    let parts: Vec<Part<'_>> = parts
        .map(|(image, at, _)| Part::new(image.reader(), at))
        .collect();
    join(&parts, &[], options, out, events, stop).map_err(|error| failure(error, images))
}

fn failure(error: RewriteError, images: &[(redwarfs::Image, Vec<u8>, PathBuf)]) -> Error {
    let (error, number) = match error {
        RewriteError::Part { number, error } => (*error, Some(number)),
        other => (other, None),
    };
    let name = number.and_then(|number| images.get(number));
    let path = name.map_or_else(PathBuf::new, |(.., name)| name.clone());
    match error {
        RewriteError::Write(WriteError::Format(source)) => Error::Read { path, source },
        RewriteError::Write(error) => error.into(),
        RewriteError::Merge(error) => BuildError::InvalidOption(error.to_string()).into(),
        other => Error::Read {
            path,
            source: FormatError::corrupt(other.to_string()),
        },
    }
}
