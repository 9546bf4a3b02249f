//! How holes are stored (format/04 section 6).

use std::collections::HashMap;

use redwarfs_format::metadata::{Chunk, Metadata};

use crate::error::{Error, Result};

/// Contents with at least this many chunks get an entry in the size cache.
pub const MIN_CACHED_CHUNKS: u64 = 128;

/// `offset` of holes whose size is in a table.
const LARGE_HOLE: u32 = u32::MAX;
/// The feature that readers of holes must know.
const SPARSE_FILES: &[u8] = b"sparsefiles";

/// Encodes the holes of one image.
#[derive(Debug)]
pub struct HoleTable {
    any: bool,
    block: u32,
    block_bits: u32,
    /// Largest hole that is stored inline.
    limit: u64,
    large: Vec<u64>,
    known: HashMap<u64, u32>,
}

impl HoleTable {
    /// `blocks` is the number of BLOCK sections, and `block_size` a power of two. `largest` is the size
    /// of the largest chunk with data: hole chunks must not take more bits.
    #[must_use]
    pub fn new(blocks: u32, block_size: u32, largest: u32) -> Self {
        let block_bits = block_size.trailing_zeros();
        let bits = (u32::BITS - largest.leading_zeros()) + block_bits;
        Self {
            any: false,
            block: blocks,
            block_bits,
            limit: 1u64.checked_shl(bits).map_or(u64::MAX, |v| v - 1),
            large: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The chunk of a hole of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are 2^32 sizes of large holes already.
    pub fn store(&mut self, size: u64) -> Result<Chunk> {
        self.any = true;
        let count = size >> self.block_bits;
        if size <= self.limit && count <= u64::from(u32::MAX) {
            let offset = size & ((1 << self.block_bits) - 1);
            return Ok(Chunk {
                block: self.block,
                offset: offset as u32,
                size: count as u32,
            });
        }
        let next = self.large.len();
        let index = match self.known.get(&size) {
            Some(&index) => index,
            None => {
                let index =
                    u32::try_from(next).map_err(|_| Error::Limit("too many large holes".into()))?;
                self.known.insert(size, index);
                self.large.push(size);
                index
            }
        };
        Ok(Chunk {
            block: self.block,
            offset: LARGE_HOLE,
            size: index,
        })
    }

    /// Says in `metadata` how to read the holes, if there are any.
    pub fn finish(self, metadata: &mut Metadata) {
        if self.any {
            metadata.hole_block_index = Some(self.block);
            metadata.large_hole_size = Some(self.large);
            let features = metadata.features.get_or_insert_default();
            features.insert(SPARSE_FILES.to_vec());
        }
    }
}
