//! Generations of the file beside the one that was mounted: threads of their own open them, and few stay open.
//!
//! Each has a *slot*, whose number is in the upper 24 bits of the node ids of its inodes. So node ids stay valid
//! when a generation is closed. A request opens its generation again. Until it is open, the requests for it
//! wait, and no thread with them, so other requests are answered. A generation that cannot be opened is not tried again for
//! every request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_format::section::Snapshot;
use redwarfs_reader::{CacheOptions, FileOfImage, Image};
use rustix::io::Errno;

use crate::error::Error;
use crate::mount_state::MountState;
use crate::options::MountOptions;
use crate::proto::{Body, Header};

/// Bits of a node id below the number of the slot.
const NODE_BITS: u32 = 40;
/// Slots from this number on are of no generation.
pub(crate) const MOST_SLOTS: u32 = (1 << (64 - NODE_BITS)) - 1;
/// Generations that are open at a time, and threads that open them.
pub(crate) const MOST_OPEN: usize = 8;
/// If the medium has failed, a generation is tried again after this time.
const PAUSE: Duration = Duration::from_secs(60);

/// The root of the mount.
pub(crate) const ROOT: u64 = 1;

/// What becomes of requests whose generation was opened, or cannot be.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) waiting: Vec<Waiting>,
    /// States that are closed for it. Their threads end when this is dropped, which may take time.
    _closed: Vec<Slot>,
}

/// Which generation an inode belongs to. 0 is the one that was mounted.
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

    fn index(self) -> Option<usize> {
        usize::try_from(self.0.checked_sub(1)?).ok()
    }
}

/// What a request gets from its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An answer.
    Answer,
    /// The entry of its root directory.
    Root,
}

/// A request that waits for its generation. Its ticket is in `pending_reads`.
#[derive(Debug)]
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

/// A generation that has a slot.
#[derive(Debug, Clone)]
struct Known {
    snapshot: Snapshot,
    /// A file that has it.
    file: FileOfImage,
    /// Whether its root is that of the mount.
    is_root: bool,
}

#[derive(Debug)]
enum Slot {
    Opening,
    Open(Arc<MountState>),
    /// None: it is not tried again.
    Failed(Option<Instant>),
}

#[derive(Debug, Default)]
struct Table {
    /// By slot, from 1 on.
    known: Vec<Known>,
    slots: HashMap<SlotNo, Slot>,
    /// Requests, by the slot that is being opened for them.
    waiting: HashMap<SlotNo, Vec<Waiting>>,
    /// Slots that are open. The least recently used one is the first.
    open: Vec<SlotNo>,
}

/// How a request finds its generation.
#[derive(Debug)]
pub(crate) enum Found {
    Open(Arc<MountState>),
    Failed(Errno),
    /// It waits, and the caller has to let a thread open the generation.
    Begins,
    Waits,
}

/// The generations that have slots.
#[derive(Debug)]
pub(crate) struct Generations {
    options: MountOptions,
    cache: CacheOptions,
    table: Mutex<Table>,
    /// The slot of the generation whose root is that of the mount.
    current: AtomicU32,
}

impl Generations {
    pub(crate) fn new(image: &Image, options: &MountOptions) -> Self {
        let mut cache = *image.cache_options();
        cache.size /= MOST_OPEN as u64;
        Self {
            options: MountOptions {
                analysis_file: None,
                ..options.clone()
            },
            cache,
            table: Mutex::default(),
            current: AtomicU32::new(0),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of the generation whose root is that of the mount.
    pub(crate) fn current(&self) -> SlotNo {
        SlotNo(self.current.load(Ordering::Acquire))
    }

    /// The options of the states of generations.
    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Gives a generation a slot, which it may have already. `file` is an image of the file. None if there are too many.
    pub(crate) fn add(&self, file: &Image, snapshot: &Snapshot, is_root: bool) -> Option<SlotNo> {
        let mut table = self.table();
        let same = |known: &Known| {
            let (a, b) = (&known.snapshot, snapshot);
            known.is_root == is_root && (a.index, a.end, a.tree) == (b.index, b.end, b.tree)
        };
        let at = match table.known.iter().position(same) {
            Some(at) => at,
            None => {
                if table.known.len() as u64 + 2 > u64::from(MOST_SLOTS) {
                    return None;
                }
                table.known.push(Known {
                    snapshot: snapshot.clone(),
                    file: file.file(),
                    is_root,
                });
                table.known.len() - 1
            }
        };
        Some(SlotNo(at as u32 + 1))
    }

    /// Makes the root of the mount that of a generation, which is open.
    pub(crate) fn move_to(&self, slot: SlotNo, state: Arc<MountState>) {
        let mut table = self.table();
        let before = self.current();
        let old = table.slots.insert(slot, Slot::Open(state));
        table.open.retain(|&other| other != slot && other != before);
        table.open.push(slot);
        self.current.store(slot.0, Ordering::Release);
        // It has a large cache. Requests for it open it with a small one.
        let closed = match before == slot {
            true => None,
            false => table.slots.remove(&before),
        };
        drop(table);
        // Ends its threads, which may take time.
        drop((old, closed));
    }

    /// Looks for a generation. If it is not open, the request waits for it.
    pub(crate) fn find(&self, slot: SlotNo, waiting: impl FnOnce() -> Waiting) -> Found {
        let mut table = self.table();
        let table = &mut *table;
        if slot.index().is_none_or(|at| at >= table.known.len()) {
            return Found::Failed(Errno::NOENT);
        }
        match table.slots.get_mut(&slot) {
            Some(Slot::Open(state)) => {
                if table.open.last() != Some(&slot) {
                    table.open.retain(|&other| other != slot);
                    table.open.push(slot);
                }
                Found::Open(Arc::clone(state))
            }
            Some(Slot::Failed(again)) if again.is_none_or(|again| Instant::now() < again) => {
                Found::Failed(Errno::IO)
            }
            Some(Slot::Opening) => {
                table.waiting.entry(slot).or_default().push(waiting());
                Found::Waits
            }
            Some(Slot::Failed(_)) | None => {
                table.slots.insert(slot, Slot::Opening);
                table.waiting.entry(slot).or_default().push(waiting());
                Found::Begins
            }
        }
    }

    /// Opens a generation, and returns the requests that wait for it.
    pub(crate) fn open(
        &self,
        mount: &MountState,
        slot: SlotNo,
    ) -> (Result<Arc<MountState>, Errno>, Settled) {
        let known = {
            let table = self.table();
            slot.index().and_then(|at| table.known.get(at).cloned())
        };
        let Some(known) = known else {
            return (Err(Errno::NOENT), self.settle(slot, None, None));
        };
        let opened = (known.file)
            .open_snapshot(&known.snapshot, &self.cache)
            .map_err(Error::from)
            .and_then(|image| mount.of_slot(slot, known.is_root, image, &self.options));
        match opened {
            Ok(state) => {
                let state = Arc::new(state);
                let settled = self.settle(slot, Some(Arc::clone(&state)), None);
                (Ok(state), settled)
            }
            Err(cause) => {
                let medium = matches!(cause, Error::Image(redwarfs_format::Error::Io(_)));
                let again = medium.then(|| Instant::now() + PAUSE);
                let name = &known.snapshot.name;
                let text = format!("cannot open snapshot '{name}': {cause}");
                mount.failures.mention(&text);
                (Err(Errno::IO), self.settle(slot, None, again))
            }
        }
    }

    /// Notes that a generation cannot be opened now. Returns the requests that wait for it.
    pub(crate) fn fail(&self, slot: SlotNo) -> Settled {
        self.settle(slot, None, Some(Instant::now() + PAUSE))
    }

    fn settle(
        &self,
        slot: SlotNo,
        state: Option<Arc<MountState>>,
        again: Option<Instant>,
    ) -> Settled {
        let mut closed = Vec::new();
        let mut table = self.table();
        let of_table = &mut *table;
        match state {
            // The mount has moved to it meanwhile.
            _ if matches!(of_table.slots.get(&slot), Some(Slot::Open(_))) => {}
            Some(state) => {
                of_table.open.push(slot);
                of_table.slots.insert(slot, Slot::Open(state));
            }
            None => {
                of_table.slots.insert(slot, Slot::Failed(again));
            }
        }
        let waiting = of_table.waiting.remove(&slot).unwrap_or_default();
        let current = self.current();
        while of_table.open.len() > MOST_OPEN {
            let least = of_table.open.iter().position(|&other| other != current);
            let Some(least) = least else { break };
            let least = of_table.open.remove(least);
            closed.extend(of_table.slots.remove(&least));
        }
        Settled {
            waiting,
            _closed: closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_of_generations_are_apart() {
        let largest = SlotNo(MOST_SLOTS - 1).first_node() + (1 << 32);
        assert!(largest < SlotNo(MOST_SLOTS).first_node());
        assert_eq!(SlotNo::of(largest), SlotNo(MOST_SLOTS - 1));
        assert_eq!(SlotNo::of(SlotNo(1).first_node()), SlotNo(1));
        assert_eq!(SlotNo::of(u64::from(u32::MAX) + 1), SlotNo(0));
    }
}
