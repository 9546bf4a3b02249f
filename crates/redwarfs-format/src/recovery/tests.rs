use super::*;

const MIB: u64 = 1 << 20;

/// The table of the specification: length, percentage, shard size, groups, largest group, parity.
#[test]
fn geometry_by_size() {
    for (length, percent, shard, groups, data, parity) in [
        (1_000_000, 5.0, 1 << 10, 1, 977, 49),
        (50_000_000, 5.0, 4 << 10, 1, 12_208, 611),
        (1_000_000_000, 5.0, 16 << 10, 15, 4_070, 204),
        (10_000_000_000, 5.0, 64 << 10, 150, 1_018, 51),
        (100_000_000_000, 5.0, 64 << 10, 1_491, 1_024, 52),
        (100_000_000_000, 1.0, 64 << 10, 1_491, 1_024, 11),
    ] {
        let geometry = Geometry::new(0, length, percent, None).unwrap();
        assert_eq!(geometry.shard_size(), shard, "{length}");
        assert_eq!(geometry.groups(), groups, "{length}");
        assert_eq!(geometry.data_of(ShardGroup(0)), data, "{length}");
        assert_eq!(geometry.parity(), parity, "{length}");
        let all: u64 = (0..groups)
            .map(|g| u64::from(geometry.data_of(ShardGroup(g))))
            .sum();
        assert_eq!(all, geometry.data_shards());
        for shard in [
            0,
            1,
            geometry.data_shards() - 1,
            geometry.data_shards(),
            geometry.all_shards() - 1,
        ] {
            let (group, position) = geometry.place_of(shard);
            let found = match position.checked_sub(geometry.data_of(group)) {
                None => geometry.data_shard(group, position),
                Some(row) => geometry.parity_shard(group, row),
            };
            assert_eq!(found, shard);
        }
        let (at, there) = geometry.data_range(geometry.data_shards() - 1);
        assert_eq!(at + there as u64, length);
    }
}

#[test]
fn impossible_geometries() {
    let new = |length, percent, shard| Geometry::new(0, length, percent, shard);
    assert!(new(0, 5.0, None).is_err());
    assert!(new(1 << 49, 5.0, None).is_err());
    assert!(new(MIB, 5.0, Some(1000)).is_err());
    assert!(new(MIB, 5.0, Some(512)).is_err());
    assert!(new(MIB, 5.0, Some(2 << 20)).is_err());
    assert!(new(64 * MIB, 5.0, Some(1 << 10)).is_err());
    assert!(new(64 * MIB, 1e300, None).is_err());
    assert!(new(64 * MIB, f64::NAN, None).unwrap().parity() == 1);
    assert!(new(1, 0.001, None).unwrap().parity() == 1);
    assert!(new(100 * MIB, 100.0, None).is_ok());
    let parts =
        |shards, groups, parity| Geometry::from_parts(1024, shards, groups, parity, 0, 10_000);
    assert!(parts(10, 1, 1).is_ok());
    for (shards, groups, parity) in [
        (9, 1, 1),
        (11, 1, 1),
        (10, 2, 1),
        (10, 0, 1),
        (10, 1, 0),
        (10, 1, u32::MAX),
    ] {
        assert!(
            parts(shards, groups, parity).is_err(),
            "{shards} {groups} {parity}"
        );
    }
}

#[test]
fn pages_round_trip() {
    let geometry = Geometry::new(-77, 3 * MIB, 5.0, None).unwrap();
    let mut header = HeaderPage::lay_out(geometry).unwrap();
    assert_eq!(header.section, 3 * MIB - 77);
    header.leading = 77;
    header.hashes_id = [7; 16];
    for (slot, (start, length)) in header.blanks.iter_mut().zip([(-77, 7), (-70, 1), (-9, 9)]) {
        *slot = Blank { start, length };
    }
    let copies = header.copies();
    assert_eq!(copies[0], header.section + 96);
    assert_eq!(copies[3] + PAGE as u64 + 24, header.image_size);
    for copy in 0..HeaderPage::COPIES {
        let page = header.encode(copy);
        assert_eq!(
            HeaderPage::parse(&page).unwrap(),
            (header, copies[copy as usize])
        );
        let kind = page_kind(&page);
        assert_eq!(kind, Some((PageKind::Header, copies[copy as usize] as i64)));
        for at in 0..PAGE {
            let mut damaged = page;
            damaged[at] ^= 1;
            assert!(HeaderPage::parse(&damaged).is_err(), "{at}");
        }
    }
    // The parity goes round the page in its middle.
    let rows = u64::from(geometry.first_rows());
    let first = geometry.data_shards();
    assert_eq!(header.parity_at(first), header.parity);
    assert_eq!(header.parity_at(first + rows - 1) + 1024, copies[2]);
    assert_eq!(header.parity_at(first + rows), copies[2] + PAGE as u64);

    let hashes: Vec<u64> = (0..geometry.all_shards()).map(|n| n * n).collect();
    let mut found = vec![None; hashes.len()];
    for page in 0..header.hash_pages as u32 {
        let bytes = HashPage::encode(&hashes, page, header.hashes_b);
        assert!(!HashPage::read(&bytes, page, header.hashes_a, &mut found));
        assert!(!HashPage::read(
            &bytes,
            page + 1,
            header.hashes_b,
            &mut found
        ));
        assert!(HashPage::read(&bytes, page, header.hashes_b, &mut found));
        assert!(HeaderPage::parse(&bytes).is_err());
    }
    let found: Vec<u64> = found.into_iter().map(Option::unwrap).collect();
    assert_eq!(found, hashes);
    assert_ne!(
        HashPage::identity(&hashes),
        HashPage::identity(&hashes[1..])
    );
}

/// A page with the right checksum whose numbers nobody can have meant.
#[test]
fn sealed_nonsense_is_refused() {
    let geometry = Geometry::new(0, MIB, 5.0, None).unwrap();
    let mut header = HeaderPage::lay_out(geometry).unwrap();
    header.index = header.section - 100;
    let page = header.encode(0);
    let position = header.copies()[0].cast_signed();
    for at in [
        32, 36, 40, 48, 52, 56, 64, 72, 80, 88, 96, 104, 112, 128, 152,
    ] {
        for value in [0_u64, 1, 0x1_0000, 1 << 42, 1 << 47, 1 << 63, u64::MAX] {
            let mut edited = page;
            let width = if [32, 36, 48, 52].contains(&at) { 4 } else { 8 };
            edited[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            if edited == page {
                continue;
            }
            pages::seal(&mut edited, 0, 0, position);
            let parsed = HeaderPage::parse(&edited);
            // The index is somewhere in front; bytes in front of the image need not be protected.
            let fits = at == 112 && value < header.section || at == 152;
            assert_eq!(parsed.is_ok(), fits, "{at} {value}: {parsed:?}");
        }
    }
    // Ranges that count as zeros have to lie in front of the image, in order.
    let geometry = Geometry::new(-100, MIB, 5.0, None).unwrap();
    let mut header = HeaderPage::lay_out(geometry).unwrap();
    header.leading = 100;
    for (ranges, fits) in [
        (&[][..], true),
        (&[(-100, 100)], true),
        (&[(-100, 50), (-50, 50)], true),
        (&[(-101, 1)], false),
        (&[(-100, 101)], false),
        (&[(-100, u64::MAX)], false),
        (&[(0, 1)], false),
        (&[(i64::MIN, 1)], false),
        (&[(-50, 0)], false),
        (&[(-50, 50), (-100, 50)], false),
        (&[(-100, 50), (-51, 1)], false),
        (&[(0, 0), (-100, 50)], false),
    ] {
        header.blanks = Default::default();
        for (slot, (start, length)) in header.blanks.iter_mut().zip(ranges) {
            (slot.start, slot.length) = (*start, *length);
        }
        let parsed = HeaderPage::parse(&header.encode(0));
        assert_eq!(parsed.is_ok(), fits, "{ranges:?}: {parsed:?}");
    }
    let mut moved = page;
    pages::seal(&mut moved, 0, 1, position);
    assert!(HeaderPage::parse(&moved).is_err());
    pages::seal(&mut moved, 0, 0, position - 1);
    assert!(HeaderPage::parse(&moved).is_err());
    pages::seal(&mut moved, 0, 0, -1);
    assert!(HeaderPage::parse(&moved).is_err());
}
