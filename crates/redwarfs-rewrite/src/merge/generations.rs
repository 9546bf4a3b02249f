//! Several trees with the same blocks, made anew: the contents of all trees are built as one tree that has them
//! side by side. Then each tree gets metadata of its own, as a generation of the file (format chapter 12).
//!
//! A build writes the metadata of the joined tree, too. It goes to memory, tells where each file lies, and is in no
//! file.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_codec::CodecSpec;
use redwarfs_format::history::History;
use redwarfs_format::metadata::{Extent, FileType, XattrData};
use redwarfs_format::section::{SectionHeader, SectionType};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_writer::emit::Emitter;
use redwarfs_writer::{
    BlockCategories, Builder, NewGeneration, Placed, Progress, ValueDigest, assemble,
};

use super::options::{MergeOptions, Part, Whiteouts};
use super::source::MergedSource;
use super::{build_options, joined, report_unstorable, versions};
use crate::error::{Error, Result};

/// What [`generations`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generations {
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of the image.
    pub size: u64,
}

/// Is called behind each generation, to write its trailers.
pub type Finish<'f> =
    dyn FnMut(usize, &NewGeneration, &mut Emitter<'_>) -> redwarfs_writer::Result<()> + 'f;

/// Writes an image whose generations have the trees of `images`, the oldest first. The blocks are those of a build
/// with `options` of all trees side by side, and all generations list them. Each generation keeps the history and the
/// creation time of its image.
///
/// Of `options`, those about changes of trees do not count.
///
/// # Errors
/// As [`merge`](super::merge), and if a file cannot be read.
pub fn generations(
    images: &[&Image],
    options: &MergeOptions,
    out: &mut dyn Write,
    progress: &dyn Progress,
    stop: &AtomicBool,
    finish: &mut Finish<'_>,
) -> Result<Generations> {
    let names: Vec<String> = (0..images.len()).map(|number| number.to_string()).collect();
    let parts = names.iter().zip(images);
    let parts: Vec<Part<'_>> = parts
        .map(|(name, image)| Part::new(image, name.as_bytes()))
        .collect();
    for (number, image) in images.iter().enumerate() {
        // All indices are used without further checks.
        let blocks = image.container().block_count();
        let checked = image.metadata().check(blocks, None);
        checked.map_err(|error| Error::from(error).of_part(number))?;
    }
    let mut metadata = options.metadata.clone();
    // What the images have is kept.
    metadata.keep_all_times = true;
    metadata.keep_birth_times = true;
    metadata.file_flags = true;
    let options = &MergeOptions {
        metadata,
        whiteouts: Whiteouts::Keep,
        filter: None,
        remove: Vec::new(),
        rename: Vec::new(),
        ..options.clone()
    };
    let tree = joined(&parts, &[], options, stop)?;
    let source = MergedSource::new(&parts, parts.len(), &tree, Whiteouts::Keep)?;
    let mut build = build_options(&parts, options)?;
    build.block_size_bits = options.metadata.block_size_bits;
    build.metadata_compression = CodecSpec::none();
    build.metadata_alternative = None;
    build.history = None;
    build.section_index = true;
    let mut blocks = Blocks::new(out);
    let summary = Builder::new(build).build(&source, &mut blocks, progress, stop)?;
    if summary.errors > 0 {
        return Err(Error::limit("files of the old image cannot be read"));
    }
    drop(source);
    drop(tree);
    let (listed, end) = (std::mem::take(&mut blocks.listed), blocks.end);
    let skeleton = blocks.skeleton();
    let mut open = OpenOptions::default();
    open.offset = ImageOffset::At(0);
    let whole = Image::from_source(Arc::new(skeleton), &open)?;
    let mut used = Used::of(&whole, images)?;
    let categories = categories(&whole)?;
    let mut emitter = Emitter::behind_blocks(out, progress.counters(), listed, end);
    for (number, (image, name)) in images.iter().zip(&names).enumerate() {
        let part = [Part::new(image, b"")];
        let tree = joined(&part, &[], options, stop)?;
        let source = MergedSource::new(&part, 1, &tree, Whiteouts::Keep)?;
        let mut build = build_options(&part, options)?;
        build.block_size_bits = options.metadata.block_size_bits;
        build.create_timestamp = image.metadata().create_timestamp();
        build.section_index = true;
        let mut placed = Placed::new(whole.container().block_count());
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for content in std::mem::take(&mut used.contents[number]) {
            let extents = whole.metadata().content_extents(content)?;
            let extents: Vec<Extent> = extents.collect::<redwarfs_format::Result<_>>()?;
            numbers.insert(content, placed.content(extents)?);
        }
        for (value, extents) in std::mem::take(&mut used.values[number]) {
            placed.value(value, extents)?;
        }
        placed.categories = categories.clone();
        placed.versions = options
            .version_history
            .then(|| versions(&part))
            .transpose()?;
        placed.scope = image.metadata().xattr_scope().unwrap_or_default();
        let content_of = |path: &[u8]| {
            let path = [name.as_bytes(), b"/", path].concat();
            let inode = whole.find_path(&path).ok()??;
            let content = whole.metadata().content_id(inode).ok()?;
            numbers.get(&content).copied()
        };
        let history = image.history()?;
        let history = (!history.entries.is_empty()).then_some(History {
            entries: history.entries,
        });
        let assembled = assemble(
            &build,
            &source,
            &content_of,
            placed,
            history,
            &mut emitter,
            progress,
            stop,
        )?;
        report_unstorable(&source, progress);
        let missing = || Error::limit("a generation without an index");
        let (index, generation) = emitter.generation().ok_or_else(missing)?;
        let new = NewGeneration {
            index,
            end: emitter.offset(),
            generation,
            tree: assembled.tree,
            size: image.metadata().totals().size,
            inodes: u32::try_from(assembled.inodes).unwrap_or(u32::MAX),
            hints: false,
        };
        finish(number, &new, &mut emitter)?;
        emitter.next_generation();
    }
    emitter.finish()?;
    Ok(Generations {
        blocks: whole.container().block_count(),
        size: emitter.offset(),
    })
}

/// What each tree uses of the image of all trees.
struct Used {
    /// Contents in ascending order, by tree.
    contents: Vec<Vec<u32>>,
    /// Long values of extended attributes, by tree.
    values: Vec<Vec<(ValueDigest, Vec<Extent>)>>,
}

impl Used {
    fn of(whole: &Image, images: &[&Image]) -> Result<Self> {
        let mut used = Self {
            contents: vec![Vec::new(); images.len()],
            values: (0..images.len()).map(|_| Vec::new()).collect(),
        };
        let view = whole.metadata();
        let odd = || redwarfs_format::Error::corrupt("a tree that is not what was built");
        for entry in whole.walk() {
            let entry = entry?;
            if entry.path.is_empty() {
                continue;
            }
            let mut path = entry.path.splitn(2, |&byte| byte == b'/');
            let name = path.next().and_then(|name| std::str::from_utf8(name).ok());
            let number: usize = name.and_then(|name| name.parse().ok()).ok_or_else(odd)?;
            let image = images.get(number).ok_or_else(odd)?;
            let path = path.next().unwrap_or_default();
            if view.file_type(entry.inode)? == FileType::Regular {
                used.contents[number].push(view.content_id(entry.inode)?);
            }
            for xattr in whole.xattrs(entry.inode)? {
                if let XattrData::Blocks(extents) = xattr.value()? {
                    let old = image.find_path(path)?.ok_or_else(odd)?;
                    let name = xattr.name()?;
                    for old in image.xattrs(old)? {
                        if old.name()? == name {
                            let value = ValueDigest::of(&image.xattr_value(&old)?);
                            used.values[number].push((value, extents.clone()));
                        }
                    }
                }
            }
        }
        for contents in &mut used.contents {
            contents.sort_unstable();
            contents.dedup();
        }
        Ok(used)
    }
}

/// The categories of the blocks of an image, if they are recorded.
fn categories(image: &Image) -> Result<Option<BlockCategories>> {
    let metadata = image.metadata().thaw()?;
    let (Some(names), Some(of_block)) = (metadata.category_names, metadata.block_categories) else {
        return Ok(None);
    };
    Ok(Some(BlockCategories {
        names,
        of_block,
        descriptions: metadata.category_metadata_json.unwrap_or_default(),
        description_of: metadata.block_category_metadata.unwrap_or_default(),
    }))
}

/// Lets the blocks of an image pass, and keeps everything else.
struct Blocks<'a> {
    out: &'a mut dyn Write,
    /// The header that is being written.
    header: Vec<u8>,
    /// Bytes of the payload that follow, and whether they pass.
    left: u64,
    passes: bool,
    /// Offset of the next byte.
    at: u64,
    /// Where the blocks end.
    end: u64,
    listed: Vec<(SectionType, u64)>,
    /// By offset.
    kept: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Blocks<'a> {
    fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            header: Vec::new(),
            left: 0,
            passes: false,
            at: 0,
            end: 0,
            listed: Vec::new(),
            kept: BTreeMap::new(),
        }
    }

    /// The image without the data of its blocks.
    fn skeleton(self) -> Skeleton {
        Skeleton {
            length: self.at,
            kept: self.kept,
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let start = self.at - bytes.len() as u64;
        match self.kept.last_entry() {
            Some(mut last) if last.key() + last.get().len() as u64 == start => {
                last.get_mut().extend_from_slice(bytes);
            }
            _ => drop(self.kept.insert(start, bytes.to_vec())),
        }
    }
}

impl Write for Blocks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left > 0 {
            let most = usize::try_from(self.left).unwrap_or(usize::MAX);
            let part = bytes.get(..most).unwrap_or(bytes);
            let length = if self.passes {
                let written = self.out.write(part)?;
                self.end += written as u64;
                written
            } else {
                part.len()
            };
            self.left -= length as u64;
            self.at += length as u64;
            if !self.passes {
                self.keep(part);
            }
            return Ok(length);
        }
        let missing = SectionHeader::LEN - self.header.len();
        let part = bytes.get(..missing).unwrap_or(bytes);
        self.header.extend_from_slice(part);
        self.at += part.len() as u64;
        if let Some(header) = self.header.first_chunk::<{ SectionHeader::LEN }>() {
            let parsed = SectionHeader::parse(header).map_err(io::Error::other)?;
            let header = std::mem::take(&mut self.header);
            let start = self.at - SectionHeader::LEN as u64;
            self.keep(&header);
            self.passes = parsed.ty == SectionType::BLOCK;
            self.left = parsed.length;
            if self.passes {
                self.listed.push((parsed.ty, start));
                self.out.write_all(&header)?;
                self.end = self.at;
            }
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// An image in which the data of blocks is zeros.
#[derive(Debug)]
struct Skeleton {
    length: u64,
    kept: BTreeMap<u64, Vec<u8>>,
}

impl redwarfs_io::Source for Skeleton {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let end = end.filter(|&end| end <= self.length);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.fill(0);
        for (&start, bytes) in self.kept.range(..end).rev() {
            let until = start + bytes.len() as u64;
            if until <= offset {
                break;
            }
            let (from, to) = (start.max(offset), until.min(end));
            let (Some(into), Some(part)) = (
                buf.get_mut((from - offset) as usize..(to - offset) as usize),
                bytes.get((from - start) as usize..(to - start) as usize),
            ) else {
                break;
            };
            into.copy_from_slice(part);
        }
        Ok(())
    }
}
