//! Every flipped bit and every missing end of an image is noticed, or concerns bytes that are said
//! not to be covered.

use std::sync::Arc;

use redwarfs_format::section::{SectionHeader, SectionType};
use redwarfs_io::MemorySource;
use redwarfs_reader::check::{CheckOptions, DeclaredImage, Uncovered, UncoveredReason, VerifyMode};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_testkit::golden::{compat_images, golden};

/// A check, and where the image is said to be.
#[derive(Clone, Copy)]
struct Asked {
    mode: VerifyMode,
    declared: DeclaredImage,
}

fn asked(mode: VerifyMode) -> Asked {
    let declared = DeclaredImage {
        offset: ImageOffset::Auto,
        size: None,
        device: false,
    };
    Asked { mode, declared }
}

const FAST: VerifyMode = VerifyMode::Fast;
const THOROUGH: VerifyMode = VerifyMode::Integrity;

impl Asked {
    fn at(mut self, offset: ImageOffset) -> Self {
        self.declared.offset = offset;
        self
    }

    fn size(mut self, size: u64) -> Self {
        self.declared.size = Some(size);
        self
    }
}

/// The result of a check: whether it notices something, and what it says that it does not cover.
fn check(image: &[u8], asked: &Asked) -> (bool, Vec<Uncovered>) {
    let source = Arc::new(MemorySource::new(image.to_vec()));
    let mut open = OpenOptions::default();
    open.offset = asked.declared.offset;
    open.image_size = asked.declared.size;
    let Ok(image) = Image::from_source(source, &open) else {
        return (true, Vec::new());
    };
    let mut options = CheckOptions::default();
    options.mode = asked.mode;
    let checked = image
        .list_sections()
        .and_then(|list| image.check(list, asked.declared, &options, &|_| {}));
    match checked {
        Ok(report) => (!report.is_ok(), report.uncovered),
        Err(_) => (true, Vec::new()),
    }
}

/// The uncovered bytes of an intact image.
fn intact(image: &[u8], asked: &Asked) -> Vec<Uncovered> {
    let (damaged, uncovered) = check(image, asked);
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
fn missed(image: &[u8], asked: &Asked) -> Vec<usize> {
    missed_in(image, asked, image.len())
}

/// The same for the first `end` bytes.
fn missed_in(image: &[u8], asked: &Asked, end: usize) -> Vec<usize> {
    let half = end / 2;
    let flip = |range: std::ops::Range<usize>| {
        let mut bytes = image.to_vec();
        let mut missed = Vec::new();
        for at in range {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let (noticed, uncovered) = check(&bytes, asked);
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
    let thorough = asked(THOROUGH);
    for image in small() {
        assert_eq!(intact(&image, &thorough), []);
        assert_eq!(missed(&image, &thorough), [0; 0]);
    }
}

#[test]
fn every_missing_end_is_noticed() {
    let thorough = asked(THOROUGH);
    let more = [old("compat-v0.2.0"), old("compat-v0.6.2")];
    for image in small().into_iter().chain(more) {
        intact(&image, &thorough);
        for length in 0..image.len() {
            assert!(check(&image[..length], &thorough).0, "{length} bytes");
        }
    }
}

/// The fast check leaves out only the digests.
#[test]
fn the_fast_check_misses_digests_only() {
    let fast = asked(FAST);
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
    let thorough = asked(THOROUGH);
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
    let first = asked(THOROUGH).at(ImageOffset::Nth(1));
    let size = asked(THOROUGH).size(length);
    for declared in [&first, &size] {
        let behind = Uncovered {
            reason: UncoveredReason::Behind,
            offset: Some(length),
            bytes: several.len() as u64 - length,
        };
        assert_eq!(intact(&several, declared), [behind]);
        assert_eq!(missed_in(&several, declared, end), [0; 0]);
    }
    let second = asked(THOROUGH).at(ImageOffset::Nth(2));
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
        assert!(check(cut, &asked(THOROUGH)).0);
        let named = intact(cut, &asked(FAST));
        assert!(named.iter().any(|u| u.reason == UncoveredReason::End));
        assert_eq!(intact(cut, &asked(THOROUGH).size(end as u64)), []);
        // Zeros instead of the index.
        let mut zeros = cut.to_vec();
        zeros.resize(image.len(), 0);
        assert!(check(&zeros, &asked(FAST)).0);
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
        let image = Image::from_source(source, &OpenOptions::default()).unwrap();
        let mut declared = asked(THOROUGH).declared;
        declared.device = true;
        let mut options = CheckOptions::default();
        options.mode = THOROUGH;
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
    let named = intact(&image, &asked(THOROUGH));
    let all = Uncovered {
        reason: UncoveredReason::NoChecksums,
        offset: Some(0),
        bytes: image.len() as u64,
    };
    assert_eq!(named, [all]);
}
