//! Small files that promise more than they have.

use std::sync::Arc;

use redwarfs_format::recovery::{Geometry, HashPage, HeaderPage, PAGE, shard_hash};
use redwarfs_io::MemorySource;
use redwarfs_recovery::{Error, RepairingSource, locate};

use crate::support::go;

/// Pages of recovery data of 1 KiB of zeros at `start`, in a file that begins at `base`.
fn pages(start: i64, previous: u64, base: u64) -> Vec<u8> {
    let geometry = Geometry::new(start, 1024, 100.0, Some(1024)).unwrap();
    let mut header = HeaderPage::lay_out(geometry).unwrap();
    (header.previous, header.index) = (previous, 1);
    let hashes = vec![shard_hash(&[0; 1024]); geometry.all_shards() as usize];
    header.hashes_id = HashPage::identity(&hashes);
    let mut file = vec![0; (header.image_size - base) as usize];
    let mut put = |at: u64, page: &[u8; PAGE]| {
        file[(at - base) as usize..][..PAGE].copy_from_slice(page);
    };
    for (copy, at) in (0..).zip(header.copies()) {
        put(at, &header.encode(copy));
    }
    for at in [header.hashes_a, header.hashes_b] {
        put(at, &HashPage::encode(&hashes, 0, at));
    }
    file
}

/// Nobody makes room for what cannot come back.
#[test]
fn more_is_lost_in_front_than_parity_can_restore() {
    let start = 1_u64 << 47;
    let file = Arc::new(MemorySource::new(pages(start.cast_signed(), 1, start)));
    let data = locate(&*file, &go()).unwrap();
    assert!(matches!(data.lost_at_start(), Err(Error::LostTooMuch(lost)) if lost == start));
    let source = RepairingSource::new(file, &data, Box::new(|_| {}));
    assert!(matches!(source, Err(Error::LostTooMuch(_))));
}

/// A file has the checksums of a part that it names, or the part does not count.
#[test]
fn an_older_part_has_more_checksums_than_the_file_has_bytes() {
    let length = 1_u64 << 39;
    let geometry = Geometry::new(4096 - length.cast_signed(), length, 0.001, Some(4096)).unwrap();
    let mut old = HeaderPage::lay_out(geometry).unwrap();
    (old.index, old.leading) = (1, length - 4096);
    let [.., last] = old.copies();
    let mut file = pages(old.image_size.cast_signed(), old.section, last);
    file[..PAGE].copy_from_slice(&old.encode(3));
    let data = locate(&MemorySource::new(file), &go()).unwrap();
    assert_eq!(data.geometries().count(), 1);
    assert!(data.bytes() < 1 << 20);
}
