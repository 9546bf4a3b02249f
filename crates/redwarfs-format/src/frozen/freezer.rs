//! Freezing with minimal widths: the reference method (section 6.3).

use std::collections::HashMap;

use super::encoded::EncodedMembers;
use super::schema::{Field, Layout, Schema};
use super::value::{Measure, Node, Pos, Sink, Value};
use crate::error::{Error, Result};

/// The two payloads of frozen metadata, uncompressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Payload of METADATA_V2_SCHEMA.
    pub schema: Vec<u8>,
    /// Payload of METADATA_V2, padding included.
    pub data: Vec<u8>,
    /// Where the larger lists are in `data`, ascending.
    pub tables: Vec<Table>,
}

/// A list of records without separate areas: integers, or structs of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
    /// Bits of a record.
    pub bits: u32,
}

/// How wide integers are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Widths {
    /// As narrow as the largest value of a field allows, like the reference. This is the smallest form
    /// without compression.
    #[default]
    Minimal,
    /// In lists, the same in whole bytes: compressors see the values.
    Bytes,
}

/// Zero bytes after the last area; readers may load whole words there.
const PADDING: usize = 8;

/// Passes after which measuring must have come to rest. Widths only grow and are at most 64 bits,
/// and each pass but the last widens something that depends on an area's position; five to eight
/// passes are typical.
const MAX_PASSES: u32 = 1000;

/// Lists that take less are not worth telling about, in bytes.
pub(super) const SMALL_TABLE: u64 = 256;

/// Freezes `value`.
///
/// # Errors
/// `Limit` if the result does not fit the schema's 16-bit fields.
pub fn freeze_value<T: Value>(value: &T, widths: Widths) -> Result<Frozen> {
    freeze_with(value, EncodedMembers::default(), widths)
}

/// Freezes a struct of which some members were encoded before, with the same `widths`. The bytes are those of
/// [`freeze_value`] of the same struct with the records of these members.
///
/// # Errors
/// As [`freeze_value`].
pub fn freeze_with<T: Value>(
    value: &T,
    mut members: EncodedMembers,
    widths: Widths,
) -> Result<Frozen> {
    let mut root = T::blank()?;
    let mut cursor = 0;
    let mut passes = 0;
    loop {
        let bits = root.bits;
        let mut m = Measure {
            cursor: u64::from(root.size),
            widths,
            members,
            outside: true,
            ..Measure::default()
        };
        value.measure(&mut m, &mut root, 0);
        members = std::mem::take(&mut m.members);
        let size = bits.div_ceil(8);
        if !m.changed && size == root.size {
            cursor = cursor.max(m.cursor);
            break;
        }
        root.size = size;
        passes += 1;
        if passes > MAX_PASSES {
            return Err(Error::Limit("metadata layout does not settle".into()));
        }
    }

    let mut sink = Sink {
        members,
        outside: true,
        ..Sink::default()
    };
    let capacity =
        usize::try_from(cursor).map_err(|_| Error::Limit("metadata too large".into()))?;
    sink.out.reserve_exact(capacity.saturating_add(PADDING));
    sink.out.resize(root.size as usize, 0);
    value.write(&mut sink, &root, Pos::default());
    sink.out.resize(sink.out.len() + PADDING, 0);

    let mut schema = Schema {
        file_version: 1,
        relax_type_checks: true,
        ..Schema::default()
    };
    let mut known = HashMap::new();
    schema.root = emit(&root, &mut schema, &mut known)?;
    Ok(Frozen {
        schema: schema.encode(),
        data: sink.out,
        tables: sink.tables,
    })
}

/// Appends the layouts of `node`'s members, then its own unless an equal one exists.
fn emit(node: &Node, schema: &mut Schema, known: &mut HashMap<Layout, u16>) -> Result<u16> {
    let too_large =
        || Error::Limit("metadata layout exceeds the 16-bit fields of the schema".into());
    let mut fields = Vec::new();
    for kid in node.kids.iter().filter(|k| k.node.bits > 0) {
        let layout_id = emit(&kid.node, schema, known)?;
        let offset = i16::try_from(-i64::from(kid.bit)).map_err(|_| too_large())?;
        fields.push(Field {
            id: kid.id,
            layout_id,
            offset,
        });
    }
    fields.sort_unstable_by_key(|f| f.id);
    let bits = i16::try_from(node.bits)
        .map_err(|_| too_large())?
        .unsigned_abs();
    let layout = Layout {
        size: node.size,
        bits,
        fields,
    };
    if let Some(id) = known.get(&layout) {
        return Ok(*id);
    }
    let id = i16::try_from(schema.layouts.len())
        .map_err(|_| too_large())?
        .unsigned_abs();
    known.insert(layout.clone(), id);
    schema.layouts.push(layout);
    Ok(id)
}
