//! The main job, end to end: build, mount, check, unpack; everything that went in comes out.

use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, Mount, build, must, whole_seconds};
use redwarfs_testkit::{Fields, Manifest, tree};

const ALL_TYPES: [&str; 2] = ["--with-devices", "--with-specials"];

/// What both a mount and an extracted tree show of a source tree.
const SURVIVES: Fields = Fields::EXTRACTED;

#[test]
fn awkward_tree_survives_every_level() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    if !tree::awkward_tree(&source).unwrap() {
        redwarfs_testkit::skip("device nodes", "making them needs root");
    }
    let want = whole_seconds(Manifest::from_directory(&source, true).unwrap());

    for level in [0, 1, 3, 5, 7, 9] {
        let image = dir.path().join(format!("{level}.dwarfs"));
        let option = format!("-l{level}");
        build(
            &source,
            &image,
            &[&[option.as_str()], &ALL_TYPES[..]].concat(),
        );
        must(
            DWARFSCK,
            [
                image.as_os_str(),
                "--check-integrity".as_ref(),
                "-q".as_ref(),
            ],
        );

        let mnt = dir.path().join("mnt");
        if let Some(mount) = Mount::new(&image, &mnt, &[]) {
            let got = Manifest::from_directory(&mnt, true).unwrap();
            want.assert_same(&got, SURVIVES, &format!("level {level}, mounted"));
            drop(mount);
        }

        let out = dir.path().join(format!("out-{level}"));
        std::fs::create_dir(&out).unwrap();
        must(
            DWARFSEXTRACT,
            [
                "-i".as_ref(),
                image.as_os_str(),
                "-o".as_ref(),
                out.as_os_str(),
            ],
        );
        let got = Manifest::from_directory(&out, true).unwrap();
        want.assert_same(&got, SURVIVES, &format!("level {level}, extracted"));
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn nanoseconds_and_all_times_survive() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    tree::awkward_tree(&source).unwrap();
    // Listing a tree may change access times, reading it certainly does; so they are set last.
    let content = Manifest::from_directory(&source, true).unwrap();
    let image = dir.path().join("image");
    let options = ["-l1", "--keep-all-times", "--time-resolution=ns"];
    build(&source, &image, &[&options[..], &ALL_TYPES[..]].concat());
    let mnt = dir.path().join("mnt");
    let Some(_mount) = Mount::new(&image, &mnt, &[]) else {
        return;
    };
    let got = Manifest::from_directory(&mnt, true).unwrap();
    let fields = Fields {
        ctime: true,
        ..SURVIVES
    };
    content.assert_same(&got, fields, "nanoseconds");
}

#[test]
fn number_of_workers_never_changes_a_byte() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    tree::awkward_tree(&source).unwrap();
    for level in ["-l0", "-l1", "-l3", "-l5", "-l7"] {
        let images = ["-N1", "-N8"].map(|workers| {
            let image = dir.path().join(workers);
            let args = [
                level,
                workers,
                "-S16",
                "-f",
                "--no-create-timestamp",
                "--no-history",
            ];
            build(&source, &image, &[&args[..], &ALL_TYPES[..]].concat());
            std::fs::read(&image).unwrap()
        });
        assert!(images[0] == images[1], "{level}: 1 and 8 workers differ");
    }
}

#[test]
fn tar_streams_hold_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    tree::awkward_tree(&source).unwrap();
    let want = whole_seconds(Manifest::from_directory(&source, true).unwrap());
    let image = dir.path().join("image");
    // No archive holds sockets.
    build(&source, &image, &["-l1", "--with-devices"]);
    let mut want = want;
    want.0
        .retain(|_, e| !matches!(e.mode & 0o170_000, 0o140_000 | 0o010_000));
    for format in ["pax", "gnutar"] {
        let tar = dir.path().join(format);
        must(
            DWARFSEXTRACT,
            [
                "-i".as_ref(),
                image.as_os_str(),
                "-f".as_ref(),
                format.as_ref(),
                "-o".as_ref(),
                tar.as_os_str(),
            ],
        );
        let out = dir.path().join(format!("{format}.out"));
        std::fs::create_dir(&out).unwrap();
        must(
            "tar",
            [
                "-x".as_ref(),
                "-p".as_ref(),
                "--numeric-owner".as_ref(),
                "-f".as_ref(),
                tar.as_os_str(),
                "-C".as_ref(),
                out.as_os_str(),
            ],
        );
        let got = whole_seconds(Manifest::from_directory(&out, true).unwrap());
        want.assert_same(&got, SURVIVES, format);
    }
}

#[test]
fn output_to_a_pipe_equals_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("a"), b"something").unwrap();
    let image = dir.path().join("image");
    let options = ["-l3", "--no-create-timestamp", "--no-history"];
    build(&source, &image, &options);
    let mut args = vec![
        "-i",
        source.to_str().unwrap(),
        "-o",
        "-",
        "--log-level=warn",
    ];
    args.extend(options);
    let piped = must(MKDWARFS, args).stdout;
    assert!(piped == std::fs::read(&image).unwrap());
}
