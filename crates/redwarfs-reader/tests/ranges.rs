//! Random ranges from many threads, through caches of all sizes, against whole files.

use std::path::PathBuf;

use redwarfs_format::InodeNo;
use redwarfs_reader::{BlockMemory, CacheOptions, Image, OpenOptions};

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

fn open(name: &str, cache: CacheOptions) -> Image {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    let path = PathBuf::from(dir).join(format!("{name}.dwarfs"));
    let mut options = OpenOptions::default();
    options.cache = cache;
    Image::open(&path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn is_regular(image: &Image, inode: InodeNo) -> bool {
    image.stat(inode).unwrap().mode & 0o170_000 == 0o100_000
}

/// All regular files that fit into memory, with their contents.
fn contents(image: &Image) -> Vec<(InodeNo, Vec<u8>)> {
    image
        .walk()
        .map(|item| item.unwrap().inode)
        .filter(|&inode| is_regular(image, inode) && image.stat(inode).unwrap().size < 64 << 20)
        .map(|inode| {
            let size = image.stat(inode).unwrap().size as usize;
            let mut data = vec![0; size + 10];
            assert_eq!(image.read_at(inode, 0, &mut data).unwrap(), size);
            data.truncate(size);
            (inode, data)
        })
        .collect()
}

#[test]
fn random_ranges_through_small_caches() {
    let names = [
        "basic-zstd-small-blocks",
        "basic-l0",
        "basic-lzma",
        "basic-brotli",
        "basic-lz4",
        "many-fragmented",
    ];
    for name in names {
        let files = contents(&open(name, CacheOptions::default()));
        for size in [0, 40 << 10, 200 << 10] {
            let image = open(name, {
                let mut cache = CacheOptions::default();
                cache.size = size;
                cache.seq_detector = 2;
                cache
            });
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let (image, files) = (&image, &files);
                    scope.spawn(move || {
                        let mut random = Random(thread * 7919 + size + 1);
                        for _ in 0..25 {
                            let (inode, data) = &files[random.below(files.len() as u64) as usize];
                            let offset = random.below(data.len() as u64 + 10);
                            let mut buf = vec![0xa5; random.below(70_000) as usize];
                            let n = image.read_at(*inode, offset, &mut buf).unwrap();
                            let rest = data.get(offset as usize..).unwrap_or_default();
                            assert_eq!(n, rest.len().min(buf.len()));
                            assert!(buf[..n] == rest[..n], "{name}: {inode} at {offset}");
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn pinned_bytes_stay_while_others_push_the_blocks_out() {
    for name in [
        "basic-zstd-small-blocks",
        "basic-lz4",
        "basic-lzma",
        "many-fragmented",
    ] {
        let files = contents(&open(name, CacheOptions::default()));
        for size in [0, 40 << 10, 1 << 20] {
            let mut options = CacheOptions::default();
            options.size = size;
            options.seq_detector = 2;
            let image = open(name, options);
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let (image, files) = (&image, &files);
                    scope.spawn(move || {
                        let mut random = Random(thread * 104_729 + size + 1);
                        let mut scratch: [Vec<u8>; 4] = Default::default();
                        for _ in 0..12 {
                            let mut held = Vec::new();
                            for scratch in &mut scratch {
                                let (inode, data) =
                                    &files[random.below(files.len() as u64) as usize];
                                let offset = random.below(data.len() as u64 + 10);
                                let len = random.below(90_000) as usize;
                                let rest = data.get(offset as usize..).unwrap_or_default();
                                let expected = &rest[..rest.len().min(len)];
                                let read = image.read_pinned(*inode, offset, len, scratch);
                                held.push((read.unwrap(), expected));
                            }
                            // Everything else may have left the cache by now.
                            image.tidy_cache(std::time::Duration::ZERO);
                            for (read, expected) in &held {
                                assert_eq!(read.len(), expected.len());
                                let parts: Vec<&[u8]> = read.parts().collect();
                                assert!(parts.concat() == *expected, "{name}");
                            }
                        }
                    });
                }
            });
            // Nothing is held any more.
            let stats = image.cache_stats();
            assert_eq!(stats.errors, 0);
            let mut rounds = 0;
            while image.cache_stats().blocks > 0 {
                image.tidy_cache(std::time::Duration::ZERO);
                rounds += 1;
                assert!(rounds < 100_000, "blocks stay in the cache");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn cached_reads_need_a_first_one() {
    let image = open("basic-zstd-small-blocks", CacheOptions::default());
    let files = contents(&open("basic-zstd-small-blocks", CacheOptions::default()));
    let (inode, data) = files.iter().max_by_key(|(_, data)| data.len()).unwrap();
    let mut out = b"before".to_vec();
    assert!(
        !image
            .try_read_cached(*inode, 0, data.len(), &mut out)
            .unwrap()
    );
    assert_eq!(out, b"before");
    let mut buf = vec![0; data.len()];
    image.read_at(*inode, 0, &mut buf).unwrap();
    assert!(
        image
            .try_read_cached(*inode, 0, data.len() + 9, &mut out)
            .unwrap()
    );
    assert_eq!(&out[..6], b"before");
    assert!(out[6..] == data[..]);
    out.clear();
    let end = data.len() as u64;
    assert!(image.try_read_cached(*inode, end, 10, &mut out).unwrap());
    assert!(out.is_empty());
    // Threads of the cache may still be busy with a block, which therefore stays a while.
    let mut rounds = 0;
    while image
        .try_read_cached(*inode, 0, data.len(), &mut out)
        .unwrap()
    {
        image.tidy_cache(std::time::Duration::ZERO);
        out.clear();
        rounds += 1;
        assert!(rounds < 100_000, "blocks stay in the cache");
        std::thread::yield_now();
    }
}

#[test]
fn only_regular_files_can_be_read() {
    let image = open("basic-default", CacheOptions::default());
    let mut buf = [0; 10];
    for item in image.walk() {
        let inode = item.unwrap().inode;
        let mode = image.stat(inode).unwrap().mode & 0o170_000;
        let readable = image.read_at(inode, 0, &mut buf).is_ok();
        assert_eq!(readable, mode == 0o100_000);
        let cached = image.try_read_cached(inode, 0, 0, &mut Vec::new()).is_ok();
        assert_eq!(cached, mode == 0o100_000);
        assert_eq!(image.read_link(inode).is_ok(), mode == 0o120_000);
    }
    assert!(image.stat(InodeNo(u32::MAX)).is_err());
    assert!(image.read_at(InodeNo(u32::MAX), 0, &mut buf).is_err());
}

#[test]
fn whole_blocks_are_what_the_cache_shows() {
    let image = open("basic-zstd-small-blocks", CacheOptions::default());
    let mut total = 0;
    for n in 0..image.container().block_count() {
        let block = redwarfs_format::BlockNo(n);
        total += image.decode_block(block).unwrap().len() as u64;
        assert!(image.preload_block(block).unwrap());
    }
    assert_eq!(image.cache_stats().bytes_decoded, total);
    let beyond = redwarfs_format::BlockNo(image.container().block_count());
    assert!(image.decode_block(beyond).is_err());
}

#[test]
fn memory_for_whole_blocks_can_be_used_again() {
    let (mut payload, mut memory) = (Vec::new(), BlockMemory::default());
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    let (mut blocks, mut parts) = (0, 0);
    for item in std::fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "dwarfs") {
            continue;
        }
        let Ok(image) = Image::open(&path, &OpenOptions::default()) else {
            continue;
        };
        for n in 0..=image.container().block_count() {
            let block = redwarfs_format::BlockNo(n);
            let result = image.decode_block_into(block, &mut payload, &mut memory);
            match image.decode_block(block) {
                Ok(expected) => {
                    result.unwrap();
                    assert!(memory.bytes() == expected, "{path:?}, {block}");
                    blocks += 1;
                    let len = expected.len();
                    for end in [0, 1, len / 3, len - len / 16, len, len + 1] {
                        let wanted = end as u64;
                        image
                            .decode_block_start(block, wanted, &mut payload, &mut memory)
                            .unwrap();
                        let found = memory.bytes();
                        assert!(found.len() >= end.min(len), "{path:?}, {block}, {end}");
                        assert!(expected.starts_with(found), "{path:?}, {block}, {end}");
                        parts += usize::from(found.len() < len);
                    }
                }
                Err(e) => {
                    assert_eq!(result.unwrap_err().to_string(), e.to_string());
                    assert!(memory.bytes().is_empty());
                }
            }
        }
    }
    assert!(blocks > 50, "only {blocks} blocks");
    assert!(parts > 10, "only {parts} parts of blocks");
}
