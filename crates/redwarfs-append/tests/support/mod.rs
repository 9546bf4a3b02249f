//! Trees in memory, and images of them with many nights.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_append::{
    Archiving, Base, BaseOptions, Change, Compacted, Compaction, Error, Punched, TableChange,
    Trust, change, diff, punch,
};
use redwarfs_format::metadata::{Extent, FileType, Timestamp};
use redwarfs_io::{LockedFile, Medium, MemorySource};
use redwarfs_reader::check::{CheckOptions, DeclaredImage, SectionList, VerifyMode};
use redwarfs_reader::{Image, ImageOffset, OpenOptions, SnapshotChoice};
use redwarfs_rewrite::merge::MergeOptions;
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{BuildOptions, Builder, MemoryNode, MemoryTree, SilentProgress};

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn options(workers: usize) -> BuildOptions {
    let mut options = BuildOptions::level(4);
    options.block_size_bits = 16;
    options.workers = workers;
    options.create_timestamp = Some(1_000);
    options
}

pub(crate) fn tree_of(files: &Files, time: i64) -> MemoryTree {
    let mut tree = MemoryTree::new();
    let ends = |path: &str| -> Vec<usize> { path.match_indices('/').map(|(at, _)| at).collect() };
    let dirs: BTreeSet<&str> = (files.keys())
        .flat_map(|path| ends(path).into_iter().map(|end| &path[..end]))
        .collect();
    for dir in dirs {
        tree.insert(dir, MemoryNode::new(FileType::Directory));
    }
    for (path, bytes) in files {
        let mut node = MemoryNode::file(bytes.clone());
        node.meta.mtime = Timestamp { sec: time, nsec: 0 };
        tree.insert(path.clone(), node);
    }
    tree
}

pub(crate) fn build(files: &Files) -> Vec<u8> {
    build_with(files, &options(1))
}

pub(crate) fn build_with(files: &Files, options: &BuildOptions) -> Vec<u8> {
    build_tree(&tree_of(files, 0), options)
}

pub(crate) fn build_tree(tree: &MemoryTree, options: &BuildOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options.clone());
    builder.build(tree, &mut out, &progress, &stop).unwrap();
    out
}

/// The image with a night more.
pub(crate) fn append(image: &[u8], files: &Files, name: &str, options: &BuildOptions) -> Vec<u8> {
    append_tree(image, &tree_of(files, 5), name, options)
}

/// The same with any tree.
pub(crate) fn append_tree(
    image: &[u8],
    tree: &MemoryTree,
    name: &str,
    options: &BuildOptions,
) -> Vec<u8> {
    let time = Timestamp {
        sec: 2_000,
        nsec: 0,
    };
    let mut base = BaseOptions::new(name, time);
    base.trust = Trust::Nothing;
    let base = Base::open(Arc::new(MemorySource::new(image.to_vec())), base).unwrap();
    let mut out = image.to_vec();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options.clone());
    builder
        .append(&base, tree, &mut out, &progress, &stop)
        .unwrap();
    assert!(out.starts_with(image));
    out
}

pub(crate) fn open(bytes: &[u8], snapshot: Option<&str>) -> Image {
    let mut options = OpenOptions::default();
    options.snapshot = snapshot.map(|text| SnapshotChoice {
        text: text.into(),
        time: None,
    });
    Image::from_source(Arc::new(MemorySource::new(bytes.to_vec())), &options).unwrap()
}

pub(crate) fn read(image: &Image) -> Files {
    let mut files = Files::new();
    for entry in image.walk() {
        let entry = entry.unwrap();
        if image.metadata().file_type(entry.inode).unwrap() == FileType::Regular {
            let mut bytes = vec![0; image.stat(entry.inode).unwrap().size as usize];
            assert_eq!(
                image.read_at(entry.inode, 0, &mut bytes).unwrap(),
                bytes.len()
            );
            files.insert(String::from_utf8(entry.path.to_vec()).unwrap(), bytes);
        }
    }
    files
}

pub(crate) fn check(bytes: &[u8]) {
    let list = SectionList::read(&MemorySource::new(bytes.to_vec()), 0, None).unwrap();
    let mut options = CheckOptions::default();
    options.mode = VerifyMode::Integrity;
    options.decode = true;
    let image = open(bytes, None);
    let report = image
        .check(list, DeclaredImage::default(), &options, &|_| {})
        .unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

/// The image with another table of snapshots.
pub(crate) fn changed(image: &[u8], changes: &[TableChange]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(LockedFile::open(file.path()).unwrap());
    change(&medium, ImageOffset::Auto, changes).unwrap();
    std::fs::read(file.path()).unwrap()
}

pub(crate) fn diff_of(old: &Image, new: &Image) -> Vec<Change> {
    let mut all = Vec::new();
    diff(old, new, false, &mut |change| {
        all.push(change);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// A night of a tree: files change, move, go, come back, and come from others.
pub(crate) fn night(random: &mut Random, files: &mut Files, older: &[Files]) {
    for _ in 0..1 + random.below(4) {
        let names: Vec<String> = files.keys().cloned().collect();
        let any = |random: &mut Random| {
            names
                .get(random.below(names.len() as u64) as usize)
                .cloned()
        };
        let fresh = format!("f{}", random.below(30));
        match (random.below(7), any(random)) {
            (0, Some(name)) => drop(files.remove(&name)),
            (1, Some(name)) => {
                let bytes = files.remove(&name).unwrap();
                files.insert(fresh, bytes);
            }
            (2, Some(name)) => {
                // From two files.
                let mut bytes = files[&name].clone();
                bytes.extend_from_slice(&files[&any(random).unwrap()]);
                files.insert(fresh, bytes);
            }
            (3, _) => {
                let old = &older[random.below(older.len() as u64) as usize];
                files.extend(
                    old.iter()
                        .take(2)
                        .map(|(name, bytes)| (name.clone(), bytes.clone())),
                );
            }
            (4 | 5, Some(name)) => {
                let bytes = files.get_mut(&name).unwrap();
                let at = random.below(bytes.len() as u64 + 1) as usize;
                let end = bytes.len().min(at + random.below(50) as usize);
                let length = random.below(300) as usize;
                bytes.splice(at..end, random.bytes(length));
            }
            _ => {
                let size = [0, 1, 255, 256, 3_000, 70_000][random.below(6) as usize];
                let data = if random.below(2) == 0 {
                    random.bytes(size)
                } else {
                    random.text(size)
                };
                files.insert(fresh, data);
            }
        }
    }
}

/// All that an image says of its entries, and the sums.
pub(crate) fn told(image: &Image) -> BTreeMap<String, String> {
    let view = image.metadata();
    let mut told = BTreeMap::new();
    for entry in image.walk() {
        let entry = entry.unwrap();
        let inode = entry.inode;
        let stat = image.stat(inode).unwrap();
        let mut text = format!(
            "{:o} {} {} {} {} {} {} {:?} {:?} {:?} {:?} {:x}",
            stat.mode,
            stat.nlink,
            stat.uid,
            stat.gid,
            stat.rdev,
            stat.size,
            stat.allocated,
            stat.atime,
            stat.mtime,
            stat.ctime,
            view.birth_time(inode).unwrap(),
            view.file_flags(inode).unwrap(),
        );
        for xattr in image.xattrs(inode).unwrap() {
            let value = image.xattr_value(&xattr).unwrap();
            text += &format!(" {:?}={value:?}", xattr.name().unwrap());
        }
        match view.file_type(inode).unwrap() {
            FileType::Symlink => text += &format!(" {:?}", image.read_link(inode).unwrap()),
            FileType::Regular => {
                let mut bytes = vec![0; stat.size.min(1 << 20) as usize];
                let n = image.read_at(inode, 0, &mut bytes).unwrap();
                let end = image.read_at(inode, stat.size.saturating_sub(10), &mut [0; 10]);
                text += &format!(" {:?} {:?}", &bytes[..n], end.unwrap());
                let holes = view
                    .extents(inode)
                    .unwrap()
                    .filter_map(|extent| match extent {
                        Ok(Extent::Hole { size }) => Some(size),
                        _ => None,
                    });
                text += &format!(" {:?}", holes.collect::<Vec<_>>());
            }
            _ => {}
        }
        told.insert(String::from_utf8(entry.path.to_vec()).unwrap(), text);
    }
    let (totals, kinds) = (view.totals(), view.options());
    let kinds = (
        kinds.mtime_only,
        kinds.has_btime,
        view.create_timestamp().is_some(),
    );
    let text = format!(
        "{totals:?} {} {kinds:?} {:?}",
        view.inode_count(),
        view.xattr_scope()
    );
    told.insert("//".into(), text);
    told
}

pub(crate) fn rebuilt(image: &[u8], archiving: Archiving, workers: usize) -> (Vec<u8>, Compacted) {
    rebuilt_in(16, image, archiving, workers)
}

/// With blocks of so many bits.
pub(crate) fn rebuilt_in(
    bits: u32,
    image: &[u8],
    archiving: Archiving,
    workers: usize,
) -> (Vec<u8>, Compacted) {
    let plan = Compaction::of(&open(image, None)).unwrap();
    let mut options = MergeOptions::level(4);
    options.metadata.workers = workers;
    options.metadata.block_size_bits = bits;
    options.version_history = false;
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let done = plan
        .rebuild(&options, archiving, &mut out, &progress, &stop)
        .unwrap();
    assert_eq!(
        (done.old_size, done.new_size),
        (image.len() as u64, out.len() as u64)
    );
    (out, done)
}

pub(crate) fn archived(image: &[u8], newest: u32) -> Vec<u8> {
    rebuilt(image, Archiving::AllBut(newest), 1).0
}

pub(crate) fn medium(bytes: &[u8]) -> (tempfile::NamedTempFile, Arc<dyn Medium>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let medium = LockedFile::open(file.path()).unwrap();
    (file, Arc::new(medium))
}

/// What the image is when the space of deleted snapshots was given back. None where the system cannot do that.
pub(crate) fn punched(image: &[u8]) -> Option<(Vec<u8>, Punched)> {
    let (file, giving) = medium(image);
    match punch(&giving, ImageOffset::Auto, &AtomicBool::new(false)) {
        Err(Error::Io(e)) if cfg!(windows) && e.kind() == io::ErrorKind::Unsupported => {
            eprintln!("SKIPPED: giving space back: Windows makes no holes in files");
            None
        }
        done => Some((std::fs::read(file.path()).unwrap(), done.unwrap())),
    }
}

pub(crate) fn choice(text: &str) -> SnapshotChoice {
    SnapshotChoice {
        text: text.into(),
        time: None,
    }
}

/// Which snapshots are archived.
pub(crate) fn archived_in(image: &[u8]) -> Vec<u32> {
    let table = open(image, None).snapshots().unwrap();
    let archived = table.present().filter(|one| one.archived);
    archived.map(|one| one.number.0).collect()
}

/// With everything that an image can have.
pub(crate) fn rich_options(workers: usize) -> BuildOptions {
    let mut options = options(workers);
    options.keep_all_times = true;
    options.keep_birth_times = true;
    options.file_flags = true;
    options.with_devices = true;
    options.with_specials = true;
    options
}

/// Some nights.
pub(crate) fn nights(seed: u64, count: u32) -> (Vec<u8>, Vec<Files>) {
    let mut random = Random::new(seed);
    let mut files: Files = (0..6_u32)
        .map(|n| (format!("f{n}"), random.text(3_000 << n)))
        .collect();
    let mut states = vec![files.clone()];
    let mut image = build(&files);
    for number in 2..=count {
        night(&mut random, &mut files, &states);
        image = append(&image, &files, &format!("n{number}"), &options(1));
        states.push(files.clone());
    }
    (image, states)
}
