//! Records of a fixed size: in memory, or in a temporary file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use redwarfs_io::{FileSource, Source as _};

/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// What a table consists of.
pub(crate) trait Record: Copy {
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

/// The number in the next bytes of a record.
pub(crate) fn number<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
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
pub(crate) enum Records<T> {
    Memory(Vec<T>),
    /// In a file, from this byte on.
    File {
        file: Arc<SpillFile>,
        start: u64,
        count: usize,
    },
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self::Memory(Vec::new())
    }
}

impl<T: Record> Records<T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(list) => list.len(),
            Self::File { count, .. } => *count,
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Memory(list) => list.capacity() * size_of::<T>(),
            Self::File { .. } => 0,
        }
    }

    /// Some records; fewer if there are not so many.
    ///
    /// # Errors
    /// Those of reading the file.
    pub(crate) fn range(&self, range: Range<usize>) -> io::Result<Cow<'_, [T]>>
    where
        [T]: ToOwned<Owned = Vec<T>>,
    {
        let end = range.end.min(self.len());
        let range = range.start.min(end)..end;
        match self {
            Self::Memory(list) => Ok(Cow::Borrowed(list.get(range).unwrap_or_default())),
            Self::File { file, start, .. } => {
                let mut bytes = vec![0; range.len() * T::SIZE];
                if !bytes.is_empty() {
                    file.read_exact_at(start + (range.start * T::SIZE) as u64, &mut bytes)?;
                }
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
    pub(crate) fn get(&self, at: usize) -> io::Result<Option<T>>
    where
        [T]: ToOwned<Owned = Vec<T>>,
    {
        Ok(match self {
            Self::Memory(list) => list.get(at).copied(),
            Self::File { .. } => self.range(at..at.saturating_add(1))?.first().copied(),
        })
    }
}

/// A temporary file with tables.
#[derive(Debug)]
pub(crate) struct SpillFile {
    source: FileSource,
    /// The first error of reading it.
    failure: OnceLock<(io::ErrorKind, String)>,
}

impl SpillFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = self.source.read_exact_at(offset, buf);
        read.inspect_err(|e| {
            let _ = self.failure.set((e.kind(), e.to_string()));
        })
    }

    /// The first error of reading it, if there was one.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        let (kind, text) = self.failure.get()?;
        Some(io::Error::new(*kind, text.clone()))
    }

    /// Its size in bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn len(&self) -> io::Result<u64> {
        self.source.len()
    }
}

/// A temporary file that tables are written to. It has no name, so nothing is left of it, however the program ends.
pub(crate) struct Spill<'a> {
    file: File,
    stop: &'a AtomicBool,
    written: u64,
    buffer: Vec<u8>,
}

/// A table in a [`Spill`].
pub(crate) struct Spilled {
    start: u64,
    count: usize,
}

impl<'a> Spill<'a> {
    /// None if files in `directory` are in memory themselves. Writing ends with [`io::ErrorKind::Interrupted`] when `stop` is
    /// set.
    ///
    /// # Errors
    /// There can be no file in `directory`.
    pub(crate) fn new(directory: &Path, stop: &'a AtomicBool) -> io::Result<Option<Self>> {
        let file = redwarfs_io::temporary_file(directory)?;
        if redwarfs_io::is_in_memory(&file) {
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
    pub(crate) fn table<T: Record>(
        &mut self,
        records: impl Iterator<Item = T>,
    ) -> io::Result<Spilled> {
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

    fn flush(&mut self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends writing.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn finish(self) -> io::Result<Arc<SpillFile>> {
        Ok(Arc::new(SpillFile {
            source: FileSource::of(self.file, Path::new("the temporary file of the entries"))?,
            failure: OnceLock::new(),
        }))
    }
}

impl Spilled {
    /// The table, in the file that it was written to.
    pub(crate) fn in_file<T>(self, file: &Arc<SpillFile>) -> Records<T> {
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
        // The file has no name.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let file = spill.finish().unwrap();
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
