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
    state: Mutex<State>,
}

struct State {
    /// Changes by their start, in the order in which they were made.
    changes: BTreeMap<u64, Vec<Change>>,
    /// Length of the longest one.
    longest: u64,
    count: u64,
    /// Length of the file with the changes.
    len: u64,
    /// Where the next entry begins in the patch.
    end: u64,
}

#[derive(Clone, Copy)]
struct Change {
    number: u64,
    position: u64,
    length: u64,
    /// Where its bytes are in the patch.
    at: u64,
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
        let state = State {
            changes: BTreeMap::new(),
            longest: 0,
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry whose bytes follow its head, which is the next one in the patch.
    pub(crate) fn add(&self, head: EntryHead) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::FileTooLarge);
        let EntryHead { position, length } = head;
        let end = position.checked_add(length).ok_or_else(wrong)?;
        let mut state = self.state();
        let change = Change {
            number: state.count,
            position,
            length,
            at: state.end + EntryHead::LEN as u64,
        };
        state.end = change.at.checked_add(length).ok_or_else(wrong)?;
        state.count += 1;
        state.longest = state.longest.max(length);
        state.len = state.len.max(end);
        state.changes.entry(position).or_default().push(change);
        Ok(())
    }

    /// Entries, and the length of the patch.
    pub(crate) fn size(&self) -> (u64, u64) {
        let state = self.state();
        (state.count, state.end)
    }

    /// The changes of a range, in the order in which they were made.
    fn changes(&self, offset: u64, end: u64) -> Vec<Change> {
        let state = self.state();
        let from = offset.saturating_sub(state.longest);
        let near = state.changes.range(from..end).flat_map(|(_, made)| made);
        let mut changes: Vec<Change> = near
            .filter(|change| change.position + change.length > offset)
            .copied()
            .collect();
        changes.sort_unstable_by_key(|change| change.number);
        changes
    }

    /// What the file itself has in a range, where no change covers it.
    fn base(&self, offset: u64, buf: &mut [u8], changes: &[Change]) -> io::Result<()> {
        let len = self.file.len()?;
        let end = offset + buf.len() as u64;
        let mut ranges: Vec<(u64, u64)> = changes
            .iter()
            .map(|change| (change.position, change.position + change.length))
            .collect();
        ranges.sort_unstable();
        let mut at = offset;
        for (start, stop) in ranges.into_iter().chain([(end, end)]) {
            if start > at {
                let gap = buf.get_mut((at - offset) as usize..(start.min(end) - offset) as usize);
                let gap = gap.unwrap_or_default();
                // Behind the end of the file is nothing yet.
                let there = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
                let (there, behind) = gap.split_at_mut(there.min(gap.len()));
                if !there.is_empty() {
                    self.file.read_exact_at(at, there)?;
                }
                behind.fill(0);
            }
            at = at.max(stop);
        }
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
        let changes = self.changes(offset, end);
        self.base(offset, buf, &changes)?;
        for change in changes {
            let from = change.position.max(offset);
            let to = (change.position + change.length).min(end);
            let out = buf.get_mut((from - offset) as usize..(to - offset) as usize);
            self.store.read_exact_at(
                change.at + (from - change.position),
                out.unwrap_or_default(),
            )?;
        }
        Ok(())
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
}
