//! Images taken apart, damaged on purpose and put together again with correct checksums, so that
//! the damage reaches the code behind them.

use redwarfs_codec::decompress;
use redwarfs_format::frozen::{Field, Schema};
use redwarfs_format::metadata::{DirEntry, Metadata, freeze, thaw};
use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, encode_section_index,
};

/// A small generator of pseudo-random numbers (SplitMix64, G. Steele et al., 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % (end.max(1) as u64)) as usize
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number that is likely to be an edge case, also for something with `len` elements.
    pub fn edge(&mut self, len: usize) -> u64 {
        let len = len as u64;
        match self.below(12) {
            0 => 0,
            1 => 1,
            2 => len,
            3 => len.wrapping_sub(1),
            4 => len + 1,
            5 => u64::from(u32::MAX),
            6 => u64::from(u32::MAX) - 1,
            7 => 1 << self.below(64),
            8 => u64::MAX,
            9 => self.bits() >> self.below(64),
            _ => self.below(len as usize) as u64,
        }
    }

    fn edge32(&mut self, len: usize) -> u32 {
        self.edge(len) as u32
    }

    /// An index of `list`, if it is not empty.
    pub fn index<T>(&mut self, list: &[T]) -> Option<usize> {
        (!list.is_empty()).then(|| self.below(list.len()))
    }
}

/// One section.
#[derive(Debug, Clone)]
pub struct Part {
    /// Type.
    pub ty: SectionType,
    /// Compression of `payload`.
    pub compression: CompressionId,
    /// The payload as it is going to be stored.
    pub payload: Vec<u8>,
}

/// All sections of an image but the index.
#[derive(Debug, Clone, Default)]
pub struct Parts(pub Vec<Part>);

impl Parts {
    /// Takes an intact image apart. Everything but blocks is decompressed.
    pub fn of(image: &[u8]) -> Self {
        let read = |at: u64, out: &mut [u8]| {
            let at = usize::try_from(at).expect("the image is in memory");
            out.copy_from_slice(&image[at..at + out.len()]);
            Ok(())
        };
        let size = image.len() as u64;
        let offset = redwarfs_format::section::locate_image(size, &read).expect("an image");
        let container = Container::open_scanning(&read, size, offset, None).expect("intact");
        let parts = container
            .sections
            .iter()
            .filter(|section| section.ty != SectionType::SECTION_INDEX)
            .map(|section| {
                let start = container.file_offset(section) as usize;
                let payload = &image[start..start + section.length as usize];
                let compression = section.compression.expect("all headers were read");
                let raw = if section.ty == SectionType::BLOCK {
                    None
                } else {
                    decompress(compression, payload, 1 << 28).ok()
                };
                Part {
                    ty: section.ty,
                    compression: raw.as_ref().map_or(compression, |_| CompressionId::NONE),
                    payload: raw.unwrap_or_else(|| payload.to_vec()),
                }
            });
        Self(parts.collect())
    }

    /// An image with right checksums and a right index.
    pub fn assemble(&self) -> Vec<u8> {
        self.assemble_with(|_| {})
    }

    /// Like [`Parts::assemble`], but `damage` is applied to the payload of the index before it
    /// gets its checksum.
    pub fn assemble_with(&self, damage: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut image = Vec::new();
        let mut index = Vec::new();
        for part in &self.0 {
            let number = index.len() as u32;
            index.push((part.ty, image.len() as u64));
            let header = SectionHeader::seal(number, part.ty, part.compression, &part.payload);
            image.extend(header.encode());
            image.extend_from_slice(&part.payload);
        }
        index.push((SectionType::SECTION_INDEX, image.len() as u64));
        let mut payload = encode_section_index(&index);
        damage(&mut payload);
        let number = index.len() as u32 - 1;
        let none = CompressionId::NONE;
        let header = SectionHeader::seal(number, SectionType::SECTION_INDEX, none, &payload);
        image.extend(header.encode());
        image.extend(payload);
        image
    }

    /// The payload of the first section of a type.
    pub fn payload(&mut self, ty: SectionType) -> Option<&mut Vec<u8>> {
        let part = self.0.iter_mut().find(|part| part.ty == ty)?;
        Some(&mut part.payload)
    }

    /// Replaces schema and metadata.
    pub fn set_metadata(&mut self, metadata: &Metadata) -> redwarfs_format::Result<()> {
        let frozen = freeze(metadata)?;
        if let Some(schema) = self.payload(SectionType::METADATA_V2_SCHEMA) {
            *schema = frozen.schema;
        }
        if let Some(data) = self.payload(SectionType::METADATA_V2) {
            *data = frozen.data;
        }
        Ok(())
    }

    /// The metadata as an owned value.
    pub fn metadata(&mut self) -> Option<Metadata> {
        let schema = self.payload(SectionType::METADATA_V2_SCHEMA)?.clone();
        thaw(&schema, self.payload(SectionType::METADATA_V2)?).ok()
    }
}

/// Changes some bytes: flips, overwrites, inserts, removes, copies, cuts off.
pub fn bytes(data: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let Some(at) = rng.index(data) else {
            data.push(rng.bits() as u8);
            continue;
        };
        match rng.below(9) {
            0..=2 => data[at] ^= 1 << rng.below(8),
            3 => data[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
            4 => data[at] = rng.bits() as u8,
            5 => data.insert(at, rng.bits() as u8),
            6 => {
                let end = data.len().min(at + 1 + rng.below(8));
                data.drain(at..end);
            }
            7 => {
                let from = rng.below(data.len());
                let len = (1 + rng.below(16)).min(data.len() - at.max(from));
                data.copy_within(from..from + len, at);
            }
            _ => {
                if rng.one_in(4) {
                    data.truncate(at);
                } else {
                    let value = rng.edge(data.len()).to_le_bytes();
                    let len = 8.min(data.len() - at);
                    data[at..at + len].copy_from_slice(&value[..len]);
                }
            }
        }
    }
}

/// Changes widths, positions and links of layouts.
pub fn schema(payload: &mut Vec<u8>, rng: &mut Rng) {
    let Ok(mut schema) = Schema::parse(payload) else {
        return bytes(payload, rng);
    };
    let count = schema.layouts.len();
    for _ in 0..1 + rng.below(3) {
        let Some(at) = rng.index(&schema.layouts) else {
            break;
        };
        let layout = &mut schema.layouts[at];
        match rng.below(7) {
            0 => layout.bits = rng.below(70) as u16,
            1 => layout.bits = (rng.bits() & 0x7fff) as u16,
            2 => layout.size = (rng.edge(8) & 0x7fff_ffff) as u32 >> rng.below(31),
            3 => {
                if let Some(i) = rng.index(&layout.fields) {
                    layout.fields[i].offset = rng.edge(64) as i16;
                }
            }
            4 => {
                if let Some(i) = rng.index(&layout.fields) {
                    layout.fields[i].layout_id = rng.below(count) as u16;
                }
            }
            5 => {
                if let Some(i) = rng.index(&layout.fields) {
                    layout.fields.remove(i);
                }
            }
            _ => {
                let id = rng.below(40) as i16;
                if layout.field(id).is_none() {
                    layout.fields.push(Field {
                        id,
                        layout_id: rng.below(count) as u16,
                        offset: rng.edge(64) as i16,
                    });
                    layout.fields.sort_by_key(|field| field.id);
                }
            }
        }
    }
    *payload = schema.encode();
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
                None => m.options = Some(redwarfs_format::metadata::FsOptions::default()),
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

/// Damages something in an image; returns the new image and what was damaged.
pub fn image(parts: &Parts, rng: &mut Rng) -> (Vec<u8>, &'static str) {
    let mut parts = parts.clone();
    let what = match rng.below(20) {
        0..=2 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2_SCHEMA) {
                schema(payload, rng);
            }
            "layouts"
        }
        3 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2_SCHEMA) {
                bytes(payload, rng);
            }
            "bytes of the schema"
        }
        4..=7 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2) {
                bytes(payload, rng);
            }
            "bytes of the metadata"
        }
        8..=13 => {
            if let Some(mut m) = parts.metadata() {
                metadata(&mut m, rng);
                // What cannot be encoded leaves the image as it was.
                let _ = parts.set_metadata(&m);
            }
            "metadata"
        }
        14 => {
            if let Some(payload) = parts.payload(SectionType::HISTORY) {
                bytes(payload, rng);
            }
            "history"
        }
        15..=16 => {
            let blocks: Vec<usize> = (0..parts.0.len())
                .filter(|&i| parts.0[i].ty == SectionType::BLOCK)
                .collect();
            if let Some(i) = rng.index(&blocks) {
                let part = &mut parts.0[blocks[i]];
                if rng.one_in(4) {
                    part.compression = CompressionId(rng.below(9) as u16);
                }
                // The start of a payload is where sizes and tables are.
                let mut head = part.payload.clone();
                let tail = head.split_off(head.len().min(1 << rng.below(16)));
                bytes(&mut head, rng);
                head.extend(tail);
                part.payload = head;
            }
            "block"
        }
        17 => {
            if let Some(at) = rng.index(&parts.0) {
                let other = rng.below(parts.0.len());
                match rng.below(4) {
                    0 => drop(parts.0.remove(at)),
                    1 => parts.0.insert(other, parts.0[at].clone()),
                    2 => parts.0.swap(at, other),
                    _ => parts.0[at].ty = SectionType(rng.below(12) as u16),
                }
            }
            "sections"
        }
        18 => return (parts.assemble_with(|index| bytes(index, rng)), "index"),
        _ => {
            let mut image = parts.assemble();
            bytes(&mut image, rng);
            return (image, "bytes of the image");
        }
    };
    (parts.assemble(), what)
}
