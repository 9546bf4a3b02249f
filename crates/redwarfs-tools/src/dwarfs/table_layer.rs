//! The options of a writable mount.

use super::entry::{Effect, Group, MountOption, entry};
use super::settings::LayerChoice;

/// Where the changes are kept.
pub(super) const RW: MountOption = entry(
    Group::Mount,
    "rw=DIR|tmp",
    "",
    "let programs write, and keep their changes in DIR",
    "The image stays as it is. *DIR*, which is made if it is missing, gets the directories `upper` and `work`, in the format of overlayfs. The next mount with the same image and *DIR* shows the changes again. One mount at a time can use *DIR*. With `tmp`, the changes are gone after unmounting: until then they are in a directory below `TMPDIR` or `/tmp`; for a directory of the name `tmp`, write `./tmp`. Needs a file system with extended attributes. Excludes `ro`, `readonly`, `case_insensitive`, `snapshots`, `follow_newest` and `no_default_permissions`. See WRITING.",
    Effect::Value(|s, v| {
        s.layer = Some(match v.value == "tmp" {
            true => LayerChoice::Temporary,
            false => LayerChoice::Directory(v.path()?),
        });
        Ok(())
    }),
);
