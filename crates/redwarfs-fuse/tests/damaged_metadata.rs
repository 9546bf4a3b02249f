//! A damaged table of metadata that is decoded when it is needed: what needs it fails, and the mount stays.

mod support;

use std::fs;
use std::io::Error;

use redwarfs_format::section::SectionType;
use redwarfs_fuse::MountOptions;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::mutate::Parts;
use rustix::io::Errno;
use support::{Gate, Maker, Mount, can_mount};

const FILES: usize = 9000;

fn name(file: usize) -> String {
    format!("{file:04}-{}", "x".repeat(120))
}

#[test]
fn what_needs_a_damaged_table_fails() {
    if !can_mount("what_needs_a_damaged_table_fails") {
        return;
    }
    let mut maker = Maker::new();
    for file in 0..FILES {
        maker.file(name(file), "");
    }
    let mut parts = Parts::of(&maker.image().0);
    parts.compress_metadata("lzma:level=1", 4);
    let mut open = OpenOptions::default();
    open.lazy_metadata = true;
    // In the last table, which opening does not need.
    let payload = parts.payload(SectionType::METADATA_V2);
    let payload = payload.expect("it has metadata");
    let at = payload.len() * 15 / 16;
    payload[at] ^= 0x55;
    let source = Gate::new(parts.assemble());
    let whole = Image::from_source(source.clone(), &OpenOptions::default());
    let e = whole.expect_err("damaged").to_string();
    assert!(e.starts_with("corrupt image: "), "{e}");
    let mount = Mount::with(source, &open, &MountOptions::default());
    let is_error = |e: Error| assert_eq!(e.raw_os_error(), Some(Errno::IO.raw_os_error()), "{e}");
    for _ in 0..3 {
        let root = fs::metadata(mount.point()).expect("it needs other tables");
        assert!(root.is_dir());
        is_error(fs::metadata(mount.path(name(FILES / 3))).expect_err("damaged"));
        let mut listed = fs::read_dir(mount.point()).expect("it can be opened");
        is_error(listed.find_map(Result::err).expect("damaged"));
    }
}
