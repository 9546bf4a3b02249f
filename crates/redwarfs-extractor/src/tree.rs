//! A compact copy of the tree of an image, with every name checked.

use std::collections::{HashMap, HashSet};

use redwarfs_format::metadata::{Attributes, FileType, MetadataView, Stat};
use redwarfs_format::{EntryIndex, InodeNo};

use crate::ExtractOptions;
use crate::error::{Error, Result, display_path};

/// Directories nested deeper than this are refused: no system can name their entries, and the time to
/// build their paths grows with the square of the depth.
const MAX_DEPTH: usize = 32 * 1024;

/// One directory of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dir {
    /// Position of the parent in [`Tree::dirs`]; the root is its own parent.
    pub(crate) parent: u32,
    /// The entry that names it; meaningless for the root.
    pub(crate) entry: EntryIndex,
    pub(crate) ino: InodeNo,
}

/// A regular file with its first name: an inode or, in images of format 2.2 and older, the names of an
/// inode with the same attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) ino: InodeNo,
    pub(crate) dir: u32,
    pub(crate) entry: EntryIndex,
}

/// A further name of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Position in [`Tree::files`].
    pub(crate) file: u32,
    pub(crate) dir: u32,
    pub(crate) entry: EntryIndex,
}

/// The directories and regular files of an image. Other entries are not kept. A caller that needs them
/// lists the directories again.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    metadata: &'a MetadataView,
    /// Depth-first, parents before children; the root is the first.
    pub(crate) dirs: Vec<Dir>,
    /// Sorted by content, so that the files with equal content are neighbours.
    pub(crate) files: Vec<File>,
    /// Sorted by file.
    pub(crate) links: Vec<Link>,
    /// `contents[c] .. contents[c + 1]` are the files with content `c`; one element more than contents.
    contents: Vec<u32>,
    /// Bits of the entries that are selected; `None` for all.
    selected: Option<Vec<u64>>,
    matched: u64,
    skipped_links: u64,
}

impl<'a> Tree<'a> {
    /// Walks the whole tree without recursion. It checks each name, and that no directory occurs twice.
    /// It keeps the selected entries, and their parent directories.
    pub(crate) fn scan(metadata: &'a MetadataView, options: &ExtractOptions) -> Result<Self> {
        let select = options.select.as_ref();
        let mut tree = Self {
            metadata,
            dirs: vec![Dir {
                parent: 0,
                entry: metadata.root_entry(),
                ino: InodeNo::ROOT,
            }],
            files: Vec::new(),
            links: Vec::new(),
            contents: Vec::new(),
            selected: select.map(|_| Vec::new()),
            matched: 0,
            skipped_links: 0,
        };
        let mut path = Vec::new();
        let mut names: Vec<File> = Vec::new();
        let mut visited = HashSet::from([InodeNo::ROOT]);
        let mut stack = vec![(0_u32, metadata.entries(InodeNo::ROOT)?, 0)];
        while let Some((dir, range, path_length)) = stack.last_mut() {
            let dir = *dir;
            let path_length = *path_length;
            let Some(index) = range.next() else {
                stack.pop();
                continue;
            };
            let entry = EntryIndex(index);
            let ino = metadata.entry_inode(entry)?;
            let kind = metadata.file_type(ino)?;
            let mut wanted = true;
            if let Some(select) = select {
                path.truncate(path_length);
                if !path.is_empty() {
                    path.push(b'/');
                }
                metadata.entry_name_into(entry, &mut path)?;
                wanted = select.wants(&path, kind);
                if wanted {
                    tree.select(entry);
                }
            }
            tree.matched += u64::from(wanted && kind != FileType::Directory);
            match kind {
                FileType::Directory => {
                    if !visited.insert(ino) {
                        return Err(redwarfs_format::Error::corrupt(format!(
                            "directory occurs twice or below itself: {}",
                            display_path(&tree.path(dir, entry)?)
                        ))
                        .into());
                    }
                    if stack.len() >= MAX_DEPTH {
                        return Err(redwarfs_format::Error::Limit(format!(
                            "directories nested more than {MAX_DEPTH} deep"
                        ))
                        .into());
                    }
                    let number = to_u32(tree.dirs.len(), "directories")?;
                    tree.dirs.push(Dir {
                        parent: dir,
                        entry,
                        ino,
                    });
                    tree.check_names(number, metadata.entries(ino)?)?;
                    stack.push((number, metadata.entries(ino)?, path.len()));
                }
                FileType::Regular if wanted => names.push(File { ino, dir, entry }),
                _ => {}
            }
        }
        tree.check_names(0, metadata.entries(InodeNo::ROOT)?)?;
        to_u32(names.len(), "files")?;
        if select.is_some() {
            tree.prune(&mut names)?;
        }
        tree.group(names)?;
        if options.skip_hard_links {
            tree.skipped_links = std::mem::take(&mut tree.links).len() as u64;
        }
        Ok(tree)
    }

    fn select(&mut self, entry: EntryIndex) {
        let word = entry.0 as usize / 64;
        if let Some(bits) = &mut self.selected {
            if bits.len() <= word {
                bits.resize(word + 1, 0);
            }
            if let Some(bits) = bits.get_mut(word) {
                *bits |= 1 << (entry.0 % 64);
            }
        }
    }

    /// Whether an entry itself is selected.
    pub(crate) fn is_selected(&self, entry: EntryIndex) -> bool {
        match &self.selected {
            None => true,
            Some(bits) => bits
                .get(entry.0 as usize / 64)
                .is_some_and(|word| word >> (entry.0 % 64) & 1 == 1),
        }
    }

    /// The number of selected names, without directories.
    pub(crate) fn matched(&self) -> u64 {
        self.matched
    }

    /// The number of additional names of files that are left out on request.
    pub(crate) fn skipped_links(&self) -> u64 {
        self.skipped_links
    }

    /// Drops directories that are not selected and hold no selected entries.
    fn prune(&mut self, names: &mut [File]) -> Result<()> {
        let mut keep = vec![false; self.dirs.len()];
        if let Some(root) = keep.first_mut() {
            *root = true;
        }
        for name in names.iter() {
            if let Some(flag) = keep.get_mut(name.dir as usize) {
                *flag = true;
            }
        }
        // Children follow their parents.
        for (number, dir) in self.dirs.iter().enumerate().rev() {
            let mut kept = keep.get(number).copied().unwrap_or(false)
                || (number > 0 && self.is_selected(dir.entry));
            if !kept {
                for index in self.metadata.entries(dir.ino)? {
                    let entry = EntryIndex(index);
                    if self.is_selected(entry) {
                        kept = true;
                        break;
                    }
                }
            }
            if let Some(flag) = keep.get_mut(number) {
                *flag = kept;
            }
            if let Some(flag) = keep.get_mut(dir.parent as usize) {
                *flag |= kept;
            }
        }
        let mut numbers = Vec::with_capacity(self.dirs.len());
        let mut next = 0_u32;
        for &kept in &keep {
            numbers.push(next);
            next += u32::from(kept);
        }
        let new = |old: u32| numbers.get(old as usize).copied().unwrap_or(0);
        let mut position = 0;
        self.dirs.retain_mut(|dir| {
            dir.parent = new(dir.parent);
            position += 1;
            keep.get(position - 1).copied().unwrap_or(false)
        });
        for name in names {
            name.dir = new(name.dir);
        }
        Ok(())
    }

    /// Refuses names that are no entry of their directory, and repeated names.
    fn check_names(&self, dir: u32, entries: std::ops::Range<u32>) -> Result<()> {
        let mut previous = Vec::new();
        let mut name = Vec::new();
        let mut seen: Option<HashSet<Vec<u8>>> = None;
        for index in entries.clone() {
            let entry = EntryIndex(index);
            name.clear();
            self.metadata.entry_name_into(entry, &mut name)?;
            if let Err(reason) = check_name(&name) {
                return Err(Error::UnsafeName {
                    path: display_path(&self.path(dir, entry)?),
                    reason,
                });
            }
            // Entries are sorted in every valid image; only an invalid one needs a set.
            if seen.is_none() && index != entries.start && name <= previous {
                let mut set = HashSet::new();
                for earlier in entries.start..index {
                    set.insert(self.metadata.entry_name(EntryIndex(earlier))?.into_owned());
                }
                seen = Some(set);
            }
            if let Some(set) = &mut seen
                && !set.insert(name.clone())
            {
                return Err(Error::UnsafeName {
                    path: display_path(&self.path(dir, entry)?),
                    reason: "occurs twice in its directory",
                });
            }
            std::mem::swap(&mut previous, &mut name);
        }
        Ok(())
    }

    /// Turns all names of files into files, links and contents.
    fn group(&mut self, mut names: Vec<File>) -> Result<()> {
        // Stable, so that the first name in depth-first order stays the first of its inode.
        names.sort_by_key(|name| name.ino);
        // Content, file, and the number of the file in the order of inodes.
        let mut files: Vec<(u32, File, u32)> = Vec::new();
        let mut more: Vec<(u32, File)> = Vec::new();
        for names in names.chunk_by(|a, b| a.ino == b.ino) {
            let Some(content) = names.first().map(|name| self.metadata.content_id(name.ino)) else {
                continue;
            };
            let content = content?;
            let mut known = HashMap::new();
            for &name in names {
                let next = to_u32(files.len(), "files")?;
                let file = if names.len() > 1 {
                    *known.entry(self.identity(&name)?).or_insert(next)
                } else {
                    next
                };
                if file == next {
                    files.push((content, name, next));
                } else {
                    more.push((file, name));
                }
            }
        }
        files.sort_unstable_by_key(|(content, file, number)| (*content, file.ino, *number));
        let mut previous = None;
        let mut positions = vec![0; if more.is_empty() { 0 } else { files.len() }];
        for (position, (content, file, number)) in files.iter().enumerate() {
            let position = to_u32(position, "files")?;
            if previous != Some(*content) {
                self.contents.push(position);
                previous = Some(*content);
            }
            self.files.push(*file);
            if let Some(of_number) = positions.get_mut(*number as usize) {
                *of_number = position;
            }
        }
        self.contents.push(to_u32(self.files.len(), "files")?);
        for (number, File { dir, entry, .. }) in more {
            if let Some(&file) = positions.get(number as usize) {
                self.links.push(Link { file, dir, entry });
            }
        }
        self.links.sort_by_key(|link| link.file);
        Ok(())
    }

    /// The common attributes of names of one inode that are links.
    fn identity(&self, name: &File) -> Result<Option<Attributes>> {
        if self.metadata.is_legacy() {
            return Ok(Some(self.stat(name)?.attributes()));
        }
        Ok(None)
    }

    /// The attributes of a file: in images of format 2.2 and older, those of its names.
    pub(crate) fn stat(&self, file: &File) -> redwarfs_format::Result<Stat> {
        if self.metadata.is_legacy() {
            self.metadata.entry_stat(file.entry)
        } else {
            self.metadata.stat(file.ino)
        }
    }

    /// A number of a file that no other inode or file has; at least 1.
    pub(crate) fn number(&self, file: &File) -> u64 {
        if self.metadata.is_legacy() {
            u64::from(self.metadata.inode_count()) + u64::from(file.entry.0) + 1
        } else {
            u64::from(file.ino.0) + 1
        }
    }

    /// The metadata this tree was read from.
    pub(crate) fn metadata(&self) -> &'a MetadataView {
        self.metadata
    }

    pub(crate) fn file(&self, index: u32) -> Option<&File> {
        self.files.get(index as usize)
    }

    /// The number of distinct contents.
    pub(crate) fn content_count(&self) -> u32 {
        u32::try_from(self.contents.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The files that have content `content`.
    pub(crate) fn files_of(&self, content: u32) -> std::ops::Range<u32> {
        let at = content as usize;
        match (self.contents.get(at), self.contents.get(at + 1)) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// An inode that has content `content`.
    pub(crate) fn inode_of(&self, content: u32) -> Option<InodeNo> {
        self.file(self.files_of(content).start).map(|file| file.ino)
    }

    /// The additional names of a file.
    pub(crate) fn links_of(&self, file: u32) -> &[Link] {
        let start = self.links.partition_point(|link| link.file < file);
        let end = self.links.partition_point(|link| link.file <= file);
        self.links.get(start..end).unwrap_or_default()
    }

    /// Whether a directory has another name to extract that equals `folded` except for case. Names in
    /// `left_out` are not extracted.
    pub(crate) fn has_other_name(
        &self,
        dir: u32,
        name: &[u8],
        folded: &str,
        left_out: &HashMap<EntryIndex, EntryIndex>,
    ) -> bool {
        let Some(dir) = self.dirs.get(dir as usize) else {
            return false;
        };
        let same = |index: u32| -> redwarfs_format::Result<bool> {
            let entry = EntryIndex(index);
            let other = self.metadata.entry_name(entry)?;
            if *other == *name
                || left_out.contains_key(&entry)
                || crate::create::folded(&other) != folded
            {
                return Ok(false);
            }
            let ino = self.metadata.entry_inode(entry)?;
            let is_dir = self.metadata.file_type(ino)? == FileType::Directory;
            Ok(is_dir || self.is_selected(entry))
        };
        // Names were read before.
        let entries = self.metadata.entries(dir.ino).unwrap_or_default();
        entries
            .into_iter()
            .any(|index| same(index).unwrap_or(false))
    }

    /// Each name that equals an earlier one of its directory except for case, with that earlier name.
    pub(crate) fn case_collisions(&self) -> Result<HashMap<EntryIndex, EntryIndex>> {
        let mut collisions = HashMap::new();
        let dirs: HashSet<EntryIndex> = self.dirs.iter().map(|dir| dir.entry).collect();
        for dir in &self.dirs {
            let mut seen = HashMap::new();
            for index in self.metadata.entries(dir.ino)? {
                let entry = EntryIndex(index);
                if !self.is_selected(entry) && !dirs.contains(&entry) {
                    continue;
                }
                let name = crate::create::folded(&self.metadata.entry_name(entry)?);
                let first = *seen.entry(name).or_insert(entry);
                if first != entry {
                    collisions.insert(entry, first);
                }
            }
        }
        Ok(collisions)
    }

    /// The path of a directory below the root; empty for the root.
    pub(crate) fn dir_path(&self, dir: u32) -> Result<Vec<u8>> {
        let mut chain = Vec::new();
        let mut at = dir;
        while at != 0 {
            // Parents precede their children, so this ends.
            let Some(d) = self.dirs.get(at as usize) else {
                break;
            };
            chain.push(d.entry);
            at = d.parent;
        }
        let mut path = Vec::new();
        for entry in chain.into_iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            self.metadata.entry_name_into(entry, &mut path)?;
        }
        Ok(path)
    }

    /// The path of an entry of a directory.
    pub(crate) fn path(&self, dir: u32, entry: EntryIndex) -> Result<Vec<u8>> {
        let mut path = self.dir_path(dir)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.metadata.entry_name(entry)?);
        Ok(path)
    }

    /// [`Self::path`] for messages; never fails.
    pub(crate) fn shown(&self, dir: u32, entry: EntryIndex) -> String {
        self.path(dir, entry)
            .map_or_else(|_| format!("entry {entry}"), |path| display_path(&path))
    }

    /// The path of a file for messages.
    pub(crate) fn shown_file(&self, file: u32) -> String {
        self.file(file)
            .map_or_else(|| format!("file {file}"), |f| self.shown(f.dir, f.entry))
    }
}

fn to_u32(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n)
        .map_err(|_| redwarfs_format::Error::Limit(format!("more than 2^32 {what}")).into())
}

/// Whether a name can only be an entry of its directory; otherwise the rule that it breaks.
pub(crate) fn check_name(name: &[u8]) -> std::result::Result<(), &'static str> {
    match name {
        b"" => Err("empty name"),
        b"." | b".." => Err("reserved name"),
        _ if name.contains(&b'/') => Err("slash in name"),
        _ if name.contains(&0) => Err("NUL in name"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names() {
        for good in [&b"a"[..], b"...", b".a", b"a b", b"\xff", b"a\\b", b"a\nb"] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
        for bad in [
            &b""[..],
            b".",
            b"..",
            b"/",
            b"a/b",
            b"../a",
            b"a\0",
            b"/etc",
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
