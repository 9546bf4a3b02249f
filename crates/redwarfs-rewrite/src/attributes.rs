//! Attributes of the inodes of rebuilt metadata.

use std::collections::HashMap;

use redwarfs_format::metadata::{FsOptions, InodeData, Metadata, Stat, Timestamp};
use redwarfs_writer::TimeResolution;

use crate::error::{Error, Result};
use crate::options::Rebuild;

const SECOND: u64 = 1_000_000_000;

/// Numbers for distinct values, in order of first use.
#[derive(Default)]
struct Table {
    values: Vec<u32>,
    index: HashMap<u32, u32>,
}

impl Table {
    fn index(&mut self, value: u32) -> u32 {
        let next = self.values.len() as u32;
        *self.index.entry(value).or_insert_with(|| {
            self.values.push(value);
            next
        })
    }
}

/// The resolution of the new metadata.
pub(crate) fn resolution(old: &FsOptions, rebuild: &Rebuild) -> Result<TimeResolution> {
    let nanos = match old.subsecond_resolution_nsec_multiplier {
        Some(multiplier) if multiplier > 0 => u64::from(multiplier),
        _ => u64::from(old.time_resolution_sec.unwrap_or(1).max(1)) * SECOND,
    };
    let old = TimeResolution::from_nanos(nanos).map_err(|_| {
        redwarfs_format::Error::corrupt(format!("a time resolution of {nanos} nanoseconds"))
    })?;
    let Some(new) = rebuild.time_resolution else {
        return Ok(old);
    };
    let shown = |resolution: TimeResolution| show(resolution.nanos());
    if new.nanos() < old.nanos() {
        return Err(Error::invalid(format!(
            "cannot convert time to a finer resolution ({}) than the old resolution ({})",
            shown(new),
            shown(old)
        )));
    }
    if !new.nanos().is_multiple_of(old.nanos()) {
        return Err(Error::invalid(format!(
            "cannot convert time to a coarser resolution ({}) that is not a whole multiple of the \
             old resolution ({})",
            shown(new),
            shown(old)
        )));
    }
    Ok(new)
}

/// A duration in the largest unit in which it is a whole number.
fn show(nanos: u64) -> String {
    for (unit, name) in [(SECOND, "s"), (1_000_000, "ms"), (1000, "us")] {
        if nanos.is_multiple_of(unit) {
            return format!("{}{name}", nanos / unit);
        }
    }
    format!("{nanos}ns")
}

/// Writes the attributes of all inodes, given in the order of the new inode numbers, into
/// `metadata`. `births` are the birth times of the same inodes, or empty.
pub(crate) fn store(
    stats: &[Stat],
    births: &[Timestamp],
    resolution: TimeResolution,
    rebuild: &Rebuild,
    metadata: &mut Metadata,
    options: &mut FsOptions,
) {
    let seconds = i64::from(resolution.seconds());
    let multiplier = resolution.multiplier();
    options.time_resolution_sec = (seconds > 1).then(|| resolution.seconds());
    options.subsecond_resolution_nsec_multiplier = multiplier;
    options.mtime_only = !rebuild.keep_all_times;
    options.has_btime = !births.is_empty();
    let time = |time: Timestamp| match rebuild.set_time {
        Some(sec) => Timestamp { sec, nsec: 0 },
        None => time,
    };
    // Units are signed numbers, so that times before 1970 are correct for every resolution: readers
    // multiply modulo 2^64.
    let unit = |t: Timestamp| t.sec.div_euclid(seconds);
    let base = stats
        .iter()
        .flat_map(|stat| {
            let all = [stat.mtime, stat.atime, stat.ctime];
            let count = if rebuild.keep_all_times { 3 } else { 1 };
            all.into_iter().take(count)
        })
        .chain(births.iter().copied())
        .map(|t| unit(time(t)))
        .min()
        .unwrap_or(0);
    let offset = |t: Timestamp| unit(t).wrapping_sub(base) as u64;
    let subsec = |t: Timestamp| multiplier.map_or(0, |m| u64::from(t.nsec / m));
    metadata.timestamp_base = base as u64;

    let (mut modes, mut uids, mut gids) = (Table::default(), Table::default(), Table::default());
    metadata.inodes = stats
        .iter()
        .map(|stat| {
            let mode = match &rebuild.chmod {
                Some(transform) => transform.apply(stat.mode),
                None => stat.mode,
            };
            let mtime = time(stat.mtime);
            let mut data = InodeData {
                mode_index: modes.index(mode),
                owner_index: uids.index(rebuild.set_owner.unwrap_or(stat.uid)),
                group_index: gids.index(rebuild.set_group.unwrap_or(stat.gid)),
                mtime_offset: offset(mtime),
                mtime_subsec: subsec(mtime),
                ..InodeData::default()
            };
            if rebuild.keep_all_times {
                let (atime, ctime) = (time(stat.atime), time(stat.ctime));
                data.atime_offset = offset(atime);
                data.atime_subsec = subsec(atime);
                data.ctime_offset = offset(ctime);
                data.ctime_subsec = subsec(ctime);
            }
            data
        })
        .collect();
    for (data, &birth) in metadata.inodes.iter_mut().zip(births) {
        data.btime_offset = offset(time(birth));
        data.btime_subsec = subsec(time(birth));
    }
    metadata.modes = modes.values;
    metadata.uids = uids.values;
    metadata.gids = gids.values;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails by panicking

    use super::*;

    fn old(sec: Option<u32>, multiplier: Option<u32>) -> FsOptions {
        FsOptions {
            time_resolution_sec: sec,
            subsecond_resolution_nsec_multiplier: multiplier,
            ..FsOptions::default()
        }
    }

    fn to(nanos: Option<u64>) -> Rebuild {
        Rebuild {
            time_resolution: nanos.map(|n| TimeResolution::from_nanos(n).unwrap()),
            ..Rebuild::default()
        }
    }

    #[test]
    fn resolutions_get_coarser_by_whole_multiples_only() {
        let cases = [
            (old(None, None), None, SECOND),
            (old(None, None), Some(SECOND), SECOND),
            (old(None, None), Some(60 * SECOND), 60 * SECOND),
            (old(Some(60), None), None, 60 * SECOND),
            (old(Some(60), None), Some(120 * SECOND), 120 * SECOND),
            (old(None, Some(1)), Some(1000), 1000),
            (old(None, Some(1_000_000)), None, 1_000_000),
            (old(None, Some(1_000_000)), Some(2 * SECOND), 2 * SECOND),
        ];
        for (old, new, want) in cases {
            assert_eq!(resolution(&old, &to(new)).unwrap().nanos(), want);
        }
        let bad = [
            (
                old(None, None),
                1_000_000,
                "cannot convert time to a finer resolution (1ms) than the old resolution (1s)",
            ),
            (
                old(Some(60), None),
                90 * SECOND,
                "cannot convert time to a coarser resolution (90s) that is not a whole multiple \
                 of the old resolution (60s)",
            ),
            (
                old(None, Some(2_000_000)),
                5_000_000,
                "cannot convert time to a coarser resolution (5ms) that is not a whole multiple \
                 of the old resolution (2ms)",
            ),
        ];
        for (old, new, want) in bad {
            let error = resolution(&old, &to(Some(new))).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid option: {want}"));
        }
    }
}
