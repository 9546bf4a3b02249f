//! The finished tree: look-ups by path.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_io::spill::{Record, Records, Spill, SpillFile, number};

use crate::inode::Inodes;

/// Entries in a file that are read at once in a search.
const AT_ONCE: u32 = 128;

/// An entry of the finished tree, in 12 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Where the name begins, and in the lowest byte its length; the lower half comes first.
    name: [u32; 2],
    pub(crate) inode: u32,
}

impl Entry {
    /// `name` is the place of a name of at most 255 bytes in the first 2^56 bytes of the arena.
    pub(crate) fn new((start, length): (usize, u32), inode: u32) -> Self {
        let name = ((start as u64) << 8) | u64::from(length & 0xff);
        Self {
            name: [name as u32, (name >> 32) as u32],
            inode,
        }
    }

    fn name(&self) -> (usize, usize) {
        let name = u64::from(self.name[0]) | (u64::from(self.name[1]) << 32);
        ((name >> 8) as usize, (name & 0xff) as usize)
    }
}

impl Record for Entry {
    const SIZE: usize = 12;

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.name[0], self.name[1], self.inode] {
            out.extend(number.to_le_bytes());
        }
    }

    fn read(mut bytes: &[u8]) -> Self {
        let mut next = || u32::from_le_bytes(number(&mut bytes));
        Self {
            name: [next(), next()],
            inode: next(),
        }
    }
}

/// The first of some entries, and the one after the last.
pub(crate) type EntryRange = (u32, u32);

/// A finished tree. Memory for an entry: 12 bytes, its name, and its inode; nothing but 16 bytes for each directory when it is
/// in a temporary file.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) root: u32,
    /// The children of the root.
    pub(crate) top: EntryRange,
    pub(crate) entries: Records<Entry>,
    /// The children of other directories, by the number of their entry.
    pub(crate) ranges: HashMap<u32, EntryRange>,
    /// The names of the children of a directory are together if they are in a file.
    pub(crate) names: Records<u8>,
    pub(crate) inodes: Inodes,
    /// The temporary file, if there is one.
    pub(crate) file: Option<Arc<SpillFile>>,
}

/// Entries that follow each other, with their names.
#[derive(Debug)]
pub(crate) struct Children<'t> {
    entries: Cow<'t, [Entry]>,
    names: Cow<'t, [u8]>,
    /// Where `names` begins.
    start: usize,
}

impl Children<'_> {
    fn name(&self, entry: &Entry) -> &[u8] {
        let (start, length) = entry.name();
        let name = start.checked_sub(self.start);
        let name = name.and_then(|start| self.names.get(start..start + length));
        name.unwrap_or_default()
    }

    /// Names and inodes, in the order of the names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> {
        let entries = self.entries.iter();
        entries.map(|entry| (self.name(entry), entry.inode))
    }
}

impl Finished {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let entries = self.entries.memory() + self.ranges.capacity() * 16;
        let cache = self.file.as_ref().map_or(0, |file| file.memory());
        (entries + self.names.memory()) as u64 + self.inodes.memory() + cache
    }

    /// Some entries.
    ///
    /// # Errors
    /// Those of reading the temporary file.
    pub(crate) fn children(&self, (start, end): EntryRange) -> io::Result<Children<'_>> {
        let entries = self.entries.range(start as usize..end as usize)?;
        let (names, start) = match (&self.names, entries.first().zip(entries.last())) {
            (Records::Memory(names), _) => (Cow::Borrowed(names.as_slice()), 0),
            (Records::File { .. }, None) => (Cow::default(), 0),
            (Records::File { .. }, Some((first, last))) => {
                let (start, (end, length)) = (first.name().0, last.name());
                (self.names.range(start..end + length)?, start)
            }
        };
        Ok(Children {
            entries,
            names,
            start,
        })
    }

    /// The number and the inode of the entry with this name.
    ///
    /// # Errors
    /// Those of reading the temporary file.
    pub(crate) fn child(&self, range: EntryRange, name: &[u8]) -> io::Result<Option<(u32, u32)>> {
        let (mut low, mut high) = range;
        if let Records::File { .. } = self.entries {
            while high.saturating_sub(low) > AT_ONCE {
                let middle = low + (high - low) / 2;
                let one = self.children((middle, middle + 1))?;
                match one.iter().next() {
                    Some((found, _)) if found < name => low = middle + 1,
                    _ => high = middle + 1,
                }
            }
        }
        let children = self.children((low, high))?;
        let found = (children.entries).binary_search_by(|entry| children.name(entry).cmp(name));
        let found = found
            .ok()
            .and_then(|at| Some((at, children.entries.get(at)?)));
        Ok(found.map(|(at, entry)| (low + at as u32, entry.inode)))
    }

    /// The inode of a path, and its children.
    ///
    /// # Errors
    /// Those of reading the temporary file.
    pub(crate) fn find(&self, path: &[u8]) -> io::Result<Option<(u32, EntryRange)>> {
        let (mut inode, mut children) = (self.root, self.top);
        if path.is_empty() {
            return Ok(Some((inode, children)));
        }
        for name in path.split(|&b| b == b'/') {
            let Some((number, found)) = self.child(children, name)? else {
                return Ok(None);
            };
            inode = found;
            children = self.ranges.get(&number).copied().unwrap_or_default();
        }
        Ok(Some((inode, children)))
    }

    /// The first error of reading the temporary file, if there was one.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.file.as_ref()?.failure()
    }

    /// Moves the tree to a temporary file in `directory`. Returns its size in bytes; none if files there are in memory
    /// themselves. The tree then stays where it is, as after an error.
    ///
    /// # Errors
    /// There can be no file, or there is no room; [`io::ErrorKind::Interrupted`] when `stop` is set.
    pub(crate) fn spill(&mut self, directory: &Path, stop: &AtomicBool) -> io::Result<Option<u64>> {
        let (Records::Memory(entries), Records::Memory(names)) = (&self.entries, &self.names)
        else {
            return Ok(None);
        };
        let Some(mut spill) = Spill::new(directory, stop)? else {
            return Ok(None);
        };
        let name = |entry: &Entry| {
            let (start, length) = entry.name();
            names.get(start..start + length).unwrap_or_default()
        };
        let all_names = entries.iter().flat_map(name).copied();
        let all_names = spill.table(all_names)?;
        let mut start = 0;
        let moved = entries.iter().map(|entry| {
            let length = name(entry).len();
            let entry = Entry::new((start, length as u32), entry.inode);
            start += length;
            entry
        });
        let moved = spill.table(moved)?;
        let inodes = self.inodes.write(&mut spill)?;
        let file = spill.finish("the temporary file of the entries")?;
        self.names = all_names.in_file(&file);
        self.entries = moved.in_file(&file);
        self.inodes.replace(inodes.in_file(&file));
        let size = file.size();
        self.file = Some(file);
        Ok(Some(size))
    }

    /// Frees what only listing and looking up paths needs.
    pub(crate) fn forget_names(&mut self) {
        self.entries = Records::default();
        self.names = Records::default();
        self.ranges = HashMap::new();
        self.top = EntryRange::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{Kind, Member};
    use crate::tree::Tree;

    #[test]
    fn a_tree_in_a_file_answers_as_in_memory() {
        let make = || {
            let mut tree = Tree::new();
            tree.begin(b"").unwrap();
            let mut add = |path: String, kind: Kind, uid| {
                let path = path.into_bytes();
                let member = Member {
                    path,
                    kind,
                    uid,
                    ..Member::default()
                };
                tree.add(&member).unwrap();
            };
            for i in 0..1000u32 {
                // Names of different lengths, not in their order.
                let name = format!("{}{}", i * 7919 % 1000, "x".repeat(i as usize % 200));
                add(format!("large/{name}"), Kind::Regular, i);
                add(format!("{}/{}/file", i % 13, i % 31), Kind::Regular, i);
            }
            add("empty".into(), Kind::Directory, 3);
            add("13/link".into(), Kind::Symlink(b"target".to_vec()), 3);
            tree.end();
            tree.finish()
        };
        let (memory, mut file) = (make(), make());
        let place = tempfile::tempdir().unwrap();
        let running = AtomicBool::new(false);
        let size = file.spill(place.path(), &running).unwrap();
        assert!(size.unwrap() > 40_000);
        // On Windows, the file has a name until it is closed.
        #[cfg(unix)]
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(file.memory() < memory.memory() / 5);
        let mut todo = vec![Vec::new()];
        let mut seen = 0;
        while let Some(path) = todo.pop() {
            let [a, b] = [&memory, &file].map(|tree| tree.find(&path).unwrap().unwrap());
            assert_eq!(a, b);
            let [x, y] = [&memory, &file].map(|tree| {
                let inode = tree.inodes.get(a.0).unwrap().unwrap();
                let target = tree.inodes.target(a.0).unwrap().map(<[u8]>::to_vec);
                (inode.kind, inode.uid, inode.names, target)
            });
            assert_eq!(x, y);
            let list = |tree: &Finished| {
                let children = tree.children(a.1).unwrap();
                let all = children.iter().map(|(name, inode)| (name.to_vec(), inode));
                all.collect::<Vec<_>>()
            };
            let children = list(&memory);
            assert_eq!(children, list(&file));
            for (name, _) in children {
                let path = [&path[..], &name].join(&b'/');
                todo.push(path.strip_prefix(b"/").unwrap_or(&path).to_vec());
            }
            seen += 1;
        }
        assert!(seen > 1400);
        for none in [
            &b"nothing"[..],
            b"large/",
            b"large/0",
            b"large/zz",
            b"empty/x",
            b"1/1/file/x",
            b"/",
        ] {
            assert_eq!(memory.find(none).unwrap(), file.find(none).unwrap());
        }
    }
}
