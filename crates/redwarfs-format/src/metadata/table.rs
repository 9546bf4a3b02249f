//! Resolved places of tables inside the frozen bytes.

use super::once::Once;
use crate::error::{Error, Result};
use crate::frozen::{BitSource, Kid, Node, Pos, Value, element, locate};

/// One integer per element of a table: where the first is and how far apart they are.
///
/// All elements were found to lie inside the data when the column was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Column {
    base: u64,
    stride: u64,
    width: u32,
    len: u32,
}

impl Column {
    /// Element `i`; 0 if there is none.
    ///
    /// # Errors
    /// Those of loading data that are not in memory yet.
    #[inline]
    pub(super) fn get(&self, data: BitSource<'_>, i: u32) -> Result<u64> {
        if i >= self.len {
            return Ok(0);
        }
        data.load_inside(self.base + u64::from(i) * self.stride, self.width)
    }

    /// Element `i` of a column of at most 32 bits; 0 if there is none.
    ///
    /// # Errors
    /// As [`Column::get`].
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the width of such columns is limited to 32 when the schema is resolved"
    )]
    pub(super) fn get32(&self, data: BitSource<'_>, i: u32) -> Result<u32> {
        Ok(self.get(data, i)? as u32)
    }

    /// Number of elements.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Bits per value.
    pub(super) fn width(&self) -> u32 {
        self.width
    }

    /// Bits from one element to the next.
    pub(super) fn stride(&self) -> u64 {
        self.stride
    }
}

/// A list of numbers that is read in place, was unpacked, or is unpacked when it is first used.
#[derive(Debug)]
pub(super) enum Numbers {
    InPlace(Column),
    Unpacked(Vec<u32>),
    Packed(Differences),
}

/// Numbers of which the image has the differences.
#[derive(Debug)]
pub(super) struct Differences {
    column: Column,
    /// The first number is 0 and not in the column.
    from_zero: bool,
    /// The name of the table, for errors.
    what: &'static str,
    sums: Once<Vec<u32>>,
}

impl Differences {
    /// The numbers. The first call adds up all differences: four bytes for each.
    ///
    /// # Errors
    /// `Corrupt` if a number exceeds 32 bits, and the errors of [`Column::get`].
    #[inline]
    fn sums(&self, data: BitSource<'_>) -> Result<&[u32]> {
        let sums = self.sums.get_or_make(|| self.add_up(data));
        sums.map(Vec::as_slice)
    }

    #[cold]
    fn add_up(&self, data: BitSource<'_>) -> Result<Vec<u32>> {
        let mut sums = Vec::with_capacity(self.len() as usize);
        if self.from_zero {
            sums.push(0);
        }
        let mut sum = 0u32;
        for i in 0..self.column.len() {
            let what = || Error::corrupt(format!("{}: sum exceeds 32 bits", self.what));
            sum = sum
                .checked_add(self.column.get32(data, i)?)
                .ok_or_else(what)?;
            sums.push(sum);
        }
        Ok(sums)
    }

    fn len(&self) -> u32 {
        self.column.len().saturating_add(self.from_zero.into())
    }
}

impl Numbers {
    /// The sums of the differences in `column`, after a zero if they begin `from_zero`. Errors name
    /// the table as `what`.
    pub(super) fn packed(column: Column, from_zero: bool, what: &'static str) -> Self {
        Self::Packed(Differences {
            column,
            from_zero,
            what,
            sums: Once::new(),
        })
    }

    /// Unpacks the numbers if that was not done yet.
    ///
    /// # Errors
    /// Those of [`Numbers::get`].
    pub(super) fn unpack(&self, data: BitSource<'_>) -> Result<()> {
        match self {
            Self::Packed(differences) => differences.sums(data).map(drop),
            Self::InPlace(_) | Self::Unpacked(_) => Ok(()),
        }
    }

    /// Element `i`; 0 if there is none.
    ///
    /// # Errors
    /// As [`Column::get`], and `Corrupt` if the numbers cannot be unpacked.
    #[inline]
    pub(super) fn get(&self, data: BitSource<'_>, i: u32) -> Result<u32> {
        match self {
            Self::Packed(differences) => {
                let sums = differences.sums(data)?;
                Ok(sums.get(i as usize).copied().unwrap_or(0))
            }
            Self::InPlace(column) => column.get32(data, i),
            Self::Unpacked(list) => Ok(list.get(i as usize).copied().unwrap_or(0)),
        }
    }

    /// Number of elements.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "unpacked lists are not longer than the 32-bit number of inodes plus one"
    )]
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::InPlace(column) => column.len(),
            Self::Unpacked(list) => list.len() as u32,
            Self::Packed(differences) => differences.len(),
        }
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self::InPlace(Column::default())
    }
}

/// An object of the type tree at a known position.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodePosition<'a> {
    source: BitSource<'a>,
    node: &'a Node,
    pos: Pos,
}

impl<'a> NodePosition<'a> {
    pub(super) fn root(source: BitSource<'a>, node: &'a Node) -> Self {
        Self {
            source,
            node,
            pos: Pos::default(),
        }
    }

    fn kid(&self, id: i16) -> Result<&'a Kid> {
        self.node
            .kid(id)
            .ok_or_else(|| Error::corrupt("metadata type without that member"))
    }

    /// The member with this id, which the type must have.
    pub(super) fn member(&self, id: i16) -> Result<NodePosition<'a>> {
        let kid = self.kid(id)?;
        Ok(NodePosition {
            source: self.source,
            node: &kid.node,
            pos: self.pos.member(kid),
        })
    }

    /// The value of this optional, if set.
    pub(super) fn value(&self) -> Result<Option<NodePosition<'a>>> {
        if self.member(1)?.read::<bool>()? {
            self.member(2).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Reads the whole object.
    pub(super) fn read<T: Value>(&self) -> Result<T> {
        T::read(&self.source, self.node, self.pos)
    }

    /// Interprets the object as a list.
    pub(super) fn list(&self) -> Result<List<'a>> {
        let area = locate(&self.source, self.node, self.pos)?;
        let len = u32::try_from(area.count)
            .ok()
            .filter(|n| *n < u32::MAX)
            .ok_or_else(|| Error::Limit(format!("metadata table of {} elements", area.count)))?;
        let item = self.node.kid(3).map(|k| &k.node);
        let first = item.map_or(
            Pos {
                byte: area.start,
                bit: 0,
            },
            |item| element(area, item, 0),
        );
        Ok(List {
            source: self.source,
            item,
            first,
            len,
        })
    }

    /// Interprets the object as a string; the range of its bytes.
    pub(super) fn string(&self) -> Result<std::ops::Range<usize>> {
        let area = locate(&self.source, self.node, self.pos)?;
        let to_index = |n: u64| {
            usize::try_from(n)
                .map_err(|_| Error::corrupt("metadata string lies outside of the data"))
        };
        // locate() found the area inside the data.
        Ok(to_index(area.start)?..to_index(area.start.saturating_add(area.count))?)
    }
}

/// A list at a known position.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    source: BitSource<'a>,
    item: Option<&'a Node>,
    first: Pos,
    len: u32,
}

impl List<'_> {
    /// Number of elements.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// First byte of the area.
    pub(super) fn start(&self) -> u64 {
        self.first.byte
    }

    /// Bytes from one element to the next if elements are byte-sized, else 0.
    pub(super) fn byte_stride(&self) -> u64 {
        self.item.map_or(0, |i| u64::from(i.size))
    }

    /// The elements themselves, which must be integers.
    pub(super) fn values(&self) -> Result<Column> {
        self.item
            .map_or(Ok(Column::default()), |item| self.make(item, self.first))
    }

    /// The integer member `id` of the elements.
    pub(super) fn column(&self, id: i16) -> Result<Column> {
        let Some(kid) = self.item.and_then(|i| i.kid(id)) else {
            return Err(Error::corrupt("metadata type without that member"));
        };
        self.make(&kid.node, self.first.member(kid))
    }

    /// Length and distance of the string member `id` of the elements, and the byte of the first element
    /// that distances refer to.
    pub(super) fn string_columns(&self, id: i16) -> Result<(Column, Column, u64)> {
        let missing = || Error::corrupt("metadata type without that member");
        let kid = self.item.and_then(|i| i.kid(id)).ok_or_else(missing)?;
        let first = self.first.member(kid);
        let part = |id| {
            let part = kid.node.kid(id).ok_or_else(missing)?;
            self.make(&part.node, first.member(part))
        };
        Ok((part(2)?, part(1)?, first.byte))
    }

    fn make(&self, node: &Node, first: Pos) -> Result<Column> {
        let stride = self.item.map_or(0, |item| {
            if item.size > 0 {
                u64::from(item.size) * 8
            } else {
                u64::from(item.bits)
            }
        });
        let mut column = Column {
            base: first.address(),
            stride,
            width: node.bits,
            len: self.len,
        };
        if node.bits == 0 {
            column.base = 0;
            return Ok(column);
        }
        let end = u64::from(self.len)
            .saturating_sub(1)
            .checked_mul(stride)
            .and_then(|d| d.checked_add(column.base))
            .and_then(|b| b.checked_add(u64::from(node.bits)));
        match end {
            Some(end) if self.len == 0 || end <= self.source.bit_len() => Ok(column),
            _ => Err(Error::corrupt("metadata table lies outside of the data")),
        }
    }
}
