//! The values of `-o`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use redwarfs_fuse::{Access, MountOptions};
use redwarfs_reader::{ImageOffset, OpenOptions};

use super::EXIT_SETUP;
use crate::common::LogLevel;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::number::{parse_duration, parse_size};

/// Everything that `-o` can say.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) mount: MountOptions,
    pub(super) open: OpenOptions,
    pub(super) level: Option<LogLevel>,
    /// `-o debug`.
    pub(super) debug: bool,
    /// The name for the mount table was given.
    pub(super) named: bool,
    /// Remarks for the log.
    pub(super) warnings: Vec<String>,
}

/// Options without a value that mount(8), `/etc/fstab` and old releases may hand over and that
/// mean nothing here; `rw` because mount(8) says it unasked.
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
    "clone_fd",
    "cache_sparse",
    "no_clone_fd",
];

/// Interprets single options; later ones win.
pub(super) fn interpret(options: &[OsString]) -> Result<Settings> {
    let mut settings = Settings {
        mount: MountOptions::default(),
        open: OpenOptions {
            offset: ImageOffset::At(0),
            ..OpenOptions::default()
        },
        level: None,
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
        if !known {
            return Err(
                ToolError::new(format!("unknown option: -o {}", display_name(option)))
                    .hint("try 'dwarfs --help'")
                    .code(EXIT_SETUP),
            );
        }
    }
    tidying.check()?;
    // Each read that waits holds a thread, whether or not it decompresses something itself.
    settings.mount.workers = settings.open.cache.workers.max(1) + 1;
    Ok(settings)
}

/// `tidy_interval` and `tidy_max_age` are looked at only together with a strategy.
#[derive(Debug, Default)]
struct Tidying {
    on: bool,
    durations: Vec<OsString>,
}

impl Tidying {
    fn check(&self) -> Result<()> {
        for value in self.durations.iter().filter(|_| self.on) {
            parse_duration(text(value)?).map_err(ToolError::new)?;
        }
        Ok(())
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

fn one_of(value: &OsStr, words: &[&str], complaint: &str) -> Result<()> {
    if words.iter().any(|word| value == *word) {
        Ok(())
    } else {
        Err(ToolError::new(format!(
            "{complaint}: {}",
            display_name(value)
        )))
    }
}

impl Settings {
    fn later(&mut self, name: &str) {
        self.warnings
            .push(format!("option '{name}' is not supported yet, ignored"));
    }

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
            "cache_files" => mount.keep_cache = true,
            "no_cache_files" => mount.keep_cache = false,
            "debug" => self.debug = true,
            "case_insensitive" | "preload_all" | "no_cache_sparse" => self.later(name),
            "enable_nlink" | "cache_image" | "no_cache_image" => self
                .warnings
                .push(format!("`{name}` is obsolete and has no effect")),
            _ => return IGNORED.contains(&name) || name.starts_with("x-"),
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
            "workers" => self.open.cache.workers = number::<usize>(name, value)?.clamp(1, 1024),
            "uid" => self.mount.uid = Some(number(name, value)?),
            "gid" => self.mount.gid = Some(number(name, value)?),
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
            "debuglevel" => {
                self.level = Some(text(value)?.parse().map_err(ToolError::new)?);
            }
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
            "max_threads" | "max_idle_threads" => {
                number::<u32>(name, value)?;
            }
            "readahead" => {
                if size(value)? != 0 {
                    self.later(name);
                }
            }
            "mlock" => {
                one_of(value, &["none", "try", "must"], "invalid lock mode")?;
                if value != "none" {
                    self.later(name);
                }
            }
            "tidy_strategy" => {
                one_of(
                    value,
                    &["none", "time", "swap"],
                    "no such cache tidy strategy",
                )?;
                tidying.on = value != "none";
                if tidying.on {
                    self.later(name);
                }
            }
            "tidy_interval" | "tidy_max_age" => tidying.durations.push(value.to_owned()),
            "block_allocator" => {
                one_of(value, &["malloc", "mmap"], "no such block allocator")?;
                if value != "malloc" {
                    self.later(name);
                }
            }
            "preload_category" | "analysis_file" | "perfmon" | "perfmon_trace" => self.later(name),
            "comment" => {}
            _ => return Ok(name.starts_with("x-")),
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
        assert_eq!(found.mount.access, Access::OwnerAndRoot);
        assert!(found.mount.hide_write_bits && !found.mount.keep_cache);
        assert!(!found.mount.flags.nosuid && found.mount.flags.nodev);
        assert_eq!(found.mount.source, "a,b");
        assert_eq!(found.level, Some(LogLevel::Verbose));
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    }

    #[test]
    fn the_image_starts_at_zero_unless_told() {
        let found = settings(&[]).expect("nothing wrong");
        assert!(matches!(found.open.offset, ImageOffset::At(0)));
    }

    #[test]
    fn unsupported_ones_warn_and_bad_ones_fail() {
        let found = settings(&["mlock=try", "cache_image", "tidy_interval=zz"]).expect("known");
        assert_eq!(
            found.warnings,
            [
                "option 'mlock' is not supported yet, ignored",
                "`cache_image` is obsolete and has no effect"
            ]
        );
        let table = [
            ("bogus", 3, "unknown option: -o bogus"),
            ("bogus=1", 3, "unknown option: -o bogus=1"),
            ("cachesize=5q", 1, "unsupported size suffix: q"),
            ("workers=abc", 1, "invalid value for option 'workers': abc"),
            ("mlock=yes", 1, "invalid lock mode: yes"),
            ("decratio=2", 1, "decratio must be between 0.0 and 1.0"),
            ("decratio=nan", 1, "decratio must be between 0.0 and 1.0"),
            ("debuglevel=loud", 1, "invalid logger level: loud"),
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
        let both = settings(&["tidy_strategy=time", "tidy_interval=.5s"]);
        assert_eq!(
            both.expect_err("bad duration").line("dwarfs"),
            "dwarfs: unsupported time suffix: .5s"
        );
    }
}
