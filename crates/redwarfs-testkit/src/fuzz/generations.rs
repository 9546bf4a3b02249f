//! The fuzz targets for images with snapshots: opened, continued, shortened, joined.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use redwarfs_append::{Base, BaseOptions, Compaction, punch};
use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_io::{Medium, MemorySource, Source};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_rewrite::merge::{MergeOptions, Part, Whiteouts, merge as join};
use redwarfs_writer::{BaseContent, BaseImage, SilentProgress};

use super::image::MAX_ITEMS;

/// Snapshots that are looked at.
const MOST: usize = 6;
/// Bytes that are read of each file, and of each tree.
const FILE: usize = 4096;
const TREE: usize = 64 << 10;

fn options() -> OpenOptions {
    let mut options = OpenOptions::default();
    options.offset = ImageOffset::At(0);
    options.cache.size = 100 << 10;
    options.cache.workers = 1;
    options
}

fn open(source: Arc<dyn Source>) -> Option<Image> {
    Image::from_source(source, &options()).ok()
}

/// A file in memory that is changed in place.
#[derive(Debug)]
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.0.lock().expect("no panic before"));
    }
}

impl Source for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("no panic before").len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().expect("no panic before");
        let part = usize::try_from(offset)
            .ok()
            .and_then(|at| bytes.get(at..at.checked_add(buf.len())?));
        buf.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Medium for Memory {
    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|bytes| {
            let (start, end) = (offset as usize, offset as usize + data.len());
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(data);
        });
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|bytes| bytes.resize(len as usize, 0));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(|bytes| {
            let end = offset.saturating_add(length).min(bytes.len() as u64) as usize;
            if let Some(hole) = bytes.get_mut(offset as usize..end) {
                hole.fill(0);
            }
        });
        Ok(())
    }
}

/// The starts of the files of a tree, those that can be read.
fn files(image: &Image) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = TREE;
    for item in image.walk().take(MAX_ITEMS) {
        let Ok(item) = item else { continue };
        if image.metadata().file_type(item.inode).ok() != Some(FileType::Regular) {
            continue;
        }
        let mut buffer = vec![0; FILE.min(left)];
        if let Ok(n) = image.read_at(item.inode, 0, &mut buffer) {
            left -= n;
            buffer.truncate(n);
            files.insert(item.path.to_vec(), buffer);
        }
    }
    files
}

/// Opens the snapshots of a file, continues it, and gives the space of deleted ones back. What could be read must be as
/// before.
pub fn generations(data: &[u8]) {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(data));
    let Some(image) = open(Arc::clone(&source)) else {
        return;
    };
    let Ok(table) = image.snapshots_of_file() else {
        return;
    };
    let of = |image: &Image| -> Vec<BTreeMap<Vec<u8>, Vec<u8>>> {
        let all = table.present().take(MOST);
        let trees = all.map(|snapshot| {
            let opened = image.open_snapshot(snapshot).ok();
            opened.as_ref().map(files).unwrap_or_default()
        });
        trees.chain([files(image)]).collect()
    };
    let before = of(&image);
    for snapshot in table.present().take(MOST) {
        let _ = image.snapshot_is_signed(snapshot);
    }
    let name = BaseOptions::new("another one", Timestamp::default());
    if let Ok(base) = Base::open(Arc::clone(&source), name) {
        let _ = (base.sections(), base.blocks(), base.history());
        for number in (0..MAX_ITEMS as u32).map(BaseContent) {
            let _ = base.extents(number);
            let _ = base.read_at(number, 0, &mut [0; 64]);
        }
        for path in before.iter().flat_map(BTreeMap::keys).take(MAX_ITEMS) {
            let _ = base.at(path);
        }
        let mut found = Vec::new();
        for hash in [0, 1, u32::MAX] {
            base.find_anchor(hash, &mut found);
        }
    }
    let stop = AtomicBool::new(false);
    if let Ok(plan) = Compaction::of(&image) {
        let mut copy = Vec::new();
        if let Ok(done) = plan.write(&mut copy, &stop) {
            assert_eq!(done.new_size, copy.len() as u64, "the size of a copy");
            let copy = open(Arc::new(MemorySource::new(copy)));
            assert!(
                copy.is_some() || table.present().count() == 0,
                "a copy is no image"
            );
        }
    }
    let file: Arc<dyn Medium> = Arc::new(Memory(Mutex::new(data.to_vec())));
    if punch(&file, ImageOffset::At(0), &stop).is_ok() {
        let source: Arc<dyn Source> = Arc::new(Arc::clone(&file));
        let image = open(source).expect("it was an image before");
        assert!(of(&image) == before, "a kept snapshot has changed");
    }
}

/// Joins two images: a byte with options, four with the length of the first image, the images. The result must be one.
pub fn merge(data: &[u8]) {
    let Some((&[how, a, b, c, d], rest)) = data.split_first_chunk::<5>() else {
        return;
    };
    let first = u32::from_le_bytes([a, b, c, d]) as usize;
    let Some((first, second)) = rest.split_at_checked(first) else {
        return;
    };
    let opened = [first, second].map(|data| open(Arc::new(MemorySource::new(data))));
    let [Some(first), Some(second)] = &opened else {
        return;
    };
    let places: [&[u8]; 2] = match how & 1 {
        0 => [b"a", b"b"],
        _ => [b"", b""],
    };
    let parts = [Part::new(first, places[0]), Part::new(second, places[1])];
    let mut options = MergeOptions::level(1);
    options.whiteouts = match how >> 1 & 3 {
        0 => Whiteouts::Keep,
        1 => Whiteouts::Apply,
        _ => Whiteouts::Overlay,
    };
    options.repack = if how & 8 == 0 { 0 } else { 100 };
    options.rewrite.workers = 1;
    options.metadata.workers = 1;
    options.rewrite.memory_limit = Some(256 << 20);
    let mut out = Vec::new();
    let stop = AtomicBool::new(false);
    let progress = SilentProgress::default();
    let joined = join(&parts, &[], &options, &mut out, &progress, &stop);
    if joined.is_ok() {
        let mut options = options_with_check();
        options.cache.size = 1 << 20;
        let source = Arc::new(MemorySource::new(out));
        let image = Image::from_source(source, &options).expect("what was joined is an image");
        let _ = files(&image);
    }
}

fn options_with_check() -> OpenOptions {
    let mut options = options();
    options.check = true;
    options
}
