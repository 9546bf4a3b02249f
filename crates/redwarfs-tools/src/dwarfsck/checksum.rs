//! Checksums of files, in the form of `sha256sum` and its relatives.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use redwarfs_format::metadata::{Extent, FileType, MetadataView};
use redwarfs_format::{EntryIndex, InodeNo};
use redwarfs_reader::Image;
use sha2::Digest as _;

use super::output::{Failures, Form, output_error};
use crate::common::Result;
use crate::common::env;
use crate::common::json::JsonWriter;
use crate::common::log::Logger;
use crate::common::suggest::unknown;

/// Contents are read in pieces of this size.
const PIECE: usize = 1 << 20;

macro_rules! algorithms {
    ($($name:literal, $variant:ident, $state:ty;)*) => {
        /// A checksum.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Algorithm {
            $($variant,)*
            Md5Sha1,
            Xxh3_64,
            Xxh3_128,
        }

        impl Algorithm {
            /// Names, as `mkdwarfs --file-hash` knows them.
            const ALL: &[(&str, Self)] = &[
                $(($name, Self::$variant),)*
                ("md5-sha1", Self::Md5Sha1),
                ("xxh3-64", Self::Xxh3_64),
                ("xxh3-128", Self::Xxh3_128),
            ];

            /// The names of all algorithms.
            pub(super) fn names() -> impl Iterator<Item = &'static str> {
                Self::ALL.iter().map(|(name, _)| *name)
            }

            fn name(self) -> &'static str {
                let mut all = Self::ALL.iter();
                all.find(|(_, own)| *own == self).map_or("", |(name, _)| name)
            }

            fn hasher(self) -> Hasher {
                match self {
                    $(Self::$variant => Hasher::$variant(Box::new(<$state>::new())),)*
                    Self::Md5Sha1 => Hasher::Md5Sha1(Box::new((md5::Md5::new(), sha1::Sha1::new()))),
                    Self::Xxh3_64 => Hasher::Xxh3_64(Box::default()),
                    Self::Xxh3_128 => Hasher::Xxh3_128(Box::default()),
                }
            }
        }

        enum Hasher {
            $($variant(Box<$state>),)*
            Md5Sha1(Box<(md5::Md5, sha1::Sha1)>),
            Xxh3_64(Box<twox_hash::XxHash3_64>),
            Xxh3_128(Box<twox_hash::XxHash3_128>),
        }

        impl Hasher {
            fn update(&mut self, data: &[u8]) {
                match self {
                    $(Self::$variant(h) => h.update(data),)*
                    Self::Md5Sha1(h) => {
                        h.0.update(data);
                        h.1.update(data);
                    }
                    Self::Xxh3_64(h) => std::hash::Hasher::write(h.as_mut(), data),
                    Self::Xxh3_128(h) => h.write(data),
                }
            }

            /// The digest in hexadecimal. XXH3 appears in the byte order of the file hash of images,
            /// which is the reverse of the canonical one.
            fn hex(self) -> String {
                match self {
                    $(Self::$variant(h) => hex(&h.finalize()),)*
                    Self::Md5Sha1(h) => hex(&h.0.finalize()) + &hex(&h.1.finalize()),
                    Self::Xxh3_64(h) => hex(&std::hash::Hasher::finish(h.as_ref()).to_le_bytes()),
                    Self::Xxh3_128(h) => hex(&h.finish_128().to_le_bytes()),
                }
            }
        }
    };
}

algorithms! {
    "blake2b512", Blake2b512, blake2::Blake2b512;
    "blake2s256", Blake2s256, blake2::Blake2s256;
    "md5", Md5, md5::Md5;
    "ripemd160", Ripemd160, ripemd::Ripemd160;
    "sha1", Sha1, sha1::Sha1;
    "sha224", Sha224, sha2::Sha224;
    "sha256", Sha256, sha2::Sha256;
    "sha3-224", Sha3_224, sha3::Sha3_224;
    "sha3-256", Sha3_256, sha3::Sha3_256;
    "sha3-384", Sha3_384, sha3::Sha3_384;
    "sha3-512", Sha3_512, sha3::Sha3_512;
    "sha384", Sha384, sha2::Sha384;
    "sha512", Sha512, sha2::Sha512;
    "sha512-224", Sha512_224, sha2::Sha512_224;
    "sha512-256", Sha512_256, sha2::Sha512_256;
    "sm3", Sm3, sm3::Sm3;
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, algorithm)| *algorithm)
            .ok_or_else(|| {
                unknown(
                    format_args!("checksum algorithm not available: {name}"),
                    Self::names(),
                )
            })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// One line; names with newlines, carriage returns or backslashes are escaped as `sha256sum` does,
/// unless lines end in NUL.
fn line(algorithm: Algorithm, digest: &str, path: &[u8], form: Form) -> Vec<u8> {
    match form {
        Form::Lines => {}
        Form::Null => return [digest.as_bytes(), b"  ", path, b"\0"].concat(),
        Form::Json => return object(algorithm, digest, path).unwrap_or_default(),
    }
    let special = |b: &u8| matches!(b, b'\n' | b'\r' | b'\\');
    let mut out = Vec::with_capacity(digest.len() + path.len() + 4);
    if path.iter().any(special) {
        out.push(b'\\');
    }
    out.extend_from_slice(digest.as_bytes());
    out.extend_from_slice(b"  ");
    for &b in path {
        match b {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            _ => out.push(b),
        }
    }
    out.push(b'\n');
    out
}

/// A line of JSON. Writing to memory does not fail.
fn object(algorithm: Algorithm, digest: &str, path: &[u8]) -> io::Result<Vec<u8>> {
    let mut json = JsonWriter::compact(Vec::new());
    json.begin_object()?;
    json.string_at("algorithm", algorithm.name())?;
    json.string_at("checksum", digest)?;
    json.name("path", path)?;
    json.end_object()?;
    json.finish()?;
    Ok(json.into_inner())
}

/// A distinct content: where its data begins, and which of the sorted names have it.
struct Content {
    position: u64,
    inode: InodeNo,
    names: std::ops::Range<usize>,
}

/// A name of a regular file: the number of its content and its entry.
type Name = (u32, EntryIndex);

/// The names of all regular files, sorted by content. Takes 8 bytes per name.
fn names(image: &Image, failures: &mut Failures<'_>) -> Vec<Name> {
    let metadata = image.metadata();
    let mut names = Vec::new();
    for item in image.walk() {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                failures.add("cannot list an entry", None, &e);
                continue;
            }
        };
        let content = match metadata.file_type(item.inode) {
            Ok(FileType::Regular) => metadata.content_id(item.inode),
            Ok(_) => continue,
            Err(e) => Err(e),
        };
        match content {
            Ok(content) => names.push((content, item.entry)),
            Err(e) => failures.add("cannot read", Some(&item.path), &e),
        }
    }
    names.sort_unstable();
    names
}

/// The contents in the order of their data. Takes 32 bytes per content.
fn contents(image: &Image, names: &[Name]) -> Vec<Content> {
    let mut contents = Vec::new();
    let mut start = 0;
    for group in names.chunk_by(|a, b| a.0 == b.0) {
        let end = start + group.len();
        let inode = group
            .first()
            .and_then(|(_, entry)| image.metadata().entry_inode(*entry).ok());
        if let Some(inode) = inode {
            contents.push(Content {
                position: first_data(image, inode),
                inode,
                names: start..end,
            });
        }
        start = end;
    }
    contents.sort_by_key(|content| content.position);
    contents
}

/// Longest path that is put together, as in a walk.
const LONGEST_PATH: usize = 64 << 10;

/// The path of an entry: its name, with those of the directories around it.
fn path_of(view: &MetadataView, of: EntryIndex) -> redwarfs_format::Result<Vec<u8>> {
    let corrupt = || redwarfs_format::Error::corrupt(format!("no path to entry {of}"));
    let mut entry = of;
    let mut reversed: Vec<u8> = Vec::new();
    loop {
        // The entries of directories follow each other in the order of the directories.
        let (mut low, mut high) = (0, view.counts().directories);
        while low < high {
            let middle = low + (high - low) / 2;
            if view.directory_record(middle)?.first_entry <= entry.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // Empty directories begin where the next one does, so the last of them is meant.
        let dir = InodeNo(low.checked_sub(1).ok_or_else(corrupt)?);
        if !view.entries(dir)?.contains(&entry.0) {
            return Err(corrupt());
        }
        reversed.extend(view.entry_name(entry)?.iter().rev());
        if dir == InodeNo::ROOT {
            reversed.reverse();
            return Ok(reversed);
        }
        reversed.push(b'/');
        if reversed.len() > LONGEST_PATH {
            return Err(corrupt());
        }
        entry = view.self_entry(dir)?;
    }
}

/// Contents that may be read before their turn to be printed. A digest that waits takes some 200 bytes.
const AHEAD: usize = 1 << 16;

/// The lines in the order of the data, whichever content is read first.
struct Printer<'a> {
    image: &'a Image,
    algorithm: Algorithm,
    form: Form,
    names: &'a [Name],
    contents: &'a [Content],
    out: io::BufWriter<io::Stdout>,
    error: Option<io::Error>,
    failures: Failures<'a>,
    /// Number of the next content to print.
    next: usize,
    /// Digests of later contents.
    waiting: BTreeMap<usize, redwarfs_format::Result<String>>,
}

impl Printer<'_> {
    /// Takes the digest of a content, and prints all whose turn it is.
    fn add(&mut self, number: usize, digest: redwarfs_format::Result<String>) -> io::Result<()> {
        self.waiting.insert(number, digest);
        while let Some(digest) = self.waiting.remove(&self.next) {
            self.print(self.next, &digest)?;
            self.next += 1;
        }
        Ok(())
    }

    fn print(&mut self, number: usize, digest: &redwarfs_format::Result<String>) -> io::Result<()> {
        let names = self
            .contents
            .get(number)
            .map(|content| content.names.clone());
        for (_, entry) in names
            .and_then(|range| self.names.get(range))
            .unwrap_or_default()
        {
            let path = match path_of(self.image.metadata(), *entry) {
                Ok(path) => path,
                Err(e) => {
                    self.failures.add("cannot name a file", None, &e);
                    continue;
                }
            };
            match digest {
                Ok(digest) => {
                    self.out
                        .write_all(&line(self.algorithm, digest, &path, self.form))?;
                }
                Err(e) => self.failures.add("cannot read", Some(&path), e),
            }
        }
        Ok(())
    }
}

/// What the threads share that read contents and print their digests.
struct Work<'a> {
    printer: Mutex<Printer<'a>>,
    /// A content was printed, or the work ends.
    changed: Condvar,
    /// Number of the next content to read.
    next: AtomicUsize,
    ended: AtomicBool,
}

impl Work<'_> {
    fn run(&self, image: &Image, algorithm: Algorithm, contents: &[Content]) {
        // Nobody waits for the turn of a thread that is gone.
        let _end = EndOnPanic(self);
        let mut buffer = vec![0; PIECE];
        while !self.ended.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(content) = contents.get(number) else {
                break;
            };
            let digest = digest(image, content.inode, algorithm, &mut buffer);
            let printer = self.printer.lock().unwrap_or_else(PoisonError::into_inner);
            // The content whose turn it is never waits here.
            let early = |printer: &mut Printer<'_>| {
                number - printer.next >= AHEAD && !self.ended.load(Ordering::Relaxed)
            };
            let mut printer = self
                .changed
                .wait_while(printer, early)
                .unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = printer.add(number, digest) {
                printer.error.get_or_insert(e);
                self.ended.store(true, Ordering::Relaxed);
            }
            drop(printer);
            self.changed.notify_all();
        }
    }
}

struct EndOnPanic<'a, 'b>(&'a Work<'b>);

impl Drop for EndOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // With the lock, nobody is between looking and waiting.
            let _printer = self
                .0
                .printer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.0.ended.store(true, Ordering::Relaxed);
            self.0.changed.notify_all();
        }
    }
}

/// Prints the checksum of every regular file, each content read once and in the order of the data:
/// the same lines for any number of `workers`. Returns the number of files that cannot be read; they
/// are reported to `logger`.
pub(super) fn print(
    image: &Image,
    algorithm: Algorithm,
    workers: usize,
    form: Form,
    logger: &Logger,
) -> Result<u64> {
    let mut failures = Failures::new(logger);
    let names = names(image, &mut failures);
    let contents = contents(image, &names);
    let printer = Printer {
        image,
        algorithm,
        form,
        names: &names,
        contents: &contents,
        out: io::BufWriter::new(io::stdout()),
        error: None,
        failures,
        next: 0,
        waiting: BTreeMap::new(),
    };
    let work = Work {
        printer: Mutex::new(printer),
        changed: Condvar::new(),
        next: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    };
    let run = || work.run(image, algorithm, &contents);
    let affinity = env::affinity("checksum");
    std::thread::scope(|scope| {
        for number in 1..workers.min(contents.len().max(1)) {
            // The work gets done by fewer threads as well.
            let _ = std::thread::Builder::new()
                .name(format!("checksum{number}"))
                .spawn_scoped(scope, || {
                    if let Some(cpus) = affinity {
                        let _ = cpus.pin_current_thread();
                    }
                    run();
                });
        }
        run();
    });
    let mut printer = work
        .printer
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    match printer
        .error
        .take()
        .map_or_else(|| printer.out.flush(), Err)
    {
        Ok(()) => Ok(printer.failures.count()),
        Err(e) => Err(output_error(&e)),
    }
}

/// Where the data of a file begins, comparable between files. Only the first pieces are looked at:
/// what begins with more holes than that may come in any order.
fn first_data(image: &Image, ino: InodeNo) -> u64 {
    const PIECES: usize = 64;
    let Ok(extents) = image.metadata().extents(ino) else {
        return 0;
    };
    for extent in extents.take(PIECES) {
        if let Ok(Extent::Data { block, offset, .. }) = extent {
            return u64::from(block.0) << 32 | u64::from(offset);
        }
    }
    0
}

fn digest(
    image: &Image,
    ino: InodeNo,
    algorithm: Algorithm,
    buffer: &mut [u8],
) -> redwarfs_format::Result<String> {
    let mut hasher = algorithm.hasher();
    let size = image.stat(ino)?.size;
    let mut offset = 0;
    while offset < size {
        let n = image.read_at(ino, offset, buffer)?;
        if n == 0 {
            return Err(redwarfs_format::Error::corrupt(
                "file is shorter than its size",
            ));
        }
        hasher.update(buffer.get(..n).unwrap_or_default());
        offset += n as u64;
    }
    Ok(hasher.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        for (name, expected) in [
            ("md5", "900150983cd24fb0d6963f7d28e17f72"),
            ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                "sha256",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                "sha512-256",
                "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23",
            ),
            ("ripemd160", "8eb208f7e05d987a9b044a8e98c6b087f15a0bfc"),
            (
                "sm3",
                "66c7f0f462eeedd9d1f2d46bdc10e4e24167c4875cf2f7a2297da02b8f4ba8e0",
            ),
        ] {
            let mut hasher = name.parse::<Algorithm>().unwrap().hasher();
            hasher.update(b"abc");
            assert_eq!(hasher.hex(), expected, "{name}");
        }
        for (name, algorithm) in Algorithm::ALL {
            let mut whole = algorithm.hasher();
            whole.update(b"abcdef");
            let mut parts = algorithm.hasher();
            parts.update(b"abc");
            parts.update(b"def");
            assert_eq!(whole.hex(), parts.hex(), "{name}");
        }
        assert_eq!(
            "foo"
                .parse::<Algorithm>()
                .unwrap_err()
                .split(" (one of blake2b512, ")
                .next(),
            Some("checksum algorithm not available: foo")
        );
    }

    #[test]
    fn odd_names_are_escaped() {
        let line = |path: &[u8], form| line(Algorithm::Md5, "00", path, form);
        assert_eq!(line(b"a b", Form::Lines), b"00  a b\n");
        assert_eq!(line(b"a\nb\\c", Form::Lines), b"\\00  a\\nb\\\\c\n");
        assert_eq!(line(b"a\nb\\c", Form::Null), b"00  a\nb\\c\0");
        assert_eq!(
            line(b"a\nb", Form::Json),
            b"{\"algorithm\":\"md5\",\"checksum\":\"00\",\"path\":\"a\\nb\"}\n"
        );
    }
}
