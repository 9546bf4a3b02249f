//! Older snapshots of a file, through the library.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs::io::MemorySource;
use redwarfs::{ErrorKind, Image, OpenOptions, SnapshotChoice};

fn nights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/snapshots/nights.dwarfs")
}

fn options(snapshot: &str) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.snapshot = Some(SnapshotChoice::from(snapshot));
    options
}

#[test]
fn a_snapshot_is_opened_by_name_number_and_time() {
    let bytes = std::fs::read(nights()).unwrap();
    let size = |image: Image| image.metadata("docs/log").unwrap().size;
    assert_eq!(size(Image::open(nights()).unwrap()), 5_600);
    for (snapshot, wanted) in [
        ("night-1", 700),
        ("3", 2_100),
        ("night-4", 2_800),
        ("1970-01-01T00:20", 700),
        ("1970-01-01 01:16:40+01:00", 700),
        ("1971-01-01", 5_600),
    ] {
        let image = Image::open_with(nights(), &options(snapshot)).unwrap();
        assert_eq!(size(image), wanted, "{snapshot}");
        let source = Arc::new(MemorySource::new(bytes.clone()));
        let image = Image::from_source(source, &options(snapshot)).unwrap();
        assert_eq!(size(image), wanted, "{snapshot}");
    }
}

#[test]
fn a_snapshot_that_is_not_there_is_an_error() {
    for snapshot in ["night-6", "6", "", "1970-01-01", "99999999999999999999"] {
        let e = Image::open_with(nights(), &options(snapshot)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        let wanted = format!("there is no snapshot '{snapshot}'; there are ");
        assert!(e.to_string().contains(&wanted), "{e}");
    }
}
