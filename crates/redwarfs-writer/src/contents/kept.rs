//! Bytes of small files, kept from the stage that first reads them until the data is in blocks.
//!
//! The bytes lie one after the other in large chunks of memory. An allocation for each file would
//! double the cost of files of a few bytes and fragment the heap. In addition, the table takes 8 bytes
//! for each file of the tree.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files up to this size are kept.
const SMALL_FILE: u64 = 1 << 16;
/// Bytes of a chunk of memory. Allocators map chunks of this size separately, and return them to the
/// system when they are free. Unused parts are not resident.
const CHUNK: usize = 32 << 20;
/// Bits of a size, and of a place in a chunk.
const SIZE_BITS: u32 = SMALL_FILE.trailing_zeros() + 1;
const OFFSET_BITS: u32 = CHUNK.trailing_zeros();
/// One part in this number may be lost to what turned out to be a duplicate.
const LOST: u64 = 8;

/// Where the bytes of a file are: chunk, offset and size. Never 0, since it has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptPlace(u64);

impl KeptPlace {
    fn new(chunk: usize, offset: usize, size: usize) -> Self {
        let high = ((chunk as u64) << OFFSET_BITS) | offset as u64;
        Self((high << SIZE_BITS) | size as u64)
    }

    fn chunk(self) -> usize {
        (self.0 >> (SIZE_BITS + OFFSET_BITS)) as usize
    }

    fn size(self) -> usize {
        (self.0 & ((1 << SIZE_BITS) - 1)) as usize
    }

    fn range(self) -> Range<usize> {
        let start = (self.0 >> SIZE_BITS) as usize % CHUNK;
        start..start + self.size()
    }
}

/// Chunks, the last of which is being filled.
#[derive(Debug, Default)]
struct Chunks {
    list: Vec<Vec<u8>>,
    /// Number of the first one.
    first: usize,
    /// Bytes that further chunks may have.
    left: u64,
}

impl Chunks {
    /// `None` if there is no room, or nothing to keep.
    fn push(&mut self, bytes: &[u8]) -> Option<KeptPlace> {
        if bytes.is_empty() || bytes.len() as u64 > SMALL_FILE {
            return None;
        }
        let room = |chunk: &Vec<u8>| chunk.capacity().min(CHUNK) - chunk.len();
        if (self.list.last()).is_none_or(|chunk| room(chunk) < bytes.len()) {
            let size = self.left.min(CHUNK as u64);
            if size < bytes.len() as u64 {
                return None;
            }
            self.left -= size;
            self.list.push(Vec::with_capacity(size as usize));
        }
        let at = self.first + self.list.len() - 1;
        let chunk = self.list.last_mut()?;
        let place = KeptPlace::new(at, chunk.len(), bytes.len());
        chunk.extend_from_slice(bytes);
        Some(place)
    }

    fn get(&self, place: KeptPlace) -> Option<&[u8]> {
        let chunk = place.chunk().checked_sub(self.first)?;
        self.list.get(chunk)?.get(place.range())
    }
}

/// Takes bytes from several threads.
#[derive(Debug)]
pub(crate) struct Keeper(Mutex<Chunks>);

impl Keeper {
    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if there is no more room, or nothing to keep.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Option<KeptPlace> {
        self.chunks().push(bytes)
    }

    /// Whether the bytes at two places of this keeper are the same.
    pub(crate) fn same(&self, a: KeptPlace, b: KeptPlace) -> bool {
        let chunks = self.chunks();
        let both = chunks.get(a).zip(chunks.get(b));
        both.is_some_and(|(a, b)| a == b)
    }
}

/// Bytes by file.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// By file; 0 if there is nothing.
    places: Vec<u64>,
    chunks: Chunks,
}

impl Kept {
    /// For this number of files and at most this number of bytes.
    pub(crate) fn new(files: usize, budget: u64) -> Self {
        Self {
            places: vec![0; files],
            chunks: Chunks {
                left: budget,
                ..Chunks::default()
            },
        }
    }

    pub(crate) fn place(&self, file: u32) -> Option<KeptPlace> {
        let place = self.places.get(file as usize).copied();
        place.filter(|&place| place != 0).map(KeptPlace)
    }

    /// The bytes of a file.
    pub(crate) fn get(&self, file: u32) -> Option<&[u8]> {
        self.chunks.get(self.place(file)?)
    }

    /// Memory of another use that counts in addition, until it is taken [back](Self::take).
    pub(crate) fn keeper(&self) -> Keeper {
        Keeper(Mutex::new(Chunks {
            list: Vec::new(),
            first: self.chunks.first + self.chunks.list.len(),
            left: self.chunks.left,
        }))
    }

    /// Remembers where the bytes of a file are.
    pub(crate) fn put(&mut self, file: u32, place: KeptPlace) {
        if let Some(of_file) = self.places.get_mut(file as usize) {
            *of_file = place.0;
        }
    }

    /// Adds what a keeper has. Only that is here to stay of which the place was [put](Self::put).
    pub(crate) fn take(&mut self, keeper: Keeper) {
        let mut more = keeper
            .0
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        self.chunks.left = more.left;
        self.chunks.list.append(&mut more.list);
        let all: u64 = self.chunks.list.iter().map(|c| c.len() as u64).sum();
        let used = self
            .places
            .iter()
            .map(|&place| KeptPlace(place).size() as u64);
        let used: u64 = used.sum();
        if all - used.min(all) > all / LOST {
            self.compact();
        }
    }

    /// Drops the bytes that are of no file.
    fn compact(&mut self) {
        let mut files: Vec<u32> = (0u32..)
            .zip(&self.places)
            .filter_map(|(file, &place)| (place != 0).then_some(file))
            .collect();
        let place = |places: &[u64], file: u32| KeptPlace(places[file as usize]);
        files.sort_unstable_by_key(|&file| self.places[file as usize]);
        let mut old = std::mem::take(&mut self.chunks.list);
        let sizes = old.iter().map(|chunk| chunk.capacity().min(CHUNK) as u64);
        self.chunks.left = self.chunks.left.saturating_add(sizes.sum());
        self.chunks.first = 0;
        let mut at = 0;
        for file in files {
            let from = place(&self.places, file);
            while at < from.chunk() {
                old[at] = Vec::new();
                at += 1;
            }
            let bytes = old[at].get(from.range()).unwrap_or_default();
            // There was room for it and for more.
            let to = self.chunks.push(bytes).map_or(0, |to| to.0);
            self.places[file as usize] = to;
        }
    }

    /// Prepares for use by several threads. Each thread [releases](SharedKept::release) the files that
    /// it has finished.
    pub(crate) fn share(self) -> SharedKept {
        let mut users = vec![0; self.chunks.list.len()];
        for &place in self.places.iter().filter(|&&place| place != 0) {
            if let Some(users) = users.get_mut(KeptPlace(place).chunk()) {
                *users += 1;
            }
        }
        let chunks = self.chunks.list.into_iter().zip(users);
        let chunks = chunks.map(|(bytes, users)| SharedChunk {
            bytes: Mutex::new((users > 0).then(|| Arc::new(bytes))),
            users: AtomicUsize::new(users),
        });
        SharedKept {
            places: self.places,
            chunks: chunks.collect(),
        }
    }
}

/// Bytes by file that are given up chunk by chunk, when all files of a chunk are released.
#[derive(Debug)]
pub(crate) struct SharedKept {
    places: Vec<u64>,
    chunks: Vec<SharedChunk>,
}

#[derive(Debug)]
struct SharedChunk {
    bytes: Mutex<Option<Arc<Vec<u8>>>>,
    /// Files that were not released.
    users: AtomicUsize,
}

impl SharedChunk {
    fn bytes(&self) -> MutexGuard<'_, Option<Arc<Vec<u8>>>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a file.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    chunk: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Deref for KeptBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.chunk.get(self.range.clone()).unwrap_or_default()
    }
}

impl SharedKept {
    fn find(&self, file: u32) -> Option<(KeptPlace, &SharedChunk)> {
        let place = self.places.get(file as usize).copied();
        let place = place.filter(|&place| place != 0).map(KeptPlace)?;
        Some((place, self.chunks.get(place.chunk())?))
    }

    /// The bytes of a file.
    pub(crate) fn get(&self, file: u32) -> Option<KeptBytes> {
        let (place, chunk) = self.find(file)?;
        let range = place.range();
        let chunk = chunk.bytes().clone()?;
        Some(KeptBytes { chunk, range })
    }

    /// The bytes of a file are not needed any longer. Call at most once for each file.
    pub(crate) fn release(&self, file: u32) {
        if let Some((_, chunk)) = self.find(file)
            && chunk.users.fetch_sub(1, Ordering::Relaxed) == 1
        {
            chunk.bytes().take();
        }
    }

    /// The bytes of a file must not be used.
    pub(crate) fn forget(&mut self, file: u32) {
        if let Some(place) = self.places.get_mut(file as usize) {
            *place = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(file: u32) -> Vec<u8> {
        vec![file as u8; 1 + (file as usize * 7919) % SMALL_FILE as usize]
    }

    #[test]
    fn bytes_are_found_until_they_are_released() {
        let mut kept = Kept::new(3000, 128 << 20);
        let keeper = kept.keeper();
        for file in 0..2400 {
            let place = keeper.keep(&bytes(file)).unwrap();
            assert!(keeper.same(place, place));
            // Every other one is a duplicate.
            if file % 2 == 0 {
                kept.put(file, place);
            }
        }
        kept.take(keeper);
        let before = kept.chunks.list.len();
        assert_eq!(before, 2, "half of 79 MB");
        let keeper = kept.keeper();
        for file in 2400..2500 {
            kept.put(file, keeper.keep(&bytes(file)).unwrap());
        }
        kept.take(keeper);
        for file in 0..3000 {
            let there = file < 2400 && file % 2 == 0 || (2400..2500).contains(&file);
            let expected = bytes(file);
            assert_eq!(kept.get(file), there.then_some(&expected[..]), "{file}");
        }
        let mut shared = kept.share();
        let first = shared.get(0).unwrap();
        for file in (0..2500).filter(|&file| file != 2498) {
            let expected = (file >= 2400 || file % 2 == 0).then(|| bytes(file));
            assert_eq!(shared.get(file).as_deref(), expected.as_deref());
            shared.release(file);
        }
        assert!(shared.get(0).is_none());
        assert_eq!(*first, *bytes(0));
        assert_eq!(shared.get(2498).as_deref(), Some(&bytes(2498)[..]));
        shared.forget(2498);
        assert!(shared.get(2498).is_none());
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let most = (CHUNK + 100_000) as u64;
        let mut kept = Kept::new(1000, most);
        let keeper = kept.keeper();
        assert_eq!(keeper.keep(b""), None);
        assert_eq!(keeper.keep(&vec![1; SMALL_FILE as usize + 1]), None);
        for file in 0..1000 {
            if let Some(place) = keeper.keep(&[file as u8; 60_000]) {
                kept.put(file, place);
            }
        }
        kept.take(keeper);
        let files = CHUNK / 60_000 + 1;
        assert!((0..1000).all(|file| kept.get(file).is_some() == ((file as usize) < files)));
        assert!(kept.keeper().keep(&[0; 40_001]).is_none());
    }
}
