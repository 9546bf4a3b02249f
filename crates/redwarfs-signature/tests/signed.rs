//! Signed images: what is accepted, and what is refused.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::sync::Arc;

use redwarfs_format::Error;
use redwarfs_format::section::{Container, SectionHeader, SectionType};
use redwarfs_io::{FaultSource, LockedFile, MemorySource, Source};
use redwarfs_reader::{Image, Verification, stored_digests, stored_signatures};
use redwarfs_signature::{DigestAlgorithm, PublicKeys, SignatureKind, add_digests, add_signature};
use support::{Case, contents, go, keys, open, read_all};

#[test]
fn signed_images_are_read() {
    for algorithm in [DigestAlgorithm::Blake3, DigestAlgorithm::Sha512_256] {
        for level in [0, 7] {
            for key in keys() {
                let case = Case::signed(level, algorithm, &key);
                let image = open(&case.bytes(), &key.trust()).unwrap();
                let verified = image.verified().unwrap();
                assert_eq!(
                    (verified.algorithm, verified.time),
                    (algorithm, support::TIME)
                );
                assert!(verified.signer.as_ref().unwrap().starts_with(&key.name));
                assert_eq!(read_all(&image).unwrap(), contents());
                let image = open(&case.bytes(), &Verification::Digests).unwrap();
                assert_eq!(image.verified().unwrap().signer, None);
                assert_eq!(read_all(&image).unwrap(), contents());
                // Readers that do not ask see the same.
                let image = open(&case.bytes(), &Verification::Checksums).unwrap();
                assert_eq!(image.verified(), None);
                assert_eq!(read_all(&image).unwrap(), contents());
            }
        }
    }
}

/// Bytes that nothing interprets in a signed image: checksums and versions in headers, except the version of
/// the image.
fn not_interpreted(container: &Container, at: u64) -> bool {
    let in_header = |header: u64| {
        at.checked_sub(header)
            .filter(|at| *at < SectionHeader::LEN as u64)
    };
    let listed = container.sections.iter().any(|section| {
        in_header(section.header_offset).is_some_and(|at| match section.header_offset {
            0 => (8..48).contains(&at),
            _ => (6..48).contains(&at),
        })
    });
    // Their XXH3 is compared, so that it counts.
    let trailing = |section: &redwarfs_format::section::Section| {
        in_header(section.header_offset).is_some_and(|at| (6..40).contains(&at))
    };
    listed || container.trailers.iter().any(trailing)
}

/// Changes one byte, opens the image and reads everything.
fn flipped(bytes: &mut [u8], at: usize, trust: &Verification) -> Result<(), Error> {
    bytes[at] ^= 0x41;
    let read = open(bytes, trust).and_then(|image| {
        assert_eq!(read_all(&image)?, contents(), "{at}");
        image.history().map(|_| ())
    });
    bytes[at] ^= 0x41;
    read
}

#[test]
fn every_changed_byte_is_refused_or_not_interpreted() {
    for (number, key) in (0..).zip(keys()) {
        for level in [0, 7] {
            // SHA-512/256 covers the XXH3 of the header, too.
            let algorithm = match number {
                0 => DigestAlgorithm::Blake3,
                _ => DigestAlgorithm::Sha512_256,
            };
            let case = Case::signed(level, algorithm, &key);
            let mut bytes = case.bytes();
            let container = case.container();
            let trust = key.trust();
            let (mut refused, mut ignored) = (0, 0);
            for at in 0..bytes.len() {
                // Leaves are alike: a part of their bytes is enough.
                let payload = container.sections.iter().find(|section| {
                    let start = section.payload_offset as usize;
                    (start..start + section.length as usize).contains(&at)
                });
                let edge = |section: &redwarfs_format::section::Section| {
                    let inside = at - section.payload_offset as usize;
                    inside % (64 << 10) < 3 || inside + 3 > section.length as usize
                };
                if payload.is_some_and(|section| section.length > 4096 && !edge(section))
                    && at % 101 != 0
                {
                    continue;
                }
                match flipped(&mut bytes, at, &trust) {
                    Ok(()) => {
                        assert!(
                            not_interpreted(&container, at as u64),
                            "byte {at} of level {level}"
                        );
                        ignored += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            assert!(
                refused > 1000 && ignored > 100,
                "{refused} refused, {ignored} ignored"
            );
        }
    }
}

#[test]
fn shortened_and_extended_images_are_refused() {
    let [key, _] = keys();
    let case = Case::signed(7, DigestAlgorithm::Blake3, &key);
    let bytes = case.bytes();
    for len in 0..bytes.len() {
        open(&bytes[..len], &key.trust()).unwrap_err();
    }
    // What follows the image is not interpreted.
    for behind in [&[0; 100][..], b"DWARFS", b"more"] {
        let longer = [&bytes[..], behind].concat();
        let image = open(&longer, &key.trust()).unwrap();
        assert_eq!(read_all(&image).unwrap(), contents());
    }
}

#[test]
fn no_signature_or_another_one_is_refused() {
    let [minisign, ssh] = keys();
    let refused = |bytes: &[u8], trust: &Verification| match open(bytes, trust) {
        Err(Error::Unverified(why)) => why,
        other => panic!("{other:?}"),
    };
    let plain = Case::new(7);
    assert_eq!(
        refused(&plain.bytes(), &minisign.trust()),
        "the image is not signed"
    );
    assert_eq!(
        refused(&plain.bytes(), &Verification::Digests),
        "the image has no digests"
    );
    let digests = Case::with_digests(7, DigestAlgorithm::Blake3);
    assert_eq!(
        refused(&digests.bytes(), &ssh.trust()),
        "the image is not signed"
    );
    let signed = Case::signed(7, DigestAlgorithm::Blake3, &minisign);
    assert!(refused(&signed.bytes(), &ssh.trust()).contains("instead of the key"));
    // Both: either counts, and they do not disturb each other.
    signed.sign(&ssh);
    for key in [&minisign, &ssh] {
        open(&signed.bytes(), &key.trust()).unwrap();
    }
    let both = format!("{}\n", ssh.public);
    let trust = PublicKeys::parse(&both).unwrap();
    open(&signed.bytes(), &Verification::Signed(Arc::new(trust))).unwrap();
    // New digests count instead of the old ones, and nobody has signed them.
    signed.add_digests(DigestAlgorithm::Sha512_256);
    assert_eq!(
        refused(&signed.bytes(), &minisign.trust()),
        "the image is not signed"
    );
    signed.sign(&minisign);
    open(&signed.bytes(), &minisign.trust()).unwrap();
}

/// Sections with right checksums and other contents are refused, too.
#[test]
fn forged_sections_are_refused() {
    let [key, _] = keys();
    let case = Case::signed(7, DigestAlgorithm::Blake3, &key);
    let bytes = case.bytes();
    let container = case.container();
    for section in &container.sections {
        let (start, end) = (
            section.header_offset as usize,
            (section.payload_offset + section.length) as usize,
        );
        let header = SectionHeader::parse(bytes[start..start + 64].try_into().unwrap()).unwrap();
        let mut forged = bytes.clone();
        forged[end - 1] ^= 1;
        let payload = forged[start + 64..end].to_vec();
        let sealed = SectionHeader::seal(header.number, header.ty, header.compression, &payload);
        forged[start..start + 64].copy_from_slice(&sealed.encode());
        let read = open(&forged, &key.trust()).and_then(|image| read_all(&image));
        assert!(read.is_err(), "{}", section.ty);
    }
    // The same contents in another order of numbers.
    let schema = container
        .only_section_of_type(SectionType::METADATA_V2_SCHEMA)
        .unwrap();
    let start = schema.header_offset as usize;
    let mut forged = bytes.clone();
    forged[start + 48] ^= 1;
    assert!(open(&forged, &key.trust()).is_err());
}

/// Reading a part of an uncompressed block reads and compares its leaves, not the rest of the block.
#[test]
fn leaves_are_compared_one_by_one() {
    let [key, _] = keys();
    let case = Case::signed(0, DigestAlgorithm::Blake3, &key);
    let bytes = case.bytes();
    let container = case.container();
    let block = container.sections[0].clone();
    assert!(block.ty == SectionType::BLOCK && block.length == 0 || bytes.len() > 200_000);
    let leaf = 64 << 10;
    let damaged = block.payload_offset as usize + SectionHeader::LEN + 100;
    let mut changed = bytes.clone();
    changed[damaged] ^= 1;
    let image = open(&changed, &key.trust()).unwrap();
    let inode = image.find_path(b"noise").unwrap().unwrap();
    let expected = &contents()["noise"];
    let mut buffer = vec![0; 4096];
    let mut read = |at: usize| {
        image
            .read_at(inode, at as u64, &mut buffer)
            .map(|n| buffer[..n] == expected[at..at + n])
    };
    // The file begins somewhere in the block: the leaf with the change fails, later ones are right.
    let mut failed = 0;
    for at in (0..expected.len() - 4096).step_by(4096) {
        match read(at) {
            Ok(same) => assert!(same, "{at}"),
            Err(_) => failed += 1,
        }
    }
    assert!((1..=leaf / 4096 + 1).contains(&failed), "{failed}");
    // The checksum of the whole block cannot tell.
    let image = open(&changed, &Verification::Checksums).unwrap();
    let inode = image.find_path(b"noise").unwrap().unwrap();
    assert!(image.read_at(inode, 100_000, &mut buffer).is_err());
}

/// `trust_blocks` does not switch the digests off.
#[test]
fn trusted_blocks_are_verified() {
    let [key, _] = keys();
    let case = Case::signed(7, DigestAlgorithm::Blake3, &key);
    let mut bytes = case.bytes();
    let at = case.container().sections[0].payload_offset as usize + 20;
    bytes[at] ^= 1;
    let mut options = redwarfs_reader::OpenOptions::default();
    options.trust_blocks = true;
    options.verification = key.trust();
    let image = Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap();
    read_all(&image).unwrap_err();
}

#[test]
fn what_is_behind_the_image_decides_what_can_be_added() {
    let [key, _] = keys();
    let case = Case::new(7);
    let digests = case.digests(DigestAlgorithm::Blake3);
    // Digests of another image.
    let other = Case::new(0).digests(DigestAlgorithm::Blake3);
    let refused = add_digests(case.lock(), 0, &other).unwrap_err();
    assert!(
        matches!(refused, redwarfs_signature::Error::Stale),
        "{refused}"
    );
    let before = case.bytes();
    let added = add_digests(case.lock(), 0, &digests).unwrap();
    let after = case.bytes();
    assert!(after.starts_with(&before));
    assert_eq!(after.len() - before.len(), added.bytes as usize);
    assert_eq!(added.header_offset, before.len() as u64);
    // Recovery data behind them protects them. More digests and signatures behind that count all the same.
    let protection = redwarfs_recovery::Protection::percent(5.0);
    redwarfs_recovery::add(case.lock(), 0, &protection, &|_| {}, &go()).unwrap();
    let protected = case.bytes();
    add_digests(case.lock(), 0, &digests).unwrap();
    case.sign(&key);
    open(&case.bytes(), &key.trust()).unwrap();
    redwarfs_recovery::add(case.lock(), 0, &protection, &|_| {}, &go()).unwrap();
    open(&case.bytes(), &key.trust()).unwrap();
    std::fs::write(&case.path, &protected).unwrap();
    redwarfs_recovery::remove(&case.lock(), 0).unwrap();
    assert_eq!(case.bytes(), after);
    // A file that has other data behind it.
    std::fs::write(&case.path, [&after[..], b"more"].concat()).unwrap();
    add_digests(case.lock(), 0, &digests).unwrap_err();
    std::fs::write(&case.path, &after).unwrap();
    case.sign(&key);
    assert!(case.bytes().starts_with(&after));
}

/// A text that is not what it seems to be is an error, not a panic, and does not hide another signature.
#[test]
fn odd_signatures_are_passed_over() {
    let [minisign, ssh] = keys();
    let case = Case::with_digests(7, DigestAlgorithm::Blake3);
    let file = MemorySource::new(case.bytes());
    let stored = stored_digests(&file, &case.container()).unwrap().unwrap();
    let good = minisign.sign(&stored.message);
    let lines: Vec<&str> = good.lines().collect();
    let mut odd: Vec<(SignatureKind, Vec<u8>)> = vec![
        (SignatureKind::Minisign, Vec::new()),
        (SignatureKind::Minisign, vec![0xff; 100]),
        (SignatureKind::Ssh, good.clone().into_bytes()),
        (
            SignatureKind::Ssh,
            b"-----BEGIN SSH SIGNATURE-----\n".to_vec(),
        ),
    ];
    // The last line is a signature that is too short.
    let short = format!("{}\n{}\n{}\nAAAA\n", lines[0], lines[1], lines[2]);
    odd.push((SignatureKind::Minisign, short.into_bytes()));
    let comment = format!(
        "{}\n{}\ntrusted comment: other\n{}\n",
        lines[0], lines[1], lines[3]
    );
    odd.push((SignatureKind::Minisign, comment.into_bytes()));
    for (kind, text) in &odd {
        add_signature(case.lock(), 0, &stored, *kind, text).unwrap();
        assert!(open(&case.bytes(), &minisign.trust()).is_err());
        assert!(open(&case.bytes(), &ssh.trust()).is_err());
    }
    case.sign(&minisign);
    open(&case.bytes(), &minisign.trust()).unwrap();
    let file = MemorySource::new(case.bytes());
    let all = stored_signatures(&file, &case.container(), stored.header_offset).unwrap();
    assert_eq!(all.len(), odd.len() + 1);
}

/// The example of the format chapter.
#[test]
fn the_example_of_the_chapter() {
    let case = Case::new(7);
    let image = redwarfs_testkit::golden::golden("one").image;
    std::fs::copy(image, &case.path).unwrap();
    case.add_digests(DigestAlgorithm::Blake3);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let bytes = case.bytes();
    assert_eq!(bytes.len(), 2174 + 64 + 32 + 64 + 5 * 40 + 24);
    let chapter = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/format/13-digests-and-signatures.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    let mut dump = String::new();
    for (number, line) in (0..).zip(bytes[2174..].chunks(16)) {
        let words: Vec<String> = line.chunks(2).map(hex).collect();
        dump += &format!("{:08x}: {}\n", 2174 + number * 16, words.join(" "));
    }
    assert!(chapter.contains(&dump), "{dump}");
    let hash = hex(&DigestAlgorithm::Blake3.digest(&case.message()));
    assert!(chapter.contains(&hash), "{hash}");
}

/// A medium that fails is an error of the medium, not of the signature.
#[test]
fn failing_media_are_named() {
    let [key, _] = keys();
    let case = Case::signed(7, DigestAlgorithm::Blake3, &key);
    let source = FaultSource::new(MemorySource::new(case.bytes()));
    let digests = case.container().trailers[0].payload_offset;
    source.add(redwarfs_io::Fault::FailRange(digests..digests + 1));
    let mut options = redwarfs_reader::OpenOptions::default();
    options.verification = key.trust();
    let source: Arc<dyn Source> = Arc::new(source);
    let error = Image::from_source(source, &options).unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
}

#[test]
fn locked_files_are_not_signed_at_the_same_time() {
    let case = Case::new(7);
    let _first = case.lock();
    assert!(LockedFile::open(&case.path).is_err() || cfg!(not(unix)));
}
