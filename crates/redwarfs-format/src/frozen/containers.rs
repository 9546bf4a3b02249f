//! Lists, strings, sets and maps: values with a separate area (sections 4.3 to 4.5).

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use super::bits::BitSource;
use super::describe::TypeInfo;
use super::freezer::{SMALL_TABLE, Table, Widths};
use super::schema::Layout;
use super::value::{Kid, Measure, Node, Pos, Shaper, Sink, Value};
use crate::error::{Error, Result};

/// Most elements without any bits in a list whose elements own memory: such elements are empty
/// strings, of which no table has many.
const MAX_EMPTY: u64 = 4096;

/// Memory that the elements of a list may take, relative to all of the data. The worst that
/// writers produce is about 40: inodes that differ in nothing, with an entry for each.
const MAX_EXPANSION: u64 = 64;
/// Memory that the elements of a list may take in any case, in bytes (4 MiB).
const FREE_EXPANSION: u64 = 4 << 20;

/// Where the elements of a list are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Area {
    /// Number of elements.
    pub(crate) count: u64,
    /// First byte of the elements.
    pub(crate) start: u64,
}

/// Distance, count and item of a list or string node.
pub(crate) fn list_kids(node: &Node) -> Option<(&Kid, &Kid, Option<&Kid>)> {
    match &node.kids[..] {
        [d, c] => Some((d, c, None)),
        [d, c, item] => Some((d, c, Some(item))),
        _ => None,
    }
}

/// Locates and bounds the elements of the list at `pos` (section 4.3).
pub(crate) fn locate(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Area> {
    let Some((distance, count, item)) = list_kids(node) else {
        return Ok(Area {
            count: 0,
            start: pos.byte,
        });
    };
    let n = source.load(pos.member(count).address(), count.node.bits)?;
    if n == 0 {
        return Ok(Area {
            count: 0,
            start: pos.byte,
        });
    }
    let d = source.load(pos.member(distance).address(), distance.node.bits)?;
    let outside = || Error::corrupt("metadata list lies outside of the data");
    let start = pos.byte.checked_add(d).ok_or_else(outside)?;
    let bytes = match item.map(|i| (i.node.size, i.node.bits)) {
        None => n,
        Some((0, 0)) => {
            if n > source.widthless_limit() {
                return Err(Error::Limit(format!(
                    "metadata list of {n} elements without content"
                )));
            }
            return Ok(Area { count: n, start });
        }
        Some((0, bits)) => n
            .checked_mul(u64::from(bits))
            .ok_or_else(outside)?
            .div_ceil(8),
        Some((size, _)) => n.checked_mul(u64::from(size)).ok_or_else(outside)?,
    };
    match start.checked_add(bytes) {
        Some(end) if end <= source.bit_len() / 8 => Ok(Area { count: n, start }),
        _ => Err(outside()),
    }
}

/// Position of element `i` of a list area.
#[inline]
pub(crate) fn element(area: Area, item: &Node, i: u64) -> Pos {
    if item.size > 0 {
        Pos {
            byte: area
                .start
                .saturating_add(i.saturating_mul(u64::from(item.size))),
            bit: 0,
        }
    } else {
        Pos {
            byte: area.start,
            bit: i.saturating_mul(u64::from(item.bits)),
        }
    }
}

pub(crate) fn shape_list<T: Value>(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
    shaper.composite(
        layout,
        &[
            (1, |s, l| u64::shape(s, l)),
            (2, |s, l| u64::shape(s, l)),
            (3, |s, l| T::shape(s, l)),
        ],
    )
}

pub(crate) fn read_list<T: Value>(
    source: &BitSource<'_>,
    node: &Node,
    pos: Pos,
    mut each: impl FnMut(T),
) -> Result<()> {
    let area = locate(source, node, pos)?;
    let Some((_, _, Some(item))) = list_kids(node) else {
        return Ok(());
    };
    if !T::FLAT && item.node.bits == 0 && item.node.size == 0 && area.count > MAX_EMPTY {
        return Err(Error::Limit(format!(
            "metadata list of {} empty strings",
            area.count
        )));
    }
    let bytes = source.bit_len() / 8;
    let memory = area.count.saturating_mul(size_of::<T>() as u64);
    if memory > MAX_EXPANSION.saturating_mul(bytes).max(FREE_EXPANSION) {
        return Err(Error::Limit(format!(
            "metadata list of {} elements in {bytes} bytes",
            area.count
        )));
    }
    // Areas do not overlap, so together they are not larger than the data. Without this bound,
    // many elements could refer to the same large area.
    let mut left = bytes;
    for i in 0..area.count {
        let value = T::read(source, &item.node, element(area, &item.node, i))?;
        left = left
            .checked_sub(value.copied())
            .ok_or_else(|| Error::corrupt("metadata strings overlap"))?;
        each(value);
    }
    Ok(())
}

pub(crate) fn measure_list<T: Value>(
    items: impl ExactSizeIterator<Item = impl Borrow<T>>,
    m: &mut Measure,
    node: &mut Node,
    base: u64,
    align: u64,
) {
    let n = items.len() as u64;
    measure_around(n, T::FLAT, m, node, base, align, |m, item, start| {
        measure_elements::<T>(items, m, item, start);
    });
}

/// Measures a list of `n` elements, which `elements` measures: it gets their node and where the first one begins.
pub(super) fn measure_around(
    n: u64,
    flat: bool,
    m: &mut Measure,
    node: &mut Node,
    base: u64,
    align: u64,
    elements: impl FnOnce(&mut Measure, &mut Node, u64),
) {
    let settled = node.settled;
    let [distance, count, item] = &mut node.kids[..] else {
        return;
    };
    n.measure(m, &mut count.node, base);
    let end = Measure::place(count, 0);
    if n > 0 {
        let size = (n * u64::from(item.node.bits)).div_ceil(8);
        let (d, start) = m.take(size, base, align);
        d.measure(m, &mut distance.node, base);
        if !settled {
            elements(m, &mut item.node, start);
        }
    }
    let end = Measure::place(distance, end);
    node.grow(end, m);
    node.settled = flat && n > 0;
}

/// Measures the elements of a list.
pub(super) fn measure_elements<T: Value>(
    items: impl Iterator<Item = impl Borrow<T>>,
    m: &mut Measure,
    item: &mut Node,
    start: u64,
) {
    m.depth += 1;
    for value in items {
        value.borrow().measure(m, item, start);
    }
    m.depth -= 1;
    if T::FLAT && m.widths == Widths::Bytes {
        widen(item, m);
    }
}

/// Bits of the largest integers in records, except times.
const WORD: u32 = 32;

/// Widens members of a record of at most eight bytes until its length is a power of two. Codecs that
/// search for four bytes and more, or use the position of a byte in a word, then compress better.
fn widen(item: &mut Node, m: &mut Measure) {
    let wanted = item.bits.next_power_of_two();
    if wanted == item.bits || wanted > 2 * WORD {
        return;
    }
    let mut missing = wanted - item.bits;
    let mut end = 0;
    for kid in &mut item.kids {
        // Some of one byte must not be wider.
        if kid.node.bits > 8 && kid.node.bits < WORD {
            let more = missing.min(WORD - kid.node.bits);
            kid.node.bits += more;
            missing -= more;
        }
        end = Measure::place(kid, end);
    }
    item.grow(end, m);
}

pub(crate) fn write_list<T: Value>(
    items: impl ExactSizeIterator<Item = impl Borrow<T>>,
    sink: &mut Sink,
    node: &Node,
    pos: Pos,
    align: u64,
) {
    let n = items.len() as u64;
    write_around(n, T::FLAT, sink, node, pos, align, |sink, item, area| {
        for (i, value) in (0u64..).zip(items) {
            value.borrow().write(sink, item, element(area, item, i));
        }
    });
}

/// Writes a list of `n` elements, which `elements` writes: it gets their node and their place.
pub(super) fn write_around(
    n: u64,
    flat: bool,
    sink: &mut Sink,
    node: &Node,
    pos: Pos,
    align: u64,
    elements: impl FnOnce(&mut Sink, &Node, Area),
) {
    let Some((distance, count, Some(item))) = list_kids(node) else {
        return;
    };
    n.write(sink, &count.node, pos.member(count));
    let size = (n * u64::from(item.node.bits)).div_ceil(8);
    let (d, start) = sink.take(size, pos.byte, align);
    d.write(sink, &distance.node, pos.member(distance));
    if flat && size >= SMALL_TABLE {
        sink.tables.push(Table {
            start: start as usize,
            len: size as usize,
            bits: item.node.bits,
        });
    }
    if item.node.bits > 0 {
        elements(sink, &item.node, Area { count: n, start });
    }
}

/// Strings are byte strings (section 4.4).
impl Value for Vec<u8> {
    const FLAT: bool = false;

    fn describe() -> TypeInfo {
        TypeInfo::Bytes
    }

    fn copied(&self) -> u64 {
        self.len() as u64
    }

    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
        shaper.composite(
            layout,
            &[(1, |s, l| u64::shape(s, l)), (2, |s, l| u64::shape(s, l))],
        )
    }

    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
        let area = locate(source, node, pos)?;
        if area.count == 0 {
            return Ok(Vec::new());
        }
        Ok(source.bytes(area.start, area.count)?.into_owned())
    }

    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
        if self.is_empty() {
            return;
        }
        let [distance, count] = &mut node.kids[..] else {
            return;
        };
        let (d, _) = m.take(self.len() as u64, base, 1);
        d.measure(m, &mut distance.node, base);
        let end = Measure::place(distance, 0);
        (self.len() as u64).measure(m, &mut count.node, base);
        let end = Measure::place(count, end);
        node.grow(end, m);
    }

    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
        let [distance, count] = &node.kids[..] else {
            return;
        };
        let start = sink.out.len() as u64;
        if !self.is_empty() {
            sink.out.extend_from_slice(self);
            (start - pos.byte).write(sink, &distance.node, pos.member(distance));
            (self.len() as u64).write(sink, &count.node, pos.member(count));
        }
    }
}

/// Implements [`Value`] for lists of the given element types.
///
/// A blanket implementation is not possible because a list of bytes is a string.
macro_rules! list_of {
    ($($ty:ty),* $(,)?) => {$(
        impl $crate::frozen::Value for Vec<$ty> {
            const FLAT: bool = false;
            fn describe() -> $crate::frozen::TypeInfo {
                $crate::frozen::TypeInfo::List(Box::new(
                    <$ty as $crate::frozen::Value>::describe(),
                ))
            }
            fn shape(
                shaper: &$crate::frozen::Shaper<'_>,
                layout: Option<&$crate::frozen::Layout>,
            ) -> $crate::error::Result<$crate::frozen::Node> {
                $crate::frozen::lists::shape::<$ty>(shaper, layout)
            }
            fn read(
                source: &$crate::frozen::BitSource<'_>,
                node: &$crate::frozen::Node,
                pos: $crate::frozen::Pos,
            ) -> $crate::error::Result<Self> {
                let mut out = Vec::new();
                $crate::frozen::lists::read::<$ty>(source, node, pos, |v| out.push(v))?;
                Ok(out)
            }
            fn measure(
                &self,
                m: &mut $crate::frozen::Measure,
                node: &mut $crate::frozen::Node,
                base: u64,
            ) {
                $crate::frozen::lists::measure::<$ty>(self.iter(), m, node, base, 1);
            }
            fn write(
                &self,
                sink: &mut $crate::frozen::Sink,
                node: &$crate::frozen::Node,
                pos: $crate::frozen::Pos,
            ) {
                $crate::frozen::lists::write::<$ty>(self.iter(), sink, node, pos, 1);
            }
        }
    )*};
}
pub(crate) use list_of;

list_of!(u32, u64, Vec<u8>);

/// What `list_of!` expands to.
pub(crate) mod lists {
    pub(crate) use super::{
        measure_list as measure, read_list as read, shape_list as shape, write_list as write,
    };
}

impl Value for BTreeSet<Vec<u8>> {
    const FLAT: bool = false;

    fn describe() -> TypeInfo {
        TypeInfo::Set(Box::new(TypeInfo::Bytes))
    }

    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
        shape_list::<Vec<u8>>(shaper, layout)
    }

    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
        let mut out = BTreeSet::new();
        read_list(source, node, pos, |v| {
            out.insert(v);
        })?;
        Ok(out)
    }

    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
        measure_list::<Vec<u8>>(self.iter(), m, node, base, 1);
    }

    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
        write_list::<Vec<u8>>(self.iter(), sink, node, pos, 1);
    }
}

macro_rules! map_to {
    ($value:ty, $align:literal) => {
        impl Value for BTreeMap<u32, $value> {
            const FLAT: bool = false;
            fn describe() -> TypeInfo {
                TypeInfo::Map(Box::new(<(u32, $value)>::describe()))
            }
            fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
                shape_list::<(u32, $value)>(shaper, layout)
            }
            fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
                let mut out = BTreeMap::new();
                read_list(source, node, pos, |(k, v)| {
                    out.insert(k, v);
                })?;
                Ok(out)
            }
            fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
                let pairs = self.iter().map(|(k, v)| (*k, *v));
                measure_list::<(u32, $value)>(pairs, m, node, base, $align);
            }
            fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
                let pairs = self.iter().map(|(k, v)| (*k, *v));
                write_list::<(u32, $value)>(pairs, sink, node, pos, $align);
            }
        }
    };
}
map_to!(u64, 8);
map_to!(u32, 4);
