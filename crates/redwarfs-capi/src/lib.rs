//! `libredwarfs`: images for C, and for languages that call C.
//!
//! The headers in `include/` are made from this crate, and describe every function for users:
//! `redwarfs.h` reads images, and `redwarfs_writer.h` (feature `write`) builds them.
//!
//! | module | holds |
//! |---|---|
//! | `border` | pointers of C, and what keeps panics from crossing the border |
//! | `error` | codes and error objects |
//! | `source` | images in memory, descriptors and callbacks |
//! | `image` | open images: entries, attributes, contents |
//! | `directory` | listings |
//! | `writer` | builds |
//!
//! The rules of the interface:
//!
//! - A function that can fail returns a code, and stores an error object if the caller wants one. There
//!   is no state outside of the objects.
//! - A pointer that must not be null and is null gives `REDWARFS_ERROR_ARGUMENT`.
//! - A panic is a bug, and becomes `REDWARFS_ERROR_INTERNAL`.
//! - Structs that a caller passes by pointer have room for later members, and flags that are unknown
//!   are refused. `tests/abi` has the symbols and the layouts; a test compares them.
//!
//! `unsafe` is where a pointer of C becomes a reference or a slice, and where a callback is called.

mod border;
mod directory;
mod error;
mod image;
mod source;
#[cfg(feature = "write")]
mod writer;

pub use directory::{DirEntry, Directory, redwarfs_closedir, redwarfs_opendir, redwarfs_readdir};
pub use error::{
    Code, Error, redwarfs_error_code, redwarfs_error_errno, redwarfs_error_free,
    redwarfs_error_message,
};
pub use image::{
    Attributes, Image, Info, OpenOptions, REDWARFS_CHECK, REDWARFS_DEEP, REDWARFS_NO_FOLLOW,
    REDWARFS_NO_READAHEAD, REDWARFS_NO_VERIFY, REDWARFS_OFFSET, redwarfs_close, redwarfs_getxattr,
    redwarfs_info, redwarfs_listxattr, redwarfs_lookup, redwarfs_lookup_at, redwarfs_open,
    redwarfs_open_fd, redwarfs_open_io, redwarfs_open_memory, redwarfs_read, redwarfs_readlink,
    redwarfs_stat, redwarfs_verify, redwarfs_version,
};
pub use source::Io;
#[cfg(feature = "write")]
pub use writer::{
    Builder, EntryAttributes, ProgressFn, REDWARFS_CONTINUE_ON_ERROR, REDWARFS_OVERWRITE, Summary,
    redwarfs_builder_add_directory, redwarfs_builder_add_disk_file, redwarfs_builder_add_file,
    redwarfs_builder_add_hard_link, redwarfs_builder_add_special, redwarfs_builder_add_stream,
    redwarfs_builder_add_symlink, redwarfs_builder_free, redwarfs_builder_message,
    redwarfs_builder_new, redwarfs_builder_set, redwarfs_builder_write,
    redwarfs_builder_write_stream,
};
