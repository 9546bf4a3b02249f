//! The HISTORY payload: who wrote an image, when and how (format chapter 02 section 5).

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::thrift::{Reader, StructWriter, Type, Value, Writer};

/// Most entries of one section. An entry may occupy a single byte, but takes 200 in memory.
const MAX_ENTRIES: usize = 1 << 14;
/// Most arguments and library versions of one section together, for the same reason.
const MAX_STRINGS: usize = 1 << 20;

/// All entries of one HISTORY section, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// One entry per time the image was written or rewritten.
    pub entries: Vec<HistoryEntry>,
}

/// One act of writing.
///
/// Strings that are not UTF-8 in the image are converted with replacement characters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Version of the writing program.
    pub version: HistoryVersion,
    /// Operating system and architecture, for example `Linux [x86_64]`.
    pub system_id: String,
    /// Compiler, for example `Clang 19.1.7`.
    pub compiler_id: String,
    /// Command line of the writer; the first element is the program.
    pub arguments: Option<Vec<String>>,
    /// Unix time of writing, in seconds.
    pub timestamp: Option<u64>,
    /// Libraries with versions, for example `zstd-1.5.4`.
    pub library_versions: Option<BTreeSet<String>>,
}

/// Version of a writing program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryVersion {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
    /// False for builds between releases.
    pub is_release: bool,
    /// Abbreviated commit id.
    pub git_rev: Option<String>,
    /// Branch name.
    pub git_branch: Option<String>,
    /// Description of the commit relative to the nearest tag.
    pub git_desc: Option<String>,
}

/// What this library calls itself where a version stands.
const LIBRARY: &str = "libredwarfs";

impl HistoryVersion {
    /// The version of this library, from the parts of its number.
    ///
    /// The format has no place for a name, but readers show the description. It is a release: of any
    /// other the reference's `dwarfsck` shows the branch as well, and fails where none is given.
    #[must_use]
    pub fn of_this_library(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            major,
            minor,
            patch,
            is_release: true,
            git_desc: Some(format!("{LIBRARY} v{major}.{minor}.{patch}")),
            ..Self::default()
        }
    }

    /// Name and version of the library that wrote an image.
    #[must_use]
    pub fn library(&self) -> String {
        let number = format!("v{}.{}.{}", self.major, self.minor, self.patch);
        match &self.git_desc {
            Some(desc) if desc.starts_with(LIBRARY) => desc.clone(),
            Some(desc) if !self.is_release => format!("libdwarfs {desc}"),
            _ => format!("libdwarfs {number}"),
        }
    }
}

impl History {
    /// Decodes a (decompressed) payload. Bytes after the struct are ignored.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the encoding is damaged, [`Error::Limit`] if there are more than
    /// 2^14 entries or 2^20 arguments and libraries.
    pub fn parse(payload: &[u8]) -> Result<Self> {
        let mut history = Self::default();
        let (mut entries, mut strings) = (MAX_ENTRIES, MAX_STRINGS);
        Reader::new(payload).read_struct(|id, value| match id {
            1 => value.store_list(Type::Struct, &mut history.entries, |value| {
                spend(&mut entries, "entries")?;
                HistoryEntry::read(value, &mut strings)
            }),
            _ => Ok(()),
        })?;
        Ok(history)
    }

    /// Encodes the payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.write_struct(|s| {
            s.put_list(1, Type::Struct, &self.entries, |writer, entry| {
                writer.write_struct(|s| entry.write(s));
            });
        });
        writer.into_bytes()
    }
}

/// Takes one from the remaining number.
fn spend(left: &mut usize, what: &str) -> Result<()> {
    *left = left
        .checked_sub(1)
        .ok_or_else(|| Error::Limit(format!("history with very many {what}")))?;
    Ok(())
}

impl HistoryEntry {
    fn read(value: Value<'_, '_>, strings: &mut usize) -> Result<Self> {
        let mut entry = Self::default();
        value.store_struct(|id, value| match id {
            1 => entry.version.read(value),
            2 => value.store(&mut entry.system_id),
            3 => value.store(&mut entry.compiler_id),
            4 if value.ty() == Type::List => {
                let arguments = entry.arguments.insert(Vec::new());
                value.store_list(Type::Binary, arguments, |value| {
                    spend(strings, "arguments")?;
                    let mut argument = String::new();
                    value.store(&mut argument)?;
                    Ok(argument)
                })
            }
            5 => value.store(&mut entry.timestamp),
            6 if value.ty() == Type::Set => {
                let versions = entry.library_versions.insert(BTreeSet::new());
                value.store_set(|version| {
                    spend(strings, "libraries")?;
                    versions.insert(version);
                    Ok(())
                })?;
                Ok(())
            }
            _ => Ok(()),
        })?;
        Ok(entry)
    }

    fn write(&self, s: &mut StructWriter<'_>) {
        s.put_struct(1, |s| self.version.write(s));
        s.put(2, &self.system_id);
        s.put(3, &self.compiler_id);
        if let Some(arguments) = &self.arguments {
            s.put_list(4, Type::Binary, arguments, Writer::write);
        }
        s.put_opt(5, self.timestamp.as_ref());
        if let Some(versions) = &self.library_versions {
            s.put_set(6, Type::Binary, versions, Writer::write);
        }
    }
}

impl HistoryVersion {
    fn read(&mut self, value: Value<'_, '_>) -> Result<()> {
        if value.ty() == Type::Struct {
            *self = Self::default();
        }
        value.store_struct(|id, value| match id {
            1 => value.store(&mut self.major),
            2 => value.store(&mut self.minor),
            3 => value.store(&mut self.patch),
            4 => value.store(&mut self.is_release),
            5 => value.store(&mut self.git_rev),
            6 => value.store(&mut self.git_branch),
            7 => value.store(&mut self.git_desc),
            _ => Ok(()),
        })?;
        Ok(())
    }

    fn write(&self, s: &mut StructWriter<'_>) {
        s.put(1, &self.major);
        s.put(2, &self.minor);
        s.put(3, &self.patch);
        s.put(4, &self.is_release);
        s.put_opt(5, self.git_rev.as_ref());
        s.put_opt(6, self.git_branch.as_ref());
        s.put_opt(7, self.git_desc.as_ref());
    }
}

#[cfg(test)]
mod tests;
