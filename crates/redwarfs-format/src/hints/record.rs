//! Ranges of files that a program has read, as a text file.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::error::Result;
use crate::ids::{BlockNo, InodeNo};
use crate::metadata::{Extent, FileType, MetadataView};
use crate::section::GenerationId;

use super::table::HintedBlock;

/// The first word of the file, and the version that is written.
const MAGIC: &str = "redwarfs-hints";
const VERSION: &str = "1";

/// Most ranges of a file of hints.
pub const MAX_HINTS: usize = 1 << 20;
/// Longest file of hints (64 MiB).
pub const MAX_HINTS_TEXT: usize = 64 << 20;

/// Pieces of files that are looked at for the blocks of hints. Equal files share their pieces, so an image could have
/// very many.
const MOST_EXTENTS: usize = 1 << 22;

/// A range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// Milliseconds after the first read.
    pub after: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. They may reach beyond the end of the file.
    pub length: u64,
    /// Path relative to the root, without a leading slash.
    pub path: Vec<u8>,
}

/// Ranges of files, in the order in which they are needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// The generation whose use was recorded.
    pub generation: Option<GenerationId>,
    /// The ranges.
    pub list: Vec<Hint>,
}

/// A text is no list of hints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHintsError {
    /// Another version.
    #[error("hints of a later version")]
    Version,
    /// The line with this number, from 1 on, is none of a range.
    #[error("line {0} is not 'MILLISECONDS OFFSET LENGTH PATH'")]
    Line(usize),
    /// More than [`MAX_HINTS`] lines, or more than [`MAX_HINTS_TEXT`] bytes.
    #[error("too many hints")]
    TooMany,
}

/// The blocks of hints in an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HintedBlocks {
    /// Each block once, in the order of the hints.
    pub blocks: Vec<HintedBlock>,
    /// Ranges whose path is no file of the image.
    pub unknown: usize,
    /// Ranges whose blocks were not looked for, because the files have too many pieces.
    pub skipped: usize,
}

impl Hints {
    /// Whether a text begins as a file that a mount has written, and not as a list of paths.
    #[must_use]
    pub fn is_recorded(text: &[u8]) -> bool {
        let first = text.split(|&b| b == b' ').next();
        first == Some(MAGIC.as_bytes())
    }

    /// Reads a file of hints, or a list with one path per line, which means whole files.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(text: &[u8]) -> Result<Self, ParseHintsError> {
        if text.len() > MAX_HINTS_TEXT {
            return Err(ParseHintsError::TooMany);
        }
        let mut lines = text.split(|&b| b == b'\n');
        let words = |line: &'_ [u8]| String::from_utf8_lossy(line).into_owned();
        let first = lines.clone().next().map(words).unwrap_or_default();
        let mut first = first.split(' ').skip(1);
        let mut hints = Self::default();
        let ranges = Self::is_recorded(text);
        if ranges {
            if first.next() != Some(VERSION) {
                return Err(ParseHintsError::Version);
            }
            hints.generation = first.next().and_then(generation);
            lines.next();
        }
        for (number, line) in lines.enumerate() {
            if line.is_empty() {
                continue;
            }
            if hints.list.len() >= MAX_HINTS {
                return Err(ParseHintsError::TooMany);
            }
            let hint = match ranges {
                true => range(line).ok_or(ParseHintsError::Line(number + 2))?,
                false => Hint {
                    after: 0,
                    offset: 0,
                    length: u64::MAX,
                    path: plain(line),
                },
            };
            if !hint.path.is_empty() {
                hints.list.push(hint);
            }
        }
        Ok(hints)
    }

    /// Writes the file. Paths with a line break, and what does not fit into [`MAX_HINTS`] and [`MAX_HINTS_TEXT`], are
    /// left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut first = format!("{MAGIC} {VERSION}");
        if let Some(generation) = self.generation {
            first.push(' ');
            for byte in generation.0 {
                // Writing to a string does not fail.
                let _ = write!(first, "{byte:02x}");
            }
        }
        let mut text = first.into_bytes();
        text.push(b'\n');
        let fitting = self.list.iter().filter(|hint| !hint.path.contains(&b'\n'));
        for hint in fitting.take(MAX_HINTS) {
            let numbers = format!("{} {} {} ", hint.after, hint.offset, hint.length);
            if text.len() + numbers.len() + hint.path.len() >= MAX_HINTS_TEXT {
                break;
            }
            text.extend(numbers.into_bytes());
            text.extend(&hint.path);
            text.push(b'\n');
        }
        text
    }

    /// The blocks of an image that hold the ranges. Ranges of files that it does not have are counted.
    ///
    /// Walks over the pieces of each file once, at most 4 million in total.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the metadata is wrong.
    pub fn blocks(&self, view: &MetadataView) -> Result<HintedBlocks> {
        let mut found = HintedBlocks::default();
        let mut files: HashMap<InodeNo, Vec<usize>> = HashMap::new();
        let mut order = Vec::new();
        for (number, hint) in self.list.iter().enumerate() {
            match file(view, &hint.path)? {
                Some(inode) => {
                    let of_file = files.entry(inode).or_default();
                    if of_file.is_empty() {
                        order.push(inode);
                    }
                    of_file.push(number);
                }
                None => found.unknown += 1,
            }
        }
        // Number of the hint, and the block.
        let mut touched: Vec<(usize, BlockNo)> = Vec::new();
        let mut budget = MOST_EXTENTS;
        for inode in order {
            let mut numbers = files.remove(&inode).unwrap_or_default();
            numbers.sort_by_key(|number| self.list.get(*number).map(|hint| hint.offset));
            if !self.walk(view, inode, &numbers, &mut budget, &mut touched)? {
                found.skipped += numbers.len();
            }
        }
        // Stable, so the blocks of a range stay in the order of the file.
        touched.sort_by_key(|(number, _)| *number);
        let mut seen = std::collections::HashSet::new();
        for (number, block) in touched {
            if seen.insert(block) {
                let value = self.list.get(number).map_or(0, |hint| hint.after);
                found.blocks.push(HintedBlock { block, value });
            }
        }
        Ok(found)
    }

    /// Adds the blocks of ranges of a file, which are in the order of their offsets. False if that takes too long.
    fn walk(
        &self,
        view: &MetadataView,
        inode: InodeNo,
        numbers: &[usize],
        budget: &mut usize,
        touched: &mut Vec<(usize, BlockNo)>,
    ) -> Result<bool> {
        let ranges = numbers.iter().filter_map(|number| {
            let hint = self.list.get(*number)?;
            let end = hint.offset.saturating_add(hint.length);
            Some((*number, hint.offset, end))
        });
        let mut waiting = ranges.peekable();
        // Those that have begun.
        let mut open: Vec<(usize, u64)> = Vec::new();
        let mut at = 0_u64;
        for extent in view.extents(inode)? {
            if open.is_empty() && waiting.peek().is_none() {
                break;
            }
            let extent = extent?;
            let end = at.saturating_add(extent.size());
            let Some(left) = budget.checked_sub(1 + open.len()) else {
                return Ok(false);
            };
            *budget = left;
            while let Some((number, _, last)) = waiting.next_if(|(_, start, _)| *start < end) {
                open.push((number, last));
            }
            if let Extent::Data { block, .. } = extent {
                let inside = open.iter().filter(|(_, last)| *last > at);
                let blocks = inside.map(|(number, _)| (*number, block));
                // Files of many pieces have most of them in few blocks.
                for found in blocks {
                    if touched.last() != Some(&found) {
                        touched.push(found);
                    }
                }
            }
            open.retain(|(_, last)| *last > end);
            at = end;
        }
        Ok(true)
    }
}

/// The regular file at a path.
fn file(view: &MetadataView, path: &[u8]) -> Result<Option<InodeNo>> {
    let mut inode = InodeNo::ROOT;
    for name in path.split(|&b| b == b'/') {
        if view.file_type(inode)? != FileType::Directory {
            return Ok(None);
        }
        match view.find(inode, name)? {
            Some(entry) => inode = view.entry_inode(entry)?,
            None => return Ok(None),
        }
    }
    let regular = view.file_type(inode)? == FileType::Regular;
    Ok(regular.then_some(inode))
}

/// A path without slashes at its ends, empty parts and `.`.
fn plain(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&b| b == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}

fn range(line: &[u8]) -> Option<Hint> {
    let mut words = line.splitn(4, |&b| b == b' ');
    let mut number = || -> Option<u64> {
        let word = std::str::from_utf8(words.next()?).ok()?;
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        word.parse().ok().filter(|_| digits)
    };
    let (after, offset, length) = (number()?, number()?, number()?);
    Some(Hint {
        after: u32::try_from(after).unwrap_or(u32::MAX),
        offset,
        length,
        path: plain(words.next()?),
    })
}

fn generation(text: &str) -> Option<GenerationId> {
    let mut id = [0; 16];
    if text.len() != 2 * id.len() || !text.is_ascii() {
        return None;
    }
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(GenerationId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{
        Chunk, Compress, DirEntry, Directory, FsOptions, InodeData, Metadata, StringPacking,
        build_string_table, freeze,
    };

    fn hint(after: u32, offset: u64, length: u64, path: &str) -> Hint {
        Hint {
            after,
            offset,
            length,
            path: path.as_bytes().to_vec(),
        }
    }

    #[test]
    fn texts() {
        let mut hints = Hints {
            generation: Some(GenerationId([0xab; 16])),
            list: vec![
                hint(0, 0, 4096, "bin/sh"),
                hint(12, 1 << 40, 1, "a b\\\t c"),
            ],
        };
        let text = hints.encode();
        let want = format!(
            "redwarfs-hints 1 {}\n0 0 4096 bin/sh\n12 1099511627776 1 a b\\\t c\n",
            "ab".repeat(16)
        );
        assert_eq!(String::from_utf8(text.clone()).unwrap(), want);
        assert_eq!(Hints::parse(&text).unwrap(), hints);
        hints.generation = None;
        hints.list.push(hint(1, 2, 3, "a\nb"));
        let again = Hints::parse(&hints.encode()).unwrap();
        assert_eq!((again.generation, again.list.len()), (None, 2));
        // Lists of paths, as -o analysis_file writes them.
        let list = Hints::parse(b"/a/./b/\n\nc\n").unwrap();
        let want = [hint(0, 0, u64::MAX, "a/b"), hint(0, 0, u64::MAX, "c")];
        assert_eq!(list.list, want);
        for (text, error) in [
            ("redwarfs-hints 2\n", ParseHintsError::Version),
            ("redwarfs-hints \n", ParseHintsError::Version),
            ("redwarfs-hints 1\n\n0 0 a\n", ParseHintsError::Line(3)),
            ("redwarfs-hints 1\n0 +1 2 a\n", ParseHintsError::Line(2)),
            (
                "redwarfs-hints 1\n0 1 99999999999999999999 a\n",
                ParseHintsError::Line(2),
            ),
        ] {
            assert_eq!(Hints::parse(text.as_bytes()).unwrap_err(), error, "{text}");
        }
        let many = "0 0 1 a\n".repeat(MAX_HINTS + 1);
        let many = format!("redwarfs-hints 1 bad\n{many}");
        let error = Hints::parse(many.as_bytes()).unwrap_err();
        assert_eq!(error, ParseHintsError::TooMany);
    }

    /// Files `a` and `b` in a directory `d`, with these chunks: block, offset, size.
    fn view(files: [&[(u32, u32, u32)]; 2]) -> MetadataView {
        let inode = |mode_index| InodeData {
            mode_index,
            ..InodeData::default()
        };
        let entry = |name_index, inode_num| DirEntry {
            name_index,
            inode_num,
        };
        let directory = |first_entry, self_entry| Directory {
            parent_entry: 0,
            first_entry,
            self_entry,
        };
        let chunks = files.iter().flat_map(|chunks| chunks.iter());
        let first = files[0].len() as u32;
        let names: [&[u8]; 3] = [b"a", b"b", b"d"];
        let packing = StringPacking {
            compress: Compress::IfSmaller,
            pack_index: false,
        };
        let metadata = Metadata {
            chunks: chunks
                .map(|&(block, offset, size)| Chunk {
                    block,
                    offset,
                    size,
                })
                .collect(),
            directories: vec![directory(1, 0), directory(2, 1), directory(4, 0)],
            inodes: vec![inode(0), inode(0), inode(1), inode(1)],
            chunk_table: vec![0, first, first + files[1].len() as u32],
            uids: vec![0],
            gids: vec![0],
            modes: vec![0o040_755, 0o100_644],
            block_size: 1 << 20,
            devices: Some(Vec::new()),
            options: Some(FsOptions::default()),
            dir_entries: Some(vec![entry(0, 0), entry(2, 1), entry(0, 2), entry(1, 3)]),
            shared_files_table: Some(Vec::new()),
            compact_names: Some(build_string_table(&names, packing)),
            ..Metadata::default()
        };
        let frozen = freeze(&metadata).unwrap();
        MetadataView::parse(&frozen.schema, frozen.data).unwrap()
    }

    #[test]
    fn ranges_become_blocks() {
        let view = view([
            &[(3, 0, 100), (1, 50, 100), (3, 100, 100)],
            &[(0, 0, 10), (2, 0, 90)],
        ]);
        let blocks = |list: &[Hint]| {
            let hints = Hints {
                generation: None,
                list: list.to_vec(),
            };
            let found = hints.blocks(&view).unwrap();
            let blocks: Vec<(u32, u32)> =
                found.blocks.iter().map(|b| (b.block.0, b.value)).collect();
            (blocks, found.unknown)
        };
        let whole = u64::MAX;
        assert_eq!(
            blocks(&[hint(5, 0, whole, "d/a")]),
            (vec![(3, 5), (1, 5)], 0)
        );
        assert_eq!(blocks(&[hint(0, 100, 1, "d/a")]), (vec![(1, 0)], 0));
        assert_eq!(blocks(&[hint(0, 99, 1, "d/a")]), (vec![(3, 0)], 0));
        // The order of the hints, not of the file.
        let list = [
            hint(1, 150, 1, "d/a"),
            hint(2, 10, 1, "d/b"),
            hint(3, 0, 1, "d/a"),
            hint(4, 0, whole, "d/b"),
            hint(5, 0, 0, "d/b"),
            hint(6, whole, whole, "d/b"),
        ];
        let want = vec![(1, 1), (2, 2), (3, 3), (0, 4)];
        assert_eq!(blocks(&list), (want, 0));
        let none = ["d", "d/c", "d/a/x", "e"].map(|path| hint(0, 0, 1, path));
        assert_eq!(blocks(&none), (vec![], 4));
    }
}
