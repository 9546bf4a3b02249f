//! Tables that wait in a temporary file, for when memory is short.
//!
//! Who has tables of records of a fixed size keeps them as [`Records`]. [`Spill`] writes some of them to a file without a name,
//! one after the other, and [`Spilled::in_file`] takes the place of each. Reads of single records go through a small cache of
//! pages. A file system that keeps files in memory is no place for such a file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{FileSource, Source as _, is_in_memory, temporary_file};

/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;
/// Bytes that are read at a time for a single record.
const PAGE: usize = 4 << 10;
/// Pages of a file that stay in memory, at most, and one part in this number of them.
const PAGES: usize = 1 << 11;
const KEPT: u64 = 64;
/// Bytes of the largest record that is read without an allocation.
const RECORD: usize = 64;

/// What a table consists of.
pub trait Record: Copy {
    /// Its bytes in a file.
    const SIZE: usize;

    /// Appends them.
    fn write(&self, out: &mut Vec<u8>);

    /// The record of these bytes.
    fn read(bytes: &[u8]) -> Self;
}

impl Record for u8 {
    const SIZE: usize = 1;

    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn read(bytes: &[u8]) -> Self {
        bytes.first().copied().unwrap_or(0)
    }
}

impl Record for u32 {
    const SIZE: usize = 4;

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn read(mut bytes: &[u8]) -> Self {
        Self::from_le_bytes(number(&mut bytes))
    }
}

/// The number in the next bytes of a record.
pub fn number<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    match bytes.split_first_chunk::<N>() {
        Some((number, rest)) => {
            *bytes = rest;
            *number
        }
        None => [0; N],
    }
}

/// A table.
#[derive(Debug)]
pub enum Records<T> {
    /// In memory.
    Memory(Vec<T>),
    /// In a file.
    File {
        /// The file.
        file: Arc<SpillFile>,
        /// Where the table begins.
        start: u64,
        /// Number of records.
        count: usize,
    },
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self::Memory(Vec::new())
    }
}

impl<T: Record> Records<T> {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(list) => list.len(),
            Self::File { count, .. } => *count,
        }
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        match self {
            Self::Memory(list) => list.capacity() * size_of::<T>(),
            Self::File { .. } => 0,
        }
    }

    /// Adds a record. A table in a file cannot have more; this is then the [`failure`](SpillFile::failure) of the file.
    pub fn push(&mut self, record: T) {
        match self {
            Self::Memory(list) => list.push(record),
            Self::File { file, .. } => file.refuse_change(),
        }
    }

    /// Replaces a record, if there is one; in a file as [`push`](Self::push).
    pub fn set(&mut self, at: u32, record: T) {
        match self {
            Self::Memory(list) => {
                if let Some(place) = list.get_mut(at as usize) {
                    *place = record;
                }
            }
            Self::File { file, .. } => file.refuse_change(),
        }
    }

    /// Some records; fewer if there are not so many.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn range(&self, range: Range<usize>) -> io::Result<Cow<'_, [T]>>
    where
        [T]: ToOwned<Owned = Vec<T>>,
    {
        let end = range.end.min(self.len());
        let range = range.start.min(end)..end;
        match self {
            Self::Memory(list) => Ok(Cow::Borrowed(list.get(range).unwrap_or_default())),
            Self::File { file, start, .. } => {
                let mut bytes = vec![0; range.len() * T::SIZE];
                file.read(start + (range.start * T::SIZE) as u64, &mut bytes)?;
                Ok(Cow::Owned(
                    bytes.chunks_exact(T::SIZE).map(T::read).collect(),
                ))
            }
        }
    }

    /// A record, if there is one.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn get(&self, at: usize) -> io::Result<Option<T>> {
        let (file, start) = match self {
            Self::Memory(list) => return Ok(list.get(at).copied()),
            Self::File { count, .. } if at >= *count => return Ok(None),
            Self::File { file, start, .. } => (file, start),
        };
        let offset = start + (at * T::SIZE) as u64;
        let mut small = [0; RECORD];
        if let Some(bytes) = small.get_mut(..T::SIZE) {
            file.read(offset, bytes)?;
            return Ok(Some(T::read(bytes)));
        }
        let mut bytes = vec![0; T::SIZE];
        file.read(offset, &mut bytes)?;
        Ok(Some(T::read(&bytes)))
    }

    /// A record; the default one if there is none, or if the file cannot be read, which its
    /// [`failure`](SpillFile::failure) tells.
    #[must_use]
    pub fn at(&self, at: u32) -> T
    where
        T: Default,
    {
        match self {
            Self::Memory(list) => list.get(at as usize).copied(),
            Self::File { .. } => self.get(at as usize).ok().flatten(),
        }
        .unwrap_or_default()
    }
}

/// A page of a file.
#[derive(Debug, Default)]
struct Page {
    /// Its number from 1; 0 for none.
    number: u64,
    bytes: Vec<u8>,
}

/// A temporary file with tables.
#[derive(Debug)]
pub struct SpillFile {
    source: FileSource,
    len: u64,
    pages: Vec<Mutex<Page>>,
    /// The first error of using it.
    failure: OnceLock<(io::ErrorKind, String)>,
}

impl SpillFile {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = match buf.len() {
            0 => Ok(()),
            1..PAGE => self.read_in_pages(offset, buf),
            _ => self.source.read_exact_at(offset, buf),
        };
        read.inspect_err(|e| {
            let _ = self.failure.set((e.kind(), e.to_string()));
        })
    }

    fn read_in_pages(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let pages = self.pages.len().max(1);
        while !buf.is_empty() {
            let number = offset / PAGE as u64;
            let first = (offset % PAGE as u64) as usize;
            let now = buf.len().min(PAGE - first);
            let (part, rest) = std::mem::take(&mut buf).split_at_mut(now);
            // Tables with the same distance from each other shall not take the place of each other: Fibonacci hashing.
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let mut page = self
                .pages
                .get(mixed as usize % pages)
                .ok_or(io::ErrorKind::UnexpectedEof)?
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if page.number != number + 1 {
                let start = number * PAGE as u64;
                let size = self.len.saturating_sub(start).min(PAGE as u64) as usize;
                page.number = 0;
                page.bytes.resize(size, 0);
                self.source.read_exact_at(start, &mut page.bytes)?;
                page.number = number + 1;
            }
            let bytes = page.bytes.get(first..first + now);
            part.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            offset += now as u64;
            buf = rest;
        }
        Ok(())
    }

    /// Notes that somebody wants to change a table.
    fn refuse_change(&self) {
        let what = "a table in a temporary file cannot be changed";
        let _ = self.failure.set((io::ErrorKind::Unsupported, what.into()));
    }

    /// The first error of using it, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<io::Error> {
        let (kind, text) = self.failure.get()?;
        Some(io::Error::new(*kind, text.clone()))
    }

    /// Bytes of memory, at most.
    #[must_use]
    pub fn memory(&self) -> u64 {
        ((self.pages.len() * PAGE) as u64).min(self.len)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.len
    }
}

/// A temporary file that tables are written to. It has no name, so nothing is left of it, however the program ends.
#[derive(Debug)]
pub struct Spill<'a> {
    file: File,
    stop: &'a AtomicBool,
    written: u64,
    buffer: Vec<u8>,
}

/// A table in a [`Spill`].
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Spilled {
    start: u64,
    count: usize,
}

impl<'a> Spill<'a> {
    /// None if files in `directory` are in memory themselves. Writing ends with [`io::ErrorKind::Interrupted`] when `stop` is
    /// set.
    ///
    /// # Errors
    /// There can be no file in `directory`.
    pub fn new(directory: &Path, stop: &'a AtomicBool) -> io::Result<Option<Self>> {
        let file = temporary_file(directory)?;
        if is_in_memory(&file) {
            return Ok(None);
        }
        Ok(Some(Self {
            file,
            stop,
            written: 0,
            buffer: Vec::with_capacity(BUFFER),
        }))
    }

    /// Writes a table.
    ///
    /// # Errors
    /// There is no room, or the work was stopped.
    pub fn table<T: Record>(&mut self, records: impl Iterator<Item = T>) -> io::Result<Spilled> {
        let start = self.written;
        let mut count = 0;
        for record in records {
            record.write(&mut self.buffer);
            count += 1;
            if self.buffer.len() >= BUFFER - T::SIZE {
                self.flush()?;
            }
        }
        self.flush()?;
        Ok(Spilled { start, count })
    }

    /// Writes a table that is in memory.
    ///
    /// # Errors
    /// As [`table`](Self::table), and if the table is in a file.
    pub fn records<T: Record>(&mut self, records: &Records<T>) -> io::Result<Spilled> {
        match records {
            Records::Memory(list) => self.table(list.iter().copied()),
            Records::File { .. } => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends writing. `what` names the file in errors.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(self, what: &str) -> io::Result<Arc<SpillFile>> {
        let kept = self.written / (PAGE as u64 * KEPT);
        let mut pages = Vec::new();
        pages.resize_with((kept as usize).clamp(1, PAGES), Mutex::default);
        Ok(Arc::new(SpillFile {
            source: FileSource::of(self.file, Path::new(what))?,
            len: self.written,
            pages,
            failure: OnceLock::new(),
        }))
    }
}

impl Spilled {
    /// The table, in the file that it was written to.
    #[must_use]
    pub fn in_file<T>(self, file: &Arc<SpillFile>) -> Records<T> {
        Records::File {
            file: Arc::clone(file),
            start: self.start,
            count: self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_in_a_file_are_those_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let running = AtomicBool::new(false);
        let mut spill = Spill::new(directory.path(), &running).unwrap().unwrap();
        let first: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let second = b"abc".to_vec();
        let a = spill.table(first.iter().copied()).unwrap();
        let b = spill.table(second.iter().copied()).unwrap();
        let c = spill.table(std::iter::empty::<u8>()).unwrap();
        // The file has no name. On Windows, it has one until it is closed.
        #[cfg(unix)]
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let file = spill.finish("a test").unwrap();
        let tables = [(a, first), (b, second), (c, Vec::new())];
        for (table, list) in tables {
            let table: Records<u8> = table.in_file(&file);
            let memory = Records::Memory(list.clone());
            assert_eq!((table.len(), table.memory()), (list.len(), 0));
            for range in [
                0..0,
                0..2,
                1..4,
                1_048_570..1_048_590,
                2_999_999..3_000_005,
                5..usize::MAX,
            ] {
                let range = range.start..range.end.min(range.start + 50);
                assert_eq!(
                    table.range(range.clone()).unwrap(),
                    memory.range(range).unwrap()
                );
            }
            for at in [0, 2, 3, 2_999_999, 3_000_000] {
                assert_eq!(table.get(at).unwrap(), list.get(at).copied());
            }
        }
        assert!(file.failure().is_none());
    }

    /// Three numbers, so that records lie across the borders of pages.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    struct Three([u32; 3]);

    impl Record for Three {
        const SIZE: usize = 12;

        fn write(&self, out: &mut Vec<u8>) {
            self.0.iter().for_each(|part| part.write(out));
        }

        fn read(mut bytes: &[u8]) -> Self {
            Self([(); 3].map(|()| u32::from_le_bytes(number(&mut bytes))))
        }
    }

    #[test]
    fn threads_read_records_in_any_order() {
        const COUNT: u32 = 200_000;
        let directory = tempfile::tempdir().unwrap();
        let running = AtomicBool::new(false);
        let mut spill = Spill::new(directory.path(), &running).unwrap().unwrap();
        let mut records = Records::default();
        (0..COUNT).for_each(|i| records.push(i.wrapping_mul(0x9e37_79b9)));
        records.set(7, 7);
        records.set(COUNT, 7);
        let three = |i: u32| Three([i, !i, i / 3]);
        let a = spill.records(&records).unwrap();
        let b = spill.table((0..COUNT).map(three)).unwrap();
        let file = spill.finish("a test").unwrap();
        assert_eq!(file.size(), u64::from(COUNT) * 16);
        // More pages than stay in memory.
        assert!(file.memory() < file.size() / 32);
        let numbers: Records<u32> = a.in_file(&file);
        let threes: Records<Three> = b.in_file(&file);
        std::thread::scope(|scope| {
            for seed in 0..4u32 {
                let (numbers, threes, records) = (&numbers, &threes, &records);
                scope.spawn(move || {
                    let mut at = seed;
                    for _ in 0..20_000 {
                        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let i = (at >> 8) % (COUNT + 10);
                        assert_eq!(numbers.at(i), records.at(i));
                        let expected = (i < COUNT).then(|| three(i));
                        assert_eq!(threes.get(i as usize).unwrap(), expected);
                        assert_eq!(threes.at(i), expected.unwrap_or_default());
                    }
                });
            }
        });
        assert!(file.failure().is_none());
        // A change that is lost is no success.
        let mut numbers = numbers;
        numbers.set(0, 1);
        let failure = file.failure().unwrap();
        assert_eq!(failure.kind(), io::ErrorKind::Unsupported);
        numbers.push(1);
        assert_eq!((numbers.len(), numbers.at(0)), (COUNT as usize, 0));
        assert!(
            Spill::new(directory.path(), &running)
                .unwrap()
                .unwrap()
                .records(&numbers)
                .is_err()
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_failed_read_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let file = temporary_file(directory.path()).unwrap();
        let shared = file.try_clone().unwrap();
        let running = AtomicBool::new(false);
        let mut spill = Spill::new(directory.path(), &running).unwrap().unwrap();
        spill.file = file;
        let table = spill.table(0..10_000u32).unwrap();
        let file = spill.finish("a test").unwrap();
        let table: Records<u32> = table.in_file(&file);
        assert_eq!(table.at(9_999), 9_999);
        shared.set_len(4096).unwrap();
        assert_eq!((table.at(1), file.failure().is_none()), (1, true));
        assert_eq!(table.at(5_000), 0);
        assert!(file.failure().unwrap().to_string().contains("a test"));
        assert!(table.get(5_000).is_err());
        assert!(table.range(0..5_000).is_err());
        assert_eq!(table.at(2), 2);
    }

    #[test]
    fn writing_stops_and_no_file_is_made_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let stopped = AtomicBool::new(true);
        let mut spill = Spill::new(directory.path(), &stopped).unwrap().unwrap();
        let written = spill.table([1u8; 9].into_iter());
        let Err(e) = written else { panic!("written") };
        assert_eq!(e.kind(), io::ErrorKind::Interrupted);
        assert!(Spill::new(&directory.path().join("none"), &stopped).is_err());
        // Where Linux has shared memory.
        let shared = Path::new("/dev/shm");
        if cfg!(target_os = "linux") && shared.is_dir() {
            assert!(Spill::new(shared, &stopped).unwrap().is_none());
        }
    }
}
