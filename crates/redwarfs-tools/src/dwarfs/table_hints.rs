//! The `-o` options about hints: what a program reads first.

use super::entry::{Effect, Group, MountOption, entry};

pub(super) const HINTS: MountOption = entry(
    Group::Cache,
    "(no_)hints",
    "on",
    "load what a program reads first at once",
    "If the image has hints (`mkdwarfs --hints`), or the file of `hints_file` is there, the driver decompresses the blocks that they name right after mounting, in the background: as many as fit into the cache, or into half of it if only the image names them. From a server it fetches them with few requests, several at a time. What programs ask for meanwhile comes first. With `verify=signed:KEY` or `verify=digests`, hints in the image have no effect, because they are not signed; those of `hints_file` have.",
    Effect::Switch(|s, on| s.hints = on),
);

pub(super) const HINTS_FILE: MountOption = entry(
    Group::Cache,
    "hints_file=FILE",
    "",
    "record what a program reads first, and load it",
    "If *FILE* is not there, the driver records which parts of files are read, from the first read on for the time of `hints_time`, and writes them when it unmounts, and on SIGUSR1. At later mounts of the same image it loads what the file names, and leaves the file as it is. If the image has changed since, it loads what is left of the files, and records anew. Remove the file to record anew in any case. At most 65,536 ranges are recorded. `mkdwarfs --hints` stores the file in an image. `push` has no effect while the driver records.",
    Effect::Value(|s, v| {
        s.hints_file = Some(v.path()?);
        Ok(())
    }),
);

pub(super) const HINTS_TIME: MountOption = entry(
    Group::Cache,
    "hints_time=TIME",
    "60s",
    "how long hints_file records",
    "Needs `hints_file`. The time begins with the first read. A number of seconds, or a number with a unit: ns, us, ms, s, m, h, d.",
    Effect::Value(|s, v| {
        s.hints_time = Some(v.duration()?);
        Ok(())
    }),
);
