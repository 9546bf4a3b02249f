//! The ranges of an object that are in memory or on their way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::transfer::Transfer;

/// Bytes of fetched transfers that are kept for later reads (64 MiB). Announced ranges beyond that are not fetched
/// before they are read.
pub(crate) const KEPT: u64 = 64 << 20;

/// Uses of other transfers after which the background may take the room of one that nobody reads, and of one that was read for
/// the most part.
const STALE: u64 = 1 << 10;
const STALE_REST: u64 = 1 << 6;

/// Least and most bytes that are fetched for a read that was not announced (64 KiB to 4 MiB). Reads that continue
/// each other fetch more and more.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 4 << 20;

#[derive(Default)]
pub(crate) struct Transfers {
    /// By their first byte, with the time of the last use. They do not overlap.
    pub(crate) found: BTreeMap<u64, (Arc<Transfer>, u64)>,
    /// Counts uses.
    clock: u64,
    /// The end of the last range that was fetched without an announcement, and its length.
    last: (u64, u64),
}

/// Which announced ranges become one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joining {
    /// Longest joined range.
    longest: u64,
    /// Most bytes between two ranges. But not more than 64 KiB, and than both have.
    gap: u64,
}

impl Joining {
    /// A connection takes some round trips to get up to speed, so a few long requests are faster than many: up to twelve blocks
    /// of 1 MiB with their headers, with gaps of 1 MiB.
    pub(crate) const SOON: Self = Self {
        longest: (12 << 20) + (64 << 10),
        gap: 1 << 20,
    };

    /// Those that nobody waits for have a third of it: each begins on a new connection, and several together get up to speed
    /// faster.
    pub(crate) const LATER: Self = Self {
        longest: (4 << 20) + (64 << 10),
        ..Self::SOON
    };

    /// Whether two ranges, the second not before the first, are better fetched together.
    fn is_near(self, first: &Range<u64>, second: &Range<u64>) -> bool {
        let gap = second.start.saturating_sub(first.end);
        let wanted = (first.end - first.start).saturating_add(second.end - second.start);
        gap <= self.gap.min(wanted.max(LEAST))
    }
}

/// A range that is neither there nor on its way, and the parts of it that nobody has asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) range: Range<u64>,
    pub(crate) gaps: Vec<Range<u64>>,
}

impl Missing {
    /// A range without gaps.
    pub(crate) fn whole(range: Range<u64>) -> Self {
        Self {
            range,
            gaps: Vec::new(),
        }
    }
}

impl Transfers {
    /// The transfer with a byte.
    pub(crate) fn at(&mut self, offset: u64) -> Option<Arc<Transfer>> {
        self.clock += 1;
        let (_, (transfer, used)) = self.found.range_mut(..=offset).next_back()?;
        *used = self.clock;
        transfer
            .range
            .contains(&offset)
            .then(|| Arc::clone(transfer))
    }

    /// The first byte of a transfer from an offset on.
    pub(crate) fn next(&self, offset: u64) -> u64 {
        self.found
            .range(offset..)
            .next()
            .map_or(u64::MAX, |(start, _)| *start)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.found
            .values()
            .map(|(transfer, _)| transfer.len())
            .sum()
    }

    pub(crate) fn insert(&mut self, transfer: &Arc<Transfer>) {
        self.clock += 1;
        self.found
            .insert(transfer.range.start, (Arc::clone(transfer), self.clock));
    }

    /// Drops a transfer, if it is this one, and can be fetched again.
    pub(crate) fn remove(&mut self, transfer: &Arc<Transfer>) {
        if transfer.is_only() {
            return;
        }
        let start = transfer.range.start;
        if self
            .found
            .get(&start)
            .is_some_and(|(found, _)| Arc::ptr_eq(found, transfer))
        {
            self.found.remove(&start);
        }
    }

    /// Drops the transfers that were not used for the longest time, until `more` bytes fit. Those that were read for the most
    /// part go first: others are still to be read.
    pub(crate) fn make_room(&mut self, more: u64) {
        let mut bytes = self.bytes();
        while bytes.saturating_add(more) > KEPT {
            let transfers = self.found.values();
            let settled =
                transfers.filter(|(transfer, _)| transfer.is_settled() && !transfer.is_only());
            let Some((oldest, _)) = settled
                .min_by_key(|(transfer, used)| (!transfer.is_mostly_read(), *used))
                .cloned()
            else {
                return;
            };
            bytes -= oldest.len();
            self.remove(&oldest);
        }
    }

    /// Drops transfers that were not used for a long time: those whose bytes nobody needed, and the rests of others.
    pub(crate) fn drop_stale(&mut self) {
        let now = self.clock;
        let is_stale = |transfer: &Transfer, used: u64| {
            let patience = match transfer.is_mostly_read() {
                true => STALE_REST,
                false => STALE,
            };
            now.saturating_sub(used) > patience && transfer.is_settled() && !transfer.is_only()
        };
        self.found
            .retain(|_, (transfer, used)| !is_stale(transfer, *used));
    }

    /// Whether all bytes of a range are there or on their way.
    pub(crate) fn is_coming(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let last = self.found.range(..=at).next_back();
            match last {
                Some((_, (transfer, _)))
                    if transfer.range.contains(&at) && !transfer.has_failed() =>
                {
                    at = transfer.range.end;
                }
                _ => return false,
            }
        }
        true
    }

    /// What to fetch for a read that was not announced, and whose first byte is missing.
    pub(crate) fn range_of_read(&mut self, offset: u64, len: u64, size: u64) -> Range<u64> {
        let (end, before) = self.last;
        let least = match end == offset {
            true => before.saturating_mul(2).clamp(LEAST, MOST),
            false => LEAST,
        };
        let end = offset.saturating_add(len.max(least)).min(size);
        let end = end.min(self.next(offset));
        self.last = (end, least);
        offset..end
    }

    /// The parts of ranges that are neither there nor on their way, joined where little is between them.
    pub(crate) fn missing(
        &self,
        ranges: &[Range<u64>],
        size: u64,
        joining: Joining,
    ) -> Vec<Missing> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            let (mut at, end) = (range.start, range.end.min(size));
            while at < end {
                let inside = self.found.range(..=at).next_back();
                if let Some((_, (transfer, _))) =
                    inside.filter(|(_, (transfer, _))| transfer.range.contains(&at))
                {
                    at = transfer.range.end;
                    continue;
                }
                let stop = self.next(at).min(end);
                parts.push(at..stop);
                at = stop;
            }
        }
        parts.sort_by_key(|part| part.start);
        let mut joined: Vec<Missing> = Vec::new();
        for part in parts {
            match joined.last_mut() {
                Some(Missing { range: last, gaps })
                    if joining.is_near(last, &part)
                        && part.end.max(last.end) - last.start <= joining.longest
                        && self.next(last.end) >= part.start =>
                {
                    if part.start > last.end {
                        gaps.push(last.end..part.start);
                    }
                    last.end = last.end.max(part.end);
                }
                Some(Missing { range: last, .. }) if part.start < last.end => {
                    let end = last.end;
                    if part.end > end {
                        joined.push(Missing::whole(end..part.end));
                    }
                }
                _ => joined.push(Missing::whole(part)),
            }
        }
        joined
    }
}

#[cfg(test)]
// A list of one range is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn transfers(ranges: &[Range<u64>]) -> Transfers {
        let mut transfers = Transfers::default();
        for range in ranges {
            let len = usize::try_from(range.end - range.start).unwrap();
            transfers.insert(&Transfer::complete(range.start, vec![0; len]));
        }
        transfers
    }

    #[test]
    fn neighbouring_ranges_are_one_request() {
        const M: u64 = 1 << 20;
        let none = transfers(&[]);
        let missing = |transfers: &Transfers, ranges: &[Range<u64>], size| {
            let missing = transfers.missing(ranges, size, Joining::SOON).into_iter();
            missing.map(|missing| missing.range).collect::<Vec<_>>()
        };
        assert_eq!(missing(&none, &[0..10, 20..30], 100), [0..30]);
        assert_eq!(missing(&none, &[20..30, 0..10, 5..25], 28), [0..28]);
        assert_eq!(
            missing(&none, &[0..10, 3 * M..4 * M], 9 * M),
            [0..10, 3 * M..4 * M]
        );
        assert_eq!(
            missing(&none, &[0..20 * M, 20 * M..40 * M], 99 * M),
            [0..20 * M, 20 * M..40 * M]
        );
        assert_eq!(
            missing(&none, &[0..40 * M, M..50 * M], 99 * M),
            [0..40 * M, 40 * M..50 * M]
        );
        assert_eq!(missing(&none, &[5..5, 100..200], 100), []);
        // Headers of sections are no reason to fetch what is between them.
        let headers = [0..64, M / 4..M / 4 + 64];
        assert_eq!(missing(&none, &headers, M), headers);
        assert_eq!(missing(&none, &[0..M, M + M / 2..2 * M], 9 * M), [0..2 * M]);
        // What is there is not fetched again.
        let some = transfers(&[10..20, 30..40]);
        assert_eq!(missing(&some, &[0..50], 100), [0..10, 20..30, 40..50]);
        assert_eq!(missing(&some, &[12..18, 30..40], 100), []);
        assert_eq!(missing(&some, &[15..25, 35..36], 100), [20..25]);
    }

    #[test]
    fn gaps_of_joined_ranges_are_known() {
        const K: u64 = 1 << 10;
        let ranges = [0..400 * K, 800 * K..1200 * K, 1210 * K..1300 * K];
        let found = transfers(&[]).missing(&ranges, 9000 * K, Joining::LATER);
        let one = Missing {
            range: 0..1300 * K,
            gaps: vec![400 * K..800 * K, 1200 * K..1210 * K],
        };
        assert_eq!(found, [one]);
    }

    #[test]
    fn what_was_read_makes_room_first() {
        let mut transfers = transfers(&[0..KEPT / 4, KEPT / 4..KEPT / 2, KEPT / 2..KEPT]);
        // The last one that was used, but most of it was read.
        let half = usize::try_from(KEPT / 4).unwrap();
        assert_eq!(
            transfers
                .at(KEPT / 2)
                .unwrap()
                .try_copy(KEPT / 2, &mut vec![0; half]),
            Some(false)
        );
        transfers.make_room(1);
        let left = |transfers: &Transfers| transfers.found.keys().copied().collect::<Vec<_>>();
        assert_eq!(left(&transfers), [0, KEPT / 4]);
        // The background leaves what is being read, and takes its rest soon.
        transfers
            .at(0)
            .unwrap()
            .try_copy(0, &mut vec![0; half - 1])
            .unwrap();
        transfers.drop_stale();
        assert_eq!(left(&transfers), [0, KEPT / 4]);
        for _ in 0..=STALE_REST {
            transfers.at(KEPT / 4).unwrap();
        }
        transfers.drop_stale();
        assert_eq!(left(&transfers), [KEPT / 4]);
        assert!(transfers.is_coming(&(KEPT / 4..KEPT / 2)));
        assert!(!transfers.is_coming(&(KEPT / 4..KEPT / 2 + 1)) && !transfers.is_coming(&(0..1)));
    }

    #[test]
    fn the_background_takes_the_room_of_what_nobody_needed() {
        let mut transfers = transfers(&[0..10, 20..30]);
        transfers.insert(&Transfer::only(40, vec![0; 10]));
        transfers.insert(&Transfer::new(60..70));
        for _ in 0..STALE {
            transfers.at(20).unwrap();
        }
        transfers.drop_stale();
        let left = |transfers: &Transfers| transfers.found.keys().copied().collect::<Vec<_>>();
        assert_eq!(left(&transfers), [20, 40, 60]);
        for _ in 0..=STALE {
            transfers.at(40).unwrap();
        }
        transfers.drop_stale();
        assert_eq!(left(&transfers), [40, 60]);
    }

    #[test]
    fn the_oldest_transfers_make_room() {
        let mut transfers = transfers(&[0..KEPT / 2, KEPT / 2..KEPT]);
        transfers.at(0).unwrap();
        transfers.make_room(1);
        assert!(transfers.at(0).is_some() && transfers.at(KEPT / 2).is_none());
        // What cannot be fetched again stays.
        let only = Transfer::only(2 * KEPT, vec![0; 8]);
        transfers.insert(&only);
        transfers.remove(&only);
        transfers.make_room(u64::MAX);
        assert!(transfers.at(2 * KEPT).is_some());
        // A transfer on its way stays.
        transfers.insert(&Transfer::new(KEPT..KEPT + KEPT));
        transfers.make_room(1);
        assert!(transfers.at(0).is_none() && transfers.at(KEPT).is_some());
    }
}
