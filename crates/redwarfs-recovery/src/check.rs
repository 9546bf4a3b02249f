//! Comparing a file with its checksums.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{HashPage, HeaderPage, PAGE, shard_hash};
use redwarfs_io::Source;

use crate::PIECE;
use crate::damage::Damage;
use crate::error::{Error, Result};
use crate::locate::RecoveryData;

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
            let at = self.position(header.parity_at(shard));
            let there = at.is_some_and(|at| source.read_exact_at(at, shard_bytes).is_ok());
            if !there || !matches(&hashes, shard, shard_bytes) {
                shards.push(shard);
            }
            done(size as u64);
        }
        Ok(Damage {
            geometry,
            shards,
            foreign,
            hashes,
            pages,
        })
    }

    /// The page at an offset of the image, if it can be read.
    pub(crate) fn page(&self, source: &dyn Source, at: u64) -> Option<Box<[u8; PAGE]>> {
        let mut page = Box::new([0; PAGE]);
        let at = self.position(at)?;
        source.read_exact_at(at, page.as_mut_slice()).ok()?;
        Some(page)
    }

    /// The checksums of all shards, and the number of damaged pages of them.
    fn hashes(&self, source: &dyn Source) -> Result<(Vec<Option<u64>>, u64)> {
        let HeaderPage {
            hashes_a,
            hashes_b,
            hash_pages,
            ..
        } = self.header;
        let shards = usize::try_from(self.header.geometry.all_shards()).unwrap_or(usize::MAX);
        let mut hashes = Vec::new();
        hashes.try_reserve_exact(shards).map_err(|_| {
            redwarfs_format::Error::Limit(format!("no memory for {shards} checksums"))
        })?;
        hashes.resize(shards, None);
        let mut damaged = 0;
        for copy in [hashes_a, hashes_b] {
            for number in 0..hash_pages as u32 {
                let at = copy + u64::from(number) * PAGE as u64;
                let page = self.page(source, at);
                let good = page.is_some_and(|p| HashPage::read(&p, number, copy, &mut hashes));
                damaged += u64::from(!good);
            }
        }
        Ok((hashes, damaged))
    }
}

pub(crate) fn matches(hashes: &[Option<u64>], shard: u64, bytes: &[u8]) -> bool {
    let known = usize::try_from(shard).ok().and_then(|at| *hashes.get(at)?);
    known == Some(shard_hash(bytes))
}
