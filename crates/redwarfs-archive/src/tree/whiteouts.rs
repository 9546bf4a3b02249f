//! What whiteouts of a layer do to the tree.

use super::{Refusal, Tree, components_or_none};
use crate::member::Member;
use redwarfs_writer::{FileType, OPAQUE_ATTRIBUTE};

impl Tree {
    /// Removes an entry of older layers. Returns whether there is one.
    pub(crate) fn white_out(&mut self, path: &[u8]) -> Result<bool, Refusal> {
        let base = self.base.clone();
        let parts = self.based(&base, path)?;
        let Some(node) = self.find(&parts).filter(|&node| node != 0) else {
            return Ok(false);
        };
        self.nodes[node as usize].whited = self.layer;
        Ok(true)
    }

    /// Adds a device that stands for a whiteout, unless the layer has the entry itself, as a whiteout is
    /// for older layers. A directory hides theirs if it is opaque.
    pub(crate) fn add_whiteout(&mut self, device: &Member) -> Result<(), Refusal> {
        let base = self.base.clone();
        let parts = self.based(&base, &device.path)?;
        let own = self.find(&parts);
        let own = own.filter(|&node| self.nodes[node as usize].layer == self.layer);
        if let Some(node) = own {
            if self.kind(node) == Some(FileType::Directory) {
                self.set_opaque(node);
            }
            return Ok(());
        }
        self.add(device)?;
        if let Some(node) = self.find(&parts) {
            self.devices.insert(node);
        }
        Ok(())
    }

    /// Hides what older layers have in a directory, also from overlayfs.
    pub(super) fn set_opaque(&mut self, node: u32) {
        self.nodes[node as usize].opaque = self.layer;
        let (name, value) = (OPAQUE_ATTRIBUTE.to_vec(), b"y".to_vec());
        self.attributes.push((node, name, value));
    }

    /// Hides what older layers have in the directory with this path, also from overlayfs.
    pub(crate) fn make_opaque_there(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let base = self.base.clone();
        let mut parts = components_or_none(&base)?;
        parts.extend(components_or_none(path)?);
        // An entry for the directory may follow, and take the place of its inode.
        let node = self.directory(&parts)?;
        self.set_opaque(node);
        Ok(())
    }

    /// Removes the entries that older layers have in a directory.
    pub(crate) fn make_opaque(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let base = self.base.clone();
        let mut parts = components_or_none(&base)?;
        parts.extend(components_or_none(path)?);
        let node = self.directory(&parts)?;
        self.nodes[node as usize].opaque = self.layer;
        Ok(())
    }
}
