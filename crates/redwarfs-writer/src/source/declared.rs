//! Entries that the caller declares, besides those of another source.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::extended::{ExtendedAttributes, Xattr};
use super::{Content, DirItem, FileType, Meta, Source, Timestamp, join};
use crate::base::BaseContent;

/// A declaration for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Path below the root, components joined by `/`; empty for the root.
    pub path: Vec<u8>,
    /// The existing entry.
    pub what: Declared,
    /// Permission bits; `None` keeps the bits of an existing entry.
    pub permissions: Option<u32>,
    /// Owner; `None` keeps it.
    pub uid: Option<u32>,
    /// Group; `None` keeps it.
    pub gid: Option<u32>,
    /// Extended attributes, in addition to those of an existing entry and in their place. Declarations that
    /// change nothing else may stand beside another one for the same path.
    pub xattrs: Vec<Xattr>,
}

/// The entry that a declaration makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declared {
    /// The existing entry, with other attributes.
    Change,
    /// A directory. An existing directory keeps its contents.
    Directory,
    /// A regular file with the content of a file of the or an empty one.
    File(Option<PathBuf>),
    /// A symlink with this target.
    Symlink(Vec<u8>),
    /// A character device with this number, in the encoding of the host.
    CharDevice(u64),
    /// A block device with this number, in the encoding of the host.
    BlockDevice(u64),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

/// Another source, with declarations on top.
///
/// Declared entries replace the entries of the other source with the same name. Parent directories that
/// are not declared have mode 0755, and belong to 0.
pub struct DeclaredSource {
    inner: Arc<dyn Source>,
    /// By directory and name. `None` for a parent directory that is not declared.
    children: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Option<usize>>>,
    declarations: Vec<Declaration>,
    root: Option<usize>,
    used: Vec<AtomicBool>,
    time: Timestamp,
    devices: bool,
    specials: bool,
    /// Directories that the other source does not have; parents come before their children.
    own: Mutex<HashSet<Vec<u8>>>,
}

impl fmt::Debug for DeclaredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredSource")
            .field("inner", &self.inner)
            .field("declarations", &self.declarations.len())
            .finish_non_exhaustive()
    }
}

impl DeclaredSource {
    /// Puts `declarations` on top of `inner`. New entries have the time `time`.
    ///
    /// A build with this source must store devices and specials. Devices and specials of `inner` are
    /// left out, unless `devices` and `specials` are true.
    ///
    /// # Errors
    /// A path is declared twice, or below a declared entry that is no directory.
    pub fn new(
        inner: Arc<dyn Source>,
        declarations: Vec<Declaration>,
        time: Timestamp,
        devices: bool,
        specials: bool,
    ) -> Result<Self, DeclarationError> {
        let declarations = joined(declarations);
        let mut by_path: BTreeMap<&[u8], usize> = BTreeMap::new();
        for (number, declaration) in declarations.iter().enumerate() {
            if by_path.insert(&declaration.path, number).is_some() {
                return Err(DeclarationError::Twice(declaration.path.clone()));
            }
        }
        let mut children: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Option<usize>>> = BTreeMap::new();
        for declaration in &declarations {
            let mut at = 0;
            while at < declaration.path.len() {
                let rest = declaration.path.get(at..).unwrap_or_default();
                let length = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
                let (end, name) = (at + length, rest.get(..length).unwrap_or_default());
                let parent = declaration.path.get(..at.saturating_sub(1));
                let whole = declaration.path.get(..end).unwrap_or_default();
                let declared = by_path.get(whole).copied();
                let last = end == declaration.path.len();
                if !last
                    && let Some(up) = declared.and_then(|number| declarations.get(number))
                    && !matches!(up.what, Declared::Directory | Declared::Change)
                {
                    return Err(DeclarationError::NotADirectory(whole.to_vec()));
                }
                children
                    .entry(parent.unwrap_or_default().to_vec())
                    .or_default()
                    .insert(name.to_vec(), declared);
                at = end + 1;
            }
        }
        let root = by_path.get(&b""[..]).copied();
        let used = declarations
            .iter()
            .map(|_| AtomicBool::new(false))
            .collect();
        Ok(Self {
            inner,
            children,
            root,
            used,
            declarations,
            time,
            devices,
            specials,
            own: Mutex::default(),
        })
    }

    /// Paths of declarations without effect so far: changes of entries that do not exist, and entries
    /// below an entry that is no directory.
    pub fn unused(&self) -> Vec<&[u8]> {
        self.declarations
            .iter()
            .zip(&self.used)
            .filter(|(_, used)| !used.load(Ordering::Relaxed))
            .map(|(declaration, _)| declaration.path.as_slice())
            .collect()
    }

    fn use_up(&self, number: usize) -> Option<&Declaration> {
        if let Some(used) = self.used.get(number) {
            used.store(true, Ordering::Relaxed);
        }
        self.declarations.get(number)
    }

    /// The file with the content of a declared regular file, or none for an empty one. None if no regular file is
    /// declared there.
    fn file(&self, path: &[u8]) -> Option<Option<&Path>> {
        let (parent, name) = match path.iter().rposition(|&b| b == b'/') {
            Some(at) => (path.get(..at), path.get(at + 1..)),
            None => (Some(&b""[..]), Some(path)),
        };
        let names = self.children.get(parent.unwrap_or_default())?;
        let number = names.get(name.unwrap_or_default()).copied().flatten()?;
        match &self.declarations.get(number)?.what {
            Declared::File(file) => Some(file.as_deref()),
            _ => None,
        }
    }

    fn own(&self) -> std::sync::MutexGuard<'_, HashSet<Vec<u8>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry that is not in the other source.
    fn fresh(&self, declaration: Option<&Declaration>) -> io::Result<Meta> {
        let what = declaration.map_or(&Declared::Directory, |declaration| &declaration.what);
        let mut meta = Meta {
            kind: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            nlink: 1,
            identity: (0, 0),
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            target: None,
            extended: ExtendedAttributes::default(),
        };
        match what {
            Declared::Directory | Declared::Change => {}
            Declared::File(None) => (meta.kind, meta.permissions) = (FileType::Regular, 0o644),
            Declared::File(Some(path)) => {
                meta = crate::os::meta_of_file(path)?;
                meta.identity = (0, 0);
                meta.nlink = 1;
            }
            Declared::Symlink(target) => {
                (meta.kind, meta.permissions) = (FileType::Symlink, 0o777);
                meta.target = Some(target.clone());
            }
            Declared::CharDevice(number) => {
                (meta.kind, meta.permissions) = (FileType::CharDevice, 0o644);
                meta.rdev = *number;
            }
            Declared::BlockDevice(number) => {
                (meta.kind, meta.permissions) = (FileType::BlockDevice, 0o644);
                meta.rdev = *number;
            }
            Declared::Fifo => (meta.kind, meta.permissions) = (FileType::Fifo, 0o644),
            Declared::Socket => (meta.kind, meta.permissions) = (FileType::Socket, 0o644),
        }
        if let Some(declaration) = declaration {
            declaration.apply(&mut meta);
        }
        Ok(meta)
    }

    /// The entries of a directory; `inner` lists those of the other source.
    fn listed(
        &self,
        path: &[u8],
        inner: impl FnOnce(&[u8]) -> io::Result<Vec<DirItem>>,
    ) -> io::Result<Vec<DirItem>> {
        let mut items = if self.own().contains(path) {
            Vec::new()
        } else {
            inner(path)?
        };
        items.retain(|item| match item.meta.as_ref().map(|meta| meta.kind) {
            Ok(FileType::CharDevice | FileType::BlockDevice) => self.devices,
            Ok(FileType::Fifo | FileType::Socket) => self.specials,
            _ => true,
        });
        let Some(children) = self.children.get(path) else {
            return Ok(items);
        };
        let mut left = children.clone();
        let mut kept = Vec::with_capacity(items.len() + left.len());
        for mut item in items {
            let declared = left.get(&item.name).copied();
            let is_directory =
                (item.meta.as_ref()).is_ok_and(|meta| meta.kind == FileType::Directory);
            let stays = match declared {
                None | Some(None) => true,
                Some(Some(number)) => match self.declarations.get(number).map(|d| &d.what) {
                    Some(Declared::Change) => true,
                    Some(Declared::Directory) => is_directory,
                    _ => false,
                },
            };
            if stays {
                left.remove(&item.name);
                if let (Some(Some(number)), Ok(meta)) = (declared, &mut item.meta)
                    && let Some(declaration) = self.use_up(number)
                {
                    declaration.apply(meta);
                }
                kept.push(item);
            }
        }
        for (name, number) in left {
            let declaration = number.and_then(|number| self.declarations.get(number));
            if declaration.is_some_and(|declaration| declaration.what == Declared::Change) {
                continue;
            }
            if let Some(number) = number {
                self.use_up(number);
            }
            let meta = self.fresh(declaration);
            if meta
                .as_ref()
                .is_ok_and(|meta| meta.kind == FileType::Directory)
            {
                self.own().insert(join(path, &name));
            }
            kept.push(DirItem { name, meta });
        }
        Ok(kept)
    }
}

/// Errors of declarations that exclude each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// A path is declared twice.
    #[error("declared twice: {}", String::from_utf8_lossy(.0))]
    Twice(Vec<u8>),
    /// An entry is declared below an entry that is no directory.
    #[error("declared as something else than a directory, but with entries below it: {}", String::from_utf8_lossy(.0))]
    NotADirectory(Vec<u8>),
}

/// Joins declarations of extended attributes alone with the declaration for the same path that comes
/// before or after them.
fn joined(declarations: Vec<Declaration>) -> Vec<Declaration> {
    let mut joined: Vec<Declaration> = Vec::with_capacity(declarations.len());
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    for mut next in declarations {
        let before = places.get(&next.path).copied();
        match before.and_then(|at| joined.get_mut(at)) {
            Some(before) if next.has_xattrs_only() => before.xattrs.append(&mut next.xattrs),
            Some(before) if before.has_xattrs_only() => {
                let mut xattrs = std::mem::take(&mut before.xattrs);
                xattrs.append(&mut next.xattrs);
                next.xattrs = xattrs;
                *before = next;
            }
            _ => {
                places.insert(next.path.clone(), joined.len());
                joined.push(next);
            }
        }
    }
    joined
}

impl Declaration {
    fn has_xattrs_only(&self) -> bool {
        self.what == Declared::Change
            && (self.permissions, self.uid, self.gid) == (None, None, None)
            && !self.xattrs.is_empty()
    }

    fn apply(&self, meta: &mut Meta) {
        meta.permissions = self.permissions.unwrap_or(meta.permissions);
        meta.uid = self.uid.unwrap_or(meta.uid);
        meta.gid = self.gid.unwrap_or(meta.gid);
        for xattr in &self.xattrs {
            meta.extended.set(xattr.name.clone(), xattr.value.clone());
        }
    }
}

impl Source for DeclaredSource {
    fn root(&self) -> io::Result<Meta> {
        let mut meta = self.inner.root()?;
        if let Some(declaration) = self.root.and_then(|number| self.use_up(number)) {
            declaration.apply(&mut meta);
        }
        Ok(meta)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        self.listed(path, |path| self.inner.read_dir(path))
    }

    fn lists_in_parallel(&self) -> bool {
        self.inner.lists_in_parallel()
    }

    fn read_dir_beside(
        &self,
        path: &[u8],
        more: &dyn Fn(usize) -> bool,
    ) -> io::Result<Vec<DirItem>> {
        self.listed(path, |path| self.inner.read_dir_beside(path, more))
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        match self.file(path) {
            Some(Some(file)) => crate::os::open_file(file),
            Some(None) => Ok(Box::new(Nothing(self.time))),
            None => self.inner.open(path),
        }
    }

    fn stored(&self, path: &[u8]) -> Option<BaseContent> {
        match self.file(path) {
            Some(_) => None,
            None => self.inner.stored(path),
        }
    }

    fn memory(&self) -> u64 {
        // Including its places in two tables.
        let each = |declaration: &Declaration| 300 + 2 * declaration.path.len() as u64;
        let own: u64 = self.declarations.iter().map(each).sum();
        own.saturating_add(self.inner.memory())
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn no_more_reads(&self) {
        self.inner.no_more_reads();
    }

    fn most_entries(&self, most: u64) {
        self.inner.most_entries(most);
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.inner.list_position(path)
    }

    fn display_path(&self, path: &[u8]) -> String {
        self.inner.display_path(path)
    }

    fn activity(&self) -> u64 {
        self.inner.activity()
    }

    fn asking_about(&self) -> Option<Vec<u8>> {
        self.inner.asking_about()
    }

    fn leave_alone(&self, path: &[u8]) {
        self.inner.leave_alone(path);
    }
}

/// An empty file.
struct Nothing(Timestamp);

impl Content for Nothing {
    fn stamp(&self) -> io::Result<super::Stamp> {
        Ok(super::Stamp {
            size: 0,
            mtime: self.0,
        })
    }

    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}
