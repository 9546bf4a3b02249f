//! What is left of an image of which anything may be damaged or missing.
//!
//! [`Salvage::of`] reads a whole file and finds sections by their magic. It needs neither the index nor the start or the
//! end of the image. Of all pairs of schema and metadata with right checksums, the newest one that can be
//! opened counts. Blocks are assigned by the index that lists this pair, or else by their numbers; a block that is
//! not certain counts as lost.
//!
//! * [`Salvage::image`] opens the tree: everything in intact blocks is read as usual.
//! * [`Salvage::for_each_damaged`] names the other files and the missing ranges of each.
//! * [`Salvage::write_parts`] writes these files, with holes for what is missing.
//! * [`Salvage::write_blocks`] is for images without any metadata: the contents of intact blocks, and
//!   files that lie whole in a block and that their format lets recognise.
//!
//! Nothing is returned whose checksum is wrong.
#![forbid(unsafe_code)]

mod blocks;
mod chosen;
mod error;
mod find;
mod generation;
mod parts;
mod recognise;
mod salvage;
mod tolerant;

pub use blocks::BlocksWritten;
pub use error::{Error, Result};
pub use find::FoundSection;
pub use parts::{DamagedFile, Missing, PartsWritten};
pub use recognise::{Certainty, Recognised, recognise};
pub use salvage::Salvage;
