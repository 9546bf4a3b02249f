//! Preloading: decodes the blocks that the user or hints name into the cache, or fetches them into the cache on disk, in the
//! background.
//!
//! Requests have the right of way: their bytes are fetched and decoded first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use redwarfs_format::hints::Hints;
use redwarfs_format::{BlockNo, Error, Result};

use crate::image::{Image, OpenImage};
use crate::options::Preload;

/// What preloading has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PreloadSummary {
    /// Requested blocks.
    pub wanted: usize,
    /// Decoded blocks.
    pub loaded: usize,
    /// Blocks that could not be decoded.
    pub failed: usize,
}

/// Preloading in the background. If the handle is dropped, preloading continues. It ends when all
/// blocks are decoded, when the cache is full, or with the image.
#[derive(Debug)]
pub struct PreloadHandle {
    threads: Vec<JoinHandle<()>>,
    job: Arc<Job>,
}

impl PreloadHandle {
    /// Ends preloading soon; blocks that are being decoded are finished.
    pub fn stop(&self) {
        self.job.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    #[must_use]
    pub fn wait(self) -> PreloadSummary {
        for thread in self.threads {
            // A panic in there has failed its block and ended one thread: nothing to do.
            let _ = thread.join();
        }
        self.job.summary()
    }
}

#[derive(Debug)]
struct Job {
    /// The blocks, when they are known.
    blocks: OnceLock<Vec<BlockNo>>,
    /// Hints, from which the first thread finds them out.
    hints: Option<Arc<Hints>>,
    /// Blocks are fetched into the cache on disk.
    to_disk: bool,
    /// Blocks before this one were announced, and the start of the last announced batch.
    announced: Mutex<(usize, usize)>,
    next: AtomicUsize,
    stop: AtomicBool,
    /// Blocks that are being decoded.
    active: AtomicUsize,
    loaded: AtomicUsize,
    failed: AtomicUsize,
    /// What a block is loaded for is advice: an error ends it.
    is_advice: bool,
}

impl Job {
    fn summary(&self) -> PreloadSummary {
        PreloadSummary {
            wanted: self.blocks.get().map_or(0, Vec::len),
            loaded: self.loaded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn run(&self, inner: &Weak<OpenImage>) {
        while !self.stop.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            // The image may be closed at any time; it must not wait for this.
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let blocks = self.blocks.get_or_init(|| self.hinted(&inner));
            let Some(&block) = blocks.get(index) else {
                return;
            };
            if inner.payloads.is_remote() {
                self.announce(&inner, blocks, index);
            }
            match self.load(&inner, block) {
                Ok(true) => self.loaded.fetch_add(1, Ordering::Relaxed),
                Ok(false) => {
                    self.stop.store(true, Ordering::Relaxed);
                    0
                }
                Err(e) => {
                    if !self.is_advice {
                        tracing::warn!("cannot preload block {block}: {e}");
                    } else if !self.stop.swap(true, Ordering::Relaxed) {
                        let rest = blocks.len() - index;
                        tracing::info!("{rest} blocks of hints are not loaded: block {block}: {e}");
                    }
                    self.failed.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    }
}

/// Stored bytes of blocks that are announced together (8 MiB), and two batches of which are on their way. What is fetched waits
/// in memory, where requests need room, too.
const BATCH: u64 = 8 << 20;

/// Threads that wait for a server. Requests for the blocks that they have come to count as those that somebody waits for.
const REMOTE_THREADS: usize = 2;

/// Most blocks of a batch.
const BATCH_BLOCKS: usize = 1 << 12;

/// Time after which room is looked for again.
const RETRY: Duration = Duration::from_millis(1);

impl Job {
    /// The blocks of hints that fit into the cache. What only the image asks for leaves one half to others, and takes no more
    /// than its share of the other half if several images have one cache.
    fn hinted(&self, inner: &OpenImage) -> Vec<BlockNo> {
        let blocks = inner.hinted_blocks(self.hints.as_deref());
        let mut blocks = blocks.unwrap_or_else(|e| {
            tracing::warn!("hints have no effect: {e}");
            Vec::new()
        });
        let fitting = inner.cache.blocks_that_fit();
        blocks.truncate(match self.hints {
            Some(_) => fitting,
            None => fitting / 2 / inner.cache.images(),
        });
        blocks
    }

    /// Lets a server send the next batches when one of them begins to be used, so that neighbours are one request.
    fn announce(&self, inner: &OpenImage, blocks: &[BlockNo], index: usize) {
        let mut batches = Vec::new();
        {
            let announced = self.announced.lock();
            let mut announced = announced.unwrap_or_else(PoisonError::into_inner);
            let (end, last) = &mut *announced;
            while *end < blocks.len() && index >= *last {
                let rest = blocks.get(*end..).unwrap_or_default();
                let fitting = inner.payloads.first_bytes(rest, BATCH);
                let length = fitting.clamp(1, BATCH_BLOCKS);
                batches.push(rest.get(..length).unwrap_or_default());
                *last = *end;
                *end += length;
            }
        }
        for batch in batches {
            let knows = |block| inner.cache.knows(block);
            let missing = batch.iter().copied().filter(|block| !knows(*block));
            inner.payloads.announce_missing_later(missing, knows);
        }
    }

    /// Decodes a block; false if there is no room. While others decode theirs, more is reserved
    /// for them than they will take, so only the last one knows.
    fn load(&self, inner: &OpenImage, block: BlockNo) -> Result<bool> {
        if self.to_disk {
            return inner.payloads.fetch_to_disk(block).map(|()| true);
        }
        loop {
            self.active.fetch_add(1, Ordering::SeqCst);
            let loaded = inner.cache.preload(block);
            let others = self.active.fetch_sub(1, Ordering::SeqCst) > 1;
            if !matches!(loaded, Ok(false)) || !others || self.stop.load(Ordering::Relaxed) {
                return loaded;
            }
            std::thread::sleep(RETRY);
        }
    }
}

impl Image {
    /// Starts to decode blocks into the cache, in the background and in the order of their numbers, or in that of the list, on
    /// as many threads as the cache has workers. It ends when all blocks are decoded, or the next one
    /// does not fit without dropping others. [`Preload::Blocks`] go to the cache on disk instead, if there is one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no category of that name, saying which there are;
    /// [`Error::Io`] if no thread could be started.
    pub fn preload(&self, which: Preload) -> Result<PreloadHandle> {
        let disk = self.0.payloads.disk().is_some();
        let to_disk = disk && matches!(which, Preload::Blocks(_));
        let mut hints = None;
        let mut most = usize::MAX;
        let is_advice = matches!(which, Preload::Hints(_));
        let blocks = match which {
            Preload::Hints(given) => {
                if given.is_none() && !self.has_hints() {
                    most = 0;
                } else if self.0.cache.images() > 1 {
                    // Many images may be opened at once.
                    most = 1;
                }
                hints = given;
                None
            }
            Preload::All => Some((0..self.container().block_count()).map(BlockNo).collect()),
            Preload::Category(name) => self
                .category_blocks(&name)
                .map(Some)
                .ok_or_else(|| Error::Unsupported(self.unknown_category(&name)))?,
            Preload::Blocks(blocks) => Some(blocks),
        };
        let most = blocks.as_ref().map_or(most, Vec::len);
        let mut threads = self.0.cache.workers().min(most);
        if self.is_remote() {
            threads = threads.min(REMOTE_THREADS);
        }
        let job = Arc::new(Job {
            blocks: blocks.map_or_else(OnceLock::new, OnceLock::from),
            hints,
            to_disk,
            announced: Mutex::default(),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            is_advice,
        });
        let mut handle = PreloadHandle {
            threads: Vec::new(),
            job,
        };
        for number in 0..threads {
            let (job, inner) = (Arc::clone(&handle.job), Arc::downgrade(&self.0));
            let affinity = self.0.cache.affinity();
            let thread = std::thread::Builder::new().name(format!("redwarfs-pre{number}"));
            let started = thread.spawn(move || {
                crate::sys::pin(affinity);
                job.run(&inner);
            });
            match started {
                Ok(thread) => handle.threads.push(thread),
                Err(e) if handle.threads.is_empty() => return Err(e.into()),
                Err(_) => break,
            }
        }
        Ok(handle)
    }

    /// The blocks of a category, ascending; `None` if the image has no category of that name.
    #[must_use]
    pub fn category_blocks(&self, name: &str) -> Option<Vec<BlockNo>> {
        let view = self.metadata();
        let names = view.category_names().ok()??;
        let wanted: Vec<bool> = names.iter().map(|n| n == name.as_bytes()).collect();
        if !wanted.contains(&true) {
            return None;
        }
        let is_wanted = |block: &BlockNo| {
            let category = view.block_category(*block).ok().flatten();
            category.is_some_and(|c| wanted.get(c.index()).copied().unwrap_or(false))
        };
        let blocks = (0..self.container().block_count()).map(BlockNo);
        Some(blocks.filter(is_wanted).collect())
    }

    fn unknown_category(&self, name: &str) -> String {
        let names = self.metadata().category_names().ok().flatten();
        let mut names: Vec<String> = names
            .unwrap_or_default()
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.sort();
        if names.is_empty() {
            return format!("no such category: {name} (the image has no categories)");
        }
        /// Names that are shown; an image has a handful.
        const SHOWN: usize = 64;
        let more = if names.len() > SHOWN { ", ..." } else { "" };
        names.truncate(SHOWN);
        format!(
            "no such category: {name} (the image has: {}{more})",
            names.join(", ")
        )
    }
}
