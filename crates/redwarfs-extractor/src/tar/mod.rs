//! Image to tar archive.

mod header;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use redwarfs_format::metadata::{Extent, FileType, Stat, Timestamp};
use redwarfs_format::{EntryIndex, InodeNo};
use redwarfs_reader::Image;

use crate::error::{Error, Result};
use crate::tree::Tree;
use crate::{ExtractOptions, ExtractSummary, Progress};
use header::{BLOCK, Entry};

/// Archives are filled up to a multiple of this, the customary 20 records.
const RECORD: u64 = 20 * BLOCK as u64;

/// Contents are read in pieces of this size. Files that are not larger are read before their header is
/// written, so that an unreadable one can be left out.
const PIECE: usize = 1 << 20;

/// The dialects of tar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TarFormat {
    /// POSIX.1-1988: paths up to 255 bytes, files below 8 GiB, whole seconds.
    Ustar,
    /// POSIX.1-2001: no limits; extended records only where needed; holes in GNU sparse format 1.0.
    Pax,
    /// GNU tar: no limits, whole seconds.
    Gnutar,
}

impl TarFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ustar, Self::Pax, Self::Gnutar];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ustar => "ustar",
            Self::Pax => "pax",
            Self::Gnutar => "gnutar",
        }
    }
}

impl fmt::Display for TarFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TarFormat {
    type Err = String;

    /// The error lists the names that are known.
    fn from_str(s: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == s)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("unsupported archive format '{s}' (supported: {names})")
            })
    }
}

/// Writes everything below the root of `image` to `out` as a tar archive.
///
/// Directories come first, the root as `./` before all others, together with all that has no contents; then
/// regular files in the order of their data in the image, each followed by its other names as hard
/// links; then the directories that hold files once more, so that unpacking restores their times. The image's block cache and its read-ahead do the decoding; a scattered image may have blocks
/// decoded more than once if they do not all fit into the cache.
///
/// Sockets have no form in tar: they are an error unless [`ExtractOptions::skip_specials`] leaves them out.
/// With [`ExtractOptions::continue_on_error`] an unreadable file is left out if it has at most 1 MiB;
/// a larger one is filled up with zeros from the first unreadable piece on. Both are reported through
/// [`Progress::damaged`] and counted.
///
/// # Errors
///
/// As for [`crate::extract_to_directory`], and [`Error::NotRepresentable`] for what the format cannot hold.
pub fn extract_to_tar(
    image: &Image,
    out: &mut dyn Write,
    format: TarFormat,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let tree = Tree::scan(image.metadata())?;
    let mut archive = Archive {
        image,
        tree: &tree,
        out,
        format,
        options,
        progress,
        written: 0,
        summary: ExtractSummary::default(),
        buffer: Vec::new(),
    };
    archive.entries()?;
    archive.files()?;
    archive.directories_again()?;
    archive.end()?;
    Ok(archive.summary)
}

struct Archive<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    out: &'a mut dyn Write,
    format: TarFormat,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
    written: u64,
    summary: ExtractSummary,
    buffer: Vec<u8>,
}

impl Archive<'_> {
    /// Directories and everything without contents.
    fn entries(&mut self) -> Result<()> {
        let metadata = self.tree.metadata();
        for (number, dir) in (0_u32..).zip(&self.tree.dirs) {
            let entry = self.directory(number, dir.ino)?;
            self.header(&entry, dir.parent, dir.entry)?;
            self.summary.directories += u64::from(number > 0);
            for index in metadata.entries(dir.ino)? {
                let e = EntryIndex(index);
                let ino = metadata.entry_inode(e)?;
                let kind = metadata.file_type(ino)?;
                match kind {
                    FileType::Directory | FileType::Regular => {}
                    FileType::Symlink => {
                        let mut entry = self.entry(number, e, ino, header::SYMLINK)?;
                        entry.link = self.image.read_link(ino)?;
                        self.header(&entry, number, e)?;
                        self.summary.symlinks += 1;
                    }
                    FileType::CharDevice | FileType::BlockDevice => {
                        if self.options.skip_devices {
                            self.summary.skipped += 1;
                            continue;
                        }
                        let code = if kind == FileType::CharDevice {
                            header::CHAR_DEVICE
                        } else {
                            header::BLOCK_DEVICE
                        };
                        let mut entry = self.entry(number, e, ino, code)?;
                        let device = self.image.stat(ino)?.rdev;
                        entry.device = (rustix::fs::major(device), rustix::fs::minor(device));
                        self.header(&entry, number, e)?;
                        self.summary.specials += 1;
                    }
                    FileType::Fifo | FileType::Socket => {
                        if self.options.skip_specials {
                            self.summary.skipped += 1;
                            continue;
                        }
                        if kind == FileType::Socket {
                            return Err(self.not_representable(
                                number,
                                e,
                                "sockets have no form in it".to_owned(),
                            ));
                        }
                        let entry = self.entry(number, e, ino, header::FIFO)?;
                        self.header(&entry, number, e)?;
                        self.summary.specials += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Directories that hold files once more. Programs such as GNU tar set the times of a directory when
    /// they see an entry outside of it; files that come later would leave it with the present time.
    fn directories_again(&mut self) -> Result<()> {
        let mut touched = vec![false; self.tree.dirs.len()];
        // Not all programs put off the times of the root.
        if let Some(root) = touched.first_mut() {
            *root = true;
        }
        let files = self.tree.files.iter().map(|file| file.dir);
        for dir in files.chain(self.tree.links.iter().map(|link| link.dir)) {
            if let Some(flag) = touched.get_mut(dir as usize) {
                *flag = true;
            }
        }
        for (number, dir) in (0_u32..).zip(&self.tree.dirs) {
            if touched.get(number as usize).copied().unwrap_or(false) {
                let entry = self.directory(number, dir.ino)?;
                self.header(&entry, dir.parent, dir.entry)?;
            }
        }
        Ok(())
    }

    fn directory(&self, number: u32, ino: InodeNo) -> Result<Entry> {
        let mut path = if number == 0 {
            b".".to_vec()
        } else {
            self.tree.dir_path(number)?
        };
        path.push(b'/');
        Ok(Entry {
            path,
            ..self.attributes(ino, header::DIRECTORY)?
        })
    }

    /// Regular files in the order of their data.
    fn files(&mut self) -> Result<()> {
        // 16 bytes per file inode, for the sort alone.
        let mut order = Vec::with_capacity(self.tree.files.len());
        let mut total = 0_u64;
        for (number, file) in (0_u32..).zip(&self.tree.files) {
            total = total.saturating_add(self.image.stat(file.ino)?.size);
            // Files without data, and those whose extents make no sense, go first.
            let key = self.first_data(file.ino).unwrap_or_default();
            order.push((key, number));
        }
        order.sort_unstable();
        self.progress.total(total);
        for (_, number) in order {
            let Some(file) = self.tree.file(number).copied() else {
                continue;
            };
            match self.file(number, file.ino) {
                Ok(()) => {}
                Err(Error::Content { source, .. }) if self.options.continue_on_error => {
                    let cause = format!("{source}; not archived");
                    self.damaged(number, &cause, true);
                    continue;
                }
                Err(e) => return Err(e),
            }
            self.summary.files += 1;
            let target = self.tree.path(file.dir, file.entry)?;
            for link in self.tree.links_of(number) {
                let mut entry = self.entry(link.dir, link.entry, file.ino, header::HARD_LINK)?;
                entry.link.clone_from(&target);
                self.header(&entry, link.dir, link.entry)?;
                self.summary.hard_links += 1;
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

    fn file(&mut self, number: u32, ino: InodeNo) -> Result<()> {
        let Some(file) = self.tree.file(number).copied() else {
            return Ok(());
        };
        let stat = self.image.stat(ino)?;
        let mut entry = self.entry(file.dir, file.entry, ino, header::REGULAR)?;
        entry.size = stat.size;
        let mut ranges = vec![(0, stat.size)];
        let mut map = Vec::new();
        if self.format == TarFormat::Pax && stat.allocated != stat.size {
            ranges = self.data_ranges(number, ino)?;
            map = sparse_map(&ranges, stat.size);
            let data: u64 = ranges.iter().map(|(_, size)| size).sum();
            entry.size = data.saturating_add(map.len() as u64);
            entry.sparse = Some(stat.size);
        }
        let data = entry.size - map.len() as u64;
        let mut damage = None;
        let early = data <= PIECE as u64;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        if early {
            for &(offset, size) in &ranges {
                let start = buffer.len();
                // At most `PIECE` in all.
                buffer.resize(start + usize::try_from(size).unwrap_or(PIECE), 0);
                self.read(number, ino, offset, &mut buffer[start..])?;
            }
        }
        self.header(&entry, file.dir, file.entry)?;
        self.put(&map)?;
        if early {
            self.put(&buffer)?;
            self.progress.advance(data);
        } else {
            for &(offset, size) in &ranges {
                let mut done = 0;
                while done < size {
                    let n = usize::try_from(size - done).unwrap_or(PIECE).min(PIECE);
                    buffer.clear();
                    buffer.resize(n, 0);
                    if damage.is_none() {
                        match self.read(number, ino, offset.saturating_add(done), &mut buffer) {
                            Ok(()) => {}
                            Err(Error::Content { source, .. })
                                if self.options.continue_on_error =>
                            {
                                buffer.fill(0);
                                damage = Some(format!(
                                    "{source}; zeros in the archive from byte {} on",
                                    offset.saturating_add(done)
                                ));
                            }
                            Err(e) => return Err(e),
                        }
                    }
                    self.put(&buffer)?;
                    self.progress.advance(n as u64);
                    done += n as u64;
                }
            }
        }
        self.buffer = buffer;
        self.fill_record()?;
        self.progress.advance(stat.size.saturating_sub(data));
        self.summary.bytes = self.summary.bytes.saturating_add(stat.size);
        if let Some(cause) = damage {
            self.damaged(number, &cause, false);
        }
        Ok(())
    }

    /// Reads a range that is there according to the metadata.
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

    fn entry(&self, dir: u32, e: EntryIndex, ino: InodeNo, kind: u8) -> Result<Entry> {
        Ok(Entry {
            path: self.tree.path(dir, e)?,
            ..self.attributes(ino, kind)?
        })
    }

    /// An entry without its path.
    fn attributes(&self, ino: InodeNo, kind: u8) -> Result<Entry> {
        let stat: Stat = self.image.stat(ino)?;
        let time = |t: Timestamp| (t.sec, t.nsec.min(999_999_999));
        let mtime_only = self.image.metadata().options().mtime_only;
        Ok(Entry {
            kind,
            mode: stat.mode & 0o7777,
            uid: stat.uid.into(),
            gid: stat.gid.into(),
            mtime: time(stat.mtime),
            atime: (!mtime_only).then(|| time(stat.atime)),
            ..Entry::default()
        })
    }

    fn header(&mut self, entry: &Entry, dir: u32, e: EntryIndex) -> Result<()> {
        let bytes = header::encode(self.format, entry)
            .map_err(|reason| self.not_representable(dir, e, reason))?;
        self.put(&bytes)
    }

    fn not_representable(&self, dir: u32, e: EntryIndex, reason: String) -> Error {
        Error::NotRepresentable {
            format: self.format.name(),
            path: self.tree.shown(dir, e),
            reason,
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Error::Output)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn fill_record(&mut self) -> Result<()> {
        let rest = self.written.next_multiple_of(BLOCK as u64) - self.written;
        // Less than a record.
        self.put(&[0; BLOCK][..usize::try_from(rest).unwrap_or(0)])
    }

    fn end(&mut self) -> Result<()> {
        self.put(&[0; 2 * BLOCK])?;
        while !self.written.is_multiple_of(RECORD) {
            self.put(&[0; BLOCK])?;
        }
        self.out.flush().map_err(|e: io::Error| Error::Output(e))
    }
}

/// The map of GNU sparse format 1.0: numbers in decimal, one per line, filled up to a record.
fn sparse_map(ranges: &[(u64, u64)], size: u64) -> Vec<u8> {
    let mut ranges = ranges.to_vec();
    // An empty range at the end marks a final hole.
    if ranges
        .last()
        .is_none_or(|(start, length)| start + length != size)
    {
        ranges.push((size, 0));
    }
    let mut map = format!("{}\n", ranges.len());
    for (start, length) in ranges {
        map.push_str(&format!("{start}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    header::pad(&mut map);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names() {
        for format in TarFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "zip".parse::<TarFormat>().unwrap_err();
        assert!(error.contains("zip") && error.contains("gnutar"), "{error}");
    }

    #[test]
    fn sparse_maps() {
        let text = |ranges: &[(u64, u64)], size| {
            let map = sparse_map(ranges, size);
            assert_eq!(map.len() % BLOCK, 0);
            String::from_utf8(map)
                .unwrap()
                .trim_end_matches('\0')
                .to_owned()
        };
        assert_eq!(text(&[(0, 5), (10, 5)], 15), "2\n0\n5\n10\n5\n");
        assert_eq!(text(&[(0, 5)], 15), "2\n0\n5\n15\n0\n");
        assert_eq!(text(&[], 15), "1\n15\n0\n");
    }
}
