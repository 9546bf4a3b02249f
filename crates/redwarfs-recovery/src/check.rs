//! Comparing a file with its checksums.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_io::Source;

use crate::PIECE;
use crate::damage::{Damage, PartDamage};
use crate::error::{Error, Result};
use crate::locate::RecoveryData;
use crate::part::{Part, matches};

impl RecoveryData {
    /// Compares every shard of data and parity with its checksum. Bytes that cannot be read count as damaged, and
    /// so do shards whose checksum is lost in both copies. `done` gets the number of bytes after each piece.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `stop` is set; [`Error::Format`] if there is not enough memory for the
    /// checksums. Damage is no error.
    pub fn check(
        &self,
        source: &dyn Source,
        done: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<Damage> {
        let parts = self.parts.iter();
        let parts = parts.map(|part| part.check(source, done, stop));
        Ok(Damage {
            parts: parts.collect::<Result<_>>()?,
        })
    }
}

impl Part {
    fn check(
        &self,
        source: &dyn Source,
        done: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<PartDamage> {
        let header = &self.header;
        let geometry = header.geometry;
        let (hashes, mut pages) = self.hashes(source)?;
        for (copy, at) in (0..).zip(header.copies()) {
            let found = self.page(source, at);
            pages += u64::from(found.as_deref() != Some(&header.encode(copy)));
        }
        pages += self.damaged_frame(source, stop);
        let (mut shards, mut foreign) = (Vec::new(), Vec::new());
        let size = geometry.shard_size();
        let range = self.range(source);
        let many = (PIECE / size).max(1);
        let mut run = vec![0; many * size];
        let mut first = 0;
        while first < geometry.data_shards() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let count = (geometry.data_shards() - first).min(many as u64) as usize;
            let bytes = &mut run[..count * size];
            let whole = range.read(first, bytes).is_ok();
            for (shard, bytes) in (first..).zip(bytes.chunks_mut(size)) {
                let there = whole || range.read(shard, bytes).is_ok();
                if self.is_foreign(shard) {
                    foreign.push(shard);
                } else if !there || !matches(&hashes, shard, bytes) {
                    shards.push(shard);
                }
            }
            done(bytes.len() as u64);
            first += count as u64;
        }
        let shard_bytes = &mut run[..size];
        for shard in geometry.data_shards()..geometry.all_shards() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let there = self.read_parity(source, shard, shard_bytes);
            if !there || !matches(&hashes, shard, shard_bytes) {
                shards.push(shard);
            }
            done(size as u64);
        }
        Ok(PartDamage {
            geometry,
            shards,
            foreign,
            hashes,
            pages,
        })
    }
}
