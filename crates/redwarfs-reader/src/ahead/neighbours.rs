//! Recognizes that requests go through blocks that are stored near each other, for images on servers.
//!
//! Programs that read many small files request one block after the other, and each costs a round trip. The order of files
//! in directories is not that of blocks, so the requests jump back and forth. But if they stay in one region, the
//! neighbours of a block will be requested, too. Fetching them takes no round trip of its own: bytes that follow
//! those of a request only take the time of the line.
//!
//! A block is *ahead* while it was fetched for this rule and nobody has requested it. The *window* is the largest number of stored bytes
//! that may be ahead.
//!
//! | event | effect on the window |
//! |---|---|
//! | a request for a block that is ahead | grows by the size of the block |
//! | a request for a block that has to be fetched, near the last ones | makes room for one bandwidth-delay product, at first at most 1 MiB, or one block |
//! | the same far from the last ones | half of it |
//! | a block was ahead for too long | shrinks by its size; for some time, misses make no room |
//!
//! So the first request for any region fetches only its block. Each further one may fetch 1 MiB, and only use makes it more.
//! The window is never larger than that of a sequential reader.
//! Blocks that nobody requests stop the rule: they fill the window.
//!
//! Memory: about 50 bytes for each block that is ahead, at most [`MOST_AHEAD`] of them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use redwarfs_format::BlockNo;
use redwarfs_io::Line;

use super::streams::fetched;

/// Requests for other blocks that tell where the next ones will be.
const RECENT: usize = 16;

/// A request is near the last ones if one in so many of them is in reach.
const NEAR_ONES: usize = 4;

/// Most blocks that are ahead at any time.
const MOST_AHEAD: usize = 1 << 10;

/// Most neighbours that one request looks at, on either side.
const LOOKED_AT: u32 = 256;

/// A block is ahead for too long after so many requests for other blocks for each block that is ahead, and at least so many.
const PATIENCE: usize = 4;
const LEAST_PATIENCE: usize = 32;

/// Blocks that were ahead and count for the share of those that are used. One that was not requested for so many requests counts
/// as unused until it is.
const REMEMBERED: u32 = 64;
const LATE: u64 = 16;

/// Blocks on either side of one that tell whether others around it will be requested.
const AROUND: u32 = 4;

/// Requests during which the line may be better than measured, and bytes that it is assumed to hold then (1 MiB). A miss makes room
/// for no more than that, or for so many times the bytes that were of use.
const FIRST: u64 = 8;
const ASSUMED: u64 = 1 << 20;
const EARNED_ONES: u64 = 4;

/// Misses that make room once nothing was used for some time: at most two to the power of this.
const MOST_DOUBTS: u32 = 6;

/// What the rule must know of an image when it decides.
pub(crate) trait Stored {
    /// Where a block with its header is; none if there is no such block.
    fn place(&self, block: BlockNo) -> Option<Range<u64>>;

    /// Whether a block is neither in the cache in memory nor in that on disk.
    fn is_missing(&self, block: BlockNo) -> bool;

    /// The line to the server, if it was measured.
    fn line(&self) -> Option<Line>;
}

/// What to fetch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// The blocks that follow the requested one without a gap: the same request can have them.
    pub(crate) following: Vec<BlockNo>,
    /// Others.
    pub(crate) others: Vec<BlockNo>,
}

/// Blocks that were fetched before they were requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AheadCounts {
    pub(crate) fetched: u64,
    /// Requested later.
    pub(crate) used: u64,
    /// Not requested for a long time.
    pub(crate) unused: u64,
    /// Their stored bytes.
    pub(crate) unused_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ahead {
    bytes: u64,
    /// The number of requests before.
    since: u64,
    /// Whether it counts for the window: not if another rule has fetched it.
    counts: bool,
}

/// The rule for one image.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    ahead: HashMap<BlockNo, Ahead>,
    /// Those of `ahead`, and others that were ahead, the oldest one first.
    order: VecDeque<(BlockNo, u64)>,
    /// Bytes of the blocks that are ahead and count.
    bytes: u64,
    window: u64,
    /// The places of the last requested blocks.
    recent: VecDeque<u64>,
    /// Requests for blocks that were missing or ahead.
    requests: u64,
    /// How often blocks went unused since one was used, and misses since then.
    doubts: u32,
    misses: u64,
    /// Bytes of blocks that were ahead and used, less those of unused ones.
    earned: u64,
    /// How many of the last blocks that were ahead were used, and how many not.
    uses: (u32, u32),
    counts: AheadCounts,
}

impl Neighbours {
    /// Counts since the last call.
    pub(crate) fn take_counts(&mut self) -> AheadCounts {
        std::mem::take(&mut self.counts)
    }

    /// Notes blocks that another rule lets the server send.
    pub(crate) fn announced(&mut self, blocks: &[BlockNo], stored: &dyn Stored) {
        for &block in blocks {
            if let Some(place) = stored.place(block) {
                self.add(block, place.end.saturating_sub(place.start), false);
            }
        }
    }

    /// Takes back blocks of the last answer that are not fetched. No counts were taken since.
    pub(crate) fn refused(&mut self, blocks: &[BlockNo]) {
        for &block in blocks {
            if self.remove(block).is_some() {
                self.counts.fetched = self.counts.fetched.saturating_sub(1);
            }
        }
        if !blocks.is_empty() {
            let ahead = &self.ahead;
            self.order.retain(|(block, since)| {
                ahead.get(block).is_some_and(|ahead| ahead.since == *since)
            });
        }
    }

    fn add(&mut self, block: BlockNo, bytes: u64, counts: bool) -> bool {
        if self.ahead.len() >= MOST_AHEAD || self.ahead.contains_key(&block) {
            return false;
        }
        let since = self.requests;
        let ahead = Ahead {
            bytes,
            since,
            counts,
        };
        self.ahead.insert(block, ahead);
        self.order.push_back((block, since));
        self.counts.fetched += 1;
        self.bytes += if counts { bytes } else { 0 };
        true
    }

    fn remove(&mut self, block: BlockNo) -> Option<Ahead> {
        let ahead = self.ahead.remove(&block)?;
        self.bytes -= if ahead.counts { ahead.bytes } else { 0 };
        Some(ahead)
    }

    /// Notes a request for a block. `missing` if it is not in the cache in memory. Returns what to fetch.
    pub(crate) fn requested(
        &mut self,
        block: BlockNo,
        missing: bool,
        stored: &dyn Stored,
    ) -> Option<Fetch> {
        let found = self.remove(block);
        if found.is_none() && !missing {
            return None;
        }
        let place = stored.place(block)?;
        let size = place.end.saturating_sub(place.start);
        self.requests += 1;
        self.give_up();
        let line = stored.line();
        let most = fetched(line);
        let (near, is_forward) = self.look_back(place.start, most);
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(place.start);
        match found {
            Some(ahead) => {
                self.counts.used += 1;
                if !ahead.counts {
                    return None;
                }
                self.doubts = 0;
                self.note_use(true);
                self.earned = self.earned.saturating_add(size);
                if is_worth(self.share_used(), size, self.in_flight(line)) {
                    self.window = self.window.saturating_add(size).min(most);
                } else {
                    self.window = self.window.saturating_sub(size);
                }
                // Not a small request for each block.
                if self.window.saturating_sub(self.bytes) < self.window / 4 {
                    return None;
                }
            }
            None if near => {
                self.misses += 1;
                if self.misses < 1 << self.doubts {
                    return None;
                }
                self.misses = 0;
                let in_flight = self.in_flight(line);
                let trusted = self.earned.saturating_mul(EARNED_ONES).max(ASSUMED);
                let mut free = in_flight.unwrap_or(0).min(trusted);
                if is_worth(self.share_around(block, stored), size, in_flight) {
                    free = free.max(size);
                }
                let window = self.window.max(self.bytes.saturating_add(free));
                self.window = window.min(most.max(size));
            }
            None => {
                self.window /= 2;
                return None;
            }
        }
        let fetch = self.choose(block, &place, (most, is_forward), stored);
        (fetch != Fetch::default()).then_some(fetch)
    }

    /// Bytes that keep the line busy for one delay. A line is only measured as far as it was used, and a connection gets up to
    /// speed with the first requests. So these count a few times what was measured, but no more than [`ASSUMED`].
    fn in_flight(&self, line: Option<Line>) -> Option<u64> {
        let measured = line?.in_flight();
        let assumed = measured.saturating_mul(4).min(ASSUMED);
        Some(if self.requests <= FIRST {
            measured.max(assumed)
        } else {
            measured
        })
    }

    /// The share of the blocks that were ahead and are used, of the last ones.
    fn share_used(&self) -> f64 {
        let is_late = |ahead: &&Ahead| ahead.counts && self.requests - ahead.since > LATE;
        let late = self.ahead.values().filter(is_late).count() as f64;
        let (used, unused) = self.uses;
        f64::from(used + 1) / (f64::from(used + unused + 1) + late)
    }

    fn note_use(&mut self, used: bool) {
        let (yes, no) = &mut self.uses;
        *(if used { &mut *yes } else { &mut *no }) += 1;
        if *yes + *no > REMEMBERED {
            (*yes, *no) = (*yes / 2, *no / 2);
        }
    }

    /// The share of the blocks around one that were requested before: of those on both sides, or before it, or after it.
    fn share_around(&self, block: BlockNo, stored: &dyn Stored) -> f64 {
        let reach = u64::from(AROUND).min(self.requests - 1).max(1) as u32;
        let share = |side: &dyn Fn(u32) -> Option<u32>| {
            let blocks = (1..=reach).filter_map(side).map(BlockNo);
            let blocks = blocks.filter(|block| stored.place(*block).is_some());
            let was_requested =
                |block: BlockNo| !self.ahead.contains_key(&block) && !stored.is_missing(block);
            blocks.fold((0, 0), |(found, all), block| {
                (found + u32::from(was_requested(block)), all + 1)
            })
        };
        let (before, all_before) = share(&|distance| block.0.checked_sub(distance));
        let (after, all_after) = share(&|distance| block.0.checked_add(distance));
        let both = f64::from(before + after) / f64::from((all_before + all_after).max(1));
        both.max(f64::from(before.max(after)) / f64::from(reach))
    }

    /// Whether enough of the last requests are in reach of a place, and whether none of these is behind it.
    fn look_back(&self, at: u64, reach: u64) -> (bool, bool) {
        let close = self.recent.iter().filter(|last| last.abs_diff(at) <= reach);
        let (mut count, mut is_forward) = (0, true);
        for last in close {
            count += 1;
            is_forward &= *last <= at;
        }
        (
            count > 0 && count * NEAR_ONES >= self.recent.len(),
            is_forward,
        )
    }

    /// Gives up blocks that were ahead for too long.
    fn give_up(&mut self) {
        let patience = (self.ahead.len() * PATIENCE).max(LEAST_PATIENCE) as u64;
        let mut any = false;
        while let Some(&(block, since)) = self.order.front() {
            let is_ahead = self
                .ahead
                .get(&block)
                .is_some_and(|ahead| ahead.since == since);
            if is_ahead && self.requests - since <= patience {
                break;
            }
            self.order.pop_front();
            if !is_ahead {
                continue;
            }
            if let Some(ahead) = self.remove(block) {
                self.counts.unused += 1;
                self.counts.unused_bytes += ahead.bytes;
                if ahead.counts {
                    self.window = self.window.saturating_sub(ahead.bytes);
                    self.earned = self.earned.saturating_sub(ahead.bytes);
                    self.note_use(false);
                    any = true;
                }
            }
        }
        if any {
            self.doubts = (self.doubts + 1).min(MOST_DOUBTS);
            self.misses = 0;
        }
    }

    /// The nearest missing blocks that fit into the window.
    fn choose(
        &mut self,
        block: BlockNo,
        place: &Range<u64>,
        (reach, is_forward): (u64, bool),
        stored: &dyn Stored,
    ) -> Fetch {
        let mut fetch = Fetch::default();
        let (mut up, mut down) = (true, !is_forward);
        let mut is_row = true;
        for distance in 1..=LOOKED_AT {
            if up {
                let next = block.0.checked_add(distance).map(BlockNo);
                up = next.is_some_and(|next| {
                    let taken = self.take(next, place, reach, stored);
                    match taken {
                        Taken::Yes if is_row => fetch.following.push(next),
                        Taken::Yes => fetch.others.push(next),
                        Taken::No | Taken::End => is_row = false,
                    }
                    taken != Taken::End
                });
            }
            if down {
                let next = block.0.checked_sub(distance).map(BlockNo);
                down = next.is_some_and(|next| {
                    let taken = self.take(next, place, reach, stored);
                    if taken == Taken::Yes {
                        fetch.others.push(next);
                    }
                    taken != Taken::End
                });
            }
            if !up && !down {
                break;
            }
        }
        fetch
    }

    /// Takes a block if it is missing, in reach, and fits.
    fn take(
        &mut self,
        block: BlockNo,
        place: &Range<u64>,
        reach: u64,
        stored: &dyn Stored,
    ) -> Taken {
        let Some(other) = stored.place(block) else {
            return Taken::End;
        };
        let bytes = other.end.saturating_sub(other.start);
        let is_full = self.bytes.saturating_add(bytes) > self.window;
        if is_full || other.start.abs_diff(place.start) > reach || self.ahead.len() >= MOST_AHEAD {
            return Taken::End;
        }
        if self.ahead.contains_key(&block) || !stored.is_missing(block) {
            return Taken::No;
        }
        self.add(block, bytes, true);
        Taken::Yes
    }
}

/// Whether fetching a block ahead saves more time than it takes, if it will be requested with this probability. A request
/// saves one delay, and a block that nobody requests takes the time of its bytes.
fn is_worth(share: f64, size: u64, in_flight: Option<u64>) -> bool {
    let in_flight = in_flight.unwrap_or(size);
    share * (in_flight as f64 + size as f64) >= size as f64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Yes,
    /// It is there already.
    No,
    /// Nor will those behind it be taken.
    End,
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
