//! Adding the tree of an image to that of a merge.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::metadata::{FileType, MetadataView, Xattr};
use redwarfs_format::{EntryIndex, Error as FormatError, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::LayerName;

use super::options::{Part, Whiteouts};
use super::tree::{self, Origin, Space, Tree, join};
use crate::error::{Error, Result};

/// An entry of a directory of an image.
struct Entry {
    index: EntryIndex,
    inode: InodeNo,
    name: Vec<u8>,
    kind: FileType,
}

/// How the tree of a part is added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    /// What whiteouts of the part mean.
    pub(crate) whiteouts: Whiteouts,
    /// The result is a layer for overlayfs: a directory over another entry hides what layers below it
    /// have there, as that entry did.
    pub(crate) layer: bool,
}

/// Adds the tree of part `number`. Its entries take the place of older ones with the same path.
pub(crate) fn add(
    tree: &mut Tree,
    number: u32,
    part: Part<'_>,
    how: How,
    stop: &AtomicBool,
) -> Result<()> {
    let whiteouts = how.whiteouts;
    let image = part.image;
    let view = image.metadata();
    let place = tree.directory(part.at)?;
    tree.set_origin(place, Origin::Part(number, view.root_entry()));
    // An entry has one place in a tree.
    let mut budget = view.entry_count();
    let mut visited = vec![false; view.counts().directories as usize];
    let mut todo = vec![(image.root(), place, part.at.to_vec())];
    while let Some((inode, directory, path)) = todo.pop() {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        match visited.get_mut(inode.index()) {
            Some(visited) if !*visited => *visited = true,
            _ => {
                let path = String::from_utf8_lossy(&path);
                let what = format!("directory {inode} is in several places, one is '/{path}'");
                return Err(FormatError::corrupt(what).into());
            }
        }
        let count = image.read_dir(inode)?.entry_count();
        budget = budget
            .checked_sub(count)
            .ok_or_else(|| FormatError::corrupt("directories have more entries than there are"))?;
        let entries = entries(image, view, inode)?;
        let layer = Layer {
            image,
            whiteouts,
            marked: whiteouts != Whiteouts::Keep
                && overlay(image, inode, OPAQUE)?.is_some_and(|(value, _)| value == b'x'),
        };
        if layer.whiteouts != Whiteouts::Keep {
            layer.remove(tree, directory, inode, &path, &entries)?;
        }
        for entry in &entries {
            if layer.is_mark(entry)? {
                continue;
            }
            if whiteouts == Whiteouts::Overlay
                && entry.kind == FileType::Regular
                && layer.is_overlay_whiteout(entry)?
            {
                // Its own form counts only while its directory has a mark, which another layer can take.
                let kind = FileType::CharDevice;
                tree.put(directory, &entry.name, Origin::Whiteout, kind)?;
                continue;
            }
            let covers = how.layer
                && entry.kind == FileType::Directory
                && tree
                    .child(directory, &entry.name)
                    .is_some_and(|old| tree.kind(old) != FileType::Directory);
            let origin = Origin::Part(number, entry.index);
            let child = tree.put(directory, &entry.name, origin, entry.kind)?;
            if covers {
                tree.set_opaque(child, Space::Trusted);
            }
            if entry.kind == FileType::Directory {
                todo.push((entry.inode, child, join(&path, &entry.name)?));
            }
        }
        if layer.whiteouts == Whiteouts::Overlay {
            layer.mark(tree, directory, &entries)?;
        }
    }
    Ok(())
}

fn entries(image: &Image, view: &MetadataView, directory: InodeNo) -> Result<Vec<Entry>> {
    image
        .read_dir(directory)?
        .map(|entry| {
            let entry = entry?;
            let kind = view.entry_stat(entry.index)?.file_type();
            Ok(Entry {
                index: entry.index,
                inode: entry.inode,
                name: entry.name.into_owned(),
                kind: kind.ok_or_else(|| FormatError::corrupt("an inode of an unknown type"))?,
            })
        })
        .collect()
}

const OPAQUE: &[u8] = b"overlay.opaque";
const WHITEOUT: &[u8] = b"overlay.whiteout";

/// The first byte of an attribute of overlayfs, zero if it is empty, and the namespace where it is.
fn overlay(image: &Image, inode: InodeNo, name: &[u8]) -> Result<Option<(u8, Space)>> {
    let view = image.metadata();
    if view.is_legacy() || !view.has_xattrs() {
        return Ok(None);
    }
    let attributes = image.xattrs(inode)?;
    for (prefix, space) in [(&b"trusted."[..], Space::Trusted), (b"user.", Space::User)] {
        let found: Option<Xattr<'_>> = attributes.find(&[prefix, name].concat())?;
        if let Some(found) = found
            && found.size()? <= 1
        {
            let value = image.xattr_value(&found)?;
            return Ok(Some((value.first().copied().unwrap_or(0), space)));
        }
    }
    Ok(None)
}

/// What a layer says about the layers before it, in one directory.
struct Layer<'a> {
    image: &'a Image,
    whiteouts: Whiteouts,
    /// Empty files of the directory may be whiteouts.
    marked: bool,
}

impl Layer<'_> {
    /// Whether an entry is a whiteout of overlayfs.
    fn is_overlay_whiteout(&self, entry: &Entry) -> Result<bool> {
        let view = self.image.metadata();
        Ok(match entry.kind {
            FileType::CharDevice => view.entry_stat(entry.index)?.rdev == 0,
            FileType::Regular if self.marked => {
                view.entry_stat(entry.index)?.size == 0
                    && overlay(self.image, entry.inode, WHITEOUT)?.is_some()
            }
            _ => false,
        })
    }

    /// Whether an entry has done its work in [`remove`](Self::remove) and is left out.
    fn is_mark(&self, entry: &Entry) -> Result<bool> {
        Ok(match self.whiteouts {
            Whiteouts::Keep => false,
            Whiteouts::Apply => {
                LayerName::of(&entry.name) != LayerName::Entry || self.is_overlay_whiteout(entry)?
            }
            Whiteouts::Overlay => LayerName::of(&entry.name) != LayerName::Entry,
        })
    }

    /// Removes the older entries that the layer hides.
    fn remove(
        &self,
        tree: &mut Tree,
        directory: u32,
        inode: InodeNo,
        path: &[u8],
        own: &[Entry],
    ) -> Result<()> {
        let named = |entry: &Entry| LayerName::of(&entry.name) == LayerName::Opaque;
        let marked = overlay(self.image, inode, OPAQUE)?.filter(|&(value, _)| value == b'y');
        if let Some((_, space)) = marked
            && self.whiteouts == Whiteouts::Overlay
        {
            // A later layer can bring other attributes of the directory.
            tree.set_opaque(directory, space);
        }
        if marked.is_some() || own.iter().any(named) {
            tree.empty(directory);
            return Ok(());
        }
        for entry in own {
            match LayerName::of(&entry.name) {
                LayerName::Whiteout(b"") => {
                    return Err(tree::refuse(
                        &join(path, &entry.name)?,
                        "a whiteout has no name",
                    ));
                }
                LayerName::Whiteout(name) => {
                    tree.take(directory, name);
                }
                _ if self.is_overlay_whiteout(entry)? => {
                    tree.take(directory, &entry.name);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Marks what the layer hides for overlayfs. An entry of the layer itself counts more than its
    /// whiteout; a directory becomes opaque then.
    fn mark(&self, tree: &mut Tree, directory: u32, own: &[Entry]) -> Result<()> {
        for entry in own {
            match LayerName::of(&entry.name) {
                LayerName::Opaque => tree.set_opaque(directory, Space::Trusted),
                LayerName::Whiteout(name) => match tree.child(directory, name) {
                    Some(child) if tree.kind(child) == FileType::Directory => {
                        tree.set_opaque(child, Space::Trusted);
                    }
                    Some(_) => {}
                    None => {
                        let kind = FileType::CharDevice;
                        tree.put(directory, name, Origin::Whiteout, kind)?;
                    }
                },
                LayerName::Entry | LayerName::Internal => {}
            }
        }
        Ok(())
    }
}
