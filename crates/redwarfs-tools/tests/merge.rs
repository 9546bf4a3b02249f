//! Drives `mkdwarfs` where it joins images and changes their trees.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{DWARFSCK, MKDWARFS, Mount, build, must, reference, run};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::mutate::Rng;
use redwarfs_testkit::{Fields, Manifest, compat_images};

fn open(path: &Path) -> Image {
    let mut options = OpenOptions::default();
    options.check = true;
    Image::open(path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest(path: &Path) -> Manifest {
    Manifest::from_image(&open(path), true).unwrap()
}

fn names(path: &Path) -> BTreeSet<String> {
    let names = manifest(path).0.into_keys();
    names.map(|name| String::from_utf8(name).unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

const SAME: Fields = Fields {
    ino: false,
    ..Fields::ALL
};

/// Directories and images.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, path: &str, data: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }

    /// An image of the directory with this name.
    fn pack(&self, name: &str, options: &[&str]) -> PathBuf {
        let image = self.path(&format!("{name}.dwarfs"));
        build(&self.path(name), &image, options);
        image
    }

    /// The arguments, in which names of images and directories here stand for their paths.
    fn args(&self, args: &[&str]) -> Vec<OsString> {
        let here = |arg: &str| {
            let (front, name) = match arg.rsplit_once('=') {
                Some((front, name)) => (format!("{front}="), name),
                None => (String::new(), arg),
            };
            match !name.is_empty() && !name.starts_with('/') && self.path(name).exists() {
                true => OsString::from(format!("{front}{}", self.path(name).display())),
                false => OsString::from(arg),
            }
        };
        let common = ["--log-level=warn", "-l1"].map(OsString::from);
        args.iter().map(|&arg| here(arg)).chain(common).collect()
    }

    /// Makes an image, which has to succeed and to say nothing.
    fn make(&self, args: &[&str]) -> PathBuf {
        let output = self.path("out.dwarfs");
        let mut all = self.args(args);
        all.extend(["-f".into(), "-o".into(), output.clone().into()]);
        let done = must(MKDWARFS, all);
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{args:?}");
        must(
            DWARFSCK,
            [output.as_os_str(), OsStr::new("--check-integrity")],
        );
        output
    }

    /// Makes an image, which must fail with a single line.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.path("refused.dwarfs");
        let mut all = self.args(args);
        all.extend(["-o".into(), output.clone().into()]);
        let done: Output = run(MKDWARFS, all);
        assert!(!output.exists(), "{args:?} left an output");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        text.trim_start_matches("mkdwarfs: ").trim_end().to_owned()
    }
}

#[test]
fn images_are_joined_side_by_side_or_overlaid() {
    let place = TestDir::new();
    place.write("a/x/one", b"1");
    place.write("a/x/both", b"from a");
    place.write("a/gone/old", b"old");
    place.write("b/x/both", b"from b");
    place.write("b/x/two", b"2");
    place.write("b/.wh.gone", b"");
    place.pack("a", &[]);
    place.pack("b", &["-l4"]);
    let side = place.make(&["--merge", "a.dwarfs", "sub/c=b.dwarfs"]);
    let below_a = ["a", "a/gone", "a/gone/old", "a/x", "a/x/both", "a/x/one"];
    let below_b = ["sub/c/.wh.gone", "sub/c/x", "sub/c/x/both", "sub/c/x/two"];
    let all = [&["."], &below_a[..], &["sub", "sub/c"], &below_b[..]].concat();
    assert_eq!(names(&side), set(&all));
    let again = place.make(&["--merge=side", "-i", "a.dwarfs", "-i", "sub/c=b.dwarfs"]);
    assert_eq!(names(&again), set(&all));
    let over = place.make(&["--merge=overlay", "a.dwarfs", "b.dwarfs"]);
    let joined = [
        ".", ".wh.gone", "gone", "gone/old", "x", "x/both", "x/one", "x/two",
    ];
    assert_eq!(names(&over), set(&joined));
    let image = open(&over);
    let both = image.find_path(b"x/both").unwrap().unwrap();
    let mut data = [0; 10];
    let size = image.read_at(both, 0, &mut data).unwrap();
    assert_eq!(&data[..size], b"from b");
    let layers = place.make(&[
        "--merge=overlay",
        "--whiteouts=apply",
        "a.dwarfs",
        "b.dwarfs",
    ]);
    assert_eq!(names(&layers), set(&[".", "x", "x/both", "x/one", "x/two"]));
}

#[test]
fn entries_are_removed_renamed_filtered_and_added() {
    let place = TestDir::new();
    let noise = |seed| {
        let mut rng = Rng::new(seed);
        (0..50_000).map(|_| rng.bits() as u8).collect::<Vec<u8>>()
    };
    place.write("in/a/one", &noise(1));
    place.write("in/a/two", &noise(2));
    place.write("in/b/three", &noise(3));
    fs::create_dir(place.path("in/empty")).unwrap();
    place.write("more/b/four", b"four");
    place.write("more/five", b"five");
    let image = place.pack(
        "in",
        &["-S", "17", "--keep-all-times", "--time-resolution=1ns"],
    );
    let out = place.make(&["-i", "in.dwarfs", "--remove=/a/one", "--rename=b=c/d"]);
    assert_eq!(
        names(&out),
        set(&[".", "a", "a/two", "c", "c/d", "c/d/three", "empty"])
    );
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let whole = size(&out);
    let less = place.make(&["-i", "in.dwarfs", "--remove=/a", "--repack"]);
    assert!(size(&less) < whole - 90_000, "{} {whole}", size(&less));
    let filtered = place.make(&[
        "-i",
        "in.dwarfs",
        "-F",
        "- /a/t*",
        "- /b/*",
        "--remove-empty-dirs",
    ]);
    assert_eq!(names(&filtered), set(&[".", "a", "a/one"]));
    // Also with a rewrite, which alone has no filters.
    let filtered = place.make(&[
        "-i",
        "in.dwarfs",
        "-F",
        "- a/",
        "--recompress",
        "--chmod=norm",
    ]);
    assert_eq!(names(&filtered), set(&[".", "b", "b/three", "empty"]));
    let mode = manifest(&filtered).0[&b"b/three"[..]].mode;
    assert_eq!(mode & 0o777, 0o444);
    let added = place.make(&["-i", "in.dwarfs", "--remove", "b/three", "--add", "/=more"]);
    let wanted = [".", "a", "a/one", "a/two", "b", "b/four", "empty", "five"];
    assert_eq!(names(&added), set(&wanted));
    let new = place.pack("more", &[]);
    assert!(new.exists());
    let added = place.make(&["-i", "in.dwarfs", "--remove=a", "--add=x/y=more.dwarfs"]);
    let wanted = [
        ".",
        "b",
        "b/three",
        "empty",
        "x",
        "x/y",
        "x/y/b",
        "x/y/b/four",
        "x/y/five",
    ];
    assert_eq!(names(&added), set(&wanted));
    let archive = place.path("more.tar");
    must(
        "tar",
        [
            OsStr::new("-C"),
            place.path("more").as_os_str(),
            OsStr::new("-cf"),
            archive.as_os_str(),
            OsStr::new("."),
        ],
    );
    let added = place.make(&["-i", "in.dwarfs", "--remove=a", "--add=x/y=more.tar"]);
    assert_eq!(names(&added), set(&wanted));
    // Nothing but a new order of the metadata.
    let same = place.make(&["-i", "in.dwarfs", "--repack=1"]);
    manifest(&image).assert_same(&manifest(&same), SAME, "unchanged");
    assert!(size(&same) < size(&image) + 500);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let place = TestDir::new();
    place.write("in/a", b"a");
    place.pack("in", &[]);
    fs::create_dir(place.path("other")).unwrap();
    fs::copy(place.path("in.dwarfs"), place.path("other/in.dwarfs")).unwrap();
    for (args, want) in [
        (
            &["--merge", "in.dwarfs", "other/in.dwarfs"][..],
            "two images have the name 'in' (NAME=IMAGE gives an image another name)",
        ),
        (
            &["-i", "in.dwarfs", "-i", "other/in.dwarfs", "--remove=a"],
            "several images need '--merge' (try 'mkdwarfs --help')",
        ),
        (
            &["-i", "in.dwarfs", "--remove=b"],
            "/b: there is no such entry",
        ),
        (
            &["-i", "in.dwarfs", "--rename=a"],
            "failed to parse value 'a' for option '--rename': 'a' has no '='",
        ),
        (
            &["-i", "in.dwarfs", "--remove=a", "--change-block-size"],
            "option '--change-block-size' cannot be used when a tree is changed (rewrite the new \
             image in a second step)",
        ),
        (
            &["-i", "in.dwarfs", "--remove=a", "--with-devices"],
            "option '--with-devices' cannot be used when an image is rewritten",
        ),
        (
            &["-i", "in.dwarfs", "--merge=both"],
            "invalid merge mode: both (side, overlay)",
        ),
        (
            &["--merge", "x=in.dwarfs", "x/y=other/in.dwarfs"],
            "the name 'x/y' is inside of 'x', the name of another image (NAME=IMAGE gives an image \
             another name)",
        ),
        (
            &[
                "-i",
                "in.dwarfs",
                "--repack",
                "--recompress",
                "-C",
                "nothing::lzma",
            ],
            "unknown category: 'nothing' in option '--compression' (one of <default>, \
             binary/elf, binary/macho-header, binary/macho-section, binary/pe, fits/image, \
             fits/metadata, hotness, incompressible, pcmaudio/metadata, pcmaudio/waveform)",
        ),
        (
            &[
                "-i",
                "in.dwarfs",
                "--add=a=other/in.dwarfs",
                "--one-file-system",
            ],
            "option '--one-file-system' cannot be used when an image is rewritten",
        ),
        (
            &["-i", "in.dwarfs", "--repack=0"],
            "invalid percentage: 0 (1 to 100)",
        ),
    ] {
        let error = place.refused(args);
        assert!(error.ends_with(want), "{args:?}: {error}");
    }
    let stray = place.refused(&["-i", "in", "stray"]);
    assert_eq!(
        stray,
        "unrecognized argument 'stray' (try 'mkdwarfs --help')"
    );
}

#[test]
fn damage_names_the_image() {
    let place = TestDir::new();
    place.write(
        "a/f",
        &(0..50_000u64)
            .map(|i| ((i * i) >> 3) as u8)
            .collect::<Vec<u8>>(),
    );
    place.write(
        "b/f",
        &(0..50_000u64)
            .map(|i| ((i * i) >> 5) as u8)
            .collect::<Vec<u8>>(),
    );
    place.pack("a", &[]);
    let bad = place.pack("b", &[]);
    let mut bytes = fs::read(&bad).unwrap();
    bytes[100] ^= 1;
    fs::write(&bad, bytes).unwrap();
    for args in [
        &["--merge", "a.dwarfs", "new=b.dwarfs"][..],
        &["-i", "a.dwarfs", "--add=x=b.dwarfs"],
        &["--merge", "--no-check", "a.dwarfs", "b.dwarfs"],
    ] {
        let error = place.refused(args);
        let want = format!("cannot rewrite image: {}: ", bad.display());
        assert!(error.starts_with(&want), "{args:?}: {error}");
    }
}

#[test]
fn a_codec_for_a_category_and_an_output_in_what_is_added() {
    let place = TestDir::new();
    place.write("in/a", b"a");
    place.pack("in", &[]);
    place.make(&[
        "-i",
        "in.dwarfs",
        "--repack",
        "-C",
        "pcmaudio/waveform::flac",
    ]);
    // The directory of the images becomes a part of the output.
    let before = names(&place.make(&["-i", "in.dwarfs", "--add=all=in"]));
    assert_eq!(before, set(&[".", "a", "all", "all/a"]));
    let output = place.path("in/out.dwarfs");
    for _ in 0..2 {
        let mut args = place.args(&["-i", "in.dwarfs", "--add=all=in", "-f"]);
        args.push("-o".into());
        args.push(output.clone().into());
        must(MKDWARFS, args);
        assert_eq!(names(&output), before);
    }
}

/// A tree cut into shards by path: small files, some equal, some links.
fn sharded(place: &TestDir, count: usize) -> Vec<PathBuf> {
    let mut rng = Rng::new(7);
    for n in 0..400 {
        let shard = n % count;
        let data: Vec<u8> = match n % 5 {
            // Equal files in different shards.
            0 => format!("equal {}\n", n / 50).into_bytes().repeat(300),
            _ => (0..rng.below(4000))
                .map(|i| (i / 9) as u8 ^ n as u8)
                .collect(),
        };
        let path = format!("d{}/e{}/f{n}", n % 7, n % 3);
        place.write(&format!("whole/{path}"), &data);
        let from = place.path(&format!("whole/{path}"));
        let to = place.path(&format!("s{shard:02}/{path}"));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        must("cp", [OsStr::new("-p"), from.as_os_str(), to.as_os_str()]);
    }
    (0..count)
        .map(|shard| place.pack(&format!("s{shard:02}"), &["-l6"]))
        .collect()
}

#[test]
fn sixteen_shards_are_the_whole_tree() {
    let place = TestDir::new();
    let shards = sharded(&place, 16);
    let whole = place.pack("whole", &["-l6"]);
    let mut args = vec!["--merge=overlay"];
    let shards: Vec<&str> = shards
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    args.extend(&shards);
    let joined = place.make(&args);
    let fields = Fields {
        mtime: false,
        atime: false,
        ctime: false,
        ..SAME
    };
    manifest(&whole).assert_same(&manifest(&joined), fields, "joined");
    // Any number of threads gives the same image, but for the command line and the time.
    let plain = |workers: &str| {
        let mut all = vec!["--no-history", "--no-create-timestamp", workers];
        all.extend(&args);
        fs::read(place.make(&all)).unwrap()
    };
    assert!(plain("-N1") == plain("-N4"));
}

#[test]
fn the_reference_reads_joined_images() {
    let Some(reference) = reference() else { return };
    let place = TestDir::new();
    let shards = sharded(&place, 4);
    fs::copy(golden("basic-default").image, place.path("g.dwarfs")).unwrap();
    let compat = compat_images();
    fs::copy(&compat[0].image, place.path("old.dwarfs")).unwrap();
    let mut args = vec!["--merge", "g.dwarfs", "old.dwarfs"];
    let shards: Vec<&str> = shards
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    args.extend(&shards);
    // The reference extracts sockets as files.
    for more in [
        &["-F", "- sock"][..],
        &["--repack=100", "-F", "- f*1", "- sock"],
    ] {
        let mut args = args.clone();
        args.extend(more);
        let image = place.make(&args);
        must(
            reference.join("dwarfsck"),
            [
                OsStr::new("-i"),
                image.as_os_str(),
                OsStr::new("--check-integrity"),
            ],
        );
        let out = place.path("extracted");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        must(
            reference.join("dwarfsextract"),
            [
                OsStr::new("-i"),
                image.as_os_str(),
                OsStr::new("-o"),
                out.as_os_str(),
            ],
        );
        let extracted = Manifest::from_directory(&out, true).unwrap();
        let fields = Fields {
            mtime: false,
            ..Fields::EXTRACTED
        };
        manifest(&image).assert_same(&extracted, fields, "extracted by the reference");
        let at = place.path("mnt");
        fs::create_dir_all(&at).unwrap();
        let driver = reference.join("dwarfs");
        if let Some(_mount) = Mount::with(driver.to_str().unwrap(), &image, &at, &[]) {
            let mounted = Manifest::from_directory(&at, true).unwrap();
            let fields = Fields {
                ino: false,
                ..Fields::EXTRACTED
            };
            manifest(&image).assert_same(&mounted, fields, "mounted by the reference");
        }
    }
}
