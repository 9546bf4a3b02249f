//! Recovery data: parity behind an image, or in a file beside it, from which damage is repaired.
//!
//! | function | what it does |
//! |---|---|
//! | [`add`], [`add_to_append`], [`add_sidecar`] | protect an image, or what is new in it |
//! | [`locate`], [`locate_sidecar`] | find recovery data, and the image, in files of which anything may be damaged |
//! | [`RecoveryData::check`] | compares every protected byte with its checksum |
//! | [`RecoveryData::repair`] | restores what is wrong, in the file |
//! | [`RecoveryData::copy`] | copies a file that cannot be repaired where it is |
//! | [`RecoveryData::write_patch`], [`apply_patch`] | the same through a file with the corrected bytes |
//! | [`RepairingSource`] | the same in memory, while the file is read |
//!
//! The layout is that of format chapter 11.
//!
//! Memory: a group of shards takes up to 64 MiB and its parity, about twice in all while it is encoded or
//! decoded, and as many groups are worked on at a time as there are threads. The checksums take up to
//! 40 bytes a shard while a file is repaired: 60 MB for an image of 100 GB.
#![forbid(unsafe_code)]

mod add;
mod changed;
mod check;
mod code;
mod copy;
mod damage;
mod error;
mod locate;
mod memory;
mod overlay;
mod part;
mod patch;
mod range;
mod repair;

pub use add::{Added, Protection, add, add_sidecar, add_to_append, remove};
pub use copy::Copied;
pub use damage::Damage;
pub use error::{Error, Result};
pub use locate::{RecoveryData, locate, locate_sidecar};
pub use memory::{Listener, Mended, RepairingSource};
pub use part::Sidecar;
pub use patch::{Applied, apply_patch};
pub use redwarfs_format::recovery::{Geometry, GeometryError, ShardGroup};
pub use repair::Repaired;

/// Bytes that are read or written at a time where nothing else decides it.
const PIECE: usize = 1 << 20;
/// The tag of the section.
const TAG: [u8; 4] = *b"DWRC";
/// The flag of a sidecar in its prelude.
const SIDECAR: u32 = 1;
