//! Recovery data: parity behind an image, from which damage is repaired.
//!
//! [`add`] protects an image, [`locate`] finds recovery data in a file of which anything may be damaged,
//! [`RecoveryData::check`] compares every protected byte with its checksum, and [`RecoveryData::repair`]
//! restores what is wrong. The layout is that of format chapter 11.
//!
//! Memory: a group of shards takes up to 64 MiB and its parity, about twice in all while it is encoded or
//! decoded, and as many groups are worked on at a time as there are threads. The checksums take up to
//! 40 bytes a shard while a file is repaired: 60 MB for an image of 100 GB.
#![forbid(unsafe_code)]

mod add;
mod check;
mod code;
mod damage;
mod error;
mod locate;
mod memory;
mod overlay;
mod part;
mod patch;
mod range;
mod repair;

pub use add::{Added, Protection, add, add_sidecar, remove};
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
