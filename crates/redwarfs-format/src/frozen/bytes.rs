//! Frozen bytes: in memory from the beginning, or loaded part by part when they are needed.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use super::bits::{BitSource, load_bits};
use crate::error::{Error, Result};

/// The payload of a METADATA_V2 section.
#[derive(Debug)]
pub enum FrozenBytes {
    /// All of it.
    Whole(Vec<u8>),
    /// The parts that were needed so far.
    Lazy(LazyBytes),
}

impl FrozenBytes {
    /// Checked access to the bits.
    #[inline]
    #[must_use]
    pub fn bits(&self) -> BitSource<'_> {
        match self {
            Self::Whole(bytes) => BitSource::new(bytes),
            Self::Lazy(bytes) => BitSource::lazy(bytes),
        }
    }

    /// Number of bytes, loaded or not.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Lazy(bytes) => bytes.len,
        }
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are in memory, in order.
    pub fn in_memory(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, lazy) = match self {
            Self::Whole(bytes) => (Some(bytes.as_slice()), None),
            Self::Lazy(bytes) => (None, Some(bytes)),
        };
        let parts = lazy.into_iter().flat_map(|lazy| &lazy.parts);
        whole
            .into_iter()
            .chain(parts.filter_map(|part| part.bytes.get().map(AsRef::as_ref)))
    }

    /// Loads the parts that are not in memory. A part that is damaged keeps no other from being loaded.
    ///
    /// # Errors
    /// Those of the function that loads: [`Error::Io`] at once, else the first one at the end.
    pub fn load_all(&self) -> Result<()> {
        match self {
            Self::Whole(_) => Ok(()),
            Self::Lazy(bytes) => {
                let mut damage = Ok(());
                for index in 0..bytes.parts.len() {
                    match bytes.part(index) {
                        Err(e @ Error::Io(_)) => return Err(e),
                        Err(e) => damage = damage.and(Err(e)),
                        Ok(_) => {}
                    }
                }
                damage
            }
        }
    }
}

impl From<Vec<u8>> for FrozenBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Whole(bytes)
    }
}

impl From<LazyBytes> for FrozenBytes {
    fn from(bytes: LazyBytes) -> Self {
        Self::Lazy(bytes)
    }
}

/// Takes the bytes of a part, and where it starts.
type Put<'a> = dyn Fn(usize, Box<[u8]>) + 'a;

/// Puts at least the part of a range.
type Load = dyn Fn(Range<usize>, &Put<'_>) -> Result<()> + Send + Sync;

/// Bytes that are loaded in parts of 64 KiB when something in them is used for the first time, and
/// stay: 36 bytes for each part, and those parts. If a part cannot be loaded, the access that needs it
/// gets the error, and the next access tries again. A part that is there is read without a lock.
pub struct LazyBytes {
    len: usize,
    parts: Box<[Part]>,
    /// The number of the part at each multiple of 64 KiB.
    at: Box<[u32]>,
    load: Box<Load>,
}

struct Part {
    start: usize,
    bytes: OnceLock<Box<[u8]>>,
}

impl LazyBytes {
    /// Largest size of a part, and that of all parts but the last of a table, in bytes.
    pub const PART: usize = 64 << 10;

    /// `len` bytes. `load` returns the bytes of a range, which is a whole part. Several threads may
    /// call it at once, also for the same part.
    pub fn new(
        len: usize,
        load: impl Fn(Range<usize>) -> Result<Box<[u8]>> + Send + Sync + 'static,
    ) -> Self {
        Self::of_tables(&[len], move |range, put| {
            put(range.start, load(range)?);
            Ok(())
        })
    }

    /// The bytes of tables that end at `ends`, which ascend. No part reaches from one table into another, and loading a part
    /// may yield others, as decoding does. `load` passes the part of a range to a function with its start, and may pass others.
    /// What is there already, or is not a whole part, is ignored. Several threads may call `load` at once, also for the same
    /// part.
    pub fn of_tables(
        ends: &[usize],
        load: impl Fn(Range<usize>, &Put<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (mut parts, mut at) = (Vec::new(), Vec::new());
        let mut start = 0;
        for &end in ends {
            while start < end {
                let next = start.saturating_add(Self::PART).min(end);
                while at.len() * Self::PART < next {
                    at.push(u32::try_from(parts.len()).unwrap_or(u32::MAX));
                }
                let bytes = OnceLock::new();
                parts.push(Part { start, bytes });
                start = next;
            }
        }
        Self {
            len: start,
            parts: parts.into(),
            at: at.into(),
            load: Box::new(load),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of the part that a byte is in, and the place of the byte in that part.
    #[inline]
    fn find(&self, byte: usize) -> (usize, usize) {
        let of = self.at.get(byte / Self::PART);
        let mut index = of.map_or(self.parts.len(), |index| *index as usize);
        // Between two multiples of 64 KiB there is one start, unless a table ends there.
        if self.start(index + 1) <= byte {
            index += 1;
            if self.start(index + 1) <= byte {
                index = self.parts.partition_point(|part| part.start <= byte);
                index = index.saturating_sub(1);
            }
        }
        (index, byte.saturating_sub(self.start(index)))
    }

    #[inline]
    fn start(&self, index: usize) -> usize {
        self.parts.get(index).map_or(self.len, |part| part.start)
    }

    /// A part; empty after the last one.
    #[inline]
    fn part(&self, index: usize) -> Result<&[u8]> {
        match self.parts.get(index).map(|part| part.bytes.get()) {
            Some(Some(bytes)) => Ok(bytes),
            Some(None) => self.load_part(index),
            None => Ok(&[]),
        }
    }

    #[cold]
    fn load_part(&self, index: usize) -> Result<&[u8]> {
        let range = |index| self.start(index)..self.start(index + 1);
        (self.load)(range(index), &|start, bytes| {
            let (index, within) = self.find(start);
            if let Some(part) = self.parts.get(index)
                && within == 0
                && bytes.len() == range(index).len()
            {
                let _ = part.bytes.set(bytes);
            }
        })?;
        let part = self.parts.get(index).and_then(|part| part.bytes.get());
        part.map(AsRef::as_ref).ok_or_else(|| {
            let what = "a part of the metadata has another length";
            io::Error::new(io::ErrorKind::InvalidData, what).into()
        })
    }

    /// As [`load_bits`]: bits beyond the end read as 0.
    #[inline]
    pub(super) fn bits(&self, bit: u64, width: u32) -> Result<u64> {
        if width == 0 {
            // Such a column lies nowhere.
            return Ok(0);
        }
        let start = usize::try_from(bit >> 3).unwrap_or(usize::MAX);
        let (index, within) = self.find(start);
        let part = self.part(index)?;
        let shift = bit & 7;
        let count = (shift as usize + width as usize).div_ceil(8);
        if part.len().saturating_sub(within) >= count {
            return Ok(load_bits(part, (within as u64) << 3 | shift, width));
        }
        // Not more: the next part may be of a table that is not needed.
        let bytes = self.copy(start..start.saturating_add(count).min(self.len).max(start))?;
        Ok(load_bits(&bytes, shift, width))
    }

    /// A range that lies inside.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>> {
        if range.is_empty() {
            return Ok(Cow::Borrowed(&[]));
        }
        let (index, within) = self.find(range.start);
        let part = self.part(index)?;
        match part.get(within..within.saturating_add(range.len())) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => self.copy(range).map(Cow::Owned),
        }
    }

    /// The bytes of a range out of several parts.
    fn copy(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let (index, within) = self.find(at);
            let rest = self.part(index)?.get(within..).unwrap_or_default();
            let rest = &rest[..rest.len().min(range.end - at)];
            if rest.is_empty() {
                return Err(Error::corrupt("metadata lies outside of the data"));
            }
            bytes.extend_from_slice(rest);
            at += rest.len();
        }
        Ok(bytes)
    }
}

impl fmt::Debug for LazyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaded = self.parts.iter().filter(|part| part.bytes.get().is_some());
        f.debug_struct("LazyBytes")
            .field("len", &self.len)
            .field("loaded", &loaded.count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    const PART: usize = LazyBytes::PART;

    fn data(len: usize) -> Arc<[u8]> {
        (0..len).map(|i| (i * 89 + i / 251) as u8).collect()
    }

    fn lazy(data: &Arc<[u8]>) -> (LazyBytes, Arc<AtomicU32>) {
        let loads = Arc::new(AtomicU32::new(0));
        let (data, counted) = (Arc::clone(data), Arc::clone(&loads));
        let lazy = LazyBytes::new(data.len(), move |range| {
            counted.fetch_add(1, Relaxed);
            Ok(data[range].into())
        });
        (lazy, loads)
    }

    #[test]
    fn all_bits_are_those_of_the_whole() {
        for len in [2 * PART + 5, 2 * PART, PART + 1, 9, 1, 0] {
            let data = data(len);
            let (lazy, _) = lazy(&data);
            let near = |at: usize| at.saturating_sub(12)..at + 12;
            let places = near(0).chain(near(PART)).chain(near(2 * PART));
            for byte in places.chain(near(len)) {
                for bit in (byte as u64 * 8..).take(8) {
                    for width in [0, 1, 7, 8, 9, 31, 32, 57, 63, 64] {
                        let expected = load_bits(&data, bit, width);
                        assert_eq!(lazy.bits(bit, width).unwrap(), expected, "{bit} {width}");
                    }
                }
            }
            assert_eq!(lazy.bits(u64::MAX, 64).unwrap(), 0);
        }
    }

    #[test]
    fn ranges_are_borrowed_where_they_lie_in_one_part() {
        let data = data(3 * PART + 77);
        let (lazy, _) = lazy(&data);
        for (range, borrowed) in [
            (0..0, true),
            (0..PART, true),
            (PART - 1..PART + 1, false),
            (PART..2 * PART, true),
            (5..2 * PART + 9, false),
            (3 * PART..3 * PART + 77, true),
            (data.len()..data.len(), true),
        ] {
            let bytes = lazy.bytes(range.clone()).unwrap();
            assert_eq!(*bytes, data[range.clone()]);
            assert_eq!(matches!(bytes, Cow::Borrowed(_)), borrowed, "{range:?}");
        }
        assert!(lazy.bytes(3 * PART..3 * PART + 78).is_err());
        assert!(lazy.bytes(9 * PART..9 * PART + 1).is_err());
    }

    #[test]
    fn a_part_is_loaded_once_and_only_when_it_is_needed() {
        let data = data(5 * PART + 1);
        let (lazy, loads) = lazy(&data);
        let bytes = FrozenBytes::from(lazy);
        let bits = bytes.bits();
        assert_eq!(loads.load(Relaxed), 0);
        for _ in 0..3 {
            bits.load(8 * 70_000, 32).unwrap();
            bits.load(8 * 5 * PART as u64, 0).unwrap();
            bits.bytes(3 * PART as u64 - 1, 2).unwrap();
        }
        assert_eq!(loads.load(Relaxed), 3);
        let sizes = |bytes: &FrozenBytes| bytes.in_memory().map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(&bytes), [PART; 3]);
        bytes.load_all().unwrap();
        bytes.load_all().unwrap();
        assert_eq!(loads.load(Relaxed), 6);
        assert_eq!(sizes(&bytes), [PART, PART, PART, PART, PART, 1]);
        assert_eq!(bytes.in_memory().collect::<Vec<_>>().concat(), *data);
    }

    /// Tables with these ends; loading a part also yields all parts before it in its table.
    fn tables(ends: &'static [usize], data: &Arc<[u8]>) -> (LazyBytes, Arc<AtomicU32>) {
        let loads = Arc::new(AtomicU32::new(0));
        let (data, counted) = (Arc::clone(data), Arc::clone(&loads));
        let lazy = LazyBytes::of_tables(ends, move |range, put| {
            counted.fetch_add(1, Relaxed);
            // What is no part is ignored.
            put(range.start + 1, Box::default());
            put(range.start, Box::default());
            put(usize::MAX, Box::default());
            let table = ends.iter().rposition(|end| *end <= range.start);
            let mut start = table.map_or(0, |table| ends[table]);
            while start < range.end {
                let end = (start + PART).min(range.end);
                put(start, data[start..end].into());
                start = end;
            }
            Ok(())
        });
        (lazy, loads)
    }

    #[test]
    fn tables_are_loaded_apart() {
        let ends = &[0, 5, 2 * PART + 7, 2 * PART + 7, 2 * PART + 20, 5 * PART];
        let data = data(5 * PART);
        let (lazy, loads) = tables(ends, &data);
        let bytes = FrozenBytes::from(lazy);
        let bits = bytes.bits();
        let sizes = |bytes: &FrozenBytes| bytes.in_memory().map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(bytes.len(), data.len());
        // The last bits of a table do not need the next one.
        bits.load(8 * 5 - 1, 1).unwrap();
        bits.load(8 * 2 * PART as u64, 56).unwrap();
        bits.bytes(2 * PART as u64, 7).unwrap();
        assert_eq!(sizes(&bytes), [5, PART, PART, 2]);
        assert_eq!(loads.load(Relaxed), 3);
        bytes.load_all().unwrap();
        assert_eq!(loads.load(Relaxed), 7);
        assert_eq!(sizes(&bytes), [5, PART, PART, 2, 13, PART, PART, PART - 20]);
        assert_eq!(bytes.in_memory().collect::<Vec<_>>().concat(), *data);
        let (lazy, _) = tables(ends, &data);
        for byte in (0..40)
            .chain(2 * PART - 12..2 * PART + 40)
            .chain(5 * PART - 12..5 * PART)
        {
            for bit in (byte as u64 * 8..).take(8) {
                for width in [1, 9, 33, 64] {
                    let expected = load_bits(&data, bit, width);
                    assert_eq!(lazy.bits(bit, width).unwrap(), expected, "{bit} {width}");
                }
            }
            for end in byte..(byte + 30).min(data.len()) {
                assert_eq!(*lazy.bytes(byte..end).unwrap(), data[byte..end]);
            }
        }
        let (none, _) = tables(&[], &data);
        assert_eq!((none.len(), none.bits(0, 64).unwrap()), (0, 0));
    }

    #[test]
    fn damage_of_a_part_keeps_no_other_from_being_loaded() {
        let lazy = LazyBytes::new(5 * PART, |range| match range.start / PART {
            1 => Err(Error::corrupt("first")),
            3 => Err(Error::corrupt("second")),
            _ => Ok(vec![7; range.len()].into()),
        });
        let bytes = FrozenBytes::from(lazy);
        let e = bytes.load_all().unwrap_err().to_string();
        assert!(e.ends_with("first"), "{e}");
        assert_eq!(bytes.in_memory().count(), 3);
        let lazy = LazyBytes::new(5 * PART, |range| match range.start / PART {
            1 => Err(Error::corrupt("damaged")),
            3 => Err(io::Error::other("unplugged").into()),
            _ => Ok(vec![7; range.len()].into()),
        });
        let bytes = FrozenBytes::from(lazy);
        let e = bytes.load_all().unwrap_err();
        assert!(matches!(e, Error::Io(_)), "{e}");
    }

    #[test]
    fn a_part_that_fails_is_tried_again() {
        let attempts = AtomicU32::new(0);
        let lazy = LazyBytes::new(PART, move |range| match attempts.fetch_add(1, Relaxed) {
            0 => Err(std::io::Error::other("unplugged").into()),
            1 => Ok(Box::default()),
            _ => Ok(vec![7; range.len()].into()),
        });
        let failed = lazy.bits(80, 8).unwrap_err().to_string();
        assert!(failed.ends_with("unplugged"), "{failed}");
        let short = lazy.bytes(0..9).unwrap_err().to_string();
        assert!(short.contains("another length"), "{short}");
        assert_eq!(lazy.bits(80, 8).unwrap(), 7);
    }
}
