//! Files with equal hashes or contents, and files that change while they are read.
#![cfg(unix)]

use crate::common::{build, open};
use crate::sources::{content_of, image_of, options, paths};
use redwarfs_writer::{
    Content, DataExtent, DirItem, DirectorySource, FileHash, MemoryExtent, MemoryNode, MemoryTree,
    Meta, Source, Stamp,
};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two contents of 16 bytes with the same XXH3-64. The hash of such a short input is a function
/// of `swap(a) + b + fold(a * b)`. There, `a` and `b` are its halves with constants mixed in. If
/// one of them is zero the product is, too, and the sum cannot tell which one.
fn colliding() -> (Vec<u8>, Vec<u8>) {
    let mix = |a: u64, b: u64| a ^ b;
    let low = mix(0x1f67_b3b7_a4a4_4072, 0x78e5_c0cc_4ee6_79cb);
    let high = mix(0x2172_ffcc_7dd0_5a82, 0x8e24_43f7_7446_08b8);
    let pair = |a: u64, b: u64| [(a ^ low).to_le_bytes(), (b ^ high).to_le_bytes()].concat();
    let number = 0x0123_4567_89ab_cdef_u64;
    (pair(0, number), pair(number.swap_bytes(), 0))
}

#[test]
fn equal_hashes_do_not_make_equal_files() {
    let (a, b) = colliding();
    assert_ne!(a, b);
    let mut tree = MemoryTree::new();
    for (name, content) in [("1a", &a), ("2b", &b), ("3a", &a), ("4b", &b)] {
        tree.insert(name, MemoryNode::file(content.clone()));
        // These are not kept in memory while they are hashed.
        let hole = vec![MemoryExtent::Data(content.clone()), MemoryExtent::Hole(0)];
        let mut sparse = MemoryNode::sparse(hole);
        sparse.meta.allocated = 1;
        tree.insert(format!("{name}-slow"), sparse);
    }
    let stored = |verify: bool, hash| {
        let mut options = options();
        options.file_hash = Some(hash);
        options.verify_duplicates = verify;
        let (bytes, summary) = build(&options, &tree);
        assert_eq!(summary.errors, 0);
        let image = open(bytes);
        let all: BTreeMap<String, Vec<u8>> = paths(&image)
            .into_iter()
            .map(|path| (path.clone(), content_of(&image, &path)))
            .collect();
        (all, summary.block_bytes)
    };
    let right = |all: &BTreeMap<String, Vec<u8>>| {
        all.iter()
            .all(|(path, content)| content == if path.contains('a') { &a } else { &b })
    };
    let (fooled, _) = stored(false, FileHash::Xxh3_64);
    assert!(!right(&fooled), "the contents do not collide");
    let (all, size) = stored(true, FileHash::Xxh3_64);
    assert!(right(&all), "{all:?}");
    assert_eq!(size, 32, "each is stored once");
    let (all, size) = stored(false, FileHash::Sha256);
    assert!(right(&all));
    assert_eq!(size, 32);
}

/// Files that are not in memory are compared by reading all of them once more.
#[test]
fn large_duplicates_are_compared_by_reading() {
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 5) as u8).collect();
    let mut source = Counted::default();
    for i in 0..20 {
        let node = MemoryNode::file(data.clone());
        source.inner.insert(format!("copy{i}"), node);
    }
    let mut read = Vec::new();
    for verify in [false, true] {
        let mut options = options();
        options.verify_duplicates = verify;
        source.bytes.store(0, Ordering::Relaxed);
        let (bytes, summary) = build(&options, &source);
        assert_eq!(
            (summary.errors, summary.block_bytes),
            (0, data.len() as u64)
        );
        assert_eq!(content_of(&open(bytes), "copy7"), data);
        read.push(source.bytes.load(Ordering::Relaxed));
    }
    // The first one twice: sixteen are compared with it at a time.
    assert_eq!(read[1] - read[0], 21 * data.len() as u64);
}

/// Holes are not read to compare them.
#[test]
fn holes_of_duplicates_are_skipped() {
    let mut source = Counted::default();
    let pieces = |first: u64| {
        vec![
            MemoryExtent::Data(vec![5; 100_000]),
            MemoryExtent::Hole(first),
            MemoryExtent::Hole((100 << 20) - first),
            MemoryExtent::Data(vec![6; 100_000]),
        ]
    };
    for (name, first) in [("a", 0), ("b", 1 << 20), ("c", 50 << 20)] {
        source.inner.insert(name, MemoryNode::sparse(pieces(first)));
    }
    let (bytes, summary) = build(&options(), &source);
    assert_eq!((summary.errors, summary.block_bytes), (0, 200_000));
    assert_eq!(content_of(&open(bytes), "c").len(), (100 << 20) + 200_000);
    let read = source.bytes.load(Ordering::Relaxed);
    assert!(read < 4 << 20, "{read}");
}

/// Counts what is read.
#[derive(Debug, Default)]
struct Counted {
    inner: MemoryTree,
    bytes: Arc<AtomicU64>,
}

impl Source for Counted {
    fn root(&self) -> io::Result<Meta> {
        self.inner.root()
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        self.inner.read_dir(path)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        Ok(Box::new(CountedContent {
            content: self.inner.open(path)?,
            bytes: Arc::clone(&self.bytes),
        }))
    }
}

struct CountedContent {
    content: Box<dyn Content>,
    bytes: Arc<AtomicU64>,
}

impl Content for CountedContent {
    fn stamp(&self) -> io::Result<Stamp> {
        self.content.stamp()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.content.read_at(offset, buf)?;
        self.bytes.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        self.content.next_data(offset, end)
    }
}

/// Something happens to a file of the host when it is read for the first time.
#[derive(Debug)]
struct Disturbed {
    inner: DirectorySource,
    root: std::path::PathBuf,
}

struct DisturbedContent {
    content: Box<dyn Content>,
    path: std::path::PathBuf,
    reads: std::cell::Cell<u32>,
}

impl Source for Disturbed {
    fn root(&self) -> io::Result<Meta> {
        self.inner.root()
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        self.inner.read_dir(path)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        Ok(Box::new(DisturbedContent {
            content: self.inner.open(path)?,
            path: self.root.join(std::str::from_utf8(path).unwrap()),
            reads: std::cell::Cell::new(0),
        }))
    }
}

impl Content for DisturbedContent {
    fn stamp(&self) -> io::Result<Stamp> {
        self.content.stamp()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.content.read_at(offset, buf)?;
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() == 1 {
            let file = fs::OpenOptions::new().write(true).open(&self.path)?;
            match self.path.file_name().unwrap().to_str().unwrap() {
                "shrinks" => file.set_len(1_100_000)?,
                "empties" => file.set_len(0)?,
                "grows" => file.set_len(9_000_000)?,
                "touched" => file.set_modified(std::time::UNIX_EPOCH)?,
                "vanishes" => fs::remove_file(&self.path)?,
                _ => {}
            }
        }
        Ok(got)
    }
}

/// What was read is stored; a change is counted and does no harm to other files.
#[test]
fn files_that_change_while_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 7) as u8).collect();
    let names = [
        "empties", "grows", "quiet", "shrinks", "touched", "vanishes",
    ];
    for (number, name) in names.iter().enumerate() {
        // Files of one size would be hashed, and read more than once.
        fs::write(dir.path().join(name), &data[number..]).unwrap();
    }
    let source = Disturbed {
        inner: DirectorySource::new(dir.path()).unwrap(),
        root: dir.path().to_owned(),
    };
    let (image, errors) = image_of(&source);
    assert_eq!(errors, 4);
    for (number, name) in names.iter().enumerate() {
        let whole = &data[number..];
        let stored = content_of(&image, name);
        let want = match *name {
            // A read takes a mebibyte.
            "empties" => &whole[..1 << 20],
            "shrinks" => &whole[..1_100_000],
            _ => whole,
        };
        assert!(stored == want, "{name}: {}", stored.len());
    }
}

/// A file that vanishes before its extended attributes are read counts once, and leaves nothing.
#[cfg(unix)]
#[test]
fn a_file_that_vanishes_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    for name in ["gone", "stays"] {
        fs::write(path.join(name), name).unwrap();
    }
    // The filter runs between both.
    let filter = move |name: &[u8], _| {
        if name == b"gone" {
            fs::remove_file(path.join("gone")).unwrap();
        }
        true
    };
    let source = DirectorySource::new(dir.path()).unwrap();
    let (image, errors) = image_of(&source.with_filter(Box::new(filter)));
    assert_eq!(errors, 1);
    assert_eq!(image.find_path(b"gone").unwrap(), None);
    assert_eq!(content_of(&image, "stays"), b"stays");
}

/// The same for files that are read to find out whether they are equal.
#[test]
fn equal_files_that_change_while_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 7) as u8).collect();
    for name in ["grows", "quiet", "quiet2", "shrinks", "touched", "vanishes"] {
        fs::write(dir.path().join(name), &data).unwrap();
    }
    let source = Disturbed {
        inner: DirectorySource::new(dir.path()).unwrap(),
        root: dir.path().to_owned(),
    };
    let (image, errors) = image_of(&source);
    assert!(errors >= 3, "{errors}");
    for name in ["quiet", "quiet2", "touched"] {
        assert!(content_of(&image, name) == data, "{name}");
    }
    assert!(content_of(&image, "grows").starts_with(&data));
    assert!(data.starts_with(&content_of(&image, "shrinks")));
}
