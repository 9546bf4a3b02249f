//! Numbers of different things, kept apart by type.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl $name {
            /// The number as an index into a slice.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Inode number as stored in the image: the root is 0.
    InodeNo
    /// Block number: counts BLOCK sections only, in file order.
    BlockNo
    /// Index of a directory entry in the table of all entries.
    EntryIndex
    /// Index of a chunk in the table of all chunks.
    ChunkIndex
    /// Index of a category name.
    CategoryId
    /// Number of a generation in its file, from 1.
    GenerationNo
}

impl InodeNo {
    /// The root directory.
    pub const ROOT: InodeNo = InodeNo(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_names_the_kind_and_display_does_not() {
        assert_eq!(format!("{:?} {}", BlockNo(7), BlockNo(7)), "BlockNo(7) 7");
        assert_eq!(InodeNo::ROOT, InodeNo::default());
    }
}
