//! Extended attributes, birth times and file flags of rebuilt metadata.
//!
//! Inodes of images of the current version keep their numbers, and older images have none of these.

use redwarfs_format::metadata::{Chunk, FileFlags, MetadataView, Timestamp, XattrTables};
use redwarfs_format::{BlockNo, Error as FormatError, InodeNo};

use crate::error::{Error, Result};
use crate::recut::Recut;

/// Birth times of all inodes; empty if the image has none.
pub(crate) fn births(view: &MetadataView) -> Result<Vec<Timestamp>> {
    if !view.options().has_btime || view.is_legacy() {
        return Ok(Vec::new());
    }
    let births = (0..view.inode_count()).map(|ino| view.birth_time(InodeNo(ino)));
    let births: Option<Vec<Timestamp>> = births.collect::<Result<_, FormatError>>()?;
    Ok(births.unwrap_or_default())
}

/// Extended attributes, with values at their new places.
pub(crate) fn xattrs(
    view: &MetadataView,
    old: Option<XattrTables>,
    recut: Option<&Recut>,
) -> Result<Option<XattrTables>> {
    let Some(mut tables) = old.filter(|_| view.has_xattrs() && !view.is_legacy()) else {
        return Ok(None);
    };
    let Some(recut) = recut else {
        return Ok(Some(tables));
    };
    let old = std::mem::take(&mut tables.chunks);
    for value in tables.values.iter_mut().filter(|v| v.chunk_count > 0) {
        let first = tables.chunks.len();
        let range = value.first_chunk as usize..;
        let chunks = old.get(range).unwrap_or_default();
        for chunk in chunks.iter().take(value.chunk_count as usize) {
            let block = BlockNo(chunk.block);
            recut.map(block, chunk.offset, chunk.size, &mut |piece| {
                let piece = Chunk {
                    block: piece.block,
                    offset: piece.offset,
                    size: piece.size,
                };
                match tables.chunks.get_mut(first..).and_then(<[_]>::last_mut) {
                    // Stays below the block size.
                    Some(last)
                        if last.block == piece.block
                            && u64::from(last.offset) + u64::from(last.size)
                                == u64::from(piece.offset) =>
                    {
                        last.size += piece.size;
                    }
                    _ => tables.chunks.push(piece),
                }
                Ok(())
            })?;
        }
        let number = |n: usize| {
            u32::try_from(n).map_err(|_| Error::limit("too many chunks; use a larger block size"))
        };
        value.first_chunk = number(first)?;
        value.chunk_count = number(tables.chunks.len() - first)?;
    }
    Ok(Some(tables))
}

/// File flags.
pub(crate) fn file_flags(view: &MetadataView, old: Option<FileFlags>) -> Option<FileFlags> {
    old.filter(|_| view.has_file_flags() && !view.is_legacy())
}
