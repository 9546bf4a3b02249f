//! Decides when to decode the rest of a block after a request.

use redwarfs_format::BlockNo;

use super::need::{Need, Urgency};
use crate::options::CacheOptions;

/// Number of jumps into a block after which its rest is decoded. A jump is a request that begins far
/// beyond everything that is decoded or requested of the block.
///
/// If jumps go to random places, each halves the rest. So a quarter of the block is decoded without use
/// if the block is not read again. If many processes read it, they find the block decoded, and do not
/// wait for each other. If the cache has room for the whole image, one jump is enough, because no block
/// must be decoded twice. A thread of the pool decodes the rest, unless it would delay requests. If
/// other threads wait to decode when a thread begins a block, this thread decodes it to its end,
/// because switching between blocks would take more CPU time.
const JUMPS: u32 = 2;

/// A request is far beyond if its distance is more than this part of the block.
const FAR: u64 = 16;

/// Longest rest that is decoded because of jumps (16 MiB).
const EAGER: u64 = 16 << 20;

/// The rule for one image.
#[derive(Debug)]
pub(crate) struct RestRule {
    /// Decoded share of a block from which its rest is decoded.
    partial_ratio: f64,
    /// Number of jumps that is enough; `None` if jumps do not count.
    jumps: Option<u32>,
}

impl RestRule {
    /// `room_ahead`: whether two blocks fit into the cache. `room_for_all`: whether all do.
    pub(crate) fn new(options: &CacheOptions, room_ahead: bool, room_for_all: bool) -> Self {
        let partial_ratio = if options.partial_ratio.is_nan() {
            1.0
        } else {
            options.partial_ratio
        };
        let jumps = if room_for_all { 1 } else { JUMPS };
        Self {
            partial_ratio,
            jumps: (partial_ratio < 1.0 && room_ahead).then_some(jumps),
        }
    }

    /// Decoded bytes of a block from which on the rest is decoded, too.
    pub(crate) fn wanted_share(&self, raw_size: u64) -> u64 {
        // It need not be exact, because it only chooses between two ways to the same result.
        (raw_size as f64 * self.partial_ratio).ceil() as u64
    }

    /// Distance from which on a request is a jump.
    pub(crate) fn far(raw_size: u64) -> u64 {
        raw_size / FAR
    }

    /// Whether `jumps` into a block are enough for decoding its `rest`.
    pub(crate) fn is_read_at_random(&self, jumps: u32, rest: u64) -> bool {
        rest <= EAGER && self.jumps.is_some_and(|enough| jumps >= enough)
    }

    /// The need for the rest of a block of `raw_size` bytes, of which `available` are decoded.
    /// `is_idle`: whether a thread of the pool can decode it without delaying a request.
    pub(crate) fn rest(
        &self,
        block: BlockNo,
        raw_size: u64,
        available: u64,
        jumps: u32,
        is_idle: impl FnOnce() -> bool,
    ) -> Option<Need> {
        let rest = raw_size.checked_sub(available).filter(|&rest| rest > 0)?;
        let urgency = if available >= self.wanted_share(raw_size) {
            Urgency::Ahead
        } else if self.is_read_at_random(jumps, rest) && is_idle() {
            Urgency::Speculative
        } else {
            return None;
        };
        Some(Need {
            block,
            end: raw_size,
            urgency,
        })
    }
}
