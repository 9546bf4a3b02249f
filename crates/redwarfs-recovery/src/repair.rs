//! Restoring what is damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{HashPage, PAGE, shard_hash};
use redwarfs_format::section::{Container, Footer, SectionHeader, tail_pointer};
use redwarfs_io::{Medium, Source};

use crate::add::{Frame, sidecar_prelude};
use crate::changed::SoundSections;
use crate::code::{Decoder, Encoder};
use crate::damage::{Damage, GroupDamage, PartDamage};
use crate::error::{Error, Result};
use crate::locate::RecoveryData;
use crate::part::{Part, is_known, matches};
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
    /// Pages of the recovery data. The frame of its section counts as one.
    pub pages: u64,
    /// Shards and pages of a sidecar that stay damaged, because it is only read.
    pub left: u64,
}

impl RecoveryData {
    /// Restores the damaged shards and pages of a file, and of its sidecar. Only bytes that are wrong are written, so a
    /// repair may be interrupted and repeated. `damage` is what [`RecoveryData::check`] found in this file.
    ///
    /// # Errors
    /// * [`Error::Changed`] if a sidecar belongs to another state of the image. Nothing is written.
    /// * [`Error::TooMuch`] if a group has more damage than the parity can restore. Nothing is written.
    /// * [`Error::Mismatch`] if what was restored does not have its checksum. It is not written.
    /// * [`Error::LostStart`] if the file has lost its start, so that it has to be copied first.
    /// * [`Error::Io`] and [`Error::Interrupted`]; what was written is right.
    pub fn repair(
        &self,
        file: &dyn Medium,
        damage: &Damage,
        stop: &AtomicBool,
    ) -> Result<Repaired> {
        let parts = || self.parts.iter().zip(&damage.parts);
        for (part, damage) in parts() {
            part.refuse_another_image(file, damage)?;
        }
        let groups = damage.lost_groups();
        if groups > 0 {
            let of = damage.all_groups();
            return Err(Error::TooMuch { groups, of });
        }
        for part in &self.parts {
            if part.image < 0 || (part.keeps_front() && part.range(file).start < 0) {
                return Err(Error::LostStart);
            }
        }
        let mut repaired = Repaired::default();
        for (part, damage) in parts() {
            part.check_identity(&damage.hashes)?;
        }
        for (part, damage) in parts() {
            part.repair_shards(file, damage, &mut repaired, stop)?;
        }
        for (part, damage) in parts() {
            if !damage.is_none() {
                part.repair_frame(file, &mut repaired, stop)?;
            }
        }
        file.sync()?;
        let sidecars = self.parts.iter().filter_map(|part| part.sidecar.as_ref());
        for medium in sidecars.filter_map(|sidecar| sidecar.medium()) {
            medium.sync()?;
        }
        Ok(repaired)
    }
}

impl Part {
    /// A sidecar may be older than the image: then whole sections differ whose checksums are right.
    fn refuse_another_image(&self, file: &dyn Source, damage: &PartDamage) -> Result<()> {
        if self.sidecar.is_none() {
            return Ok(());
        }
        let mut sound = SoundSections::of(file, self.image);
        let geometry = self.header.geometry;
        // Without its checksum, a shard counts as damaged.
        let is_known = |shard: u64| is_known(&damage.hashes, shard);
        let data = damage
            .shards
            .iter()
            .filter(|&&shard| shard < geometry.data_shards() && is_known(shard));
        for &shard in data {
            let (start, length) = self.data_place(shard);
            if sound.have(file, start, length) {
                return Err(Error::Changed);
            }
        }
        Ok(())
    }

    /// Where a data shard is, relative to the image, with its length.
    pub(crate) fn data_place(&self, shard: u64) -> (i64, u64) {
        let geometry = self.header.geometry;
        let (at, length) = geometry.data_range(shard);
        (geometry.start().saturating_add_unsigned(at), length as u64)
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

    fn repair_shards(
        &self,
        file: &dyn Medium,
        damage: &PartDamage,
        repaired: &mut Repaired,
        stop: &AtomicBool,
    ) -> Result<()> {
        // Only what is in front of the image may be another one.
        if damage.is_none() {
            return Ok(());
        }
        let mut hashes = damage.hashes.clone();
        for group in &damage.groups() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            self.repair_group(file, group, &mut hashes, repaired)?;
        }
        let whole = self.check_identity(&hashes)?;
        let whole = whole.ok_or_else(|| redwarfs_format::Error::corrupt("a checksum is lost"))?;
        self.repair_pages(file, &whole, repaired)
    }

    fn repair_group(
        &self,
        file: &dyn Medium,
        damage: &GroupDamage,
        hashes: &mut [Option<u64>],
        repaired: &mut Repaired,
    ) -> Result<()> {
        let geometry = self.header.geometry;
        let (group, size) = (damage.group, geometry.shard_size());
        let range = self.range(file);
        let restored = match damage.data.is_empty() {
            true => Vec::new(),
            false => self.decode(file, damage, hashes)?,
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
            repaired.data += u64::from(!self.is_foreign(shard));
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
            set_hash(hashes, shard, &bytes);
            if self.write(file, self.header.parity_at(shard), &bytes)? {
                repaired.parity += 1;
            } else {
                repaired.left += 1;
            }
        }
        Ok(())
    }

    /// Contents of the damaged data shards of a group, by their positions.
    pub(crate) fn decode(
        &self,
        file: &dyn Source,
        damage: &GroupDamage,
        hashes: &[Option<u64>],
    ) -> Result<Vec<(u32, Vec<u8>)>> {
        let geometry = self.header.geometry;
        let (group, size) = (damage.group, geometry.shard_size());
        let range: Range<'_> = self.range(file);
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
            if !self.read_parity(file, shard, &mut bytes) || !matches(hashes, shard, &bytes) {
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
        file: &dyn Medium,
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

    /// The header, the prelude and the footer of the section, which count as one page, as in a check.
    fn repair_frame(&self, file: &dyn Medium, all: &mut Repaired, stop: &AtomicBool) -> Result<()> {
        let repaired = &mut Repaired::default();
        if self.sidecar.is_none() {
            // Then the end of the section leads to the index.
            let at = self.header.image_size.saturating_sub(POINTER);
            let pointer = tail_pointer(self.header.index).to_le_bytes();
            self.put(file, at, &pointer, repaired)?;
        }
        // The hash in the header, which comes last, is of the payload, with the prelude and the footer in it.
        for (at, part) in self.frame(file, stop)? {
            if self.sidecar.is_some() || at != self.header.section {
                self.put(file, at, &part, repaired)?;
            }
        }
        for (at, part) in self.frame(file, stop)? {
            self.put(file, at, &part, repaired)?;
        }
        all.pages += repaired.pages.min(1);
        all.left += repaired.left.min(1);
        Ok(())
    }

    /// The generation whose index this part names.
    pub(crate) fn generation(&self, file: &dyn Source) -> Result<Container> {
        let index = self.header.index;
        let offset = self.position(0).ok_or(Error::LostStart)?;
        let mut header = [0; SectionHeader::LEN];
        file.read_exact_at(offset.saturating_add(index), &mut header)?;
        let header = SectionHeader::parse(&header)?;
        let end = (index + SectionHeader::LEN as u64).saturating_add(header.length);
        let read = |at, out: &mut [u8]| file.read_exact_at(at, out);
        Ok(Container::open_generation(&read, file.len()?, offset, end)?)
    }

    /// The parts of the recovery data around the pages, with their offsets in it. The section header comes last, and
    /// is that of the payload as it is.
    fn frame(&self, file: &dyn Source, stop: &AtomicBool) -> Result<Vec<(u64, Vec<u8>)>> {
        let header = &self.header;
        if self.sidecar.is_some() {
            let image = match header.index {
                0 => None,
                _ => Some(self.generation(file)?),
            };
            let prelude = sidecar_prelude(file, image.as_ref())?;
            return Ok(vec![(0, prelude.encode().to_vec())]);
        }
        let image = self.generation(file)?;
        let frame = Frame::of(header, file, &image)?;
        let sealed = frame.seal(file, image.offset, header, stop)?;
        let footer = header.image_size.saturating_sub(Footer::LEN as u64);
        Ok(vec![
            (
                header.section + SectionHeader::LEN as u64,
                frame.prelude.to_vec(),
            ),
            (footer, frame.footer.to_vec()),
            (header.section, sealed.encode().to_vec()),
        ])
    }

    /// Number of damaged frames: one if any part around the pages is damaged, or if that cannot be said, because the image is.
    pub(crate) fn damaged_frame(&self, file: &dyn Source, stop: &AtomicBool) -> u64 {
        let Ok(parts) = self.frame(file, stop) else {
            return 1;
        };
        let is_there = |(at, part): &(u64, Vec<u8>)| self.has(file, *at, part);
        u64::from(!parts.iter().all(is_there))
    }

    /// Whether the recovery data has these bytes at an offset.
    fn has(&self, file: &dyn Source, at: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        let at = self.place(at);
        at.is_some_and(|at| self.store(file).read_exact_at(at, &mut found).is_ok())
            && found == bytes
    }

    /// Writes recovery data. False if it is in a sidecar that is only read, or has lost its start.
    fn write(&self, file: &dyn Medium, at: u64, bytes: &[u8]) -> Result<bool> {
        let place = self.place(at);
        match (&self.sidecar, place) {
            (None, place) => file.write_all_at(place.ok_or(Error::LostStart)?, bytes)?,
            (Some(sidecar), Some(place)) if self.base == 0 => match sidecar.medium() {
                Some(medium) => medium.write_all_at(place, bytes)?,
                None => return Ok(false),
            },
            (Some(_), _) => return Ok(false),
        }
        Ok(true)
    }

    /// Writes what is not there already.
    fn put(&self, file: &dyn Medium, at: u64, bytes: &[u8], repaired: &mut Repaired) -> Result<()> {
        if !self.has(file, at, bytes) {
            match self.write(file, at, bytes)? {
                true => repaired.pages += 1,
                false => repaired.left += 1,
            }
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
