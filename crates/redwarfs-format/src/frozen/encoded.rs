//! Lists of records that are encoded before the value that they belong to.

use std::collections::BTreeMap;

use super::containers::{Area, element, measure_around, measure_elements, write_around};
use super::freezer::Widths;
use super::value::{Measure, Node, Pos, Sink, Value};
use crate::error::{Error, Result};

/// A list of records without separate areas, in the form that it has in frozen bytes. It takes the memory of these bytes: the
/// records need not exist at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedList {
    count: u64,
    /// Of a record.
    item: Node,
    bytes: Vec<u8>,
}

impl EncodedList {
    /// Encodes the records that `records` gives, which is called twice and has to give the same ones.
    ///
    /// # Errors
    /// `Limit` if the list does not fit the memory of this machine.
    pub fn new<T: Value, I: ExactSizeIterator<Item = T>>(
        records: impl Fn() -> I,
        widths: Widths,
    ) -> Result<Self> {
        const { assert!(T::FLAT, "areas of elements have a place of their own") };
        let mut item = T::blank()?;
        let mut m = Measure {
            widths,
            ..Measure::default()
        };
        measure_elements::<T>(records(), &mut m, &mut item, 0);
        let all = records();
        let count = all.len() as u64;
        let size = (count * u64::from(item.bits)).div_ceil(8);
        let size = usize::try_from(size).map_err(|_| Error::Limit("metadata too large".into()))?;
        let mut sink = Sink::default();
        sink.out.resize(size, 0);
        for (i, record) in (0..).zip(all) {
            record.write(
                &mut sink,
                &item,
                element(Area { count, start: 0 }, &item, i),
            );
        }
        Ok(Self {
            count,
            item,
            bytes: sink.out,
        })
    }

    /// Number of records.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// As [`Value::measure`] of the list.
    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
        measure_around(self.count, true, m, node, base, 1, |m, item, _| {
            if *item != self.item {
                item.clone_from(&self.item);
                m.changed = true;
            }
        });
    }

    /// As [`Value::write`] of the list.
    fn write(self, sink: &mut Sink, node: &Node, pos: Pos) {
        write_around(self.count, true, sink, node, pos, 1, |sink, _, area| {
            let start = usize::try_from(area.start).unwrap_or(usize::MAX);
            let place = sink.out.get_mut(start..);
            if let Some(place) = place.and_then(|place| place.get_mut(..self.bytes.len())) {
                place.copy_from_slice(&self.bytes);
            }
        });
    }
}

/// Lists that are members of a struct, by the ids of the members. They take the place of what the struct has there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedMembers(BTreeMap<i16, EncodedList>);

impl EncodedMembers {
    /// Adds the member `id`, which is a list, or an optional one.
    pub fn insert(&mut self, id: i16, list: EncodedList) {
        self.0.insert(id, list);
    }

    /// The member `id`.
    #[must_use]
    pub fn get(&self, id: i16) -> Option<&EncodedList> {
        self.0.get(&id)
    }
}

impl Measure {
    /// Measures a member that was encoded before. Returns whether it was.
    pub(crate) fn encoded(&mut self, id: i16, node: &mut Node, base: u64) -> bool {
        let Some(list) = self.members.0.remove(&id) else {
            return false;
        };
        match &mut node.kids[..] {
            // An optional one.
            [isset, value] => {
                true.measure(self, &mut isset.node, base);
                let end = Measure::place(isset, 0);
                list.measure(self, &mut value.node, base);
                let end = Measure::place(value, end);
                node.grow(end, self);
            }
            _ => list.measure(self, node, base),
        }
        self.members.0.insert(id, list);
        true
    }
}

impl Sink {
    /// Writes a member that was encoded before, and frees its memory. Returns whether it was.
    pub(crate) fn encoded(&mut self, id: i16, node: &Node, pos: Pos) -> bool {
        let Some(list) = self.members.0.remove(&id) else {
            return false;
        };
        match &node.kids[..] {
            [isset, value] => {
                true.write(self, &isset.node, pos.member(isset));
                list.write(self, &value.node, pos.member(value));
            }
            _ => list.write(self, node, pos),
        }
        true
    }
}
