//! Archives written by libarchive.

use std::io::{self, Write};

use super::entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use super::fields::{Fields, SECOND, Times};
use crate::error::Error;
use crate::libarchive::{Answer, ArchiveProcess, Description, Engine, Fatal, Plan};

/// The bits of a format number that name the family, and the families, as in `archive.h`.
const FAMILY: i32 = 0xff_0000;
const CPIO: i32 = 0x1_0000;
const CPIO_ODC: i32 = 0x1_0001;
const CPIO_NEW: [i32; 2] = [0x1_0004, 0x1_0005];
const CPIO_PWB: i32 = 0x1_0007;
const SHAR: i32 = 0x2_0000;
const TAR: i32 = 0x3_0000;
const PAX: [i32; 2] = [0x3_0002, 0x3_0003];
const GNUTAR: i32 = 0x3_0004;
const ISO9660: i32 = 0x4_0000;
const ZIP: i32 = 0x5_0000;
const AR: i32 = 0x7_0000;
const RAW: i32 = 0x9_0000;
const XAR: i32 = 0xa_0000;
const SEVEN_ZIP: i32 = 0xe_0000;
const WARC: i32 = 0xf_0000;

/// Writes an archive in one of the library's formats.
pub(crate) struct LibrarySink<'a> {
    writer: Box<dyn Engine + 'a>,
    name: String,
    code: i32,
}

impl<'a> LibrarySink<'a> {
    /// Starts the archive of a plan, whose format has the number `code` and the name `name`.
    pub(crate) fn new(
        plan: &Plan,
        (code, name): (i32, &str),
        process: Option<&ArchiveProcess>,
        out: &'a mut dyn Write,
    ) -> Result<Self, Error> {
        Ok(Self {
            writer: plan.open(process, out).map_err(|e| failed(name, e))?,
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
            TAR | SHAR | ISO9660 | XAR => Links::Reference,
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

    fn directories_last(&self) -> bool {
        self.family() == TAR
    }

    fn fields(&self) -> Fields {
        fields(self.code)
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

/// The limits of the library's formats. Some of these values libarchive would refuse itself, with
/// different messages. Others it would change without a message.
fn fields(code: i32) -> Fields {
    let other = Fields {
        atime: false,
        ..Fields::ALL
    };
    match code & FAMILY {
        TAR if PAX.contains(&code) => Fields {
            // The restricted form writes fractions only if another value needs a record.
            times: Some(Times::all(if code == PAX[0] { 1 } else { SECOND })),
            atime: code == PAX[0],
            ..Fields::ALL
        },
        TAR => {
            let gnu = code == GNUTAR;
            Fields {
                times: Some(Times::seconds((1 << 33) - 1)),
                id: Some(if gnu { u32::MAX } else { (1 << 18) - 1 }),
                size: if gnu { u64::MAX } else { (1 << 33) - 1 },
                device: Some(((1 << 18) - 1, (1 << 18) - 1)),
                ..other
            }
        }
        CPIO if CPIO_NEW.contains(&code) => Fields {
            times: Some(Times::seconds(u32::MAX.into())),
            size: u32::MAX.into(),
            ..other
        },
        CPIO if code == CPIO_ODC => Fields {
            times: Some(Times::seconds((1 << 33) - 1)),
            id: Some((1 << 18) - 1),
            size: (1 << 33) - 1,
            device: Some((0o1777, 0o377)),
            ..other
        },
        CPIO => Fields {
            times: Some(Times::seconds(u32::MAX.into())),
            id: Some(u16::MAX.into()),
            size: if code == CPIO_PWB {
                (1 << 24) - 1
            } else {
                (1 << 31) - 1
            },
            device: Some((0o377, 0o377)),
            ..other
        },
        SHAR | RAW => Fields {
            times: None,
            id: None,
            ..other
        },
        ISO9660 => Fields {
            // The year counts from 1900 in one byte.
            times: Some(Times {
                first: -2_208_988_800,
                last: 5_869_583_999,
                unit: SECOND,
            }),
            target: ISO_TARGET,
            ..Fields::ALL
        },
        ZIP => Fields {
            // Those of the extended time stamp. The DOS field in the same header has only 1980 to 2107.
            times: Some(Times::seconds(u32::MAX.into())),
            text: true,
            ..Fields::ALL
        },
        SEVEN_ZIP => Fields {
            // Units of 100 ns from 1601 in 63 bits; the library writes none before 1970.
            times: Some(Times {
                first: 0,
                last: 910_692_730_084,
                unit: 100,
            }),
            id: None,
            device: None,
            text: true,
            ..Fields::ALL
        },
        AR => Fields {
            times: Some(Times::seconds(999_999_999_999)),
            id: Some(999_999),
            size: 9_999_999_999,
            flat: true,
            ..other
        },
        XAR => Fields {
            // Years of four digits; the library writes none before 1900.
            times: Some(Times {
                first: -2_208_988_800,
                last: 253_402_300_799,
                unit: SECOND,
            }),
            id: Some(i32::MAX.cast_unsigned()),
            device: None,
            text: true,
            text_target: true,
            ..Fields::ALL
        },
        WARC => Fields {
            times: Some(Times::seconds(253_402_300_799)),
            id: None,
            ..other
        },
        _ => other,
    }
}

/// Longest target of a symbolic link in bytes that an ISO image keeps unchanged, for any components.
const ISO_TARGET: usize = 180;

/// Passes bytes through the library's filters.
pub(crate) struct FilterWriter<'a> {
    writer: Box<dyn Engine + 'a>,
}

impl<'a> FilterWriter<'a> {
    /// Starts with the filters of a plan.
    pub(crate) fn new(
        plan: &Plan,
        process: Option<&ArchiveProcess>,
        out: &'a mut dyn Write,
    ) -> Result<Self, Error> {
        let mut writer = plan.open(process, out).map_err(|e| failed("filtered", e))?;
        let only = Description {
            path: b"data",
            mode: Kind::Regular.mode() | 0o644,
            // The format does not store the size, but the contents must not end early.
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

    /// Writes the bytes that the filters still hold.
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

    /// Filters keep their data until the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
