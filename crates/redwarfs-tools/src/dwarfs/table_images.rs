//! The `-o` options about what is mounted: repair, the snapshots of a file, and several images.

use redwarfs_format::section::snapshot_name_error;
use redwarfs_fuse::Whiteouts;

use super::entry::{Effect, Group, MountOption, entry};
use crate::common::open::snapshot_choice;

pub(super) const REPAIR: MountOption = entry(
    Group::Image,
    "repair=memory",
    "",
    "repair damage while the image is read",
    "For a rescue: each part of the image that is read is compared with the recovery data of the image, or of its sidecar. Damaged parts are repaired in memory, and the file stays as it is. The log names each repair once, and counts them. What cannot be repaired is an error as without this option. Reading takes more time, and 128 MiB of memory or more where something is damaged. `dwarfsck --repair` repairs the file.",
    Effect::Value(|s, v| {
        s.repair = v.one_of(&[("memory", true)], "no such repair")?;
        Ok(())
    }),
);

pub(super) const SIDECAR: MountOption = entry(
    Group::Image,
    "sidecar=FILE",
    "",
    "file with the recovery data for repair",
    "By default the recovery data of the image, or else the file with the name of the image and `.dwrec` behind it.",
    Effect::Value(|s, v| {
        s.sidecar = Some(v.path()?);
        Ok(())
    }),
);

pub(super) const SNAPSHOT: MountOption = entry(
    Group::Image,
    "snapshot=NAME|NUMBER|TIME",
    "",
    "snapshot of the image to mount",
    "By default the newest one. For a *TIME*, such as `2026-05-03` or `2026-05-03T21:30`, in UTC, the newest snapshot that is not later. `dwarfsck --snapshots` lists them. A mount keeps showing its snapshot while `mkdwarfs --append` adds others to the file, unless `follow_newest` is given.",
    Effect::Value(|s, v| {
        s.open.snapshot = Some(v.parsed(snapshot_choice)?);
        Ok(())
    }),
);

pub(super) const SNAPSHOTS: MountOption = entry(
    Group::Image,
    "snapshots=NAME",
    "",
    "directory in the root with all snapshots",
    "For example `snapshots=.snapshots`. The directory has a directory for each snapshot that the file has when it is mounted, under the name of the snapshot. Listings of the root leave *NAME* out, so `find`, `cp -a` and `tar` do not walk through all snapshots. At most 8 snapshots are open at a time, each with its metadata. They share the memory of `cachesize`. Opening one takes about as long as mounting it, and the mount answers other requests afterwards. With `verify`, each snapshot has to prove the same, and the table of snapshots has no digest: so *NAME* has the newest snapshot alone, or none.",
    Effect::Value(|s, v| {
        let name = v.text()?;
        if let Some(cause) = snapshot_name_error(name) {
            return Err(v.invalid().cause(cause));
        }
        s.mount.snapshots = Some(name.into());
        Ok(())
    }),
);

pub(super) const FOLLOW_NEWEST: MountOption = entry(
    Group::Image,
    "follow_newest",
    "",
    "move to each snapshot that the file gets",
    "The driver looks at the end of the file every second. After `mkdwarfs --append`, the mount shows the new snapshot, and the log says so. Open files and working directories keep what they had, under their old inode numbers. Files and directories get new numbers, and names of the root are looked up anew. What is mounted on a directory of the mount is taken off. Each snapshot that programs still use needs its metadata, and all of them share the memory of `cachesize`. If the newest snapshot cannot be opened, the log says why, and the mount shows what it showed. A file that takes the place of the image, such as a compacted copy, is not followed, and neither is an image behind `imagesize`. Excludes `snapshot` and `case_insensitive`. Without this option, the signal SIGUSR2 moves the mount once.",
    Effect::Flag(|s| s.mount.follow_newest = true),
);

pub(super) const DIR: MountOption = entry(
    Group::Image,
    "dir=MOUNTPOINT",
    "",
    "mount several images side by side",
    "With this option, all arguments are images, and each has a directory in the mount: see SEVERAL IMAGES. Not together with options about one image: `snapshots`, `follow_newest`, `imagesize`, `sidecar`, `mlock`, `preload_all`, `preload_category`, `prefetch`, `hints_file` and `analysis_file`.",
    // The driver decides this before it reads the options.
    Effect::Value(|_, v| v.path().map(drop)),
);

pub(super) const OPEN_IMAGES: MountOption = entry(
    Group::Image,
    "open_images=N",
    "64",
    "open images of a mount with dir",
    "Each open image has its metadata in memory, and its file open. If another one is needed, the image that was not used for the longest time is closed. It is opened again when somebody uses it. 0 counts as 1, and at most half of the files that the process may have open are images.",
    Effect::Value(|s, v| {
        s.mount.open_images = v.number::<usize>()?.clamp(1, 1 << 20);
        Ok(())
    }),
);

pub(super) const CLOSE_AFTER: MountOption = entry(
    Group::Image,
    "close_after=TIME",
    "5m",
    "close images of dir after this idle time",
    "A number of seconds, or a number with a unit: ns, us, ms, s, m, h, d. 0 means never.",
    Effect::Value(|s, v| {
        s.mount.close_after = Some(v.duration()?).filter(|after| !after.is_zero());
        Ok(())
    }),
);

pub(super) const CTL: MountOption = entry(
    Group::Image,
    "ctl=SOCKET",
    "see --man",
    "control socket of a mount with dir",
    "By default `dwarfs/PID.sock` in the directory of `XDG_RUNTIME_DIR`, else in `/run` for root, else `dwarfs-UID/PID.sock` in the directory for temporary files. Only processes of the same user and of root can use it. The attribute `user.dwarfs.driver.ctl` of the mount point is its path.",
    Effect::Value(|s, v| {
        s.control = Some(v.path()?);
        Ok(())
    }),
);

pub(super) const UNION: MountOption = entry(
    Group::Image,
    "union",
    "",
    "with dir: the images are layers of one tree",
    "The first image is the uppermost one: see UNION. Not together with `noxattr` and `case_insensitive`.",
    Effect::Flag(|s| s.union = true),
);

pub(super) const WHITEOUTS: MountOption = entry(
    Group::Image,
    "whiteouts=WHAT",
    "overlay",
    "what hides names in a union",
    "`overlay`: the whiteouts of overlayfs, which are not shown. `oci`: also files `.wh.NAME`, as in layers of containers. `show`: those of overlayfs, and the mount shows them, so that it can be a lower layer of the kernel's overlayfs.",
    Effect::Value(|s, v| {
        let words = [
            ("overlay", Whiteouts::Overlay),
            ("oci", Whiteouts::Oci),
            ("show", Whiteouts::Show),
        ];
        s.whiteouts = Some(v.one_of(&words, "no such kind of whiteouts")?);
        Ok(())
    }),
);
