//! How to mount: typed, without any command line syntax.

use std::ffi::OsString;
use std::path::PathBuf;

/// Who may use the mount.
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

/// Flags of the mount as the kernel knows them. Read-only is not among them: it is always set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// All settings of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Source shown in the mount table, normally the path of the image. Any bytes; commas and
    /// backslashes are escaped where the name becomes part of an option list.
    pub source: OsString,
    /// The `X` of the file system type `fuse.X` in the mount table.
    pub subtype: String,
    /// Who may use the mount.
    pub access: Access,
    /// Let the kernel enforce the permission bits of the image. On by default.
    pub default_permissions: bool,
    /// Let `fusermount3` unmount when this process ends, however it ends.
    pub auto_unmount: bool,
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
    /// Let the kernel keep file data when a file is opened again. On by default; it also spares
    /// the requests to open files.
    pub keep_cache: bool,
    /// The same for files with holes, whose pages of zeros can take much memory. Off by default:
    /// then the kernel asks at each opening, if the image has such files at all.
    pub cache_sparse: bool,
    /// Find names without regard to upper and lower case (Unicode case folding). An exact match
    /// always wins. The index is made while mounting: one pass over all names, and 8 bytes for
    /// each name that is not in its folded form already.
    pub case_insensitive: bool,
    /// File that gets the path of every regular file when it is opened for the first time: one
    /// line each, relative to the root of the image. Made (or emptied) while mounting. With it the
    /// kernel asks at each opening, and 8 bytes per regular file are needed.
    pub analysis_file: Option<PathBuf>,
    /// When small files are read in the order of their data, hand the next ones to the kernel
    /// before it asks, as far as their blocks are decoded already. On by default.
    pub push: bool,
    /// While one program asks for many small things, answer on its processor, see
    /// [Threads](crate#threads). It takes effect with one reader, several processors and the right
    /// to undo `SCHED_IDLE`. On by default.
    pub follow: bool,
    /// Whether a [`crate::guard::Guard`] should watch the mount. The guard has to be made by the
    /// program, before it starts threads; [`crate::mount`] itself makes no processes. On by
    /// default.
    pub guard: bool,
    /// Threads that carry out reads which need decompression; 0 counts as 1.
    pub workers: usize,
    /// Threads that read requests from the kernel. One answers fastest in most situations.
    pub readers: usize,
    /// Get requests over io_uring where the kernel offers that (Linux 6.14 with the parameter
    /// `enable_uring` of the module `fuse`), as before where it does not. Off by default.
    pub uring: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: OsString::from("dwarfs"),
            subtype: String::from("dwarfs"),
            access: Access::Owner,
            default_permissions: true,
            auto_unmount: false,
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
            push: true,
            follow: true,
            guard: true,
            workers: 2,
            readers: 1,
            uring: false,
        }
    }
}
