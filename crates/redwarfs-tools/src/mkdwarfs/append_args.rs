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
    #[arg(long, value_name = "IMAGE", help_heading = "Snapshot options", groups = ["continues", "compares"], when_rewriting = Refused)]
    pub append: Option<PathBuf>,

    /// Name of the new snapshot [default: its time]
    #[arg(long, value_name = "NAME", help_heading = "Snapshot options", requires = "continues", when_rewriting = Refused)]
    pub snapshot_name: Option<String>,

    /// Add the changes of this writable layer to the image, instead of an input
    ///
    /// DIR is that of 'dwarfs -o rw=DIR', or another directory with 'upper' and 'work' of an overlay on top of the image. The
    /// new snapshot has the tree that the mount showed. Only what was changed is read. It is an error if a mount uses the layer,
    /// or if it was made on top of another snapshot. The layer stays as it is, and belongs to the new snapshot from then on.
    #[arg(long, value_name = "DIR", help_heading = "Snapshot options", requires = "append", conflicts_with_all = ["input", "input_list", "null", "filter", "debug_filter", "one_file_system", "exclude_caches", "exclude_if_present", "symlinks", "input_format", "whiteouts", "spool", "checksum", "layer"], when_rewriting = Refused)]
    pub commit: Option<PathBuf>,

    /// Remove the changes from the layer when the image has them
    #[arg(long, help_heading = "Snapshot options", requires = "commit", conflicts_with_all = ["output", "delta_out"], when_rewriting = Refused)]
    pub empty_layer: bool,

    /// Read all files, also those with the size and time that they have in the image
    #[arg(long, help_heading = "Snapshot options", requires = "compares", when_rewriting = Refused)]
    pub checksum: bool,

    /// Write an index of the data of new blocks, for appends to large images
    ///
    /// An append finds old data by the paths and contents of files, and in the last 64 MiB of blocks. With the index,
    /// it finds data of 8 KiB or more in all blocks that an index lists. The index has 12 bytes for each 4 KiB of
    /// data. Give the option when the image is made, and with each append.
    #[arg(long, help_heading = "Snapshot options", conflicts_with = "no_section_index", when_rewriting = Refused)]
    pub match_index: bool,

    /// Write only what is new to this file, and leave the image as it is
    ///
    /// The image and the file, one after the other, are the image with the new snapshot.
    #[arg(long, value_name = "FILE", help_heading = "Snapshot options", requires = "append", conflicts_with = "output", when_rewriting = Refused)]
    pub delta_out: Option<PathBuf>,

    /// Write only what differs from this image, as a layer on top of it
    ///
    /// The new image has what is new or has changed, and whiteouts (character devices 0:0) for what the image has and the input
    /// has not. An overlay or a union of it and the image is the input. A file counts as unchanged if its
    /// attributes, size and modification time are those in the image; --checksum compares contents, too. What rules of -F leave out counts
    /// as deleted. Implies --with-devices.
    #[arg(long, value_name = "IMAGE", help_heading = "Snapshot options", group = "compares", conflicts_with_all = ["append", "delta", "input_list"], when_rewriting = Refused)]
    pub layer: Option<PathBuf>,

    /// Write what the image OLD lacks of the image NEW to the output
    ///
    /// OLD and the output, one after the other, are an image with the tree of NEW as its newest snapshot, and all tools take
    /// them as OLD+OUTPUT. Data that OLD has is found as in an append. Only the rest is compressed anew. Both images stay as
    /// they are.
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2, help_heading = "Snapshot options", group = "continues", requires = "output", conflicts_with_all = ["append", "input", "input_list", "recovery", "header", "hollow", "no_section_index"], when_rewriting = Refused)]
    pub delta: Option<Vec<PathBuf>>,
}
