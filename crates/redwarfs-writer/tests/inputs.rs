//! Inputs that are awkward, damaged or change under the builder.

#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{build, compare, contents, open};
use redwarfs_format::section::{CompressionId, SectionType};
use redwarfs_writer::{
    BuildOptions, Builder, Content, DirItem, DirectorySource, Error, FileType, MemoryExtent,
    MemoryNode, MemoryTree, Meta, NilsimsaOptions, Order, SilentProgress, Source, ThreadStart,
};

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(3);
    options.block_size_bits = 12;
    options.workers = 2;
    options
}

#[test]
fn an_empty_tree_makes_an_image_without_blocks() {
    let tree = MemoryTree::new();
    for level in 0..=9 {
        let options = BuildOptions::level(level);
        let (bytes, summary) = build(&options, &tree);
        assert_eq!((summary.blocks, summary.inodes, summary.errors), (0, 1, 0));
        compare(&open(bytes), &tree, &options);
    }
}

#[test]
fn unreadable_inputs_are_empty_and_counted() {
    let mut tree = MemoryTree::new();
    let mut closed = MemoryNode::file("secret");
    closed.unreadable = true;
    let mut dir = MemoryNode::new(FileType::Directory);
    dir.unreadable = true;
    let mut broken = MemoryNode::file(vec![7; 100_000]);
    broken.fail_at = Some(70_000);
    tree.insert("closed", closed.clone());
    tree.insert("closed2", closed);
    tree.insert("dir", dir);
    tree.insert("dir/lost", MemoryNode::file("x"));
    tree.insert("broken", broken);
    tree.insert("fine", MemoryNode::file("fine"));
    let (bytes, summary) = build(&options(), &tree);
    assert_eq!(summary.errors, 4);
    let image = open(bytes);
    let size = |path: &[u8]| {
        image
            .stat(image.find_path(path).unwrap().unwrap())
            .unwrap()
            .size
    };
    assert_eq!(
        (
            size(b"closed"),
            size(b"closed2"),
            size(b"broken"),
            size(b"fine")
        ),
        (0, 0, 0, 4)
    );
    assert!(image.find_path(b"dir/lost").unwrap().is_none());
}

#[test]
fn files_that_differ_from_the_listing_are_stored_as_read() {
    let mut tree = MemoryTree::new();
    for (name, listed) in [("grown", 10), ("shrunk", 5000), ("same", 1000)] {
        let mut node = MemoryNode::file(vec![b'a'; 1000]);
        node.listed_size = Some(listed);
        tree.insert(name, node);
    }
    tree.insert("other", MemoryNode::file(vec![b'b'; 5000]));
    let (bytes, summary) = build(&options(), &tree);
    assert_eq!(summary.errors, 2);
    let image = open(bytes);
    for name in ["grown", "shrunk", "same"] {
        let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
        assert_eq!(contents(&image, inode), vec![b'a'; 1000], "{name}");
    }
}

/// Counts how often each file is opened.
#[derive(Debug)]
struct Counting {
    tree: MemoryTree,
    opened: Mutex<BTreeMap<Vec<u8>, u32>>,
}

impl Source for Counting {
    fn root(&self) -> std::io::Result<Meta> {
        self.tree.root()
    }

    fn read_dir(&self, path: &[u8]) -> std::io::Result<Vec<DirItem>> {
        self.tree.read_dir(path)
    }

    fn open(&self, path: &[u8]) -> std::io::Result<Box<dyn Content>> {
        *self
            .opened
            .lock()
            .unwrap()
            .entry(path.to_vec())
            .or_default() += 1;
        self.tree.open(path)
    }
}

/// Builds without errors. Returns how often each file was opened.
fn opened(options: &BuildOptions, tree: &MemoryTree) -> BTreeMap<Vec<u8>, u32> {
    let source = Counting {
        tree: tree.clone(),
        opened: Mutex::default(),
    };
    let (_, summary) = build(options, &source);
    assert_eq!(summary.errors, 0);
    source.opened.into_inner().unwrap()
}

#[test]
fn small_files_are_opened_once() {
    let mut tree = MemoryTree::new();
    for file in 0..300usize {
        // Some sizes occur once, and some contents more often.
        let text = if file < 30 { file } else { 7000 + file % 37 };
        let data = vec![(text % 35) as u8; text];
        tree.insert(format!("{file:03}"), MemoryNode::file(data));
    }
    for file in 0..3usize {
        let limit = vec![file as u8; 64 << 10];
        tree.insert(format!("limit{file}"), MemoryNode::file(limit));
        let large = vec![file as u8; 100_000];
        tree.insert(format!("large{file}"), MemoryNode::file(large));
    }
    for level in [1, 3, 7] {
        for order in [
            Order::Path,
            Order::Similarity,
            Order::Nilsimsa(Default::default()),
            Order::Versions(Default::default()),
            Order::Families(Default::default()),
        ] {
            let mut options = BuildOptions::level(level);
            options.order = order.clone();
            options.workers = 2;
            let opened = opened(&options, &tree);
            assert!(!opened.contains_key(&b"000"[..]), "it is empty");
            assert_eq!(opened.len(), 305);
            for (path, times) in opened {
                // Hashed, looked at for the order, stored.
                let most = if path.starts_with(b"large") { 3 } else { 1 };
                assert!(times <= most, "{order:?}: {path:?}, {times} times");
            }
        }
    }
}

#[test]
fn hollow_images_keep_sizes_only() {
    let mut tree = MemoryTree::new();
    tree.insert("file", MemoryNode::file("some data"));
    tree.insert(
        "huge",
        MemoryNode::sparse(vec![
            MemoryExtent::Hole(1 << 50),
            MemoryExtent::Data(vec![1]),
        ]),
    );
    let mut options = options();
    options.hollow = true;
    let (bytes, summary) = build(&options, &tree);
    assert_eq!(summary.blocks, 0);
    let image = open(bytes);
    let inode = image.find_path(b"file").unwrap().unwrap();
    assert_eq!(contents(&image, inode), [0; 9]);
    let huge = image
        .stat(image.find_path(b"huge").unwrap().unwrap())
        .unwrap();
    assert_eq!((huge.size, huge.allocated), ((1 << 50) + 1, 0));
}

#[test]
fn files_of_hollow_images_stay_closed() {
    let mut tree = MemoryTree::new();
    for version in 0..8 {
        tree.insert(format!("v{version}"), MemoryNode::new(FileType::Directory));
        for file in 0..8 {
            let text = format!("{file} ").repeat(100 + version);
            tree.insert(format!("v{version}/{file}"), MemoryNode::file(text));
        }
    }
    for level in 1..=9 {
        let mut options = BuildOptions::level(level);
        assert_eq!(opened(&options, &tree).len(), 64);
        options.hollow = true;
        assert!(opened(&options, &tree).is_empty(), "level {level}");
    }
}

#[test]
fn huge_holes_come_back() {
    let mut tree = MemoryTree::new();
    tree.insert(
        "a",
        MemoryNode::sparse(vec![
            MemoryExtent::Hole(1 << 50),
            MemoryExtent::Data(vec![1]),
            MemoryExtent::Hole(3),
        ]),
    );
    tree.insert(
        "b",
        MemoryNode::sparse(vec![MemoryExtent::Hole(u64::MAX >> 2)]),
    );
    let (bytes, _) = build(&options(), &tree);
    let image = open(bytes);
    let a = image.find_path(b"a").unwrap().unwrap();
    let mut around = [9; 6];
    assert_eq!(image.read_at(a, (1 << 50) - 2, &mut around).unwrap(), 6);
    assert_eq!(around, [0, 0, 1, 0, 0, 0]);
    let b = image.stat(image.find_path(b"b").unwrap().unwrap()).unwrap();
    assert_eq!((b.size, b.allocated), (u64::MAX >> 2, 0));
}

#[test]
fn empty_directories_can_be_dropped() {
    let mut tree = MemoryTree::new();
    for dir in ["a", "a/b", "a/b/c", "d", "d/e", "f"] {
        tree.insert(dir, MemoryNode::new(FileType::Directory));
    }
    tree.insert("d/e/file", MemoryNode::file("x"));
    tree.insert("f/link", MemoryNode::symlink("nowhere"));
    let mut options = options();
    options.remove_empty_dirs = true;
    let (bytes, _) = build(&options, &tree);
    let paths: Vec<String> = open(bytes)
        .walk()
        .map(|entry| String::from_utf8(entry.unwrap().path.clone()).unwrap())
        .collect();
    assert_eq!(paths, ["", "d", "d/e", "d/e/file", "f", "f/link"]);
}

#[test]
fn a_set_stop_flag_ends_the_build() {
    let result = Builder::new(options()).build(
        &MemoryTree::new(),
        &mut Vec::new(),
        &SilentProgress::default(),
        &AtomicBool::new(true),
    );
    assert!(matches!(result, Err(Error::Interrupted)));
}

#[test]
fn output_errors_end_the_build() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut tree = MemoryTree::new();
    let data: Vec<u8> = (0..200_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 15) as u8)
        .collect();
    tree.insert("file", MemoryNode::file(data));
    let result = Builder::new(options()).build(
        &tree,
        &mut Full,
        &SilentProgress::default(),
        &AtomicBool::new(false),
    );
    assert!(matches!(result, Err(Error::Output(_))));
}

#[test]
fn directories_of_the_host_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("sub/deeper")).unwrap();
    std::fs::write(root.join("sub/one"), "one").unwrap();
    std::fs::write(root.join("copy"), "one").unwrap();
    std::fs::hard_link(root.join("sub/one"), root.join("sub/deeper/two")).unwrap();
    symlink("../x", root.join("sub/link")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 22).unwrap();
    sparse.write_all_at(b"data", 1 << 21).unwrap();
    std::fs::write(root.join("out.dwarfs"), "being written").unwrap();
    let output = std::fs::File::open(root.join("out.dwarfs")).unwrap();
    let source = DirectorySource::new(root).unwrap().skip_file(&output);
    let (bytes, summary) = build(&options(), &source);
    assert_eq!(summary.errors, 0);
    let image = open(bytes);
    let find = |path: &str| image.find_path(path.as_bytes()).unwrap();
    assert!(find("out.dwarfs").is_none());
    assert_eq!(find("sub/one"), find("sub/deeper/two"));
    assert_eq!(image.stat(find("sub/one").unwrap()).unwrap().nlink, 2);
    assert_eq!(contents(&image, find("copy").unwrap()), b"one");
    assert_eq!(image.read_link(find("sub/link").unwrap()).unwrap(), b"../x");
    let stat = image.stat(find("sparse").unwrap()).unwrap();
    assert_eq!(stat.size, 1 << 22);
    let mut data = [0; 6];
    image
        .read_at(find("sparse").unwrap(), (1 << 21) - 1, &mut data)
        .unwrap();
    assert_eq!(&data, b"\0data\0");

    let list = ["sub/deeper/two", "copy", "./copy", "missing", "../outside"].map(Into::into);
    let (source, report) = DirectorySource::new(root).unwrap().with_list(list);
    assert_eq!(
        (
            report.duplicates.len(),
            report.missing.len(),
            report.outside.len()
        ),
        (1, 1, 1)
    );
    let image = open(build(&options(), &source).0);
    let paths: Vec<Vec<u8>> = image
        .walk()
        .map(|entry| entry.unwrap().path.clone())
        .collect();
    assert_eq!(
        paths,
        [&b""[..], b"copy", b"sub", b"sub/deeper", b"sub/deeper/two"]
    );
}

#[test]
fn what_takes_the_place_of_a_file_never_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir(root.join("sub")).unwrap();
    for name in ["fifo", "link", "dir", "gone", "sub/file", "same"] {
        std::fs::write(root.join(name), "old text").unwrap();
    }
    let source = Swapped {
        inner: DirectorySource::new(root).unwrap(),
        swap: std::sync::Once::new(),
        root: root.to_owned(),
    };
    let (bytes, summary) = build(&options(), &source);
    assert_eq!(summary.errors, 5);
    let image = open(bytes);
    for (name, content) in [
        ("fifo", &b""[..]),
        ("link", b""),
        ("dir", b""),
        ("gone", b""),
        ("sub/file", b""),
        ("same", b"old text"),
    ] {
        let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
        assert_eq!(contents(&image, inode), content, "{name}");
    }
}

/// Changes the tree between listing and reading.
#[derive(Debug)]
struct Swapped {
    inner: DirectorySource,
    swap: std::sync::Once,
    root: std::path::PathBuf,
}

impl Source for Swapped {
    fn root(&self) -> std::io::Result<Meta> {
        self.inner.root()
    }

    fn read_dir(&self, path: &[u8]) -> std::io::Result<Vec<DirItem>> {
        self.inner.read_dir(path)
    }

    fn open(&self, path: &[u8]) -> std::io::Result<Box<dyn Content>> {
        self.swap.call_once(|| {
            let path = |name: &str| self.root.join(name);
            for name in ["fifo", "link", "dir", "gone"] {
                std::fs::remove_file(path(name)).unwrap();
            }
            let status = std::process::Command::new("mkfifo")
                .arg(path("fifo"))
                .status();
            assert!(status.unwrap().success());
            symlink("same", path("link")).unwrap();
            std::fs::create_dir(path("dir")).unwrap();
            std::fs::rename(path("sub"), path("moved")).unwrap();
            symlink("moved", path("sub")).unwrap();
        });
        self.inner.open(path)
    }
}

#[test]
fn paths_may_be_longer_than_the_system_allows() {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let dir = tempfile::tempdir().unwrap();
    let name = "d".repeat(100);
    let mut at: std::os::fd::OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
    for _ in 0..100 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let leaf = openat(&at, "leaf", OFlags::CREATE | OFlags::RDWR, Mode::RWXU).unwrap();
    rustix::io::write(&leaf, b"text").unwrap();
    let (bytes, summary) = build(&options(), &DirectorySource::new(dir.path()).unwrap());
    assert_eq!(summary.errors, 0);
    let image = open(bytes);
    let path = [vec![name.as_str(); 100], vec!["leaf"]].concat().join("/");
    let leaf = image.find_path(path.as_bytes()).unwrap().unwrap();
    assert_eq!(contents(&image, leaf), b"text");
}

#[test]
fn names_and_targets_have_limits() {
    let mut tree = MemoryTree::new();
    for size in [255, 256, 512, 513] {
        tree.insert(vec![b'n'; size], MemoryNode::file(format!("{size}")));
    }
    for size in [4096, 4097] {
        tree.insert(format!("to{size}"), MemoryNode::symlink(vec![b't'; size]));
    }
    tree.insert("to nothing", MemoryNode::symlink(""));
    let (bytes, summary) = build(&options(), &tree);
    // The name, the target that is too long, and the one that is empty.
    assert_eq!(summary.errors, 3);
    let image = open(bytes);
    for size in [255, 256, 512] {
        let inode = image.find_path(&vec![b'n'; size]).unwrap().unwrap();
        assert_eq!(contents(&image, inode), format!("{size}").as_bytes());
    }
    assert!(image.find_path(&[b'n'; 513]).unwrap().is_none());
    let link = image.find_path(b"to4096").unwrap().unwrap();
    assert_eq!(image.read_link(link).unwrap(), vec![b't'; 4096]);
    assert!(image.find_path(b"to4097").unwrap().is_none());
    assert!(image.find_path(b"to nothing").unwrap().is_none());
}

/// Directories of entries that are made when they are asked for.
#[derive(Debug)]
struct Many {
    directories: u32,
    entries: u32,
    /// Link count of the files, which then are one.
    links: u64,
    listed: AtomicU64,
    most: AtomicU64,
}

impl Many {
    fn new(directories: u32, entries: u32, links: u64) -> Self {
        Self {
            directories,
            entries,
            links,
            listed: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
        }
    }
}

impl Source for Many {
    fn root(&self) -> std::io::Result<Meta> {
        Ok(MemoryNode::new(FileType::Directory).meta)
    }

    fn read_dir(&self, path: &[u8]) -> std::io::Result<Vec<DirItem>> {
        let (kind, count) = match path {
            b"" => (FileType::Directory, self.directories),
            _ => (FileType::Regular, self.entries),
        };
        if u64::from(count) > self.most.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        self.listed.fetch_add(1, Ordering::Relaxed);
        let mut meta = MemoryNode::new(kind).meta;
        if kind == FileType::Regular {
            (meta.nlink, meta.identity) = (self.links, (1, 1));
        }
        let item = |number| DirItem {
            name: format!("{number:06}").into(),
            meta: Ok(meta.clone()),
        };
        Ok((0..count).map(item).collect())
    }

    fn open(&self, _path: &[u8]) -> std::io::Result<Box<dyn Content>> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn most_entries(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }
}

#[test]
fn a_million_hard_links_are_one_inode() {
    let many = Many::new(1000, 1000, 1_000_000);
    let (bytes, summary) = build(&options(), &many);
    assert_eq!((summary.errors, summary.inodes), (0, 1002));
    let image = open(bytes);
    assert_eq!(image.metadata().entry_count(), 1_001_001);
    let first = image.find_path(b"000000/000000").unwrap().unwrap();
    let last = image.find_path(b"000999/000999").unwrap().unwrap();
    assert_eq!(first, last);
    assert_eq!(image.metadata().stat(last).unwrap().nlink, 1_000_000);
}

#[test]
fn a_limit_that_cannot_be_kept_ends_the_listing() {
    let fails = |options: &BuildOptions, source: &dyn Source| {
        let progress = SilentProgress::default();
        let stop = AtomicBool::new(false);
        let mut out = Vec::new();
        let built = Builder::new(options.clone()).build(source, &mut out, &progress, &stop);
        match built {
            Err(Error::MemoryLimit { needed, whole, .. }) => (needed, whole),
            other => panic!("{other:?}"),
        }
    };
    let mut options = options();
    options.memory_limit = Some(1 << 20);
    let many = Many::new(1000, 1000, 1);
    let (least, whole) = fails(&options, &many);
    assert!(!whole);
    assert_eq!(many.listed.load(Ordering::Relaxed), 0);
    // Room for a small part of the million entries.
    let limit = least + (15 << 20);
    options.memory_limit = Some(limit);
    let (needed, whole) = fails(&options, &many);
    assert!(!whole && needed > limit, "{needed} of {limit}");
    let listed = many.listed.load(Ordering::Relaxed);
    assert!((10..200).contains(&listed), "{listed}");
    // A single directory is refused before all of its entries are in memory.
    let many = Many::new(200_000, 0, 1);
    let (needed, _) = fails(&options, &many);
    assert!(needed > limit, "{needed} of {limit}");
    assert_eq!(many.listed.load(Ordering::Relaxed), 0);
    let host = tempfile::tempdir().unwrap();
    let host = DirectorySource::new(host.path()).unwrap();
    host.most_entries(0);
    assert!(host.read_dir(b"").unwrap().is_empty());
    std::fs::write(host.path().join("file"), "").unwrap();
    let kind = host.read_dir(b"").unwrap_err().kind();
    assert_eq!(kind, std::io::ErrorKind::QuotaExceeded);
    host.most_entries(1);
    assert_eq!(host.read_dir(b"").unwrap().len(), 1);
}

#[test]
fn threads_say_what_they_are_for() {
    let mut tree = MemoryTree::new();
    for i in 0..200u32 {
        let text = format!("{i} ").repeat(100 + i as usize % 7);
        tree.insert(format!("f{i}"), MemoryNode::file(text));
    }
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let mut options = BuildOptions::level(6);
    options.order = Order::Nilsimsa(NilsimsaOptions::default());
    options.block_size_bits = 12;
    options.workers = 1;
    let record = Arc::clone(&seen);
    options.thread_start = Some(ThreadStart::new(move |group| {
        let name = std::thread::current().name().map(str::to_owned);
        let group = format!("{group:?} {}", name.unwrap_or_default());
        record.lock().unwrap().insert(group);
    }));
    let (bytes, _) = build(&options, &tree);
    compare(&open(bytes), &tree, &options);
    let seen: Vec<String> = seen.lock().unwrap().iter().cloned().collect();
    let all = [
        "Compress compress",
        "Ordering order",
        "Scanner scan",
        "Segmenter segment",
    ];
    assert_eq!(seen, all);
}

#[test]
fn empty_directories_pass_the_check_of_the_format() {
    // Neither an empty directory's own entry nor its parent's may be where the entries of other
    // directories begin, in tables that are not packed.
    let mut tree = MemoryTree::new();
    for path in ["a", "b", "b/a", "b/a/a", "c", "c/a", "c/b", "c/b/c"] {
        tree.insert(path, MemoryNode::new(FileType::Directory));
    }
    tree.insert("b/a/file", MemoryNode::file("content"));
    for metadata in ["null", "zstd"] {
        let mut options = options();
        options.metadata_compression = metadata.parse().unwrap();
        let (bytes, _) = build(&options, &tree);
        let image = open(bytes);
        compare(&image, &tree, &options);
        let metadata = image.metadata().thaw().unwrap();
        if !metadata.options.unwrap().packed_directories {
            let entries = metadata.dir_entries.unwrap();
            for (number, dir) in (0u32..).zip(&metadata.directories).skip(1) {
                let above = entries[dir.parent_entry as usize].inode_num;
                assert!(above < number, "{number} {dir:?}");
            }
        }
    }
}

#[test]
fn metadata_gets_the_slow_codec_where_that_pays() {
    // Many versions of the same files: there is little but metadata.
    let mut versions = MemoryTree::new();
    // And noise, which needs hardly any.
    let mut noise = MemoryTree::new();
    let mut x = 1u32;
    let bytes = (0..300_000).map(|_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    });
    noise.insert("noise", MemoryNode::file(bytes.collect::<Vec<u8>>()));
    for file in 0..50 {
        noise.insert(format!("some-file-{file}"), MemoryNode::file(""));
    }
    for version in 0..60 {
        let top = format!("v{version:02}");
        versions.insert(top.clone(), MemoryNode::new(FileType::Directory));
        for file in 0..100 {
            let data = format!("{} {}", file * 7919 % 1000, (version + file) / 40);
            versions.insert(format!("{top}/file-{file}"), MemoryNode::file(data));
        }
    }
    let mut options = BuildOptions::level(7);
    options.workers = 2;
    let codec_of = |tree: &MemoryTree, options: &BuildOptions| {
        let (bytes, _) = build(options, tree);
        let image = open(bytes);
        compare(&image, tree, options);
        let mut sections = image.container().sections.iter();
        let metadata = sections.find(|section| section.ty == SectionType::METADATA_V2);
        metadata.unwrap().compression
    };
    assert_eq!(codec_of(&versions, &options), Some(CompressionId::LZMA));
    assert_eq!(codec_of(&noise, &options), Some(CompressionId::ZSTD));
    options.metadata_alternative = None;
    assert_eq!(codec_of(&versions, &options), Some(CompressionId::ZSTD));
}
