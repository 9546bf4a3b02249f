//! How the metadata is encoded: where its bytes go, the layout of its fields, its schema.

use std::cmp::Reverse;
use std::io::{self, Write};

use redwarfs_format::frozen::Schema;
use redwarfs_format::metadata::{LayoutField, MemoryRow, MemoryUsage, PartKind};

use crate::common::json::JsonWriter;

/// Columns of a name, the dots after it and its size.
const NAME_AND_SIZE: usize = 42;

/// How the rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Largest first.
    Size,
    /// As they lie in the metadata.
    Address,
}

fn sorted(usage: &MemoryUsage, order: Order) -> Vec<&MemoryRow> {
    let mut rows: Vec<&MemoryRow> = usage.rows.iter().collect();
    match order {
        Order::Size => rows.sort_by_key(|row| (Reverse(row.bytes), row.count, row.name)),
        Order::Address => {
            rows.sort_by_key(|row| (row.range.start, row.range.end, row.count, row.name));
        }
    }
    rows
}

/// The lines of the table. If it is sorted by offset, it has a column of offsets.
pub(super) fn memory_table(usage: &MemoryUsage, order: Order) -> Vec<String> {
    let address = |range: Option<(u64, u64)>| match (order, range) {
        (Order::Size, _) => String::new(),
        (Order::Address, Some((start, end))) => format!("  {start:08x}..{end:08x} "),
        (Order::Address, None) => " ".repeat(21),
    };
    let share = |bytes: u64| {
        let percent = bytes as f64 * 100.0 / usage.total.max(1) as f64;
        format!(" {percent:>5.1}%")
    };
    let each = |bytes: u64, count: u64| {
        let each = if count == 0 {
            0.0
        } else {
            bytes as f64 / count as f64
        };
        format!(" {each:>5.1} bytes")
    };
    let line = |range, count: &str, name: &str, fill: char, bytes: u64, share: &str, each: &str| {
        let number = bytes.to_string();
        let room = NAME_AND_SIZE.saturating_sub(name.len() + number.len());
        let fill: String = std::iter::repeat_n(fill, room.max(1)).collect();
        let address = address(range);
        format!("{address}{count:>14} {name}{fill}{number} bytes{share:>7}{each}")
    };
    let mut lines = vec![line(
        Some((0, usage.total)),
        "",
        "total metadata",
        '.',
        usage.total,
        "",
        &format!("{}/inode", each(usage.total, usage.inodes)),
    )];
    for row in sorted(usage, order) {
        let count = row.count.map_or_else(String::new, |n| n.to_string());
        let items = row.count.unwrap_or(1);
        let per_item = |bytes| format!("{}/item", each(bytes, items));
        lines.push(line(
            Some((row.range.start, row.range.end)),
            &count,
            row.name,
            '.',
            row.bytes,
            &share(row.bytes),
            &per_item(row.bytes),
        ));
        for (i, part) in row.parts.iter().enumerate() {
            let mark = if i + 1 == row.parts.len() { "'-" } else { "|-" };
            let (name, range, share) = match &part.kind {
                PartKind::Field(bits) => (
                    format!("{mark} {} [{bits}]", part.name),
                    None,
                    share(part.bytes),
                ),
                PartKind::Area(range) => (
                    format!("{mark} {}", part.name),
                    Some((range.start, range.end)),
                    share(part.bytes),
                ),
                PartKind::Unpacked => {
                    let stored = row.parts.first().map_or(1, |data| data.bytes.max(1));
                    let factor = part.bytes as f64 / stored as f64;
                    (
                        format!("{mark} {}", part.name),
                        None,
                        format!(" {factor:>5.2}x"),
                    )
                }
            };
            lines.push(line(
                range,
                "",
                &name,
                ' ',
                part.bytes,
                &share,
                &per_item(part.bytes),
            ));
        }
    }
    lines
}

/// The table as an object.
pub(super) fn memory_json<W: Write>(
    json: &mut JsonWriter<W>,
    usage: &MemoryUsage,
    order: Order,
) -> io::Result<()> {
    json.begin_object()?;
    json.number_at("inodes", usage.inodes)?;
    json.number_at("size", usage.total)?;
    json.key("tables")?;
    json.begin_array()?;
    for row in sorted(usage, order) {
        json.begin_object()?;
        if let Some(count) = row.count {
            json.number_at("count", count)?;
        }
        json.string_at("name", row.name)?;
        json.number_at("offset", row.range.start)?;
        if !row.parts.is_empty() {
            json.key("parts")?;
            json.begin_array()?;
            for part in &row.parts {
                json.begin_object()?;
                if let PartKind::Field(bits) = part.kind {
                    json.number_at("bits", bits)?;
                }
                json.string_at("name", part.name)?;
                if let PartKind::Area(range) = &part.kind {
                    json.number_at("offset", range.start)?;
                }
                json.number_at("size", part.bytes)?;
                json.end_object()?;
            }
            json.end_array()?;
        }
        json.number_at("size", row.bytes)?;
        json.end_object()?;
    }
    json.end_array()?;
    json.end_object()
}

/// A field's position and width over two lines, as the original shows them.
pub(super) fn layout_lines(layout: &[LayoutField]) -> Vec<String> {
    let mut lines = Vec::new();
    for field in layout {
        let depth = field.depth as usize;
        // A name and what it names take two levels of indentation.
        let indent = " ".repeat((depth * 4).saturating_sub(2));
        if depth > 0 {
            let at = match (field.byte, field.bit) {
                (0, 0) => "start".to_owned(),
                (0, bit) => format!("bit {bit}"),
                (byte, _) => format!("byte {byte}"),
            };
            lines.push(format!("{indent}{} @ {at}", field.name));
        }
        let indent = " ".repeat(depth * 4);
        let width = match (field.size, field.bits) {
            (0, 0) => "empty".to_owned(),
            (0, bits) => format!("{bits} bit"),
            (size, bits) => format!("{size} byte (with {bits} bits)"),
        };
        lines.push(format!("{indent}{width} {}", field.ty));
    }
    lines
}

/// The layout as an object with the fields inside each other.
pub(super) fn layout_json<W: Write>(
    json: &mut JsonWriter<W>,
    layout: &[LayoutField],
) -> io::Result<()> {
    let mut open: Vec<u32> = Vec::new();
    for field in layout {
        while open.last().is_some_and(|depth| *depth >= field.depth) {
            open.pop();
            json.end_array()?;
            json.end_object()?;
        }
        json.begin_object()?;
        json.number_at("bit", field.bit)?;
        json.number_at("bits", field.bits)?;
        json.number_at("byte", field.byte)?;
        json.string_at("name", field.name)?;
        json.number_at("size", field.size)?;
        json.string_at("type", &field.ty)?;
        json.key("fields")?;
        json.begin_array()?;
        open.push(field.depth);
    }
    for _ in open {
        json.end_array()?;
        json.end_object()?;
    }
    if layout.is_empty() {
        json.null()?;
    }
    Ok(())
}

/// The schema in the notation of the raw dumps.
pub(super) fn schema_lines(schema: &Schema) -> Vec<String> {
    let mut lines = vec![
        "Schema {".to_owned(),
        format!(
            "  1: relaxTypeChecks (bool) = {},",
            schema.relax_type_checks
        ),
        format!(
            "  2: layouts (map) = map<i16,struct>[{}] {{",
            schema.layouts.len()
        ),
    ];
    let comma = |i: usize, of: usize| if i + 1 < of { "," } else { "" };
    for (id, layout) in schema.layouts.iter().enumerate() {
        lines.push(format!("    {id} -> Layout {{"));
        lines.push(format!("      1: size (i32) = {},", layout.size));
        lines.push(format!("      2: bits (i16) = {},", layout.bits));
        let count = layout.fields.len();
        if count == 0 {
            lines.push("      3: fields (map) = map<i16,struct>[0] {},".to_owned());
        } else {
            lines.push(format!(
                "      3: fields (map) = map<i16,struct>[{count}] {{"
            ));
            for (i, field) in layout.fields.iter().enumerate() {
                lines.push(format!("        {} -> Field {{", field.id));
                lines.push(format!(
                    "          1: layoutId (i16) = {},",
                    field.layout_id
                ));
                lines.push(format!("          2: offset (i16) = {}", field.offset));
                lines.push(format!("        }}{}", comma(i, count)));
            }
            lines.push("      },".to_owned());
        }
        lines.push("      4: typeName (string) = \"\"".to_owned());
        lines.push(format!("    }}{}", comma(id, schema.layouts.len())));
    }
    lines.push("  },".to_owned());
    lines.push(format!("  3: rootLayout (i16) = {},", schema.root));
    lines.push(format!("  4: fileVersion (i32) = {}", schema.file_version));
    lines.push("}".to_owned());
    lines
}

/// The schema as an object.
pub(super) fn schema_json<W: Write>(json: &mut JsonWriter<W>, schema: &Schema) -> io::Result<()> {
    json.begin_object()?;
    json.number_at("file_version", schema.file_version)?;
    json.key("layouts")?;
    json.begin_array()?;
    for (id, layout) in (0_u32..).zip(&schema.layouts) {
        json.begin_object()?;
        json.number_at("bits", layout.bits)?;
        json.key("fields")?;
        json.begin_array()?;
        for field in &layout.fields {
            json.begin_object()?;
            json.number_at("id", field.id)?;
            json.number_at("layout_id", field.layout_id)?;
            json.number_at("offset", field.offset)?;
            json.end_object()?;
        }
        json.end_array()?;
        json.number_at("id", id)?;
        json.number_at("size", layout.size)?;
        json.end_object()?;
    }
    json.end_array()?;
    json.boolean_at("relax_type_checks", schema.relax_type_checks)?;
    json.number_at("root_layout", schema.root)?;
    json.end_object()
}
