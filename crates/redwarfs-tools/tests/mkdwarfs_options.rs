//! Every option of `mkdwarfs` that shapes the image: what it does is looked up in the image.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

use crate::builder::{Done, TestDir, mkdwarfs};
use redwarfs_format::BlockNo;
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::FileHash;

/// Compressions of all sections of a type.
fn compressions(place: &TestDir, ty: SectionType) -> Vec<CompressionId> {
    let image = fs::read(place.path("out")).unwrap();
    let (mut all, mut at) = (Vec::new(), 0);
    while at < image.len() {
        let header = SectionHeader::parse(image[at..at + 64].try_into().unwrap()).unwrap();
        if header.ty == ty {
            all.push(header.compression);
        }
        at += 64 + usize::try_from(header.length).unwrap();
    }
    all
}

/// A tree with 300 kB of text in four files, two of which are equal, one of which is made of the
/// two others.
pub(crate) fn texts() -> TestDir {
    let place = TestDir::new(&["small"]);
    let mut random = Random::new(7);
    let (a, b) = (random.text(100_000), random.text(100_000));
    for (name, text) in [("a", &a), ("b", &b), ("b2", &b)] {
        fs::write(place.path("in").join(name), text).unwrap();
    }
    let mixed = [&a[30_000..90_000], &b[10_000..70_000]].concat();
    fs::write(place.path("in/mixed"), mixed).unwrap();
    place
}

#[test]
fn block_size_and_compression() {
    let place = texts();
    // Names that make metadata which every algorithm makes smaller.
    for i in 0..300 {
        fs::write(place.path("in").join(format!("some-long-name-{i}")), "").unwrap();
    }
    for bits in [10, 16, 30] {
        let built = place.image(&[format!("-S{bits}")]);
        assert_eq!(built.0.metadata().block_size(), 1 << bits);
        assert_eq!(built.read("b2"), fs::read(place.path("in/b")).unwrap());
    }
    for (spec, want) in [
        ("null", CompressionId::NONE),
        ("lz4", CompressionId::LZ4),
        ("lz4hc:level=12", CompressionId::LZ4),
        ("zstd:level=3", CompressionId::ZSTD),
        ("lzma:level=1", CompressionId::LZMA),
        ("brotli:quality=3", CompressionId::BROTLI),
    ] {
        let built = place.image(&["-C", spec]);
        assert_eq!(
            built.read("mixed"),
            fs::read(place.path("in/mixed")).unwrap()
        );
        let blocks = compressions(&place, SectionType::BLOCK);
        assert!(blocks.iter().all(|&id| id == want), "{spec}: {blocks:?}");
        place.image(&[
            "--metadata-compression",
            spec,
            "-P",
            "none",
            "--history-compression=null",
        ]);
        let metadata = compressions(&place, SectionType::METADATA_V2);
        assert_eq!(metadata, [want], "{spec}");
        assert_eq!(
            compressions(&place, SectionType::HISTORY),
            [CompressionId::NONE]
        );
    }
    place.image(&["--schema-compression=null"]);
    assert_eq!(
        compressions(&place, SectionType::METADATA_V2_SCHEMA),
        [CompressionId::NONE]
    );
    for (spec, text) in [
        ("zstd:level=23", "zstd"),
        ("lz4hc:level=13", "lz4hc"),
        ("brotli:quality=12", "brotli"),
        ("lzma:level=10", "lzma"),
        ("", "missing compression name"),
    ] {
        let done = place.run(&["-C", spec]);
        assert_eq!(done.code, Some(1), "{spec}");
        assert!(done.stderr.contains(text), "{spec}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1);
    }
}

#[test]
fn repeated_data_is_found_as_far_as_options_say() {
    let place = texts();
    let blocks = |args: &[&str]| -> usize {
        let built = place.image(&[&["-C", "null", "-S20"], args].concat());
        let count = built.0.container().block_count();
        (0..count)
            .map(|b| built.0.decode_block(BlockNo(b)).unwrap().len())
            .sum()
    };
    let all = blocks(&["-W0"]);
    assert_eq!(all, blocks(&["-W12", "-B0"]));
    let found = blocks(&["-W12", "-w3"]);
    assert!(found + 100_000 < all, "{found} of {all}");
    // Windows larger than what is repeated find nothing.
    assert_eq!(blocks(&["-W17"]), all);
    // A step that is too wide for what is repeated finds less than a small one.
    assert!(blocks(&["-W15", "-w0"]) >= blocks(&["-W15", "-w5"]));
    // What lies further back than the look-back is not found.
    let near = place
        .image(&["-C", "null", "-S16", "-W10", "-B1"])
        .0
        .container()
        .block_count();
    let far = place
        .image(&["-C", "null", "-S16", "-W10", "-B9"])
        .0
        .container()
        .block_count();
    assert!(far < near, "{far} {near}");
    // The filter only saves time.
    let small = place.image(&["-W10", "--bloom-filter-size=0", "--no-history"]);
    drop(small);
    let one = fs::read(place.path("out")).unwrap();
    place.image(&["-W10", "--bloom-filter-size=9", "--no-history"]);
    let other = fs::read(place.path("out")).unwrap();
    assert_eq!(one.len(), other.len());
}

/// Bytes in the blocks of an image.
fn stored(place: &TestDir, args: &[&str]) -> usize {
    let mut command = mkdwarfs();
    command.arg("-i").arg(place.path("in"));
    command.arg("-fo").arg(place.path("out"));
    let done = command.args(["--log-level=warn"]).args(args).output();
    let done: Done = done.unwrap().into();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let built = place.built();
    let count = built.0.container().block_count();
    (0..count)
        .map(|b| built.0.decode_block(BlockNo(b)).unwrap().len())
        .sum()
}

#[test]
fn long_pieces_are_found_in_all_finished_blocks_from_level_2_on() {
    const MIB: usize = 1 << 20;
    let place = TestDir::new(&[]);
    let mut random = Random::new(11);
    let mut noise = |size: usize| -> Vec<u8> { random.bytes(size) };
    let first = noise(3 * MIB);
    let again = [&noise(70_000)[..], &first[MIB..3 * MIB - 5], &noise(90_000)].concat();
    // Two films with the same pictures and different sound.
    let mut films = [Vec::new(), Vec::new()];
    for packet in 0..16 {
        let picture = noise(100_000 + 9973 * packet);
        for film in &mut films {
            film.extend(noise(2000));
            film.extend_from_slice(&picture);
        }
    }
    let files = [
        ("1", &first),
        ("2", &films[0]),
        ("3", &noise(4 * MIB)),
        ("4", &again),
        ("5", &films[1]),
    ];
    for (name, bytes) in files {
        fs::write(place.path("in").join(name), bytes).unwrap();
    }
    let all: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let twice = 2 * MIB + films[0].len() - 16 * 2000;
    for level in 0..=9 {
        let level = format!("-l{level}");
        // Blocks at hand are those of 2 MiB.
        let args = [&level, "-C", "null", "-S20", "--order=path"];
        let usual = if level.as_str() < "-l2" { "-B1" } else { "-B2" };
        let size = stored(&place, &[&args[..], &[usual]].concat());
        if usual == "-B1" {
            assert_eq!(size, all, "{level}");
        } else {
            assert!(size < all - twice / 20 * 17, "{level}: {size} of {all}");
            let alone = stored(&place, &[&args[..], &["-B1"]].concat());
            assert_eq!(alone, all, "{level}: only the block that is filled");
        }
        let built = place.built();
        for (name, bytes) in files {
            assert!(&built.read(name) == bytes, "{level} {name}");
        }
    }
}

#[test]
fn equal_files_are_found_by_every_hash_or_none() {
    let place = texts();
    let data = |args: &[&str]| {
        let built = place.image(&[&["-C", "null", "-S24", "-W0"], args].concat());
        assert_eq!(built.read("b2"), fs::read(place.path("in/b")).unwrap());
        built.0.decode_block(BlockNo(0)).unwrap().len()
    };
    let all = data(&["--file-hash=none"]);
    for hash in FileHash::ALL {
        let name = format!("--file-hash={}", hash.name());
        assert_eq!(data(&[&name]), all - 100_000, "{name}");
    }
    for when in ["auto", "always", "never"] {
        assert_eq!(data(&["--verify-dedup", when]), all - 100_000, "{when}");
    }
    assert_eq!(data(&["--verify-dedup"]), all - 100_000);
}

/// Two files of 16 bytes with the same XXH3-64; how they are made is explained in the tests of the
/// library.
#[test]
fn files_that_only_hash_alike_stay_apart() {
    let place = TestDir::new(&[]);
    let low = 0x1f67_b3b7_a4a4_4072_u64 ^ 0x78e5_c0cc_4ee6_79cb;
    let high = 0x2172_ffcc_7dd0_5a82_u64 ^ 0x8e24_43f7_7446_08b8;
    let content = |a: u64, b: u64| [(a ^ low).to_le_bytes(), (b ^ high).to_le_bytes()].concat();
    let (a, b) = (content(0, 42), content(42_u64.swap_bytes(), 0));
    fs::write(place.path("in/a"), &a).unwrap();
    fs::write(place.path("in/b"), &b).unwrap();
    let build = |when: &str| {
        let done = place.run(&["--file-hash=xxh3-64", "--verify-dedup", when]);
        (done, place.built().read("b"))
    };
    let (done, got) = build("never");
    assert_eq!(
        (done.code, got),
        (Some(0), a.clone()),
        "they do not collide"
    );
    for when in ["auto", "always"] {
        let (done, got) = build(when);
        assert_eq!((done.code, got), (Some(0), b.clone()), "{when}");
    }
}

#[test]
fn orders_decide_where_data_lies() {
    let place = TestDir::new(&["a/z", "b/y", "c/x", "large"]);
    fs::write(place.path("in/large"), vec![b'L'; 3000]).unwrap();
    fs::write(place.path("in/a/z"), "1").unwrap();
    fs::write(place.path("in/b/y"), "2").unwrap();
    fs::write(place.path("in/c/x"), "3").unwrap();
    let order = |args: &[&str]| {
        let built = place.image(&[&["-C", "null"], args].concat());
        let mut block = built.0.decode_block(BlockNo(0)).unwrap();
        block.dedup();
        String::from_utf8(block).unwrap()
    };
    assert_eq!(order(&["--order=path"]), "123L");
    assert_eq!(order(&["--order=revpath"]), "L321");
    assert_eq!(order(&["--order=none"]), "L123");
    let list = place.file("list", "c/x\n/b/y\n");
    assert!(order(&[&format!("--order=explicit:file={list}")]).starts_with("32"));
    assert_eq!(order(&["--order=versions"]), "123L");
    assert_eq!(order(&["--order=families"]), "123L");
    for similar in ["--order=similarity", "--order=nilsimsa"] {
        assert_eq!(order(&[similar]).len(), 4);
        assert!(
            order(&[similar, "--max-similarity-size=2000"]).starts_with('L'),
            "{similar}"
        );
    }
    let done = place.run(&["--order=explicit"]);
    assert_eq!(done.code, Some(1));
}

/// Eight directories with the same names of six files of so many bytes, made of random numbers by
/// number of the directory and of the file.
fn directories(size: usize, seed: impl Fn(u64, u64) -> u64) -> TestDir {
    let names: Vec<String> = (0..8)
        .flat_map(|version| (0..6).map(move |file| format!("v{version}/f{file}")))
        .collect();
    let paths: Vec<&str> = names.iter().map(String::as_str).collect();
    let place = TestDir::new(&paths);
    for (number, name) in (0u64..).zip(&names) {
        let (version, file) = (number / 6, number % 6);
        let mut state = seed(version, file);
        let mut data: Vec<u8> = (0..size)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        data[size / 2] = version as u8;
        fs::write(place.path(&format!("in/{name}")), data).unwrap();
    }
    place
}

#[test]
fn families_put_versions_side_by_side() {
    let place = directories(40_000, |_, file| file + 1);
    let size = |order: &str| {
        place.image(&["-S17", "-C", "zstd:level=3", "-W", "0", order]);
        fs::metadata(place.path("out")).unwrap().len()
    };
    let (families, path) = (size("--order=families"), size("--order=path"));
    assert!(families * 2 < path, "{families} {path}");
}

#[test]
fn samples_find_out_whether_versions_belong_side_by_side() {
    let made = |place: &TestDir, options: &[&str]| {
        let built = place.image(options);
        let blocks = 0..built.0.container().block_count();
        let data = blocks.map(|n| built.0.decode_block(BlockNo(n)).unwrap());
        let size = fs::metadata(place.path("out")).unwrap().len();
        (size, data.collect::<Vec<_>>().concat())
    };
    let place = directories(20_000, |_, file| file + 1);
    let (versions, path) = (made(&place, &[]), made(&place, &["--order=path"]));
    assert!(versions.0 * 2 < path.0, "{} {}", versions.0, path.0);
    // Names that say that there are versions, and contents that have nothing to do with each other.
    let place = directories(20_000, |version, file| 6 * version + file + 1);
    let (versions, path) = (made(&place, &[]), made(&place, &["--order=path"]));
    assert!(versions.1 == path.1);
    // LZ4 does not look back far enough.
    let place = directories(70_000, |_, file| file + 1);
    let (versions, path) = (made(&place, &[]), made(&place, &["--order=path"]));
    assert!(versions.1 == path.1);
}

#[test]
fn devices_specials_holes_and_hollow_images() {
    let place = TestDir::new(&["x"]);
    let made = std::process::Command::new("mkfifo")
        .arg(place.path("in/pipe"))
        .status();
    assert!(made.unwrap().success());
    let device = std::process::Command::new("mknod")
        .arg(place.path("in/device"))
        .args(["c", "1", "3"])
        .stderr(Stdio::null())
        .status();
    let device = device.is_ok_and(|status| status.success());
    if !device {
        redwarfs_testkit::skip("device nodes", "making them needs root");
    }
    let sparse = fs::File::create(place.path("in/sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(b"end", 2 << 20).unwrap();
    let data = fs::read(place.path("in/sparse")).unwrap();
    assert_eq!(place.image::<&str>(&[]).paths(), ["sparse", "x"]);
    assert_eq!(
        place.image(&["--with-specials"]).paths(),
        ["pipe", "sparse", "x"]
    );
    let built = place.image(&["--with-devices"]);
    if device {
        assert_eq!(built.paths(), ["device", "sparse", "x"]);
        assert_eq!(built.stat("device").rdev, rustix::fs::makedev(1, 3));
    }
    let built = place.image::<&str>(&[]);
    let holes = fs::metadata(place.path("in/sparse")).unwrap().blocks() * 512 < 3 << 20;
    assert_eq!(built.stat("sparse").allocated < 3 << 20, holes);
    assert_eq!(built.read("sparse"), data);
    let built = place.image(&["--no-sparse-files"]);
    assert_eq!(built.stat("sparse").allocated, 3 << 20);
    assert_eq!(built.read("sparse"), data);

    let done = place.run(&["--hollow"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr
            .contains("creating hollow filesystem, no actual file data will be stored")
    );
    let built = place.built();
    assert_eq!(built.0.container().block_count(), 0);
    assert_eq!(built.read("sparse"), vec![0; 3 << 20]);
    assert_eq!(built.read("x"), [0]);
    assert_eq!(
        built.stat("x").mtime.sec,
        fs::metadata(place.path("in/x")).unwrap().mtime()
    );
}

#[test]
fn times_are_stored_as_asked() {
    let place = TestDir::new(&["x"]);
    let touched = std::process::Command::new("touch")
        .args(["-m", "-d", "@1000000007.123456789"])
        .arg(place.path("in/x"))
        .status();
    assert!(touched.unwrap().success());
    let touched = std::process::Command::new("touch")
        .args(["-a", "-d", "@900000000"])
        .arg(place.path("in/x"))
        .status();
    assert!(touched.unwrap().success());
    let times = |args: &[&str]| {
        let stat = place.image(args).stat("x");
        ((stat.mtime.sec, stat.mtime.nsec), stat.atime.sec)
    };
    let second = 1_000_000_007;
    assert_eq!(times(&[]), ((second, 0), second));
    assert_eq!(times(&["--keep-all-times"]), ((second, 0), 900_000_000));
    assert_eq!(times(&["--time-resolution=ns"]).0, (second, 123_456_789));
    assert_eq!(times(&["--time-resolution=1ms"]).0, (second, 123_000_000));
    assert_eq!(times(&["--time-resolution=10s"]).0, (1_000_000_000, 0));
    assert_eq!(times(&["--set-time=12"]).0, (12, 0));
    assert_eq!(times(&["--set-time=2020-05-17"]).0, (1_589_673_600, 0));
    let before = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64;
    let now = times(&["--set-time=now"]).0.0;
    assert!((before..before + 600).contains(&now));
    // Nothing in an image is younger than SOURCE_DATE_EPOCH, and what is older stays.
    for (epoch, want) in [("1000000000", 1_000_000_000), ("1000000100", second)] {
        let mut command = place.command(&["--set-owner=0"]);
        let done: Done = command
            .env("SOURCE_DATE_EPOCH", epoch)
            .output()
            .unwrap()
            .into();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        let built = place.built();
        assert_eq!(built.stat("x").mtime.sec, want);
        assert_eq!(built.stat("").mtime.sec, epoch.parse::<i64>().unwrap());
        assert_eq!(built.0.metadata().create_timestamp(), epoch.parse().ok());
    }
    // A resolution that makes no sense is found before there is an output.
    fs::remove_file(place.path("out")).unwrap();
    assert_eq!(place.run(&["--time-resolution=3ms"]).code, Some(1));
    assert!(!place.path("out").exists());
}

#[test]
fn history_index_and_other_parts_can_be_left_out() {
    let place = texts();
    fs::hard_link(place.path("in/a"), place.path("in/hard")).unwrap();
    let count = |ty| compressions(&place, ty).len();
    let built = place.image::<&str>(&[]);
    let entry = built.0.history().unwrap().entries.pop().unwrap();
    assert!(entry.timestamp.is_some() && entry.arguments.is_some());
    assert!(built.0.metadata().create_timestamp().is_some());
    assert_eq!(count(SectionType::SECTION_INDEX), 1);

    let built = place.image(&["--no-history-timestamps"]);
    let entry = built.0.history().unwrap().entries.pop().unwrap();
    assert!(entry.timestamp.is_none() && entry.arguments.is_some());
    let built = place.image(&["--no-history-command-line"]);
    let entry = built.0.history().unwrap().entries.pop().unwrap();
    assert!(entry.timestamp.is_some() && entry.arguments.is_none());
    place.image(&["--no-history"]);
    assert_eq!(count(SectionType::HISTORY), 0);
    place.image(&["--no-section-index"]);
    assert_eq!(count(SectionType::SECTION_INDEX), 0);
    let built = place.image(&["--no-create-timestamp"]);
    assert!(built.0.metadata().create_timestamp().is_none());
    for args in [&[][..], &["--no-hardlink-table"]] {
        let built = place.image(args);
        assert_eq!((built.stat("a").nlink, built.stat("b").nlink), (2, 1));
    }
}

#[test]
fn metadata_can_be_packed() {
    let place = texts();
    for pack in [
        "auto",
        "none",
        "all",
        "chunk_table,directories,shared_files",
        "names,names_index,symlinks,symlinks_index,force",
        "plain",
    ] {
        let built = place.image(&["-P", pack]);
        let options = built.0.metadata().options();
        assert_eq!(
            options.packed_chunk_table,
            pack == "all" || pack.contains("chunk"),
            "{pack}"
        );
        assert_eq!(
            options.packed_directories,
            pack == "all" || pack.contains("direc"),
            "{pack}"
        );
        assert_eq!(
            built.read("mixed"),
            fs::read(place.path("in/mixed")).unwrap()
        );
    }
}

#[test]
fn headers_and_levels() {
    let place = texts();
    let header = place.file("header", "#!/bin/sh\n");
    let built = place.image(&["--header", &header]);
    assert_eq!(built.0.header_bytes().unwrap(), b"#!/bin/sh\n");
    let mut sizes = Vec::new();
    for level in 0..=9 {
        let done: Done = mkdwarfs()
            .args(["-i", &place.text("in"), "-fo", &place.text("out")])
            .args(["--log-level=warn", &format!("-l{level}")])
            .output()
            .unwrap()
            .into();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        assert_eq!(
            place.built().read("mixed"),
            fs::read(place.path("in/mixed")).unwrap()
        );
        sizes.push(fs::metadata(place.path("out")).unwrap().len());
    }
    assert!(
        sizes[0] > sizes[2] && sizes[2] > sizes[4] && sizes[4] > sizes[8],
        "{sizes:?}"
    );
}
