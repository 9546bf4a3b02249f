//! What the names of a file share, in few bytes: whatever nearly all inodes lack is kept beside them.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;

use hashbrown::HashTable;
use redwarfs_io::spill::{Record, Records, Spill, Spilled, number};
use redwarfs_writer::{ExtendedAttributes, FileType, PackedTime, Timestamp};

use crate::member::{Kind, Member, Part};
use crate::store::StoreNumber;

/// The contents of a regular file.
#[derive(Debug, Clone, Default)]
pub(crate) enum Data {
    #[default]
    Empty,
    /// One piece, without holes.
    Whole { store: StoreNumber, at: u64 },
    Parts {
        store: StoreNumber,
        parts: Arc<[Part]>,
    },
}

/// An inode, unpacked.
#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) kind: FileType,
    pub(crate) permissions: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) atime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
    pub(crate) target: Option<Box<[u8]>>,
    pub(crate) data: Data,
    pub(crate) extended: ExtendedAttributes,
    /// No entry describes it: a directory on the way to others.
    pub(crate) implied: bool,
    /// Names in the finished tree.
    pub(crate) names: u32,
}

impl Inode {
    pub(crate) fn directory() -> Self {
        Self {
            kind: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            mtime: Timestamp::default(),
            atime: None,
            ctime: None,
            target: None,
            data: Data::Empty,
            extended: ExtendedAttributes::default(),
            implied: true,
            names: 0,
        }
    }

    pub(crate) fn of(member: &Member) -> Self {
        let (kind, rdev, target) = match &member.kind {
            Kind::Regular | Kind::HardLink(_) => (FileType::Regular, 0, None),
            Kind::Directory => (FileType::Directory, 0, None),
            Kind::Symlink(target) => (FileType::Symlink, 0, Some(target.as_slice().into())),
            Kind::CharDevice(rdev) => (FileType::CharDevice, *rdev, None),
            Kind::BlockDevice(rdev) => (FileType::BlockDevice, *rdev, None),
            Kind::Fifo => (FileType::Fifo, 0, None),
            Kind::Socket => (FileType::Socket, 0, None),
        };
        Self {
            kind,
            // As symlinks have on Linux.
            permissions: match kind {
                FileType::Symlink => 0o777,
                _ => member.permissions,
            },
            uid: member.uid,
            gid: member.gid,
            rdev,
            mtime: member.mtime,
            atime: member.atime,
            ctime: member.ctime,
            target,
            extended: member.extended.clone(),
            implied: false,
            ..Self::directory()
        }
    }
}

/// What many inodes have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attributes {
    kind: FileType,
    permissions: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
}

/// A time, or none.
#[derive(Debug, Clone, Copy)]
struct Time(PackedTime);

impl Time {
    /// Nanoseconds are below 10^9.
    const NONE: Timestamp = Timestamp {
        sec: 0,
        nsec: u32::MAX,
    };

    fn of(time: Option<Timestamp>) -> Self {
        Self(PackedTime::of(time.unwrap_or(Self::NONE)))
    }

    fn get(self) -> Option<Timestamp> {
        Some(self.0.get()).filter(|time| time.nsec != Self::NONE.nsec)
    }
}

/// An inode without what few inodes have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed {
    size: u64,
    /// Where the data begins, or the number of its list of pieces.
    at: u64,
    mtime: Time,
    /// Number of its [`Attributes`], and whether it is [`IMPLIED`].
    attributes: u32,
    names: u32,
    /// The store of the data, or [`EMPTY`], or [`PIECES`].
    store: StoreNumber,
}

impl Record for Packed {
    const SIZE: usize = 40;

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.size.to_le_bytes());
        out.extend(self.at.to_le_bytes());
        self.mtime.0.write(out);
        for number in [self.attributes, self.names, self.store] {
            out.extend(number.to_le_bytes());
        }
    }

    fn read(mut bytes: &[u8]) -> Self {
        let bytes = &mut bytes;
        Self {
            size: u64::from_le_bytes(number(bytes)),
            at: u64::from_le_bytes(number(bytes)),
            mtime: Time(PackedTime::read(&number::<{ PackedTime::SIZE }>(bytes))),
            attributes: u32::from_le_bytes(number(bytes)),
            names: u32::from_le_bytes(number(bytes)),
            store: u32::from_le_bytes(number(bytes)),
        }
    }
}

/// What few inodes have.
#[derive(Debug)]
struct Rare {
    inode: u32,
    atime: Time,
    ctime: Time,
    target: Option<Box<[u8]>>,
    extended: ExtendedAttributes,
}

impl Rare {
    /// Nothing yet.
    fn of(inode: u32) -> Self {
        Self {
            inode,
            atime: Time::of(None),
            ctime: Time::of(None),
            target: None,
            extended: ExtendedAttributes::default(),
        }
    }
}

const IMPLIED: u32 = 1 << 31;
/// There are fewer archives than this.
const PIECES: StoreNumber = StoreNumber::MAX - 1;
const EMPTY: StoreNumber = StoreNumber::MAX;

// `memory` of the crate's documentation goes by these sizes.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Packed>() == 40 && size_of::<Rare>() == 56);

/// All inodes, by number. 40 bytes each, and 56 for one with a target, extended attributes, or a time other than that of its
/// last change.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    /// In memory while inodes are added.
    list: Records<Packed>,
    distinct: Vec<Attributes>,
    /// Numbers in `distinct`; empty when the last inode has been added.
    table: HashTable<u32>,
    hasher: RandomState,
    /// Ascending.
    rare: Vec<Rare>,
    pieces: Vec<(StoreNumber, Arc<[Part]>)>,
    /// Bytes of what has no fixed size.
    variable: u64,
}

impl Inodes {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let list = self.list.memory();
        let distinct = self.distinct.capacity() * size_of::<Attributes>();
        let rare = self.rare.capacity() * size_of::<Rare>();
        let pieces = self.pieces.capacity() * size_of::<(StoreNumber, Arc<[Part]>)>();
        (list + distinct + self.table.capacity() * 8 + rare + pieces) as u64 + self.variable
    }

    fn attributes_of(&mut self, inode: &Inode) -> u32 {
        let wanted = Attributes {
            kind: inode.kind,
            permissions: inode.permissions,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
        };
        let (distinct, hasher) = (&mut self.distinct, &self.hasher);
        let hash = hasher.hash_one(wanted);
        if let Some(&known) = (self.table).find(hash, |&id| distinct[id as usize] == wanted) {
            return known;
        }
        // Not more than inodes, whose numbers have a bit to spare.
        let id = distinct.len() as u32;
        distinct.push(wanted);
        let rehash = |&id: &u32| hasher.hash_one(distinct[id as usize]);
        self.table.insert_unique(hash, id, rehash);
        id
    }

    /// Adds an inode. The caller keeps their number below 2^31.
    pub(crate) fn push(&mut self, inode: Inode) -> u32 {
        let number = self.list.len() as u32;
        let attributes = self.attributes_of(&inode);
        let packed = Packed {
            size: inode.size,
            at: 0,
            mtime: Time::of(Some(inode.mtime)),
            attributes: attributes | if inode.implied { IMPLIED } else { 0 },
            names: inode.names,
            store: EMPTY,
        };
        self.list.push(packed);
        self.set_contents(number, inode.size, inode.data);
        let Inode {
            atime,
            ctime,
            target,
            extended,
            ..
        } = inode;
        let has_times = atime.is_some() || ctime.is_some();
        if has_times || target.is_some() || extended != ExtendedAttributes::default() {
            let length = target.as_ref().map_or(0, |target| target.len());
            self.variable += (extended.memory() + length) as u64;
            self.rare.push(Rare {
                inode: number,
                atime: Time::of(atime),
                ctime: Time::of(ctime),
                target,
                extended,
            });
        }
        number
    }

    fn attributes(&self, packed: Packed) -> Option<Attributes> {
        let id = packed.attributes & !IMPLIED;
        self.distinct.get(id as usize).copied()
    }

    fn rare(&self, inode: u32) -> Option<&Rare> {
        let at = self.rare.binary_search_by_key(&inode, |rare| rare.inode);
        self.rare.get(at.ok()?)
    }

    /// Type of an inode, while inodes are added.
    pub(crate) fn kind(&self, inode: u32) -> Option<FileType> {
        match &self.list {
            Records::Memory(list) => Some(self.attributes(*list.get(inode as usize)?)?.kind),
            Records::File { .. } => None,
        }
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// Those of reading the temporary file.
    pub(crate) fn target(&self, inode: u32) -> io::Result<Option<&[u8]>> {
        let packed = self.list.get(inode as usize)?;
        let attributes = packed.and_then(|packed| self.attributes(packed));
        // Most inodes are none, and the search takes longer than a look at the type.
        Ok(match attributes {
            Some(attributes) if attributes.kind == FileType::Symlink => {
                self.rare(inode).and_then(|rare| rare.target.as_deref())
            }
            _ => None,
        })
    }

    /// A copy of an inode.
    ///
    /// # Errors
    /// Those of reading the temporary file.
    pub(crate) fn get(&self, inode: u32) -> io::Result<Option<Inode>> {
        let packed = self.list.get(inode as usize)?;
        Ok(packed.and_then(|packed| self.unpacked(inode, packed)))
    }

    fn unpacked(&self, inode: u32, packed: Packed) -> Option<Inode> {
        let attributes = self.attributes(packed)?;
        let rare = self.rare(inode);
        let data = match packed.store {
            EMPTY => Data::Empty,
            PIECES => {
                let (store, parts) = self.pieces.get(usize::try_from(packed.at).ok()?)?.clone();
                Data::Parts { store, parts }
            }
            store => Data::Whole {
                store,
                at: packed.at,
            },
        };
        Some(Inode {
            kind: attributes.kind,
            permissions: attributes.permissions,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            size: packed.size,
            mtime: packed.mtime.get().unwrap_or_default(),
            atime: rare.and_then(|rare| rare.atime.get()),
            ctime: rare.and_then(|rare| rare.ctime.get()),
            target: rare.and_then(|rare| rare.target.clone()),
            data,
            extended: rare.map_or_else(Default::default, |rare| rare.extended.clone()),
            implied: packed.attributes & IMPLIED != 0,
            names: packed.names,
        })
    }

    /// Gives a regular file its contents.
    pub(crate) fn set_contents(&mut self, inode: u32, size: u64, data: Data) {
        let Records::Memory(list) = &mut self.list else {
            return;
        };
        let Some(packed) = list.get_mut(inode as usize) else {
            return;
        };
        packed.size = size;
        (packed.store, packed.at) = match data {
            Data::Empty => (EMPTY, 0),
            Data::Whole { store, at } => (store, at),
            Data::Parts { store, parts } => {
                self.variable += size_of_val(&*parts) as u64;
                let old = usize::try_from(packed.at).ok();
                let old = old.filter(|_| packed.store == PIECES);
                let at = match old.and_then(|at| Some((at, self.pieces.get_mut(at)?))) {
                    Some((at, place)) => {
                        *place = (store, parts);
                        at
                    }
                    None => {
                        self.pieces.push((store, parts));
                        self.pieces.len() - 1
                    }
                };
                (PIECES, at as u64)
            }
        };
    }

    /// Counts a name in the finished tree.
    pub(crate) fn add_name(&mut self, inode: u32) {
        if let Records::Memory(list) = &mut self.list
            && let Some(packed) = list.get_mut(inode as usize)
        {
            packed.names = packed.names.saturating_add(1);
        }
    }

    /// No inode is added later. Directories that no entry describes get a time, and some inodes further extended attributes.
    pub(crate) fn finish(&mut self, time: Timestamp, attributes: Vec<(u32, Vec<u8>, Vec<u8>)>) {
        self.table = HashTable::new();
        let list = match &mut self.list {
            Records::Memory(list) => list.as_mut_slice(),
            Records::File { .. } => &mut [],
        };
        for packed in list {
            if packed.attributes & IMPLIED != 0 {
                packed.mtime = Time::of(Some(time));
            }
        }
        let mut new: BTreeMap<u32, Rare> = BTreeMap::new();
        for (inode, name, value) in attributes {
            let at = self.rare.binary_search_by_key(&inode, |rare| rare.inode);
            let rare = match at.ok().and_then(|at| self.rare.get_mut(at)) {
                Some(rare) => rare,
                None => new.entry(inode).or_insert_with(|| Rare::of(inode)),
            };
            rare.extended.set(name, value);
        }
        self.rare.extend(new.into_values());
        self.rare.sort_by_key(|rare| rare.inode);
    }
}

impl Inodes {
    /// Writes the table of inodes to a temporary file.
    ///
    /// # Errors
    /// There is no room, or the table is in a file.
    pub(crate) fn write(&self, spill: &mut Spill<'_>) -> io::Result<Spilled> {
        spill.records(&self.list)
    }

    /// Takes the table that was [written](Self::write) in place of that in memory.
    pub(crate) fn replace(&mut self, list: Records<Packed>) {
        self.list = list;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(inode: &Inode) -> impl PartialEq + std::fmt::Debug {
        let data = match &inode.data {
            Data::Empty => (0, 0, vec![]),
            Data::Whole { store, at } => (*store, *at, vec![]),
            Data::Parts { store, parts } => (*store, 0, parts.to_vec()),
        };
        let ids = (
            inode.kind,
            inode.permissions,
            inode.uid,
            inode.gid,
            inode.rdev,
        );
        let times = (inode.mtime, inode.atime, inode.ctime);
        let rest = (inode.target.clone(), inode.extended.clone(), inode.implied);
        (ids, inode.size, times, data, rest, inode.names)
    }

    #[test]
    fn inodes_come_out_as_they_went_in() {
        let time = |sec, nsec| Timestamp { sec, nsec };
        let mut inodes = Inodes::default();
        let mut all = Vec::new();
        for i in 0..200u32 {
            let mut inode = Inode::directory();
            inode.implied = i % 5 == 0;
            inode.permissions = i % 3;
            inode.uid = u32::MAX - i % 2;
            inode.mtime = time(i64::MIN + i64::from(i), 999_999_999);
            if i % 4 == 1 {
                (inode.atime, inode.ctime) = (Some(time(-1, 0)), None);
            }
            if i % 7 == 1 {
                inode.kind = FileType::Symlink;
                inode.target = Some(i.to_string().into_bytes().into());
            }
            if i % 11 == 1 {
                inode.extended.set("user.a", "b");
            }
            inode.data = match i % 6 {
                0 => Data::Empty,
                1 => Data::Whole {
                    store: i,
                    at: u64::MAX,
                },
                _ => Data::Parts {
                    store: 0,
                    parts: [Part {
                        offset: 1,
                        size: 2,
                        at: u64::from(i),
                    }]
                    .into(),
                },
            };
            inode.size = u64::from(i) << 40;
            assert_eq!(inodes.push(inode.clone()), i);
            all.push(inode);
        }
        let check = |inodes: &Inodes, all: &[Inode], in_memory: bool| {
            for (i, inode) in (0..).zip(all) {
                assert_eq!(
                    all_of(&inodes.get(i).unwrap().unwrap()),
                    all_of(inode),
                    "{i}"
                );
                assert_eq!(inodes.kind(i), in_memory.then_some(inode.kind));
                assert_eq!(inodes.target(i).unwrap(), inode.target.as_deref());
            }
        };
        check(&inodes, &all, true);
        assert!(inodes.get(200).unwrap().is_none());
        // Contents may come twice, and attributes of some inodes at the end.
        for i in [2, 3, 60] {
            let parts = [Part {
                offset: 0,
                size: 9,
                at: 7,
            }]
            .into();
            all[i as usize].data = Data::Parts { store: 5, parts };
            all[i as usize].size = 9;
            inodes.set_contents(i, 9, all[i as usize].data.clone());
        }
        let mut later = Vec::new();
        for i in [199, 12, 13, 12] {
            all[i as usize].extended.set("user.late", "1");
            later.push((i, b"user.late".to_vec(), b"1".to_vec()));
        }
        all[12].names = 1;
        inodes.add_name(12);
        inodes.finish(time(3, 4), later);
        for inode in &mut all {
            if inode.implied {
                inode.mtime = time(3, 4);
            }
        }
        check(&inodes, &all, true);
        let place = tempfile::tempdir().unwrap();
        let running = std::sync::atomic::AtomicBool::new(false);
        let mut spill = Spill::new(place.path(), &running).unwrap().unwrap();
        let written = inodes.write(&mut spill).unwrap();
        let before = inodes.memory();
        inodes.replace(written.in_file(&spill.finish("a test").unwrap()));
        assert!(before - inodes.memory() >= 200 * 40);
        check(&inodes, &all, false);
    }

    #[test]
    fn an_inode_that_lacks_nothing_unusual_takes_40_bytes() {
        let mut inodes = Inodes::default();
        for size in 0..100_000 {
            inodes.push(Inode {
                size,
                implied: false,
                data: Data::Whole { store: 1, at: size },
                kind: FileType::Regular,
                ..Inode::directory()
            });
        }
        // Capacities are powers of two.
        assert!(inodes.memory() < 40 * (1 << 17) + 1000);
    }
}
