//! Targets of symlinks, with the separator of the host (format chapter 04, section 7).

use std::borrow::Cow;

use super::view::{MetadataView, bad};
use crate::error::Result;
use crate::ids::InodeNo;

/// What separates the components of a path on the hosts of this library.
const HOST_SEPARATOR: u8 = b'/';

impl MetadataView {
    /// The separator in the symlink targets of the system that wrote the image: `/`, or `\` on
    /// Windows. A code beyond ASCII, which separates nothing anywhere, counts as `/`.
    #[must_use]
    pub fn preferred_path_separator(&self) -> u8 {
        let code = self.t.separator.and_then(|code| u8::try_from(code).ok());
        code.filter(u8::is_ascii).unwrap_or(HOST_SEPARATOR)
    }

    /// Target of a symlink with `/` between its components. It has the length of the stored target.
    /// Borrowed unless targets are compressed or were written with another separator.
    ///
    /// # Errors
    /// `Corrupt` if this is not a symlink or its target does not exist.
    pub fn symlink(&self, ino: InodeNo) -> Result<Cow<'_, [u8]>> {
        let mut target = self.stored_target(ino)?;
        let separator = self.preferred_path_separator();
        if separator != HOST_SEPARATOR && target.contains(&separator) {
            for byte in target.to_mut() {
                if *byte == separator {
                    *byte = HOST_SEPARATOR;
                }
            }
        }
        Ok(target)
    }

    /// Target of a symlink with the separator of the image.
    pub(super) fn stored_target(&self, ino: InodeNo) -> Result<Cow<'_, [u8]>> {
        let [l, r, ..] = self.t.offsets;
        if !(l..r).contains(&ino.0) {
            return Err(bad(format!("inode {ino} is not a symlink")));
        }
        let k = self.t.symlink_table.get32(self.data(), ino.0 - l)?;
        self.t.targets.get(self.data(), k)
    }
}
