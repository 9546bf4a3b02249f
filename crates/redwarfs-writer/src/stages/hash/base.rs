//! Files whose contents are in the image that the build continues.
//!
//! A file that size and time show to be unchanged is not read. Any other file is hashed if the image
//! has contents of its size. These contents are hashed, too. If the hash is not cryptographic, the
//! bytes are also compared.
//!
//! A file that keeps its size and its first bytes, such as a database, may have dozens of old versions. So the
//! bytes of old contents that are hashed have a limit, see [`Hashing`].
//!
//! Memory: 24 bytes for each large old content that has the size of a new file, up to [`MOST_PREFIXES`].

use std::collections::{BTreeSet, HashMap};

use twox_hash::XxHash3_64;

use super::{Hasher, PREFIX, PREFIX_FILE};
use crate::base::{BaseContent, BaseImage};
use crate::context::Context;
use crate::error::Result;
use crate::hash::{Digest, FileHash};
use crate::progress::Level;

/// Bytes of an old content that are read at once.
const STEP: usize = 256 << 10;
/// Old contents whose first bytes are read. Any others count as if they began like the new file.
const MOST_PREFIXES: usize = 1 << 16;
/// Old contents that are hashed for each new file with their size and first bytes.
const OLD_PER_NEW: u64 = 4;
/// Bytes of further old contents that are hashed, the shortest ones first (16 MiB).
const FURTHER: u64 = 16 << 20;

/// What is known of the image that the build continues.
#[derive(Default)]
pub(super) struct InBase<'a> {
    image: Option<&'a dyn BaseImage>,
    /// By file.
    unchanged: HashMap<u32, BaseContent>,
    /// By size and hash.
    by_digest: HashMap<(u64, Digest), BaseContent>,
    /// Hashes of the first bytes of old contents. None for those that cannot be read.
    prefixes: HashMap<BaseContent, Option<u64>>,
}

/// Chooses old contents to hash: at most [`OLD_PER_NEW`] bytes of them for each byte of the files that are
/// hashed, and [`FURTHER`].
#[derive(Default)]
struct Hashing {
    /// How many more contents with a size and a prefix are hashed in any case. Those with an unknown prefix share
    /// a number.
    left: HashMap<(u64, Option<u64>), u64>,
    wanted: Vec<BaseContent>,
    further: Vec<(u64, BaseContent)>,
}

impl Hashing {
    fn new_file(&mut self, size: u64, prefix: u64) {
        for key in [(size, Some(prefix)), (size, None)] {
            *self.left.entry(key).or_default() += OLD_PER_NEW;
        }
    }

    /// The next content. The newest ones come first.
    fn old_content(&mut self, content: BaseContent, size: u64, prefix: Option<u64>) {
        match self.left.get_mut(&(size, prefix)) {
            None => {}
            Some(0) => self.further.push((size, content)),
            Some(left) => {
                *left -= 1;
                self.wanted.push(content);
            }
        }
    }

    /// The contents to hash, near each other in the image, and how many are left out.
    fn chosen(mut self) -> (Vec<u32>, usize) {
        self.further.sort_unstable();
        let mut bytes = 0_u64;
        let fits = |(size, _): &&(u64, BaseContent)| {
            bytes = bytes.saturating_add(*size);
            bytes <= FURTHER
        };
        let further = self.further.iter().take_while(fits);
        let chosen: Vec<BaseContent> = further.map(|(_, content)| *content).collect();
        let left_out = self.further.len() - chosen.len();
        self.wanted.extend(chosen);
        self.wanted.sort_unstable();
        let numbers = self.wanted.into_iter().map(|content| content.0);
        (numbers.collect(), left_out)
    }
}

impl<'a> InBase<'a> {
    /// Looks up all files of a tree.
    pub(super) fn look_up(hasher: &Hasher<'a>) -> Self {
        let Some(image) = hasher.context.base else {
            return Self::default();
        };
        let tree = hasher.tree;
        let find = |file: u32| {
            let listed = tree.stamp(file);
            let path = tree.file_path(file);
            let stored = hasher.context.source.stored(&path);
            let found = stored.or_else(|| image.unchanged(&path, listed.size, listed.mtime))?;
            Some((file, found))
        };
        let files = 0..tree.files.len() as u32;
        Self {
            image: Some(image),
            unchanged: files.filter_map(find).collect(),
            ..Self::default()
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
    pub(super) fn has_prefix(
        &mut self,
        context: Context<'_>,
        size: u64,
        prefix: u64,
    ) -> Result<bool> {
        for &content in self.of_size(size) {
            context.check_stop()?;
            if self.prefix(content).is_none_or(|p| p == prefix) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Hash of the first bytes. None if it is not known.
    fn prefix(&mut self, content: BaseContent) -> Option<u64> {
        if let Some(known) = self.prefixes.get(&content) {
            return *known;
        }
        if self.prefixes.len() >= MOST_PREFIXES {
            return None;
        }
        let mut start = [0; PREFIX];
        let read = self.image?.read_at(content, 0, &mut start).ok();
        let prefix = read.and_then(|n| start.get(..n)).map(XxHash3_64::oneshot);
        self.prefixes.insert(content, prefix);
        prefix
    }

    /// Hashes old contents that have the size of one of the files that will be hashed.
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
        let mut hashing = Hashing::default();
        let mut sizes = BTreeSet::new();
        for &file in jobs {
            let size = hasher.size(file);
            sizes.insert(size);
            hashing.new_file(size, prefixes.get(&file).copied().unwrap_or(0));
        }
        for size in sizes {
            for &content in self.of_size(size) {
                hasher.context.check_stop()?;
                let prefix = match size >= PREFIX_FILE {
                    true => self.prefix(content),
                    false => Some(0),
                };
                hashing.old_content(content, size, prefix);
            }
        }
        self.prefixes = HashMap::new();
        let (wanted, left_out) = hashing.chosen();
        if left_out > 0 {
            hasher.context.progress.log(
                Level::Debug,
                &format!("{left_out} content(s) of the old image are not compared with new files of their size"),
            );
        }
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
