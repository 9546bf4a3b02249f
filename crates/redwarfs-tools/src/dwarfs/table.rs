//! Every `-o` option: names, value, default, help, section, manual, and what it does.
//!
//! Parser, help, manual and completions follow from this table.

use redwarfs_fuse::Access;
use redwarfs_reader::Preload;
use redwarfs_reader::perfmon::Component;

use super::entry::{Effect, Group, MountOption, entry};
use super::settings::{Lock, LogTarget, Strategy};
use crate::common::error::ToolError;
use crate::common::open::image_offset;
use crate::common::users::{parse_group, parse_user};

/// Most threads that read requests.
const MAX_READERS: i32 = 64;

/// The parts that are named, and remarks about names that there are not.
fn components(text: &str) -> (Vec<Component>, Vec<String>) {
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

/// All options, in the order of the help text.
pub(super) const OPTIONS: [MountOption; 63] = [
    entry(
        Group::Image,
        "offset=N|auto|auto:N",
        "0",
        "where the image starts in its file",
        "A number of bytes; `auto` searches for the first image, `auto:N` for the *N*-th, counted from 1.",
        Effect::Value(|s, v| {
            s.open.offset = v.parsed(image_offset)?;
            Ok(())
        }),
    ),
    entry(
        Group::Image,
        "imagesize=N",
        "",
        "size of the image in bytes",
        "By default the end is found by itself, also if something else follows in the file.",
        Effect::Value(|s, v| {
            s.open.image_size = Some(v.number()?);
            Ok(())
        }),
    ),
    entry(
        Group::Files,
        "uid=N",
        "as stored",
        "owner of every file, a number or a name",
        "",
        Effect::Value(|s, v| {
            s.mount.uid = v.id(parse_user)?;
            Ok(())
        }),
    ),
    entry(
        Group::Files,
        "gid=N",
        "as stored",
        "group of every file, likewise",
        "",
        Effect::Value(|s, v| {
            s.mount.gid = v.id(parse_group)?;
            Ok(())
        }),
    ),
    entry(
        Group::Files,
        "readonly",
        "",
        "hide the write permissions in all modes",
        "The mount is read-only in any case. Do not use it below a writable overlay file system, which would take directories for unwritable.",
        Effect::Flag(|s| s.mount.hide_write_bits = true),
    ),
    entry(
        Group::Files,
        "blocksize=SIZE",
        "512K",
        "preferred I/O size in stat(2)",
        "0 shows the system's own value.",
        Effect::Value(|s, v| {
            s.mount.block_size = u32::try_from(v.size()?)
                .map_err(|_| ToolError::new("blocksize must be below 4G"))?;
            Ok(())
        }),
    ),
    entry(
        Group::Files,
        "case_insensitive",
        "",
        "find names in any letter case",
        "With Unicode case folding. An exact match always wins; a directory with names that differ only in case is reported as a warning. The index is made while mounting and takes 8 bytes for each name that has capitals.",
        Effect::Flag(|s| s.mount.case_insensitive = true),
    ),
    entry(
        Group::Files,
        "(no_)list_xattrs",
        "off",
        "list the extended attributes",
        "Those that describe driver and files are answered by name in any case. Listed, they end up in copies: `cp -a`, `rsync -X`, `tar --xattrs` and overlay file systems write them into the result.",
        Effect::Switch(|s, on| s.mount.list_xattrs = on),
    ),
    entry(
        Group::Cache,
        "cachesize=SIZE",
        "512M",
        "memory for decompressed blocks",
        "Not a limit of the process: blocks that are being decompressed or read come on top, and so do the last ones that were read but not to their end, one for each worker and one more. If one block is larger than the cache, a warning says so. With 0 only those blocks are kept. Blocks that are not compressed are read from the image file and take 1/1024 of their size.",
        Effect::Value(|s, v| {
            s.open.cache.size = v.size()?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "workers=N",
        "2",
        "decompression threads",
        "0 counts as 1.",
        Effect::Value(|s, v| {
            s.open.cache.workers = v.number::<usize>()?.clamp(1, 1024);
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "max_threads=N",
        "1",
        "threads that read requests",
        "From 1 to 64. Two take less time for several processes that read at random what is decoded already, more for everything else.",
        Effect::Value(|s, v| {
            let threads = v.number::<i32>()?.clamp(1, MAX_READERS);
            s.mount.readers = threads.unsigned_abs() as usize;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "decratio=RATIO",
        "0.8",
        "finish a block once this much was used",
        "From 0 to 1. A block is decompressed as far as it is needed; when more than this share of it is done, the rest follows in the background, which frees the decompressor. Below 1, so does a rest of at most 16 MiB if the block is read at random: after two requests far behind everything that is done, or one if the whole image fits into the cache.",
        Effect::Value(|s, v| {
            let ratio: f64 = v.number()?;
            if !(0.0..=1.0).contains(&ratio) {
                return Err(ToolError::new("decratio must be between 0.0 and 1.0"));
            }
            s.open.cache.partial_ratio = ratio;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "seq_detector=N",
        "4",
        "prefetch after N blocks in sequence",
        "If a process reads a large file from front to back, the driver also decompresses two blocks or 4 MiB ahead, whichever is more. 0 switches both off.",
        Effect::Value(|s, v| {
            s.open.cache.seq_detector = v.number()?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "readahead=SIZE",
        "0",
        "decompress this much ahead of reads",
        "",
        Effect::Value(|s, v| {
            s.open.cache.readahead = v.size()?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "preload_all",
        "",
        "decompress blocks right after mounting",
        "As many as fit in the cache, in the background.",
        Effect::Flag(|s| s.preload.push(Preload::All)),
    ),
    entry(
        Group::Cache,
        "preload_category=NAME",
        "",
        "the same, only those of a category",
        "If the image has no such category, a warning names those it has. `dwarfsck -d3` shows them, too.",
        Effect::Value(|s, v| {
            s.preload.push(Preload::Category(v.text()?.to_owned()));
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "tidy_strategy=NAME",
        "none",
        "drop idle blocks: none, time, swap",
        "`time`: those not used for `tidy_max_age`. `swap`: those that the system has swapped out, even partly.",
        Effect::Value(|s, v| {
            let words = [
                ("none", Strategy::None),
                ("time", Strategy::Time),
                ("swap", Strategy::Swap),
            ];
            s.tidying.strategy = v.one_of(&words, "no such cache tidy strategy")?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "tidy_interval=TIME",
        "5m",
        "time between two looks for idle blocks",
        "Only with a strategy. A number with a unit: ns, us, ms, s, m, h, d.",
        Effect::Value(|s, v| {
            s.tidying.interval = Some(v.value.to_owned());
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "tidy_max_age=TIME",
        "10m",
        "age of an idle block, for time",
        "",
        Effect::Value(|s, v| {
            s.tidying.max_age = Some(v.value.to_owned());
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "block_allocator=NAME",
        "malloc",
        "memory of blocks: malloc, mmap",
        "`mmap` gives the memory back to the system as soon as a block is dropped, but is slower for small blocks.",
        Effect::Value(|s, v| {
            s.open.cache.allocator = v
                .text()?
                .parse()
                .map_err(|error| ToolError::new(format!("{error}")).hint("one of malloc, mmap"))?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "mlock=MODE",
        "none",
        "keep metadata in RAM: none, try, must",
        "`try` warns if the system refuses (see `ulimit -l`), `must` does not mount then.",
        Effect::Value(|s, v| {
            let words = [("none", Lock::No), ("try", Lock::Try), ("must", Lock::Must)];
            s.lock = v.one_of(&words, "invalid lock mode")?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "(no_)cache_files",
        "on",
        "let the kernel keep data of files",
        "Across openings. Without it every opening reads again, through the block cache.",
        Effect::Switch(|s, on| s.mount.keep_cache = on),
    ),
    entry(
        Group::Cache,
        "(no_)cache_sparse",
        "off",
        "the same for files with holes",
        "Holes that the kernel keeps take as much memory as data.",
        Effect::Switch(|s, on| s.mount.cache_sparse = on),
    ),
    entry(
        Group::Cache,
        "(no_)push",
        "on",
        "hand small files to the kernel early",
        "When small files are read in the order of the image, the next ones are given to the kernel before it asks, as far as they are decompressed already.",
        Effect::Switch(|s, on| s.mount.push = on),
    ),
    entry(
        Group::Cache,
        "(no_)follow",
        "on",
        "run on the CPU of the requesting process",
        "While one process sends many small requests in turn, the thread that answers them moves to the CPU of that process and lets it run first. This saves waking another CPU for each request. If anything else wants that CPU, the thread moves back within milliseconds. The option needs two CPUs and the right to leave the scheduling policy SCHED_IDLE, which root has. Otherwise it is a no-op.",
        Effect::Switch(|s, on| s.mount.follow = on),
    ),
    entry(
        Group::Cache,
        "(no_)uring",
        "off",
        "get requests over io_uring",
        "Needs Linux 6.14, and root has to allow it once: `echo Y > /sys/module/fuse/parameters/enable_uring`. Otherwise the driver falls back to the usual way; with `debuglevel=debug` the log says which one it uses. On CPUs other than x86-64, AArch64, RISC-V, LoongArch and POWER (64 bits each) the option is a no-op with a warning. Several processes that read small files or at random gain most. One process gains little, and sequential reading gains nothing. The driver reserves 16 MiB of address space for each CPU, and uses memory of it only as far as answers reach. `max_threads` has no effect. While an image stalls, 16 reads from one CPU can wait for it. Further requests from this CPU then wait with them, and can be killed like them.",
        Effect::Switch(|s, on| s.mount.uring = on),
    ),
    entry(
        Group::Log,
        "debuglevel=LEVEL",
        "warn",
        "error warn info verbose debug trace",
        "Less important messages than this are left out. In the foreground, and with a log file or the system log, the default is *info*. `verbose` shows statistics of the cache at the end, `debug` every request of the kernel.",
        Effect::Value(|s, v| {
            s.level = Some(v.parsed(str::parse)?);
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "log_file=FILE",
        "",
        "append messages to a file",
        "Instead of standard error, which is lost in the background. Errors that keep the command from mounting are shown on standard error, too. The file gets a line with the date before the first message of a day. It is kept open; when it is truncated by a program that rotates logs, messages go on at its start.",
        Effect::Value(|s, v| {
            s.log = LogTarget::File(v.path()?);
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "log_target=NAME",
        "stderr",
        "where messages go: stderr, syslog",
        "",
        Effect::Value(|s, v| {
            let words = [("stderr", false), ("syslog", true)];
            s.log = match v.one_of(&words, "no such log target")? {
                true => LogTarget::Syslog,
                false => LogTarget::Stderr,
            };
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "syslog",
        "",
        "the same as log_target=syslog",
        "Messages go to the system log as facility *daemon* with the name and number of the process. When the system log is too slow, messages are lost and counted; the driver never waits for it.",
        Effect::Flag(|s| s.log = LogTarget::Syslog),
    ),
    entry(
        Group::Log,
        "analysis_file=FILE",
        "",
        "record the first opening of each file",
        "One path per line, relative to the root of the image, in the order in which files are opened. This is what `mkdwarfs` takes for its hotness categorizer and for an explicit order. The file is emptied at the start.",
        Effect::Value(|s, v| {
            s.mount.analysis_file = Some(v.path()?);
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "perfmon=NAME[+NAME...]",
        "",
        "measure the time of operations",
        "Of these parts: `fuse`, `filesystem_v2`, `inode_reader_v2`, `block_cache`. Other names give a warning. The result is in the extended attribute `user.dwarfs.driver.perfmon` of the root, and is logged at the end and on SIGUSR1.",
        Effect::Value(|s, v| {
            let (found, unknown) = components(v.text()?);
            s.perfmon = found;
            s.warnings.extend(unknown);
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "perfmon_trace=FILE",
        "",
        "write what was measured at the end",
        "In the trace event format that browsers show (`about:tracing`). Needs `perfmon`.",
        Effect::Value(|s, v| {
            s.trace = Some(v.path()?);
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "allow_other",
        "",
        "let all users use the mount",
        "Users other than root need `user_allow_other` in `/etc/fuse.conf` for this and the next.",
        Effect::Flag(|s| s.mount.access = Access::Everyone),
    ),
    entry(
        Group::Mount,
        "allow_root",
        "",
        "let root use the mount",
        "",
        Effect::Flag(|s| s.mount.access = Access::OwnerAndRoot),
    ),
    entry(
        Group::Mount,
        "(no_)default_permissions",
        "see --man",
        "check the permissions of files",
        "On with `allow_other` and if root mounts, off otherwise: see WHO MAY READ WHAT. Without it everybody who may use the mount can read every file.",
        Effect::Switch(|s, on| s.mount.default_permissions = Some(on)),
    ),
    entry(
        Group::Mount,
        "(no_)guard",
        "on",
        "unmount if the driver is killed",
        "A small second process waits for the end of the driver and takes off the mount if the driver could not.",
        Effect::Switch(|s, on| s.mount.guard = on),
    ),
    entry(
        Group::Mount,
        "auto_unmount",
        "",
        "the same, by fusermount3",
        "",
        Effect::Flag(|s| s.mount.auto_unmount = true),
    ),
    entry(
        Group::Mount,
        "timeout=SECONDS",
        "never",
        "unmount when nobody uses it so long",
        "It can take a quarter longer, and one second at least. The mount stays while something in it is open, runs, or is a working directory. A unit may follow the number. 0: never.",
        Effect::Value(|s, v| {
            s.mount.idle = Some(v.duration()?).filter(|limit| !limit.is_zero());
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "nonempty",
        "",
        "hide what is in the directory silently",
        "A mount on a directory that is not empty works without it, but with a warning.",
        Effect::Flag(|s| s.over_others = true),
    ),
    entry(
        Group::Mount,
        "remount",
        "",
        "change flags of a mount, for mount(8)",
        "Takes over `suid`, `dev`, `exec` and their opposites; everything else stays as it is.",
        // The driver decides this before it reads the options.
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Mount,
        "fsname=NAME",
        "path of the image",
        "source in the mount table",
        "",
        Effect::Value(|s, v| {
            s.mount.source = v.value.to_owned();
            s.named = true;
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "subtype=NAME",
        "dwarfs",
        "type in the mount table: fuse.NAME",
        "",
        Effect::Value(|s, v| {
            let subtype = v.text()?;
            if subtype.is_empty() || !subtype.bytes().all(|b| b.is_ascii_graphic() && b != b',') {
                return Err(v.invalid());
            }
            subtype.clone_into(&mut s.mount.subtype);
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "(no)suid",
        "nosuid",
        "obey set-user-id bits",
        "Only root may ask for these.",
        Effect::Switch(|s, on| s.mount.flags.nosuid = !on),
    ),
    entry(
        Group::Mount,
        "(no)dev",
        "nodev",
        "open devices",
        "",
        Effect::Switch(|s, on| s.mount.flags.nodev = !on),
    ),
    entry(
        Group::Mount,
        "(no)exec",
        "exec",
        "run programs",
        "",
        Effect::Switch(|s, on| s.mount.flags.noexec = !on),
    ),
    entry(
        Group::Mount,
        "max_read=N",
        "",
        "largest read request in bytes",
        "",
        Effect::Value(|s, v| {
            s.mount.max_read = Some(v.number()?);
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "debug",
        "",
        "the same as -d",
        "",
        Effect::Flag(|s| s.debug = true),
    ),
    entry(
        Group::Ignored,
        "enable_nlink",
        "",
        "obsolete, with a warning",
        "",
        Effect::Obsolete,
    ),
    entry(
        Group::Ignored,
        "(no_)cache_image",
        "",
        "obsolete, with a warning",
        "",
        Effect::Obsolete,
    ),
    entry(
        Group::Ignored,
        "ro",
        "",
        "the mount is read-only anyway",
        "",
        Effect::Flag(|s| s.writable = false),
    ),
    entry(
        Group::Ignored,
        "rw",
        "",
        "likewise, with a warning",
        "",
        Effect::Flag(|s| s.writable = true),
    ),
    entry(
        Group::Ignored,
        "max_idle_threads=N",
        "",
        "readers of requests stay",
        "",
        Effect::Value(|_, v| v.number::<i32>().map(drop)),
    ),
    entry(
        Group::Ignored,
        "(no_)clone_fd",
        "",
        "likewise",
        "",
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Ignored,
        "(no)auto",
        "",
        "for /etc/fstab, as the following",
        "",
        Effect::Flag(|_| {}),
    ),
    entry(Group::Ignored, "(no)user", "", "", "", Effect::Flag(|_| {})),
    entry(
        Group::Ignored,
        "user=NAME",
        "",
        "",
        "",
        Effect::Value(|_, _| Ok(())),
    ),
    entry(Group::Ignored, "users", "", "", "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "owner", "", "", "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "group", "", "", "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "defaults", "", "", "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "nofail", "", "", "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "loop", "", "", "", Effect::Flag(|_| {})),
];
