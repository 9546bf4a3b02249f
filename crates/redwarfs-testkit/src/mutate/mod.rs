//! Takes images apart, damages them, and assembles them with correct checksums, so that the damage
//! reaches the code after the checks.
//!
//! [`Parts::of`] takes an intact image apart and decompresses everything but blocks. [`image`]
//! then does one of these, chosen by the generator it is given, one to four times over:
//!
//! | part | damage |
//! |---|---|
//! | schema | widths, sizes, positions and links of layouts; members added and removed; bytes |
//! | packed metadata | bytes; single values (counts and distances among them) set to edge cases, found by following the schema |
//! | metadata | decoded, changed, encoded again: indices and sizes in every table, options, FSST symbol tables and string indices; names and targets that lead elsewhere or are bound twice; directories that contain themselves, each other or the same entries; pieces of files beyond blocks, repeated thousands of times, or holes of any size; directories nested so that a few hundred bytes hold more paths than there are atoms |
//! | history | bytes |
//! | blocks | sizes, flags, tables and inner checksums by codec; encoded again with another codec or length; another compression id; bytes, mostly near the start |
//! | sections | removed, repeated, swapped, another type, compressed and then damaged |
//! | container | fields of section headers, the index, bytes anywhere; other bytes, false beginnings and other images around it |
//!
//! Last, [`Parts::assemble`] writes correct checksums, so that the damage reaches the code after the
//! checks. [`reseal`] does this for damage to the finished image.

mod container;
mod metadata;
pub mod payload;
mod poke;
mod separator;

use redwarfs_codec::{CodecSpec, Table, decompress};
use redwarfs_format::frozen::{Field, Schema};
use redwarfs_format::metadata::{Metadata, freeze, thaw};
use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, encode_section_index,
};

pub use container::{field, reseal, surround};
pub use metadata::{directories, files, laughs, metadata, names, strings_of};
pub use poke::poke;
pub use separator::with_separator;

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
            4 => len.wrapping_add(1),
            5 => u64::from(u32::MAX),
            6 => u64::from(u32::MAX) - 1,
            7 => 1 << self.below(64),
            8 => u64::MAX,
            9 => self.bits() >> self.below(64),
            _ => self.below(len as usize) as u64,
        }
    }

    pub(crate) fn edge32(&mut self, len: usize) -> u32 {
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
    /// The payload to store.
    pub payload: Vec<u8>,
}

/// All sections of an image but the index.
#[derive(Debug, Clone, Default)]
pub struct Parts(pub Vec<Part>);

impl Parts {
    /// Takes an intact image apart. Everything but blocks is decompressed.
    pub fn of(image: &[u8]) -> Self {
        Self::try_of(image).expect("an intact image")
    }

    /// Like [`Parts::of`] for an image that may be damaged.
    pub fn try_of(image: &[u8]) -> Option<Self> {
        let read = |at: u64, out: &mut [u8]| {
            let end = std::io::ErrorKind::UnexpectedEof;
            let found = usize::try_from(at)
                .ok()
                .and_then(|at| image.get(at..)?.get(..out.len()));
            out.copy_from_slice(found.ok_or(end)?);
            Ok(())
        };
        let size = image.len() as u64;
        let offset = redwarfs_format::section::locate_image(size, &read).ok()?;
        let container = Container::open(&read, size, offset, None).ok()?;
        let mut parts = Vec::new();
        for section in &container.sections {
            if section.ty == SectionType::SECTION_INDEX {
                continue;
            }
            let section = &container.load_header(&read, section.position).ok()?;
            let start = usize::try_from(container.file_offset(section)).ok()?;
            let length = usize::try_from(section.length).ok()?;
            let payload = image.get(start..start.checked_add(length)?)?;
            let compression = section.compression?;
            let raw = if section.ty == SectionType::BLOCK {
                None
            } else {
                decompress(compression, payload, 1 << 28).ok()
            };
            parts.push(Part {
                ty: section.ty,
                compression: raw.as_ref().map_or(compression, |_| CompressionId::NONE),
                payload: raw.unwrap_or_else(|| payload.to_vec()),
            });
        }
        Some(Self(parts))
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

    /// Compresses the metadata, which is not compressed yet, as `count` tables of about the same size.
    pub fn compress_metadata(&mut self, codec: &str, count: usize) {
        let metadata = SectionType::METADATA_V2;
        let part = self.0.iter_mut().find(|part| part.ty == metadata);
        let part = part.expect("metadata");
        let size = part.payload.len() / count;
        let tables: Vec<_> = (1..count)
            .map(|table| Table {
                range: (table - 1) * size..table * size,
                record: 4,
            })
            .collect();
        let codec: CodecSpec = codec.parse().expect("a codec");
        let made = codec
            .compressor()
            .compress_tables(&part.payload, &tables, part.payload.len());
        let made = made.expect("it compresses");
        (part.compression, part.payload) = (made.id, made.data.expect("it gets smaller"));
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

/// Damages an image. Returns the new image and a description of the damage. Checksums are correct
/// again, and so is the index unless the damage is in it.
pub fn image(parts: &Parts, rng: &mut Rng) -> (Vec<u8>, &'static str) {
    let mut parts = parts.clone();
    let what = match rng.below(40) {
        0..=3 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2_SCHEMA) {
                schema(payload, rng);
            }
            "layouts"
        }
        4 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2_SCHEMA) {
                bytes(payload, rng);
            }
            "bytes of the schema"
        }
        5..=7 => {
            if let Some(payload) = parts.payload(SectionType::METADATA_V2) {
                bytes(payload, rng);
            }
            "bytes of the metadata"
        }
        8..=11 => {
            if let Some(schema) = parts.payload(SectionType::METADATA_V2_SCHEMA).cloned()
                && let Some(data) = parts.payload(SectionType::METADATA_V2)
            {
                for _ in 0..1 + rng.below(3) {
                    poke(&schema, data, rng);
                }
            }
            "packed values"
        }
        12..=25 => {
            let (change, what): (fn(&mut Metadata, &mut Rng), _) = match rng.below(14) {
                0..=5 => (metadata, "metadata"),
                6..=8 => (names, "names"),
                9..=10 => (directories, "directories"),
                11..=12 => (files, "files"),
                _ => (
                    |m, rng| laughs(m, 2 + rng.below(60) as u32, 1 + rng.below(5) as u32),
                    "directories within directories",
                ),
            };
            if let Some(mut m) = parts.metadata() {
                change(&mut m, rng);
                // If the result cannot be encoded, the image stays unchanged.
                let _ = parts.set_metadata(&m);
            }
            what
        }
        26..=27 => {
            if let Some(payload) = parts.payload(SectionType::HISTORY) {
                bytes(payload, rng);
            }
            "history"
        }
        28..=33 => {
            let blocks: Vec<usize> = (0..parts.0.len())
                .filter(|&i| parts.0[i].ty == SectionType::BLOCK)
                .collect();
            if let Some(i) = rng.index(&blocks) {
                damage_block(&mut parts.0[blocks[i]], rng);
            }
            "block"
        }
        34..=35 => {
            if let Some(at) = rng.index(&parts.0) {
                let other = rng.below(parts.0.len());
                match rng.below(5) {
                    0 => drop(parts.0.remove(at)),
                    1 => parts.0.insert(other, parts.0[at].clone()),
                    2 => parts.0.swap(at, other),
                    3 => {
                        // Anything but blocks is stored plain here, and compressed in real images.
                        let raw = parts.0[at].payload.clone();
                        if parts.0[at].ty != SectionType::BLOCK {
                            let codec = payload::CODECS[rng.below(payload::CODECS.len())];
                            payload::set_raw(&mut parts.0[at], &raw, codec);
                            payload::header(&mut parts.0[at], rng);
                        }
                    }
                    _ => parts.0[at].ty = SectionType(rng.below(12) as u16),
                }
            }
            "sections"
        }
        36 => return (parts.assemble_with(|index| bytes(index, rng)), "index"),
        37 => {
            let mut image = parts.assemble();
            container::field(&mut image, rng);
            return (image, "section header");
        }
        38 => {
            let mut image = parts.assemble();
            container::surround(&mut image, rng);
            return (image, "surroundings");
        }
        _ => {
            let mut image = parts.assemble();
            bytes(&mut image, rng);
            container::reseal(&mut image);
            return (image, "bytes of the image");
        }
    };
    (parts.assemble(), what)
}

fn damage_block(part: &mut Part, rng: &mut Rng) {
    match rng.below(8) {
        0 => part.compression = CompressionId(rng.below(9) as u16),
        1..=3 => payload::header(part, rng),
        4 => payload::recode(part, rng),
        _ => {
            // The start of a payload is where sizes and tables are.
            let mut head = part.payload.clone();
            let tail = head.split_off(head.len().min(1 << rng.below(16)));
            bytes(&mut head, rng);
            head.extend(tail);
            part.payload = head;
        }
    }
}
