//! Sums over the table of chunks, so that files of very many chunks are as quick as others.

use std::ops::Range;

use super::extents::Extents;
use super::types::Extent;
use super::view::{MetadataView, bad};
use crate::error::{Error, Result};

/// Number of chunks between two recorded sums.
const STRIDE: u32 = 64;

/// Files with at most this many chunks are added up for each request: some microseconds.
const LINEAR_SIZE: u32 = 2048;
/// The same for finding a place in a file, which happens more often.
const LINEAR_SEEK: usize = 256;

/// Sums over the chunks before every 64th one: half a byte per chunk. Made with one pass over
/// all chunks when a file of more than 256 chunks is used for the first time.
#[derive(Debug)]
pub(super) struct Sums(Box<[Mark]>);

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Bytes of data and holes. Holes may be up to 2^63 bytes each.
    size: u128,
    /// Bytes of data: at most 2^32 chunks of 2^32 bytes.
    data: u64,
    /// Chunks that are wrong and not counted.
    wrong: u32,
}

impl Mark {
    fn holes(&self) -> u128 {
        self.size - u128::from(self.data)
    }
}

impl Sums {
    fn new(view: &MetadataView) -> Result<Self> {
        let mut marks = Vec::with_capacity((view.t.chunk_size.len() / STRIDE) as usize + 1);
        let mut sum = Mark::default();
        for chunk in 0..view.t.chunk_size.len() {
            if chunk.is_multiple_of(STRIDE) {
                marks.push(sum);
            }
            match view.extent(chunk) {
                Ok(Extent::Data { size, .. }) => {
                    sum.size += u128::from(size);
                    sum.data = sum.data.saturating_add(u64::from(size));
                }
                Ok(Extent::Hole { size }) => sum.size += u128::from(size),
                Err(e @ Error::Io(_)) => return Err(e),
                Err(_) => sum.wrong += 1,
            }
        }
        if view.t.chunk_size.len().is_multiple_of(STRIDE) {
            marks.push(sum);
        }
        Ok(Self(marks.into()))
    }

    /// The mark before chunk `mark * STRIDE`.
    fn get(&self, mark: u32) -> Mark {
        self.0.get(mark as usize).copied().unwrap_or_default()
    }

    /// In a range of marks, the last one for which `holds`, which must not become true again
    /// once it is false; the first one if there is none.
    fn last(&self, marks: Range<u32>, holds: impl Fn(&Mark) -> bool) -> u32 {
        let found = self
            .0
            .get(marks.start as usize..marks.end as usize)
            .map_or(0, |marks| marks.partition_point(holds));
        let found = u32::try_from(found).unwrap_or(0);
        marks.start + found.saturating_sub(1)
    }
}

/// The marks that lie in a range of chunks, its end included.
fn marks_in(chunks: &Range<u32>) -> Range<u32> {
    chunks.start.div_ceil(STRIDE)..chunks.end / STRIDE + 1
}

impl MetadataView {
    fn sums(&self) -> Result<&Sums> {
        if let Some(sums) = self.sums.get() {
            return Ok(sums);
        }
        let sums = Sums::new(self)?;
        Ok(self.sums.get_or_init(|| sums))
    }

    /// Size and allocated size of a range of chunks, as [`MetadataView::sum`], but quick.
    pub(super) fn quick_sum(&self, range: Range<u32>) -> Result<(u64, u64)> {
        if range.end - range.start <= LINEAR_SIZE {
            return self.sum(range);
        }
        let sums = self.sums()?;
        let marks = marks_in(&range);
        let (first, last) = (sums.get(marks.start), sums.get(marks.end - 1));
        if first.wrong != last.wrong {
            // Finds the error.
            return self.sum(range);
        }
        let head = self.sum(range.start..marks.start * STRIDE)?;
        let tail = self.sum((marks.end - 1) * STRIDE..range.end)?;
        let size = last.size - first.size + u128::from(head.0) + u128::from(tail.0);
        let size = u64::try_from(size).map_err(|_| bad("file size exceeds 64 bits"))?;
        Ok((size, last.data - first.data + head.1 + tail.1))
    }
}

impl Extents<'_> {
    /// The start of a search for `offset` of the file: number and file offset of a piece that does not
    /// begin after it. Fewer than 256 pieces end between the two, except in a file with wrong pieces.
    ///
    /// Takes a few microseconds, but one pass over all chunks of the image if this is the first
    /// file of more than 256 pieces that is used.
    ///
    /// # Errors
    /// `Corrupt` if a piece on the way is wrong.
    pub fn near(&self, offset: u64) -> Result<(usize, u64)> {
        if offset == 0 || self.len() <= LINEAR_SEEK {
            return Ok((0, 0));
        }
        let chunks = self.chunks();
        let marks = marks_in(&chunks);
        let sums = self.view().sums()?;
        let (head, _) = self.view().sum(chunks.start..marks.start * STRIDE)?;
        let Some(behind) = offset.checked_sub(head) else {
            return Ok((0, 0));
        };
        let first = sums.get(marks.start);
        let goal = first.size + u128::from(behind);
        let mark = sums.last(marks, |mark| mark.size <= goal);
        let found = sums.get(mark);
        if found.wrong != first.wrong {
            return Ok((0, 0));
        }
        let start = found.size - first.size + u128::from(head);
        // Not after `offset`.
        let start = u64::try_from(start).map_err(|_| bad("file size exceeds 64 bits"))?;
        Ok(((mark * STRIDE - chunks.start) as usize, start))
    }

    /// The first position from `offset` on that lies in a hole, or in data. The end of the file
    /// counts as a hole. `None` if there is none, or if `offset` is not inside the file.
    ///
    /// As quick as [`Extents::near`].
    ///
    /// # Errors
    /// `Corrupt` if a piece on the way is wrong.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>> {
        let (mut index, mut position) = self.near(offset)?;
        let chunks = self.chunks();
        let end_mark = marks_in(&chunks).end;
        let mut steps = 0;
        while index < self.len() {
            let chunk = chunks.start + index as u32;
            if chunk.is_multiple_of(STRIDE) && steps >= LINEAR_SEEK {
                // Everything up to some mark is of the other kind.
                let sums = self.view().sums()?;
                let mark = chunk / STRIDE;
                let here = sums.get(mark);
                let same = |other: &Mark| {
                    other.wrong == here.wrong
                        && if hole {
                            other.holes() == here.holes()
                        } else {
                            other.data == here.data
                        }
                };
                let last = sums.last(mark..end_mark, same);
                if last > mark {
                    let skipped = sums.get(last).size - here.size;
                    let skipped = u64::try_from(skipped).unwrap_or(u64::MAX);
                    position = position.saturating_add(skipped);
                    index = (last * STRIDE - chunks.start) as usize;
                    continue;
                }
            }
            let extent = self.get(index)?;
            let end = position.saturating_add(extent.size());
            let is_hole = matches!(extent, Extent::Hole { .. });
            if is_hole == hole && end > offset {
                return Ok(Some(position.max(offset)));
            }
            position = end;
            index += 1;
            steps += 1;
        }
        Ok((hole && offset < position).then_some(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Chunk, DirEntry, Directory, FsOptions, InodeData, Metadata, freeze};

    const HOLE: u32 = 9;

    /// Files with the given numbers of chunks one after the other.
    fn view(files: &[u32], chunk: impl Fn(u32) -> Chunk) -> MetadataView {
        let mut chunk_table = vec![0];
        for n in files {
            chunk_table.push(chunk_table[chunk_table.len() - 1] + n);
        }
        let file = InodeData {
            mode_index: 1,
            ..InodeData::default()
        };
        let mut inodes = vec![InodeData::default()];
        inodes.extend(vec![file; files.len()]);
        let directory = |first_entry| Directory {
            first_entry,
            ..Directory::default()
        };
        let entry = |inode_num: u32| DirEntry {
            name_index: inode_num.saturating_sub(1),
            inode_num,
        };
        let metadata = Metadata {
            chunks: (0..chunk_table[files.len()]).map(chunk).collect(),
            chunk_table,
            inodes,
            directories: vec![directory(1), directory(files.len() as u32 + 1)],
            names: files.iter().map(|n| n.to_string().into_bytes()).collect(),
            uids: vec![0],
            gids: vec![0],
            modes: vec![0o040_755, 0o100_644],
            devices: Some(Vec::new()),
            dir_entries: Some((0..=files.len() as u32).map(entry).collect()),
            block_size: 1 << 20,
            hole_block_index: Some(HOLE),
            large_hole_size: Some(vec![1 << 62]),
            options: Some(FsOptions {
                inodes_have_nlink: true,
                ..FsOptions::default()
            }),
            ..Metadata::default()
        };
        let frozen = freeze(&metadata).unwrap();
        MetadataView::parse(&frozen.schema, frozen.data).unwrap()
    }

    fn mixed(i: u32) -> Chunk {
        Chunk {
            // Long runs of data, some of holes, and quick changes.
            block: match i {
                3000..6000 | 6003 | 6005 => HOLE,
                _ if i % 1000 == 999 => HOLE,
                _ => 1,
            },
            offset: i % 5,
            size: if i.is_multiple_of(7) { 0 } else { i % 3 },
        }
    }

    fn plain_seek(extents: Extents<'_>, offset: u64, hole: bool) -> Option<u64> {
        let mut position = 0;
        for extent in extents {
            let extent = extent.unwrap();
            let end = position + extent.size();
            if matches!(extent, Extent::Hole { .. }) == hole && end > offset {
                return Some(position.max(offset));
            }
            position = end;
        }
        (hole && offset < position).then_some(position)
    }

    #[test]
    fn quick_and_plain_agree() {
        let files = [10, 300, 0, 9000, 70, 2049, 2113, 257];
        let view = view(&files, mixed);
        for content in 0..files.len() as u32 {
            let range = view.chunk_range(content).unwrap();
            let sum = view.sum(range.clone()).unwrap();
            assert_eq!(view.quick_sum(range).unwrap(), sum);
            let extents = view.content_extents(content).unwrap();
            let step = (sum.0 / 97).max(1);
            let ends = [0, 1, sum.0.saturating_sub(1), sum.0, sum.0 + 1, u64::MAX];
            for offset in (0..20).map(|i| i * step + i % 3).chain(ends) {
                let (index, start) = extents.near(offset).unwrap();
                assert!(start <= offset);
                let mut position = 0;
                let mut steps = 0;
                for i in 0..extents.len() {
                    if i == index {
                        assert_eq!(position, start, "{content} {offset}");
                    }
                    position += extents.get(i).unwrap().size();
                    steps += usize::from(i >= index && position <= offset);
                }
                assert!(steps < 256 || offset >= sum.0, "{steps}");
                for hole in [false, true] {
                    assert_eq!(
                        extents.seek(offset, hole).unwrap(),
                        plain_seek(extents.clone(), offset, hole),
                        "{content} {offset} {hole}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_wrong_chunk_concerns_its_file_only() {
        let wrong = Chunk {
            block: HOLE,
            offset: u32::MAX,
            size: 7,
        };
        let view = view(&[3000, 3000, 3000], |i| {
            if i == 4500 { wrong } else { mixed(i) }
        });
        let size = |content| view.quick_sum(view.chunk_range(content).unwrap());
        assert!(size(0).is_ok() && size(1).is_err() && size(2).is_ok());
        let extents = |content| view.content_extents(content).unwrap();
        for content in [0, 2] {
            let end = size(content).unwrap().0;
            assert_eq!(
                extents(content).seek(end - 1, true).unwrap(),
                plain_seek(extents(content), end - 1, true)
            );
        }
        assert!(extents(1).seek(u64::MAX, false).is_err());
    }

    #[test]
    fn sizes_beyond_64_bits_are_errors() {
        let huge = Chunk {
            block: HOLE,
            offset: u32::MAX,
            size: 0,
        };
        let view = view(&[3000, 3000], |i| if i < 3000 { huge } else { mixed(i) });
        assert!(view.quick_sum(0..3000).is_err());
        assert_eq!(
            view.quick_sum(3000..6000).unwrap(),
            view.sum(3000..6000).unwrap()
        );
        let (index, start) = view.content_extents(0).unwrap().near(1 << 63).unwrap();
        assert!(index as u64 * (1 << 62) == start && index <= 2);
    }
}
