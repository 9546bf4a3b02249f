//! The tree of a merge as a source of the writer.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redwarfs_format::metadata::{Attributes, FileType, Timestamp};
use redwarfs_format::{EntryIndex, Error as FormatError};
use redwarfs_reader::Image;
use redwarfs_writer::{Content, DirItem, ExtendedAttributes, Meta, OPAQUE_ATTRIBUTE, Source};

use super::options::{Part, Whiteouts};
use super::places::Places;
use super::tree::{Origin, ROOT, Space, Tree, Way};
use crate::error::Result;
use crate::stored::{StoredContent, StoredMeta};

/// The same for mounts of overlayfs that use the namespace of users.
const USER_OPAQUE_ATTRIBUTE: &[u8] = b"user.overlay.opaque";
/// Attributes by which overlayfs knows what a layer hides.
const MARKS: [&[u8]; 4] = [
    OPAQUE_ATTRIBUTE,
    USER_OPAQUE_ATTRIBUTE,
    b"trusted.overlay.whiteout",
    b"user.overlay.whiteout",
];

/// Hard links in images of format 2.2 and older: the first entry of the same file, by entry. Empty for
/// other images.
struct OldLinks(Vec<u32>);

impl OldLinks {
    fn new(image: &Image) -> Result<Self> {
        let view = image.metadata();
        if !view.is_legacy() {
            return Ok(Self(Vec::new()));
        }
        let mut known: HashMap<(u32, Attributes), u32> = HashMap::new();
        let first = (0..view.entry_count()).map(|entry| {
            let stat = view.entry_stat(EntryIndex(entry))?;
            Ok(*known
                .entry((stat.ino.0, stat.attributes()))
                .or_insert(entry))
        });
        Ok(Self(first.collect::<Result<_, FormatError>>()?))
    }
}

/// The tree, and the images that hold its entries.
pub(crate) struct MergedSource<'a> {
    parts: &'a [Part<'a>],
    tree: &'a Tree,
    way: Mutex<Way>,
    links: Vec<OldLinks>,
    /// Through which file contents are read.
    places: Places,
    /// From this part on, what overlayfs looks at stays. Before, it is left out.
    marked: u32,
    /// Attributes that no image can have.
    unstorable: AtomicU64,
    /// Attributes of directories that no part has.
    directory: Meta,
}

impl fmt::Debug for MergedSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergedSource").finish_non_exhaustive()
    }
}

impl<'a> MergedSource<'a> {
    /// The first `layers` parts are those that `whiteouts` is about.
    pub(crate) fn new(
        parts: &'a [Part<'a>],
        layers: usize,
        tree: &'a Tree,
        whiteouts: Whiteouts,
    ) -> Result<Self> {
        let links = parts.iter().map(|part| OldLinks::new(part.image));
        let mut this = Self {
            parts,
            tree,
            way: Mutex::default(),
            links: links.collect::<Result<_>>()?,
            places: Places::default(),
            marked: match whiteouts {
                Whiteouts::Apply => u32::try_from(layers).unwrap_or(u32::MAX),
                Whiteouts::Keep | Whiteouts::Overlay => 0,
            },
            unstorable: AtomicU64::new(0),
            directory: blank(FileType::Directory, 0o755),
        };
        // Like the root of the first part, as new as the newest one.
        let mut roots = (0u32..).zip(parts).map(|(number, part)| {
            let root = part.image.metadata().root_entry();
            let meta = this.meta_of(number, part.image, root);
            meta.map_err(|error| error.of_part(number as usize))
        });
        if let Some(first) = roots.next() {
            let mut directory = first?;
            for root in roots {
                let root = root?;
                directory.mtime = directory.mtime.max(root.mtime);
                directory.atime = directory.atime.max(root.atime);
                directory.ctime = directory.ctime.max(root.ctime);
            }
            directory.extended = ExtendedAttributes::default();
            directory.identity = (0, 0);
            this.directory = directory;
        }
        // The tree has the roots, too.
        this.unstorable = AtomicU64::new(0);
        Ok(this)
    }

    /// Reads what several parts have at the same place of the same file through one of them.
    pub(crate) fn reading_once(mut self) -> Result<Self> {
        self.places = Places::of(self.parts)?;
        Ok(self)
    }

    /// The part and the content of a regular file.
    pub(crate) fn content(&self, path: &[u8]) -> Option<(u32, u32)> {
        let Origin::Part(number, entry) = self.tree.origin(self.find(path)?) else {
            return None;
        };
        let view = self.parts.get(number as usize)?.image.metadata();
        let inode = view.entry_inode(entry).ok()?;
        Some((number, view.content_id(inode).ok()?))
    }

    /// Number of the attributes that were left out because no image can have them.
    pub(crate) fn unstorable(&self) -> u64 {
        self.unstorable.load(Ordering::Relaxed)
    }

    fn find(&self, path: &[u8]) -> Option<u32> {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.find(self.tree, path)
    }

    fn meta(&self, node: u32) -> Result<Meta> {
        let mut meta = match self.tree.origin(node) {
            Origin::Directory => self.directory.clone(),
            Origin::Whiteout => Meta {
                mtime: self.directory.mtime,
                atime: self.directory.atime,
                ctime: self.directory.ctime,
                ..blank(FileType::CharDevice, 0)
            },
            Origin::Part(number, entry) => {
                let part = self.parts.get(number as usize);
                let part = part.ok_or_else(|| FormatError::corrupt("no such part"))?;
                self.meta_of(number, part.image, entry)?
            }
        };
        for (space, name) in [
            (Space::Trusted, OPAQUE_ATTRIBUTE),
            (Space::User, USER_OPAQUE_ATTRIBUTE),
        ] {
            if self.tree.is_opaque(node, space) {
                meta.extended.set(name, *b"y");
            }
        }
        Ok(meta)
    }

    fn meta_of(&self, number: u32, image: &Image, entry: EntryIndex) -> Result<Meta> {
        let stat = image.metadata().entry_stat(entry)?;
        let marked = number >= self.marked;
        let keeps = |name: &[u8]| marked || !MARKS.contains(&name);
        let mut stored = StoredMeta::read(image, &stat, u64::from(number) + 1, keeps)?;
        self.unstorable
            .fetch_add(stored.unstorable, Ordering::Relaxed);
        let old = self.links.get(number as usize).map(|links| &links.0);
        if let Some(&first) = old.and_then(|links| links.get(entry.0 as usize)) {
            stored.meta.nlink = 2;
            stored.meta.identity.1 = u64::from(first) + 1;
        }
        Ok(stored.meta)
    }
}

/// An entry without attributes.
fn blank(kind: FileType, permissions: u32) -> Meta {
    Meta {
        kind,
        permissions,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        nlink: 1,
        identity: (0, 0),
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        target: None,
        extended: ExtendedAttributes::default(),
    }
}

impl Source for MergedSource<'_> {
    fn root(&self) -> io::Result<Meta> {
        self.meta(ROOT).map_err(io::Error::other)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let node = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        let items = self.tree.children(node).map(|(name, child)| DirItem {
            name: name.to_vec(),
            meta: self.meta(child).map_err(io::Error::other),
        });
        Ok(items.collect())
    }

    fn memory(&self) -> u64 {
        self.tree.memory()
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let node = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        let Origin::Part(number, entry) = self.tree.origin(node) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let image = |number: u32| {
            let part = self.parts.get(number as usize);
            part.map(|part| part.image).ok_or(io::ErrorKind::NotFound)
        };
        let own = image(number)?;
        let view = own.metadata();
        let mut stat = view.entry_stat(entry).map_err(io::Error::other)?;
        let content = view.content_id(stat.ino).map_err(io::Error::other)?;
        let read = match self.places.get(number, content) {
            Some((number, inode)) => {
                stat.ino = inode;
                image(number)?
            }
            None => own,
        };
        let opened = StoredContent::open(read, &stat);
        Ok(Box::new(opened.map_err(io::Error::other)?))
    }
}
