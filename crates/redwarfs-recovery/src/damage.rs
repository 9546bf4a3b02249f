//! What is damaged, and whether it can be repaired.

use std::collections::BTreeMap;

use redwarfs_format::recovery::{Geometry, ShardGroup};

/// The damage of a protected file.
#[derive(Debug, Clone)]
pub struct Damage {
    /// As many as the recovery data has.
    pub(crate) parts: Vec<PartDamage>,
}

/// The damage of what one part of the recovery data protects, and of that part.
#[derive(Debug, Clone)]
pub(crate) struct PartDamage {
    pub(crate) geometry: Geometry,
    /// Numbers of data and parity shards that are not as they were, in ascending order.
    pub(crate) shards: Vec<u64>,
    /// Data shards that begin in front of the image, where something else is now: not damaged, but of no use.
    pub(crate) foreign: Vec<u64>,
    /// Checksums of all shards, as far as they are known.
    pub(crate) hashes: Vec<Option<u64>>,
    /// Damaged pages of checksums and headers. The frame of the section counts as one.
    pub(crate) pages: u64,
}

/// The damage of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupDamage {
    pub(crate) group: ShardGroup,
    /// Positions of damaged data shards.
    pub(crate) data: Vec<u32>,
    /// Rows of damaged parity shards.
    pub(crate) parity: Vec<u32>,
    /// Whether the parity can restore it.
    pub(crate) repairable: bool,
}

impl Damage {
    /// Whether everything is as it was.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.parts.iter().all(PartDamage::is_none)
    }

    /// Number of damaged shards of data.
    #[must_use]
    pub fn data_shards(&self) -> u64 {
        self.parts.iter().map(PartDamage::data_shards).sum()
    }

    /// Number of damaged shards of parity.
    #[must_use]
    pub fn parity_shards(&self) -> u64 {
        let all: u64 = self.parts.iter().map(|part| part.shards.len() as u64).sum();
        all - self.data_shards()
    }

    /// Number of damaged pages of the recovery data.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.parts.iter().map(|part| part.pages).sum()
    }

    /// Number of groups of all parts.
    #[must_use]
    pub fn all_groups(&self) -> u32 {
        let groups = self.parts.iter().map(|part| part.geometry.groups());
        groups.fold(0, u32::saturating_add)
    }

    /// Number of groups with more damage than the parity can restore.
    #[must_use]
    pub fn lost_groups(&self) -> u32 {
        let lost = |part: &PartDamage| {
            let groups = part.groups();
            groups.iter().filter(|group| !group.repairable).count() as u32
        };
        self.parts.iter().map(lost).sum()
    }

    /// Ranges of the protected bytes, relative to the image, that are damaged and cannot be restored.
    #[must_use]
    pub fn lost_ranges(&self) -> Vec<(i64, u64)> {
        self.parts
            .iter()
            .flat_map(PartDamage::lost_ranges)
            .collect()
    }
}

impl PartDamage {
    pub(crate) fn is_none(&self) -> bool {
        self.shards.is_empty() && self.pages == 0
    }

    fn data_shards(&self) -> u64 {
        let data = self.geometry.data_shards();
        self.shards.partition_point(|shard| *shard < data) as u64
    }

    /// The groups with shards that have to be restored, in ascending order.
    pub(crate) fn groups(&self) -> Vec<GroupDamage> {
        let mut groups: BTreeMap<ShardGroup, GroupDamage> = BTreeMap::new();
        for &shard in self.shards.iter().chain(&self.foreign) {
            let (group, position) = self.geometry.place_of(shard);
            let damage = groups.entry(group).or_insert_with(|| GroupDamage {
                group,
                data: Vec::new(),
                parity: Vec::new(),
                repairable: false,
            });
            match position.checked_sub(self.geometry.data_of(group)) {
                None => damage.data.push(position),
                Some(row) => damage.parity.push(row),
            }
        }
        let parity = self.geometry.parity() as usize;
        let mut groups: Vec<_> = groups.into_values().collect();
        for group in &mut groups {
            group.data.sort_unstable();
            group.repairable = group.data.len() + group.parity.len() <= parity;
        }
        groups
    }

    fn lost_ranges(&self) -> Vec<(i64, u64)> {
        let lost = self.groups().into_iter().filter(|group| !group.repairable);
        let is_damaged = |shard: &u64| self.shards.binary_search(shard).is_ok();
        let mut shards: Vec<u64> = lost
            .flat_map(|damage| {
                let shard = move |at| self.geometry.data_shard(damage.group, at);
                damage.data.into_iter().map(shard)
            })
            .filter(is_damaged)
            .collect();
        shards.sort_unstable();
        let mut ranges: Vec<(i64, u64)> = Vec::new();
        for shard in shards {
            let (at, there) = self.geometry.data_range(shard);
            let at = self.geometry.start().saturating_add_unsigned(at);
            match ranges.last_mut() {
                Some((start, length)) if start.saturating_add_unsigned(*length) == at => {
                    *length += there as u64;
                }
                _ => ranges.push((at, there as u64)),
            }
        }
        ranges
    }
}
