//! Records of a fixed size: in memory, or in a temporary file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

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
        file: Arc<FileSource>,
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

/// A temporary file that tables are written to. It has no name, so nothing is left of it, however the program ends.
pub(crate) struct Spill {
    file: File,
    written: u64,
    buffer: Vec<u8>,
}

/// A table in a [`Spill`].
pub(crate) struct Spilled {
    start: u64,
    count: usize,
}

impl Spill {
    /// # Errors
    /// There can be no file in `directory`.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: redwarfs_io::temporary_file(directory)?,
            written: 0,
            buffer: Vec::with_capacity(BUFFER),
        })
    }

    /// Writes a table.
    ///
    /// # Errors
    /// There is no room.
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
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends writing.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn finish(self) -> io::Result<Arc<FileSource>> {
        Ok(Arc::new(FileSource::of(
            self.file,
            Path::new("the temporary file"),
        )?))
    }
}

impl Spilled {
    /// The table, in the file that it was written to.
    pub(crate) fn in_file<T>(self, file: &Arc<FileSource>) -> Records<T> {
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
        let mut spill = Spill::new(directory.path()).unwrap();
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
    }
}
