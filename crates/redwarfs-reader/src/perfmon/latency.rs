//! Durations of one kind of operation, and their quantiles.

use std::time::Duration;

/// Number of durations that are kept individually.
pub(super) const EXACT: usize = 1024;

/// Buckets per power of two. The value of a bucket is its middle, so a quantile is off by at most half
/// a bucket: 1/128 of the value.
const PER_OCTAVE_BITS: u32 = 6;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;

/// Buckets up to 2^44 ns (5 hours); longer operations count as that long in quantiles.
const BUCKETS: usize = (44 - PER_OCTAVE_BITS as usize + 1) * PER_OCTAVE;

/// Number, sum and distribution of durations. All of them up to 1024, then a histogram with 64
/// buckets per power of two (20 KiB).
#[derive(Debug, Clone, Default)]
pub(super) struct Latency {
    count: u64,
    total: Duration,
    exact: Vec<u64>,
    buckets: Vec<u64>,
}

impl Latency {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn total(&self) -> Duration {
        self.total
    }

    pub(super) fn average(&self) -> Duration {
        let average = self.total.as_nanos() / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(average).unwrap_or(u64::MAX))
    }

    pub(super) fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(duration);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if self.buckets.is_empty() {
            if self.exact.len() < EXACT {
                self.exact.push(ns);
                return;
            }
            self.buckets = vec![0; BUCKETS];
            for ns in std::mem::take(&mut self.exact) {
                self.fill(ns);
            }
        }
        self.fill(ns);
    }

    fn fill(&mut self, ns: u64) {
        if let Some(n) = self.buckets.get_mut(bucket(ns)) {
            *n += 1;
        }
    }

    /// For each percentage, the smallest duration that at least this percentage of all durations does
    /// not exceed (nearest rank). Zeros without any durations.
    pub(super) fn quantiles(&self, percentages: &[u64]) -> Vec<Duration> {
        let mut sorted = self.exact.clone();
        sorted.sort_unstable();
        percentages
            .iter()
            .map(|&percent| {
                let rank = (u128::from(self.count) * u128::from(percent))
                    .div_ceil(100)
                    .max(1);
                let rank = u64::try_from(rank).unwrap_or(u64::MAX);
                Duration::from_nanos(self.ranked(&sorted, rank))
            })
            .collect()
    }

    /// The duration at a rank, counted from 1.
    fn ranked(&self, sorted: &[u64], rank: u64) -> u64 {
        if self.buckets.is_empty() {
            let index = usize::try_from(rank - 1).unwrap_or(usize::MAX);
            return sorted.get(index).copied().unwrap_or(0);
        }
        let mut seen = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return middle(index);
            }
        }
        0
    }
}

/// Values below 64 have a bucket each; above, the six bits after the leading one choose it.
fn bucket(ns: u64) -> usize {
    let shift = ns.max(1).ilog2().saturating_sub(PER_OCTAVE_BITS);
    let index = (shift as usize * PER_OCTAVE) + (ns >> shift) as usize;
    index.min(BUCKETS - 1)
}

fn middle(index: usize) -> u64 {
    if index < 2 * PER_OCTAVE {
        return index as u64;
    }
    let shift = index / PER_OCTAVE - 1;
    let low = ((index % PER_OCTAVE + PER_OCTAVE) as u64) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_monotonous_and_narrow() {
        let mut last = 0;
        for exponent in 0..43 {
            for step in 0..200_u64 {
                let ns = (1_u64 << exponent) + (step << exponent) / 200;
                let index = bucket(ns);
                assert!(index >= last, "{ns}");
                last = index;
                let error = middle(index).abs_diff(ns);
                assert!(error * 128 <= ns, "{ns} became {}", middle(index));
            }
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn few_durations_have_exact_quantiles() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantiles(&[50]), [Duration::ZERO]);
        for ns in [30, 10, 20] {
            latency.add(Duration::from_nanos(ns));
        }
        let ns = |q: &[u64]| -> Vec<u128> {
            let found = latency.quantiles(q);
            found.iter().map(Duration::as_nanos).collect()
        };
        assert_eq!(
            ns(&[1, 33, 34, 50, 90, 99, 100]),
            [10, 10, 20, 20, 30, 30, 30]
        );
        assert_eq!(latency.average(), Duration::from_nanos(20));
    }

    #[test]
    fn many_durations_have_close_quantiles() {
        let mut latency = Latency::default();
        // A permutation of 1..=100000 microseconds.
        for i in 0..100_000_u64 {
            let us = (i * 7919) % 100_000 + 1;
            latency.add(Duration::from_micros(us));
        }
        assert_eq!(latency.count(), 100_000);
        assert!(latency.exact.is_empty());
        let found = latency.quantiles(&[50, 90, 99]);
        for (found, want) in found.iter().zip([50_000_000_i64, 90_000_000, 99_000_000]) {
            let error = (found.as_nanos() as i64 - want).abs();
            assert!(error * 100 < want, "{found:?} instead of {want}");
        }
        assert!(found.is_sorted());
    }

    #[test]
    fn going_over_to_the_histogram_loses_nothing() {
        let mut latency = Latency::default();
        for _ in 0..=EXACT {
            latency.add(Duration::from_nanos(50));
        }
        assert_eq!(latency.buckets.iter().sum::<u64>(), EXACT as u64 + 1);
        assert_eq!(latency.quantiles(&[1, 100]), [Duration::from_nanos(50); 2]);
    }
}
