//! Settings, from variables of the environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use redwarfs_fuse::MountOptions;
use redwarfs_reader::{BlockAllocator, CacheOptions};
use rustix::fs::{Access, access};

use crate::error::{ANOTHER, Failure};

/// When the image is extracted to run its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Extraction {
    /// If it cannot be mounted.
    #[default]
    Fallback,
    Always,
}

/// How to run a program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) extraction: Extraction,
    /// Mount in a namespace of its own, without trying it elsewhere first.
    pub(crate) own_namespace: bool,
    /// Extracted files stay after the end of the program.
    pub(crate) keep_extracted: bool,
    /// How long a mount or an extracted tree stays without users; none: for ever.
    pub(crate) linger: Option<Duration>,
    /// Where directories are made, if the user has said so.
    pub(crate) base: Option<PathBuf>,
    pub(crate) cache: CacheOptions,
    pub(crate) mount: MountOptions,
    /// Decode all blocks at once, in the background.
    pub(crate) preload: bool,
}

/// Looks up a variable.
type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

impl Settings {
    /// Settings of this process, and a line for each variable that has no usable value.
    pub(crate) fn of_process() -> (Self, Vec<String>) {
        let lookup = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let (mut settings, mut ignored) = Self::new(&lookup);
        if let Some(base) = settings.base.take() {
            match can_have_directories(&base) {
                Ok(()) => settings.base = Some(base),
                Err(error) => {
                    let failure = Failure::io("ignoring TMPDIR", &base, &error).hint(ANOTHER);
                    ignored.push(failure.text);
                }
            }
        }
        (settings, ignored)
    }

    /// Settings from variables, of which `lookup` finds those that are not empty. A wrong value does not keep
    /// a program from starting: the variable may be meant for another one.
    fn new(lookup: &Lookup<'_>) -> (Self, Vec<String>) {
        let any = |names: &[&str]| {
            names
                .iter()
                .any(|name| lookup(name).is_some_and(|v| is_on(&v)))
        };
        let mut ignored = Vec::new();
        let mut size = |name| parsed(lookup, &mut ignored, name, "size such as 512M", parse_size);
        let mut cache = CacheOptions::default();
        let mut mount = MountOptions::default();
        cache.size = size("DWARFS_CACHESIZE").unwrap_or(cache.size);
        cache.readahead = size("DWARFS_READAHEAD").unwrap_or(cache.readahead);
        let what = "size such as 128K, below 4G";
        let block_size = parsed(
            lookup,
            &mut ignored,
            "DWARFS_BLOCKSIZE",
            what,
            parse_block_size,
        );
        mount.block_size = block_size.unwrap_or(mount.block_size);
        let what = "number from 1 to 256";
        if let Some(workers) = parsed(lookup, &mut ignored, "DWARFS_WORKERS", what, parse_workers) {
            (cache.workers, mount.workers) = (workers, workers);
        }
        let what = "time such as 5s, 2m or inf";
        let delay = parsed(lookup, &mut ignored, "REUSE_CHECK_DELAY", what, parse_delay);
        if any(&["DWARFS_USE_MMAP"]) {
            cache.allocator = BlockAllocator::Mmap;
        }
        // The driver has another working directory.
        let absolute = |name| lookup(name).and_then(|path| std::path::absolute(path).ok());
        mount.analysis_file = absolute("DWARFS_ANALYSIS_FILE");
        let settings = Self {
            extraction: match any(&["APPIMAGE_EXTRACT_AND_RUN", "RUNTIME_EXTRACT_AND_RUN"]) {
                true => Extraction::Always,
                false => Extraction::Fallback,
            },
            own_namespace: any(&["APPIMAGE_UNSHARE", "RUNIMAGE_UNSHARE"]),
            keep_extracted: any(&["NO_CLEANUP"]),
            linger: match any(&["NO_UNMOUNT"]) {
                true => None,
                false => delay.unwrap_or(Some(Duration::ZERO)),
            },
            base: absolute("TMPDIR"),
            cache,
            mount,
            preload: any(&["DWARFS_PRELOAD_ALL"]),
        };
        (settings, ignored)
    }
}

/// Whether this user can make directories in one.
fn can_have_directories(directory: &Path) -> io::Result<()> {
    if !fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// The value of a variable, if there is one that `parser` takes; another one is noted in `ignored`.
fn parsed<T>(
    lookup: &Lookup<'_>,
    ignored: &mut Vec<String>,
    name: &str,
    what: &str,
    parser: fn(&str) -> Option<T>,
) -> Option<T> {
    let value = lookup(name)?;
    let parsed = value.to_str().and_then(parser);
    if parsed.is_none() {
        ignored.push(format!(
            "ignoring {name}: {}: not a {what}",
            value.display()
        ));
    }
    parsed
}

/// Whether the value of a switch turns it on.
fn is_on(value: &OsStr) -> bool {
    value != "0"
}

/// A number of bytes, with a suffix `k`, `m`, `g` or `t` in either case.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn parse_block_size(text: &str) -> Option<u32> {
    u32::try_from(parse_size(text)?).ok()
}

fn parse_workers(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| (1..=256).contains(count))
}

/// A time in seconds, or with a suffix `s`, `m` or `h`; the inner `None` is for ever.
#[allow(clippy::option_option)]
fn parse_delay(text: &str) -> Option<Option<Duration>> {
    if text == "inf" {
        return Some(None);
    }
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    let factor = match text.get(digits.len()..)? {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let seconds = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    Some(Some(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        Settings::new(&|name| {
            let found = variables.iter().find(|(n, v)| *n == name && !v.is_empty());
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn defaults() {
        let (settings, ignored) = settings(&[]);
        assert!(ignored.is_empty());
        assert_eq!(settings.extraction, Extraction::Fallback);
        assert!(!settings.own_namespace && !settings.keep_extracted && !settings.preload);
        assert_eq!(settings.linger, Some(Duration::ZERO));
        assert_eq!(settings.cache, CacheOptions::default());
        assert_eq!(settings.mount, MountOptions::default());
    }

    #[test]
    fn variables_of_both_runtimes() {
        let (found, ignored) = settings(&[
            ("APPIMAGE_EXTRACT_AND_RUN", "1"),
            ("NO_CLEANUP", "1"),
            ("REUSE_CHECK_DELAY", "2m"),
            ("DWARFS_CACHESIZE", "64M"),
            ("DWARFS_READAHEAD", "1m"),
            ("DWARFS_BLOCKSIZE", "128K"),
            ("DWARFS_WORKERS", "3"),
            ("DWARFS_USE_MMAP", "1"),
            ("DWARFS_PRELOAD_ALL", "0"),
            ("TMPDIR", "/x"),
            ("DWARFS_ANALYSIS_FILE", "profile"),
        ]);
        assert!(ignored.is_empty());
        let here = std::env::current_dir().unwrap();
        assert_eq!(found.mount.analysis_file, Some(here.join("profile")));
        assert_eq!(found.extraction, Extraction::Always);
        assert!(found.keep_extracted && !found.preload);
        assert_eq!(found.linger, Some(Duration::from_secs(120)));
        assert_eq!(
            (found.cache.size, found.cache.readahead),
            (64 << 20, 1 << 20)
        );
        assert_eq!((found.cache.workers, found.mount.workers), (3, 3));
        assert_eq!(found.cache.allocator, BlockAllocator::Mmap);
        assert_eq!(found.mount.block_size, 128 << 10);
        assert_eq!(found.base, Some(PathBuf::from("/x")));
        for never in [("NO_UNMOUNT", "1"), ("REUSE_CHECK_DELAY", "inf")] {
            assert_eq!(settings(&[never]).0.linger, None);
        }
        assert_eq!(
            settings(&[("RUNTIME_EXTRACT_AND_RUN", "0")]).0.extraction,
            Extraction::Fallback
        );
    }

    #[test]
    fn wrong_values_are_named_and_have_no_effect() {
        for (name, value) in [
            ("DWARFS_CACHESIZE", "x"),
            ("DWARFS_CACHESIZE", "1X"),
            ("DWARFS_READAHEAD", "99999999999g"),
            ("DWARFS_BLOCKSIZE", "4g"),
            ("DWARFS_WORKERS", "0"),
            ("REUSE_CHECK_DELAY", "5d"),
        ] {
            let (found, ignored) = settings(&[(name, value)]);
            assert_eq!(found, settings(&[]).0, "{name}");
            let start = format!("ignoring {name}: {value}: not a ");
            assert!(
                ignored.len() == 1 && ignored[0].starts_with(&start),
                "{ignored:?}"
            );
        }
    }
}
