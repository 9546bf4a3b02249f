//! Sources that select, change and add entries, and inputs that lie or loop.
#![cfg(unix)]

use crate::common::{build, contents, open};
use redwarfs_reader::Image;
use redwarfs_writer::{
    BuildOptions, Builder, Content, Counters, Declaration, DeclarationError, Declared,
    DeclaredSource, DirItem, DirectorySource, FileType, Level, MemoryNode, MemoryTree, Meta,
    Progress, Source, Symlinks, Tag, Timestamp,
};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

pub(crate) fn options() -> BuildOptions {
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 16;
    options.workers = 2;
    options
}

pub(crate) fn paths(image: &Image) -> Vec<String> {
    image
        .walk()
        .map(|entry| String::from_utf8(entry.unwrap().path.clone()).unwrap())
        .filter(|path| !path.is_empty())
        .collect()
}

/// Builds an image of a source; the image and the number of errors.
pub(crate) fn image_of(source: &dyn Source) -> (Image, u64) {
    let (bytes, summary) = build(&options(), source);
    (open(bytes), summary.errors)
}

pub(crate) fn content_of(image: &Image, path: &str) -> Vec<u8> {
    contents(image, image.find_path(path.as_bytes()).unwrap().unwrap())
}

#[test]
fn symlinks_are_kept_followed_or_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::create_dir_all(dir.path().join("outside/deep")).unwrap();
    fs::write(root.join("file"), "text").unwrap();
    fs::write(dir.path().join("outside/deep/far"), "far away").unwrap();
    symlink("../file", root.join("sub/to-file")).unwrap();
    symlink("../outside", root.join("to-dir")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("..", root.join("sub/up")).unwrap();
    symlink("self", root.join("self")).unwrap();
    let with = |policy| {
        let source = DirectorySource::new(&root).unwrap().with_symlinks(policy);
        image_of(&source)
    };

    let (image, errors) = with(Symlinks::Keep);
    assert_eq!(errors, 0);
    let links = [
        "dangling",
        "file",
        "self",
        "sub",
        "sub/to-file",
        "sub/up",
        "to-dir",
    ];
    assert_eq!(paths(&image), links);

    let (image, errors) = with(Symlinks::Drop);
    assert_eq!(errors, 0);
    assert_eq!(paths(&image), ["file", "sub"]);

    // Two that point to nothing, one that points above itself.
    let (image, errors) = with(Symlinks::Follow);
    assert_eq!(errors, 3);
    let followed = [
        "file",
        "sub",
        "sub/to-file",
        "sub/up",
        "to-dir",
        "to-dir/deep",
        "to-dir/deep/far",
    ];
    assert_eq!(paths(&image), followed);
    assert_eq!(content_of(&image, "sub/to-file"), b"text");
    assert_eq!(content_of(&image, "to-dir/deep/far"), b"far away");
}

#[test]
fn lists_do_not_lead_through_symlinks() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/file"), "text").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let list = |path: &str| {
        let source = DirectorySource::new(dir.path()).unwrap();
        source.with_list([path.into()])
    };
    for (path, want) in [
        (
            "link/file",
            "'link' is a symbolic link, which is not followed",
        ),
        (
            "link/none/x",
            "'link' is a symbolic link, which is not followed",
        ),
        ("real/file/x", "'real/file' is not a directory"),
        ("real/file/x/y", "'real/file' is not a directory"),
        ("real/none/x", "No such file or directory (os error 2)"),
    ] {
        let (source, report) = list(path);
        assert_eq!(report.missing, [(path.into(), want.to_owned())]);
        assert!(paths(&image_of(&source).0).is_empty());
    }
    let followed = DirectorySource::new(dir.path())
        .unwrap()
        .with_symlinks(Symlinks::Follow)
        .with_list(["link/file".into()]);
    assert_eq!(paths(&image_of(&followed.0).0), ["link", "link/file"]);
}

#[test]
fn tagged_directories_keep_their_tag_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for name in ["", "cache", "cache/sub", "other", "build", "build/x"] {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), "text").unwrap();
    }
    let signature = "Signature: 8a477f597d28d172789f06886806bc55\n# words\n";
    for name in ["", "cache"] {
        fs::write(root.join(name).join("CACHEDIR.TAG"), signature).unwrap();
    }
    fs::write(root.join("other/CACHEDIR.TAG"), "Signature: another one").unwrap();
    fs::create_dir(root.join("build/.nobackup")).unwrap();
    let source = DirectorySource::new(root)
        .unwrap()
        .without_tagged(vec![Tag::Cache, Tag::Name(b".nobackup".to_vec())]);
    let (image, errors) = image_of(&source);
    assert_eq!(errors, 0);
    // The root carries a tag, too, and stays complete.
    let want = [
        "CACHEDIR.TAG",
        "build",
        "build/.nobackup",
        "cache",
        "cache/CACHEDIR.TAG",
        "file",
        "other",
        "other/CACHEDIR.TAG",
        "other/file",
    ];
    assert_eq!(paths(&image), want);
}

#[test]
fn hard_links_can_be_dissolved() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), vec![7; 100_000]).unwrap();
    for name in ["b", "c"] {
        fs::hard_link(dir.path().join("a"), dir.path().join(name)).unwrap();
    }
    for (dissolve, links) in [(false, 3), (true, 1)] {
        let mut options = options();
        options.dissolve_hard_links = dissolve;
        let source = DirectorySource::new(dir.path()).unwrap();
        let (bytes, summary) = build(&options, &source);
        assert_eq!(summary.block_bytes, 100_000, "the content is stored once");
        let image = open(bytes);
        for name in ["a", "b", "c"] {
            let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
            assert_eq!(image.stat(inode).unwrap().nlink, links);
            assert_eq!(contents(&image, inode), vec![7; 100_000]);
        }
    }
}

#[test]
fn ids_and_times_can_be_changed() {
    let mut tree = MemoryTree::new();
    for (name, id, sec) in [("a", 1000, 50), ("b", 5, 100), ("c", u32::MAX, 101)] {
        let mut node = MemoryNode::file("x");
        (node.meta.uid, node.meta.gid) = (id, id);
        node.meta.mtime = Timestamp { sec, nsec: 7 };
        tree.insert(name, node);
    }
    let mut options = options();
    options.map_owner = Some(redwarfs_writer::IdTransform::new(|id| id.wrapping_add(1)));
    options.set_group = Some(9);
    options.map_group = Some(redwarfs_writer::IdTransform::new(|_| 1));
    options.latest_time = Some(100);
    options.time_resolution = redwarfs_writer::TimeResolution::NANOSECOND;
    let image = open(build(&options, &tree).0);
    for (name, uid, sec, nsec) in [("a", 1001, 50, 7), ("b", 6, 100, 0), ("c", 0, 100, 0)] {
        let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
        let stat = image.stat(inode).unwrap();
        assert_eq!((stat.uid, stat.gid), (uid, 9), "{name}");
        assert_eq!((stat.mtime.sec, stat.mtime.nsec), (sec, nsec), "{name}");
    }
}

fn declaration(path: &str, what: Declared) -> Declaration {
    Declaration {
        path: path.into(),
        what,
        permissions: None,
        uid: None,
        gid: None,
        xattrs: Vec::new(),
    }
}

#[test]
fn declared_entries_take_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("host");
    fs::write(&host, "from the host").unwrap();
    let mut tree = MemoryTree::new();
    tree.insert("etc", MemoryNode::new(FileType::Directory));
    tree.insert("etc/passwd", MemoryNode::file("root"));
    tree.insert("etc/replaced", MemoryNode::file("old"));
    tree.insert("plain", MemoryNode::file("plain"));
    tree.insert("disk", MemoryNode::new(FileType::BlockDevice));
    tree.insert("pipe", MemoryNode::new(FileType::Fifo));
    let mut declarations = vec![
        declaration("dev/null", Declared::CharDevice(rustix::fs::makedev(1, 3))),
        declaration("dev/sda", Declared::BlockDevice(rustix::fs::makedev(8, 0))),
        declaration("dev/sock", Declared::Socket),
        declaration("dev/fifo", Declared::Fifo),
        declaration("etc", Declared::Directory),
        declaration("etc/passwd", Declared::Change),
        declaration("etc/replaced", Declared::Symlink(b"passwd".to_vec())),
        declaration("etc/new", Declared::File(Some(host.clone()))),
        declaration("etc/empty", Declared::File(None)),
        declaration("a/b/c", Declared::Directory),
        declaration("", Declared::Change),
        declaration("missing", Declared::Change),
        declaration("plain/below", Declared::Fifo),
    ];
    for declaration in &mut declarations {
        if ["etc/passwd", "etc", "", "dev/null"]
            .map(str::as_bytes)
            .contains(&&*declaration.path)
        {
            declaration.permissions = Some(0o1601);
            (declaration.uid, declaration.gid) = (Some(4_000_000_000), Some(6));
        }
    }
    let time = Timestamp { sec: 77, nsec: 0 };
    let source = DeclaredSource::new(Arc::new(tree), declarations, time, false, true).unwrap();
    let mut options = options();
    (options.with_devices, options.with_specials) = (true, true);
    let (bytes, summary) = build(&options, &source);
    assert_eq!(summary.errors, 0);
    let image = open(bytes);
    let want = [
        "a",
        "a/b",
        "a/b/c",
        "dev",
        "dev/fifo",
        "dev/null",
        "dev/sda",
        "dev/sock",
        "etc",
        "etc/empty",
        "etc/new",
        "etc/passwd",
        "etc/replaced",
        "pipe",
        "plain",
    ];
    assert_eq!(paths(&image), want);
    let stat = |path: &str| {
        image
            .stat(image.find_path(path.as_bytes()).unwrap().unwrap())
            .unwrap()
    };
    for (path, mode) in [
        ("", 0o041_601),
        ("etc", 0o041_601),
        ("etc/passwd", 0o101_601),
        ("dev/null", 0o021_601),
    ] {
        let stat = stat(path);
        assert_eq!(
            (stat.mode, stat.uid, stat.gid),
            (mode, 4_000_000_000, 6),
            "{path}"
        );
    }
    assert_eq!(stat("dev/null").rdev, rustix::fs::makedev(1, 3));
    assert_eq!(stat("dev/sda").rdev, rustix::fs::makedev(8, 0));
    for (path, mode) in [
        ("dev", 0o040_755),
        ("dev/sda", 0o060_644),
        ("dev/sock", 0o140_644),
        ("dev/fifo", 0o010_644),
        ("a/b/c", 0o040_755),
    ] {
        let stat = stat(path);
        assert_eq!(
            (stat.mode, stat.uid, stat.mtime.sec),
            (mode, 0, 77),
            "{path}"
        );
    }
    assert_eq!(content_of(&image, "etc/passwd"), b"root");
    assert_eq!(content_of(&image, "etc/new"), b"from the host");
    assert_eq!(
        stat("etc/new").mtime.sec,
        fs::metadata(&host).unwrap().mtime()
    );
    assert_eq!(content_of(&image, "etc/empty"), b"");
    let link = image.find_path(b"etc/replaced").unwrap().unwrap();
    assert_eq!(image.read_link(link).unwrap(), b"passwd");
    assert_eq!(source.unused(), [&b"missing"[..], b"plain/below"]);
}

#[test]
fn declarations_that_contradict_each_other() {
    let new = |declarations| {
        let time = Timestamp::default();
        DeclaredSource::new(Arc::new(MemoryTree::new()), declarations, time, true, true).map(|_| ())
    };
    let twice = vec![
        declaration("a", Declared::Fifo),
        declaration("a", Declared::Change),
    ];
    assert_eq!(new(twice), Err(DeclarationError::Twice(b"a".to_vec())));
    let below = vec![
        declaration("a/b", Declared::Fifo),
        declaration("a/b/c", Declared::Directory),
    ];
    assert_eq!(
        new(below),
        Err(DeclarationError::NotADirectory(b"a/b".to_vec()))
    );
}

#[test]
fn a_directory_that_contains_itself_is_empty() {
    /// A file system that shows its root again in a directory.
    #[derive(Debug)]
    struct Looping;
    impl Source for Looping {
        fn root(&self) -> io::Result<Meta> {
            let mut meta = MemoryNode::new(FileType::Directory).meta;
            meta.identity = (1, 1);
            Ok(meta)
        }
        fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
            let inode = if path.ends_with(b"sub") { 1 } else { 2 };
            let mut meta = self.root()?;
            meta.identity = (1, inode);
            let name = if inode == 1 { "loop" } else { "sub" };
            Ok(vec![DirItem {
                name: name.into(),
                meta: Ok(meta),
            }])
        }
        fn open(&self, _path: &[u8]) -> io::Result<Box<dyn Content>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }
    let (image, errors) = image_of(&Looping);
    assert_eq!(errors, 1);
    assert_eq!(paths(&image), ["sub", "sub/loop"]);
}

/// Remembers what it is told.
#[derive(Default)]
struct Listener {
    counters: Counters,
    messages: Mutex<Vec<String>>,
}

impl Progress for Listener {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn log(&self, _: Level, message: &str) {
        self.messages.lock().unwrap().push(message.to_owned());
    }
}

/// Directories in directories, in which entries of all kinds cannot be had.
fn troubled() -> MemoryTree {
    let mut tree = MemoryTree::new();
    let mut below = vec![(String::new(), 0)];
    while let Some((up, depth)) = below.pop() {
        for number in 0..7 {
            let path = format!("{up}d{number}");
            let mut dir = MemoryNode::new(FileType::Directory);
            // Those at the left go deeper.
            if depth < 6 - number {
                below.push((format!("{path}/"), depth + 1));
            }
            dir.unreadable = (number + depth) % 5 == 4;
            // Some are so large that they are listed ahead.
            dir.listed_size = (number % 3 != 2).then_some(10_000);
            // The innermost ones contain the first.
            dir.meta.identity = (1, if depth > 4 { 1 } else { 0 });
            if path == "d0" {
                dir.meta.identity = (1, 1);
            }
            tree.insert(path.clone(), dir);
            for file in 0..(number * 3 + depth) {
                let mut node = MemoryNode::file(format!("{} of {number}", file % 5));
                node.unreadable = file % 4 == 3;
                tree.insert(format!("{path}/f{file}"), node);
            }
        }
    }
    tree
}

#[test]
fn listing_in_parallel_changes_nothing() {
    let tree = troubled();
    let build = |workers: usize| {
        let mut options = options();
        options.workers = workers;
        let (listener, mut bytes) = (Listener::default(), Vec::new());
        let stop = AtomicBool::new(false);
        Builder::new(options)
            .build(&tree, &mut bytes, &listener, &stop)
            .unwrap();
        (bytes, listener.messages.into_inner().unwrap())
    };
    let (bytes, messages) = build(1);
    let count = |what: &str| messages.iter().filter(|m| m.contains(what)).count();
    assert!(count("contains itself") > 3, "{messages:?}");
    assert!(count("cannot read directory") > 3 && count("cannot read file") > 3);
    open(bytes.clone());
    for workers in [2, 3, 8] {
        let (others, said) = build(workers);
        assert_eq!(said, messages, "{workers}");
        assert!(others == bytes, "{workers}");
    }
}

#[test]
fn directories_that_are_too_large_to_be_listed_ahead() {
    let dir = tempfile::tempdir().unwrap();
    for (name, files) in [("a", 10), ("b", 5000), ("c", 4000), ("d", 4000), ("e", 1)] {
        fs::create_dir(dir.path().join(name)).unwrap();
        for file in 0..files {
            fs::File::create(dir.path().join(name).join(format!("{file}"))).unwrap();
        }
    }
    let source = DirectorySource::new(dir.path()).unwrap();
    let image = |workers: usize| {
        let mut options = options();
        options.workers = workers;
        build(&options, &source).0
    };
    let one = image(1);
    assert_eq!(paths(&open(one.clone())).len(), 5 + 13_011);
    for workers in [2, 4] {
        assert!(image(workers) == one, "{workers}");
    }
}

#[test]
fn bind_mounts_that_loop_and_other_file_systems() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub/again")).unwrap();
    fs::create_dir(root.join("other")).unwrap();
    fs::write(root.join("sub/file"), "text").unwrap();
    fs::write(root.join("single"), "hidden").unwrap();
    let mounted = Mounted::new(&[
        (&["--bind"], &root, &root.join("sub/again")),
        (&["-t", "tmpfs"], Path::new("tmpfs"), &root.join("other")),
    ]);
    let Some(_mounted) = mounted else {
        eprintln!("SKIPPED: bind mounts need root");
        return;
    };
    fs::write(root.join("other/there"), "elsewhere").unwrap();
    let single = Mounted::new(&[(&["--bind"], &root.join("other/there"), &root.join("single"))]);
    assert!(single.is_some());

    let (image, errors) = image_of(&DirectorySource::new(&root).unwrap());
    assert_eq!(errors, 1);
    let everything = [
        "other",
        "other/there",
        "single",
        "sub",
        "sub/again",
        "sub/file",
    ];
    assert_eq!(paths(&image), everything);
    assert_eq!(content_of(&image, "single"), b"elsewhere");

    let source = DirectorySource::new(&root)
        .unwrap()
        .one_file_system()
        .unwrap();
    let (image, errors) = image_of(&source);
    // The bind mount is of the same file system.
    assert_eq!(errors, 1);
    assert_eq!(paths(&image), ["other", "sub", "sub/again", "sub/file"]);
    assert_eq!(source.elsewhere(), [b"other".to_vec(), b"single".to_vec()]);
}

/// Files of an overlay have the device number of their layer, also those that were copied up.
#[test]
fn files_of_an_overlay_belong_to_its_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let [lower, upper, merged] = ["lower", "upper", "merged"].map(|name| dir.path().join(name));
    for name in [&lower, &upper, &merged] {
        fs::create_dir(name).unwrap();
    }
    fs::create_dir_all(lower.join("sub")).unwrap();
    for name in ["file", "changed", "sub/deep", "mounted", "own"] {
        fs::write(lower.join(name), "lower").unwrap();
    }
    std::os::unix::fs::symlink("file", lower.join("link")).unwrap();
    let tmpfs = Mounted::new(&[(&["-t", "tmpfs"], Path::new("tmpfs"), &upper)]);
    let Some(_tmpfs) = tmpfs else {
        eprintln!("SKIPPED: mounting an overlay needs root");
        return;
    };
    for name in ["upper", "work"] {
        fs::create_dir(upper.join(name)).unwrap();
    }
    fs::write(upper.join("single"), "elsewhere").unwrap();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.join("upper").display(),
        upper.join("work").display()
    );
    let overlay = ["-t", "overlay", "-o", &options];
    let Some(_overlay) = Mounted::new(&[(&overlay, Path::new("overlay"), &merged)]) else {
        eprintln!("SKIPPED: no overlayfs here");
        return;
    };
    fs::write(merged.join("changed"), "upper").unwrap();
    fs::create_dir(merged.join("tmp")).unwrap();
    let mounts = Mounted::new(&[
        (&["-t", "tmpfs"], Path::new("tmpfs"), &merged.join("tmp")),
        // As a container has its `/etc/hosts`.
        (&["--bind"], &upper.join("single"), &merged.join("mounted")),
    ]);
    assert!(mounts.is_some());
    fs::write(merged.join("tmp/there"), "elsewhere").unwrap();

    let all = ["changed", "file", "link", "own", "sub", "sub/deep", "tmp"];
    let source = DirectorySource::new(&merged).unwrap();
    let source = source.one_file_system().unwrap();
    let (image, errors) = image_of(&source);
    assert_eq!(errors, 0);
    assert_eq!(paths(&image), all);
    assert_eq!(content_of(&image, "changed"), b"upper");
    assert_eq!(content_of(&image, "file"), b"lower");
    assert_eq!(source.elsewhere(), [b"mounted".to_vec(), b"tmp".to_vec()]);
}

/// Mounts that go when this goes.
struct Mounted(Vec<std::path::PathBuf>);

impl Mounted {
    fn new(mounts: &[(&[&str], &Path, &Path)]) -> Option<Self> {
        let mut done = Self(Vec::new());
        for (options, what, at) in mounts {
            let status = std::process::Command::new("mount")
                .args(*options)
                .arg(what)
                .arg(at)
                .stderr(std::process::Stdio::null())
                .status();
            if !status.is_ok_and(|status| status.success()) {
                return None;
            }
            done.0.push((*at).to_owned());
        }
        Some(done)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = std::process::Command::new("umount")
                .arg("-l")
                .arg(at)
                .status();
        }
    }
}
