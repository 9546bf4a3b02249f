//! Opening the image that a tool was given, with advice where that fails.

use std::path::Path;

use redwarfs_format::Error;
use redwarfs_reader::{Image, ImageOffset, OpenOptions, SnapshotChoice};

use super::env::{self, IoLayer};
use super::error::{Result, ToolError, cause_at, display_path};
use super::program::{squashfs_advice, squashfs_behind};

/// How a tool spells the options that an error may advise.
#[derive(Debug, Clone, Copy)]
pub struct Spelling {
    /// To search for the start of the image.
    pub auto: &'static str,
    /// To give the size of the image, where the tool can.
    pub size: Option<&'static str>,
}

/// Understands where an image starts in its file.
///
/// # Errors
/// Text for the user.
pub fn image_offset(text: &str) -> Result<ImageOffset, String> {
    text.parse().map_err(|error| {
        let known = match text.strip_prefix('-') {
            // For a negative number, the error says so.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => "",
            _ => " (a number of bytes, auto, or auto:N)",
        };
        format!("{error}{known}")
    })
}

/// Understands the name, number or time of a snapshot.
///
/// # Errors
/// None; every text may be a name.
pub fn snapshot_choice(text: &str) -> std::result::Result<SnapshotChoice, String> {
    Ok(SnapshotChoice::from(text))
}

/// Refuses an image and its delta files, which are joined only for reading: `what` cannot be done.
///
/// # Errors
/// How to join them.
pub fn refuse_joined(what: &str, path: &Path) -> Result<()> {
    let are_there = |parts: &Vec<&Path>| parts.iter().all(|part| part.exists());
    let Some(parts) = env::joined_parts(path).filter(are_there) else {
        return Ok(());
    };
    let parts: Vec<String> = parts.iter().map(|part| display_path(part)).collect();
    Err(ToolError::new(what)
        .path(path)
        .cause("these are several files")
        .hint(format!(
            "'cat {} >NEW' joins them; then use NEW",
            parts.join(" ")
        )))
}

/// Opens an image, in the way that the environment chooses: see [`IoLayer`], and
/// [`env::affinity`] for the group `blkcache`.
///
/// # Errors
/// `cannot open image: PATH: CAUSE (ADVICE)`.
pub fn open_image(path: &Path, options: &OpenOptions, spelling: Spelling) -> Result<Image> {
    let options = {
        let mut open = options.clone();
        open.cache.affinity = options.cache.affinity.or_else(|| env::affinity("blkcache"));
        open
    };
    open(path, &options).map_err(|failed| open_error(path, &options, failed, spelling))
}

/// The error for an image that could not be opened with these options: `cannot open image: PATH: CAUSE (ADVICE)`.
pub fn open_error(
    path: &Path,
    options: &OpenOptions,
    failed: Error,
    spelling: Spelling,
) -> ToolError {
    let (cause, mut advice) = explain(path, options, failed, spelling);
    if matches!(cause, Error::NotAnImage(_))
        && let Some(at) = squashfs_behind(path)
    {
        let (what, how) = squashfs_advice(at);
        advice = Some(format!("{what}: {how}"));
    }
    let what = match &cause {
        Error::NoSnapshot(_) => "cannot find the snapshot",
        _ => "cannot open image",
    };
    let error = ToolError::new(what).path(path).cause(match &cause {
        Error::Io(error) => cause_at(path, error),
        other => other.to_string(),
    });
    match advice {
        Some(advice) => error.hint(advice),
        None => error,
    }
}

fn open(path: &Path, options: &OpenOptions) -> redwarfs_format::Result<Image> {
    let source = IoLayer::from_env().open_cached(path, options.disk_cache.as_ref())?;
    Image::from_source(source, options)
}

/// The error to show, with a hint.
fn explain(
    path: &Path,
    options: &OpenOptions,
    failed: Error,
    spelling: Spelling,
) -> (Error, Option<String>) {
    let at = |offset| {
        let mut open = options.clone();
        open.offset = offset;
        open.check = false;
        open.cache.workers = 1;
        open
    };
    match failed {
        Error::NotAnImage(_) if matches!(options.offset, ImageOffset::Auto) => {
            // The search passes over what looks like an image but cannot be one. What it says at
            // the start of the file is better than that there is nothing.
            match open(path, &at(ImageOffset::At(0))) {
                Err(first @ (Error::Corrupt { .. } | Error::Unsupported(_))) => {
                    let advice = advise(&first, spelling);
                    (first, advice)
                }
                _ => (failed, None),
            }
        }
        Error::NotAnImage(_) if matches!(options.offset, ImageOffset::Nth(_)) => (failed, None),
        Error::NotAnImage(_) => {
            let found = open(path, &at(ImageOffset::Auto)).ok();
            let advice = found.map(|image| {
                format!(
                    "an image starts at offset {}: use {}",
                    image.container().offset,
                    spelling.auto
                )
            });
            (failed, advice)
        }
        _ => {
            let advice = advise(&failed, spelling);
            (failed, advice)
        }
    }
}

fn advise(error: &Error, spelling: Spelling) -> Option<String> {
    match error {
        Error::Corrupt { what, .. } if what.starts_with("truncated section") => {
            Some(match spelling.size {
                Some(size) => format!(
                    "the file is incomplete, or the image is not all of it: then give its size \
                     with {size}"
                ),
                None => String::from("the file is incomplete, or something follows the image"),
            })
        }
        Error::NoSnapshot(_) => Some("dwarfsck --snapshots lists all".to_owned()),
        Error::Unsupported(what) if what.contains("version") || what.contains("feature") => Some(
            String::from("made by newer software: a newer version of this program may read it"),
        ),
        _ => None,
    }
}
