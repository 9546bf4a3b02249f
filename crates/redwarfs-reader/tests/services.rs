//! What the reader does besides reading: users of blocks, preloading, reading ahead, timing,
//! images that share a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redwarfs_format::metadata::Extent;
use redwarfs_format::{BlockNo, Error, InodeNo};
use redwarfs_io::{Fault, FaultSource, MemorySource};
use redwarfs_reader::perfmon::Component;
use redwarfs_reader::{
    CheckOptions, Image, ImageOffset, OpenOptions, PerfMonitor, Preload, PreloadSummary, VerifyMode,
};
use redwarfs_testkit::golden::{golden, golden_images};

fn open(name: &str, options: &OpenOptions) -> Image {
    Image::open(golden(name).image, options).unwrap()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never happened: {what}");
}

/// Whether this is a regular file without holes, which may be larger than memory.
fn is_dense(image: &Image, inode: InodeNo) -> bool {
    let extents = image.metadata().extents(inode);
    extents.is_ok_and(|mut e| e.all(|e| matches!(e, Ok(Extent::Data { .. }))))
}

/// The largest regular file without holes.
fn largest(image: &Image) -> (InodeNo, u64) {
    let size = |inode| image.stat(inode).unwrap().size;
    image
        .walk()
        .map(|entry| entry.unwrap().inode)
        .filter(|&inode| is_dense(image, inode))
        .map(|inode| (inode, size(inode)))
        .max_by_key(|&(_, size)| size)
        .unwrap()
}

fn blocks_of(image: &Image, inode: InodeNo) -> BTreeSet<BlockNo> {
    let extents = image.metadata().extents(inode).unwrap();
    extents
        .filter_map(|extent| match extent.unwrap() {
            Extent::Data { block, .. } => Some(block),
            Extent::Hole { .. } => None,
        })
        .collect()
}

/// The regular file without holes that lies in the most blocks, and its size.
fn widest(image: &Image) -> (InodeNo, u64) {
    let inode = (0..image.metadata().inode_count())
        .map(InodeNo)
        .filter(|&inode| is_dense(image, inode))
        .max_by_key(|&inode| blocks_of(image, inode).len())
        .unwrap();
    assert!(blocks_of(image, inode).len() > 2);
    (inode, image.stat(inode).unwrap().size)
}

#[test]
fn users_of_blocks_and_their_paths() {
    let mut shared = 0;
    for golden in golden_images() {
        let image = Image::open(&golden.image, &OpenOptions::default()).unwrap();
        let users = image.block_users().unwrap();
        let blocks = image.container().block_count();
        let mut expected: BTreeMap<BlockNo, BTreeSet<InodeNo>> = BTreeMap::new();
        for inode in (0..image.metadata().inode_count()).map(InodeNo) {
            for extent in image.metadata().extents(inode).into_iter().flatten() {
                if let Extent::Data { block, .. } = extent.unwrap() {
                    expected.entry(block).or_default().insert(inode);
                }
            }
        }
        for block in (0..blocks).map(BlockNo) {
            let found: BTreeSet<InodeNo> = users.inodes(block).collect();
            assert_eq!(found.len(), users.inodes(block).count(), "{}", golden.name);
            let expected = expected.remove(&block).unwrap_or_default();
            assert_eq!(found, expected, "block {block} of {}", golden.name);
            assert_eq!(users.is_unused(block), expected.is_empty());
            shared += usize::from(found.len() > 1);
            if block.0 > 3 {
                continue;
            }
            let paths = image.paths_of(&found).unwrap();
            let expected: Vec<(InodeNo, Vec<u8>)> = image
                .walk()
                .map(Result::unwrap)
                .filter(|entry| found.contains(&entry.inode))
                .map(|entry| (entry.inode, entry.path))
                .collect();
            assert_eq!(paths, expected, "{}", golden.name);
        }
        assert!(users.is_unused(BlockNo(blocks)) && users.is_unused(BlockNo(u32::MAX)));
    }
    assert!(shared > 0);
}

#[test]
fn every_hard_link_is_named() {
    let image = open("basic-default", &OpenOptions::default());
    let linked = image
        .walk()
        .map(|entry| entry.unwrap().inode)
        .find(|&inode| image.stat(inode).unwrap().nlink > 1)
        .expect("the image has hard links");
    let paths = image.paths_of(&[linked].into()).unwrap();
    assert_eq!(paths.len(), image.stat(linked).unwrap().nlink as usize);
    assert!(image.paths_of(&BTreeSet::new()).unwrap().is_empty());
}

#[test]
fn everything_or_a_category_is_preloaded() {
    let image = open("bin-categorize", &OpenOptions::default());
    let blocks = image.container().block_count() as usize;
    let names = image.metadata().category_names().unwrap().unwrap();
    let mut seen = BTreeSet::new();
    for name in &names {
        let name = std::str::from_utf8(name).unwrap();
        seen.extend(image.category_blocks(name).unwrap());
    }
    assert_eq!(seen.len(), blocks);
    assert_eq!(image.category_blocks("no-such"), None);

    let name = String::from_utf8(names[names.len() - 1].clone()).unwrap();
    let wanted = image.category_blocks(&name).unwrap();
    let summary = image.preload(Preload::Category(name)).unwrap().wait();
    let complete = PreloadSummary {
        wanted: wanted.len(),
        loaded: wanted.len(),
        failed: 0,
    };
    assert_eq!(summary, complete);
    assert_eq!(image.cache_stats().blocks, wanted.len() as u64);
    let summary = image.preload(Preload::All).unwrap().wait();
    assert_eq!((summary.wanted, summary.loaded), (blocks, blocks));
    assert_eq!(image.cache_stats().blocks, blocks as u64);

    // Nothing has to be decoded any more.
    let (inode, size) = largest(&image);
    let mut out = Vec::new();
    assert!(
        image
            .try_read_cached(inode, 0, size as usize, &mut out)
            .unwrap()
    );
}

#[test]
fn an_unknown_category_is_an_error_that_lists_the_known_ones() {
    let image = open("bin-categorize", &OpenOptions::default());
    let e = image
        .preload(Preload::Category("hotness".into()))
        .unwrap_err();
    assert!(matches!(e, Error::Unsupported(_)));
    let text = e.to_string();
    assert!(text.contains("no such category: hotness"), "{text}");
    for name in image.metadata().category_names().unwrap().unwrap() {
        assert!(text.contains(std::str::from_utf8(&name).unwrap()), "{text}");
    }
    let plain = open("basic-zstd-small-blocks", &OpenOptions::default());
    if plain.metadata().category_names().unwrap().is_none() {
        let e = plain.preload(Preload::Category("x".into())).unwrap_err();
        assert!(e.to_string().contains("no categories"), "{e}");
    }
}

#[test]
fn preloading_goes_on_after_bad_blocks_and_ends_with_the_image() {
    let bytes = std::fs::read(golden("basic-zstd-small-blocks").image).unwrap();
    let source = Arc::new(FaultSource::new(MemorySource::new(bytes)));
    let image = Image::from_source(source.clone(), &OpenOptions::default()).unwrap();
    let blocks = image.container().block_count() as usize;
    assert!(blocks > 3);
    let section = image.container().block(BlockNo(1)).unwrap();
    let at = image.container().file_offset(section);
    source.add(Fault::Flip {
        offset: at,
        mask: 1,
    });
    let summary = image.preload(Preload::All).unwrap().wait();
    let expected = PreloadSummary {
        wanted: blocks,
        loaded: blocks - 1,
        failed: 1,
    };
    assert_eq!(summary, expected);
    source.heal();
    let summary = image.preload(Preload::All).unwrap().wait();
    assert_eq!(summary.loaded, blocks);

    let image = Image::from_source(source.clone(), &OpenOptions::default()).unwrap();
    source.add(Fault::Stall(0..u64::MAX));
    let handle = image.preload(Preload::All).unwrap();
    eventually("preloading is stuck", || source.stalled() > 0);
    handle.stop();
    drop(image);
    source.heal();
    assert!(handle.wait().loaded < blocks);
}

#[test]
fn what_follows_a_request_is_read_ahead() {
    for readahead in [0, 1 << 20] {
        let mut options = OpenOptions::default();
        options.cache.readahead = readahead;
        options.cache.seq_detector = 0;
        let image = open("basic-zstd-small-blocks", &options);
        let (inode, size) = widest(&image);
        assert!(size < 1 << 20);
        image.read_at(inode, 0, &mut [0; 10]).unwrap();
        if readahead == 0 {
            assert_eq!(image.cache_stats().blocks, 1);
            continue;
        }
        // The queue has eight places; each request fills it again.
        eventually("the whole file is there", || {
            let mut out = Vec::new();
            image.read_at(inode, 0, &mut [0; 10]).unwrap();
            image
                .try_read_cached(inode, 0, size as usize, &mut out)
                .unwrap()
        });
    }
}

#[test]
fn all_components_are_timed() {
    let perfmon = PerfMonitor::new(&Component::ALL, true);
    let mut options = OpenOptions::default();
    options.perfmon = perfmon.clone();
    let image = open("basic-default", &options);
    assert_eq!(image.perfmon(), &perfmon);
    let (inode, _) = largest(&image);
    image.find_path(b"no/such/file").unwrap();
    image.read_dir(image.root()).unwrap().for_each(drop);
    image.read_at(inode, 0, &mut [0; 10]).unwrap();
    let text = perfmon.summary().unwrap();
    for name in [
        "[block_cache.get]",
        "[filesystem_v2.find_path]",
        "[filesystem_v2.find_inode_name]",
        "[filesystem_v2.getattr]",
        "[filesystem_v2.opendir]",
        "[filesystem_v2.read]",
        "[inode_reader_v2.read]",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    let off = open("basic-default", &OpenOptions::default());
    assert!(!off.perfmon().is_on());
}

#[test]
fn metadata_can_be_locked() {
    let image = open("basic-default", &OpenOptions::default());
    // A user without any allowance may get an error, but nothing worse.
    match image.lock_metadata().and_then(|()| image.lock_metadata()) {
        Ok(()) => assert!(image.stat(image.root()).is_ok()),
        Err(e) => redwarfs_testkit::skip("metadata_can_be_locked", &e.to_string()),
    }
}

#[test]
fn images_in_one_file_are_told_apart() {
    let parts = ["basic-default", "one", "basic-no-index", "basic-lz4"].map(|name| {
        let bytes = std::fs::read(golden(name).image).unwrap();
        (name, bytes)
    });
    let mut file = b"#!/bin/sh\nexit 0\n".to_vec();
    let mut starts = Vec::new();
    for (_, bytes) in &parts {
        starts.push(file.len() as u64);
        file.extend(bytes);
        file.extend(b"in between");
    }
    let len = file.len() as u64;
    let source = Arc::new(MemorySource::new(file));
    let open = |offset| {
        let mut options = OpenOptions::default();
        options.offset = offset;
        options.check = true;
        Image::from_source(source.clone(), &options)
    };
    for (number, (name, bytes)) in parts.iter().enumerate() {
        let start = starts[number];
        let mut ways = vec![ImageOffset::Nth(number as u32 + 1), ImageOffset::At(start)];
        if number == 0 {
            ways.push(ImageOffset::Auto);
        }
        for way in ways {
            let image = open(way).unwrap();
            assert_eq!(image.header_len(), start, "{name} {way}");
            assert_eq!(image.container().size, bytes.len() as u64);
            assert_eq!(image.trailing_bytes(), len - start - bytes.len() as u64);
            let alone = Image::open(golden(name).image, &OpenOptions::default()).unwrap();
            assert_eq!(alone.trailing_bytes(), 0);
            let (inode, size) = largest(&alone);
            let read = |image: &Image| {
                let mut data = vec![0; size as usize];
                assert_eq!(image.read_at(inode, 0, &mut data).unwrap(), data.len());
                data
            };
            assert!(read(&image) == read(&alone), "{name} {way}");
            let mut options = CheckOptions::default();
            options.mode = VerifyMode::Integrity;
            options.threads = 2;
            let checked = image.check_sections(&options).unwrap();
            assert!(checked.is_ok(), "{name} {way}: {checked:?}");
        }
    }
    let e = open(ImageOffset::Nth(5)).unwrap_err();
    assert!(matches!(e, Error::NotAnImage(_)), "{e}");
    assert!(e.to_string().contains("4 images"), "{e}");
}

/// What becomes of reads when the file under an open image changes.
#[test]
fn faults_concern_only_the_reads_that_meet_them() {
    let bytes = std::fs::read(golden("basic-zstd-small-blocks").image).unwrap();
    let len = bytes.len() as u64;
    let source = Arc::new(FaultSource::new(MemorySource::new(bytes)));
    let mut options = OpenOptions::default();
    options.cache.size = 0;
    let image = Image::from_source(source.clone(), &options).unwrap();
    let users = image.block_users().unwrap();
    let last = BlockNo(image.container().block_count() - 1);
    let section = image.container().block(last).unwrap().clone();
    let start = image.container().file_offset(&section);
    let affected: BTreeSet<InodeNo> = users.inodes(last).collect();
    assert!(!affected.is_empty());
    let files: Vec<InodeNo> = image
        .walk()
        .map(|entry| entry.unwrap().inode)
        .filter(|&inode| is_dense(&image, inode))
        .collect();
    let read = |inode| {
        let mut data = vec![0; image.stat(inode).unwrap().size as usize];
        image.read_at(inode, 0, &mut data).map(|_| data)
    };
    let good: Vec<Vec<u8>> = files.iter().map(|&inode| read(inode).unwrap()).collect();
    let faults = [
        // The file shrinks, is overwritten, its medium fails.
        Fault::Truncate(start + section.length - 1),
        Fault::Flip {
            offset: start + section.length / 2,
            mask: 0xff,
        },
        Fault::FailRange(start..len),
    ];
    for fault in faults {
        source.add(fault.clone());
        for (&inode, good) in files.iter().zip(&good) {
            match read(inode) {
                Ok(data) => assert!(data == *good && !affected.contains(&inode), "{fault:?}"),
                Err(e) => {
                    assert!(affected.contains(&inode), "{fault:?}: {e}");
                    let place = format!("section {}", section.position);
                    assert!(e.to_string().contains(&place), "{e}");
                }
            }
            assert!(image.stat(inode).is_ok());
        }
        source.heal();
        for (&inode, good) in files.iter().zip(&good) {
            assert!(read(inode).unwrap() == *good);
        }
    }

    // A stall: whoever needs the block waits, nobody else does, and the image can be dropped.
    source.add(Fault::Stall(start..len));
    std::thread::scope(|scope| {
        let waiter = files.iter().find(|inode| affected.contains(inode));
        let waiter = *waiter.unwrap();
        let image = &image;
        let waiting = scope.spawn(move || {
            let mut data = vec![0; image.stat(waiter).unwrap().size as usize];
            image.read_at(waiter, 0, &mut data).map(|_| data)
        });
        eventually("the read is stuck", || source.stalled() > 0);
        for (&inode, good) in files.iter().zip(&good) {
            if !affected.contains(&inode) {
                assert!(read(inode).unwrap() == *good);
            }
        }
        assert!(!waiting.is_finished());
        source.heal();
        let at = files.iter().position(|&inode| inode == waiter).unwrap();
        assert!(waiting.join().unwrap().unwrap() == good[at]);
    });
}

// Only Linux shows the threads of a process as files.
#[cfg(target_os = "linux")]
#[test]
fn threads_of_the_cache_are_bound_to_processors() {
    use redwarfs_reader::CpuSet;

    let first: CpuSet = (0..CpuSet::CAPACITY)
        .find(|&cpu| {
            let set: CpuSet = [cpu].into_iter().collect();
            std::thread::spawn(move || set.pin_current_thread().is_ok())
                .join()
                .unwrap()
        })
        .into_iter()
        .collect();
    let mut options = OpenOptions::default();
    options.cache.affinity = Some(first);
    let image = open("basic-zstd-small-blocks", &options);
    let handle = image.preload(Preload::All).unwrap();
    let summary = handle.wait();
    assert_eq!(summary.loaded, summary.wanted);
    // Read ahead in the pool, whose threads stay.
    let (inode, size) = widest(&image);
    image.tidy_cache(Duration::ZERO);
    image
        .read_at(inode, 0, &mut vec![0; size as usize])
        .unwrap();
    let wanted = first.iter().next().unwrap().to_string();
    // Other tests of this process have threads of that name, too.
    let is_bound = |task: &std::path::Path| {
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        name.starts_with("redwarfs-dec") && allowed.is_some_and(|list| list.trim() == wanted)
    };
    eventually("a thread is bound", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.flatten().any(|task| is_bound(&task.path()))
    });
}
