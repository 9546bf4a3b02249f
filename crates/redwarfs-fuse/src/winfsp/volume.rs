//! A mounted image as Windows sees it: the answers to its requests, without the form in which they come.

use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::{FileType, MetadataView, Stat};
use redwarfs_reader::Image;
use tracing::debug;

use crate::analysis::Analysis;
use crate::case::{self, CaseIndex};
use crate::error::Result;
use crate::failures::Failures;
use crate::idle::Uses;
use crate::options::MountOptions;
use crate::policy::{Policy, node_id, stat_of_name};
use crate::winfsp::attributes::{UNIT, file_info, whole_units};
use crate::winfsp::binding::abi::{
    FileInfo, LABEL, MAX_NAME, TYPE_NAME, VolumeInfo, VolumeParams, flag,
};
use crate::winfsp::names;
use crate::winfsp::reparse::{self, Target};
use crate::winfsp::security::{Security, Sid};
use crate::winfsp::status::Status;

/// Links that are followed to find out whether a link leads to a directory.
const MOST_LINKS: u32 = 40;
/// Longest target of such a link in bytes: more than a path of Windows can have.
const LONGEST_TARGET: usize = 32 << 10;
/// Bytes of a sector, to which programs without the system's cache align their reads.
const SECTOR: u16 = 512;
/// Rights that would change something.
const WRITES: u32 =
    0x0002 | 0x0004 | 0x0010 | 0x0040 | 0x0100 | 0x0001_0000 | 0x0004_0000 | 0x0008_0000;
/// Rights to the contents of a file: to read, and to execute.
const READS: u32 = 0x0001 | 0x0020;

/// What an open file or directory is: an inode, and the name by which it was found. The root has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    inode: InodeNo,
    entry: Option<EntryIndex>,
}

impl Node {
    /// A number that is not 0.
    pub(super) fn to_context(self) -> u64 {
        let entry = self.entry.map_or(0, |entry| u64::from(entry.0) + 1);
        (entry << 32) | (u64::from(self.inode.0) + 1)
    }

    /// The node of such a number.
    pub(super) fn from_context(context: u64) -> Option<Self> {
        let part = |half: u64| (half as u32).checked_sub(1);
        Some(Self {
            inode: InodeNo(part(context)?),
            entry: part(context >> 32).map(EntryIndex),
        })
    }
}

/// Requests so far, by kind.
#[derive(Debug, Default)]
struct Counters {
    lookups: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    reads: AtomicU64,
    listings: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A mounted image.
#[derive(Debug)]
pub(super) struct Volume {
    image: Image,
    policy: Policy,
    case: Option<CaseIndex>,
    analysis: Option<Analysis>,
    failures: Failures,
    security: Security,
    keep_cache: bool,
    label: Vec<u16>,
    type_name: Vec<u16>,
    counters: Counters,
}

/// The first `most` units, without half a character at the end.
fn shortened(text: &str, most: usize) -> Vec<u16> {
    let mut units = Vec::new();
    for c in text.chars() {
        let mut buffer = [0; 2];
        let c = c.encode_utf16(&mut buffer);
        if units.len() + c.len() > most {
            break;
        }
        units.extend_from_slice(c);
    }
    units
}

impl Volume {
    /// Makes all state that depends only on image and options. `mounting` is the account that mounts.
    ///
    /// # Errors
    /// The analysis file cannot be created, or the metadata is damaged.
    pub(super) fn new(image: Image, options: &MountOptions, mounting: Sid) -> Result<Self> {
        let meta = image.metadata();
        let checks = options.default_permissions == Some(true);
        Ok(Self {
            policy: Policy::new(options),
            case: CaseIndex::wanted(meta, options)?,
            analysis: Analysis::wanted(meta, options)?,
            failures: Failures::default(),
            security: Security::new(options.access, mounting, checks),
            keep_cache: options.keep_cache,
            label: shortened(&options.source.to_string_lossy(), LABEL),
            type_name: shortened(&options.subtype, TYPE_NAME - 1),
            counters: Counters::default(),
            image,
        })
    }

    fn meta(&self) -> &MetadataView {
        self.image.metadata()
    }

    /// The image.
    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// Notes that the image cannot be read here. Returns the code for the answer.
    fn fail(&self, what: &str, inode: InodeNo, cause: &redwarfs_format::Error) -> Status {
        self.failures.report(what, inode, cause);
        Status::of(cause)
    }

    /// What Windows must know of the volume before it is mounted.
    pub(super) fn params(&self) -> VolumeParams {
        let meta = self.meta();
        let created = meta.create_timestamp().unwrap_or(0);
        let time = redwarfs_windows::time::Time::from_unix(created.cast_signed(), 0);
        let totals = meta.totals();
        // Any number, equal for equal images.
        let number = created ^ totals.size.rotate_left(32) ^ u64::from(meta.entry_count()) << 16;
        let mut params = VolumeParams {
            sector_size: SECTOR,
            sectors_per_allocation_unit: (UNIT / u64::from(SECTOR)) as u16,
            max_component_length: MAX_NAME as u16,
            volume_creation_time: u64::try_from(time.ticks()).unwrap_or(0),
            volume_serial_number: (number ^ number >> 32) as u32,
            file_info_timeout: if self.keep_cache { u32::MAX } else { 1000 },
            flags: flag::CASE_PRESERVED_NAMES
                | flag::UNICODE_ON_DISK
                | flag::PERSISTENT_ACLS
                | flag::REPARSE_POINTS
                | flag::READ_ONLY_VOLUME
                | flag::POST_CLEANUP_WHEN_MODIFIED_ONLY
                | flag::UM_FILE_CONTEXT_IS_USER_CONTEXT2,
            ..VolumeParams::default()
        };
        if self.case.is_none() {
            params.flags |= flag::CASE_SENSITIVE_SEARCH;
        }
        for (unit, place) in self.type_name.iter().zip(&mut params.file_system_name) {
            *place = *unit;
        }
        params
    }

    /// Sizes and label.
    pub(super) fn info(&self) -> VolumeInfo {
        let mut info = VolumeInfo {
            total_size: whole_units(self.meta().totals().allocated),
            label_length: 2 * self.label.len() as u16,
            ..VolumeInfo::default()
        };
        for (unit, place) in self.label.iter().zip(&mut info.label) {
            *place = *unit;
        }
        info
    }

    /// The type of an inode.
    fn file_type(&self, inode: InodeNo) -> Result<FileType, Status> {
        let ty = self.meta().file_type(inode);
        ty.map_err(|cause| self.fail("stat", inode, &cause))
    }

    /// The entry of a directory with a name in the form of Windows. With `exact`, in this spelling.
    fn find(&self, dir: InodeNo, name: &[u16], exact: bool) -> Result<Option<EntryIndex>, Status> {
        let meta = self.meta();
        let index = self.case.as_ref().filter(|_| !exact);
        let find = |bytes: &[u8]| case::find(meta, index, dir, bytes);
        let search = || -> redwarfs_format::Result<Option<EntryIndex>> {
            let literal = names::literal(name);
            if let Some(found) = find(&literal)? {
                return Ok(names::listed(&literal).and(Some(found)));
            }
            let Some(original) = names::original(name) else {
                return Ok(None);
            };
            if let Some(found) = find(&original)? {
                return Ok(names::listed(&original).and(Some(found)));
            }
            // A name may have private characters of its own, and others that stand for bytes.
            for entry in meta.entries(dir)?.map(EntryIndex) {
                if names::listed(&meta.entry_name(entry)?).as_deref() == Some(name) {
                    return Ok(Some(entry));
                }
            }
            Ok(None)
        };
        search().map_err(|cause| self.fail("look up a name in", dir, &cause))
    }

    /// The inode of an entry of `dir`.
    fn node(&self, dir: InodeNo, entry: EntryIndex) -> Result<Node, Status> {
        let inode = self.meta().entry_inode(entry);
        let inode = inode.map_err(|cause| self.fail("look up a name in", dir, &cause))?;
        Ok(Node {
            inode,
            entry: Some(entry),
        })
    }

    /// The entry with a path such as `\dir\name`.
    ///
    /// # Errors
    /// [`Status::REPARSE`] if a component before the last one is a link. Otherwise, there is no such
    /// entry, or the image cannot be read.
    fn look_up(&self, path: &[u16]) -> Result<Node, Status> {
        count(&self.counters.lookups);
        let separator = |unit: &u16| *unit == u16::from(b'\\');
        let mut parts = path.split(separator).filter(|part| !part.is_empty());
        let mut node = Node {
            inode: InodeNo::ROOT,
            entry: None,
        };
        let Some(mut name) = parts.next() else {
            return Ok(node);
        };
        loop {
            let next = parts.next();
            match (self.find(node.inode, name, false)?, next) {
                (Some(entry), _) => node = self.node(node.inode, entry)?,
                (None, None) => return Err(Status::OBJECT_NAME_NOT_FOUND),
                (None, Some(_)) => return Err(Status::OBJECT_PATH_NOT_FOUND),
            }
            let Some(next) = next else {
                return Ok(node);
            };
            match self.file_type(node.inode)? {
                FileType::Directory => {}
                FileType::Symlink => return Err(Status::REPARSE),
                _ => return Err(Status::OBJECT_PATH_NOT_FOUND),
            }
            name = next;
        }
    }

    /// As [`Volume::look_up`], for a path whose links were followed before.
    fn look_up_followed(&self, path: &[u16]) -> Result<Node, Status> {
        self.look_up(path).map_err(|status| match status {
            // WinFsp takes this code for a success.
            Status::REPARSE => Status::OBJECT_PATH_NOT_FOUND,
            other => other,
        })
    }

    fn stat(&self, node: Node) -> Result<Stat, Status> {
        let stat = stat_of_name(self.meta(), node.inode, node.entry);
        stat.map_err(|cause| self.fail("stat", node.inode, &cause))
    }

    /// The attributes of an entry. `dir` is its directory, if the caller knows it.
    fn info_in(&self, dir: Option<InodeNo>, node: Node) -> Result<FileInfo, Status> {
        let stat = self.stat(node)?;
        let ty = self.file_type(node.inode)?;
        let fail = |cause| self.fail("stat", node.inode, &cause);
        let to_directory = ty == FileType::Symlink && {
            let dir = match dir {
                Some(dir) => Some(dir),
                None => self.directory_of(node).map_err(fail)?,
            };
            match dir {
                Some(dir) => self.leads_to_directory(dir, node.inode).map_err(fail)?,
                None => false,
            }
        };
        let born = self.meta().birth_time(node.inode).map_err(fail)?;
        Ok(file_info(&self.policy, &stat, ty, to_directory, born))
    }

    /// The directory that has an entry.
    fn directory_of(&self, node: Node) -> redwarfs_format::Result<Option<InodeNo>> {
        let Some(entry) = node.entry else {
            return Ok(None);
        };
        let meta = self.meta();
        // The entries of all directories are stored in the order of the directories.
        let (mut low, mut high) = (0, meta.counts().directories);
        while low < high {
            let middle = low + (high - low) / 2;
            let range = meta.entries(InodeNo(middle))?;
            if range.contains(&entry.0) {
                return Ok(Some(InodeNo(middle)));
            }
            match range.end <= entry.0 {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(None)
    }

    /// Whether a link in `dir` leads to a directory of the image.
    fn leads_to_directory(&self, dir: InodeNo, link: InodeNo) -> redwarfs_format::Result<bool> {
        let meta = self.meta();
        let mut here = dir;
        let mut links = 0;
        // The components that are left, the next one last.
        let mut left: Vec<Vec<u8>> = Vec::new();
        let mut link = Some(link);
        loop {
            if let Some(inode) = link.take() {
                links += 1;
                let target = meta.symlink(inode)?;
                let fits = links <= MOST_LINKS && target.len() <= LONGEST_TARGET;
                match Target::parse(&target).filter(|_| fits) {
                    Some(Target::Inside(from_root, parts)) => {
                        if from_root {
                            here = InodeNo::ROOT;
                        }
                        left.extend(parts.into_iter().rev().map(<[u8]>::to_vec));
                    }
                    Some(Target::Drive(..)) | None => return Ok(false),
                }
            }
            let Some(name) = left.pop() else {
                return Ok(true);
            };
            let next = match name.as_slice() {
                b"." => here,
                b".." => meta.parent(here)?,
                name => match case::find(meta, self.case.as_ref(), here, name)? {
                    Some(entry) => meta.entry_inode(entry)?,
                    None => return Ok(false),
                },
            };
            match meta.file_type(next)? {
                FileType::Directory => here = next,
                FileType::Symlink => link = Some(next),
                _ => return Ok(false),
            }
        }
    }

    /// Attributes and security descriptor of a path.
    ///
    /// # Errors
    /// [`Status::REPARSE`] if a component before the last one is a link; otherwise, as for
    /// [`Volume::open`].
    pub(super) fn security_by_name(&self, path: &[u16]) -> Result<(u32, Vec<u8>), Status> {
        let node = self.look_up(path)?;
        Ok((self.info_in(None, node)?.attributes, self.security(node)?))
    }

    /// The security descriptor of an entry.
    ///
    /// # Errors
    /// The image cannot be read.
    pub(super) fn security(&self, node: Node) -> Result<Vec<u8>, Status> {
        let stat = self.stat(node)?;
        let policy = &self.policy;
        let (mode, uid, gid) = (policy.mode(&stat), policy.uid(&stat), policy.gid(&stat));
        Ok(self.security.descriptor(mode, uid, gid))
    }

    /// Opens a path with the rights that the program has got.
    ///
    /// # Errors
    /// [`Status::MEDIA_WRITE_PROTECTED`] if the program wants to change something; otherwise, there is no
    /// such entry, or the image cannot be read.
    pub(super) fn open(&self, path: &[u16], rights: u32) -> Result<(Node, FileInfo), Status> {
        debug!("op_open({}, {rights:#x})", String::from_utf16_lossy(path));
        if rights & WRITES != 0 {
            return Err(Status::MEDIA_WRITE_PROTECTED);
        }
        let node = self.look_up_followed(path)?;
        let info = self.info_in(None, node)?;
        if let Some(analysis) = &self.analysis
            && rights & READS != 0
        {
            analysis.opened(self.meta(), node.inode);
        }
        count(&self.counters.opened);
        Ok((node, info))
    }

    /// Notes that an opened entry is no longer needed.
    pub(super) fn close(&self, node: Node) {
        debug!("op_close({})", node_id(node.inode));
        count(&self.counters.closed);
    }

    /// The attributes of an opened entry.
    ///
    /// # Errors
    /// The image cannot be read.
    pub(super) fn file_info(&self, node: Node) -> Result<FileInfo, Status> {
        self.info_in(None, node)
    }

    /// Fills `buffer` from `offset` of a file on. Returns the number of bytes, which is less only at the
    /// end.
    ///
    /// # Errors
    /// [`Status::END_OF_FILE`] if there is nothing; otherwise, it is no file, or cannot be read.
    pub(super) fn read(&self, node: Node, offset: u64, buffer: &mut [u8]) -> Result<usize, Status> {
        debug!(
            "op_read({}, {}, {offset})",
            node_id(node.inode),
            buffer.len()
        );
        count(&self.counters.reads);
        if self.file_type(node.inode)? != FileType::Regular {
            return Err(Status::INVALID_DEVICE_REQUEST);
        }
        match self.image.read_at(node.inode, offset, buffer) {
            Ok(0) if !buffer.is_empty() => Err(Status::END_OF_FILE),
            Ok(length) => Ok(length),
            Err(cause) => Err(self.fail("read", node.inode, &cause)),
        }
    }

    /// Calls `add` with the names and attributes of a directory until it returns false. They begin after
    /// the name `marker`. Returns whether this was the end of the directory.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub(super) fn list(
        &self,
        node: Node,
        marker: Option<&[u16]>,
        mut add: impl FnMut(&[u16], &FileInfo) -> bool,
    ) -> Result<bool, Status> {
        const DOT: &[u16] = &[b'.' as u16];
        const DOTS: &[u16] = &[b'.' as u16, b'.' as u16];
        let dir = node.inode;
        debug!("op_readdir({})", node_id(dir));
        count(&self.counters.listings);
        if self.file_type(dir)? != FileType::Directory {
            return Err(Status::NOT_A_DIRECTORY);
        }
        let meta = self.meta();
        let fail = |cause: redwarfs_format::Error| self.fail("list", dir, &cause);
        // A root has no names for itself and its parent.
        if dir != InodeNo::ROOT {
            if marker.is_none() && !add(DOT, &self.info_in(None, node)?) {
                return Ok(false);
            }
            if marker.is_none() || marker == Some(DOT) {
                let parent = Node {
                    inode: meta.parent(dir).map_err(fail)?,
                    entry: None,
                };
                if !add(DOTS, &self.info_in(None, parent)?) {
                    return Ok(false);
                }
            }
        }
        let range = meta.entries(dir).map_err(fail)?;
        let first = match marker {
            None => range.start,
            Some(name) if name == DOT || name == DOTS => range.start,
            Some(name) => match self.find(dir, name, true)? {
                Some(entry) => entry.0.saturating_add(1),
                // Windows repeats a name that it got here.
                None => return Err(Status::OBJECT_NAME_NOT_FOUND),
            },
        };
        for entry in (first..range.end).map(EntryIndex) {
            let name = meta.entry_name(entry).map_err(fail)?;
            let Some(name) = names::listed(&name) else {
                let text = format!("directory {}: a name that cannot be shown", node_id(dir));
                self.failures.mention(&text);
                continue;
            };
            let info = self.info_in(Some(dir), self.node(dir, entry)?)?;
            if !add(&name, &info) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The reparse point of a link or special file.
    ///
    /// # Errors
    /// [`Status::NOT_A_REPARSE_POINT`] for other entries; otherwise, the image cannot be read, or Windows
    /// takes no such link.
    pub(super) fn reparse_point(&self, node: Node) -> Result<Vec<u8>, Status> {
        match self.file_type(node.inode)? {
            FileType::Symlink => match self.meta().symlink(node.inode) {
                Ok(target) => reparse::symlink(&target),
                Err(cause) => Err(self.fail("read link", node.inode, &cause)),
            },
            ty => reparse::special(ty, self.stat(node)?.rdev),
        }
    }

    /// As [`Volume::reparse_point`], for a path.
    ///
    /// # Errors
    /// As there, and as for [`Volume::open`].
    pub(super) fn reparse_point_by_name(&self, path: &[u16]) -> Result<Vec<u8>, Status> {
        self.reparse_point(self.look_up_followed(path)?)
    }

    /// Number of files and directories that are open.
    pub(super) fn open_files(&self) -> u64 {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        get(&self.counters.opened).saturating_sub(get(&self.counters.closed))
    }

    /// Statistics of the requests: lines of text without a final newline.
    pub(super) fn statistics(&self) -> String {
        let counters = &self.counters;
        let lines = [
            ("names looked up", &counters.lookups),
            ("files and directories opened", &counters.opened),
            ("reads", &counters.reads),
            ("listings", &counters.listings),
        ];
        let lines =
            lines.map(|(name, counter)| format!("{name}: {}", counter.load(Ordering::Relaxed)));
        lines.join("\n")
    }
}

impl Uses for Volume {
    fn uses(&self) -> u64 {
        let Counters {
            lookups,
            opened,
            closed,
            reads,
            listings,
        } = &self.counters;
        let all = [lookups, opened, closed, reads, listings];
        all.map(|counter| counter.load(Ordering::Relaxed))
            .iter()
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_nodes() {
        for inode in [0, 1, 77, u32::MAX - 1].map(InodeNo) {
            for entry in [None, Some(0), Some(5), Some(u32::MAX - 1)] {
                let node = Node {
                    inode,
                    entry: entry.map(EntryIndex),
                };
                assert_ne!(node.to_context(), 0);
                assert_eq!(Node::from_context(node.to_context()), Some(node));
            }
        }
        for nothing in [0, 1 << 32, 5 << 32] {
            assert_eq!(Node::from_context(nothing), None);
        }
    }

    #[test]
    fn labels_end_with_whole_characters() {
        assert_eq!(
            shortened("short", 32),
            "short".encode_utf16().collect::<Vec<_>>()
        );
        assert_eq!(shortened("ab\u{1f600}", 4).len(), 4);
        assert_eq!(shortened("ab\u{1f600}", 3), [97, 98]);
    }
}
