//! Finding equal files and similarity digests; reading contents.

mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::category::{Categorizer, Input, Judge, Piece, Probe, StreamKey, Verdict};
use crate::error::{Error, Result};
use crate::hash::{Digest, FileHash};
use crate::memory::{self, Load, Watch};
use crate::options::{BuildOptions, Order, ThreadGroup};
use crate::order::{Digest as Nilsimsa, Fingerprint, Print, Sketches};
use crate::pipeline::thread;
use crate::progress::{add, thread_cpu_ns};
use crate::source::{self, Stamp};
use crate::tree::{Reporter, Tree};

/// Files from this size on are told apart by their first bytes before they are hashed.
const PREFIX_FILE: u64 = 1 << 20;
const PREFIX: usize = 4096;
/// Files up to this size are kept in memory between the scan and the segmenter.
const SMALL_FILE: u64 = 1 << 16;
/// So many contents later it is looked again whether the memory limit can be kept.
const CHECK_EVERY: usize = 1 << 14;
/// Bytes per read of larger files.
const READ_SIZE: usize = 1 << 20;

/// A distinct content and the files that have it. About 80 bytes each, and 64 more if hashed by
/// a function with a digest above 16 bytes.
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
    pub(crate) parts: Option<Box<[(u32, u64)]>>,
}

/// Everything of a content that goes to one stream: the unit of ordering. 32 bytes.
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

/// Numbers of files; nearly always there is only one.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    One(u32),
    Many(Vec<u32>),
}

impl Files {
    pub(crate) fn push(&mut self, file: u32) {
        match self {
            Files::One(first) => *self = Files::Many(vec![*first, file]),
            Files::Many(files) => files.push(file),
        }
    }

    pub(crate) fn remove(&mut self, file: u32) {
        match self {
            Files::One(only) if *only == file => *self = Files::Many(Vec::new()),
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
            Some(parts) => parts.to_vec(),
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
    pub(crate) cache: HashMap<u32, Box<[u8]>>,
    /// In the order of their blocks; the first one is the default.
    pub(crate) streams: Vec<StreamKey>,
    /// By stream, then content.
    pub(crate) items: Vec<Item>,
    /// Digests of the items that are ordered by them.
    pub(crate) nilsimsa: Vec<Nilsimsa>,
    pub(crate) sketches: Sketches,
}

impl Scanned {
    pub(crate) fn stream(&self, number: u32) -> StreamKey {
        let key = self.streams.get(number as usize);
        key.copied().unwrap_or(StreamKey::DEFAULT)
    }
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
    options: &BuildOptions,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    buffer: &mut Vec<u8>,
    part: impl FnMut(Part<'_>) -> Result<()>,
) -> Result<Outcome, ReadError> {
    let all = 0..u64::MAX;
    read_range(tree, file, all, options, reporter, stop, buffer, part)
}

/// Reads a range of a file from front to back: no more than its size when it was opened.
#[expect(clippy::too_many_arguments, reason = "one more than read_file")]
pub(crate) fn read_range(
    tree: &Tree,
    file: u32,
    range: Range<u64>,
    options: &BuildOptions,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    buffer: &mut Vec<u8>,
    mut part: impl FnMut(Part<'_>) -> Result<()>,
) -> Result<Outcome, ReadError> {
    let listed = tree.files[file as usize];
    let path = tree.file_path(file);
    reporter.counters().set_current(&path);
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
    let holes = options.sparse && listed.allocated < listed.size;
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
    Digest(Digest, Option<Box<[u8]>>),
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
    budget: AtomicU64,
}

/// Finds equal files and, if the order needs them, similarity digests.
pub(crate) fn scan(
    options: &BuildOptions,
    tree: &Tree,
    reporter: Reporter<'_>,
    stop: &AtomicBool,
    watch: &Watch<'_>,
) -> Result<Scanned> {
    let scanner = Scanner {
        options,
        tree,
        reporter,
        stop,
        watch,
        budget: AtomicU64::new(memory::small_files(options)),
    };
    let mut scanned = scanner.contents()?;
    let categories = !options.categorizers.is_empty() || tree.marks.has_categories();
    if categories && !options.hollow {
        scanner.categorize(&mut scanned)?;
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
    if !options.hollow {
        scanner.similarity(&mut scanned)?;
    }
    Ok(scanned)
}

impl Scanner<'_> {
    /// Runs `work` on every job in the scanning threads; results in the order of the jobs.
    fn parallel<T: Send>(
        &self,
        jobs: &[u32],
        work: impl Fn(&mut Vec<u8>, u32) -> T + Sync,
    ) -> Result<Vec<T>> {
        self.parallel_with(jobs, Vec::new, work)
    }

    /// The same with a state of another kind for every thread.
    fn parallel_with<T: Send, S>(
        &self,
        jobs: &[u32],
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u32) -> T + Sync,
    ) -> Result<Vec<T>> {
        const BATCH: usize = 16;
        let cpu_ns = &self.reporter.counters().scan_cpu_ns;
        let workers = self.options.scanners();
        let workers = workers.min(jobs.len().div_ceil(BATCH)).max(1);
        if workers == 1 && self.options.thread_start.is_none() {
            let start = thread_cpu_ns();
            let mut state = state();
            let results = jobs.iter().map(|&job| work(&mut state, job)).collect();
            add(cpu_ns, thread_cpu_ns().saturating_sub(start));
            return Ok(results);
        }
        let next = AtomicUsize::new(0);
        let mut parts: Vec<(usize, Vec<T>)> = std::thread::scope(|scope| {
            let run = || {
                self.options.begin(ThreadGroup::Scanner);
                let start_ns = thread_cpu_ns();
                let mut state = state();
                let mut done = Vec::new();
                loop {
                    let start = next.fetch_add(BATCH, Ordering::Relaxed);
                    let Some(rest) = jobs.get(start..).filter(|rest| !rest.is_empty()) else {
                        break;
                    };
                    let batch = rest
                        .iter()
                        .take(BATCH)
                        .map(|&job| work(&mut state, job))
                        .collect();
                    done.push((start, batch));
                }
                add(cpu_ns, thread_cpu_ns().saturating_sub(start_ns));
                done
            };
            let threads: Vec<_> = (0..workers).map(|_| thread(scope, "scan", run)).collect();
            threads
                .into_iter()
                .map(|thread| match thread?.join() {
                    Ok(done) => Ok(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect::<Result<Vec<_>>>()
        })?
        .into_iter()
        .flatten()
        .collect();
        parts.sort_by_key(|(start, _)| *start);
        let mut results = Vec::with_capacity(jobs.len());
        results.extend(parts.into_iter().flat_map(|(_, batch)| batch));
        Ok(results)
    }

    fn size(&self, file: u32) -> u64 {
        self.tree.files[file as usize].size
    }

    /// Groups files by content.
    fn contents(&self) -> Result<Scanned> {
        let counters = self.reporter.counters();
        let count = self.tree.files.len();
        let mut prefixes: HashMap<u32, u64> = HashMap::new();
        let (mut jobs, mut hashed) = (Vec::new(), Vec::new());
        if let Some(hash) = self.options.file_hash.filter(|_| !self.options.hollow) {
            jobs = self.candidates(&mut prefixes)?;
            add(&counters.files_scanned, (count - jobs.len()) as u64);
            hashed = self.parallel(&jobs, |buffer, file| {
                let result = self.hash(hash, file, buffer);
                add(&counters.files_scanned, 1);
                result
            })?;
        } else {
            add(&counters.files_scanned, count as u64);
        }

        let mut contents: Vec<Content> = Vec::new();
        // Contents by digest.
        let mut known: HashTable<u32> = HashTable::new();
        let key = |content: &Content| {
            let digest = content.digest.as_ref().map_or(&[][..], Digest::bytes);
            XxHash3_64::oneshot_with_seed(content.size, digest)
        };
        // Both in the order of the files.
        let mut results = jobs.into_iter().zip(hashed).peekable();
        let mut cache: HashMap<u32, Box<[u8]>> = HashMap::new();
        let verify = self.options.verify_duplicates;
        // Files that still have to be compared with the first of their content.
        let mut suspects: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for file in 0..count as u32 {
            let size = self.size(file);
            let mut content = Content {
                size,
                prefix: prefixes.get(&file).copied().unwrap_or(0),
                digest: None,
                files: Files::One(file),
                failed: false,
                parts: None,
            };
            let result = results.next_if(|(job, _)| *job == file);
            match result.map(|(_, result)| result) {
                Some(Hashed::Digest(digest, bytes)) => {
                    content.digest = Some(digest);
                    let hash = key(&content);
                    let mut compared = size == 0;
                    let equal = known.find(hash, |&at| {
                        let other = &contents[at as usize];
                        let same = other.size == size && other.digest == content.digest;
                        match (cache.get(&other.first_file()), &bytes) {
                            (Some(a), Some(b)) if same && verify => {
                                compared = a == b;
                                compared
                            }
                            _ => same,
                        }
                    });
                    if let Some(&at) = equal {
                        contents[at as usize].files.push(file);
                        if verify && !compared {
                            suspects.entry(at).or_default().push(file);
                        }
                        add(&counters.duplicate_files, 1);
                        add(&counters.saved_by_deduplication, size);
                        continue;
                    }
                    known.insert_unique(hash, contents.len() as u32, |&at| {
                        key(&contents[at as usize])
                    });
                    if let Some(bytes) = bytes {
                        cache.insert(file, bytes);
                    }
                }
                Some(Hashed::Failed(error)) => {
                    let path = self.tree.file_path(file);
                    self.reporter.problem(
                        &path,
                        &format!("cannot read file, storing it empty: {error}"),
                    );
                    content.failed = true;
                }
                Some(Hashed::Fatal(error)) => return Err(error),
                // The segmenter notices and reports it, too.
                Some(Hashed::Changed) | None => {}
            }
            contents.push(content);
            if contents.len().is_multiple_of(CHECK_EVERY) {
                self.watch.check(
                    Load {
                        contents: contents.len() as u64,
                        ..self.tree.load()
                    },
                    false,
                )?;
            }
        }
        let kept: u64 = cache.values().map(|bytes| <[u8]>::len(bytes) as u64).sum();
        self.budget.store(
            memory::small_files(self.options).saturating_sub(kept),
            Ordering::Relaxed,
        );
        let mut scanned = Scanned {
            contents,
            cache,
            streams: vec![StreamKey::DEFAULT],
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
        let hashes = self.parallel(&large, |buffer, file| self.prefix(file, buffer))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        prefixes.extend(large.iter().copied().zip(hashes));
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

    /// Whether a file of this size may be kept in memory; takes it from the budget.
    fn may_keep(&self, size: u64) -> bool {
        // What keeping a file costs beyond its bytes, roughly.
        const OVERHEAD: u64 = 64;
        size <= SMALL_FILE
            && self
                .budget
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(size + OVERHEAD)
                })
                .is_ok()
    }

    fn hash(&self, hash: FileHash, file: u32, buffer: &mut Vec<u8>) -> Hashed {
        let counters = self.reporter.counters();
        let size = self.size(file);
        let mut hasher = hash.hasher();
        if size == 0 {
            return Hashed::Digest(hasher.finish(), None);
        }
        let mut kept = self
            .may_keep(size)
            .then(|| Vec::with_capacity(size as usize));
        let outcome = read_file(
            self.tree,
            file,
            self.options,
            self.reporter,
            self.stop,
            buffer,
            |part| {
                match part {
                    Part::Data(data) => {
                        hasher.update(data);
                        add(&counters.hash_bytes, data.len() as u64);
                        if let Some(kept) = &mut kept {
                            kept.extend_from_slice(data);
                        }
                    }
                    Part::Hole(size) => hasher.update_zeros(size),
                    Part::EndOfExtent => {}
                }
                Ok(())
            },
        );
        match outcome {
            Ok(outcome) => {
                add(&counters.hash_files, 1);
                if outcome.changed {
                    return Hashed::Changed;
                }
                let kept = kept.filter(|_| !outcome.sparse).map(Vec::into_boxed_slice);
                Hashed::Digest(hasher.finish(), kept)
            }
            Err(ReadError::Input(error)) => Hashed::Failed(error),
            Err(ReadError::Fatal(error)) => Hashed::Fatal(error),
        }
    }

    /// Cuts contents into fragments and numbers the streams.
    fn categorize(&self, scanned: &mut Scanned) -> Result<()> {
        let mut hot = HashSet::new();
        for categorizer in &self.options.categorizers {
            if let Categorizer::Hotness(list) = categorizer {
                hot = list.files(self.tree);
            }
        }
        let (contents, cache) = (&scanned.contents, &scanned.cache);
        let jobs: Vec<u32> = (0..contents.len() as u32).collect();
        let new_judge = || Judge::new(self.options);
        let verdicts = self.parallel_with(&jobs, new_judge, |judge, job| {
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
            let input = match cache.get(&file) {
                Some(bytes) => Input::Memory(bytes),
                None => {
                    let listed = self.tree.files[file as usize];
                    let path = self.tree.file_path(file);
                    self.reporter.counters().set_current(&path);
                    let Ok(content) = self.reporter.source.open(&path) else {
                        return Ok(Verdict::default());
                    };
                    let sparse = self.options.sparse && listed.allocated < listed.size;
                    Input::File { content, sparse }
                }
            };
            let probe = Probe::new(input, content.size, self.stop);
            let hot = content.files.iter().any(|file| hot.contains(file));
            let verdict = judge.file(&probe, hot);
            add(&self.reporter.counters().categorized_bytes, content.size);
            verdict
        })?;
        let mut found: Vec<Box<[Piece]>> = Vec::with_capacity(contents.len());
        let mut streams = BTreeSet::from([StreamKey::DEFAULT]);
        for (content, verdict) in contents.iter().zip(verdicts) {
            let verdict = verdict?;
            for complaint in verdict.complaints {
                let path = self.tree.file_path(content.first_file());
                let path = self.reporter.source.display_path(&path);
                let text = format!("'{path}': {}", complaint.what);
                self.reporter.progress.log(complaint.level, &text);
            }
            streams.extend(verdict.pieces.iter().map(|piece| piece.key));
            found.push(verdict.pieces.iter().copied().collect());
        }
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
                content.parts = Some(parts.collect());
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
        scanned.streams = streams;
        scanned.items = items;
        Ok(())
    }

    /// Computes the digests of what is to be ordered by similarity.
    fn similarity(&self, scanned: &mut Scanned) -> Result<()> {
        let counters = self.reporter.counters();
        let limit = self.options.max_similarity_size.unwrap_or(u64::MAX);
        let fingerprint = |stream: u32| {
            let category = scanned.stream(stream).category;
            Fingerprint::new(self.options.order_of(category))
        };
        let wanted: Vec<bool> = (0..scanned.streams.len() as u32)
            .map(|stream| fingerprint(stream).is_some())
            .collect();
        let wanted = |item: &Item| wanted.get(item.stream as usize) == Some(&true);
        let (contents, cache) = (&scanned.contents, &scanned.cache);
        let has_key = |item: &Item| {
            let order = self.options.order_of(scanned.stream(item.stream).category);
            let files = &contents[item.content as usize].files;
            matches!(order, Order::Script(_)) && self.tree.marks.key(files).is_some()
        };
        let jobs: Vec<u32> = (0u32..)
            .zip(&scanned.items)
            .filter(|(_, item)| wanted(item) && item.size <= limit && !has_key(item))
            .filter(|(_, item)| !contents[item.content as usize].failed)
            .map(|(i, _)| i)
            .collect();
        let items = &scanned.items;
        let results = self.parallel(&jobs, |buffer, job| {
            let item = items[job as usize];
            let content = &contents[item.content as usize];
            let file = content.first_file();
            let Some(mut print) = fingerprint(item.stream) else {
                return Ok((None, None));
            };
            if item.size == 0 {
                return Ok((Some(print.finish()), None));
            }
            if let Some(bytes) = cache.get(&file) {
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
            let mut kept = (whole && self.may_keep(content.size))
                .then(|| Vec::with_capacity(content.size as usize));
            let mut plain = true;
            for range in content.ranges_of(item.stream) {
                let outcome = read_range(
                    self.tree,
                    file,
                    range,
                    self.options,
                    self.reporter,
                    self.stop,
                    buffer,
                    |part| {
                        if let Part::Data(data) = part {
                            print.update(data);
                            add(&counters.similarity_bytes, data.len() as u64);
                            if let Some(kept) = &mut kept {
                                kept.extend_from_slice(data);
                            }
                        }
                        Ok(())
                    },
                );
                match outcome {
                    Ok(outcome) => plain &= !outcome.sparse && !outcome.changed,
                    // Segmenting fails as well and reports it.
                    Err(ReadError::Input(_)) => return Ok((None, None)),
                    Err(ReadError::Fatal(error)) => return Err(error),
                }
            }
            add(&counters.similarity_files, 1);
            let kept = kept.filter(|_| plain).map(Vec::into_boxed_slice);
            Ok((Some(print.finish()), kept))
        })?;
        for (job, result) in jobs.into_iter().zip(results) {
            let (print, kept) = result?;
            let item = &mut scanned.items[job as usize];
            item.similarity = print.map(|print| match print {
                Print::Similarity(digest) => digest,
                Print::Sketch(sketch) => scanned.sketches.push(&sketch),
                Print::Nilsimsa(digest) => {
                    scanned.nilsimsa.push(digest);
                    scanned.nilsimsa.len() as u32 - 1
                }
            });
            if let Some(kept) = kept {
                let file = scanned.contents[item.content as usize].first_file();
                scanned.cache.insert(file, kept);
            }
        }
        Ok(())
    }
}
