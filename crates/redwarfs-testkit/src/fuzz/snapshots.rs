//! Tables of snapshots, hints, indexes of anchors, and starts of appends.

use std::io;

use redwarfs_format::hints::{HintTable, Hints};
use redwarfs_format::section::{
    CompressionId, Footer, GenerationId, Link, MatchTable, Section, SectionHeader, SectionType,
    SnapshotTable, encode_hidden_section,
};

/// Parses a body as the table of snapshots of a generation, and a payload as the start of an append.
pub fn snapshots(data: &[u8]) {
    let generation = GenerationId([0; 16]);
    let footer = Footer {
        open_offset: 0,
        open_length: 0,
        index: None,
    };
    let payload = |body: &[u8]| {
        let previous = body.get(24..32).is_some_and(|bytes| bytes != [0; 8]);
        let table = SnapshotTable {
            previous: previous.then_some(1),
            ..SnapshotTable::default()
        };
        let prelude = table.prelude(generation);
        let section = encode_hidden_section(0, SectionType::SNAPSHOTS, &prelude, body, &footer);
        section
            .get(SectionHeader::LEN..)
            .unwrap_or_default()
            .to_vec()
    };
    if let Ok(table) = SnapshotTable::parse(&payload(data), Some(generation)) {
        assert!(
            table.snapshots.len() * 96 <= data.len(),
            "more than there is"
        );
        let again = SnapshotTable::parse(&payload(&table.encode()), Some(generation));
        assert_eq!(again.expect("what was encoded is valid"), table);
    }
    let _ = SnapshotTable::parse(data, None);
    let header = SectionHeader::seal(0, SectionType::LINK, CompressionId::NONE, data);
    if let Ok(link) = Link::parse(&[&header.encode()[..], data].concat()) {
        let again = Link::parse(&link.encode(1)).expect("what was encoded is valid");
        assert_eq!(again, link);
    }
}

/// Parses a body as the hints of a generation, and a text as ranges of files. What was parsed is encoded to the same again.
pub fn hints(data: &[u8]) {
    let generation = GenerationId([0; 16]);
    let footer = Footer {
        open_offset: 0,
        open_length: 0,
        index: None,
    };
    let prelude = HintTable::prelude(generation);
    let payload = |body: &[u8]| {
        let section = encode_hidden_section(0, SectionType::HINTS, &prelude, body, &footer);
        section
            .get(SectionHeader::LEN..)
            .unwrap_or_default()
            .to_vec()
    };
    if let Ok(table) = HintTable::parse(&payload(data), generation) {
        assert!(table.blocks.len() * 8 <= data.len(), "more than there is");
        let again = HintTable::parse(&payload(&table.encode()), generation);
        assert_eq!(again.expect("what was encoded is valid"), table);
    }
    let _ = HintTable::parse(data, generation);
    if let Ok(hints) = Hints::parse(data) {
        assert!(hints.list.len() <= data.len(), "more than there is");
        let again = Hints::parse(&hints.encode());
        assert_eq!(again.expect("what was encoded is valid"), hints);
    }
}

/// Parses a payload as an index of anchors, and searches it: at most so much is read as is there.
pub fn match_table(data: &[u8]) {
    let Some(start) = data.first_chunk::<{ MatchTable::START }>() else {
        return;
    };
    let section = Section {
        position: 0,
        number: 0,
        ty: SectionType::MATCH,
        compression: None,
        header_offset: 1 << 30,
        payload_offset: (1 << 30) + SectionHeader::LEN as u64,
        length: data.len() as u64,
        header: None,
    };
    let Ok(table) = MatchTable::parse(start, &section) else {
        return;
    };
    assert!(
        table
            .previous
            .is_none_or(|previous| previous < section.header_offset)
    );
    let read = |at: u64, out: &mut [u8]| -> io::Result<()> {
        let end: io::Error = io::ErrorKind::UnexpectedEof.into();
        let found = usize::try_from(at)
            .ok()
            .and_then(|at| data.get(at..)?.get(..out.len()));
        out.copy_from_slice(found.ok_or(end)?);
        Ok(())
    };
    for hash in [0, 1, 0x1234_5678, u32::MAX] {
        let mut found = Vec::new();
        if table.find(hash, 8, &read, &mut found).is_ok() {
            assert!(found.len() <= 8, "more than was asked for");
        }
    }
}
