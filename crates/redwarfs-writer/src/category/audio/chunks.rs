//! Walking through the chunks of a file.

use crate::category::cut::Complaint;
use crate::category::probe::Probe;

/// Largest number of chunks before the samples; real files have a few.
const MAX_CHUNKS: usize = 1 << 14;

/// The layout of the chunks of a format.
pub(super) struct Layout {
    /// Bytes of an id, 4 or 16.
    pub(super) id: usize,
    /// Bytes of a size, 4 or 8.
    pub(super) size: usize,
    pub(super) big: bool,
    /// Sizes include the chunk header.
    pub(super) inclusive: bool,
    /// Chunks start at multiples of this position.
    pub(super) alignment: u64,
}

/// A chunk inside of the file.
pub(super) struct Chunk {
    /// Padded with zeros.
    pub(super) id: [u8; 16],
    /// Start of its data.
    pub(super) start: u64,
    pub(super) size: u64,
}

impl Chunk {
    pub(super) fn is(&self, id: &[u8]) -> bool {
        self.id.starts_with(id) && self.id.iter().skip(id.len()).all(|&b| b == 0)
    }
}

pub(super) struct Chunks<'p, 'f> {
    probe: &'p Probe<'f>,
    layout: Layout,
    position: u64,
    left: usize,
    pub(super) open_data: OpenData,
}

/// The meaning of a data chunk whose size is all ones.
pub(super) enum OpenData {
    /// Just that size.
    Nothing,
    /// The data ends with the file.
    ToTheEnd,
    /// The size is stored elsewhere, and is this one.
    Size(u64),
}

impl<'p, 'f> Chunks<'p, 'f> {
    pub(super) fn new(probe: &'p Probe<'f>, layout: Layout, start: u64) -> Self {
        Self {
            probe,
            layout,
            position: start,
            left: MAX_CHUNKS,
            open_data: OpenData::Nothing,
        }
    }

    /// The next chunk; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Complaint> {
        let layout = &self.layout;
        let header = layout.id + layout.size;
        let aligned = self.position.checked_next_multiple_of(layout.alignment);
        let start = aligned.and_then(|at| Some((at, at.checked_add(header as u64)?)));
        let Some((at, start)) = start.filter(|(_, start)| *start <= self.probe.size()) else {
            return Ok(None);
        };
        if self.left == 0 {
            return Err(Complaint::warn("audio file has too many chunks"));
        }
        self.left -= 1;
        let mut bytes = [0; 24];
        let bytes = bytes.get_mut(..header).unwrap_or_default();
        self.probe.read(at, bytes)?;
        let (name, number) = bytes.split_at(layout.id);
        let mut id = [0; 16];
        for (place, &byte) in id.iter_mut().zip(name) {
            *place = byte;
        }
        let digits = |all: u64, &byte: &u8| all << 8 | u64::from(byte);
        let mut size = if layout.big {
            number.iter().fold(0, digits)
        } else {
            number.iter().rev().fold(0, digits)
        };
        let room = self.probe.size() - start;
        if number.iter().all(|&b| b == 0xff) && name == b"data" {
            match self.open_data {
                OpenData::Nothing => {}
                OpenData::ToTheEnd => size = room,
                OpenData::Size(known) => size = known,
            }
        }
        if layout.inclusive {
            let Some(inner) = size.checked_sub(header as u64) else {
                return Err(Complaint::warn("audio file has a chunk of invalid size"));
            };
            size = inner;
        }
        if size > room {
            return Err(Complaint::warn(
                "audio file has a chunk that ends after the file",
            ));
        }
        self.position = start + size;
        Ok(Some(Chunk { id, start, size }))
    }

    /// The data of a chunk of at least `N` bytes.
    pub(super) fn content<const N: usize>(&self, chunk: &Chunk) -> Result<[u8; N], Complaint> {
        let found = if chunk.size >= N as u64 {
            self.probe.bytes(chunk.start)?
        } else {
            None
        };
        found.ok_or_else(|| Complaint::warn("audio file has a chunk that is too short"))
    }
}

/// The error of a format chunk that is missing, superfluous, or of an invalid size.
pub(super) fn bad_format(what: &str) -> Complaint {
    Complaint::warn(format!("audio file with {what}"))
}
