//! Options of a mount: typed, without command line syntax.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Users that may use the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Only the user who mounts.
    #[default]
    Owner,
    /// The user who mounts and root (`allow_root`).
    OwnerAndRoot,
    /// Everybody (`allow_other`).
    Everyone,
}

/// Flags of the mount as the kernel knows them. Read-only is not among them: it is set unless the mount has a
/// [`MountOptions::layer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFlags {
    /// Ignore set-user-id and set-group-id bits. On by default.
    pub nosuid: bool,
    /// Refuse to open devices. On by default.
    pub nodev: bool,
    /// Refuse to execute programs.
    pub noexec: bool,
}

impl Default for KernelFlags {
    fn default() -> Self {
        Self {
            nosuid: true,
            nodev: true,
            noexec: false,
        }
    }
}

/// What hides names of lower images in a union, see [`MountOptions::union`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// The whiteouts and opaque directories of overlayfs.
    #[default]
    Overlay,
    /// Also files `.wh.NAME`, as in layers of containers.
    Oci,
    /// Those of overlayfs, and the mount shows them, as the lower layer of an overlay.
    Show,
}

/// Where a mount keeps the changes that programs make.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// In a directory, which is made if it is missing: in its directories `upper` and `work`, as overlayfs does. One mount at a
    /// time can use it.
    Directory(PathBuf),
    /// In a directory of this kind that the caller made for this mount, and removes afterwards. The changes need not survive a
    /// crash.
    Temporary(PathBuf),
}

impl Layer {
    /// The directory.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        match self {
            Self::Directory(path) | Self::Temporary(path) => path,
        }
    }

    /// Whether changes that programs have synced must survive a crash.
    #[must_use]
    pub fn keeps(&self) -> bool {
        matches!(self, Self::Directory(_))
    }
}

/// What merges the image and the layer of a writable mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerDriver {
    /// The driver of this crate.
    #[default]
    Own,
    /// The overlayfs of the kernel. The mount of the image is its lower layer, and has no place in the tree. Needs the right to
    /// mount, [`Access::Everyone`], and a layer whose marks the kernel understands. Neither `idle` nor `auto_unmount` goes with it.
    Kernel,
    /// The kernel if that is possible, and the own one otherwise.
    Auto,
}

/// All settings of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Source shown in the mount table, normally the path of the image. Any bytes. On Windows: the label
    /// of the volume, of which the first 32 units of UTF-16 count.
    pub source: OsString,
    /// The `X` of the file system type `fuse.X` in the mount table. On Windows: the type of the volume, at
    /// most 15 units.
    pub subtype: String,
    /// Who may use the mount.
    pub access: Access,
    /// Let the system enforce the permission bits of the image; none: not on Windows, and elsewhere as
    /// `checks_permissions` says.
    pub default_permissions: Option<bool>,
    /// Let `fusermount3` unmount when this process ends in any way.
    pub auto_unmount: bool,
    /// Time without use after which [`crate::IdleWatch`] reports that the mount is idle; none: never.
    /// The kernel then keeps names and attributes for a part of this time only.
    pub idle: Option<Duration>,
    /// Mount flags.
    pub flags: KernelFlags,
    /// Largest read request in bytes; none: the kernel's limit (1 MiB).
    pub max_read: Option<u32>,
    /// `st_blksize` of every inode; 0 leaves the choice to the kernel. 512 KiB by default.
    pub block_size: u32,
    /// Owner of every inode instead of the image's.
    pub uid: Option<u32>,
    /// Group of every inode instead of the image's.
    pub gid: Option<u32>,
    /// Hide the write bits of all modes.
    pub hide_write_bits: bool,
    /// Let the kernel keep file data when a file is opened again. On by default. It also saves the
    /// requests to open files.
    pub keep_cache: bool,
    /// The same for files with holes, whose pages of zeros can take much memory. Off by default: then
    /// the kernel sends a request for each opening, if the image has such files.
    pub cache_sparse: bool,
    /// Find names without regard to upper and lower case (Unicode case folding). An exact match
    /// always wins. The index is made while mounting: one pass over all names, and 8 bytes for
    /// each name that is not in its folded form already.
    pub case_insensitive: bool,
    /// File for the paths of regular files in the order of their first opening: one line each, relative
    /// to the root of the image. The file is created (or emptied) while mounting. With this option, the
    /// kernel sends a request for each opening, and the driver needs 8 bytes per regular file.
    pub analysis_file: Option<PathBuf>,
    /// List the extended attributes that describe driver and inodes. Off by default, because programs
    /// that copy files also copy listed attributes. Each attribute can be read by name.
    pub list_xattrs: bool,
    /// Answer requests for extended attributes: those of the image, and those that describe driver and
    /// inodes. On by default. Without it, the kernel asks for one attribute and for no other.
    pub xattrs: bool,
    /// Show the generations of the file as directories of this directory, which is in the root, and which listings of
    /// the root leave out. Not on Windows. At most 8 of them are open at a time, each with its metadata. They
    /// share the block cache of the image. The name has no slashes.
    pub snapshots: Option<OsString>,
    /// The caller will let the mount move to newer generations of the file ([`crate::Mover`]). What one of them
    /// has, and the first one has not, is then shown without fail: holes, times of birth, access control lists.
    /// Off by default. Not on Windows.
    pub follow_newest: bool,
    /// The mount shows several images side by side. [`crate::mount_images`] sets it.
    #[cfg_attr(not(unix), allow(dead_code))]
    pub(crate) side_by_side: bool,
    /// Largest number of images of a mount of several ones that are open at a time, each with its metadata and its file;
    /// 64 by default, 0 counts as 1.
    pub open_images: usize,
    /// An image of such a mount is closed when it was not used for this time; 5 minutes by default. None: only when
    /// others take its place.
    pub close_after: Option<Duration>,
    /// The images of such a mount are layers of one tree, the first one on top, instead of directories: the rules for
    /// what hides names of lower ones. None by default.
    /// Not on Windows.
    pub union: Option<Whiteouts>,
    /// A socket over which the images of such a mount can be changed: the value of the attribute
    /// `user.dwarfs.driver.ctl` of its root. The caller serves it.
    pub control: Option<PathBuf>,
    /// If small files are read in the order of their data, push the next ones into the page cache
    /// before they are requested, as far as their blocks are decoded. On by default.
    pub push: bool,
    /// While one process sends many small requests, serve them on its CPU, see
    /// [Threads](crate#threads). It takes effect with one reading thread, several CPUs, and the right
    /// to leave the policy `SCHED_IDLE`. On by default.
    pub follow: bool,
    /// Whether a [`crate::guard::Guard`] should watch the mount. The program must start the guard
    /// before it starts threads; [`crate::mount`] starts no processes. On by default.
    pub guard: bool,
    /// Threads that carry out reads which need decompression; 0 counts as 1.
    pub workers: usize,
    /// Threads that read requests from the kernel. One thread is fastest in most situations.
    pub readers: usize,
    /// Get requests over io_uring if the kernel offers that (Linux 6.14 with the parameter
    /// `enable_uring` of the module `fuse`), otherwise from `/dev/fuse`. Off by default.
    pub uring: bool,
    /// The image serves this mount alone. When the connection to the kernel ends, reads that still wait for a server
    /// fail, and so do all later reads of the image. Otherwise the end of the mount waits for them. Off by default.
    pub owns_image: bool,
    /// Let programs write to the mount, and keep their changes here; none: the mount is read-only. Not on Windows. The layer has
    /// no effect on the image. `push`, `follow`, `readers`, `uring`, `snapshots`, `follow_newest`, `case_insensitive` and
    /// `analysis_file` have no effect with it.
    pub layer: Option<Layer>,
    /// What merges the image and the layer. No effect without a layer.
    pub layer_driver: LayerDriver,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: OsString::from("dwarfs"),
            subtype: String::from("dwarfs"),
            access: Access::Owner,
            default_permissions: None,
            auto_unmount: false,
            idle: None,
            flags: KernelFlags::default(),
            max_read: None,
            block_size: 512 << 10,
            uid: None,
            gid: None,
            hide_write_bits: false,
            keep_cache: true,
            cache_sparse: false,
            case_insensitive: false,
            analysis_file: None,
            list_xattrs: false,
            xattrs: true,
            snapshots: None,
            follow_newest: false,
            side_by_side: false,
            open_images: 64,
            close_after: Some(Duration::from_secs(300)),
            union: None,
            control: None,
            push: true,
            follow: true,
            guard: true,
            workers: 2,
            readers: 1,
            uring: false,
            owns_image: false,
            layer: None,
            layer_driver: LayerDriver::Own,
        }
    }
}

impl MountOptions {
    /// Whether the kernel enforces the permission bits of the image. Unless
    /// [`MountOptions::default_permissions`] decides it, the kernel checks with [`Access::Everyone`],
    /// and if root outside of user namespaces mounts. Root may override the check. A private mount
    /// needs no check: its user can read the image itself.
    #[must_use]
    #[cfg(unix)]
    pub fn checks_permissions(&self) -> bool {
        self.default_permissions
            .unwrap_or_else(|| self.access == Access::Everyone || is_root_of_the_system())
    }

    /// Whether the kernel must let other users in. It knows no "owner and root": then it lets everybody
    /// in, and the driver refuses the others. If root is the owner, that is not needed.
    #[cfg(unix)]
    pub(crate) fn lets_others_in(&self) -> bool {
        match self.access {
            Access::Owner => false,
            Access::OwnerAndRoot => !rustix::process::geteuid().is_root(),
            Access::Everyone => true,
        }
    }
}

/// Whether this process is root outside of user namespaces. The root of a user namespace may not
/// override permissions of files whose owner is not mapped there.
#[cfg(unix)]
fn is_root_of_the_system() -> bool {
    rustix::process::geteuid().is_root()
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| has_all_users(&map))
}

/// Whether a map of user ids, as the system writes it, has every user: `0 0 4294967295`.
#[cfg(unix)]
fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn maps_of_users() {
        assert!(has_all_users("         0          0 4294967295\n"));
        for map in [
            "0 1000 1\n",
            "0 0 65536\n",
            "0 1000 1\n1 100000 65536\n",
            "",
        ] {
            assert!(!has_all_users(map), "{map}");
        }
    }

    #[test]
    fn permissions_are_checked_where_others_can_enter() {
        let checks = |access, default_permissions| {
            MountOptions {
                access,
                default_permissions,
                ..MountOptions::default()
            }
            .checks_permissions()
        };
        for access in [Access::Owner, Access::OwnerAndRoot, Access::Everyone] {
            assert!(checks(access, Some(true)) && !checks(access, Some(false)));
        }
        assert!(checks(Access::Everyone, None));
        assert_eq!(checks(Access::Owner, None), is_root_of_the_system());
        assert_eq!(checks(Access::OwnerAndRoot, None), is_root_of_the_system());
    }
}
