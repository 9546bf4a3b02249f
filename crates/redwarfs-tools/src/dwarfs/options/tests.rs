use super::*;
use redwarfs_fuse::Access;
use redwarfs_reader::perfmon::Component;
use redwarfs_reader::{ImageOffset, Preload, Tidy};
use std::time::Duration;

use super::super::settings::{Lock, LogTarget};
use crate::common::LogLevel;

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
fn mistyped_options_are_recognized() {
    for (option, want) in [
        ("cache_size=1g", "did you mean '-o cachesize=SIZE'?"),
        ("worker=3", "did you mean '-o workers=N'?"),
        ("readnoly", "did you mean '-o readonly'?"),
        ("no_cachefiles", "did you mean '-o no_cache_files'?"),
        ("tidystrategy=time", "did you mean '-o tidy_strategy="),
        ("readonly=1", "it takes no value: -o readonly"),
        ("xyzzy", "try 'dwarfs --help'"),
    ] {
        let error = settings(&[option]).expect_err(option).full_line("dwarfs");
        assert!(error.contains(want), "{error}");
    }
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
                ("verify", _) => "digests",
                ("repair", _) => "memory",
                ("whiteouts", _) => "oci",
                ("rw_driver", _) => "own",
                (_, "LEVEL") => "info",
                (_, "MODE") => "try",
                _ => "1",
            };
            let found = settings(&[&format!("{name}={value}")]);
            assert!(found.is_ok(), "{name}: {found:?}");
            let alone = settings(&[&name]).map(drop);
            let also_flag = OPTIONS
                .iter()
                .any(|other| other.form == format!("(no){name}") || other.form == name);
            assert!(
                also_flag || alone.is_err_and(|e| e.exit_code() == 3),
                "{name}"
            );
        }
    }
}

#[test]
fn what_the_mount_is_like_arrives() {
    let found = settings(&[
        "timeout=90",
        "nonempty",
        "rw",
        "list_xattrs",
        "no_default_permissions",
        "user_id=0",
        "remount",
    ]);
    let found = found.expect("all known");
    assert_eq!(found.mount.idle, Some(Duration::from_secs(90)));
    assert!(found.over_others && found.writable && found.mount.list_xattrs);
    assert_eq!(found.mount.default_permissions, Some(false));
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    let found = settings(&["timeout=2m", "timeout=0", "rw", "ro", "no_list_xattrs"]);
    let found = found.expect("all known");
    assert_eq!(found.mount.idle, None);
    assert!(!found.writable && !found.over_others && !found.mount.list_xattrs);
    assert_eq!(found.mount.default_permissions, None);
}

#[test]
fn what_this_program_does_not_have_is_a_warning() {
    let found = settings(&["perfmon=fuse+foo+"]).expect("known");
    assert_eq!(found.perfmon, [Component::Fuse]);
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    assert!(found.warnings[0].starts_with("no such performance monitor component: foo ("));
    let found = settings(&["uring"]).expect("known");
    assert_eq!(found.warnings.is_empty(), redwarfs_fuse::HAS_URING);
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
        (
            "cachesize=5q",
            1,
            "unsupported size suffix: q (one of k, m, g, t)",
        ),
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
        (
            "debuglevel=loud",
            1,
            "invalid logger level: loud (one of error, warn, info, verbose, debug, trace)",
        ),
        (
            "offset=foo",
            1,
            "failed to parse image offset: foo (a number of bytes, auto, or auto:N)",
        ),
        ("offset=-5", 1, "image offset must be positive"),
        ("log_target=moon", 1, "no such log target: moon"),
        ("log_file=", 1, "option 'log_file' needs a path"),
        ("subtype=", 1, "invalid value for option 'subtype': "),
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
        (
            "tidy_interval=.5s",
            "unsupported time suffix: .5s (one of ns, us, ms, s, m, h, d)",
        ),
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
