//! The options of an append: `--append` and its relatives.

use std::path::PathBuf;

use super::definition::Definition as _;
use super::definition::WhenRewriting::Refused;

/// Options that continue an image.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AppendArgs {
    /// Add the input to this image as its newest snapshot
    ///
    /// Only new data is stored. The image is changed in place, and at every moment it is a valid image;
    /// with --output, mkdwarfs writes a copy with the new snapshot instead.
    #[arg(long, value_name = "IMAGE", help_heading = "Snapshot options", when_rewriting = Refused)]
    pub append: Option<PathBuf>,

    /// Name of the new snapshot [default: its time]
    #[arg(long, value_name = "NAME", help_heading = "Snapshot options", requires = "append", when_rewriting = Refused)]
    pub snapshot_name: Option<String>,

    /// Read all files, also those with the size and time that they have in the image
    #[arg(long, help_heading = "Snapshot options", requires = "append", when_rewriting = Refused)]
    pub checksum: bool,

    /// Write only what is new to this file, and leave the image as it is
    ///
    /// The image and the file, one after the other, are the image with the new snapshot.
    #[arg(long, value_name = "FILE", help_heading = "Snapshot options", requires = "append", conflicts_with = "output", when_rewriting = Refused)]
    pub delta_out: Option<PathBuf>,
}
