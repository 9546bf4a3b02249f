//! String tables in all their forms (section 8).

use std::borrow::Cow;
use std::ops::Range;

use super::table::{Column, List, NodePosition, Numbers};
use crate::error::{Error, Result};
use crate::frozen::BitSource;
use crate::fsst::SymbolTable;

/// Longest string that is returned, in stored bytes (64 KiB): sixteen times the limit of the full check
/// for symlink targets. Without this bound, every entry of a directory could have the same name of many
/// megabytes.
const LONGEST: usize = 64 << 10;

/// A name table or a table of symlink targets.
#[derive(Debug)]
pub(super) enum Strings {
    /// A list of strings.
    Plain {
        distance: Column,
        count: Column,
        /// First byte of the list's area; distances are relative to it or, if elements are
        /// byte-sized, to the start of the element.
        start: u64,
        byte_stride: u64,
    },
    /// One buffer and an index.
    Compact {
        buffer: Range<usize>,
        /// Starts of all strings and the end of the last.
        starts: Numbers,
        symbols: Option<SymbolTable>,
    },
}

impl Strings {
    /// Resolves the compact table if set, else the plain one.
    pub(super) fn resolve(
        plain: NodePosition<'_>,
        compact: NodePosition<'_>,
        data: BitSource<'_>,
        limit: u32,
    ) -> Result<Self> {
        let Some(table) = compact.value()? else {
            return Self::plain(plain);
        };
        let index = table.member(3)?.list()?.values()?;
        if index.stride() == 0 && index.len() > limit.saturating_add(1) {
            return Err(Error::corrupt(
                "string table has more strings than there are entries",
            ));
        }
        let starts = if table.member(4)?.read::<bool>()? {
            Numbers::packed(index, true, "string table")
        } else {
            if index.len() == 0 {
                return Err(Error::corrupt("string table: empty index"));
            }
            Numbers::InPlace(index)
        };
        let symbols = match table.member(2)?.value()? {
            Some(symtab) => {
                let range = symtab.string()?;
                if range.len() > LONGEST {
                    return Err(Error::Limit(format!(
                        "a symbol table of {} bytes",
                        range.len()
                    )));
                }
                let bytes = data.bytes(range.start as u64, range.len() as u64)?;
                Some(SymbolTable::parse(&bytes)?)
            }
            None => None,
        };
        Ok(Self::Compact {
            buffer: table.member(1)?.string()?,
            starts,
            symbols,
        })
    }

    /// A list of strings.
    pub(super) fn plain(place: NodePosition<'_>) -> Result<Self> {
        let list = place.list()?;
        Ok(Self::Plain {
            distance: list.column(1)?,
            count: list.column(2)?,
            start: list.start(),
            byte_stride: list.byte_stride(),
        })
    }

    /// The string member `id` of the elements of a list.
    pub(super) fn member(list: &List<'_>, id: i16) -> Result<Self> {
        let (count, distance, start) = list.string_columns(id)?;
        Ok(Self::Plain {
            distance,
            count,
            start,
            byte_stride: list.byte_stride(),
        })
    }

    /// Unpacks the index if that was not done yet.
    ///
    /// # Errors
    /// Those of [`Numbers::get`].
    pub(super) fn unpack(&self, data: BitSource<'_>) -> Result<()> {
        match self {
            Self::Plain { .. } => Ok(()),
            Self::Compact { starts, .. } => starts.unpack(data),
        }
    }

    /// Number of strings.
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Plain { count, .. } => count.len(),
            Self::Compact { starts, .. } => starts.len().saturating_sub(1),
        }
    }

    /// True if strings are FSST compressed.
    pub(super) fn is_compressed(&self) -> bool {
        matches!(
            self,
            Self::Compact {
                symbols: Some(_),
                ..
            }
        )
    }

    /// Where string `k` is stored, in bytes of the data.
    pub(super) fn range(&self, data: BitSource<'_>, k: u32) -> Result<Range<usize>> {
        let outside = || Error::corrupt("string index out of range");
        if k >= self.len() {
            return Err(outside());
        }
        let (start, end) = match self {
            Self::Plain {
                distance,
                count,
                start,
                byte_stride,
            } => {
                let n = count.get(data, k)?;
                if n == 0 {
                    return Ok(0..0);
                }
                let distance = distance.get(data, k)?;
                let first = u64::from(k)
                    .checked_mul(*byte_stride)
                    .and_then(|o| o.checked_add(*start))
                    .and_then(|b| b.checked_add(distance))
                    .ok_or_else(outside)?;
                let to_index = |n: u64| usize::try_from(n).map_err(|_| outside());
                (
                    to_index(first)?,
                    to_index(first.checked_add(n).ok_or_else(outside)?)?,
                )
            }
            Self::Compact { buffer, starts, .. } => {
                let a = starts.get(data, k)? as usize;
                let b = starts.get(data, k.saturating_add(1))? as usize;
                if a > b || b > buffer.len() {
                    return Err(outside());
                }
                // Inside `buffer`, which lies inside the data.
                (buffer.start + a, buffer.start + b)
            }
        };
        if end as u64 > data.bit_len() / 8 {
            Err(outside())
        } else {
            Ok(start..end)
        }
    }

    /// String `k` as stored.
    pub(super) fn stored<'a>(&self, data: BitSource<'a>, k: u32) -> Result<Cow<'a, [u8]>> {
        let range = self.range(data, k)?;
        if range.len() > LONGEST {
            return Err(Error::Limit(format!(
                "a name or symlink target of {} bytes",
                range.len()
            )));
        }
        data.bytes(range.start as u64, range.len() as u64)
    }

    /// String `k`.
    pub(super) fn get<'a>(&self, data: BitSource<'a>, k: u32) -> Result<Cow<'a, [u8]>> {
        let stored = self.stored(data, k)?;
        match self {
            Self::Compact {
                symbols: Some(symbols),
                ..
            } => {
                let mut out = Vec::with_capacity(stored.len().saturating_mul(2));
                symbols.decompress(&stored, &mut out)?;
                Ok(Cow::Owned(out))
            }
            _ => Ok(stored),
        }
    }

    /// Appends string `k` to `out`.
    pub(super) fn append(&self, data: BitSource<'_>, k: u32, out: &mut Vec<u8>) -> Result<()> {
        let stored = self.stored(data, k)?;
        match self {
            Self::Compact {
                symbols: Some(symbols),
                ..
            } => symbols.decompress(&stored, out),
            _ => {
                out.extend_from_slice(&stored);
                Ok(())
            }
        }
    }

    /// Checks the form of the table: `expected` strings of at most `longest` stored bytes, which
    /// fill the buffer exactly, and which decode to something that `valid` accepts.
    pub(super) fn check(
        &self,
        data: BitSource<'_>,
        what: &str,
        expected: u32,
        longest: usize,
        valid: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let bad = |why: &str| Error::corrupt(format!("{what} table: {why}"));
        if self.len() != expected {
            return Err(bad(&format!("{} strings, expected {expected}", self.len())));
        }
        if let Self::Compact { buffer, starts, .. } = self {
            if starts.get(data, 0)? != 0 {
                return Err(bad("does not start at 0"));
            }
            if starts.get(data, expected)? as usize != buffer.len() {
                return Err(bad("does not fill its buffer"));
            }
        }
        let mut next = None;
        let mut text = Vec::new();
        for k in 0..expected {
            let range = self.range(data, k)?;
            if range.len() > longest {
                return Err(bad("string too long"));
            }
            if let Self::Plain { .. } = self
                && !range.is_empty()
            {
                if next.is_some_and(|n| n != range.start) {
                    return Err(bad("strings are not consecutive"));
                }
                next = Some(range.end);
            }
            text.clear();
            self.append(data, k, &mut text)?;
            if !valid(&text) {
                return Err(bad("invalid string"));
            }
        }
        Ok(())
    }
}
