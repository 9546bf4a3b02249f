//! Every `-o` option in words: one source for help, manual and completions.

use std::fmt::Write as _;

use crate::common::man::{Block, Section, parse};

/// What an option is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Image,
    Files,
    Cache,
    Log,
    Mount,
    Ignored,
}

impl Group {
    const ALL: [Self; 6] = [
        Self::Image,
        Self::Files,
        Self::Cache,
        Self::Log,
        Self::Mount,
        Self::Ignored,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Image => "Where the image is",
            Self::Files => "How files look",
            Self::Cache => "Memory and speed",
            Self::Log => "Messages and measurements",
            Self::Mount => "The mount",
            Self::Ignored => "Accepted without effect",
        }
    }
}

/// One option, or two that are each other's opposite.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) group: Group,
    /// The name, with `=VALUE` if it takes one, or `(no_)name`.
    pub(super) form: &'static str,
    /// What holds without the option; empty: it is off, or there is nothing.
    pub(super) default: &'static str,
    /// A few words.
    pub(super) help: &'static str,
    /// The rest of what there is to know, in the language of the manuals.
    pub(super) more: &'static str,
}

impl Entry {
    /// The names that the parser knows, without values.
    pub(super) fn names(&self) -> Vec<String> {
        let name = self.form.split('=').next().unwrap_or(self.form);
        match name.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((no, name)) => vec![name.to_owned(), format!("{no}{name}")],
            None => vec![name.to_owned()],
        }
    }
}

const fn entry(
    group: Group,
    form: &'static str,
    default: &'static str,
    help: &'static str,
    more: &'static str,
) -> Entry {
    Entry {
        group,
        form,
        default,
        help,
        more,
    }
}

/// All options, in the order of the help text.
pub(super) const OPTIONS: [Entry; 63] = [
    entry(
        Group::Image,
        "offset=N|auto|auto:N",
        "0",
        "where the image starts in its file",
        "A number of bytes; `auto` searches for the first image, `auto:N` for the *N*-th, counted from 1.",
    ),
    entry(
        Group::Image,
        "imagesize=N",
        "",
        "size of the image in bytes",
        "By default the end is found by itself, also if something else follows in the file.",
    ),
    entry(
        Group::Files,
        "uid=N",
        "as stored",
        "owner of every file, a number or a name",
        "",
    ),
    entry(
        Group::Files,
        "gid=N",
        "as stored",
        "group of every file, likewise",
        "",
    ),
    entry(
        Group::Files,
        "readonly",
        "",
        "hide the write permissions in all modes",
        "The mount is read-only in any case. Do not use it below a writable overlay file system, which would take directories for unwritable.",
    ),
    entry(
        Group::Files,
        "blocksize=SIZE",
        "512K",
        "preferred I/O size in stat(2)",
        "0 shows the system's own value.",
    ),
    entry(
        Group::Files,
        "case_insensitive",
        "",
        "find names in any letter case",
        "With Unicode case folding. An exact match always wins; a directory with names that differ only in case is reported as a warning. The index is made while mounting and takes 8 bytes for each name that has capitals.",
    ),
    entry(
        Group::Files,
        "(no_)list_xattrs",
        "off",
        "list the extended attributes",
        "Those that describe driver and files are answered by name in any case. Listed, they end up in copies: `cp -a`, `rsync -X`, `tar --xattrs` and overlay file systems write them into the result.",
    ),
    entry(
        Group::Cache,
        "cachesize=SIZE",
        "512M",
        "memory for decompressed blocks",
        "Not a limit of the process: blocks that are being decompressed or read come on top, and so do the last ones that were read but not to their end, one for each worker and one more. If one block is larger than the cache, a warning says so. With 0 only those blocks are kept. Blocks that are not compressed are read from the image file and take 1/1024 of their size.",
    ),
    entry(
        Group::Cache,
        "workers=N",
        "2",
        "decompression threads",
        "0 counts as 1.",
    ),
    entry(
        Group::Cache,
        "max_threads=N",
        "1",
        "threads that read requests",
        "From 1 to 64. Two take less time for several processes that read at random what is decoded already, more for everything else.",
    ),
    entry(
        Group::Cache,
        "decratio=RATIO",
        "0.8",
        "finish a block once this much was used",
        "From 0 to 1. A block is decompressed as far as it is needed; when more than this share of it is done, the rest follows in the background, which frees the decompressor. Below 1, so does a rest of at most 16 MiB if the block is read at random: after two requests far behind everything that is done, or one if the whole image fits into the cache.",
    ),
    entry(
        Group::Cache,
        "seq_detector=N",
        "4",
        "prefetch after N blocks in sequence",
        "0: never, and nothing is decompressed ahead of whoever reads a large file from front to back either; otherwise that is two blocks or 4 MiB, whichever is more.",
    ),
    entry(
        Group::Cache,
        "readahead=SIZE",
        "0",
        "decompress this much ahead of reads",
        "",
    ),
    entry(
        Group::Cache,
        "preload_all",
        "",
        "decompress blocks right after mounting",
        "As many as fit in the cache, in the background.",
    ),
    entry(
        Group::Cache,
        "preload_category=NAME",
        "",
        "the same, only those of a category",
        "If the image has no such category, a warning names those it has. `dwarfsck -d3` shows them, too.",
    ),
    entry(
        Group::Cache,
        "tidy_strategy=NAME",
        "none",
        "drop idle blocks: none, time, swap",
        "`time`: those not used for `tidy_max_age`. `swap`: those that the system has swapped out, even partly.",
    ),
    entry(
        Group::Cache,
        "tidy_interval=TIME",
        "5m",
        "time between two looks for idle blocks",
        "Only with a strategy. A number with a unit: ns, us, ms, s, m, h, d.",
    ),
    entry(
        Group::Cache,
        "tidy_max_age=TIME",
        "10m",
        "age of an idle block, for time",
        "",
    ),
    entry(
        Group::Cache,
        "block_allocator=NAME",
        "malloc",
        "memory of blocks: malloc, mmap",
        "`mmap` gives the memory back to the system as soon as a block is dropped, but is slower for small blocks.",
    ),
    entry(
        Group::Cache,
        "mlock=MODE",
        "none",
        "keep metadata in RAM: none, try, must",
        "`try` warns if the system refuses (see `ulimit -l`), `must` does not mount then.",
    ),
    entry(
        Group::Cache,
        "(no_)cache_files",
        "on",
        "let the kernel keep data of files",
        "Across openings. Without it every opening reads again, through the block cache.",
    ),
    entry(
        Group::Cache,
        "(no_)cache_sparse",
        "off",
        "the same for files with holes",
        "Holes that the kernel keeps take as much memory as data.",
    ),
    entry(
        Group::Cache,
        "(no_)push",
        "on",
        "hand small files to the kernel early",
        "When small files are read in the order of the image, the next ones are given to the kernel before it asks, as far as they are decompressed already.",
    ),
    entry(
        Group::Cache,
        "(no_)follow",
        "on",
        "answer on the processor of who asks",
        "While one program asks for many small things in turn, the thread that answers moves to its processor and lets it go first, which saves waking up another processor each time. If anything else wants that processor, it moves back within milliseconds. It needs two processors and the right to undo the scheduling policy SCHED_IDLE, as root has; without that it does nothing.",
    ),
    entry(
        Group::Cache,
        "(no_)uring",
        "off",
        "get requests over io_uring",
        "Needs Linux 6.14, and root has to allow it once: `echo Y > /sys/module/fuse/parameters/enable_uring`. Otherwise requests come as without this option; with `debuglevel=debug` the log says which. On processors other than x86-64, AArch64, RISC-V, LoongArch and POWER (64 bits each) there is none, and a warning says so. Several processes that read small files or at random gain most, one process little, sequential reading nothing. It takes 16 MiB of address space for each CPU, of which memory is used as far as answers reach, and makes `max_threads` meaningless. While an image stalls, 16 reads from one CPU can wait for it; whoever else asks on this CPU then waits with them, and can be killed like them.",
    ),
    entry(
        Group::Log,
        "debuglevel=LEVEL",
        "warn",
        "error warn info verbose debug trace",
        "Less important messages than this are left out. In the foreground, and with a log file or the system log, the default is *info*. `verbose` shows statistics of the cache at the end, `debug` every request of the kernel.",
    ),
    entry(
        Group::Log,
        "log_file=FILE",
        "",
        "append messages to a file",
        "Instead of standard error, which is lost in the background. Errors that keep the command from mounting are shown on standard error, too. The file gets a line with the date before the first message of a day. It is kept open; when it is truncated by a program that rotates logs, messages go on at its start.",
    ),
    entry(
        Group::Log,
        "log_target=NAME",
        "stderr",
        "where messages go: stderr, syslog",
        "",
    ),
    entry(
        Group::Log,
        "syslog",
        "",
        "the same as log_target=syslog",
        "Messages go to the system log as facility *daemon* with the name and number of the process. When the system log is too slow, messages are lost and counted; the driver never waits for it.",
    ),
    entry(
        Group::Log,
        "analysis_file=FILE",
        "",
        "record the first opening of each file",
        "One path per line, relative to the root of the image, in the order in which files are opened. This is what `mkdwarfs` takes for its hotness categorizer and for an explicit order. The file is emptied at the start.",
    ),
    entry(
        Group::Log,
        "perfmon=NAME[+NAME...]",
        "",
        "measure the time of operations",
        "Of these parts: `fuse`, `filesystem_v2`, `inode_reader_v2`, `block_cache`. Other names give a warning. The result is in the extended attribute `user.dwarfs.driver.perfmon` of the root, and is logged at the end and on SIGUSR1.",
    ),
    entry(
        Group::Log,
        "perfmon_trace=FILE",
        "",
        "write what was measured at the end",
        "In the trace event format that browsers show (`about:tracing`). Needs `perfmon`.",
    ),
    entry(
        Group::Mount,
        "allow_other",
        "",
        "let all users use the mount",
        "Users other than root need `user_allow_other` in `/etc/fuse.conf` for this and the next.",
    ),
    entry(Group::Mount, "allow_root", "", "let root use the mount", ""),
    entry(
        Group::Mount,
        "(no_)default_permissions",
        "see --man",
        "check the permissions of files",
        "On with `allow_other` and if root mounts, off otherwise: see WHO MAY READ WHAT. Without it everybody who may use the mount can read every file.",
    ),
    entry(
        Group::Mount,
        "(no_)guard",
        "on",
        "unmount if the driver is killed",
        "A small second process waits for the end of the driver and takes off the mount if the driver could not.",
    ),
    entry(
        Group::Mount,
        "auto_unmount",
        "",
        "the same, by fusermount3",
        "",
    ),
    entry(
        Group::Mount,
        "timeout=SECONDS",
        "never",
        "unmount when nobody uses it so long",
        "It can take a quarter longer, and one second at least. The mount stays while something in it is open, runs, or is a working directory. A unit may follow the number. 0: never.",
    ),
    entry(
        Group::Mount,
        "nonempty",
        "",
        "hide what is in the directory silently",
        "A mount on a directory that is not empty works without it, but with a warning.",
    ),
    entry(
        Group::Mount,
        "remount",
        "",
        "change flags of a mount, for mount(8)",
        "Takes over `suid`, `dev`, `exec` and their opposites; everything else stays as it is.",
    ),
    entry(
        Group::Mount,
        "fsname=NAME",
        "path of the image",
        "source in the mount table",
        "",
    ),
    entry(
        Group::Mount,
        "subtype=NAME",
        "dwarfs",
        "type in the mount table: fuse.NAME",
        "",
    ),
    entry(
        Group::Mount,
        "(no)suid",
        "nosuid",
        "obey set-user-id bits",
        "Only root may ask for these.",
    ),
    entry(Group::Mount, "(no)dev", "nodev", "open devices", ""),
    entry(Group::Mount, "(no)exec", "exec", "run programs", ""),
    entry(
        Group::Mount,
        "max_read=N",
        "",
        "largest read request in bytes",
        "",
    ),
    entry(Group::Mount, "debug", "", "the same as -d", ""),
    entry(
        Group::Ignored,
        "enable_nlink",
        "",
        "obsolete, with a warning",
        "",
    ),
    entry(
        Group::Ignored,
        "(no_)cache_image",
        "",
        "obsolete, with a warning",
        "",
    ),
    entry(
        Group::Ignored,
        "ro",
        "",
        "the mount is read-only anyway",
        "",
    ),
    entry(Group::Ignored, "rw", "", "likewise, with a warning", ""),
    entry(
        Group::Ignored,
        "max_idle_threads=N",
        "",
        "readers of requests stay",
        "",
    ),
    entry(Group::Ignored, "(no_)clone_fd", "", "likewise", ""),
    entry(
        Group::Ignored,
        "(no)auto",
        "",
        "for /etc/fstab, as the following",
        "",
    ),
    entry(Group::Ignored, "(no)user", "", "", ""),
    entry(Group::Ignored, "user=NAME", "", "", ""),
    entry(Group::Ignored, "users", "", "", ""),
    entry(Group::Ignored, "owner", "", "", ""),
    entry(Group::Ignored, "group", "", "", ""),
    entry(Group::Ignored, "defaults", "", "", ""),
    entry(Group::Ignored, "nofail", "", "", ""),
    entry(Group::Ignored, "loop", "", "", ""),
];

/// Columns of the left part of the help text.
const LEFT: usize = 28;

/// The options for the help text: at most 80 columns.
pub(super) fn help() -> String {
    let mut out = String::new();
    for group in Group::ALL {
        if group == Group::Ignored {
            continue;
        }
        let _ = writeln!(out, "{} (-o):", group.title());
        for entry in OPTIONS.iter().filter(|entry| entry.group == group) {
            let default = match entry.default {
                "" => String::new(),
                default => format!(" ({default})"),
            };
            let _ = writeln!(
                out,
                "  {:<width$} {}{default}",
                entry.form,
                entry.help,
                width = LEFT - 3
            );
        }
        out.push('\n');
    }
    out
}

/// The options for the manual.
pub(super) fn manual() -> Vec<Section> {
    let mut sections = Vec::new();
    for group in Group::ALL {
        let mut blocks = Vec::new();
        if group == Group::Ignored {
            let text = "These are understood, so that lines of `/etc/fstab` and command lines for other programs work, and change nothing:";
            let list = OPTIONS
                .iter()
                .filter(|entry| entry.group == group)
                .map(|entry| format!("`{}`", entry.form))
                .collect::<Vec<_>>()
                .join(", ");
            let more = "also the flags for times and for writing that mount(8) knows, and whatever begins with `x-` or `X-`. `enable_nlink`, `(no_)cache_image` and `rw` come with a warning. What is not understood at all is an error.";
            blocks = paragraphs(&format!("{text} {list}; {more}"));
        }
        for entry in OPTIONS
            .iter()
            .filter(|entry| entry.group == group && group != Group::Ignored)
        {
            let mut help = String::new();
            let mut chars = entry.help.chars();
            help.extend(chars.next().map(|first| first.to_ascii_uppercase()));
            help.push_str(chars.as_str());
            let mut text = format!("{help}. {}", entry.more);
            if !entry.default.is_empty() {
                text.push_str(&format!(" Default: {}.", entry.default));
            }
            let term = match entry.form.split_once('=') {
                Some((name, value)) => format!("`{name}=`*{value}*"),
                None => format!("`{}`", entry.form),
            };
            blocks.extend(paragraphs(&format!("{term}\n: {text}")));
        }
        sections.push(Section {
            title: format!("OPTIONS FOR -o: {}", group.title().to_uppercase()),
            blocks,
        });
    }
    sections
}

fn paragraphs(text: &str) -> Vec<Block> {
    parse(&format!("# X\n{text}\n"))
        .into_iter()
        .flat_map(|section| section.blocks)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_eighty_columns() {
        for line in help().lines() {
            assert!(line.chars().count() <= 80, "{line}");
            if line.starts_with("  ") {
                // Name and explanation never touch.
                assert!(line.get(2..).is_some_and(|l| l.contains(' ')), "{line}");
            }
        }
        for entry in OPTIONS.iter().filter(|e| e.group != Group::Ignored) {
            assert!(entry.form.len() < LEFT - 2, "{}", entry.form);
            assert!(!entry.help.is_empty(), "{}", entry.form);
        }
    }

    #[test]
    fn names_of_pairs() {
        let entry = |form| entry(Group::Image, form, "", "", "");
        assert_eq!(entry("(no_)a").names(), ["a", "no_a"]);
        assert_eq!(entry("(no)a").names(), ["a", "noa"]);
        assert_eq!(entry("a=B[+B...]").names(), ["a"]);
    }
}
