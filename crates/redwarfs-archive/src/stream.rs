//! The bytes of an archive: read once, from front to back.

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Fault;

/// Size of the read buffer in bytes.
const BUFFER: usize = 128 << 10;

/// The raw archive: counts what is read, obeys the stop flag, and remembers its own failure, so that a
/// decoder's error is told from it.
pub(crate) struct Raw<'a> {
    pub(crate) inner: Box<dyn Read + 'a>,
    pub(crate) count: &'a AtomicU64,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) failed: Rc<Cell<Failed>>,
}

/// What kept the raw archive from delivering bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Failed {
    #[default]
    No,
    System,
    Stop,
}

impl Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                self.failed.set(Failed::Stop);
                return Err(io::Error::other("interrupted"));
            }
            match self.inner.read(buf) {
                Ok(n) => {
                    self.count.fetch_add(n as u64, Ordering::Relaxed);
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.failed.set(Failed::System);
                    return Err(e);
                }
            }
        }
    }
}

/// A file that can be read at any offset, so that data in it need not be copied.
pub(crate) struct Plain<'a> {
    /// Makes the next read begin at this offset.
    pub(crate) seek: Box<dyn FnMut(u64) -> io::Result<()> + 'a>,
    /// Offset of the end.
    pub(crate) len: u64,
    pub(crate) count: &'a AtomicU64,
}

/// The decompressed bytes of an archive.
pub(crate) struct Stream<'a> {
    inner: Box<dyn Read + 'a>,
    /// If the bytes are those of this file.
    plain: Option<Plain<'a>>,
    failed: Rc<Cell<Failed>>,
    buffer: Vec<u8>,
    start: usize,
    position: u64,
    ended: bool,
    /// Bytes behind compressed data, which its decoder does not read.
    trailing: Rc<Cell<u64>>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        inner: Box<dyn Read + 'a>,
        plain: Option<Plain<'a>>,
        failed: Rc<Cell<Failed>>,
    ) -> Self {
        Self {
            inner,
            plain,
            failed,
            buffer: Vec::new(),
            start: 0,
            position: 0,
            ended: false,
            trailing: Rc::default(),
        }
    }

    /// The same, whose first byte is at this offset.
    pub(crate) fn starting_at(mut self, position: u64) -> Self {
        self.position = position;
        self
    }

    /// Where the decoder that is inside counts the bytes behind its data.
    pub(crate) fn counting(mut self, trailing: Rc<Cell<u64>>) -> Self {
        self.trailing = trailing;
        self
    }

    /// What kept the raw archive from delivering bytes, shared with the streams around this one.
    pub(crate) fn failed(&self) -> Rc<Cell<Failed>> {
        Rc::clone(&self.failed)
    }

    /// Whether data can stay where it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain.is_some()
    }

    /// Bytes before the next one.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The bytes that are there without reading.
    pub(crate) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    fn fault(&self, error: io::Error) -> Fault {
        match (self.failed.get(), error.kind()) {
            (Failed::Stop, _) => Fault::Interrupted,
            (Failed::System, _) => Fault::Read(error),
            (Failed::No, io::ErrorKind::UnexpectedEof) => Fault::Truncated,
            (Failed::No, _) => Fault::Damaged(error.to_string()),
        }
    }

    /// Reads more bytes into the buffer, until it has `wanted` or the stream ends.
    fn fill(&mut self, wanted: usize) -> Result<(), Fault> {
        while self.buffered().len() < wanted && !self.ended {
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            let had = self.buffer.len();
            self.buffer.resize(had.max(wanted).max(BUFFER), 0);
            let space = self.buffer.get_mut(had..).unwrap_or_default();
            let got = loop {
                match self.inner.read(space) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            let got = got.map_err(|e| self.fault(e));
            self.buffer
                .truncate(had + got.as_ref().copied().unwrap_or(0));
            self.ended = got? == 0;
        }
        Ok(())
    }

    /// The next bytes, without taking them; fewer than `wanted` only at the end.
    pub(crate) fn peek(&mut self, wanted: usize) -> Result<&[u8], Fault> {
        self.fill(wanted)?;
        let all = self.buffered();
        Ok(all.get(..wanted.min(all.len())).unwrap_or_default())
    }

    /// Takes bytes of [`buffered`](Self::buffered).
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        self.position += n as u64;
    }

    /// Takes some bytes; 0 at the end of the stream.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.buffered().is_empty() {
            if buf.len() >= BUFFER && !self.ended {
                let got = loop {
                    match self.inner.read(buf) {
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        other => break other,
                    }
                };
                let got = got.map_err(|e| self.fault(e))?;
                self.ended = got == 0;
                self.position += got as u64;
                return Ok(got);
            }
            self.fill(1)?;
        }
        let n = buf.len().min(self.buffered().len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), self.buffered().get(..n)) {
            to.copy_from_slice(from);
        }
        self.consume(n);
        Ok(n)
    }

    /// Takes exactly these bytes.
    pub(crate) fn read_exact(&mut self, mut buf: &mut [u8]) -> Result<(), Fault> {
        while !buf.is_empty() {
            match self.read(buf)? {
                0 => return Err(Fault::Truncated),
                n => buf = buf.get_mut(n..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    /// Takes that many bytes into memory. The caller has limited `size`.
    pub(crate) fn read_vec(&mut self, size: usize) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        // The memory follows the bytes that really come.
        while out.len() < size {
            let had = out.len();
            let step = (size - had).min(BUFFER);
            out.resize(had + step, 0);
            self.read_exact(out.get_mut(had..).unwrap_or_default())?;
        }
        Ok(out)
    }

    /// Takes bytes and drops them.
    pub(crate) fn skip(&mut self, mut n: u64) -> Result<(), Fault> {
        let buffered = n.min(self.buffered().len() as u64);
        self.consume(buffered as usize);
        n -= buffered;
        if let Some(plain) = self.plain.as_mut().filter(|_| n > BUFFER as u64) {
            if plain.len.saturating_sub(self.position) < n {
                self.position = self.position.max(plain.len);
                return Err(Fault::Truncated);
            }
            (plain.seek)(self.position + n).map_err(Fault::Read)?;
            plain.count.fetch_add(n, Ordering::Relaxed);
            self.position += n;
            return Ok(());
        }
        while n > 0 {
            self.fill(1)?;
            let step = n.min(self.buffered().len() as u64);
            if step == 0 {
                return Err(Fault::Truncated);
            }
            self.consume(step as usize);
            n -= step;
        }
        Ok(())
    }

    /// Reads to the end, so that checksums of decoders are compared. Returns the position after the last
    /// byte that is not zero, minus the position before, or 0; and adds what follows compressed data.
    pub(crate) fn drain(&mut self) -> Result<u64, Fault> {
        let start = self.position;
        let mut end = start;
        loop {
            self.fill(1)?;
            let rest = self.buffered();
            if rest.is_empty() {
                return Ok(end - start + self.trailing.get());
            }
            if let Some(last) = rest.iter().rposition(|&b| b != 0) {
                end = self.position + last as u64 + 1;
            }
            let n = rest.len();
            self.consume(n);
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Read(e) => e,
            Fault::Truncated => io::ErrorKind::UnexpectedEof.into(),
            Fault::Damaged(what) => Self::new(io::ErrorKind::InvalidData, what),
            _ => Self::other("interrupted"),
        }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(Stream::read(self, buf)?)
    }
}

impl BufRead for Stream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill(1)?;
        Ok(self.buffered())
    }

    fn consume(&mut self, n: usize) {
        Stream::consume(self, n.min(self.buffered().len()));
    }
}
