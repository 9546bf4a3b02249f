//! Extended attributes and file flags of inodes (format chapter 09).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::iter::FusedIterator;
use std::ops::Range;

use super::open::partition;
use super::strings::Strings;
use super::table::{Column, NodePosition};
use super::types::Extent;
use super::view::{MetadataView, bad};
use crate::error::{Error, Result};
use crate::frozen::BitSource;
use crate::ids::{BlockNo, InodeNo};

/// The version of both tables. Readers ignore tables of another one.
pub const TABLE_VERSION: u32 = 1;
/// Flags that an image holds: all that a user can set and that mean something elsewhere. The table in
/// format/09 lists them.
pub const STORED_FLAGS: u32 =
    0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x1_0000 | 0x2_0000 | 0x80_0000 | 0x2000_0000;
/// Longest name of an attribute in bytes.
pub const MAX_XATTR_NAME: usize = 255;
/// Longest value that a reader returns, in bytes (16 MiB): 256 times the limit of Linux.
pub const MAX_XATTR_VALUE: u64 = 16 << 20;
/// Most pieces of a value that lies in blocks. Writers cut a value only at the ends of blocks.
pub(super) const MAX_CHUNKS: u32 = 1 << 16;
/// Longest value that lies in the metadata, in bytes (64 KiB).
pub(super) const MAX_INLINE: usize = 64 << 10;

/// Kinds of attributes that a writer recorded, and the system it ran on: bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XattrScope(pub u32);

impl XattrScope {
    /// Names that begin with `user.`.
    pub const USER: Self = Self(1 << 0);
    /// Names that begin with `security.`.
    pub const SECURITY: Self = Self(1 << 1);
    /// Names that begin with `trusted.`.
    pub const TRUSTED: Self = Self(1 << 2);
    /// POSIX access control lists.
    pub const ACL: Self = Self(1 << 3);
    /// All other names.
    pub const OTHER: Self = Self(1 << 4);
    /// The attributes come from Linux.
    pub const LINUX: Self = Self(1 << 8);
    /// The attributes come from macOS.
    pub const MACOS: Self = Self(1 << 9);
    /// The attributes come from FreeBSD.
    pub const FREEBSD: Self = Self(1 << 10);
    /// The attributes come from Windows.
    pub const WINDOWS: Self = Self(1 << 11);
    /// Some attributes could not be read.
    pub const INCOMPLETE: Self = Self(1 << 31);

    /// The kind of an attribute.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Self {
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" => Self::ACL,
            name if name.starts_with(b"user.") => Self::USER,
            name if name.starts_with(b"security.") => Self::SECURITY,
            name if name.starts_with(b"trusted.") => Self::TRUSTED,
            _ => Self::OTHER,
        }
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all bits of `other` are set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

pub(super) fn wrong(what: impl std::fmt::Display) -> Error {
    bad(format!("xattrs (member 20000): {what}"))
}

pub(super) fn wrong_flags(what: impl std::fmt::Display) -> Error {
    bad(format!("file_flags (member 20001): {what}"))
}

/// Which inodes have which number: sparse, or one for each inode.
#[derive(Debug)]
pub(super) struct Numbering {
    pub(super) inodes: Column,
    pub(super) numbers: Column,
}

impl Numbering {
    fn resolve(
        inodes: NodePosition<'_>,
        numbers: NodePosition<'_>,
        inode_count: u32,
        wrong: impl Fn(String) -> Error,
    ) -> Result<Self> {
        let this = Self {
            inodes: inodes.list()?.values()?,
            numbers: numbers.list()?.values()?,
        };
        let (inodes, numbers) = (this.inodes.len(), this.numbers.len());
        if inodes > inode_count || (inodes > 0 && numbers != inodes) {
            return Err(wrong(format!("{inodes} inodes with {numbers} sets")));
        }
        if inodes == 0 && numbers != 0 && numbers != inode_count {
            return Err(wrong(format!("{numbers} sets for {inode_count} inodes")));
        }
        Ok(this)
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.inodes.len() > 0
    }

    /// The number of an inode; 0 if it has none.
    #[inline]
    pub(super) fn get(&self, data: BitSource<'_>, ino: InodeNo) -> Result<u32> {
        if !self.is_sparse() {
            return self.numbers.get32(data, ino.0);
        }
        let i = partition(self.inodes.len(), |i| {
            Ok(self.inodes.get32(data, i)? < ino.0)
        })?;
        if i < self.inodes.len() && self.inodes.get32(data, i)? == ino.0 {
            self.numbers.get32(data, i)
        } else {
            Ok(0)
        }
    }
}

/// Places of the tables of extended attributes.
#[derive(Debug)]
pub(super) struct XattrColumns {
    pub(super) scope: XattrScope,
    pub(super) of: Numbering,
    pub(super) set_start: Column,
    pub(super) pair_name: Column,
    pub(super) pair_value: Column,
    pub(super) names: Strings,
    pub(super) data: Strings,
    pub(super) first_chunk: Column,
    pub(super) chunk_count: Column,
    pub(super) chunk_block: Column,
    pub(super) chunk_offset: Column,
    pub(super) chunk_size: Column,
}

impl XattrColumns {
    /// Nothing if the tables are of another version.
    pub(super) fn resolve(tables: NodePosition<'_>, inode_count: u32) -> Result<Option<Box<Self>>> {
        if tables.member(1)?.read::<u32>()? != TABLE_VERSION {
            return Ok(None);
        }
        let pairs = tables.member(6)?.list()?;
        let values = tables.member(8)?.list()?;
        let chunks = tables.member(9)?.list()?;
        let columns = Self {
            scope: XattrScope(tables.member(2)?.read()?),
            of: Numbering::resolve(tables.member(3)?, tables.member(4)?, inode_count, wrong)?,
            set_start: tables.member(5)?.list()?.values()?,
            pair_name: pairs.column(1)?,
            pair_value: pairs.column(2)?,
            names: Strings::plain(tables.member(7)?)?,
            data: Strings::member(&values, 1)?,
            first_chunk: values.column(2)?,
            chunk_count: values.column(3)?,
            chunk_block: chunks.column(1)?,
            chunk_offset: chunks.column(2)?,
            chunk_size: chunks.column(3)?,
        };
        if columns.set_start.len() < 2 {
            return Err(wrong("no empty set"));
        }
        Ok(Some(Box::new(columns)))
    }

    /// Number of sets, the empty one included.
    pub(super) fn sets(&self) -> u32 {
        self.set_start.len() - 1
    }

    /// Attributes of a set, as indices of pairs.
    pub(super) fn pairs(&self, data: BitSource<'_>, set: u32) -> Result<Range<u32>> {
        if set >= self.sets() {
            return Err(wrong("set out of range"));
        }
        let (a, b) = (
            self.set_start.get32(data, set)?,
            self.set_start.get32(data, set + 1)?,
        );
        if a > b || b > self.pair_name.len() {
            return Err(wrong(format!("invalid range of set {set}")));
        }
        Ok(a..b)
    }

    fn name<'a>(&self, data: BitSource<'a>, pair: u32) -> Result<Cow<'a, [u8]>> {
        let name = self.pair_name.get32(data, pair)?;
        if name >= self.names.len() {
            return Err(wrong("name out of range"));
        }
        let range = self.names.range(data, name).map_err(in_xattrs)?;
        if range.len() > MAX_XATTR_NAME {
            return Err(wrong("name too long"));
        }
        data.bytes(range.start as u64, range.len() as u64)
    }

    /// Chunks of a value; empty if it lies in the metadata.
    pub(super) fn chunks(&self, data: BitSource<'_>, value: u32) -> Result<Range<u32>> {
        let first = self.first_chunk.get32(data, value)?;
        let count = self.chunk_count.get32(data, value)?;
        let end = first.checked_add(count);
        match end.filter(|&end| end <= self.chunk_size.len()) {
            Some(end) => Ok(first..end),
            None => Err(wrong(format!("invalid chunks of value {value}"))),
        }
    }

    pub(super) fn chunk(&self, data: BitSource<'_>, i: u32) -> Result<Extent> {
        Ok(Extent::Data {
            block: BlockNo(self.chunk_block.get32(data, i)?),
            offset: self.chunk_offset.get32(data, i)?,
            size: self.chunk_size.get32(data, i)?,
        })
    }

    fn value<'a>(&self, data: BitSource<'a>, pair: u32) -> Result<XattrData<'a>> {
        let value = self.pair_value.get32(data, pair)?;
        if value >= self.data.len() {
            return Err(wrong("value out of range"));
        }
        let chunks = self.chunks(data, value)?;
        if chunks.is_empty() {
            return self.data.stored(data, value).map(XattrData::Inline);
        }
        let mut extents = Vec::new();
        self.long_size(data, chunks, |extent| extents.push(extent))?;
        Ok(XattrData::Blocks(extents))
    }

    fn size(&self, data: BitSource<'_>, pair: u32) -> Result<u64> {
        let value = self.pair_value.get32(data, pair)?;
        if value >= self.data.len() {
            return Err(wrong("value out of range"));
        }
        let chunks = self.chunks(data, value)?;
        if chunks.is_empty() {
            return Ok(self.data.stored(data, value)?.len() as u64);
        }
        self.long_size(data, chunks, |_| {})
    }

    /// Size of a value that has these pieces.
    fn long_size(
        &self,
        data: BitSource<'_>,
        chunks: Range<u32>,
        mut piece: impl FnMut(Extent),
    ) -> Result<u64> {
        if chunks.end - chunks.start > MAX_CHUNKS {
            return Err(Error::Limit(format!(
                "an extended attribute of more than {MAX_CHUNKS} chunks"
            )));
        }
        let mut size = 0;
        for i in chunks {
            let extent = self.chunk(data, i)?;
            if extent.size() == 0 {
                return Err(wrong(format!("chunk {i} is empty")));
            }
            size += extent.size();
            if size > MAX_XATTR_VALUE {
                return Err(too_long());
            }
            piece(extent);
        }
        Ok(size)
    }
}

/// An error in a string is one of the tables.
pub(super) fn in_xattrs(error: Error) -> Error {
    match error {
        Error::Corrupt { .. } => wrong("string out of range"),
        other => other,
    }
}

fn too_long() -> Error {
    Error::Limit(format!(
        "an extended attribute of more than {MAX_XATTR_VALUE} bytes"
    ))
}

/// Places of the tables of file flags.
#[derive(Debug)]
pub(super) struct FlagColumns {
    pub(super) of: Numbering,
    pub(super) values: Column,
}

impl FlagColumns {
    /// Nothing if the table is of another version.
    pub(super) fn resolve(table: NodePosition<'_>, inode_count: u32) -> Result<Option<Self>> {
        if table.member(1)?.read::<u32>()? != TABLE_VERSION {
            return Ok(None);
        }
        Ok(Some(Self {
            of: Numbering::resolve(table.member(2)?, table.member(3)?, inode_count, wrong_flags)?,
            values: table.member(4)?.list()?.values()?,
        }))
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XattrData<'a> {
    /// Bytes of the metadata.
    Inline(Cow<'a, [u8]>),
    /// Pieces of blocks, at most [`MAX_XATTR_VALUE`] bytes together; none is a hole.
    Blocks(Vec<Extent>),
}

impl XattrData<'_> {
    /// Number of bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blocks(extents) => extents.iter().map(Extent::size).sum(),
        }
    }
}

/// An attribute of an inode. Name and value are read when they are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Xattr<'a> {
    columns: &'a XattrColumns,
    data: BitSource<'a>,
    pair: u32,
}

impl<'a> Xattr<'a> {
    /// The full name, such as `user.comment`.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent.
    pub fn name(&self) -> Result<Cow<'a, [u8]>> {
        self.columns.name(self.data, self.pair)
    }

    /// The value.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent, `Limit` if the value is longer than
    /// [`MAX_XATTR_VALUE`] or in too many pieces.
    pub fn value(&self) -> Result<XattrData<'a>> {
        self.columns.value(self.data, self.pair)
    }

    /// Bytes of the value. This takes no memory for the places of its pieces.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub fn size(&self) -> Result<u64> {
        self.columns.size(self.data, self.pair)
    }
}

/// The attributes of an inode, sorted by name.
#[derive(Debug, Clone, Default)]
pub struct Xattrs<'a> {
    of: Option<(&'a XattrColumns, BitSource<'a>)>,
    next: Range<u32>,
}

impl<'a> Xattrs<'a> {
    /// The attribute of this name.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent.
    pub fn find(&self, name: &[u8]) -> Result<Option<Xattr<'a>>> {
        let Some((columns, data)) = self.of else {
            return Ok(None);
        };
        let Range { mut start, mut end } = self.next;
        while start < end {
            let pair = start + (end - start) / 2;
            match columns.name(data, pair)?.as_ref().cmp(name) {
                Ordering::Less => start = pair + 1,
                Ordering::Greater => end = pair,
                Ordering::Equal => {
                    return Ok(Some(Xattr {
                        columns,
                        data,
                        pair,
                    }));
                }
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Xattrs<'a> {
    type Item = Xattr<'a>;

    fn next(&mut self) -> Option<Xattr<'a>> {
        let (columns, data) = self.of?;
        let pair = self.next.next()?;
        Some(Xattr {
            columns,
            data,
            pair,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.next.size_hint()
    }
}

impl ExactSizeIterator for Xattrs<'_> {}
impl FusedIterator for Xattrs<'_> {}

/// Numbers of what the tables of extended attributes hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XattrCounts {
    /// Inodes that have attributes.
    pub inodes: u32,
    /// Different sets of attributes, without the empty one.
    pub sets: u32,
    /// Different names.
    pub names: u32,
    /// Different values.
    pub values: u32,
    /// Bytes of the values that lie in blocks.
    pub block_bytes: u64,
    /// Kinds of attributes that the writer recorded.
    pub scope: XattrScope,
}

impl MetadataView {
    /// True if the image has tables of extended attributes.
    #[must_use]
    pub fn has_xattrs(&self) -> bool {
        self.t.xattrs.is_some()
    }

    /// Kinds of extended attributes that the writer recorded; `None` if the image has no tables.
    #[must_use]
    pub fn xattr_scope(&self) -> Option<XattrScope> {
        self.t.xattrs.as_ref().map(|columns| columns.scope)
    }

    /// True if some set of the image has an access control list.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent.
    pub fn has_acls(&self) -> Result<bool> {
        let Some(columns) = &self.t.xattrs else {
            return Ok(false);
        };
        let data = self.data();
        for name in 0..columns.names.len() {
            let range = columns.names.range(data, name).map_err(in_xattrs)?;
            if range.len() <= MAX_XATTR_NAME {
                let name = data.bytes(range.start as u64, range.len() as u64)?;
                if XattrScope::of_name(&name) == XattrScope::ACL {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The extended attributes of an inode. For an inode without any, this is one packed read in the
    /// dense form, and a binary search in the sparse form. Nothing is allocated.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode, or the tables are inconsistent.
    #[inline]
    pub fn xattrs(&self, ino: InodeNo) -> Result<Xattrs<'_>> {
        let Some(columns) = &self.t.xattrs else {
            return Ok(Xattrs::default());
        };
        if ino.0 >= self.t.inode_count {
            return Err(bad(format!("inode {ino} does not exist")));
        }
        let data = self.data();
        let set = columns.of.get(data, ino)?;
        if set == 0 {
            return Ok(Xattrs::default());
        }
        Ok(Xattrs {
            of: Some((columns, data)),
            next: columns.pairs(data, set)?,
        })
    }

    /// Numbers of the tables of extended attributes, with a pass over the inodes in the dense form;
    /// `None` if the image has no tables.
    ///
    /// # Errors
    /// Those of loading the tables.
    pub fn xattr_counts(&self) -> Result<Option<XattrCounts>> {
        let (Some(columns), data) = (&self.t.xattrs, self.data()) else {
            return Ok(None);
        };
        let mut inodes = columns.of.inodes.len();
        if !columns.of.is_sparse() {
            for ino in 0..columns.of.numbers.len() {
                inodes += u32::from(columns.of.numbers.get32(data, ino)? != 0);
            }
        }
        let mut block_bytes = 0u64;
        for chunk in 0..columns.chunk_size.len() {
            block_bytes += u64::from(columns.chunk_size.get32(data, chunk)?);
        }
        Ok(Some(XattrCounts {
            inodes,
            sets: columns.sets() - 1,
            names: columns.names.len(),
            values: columns.data.len(),
            block_bytes,
            scope: columns.scope,
        }))
    }

    /// Calls `found` for each inode that has an attribute whose value lies in one of the blocks for which
    /// `wanted` is true, in ascending order of their numbers.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent.
    pub fn xattrs_in_blocks(
        &self,
        wanted: impl Fn(BlockNo) -> bool,
        mut found: impl FnMut(InodeNo),
    ) -> Result<()> {
        let (Some(columns), data) = (&self.t.xattrs, self.data()) else {
            return Ok(());
        };
        // Numbers of wanted elements before each one, because hostile ranges may overlap.
        let mut chunks = vec![0u32];
        let mut count = 0;
        for chunk in 0..columns.chunk_size.len() {
            let block = BlockNo(columns.chunk_block.get32(data, chunk)?);
            count += u32::from(wanted(block));
            chunks.push(count);
        }
        if count == 0 {
            return Ok(());
        }
        let has = |before: &[u32], Range { start, end }: Range<u32>| {
            before.get(start as usize) != before.get(end as usize)
        };
        let mut values = Vec::new();
        for value in 0..columns.data.len() {
            values.push(has(&chunks, columns.chunks(data, value)?));
        }
        let mut pairs = vec![0];
        let mut count = 0;
        for pair in 0..columns.pair_value.len() {
            let value = columns.pair_value.get32(data, pair)? as usize;
            count += u32::from(values.get(value) == Some(&true));
            pairs.push(count);
        }
        let mut sets = Vec::new();
        for set in 0..columns.sets() {
            sets.push(has(&pairs, columns.pairs(data, set)?));
        }
        let (inodes, numbers) = (&columns.of.inodes, &columns.of.numbers);
        for at in 0..numbers.len() {
            let set = numbers.get32(data, at)?;
            if sets.get(set as usize) == Some(&true) {
                found(InodeNo(match columns.of.is_sparse() {
                    true => inodes.get32(data, at)?,
                    false => at,
                }));
            }
        }
        Ok(())
    }

    /// Names of the members of this chapter that are set, but not used: tables of another version, and
    /// tables that [`parse_ignoring_xattrs`](Self::parse_ignoring_xattrs) left out.
    ///
    /// # Errors
    /// Those of loading the metadata.
    pub fn ignored_tables(&self) -> Result<Vec<&'static str>> {
        let root = NodePosition::root(self.data(), &self.root);
        let mut names = Vec::new();
        for (id, name, used) in [
            (20000, "xattrs", self.has_xattrs()),
            (20001, "file_flags", self.has_file_flags()),
        ] {
            if !used && root.member(id)?.value()?.is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// True if the image has a table of file flags.
    #[must_use]
    pub fn has_file_flags(&self) -> bool {
        self.t.file_flags.is_some()
    }

    /// Flags of an inode as `FS_IOC_GETFLAGS` of Linux returns them; 0 if the image holds none.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode, or the table is inconsistent.
    pub fn file_flags(&self, ino: InodeNo) -> Result<u32> {
        let Some(columns) = &self.t.file_flags else {
            return Ok(0);
        };
        if ino.0 >= self.t.inode_count {
            return Err(bad(format!("inode {ino} does not exist")));
        }
        let index = columns.of.get(self.data(), ino)?;
        if index != 0 && index >= columns.values.len() {
            return Err(wrong_flags("index out of range"));
        }
        columns.values.get32(self.data(), index)
    }
}

/// Brings numbers of inodes into the form with fewer bits: `inodes` and `sets` of the tables of
/// extended attributes, `inodes` and `indices` of file flags.
///
/// `of` has inode numbers in ascending order with their numbers, none of which is 0.
#[must_use]
pub fn place_sets(of: &[(u32, u32)], inode_count: u32) -> (Vec<u32>, Vec<u32>) {
    let bits = |value: u32| u64::from(u32::BITS - value.leading_zeros());
    let inode_bits = of.last().map_or(0, |&(ino, _)| bits(ino));
    let set_bits = of.iter().map(|&(_, set)| bits(set)).max().unwrap_or(0);
    if of.len() as u64 * (inode_bits + set_bits) <= u64::from(inode_count) * set_bits {
        return of.iter().copied().unzip();
    }
    let mut sets = vec![0; inode_count as usize];
    for &(ino, set) in of {
        if let Some(slot) = sets.get_mut(ino as usize) {
            *slot = set;
        }
    }
    (Vec::new(), sets)
}
