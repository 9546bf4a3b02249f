//! Results of reading whole files: hashes and similarity digests.
//!
//! The results of a stage are entries of *batches*: runs of the files that it reads. A batch becomes an entry of the checkpoint when
//! its last file is read. Most batches end at a file whose path says so, so that a new file changes one batch and not all
//! that follow. A result counts only for a file with the path, inode, size and times that the file had while it was read.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redwarfs_io::CacheKey;
use twox_hash::XxHash3_64;

use super::{Results, key};
use crate::context::Context;
use crate::hash::FileHash;
use crate::progress::add;
use crate::source::FileIdentity;
use crate::tree::Tree;

/// One file in this number ends a batch.
const USUAL: u64 = 256;
/// Most files of a batch.
const FILES: usize = 1 << 10;
/// Bytes of files after which a batch ends: a killed build reads at most these, and what its threads had begun, again.
const BYTES: u64 = 256 << 20;
/// Largest batch in bytes.
const LONGEST: u64 = 1 << 20;
/// Bytes that stand for a file.
const ID: usize = 16;

/// The state of a file whose result is kept.
type FileId = [u8; ID];

/// A result, and the state of the file.
#[derive(Debug)]
pub(crate) struct Record {
    file: FileId,
    pub(crate) result: Vec<u8>,
    /// It was computed just now.
    fresh: bool,
}

/// The results of one stage. `Context::scan` hands on jobs in ascending order.
pub(crate) struct Scans<'a> {
    results: Results<'a>,
    context: Context<'a>,
    tree: &'a Tree,
    /// First job of each batch, and the key of the batch.
    batches: Vec<(u32, CacheKey)>,
    /// Batches of an earlier build, as long as they are needed.
    earlier: Mutex<BTreeMap<usize, Arc<OnceLock<Earlier>>>>,
    /// The batch that is being filled.
    filling: Mutex<Filling>,
}

type Earlier = HashMap<FileId, Box<[u8]>>;

#[derive(Default)]
struct Filling {
    batch: usize,
    body: Vec<u8>,
    records: usize,
    fresh: bool,
}

impl<'a> Scans<'a> {
    /// The results of the stage `kind` with `jobs`, about the files `file`, if the options name a checkpoint. The results
    /// depend on `about`.
    pub(crate) fn new(
        context: Context<'a>,
        tree: &'a Tree,
        (kind, about): (&str, &str),
        jobs: &[u32],
        file: impl Fn(u32) -> u32,
    ) -> Option<Self> {
        let results = Results::of(context.options, context.counters())?;
        let mut batches = Vec::new();
        let (mut files, mut bytes, mut ended) = (0, 0, true);
        for &job in jobs {
            let file = file(job);
            let path = tree.file_path(file);
            if ended {
                batches.push((job, key(kind, about, |hasher| hasher.update(&path))));
                (files, bytes) = (0, 0);
            }
            files += 1;
            bytes += tree.files[file as usize].size;
            let named = XxHash3_64::oneshot(&path).is_multiple_of(USUAL);
            ended = named || files == FILES || bytes >= BYTES;
        }
        Some(Self {
            results,
            context,
            tree,
            batches,
            earlier: Mutex::default(),
            filling: Mutex::default(),
        })
    }

    fn batch(&self, job: u32) -> usize {
        let after = self.batches.partition_point(|(first, _)| *first <= job);
        after.saturating_sub(1)
    }

    /// What stands for a result of a `kind` about the state of a file. `ranges` are the parts of it that were read.
    fn id(
        &self,
        file: u32,
        identity: &FileIdentity,
        kind: &str,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> FileId {
        let mut hasher = FileHash::Blake2s256.hasher();
        hasher.update(kind.as_bytes());
        hasher.update(&[0]);
        let numbers = |time: redwarfs_format::metadata::Timestamp| {
            [time.sec.cast_unsigned(), u64::from(time.nsec)]
        };
        let fixed = [identity.inode, identity.size];
        let times = numbers(identity.mtime)
            .into_iter()
            .chain(numbers(identity.ctime));
        let ranges = ranges.flat_map(|range| [range.start, range.end]);
        for number in fixed.into_iter().chain(times).chain(ranges) {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&self.tree.file_path(file));
        let digest = hasher.finish();
        digest.bytes().first_chunk().copied().unwrap_or_default()
    }

    /// What was found out about a file just now.
    pub(crate) fn record(
        &self,
        file: u32,
        identity: &FileIdentity,
        kind: &str,
        ranges: impl Iterator<Item = Range<u64>>,
        result: &[u8],
    ) -> Record {
        Record {
            file: self.id(file, identity, kind, ranges),
            result: result.to_vec(),
            fresh: true,
        }
    }

    /// The result of a job in an earlier build, if the file is as it was.
    pub(crate) fn find(
        &self,
        job: u32,
        file: u32,
        kind: &str,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Option<Record> {
        let batch = self.batch(job);
        let earlier = Arc::clone(lock(&self.earlier).entry(batch).or_default());
        let earlier = earlier.get_or_init(|| self.load(batch));
        if earlier.is_empty() {
            return None;
        }
        let content = self.context.open(self.tree, file).ok()?;
        let identity = content.identity().ok()??;
        let listed = self.tree.stamp(file);
        if (identity.size, identity.mtime) != (listed.size, listed.mtime) {
            return None;
        }
        let file = self.id(file, &identity, kind, ranges);
        let result = earlier.get(&file)?.to_vec();
        let counters = self.context.counters();
        add(&counters.files_reused, 1);
        add(&counters.file_bytes_reused, listed.size);
        Some(Record {
            file,
            result,
            fresh: false,
        })
    }

    fn load(&self, batch: usize) -> Earlier {
        let mut all = Earlier::new();
        let key = self.batches.get(batch).map(|(_, key)| key);
        let found = key.and_then(|key| self.results.checkpoint.find(key, LONGEST));
        let Some((_, body)) = found else { return all };
        let mut rest = body.as_slice();
        while let Some((file, after)) = rest.split_first_chunk::<ID>()
            && let Some((len, after)) = after.split_first_chunk::<2>()
            && let Some((result, after)) =
                after.split_at_checked(usize::from(u16::from_le_bytes(*len)))
        {
            all.insert(*file, result.into());
            rest = after;
        }
        all
    }

    /// Takes what a job came to; in the order of the jobs.
    pub(crate) fn take(&self, job: u32, record: Option<Record>) {
        let batch = self.batch(job);
        let mut filling = lock(&self.filling);
        if filling.batch != batch {
            self.end(&mut filling, true);
            filling.batch = batch;
        }
        let Some(record) = record else { return };
        let Ok(len) = u16::try_from(record.result.len()) else {
            return;
        };
        filling.body.extend_from_slice(&record.file);
        filling.body.extend_from_slice(&len.to_le_bytes());
        filling.body.extend_from_slice(&record.result);
        filling.fresh |= record.fresh;
        filling.records += 1;
    }

    /// The last job is done, or the stage has ended before it (`whole` is false).
    pub(crate) fn finish(&self, whole: bool) {
        self.end(&mut lock(&self.filling), whole);
    }

    fn end(&self, filling: &mut Filling, whole: bool) {
        let Filling {
            batch,
            body,
            records,
            fresh,
        } = std::mem::take(filling);
        let earlier = lock(&self.earlier).get(&batch).map(Arc::clone);
        let earlier = earlier.and_then(|earlier| earlier.get().map(Earlier::len));
        // A part of a batch does not take the place of more.
        let counts = fresh && (whole || records >= earlier.unwrap_or(0));
        if let Some((_, key)) = self.batches.get(batch).filter(|_| counts) {
            self.results.checkpoint.add(key, &[], &body);
        }
        let mut earlier = lock(&self.earlier);
        *earlier = earlier.split_off(&(batch + 1));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
