//! Reads uncompressed blocks directly from the image file.

use std::sync::Arc;

use redwarfs_format::{Error, Result};

use super::slot::Slot;
use super::stats::count;
use super::{BlockCache, BlockData};

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
            .inspect_err(|_| self.failed(slot))?;
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
        offset: u64,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let slot = &data.0;
        let Some(plain) = slot.plain() else {
            if !slot.copy(offset, out) {
                return Err(self.missing(data));
            }
            data.served(out.len());
            return Ok(());
        };
        if !slot.has(offset.saturating_add(out.len() as u64)) {
            return Err(self.missing(data));
        }
        self.shared
            .payloads
            .copy_leaves(&plain.section, plain.leaves.as_ref(), offset, out, scratch)
            .inspect_err(|_| self.failed(slot))?;
        data.served(out.len());
        Ok(())
    }

    /// Notes that reading a block from the image file has failed, so that the next request verifies it again.
    fn failed(&self, slot: &Arc<Slot>) {
        count(&self.shared.group.counters.errors);
        self.shared.forget(slot);
    }

    /// The error of missing bytes that an earlier request had.
    pub(crate) fn missing(&self, data: &BlockData) -> Error {
        let block = data.block();
        let e = Error::corrupt(format!("bytes of block {block} are missing"));
        self.shared.payloads.in_block(e, block)
    }
}
