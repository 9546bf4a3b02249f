//! A file with changes that are not in it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redwarfs_format::recovery::{EntryHead, PatchHeader};
use redwarfs_io::{Medium, Source};

/// A file as it is with the entries of a patch. Written bytes become new entries.
pub(crate) struct Overlay<'a> {
    file: &'a dyn Source,
    /// The patch.
    store: &'a dyn Source,
    /// The same, for new entries.
    out: Option<&'a dyn Medium>,
    state: Mutex<PatchChanges>,
}

struct PatchChanges {
    /// What is changed, by the start of each range. No two overlap: a later change takes its place from earlier ones, so
    /// that a read costs no more than what it reads, whatever a patch is made of.
    changes: BTreeMap<u64, Change>,
    count: u64,
    /// Length of the file with the changes.
    len: u64,
    /// Where the next entry begins in the patch.
    end: u64,
}

#[derive(Clone, Copy)]
struct Change {
    /// Where its range ends in the file.
    end: u64,
    /// Where its bytes are in the patch.
    at: u64,
}

impl Change {
    /// What is left of one that begins at `start`, from `from` on.
    fn rest(self, start: u64, from: u64) -> Self {
        Self {
            at: self.at + (from - start),
            ..self
        }
    }
}

impl PatchChanges {
    fn put(&mut self, position: u64, change: Change) {
        let end = change.end;
        let before = self.changes.range(..position).next_back();
        let before = before.map(|(start, old)| (*start, *old));
        if let Some((start, old)) = before.filter(|(_, old)| old.end > position) {
            let front = Change {
                end: position,
                ..old
            };
            self.changes.insert(start, front);
            if old.end > end {
                self.changes.insert(end, old.rest(start, end));
            }
        }
        while let Some((&start, &old)) = self.changes.range(position..end).next() {
            self.changes.remove(&start);
            if old.end > end {
                self.changes.insert(end, old.rest(start, end));
            }
        }
        self.changes.insert(position, change);
    }
}

impl fmt::Debug for Overlay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("file", &self.file)
            .field("changes", &self.state().count)
            .finish_non_exhaustive()
    }
}

impl<'a> Overlay<'a> {
    /// Of a new patch.
    pub(crate) fn new(file: &'a dyn Source, out: &'a dyn Medium) -> io::Result<Self> {
        Self::with(file, out, Some(out))
    }

    /// Of a patch that is there.
    pub(crate) fn of(file: &'a dyn Source, store: &'a dyn Source) -> io::Result<Self> {
        Self::with(file, store, None)
    }

    fn with(
        file: &'a dyn Source,
        store: &'a dyn Source,
        out: Option<&'a dyn Medium>,
    ) -> io::Result<Self> {
        let state = PatchChanges {
            changes: BTreeMap::new(),
            count: 0,
            len: file.len()?,
            end: PatchHeader::LEN as u64,
        };
        Ok(Self {
            file,
            store,
            out,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, PatchChanges> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry whose bytes follow its head, which is the next one in the patch.
    pub(crate) fn add(&self, head: EntryHead) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::FileTooLarge);
        let EntryHead { position, length } = head;
        let end = position.checked_add(length).ok_or_else(wrong)?;
        let mut state = self.state();
        let at = state.end + EntryHead::LEN as u64;
        state.end = at.checked_add(length).ok_or_else(wrong)?;
        state.count += 1;
        state.len = state.len.max(end);
        if length > 0 {
            state.put(position, Change { end, at });
        }
        Ok(())
    }

    /// Entries, and the length of the patch.
    pub(crate) fn size(&self) -> (u64, u64) {
        let state = self.state();
        (state.count, state.end)
    }

    /// The changes of a range that is not empty, by their starts.
    fn changes(&self, offset: u64, end: u64) -> Vec<(u64, Change)> {
        let state = self.state();
        let before = state.changes.range(..offset).next_back();
        let before = before.filter(|(_, change)| change.end > offset);
        let within = state.changes.range(offset..end);
        let all = before.into_iter().chain(within);
        all.map(|(start, change)| (*start, *change)).collect()
    }

    /// What the file itself has in a range. Behind its end is nothing yet.
    fn base(&self, len: u64, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, behind) = buf.split_at_mut(there.min(buf.len()));
        if !there.is_empty() {
            self.file.read_exact_at(offset, there)?;
        }
        behind.fill(0);
        Ok(())
    }
}

impl Source for Overlay<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let end = end.filter(|end| *end <= self.state().len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let len = self.file.len()?;
        let mut rest = buf;
        let mut at = offset;
        for (start, change) in self.changes(offset, end) {
            let (from, to) = (start.max(offset), change.end.min(end));
            let gap = rest.split_off_mut(..(from - at) as usize);
            self.base(len, at, gap.unwrap_or_default())?;
            let part = rest.split_off_mut(..(to - from) as usize);
            let place = change.rest(start, from).at;
            self.store.read_exact_at(place, part.unwrap_or_default())?;
            at = to;
        }
        self.base(len, at, rest)
    }
}

impl Medium for Overlay<'_> {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let head = EntryHead {
            position: offset,
            length: bytes.len() as u64,
        };
        let out = self.out.ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let (_, end) = self.size();
        out.write_all_at(end, &head.encode())?;
        out.write_all_at(end + EntryHead::LEN as u64, bytes)?;
        self.add(head)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.out.map_or(Ok(()), Medium::sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redwarfs_io::{LockedFile, MemorySource};

    #[test]
    fn later_changes_count_and_the_file_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("patch");
        std::fs::write(&path, b"").unwrap();
        let out = LockedFile::open(&path).unwrap();
        let file = MemorySource::new(b"0123456789".to_vec());
        let overlay = Overlay::new(&file, &out).unwrap();
        let mut expected = b"0123456789".to_vec();
        for (at, bytes) in [
            (2, &b"abc"[..]),
            (4, b"XY"),
            (0, b"-"),
            (12, b"zz"),
            (3, b"q"),
        ] {
            overlay.write_all_at(at, bytes).unwrap();
            let at = at as usize;
            expected.resize(expected.len().max(at + bytes.len()), 0);
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(overlay.len().unwrap(), 14);
        for start in 0..14 {
            for end in start..=14 {
                let mut found = vec![9; end - start];
                overlay.read_exact_at(start as u64, &mut found).unwrap();
                assert_eq!(found, expected[start..end], "{start} {end}");
            }
        }
        assert!(overlay.read_exact_at(10, &mut [0; 5]).is_err());
        assert_eq!(overlay.size().0, 5);
    }

    #[test]
    fn changes_of_one_place_do_not_pile_up() {
        let patch = MemorySource::new(vec![7; 1 << 20]);
        let file = MemorySource::new(vec![0; 100]);
        let overlay = Overlay::of(&file, &patch).unwrap();
        for length in [100, 1, 1, 1, 50, 1] {
            let head = EntryHead {
                position: 20,
                length,
            };
            overlay.add(head).unwrap();
        }
        let ranges: Vec<_> = overlay.changes(0, 120).into_iter().collect();
        let ranges: Vec<_> = ranges.iter().map(|(at, to)| (*at, to.end)).collect();
        assert_eq!(ranges, [(20, 21), (21, 70), (70, 120)]);
    }
}
