//! Archives that libarchive reads, in a process of its own. The process sends messages, and the members
//! are made of them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use redwarfs_format::device::makedev;
use redwarfs_libarchive::message::{Values, receive};
use redwarfs_writer::{ExtendedAttributes, Timestamp};

use crate::error::Fault;
use crate::member::{AttributeNames, Kind, Member, Members, Part};
use crate::{Format, LibraryProcess};

/// Kinds of messages: an entry, data with its offset, the end of the entry's data, the end of the
/// archive, an error.
const ENTRY: u8 = b'h';
const DATA: u8 = b'd';
const END: u8 = b'e';
const DONE: u8 = b'c';
const FAILED: u8 = b'F';

/// The formats that the library tries for an archive of this format, by the names in its functions.
fn names(format: Format) -> Vec<&'static str> {
    use crate::LibraryFormat::{Cab, Iso, Lha, Mtree, Rar, SevenZip, Warc, Xar, Zip};
    match format {
        Format::Library(format) => match format {
            Zip => vec!["zip"],
            SevenZip => vec!["7zip"],
            Iso => vec!["iso9660"],
            Mtree => vec!["mtree"],
            Xar => vec!["xar"],
            Cab => vec!["cab"],
            Lha => vec!["lha"],
            Rar => vec!["rar", "rar5"],
            Warc => vec!["warc"],
        },
        // Never mtree, which reads files of this machine.
        _ => vec![
            "zip", "7zip", "iso9660", "xar", "cab", "lha", "rar", "rar5", "warc",
        ],
    }
}

/// The members of an archive that the library reads.
pub(crate) struct Library {
    from: BufReader<Box<dyn Read>>,
    child: Option<Child>,
    body: Vec<u8>,
    /// Bytes of `body` that were taken.
    taken: usize,
    /// Offset of the next byte of `body` in the file.
    offset: u64,
    /// The next message is data of the current member.
    inside: bool,
    done: u64,
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended. Otherwise its result is not needed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Library {
    /// Has the library read a file that can be read at any offset.
    pub(crate) fn open(
        file: File,
        format: Format,
        process: Option<&LibraryProcess>,
    ) -> Result<Self, Fault> {
        if let Err(cause) = redwarfs_libarchive::version() {
            return Err(Fault::unsupported(format!(
                "not a directory, and not an archive in a format that is known without libarchive \
                 (tar, cpio, ar, deb, rpm), {cause}"
            )));
        }
        let names = names(format);
        let (from, child) = match process {
            Some(process) => start(process, file, &names).map_err(Fault::Read)?,
            None => (thread(file, names).map_err(Fault::Read)?, None),
        };
        Ok(Self {
            from: BufReader::with_capacity(128 << 10, from),
            child,
            body: Vec::new(),
            taken: 0,
            offset: 0,
            inside: false,
            done: 0,
        })
    }

    /// The next message; its kind.
    fn receive(&mut self) -> Result<u8, Fault> {
        match receive(&mut self.from, &mut self.body) {
            Ok(Some(FAILED)) => {
                let text = String::from_utf8_lossy(&self.body).into_owned();
                Err(match &text[..] {
                    // Nothing that the library knows either.
                    "Unrecognized archive format" => Fault::unsupported(
                        "not a directory, and not an archive in a format that is known",
                    ),
                    _ => Fault::Damaged(text),
                })
            }
            Ok(Some(kind)) => {
                self.done += self.body.len() as u64;
                Ok(kind)
            }
            Ok(None) | Err(_) => Err(self.ended()),
        }
    }

    /// Why there are no more messages.
    fn ended(&mut self) -> Fault {
        let status = self.child.as_mut().map(Child::wait);
        Fault::damaged(match status {
            Some(Ok(status)) => format!("libarchive ended early ({status})"),
            _ => "libarchive ended early".to_owned(),
        })
    }
}

fn start(
    process: &LibraryProcess,
    file: File,
    names: &[&str],
) -> io::Result<(Box<dyn Read>, Option<Child>)> {
    let mut command = Command::new(&process.program);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::arg0(&mut command, &process.name);
    let mut child = command
        .args(&process.arguments)
        .args(names.iter().map(OsString::from))
        .stdin(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let from = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((Box::new(from), Some(child)))
}

/// The library in a thread, which ends when nothing more is read from it.
fn thread(file: File, names: Vec<&'static str>) -> io::Result<Box<dyn Read>> {
    let (from, to) = bytes_between_threads();
    std::thread::Builder::new()
        .name("libarchive".to_owned())
        .spawn(move || {
            // It fails when nobody reads any more.
            let _ = serve_names(file, &names, to);
        })?;
    Ok(Box::new(from))
}

/// Bytes that one thread writes and another one reads. Not a pipe: after its reader, a pipe ends the whole process with
/// `SIGPIPE`, unless the program ignores that, as those in Rust do but those in C do not.
fn bytes_between_threads() -> (FromThread, ToThread) {
    /// Writes that wait for the reader.
    const WAITING: usize = 2;
    let (to, from) = sync_channel(WAITING);
    let piece = io::Cursor::default();
    (FromThread { from, piece }, ToThread(to))
}

struct FromThread {
    from: Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Read for FromThread {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.piece.read(buf)?;
            if n > 0 || buf.is_empty() {
                return Ok(n);
            }
            match self.from.recv() {
                Ok(piece) => self.piece = io::Cursor::new(piece),
                Err(_) => return Ok(0),
            }
        }
    }
}

struct ToThread(SyncSender<Vec<u8>>);

impl Write for ToThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the archive on standard input as a process that [`LibraryProcess`] describes. `arguments` are
/// the names of the formats.
///
/// # Errors
/// Those of writing, which mean that the parent is gone.
pub fn serve(arguments: &[OsString], out: impl Write) -> io::Result<()> {
    let names: Vec<&str> = arguments.iter().filter_map(|name| name.to_str()).collect();
    let file = standard_input()?;
    serve_names(file, &names, out)
}

#[cfg(unix)]
fn standard_input() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

#[cfg(not(unix))]
fn standard_input() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(all(unix, feature = "libarchive")))]
fn serve_names(_file: File, _names: &[&str], mut out: impl Write) -> io::Result<()> {
    redwarfs_libarchive::message::send(&mut out, FAILED, redwarfs_libarchive::ABSENT.as_bytes())
}

#[cfg(all(unix, feature = "libarchive"))]
fn serve_names(file: File, names: &[&str], out: impl Write) -> io::Result<()> {
    use std::io::BufWriter;

    use redwarfs_libarchive::message::{LONGEST, send};
    use redwarfs_libarchive::read::Reader;

    let mut out = BufWriter::with_capacity(128 << 10, out);
    let failed = |mut out: BufWriter<_>, text: &str| -> io::Result<()> {
        send(&mut out, FAILED, text.as_bytes())?;
        out.flush()
    };
    let mut reader = match Reader::open(file, names) {
        Ok(reader) => reader,
        Err(text) => return failed(out, &text),
    };
    loop {
        let entry = match reader.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(text) => return failed(out, &text),
        };
        send(&mut out, ENTRY, &encode(&entry))?;
        loop {
            match reader.data() {
                Ok(Some((offset, bytes))) => {
                    let mut at = offset;
                    for piece in bytes.chunks(LONGEST as usize / 2) {
                        let message = [&at.to_le_bytes()[..], piece].concat();
                        send(&mut out, DATA, &message)?;
                        at = at.saturating_add(piece.len() as u64);
                    }
                }
                Ok(None) => break,
                Err(text) => return failed(out, &text),
            }
        }
        send(&mut out, END, &[])?;
    }
    send(&mut out, DONE, &[])?;
    out.flush()
}

#[cfg(all(unix, feature = "libarchive"))]
fn encode(entry: &redwarfs_libarchive::read::Found) -> Vec<u8> {
    let mut body = redwarfs_libarchive::message::Body::default();
    body.optional(entry.path.as_deref());
    body.number(entry.mode.into());
    body.number(entry.uid.cast_unsigned());
    body.number(entry.gid.cast_unsigned());
    body.number(entry.size.is_some().into());
    body.number(entry.size.unwrap_or(0));
    body.time(entry.mtime);
    for time in [entry.atime, entry.ctime] {
        body.number(time.is_some().into());
        body.time(time.unwrap_or_default());
    }
    body.number(entry.device.0);
    body.number(entry.device.1);
    body.optional(entry.symlink.as_deref());
    body.optional(entry.hard_link.as_deref());
    body.optional(entry.warning.as_deref().map(str::as_bytes));
    for (name, value) in &entry.xattrs {
        body.bytes(name);
        body.optional(value.as_deref());
    }
    body.into_bytes()
}

fn decode(body: &[u8]) -> Option<Member> {
    let mut values = Values::new(body);
    let path = values.optional()?.map(<[u8]>::to_vec);
    let mode = values.small()?;
    let mut owner = || Some(u32::try_from(values.number()?).ok());
    let (uid, gid) = (owner()?, owner()?);
    let has_size = values.number()? == 1;
    let size = Some(values.number()?).filter(|_| has_size);
    let time = |(sec, nsec): (i64, u32)| Timestamp {
        sec,
        nsec: nsec.min(999_999_999),
    };
    let mtime = time(values.time()?);
    let mut other = || {
        let there = values.number()? == 1;
        Some(Some(time(values.time()?)).filter(|_| there))
    };
    let (atime, ctime) = (other()?, other()?);
    let (major, minor) = (values.number()?, values.number()?);
    let symlink = values.optional()?.map(<[u8]>::to_vec);
    let hard_link = values.optional()?.map(<[u8]>::to_vec);
    let remark = values.optional()?;
    let remark = remark.map(|text| String::from_utf8_lossy(text).into_owned());
    let mut extended = ExtendedAttributes::default();
    let mut names = AttributeNames::default();
    while !values.is_empty() {
        names.set(&mut extended, values.bytes()?, values.optional()?);
    }
    let narrow = |value| u32::try_from(value).unwrap_or(u32::MAX);
    let device = makedev(narrow(major), narrow(minor));
    let mut refused = match (&path, uid, gid) {
        (None, ..) => Some("its name cannot be converted to UTF-8"),
        (_, Some(_), Some(_)) => None,
        _ => Some("its owner or group is out of range"),
    };
    let kind = match (hard_link, mode & 0o170_000) {
        (Some(other), _) => Kind::HardLink(other),
        (None, 0o040_000) => Kind::Directory,
        (None, 0o120_000) => Kind::Symlink(symlink.unwrap_or_default()),
        (None, 0o020_000) => Kind::CharDevice(device),
        (None, 0o060_000) => Kind::BlockDevice(device),
        (None, 0o010_000) => Kind::Fifo,
        (None, 0o140_000) => Kind::Socket,
        // Some formats have no types.
        (None, 0o100_000 | 0) => Kind::Regular,
        (None, _) => {
            refused = Some("it has an unknown type");
            Kind::Regular
        }
    };
    Some(Member {
        path: path.unwrap_or_default(),
        kind,
        permissions: mode & 0o7777,
        uid: uid.unwrap_or(0),
        gid: gid.unwrap_or(0),
        size: size.filter(|&size| i64::try_from(size).is_ok()),
        mtime,
        atime,
        ctime,
        map: None,
        inode: None,
        extended,
        refused,
        remark,
    })
}

impl Members for Library {
    fn next(&mut self) -> Result<Option<Member>, Fault> {
        let unexpected = || Fault::damaged("libarchive sent something else than expected");
        while self.inside {
            self.inside = match self.receive()? {
                DATA => true,
                END => false,
                _ => return Err(unexpected()),
            };
        }
        self.taken = usize::MAX;
        match self.receive()? {
            ENTRY => {
                self.inside = true;
                let bad = || Fault::damaged("libarchive sent no entry");
                decode(&self.body).ok_or_else(bad).map(Some)
            }
            DONE => Ok(None),
            _ => Err(unexpected()),
        }
    }

    fn data(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>, Fault> {
        loop {
            if let Some(rest) = self.body.get(self.taken..).filter(|rest| !rest.is_empty()) {
                let n = rest.len().min(buf.len());
                if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
                    to.copy_from_slice(from);
                }
                let at = self.offset;
                self.taken += n;
                self.offset += n as u64;
                return Ok(Some((at, n)));
            }
            if !self.inside {
                return Ok(None);
            }
            match self.receive()? {
                DATA => {
                    let bad = || Fault::damaged("libarchive sent no data");
                    let (offset, _) = self.body.split_first_chunk::<8>().ok_or_else(bad)?;
                    self.offset = u64::from_le_bytes(*offset);
                    let end = self.offset.checked_add(self.body.len() as u64);
                    if end.is_none_or(|end| i64::try_from(end).is_err()) {
                        return Err(Fault::damaged("data lies beyond the end of any file"));
                    }
                    self.taken = 8;
                }
                END => {
                    self.inside = false;
                    self.taken = usize::MAX;
                }
                _ => {
                    return Err(Fault::damaged(
                        "libarchive sent something else than expected",
                    ));
                }
            }
        }
    }

    fn in_place(&self) -> Option<Vec<Part>> {
        None
    }

    fn finish(&mut self) -> Result<u64, Fault> {
        Ok(0)
    }

    fn position(&self) -> u64 {
        self.done
    }

    fn left(&self) -> u64 {
        0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn bytes_go_between_threads_until_nobody_reads() {
        let (mut from, mut to) = bytes_between_threads();
        let writer = std::thread::spawn(move || {
            for piece in [&b"ab"[..], b"", b"cde"] {
                to.write_all(piece).unwrap();
            }
        });
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abcde");
        writer.join().unwrap();

        let (mut from, mut to) = bytes_between_threads();
        let writer = std::thread::spawn(move || {
            loop {
                if let Err(error) = to.write_all(b"endless") {
                    return error.kind();
                }
            }
        });
        from.read_exact(&mut [0; 10]).unwrap();
        drop(from);
        assert_eq!(writer.join().unwrap(), io::ErrorKind::BrokenPipe);
    }
}
