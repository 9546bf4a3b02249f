//! Tables of snapshots, and starts of appends.

use redwarfs_format::section::{
    CompressionId, Footer, GenerationId, Link, SectionHeader, SectionType, SnapshotTable,
    encode_hidden_section,
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
