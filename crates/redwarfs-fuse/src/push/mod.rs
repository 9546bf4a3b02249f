//! Pushing: if small files are read in the order of their data, the driver puts the next files into
//! the kernel's page cache before they are requested. This saves a request for each file.
//!
//! * Trigger: a whole small file was read, and the file whose data lies just before it was read or
//!   pushed shortly before. Pushed files cause no requests, so the next trigger is the file after the
//!   last pushed one. When the process stops reading, pushing stops, and random reads never start it.
//! * The driver pushes only files that the kernel knows, and each file once until the kernel forgets
//!   it. Under memory pressure the kernel drops pages, and pushing again would add to the pressure.
//! * The driver pushes only decoded data: pushing never decodes, reads or waits for a block.
//! * A separate thread pushes, because the kernel may make the call wait for a pending read of the
//!   same file. If the thread does not keep up, triggers are dropped.
//!
//! Pushing needs a free CPU: the thread must stay ahead of a process that takes about 20 us per file.
//!
//! Memory: 2 bits per inode, and, from the first trigger on, 4 bytes per regular file. The driver does
//! not push from images with more than 8 million inodes.

mod order;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

use crossbeam_channel::{Receiver, Sender, bounded};
use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::Extent;
use redwarfs_reader::Image;
use rustix::io::Errno;
use tracing::debug;

use crate::bits::Bits;
use crate::device::Device;
use crate::image_state::ImageState;
use crate::policy::node_id;
use order::{DataOrder, Position};

/// Largest file that is pushed or triggers (128 KiB): the kernel reads larger ones ahead itself.
const SMALL: usize = 128 << 10;
/// Largest number of pieces of a small file.
const MAX_EXTENTS: usize = 8;
/// Files that the driver skips before the first pushed one. Otherwise the process requests each file while
/// it is being pushed: the kernel makes the push wait for the read, and the thread never gets ahead.
const LEAD: usize = 2;
/// Files that one trigger pushes.
const WINDOW: usize = 64;
/// Bytes that one trigger pushes.
const WINDOW_BYTES: usize = 512 << 10;
/// Files that are examined for one trigger.
const LOOKED_AT: usize = 4 * WINDOW;
/// Sequences of reads that are distinguished.
const STREAMS: usize = 8;
/// Inodes of the largest image from which the driver pushes. This bounds the memory for an image that
/// claims many inodes.
const MAX_INODES: u32 = 1 << 23;
/// Triggers that can wait for the thread.
const QUEUE: usize = 4;

/// One sequence of reads.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Where the last file that was read ends.
    end: Position,
    /// Where the last file that was pushed ends.
    pushed: Option<Position>,
}

impl Stream {
    /// Whether data that begins at `start` directly follows data that ends at `end`.
    fn follows(end: Position, start: Position) -> bool {
        end == start || (start.1 == 0 && end.0.checked_add(1) == Some(start.0))
    }

    /// Whether a file that begins at `start` is the next one of the sequence. Files between pushed files
    /// that were not pushed themselves count, too.
    fn continues_at(&self, start: Position) -> bool {
        Self::follows(self.end, start)
            || self.pushed.is_some_and(|pushed| {
                (self.end..pushed).contains(&start) || Self::follows(pushed, start)
            })
    }
}

/// The latest sequences.
#[derive(Debug, Default)]
struct Streams {
    all: [Option<Stream>; STREAMS],
    next: usize,
}

impl Streams {
    /// Notes a file that was read. Returns whether to push more.
    fn was_read(&mut self, start: Position, end: Position) -> bool {
        let mut streams = self.all.iter_mut().flatten();
        if let Some(stream) = streams.find(|stream| stream.continues_at(start)) {
            stream.end = end;
            // The process has not yet read all pushed files.
            if stream.pushed.is_some_and(|pushed| end < pushed) {
                return false;
            }
            stream.pushed = None;
            return true;
        }
        if let Some(oldest) = self.all.get_mut(self.next) {
            *oldest = Some(Stream { end, pushed: None });
            self.next = (self.next + 1) % STREAMS;
        }
        false
    }

    /// Notes that the data from `from` to `to` was pushed. The process may have read a part of it since
    /// the trigger.
    fn was_pushed(&mut self, from: Position, to: Position) {
        let mut streams = self.all.iter_mut().flatten();
        if let Some(stream) = streams.find(|stream| (from..to).contains(&stream.end)) {
            stream.pushed = Some(to);
        }
    }
}

/// The state of the kernel's caches, as far as the driver knows it.
#[derive(Debug)]
struct KernelView {
    /// Inodes that the kernel knows.
    known: Bits,
    /// Inodes whose contents the kernel has received since it looked them up.
    filled: Bits,
    streams: Mutex<Streams>,
}

/// Decides which files to push, and pushes them.
pub(crate) struct Pusher {
    image: Image,
    view: Arc<KernelView>,
    queue: Sender<Position>,
}

/// Waits for the pushing thread when it goes out of scope.
#[derive(Debug)]
pub(crate) struct PushThread(Option<JoinHandle<()>>);

impl Drop for PushThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Pusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pusher").finish_non_exhaustive()
    }
}

impl Pusher {
    /// Whether an image is small enough.
    pub(crate) fn is_for(image: &Image) -> bool {
        image.metadata().inode_count() <= MAX_INODES
    }

    /// Starts the thread, which ends when the pusher is dropped.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub(crate) fn new(
        mount: &Arc<ImageState>,
        device: &Arc<Device>,
    ) -> io::Result<(Self, PushThread)> {
        let image = mount.image.clone();
        let inodes = image.metadata().inode_count();
        let view = Arc::new(KernelView {
            known: Bits::new(inodes),
            filled: Bits::new(inodes),
            streams: Mutex::default(),
        });
        let (queue, triggers) = bounded(QUEUE);
        let worker = Worker {
            mount: Arc::clone(mount),
            device: Arc::clone(device),
            view: Arc::clone(&view),
            order: None,
            buffer: Vec::new(),
        };
        let thread = Builder::new()
            .name(String::from("fuse-push"))
            .spawn(move || worker.run(&triggers))?;
        let pusher = Self { image, view, queue };
        Ok((pusher, PushThread(Some(thread))))
    }

    /// The kernel learns about an inode.
    pub(crate) fn knows(&self, inode: InodeNo) {
        self.view.known.insert(inode);
    }

    /// The kernel forgets an inode.
    pub(crate) fn forgets(&self, inode: InodeNo) {
        self.view.known.remove(inode);
        self.view.filled.remove(inode);
    }

    /// Notes a read of `len` bytes at `offset`. Call it before the reply: with the reply the process
    /// requests the next file, and the pushing thread should be ahead of that request.
    pub(crate) fn was_read(&self, inode: InodeNo, offset: u64, len: usize) {
        if offset != 0 || len == 0 || len > SMALL {
            return;
        }
        let Some((start, end)) = whole(&self.image, inode, len) else {
            return;
        };
        self.view.filled.insert(inode);
        let continues = self.view.streams().was_read(start, end);
        if continues {
            // If the queue is full, the thread does not keep up.
            let _ = self.queue.try_send(end);
        }
    }
}

impl KernelView {
    fn streams(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begin and end of the data of a file of `len` bytes; none if the file has another size, holes or many
/// pieces.
fn whole(image: &Image, inode: InodeNo, len: usize) -> Option<(Position, Position)> {
    let extents = image.metadata().extents(inode).ok()?;
    if extents.len() > MAX_EXTENTS {
        return None;
    }
    let (mut start, mut end, mut size) = (None, None, 0);
    for extent in extents {
        let Extent::Data {
            block,
            offset,
            size: bytes,
        } = extent.ok()?
        else {
            return None;
        };
        let offset = u64::from(offset);
        start.get_or_insert((block.0, offset));
        end = Some((block.0, offset + u64::from(bytes)));
        size += u64::from(bytes);
    }
    (size == len as u64).then_some((start?, end?))
}

/// The pushing thread.
struct Worker {
    mount: Arc<ImageState>,
    device: Arc<Device>,
    view: Arc<KernelView>,
    order: Option<DataOrder>,
    buffer: Vec<u8>,
}

impl Worker {
    fn run(mut self, triggers: &Receiver<Position>) {
        for mut from in triggers {
            // Older triggers are about files that the process has already read.
            while let Ok(later) = triggers.try_recv() {
                from = later;
            }
            // A panic may end pushing, but nothing else.
            let pushed = catch_unwind(AssertUnwindSafe(|| self.push(from)));
            match pushed {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return debug!("pushing ends after a panic"),
            }
        }
        // For later triggers, the missing thread is the same as a full queue.
    }

    /// Pushes the files after a position. Returns false if the connection has ended.
    fn push(&mut self, from: Position) -> bool {
        let Self {
            mount,
            device,
            view,
            order,
            buffer,
        } = self;
        let image = &mount.image;
        let meta = image.metadata();
        let order = order.get_or_insert_with(|| DataOrder::new(meta));
        let (mut files, mut bytes) = (0, 0);
        let mut reached = from;
        let mut lead = LEAD;
        for (position, inode) in order.after(meta, from).take(LOOKED_AT) {
            if files >= WINDOW || bytes >= WINDOW_BYTES {
                break;
            }
            if position.0 != from.0 && position.0.checked_sub(1) != Some(from.0) {
                break;
            }
            if view.filled.contains(inode) {
                // The process has caught up.
                lead = LEAD;
                continue;
            }
            if lead > 0 {
                lead -= 1;
                continue;
            }
            if !view.known.contains(inode) {
                continue;
            }
            let Ok((extents, stat)) = meta.extents(inode).and_then(|e| Ok((e, meta.stat(inode)?)))
            else {
                continue;
            };
            let size = usize::try_from(stat.size).unwrap_or(usize::MAX);
            let sparse_one = stat.allocated < stat.size;
            if size > SMALL
                || extents.len() > MAX_EXTENTS
                || (sparse_one && !mount.settings.cache_sparse)
            {
                continue;
            }
            let read = match image.try_read_pinned(inode, 0, size, buffer) {
                Ok(Some(read)) if read.len() == size => read,
                // Not decoded yet, so later data is not decoded either.
                Ok(_) if extents.len() <= 1 => break,
                _ => continue,
            };
            // From here on, an inode that the kernel forgets can be pushed again.
            if !view.filled.insert(inode) {
                continue;
            }
            match device.store(node_id(inode), size, read.parts()) {
                Ok(()) => {
                    mount.counters.pushed(size);
                    files += 1;
                    bytes += size;
                    if let Some((_, end)) = whole(image, inode, size) {
                        reached = end;
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    // The kernel has just forgotten the inode.
                    Some(Errno::NOENT) => view.filled.remove(inode),
                    Some(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => return false,
                    _ => {
                        debug!("cannot push inode {}: {error}", node_id(inode));
                        return true;
                    }
                },
            }
        }
        if reached != from {
            view.streams().was_pushed(from, reached);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sequences_trigger() {
        let mut streams = Streams::default();
        assert!(!streams.was_read((0, 0), (0, 10)));
        assert!(streams.was_read((0, 10), (0, 15)));
        assert!(!streams.was_read((0, 20), (0, 30)));
        // The first file of the next block follows the last one of a block.
        assert!(streams.was_read((1, 0), (1, 9)));
        // Pushed up to 100 while the reader came to 9: nothing more until it gets there.
        streams.was_pushed((1, 5), (1, 100));
        assert!(!streams.was_read((1, 9), (1, 12)));
        assert!(!streams.was_read((1, 20), (1, 22)));
        assert!(!streams.was_read((1, 200), (1, 210)));
        assert!(streams.was_read((1, 100), (1, 101)));
        assert!(streams.was_read((1, 101), (1, 102)));
        // Other sequences push an old one out.
        for n in 0..STREAMS as u64 {
            assert!(!streams.was_read((5, 1000 * n + 1), (5, 1000 * n + 2)));
        }
        assert!(!streams.was_read((1, 102), (1, 103)));
    }
}
