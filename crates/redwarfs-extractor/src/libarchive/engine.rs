//! What is asked of libarchive, and what it answers.

use std::io;

/// The library in the act of writing.
pub(crate) trait Engine {
    /// Begins an entry.
    fn header(&mut self, d: &Description<'_>) -> Result<Answer, Fatal>;

    /// Appends to the contents of the entry.
    fn data(&mut self, bytes: &[u8]) -> Result<(), Fatal>;

    /// Ends the entry.
    fn finish_entry(&mut self) -> Result<Answer, Fatal>;

    /// Completes the archive. Nothing may be written afterwards.
    fn close(&mut self) -> Result<Answer, Fatal>;
}

/// The result of a request to the library.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    /// Done, but.
    Warning(String),
    /// Not done; the archive is as before.
    Refused(String),
}

/// The library can go no further.
#[derive(Debug)]
pub(crate) enum Fatal {
    /// The output accepts no more bytes.
    Output(io::Error),
    /// In the words of the library.
    Library(String),
}

/// One entry, in the words of the library.
#[derive(Debug, Default)]
pub(crate) struct Description<'a> {
    pub(crate) path: &'a [u8],
    /// `S_IFMT` bits and permissions.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) atime: Option<(i64, u32)>,
    pub(crate) nlink: u32,
    pub(crate) ino: u64,
    pub(crate) rdev: u64,
    pub(crate) symlink: Option<&'a [u8]>,
    pub(crate) hard_link: Option<&'a [u8]>,
    /// Where the data is, if there are holes.
    pub(crate) ranges: Option<&'a [(u64, u64)]>,
}
