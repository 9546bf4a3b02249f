//! Images with categories: what goes in comes out, whatever the headers of files claim.

use std::collections::BTreeSet;

use crate::common::{blocks, build, compare, contents, dense, open};
use proptest::prelude::*;
use redwarfs_codec::CompressionId;
use redwarfs_format::BlockNo;
use redwarfs_reader::Image;
use redwarfs_testkit::media::{Samples, aiff, caf, fits, rf64, sky, wav, wave64};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, Categorizer, Category, CategoryOptions, FileType, HotPaths, Incompressible,
    MemoryExtent, MemoryNode, MemoryTree, Order,
};

fn usual() -> Vec<Categorizer> {
    vec![
        Categorizer::Fits,
        Categorizer::PcmAudio,
        Categorizer::Binary,
        Categorizer::Incompressible(Incompressible::default()),
    ]
}

fn options(level: u8, block_bits: u32) -> BuildOptions {
    let mut options = BuildOptions::level(level);
    options.block_size_bits = block_bits;
    options.workers = 2;
    options.categorizers = usual();
    options
}

fn tree(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for (name, data) in files {
        tree.insert(name.as_bytes(), MemoryNode::file(data));
    }
    tree
}

fn round_trip(tree: &MemoryTree, options: &BuildOptions) -> Image {
    let (bytes, summary) = build(options, tree);
    assert_eq!(summary.errors, 0);
    let image = open(bytes);
    compare(&image, tree, options);
    image
}

/// All layouts that the formats can have.
fn layouts() -> Vec<Samples> {
    let mut list = Vec::new();
    for (bits, bytes) in [(8, 1), (16, 2), (20, 3), (20, 4), (24, 3), (24, 4), (32, 4)] {
        for channels in [1, 2, 8] {
            for big in [false, true] {
                list.push(Samples {
                    channels,
                    bits,
                    bytes,
                    big,
                    signed: true,
                });
            }
        }
    }
    list
}

/// Files of every format with these bytes as their samples.
fn audio_files(samples: &Samples, data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let Samples {
        channels,
        bits,
        bytes,
        big,
        ..
    } = *samples;
    let name = |kind: &str| format!("{channels}-{bits}-{bytes}-{big}.{kind}");
    let mut files = vec![(name("caf"), caf(samples, data))];
    if bytes == bits.div_ceil(8) {
        if big {
            files.push((name("aiff"), aiff(samples, None, data)));
            files.push((name("aifc"), aiff(samples, Some(b"twos"), data)));
        } else {
            files.push((name("wav"), wav(samples, data)));
            files.push((name("rf64"), rf64(samples, data)));
            files.push((name("w64"), wave64(samples, data)));
            files.push((name("sowt"), aiff(samples, Some(b"sowt"), data)));
        }
    }
    files
}

#[test]
fn samples_of_all_layouts() {
    let layouts = layouts();
    let clean = layouts.iter().enumerate().flat_map(|(i, samples)| {
        let mut samples = *samples;
        // What WAV and the `raw ` type take for granted.
        samples.signed = samples.bits > 8 || samples.big;
        audio_files(&samples, &samples.walk(700, i as u64))
    });
    let tree = tree(clean);
    for (level, bits) in [(1, 12), (3, 20), (5, 16)] {
        let image = round_trip(&tree, &options(level, bits));
        let found = blocks(&image);
        let waveforms = found.iter().filter(|(name, _)| name == "pcmaudio/waveform");
        let flac = waveforms
            .clone()
            .filter(|(_, id)| *id == CompressionId::FLAC);
        // Nearly all of them: some short last blocks do not get smaller.
        assert!(flac.count() * 10 >= waveforms.count() * 8, "{found:?}");
        let json: BTreeSet<Vec<u8>> = (0..found.len() as u32)
            .filter_map(|block| image.metadata().block_metadata(BlockNo(block)).unwrap())
            .collect();
        // 8-bit WAV is unsigned, all else is not.
        assert_eq!(json.len(), layouts.len() + 3);
    }
}

#[test]
fn random_bytes_as_samples_with_odd_sizes() {
    let mut random = Random::new(4);
    let files = layouts().into_iter().flat_map(|samples| {
        let len = 3000 + random.below(2000) as usize;
        audio_files(&samples, &random.bytes(len))
    });
    let tree = tree(files);
    for (level, bits) in [(2, 10), (4, 13), (6, 20), (8, 16)] {
        round_trip(&tree, &options(level, bits));
    }
}

/// Bits that FLAC would drop: music with dirt below it.
#[test]
fn padding_that_is_not_zero() {
    let mut files = Vec::new();
    for samples in layouts() {
        if samples.bits == 8 * samples.bytes {
            continue;
        }
        let mut data = samples.walk(4000, 11);
        let low = if samples.big {
            usize::from(samples.bytes) - 1
        } else {
            0
        };
        // Once in the middle, so that some blocks are clean.
        data[samples.frame() * 2500 + low] |= 1;
        files.extend(audio_files(&samples, &data));
    }
    let tree = tree(files);
    let image = round_trip(&tree, &options(5, 14));
    let kinds: BTreeSet<u16> = blocks(&image)
        .iter()
        .filter(|(name, _)| name == "pcmaudio/waveform")
        .map(|(_, id)| id.0)
        .collect();
    assert!(kinds.contains(&CompressionId::FLAC.0) && kinds.contains(&CompressionId::ZSTD.0));
}

#[test]
fn images_of_the_sky_and_of_nothing() {
    let mut random = Random::new(9);
    let mut files = Vec::new();
    for unused in 0..9 {
        for bayer in [false, true] {
            let data = sky(60 * 70, unused, u64::from(unused));
            files.push((format!("sky-{unused}-{bayer}"), fits(60, 70, bayer, &data)));
        }
    }
    let noise = random.bytes(61 * 71 * 2);
    for bayer in [false, true] {
        // Odd numbers of pixels, and a header that promises more than there is.
        files.push((format!("odd-{bayer}"), fits(61, 71, bayer, &noise)));
        files.push((format!("short-{bayer}"), fits(61, 710, bayer, &noise)));
        files.push((format!("huge-{bayer}"), fits(usize::MAX, 2, bayer, &noise)));
        files.push((format!("zero-{bayer}"), fits(60, 70, bayer, &[0; 8400])));
        files.push((format!("none-{bayer}"), fits(0, 0, bayer, &noise)));
    }
    let tree = tree(files);
    for (level, bits) in [(1, 10), (5, 20), (8, 13)] {
        let image = round_trip(&tree, &options(level, bits));
        let found = blocks(&image);
        let images = found.iter().filter(|(name, _)| name == "fits/image");
        let ricepp = images
            .clone()
            .filter(|(_, id)| *id == CompressionId::RICEPP);
        assert!(images.clone().count() >= 18 && ricepp.count() * 10 >= images.count() * 7);
    }
}

/// References within audio start and end with frames: frames of 3 bytes, data that repeats at
/// every possible distance.
#[test]
fn repeated_audio_is_found_in_frames() {
    let samples = Samples {
        channels: 1,
        bits: 24,
        bytes: 3,
        big: false,
        signed: true,
    };
    let music = samples.walk(30_000, 5);
    let mut files = Vec::new();
    for shift in 0..7usize {
        let mut data = samples.walk(100 + shift, shift as u64);
        data.extend_from_slice(&music[shift..]);
        // Silence is a run of one byte.
        data.resize(data.len() + 20_000 + shift, 0);
        files.push((format!("{shift}.wav"), wav(&samples, &data)));
    }
    let tree = tree(files);
    let mut options = options(5, 20);
    let own = options.categories.entry(Category::PcmWaveform).or_default();
    own.window_bits = Some(8);
    own.window_step = Some(2);
    own.lookback = Some(3);
    let image = round_trip(&tree, &options);
    let waveform: u64 = (0..image.container().block_count())
        .map(BlockNo)
        .zip(blocks(&image))
        .filter(|(_, (name, _))| name == "pcmaudio/waveform")
        .map(|(block, (_, id))| {
            assert_eq!(id, CompressionId::FLAC);
            let size = image.decode_block(block).unwrap().len() as u64;
            assert_eq!(size % 3, 0);
            size
        })
        .sum();
    // Shifts by whole frames repeat: 0, 3 and 6; 1 and 4; 2 and 5.
    assert!(waveform < 4 * 100_000, "{waveform}");
}

/// Holes in audio need not lie at frames; the content is what counts.
#[test]
fn holes_in_audio() {
    let samples = Samples {
        channels: 2,
        bits: 24,
        bytes: 3,
        big: false,
        signed: true,
    };
    let music = samples.walk(9000, 3);
    let whole = wav(&samples, &vec![0; music.len() + 10_000]);
    let mut tree = MemoryTree::new();
    let mut want = Vec::new();
    for (at, hole) in [
        (100, 1),
        (101, 3),
        (5002, 7),
        (5003, 4999),
        (44, 6),
        (20_000, 10_000),
    ] {
        let header = MemoryExtent::Data(whole[..44].to_vec());
        let tail = music.len() + 10_000 - at - hole;
        let pieces = vec![
            header,
            MemoryExtent::Data(music[..at].to_vec()),
            MemoryExtent::Hole(hole as u64),
            MemoryExtent::Data(music[at..at + tail.min(music.len() - at)].to_vec()),
            MemoryExtent::Hole((tail - tail.min(music.len() - at)) as u64),
        ];
        let name = format!("{at}-{hole}.wav");
        want.push((name.clone(), dense(&pieces)));
        tree.insert(name.as_bytes(), MemoryNode::sparse(pieces));
    }
    for window in [0, 6] {
        let mut options = options(5, 14);
        let own = options.categories.entry(Category::PcmWaveform).or_default();
        own.window_bits = Some(window);
        let (bytes, summary) = build(&options, &tree);
        assert_eq!(summary.errors, 0);
        let image = open(bytes);
        assert!(image.metadata().totals().allocated < image.metadata().totals().size);
        for (name, data) in &want {
            let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
            assert!(contents(&image, inode) == *data, "{name}");
        }
        for (block, (name, _)) in (0..).map(BlockNo).zip(blocks(&image)) {
            let frame = if name == "pcmaudio/waveform" { 6 } else { 1 };
            assert_eq!(image.decode_block(block).unwrap().len() % frame, 0);
        }
    }
}

#[test]
fn incompressible_data_is_stored() {
    let mut random = Random::new(2);
    let noise = random.bytes(300_000);
    let text = random.text(300_000);
    let mut tree = tree([
        ("noise".to_owned(), noise.clone()),
        ("text".to_owned(), text.clone()),
        (
            "mixed".to_owned(),
            [&text[..131_072], &random.bytes(131_072), &text[9..]].concat(),
        ),
    ]);
    let sparse = vec![
        MemoryExtent::Data(random.bytes(65_536)),
        MemoryExtent::Hole(1 << 20),
        MemoryExtent::Data(text[..65_536].to_vec()),
        MemoryExtent::Hole(4096),
    ];
    tree.insert(b"sparse", MemoryNode::sparse(sparse));
    let mut options = options(4, 18);
    for fragments in [false, true] {
        let mut test = Incompressible::default();
        test.fragments = fragments;
        test.block_size = 1 << 16;
        options.categorizers = vec![Categorizer::Incompressible(test)];
        let image = round_trip(&tree, &options);
        let found = blocks(&image);
        let stored = found.iter().filter(|(name, _)| name == "incompressible");
        assert!(stored.clone().all(|(_, id)| *id == CompressionId::NONE));
        let size: usize = (0..found.len())
            .filter(|&at| found[at].0 == "incompressible")
            .map(|at| image.decode_block(BlockNo(at as u32)).unwrap().len())
            .sum();
        let expected = 300_000 + 65_536 + if fragments { 131_072 } else { 0 };
        assert_eq!(size, expected);
        assert!(
            found
                .iter()
                .any(|(name, id)| name == "<default>" && *id == CompressionId::ZSTD)
        );
    }
}

#[test]
fn programs_get_branch_filters() {
    let program = |machine: u8, seed| {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
        file.extend([machine, 0]);
        let mut random = Random::new(seed);
        for _ in 0..4000 {
            // Calls of a few functions from everywhere, which x86 encodes relative to the call.
            let function = 0x10_000 + 0x500 * random.below(30) as i64;
            file.push(0xe8);
            file.extend(((function - file.len() as i64 - 4) as i32).to_le_bytes());
            file.extend([0x48, 0x89, random.below(4) as u8]);
        }
        file
    };
    let tree = tree([
        ("a".to_owned(), program(62, 1)),
        ("b".to_owned(), program(62, 2)),
        ("c".to_owned(), program(243, 3)),
    ]);
    let mut options = options(8, 20);
    let filtered = build(&options, &tree).0;
    compare(&open(filtered.clone()), &tree, &options);
    let mut plain = CategoryOptions::default();

    // A filter that was asked for is not replaced.
    plain.compression = "lzma:level=9:binary=sparc".parse().ok();
    options.categories.insert(Category::BinaryElf, plain);
    let plain = build(&options, &tree).0;
    compare(&open(plain.clone()), &tree, &options);
    assert!(
        filtered.len() + 1000 < plain.len(),
        "{} {}",
        filtered.len(),
        plain.len()
    );
}

#[test]
fn hot_files_by_any_of_their_names() {
    let mut random = Random::new(8);
    let mut tree = MemoryTree::new();
    let data: Vec<Vec<u8>> = (0..4).map(|_| random.text(5000)).collect();
    tree.insert(b"d", MemoryNode::new(FileType::Directory));
    for (path, which) in [
        (&b"first"[..], 0),
        (b"copy-of-first", 0),
        (b"d/second", 1),
        (b"third", 2),
        (b"cold", 3),
    ] {
        tree.insert(path, MemoryNode::file(data[which].clone()));
    }
    let mut linked = MemoryNode::file(data[2].clone());
    linked.meta.nlink = 2;
    linked.meta.identity = (1, 77);
    tree.insert(b"third", linked.clone());
    tree.insert(b"another name", linked);
    let mut options = options(3, 20);
    let list = HotPaths::parse(b"/first\nd/second\nthird\nno/such\nd\n").unwrap();
    options.categorizers.insert(0, Categorizer::Hotness(list));
    let image = round_trip(&tree, &options);
    let found = blocks(&image);
    assert_eq!(found.len(), 2, "{found:?}");
    let hot = (0..2u32)
        .find(|&at| found[at as usize].0 == "hotness")
        .unwrap();
    assert_eq!(image.decode_block(BlockNo(hot)).unwrap().len(), 15_000);
}

#[test]
fn names_and_parameters_can_be_left_out() {
    let data = wav(&Samples::CD, &Samples::CD.walk(5000, 1));
    let tree = tree([("a.wav".to_owned(), data)]);
    let mut options = options(5, 20);
    let stored = |options: &BuildOptions| {
        let image = round_trip(&tree, options);
        let view = image.metadata();
        let mut all = (0..image.container().block_count()).map(BlockNo);
        (
            view.category_names().unwrap().is_some()
                && view.block_category(BlockNo(0)).unwrap().is_some(),
            all.any(|block| view.block_metadata(block).unwrap().is_some()),
        )
    };
    assert_eq!(stored(&options), (true, true));
    options.category_metadata = false;
    assert_eq!(stored(&options), (true, false));
    options.category_names = false;
    options.category_metadata = true;
    assert_eq!(stored(&options), (false, false));
    options.category_names = true;
    options.categorizers.clear();
    assert_eq!(stored(&options), (false, false));
}

/// Files that are not what they were when they were cut into parts.
#[test]
fn audio_that_cannot_be_read_or_changes() {
    let data = wav(&Samples::CD, &Samples::CD.walk(200_000, 1));
    let mut tree = MemoryTree::new();
    let mut failing = MemoryNode::file(data.clone());
    failing.fail_at = Some(400_000);
    tree.insert(b"failing.wav", failing);
    let mut shorter = MemoryNode::file(data.clone());
    shorter.listed_size = Some(data.len() as u64 + 1000);
    tree.insert(b"shorter.wav", shorter);
    let mut longer = MemoryNode::file([&data[..], &[7; 333]].concat());
    longer.listed_size = Some(data.len() as u64);
    tree.insert(b"longer.wav", longer);
    tree.insert(b"fine.wav", MemoryNode::file(data.clone()));
    for bits in [12, 20] {
        let options = options(5, bits);
        let (bytes, summary) = build(&options, &tree);
        assert_eq!(summary.errors, 3);
        let image = open(bytes);
        let read =
            |path: &str| contents(&image, image.find_path(path.as_bytes()).unwrap().unwrap());
        assert!(read("fine.wav") == data && read("shorter.wav") == data);
        assert!(read("longer.wav") == [&data[..], &[7; 333]].concat());
        assert!(read("failing.wav").is_empty());
        for (block, (name, _)) in (0..).map(BlockNo).zip(blocks(&image)) {
            let frame = if name == "pcmaudio/waveform" { 4 } else { 1 };
            assert_eq!(image.decode_block(block).unwrap().len() % frame, 0);
        }
    }
}

/// A mix of everything.
fn mixture(seed: u64) -> MemoryTree {
    let mut random = Random::new(seed);
    let mut files = Vec::new();
    for (i, samples) in layouts().into_iter().enumerate() {
        let frames = 50 + random.below(900) as usize;
        let mut list = audio_files(&samples, &samples.walk(frames, seed + i as u64));
        let which = random.below(list.len() as u64) as usize;
        let (name, data) = list.swap_remove(which);
        files.push((format!("{i}-{name}"), data));
    }
    for i in 0..6 {
        let data = sky(900, i, seed);
        files.push((format!("{i}.fits"), fits(30, 30, i % 2 == 0, &data)));
        let len = random.below(50_000) as usize;
        files.push((format!("{i}.noise"), random.bytes(len)));
        let len = random.below(50_000) as usize;
        files.push((format!("{i}.txt"), random.text(len)));
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
        elf.push(if i % 2 == 0 { 62 } else { 183 });
        elf.extend(random.text(3000));
        files.push((format!("{i}.elf"), elf));
    }
    tree(files)
}

#[test]
fn the_number_of_workers_does_not_matter() {
    let tree = mixture(77);
    for level in [1, 5, 8] {
        let mut options = options(level, 13);
        options.lookback = 3;
        let images: BTreeSet<Vec<u8>> = [1, 2, 3, 5, 8]
            .into_iter()
            .map(|workers| {
                options.workers = workers;
                build(&options, &tree).0
            })
            .collect();
        assert_eq!(images.len(), 1);
    }
}

#[test]
fn options_that_contradict_categories() {
    let check = |change: &dyn Fn(&mut BuildOptions)| {
        let mut options = options(5, 20);
        change(&mut options);
        options.check().unwrap_err().to_string()
    };
    let own = |codec: &str| {
        let mut own = CategoryOptions::default();
        own.compression = codec.parse().ok();
        own
    };
    let text = check(&|o| o.compression = "flac".parse().unwrap());
    assert!(text.contains("cannot be used without a category"), "{text}");
    let text = check(&|o| {
        o.categories.insert(Category::FitsImage, own("flac"));
    });
    assert!(
        text.contains("cannot be used for category 'fits/image'"),
        "{text}"
    );
    check(&|o| {
        o.categories.insert(Category::PcmMetadata, own("ricepp"));
    });
    check(&|o| o.categorizers.push(Categorizer::Fits));
    check(&|o| o.bloom_filter_size = 11);
    check(&|o| {
        o.categories
            .entry(Category::Hotness)
            .or_default()
            .window_bits = Some(25);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn mixtures_come_back(
        seed in any::<u64>(),
        level in prop::sample::select(vec![0u8, 1, 2, 3, 4, 5]),
        bits in 10u32..18,
        window in 0u32..10,
        step in 0u32..5,
        lookback in 0u32..4,
        bloom in 0u32..11,
        order in prop::sample::select(vec![Order::None, Order::Path, Order::RevPath, Order::Similarity]),
    ) {
        let tree = mixture(seed);
        let mut options = options(level, bits);
        for category in [Category::PcmWaveform, Category::FitsImage, Category::BinaryElf] {
            let own = options.categories.entry(category).or_default();
            own.window_bits = Some(window);
            own.window_step = Some(step);
            own.lookback = Some(lookback);
            own.bloom_filter_size = Some(bloom);
            own.order = Some(order.clone());
        }
        round_trip(&tree, &options);
    }
}
