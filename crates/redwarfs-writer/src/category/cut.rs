//! Cutting a file into fragments.

use std::io;

use super::names::StreamKey;
use crate::progress::Level;

/// A part of a file. There are no gaps between the parts of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) key: StreamKey,
    pub(crate) size: u64,
}

/// Collects the fragments of a file: empty ones are left out, neighbours of one kind are joined.
#[derive(Debug, Default)]
pub(crate) struct Cut(Vec<Fragment>);

impl Cut {
    pub(crate) fn push(&mut self, key: StreamKey, size: u64) {
        match self.0.last_mut() {
            _ if size == 0 => {}
            Some(last) if last.key == key => last.size += size,
            _ => self.0.push(Fragment { key, size }),
        }
    }
}

impl std::ops::Deref for Cut {
    type Target = [Fragment];

    fn deref(&self) -> &[Fragment] {
        &self.0
    }
}

/// The reason why a file with the header of a category does not get this category.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) level: Level,
    pub(crate) what: String,
}

impl Complaint {
    pub(crate) fn warn(what: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            what: what.into(),
        }
    }

    pub(super) fn info(what: impl Into<String>) -> Self {
        Self {
            level: Level::Info,
            what: what.into(),
        }
    }
}

impl From<io::Error> for Complaint {
    fn from(error: io::Error) -> Self {
        // Storing the file meets the same error and reports it.
        Self {
            level: Level::Verbose,
            what: format!("cannot be categorized: {error}"),
        }
    }
}

pub(crate) type Found<T = Cut> = Result<Option<T>, Complaint>;
