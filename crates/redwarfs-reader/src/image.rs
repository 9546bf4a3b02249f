//! An open image: opening, finding paths, and attributes of inodes.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use redwarfs_format::frozen::FrozenBytes;
use redwarfs_format::history::History;
use redwarfs_format::metadata::{FileType, MetadataView, Stat};
use redwarfs_format::section::{CompressionId, Container, Section, SectionType, Snapshot};
use redwarfs_format::{BlockNo, Error, GenerationNo, InodeNo, Result};
use redwarfs_io::{FileSource, Source};

use crate::ahead::AheadOfReads;
use crate::cache::{ArchiveKey, BlockCache, CacheGroup, CacheStats};
use crate::disk::DiskBlocks;
use crate::error::{in_section, wrong_type};
use crate::identity::ImageIdentity;
use crate::locate;
use crate::options::OpenOptions;
use crate::payload::{PIECE, Payloads, checksum_error};
use crate::perfmon::{Component, PerfMonitor, Timer};
use crate::record::Recorder;
use crate::snapshots;
use crate::tree::{ReadDir, Walk};
use crate::verify::{TrustedDigests, Verified};

/// Largest schema, stored or raw (16 MiB). Real ones are below 4 KiB; a larger one would need millions
/// of structs.
const SCHEMA_LIMIT: u64 = 16 << 20;

/// Largest metadata, stored or raw (8 GiB). The largest lists have 32-bit indices, and the metadata of
/// 50 million entries stays below 2 GiB. Decoding is incremental, so only bytes that a payload decodes
/// to take memory.
pub(crate) const METADATA_LIMIT: u64 = 8 << 30;

/// Raw size up to which metadata may be compressed at any ratio (64 MiB), and the ratio that larger
/// metadata may have. Real metadata rarely compresses to below a tenth. A small file must not expand to
/// gigabytes.
const METADATA_FREE: u64 = 64 << 20;
const METADATA_RATIO: u64 = 1024;

/// Largest raw size that metadata of `stored` bytes may have.
pub(crate) fn plausible_raw_size(stored: u64) -> u64 {
    stored.saturating_mul(METADATA_RATIO).max(METADATA_FREE)
}

/// Size from which uncompressed metadata is read when it is needed (256 KiB).
const LAZY_FROM: u64 = 256 << 10;

/// Longest pause of [`Image::load_metadata`] between two attempts to read a failing medium.
const RETRY_AT_MOST: Duration = Duration::from_secs(8);

/// Largest history, stored or raw, all history sections together (16 MiB).
const HISTORY_LIMIT: u64 = 16 << 20;
/// Largest number of entries of all history sections together.
const HISTORY_ENTRIES: usize = 1 << 14;

/// Largest leading header that [`Image::header_bytes`] returns (1 GiB).
const HEADER_LIMIT: u64 = 1 << 30;

/// An open image. Cloning is cheap and gives another handle to the same image; all operations
/// take `&self` and may run on many threads at once.
#[derive(Debug, Clone)]
pub struct Image(pub(crate) Arc<OpenImage>);

#[derive(Debug)]
pub(crate) struct OpenImage {
    pub(crate) payloads: Payloads,
    pub(crate) view: MetadataView,
    pub(crate) cache: BlockCache,
    pub(crate) ahead: AheadOfReads,
    file_size: u64,
    identity: ImageIdentity,
    /// How this image was opened, for other generations of its file.
    pub(crate) options: OpenOptions,
    perfmon: PerfMonitor,
    pub(crate) timers: Timers,
    locked: OnceLock<()>,
    /// The snapshot, if its tree is a directory of the generation.
    pub(crate) archived: Option<GenerationNo>,
    /// The metadata of its archive.
    pub(crate) archive: Option<Arc<MetadataView>>,
    /// Whether reads are recorded, and by whom.
    pub(crate) records: AtomicBool,
    pub(crate) recorder: RwLock<Option<Arc<Recorder>>>,
}

/// The measured operations of [`Image`] itself.
#[derive(Debug)]
pub(crate) struct Timers {
    find_path: Timer,
    find_inode_name: Timer,
    getattr: Timer,
    opendir: Timer,
    readlink: Timer,
    pub(crate) read: Timer,
    pub(crate) inode_read: Timer,
    pub(crate) read_cached: Timer,
}

impl Timers {
    fn new(perfmon: &PerfMonitor) -> Self {
        let fs = |name| perfmon.timer(Component::Filesystem, name);
        Self {
            find_path: fs("find_path"),
            find_inode_name: fs("find_inode_name"),
            getattr: fs("getattr"),
            opendir: fs("opendir"),
            readlink: fs("readlink"),
            read: fs("read"),
            inode_read: perfmon.timer(Component::InodeReader, "read"),
            read_cached: perfmon.timer(Component::InodeReader, "read_cached"),
        }
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if self.locked.get().is_some() {
            self.view
                .bytes()
                .in_memory()
                .for_each(crate::sys::unlock_memory);
        }
    }
}

impl Image {
    /// Opens the image in a file or block device.
    ///
    /// # Errors
    /// [`Error::Io`] with the path if the file cannot be opened, otherwise as [`Image::from_source`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::from_source(Arc::new(FileSource::open(path)?), options)
    }

    /// Opens the image in `source`, in the order of format chapter 01, section 10: finds it, lists its
    /// sections, verifies all checksums except those of blocks, and loads and checks schema and
    /// metadata.
    ///
    /// A wrong checksum of a section that is neither schema nor metadata is only logged. With
    /// [`OpenOptions::verification`], the sections must have their digests, and a wrong one is an error.
    ///
    /// # Errors
    /// * [`Error::NotAnImage`]: nothing found, or not at the given offset.
    /// * [`Error::Unsupported`]: version, feature, or compression of the metadata.
    /// * [`Error::Corrupt`]: sections, checksums, or metadata are wrong.
    /// * [`Error::Limit`]: schema or metadata are implausibly large.
    /// * [`Error::Unverified`]: there are no digests or no trusted signature, although they are asked for.
    /// * [`Error::Io`]: reading failed.
    ///
    /// [`Error::NoSnapshot`] is the error of a snapshot that does not exist.
    pub fn from_source(source: Arc<dyn Source>, options: &OpenOptions) -> Result<Self> {
        let container = locate::newest(&source, options)?;
        let Some(choice) = &options.snapshot else {
            return Self::from_container(source, container, options);
        };
        let (container, snapshot) = snapshots::sections_of_snapshot(&source, container, choice)?;
        match snapshot {
            Some(snapshot) => Self::of_snapshot(source, container, &snapshot, options),
            None => Self::from_container(source, container, options),
        }
    }

    /// Opens an image whose sections are known. The place in `options` does not count.
    ///
    /// # Errors
    /// As [`Image::from_source`], except those of finding the image.
    pub fn from_container(
        source: Arc<dyn Source>,
        container: Container,
        options: &OpenOptions,
    ) -> Result<Self> {
        // Such a generation is the newest one if what followed it is gone.
        let archived = snapshots::newest_of_archive(&source, &container)?;
        if let Some(snapshot) = &archived {
            tracing::warn!(
                "what follows the archive of snapshots is missing or damaged: the tree is that of the newest one in it, \
                 '{}'",
                snapshot.name
            );
        }
        Self::open_tree(source, container, archived.as_ref(), options)
    }

    /// As [`from_container`](Self::from_container). With a snapshot in an archive, the tree is its directory.
    pub(crate) fn open_tree(
        source: Arc<dyn Source>,
        container: Container,
        archived: Option<&Snapshot>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let began = Instant::now();
        let size = source.len()?;
        let offset = container.offset;
        let container = Arc::new(container);
        let digests = TrustedDigests::of(source.as_ref(), &container, &options.verification)?;
        let payloads = Payloads::new(Arc::clone(&source), Arc::clone(&container), 0)
            .verifying(digests.clone());

        // Those that are read for opening.
        let mut headers = Vec::new();
        for (number, section) in container.sections.iter().enumerate() {
            tracing::trace!(
                at = section.header_offset,
                bytes = section.length,
                "section {number} {}",
                section.ty
            );
            let needed = [SectionType::METADATA_V2_SCHEMA, SectionType::METADATA_V2];
            // Schema and metadata are verified when they are read below.
            if section.ty == SectionType::BLOCK || needed.contains(&section.ty) {
                continue;
            }
            let section = payloads.with_header(section)?;
            headers.push(section.clone());
            if !payloads.checksum_is_right(&section)? {
                if digests.is_some() {
                    return Err(payloads.mismatch(&section));
                }
                tracing::warn!("{}", checksum_error(&section));
            }
        }
        let find = |ty, limit| -> Result<Section> {
            let section = payloads.with_header(container.only_section_of_type(ty)?)?;
            if section.length > limit {
                let e = Error::Limit(format!("a {ty} section of {} bytes", section.length));
                return Err(in_section(e, &section));
            }
            Ok(section)
        };
        let limit = |section: &Section, most: u64| most.min(plausible_raw_size(section.length));
        container.only_section_of_type(SectionType::METADATA_V2)?;
        let schema = find(SectionType::METADATA_V2_SCHEMA, SCHEMA_LIMIT)?;
        headers.push(schema.clone());
        let most = limit(&schema, SCHEMA_LIMIT);
        let schema = payloads.decompress(&schema, payloads.read_vec(&schema)?, most)?;
        let metadata = find(SectionType::METADATA_V2, METADATA_LIMIT)?;
        headers.push(metadata.clone());
        let number = archived.map(|snapshot| snapshot.number);
        let identity = ImageIdentity::of(&container, &headers, number);
        let check = options.check || !container.has_hashes();
        let lazy = options.lazy_metadata && !check && archived.is_none();
        let plain = metadata.compression == Some(CompressionId::NONE);
        // Verifying them takes all of them, and fetching them again is slow.
        let fetched = source.is_remote();
        let read_later = if lazy && plain && metadata.length >= LAZY_FROM && !fetched {
            payloads.read_lazily(&metadata)?
        } else {
            None
        };
        let decode = || -> Result<MetadataView> {
            let bytes = match read_later {
                Some(bytes) => FrozenBytes::from(bytes),
                None => {
                    let payload = payloads.read_vec(&metadata)?;
                    let most = limit(&metadata, METADATA_LIMIT);
                    if lazy {
                        payloads.decompress_when_needed(&metadata, payload, most)?
                    } else {
                        payloads.decompress(&metadata, payload, most)?.into()
                    }
                }
            };
            match options.ignore_xattrs {
                false => MetadataView::parse(&schema, bytes),
                true => MetadataView::parse_ignoring_xattrs(&schema, bytes),
            }
        };
        let new_group = || CacheGroup::new(&options.cache);
        let group = options.cache_group.clone().unwrap_or_else(new_group);
        let (view, archive) = match archived {
            Some(snapshot) => {
                let key = ArchiveKey {
                    generation: ImageIdentity::of(&container, &headers, None),
                    tree: snapshot.tree,
                    without_xattrs: options.ignore_xattrs,
                    is_verified: digests.is_some(),
                };
                let archive = group.archive(key, || {
                    let archive = decode()?;
                    snapshots::check_archive(&schema, &archive, snapshot)?;
                    Ok(archive)
                })?;
                let blocks = container.block_count();
                let tree = snapshots::tree_in_archive(&archive, snapshot, blocks)?;
                (tree, Some(archive))
            }
            None => (decode()?, None),
        };
        if check {
            view.check(container.block_count(), None)?;
        }
        let block_size = u64::from(view.block_size());
        tracing::info!(
            target: "redwarfs_reader::verbose",
            version = %container.version,
            offset,
            bytes = container.size,
            blocks = container.block_count(),
            block_size,
            inodes = view.counts().inodes,
            took = ?began.elapsed(),
            "opened the image"
        );
        let disk = options.disk_cache.as_ref();
        let disk = disk.and_then(|cache| DiskBlocks::new(cache, &source, &container, &headers));
        let payloads = Payloads::new(source, container, block_size)
            .trusting(options.trust_blocks)
            .verifying(digests)
            .keeping(disk);
        payloads.opened();
        let (of_cache, perfmon) = (&options.cache, &options.perfmon);
        let cache = BlockCache::in_group(&group, payloads.clone(), of_cache, perfmon);
        Ok(Self(Arc::new(OpenImage {
            cache,
            ahead: AheadOfReads::new(
                &options.cache,
                payloads.block_size(),
                payloads.is_remote(),
                payloads.expansion(),
            ),
            payloads,
            view,
            file_size: size,
            identity,
            options: options.clone(),
            perfmon: options.perfmon.clone(),
            timers: Timers::new(&options.perfmon),
            locked: OnceLock::new(),
            archived: number,
            archive,
            records: AtomicBool::new(false),
            recorder: RwLock::default(),
        })))
    }

    /// The metadata.
    pub fn metadata(&self) -> &MetadataView {
        &self.0.view
    }

    /// The sections.
    pub fn container(&self) -> &Container {
        self.0.payloads.container()
    }

    /// What the image has proved, if that was asked for.
    pub fn verified(&self) -> Option<&Verified> {
        self.0.payloads.digests().map(|digests| &digests.verified)
    }

    /// The source of the image.
    pub fn source(&self) -> &Arc<dyn Source> {
        self.0.payloads.source()
    }

    /// The monitor that measures the operations of this image.
    pub fn perfmon(&self) -> &PerfMonitor {
        &self.0.perfmon
    }

    /// What tells this image from others, also from a later image in the same file. It is not for storing.
    pub fn identity(&self) -> ImageIdentity {
        self.0.identity
    }

    /// The size of the file when it was opened.
    pub(crate) fn file_size(&self) -> u64 {
        self.0.file_size
    }

    /// Number of bytes after the image in its file: another image, other data, or 0.
    pub fn trailing_bytes(&self) -> u64 {
        let container = self.container();
        let end = container.offset.saturating_add(container.size);
        self.0.file_size.saturating_sub(end)
    }

    /// After some time, loads the remaining metadata of an image that was opened with
    /// [`OpenOptions::lazy_metadata`], in a separate thread. Until then, each operation loads the parts
    /// that it needs. If the medium fails, the thread tries again, each time after twice the pause, at
    /// most 8 seconds. It does not try again after damage.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn load_metadata(&self, after: Duration) -> io::Result<()> {
        if matches!(self.0.view.bytes(), FrozenBytes::Lazy(_)) {
            let inner = Arc::downgrade(&self.0);
            thread::Builder::new()
                .name("redwarfs-load".into())
                .spawn(move || {
                    let mut pause = after;
                    loop {
                        thread::sleep(pause);
                        let Some(inner) = inner.upgrade() else { return };
                        let Err(e) = inner.view.bytes().load_all() else {
                            return;
                        };
                        let again = matches!(e, Error::Io(_));
                        // One message is enough in the log.
                        if pause == after || !again {
                            tracing::warn!("cannot load the metadata: {e}");
                        }
                        if !again {
                            return;
                        }
                        pause = (pause * 2).min(RETRY_AT_MOST.max(after));
                    }
                })?;
        }
        Ok(())
    }

    /// Keeps the metadata in memory until the image is dropped, so that no operation waits for swapped
    /// out pages.
    ///
    /// # Errors
    /// The errors of `mlock`, mostly because of the limit for locked memory, and those of reading the
    /// metadata that was not needed so far.
    pub fn lock_metadata(&self) -> io::Result<()> {
        let bytes = self.0.view.bytes();
        bytes.load_all().map_err(|e| match e {
            Error::Io(e) => e,
            other => io::Error::other(other.to_string()),
        })?;
        let locked = bytes.in_memory().try_for_each(crate::sys::lock_memory);
        if locked.is_err() {
            bytes.in_memory().for_each(crate::sys::unlock_memory);
            return locked;
        }
        // Locking again is allowed and needs no second unlocking.
        let _ = self.0.locked.set(());
        Ok(())
    }

    /// The root directory.
    pub fn root(&self) -> InodeNo {
        InodeNo::ROOT
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`] as [`Error::Io`] if `dir` is not a directory,
    /// [`Error::Corrupt`] if its metadata is wrong.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>> {
        let inode = u64::from(dir.0);
        let _timer = self
            .0
            .timers
            .find_inode_name
            .start_with(&[("inode", inode)]);
        self.expect_directory(dir)?;
        match self.0.view.find(dir, name)? {
            Some(entry) => self.0.view.entry_inode(entry).map(Some),
            None => Ok(None),
        }
    }

    /// Finds a path relative to the root. Leading, trailing and repeated slashes and `.` are ignored,
    /// `..` is the parent directory, and symbolic links are not followed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if metadata on the way is wrong.
    pub fn find_path(&self, path: &[u8]) -> Result<Option<InodeNo>> {
        let _timer = self.0.timers.find_path.start();
        let mut inode = self.root();
        for name in path.split(|&b| b == b'/') {
            if name.is_empty() {
                continue;
            }
            if self.0.view.file_type(inode)? != FileType::Directory {
                return Ok(None);
            }
            match name {
                b"." => {}
                b".." => inode = self.0.view.parent(inode)?,
                name => match self.lookup(inode, name)? {
                    Some(child) => inode = child,
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(inode))
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such inode or its metadata is wrong.
    pub fn stat(&self, inode: InodeNo) -> Result<Stat> {
        let number = u64::from(inode.0);
        let _timer = self.0.timers.getattr.start_with(&[("inode", number)]);
        self.0.view.stat(inode)
    }

    /// Lists a directory in the order of its names.
    ///
    /// # Errors
    /// As [`Image::lookup`].
    pub fn read_dir(&self, dir: InodeNo) -> Result<ReadDir<'_>> {
        let inode = u64::from(dir.0);
        let _timer = self.0.timers.opendir.start_with(&[("inode", inode)]);
        self.expect_directory(dir)?;
        Ok(ReadDir::new(&self.0.view, self.0.view.entries(dir)?))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] as [`Error::Io`] if the inode is not a symbolic link,
    /// [`Error::Corrupt`] if its metadata is wrong.
    pub fn read_link(&self, inode: InodeNo) -> Result<Vec<u8>> {
        let number = u64::from(inode.0);
        let _timer = self.0.timers.readlink.start_with(&[("inode", number)]);
        if self.0.view.file_type(inode)? != FileType::Symlink {
            let kind = io::ErrorKind::InvalidInput;
            return Err(wrong_type(kind, "not a symbolic link"));
        }
        Ok(self.0.view.symlink(inode)?.into_owned())
    }

    /// All entries, depth first, each directory before its contents and sorted by name,
    /// starting with the root (whose path is empty).
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(&self.0.view)
    }

    /// The history of the image: the entries of all history sections. Sections with a wrong
    /// checksum are skipped.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Unsupported`] if a section with a correct checksum cannot
    /// be decoded, [`Error::Limit`] if it is implausibly large, [`Error::Io`] if reading failed.
    pub fn history(&self) -> Result<History> {
        let payloads = &self.0.payloads;
        let mut history = History {
            entries: Vec::new(),
        };
        let mut left = HISTORY_LIMIT;
        for section in payloads.container().section_of_type(SectionType::HISTORY) {
            let section = payloads.with_header(section)?;
            if section.length > left {
                let e = Error::Limit(format!("a history of {} bytes", section.length));
                return Err(in_section(e, &section));
            }
            if !payloads.checksum_is_right(&section)? {
                tracing::warn!("{}", checksum_error(&section));
                continue;
            }
            let payload = payloads.read_vec(&section)?;
            let raw = payloads.decompress(&section, payload, left)?;
            left = left.saturating_sub(raw.len() as u64);
            let part = History::parse(&raw).map_err(|e| in_section(e, &section))?;
            history.entries.extend(part.entries);
            if history.entries.len() > HISTORY_ENTRIES {
                let e = Error::Limit("a history with very many entries".into());
                return Err(in_section(e, &section));
            }
        }
        Ok(history)
    }

    /// Number of bytes before the image in its file.
    pub fn header_len(&self) -> u64 {
        self.container().offset
    }

    /// The bytes before the image in its file.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are more than 1 GiB, [`Error::Io`] if reading failed.
    pub fn header_bytes(&self) -> Result<Vec<u8>> {
        let len = self.header_len();
        if len > HEADER_LIMIT {
            return Err(Error::Limit(format!("a header of {len} bytes")));
        }
        let mut header = Vec::new();
        self.copy_header(&mut header)?;
        Ok(header)
    }

    /// Writes the bytes before the image to `out`; returns their number.
    ///
    /// # Errors
    /// [`Error::Io`] if reading or writing failed.
    pub fn copy_header(&self, out: &mut dyn io::Write) -> Result<u64> {
        let len = self.header_len();
        let mut buffer = vec![0; PIECE];
        let mut done = 0;
        while done < len {
            let n = usize::try_from(len - done).map_or(PIECE, |left| left.min(PIECE));
            self.source().read_exact_at(done, &mut buffer[..n])?;
            out.write_all(&buffer[..n])?;
            done += n as u64;
        }
        Ok(len)
    }

    /// Decodes a whole block without the cache, for callers that use every block once.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such block, or its checksum or data is wrong.
    /// [`Error::Unsupported`] if its compression is not supported. [`Error::Limit`] if it is larger
    /// than the block size. [`Error::Io`] if reading failed.
    pub fn decode_block(&self, block: BlockNo) -> Result<Vec<u8>> {
        let (section, payload) = self.stored_block(block)?;
        let decoded = self.decode_stored_block(&section, &payload)?;
        Ok(decoded.unwrap_or(payload))
    }

    /// Decodes a block into the cache if there is room without dropping other blocks. Returns false if
    /// not.
    ///
    /// # Errors
    /// As [`Image::decode_block`].
    pub fn preload_block(&self, block: BlockNo) -> Result<bool> {
        self.0.cache.preload(block)
    }

    /// Drops blocks from the cache that were not used for `age`; returns their number.
    pub fn tidy_cache(&self, age: Duration) -> u64 {
        self.0.cache.tidy(age)
    }

    /// An upper bound for the size of a block, if that does not fit into the cache. Such blocks take
    /// memory beyond its limit while they are in use, and must be decoded again afterwards. `None` if
    /// all blocks fit, or none is compressed, so that they need not be kept.
    ///
    /// # Errors
    /// As [`Image::section_with_header`]. Reads the headers of blocks up to the first compressed one.
    pub fn block_beyond_cache(&self) -> Result<Option<u64>> {
        let payloads = &self.0.payloads;
        // No block is longer than all files together, whose size old images do not tell.
        let contents = self.0.view.totals().allocated;
        let block = match payloads.block_size() {
            size if contents > 0 => size.min(contents),
            size => size,
        };
        if self.0.cache.has_room_for(block) {
            return Ok(None);
        }
        for section in payloads.container().section_of_type(SectionType::BLOCK) {
            let section = payloads.with_header(section)?;
            if section.compression != Some(CompressionId::NONE) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// The images with which this one shares its block cache.
    pub fn cache_group(&self) -> CacheGroup {
        self.0.cache.group()
    }

    /// The counters of the block cache, which it may share with other images.
    pub fn cache_stats(&self) -> CacheStats {
        self.0.cache.stats()
    }

    fn expect_directory(&self, inode: InodeNo) -> Result<()> {
        if self.0.view.file_type(inode)? == FileType::Directory {
            return Ok(());
        }
        Err(wrong_type(io::ErrorKind::NotADirectory, "not a directory"))
    }
}
