//! Extended attributes, birth times and file flags of rebuilt metadata.
//!
//! Inodes of images of the current version keep their numbers, and older images have none of these.

use std::borrow::Cow;
use std::collections::HashMap;

use redwarfs_format::metadata::{
    Chunk, FileFlags, MetadataView, Timestamp, XattrPair, XattrTables, XattrValue, place_sets,
};
use redwarfs_format::{BlockNo, Error as FormatError, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::{access_list_is_mode, chmod_access_list};

use crate::error::{Error, Result};
use crate::options::Rebuild;
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

const ACCESS: &[u8] = b"system.posix_acl_access";
/// Longest access list, in bytes: the limit of values in the metadata.
const LONGEST_LIST: u64 = 64 << 10;
/// Longest access lists that leave the blocks, in bytes together.
const LONGEST_LISTS: u64 = 64 << 20;

/// Extended attributes with the changes of `rebuild`: only those that its filter selects, and access
/// lists that follow `chmod`. `mode_of` are the new modes. Nothing if no attribute is left.
///
/// A changed list lies in the metadata, also if the old one lies in blocks of `image`.
pub(crate) fn changed(
    mut tables: XattrTables,
    rebuild: &Rebuild,
    image: &Image,
    mode_of: &dyn Fn(u32) -> Option<u32>,
) -> Result<Option<XattrTables>> {
    let inode_count = image.metadata().inode_count();
    let access = tables.names.iter().position(|name| name == ACCESS);
    let access = access.filter(|_| rebuild.chmod.is_some());
    if rebuild.xattrs.is_all() && access.is_none() {
        return Ok(Some(tables));
    }
    let names = tables.names.iter();
    let kept: Vec<bool> = names.map(|name| rebuild.xattrs.keeps(name)).collect();
    let mut lists = Lists {
        image,
        known: HashMap::new(),
        read: 0,
    };
    let mut known: HashMap<Vec<XattrPair>, u32> = HashMap::new();
    let mut sets: Vec<Vec<XattrPair>> = vec![Vec::new()];
    // New sets by the old ones, and by the permissions if these count.
    let mut done: HashMap<(u32, Option<u32>), u32> = HashMap::new();
    let mut of: Vec<(u32, u32)> = Vec::new();
    for (ino, set) in numbers(&tables) {
        let permissions = access.and_then(|_| mode_of(ino)).unwrap_or(0) & 0o777;
        let same = done.get(&(set, None));
        let new = match same.or_else(|| done.get(&(set, Some(permissions)))) {
            Some(&new) => new,
            None => {
                let mut pairs = pairs_of(&tables, set);
                pairs.retain(|pair| kept.get(pair.name as usize) == Some(&true));
                let is_list = |pair: &XattrPair| Some(pair.name as usize) == access;
                let list = pairs.iter().position(is_list);
                if let Some(at) = list {
                    let value = pairs.get(at).map_or(0, |pair| pair.value);
                    match lists.changed(&mut tables, InodeNo(ino), value, permissions)? {
                        Some(value) => {
                            if let Some(pair) = pairs.get_mut(at) {
                                pair.value = value;
                            }
                        }
                        None => drop(pairs.remove(at)),
                    }
                }
                let new = match known.get(&pairs) {
                    _ if pairs.is_empty() => 0,
                    Some(&new) => new,
                    None => {
                        let new = number(sets.len())?;
                        known.insert(pairs.clone(), new);
                        sets.push(pairs);
                        new
                    }
                };
                done.insert((set, list.map(|_| permissions)), new);
                new
            }
        };
        if new != 0 {
            of.push((ino, new));
        }
    }
    drop(known);
    if of.is_empty() {
        return Ok(None);
    }
    compact(&tables, &sets, &of, inode_count).map(Some)
}

/// Access lists after `chmod`.
struct Lists<'a> {
    image: &'a Image,
    /// Numbers of the new values.
    known: HashMap<Vec<u8>, u32>,
    /// Bytes of lists that were read from blocks.
    read: u64,
}

impl Lists<'_> {
    /// The number of the value that the list of an inode becomes; nothing if it says no more than the
    /// permissions.
    fn changed(
        &mut self,
        tables: &mut XattrTables,
        ino: InodeNo,
        value: u32,
        permissions: u32,
    ) -> Result<Option<u32>> {
        let old = tables.values.get(value as usize);
        let old = match old {
            Some(old) if old.chunk_count == 0 => Cow::Borrowed(old.data.as_slice()),
            _ => Cow::Owned(self.in_blocks(ino)?),
        };
        let list = chmod_access_list(&old, permissions);
        if access_list_is_mode(&list, permissions) {
            return Ok(None);
        }
        if list == *old {
            return Ok(Some(value));
        }
        if let Some(&known) = self.known.get(&list) {
            return Ok(Some(known));
        }
        let next = number(tables.values.len())?;
        self.known.insert(list.clone(), next);
        tables.values.push(XattrValue {
            data: list,
            ..XattrValue::default()
        });
        Ok(Some(next))
    }

    fn in_blocks(&mut self, ino: InodeNo) -> Result<Vec<u8>> {
        let Some(found) = self.image.xattrs(ino)?.find(ACCESS)? else {
            return Ok(Vec::new());
        };
        let size = found.size()?;
        self.read += size;
        if size > LONGEST_LIST || self.read > LONGEST_LISTS {
            return Err(Error::limit(format!(
                "access control lists are too long to follow a change of modes: {size} bytes, {} together",
                self.read
            )));
        }
        Ok(self.image.xattr_value(&found)?.into_owned())
    }
}

/// Each inode that has attributes, with its set.
fn numbers(tables: &XattrTables) -> Vec<(u32, u32)> {
    let dense = tables.inodes.is_empty();
    let sparse = tables
        .inodes
        .iter()
        .copied()
        .zip(tables.sets.iter().copied());
    let all = (0u32..).zip(tables.sets.iter().copied());
    match dense {
        true => all.filter(|(_, set)| *set != 0).collect(),
        false => sparse.collect(),
    }
}

fn pairs_of(tables: &XattrTables, set: u32) -> Vec<XattrPair> {
    let bounds = tables.set_start.get(set as usize..).unwrap_or_default();
    let &[first, end, ..] = bounds else {
        return Vec::new();
    };
    let pairs = tables.pairs.get(first as usize..end as usize);
    pairs.unwrap_or_default().to_vec()
}

/// Tables with these sets, and only the names and values that they have. Equal values stay one if they
/// were.
fn compact(
    old: &XattrTables,
    sets: &[Vec<XattrPair>],
    of: &[(u32, u32)],
    inode_count: u32,
) -> Result<XattrTables> {
    let mut used: Vec<bool> = vec![false; old.names.len()];
    for pair in sets.iter().flatten() {
        if let Some(used) = used.get_mut(pair.name as usize) {
            *used = true;
        }
    }
    let mut names = vec![0; old.names.len()];
    let mut tables = XattrTables {
        version: old.version,
        scope: old.scope,
        set_start: vec![0],
        ..XattrTables::default()
    };
    for ((name, slot), used) in old.names.iter().zip(&mut names).zip(used) {
        if used {
            *slot = number(tables.names.len())?;
            tables.names.push(name.clone());
        }
    }
    let mut values: HashMap<u32, u32> = HashMap::new();
    for set in sets {
        for pair in set {
            let value = match values.get(&pair.value) {
                Some(&value) => value,
                None => {
                    let next = number(tables.values.len())?;
                    values.insert(pair.value, next);
                    let value = old.values.get(pair.value as usize);
                    let mut value = value.cloned().unwrap_or_default();
                    let chunks = old.chunks.get(value.first_chunk as usize..);
                    let chunks = chunks.unwrap_or_default().iter();
                    value.first_chunk = number(tables.chunks.len())?;
                    tables
                        .chunks
                        .extend(chunks.take(value.chunk_count as usize));
                    if value.chunk_count == 0 {
                        value.first_chunk = 0;
                    }
                    tables.values.push(value);
                    next
                }
            };
            tables.pairs.push(XattrPair {
                name: names.get(pair.name as usize).copied().unwrap_or(0),
                value,
            });
        }
        tables.set_start.push(number(tables.pairs.len())?);
    }
    (tables.inodes, tables.sets) = place_sets(of, inode_count);
    Ok(tables)
}

fn number(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::limit("too many extended attributes"))
}

/// Extended attributes, with values at their new places.
pub(crate) fn moved(mut tables: XattrTables, recut: Option<&Recut>) -> Result<XattrTables> {
    let Some(recut) = recut else {
        return Ok(tables);
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
        value.first_chunk = number(first)?;
        value.chunk_count = number(tables.chunks.len() - first)?;
    }
    Ok(tables)
}

/// File flags.
pub(crate) fn file_flags(view: &MetadataView, old: Option<FileFlags>) -> Option<FileFlags> {
    old.filter(|_| view.has_file_flags() && !view.is_legacy())
}
