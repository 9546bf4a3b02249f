//! Restoring what is damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{HashPage, PAGE, shard_hash};
use redwarfs_format::section::{Footer, SectionHeader, tail_pointer};
use redwarfs_io::{LockedFile, Medium, Source};

use crate::add::{Frame, container};
use crate::check::matches;
use crate::code::{Decoder, Encoder};
use crate::damage::{Damage, GroupDamage};
use crate::error::{Error, Result};
use crate::locate::RecoveryData;
use crate::range::Range;

/// Bytes of the pointer at the end of an image.
const POINTER: u64 = 8;

/// What a repair has written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Data shards.
    pub data: u64,
    /// Parity shards.
    pub parity: u64,
    /// Pages of the recovery data, and parts of the frame of its section.
    pub pages: u64,
}

impl RecoveryData {
    /// Restores the damaged shards and pages of a file. Only bytes that are wrong are written, so a repair may
    /// be interrupted and repeated. `damage` is what [`RecoveryData::check`] found in this file.
    ///
    /// # Errors
    /// * [`Error::TooMuch`] if a group has more damage than the parity can restore. Nothing is written.
    /// * [`Error::Mismatch`] if what was restored does not have its checksum. It is not written.
    /// * [`Error::LostStart`] if the file has lost its start, so that it has to be copied first.
    /// * [`Error::Io`] and [`Error::Interrupted`]; what was written is right.
    pub fn repair(
        &self,
        file: &LockedFile,
        damage: &Damage,
        stop: &AtomicBool,
    ) -> Result<Repaired> {
        let groups = damage.groups();
        let lost = damage.lost_groups();
        if lost > 0 {
            let of = damage.geometry.groups();
            return Err(Error::TooMuch { groups: lost, of });
        }
        if self.image < 0 || (self.keeps_front() && self.range(file).start < 0) {
            return Err(Error::LostStart);
        }
        let mut repaired = Repaired::default();
        let mut hashes = damage.hashes.clone();
        self.check_identity(&hashes)?;
        for group in &groups {
            // Only what is in front of the image is another one.
            if damage.is_none() {
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            self.repair_group(file, group, &mut hashes, &mut repaired)?;
        }
        let whole = self.check_identity(&hashes)?;
        let whole = whole.ok_or_else(|| redwarfs_format::Error::corrupt("a checksum is lost"))?;
        self.repair_pages(file, &whole, &mut repaired)?;
        self.repair_frame(file, &mut repaired, stop)?;
        file.sync()?;
        Ok(repaired)
    }

    /// All checksums, if all are known; then they have to be those that were made.
    fn check_identity(&self, hashes: &[Option<u64>]) -> Result<Option<Vec<u64>>> {
        let whole: Option<Vec<u64>> = hashes.iter().copied().collect();
        match whole {
            Some(whole) if HashPage::identity(&whole) != self.header.hashes_id => {
                Err(redwarfs_format::Error::corrupt("the checksums of the recovery data").into())
            }
            other => Ok(other),
        }
    }

    fn repair_group(
        &self,
        file: &LockedFile,
        damage: &GroupDamage,
        hashes: &mut [Option<u64>],
        repaired: &mut Repaired,
    ) -> Result<()> {
        let geometry = self.header.geometry;
        let (group, size) = (damage.group, geometry.shard_size());
        let range = self.range(file);
        let restored = match damage.data.is_empty() {
            true => Vec::new(),
            false => self.decode(&range, damage, hashes)?,
        };
        for (position, bytes) in &restored {
            let shard = geometry.data_shard(group, *position);
            set_hash(hashes, shard, bytes);
            let mut whole = bytes.clone();
            // What tools have put in front of the image stays, if it can be read.
            let _ = range.keep_blanks(shard, &mut whole);
            let (at, there) = geometry.data_range(shard);
            let mut bytes = whole.get(..there).unwrap_or(&whole);
            let mut at = geometry.start().saturating_add_unsigned(at);
            if self.is_foreign(shard) {
                // What is in front of the image stays.
                let front = usize::try_from(at.unsigned_abs())
                    .unwrap_or(there)
                    .min(there);
                (at, bytes) = (0, bytes.get(front..).unwrap_or_default());
            }
            let at = self.image.saturating_add(at).try_into();
            file.write_all_at(at.map_err(|_| Error::LostStart)?, bytes)?;
            repaired.data += 1;
        }
        if damage.parity.is_empty() {
            return Ok(());
        }
        let data = geometry.data_of(group);
        let mut encoder = Encoder::new(data, geometry.parity(), size)?;
        let mut shard = vec![0; size];
        for position in 0..data {
            match restored.iter().find(|(at, _)| *at == position) {
                Some((_, bytes)) => encoder.add(bytes)?,
                None => {
                    range.read(geometry.data_shard(group, position), &mut shard)?;
                    encoder.add(&shard)?;
                }
            }
        }
        for (row, bytes) in (0..).zip(encoder.finish()?) {
            if damage.parity.binary_search(&row).is_err() {
                continue;
            }
            let shard = geometry.parity_shard(group, row);
            check_hash(hashes, shard, &bytes).ok_or(Error::Mismatch(group.0))?;
            let at = self.position(self.header.parity_at(shard));
            let at = at.ok_or(Error::LostStart)?;
            file.write_all_at(at, &bytes)?;
            set_hash(hashes, shard, &bytes);
            repaired.parity += 1;
        }
        Ok(())
    }

    /// Contents of the damaged data shards of a group, by their positions.
    fn decode(
        &self,
        range: &Range<'_>,
        damage: &GroupDamage,
        hashes: &[Option<u64>],
    ) -> Result<Vec<(u32, Vec<u8>)>> {
        let geometry = self.header.geometry;
        let (group, size) = (damage.group, geometry.shard_size());
        let data = geometry.data_of(group);
        let mut decoder = Decoder::new(data, geometry.parity(), size)?;
        let mut bytes = vec![0; size];
        // What was intact when the file was checked may not be any more.
        let changed = || Error::Mismatch(group.0);
        for position in (0..data).filter(|at| damage.data.binary_search(at).is_err()) {
            let shard = geometry.data_shard(group, position);
            range.read(shard, &mut bytes)?;
            if !matches(hashes, shard, &bytes) {
                return Err(changed());
            }
            decoder.add_data(position, &bytes)?;
        }
        let good = (0..geometry.parity()).filter(|row| damage.parity.binary_search(row).is_err());
        for row in good.take(damage.data.len()) {
            let shard = geometry.parity_shard(group, row);
            let at = self
                .position(self.header.parity_at(shard))
                .ok_or_else(changed)?;
            range.source.read_exact_at(at, &mut bytes)?;
            if !matches(hashes, shard, &bytes) {
                return Err(changed());
            }
            decoder.add_parity(row, &bytes)?;
        }
        let restored = decoder.finish()?;
        for (position, bytes) in &restored {
            let shard = geometry.data_shard(group, *position);
            check_hash(hashes, shard, bytes).ok_or_else(changed)?;
        }
        Ok(restored)
    }

    fn repair_pages(
        &self,
        file: &LockedFile,
        hashes: &[u64],
        repaired: &mut Repaired,
    ) -> Result<()> {
        let header = &self.header;
        for copy in [header.hashes_a, header.hashes_b] {
            for number in 0..header.hash_pages as u32 {
                let at = copy + u64::from(number) * PAGE as u64;
                let page = HashPage::encode(hashes, number, copy);
                self.put(file, at, &page, repaired)?;
            }
        }
        for (copy, at) in (0..).zip(header.copies()) {
            self.put(file, at, &header.encode(copy), repaired)?;
        }
        Ok(())
    }

    /// The header, the prelude and the footer of the section.
    fn repair_frame(
        &self,
        file: &LockedFile,
        repaired: &mut Repaired,
        stop: &AtomicBool,
    ) -> Result<()> {
        // Then the end of the file leads to the index.
        let at = self.header.image_size.saturating_sub(POINTER);
        let pointer = tail_pointer(self.header.index).to_le_bytes();
        self.put(file, at, &pointer, repaired)?;
        // The hash in the header is of the payload, with the prelude and the footer in it.
        for _ in 0..2 {
            for (at, part) in self.frame(file, stop)? {
                self.put(file, at, &part, repaired)?;
            }
        }
        Ok(())
    }

    /// The parts of the section around the pages, with their offsets in the image. The header comes last, and
    /// is that of the payload as it is.
    fn frame(&self, source: &dyn Source, stop: &AtomicBool) -> Result<[(u64, Vec<u8>); 3]> {
        let header = &self.header;
        let offset = self.position(0).ok_or(Error::LostStart)?;
        let image = container(source, offset)?;
        let index = image.sections.last().map(|last| last.header_offset);
        if index != Some(header.index) {
            return Err(redwarfs_format::Error::corrupt("the section index").into());
        }
        let frame = Frame::of(header, source, &image)?;
        let sealed = frame.seal(source, offset, header, stop)?;
        let footer = header.image_size.saturating_sub(Footer::LEN as u64);
        Ok([
            (
                header.section + SectionHeader::LEN as u64,
                frame.prelude.to_vec(),
            ),
            (footer, frame.footer.to_vec()),
            (header.section, sealed.encode().to_vec()),
        ])
    }

    /// How many of the parts around the pages are damaged; one if that cannot be said, because the image is.
    pub(crate) fn damaged_frame(&self, source: &dyn Source, stop: &AtomicBool) -> u64 {
        let Ok(parts) = self.frame(source, stop) else {
            return 1;
        };
        let is_there = |(at, part): &(u64, Vec<u8>)| {
            let mut found = vec![0; part.len()];
            let at = self.position(*at);
            at.is_some_and(|at| source.read_exact_at(at, &mut found).is_ok()) && found == *part
        };
        parts.iter().filter(|part| !is_there(part)).count() as u64
    }

    /// Writes what is not there already.
    fn put(&self, file: &LockedFile, at: u64, bytes: &[u8], repaired: &mut Repaired) -> Result<()> {
        let at = self.position(at).ok_or(Error::LostStart)?;
        let mut found = vec![0; bytes.len()];
        if file.read_exact_at(at, &mut found).is_err() || found != bytes {
            file.write_all_at(at, bytes)?;
            repaired.pages += 1;
        }
        Ok(())
    }
}

/// None if the checksum of a shard is known, and is another one.
fn check_hash(hashes: &[Option<u64>], shard: u64, bytes: &[u8]) -> Option<()> {
    let known = usize::try_from(shard).ok().and_then(|at| *hashes.get(at)?);
    known
        .is_none_or(|known| known == shard_hash(bytes))
        .then_some(())
}

fn set_hash(hashes: &mut [Option<u64>], shard: u64, bytes: &[u8]) {
    let slot = usize::try_from(shard)
        .ok()
        .and_then(|at| hashes.get_mut(at));
    if let Some(slot) = slot {
        *slot = Some(shard_hash(bytes));
    }
}
