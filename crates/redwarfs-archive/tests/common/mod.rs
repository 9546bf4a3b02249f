//! Archives made by hand, and what becomes of them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use redwarfs_archive::{Archive, ArchiveOptions, ArchiveSource, Error};
use redwarfs_writer::{Counters, FileType, Level, Progress, Source};

/// Size of a block of tar in bytes.
pub(crate) const BLOCK: usize = 512;

/// A header of tar, of which tests change what they want.
#[derive(Debug, Clone)]
pub(crate) struct Header(pub(crate) [u8; BLOCK]);

impl Header {
    /// A ustar header: mode 0644, owner 1, group 2, time 3.
    pub(crate) fn new(name: &[u8], kind: u8, size: u64) -> Self {
        let mut block = [0; BLOCK];
        block[257..265].copy_from_slice(b"ustar\x0000");
        let mut header = Self(block).with(0, name).with(156, &[kind]);
        for (at, width, value) in [(100, 8, 0o644), (108, 8, 1), (116, 8, 2), (136, 12, 3)] {
            header = header.octal(at, width, value);
        }
        header.octal(124, 12, size)
    }

    pub(crate) fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn octal(self, at: usize, width: usize, value: u64) -> Self {
        let text = format!("{value:0digits$o}\0", digits = width - 1);
        self.with(at, text.as_bytes())
    }

    /// A number in binary.
    pub(crate) fn binary(self, at: usize, width: usize, value: i128) -> Self {
        let mut bytes = value.to_be_bytes()[16 - width..].to_vec();
        bytes[0] |= 0x80;
        self.with(at, &bytes)
    }

    pub(crate) fn link(self, target: &[u8]) -> Self {
        self.with(157, target)
    }

    pub(crate) fn gnu(self) -> Self {
        self.with(257, b"ustar  \0")
    }

    /// With its checksum.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let blank = self.clone().with(148, b"        ");
        let sum: u64 = blank.0.iter().map(|&b| u64::from(b)).sum();
        let sum = format!("{sum:06o}\0 ");
        blank.with(148, sum.as_bytes()).0.to_vec()
    }
}

/// Data, filled up to a whole block.
pub(crate) fn padded(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    out.resize(data.len().next_multiple_of(BLOCK), 0);
    out
}

/// A regular file.
pub(crate) fn file(name: &str, data: &[u8]) -> Vec<u8> {
    entry(name, b'0', b"", data)
}

pub(crate) fn dir(name: &str) -> Vec<u8> {
    entry(name, b'5', b"", b"")
}

/// Any entry.
pub(crate) fn entry(name: &str, kind: u8, link: &[u8], data: &[u8]) -> Vec<u8> {
    let header = Header::new(name.as_bytes(), kind, data.len() as u64).link(link);
    [header.bytes(), padded(data)].concat()
}

/// An extended header.
pub(crate) fn pax(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = 3 + key.len() + value.len();
        let mut length = rest + 1;
        while rest + length.to_string().len() != length {
            length = rest + length.to_string().len();
        }
        data.extend_from_slice(format!("{length} {key}=").as_bytes());
        data.extend_from_slice(value);
        data.push(b'\n');
    }
    let header = Header::new(b"pax", kind, data.len() as u64);
    [header.bytes(), padded(&data)].concat()
}

/// A whole archive.
pub(crate) fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = entries.concat();
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// Keeps messages.
#[derive(Default)]
pub(crate) struct Log {
    counters: Counters,
    lines: Mutex<Vec<String>>,
    entries_in_file: AtomicBool,
}

impl Progress for Log {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn log(&self, level: Level, message: &str) {
        if message.starts_with("entries wait in a temporary file") {
            self.entries_in_file
                .store(true, std::sync::atomic::Ordering::Relaxed);
        }
        if level <= Level::Info {
            let line = format!("{level:?}: {message}");
            self.lines.lock().unwrap().push(line);
        }
    }
}

/// What became of archives.
pub(crate) struct Outcome {
    pub(crate) source: Result<ArchiveSource, Error>,
    pub(crate) messages: Vec<String>,
    pub(crate) errors: u64,
    /// Whether the entries went to a temporary file.
    pub(crate) entries_in_file: bool,
}

/// Reads archives: the name of the directory for each, or nothing, and its bytes.
pub(crate) fn read(
    archives: &[(&str, &[u8])],
    change: impl FnOnce(&mut ArchiveOptions),
) -> Outcome {
    let place = tempfile::tempdir().unwrap();
    let mut options = ArchiveOptions {
        spool: place.path().to_owned(),
        ..ArchiveOptions::default()
    };
    change(&mut options);
    let mut all = Vec::new();
    for (number, (name, bytes)) in archives.iter().enumerate() {
        let path = place.path().join(format!("{number}.archive"));
        std::fs::write(&path, bytes).unwrap();
        all.push(Archive {
            path,
            name: (!name.is_empty()).then(|| name.as_bytes().to_vec()),
        });
    }
    let log = Log::default();
    let source = redwarfs_archive::read(&all, &options, &log, &AtomicBool::new(false));
    let left: Vec<PathBuf> = std::fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let errors = log
        .counters
        .errors
        .load(std::sync::atomic::Ordering::Relaxed);
    let entries_in_file = log.entries_in_file.into_inner();
    let messages = log.lines.into_inner().unwrap();
    let messages = messages
        .into_iter()
        .map(|line| line.replace(&place.path().join("").display().to_string(), ""));
    Outcome {
        source,
        messages: messages.collect(),
        errors,
        entries_in_file,
    }
}

/// Reads an archive in a file.
pub(crate) fn read_file(path: &std::path::Path) -> Outcome {
    let log = Log::default();
    let archive = Archive {
        path: path.to_owned(),
        name: None,
    };
    let options = ArchiveOptions::default();
    let source = redwarfs_archive::read(&[archive], &options, &log, &AtomicBool::new(false));
    let errors = (log.counters.errors).load(std::sync::atomic::Ordering::Relaxed);
    let entries_in_file = log.entries_in_file.into_inner();
    let messages = log.lines.into_inner().unwrap();
    let name = format!("{}: ", path.display());
    let messages = messages.iter().map(|line| line.replace(&name, ""));
    Outcome {
        source,
        messages: messages.collect(),
        errors,
        entries_in_file,
    }
}

/// Path, letter of the type as `ls` has it, and size of each entry.
pub(crate) fn entries(source: &dyn Source) -> Vec<(Vec<u8>, char, u64)> {
    let mut out = Vec::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        for item in source.read_dir(&path).unwrap() {
            let whole = match path.is_empty() {
                true => item.name,
                false => [&path[..], b"/", &item.name].concat(),
            };
            let meta = item.meta.unwrap();
            let letter = match meta.kind {
                FileType::Regular => '-',
                FileType::Directory => 'd',
                FileType::Symlink => 'l',
                FileType::CharDevice => 'c',
                FileType::BlockDevice => 'b',
                FileType::Fifo => 'p',
                FileType::Socket => 's',
            };
            if letter == 'd' {
                todo.push(whole.clone());
            }
            out.push((whole, letter, meta.size));
        }
    }
    out
}

/// A line for each entry: path, type and permissions, owner, size, time, target or contents.
pub(crate) fn lines(source: &dyn Source) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let mut items = source.read_dir(&path).unwrap();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        for item in items {
            let whole = match path.is_empty() {
                true => item.name,
                false => [&path[..], b"/", &item.name].concat(),
            };
            let meta = item.meta.unwrap();
            let mut line = format!("{} {:?}", whole.escape_ascii(), meta.kind);
            write!(line, " {:o} {}:{}", meta.permissions, meta.uid, meta.gid).unwrap();
            write!(line, " {}.{:09}", meta.mtime.sec, meta.mtime.nsec).unwrap();
            if meta.nlink > 1 {
                write!(line, " links={}", meta.nlink).unwrap();
            }
            match meta.kind {
                redwarfs_writer::FileType::Regular => {
                    write!(line, " {}", contents(source, &whole, meta.size)).unwrap();
                }
                redwarfs_writer::FileType::Directory => todo.push(whole),
                redwarfs_writer::FileType::Symlink => {
                    let target = meta.target.unwrap();
                    write!(line, " -> {}", target.escape_ascii()).unwrap();
                }
                _ => write!(line, " {:#x}", meta.rdev).unwrap(),
            }
            out.push(line);
        }
    }
    out.sort();
    out
}

/// The contents of a file as pieces: text, or the size of a hole.
fn contents(source: &dyn Source, path: &[u8], size: u64) -> String {
    let file = source.open(path).unwrap();
    assert_eq!(file.stamp().unwrap().size, size);
    let mut out = format!("{size}:");
    let mut at = 0;
    while at < size {
        let extent = file.next_data(at, size).unwrap();
        let start = extent.map_or(size, |extent| extent.offset);
        if start > at {
            write!(out, "<{}>", start - at).unwrap();
            let mut zeros = vec![1; (start - at).min(1000) as usize];
            let n = file.read_at(at, &mut zeros).unwrap();
            assert!(n > 0 && zeros[..n].iter().all(|&b| b == 0));
        }
        at = start;
        let Some(extent) = extent else { continue };
        let mut data = vec![0; extent.size as usize];
        let mut done = 0;
        while done < data.len() {
            let n = file.read_at(at + done as u64, &mut data[done..]).unwrap();
            assert_ne!(n, 0);
            done += n;
        }
        at += extent.size;
        match data.len() {
            0..=40 => write!(out, "{}", data.escape_ascii()).unwrap(),
            n => write!(out, "[{n} {}]", data[..8].escape_ascii()).unwrap(),
        }
    }
    out
}
