//! What dumps and statistics need: where the bytes of the metadata go, how its fields are laid out,
//! its tables in unpacked form.

use std::ops::Range;

use super::model::{Directory, Metadata};
use super::view::{MetadataView, bad};
use crate::error::Result;
use crate::frozen::{Item, ItemList, Node, Table, TypeInfo, Value};

/// Where the bytes of the metadata go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Size of the metadata in bytes.
    pub total: u64,
    /// Elements of the table of inodes.
    pub inodes: u64,
    /// One per table or string, in the order of their definition.
    pub rows: Vec<MemoryRow>,
}

impl MemoryUsage {
    /// Where the lists of records are, ascending, as [`Frozen::tables`](crate::frozen::Frozen::tables) has them for metadata
    /// that is being written. Records of which some have a size of their own, such as strings, count with their mean size.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.rows.iter().filter_map(MemoryRow::records).collect();
        tables.sort_unstable_by_key(|table| table.start);
        tables
    }
}

/// A table or string of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRow {
    /// Name in the format description; `metadata_root` for the fields of the root itself, and `padding`
    /// for the bytes after the last table.
    pub name: &'static str,
    /// Number of elements; `None` if it is no table.
    pub count: Option<u64>,
    /// Bytes that belong to it.
    pub bytes: u64,
    /// Where in the metadata; empty at 0 if it takes no bytes.
    pub range: Range<u64>,
    /// What it consists of.
    pub parts: Vec<MemoryPart>,
}

impl MemoryRow {
    /// The list of records of fixed size in it: the table itself, or the ends of strings.
    fn records(&self) -> Option<Table> {
        let area = |part: &MemoryPart| match &part.kind {
            PartKind::Area(range) if part.name == "index" => Some(range.clone()),
            _ => None,
        };
        let of_strings = self.parts.iter().find_map(area);
        let is_flat = |part: &MemoryPart| matches!(part.kind, PartKind::Field(_));
        let range = match of_strings {
            Some(range) => range,
            None if self.parts.iter().all(is_flat) => self.range.clone(),
            None => return None,
        };
        let bits = length(&range).checked_mul(8)?.checked_div(self.count?)?;
        Some(Table {
            start: usize::try_from(range.start).ok()?,
            len: usize::try_from(length(&range)).ok()?,
            bits: u32::try_from(bits).ok()?,
        })
    }
}

/// A part of a [`MemoryRow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPart {
    /// Name of the field, or `data`, `index`, `dict`, `unpacked`.
    pub name: &'static str,
    /// Size in bytes, rounded up.
    pub bytes: u64,
    /// What sort of part it is.
    pub kind: PartKind,
}

/// The sorts of [`MemoryPart`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartKind {
    /// A field of this many bits, interleaved with others.
    Field(u32),
    /// A range of bytes.
    Area(Range<u64>),
    /// No part of the file: the expanded form of the compressed strings.
    Unpacked,
}

/// A line of the layout: one field of the type tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutField {
    /// Number of fields around it; 0 for the metadata itself.
    pub depth: u32,
    /// Name; empty for the metadata itself.
    pub name: &'static str,
    /// Distance from the start of the field around it in whole bytes.
    pub byte: u32,
    /// Distance in bits, if `byte` is 0.
    pub bit: u32,
    /// Size in bytes; 0 if bit-packed.
    pub size: u32,
    /// Size in bits; 0 if it is always zero, empty or unset.
    pub bits: u32,
    /// Type.
    pub ty: String,
}

/// The types of the metadata and all its members, for [`MetadataView::item`].
#[must_use]
pub fn metadata_type() -> TypeInfo {
    Metadata::describe()
}

/// Extent of adjacent parts.
#[derive(Debug, Default)]
struct Span(Option<Range<u64>>);

impl Span {
    fn add(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.0 = Some(match self.0.take() {
            None => range.clone(),
            Some(own) => own.start.min(range.start)..own.end.max(range.end),
        });
    }

    fn range(self) -> Range<u64> {
        self.0.unwrap_or(0..0)
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl MetadataView {
    /// The whole metadata, to be walked. `ty` must be [`metadata_type`].
    #[must_use]
    pub fn item<'a>(&'a self, ty: &'a TypeInfo) -> Item<'a> {
        Item::root(self.data(), &self.root, ty)
    }

    /// Where the bytes of the metadata go. Takes time in proportion to the strings.
    ///
    /// # Errors
    /// `Corrupt` if something lies outside of the data.
    pub fn memory_usage(&self) -> Result<MemoryUsage> {
        let ty = metadata_type();
        let root = self.item(&ty);
        let total = self.bytes.len() as u64;
        let mut usage = MemoryUsage {
            total,
            inodes: self.t.mode_index.len().into(),
            rows: Vec::new(),
        };
        let own = if self.root.size > 0 {
            u64::from(self.root.size)
        } else {
            u64::from(self.root.bits).div_ceil(8)
        };
        usage.rows.push(MemoryRow {
            name: "metadata_root",
            count: None,
            bytes: own,
            range: 0..own,
            parts: Vec::new(),
        });
        for (info, item) in root.members()? {
            self.member_rows(info.name, item, &mut usage.rows)?;
        }
        let end = usage.rows.iter().map(|row| row.range.end).max();
        let end = end.unwrap_or(0).min(total);
        if end < total {
            usage.rows.push(MemoryRow {
                name: "padding",
                count: None,
                bytes: total - end,
                range: end..total,
                parts: Vec::new(),
            });
        }
        Ok(usage)
    }

    fn member_rows(
        &self,
        name: &'static str,
        item: Item<'_>,
        rows: &mut Vec<MemoryRow>,
    ) -> Result<()> {
        match item.ty() {
            TypeInfo::Optional(_) => {
                if let Some(value) = item.optional()? {
                    self.member_rows(name, value, rows)?;
                }
            }
            TypeInfo::Bytes => {
                if let Some(range) = item.byte_range()? {
                    rows.push(MemoryRow {
                        name,
                        count: None,
                        bytes: length(&range),
                        range,
                        parts: Vec::new(),
                    });
                }
            }
            TypeInfo::List(inner) | TypeInfo::Set(inner) if **inner == TypeInfo::Bytes => {
                rows.extend(string_list(name, item.list()?)?);
            }
            TypeInfo::List(_) | TypeInfo::Set(_) | TypeInfo::Map(_) => {
                let list = item.list()?;
                if !list.is_empty() || name != "entry_table_v2_2" {
                    rows.push(table(name, list)?);
                }
            }
            TypeInfo::Struct(info) if info.name == "string_table" => {
                rows.extend(self.string_table(name, item)?);
            }
            TypeInfo::Struct(info) if info.name == "inode_size_cache" => {
                for (member, name) in [(1, "inode_size_cache"), (3, "inode_allocated_size_cache")] {
                    rows.push(table(name, item.member(member)?.list()?)?);
                }
            }
            TypeInfo::Struct(info) if info.name == "xattr_tables" => {
                rows.extend(string_list("xattr_names", item.member(7)?.list()?)?);
                for (member, name) in [
                    (3, "xattr_inodes"),
                    (4, "xattr_sets"),
                    (5, "xattr_set_start"),
                    (6, "xattr_pairs"),
                    (8, "xattr_values"),
                    (9, "xattr_chunks"),
                ] {
                    rows.push(table(name, item.member(member)?.list()?)?);
                }
            }
            TypeInfo::Struct(info) if info.name == "file_flags" => {
                for (member, name) in [
                    (2, "file_flag_inodes"),
                    (3, "file_flag_indices"),
                    (4, "file_flag_values"),
                ] {
                    rows.push(table(name, item.member(member)?.list()?)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn string_table(&self, name: &'static str, item: Item<'_>) -> Result<Option<MemoryRow>> {
        let strings = if name == "compact_names" {
            &self.t.names
        } else {
            &self.t.targets
        };
        let mut span = Span::default();
        let mut parts = Vec::new();
        let mut area = |name, range: Range<u64>| {
            span.add(&range);
            parts.push(MemoryPart {
                name,
                bytes: length(&range),
                kind: PartKind::Area(range),
            });
        };
        area("data", item.member(1)?.byte_range()?.unwrap_or(0..0));
        let dict = item.member(2)?.optional()?;
        if let Some(dict) = dict {
            area("dict", dict.byte_range()?.unwrap_or(0..0));
        }
        area("index", item.member(3)?.list()?.range());
        if strings.len() == 0 {
            return Ok(None);
        }
        let bytes = parts
            .iter()
            .fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
        if dict.is_some() {
            let mut unpacked = 0_u64;
            let mut scratch = Vec::new();
            // Strings that overlap, which only a check would have noticed, could keep this busy for
            // days.
            let mut left = self.bytes.len();
            for k in 0..strings.len() {
                left = left
                    .checked_sub(strings.range(self.data(), k)?.len())
                    .ok_or_else(|| bad("strings of a table overlap"))?;
                scratch.clear();
                strings.append(self.data(), k, &mut scratch)?;
                unpacked = unpacked.saturating_add(scratch.len() as u64);
            }
            parts.insert(
                1,
                MemoryPart {
                    name: "unpacked",
                    bytes: unpacked,
                    kind: PartKind::Unpacked,
                },
            );
        }
        Ok(Some(MemoryRow {
            name,
            count: Some(strings.len().into()),
            bytes,
            range: span.range(),
            parts,
        }))
    }

    /// All fields of the metadata with their positions and widths, each before the fields inside
    /// it.
    #[must_use]
    pub fn layout(&self) -> Vec<LayoutField> {
        let ty = metadata_type();
        let mut out = vec![LayoutField {
            depth: 0,
            name: "",
            byte: 0,
            bit: 0,
            size: self.root.size,
            bits: self.root.bits,
            ty: ty.to_string(),
        }];
        layout_inside(&self.root, &ty, 1, &mut out);
        out
    }

    /// Number of elements of `directories`, the sentinel included.
    #[must_use]
    pub fn directory_records(&self) -> u32 {
        self.t.dirs.first.len()
    }

    /// Element `i` of `directories` in unpacked form; zeros if there is none.
    ///
    /// # Errors
    /// Those of loading metadata that are not in memory.
    pub fn directory_record(&self, i: u32) -> Result<Directory> {
        let (dirs, data) = (&self.t.dirs, self.data());
        Ok(Directory {
            parent_entry: dirs.parent(data, i)?,
            first_entry: dirs.first.get(data, i)?,
            self_entry: dirs.own(data, i)?,
        })
    }

    /// Number of elements of `chunk_table`, the sentinel included.
    #[must_use]
    pub fn chunk_table_len(&self) -> u32 {
        self.t.chunk_table.len()
    }

    /// Element `k` of `chunk_table` in unpacked form: the first chunk of content `k`; 0 if there is
    /// none.
    ///
    /// # Errors
    /// As [`MetadataView::directory_record`].
    pub fn first_chunk(&self, k: u32) -> Result<u32> {
        self.t.chunk_table.get(self.data(), k)
    }

    /// Number of elements of the unpacked `shared_files_table`.
    #[must_use]
    pub fn shared_files_len(&self) -> u32 {
        self.t.shared.len()
    }

    /// Element `i` of the unpacked `shared_files_table`; 0 if there is none.
    ///
    /// # Errors
    /// As [`MetadataView::directory_record`].
    pub fn shared_file(&self, i: u32) -> Result<u32> {
        self.t.shared.get(self.data(), i)
    }

    /// String `k` of the table of names.
    ///
    /// # Errors
    /// `Corrupt` if there is none or it cannot be decompressed.
    pub fn name_string(&self, k: u32) -> Result<std::borrow::Cow<'_, [u8]>> {
        self.t.names.get(self.data(), k)
    }

    /// String `k` of the table of symlink targets.
    ///
    /// # Errors
    /// As [`MetadataView::name_string`].
    pub fn target_string(&self, k: u32) -> Result<std::borrow::Cow<'_, [u8]>> {
        self.t.targets.get(self.data(), k)
    }
}

/// A table whose elements are integers, pairs or structs.
fn table(name: &'static str, list: ItemList<'_>) -> Result<MemoryRow> {
    let range = list.range();
    let mut span = Span::default();
    span.add(&range);
    let mut bytes = length(&range);
    let mut parts = Vec::new();
    if let TypeInfo::Struct(info) = list.ty() {
        if info.members.iter().any(|m| owns_bytes(&m.ty)) {
            for item in list.iter() {
                for (_, member) in item.members()? {
                    let string = match member.ty() {
                        TypeInfo::Bytes => Some(member),
                        TypeInfo::Optional(inner) if **inner == TypeInfo::Bytes => {
                            member.optional()?
                        }
                        _ => None,
                    };
                    if let Some(range) = string.map(|s| s.byte_range()).transpose()?.flatten() {
                        span.add(&range);
                        bytes = bytes.saturating_add(length(&range));
                    }
                }
            }
        } else {
            for (member, kid) in info.members.iter().zip(&list.node().kids) {
                if kid.node.bits > 0 {
                    let bits = u64::from(kid.node.bits).saturating_mul(list.len());
                    parts.push(MemoryPart {
                        name: member.name,
                        bytes: bits.div_ceil(8),
                        kind: PartKind::Field(kid.node.bits),
                    });
                }
            }
            // Widest first; rounded sizes would not always tell.
            parts.sort_by_key(|part| {
                std::cmp::Reverse(match part.kind {
                    PartKind::Field(bits) => bits,
                    _ => 0,
                })
            });
        }
    }
    Ok(MemoryRow {
        name,
        count: Some(list.len()),
        bytes,
        range: span.range(),
        parts,
    })
}

fn owns_bytes(ty: &TypeInfo) -> bool {
    match ty {
        TypeInfo::Bytes => true,
        TypeInfo::Optional(inner) => owns_bytes(inner),
        _ => false,
    }
}

/// A list of strings; nothing if it is empty.
fn string_list(name: &'static str, list: ItemList<'_>) -> Result<Option<MemoryRow>> {
    if list.is_empty() {
        return Ok(None);
    }
    let index = list.range();
    let mut data = Span::default();
    let mut bytes = 0_u64;
    for item in list.iter() {
        if let Some(range) = item.byte_range()? {
            data.add(&range);
            bytes = bytes.saturating_add(length(&range));
        }
    }
    let data = data.range();
    let mut span = Span::default();
    span.add(&index);
    span.add(&data);
    Ok(Some(MemoryRow {
        name,
        count: Some(list.len()),
        bytes: bytes.saturating_add(length(&index)),
        range: span.range(),
        parts: vec![
            MemoryPart {
                name: "index",
                bytes: length(&index),
                kind: PartKind::Area(index),
            },
            MemoryPart {
                name: "data",
                bytes,
                kind: PartKind::Area(data),
            },
        ],
    }))
}

/// Names and types of what a value of this type consists of, in the order of the node's members.
fn inner_fields(ty: &TypeInfo) -> Vec<(&'static str, &TypeInfo)> {
    const NUMBER: &TypeInfo = &TypeInfo::Unsigned(64);
    match ty {
        TypeInfo::Unsigned(_) | TypeInfo::Bool => Vec::new(),
        TypeInfo::Bytes => vec![("distance", NUMBER), ("count", NUMBER)],
        TypeInfo::Optional(inner) => vec![("isset", &TypeInfo::Bool), ("value", inner)],
        TypeInfo::List(item) | TypeInfo::Set(item) | TypeInfo::Map(item) => {
            vec![("distance", NUMBER), ("count", NUMBER), ("item", item)]
        }
        TypeInfo::Pair(types) => vec![("first", &types.0), ("second", &types.1)],
        TypeInfo::Struct(info) => info.members.iter().map(|m| (m.name, &m.ty)).collect(),
    }
}

/// The type tree is a few levels deep, so recursion is fine.
fn layout_inside(node: &Node, ty: &TypeInfo, depth: u32, out: &mut Vec<LayoutField>) {
    for ((name, ty), kid) in inner_fields(ty).into_iter().zip(&node.kids) {
        out.push(LayoutField {
            depth,
            name,
            byte: kid.byte,
            bit: kid.bit,
            size: kid.node.size,
            bits: kid.node.bits,
            ty: ty.to_string(),
        });
        layout_inside(&kid.node, ty, depth + 1, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Chunk, DirEntry, InodeData, StringTable, freeze};

    fn view() -> MetadataView {
        let metadata = Metadata {
            chunks: vec![Chunk {
                block: 0,
                offset: 5,
                size: 7,
            }],
            directories: vec![
                Directory {
                    first_entry: 1,
                    ..Directory::default()
                },
                Directory {
                    first_entry: 2,
                    ..Directory::default()
                },
            ],
            inodes: vec![
                InodeData::default(),
                InodeData {
                    mode_index: 1,
                    ..InodeData::default()
                },
            ],
            chunk_table: vec![0, 1],
            uids: vec![0],
            gids: vec![0],
            modes: vec![0o040_755, 0o100_644],
            block_size: 1024,
            devices: Some(Vec::new()),
            dir_entries: Some(vec![
                DirEntry::default(),
                DirEntry {
                    name_index: 0,
                    inode_num: 1,
                },
            ]),
            compact_names: Some(StringTable {
                buffer: b"hello".to_vec(),
                index: vec![0, 5],
                ..StringTable::default()
            }),
            dwarfs_version: Some(b"me".to_vec()),
            ..Metadata::default()
        };
        let frozen = freeze(&metadata).unwrap();
        MetadataView::parse(&frozen.schema, frozen.data).unwrap()
    }

    #[test]
    fn every_byte_is_accounted_for() {
        let view = view();
        let usage = view.memory_usage().unwrap();
        assert_eq!(usage.total, view.bytes().len() as u64);
        assert_eq!(usage.rows.iter().map(|r| r.bytes).sum::<u64>(), usage.total);
        let row = |name| usage.rows.iter().find(|r| r.name == name).unwrap();
        assert_eq!(row("chunks").parts.len(), 2);
        assert_eq!(
            (row("modes").count, row("modes").bytes),
            (Some(2), 4),
            "16 bits each"
        );
        assert_eq!(row("devices").count, Some(0));
        assert_eq!(row("compact_names").parts[0].bytes, 5);
        assert_eq!((row("dwarfs_version").bytes, row("padding").bytes), (2, 8));
        assert!(!usage.rows.iter().any(|r| r.name == "large_hole_size"));
    }

    #[test]
    fn layouts_name_every_field() {
        let layout = view().layout();
        assert_eq!((layout[0].depth, layout[0].ty.as_str()), (0, "metadata"));
        let at = layout.iter().position(|f| f.name == "modes").unwrap();
        let names: Vec<&str> = layout[at..at + 4].iter().map(|f| f.name).collect();
        assert_eq!(names, ["modes", "distance", "count", "item"]);
        assert_eq!(layout[at + 3].bits, 16);
        assert_eq!(layout[at].ty, "list<u32>");
        assert!(layout.iter().any(|f| f.ty == "map<u32, u64>"));
        assert!(layout.iter().any(|f| f.ty == "set<string>"));
    }

    #[test]
    fn items_show_what_is_stored() {
        let view = view();
        let ty = metadata_type();
        let root = view.item(&ty);
        let chunk = root.member(1).unwrap().list().unwrap().get(0).unwrap();
        let values: Vec<(&str, u64)> = chunk
            .members()
            .unwrap()
            .map(|(info, item)| (info.name, item.number().unwrap()))
            .collect();
        assert_eq!(values, [("block", 0), ("offset", 5), ("size", 7)]);
        assert!(root.member(34).unwrap().optional().unwrap().is_none());
        let version = root.member(22).unwrap().optional().unwrap().unwrap();
        assert_eq!(*version.bytes().unwrap(), *b"me");
        assert!(root.member(13).is_err());
        assert!(root.member(12).unwrap().list().is_err());
        assert_eq!(view.directory_record(1).unwrap().first_entry, 2);
        assert_eq!(view.directory_record(9).unwrap(), Directory::default());
        assert_eq!(
            (view.first_chunk(1).unwrap(), view.chunk_table_len()),
            (1, 2)
        );
        assert_eq!(&*view.name_string(0).unwrap(), b"hello");
    }
}
