//! Checksums of files, in the form of `sha256sum` and its relatives.

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use redwarfs_format::metadata::{Extent, FileType, MetadataView};
use redwarfs_format::{EntryIndex, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::Error as PoolError;
use redwarfs_writer::ordered::{self, Turn};
use sha2::Digest as _;

use super::output::{Failures, Form, output_error};
use crate::common::json::JsonWriter;
use crate::common::log::Logger;
use crate::common::suggest::unknown;
use crate::common::{Result, ToolError, env};

/// Contents are read in pieces of this size.
const PIECE: usize = 1 << 20;
/// Digests that wait for that of an earlier content, which may be large or come from a slow medium. Each takes some 200 bytes.
const WAITING: u32 = 65_536;

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
    let affinity = env::affinity("checksum");
    let next = AtomicU32::new(0);
    let start = || {
        if let Some(cpus) = affinity {
            let _ = cpus.pin_current_thread();
        }
        let mut buffer = vec![0; PIECE];
        let (next, contents) = (&next, &contents);
        move || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            contents.get(number as usize).map_or(Turn::End, |content| {
                let digest = digest(image, content.inode, algorithm, &mut buffer);
                Turn::Done(number, (content, digest))
            })
        }
    };
    let mut out = io::BufWriter::new(io::stdout());
    let take = |(content, digest): (&Content, redwarfs_format::Result<String>)| {
        for (_, entry) in names.get(content.names.clone()).unwrap_or_default() {
            let path = match path_of(image.metadata(), *entry) {
                Ok(path) => path,
                Err(e) => {
                    failures.add("cannot name a file", None, &e);
                    continue;
                }
            };
            match &digest {
                Ok(digest) => {
                    let line = line(algorithm, digest, &path, form);
                    out.write_all(&line).map_err(PoolError::Output)?;
                }
                Err(e) => failures.add("cannot read", Some(&path), e),
            }
        }
        Ok(())
    };
    let threads = workers.min(contents.len());
    ordered::run(
        "checksum",
        threads,
        0,
        Some(WAITING),
        start,
        || Ok(()),
        take,
    )
    .and_then(|()| out.flush().map_err(PoolError::Output))
    .map_err(|e| match e {
        PoolError::Output(e) => output_error(&e),
        PoolError::Thread(e) => ToolError::new("cannot start a thread").io(&e),
        other => ToolError::new(other.to_string()),
    })?;
    Ok(failures.count())
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
