//! The options of a rewrite.

use redwarfs_codec::{CodecSpec, ContentKind};
use redwarfs_format::hints::Hints;
use redwarfs_format::metadata::Packing;
use redwarfs_writer::{BuildOptions, HistoryOptions, ModeTransform, TimeResolution, XattrFilter};

use crate::error::{Error, Result};

/// The codec of one category.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CategoryCodec {
    /// Name of the category as stored in the image.
    pub category: String,
    /// Its codec.
    pub codec: CodecSpec,
    /// Fail if the codec needs parameters that the image does not have. Otherwise the codec for
    /// all other data is used instead.
    pub required: bool,
}

impl CategoryCodec {
    /// All of it.
    pub fn new(category: impl Into<String>, codec: CodecSpec, required: bool) -> Self {
        Self {
            category: category.into(),
            codec,
            required,
        }
    }
}

/// The blocks to recompress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CategoryFilter {
    /// Names of categories, all of which the image must have.
    pub names: Vec<String>,
    /// Select all blocks except those of these categories.
    pub exclude: bool,
}

impl CategoryFilter {
    /// The blocks of these categories, or all others.
    pub fn new(names: Vec<String>, exclude: bool) -> Self {
        Self { names, exclude }
    }
}

/// The bytes before the new image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Leading {
    /// The bytes before the source image.
    #[default]
    Keep,
    /// Nothing.
    Remove,
    /// These bytes.
    Replace(Vec<u8>),
}

/// Changes to the metadata. The default changes nothing but its encoding, drops access and
/// change times, and leaves out the creation time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rebuild {
    /// Owner of every entry.
    pub set_owner: Option<u32>,
    /// Group of every entry.
    pub set_group: Option<u32>,
    /// Time of every entry, in seconds since 1970.
    pub set_time: Option<i64>,
    /// Keep access and change times, if the image has them.
    pub keep_all_times: bool,
    /// A coarser resolution of times, a whole multiple of the old one. `None` keeps the old one.
    pub time_resolution: Option<TimeResolution>,
    /// Change of permissions.
    pub chmod: Option<ModeTransform>,
    /// How the tables are packed.
    pub packing: Packing,
    /// Keep the names of categories, and the category of each block. Without them, the formats of
    /// samples and pixels are dropped, too.
    pub category_names: bool,
    /// Keep the stored sample and pixel formats of blocks.
    pub category_metadata: bool,
    /// Creation time, Unix seconds.
    pub create_timestamp: Option<u64>,
    /// Store link counts.
    pub hardlink_table: bool,
    /// Keep the record of earlier versions of the metadata and add the present one.
    pub version_history: bool,
    /// Which extended attributes are kept, if `extensions` are.
    pub xattrs: XattrFilter,
    /// Keep extended attributes, birth times and file flags, which only this project reads and writes.
    pub extensions: bool,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self {
            set_owner: None,
            set_group: None,
            set_time: None,
            keep_all_times: false,
            time_resolution: None,
            chmod: None,
            packing: Packing::auto(),
            category_names: true,
            category_metadata: true,
            create_timestamp: None,
            hardlink_table: true,
            version_history: true,
            xattrs: XattrFilter::all(),
            extensions: true,
        }
    }
}

/// All options of a rewrite. The [default](Self::level) copies all sections.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RewriteOptions {
    /// Recompress blocks.
    pub blocks: bool,
    /// Recompress schema and metadata.
    pub metadata: bool,
    /// Recompress only some of the blocks, if `blocks`.
    pub categories: Option<CategoryFilter>,
    /// Convert the metadata to the current format and change it; implies `metadata`.
    pub rebuild: Option<Rebuild>,
    /// Log2 of a new block size, 10..=30: all data is cut anew and recompressed, and the
    /// metadata is rebuilt.
    pub block_size_bits: Option<u32>,
    /// Codec of file data.
    pub compression: CodecSpec,
    /// Codecs of categories that have their own. Names that the image does not have are ignored.
    pub category_compression: Vec<CategoryCodec>,
    /// Codec of the metadata schema.
    pub schema_compression: CodecSpec,
    /// Codec of the metadata.
    pub metadata_compression: CodecSpec,
    /// This codec is used instead in rebuilt metadata if it makes the image smaller by one percent. It
    /// is not tried with a `memory_limit`, which does not include it.
    pub metadata_alternative: Option<CodecSpec>,
    /// Codec of the history.
    pub history_compression: CodecSpec,
    /// The bytes before the image.
    pub leading: Leading,
    /// Verify the checksums of all sections before anything is written. Otherwise, they are verified
    /// when a section is read.
    pub check: bool,
    /// The entry that is added to the history; `None` writes no history at all.
    pub history: Option<HistoryOptions>,
    /// Write a section index.
    pub section_index: bool,
    /// What a program reads first: the new image gets hints about it. Without this, it keeps those of the old image, as long as
    /// blocks keep their numbers.
    pub hints: Option<Hints>,
    /// Threads that check, decode and compress, at least 1.
    pub workers: usize,
    /// Added to the niceness of these threads, 0..=19.
    pub compress_niceness: i32,
    /// Largest resident memory of the process, as far as this library uses it, in bytes. `None` means
    /// half of `machine_memory`; then a single job always runs.
    pub memory_limit: Option<u64>,
    /// Bytes of memory from which the default of `memory_limit` follows; `None` means the physical
    /// memory of the machine.
    pub machine_memory: Option<u64>,
}

impl Default for RewriteOptions {
    fn default() -> Self {
        Self::level(7)
    }
}

impl RewriteOptions {
    /// Copies all sections. The codecs are those of the preset `level`, 0..=9, of a build.
    pub fn level(level: u8) -> Self {
        let build = BuildOptions::level(level);
        Self {
            blocks: false,
            metadata: false,
            categories: None,
            rebuild: None,
            block_size_bits: None,
            compression: build.compression,
            category_compression: Vec::new(),
            schema_compression: build.schema_compression,
            metadata_compression: build.metadata_compression,
            metadata_alternative: build.metadata_alternative,
            history_compression: build.history_compression,
            leading: Leading::Keep,
            check: true,
            history: build.history,
            section_index: true,
            hints: None,
            workers: build.workers,
            compress_niceness: build.compress_niceness,
            memory_limit: None,
            machine_memory: None,
        }
    }

    /// Verifies ranges and combinations.
    ///
    /// # Errors
    /// [`redwarfs_writer::Error::InvalidOption`] with one line that names option and range.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(what));
        if self.workers == 0 {
            return bad("the number of workers must be at least 1");
        }
        if self
            .block_size_bits
            .is_some_and(|n| !(10..=30).contains(&n))
        {
            return bad("block size must be between 10 and 30");
        }
        if self.hints.is_some() && !self.section_index {
            return bad("hints need a section index");
        }
        if self.block_size_bits.is_some() && self.categories.is_some() {
            return bad("cannot use --recompress-categories with --change-block-size");
        }
        if self.categories.is_some() && !self.blocks {
            return bad("--recompress-categories needs recompression of blocks");
        }
        for codec in [
            &self.compression,
            &self.schema_compression,
            &self.metadata_compression,
            &self.history_compression,
        ] {
            if codec.requires() != ContentKind::Bytes {
                return Err(Error::invalid(format!(
                    "compression '{codec}' cannot be used without a category"
                )));
            }
        }
        let metadata = self.metadata || self.rebuild.is_some() || self.block_size_bits.is_some();
        for (used, codec) in [
            (
                self.blocks || self.block_size_bits.is_some(),
                &self.compression,
            ),
            (metadata, &self.schema_compression),
            (metadata, &self.metadata_compression),
        ] {
            if used {
                let available = codec.check_available();
                available.map_err(|e| Error::invalid(e.to_string()))?;
            }
        }
        Ok(())
    }
}
