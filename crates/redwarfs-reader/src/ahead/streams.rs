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
use redwarfs_io::Line;

use crate::options::CacheOptions;

/// Streams that are followed at the same time.
const STREAMS: usize = 16;

/// Bytes that are read in sequence before the reads count as a stream (1 MiB). Smaller files do not
/// need it, and random reads do not get that far.
const BEGINS_AT: u64 = 1 << 20;

/// The same from a server (512 KiB). There, the window is at most so many times what was read. So the first request for more
/// follows the first block of the usual size at once, on its connection, which has got up to speed with it.
const REMOTE_BEGINS_AT: u64 = 1 << 19;
const GROWTH: u64 = 16;

/// Largest distance between the ends of two consecutive reads of a stream (1 MiB), because the kernel
/// requests several pieces at once.
const NEAR: u64 = 1 << 20;

/// Blocks that are decoded ahead of a stream: usually, and from a server whose line was not measured yet.
const BLOCKS: u64 = 2;
const REMOTE_BLOCKS: u64 = 4;

/// Smallest number of bytes that are decoded ahead, for small blocks (4 MiB, and 16 MiB from such a server).
const LEAST: u64 = 4 << 20;
const REMOTE_LEAST: u64 = 16 << 20;

/// The smallest number of bytes from a server is at most what arrives in so many seconds.
const SECONDS: u64 = 4;

/// Most stored bytes that are on their way for all streams of an image, so that there is room for others in the 64 MiB that a
/// source keeps (48 MiB). Two blocks may have more.
const MOST_FETCHED: u64 = 48 << 20;

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

/// How far ahead of a stream blocks are decoded.
#[derive(Debug)]
pub(super) struct Window {
    block_size: u64,
    remote: bool,
    /// Bytes of blocks for each byte that is stored.
    expansion: f64,
}

/// Blocks that compress better count as if they did not.
const MOST_EXPANSION: f64 = 16.0;

impl Window {
    pub(super) fn new(block_size: u64, remote: bool, expansion: f64) -> Self {
        Self {
            block_size,
            remote,
            expansion: expansion.clamp(1.0, MOST_EXPANSION),
        }
    }

    /// Most bytes for all streams, which the way to a server bounds.
    pub(super) fn most(&self) -> u64 {
        if !self.remote {
            return u64::MAX;
        }
        let raw = (MOST_FETCHED as f64 * self.expansion) as u64;
        raw.max(self.block_size.saturating_mul(BLOCKS))
    }

    /// Bytes that are decoded ahead. `line` is that to a server, as it was measured.
    ///
    /// Four times the bytes that keep the line busy are fetched: the window moves in steps, connections need some time to get
    /// up to speed, and a line is only measured as far as it is used. Unless a line is slow, they are not less than before it
    /// was measured.
    pub(super) fn bytes(&self, line: Option<Line>) -> u64 {
        let usual = |blocks: u64, least| blocks.saturating_mul(self.block_size).max(least);
        let Some(line) = line.filter(|_| self.remote) else {
            return match self.remote {
                true => usual(REMOTE_BLOCKS, REMOTE_LEAST),
                false => usual(BLOCKS, LEAST),
            };
        };
        // Larger numbers become the largest one. The block that is being decoded comes on top.
        let raw = (fetched(Some(line)) as f64 * self.expansion) as u64;
        usual(BLOCKS, LEAST).max(raw.saturating_add(self.block_size))
    }
}

/// Stored bytes that are fetched ahead from a server.
pub(super) fn fetched(line: Option<Line>) -> u64 {
    let Some(line) = line else {
        return REMOTE_LEAST;
    };
    let least = line.rate.saturating_mul(SECONDS).min(REMOTE_LEAST);
    line.in_flight().saturating_mul(4).max(least)
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
    /// Everything up to this file offset was asked for, from a server.
    fetched: u64,
    /// The number of the last read.
    used: u64,
}

impl Stream {
    fn is_active(&self, now: u64, begins_at: u64) -> bool {
        self.read >= begins_at && now - self.used < FORGOTTEN_AFTER
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
    /// Whether a server has the blocks.
    remote: bool,
}

/// What to do ahead of a stream: ranges of its file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToDo {
    /// To be asked for, from a server. Three quarters of the window or more, so that a few long requests have it. Seldom two
    /// of them run at the same time: a connection takes some round trips to get up to speed, and more beside another one.
    pub(super) fetch: Option<Range<u64>>,
    /// To be decoded. From a server, only what was asked for before or is now.
    pub(super) decode: Option<Range<u64>>,
}

impl Streams {
    /// At most `limit` bytes in blocks of `block_size` bytes are decoded ahead.
    pub(super) fn new(block_size: u64, limit: u64, remote: bool) -> Self {
        Self {
            list: Mutex::default(),
            block_size,
            limit,
            remote,
        }
    }

    /// Notes a read. Returns what to do ahead, up to `window` bytes. Report the part that is planned to be decoded
    /// with [`Streams::planned`], and the part that is asked for with [`Streams::fetched`].
    pub(super) fn note(&self, inode: InodeNo, offset: u64, len: u64, window: u64) -> ToDo {
        let mut to_do = ToDo::default();
        if self.limit < self.block_size {
            return to_do;
        }
        let begins_at = match self.remote {
            true => REMOTE_BEGINS_AT,
            false => BEGINS_AT,
        };
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
            let age = |stream: &Stream| (stream.is_active(now, begins_at), stream.used);
            (0..STREAMS).min_by_key(|&index| age(&list.streams[index]))
        };
        let Some(index) = found.or_else(oldest) else {
            return to_do;
        };
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
        if stream.read < begins_at {
            return to_do;
        }
        let is_active = |stream: &&Stream| stream.is_active(now, begins_at);
        let active = list.streams.iter().filter(is_active).count() as u64;
        let stream = &mut list.streams[index];
        let mut window = window.min(self.limit / active.max(1));
        if window < self.block_size {
            return to_do;
        }
        let mut to = stream.end.saturating_add(window);
        if self.remote {
            window = window.min(stream.read.saturating_mul(GROWTH));
            let until = stream.end.saturating_add(window);
            let from = stream.fetched.max(stream.end);
            if until.saturating_sub(from) >= window / 4 * 3 {
                stream.fetched = until;
                to_do.fetch = Some(from..until);
            }
            to = to.min(stream.fetched);
        }
        let from = stream.planned.max(stream.end);
        // Not a small part for each read, which would make many jobs.
        if to.saturating_sub(from) >= window / 4 {
            stream.planned = to;
            to_do.decode = Some(from..to);
        }
        to_do
    }

    /// Notes that the range that [`Streams::note`] returned is asked for up to `to`: the rest is tried again later.
    pub(super) fn fetched(&self, inode: InodeNo, end: u64, to: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = list
            .streams
            .iter_mut()
            .find(|s| s.inode == inode.0 && s.fetched == end);
        if let Some(stream) = stream {
            stream.fetched = to;
        }
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

    /// Notes a read of a file of this machine.
    fn note(streams: &Streams, inode: InodeNo, offset: u64, len: u64) -> Option<Range<u64>> {
        let window = Window::new(streams.block_size, false, 1.0).bytes(None);
        let to_do = streams.note(inode, offset, len, window);
        assert_eq!(to_do.fetch, None);
        to_do.decode
    }

    /// Reads a range in pieces of 128 KiB; returns what is decoded ahead.
    fn read(streams: &Streams, inode: InodeNo, range: Range<u64>) -> Vec<Range<u64>> {
        range
            .step_by(128 << 10)
            .filter_map(|at| note(streams, inode, at, 128 << 10))
            .collect()
    }

    #[test]
    fn the_window_follows_the_line() {
        let line = |rate, delay| {
            let delay = std::time::Duration::from_millis(delay);
            Some(Line { rate, delay })
        };
        for (block, remote, expansion, line, want) in [
            (MIB, false, 3.0, None, 4 * MIB),
            (16 * MIB, false, 3.0, line(1 << 40, 100), 32 * MIB),
            (MIB, true, 1.0, None, 16 * MIB),
            (16 * MIB, true, 1.0, None, 64 * MIB),
            // Slow, usual, fast, and far away.
            (MIB, true, 1.0, line(0, 100), 4 * MIB),
            (MIB, true, 1.0, line(2 * MIB, 100), 9 * MIB),
            (MIB, true, 1.0, line(100 * MIB, 1), 17 * MIB),
            (MIB, true, 1.0, line(100 * MIB, 100), 41 * MIB),
            (MIB, true, 2.5, line(100 * MIB, 100), 101 * MIB),
            (MIB, true, 1000.0, line(MIB, 1), 65 * MIB),
            (16 * MIB, true, 1.0, line(MIB, 100), 32 * MIB),
            (MIB, true, 4.0, line(u64::MAX, 100_000), u64::MAX),
        ] {
            let window = Window::new(block, remote, expansion);
            assert_eq!(window.bytes(line), want, "{block} {line:?}");
        }
        let streams = Streams::new(MIB, 256 * MIB, false);
        let read = |at, window| streams.note(FILE, at, MIB, window).decode;
        assert_eq!(read(0, 4 * MIB), Some(MIB..5 * MIB));
        assert_eq!(read(MIB, 40 * MIB), Some(5 * MIB..42 * MIB));
        assert_eq!(read(2 * MIB, 4 * MIB), None);
    }

    #[test]
    fn few_long_requests_are_made_of_a_stream_from_a_server() {
        let streams = Streams::new(MIB, 256 * MIB, true);
        let window = 16 * MIB;
        let mut asked = Vec::new();
        for at in (0..64 * MIB).step_by(128 << 10) {
            let ToDo { fetch, decode } = streams.note(FILE, at, 128 << 10, window);
            let end = at + (128 << 10);
            // A block of the usual size is there at once, and what comes next is not.
            assert_eq!(
                fetch.is_some(),
                at == MIB / 2 - (128 << 10) || {
                    let last = asked.last().map_or(u64::MAX, |last: &Range<u64>| last.end);
                    (end + window).saturating_sub(last.max(end)) >= window / 4 * 3 && end >= MIB
                },
                "{at}"
            );
            asked.extend(fetch);
            let last = asked.last().map_or(0, |last| last.end);
            if let Some(decode) = decode {
                assert!(decode.end <= last, "{decode:?}");
                // The threads are too busy.
                streams.planned(FILE, decode.end, decode.start + MIB);
            }
            // The line is never idle.
            assert!(
                end < MIB / 2 || last - end >= window / 4 - MIB,
                "{at}: {last}"
            );
        }
        assert_eq!(asked[0], MIB / 2..MIB / 2 + 8 * MIB);
        assert!(
            asked.windows(2).all(|pair| pair[0].end == pair[1].start),
            "{asked:?}"
        );
        assert!(asked.len() <= 7, "{asked:?}");
        // Nothing before it counts as a stream, and nothing in vain behind a short one.
        let ahead = streams.note(InodeNo(9), 0, 256 << 10, window);
        assert_eq!(ahead, ToDo::default());
    }

    #[test]
    fn what_was_refused_is_asked_for_later() {
        let streams = Streams::new(MIB, 256 * MIB, true);
        let window = 16 * MIB;
        let mut asked = Vec::new();
        for at in (0..32 * MIB).step_by(128 << 10) {
            if let Some(fetch) = streams.note(FILE, at, 128 << 10, window).fetch {
                // Not more than 9 MiB ahead.
                let to = fetch.end.min((at + 9 * MIB).max(fetch.start));
                streams.fetched(FILE, fetch.end, to);
                asked.push(fetch.start..to);
            }
        }
        assert!(
            asked.windows(2).all(|pair| pair[0].end == pair[1].start),
            "{asked:?}"
        );
        assert!(
            asked.len() <= 10 && asked.last().unwrap().end >= 32 * MIB,
            "{asked:?}"
        );
    }

    #[test]
    fn all_streams_together_fit_into_what_is_kept() {
        let kept = |block, expansion| Window::new(block, true, expansion).most();
        assert_eq!(kept(MIB, 1.0), MOST_FETCHED);
        assert_eq!(kept(MIB, 2.0), 2 * MOST_FETCHED);
        assert_eq!(kept(64 * MIB, 1.0), 128 * MIB);
        assert_eq!(Window::new(MIB, false, 1.0).most(), u64::MAX);
    }

    #[test]
    fn two_blocks_ahead() {
        let streams = Streams::new(16 * MIB, 256 * MIB, false);
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
        let streams = Streams::new(1 << 16, 256 * MIB, false);
        let ahead = read(&streams, FILE, 0..2 * MIB);
        assert_eq!(ahead, [MIB..5 * MIB, 5 * MIB..6 * MIB]);
    }

    #[test]
    fn requests_may_come_in_any_order() {
        let streams = Streams::new(MIB, 256 * MIB, false);
        let piece = 128 << 10;
        for number in [1, 0, 3, 2, 5, 6, 4, 7, 8, 9] {
            assert_eq!(note(&streams, FILE, number * piece, piece), None);
        }
        let end = 11 * piece;
        assert_eq!(
            note(&streams, FILE, 10 * piece, piece),
            Some(end..end + 4 * MIB)
        );
    }

    #[test]
    fn reads_at_random_are_no_stream() {
        let streams = Streams::new(MIB, 256 * MIB, false);
        for number in 0..1000 {
            let at = (number * 7919 % 1009) * 3 * MIB;
            assert_eq!(note(&streams, FILE, at, 128 << 10), None, "{number}");
        }
        for _ in 0..100 {
            assert_eq!(read(&streams, FILE, 5 * MIB..6 * MIB - (128 << 10)), []);
        }
        // Nor are pieces of other files.
        for number in 0..1000u32 {
            let inode = InodeNo(number);
            assert_eq!(note(&streams, inode, 0, 128 << 10), None, "{number}");
        }
    }

    #[test]
    fn many_readers_share_what_fits() {
        let streams = Streams::new(4 * MIB, 32 * MIB, false);
        let mut lengths = [0; STREAMS];
        for at in (0..MIB).step_by(128 << 10) {
            for (number, length) in (0..).zip(&mut lengths) {
                if let Some(range) = note(&streams, InodeNo(number), at, 128 << 10) {
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
        let streams = Streams::new(MIB, 256 * MIB, false);
        assert_eq!(read(&streams, FILE, 0..MIB), vec![MIB..5 * MIB]);
        for number in 100..140 {
            assert_eq!(note(&streams, InodeNo(number), 0, 4096), None);
        }
        assert_eq!(read(&streams, FILE, MIB..2 * MIB), vec![5 * MIB..6 * MIB]);
    }

    #[test]
    fn nothing_without_room() {
        for limit in [0, MIB - 1] {
            let streams = Streams::new(MIB, limit, false);
            assert_eq!(read(&streams, FILE, 0..50 * MIB), []);
        }
        // Files may end where numbers do.
        let streams = Streams::new(MIB, 256 * MIB, false);
        let last = u64::MAX - 2 * MIB;
        assert_eq!(note(&streams, FILE, last, MIB), Some(last + MIB..u64::MAX));
        assert_eq!(note(&streams, FILE, u64::MAX - MIB / 2, MIB), None);
    }
}
