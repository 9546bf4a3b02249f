//! Where contents wait until the build reads them: in the archive itself, or in a temporary file.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use redwarfs_codec::{CodecSpec, CompressionId, Compressor};
use redwarfs_io::{FileSource, Source as _};

/// Bytes that are compressed together. A read of one byte decodes this much.
const FRAME: usize = 64 << 10;
/// Frames that stay decoded, for all readers together.
const KEPT: usize = 64;

/// The codec for temporary contents: the fastest one of the build.
fn codec() -> Option<CodecSpec> {
    let spec = if cfg!(feature = "lz4") {
        "lz4"
    } else if cfg!(feature = "zstd") {
        "zstd:level=1"
    } else {
        "null"
    };
    spec.parse().ok()
}

/// A temporary file that is being filled.
pub(crate) struct SpoolWriter {
    file: File,
    compressor: Option<Compressor>,
    frame: Vec<u8>,
    frames: Vec<Frame>,
    written: u64,
}

/// A compressed piece of the contents.
#[derive(Debug, Clone, Copy)]
struct Frame {
    offset: u64,
    size: u32,
    compressed: bool,
}

impl SpoolWriter {
    /// Creates the file, which has no name from here on.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: redwarfs_io::temporary_file(directory)?,
            compressor: codec().map(|spec| spec.compressor()),
            frame: Vec::with_capacity(FRAME),
            frames: Vec::new(),
            written: 0,
        })
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> u64 {
        (self.frames.len() * FRAME + self.frame.len()) as u64
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = FRAME - self.frame.len();
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.frame.extend_from_slice(now);
            bytes = rest;
            if self.frame.len() == FRAME {
                self.end_frame()?;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let compressed = match &mut self.compressor {
            Some(compressor) => compressor.compress(&self.frame).map_err(io::Error::other)?,
            None => redwarfs_codec::Compressed {
                id: CompressionId::NONE,
                data: None,
            },
        };
        let payload = compressed.data.as_deref().unwrap_or(&self.frame);
        self.file.write_all(payload)?;
        self.frames.push(Frame {
            offset: self.written,
            // At most a frame, because larger results are not used.
            size: payload.len() as u32,
            compressed: compressed.data.is_some(),
        });
        self.written += payload.len() as u64;
        self.frame.clear();
        Ok(())
    }

    /// Ends writing. The contents can then be read at any offset.
    pub(crate) fn finish(mut self) -> io::Result<Spool> {
        self.end_frame()?;
        Ok(Spool {
            file: FileSource::of(self.file, Path::new("the temporary file"))?,
            frames: self.frames,
            id: match () {
                () if cfg!(feature = "lz4") => CompressionId::LZ4,
                () if cfg!(feature = "zstd") => CompressionId::ZSTD,
                () => CompressionId::NONE,
            },
            kept: Mutex::default(),
        })
    }
}

/// A temporary file with the contents of files.
#[derive(Debug)]
pub(crate) struct Spool {
    file: FileSource,
    frames: Vec<Frame>,
    id: CompressionId,
    kept: Mutex<VecDeque<(usize, Arc<Vec<u8>>)>>,
}

impl Spool {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        (self.frames.capacity() * size_of::<Frame>() + KEPT * FRAME) as u64
    }

    /// Bytes in the file.
    pub(crate) fn size(&self) -> u64 {
        let last = self.frames.last();
        last.map_or(0, |frame| frame.offset + u64::from(frame.size))
    }

    fn frame(&self, number: usize) -> io::Result<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(known, _)| *known == number) {
            // The frames that were used last stay longest.
            if let Some(found) = kept.remove(at) {
                let bytes = Arc::clone(&found.1);
                kept.push_front(found);
                return Ok(bytes);
            }
        }
        drop(kept);
        let missing = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let frame = self.frames.get(number).copied().ok_or_else(missing)?;
        let mut payload = vec![0; frame.size as usize];
        self.file.read_exact_at(frame.offset, &mut payload)?;
        let bytes = match frame.compressed {
            true => redwarfs_codec::decompress(self.id, &payload, FRAME as u64)
                .map_err(|e| io::Error::other(format!("the temporary file is damaged: {e}")))?,
            false => payload,
        };
        let bytes = Arc::new(bytes);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((number, Arc::clone(&bytes)));
        kept.truncate(KEPT);
        Ok(bytes)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let number = usize::try_from(at / FRAME as u64).unwrap_or(usize::MAX);
        let bytes = self.frame(number)?;
        let rest = bytes.get(at as usize % FRAME..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }
}

/// An archive whose files are read where they are.
#[derive(Debug)]
pub(crate) struct InPlace {
    source: FileSource,
    file: File,
    state: (u64, Option<SystemTime>),
}

fn state(file: &File) -> io::Result<(u64, Option<SystemTime>)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified().ok()))
}

impl InPlace {
    pub(crate) fn new(file: File, path: &Path) -> io::Result<Self> {
        Ok(Self {
            state: state(&file)?,
            source: FileSource::of(file.try_clone()?, path)?,
            file,
        })
    }
}

impl InPlace {
    /// Its size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.state.0
    }

    /// A part of the archive.
    pub(crate) fn section(&self, at: u64, size: u64) -> io::Result<Section> {
        Ok(Section {
            file: FileSource::of(self.file.try_clone()?, self.source.path())?,
            next: Rc::new(Cell::new(at)),
            end: at.saturating_add(size),
        })
    }
}

/// A part of an archive, read from front to back.
pub(crate) struct Section {
    file: FileSource,
    /// Offset of the next byte in the archive.
    pub(crate) next: Rc<Cell<u64>>,
    end: u64,
}

impl io::Read for Section {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let at = self.next.get();
        let n = self.end.saturating_sub(at).min(buf.len() as u64) as usize;
        let buf = buf.get_mut(..n).unwrap_or_default();
        self.file.read_exact_at(at, buf)?;
        self.next.set(at + n as u64);
        Ok(n)
    }
}

/// All stores of a source.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) spool: Option<Spool>,
    pub(crate) archives: Vec<InPlace>,
}

/// The number of a store: 0 is the temporary file, and archives follow.
pub(crate) type StoreNumber = u32;

impl Stores {
    fn archive(&self, store: StoreNumber) -> Option<&InPlace> {
        self.archives.get((store as usize).checked_sub(1)?)
    }

    /// Reads some bytes, at least one.
    pub(crate) fn read_at(&self, store: StoreNumber, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(archive) = self.archive(store) {
            archive.source.read_exact_at(at, buf)?;
            return Ok(buf.len());
        }
        match &self.spool {
            Some(spool) => spool.read_at(at, buf),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether the bytes of a store are those that were there at first.
    pub(crate) fn check(&self, store: StoreNumber) -> io::Result<()> {
        match self.archive(store) {
            Some(archive) if state(&archive.file)? != archive.state => {
                Err(io::Error::other("the archive was changed meanwhile"))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.spool.as_ref().map_or(0, Spool::memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_at_any_offset() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = SpoolWriter::new(directory.path()).unwrap();
        let mut all = Vec::new();
        let mut state = 1u32;
        for piece in 0..300usize {
            let bytes: Vec<u8> = (0..piece * 7)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if piece % 2 == 0 {
                        (state >> 24) as u8
                    } else {
                        0
                    }
                })
                .collect();
            assert_eq!(writer.position(), all.len() as u64);
            writer.write(&bytes).unwrap();
            all.extend(bytes);
        }
        let names = std::fs::read_dir(directory.path()).unwrap();
        // On Windows, it has a name, and goes when it is closed.
        assert_eq!(names.count(), usize::from(cfg!(windows)));
        let spool = writer.finish().unwrap();
        assert!(spool.size() < all.len() as u64);
        let stores = Stores {
            spool: Some(spool),
            archives: Vec::new(),
        };
        for (at, size) in [(0, all.len()), (FRAME - 1, 2), (100, 5), (all.len() - 1, 1)] {
            let mut found = vec![0; size];
            let mut done = 0;
            while done < size {
                let n = stores
                    .read_at(0, (at + done) as u64, &mut found[done..])
                    .unwrap();
                assert_ne!(n, 0);
                done += n;
            }
            assert!(found == all[at..at + size]);
        }
        assert!(
            stores
                .read_at(0, all.len() as u64 + FRAME as u64, &mut [0])
                .is_err()
        );
    }
}
