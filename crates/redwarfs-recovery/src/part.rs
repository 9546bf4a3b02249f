//! The recovery data of a part of a file: a section, or a sidecar.

use std::sync::Arc;

use redwarfs_format::recovery::{HashPage, HeaderPage, PAGE, shard_hash};
use redwarfs_io::{Medium, Source};

use crate::error::Result;
use crate::range::Range;

/// A file that holds the recovery data of another one.
#[derive(Debug, Clone)]
pub struct Sidecar {
    source: Arc<dyn Source>,
    medium: Option<Arc<dyn Medium>>,
}

impl Sidecar {
    /// A sidecar that is only read: damage of its own stays.
    #[must_use]
    pub fn read_only(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            medium: None,
        }
    }

    /// A sidecar that a repair may repair, too.
    #[must_use]
    pub fn writable(medium: Arc<dyn Medium>) -> Self {
        Self {
            source: Arc::clone(&medium) as Arc<dyn Source>,
            medium: Some(medium),
        }
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.source
    }

    pub(crate) fn medium(&self) -> Option<&dyn Medium> {
        self.medium.as_deref()
    }
}

/// Recovery data of a range of a file, and where both are.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) header: HeaderPage,
    /// Where the image starts in the file; below 0 if the file has lost its start.
    pub(crate) image: i64,
    /// What the positions of recovery data count from: the image, or the start of the sidecar, which may have lost
    /// its own.
    pub(crate) base: i64,
    /// Where the recovery data is, if it is not in the file.
    pub(crate) sidecar: Option<Sidecar>,
}

impl Part {
    /// The position in the file of an offset of the image. None if the file does not have it.
    pub(crate) fn position(&self, offset: u64) -> Option<u64> {
        self.image.checked_add_unsigned(offset)?.try_into().ok()
    }

    /// The position of a piece of recovery data in the file that has it.
    pub(crate) fn place(&self, offset: u64) -> Option<u64> {
        self.base.checked_add_unsigned(offset)?.try_into().ok()
    }

    /// What the recovery data is in.
    pub(crate) fn store<'s>(&'s self, file: &'s dyn Source) -> &'s dyn Source {
        match &self.sidecar {
            Some(sidecar) => sidecar.source(),
            None => file,
        }
    }

    pub(crate) fn range<'s>(&self, source: &'s dyn Source) -> Range<'s> {
        let geometry = self.header.geometry;
        Range {
            source,
            geometry,
            start: self.image.saturating_add(geometry.start()),
            blanks: self.header.blanks,
        }
    }

    /// Where the protected range ends in the file.
    pub(crate) fn end(&self) -> u64 {
        let end = self.header.geometry.end().unwrap_or(i64::MAX);
        u64::try_from(self.image.saturating_add(end)).unwrap_or(0)
    }

    /// Whether what is in front of the image is as long as when the data was made. Otherwise it is something
    /// else, which is neither compared nor changed.
    pub(crate) fn keeps_front(&self) -> bool {
        u64::try_from(self.image) == Ok(self.header.leading)
    }

    /// Whether a data shard begins in front of the image, where something else is now.
    pub(crate) fn is_foreign(&self, shard: u64) -> bool {
        let geometry = self.header.geometry;
        let (at, _) = geometry.data_range(shard);
        !self.keeps_front() && geometry.start().saturating_add_unsigned(at) < 0
    }

    /// The page at an offset of the recovery data, if it can be read.
    pub(crate) fn page(&self, file: &dyn Source, at: u64) -> Option<Box<[u8; PAGE]>> {
        page_at(self.store(file), self.place(at)?)
    }

    /// Reads a parity shard. False if that is not possible.
    pub(crate) fn read_parity(&self, file: &dyn Source, shard: u64, out: &mut [u8]) -> bool {
        let at = self.place(self.header.parity_at(shard));
        at.is_some_and(|at| self.store(file).read_exact_at(at, out).is_ok())
    }

    /// The checksums of all shards, and the number of damaged pages of them.
    pub(crate) fn hashes(&self, file: &dyn Source) -> Result<(Vec<Option<u64>>, u64)> {
        let HeaderPage {
            hashes_a,
            hashes_b,
            hash_pages,
            ..
        } = self.header;
        let shards = usize::try_from(self.header.geometry.all_shards()).unwrap_or(usize::MAX);
        let mut hashes = Vec::new();
        hashes.try_reserve_exact(shards).map_err(|_| {
            redwarfs_format::Error::Limit(format!("no memory for {shards} checksums"))
        })?;
        hashes.resize(shards, None);
        let mut damaged = 0;
        for copy in [hashes_a, hashes_b] {
            for number in 0..hash_pages as u32 {
                let at = copy + u64::from(number) * PAGE as u64;
                let page = self.page(file, at);
                let good = page.is_some_and(|p| HashPage::read(&p, number, copy, &mut hashes));
                damaged += u64::from(!good);
            }
        }
        Ok((hashes, damaged))
    }
}

/// The page at a position of a file, if it can be read.
pub(crate) fn page_at(source: &dyn Source, at: u64) -> Option<Box<[u8; PAGE]>> {
    let mut page = Box::new([0; PAGE]);
    source.read_exact_at(at, page.as_mut_slice()).ok()?;
    Some(page)
}

/// Whether the checksum of a shard is known.
pub(crate) fn is_known(hashes: &[Option<u64>], shard: u64) -> bool {
    let at = usize::try_from(shard).ok();
    at.and_then(|at| hashes.get(at))
        .is_some_and(Option::is_some)
}

pub(crate) fn matches(hashes: &[Option<u64>], shard: u64, bytes: &[u8]) -> bool {
    let known = usize::try_from(shard).ok().and_then(|at| *hashes.get(at)?);
    known == Some(shard_hash(bytes))
}
