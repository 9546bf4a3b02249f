//! `dwarfsck` and the program it replaces say the same about the same images.

use std::path::Path;
use std::process::Command;

use crate::support::{DWARFSCK, reference};
use redwarfs_testkit::golden::golden_images;
use redwarfs_testkit::skip;

/// Standard output, in UTC and the C locale.
fn shown(program: &Path, image: &Path, options: &[&str]) -> Option<String> {
    let done = Command::new(program)
        .arg(image)
        .args(options)
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    // Where it fails there is nothing to compare with.
    done.status
        .success()
        .then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Compares what both show, after `normal` took out what differs on purpose.
fn compare(what: &str, options: &[&str], normal: impl Fn(&str) -> Option<String>) {
    let Some(dir) = reference() else {
        return skip(what, "the other program is not here");
    };
    let theirs = dir.join("dwarfsck");
    let mut compared = 0;
    for image in golden_images() {
        let Some(want) = shown(&theirs, &image.image, options) else {
            continue;
        };
        let got = shown(Path::new(DWARFSCK), &image.image, options).unwrap();
        // Of the tables, those that the reference does not know come last.
        let got = got.split("\n  xattrs @ start\n").next().unwrap();
        // The verdict has no counterpart.
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("OK: "));
            lines.filter_map(&normal).collect()
        };
        let (got, want) = (lines(got), lines(&want));
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got, want, "{}", image.name);
        }
        assert_eq!(got.len(), want.len(), "{}", image.name);
        compared += want.len();
    }
    assert!(compared > 0);
}

fn same(line: &str) -> Option<String> {
    Some(line.to_owned())
}

#[test]
fn the_memory_tables_are_the_same() {
    compare("memory by size", &["-d", "version,frozen_analysis"], same);
    compare("memory by address", &["-d", "frozen_details"], same);
}

#[test]
fn the_schemas_are_the_same() {
    compare("schemas", &["-d", "schema_raw_dump"], same);
}

#[test]
fn the_layouts_are_the_same() {
    compare("layouts", &["-d", "frozen_layout"], |line| {
        // The names of the types are those of the programming language.
        let width = line.trim_start();
        if width == "...viewed as a map" || width == "...viewed as a set" {
            return None;
        }
        let end = width.find(" bit ").map(|at| at + 4);
        let end = end.or_else(|| width.starts_with("empty ").then_some(5));
        let end = end.or_else(|| width.find(" bits) ").map(|at| at + 6));
        Some(match end {
            Some(end) if !line.contains(" @ ") => line[..line.len() - width.len() + end].to_owned(),
            _ => line.to_owned(),
        })
    });
}

#[test]
fn the_numbers_are_the_same() {
    compare("numbers of tables", &["-d", "metadata_details"], |line| {
        // These are estimates there.
        (!line.starts_with("single file ")).then(|| line.to_owned())
    });
    compare("summaries", &["-d1"], |line| {
        let own = line.starts_with("original hardlink size: ") || line.starts_with("  ");
        (!own && !line.contains("(-nan%)") && !line.contains("(N/A)")).then(|| line.to_owned())
    });
    compare("histories", &["-d", "history"], same);
}

#[test]
fn the_sections_are_the_same() {
    compare("sections", &["-d", "section_details"], |line| {
        // The parameters are those of another block there, and offsets count from the start of the
        // file.
        let line = line.split(", metadata=").next().unwrap();
        let (head, rest) = line.split_once(", offset=").unwrap_or((line, ""));
        Some(format!(
            "{head}{}",
            rest.trim_start_matches(|c: char| c.is_ascii_digit())
        ))
    });
}

/// Names that are printed in another way on purpose.
fn is_odd(line: &str) -> bool {
    line.contains(['\u{fffd}', '\\', '\t']) || line.is_empty()
}

#[test]
fn the_trees_are_the_same() {
    compare("trees", &["-d", "directory_tree,chunk_details"], |line| {
        // A name with a newline takes two lines there.
        let split = ["new", "line [", "inode:", "new\\nline"];
        (!is_odd(line)
            && !split
                .iter()
                .take(2)
                .any(|s| line.ends_with(s) || line.starts_with(s)))
        .then(|| line.to_owned())
        .filter(|line| !line.contains("<inode:56>"))
    });
}

#[test]
fn the_dumps_are_the_same() {
    compare("dumps", &["-d", "metadata_full_dump"], |line| {
        // Bytes that are not text, and numbers that are signed there.
        let odd = is_odd(line) || line.contains(" = -1,") || line.contains("4294967295");
        (!odd).then(|| line.to_owned())
    });
}
