//! Adding the tree of an image to that of a merge.

use redwarfs_format::metadata::{FileType, MetadataView, Xattr};
use redwarfs_format::{EntryIndex, Error as FormatError, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::LayerName;

use super::options::{Part, Whiteouts};
use super::tree::{Origin, Tree, join};
use crate::error::{Error, Result};

/// An entry of a directory of an image.
struct Entry {
    index: EntryIndex,
    inode: InodeNo,
    name: Vec<u8>,
    kind: FileType,
}

/// Adds the tree of part `number`. Its entries take the place of older ones with the same path.
pub(crate) fn add(
    tree: &mut Tree,
    number: u32,
    part: Part<'_>,
    whiteouts: Whiteouts,
) -> Result<()> {
    let image = part.image;
    let view = image.metadata();
    let place = tree.directory(part.at)?;
    tree.set_origin(place, Origin::Part(number, view.root_entry()));
    // An entry has one place in a tree.
    let mut budget = view.entry_count();
    let mut visited = vec![false; view.counts().directories as usize];
    let mut todo = vec![(image.root(), place, part.at.to_vec())];
    while let Some((inode, directory, path)) = todo.pop() {
        match visited.get_mut(inode.index()) {
            Some(visited) if !*visited => *visited = true,
            _ => {
                let what = format!("directory {inode} is in several places");
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
            marked: whiteouts != Whiteouts::Keep && overlay(image, inode, OPAQUE)? == Some(b'x'),
        };
        if layer.whiteouts != Whiteouts::Keep {
            layer.remove(tree, directory, inode, &entries)?;
        }
        for entry in &entries {
            if layer.is_mark(entry)? {
                continue;
            }
            let origin = Origin::Part(number, entry.index);
            let child = tree.put(directory, &entry.name, origin, entry.kind)?;
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

/// The first byte of an attribute of overlayfs, in any of its two namespaces; zero if it is empty.
fn overlay(image: &Image, inode: InodeNo, name: &[u8]) -> Result<Option<u8>> {
    let view = image.metadata();
    if view.is_legacy() || !view.has_xattrs() {
        return Ok(None);
    }
    let attributes = image.xattrs(inode)?;
    for space in [&b"trusted."[..], b"user."] {
        let found: Option<Xattr<'_>> = attributes.find(&[space, name].concat())?;
        if let Some(found) = found
            && found.size()? <= 1
        {
            let value = image.xattr_value(&found)?;
            return Ok(Some(value.first().copied().unwrap_or(0)));
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
    fn remove(&self, tree: &mut Tree, directory: u32, inode: InodeNo, own: &[Entry]) -> Result<()> {
        let marked = |entry: &Entry| LayerName::of(&entry.name) == LayerName::Opaque;
        if own.iter().any(marked) || overlay(self.image, inode, OPAQUE)? == Some(b'y') {
            tree.empty(directory);
            return Ok(());
        }
        for entry in own {
            match LayerName::of(&entry.name) {
                LayerName::Whiteout(b"") => {
                    return Err(Error::invalid("a whiteout has no name"));
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
                LayerName::Opaque => tree.set_opaque(directory),
                LayerName::Whiteout(name) => match tree.child(directory, name) {
                    Some(child) if tree.kind(child) == FileType::Directory => {
                        tree.set_opaque(child);
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
