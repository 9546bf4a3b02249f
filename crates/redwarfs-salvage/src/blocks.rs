//! Images without any usable metadata: raw blocks, and files that lie whole in one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::section::{CompressionId, SectionType};
use redwarfs_io::Source;

use crate::error::{Error, Result};
use crate::find::FoundSection;
use crate::recognise::{Recognised, recognise};
use crate::salvage::Salvage;

/// Longest block, stored or decoded (1 GiB): the largest block size of `mkdwarfs`.
const LIMIT: u64 = 1 << 30;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlocksWritten {
    /// Blocks, each as a file `block-NUMBER-at-OFFSET`, by the number in the header and the offset in the image file.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks whose checksum is wrong, or that cannot be decoded.
    pub lost: u64,
    /// Files that were recognised in them, each as a file beside its block.
    pub files: u64,
}

impl Salvage {
    /// Writes the contents of all intact blocks below `dir`, a new directory, and the files that are recognised in
    /// them. `visit` gets the name of each recognised file.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be written, [`Error::Interrupted`] if `stop` is set, and those of `visit`.
    pub fn write_blocks(
        &self,
        dir: &Path,
        visit: &mut dyn FnMut(&str, &Recognised) -> Result<()>,
        stop: &AtomicBool,
    ) -> Result<BlocksWritten> {
        let mut written = BlocksWritten::default();
        fs::create_dir(dir)?;
        let is_block = |found: &&FoundSection| found.header.ty == SectionType::BLOCK;
        for found in self.sections().iter().filter(is_block) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let Some(bytes) = self.decode(found) else {
                written.lost += 1;
                continue;
            };
            let name = format!("block-{:05}-at-{}", found.header.number, found.at);
            File::create_new(dir.join(&name))?.write_all(&bytes)?;
            written.blocks += 1;
            written.bytes += bytes.len() as u64;
            for found in recognise(&bytes) {
                let file = format!("{name}-{:08x}.{}", found.offset, found.extension);
                let part = bytes
                    .get(found.offset..)
                    .and_then(|b| b.get(..found.length));
                File::create_new(dir.join(&file))?.write_all(part.unwrap_or_default())?;
                written.files += 1;
                visit(&file, &found)?;
            }
        }
        Ok(written)
    }

    /// The contents of an intact block.
    fn decode(&self, found: &FoundSection) -> Option<Vec<u8>> {
        let length = usize::try_from(found.header.length).ok();
        let length = length.filter(|_| found.intact && found.header.length <= LIMIT)?;
        let mut payload = Vec::new();
        payload.try_reserve_exact(length).ok()?;
        payload.resize(length, 0);
        self.source
            .read_exact_at(found.payload_at(), &mut payload)
            .ok()?;
        // The medium may return other bytes than for the search.
        if !found.header.xxh_matches(&payload) {
            return None;
        }
        match found.header.compression {
            CompressionId::NONE => Some(payload),
            id => redwarfs_codec::decompress(id, &payload, LIMIT).ok(),
        }
    }
}
