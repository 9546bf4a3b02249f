use super::*;
use crate::category::{Categorizer, Category, StreamKey};
use crate::options::{CategoryOptions, FamilyOptions, NilsimsaOptions};
use crate::progress::SilentProgress;

/// Of a build with one stream, of so many bytes.
fn plan_of(options: &BuildOptions, load: Load, bytes: u64) -> Result<Plan> {
    let settings = StreamSettings::general(options);
    let stream = StreamLoad {
        settings: &settings,
        items: load.contents,
        bytes,
    };
    plan(options, load, &[stream], &SilentProgress::default())
}

#[test]
fn a_second_codec_needs_room_under_a_limit_only() {
    let mut options = BuildOptions::level(7);
    let lzma: CodecSpec = "lzma:level=9".parse().unwrap();
    let has_room = |options: &BuildOptions, frozen| {
        super::has_room(options, &lzma, Load::default(), (frozen, frozen))
    };
    assert!(has_room(&options, 64 << 20));
    options.memory_limit = Some(300 << 20);
    assert!(has_room(&options, 1 << 20));
    assert!(!has_room(&options, 64 << 20));
}

#[test]
fn what_is_said_to_be_needed_is_enough() {
    for level in 0..=9 {
        for (entries, bytes) in [
            (0, 0),
            (1, 3),
            (1, 1 << 40),
            (1000, 1 << 24),
            (1_000_000, 1 << 36),
        ] {
            let load = Load {
                entries,
                directories: entries / 10,
                contents: entries,
                strings: 24 * entries,
                text: 24 * entries,
                features: 4 * entries,
                listed: bytes,
                ..Load::default()
            };
            let mut options = BuildOptions::level(level);
            options.workers = 4;
            options.memory_limit = Some(1 << 20);
            let Err(Error::MemoryLimit { needed, .. }) = plan_of(&options, load, bytes) else {
                panic!("level {level}: 1 MiB is enough");
            };
            options.memory_limit = Some(needed);
            let plan = plan_of(&options, load, bytes);
            assert!(plan.is_ok(), "level {level}: {needed}");
            options.memory_limit = Some(needed / 20 * 17);
            let plan = plan_of(&options, load, bytes);
            assert!(plan.is_err(), "level {level}: {needed}");
            assert!(needed < 3 << 30, "level {level}: {needed}");
        }
    }
}

/// The limit that a refusal names as enough, and for how many entries.
fn said(refused: Result<()>) -> (u64, Option<u64>) {
    match refused {
        Err(Error::MemoryLimit {
            needed,
            enough,
            entries,
            ..
        }) => {
            assert!(enough >= needed, "{enough} {needed}");
            (enough, entries)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_said_to_be_enough_is_enough() {
    for level in 0..=9 {
        for categorized in [false, true] {
            let mut options = BuildOptions::level(level);
            options.workers = 4;
            if categorized {
                options.categorizers = vec![Categorizer::Fits, Categorizer::PcmAudio];
                let own = CategoryOptions {
                    compression: Some("lzma:level=9".parse().unwrap()),
                    lookback: Some(4),
                    order: Some(Order::Nilsimsa(NilsimsaOptions::default())),
                    ..CategoryOptions::default()
                };
                options.categories.insert(Category::FitsMetadata, own);
            }
            let passes = |options: &BuildOptions, load: Load, bytes: u64| {
                let watch = Watch::new(options);
                assert!(watch.check_options().is_ok(), "level {level}");
                assert!(watch.check_listing(load).is_ok(), "level {level}: {load:?}");
                let files = load.entries - load.directories;
                assert!(
                    !watch.could_be_too_low(load, files),
                    "level {level}: {load:?}"
                );
                let keys = [
                    Category::Default,
                    Category::FitsMetadata,
                    Category::PcmWaveform,
                ];
                for category in &keys[..if categorized { 3 } else { 1 }] {
                    let settings = StreamSettings::new(options, StreamKey::plain(*category));
                    let stream = StreamLoad {
                        settings: &settings,
                        items: load.contents,
                        bytes,
                    };
                    let done = plan(options, load, &[stream], &SilentProgress::default());
                    assert!(done.is_ok(), "level {level} {category}: {done:?} {load:?}");
                }
            };
            let input = |entries: u64, directories: u64, listed: u64| Load {
                entries,
                directories,
                contents: entries - directories,
                strings: 40 * entries,
                text: 40 * entries,
                features: ((entries - directories) * 16).min(listed / 64),
                listed,
                ..Load::default()
            };
            // Nothing is known.
            options.memory_limit = Some(1 << 20);
            let (enough, entries) = said(Watch::new(&options).check_options());
            let entries = entries.unwrap();
            assert_eq!(entries, 1_000_000);
            options.memory_limit = Some(enough);
            for directories in [0, entries / 10, entries] {
                for listed in [0, 1 << 20, 1 << 45] {
                    passes(&options, input(entries, directories, listed), listed);
                }
            }
            let room = Watch::new(&options).room(Load::default());
            assert!(room > entries, "level {level}: {room}");
            // A part is known.
            options.memory_limit = Some(1 << 20);
            let part = input(3_000_000, 100_000, 1 << 30);
            let (enough, entries) = said(Watch::new(&options).check_listing(part));
            options.memory_limit = Some(enough);
            passes(&options, input(entries.unwrap(), 0, 1 << 45), 1 << 45);
            assert_eq!(entries, Some(6_000_000));
            // All is listed, and nothing is compared.
            for load in [
                input(2, 1, 3),
                input(1000, 10, 1 << 24),
                input(500_000, 20_000, 1 << 36),
            ] {
                options.memory_limit = Some(1 << 20);
                let before = Load {
                    contents: 0,
                    features: 0,
                    ..load
                };
                let (enough, entries) = said(Watch::new(&options).check(before));
                assert_eq!(entries, None);
                options.memory_limit = Some(enough);
                passes(&options, load, load.listed);
            }
        }
    }
}

#[test]
fn little_input_needs_little() {
    for level in 0..=9 {
        let mut options = BuildOptions::level(level);
        options.workers = 2;
        let mut last = 0;
        for (bytes, most) in [(0, 56), (3, 56), (100 << 10, 64), (4 << 20, 192)] {
            options.memory_limit = Some(1);
            let load = Load {
                entries: 2,
                contents: 1,
                listed: bytes,
                ..Load::default()
            };
            let Err(Error::MemoryLimit { needed, .. }) = plan_of(&options, load, bytes) else {
                panic!("level {level}: 1 byte is enough");
            };
            assert!(needed < most << 20, "level {level}, {bytes}: {needed}");
            assert!(needed >= last, "level {level}, {bytes}: {needed}");
            last = needed;
        }
    }
}

/// What an order takes counts wherever it comes from.
#[test]
fn orders_of_categories_count() {
    let load = Load {
        entries: 2_000_000,
        contents: 2_000_000,
        features: 8_000_000,
        listed: 1 << 33,
        ..Load::default()
    };
    let needed = |general: Order, own: Option<Order>| {
        let mut options = BuildOptions::level(1);
        options.order = general;
        options.memory_limit = Some(1 << 20);
        let category = CategoryOptions {
            order: own,
            ..CategoryOptions::default()
        };
        options.categories.insert(Category::Hotness, category);
        let general = StreamSettings::general(&options);
        let hot = StreamSettings::new(&options, StreamKey::plain(Category::Hotness));
        let of = |settings, items| StreamLoad {
            settings,
            items,
            bytes: 1 << 30,
        };
        let streams = [of(&general, 1000), of(&hot, load.contents)];
        match plan(&options, load, &streams, &SilentProgress::default()) {
            Err(Error::MemoryLimit { needed, .. }) => needed,
            _ => 0,
        }
    };
    let families = || Order::Families(FamilyOptions::default());
    let plain = needed(Order::Path, None);
    for order in [Order::Nilsimsa(NilsimsaOptions::default()), families()] {
        let everywhere = needed(order.clone(), None);
        assert!(everywhere > plain + 128 * load.contents);
        let own = needed(Order::Path, Some(order));
        assert!(own > everywhere / 20 * 19, "{own} {everywhere}");
    }
    assert!(needed(families(), Some(Order::Path)) < plain + (2 << 20));
}

/// What a source has in memory itself, such as the tree of an archive, counts beside this.
#[test]
fn ten_million_entries_alone_fit_two_gib_when_inodes_are_in_a_file() {
    let mut options = BuildOptions::level(7);
    options.workers = 2;
    options.memory_limit = Some(2 << 30);
    // Names of 20 bytes, directories of 100 files, each second file empty.
    let load = |spilled| Load {
        entries: 10_000_000,
        directories: 100_000,
        contents: 5_000_000,
        strings: 240_000_000,
        text: 240_000_000,
        spilled,
        features: 1_000_000,
        listed: 50_000_000,
        ..Load::default()
    };
    let plan = plan_of(&options, load(true), 50_000_000);
    let parts = [tables, metadata].map(|of| of(&options, load(true)));
    assert!(plan.is_ok(), "{plan:?} {parts:?}");
    let plan = plan_of(&options, load(false), 50_000_000);
    assert!(matches!(plan, Err(Error::MemoryLimit { .. })), "{plan:?}");
}

#[test]
fn more_memory_means_more_threads_and_blocks() {
    let mut options = BuildOptions::level(9);
    options.workers = 8;
    let mut last = Plan {
        workers: 0,
        segmenters: 0,
        blocks: 0,
    };
    for gib in [2, 4, 8, 16, 64] {
        options.memory_limit = Some(gib << 30);
        let settings = StreamSettings::general(&options);
        let stream = StreamLoad {
            settings: &settings,
            items: 1,
            bytes: 1 << 40,
        };
        let progress = SilentProgress::default();
        let plan = plan(&options, Load::default(), &[stream; 5], &progress).expect("enough");
        assert!(plan.workers >= last.workers, "{gib}");
        assert!(plan.segmenters >= last.segmenters, "{gib}");
        assert!(plan.blocks >= plan.workers, "{gib}");
        last = plan;
    }
    assert_eq!((last.workers, last.segmenters), (8, 5));
}

#[test]
fn the_default_fits_two_gib() {
    for level in 0..=9 {
        let mut options = BuildOptions::level(level);
        options.workers = 16;
        options.machine_memory = Some(2 << 30);
        let settings = StreamSettings::general(&options);
        let streams = [StreamLoad {
            settings: &settings,
            items: 0,
            bytes: 1 << 40,
        }; 20];
        let load = Load {
            listed: 1 << 40,
            ..Load::default()
        };
        let plan = plan(&options, load, &streams, &SilentProgress::default());
        let plan = plan.expect("no limit");
        let block = u64::from(options.block_size());
        let job = streams[0].compressor(&options);
        let total = fixed(&options, load, &streams)
            + (plan.segmenters as u64 - 1) * streams[0].segmenter()
            + small_files(&options)
            + plan.workers as u64 * job
            + plan.blocks as u64 * block;
        assert!(total <= 7 << 28, "level {level}: {total}");
    }
}
