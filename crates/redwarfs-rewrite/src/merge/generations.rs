//! Several trees with the same blocks, made anew: the contents of all trees are built as one tree that has them
//! side by side. Then each tree gets metadata of its own, as a generation of the file (format chapter 12).
//!
//! A build writes the metadata of the joined tree, too. It goes to memory, tells where each file lies, and is in no
//! file.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_codec::CodecSpec;
use redwarfs_format::history::History;
use redwarfs_format::metadata::{Extent, FileType, XattrData, XattrScope};
use redwarfs_format::section::{HiddenPayload, SectionHeader, SectionType};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_writer::emit::Emitter;
use redwarfs_writer::{
    BlockCategories, Builder, NewGeneration, Placed, Progress, ValueDigest, assemble,
};

use super::options::{MergeOptions, Part, Whiteouts};
use super::source::MergedSource;
use super::{build_options, joined, report_unstorable, versions};
use crate::attributes::resolution;
use crate::error::{Error, Result};
use crate::options::Rebuild;
use crate::rewriter::warn_of_unknown_members;

/// What [`generations`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generations {
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of the image.
    pub size: u64,
}

/// Is called behind each generation, to write its trailers. It gets the numbers of its trees.
pub type Finish<'f> =
    dyn FnMut(Range<usize>, &NewGeneration, &mut Emitter<'_>) -> redwarfs_writer::Result<()> + 'f;

/// A tree, and its name if it is a directory of a generation.
#[derive(Debug, Clone, Copy)]
pub struct NamedTree<'a> {
    /// The image that has it.
    pub image: &'a Image,
    /// The name, which differs from that of the other trees.
    pub name: &'a str,
}

/// Writes an image whose generations have the trees of `images`, the oldest first. The first `archived` trees are in
/// an archive: a generation with trees as directories side by side. Neighbours that record different kinds of attributes
/// are in different archives, because a generation records the same kinds of all entries. Each other tree is the only one of
/// its generation. The blocks are
/// those of a build with `options` of all trees side by side, and all generations list them. Each generation keeps the
/// history and the creation time of the last one of its images.
///
/// Of `options`, those about changes of trees do not count.
///
/// # Errors
/// As [`merge`](super::merge), and if a file cannot be read.
pub fn generations(
    trees: &[NamedTree<'_>],
    archived: usize,
    options: &MergeOptions,
    out: &mut dyn Write,
    progress: &dyn Progress,
    stop: &AtomicBool,
    finish: &mut Finish<'_>,
) -> Result<Generations> {
    let parts = trees.iter();
    let parts: Vec<Part<'_>> = parts
        .map(|tree| Part::new(tree.image, tree.name.as_bytes()))
        .collect();
    for (number, part) in parts.iter().enumerate() {
        // All indices are used without further checks.
        let blocks = part.image.container().block_count();
        let checked = part.image.metadata().check(blocks, None);
        checked.map_err(|error| Error::from(error).of_part(number))?;
        // Those of an archive have the same schema.
        let end = |part: &Part<'_>| {
            part.image
                .container()
                .sections
                .last()
                .map(|s| s.header_offset)
        };
        let before = number.checked_sub(1).and_then(|before| parts.get(before));
        if before.is_none_or(|before| end(before) != end(part)) {
            let warned = warn_of_unknown_members(part.image, progress);
            warned.map_err(|error| error.of_part(number))?;
        }
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
    let source = MergedSource::new(&parts, parts.len(), &tree, Whiteouts::Keep)?.reading_once()?;
    let mut build = build_options(&parts, options)?;
    build.block_size_bits = options.metadata.block_size_bits;
    build.metadata_compression = CodecSpec::none();
    build.metadata_alternative = None;
    build.history = None;
    build.section_index = true;
    // The newest one is read most, and an archive has many old ones. For a few, what it takes is more than what it gives.
    let newest = trees.last().filter(|_| archived > 0);
    build.front = newest.map(|tree| tree.name.as_bytes().to_vec());
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
    let mut used = Used::of(&whole, trees)?;
    let categories = categories(&whole)?;
    // The blocks have the same places in the output.
    let mut trailers = whole.container().trailers.iter();
    let anchors = trailers.find(|section| section.ty == SectionType::MATCH);
    let anchors = anchors.map(|section| whole.stored_payload(section));
    let anchors = anchors.transpose()?;
    let mut emitter = Emitter::behind_blocks(out, progress.counters(), listed, end);
    let archived = archived.min(trees.len());
    let archives = archives(trees.get(..archived).unwrap_or_default())?;
    let others = (archived..trees.len()).map(|number| number..number + 1);
    for of in archives.into_iter().chain(others) {
        let own = trees.get(of.clone()).unwrap_or_default();
        let Some(&newest) = own.last() else {
            continue;
        };
        let image = newest.image;
        let in_archive = of.start < archived;
        // In the tree of all trees it has the same path.
        let before = match in_archive {
            true => Vec::new(),
            false => [newest.name.as_bytes(), b"/"].concat(),
        };
        let part: Vec<Part<'_>> = match in_archive {
            true => parts.get(of.clone()).unwrap_or_default().to_vec(),
            false => vec![Part::new(image, b"")],
        };
        let tree = joined(&part, &[], options, stop)?;
        let source = MergedSource::new(&part, part.len(), &tree, Whiteouts::Keep)?;
        let mut build = build_options(&part, options)?;
        build.block_size_bits = options.metadata.block_size_bits;
        build.create_timestamp = image.metadata().create_timestamp();
        build.section_index = true;
        let mut placed = Placed::new(whole.container().block_count());
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let (contents, values) = used.take(of.clone());
        for content in contents {
            let extents = whole.metadata().content_extents(content)?;
            let extents: Vec<Extent> = extents.collect::<redwarfs_format::Result<_>>()?;
            numbers.insert(content, placed.content(extents)?);
        }
        for (value, extents) in values {
            placed.value(value, extents)?;
        }
        placed.categories = categories.clone();
        placed.versions = options
            .version_history
            .then(|| versions(&part))
            .transpose()?;
        let scopes = part
            .iter()
            .filter_map(|part| part.image.metadata().xattr_scope());
        placed.scope = scopes.fold(XattrScope::default(), XattrScope::with);
        let content_of = |path: &[u8]| {
            let path = [&before, path].concat();
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
        let is_last = of.end == trees.len();
        finish(of, &new, &mut emitter)?;
        if let Some(anchors) = anchors.as_ref().filter(|_| is_last) {
            let hidden = HiddenPayload::parse(anchors)?;
            emitter.trailer(SectionType::MATCH, &hidden.prelude, hidden.body)?;
        }
        emitter.next_generation();
    }
    emitter.finish()?;
    Ok(Generations {
        blocks: whole.container().block_count(),
        size: emitter.offset(),
    })
}

/// What metadata records of each entry, the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    mtime_only: bool,
    birth_times: bool,
    /// Of times, in nanoseconds.
    resolution: u64,
    created: bool,
    /// None if there are no extended attributes, and nothing says whether any were looked for.
    scope: Option<XattrScope>,
}

impl Kinds {
    fn of(image: &Image) -> Result<Self> {
        let view = image.metadata();
        let options = view.options();
        Ok(Self {
            mtime_only: options.mtime_only,
            birth_times: options.has_btime,
            resolution: resolution(options, &Rebuild::default())?.nanos(),
            created: view.create_timestamp().is_some(),
            scope: view.xattr_scope(),
        })
    }

    /// Both, if metadata of both says nothing else of either.
    fn with(self, other: Self) -> Option<Self> {
        let scope = self.scope.or(other.scope);
        let both = Self { scope, ..self };
        let same = Self {
            scope: other.scope.or(scope),
            ..other
        };
        (both == same).then_some(both)
    }
}

/// The trees of each archive.
fn archives(trees: &[NamedTree<'_>]) -> Result<Vec<Range<usize>>> {
    let mut archives: Vec<Range<usize>> = Vec::new();
    let mut before: Option<Kinds> = None;
    for (number, tree) in trees.iter().enumerate() {
        let own = Kinds::of(tree.image)?;
        let joined = before.and_then(|before| before.with(own));
        match archives.last_mut().filter(|_| joined.is_some()) {
            Some(last) => last.end = number + 1,
            None => archives.push(number..number + 1),
        }
        before = joined.or(Some(own));
    }
    Ok(archives)
}

/// What each tree uses of the image of all trees.
struct Used {
    /// Contents in ascending order, by tree.
    contents: Vec<Vec<u32>>,
    /// Long values of extended attributes, by tree.
    values: Vec<Vec<(ValueDigest, Vec<Extent>)>>,
}

impl Used {
    fn of(whole: &Image, trees: &[NamedTree<'_>]) -> Result<Self> {
        let mut used = Self {
            contents: vec![Vec::new(); trees.len()],
            values: (0..trees.len()).map(|_| Vec::new()).collect(),
        };
        let numbers: HashMap<&[u8], usize> = trees
            .iter()
            .zip(0..)
            .map(|(tree, number)| (tree.name.as_bytes(), number))
            .collect();
        let view = whole.metadata();
        let odd = || redwarfs_format::Error::corrupt("a tree that is not what was built");
        for entry in whole.walk() {
            let entry = entry?;
            if entry.path.is_empty() {
                continue;
            }
            let mut path = entry.path.splitn(2, |&byte| byte == b'/');
            let name = path.next().unwrap_or_default();
            let number = numbers.get(name).copied().ok_or_else(odd)?;
            let image = trees.get(number).ok_or_else(odd)?.image;
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

    /// What some trees use: contents, each once, in ascending order, and values.
    fn take(&mut self, trees: Range<usize>) -> (Vec<u32>, Vec<(ValueDigest, Vec<Extent>)>) {
        let contents = self.contents.get_mut(trees.clone()).unwrap_or_default();
        let mut contents: Vec<u32> = contents.iter_mut().flat_map(std::mem::take).collect();
        contents.sort_unstable();
        contents.dedup();
        let values = self.values.get_mut(trees).unwrap_or_default();
        (
            contents,
            values.iter_mut().flat_map(std::mem::take).collect(),
        )
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
