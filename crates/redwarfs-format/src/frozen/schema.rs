//! The schema: layouts of all places of the type tree (sections 1 and 3).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::thrift::{Reader, Type, Writer};

/// Position of a member and its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field {
    /// Member id.
    pub id: i16,
    /// Index into [`Schema::layouts`].
    pub layout_id: u16,
    /// Bytes if not negative, else negated bits, from the start of the object.
    pub offset: i16,
}

/// Shape of the values in one or several places.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Bytes occupied, or 0 if bit-packed.
    pub size: u32,
    /// Bits occupied, at most 32767.
    pub bits: u16,
    /// Members by ascending id.
    pub fields: Vec<Field>,
}

impl Layout {
    /// The member with this id.
    #[must_use]
    pub fn field(&self, id: i16) -> Option<&Field> {
        let i = self.fields.binary_search_by_key(&id, |f| f.id).ok()?;
        self.fields.get(i)
    }
}

/// A parsed and checked schema: all layout ids in it exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schema {
    /// Layouts; the position is the id.
    pub layouts: Vec<Layout>,
    /// Layout of the root value.
    pub root: u16,
    /// Version of the encoding, at most 1.
    pub file_version: i32,
    /// Always true in practice and without meaning for readers.
    pub relax_type_checks: bool,
}

/// Newest version of the encoding.
const FILE_VERSION: i32 = 1;

#[derive(Default)]
struct RawLayout {
    size: i32,
    bits: i16,
    fields: BTreeMap<i16, (i16, i16)>,
}

fn read_layout(reader: &mut Reader<'_>) -> Result<RawLayout> {
    let mut layout = RawLayout::default();
    reader.read_struct(|id, value| match id {
        1 => value.store(&mut layout.size),
        2 => value.store(&mut layout.bits),
        3 => value.store_map(Type::Struct, &mut layout.fields, |reader| {
            let (mut layout_id, mut offset) = (0, 0);
            reader.read_struct(|id, value| match id {
                1 => value.store(&mut layout_id),
                2 => value.store(&mut offset),
                _ => Ok(()),
            })?;
            Ok((layout_id, offset))
        }),
        _ => Ok(()),
    })?;
    Ok(layout)
}

impl Schema {
    /// Decodes and checks the payload of METADATA_V2_SCHEMA, with its fields in any order.
    ///
    /// # Errors
    /// `Unsupported` for a newer version of the encoding, `Corrupt` if a check of section 3 fails.
    pub fn parse(payload: &[u8]) -> Result<Self> {
        let mut schema = Self::default();
        let mut raw = BTreeMap::<i16, RawLayout>::new();
        let mut root = 0_i16;
        let mut reader = Reader::new(payload);
        reader.read_struct(|id, value| match id {
            1 => value.store(&mut schema.relax_type_checks),
            2 => value.store_map(Type::Struct, &mut raw, read_layout),
            3 => value.store(&mut root),
            4 => value.store(&mut schema.file_version),
            _ => Ok(()),
        })?;
        if !reader.is_empty() {
            return Err(Error::corrupt("metadata schema: invalid size"));
        }
        if schema.file_version > FILE_VERSION {
            return Err(Error::Unsupported(format!(
                "metadata encoding version {}",
                schema.file_version
            )));
        }
        let count = raw.len();
        let id_of = |id: i16, what: &str| {
            u16::try_from(id)
                .ok()
                .filter(|id| usize::from(*id) < count)
                .ok_or_else(|| Error::corrupt(format!("metadata schema: invalid {what} {id}")))
        };
        schema.root = id_of(root, "root layout")?;
        for (id, layout) in raw {
            // Ascending keys below their number are 0, 1, 2, ...
            id_of(id, "layout key")?;
            let negative = || Error::corrupt("metadata schema: negative size or bits");
            let fields = layout.fields.into_iter().map(|(id, (layout_id, offset))| {
                Ok(Field {
                    id,
                    layout_id: id_of(layout_id, "layout id in a field")?,
                    offset,
                })
            });
            schema.layouts.push(Layout {
                size: u32::try_from(layout.size).map_err(|_| negative())?,
                bits: u16::try_from(layout.bits).map_err(|_| negative())?,
                fields: fields.collect::<Result<_>>()?,
            });
        }
        Ok(schema)
    }

    /// Encodes the schema as current releases do: fields in ascending order, none omitted.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.write_struct(|s| {
            s.put(1, &self.relax_type_checks);
            self.put_layouts(s);
            s.put(3, &self.root);
            s.put(4, &self.file_version);
        });
        writer.into_bytes()
    }

    /// Encodes the schema as releases up to 0.14 did: version first.
    #[must_use]
    pub fn encode_legacy(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.write_struct(|s| {
            s.put(4, &self.file_version);
            s.put(1, &self.relax_type_checks);
            self.put_layouts(s);
            s.put(3, &self.root);
        });
        writer.into_bytes()
    }

    fn put_layouts(&self, s: &mut crate::thrift::StructWriter<'_>) {
        s.put_map(
            2,
            Type::I16,
            Type::Struct,
            self.layouts.iter().enumerate(),
            |w, (id, layout)| {
                // Ids are 16-bit numbers by construction; see `parse` and the freezer.
                w.write(&u16::try_from(id).unwrap_or(u16::MAX));
                w.write_struct(|s| {
                    s.put(1, &layout.size);
                    s.put(2, &layout.bits);
                    s.put_map(3, Type::I16, Type::Struct, &layout.fields, |w, field| {
                        w.write(&field.id);
                        w.write_struct(|s| {
                            s.put(1, &field.layout_id);
                            s.put(2, &field.offset);
                        });
                    });
                    s.put(4, "");
                });
            },
        );
    }
}
