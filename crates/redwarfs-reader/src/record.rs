//! Records which ranges of files are read first, as hints for later mounts.
//!
//! Memory: at most [`MOST_RANGES`] ranges of about 60 bytes, and nothing unless somebody asks for it. Time: one short
//! lock per read, while it records.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_format::hints::{Hint, Hints};
use redwarfs_format::{EntryIndex, InodeNo, Result};

use crate::image::Image;

/// Most ranges that are recorded.
const MOST_RANGES: usize = 1 << 16;

/// Longest path of a recorded file: more is no path of the system.
const LONGEST_PATH: usize = 4096;

/// A read that continues a range belongs to it if it follows so soon. Otherwise the range would say that its end was
/// needed as early as its start.
const SOON: Duration = Duration::from_millis(100);

/// Ranges of files that were read, with the time of their first read.
#[derive(Debug)]
pub(crate) struct Recorder {
    limit: Duration,
    over: AtomicBool,
    found: Mutex<Ranges>,
}

#[derive(Debug, Default)]
struct Ranges {
    began: Option<Instant>,
    /// By inode and first byte. They do not overlap.
    list: BTreeMap<(u32, u64), Range>,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    end: u64,
    /// Time after the first read, of its first and last bytes.
    first: Duration,
    last: Duration,
    /// Number of ranges that are older.
    number: u32,
}

impl Recorder {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            over: AtomicBool::new(false),
            found: Mutex::default(),
        }
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a read.
    pub(crate) fn note(&self, inode: InodeNo, offset: u64, len: usize) {
        if self.over.load(Ordering::Relaxed) || len == 0 {
            return;
        }
        let now = Instant::now();
        let mut ranges = self.ranges();
        let after = now.saturating_duration_since(*ranges.began.get_or_insert(now));
        let end = offset.saturating_add(len as u64);
        if after > self.limit || !ranges.add(inode.0, offset, end, after) {
            self.over.store(true, Ordering::Relaxed);
        }
    }
}

impl Ranges {
    /// Adds the parts of a range that are new. False if there is no more room.
    fn add(&mut self, inode: u32, mut at: u64, end: u64, after: Duration) -> bool {
        while at < end {
            let next = self
                .list
                .range((inode, at.saturating_add(1))..=(inode, u64::MAX));
            let next = next.map(|((_, start), _)| *start).next().unwrap_or(end);
            let stop = next.min(end);
            let mut before = self.list.range_mut((inode, 0)..=(inode, at));
            match before.next_back() {
                Some((_, range)) if range.end > at => {
                    at = range.end;
                    continue;
                }
                Some((_, range)) if range.end == at && after.saturating_sub(range.last) <= SOON => {
                    range.end = stop;
                    range.last = after;
                }
                _ => {
                    if self.list.len() >= MOST_RANGES {
                        return false;
                    }
                    let range = Range {
                        end: stop,
                        first: after,
                        last: after,
                        number: self.list.len() as u32,
                    };
                    self.list.insert((inode, at), range);
                }
            }
            at = stop;
        }
        true
    }
}

/// What is recorded of an image, while this exists.
#[derive(Debug)]
pub struct Recording {
    image: Image,
    recorder: Arc<Recorder>,
}

impl Recording {
    /// Whether nothing was read so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recorder.ranges().list.is_empty()
    }

    /// The ranges that were read so far, in the order of their first read. Each file goes by its first path.
    ///
    /// Looks at all directories once.
    ///
    /// # Errors
    /// [`Error::Corrupt`](redwarfs_format::Error::Corrupt) if the metadata is wrong, and those of reading it.
    pub fn hints(&self) -> Result<Hints> {
        let mut ranges: Vec<(u32, u64, Range)> = {
            let ranges = self.recorder.ranges();
            let list = ranges.list.iter();
            list.map(|((inode, start), range)| (*inode, *start, *range))
                .collect()
        };
        ranges.sort_by_key(|(.., range)| range.number);
        let mut wanted: HashMap<u32, Option<(InodeNo, EntryIndex)>> =
            ranges.iter().map(|(inode, ..)| (*inode, None)).collect();
        let view = self.image.metadata();
        let mut missing = wanted.len();
        for dir in (0..view.counts().directories).map(InodeNo) {
            if missing == 0 {
                break;
            }
            for entry in view.entries(dir)?.map(EntryIndex) {
                if let Some(place) = wanted.get_mut(&view.entry_inode(entry)?.0)
                    && place.is_none()
                {
                    *place = Some((dir, entry));
                    missing -= 1;
                }
            }
        }
        let mut list = Vec::with_capacity(ranges.len());
        for (inode, offset, range) in ranges {
            let Some(Some((dir, entry))) = wanted.get(&inode) else {
                continue;
            };
            let path = view.path(*dir, *entry)?;
            // Requests are whole pages.
            let end = range.end.min(view.stat(InodeNo(inode))?.size);
            if path.len() > LONGEST_PATH || end <= offset {
                continue;
            }
            list.push(Hint {
                after: u32::try_from(range.first.as_millis()).unwrap_or(u32::MAX),
                offset,
                length: end - offset,
                path,
            });
        }
        Ok(Hints {
            generation: self.image.generation_id(),
            list,
        })
    }
}

impl Image {
    /// Records what is read from now on, by any handle to this image: at most 65,536 ranges, and for `time` after the
    /// first read. A second recording takes the place of the first one.
    #[must_use]
    pub fn record_reads(&self, time: Duration) -> Recording {
        let recorder = Arc::new(Recorder::new(time));
        let own = self.0.recorder.write();
        *own.unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&recorder));
        self.0.records.store(true, Ordering::Relaxed);
        Recording {
            image: self.clone(),
            recorder,
        }
    }

    /// Notes a read, if somebody records.
    #[inline]
    pub(crate) fn note_read(&self, inode: InodeNo, offset: u64, len: usize) {
        if self.0.records.load(Ordering::Relaxed) {
            let own = self.0.recorder.read();
            if let Some(recorder) = &*own.unwrap_or_else(PoisonError::into_inner) {
                recorder.note(inode, offset, len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(reads: &[(u32, u64, u64, u64)]) -> Vec<(u32, u64, u64, u64)> {
        let mut ranges = Ranges::default();
        for &(inode, start, end, after) in reads {
            assert!(ranges.add(inode, start, end, Duration::from_millis(after)));
        }
        let mut list: Vec<_> = ranges.list.iter().collect();
        list.sort_by_key(|(_, range)| range.number);
        let millis = |range: &Range| range.first.as_millis() as u64;
        list.iter()
            .map(|((inode, start), range)| (*inode, *start, range.end, millis(range)))
            .collect()
    }

    #[test]
    fn reads_become_ranges() {
        // What continues a range soon belongs to it.
        let reads = [
            (1, 0, 10, 0),
            (1, 10, 20, 50),
            (1, 5, 12, 99),
            (1, 20, 30, 500),
        ];
        assert_eq!(ranges(&reads), [(1, 0, 20, 0), (1, 20, 30, 500)]);
        // Only what is new counts.
        let reads = [
            (1, 10, 20, 0),
            (1, 40, 50, 1),
            (1, 0, 60, 900),
            (2, 15, 45, 950),
        ];
        let want = [
            (1, 10, 20, 0),
            (1, 40, 50, 1),
            (1, 0, 10, 900),
            (1, 20, 40, 900),
            (1, 50, 60, 900),
            (2, 15, 45, 950),
        ];
        assert_eq!(ranges(&reads), want);
        let most = u64::MAX;
        assert_eq!(ranges(&[(0, most - 5, most, 0)]), [(0, most - 5, most, 0)]);
    }

    #[test]
    fn memory_and_time_are_bounded() {
        let recorder = Recorder::new(Duration::from_secs(3600));
        for number in 0..MOST_RANGES as u32 + 10 {
            recorder.note(InodeNo(number), 0, 1);
        }
        assert_eq!(recorder.ranges().list.len(), MOST_RANGES);
        assert!(recorder.over.load(Ordering::Relaxed));
        let recorder = Recorder::new(Duration::ZERO);
        recorder.note(InodeNo(0), 0, 0);
        assert!(recorder.ranges().began.is_none());
        recorder.note(InodeNo(0), 0, 1);
        std::thread::sleep(Duration::from_millis(2));
        recorder.note(InodeNo(1), 0, 1);
        recorder.note(InodeNo(2), 0, 1);
        assert_eq!(recorder.ranges().list.len(), 1);
    }
}
