//! Listing the source: [`Source`](crate::Source) -> [`Tree`].
//!
//! One thread puts the tree together, depth first and by name, so that the same source always gives the
//! same tree. Other threads list directories before their turn ([`ahead`]).

mod ahead;

use std::collections::HashMap;

use self::ahead::Ahead;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::hook::{Decision, HookEntry};
use crate::ordered::thread;
use crate::progress::add;
use crate::source::{DirItem, FileType, Meta, join};
use crate::spill::log_spilled;
use crate::tree::{Dir, File, Tree, without_empty_directories};

/// The format's own limit on the stored length of a name.
const MAX_NAME: usize = 512;
/// The format's own limit on the stored length of a symlink target.
const MAX_TARGET: usize = 4096;

/// Sizes of directories that are listed ahead, in bytes. Listing a smaller one takes less time
/// than handing it over. A larger one has more entries than [`ahead`] takes.
const LISTED_AHEAD: std::ops::RangeInclusive<u64> = 4097..=96 << 10;

/// Lists the whole source.
pub(crate) fn list(context: Context<'_>) -> Result<Tree> {
    let options = context.options;
    let lister = |ahead| Lister { context, ahead };
    let mut tree = match &Ahead::new(context.source, options, context.stop) {
        None => lister(None).run()?,
        Some(ahead) => std::thread::scope(|scope| {
            let _ending = ahead.ending();
            for _ in 0..ahead.threads() {
                thread(scope, "scan", || ahead.run(options))?;
            }
            lister(Some(ahead)).run()
        })?,
    };
    spill_if_needed(context, &mut tree)?;
    Ok(tree)
}

/// Moves the inodes to a temporary file if the memory limit could be too low otherwise.
fn spill_if_needed(context: Context<'_>, tree: &mut Tree) -> Result<()> {
    let files = tree.files.len() as u64;
    let Some(directory) = &context.options.spool else {
        return Ok(());
    };
    if !context.watch.could_be_too_low(tree.load(), files) {
        return Ok(());
    }
    let moved = tree.spill(directory, context.stop);
    context.check_stop()?;
    log_spilled("inodes", directory, &moved, context.progress);
    Ok(())
}

/// What listing needs to know.
struct Lister<'a> {
    context: Context<'a>,
    /// If directories are listed at the same time.
    ahead: Option<&'a Ahead<'a>>,
}

impl Lister<'_> {
    fn run(&self) -> Result<Tree> {
        let (context, options) = (self.context, self.context.options);
        let root = context.source.root().map_err(Error::Source)?;
        if root.kind != FileType::Directory {
            return Err(Error::Source(std::io::ErrorKind::NotADirectory.into()));
        }
        let mut tree = Tree::default();
        let hook = options.hook.as_ref();
        let beside = || (context.source.memory()).saturating_add(hook.map_or(0, |h| h.memory()));
        tree.beside = beside();
        let mut links: HashMap<(u64, u64), u32> = HashMap::new();
        let inode = tree.add_inode(&root, options)?;
        tree.add_entry(0, 0, inode)?;
        add(&context.counters().dirs, 1);
        self.extended(&mut tree, inode, &root, &|| Vec::new())?;

        // Directories to list, and the parents of the one being listed.
        let mut pending = vec![Listed {
            entry: 0,
            identity: root.identity,
            ahead: false,
        }];
        let mut above: Vec<Listed> = Vec::new();
        while let Some(directory) = pending.pop() {
            context.check_stop()?;
            let entry = directory.entry;
            let parent = tree.parents[entry as usize];
            while above.last().is_some_and(|last| last.entry != parent) {
                above.pop();
            }
            let path = tree.path(entry);
            context.counters().set_current(&path);
            tracing::trace!("listing '{}'", context.source.display_path(&path));
            let first = tree.inodes.len() as u32;
            // File systems without inode numbers show zeros.
            let known = directory.identity.1 != 0;
            let mut below = Vec::new();
            if known && above.iter().any(|up| up.identity == directory.identity) {
                // It may have been listed anyway.
                self.ahead.and_then(|ahead| ahead.take(pending.len()));
                context.problem(&path, "directory contains itself, storing it empty");
            } else {
                if let Some(items) = self.items(&tree, pending.len(), &path)? {
                    below = self.add(&mut tree, entry, &path, items, &mut links)?;
                }
                context.watch.check_listing(tree.load())?;
            }
            above.push(directory);
            let end = tree.inodes.len() as u32;
            let number = tree.dirs.len() as u32;
            tree.dirs.push(Dir {
                entry,
                first,
                count: end - first,
            });
            tree.set_detail(tree.inodes.at(entry), number);
            pending.extend(below.into_iter().rev());
            self.look_ahead(&tree, &mut pending);
        }
        context.source.all_listed();
        // A source may have handed over what it held.
        tree.beside = beside();
        tree.names.seal();
        tree.targets.seal();
        tree.extended.seal();
        if options.remove_empty_dirs {
            tree = without_empty_directories(tree);
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
        let source = self.context.source;
        let load = tree.load();
        let room = self.context.watch.room(load);
        let few = |entries: usize| (entries as u64) < room && !self.context.stopped();
        let listing = match self.ahead {
            Some(ahead) => match ahead.take(place) {
                Some(Ok(items)) if items.len() as u64 > room => {
                    return Err(self.context.watch.too_many(load));
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
                self.context.check_stop()?;
                Err(self.context.watch.too_many(load))
            }
            Err(error) => {
                if let Some(failure) = source.failure() {
                    return Err(Error::Source(failure));
                }
                let what = format!("cannot read directory, storing it empty: {error}");
                self.context.problem(path, &what);
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
        let (context, options) = (self.context, self.context.options);
        let counters = context.counters();
        let by_keys = options.uses_keys();
        let numbered = context.source.numbers_files();
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
                context.problem(&full(), "invalid or repeated name, leaving the entry out");
                continue;
            }
            let meta = match item.meta {
                Ok(meta) => meta,
                Err(error) => {
                    context.problem(
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
                        context.problem(&full(), "symlink target cannot be stored, leaving it out");
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
                tree.add_entry(parent, name, tree.file_inode(file))?;
                tree.files[file as usize].add_link()?;
                tree.marks.add(file, decision)?;
                add(&counters.hardlinks, 1);
                previous = Some(item.name);
                continue;
            }
            let inode = tree.add_inode(&meta, options)?;
            let entry = tree.add_entry(parent, name, inode)?;
            self.extended(tree, inode, &meta, &full)?;
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
                    let target = tree.targets.intern(&target)?;
                    tree.set_detail(inode, target);
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
                    tree.set_detail(inode, file);
                    tree.file_bytes = tree.file_bytes.saturating_add(meta.size);
                    tree.files
                        .push(File::new(meta.size, allocated < meta.size, entry));
                    if numbered {
                        let number = u32::try_from(meta.identity.1);
                        let number = number.map_err(|_| Error::Limit("too many files".into()))?;
                        tree.numbers.push(number);
                    }
                    tree.marks.add(file, decision)?;
                    if linked {
                        links.insert(meta.identity, file);
                    }
                    add(&counters.files_found, 1);
                    add(&counters.original_size, meta.size);
                    add(&counters.allocated_size, allocated);
                }
                FileType::CharDevice | FileType::BlockDevice => {
                    tree.set_detail(inode, tree.rdevs.len() as u32);
                    tree.rdevs.push(meta.rdev);
                    add(&counters.devices, 1);
                }
                FileType::Fifo | FileType::Socket => add(&counters.specials, 1),
            }
            previous = Some(item.name);
        }
        Ok(below)
    }

    /// Adds extended attributes, birth time and flags of an inode.
    fn extended(
        &self,
        tree: &mut Tree,
        inode: u32,
        meta: &Meta,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Result<()> {
        let (context, counters) = (self.context, self.context.counters());
        let mode = tree.attributes(inode).mode;
        let added = tree.extended.add(
            inode,
            &meta.extended,
            mode,
            meta.mtime,
            context.options,
            &mut |what| context.problem(&path(), what),
        )?;
        for (counter, more) in [
            (&counters.extended_attributes, u64::from(added.any)),
            (&counters.access_lists, u64::from(added.acl)),
            (&counters.file_capabilities, u64::from(added.capability)),
            (&counters.extended_left_out, added.left_out),
        ] {
            if more > 0 {
                add(counter, more);
            }
        }
        Ok(())
    }
}

/// A directory that was met.
struct Listed {
    entry: u32,
    identity: (u64, u64),
    /// It was asked to be listed ahead, or must not.
    ahead: bool,
}
