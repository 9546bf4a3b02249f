//! Audio and pixels between this implementation and the reference: its payloads decode here, and
//! ours decode there.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use redwarfs_codec::{CodecSpec, CompressionId, Content, decompress};
use redwarfs_format::section::{Container, SectionHeader, SectionType};
use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{Fields, Manifest, media};

use support::{DWARFSEXTRACT, must, reference};

/// Names of the files in the tree.
const FILES: [&str; 11] = [
    "8.wav",
    "16.wav",
    "24.wav",
    "32.wav",
    "six-channels.wav",
    "16.aiff",
    "20.aiff",
    "24-in-4.caf",
    "image.fits",
    "bayer.fits",
    "12-bits.fits",
];

/// Samples of a random walk, all of `bits` bits.
fn walk(bits: u32, count: usize, seed: u64) -> Vec<i32> {
    let mut random = Random::new(seed);
    let range = 1i64 << (bits - 1);
    let mut level = 0;
    let mut next = || {
        level += (random.draw() >> 20) as i64 % (range / 32) - range / 64;
        level = i64::clamp(level, -range, range - 1);
        level as i32
    };
    (0..count).map(|_| next()).collect()
}

fn little(samples: &[i32], bytes: usize) -> Vec<u8> {
    let bytes_of = |sample: &i32| sample.to_le_bytes().into_iter().take(bytes);
    samples.iter().flat_map(bytes_of).collect()
}

fn big(samples: &[i32], bytes: usize) -> Vec<u8> {
    let bytes_of = |sample: &i32| sample.to_be_bytes().into_iter().skip(4 - bytes);
    samples.iter().flat_map(bytes_of).collect()
}

fn wav(bits: u16, channels: u16, frames: usize) -> Vec<u8> {
    let samples = walk(bits.into(), frames * usize::from(channels), bits.into());
    let mut data = little(&samples, usize::from(bits / 8));
    if bits == 8 {
        for byte in &mut data {
            *byte ^= 0x80;
        }
    }
    let align = channels * bits / 8;
    let mut file = b"RIFF".to_vec();
    file.extend_from_slice(&(36 + data.len() as u32).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0");
    file.extend_from_slice(&channels.to_le_bytes());
    file.extend_from_slice(&44100u32.to_le_bytes());
    file.extend_from_slice(&(44100 * u32::from(align)).to_le_bytes());
    file.extend_from_slice(&align.to_le_bytes());
    file.extend_from_slice(&bits.to_le_bytes());
    file.extend_from_slice(b"data");
    file.extend_from_slice(&(data.len() as u32).to_le_bytes());
    file.extend_from_slice(&data);
    file
}

fn aiff(bits: u16, frames: u32) -> Vec<u8> {
    let bytes = usize::from(bits.div_ceil(8));
    let shift = 8 * bytes as u32 - u32::from(bits);
    let samples: Vec<i32> = walk(bits.into(), 2 * frames as usize, 99)
        .iter()
        .map(|sample| sample << shift)
        .collect();
    let data = big(&samples, bytes);
    let mut file = b"FORM".to_vec();
    file.extend_from_slice(&(46 + data.len() as u32).to_be_bytes());
    file.extend_from_slice(b"AIFFCOMM\0\0\0\x12\0\x02");
    file.extend_from_slice(&frames.to_be_bytes());
    file.extend_from_slice(&bits.to_be_bytes());
    file.extend_from_slice(b"\x40\x0e\xac\x44\0\0\0\0\0\0SSND");
    file.extend_from_slice(&(8 + data.len() as u32).to_be_bytes());
    file.extend_from_slice(&[0; 8]);
    file.extend_from_slice(&data);
    file
}

/// 24 bits in 4 bytes, big-endian.
fn caf(frames: usize) -> Vec<u8> {
    let samples: Vec<i32> = walk(24, 2 * frames, 98).iter().map(|s| s << 8).collect();
    let data = big(&samples, 4);
    let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
    file.extend_from_slice(&44100f64.to_be_bytes());
    file.extend_from_slice(b"lpcm");
    for value in [0u32, 8, 1, 2, 24] {
        file.extend_from_slice(&value.to_be_bytes());
    }
    file.extend_from_slice(b"data");
    file.extend_from_slice(&(4 + data.len() as u64).to_be_bytes());
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&data);
    file
}

fn fits(width: usize, height: usize, bayer: bool, unused: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(unused) + 7);
    let mut pixel = |i: usize| {
        let noise = random.draw() >> 30;
        // Mostly even, with stars and stripes that no Rice code fits.
        let value = match noise % 61 {
            0 => noise as u16 >> unused,
            _ if i / width % 37 == 5 => (noise as u16) >> unused,
            _ if i / width % 37 == 6 => 77,
            _ => 300 + (i % 2 * 90) as u16 + (noise % 29) as u16,
        };
        (value << unused).to_be_bytes()
    };
    let data: Vec<u8> = (0..width * height).flat_map(&mut pixel).collect();
    media::fits(width, height, bayer, &data)
}

fn make_tree(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for name in FILES {
        let content = match name {
            "8.wav" => wav(8, 1, 9001),
            "16.wav" => wav(16, 2, 30_000),
            "24.wav" => wav(24, 2, 12_345),
            "32.wav" => wav(32, 2, 8000),
            "six-channels.wav" => wav(16, 6, 5000),
            "16.aiff" => aiff(16, 14_000),
            "20.aiff" => aiff(20, 7000),
            "24-in-4.caf" => caf(9000),
            "image.fits" => fits(311, 203, false, 0),
            "bayer.fits" => fits(300, 200, true, 0),
            _ => fits(256, 130, false, 4),
        };
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
    assert_eq!(found.0.len(), FILES.len() + 1);
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
    let container = Container::open_scanning(&read, image.len() as u64, 0, None).unwrap();
    let mut out = Vec::new();
    let mut replaced = [0; 2];
    for section in &container.sections {
        if section.ty == SectionType::SECTION_INDEX {
            continue;
        }
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
