//! An object as a source of image bytes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{Either, select};
use redwarfs_io::{DiskCache, Line, Source};
use tokio::sync::Semaphore;

use crate::Limits;
use crate::client::Use;
use crate::failure::Failure;
use crate::fetch::{self, Identity};
use crate::known::{self, Known};
use crate::location::Object;
use crate::opening::{self, Found};
use crate::runtime::Threads;
use crate::transfer::Transfer;
use crate::transfers::{Joining, KEPT, Missing, Transfers};

/// Requests of one source that run at the same time.
const REQUESTS: usize = 8;

/// Those of them that run for ranges that nobody waits for, so that one that somebody waits for seldom waits for them.
const AHEAD: usize = 6;

/// An object on a server, whose bytes are fetched when they are read or announced.
///
/// The first request takes the end of the object. Every other one states the version of the object that the first one
/// found, so a read returns bytes of that version, or an error.
///
/// Bytes stay in memory until all bytes of their request were read once, or until there are more than 64 MiB of them. An object of a server
/// that does not send ranges stays as a whole.
#[derive(Clone)]
pub struct RemoteSource(Arc<OpenObject>);

struct OpenObject {
    object: Object,
    identity: Identity,
    /// What identifies the object, without secrets.
    name: String,
    /// Its entry in the cache on disk, if there is a cache.
    known: Option<Known>,
    /// What is fetched until an image is open, for that entry.
    recording: Mutex<Option<Recording>>,
    limits: Limits,
    /// Set when the user wants to stop: then nothing waits.
    stop: Option<Arc<AtomicBool>>,
    threads: Threads,
    permits: Semaphore,
    /// What runs ahead has one of these, too, until somebody waits for it.
    ahead: Semaphore,
    transfers: Mutex<Transfers>,
    requests: AtomicU64,
    /// Whether an image in it was opened.
    opened: AtomicBool,
    abandoned: AtomicBool,
}

#[derive(Default)]
struct Recording {
    transfers: Vec<Arc<Transfer>>,
    /// Whether some of them are not in the cache.
    changed: bool,
}

impl RemoteSource {
    /// Opens the object of a URL: fetches its end, and finds out its length and version.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], [`io::ErrorKind::PermissionDenied`] and the errors of the network. The text begins
    /// with the URL, without secrets.
    pub fn open(url: &str, limits: Limits) -> io::Result<Self> {
        Self::open_cached(url, limits, None)
    }

    /// As [`RemoteSource::open_until`], without a request to stop.
    ///
    /// # Errors
    /// As [`RemoteSource::open_until`].
    pub fn open_cached(url: &str, limits: Limits, cache: Option<&DiskCache>) -> io::Result<Self> {
        Self::open_until(url, limits, cache, None)
    }

    /// As [`RemoteSource::open`], with a cache on disk for what opening an image in the object needs. If it has that, one
    /// request asks whether the object is still the same. Offline, there is no request, and bytes that the cache lacks are
    /// errors. Once `stop` is set, opening and reads do not wait for the server.
    ///
    /// # Errors
    /// As [`RemoteSource::open`]; offline, [`io::ErrorKind::NotConnected`] if the cache does not know the object.
    /// [`io::ErrorKind::Other`] once `stop` is set.
    pub fn open_until(
        url: &str,
        limits: Limits,
        cache: Option<&DiskCache>,
        stop: Option<Arc<AtomicBool>>,
    ) -> io::Result<Self> {
        let object = Object::of(url, Use::Read)?;
        let threads = Threads::get()?;
        let failed = |failure: Failure| {
            io::Error::new(failure.kind, format!("{}: {}", object.shown, failure.what))
        };
        let name = known::name_of(url, &object.server);
        let known = cache.map(|cache| Known::new(cache, name.clone()));
        let remembered = known.as_ref().and_then(Known::load);
        let offline = known.as_ref().is_some_and(Known::is_offline);
        let found = match remembered {
            Some(remembered) if offline => Found::remembered(remembered, true),
            None if offline => return Err(failed(Known::missing())),
            remembered => {
                let opening = opening::first(&object, &limits, remembered);
                let found = match &stop {
                    Some(stop) => threads
                        .block_on_until(stop, opening)
                        .and_then(|found| found),
                    None => threads.block_on(opening),
                };
                found.map_err(failed)?
            }
        };
        let Found {
            identity,
            transfers: there,
            requests,
            changed,
        } = found;
        if !identity.is_certain() {
            tracing::warn!(
                "{}: the server does not say when an object changes: if this one does, its bytes may be mixed",
                object.shown
            );
        }
        let mut transfers = Transfers::default();
        there.iter().for_each(|transfer| transfers.insert(transfer));
        // Later, nothing would say whether it is still the same.
        let known = known.filter(|_| identity.is_certain());
        let recording = known.as_ref().map(|_| Recording {
            transfers: there,
            changed,
        });
        Ok(Self(Arc::new(OpenObject {
            name,
            known,
            recording: Mutex::new(recording),
            object,
            identity,
            limits,
            stop,
            threads,
            permits: Semaphore::new(REQUESTS),
            ahead: Semaphore::new(AHEAD),
            transfers: Mutex::new(transfers),
            requests: AtomicU64::new(requests),
            opened: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        })))
    }

    /// The URL without secrets.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.0.object.shown
    }

    /// Number of ranges that were asked for, repeated attempts not counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }
}

/// Nobody needs the object any more.
fn abandoned() -> Failure {
    Failure::last(io::ErrorKind::NotConnected, "the image is no longer in use")
}

impl OpenObject {
    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        self.transfers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a transfer for the cache, until an image is open.
    fn record(&self, transfer: &Arc<Transfer>) {
        let mut recording = self.recording();
        if let Some(noted) = recording.as_mut() {
            noted.transfers.push(Arc::clone(transfer));
            noted.changed = true;
            if !known::fits(&noted.transfers) {
                *recording = None;
            }
        }
    }

    fn is_offline(&self) -> bool {
        self.known.as_ref().is_some_and(Known::is_offline)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Begins to fetch a range. If it runs `ahead` of reads, then as soon as few others of the kind are being fetched, or
    /// somebody waits for it.
    fn begin(
        self: &Arc<Self>,
        missing: Missing,
        ahead: bool,
        transfers: &mut Transfers,
    ) -> Arc<Transfer> {
        let transfer = Transfer::joined(missing.range, &missing.gaps);
        if self.is_abandoned() {
            transfer.fail(abandoned());
            return transfer;
        }
        if self.is_offline() {
            transfer.fail(Known::missing());
            return transfer;
        }
        transfers.insert(&transfer);
        self.record(&transfer);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let filling = Filling {
            inner: Arc::clone(self),
            transfer: Arc::clone(&transfer),
        };
        self.threads
            .handle()
            .spawn(async move { filling.run(ahead).await });
        transfer
    }

    /// Drops a transfer whose bytes were all read. Opening an image reads the end of the object more than once.
    fn was_read(&self, transfer: &Arc<Transfer>) {
        if transfer.range.end < self.identity.size || self.opened.load(Ordering::Relaxed) {
            self.transfers().remove(transfer);
        }
    }

    /// Begins to fetch what is missing of ranges, as far as there is room for it. What may be needed takes half of that, and
    /// only makes room of what was not used for a long time.
    fn announce(self: &Arc<Self>, ranges: &[Range<u64>], later: bool) {
        if self.threads.check().is_err() || self.is_abandoned() || self.is_offline() {
            return;
        }
        let (room, joining) = match later {
            true => (KEPT / 2, Joining::LATER),
            false => (KEPT, Joining::SOON),
        };
        let mut transfers = self.transfers();
        for missing in transfers.missing(ranges, self.identity.size, joining) {
            let length = missing.range.end - missing.range.start;
            if !later {
                transfers.make_room(length);
            } else if transfers.bytes().saturating_add(length) > room {
                transfers.drop_stale();
            }
            if transfers.bytes().saturating_add(length) <= room {
                self.begin(missing, true, &mut transfers);
            }
        }
    }

    /// The transfer with a byte, which is fetched if it is missing. A read of `len` bytes begins there.
    fn transfer(self: &Arc<Self>, offset: u64, len: u64) -> Arc<Transfer> {
        let mut transfers = self.transfers();
        if let Some(transfer) = transfers.at(offset) {
            if !transfer.has_failed() {
                transfer.awaited();
                return transfer;
            }
            // It failed before anybody waited for it.
            transfers.remove(&transfer);
        }
        let range = transfers.range_of_read(offset, len, self.identity.size);
        transfers.make_room(range.end - range.start);
        self.begin(Missing::whole(range), false, &mut transfers)
    }
}

/// A transfer that is being fetched. However that ends, nobody waits for it then, and one that failed is forgotten: the
/// next read tries again.
struct Filling {
    inner: Arc<OpenObject>,
    transfer: Arc<Transfer>,
}

impl Filling {
    async fn run(&self, ahead: bool) {
        let Self { inner, transfer } = self;
        let mut turn = None;
        if ahead {
            let free = pin!(inner.ahead.acquire());
            let hurried = pin!(transfer.hurried());
            if let Either::Left((free, _)) = select(free, hurried).await {
                turn = free.ok();
            }
        }
        // Never closed.
        let _permit = inner.permits.acquire().await;
        // Nobody needs it any more.
        if transfer.is_settled() || inner.is_abandoned() {
            return;
        }
        let mut fill = pin!(fetch::fill(
            &inner.object,
            &inner.identity,
            transfer,
            &inner.limits
        ));
        if let Some(turn) = turn {
            let hurried = pin!(transfer.hurried());
            match select(fill.as_mut(), hurried).await {
                Either::Left(_) => return,
                Either::Right(_) => drop(turn),
            }
        }
        fill.await;
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.transfer.is_settled() {
            let what = "the request has ended early";
            self.transfer
                .fail(Failure::last(io::ErrorKind::Other, what));
        }
        if !self.transfer.is_complete() {
            self.inner.transfers().remove(&self.transfer);
        }
    }
}

impl Source for RemoteSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.identity.size)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let inner = &self.0;
        inner.threads.check()?;
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > inner.identity.size) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "{}: {} bytes at offset {offset} reach beyond the end of the object",
                    inner.object.shown,
                    buf.len()
                ),
            ));
        }
        let (mut offset, mut buf) = (offset, buf);
        while !buf.is_empty() {
            let transfer = inner.transfer(offset, buf.len() as u64);
            let room = usize::try_from(transfer.range.end - offset).unwrap_or(usize::MAX);
            let (now, later) = buf.split_at_mut(room.min(buf.len()));
            match transfer.copy(offset, now, &inner.limits, inner.stop.as_deref()) {
                Ok(true) => inner.was_read(&transfer),
                Ok(false) => {}
                Err(failure) => {
                    // The next read tries again.
                    inner.transfers().remove(&transfer);
                    return Err(failure.error(&inner.object.shown, &transfer.range));
                }
            }
            offset += now.len() as u64;
            buf = later;
        }
        Ok(())
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let transfer = self.0.transfers().at(offset);
        transfer.is_some_and(|transfer| {
            let end = offset.saturating_add(buf.len() as u64);
            if end > transfer.range.end {
                return false;
            }
            let copied = transfer.try_copy(offset, buf);
            if copied == Some(true) {
                self.0.was_read(&transfer);
            }
            copied.is_some()
        })
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn line(&self) -> Option<Line> {
        self.0.object.meter.line()
    }

    fn identity(&self) -> Option<String> {
        let inner = &self.0;
        let identity = &inner.identity;
        let tag = identity.tag.as_ref().filter(|tag| !tag.starts_with("W/"));
        let version = match tag.or(identity.version.as_ref()) {
            Some(tag) => tag.clone(),
            None => identity.modified.to_string(),
        };
        let name = format!("{} {} {version}", inner.name, identity.size);
        identity.is_certain().then_some(name)
    }

    fn opened(&self) {
        self.0.opened.store(true, Ordering::Relaxed);
        let recording = self.0.recording().take();
        if let (Some(known), Some(recording)) = (&self.0.known, recording)
            && recording.changed
        {
            known.store(&self.0.identity, &recording.transfers);
        }
    }

    fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::SeqCst);
        // A transfer that is begun now has seen it.
        let transfers = self.0.transfers();
        for (transfer, _) in transfers.found.values() {
            if !transfer.is_settled() {
                transfer.fail(abandoned());
            }
        }
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        self.0.announce(ranges, false);
    }

    fn may_need(&self, ranges: &[Range<u64>]) {
        self.0.announce(ranges, true);
    }

    fn is_coming(&self, range: &Range<u64>) -> bool {
        self.0.transfers().is_coming(range)
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSource")
            .field("url", &self.0.object.shown)
            .field("len", &self.0.identity.size)
            .finish_non_exhaustive()
    }
}
