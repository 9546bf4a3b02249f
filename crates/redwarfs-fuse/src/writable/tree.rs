//! The merged tree: what a name leads to, where a file of `upper` is, and copies of the lower tree.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fchmod, fdatasync, fstat, fsync, ftruncate, mkdirat, mknodat, openat, renameat, symlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::copies::{self, Copies};
use super::layer::{Layer, NAMES, UpperEntry, path_of, type_of};
use super::lower::{Lower, LowerNo};
use super::nodes::{NameInDir, Node, Nodes, ROOT, Spot, UpperNo};
use super::wire::{Valid, attr_of, device_number};
use crate::mount_state::MountState;
use crate::proto::Attr;

/// Data that is copied at a time, in bytes.
const COPY: usize = 1 << 20;

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Found {
    /// A file of `upper`; of a directory also what it shows of the lower tree.
    Upper(Stat, Option<LowerNo>),
    Lower(LowerNo),
}

/// The merged tree.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) state: Arc<MountState>,
    pub(super) lower: Box<dyn Lower>,
    pub(super) layer: Layer,
    pub(super) nodes: Nodes,
    pub(super) copies: Copies,
    /// Write-locked while names change. Not held while the lower tree is read.
    names: RwLock<()>,
    /// Attributes that could not be copied are mentioned once.
    lost_attributes: AtomicBool,
    pub(super) valid: Valid,
}

impl Tree {
    pub(super) fn new(
        state: &Arc<MountState>,
        lower: Box<dyn Lower>,
        layer: Layer,
    ) -> Result<Self, Errno> {
        let (nodes, _root) = Nodes::new(lower.root(), lower.first_free());
        let tree = Self {
            valid: Valid {
                names: state.settings.names,
                attributes: state.settings.attributes,
            },
            state: Arc::clone(state),
            lower,
            layer,
            nodes,
            copies: Copies::default(),
            names: RwLock::default(),
            lost_attributes: AtomicBool::new(false),
        };
        if tree.layer.is_new {
            // The root of the mount has the attributes of the root of `upper`.
            let root = tree.lower.root();
            let upper = tree.layer.open_in(tree.layer.upper(), b".", NAMES)?;
            tree.dress(&upper, root, &tree.lower.attr(root)?)?;
        }
        Ok(tree)
    }

    pub(super) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn node(&self, id: u64) -> Result<Arc<Node>, Errno> {
        // The kernel names only what it was told of.
        self.nodes.get(id).ok_or(Errno::STALE)
    }

    // All of these need one of the locks.

    /// The directory of `upper` of a node that is there.
    pub(super) fn directory(&self, node: &Arc<Node>) -> Result<OwnedFd, Errno> {
        let mut names = Vec::new();
        let mut at = Arc::clone(node);
        loop {
            match at.spot() {
                Spot::Root => return self.layer.open_below(self.layer.upper(), &names),
                Spot::Pin(pin) => return self.layer.open_below(pin.as_fd(), &names),
                Spot::Gone => return Err(Errno::NOENT),
                Spot::At(place) => {
                    names.push(place.name);
                    at = place.dir;
                }
            }
        }
    }

    /// A descriptor that names a file of `upper`.
    pub(super) fn name_of(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        match node.spot() {
            Spot::At(place) => {
                let dir = self.directory(&place.dir)?;
                let named = self.layer.open_in(dir.as_fd(), &place.name, NAMES);
                named.map(Arc::new)
            }
            Spot::Pin(pin) => Ok(pin),
            Spot::Root => {
                let named = self.layer.open_in(self.layer.upper(), b".", NAMES);
                named.map(Arc::new)
            }
            Spot::Gone => Err(Errno::NOENT),
        }
    }

    /// Opens a file of `upper`, whatever its mode is: the kernel has checked what the program may do.
    pub(super) fn open(&self, node: &Arc<Node>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened = match node.spot() {
            Spot::At(place) => {
                let dir = self.directory(&place.dir)?;
                openat(dir, &*place.name, flags | OFlags::NOFOLLOW, Mode::empty())
            }
            Spot::Pin(pin) => rustix::fs::open(path_of(&*pin), flags, Mode::empty()),
            Spot::Root => openat(self.layer.upper(), ".", flags, Mode::empty()),
            Spot::Gone => Err(Errno::NOENT),
        };
        if !matches!(opened, Err(Errno::ACCESS)) {
            return opened;
        }
        let named = self.name_of(node)?;
        let path = path_of(&*named);
        let open = || rustix::fs::open(&*path, flags, Mode::empty());
        self.layer.modes.lend(&[named.as_fd()], open)
    }

    /// Opens a file of `upper` for reading: a directory for the driver itself, or a file for a program that has it open.
    pub(super) fn open_own(&self, node: &Arc<Node>) -> Result<OwnedFd, Errno> {
        self.open(node, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Takes set-user-id and set-group-id from the mode of a file, as writing to it does.
    pub(super) fn kill_ids(&self, file: &OwnedFd) -> Result<(), Errno> {
        // Programs write to files without them. A mode that is lent has them, too.
        if without_ids(file)?.is_none() {
            return Ok(());
        }
        self.layer.modes.change(|| match without_ids(file)? {
            Some(mode) => fchmod(file, mode),
            None => Ok(()),
        })
    }

    pub(super) fn stat(&self, node: &Arc<Node>) -> Result<Stat, Errno> {
        match node.spot() {
            Spot::At(place) => {
                let dir = self.directory(&place.dir)?;
                self.layer.stat_in(dir.as_fd(), &place.name)
            }
            Spot::Pin(pin) => self.layer.modes.true_ones(|| fstat(&*pin)),
            Spot::Root => self.layer.modes.true_ones(|| fstat(self.layer.upper())),
            Spot::Gone => Err(Errno::NOENT),
        }
    }

    /// The attributes of a node.
    pub(super) fn attr(&self, node: &Arc<Node>) -> Result<Attr, Errno> {
        match node.lower {
            Some(lower) if !node.has_upper() => {
                let mut attr = self.lower.attr(lower)?;
                if node.is_removed() {
                    attr.nlink = attr.nlink.saturating_sub(1);
                }
                Ok(attr)
            }
            _ => Ok(self.upper_attr(node.lower, node.id, &self.stat(node)?)),
        }
    }

    /// The attributes of a node of `upper`. A copy has the id of the node as its number, others that of the file.
    fn upper_attr(&self, lower: Option<LowerNo>, id: u64, stat: &Stat) -> Attr {
        let number = match lower {
            Some(_) => id,
            None => self.number(UpperNo::of(stat), None),
        };
        let block_size = self.state.settings.policy.block_size;
        let mut attr = attr_of(stat, number, block_size);
        if FileType::from_raw_mode(attr.mode) == FileType::Directory && lower.is_some() {
            // The number of directories in it is unknown.
            attr.nlink = 1;
        }
        attr
    }

    /// The inode number that programs see of a file or directory of `upper`.
    pub(super) fn number(&self, upper: UpperNo, merged: Option<LowerNo>) -> u64 {
        match merged.or_else(|| self.nodes.origin(upper)) {
            Some(lower) => Nodes::id_of_lower(lower),
            None => {
                // Old programs take 32 bits.
                let small = self.lower.last_small().checked_add(upper.inode());
                small
                    .filter(|&number| number <= u64::from(u32::MAX))
                    .unwrap_or_else(|| self.lower.first_free().wrapping_add(upper.inode()))
            }
        }
    }

    /// How long the kernel may keep the attributes of a node: those of a file of the lower tree with several names change
    /// when it is copied.
    pub(super) fn valid_of(&self, node: &Node, attr: &Attr) -> Valid {
        let changes = attr.nlink > 1
            && FileType::from_raw_mode(attr.mode) != FileType::Directory
            && !node.has_upper();
        Valid {
            attributes: if changes { 0 } else { self.valid.attributes },
            ..self.valid
        }
    }

    /// The entry of the lower tree that a name of a directory hides, or leads to.
    pub(super) fn below(&self, dir: &Node, name: &[u8]) -> Result<Option<LowerNo>, Errno> {
        match dir.lower {
            Some(lower) => self.lower.find(lower, name),
            None => Ok(None),
        }
    }

    /// Whether something of the lower tree is a directory.
    pub(super) fn is_directory(&self, lower: LowerNo) -> Result<bool, Errno> {
        Ok(FileType::from_raw_mode(self.lower.attr(lower)?.mode) == FileType::Directory)
    }

    /// What `upper` has under a name of a directory.
    pub(super) fn above(&self, dir: &Arc<Node>, name: &[u8]) -> Result<UpperEntry, Errno> {
        match dir.has_upper() {
            true => self.layer.entry(self.directory(dir)?.as_fd(), name),
            false => Ok(UpperEntry::None),
        }
    }

    /// What a name of a directory leads to.
    pub(super) fn find(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Found>, Errno> {
        if dir.is_removed() {
            return Ok(None);
        }
        match self.above(dir, name)? {
            UpperEntry::Whiteout => Ok(None),
            UpperEntry::None => Ok(self.below(dir, name)?.map(Found::Lower)),
            UpperEntry::Some(stat) => {
                let merged = self.merged(dir, name, &stat)?;
                Ok(Some(Found::Upper(stat, merged)))
            }
        }
    }

    /// What a directory of `upper` shows of the lower tree.
    pub(super) fn merged(
        &self,
        dir: &Arc<Node>,
        name: &[u8],
        stat: &Stat,
    ) -> Result<Option<LowerNo>, Errno> {
        if type_of(stat) != FileType::Directory {
            return Ok(None);
        }
        let Some(lower) = self.below(dir, name)? else {
            return Ok(None);
        };
        if !self.is_directory(lower)? {
            return Ok(None);
        }
        let dir = self.directory(dir)?;
        let of = self.layer.open_in(dir.as_fd(), name, NAMES)?;
        Ok((!self.layer.is_opaque(of.as_fd())?).then_some(lower))
    }

    /// The node that a name leads to, of which the kernel is told, and its attributes.
    pub(super) fn enter(
        &self,
        found: &Found,
        dir: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Arc<Node>, Attr), Errno> {
        let place = NameInDir {
            dir: Arc::clone(dir),
            name: name.into(),
        };
        match found {
            Found::Lower(lower) => {
                let attr = self.lower.attr(*lower)?;
                Ok((self.nodes.enter_lower(*lower, place), attr))
            }
            Found::Upper(stat, merged) => {
                let node = self.nodes.enter_upper(UpperNo::of(stat), *merged, place);
                let attr = self.upper_attr(node.lower, node.id, stat);
                Ok((node, attr))
            }
        }
    }

    /// The node of a new file without a name, of which the kernel is told, and its attributes.
    pub(super) fn enter_nameless(&self, named: OwnedFd) -> Result<(Arc<Node>, Attr), Errno> {
        let stat = fstat(&named)?;
        let node = self.nodes.enter_nameless(UpperNo::of(&stat), named);
        let attr = self.upper_attr(None, node.id, &stat);
        Ok((node, attr))
    }

    /// The node of what was found, if the kernel knows it.
    pub(super) fn known(&self, found: &Found) -> Option<Arc<Node>> {
        match found {
            Found::Lower(lower) => self.nodes.get(Nodes::id_of_lower(*lower)),
            Found::Upper(stat, _) => self.nodes.of_upper(UpperNo::of(stat)),
        }
    }

    // None of these may be called with a lock.

    /// Puts a node into `upper`. Of a regular file, at most `size` bytes of data are copied.
    pub(super) fn copy_up(&self, node: &Arc<Node>, size: Option<u64>) -> Result<(), Errno> {
        // Of a deep directory, the uppermost missing one comes first.
        let mut missing = vec![Arc::clone(node)];
        while let Some(last) = missing.last()
            && !last.has_upper()
            && let Some(place) = last.place()
        {
            missing.push(place.dir);
        }
        while let Some(next) = missing.pop() {
            self.copy_one(&next, size)?;
        }
        copies::claim()
    }

    fn copy_one(&self, node: &Arc<Node>, size: Option<u64>) -> Result<(), Errno> {
        if node.has_upper() {
            return Ok(());
        }
        if let Some(lower) = node.lower
            && self.data_to_copy(&self.lower.attr(lower)?, size) > 0
        {
            self.copies.check()?;
        }
        let _one = match node.copying.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // A request without data to copy waits for such a thread, too.
                self.copies.check()?;
                node.copying.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if node.has_upper() {
            return Ok(());
        }
        let Some(lower) = node.lower else {
            return Err(Errno::NOENT);
        };
        let temporary = self.layer.temporary();
        let placed = self
            .copy(lower, &temporary, size)
            .and_then(|named| self.place_copy(node, &temporary, named));
        if placed.is_err() {
            self.layer.discard(&temporary);
        }
        placed
    }

    /// Bytes of a file of the lower tree that a copy of at most `size` bytes takes.
    fn data_to_copy(&self, attr: &Attr, size: Option<u64>) -> u64 {
        match FileType::from_raw_mode(attr.mode) {
            FileType::RegularFile => size.unwrap_or(attr.size).min(attr.size),
            _ => 0,
        }
    }

    /// Copies something of the lower tree to `work`.
    fn copy(
        &self,
        lower: LowerNo,
        temporary: &std::ffi::CString,
        size: Option<u64>,
    ) -> Result<OwnedFd, Errno> {
        let attr = self.lower.attr(lower)?;
        let work = self.layer.work();
        let private = Mode::from_raw_mode(0o600);
        let file_type = FileType::from_raw_mode(attr.mode);
        let mut data = None;
        match file_type {
            FileType::RegularFile => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let file = openat(work, temporary, flags, private)?;
                self.copy_data(lower, &file, self.data_to_copy(&attr, size))?;
                data = Some(file);
            }
            FileType::Directory => mkdirat(work, temporary, Mode::from_raw_mode(0o700))?,
            FileType::Symlink => symlinkat(self.lower.target(lower)?, work, temporary)?,
            _ => mknodat(
                work,
                temporary,
                file_type,
                private,
                device_number(attr.rdev),
            )?,
        }
        let named = openat(work, temporary, NAMES, Mode::empty())?;
        self.dress(&named, lower, &attr)?;
        if let Some(file) = data
            && self.layer.syncs
        {
            fsync(&file)?;
        }
        Ok(named)
    }

    fn copy_data(&self, lower: LowerNo, file: &OwnedFd, size: u64) -> Result<(), Errno> {
        let mut buffer = vec![0; usize::try_from(size).unwrap_or(COPY).min(COPY)];
        let mut at = 0;
        while at < size {
            let Some((start, end)) = self.lower.next_data(lower, at)? else {
                break;
            };
            at = start.max(at);
            let end = end.min(size);
            while at < end {
                self.copies.check()?;
                let room = usize::try_from(end - at).unwrap_or(COPY).min(COPY);
                let part = buffer.get_mut(..room).unwrap_or_default();
                let read = self.lower.read_at(lower, at, part)?;
                if read == 0 {
                    return Err(Errno::IO);
                }
                write_all(file, part.get(..read).unwrap_or_default(), at)?;
                at += read as u64;
            }
        }
        ftruncate(file, size)
    }

    /// Gives a file of `upper` the attributes of one of the lower tree, as far as the driver may.
    fn dress(&self, named: &OwnedFd, lower: LowerNo, attr: &Attr) -> Result<(), Errno> {
        let path = path_of(named);
        self.own(named, attr.uid, attr.gid)?;
        for (name, value) in self.lower.xattrs(lower)? {
            if super::marks::is_mark(&name) {
                continue;
            }
            let flags = XattrFlags::empty();
            match rustix::fs::setxattr(&*path, name.as_slice(), &value, flags) {
                Ok(()) => {}
                Err(error @ (Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL)) => {
                    self.mention_lost(&name, error);
                }
                Err(error) => return Err(error),
            }
        }
        // Attributes in `user` need the right to write.
        if FileType::from_raw_mode(attr.mode) != FileType::Symlink {
            rustix::fs::chmod(&*path, Mode::from_raw_mode(attr.mode & 0o7777))?;
        }
        let time = |time: redwarfs_format::metadata::Timestamp| Timespec {
            tv_sec: time.sec,
            tv_nsec: time.nsec.min(999_999_999).into(),
        };
        let times = Timestamps {
            last_access: time(attr.atime),
            last_modification: time(attr.mtime),
        };
        utimensat(rustix::fs::CWD, &*path, &times, AtFlags::empty())
    }

    /// Says once that an attribute could not be copied.
    fn mention_lost(&self, name: &[u8], error: Errno) {
        if !self.lost_attributes.swap(true, Ordering::Relaxed) {
            let name = String::from_utf8_lossy(name);
            tracing::warn!("changed files lose extended attributes such as {name}: {error}");
        }
    }

    /// Gives a file of `upper` to a user, if the driver may.
    pub(super) fn own(&self, named: &OwnedFd, uid: u32, gid: u32) -> Result<(), Errno> {
        if !self.layer.gives_away {
            return Ok(());
        }
        let owner = Some(Uid::from_raw(uid));
        let group = Some(Gid::from_raw(gid));
        match chownat(named, "", owner, group, AtFlags::EMPTY_PATH) {
            // The user is unknown in this user namespace.
            Err(Errno::PERM | Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    /// Puts a complete copy into its place. If its name was removed meanwhile, the copy has none.
    fn place_copy(
        &self,
        node: &Arc<Node>,
        temporary: &std::ffi::CString,
        named: OwnedFd,
    ) -> Result<(), Errno> {
        let upper = UpperNo::of(&fstat(&named)?);
        let _changing = self.changing();
        let place = node.place();
        let has_name = place.is_some();
        match place {
            Some(place) => {
                let dir = self.directory(&place.dir)?;
                let before = fstat(&dir)?;
                // A directory that moves must be writable, too.
                (self.layer.modes).lend(&[dir.as_fd(), named.as_fd()], || {
                    renameat(self.layer.work(), temporary, &dir, &*place.name)
                })?;
                // No program has changed the directory.
                keep_times(&dir, &before);
                node.raise(None);
            }
            None => {
                self.layer.discard(temporary);
                node.raise(Some(named));
            }
        }
        self.nodes.raised(node, upper, has_name);
        Ok(())
    }

    /// Lets the names of a file, and of the directories that lead to it, be on the medium.
    pub(super) fn sync_names(&self, node: &Arc<Node>) -> Result<(), Errno> {
        let mut at = Arc::clone(node);
        while at.id != ROOT && at.take_fresh() {
            let Some(place) = at.place() else {
                return Ok(());
            };
            let synced = {
                let _reading = self.reading();
                self.open_own(&place.dir)
            };
            if let Err(error) = synced.and_then(|dir| fsync(&dir)) {
                at.set_fresh();
                return Err(error);
            }
            at = place.dir;
        }
        Ok(())
    }
}

/// Writes all of `data`.
pub(super) fn write_all(file: &OwnedFd, mut data: &[u8], mut at: u64) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = data.get(written..).unwrap_or_default();
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives a directory the times back that it had. It may be a directory of somebody else: that is no failure.
#[allow(
    clippy::unnecessary_cast,
    clippy::cast_lossless,
    clippy::useless_conversion
)]
fn keep_times(dir: &OwnedFd, before: &Stat) {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: before.st_atime as i64,
            tv_nsec: before.st_atime_nsec as _,
        },
        last_modification: Timespec {
            tv_sec: before.st_mtime as i64,
            tv_nsec: before.st_mtime_nsec as _,
        },
    };
    let _ = utimensat(rustix::fs::CWD, path_of(dir), &times, AtFlags::empty());
}

/// Makes data and size of a file durable, or all of it.
pub(super) fn sync_file(file: &OwnedFd, data_only: bool) -> Result<(), Errno> {
    match data_only {
        true => fdatasync(file),
        false => fsync(file),
    }
}

/// The mode of a file without set-user-id and set-group-id, if it has them. Without execution for the group, the latter is a lock.
fn without_ids(file: &OwnedFd) -> Result<Option<Mode>, Errno> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    const GROUP_EXECUTES: u32 = 0o010;
    #[allow(clippy::unnecessary_cast)]
    let mode = fstat(file)?.st_mode as u32;
    let mut kept = mode & !SET_UID;
    if mode & GROUP_EXECUTES != 0 {
        kept &= !SET_GID;
    }
    Ok((kept != mode).then(|| Mode::from_raw_mode(kept & 0o7777)))
}
