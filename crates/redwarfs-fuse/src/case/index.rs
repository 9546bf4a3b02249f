//! The index for lookups that ignore case.
//!
//! Two names are the same if their full Unicode case foldings are equal; names that are not UTF-8 are
//! only equal to themselves. The ordinary search for the folded name finds names that equal their
//! folding (all lower case). So only the other names need an index: their sorted hashes, 8 bytes each.
//! Making it takes one pass over all names while mounting, about 0.1 us for each ASCII name.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use redwarfs_format::Result;
use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::MetadataView;
use tracing::{info, warn};
use unicase::UniCase;

use crate::policy::node_id;
use crate::text;

/// Number of collisions that are logged individually.
const LOGGED: u64 = 100;

/// Names that are not in folded form.
#[derive(Debug)]
pub(crate) struct CaseIndex {
    /// Hash of directory and folded name, and the entry; sorted. The hash has a random key, so that
    /// nobody can make an image with colliding names.
    table: Vec<(u32, u32)>,
    hasher: RandomState,
}

/// The folding of a name; none if it is not UTF-8.
fn fold(name: &[u8]) -> Option<Cow<'_, [u8]>> {
    if name.is_ascii() {
        return Some(if name.iter().any(u8::is_ascii_uppercase) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        });
    }
    let text = std::str::from_utf8(name).ok()?;
    let folded = UniCase::unicode(text).to_folded_case().into_bytes();
    Some(if folded == name {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(folded)
    })
}

impl CaseIndex {
    /// Makes the index of an image and warns about names that differ only in case.
    ///
    /// # Errors
    /// The metadata is corrupt.
    pub(super) fn new(meta: &MetadataView) -> Result<Self> {
        let began = Instant::now();
        let mut index = Self {
            table: Vec::new(),
            hasher: RandomState::new(),
        };
        let directories = meta.counts().directories;
        let mut indexed = 0u32;
        let mut collisions = 0;
        for dir in (0..directories).map(InodeNo) {
            let first = index.table.len();
            for entry in meta.entries(dir)? {
                let name = meta.entry_name(EntryIndex(entry))?;
                if let Some(Cow::Owned(folded)) = fold(&name) {
                    index.table.push((index.hash(dir, &folded), entry));
                }
            }
            let added = index.table.get_mut(first..).unwrap_or_default();
            if !added.is_empty() {
                indexed += 1;
                added.sort_unstable();
                collisions += warn_of_collisions(meta, dir, added, collisions)?;
            }
        }
        if collisions > LOGGED {
            warn!("{} more case-insensitive collisions", collisions - LOGGED);
        }
        index.table.sort_unstable();
        index.table.shrink_to_fit();
        index.tell(indexed, directories, began.elapsed());
        Ok(index)
    }

    fn tell(&self, indexed: u32, directories: u32, time: Duration) {
        let size = size_of_val(self.table.as_slice()) as u64;
        info!(
            "built case-insensitive directory cache for {} entries in {indexed} out of \
             {directories} directories ({}) [{}]",
            self.table.len(),
            text::bytes(size),
            text::duration(time)
        );
    }

    fn hash(&self, dir: InodeNo, folded: &[u8]) -> u32 {
        // The upper half of the hash is as well distributed as the whole.
        (self.hasher.hash_one((dir.0, folded)) >> 32) as u32
    }

    /// Finds a name that is not in the directory in exactly this spelling. If several names match, the
    /// one in folded form counts, otherwise the first one in the order of the directory.
    ///
    /// # Errors
    /// The metadata is corrupt.
    pub(super) fn find(
        &self,
        meta: &MetadataView,
        dir: InodeNo,
        name: &[u8],
    ) -> Result<Option<EntryIndex>> {
        let Some(folded) = fold(name) else {
            return Ok(None);
        };
        if let Cow::Owned(folded) = &folded
            && let Some(entry) = meta.find(dir, folded)?
        {
            return Ok(Some(entry));
        }
        let here = meta.entries(dir)?;
        let hash = self.hash(dir, &folded);
        let start = self.table.partition_point(|(h, _)| *h < hash);
        let candidates = self.table.get(start..).unwrap_or_default();
        for &(_, entry) in candidates.iter().take_while(|(h, _)| *h == hash) {
            let entry = EntryIndex(entry);
            if here.contains(&entry.0)
                && fold(&meta.entry_name(entry)?) == Some(Cow::Borrowed(&folded))
            {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// Finds equal foldings in the index of one directory. Returns their number.
fn warn_of_collisions(
    meta: &MetadataView,
    dir: InodeNo,
    added: &[(u32, u32)],
    before: u64,
) -> Result<u64> {
    let mut found = 0;
    for same_hash in added.chunk_by(|a, b| a.0 == b.0) {
        let mut folded = Vec::new();
        for &(_, entry) in same_hash {
            let name = meta.entry_name(EntryIndex(entry))?.into_owned();
            if let Some(f) = fold(&name) {
                folded.push((f.into_owned(), name));
            }
        }
        folded.sort();
        for same in folded.chunk_by(|a, b| a.0 == b.0) {
            let Some((form, _)) = same.first() else {
                continue;
            };
            let mut names: Vec<&[u8]> = same.iter().map(|(_, name)| name.as_slice()).collect();
            if meta.find(dir, form)?.is_some() {
                names.push(form);
            }
            if names.len() < 2 {
                continue;
            }
            found += 1;
            if before + found <= LOGGED {
                let names: Vec<_> = names
                    .iter()
                    .map(|name| String::from_utf8_lossy(name))
                    .collect();
                warn!(
                    "case-insensitive collision in directory \"{}\" (inode={}): {}",
                    String::from_utf8_lossy(&meta.entry_name(meta.self_entry(dir)?)?),
                    node_id(dir),
                    names.join(", ")
                );
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding() {
        let same = |a: &str, b: &str| fold(a.as_bytes()) == fold(b.as_bytes());
        assert!(same("README.Txt", "readme.TXT"));
        assert!(same("Straße", "STRASSE"));
        assert!(same("ΣΊΣΥΦΟΣ", "σίσυφος"));
        assert!(same("ÀÉ", "àé"));
        assert!(!same("a", "b"));
        assert_eq!(fold(b"\xffA"), None);
        assert!(matches!(fold(b"plain"), Some(Cow::Borrowed(b"plain"))));
        assert!(matches!(fold("übung".as_bytes()), Some(Cow::Borrowed(_))));
    }
}
