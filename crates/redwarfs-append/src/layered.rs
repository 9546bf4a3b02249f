//! An image with the changes of a layer, as the source of a new generation.
//!
//! The layer is a directory in the format of overlayfs, and the tree is what an overlay of both shows. The layer is
//! read. Of the image only metadata is read, because a file without changes is known by its place.
//!
//! What the layer says by attributes, in `trusted.overlay` or `user.overlay`:
//!
//! | attribute | of | meaning |
//! |---|---|---|
//! | `opaque` = `y` | a directory | it shows nothing of the image |
//! | `redirect` | a directory | it shows another directory of the image, unless it is opaque; it was renamed |
//! | `whiteout` | an empty file | the name is not there, as for a character device 0:0 |
//! | `metacopy` | a file | only its attributes have changed; its data is in the image, under its name or where `redirect` says |
//!
//! No attribute of overlayfs is part of the tree.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use redwarfs_format::{Error as FormatError, InodeNo};
use redwarfs_reader::Image;
use redwarfs_rewrite::{StoredContent, StoredMeta};
use redwarfs_writer::{
    BaseContent, Content, DirItem, DirectorySource, ExtendedAttributes, FileType, Meta, Source,
    Timestamp, join,
};

/// Prefixes of the attributes of overlayfs.
const PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// The device of the identities of inodes of the image: no file system has it.
const DEVICE: u64 = u64::MAX;
/// Memory of a directory of the image that was listed.
const LISTED: u64 = 40;

/// An image with the changes of a layer.
///
/// Memory: up to 40 bytes for each directory of the image, and the paths of the directories and the names in the layer.
pub struct Layered {
    image: Image,
    upper: DirectorySource,
    /// The directories of the layer that were met, by path.
    known: RwLock<HashMap<Vec<u8>, Known>>,
    /// The directories of the image that were listed, with a digest of their paths: each has one place.
    listed: Mutex<HashMap<InodeNo, u64>>,
    /// There was a directory or a file whose name in the image is another one.
    moved: AtomicBool,
}

/// A directory of the layer.
#[derive(Debug, Default)]
struct Known {
    /// The directory of the image that it shows, too.
    below: Option<InodeNo>,
    /// What the layer has in it, once it was listed.
    names: HashMap<Vec<u8>, Data>,
    /// When it was changed, as of a moment before it was listed.
    times: Option<Times>,
}

/// The modification time and the change time of a directory.
type Times = (Timestamp, Timestamp);

fn times(meta: &Meta) -> Times {
    (meta.mtime, meta.ctime)
}

/// Where the data of an entry of the layer is.
#[derive(Debug, Clone, Copy)]
enum Data {
    /// In the layer, or there is none.
    Layer,
    /// In a regular file of the image.
    Image(InodeNo),
}

/// What a path leads to, without its attributes.
#[derive(Debug, Clone, Copy)]
enum PathTarget {
    /// A directory of the layer, and the one of the image that it shows.
    Layer(Option<InodeNo>),
    Image(InodeNo),
}

/// What attributes of overlayfs say about an entry.
#[derive(Debug, Default)]
struct Marks {
    opaque: bool,
    whiteout: bool,
    metacopy: bool,
    redirect: Option<Vec<u8>>,
}

impl Marks {
    /// Takes the marks from the attributes.
    ///
    /// # Errors
    /// There may be marks that could not be read.
    fn take(extended: &mut ExtendedAttributes) -> io::Result<Self> {
        let mut marks = Self::default();
        let mut any = false;
        let mut unreadable = extended.unreadable().iter();
        if unreadable.any(|name| name.is_empty() || mark(name).is_some()) {
            let text = "the attributes of overlayfs cannot be read";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        for xattr in extended.xattrs() {
            let Some(mark) = mark(&xattr.name) else {
                continue;
            };
            any = true;
            match mark {
                b"opaque" => marks.opaque |= xattr.value.first() == Some(&b'y'),
                b"whiteout" => marks.whiteout = true,
                b"metacopy" => marks.metacopy = true,
                b"redirect" => marks.redirect = Some(xattr.value.clone()),
                _ => {}
            }
        }
        if any {
            extended.retain(|name| mark(name).is_none());
        }
        Ok(marks)
    }
}

/// The mark that an attribute is.
fn mark(name: &[u8]) -> Option<&[u8]> {
    PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix))
}

fn is_whiteout(meta: &Meta, marks: &Marks) -> bool {
    match meta.kind {
        FileType::CharDevice => meta.rdev == 0,
        FileType::Regular => marks.whiteout && meta.size == 0,
        _ => false,
    }
}

impl fmt::Debug for Layered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered")
            .field("upper", &self.upper.path())
            .finish_non_exhaustive()
    }
}

fn to_io(error: FormatError) -> io::Error {
    match error {
        FormatError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

fn damaged(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The directory of a path, and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => {
            let (directory, name) = path.split_at(at);
            (directory, name.get(1..).unwrap_or_default())
        }
        None => (b"", path),
    }
}

/// Whether a name of an image can be that of an entry.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl Layered {
    /// The newest generation of an image with the changes in `upper`, which has to pass on all extended attributes, and
    /// has to pass on symbolic links as they are.
    #[must_use]
    pub fn new(image: Image, upper: DirectorySource) -> Self {
        let root = Known {
            below: Some(image.root()),
            ..Known::default()
        };
        Self {
            image,
            upper,
            known: RwLock::new(HashMap::from([(Vec::new(), root)])),
            listed: Mutex::default(),
            moved: AtomicBool::new(false),
        }
    }

    /// Whether the layer has names for what has another name in the image. Once the tree is in an image, the layer means
    /// something else on top of it: the old names are gone there. Known when everything was listed.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// The inode of the image with the data of a regular file. None if the layer has the data.
    fn inode(&self, path: &[u8]) -> Option<InodeNo> {
        let (directory, name) = split(path);
        let place = self.place(directory).ok()?;
        let below = match place {
            PathTarget::Layer(below) => {
                let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
                match known.get(directory).and_then(|known| known.names.get(name)) {
                    Some(Data::Image(inode)) => return Some(*inode),
                    Some(Data::Layer) => return None,
                    None => below?,
                }
            }
            PathTarget::Image(directory) => directory,
        };
        let found = self.find(below, name).ok()??;
        self.is(found, FileType::Regular).ok()?.then_some(found)
    }

    /// A directory of the layer whose names have changed since it was listed.
    #[must_use]
    pub fn changed(&self) -> Option<Vec<u8>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let is_changed = |path: &[u8], known: &Known| {
            let found = self.upper.stat(path).ok();
            found.as_ref().map(times) != known.times
        };
        let mut changed = known.iter().filter(|(path, dir)| is_changed(path, dir));
        changed.next().map(|(path, _)| path.clone())
    }

    fn is(&self, inode: InodeNo, kind: FileType) -> io::Result<bool> {
        let found = self.image.metadata().file_type(inode);
        Ok(found.map_err(to_io)? == kind)
    }

    fn find(&self, directory: InodeNo, name: &[u8]) -> io::Result<Option<InodeNo>> {
        let view = self.image.metadata();
        let found = view.find(directory, name).map_err(to_io)?;
        let inode = found.map(|entry| view.entry_inode(entry)).transpose();
        inode.map_err(to_io)
    }

    /// The directory that a path leads to. Its parents were listed before.
    fn place(&self, path: &[u8]) -> io::Result<PathTarget> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (mut above, mut names) = (path, Vec::new());
        let nearest = loop {
            if let Some(found) = known.get(above) {
                break found;
            }
            let (directory, name) = split(above);
            names.push(name);
            above = directory;
        };
        let Some(first) = names.last() else {
            return Ok(PathTarget::Layer(nearest.below));
        };
        if nearest.names.contains_key(*first) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut at = nearest.below.ok_or(io::ErrorKind::NotFound)?;
        for name in names.iter().rev() {
            at = self.find(at, name)?.ok_or(io::ErrorKind::NotFound)?;
            if !self.is(at, FileType::Directory)? {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Ok(PathTarget::Image(at))
    }

    /// What an entry of the layer shows of the image: what has its name there, or what it is redirected to.
    fn below(
        &self,
        directory: Option<InodeNo>,
        name: &[u8],
        marks: &Marks,
    ) -> io::Result<Option<InodeNo>> {
        let name = match &marks.redirect {
            None => name,
            Some(redirect) => {
                self.moved.store(true, Ordering::Relaxed);
                if let Some(path) = redirect.strip_prefix(b"/") {
                    return self.image.find_path(path).map_err(to_io);
                }
                if !is_name(redirect) {
                    return Err(damaged("the attribute overlay.redirect is no name"));
                }
                redirect
            }
        };
        match directory {
            Some(directory) => self.find(directory, name),
            None => Ok(None),
        }
    }

    /// The data of a file of which the layer has only attributes.
    fn data_below(&self, found: Option<InodeNo>, meta: &mut Meta) -> io::Result<InodeNo> {
        let missing = || damaged("the image has not the data of this file");
        let inode = found.ok_or_else(missing)?;
        let stat = self.image.stat(inode).map_err(to_io)?;
        if stat.file_type() != Some(FileType::Regular) || stat.size != meta.size {
            return Err(missing());
        }
        meta.allocated = stat.allocated;
        Ok(inode)
    }

    /// The entries that the layer has in a directory. What it hides is not among them, but in `names`.
    fn own_items(
        &self,
        path: &[u8],
        below: Option<InodeNo>,
        names: &mut HashMap<Vec<u8>, Data>,
        directories: &mut Vec<(Vec<u8>, Known)>,
    ) -> io::Result<Vec<DirItem>> {
        let mut items = Vec::new();
        for mut item in self.upper.read_dir(path)? {
            let mut data = Data::Layer;
            if let Ok(meta) = &mut item.meta {
                let marks = match Marks::take(&mut meta.extended) {
                    Ok(marks) => marks,
                    Err(error) => {
                        names.insert(item.name.clone(), data);
                        item.meta = Err(error);
                        items.push(item);
                        continue;
                    }
                };
                if is_whiteout(meta, &marks) {
                    names.insert(item.name, data);
                    continue;
                }
                let found = match meta.kind {
                    FileType::Directory if marks.opaque => Ok(None),
                    FileType::Directory => self.below(below, &item.name, &marks),
                    FileType::Regular if marks.metacopy => {
                        let found = self.below(below, &item.name, &marks);
                        found.and_then(|found| self.data_below(found, meta).map(Some))
                    }
                    _ => Ok(None),
                };
                match (found, meta.kind) {
                    (Err(error), _) => item.meta = Err(error),
                    (Ok(found), FileType::Directory) => {
                        let below = match found {
                            Some(inode) if self.is(inode, FileType::Directory)? => Some(inode),
                            _ => None,
                        };
                        let known = Known {
                            below,
                            times: Some(times(meta)),
                            ..Known::default()
                        };
                        directories.push((join(path, &item.name), known));
                    }
                    (Ok(Some(inode)), _) => data = Data::Image(inode),
                    (Ok(None), _) => {}
                }
            }
            names.insert(item.name.clone(), data);
            items.push(item);
        }
        Ok(items)
    }

    /// Adds the entries of a directory of the image that the layer does not hide.
    fn add_stored(
        &self,
        path: &[u8],
        directory: InodeNo,
        names: &HashMap<Vec<u8>, Data>,
        items: &mut Vec<DirItem>,
    ) -> io::Result<()> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let digest = hasher.finish();
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if *listed.entry(directory).or_insert(digest) != digest {
            return Err(damaged("a directory of the image is in several places"));
        }
        drop(listed);
        let view = self.image.metadata();
        for entry in self.image.read_dir(directory).map_err(to_io)? {
            let entry = entry.map_err(to_io)?;
            if names.contains_key(&*entry.name) {
                continue;
            }
            let name = entry.name.into_owned();
            let read = || -> redwarfs_format::Result<StoredMeta> {
                if !is_name(&name) {
                    return Err(FormatError::corrupt("an entry has no valid name"));
                }
                let stat = view.entry_stat(entry.index)?;
                StoredMeta::read(&self.image, &stat, DEVICE, |_| true)
            };
            let meta = read().map(|stored| stored.meta).map_err(to_io);
            items.push(DirItem { name, meta });
        }
        Ok(())
    }
}

impl Source for Layered {
    fn root(&self) -> io::Result<Meta> {
        let mut meta = self.upper.root()?;
        Marks::take(&mut meta.extended)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(root) = known.get_mut(&b""[..]) {
            root.times = Some(times(&meta));
        }
        Ok(meta)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let (mut names, mut directories) = (HashMap::new(), Vec::new());
        let mut items = Vec::new();
        let below = match self.place(path)? {
            PathTarget::Layer(below) => {
                items = self.own_items(path, below, &mut names, &mut directories)?;
                below
            }
            PathTarget::Image(directory) => Some(directory),
        };
        if let Some(directory) = below {
            self.add_stored(path, directory, &names, &mut items)?;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(this) = known.get_mut(path) {
            this.names = names;
        }
        known.extend(directories);
        Ok(items)
    }

    fn memory(&self) -> u64 {
        let directories = u64::from(self.image.metadata().counts().directories);
        self.upper
            .memory()
            .saturating_add(directories.saturating_mul(LISTED))
    }

    fn failure(&self) -> Option<io::Error> {
        self.upper.failure()
    }

    fn no_more_reads(&self) {
        self.upper.no_more_reads();
    }

    fn most_entries(&self, most: u64) {
        self.upper.most_entries(most);
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let Some(inode) = self.inode(path) else {
            return self.upper.open(path);
        };
        let stat = self.image.stat(inode).map_err(to_io)?;
        let content = StoredContent::open(&self.image, &stat).map_err(to_io)?;
        Ok(Box::new(content))
    }

    fn stored(&self, path: &[u8]) -> Option<BaseContent> {
        let content = self.image.metadata().content_id(self.inode(path)?);
        content.ok().map(BaseContent)
    }

    fn activity(&self) -> u64 {
        self.upper.activity()
    }

    fn asking_about(&self) -> Option<Vec<u8>> {
        self.upper.asking_about()
    }

    fn leave_alone(&self, path: &[u8]) {
        self.upper.leave_alone(path);
    }

    fn display_path(&self, path: &[u8]) -> String {
        match self.inode(path) {
            Some(_) => format!("/{}", String::from_utf8_lossy(path)),
            None => self.upper.display_path(path),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;

    use redwarfs_io::MemorySource;
    use redwarfs_reader::OpenOptions;
    use redwarfs_writer::{BuildOptions, Builder, MemoryNode, MemoryTree, SilentProgress};

    use super::*;

    #[test]
    fn names_that_come_after_the_listing_are_noticed() {
        let (mut bytes, stop) = (Vec::new(), AtomicBool::new(false));
        let mut tree = MemoryTree::new();
        tree.insert("file", MemoryNode::file("data"));
        let built = Builder::new(BuildOptions::level(1)).build(
            &tree,
            &mut bytes,
            &SilentProgress::default(),
            &stop,
        );
        built.unwrap();
        let source = Arc::new(MemorySource::new(bytes));
        let image = Image::from_source(source, &OpenOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let upper = DirectorySource::new(dir.path()).unwrap();
        let layered = Layered::new(image, upper);
        layered.root().unwrap();
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            for item in layered.read_dir(&path).unwrap() {
                if item.meta.unwrap().kind == FileType::Directory {
                    paths.push(join(&path, &item.name));
                }
            }
        }
        assert_eq!(layered.changed(), None);
        // The clock of a file system has ticks.
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::write(dir.path().join("a/b/new"), "new").unwrap();
        assert_eq!(layered.changed(), Some(b"a/b".to_vec()));
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(layered.changed().is_some());
    }
}
