//! Decodes whole blocks, or their first part, past the cache and into reusable memory.

use std::fmt;

use memmap2::MmapMut;
use redwarfs_codec::Decoder;
use redwarfs_format::section::CompressionId;
use redwarfs_format::{BlockNo, Error, Result};

use crate::error::in_section;
use crate::image::Image;
use crate::payload::memory_for;

/// Blocks of up to this size are decoded as a whole (128 KiB): zstd decodes this many bytes at a time,
/// even if fewer are needed.
const WHOLE: u64 = 128 << 10;

/// Memory for decoded blocks, one at a time: as large as the largest block that it held. Blocks that
/// come one after another then need no new pages, which cost a sixth of the time of decoding.
#[derive(Default)]
pub struct BlockMemory {
    map: Option<MmapMut>,
    len: usize,
}

impl BlockMemory {
    /// The decoded start of the last block; nothing after an error.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let map = self.map.as_deref().unwrap_or_default();
        map.get(..self.len).unwrap_or_default()
    }

    /// Room for `len` bytes with any contents. Previous contents are lost.
    fn room(&mut self, len: usize) -> Result<&mut [u8]> {
        self.len = 0;
        if self.map.as_ref().is_none_or(|map| map.len() < len) {
            // Before there is another one.
            self.map = None;
            let map = MmapMut::map_anon(len.max(1))
                .map_err(|_| Error::Limit(format!("no memory for {len} bytes of a block")))?;
            // A sixth less time for blocks of 16 MiB. Where there are none, small pages do.
            crate::sys::prefer_large_pages(&map);
            self.map = Some(map);
        }
        let map = self.map.as_deref_mut().unwrap_or_default();
        Ok(map.get_mut(..len).unwrap_or_default())
    }
}

impl fmt::Debug for BlockMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockMemory({} bytes)", self.len)
    }
}

impl Image {
    /// As [`Image::decode_block`], into memory that can be used again. `payload` receives the stored
    /// bytes. Pass the same buffer in the next call, for the same reason.
    ///
    /// # Errors
    /// As [`Image::decode_block`].
    pub fn decode_block_into(
        &self,
        block: BlockNo,
        payload: &mut Vec<u8>,
        memory: &mut BlockMemory,
    ) -> Result<()> {
        self.decode_block_start(block, u64::MAX, payload, memory)
    }

    /// As [`Image::decode_block_into`], but at least the first `end` bytes of the block, or all of
    /// it if it is shorter; [`BlockMemory::bytes`] tells how much that is.
    ///
    /// The checksum is verified in any case, over all that is stored. The data after `end` is decoded,
    /// and the end of the stream verified, in three cases. The rest is small (1/16 of the block, or 128
    /// KiB), or the codec decodes everything at once (LZ4). Or the image has no checksums, so that only
    /// decoding can find damage.
    ///
    /// # Errors
    /// As [`Image::decode_block`].
    pub fn decode_block_start(
        &self,
        block: BlockNo,
        end: u64,
        payload: &mut Vec<u8>,
        memory: &mut BlockMemory,
    ) -> Result<()> {
        memory.len = 0;
        let payloads = &self.0.payloads;
        let section = payloads.block_section(block)?;
        let wrap = |e| in_section(e, &section);
        let id = payloads.compression(&section)?;
        if id == CompressionId::NONE {
            // The length was compared with the block size.
            let len = usize::try_from(section.length).unwrap_or(usize::MAX);
            payloads.read_into(&section, memory.room(len).map_err(wrap)?)?;
            memory.len = len;
            return Ok(());
        }
        let mut used = std::mem::take(payload);
        if (used.capacity() as u64) < section.length {
            drop(used);
            // Most others that are a little longer find room then. It costs nothing until it is used.
            used = memory_for(&section, section.length.saturating_add(section.length / 4))?;
        }
        let stored = payloads.read_reusing(&section, used)?;
        let mut decoder = Decoder::new(id, stored, payloads.block_size()).map_err(wrap)?;
        let raw_size = decoder.raw_size();
        let len = usize::try_from(raw_size)
            .map_err(|_| Error::Limit(format!("a block of {raw_size} bytes")))?;
        let room = memory.room(len).map_err(wrap)?;
        let whole = end >= raw_size - raw_size / 16
            || raw_size <= WHOLE
            || !decoder.is_incremental()
            || section.header.is_none();
        if let Ok(end) = usize::try_from(end)
            && !whole
        {
            *payload = decoder.decode_start(room, end).map_err(wrap)?;
            memory.len = end;
            return Ok(());
        }
        decoder.fill(room).map_err(wrap)?;
        decoder.finish().map_err(wrap)?;
        *payload = decoder.into_payload();
        memory.len = len;
        Ok(())
    }
}
