//! Whole images and whole metadata: everything in them is used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FileType, Metadata, MetadataView, XattrPair, XattrValue, freeze,
};
use redwarfs_format::{BlockNo, EntryIndex, Error, InodeNo};
use redwarfs_io::MemorySource;
use redwarfs_reader::check::{CheckOptions, DeclaredImage};
use redwarfs_reader::{BlockMemory, Image, ImageOffset, OpenOptions};

/// Entries and inodes that are looked at, so that an image that claims millions takes no longer.
pub(super) const MAX_ITEMS: usize = 300;
/// Bytes that are read of one file, and of all files.
const MAX_FILE: usize = 32 << 10;
const MAX_TOTAL: usize = 512 << 10;
/// Bytes after whose decoding no more files are read.
const MAX_DECODED: u64 = 1 << 20;
/// How long the cache may take to get back to its limit. Only a defect needs it.
const SETTLE: Duration = Duration::from_secs(30);
/// Longest stored name and symlink target that the full check accepts, in bytes.
const LONGEST_NAME: usize = 512;
const LONGEST_TARGET: usize = 4096;

/// Opens an image, with and without the full check, and uses everything in it.
pub fn image(data: &[u8]) {
    use_image(data);
}

/// The same; returns whether the image could be opened without and with the check.
pub fn use_image(data: &[u8]) -> [bool; 2] {
    [false, true].map(|check| {
        // Room for one block only, for a few, and for nothing.
        let size = [0, 100 << 10, 8 << 20][data.len() % 3];
        let mut options = OpenOptions::default();
        options.offset = if data.len().is_multiple_of(2) {
            ImageOffset::At(0)
        } else {
            ImageOffset::Auto
        };
        options.image_size = None;
        options.check = check;
        options.cache.size = size;
        options.cache.workers = 1;
        options.cache.seq_detector = 2;
        options.cache.partial_ratio = 0.8;
        let source = Arc::new(MemorySource::new(data));
        let image = Image::from_source(source, &options);
        if let Ok(image) = &image {
            visit_image(image, check);
        }
        image.is_ok()
    })
}

/// Asserts that a tree from metadata of so many bytes takes no more memory than [`MetadataView::subtree`] promises.
pub fn tree_is_bounded(tree: &Metadata, bytes: u64) {
    let lists = [
        Some(&tree.names),
        Some(&tree.symlinks),
        tree.category_names.as_ref(),
        tree.category_metadata_json.as_ref(),
        tree.xattrs.as_ref().map(|tables| &tables.names),
    ];
    let all = || lists.iter().flatten().copied().flatten();
    let values = || tree.xattrs.iter().flat_map(|tables| &tables.values);
    let strings: usize =
        all().map(Vec::len).sum::<usize>() + values().map(|one| one.data.len()).sum::<usize>();
    assert!(strings as u64 <= 8 * bytes, "{strings} of {bytes}");
    let of_xattrs = tree.xattrs.as_ref();
    let tables = [
        size_of::<Vec<u8>>() * all().count(),
        size_of::<Chunk>() * tree.chunks.len(),
        size_of::<Directory>() * tree.directories.len(),
        size_of::<DirEntry>() * tree.dir_entries.as_ref().map_or(0, Vec::len),
        size_of::<XattrValue>() * values().count(),
        size_of::<XattrPair>() * of_xattrs.map_or(0, |tables| tables.pairs.len()),
        size_of::<Chunk>() * of_xattrs.map_or(0, |tables| tables.chunks.len()),
    ];
    let tables = tables.iter().sum::<usize>() as u64;
    assert!(
        tables <= (16 * bytes).max(4 << 20) + 64,
        "{tables} of {bytes}"
    );
}

/// Makes metadata of the root and of its first directories.
fn subtrees(view: &MetadataView, blocks: u32, checked: bool) {
    for dir in (0..view.counts().directories.min(4)).map(InodeNo) {
        let tree = view.subtree(dir, blocks);
        // The check does not look for tables of nothing.
        assert!(
            matches!(tree, Ok(_) | Err(Error::Limit(_))) || !checked,
            "a tree fails after the check: {tree:?}"
        );
        let Ok(tree) = tree else { continue };
        assert!(tree.inodes.len() <= view.inode_count() as usize);
        tree_is_bounded(&tree, view.bytes().len() as u64);
        let frozen = freeze(&tree);
        assert!(frozen.is_ok() || !checked, "a tree cannot be encoded");
        let Ok(frozen) = frozen else { continue };
        let own = MetadataView::parse(&frozen.schema, frozen.data);
        let own = own.and_then(|own| own.check(blocks, None));
        // The check limits names and targets as stored. They were compressed, and are not in this tree.
        let too_long = tree.names.iter().any(|name| name.len() > LONGEST_NAME)
            || tree
                .symlinks
                .iter()
                .any(|target| target.len() > LONGEST_TARGET);
        assert!(
            own.is_ok() || too_long || !checked,
            "a tree is wrong after the check: {own:?}"
        );
    }
}

/// Uses all accessors. With `checked`, the full check has passed, and nothing may fail.
pub(super) fn visit_metadata(view: &MetadataView, blocks: u32, checked: bool) {
    let expect = |ok: bool, what: &str| assert!(ok || !checked, "{what} fails after the check");
    let _ = view.thaw();
    super::xattrs::visit(view, checked);
    let _ = (view.counts(), view.totals(), view.category_names());
    if !view.is_legacy() {
        subtrees(view, blocks, checked);
    }
    for inode in (0..view.inode_count()).take(MAX_ITEMS).map(InodeNo) {
        let stat = view.stat(inode);
        expect(stat.is_ok(), "stat");
        let Ok(stat) = stat else { continue };
        assert!(stat.atime.nsec < 1_000_000_000 && stat.mtime.nsec < 1_000_000_000);
        match stat.file_type() {
            Some(FileType::Directory) => {
                expect(view.parent(inode).is_ok(), "parent");
                expect(view.self_entry(inode).is_ok(), "self entry");
                let Ok(range) = view.entries(inode) else {
                    expect(false, "entries");
                    continue;
                };
                for entry in range.take(MAX_ITEMS).map(EntryIndex) {
                    let name = view.entry_name(entry);
                    expect(name.is_ok() && view.entry_inode(entry).is_ok(), "entry");
                    if let Ok(name) = name {
                        let found = view.find(inode, &name);
                        expect(
                            found.as_ref().is_ok_and(|found| *found == Some(entry)),
                            "find",
                        );
                    }
                    expect(view.entry_stat(entry).is_ok(), "stat of an entry");
                }
            }
            Some(FileType::Symlink) => expect(view.symlink(inode).is_ok(), "symlink"),
            Some(FileType::Regular) => {
                let extents = view.extents(inode);
                expect(extents.is_ok(), "extents");
                let Ok(extents) = extents else { continue };
                let sizes: Option<u64> = if extents.len() <= MAX_ITEMS {
                    extents
                        .clone()
                        .map(|extent| extent.ok().map(|extent| extent.size()))
                        .try_fold(0u64, |sum, size| sum.checked_add(size?))
                } else {
                    None
                };
                if checked && extents.len() <= MAX_ITEMS {
                    assert_eq!(sizes, Some(stat.size), "size of a file");
                }
                let _ = (extents.get(extents.len()), extents.get(usize::MAX));
            }
            Some(_) => {}
            None => panic!("stat lets an unknown type pass"),
        }
    }
    for block in [0, 1, u32::MAX].map(BlockNo) {
        let _ = (view.block_category(block), view.block_metadata(block));
    }
    assert!(view.stat(InodeNo(view.inode_count())).is_err());
    assert!(view.entry_inode(EntryIndex(view.entry_count())).is_err());
}

fn visit_image(image: &Image, checked: bool) {
    visit_metadata(image.metadata(), image.container().block_count(), checked);
    let _ = (image.history(), image.header_bytes());
    let options = CheckOptions::default();
    if let Ok(list) = image.list_sections() {
        let _ = image.check(list, DeclaredImage::default(), &options, &|_| {});
    }
    let mut left = MAX_TOTAL;
    for item in image.walk().take(MAX_ITEMS) {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                assert!(!checked, "walk fails after the check: {e}");
                continue;
            }
        };
        let Ok(stat) = image.stat(item.inode) else {
            continue;
        };
        if checked && image.metadata().is_legacy() {
            // Names of links lead to the same inode there.
            let found = image.find_path(&item.path).expect("checked");
            assert!(found.is_some(), "a path is not found");
        } else if checked {
            assert_eq!(
                image.find_path(&item.path).expect("checked"),
                Some(item.inode)
            );
        }
        match stat.file_type() {
            Some(FileType::Regular) => {
                left = left.saturating_sub(read_file(image, item.inode, stat.size, checked));
                if left == 0 || image.cache_stats().bytes_decoded > MAX_DECODED {
                    break;
                }
            }
            Some(FileType::Directory) => {
                if let Ok(entries) = image.read_dir(item.inode) {
                    let count = entries.take(MAX_ITEMS).filter(Result::is_ok).count();
                    assert!(!checked || count as u64 == stat.size.min(MAX_ITEMS as u64));
                }
            }
            _ => drop(image.read_link(item.inode)),
        }
    }
    for block in [0, image.container().block_count()].map(BlockNo) {
        let small = image.metadata().block_size() <= 64 << 20;
        if small {
            let whole = image.decode_block(block);
            let (mut payload, mut memory) = (Vec::new(), BlockMemory::default());
            let end = whole.as_ref().map_or(1, |bytes| bytes.len() as u64 / 2);
            let part = image.decode_block_start(block, end, &mut payload, &mut memory);
            if let (Ok(bytes), Ok(())) = (whole, part) {
                assert!(bytes.starts_with(memory.bytes()));
                assert!(memory.bytes().len() as u64 >= end);
            }
            let _ = image.preload_block(block);
        }
    }
    // What threads in the background are working on stays, but not for long.
    let end = Instant::now() + SETTLE;
    loop {
        image.tidy_cache(Duration::ZERO);
        let stats = image.cache_stats();
        if stats.used == 0 {
            break;
        }
        assert!(Instant::now() < end, "the cache keeps {} bytes", stats.used);
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Reads from the start, the middle and the end of a file; returns the number of bytes.
fn read_file(image: &Image, inode: InodeNo, size: u64, checked: bool) -> usize {
    let mut total = 0;
    let mut buffer = vec![0xaa; MAX_FILE];
    let mut again = Vec::new();
    for (offset, len) in [
        (0, MAX_FILE),
        (size / 2, 999),
        (size.saturating_sub(100), 200),
        (size, 1),
        (u64::MAX, 10),
    ] {
        let out = &mut buffer[..len];
        let read = image.read_at(inode, offset, out);
        match &read {
            Ok(n) => {
                let expected = size.saturating_sub(offset).min(len as u64);
                assert!(!checked || *n as u64 == expected, "short read");
                total += n;
                again.clear();
                if matches!(
                    image.try_read_cached(inode, offset, len, &mut again),
                    Ok(true)
                ) {
                    assert!(again[..] == out[..*n], "the cache returns something else");
                }
            }
            Err(Error::Io(e)) => panic!("memory cannot be read: {e}"),
            Err(_) => {}
        }
    }
    total.max(1)
}
