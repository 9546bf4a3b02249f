//! Reading cpio archives: newc, newc with checksums, odc, and the old binary format in both byte orders.

use redwarfs_format::device::makedev;
use redwarfs_writer::Timestamp;

use crate::error::Fault;
use crate::member::{Kind, Member, Members, Part};
use crate::stream::Stream;

/// Longest name or target of a symlink, in bytes.
const MOST_NAME: u64 = 64 << 10;

/// The forms of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// With checksums or without.
    New {
        checked: bool,
    },
    Odc,
    Binary {
        big: bool,
    },
}

/// The form of a header that begins with these bytes.
fn form_of(start: &[u8]) -> Option<Form> {
    match start {
        [b'0', b'7', b'0', b'7', b'0', b'1', ..] => Some(Form::New { checked: false }),
        [b'0', b'7', b'0', b'7', b'0', b'2', ..] => Some(Form::New { checked: true }),
        [b'0', b'7', b'0', b'7', b'0', b'7', ..] => Some(Form::Odc),
        [0xc7, 0x71, ..] => Some(Form::Binary { big: false }),
        [0x71, 0xc7, ..] => Some(Form::Binary { big: true }),
        _ => None,
    }
}

/// Whether a stream that begins with these bytes is a cpio archive.
pub(crate) fn is_cpio(start: &[u8]) -> bool {
    form_of(start).is_some()
}

/// The members of a cpio archive.
pub(crate) struct Cpio<'a> {
    input: Stream<'a>,
    size: u64,
    done: u64,
    /// Bytes between the data and the next header.
    padding: u64,
    sum: Option<(u32, u32)>,
    ended: bool,
}

#[derive(Default)]
struct Fields {
    dev: (u64, u64),
    ino: u64,
    mode: u64,
    uid: u64,
    gid: u64,
    nlink: u64,
    rdev: (u64, u64),
    mtime: u64,
    name: u64,
    size: u64,
    sum: u64,
}

fn digits(bytes: &[u8], radix: u32) -> Result<u64, Fault> {
    let text = std::str::from_utf8(bytes).ok();
    // No sign.
    let text = text.filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
    text.and_then(|text| u64::from_str_radix(text, radix).ok())
        .ok_or_else(|| Fault::damaged("a header has a field that is no number"))
}

impl Fields {
    fn new_form(head: &[u8]) -> Result<Self, Fault> {
        let mut fields = [0; 13];
        let texts = head.get(6..110).unwrap_or_default().chunks_exact(8);
        for (field, text) in fields.iter_mut().zip(texts) {
            *field = digits(text, 16)?;
        }
        let [
            ino,
            mode,
            uid,
            gid,
            nlink,
            mtime,
            size,
            major,
            minor,
            rmajor,
            rminor,
            name,
            sum,
        ] = fields;
        Ok(Self {
            dev: (major, minor),
            ino,
            mode,
            uid,
            gid,
            nlink,
            rdev: (rmajor, rminor),
            mtime,
            name,
            size,
            sum,
        })
    }

    fn odc(head: &[u8]) -> Result<Self, Fault> {
        let octal = |from: usize, to: usize| digits(head.get(from..to).unwrap_or_default(), 8);
        let rdev = octal(42, 48)?;
        Ok(Self {
            dev: (0, octal(6, 12)?),
            ino: octal(12, 18)?,
            mode: octal(18, 24)?,
            uid: octal(24, 30)?,
            gid: octal(30, 36)?,
            nlink: octal(36, 42)?,
            rdev: (rdev >> 8, rdev & 0xff),
            mtime: octal(48, 59)?,
            name: octal(59, 65)?,
            size: octal(65, 76)?,
            sum: 0,
        })
    }

    fn binary(head: &[u8], big: bool) -> Self {
        let word = |at: usize| {
            let bytes = head.get(2 * at..2 * at + 2).and_then(|b| b.first_chunk());
            let bytes = bytes.copied().unwrap_or_default();
            u64::from(match big {
                true => u16::from_be_bytes(bytes),
                false => u16::from_le_bytes(bytes),
            })
        };
        // The high half of a number comes first.
        let long = |at: usize| word(at) << 16 | word(at + 1);
        Self {
            dev: (0, word(1)),
            ino: word(2),
            mode: word(3),
            uid: word(4),
            gid: word(5),
            nlink: word(6),
            rdev: (word(7) >> 8, word(7) & 0xff),
            mtime: long(8),
            name: word(10),
            size: long(11),
            sum: 0,
        }
    }
}

impl<'a> Cpio<'a> {
    pub(crate) fn new(input: Stream<'a>) -> Self {
        Self {
            input,
            size: 0,
            done: 0,
            padding: 0,
            sum: None,
            ended: false,
        }
    }

    fn fields(&mut self) -> Result<(Form, Fields, u64), Fault> {
        let Some(form) = form_of(self.input.peek(6)?) else {
            return Err(match self.input.peek(6)? {
                b"07070X" => Fault::unsupported(
                    "unsupported: RPM packages with stripped entries (version 6, or files of 4 GiB)",
                ),
                [_, _, _, _, _, _] => Fault::damaged("a header does not begin as one"),
                _ => Fault::Truncated,
            });
        };
        let length = match form {
            Form::New { .. } => 110,
            Form::Odc => 76,
            Form::Binary { .. } => 26,
        };
        let head = self.input.read_vec(length)?;
        let fields = match form {
            Form::New { .. } => Fields::new_form(&head)?,
            Form::Odc => Fields::odc(&head)?,
            Form::Binary { big } => Fields::binary(&head, big),
        };
        Ok((form, fields, length as u64))
    }
}

/// Bytes up to the next multiple of the alignment of a form.
fn padding(form: Form, size: u64) -> u64 {
    let alignment = match form {
        Form::New { .. } => 4,
        Form::Odc => 1,
        Form::Binary { .. } => 2,
    };
    size.wrapping_neg() % alignment
}

impl Members for Cpio<'_> {
    fn next(&mut self) -> Result<Option<Member>, Fault> {
        if self.ended {
            return Ok(None);
        }
        self.input.skip(self.size - self.done + self.padding)?;
        (self.size, self.done, self.padding, self.sum) = (0, 0, 0, None);
        let (form, fields, length) = self.fields()?;
        if fields.name == 0 || fields.name > MOST_NAME {
            return Err(Fault::damaged("a name is empty or too long"));
        }
        let mut path = self.input.read_vec(fields.name as usize)?;
        let end = path.iter().position(|&b| b == 0);
        path.truncate(end.unwrap_or(path.len()));
        // The header and the name are padded together.
        self.input.skip(padding(form, length + fields.name))?;
        if path == b"TRAILER!!!" {
            self.ended = true;
            return Ok(None);
        }
        (self.size, self.padding) = (fields.size, padding(form, fields.size));
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let rdev = makedev(narrow(fields.rdev.0), narrow(fields.rdev.1));
        let mut member = Member {
            path,
            permissions: (fields.mode & 0o7777) as u32,
            uid: narrow(fields.uid),
            gid: narrow(fields.gid),
            size: Some(0),
            mtime: Timestamp {
                sec: fields.mtime.cast_signed(),
                nsec: 0,
            },
            ..Member::default()
        };
        member.kind = match fields.mode & 0o170_000 {
            0o040_000 => Kind::Directory,
            0o020_000 => Kind::CharDevice(rdev),
            0o060_000 => Kind::BlockDevice(rdev),
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            0o120_000 => {
                if self.size > MOST_NAME {
                    return Err(Fault::damaged("the target of a symlink is too long"));
                }
                let mut target = self.input.read_vec(self.size as usize)?;
                self.done = self.size;
                let end = target.iter().position(|&b| b == 0);
                target.truncate(end.unwrap_or(target.len()));
                Kind::Symlink(target)
            }
            0o100_000 => {
                member.size = Some(fields.size);
                if fields.nlink > 1 {
                    let dev = fields.dev.0 << 32 | fields.dev.1;
                    member.inode = Some((dev, fields.ino));
                }
                if form == (Form::New { checked: true }) {
                    self.sum = Some((fields.sum as u32, 0));
                }
                Kind::Regular
            }
            _ => {
                member.refused = Some("it has an unknown type");
                Kind::Regular
            }
        };
        Ok(Some(member))
    }

    fn data(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>, Fault> {
        let wanted = (self.size - self.done).min(buf.len() as u64) as usize;
        if wanted == 0 {
            return Ok(None);
        }
        let got = self.input.read(buf.get_mut(..wanted).unwrap_or_default())?;
        if got == 0 {
            return Err(Fault::Truncated);
        }
        let at = self.done;
        self.done += got as u64;
        if let Some((want, sum)) = &mut self.sum {
            let bytes = buf.get(..got).unwrap_or_default();
            *sum = (bytes.iter()).fold(*sum, |sum, &b| sum.wrapping_add(b.into()));
            if self.done == self.size && sum != want {
                return Err(Fault::damaged("the checksum of a file is wrong"));
            }
        }
        Ok(Some((at, got)))
    }

    fn in_place(&self) -> Option<Vec<Part>> {
        // A checksum needs the bytes.
        if !self.input.is_plain() || self.sum.is_some() {
            return None;
        }
        let part = Part {
            offset: 0,
            size: self.size,
            at: self.input.position(),
        };
        Some(if self.size > 0 {
            vec![part]
        } else {
            Vec::new()
        })
    }

    fn finish(&mut self) -> Result<u64, Fault> {
        self.input.drain()
    }

    fn position(&self) -> u64 {
        self.input.position()
    }

    fn left(&self) -> u64 {
        self.size - self.done
    }
}
