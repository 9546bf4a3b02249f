//! Images beside the one at the root of the mount: generations of its file, and the images of a mount of several ones.
//! Threads of their own open them, and few stay open.
//!
//! Each has a *slot*, whose number is in the upper 24 bits of the node ids of its inodes. So node ids stay valid
//! when an image is closed. A request opens its image again. Until it is open, the requests for it
//! wait, and no thread with them, so other requests are answered. An image that cannot be opened is not tried again for
//! every request. No number is used again: if another image is found in the place of one that was closed, its inodes are
//! stale.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_format::section::Snapshot;
use redwarfs_reader::{FileOfImage, Image, ImageIdentity};
use rustix::io::Errno;

use crate::descriptors::{allow_many_files, open_with_few_files};
use crate::error::Error;
use crate::failures::Failures;
use crate::image_state::{ImageState, PlaceOfImage};
use crate::mount_state::MountState;
use crate::numbers::Ranges;
use crate::ops::statfs::Totals;
use crate::options::MountOptions;
use crate::order::Order;
use crate::proto::{Body, Header};

/// Bits of a node id below the number of the slot.
const NODE_BITS: u32 = 40;
/// Slots from this number on are of no image.
pub(crate) const MOST_SLOTS: u32 = (1 << (64 - NODE_BITS)) - 1;
/// Generations that are open at a time.
const MOST_GENERATIONS: usize = 8;
/// Threads that open images.
pub(crate) const OPENERS: usize = 8;
/// If the medium has failed, an image is tried again after this time.
const PAUSE: Duration = Duration::from_secs(60);
/// The same for images of a mount of several ones, which somebody may repair meanwhile.
const PAUSE_OF_IMAGES: Duration = Duration::from_secs(5);

/// An image that was removed, or has another one in its place, is closed after this time without use.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// The root of the mount.
pub(crate) const ROOT: u64 = 1;

/// Opens the image of a slot. Called again each time that it is needed after it was closed.
pub type Opener = Arc<dyn Fn() -> Result<Image, OpenError> + Send + Sync>;

/// Why an image cannot be opened.
pub type OpenError = Box<dyn std::error::Error + Send + Sync>;

/// Which image an inode belongs to. 0 is the one at the root of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotNo(pub(crate) u32);

impl SlotNo {
    /// That of a node id.
    pub(crate) fn of(node: u64) -> Self {
        Self((node >> NODE_BITS) as u32)
    }

    /// What is added to the node ids of its inodes.
    pub(crate) fn first_node(self) -> u64 {
        u64::from(self.0) << NODE_BITS
    }
}

/// What a request gets from its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An answer.
    Answer,
    /// The entry of its root directory.
    Root,
}

/// A request that waits for its image. Its ticket is in `pending_reads`.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) header: Header,
    body: Vec<u8>,
    pub(crate) purpose: Purpose,
}

impl Waiting {
    pub(crate) fn new(header: &Header, body: Body<'_>, purpose: Purpose) -> Self {
        Self {
            header: *header,
            body: body.rest().to_vec(),
            purpose,
        }
    }

    pub(crate) fn body(&self) -> Body<'_> {
        Body::new(&self.body)
    }
}

/// What becomes of requests whose image was opened, or cannot be.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) waiting: Vec<Waiting>,
    /// States that are closed for it. What they hold goes when this is dropped, which may take time.
    _closed: Vec<Slot>,
}

/// What is in a slot, and how it is opened.
#[derive(Clone)]
enum Content {
    Snapshot(Box<(Snapshot, FileOfImage)>),
    Image(Opener),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(of) => of.0.name.fmt(f),
            Self::Image(_) => f.write_str("image"),
        }
    }
}

/// What tells an image of a slot from another one in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    image: ImageIdentity,
    /// Metadata may be equal where blocks are not. None for generations: their file is the same one, and grows.
    source: Option<String>,
}

impl Identity {
    fn of(image: &Image, content: &Content) -> Self {
        Self {
            image: image.identity(),
            source: match content {
                Content::Snapshot(_) => None,
                Content::Image(_) => image.source().identity(),
            },
        }
    }
}

/// An image that has a slot.
#[derive(Debug, Clone)]
struct Known {
    content: Content,
    /// What it is, for messages.
    name: Arc<str>,
    /// Whether its root is that of the mount.
    is_root: bool,
    /// Of the image that was opened first.
    identity: Option<Identity>,
    totals: Totals,
    /// Otherwise it is not opened again.
    presence: Presence,
}

/// Whether an image is where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Here,
    /// Another image is in its place, for which there is no slot yet.
    Replaced,
    /// It was removed, or the image in its place has a slot.
    Gone,
}

#[derive(Debug)]
enum Slot {
    Opening,
    Open {
        state: Arc<ImageState>,
        used: Instant,
    },
    Failed {
        /// None: it is not tried again.
        again: Option<Instant>,
        cause: Arc<str>,
    },
}

#[derive(Debug, Default)]
struct Table {
    known: BTreeMap<SlotNo, Known>,
    /// Slots that images have had so far.
    given: u32,
    slots: HashMap<SlotNo, Slot>,
    /// Requests, by the slot that is being opened for them.
    waiting: HashMap<SlotNo, Vec<Waiting>>,
    /// Slots that are open.
    open: Order<SlotNo>,
}

impl Table {
    fn add(&mut self, known: Known) -> Option<SlotNo> {
        if self.given + 2 > MOST_SLOTS {
            return None;
        }
        self.given += 1;
        let slot = SlotNo(self.given);
        self.known.insert(slot, known);
        Some(slot)
    }

    fn close(&mut self, slot: SlotNo) -> Option<Slot> {
        self.open.remove(slot);
        let closed = self.slots.remove(&slot);
        self.forget(slot);
        closed
    }

    /// Forgets an image that is gone and closed.
    fn forget(&mut self, slot: SlotNo) {
        let known = self.known.get(&slot);
        if known.is_some_and(|known| known.presence == Presence::Gone)
            && !matches!(
                self.slots.get(&slot),
                Some(Slot::Opening | Slot::Open { .. })
            )
        {
            self.known.remove(&slot);
            self.slots.remove(&slot);
        }
    }

    fn set_presence(&mut self, slot: SlotNo, presence: Presence) {
        if let Some(known) = self.known.get_mut(&slot) {
            known.presence = presence;
        }
        self.forget(slot);
    }

    /// Whether an image in a slot is not opened again.
    fn is_stale(&self, slot: SlotNo) -> bool {
        match self.known.get(&slot) {
            Some(known) => known.presence != Presence::Here,
            None => (1..=self.given).contains(&slot.0),
        }
    }
}

/// How a request finds its image.
#[derive(Debug)]
pub(crate) enum Found {
    Open(Arc<ImageState>),
    Failed(Errno),
    /// It waits, and the caller has to let a thread open the image.
    Begins,
    Waits,
}

/// Whether the image of a slot is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotStatus {
    /// It is opened when somebody needs it.
    Closed,
    /// It is open, or being opened.
    Open,
    /// It cannot be opened, for this reason.
    Failed(String),
}

/// The images that have slots.
#[derive(Debug)]
pub(crate) struct Slots {
    options: MountOptions,
    ranges: Ranges,
    /// Largest number of open ones.
    most_open: usize,
    pause: Duration,
    table: Mutex<Table>,
    failures: Failures,
    /// The slot of the generation whose root is that of the mount.
    current: AtomicU32,
    /// The connection to the kernel has ended: nothing is opened.
    ended: AtomicBool,
}

impl Slots {
    /// For other generations of the file of the image at the root, which has so many inodes.
    pub(crate) fn of_generations(options: &MountOptions, inodes: u32) -> Self {
        Self {
            ranges: Ranges::beside(inodes),
            ..Self::new(options, MOST_GENERATIONS, PAUSE)
        }
    }

    /// For the images of a mount of several ones.
    pub(crate) fn of_images(options: &MountOptions) -> Self {
        // The other half is for everything else.
        let most = usize::try_from(allow_many_files() / 2).unwrap_or(usize::MAX);
        Self::new(
            options,
            options.open_images.min(most).max(1),
            PAUSE_OF_IMAGES,
        )
    }

    fn new(options: &MountOptions, most_open: usize, pause: Duration) -> Self {
        Self {
            options: MountOptions {
                analysis_file: None,
                ..options.clone()
            },
            ranges: Ranges::default(),
            most_open,
            pause,
            table: Mutex::default(),
            failures: Failures::default(),
            current: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of the generation whose root is that of the mount.
    pub(crate) fn current(&self) -> SlotNo {
        SlotNo(self.current.load(Ordering::Acquire))
    }

    /// The options of the states of images.
    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// The inode numbers of the images.
    pub(crate) fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// The place of the image of a slot.
    pub(crate) fn place(
        &self,
        mount: &MountState,
        slot: SlotNo,
        is_root: bool,
        name: &str,
        image: &Image,
    ) -> PlaceOfImage {
        let inodes = image.metadata().inode_count();
        PlaceOfImage {
            slot,
            is_root,
            numbering: self.ranges.numbering(slot, inodes),
            origin: Some(Arc::from(name)),
            hidden: mount.main().and_then(|main| main.hidden.clone()),
        }
    }

    /// Gives a generation a slot, which it may have already. `file` is an image of the file. None if there are too many.
    pub(crate) fn add_snapshot(
        &self,
        file: &Image,
        snapshot: &Snapshot,
        is_root: bool,
    ) -> Option<SlotNo> {
        let mut table = self.table();
        let same = |known: &Known| match &known.content {
            Content::Snapshot(of) => {
                let (a, b) = (&of.0, snapshot);
                let same = (a.index, a.end, a.tree) == (b.index, b.end, b.tree);
                known.is_root == is_root && same && a.directory() == b.directory()
            }
            Content::Image(_) => false,
        };
        let mut all = table.known.iter();
        if let Some((&slot, _)) = all.find(|(_, known)| same(known)) {
            return Some(slot);
        }
        table.add(Known {
            content: Content::Snapshot(Box::new((snapshot.clone(), file.file()))),
            name: Arc::from(&*snapshot.name),
            is_root,
            identity: None,
            totals: Totals::default(),
            presence: Presence::Here,
        })
    }

    /// Gives an image a slot. `name` says in messages which it is. None if there are too many.
    pub(crate) fn add_image(&self, name: &str, opener: Opener) -> Option<SlotNo> {
        self.table().add(Known {
            content: Content::Image(opener),
            name: Arc::from(name),
            is_root: false,
            identity: None,
            totals: Totals::default(),
            presence: Presence::Here,
        })
    }

    /// A new slot for the image of one, if that is stale.
    pub(crate) fn renew(&self, slot: SlotNo) -> Option<SlotNo> {
        let mut table = self.table();
        let known = table.known.get(&slot);
        let known = known.filter(|known| known.presence == Presence::Replaced)?;
        let known = Known {
            identity: None,
            totals: Totals::default(),
            presence: Presence::Here,
            ..known.clone()
        };
        let new = table.add(known)?;
        table.set_presence(slot, Presence::Gone);
        Some(new)
    }

    /// Takes an image away. If it is open, programs that use it keep it until it is closed.
    pub(crate) fn remove(&self, slot: SlotNo) {
        self.table().set_presence(slot, Presence::Gone);
    }

    /// What the image of a slot is, whether it is open, and how large it is, as far as that is known.
    pub(crate) fn status(&self, slot: SlotNo) -> Option<(Arc<str>, SlotStatus, Totals)> {
        let table = self.table();
        let known = table.known.get(&slot)?;
        let status = match table.slots.get(&slot) {
            None => SlotStatus::Closed,
            Some(Slot::Opening | Slot::Open { .. }) => SlotStatus::Open,
            Some(Slot::Failed { cause, .. }) => SlotStatus::Failed(cause.to_string()),
        };
        Some((Arc::clone(&known.name), status, known.totals))
    }

    /// The size of all images that have been opened so far.
    pub(crate) fn totals(&self) -> Totals {
        let table = self.table();
        let present = table.known.values();
        let present = present.filter(|known| known.presence == Presence::Here);
        present.map(|known| known.totals).sum()
    }

    /// Makes the root of the mount that of a generation, which is open.
    pub(crate) fn move_to(&self, slot: SlotNo, state: Arc<ImageState>) {
        let mut table = self.table();
        let used = Instant::now();
        let old = table.slots.insert(slot, Slot::Open { state, used });
        table.open.touch(slot);
        self.current.store(slot.0, Ordering::Release);
        drop(table);
        // This may take time.
        drop(old);
    }

    /// Looks for an image. If it is not open, the request waits for it.
    pub(crate) fn find(&self, slot: SlotNo, waiting: impl FnOnce() -> Waiting) -> Found {
        let mut table = self.table();
        let table = &mut *table;
        let stale = table.is_stale(slot);
        if !stale && !table.known.contains_key(&slot) {
            return Found::Failed(Errno::NOENT);
        }
        match table.slots.get_mut(&slot) {
            Some(Slot::Open { state, used }) => {
                *used = Instant::now();
                table.open.touch(slot);
                Found::Open(Arc::clone(state))
            }
            Some(Slot::Opening) => {
                table.waiting.entry(slot).or_default().push(waiting());
                Found::Waits
            }
            Some(Slot::Failed { .. }) | None if stale => Found::Failed(Errno::STALE),
            Some(Slot::Failed { again, .. })
                if again.is_none_or(|again| Instant::now() < again) =>
            {
                Found::Failed(Errno::IO)
            }
            Some(Slot::Failed { .. }) | None => {
                table.slots.insert(slot, Slot::Opening);
                table.waiting.entry(slot).or_default().push(waiting());
                Found::Begins
            }
        }
    }

    /// Opens an image, and returns the requests that wait for it.
    pub(crate) fn open(
        &self,
        mount: &MountState,
        slot: SlotNo,
    ) -> (Result<Arc<ImageState>, Errno>, Settled) {
        let known = self.table().known.get(&slot).cloned();
        let Some(known) = known else {
            return (Err(Errno::NOENT), self.fail(slot));
        };
        if self.ended.load(Ordering::Acquire) {
            return (Err(Errno::IO), self.fail(slot));
        }
        let (opened, kind) = match &known.content {
            Content::Snapshot(of) => {
                let (snapshot, file) = &**of;
                let opened = file.open_snapshot(snapshot).map_err(|cause| {
                    let medium = matches!(cause, redwarfs_format::Error::Io(_));
                    (cause.to_string(), medium)
                });
                (opened, "snapshot")
            }
            Content::Image(opener) => {
                let closing = self.table().open.len() >= self.most_open;
                let opened = open_with_few_files(&**opener, closing, || self.close_one());
                (opened.map_err(|cause| (cause.to_string(), true)), "image")
            }
        };
        let opened = opened.and_then(|image| {
            let identity = Identity::of(&image, &known.content);
            if known
                .identity
                .as_ref()
                .is_some_and(|before| *before != identity)
            {
                return Ok(Err(Errno::STALE));
            }
            let place = self.place(mount, slot, known.is_root, &known.name, &image);
            let state = ImageState::of_slot(place, image, &self.options, &mount.shared);
            state.map(|state| Ok((state, identity))).map_err(|cause| {
                let medium = matches!(cause, Error::Image(redwarfs_format::Error::Io(_)));
                (cause.to_string(), medium)
            })
        });
        match opened {
            Ok(Ok((state, identity))) => {
                let state = Arc::new(state);
                if let Some(known) = self.table().known.get_mut(&slot) {
                    (known.identity, known.totals) = (Some(identity), Totals::of(&state));
                }
                let open = Slot::Open {
                    state: Arc::clone(&state),
                    used: Instant::now(),
                };
                (Ok(state), self.settle(slot, open))
            }
            Ok(Err(errno)) => {
                let name = &known.name;
                tracing::info!("{kind} '{name}': another one has taken its place");
                let mut table = self.table();
                if !table.is_stale(slot) {
                    table.set_presence(slot, Presence::Replaced);
                }
                drop(table);
                let failed = Slot::Failed {
                    again: None,
                    cause: Arc::from("another image has taken its place"),
                };
                (Err(errno), self.settle(slot, failed))
            }
            Err((cause, medium)) => {
                let name = &known.name;
                let text = match kind {
                    "snapshot" => format!("cannot open snapshot '{name}': {cause}"),
                    _ => cause.clone(),
                };
                self.failures.mention(&text);
                let failed = Slot::Failed {
                    again: medium.then(|| Instant::now() + self.pause),
                    cause: Arc::from(cause),
                };
                (Err(Errno::IO), self.settle(slot, failed))
            }
        }
    }

    /// Notes that an image cannot be opened now. Returns the requests that wait for it.
    pub(crate) fn fail(&self, slot: SlotNo) -> Settled {
        let failed = Slot::Failed {
            again: Some(Instant::now() + self.pause),
            cause: Arc::from("there is no thread to open it"),
        };
        self.settle(slot, failed)
    }

    fn settle(&self, slot: SlotNo, new: Slot) -> Settled {
        let mut closed = Vec::new();
        let mut table = self.table();
        let table = &mut *table;
        // The mount may have moved to it meanwhile.
        if !matches!(table.slots.get(&slot), Some(Slot::Open { .. })) {
            if matches!(new, Slot::Open { .. }) {
                table.open.touch(slot);
            }
            table.slots.insert(slot, new);
            table.forget(slot);
        }
        let waiting = table.waiting.remove(&slot).unwrap_or_default();
        let current = self.current();
        while table.open.len() > self.most_open {
            let least = table.open.iter().find(|&other| other != current);
            let Some(least) = least else { break };
            closed.extend(table.close(least));
        }
        Settled {
            waiting,
            _closed: closed,
        }
    }

    /// Closes the image that was not used for the longest time.
    fn close_one(&self) {
        let mut table = self.table();
        let current = self.current();
        let least = table.open.iter().find(|&slot| slot != current);
        let closed = least.and_then(|least| table.close(least));
        // What it holds goes without the lock.
        drop(table);
        drop(closed);
    }

    /// Closes the images that were not used for some time: never without a limit. Stale ones do not stay as long.
    pub(crate) fn close_idle(&self, limit: Option<Duration>) {
        let mut table = self.table();
        let idle = |slot: &SlotNo| match table.slots.get(slot) {
            Some(Slot::Open { used, .. }) => {
                let limit = match table.is_stale(*slot) {
                    true => Some(limit.map_or(STALE_AFTER, |limit| limit.min(STALE_AFTER))),
                    false => limit,
                };
                limit.is_some_and(|limit| used.elapsed() >= limit)
            }
            _ => false,
        };
        let idle: Vec<SlotNo> = table.open.iter().filter(idle).collect();
        let closed: Vec<_> = idle.into_iter().map(|slot| table.close(slot)).collect();
        drop(table);
        // What they hold goes without the lock.
        drop(closed);
    }

    /// Lets everything fail that waits to be opened: the connection to the kernel has ended.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Lets reads fail that wait for a server.
    pub(crate) fn abandon(&self) {
        for slot in self.table().slots.values() {
            if let Slot::Open { state, .. } = slot {
                state.image.source().abandon();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_are_gone_are_forgotten() {
        let slots = Slots::of_images(&MountOptions::default());
        let opener: Opener = Arc::new(|| Err("it is never opened".into()));
        let add = || slots.add_image("image", Arc::clone(&opener)).unwrap();
        let find = |slot| match slots.find(slot, || unreachable!("nothing waits")) {
            Found::Failed(errno) => errno,
            other => panic!("{other:?}"),
        };
        let first = add();
        for _ in 0..100 {
            let slot = add();
            slots.remove(slot);
            assert_eq!(find(slot), Errno::STALE);
            assert!(slots.status(slot).is_none() && slots.renew(slot).is_none());
        }
        assert_eq!(find(SlotNo(102)), Errno::NOENT);
        // One with another image in its place stays until that has a slot.
        slots.table().set_presence(first, Presence::Replaced);
        assert_eq!(find(first), Errno::STALE);
        assert_eq!(slots.renew(first), Some(SlotNo(102)));
        assert_eq!((find(first), slots.renew(first)), (Errno::STALE, None));
        // One that is being opened stays until that has failed.
        let slot = SlotNo(102);
        slots.table().slots.insert(slot, Slot::Opening);
        slots.remove(slot);
        assert_eq!(slots.table().known.len(), 1);
        drop(slots.fail(slot));
        let table = slots.table();
        assert!(table.known.is_empty() && table.slots.is_empty());
    }

    #[test]
    fn node_ids_of_slots_are_apart() {
        let largest = SlotNo(MOST_SLOTS - 1).first_node() + (1 << 32);
        assert!(largest < SlotNo(MOST_SLOTS).first_node());
        assert_eq!(SlotNo::of(largest), SlotNo(MOST_SLOTS - 1));
        assert_eq!(SlotNo::of(SlotNo(1).first_node()), SlotNo(1));
        assert_eq!(SlotNo::of(u64::from(u32::MAX) + 1), SlotNo(0));
    }
}
