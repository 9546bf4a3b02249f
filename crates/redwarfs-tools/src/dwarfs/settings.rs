//! The settings of `-o` options, and their values.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use redwarfs_fuse::{LayerDriver, MountOptions, Whiteouts};
use redwarfs_reader::perfmon::Component;
use redwarfs_reader::{ImageOffset, OpenOptions, Preload, Tidy};

use crate::common::LogLevel;
use crate::common::cache::CacheChoice;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::number::{parse_duration, parse_size};

/// Whether metadata is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    No,
    /// If the system allows it.
    Try,
    Must,
}

/// Where messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogTarget {
    Stderr,
    Syslog,
    File(PathBuf),
}

/// Which idle blocks leave the cache.
#[derive(Debug, Default, Clone, Copy)]
pub(super) enum Strategy {
    #[default]
    None,
    Time,
    Swap,
}

/// The options of tidying. Their values are parsed only if there is a strategy.
#[derive(Debug, Default)]
pub(super) struct Tidying {
    pub(super) strategy: Strategy,
    pub(super) interval: Option<OsString>,
    pub(super) max_age: Option<OsString>,
}

/// Where a writable mount keeps the changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LayerChoice {
    Directory(PathBuf),
    /// In a directory that is removed after unmounting.
    Temporary,
}

/// Everything that `-o` can say.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) mount: MountOptions,
    pub(super) open: OpenOptions,
    pub(super) tidying: Tidying,
    pub(super) lock: Lock,
    pub(super) preload: Vec<Preload>,
    /// Load what hints name.
    pub(super) hints: bool,
    /// The file with hints, which is also recorded.
    pub(super) hints_file: Option<PathBuf>,
    /// How long is recorded.
    pub(super) hints_time: Option<Duration>,
    /// Patterns of files whose data is fetched.
    pub(super) prefetch: Vec<OsString>,
    /// The cache on disk.
    pub(super) disk_cache: CacheChoice,
    /// Parts to measure.
    pub(super) perfmon: Vec<Component>,
    pub(super) trace: Option<PathBuf>,
    pub(super) level: Option<LogLevel>,
    pub(super) log: LogTarget,
    /// `-o debug`.
    pub(super) debug: bool,
    /// Damage is repaired in memory.
    pub(super) repair: bool,
    /// The file with the recovery data for that.
    pub(super) sidecar: Option<PathBuf>,
    /// `-o union`, and its rules.
    pub(super) union: bool,
    pub(super) whiteouts: Option<Whiteouts>,
    /// The control socket of a mount of several images, if not one of its own.
    #[cfg_attr(windows, allow(dead_code))]
    pub(super) control: Option<PathBuf>,
    /// The name for the mount table was given.
    pub(super) named: bool,
    /// `-o rw`.
    pub(super) writable: bool,
    /// `-o ro`.
    pub(super) read_only: bool,
    /// `-o rw=DIR`.
    pub(super) layer: Option<LayerChoice>,
    /// `-o nonempty`.
    pub(super) over_others: bool,
    /// Remarks for the log.
    pub(super) warnings: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mount: {
                let mut mount = MountOptions::default();
                mount.owns_image = true;
                mount
            },
            open: {
                let mut open = OpenOptions::default();
                open.offset = ImageOffset::At(0);
                open.lazy_metadata = true;
                open
            },
            tidying: Tidying::default(),
            lock: Lock::No,
            preload: Vec::new(),
            hints: true,
            hints_file: None,
            hints_time: None,
            prefetch: Vec::new(),
            disk_cache: CacheChoice::default(),
            perfmon: Vec::new(),
            trace: None,
            level: None,
            log: LogTarget::Stderr,
            debug: false,
            repair: false,
            sidecar: None,
            union: false,
            whiteouts: None,
            control: None,
            named: false,
            writable: false,
            read_only: false,
            layer: None,
            over_others: false,
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// Completes what depends on several options.
    pub(super) fn finish(mut self) -> Result<Self> {
        self.open.cache.tidy = self.tidying.finish()?;
        if self.trace.is_some() && self.perfmon.is_empty() {
            self.warnings
                .push(String::from("perfmon_trace has no effect without perfmon"));
        }
        if self.sidecar.is_some() && !self.repair {
            self.warnings
                .push(String::from("sidecar has no effect without repair=memory"));
        }
        if self.disk_cache.directory.is_none() && self.disk_cache.limit.is_some() {
            self.warnings
                .push(String::from("cache_limit has no effect without cache_dir"));
        }
        if self.hints_file.is_none() && self.hints_time.is_some() {
            self.warnings
                .push(String::from("hints_time has no effect without hints_file"));
        }
        if self.union {
            self.mount.union = Some(self.whiteouts.unwrap_or_default());
        } else if self.whiteouts.is_some() {
            self.warnings
                .push(String::from("whiteouts has no effect without union"));
        }
        if self.mount.follow_newest {
            let excluded = [
                (self.open.snapshot.is_some(), "snapshot"),
                (self.open.image_size.is_some(), "imagesize"),
                (self.mount.case_insensitive, "case_insensitive"),
            ];
            if let Some((_, other)) = excluded.iter().find(|(given, _)| *given) {
                return Err(ToolError::new(format!(
                    "follow_newest cannot be used with {other}"
                )));
            }
        }
        if self.layer.is_some() {
            self.check_layer()?;
        } else if self.mount.layer_driver != LayerDriver::Own {
            self.warnings
                .push(String::from("rw_driver has no effect without rw=DIR"));
        }
        #[cfg(unix)]
        if self.mount.uring && !redwarfs_fuse::HAS_URING {
            self.warnings.push(String::from(
                "uring has no effect: there is no io_uring for this processor here",
            ));
        }
        // Each read that waits holds a thread, whether or not it decompresses something itself.
        self.mount.workers = self.open.cache.workers.max(1) + 1;
        Ok(self)
    }
}

impl Settings {
    /// How long reads are recorded for hints.
    pub(super) fn hints_time(&self) -> Duration {
        /// Programs have usually started then, and do what the user asks for.
        const USUAL: Duration = Duration::from_secs(60);
        self.hints_time.unwrap_or(USUAL)
    }

    /// Refuses what a writable mount cannot do, and mentions what has no effect in it.
    fn check_layer(&mut self) -> Result<()> {
        let excluded = [
            (self.read_only, "ro"),
            (self.mount.hide_write_bits, "readonly"),
            (self.mount.case_insensitive, "case_insensitive"),
            (self.mount.snapshots.is_some(), "snapshots"),
            (self.mount.follow_newest, "follow_newest"),
            // Everybody could write to everything.
            (
                self.mount.default_permissions == Some(false),
                "no_default_permissions",
            ),
        ];
        if let Some((_, other)) = excluded.iter().find(|(given, _)| *given) {
            let text = format!("rw=DIR cannot be used with {other}");
            return Err(ToolError::new(text));
        }
        let idle = [
            (self.mount.analysis_file.is_some(), "analysis_file"),
            (self.mount.uring, "uring"),
            (self.mount.list_xattrs, "list_xattrs"),
        ];
        let given = idle.iter().filter(|(given, _)| *given);
        let text = given.map(|(_, name)| format!("{name} has no effect with rw=DIR"));
        self.warnings.extend(text);
        Ok(())
    }
}

impl Tidying {
    fn finish(&self) -> Result<Tidy> {
        let duration = |name: &str, value: &Option<OsString>, default| match value {
            None => Ok(Duration::from_secs(default)),
            Some(value) => {
                let duration = Value { name, value }.duration()?;
                if duration.is_zero() {
                    return Err(ToolError::new(format!("{name} must not be zero")));
                }
                Ok(duration)
            }
        };
        if matches!(self.strategy, Strategy::None) {
            return Ok(Tidy::None);
        }
        let interval = duration("tidy_interval", &self.interval, 5 * 60)?;
        Ok(match self.strategy {
            Strategy::Time => Tidy::Time {
                interval,
                max_age: duration("tidy_max_age", &self.max_age, 10 * 60)?,
            },
            _ => Tidy::Swap { interval },
        })
    }
}

/// The value of an option.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    /// The name of the option.
    pub(super) name: &'a str,
    pub(super) value: &'a OsStr,
}

impl<'a> Value<'a> {
    pub(super) fn text(self) -> Result<&'a str> {
        let shown = || format!("value is not valid UTF-8: {}", display_name(self.value));
        self.value.to_str().ok_or_else(|| ToolError::new(shown()))
    }

    pub(super) fn number<T: FromStr>(self) -> Result<T> {
        self.text()?.parse().map_err(|_| self.invalid())
    }

    pub(super) fn size(self) -> Result<u64> {
        parse_size(self.text()?).map_err(ToolError::new)
    }

    pub(super) fn duration(self) -> Result<Duration> {
        parse_duration(self.text()?).map_err(ToolError::new)
    }

    /// The value, parsed by `parse`, whose error is the complete message.
    pub(super) fn parsed<T>(self, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T> {
        parse(self.text()?).map_err(ToolError::new)
    }

    /// The number of a user or group.
    pub(super) fn id(self, parse: fn(&str) -> Result<u32, String>) -> Result<Option<u32>> {
        let id = parse(self.text()?).map(Some);
        id.map_err(|cause| self.invalid().cause(cause))
    }

    /// The path of a file that is made or written.
    pub(super) fn path(self) -> Result<PathBuf> {
        match self.value.is_empty() {
            true => Err(ToolError::new(format!(
                "option '{}' needs a path",
                self.name
            ))),
            false => Ok(PathBuf::from(self.value)),
        }
    }

    /// The meaning of the value among some words.
    pub(super) fn one_of<T: Copy>(self, words: &[(&str, T)], complaint: &str) -> Result<T> {
        let found = words.iter().find(|(word, _)| self.value == *word);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            ToolError::new(format!("{complaint}: {}", display_name(self.value)))
                .hint(format!("one of {}", known.join(", ")))
        })
    }

    /// That the option cannot have this value.
    pub(super) fn invalid(self) -> ToolError {
        ToolError::new(format!("invalid value for option '{}'", self.name))
            .cause(display_name(self.value))
    }
}

/// The components that `text` names, and a remark for each unknown name.
pub(super) fn components(text: &str) -> (Vec<Component>, Vec<String>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for name in text.split('+') {
        match name.parse() {
            Ok(component) if found.contains(&component) => {}
            Ok(component) => found.push(component),
            Err(_) => {
                let known = Component::ALL.map(Component::name).join(", ");
                unknown.push(format!(
                    "no such performance monitor component: {name} (one of {known})"
                ));
            }
        }
    }
    (found, unknown)
}
