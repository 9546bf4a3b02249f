//! The operations that the kernel asks for, a file for each, and the parts that they share.
//!
//! An operation gets the state of the mount and the arguments of the request. It either appends its
//! answer to a buffer, which the driver sends ([`answer::Answer::Reply`]), or takes the ticket, and
//! replies or passes it to a worker. FORGET has no answer. [`crate::driver`] chooses the operation.

pub(crate) mod access;
pub(crate) mod answer;
pub(crate) mod forget;
pub(crate) mod getattr;
pub(crate) mod getxattr;
pub(crate) mod init;
pub(crate) mod interrupt;
pub(crate) mod listing;
pub(crate) mod listxattr;
pub(crate) mod lookup;
pub(crate) mod lseek;
pub(crate) mod open;
pub(crate) mod opendir;
pub(crate) mod read;
pub(crate) mod readdir;
pub(crate) mod readdirplus;
pub(crate) mod readlink;
pub(crate) mod statfs;
pub(crate) mod statx;
pub(crate) mod xattr_value;
