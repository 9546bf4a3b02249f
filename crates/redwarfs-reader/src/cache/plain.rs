//! Reads uncompressed blocks directly from the image file.

use redwarfs_format::section::LeafDigests;
use redwarfs_format::{Error, Result};

use super::stats::count;
use super::{BlockCache, BlockData};

/// Bytes that are copied at a time into the memory of a caller: a few leaves, which stay in the CPU
/// caches.
const COPIED: usize = 16 * LeafDigests::LEAF;

impl BlockCache {
    /// Appends bytes of a block to `out`, perhaps after other bytes. Returns their start in `out`; they
    /// end at its end. `None`, with `out` as before, if this must wait for the medium and `wait`
    /// forbids that.
    ///
    /// # Errors
    /// The errors of the medium, and [`Error::Io`] if an uncompressed block has changed since it was
    /// verified. The next request verifies it again.
    pub(crate) fn append(
        &self,
        data: &BlockData,
        offset: u64,
        len: usize,
        wait: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        let slot = &data.0;
        let end = offset.saturating_add(len as u64);
        if !slot.has(end) {
            return Err(self.missing(data));
        }
        let Some(plain) = slot.plain() else {
            let at = out.len();
            // In memory, without a copy.
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = slot.bytes().get(from..).and_then(|rest| rest.get(..len));
            out.extend_from_slice(bytes.ok_or_else(|| self.missing(data))?);
            data.served(len);
            return Ok(Some(at));
        };
        let (section, leaves) = (&plain.section, plain.leaves.as_ref());
        let read = self
            .shared
            .payloads
            .read_leaves(section, leaves, offset..end, wait, out)
            .inspect_err(|_| {
                count(&self.shared.group.counters.errors);
                self.shared.forget(slot);
            })?;
        if read.is_some() {
            data.served(len);
        }
        Ok(read)
    }

    /// Copies bytes of a block. `scratch` is memory for that; its previous contents are lost.
    ///
    /// # Errors
    /// As [`BlockCache::append`].
    pub(crate) fn copy(
        &self,
        data: &BlockData,
        mut offset: u64,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        if !data.is_plain() {
            if !data.0.copy(offset, out) {
                return Err(self.missing(data));
            }
            data.served(out.len());
            return Ok(());
        }
        for piece in out.chunks_mut(COPIED) {
            scratch.clear();
            let at = self.append(data, offset, piece.len(), true, scratch)?;
            let bytes = at.and_then(|at| scratch.get(at..)?.get(..piece.len()));
            piece.copy_from_slice(bytes.ok_or_else(|| self.missing(data))?);
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// The error of missing bytes that an earlier request had.
    pub(crate) fn missing(&self, data: &BlockData) -> Error {
        let block = data.block();
        let e = Error::corrupt(format!("bytes of block {block} are missing"));
        self.shared.payloads.in_block(e, block)
    }
}
