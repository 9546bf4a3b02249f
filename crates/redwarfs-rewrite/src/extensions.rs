//! Extended attributes, birth times and file flags of rebuilt metadata.
//!
//! Inodes of images of the current version keep their numbers, and older images have none of these.

use std::collections::HashMap;

use redwarfs_format::metadata::{
    Chunk, FileFlags, MetadataView, Timestamp, XattrPair, XattrTables, XattrValue, place_sets,
};
use redwarfs_format::{BlockNo, Error as FormatError, InodeNo};
use redwarfs_writer::chmod_access_list;

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

/// Extended attributes with the changes of `rebuild`: only those that its filter selects, and access
/// lists that follow `chmod`. `mode_of` are the new modes. Nothing if no attribute is left.
pub(crate) fn changed(
    mut tables: XattrTables,
    rebuild: &Rebuild,
    inode_count: u32,
    mode_of: &dyn Fn(u32) -> Option<u32>,
) -> Result<Option<XattrTables>> {
    let access = |name: &Vec<u8>| name == b"system.posix_acl_access";
    let access = tables.names.iter().position(access);
    let access = access.filter(|_| rebuild.chmod.is_some());
    if rebuild.xattrs.is_all() && access.is_none() {
        return Ok(Some(tables));
    }
    let names = tables.names.iter();
    let kept: Vec<bool> = names.map(|name| rebuild.xattrs.keeps(name)).collect();
    let mut inline: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut known: HashMap<Vec<XattrPair>, u32> = HashMap::new();
    let mut sets: Vec<Vec<XattrPair>> = vec![Vec::new()];
    let mut of: Vec<(u32, u32)> = Vec::new();
    for (ino, set) in numbers(&tables) {
        let mut pairs = pairs_of(&tables, set);
        pairs.retain(|pair| kept.get(pair.name as usize) == Some(&true));
        for pair in &mut pairs {
            if Some(pair.name as usize) != access {
                continue;
            }
            let (Some(value), Some(mode)) = (tables.values.get(pair.value as usize), mode_of(ino))
            else {
                continue;
            };
            let list = chmod_access_list(&value.data, mode);
            if value.chunk_count > 0 || list == value.data {
                continue;
            }
            pair.value = match inline.get(&list) {
                Some(&number) => number,
                None => {
                    let next = number(tables.values.len())?;
                    inline.insert(list.clone(), next);
                    tables.values.push(XattrValue {
                        data: list,
                        ..XattrValue::default()
                    });
                    next
                }
            };
        }
        if pairs.is_empty() {
            continue;
        }
        let new = match known.get(&pairs) {
            Some(&new) => new,
            None => {
                let new = number(sets.len())?;
                known.insert(pairs.clone(), new);
                sets.push(pairs);
                new
            }
        };
        of.push((ino, new));
    }
    drop(known);
    if of.is_empty() {
        return Ok(None);
    }
    compact(&tables, &sets, &of, inode_count).map(Some)
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
