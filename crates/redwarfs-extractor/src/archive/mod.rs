//! Extraction to an archive.

mod cpio;
mod entry;
mod fields;
mod filter;
mod library;
mod spec;
mod tar;
mod zip;

use std::io::Write;

use redwarfs_format::metadata::{Extent, FileType, Stat, Timestamp};
use redwarfs_format::{BlockNo, EntryIndex, InodeNo};
use redwarfs_reader::Image;

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::tree::{File, Link, Tree};
use crate::xattrs::Stored;
use crate::{ExtractOptions, ExtractSummary, Progress};
use entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use fields::Fields;

pub use spec::ArchiveSpec;
pub use tar::TarFormat;

/// Contents are read in pieces of this size. Files that are not larger are read before their header is
/// written, so that an unreadable one can be left out.
const PIECE: usize = 1 << 20;

/// Writes the selected entries of `image` to `out` as an archive.
///
/// Directories and all other entries without contents come first. Then come regular files with all
/// their names, in the order of their data in the image. In tar, each directory comes after its
/// contents, and the root comes last as `./`. So unpacking in one pass restores the times of
/// directories. The block cache of the image decodes the blocks ahead of writing, as far as they are
/// needed ([`Image::plan_reads`]). If files are spread over many blocks, and these do not all fit into
/// the cache, blocks may be decoded more than once. In addition to the cache, this takes 16 bytes per
/// content for the order, 64 bytes per block, and the memory of [`crate::extract_to_directory`] for the
/// tree.
///
/// Entries that the format cannot hold are errors. Often these are devices, FIFOs and sockets, which
/// [`ExtractOptions::skip_devices`] and [`ExtractOptions::skip_specials`] leave out. With
/// [`ExtractOptions::continue_on_error`], such an entry is left out and reported through
/// [`Progress::left_out`]. A file that cannot be read is left out and reported through
/// [`Progress::damaged`]. Both are counted.
///
/// # Errors
///
/// As for [`crate::extract_to_directory`], and [`Error::NotRepresentable`] for entries that the format
/// cannot hold.
pub fn extract_to_archive(
    image: &Image,
    out: &mut dyn Write,
    spec: &ArchiveSpec,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let tree = Tree::scan(image.metadata(), options)?;
    progress.found(tree.matched());
    let process = options.archive_process.as_ref();
    spec.with_sink(out, process, |sink, warnings| {
        for warning in warnings {
            progress.warn(&warning);
        }
        let mut archive = Archive {
            image,
            tree: &tree,
            options,
            progress,
            summary: ExtractSummary {
                skipped: tree.skipped_links(),
                ..ExtractSummary::default()
            },
            buffer: Vec::new(),
            good: Vec::new(),
            has_directories: sink.has_directories(),
            holes: sink.holes(),
            fields: sink.fields(),
            rounded: None,
            bare: None,
            unflagged: None,
            stored: Stored::new(image, options),
            flags: Flags::new(image, options),
            sink,
        };
        archive.entries()?;
        archive.files()?;
        if archive.sink.directories_last() {
            archive.directories_last()?;
        }
        let closed = archive.sink.close();
        archive.settle(closed, "end of archive")?;
        archive.report_rounded();
        archive.report_bare();
        archive.summary.matched = tree.matched();
        Ok(archive.summary)
    })
}

struct Archive<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    sink: &'a mut dyn Sink,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
    summary: ExtractSummary,
    buffer: Vec<u8>,
    /// Per block, the number of bytes from its start that can be read; empty until needed.
    good: Vec<u32>,
    has_directories: bool,
    holes: Holes,
    fields: Fields,
    /// The first entry whose times lost their fraction, and how many there are.
    rounded: Option<(String, u64)>,
    /// The first entry that lost its extended attributes, and how many there are.
    bare: Option<(String, u64)>,
    /// The same for file flags.
    unflagged: Option<(String, u64)>,
    flags: Flags,
    /// The extended attributes of the image, if there are any.
    stored: Option<Stored>,
}

/// The block of an extent, and its end in the block; `None` without data.
pub(crate) fn end_in_block(extent: Extent) -> Option<(BlockNo, u64)> {
    match extent {
        Extent::Data {
            block,
            offset,
            size,
        } if size > 0 => Some((block, u64::from(offset) + u64::from(size))),
        _ => None,
    }
}

impl Archive<'_> {
    /// Directories and everything without contents.
    fn entries(&mut self) -> Result<()> {
        let metadata = self.tree.metadata();
        let directories_first = !self.sink.directories_last();
        for (number, dir) in (0_u32..).zip(&self.tree.dirs) {
            if directories_first {
                self.directory(number)?;
            }
            self.summary.directories += u64::from(number > 0);
            for index in metadata.entries(dir.ino)? {
                let e = EntryIndex(index);
                if !self.tree.is_selected(e) {
                    continue;
                }
                let ino = metadata.entry_inode(e)?;
                let kind = match metadata.file_type(ino)? {
                    FileType::Directory | FileType::Regular => continue,
                    FileType::Symlink => Kind::Symlink,
                    FileType::CharDevice => Kind::CharDevice,
                    FileType::BlockDevice => Kind::BlockDevice,
                    FileType::Fifo => Kind::Fifo,
                    FileType::Socket => Kind::Socket,
                };
                if self.options.skips(metadata.file_type(ino)?) {
                    self.summary.skipped += 1;
                    continue;
                }
                let path = self.tree.path(number, e)?;
                let stat = self.image.stat(ino)?;
                let mut entry = self.entry(path, &stat, kind)?;
                match kind {
                    Kind::Symlink => entry.symlink = self.image.read_link(ino)?,
                    Kind::CharDevice | Kind::BlockDevice => entry.rdev = stat.rdev,
                    _ => {}
                }
                if self.whole(&entry)? {
                    match kind {
                        Kind::Symlink => self.summary.symlinks += 1,
                        _ => self.summary.specials += 1,
                    }
                }
            }
        }
        Ok(())
    }

    /// All directories, each after those below it.
    fn directories_last(&mut self) -> Result<()> {
        let mut open: Vec<u32> = Vec::new();
        for (number, dir) in (0_u32..).zip(&self.tree.dirs) {
            // The directories that the walk has left.
            while let Some(&last) = open.last()
                && last != dir.parent
            {
                open.pop();
                self.directory(last)?;
            }
            open.push(number);
        }
        open.into_iter()
            .rev()
            .try_for_each(|number| self.directory(number))
    }

    fn directory(&mut self, number: u32) -> Result<()> {
        let Some(dir) = self.tree.dirs.get(number as usize) else {
            return Ok(());
        };
        if !self.has_directories || (number == 0 && !self.sink.has_root()) {
            return Ok(());
        }
        let path = if number == 0 {
            b".".to_vec()
        } else {
            self.tree.dir_path(number)?
        };
        let entry = self.entry(path, &self.image.stat(dir.ino)?, Kind::Directory)?;
        self.whole(&entry)?;
        Ok(())
    }

    /// Regular files in the order of their data.
    fn files(&mut self) -> Result<()> {
        let mut total = 0_u64;
        for file in &self.tree.files {
            total = total.saturating_add(self.tree.stat(file)?.size);
        }
        self.progress.total(total);
        let mut order: Vec<(u64, u32)> = (0..self.tree.content_count())
            .map(|content| {
                let ino = self.tree.inode_of(content);
                // Files without data, and files with invalid extents, come first.
                let key = ino.and_then(|ino| self.first_data(ino));
                (key.unwrap_or_default(), content)
            })
            .collect();
        order.sort_unstable();
        let needs = order.iter().flat_map(|&(_, content)| {
            let ino = self.tree.inode_of(content);
            let extents = ino.and_then(|ino| self.image.metadata().extents(ino).ok());
            // Data after an invalid extent is not read.
            extents.into_iter().flatten().map_while(Result::ok)
        });
        let image = self.image;
        let _plan = image.plan_reads(needs.filter_map(end_in_block));
        for (_, content) in order {
            for number in self.tree.files_of(content) {
                let Some(file) = self.tree.file(number).copied() else {
                    continue;
                };
                match self.file(number, file) {
                    Ok(()) => {}
                    Err(Error::Content { source, .. }) if self.options.continue_on_error => {
                        let cause = format!("{source}; not archived");
                        self.damaged(number, &cause, true);
                        self.progress.advance(self.tree.stat(&file)?.size);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Position of the first data of a file, comparable; `None` without data.
    fn first_data(&self, ino: InodeNo) -> Option<u64> {
        for extent in self.image.metadata().extents(ino).ok()? {
            if let Extent::Data { block, offset, .. } = extent.ok()? {
                // Leaves zero to the files without data.
                return Some((u64::from(block.0) << 32 | u64::from(offset)).saturating_add(1));
            }
        }
        None
    }

    /// A file with all its names.
    fn file(&mut self, number: u32, file: File) -> Result<()> {
        let links = self.tree.links_of(number).to_vec();
        let path = self.tree.path(file.dir, file.entry)?;
        let stat = self.tree.stat(&file)?;
        let mut entry = self.entry(path, &stat, Kind::Regular)?;
        entry.ino = self.tree.number(&file);
        entry.nlink = u32::try_from(links.len())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        entry.size = stat.size;
        self.progress
            .file(&|| self.tree.shown_file(number), stat.size);
        if stat.allocated != stat.size {
            entry.ranges = Some(self.data_ranges(number, file.ino)?);
        }
        let style = if links.is_empty() {
            Links::Reference
        } else {
            self.sink.links()
        };
        let advanced = match style {
            Links::Reference => {
                if !self.contents(number, file.ino, &entry)? {
                    return Ok(());
                }
                let mut reference = Entry {
                    size: 0,
                    ranges: None,
                    hard_link: Some(std::mem::take(&mut entry.path)),
                    ..entry
                };
                for link in &links {
                    self.link(&mut reference, *link)?;
                }
                stat.size
            }
            Links::LastHasContents => {
                self.check(number, file.ino, &entry)?;
                let mut names = vec![(file.dir, file.entry)];
                names.extend(links.iter().map(|link| (link.dir, link.entry)));
                let last = names.pop().unwrap_or((file.dir, file.entry));
                let mut empty = Entry {
                    size: 0,
                    ranges: None,
                    ..entry.clone()
                };
                for (dir, e) in names {
                    empty.path = self.tree.path(dir, e)?;
                    self.whole(&empty)?;
                }
                entry.path = self.tree.path(last.0, last.1)?;
                if !self.contents(number, file.ino, &entry)? {
                    return Ok(());
                }
                self.summary.hard_links += links.len() as u64;
                stat.size
            }
            Links::EachHasContents => {
                if !self.contents(number, file.ino, &entry)? {
                    return Ok(());
                }
                for link in &links {
                    entry.path = self.tree.path(link.dir, link.entry)?;
                    self.contents(number, file.ino, &entry)?;
                    self.summary.hard_links += 1;
                }
                stat.size
            }
        };
        self.progress.advance(advanced);
        self.summary.bytes = self.summary.bytes.saturating_add(stat.size);
        self.summary.files += 1;
        Ok(())
    }

    fn link(&mut self, reference: &mut Entry, link: Link) -> Result<()> {
        reference.path = self.tree.path(link.dir, link.entry)?;
        if self.whole(reference)? {
            self.summary.hard_links += 1;
        }
        Ok(())
    }

    /// Writes a file under one name; false if the format cannot hold it and that is no error.
    fn contents(&mut self, number: u32, ino: InodeNo, entry: &Entry) -> Result<bool> {
        let mut whole = vec![(0, entry.size)];
        if let Some(ranges) = &entry.ranges
            && self.holes == Holes::Left
        {
            whole.clone_from(ranges);
        }
        let data = whole.iter().map(|(_, size)| size).sum::<u64>();
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let early = data <= PIECE as u64;
        if early {
            for &(offset, size) in &whole {
                let start = buffer.len();
                // At most `PIECE` in all.
                buffer.resize(start + usize::try_from(size).unwrap_or(PIECE), 0);
                self.read(number, ino, offset, &mut buffer[start..])?;
            }
        } else {
            self.check(number, ino, entry)?;
        }
        if !self.begin(entry)? {
            self.buffer = buffer;
            return Ok(false);
        }
        if early {
            self.data(&buffer)?;
        } else {
            self.stream(number, ino, &whole, &mut buffer)?;
        }
        self.buffer = buffer;
        let ended = self.sink.end();
        self.settle_entry(ended, entry)
    }

    fn stream(
        &mut self,
        number: u32,
        ino: InodeNo,
        ranges: &[(u64, u64)],
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let mut damage = None;
        for &(offset, size) in ranges {
            let mut done = 0;
            while done < size {
                let n = usize::try_from(size - done).unwrap_or(PIECE).min(PIECE);
                buffer.resize(n, 0);
                let at = offset.saturating_add(done);
                if damage.is_none() {
                    match self.read(number, ino, at, buffer) {
                        Ok(()) => {}
                        // It was readable before, so the medium fails.
                        Err(Error::Content { source, .. }) if self.options.continue_on_error => {
                            damage =
                                Some(format!("{source}; zeros in the archive from byte {at} on"));
                        }
                        Err(e) => return Err(e),
                    }
                }
                if damage.is_some() {
                    buffer.fill(0);
                }
                self.data(buffer)?;
                done += n as u64;
            }
        }
        if let Some(cause) = damage {
            self.damaged(number, &cause, false);
        }
        Ok(())
    }

    /// If the extraction continues after errors, checks that a file can be read before any part of it
    /// is in the archive. Each block is checked once, and later comes from the cache if that is large
    /// enough.
    fn check(&mut self, number: u32, ino: InodeNo, entry: &Entry) -> Result<()> {
        if !self.options.continue_on_error || entry.size == 0 {
            return Ok(());
        }
        if self.good.is_empty() {
            self.good = vec![0; self.image.container().block_count() as usize];
        }
        let fail = |source| Error::Content {
            path: self.tree.shown_file(number),
            source,
        };
        let mut end = 0_u64;
        for extent in self.image.metadata().extents(ino).map_err(fail)? {
            let extent = extent.map_err(fail)?;
            end = end.saturating_add(extent.size());
            let Extent::Data {
                block,
                offset,
                size,
            } = extent
            else {
                continue;
            };
            let reach = offset.saturating_add(size);
            let good = self.good.get(block.0 as usize).copied().unwrap_or(0);
            if size == 0 || reach <= good {
                continue;
            }
            self.read(number, ino, end.saturating_sub(1), &mut [0])?;
            if let Some(good) = self.good.get_mut(block.0 as usize) {
                *good = reach;
            }
        }
        Ok(())
    }

    /// Reads a range that exists according to the metadata.
    fn read(&self, number: u32, ino: InodeNo, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let fail = |source| Error::Content {
            path: self.tree.shown_file(number),
            source,
        };
        let n = self.image.read_at(ino, offset, buffer).map_err(fail)?;
        if n == buffer.len() {
            Ok(())
        } else {
            Err(fail(redwarfs_format::Error::corrupt(
                "file is shorter than its size",
            )))
        }
    }

    /// The parts of a file that are not holes, neighbours joined.
    fn data_ranges(&self, number: u32, ino: InodeNo) -> Result<Vec<(u64, u64)>> {
        let fail = |source| Error::Content {
            path: self.tree.shown_file(number),
            source,
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut at = 0_u64;
        for extent in self.image.metadata().extents(ino).map_err(fail)? {
            let size = match extent.map_err(fail)? {
                Extent::Data { size, .. } => {
                    match ranges.last_mut() {
                        Some((start, length)) if *start + *length == at => {
                            *length += u64::from(size);
                        }
                        _ => ranges.push((at, size.into())),
                    }
                    size.into()
                }
                Extent::Hole { size } => size,
            };
            at = at
                .checked_add(size)
                .ok_or_else(|| fail(redwarfs_format::Error::corrupt("file size overflows")))?;
        }
        Ok(ranges)
    }

    fn damaged(&mut self, number: u32, cause: &str, with_links: bool) {
        self.progress.damaged(&self.tree.shown_file(number), cause);
        self.summary.damaged += 1;
        if with_links {
            for link in self.tree.links_of(number) {
                self.progress
                    .damaged(&self.tree.shown(link.dir, link.entry), cause);
                self.summary.damaged += 1;
            }
        }
    }

    fn entry(&mut self, path: Vec<u8>, stat: &Stat, kind: Kind) -> Result<Entry> {
        let xattrs = match &self.stored {
            Some(stored) => {
                let (xattrs, lost) = stored.of(stat.ino, &|| crate::display_path(&path))?;
                match lost {
                    Some(e) if self.options.continue_on_error => {
                        self.progress.incomplete(&e.to_string());
                        self.summary.damaged += 1;
                    }
                    Some(e) => return Err(e),
                    None => {}
                }
                xattrs
            }
            None => Vec::new(),
        };
        let time = |t: Timestamp| (t.sec, t.nsec.min(999_999_999));
        let metadata = self.image.metadata();
        let mtime_only = metadata.options().mtime_only;
        Ok(Entry {
            path,
            kind,
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            size: 0,
            mtime: time(stat.mtime),
            atime: (!mtime_only).then(|| time(stat.atime)),
            symlink: Vec::new(),
            hard_link: None,
            rdev: 0,
            ino: u64::from(stat.ino.0) + 1,
            nlink: 1,
            ranges: None,
            birth: metadata.birth_time(stat.ino)?.map(time),
            flags: self.flags.of(stat.ino)?,
            xattrs,
        })
    }

    /// An entry without contents; false if the format cannot hold it and that is no error.
    fn whole(&mut self, entry: &Entry) -> Result<bool> {
        if !self.begin(entry)? {
            return Ok(false);
        }
        let ended = self.sink.end();
        self.settle_entry(ended, entry)
    }

    /// Begins an entry; false if the format cannot hold it and that is no error.
    fn begin(&mut self, entry: &Entry) -> Result<bool> {
        let begun = match self.fields.check(entry) {
            Ok(()) => self.sink.begin(entry),
            Err(reason) => Err(Refusal::Entry(reason)),
        };
        if !self.settle_entry(begun, entry)? {
            return Ok(false);
        }
        if self.fields.rounds(entry) {
            let first = || (crate::display_path(&entry.path), 0);
            self.rounded.get_or_insert_with(first).1 += 1;
        }
        if !entry.xattrs.is_empty() && !self.fields.xattrs {
            let first = || (crate::display_path(&entry.path), 0);
            self.bare.get_or_insert_with(first).1 += 1;
        }
        if entry.flags != 0 && !self.fields.xattrs {
            let first = || (crate::display_path(&entry.path), 0);
            self.unflagged.get_or_insert_with(first).1 += 1;
        }
        Ok(true)
    }

    /// Reports how many times lost their fraction.
    fn report_rounded(&self) {
        if let Some((first, number)) = &self.rounded {
            let format = self.sink.name();
            self.progress.warn(&format!(
                "{format} holds times less finely than the image: the times of {number} entries are \
                 rounded down, {first} is the first"
            ));
        }
    }

    /// Reports how many entries lost their extended attributes and file flags.
    fn report_bare(&mut self) {
        let format = self.sink.name();
        for (what, lost) in [
            ("extended attributes", &self.bare),
            ("file flags", &self.unflagged),
        ] {
            if let Some((first, number)) = lost {
                self.summary.unset += *number;
                self.progress.warn(&format!(
                    "{format} holds no {what}: those of {number} entries are left out, {first} is the first"
                ));
            }
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<()> {
        match self.sink.data(bytes) {
            Ok(()) => Ok(()),
            Err(Refusal::Archive(e)) => Err(e),
            Err(Refusal::Entry(text)) => Err(Error::Library {
                format: self.sink.name().to_owned(),
                text,
            }),
        }
    }

    /// Passes on a warning; false if the format cannot hold the entry and that is no error.
    fn settle_entry(
        &mut self,
        answer: std::result::Result<Option<String>, Refusal>,
        entry: &Entry,
    ) -> Result<bool> {
        let path = crate::display_path(&entry.path);
        // Some messages of libarchive begin with the path.
        let plain = |text: String| match text.strip_prefix(&format!("{path}: ")) {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        let answer = match answer {
            Err(Refusal::Entry(text)) => Err(Refusal::Entry(plain(text))),
            Ok(text) => Ok(text.map(plain)),
            other => other,
        };
        match answer {
            Err(Refusal::Entry(reason)) if self.options.continue_on_error => {
                let reason = format!("{} cannot hold it: {reason}", self.sink.name());
                self.progress.left_out(&path, &reason);
                self.summary.damaged += 1;
                Ok(false)
            }
            Err(Refusal::Entry(reason)) => Err(Error::NotRepresentable {
                format: self.sink.name().to_owned(),
                path,
                what: entry.kind.plural(),
                reason,
            }),
            other => self.settle(other, &path).map(|()| true),
        }
    }

    fn settle(
        &self,
        answer: std::result::Result<Option<String>, Refusal>,
        path: &str,
    ) -> Result<()> {
        match answer {
            Ok(None) => Ok(()),
            Ok(Some(text)) => {
                self.progress.warn(&format!("{path}: {text}"));
                Ok(())
            }
            Err(Refusal::Archive(e)) => Err(e),
            Err(Refusal::Entry(text)) => Err(Error::Library {
                format: self.sink.name().to_owned(),
                text,
            }),
        }
    }
}
