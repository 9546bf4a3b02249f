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
use crate::common::LogLevel;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::number::{parse_duration, parse_size};
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
    /// Remarks for the log.
    pub(super) warnings: Vec<String>,
}

/// Flags that mount(8), `/etc/fstab` and programs for other drivers may hand over and that mean
/// nothing here; `rw` because mount(8) says it unasked.
const IGNORED: [&str; 37] = [
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "defaults",
    "loop",
    "nonempty",
    "nofail",
    "_netdev",
    "rw",
    "ro",
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
const VALUED: [&str; 30] = [
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
    "uid",
    "workers",
    "comment",
    "uhelper",
    "helper",
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
                    .hint("try 'dwarfs --help'")
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
    // Each read that waits holds a thread, whether or not it decompresses something itself.
    settings.mount.workers = settings.open.cache.workers.max(1) + 1;
    Ok(settings)
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

fn components(value: &OsStr) -> Result<Vec<Component>> {
    let names = text(value)?.split('+');
    let mut found = Vec::new();
    for name in names {
        let component = name.parse().map_err(|_| {
            let known = Component::ALL.map(Component::name).join(", ");
            ToolError::new(format!("no such performance monitor component: {name}"))
                .hint(format!("one of {known}"))
        })?;
        if !found.contains(&component) {
            found.push(component);
        }
    }
    Ok(found)
}

impl Settings {
    fn flag(&mut self, name: &str) -> bool {
        let mount = &mut self.mount;
        match name {
            "allow_other" => mount.access = Access::Everyone,
            "allow_root" => mount.access = Access::OwnerAndRoot,
            "auto_unmount" => mount.auto_unmount = true,
            "default_permissions" => mount.default_permissions = true,
            "no_default_permissions" => mount.default_permissions = false,
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
                self.open.offset = text(value)?
                    .parse()
                    .map_err(|error| ToolError::new(format!("{error}")))?;
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
            "perfmon" => self.perfmon = components(value)?,
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
            // What mount(8) notes about who mounted.
            "comment" | "user" | "uhelper" | "helper" => {}
            _ => return Ok(["x-", "X-"].iter().any(|x| name.starts_with(x))),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[&str]) -> Result<Settings> {
        interpret(&list.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn values_arrive() {
        let found = settings(&[
            "cachesize=1g",
            "workers=7",
            "uid=5",
            "uid=6",
            "blocksize=0",
            "offset=auto",
            "imagesize=99",
            "readonly",
            "no_cache_files",
            "allow_root",
            "debuglevel=verbose",
            "decratio=0.5",
            "fsname=a,b",
            "noauto",
            "x-systemd.automount",
            "x-a=b",
            "ro",
            "max_threads=3",
            "suid",
        ])
        .expect("all known");
        assert_eq!(found.open.cache.size, 1 << 30);
        assert_eq!(found.open.cache.workers, 7);
        assert!(matches!(found.open.offset, ImageOffset::Auto));
        assert_eq!(found.open.image_size, Some(99));
        assert_eq!(found.mount.uid, Some(6));
        assert_eq!(found.mount.block_size, 0);
        assert_eq!(found.mount.readers, 3);
        assert_eq!(found.mount.access, Access::OwnerAndRoot);
        assert!(found.mount.hide_write_bits && !found.mount.keep_cache);
        assert!(!found.mount.flags.nosuid && found.mount.flags.nodev);
        assert_eq!(found.mount.source, "a,b");
        assert_eq!(found.level, Some(LogLevel::Verbose));
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    }

    #[test]
    fn the_number_of_readers_is_bounded() {
        for (option, readers) in [
            ("max_threads=0", 1),
            ("max_threads=-5", 1),
            ("max_threads=2", 2),
            ("max_threads=2000000000", 64),
            ("max_idle_threads=7", 1),
        ] {
            let found = settings(&[option]).expect("known");
            assert_eq!(found.mount.readers, readers, "{option}");
        }
        assert!(settings(&["max_threads=many"]).is_err());
    }

    #[test]
    fn the_image_starts_at_zero_unless_told() {
        let found = settings(&[]).expect("nothing wrong");
        assert!(matches!(found.open.offset, ImageOffset::At(0)));
    }

    #[test]
    fn every_option_arrives() {
        let found = settings(&[
            "readahead=2m",
            "mlock=must",
            "preload_all",
            "preload_category=hot",
            "block_allocator=mmap",
            "log_file=/l",
            "analysis_file=a",
            "perfmon=fuse+block_cache+fuse",
            "perfmon_trace=t",
            "case_insensitive",
            "cache_sparse",
            "no_push",
            "no_follow",
            "uring",
            "no_guard",
            "seq_detector=0",
            "debug",
            "user=me",
            "uid=root",
        ])
        .expect("all known");
        assert_eq!(found.open.cache.readahead, 2 << 20);
        assert_eq!(found.lock, Lock::Must);
        assert_eq!(
            found.preload,
            [Preload::All, Preload::Category("hot".into())]
        );
        assert_eq!(
            found.open.cache.allocator,
            redwarfs_reader::BlockAllocator::Mmap
        );
        assert_eq!(found.log, LogTarget::File("/l".into()));
        assert_eq!(found.mount.analysis_file, Some("a".into()));
        assert_eq!(found.perfmon, [Component::Fuse, Component::BlockCache]);
        assert_eq!(found.trace, Some("t".into()));
        assert!(found.mount.case_insensitive && found.mount.cache_sparse);
        assert!(!found.mount.push && !found.mount.guard && found.debug);
        assert!(found.mount.uring && !found.mount.follow);
        for list in [&[][..], &["no_follow", "follow"]] {
            assert!(settings(list).expect("known").mount.follow, "{list:?}");
        }
        for list in [&[][..], &["uring", "no_uring"]] {
            assert!(!settings(list).expect("known").mount.uring, "{list:?}");
        }
        assert_eq!(found.open.cache.seq_detector, 0);
        assert_eq!(found.mount.uid, Some(0));
        let log = |list: &[&str]| settings(list).expect("known").log;
        assert_eq!(log(&["syslog"]), LogTarget::Syslog);
        assert_eq!(log(&["log_file=x", "log_target=syslog"]), LogTarget::Syslog);
        assert_eq!(log(&["syslog", "log_target=stderr"]), LogTarget::Stderr);
    }

    #[test]
    fn tidying() {
        let tidy = |list: &[&str]| settings(list).expect("known").open.cache.tidy;
        let seconds = Duration::from_secs;
        assert_eq!(tidy(&[]), Tidy::None);
        assert_eq!(tidy(&["tidy_interval=zz", "tidy_max_age=.5"]), Tidy::None);
        assert_eq!(
            tidy(&["tidy_strategy=time"]),
            Tidy::Time {
                interval: seconds(300),
                max_age: seconds(600)
            }
        );
        assert_eq!(
            tidy(&["tidy_max_age=7", "tidy_strategy=time", "tidy_interval=2m"]),
            Tidy::Time {
                interval: seconds(120),
                max_age: seconds(7)
            }
        );
        // What does not belong to the strategy is not looked at.
        assert_eq!(
            tidy(&["tidy_strategy=swap", "tidy_interval=1s", "tidy_max_age=zz"]),
            Tidy::Swap {
                interval: seconds(1)
            }
        );
        assert_eq!(
            tidy(&["tidy_strategy=swap", "tidy_strategy=none"]),
            Tidy::None
        );
    }

    /// Says for each option of the table something that it accepts.
    #[test]
    fn the_table_is_what_the_parser_knows() {
        use super::super::table::OPTIONS;
        for entry in &OPTIONS {
            for name in entry.names() {
                let Some((_, kind)) = entry.form.split_once('=') else {
                    assert!(settings(&[&name]).is_ok(), "{name}");
                    let with_value = settings(&[&format!("{name}=1")]);
                    let with_value = with_value.map(drop).map_err(|e| e.exit_code());
                    let also_valued = OPTIONS
                        .iter()
                        .any(|other| other.form.starts_with(&format!("{name}=")));
                    assert!(also_valued || with_value == Err(3), "{name}");
                    continue;
                };
                let value = match (name.as_str(), kind) {
                    ("tidy_strategy", _) => "time",
                    ("block_allocator", _) => "mmap",
                    ("log_target", _) => "syslog",
                    ("perfmon", _) => "fuse",
                    (_, "LEVEL") => "info",
                    (_, "MODE") => "try",
                    _ => "1",
                };
                let found = settings(&[&format!("{name}={value}")]);
                assert!(found.is_ok(), "{name}: {found:?}");
                let alone = settings(&[&name]).map(drop);
                let also_flag = OPTIONS
                    .iter()
                    .any(|other| other.form == format!("(no){name}"));
                assert!(
                    also_flag || alone.is_err_and(|e| e.exit_code() == 3),
                    "{name}"
                );
            }
        }
        // And the other way round.
        let known: Vec<String> = OPTIONS
            .iter()
            .flat_map(super::super::table::Entry::names)
            .collect();
        for name in VALUED {
            let hidden = ["comment", "uhelper", "helper"].contains(&name);
            assert!(hidden || known.iter().any(|k| k == name), "{name}");
        }
    }

    #[test]
    fn obsolete_ones_warn_and_bad_ones_fail() {
        let found = settings(&["cache_image", "tidy_interval=zz", "perfmon_trace=x"]);
        assert_eq!(
            found.expect("known").warnings,
            [
                "`cache_image` is obsolete and has no effect",
                "perfmon_trace has no effect without perfmon"
            ]
        );
        let table = [
            ("bogus", 3, "unknown option: -o bogus"),
            ("bogus=1", 3, "unknown option: -o bogus=1"),
            ("readonly=1", 3, "unknown option: -o readonly=1"),
            ("cachesize", 3, "option 'cachesize' needs a value"),
            ("cachesize=", 1, "cannot parse size value: "),
            ("cachesize=5q", 1, "unsupported size suffix: q"),
            ("cachesize=abc", 1, "cannot parse size value: abc"),
            ("blocksize=4g", 1, "blocksize must be below 4G"),
            ("workers=abc", 1, "invalid value for option 'workers': abc"),
            (
                "seq_detector=-1",
                1,
                "invalid value for option 'seq_detector': -1",
            ),
            (
                "imagesize=1k",
                1,
                "invalid value for option 'imagesize': 1k",
            ),
            (
                "uid=4294967296",
                1,
                "invalid value for option 'uid': 4294967296: user id out of range [0..4294967295]",
            ),
            (
                "gid=-1",
                1,
                "invalid value for option 'gid': -1: unknown group",
            ),
            ("mlock=yes", 1, "invalid lock mode: yes"),
            ("decratio=2", 1, "decratio must be between 0.0 and 1.0"),
            ("decratio=nan", 1, "decratio must be between 0.0 and 1.0"),
            ("decratio=x", 1, "invalid value for option 'decratio': x"),
            ("debuglevel=loud", 1, "invalid logger level: loud"),
            ("offset=foo", 1, "failed to parse image offset: foo"),
            ("offset=-5", 1, "image offset must be positive"),
            ("log_target=moon", 1, "no such log target: moon"),
            ("log_file=", 1, "option 'log_file' needs a path"),
            ("subtype=", 1, "invalid value for option 'subtype': "),
            (
                "perfmon=fuse+foo",
                1,
                "no such performance monitor component: foo",
            ),
            ("perfmon=", 1, "no such performance monitor component: "),
            (
                "tidy_strategy=never",
                1,
                "no such cache tidy strategy: never",
            ),
            ("block_allocator=foo", 1, "no such block allocator: foo"),
        ];
        for (option, code, text) in table {
            let error = settings(&[option]).expect_err(option);
            assert_eq!(error.line("dwarfs"), format!("dwarfs: {text}"));
            assert_eq!(error.exit_code(), code, "{option}");
        }
        for (option, text) in [
            ("tidy_interval=.5s", "unsupported time suffix: .5s"),
            ("tidy_interval=0", "tidy_interval must not be zero"),
            ("tidy_max_age=0s", "tidy_max_age must not be zero"),
        ] {
            let both = settings(&["tidy_strategy=time", option]);
            assert_eq!(
                both.expect_err(option).line("dwarfs"),
                format!("dwarfs: {text}")
            );
        }
    }
}
