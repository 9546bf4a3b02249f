//! Files whose contents are in the image that the build continues.
//!
//! A file that size and time show to be unchanged is not read. Any other file is hashed if the image
//! has contents of its size. These contents are hashed, too. If the hash is not cryptographic, the
//! bytes are also compared.

use std::collections::{HashMap, HashSet};

use twox_hash::XxHash3_64;

use super::{Hasher, PREFIX, PREFIX_FILE};
use crate::base::{BaseContent, BaseImage};
use crate::error::Result;
use crate::hash::{Digest, FileHash};
use crate::progress::Level;

/// Bytes of an old content that are read at once.
const STEP: usize = 256 << 10;

/// What is known of the image that the build continues.
#[derive(Default)]
pub(super) struct InBase<'a> {
    image: Option<&'a dyn BaseImage>,
    /// By file.
    unchanged: HashMap<u32, BaseContent>,
    /// By size and hash.
    by_digest: HashMap<(u64, Digest), BaseContent>,
}

impl<'a> InBase<'a> {
    /// Looks up all files of a tree.
    pub(super) fn look_up(hasher: &Hasher<'a>) -> Self {
        let Some(image) = hasher.context.base else {
            return Self::default();
        };
        let tree = hasher.tree;
        let find = |file: u32| {
            let listed = &tree.files[file as usize];
            let mtime = *tree.mtimes.get(listed.inode as usize)?;
            let found = image.unchanged(&tree.file_path(file), listed.size, mtime)?;
            Some((file, found))
        };
        let files = 0..tree.files.len() as u32;
        Self {
            image: Some(image),
            unchanged: files.filter_map(find).collect(),
            by_digest: HashMap::new(),
        }
    }

    /// The content of a file that need not be read.
    pub(super) fn unchanged(&self, file: u32) -> Option<BaseContent> {
        self.unchanged.get(&file).copied()
    }

    /// Old contents of a size.
    pub(super) fn of_size(&self, size: u64) -> &'a [BaseContent] {
        self.image.map_or(&[], |image| image.of_size(size))
    }

    /// Whether an old content of this size may begin with bytes that have this hash.
    pub(super) fn has_prefix(&self, size: u64, prefix: u64) -> bool {
        let mut same = self.of_size(size).iter();
        same.any(|&content| self.prefix(content).is_none_or(|p| p == prefix))
    }

    /// Hash of the first bytes. None if they cannot be read.
    fn prefix(&self, content: BaseContent) -> Option<u64> {
        let mut start = [0; PREFIX];
        let n = self.image?.read_at(content, 0, &mut start).ok()?;
        Some(XxHash3_64::oneshot(start.get(..n)?))
    }

    /// Hashes the old contents that have the size of one of the files that will be hashed.
    pub(super) fn hash(
        &mut self,
        hasher: &Hasher<'_>,
        hash: FileHash,
        jobs: &[u32],
        prefixes: &HashMap<u32, u64>,
    ) -> Result<()> {
        let Some(image) = self.image else {
            return Ok(());
        };
        let mut wanted: Vec<BaseContent> = Vec::new();
        let mut sizes = HashSet::new();
        let starts: HashSet<(u64, u64)> = jobs
            .iter()
            .map(|file| (hasher.size(*file), prefixes.get(file).copied().unwrap_or(0)))
            .collect();
        for &file in jobs {
            let size = hasher.size(file);
            if !sizes.insert(size) {
                continue;
            }
            let large = size >= PREFIX_FILE;
            wanted.extend(self.of_size(size).iter().filter(|&&content| {
                let start = |prefix| starts.contains(&(size, prefix));
                !large || self.prefix(content).is_none_or(start)
            }));
        }
        // Near each other in the image.
        wanted.sort_unstable();
        let wanted: Vec<u32> = wanted.into_iter().map(|content| content.0).collect();
        let mut found: Vec<((u64, Digest), BaseContent)> = Vec::new();
        let mut failed = 0_usize;
        hasher.context.scan(
            &wanted,
            || vec![0; STEP],
            |buffer, content| {
                let context = hasher.context;
                let (mut state, mut at) = (hash.hasher(), 0);
                loop {
                    context.check_stop()?;
                    match image.read_at(BaseContent(content), at, buffer) {
                        Ok(0) => return Ok(Some((at, state.finish()))),
                        Ok(n) => {
                            state.update(buffer.get(..n).unwrap_or_default());
                            at += n as u64;
                        }
                        Err(_) => return Ok(None),
                    }
                }
            },
            |content, key: Result<_>| {
                match key? {
                    Some(key) => found.push((key, BaseContent(content))),
                    None => failed += 1,
                }
                Ok(())
            },
        )?;
        if failed > 0 {
            hasher.context.progress.log(
                Level::Warn,
                &format!(
                    "{failed} content(s) of the old image cannot be read: they are damaged, and are not \
                     compared with new files"
                ),
            );
        }
        for (key, content) in found {
            // The first one, if there are several.
            self.by_digest.entry(key).or_insert(content);
        }
        Ok(())
    }

    /// The old content of a file with this hash. `equal` compares the file with a content, if hashes are
    /// not enough.
    pub(super) fn with_digest(&self, size: u64, digest: &Digest) -> Option<BaseContent> {
        if self.by_digest.is_empty() {
            return None;
        }
        self.by_digest.get(&(size, digest.clone())).copied()
    }

    /// Whether bytes are those at an offset of an old content.
    pub(super) fn same(
        &self,
        content: BaseContent,
        mut at: u64,
        mut data: &[u8],
        buffer: &mut Vec<u8>,
    ) -> bool {
        let Some(image) = self.image else {
            return false;
        };
        buffer.resize(STEP, 0);
        while !data.is_empty() {
            let part = data.len().min(STEP);
            let Some(old) = buffer.get_mut(..part) else {
                return false;
            };
            match image.read_at(content, at, old) {
                Ok(n) if n > 0 && data.get(..n) == old.get(..n) => {
                    at += n as u64;
                    data = data.get(n..).unwrap_or_default();
                }
                _ => return false,
            }
        }
        true
    }
}
