//! Large metadata: plain ones are read when they are needed, compressed ones are decoded when they are needed.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::one_file;
use redwarfs_codec::Decoder;
use redwarfs_format::InodeNo;
use redwarfs_format::frozen::FrozenBytes;
use redwarfs_format::metadata::{Chunk, DirEntry, InodeData};
use redwarfs_format::section::{CompressionId, Section, SectionType};
use redwarfs_io::{Fault, FaultSource, MemorySource};
use redwarfs_reader::{Error, Image, ImageOffset, OpenOptions, Result};
use redwarfs_testkit::mutate::Parts;

const FILES: u32 = 30_000;

fn name(file: u32) -> Vec<u8> {
    let long = "x".repeat(file as usize * 7 % 41);
    format!("{file:05}-{long}").into_bytes()
}

/// An image of many files, all but the first one empty, with about a megabyte of metadata.
fn image() -> Vec<u8> {
    let data = Chunk {
        block: 0,
        offset: 0,
        size: 9,
    };
    one_file("null", &[vec![1; 16]], vec![data], |metadata| {
        metadata.inodes.truncate(1);
        metadata.inodes.extend((0..FILES).map(|file| InodeData {
            mode_index: 1,
            mtime_offset: u64::from(file) * 12_345,
            ..InodeData::default()
        }));
        metadata.chunk_table = (0..=FILES).map(|file| file.min(1)).collect();
        metadata.directories[1].first_entry = FILES + 1;
        metadata.names = (0..FILES).map(name).collect();
        let entries = metadata.dir_entries.as_mut().unwrap();
        entries.truncate(1);
        entries.extend((0..FILES).map(|file| DirEntry {
            name_index: file,
            inode_num: file + 1,
        }));
    })
}

fn options() -> OpenOptions {
    let mut open = OpenOptions::default();
    open.offset = ImageOffset::At(0);
    open.lazy_metadata = true;
    open
}

fn open(bytes: &[u8]) -> (Image, Arc<FaultSource>) {
    let source = Arc::new(FaultSource::new(MemorySource::new(bytes.to_vec())));
    (
        Image::from_source(source.clone(), &options()).unwrap(),
        source,
    )
}

fn metadata_section(image: &Image) -> Section {
    let container = image.container();
    let section = container.only_section_of_type(SectionType::METADATA_V2);
    section.unwrap().clone()
}

/// Modification time of a file that is looked up by its name.
fn time_of(image: &Image, file: u32) -> Result<i64> {
    let inode = image.lookup(image.root(), &name(file))?.unwrap();
    Ok(image.stat(inode)?.mtime.sec)
}

#[test]
fn they_are_read_once_and_show_what_is_there() {
    let bytes = image();
    let (lazy, source) = open(&bytes);
    let parts = metadata_section(&lazy).length.div_ceil(64 << 10);
    assert!(parts > 8, "{parts}");
    let opened = source.reads();
    for file in (0..FILES).rev().step_by(7) {
        assert_eq!(time_of(&lazy, file).unwrap(), i64::from(file) * 12_345);
    }
    let mut whole = options();
    whole.check = true;
    let whole = Image::from_source(Arc::new(MemorySource::new(bytes)), &whole).unwrap();
    let all = |image: &Image| {
        let items = image.walk().map(Result::unwrap);
        items
            .map(|item| (item.path, image.stat(item.inode).unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(all(&lazy).len(), FILES as usize + 1);
    assert_eq!(all(&lazy), all(&whole));
    // The others were needed for opening.
    assert!((parts - 2..=parts).contains(&(source.reads() - opened)));
}

/// The same image with metadata of four tables that are compressed; `damaged` bytes of them are changed
/// before the checksum is made.
fn compressed(plain: &[u8], codec: &str, damaged: &[usize]) -> Vec<u8> {
    let mut parts = Parts::of(plain);
    parts.compress_metadata(codec, 4);
    let payload = parts.payload(SectionType::METADATA_V2).unwrap();
    for &at in damaged {
        payload[at] ^= 0x55;
    }
    parts.assemble()
}

/// The places in the payload where the blocks of its `.xz` stream end.
fn blocks(image: &Image) -> Vec<usize> {
    let section = metadata_section(image);
    let start = image.container().file_offset(&section);
    let mut payload = vec![0; section.length as usize];
    image.source().read_exact_at(start, &mut payload).unwrap();
    let decoder = Decoder::new(CompressionId::LZMA, payload, 1 << 30).unwrap();
    let mut at = 12;
    let parts = decoder.apart().unwrap().into_iter();
    parts
        .map(|part| {
            at += part.into_payload().len();
            at
        })
        .collect()
}

/// Names and attributes of files from everywhere.
fn files(image: &Image) -> impl Iterator<Item = Result<i64>> {
    let some = (0..FILES).step_by(211).chain([FILES - 1]);
    some.map(|file| time_of(image, file))
}

#[test]
fn compressed_ones_are_decoded_when_they_are_needed() {
    let plain = image();
    let (lazy, _) = open(&plain);
    assert!(metadata_section(&lazy).length >= 1 << 20);
    let bytes = compressed(&plain, "lzma:level=1", &[]);
    assert!(bytes.len() < plain.len());
    let (image, source) = open(&bytes);
    let reads = source.reads();
    let in_memory = |image: &Image| image.metadata().bytes().in_memory().count();
    let before = in_memory(&image);
    assert_eq!(time_of(&image, 3).unwrap(), 3 * 12_345);
    let after = in_memory(&image);
    image.metadata().bytes().load_all().unwrap();
    let all = in_memory(&image);
    assert!(before < after && after < all, "{before} {after} {all}");
    let data: Vec<u8> = image
        .metadata()
        .bytes()
        .in_memory()
        .flatten()
        .copied()
        .collect();
    lazy.metadata().bytes().load_all().unwrap();
    let expected: Vec<u8> = lazy
        .metadata()
        .bytes()
        .in_memory()
        .flatten()
        .copied()
        .collect();
    assert!(data == expected);
    for file in (0..FILES).step_by(11) {
        assert_eq!(time_of(&image, file).unwrap(), i64::from(file) * 12_345);
    }
    assert_eq!(source.reads(), reads);
    // Others are decoded as a whole.
    let whole = compressed(&plain, "zstd:level=1", &[]);
    let (image, _) = open(&whole);
    assert!(matches!(image.metadata().bytes(), FrozenBytes::Whole(_)));
    assert_eq!(time_of(&image, 3).unwrap(), 3 * 12_345);
}

#[test]
fn many_threads_decode_and_see_the_same() {
    let bytes = compressed(&image(), "lzma:level=1", &[]);
    for _ in 0..8 {
        let (image, _) = open(&bytes);
        image.load_metadata(Duration::from_micros(1)).unwrap();
        thread::scope(|scope| {
            for thread in 0..4 {
                let image = &image;
                scope.spawn(move || {
                    for file in (0..FILES).skip(thread * 97).step_by(389) {
                        assert_eq!(time_of(image, file).unwrap(), i64::from(file) * 12_345);
                    }
                });
            }
        });
    }
}

#[test]
fn a_damaged_table_is_an_error_of_what_needs_it() {
    let plain = image();
    let (good, _) = open(&compressed(&plain, "lzma:level=1", &[]));
    let ends = blocks(&good);
    assert_eq!(ends.len(), 4);
    let mut opened = 0;
    // Headers, data and check values of all tables.
    for (start, end) in [12].iter().chain(&ends).zip(&ends) {
        for at in [*start + 1, start.midpoint(*end), *end - 1] {
            let bytes = compressed(&plain, "lzma:level=1", &[at]);
            let source = Arc::new(MemorySource::new(bytes));
            let is_right = |e: &Error| {
                assert!(matches!(e, Error::Corrupt { .. }), "{e}");
                assert!(e.to_string().contains("section 2"), "{e}");
            };
            // As all programs do that do not mount.
            let whole = Image::from_source(source.clone(), &OpenOptions::default());
            is_right(&whole.unwrap_err());
            match Image::from_source(source, &options()) {
                Err(e) => is_right(&e),
                Ok(image) => {
                    opened += 1;
                    let failed: Vec<_> = files(&image).filter_map(Result::err).collect();
                    assert!(!failed.is_empty(), "{at}");
                    failed.iter().for_each(is_right);
                    // And so it stays, with the same words.
                    let again: Vec<_> = files(&image).filter_map(Result::err).collect();
                    let texts = |errors: &[Error]| -> Vec<_> {
                        errors.iter().map(ToString::to_string).collect()
                    };
                    assert_eq!(texts(&again).last(), texts(&failed).last());
                    is_right(&image.metadata().bytes().load_all().unwrap_err());
                }
            }
        }
    }
    assert!(opened >= 2, "{opened}");
}

#[test]
fn what_is_not_needed_is_not_read() {
    let (image, source) = open(&image());
    let opened = source.reads();
    time_of(&image, 3).unwrap();
    let once = source.reads() - opened;
    time_of(&image, 3).unwrap();
    assert_eq!(source.reads() - opened, once);
    let parts = metadata_section(&image).length.div_ceil(64 << 10);
    assert!(once <= parts / 2, "{once} of {parts}");
}

#[test]
fn a_read_that_fails_is_an_error_and_the_next_one_succeeds() {
    let (image, source) = open(&image());
    source.add(Fault::FailFrom(0));
    for _ in 0..2 {
        let e = time_of(&image, FILES / 2).unwrap_err();
        assert!(matches!(e, Error::Io(_)), "{e}");
        assert!(e.to_string().contains("section 2"), "{e}");
    }
    source.heal();
    let expected = i64::from(FILES / 2) * 12_345;
    assert_eq!(time_of(&image, FILES / 2).unwrap(), expected);
    source.add(Fault::FailFrom(0));
    assert_eq!(time_of(&image, FILES / 2).unwrap(), expected);
}

#[test]
fn metadata_that_change_are_noticed() {
    let bytes = image();
    let (first, _) = open(&bytes);
    let section = metadata_section(&first);
    let payload = first.container().file_offset(&section);
    let mut in_memory = 0;
    for offset in (payload..payload + section.length).step_by(64 << 10) {
        let (image, source) = open(&bytes);
        source.add(Fault::Flip { offset, mask: 4 });
        let names = image.walk().filter_map(Result::err);
        let stats = (0..=FILES).filter_map(|i| image.stat(InodeNo(i)).err());
        match names.chain(stats).next().map(|e| e.to_string()) {
            Some(e) => assert!(e.contains("METADATA_V2 has changed since"), "{e}"),
            None => in_memory += 1,
        }
        source.heal();
        assert!(image.walk().all(|item| item.is_ok()));
    }
    // What was needed for opening.
    assert!(in_memory <= 2, "{in_memory}");
    let (image, source) = open(&bytes);
    source.add(Fault::Truncate(payload + 10));
    let e = time_of(&image, 7).unwrap_err();
    assert!(matches!(e, Error::Io(_)), "{e}");
}

#[test]
fn a_wrong_checksum_is_found_at_once() {
    let bytes = image();
    let (good, _) = open(&bytes);
    let section = metadata_section(&good);
    let payload = good.container().file_offset(&section);
    for offset in [payload, payload + section.length - 1] {
        let source = FaultSource::new(MemorySource::new(bytes.clone()));
        let source = source.with(Fault::Flip { offset, mask: 1 });
        let e = Image::from_source(Arc::new(source), &options()).unwrap_err();
        assert!(e.to_string().contains("checksum error"), "{e}");
    }
}

#[test]
fn a_thread_loads_what_is_left() {
    let (image, source) = open(&image());
    let parts = metadata_section(&image).length.div_ceil(64 << 10);
    image.load_metadata(Duration::from_millis(1)).unwrap();
    while image.metadata().bytes().in_memory().count() < parts as usize {
        std::thread::sleep(Duration::from_millis(1));
    }
    source.add(Fault::FailFrom(0));
    assert_eq!(image.walk().map(Result::unwrap).count(), FILES as usize + 1);
}

#[test]
fn a_medium_that_fails_for_a_while_is_asked_again() {
    let (image, source) = open(&image());
    let parts = metadata_section(&image).length.div_ceil(64 << 10);
    source.add(Fault::FailFrom(0));
    let reads = source.reads();
    image.load_metadata(Duration::from_millis(1)).unwrap();
    while source.reads() < reads + 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(image.metadata().bytes().in_memory().count() < parts as usize);
    source.heal();
    while image.metadata().bytes().in_memory().count() < parts as usize {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_newest_generation_is_in_memory_when_it_is_open() {
    let name = format!("redwarfs-reader-lazy-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let plain = image();
    for bytes in [compressed(&plain, "lzma:level=1", &[]), plain] {
        std::fs::write(&path, bytes).unwrap();
        let image = Image::open(&path, &options()).unwrap();
        assert!(matches!(image.metadata().bytes(), FrozenBytes::Lazy(_)));
        let newest = image.open_newest().unwrap();
        assert!(matches!(newest.metadata().bytes(), FrozenBytes::Whole(_)));
        assert_eq!(time_of(&newest, 3).unwrap(), 3 * 12_345);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn locked_metadata_are_in_memory() {
    let (image, source) = open(&image());
    // Whether locking is allowed does not matter here.
    let _ = image.lock_metadata();
    source.add(Fault::FailFrom(0));
    assert_eq!(image.walk().map(Result::unwrap).count(), FILES as usize + 1);
}
