//! The inodes that the kernel knows.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;

use super::lower::LowerNo;

/// The root of the mount.
pub(super) const ROOT: u64 = 1;

/// A file of `upper`, whatever its names are: device and inode number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct UpperNo(u64, u64);

impl UpperNo {
    // The types of the fields differ between processors.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    pub(super) fn of(stat: &Stat) -> Self {
        Self(stat.st_dev as u64, stat.st_ino as u64)
    }

    pub(super) fn inode(self) -> u64 {
        self.1
    }
}

/// A name in a directory.
#[derive(Debug, Clone)]
pub(super) struct NameInDir {
    pub(super) dir: Arc<Node>,
    pub(super) name: Box<[u8]>,
}

/// An inode that the kernel knows, or that one of its entries belongs to.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u64,
    /// Of a directory: what it shows of the lower tree. Of anything else: what it is a copy of, or will be.
    pub(super) lower: Option<LowerNo>,
    /// Held while it is copied.
    pub(super) copying: Mutex<()>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// One of its names. None for the root, and for what has been removed.
    place: Option<NameInDir>,
    /// Whether it is in `upper`.
    upper: bool,
    /// The file itself, if the driver knows no name of it.
    pin: Option<Arc<OwnedFd>>,
    /// Whether its name may not be on the medium yet.
    fresh: bool,
}

/// How to reach a file of `upper`.
#[derive(Debug)]
pub(super) enum Spot {
    Root,
    At(NameInDir),
    Pin(Arc<OwnedFd>),
    /// It was removed before anybody needed it.
    Gone,
}

impl Node {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_upper(&self) -> bool {
        self.inner().upper
    }

    pub(super) fn place(&self) -> Option<NameInDir> {
        self.inner().place.clone()
    }

    /// Whether it has lost its name.
    pub(super) fn is_removed(&self) -> bool {
        self.id != ROOT && self.inner().place.is_none()
    }

    pub(super) fn spot(&self) -> Spot {
        if self.id == ROOT {
            return Spot::Root;
        }
        let inner = self.inner();
        match (&inner.place, &inner.pin) {
            (Some(place), _) => Spot::At(place.clone()),
            (None, Some(pin)) => Spot::Pin(Arc::clone(pin)),
            (None, None) => Spot::Gone,
        }
    }

    /// Notes that it is in `upper` now; `pin` if it has no name there.
    pub(super) fn raise(&self, pin: Option<OwnedFd>) {
        let mut inner = self.inner();
        inner.upper = true;
        inner.fresh = true;
        if pin.is_some() {
            inner.pin = pin.map(Arc::new);
        }
    }

    /// Notes a name of it.
    pub(super) fn put(&self, place: NameInDir, fresh: bool) {
        let mut inner = self.inner();
        let old = inner.place.replace(place);
        // It holds a directory that the other place does not.
        let pin = inner.pin.take();
        inner.fresh |= fresh;
        drop(inner);
        drop((old, pin));
    }

    /// Whether this is the name of it that the driver knows.
    pub(super) fn is_at(&self, dir: &Node, name: &[u8]) -> bool {
        let inner = self.inner();
        let place = inner.place.as_ref();
        place.is_some_and(|place| place.dir.id == dir.id && &*place.name == name)
    }

    /// Notes that it has lost the name that the driver knows. `pin` is the file itself, if it is in `upper`.
    pub(super) fn lose_name(&self, pin: Option<OwnedFd>) {
        let mut inner = self.inner();
        let old = inner.place.take();
        if pin.is_some() {
            inner.pin = pin.map(Arc::new);
        }
        drop(inner);
        drop(old);
    }

    /// Whether its name may not be on the medium yet. After this call it is.
    pub(super) fn take_fresh(&self) -> bool {
        std::mem::take(&mut self.inner().fresh)
    }

    pub(super) fn set_fresh(&self) {
        self.inner().fresh = true;
    }
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

#[derive(Debug, Default)]
struct Table {
    known: HashMap<u64, Known>,
    /// Ids of nodes in `upper`.
    by_upper: HashMap<UpperNo, u64>,
    /// The nodes of `by_upper`, to remove them from there.
    uppers: HashMap<u64, UpperNo>,
    /// What files of `upper` were copied from in this mount, so that they keep their numbers.
    origins: HashMap<UpperNo, LowerNo>,
    next: u64,
}

/// The inodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Nodes {
    table: Mutex<Table>,
}

impl Nodes {
    /// Ids of files that are not in the lower tree begin at `first`.
    pub(super) fn new(root: LowerNo, first: u64) -> (Self, Arc<Node>) {
        let node = Arc::new(Node {
            id: ROOT,
            lower: Some(root),
            copying: Mutex::new(()),
            inner: Mutex::new(Inner {
                upper: true,
                ..Inner::default()
            }),
        });
        let known = Known {
            node: Arc::clone(&node),
            // The kernel never forgets it.
            lookups: 1,
        };
        let table = Table {
            known: HashMap::from([(ROOT, known)]),
            next: first,
            ..Table::default()
        };
        let table = Mutex::new(table);
        (Self { table }, node)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Node>> {
        let table = self.table();
        table.known.get(&id).map(|known| Arc::clone(&known.node))
    }

    /// The id of a node that shows something of the lower tree.
    pub(super) fn id_of_lower(lower: LowerNo) -> u64 {
        lower.0 + 1
    }

    /// The node of something of the lower tree that has this place. The kernel is told of it.
    pub(super) fn enter_lower(&self, lower: LowerNo, place: NameInDir) -> Arc<Node> {
        let mut table = self.table();
        table.enter(Self::id_of_lower(lower), Some(lower), None, place)
    }

    /// The node of a file or directory of `upper` that has this place. `merged` is what the directory shows of the lower
    /// tree. The kernel is told of it.
    pub(super) fn enter_upper(
        &self,
        upper: UpperNo,
        merged: Option<LowerNo>,
        place: NameInDir,
    ) -> Arc<Node> {
        let mut table = self.table();
        let lower = merged.or_else(|| table.origins.get(&upper).copied());
        let id = match (table.by_upper.get(&upper), lower) {
            (Some(&id), _) => id,
            (None, Some(lower)) => Self::id_of_lower(lower),
            (None, None) => {
                table.next += 1;
                table.next
            }
        };
        table.enter(id, lower, Some(upper), place)
    }

    /// The node of a new file of `upper` that has no name. The kernel is told of it.
    pub(super) fn enter_nameless(&self, upper: UpperNo, pin: OwnedFd) -> Arc<Node> {
        let mut table = self.table();
        table.next += 1;
        let id = table.next;
        let known = table.known_as(id, None, true);
        known.lookups += 1;
        let node = Arc::clone(&known.node);
        node.lose_name(Some(pin));
        table.by_upper.insert(upper, id);
        table.uppers.insert(id, upper);
        node
    }

    /// Notes that a node of the lower tree is in `upper` now. Without a name there, another file gets its number when it is
    /// closed.
    pub(super) fn raised(&self, node: &Node, upper: UpperNo, has_name: bool) {
        let mut table = self.table();
        if has_name && let Some(lower) = node.lower {
            table.origins.insert(upper, lower);
        }
        if table.known.contains_key(&node.id) {
            table.by_upper.insert(upper, node.id);
            table.uppers.insert(node.id, upper);
        }
    }

    /// The node of a file of `upper`, if the kernel knows it.
    pub(super) fn of_upper(&self, upper: UpperNo) -> Option<Arc<Node>> {
        let table = self.table();
        let known = table.known.get(table.by_upper.get(&upper)?)?;
        Some(Arc::clone(&known.node))
    }

    /// What a file of `upper` was copied from in this mount.
    pub(super) fn origin(&self, upper: UpperNo) -> Option<LowerNo> {
        self.table().origins.get(&upper).copied()
    }

    /// Notes that a file of `upper` has lost its last name, so that another file may get its number.
    pub(super) fn removed(&self, upper: UpperNo) {
        let mut table = self.table();
        table.origins.remove(&upper);
        if let Some(id) = table.by_upper.remove(&upper) {
            table.uppers.remove(&id);
        }
    }

    /// Notes that the kernel has forgotten a node `count` times.
    pub(super) fn forget(&self, id: u64, count: u64) {
        let mut dropped = Vec::new();
        let mut table = self.table();
        if let Some(known) = table.known.get_mut(&id)
            && id != ROOT
        {
            known.lookups = known.lookups.saturating_sub(count);
            table.tidy(id, &mut dropped);
        }
        drop(table);
        // Closes files.
        drop(dropped);
    }
}

impl Table {
    fn known_as(&mut self, id: u64, lower: Option<LowerNo>, upper: bool) -> &mut Known {
        self.known.entry(id).or_insert_with(|| Known {
            node: Arc::new(Node {
                id,
                lower,
                copying: Mutex::new(()),
                inner: Mutex::new(Inner {
                    upper,
                    ..Inner::default()
                }),
            }),
            lookups: 0,
        })
    }

    fn enter(
        &mut self,
        id: u64,
        lower: Option<LowerNo>,
        upper: Option<UpperNo>,
        place: NameInDir,
    ) -> Arc<Node> {
        let known = self.known_as(id, lower, upper.is_some());
        known.lookups += 1;
        let node = Arc::clone(&known.node);
        if !node.is_at(&place.dir, &place.name) {
            node.put(place, false);
        }
        if let Some(upper) = upper {
            self.by_upper.insert(upper, id);
            self.uppers.insert(id, upper);
        }
        node
    }

    /// Removes a node that is of no use any longer, and then its directory.
    fn tidy(&mut self, mut id: u64, dropped: &mut Vec<Arc<Node>>) {
        while id != ROOT {
            let Some(known) = self.known.get(&id) else {
                return;
            };
            // Others hold it as their directory, and the last of these calls again. Or another thread works with it:
            // then it goes when the kernel was told of it once more and has forgotten it.
            if known.lookups > 0 || Arc::strong_count(&known.node) > 1 {
                return;
            }
            let Some(known) = self.known.remove(&id) else {
                return;
            };
            if let Some(upper) = self.uppers.remove(&id) {
                self.by_upper.remove(&upper);
            }
            let place = known.node.inner().place.take();
            dropped.push(known.node);
            let Some(place) = place else { return };
            id = place.dir.id;
            drop(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Arc<Node>, name: &str) -> NameInDir {
        NameInDir {
            dir: Arc::clone(dir),
            name: name.as_bytes().into(),
        }
    }

    #[test]
    fn directories_stay_as_long_as_what_is_in_them() {
        let (nodes, root) = Nodes::new(LowerNo(0), 1 << 34);
        let dir = nodes.enter_lower(LowerNo(1), place(&root, "dir"));
        let file = nodes.enter_lower(LowerNo(2), place(&dir, "file"));
        let (dir_id, file_id) = (dir.id, file.id);
        drop((dir, file));
        nodes.forget(dir_id, 1);
        assert!(nodes.get(dir_id).is_some(), "its file is known");
        nodes.forget(file_id, 1);
        assert!(nodes.get(file_id).is_none() && nodes.get(dir_id).is_none());
        assert!(nodes.get(ROOT).is_some());
    }

    #[test]
    fn a_copy_keeps_its_number() {
        let (nodes, root) = Nodes::new(LowerNo(0), 1 << 34);
        let upper = UpperNo(1, 77);
        let file = nodes.enter_lower(LowerNo(5), place(&root, "file"));
        file.raise(None);
        nodes.raised(&file, upper, true);
        let same = nodes.enter_upper(upper, None, place(&root, "link"));
        assert!(Arc::ptr_eq(&file, &same));
        let id = file.id;
        drop((file, same));
        nodes.forget(id, 2);
        let again = nodes.enter_upper(upper, None, place(&root, "link"));
        assert_eq!((again.id, again.lower), (id, Some(LowerNo(5))));
        // Another file with the number of a removed one is another one.
        nodes.removed(upper);
        let other = nodes.enter_upper(upper, None, place(&root, "new"));
        assert!(other.id > 1 << 34);
    }

    #[test]
    fn a_copy_without_a_name_leaves_its_number() {
        let (nodes, root) = Nodes::new(LowerNo(0), 1 << 34);
        let upper = UpperNo(1, 77);
        let file = nodes.enter_lower(LowerNo(5), place(&root, "file"));
        file.lose_name(None);
        file.raise(None);
        nodes.raised(&file, upper, false);
        let id = file.id;
        drop(file);
        nodes.forget(id, 1);
        let new = nodes.enter_upper(upper, None, place(&root, "new"));
        assert!(new.id > 1 << 34 && new.lower.is_none());
    }
}
