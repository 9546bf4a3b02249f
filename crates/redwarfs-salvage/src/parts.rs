//! Files that are partly there.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_format::{BlockNo, InodeNo};
use redwarfs_reader::Image;

use crate::error::Result;
use crate::salvage::Salvage;

/// Bytes that are read at a time (1 MiB).
const PIECE: u64 = 1 << 20;

/// A range of a file that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Where it begins.
    pub offset: u64,
    /// Its length, at least 1.
    pub length: u64,
}

/// A file of which something is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedFile {
    /// Its path without a leading slash.
    pub path: Vec<u8>,
    /// Its inode.
    pub inode: InodeNo,
    /// Its size.
    pub size: u64,
    /// What is lost, ascending. The ranges do not touch.
    pub missing: Vec<Missing>,
}

impl DamagedFile {
    /// Bytes that are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.missing.iter().map(|range| range.length).sum()
    }
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartsWritten {
    /// Files that are partly there.
    pub files: u64,
    /// Bytes of them that are there.
    pub bytes: u64,
    /// Bytes of them that are lost.
    pub lost: u64,
    /// Files that are lost completely, and were not written.
    pub gone: u64,
    /// Files whose name cannot be a name here, and were not written.
    pub unnamed: u64,
    /// Files of a size that the file system here cannot hold, and were not written.
    pub too_large: u64,
}

impl Salvage {
    /// Names every file of the tree that needs a lost block, in tree order.
    ///
    /// # Errors
    /// [`crate::Error::Format`] if the tree cannot be walked, and those of `visit`. Without a tree, nothing is visited.
    pub fn for_each_damaged(&self, visit: &mut dyn FnMut(DamagedFile) -> Result<()>) -> Result<()> {
        let (Some(image), Some(lost)) = (self.image(), self.lost_blocks()) else {
            return Ok(());
        };
        // A block behind the last one that is known is lost, too.
        let known = image.container().block_count();
        let is_lost = |block: BlockNo| block.0 >= known || lost.contains(&block);
        for entry in image.walk() {
            let entry = entry?;
            let inode = entry.inode;
            if image.metadata().file_type(inode)? != FileType::Regular {
                continue;
            }
            let mut missing: Vec<Missing> = Vec::new();
            let mut offset = 0;
            for extent in image.metadata().extents(inode)? {
                let (length, lost) = match extent? {
                    Extent::Data { block, size, .. } => (u64::from(size), is_lost(block)),
                    Extent::Hole { size } => (size, false),
                };
                match missing.last_mut() {
                    Some(last) if lost && last.offset + last.length == offset => {
                        last.length += length;
                    }
                    _ if lost && length > 0 => missing.push(Missing { offset, length }),
                    _ => {}
                }
                let end = offset.checked_add(length);
                offset = end.ok_or_else(|| {
                    redwarfs_format::Error::corrupt("a file is larger than any file can be")
                })?;
            }
            if missing.is_empty() {
                continue;
            }
            visit(DamagedFile {
                path: entry.path.clone(),
                inode,
                size: offset,
                missing,
            })?;
        }
        Ok(())
    }

    /// Writes the files that are partly there below `dir`, a new directory: `NAME` with holes for what is missing, and
    /// `NAME.missing` (with the beginning of a very long name) with a line `OFFSET LENGTH` for each missing range. `visit` gets each damaged file, also those
    /// that are lost completely.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if something cannot be written, otherwise as [`Salvage::for_each_damaged`].
    pub fn write_parts(
        &self,
        dir: &Path,
        visit: &mut dyn FnMut(&DamagedFile) -> Result<()>,
    ) -> Result<PartsWritten> {
        let mut written = PartsWritten::default();
        let Some(image) = self.image() else {
            return Ok(written);
        };
        fs::create_dir(dir)?;
        self.for_each_damaged(&mut |mut file| {
            let outcome = match file.lost() >= file.size {
                true => Outcome::Gone,
                false => match below(dir, &file.path) {
                    Some(path) => write_part(image, &path, &mut file)?,
                    None => {
                        written.unnamed += 1;
                        return visit(&file);
                    }
                },
            };
            match outcome {
                Outcome::Written(bytes) => {
                    written.files += 1;
                    written.bytes += bytes;
                    written.lost += file.lost();
                }
                Outcome::Gone => written.gone += 1,
                Outcome::TooLarge => written.too_large += 1,
            }
            visit(&file)
        })?;
        Ok(written)
    }
}

/// The place of a path below a directory that has nothing but what this process makes. None if a part of the path is
/// no name.
fn below(dir: &Path, path: &[u8]) -> Option<PathBuf> {
    let mut out = dir.to_owned();
    for name in path.split(|byte| *byte == b'/') {
        let text = std::str::from_utf8(name);
        let odd = name.is_empty() || name == b"." || name == b".." || name.contains(&0);
        if odd {
            return None;
        }
        match text {
            Ok(text) if !cfg!(windows) || !text.contains(['\\', ':']) => out.push(text),
            Ok(_) => return None,
            Err(_) => out.push(raw_name(name)?),
        }
    }
    Some(out)
}

#[cfg(unix)]
fn raw_name(name: &[u8]) -> Option<&std::ffi::OsStr> {
    Some(std::os::unix::ffi::OsStrExt::from_bytes(name))
}

#[cfg(not(unix))]
fn raw_name(_: &[u8]) -> Option<&std::ffi::OsStr> {
    None
}

/// What became of a file.
enum Outcome {
    /// So many bytes are there.
    Written(u64),
    /// Nothing is there.
    Gone,
    /// The file system cannot hold a file of this size.
    TooLarge,
}

/// The ranges of a file that are to be read, and the bytes of its holes. Holes are not read: they may be as long as
/// numbers get.
fn ranges(image: &Image, file: &DamagedFile) -> Result<(Vec<Range<u64>>, u64)> {
    let mut data: Vec<Range<u64>> = Vec::new();
    let (mut at, mut holes) = (0, 0);
    // Lost ranges are made of whole extents.
    let mut lost = file.missing.iter().peekable();
    for extent in image.metadata().extents(file.inode)? {
        let (length, hole) = match extent? {
            Extent::Data { size, .. } => (u64::from(size), false),
            Extent::Hole { size } => (size, true),
        };
        while lost
            .peek()
            .is_some_and(|range| range.offset + range.length <= at)
        {
            lost.next();
        }
        let end = at + length;
        if hole {
            holes += length;
        } else if lost.peek().is_none_or(|range| at < range.offset) {
            match data.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => data.push(at..end),
            }
        }
        at = end;
    }
    Ok((data, holes))
}

/// Writes what is there of a file. A range whose block cannot be decoded is missing, too.
fn write_part(image: &Image, path: &Path, file: &mut DamagedFile) -> Result<Outcome> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // A map of another file may have this name.
    let path = &free_name(path);
    let mut out = File::create_new(path)?;
    if let Err(e) = out.set_len(file.size) {
        drop(out);
        fs::remove_file(path)?;
        return match e.kind() {
            io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => Ok(Outcome::TooLarge),
            _ => Err(e.into()),
        };
    }
    let (data, mut bytes) = ranges(image, file)?;
    let mut missing = std::mem::take(&mut file.missing);
    let mut buffer = Vec::new();
    for Range { start: mut at, end } in data {
        while at < end {
            let length = PIECE.min(end - at);
            buffer.clear();
            buffer.resize(usize::try_from(length).unwrap_or(0), 0);
            match image.read_at(file.inode, at, &mut buffer) {
                Ok(n) if n as u64 == length => {
                    // The file has its length: zeros stay holes.
                    if buffer.iter().any(|byte| *byte != 0) {
                        out.seek(SeekFrom::Start(at))?;
                        out.write_all(&buffer)?;
                    }
                    bytes += length;
                }
                // Its checksum is right, but it cannot be decoded here.
                Ok(_) | Err(_) => missing.push(Missing { offset: at, length }),
            }
            at += length;
        }
    }
    missing.sort_unstable_by_key(|range| range.offset);
    for range in missing {
        join(&mut file.missing, range.offset, range.length);
    }
    drop(out);
    if bytes == 0 {
        fs::remove_file(path)?;
        return Ok(Outcome::Gone);
    }
    let mut map = File::create_new(free_name(&map_name(path)))?;
    for range in &file.missing {
        writeln!(map, "{} {}", range.offset, range.length)?;
    }
    map.flush()?;
    Ok(Outcome::Written(bytes))
}

fn join(missing: &mut Vec<Missing>, offset: u64, length: u64) {
    match missing.last_mut() {
        Some(last) if last.offset + last.length == offset => last.length += length,
        _ => missing.push(Missing { offset, length }),
    }
}

/// `NAME.missing`, or less of a name that is so long that no file could have that name.
fn map_name(path: &Path) -> PathBuf {
    const BEHIND: &str = ".missing";
    // A number may follow.
    const MOST: usize = 255 - BEHIND.len() - "-4294967295".len();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    if name.len() > MOST {
        let mut start = name.to_string_lossy().into_owned();
        while start.len() > MOST {
            start.pop();
        }
        name = start.into();
    }
    name.push(BEHIND);
    path.with_file_name(name)
}

/// A name that no file has: a file of the image may end in `.missing`.
fn free_name(path: &Path) -> PathBuf {
    let mut free = path.to_owned();
    let mut number = 1;
    while free.symlink_metadata().is_ok() {
        number += 1;
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{number}"));
        free = PathBuf::from(name);
    }
    free
}

impl From<Missing> for (u64, u64) {
    fn from(range: Missing) -> Self {
        (range.offset, range.length)
    }
}
