//! One entry as a file.
//!
//! ```text
//!  0  8  magic
//!  8  4  length of the key
//! 12  4  length of the note
//! 16  8  length of the body
//! 24  8  XXH3-64 of bytes 0 to 24, key and note
//! 32     key, note, body, and nothing else
//! ```

use std::fs::File;
use std::hash::Hasher as _;
use std::io;

use twox_hash::XxHash3_64;

use super::CacheKey;
use crate::os;

const MAGIC: [u8; 8] = *b"DWcache1";
const HEAD: usize = 32;

/// Longest note (1 MiB).
const LONGEST_NOTE: usize = 1 << 20;

/// An entry that was found. It stays readable when the cache drops it.
#[derive(Debug)]
pub struct CacheEntry {
    file: File,
    note: Vec<u8>,
    start: u64,
    len: u64,
}

impl CacheEntry {
    /// The note.
    #[must_use]
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// Bytes of the body.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the body is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads bytes of the body, which are not verified.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] beyond its end, and the errors of the disk.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        os::read_exact_at(&self.file, self.start + offset, buf)
    }

    /// The entry in a file, if it is that of `key`, and complete.
    pub(super) fn parse(file: File, key: &CacheKey) -> Option<Self> {
        let mut head = [0; HEAD];
        os::read_exact_at(&file, 0, &mut head).ok()?;
        let number = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok());
        let key_len = u32::from_le_bytes(number(8)?) as usize;
        let note_len = u32::from_le_bytes(number(12)?) as usize;
        let len = u64::from_le_bytes(head.get(16..24)?.try_into().ok()?);
        if !head.starts_with(&MAGIC) || key_len != key.0.len() || note_len > LONGEST_NOTE {
            return None;
        }
        let mut texts = vec![0; key_len + note_len];
        os::read_exact_at(&file, HEAD as u64, &mut texts).ok()?;
        let sum = sum(head.get(..24)?, &texts);
        let start = (HEAD + texts.len()) as u64;
        let whole = file.metadata().ok()?.len() == start.checked_add(len)?;
        let note = texts.split_off(key_len);
        let right = sum == head.get(24..)? && texts == key.0.as_bytes();
        (whole && right).then_some(Self {
            file,
            note,
            start,
            len,
        })
    }

    /// What a file starts with, in front of its body. None if the note is too long.
    pub(super) fn head(key: &CacheKey, note: &[u8], len: u64) -> Option<Vec<u8>> {
        if note.len() > LONGEST_NOTE {
            return None;
        }
        let mut head = MAGIC.to_vec();
        for length in [key.0.len(), note.len()] {
            head.extend_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
        }
        head.extend_from_slice(&len.to_le_bytes());
        let texts = [key.0.as_bytes(), note].concat();
        head.extend_from_slice(&sum(&head, &texts));
        head.extend_from_slice(&texts);
        Some(head)
    }
}

fn sum(head: &[u8], texts: &[u8]) -> [u8; 8] {
    let mut hasher = XxHash3_64::new();
    hasher.write(head);
    hasher.write(texts);
    hasher.finish().to_le_bytes()
}
