//! Reading ar archives, and the data of Debian packages, which are ar archives.

use redwarfs_writer::Timestamp;

use crate::error::Fault;
use crate::member::{Kind, Member, Members, Part};
use crate::stream::Stream;

/// First bytes of an archive.
pub(crate) const MAGIC: &[u8] = b"!<arch>\n";
/// Size of a header in bytes.
const HEADER: usize = 60;
/// Longest name, and longest table of names, in bytes.
const MOST_NAMES: u64 = 16 << 20;

/// The members of an ar archive: of GNU, BSD or System V.
pub(crate) struct Ar<'a> {
    input: Stream<'a>,
    /// GNU's table of long names.
    names: Vec<u8>,
    left: u64,
    size: u64,
    padding: u64,
    begun: bool,
}

/// A header.
struct Header {
    name: Vec<u8>,
    member: Member,
    size: u64,
}

fn number(field: &[u8], radix: u32) -> Result<u64, Fault> {
    let digits = field.trim_ascii();
    if digits.is_empty() {
        return Ok(0);
    }
    let text = std::str::from_utf8(digits).ok();
    let text = text.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    text.and_then(|text| u64::from_str_radix(text, radix).ok())
        .ok_or_else(|| Fault::damaged("a header has a field that is no number"))
}

impl Header {
    fn parse(head: &[u8; HEADER]) -> Result<Self, Fault> {
        if &head[58..] != b"`\n" {
            return Err(Fault::damaged("a header does not end as one"));
        }
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let size = number(&head[48..58], 10)?;
        Ok(Self {
            name: head[..16].trim_ascii_end().to_vec(),
            size,
            member: Member {
                permissions: (number(&head[40..48], 8)? & 0o7777) as u32,
                uid: narrow(number(&head[28..34], 10)?),
                gid: narrow(number(&head[34..40], 10)?),
                mtime: Timestamp {
                    sec: number(&head[16..28], 10)?.cast_signed(),
                    nsec: 0,
                },
                kind: Kind::Regular,
                ..Member::default()
            },
        })
    }
}

impl<'a> Ar<'a> {
    pub(crate) fn new(input: Stream<'a>) -> Self {
        Self {
            input,
            names: Vec::new(),
            left: 0,
            size: 0,
            padding: 0,
            begun: false,
        }
    }

    /// The next header, with the first byte of its data as the next one.
    fn header(&mut self) -> Result<Option<Header>, Fault> {
        if !self.begun {
            let magic = self.input.read_vec(MAGIC.len())?;
            if magic != MAGIC {
                return Err(Fault::damaged("the archive does not begin as one"));
            }
            self.begun = true;
        }
        self.input.skip(self.left)?;
        // The last member may lack its padding.
        if self.padding > 0 && !self.input.peek(1)?.is_empty() {
            self.input.skip(self.padding)?;
        }
        (self.left, self.padding) = (0, 0);
        if self.input.peek(1)?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; HEADER];
        self.input.read_exact(&mut head)?;
        let header = Header::parse(&head)?;
        (self.left, self.padding) = (header.size, header.size % 2);
        Ok(Some(header))
    }

    fn names(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        if size > MOST_NAMES {
            return Err(Fault::damaged(format!(
                "names of {size} bytes are too long"
            )));
        }
        let names = self.input.read_vec(size as usize)?;
        self.left -= size;
        Ok(names)
    }

    /// The member called `data.tar`, with any suffix, as a stream of its own.
    pub(crate) fn data_of_package(mut self) -> Result<Stream<'a>, Fault> {
        while let Some(header) = self.header()? {
            if header.name.starts_with(b"data.tar") {
                let (failed, size) = (self.input.failed(), self.left);
                let data = Bounded {
                    input: self.input,
                    left: size,
                };
                return Ok(Stream::new(Box::new(data), None, failed));
            }
        }
        Err(Fault::unsupported("a Debian package without data.tar"))
    }
}

/// The data of one member.
struct Bounded<'a> {
    input: Stream<'a>,
    left: u64,
}

impl std::io::Read for Bounded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let wanted = self.left.min(buf.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        let buf = buf.get_mut(..wanted).unwrap_or_default();
        let got = std::io::Read::read(&mut self.input, buf)?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= got as u64;
        Ok(got)
    }
}

impl Members for Ar<'_> {
    fn next(&mut self) -> Result<Option<Member>, Fault> {
        loop {
            let Some(mut header) = self.header()? else {
                return Ok(None);
            };
            match &header.name[..] {
                // Tables of symbols.
                b"/" | b"/SYM64/" | b"__.SYMDEF" | b"__.SYMDEF SORTED" => continue,
                b"//" => {
                    self.names = self.names(header.size)?;
                    continue;
                }
                [b'/', digits @ ..] => {
                    let at = usize::try_from(number(digits, 10)?).unwrap_or(usize::MAX);
                    let name = self.names.get(at..).unwrap_or_default();
                    let end = name.iter().position(|&b| b == b'\n').unwrap_or(name.len());
                    header.name = name.get(..end).unwrap_or_default().to_vec();
                }
                // BSD has long names in front of the data.
                [b'#', b'1', b'/', digits @ ..] => {
                    let length = number(digits, 10)?;
                    if length > header.size {
                        return Err(Fault::damaged("a name is longer than its member"));
                    }
                    let mut name = self.names(length)?;
                    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
                    name.truncate(end);
                    header.name = name;
                }
                _ => {}
            }
            if let Some(name) = header.name.strip_suffix(b"/") {
                header.name = name.to_vec();
            }
            // Those of BSD and macOS.
            if let b"__.SYMDEF" | b"__.SYMDEF SORTED" | b"__.SYMDEF_64" | b"__.SYMDEF_64 SORTED" =
                &header.name[..]
            {
                continue;
            }
            self.size = self.left;
            return Ok(Some(Member {
                path: header.name,
                size: Some(self.left),
                ..header.member
            }));
        }
    }

    fn data(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>, Fault> {
        let wanted = self.left.min(buf.len() as u64) as usize;
        if wanted == 0 {
            return Ok(None);
        }
        let got = self.input.read(buf.get_mut(..wanted).unwrap_or_default())?;
        if got == 0 {
            return Err(Fault::Truncated);
        }
        let at = self.size - self.left;
        self.left -= got as u64;
        Ok(Some((at, got)))
    }

    fn in_place(&self) -> Option<Vec<Part>> {
        if !self.input.is_plain() {
            return None;
        }
        let part = Part {
            offset: 0,
            size: self.left,
            at: self.input.position(),
        };
        Some(if self.left > 0 {
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
        self.left
    }
}
