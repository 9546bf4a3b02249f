//! Image to directory.

use std::os::fd::AsFd;
use std::path::Path;

use redwarfs_format::EntryIndex;
use redwarfs_format::metadata::FileType;
use redwarfs_reader::Image;

use crate::error::{Result, display_path};
use crate::files::{DirCache, Files};
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
    let files = Files::new(&tree, &target);
    let mut summary = ExtractSummary {
        matched: tree.matched(),
        ..ExtractSummary::default()
    };
    create_entries(
        image,
        &tree,
        &target,
        &files,
        options,
        progress,
        &mut summary,
    )?;
    let outcome = pipeline::write_contents(image, &tree, &files, options, progress)?;
    summary.files = outcome.files;
    summary.bytes = outcome.bytes;
    summary.damaged = outcome.lost_names;
    summary.blocks = outcome.blocks;
    summary.peak_block_bytes = outcome.peak;
    link(&tree, &files, &outcome.lost, &mut summary)?;
    finish_directories(image, &tree, &target, &files, progress)?;
    if empty {
        target.set_root_attributes(&image.stat(image.root())?, progress)?;
    }
    Ok(summary)
}

/// Makes the directories and all that has no contents.
fn create_entries(
    image: &Image,
    tree: &Tree<'_>,
    target: &Target,
    files: &Files<'_>,
    options: &ExtractOptions,
    progress: &dyn Progress,
    summary: &mut ExtractSummary,
) -> Result<()> {
    let metadata = tree.metadata();
    let mut last = DirCache::default();
    for (number, dir) in (0_u32..).zip(&tree.dirs) {
        if number > 0 {
            let parent = files.dir(dir.parent, &mut last)?;
            let name = metadata.entry_name(dir.entry)?;
            target::make_dir(parent.as_fd(), &name).map_err(|e| {
                target::target(
                    "cannot create directory",
                    tree.shown(dir.parent, dir.entry),
                    e,
                )
            })?;
            summary.directories += 1;
        }
        let mut fd = None;
        for index in metadata.entries(dir.ino)? {
            let entry = EntryIndex(index);
            let ino = metadata.entry_inode(entry)?;
            let kind = metadata.file_type(ino)?;
            if matches!(kind, FileType::Regular | FileType::Directory) || !tree.is_selected(entry) {
                continue;
            }
            if options.skips(kind) {
                summary.skipped += 1;
                continue;
            }
            let name = metadata.entry_name(entry)?;
            let parent = match &fd {
                Some(fd) => fd,
                None => fd.insert(files.dir(number, &mut last)?),
            };
            let shown = || tree.shown(number, entry);
            let stat = image.stat(ino)?;
            if kind == FileType::Symlink {
                let to = image.read_link(ino)?;
                target::make_symlink(parent.as_fd(), &name, &to)
                    .map_err(|e| target::target("cannot create symbolic link", shown(), e))?;
                summary.symlinks += 1;
            } else {
                let what = match kind {
                    FileType::Fifo => "cannot create fifo",
                    FileType::Socket => "cannot create socket",
                    _ => "cannot create device",
                };
                target::make_node(parent.as_fd(), &name, &stat)
                    .map_err(|e| target::target(what, shown(), e))?;
                summary.specials += 1;
            }
            target.set_attributes_at(parent.as_fd(), &name, &stat, &shown, progress)?;
        }
    }
    Ok(())
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

/// Sets the attributes of directories, the innermost first: a parent may become impassable, and its
/// times must not change any more.
fn finish_directories(
    image: &Image,
    tree: &Tree<'_>,
    target: &Target,
    files: &Files<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let mut last = DirCache::default();
    for dir in tree.dirs.iter().skip(1).rev() {
        let parent = files.dir(dir.parent, &mut last)?;
        let name = tree.metadata().entry_name(dir.entry)?;
        let shown = || {
            tree.path(dir.parent, dir.entry)
                .map_or_else(|_| format!("entry {}", dir.entry), |p| display_path(&p))
        };
        target.set_attributes_at(
            parent.as_fd(),
            &name,
            &image.stat(dir.ino)?,
            &shown,
            progress,
        )?;
    }
    Ok(())
}
