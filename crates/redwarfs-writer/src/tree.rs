//! The listed tree in a compact arena.
//!
//! Cost per entry: 12 bytes, plus per inode 24 bytes (56 with all times), plus 24 bytes for a
//! regular file and 12 for a directory, plus each distinct name once (its bytes and 4 more, and
//! 6 to 12 while the tree is listed).
//!
//! Entries are numbered so that the children of a directory are consecutive, sorted by name,
//! and directories follow each other depth first: the entry number is the index in the
//! image's table of directory entries.

mod ahead;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::hook::{Decision, HookEntry, Marks};
use crate::memory::{Load, Watch};
use crate::options::{BuildOptions, IdTransform};
use crate::pipeline::thread;
use crate::progress::{Counters, Level, Progress, add};
use crate::source::{DirItem, FileType, Meta, Source, Timestamp, join};

use self::ahead::Ahead;

/// The format's own limit on the stored length of a name.
const MAX_NAME: usize = 512;
/// The format's own limit on the stored length of a symlink target.
const MAX_TARGET: usize = 4096;

/// Sizes of directories that are listed ahead. Smaller ones are listed in less time than it takes to
/// hand them over; larger ones have more entries than are listed ahead.
const LISTED_AHEAD: std::ops::RangeInclusive<u64> = 4097..=96 << 10;

/// Distinct byte strings, numbered in order of first use.
#[derive(Default)]
pub(crate) struct Interner {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Empty when the last one has been added.
    table: HashTable<u32>,
}

impl Interner {
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id
            .checked_sub(1)
            .and_then(|i| self.ends.get(i))
            .copied()
            .unwrap_or(0);
        self.ends
            .get(id)
            .and_then(|&end| self.bytes.get(start as usize..end as usize))
            .unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn intern(&mut self, string: &[u8]) -> Result<u32> {
        let hash = XxHash3_64::oneshot(string);
        let (bytes, ends) = (&self.bytes, &self.ends);
        let piece = |id: u32| {
            let id = id as usize;
            let start = if id == 0 { 0 } else { ends[id - 1] };
            &bytes[start as usize..ends[id] as usize]
        };
        if let Some(&id) = self.table.find(hash, |&id| piece(id) == string) {
            return Ok(id);
        }
        let id = u32::try_from(self.ends.len())
            .map_err(|_| Error::Limit("too many different names".into()))?;
        let end = u32::try_from(self.bytes.len() + string.len())
            .map_err(|_| Error::Limit("too many bytes of different names".into()))?;
        self.table
            .insert_unique(hash, id, |&id| XxHash3_64::oneshot(piece(id)));
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        Ok(id)
    }

    /// Nothing will be added any more.
    fn seal(&mut self) {
        self.table = HashTable::new();
    }
}

/// Mode, owner and group, shared by all inodes that have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A directory: its entry and the range of its children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dir {
    pub(crate) entry: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A regular file: one inode, any number of names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) size: u64,
    /// Less is allocated, and holes are to be stored as such.
    pub(crate) sparse: bool,
    /// First entry with this inode.
    pub(crate) entry: u32,
    /// Names of this inode in the tree.
    pub(crate) links: u32,
    pub(crate) inode: u32,
}

/// The listed tree.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) parents: Vec<u32>,
    pub(crate) name_ids: Vec<u32>,
    /// Inode per entry: an index into the following vectors, in order of discovery.
    pub(crate) inodes: Vec<u32>,

    attributes: Vec<u32>,
    pub(crate) mtimes: Vec<Timestamp>,
    /// Empty unless all times are kept.
    pub(crate) atimes: Vec<Timestamp>,
    pub(crate) ctimes: Vec<Timestamp>,
    /// By type: number of the directory, symlink target, file, device; 0 for others.
    pub(crate) details: Vec<u32>,

    pub(crate) distinct: Vec<Attributes>,
    distinct_ids: HashMap<Attributes, u32>,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) files: Vec<File>,
    /// What the hook said about files.
    pub(crate) marks: Marks,
    pub(crate) rdevs: Vec<u64>,
    pub(crate) names: Interner,
    pub(crate) targets: Interner,
    /// Bytes that source and hook hold.
    beside: u64,
    /// Sizes of all files together.
    file_bytes: u64,
}

impl Tree {
    /// What is known so far: no content yet.
    pub(crate) fn load(&self) -> Load {
        Load {
            entries: self.inodes.len() as u64,
            directories: self.dirs.len() as u64,
            strings: (self.names.bytes.len() + self.targets.bytes.len()) as u64,
            beside: self.beside + self.marks.memory(),
            listed: self.file_bytes,
            ..Load::default()
        }
    }

    /// Gives up everything that is known about inodes, for when it is metadata.
    pub(crate) fn drop_inodes(&mut self) {
        let all = std::mem::take(self);
        (self.parents, self.name_ids, self.inodes) = (all.parents, all.name_ids, all.inodes);
        (self.dirs, self.names) = (all.dirs, all.names);
    }

    pub(crate) fn attributes(&self, inode: u32) -> Attributes {
        self.distinct[self.attributes[inode as usize] as usize]
    }

    pub(crate) fn kind(&self, inode: u32) -> FileType {
        // Modes are composed from a kind in `add_inode`.
        FileType::from_mode(self.attributes(inode).mode).unwrap_or(FileType::Regular)
    }

    pub(crate) fn name(&self, entry: u32) -> &[u8] {
        if entry == 0 {
            b""
        } else {
            self.names.get(self.name_ids[entry as usize])
        }
    }

    /// Path relative to the root.
    pub(crate) fn path(&self, entry: u32) -> Vec<u8> {
        let mut chain = Vec::new();
        let mut at = entry;
        while at != 0 {
            chain.push(at);
            at = self.parents[at as usize];
        }
        let mut path = Vec::new();
        for (i, &entry) in chain.iter().rev().enumerate() {
            if i > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(self.name(entry));
        }
        path
    }

    pub(crate) fn file_path(&self, file: u32) -> Vec<u8> {
        self.path(self.files[file as usize].entry)
    }

    fn add_inode(&mut self, meta: &Meta, options: &BuildOptions) -> Result<u32> {
        let inode = u32::try_from(self.details.len())
            .ok()
            .filter(|&i| i < i32::MAX as u32)
            .ok_or_else(|| Error::Limit("too many inodes".into()))?;
        let mut mode = meta.kind.mode_bits() | (meta.permissions & 0o7777);
        if let Some(chmod) = &options.chmod {
            mode = chmod.apply(mode);
        }
        let mapped = |map: &Option<IdTransform>, id| map.as_ref().map_or(id, |map| map.apply(id));
        let attributes = Attributes {
            mode,
            uid: (options.set_owner).unwrap_or_else(|| mapped(&options.map_owner, meta.uid)),
            gid: (options.set_group).unwrap_or_else(|| mapped(&options.map_group, meta.gid)),
        };
        // Nearly always the same as those of the one before.
        let last = self.attributes.last().copied();
        let last = last.filter(|&id| self.distinct.get(id as usize) == Some(&attributes));
        let id = last.unwrap_or_else(|| {
            let next = self.distinct.len() as u32;
            let id = *self.distinct_ids.entry(attributes).or_insert(next);
            if id == next {
                self.distinct.push(attributes);
            }
            id
        });
        self.attributes.push(id);
        self.mtimes.push(meta.mtime);
        if options.keep_all_times {
            self.atimes.push(meta.atime);
            self.ctimes.push(meta.ctime);
        }
        self.details.push(0);
        Ok(inode)
    }

    fn add_entry(&mut self, parent: u32, name: u32, inode: u32) -> Result<u32> {
        let entry = u32::try_from(self.inodes.len())
            .ok()
            .filter(|&e| e < u32::MAX - 1)
            .ok_or_else(|| Error::Limit("too many directory entries".into()))?;
        self.parents.push(parent);
        self.name_ids.push(name);
        self.inodes.push(inode);
        Ok(entry)
    }
}

/// Logs problems with inputs and counts them.
#[derive(Clone, Copy)]
pub(crate) struct Reporter<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) progress: &'a dyn Progress,
}

impl<'a> Reporter<'a> {
    /// An input is not in the image as it is: `what` says what was done instead.
    pub(crate) fn problem(&self, path: &[u8], what: &str) {
        add(&self.counters().errors, 1);
        self.progress.log(
            Level::Error,
            &format!("'{}': {what}", self.source.display_path(path)),
        );
    }

    pub(crate) fn counters(&self) -> &'a Counters {
        self.progress.counters()
    }
}

/// Lists the whole source.
pub(crate) fn list(
    options: &BuildOptions,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    watch: &Watch<'_>,
) -> Result<Tree> {
    let lister = |ahead| Lister {
        options,
        reporter,
        stop,
        watch,
        ahead,
    };
    let Some(ahead) = Ahead::new(reporter.source, options, stop) else {
        return lister(None).run();
    };
    let ahead = &ahead;
    std::thread::scope(|scope| {
        let _ending = ahead.ending();
        for _ in 0..ahead.threads() {
            thread(scope, "scan", || ahead.run(options))?;
        }
        lister(Some(ahead)).run()
    })
}

/// What listing needs to know.
struct Lister<'a> {
    options: &'a BuildOptions,
    reporter: Reporter<'a>,
    stop: &'a AtomicBool,
    watch: &'a Watch<'a>,
    /// If directories are listed at the same time.
    ahead: Option<&'a Ahead<'a>>,
}

impl Lister<'_> {
    fn run(&self) -> Result<Tree> {
        let (options, reporter, watch) = (self.options, self.reporter, self.watch);
        let root = reporter.source.root().map_err(Error::Source)?;
        if root.kind != FileType::Directory {
            return Err(Error::Source(std::io::ErrorKind::NotADirectory.into()));
        }
        let mut tree = Tree {
            beside: (reporter.source.memory())
                .saturating_add(options.hook.as_ref().map_or(0, |hook| hook.memory())),
            ..Tree::default()
        };
        let mut links: HashMap<(u64, u64), u32> = HashMap::new();
        let inode = tree.add_inode(&root, options)?;
        tree.add_entry(0, 0, inode)?;
        add(&reporter.counters().dirs, 1);
        count_extended(reporter.counters(), &root);

        // Directories to list, and those above the one that is being listed.
        let mut pending = vec![Listed {
            entry: 0,
            identity: root.identity,
            ahead: false,
        }];
        let mut above: Vec<Listed> = Vec::new();
        while let Some(directory) = pending.pop() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let entry = directory.entry;
            let parent = tree.parents[entry as usize];
            while above.last().is_some_and(|last| last.entry != parent) {
                above.pop();
            }
            let path = tree.path(entry);
            reporter.counters().set_current(&path);
            tracing::trace!("listing '{}'", reporter.source.display_path(&path));
            let first = tree.inodes.len() as u32;
            // File systems without inode numbers show zeros.
            let known = directory.identity.1 != 0;
            let mut below = Vec::new();
            if known && above.iter().any(|up| up.identity == directory.identity) {
                // It may have been listed all the same.
                self.ahead.and_then(|ahead| ahead.take(pending.len()));
                reporter.problem(&path, "directory contains itself, storing it empty");
            } else {
                if let Some(items) = self.items(&tree, pending.len(), &path)? {
                    below = self.add(&mut tree, entry, &path, items, &mut links)?;
                }
                watch.check(tree.load())?;
            }
            above.push(directory);
            let end = tree.inodes.len() as u32;
            let number = tree.dirs.len() as u32;
            tree.dirs.push(Dir {
                entry,
                first,
                count: end - first,
            });
            let inode = tree.inodes[entry as usize];
            tree.details[inode as usize] = number;
            pending.extend(below.into_iter().rev());
            self.look_ahead(&tree, &mut pending);
        }
        tree.names.seal();
        tree.targets.seal();
        if options.remove_empty_dirs {
            tree = without_empty_directories(tree)?;
        }
        Ok(tree)
    }

    /// Has the directories listed that are needed soon.
    fn look_ahead(&self, tree: &Tree, pending: &mut [Listed]) {
        let Some(ahead) = self.ahead else { return };
        let distance = ahead.distance();
        let first = pending.len().saturating_sub(distance);
        let mut next = pending.iter().rev().take(distance / 2);
        if next.all(|directory| directory.ahead) {
            return;
        }
        let mut wanted = Vec::new();
        for (place, directory) in (0..).zip(pending).skip(first) {
            if !directory.ahead {
                directory.ahead = true;
                wanted.push((place, tree.path(directory.entry)));
            }
        }
        ahead.want(wanted);
    }

    /// The entries of the directory that was in `place` among those to come; nothing if they
    /// cannot be had.
    fn items(&self, tree: &Tree, place: usize, path: &[u8]) -> Result<Option<Vec<DirItem>>> {
        let source = self.reporter.source;
        let load = tree.load();
        let room = self.watch.room(load);
        let few = |entries: usize| (entries as u64) < room && !self.stop.load(Ordering::Relaxed);
        let listing = match self.ahead {
            Some(ahead) => match ahead.take(place) {
                Some(Ok(items)) if items.len() as u64 > room => {
                    return Err(self.watch.too_many(load));
                }
                Some(listing) => listing,
                None => source.read_dir_beside(path, &few),
            },
            None => {
                source.most_entries(room);
                source.read_dir(path)
            }
        };
        match listing {
            Ok(items) => Ok(Some(items)),
            Err(error) if error.kind() == std::io::ErrorKind::QuotaExceeded => {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                Err(self.watch.too_many(load))
            }
            Err(error) => {
                let what = format!("cannot read directory, storing it empty: {error}");
                self.reporter.problem(path, &what);
                Ok(None)
            }
        }
    }

    /// Adds the content of a directory; returns the directories in it.
    fn add(
        &self,
        tree: &mut Tree,
        parent: u32,
        path: &[u8],
        mut items: Vec<DirItem>,
        links: &mut HashMap<(u64, u64), u32>,
    ) -> Result<Vec<Listed>> {
        let (options, reporter) = (self.options, self.reporter);
        let counters = reporter.counters();
        let by_keys = options.uses_keys();
        let mut below = Vec::new();
        items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut previous: Option<Vec<u8>> = None;
        for item in items {
            let full = || join(path, &item.name);
            let bad = item.name.is_empty()
                || item.name == b"."
                || item.name == b".."
                || item.name.len() > MAX_NAME
                || item.name.iter().any(|&b| b == b'/' || b == 0);
            if bad || previous.as_ref() == Some(&item.name) {
                reporter.problem(&full(), "invalid or repeated name, leaving the entry out");
                continue;
            }
            let meta = match item.meta {
                Ok(meta) => meta,
                Err(error) => {
                    reporter.problem(
                        &full(),
                        &format!("cannot read entry, leaving it out: {error}"),
                    );
                    continue;
                }
            };
            match meta.kind {
                FileType::CharDevice | FileType::BlockDevice if !options.with_devices => {
                    add(&counters.devices_left_out, 1);
                    continue;
                }
                FileType::Fifo | FileType::Socket if !options.with_specials => {
                    add(&counters.specials_left_out, 1);
                    continue;
                }
                FileType::Symlink => {
                    let usable = meta
                        .target
                        .as_ref()
                        .is_some_and(|t| !t.is_empty() && t.len() <= MAX_TARGET && !t.contains(&0));
                    if !usable {
                        reporter
                            .problem(&full(), "symlink target cannot be stored, leaving it out");
                        continue;
                    }
                }
                _ => {}
            }
            let mut decision = Decision::default();
            if let Some(hook) = &options.hook {
                decision = hook.entry(&HookEntry {
                    path: &full(),
                    meta: &meta,
                })?;
                decision.key = decision.key.filter(|_| by_keys);
            }
            if !decision.keep {
                previous = Some(item.name);
                continue;
            }
            let name = tree.names.intern(&item.name)?;
            let linked =
                meta.kind == FileType::Regular && meta.nlink > 1 && !options.dissolve_hard_links;
            if linked && let Some(&file) = links.get(&meta.identity) {
                let inode = tree.files[file as usize].inode;
                tree.add_entry(parent, name, inode)?;
                tree.files[file as usize].links += 1;
                tree.marks.add(file, decision)?;
                add(&counters.hardlinks, 1);
                previous = Some(item.name);
                continue;
            }
            let inode = tree.add_inode(&meta, options)?;
            let entry = tree.add_entry(parent, name, inode)?;
            count_extended(counters, &meta);
            match meta.kind {
                FileType::Directory => {
                    add(&counters.dirs, 1);
                    below.push(Listed {
                        entry,
                        identity: meta.identity,
                        ahead: !LISTED_AHEAD.contains(&meta.size),
                    });
                }
                FileType::Symlink => {
                    let target = meta.target.unwrap_or_default();
                    let size = target.len() as u64;
                    tree.details[inode as usize] = tree.targets.intern(&target)?;
                    add(&counters.symlinks, 1);
                    add(&counters.symlink_size, size);
                    add(&counters.original_size, size);
                    add(&counters.allocated_size, size);
                }
                FileType::Regular => {
                    let file = tree.files.len() as u32;
                    let allocated = if options.sparse {
                        meta.allocated.min(meta.size)
                    } else {
                        meta.size
                    };
                    tree.details[inode as usize] = file;
                    tree.file_bytes = tree.file_bytes.saturating_add(meta.size);
                    tree.files.push(File {
                        size: meta.size,
                        sparse: allocated < meta.size,
                        entry,
                        links: 1,
                        inode,
                    });
                    tree.marks.add(file, decision)?;
                    if linked {
                        links.insert(meta.identity, file);
                    }
                    add(&counters.files_found, 1);
                    add(&counters.original_size, meta.size);
                    add(&counters.allocated_size, allocated);
                }
                FileType::CharDevice | FileType::BlockDevice => {
                    tree.details[inode as usize] = tree.rdevs.len() as u32;
                    tree.rdevs.push(meta.rdev);
                    add(&counters.devices, 1);
                }
                FileType::Fifo | FileType::Socket => add(&counters.specials, 1),
            }
            previous = Some(item.name);
        }
        Ok(below)
    }
}

/// Counts what is not stored of an inode.
fn count_extended(counters: &Counters, meta: &Meta) {
    let extended = meta.extended;
    for (counter, there) in [
        (&counters.extended_attributes, extended.any()),
        (&counters.access_lists, extended.acl),
        (&counters.file_capabilities, extended.capability),
    ] {
        if there {
            add(counter, 1);
        }
    }
}

/// A directory that was met.
struct Listed {
    entry: u32,
    identity: (u64, u64),
    /// It was asked to be listed ahead, or must not.
    ahead: bool,
}

/// Copies the tree without directories that hold nothing but such directories. The root stays.
fn without_empty_directories(old: Tree) -> Result<Tree> {
    let mut keep = vec![false; old.inodes.len()];
    if let Some(root) = keep.first_mut() {
        *root = true;
    }
    for entry in 1..old.inodes.len() {
        let directory = old.kind(old.inodes[entry]) == FileType::Directory;
        let mut at = entry;
        // Everything above something that is not a directory stays.
        while !directory && at != 0 && !keep[at] {
            keep[at] = true;
            at = old.parents[at] as usize;
        }
    }
    let mut tree = Tree {
        names: old.names,
        beside: old.beside,
        file_bytes: old.file_bytes,
        ..Tree::default()
    };
    let mut moved = vec![0u32; old.inodes.len()];
    for (entry, place) in moved
        .iter_mut()
        .enumerate()
        .filter(|(entry, _)| keep[*entry])
    {
        *place = tree.inodes.len() as u32;
        // Parents precede their children, so the parent's place is final after this loop.
        tree.parents.push(old.parents[entry]);
        tree.name_ids.push(old.name_ids[entry]);
        tree.inodes.push(old.inodes[entry]);
    }
    for parent in &mut tree.parents {
        *parent = moved[*parent as usize];
    }
    let mut details = old.details.clone();
    for dir in old.dirs.iter().filter(|dir| keep[dir.entry as usize]) {
        let children = dir.first as usize..(dir.first + dir.count) as usize;
        let count = keep[children.clone()].iter().filter(|&&k| k).count() as u32;
        // The children of all directories before this one have been counted already.
        let first = tree.dirs.last().map_or(1, |d: &Dir| d.first + d.count);
        details[old.inodes[dir.entry as usize] as usize] = tree.dirs.len() as u32;
        tree.dirs.push(Dir {
            entry: moved[dir.entry as usize],
            first,
            count,
        });
    }
    tree.marks = old.marks;
    tree.files = old.files;
    for file in &mut tree.files {
        file.entry = moved[file.entry as usize];
    }
    tree.attributes = old.attributes;
    tree.mtimes = old.mtimes;
    tree.atimes = old.atimes;
    tree.ctimes = old.ctimes;
    tree.details = details;
    tree.distinct = old.distinct;
    tree.rdevs = old.rdevs;
    tree.targets = old.targets;
    Ok(tree)
}
