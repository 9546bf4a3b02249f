//! Hints: a mount records what a program reads first, an image stores it, and later mounts load it in one wave.
#![cfg(feature = "remote")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::driver;
use crate::driver::{Mount, can_mount, dwarfs, stderr, wait_until};
use crate::support::{DWARFSCK, MKDWARFS, build, must, reference, run};
use redwarfs_format::hints::Hints;
use redwarfs_reader::{Image, OpenOptions, Preload, Verification};
use redwarfs_testkit::skip;
use redwarfs_testkit::web::{WebRequest, WebServer, round_trips};
use rustix::process::Signal;

/// Files of the tree, and those of them that the program reads.
const FILES: u32 = 400;
const READ: u32 = 100;
const SIZE: usize = 20_000;

fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A tree, and a server.
struct Site {
    dir: tempfile::TempDir,
    server: WebServer,
}

impl Site {
    fn new() -> Self {
        let dir = driver::temp();
        let tree = dir.path().join("tree");
        for number in 0..FILES {
            let path = tree.join(name(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, noise(SIZE, number + 1)).unwrap();
        }
        let server = WebServer::start().unwrap();
        server.delay(Duration::from_millis(20));
        Self { dir, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds an image.
    fn image(&self, name: &str, options: &[&str]) -> PathBuf {
        let image = self.path(name);
        let usual = ["--no-progress", "--order=path", "--no-create-timestamp"];
        let all = [&usual[..], &["--no-history", "-f"], options].concat();
        build(&self.path("tree"), &image, &all);
        image
    }

    /// Mounts an image of the server, runs the program, and unmounts. Returns the requests that came after the mount.
    fn start(&self, image: &Path, options: &str) -> Vec<WebRequest> {
        let url = Path::new("/image");
        self.server.put("/image", fs::read(image).unwrap());
        let url = self.server.url(url.to_str().unwrap());
        let mut mount = Mount::foreground(Path::new(&url), &["-o", options]);
        self.server.take_requests();
        program(mount.point(), &self.path("tree"));
        let requests = self.server.take_requests();
        mount.signal(Signal::TERM);
        let (code, text) = mount.finish();
        assert_eq!(code, Some(0), "{text}");
        requests
    }
}

/// The path of a file.
fn name(number: u32) -> String {
    format!("lib{}/{number}", number % 7)
}

/// Reads files one after the other, in another order than that of the image.
fn program(at: &Path, tree: &Path) {
    for step in 0..READ {
        let name = name(step * 149 % FILES);
        let (read, want) = (fs::read(at.join(&name)), fs::read(tree.join(&name)));
        assert!(read.unwrap() == want.unwrap(), "{name}");
    }
}

fn hints(path: &Path) -> Hints {
    Hints::parse(&fs::read(path).unwrap()).unwrap()
}

/// What `dwarfsck` says of the hints of an image.
fn shown(image: &Path) -> serde_json::Value {
    let output = must(
        DWARFSCK,
        ["-j", "-d3", "--check-integrity", image.to_str().unwrap()],
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["extensions"]["hints"].clone()
}

#[test]
fn a_program_start_needs_one_wave() {
    if !can_mount("a_program_start_needs_one_wave") {
        return;
    }
    let site = Site::new();
    let file = site.path("hints");
    let record = format!("hints_file={}", file.display());
    let plain = site.image("plain", &["-S16"]);
    // Blocks that are fetched ahead because of earlier ones would be counted, too.
    let without = site.start(&plain, &format!("{record},seq_detector=0"));
    let recorded = hints(&file);
    assert_eq!(recorded.list.len(), READ as usize);
    assert!(recorded.list.iter().all(|hint| hint.length == SIZE as u64));
    let first: Vec<_> = recorded.list.iter().map(|hint| &hint.path[..]).collect();
    assert_eq!(first[..2], [name(0).as_bytes(), name(149).as_bytes()]);

    // The same file serves an image with other blocks.
    let other = site.image("other", &["-S17", "--hints", file.to_str().unwrap()]);
    let with = site.start(&other, "workers=2");
    let off = site.start(&other, "no_hints,seq_detector=0");
    let guessed = site.start(&plain, "no_hints");
    // The file alone does it, too, and stays as it is.
    let by_file = site.start(&plain, &record);
    assert_eq!(hints(&file), recorded);
    let counts = |requests: &[WebRequest]| (requests.len(), round_trips(requests));
    let (without, with) = (counts(&without), counts(&with));
    let (off, by_file, guessed) = (counts(&off), counts(&by_file), counts(&guessed));
    println!(
        "requests, round trips: without {without:?}, with {with:?}, switched off {off:?}, by the file {by_file:?}, guessed {guessed:?}"
    );
    assert!(guessed.1 * 3 <= without.1 * 2, "{without:?} {guessed:?}");
    assert!(without.1 >= 40 && off.1 >= 25, "{without:?} {off:?}");
    for found in [with, by_file] {
        assert!(found.0 <= 12 && found.1 <= 5, "{found:?}");
    }
}

#[test]
fn nothing_is_recorded_twice_or_without_need() {
    if !can_mount("nothing_is_recorded_twice_or_without_need") {
        return;
    }
    let site = Site::new();
    let image = site.image("image", &["-S16"]);
    let file = site.path("hints");
    let record = format!("hints_file={}", file.display());
    let mount = |image: &Path| Mount::foreground(image, &["-o", &record]);
    let end = |mut mount: Mount| {
        mount.signal(Signal::TERM);
        assert_eq!(mount.finish().0, Some(0));
    };
    // Nobody reads.
    end(mount(&image));
    assert!(!file.exists());
    // A signal is enough.
    let first = mount(&image);
    fs::read(first.point().join(name(5))).unwrap();
    first.signal(Signal::USR1);
    wait_until("the file", || file.exists());
    assert_eq!(hints(&file).list.len(), 1);
    fs::read(first.point().join(name(6))).unwrap();
    end(first);
    let both = hints(&file);
    assert_eq!(both.list.len(), 2);
    // It is about this image.
    let again = mount(&image);
    fs::read(again.point().join(name(7))).unwrap();
    end(again);
    assert_eq!(hints(&file), both);
    // Another one is recorded anew, but not for longer than it should.
    let changed = site.image("changed", &["-S17"]);
    let options = format!("{record},hints_time=1ms");
    let other = Mount::foreground(&changed, &["-o", &options]);
    fs::read(other.point().join(name(8))).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    for number in 9..20 {
        fs::read(other.point().join(name(number))).unwrap();
    }
    end(other);
    let renewed = hints(&file);
    assert_ne!(renewed.generation, both.generation);
    assert_eq!(renewed.list[0].path, name(8).into_bytes());
    assert!(renewed.list.len() < 10, "{}", renewed.list.len());

    let wrong = site.path("wrong");
    fs::write(&wrong, "precious\n").unwrap();
    let refused = |file: &Path| {
        let dir = Mount::new_dir();
        let option = format!("hints_file={}", file.display());
        let output = dwarfs()
            .arg(&image)
            .arg(dir.path())
            .args(["-o", &option])
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let text = refused(&wrong);
    assert!(
        text.contains("cannot read hints") && text.contains("no file of hints"),
        "{text}"
    );
    assert_eq!(fs::read(&wrong).unwrap(), b"precious\n");
    let text = refused(&site.path("none/hints"));
    assert!(text.contains("cannot write hints"), "{text}");
    // Nobody writes to it, so opening it would wait.
    let pipe = site.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let text = refused(&pipe);
    assert!(text.contains("it is no regular file"), "{text}");
}

#[test]
fn images_keep_hints_as_long_as_blocks_keep_their_numbers() {
    let site = Site::new();
    let file = site.path("hints");
    let text: String = (0..READ)
        .map(|number| format!("{} 0 100 {}\n", number * 3, name(number * 3)))
        .collect();
    fs::write(&file, format!("redwarfs-hints 1\n{text}9 0 1 none\n")).unwrap();
    let with = ["-S16", "--hints", file.to_str().unwrap()];
    let usual = [
        "--no-progress",
        "--order=path",
        "--no-create-timestamp",
        "--no-history",
    ];
    let tree = site.path("tree");
    let made = |image: &Path, threads: &str| {
        let paths = ["-i", tree.to_str().unwrap(), "-o", image.to_str().unwrap()];
        let all = [&paths[..], &usual, &with, &["-N", threads]].concat();
        let output = must(MKDWARFS, all);
        let text = stderr(&output);
        assert!(
            text.contains("1 of 101 hints name no file of the image"),
            "{text}"
        );
        fs::read(image).unwrap()
    };
    let image = site.path("image");
    let bytes = made(&image, "1");
    assert!(
        bytes == made(&site.path("again"), "4"),
        "threads change the image"
    );
    let first = shown(&image);
    let found = &first[0];
    assert_eq!(
        (first.as_array().unwrap().len(), &found["kind"]),
        (1, &"start".into())
    );
    let blocks = found["blocks"].as_array().unwrap();
    assert_eq!(found["block_count"], blocks.len());
    assert!(blocks.len() > 50 && blocks[1]["value"].as_u64() > blocks[0]["value"].as_u64());
    let output = must(DWARFSCK, [image.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains(&format!("hints: {} blocks needed first", blocks.len())),
        "{text}"
    );

    let rewrite = |name: &str, options: &[&str]| {
        let out = site.path(name);
        let paths = ["-i", image.to_str().unwrap(), "-o", out.to_str().unwrap()];
        must(MKDWARFS, [&paths[..], &["--no-progress"], options].concat());
        shown(&out)
    };
    for options in [
        &["--recompress"][..],
        &["--recompress=none", "--rebuild-metadata"],
    ] {
        let kept = rewrite("kept", options);
        assert_eq!(kept[0]["blocks"], found["blocks"], "{options:?}");
        fs::remove_file(site.path("kept")).unwrap();
    }
    let cut = ["--recompress", "--change-block-size", "-S18"];
    assert!(rewrite("cut", &cut).is_null());
    let anew = rewrite(
        "anew",
        &[&cut[..], &["--hints", file.to_str().unwrap()]].concat(),
    );
    assert!(anew[0]["block_count"].as_u64().unwrap() < blocks.len() as u64 / 2);
    // Lists of paths are hints, too.
    let list = site.path("list");
    fs::write(&list, name(7)).unwrap();
    let one = rewrite(
        "one",
        &["--recompress=none", "--hints", list.to_str().unwrap()],
    );
    assert!(one.as_array().unwrap().len() == 1 && one[0]["block_count"].as_u64() < Some(3));

    // A new snapshot has those of the one before, and a compacted copy those of the newest one.
    fs::write(tree.join("new"), noise(SIZE, 77_777)).unwrap();
    let append = |options: &[&str]| {
        let paths = [
            "-i",
            tree.to_str().unwrap(),
            "--append",
            image.to_str().unwrap(),
        ];
        must(MKDWARFS, [&paths[..], &["--no-progress"], options].concat());
        shown(&image)
    };
    assert_eq!(append(&[])[0]["blocks"], found["blocks"]);
    let copy = site.path("copy");
    must(
        DWARFSCK,
        ["--compact", copy.to_str().unwrap(), image.to_str().unwrap()],
    );
    assert_eq!(shown(&copy)[0]["blocks"], found["blocks"]);
    let newer = append(&["--snapshot-name=two", "--hints", list.to_str().unwrap()]);
    assert_eq!(newer.as_array().unwrap().len(), 1);
    assert_eq!(newer[0]["blocks"], one[0]["blocks"]);

    // Also those that name nothing take the place of older ones.
    fs::write(&list, "none\n").unwrap();
    let none = ["--hints", list.to_str().unwrap()];
    for made in [
        append(&[&["--snapshot-name=three"][..], &none].concat()),
        rewrite("none", &[&["--recompress=none"][..], &none].concat()),
    ] {
        assert!(made.is_null(), "{made}");
    }
}

#[test]
fn the_reference_reads_images_with_hints() {
    let name_of = "the_reference_reads_images_with_hints";
    let Some(reference) = reference() else {
        return skip(name_of, "there is no reference");
    };
    let site = Site::new();
    let list = site.path("list");
    fs::write(&list, format!("{}\n{}\n", name(3), name(300))).unwrap();
    let image = site.image("image", &["-S16", "--hints", list.to_str().unwrap()]);
    let program = |name: &str, args: &[&str]| {
        let output = Command::new(reference.join(name))
            .args(args)
            .output()
            .unwrap();
        let text = stderr(&output);
        assert!(output.status.success(), "{name}: {text}");
        let quiet = !text.contains("warn") && !text.contains(" W ") && !text.contains("unknown");
        assert!(quiet, "{name}: {text}");
    };
    let (path, out, again) = (
        image.to_str().unwrap(),
        site.path("out"),
        site.path("again"),
    );
    program("dwarfsck", &["-i", path]);
    program("dwarfsck", &["-i", path, "--check-integrity"]);
    fs::create_dir(&out).unwrap();
    program("dwarfsextract", &["-i", path, "-o", out.to_str().unwrap()]);
    let same = Command::new("diff")
        .arg("-r")
        .args([site.path("tree"), out])
        .status();
    assert!(same.unwrap().success());
    program(
        "mkdwarfs",
        &[
            "-i",
            path,
            "-o",
            again.to_str().unwrap(),
            "--recompress=none",
        ],
    );
    assert!(shown(&again).is_null());
    if can_mount(name_of) {
        let point = Mount::new_dir();
        program("dwarfs", &[path, point.path().to_str().unwrap()]);
        let mount = Mount::on(point);
        let read = fs::read(mount.point().join(name(300))).unwrap();
        assert!(read == noise(SIZE, 301));
    }
}

#[test]
fn hints_that_no_digest_covers_have_no_effect_where_digests_are_asked_for() {
    let site = Site::new();
    let list = site.path("list");
    fs::write(&list, name(3)).unwrap();
    let image = site.image("image", &["-S16", "--hints", list.to_str().unwrap()]);
    must(DWARFSCK, ["--add-digests", image.to_str().unwrap()]);
    assert_eq!(shown(&image).as_array().unwrap().len(), 1);
    let loaded = |verification: Verification, given: Option<Hints>| {
        let mut options = OpenOptions::default();
        options.verification = verification;
        let image = Image::open(&image, &options).unwrap();
        let handle = image.preload(Preload::Hints(given.map(Arc::new)));
        handle.unwrap().wait().loaded
    };
    assert!(loaded(Verification::Checksums, None) > 0);
    assert_eq!(loaded(Verification::Digests, None), 0);
    let given = Hints::parse(name(3).as_bytes()).unwrap();
    assert!(loaded(Verification::Digests, Some(given)) > 0);
}

#[test]
fn what_cannot_be_is_said() {
    let site = Site::new();
    let (tree, file, out) = (site.path("tree"), site.path("hints"), site.path("out"));
    let refused = |text: &str, more: &[&str]| {
        fs::write(&file, text).unwrap();
        let paths = [
            "-i",
            tree.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
            "--hints",
        ];
        let output = run(
            MKDWARFS,
            [&paths[..], &[file.to_str().unwrap()], more].concat(),
        );
        assert!(!output.status.success() && !out.exists());
        stderr(&output)
    };
    let text = refused("redwarfs-hints 1\n0 0 x\n", &[]);
    let want = "line 2 is not 'MILLISECONDS OFFSET LENGTH PATH'";
    assert!(
        text.contains("cannot read hints") && text.contains(want),
        "{text}"
    );
    assert!(refused("redwarfs-hints 9\n", &[]).contains("later version"));
    let text = refused("", &["--no-section-index"]);
    let want = "cannot combine --hints and --no-section-index";
    assert!(text.contains(want), "{text}");
}
