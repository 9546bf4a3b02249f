//! Grammars of option values.

use std::ffi::OsString;
use std::time::Duration;

use redwarfs_archive::{Format, LibraryFormat, Whiteouts};
use redwarfs_codec::{CodecSpec, ContentKind};
use redwarfs_format::date_time;
use redwarfs_format::metadata::Packing;
use redwarfs_writer::{FileHash, Symlinks, TimeResolution, TimeResolutionError};

use crate::common::number::{format_duration, parse_duration, parse_size};
use crate::common::suggest::unknown;

/// Says that a value carries a category although nothing is categorized.
pub(crate) const NEEDS_CATEGORIES: &str =
    "cannot configure category-specific options without any categories";

fn without_category(text: &str) -> Result<&str, String> {
    if text.contains("::") {
        Err(NEEDS_CATEGORIES.to_owned())
    } else {
        Ok(text)
    }
}

/// An integer in `low..=high`.
pub(crate) fn ranged(low: u32, high: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let text = without_category(text)?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err("not an integer".to_owned());
        }
        match text.parse::<u32>() {
            Ok(value) if (low..=high).contains(&value) => Ok(value),
            _ => Err(format!("value {text} out of range [{low}..{high}]")),
        }
    }
}

/// `-l`.
pub(crate) fn level(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(level) if level <= redwarfs_writer::BuildOptions::MAX_LEVEL => Ok(level),
        _ => Err(format!(
            "invalid compression level: {text} (must be between 0 and 9)"
        )),
    }
}

/// `-C` and its relatives.
pub(crate) fn codec(text: &str) -> Result<CodecSpec, String> {
    let spec = without_category(text)?
        .parse::<CodecSpec>()
        .map_err(|e| e.to_string())?;
    match spec.requires() {
        ContentKind::Bytes => Ok(spec),
        kind => Err(format!(
            "compression '{spec}' cannot be used without a category: it takes {kind} only"
        )),
    }
}

/// `-L`: `auto` is `None`.
pub(crate) fn memory_limit(text: &str) -> Result<MemoryLimit, String> {
    if text == "auto" {
        return Ok(MemoryLimit(None));
    }
    parse_size(text).map(|size| MemoryLimit(Some(size)))
}

/// A memory limit in bytes, or the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLimit(pub(crate) Option<u64>);

/// `--file-hash`: `none` is `None`.
pub(crate) fn file_hash(text: &str) -> Result<HashChoice, String> {
    if text == "none" {
        return Ok(HashChoice(None));
    }
    text.parse::<FileHash>()
        .map(|hash| HashChoice(Some(hash)))
        .map_err(|e| e.to_string())
}

/// The words that `--file-hash` takes.
pub(crate) fn hash_names() -> impl Iterator<Item = &'static str> {
    let none = std::iter::once("none");
    none.chain(FileHash::ALL.iter().map(|hash| hash.name()))
}

/// `--verify-dedup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verification {
    /// Unless the hash is a cryptographic one.
    Auto,
    Always,
    Never,
}

/// `--verify-dedup`.
pub(crate) fn verification(text: &str) -> Result<Verification, String> {
    match text {
        "auto" => Ok(Verification::Auto),
        "always" => Ok(Verification::Always),
        "never" => Ok(Verification::Never),
        other => Err(format!(
            "invalid verification mode '{other}' (auto, always, never)"
        )),
    }
}

/// `--symlinks`.
pub(crate) fn symlinks(text: &str) -> Result<Symlinks, String> {
    match text {
        "keep" => Ok(Symlinks::Keep),
        "follow" => Ok(Symlinks::Follow),
        "drop" => Ok(Symlinks::Drop),
        other => Err(format!(
            "invalid symlink policy '{other}' (keep, follow, drop)"
        )),
    }
}

/// `--hard-links`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkPolicy {
    Keep,
    Dissolve,
}

/// `--hard-links`.
pub(crate) fn hard_links(text: &str) -> Result<LinkPolicy, String> {
    match text {
        "keep" => Ok(LinkPolicy::Keep),
        "dissolve" => Ok(LinkPolicy::Dissolve),
        other => Err(format!(
            "invalid hard link policy '{other}' (keep, dissolve)"
        )),
    }
}

/// The formats of archives by their names.
fn formats() -> impl Iterator<Item = (&'static str, Format)> {
    let own = [
        ("auto", Format::Auto),
        ("tar", Format::Tar),
        ("cpio", Format::Cpio),
        ("ar", Format::Ar),
        ("deb", Format::Deb),
        ("rpm", Format::Rpm),
        ("oci", Format::Oci),
    ];
    let library = LibraryFormat::ALL.map(|format| (format.name(), Format::Library(format)));
    own.into_iter().chain(library)
}

/// The words that `--input-format` takes.
pub(crate) fn format_names() -> impl Iterator<Item = &'static str> {
    formats().map(|(name, _)| name)
}

/// `--input-format`.
pub(crate) fn input_format(text: &str) -> Result<Format, String> {
    let found = formats().find(|(name, _)| *name == text);
    found.map(|(_, format)| format).ok_or_else(|| {
        let names: Vec<&str> = format_names().collect();
        format!("invalid archive format '{text}' ({})", names.join(", "))
    })
}

/// `--whiteouts`.
pub(crate) fn whiteouts(text: &str) -> Result<Whiteouts, String> {
    match text {
        "keep" => Ok(Whiteouts::Keep),
        "apply" => Ok(Whiteouts::Apply),
        "overlay" => Ok(Whiteouts::Overlay),
        other => Err(format!(
            "invalid whiteout policy '{other}' (keep, apply, overlay)"
        )),
    }
}

/// `--file-timeout`.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("the time-out must be nonzero".to_owned()),
        limit => Ok(limit),
    }
}

/// `--exclude-if-present`: a name without directories.
pub(crate) fn plain_name(name: OsString) -> Result<OsString, String> {
    let bytes = name.as_encoded_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err("not the name of an entry".to_owned());
    }
    Ok(name)
}

/// A hash, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashChoice(pub(crate) Option<FileHash>);

/// `--time-resolution`.
pub(crate) fn time_resolution(text: &str) -> Result<TimeResolution, String> {
    let duration = parse_duration(text)?;
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    TimeResolution::from_nanos(nanos).map_err(|error| {
        let shown = format_duration(Duration::from_nanos(nanos));
        match error {
            TimeResolutionError::Zero => {
                "the argument to '--time-resolution' must be nonzero".to_owned()
            }
            TimeResolutionError::NotWhole => format!(
                "cannot handle resolution ({shown}) that is larger than one second but not a \
                 whole number of seconds"
            ),
            TimeResolutionError::NotDivisor => format!(
                "cannot handle resolution ({shown}) that is not a whole divisor of one second"
            ),
        }
    })
}

/// `--set-time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSpec {
    Now,
    At(i64),
}

/// `--set-time`: `now`, Unix seconds, or a date with an optional time, in UTC unless a zone follows.
pub(crate) fn set_time(text: &str) -> Result<TimeSpec, String> {
    if text == "now" {
        return Ok(TimeSpec::Now);
    }
    let time = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().ok()
    } else {
        date_time::parse(text)
    };
    time.map(TimeSpec::At).ok_or_else(|| {
        format!(
            "cannot parse time point: {text} (now, unix seconds, or YYYY-MM-DD[ HH:MM[:SS][Z|+HH:MM]])"
        )
    })
}

/// The parts that can be packed, and the words for all and none.
const PACKED: [&str; 12] = [
    "auto",
    "none",
    "all",
    "chunk_table",
    "directories",
    "shared_files",
    "names",
    "names_index",
    "symlinks",
    "symlinks_index",
    "force",
    "plain",
];

/// `-P`.
pub(crate) fn packing(text: &str) -> Result<Packing, String> {
    if text == "auto" {
        return Ok(Packing::auto());
    }
    let mut packing = Packing::none();
    for part in text.split(',') {
        match part {
            // What a list begins with anyway.
            "none" => {
                packing = Packing {
                    force: packing.force,
                    plain: packing.plain,
                    ..Packing::none()
                };
            }
            "all" => {
                packing = Packing {
                    force: packing.force,
                    plain: packing.plain,
                    ..Packing::all()
                };
            }
            "chunk_table" => packing.chunk_table = true,
            "directories" => packing.directories = true,
            "shared_files" => packing.shared_files = true,
            "names" => packing.names = true,
            "names_index" => packing.names_index = true,
            "symlinks" => packing.symlinks = true,
            "symlinks_index" => packing.symlinks_index = true,
            "force" => packing.force = true,
            "plain" => packing.plain = true,
            other => {
                return Err(unknown(
                    format_args!("the argument ('{other}') to '--pack-metadata' is invalid"),
                    PACKED,
                ));
            }
        }
    }
    Ok(packing)
}

/// `SOURCE_DATE_EPOCH`: Unix seconds.
pub(crate) fn source_date_epoch(text: &str) -> Result<u64, String> {
    if text.bytes().all(|b| b.is_ascii_digit())
        && let Ok(seconds) = text.parse()
    {
        return Ok(seconds);
    }
    Err("not a number of seconds since 1970".to_owned())
}

#[cfg(test)]
mod tests;
