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
            .chain(parts.filter_map(|part| part.get().map(AsRef::as_ref)))
    }

    /// Loads the parts that are not in memory.
    ///
    /// # Errors
    /// Those of the function that loads.
    pub fn load_all(&self) -> Result<()> {
        match self {
            Self::Whole(_) => Ok(()),
            Self::Lazy(bytes) => (0..bytes.parts.len()).try_for_each(|i| bytes.part(i).map(drop)),
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

/// Makes the bytes of a range, as many as it has.
type Load = dyn Fn(Range<usize>) -> Result<Box<[u8]>> + Send + Sync;

/// Bytes that are loaded in parts of 64 KiB when something in them is used for the first time, and
/// stay: 24 bytes for each part, and those parts. If a part cannot be loaded, the access that needs it
/// gets an [`Error::Io`], and the next access tries again. No lock is held while loading.
pub struct LazyBytes {
    len: usize,
    parts: Box<[OnceLock<Box<[u8]>>]>,
    load: Box<Load>,
}

impl LazyBytes {
    /// Size of all parts but the last, in bytes.
    pub const PART: usize = 64 << 10;

    /// `len` bytes. `load` returns the bytes of a range, which is a whole part. Several threads may
    /// call it at once, also for the same part.
    pub fn new(
        len: usize,
        load: impl Fn(Range<usize>) -> Result<Box<[u8]>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            len,
            parts: (0..len.div_ceil(Self::PART))
                .map(|_| OnceLock::new())
                .collect(),
            load: Box::new(load),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A part; empty after the last one.
    #[inline]
    fn part(&self, index: usize) -> Result<&[u8]> {
        match self.parts.get(index).map(OnceLock::get) {
            Some(Some(part)) => Ok(part),
            Some(None) => self.load_part(index),
            None => Ok(&[]),
        }
    }

    #[cold]
    fn load_part(&self, index: usize) -> Result<&[u8]> {
        let start = index * Self::PART;
        let range = start..(start + Self::PART).min(self.len);
        let part = (self.load)(range.clone())?;
        if part.len() != range.len() {
            let what = "a part of the metadata has another length";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
        }
        // The part is in the list: its number comes from `part`.
        Ok(self.parts[index].get_or_init(|| part))
    }

    /// As [`load_bits`]: bits beyond the end read as 0.
    #[inline]
    pub(super) fn bits(&self, bit: u64, width: u32) -> Result<u64> {
        if width == 0 {
            // Such a column lies nowhere.
            return Ok(0);
        }
        let start = usize::try_from(bit >> 3).unwrap_or(usize::MAX);
        let within = start % Self::PART;
        if within + 9 <= Self::PART {
            let part = self.part(start / Self::PART)?;
            return Ok(load_bits(part, (within as u64) << 3 | (bit & 7), width));
        }
        // 64 bits that do not begin with a byte reach into nine bytes.
        let bytes = self.copy(start..start.saturating_add(9).min(self.len).max(start))?;
        Ok(load_bits(&bytes, bit & 7, width))
    }

    /// A range that lies inside.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>> {
        let index = range.start / Self::PART;
        let start = index * Self::PART;
        let within = range.start - start..range.end.saturating_sub(start);
        match self.part(index)?.get(within) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => self.copy(range).map(Cow::Owned),
        }
    }

    /// The bytes of a range out of several parts.
    fn copy(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let part = self.part(at / Self::PART)?;
            let rest = part.get(at % Self::PART..).unwrap_or_default();
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
        let loaded = self.parts.iter().filter(|part| part.get().is_some());
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
