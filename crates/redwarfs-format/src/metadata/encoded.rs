//! Tables of the metadata that are encoded before the rest.

use super::model::{DirEntry, InodeData, Metadata};
use crate::error::Result;
use crate::frozen::{EncodedList, EncodedMembers, Frozen, Widths, freeze_with};

/// Ids of the members of [`Metadata`].
const INODES: i16 = 3;
const DIR_ENTRIES: i16 = 19;

/// The largest tables of the metadata, in the form that they have in an image. An inode takes 88 bytes in [`Metadata`], and
/// usually 5 to 15 here.
///
/// ```
/// use redwarfs_format::frozen::Widths;
/// use redwarfs_format::metadata::{EncodedTables, InodeData, Metadata, freeze};
///
/// let inode = |i: u32| InodeData { mtime_offset: i.into(), ..InodeData::default() };
/// let mut tables = EncodedTables::new(Widths::Minimal);
/// tables.inodes(|| (0..1000).map(inode))?;
/// let mut metadata = Metadata::default();
/// let frozen = tables.freeze(&metadata)?;
/// metadata.inodes = (0..1000).map(inode).collect();
/// assert_eq!(frozen, freeze(&metadata)?);
/// # Ok::<(), redwarfs_format::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedTables {
    members: EncodedMembers,
    widths: Widths,
}

impl EncodedTables {
    /// No tables yet, for metadata with integers of these widths.
    #[must_use]
    pub fn new(widths: Widths) -> Self {
        Self {
            members: EncodedMembers::default(),
            widths,
        }
    }

    /// Encodes [`Metadata::inodes`]. `records` is called twice, and has to give the same ones.
    ///
    /// # Errors
    /// As [`EncodedList::new`].
    pub fn inodes<I>(&mut self, records: impl Fn() -> I) -> Result<()>
    where
        I: ExactSizeIterator<Item = InodeData>,
    {
        let list = EncodedList::new(records, self.widths)?;
        self.members.insert(INODES, list);
        Ok(())
    }

    /// Encodes [`Metadata::dir_entries`], as [`inodes`](Self::inodes).
    ///
    /// # Errors
    /// As [`EncodedList::new`].
    pub fn dir_entries<I>(&mut self, records: impl Fn() -> I) -> Result<()>
    where
        I: ExactSizeIterator<Item = DirEntry>,
    {
        let list = EncodedList::new(records, self.widths)?;
        self.members.insert(DIR_ENTRIES, list);
        Ok(())
    }

    /// Number of encoded inodes.
    #[must_use]
    pub fn inode_count(&self) -> u64 {
        self.members.get(INODES).map_or(0, EncodedList::count)
    }

    /// Encodes the rest of `metadata`, in which the tables that are encoded count as empty.
    ///
    /// # Errors
    /// As [`freeze`](super::freeze).
    pub fn freeze(self, metadata: &Metadata) -> Result<Frozen> {
        freeze_with(metadata, self.members, self.widths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Chunk, freeze, freeze_for_compression};

    /// Metadata with lists before and behind the tables, strings, and nothing in a table if `count` is 0.
    fn metadata(count: u32) -> Metadata {
        Metadata {
            chunks: (0..count)
                .map(|i| Chunk {
                    block: i / 9,
                    offset: i * 77,
                    size: i % 50,
                })
                .collect(),
            names: (0..count % 300)
                .map(|i| i.to_string().into_bytes())
                .collect(),
            symlinks: vec![b"a".to_vec(); 3],
            modes: vec![0o40755, 0o100_644],
            category_names: Some(vec![b"x".to_vec(), b"long".repeat(count as usize % 70)]),
            ..Metadata::default()
        }
    }

    #[test]
    fn tables_that_were_encoded_before_are_those_of_a_whole() {
        for count in [0u32, 1, 2, 7, 255, 256, 257, 1000, 70_000] {
            for widths in [Widths::Minimal, Widths::Bytes] {
                for times in [0, 1, 3_000_000_000] {
                    let inode = |i: u32| InodeData {
                        mode_index: i % 2,
                        owner_index: i % 3,
                        mtime_offset: u64::from(i) * times,
                        nlink_minus_one: i / 5,
                        ..InodeData::default()
                    };
                    let entry = |i: u32| DirEntry {
                        name_index: i / 2,
                        inode_num: i,
                    };
                    let mut tables = EncodedTables::new(widths);
                    tables
                        .inodes(|| (0..count as usize).map(|i| inode(i as u32)))
                        .unwrap();
                    tables
                        .dir_entries(|| (0..count as usize).map(|i| entry(i as u32)))
                        .unwrap();
                    assert_eq!(tables.inode_count(), count.into());
                    let mut whole = metadata(count);
                    let frozen = tables.freeze(&whole).unwrap();
                    whole.inodes = (0..count).map(inode).collect();
                    whole.dir_entries = Some((0..count).map(entry).collect());
                    let expected = match widths {
                        Widths::Minimal => freeze(&whole),
                        Widths::Bytes => freeze_for_compression(&whole),
                    };
                    assert!(frozen == expected.unwrap(), "{count} {widths:?} {times}");
                }
            }
        }
    }
}
