//! Recognizes files that are read from front to back.
//!
//! A mount only sees reads, not the process that makes them, and several requests of one process may
//! arrive in any order. So a stream is a place in a file near which the last reads ended. Several
//! threads decode the next blocks of a stream before they are requested.
//!
//! Memory: 40 bytes for each of [`STREAMS`] streams. Time: one short lock per read.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use redwarfs_format::InodeNo;

use crate::options::CacheOptions;

/// Streams that are followed at the same time.
const STREAMS: usize = 16;

/// Bytes that are read in sequence before the reads count as a stream (1 MiB). Smaller files do not
/// need it, and random reads do not get that far.
const BEGINS_AT: u64 = 1 << 20;

/// Largest distance between the ends of two consecutive reads of a stream (1 MiB), because the kernel
/// requests several pieces at once.
const NEAR: u64 = 1 << 20;

/// Blocks that are decoded ahead of a stream, from a file and from a server.
const BLOCKS: u64 = 2;
const REMOTE_BLOCKS: u64 = 4;

/// Smallest number of bytes that are decoded ahead, for small blocks (4 MiB from a file, 16 MiB from a server).
const LEAST: u64 = 4 << 20;
const REMOTE_LEAST: u64 = 16 << 20;

/// A stream ends after this many reads that do not belong to it.
const FORGOTTEN_AFTER: u64 = 64;

/// Bytes that may be decoded ahead of all streams, in blocks of `block_size`. In addition, there is
/// room for a block that is being read, and another one.
pub(super) fn limit(options: &CacheOptions, block_size: u64) -> u64 {
    if options.seq_detector == 0 {
        return 0;
    }
    // One byte less, because a block takes some more.
    let fitting = options.size.saturating_sub(1) / block_size.max(1);
    (fitting.saturating_sub(2) * block_size).min(options.size / 3)
}

/// Bytes that are decoded ahead of a stream.
pub(super) fn window(block_size: u64, remote: bool) -> u64 {
    let (blocks, least) = match remote {
        true => (REMOTE_BLOCKS, REMOTE_LEAST),
        false => (BLOCKS, LEAST),
    };
    blocks.saturating_mul(block_size).max(least)
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    inode: u32,
    /// Highest file offset at which a read of the stream ended.
    end: u64,
    /// Bytes that have been read.
    read: u64,
    /// Everything up to this file offset is planned to be decoded ahead.
    planned: u64,
    /// The number of the last read.
    used: u64,
}

impl Stream {
    fn is_active(&self, now: u64) -> bool {
        self.read >= BEGINS_AT && now - self.used < FORGOTTEN_AFTER
    }
}

#[derive(Debug, Default)]
struct StreamTable {
    streams: [Stream; STREAMS],
    /// Reads so far.
    reads: u64,
}

/// Streams of one image.
#[derive(Debug)]
pub(super) struct Streams {
    list: Mutex<StreamTable>,
    block_size: u64,
    /// Bytes that may be decoded ahead of all streams together; 0 is off.
    limit: u64,
    /// Bytes that are decoded ahead of one stream.
    window: u64,
}

impl Streams {
    /// At most `limit` bytes in blocks of `block_size` bytes are decoded ahead, `window` bytes of one stream.
    pub(super) fn new(block_size: u64, limit: u64, window: u64) -> Self {
        Self {
            list: Mutex::default(),
            block_size,
            limit,
            window,
        }
    }

    /// Notes a read. Returns the range of the file to decode ahead, if any. Report the planned part
    /// with [`Streams::planned`].
    pub(super) fn note(&self, inode: InodeNo, offset: u64, len: u64) -> Option<Range<u64>> {
        if self.limit < self.block_size {
            return None;
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.reads += 1;
        let now = list.reads;
        let end = offset.saturating_add(len);
        let found = list
            .streams
            .iter()
            .position(|s| s.used > 0 && s.inode == inode.0 && s.end.abs_diff(offset) <= NEAR);
        // Reads of small files do not replace the stream of a large one.
        let oldest = || {
            let age = |stream: &Stream| (stream.is_active(now), stream.used);
            (0..STREAMS).min_by_key(|&index| age(&list.streams[index]))
        };
        let index = found.or_else(oldest)?;
        if found.is_none() {
            list.streams[index] = Stream {
                inode: inode.0,
                end: offset,
                ..Stream::default()
            };
        }
        let stream = &mut list.streams[index];
        stream.used = now;
        // Reading the same place again is no progress.
        let progress = end.saturating_sub(stream.end);
        stream.end += progress;
        stream.read = stream.read.saturating_add(progress.min(len));
        if stream.read < BEGINS_AT {
            return None;
        }
        let active = list.streams.iter().filter(|s| s.is_active(now)).count() as u64;
        let stream = &mut list.streams[index];
        let window = self.window.min(self.limit / active.max(1));
        let from = stream.planned.max(stream.end);
        let to = stream.end.saturating_add(window);
        // Not a small part for each read, which would make many jobs.
        if window < self.block_size || to.saturating_sub(from) < window / 4 {
            return None;
        }
        stream.planned = to;
        Some(from..to)
    }

    /// Notes that the range that [`Streams::note`] returned is planned up to `to`.
    pub(super) fn planned(&self, inode: InodeNo, end: u64, to: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = list
            .streams
            .iter_mut()
            .find(|s| s.inode == inode.0 && s.planned == end);
        if let Some(stream) = stream {
            stream.planned = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FILE: InodeNo = InodeNo(7);

    /// Reads a range in pieces of 128 KiB; returns what is decoded ahead.
    fn read(streams: &Streams, inode: InodeNo, range: Range<u64>) -> Vec<Range<u64>> {
        range
            .step_by(128 << 10)
            .filter_map(|at| streams.note(inode, at, 128 << 10))
            .collect()
    }

    #[test]
    fn two_blocks_ahead() {
        let streams = Streams::new(16 * MIB, 256 * MIB, window(16 * MIB, false));
        assert_eq!(read(&streams, FILE, 0..MIB - (128 << 10)), []);
        let first = read(&streams, FILE, MIB - (128 << 10)..MIB);
        assert_eq!(first, vec![MIB..33 * MIB]);
        streams.planned(FILE, 33 * MIB, 48 * MIB);
        // The next time there is a quarter to do.
        assert_eq!(read(&streams, FILE, MIB..23 * MIB), []);
        let more = read(&streams, FILE, 23 * MIB..25 * MIB);
        assert_eq!(more, vec![48 * MIB..56 * MIB]);
    }

    #[test]
    fn small_blocks_give_several_mebibytes() {
        let streams = Streams::new(1 << 16, 256 * MIB, window(1 << 16, false));
        let ahead = read(&streams, FILE, 0..2 * MIB);
        assert_eq!(ahead, [MIB..5 * MIB, 5 * MIB..6 * MIB]);
    }

    #[test]
    fn requests_may_come_in_any_order() {
        let streams = Streams::new(MIB, 256 * MIB, window(MIB, false));
        let piece = 128 << 10;
        for number in [1, 0, 3, 2, 5, 6, 4, 7, 8, 9] {
            assert_eq!(streams.note(FILE, number * piece, piece), None);
        }
        let end = 11 * piece;
        assert_eq!(
            streams.note(FILE, 10 * piece, piece),
            Some(end..end + 4 * MIB)
        );
    }

    #[test]
    fn reads_at_random_are_no_stream() {
        let streams = Streams::new(MIB, 256 * MIB, window(MIB, false));
        for number in 0..1000 {
            let at = (number * 7919 % 1009) * 3 * MIB;
            assert_eq!(streams.note(FILE, at, 128 << 10), None, "{number}");
        }
        for _ in 0..100 {
            assert_eq!(read(&streams, FILE, 5 * MIB..6 * MIB - (128 << 10)), []);
        }
        // Nor are pieces of other files.
        for number in 0..1000u32 {
            let inode = InodeNo(number);
            assert_eq!(streams.note(inode, 0, 128 << 10), None, "{number}");
        }
    }

    #[test]
    fn many_readers_share_what_fits() {
        let streams = Streams::new(4 * MIB, 32 * MIB, window(4 * MIB, false));
        let mut lengths = [0; STREAMS];
        for at in (0..MIB).step_by(128 << 10) {
            for (number, length) in (0..).zip(&mut lengths) {
                if let Some(range) = streams.note(InodeNo(number), at, 128 << 10) {
                    *length = range.end - range.start;
                }
            }
        }
        // The ninth would have less than a block.
        let share = |n: u64| {
            if n > 8 {
                0
            } else {
                (32 * MIB / n).min(8 * MIB)
            }
        };
        let expected: Vec<u64> = (1..=STREAMS as u64).map(share).collect();
        assert_eq!(lengths[..], expected);
        // The other streams have ended, so this one gets its share.
        let ahead = read(&streams, InodeNo(15), MIB..100 * MIB);
        assert!(!ahead.is_empty());
    }

    #[test]
    fn small_files_do_not_push_out_a_stream() {
        let streams = Streams::new(MIB, 256 * MIB, window(MIB, false));
        assert_eq!(read(&streams, FILE, 0..MIB), vec![MIB..5 * MIB]);
        for number in 100..140 {
            assert_eq!(streams.note(InodeNo(number), 0, 4096), None);
        }
        assert_eq!(read(&streams, FILE, MIB..2 * MIB), vec![5 * MIB..6 * MIB]);
    }

    #[test]
    fn nothing_without_room() {
        for limit in [0, MIB - 1] {
            let streams = Streams::new(MIB, limit, window(MIB, false));
            assert_eq!(read(&streams, FILE, 0..50 * MIB), []);
        }
        // Files may end where numbers do.
        let streams = Streams::new(MIB, 256 * MIB, window(MIB, false));
        let last = u64::MAX - 2 * MIB;
        assert_eq!(streams.note(FILE, last, MIB), Some(last + MIB..u64::MAX));
        assert_eq!(streams.note(FILE, u64::MAX - MIB / 2, MIB), None);
    }
}
