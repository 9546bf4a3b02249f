//! The options of a writable mount.

use redwarfs_fuse::LayerDriver;

use super::entry::{Effect, Group, MountOption, entry};
use super::settings::{LayerChoice, Settings, Value};
use crate::common::error::Result;

fn set_layer(settings: &mut Settings, value: &Value<'_>) -> Result<()> {
    settings.layer = Some(match value.value == "tmp" {
        true => LayerChoice::Temporary,
        false => LayerChoice::Directory(value.path()?),
    });
    Ok(())
}

/// Where the changes are kept.
pub(super) const RW: MountOption = entry(
    Group::Mount,
    "rw=DIR|tmp",
    "",
    "let programs write, and keep their changes in DIR",
    "The image stays as it is. *DIR*, which is made if it is missing, gets the directories `upper` and `work`, in the format of overlayfs. The next mount with the same image and *DIR* shows the changes again. One mount at a time can use *DIR*. With `tmp`, the changes are gone after unmounting: until then they are in a directory below `TMPDIR` or `/tmp`; for a directory of the name `tmp`, write `./tmp`. Needs a file system with extended attributes. Excludes `ro`, `readonly`, `case_insensitive`, `snapshots`, `follow_newest` and `no_default_permissions`. See WRITING.",
    Effect::Value(|s, v| set_layer(s, &v)),
);

/// The same for mount(8), which takes `rw=` for `rw`.
pub(super) const RW_LAYER: MountOption = entry(
    Group::Mount,
    "rw_layer=DIR|tmp",
    "",
    "as rw=DIR, for mount(8) and /etc/fstab",
    "They take `rw=DIR` for `rw`, and the mount is read-only then.",
    Effect::Value(|s, v| set_layer(s, &v)),
);

/// What merges the image and the changes.
pub(super) const RW_DRIVER: MountOption = entry(
    Group::Mount,
    "rw_driver=own|kernel|auto",
    "own",
    "what merges the image and its changes",
    "This program, or overlayfs of the kernel. With `kernel`, access to changed files does not pass through this program. It needs the right to mount and `allow_other`, and mounting fails if the kernel refuses. With `auto`, this program takes its place then. See WRITING.",
    Effect::Value(|s, v| {
        let words = [
            ("own", LayerDriver::Own),
            ("kernel", LayerDriver::Kernel),
            ("auto", LayerDriver::Auto),
        ];
        s.mount.layer_driver = v.one_of(&words, "no such driver of a layer")?;
        Ok(())
    }),
);
