#![allow(clippy::unwrap_used)]

use super::*;
use crate::section::{CompressionId, GenerationId, SectionType, Version};

fn sample() -> Digests {
    let entry = |ty, offset, byte| SectionDigest {
        ty,
        offset,
        digest: [byte; DIGEST_LEN],
    };
    Digests {
        algorithm: DigestAlgorithm::Blake3,
        time: 1_700_000_000,
        version: Some(Version::WRITTEN),
        generation: GenerationId([7; 16]),
        entries: vec![
            entry(SectionType::BLOCK, 0, 1),
            entry(SectionType::METADATA_V2_SCHEMA, 200_000, 2),
            entry(SectionType::METADATA_V2, 200_300, 3),
            entry(SectionType::SECTION_INDEX, 1 << 40, 4),
        ],
        leaves: Some(Leaves {
            log_size: Leaves::WRITTEN,
            groups: vec![LeafGroup {
                entry: 0,
                digests: vec![[8; 32], [9; 32]],
            }],
        }),
    }
}

#[test]
fn messages_come_back() {
    let mut digests = sample();
    for version in [None, Some(Version::WRITTEN)] {
        for leaves in [None, digests.leaves.clone()] {
            for algorithm in [DigestAlgorithm::Blake3, DigestAlgorithm::Sha512_256] {
                digests.version = version;
                digests.leaves = leaves.clone();
                digests.algorithm = algorithm;
                let message = encode_message(&digests);
                assert_eq!(parse_message(&message).unwrap(), digests);
                for len in 0..message.len() {
                    parse_message(&message[..len]).unwrap_err();
                }
            }
        }
    }
}

#[test]
fn the_layout_is_that_of_the_chapter() {
    let message = encode_message(&sample());
    assert_eq!(message.len(), 32 + 64 + 4 * 40 + 8 + 64);
    assert_eq!(message[..8], *b"DWDG\x01\0\x20\0");
    let body = &message[32..];
    assert_eq!(body[..8], [2, 0, 0, 0, 32, 0, 0, 0]);
    assert_eq!(body[8..16], 4_u64.to_le_bytes());
    assert_eq!(body[16..24], [16, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(body[24..32], 256_u64.to_le_bytes());
    assert_eq!(body[32..40], 1_700_000_000_u64.to_le_bytes());
    assert_eq!(body[40..64], [&[2, 5][..], &[0; 22]].concat());
    assert_eq!(
        body[64 + 40..64 + 48],
        (7 << 48 | 200_000_u64).to_le_bytes()
    );
    assert_eq!(message[256..264], [0, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn contradictions_are_refused() {
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = encode_message(&sample());
        change(&mut message);
        parse_message(&message).unwrap_err().to_string()
    };
    assert!(refused(&|m| m[0] = b'X').contains("tag"));
    assert!(refused(&|m| m[4] = 2).contains("newer"));
    assert!(refused(&|m| m[11] = 1).contains("newer"));
    assert!(refused(&|m| m[12] = 1).contains("generation"));
    assert!(refused(&|m| m[32] = 3).contains("algorithm 3"));
    assert!(refused(&|m| m[36] = 31).contains("size"));
    assert!(refused(&|m| m[47] = 0xff).contains("cut off"));
    assert!(refused(&|m| m[48] = 31).contains("leaves"));
    // The second section in front of the first one, leaves of the schema, and too many of them.
    assert!(refused(&|m| m[96 + 40..96 + 46].fill(0)).contains("ascending"));
    assert!(refused(&|m| m[256] = 1).contains("no block"));
    assert!(refused(&|m| m[263] = 0xff).contains("cut off"));
}

/// No change of one byte makes a message that means the same, except in the fields that nothing means.
#[test]
fn every_byte_counts() {
    let digests = sample();
    let message = encode_message(&digests);
    for at in 0..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 0x10;
        let ignored = at == 5 || (8..10).contains(&at) || (32 + 42..32 + 64).contains(&at);
        match parse_message(&changed) {
            Ok(other) => assert_eq!(other == digests, ignored, "{at}"),
            Err(_) => assert!(!ignored, "{at}"),
        }
    }
}

#[test]
fn sections_have_the_digests_of_the_chapter() {
    let payload = b"payload";
    let header = SectionHeader::seal(3, SectionType::BLOCK, CompressionId::NONE, payload);
    let digest = |algorithm| {
        let mut digester = SectionDigester::new(algorithm, &header);
        digester.update(&payload[..2]);
        digester.update(&payload[2..]);
        digester.finish()
    };
    assert_eq!(digest(DigestAlgorithm::Sha512_256), header.sha);
    let section = [&header.encode()[..], payload].concat();
    assert_eq!(
        digest(DigestAlgorithm::Sha512_256),
        DigestAlgorithm::Sha512_256.digest(&section[0x28..])
    );
    assert_eq!(
        digest(DigestAlgorithm::Blake3),
        DigestAlgorithm::Blake3.digest(&section[0x30..])
    );
    let text: String = DigestAlgorithm::Blake3
        .digest(b"")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert!(
        text.starts_with("af1349b9f5f9a1a6a0404dea36dcc949"),
        "{text}"
    );
}

#[test]
fn leaves_fit_the_length_of_the_block() {
    let digests = sample();
    let mut header = SectionHeader::seal(0, SectionType::BLOCK, CompressionId::NONE, b"");
    for (length, fits) in [
        (0, false),
        (65_536, false),
        (65_537, true),
        (131_072, true),
        (131_073, false),
    ] {
        header.length = length;
        assert_eq!(digests.leaves_of(0, &header).is_ok(), fits, "{length}");
    }
    header.length = 100_000;
    assert_eq!(digests.leaves_of(0, &header).unwrap().unwrap().len(), 2);
    assert_eq!(digests.leaves_of(1, &header).unwrap(), None);
    header.compression = CompressionId::ZSTD;
    assert_eq!(digests.leaves_of(0, &header).unwrap(), None);
}

#[test]
fn signatures_come_back() {
    for kind in [SignatureKind::Minisign, SignatureKind::Ssh] {
        let body = SignatureBody {
            kind,
            digests: 1234,
            signature: b"text",
        };
        let bytes = body.encode().unwrap();
        assert_eq!(SignatureBody::parse(&bytes).unwrap(), body);
        for len in 0..bytes.len() {
            SignatureBody::parse(&bytes[..len]).unwrap_err();
        }
    }
    let long = vec![0; SignatureBody::MOST + 1];
    let body = SignatureBody {
        kind: SignatureKind::Ssh,
        digests: 0,
        signature: &long,
    };
    body.encode().unwrap_err();
    SignatureBody::parse(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
}
