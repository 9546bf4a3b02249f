//! Categorizers and their options on the command line.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use crate::support::{
    DWARFSCK, DWARFSEXTRACT, MKDWARFS, build, must, reference, run, whole_seconds,
};
use redwarfs_testkit::media::{Samples, fits, sky, wav};
use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{Fields, Manifest, golden_images};

fn media_tree(root: &Path) {
    fs::create_dir(root).unwrap();
    let mut random = Random::new(3);
    let music = Samples::CD.walk(50_000, 1);
    fs::write(root.join("music.wav"), wav(&Samples::CD, &music)).unwrap();
    let wide = Samples {
        channels: 9,
        ..Samples::CD
    };
    fs::write(root.join("nine.wav"), wav(&wide, &wide.walk(3000, 2))).unwrap();
    let picture = fits(150, 150, false, &sky(22_500, 2, 3));
    fs::write(root.join("sky.fits"), picture).unwrap();
    fs::write(root.join("noise"), random.bytes(200_000)).unwrap();
    fs::write(root.join("text"), random.text(200_000)).unwrap();
    fs::write(root.join("hot"), random.text(3000)).unwrap();
    // The beginning is enough to know a program by.
    let mut program = Vec::new();
    let file = fs::File::open(MKDWARFS).unwrap();
    file.take(100_000).read_to_end(&mut program).unwrap();
    fs::write(root.join("program"), program).unwrap();
}

/// Category and compression of every block, and what else stands there.
fn blocks(image: &Path) -> Vec<(String, String, String)> {
    let args = [
        "-i".as_ref(),
        image.as_os_str(),
        "-j".as_ref(),
        "-d7".as_ref(),
    ];
    let out = must(DWARFSCK, args);
    let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let sections = info["sections"].as_array().unwrap();
    let blocks = sections.iter().filter(|section| section["type"] == "BLOCK");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    blocks
        .map(|b| {
            (
                text(&b["category"]),
                text(&b["compression"]),
                b["metadata"].to_string(),
            )
        })
        .collect()
}

fn compression_of<'a>(blocks: &'a [(String, String, String)], category: &str) -> Vec<&'a str> {
    let own = blocks.iter().filter(|(name, ..)| name == category);
    own.map(|(_, compression, _)| compression.as_str())
        .collect()
}

fn comes_back(tree: &Path, image: &Path, extractor: impl AsRef<std::ffi::OsStr>) {
    let out = tempfile::tempdir().unwrap();
    let args = [
        "-i".as_ref(),
        image.as_os_str(),
        "-o".as_ref(),
        out.path().as_os_str(),
    ];
    must(extractor, args);
    let fields = Fields {
        mtime: false,
        ..Fields::EXTRACTED
    };
    let want = whole_seconds(Manifest::from_directory(tree, true).unwrap());
    let found = Manifest::from_directory(out.path(), true).unwrap();
    want.assert_same(&found, fields, "content");
}

#[test]
fn categories_by_level() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    media_tree(&tree);
    for (level, general) in [("-l0", "NONE"), ("-l1", "LZ4"), ("-l5", "ZSTD")] {
        build(&tree, &image, &[level, "--categorize", "--force"]);
        let found = blocks(&image);
        assert_eq!(compression_of(&found, "incompressible"), ["NONE"]);
        let media = if level == "-l0" {
            ["NONE", "NONE"]
        } else {
            ["FLAC", "RICEPP"]
        };
        for (category, codec) in ["pcmaudio/waveform", "fits/image"].iter().zip(media) {
            let used = compression_of(&found, category);
            assert!(
                !used.is_empty() && used.iter().all(|c| *c == codec),
                "{found:?}"
            );
        }
        for category in ["<default>", "binary/elf"] {
            let used = compression_of(&found, category);
            assert!(used.contains(&general), "{level} {category}: {used:?}");
        }
        comes_back(&tree, &image, DWARFSEXTRACT);
    }
}

#[test]
fn values_for_single_categories() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    media_tree(&tree);
    let list = dir.path().join("list");
    fs::write(&list, "/hot\n").unwrap();
    let options = [
        "--force",
        "-l3",
        "--categorize=hotness,pcmaudio,fits,binary,incompressible",
        "--hotness-list",
        list.to_str().unwrap(),
        "-C",
        "lzma:level=1",
        "-C",
        "pcmaudio/waveform,hotness::brotli:quality=3",
        "--compression=binary/pe::null",
        "-W",
        "fits/image::8",
        "-w",
        "fits/image,binary/elf::2",
        "-B",
        "binary/elf::3",
        "--bloom-filter-size",
        "binary/elf::9",
        "--order",
        "binary/elf,<default>::path",
        "--order=similarity",
    ];
    build(&tree, &image, &options);
    let found = blocks(&image);
    assert_eq!(compression_of(&found, "hotness"), ["BROTLI"]);
    assert!(compression_of(&found, "pcmaudio/waveform").contains(&"BROTLI"));
    assert_eq!(compression_of(&found, "fits/image"), ["RICEPP"]);
    assert!(compression_of(&found, "<default>").contains(&"LZMA"));
    assert_eq!(compression_of(&found, "incompressible"), ["NONE"]);
    // Nine channels: no FLAC, but a category all the same.
    let parameters: Vec<_> = found
        .iter()
        .filter(|b| b.2.contains("number_of_channels\":9"))
        .collect();
    assert_eq!(parameters.len(), 1, "{found:?}");
    comes_back(&tree, &image, DWARFSEXTRACT);

    build(
        &tree,
        &image,
        &["--force", "-l5", "--categorize", "--no-category-metadata"],
    );
    assert!(
        blocks(&image)
            .iter()
            .all(|b| !b.0.is_empty() && b.2 == "null")
    );
    build(
        &tree,
        &image,
        &["--force", "-l5", "--categorize", "--no-category-names"],
    );
    assert!(blocks(&image).iter().all(|b| b.0.is_empty()));
}

#[test]
fn options_of_incompressible() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let mut random = Random::new(5);
    let mut half = random.bytes(100_000);
    half.extend(random.text(100_000));
    fs::write(tree.join("half"), half).unwrap();
    let claimed = |options: &[&str]| {
        let mut all = vec!["--force", "-l1", "--categorize=incompressible"];
        all.extend(options);
        build(&tree, &image, &all);
        comes_back(&tree, &image, DWARFSEXTRACT);
        !compression_of(&blocks(&image), "incompressible").is_empty()
    };
    assert!(!claimed(&[]));
    assert!(claimed(&["--incompressible-ratio=0.5"]));
    assert!(!claimed(&[
        "--incompressible-ratio=0.5",
        "--incompressible-min-input-size=1m"
    ]));
    assert!(!claimed(&["--incompressible-fragments"]));
    assert!(claimed(&[
        "--incompressible-fragments",
        "--incompressible-block-size=50000"
    ]));
    // Nothing gets smaller at the fastest level there is.
    assert!(claimed(&[
        "--incompressible-zstd-level=-131072",
        "--incompressible-ratio=0.9"
    ]));
}

#[test]
fn errors_of_category_options() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let list = dir.path().join("list");
    fs::write(&list, "a\nb\n/a\n").unwrap();
    let list = format!("--hotness-list={}", list.display());
    let cases: [(&[&str], &str); 14] = [
        (&["--categorize=x"], "unknown categorizer: x"),
        (&["--categorize=fits,fits"], "categorizer given twice: fits"),
        (&["-C", "fits/image::zstd"], "without any categories"),
        (&["-W", "fits/image::3"], "without any categories"),
        (
            &["--categorize", "-C", "foo::zstd"],
            "unknown category: 'foo'",
        ),
        (
            &[
                "--categorize",
                "-B",
                "hotness,fits/image::1",
                "-B",
                "hotness::2",
            ],
            "duplicate context 'hotness' for option '--max-lookback-blocks'",
        ),
        (
            &["--categorize", "-C", "flac"],
            "compression 'flac:level=5' cannot be used without a category",
        ),
        (
            &["--categorize", "-C", "fits/image::flac"],
            "compression 'flac:level=5' cannot be used for category 'fits/image'",
        ),
        (
            &["--categorize", "-W", "fits/image::25"],
            "value 25 out of range [0..24]",
        ),
        (
            &["--categorize", "--bloom-filter-size=11"],
            "value 11 out of range [0..10]",
        ),
        (
            &["--categorize", "--incompressible-ratio=2"],
            "ratio of incompressible must be between 0 and 1",
        ),
        (
            &["--categorize", "--incompressible-zstd-level=23"],
            "zstd level of incompressible",
        ),
        (
            &["--categorize=hotness", &list],
            "duplicate path in hotness list: 'a' (awk '!seen[$0]++' ",
        ),
        (
            &["--categorize=hotness", "--hotness-list=/no/such"],
            "failed to open hotness list: /no/such: ",
        ),
    ];
    for (options, message) in cases {
        let mut args = vec!["-i", tree.to_str().unwrap(), "-o", image.to_str().unwrap()];
        args.extend(options);
        let out = run(MKDWARFS, &args);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{options:?}: {text}");
        assert!(text.contains(message), "{options:?}: {text}");
        assert!(!image.exists());
    }
    // Of categorizers that are not active.
    build(
        &tree,
        &image,
        &["--categorize=fits", "-C", "hotness::lz4", "--force"],
    );
    let help = String::from_utf8(must(MKDWARFS, ["-H"]).stdout).unwrap();
    for text in [
        "pcmaudio/waveform",
        "binary/macho-header",
        "--hotness-list",
        "flac:level=5",
    ] {
        assert!(help.contains(text), "{text}");
    }
}

#[test]
fn a_hotness_list_of_another_tree_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir_all(tree.join("directory")).unwrap();
    fs::write(tree.join("there"), "contents").unwrap();
    let list = dir.path().join("list");
    for (text, lines) in [
        ("there\n", &[][..]),
        (
            "gone\nthere\n",
            &["/gone': is on the hotness list, but is no file of the input"],
        ),
        (
            "directory\ngone\nthere\nlost\n",
            &[
                "/directory': is on the hotness list, but is no file of the input, and so are 2 more paths",
            ],
        ),
    ] {
        fs::write(&list, text).unwrap();
        let list = format!("--hotness-list={}", list.display());
        let (tree, image) = (tree.to_str().unwrap(), image.to_str().unwrap());
        let log = "--log-level=warn";
        let args = [
            "-i",
            tree,
            "-o",
            image,
            "-f",
            "--categorize=hotness",
            &list,
            log,
        ];
        let out = must(MKDWARFS, args);
        let said = String::from_utf8(out.stderr).unwrap();
        let said: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("hotness"))
            .collect();
        assert_eq!(said.len(), lines.len(), "{said:?}");
        for (said, line) in said.iter().zip(lines) {
            assert!(said.ends_with(line), "{said}");
        }
    }
}

#[test]
fn contents_of_golden_images_packed_again() {
    for golden in golden_images() {
        if !["audio", "fits", "bin"]
            .iter()
            .any(|kind| golden.name.starts_with(kind))
        {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        fs::create_dir(&tree).unwrap();
        let args = [
            "-i".as_ref(),
            golden.image.as_os_str(),
            "-o".as_ref(),
            tree.as_os_str(),
        ];
        must(DWARFSEXTRACT, args);
        for options in [
            &["--force", "-l5", "--categorize"][..],
            &[
                "--force",
                "-l8",
                "-S12",
                "--categorize",
                "-W",
                "pcmaudio/waveform,fits/image::6",
            ],
        ] {
            build(&tree, &image, options);
            comes_back(&tree, &image, DWARFSEXTRACT);
        }
    }
}

#[test]
fn the_reference_reads_categories() {
    let Some(programs) = reference() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    media_tree(&tree);
    let golden = golden_images();
    for name in ["audio-categorize", "fits-categorize", "bin-categorize"] {
        let golden = golden.iter().find(|g| g.name == name).unwrap();
        let out = tree.join(name);
        fs::create_dir(&out).unwrap();
        let args = [
            "-i".as_ref(),
            golden.image.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
        ];
        must(DWARFSEXTRACT, args);
    }
    for options in [
        &["-l1", "--categorize"][..],
        &["-l5", "--categorize", "-W", "pcmaudio/waveform::7", "-B4"],
        &["-l8", "-S14", "--categorize=binary,pcmaudio,fits"],
        &[
            "-l4",
            "--categorize=incompressible",
            "--incompressible-fragments",
        ],
        &["-l3", "--categorize", "--no-category-names"],
    ] {
        let mut all = vec!["--force"];
        all.extend(options);
        build(&tree, &image, &all);
        let args = [image.as_os_str(), "--check-integrity".as_ref()];
        must(programs.join("dwarfsck"), args);
        comes_back(&tree, &image, programs.join("dwarfsextract"));
        comes_back(&tree, &image, DWARFSEXTRACT);
    }
}

#[test]
fn the_summary_says_how_fast_files_are_judged() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    media_tree(&tree);
    for (args, idle) in [(&["--categorize"][..], false), (&[], true)] {
        let done = std::process::Command::new(MKDWARFS)
            .args(["-l1", "-f", "-v", "-i"])
            .arg(&tree)
            .arg("-o")
            .arg(&image)
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(
            done.status.success() && text.contains("categorizing: "),
            "{text}"
        );
        assert_eq!(text.contains("categorizing: 0 B/s"), idle, "{text}");
    }
}
