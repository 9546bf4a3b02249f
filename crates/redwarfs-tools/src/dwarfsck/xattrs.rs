//! Extended attributes, birth times and file flags: their summary, their dump, and what makes an image one
//! that only this program understands completely.

use std::io::Write;

use redwarfs_format::Result as FormatResult;
use redwarfs_format::metadata::{XattrScope, unknown_members};
use redwarfs_format::section::{SectionType, SnapshotTable};
use redwarfs_reader::Image;

use super::output::{Failures, Output};
use super::{hints, snapshots};
use crate::common::Result;
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};

/// Names of the bits of the scope.
const SCOPES: [(XattrScope, &str); 6] = [
    (XattrScope::USER, "user"),
    (XattrScope::SECURITY, "security"),
    (XattrScope::TRUSTED, "trusted"),
    (XattrScope::ACL, "ACL"),
    (XattrScope::OTHER, "other"),
    (XattrScope::INCOMPLETE, "incomplete"),
];

fn scope_names(scope: XattrScope) -> Vec<&'static str> {
    let names = SCOPES.iter();
    let set = names.filter_map(|(bit, name)| scope.contains(*bit).then_some(*name));
    set.collect()
}

/// The lines about them, about snapshots and hints; none if the image has nothing of the kind.
pub(super) fn text(
    image: &Image,
    table: Option<&SnapshotTable>,
    details: bool,
) -> FormatResult<Vec<String>> {
    let view = image.metadata();
    let mut lines = Vec::new();
    if let Some(c) = view.xattr_counts()? {
        let blocks = match c.block_bytes {
            0 => String::new(),
            bytes => format!(", {} in blocks", format_size(bytes)),
        };
        lines.push(format!(
            "  xattrs: {}, {}, {}{blocks} ({})",
            counted(c.inodes.into(), "inode", "inodes"),
            counted(c.sets.into(), "set", "sets"),
            counted(c.values.into(), "value", "values"),
            scope_names(c.scope).join(", ")
        ));
    }
    if view.options().has_btime {
        lines.push("  birth times: yes".to_owned());
    }
    if view.has_file_flags() {
        lines.push("  file flags: yes".to_owned());
    }
    for name in view.ignored_tables()? {
        lines.push(format!("  {name}: of a later version, ignored"));
    }
    lines.extend(table.and_then(snapshots::summary));
    lines.extend(hints::text(image, details));
    if !lines.is_empty() {
        lines.insert(0, "extensions:".to_owned());
    }
    Ok(lines)
}

/// The same as a member `extensions`; none if there is nothing.
pub(super) fn json<W: Write>(
    image: &Image,
    table: Option<&SnapshotTable>,
    details: bool,
    json: &mut JsonWriter<W>,
) -> FormatResult<()> {
    let view = image.metadata();
    let counts = view.xattr_counts()?;
    let of_inodes = counts.is_some() || view.options().has_btime || view.has_file_flags();
    if !of_inodes && !image.has_hints() && table.is_none() {
        return Ok(());
    }
    json.key("extensions")?;
    json.begin_object()?;
    json.key("birth_times")?;
    json.boolean(view.options().has_btime)?;
    json.key("file_flags")?;
    json.boolean(view.has_file_flags())?;
    if image.has_hints() {
        hints::json(image, details, json)?;
    }
    if let Some(table) = table {
        json.key("snapshots")?;
        snapshots::summary_json(table, json)?;
    }
    if let Some(c) = counts {
        json.key("xattrs")?;
        json.begin_object()?;
        json.number_at("block_bytes", c.block_bytes)?;
        json.number_at("inodes", c.inodes)?;
        json.number_at("names", c.names)?;
        json.key("scope")?;
        json.begin_array()?;
        for name in scope_names(c.scope) {
            json.string(name)?;
        }
        json.end_array()?;
        json.number_at("sets", c.sets)?;
        json.number_at("values", c.values)?;
        json.end_object()?;
    }
    json.end_object()?;
    Ok(())
}

/// Prints the attributes of all entries in the format of `getfattr --dump`, which
/// `setfattr --restore` reads.
pub(super) fn dump(image: &Image, failures: &mut Failures<'_>, out: &mut Output) -> Result<()> {
    for item in image.walk() {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                failures.add("cannot list an entry", None, &e);
                continue;
            }
        };
        let xattrs = match image.xattrs(item.inode) {
            Ok(xattrs) => xattrs,
            Err(e) => {
                failures.add("cannot list extended attributes", Some(&item.path), &e);
                continue;
            }
        };
        if xattrs.len() == 0 {
            continue;
        }
        let path: &[u8] = if item.path.is_empty() {
            b"."
        } else {
            &item.path
        };
        out.line(&format!("# file: {}", quoted(path, b"")))?;
        for xattr in xattrs {
            let value = xattr
                .name()
                .and_then(|name| Ok((name, image.xattr_value(&xattr)?)));
            match value {
                Ok((name, value)) => {
                    out.line(&format!("{}={}", quoted(&name, b"="), value_of(&value)))?;
                }
                Err(e) => failures.add("cannot read extended attribute", Some(&item.path), &e),
            }
        }
        out.line("")?;
    }
    Ok(())
}

/// Bytes that are not printable, backslashes and those in `also` in octal.
fn quoted(bytes: &[u8], also: &[u8]) -> String {
    let mut text = String::new();
    for part in bytes.utf8_chunks() {
        for c in part.valid().chars() {
            if c.is_control() || c == '\\' || also.contains(&(c as u32 as u8)) && c.is_ascii() {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    text.push_str(&format!("\\{byte:03o}"));
                }
            } else {
                text.push(c);
            }
        }
        for byte in part.invalid() {
            text.push_str(&format!("\\{byte:03o}"));
        }
    }
    text
}

/// Text in quotation marks, and everything else in hexadecimal.
fn value_of(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("\"{}\"", quoted(value, b"\"").replace("\\042", "\\\""))
        }
        _ => {
            let digits: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{}", digits.concat())
        }
    }
}

/// What the image has that the original implementation does not know.
pub(super) fn extensions(image: &Image) -> FormatResult<Vec<String>> {
    let view = image.metadata();
    let mut names = Vec::new();
    if view.has_xattrs() {
        names.push("extended attributes".to_owned());
    }
    if view.options().has_btime {
        names.push("birth times".to_owned());
    }
    if view.has_file_flags() {
        names.push("file flags".to_owned());
    }
    let ignored = view.ignored_tables()?;
    names.extend(ignored.iter().map(|name| format!("member {name}")));
    let container = image.container();
    let schema = container.only_section_of_type(SectionType::METADATA_V2_SCHEMA)?;
    let unknown = unknown_members(&image.decode_section(schema)?)?;
    names.extend(unknown.iter().map(|name| format!("member {name}")));
    let sections = container.sections.iter().chain(&container.trailers);
    let hidden = sections.filter(|section| section.ty.is_hidden());
    names.extend(hidden.map(|section| format!("section {}", section.ty)));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_setfattr_reads_them() {
        assert_eq!(value_of(b"plain"), "\"plain\"");
        assert_eq!(value_of(b""), "\"\"");
        assert_eq!(value_of(b"a\"b\\c"), r#""a\"b\134c""#);
        assert_eq!(value_of("\u{fc}".as_bytes()), "\"\u{fc}\"");
        assert_eq!(value_of(b"\0\xff"), "0x00ff");
        assert_eq!(quoted(b"a\nb\xff=", b"="), r"a\012b\377\075");
    }
}
