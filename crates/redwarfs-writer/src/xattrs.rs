//! Extended attributes, birth times and flags of the listed tree, and their tables in the metadata
//! (format/09).
//!
//! | for each | bytes |
//! |---|---|
//! | inode with attributes | 8 |
//! | inode with flags | 8 |
//! | inode, if birth times are kept | 16 |
//! | distinct set | 8 for each attribute and 4, and 6 to 12 more while the tree is listed |
//! | distinct name, distinct value | its length and 4, and 6 to 12 more while the tree is listed |

use std::borrow::Cow;

use redwarfs_format::metadata::{
    Chunk as StoredChunk, FileFlags, Metadata, STORED_FLAGS, TABLE_VERSION, XattrPair, XattrScope,
    XattrTables, XattrValue, place_sets,
};

use crate::acl;
use crate::contents::StoredValues;
use crate::error::{Error, Result};
use crate::options::BuildOptions;
use crate::source::extended::{ExtendedAttributes, can_be_stored};
use crate::source::{FileType, Timestamp};
use crate::tree::Interner;

/// Values longer than this lie in blocks, in bytes.
const INLINE: usize = 1024;
/// Longest name, in bytes.
const MAX_NAME: usize = 255;
/// Longest value, in bytes. The limit of Linux.
const MAX_VALUE: usize = 64 << 10;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The attributes of a tree.
#[derive(Default)]
pub(crate) struct Attributes {
    names: Interner,
    values: Interner,
    /// A set is a string of pairs of numbers, name and value, sorted by name.
    sets: Interner,
    /// Inodes that have a set, ascending.
    of: Vec<(u32, u32)>,
    /// Inodes that have flags, ascending.
    flags: Vec<(u32, u32)>,
    /// By inode; empty unless they are kept.
    births: Vec<Timestamp>,
    /// Bytes of the values that lie in blocks.
    long_bytes: u64,
    incomplete: bool,
}

/// What became of the attributes of an inode.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Added {
    /// It has extended attributes in the image.
    pub(crate) any: bool,
    /// Among them access control lists.
    pub(crate) acl: bool,
    /// Among them file capabilities.
    pub(crate) capability: bool,
    /// Attributes that the options do not select.
    pub(crate) left_out: u64,
}

impl Attributes {
    /// Adds the attributes of `inode`, which is larger than all before. `mode` is the stored mode.
    /// `problem` is told about those that cannot be stored.
    pub(crate) fn add(
        &mut self,
        inode: u32,
        extended: &ExtendedAttributes,
        mode: u32,
        mtime: Timestamp,
        options: &BuildOptions,
        problem: &mut dyn FnMut(&str),
    ) -> Result<Added> {
        if options.keep_birth_times {
            self.births.push(extended.birth().unwrap_or(mtime));
        }
        let flags = extended.flags() & STORED_FLAGS;
        if options.file_flags && flags != 0 {
            self.flags.push((inode, flags));
        }
        let mut added = Added::default();
        for name in extended.unreadable() {
            self.incomplete = true;
            problem(&if name.is_empty() {
                "cannot list extended attributes, leaving them out".into()
            } else {
                let name = name.escape_ascii();
                format!("cannot read extended attribute '{name}', leaving it out")
            });
        }
        let mut pairs = Vec::new();
        for (name, value) in chosen(extended, mode, options, &mut added) {
            let bad = name.is_empty() || name.len() > MAX_NAME || name.contains(&0);
            if bad || value.len() > MAX_VALUE {
                self.incomplete = true;
                let name = name.escape_ascii();
                problem(&format!(
                    "extended attribute '{name}' cannot be stored, leaving it out"
                ));
                continue;
            }
            added.any = true;
            added.acl |= XattrScope::of_name(name) == XattrScope::ACL;
            added.capability |= name == b"security.capability";
            let before = self.values.len();
            let value_id = self.values.intern(&value)?;
            if self.values.len() > before && value.len() > INLINE {
                self.long_bytes += value.len() as u64;
            }
            pairs.push((name, self.names.intern(name)?, value_id));
        }
        if pairs.is_empty() {
            return Ok(added);
        }
        pairs.sort_unstable();
        let pairs = pairs.iter().flat_map(|&(_, name, value)| [name, value]);
        let set: Vec<u8> = pairs.flat_map(u32::to_le_bytes).collect();
        self.of.push((inode, self.sets.intern(&set)?));
        Ok(added)
    }

    /// Nothing will be added.
    pub(crate) fn seal(&mut self) {
        self.names.seal();
        self.values.seal();
        self.sets.seal();
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let lists = 8 * (self.of.len() + self.flags.len()) + 16 * self.births.len();
        lists as u64 + self.names.bytes() + self.values.bytes() + self.sets.bytes()
    }

    /// The values that lie in blocks, with their numbers.
    pub(crate) fn long_values(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.values.len() as u32)
            .map(|id| (id, self.values.get(id)))
            .filter(|(_, value)| value.len() > INLINE)
    }

    /// Bytes of these values.
    pub(crate) fn long_bytes(&self) -> u64 {
        self.long_bytes
    }

    /// Birth times by inode of the tree; empty unless they are kept.
    pub(crate) fn births(&self) -> &[Timestamp] {
        &self.births
    }

    /// Writes the tables. `order` are the inodes of the tree in the order of their numbers in the image,
    /// and `stored` the places of the long values.
    pub(crate) fn store(
        self,
        order: &[u32],
        stored: &StoredValues,
        options: &BuildOptions,
        metadata: &mut Metadata,
    ) -> Result<()> {
        if !self.flags.is_empty() {
            metadata.file_flags = Some(self.flag_table(order));
        }
        if !self.of.is_empty() {
            let tables = self.tables(order, stored, options)?;
            metadata.xattrs = (tables.set_start.len() > 2).then_some(tables);
        }
        Ok(())
    }

    fn flag_table(&self, order: &[u32]) -> FileFlags {
        let mut values = vec![0];
        let mut of = Vec::new();
        let mut by_inode = Numbers::new(&self.flags);
        for (number, &inode) in (0u32..).zip(order) {
            let Some(flags) = by_inode.get(inode) else {
                continue;
            };
            let index = values.iter().position(|&v| v == flags);
            let index = index.unwrap_or_else(|| {
                values.push(flags);
                values.len() - 1
            });
            of.push((number, index as u32));
        }
        let (inodes, indices) = place_sets(&of, order.len() as u32);
        FileFlags {
            version: TABLE_VERSION,
            inodes,
            indices,
            values,
        }
    }

    fn tables(
        &self,
        order: &[u32],
        stored: &StoredValues,
        options: &BuildOptions,
    ) -> Result<XattrTables> {
        const UNUSED: u32 = u32::MAX;
        let mut by_name: Vec<u32> = (0..self.names.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| self.names.get(a).cmp(self.names.get(b)));
        let mut set_numbers = vec![UNUSED; self.sets.len()];
        let mut value_numbers = vec![UNUSED; self.values.len()];
        let mut name_used = vec![false; self.names.len()];
        let mut used_sets = Vec::new();
        let mut of = Vec::new();
        let mut by_inode = Numbers::new(&self.of);
        for (number, &inode) in (0u32..).zip(order) {
            let Some(set) = by_inode.get(inode) else {
                continue;
            };
            if let Some(slot) = set_numbers.get_mut(set as usize) {
                if *slot == UNUSED {
                    used_sets.push(set);
                    *slot = used_sets.len() as u32;
                }
                of.push((number, *slot));
            }
        }
        for &set in &used_sets {
            for (name, _) in pairs(self.sets.get(set)) {
                if let Some(used) = name_used.get_mut(name as usize) {
                    *used = true;
                }
            }
        }
        by_name.retain(|&name| name_used.get(name as usize) == Some(&true));
        let mut name_numbers = vec![UNUSED; self.names.len()];
        for (number, &name) in (0u32..).zip(&by_name) {
            if let Some(slot) = name_numbers.get_mut(name as usize) {
                *slot = number;
            }
        }
        let mut tables = XattrTables {
            version: TABLE_VERSION,
            set_start: vec![0, 0],
            names: by_name
                .iter()
                .map(|&n| self.names.get(n).to_vec())
                .collect(),
            ..XattrTables::default()
        };
        tables.scope = self.scope(&tables.names, options).0;
        for &set in &used_sets {
            for (name, value) in pairs(self.sets.get(set)) {
                let next = tables.values.len() as u32;
                let slot = value_numbers.get_mut(value as usize);
                let number = match slot {
                    Some(slot) if *slot == UNUSED => {
                        *slot = next;
                        let value = self.value(value, stored, &mut tables.chunks)?;
                        tables.values.push(value);
                        next
                    }
                    Some(slot) => *slot,
                    None => continue,
                };
                tables.pairs.push(XattrPair {
                    name: name_numbers.get(name as usize).copied().unwrap_or(0),
                    value: number,
                });
            }
            tables.set_start.push(number(tables.pairs.len())?);
        }
        (tables.inodes, tables.sets) = place_sets(&of, order.len() as u32);
        Ok(tables)
    }

    /// A value, whose pieces go to `chunks`.
    fn value(
        &self,
        id: u32,
        stored: &StoredValues,
        chunks: &mut Vec<StoredChunk>,
    ) -> Result<XattrValue> {
        let bytes = self.values.get(id);
        // A long value that was in the metadata before stays there.
        if bytes.len() <= INLINE || !stored.ranges.contains_key(&id) {
            return Ok(XattrValue {
                data: bytes.to_vec(),
                ..XattrValue::default()
            });
        }
        let first_chunk = number(chunks.len())?;
        chunks.extend(stored.chunks_of(id).map(|chunk| StoredChunk {
            block: chunk.block,
            offset: chunk.offset,
            size: chunk.size,
        }));
        Ok(XattrValue {
            data: Vec::new(),
            first_chunk,
            chunk_count: number(chunks.len())? - first_chunk,
        })
    }

    fn scope(&self, names: &[Vec<u8>], options: &BuildOptions) -> XattrScope {
        let kinds = names.iter().map(|name| XattrScope::of_name(name));
        let mut scope = kinds.fold(SYSTEM, XattrScope::with);
        if options.xattrs.is_all() {
            // Only privileged processes see the names in `trusted`.
            for kind in [
                XattrScope::USER,
                XattrScope::SECURITY,
                XattrScope::ACL,
                XattrScope::OTHER,
            ] {
                scope = scope.with(kind);
            }
        }
        if self.incomplete {
            scope = scope.with(XattrScope::INCOMPLETE);
        }
        scope
    }
}

const SYSTEM: XattrScope = if cfg!(windows) {
    XattrScope::WINDOWS
} else if cfg!(target_os = "macos") {
    XattrScope::MACOS
} else if cfg!(target_os = "freebsd") {
    XattrScope::FREEBSD
} else {
    XattrScope::LINUX
};

fn number(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::Limit("too many extended attributes".into()))
}

/// The pairs of a set.
fn pairs(set: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    set.chunks_exact(8).map(|pair| {
        let word = |at: usize| {
            let bytes = pair.get(at..at + 4).and_then(|b| b.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        (word(0), word(4))
    })
}

/// Numbers of inodes, by any order of inodes.
struct Numbers(Vec<u32>);

impl Numbers {
    /// From ascending inodes with numbers.
    fn new(of: &[(u32, u32)]) -> Self {
        let count = of.last().map_or(0, |&(inode, _)| inode as usize + 1);
        let mut numbers = vec![u32::MAX; count];
        for &(inode, number) in of {
            if let Some(slot) = numbers.get_mut(inode as usize) {
                *slot = number;
            }
        }
        Self(numbers)
    }

    fn get(&mut self, inode: u32) -> Option<u32> {
        let number = self.0.get(inode as usize).copied();
        number.filter(|&number| number != u32::MAX)
    }
}

/// The attributes that are stored of an entry.
pub(crate) fn stored(
    extended: &ExtendedAttributes,
    mode: u32,
    options: &BuildOptions,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let chosen = chosen(extended, mode, options, &mut Added::default());
    let owned = chosen.into_iter();
    owned
        .map(|(name, value)| (name.to_vec(), value.into_owned()))
        .collect()
}

/// The attributes that are stored.
fn chosen<'a>(
    extended: &'a ExtendedAttributes,
    mode: u32,
    options: &'a BuildOptions,
    added: &mut Added,
) -> Vec<(&'a [u8], Cow<'a, [u8]>)> {
    let kind = FileType::from_mode(mode);
    let mut chosen: Vec<(&[u8], Cow<'_, [u8]>)> = Vec::new();
    added.left_out = extended.left_out();
    for xattr in extended.xattrs() {
        let name = xattr.name.as_slice();
        if options.set_xattrs.iter().any(|set| set.name == name) && applies(name, kind) {
            continue;
        }
        if !options.xattrs.keeps(name) {
            added.left_out += u64::from(can_be_stored(name));
            continue;
        }
        let mut value = Cow::Borrowed(xattr.value.as_slice());
        if name == ACCESS && options.chmod.is_some() {
            value = Cow::Owned(acl::chmod_access_list(&value, mode));
        }
        if (name == ACCESS && acl::is_mode(&value, mode))
            || (name == DEFAULT && acl::is_empty(&value))
        {
            continue;
        }
        chosen.push((name, value));
    }
    // Of those with one name, the last one counts.
    for (i, set) in options.set_xattrs.iter().enumerate() {
        let mut later = options.set_xattrs.iter().skip(i + 1);
        if applies(&set.name, kind) && !later.any(|other| other.name == set.name) {
            chosen.push((&set.name, Cow::Borrowed(&set.value)));
        }
    }
    chosen
}

/// Whether an entry of this type can have an attribute of this name: Linux allows names in `user` only
/// for regular files and directories.
fn applies(name: &[u8], kind: Option<FileType>) -> bool {
    !name.starts_with(b"user.") || matches!(kind, Some(FileType::Regular | FileType::Directory))
}
