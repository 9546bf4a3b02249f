//! Every flipped bit and every missing end of an image is noticed, or concerns bytes that are said
//! not to be covered.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use clap::FromArgMatches;
use redwarfs_format::section::{SectionHeader, SectionType};
use redwarfs_io::MemorySource;
use redwarfs_reader::check::{CheckOptions, DeclaredImage, Uncovered, UncoveredReason, VerifyMode};
use redwarfs_reader::{Image, ImageOffset};
use redwarfs_testkit::golden::{compat_images, golden};

use super::args::Args;
use super::{examine, open_options};
use crate::common::{LogLevel, Logger};

fn args(options: &[&str]) -> Args {
    let all = ["dwarfsck", "image", "--no-progress"].iter().chain(options);
    Args::from_arg_matches(&Args::prepared().get_matches_from(all)).unwrap()
}

/// What the program does with an image: whether its exit code is 1, and what it says that it does not
/// cover.
fn check(image: &[u8], args: &Args) -> (bool, Vec<Uncovered>) {
    let source = Arc::new(MemorySource::new(image.to_vec()));
    let Ok(image) = Image::from_source(source, &open_options(args, 1)) else {
        return (true, Vec::new());
    };
    let logger = Logger::stderr(LogLevel::Error, false);
    match examine(args, Path::new("/nonexistent"), image, true, 1, &logger) {
        Ok(checked) => (!checked.report.is_ok(), checked.report.uncovered),
        Err(_) => (true, Vec::new()),
    }
}

/// The uncovered bytes of an intact image.
fn intact(image: &[u8], args: &Args) -> Vec<Uncovered> {
    let (damaged, uncovered) = check(image, args);
    assert!(!damaged);
    uncovered
}

fn is_named(uncovered: &[Uncovered], at: usize) -> bool {
    uncovered.iter().any(|u| {
        u.offset
            .is_some_and(|offset| (offset..offset + u.bytes).contains(&(at as u64)))
    })
}

/// Flips one bit after the other. Returns the offsets of those that are neither noticed nor in bytes
/// that are said not to be covered.
fn missed(image: &[u8], args: &Args) -> Vec<usize> {
    missed_in(image, args, image.len())
}

/// The same for the first `end` bytes.
fn missed_in(image: &[u8], args: &Args, end: usize) -> Vec<usize> {
    let half = end / 2;
    let flip = |range: std::ops::Range<usize>| {
        let mut bytes = image.to_vec();
        let mut missed = Vec::new();
        for at in range {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let (noticed, uncovered) = check(&bytes, args);
                if !noticed && !is_named(&uncovered, at) {
                    missed.push(at);
                }
                bytes[at] ^= 1 << bit;
            }
        }
        missed
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| flip(half..end));
        let mut missed = flip(0..half);
        missed.extend(other.join().unwrap());
        missed
    })
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(golden(name).image).unwrap()
}

fn old(name: &str) -> Vec<u8> {
    let images = compat_images();
    let found = images.iter().find(|image| image.name == name).unwrap();
    std::fs::read(&found.image).unwrap()
}

/// Small images of formats 2.5, 2.2 and 2.3.
fn small() -> [Vec<u8>; 5] {
    [
        read("empty"),
        read("one"),
        read("basic-hollow"),
        old("setuidgid-v0.4.1"),
        old("setuidgid-v0.5.6"),
    ]
}

/// Offsets of the headers and what they are.
fn headers(image: &[u8]) -> Vec<(usize, SectionType)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < image.len() {
        let bytes = image[at..at + SectionHeader::LEN].try_into().unwrap();
        let header = SectionHeader::parse(bytes).unwrap();
        list.push((at, header.ty));
        at += SectionHeader::LEN + usize::try_from(header.length).unwrap();
    }
    list
}

#[test]
fn every_flipped_bit_is_noticed() {
    let thorough = args(&["--check-integrity"]);
    for image in small() {
        assert_eq!(intact(&image, &thorough), []);
        assert_eq!(missed(&image, &thorough), [0; 0]);
    }
}

#[test]
fn every_missing_end_is_noticed() {
    let thorough = args(&["--check-integrity"]);
    let more = [old("compat-v0.2.0"), old("compat-v0.6.2")];
    for image in small().into_iter().chain(more) {
        intact(&image, &thorough);
        for length in 0..image.len() {
            assert!(check(&image[..length], &thorough).0, "{length} bytes");
        }
    }
}

/// Without `--check-integrity` only the digests are left out.
#[test]
fn the_fast_check_misses_digests_only() {
    let fast = args(&[]);
    let image = read("empty");
    let headers = headers(&image);
    let digests = 32 * headers.len() as u64;
    assert_eq!(
        intact(&image, &fast),
        [Uncovered {
            reason: UncoveredReason::Digests,
            offset: None,
            bytes: digests
        }]
    );
    let missed = missed(&image, &fast);
    let in_digest = |at: usize| headers.iter().any(|(h, _)| (h + 8..h + 40).contains(&at));
    assert!(missed.iter().all(|at| in_digest(*at)), "{missed:?}");
    assert_eq!(missed.len() as u64, digests * 8);
}

/// Headers before an image, padding and other images behind it.
#[test]
fn what_surrounds_an_image_is_named_or_noticed() {
    let thorough = args(&["--check-integrity"]);
    let image = read("empty");
    let (length, end) = (image.len() as u64, image.len());

    let header = [b"#!/bin/sh\nexit\n", &image[..]].concat();
    let before = intact(&header, &thorough);
    assert_eq!(
        before,
        [Uncovered {
            reason: UncoveredReason::Before,
            offset: Some(0),
            bytes: 15
        }]
    );
    assert_eq!(missed(&header, &thorough), [0; 0]);

    // Zeros fill a sector; that they are zeros is checked.
    let padded = [&image[..], &[0; 100]].concat();
    assert_eq!(intact(&padded, &thorough), []);
    assert_eq!(missed(&padded, &thorough), [0; 0]);

    // Of several images the one that is meant has to be named.
    let several = [&image[..], &[0; 10], &read("one")].concat();
    assert!(check(&several, &thorough).0);
    let first = args(&["--check-integrity", "-O", "auto:1"]);
    let size = args(&["--check-integrity", &format!("--image-size={length}")]);
    for declared in [&first, &size] {
        let behind = Uncovered {
            reason: UncoveredReason::Behind,
            offset: Some(length),
            bytes: several.len() as u64 - length,
        };
        assert_eq!(intact(&several, declared), [behind]);
        assert_eq!(missed_in(&several, declared, end), [0; 0]);
    }
    let second = args(&["--check-integrity", "-O", "auto:2"]);
    let named = intact(&several, &second);
    assert!(is_named(&named, 0) && !is_named(&named, end + 10));
    assert!(check(&[&several[..], b"x"].concat(), &second).0);
    assert!(check(&[&image[..], b"something"].concat(), &first).0);
}

/// Whether an image without index is complete, only its history can tell.
#[test]
fn an_end_without_index_is_uncertain() {
    let image = read("one");
    let headers = headers(&image);
    let place = |ty| headers.iter().find(|(_, own)| *own == ty).unwrap().0;
    let (history, index) = (
        place(SectionType::HISTORY),
        place(SectionType::SECTION_INDEX),
    );
    for end in [history, index] {
        let cut = &image[..end];
        assert!(check(cut, &args(&["--check-integrity"])).0);
        let named = intact(cut, &args(&[]));
        assert!(named.iter().any(|u| u.reason == UncoveredReason::End));
        let size = format!("--image-size={end}");
        assert_eq!(intact(cut, &args(&["--check-integrity", &size])), []);
        // Zeros instead of the index.
        let mut zeros = cut.to_vec();
        zeros.resize(image.len(), 0);
        assert!(check(&zeros, &args(&[])).0);
    }
}

/// A device goes on behind its image. That is fine if a section index says where the image ends.
#[test]
fn devices_are_larger_than_images() {
    let image = read("one");
    let index = headers(&image).last().unwrap().0;
    let on_device = |image: &[u8]| {
        let bytes = [image, b"left by something else"].concat();
        let size = bytes.len() as u64;
        let source = Arc::new(MemorySource::new(bytes));
        let image = Image::from_source(source, &open_options(&args(&[]), 1)).unwrap();
        let declared = DeclaredImage {
            offset: ImageOffset::Auto,
            size: None,
            device: true,
        };
        let mut options = CheckOptions::default();
        options.mode = VerifyMode::Integrity;
        let list = image.list_sections().unwrap();
        let report = image.check(list, declared, &options, &|_| {}).unwrap();
        (report.findings.len(), report.uncovered, size)
    };
    let (findings, uncovered, size) = on_device(&image);
    let behind = Uncovered {
        reason: UncoveredReason::Behind,
        offset: Some(image.len() as u64),
        bytes: size - image.len() as u64,
    };
    assert_eq!((findings, uncovered), (0, vec![behind]));
    let (findings, ..) = on_device(&image[..index]);
    assert_eq!(findings, 1);
}

#[test]
fn formats_without_checksums_are_named() {
    let image = old("compat-v0.2.0");
    let named = intact(&image, &args(&["--check-integrity"]));
    let all = Uncovered {
        reason: UncoveredReason::NoChecksums,
        offset: Some(0),
        bytes: image.len() as u64,
    };
    assert_eq!(named, [all]);
}
