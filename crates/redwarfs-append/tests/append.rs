//! Continuing an image: what is stored, which generations there are, and what a failure leaves behind.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redwarfs_append::{BaseOptions, Error, InPlace, Trust, roll_back};
use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_format::section::Link;
use redwarfs_io::{Medium, MemorySource, Source};
use redwarfs_reader::check::{CheckOptions, DeclaredImage, SectionList, VerifyMode};
use redwarfs_reader::{Image, ImageOffset, OpenOptions, SnapshotChoice};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, BuildSummary, Builder, MemoryNode, MemoryTree, SilentProgress,
};

/// What a file in memory went through.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// A file in memory that records all changes, and fails at one of them.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    bytes: Mutex<Vec<u8>>,
    ops: Mutex<Vec<Op>>,
    fail_at: Mutex<Option<usize>>,
    dead: AtomicBool,
}

impl Recorder {
    pub(crate) fn of(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes.to_vec()),
            ..Self::default()
        })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn op(&self, op: Op) -> io::Result<()> {
        let mut ops = self.ops.lock().unwrap();
        let fails = *self.fail_at.lock().unwrap() == Some(ops.len());
        if fails || self.dead.load(Ordering::Relaxed) {
            self.fail_at.lock().unwrap().take();
            return Err(io::ErrorKind::StorageFull.into());
        }
        apply(&mut self.bytes.lock().unwrap(), &op);
        ops.push(op);
        Ok(())
    }
}

fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, data) => {
            let (at, end) = (*at as usize, *at as usize + data.len());
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(data);
        }
        Op::Length(length) => bytes.resize(*length as usize, 0),
        Op::Sync => {}
    }
}

impl Source for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap();
        let part = usize::try_from(offset)
            .ok()
            .and_then(|at| bytes.get(at..at.checked_add(buf.len())?));
        buf.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Medium for Recorder {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.op(Op::Write(offset, bytes.to_vec()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.op(Op::Length(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.op(Op::Sync)
    }
}

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(3);
    options.block_size_bits = 16;
    options.workers = 2;
    options.create_timestamp = Some(1_000_000);
    options
}

pub(crate) fn build(tree: &MemoryTree) -> Vec<u8> {
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options());
    builder.build(tree, &mut out, &progress, &stop).unwrap();
    out
}

fn base_options(name: &str) -> BaseOptions {
    BaseOptions::new(
        name,
        Timestamp {
            sec: 2_000_000,
            nsec: 5,
        },
    )
}

fn append_with(
    file: &Arc<dyn Medium>,
    tree: &MemoryTree,
    base: BaseOptions,
) -> Result<BuildSummary, Error> {
    let place = InPlace::on(Arc::clone(file), base)?;
    let mut writer = place.writer()?;
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options());
    let summary = builder.append(place.base(), tree, &mut writer, &progress, &stop)?;
    writer.flush()?;
    writer.commit()?;
    Ok(summary)
}

pub(crate) fn append(file: &Arc<Recorder>, tree: &MemoryTree, name: &str) -> BuildSummary {
    let file: Arc<dyn Medium> = Arc::<Recorder>::clone(file);
    append_with(&file, tree, base_options(name)).unwrap()
}

/// The files of an image.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn read(image: &Image) -> Files {
    let mut files = Files::new();
    for entry in image.walk() {
        let entry = entry.unwrap();
        if image.metadata().file_type(entry.inode).unwrap() == FileType::Regular {
            let mut bytes = vec![0; image.stat(entry.inode).unwrap().size as usize];
            let n = image.read_at(entry.inode, 0, &mut bytes).unwrap();
            assert_eq!(n, bytes.len());
            files.insert(entry.path.to_vec(), bytes);
        }
    }
    files
}

pub(crate) fn open(bytes: &[u8]) -> Image {
    let source = Arc::new(MemorySource::new(bytes.to_vec()));
    Image::from_source(source, &OpenOptions::default()).unwrap()
}

pub(crate) fn open_snapshot(
    bytes: &[u8],
    text: &str,
    time: Option<i64>,
) -> redwarfs_format::Result<Image> {
    let mut options = OpenOptions::default();
    let text = text.to_owned();
    options.snapshot = Some(SnapshotChoice { text, time });
    Image::from_source(Arc::new(MemorySource::new(bytes.to_vec())), &options)
}

/// Files of a tree as it was put together.
fn files_of(tree: &[(&str, Vec<u8>)]) -> Files {
    let files = tree.iter().cloned();
    files
        .map(|(path, bytes)| (path.as_bytes().to_vec(), bytes))
        .collect()
}

pub(crate) fn tree_of(files: &Files, time: i64) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for dir in ["dir", "elsewhere"] {
        if files.keys().any(|path| path.starts_with(dir.as_bytes())) {
            tree.insert(dir, MemoryNode::new(FileType::Directory));
        }
    }
    for (path, bytes) in files {
        let mut node = MemoryNode::file(bytes.clone());
        node.meta.mtime = Timestamp { sec: time, nsec: 0 };
        tree.insert(path.clone(), node);
    }
    tree
}

/// Two states of a tree: equal, changed, moved, removed and new files.
pub(crate) fn states() -> [Files; 2] {
    let mut random = Random::new(7);
    let mut data = |size| random.bytes(size);
    let (same, large, moved, gone) = (data(3000), data(300_000), data(5000), data(700));
    let first = files_of(&[
        ("same", same.clone()),
        ("dir/large", large.clone()),
        ("dir/moved", moved.clone()),
        ("gone", gone),
        ("empty", Vec::new()),
        ("changed", data(9000)),
    ]);
    let second = files_of(&[
        ("same", same),
        ("dir/large", large),
        ("elsewhere/moved", moved.clone()),
        ("elsewhere/copy", moved),
        ("empty", Vec::new()),
        ("changed", data(9001)),
        ("new", data(40_000)),
    ]);
    [first, second]
}

pub(crate) fn check(bytes: &[u8]) {
    let image = open(bytes);
    let source = MemorySource::new(bytes.to_vec());
    let list = SectionList::read(&source, 0, None).unwrap();
    let mut options = CheckOptions::default();
    options.mode = VerifyMode::Integrity;
    options.decode = true;
    let report = image
        .check(list, DeclaredImage::default(), &options, &|_| {})
        .unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[test]
fn a_new_generation_shares_the_data_of_the_old_one() {
    let [first, second] = states();
    for trust in [Trust::Times, Trust::Nothing] {
        let old = build(&tree_of(&first, 10));
        let file = Recorder::of(&old);
        let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
        let mut base = base_options("second");
        base.trust = trust;
        append_with(&medium, &tree_of(&second, 10), base).unwrap();
        let bytes = file.bytes();
        assert!(bytes.starts_with(&old));
        // 49,000 bytes are new; all data is random.
        let added = bytes.len() - old.len();
        assert!((49_000..53_000).contains(&added), "{added}");
        check(&bytes);

        let image = open(&bytes);
        assert!(read(&image) == second);
        let table = image.snapshots().unwrap();
        let names: Vec<_> = table.snapshots.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["1970-01-12_13-46-40", "second"]);
        let [a, b] = &table.snapshots[..] else {
            panic!()
        };
        assert_eq!(
            (a.number, b.number, b.parent),
            (GenerationNo(1), GenerationNo(2), Some(a.number))
        );
        assert_eq!(
            (a.end, a.seconds, b.seconds),
            (Some(old.len() as u64), 1_000_000, 2_000_000)
        );
        assert_eq!(b.size, second.values().map(|f| f.len() as u64).sum::<u64>());
        assert!(b.added.abs_diff(added as u64) < 1000);
        for (text, time, files) in [
            ("second", None, &second),
            ("2", None, &second),
            ("1", None, &first),
            ("1970-01-12_13-46-40", None, &first),
            ("then", Some(1_999_999), &first),
            ("now", Some(2_000_000), &second),
        ] {
            assert!(
                read(&open_snapshot(&bytes, text, time).unwrap()) == *files,
                "{text}"
            );
        }
        assert!(open_snapshot(&bytes, "3", None).is_err());
        assert!(open_snapshot(&bytes, "then", Some(999_999)).is_err());
        // As the reference opens it.
        let source = Arc::new(MemorySource::new(bytes.clone()));
        let mut options = OpenOptions::default();
        options.image_size = a.end;
        assert!(read(&Image::from_source(source, &options).unwrap()) == first);
        // What follows the old image begins with what it follows.
        let link = Link::parse(&bytes[old.len()..]).unwrap();
        assert_eq!(
            (link.base_size, link.generation),
            (old.len() as u64, GenerationNo(2))
        );
        assert_eq!(Some(link.base), open(&old).generation().unwrap());
    }
}

#[test]
fn unchanged_files_are_not_read_unless_that_is_asked_for() {
    let [first, _] = states();
    let old = build(&tree_of(&first, 10));
    // Equal sizes, other bytes: only reading tells.
    let mut other = first.clone();
    other.get_mut(&b"same"[..]).unwrap()[0] ^= 1;
    for (trust, time, expected) in [
        (Trust::Times, 10, &first),
        (Trust::Times, 11, &other),
        (Trust::Nothing, 10, &other),
        // Not before the image was begun.
        (Trust::Times, 1_000_000, &other),
    ] {
        let old = if time == 1_000_000 {
            build(&tree_of(&first, time))
        } else {
            old.clone()
        };
        let file = Recorder::of(&old);
        let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
        let mut base = base_options("second");
        base.trust = trust;
        append_with(&medium, &tree_of(&other, time), base).unwrap();
        assert!(read(&open(&file.bytes())) == *expected, "{trust:?} {time}");
    }
}

#[test]
fn many_generations_stay_readable() {
    let mut random = Random::new(3);
    let mut files = states()[0].clone();
    let mut states = vec![files.clone()];
    let file = Recorder::of(&build(&tree_of(&files, 5)));
    let mut images = vec![file.bytes()];
    for night in 0..8 {
        files.insert(format!("night {night}").into_bytes(), random.bytes(2000));
        files.insert(b"changed".to_vec(), random.bytes(100 + night));
        append(&file, &tree_of(&files, 5), &format!("n{night}"));
        states.push(files.clone());
        images.push(file.bytes());
    }
    let bytes = file.bytes();
    check(&bytes);
    for (number, files) in (1..).zip(&states) {
        let image = open_snapshot(&bytes, &format!("{number}"), None).unwrap();
        assert!(read(&image) == *files);
    }
    // The file of each night is a beginning of that of the next one.
    assert!(images.windows(2).all(|pair| pair[1].starts_with(&pair[0])));
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let choice = SnapshotChoice {
        text: "n3".into(),
        time: None,
    };
    let cut = roll_back(&medium, ImageOffset::Auto, &choice).unwrap();
    assert!(file.bytes() == images[4]);
    assert_eq!(cut, (bytes.len() - images[4].len()) as u64);
}

#[test]
fn the_same_append_gives_the_same_bytes_for_any_number_of_threads() {
    let [first, second] = states();
    let old = build(&tree_of(&first, 10));
    let results: Vec<Vec<u8>> = [1, 2, 7]
        .into_iter()
        .map(|workers| {
            let file = Recorder::of(&old);
            let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
            let place = InPlace::on(medium, base_options("x")).unwrap();
            let mut writer = place.writer().unwrap();
            let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
            let mut options = options();
            options.workers = workers;
            let builder = Builder::new(options);
            let tree = tree_of(&second, 10);
            builder
                .append(place.base(), &tree, &mut writer, &progress, &stop)
                .unwrap();
            writer.commit().unwrap();
            file.bytes()
        })
        .collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn every_state_on_the_way_is_the_old_or_the_new_one() {
    let [first, second] = states();
    let old = build(&tree_of(&first, 10));
    let file = Recorder::of(&old);
    append(&file, &tree_of(&second, 10), "second");
    let ops = file.ops.lock().unwrap().clone();
    assert!(ops.len() > 8 && ops.contains(&Op::Sync));
    let mut random = Random::new(11);
    let (mut olds, mut news) = (0, 0);
    let mut visit = |bytes: &[u8]| {
        let image = open(bytes);
        let files = read(&image);
        if files == first {
            assert_eq!(image.container().size, old.len() as u64);
            olds += 1;
        } else {
            assert!(files == second);
            news += 1;
        }
    };
    for end in 0..=ops.len() {
        // What is synced is there. Of the rest, any part may be.
        let synced = ops[..end]
            .iter()
            .rposition(|op| *op == Op::Sync)
            .map_or(0, |at| at + 1);
        let mut bytes = old.clone();
        ops[..synced].iter().for_each(|op| apply(&mut bytes, op));
        for _ in 0..4 {
            let mut state = bytes.clone();
            for op in &ops[synced..end] {
                match op {
                    Op::Write(at, data) if *at >= old.len() as u64 => {
                        // Sectors of 512 bytes, as they come.
                        let mut from = 0;
                        while from < data.len() {
                            let place = *at as usize + from;
                            let to = data.len().min(from + 512 - place % 512);
                            // The length of a file is a journal's business.
                            let inside = *at as usize + to <= state.len();
                            if random.below(2) == 0 && inside {
                                state[place..*at as usize + to].copy_from_slice(&data[from..to]);
                            }
                            from = to;
                        }
                    }
                    Op::Write(at, _) => panic!("a write to old bytes at {at}"),
                    other => apply(&mut state, other),
                }
            }
            visit(&state);
        }
        ops[synced..end].iter().for_each(|op| apply(&mut bytes, op));
        visit(&bytes);
    }
    assert!(olds > 20 && news > 0, "{olds} {news}");
}

#[test]
fn a_failure_at_any_point_leaves_the_old_image() {
    let [first, second] = states();
    let old = build(&tree_of(&first, 10));
    let file = Recorder::of(&old);
    append(&file, &tree_of(&second, 10), "second");
    let (all, new) = (file.ops.lock().unwrap().len(), file.bytes());
    for at in 0..all {
        for dead in [false, true] {
            let file = Recorder::of(&old);
            *file.fail_at.lock().unwrap() = Some(at);
            let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
            if dead {
                // Nothing works from there on, so nothing can be undone.
                let ops = Arc::clone(&file);
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        while ops.fail_at.lock().unwrap().is_some() {
                            std::thread::yield_now();
                        }
                        ops.dead.store(true, Ordering::Relaxed);
                    });
                    append_with(&medium, &tree_of(&second, 10), base_options("second"))
                        .unwrap_err();
                });
            } else {
                append_with(&medium, &tree_of(&second, 10), base_options("second")).unwrap_err();
            }
            let bytes = file.bytes();
            // The last sync comes after the commit.
            if at + 1 == all {
                assert!(bytes == new);
                continue;
            }
            assert!(bytes.starts_with(&old));
            assert!(read(&open(&bytes)) == first, "{at}");
            if !dead {
                assert_eq!(bytes.len(), old.len(), "{at}");
            }
            // And the next attempt works.
            file.dead.store(false, Ordering::Relaxed);
            append(&file, &tree_of(&second, 10), "second");
            assert!(file.bytes() == new, "{at}");
        }
    }
}

#[test]
fn an_interrupted_build_leaves_the_old_image() {
    let [first, second] = states();
    let old = build(&tree_of(&first, 10));
    let file = Recorder::of(&old);
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let place = InPlace::on(medium, base_options("x")).unwrap();
    let mut writer = place.writer().unwrap();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(true));
    let tree = tree_of(&second, 10);
    let builder = Builder::new(options());
    builder
        .append(place.base(), &tree, &mut writer, &progress, &stop)
        .unwrap_err();
    drop(writer);
    assert!(file.bytes() == old);
}

#[test]
fn images_that_cannot_be_continued_are_refused() {
    let [first, _] = states();
    let old = build(&tree_of(&first, 10));
    let refused = |bytes: &[u8], name: &str| {
        let file: Arc<dyn Medium> = Recorder::of(bytes);
        append_with(&file, &tree_of(&first, 10), base_options(name))
            .unwrap_err()
            .to_string()
    };
    let behind = [&old[..], b"something else"].concat();
    assert!(refused(&behind, "x").contains("other data follows"));
    let empty = build(&MemoryTree::new());
    assert!(refused(&empty, "x").contains("no data"));
    assert!(refused(&old, "a/b").contains("cannot be the name"));
    assert!(refused(&old, "1970-01-12_13-46-40").contains("already"));
    assert!(refused(b"no image at all", "x").contains("no "));
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let mut without = options();
    without.section_index = false;
    let builder = Builder::new(without);
    builder
        .build(&tree_of(&first, 10), &mut out, &progress, &stop)
        .unwrap();
    assert!(refused(&out, "x").contains("no section index"));
    // A name that a program made gets a number.
    let file = Recorder::of(&old);
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    for expected in ["1970-01-12_13-46-40-2", "1970-01-12_13-46-40-3"] {
        let mut base = base_options("1970-01-12_13-46-40");
        base.numbered = true;
        append_with(&medium, &tree_of(&first, 10), base).unwrap();
        let table = open(&file.bytes()).snapshots().unwrap();
        assert_eq!(table.snapshots.last().unwrap().name, expected);
    }
}
