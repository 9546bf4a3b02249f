//! Shards and groups.

/// Most bytes of data in a group.
const GROUP_BYTES: u64 = 64 << 20;
/// Most shards of data and of parity that the code can handle together in a group.
const MAX_SHARDS: u64 = 1 << 16;
/// Smallest and largest shard.
const SHARD_SIZES: std::ops::RangeInclusive<u32> = 1 << 10..=1 << 20;
/// Most bytes that may be protected: offsets of the format have 48 bits.
const MAX_LENGTH: u64 = 1 << 48;

/// Why a geometry is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// There is nothing to protect, or more than the format can hold.
    #[error("{0} bytes cannot be protected")]
    Length(u64),
    /// The size of a shard is no power of two from 1 KiB to 1 MiB.
    #[error("shards of {0} bytes (a power of two from 1 KiB to 1 MiB)")]
    ShardSize(u32),
    /// The code cannot handle that many shards in a group.
    #[error("groups of {data} data shards and {parity} parity shards")]
    Shards {
        /// Data shards of the largest group.
        data: u64,
        /// Parity shards of a group.
        parity: u64,
    },
    /// Stored numbers contradict each other.
    #[error("numbers of shards and groups do not belong to {length} bytes")]
    Contradiction {
        /// Length of the protected range.
        length: u64,
    },
}

/// A group of shards: a number below [`Geometry::groups`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardGroup(pub u32);

/// How a protected range is cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    shard_size: u32,
    data_shards: u64,
    groups: u32,
    parity: u32,
    start: i64,
    length: u64,
}

impl Geometry {
    /// The geometry for `length` bytes from `start` on, relative to the image; negative offsets are in
    /// front of it. `percent` of the data shards, rounded up, are added as parity. Without `shard_size`,
    /// shards have 1 KiB up to 4 MiB, 4 KiB up to 128 MiB, 16 KiB up to 2 GiB, and 64 KiB beyond.
    ///
    /// # Errors
    /// [`GeometryError`] if this cannot be done. `percent` is a number above 0.
    pub fn new(
        start: i64,
        length: u64,
        percent: f64,
        shard_size: Option<u32>,
    ) -> Result<Self, GeometryError> {
        let shard_size = shard_size.unwrap_or(match length {
            ..=0x40_0000 => 1 << 10,
            0x40_0001..=0x800_0000 => 4 << 10,
            0x800_0001..=0x8000_0000 => 16 << 10,
            _ => 64 << 10,
        });
        check_sizes(length, shard_size)?;
        let data_shards = length.div_ceil(u64::from(shard_size));
        let groups = (data_shards * u64::from(shard_size)).div_ceil(GROUP_BYTES);
        let largest = data_shards.div_ceil(groups);
        let parity = (percent / 100.0 * largest as f64).ceil().max(1.0);
        let too_many = GeometryError::Shards {
            data: largest,
            parity: parity as u64,
        };
        if !parity.is_finite() || parity > MAX_SHARDS as f64 {
            return Err(too_many);
        }
        let geometry = Self {
            shard_size,
            data_shards,
            groups: u32::try_from(groups).map_err(|_| GeometryError::Length(length))?,
            parity: parity as u32,
            start,
            length,
        };
        geometry.check_shards()?;
        Ok(geometry)
    }

    /// A stored geometry.
    ///
    /// # Errors
    /// [`GeometryError`] if no writer makes it.
    pub fn from_parts(
        shard_size: u32,
        data_shards: u64,
        groups: u32,
        parity: u32,
        start: i64,
        length: u64,
    ) -> Result<Self, GeometryError> {
        check_sizes(length, shard_size)?;
        let wanted = length.div_ceil(u64::from(shard_size));
        let all = (wanted * u64::from(shard_size)).div_ceil(GROUP_BYTES);
        if data_shards != wanted || u64::from(groups) != all || parity == 0 {
            return Err(GeometryError::Contradiction { length });
        }
        let geometry = Self {
            shard_size,
            data_shards,
            groups,
            parity,
            start,
            length,
        };
        geometry.check_shards()?;
        Ok(geometry)
    }

    fn check_shards(&self) -> Result<(), GeometryError> {
        let data = self.data_shards.div_ceil(u64::from(self.groups));
        let parity = u64::from(self.parity);
        // The code works on blocks of a power of two.
        let room = |shards: u64| shards.checked_next_power_of_two().unwrap_or(u64::MAX);
        if room(data)
            .min(room(parity))
            .saturating_add(data.max(parity))
            > MAX_SHARDS
        {
            return Err(GeometryError::Shards { data, parity });
        }
        Ok(())
    }

    /// Bytes of a shard.
    #[must_use]
    pub fn shard_size(&self) -> usize {
        self.shard_size as usize
    }

    /// Number of data shards.
    #[must_use]
    pub fn data_shards(&self) -> u64 {
        self.data_shards
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Parity shards of each group.
    #[must_use]
    pub fn parity(&self) -> u32 {
        self.parity
    }

    /// Start of the protected range, relative to the image.
    #[must_use]
    pub fn start(&self) -> i64 {
        self.start
    }

    /// Length of the protected range in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// End of the protected range, relative to the image. None if it is beyond all offsets.
    #[must_use]
    pub fn end(&self) -> Option<i64> {
        self.start.checked_add_unsigned(self.length)
    }

    /// Number of parity shards of all groups.
    #[must_use]
    pub fn parity_shards(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.parity)
    }

    /// Number of data and parity shards: as many have a checksum.
    #[must_use]
    pub fn all_shards(&self) -> u64 {
        self.data_shards + self.parity_shards()
    }

    /// Data shards of a group.
    #[must_use]
    pub fn data_of(&self, group: ShardGroup) -> u32 {
        let groups = u64::from(self.groups);
        ((self.data_shards + groups - 1 - u64::from(group.0).min(groups - 1)) / groups) as u32
    }

    /// The number of the data shard at a position of a group.
    #[must_use]
    pub fn data_shard(&self, group: ShardGroup, position: u32) -> u64 {
        u64::from(position) * u64::from(self.groups) + u64::from(group.0)
    }

    /// Group and position of a shard. Parity shards are numbered behind the data shards, and their
    /// positions are behind those of the data shards of the group.
    #[must_use]
    pub fn place_of(&self, shard: u64) -> (ShardGroup, u32) {
        let groups = u64::from(self.groups);
        match shard.checked_sub(self.data_shards) {
            None => (ShardGroup((shard % groups) as u32), (shard / groups) as u32),
            Some(parity) => {
                let group = ShardGroup((parity % groups) as u32);
                (group, self.data_of(group) + (parity / groups) as u32)
            }
        }
    }

    /// The number, behind those of the data shards, of a parity shard of a group.
    #[must_use]
    pub fn parity_shard(&self, group: ShardGroup, row: u32) -> u64 {
        self.data_shards + u64::from(row) * u64::from(self.groups) + u64::from(group.0)
    }

    /// Where a data shard lies in the protected range, and how many of its bytes are there. The last one
    /// is filled up with zeros.
    #[must_use]
    pub fn data_range(&self, shard: u64) -> (u64, usize) {
        let size = u64::from(self.shard_size);
        let at = shard.saturating_mul(size);
        let there = self.length.saturating_sub(at).min(size);
        (at, there as usize)
    }

    /// Rows of parity in front of the header page in their middle.
    #[must_use]
    pub fn first_rows(&self) -> u32 {
        self.parity.div_ceil(2)
    }
}

fn check_sizes(length: u64, shard_size: u32) -> Result<(), GeometryError> {
    if length == 0 || length > MAX_LENGTH {
        return Err(GeometryError::Length(length));
    }
    if !shard_size.is_power_of_two() || !SHARD_SIZES.contains(&shard_size) {
        return Err(GeometryError::ShardSize(shard_size));
    }
    Ok(())
}
