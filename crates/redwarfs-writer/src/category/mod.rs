//! Categories of data, and the categorizers that find them in files.
//!
//! A categorizer looks at the bytes or the path of a file and cuts the file into fragments. Each kind
//! of fragment goes to a separate stream, with its own order, segmenter, codec and blocks (format/07).
//! Categorizers read files through bounded windows. A header counts only as far as the file holds the
//! data that it announces.

pub(crate) mod audio;
pub(crate) mod binary;
mod cut;
pub(crate) mod fits;
mod hotness;
mod incompressible;
mod names;
mod probe;
mod stored;

pub(crate) use cut::{Complaint, Cut, Found, Fragment};
pub use hotness::{HotPaths, HotPathsError};
pub use incompressible::Incompressible;
pub(crate) use incompressible::Tester;
#[cfg(test)]
pub(crate) use names::Kind;
pub(crate) use names::StreamKey;
pub use names::{BadCategoryName, Category, CategoryName, UnknownCategory};
pub(crate) use probe::{Input, Probe};
pub(crate) use stored::{StoredCategories, describe};

use crate::error::Result;

/// A categorizer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Categorizer {
    /// FITS images with two dimensions and 16 bits per pixel.
    Fits,
    /// Integer PCM audio in AIFF, AIFF-C, CAF, WAV, RF64 and Sony Wave64 files.
    PcmAudio,
    /// Programs and libraries: ELF, PE and Mach-O files.
    Binary,
    /// Data that does not get smaller.
    Incompressible(Incompressible),
    /// Files from a list.
    Hotness(HotPaths),
}

impl Categorizer {
    /// Names of all categorizers, in alphabetical order.
    pub const NAMES: [&'static str; 5] =
        ["binary", "fits", "hotness", "incompressible", "pcmaudio"];

    /// The name of this one.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Fits => "fits",
            Self::Hotness(_) => "hotness",
            Self::Incompressible(_) => "incompressible",
            Self::PcmAudio => "pcmaudio",
        }
    }

    /// Whether it reads files from front to back, instead of single places.
    pub(crate) fn is_sequential(&self) -> bool {
        matches!(self, Self::Incompressible(_))
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Incompressible(options) => options.check(),
            _ => Ok(()),
        }
    }
}
