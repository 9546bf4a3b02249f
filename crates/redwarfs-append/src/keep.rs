//! Which snapshots rules keep, as `restic forget` has them.

use std::time::Duration;

use redwarfs_format::GenerationNo;
use redwarfs_format::section::SnapshotTable;

/// How many snapshots of each kind are kept. The newest one and pinned ones are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepRules {
    /// The last ones.
    pub last: u32,
    /// Those whose time is at most so long before that of the newest one.
    pub within: Duration,
    /// The last one of each of so many hours that have any.
    pub hourly: u32,
    /// Of so many days.
    pub daily: u32,
    /// Of so many weeks, which begin on Monday.
    pub weekly: u32,
    /// Of so many months.
    pub monthly: u32,
    /// Of so many years.
    pub yearly: u32,
}

/// A number that hours of the same period have in common.
type Period = fn(i64) -> i64;

impl KeepRules {
    /// Whether there is no rule: then everything is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The snapshots that no rule keeps, the oldest first. `local` adds the difference of the local time to
    /// seconds since 1970.
    ///
    /// If a rule counts more periods than there are, it keeps the oldest snapshot, too.
    #[must_use]
    pub fn dropped(&self, table: &SnapshotTable, local: &dyn Fn(i64) -> i64) -> Vec<GenerationNo> {
        if self.is_empty() {
            return Vec::new();
        }
        let rules: [(u32, Period); 5] = [
            (self.hourly, |hour| hour),
            (self.daily, day),
            // 1970 began on a Thursday.
            (self.weekly, |hour| (day(hour) + 3).div_euclid(7)),
            (self.monthly, |hour| month(day(hour))),
            (self.yearly, |hour| month(day(hour)).div_euclid(12)),
        ];
        let mut left = rules.map(|(count, period)| (count, period, None));
        let mut last = self.last;
        let mut dropped = Vec::new();
        let all: Vec<_> = table.present().collect();
        let oldest = all.first().map(|oldest| oldest.number);
        let within = i64::try_from(self.within.as_secs()).unwrap_or(i64::MAX);
        let newest = all.last().map_or(0, |newest| newest.seconds);
        let since = newest.saturating_sub(within);
        for (at, snapshot) in all.iter().rev().enumerate() {
            let hour = local(snapshot.seconds).div_euclid(3_600);
            let mut keep = at == 0 || snapshot.pinned;
            keep |= !self.within.is_zero() && snapshot.seconds >= since;
            if last > 0 {
                last -= 1;
                keep = true;
            }
            for (count, period, before) in &mut left {
                let this = Some(period(hour));
                if *count > 0 && (*before != this || Some(snapshot.number) == oldest) {
                    *before = this;
                    *count -= 1;
                    keep = true;
                }
            }
            if !keep {
                dropped.push(snapshot.number);
            }
        }
        dropped.reverse();
        dropped
    }
}

/// Days since 1970 of an hour since 1970.
fn day(hour: i64) -> i64 {
    hour.div_euclid(24)
}

/// Months since year 0 of a day since 1970.
fn month(day: i64) -> i64 {
    // Days-to-civil conversion by H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let z = day + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    // Years of this calendar begin in March.
    (yoe + era * 400) * 12 + (5 * doy + 2) / 153 + 2
}

#[cfg(test)]
mod tests {
    use redwarfs_format::section::{MetadataId, Snapshot};

    use super::*;

    fn table(days: &[i64]) -> SnapshotTable {
        let snapshot = |(number, day): (u32, &i64)| Snapshot {
            number: GenerationNo(number),
            name: format!("s{number}"),
            index: 0,
            end: Some(100),
            pinned: false,
            deleted: false,
            archived: false,
            seconds: day * 86_400 + 3600,
            nanoseconds: 0,
            tree: MetadataId([0; 16]),
            size: 0,
            added: 0,
            inodes: 1,
            parent: None,
        };
        SnapshotTable {
            snapshots: (1..).zip(days).map(snapshot).collect(),
            previous: None,
        }
    }

    fn kept(rules: KeepRules, table: &SnapshotTable) -> Vec<u32> {
        let dropped = rules.dropped(table, &|seconds| seconds);
        let all = table.present().map(|s| s.number);
        all.filter(|n| !dropped.contains(n)).map(|n| n.0).collect()
    }

    #[test]
    fn months_and_years() {
        assert_eq!(month(0), 1970 * 12);
        assert_eq!(month(30), 1970 * 12);
        assert_eq!(month(31), 1970 * 12 + 1);
        assert_eq!(month(364), 1970 * 12 + 11);
        assert_eq!(month(365), 1971 * 12);
        assert_eq!(month(-1), 1969 * 12 + 11);
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        // Day 0 is a Thursday; two snapshots on day 3.
        let table = table(&[0, 1, 2, 3, 3, 4, 5, 6, 40, 41]);
        let rule = KeepRules::default();
        assert!(rule.dropped(&table, &|s| s).is_empty());
        assert_eq!(kept(KeepRules { last: 3, ..rule }, &table), [8, 9, 10]);
        assert_eq!(
            kept(KeepRules { daily: 7, ..rule }, &table),
            [3, 5, 6, 7, 8, 9, 10]
        );
        // Weeks end on days 3, 10 and 45.
        assert_eq!(kept(KeepRules { weekly: 2, ..rule }, &table), [8, 10]);
        // More weeks than there are: the oldest stays.
        assert_eq!(kept(KeepRules { weekly: 9, ..rule }, &table), [1, 5, 8, 10]);
        assert_eq!(kept(KeepRules { monthly: 2, ..rule }, &table), [8, 10]);
        assert_eq!(kept(KeepRules { yearly: 1, ..rule }, &table), [10]);
        let mut pinned = table.clone();
        pinned.snapshots[1].pinned = true;
        assert_eq!(kept(KeepRules { last: 1, ..rule }, &pinned), [2, 10]);
        pinned.snapshots[9].deleted = true;
        assert_eq!(kept(KeepRules { last: 1, ..rule }, &pinned), [2, 9]);
        // All are at one hour of their days.
        assert_eq!(kept(KeepRules { hourly: 2, ..rule }, &table), [9, 10]);
        let mut hours = table.clone();
        hours.snapshots[8].seconds = hours.snapshots[9].seconds - 3_600;
        hours.snapshots[7].seconds = hours.snapshots[9].seconds - 3_601;
        assert_eq!(kept(KeepRules { hourly: 3, ..rule }, &hours), [8, 9, 10]);
        hours.snapshots[9].seconds += 1;
        assert_eq!(kept(KeepRules { hourly: 2, ..rule }, &hours), [9, 10]);
        hours.snapshots[9].seconds -= 1;
        let within = |seconds| KeepRules {
            within: Duration::from_secs(seconds),
            ..rule
        };
        assert_eq!(kept(within(1), &hours), [10]);
        assert_eq!(kept(within(3_600), &hours), [9, 10]);
        assert_eq!(kept(within(3_601), &hours), [8, 9, 10]);
        assert_eq!(kept(within(u64::MAX), &hours).len(), 10);
        // In a zone where it is the next day.
        let later = KeepRules { daily: 1, ..rule }.dropped(&table, &|s| s + 23 * 3600);
        assert_eq!(later.len(), 9);
    }
}
