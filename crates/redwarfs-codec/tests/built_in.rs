//! Which codecs a build has. Runs with any set of cargo features.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use redwarfs_codec::{
    ByteOrder, CodecSpec, CompressionId as Id, Content, Decoder, Error, Padding, PcmFormat,
    PixelFormat, SpecError, codec_names, decompress, help, library_versions, missing_codec_names,
    raw_size,
};
use redwarfs_format::block_header::{FlacBlockHeader, RiceppBlockHeader};

const LIMIT: u64 = 1 << 20;

/// All codecs of the format: name, id of their payloads, and whether this build is to have them.
const CODECS: [(&str, Id, bool); 8] = [
    ("null", Id::NONE, true),
    ("zstd", Id::ZSTD, cfg!(feature = "zstd")),
    ("lzma", Id::LZMA, cfg!(feature = "lzma")),
    ("lz4", Id::LZ4, cfg!(feature = "lz4")),
    ("lz4hc", Id::LZ4HC, cfg!(feature = "lz4")),
    ("brotli", Id::BROTLI, cfg!(feature = "brotli")),
    ("flac", Id::FLAC, cfg!(feature = "flac")),
    ("ricepp", Id::RICEPP, cfg!(feature = "ricepp")),
];

/// Data of which every codec makes less, and what it is.
fn sample(name: &str) -> (Vec<u8>, Content) {
    let content = match name {
        "flac" => Content::Pcm(PcmFormat {
            channels: 1,
            bits: 16,
            bytes: 2,
            byte_order: ByteOrder::Little,
            signed: true,
            padding: Padding::Msb,
        }),
        "ricepp" => Content::Pixels(PixelFormat {
            components: 1,
            unused_lsb: 0,
            byte_order: ByteOrder::Little,
        }),
        _ => Content::Bytes,
    };
    let numbers = (0..8192_u16).flat_map(|i| (i / 16).to_le_bytes());
    (numbers.collect(), content)
}

/// The start of a payload of that codec which announces 24 bytes.
fn payload(name: &str) -> Vec<u8> {
    let announced = |header: Vec<u8>| [vec![24], header].concat();
    match name {
        "flac" => announced(
            FlacBlockHeader {
                num_channels: 1,
                bits_per_sample: 16,
                flags: 0x41,
            }
            .encode(),
        ),
        "ricepp" => announced(
            RiceppBlockHeader {
                block_size: 128,
                component_count: 1,
                bytes_per_sample: 2,
                ricepp_version: 1,
                ..RiceppBlockHeader::default()
            }
            .encode(),
        ),
        _ => b"\x18\0\0\0hello hello hello hello\n".to_vec(),
    }
}

#[test]
fn every_codec_is_there_or_refused_by_name() {
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    for (name, id, built) in CODECS {
        let parsed = name.parse::<CodecSpec>();
        let preset = CodecSpec::preset(name).unwrap();
        assert_eq!(preset.is_available(), built, "{name}");
        if built {
            here.push(name);
            let (raw, content) = sample(name);
            let spec = parsed.unwrap();
            assert_eq!(preset, spec);
            let block = spec.compressor().compress_with(&raw, &content).unwrap();
            let Some(payload) = block.data else {
                assert_eq!(name, "null");
                continue;
            };
            assert_eq!(raw_size(block.id, &payload).unwrap(), raw.len() as u64);
            assert!(
                decompress(block.id, &payload, LIMIT).unwrap() == raw,
                "{name}"
            );
            assert!(help().contains(&format!("  {name}\n")));
            continue;
        }
        missing.push(name);
        let error = parsed.unwrap_err();
        assert!(matches!(&error, SpecError::Unsupported { name: of, .. } if of == name));
        let words = format!("compression '{name}' is not in this build, which has null");
        assert!(error.to_string().starts_with(&words), "{error}");
        assert_eq!(preset.check_available().unwrap_err(), error);
        let refused = preset.compressor().compress(&[0; 100]);
        assert!(matches!(refused, Err(Error::Unsupported(what)) if what.contains(name)));
        assert!(!help().contains(&format!("  {name}\n")));
        for tried in [
            decompress(id, &payload(name), LIMIT).map(drop),
            Decoder::new(id, payload(name), LIMIT).map(drop),
        ] {
            let error = tried.unwrap_err();
            let words = format!("{id} compression is not in this build");
            assert!(
                matches!(&error, Error::Unsupported(what) if *what == words),
                "{name}: {error}"
            );
        }
    }
    assert_eq!(codec_names(), here);
    assert_eq!(missing_codec_names(), missing);
    if !missing.is_empty() {
        eprintln!(
            "SKIPPED: tests of all codecs: this build is without {}",
            missing.join(", ")
        );
    }
}

#[test]
fn a_wrong_preset_is_an_error_in_any_build() {
    for spec in ["", "foo", "null:level=1"] {
        assert!(CodecSpec::preset(spec).is_err(), "{spec}");
    }
}

#[test]
fn the_libraries_are_those_of_the_codecs() {
    let features = [
        ("brotli", cfg!(feature = "brotli")),
        ("libFLAC", cfg!(feature = "flac")),
        ("liblzma", cfg!(feature = "lzma")),
        ("lz4", cfg!(feature = "lz4")),
        ("zstd", cfg!(feature = "zstd")),
    ];
    let built = features.iter().filter(|(_, built)| *built);
    let names = library_versions();
    let names: Vec<_> = names
        .iter()
        .map(|library| library.split_once('-').unwrap().0)
        .collect();
    assert_eq!(names, built.map(|(name, _)| *name).collect::<Vec<_>>());
}
