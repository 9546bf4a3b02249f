//! Giving the space of deleted generations back in place: what stays, and what a failure leaves behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redwarfs_append::{
    Base, BaseOptions, Error, Punched, Punching, TableChange, Trust, change, punch, roll_back,
};
use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_io::{Medium, MemorySource, Source};
use redwarfs_reader::check::{CheckOptions, DeclaredImage, SectionList, VerifyMode};
use redwarfs_reader::{Image, ImageOffset, OpenOptions, SnapshotChoice};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{BuildOptions, Builder, MemoryNode, MemoryTree, SilentProgress};

#[derive(Debug, Clone)]
enum Op {
    Write(u64, Vec<u8>),
    Length(u64),
    Punch(u64, u64),
    Sync,
}

fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, data) => {
            let (at, end) = (*at as usize, *at as usize + data.len());
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(data);
        }
        Op::Length(length) => bytes.resize(*length as usize, 0),
        Op::Punch(at, length) => {
            let end = (*at + *length).min(bytes.len() as u64);
            if *at < end {
                bytes[*at as usize..end as usize].fill(0);
            }
        }
        Op::Sync => {}
    }
}

/// A file in memory that records all changes.
#[derive(Debug, Default)]
struct Recorder {
    bytes: Mutex<Vec<u8>>,
    ops: Mutex<Vec<Op>>,
    has_no_holes: AtomicBool,
}

impl Recorder {
    fn of(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes.to_vec()),
            ..Self::default()
        })
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn op(&self, op: Op) {
        apply(&mut self.bytes.lock().unwrap(), &op);
        self.ops.lock().unwrap().push(op);
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
        self.op(Op::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.op(Op::Length(len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.op(Op::Sync);
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.has_no_holes.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.op(Op::Punch(offset, length));
        Ok(())
    }
}

type Files = BTreeMap<String, Vec<u8>>;

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(3);
    options.block_size_bits = 16;
    options.workers = 1;
    options.create_timestamp = Some(1_000);
    options
}

fn tree_of(files: &Files) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for (path, bytes) in files {
        tree.insert(path.clone(), MemoryNode::file(bytes.clone()));
    }
    tree
}

/// An image of four generations, of which the second and the third are deleted, and the trees of the others.
fn image() -> (Vec<u8>, [Files; 2]) {
    let mut random = Random::new(3);
    let mut files: Files = [
        (String::from("same"), random.bytes(40_000)),
        (String::from("changes"), random.bytes(90_000)),
    ]
    .into();
    let first = files.clone();
    let stop = AtomicBool::new(false);
    let mut image = Vec::new();
    Builder::new(options())
        .build(
            &tree_of(&files),
            &mut image,
            &SilentProgress::default(),
            &stop,
        )
        .unwrap();
    for number in 2..5 {
        files.insert("changes".into(), random.bytes(90_000));
        if number == 2 {
            // It comes back from a deleted generation.
            files.insert("stays".into(), random.bytes(70_000));
        }
        // Metadata that is worth a hole.
        for name in 0..1500 {
            files.insert(
                format!("{number}-{name}-{}", random.below(1 << 40)),
                Vec::new(),
            );
        }
        let mut base = BaseOptions::new(format!("n{number}"), Timestamp::default());
        base.trust = Trust::Nothing;
        let base = Base::open(Arc::new(MemorySource::new(image.clone())), base).unwrap();
        Builder::new(options())
            .append(
                &base,
                &tree_of(&files),
                &mut image,
                &SilentProgress::default(),
                &stop,
            )
            .unwrap();
    }
    let file = Recorder::of(&image);
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let deleted = [2, 3].map(|number| TableChange::Delete(GenerationNo(number)));
    change(&medium, ImageOffset::Auto, &deleted).unwrap();
    (file.bytes(), [first, files])
}

fn open(bytes: &[u8], snapshot: Option<&str>) -> redwarfs_format::Result<Image> {
    let mut options = OpenOptions::default();
    options.snapshot = snapshot.map(|text| SnapshotChoice {
        text: text.into(),
        time: None,
    });
    Image::from_source(Arc::new(MemorySource::new(bytes.to_vec())), &options)
}

fn read(image: &Image) -> Files {
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

fn is_undamaged(bytes: &[u8]) -> bool {
    let image = open(bytes, None).unwrap();
    let source = MemorySource::new(bytes.to_vec());
    let list = SectionList::read(&source, 0, None).unwrap();
    let mut options = CheckOptions::default();
    options.mode = VerifyMode::Integrity;
    options.decode = true;
    let report = image.check(list, DeclaredImage::default(), &options, &|_| {});
    report.unwrap().is_ok()
}

fn run(file: &Arc<Recorder>) -> Result<Punched, Error> {
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(file);
    punch(&medium, ImageOffset::Auto, &AtomicBool::new(false))
}

#[test]
fn what_only_deleted_generations_use_becomes_zeros() {
    let (image, [first, last]) = image();
    let file = Recorder::of(&image);
    let plan = Punching::of(&open(&image, None).unwrap()).unwrap().result();
    let done = run(&file).unwrap();
    assert_eq!(done, plan);
    assert_eq!((done.snapshots, done.blocks > 1), (2, true), "{done:?}");
    // Twice 90,000 bytes, and two times metadata, but for what does not fill a page.
    assert!((170_000..220_000).contains(&done.bytes), "{done:?}");
    let bytes = file.bytes();
    assert!(is_undamaged(&bytes));
    assert!(read(&open(&bytes, None).unwrap()) == last);
    assert!(read(&open(&bytes, Some("1")).unwrap()) == first);
    for gone in ["2", "n3"] {
        assert!(open(&bytes, Some(gone)).is_err());
    }
    let zeros = bytes
        .chunks(4096)
        .filter(|page| page.iter().all(|byte| *byte == 0))
        .count();
    assert!(zeros as u64 * 4096 >= done.bytes, "{zeros}");
    // What is left can be walked, without any index.
    let mut walked = bytes.clone();
    let length = walked.len();
    walked[length - 8..].fill(0);
    assert!(read(&open(&walked, None).unwrap()) == last);
    // Nothing is left to do, and the image goes on.
    let again = run(&file).unwrap();
    assert_eq!((again.snapshots, again.blocks, again.bytes), (0, 0, 0));
    let mut base = BaseOptions::new("next", Timestamp::default());
    base.trust = Trust::Nothing;
    let base = Base::open(Arc::new(MemorySource::new(bytes.clone())), base).unwrap();
    let mut longer = file.bytes();
    Builder::new(options())
        .append(
            &base,
            &tree_of(&first),
            &mut longer,
            &SilentProgress::default(),
            &AtomicBool::new(false),
        )
        .unwrap();
    assert!(is_undamaged(&longer));
    assert!(read(&open(&longer, None).unwrap()) == first);
    assert!(longer.len() - bytes.len() < 20_000);
    // As long as nothing was appended behind it, the first one can still come back.
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let choice = SnapshotChoice {
        text: "1".into(),
        time: None,
    };
    roll_back(&medium, ImageOffset::Auto, &choice).unwrap();
    assert!(read(&open(&file.bytes(), None).unwrap()) == first);
}

#[test]
fn every_state_on_the_way_has_all_kept_snapshots() {
    let (image, [first, last]) = image();
    let file = Recorder::of(&image);
    run(&file).unwrap();
    let ops = file.ops.lock().unwrap().clone();
    let wanted = file.bytes();
    let mut states = vec![image.clone()];
    for op in &ops {
        let before = states.last().unwrap().clone();
        if let Op::Write(at, data) = op
            && data.len() > 8
        {
            // Half of it. A tail pointer is in one sector.
            let mut torn = before.clone();
            apply(&mut torn, &Op::Write(*at, data[..data.len() / 2].to_vec()));
            states.push(torn);
        }
        let mut after = before;
        apply(&mut after, op);
        states.push(after);
    }
    assert!(states.len() > 15, "{}", states.len());
    for (number, state) in states.iter().enumerate() {
        assert!(read(&open(state, None).unwrap()) == last, "{number}");
        assert!(read(&open(state, Some("1")).unwrap()) == first, "{number}");
        let file = Recorder::of(state);
        run(&file).unwrap();
        let bytes = file.bytes();
        assert!(is_undamaged(&bytes), "{number}");
        // The same holes, whatever happened before.
        let old = |bytes: &[u8]| {
            bytes[..image.len()]
                .iter()
                .filter(|byte| **byte == 0)
                .count()
        };
        let (found, wanted) = (old(&bytes), old(&wanted));
        assert!(
            found.abs_diff(wanted) < 500,
            "{number}: {found} and not {wanted}"
        );
    }
}

#[test]
fn what_cannot_be_given_back_stays() {
    let (image, _) = image();
    let file = Recorder::of(&image);
    file.has_no_holes.store(true, Ordering::Relaxed);
    let refused = run(&file);
    assert!(matches!(refused, Err(Error::Io(e)) if e.kind() == io::ErrorKind::Unsupported));
    assert!(file.bytes() == image);
    // Stopped before the first write of data.
    let file = Recorder::of(&image);
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let stopped = punch(&medium, ImageOffset::Auto, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Error::Write(_))));
    assert!(file.bytes().starts_with(&image));
    assert!(is_undamaged(&file.bytes()));
    // A damaged kept generation.
    let start = open(&image, Some("1")).unwrap();
    let metadata = start.container().sections.iter();
    let metadata = metadata.rev().nth(1).unwrap().payload_offset as usize;
    let mut damaged = image.clone();
    for byte in &mut damaged[metadata - 1000..metadata] {
        *byte ^= 0x5a;
    }
    let file = Recorder::of(&damaged);
    if run(&file).is_err() {
        assert!(file.bytes() == damaged);
    }
}
