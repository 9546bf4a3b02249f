//! Image files mapped into memory.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, MmapOptions};

use crate::{FileSource, Source};

/// Smallest piece that is mapped at a time (1 MiB).
const MIN_PIECE: u64 = 1 << 20;

/// A regular file or a block device, mapped into memory.
///
/// Reading copies memory, without syscalls. But if the medium fails, or the file is truncated while it
/// is mapped, a bus error ends the process, instead of an error of one read. Therefore [`FileSource`]
/// is the default.
pub struct MapSource {
    file: FileSource,
    len: u64,
    map: Mapping,
}

enum Mapping {
    Empty,
    Whole(Mmap),
    /// One piece at a time, the last one used.
    Pieces {
        size: u64,
        last: Mutex<Option<(u64, Arc<Mmap>)>>,
    },
}

impl MapSource {
    /// Opens and maps `path`: at once or, if it is larger than `max_eager`, in pieces of `max_eager`
    /// bytes (at least 1 MiB).
    ///
    /// # Errors
    /// As [`FileSource::open`]; an error that names the path if it cannot be mapped.
    pub fn open(path: impl AsRef<Path>, max_eager: Option<u64>) -> io::Result<Self> {
        let file = FileSource::open(path)?;
        let len = file.len()?;
        let map = match max_eager {
            _ if len == 0 => Mapping::Empty,
            Some(size) if size < len => Mapping::Pieces {
                size: size.max(MIN_PIECE).next_multiple_of(MIN_PIECE),
                last: Mutex::default(),
            },
            _ => Mapping::Whole(map(&file, 0, len)?),
        };
        Ok(Self { file, len, map })
    }

    /// The path that was given to [`MapSource::open`].
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn piece(
        &self,
        size: u64,
        last: &Mutex<Option<(u64, Arc<Mmap>)>>,
        at: u64,
    ) -> io::Result<Arc<Mmap>> {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((start, piece)) = &*last
            && *start == at
        {
            return Ok(Arc::clone(piece));
        }
        let piece = Arc::new(map(&self.file, at, size.min(self.len - at))?);
        *last = Some((at, Arc::clone(&piece)));
        Ok(piece)
    }
}

fn map(file: &FileSource, offset: u64, len: u64) -> io::Result<Mmap> {
    let named = |e: io::Error| {
        io::Error::new(
            e.kind(),
            format!(
                "{}: mapping {len} bytes at offset {offset}: {e}",
                file.path().display()
            ),
        )
    };
    let len = usize::try_from(len).map_err(|_| named(io::ErrorKind::OutOfMemory.into()))?;
    // SAFETY: the memory stays mapped as long as the `Mmap` lives. No reference to it leaves this
    // module: bytes are only copied out, and not interpreted before. If another process changes the
    // file meanwhile, the copy is a mixture, as with `pread`. The user of the copy verifies its
    // checksum. If the file shrinks, the process gets a bus error, which is documented.
    unsafe { MmapOptions::new().offset(offset).len(len).map(file.file()) }.map_err(named)
}

impl fmt::Debug for MapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapSource")
            .field("path", &self.path())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Source for MapSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let wanted = buf.len();
        let beyond = || {
            let what = format!(
                "{}: reading {wanted} bytes at offset {offset}: the file ends before the \
                 requested bytes",
                self.path().display(),
            );
            io::Error::new(io::ErrorKind::UnexpectedEof, what)
        };
        if offset
            .checked_add(wanted as u64)
            .is_none_or(|end| end > self.len)
        {
            return Err(beyond());
        }
        let copy = |map: &Mmap, at: u64, out: &mut [u8]| {
            let found = usize::try_from(at)
                .ok()
                .and_then(|at| map.get(at..at.checked_add(out.len())?));
            if let Some(found) = found {
                out.copy_from_slice(found);
            }
            found.is_some()
        };
        let complete = match &self.map {
            Mapping::Empty => buf.is_empty(),
            Mapping::Whole(map) => copy(map, offset, buf),
            Mapping::Pieces { size, last } => {
                let mut done = 0;
                while done < wanted {
                    let at = offset + done as u64;
                    let start = at / size * size;
                    let piece = self.piece(*size, last, start)?;
                    let left = (piece.len() as u64).saturating_sub(at - start);
                    let n = usize::try_from(left).map_or(wanted, |left| left.min(wanted - done));
                    let (_, rest) = buf.split_at_mut(done);
                    let (out, _) = rest.split_at_mut(n);
                    if n == 0 || !copy(&piece, at - start, out) {
                        break;
                    }
                    done += n;
                }
                done == wanted
            }
        };
        if complete { Ok(()) } else { Err(beyond()) }
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.file.next_data(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_same_as_a_file_whole_and_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let bytes: Vec<u8> = (0..(5 << 19)).map(|i: u32| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for max in [None, Some(0), Some(1 << 20), Some(3 << 19), Some(1 << 30)] {
            let source = MapSource::open(&path, max).unwrap();
            assert_eq!(source.len().unwrap(), bytes.len() as u64);
            for (at, len) in [
                (0, 10),
                ((1 << 20) - 5, 10),
                (1000, 2 << 20),
                (bytes.len() - 3, 3),
                (0, bytes.len()),
                (bytes.len(), 0),
            ] {
                let mut buf = vec![0; len];
                source.read_exact_at(at as u64, &mut buf).unwrap();
                assert!(buf == bytes[at..at + len], "{max:?} {at} {len}");
            }
            for at in [bytes.len() as u64 - 1, u64::MAX] {
                let e = source.read_exact_at(at, &mut [0; 2]).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
                assert!(e.to_string().contains("image"), "{e}");
            }
        }
    }

    #[test]
    fn empty_and_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        let source = MapSource::open(&path, None).unwrap();
        assert!(source.is_empty().unwrap());
        source.read_exact_at(0, &mut []).unwrap();
        assert!(source.read_exact_at(0, &mut [0]).is_err());
        assert!(MapSource::open(dir.path(), None).is_err());
        assert!(MapSource::open(dir.path().join("none"), None).is_err());
    }
}
