//! Finding equal files: [`Tree`] -> [`Contents`].
//!
//! Only files with the same size, and the same first bytes if they are large, are hashed. Bytes of
//! small files stay in memory for the stages that follow. If
//! [`BuildOptions::verify_duplicates`](crate::BuildOptions::verify_duplicates) is set, files with equal
//! hashes are compared before they are stored once ([`verify`]).

mod base;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::iter;

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use self::base::InBase;
use crate::base::BaseContent;
use crate::checkpoint::{Record, Scans};
use crate::contents::{Content, Contents, Files, Keeper, Kept, KeptPlace, Origin};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::hash::{Digest, FileHash};
use crate::memory::{self, Load};
use crate::progress::add;
use crate::read::{FilePart, ReadError, read_file};
use crate::tree::Tree;

/// Files from this size on are told apart by their first bytes before they are hashed.
const PREFIX_FILE: u64 = 1 << 20;
const PREFIX: usize = 4096;
/// Source of zeros.
static ZEROS: [u8; 4096] = [0; 4096];
/// The memory limit is checked again after this number of contents.
const CHECK_EVERY: usize = 1 << 14;

/// What hashing a file came to.
enum Hashed {
    Digest(Digest, Option<KeptPlace>),
    /// The image that the build continues has it.
    Base(BaseContent),
    /// It differs from its listing, so it cannot be compared.
    Changed,
    Failed(io::Error),
    Fatal(Error),
}

/// Groups the files of a tree by content.
pub(crate) fn group(context: Context<'_>, tree: &Tree) -> Result<Contents> {
    let hasher = Hasher { context, tree };
    hasher.expect();
    if context.options.memory_limit.is_some() {
        let load = Load {
            bytes: hasher.stored_at_least(),
            ..tree.load()
        };
        context.watch.check(load)?;
    }
    hasher.contents()
}

/// Hashes the files of a tree.
struct Hasher<'a> {
    context: Context<'a>,
    tree: &'a Tree,
}

impl Hasher<'_> {
    /// Counts the bytes that similarity digests will read, for displays of progress.
    fn expect(&self) {
        let options = self.context.options;
        if !options.hollow && Fingerprint::new(&options.order).is_some() {
            let limit = options.max_similarity_size.unwrap_or(u64::MAX);
            let sizes = self.tree.files.iter().map(|file| file.size);
            let sum = sizes.filter(|&size| size <= limit).sum();
            add(&self.context.counters().scan_bytes, sum);
        }
    }

    fn size(&self, file: u32) -> u64 {
        self.tree.files[file as usize].size
    }

    /// Bytes of contents that there are at least: files of different sizes are different.
    fn stored_at_least(&self) -> u64 {
        if self.context.options.hollow {
            return 0;
        }
        let files = self.tree.files.iter().filter(|file| !file.sparse());
        let mut sizes: Vec<u64> = files.map(|file| file.size).collect();
        if self.context.options.file_hash.is_some() {
            sizes.sort_unstable();
            sizes.dedup();
        }
        sizes.into_iter().fold(0, u64::saturating_add)
    }

    /// Groups files by content.
    fn contents(&self) -> Result<Contents> {
        let counters = self.context.counters();
        let count = self.tree.files.len();
        let mut base = InBase::look_up(self);
        let mut jobs = Vec::new();
        let hash = self
            .context
            .options
            .file_hash
            .filter(|_| !self.context.options.hollow);
        if let Some(hash) = hash {
            let mut prefixes: HashMap<u32, u64> = HashMap::new();
            jobs = self.candidates(&mut base, &mut prefixes)?;
            base.hash(self, hash, &jobs, &prefixes)?;
            let sizes = jobs.iter().map(|&file| self.size(file));
            add(&counters.scan_bytes, sizes.sum());
        }
        add(&counters.files_scanned, (count - jobs.len()) as u64);
        let kept = Kept::new(count, memory::small_files(self.context.options));
        let keeper = kept.keeper();
        // A list that grows leaves a hole of its size in the heap each time. Where the system counts memory before it is used,
        // there may be too little.
        let (mut contents, mut digests) = (Vec::new(), Vec::new());
        let _ = contents.try_reserve_exact(count);
        let _ = digests.try_reserve_exact(count);
        let mut groups = Groups {
            hasher: self,
            keeper: &keeper,
            next: 0,
            contents,
            digests,
            known: HashTable::new(),
            kept,
            suspects: BTreeMap::new(),
            base: &base,
            in_base: HashMap::new(),
        };
        if let Some(hash) = hash {
            let kind = ("hash", hash.name());
            let scans = Scans::new(self.context, self.tree, kind, &jobs, |file| file);
            let scans = scans.as_ref();
            let done = self.context.scan(
                &jobs,
                Vec::new,
                |buffer, file| {
                    let (hashed, record) = self.hash(hash, file, buffer, &keeper, scans);
                    let result = self.find_in_base(&base, file, hashed, buffer);
                    add(&counters.files_scanned, 1);
                    (result, record)
                },
                |file, (hashed, record)| {
                    if let Some(scans) = scans {
                        scans.take(file, record);
                    }
                    groups.hashed(file, hashed)
                },
            );
            if let Some(scans) = scans {
                scans.finish(done.is_ok());
            }
            done?;
        }
        drop(jobs);
        groups.until(count as u32)?;
        let Groups {
            mut contents,
            mut kept,
            suspects,
            ..
        } = groups;
        contents.shrink_to_fit();
        kept.take(keeper);
        let mut contents = Contents {
            list: contents,
            kept,
        };
        self.verify(&mut contents, &suspects)?;
        Ok(contents)
    }

    /// Files that may be equal to another one: same size and, if large, same first bytes.
    /// Or that may be equal to a content of the image that the build continues.
    fn candidates(
        &self,
        base: &mut InBase<'_>,
        prefixes: &mut HashMap<u32, u64>,
    ) -> Result<Vec<u32>> {
        let files = 0..self.tree.files.len() as u32;
        let mut files: Vec<u32> = files.filter(|&f| base.unchanged(f).is_none()).collect();
        files.sort_by_key(|&file| self.size(file));
        let mut jobs = Vec::new();
        let mut large = Vec::new();
        for class in files.chunk_by(|&a, &b| self.size(a) == self.size(b)) {
            let to = if class.first().is_some_and(|&f| self.size(f) >= PREFIX_FILE) {
                &mut large
            } else {
                &mut jobs
            };
            // The prefix of a single large file is not needed. It is a part of the sort key of inodes
            // only if sizes are equal.
            let size = class.first().map_or(0, |&file| self.size(file));
            if class.len() > 1 || !base.of_size(size).is_empty() {
                to.extend_from_slice(class);
            }
        }
        large.sort_unstable();
        self.context.scan(
            &large,
            Vec::new,
            |buffer, file| self.prefix(file, buffer),
            |file, hash| {
                prefixes.insert(file, hash);
                Ok(())
            },
        )?;
        self.context.check_stop()?;
        let key = |file: u32| (self.size(file), prefixes.get(&file).copied().unwrap_or(0));
        large.sort_by_key(|&file| key(file));
        for class in large.chunk_by(|&a, &b| key(a) == key(b)) {
            let (size, prefix) = class.first().map_or((0, 0), |&file| key(file));
            if class.len() > 1 || base.has_prefix(self.context, size, prefix)? {
                jobs.extend_from_slice(class);
            }
        }
        // In order of discovery, which is near the order on disk.
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// Hash of the first bytes; 0 if they cannot be read, which is found out again later.
    fn prefix(&self, file: u32, buffer: &mut Vec<u8>) -> u64 {
        if self.context.stopped() {
            return 0;
        }
        let Ok(content) = self.context.open(self.tree, file) else {
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

    /// Looks for a content of the image that the build continues with the hash of a file.
    fn find_in_base(
        &self,
        base: &InBase<'_>,
        file: u32,
        hashed: Hashed,
        buffer: &mut Vec<u8>,
    ) -> Hashed {
        let Hashed::Digest(digest, _) = &hashed else {
            return hashed;
        };
        let Some(content) = base.with_digest(self.size(file), digest) else {
            return hashed;
        };
        if !self.context.options.verify_duplicates {
            return Hashed::Base(content);
        }
        let (mut at, mut same, mut old) = (0, true, Vec::new());
        let outcome = read_file(self.context, self.tree, file, buffer, |part| {
            match part {
                FilePart::Data(data) => {
                    same = same && base.same(content, at, data, &mut old);
                    at += data.len() as u64;
                }
                // A reader finds zeros there, in both.
                FilePart::Hole(mut size) => {
                    while same && size > 0 {
                        let n = size.min(ZEROS.len() as u64) as usize;
                        same = base.same(content, at, &ZEROS[..n], &mut old);
                        at += n as u64;
                        size -= n as u64;
                    }
                }
                FilePart::EndOfExtent => {}
            }
            Ok(())
        });
        match outcome {
            Ok(outcome) if outcome.changed => Hashed::Changed,
            Ok(_) if same => Hashed::Base(content),
            Ok(_) => hashed,
            Err(ReadError::Input(error)) => Hashed::Failed(error),
            Err(ReadError::Fatal(error)) => Hashed::Fatal(error),
        }
    }

    /// Hashes a file, or takes the hash from a checkpoint. Also returns what the checkpoint keeps.
    fn hash(
        &self,
        hash: FileHash,
        file: u32,
        buffer: &mut Vec<u8>,
        keeper: &Keeper,
        scans: Option<&Scans<'_>>,
    ) -> (Hashed, Option<Record>) {
        let counters = self.context.counters();
        let size = self.size(file);
        let mut hasher = hash.hasher();
        if size == 0 {
            return (Hashed::Digest(hasher.finish(), None), None);
        }
        if let Some(record) = scans.and_then(|scans| scans.find(file, file, "", iter::empty()))
            && let Some(digest) = Digest::from_bytes(&record.result)
        {
            add(&counters.hash_bytes, size);
            return (Hashed::Digest(digest, None), Some(record));
        }
        let mut place = None;
        let outcome = read_file(self.context, self.tree, file, buffer, |part| {
            match part {
                FilePart::Data(data) => {
                    hasher.update(data);
                    add(&counters.hash_bytes, data.len() as u64);
                    if data.len() as u64 == size {
                        place = keeper.keep(data);
                    }
                }
                FilePart::Hole(size) => hasher.update_zeros(size),
                FilePart::EndOfExtent => {}
            }
            Ok(())
        });
        match outcome {
            Ok(outcome) => {
                add(&counters.hash_files, 1);
                if outcome.changed {
                    return (Hashed::Changed, None);
                }
                let digest = hasher.finish();
                let record = scans.zip(outcome.identity).map(|(scans, identity)| {
                    scans.record(file, &identity, "", iter::empty(), digest.bytes())
                });
                (Hashed::Digest(digest, place), record)
            }
            Err(ReadError::Input(error)) => (Hashed::Failed(error), None),
            Err(ReadError::Fatal(error)) => (Hashed::Fatal(error), None),
        }
    }
}

/// Files, grouped by content in the order in which they were found.
struct Groups<'a> {
    hasher: &'a Hasher<'a>,
    keeper: &'a Keeper,
    /// The first file that was not looked at.
    next: u32,
    contents: Vec<Content>,
    /// Digests of contents, if they are known.
    digests: Vec<Option<Digest>>,
    /// Contents by digest.
    known: HashTable<u32>,
    kept: Kept,
    /// For each content, the files that must still be compared with its first file.
    suspects: BTreeMap<u32, Vec<u32>>,
    base: &'a InBase<'a>,
    /// Contents that the image which the build continues has.
    in_base: HashMap<BaseContent, u32>,
}

impl Groups<'_> {
    fn content(&self, file: u32) -> Content {
        Content {
            size: self.hasher.size(file),
            files: Files::One(file),
            origin: Origin::Files,
            parts: None,
        }
    }

    /// Adds a file whose content the image that the build continues has.
    fn is_in_base(&mut self, file: u32, base: BaseContent) -> Result<()> {
        let mut content = self.content(file);
        let counters = self.hasher.context.counters();
        add(&counters.files_in_base, 1);
        add(&counters.bytes_in_base, content.size);
        if let Some(&at) = self.in_base.get(&base) {
            self.contents[at as usize].files.push(file, None);
            return Ok(());
        }
        self.in_base.insert(base, self.contents.len() as u32);
        content.origin = Origin::Base(base);
        self.push(content, None)
    }

    /// All files before `end` that were not examined are equal to no other.
    fn until(&mut self, end: u32) -> Result<()> {
        for file in self.next..end {
            match self.base.unchanged(file) {
                Some(content) => self.is_in_base(file, content)?,
                None => self.push(self.content(file), None)?,
            }
        }
        self.next = self.next.max(end);
        Ok(())
    }

    fn push(&mut self, content: Content, digest: Option<Digest>) -> Result<()> {
        self.contents.push(content);
        self.digests.push(digest);
        if self.contents.len().is_multiple_of(CHECK_EVERY) {
            let load = Load {
                contents: self.contents.len() as u64,
                ..self.hasher.tree.load()
            };
            self.hasher.context.watch.check(load)?;
        }
        Ok(())
    }

    /// The next file that may be equal to another one.
    fn hashed(&mut self, file: u32, hashed: Hashed) -> Result<()> {
        self.until(file)?;
        self.next = file + 1;
        let hasher = self.hasher;
        let (mut content, mut known) = (self.content(file), None);
        match hashed {
            Hashed::Digest(digest, place) => {
                if self.is_known(&content, &digest, place) {
                    return Ok(());
                }
                known = Some(digest);
                if let Some(place) = place {
                    self.kept.put(file, place);
                }
            }
            Hashed::Failed(error) => {
                let path = hasher.tree.file_path(file);
                let what = format!("cannot read file, storing it empty: {error}");
                hasher.context.problem(&path, &what);
                content.origin = Origin::Failed;
            }
            Hashed::Base(base) => return self.is_in_base(file, base),
            Hashed::Fatal(error) => return Err(error),
            // The segmenter notices and reports it, too.
            Hashed::Changed => {}
        }
        self.push(content, known)
    }

    /// Adds the file to the content to which it is equal, or else remembers its hash.
    fn is_known(&mut self, content: &Content, digest: &Digest, place: Option<KeptPlace>) -> bool {
        let key = |size: u64, digest: Option<&Digest>| {
            let digest = digest.map_or(&[][..], Digest::bytes);
            XxHash3_64::oneshot_with_seed(size, digest)
        };
        let (hash, file) = (key(content.size, Some(digest)), content.first_file());
        let verify = self.hasher.context.options.verify_duplicates;
        let mut compared = content.size == 0;
        let (contents, kept, keeper) = (&mut self.contents, &self.kept, self.keeper);
        let digests = &self.digests;
        let equal = self.known.find(hash, |&at| {
            let other = &contents[at as usize];
            let same = other.size == content.size && digests[at as usize].as_ref() == Some(digest);
            match (kept.place(other.first_file()), place) {
                (Some(a), Some(b)) if same && verify => {
                    compared = keeper.same(a, b);
                    compared
                }
                _ => same,
            }
        });
        let counters = self.hasher.context.counters();
        if let Some(&at) = equal {
            contents[at as usize].files.push(file, Some(digest));
            if verify && !compared {
                self.suspects.entry(at).or_default().push(file);
            }
            add(&counters.duplicate_files, 1);
            add(&counters.saved_by_deduplication, content.size);
            return true;
        }
        let number = contents.len() as u32;
        self.known.insert_unique(hash, number, |&at| {
            let at = at as usize;
            key(contents[at].size, digests[at].as_ref())
        });
        false
    }
}
