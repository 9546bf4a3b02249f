//! Storing new data as references to the image that the build continues, and the data between them.
//!
//! New data is compared with two kinds of old data:
//!
//! * the file with the same path in the newest generation, its *old version*;
//! * for what is not in there, blocks of all generations ([`OldBlocks`]).
//!
//! What both find may be short, or lie in many places. [`choice`] decides which of it becomes references.

mod anchored;
mod choice;
mod matches;
mod version;

pub(super) use self::anchored::OldBlocks;
use self::choice::{Part, choose};
use self::matches::SHORTEST;
use self::version::OldVersion;
use crate::base::{BaseContent, BaseImage};
use crate::error::Result;
use crate::segmenter::{BlockSink, Segmenter};

/// Bytes of new data that are compared at a time (8 MiB).
const PIECE: usize = 8 << 20;

/// Finds the data of one content.
pub(super) struct Against<'a> {
    image: &'a dyn BaseImage,
    version: Option<OldVersion>,
    /// Of a chunk.
    price: u64,
    blocks: &'a OldBlocks<'a>,
    /// Bytes that wait, and where they begin.
    waiting: Vec<u8>,
    at: u64,
    parts: Vec<Part>,
    /// Bytes that were found.
    pub(super) found: u64,
}

impl<'a> Against<'a> {
    /// `version` is the content of the old version, if there is one. `size` is that of the new data; none if
    /// it is too short.
    pub(super) fn new(
        image: &'a dyn BaseImage,
        version: Option<BaseContent>,
        size: u64,
        blocks: &'a OldBlocks<'a>,
    ) -> Option<Self> {
        (size >= SHORTEST as u64).then(|| Self {
            image,
            version: version.and_then(|content| OldVersion::new(image, content)),
            price: choice::price(version.map(|content| image.held(content))),
            blocks,
            waiting: Vec::new(),
            at: 0,
            parts: Vec::new(),
            found: 0,
        })
    }

    /// The next bytes of the content.
    pub(super) fn data<S: BlockSink>(
        &mut self,
        segmenter: &mut Segmenter<S>,
        mut data: &[u8],
    ) -> Result<()> {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PIECE - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() == PIECE {
                self.flush(segmenter)?;
            }
            data = later;
        }
        Ok(())
    }

    /// A hole of the content.
    pub(super) fn hole<S: BlockSink>(
        &mut self,
        segmenter: &mut Segmenter<S>,
        size: u64,
    ) -> Result<()> {
        self.flush(segmenter)?;
        self.at = self.at.saturating_add(size);
        segmenter.hole(size);
        Ok(())
    }

    /// Stores the bytes that wait. The extent ends.
    pub(super) fn flush<S: BlockSink>(&mut self, segmenter: &mut Segmenter<S>) -> Result<()> {
        let mut new = std::mem::take(&mut self.waiting);
        self.parts.clear();
        self.look_in_version(&new);
        self.look_in_blocks(&new);
        choose(&mut self.parts, self.price);
        let mut done = 0;
        for part in &self.parts {
            let bytes = new.get(done..done + part.size).unwrap_or_default();
            match part.place {
                Some((block, offset)) => {
                    segmenter.base(block, offset, part.size as u32);
                    self.found += part.size as u64;
                }
                None => {
                    segmenter.data(bytes)?;
                    segmenter.end_extent()?;
                }
            }
            done += part.size;
        }
        self.at = self.at.saturating_add(new.len() as u64);
        new.clear();
        self.waiting = new;
        Ok(())
    }

    /// Divides new data into what the old version has, and the rest.
    fn look_in_version(&mut self, new: &[u8]) {
        let mut done = 0;
        if let Some(version) = &mut self.version {
            for found in version.matches(self.image, self.at, new) {
                self.parts.push(Part::new(found.new - done));
                version.places(found, &mut self.parts);
                done = found.new + found.size;
            }
        }
        self.parts.push(Part::new(new.len() - done));
        self.parts.retain(|part| part.size > 0);
    }

    /// Divides the rest into what old blocks have, and what is new.
    fn look_in_blocks(&mut self, new: &[u8]) {
        let parts = std::mem::take(&mut self.parts);
        let mut at = 0;
        for part in parts {
            let data = new.get(at..at + part.size).unwrap_or_default();
            at += part.size;
            if part.place.is_some() || part.size < SHORTEST {
                self.parts.push(part);
            } else {
                self.blocks.divide(data, &mut self.parts);
            }
        }
    }
}
