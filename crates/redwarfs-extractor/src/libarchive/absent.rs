//! What stands for libarchive in a build without it. Every request fails.

use std::io::Write;
use std::marker::PhantomData;

use redwarfs_libarchive::ABSENT as CAUSE;
pub(crate) use redwarfs_libarchive::version;

use super::engine::{Answer, Description, Engine, Fatal};

/// A handle of the library, of which there is none.
pub(crate) struct Setup(());

impl Setup {
    pub(crate) fn new() -> Result<Self, String> {
        version().map(|_| Self(()))
    }

    pub(crate) fn format(&mut self, _name: &str) -> Result<(), String> {
        Err(CAUSE.to_owned())
    }

    pub(crate) fn raw(&mut self) -> Result<(), String> {
        Err(CAUSE.to_owned())
    }

    pub(crate) fn by_file_name(&mut self, _name: &[u8]) -> Result<(), String> {
        Err(CAUSE.to_owned())
    }

    pub(crate) fn filter(&mut self, _name: &str) -> Result<Option<String>, String> {
        Err(CAUSE.to_owned())
    }

    pub(crate) fn options(&mut self, _options: &str) -> Result<Option<String>, String> {
        Err(CAUSE.to_owned())
    }

    pub(crate) fn format_code(&self) -> i32 {
        0
    }

    pub(crate) fn open<'a>(self, _out: &'a mut dyn Write) -> Result<Writer<'a>, Fatal> {
        Err(failed())
    }
}

fn failed() -> Fatal {
    Fatal::Library(CAUSE.to_owned())
}

/// A handle of the library that writes, of which there is none.
pub(crate) struct Writer<'a>(PhantomData<&'a mut dyn Write>);

impl Engine for Writer<'_> {
    fn header(&mut self, _entry: &Description<'_>) -> Result<Answer, Fatal> {
        Err(failed())
    }

    fn data(&mut self, _bytes: &[u8]) -> Result<(), Fatal> {
        Err(failed())
    }

    fn finish_entry(&mut self) -> Result<Answer, Fatal> {
        Err(failed())
    }

    fn close(&mut self) -> Result<Answer, Fatal> {
        Err(failed())
    }
}
