//! Archives written by libarchive.

use std::io::{self, Write};

use super::entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use crate::error::Error;
use crate::libarchive::{Answer, Description, Fatal, Setup, Writer};

/// The bits of a format number that name the family, and the families, as in `archive.h`.
const FAMILY: i32 = 0xff_0000;
const CPIO: i32 = 0x1_0000;
const CPIO_NEW: [i32; 2] = [0x1_0004, 0x1_0005];
const SHAR: i32 = 0x2_0000;
const TAR: i32 = 0x3_0000;
const PAX: [i32; 2] = [0x3_0002, 0x3_0003];
const ISO9660: i32 = 0x4_0000;
const AR: i32 = 0x7_0000;
const MTREE: i32 = 0x8_0000;
const RAW: i32 = 0x9_0000;
const XAR: i32 = 0xa_0000;
const WARC: i32 = 0xf_0000;

/// Writes an archive in one of the library's formats.
pub(crate) struct LibrarySink<'a> {
    writer: Writer<'a>,
    name: String,
    code: i32,
}

impl<'a> LibrarySink<'a> {
    /// Starts an archive in the format that `setup` was told.
    pub(crate) fn new(setup: Setup, name: &str, out: &'a mut dyn Write) -> Result<Self, Error> {
        let code = setup.format_code();
        Ok(Self {
            writer: setup.open(out).map_err(|e| failed(name, e))?,
            name: name.to_owned(),
            code,
        })
    }

    fn family(&self) -> i32 {
        self.code & FAMILY
    }

    fn answer(&self, answer: Result<Answer, Fatal>) -> Result<Option<String>, Refusal> {
        match answer {
            Ok(Answer::Done) => Ok(None),
            Ok(Answer::Warning(text)) => Ok(Some(text)),
            Ok(Answer::Refused(text)) => Err(Refusal::Entry(text)),
            Err(e) => Err(Refusal::Archive(failed(&self.name, e))),
        }
    }
}

fn failed(format: &str, e: Fatal) -> Error {
    match e {
        Fatal::Output(e) => Error::Output(e),
        Fatal::Library(text) => Error::Library {
            format: format.to_owned(),
            text,
        },
    }
}

impl Sink for LibrarySink<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn links(&self) -> Links {
        match self.family() {
            TAR | SHAR | ISO9660 | XAR | MTREE => Links::Reference,
            CPIO if CPIO_NEW.contains(&self.code) => Links::LastHasContents,
            _ => Links::EachHasContents,
        }
    }

    fn holes(&self) -> Holes {
        Holes::Zeros
    }

    fn has_directories(&self) -> bool {
        !matches!(self.family(), AR | RAW | WARC)
    }

    fn repeats_directories(&self) -> bool {
        self.family() == TAR
    }

    fn begin(&mut self, entry: &Entry) -> Result<Option<String>, Refusal> {
        let description = Description {
            path: &entry.path,
            mode: entry.kind.mode() | entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            size: entry.size,
            mtime: entry.mtime,
            atime: entry.atime,
            nlink: entry.nlink,
            ino: entry.ino,
            rdev: entry.rdev,
            symlink: (entry.kind == Kind::Symlink).then_some(&entry.symlink[..]),
            hard_link: entry.hard_link.as_deref(),
            // Other formats keep no holes.
            ranges: entry.ranges.as_deref().filter(|_| PAX.contains(&self.code)),
        };
        let answer = self.writer.header(&description);
        self.answer(answer)
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.writer
            .data(bytes)
            .map_err(|e| Refusal::Archive(failed(&self.name, e)))
    }

    fn end(&mut self) -> Result<Option<String>, Refusal> {
        let answer = self.writer.finish_entry();
        self.answer(answer)
    }

    fn close(&mut self) -> Result<Option<String>, Refusal> {
        let answer = self.writer.close();
        match self.answer(answer) {
            Err(Refusal::Entry(text)) => Err(Refusal::Archive(Error::Library {
                format: self.name.clone(),
                text,
            })),
            other => other,
        }
    }
}

/// Passes bytes through the library's filters.
pub(crate) struct FilterWriter<'a> {
    writer: Writer<'a>,
}

impl<'a> FilterWriter<'a> {
    /// Starts with the filters that `setup` was told.
    pub(crate) fn new(setup: Setup, out: &'a mut dyn Write) -> Result<Self, Error> {
        let mut writer = setup.open(out).map_err(|e| failed("filtered", e))?;
        let only = Description {
            path: b"data",
            mode: Kind::Regular.mode() | 0o644,
            // The format does not write it down, but it must not end early.
            size: i64::MAX.unsigned_abs(),
            nlink: 1,
            ..Description::default()
        };
        match writer.header(&only) {
            Ok(Answer::Done | Answer::Warning(_)) => Ok(Self { writer }),
            Ok(Answer::Refused(text)) => Err(failed("filtered", Fatal::Library(text))),
            Err(e) => Err(failed("filtered", e)),
        }
    }

    /// Writes what the filters still hold.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        match self.writer.close() {
            Ok(Answer::Done | Answer::Warning(_)) => Ok(()),
            Ok(Answer::Refused(text)) => Err(failed("filtered", Fatal::Library(text))),
            Err(e) => Err(failed("filtered", e)),
        }
    }
}

impl Write for FilterWriter<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.writer.data(buf) {
            Ok(()) => Ok(buf.len()),
            Err(Fatal::Output(e)) => Err(e),
            Err(Fatal::Library(text)) => Err(io::Error::other(text)),
        }
    }

    /// Filters keep what they need until the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
