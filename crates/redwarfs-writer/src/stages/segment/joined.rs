//! What streams have become, and joining it.

use crate::contents::{Chunk, ChunkRange, Content, Files, MOST_BLOCKS, Origin, Stored};
use crate::error::{Error, Result};
use crate::segmenter::Front;

/// What a stream has become. Blocks and chunks count from 0.
#[derive(Default)]
pub(super) struct StoredStream {
    pub(super) stream: u32,
    pub(super) blocks: u32,
    pub(super) chunks: Vec<Chunk>,
    /// Contents that are all in this stream.
    pub(super) whole: Vec<(u32, ChunkRange)>,
    /// Parts of contents, by their number in the content.
    pub(super) parts: Vec<(u32, usize, ChunkRange)>,
    /// By content.
    pub(super) changed: Vec<Changed>,
    /// Contents that have changed since they were cut into parts, or that cannot be read: the parts may
    /// be wrong.
    pub(super) again: Vec<u32>,
}

impl StoredStream {
    /// Takes note of where bytes have moved to.
    pub(super) fn settle(&mut self, front: &Front) -> Result<()> {
        let before = std::mem::take(&mut self.chunks);
        self.chunks.reserve_exact(before.len());
        let whole = self.whole.iter_mut().map(|(_, range)| range);
        let parts = self.parts.iter_mut().map(|(.., range)| range);
        let changed = self.changed.iter_mut().map(|changed| &mut changed.chunks);
        let mut ranges: Vec<&mut ChunkRange> = whole.chain(parts).chain(changed).collect();
        ranges.sort_unstable_by_key(|range| range.0);
        for range in ranges {
            let (first, count) = (range.0 as usize, range.1 as usize);
            let start = self.chunks.len();
            for &chunk in before.get(first..first + count).unwrap_or_default() {
                front.settle(chunk, start, &mut self.chunks);
            }
            let first = chunk_number(start)?;
            *range = (first, chunk_number(self.chunks.len())? - first);
        }
        Ok(())
    }
}

/// A file that now differs from the other files of its content, and becomes a separate content.
pub(super) struct Changed {
    pub(super) content: usize,
    pub(super) file: u32,
    pub(super) size: u64,
    pub(super) chunks: ChunkRange,
}

/// Appends the result of a stream to the stored data.
pub(super) fn append(
    stored: &mut Stored,
    list: &mut Vec<Content>,
    mut of: StoredStream,
) -> Result<()> {
    let before = stored.blocks();
    let end = before
        .checked_add(of.blocks)
        .filter(|&end| end < MOST_BLOCKS);
    let end = end.ok_or_else(Error::too_many_blocks)?;
    stored.categories.blocks.push((of.stream, end));
    for chunk in &mut of.chunks {
        chunk.settle(before);
    }
    chunk_number(stored.chunks.len().saturating_add(of.chunks.len()))?;
    let at = stored.chunks.len() as u32;
    if at == 0 {
        stored.chunks = of.chunks;
    } else {
        stored.chunks.append(&mut of.chunks);
    }
    let moved = |(first, count): ChunkRange| (at + first, count);
    for (content, chunks) in of.whole {
        if let Some(range) = stored.ranges.get_mut(content as usize) {
            *range = moved(chunks);
        }
    }
    for (content, part, chunks) in of.parts {
        let parts = list[content as usize].parts.as_ref();
        let count = parts.map_or(0, |parts| parts.len());
        let split = stored.split.entry(content);
        let split = split.or_insert_with(|| vec![(0, 0); count]);
        if let Some(range) = split.get_mut(part) {
            *range = moved(chunks);
        }
    }
    for changed in of.changed.chunk_by(|a, b| a.content == b.content) {
        for of_file in changed {
            list[of_file.content].files.remove(of_file.file);
            list.push(Content {
                size: of_file.size,
                files: Files::One(of_file.file),
                origin: Origin::Files,
                parts: None,
            });
            stored.ranges.push(moved(of_file.chunks));
        }
        // Without any file the content goes. Its place is taken by one of the new ones,
        // which are last and in no sequence.
        if let Some(&Changed { content, .. }) = changed.first()
            && list[content].files.is_empty()
        {
            list.swap_remove(content);
            stored.ranges.swap_remove(content);
        }
    }
    Ok(())
}

pub(super) fn chunk_number(n: usize) -> Result<u32> {
    u32::try_from(n)
        .map_err(|_| Error::Limit("too many chunks; use a larger window or block size".into()))
}
