//! An object as a source of image bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use redwarfs_io::{DiskCache, Line, Source};
use tokio::sync::Semaphore;

use crate::Limits;
use crate::failure::Failure;
use crate::fetch::{self, Attempts, Identity};
use crate::known::{self, Known};
use crate::location::{Object, Use};
use crate::opening::{self, Found};
use crate::piece::Piece;
use crate::runtime::Threads;

/// Requests of one source that run at the same time.
const REQUESTS: usize = 8;

/// Those of them that run for ranges that nobody waits for.
const BACKGROUND: usize = 6;

/// Ranges that are announced together, with at most this many bytes between them, are fetched with one request (1 MiB). But
/// not if more than 64 KiB are between them, and more than both have.
const GAP: u64 = 1 << 20;

/// Longest range of one request that was joined from several: twelve blocks of 1 MiB with their headers. A connection takes some round trips to get up to speed,
/// so a few long requests are faster than many. Those that nobody waits for have a third of it: each begins on a new
/// connection, and several together get up to speed faster.
const JOINED: u64 = (12 << 20) + (64 << 10);
const JOINED_LATER: u64 = (4 << 20) + (64 << 10);

/// Bytes of fetched pieces that are kept for later reads (64 MiB). Announced ranges beyond that are not fetched
/// before they are read.
const KEPT: u64 = 64 << 20;

/// Uses of other pieces after which the background may take the room of one.
const STALE: u64 = 1 << 10;

/// Least and most bytes that are fetched for a read that was not announced (64 KiB to 4 MiB). Reads that continue
/// each other fetch more and more.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 4 << 20;

/// An object on a server, whose bytes are fetched when they are read or announced.
///
/// The first request takes the end of the object. Every other one states the version of the object that the first one
/// found, so a read returns bytes of that version, or an error.
///
/// Bytes stay in memory until they were read once, or until there are more than 64 MiB of them. An object of a server
/// that does not send ranges stays as a whole.
#[derive(Clone)]
pub struct RemoteSource(Arc<Inner>);

struct Inner {
    object: Object,
    identity: Identity,
    /// What identifies the object, without secrets.
    name: String,
    /// Its entry in the cache on disk, if there is a cache.
    known: Option<Known>,
    /// What is fetched until an image is open, for that entry.
    recording: Mutex<Option<Recording>>,
    limits: Limits,
    threads: Threads,
    permits: Semaphore,
    background: Semaphore,
    pieces: Mutex<Pieces>,
    requests: AtomicU64,
    abandoned: AtomicBool,
}

#[derive(Default)]
struct Recording {
    pieces: Vec<Arc<Piece>>,
    /// Whether some of them are not in the cache.
    changed: bool,
}

#[derive(Default)]
struct Pieces {
    /// By their first byte, with the time of the last use. They do not overlap.
    found: BTreeMap<u64, (Arc<Piece>, u64)>,
    /// Counts uses.
    clock: u64,
    /// The end of the last range that was fetched without an announcement, and its length.
    last: (u64, u64),
}

/// Whether two ranges, the second not before the first, are better fetched together.
fn is_near(first: &Range<u64>, second: &Range<u64>) -> bool {
    let gap = second.start.saturating_sub(first.end);
    let wanted = (first.end - first.start).saturating_add(second.end - second.start);
    gap <= GAP.min(wanted.max(LEAST))
}

impl Pieces {
    /// The piece with a byte.
    fn at(&mut self, offset: u64) -> Option<Arc<Piece>> {
        self.clock += 1;
        let (_, (piece, used)) = self.found.range_mut(..=offset).next_back()?;
        *used = self.clock;
        piece.range.contains(&offset).then(|| Arc::clone(piece))
    }

    /// The first byte of a piece from an offset on.
    fn next(&self, offset: u64) -> u64 {
        self.found
            .range(offset..)
            .next()
            .map_or(u64::MAX, |(start, _)| *start)
    }

    fn bytes(&self) -> u64 {
        self.found.values().map(|(piece, _)| piece.len()).sum()
    }

    fn insert(&mut self, piece: &Arc<Piece>) {
        self.clock += 1;
        self.found
            .insert(piece.range.start, (Arc::clone(piece), self.clock));
    }

    /// Drops a piece, if it is this one, and can be fetched again.
    fn remove(&mut self, piece: &Arc<Piece>) {
        if piece.is_only() {
            return;
        }
        let start = piece.range.start;
        if self
            .found
            .get(&start)
            .is_some_and(|(found, _)| Arc::ptr_eq(found, piece))
        {
            self.found.remove(&start);
        }
    }

    /// Drops the pieces that were not used for the longest time, until `more` bytes fit.
    fn make_room(&mut self, more: u64) {
        let mut bytes = self.bytes();
        while bytes.saturating_add(more) > KEPT {
            let pieces = self.found.values();
            let settled = pieces.filter(|(piece, _)| piece.is_settled() && !piece.is_only());
            let Some((oldest, _)) = settled.min_by_key(|(_, used)| *used).cloned() else {
                return;
            };
            bytes -= oldest.len();
            self.remove(&oldest);
        }
    }

    /// Drops pieces that were not used for a long time: those whose bytes nobody needed.
    fn drop_stale(&mut self) {
        let now = self.clock;
        let is_stale = |piece: &Piece, used: u64| {
            now.saturating_sub(used) > STALE && piece.is_settled() && !piece.is_only()
        };
        self.found
            .retain(|_, (piece, used)| !is_stale(piece, *used));
    }

    /// Says that somebody waits for the pieces with the first bytes of ranges. The others follow when they are read.
    fn hurry(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            if let Some(piece) = self.at(range.start) {
                piece.hurry();
            }
        }
    }

    /// The parts of ranges that are neither there nor on their way, joined to at most `longest` bytes where little is between them.
    fn missing(&self, ranges: &[Range<u64>], size: u64, longest: u64) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            let (mut at, end) = (range.start, range.end.min(size));
            while at < end {
                let inside = self.found.range(..=at).next_back();
                if let Some((_, (piece, _))) =
                    inside.filter(|(_, (piece, _))| piece.range.contains(&at))
                {
                    at = piece.range.end;
                    continue;
                }
                let stop = self.next(at).min(end);
                parts.push(at..stop);
                at = stop;
            }
        }
        parts.sort_by_key(|part| part.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match joined.last_mut() {
                Some(last)
                    if is_near(last, &part)
                        && part.end.max(last.end) - last.start <= longest
                        && self.next(last.end) >= part.start =>
                {
                    last.end = last.end.max(part.end);
                }
                Some(last) if part.start < last.end => {
                    let end = last.end;
                    if part.end > end {
                        joined.push(end..part.end);
                    }
                }
                _ => joined.push(part),
            }
        }
        joined
    }
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

    /// As [`RemoteSource::open`], with a cache on disk for what opening an image in the object needs. If it has that, one
    /// request asks whether the object is still the same. Offline, there is no request, and bytes that the cache lacks are
    /// errors.
    ///
    /// # Errors
    /// As [`RemoteSource::open`]; offline, [`io::ErrorKind::NotConnected`] if the cache does not know the object.
    pub fn open_cached(url: &str, limits: Limits, cache: Option<&DiskCache>) -> io::Result<Self> {
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
                let found = threads.block_on(opening::first(&object, &limits, remembered));
                found.map_err(failed)?
            }
        };
        let Found {
            identity,
            pieces: there,
            requests,
            changed,
        } = found;
        if !identity.is_certain() {
            tracing::warn!(
                "{}: the server does not say when an object changes: if this one does, its bytes may be mixed",
                object.shown
            );
        }
        let mut pieces = Pieces::default();
        there.iter().for_each(|piece| pieces.insert(piece));
        // Later, nothing would say whether it is still the same.
        let known = known.filter(|_| identity.is_certain());
        let recording = known.as_ref().map(|_| Recording {
            pieces: there,
            changed,
        });
        Ok(Self(Arc::new(Inner {
            name,
            known,
            recording: Mutex::new(recording),
            object,
            identity,
            limits,
            threads,
            permits: Semaphore::new(REQUESTS),
            background: Semaphore::new(BACKGROUND),
            pieces: Mutex::new(pieces),
            requests: AtomicU64::new(requests),
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

impl Inner {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a piece for the cache, until an image is open.
    fn record(&self, piece: &Arc<Piece>) {
        let mut recording = self.recording();
        if let Some(noted) = recording.as_mut() {
            noted.pieces.push(Arc::clone(piece));
            noted.changed = true;
            if !known::fits(&noted.pieces) {
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

    /// Begins to fetch a range, if it is for the background then as soon as few others of the kind are being fetched, or
    /// somebody waits for it.
    fn begin(
        self: &Arc<Self>,
        range: Range<u64>,
        background: bool,
        pieces: &mut Pieces,
    ) -> Arc<Piece> {
        let piece = Piece::new(range);
        if self.is_abandoned() {
            piece.fail(abandoned());
            return piece;
        }
        if self.is_offline() {
            piece.fail(Known::missing());
            return piece;
        }
        pieces.insert(&piece);
        self.record(&piece);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let filling = Filling {
            inner: Arc::clone(self),
            piece: Arc::clone(&piece),
        };
        self.threads.handle().spawn(async move {
            let Filling { inner, piece } = &filling;
            let mut _turn = None;
            if background {
                let turn = pin!(inner.background.acquire());
                let hurried = pin!(piece.hurried());
                if let Either::Left((turn, _)) = select(turn, hurried).await {
                    _turn = turn.ok();
                }
            }
            // Never closed.
            let _permit = inner.permits.acquire().await;
            fetch::fill(&inner.object, &inner.identity, piece, &inner.limits).await;
        });
        piece
    }

    /// Begins to fetch what is missing of ranges, as far as there is room for it. The background takes half of that, and only
    /// makes room of what was not used for a long time.
    fn announce(self: &Arc<Self>, ranges: &[Range<u64>], background: bool) {
        if self.threads.check().is_err() || self.is_abandoned() || self.is_offline() {
            return;
        }
        let mut pieces = self.pieces();
        if !background {
            pieces.hurry(ranges);
        }
        let (room, longest) = match background {
            true => (KEPT / 2, JOINED_LATER),
            false => (KEPT, JOINED),
        };
        for range in pieces.missing(ranges, self.identity.size, longest) {
            let length = range.end - range.start;
            if !background {
                pieces.make_room(length);
            } else if pieces.bytes().saturating_add(length) > room {
                pieces.drop_stale();
            }
            if pieces.bytes().saturating_add(length) <= room {
                self.begin(range, background, &mut pieces);
            }
        }
    }

    /// The piece with a byte, which is fetched if it is missing. A read of `len` bytes begins there.
    fn piece(self: &Arc<Self>, offset: u64, len: u64) -> Arc<Piece> {
        let mut pieces = self.pieces();
        if let Some(piece) = pieces.at(offset) {
            piece.hurry();
            return piece;
        }
        let (end, before) = pieces.last;
        let least = match end == offset {
            true => before.saturating_mul(2).clamp(LEAST, MOST),
            false => LEAST,
        };
        let end = offset
            .saturating_add(len.max(least))
            .min(self.identity.size);
        let end = end.min(pieces.next(offset));
        pieces.last = (end, least);
        pieces.make_room(end - offset);
        self.begin(offset..end, false, &mut pieces)
    }
}

/// A piece that is being fetched. However that ends, nobody waits for it then, and one that failed is forgotten: the
/// next read tries again.
struct Filling {
    inner: Arc<Inner>,
    piece: Arc<Piece>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.piece.is_settled() {
            let what = "the request has ended early";
            self.piece.fail(Failure::last(io::ErrorKind::Other, what));
        }
        if !self.piece.is_complete() {
            self.inner.pieces().remove(&self.piece);
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
            let piece = inner.piece(offset, buf.len() as u64);
            let room = usize::try_from(piece.range.end - offset).unwrap_or(usize::MAX);
            let (now, later) = buf.split_at_mut(room.min(buf.len()));
            // The fetching side ends before; this is for a process that has lost its threads. Other pieces may be
            // before this one in the queue.
            let patience = Attempts::time(&inner.limits, piece.len()).saturating_mul(4);
            let limit = Instant::now() + patience.clamp(Duration::from_secs(1), fetch::FOREVER);
            match piece.copy(offset, now, limit) {
                Ok(true) => inner.pieces().remove(&piece),
                Ok(false) => {}
                Err(failure) => {
                    // The next read tries again.
                    inner.pieces().remove(&piece);
                    return Err(failure.error(&inner.object.shown, &piece.range));
                }
            }
            offset += now.len() as u64;
            buf = later;
        }
        Ok(())
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let piece = self.0.pieces().at(offset);
        piece.is_some_and(|piece| {
            let end = offset.saturating_add(buf.len() as u64);
            end <= piece.range.end && piece.try_copy(offset, buf)
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
        let recording = self.0.recording().take();
        if let (Some(known), Some(recording)) = (&self.0.known, recording)
            && recording.changed
        {
            known.store(&self.0.identity, &recording.pieces);
        }
    }

    fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::SeqCst);
        // A piece that is begun now has seen it.
        let pieces = self.0.pieces();
        for (piece, _) in pieces.found.values() {
            if !piece.is_settled() {
                piece.fail(abandoned());
            }
        }
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        self.0.announce(ranges, false);
    }

    fn may_need(&self, ranges: &[Range<u64>]) {
        self.0.announce(ranges, true);
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

#[cfg(test)]
// A list of one range is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn pieces(ranges: &[Range<u64>]) -> Pieces {
        let mut pieces = Pieces::default();
        for range in ranges {
            let len = usize::try_from(range.end - range.start).unwrap();
            pieces.insert(&Piece::complete(range.start, vec![0; len]));
        }
        pieces
    }

    #[test]
    fn neighbouring_ranges_are_one_request() {
        const M: u64 = 1 << 20;
        let none = pieces(&[]);
        let missing =
            |pieces: &Pieces, ranges: &[Range<u64>], size| pieces.missing(ranges, size, JOINED);
        assert_eq!(missing(&none, &[0..10, 20..30], 100), [0..30]);
        assert_eq!(missing(&none, &[20..30, 0..10, 5..25], 28), [0..28]);
        assert_eq!(
            missing(&none, &[0..10, 3 * M..4 * M], 9 * M),
            [0..10, 3 * M..4 * M]
        );
        assert_eq!(
            missing(&none, &[0..20 * M, 20 * M..40 * M], 99 * M),
            [0..20 * M, 20 * M..40 * M]
        );
        assert_eq!(
            missing(&none, &[0..40 * M, M..50 * M], 99 * M),
            [0..40 * M, 40 * M..50 * M]
        );
        assert_eq!(missing(&none, &[5..5, 100..200], 100), []);
        // Headers of sections are no reason to fetch what is between them.
        let headers = [0..64, M / 4..M / 4 + 64];
        assert_eq!(missing(&none, &headers, M), headers);
        assert_eq!(missing(&none, &[0..M, M + M / 2..2 * M], 9 * M), [0..2 * M]);
        // What is there is not fetched again.
        let some = pieces(&[10..20, 30..40]);
        assert_eq!(missing(&some, &[0..50], 100), [0..10, 20..30, 40..50]);
        assert_eq!(missing(&some, &[12..18, 30..40], 100), []);
        assert_eq!(missing(&some, &[15..25, 35..36], 100), [20..25]);
    }

    #[test]
    fn the_background_takes_the_room_of_what_nobody_needed() {
        let mut pieces = pieces(&[0..10, 20..30]);
        pieces.insert(&Piece::only(40, vec![0; 10]));
        pieces.insert(&Piece::new(60..70));
        for _ in 0..STALE {
            pieces.at(20).unwrap();
        }
        pieces.drop_stale();
        let left = |pieces: &Pieces| pieces.found.keys().copied().collect::<Vec<_>>();
        assert_eq!(left(&pieces), [20, 40, 60]);
        for _ in 0..=STALE {
            pieces.at(40).unwrap();
        }
        pieces.drop_stale();
        assert_eq!(left(&pieces), [40, 60]);
    }

    #[test]
    fn the_oldest_pieces_make_room() {
        let mut pieces = pieces(&[0..KEPT / 2, KEPT / 2..KEPT]);
        pieces.at(0).unwrap();
        pieces.make_room(1);
        assert!(pieces.at(0).is_some() && pieces.at(KEPT / 2).is_none());
        // What cannot be fetched again stays.
        let only = Piece::only(2 * KEPT, vec![0; 8]);
        pieces.insert(&only);
        pieces.remove(&only);
        pieces.make_room(u64::MAX);
        assert!(pieces.at(2 * KEPT).is_some());
        // A piece on its way stays.
        pieces.insert(&Piece::new(KEPT..KEPT + KEPT));
        pieces.make_room(1);
        assert!(pieces.at(0).is_none() && pieces.at(KEPT).is_some());
    }
}
