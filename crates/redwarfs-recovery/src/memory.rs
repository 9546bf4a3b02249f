//! Repairs while a file is read, without a change of the file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_io::{Line, Source};

use crate::PIECE;
use crate::changed::SoundSections;
use crate::damage::GroupDamage;
use crate::error::{Error, Result};
use crate::locate::RecoveryData;
use crate::part::{Part, is_known, matches};
use redwarfs_format::recovery::ShardGroup;

/// Bytes of repaired shards that are kept (256 MiB).
const KEPT: usize = 256 << 20;

/// What a read has found, and has not said before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mended {
    /// Damage that was repaired in memory.
    Repaired {
        /// Where it is, relative to the image, with lengths.
        ranges: Vec<(i64, u64)>,
        /// Places that were repaired so far, these included.
        total: u64,
    },
    /// Damage that the recovery data cannot repair.
    Lost {
        /// Where it is, relative to the image, with lengths.
        ranges: Vec<(i64, u64)>,
    },
}

/// Gets what is found while a file is read.
pub type Listener = Box<dyn Fn(&Mended) + Send + Sync>;

/// A file of which damaged parts are repaired when they are read, in memory. Its bytes are those that the file had when
/// it was protected. If what is in front of the image has another length, it stays as it is, unless the file has lost
/// the start of the image with it. The file ends where the protected bytes end, unless the image was continued later.
///
/// Every read compares the shards that it touches with their checksums. A damaged shard costs the reading and decoding of
/// its group once. What cannot be repaired is returned as it is.
///
/// Memory: about 128 MiB and the parity of a group while one is decoded, up to 256 MiB of repaired shards, and 16
/// bytes a shard.
pub struct RepairingSource {
    source: Shifted,
    parts: Vec<Covered>,
    len: u64,
    listener: Listener,
    state: Mutex<RepairedShards>,
}

/// A file behind bytes that it has lost.
#[derive(Debug)]
struct Shifted {
    source: Arc<dyn Source>,
    lost: u64,
}

impl Source for Shifted {
    fn len(&self) -> io::Result<u64> {
        Ok(self.source.len()?.saturating_add(self.lost))
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = offset.checked_sub(self.lost);
        let at = at.ok_or_else(|| io::Error::other("the start of the file is lost"))?;
        self.source.read_exact_at(at, buf)
    }
}

/// A part of the recovery data with its checksums.
struct Covered {
    part: Part,
    hashes: Vec<Option<u64>>,
    /// Of a sidecar, which may be older than the image.
    sound: Option<Mutex<SoundSections>>,
    /// Where its first shard begins; below 0 if less than that is in front of the image.
    first: i64,
    end: u64,
}

impl Covered {
    /// The place of an offset in the protected range.
    fn within(&self, offset: u64) -> Option<u64> {
        offset.checked_add_signed(self.first.checked_neg()?)
    }
}

/// A group of a part.
type Key = (usize, u32);

#[derive(Default)]
struct RepairedShards {
    /// Repaired shards of each group, by their numbers.
    groups: BTreeMap<Key, BTreeMap<u64, Arc<[u8]>>>,
    /// The groups with kept shards, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
    said: BTreeSet<Key>,
    lost: BTreeSet<Key>,
    total: u64,
}

impl fmt::Debug for RepairingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairingSource")
            .field("source", &self.source)
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}

impl RepairingSource {
    /// Reads `source` with the recovery data that was found for it.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the length of the file is not known,
    /// [`Error::LostTooMuch`](crate::Error::LostTooMuch) if it has lost more at its start than can be restored,
    /// [`Error::Format`](crate::Error::Format) if there is not enough memory for the checksums.
    pub fn new(source: Arc<dyn Source>, data: &RecoveryData, listener: Listener) -> Result<Self> {
        let lost = match data.image_offset() {
            ..0 => data.lost_at_start()?,
            _ => 0,
        };
        let source = Shifted { source, lost };
        let mut parts = Vec::new();
        for part in &data.parts {
            let base = if part.sidecar.is_some() { 0 } else { lost };
            let part = Part {
                image: part.image.saturating_add_unsigned(lost),
                base: part.base.saturating_add_unsigned(base),
                ..part.clone()
            };
            let (hashes, _) = part.hashes(&source)?;
            parts.push(Covered {
                first: part.image.saturating_add(part.header.geometry.start()),
                end: part.end(),
                sound: (part.sidecar.as_ref())
                    .map(|_| Mutex::new(SoundSections::of(&source, part.image))),
                hashes,
                part,
            });
        }
        let len = match parts.last() {
            Some(last) if last.part.ends(&source)? => last.end,
            _ => source.len()?,
        };
        Ok(Self {
            source,
            parts,
            len,
            listener,
            state: Mutex::default(),
        })
    }

    /// Reads from a shard on, as many bytes as come before the end of a run of shards. Returns their number.
    fn read_shards(&self, number: usize, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let covered = self.parts.get(number).ok_or_else(gone)?;
        let Covered { part, hashes, .. } = covered;
        let geometry = part.header.geometry;
        let size = geometry.shard_size();
        let within = covered.within(offset).ok_or_else(gone)?;
        let first = within / size as u64;
        let skip = (within % size as u64) as usize;
        let here = usize::try_from(covered.end - offset).unwrap_or(usize::MAX);
        let wanted = buf.len().min(here);
        let many = (skip + wanted).div_ceil(size).min((PIECE / size).max(1));
        let there = (many * size - skip).min(wanted);
        let range = part.range(&self.source);
        let mut run = vec![0; many * size];
        let whole = range.read(first, &mut run).is_ok();
        for (shard, bytes) in (first..).zip(run.chunks_mut(size)) {
            let readable = whole || range.read(shard, bytes).is_ok();
            let foreign = part.is_foreign(shard);
            if foreign || !readable || !matches(hashes, shard, bytes) {
                let changed =
                    readable && !foreign && covered.is_of_another_image(&self.source, shard);
                // The medium may have returned other bytes than it has.
                let is_right =
                    changed && range.read(shard, bytes).is_ok() && matches(hashes, shard, bytes);
                if changed && !is_right {
                    return Err(io::Error::other(Error::Changed));
                }
                let right = match is_right {
                    true => None,
                    false => self.repaired(number, shard, foreign),
                };
                if !readable && (foreign || right.is_none()) {
                    // The bytes that are asked for, or the error of the medium.
                    let place = (shard - first) as usize * size;
                    let from = skip.max(place);
                    let to = (skip + there).min(place + size);
                    let part = bytes.get_mut(from - place..to.saturating_sub(place));
                    let at = offset + (from - skip) as u64;
                    self.source.read_exact_at(at, part.unwrap_or_default())?;
                }
                // What is in front of the image may be another one.
                let front = match foreign {
                    true => {
                        let (at, _) = geometry.data_range(shard);
                        let front = geometry.start().saturating_add_unsigned(at).unsigned_abs();
                        usize::try_from(front).unwrap_or(size).min(size)
                    }
                    false => 0,
                };
                if let Some(right) = right.as_ref().and_then(|right| right.get(front..))
                    && let Some(bytes) = bytes.get_mut(front..)
                {
                    bytes.copy_from_slice(right);
                }
            }
            // What tools have put in front of the image.
            let _ = range.keep_blanks(shard, bytes);
        }
        let out = buf.get_mut(..there).ok_or_else(gone)?;
        out.copy_from_slice(run.get(skip..skip + there).ok_or_else(gone)?);
        Ok(there)
    }

    /// What a damaged shard had, if that can be restored.
    fn repaired(&self, number: usize, shard: u64, foreign: bool) -> Option<Arc<[u8]>> {
        let covered = self.parts.get(number)?;
        let (group, _) = covered.part.header.geometry.place_of(shard);
        let key = (number, group.0);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lost.contains(&key) {
            return None;
        }
        if let Some(kept) = state.groups.get(&key) {
            let found = kept.get(&shard).cloned();
            if found.is_some() {
                return found;
            }
        }
        let damage = covered.examine(&self.source, group);
        let restored = match damage.repairable {
            true => covered
                .part
                .decode(&self.source, &damage, &covered.hashes)
                .ok(),
            false => None,
        };
        let geometry = covered.part.header.geometry;
        let number_of = |at: u32| geometry.data_shard(group, at);
        let own = |shard: &u64| !covered.part.is_foreign(*shard);
        let damaged = damage.data.iter().map(|at| number_of(*at)).filter(own);
        let ranges: Vec<(i64, u64)> = damaged
            .map(|shard| {
                let (at, there) = geometry.data_range(shard);
                let at = geometry.start().saturating_add_unsigned(at);
                (at, there as u64)
            })
            .collect();
        let Some(restored) = restored else {
            state.lost.insert(key);
            // Shards with something else in front of the image are not damaged.
            if !foreign && !ranges.is_empty() {
                (self.listener)(&Mended::Lost { ranges });
            }
            return None;
        };
        if state.said.insert(key) && !ranges.is_empty() {
            state.total += ranges.len() as u64;
            let total = state.total;
            (self.listener)(&Mended::Repaired { ranges, total });
        }
        let shards: BTreeMap<u64, Arc<[u8]>> = restored
            .into_iter()
            .map(|(at, bytes)| (number_of(at), Arc::from(bytes)))
            .collect();
        let found = shards.get(&shard).cloned();
        state.keep(key, shards);
        found
    }
}

impl RepairedShards {
    fn keep(&mut self, key: Key, shards: BTreeMap<u64, Arc<[u8]>>) {
        let size =
            |shards: &BTreeMap<u64, Arc<[u8]>>| shards.values().map(|s| s.len()).sum::<usize>();
        self.bytes += size(&shards);
        // Damage that came later is decoded with the rest of its group.
        if let Some(old) = self.groups.insert(key, shards) {
            self.bytes -= size(&old);
        } else {
            self.order.push_back(key);
        }
        while self.bytes > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            let old = self.groups.remove(&oldest);
            self.bytes -= old.as_ref().map_or(0, size);
        }
    }
}

impl Covered {
    /// Whether a shard that differs is in sections whose checksums are right.
    fn is_of_another_image(&self, source: &dyn Source, shard: u64) -> bool {
        let sound = self
            .sound
            .as_ref()
            .filter(|_| is_known(&self.hashes, shard));
        sound.is_some_and(|sound| {
            let (start, length) = self.part.data_place(shard);
            let mut sound = sound.lock().unwrap_or_else(PoisonError::into_inner);
            sound.have(source, start, length)
        })
    }

    /// Compares all shards of a group.
    fn examine(&self, source: &dyn Source, group: ShardGroup) -> GroupDamage {
        let part = &self.part;
        let geometry = part.header.geometry;
        let range = part.range(source);
        let mut bytes = vec![0; geometry.shard_size()];
        let data = (0..geometry.data_of(group))
            .filter(|at| {
                let shard = geometry.data_shard(group, *at);
                part.is_foreign(shard)
                    || range.read(shard, &mut bytes).is_err()
                    || !matches(&self.hashes, shard, &bytes)
            })
            .collect::<Vec<_>>();
        let parity = (0..geometry.parity())
            .filter(|row| {
                let shard = geometry.parity_shard(group, *row);
                !part.read_parity(source, shard, &mut bytes)
                    || !matches(&self.hashes, shard, &bytes)
            })
            .collect::<Vec<_>>();
        GroupDamage {
            repairable: data.len() + parity.len() <= geometry.parity() as usize,
            group,
            data,
            parity,
        }
    }
}

impl Source for RepairingSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !buf.is_empty() {
            let number = self.parts.partition_point(|part| part.end <= offset);
            let next = self.parts.get(number);
            let n = match next.filter(|part| part.within(offset).is_some()) {
                Some(_) => self.read_shards(number, offset, buf)?,
                None => {
                    let gap = next.map_or(u64::MAX, |part| part.first.unsigned_abs() - offset);
                    let n = usize::try_from(gap).unwrap_or(usize::MAX).min(buf.len());
                    let raw = buf.get_mut(..n).unwrap_or_default();
                    self.source.read_exact_at(offset, raw)?;
                    n
                }
            };
            buf = buf.get_mut(n..).unwrap_or_default();
            offset += n as u64;
        }
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.source.is_remote()
    }

    fn will_need(&self, ranges: &[std::ops::Range<u64>]) {
        self.source.will_need(ranges);
    }

    fn may_need(&self, ranges: &[std::ops::Range<u64>]) {
        self.source.may_need(ranges);
    }

    fn is_coming(&self, range: &std::ops::Range<u64>) -> bool {
        self.source.is_coming(range)
    }

    fn line(&self) -> Option<Line> {
        self.source.line()
    }

    /// Not that of the damaged file.
    fn identity(&self) -> Option<String> {
        self.source
            .identity()
            .map(|file| format!("repaired {file}"))
    }

    fn opened(&self) {
        self.source.opened();
    }

    fn abandon(&self) {
        self.source.abandon();
    }
}
