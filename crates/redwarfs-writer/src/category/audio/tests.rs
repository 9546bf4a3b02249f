use proptest::prelude::*;
use redwarfs_codec::{ByteOrder, PcmFormat};
use redwarfs_testkit::media::chunk;

use super::super::probe::tests::{probe, shape};
use super::*;

fn fmt(tag: u16, channels: u16, bits: u16, size: usize) -> Vec<u8> {
    let mut data = Vec::new();
    data.extend(tag.to_le_bytes());
    data.extend(channels.to_le_bytes());
    data.extend([0; 10]);
    data.extend(bits.to_le_bytes());
    data.resize(size, 0);
    if size == 40 {
        data[24] = 1;
    }
    data
}

fn riff(magic: &[u8; 4], chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend([0; 4]);
    out.extend(b"WAVE");
    out.extend(chunks.concat());
    out
}

fn format(data: &[u8]) -> PcmFormat {
    let fragments = categorize(&probe(data)).unwrap().unwrap();
    let found = fragments
        .iter()
        .find_map(|fragment| match fragment.key.kind {
            Kind::Pcm(format) => Some(format),
            _ => None,
        });
    found.unwrap()
}

fn parts(before: u64, samples: u64, after: u64) -> Option<Vec<(Category, u64)>> {
    let all = [
        (Category::PcmMetadata, before),
        (Category::PcmWaveform, samples),
        (Category::PcmMetadata, after),
    ];
    Some(all.into_iter().filter(|(_, size)| *size > 0).collect())
}

#[test]
fn wav_files() {
    for (size, tag) in [(16, 1), (18, 1), (20, 1), (40, 1), (40, 0xfffe)] {
        let data = riff(
            b"RIFF",
            &[
                chunk(b"LIST", false, b"odd"),
                chunk(b"fmt ", false, &fmt(tag, 2, 16, size)),
                chunk(b"data", false, &[1; 403]),
                chunk(b"LIST", false, &[0; 10]),
            ],
        );
        let start = 12 + 12 + 8 + size as u64 + 8;
        let after = data.len() as u64 - start - 400;
        assert_eq!(shape(categorize(&probe(&data))), parts(start, 400, after));
        let format = format(&data);
        assert_eq!((format.channels, format.bits, format.bytes), (2, 16, 2));
        assert!(format.signed && format.byte_order == ByteOrder::Little);
    }
    for (bits, bytes, signed) in [(8, 1, false), (20, 3, true), (24, 3, true), (32, 4, true)] {
        let data = riff(
            b"RIFF",
            &[
                chunk(b"fmt ", false, &fmt(1, 1, bits, 16)),
                chunk(b"data", false, &[1; 120]),
            ],
        );
        let format = format(&data);
        assert_eq!((u16::from(format.bits), format.bytes), (bits, bytes));
        assert_eq!(format.signed, signed);
    }
}

#[test]
fn what_is_wrong_with_wav_files() {
    let format = chunk(b"fmt ", false, &fmt(1, 2, 16, 16));
    let data = chunk(b"data", false, &[0; 64]);
    let wav = |chunks: &[Vec<u8>]| riff(b"RIFF", chunks);
    let refused = [
        wav(&[data.clone(), format.clone()]),
        wav(&[format.clone(), format.clone(), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(1, 2, 16, 17)), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(3, 2, 32, 16)), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(6, 2, 8, 16)), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(1, 0, 16, 16)), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(1, 2, 12, 16)), data.clone()]),
        wav(&[chunk(b"fmt ", false, &fmt(1, 2, 40, 16)), data.clone()]),
        // Longer than the file.
        wav(&[format.clone(), data.clone()])[..80].to_vec(),
    ];
    for file in refused {
        let found = categorize(&probe(&file));
        assert!(found.is_err(), "{file:?}");
    }
    assert_eq!(shape(categorize(&probe(&wav(&[format])))), None);
    let empty = wav(&[
        chunk(b"fmt ", false, &fmt(1, 2, 16, 16)),
        chunk(b"data", false, &[]),
    ]);
    assert_eq!(shape(categorize(&probe(&empty))), parts(44, 0, 0));
    assert_eq!(shape(categorize(&probe(&empty[..31]))), None);
}

#[test]
fn rf64_files() {
    let mut sizes = vec![0; 28];
    sizes[8] = 200;
    let mut data = riff(
        b"RF64",
        &[
            chunk(b"ds64", false, &sizes),
            chunk(b"fmt ", false, &fmt(1, 1, 24, 16)),
            chunk(b"data", false, &[3; 200]),
            chunk(b"more", false, &[0; 20]),
        ],
    );
    let at = 12 + 36 + 24 + 4;
    data[at..at + 4].fill(0xff);
    let start = at as u64 + 4;
    let after = data.len() as u64 - start - 198;
    assert_eq!(shape(categorize(&probe(&data))), parts(start, 198, after));
    assert_eq!(format(&data).bits, 24);
    data[12 + 8 + 12] = 1;
    assert!(categorize(&probe(&data)).is_err(), "4 GiB in a small file");
    data[12] = b'x';
    assert!(categorize(&probe(&data)).is_err());
}

#[test]
fn wave64_files() {
    let file_id = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00";
    let id = |letters: &[u8; 4]| {
        let mut id = letters.to_vec();
        id.extend(b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a");
        id
    };
    let chunk = |letters: &[u8; 4], data: &[u8]| {
        let mut out = id(letters);
        out.extend((24 + data.len() as u64).to_le_bytes());
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    };
    let mut data = file_id.to_vec();
    data.extend([0; 8]);
    data.extend(id(b"wave"));
    data.extend(chunk(b"junk", &[1; 5]));
    data.extend(chunk(b"fmt ", &fmt(1, 3, 16, 16)));
    let size_at = data.len() + 16;
    data.extend(chunk(b"data", &[2; 100]));
    let start = size_at as u64 + 8;
    let after = data.len() as u64 - start - 96;
    assert_eq!(shape(categorize(&probe(&data))), parts(start, 96, after));
    assert_eq!(format(&data).channels, 3);
    data[size_at] = 23;
    assert!(categorize(&probe(&data)).is_err());
}

fn aiff(kind: Option<&[u8; 4]>, channels: u8, bits: u8, frames: u8, samples: usize) -> Vec<u8> {
    let mut common = vec![0, channels, 0, 0, 0, frames, 0, bits];
    common.resize(18, 0);
    if let Some(kind) = kind {
        common.extend_from_slice(kind);
        common.extend([0, 0]);
    }
    let mut sound = vec![0, 0, 0, 2, 0, 0, 0, 0, 9, 9];
    sound.resize(10 + samples, 5);
    let mut out = b"FORM\0\0\0\0AIF".to_vec();
    out.push(if kind.is_some() { b'C' } else { b'F' });
    out.extend(chunk(b"COMM", true, &common));
    out.extend(chunk(b"SSND", true, &sound));
    out
}

#[test]
fn aiff_files() {
    let data = aiff(None, 2, 20, 10, 64);
    let start = 12 + 26 + 8 + 10;
    assert_eq!(shape(categorize(&probe(&data))), parts(start, 60, 4));
    let found = format(&data);
    assert_eq!((found.bits, found.bytes, found.channels), (20, 3, 2));
    assert!(found.signed && found.byte_order == ByteOrder::Big);
    assert!(categorize(&probe(&aiff(None, 2, 20, 11, 64))).is_err());
    for (kind, bits, big, signed) in [
        (b"NONE", 16, true, true),
        (b"twos", 16, true, true),
        (b"sowt", 16, false, true),
        (b"in24", 24, true, true),
        (b"raw ", 8, true, false),
    ] {
        let found = format(&aiff(Some(kind), 1, bits, 10, 64));
        assert_eq!(found.byte_order == ByteOrder::Big, big);
        assert_eq!(found.signed, signed);
    }
    assert!(categorize(&probe(&aiff(Some(b"fl32"), 1, 32, 10, 64))).is_err());
}

fn caf(flags: u8, packet: u8, channels: u8, bits: u8, data: &[u8], open: bool) -> Vec<u8> {
    let mut out = b"caff\0\x01\0\0".to_vec();
    let mut add = |id: &[u8], size: u64, data: &[u8]| {
        out.extend_from_slice(id);
        out.extend(size.to_be_bytes());
        out.extend_from_slice(data);
    };
    let mut desc = vec![0; 8];
    desc.extend(b"lpcm");
    for number in [flags, packet, 1, channels, bits] {
        desc.extend(u32::from(number).to_be_bytes());
    }
    add(b"desc", 32, &desc);
    let size = if open { u64::MAX } else { data.len() as u64 };
    add(b"data", size, data);
    out
}

#[test]
fn caf_files() {
    for open in [false, true] {
        let data = caf(2, 8, 2, 24, &[1; 4 + 83], open);
        let start = 8 + 44 + 12 + 4;
        assert_eq!(shape(categorize(&probe(&data))), parts(start, 80, 3));
        let found = format(&data);
        assert_eq!((found.bits, found.bytes, found.channels), (24, 4, 2));
        assert!(found.signed && found.byte_order == ByteOrder::Little);
    }
    assert_eq!(
        format(&caf(0, 1, 1, 8, &[0; 40], false)).byte_order,
        ByteOrder::Big
    );
    for (flags, packet, channels, bits) in [
        (1, 4, 1, 32),
        (0, 0, 1, 16),
        (0, 3, 2, 16),
        (0, 5, 1, 32),
        (0, 2, 0, 16),
    ] {
        let data = caf(flags, packet, channels, bits, &[0; 40], false);
        assert!(categorize(&probe(&data)).is_err(), "{packet} {channels}");
    }
    for size in 0..4 {
        assert!(categorize(&probe(&caf(0, 2, 1, 16, &vec![0; size], false))).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is in a file, its fragments make it up, and nothing panics.
    #[test]
    fn damaged_headers(
        which in 0usize..6,
        cuts in prop::collection::vec((0usize..200, any::<u8>()), 0..6),
        size in 0usize..300,
    ) {
        let format_chunk = chunk(b"fmt ", false, &fmt(1, 2, 16, 16));
        let mut data = match which {
            0 => riff(b"RIFF", &[format_chunk, chunk(b"data", false, &[7; 64])]),
            1 => riff(b"RF64", &[chunk(b"ds64", false, &[0; 28]), format_chunk]),
            2 => aiff(None, 2, 16, 10, 64),
            3 => aiff(Some(b"sowt"), 1, 16, 20, 64),
            4 => caf(2, 4, 2, 16, &[0; 64], false),
            _ => caf(0, 8, 2, 24, &[0; 64], true),
        };
        for (at, byte) in cuts {
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
        }
        data.truncate(size.max(32));
        if let Ok(Some(fragments)) = categorize(&probe(&data)) {
            let total: u64 = fragments.iter().map(|fragment| fragment.size).sum();
            prop_assert_eq!(total, data.len() as u64);
        }
    }
}
