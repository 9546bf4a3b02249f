//! Every image that we have, rewritten in every way, shows what it showed before.

use crate::common::{Rewritten, codec, open, rewritten};
use redwarfs_format::metadata::Packing;
use redwarfs_format::section::{CompressionId, SectionType, Version};
use redwarfs_reader::{CheckOptions, Image, VerifyMode};
use redwarfs_rewrite::{CategoryCodec, Rebuild, RewriteOptions};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{Fields, Golden, Manifest, compat_images, golden_images};

/// Fast codecs; two workers and little memory, so that work waits for work.
fn base() -> RewriteOptions {
    let mut options = RewriteOptions::level(1);
    options.compression = codec("lz4");
    options.metadata_compression = codec("lz4");
    options.workers = 2;
    options
}

fn all_times() -> Rebuild {
    let mut rebuild = Rebuild::default();
    rebuild.keep_all_times = true;
    rebuild
}

fn modes() -> Vec<(&'static str, RewriteOptions)> {
    let with = |change: &dyn Fn(&mut RewriteOptions)| {
        let mut options = base();
        change(&mut options);
        options
    };
    vec![
        ("copy", base()),
        ("all", with(&|o| (o.blocks, o.metadata) = (true, true))),
        ("block", with(&|o| o.blocks = true)),
        ("metadata", with(&|o| o.metadata = true)),
        ("rebuild", with(&|o| o.rebuild = Some(all_times()))),
        (
            "rebuild, packed, small blocks",
            with(&|o| {
                o.block_size_bits = Some(11);
                o.rebuild = Some({
                    let mut rebuild = all_times();
                    rebuild.packing = Packing::all();
                    rebuild
                });
            }),
        ),
        (
            "rebuild, plain, large blocks",
            with(&|o| {
                o.block_size_bits = Some(22);
                o.section_index = false;
                o.history = None;
                o.rebuild = Some({
                    let mut rebuild = all_times();
                    rebuild.packing = Packing::plain();
                    rebuild
                });
            }),
        ),
    ]
}

/// What an image shows. If it is `upgraded` from an old format, in which names of equal contents have an
/// inode in common, only those with equal attributes count as links.
fn shown(image: &Image, upgraded: bool) -> Manifest {
    let manifest = Manifest::from_image(image, true).unwrap();
    if upgraded {
        manifest.linked_by_attributes()
    } else {
        manifest
    }
}

fn check(golden: &Golden, mode: &str, options: &RewriteOptions) {
    let what = format!("{} ({mode})", golden.name);
    let before = open(&std::fs::read(&golden.image).unwrap());
    let rebuilt = options.rebuild.is_some();
    let legacy = before.metadata().is_legacy() && rebuilt;
    let Rewritten { image, .. } =
        rewritten(&before, options).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(image.container().version, Version::WRITTEN, "{what}");
    let mut integrity = CheckOptions::default();
    integrity.mode = VerifyMode::Integrity;
    let report = image.check_sections(&integrity).unwrap();
    assert!(report.is_ok(), "{what}: {:?}", report.findings);
    let fields = Fields {
        ino: !legacy,
        ..Fields::ALL
    };
    shown(&before, legacy).assert_same(&shown(&image, false), fields, &what);
    if rebuilt {
        assert!(!image.metadata().is_legacy(), "{what}");
        let sum: u64 = {
            let counts = image.metadata().counts();
            let files = counts.symlink_offset..counts.device_offset;
            files
                .map(|i| image.stat(redwarfs_format::InodeNo(i)).unwrap().size)
                .sum()
        };
        assert_eq!(image.metadata().totals().size, sum, "{what}");
    }
    if let Some(bits) = options.block_size_bits {
        assert_eq!(image.metadata().block_size(), 1 << bits, "{what}");
    }
    let blocks = image.container().blocks().map(|section| {
        let section = image.section_with_header(section).unwrap();
        section.compression.unwrap()
    });
    if options.blocks || options.block_size_bits.is_some() {
        let known = [CompressionId::NONE, CompressionId::LZ4];
        assert!(blocks.into_iter().all(|id| known.contains(&id)), "{what}");
    }
}

#[test]
fn golden_images_stay_what_they_are() {
    for (mode, options) in modes() {
        for golden in golden_images() {
            check(&golden, mode, &options);
        }
    }
}

#[test]
fn images_of_old_releases_are_upgraded() {
    for golden in compat_images() {
        for (mode, options) in modes() {
            check(&golden, mode, &options);
        }
    }
}

#[test]
fn copied_metadata_is_copied_with_everything_in_it() {
    for golden in golden_images() {
        let before = open(&std::fs::read(&golden.image).unwrap());
        let Rewritten { image, .. } = rewritten(&before, &base()).unwrap();
        for ty in [SectionType::METADATA_V2_SCHEMA, SectionType::METADATA_V2] {
            let payload = |image: &Image| {
                let section = image.container().only_section_of_type(ty).unwrap();
                image.decode_section(section).unwrap()
            };
            assert!(payload(&before) == payload(&image), "{}", golden.name);
        }
    }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    for name in [
        "audio-categorize",
        "basic-zstd-small-blocks",
        "fits-categorize",
    ] {
        let before = open(&std::fs::read(golden(name).image).unwrap());
        for (mode, options) in modes() {
            let with = |workers| {
                let mut options = options.clone();
                options.workers = workers;
                options.history = None;
                rewritten(&before, &options).unwrap().bytes
            };
            let one = with(1);
            for workers in [2, 5] {
                assert!(one == with(workers), "{name} ({mode}), {workers} workers");
            }
        }
    }
}

#[test]
fn media_codecs_work_from_what_the_image_tells() {
    for (name, category, id, spec) in [
        (
            "audio-categorize",
            "pcmaudio/waveform",
            CompressionId::FLAC,
            "flac:level=3",
        ),
        (
            "fits-categorize",
            "fits/image",
            CompressionId::RICEPP,
            "ricepp",
        ),
    ] {
        let before = open(&std::fs::read(golden(name).image).unwrap());
        let count = |image: &Image| {
            let ids = image
                .container()
                .blocks()
                .map(|section| image.section_with_header(section).unwrap().compression);
            ids.filter(|&found| found == Some(id)).count()
        };
        assert!(count(&before) > 0, "{name}");
        let manifest = Manifest::from_image(&before, true).unwrap();
        // Away from the codec and back, with whole blocks and with others.
        let mut away = base();
        (away.blocks, away.metadata) = (true, true);
        let plain = rewritten(&before, &away).unwrap().image;
        assert_eq!(count(&plain), 0, "{name}");
        for bits in [None, Some(14)] {
            let mut back = base();
            (back.blocks, back.block_size_bits) = (true, bits);
            back.rebuild = bits.map(|_| all_times());
            back.category_compression = vec![CategoryCodec::new(category, codec(spec), true)];
            let again = rewritten(&plain, &back).unwrap().image;
            assert!(count(&again) > 0, "{name}");
            let now = Manifest::from_image(&again, true).unwrap();
            manifest.assert_same(&now, Fields::ALL, name);
            // Without the description of the content, only payloads that have one themselves
            // can be compressed.
            let mut blind = base();
            blind.rebuild = Some({
                let mut rebuild = all_times();
                rebuild.category_metadata = false;
                rebuild
            });
            let blind_plain = rewritten(&plain, &blind).unwrap().image;
            let error = rewritten(&blind_plain, &back).unwrap_err().to_string();
            assert!(
                error.contains("does not tell what its content is like"),
                "{error}"
            );
            back.category_compression[0].required = false;
            let fallen_back = rewritten(&blind_plain, &back).unwrap().image;
            assert_eq!(count(&fallen_back), 0, "{name}");
            let blind_media = rewritten(&before, &blind).unwrap().image;
            back.category_compression[0].required = true;
            let again = rewritten(&blind_media, &back).unwrap().image;
            assert!(count(&again) > 0, "{name}");
        }
    }
}
