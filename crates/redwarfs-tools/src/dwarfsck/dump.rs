//! The stored metadata as text, with all numbers: for debugging.

use std::io::Write;

use redwarfs_format::frozen::{Item, TypeInfo};
use redwarfs_format::metadata::{MetadataView, metadata_type};
use redwarfs_format::{Error, Result};

/// Bytes of strings that may be shown for each byte of metadata. Strings may share their bytes, but
/// not so that a small image makes endless output; the decoded form of a compressed one has at most
/// 8 times its size.
const MOST: u64 = 64;
/// Bytes of strings that may be shown in any case (1 MiB).
const FREE: u64 = 1 << 20;

/// Bounds how many bytes of strings are shown.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new(view: &MetadataView) -> Self {
        Self((view.bytes().len() as u64).saturating_mul(MOST).max(FREE))
    }

    /// Takes the length of a string.
    pub(super) fn spend(&mut self, length: usize) -> Result<()> {
        self.0 = self
            .0
            .checked_sub(length as u64)
            .ok_or_else(|| Error::corrupt("metadata strings overlap"))?;
        Ok(())
    }
}

/// Writes the whole metadata. Takes no memory that depends on it.
///
/// # Errors
/// `Io` if writing failed, `Corrupt` if something lies outside of the data.
pub(super) fn metadata(view: &MetadataView, out: &mut dyn Write) -> Result<()> {
    let ty = metadata_type();
    let mut dump = Dump {
        out,
        budget: Budget::new(view),
    };
    dump.value(view.item(&ty), 0)?;
    dump.out.write_all(b"\n")?;
    Ok(())
}

struct Dump<'a> {
    out: &'a mut dyn Write,
    budget: Budget,
}

/// What a type is called where it is a member, and where it is an element.
fn type_names(ty: &TypeInfo) -> (String, String) {
    let same = |name: &str| (name.to_owned(), name.to_owned());
    match ty {
        TypeInfo::Unsigned(8) => same("byte"),
        TypeInfo::Unsigned(32) => same("i32"),
        TypeInfo::Unsigned(_) => same("i64"),
        TypeInfo::Bool => same("bool"),
        TypeInfo::Bytes => ("string".to_owned(), "binary".to_owned()),
        TypeInfo::Optional(inner) => type_names(inner),
        TypeInfo::List(_) => same("list"),
        TypeInfo::Set(_) => same("set"),
        TypeInfo::Map(_) => same("map"),
        TypeInfo::Pair(_) | TypeInfo::Struct(_) => same("struct"),
    }
}

/// `list<struct>`.
fn container_name(ty: &TypeInfo) -> String {
    match ty {
        TypeInfo::List(inner) => format!("list<{}>", type_names(inner).1),
        TypeInfo::Set(inner) => format!("set<{}>", type_names(inner).1),
        TypeInfo::Map(pair) => match pair.as_ref() {
            TypeInfo::Pair(types) => {
                format!("map<{},{}>", type_names(&types.0).1, type_names(&types.1).1)
            }
            _ => "map".to_owned(),
        },
        _ => String::new(),
    }
}

impl Dump<'_> {
    fn line_start(&mut self, depth: usize) -> Result<()> {
        self.out.write_all(b"\n")?;
        for _ in 0..depth {
            self.out.write_all(b"  ")?;
        }
        Ok(())
    }

    fn value(&mut self, item: Item<'_>, depth: usize) -> Result<()> {
        match item.ty() {
            TypeInfo::Unsigned(_) => write!(self.out, "{}", item.number()?)?,
            TypeInfo::Bool => write!(self.out, "{}", item.number()? != 0)?,
            TypeInfo::Bytes => self.string(&item.bytes()?)?,
            // Unset ones are left out by the struct around them, and there are no others.
            TypeInfo::Optional(_) => {
                if let Some(value) = item.optional()? {
                    self.value(value, depth)?;
                }
            }
            TypeInfo::Pair(_) => {
                let (key, value) = item.pair()?;
                self.value(key, depth)?;
                self.out.write_all(b" -> ")?;
                self.value(value, depth)?;
            }
            TypeInfo::List(_) | TypeInfo::Set(_) | TypeInfo::Map(_) => {
                let list = item.list()?;
                write!(self.out, "{}[{}] {{", container_name(item.ty()), list.len())?;
                for (i, element) in (1..).zip(list.iter()) {
                    self.line_start(depth + 1)?;
                    self.value(element, depth + 1)?;
                    if i < list.len() {
                        self.out.write_all(b",")?;
                    }
                }
                if !list.is_empty() {
                    self.line_start(depth)?;
                }
                self.out.write_all(b"}")?;
            }
            TypeInfo::Struct(info) => {
                let mut members = Vec::new();
                for (info, member) in item.members()? {
                    match member.ty() {
                        TypeInfo::Optional(_) => {
                            members.extend(member.optional()?.map(|value| (info, value)));
                        }
                        _ => members.push((info, member)),
                    }
                }
                members.sort_by_key(|(info, _)| info.id);
                write!(self.out, "{} {{", info.name)?;
                let count = members.len();
                for (i, (info, member)) in (1..).zip(members) {
                    self.line_start(depth + 1)?;
                    let ty = type_names(member.ty()).0;
                    write!(self.out, "{}: {} ({ty}) = ", info.id, info.name)?;
                    self.value(member, depth + 1)?;
                    if i < count {
                        self.out.write_all(b",")?;
                    }
                }
                self.line_start(depth)?;
                self.out.write_all(b"}")?;
            }
        }
        Ok(())
    }

    /// In quotes, with escapes for bytes that are not printable.
    fn string(&mut self, bytes: &[u8]) -> Result<()> {
        self.budget.spend(bytes.len())?;
        self.out.write_all(b"\"")?;
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '"' | '\\' => write!(self.out, "\\{c}")?,
                    '\n' => self.out.write_all(b"\\n")?,
                    '\r' => self.out.write_all(b"\\r")?,
                    '\t' => self.out.write_all(b"\\t")?,
                    c if c.is_control() => {
                        let mut bytes = [0; 4];
                        for byte in c.encode_utf8(&mut bytes).bytes() {
                            write!(self.out, "\\x{byte:02x}")?;
                        }
                    }
                    c => write!(self.out, "{c}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(self.out, "\\x{byte:02x}")?;
            }
        }
        self.out.write_all(b"\"")?;
        Ok(())
    }
}
