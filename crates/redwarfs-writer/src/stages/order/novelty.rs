//! How much of a sequence of contents is new to a codec with a small window.

use std::collections::HashSet;

/// Adds up new data: a content is new as far as its features have not been seen lately. Takes 5 bytes
/// for each feature in two windows, about 100 KiB for windows of 2 MiB.
pub(super) struct Novelty {
    /// Features of the current window, and of the one before.
    recent: HashSet<u32>,
    before: HashSet<u32>,
    window: u64,
    position: u64,
    turn: u64,
}

impl Novelty {
    /// `window` counts bytes of new data. The last one to two windows are remembered.
    pub(super) fn new(window: u64) -> Self {
        Self {
            recent: HashSet::new(),
            before: HashSet::new(),
            window,
            position: 0,
            turn: window,
        }
    }

    /// Bytes of new data so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Adds a content of `size` bytes with these features.
    pub(super) fn add(&mut self, size: u64, features: &[u32]) {
        let mut new = 0u64;
        for feature in features {
            if self.recent.insert(*feature) && !self.before.contains(feature) {
                new += 1;
            }
        }
        // Sizes are those that the source reports.
        self.position = self.position.saturating_add(match features.len() as u64 {
            0 => size,
            count => (u128::from(size) * u128::from(new) / u128::from(count)) as u64,
        });
        if self.position >= self.turn {
            std::mem::swap(&mut self.recent, &mut self.before);
            self.recent.clear();
            self.turn = self.position.saturating_add(self.window);
        }
    }
}

/// Adds up what contents add to blocks: matches are long, so a content adds less than its size only if
/// it is very similar to the preceding contents.
#[derive(Default)]
pub(super) struct Growth {
    previous: Vec<u32>,
    position: u64,
}

impl Growth {
    /// Bytes so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Adds a content of `size` bytes with these features.
    pub(super) fn add(&mut self, size: u64, features: &[u32]) {
        let known = features
            .iter()
            .filter(|f| self.previous.binary_search(f).is_ok());
        let (known, all) = (known.count() as u64, features.len().max(1) as u64);
        let matched = u128::from(size) * u128::from((2 * known).saturating_sub(all));
        let new = size - (matched / u128::from(all)) as u64;
        self.position = self.position.saturating_add(new);
        self.previous.clear();
        self.previous.extend_from_slice(features);
        self.previous.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_lately_is_not_new() {
        let mut novelty = Novelty::new(1000);
        novelty.add(400, &[1, 2, 3, 4]);
        assert_eq!(novelty.position(), 400);
        novelty.add(400, &[1, 2, 3, 5]);
        assert_eq!(novelty.position(), 500);
        novelty.add(70, &[]);
        assert_eq!(novelty.position(), 570);
        // Two windows later it is new again.
        novelty.add(500, &[10]);
        novelty.add(1000, &[11]);
        novelty.add(400, &[1, 2, 3, 4]);
        assert_eq!(novelty.position(), 2470);
    }

    #[test]
    fn what_is_like_its_predecessor_adds_little() {
        let mut growth = Growth::default();
        growth.add(400, &[4, 3, 2, 1]);
        assert_eq!(growth.position(), 400);
        growth.add(400, &[5, 2, 3, 4]);
        assert_eq!(growth.position(), 600);
        growth.add(400, &[5, 2, 3, 4]);
        assert_eq!(growth.position(), 600);
        growth.add(400, &[5, 2, 7, 8]);
        assert_eq!(growth.position(), 1000);
        growth.add(10, &[]);
        assert_eq!(growth.position(), 1010);
    }

    #[test]
    fn sizes_that_cannot_be_do_not_overflow() {
        let (mut novelty, mut growth) = (Novelty::new(u64::MAX), Growth::default());
        for _ in 0..3 {
            novelty.add(u64::MAX, &[1, 2]);
            novelty.add(u64::MAX, &[]);
            growth.add(u64::MAX, &[1, 2]);
            growth.add(u64::MAX, &[]);
        }
        assert_eq!(
            (novelty.position(), growth.position()),
            (u64::MAX, u64::MAX)
        );
    }
}
