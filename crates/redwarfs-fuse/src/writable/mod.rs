//! A writable layer over an image.
//!
//! Reads come from the image, changes go to a directory in the format of overlayfs. The format lets the kernel or
//! fuse-overlayfs use the directory, too. All requests of such a mount come here, and none to the read-only driver.
//!
//! | module | about |
//! |---|---|
//! | `lower.rs` | what lies below: a trait, and the image |
//! | `layer.rs`, `marks.rs` | the directory with the changes: whiteouts, opaque directories, incomplete files |
//! | `directory.rs` | the directory that holds the layer: its lock, and the image that it is about |
//! | `access.rs` | own directories that the driver may not enter or change |
//! | `nodes.rs` | the inodes that the kernel knows, with their numbers and names |
//! | `tree.rs` | both merged: what a name leads to, and copying to the layer |
//! | `copies.rs` | requests that may take long, and what ends them |
//! | `names.rs`, `rename.rs` | what changes names |
//! | `files.rs`, `attributes.rs`, `listing.rs` | the other operations |
//! | `driver.rs`, `wire.rs` | which operation answers which request; messages |
//!
//! # Copies
//!
//! A file is copied to the layer when its data, its attributes or its links change for the first time. The copy is made in
//! `work` and renamed when it is complete and on the medium. If a program truncates the file by opening it, no data is copied.
//! A file that was opened for reading before shows the changes, too.
//!
//! Few threads copy data, and others serve meanwhile. Syncing, reserving space and copying between files of the layer have
//! threads of their own, too.
//!
//! # As in overlayfs
//!
//! Directories of the lower tree cannot be renamed (`EXDEV`, which lets `mv` copy). Copying a file with several links in the
//! lower tree breaks the links: the other names keep the old contents. Until then all names have one inode number. Other
//! inode numbers are stable during a mount. `RENAME_EXCHANGE` is refused (`EINVAL`).
//!
//! As in every FUSE file system, writing to a named pipe does not change its times.
//!
//! # Locks
//!
//! One lock is about names (`Tree::changing`). No thread holds it while it reads the lower tree's data. A second program that
//! changes a file while it is copied waits for the copy. Reads of the lower tree go to the workers of the driver.

mod access;
mod attributes;
mod copies;
mod directory;
mod driver;
mod files;
mod layer;
mod listing;
mod lower;
mod marks;
mod names;
mod nodes;
mod rename;
mod threads;
mod tree;
mod wire;

pub use directory::LayerDirectory;
pub(crate) use driver::{ForKernel, WritableDriver};
pub(crate) use layer::is_privileged;
