//! Finding equal files and similarity digests; reading contents.

mod kept;
mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::category::{Categorizer, Input, Judge, Piece, Probe, StreamKey, Verdict};
use crate::error::{Error, Result};
use crate::fingerprint::{Digest as Nilsimsa, Fingerprint, Print, Sketches};
use crate::hash::{Digest, FileHash};
use crate::memory::{self, Load, Watch};
use crate::options::{BuildOptions, Order, ThreadGroup};
use crate::pipeline::thread;
use crate::progress::{add, thread_cpu_ns};
use crate::settings::StreamSettings;
use crate::source::{self, Stamp};
use crate::tree::{Reporter, Tree};

use self::kept::{Keeper, Place};
pub(crate) use self::kept::{Kept, Shared};

/// Files from this size on are told apart by their first bytes before they are hashed.
const PREFIX_FILE: u64 = 1 << 20;
const PREFIX: usize = 4096;
/// So many contents later it is looked again whether the memory limit can be kept.
const CHECK_EVERY: usize = 1 << 14;
/// Bytes per read of larger files.
const READ_SIZE: usize = 1 << 20;

/// A distinct content and the files that have it. 72 bytes each, and 64 more if hashed by a
/// function with a digest above 16 bytes.
#[derive(Debug)]
pub(crate) struct Content {
    /// Size as listed.
    pub(crate) size: u64,
    /// Hash of the first bytes of a large file, else 0.
    pub(crate) prefix: u64,
    pub(crate) digest: Option<Digest>,
    /// Files with this content in order of discovery, never empty.
    pub(crate) files: Files,
    /// Reading has failed and was reported: stored empty.
    pub(crate) failed: bool,
    /// What it consists of: stream and size. `None` if it is all in one stream.
    #[expect(
        clippy::box_collection,
        reason = "it is rare, and makes the usual case smaller"
    )]
    pub(crate) parts: Option<Box<Vec<(u32, u64)>>>,
}

/// Everything of a content that goes to one stream: the unit of ordering. 24 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) content: u32,
    pub(crate) stream: u32,
    /// Of all its parts.
    pub(crate) size: u64,
    /// The similarity digest, or the number of the nilsimsa digest, as the order of the stream
    /// needs it.
    pub(crate) similarity: Option<u32>,
}

// What `memory` counts for a content goes by these sizes.
const _: () = assert!(size_of::<Content>() == 72 && size_of::<Item>() == 24);

/// Numbers of files; nearly always there is only one.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    One(u32),
    #[expect(
        clippy::box_collection,
        reason = "it is rare, and makes the usual case smaller"
    )]
    Many(Box<Vec<u32>>),
}

impl Files {
    pub(crate) fn push(&mut self, file: u32) {
        match self {
            Files::One(first) => *self = Files::Many(Box::new(vec![*first, file])),
            Files::Many(files) => files.push(file),
        }
    }

    pub(crate) fn remove(&mut self, file: u32) {
        match self {
            Files::One(only) if *only == file => *self = Files::Many(Box::default()),
            Files::One(_) => {}
            Files::Many(files) => files.retain(|&f| f != file),
        }
    }
}

impl std::ops::Deref for Files {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Files::One(file) => std::slice::from_ref(file),
            Files::Many(files) => files,
        }
    }
}

impl Content {
    pub(crate) fn first_file(&self) -> u32 {
        self.files.first().copied().unwrap_or(0)
    }

    /// Where the parts are that go to a stream.
    pub(crate) fn ranges_of(&self, stream: u32) -> impl Iterator<Item = Range<u64>> + '_ {
        let whole = [(stream, u64::MAX)];
        let mut position = 0u64;
        let parts = match &self.parts {
            Some(parts) => parts.as_slice().to_vec(),
            None => whole.to_vec(),
        };
        parts.into_iter().filter_map(move |(of, size)| {
            let start = position;
            position = position.saturating_add(size);
            (of == stream).then_some(start..position)
        })
    }
}

/// What the scan found.
pub(crate) struct Scanned {
    pub(crate) contents: Vec<Content>,
    /// Bytes of small files that were read on the way, by file.
    pub(crate) kept: Kept,
    /// By stream, then content.
    pub(crate) items: Vec<Item>,
    /// Digests of the items that are ordered by them.
    pub(crate) nilsimsa: Vec<Nilsimsa>,
    pub(crate) sketches: Sketches,
}

/// A piece of a file that is being read.
pub(crate) enum Part<'a> {
    /// Bytes; several in a row belong to one extent.
    Data(&'a [u8]),
    /// The data extent ends.
    EndOfExtent,
    /// That many zero bytes without storage.
    Hole(u64),
}

/// What reading a file came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Where reading ended.
    pub(crate) size: u64,
    /// The file is not as it was listed, or changed while it was read.
    pub(crate) changed: bool,
    /// There are holes.
    pub(crate) sparse: bool,
}

/// Why reading ended early.
pub(crate) enum ReadError {
    /// The file cannot be read.
    Input(io::Error),
    /// The build ends.
    Fatal(Error),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        ReadError::Fatal(error)
    }
}

/// Reads a file from front to back: no more than its size when it was opened.
pub(crate) fn read_file(
    tree: &Tree,
    file: u32,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    buffer: &mut Vec<u8>,
    part: impl FnMut(Part<'_>) -> Result<()>,
) -> Result<Outcome, ReadError> {
    let all = 0..u64::MAX;
    read_range(tree, file, all, reporter, stop, buffer, part)
}

/// Reads a range of a file from front to back: no more than its size when it was opened.
pub(crate) fn read_range(
    tree: &Tree,
    file: u32,
    range: Range<u64>,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    buffer: &mut Vec<u8>,
    mut part: impl FnMut(Part<'_>) -> Result<()>,
) -> Result<Outcome, ReadError> {
    let listed = tree.files[file as usize];
    let path = tree.file_path(file);
    reporter.counters().set_current(&path);
    tracing::trace!("reading '{}'", reporter.source.display_path(&path));
    let content = reporter.source.open(&path).map_err(ReadError::Input)?;
    let before = content.stamp().map_err(ReadError::Input)?;
    let announced = Stamp {
        size: listed.size,
        mtime: tree.mtimes[listed.inode as usize],
    };
    let mut outcome = Outcome {
        changed: before != announced,
        size: range.start,
        ..Outcome::default()
    };
    let holes = listed.sparse;
    let end = before.size.min(range.end);
    'extents: while outcome.size < end {
        let extent = if holes {
            content
                .next_data(outcome.size, end)
                .map_err(ReadError::Input)?
        } else {
            Some(source::DataExtent {
                offset: outcome.size,
                size: end - outcome.size,
            })
        };
        let data_start = extent.map_or(end, |e| e.offset.clamp(outcome.size, end));
        if data_start > outcome.size {
            outcome.sparse = true;
            part(Part::Hole(data_start - outcome.size))?;
            outcome.size = data_start;
        }
        let Some(extent) = extent else { break };
        let data_end = extent.offset.saturating_add(extent.size).min(end);
        if data_end <= outcome.size {
            // A source that does not advance would go on for ever.
            break;
        }
        while outcome.size < data_end {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted.into());
            }
            let wanted = (data_end - outcome.size).min(READ_SIZE as u64) as usize;
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            // Always all of it, as if it had been kept in memory: where data is cut must not
            // depend on how much comes at a time.
            let mut got = 0;
            while let Some(space) = buffer.get_mut(got..wanted).filter(|s| !s.is_empty()) {
                let offset = outcome.size + got as u64;
                match content.read_at(offset, space).map_err(ReadError::Input)? {
                    0 => break,
                    n => got += n.min(space.len()),
                }
            }
            if got == 0 {
                outcome.changed = true;
                part(Part::EndOfExtent)?;
                break 'extents;
            }
            part(Part::Data(buffer.get(..got).unwrap_or_default()))?;
            outcome.size += got as u64;
        }
        part(Part::EndOfExtent)?;
    }
    let after = content.stamp().map_err(ReadError::Input)?;
    outcome.changed |= after != before;
    Ok(outcome)
}

enum Hashed {
    Digest(Digest, Option<Place>),
    /// Not what was listed: not comparable.
    Changed,
    Failed(io::Error),
    Fatal(Error),
}

struct Scanner<'a> {
    options: &'a BuildOptions,
    tree: &'a Tree,
    reporter: Reporter<'a>,
    stop: &'a AtomicBool,
    watch: &'a Watch<'a>,
}

/// Finds equal files and, if the order needs them, similarity digests; the streams are in the order
/// of their blocks, and the first one is that of everything that is in no category.
pub(crate) fn scan<'o>(
    options: &'o BuildOptions,
    tree: &Tree,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    watch: &Watch<'_>,
) -> Result<(Scanned, Vec<StreamSettings<'o>>)> {
    let scanner = Scanner {
        options,
        tree,
        reporter,
        stop,
        watch,
    };
    if !options.hollow && Fingerprint::new(&options.order).is_some() {
        let limit = options.max_similarity_size.unwrap_or(u64::MAX);
        let sizes = tree.files.iter().map(|file| file.size);
        let sum = sizes.filter(|&size| size <= limit).sum();
        add(&reporter.counters().scan_bytes, sum);
    }
    if options.memory_limit.is_some() {
        let load = Load {
            bytes: scanner.stored_at_least(),
            ..tree.load()
        };
        watch.check(load)?;
    }
    let mut scanned = scanner.contents()?;
    let mut keys = vec![StreamKey::DEFAULT];
    let categories = !options.categorizers.is_empty() || tree.marks.has_categories();
    if categories && !options.hollow {
        keys = scanner.categorize(&mut scanned)?;
    } else {
        scanned.items = (0u32..)
            .zip(&scanned.contents)
            .map(|(content, c)| Item {
                content,
                stream: 0,
                size: c.size,
                similarity: None,
            })
            .collect();
    }
    let streams: Vec<_> = keys
        .into_iter()
        .map(|key| StreamSettings::new(options, key))
        .collect();
    if !options.hollow {
        scanner.similarity(&mut scanned, &streams)?;
    }
    Ok((scanned, streams))
}

impl Scanner<'_> {
    /// Runs `work` on every job in the scanning threads, each with a state of its own, and `take`
    /// on the results in the order of the jobs, while others are still being worked on: there is
    /// never a list of all results.
    fn in_order<T: Send, S>(
        &self,
        jobs: &[u32],
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u32) -> T + Sync,
        mut take: impl FnMut(u32, T) -> Result<()>,
    ) -> Result<()> {
        const BATCH: usize = 16;
        let cpu_ns = &self.reporter.counters().scan_cpu_ns;
        let workers = self.options.scanners();
        let workers = workers.min(jobs.len().div_ceil(BATCH)).max(1);
        if workers == 1 && self.options.thread_start.is_none() {
            let start = thread_cpu_ns();
            let mut state = state();
            let done = (jobs.iter()).try_for_each(|&job| take(job, work(&mut state, job)));
            add(cpu_ns, thread_cpu_ns().saturating_sub(start));
            return done;
        }
        let next = AtomicUsize::new(0);
        let (state, work, next) = (&state, &work, &next);
        std::thread::scope(|scope| {
            // When this ends early, nobody takes results any more, and the threads end, too.
            let (results, arriving) = mpsc::channel();
            let run = |results: mpsc::Sender<(usize, Vec<T>)>| {
                self.options.begin(ThreadGroup::Scanner);
                let start_ns = thread_cpu_ns();
                let mut state = state();
                loop {
                    let start = next.fetch_add(BATCH, Ordering::Relaxed);
                    let batch = jobs.get(start..).unwrap_or_default().iter().take(BATCH);
                    let batch: Vec<T> = batch.map(|&job| work(&mut state, job)).collect();
                    if batch.is_empty() || results.send((start, batch)).is_err() {
                        break;
                    }
                }
                add(cpu_ns, thread_cpu_ns().saturating_sub(start_ns));
            };
            let threads: Vec<_> = (0..workers)
                .map(|_| {
                    let results = results.clone();
                    thread(scope, "scan", move || run(results))
                })
                .collect::<Result<_>>()?;
            drop(results);
            let mut early: BTreeMap<usize, Vec<T>> = BTreeMap::new();
            let mut done = 0;
            for (start, batch) in &arriving {
                early.insert(start, batch);
                while let Some(batch) = early.remove(&done) {
                    let first = done;
                    done += batch.len();
                    for (&job, result) in jobs.iter().skip(first).zip(batch) {
                        take(job, result)?;
                    }
                }
            }
            for thread in threads {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
            Ok(())
        })
    }

    fn size(&self, file: u32) -> u64 {
        self.tree.files[file as usize].size
    }

    /// Bytes of contents that there are at least: files of different sizes are different.
    fn stored_at_least(&self) -> u64 {
        if self.options.hollow {
            return 0;
        }
        let files = self.tree.files.iter().filter(|file| !file.sparse);
        let mut sizes: Vec<u64> = files.map(|file| file.size).collect();
        if self.options.file_hash.is_some() {
            sizes.sort_unstable();
            sizes.dedup();
        }
        sizes.into_iter().fold(0, u64::saturating_add)
    }

    /// Groups files by content.
    fn contents(&self) -> Result<Scanned> {
        let counters = self.reporter.counters();
        let count = self.tree.files.len();
        let mut prefixes: HashMap<u32, u64> = HashMap::new();
        let mut jobs = Vec::new();
        let hash = self.options.file_hash.filter(|_| !self.options.hollow);
        if hash.is_some() {
            jobs = self.candidates(&mut prefixes)?;
            let sizes = jobs.iter().map(|&file| self.size(file));
            add(&counters.scan_bytes, sizes.sum());
        }
        add(&counters.files_scanned, (count - jobs.len()) as u64);
        let kept = Kept::new(count, memory::small_files(self.options));
        let keeper = kept.keeper();
        let mut groups = Groups {
            scanner: self,
            prefixes,
            keeper: &keeper,
            next: 0,
            contents: Vec::new(),
            known: HashTable::new(),
            kept,
            suspects: BTreeMap::new(),
        };
        if let Some(hash) = hash {
            self.in_order(
                &jobs,
                Vec::new,
                |buffer, file| {
                    let result = self.hash(hash, file, buffer, &keeper);
                    add(&counters.files_scanned, 1);
                    result
                },
                |file, hashed| groups.hashed(file, hashed),
            )?;
        }
        drop(jobs);
        groups.until(count as u32)?;
        let Groups {
            contents,
            mut kept,
            suspects,
            ..
        } = groups;
        kept.take(keeper);
        let mut scanned = Scanned {
            contents,
            kept,
            items: Vec::new(),
            nilsimsa: Vec::new(),
            sketches: Sketches::default(),
        };
        self.verify(&mut scanned, &suspects)?;
        Ok(scanned)
    }

    /// Files that may be equal to another one: same size and, if large, same first bytes.
    fn candidates(&self, prefixes: &mut HashMap<u32, u64>) -> Result<Vec<u32>> {
        let mut files: Vec<u32> = (0..self.tree.files.len() as u32).collect();
        files.sort_by_key(|&file| self.size(file));
        let mut jobs = Vec::new();
        let mut large = Vec::new();
        for class in files.chunk_by(|&a, &b| self.size(a) == self.size(b)) {
            let to = if class.first().is_some_and(|&f| self.size(f) >= PREFIX_FILE) {
                &mut large
            } else {
                &mut jobs
            };
            // The prefix of a single large file is of use to nobody, but it is part of the key
            // that inodes are sorted by only where sizes are equal.
            if class.len() > 1 {
                to.extend_from_slice(class);
            }
        }
        large.sort_unstable();
        self.in_order(
            &large,
            Vec::new,
            |buffer, file| self.prefix(file, buffer),
            |file, hash| {
                prefixes.insert(file, hash);
                Ok(())
            },
        )?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let key = |file: u32| (self.size(file), prefixes.get(&file).copied().unwrap_or(0));
        large.sort_by_key(|&file| key(file));
        for class in large
            .chunk_by(|&a, &b| key(a) == key(b))
            .filter(|class| class.len() > 1)
        {
            jobs.extend_from_slice(class);
        }
        // In order of discovery, which is near the order on disk.
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// Hash of the first bytes; 0 if they cannot be read, which is found out again later.
    fn prefix(&self, file: u32, buffer: &mut Vec<u8>) -> u64 {
        if self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let Ok(content) = self.reporter.source.open(&self.tree.file_path(file)) else {
            return 0;
        };
        buffer.resize(PREFIX.max(buffer.len()), 0);
        let mut filled = 0;
        while let Some(space) = buffer
            .get_mut(filled..PREFIX)
            .filter(|space| !space.is_empty())
        {
            match content.read_at(filled as u64, space) {
                Ok(0) | Err(_) => break,
                Ok(n) => filled += n,
            }
        }
        XxHash3_64::oneshot(buffer.get(..filled).unwrap_or_default())
    }

    fn hash(&self, hash: FileHash, file: u32, buffer: &mut Vec<u8>, keeper: &Keeper) -> Hashed {
        let counters = self.reporter.counters();
        let size = self.size(file);
        let mut hasher = hash.hasher();
        if size == 0 {
            return Hashed::Digest(hasher.finish(), None);
        }
        let mut place = None;
        let outcome = read_file(self.tree, file, self.reporter, self.stop, buffer, |part| {
            match part {
                Part::Data(data) => {
                    hasher.update(data);
                    add(&counters.hash_bytes, data.len() as u64);
                    if data.len() as u64 == size {
                        place = keeper.keep(data);
                    }
                }
                Part::Hole(size) => hasher.update_zeros(size),
                Part::EndOfExtent => {}
            }
            Ok(())
        });
        match outcome {
            Ok(outcome) => {
                add(&counters.hash_files, 1);
                if outcome.changed {
                    return Hashed::Changed;
                }
                Hashed::Digest(hasher.finish(), place)
            }
            Err(ReadError::Input(error)) => Hashed::Failed(error),
            Err(ReadError::Fatal(error)) => Hashed::Fatal(error),
        }
    }

    /// Cuts contents into fragments. Returns the streams.
    fn categorize(&self, scanned: &mut Scanned) -> Result<Vec<StreamKey>> {
        let mut hot = HashSet::new();
        for categorizer in &self.options.categorizers {
            if let Categorizer::Hotness(list) = categorizer {
                hot = list.files(self.tree);
            }
        }
        let (contents, kept) = (&scanned.contents, &scanned.kept);
        let jobs: Vec<u32> = (0..contents.len() as u32).collect();
        let new_judge = || Judge::new(self.options);
        let judge = |judge: &mut Judge<'_>, job: u32| {
            let content = &contents[job as usize];
            let file = content.first_file();
            if content.size == 0 || content.failed {
                return Ok(Verdict::default());
            }
            if let Some(category) = self.tree.marks.category(&content.files) {
                return Ok(Verdict::whole(category, content.size));
            }
            if self.options.categorizers.is_empty() {
                return Ok(Verdict::default());
            }
            let input = match kept.get(file) {
                Some(bytes) => Input::Memory(bytes),
                None => {
                    let listed = self.tree.files[file as usize];
                    let path = self.tree.file_path(file);
                    self.reporter.counters().set_current(&path);
                    let Ok(content) = self.reporter.source.open(&path) else {
                        return Ok(Verdict::default());
                    };
                    let sparse = listed.sparse;
                    Input::File { content, sparse }
                }
            };
            let probe = Probe::new(input, content.size, self.stop);
            let hot = content.files.iter().any(|file| hot.contains(file));
            let verdict = judge.file(&probe, hot);
            add(&self.reporter.counters().categorized_bytes, content.size);
            verdict
        };
        let mut found: Vec<Box<[Piece]>> = Vec::with_capacity(contents.len());
        let mut streams = BTreeSet::from([StreamKey::DEFAULT]);
        self.in_order(&jobs, new_judge, judge, |job, verdict: Result<Verdict>| {
            let content = &contents[job as usize];
            let verdict = verdict?;
            for complaint in verdict.complaints {
                let path = self.tree.file_path(content.first_file());
                let path = self.reporter.source.display_path(&path);
                let text = format!("'{path}': {}", complaint.what);
                self.reporter.progress.log(complaint.level, &text);
            }
            streams.extend(verdict.pieces.iter().map(|piece| piece.key));
            found.push(verdict.pieces.iter().copied().collect());
            Ok(())
        })?;
        drop(jobs);
        let streams: Vec<StreamKey> = streams.into_iter().collect();
        let number = |key: &StreamKey| streams.binary_search(key).unwrap_or(0) as u32;
        let mut items = Vec::with_capacity(contents.len());
        for (at, (content, pieces)) in (0u32..).zip(scanned.contents.iter_mut().zip(found)) {
            let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
            for piece in &pieces {
                *sums.entry(number(&piece.key)).or_default() += piece.size;
            }
            if sums.is_empty() {
                sums.insert(0, content.size);
            }
            if sums.len() > 1 {
                let parts = pieces.iter().map(|piece| (number(&piece.key), piece.size));
                content.parts = Some(Box::new(parts.collect()));
            }
            items.extend(sums.into_iter().map(|(stream, size)| Item {
                content: at,
                stream,
                size,
                similarity: None,
            }));
        }
        // Stable: by content within a stream.
        items.sort_by_key(|item| item.stream);
        scanned.items = items;
        Ok(streams)
    }

    /// Computes the digests of what is to be ordered by similarity.
    fn similarity(&self, scanned: &mut Scanned, streams: &[StreamSettings<'_>]) -> Result<()> {
        let counters = self.reporter.counters();
        let limit = self.options.max_similarity_size.unwrap_or(u64::MAX);
        let order = |stream: u32| streams.get(stream as usize).map(|stream| stream.order);
        let fingerprint = |stream: u32| order(stream).and_then(Fingerprint::new);
        let wanted: Vec<bool> = (0..streams.len() as u32)
            .map(|stream| fingerprint(stream).is_some())
            .collect();
        let wanted = |item: &Item| wanted.get(item.stream as usize) == Some(&true);
        let (contents, kept) = (&scanned.contents, &scanned.kept);
        let has_key = |item: &Item| {
            let files = &contents[item.content as usize].files;
            matches!(order(item.stream), Some(Order::Script(_)))
                && self.tree.marks.key(files).is_some()
        };
        let jobs: Vec<u32> = (0u32..)
            .zip(&scanned.items)
            .filter(|(_, item)| wanted(item) && item.size <= limit && !has_key(item))
            .filter(|(_, item)| !contents[item.content as usize].failed)
            .map(|(i, _)| i)
            .collect();
        let items = &scanned.items;
        let keeper = kept.keeper();
        let print = |buffer: &mut Vec<u8>, job: u32| {
            let item = items[job as usize];
            let content = &contents[item.content as usize];
            let file = content.first_file();
            let Some(mut print) = fingerprint(item.stream) else {
                return Ok((None, None));
            };
            if item.size == 0 {
                return Ok((Some(print.finish()), None));
            }
            if let Some(bytes) = kept.get(file) {
                for range in content.ranges_of(item.stream) {
                    let end = usize::try_from(range.end).unwrap_or(bytes.len());
                    let range = range.start as usize..end.min(bytes.len());
                    let part = bytes.get(range).unwrap_or_default();
                    print.update(part);
                    add(&counters.similarity_bytes, part.len() as u64);
                }
                add(&counters.similarity_files, 1);
                return Ok((Some(print.finish()), None));
            }
            let whole = content.parts.is_none();
            let mut place = None;
            let mut same = true;
            for range in content.ranges_of(item.stream) {
                let outcome = read_range(
                    self.tree,
                    file,
                    range,
                    self.reporter,
                    self.stop,
                    buffer,
                    |part| {
                        if let Part::Data(data) = part {
                            print.update(data);
                            add(&counters.similarity_bytes, data.len() as u64);
                            if whole && data.len() as u64 == content.size {
                                place = keeper.keep(data);
                            }
                        }
                        Ok(())
                    },
                );
                match outcome {
                    Ok(outcome) => same &= !outcome.changed,
                    // Segmenting fails as well and reports it.
                    Err(ReadError::Input(_)) => return Ok((None, None)),
                    Err(ReadError::Fatal(error)) => return Err(error),
                }
            }
            add(&counters.similarity_files, 1);
            Ok((Some(print.finish()), place.filter(|_| same)))
        };
        let (mut nilsimsa, mut sketches) = (Vec::new(), Sketches::default());
        let mut found: Vec<Option<u32>> = Vec::with_capacity(jobs.len());
        let mut places: Vec<(u32, Place)> = Vec::new();
        self.in_order(&jobs, Vec::new, print, |job, result| {
            let (print, place) = result?;
            found.push(print.map(|print| match print {
                Print::Similarity(digest) => digest,
                Print::Sketch(sketch) => sketches.push(&sketch),
                Print::Nilsimsa(digest) => {
                    nilsimsa.push(digest);
                    nilsimsa.len() as u32 - 1
                }
            }));
            if let Some(place) = place {
                let content = items[job as usize].content;
                places.push((contents[content as usize].first_file(), place));
            }
            Ok(())
        })?;
        (scanned.nilsimsa, scanned.sketches) = (nilsimsa, sketches);
        for (job, found) in jobs.into_iter().zip(found) {
            scanned.items[job as usize].similarity = found;
        }
        for (file, place) in places {
            scanned.kept.put(file, place);
        }
        scanned.kept.take(keeper);
        Ok(())
    }
}

/// Files, grouped by content in the order in which they were found.
struct Groups<'a> {
    scanner: &'a Scanner<'a>,
    prefixes: HashMap<u32, u64>,
    keeper: &'a Keeper,
    /// The first file that was not looked at.
    next: u32,
    contents: Vec<Content>,
    /// Contents by digest.
    known: HashTable<u32>,
    kept: Kept,
    /// By content, files that still have to be compared with the first of it.
    suspects: BTreeMap<u32, Vec<u32>>,
}

impl Groups<'_> {
    fn content(&self, file: u32) -> Content {
        Content {
            size: self.scanner.size(file),
            prefix: self.prefixes.get(&file).copied().unwrap_or(0),
            digest: None,
            files: Files::One(file),
            failed: false,
            parts: None,
        }
    }

    /// All files in front of `end` that were not looked at are equal to no other.
    fn until(&mut self, end: u32) -> Result<()> {
        for file in self.next..end {
            self.push(self.content(file))?;
        }
        self.next = self.next.max(end);
        Ok(())
    }

    fn push(&mut self, content: Content) -> Result<()> {
        self.contents.push(content);
        if self.contents.len().is_multiple_of(CHECK_EVERY) {
            let load = Load {
                contents: self.contents.len() as u64,
                ..self.scanner.tree.load()
            };
            self.scanner.watch.check(load)?;
        }
        Ok(())
    }

    /// The next file that may be equal to another one.
    fn hashed(&mut self, file: u32, hashed: Hashed) -> Result<()> {
        self.until(file)?;
        self.next = file + 1;
        let scanner = self.scanner;
        let mut content = self.content(file);
        match hashed {
            Hashed::Digest(digest, place) => {
                content.digest = Some(digest);
                if self.is_known(&content, place) {
                    return Ok(());
                }
                if let Some(place) = place {
                    self.kept.put(file, place);
                }
            }
            Hashed::Failed(error) => {
                let path = scanner.tree.file_path(file);
                let what = format!("cannot read file, storing it empty: {error}");
                scanner.reporter.problem(&path, &what);
                content.failed = true;
            }
            Hashed::Fatal(error) => return Err(error),
            // The segmenter notices and reports it, too.
            Hashed::Changed => {}
        }
        self.push(content)
    }

    /// Adds the file to the content that it is equal to, or else remembers what it has.
    fn is_known(&mut self, content: &Content, place: Option<Place>) -> bool {
        let key = |content: &Content| {
            let digest = content.digest.as_ref().map_or(&[][..], Digest::bytes);
            XxHash3_64::oneshot_with_seed(content.size, digest)
        };
        let (hash, file) = (key(content), content.first_file());
        let verify = self.scanner.options.verify_duplicates;
        let mut compared = content.size == 0;
        let (contents, kept, keeper) = (&mut self.contents, &self.kept, self.keeper);
        let equal = self.known.find(hash, |&at| {
            let other = &contents[at as usize];
            let same = other.size == content.size && other.digest == content.digest;
            match (kept.place(other.first_file()), place) {
                (Some(a), Some(b)) if same && verify => {
                    compared = keeper.same(a, b);
                    compared
                }
                _ => same,
            }
        });
        let counters = self.scanner.reporter.counters();
        if let Some(&at) = equal {
            contents[at as usize].files.push(file);
            if verify && !compared {
                self.suspects.entry(at).or_default().push(file);
            }
            add(&counters.duplicate_files, 1);
            add(&counters.saved_by_deduplication, content.size);
            return true;
        }
        let number = contents.len() as u32;
        self.known
            .insert_unique(hash, number, |&at| key(&contents[at as usize]));
        false
    }
}
