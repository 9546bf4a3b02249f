//! Reads, verifies and decompresses the stored payloads of sections.

mod announce;
mod leaves;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::num::NonZero;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::thread::available_parallelism;

use redwarfs_codec::Decoder;
use redwarfs_format::frozen::{FrozenBytes, LazyBytes};
use redwarfs_format::section::{
    CompressionId, Container, LeafDigests, Section, SectionHeader, SectionType, tail_pointer,
};
use redwarfs_format::{BlockNo, Error, Result};
use redwarfs_io::{Revision, Source};

use crate::disk::DiskBlocks;
use crate::error::in_section;
use crate::verify::{KnownLeaves, PayloadCheck, TrustedDigests};
use crate::when_needed::decode_when_needed;

/// Piece in which payloads are read for hashing, and metadata is decoded
/// (1 MiB).
pub(crate) const PIECE: usize = 1 << 20;

/// Stored bytes that a compressed block may have beyond its block size. Some codecs compress
/// incompressible data and add headers, but never another half.
const SLACK: u64 = 64 << 10;

/// Piece of a payload that is read and hashed before the next one is read (256 KiB): it is still in the
/// CPU cache when it is hashed.
const HASHED_AT_ONCE: usize = 4 * LazyBytes::PART;

/// Raw sizes at which parts of metadata are decoded by several threads, or when they are needed (1 MiB to 1 GiB).
const BY_PARTS: RangeInclusive<u64> = 1 << 20..=1 << 30;

/// Largest number of parts of metadata that several threads decode, or that are decoded when they are needed. `mkdwarfs`
/// makes one for each table.
const MOST_PARTS: u64 = 1 << 10;

/// Largest number of threads that decode metadata: a few large tables take almost all of the time.
const PART_DECODERS: usize = 4;

/// Access to the payloads of one image.
#[derive(Debug, Clone)]
pub(crate) struct Payloads {
    source: Arc<dyn Source>,
    container: Arc<Container>,
    block_size: u64,
    /// Whether the source is on a server, so that blocks are announced before they are read.
    remote: bool,
    /// That of the source when the image was opened.
    revision: Option<Revision>,
    /// Whether payloads are used without comparing checksums.
    trusting: bool,
    /// What payloads are compared with instead of their checksums.
    digests: Option<Arc<TrustedDigests>>,
    /// The cache on disk for blocks.
    disk: Option<Arc<DiskBlocks>>,
    /// The seed for digests of leaves. It differs from process to process.
    seed: u64,
}

impl Payloads {
    /// `block_size` is the limit for the raw size of a block, in bytes.
    pub(crate) fn new(source: Arc<dyn Source>, container: Arc<Container>, block_size: u64) -> Self {
        Self {
            remote: source.is_remote(),
            revision: source.revision().ok().flatten(),
            source,
            container,
            block_size,
            trusting: false,
            digests: None,
            disk: None,
            seed: RandomState::new().hash_one(()),
        }
    }

    /// With `trusting`, payloads are used without verifying their checksums.
    pub(crate) fn trusting(self, trusting: bool) -> Self {
        Self { trusting, ..self }
    }

    /// With `digests`, every payload must have its digest.
    pub(crate) fn verifying(self, digests: Option<Arc<TrustedDigests>>) -> Self {
        Self { digests, ..self }
    }

    /// With `disk`, blocks are kept on disk.
    pub(crate) fn keeping(self, disk: Option<DiskBlocks>) -> Self {
        Self {
            disk: disk.map(Arc::new),
            ..self
        }
    }

    /// The cache on disk, if there is one.
    pub(crate) fn disk(&self) -> Option<&DiskBlocks> {
        self.disk.as_deref()
    }

    /// The digests that payloads must have.
    pub(crate) fn digests(&self) -> Option<&Arc<TrustedDigests>> {
        self.digests.as_ref()
    }

    /// What a payload is compared with, even if checksums are trusted for blocks. None if there is nothing.
    fn full_check(&self, section: &Section) -> Result<Option<PayloadCheck>> {
        match &self.digests {
            Some(digests) => PayloadCheck::digest(digests, section).map(Some),
            None => Ok(section.header.as_ref().map(PayloadCheck::checksum)),
        }
    }

    /// As `full_check`, but none either if checksums are not to be compared.
    fn check(&self, section: &Section) -> Result<Option<PayloadCheck>> {
        match self.trusting && self.digests.is_none() {
            true => Ok(None),
            false => self.full_check(section),
        }
    }

    /// The error of a payload that is not what it must be.
    pub(crate) fn mismatch(&self, section: &Section) -> Error {
        match &self.digests {
            Some(_) => {
                let e = Error::corrupt(format!("{} does not have its digest", section.ty));
                in_section(e, section)
            }
            None => checksum_error(section),
        }
    }

    pub(crate) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    pub(crate) fn container(&self) -> &Arc<Container> {
        &self.container
    }

    pub(crate) fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Adds the place of the block's section to an error.
    pub(crate) fn in_block(&self, error: Error, block: BlockNo) -> Error {
        match self.container.block(block) {
            Some(section) => in_section(error, section),
            None => error,
        }
    }

    /// The section of a block, with its header, after checking that its length is plausible.
    pub(crate) fn block_section(&self, block: BlockNo) -> Result<Section> {
        let section = self.container.block(block).ok_or_else(|| {
            Error::corrupt(format!(
                "block {block} does not exist, the image has {} blocks",
                self.container.block_count()
            ))
        })?;
        if self.remote {
            self.announce([block]);
        }
        let section = self.with_header(section)?;
        let limit = if self.compression(&section)? == CompressionId::NONE {
            self.block_size
        } else {
            self.longest_payload()
        };
        if section.length > limit {
            let e = Error::Limit(format!(
                "a payload of {} bytes for a block of at most {}",
                section.length, self.block_size
            ));
            return Err(in_section(e, &section));
        }
        Ok(section)
    }

    /// Largest payload of a compressed block.
    fn longest_payload(&self) -> u64 {
        self.block_size + self.block_size / 2 + SLACK
    }

    /// Fetches a block into the cache on disk, unless it is there. Waits while the disk is slower.
    pub(crate) fn fetch_to_disk(&self, block: BlockNo) -> Result<()> {
        if let Some(disk) = self.disk().filter(|_| !self.is_on_disk(block)) {
            let section = self.block_section(block)?;
            self.read_vec(&section)?;
            disk.wait_for_room();
        }
        Ok(())
    }

    /// How many bytes all blocks have for each byte that is stored of them, about; at least 1.
    pub(crate) fn expansion(&self) -> f64 {
        if !self.remote {
            return 1.0;
        }
        let blocks = self.container.section_of_type(SectionType::BLOCK);
        let stored: u64 = blocks.map(|block| block.length).sum();
        let raw = u64::from(self.container.block_count()).saturating_mul(self.block_size);
        (raw as f64 / stored.max(1) as f64).max(1.0)
    }

    /// Whether the source is on a server.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote
    }

    /// Whether the stored bytes of a block need no more from a server than what is on its way.
    pub(crate) fn is_at_hand(&self, block: BlockNo) -> bool {
        self.is_on_disk(block) || self.is_coming(block)
    }

    /// Whether a server sends the stored bytes of a block, or has sent them, and they are still in memory.
    pub(crate) fn is_coming(&self, block: BlockNo) -> bool {
        let place = self.place(block);
        place.is_some_and(|place| self.source.is_coming(&place))
    }

    /// How many of these blocks, from the first one on, have at most so many stored bytes together.
    pub(crate) fn first_bytes(&self, blocks: &[BlockNo], most: u64) -> usize {
        let mut left = most;
        let fits = |block: &&BlockNo| {
            let length = self.container.block(**block).map_or(0, |b| b.length);
            let rest = left.checked_sub(length.min(self.longest_payload()));
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        blocks.iter().take_while(fits).count()
    }

    /// The range of the file that a block and its header have, at most as long as they may be.
    pub(crate) fn place(&self, block: BlockNo) -> Option<Range<u64>> {
        let section = self.container.block(block)?;
        let start = self.container.offset.checked_add(section.header_offset)?;
        let longest = (SectionHeader::LEN as u64).saturating_add(self.longest_payload());
        let end = self.container.file_offset(section);
        let end = end.checked_add(section.length)?;
        Some(start..end.min(start.saturating_add(longest)))
    }

    /// Whether a block is in the cache on disk.
    pub(crate) fn is_on_disk(&self, block: BlockNo) -> bool {
        let section = self.container.block(block);
        let there = |disk: &DiskBlocks| section.is_some_and(|section| disk.contains(section));
        self.disk().is_some_and(there)
    }

    /// Completes a section that is only known from the index.
    pub(crate) fn with_header(&self, section: &Section) -> Result<Section> {
        if section.compression.is_some() {
            return Ok(section.clone());
        }
        if let Some(disk) = self.disk()
            && let Some(header) = disk.header(section)
        {
            let read = |_, buf: &mut [u8]| {
                let start = header
                    .get(..buf.len())
                    .ok_or(io::ErrorKind::UnexpectedEof)?;
                buf.copy_from_slice(start);
                Ok(())
            };
            match self.container.load_header(&read, section.position) {
                Ok(loaded) => return Ok(loaded),
                Err(_) => disk.drop_damaged(section),
            }
        }
        let read = |at, buf: &mut [u8]| self.source.read_exact_at(at, buf);
        let loaded = self.container.load_header(&read, section.position);
        loaded
            .and_then(|loaded| {
                self.check_generation()?;
                Ok(loaded)
            })
            .map_err(|e| in_section(e, section))
    }

    /// Checks that no other generation is in the file in the place of this one. If an image is rolled back and then
    /// continued, another block can be where one of this generation was, with a right checksum in its header. But the index
    /// is behind all blocks, so it goes first. Nothing is read if nobody has written to the file.
    fn check_generation(&self) -> Result<()> {
        let index = self.container.sections.last();
        let index = index.filter(|s| s.ty == SectionType::SECTION_INDEX && s.header.is_some());
        let (Some(index), Some(opened)) = (index, self.revision) else {
            return Ok(());
        };
        let revision = self.source.revision();
        if revision.is_ok_and(|now| now == Some(opened)) {
            return Ok(());
        }
        let read = |at, buf: &mut [u8]| self.source.read_exact_at(at, buf);
        let now = (self.container).hidden_section(&read, index.ty, index.header_offset);
        if now.is_ok_and(|now| now.header == index.header) || !self.ends_like_an_image() {
            return Ok(());
        }
        Err(Error::corrupt(
            "the generation that was opened is not in the file any more",
        ))
    }

    /// Whether the file, as it is now, ends with the place of an index. Otherwise it is damaged, and other parts of it may
    /// still be right.
    fn ends_like_an_image(&self) -> bool {
        let pointer = || -> io::Result<Option<u64>> {
            let Some(now) = self.source.of_now()? else {
                return Ok(None);
            };
            let Some(at) = now.len()?.checked_sub(8) else {
                return Ok(None);
            };
            let mut pointer = [0; 8];
            now.read_exact_at(at, &mut pointer)?;
            Ok(Some(u64::from_le_bytes(pointer)))
        };
        let index = pointer().ok().flatten();
        index.is_some_and(|found| tail_pointer(found & ((1 << 48) - 1)) == found)
    }

    pub(crate) fn compression(&self, section: &Section) -> Result<CompressionId> {
        section
            .compression
            .ok_or_else(|| in_section(Error::corrupt("a header that was not read"), section))
    }

    /// Reads a payload into memory and verifies its XXH3 or its digest.
    pub(crate) fn read_vec(&self, section: &Section) -> Result<Vec<u8>> {
        self.read_reusing(section, Vec::new())
    }

    /// Verifies the XXH3 or the digest of a payload that is used in its place in the file, and computes the
    /// digests of its leaves. If the image has trusted digests of its leaves, nothing is read. Later reads compare these digests, so they return only verified bytes. `None` if
    /// there is no hash, or if it is not compared; then nothing is read.
    pub(crate) fn verify_in_leaves(&self, section: &Section) -> Result<Option<KnownLeaves>> {
        if let Some(digests) = &self.digests
            && let Some(leaves) = KnownLeaves::trusted(digests, section)?
        {
            return Ok(Some(leaves));
        }
        let Some(mut hasher) = self.check(section)? else {
            return Ok(None);
        };
        let mut leaves = LeafDigests::new(self.seed, section.length);
        self.stream_by(section, HASHED_AT_ONCE, |bytes| {
            hasher.update(bytes);
            leaves.update(bytes);
        })?;
        if hasher.matches() {
            Ok(Some(KnownLeaves::Made(leaves)))
        } else {
            Err(self.mismatch(section))
        }
    }

    /// An uncompressed payload, whose parts are loaded when they are needed. Filling new memory with
    /// all of it would take several times as long as verifying it. `None` if there is no hash.
    pub(crate) fn read_lazily(&self, section: &Section) -> Result<Option<LazyBytes>> {
        let len = usize::try_from(section.length).map_err(|_| {
            let e = Error::Limit(format!("{} bytes", section.length));
            in_section(e, section)
        })?;
        let Some(leaves) = self.verify_in_leaves(section)? else {
            return Ok(None);
        };
        let (payloads, section) = (self.clone(), section.clone());
        let load = move |range: Range<usize>| {
            // Parts are whole leaves.
            let mut part = Vec::new();
            let range = range.start as u64..range.end as u64;
            payloads.read_leaves(&section, Some(&leaves), range, true, &mut part)?;
            Ok(part.into_boxed_slice())
        };
        Ok(Some(LazyBytes::new(len, load)))
    }

    /// Like [`Payloads::read_vec`], with reused memory.
    pub(crate) fn read_reusing(&self, section: &Section, used: Vec<u8>) -> Result<Vec<u8>> {
        let mut payload = if used.capacity() as u64 >= section.length {
            used
        } else {
            // Before the buffer grows.
            drop(used);
            memory_for(section, section.length)?
        };
        // Fits into the capacity.
        payload.resize(section.length as usize, 0);
        self.read_into(section, &mut payload)?;
        Ok(payload)
    }

    /// Reads a payload, and verifies its digest, or its XXH3 unless there is none, or it is not to be compared.
    /// `payload` must have the length of the payload.
    pub(crate) fn read_into(&self, section: &Section, payload: &mut [u8]) -> Result<()> {
        let disk = self.disk().filter(|_| section.ty == SectionType::BLOCK);
        if let Some(disk) = disk
            && let Some(entry) = disk.find(section)
        {
            let read = |at, piece: &mut [u8]| entry.read_exact_at(at, piece);
            // What is on the disk of this machine may be damaged there, whatever the user trusts.
            let check = self.full_check(section)?;
            if check.is_some() && matches!(fill(payload, check, &read), Ok(true)) {
                return Ok(());
            }
            disk.drop_damaged(section);
        }
        let check = self.check(section)?;
        let verified = check.is_some();
        let start = self.container.file_offset(section);
        if !self.source.is_remote() {
            // It is hashed in pieces while the rest arrives.
            let whole = start..start.saturating_add(section.length);
            self.source.will_need(std::slice::from_ref(&whole));
        }
        let read =
            |at, piece: &mut [u8]| self.source.read_exact_at(start.saturating_add(at), piece);
        if !fill(payload, check, &read).map_err(|e| in_section(e.into(), section))? {
            return Err(self.mismatch(section));
        }
        if let Some(disk) = disk.filter(|_| verified) {
            disk.insert(section, payload);
        }
        Ok(())
    }

    /// Reads a payload piece by piece, for checking its hashes and for copying it out.
    pub(crate) fn stream(&self, section: &Section, sink: impl FnMut(&[u8])) -> Result<()> {
        self.stream_by(section, PIECE, sink)
    }

    fn stream_by(&self, section: &Section, piece: usize, sink: impl FnMut(&[u8])) -> Result<()> {
        let start = self.container.file_offset(section);
        let mut buffer = vec![0; piece.min(usize::try_from(section.length).unwrap_or(piece))];
        stream(
            self.source.as_ref(),
            start,
            section.length,
            &mut buffer,
            sink,
        )
        .map_err(|e| in_section(e.into(), section))
    }

    /// Whether the XXH3 of a section, or its digest, is correct, without keeping the payload. True without
    /// hashes.
    pub(crate) fn checksum_is_right(&self, section: &Section) -> Result<bool> {
        let Some(mut hasher) = self.full_check(section)? else {
            return Ok(true);
        };
        self.stream(section, |bytes| hasher.update(bytes))?;
        Ok(hasher.matches())
    }

    /// Decompresses a verified payload step by step, or in parts. It touches memory only when there is
    /// data for it, so a wrong announced size takes no memory.
    pub(crate) fn decompress(
        &self,
        section: &Section,
        payload: Vec<u8>,
        limit: u64,
    ) -> Result<Vec<u8>> {
        let id = self.compression(section)?;
        if id == CompressionId::NONE {
            return Ok(payload);
        }
        decompress_growing(id, payload, limit).map_err(|e| in_section(e, section))
    }

    /// Prepares to decompress a verified payload of separate parts when they are needed. Others are decompressed as by
    /// [`Payloads::decompress`].
    pub(crate) fn decompress_when_needed(
        &self,
        section: &Section,
        payload: Vec<u8>,
        limit: u64,
    ) -> Result<FrozenBytes> {
        let id = self.compression(section)?;
        if id == CompressionId::NONE {
            return Ok(payload.into());
        }
        let decoder = Decoder::new(id, payload, limit).map_err(|e| in_section(e, section))?;
        if by_parts(&decoder) {
            return decode_when_needed(decoder, section).map(FrozenBytes::from);
        }
        let whole = decode_growing(decoder).map_err(|e| in_section(e, section))?;
        Ok(whole.into())
    }
}

/// Whether the parts of a payload are decoded separately.
fn by_parts(decoder: &Decoder) -> bool {
    (2..=MOST_PARTS).contains(&decoder.parts()) && BY_PARTS.contains(&decoder.raw_size())
}

/// Fills a payload in pieces, each from an offset in the payload on. False if it is not what it must be.
fn fill(
    payload: &mut [u8],
    mut check: Option<PayloadCheck>,
    read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<bool> {
    let mut at = 0;
    for piece in payload.chunks_mut(HASHED_AT_ONCE) {
        read(at, piece)?;
        if let Some(check) = &mut check {
            check.update(piece);
        }
        at += piece.len() as u64;
    }
    Ok(check.is_none_or(PayloadCheck::matches))
}

/// Reads `length` bytes of `source` from `start` on, in pieces of the size of `buffer`.
pub(crate) fn stream(
    source: &dyn Source,
    start: u64,
    length: u64,
    buffer: &mut [u8],
    mut sink: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let n = usize::try_from(length - done).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = buffer.get_mut(..n).unwrap_or_default();
        source.read_exact_at(start.saturating_add(done), piece)?;
        sink(piece);
        done = done.saturating_add(n as u64);
    }
    Ok(())
}

/// Memory for a payload, or an error where `vec!` would abort. It gets zeroed memory from the system,
/// so only bytes that are read are touched. `len` is at least the length of the payload.
pub(crate) fn memory_for(section: &Section, len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| {
        let e = Error::Limit(format!("no memory for {} bytes", section.length));
        in_section(e, section)
    })?;
    Ok(vec![0; len])
}

fn decompress_growing(id: CompressionId, payload: Vec<u8>, limit: u64) -> Result<Vec<u8>> {
    decode_growing(Decoder::new(id, payload, limit)?)
}

fn decode_growing(mut decoder: Decoder) -> Result<Vec<u8>> {
    let raw_size = usize::try_from(decoder.raw_size())
        .map_err(|_| Error::Limit(format!("{} bytes of data", decoder.raw_size())))?;
    if by_parts(&decoder) {
        let threads = available_parallelism().map_or(1, NonZero::get);
        let threads = NonZero::new(threads.min(PART_DECODERS)).unwrap_or(NonZero::<usize>::MIN);
        return decoder.decode_by_parts(threads);
    }
    let mut out = Vec::new();
    while out.len() < raw_size {
        let at = out.len();
        let step = if decoder.is_incremental() {
            PIECE.min(raw_size - at)
        } else {
            raw_size
        };
        out.try_reserve(step)
            .map_err(|_| Error::Limit(format!("no memory for {raw_size} bytes")))?;
        out.resize(at + step, 0);
        decoder.fill(&mut out[at..])?;
    }
    decoder.finish()?;
    out.shrink_to_fit();
    Ok(out)
}

/// The error of a payload that has changed since its checksum was verified.
fn changed(section: &Section) -> Error {
    let what = format!("{} has changed since it was verified", section.ty);
    let e = io::Error::new(io::ErrorKind::InvalidData, what);
    in_section(e.into(), section)
}

pub(crate) fn checksum_error(section: &Section) -> Error {
    let e = Error::corrupt(format!("checksum error in section: {}", section.ty));
    in_section(e, section)
}
