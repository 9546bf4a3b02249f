//! Extraction to a directory.

use std::path::Path;

use redwarfs_format::metadata::FileType;
use redwarfs_format::{EntryIndex, InodeNo};
use redwarfs_reader::Image;

use crate::error::Result;
use crate::files::{DirCache, Files};
use crate::flags::Flags;
use crate::losses::Losses;
use crate::os::{self, Target};
use crate::subtrees::Subtrees;
use crate::tree::Tree;
use crate::xattrs::Stored;
use crate::{ExtractOptions, ExtractSummary, Progress, pipeline};

/// Extracts everything below the root of `image` into the existing directory `to`.
///
/// Existing directories are reused, and other existing entries are unlinked first. Names, modes,
/// owners, modification and access times, extended attributes, file flags, devices, FIFOs, sockets, symbolic
/// and hard links, and holes are restored. If `to` is empty, it gets the attributes of the root. Otherwise it keeps its own,
/// because other users may use it. Attributes that an ordinary user may not set are reported once
/// through [`Progress::warn`]. Set-id bits are set only on files that have the owner of the image.
///
/// If the file system cannot make a hard link, the name becomes a copy, which shares its blocks with
/// the file if possible. Names that the file system treats as equal are never merged: the first one is
/// extracted.
///
/// # Errors
///
/// Unsafe names and inconsistent metadata are found before anything is written. Unreadable contents,
/// and entries that the target cannot hold, end the extraction unless
/// [`ExtractOptions::continue_on_error`] is set. A full target and a lack of descriptors always end it.
/// Then incomplete files are removed.
pub fn extract_to_directory(
    image: &Image,
    to: &Path,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let tree = Tree::scan(image.metadata(), options)?;
    progress.found(tree.matched());
    let target = Target::open(to, Stored::new(image, options))?.with_births(image);
    let empty = target.is_empty();
    let threads = options.writer_threads();
    let losses = Losses::new(options.continue_on_error, progress);
    let flags = Flags::new(image, options);
    let files = Files::new(&tree, &target, &losses, &flags, threads)?;
    let subtrees = Subtrees::new(&tree.dirs, threads);
    let work = Work {
        image,
        tree: &tree,
        target: &target,
        files: &files,
        losses: &losses,
        flags: &flags,
        options,
        progress,
    };
    let mut summary = ExtractSummary {
        matched: tree.matched(),
        skipped: tree.skipped_links(),
        ..ExtractSummary::default()
    };
    let common = pipeline::Common {
        image,
        tree: &tree,
        files: &files,
        losses: &losses,
        options,
        progress,
    };
    let outcome =
        pipeline::write_contents(&common, || work.create_entries(&subtrees, &mut summary))?;
    summary.files = outcome.files;
    summary.bytes = outcome.bytes;
    summary.blocks = outcome.blocks;
    summary.block_bytes = outcome.block_bytes;
    summary.peak_block_bytes = outcome.peak;
    let copies = work.link(&mut summary)?;
    work.finish_directories(&subtrees)?;
    if empty {
        let set = target.set_root_attributes(&image.stat(image.root())?, progress);
        losses.settle_attributes(set)?;
    }
    work.set_flags(&copies, empty)?;
    summary.unset = target.report(progress);
    if let Some(reason) = os::NO_BIRTH_TIMES
        && image.metadata().options().has_btime
    {
        let entries = summary.directories + summary.files + summary.symlinks + summary.specials;
        let entries = entries + u64::from(empty);
        summary.unset += entries;
        progress.warn(&format!(
            "cannot set birth times: {reason}: {entries} entries"
        ));
    }
    summary.damaged = losses.names();
    Ok(summary)
}

/// Longest chain of symbolic links that is followed.
const MAX_LINKS: u32 = 40;

/// The counts of created entries, and the directories that a thread used last.
#[derive(Debug, Default)]
struct Making {
    last: DirCache,
    directories: u64,
    symlinks: u64,
    specials: u64,
    skipped: u64,
}

/// The data that all threads share that work on directories.
struct Work<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    target: &'a Target,
    files: &'a Files<'a>,
    losses: &'a Losses<'a>,
    flags: &'a Flags,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    /// Creates the directories and all entries without contents.
    fn create_entries(&self, subtrees: &Subtrees, summary: &mut ExtractSummary) -> Result<()> {
        let mut first = Making::default();
        self.create_specials(0, &mut first)?;
        for &number in subtrees.upper() {
            self.create_directory(number, &mut first)?;
        }
        let mut all = subtrees.each(|making: &mut Making, portion| {
            for number in portion {
                self.create_directory(number, making)?;
            }
            Ok(())
        })?;
        all.push(first);
        for making in all {
            summary.directories += making.directories;
            summary.symlinks += making.symlinks;
            summary.specials += making.specials;
            summary.skipped += making.skipped;
        }
        Ok(())
    }

    fn create_directory(&self, number: usize, making: &mut Making) -> Result<()> {
        // Fits: directories are numbered with 32 bits.
        let Some((dir, number_32)) = self.tree.dirs.get(number).zip(u32::try_from(number).ok())
        else {
            return Ok(());
        };
        if self.files.is_lost_dir(dir.parent) {
            self.losses.count(1);
            self.files.lose_dir(number_32);
            return self.create_specials(number, making);
        }
        let mode = self.image.stat(dir.ino)?.mode;
        let what = "cannot create the directory and what is below it";
        let last = &mut making.last;
        let made = self.files.at(dir.parent, dir.entry, last, what, |place| {
            place.make_dir(mode)
        });
        match self.losses.settle(made)? {
            Some(()) => making.directories += 1,
            None => self.files.lose_dir(number_32),
        }
        self.create_specials(number, making)
    }

    /// Creates all entries of a directory that are neither directories nor regular files.
    fn create_specials(&self, number: usize, making: &mut Making) -> Result<()> {
        let (tree, metadata) = (self.tree, self.tree.metadata());
        // Fits: directories are numbered with 32 bits.
        let Some((dir, number)) = tree.dirs.get(number).zip(u32::try_from(number).ok()) else {
            return Ok(());
        };
        for index in metadata.entries(dir.ino)? {
            let entry = EntryIndex(index);
            let ino = metadata.entry_inode(entry)?;
            let kind = metadata.file_type(ino)?;
            if matches!(kind, FileType::Regular | FileType::Directory) || !tree.is_selected(entry) {
                continue;
            }
            if self.options.skips(kind) {
                making.skipped += 1;
                continue;
            }
            if self.files.is_lost_dir(number) {
                self.losses.count(1);
                continue;
            }
            let made = self.create_special(number, entry, ino, kind, &mut making.last);
            match self.losses.settle(made)? {
                None => {}
                Some(()) if kind == FileType::Symlink => making.symlinks += 1,
                Some(()) => making.specials += 1,
            }
        }
        Ok(())
    }

    fn create_special(
        &self,
        dir: u32,
        entry: EntryIndex,
        ino: InodeNo,
        kind: FileType,
        last: &mut DirCache,
    ) -> Result<()> {
        let stat = self.image.stat(ino)?;
        if kind == FileType::Symlink {
            let to = self.image.read_link(ino)?;
            let what = "cannot create symbolic link";
            self.files.at(dir, entry, last, what, |place| {
                place.make_symlink(&to, &|| self.leads_to_directory(dir, &to))
            })?;
        } else {
            let what = match kind {
                FileType::Fifo => "cannot create fifo",
                FileType::Socket => "cannot create socket",
                _ => "cannot create device",
            };
            self.files
                .at(dir, entry, last, what, |place| place.make_node(&stat))?;
        }
        let parent = self.files.dir(dir, last)?;
        let name = self.tree.metadata().entry_name(entry)?;
        let shown = || self.tree.shown(dir, entry);
        let set = self
            .target
            .set_attributes_at(&parent, &name, &stat, &shown, self.progress);
        self.losses.settle_attributes(set)
    }

    /// Whether the target of a symbolic link in a directory is a directory of the image.
    fn leads_to_directory(&self, dir: u32, to: &[u8]) -> bool {
        let follow = || -> Result<bool> {
            let mut path = self.tree.dir_path(dir)?;
            let mut to = to.to_vec();
            for _ in 0..MAX_LINKS {
                join(&mut path, &to);
                let Some(ino) = self.image.find_path(&path)? else {
                    break;
                };
                match self.tree.metadata().file_type(ino)? {
                    FileType::Directory => return Ok(true),
                    FileType::Symlink => to = self.image.read_link(ino)?,
                    _ => break,
                }
                join(&mut path, b"..");
            }
            Ok(false)
        };
        follow().unwrap_or(false)
    }

    /// Sets the attributes of directories, the innermost first: with its final mode, a parent may be
    /// closed to the extraction, and its times must not change afterwards.
    fn finish_directories(&self, subtrees: &Subtrees) -> Result<()> {
        subtrees.each(|last: &mut DirCache, portion| {
            portion
                .rev()
                .try_for_each(|number| self.finish_directory(number, last))
        })?;
        let mut last = DirCache::default();
        subtrees
            .upper()
            .iter()
            .rev()
            .try_for_each(|&number| self.finish_directory(number, &mut last))
    }

    fn finish_directory(&self, number: usize, last: &mut DirCache) -> Result<()> {
        let Some(dir) = self.tree.dirs.get(number) else {
            return Ok(());
        };
        if u32::try_from(number).is_ok_and(|number| self.files.is_lost_dir(number)) {
            return Ok(());
        }
        let parent = self.files.dir(dir.parent, last)?;
        let name = self.tree.metadata().entry_name(dir.entry)?;
        let stat = self.image.stat(dir.ino)?;
        let shown = || self.tree.shown(dir.parent, dir.entry);
        let set = self
            .target
            .set_attributes_at(&parent, &name, &stat, &shown, self.progress);
        self.losses.settle_attributes(set)
    }

    /// Sets file flags, when there is nothing else to do: an immutable file takes no further name, and an
    /// immutable directory no further entry. `copies` are further names that are files of their own.
    fn set_flags(&self, copies: &[(InodeNo, (u32, EntryIndex))], root: bool) -> Result<()> {
        if !self.flags.is_any() {
            return Ok(());
        }
        let mut last = DirCache::default();
        let files = (0_u32..).zip(&self.tree.files);
        let files = files.filter(|&(number, _)| self.files.is_created(number));
        let files = files.filter_map(|(number, file)| Some((file.ino, self.files.place(number)?)));
        for (ino, (dir, entry)) in files.chain(copies.iter().copied()) {
            self.set_flags_of(ino, dir, entry, false, &mut last)?;
        }
        for (number, dir) in (0_u32..).zip(&self.tree.dirs).skip(1) {
            if !self.files.is_lost_dir(number) {
                self.set_flags_of(dir.ino, dir.parent, dir.entry, true, &mut last)?;
            }
        }
        let flags = self.flags.of(InodeNo::ROOT)?;
        if root && flags != 0 {
            let set = self.target.set_root_flags(flags, self.progress);
            self.losses.settle_attributes(set)?;
        }
        Ok(())
    }

    fn set_flags_of(
        &self,
        ino: InodeNo,
        dir: u32,
        entry: EntryIndex,
        is_dir: bool,
        last: &mut DirCache,
    ) -> Result<()> {
        let flags = self.flags.of(ino)?;
        if flags == 0 {
            return Ok(());
        }
        let parent = self.files.dir(dir, last)?;
        let name = self.tree.metadata().entry_name(entry)?;
        let shown = || self.tree.shown(dir, entry);
        let set = self
            .target
            .set_flags_at(&parent, &name, is_dir, flags, &shown, self.progress);
        self.losses.settle_attributes(set)
    }

    /// Gives files their further names. Returns those that are copies, with the inode.
    fn link(&self, summary: &mut ExtractSummary) -> Result<Vec<(InodeNo, (u32, EntryIndex))>> {
        let mut copies = Vec::new();
        let mut dirs = (DirCache::default(), DirCache::default());
        // Sorted by file.
        for links in self.tree.links.chunk_by(|a, b| a.file == b.file) {
            let Some(number) = links.first().map(|link| link.file) else {
                continue;
            };
            let (Some(file), Some(mut from)) = (self.tree.file(number), self.files.place(number))
            else {
                continue;
            };
            for link in self.files.further_names(number) {
                if self.files.is_lost_dir(link.dir) {
                    self.losses.count(1);
                    continue;
                }
                let stat = || Ok(self.tree.stat(file)?);
                let made = self.files.link(from, link, &mut dirs, &stat, self.progress);
                let Some(copied) = self.losses.settle(made)? else {
                    continue;
                };
                if copied {
                    from = (link.dir, link.entry);
                    summary.copies += 1;
                    copies.extend(self.flags.is_any().then_some((file.ino, from)));
                } else {
                    summary.hard_links += 1;
                }
            }
        }
        Ok(copies)
    }
}

/// Follows a path from a directory, with `..` for the directory above. What is above the root is the root.
fn join(path: &mut Vec<u8>, to: &[u8]) {
    if to.starts_with(b"/") {
        path.clear();
    }
    for name in to.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => path.truncate(path.iter().rposition(|&b| b == b'/').unwrap_or(0)),
            name => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn paths_are_followed() {
        for (from, to, path) in [
            ("", "a", "a"),
            ("a/b", "../c", "a/c"),
            ("a", "../../..", ""),
            ("a", "/x//y/.", "x/y"),
            ("a/b", ".", "a/b"),
        ] {
            let mut found = from.as_bytes().to_vec();
            join(&mut found, to.as_bytes());
            assert_eq!(found, path.as_bytes(), "{from} {to}");
        }
    }
}
