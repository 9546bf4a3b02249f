//! Options of `mkdwarfs` that leave the image as it is: threads, progress, messages and help.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::builder::{Done, TestDir, mkdwarfs};
use crate::mkdwarfs_options::texts;
use redwarfs_testkit::tree::Random;

#[test]
fn the_number_of_threads_changes_nothing_but_the_threads() {
    let place = texts();
    let fixed = ["--no-history", "--no-create-timestamp", "-l4"];
    let build = |more: &[&str]| {
        let done: Done = mkdwarfs()
            .args([
                "-i",
                &place.text("in"),
                "-fo",
                &place.text("out"),
                "--log-level=warn",
            ])
            .args(fixed)
            .args(more)
            .output()
            .unwrap()
            .into();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        fs::read(place.path("out")).unwrap()
    };
    let one = build(&["-N1"]);
    for more in [
        &["-N7"][..],
        &[
            "--num-workers=3",
            "--num-scanner-workers=1",
            "--num-segmenter-workers=5",
        ],
        &["-N1", "--num-scanner-workers=8"],
        &["--compress-niceness=0", "-L1g"],
        &["--memory-limit=auto"],
    ] {
        assert!(build(more) == one, "{more:?}");
    }
}

/// Nice values of the threads of a process, with their names.
fn threads(pid: u32) -> Vec<(String, i64)> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .filter_map(|task| {
            let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            let (head, tail) = stat.rsplit_once(')')?;
            let name = head.split_once('(')?.1.to_owned();
            Some((name, tail.split_whitespace().nth(16)?.parse().ok()?))
        })
        .collect()
}

/// Runs the program until all of its compression threads have a niceness of `add` more than this one.
/// False if it ends before.
fn compresses_at(mut command: Command, add: i64) -> bool {
    let own = threads(std::process::id())[0].1;
    let want = (own + add).min(19);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let good = loop {
        let nice = threads(child.id());
        let of_compressors = nice.iter().filter(|(name, _)| name.contains("compress"));
        let right: Vec<i64> = of_compressors.map(|(_, nice)| *nice).collect();
        if !right.is_empty() && right.iter().all(|&nice| nice == want) {
            break true;
        }
        if child.try_wait().unwrap().is_some() || Instant::now() > deadline {
            break false;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let _ = child.kill();
    child.wait().unwrap();
    good
}

#[test]
fn compression_threads_are_nice() {
    let place = TestDir::new(&[]);
    fs::write(place.path("in/noise"), Random::new(1).text(24 << 20)).unwrap();
    let image = place.text("image");
    let built = mkdwarfs()
        .args(["-i", &place.text("in"), "-o", &image, "-l0", "-S21"])
        .output()
        .unwrap();
    assert!(built.status.success());
    for (args, add) in [
        (&["-N3", "--compress-niceness=7"][..], 7),
        (&["-N1"], 5),
        (&["-N2", "--compress-niceness=0"], 0),
    ] {
        let slow = ["-C", "lzma:level=9:extreme"];
        let build = place.command(&[&slow[..], &["-S21"], args].concat());
        assert!(compresses_at(build, add), "{args:?}");
        let mut rewrite = mkdwarfs();
        rewrite
            .args(["-i", &image, "-fo", &place.text("out"), "--recompress"])
            .args(slow)
            .args(args);
        assert!(compresses_at(rewrite, add), "rewriting: {args:?}");
    }
}

#[test]
fn progress_and_messages_can_be_chosen() {
    let place = texts();
    let run = |args: &[&str]| {
        let done: Done = mkdwarfs()
            .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
            .args(args)
            .output()
            .unwrap()
            .into();
        assert_eq!(done.code, Some(0));
        assert!(done.stdout.is_empty());
        assert!(!done.stderr.contains('\x1b'), "{}", done.stderr);
        done.stderr
    };
    // Without a terminal there is no progress unless it is asked for.
    assert!(!run(&[]).contains("==>"));
    assert!(run(&["--progress=simple"]).contains("==> 100% done"));
    for none in ["--no-progress", "--progress=none"] {
        let text = run(&[none]);
        assert!(!text.contains("==>") && text.contains(", created without errors\n"));
        assert_eq!(run(&[none, "--log-level=error"]), "");
    }
    let letters = |args: &[&str]| {
        let text = run(args);
        let letters: BTreeSet<char> = text
            .lines()
            .filter(|line| line.as_bytes().get(1) == Some(&b' '))
            .filter_map(|line| line.chars().next())
            .collect();
        letters.into_iter().collect::<String>()
    };
    // At info there is the summary alone, five lines of it.
    assert_eq!(run(&["--log-level=info"]).lines().count(), 5);
    assert_eq!(letters(&["--log-level=verbose"]), "V");
    assert_eq!(letters(&["-v"]), "V");
    assert_eq!(letters(&["--log-level=debug"]), "DV");
    assert_eq!(letters(&["--log-level=trace"]), "DTV");
    let text = run(&["-v"]);
    for phase in [
        "listed the input, directories=",
        "compared the files, hashed=",
        "put the contents into order, contents=",
        "compressed the contents, blocks=",
        "wrote the metadata, inodes=",
    ] {
        assert!(text.contains(phase) && text.contains(" took="), "{text}");
    }
    // More lines than five: details come with it.
    assert!(text.contains("\nblocks: "), "{text}");
    assert!(run(&["--log-level=debug"]).contains("] category <default>, codec=lz4, order="));
    let text = run(&["--log-level=trace"]);
    assert!(
        text.contains("] reading '") && text.contains("] section 0 BLOCK"),
        "{text}"
    );
    // From verbose on a message says where it comes from, and at others if it is asked to.
    let from = |text: &str| text.contains(" [report.rs:");
    assert!(from(&run(&["-v"])));
    let warned = ["--log-level=warn", "--hollow"];
    assert!(!run(&warned).contains(" ["));
    assert!(run(&[&warned[..], &["--log-with-context"]].concat()).contains(" [run.rs:"));
}

#[test]
fn help_manual_and_version() {
    let text = |args: &[&str]| {
        let out = mkdwarfs().args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let short = text(&["-h"]);
    assert!(short.contains("--input") && !short.contains("--filter"));
    assert_eq!(text(&["--help"]), short);
    let long = text(&["-H"]);
    assert_eq!(text(&["--long-help"]), long);
    for part in [
        "--filter",
        "Compression levels:",
        "zstd:level=19:wlog=24",
        "nilsimsa",
        "lz4hc",
        "brotli",
        "quality",
        "dict_size",
        "lgwin",
    ] {
        assert!(long.contains(part), "{part}");
    }
    let manual = text(&["--man"]);
    for part in [
        "SYNOPSIS",
        "--filter",
        "FILTER RULES",
        "PSEUDO FILES",
        "EXIT STATUS",
    ] {
        assert!(manual.contains(part), "{part}");
    }
    assert!(text(&["--version"]).starts_with("mkdwarfs "));
}
