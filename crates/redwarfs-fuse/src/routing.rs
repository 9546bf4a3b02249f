//! Which image or directory of a mount a request is for.

use std::sync::Arc;

use crate::image_state::ImageState;
use crate::images::FailedImage;
use crate::mount_state::{HAS_SEVERAL, MountState, Root};
use crate::ops::statfs::Totals;
use crate::proto::{Body, Header, op};
use crate::slots::{ROOT, SlotNo};
use crate::snapshots::{DIRECTORY, SnapshotDirectory};
use crate::synthetic::Synthetic;
use crate::union::{Union, UnionDirectory};

/// What a request is for.
#[derive(Debug)]
pub(crate) enum PlaceOfNode<'m> {
    /// An inode of the image at the root, or nothing at all.
    Image(&'m Arc<ImageState>),
    /// An inode of the image of a slot.
    Slot(SlotNo),
    /// The entry of the root of the image of a slot.
    RootOf(SlotNo),
    /// A directory of no image.
    Directory(&'m dyn Synthetic),
    /// The directory in the place of an image that cannot be opened.
    Failed(FailedImage),
    /// The name of the directory of snapshots in the root, or the parent of the root of a snapshot.
    Entry(&'m SnapshotDirectory),
    /// A directory of a union.
    Union(UnionDirectory<'m>),
    /// All images.
    Whole(Totals),
    /// Nothing.
    Nothing,
}

/// What a request is for.
pub(crate) fn place<'m>(
    state: &'m MountState,
    header: &Header,
    mut body: Body<'_>,
) -> PlaceOfNode<'m> {
    let name = (header.opcode == op::LOOKUP).then(|| body.name()).flatten();
    let images = match &state.root {
        Root::Image(main) if !HAS_SEVERAL => return PlaceOfNode::Image(main),
        _ if !HAS_SEVERAL => return PlaceOfNode::Nothing,
        Root::Image(main) => return of_generations(state, main, header, name),
        Root::Union(union) => return of_union(union, header),
        Root::Images(images) => images,
    };
    if header.opcode == op::STATFS {
        return PlaceOfNode::Whole(state.slots.totals());
    }
    match (SlotNo::of(header.node), name) {
        (SlotNo(0), Some(name)) if header.node == ROOT => match images.slot(name, &state.slots) {
            Some(slot) => PlaceOfNode::RootOf(slot),
            None => PlaceOfNode::Directory(images),
        },
        (SlotNo(0), _) if header.node == ROOT => PlaceOfNode::Directory(images),
        (SlotNo(0), _) => match FailedImage::of_node(header.node) {
            Some(failed) => PlaceOfNode::Failed(failed),
            None => PlaceOfNode::Nothing,
        },
        // Its parent is the root of the mount, and so is the parent of that.
        (slot, Some(b"..")) if header.node == slot.first_node() + ROOT => {
            PlaceOfNode::Directory(images)
        }
        (slot, _) => PlaceOfNode::Slot(slot),
    }
}

/// The same for a union: directories have slot 0, everything else has that of its layer.
fn of_union<'m>(union: &'m Union, header: &Header) -> PlaceOfNode<'m> {
    if header.opcode == op::STATFS {
        return PlaceOfNode::Whole(union.totals());
    }
    match SlotNo::of(header.node) {
        SlotNo(0) => PlaceOfNode::Union(union.at(header.node)),
        slot => union
            .layer(slot)
            .map_or(PlaceOfNode::Nothing, PlaceOfNode::Image),
    }
}

/// The same if an image is at the root, and generations of its file have slots.
fn of_generations<'m>(
    state: &'m MountState,
    main: &'m Arc<ImageState>,
    header: &Header,
    name: Option<&[u8]>,
) -> PlaceOfNode<'m> {
    let slot = match header.node {
        ROOT => state.slots.current(),
        node => SlotNo::of(node),
    };
    if let Some(directory) = &state.snapshots
        && (header.node == ROOT || slot.0 > 0)
    {
        match (header.node, name) {
            (ROOT, Some(name)) if directory.has_name(name) => {
                return PlaceOfNode::Entry(directory);
            }
            (DIRECTORY, Some(name)) => {
                let found = directory.slot(name);
                return found.map_or(PlaceOfNode::Directory(directory), PlaceOfNode::RootOf);
            }
            (DIRECTORY, None) if header.opcode == op::STATFS => return PlaceOfNode::Image(main),
            (DIRECTORY, None) => return PlaceOfNode::Directory(directory),
            (node, Some(b"..")) if node == slot.first_node() + ROOT => {
                return PlaceOfNode::Entry(directory);
            }
            _ => {}
        }
    }
    match slot {
        SlotNo(0) => PlaceOfNode::Image(main),
        slot => PlaceOfNode::Slot(slot),
    }
}
