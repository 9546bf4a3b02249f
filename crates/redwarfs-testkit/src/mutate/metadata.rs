//! Metadata that is well encoded and says something impossible.

use redwarfs_format::fsst::SymbolTable;
use redwarfs_format::metadata::{
    Chunk, Compress, DirEntry, Directory, FsOptions, InodeData, Metadata, StringPacking,
    StringTable, build_string_table,
};

use super::{Rng, bytes};

/// Names that are invalid, or difficult to print or create.
const NAMES: [&[u8]; 18] = [
    b"",
    b".",
    b"..",
    b"/",
    b"a/b",
    b"../escaped",
    b"../../escaped",
    b"/redwarfs-hostile-escape",
    b"trap/escaped",
    b"nul\0nul",
    b"line\nline",
    b"\x1b[2J\x07",
    b"\xff\xfe\xc0\x80",
    b"-rf",
    b"caf\xc3",
    &[b'l'; 256],
    &[b'l'; 600],
    &[b'\xe2'; 70_000],
];

const TARGETS: [&[u8]; 8] = [
    b"../trap",
    b"../../trap",
    b"/",
    b"",
    b"nul\0nul",
    b".",
    &[b't'; 5000],
    &[b't'; 70_000],
];

/// The strings of a compact table, as far as it is intact.
pub fn strings_of(table: &StringTable) -> Option<Vec<Vec<u8>>> {
    let symbols = match &table.symtab {
        Some(symbols) => Some(SymbolTable::parse(symbols).ok()?),
        None => None,
    };
    let mut ends = Vec::with_capacity(table.index.len());
    if table.packed_index {
        let mut end = 0usize;
        for length in &table.index {
            let start = end;
            end = end.checked_add(*length as usize)?;
            ends.push(start..end);
        }
    } else {
        for pair in table.index.windows(2) {
            ends.push(pair[0] as usize..pair[1] as usize);
        }
    }
    ends.into_iter()
        .map(|range| {
            let stored = table.buffer.get(range)?;
            let mut plain = Vec::new();
            match &symbols {
                Some(symbols) => symbols.decompress(stored, &mut plain).ok()?,
                None => plain.extend_from_slice(stored),
            }
            Some(plain)
        })
        .collect()
}

/// Lets `change` work on a list of strings in whichever form it is, and keeps the form.
fn with_strings(
    plain: &mut Vec<Vec<u8>>,
    table: &mut Option<StringTable>,
    change: impl FnOnce(&mut Vec<Vec<u8>>),
) {
    let Some(compact) = table else {
        return change(plain);
    };
    let Some(mut list) = strings_of(compact) else {
        return;
    };
    change(&mut list);
    let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
    let packing = StringPacking {
        compress: if compact.symtab.is_some() {
            Compress::Always
        } else {
            Compress::Never
        },
        pack_index: compact.packed_index,
    };
    *table = Some(build_string_table(&list, packing));
}

/// Inodes of a type (`mask` as in `st_mode`).
fn inodes_of(m: &Metadata, mask: u32) -> Vec<u32> {
    let is = |i: &InodeData| {
        m.modes
            .get(i.mode_index as usize)
            .is_some_and(|mode| mode & 0o170_000 == mask)
    };
    (0..)
        .zip(&m.inodes)
        .filter_map(|(number, inode)| is(inode).then_some(number))
        .collect()
}

/// Names and targets that lead elsewhere, do not exist or exist twice.
pub fn names(m: &mut Metadata, rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        match rng.below(5) {
            0..=1 => {
                let attack = NAMES[rng.below(NAMES.len())];
                with_strings(&mut m.names, &mut m.compact_names, |list| {
                    if let Some(at) = rng.index(list) {
                        list[at] = attack.to_vec();
                    }
                });
            }
            2 => {
                let attack = TARGETS[rng.below(TARGETS.len())];
                with_strings(&mut m.symlinks, &mut m.compact_symlinks, |list| {
                    if rng.one_in(2) {
                        list.fill(attack.to_vec());
                    } else if let Some(at) = rng.index(list) {
                        list[at] = attack.to_vec();
                    }
                });
            }
            // A symbolic link and a directory, or any two entries, with one name: the second one must
            // not be created through the first.
            _ => {
                let links = inodes_of(m, 0o120_000);
                let dirs = inodes_of(m, 0o040_000);
                with_strings(&mut m.symlinks, &mut m.compact_symlinks, |list| {
                    list.fill(b"../trap".to_vec());
                });
                let Some(entries) = &mut m.dir_entries else {
                    continue;
                };
                let Some(at) = rng.index(entries) else {
                    continue;
                };
                let Some(other) = entries.get(at + 1).or(entries.get(1)).copied() else {
                    continue;
                };
                let entry = &mut entries[at];
                entry.name_index = other.name_index;
                let pick = if rng.one_in(3) { &dirs } else { &links };
                if let Some(i) = rng.index(pick) {
                    entry.inode_num = pick[i];
                }
            }
        }
    }
}

/// Directories that contain themselves, each other, or the same entries.
pub fn directories(m: &mut Metadata, rng: &mut Rng) {
    let dirs = inodes_of(m, 0o040_000);
    for _ in 0..1 + rng.below(3) {
        match rng.below(6) {
            0..=2 => {
                let entries = m.dir_entries.get_or_insert_default();
                if let (Some(at), Some(dir)) = (rng.index(entries), rng.index(&dirs)) {
                    entries[at].inode_num = dirs[dir];
                }
            }
            3 => {
                if let (Some(a), Some(b)) = (rng.index(&m.directories), rng.index(&m.directories)) {
                    m.directories[a].first_entry = m.directories[b].first_entry;
                }
            }
            4 => {
                if let (Some(a), Some(b)) = (rng.index(&m.directories), rng.index(&m.directories)) {
                    m.directories[a].parent_entry = m.directories[b].self_entry;
                    m.directories[a].self_entry = m.directories[b].self_entry;
                }
            }
            // A directory where something else is expected, and the reverse.
            _ => {
                if let (Some(a), Some(b)) = (rng.index(&m.inodes), rng.index(&m.inodes)) {
                    m.inodes[a].mode_index = m.inodes[b].mode_index;
                }
            }
        }
    }
}

/// Files whose pieces lie where nothing is, repeat without end, or are holes of any size.
pub fn files(m: &mut Metadata, rng: &mut Rng) {
    let holes = m.hole_block_index;
    for _ in 0..1 + rng.below(3) {
        match rng.below(6) {
            0 => {
                if let Some(at) = rng.index(&m.chunks) {
                    let chunk = &mut m.chunks[at];
                    let block = m.block_size;
                    match rng.below(4) {
                        0 => chunk.offset = block.wrapping_sub(chunk.size.saturating_sub(1)),
                        1 => chunk.size = block.wrapping_add(rng.below(2) as u32),
                        2 => {
                            let beyond = rng.below(2) as u32;
                            chunk.offset = chunk.size.wrapping_neg().wrapping_add(beyond);
                        }
                        _ => chunk.size = 0,
                    }
                }
            }
            1 => {
                if let Some(at) = rng.index(&m.chunks) {
                    let chunk = m.chunks[at];
                    let many = [100, 1000, 5000][rng.below(3)];
                    m.chunks.splice(at..at, std::iter::repeat_n(chunk, many));
                    if rng.one_in(2) {
                        for first in &mut m.chunk_table {
                            if *first as usize > at {
                                *first = first.wrapping_add(many as u32);
                            }
                        }
                    }
                }
            }
            2 => {
                let sizes = m.large_hole_size.get_or_insert_default();
                sizes.push(match rng.below(4) {
                    0 => u64::MAX,
                    1 => 1 << 63,
                    2 => rng.bits() >> rng.below(40),
                    _ => u64::from(u32::MAX) + 1,
                });
                let index = (sizes.len() - 1) as u32;
                let block = holes.unwrap_or_else(|| rng.below(4) as u32);
                m.hole_block_index = Some(block);
                m.features
                    .get_or_insert_default()
                    .insert(b"sparsefiles".to_vec());
                for _ in 0..1 + rng.below(3) {
                    if let Some(at) = rng.index(&m.chunks) {
                        m.chunks[at] = Chunk {
                            block,
                            offset: index,
                            size: u32::MAX,
                        };
                    }
                }
            }
            3 => m.block_size = [0, 1, 511, 512, 4096, 1 << 20, 1 << 31, u32::MAX][rng.below(8)],
            4 => {
                m.chunk_table.reverse();
                if rng.one_in(2) {
                    m.chunk_table.fill(0);
                }
            }
            _ => {
                let shared = m.shared_files_table.get_or_insert_default();
                let value = [0, 1, u32::MAX, u32::MAX - 2][rng.below(4)];
                if shared.is_empty() || rng.one_in(3) {
                    shared.extend([value; 3]);
                } else {
                    shared.fill(value);
                }
            }
        }
    }
}

/// Replaces everything by directories that each hold the next one `fan` times: `fan` to the
/// power of `depth` paths in a few hundred bytes.
pub fn laughs(m: &mut Metadata, depth: u32, fan: u32) {
    let mut entries = vec![DirEntry::default()];
    let mut directories = Vec::new();
    for level in 0..depth {
        directories.push(Directory {
            parent_entry: level.saturating_sub(2) * fan + u32::from(level > 1),
            first_entry: entries.len() as u32,
            self_entry: level.saturating_sub(1) * fan + u32::from(level > 0),
        });
        entries.extend((0..fan).filter(|_| level + 1 < depth).map(|n| DirEntry {
            name_index: n,
            inode_num: level + 1,
        }));
    }
    directories.push(Directory {
        first_entry: entries.len() as u32,
        ..Directory::default()
    });
    *m = Metadata {
        inodes: vec![InodeData::default(); depth as usize],
        dir_entries: Some(entries),
        directories,
        chunk_table: vec![0],
        modes: vec![0o040_755],
        uids: vec![0],
        gids: vec![0],
        names: (0..fan).map(|n| vec![b'a' + (n % 26) as u8]).collect(),
        block_size: 1 << 20,
        ..Metadata::default()
    };
}

/// Changes a list: an element (by `change`), or its length and order.
fn list<T: Clone>(list: &mut Vec<T>, rng: &mut Rng, change: impl FnOnce(&mut T, &mut Rng)) {
    let Some(at) = rng.index(list) else { return };
    match rng.below(8) {
        0 => drop(list.remove(at)),
        1 => list.insert(at, list[at].clone()),
        2 => {
            let other = rng.below(list.len());
            list.swap(at, other);
        }
        3 if rng.one_in(4) => list.truncate(at),
        _ => change(&mut list[at], rng),
    }
}

fn numbers(values: &mut Vec<u32>, rng: &mut Rng, len: usize) {
    list(values, rng, |value, rng| *value = rng.edge32(len));
}

fn strings(values: &mut Vec<Vec<u8>>, rng: &mut Rng) {
    list(values, rng, |value, rng| match rng.below(6) {
        0 => value.clear(),
        1 => *value = b"..".to_vec(),
        2 => value.push(b'/'),
        3 => *value = vec![b'a'; 500 + rng.below(200)],
        _ => bytes(value, rng),
    });
}

fn optional<T>(value: &mut Option<T>, rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) {
    *value = if rng.one_in(3) { None } else { Some(make(rng)) };
}

/// Makes metadata that is well encoded but contradicts itself.
pub fn metadata(m: &mut Metadata, rng: &mut Rng) {
    let inodes = m.inodes.len();
    let entries = m.dir_entries.as_ref().map_or(inodes, Vec::len);
    let chunks = m.chunks.len();
    for _ in 0..1 + rng.below(3) {
        match rng.below(30) {
            0..=2 => list(&mut m.chunks, rng, |c, rng| match rng.below(3) {
                0 => c.block = rng.edge32(4),
                1 => c.offset = rng.edge32(chunks),
                _ => c.size = rng.edge32(chunks),
            }),
            3..=5 => list(&mut m.directories, rng, |d, rng| match rng.below(3) {
                0 => d.parent_entry = rng.edge32(entries),
                1 => d.first_entry = rng.edge32(entries),
                _ => d.self_entry = rng.edge32(entries),
            }),
            6..=8 => list(&mut m.inodes, rng, |i, rng| match rng.below(10) {
                0 => i.mode_index = rng.edge32(3),
                1 => i.owner_index = rng.edge32(3),
                2 => i.group_index = rng.edge32(3),
                3 => i.atime_offset = rng.edge(9),
                4 => i.mtime_offset = rng.edge(9),
                5 => i.mtime_subsec = rng.edge(9),
                6 => i.nlink_minus_one = rng.edge32(9),
                7 => i.name_index_v2_2 = rng.edge32(entries),
                8 => i.inode_v2_2 = rng.edge32(inodes),
                _ => i.ctime_subsec = rng.edge(9),
            }),
            9 => numbers(&mut m.chunk_table, rng, chunks),
            10 => numbers(&mut m.symlink_table, rng, inodes),
            11 => match rng.below(3) {
                0 => numbers(&mut m.uids, rng, inodes),
                1 => numbers(&mut m.gids, rng, inodes),
                _ => numbers(&mut m.modes, rng, 0o170_000),
            },
            12 => strings(&mut m.names, rng),
            13 => strings(&mut m.symlinks, rng),
            14 => match rng.below(4) {
                0 => m.timestamp_base = rng.edge(0),
                1 => m.block_size = rng.edge32(1 << 20),
                2 => m.total_fs_size = rng.edge(0),
                _ => m.total_hardlink_size = Some(rng.edge(0)),
            },
            15 => optional(&mut m.devices, rng, |rng| vec![rng.edge(0); rng.below(9)]),
            16 => match &mut m.options {
                None => m.options = Some(FsOptions::default()),
                Some(o) => match rng.below(9) {
                    0 => o.mtime_only ^= true,
                    1 => optional(&mut o.time_resolution_sec, rng, |rng| rng.edge32(9)),
                    2 => o.packed_chunk_table ^= true,
                    3 => o.packed_directories ^= true,
                    4 => o.packed_shared_files_table ^= true,
                    5 => {
                        let slot = &mut o.subsecond_resolution_nsec_multiplier;
                        optional(slot, rng, |rng| rng.edge32(1_000_000_000));
                    }
                    6 => o.inodes_have_nlink ^= true,
                    _ => m.options = None,
                },
            },
            17..=20 => {
                if let Some(all) = &mut m.dir_entries {
                    list(all, rng, |e: &mut DirEntry, rng| {
                        if rng.one_in(2) {
                            e.name_index = rng.edge32(entries);
                        } else {
                            e.inode_num = rng.edge32(inodes);
                        }
                    });
                    if rng.one_in(40) {
                        m.dir_entries = None;
                    }
                }
            }
            21 => match &mut m.shared_files_table {
                Some(shared) => numbers(shared, rng, inodes),
                none => *none = Some(vec![rng.edge32(inodes); 2]),
            },
            22..=24 => {
                let table = if rng.one_in(2) {
                    &mut m.compact_names
                } else {
                    &mut m.compact_symlinks
                };
                if let Some(t) = table {
                    match rng.below(6) {
                        0 => bytes(&mut t.buffer, rng),
                        1 => match &mut t.symtab {
                            Some(symbols) => bytes(symbols, rng),
                            none => *none = Some(vec![1, 0, 0, 0, 10, 20, 52, 1, 0]),
                        },
                        2 => t.packed_index ^= true,
                        _ => numbers(&mut t.index, rng, t.buffer.len()),
                    }
                }
                if rng.one_in(40) {
                    *table = None;
                }
            }
            25 => {
                let cache = m.reg_file_size_cache.get_or_insert_default();
                match rng.below(3) {
                    0 => cache.min_chunk_count = rng.edge(4),
                    1 => drop(cache.size_lookup.insert(rng.edge32(4), rng.edge(9))),
                    _ => drop(
                        cache
                            .allocated_size_lookup
                            .insert(rng.edge32(4), rng.edge(9)),
                    ),
                }
            }
            26 => {
                optional(&mut m.hole_block_index, rng, |rng| rng.edge32(2));
                if rng.one_in(2) {
                    let set = m.features.get_or_insert_default();
                    set.insert(b"sparsefiles".to_vec());
                }
            }
            27 => optional(&mut m.large_hole_size, rng, |rng| {
                (0..rng.below(4)).map(|_| rng.edge(9)).collect()
            }),
            28 => {
                let mut map = m.block_category_metadata.take().unwrap_or_default();
                map.insert(rng.edge32(4), rng.edge32(2));
                m.block_category_metadata = Some(map);
                optional(&mut m.block_categories, rng, |rng| {
                    vec![rng.edge32(2); rng.below(4)]
                });
                optional(&mut m.category_names, rng, |rng| {
                    vec![b"x".to_vec(); rng.below(3)]
                });
            }
            _ => numbers(&mut m.entry_table_v2_2, rng, entries),
        }
    }
}
