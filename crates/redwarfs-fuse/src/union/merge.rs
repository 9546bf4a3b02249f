//! What a directory of a union has.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::sync::Arc;

use redwarfs_format::Result;
use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::FileType;

use crate::image_state::ImageState;
use crate::ops::listing;
use crate::options::Whiteouts;

/// Begins the names of whiteouts in layers of containers.
const OCI: &[u8] = b".wh.";
/// Makes a directory of such a layer opaque.
const OCI_OPAQUE: &[u8] = b".wh..wh..opq";

/// A directory of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// Its place, from the uppermost one on.
    pub(super) layer: usize,
    pub(super) inode: InodeNo,
}

/// An entry of a directory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    /// The uppermost layer that has it.
    pub(super) layer: usize,
    pub(super) inode: InodeNo,
    pub(super) index: EntryIndex,
    /// Its type, as in a mode.
    pub(super) mode: u32,
    /// If it is a directory: what it consists of.
    pub(super) parts: Option<Arc<[Part]>>,
    /// A file whose data is elsewhere (`overlay.metacopy`).
    pub(super) is_foreign: bool,
}

/// A name that some layer has, while the layers below it are looked at.
struct Found {
    /// None if it is hidden.
    entry: Option<(usize, InodeNo, EntryIndex)>,
    ty: Option<FileType>,
    parts: Vec<Part>,
    /// Directories of lower layers merge with it.
    is_open: bool,
}

impl Found {
    const HIDDEN: Self = Self {
        entry: None,
        ty: None,
        parts: Vec::new(),
        is_open: false,
    };
}

/// The parts of the root: down to the first one that is opaque.
pub(super) fn of_root(
    layers: &[Arc<ImageState>],
    whiteouts: Whiteouts,
    parts: impl Iterator<Item = Part>,
) -> Result<Arc<[Part]>> {
    let mut root = Vec::new();
    for part in parts {
        root.push(part);
        let Some(layer) = layers.get(part.layer) else {
            continue;
        };
        if is_opaque(layer, part.inode, whiteouts)? {
            break;
        }
    }
    Ok(root.into())
}

/// Merges directories of layers, the uppermost one first. The entries are in the order of their names.
///
/// # Errors
/// The metadata of a layer is damaged.
pub(super) fn merge(
    layers: &[Arc<ImageState>],
    whiteouts: Whiteouts,
    parts: &[Part],
) -> Result<Vec<Entry>> {
    let mut all: BTreeMap<Box<[u8]>, Found> = BTreeMap::new();
    for part in parts {
        let Some(layer) = layers.get(part.layer) else {
            continue;
        };
        let meta = layer.image.metadata();
        // Only then files can be whiteouts.
        let has_white_files = opacity(layer, part.inode)?.as_deref() == Some(b"x");
        let mut hidden = Vec::new();
        for index in meta.entries(part.inode)? {
            let index = EntryIndex(index);
            let name = meta.entry_name(index)?;
            if whiteouts == Whiteouts::Oci
                && let Some(target) = name.strip_prefix(OCI)
            {
                if *name != *OCI_OPAQUE {
                    hidden.push(target.into());
                }
                continue;
            }
            if !listing::is_listable(&name) {
                layer
                    .failures
                    .mention("a name that cannot be shown is left out");
                continue;
            }
            let inode = meta.entry_inode(index)?;
            let own = Part {
                layer: part.layer,
                inode,
            };
            let ty = meta.file_type(inode)?;
            let is_white = is_whiteout(layer, inode, ty, has_white_files)?;
            let is_directory = ty == FileType::Directory;
            match all.entry(name.into_owned().into()) {
                btree_map::Entry::Vacant(place) => {
                    let shown = !is_white || whiteouts == Whiteouts::Show;
                    place.insert(Found {
                        entry: shown.then_some((part.layer, inode, index)),
                        ty: Some(ty),
                        parts: Vec::from_iter(is_directory.then_some(own)),
                        is_open: is_directory && !is_opaque(layer, inode, whiteouts)?,
                    });
                }
                btree_map::Entry::Occupied(mut place) => {
                    let found = place.get_mut();
                    // A damaged directory may have a name twice.
                    let again = found
                        .parts
                        .last()
                        .is_some_and(|last| last.layer == part.layer);
                    if !found.is_open || again {
                        continue;
                    }
                    if is_directory {
                        found.parts.push(own);
                    }
                    found.is_open = is_directory && !is_opaque(layer, inode, whiteouts)?;
                }
            }
        }
        for name in hidden {
            let found = all.entry(name).or_insert(Found::HIDDEN);
            found.is_open = false;
        }
    }
    let shown = all.into_iter().filter_map(|(name, found)| {
        let (layer, inode, index) = found.entry?;
        let of = layers.get(layer)?;
        let is_directory = found.ty == Some(FileType::Directory);
        let is_foreign = match found.ty {
            Some(FileType::Regular) => is_foreign(of, inode),
            _ => Ok(false),
        };
        Some(is_foreign.map(|is_foreign| Entry {
            name,
            layer,
            inode,
            index,
            mode: found.ty.map_or(0, FileType::mode_bits),
            parts: is_directory.then(|| found.parts.into()),
            is_foreign,
        }))
    });
    shown.collect()
}

/// Whether a file has only attributes, and its data is in a lower layer.
fn is_foreign(layer: &ImageState, inode: InodeNo) -> Result<bool> {
    let found = overlay_xattr(layer, inode, "metacopy")?.is_some();
    if found {
        let text =
            "a file of a layer has no data of its own (overlay.metacopy): it cannot be opened";
        layer.failures.mention(text);
    }
    Ok(found)
}

/// The value of an attribute of overlayfs, if it is not longer than values that have a meaning.
fn overlay_xattr(layer: &ImageState, inode: InodeNo, name: &str) -> Result<Option<Vec<u8>>> {
    let image = &layer.image;
    if !image.metadata().has_xattrs() {
        return Ok(None);
    }
    let xattrs = image.xattrs(inode)?;
    for class in ["trusted", "user"] {
        let full = format!("{class}.overlay.{name}");
        if let Some(found) = xattrs.find(full.as_bytes())? {
            let is_short = found.size()? <= 16;
            let value = is_short.then(|| image.xattr_value(&found)).transpose()?;
            return Ok(Some(
                value.map_or_else(Vec::new, std::borrow::Cow::into_owned),
            ));
        }
    }
    Ok(None)
}

/// `y` if nothing below a directory shows through, `x` if it has files that are whiteouts.
fn opacity(layer: &ImageState, directory: InodeNo) -> Result<Option<Vec<u8>>> {
    overlay_xattr(layer, directory, "opaque")
}

fn is_opaque(layer: &ImageState, directory: InodeNo, whiteouts: Whiteouts) -> Result<bool> {
    if opacity(layer, directory)?.as_deref() == Some(b"y") {
        return Ok(true);
    }
    if overlay_xattr(layer, directory, "redirect")?.is_some() {
        let text =
            "a directory of a layer was renamed (overlay.redirect): its old contents are not shown";
        layer.failures.mention(text);
    }
    if whiteouts != Whiteouts::Oci {
        return Ok(false);
    }
    let found = layer.image.metadata().find(directory, OCI_OPAQUE)?;
    Ok(found.is_some())
}

fn is_whiteout(
    layer: &ImageState,
    inode: InodeNo,
    ty: FileType,
    has_white_files: bool,
) -> Result<bool> {
    match ty {
        FileType::CharDevice => Ok(layer.image.metadata().stat(inode)?.rdev == 0),
        FileType::Regular if has_white_files => {
            let is_empty = layer.image.metadata().stat(inode)?.size == 0;
            Ok(is_empty && overlay_xattr(layer, inode, "whiteout")?.is_some())
        }
        _ => Ok(false),
    }
}
