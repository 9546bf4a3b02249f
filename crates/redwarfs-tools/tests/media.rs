//! Sounds and pictures through the programs and back, whatever their headers claim; and between
//! this implementation and the reference: its payloads decode here, and ours decode there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use redwarfs_codec::{CodecSpec, CompressionId, Content, decompress};
use redwarfs_format::BlockNo;
use redwarfs_format::section::{Container, SectionHeader, SectionType};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::media::{Samples, aiff, caf, fits, picture, rf64, wav, wave64};
use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{Fields, Manifest};

use crate::support::{DWARFSEXTRACT, Mount, build, must, reference, whole_seconds};

/// Signed samples as wide as their bytes, little-endian.
const fn plain(channels: u16, bits: u16) -> Samples {
    Samples {
        channels,
        bits,
        bytes: bits.div_ceil(8),
        big: false,
        signed: true,
    }
}

/// Names and contents of files that FLAC and RICEPP take.
fn good_files() -> Vec<(&'static str, Vec<u8>)> {
    let big = |samples| Samples {
        big: true,
        ..samples
    };
    let eight = Samples {
        signed: false,
        ..plain(1, 8)
    };
    let wide = Samples {
        bytes: 4,
        ..big(plain(2, 24))
    };
    let wav_of = |samples: Samples, frames| wav(&samples, &samples.walk(frames, frames as u64));
    let aiff_of = |samples: Samples, kind, frames| {
        let samples = big(samples);
        aiff(&samples, kind, &samples.walk(frames, frames as u64))
    };
    vec![
        ("8.wav", wav_of(eight, 9001)),
        ("16.wav", wav_of(plain(2, 16), 30_000)),
        ("24.wav", wav_of(plain(2, 24), 12_345)),
        ("32.wav", wav_of(plain(2, 32), 8000)),
        ("six-channels.wav", wav_of(plain(6, 16), 5000)),
        ("eight-channels.wav", wav_of(plain(8, 24), 4000)),
        ("16.rf64", rf64(&plain(2, 16), &plain(2, 16).walk(9000, 1))),
        ("24.w64", wave64(&plain(3, 24), &plain(3, 24).walk(7000, 2))),
        ("16.aiff", aiff_of(plain(2, 16), None, 14_000)),
        ("20.aiff", aiff_of(plain(2, 20), None, 7000)),
        ("32.aifc", aiff_of(plain(1, 32), Some(b"twos"), 6000)),
        ("eight-channels.aiff", aiff_of(plain(8, 24), None, 3000)),
        ("24-in-4.caf", caf(&wide, &wide.walk(9000, 98))),
        (
            "image.fits",
            fits(311, 203, false, &picture(311, 203, 0, 7)),
        ),
        ("bayer.fits", fits(300, 200, true, &picture(300, 200, 0, 8))),
        (
            "12-bits.fits",
            fits(256, 130, false, &picture(256, 130, 4, 9)),
        ),
    ]
}

/// Files that look like those, but would not come back from a careless transform.
fn bad_files() -> Vec<(String, Vec<u8>)> {
    let mut random = Random::new(12);
    let mut files = Vec::new();
    for (bits, bytes) in [(8, 1), (16, 2), (20, 3), (24, 3), (24, 4), (32, 4)] {
        for channels in [1, 2, 8] {
            for big in [false, true] {
                let samples = Samples {
                    bytes,
                    big,
                    ..plain(channels, bits)
                };
                let name = |kind| format!("{kind}-{channels}-{bits}-{bytes}-{big}");
                let container = |data: &[u8]| match (big, bytes == bits.div_ceil(8)) {
                    (true, true) => aiff(&samples, None, data),
                    (false, true) => wav(&samples, data),
                    (_, false) => caf(&samples, data),
                };
                // Random bytes, and not a whole number of samples.
                let odd = 20_000 + 1 + 2 * random.below(500) as usize;
                files.push((name("noise"), container(&random.bytes(odd))));
                if bits < 8 * bytes {
                    // Bits below the samples that are not zero, here and there.
                    let mut dirty = samples.walk(6000, 5);
                    let low = if big { usize::from(bytes) - 1 } else { 0 };
                    for frame in [17, 5999] {
                        dirty[frame * samples.frame() + low] |= 1;
                    }
                    files.push((name("dirty"), container(&dirty)));
                }
            }
        }
    }
    let noise = random.bytes(61 * 71 * 2);
    for bayer in [false, true] {
        for (kind, width, height) in [("odd", 61, 71), ("short", 61, 710), ("none", 0, 0)] {
            let name = format!("{kind}-{bayer}.fits");
            files.push((name, fits(width, height, bayer, &noise)));
        }
    }
    // Pixels whose unused bits are not zero any more after the first block.
    let mut dirty = picture(200, 100, 4, 3);
    dirty[30_001] |= 1;
    files.push(("dirty.fits".to_owned(), fits(200, 100, false, &dirty)));
    files
}

fn make_tree(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for (name, content) in good_files() {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn assert_same_files(tree: &Path, extracted: &Path, what: &str) {
    // The reference does not set the time of the directory that it extracts to.
    let fields = Fields {
        mtime: false,
        ..Fields::EXTRACTED
    };
    let expected = Manifest::from_directory(tree, true).unwrap();
    let found = Manifest::from_directory(extracted, true).unwrap();
    assert_eq!(found.0.len(), good_files().len() + 1);
    expected.assert_same(&found, fields, what);
}

fn extract(program: impl AsRef<OsStr>, image: &Path, out: &Path) {
    fs::create_dir(out).unwrap();
    let args = [
        "-i".as_ref(),
        image.as_os_str(),
        "-o".as_ref(),
        out.as_os_str(),
    ];
    must(program, args);
}

/// The image with every FLAC and RICEPP block compressed again by this implementation, without
/// the section index. Also how many blocks of each codec have been replaced.
fn compressed_again(image: &[u8]) -> (Vec<u8>, [usize; 2]) {
    let read = |at: u64, out: &mut [u8]| -> io::Result<()> {
        let part = image
            .get(at as usize..)
            .and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let container = Container::open(&read, image.len() as u64, 0, None).unwrap();
    let mut out = Vec::new();
    let mut replaced = [0; 2];
    for section in &container.sections {
        if section.ty == SectionType::SECTION_INDEX {
            continue;
        }
        let section = &container.load_header(&read, section.position).unwrap();
        let id = section.compression.unwrap();
        let old = &image[section.payload_offset as usize..][..section.length as usize];
        let content = Content::of_payload(id, old).unwrap();
        let mut payload = old.to_vec();
        if content != Content::Bytes {
            let raw = decompress(id, old, 1 << 30).unwrap();
            let spec = if id == CompressionId::FLAC {
                "flac:level=8"
            } else {
                "ricepp:block_size=77"
            };
            let mut compressor = spec.parse::<CodecSpec>().unwrap().compressor();
            let result = compressor.compress_with(&raw, &content).unwrap();
            if let Some(new) = result.data {
                assert_eq!(result.id, id);
                replaced[usize::from(id == CompressionId::RICEPP)] += 1;
                payload = new;
            }
        }
        let number = section.position;
        let header = SectionHeader::seal(number, section.ty, id, &payload);
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(&payload);
    }
    (out, replaced)
}

#[test]
fn media_blocks_go_both_ways() {
    let Some(programs) = reference() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let option_sets: [&[&str]; 3] = [
        &[],
        &[
            "-S16",
            "-C",
            "pcmaudio/waveform::flac:level=8:exhaustive",
            "-C",
            "fits/image::ricepp:block_size=512",
        ],
        &[
            "-S14",
            "-C",
            "pcmaudio/waveform::flac:level=0",
            "-C",
            "fits/image::ricepp:block_size=16",
        ],
    ];
    for (number, options) in option_sets.into_iter().enumerate() {
        let path = |name: &str| dir.path().join(format!("{number}-{name}"));
        let image = path("image");
        let mut args: Vec<&OsStr> = vec![
            "-i".as_ref(),
            tree.as_ref(),
            "-o".as_ref(),
            image.as_ref(),
            "--no-progress".as_ref(),
            "--categorize=pcmaudio,fits".as_ref(),
        ];
        args.extend(options.iter().map(OsStr::new));
        must(programs.join("mkdwarfs"), args);

        extract(DWARFSEXTRACT, &image, &path("ours"));
        assert_same_files(&tree, &path("ours"), "their image, our program");

        let (again, [flac, ricepp]) = compressed_again(&fs::read(&image).unwrap());
        assert!(flac >= 8 && ricepp >= 3, "{flac} and {ricepp} blocks");
        let image = path("again");
        fs::write(&image, again).unwrap();
        extract(programs.join("dwarfsextract"), &image, &path("theirs"));
        assert_same_files(&tree, &path("theirs"), "our blocks, their program");
    }
}

/// Compressions of all blocks of a category.
fn compressions(image: &Path, category: &str) -> Vec<CompressionId> {
    let image = Image::open(image, &OpenOptions::default()).unwrap();
    let view = image.metadata();
    let names = view.category_names().unwrap().unwrap();
    let blocks = (0..image.container().block_count()).map(BlockNo);
    let of_category = blocks.filter(|&block| {
        let found = view.block_category(block).unwrap().unwrap();
        names[found.index()] == category.as_bytes()
    });
    of_category
        .map(|block| image.stored_block(block).unwrap().0.compression.unwrap())
        .collect()
}

#[test]
fn what_goes_in_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
    make_tree(&good);
    fs::create_dir(&bad).unwrap();
    for (name, content) in bad_files() {
        fs::write(bad.join(name), content).unwrap();
    }
    for (number, options) in [
        &["-l1"][..],
        &["-l5", "-S13"],
        &["-l7", "-W", "pcmaudio/waveform,fits/image::6", "-B4"],
        &["-l9", "-S16"],
    ]
    .into_iter()
    .enumerate()
    {
        for tree in [&good, &bad] {
            let place = |name: &str| dir.path().join(format!("{number}-{name}"));
            let image = place("image");
            let mut all = vec!["--categorize", "--force"];
            all.extend(options);
            build(tree, &image, &all);
            let what = format!("{} {options:?}", tree.display());
            let flac = compressions(&image, "pcmaudio/waveform");
            let ricepp = compressions(&image, "fits/image");
            let share = |all: &[CompressionId], wanted| {
                let used = all.iter().filter(|&&id| id == wanted).count();
                (used, all.len())
            };
            let (flac, waveforms) = share(&flac, CompressionId::FLAC);
            let (ricepp, images) = share(&ricepp, CompressionId::RICEPP);
            if tree == &good {
                // Short last blocks need not get smaller.
                assert!(flac * 10 >= waveforms * 8, "{what}: {flac} of {waveforms}");
                assert!(ricepp * 10 >= images * 8, "{what}: {ricepp} of {images}");
                // One of each layout at least.
                assert!(waveforms >= 12 && images >= 3, "{what}");
            } else {
                // The categorizer finds unused bits of pixels by looking at all of them.
                assert!(flac < waveforms && images > 0, "{what}");
            }
            let want = whole_seconds(Manifest::from_directory(tree, true).unwrap());
            let out = place("out");
            extract(DWARFSEXTRACT, &image, &out);
            let found = Manifest::from_directory(&out, true).unwrap();
            want.assert_same(&found, Fields::EXTRACTED, &format!("{what} extracted"));
            fs::remove_dir_all(&out).unwrap();
            let mountpoint = place("mnt");
            if let Some(_mount) = Mount::new(&image, &mountpoint, &[]) {
                let found = Manifest::from_directory(&mountpoint, true).unwrap();
                want.assert_same(&found, Fields::EXTRACTED, &format!("{what} mounted"));
            }
        }
    }
}
