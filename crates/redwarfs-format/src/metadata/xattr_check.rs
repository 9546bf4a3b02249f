//! The full check of extended attributes and file flags (format chapter 09, section 5).

use super::check::block_end;
use super::types::Extent;
use super::view::MetadataView;
use super::xattrs::{
    FlagColumns, MAX_CHUNKS, MAX_INLINE, MAX_XATTR_NAME, MAX_XATTR_VALUE, Numbering, XattrColumns,
    in_xattrs, wrong, wrong_flags,
};
use crate::error::{Error, Result};
use crate::frozen::BitSource;

/// Linear in the size of the tables.
pub(super) fn check(view: &MetadataView, blocks: u32, block_sizes: Option<&[u64]>) -> Result<()> {
    let data = view.data();
    if let Some(columns) = &view.t.xattrs {
        columns.check_sets(data, view.t.inode_count)?;
        columns.check_names(data)?;
        columns.check_values(data)?;
        for i in 0..columns.chunk_size.len() {
            if let Extent::Data {
                block,
                offset,
                size,
            } = columns.chunk(data, i)?
            {
                let end = u64::from(offset) + u64::from(size);
                ensure(
                    block.0 < blocks
                        && size > 0
                        && end <= block_end(view.t.block_size, block, block_sizes),
                    || wrong(format!("chunk {i} does not lie in a block")),
                )?;
            }
        }
    }
    if let Some(columns) = &view.t.file_flags {
        columns.check(data, view.t.inode_count)?;
    }
    Ok(())
}

fn ensure(ok: bool, what: impl FnOnce() -> Error) -> Result<()> {
    if ok { Ok(()) } else { Err(what()) }
}

impl Numbering {
    /// Numbers are below `end`.
    fn check(
        &self,
        data: BitSource<'_>,
        inode_count: u32,
        end: u32,
        wrong: impl Fn(String) -> Error,
    ) -> Result<()> {
        let mut previous = None;
        for i in 0..self.numbers.len() {
            let number = self.numbers.get32(data, i)?;
            ensure(number < end, || {
                wrong(format!("set {number} does not exist"))
            })?;
            if self.is_sparse() {
                let ino = self.inodes.get32(data, i)?;
                ensure(previous < Some(ino) && ino < inode_count, || {
                    wrong("inode numbers are not in order".into())
                })?;
                ensure(number != 0, || {
                    wrong(format!("inode {ino} has the empty set"))
                })?;
                previous = Some(ino);
            }
        }
        Ok(())
    }
}

impl XattrColumns {
    fn check_sets(&self, data: BitSource<'_>, inode_count: u32) -> Result<()> {
        let start = |i| self.set_start.get32(data, i);
        ensure(
            start(0)? == 0 && start(1)? == 0 && start(self.sets())? == self.pair_name.len(),
            || wrong("sets do not cover the pairs"),
        )?;
        for set in 0..self.sets() {
            let mut previous = None;
            for pair in self.pairs(data, set)? {
                let name = self.pair_name.get32(data, pair)?;
                let value = self.pair_value.get32(data, pair)?;
                ensure(previous < Some(name) && name < self.names.len(), || {
                    wrong(format!("names of set {set} are not in order"))
                })?;
                ensure(value < self.data.len(), || {
                    wrong(format!("value {value} of set {set} does not exist"))
                })?;
                previous = Some(name);
            }
        }
        self.of.check(data, inode_count, self.sets(), wrong)
    }

    fn check_names(&self, data: BitSource<'_>) -> Result<()> {
        let mut previous = Vec::new();
        for k in 0..self.names.len() {
            let range = self.names.range(data, k).map_err(in_xattrs)?;
            ensure(range.len() <= MAX_XATTR_NAME, || wrong("name too long"))?;
            let name = data.bytes(range.start as u64, range.len() as u64)?;
            ensure(!name.is_empty() && !name.contains(&0), || {
                wrong("invalid name")
            })?;
            ensure(previous.as_slice() < &*name, || {
                wrong("names are not in order")
            })?;
            previous = name.into_owned();
        }
        Ok(())
    }

    /// Values in blocks follow each other in `chunks`, and use all of them.
    fn check_values(&self, data: BitSource<'_>) -> Result<()> {
        let mut next = 0;
        for value in 0..self.data.len() {
            let inline = self.data.range(data, value).map_err(in_xattrs)?;
            ensure(inline.len() <= MAX_INLINE, || {
                wrong(format!("value {value} is too long"))
            })?;
            let chunks = self.chunks(data, value)?;
            if chunks.is_empty() {
                continue;
            }
            ensure(inline.is_empty(), || {
                wrong(format!("value {value} has two forms"))
            })?;
            ensure(chunks.start == next, || {
                wrong(format!("chunks of value {value} are not consecutive"))
            })?;
            next = chunks.end;
            ensure(chunks.end - chunks.start <= MAX_CHUNKS, || {
                wrong(format!("value {value} has too many chunks"))
            })?;
            let mut size = 0u64;
            for i in chunks {
                size += u64::from(self.chunk_size.get32(data, i)?);
            }
            ensure(size <= MAX_XATTR_VALUE, || {
                wrong(format!("value {value} is too long"))
            })?;
        }
        ensure(next == self.chunk_size.len(), || {
            wrong("chunks without a value")
        })
    }
}

impl FlagColumns {
    fn check(&self, data: BitSource<'_>, inode_count: u32) -> Result<()> {
        ensure(
            self.values.len() > 0 && self.values.get32(data, 0)? == 0,
            || wrong_flags("the first combination is not empty"),
        )?;
        self.of
            .check(data, inode_count, self.values.len(), wrong_flags)
    }
}
