//! Packed forms of tables and compressed string tables (sections 4.3, 5.2, 5.3, 8).

use super::model::{Directory, FsOptions, Metadata, StringTable};
use crate::fsst::SymbolTable;

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
    /// Where metadata is compressed, [`for_metadata`](Self::for_metadata) makes other choices.
    pub automatic: bool,
}

impl Packing {
    /// The default: no packed tables, and strings compressed if that saves space; see also
    /// [`for_metadata`](Self::for_metadata).
    #[must_use]
    pub fn auto() -> Self {
        Self {
            names: true,
            symlinks: true,
            automatic: true,
            ..Self::none()
        }
    }

    /// What suits metadata that is compressed as a whole, or not, if that is not settled. Metadata that
    /// will be compressed is packed, because differences are smaller. Its strings are left to the
    /// codec. Shared files stay unpacked: they take almost no space, and some programs cannot read them
    /// packed. Metadata that is not compressed stays unpacked, so that it is read in place.
    #[must_use]
    pub fn for_metadata(self, compressed: bool) -> Self {
        if !self.automatic || !compressed {
            return self;
        }
        Self {
            names: false,
            symlinks: false,
            shared_files: false,
            ..Self::all()
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
            automatic: false,
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
            automatic: false,
        }
    }
}

impl Default for Packing {
    fn default() -> Self {
        Self::auto()
    }
}

/// Makes a compact table of `strings` in the given order.
///
/// The index counts bytes in 32 bits. If the strings of a table have 4 GiB or more together, the index
/// saturates, and [`freeze`](super::freeze)d metadata fails its check. No file system comes near that.
#[must_use]
pub fn build_string_table<S: AsRef<[u8]>>(
    strings: impl IntoIterator<Item = S> + Clone,
    pack: StringPacking,
) -> StringTable {
    let (mut count, mut plain) = (0, 0);
    for s in strings.clone() {
        count += 1;
        plain += s.as_ref().len();
    }
    let mut buffer = Vec::new();
    let mut ends = Vec::with_capacity(count + 1);
    let mut symtab = None;
    if pack.compress != Compress::Never && (plain > 0 || pack.compress == Compress::Always) {
        let samples: Vec<S> = strings.clone().into_iter().collect();
        let symbols = SymbolTable::train_on(&samples);
        for s in samples {
            symbols.compress(s.as_ref(), &mut buffer);
            ends.push(index_of(buffer.len()));
        }
        let table = symbols.encode_table();
        if pack.compress == Compress::Always || table.len() + buffer.len() < plain {
            symtab = Some(table);
        } else {
            buffer.clear();
            ends.clear();
        }
    }
    if symtab.is_none() {
        buffer.reserve_exact(plain);
        for s in strings {
            buffer.extend_from_slice(s.as_ref());
            ends.push(index_of(buffer.len()));
        }
    }
    buffer.shrink_to_fit();
    let index = if pack.pack_index {
        differences(ends)
    } else {
        ends.insert(0, 0);
        ends
    };
    StringTable {
        buffer,
        symtab,
        index,
        packed_index: pack.pack_index,
    }
}

fn index_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Replaces each element but the first by its difference from the one before.
fn differences(mut list: Vec<u32>) -> Vec<u32> {
    let mut previous = 0;
    for value in &mut list {
        let this = *value;
        *value = this.wrapping_sub(previous);
        previous = this;
    }
    list
}

/// Number of inodes that share each content, minus 2; `None` if the table is not of the form
/// 0, 0, 1, 1, 1, 2, 2, ... that can be packed.
fn sharing_counts(table: &[u32]) -> Option<Vec<u32>> {
    let mut counts = Vec::new();
    for run in table.chunk_by(|a, b| a == b) {
        if run.first().copied() != u32::try_from(counts.len()).ok() {
            return None;
        }
        counts.push(u32::try_from(run.len()).ok()?.checked_sub(2)?);
    }
    Some(counts)
}

impl Packing {
    /// The form of the table of names, unless it is to be plain.
    #[must_use]
    pub fn of_names(&self) -> StringPacking {
        StringPacking {
            compress: self.compress(self.names),
            pack_index: self.names_index,
        }
    }

    fn compress(&self, wanted: bool) -> Compress {
        match (wanted, self.force) {
            (false, _) => Compress::Never,
            (true, false) => Compress::IfSmaller,
            (true, true) => Compress::Always,
        }
    }
}

impl Metadata {
    /// Brings unpacked metadata with plain string tables into the form that `packing` asks for.
    ///
    /// Packed tables stay packed. A shared files table that does not have the form that the format
    /// prescribes stays unpacked.
    pub fn pack(&mut self, packing: &Packing) {
        let mut options = self.options.unwrap_or_default();
        if packing.chunk_table && !options.packed_chunk_table {
            self.chunk_table = differences(std::mem::take(&mut self.chunk_table));
            options.packed_chunk_table = true;
        }
        if packing.directories && !options.packed_directories {
            let mut previous = 0;
            for dir in &mut self.directories {
                let first = dir.first_entry;
                *dir = Directory {
                    first_entry: first.wrapping_sub(previous),
                    ..Directory::default()
                };
                previous = first;
            }
            options.packed_directories = true;
        }
        if packing.shared_files
            && !options.packed_shared_files_table
            && let Some(table) = &mut self.shared_files_table
            && let Some(counts) = sharing_counts(table)
        {
            *table = counts;
            options.packed_shared_files_table = true;
        }
        if self.options.is_some() || options != FsOptions::default() {
            self.options = Some(options);
        }
        if packing.plain {
            return;
        }
        let symlinks = StringPacking {
            compress: packing.compress(packing.symlinks),
            pack_index: packing.symlinks_index,
        };
        compact(&mut self.names, &mut self.compact_names, packing.of_names());
        compact(&mut self.symlinks, &mut self.compact_symlinks, symlinks);
    }
}

fn compact(plain: &mut Vec<Vec<u8>>, table: &mut Option<StringTable>, pack: StringPacking) {
    if table.is_none() {
        *table = Some(build_string_table(plain.iter(), pack));
        *plain = Vec::new();
    }
}
