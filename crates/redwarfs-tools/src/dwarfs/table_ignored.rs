//! The `-o` options that have no effect, for compatibility.

use super::entry::{Effect, Group, MountOption, entry};

/// The description of options of `/etc/fstab` that the driver accepts without effect.
const FSTAB: &str = "no effect, for /etc/fstab";

/// In the order of the help text.
pub(super) const IGNORED: &[MountOption] = &[
    entry(
        Group::Ignored,
        "enable_nlink",
        "",
        "obsolete: no effect, and a warning",
        "",
        Effect::Obsolete,
    ),
    entry(
        Group::Ignored,
        "(no_)cache_image",
        "",
        "obsolete: no effect, and a warning",
        "",
        Effect::Obsolete,
    ),
    entry(
        Group::Ignored,
        "ro",
        "",
        "the mount is read-only, as without rw=DIR",
        "",
        Effect::Flag(|s| {
            s.writable = false;
            s.read_only = true;
        }),
    ),
    entry(
        Group::Ignored,
        "rw",
        "",
        "no effect, and a warning without rw=DIR",
        "",
        Effect::Flag(|s| {
            s.writable = true;
            s.read_only = false;
        }),
    ),
    entry(
        Group::Ignored,
        "max_idle_threads=N",
        "",
        "no effect: idle threads stay",
        "",
        Effect::Value(|_, v| v.number::<i32>().map(drop)),
    ),
    entry(
        Group::Ignored,
        "(no_)clone_fd",
        "",
        "no effect",
        "",
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Ignored,
        "(no)auto",
        "",
        FSTAB,
        "",
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Ignored,
        "(no)user",
        "",
        FSTAB,
        "",
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Ignored,
        "user=NAME",
        "",
        FSTAB,
        "",
        Effect::Value(|_, _| Ok(())),
    ),
    entry(Group::Ignored, "users", "", FSTAB, "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "owner", "", FSTAB, "", Effect::Flag(|_| {})),
    entry(Group::Ignored, "group", "", FSTAB, "", Effect::Flag(|_| {})),
    entry(
        Group::Ignored,
        "defaults",
        "",
        FSTAB,
        "",
        Effect::Flag(|_| {}),
    ),
    entry(
        Group::Ignored,
        "nofail",
        "",
        FSTAB,
        "",
        Effect::Flag(|_| {}),
    ),
    entry(Group::Ignored, "loop", "", FSTAB, "", Effect::Flag(|_| {})),
];
