//! The metadata as JSON, with all tables in unpacked form.

use std::borrow::Cow;
use std::io::Write;

use redwarfs_format::Result;
use redwarfs_format::frozen::{Item, TypeInfo};
use redwarfs_format::metadata::{MetadataView, metadata_type};

use super::dump::Budget;
use crate::common::json::{BASE64_SUFFIX, JsonWriter, base64};

/// How much is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Every member, in the order of the format.
    Full,
    /// Members that are neither 0, false nor empty, in the order of their names.
    Sparse,
}

/// Writes the metadata as an object. Takes no memory that depends on it.
///
/// # Errors
/// `Io` if writing failed, `Corrupt` if something lies outside of the data.
pub(super) fn metadata<W: Write>(
    view: &MetadataView,
    style: Style,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let ty = metadata_type();
    Export {
        view,
        style,
        json,
        budget: Budget::new(view),
    }
    .metadata(view.item(&ty))
}

struct Export<'a, W: Write> {
    view: &'a MetadataView,
    style: Style,
    json: &'a mut JsonWriter<W>,
    budget: Budget,
}

/// Members of a struct in the order in which they are written.
fn ordered<'a>(item: Item<'a>, style: Style) -> Result<Vec<(i16, &'static str, Item<'a>)>> {
    let mut members: Vec<_> = item
        .members()?
        .map(|(info, member)| (info.id, info.name, member))
        .collect();
    match style {
        Style::Full => members.sort_by_key(|(id, ..)| *id),
        Style::Sparse => members.sort_by_key(|(_, name, _)| *name),
    }
    Ok(members)
}

impl<W: Write> Export<'_, W> {
    fn metadata(&mut self, root: Item<'_>) -> Result<()> {
        let view = self.view;
        let counts = view.counts();
        self.json.begin_object()?;
        for (_, name, member) in ordered(root, self.style)? {
            match name {
                // Shown as the plain tables.
                "compact_names" | "compact_symlinks" => {}
                "names" => self.strings(name, counts.names, |k| view.name_string(k))?,
                "symlinks" => {
                    self.strings(name, counts.symlink_targets, |k| view.target_string(k))?;
                }
                "chunk_table" => {
                    self.numbers(name, view.chunk_table_len(), |k| view.first_chunk(k))?;
                }
                "shared_files_table" => {
                    if member.optional()?.is_some() {
                        self.json.key(name)?;
                        self.list_of(view.shared_files_len(), |i| view.shared_file(i))?;
                    }
                }
                "directories" => self.directories(name)?,
                _ => self.member(name, member)?,
            }
        }
        self.json.end_object()?;
        Ok(())
    }

    /// True if a table of this many elements is left out.
    fn skips(&self, len: u32) -> bool {
        self.style == Style::Sparse && len == 0
    }

    fn list_of(&mut self, len: u32, get: impl Fn(u32) -> Result<u32>) -> Result<()> {
        self.json.begin_array()?;
        for i in 0..len {
            self.json.number(get(i)?)?;
        }
        self.json.end_array()?;
        Ok(())
    }

    fn numbers(&mut self, name: &str, len: u32, get: impl Fn(u32) -> Result<u32>) -> Result<()> {
        if self.skips(len) {
            return Ok(());
        }
        self.json.key(name)?;
        self.list_of(len, get)
    }

    /// Strings, and by their number the exact bytes of strings that are not UTF-8.
    fn strings<'s>(
        &mut self,
        name: &str,
        len: u32,
        get: impl Fn(u32) -> Result<Cow<'s, [u8]>>,
    ) -> Result<()> {
        if self.skips(len) {
            return Ok(());
        }
        self.json.key(name)?;
        self.json.begin_array()?;
        let mut odd = false;
        for k in 0..len {
            let string = get(k)?;
            self.budget.spend(string.len())?;
            odd |= std::str::from_utf8(&string).is_err();
            self.json.bytes(&string)?;
        }
        self.json.end_array()?;
        if odd {
            self.json.key(&format!("{name}{BASE64_SUFFIX}"))?;
            self.json.begin_object()?;
            for k in 0..len {
                let string = get(k)?;
                if std::str::from_utf8(&string).is_err() {
                    self.json.string_at(&k.to_string(), &base64(&string))?;
                }
            }
            self.json.end_object()?;
        }
        Ok(())
    }

    fn directories(&mut self, name: &str) -> Result<()> {
        let len = self.view.directory_records();
        if self.skips(len) {
            return Ok(());
        }
        self.json.key(name)?;
        self.json.begin_array()?;
        for i in 0..len {
            let directory = self.view.directory_record(i)?;
            self.json.begin_object()?;
            let members = match self.style {
                Style::Full => [
                    ("parent_entry", directory.parent_entry),
                    ("first_entry", directory.first_entry),
                    ("self_entry", directory.self_entry),
                ],
                Style::Sparse => [
                    ("first_entry", directory.first_entry),
                    ("parent_entry", directory.parent_entry),
                    ("self_entry", directory.self_entry),
                ],
            };
            for (name, value) in members {
                if value != 0 || self.style == Style::Full {
                    self.json.number_at(name, value)?;
                }
            }
            self.json.end_object()?;
        }
        self.json.end_array()?;
        Ok(())
    }

    /// A member of a struct with its key, unless it is unset or left out.
    fn member(&mut self, name: &str, item: Item<'_>) -> Result<()> {
        let sparse = self.style == Style::Sparse;
        match item.ty() {
            TypeInfo::Optional(_) => {
                let Some(value) = item.optional()? else {
                    return Ok(());
                };
                if *value.ty() == TypeInfo::Bytes {
                    return self.string(name, value);
                }
                self.json.key(name)?;
                self.value(value)
            }
            TypeInfo::Bytes => self.string(name, item),
            TypeInfo::Unsigned(_) | TypeInfo::Bool => {
                // The tables are shown in unpacked form.
                let packed = name.starts_with("packed_");
                let value = if packed { 0 } else { item.number()? };
                if sparse && value == 0 {
                    return Ok(());
                }
                self.json.key(name)?;
                match item.ty() {
                    TypeInfo::Bool => self.json.boolean(value != 0)?,
                    _ => self.json.number(value)?,
                }
                Ok(())
            }
            TypeInfo::List(_) | TypeInfo::Set(_) | TypeInfo::Map(_)
                if sparse && item.list()?.is_empty() =>
            {
                Ok(())
            }
            _ => {
                self.json.key(name)?;
                self.value(item)
            }
        }
    }

    fn string(&mut self, name: &str, item: Item<'_>) -> Result<()> {
        let bytes = item.bytes()?;
        self.budget.spend(bytes.len())?;
        self.json.name(name, &bytes)?;
        Ok(())
    }

    fn value(&mut self, item: Item<'_>) -> Result<()> {
        match item.ty() {
            TypeInfo::Unsigned(_) => self.json.number(item.number()?)?,
            TypeInfo::Bool => self.json.boolean(item.number()? != 0)?,
            TypeInfo::Bytes => {
                let bytes = item.bytes()?;
                self.budget.spend(bytes.len())?;
                self.json.bytes(&bytes)?;
            }
            TypeInfo::Optional(_) => match item.optional()? {
                Some(value) => self.value(value)?,
                None => self.json.null()?,
            },
            TypeInfo::Pair(_) => {
                let (key, value) = item.pair()?;
                self.json.begin_array()?;
                self.value(key)?;
                self.value(value)?;
                self.json.end_array()?;
            }
            TypeInfo::List(_) | TypeInfo::Set(_) | TypeInfo::Map(_) => {
                self.json.begin_array()?;
                for element in item.list()?.iter() {
                    self.value(element)?;
                }
                self.json.end_array()?;
            }
            TypeInfo::Struct(_) => {
                self.json.begin_object()?;
                for (_, name, member) in ordered(item, self.style)? {
                    self.member(name, member)?;
                }
                self.json.end_object()?;
            }
        }
        Ok(())
    }
}
