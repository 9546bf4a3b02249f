//! Image to directory.

use std::os::fd::AsFd;
use std::path::Path;

use redwarfs_format::EntryIndex;
use redwarfs_format::metadata::FileType;
use redwarfs_reader::Image;

use crate::error::Result;
use crate::files::{DirCache, Files};
use crate::subtrees::Subtrees;
use crate::target::{self, Target};
use crate::tree::Tree;
use crate::{ExtractOptions, ExtractSummary, Progress, pipeline};

/// Extracts everything below the root of `image` into the existing directory `to`.
///
/// Existing directories are reused, everything else that is in the way is unlinked first. Names, modes,
/// owners, modification and access times, devices, fifos, sockets, symbolic and hard links and holes are
/// restored. `to` itself gets the attributes of the root if it is empty; a directory with other things in
/// it, which may well be everybody's, keeps its own. What an ordinary user may not set is reported once
/// through [`Progress::warn`]; set-id bits are set only on files that belong to the owner recorded in the
/// image.
///
/// # Errors
///
/// Unsafe names and inconsistent metadata are found before anything is written. Unreadable contents end
/// the extraction unless [`ExtractOptions::continue_on_error`] is set; errors of the target always do,
/// and so does a device that may not be created. Files that are not complete then are removed.
pub fn extract_to_directory(
    image: &Image,
    to: &Path,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let tree = Tree::scan(image.metadata(), options)?;
    progress.found(tree.matched());
    let target = Target::open(to)?;
    let empty = target.is_empty();
    let threads = options.writer_threads();
    let files = Files::new(&tree, &target, threads);
    let subtrees = Subtrees::new(&tree.dirs, threads);
    let work = Work {
        image,
        tree: &tree,
        target: &target,
        files: &files,
        options,
        progress,
    };
    let mut summary = ExtractSummary {
        matched: tree.matched(),
        ..ExtractSummary::default()
    };
    let outcome = pipeline::write_contents(image, &tree, &files, options, progress, || {
        work.create_entries(&subtrees, &mut summary)
    })?;
    summary.files = outcome.files;
    summary.bytes = outcome.bytes;
    summary.damaged = outcome.lost_names;
    summary.blocks = outcome.blocks;
    summary.block_bytes = outcome.block_bytes;
    summary.peak_block_bytes = outcome.peak;
    link(&tree, &files, &outcome.lost, &mut summary)?;
    work.finish_directories(&subtrees)?;
    if empty {
        target.set_root_attributes(&image.stat(image.root())?, progress)?;
    }
    Ok(summary)
}

/// What the making of entries counts, and the directories that a thread used last.
#[derive(Debug, Default)]
struct Making {
    last: DirCache,
    directories: u64,
    symlinks: u64,
    specials: u64,
    skipped: u64,
}

/// What all that work on directories need.
struct Work<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    target: &'a Target,
    files: &'a Files<'a>,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    /// Makes the directories and all that has no contents.
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
        let Some(dir) = self.tree.dirs.get(number) else {
            return Ok(());
        };
        let parent = self.files.dir(dir.parent, &mut making.last)?;
        let name = self.tree.metadata().entry_name(dir.entry)?;
        let mode = self.image.stat(dir.ino)?.mode;
        target::make_dir(parent.as_fd(), &name, mode).map_err(|e| {
            let shown = self.tree.shown(dir.parent, dir.entry);
            target::target("cannot create directory", shown, e)
        })?;
        making.directories += 1;
        self.create_specials(number, making)
    }

    /// Makes all that is neither a directory nor a regular file in a directory.
    fn create_specials(&self, number: usize, making: &mut Making) -> Result<()> {
        let (tree, metadata) = (self.tree, self.tree.metadata());
        // Fits: directories are numbered with 32 bits.
        let Some((dir, number)) = tree.dirs.get(number).zip(u32::try_from(number).ok()) else {
            return Ok(());
        };
        let mut fd = None;
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
            let name = metadata.entry_name(entry)?;
            let parent = match &fd {
                Some(fd) => fd,
                None => fd.insert(self.files.dir(number, &mut making.last)?),
            };
            let shown = || tree.shown(number, entry);
            let stat = self.image.stat(ino)?;
            if kind == FileType::Symlink {
                let to = self.image.read_link(ino)?;
                target::make_symlink(parent.as_fd(), &name, &to)
                    .map_err(|e| target::target("cannot create symbolic link", shown(), e))?;
                making.symlinks += 1;
            } else {
                let what = match kind {
                    FileType::Fifo => "cannot create fifo",
                    FileType::Socket => "cannot create socket",
                    _ => "cannot create device",
                };
                target::make_node(parent.as_fd(), &name, &stat)
                    .map_err(|e| target::target(what, shown(), e))?;
                making.specials += 1;
            }
            self.target
                .set_attributes_at(parent.as_fd(), &name, &stat, &shown, self.progress)?;
        }
        Ok(())
    }

    /// Sets the attributes of directories, the innermost first: a parent may become impassable, and its
    /// times must not change any more.
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
        let parent = self.files.dir(dir.parent, last)?;
        let name = self.tree.metadata().entry_name(dir.entry)?;
        let stat = self.image.stat(dir.ino)?;
        let shown = || self.tree.shown(dir.parent, dir.entry);
        self.target
            .set_attributes_at(parent.as_fd(), &name, &stat, &shown, self.progress)
    }
}

/// Gives files their further names.
fn link(
    tree: &Tree<'_>,
    files: &Files<'_>,
    lost: &[bool],
    summary: &mut ExtractSummary,
) -> Result<()> {
    let metadata = tree.metadata();
    let mut from_dir = DirCache::default();
    let mut to_dir = DirCache::default();
    // Links are sorted by file and files by content, so the lost ones are found in one pass.
    let mut content = 0_u32;
    for link in &tree.links {
        while !tree.files_of(content).contains(&link.file) && content < tree.content_count() {
            content += 1;
        }
        if lost.get(content as usize).copied().unwrap_or(false) {
            continue;
        }
        let Some(file) = tree.file(link.file) else {
            continue;
        };
        let from = files.dir(file.dir, &mut from_dir)?;
        let to = files.dir(link.dir, &mut to_dir)?;
        let from_name = metadata.entry_name(file.entry)?;
        let name = metadata.entry_name(link.entry)?;
        target::make_hard_link(from.as_fd(), &from_name, to.as_fd(), &name).map_err(|e| {
            target::target(
                "cannot create hard link",
                tree.shown(link.dir, link.entry),
                e,
            )
        })?;
        summary.hard_links += 1;
    }
    Ok(())
}
