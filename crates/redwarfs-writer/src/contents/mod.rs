//! The data that the stages hand on: contents, fragments, and bytes of small files.
//!
//! A *content* is the data of one file, or of several equal files. An *item* is the part of a content
//! that goes to one stream. No module in here imports a stage.

mod kept;
mod stored;

use std::ops::Range;

use crate::base::BaseContent;
use crate::hash::Digest;
use crate::settings::StreamSettings;

pub(crate) use self::kept::{Keeper, Kept, KeptPlace, SharedKept};
pub(crate) use self::stored::{Chunk, ChunkRange, HOLE, MOST_BLOCKS, Stored, StoredValues};

/// A distinct content and the files that have it. 40 bytes each.
#[derive(Debug)]
pub(crate) struct Content {
    /// Size as listed.
    pub(crate) size: u64,
    /// Files with this content in order of discovery, never empty.
    pub(crate) files: Files,
    pub(crate) origin: Origin,
    /// What it consists of: stream and size. `None` if it is all in one stream.
    #[expect(
        clippy::box_collection,
        reason = "it is rare, and makes the usual case smaller"
    )]
    pub(crate) parts: Option<Box<Vec<(u32, u64)>>>,
}

/// Where the data of a content comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From its files.
    Files,
    /// From nowhere: reading has failed and was reported. It is stored empty.
    Failed,
    /// It is in the image that the build continues.
    Base(BaseContent),
}

impl Origin {
    /// Whether the data goes into new blocks.
    pub(crate) fn is_new(self) -> bool {
        self == Self::Files
    }
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
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Content>() == 40 && size_of::<Item>() == 24);

/// Numbers of files; nearly always there is only one.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    One(u32),
    Many(Box<EqualFiles>),
}

/// Files that had the same content when they were hashed. There may be one or none left.
#[derive(Debug, Clone, Default)]
pub(crate) struct EqualFiles {
    list: Vec<u32>,
    digest: Option<Digest>,
}

impl Files {
    /// Files that have the same digest, if it is known.
    pub(crate) fn of(list: Vec<u32>, digest: Option<&Digest>) -> Self {
        match list[..] {
            [only] => Self::One(only),
            _ => Self::Many(Box::new(EqualFiles {
                list,
                digest: digest.cloned(),
            })),
        }
    }

    /// Adds a file with the same digest as all others, if it is known.
    pub(crate) fn push(&mut self, file: u32, digest: Option<&Digest>) {
        match self {
            Files::One(first) => *self = Self::of(vec![*first, file], digest),
            Files::Many(files) => files.list.push(file),
        }
    }

    pub(crate) fn remove(&mut self, file: u32) {
        match self {
            Files::One(only) if *only == file => *self = Files::Many(Box::default()),
            Files::One(_) => {}
            Files::Many(files) => files.list.retain(|&f| f != file),
        }
    }

    /// The digest of the content, if it is known, and several files have or had it.
    pub(crate) fn digest(&self) -> Option<&Digest> {
        match self {
            Files::One(_) => None,
            Files::Many(files) => files.digest.as_ref(),
        }
    }
}

impl std::ops::Deref for Files {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Files::One(file) => std::slice::from_ref(file),
            Files::Many(files) => &files.list,
        }
    }
}

impl Content {
    pub(crate) fn first_file(&self) -> u32 {
        self.files.first().copied().unwrap_or(0)
    }

    /// Bytes that go to a stream.
    pub(crate) fn size_in(&self, stream: u32) -> u64 {
        let Some(parts) = &self.parts else {
            return self.size;
        };
        let sizes = parts.iter().filter(|(of, _)| *of == stream);
        sizes.map(|(_, size)| size).sum()
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

/// All contents, in the order in which their first files were found.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) list: Vec<Content>,
    /// Bytes of small files that a stage has read, by file.
    pub(crate) kept: Kept,
}

/// The stored contents of each stream.
#[derive(Debug)]
pub(crate) struct Fragments<'o> {
    /// By stream, then content.
    pub(crate) items: Vec<Item>,
    /// In the order of their blocks. The first stream holds all data without a category.
    pub(crate) streams: Vec<StreamSettings<'o>>,
}

/// The contents of a stream, as they follow one another in its blocks. 4 bytes each.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) stream: u32,
    pub(crate) contents: Vec<u32>,
    /// Bytes that they have in the stream.
    pub(crate) size: u64,
}

/// Of each stream that has any contents.
pub(crate) type Sequences = Vec<Sequence>;

impl<'o> Fragments<'o> {
    /// The items of each stream that has any, with its settings.
    pub(crate) fn by_stream(&self) -> impl Iterator<Item = (&[Item], &StreamSettings<'o>)> {
        self.items
            .chunk_by(|a, b| a.stream == b.stream)
            .filter_map(|items| {
                let stream = items.first()?.stream as usize;
                Some((items, self.streams.get(stream)?))
            })
    }
}
