//! A tree of entries that a program puts together.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_writer::{Content, DirItem, ExtendedAttributes, Meta, Source, Stamp};

/// Bytes of contents that stay in memory (64 MiB). Further contents go to a temporary file.
const KEPT: u64 = 64 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// The attributes of an entry of a [`Collection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// Permission bits, `07777`; other bits are ignored.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time. The other times are stored only with
    /// [`BuildOptions::keep_all_times`](crate::BuildOptions::keep_all_times).
    pub mtime: Timestamp,
    /// Access time.
    pub atime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
}

impl Attributes {
    /// Attributes with these permissions. The owner is root, and all times are 1970, so that equal
    /// contents give equal images.
    #[must_use]
    pub fn new(permissions: u32) -> Self {
        Self {
            permissions,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
        }
    }
}

/// A tree of entries that a program adds one by one, as input of a
/// [`Builder`](crate::Builder::from_source).
///
/// Directories above an entry that do not exist are added, with permissions 0755. Contents stay in
/// memory up to 64 MiB together. Further contents go to an unnamed file in the directory for temporary
/// files ([`std::env::temp_dir`]).
///
/// ```
/// use std::sync::Arc;
/// use redwarfs::{Attributes, Builder, Collection, Image};
///
/// let mut collection = Collection::new();
/// collection.file("doc/note", &mut "first".as_bytes(), Attributes::new(0o644))?;
/// collection.symlink("doc/latest", "note", Attributes::new(0o777))?;
/// let mut bytes = Vec::new();
/// Builder::from_source(Arc::new(collection)).level(1).write(&mut bytes)?;
///
/// let image = Image::from_source(Arc::new(redwarfs::io::MemorySource::new(bytes)), &Default::default())?;
/// assert_eq!(std::io::read_to_string(image.file("doc/latest")?)?, "first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Collection {
    nodes: Vec<Node>,
    /// Bytes of contents in memory.
    kept: u64,
    spool: Option<Spool>,
}

#[derive(Debug)]
struct Node {
    meta: Meta,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Directory(BTreeMap<Vec<u8>, usize>),
    Memory(Arc<[u8]>),
    Spooled { offset: u64 },
    Disk(PathBuf),
    Nothing,
}

/// The temporary file, and how much of it is used.
#[derive(Debug)]
struct Spool {
    file: Arc<File>,
    len: u64,
}

const ROOT: usize = 0;

impl Default for Collection {
    fn default() -> Self {
        Self::new()
    }
}

impl Collection {
    /// A tree with an empty root directory.
    #[must_use]
    pub fn new() -> Self {
        let mut collection = Self {
            nodes: Vec::new(),
            kept: 0,
            spool: None,
        };
        collection.push_directory(Attributes::new(0o755));
        collection
    }

    /// Number of entries, the root included. Names of one file with several hard links count once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no entry but the root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Adds a directory, or changes the attributes of an existing one. The empty path is the root.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the path has a component `..`, or NUL,
    /// [`io::ErrorKind::NotADirectory`] if something above it is no directory, and
    /// [`io::ErrorKind::AlreadyExists`] if an entry of another type has the path.
    pub fn directory(&mut self, path: impl AsRef<Path>, attributes: Attributes) -> io::Result<()> {
        let path = path.as_ref();
        let mut at = ROOT;
        for name in names(path)? {
            at = self.child_directory(at, name, path)?;
        }
        let meta = meta(FileType::Directory, attributes, at);
        self.node_mut(at)?.meta = meta;
        Ok(())
    }

    /// Adds a regular file with the bytes that `content` gives until its end. Returns their number.
    ///
    /// # Errors
    /// As [`Collection::directory`], and the errors of `content` and of the temporary file.
    pub fn file(
        &mut self,
        path: impl AsRef<Path>,
        content: &mut dyn Read,
        attributes: Attributes,
    ) -> io::Result<u64> {
        let place = self.place(path.as_ref())?;
        let (body, size) = self.store(content)?;
        if let Body::Memory(bytes) = &body {
            self.kept += bytes.len() as u64;
        }
        let mut meta = meta(FileType::Regular, attributes, self.nodes.len());
        (meta.size, meta.allocated) = (size, size);
        self.add(place, Node { meta, body })?;
        Ok(size)
    }

    /// Adds a regular file with the content of a file on disk, which is read during the build. Without
    /// `attributes`, the entry gets those of the file.
    ///
    /// # Errors
    /// As [`Collection::directory`], those of the system, and [`io::ErrorKind::InvalidInput`] if
    /// `from` is no regular file.
    pub fn file_on_disk(
        &mut self,
        path: impl AsRef<Path>,
        from: impl Into<PathBuf>,
        attributes: Option<Attributes>,
    ) -> io::Result<u64> {
        let place = self.place(path.as_ref())?;
        let from = from.into();
        let found = std::fs::metadata(&from).map_err(|e| named(&from, &e))?;
        if !found.is_file() {
            let text = format!("{}: not a regular file", from.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let attributes = attributes.unwrap_or_else(|| attributes_of(&found));
        let mut meta = meta(FileType::Regular, attributes, self.nodes.len());
        (meta.size, meta.allocated) = (found.len(), found.len());
        let body = Body::Disk(from);
        self.add(place, Node { meta, body })?;
        Ok(found.len())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// As [`Collection::directory`].
    pub fn symlink(
        &mut self,
        path: impl AsRef<Path>,
        target: impl AsRef<Path>,
        attributes: Attributes,
    ) -> io::Result<()> {
        let place = self.place(path.as_ref())?;
        let mut meta = meta(FileType::Symlink, attributes, self.nodes.len());
        meta.target = Some(target.as_ref().as_os_str().as_bytes().to_vec());
        let body = Body::Nothing;
        self.add(place, Node { meta, body })
    }

    /// Adds another name for a regular file of the collection.
    ///
    /// # Errors
    /// As [`Collection::directory`]; [`io::ErrorKind::NotFound`] or [`io::ErrorKind::InvalidInput`] if
    /// `existing` is no regular file of the collection.
    pub fn hard_link(
        &mut self,
        path: impl AsRef<Path>,
        existing: impl AsRef<Path>,
    ) -> io::Result<()> {
        let existing = existing.as_ref();
        let at = self.find(existing)?;
        if self.node(at)?.meta.kind != FileType::Regular {
            return Err(failed(existing, io::ErrorKind::InvalidInput));
        }
        let (dir, name) = self.place(path.as_ref())?;
        self.node_mut(at)?.meta.nlink += 1;
        self.children_mut(dir)?.insert(name, at);
        Ok(())
    }

    /// Adds a device, FIFO or socket. `rdev` is the number of a device in the encoding of this system.
    /// A build stores such entries only with
    /// [`BuildOptions::with_devices`](crate::BuildOptions::with_devices) and
    /// [`BuildOptions::with_specials`](crate::BuildOptions::with_specials).
    ///
    /// # Errors
    /// As [`Collection::directory`]; [`io::ErrorKind::InvalidInput`] for other types.
    pub fn special(
        &mut self,
        path: impl AsRef<Path>,
        kind: FileType,
        rdev: u64,
        attributes: Attributes,
    ) -> io::Result<()> {
        let rdev = match kind {
            FileType::CharDevice | FileType::BlockDevice => rdev,
            FileType::Fifo | FileType::Socket => 0,
            FileType::Directory | FileType::Symlink | FileType::Regular => {
                return Err(failed(path.as_ref(), io::ErrorKind::InvalidInput));
            }
        };
        let place = self.place(path.as_ref())?;
        let mut meta = meta(kind, attributes, self.nodes.len());
        meta.rdev = rdev;
        let body = Body::Nothing;
        self.add(place, Node { meta, body })
    }

    /// The directory and the name of a new entry. Adds missing directories.
    fn place(&mut self, path: &Path) -> io::Result<(usize, Vec<u8>)> {
        let mut names = names(path)?;
        let Some(name) = names.pop() else {
            return Err(failed(path, io::ErrorKind::AlreadyExists));
        };
        let mut at = ROOT;
        for name in names {
            at = self.child_directory(at, name, path)?;
        }
        if self.children(at)?.contains_key(name) {
            return Err(failed(path, io::ErrorKind::AlreadyExists));
        }
        Ok((at, name.to_vec()))
    }

    fn add(&mut self, (dir, name): (usize, Vec<u8>), node: Node) -> io::Result<()> {
        let number = self.nodes.len();
        self.nodes.push(node);
        self.children_mut(dir)?.insert(name, number);
        Ok(())
    }

    fn push_directory(&mut self, attributes: Attributes) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Node {
            meta: meta(FileType::Directory, attributes, number),
            body: Body::Directory(BTreeMap::new()),
        });
        number
    }

    /// The directory of this name in another one, which is added if there is none.
    fn child_directory(&mut self, dir: usize, name: &[u8], path: &Path) -> io::Result<usize> {
        if let Some(&child) = self.children(dir)?.get(name) {
            return match self.node(child)?.body {
                Body::Directory(_) => Ok(child),
                _ => Err(failed(path, io::ErrorKind::NotADirectory)),
            };
        }
        let number = self.push_directory(Attributes::new(0o755));
        self.children_mut(dir)?.insert(name.to_vec(), number);
        Ok(number)
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut at = ROOT;
        for name in names(path)? {
            let child = self.children(at)?.get(name);
            at = *child.ok_or_else(|| failed(path, io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    fn node(&self, number: usize) -> io::Result<&Node> {
        self.nodes
            .get(number)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn node_mut(&mut self, number: usize) -> io::Result<&mut Node> {
        self.nodes
            .get_mut(number)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn children(&self, dir: usize) -> io::Result<&BTreeMap<Vec<u8>, usize>> {
        match &self.node(dir)?.body {
            Body::Directory(children) => Ok(children),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn children_mut(&mut self, dir: usize) -> io::Result<&mut BTreeMap<Vec<u8>, usize>> {
        match &mut self.node_mut(dir)?.body {
            Body::Directory(children) => Ok(children),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Reads a content to its end, into memory if there is room, or else into the temporary file.
    fn store(&mut self, content: &mut dyn Read) -> io::Result<(Body, u64)> {
        let room = KEPT.saturating_sub(self.kept);
        let mut kept = Vec::new();
        content.take(room + 1).read_to_end(&mut kept)?;
        let size = kept.len() as u64;
        if size <= room {
            return Ok((Body::Memory(kept.into()), size));
        }
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool {
                file: Arc::new(tempfile::tempfile()?),
                len: 0,
            }),
        };
        let offset = spool.len;
        spool.file.write_all_at(&kept, offset)?;
        let mut end = offset + size;
        kept.clear();
        kept.shrink_to(PIECE);
        kept.resize(PIECE, 0);
        loop {
            let count = match content.read(&mut kept) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            spool
                .file
                .write_all_at(kept.get(..count).unwrap_or_default(), end)?;
            end += count as u64;
        }
        spool.len = end;
        Ok((Body::Spooled { offset }, end - offset))
    }

    fn at(&self, path: &[u8]) -> io::Result<&Node> {
        self.node(self.find(Path::new(std::ffi::OsStr::from_bytes(path)))?)
    }
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collection")
            .field("nodes", &self.nodes.len())
            .field("kept", &self.kept)
            .field("spooled", &self.spool.as_ref().map_or(0, |spool| spool.len))
            .finish()
    }
}

/// The names of a path. `.` and repeated slashes do not matter.
fn names(path: &Path) -> io::Result<Vec<&[u8]>> {
    let bytes = path.as_os_str().as_bytes();
    let names: Vec<&[u8]> = bytes
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&b"..".as_slice()) || bytes.contains(&0) {
        return Err(failed(path, io::ErrorKind::InvalidInput));
    }
    Ok(names)
}

fn failed(path: &Path, kind: io::ErrorKind) -> io::Error {
    let shown = redwarfs_extractor::display_path(path.as_os_str().as_bytes());
    io::Error::new(kind, format!("cannot add to the image: {shown}: {kind}"))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The attributes of a new entry. Its number is its identity: numbers of the builder begin at 1.
fn meta(kind: FileType, attributes: Attributes, number: usize) -> Meta {
    Meta {
        kind,
        permissions: attributes.permissions,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        size: 0,
        allocated: 0,
        nlink: 1,
        identity: (0, number as u64 + 1),
        atime: attributes.atime,
        mtime: attributes.mtime,
        ctime: attributes.ctime,
        target: None,
        extended: ExtendedAttributes::default(),
    }
}

fn attributes_of(found: &std::fs::Metadata) -> Attributes {
    use std::os::unix::fs::MetadataExt;
    let time = |sec, nsec: i64| Timestamp {
        sec,
        nsec: u32::try_from(nsec).unwrap_or(0),
    };
    Attributes {
        permissions: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        mtime: time(found.mtime(), found.mtime_nsec()),
        atime: time(found.atime(), found.atime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
    }
}

impl Source for Collection {
    fn root(&self) -> io::Result<Meta> {
        Ok(self.node(ROOT)?.meta.clone())
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let Body::Directory(children) = &self.at(path)?.body else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        let items = children.iter().map(|(name, &number)| DirItem {
            name: name.clone(),
            meta: self.node(number).map(|node| node.meta.clone()),
        });
        Ok(items.collect())
    }

    fn lists_in_parallel(&self) -> bool {
        true
    }

    fn memory(&self) -> u64 {
        self.kept
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let node = self.at(path)?;
        let mut stamp = Stamp {
            size: node.meta.size,
            mtime: node.meta.mtime,
        };
        let (bytes, start) = match &node.body {
            Body::Memory(bytes) => (Bytes::Memory(Arc::clone(bytes)), 0),
            Body::Spooled { offset } => {
                let spool = self.spool.as_ref();
                let spool = spool.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                (Bytes::File(Arc::clone(&spool.file)), *offset)
            }
            Body::Disk(from) => {
                let file = File::open(from).map_err(|e| named(from, &e))?;
                stamp.size = file.metadata()?.len();
                (Bytes::File(Arc::new(file)), 0)
            }
            Body::Directory(_) | Body::Nothing => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(Box::new(Stored {
            bytes,
            start,
            stamp,
        }))
    }

    fn display_path(&self, path: &[u8]) -> String {
        redwarfs_extractor::display_path(path)
    }
}

enum Bytes {
    Memory(Arc<[u8]>),
    File(Arc<File>),
}

/// The content of a file.
struct Stored {
    bytes: Bytes,
    /// Where the content begins.
    start: u64,
    stamp: Stamp,
}

impl Content for Stored {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(self.stamp)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.stamp.size.saturating_sub(offset);
        let count = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let buf = buf.get_mut(..count).unwrap_or_default();
        match &self.bytes {
            Bytes::Memory(bytes) => {
                let from = usize::try_from(offset).ok();
                let found = from.and_then(|from| bytes.get(from..)?.get(..count));
                buf.copy_from_slice(found.unwrap_or_default());
                Ok(count)
            }
            Bytes::File(file) => file.read_at(buf, self.start.saturating_add(offset)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Image};

    fn built(collection: Collection) -> Image {
        let mut bytes = Vec::new();
        let builder = Builder::from_source(Arc::new(collection)).level(1);
        builder.write(&mut bytes).unwrap();
        let source = Arc::new(redwarfs_io::MemorySource::new(bytes));
        Image::from_source(source, &redwarfs_reader::OpenOptions::default()).unwrap()
    }

    fn content(image: &Image, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        image.file(path).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn entries_of_all_kinds_come_back() {
        let work = tempfile::tempdir().unwrap();
        let disk = work.path().join("disk");
        std::fs::write(&disk, "on disk").unwrap();
        let mut mine = Attributes::new(0o640);
        mine.uid = 1000;
        mine.mtime = Timestamp {
            sec: 1_600_000_000,
            nsec: 0,
        };
        let mut all = Collection::new();
        all.file("/a/b//memory", &mut b"in memory".as_slice(), mine)
            .unwrap();
        assert_eq!(all.file_on_disk("a/disk", &disk, None).unwrap(), 7);
        all.hard_link("other", "a/b/memory").unwrap();
        all.symlink("link", "a/disk", Attributes::new(0o777))
            .unwrap();
        all.directory("a", Attributes::new(0o700)).unwrap();
        all.special("fifo", FileType::Fifo, 3, Attributes::new(0o600))
            .unwrap();
        assert_eq!(all.len(), 7);

        let image = built(all);
        assert_eq!(content(&image, "a/b/memory"), b"in memory");
        assert_eq!(content(&image, "link"), b"on disk");
        let stat = image.metadata("other").unwrap();
        assert_eq!(
            (stat.nlink, stat.uid, stat.mtime.sec),
            (2, 1000, 1_600_000_000)
        );
        assert_eq!(stat.ino, image.metadata("a/b/memory").unwrap().ino);
        assert_eq!(image.metadata("a").unwrap().mode, 0o40700);
        assert_eq!(image.metadata("a/b").unwrap().mode, 0o40755);
        assert!(image.metadata("fifo").is_err());
    }

    #[test]
    fn what_cannot_be_added_is_named() {
        let mut all = Collection::new();
        let plain = Attributes::new(0o644);
        let mut empty = io::empty();
        all.file("file", &mut empty, plain).unwrap();
        let kinds = [
            all.file("file", &mut empty, plain).unwrap_err().kind(),
            all.file("", &mut empty, plain).unwrap_err().kind(),
            all.file("file/more", &mut empty, plain).unwrap_err().kind(),
            all.directory("file", plain).unwrap_err().kind(),
            all.file("a/../b", &mut empty, plain).unwrap_err().kind(),
            all.hard_link("b", "missing").unwrap_err().kind(),
            all.hard_link("b", "").unwrap_err().kind(),
        ];
        use io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory, NotFound};
        let wanted = [
            AlreadyExists,
            AlreadyExists,
            NotADirectory,
            NotADirectory,
            InvalidInput,
            NotFound,
            InvalidInput,
        ];
        assert_eq!(kinds, wanted);
        let e = all.file("file", &mut empty, plain).unwrap_err();
        assert!(
            e.to_string().starts_with("cannot add to the image: file: "),
            "{e}"
        );
    }

    #[test]
    fn contents_without_room_in_memory_go_to_a_file() {
        let mut all = Collection::new();
        let plain = Attributes::new(0o644);
        let big: Vec<u8> = (0..KEPT + 12_345).map(|i| (i >> 12) as u8).collect();
        all.file("big", &mut big.as_slice(), plain).unwrap();
        assert_eq!(all.kept, 0);
        let mut fails = io::Read::chain(big.as_slice(), Failing);
        assert!(all.file("broken", &mut fails, plain).is_err());
        all.file("again", &mut big.get(1..).unwrap(), plain)
            .unwrap();
        all.file("small", &mut b"small".as_slice(), plain).unwrap();
        assert_eq!(all.kept, 5);
        assert_eq!(all.spool.as_ref().unwrap().len, 2 * big.len() as u64 - 1);
        let image = built(all);
        assert!(content(&image, "big") == big);
        assert!(content(&image, "again") == big[1..]);
        assert_eq!(content(&image, "small"), b"small");
        assert!(image.file("broken").is_err());
    }

    struct Failing;

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
}
