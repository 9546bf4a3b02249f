//! Every `-o` option: names, value, default, help, section, manual, and effect.
//!
//! Parser, help, manual and completions are made from this table.

use redwarfs_fuse::Access;
use redwarfs_reader::Preload;

use super::entry::{Effect, Group, MountOption, entry};
use super::settings::{Lock, LogTarget, Strategy, components};
use super::table_hints as hints;
use super::table_ignored::IGNORED;
use super::table_images as images;
use super::table_layer::{RW, RW_DRIVER, RW_LAYER};
use crate::common::error::ToolError;
use crate::common::open::image_offset;
use crate::common::users::{parse_group, parse_user};
use crate::common::verify::verification;

/// Largest number of threads that read requests.
const MAX_READERS: i32 = 64;

/// All options, in the order of the help text.
pub(super) const OPTIONS: [MountOption; ACTIVE.len() + IGNORED.len()] = {
    let mut all = [IGNORED[0]; ACTIVE.len() + IGNORED.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = match at < ACTIVE.len() {
            true => ACTIVE[at],
            false => IGNORED[at - ACTIVE.len()],
        };
        at += 1;
    }
    all
};

/// The options that have an effect.
const ACTIVE: &[MountOption] = &[
    entry(
        Group::Image,
        "offset=N|auto|auto:N",
        "0",
        "offset of the image in its file",
        "*N* is a number of bytes. `auto` searches for the first image, `auto:N` for the *N*-th one, counted from 1.",
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
        "By default the driver finds the end of the image itself, even if other data follows it.",
        Effect::Value(|s, v| {
            s.open.image_size = Some(v.number()?);
            Ok(())
        }),
    ),
    entry(
        Group::Image,
        "verify=WHAT",
        "checksums",
        "what the image must prove",
        "One of `signed:KEY`, `digests` and `checksums`. With `signed:KEY`, the driver mounts only an image that is signed with the key: a public key of minisign or SSH, or a file with one. No byte that is not signed is interpreted. The driver says who has signed and when; if it is an older image than expected, somebody may have exchanged it. Names and numbers of snapshots are not signed: with `snapshot`, somebody who can write to the file can give a signed snapshot the name of another one. The log says of which time the tree is. `digests` compares the image with its own digests, which anybody can make.",
        Effect::Value(|s, v| {
            s.open.verification = v.parsed(verification)?;
            Ok(())
        }),
    ),
    images::REPAIR,
    images::SIDECAR,
    images::SNAPSHOT,
    images::SNAPSHOTS,
    images::FOLLOW_NEWEST,
    images::DIR,
    images::OPEN_IMAGES,
    images::CLOSE_AFTER,
    images::CTL,
    images::UNION,
    images::WHITEOUTS,
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
        "group of every file, a number or a name",
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
        "The mount is read-only in any case. Do not use this option for the lower layer of a writable overlay file system: the overlay would refuse to write to the directories.",
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
        "The driver uses Unicode case folding. An exact match always wins. If names of a directory differ only in case, a warning says so. While mounting, the driver makes an index of 8 bytes for each name that has capitals.",
        Effect::Flag(|s| s.mount.case_insensitive = true),
    ),
    entry(
        Group::Files,
        "(no_)list_xattrs",
        "off",
        "list the attributes of the driver",
        "The extended attributes that describe the driver and the files can always be read by name. If they are listed, `cp -a`, `rsync -X`, `tar --xattrs` and overlay file systems copy them.",
        Effect::Switch(|s, on| s.mount.list_xattrs = on),
    ),
    entry(
        Group::Files,
        "noxattr",
        "",
        "show no extended attributes",
        "Neither those of the image nor those of the driver. Access control lists of the image do not count. The group bits of a file with such a list are the mask of the list, so the group of the file may get more permissions than with the list. The image may have damaged tables of extended attributes.",
        Effect::Flag(|s| {
            s.mount.xattrs = false;
            s.open.ignore_xattrs = true;
        }),
    ),
    entry(
        Group::Cache,
        "cachesize=SIZE",
        "512M",
        "memory for decompressed blocks",
        "This does not limit the memory of the process: blocks that are being decompressed or read come on top. So do the last blocks that were read, but not to their end: one for each worker, and one more. With 0 only those blocks are kept. If one block is larger than the cache, a warning says so. An uncompressed block is read from the image file, and takes 1/1024 of its size in the cache.",
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
        "From 1 to 64. Two threads are faster than one if several processes read decompressed data at random, and slower in all other cases.",
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
        "finish a block after this share of it",
        "From 0 to 1. The driver decompresses a block as far as requests need it. When more than this share is decompressed, it decompresses the rest in the background, which frees the decompressor. If the value is below 1, it also finishes a block that is read at random and lacks at most 16 MiB: after two requests far beyond the decompressed part, or after one if the whole image fits into the cache.",
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
        "If a process reads a large file from front to back, the driver also decompresses two blocks or 4 MiB ahead, whichever is more. From a server, it also fetches neighbours of requested blocks. 0 switches off all of this.",
        Effect::Value(|s, v| {
            s.open.cache.seq_detector = v.number()?;
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "readahead=SIZE",
        "0",
        "decompress this much beyond each read",
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
        "The driver decompresses as many blocks as fit into the cache, in the background.",
        Effect::Flag(|s| s.preload.push(Preload::All)),
    ),
    entry(
        Group::Cache,
        "preload_category=NAME",
        "",
        "as preload_all, only blocks of a category",
        "If the image has no such category, a warning lists its categories. `dwarfsck -d3` lists them, too.",
        Effect::Value(|s, v| {
            s.preload.push(Preload::Category(v.text()?.to_owned()));
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "cache_dir=DIR",
        "",
        "keep blocks in this directory, too",
        "For images on servers and slow media. The directory gets each block that is read, as it is stored in the image, and what opening the image needs. The next mount reads them from there, and asks the server once whether the image is the same. Several mounts and users of one account can share a directory, which is made if it is missing. Only this account may be able to write to it. If the disk is full or cannot be written to, a warning says so, and the mount goes on without it. Damaged entries are fetched anew.",
        Effect::Value(|s, v| {
            s.disk_cache.directory = Some(v.path()?);
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "cache_limit=SIZE",
        "10G",
        "size of the directory of cache_dir",
        "What was not used for the longest time goes first. With several mounts, the smallest limit counts while that mount adds blocks.",
        Effect::Value(|s, v| {
            s.disk_cache.limit = Some(v.size()?);
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "offline",
        "",
        "read only from cache_dir, ask no server",
        "For images on servers. The image must have been mounted with `cache_dir` before. Reading what the directory lacks is an error.",
        Effect::Flag(|s| s.disk_cache.offline = true),
    ),
    entry(
        Group::Cache,
        "prefetch=PATTERN",
        "",
        "fetch the data of these files after mounting",
        "A glob, as for `dwarfsextract`: a path without special characters means everything below it. The option can be given several times. In the background, the driver fetches the blocks of the files into the directory of `cache_dir`. Without that, it decompresses as many of them as fit into the cache in memory. Also `--prefetch` *PATTERN*.",
        Effect::Value(|s, v| {
            s.prefetch.push(v.value.to_owned());
            super::prefetch::patterns(&s.prefetch).map(drop)
        }),
    ),
    hints::HINTS,
    hints::HINTS_FILE,
    hints::HINTS_TIME,
    entry(
        Group::Cache,
        "tidy_strategy=NAME",
        "none",
        "drop idle blocks: none, time, swap",
        "`time` drops blocks that were not used for `tidy_max_age`. `swap` drops blocks that are swapped out, even in part.",
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
        "time between two searches for idle blocks",
        "Needs `tidy_strategy`. A number with a unit: ns, us, ms, s, m, h, d.",
        Effect::Value(|s, v| {
            s.tidying.interval = Some(v.value.to_owned());
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "tidy_max_age=TIME",
        "10m",
        "idle time until strategy time drops a block",
        "Needs `tidy_strategy=time`.",
        Effect::Value(|s, v| {
            s.tidying.max_age = Some(v.value.to_owned());
            Ok(())
        }),
    ),
    entry(
        Group::Cache,
        "block_allocator=NAME",
        "malloc",
        "allocator of blocks: malloc, mmap",
        "`mmap` returns the memory to the system as soon as a block is dropped, but is slower than `malloc` for small blocks.",
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
        "If the system refuses (see `ulimit -l`), `try` warns, and `must` does not mount.",
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
        "keep file data in the page cache",
        "The kernel keeps the data when a file is closed. With `no_cache_files`, every opening reads the data again, through the block cache.",
        Effect::Switch(|s, on| s.mount.keep_cache = on),
    ),
    entry(
        Group::Cache,
        "(no_)cache_sparse",
        "off",
        "as cache_files, for files with holes",
        "Holes in the page cache take as much memory as data.",
        Effect::Switch(|s, on| s.mount.cache_sparse = on),
    ),
    entry(
        Group::Cache,
        "(no_)push",
        "on",
        "push small files into the page cache early",
        "If small files are read in the order of the image, the driver puts the next ones into the page cache before they are requested, as far as they are decompressed.",
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
        "Needs Linux 6.14, and root has to allow it once: `echo Y > /sys/module/fuse/parameters/enable_uring`. Otherwise the driver falls back to reading `/dev/fuse`; with `debuglevel=debug` the log says which of the two it uses. On CPUs other than x86-64, AArch64, RISC-V, LoongArch and POWER (64 bits each) the option is a no-op with a warning. Several processes that read small files or at random save the most time. One process saves little, and sequential reading nothing. The driver reserves 16 MiB of address space for each CPU; only the part that replies have filled takes memory. `max_threads` has no effect. While the image file does not answer, 16 reads from one CPU can wait for it. Further requests from this CPU then wait, too; a signal can kill the processes that wait.",
        Effect::Switch(|s, on| s.mount.uring = on),
    ),
    entry(
        Group::Log,
        "debuglevel=LEVEL",
        "warn",
        "level: error warn info verbose debug trace",
        "Messages of lower importance are left out. In the foreground, and with a log file or the system log, the default is *info*. `verbose` shows statistics of the cache at the end, `debug` every request of the kernel.",
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
        "Messages go to the file instead of standard error, which is lost in the background. Errors that prevent the mount also appear on standard error. A line with the date precedes the first message of a day. The driver keeps the file open. If a program that rotates logs truncates it, messages continue at its start.",
        Effect::Value(|s, v| {
            s.log = LogTarget::File(v.path()?);
            Ok(())
        }),
    ),
    entry(
        Group::Log,
        "log_target=NAME",
        "stderr",
        "destination of messages: stderr, syslog",
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
        "as log_target=syslog",
        "Messages have the facility *daemon*, and the name and id of the process. The driver never waits for the system log: if the log is too slow, messages are lost, and counted.",
        Effect::Flag(|s| s.log = LogTarget::Syslog),
    ),
    entry(
        Group::Log,
        "analysis_file=FILE",
        "",
        "record the order in which files are opened",
        "The driver writes the path of each file at its first opening, one per line, relative to the root of the image. `mkdwarfs` reads this file for its hotness categorizer and for `--order=explicit`. An existing file is overwritten.",
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
        "The names are `fuse`, `filesystem_v2`, `inode_reader_v2` and `block_cache`; other names give a warning. The extended attribute `user.dwarfs.driver.perfmon` of the root has the result. The driver also logs it at the end and on SIGUSR1.",
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
        "write a trace of the operations at the end",
        "Browsers show this trace event format (`about:tracing`). Needs `perfmon`.",
        Effect::Value(|s, v| {
            s.trace = Some(v.path()?);
            Ok(())
        }),
    ),
    RW,
    RW_LAYER,
    RW_DRIVER,
    entry(
        Group::Mount,
        "allow_other",
        "",
        "let all users use the mount",
        "Users other than root need `user_allow_other` in `/etc/fuse.conf` for `allow_other` and `allow_root`.",
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
        "On with `allow_other` and if root mounts, otherwise off: see PERMISSIONS. With `no_default_permissions` everybody who may use the mount can read every file.",
        Effect::Switch(|s, on| s.mount.default_permissions = Some(on)),
    ),
    entry(
        Group::Mount,
        "(no_)guard",
        "on",
        "unmount if the driver is killed",
        "A small second process waits for the end of the driver, and unmounts if the driver could not.",
        Effect::Switch(|s, on| s.mount.guard = on),
    ),
    entry(
        Group::Mount,
        "auto_unmount",
        "",
        "as guard, by fusermount3",
        "",
        Effect::Flag(|s| s.mount.auto_unmount = true),
    ),
    entry(
        Group::Mount,
        "timeout=SECONDS",
        "never",
        "unmount after this time without use",
        "The driver may unmount later, by a quarter of the time or by one second, whichever is more. The mount stays while one of its files is open or runs, or one of its directories is a working directory. A unit may follow the number. 0 means never.",
        Effect::Value(|s, v| {
            s.mount.idle = Some(v.duration()?).filter(|limit| !limit.is_zero());
            Ok(())
        }),
    ),
    entry(
        Group::Mount,
        "nonempty",
        "",
        "mount on a full directory without warning",
        "A mount hides the contents of its directory. Without this option, the driver mounts on a directory that is not empty, too, but warns.",
        Effect::Flag(|s| s.over_others = true),
    ),
    entry(
        Group::Mount,
        "remount",
        "",
        "change flags of a mount, for mount(8)",
        "Changes `suid`, `dev`, `exec` and their opposites. All other options of the mount stay as they are.",
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
        "Only root may use `suid` and `dev`.",
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
        "as -d",
        "",
        Effect::Flag(|s| s.debug = true),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dwarfs::entry::NOT_ON_WINDOWS;

    #[test]
    fn lists_name_options() {
        for form in NOT_ON_WINDOWS {
            let count = OPTIONS.iter().filter(|entry| entry.form == form).count();
            assert_eq!(count, 1, "{form}");
        }
    }
}
