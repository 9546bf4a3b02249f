//! The table of directories, and what is found out about them where the image does not store it.

use super::once::Once;
use super::table::{Column, List, Numbers};
use super::view::bad;
use crate::error::Result;
use crate::frozen::BitSource;

/// Directories by inode number, plus a sentinel.
#[derive(Debug)]
pub(super) struct Directories {
    pub(super) first: Numbers,
    /// Entry index, or inode number in format 2.2; not used if directories are packed.
    parent: Column,
    /// Entry index; not used in format 2.2, and not if it is found.
    own: Column,
    /// `own` is read from the image.
    pub(super) own_stored: bool,
    packed: bool,
    entry_inode: Column,
    count: u32,
    found: Once<Found>,
}

/// What a pass over all entries finds: 4 bytes for each directory, or 8 if directories are packed.
#[derive(Debug)]
struct Found {
    own: Vec<u32>,
    /// Empty if parents are stored.
    parent: Vec<u32>,
}

impl Directories {
    /// The table of `count` directories. `entry_inode` has the inodes of the entries. `legacy`: format 2.2 and older.
    pub(super) fn open(
        list: &List<'_>,
        packed: bool,
        legacy: bool,
        entry_inode: Column,
        count: u32,
    ) -> Result<Self> {
        if legacy && packed {
            return Err(bad("packed directories in an image of the old entry model"));
        }
        let (first, own) = (list.column(2)?, list.column(3)?);
        let own_stored = !packed && (own.width() > 0 || list.len() <= 2);
        let found = if legacy {
            // There is nothing to find.
            let (own, parent) = (Vec::new(), Vec::new());
            Once::of(Found { own, parent })
        } else {
            Once::new()
        };
        Ok(Self {
            first: if packed {
                Numbers::packed(first, false, "packed directory table")
            } else {
                Numbers::InPlace(first)
            },
            parent: list.column(1)?,
            own,
            own_stored,
            packed,
            entry_inode,
            count,
            found,
        })
    }

    /// The entry of directory `dir`; 0 for the sentinel. Not for format 2.2 and older.
    ///
    /// # Errors
    /// Those of [`Directories::unpack`].
    pub(super) fn own(&self, data: BitSource<'_>, dir: u32) -> Result<u32> {
        if self.own_stored {
            return self.own.get32(data, dir);
        }
        let own = &self.found(data)?.own;
        Ok(own.get(dir as usize).copied().unwrap_or(0))
    }

    /// The entry of the parent of directory `dir`, or its inode number in format 2.2 and older.
    ///
    /// # Errors
    /// Those of [`Directories::unpack`].
    pub(super) fn parent(&self, data: BitSource<'_>, dir: u32) -> Result<u32> {
        if !self.packed {
            return self.parent.get32(data, dir);
        }
        let parent = &self.found(data)?.parent;
        Ok(parent.get(dir as usize).copied().unwrap_or(0))
    }

    /// Finds out what is not stored, if that was not done yet.
    ///
    /// # Errors
    /// `Corrupt` if a directory has no entry or several, and the errors of loading `data`.
    pub(super) fn unpack(&self, data: BitSource<'_>) -> Result<()> {
        self.first.unpack(data)?;
        if !self.own_stored {
            self.found(data)?;
        }
        Ok(())
    }

    #[inline]
    fn found(&self, data: BitSource<'_>) -> Result<&Found> {
        self.found.get_or_make(|| self.find(data))
    }

    /// Looks for the directories among all entries.
    #[cold]
    fn find(&self, data: BitSource<'_>) -> Result<Found> {
        let mut own = vec![u32::MAX; self.count as usize];
        for e in 0..self.entry_inode.len() {
            let ino = self.entry_inode.get32(data, e)?;
            if let Some(slot) = own.get_mut(ino as usize) {
                if *slot != u32::MAX {
                    return Err(bad(format!("directory {ino} has several entries")));
                }
                *slot = e;
            }
        }
        if own.contains(&u32::MAX) {
            return Err(bad("a directory has no entry"));
        }
        let mut parent = Vec::new();
        if self.packed {
            // Every directory has one entry, and the range that contains it is its parent's, so
            // no walk from the root is needed; cycles are a matter for the full check.
            parent = vec![0u32; self.count as usize + 1];
            for dir in 0..self.count {
                let range = self.first.get(data, dir)?..self.first.get(data, dir + 1)?;
                for e in range.start..range.end.min(self.entry_inode.len()) {
                    let ino = self.entry_inode.get32(data, e)? as usize;
                    if ino < own.len()
                        && let Some(slot) = parent.get_mut(ino)
                    {
                        *slot = own.get(dir as usize).copied().unwrap_or(0);
                    }
                }
            }
        }
        own.push(0);
        Ok(Found { own, parent })
    }
}
