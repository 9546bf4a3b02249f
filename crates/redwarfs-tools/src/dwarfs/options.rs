//! The values of `-o`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use redwarfs_fuse::{Access, MountOptions};
use redwarfs_reader::perfmon::Component;
use redwarfs_reader::{ImageOffset, OpenOptions, Preload, Tidy};

use super::EXIT_SETUP;
use super::table::OPTIONS;
use crate::common::LogLevel;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::number::{parse_duration, parse_size};
use crate::common::open::image_offset;
use crate::common::suggest::similar;
use crate::common::users::{parse_group, parse_user};

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

/// Everything that `-o` can say.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) mount: MountOptions,
    pub(super) open: OpenOptions,
    pub(super) lock: Lock,
    pub(super) preload: Vec<Preload>,
    /// Parts to measure.
    pub(super) perfmon: Vec<Component>,
    pub(super) trace: Option<PathBuf>,
    pub(super) level: Option<LogLevel>,
    pub(super) log: LogTarget,
    /// `-o debug`.
    pub(super) debug: bool,
    /// The name for the mount table was given.
    pub(super) named: bool,
    /// `-o rw`.
    pub(super) writable: bool,
    /// `-o nonempty`.
    pub(super) over_others: bool,
    /// Remarks for the log.
    pub(super) warnings: Vec<String>,
}

/// The answer to who wants to write.
pub(super) const READ_ONLY: &str = "the mount is read-only: rw has no effect";

/// Flags that mount(8), `/etc/fstab` and programs for other drivers may hand over and that mean
/// nothing here.
const IGNORED: [&str; 34] = [
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "defaults",
    "loop",
    "nofail",
    "_netdev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "mand",
    "nomand",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "symfollow",
    "nosymfollow",
    "clone_fd",
    "no_clone_fd",
];

/// Most threads that read requests.
const MAX_READERS: i32 = 64;

/// Options that need a value.
const VALUED: [&str; 33] = [
    "analysis_file",
    "block_allocator",
    "blocksize",
    "cachesize",
    "debuglevel",
    "decratio",
    "fsname",
    "gid",
    "imagesize",
    "log_file",
    "log_target",
    "max_idle_threads",
    "max_read",
    "max_threads",
    "mlock",
    "offset",
    "perfmon",
    "perfmon_trace",
    "preload_category",
    "readahead",
    "seq_detector",
    "subtype",
    "tidy_interval",
    "tidy_max_age",
    "tidy_strategy",
    "timeout",
    "uid",
    "workers",
    "comment",
    "uhelper",
    "helper",
    "user_id",
    "group_id",
];

/// Interprets single options; later ones win.
pub(super) fn interpret(options: &[OsString]) -> Result<Settings> {
    let mut settings = Settings {
        mount: MountOptions::default(),
        open: OpenOptions {
            offset: ImageOffset::At(0),
            lazy_metadata: true,
            ..OpenOptions::default()
        },
        lock: Lock::No,
        preload: Vec::new(),
        perfmon: Vec::new(),
        trace: None,
        level: None,
        log: LogTarget::Stderr,
        debug: false,
        named: false,
        writable: false,
        over_others: false,
        warnings: Vec::new(),
    };
    let mut tidying = Tidying::default();
    for option in options {
        let bytes = option.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (
                bytes.get(..at).unwrap_or_default(),
                bytes.get(at + 1..).map(OsStr::from_bytes),
            ),
            None => (bytes, None),
        };
        let known = match (std::str::from_utf8(name), value) {
            (Ok(name), Some(value)) => settings.valued(name, value, &mut tidying)?,
            (Ok(name), None) => settings.flag(name),
            (Err(_), _) => false,
        };
        let needs_value = std::str::from_utf8(name).is_ok_and(|name| VALUED.contains(&name));
        if !known && value.is_none() && needs_value {
            return Err(
                ToolError::new(format!("option '{}' needs a value", display_name(option)))
                    .code(EXIT_SETUP),
            );
        }
        if !known {
            return Err(
                ToolError::new(format!("unknown option: -o {}", display_name(option)))
                    .hint(advice(name))
                    .code(EXIT_SETUP),
            );
        }
    }
    settings.open.cache.tidy = tidying.finish()?;
    if settings.trace.is_some() && settings.perfmon.is_empty() {
        settings
            .warnings
            .push(String::from("perfmon_trace has no effect without perfmon"));
    }
    if settings.mount.uring && !redwarfs_fuse::HAS_URING {
        settings.warnings.push(String::from(
            "uring has no effect: there is no io_uring for this processor here",
        ));
    }
    // Each read that waits holds a thread, whether or not it decompresses something itself.
    settings.mount.workers = settings.open.cache.workers.max(1) + 1;
    Ok(settings)
}

/// What to write instead of an option that is not known.
fn advice(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let known = OPTIONS.iter().flat_map(|entry| {
        let value = entry.form.split_once('=');
        let value = value.map_or_else(String::new, |(_, value)| format!("={value}"));
        let names = entry.names().into_iter();
        names.map(move |name| (name, value.clone()))
    });
    let known: Vec<(String, String)> = known.collect();
    let Some(meant) = similar(&name, known.iter().map(|(name, _)| name)) else {
        return "try 'dwarfs --help'".to_owned();
    };
    let value = known.iter().find(|(name, _)| name == meant);
    let value = value.map_or("", |(_, value)| value);
    match name == *meant {
        true => format!("it takes no value: -o {meant}"),
        false => format!("did you mean '-o {meant}{value}'?"),
    }
}

/// `tidy_interval` and `tidy_max_age` are looked at only together with a strategy.
#[derive(Debug, Default)]
struct Tidying {
    strategy: Strategy,
    interval: Option<OsString>,
    max_age: Option<OsString>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Strategy {
    #[default]
    None,
    Time,
    Swap,
}

impl Tidying {
    fn finish(&self) -> Result<Tidy> {
        let duration = |name: &str, value: &Option<OsString>, default| match value {
            None => Ok(Duration::from_secs(default)),
            Some(value) => {
                let duration = parse_duration(text(value)?).map_err(ToolError::new)?;
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

fn text(value: &OsStr) -> Result<&str> {
    value
        .to_str()
        .ok_or_else(|| ToolError::new(format!("value is not valid UTF-8: {}", display_name(value))))
}

fn number<T: FromStr>(name: &str, value: &OsStr) -> Result<T> {
    text(value)?.parse().map_err(|_| {
        ToolError::new(format!("invalid value for option '{name}'")).cause(display_name(value))
    })
}

fn size(value: &OsStr) -> Result<u64> {
    parse_size(text(value)?).map_err(ToolError::new)
}

/// The value that belongs to a word.
fn one_of<T: Copy>(value: &OsStr, words: &[(&str, T)], complaint: &str) -> Result<T> {
    let found = words.iter().find(|(word, _)| value == *word);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        ToolError::new(format!("{complaint}: {}", display_name(value)))
            .hint(format!("one of {}", known.join(", ")))
    })
}

/// The path of a file that is made or written.
fn file(name: &str, value: &OsStr) -> Result<PathBuf> {
    if value.is_empty() {
        return Err(ToolError::new(format!("option '{name}' needs a path")));
    }
    Ok(PathBuf::from(value))
}

fn user_or_group(
    name: &str,
    value: &OsStr,
    parse: fn(&str) -> Result<u32, String>,
) -> Result<Option<u32>> {
    parse(text(value)?).map(Some).map_err(|cause| {
        ToolError::new(format!("invalid value for option '{name}'"))
            .cause(display_name(value))
            .cause(cause)
    })
}

/// The parts that are named, and remarks about names that there are not.
fn components(value: &OsStr) -> Result<(Vec<Component>, Vec<String>)> {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for name in text(value)?.split('+') {
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
    Ok((found, unknown))
}

impl Settings {
    fn flag(&mut self, name: &str) -> bool {
        let mount = &mut self.mount;
        match name {
            "allow_other" => mount.access = Access::Everyone,
            "allow_root" => mount.access = Access::OwnerAndRoot,
            "auto_unmount" => mount.auto_unmount = true,
            "default_permissions" => mount.default_permissions = Some(true),
            "no_default_permissions" => mount.default_permissions = Some(false),
            "ro" => self.writable = false,
            "rw" => self.writable = true,
            "nonempty" => self.over_others = true,
            "list_xattrs" => mount.list_xattrs = true,
            "no_list_xattrs" => mount.list_xattrs = false,
            // What it does was decided before.
            super::remount::OPTION => {}
            "suid" => mount.flags.nosuid = false,
            "nosuid" => mount.flags.nosuid = true,
            "dev" => mount.flags.nodev = false,
            "nodev" => mount.flags.nodev = true,
            "exec" => mount.flags.noexec = false,
            "noexec" => mount.flags.noexec = true,
            "readonly" => mount.hide_write_bits = true,
            "case_insensitive" => mount.case_insensitive = true,
            "cache_files" => mount.keep_cache = true,
            "no_cache_files" => mount.keep_cache = false,
            "cache_sparse" => mount.cache_sparse = true,
            "no_cache_sparse" => mount.cache_sparse = false,
            "push" => mount.push = true,
            "no_push" => mount.push = false,
            "follow" => mount.follow = true,
            "no_follow" => mount.follow = false,
            "uring" => mount.uring = true,
            "no_uring" => mount.uring = false,
            "guard" => mount.guard = true,
            "no_guard" => mount.guard = false,
            "preload_all" => self.preload.push(Preload::All),
            "syslog" => self.log = LogTarget::Syslog,
            "debug" => self.debug = true,
            "enable_nlink" | "cache_image" | "no_cache_image" => self
                .warnings
                .push(format!("`{name}` is obsolete and has no effect")),
            _ => {
                return IGNORED.contains(&name) || ["x-", "X-"].iter().any(|x| name.starts_with(x));
            }
        }
        true
    }

    fn valued(&mut self, name: &str, value: &OsStr, tidying: &mut Tidying) -> Result<bool> {
        match name {
            "cachesize" => self.open.cache.size = size(value)?,
            "blocksize" => {
                self.mount.block_size = u32::try_from(size(value)?)
                    .map_err(|_| ToolError::new("blocksize must be below 4G"))?;
            }
            "readahead" => self.open.cache.readahead = size(value)?,
            "workers" => self.open.cache.workers = number::<usize>(name, value)?.clamp(1, 1024),
            "uid" => self.mount.uid = user_or_group(name, value, parse_user)?,
            "gid" => self.mount.gid = user_or_group(name, value, parse_group)?,
            "decratio" => {
                let ratio: f64 = number(name, value)?;
                if !(0.0..=1.0).contains(&ratio) {
                    return Err(ToolError::new("decratio must be between 0.0 and 1.0"));
                }
                self.open.cache.partial_ratio = ratio;
            }
            "seq_detector" => self.open.cache.seq_detector = number(name, value)?,
            "offset" => {
                self.open.offset = image_offset(text(value)?).map_err(ToolError::new)?;
            }
            "imagesize" => self.open.image_size = Some(number(name, value)?),
            "mlock" => {
                let words = [("none", Lock::No), ("try", Lock::Try), ("must", Lock::Must)];
                self.lock = one_of(value, &words, "invalid lock mode")?;
            }
            "preload_category" => self
                .preload
                .push(Preload::Category(text(value)?.to_owned())),
            "tidy_strategy" => {
                let words = [
                    ("none", Strategy::None),
                    ("time", Strategy::Time),
                    ("swap", Strategy::Swap),
                ];
                tidying.strategy = one_of(value, &words, "no such cache tidy strategy")?;
            }
            "tidy_interval" => tidying.interval = Some(value.to_owned()),
            "tidy_max_age" => tidying.max_age = Some(value.to_owned()),
            "block_allocator" => {
                self.open.cache.allocator = text(value)?.parse().map_err(|error| {
                    ToolError::new(format!("{error}")).hint("one of malloc, mmap")
                })?;
            }
            "debuglevel" => {
                self.level = Some(text(value)?.parse().map_err(ToolError::new)?);
            }
            "log_file" => self.log = LogTarget::File(file(name, value)?),
            "log_target" => {
                let words = [("stderr", false), ("syslog", true)];
                self.log = match one_of(value, &words, "no such log target")? {
                    true => LogTarget::Syslog,
                    false => LogTarget::Stderr,
                };
            }
            "analysis_file" => self.mount.analysis_file = Some(file(name, value)?),
            "perfmon" => {
                let (found, unknown) = components(value)?;
                self.perfmon = found;
                self.warnings.extend(unknown);
            }
            "perfmon_trace" => self.trace = Some(file(name, value)?),
            "fsname" => {
                self.mount.source = value.to_owned();
                self.named = true;
            }
            "subtype" => {
                let subtype = text(value)?;
                if subtype.is_empty() || !subtype.bytes().all(|b| b.is_ascii_graphic() && b != b',')
                {
                    return Err(ToolError::new("invalid value for option 'subtype'")
                        .cause(display_name(value)));
                }
                subtype.clone_into(&mut self.mount.subtype);
            }
            "max_read" => self.mount.max_read = Some(number(name, value)?),
            "max_threads" => {
                let threads = number::<i32>(name, value)?.clamp(1, MAX_READERS);
                self.mount.readers = threads.unsigned_abs() as usize;
            }
            "max_idle_threads" => {
                number::<i32>(name, value)?;
            }
            "timeout" => {
                let limit = parse_duration(text(value)?).map_err(ToolError::new)?;
                self.mount.idle = Some(limit).filter(|limit| !limit.is_zero());
            }
            // What mount(8) notes about who mounted, and what it finds in the mount table.
            "comment" | "user" | "uhelper" | "helper" | "user_id" | "group_id" => {}
            _ => return Ok(["x-", "X-"].iter().any(|x| name.starts_with(x))),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
