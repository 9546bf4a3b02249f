//! File flags of extracted entries.

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::STORED_FLAGS;
use redwarfs_reader::Image;

use crate::ExtractOptions;
use crate::error::Result;

/// The flags of an image that are to be restored.
#[derive(Debug)]
pub(crate) struct Flags(Option<Image>);

impl Flags {
    /// Nothing if the image has none, or the options leave them out.
    pub(crate) fn new(image: &Image, options: &ExtractOptions) -> Self {
        let any = options.file_flags && image.metadata().has_file_flags();
        Self(any.then(|| image.clone()))
    }

    /// Whether entries may have flags.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// The flags of an inode, without those that images never have.
    pub(crate) fn of(&self, ino: InodeNo) -> Result<u32> {
        Ok(match &self.0 {
            Some(image) => image.metadata().file_flags(ino)? & STORED_FLAGS,
            None => 0,
        })
    }
}

/// Flags with their letters of `lsattr`, and the names that libarchive gives them in archives.
const NAMES: [(u32, char, &str); 10] = [
    (0x8, 'S', "sync"),
    (0x1_0000, 'D', "dirsync"),
    (0x10, 'i', "schg"),
    (0x20, 'a', "sappnd"),
    (0x40, 'd', "nodump"),
    (0x80, 'A', "noatime"),
    (0x4, 'c', "compress"),
    (0x2_0000, 'T', "topdir"),
    (0x80_0000, 'C', "nocow"),
    (0x2000_0000, 'P', "projinherit"),
];

/// The letters of `lsattr` for flags.
#[cfg(unix)]
pub(crate) fn letters(flags: u32) -> String {
    let set = NAMES.iter().filter(|(bit, ..)| flags & bit != 0);
    set.map(|(_, letter, _)| letter).collect()
}

/// The text form of flags in archives, such as `schg,nodump`.
pub(crate) fn as_text(flags: u32) -> String {
    let set = NAMES.iter().filter(|(bit, ..)| flags & bit != 0);
    let names: Vec<&str> = set.map(|&(_, _, name)| name).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stored_flag_has_a_letter() {
        let bits = (0..u32::BITS).map(|bit| 1 << bit);
        for bit in bits {
            let count = usize::from(STORED_FLAGS & bit != 0);
            assert_eq!(
                as_text(bit).split_terminator(',').count(),
                count,
                "{bit:#x}"
            );
            #[cfg(unix)]
            assert_eq!(letters(bit).len(), count, "{bit:#x}");
        }
        assert_eq!(as_text(0x10 | 0x40), "schg,nodump");
    }
}
