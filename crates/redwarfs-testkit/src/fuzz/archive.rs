//! The fuzz target that reads archives.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use redwarfs_archive::{ArchiveOptions, Format, Whiteouts, read_stream};
use redwarfs_writer::{FileType, SilentProgress, Source, Symlinks};

/// Bytes of each file that are read, at least.
const READ: u64 = 1 << 20;

/// Reads an archive: a byte with format and whiteouts, the archive.
pub fn archive_input(data: &[u8]) {
    let Some((&first, archive)) = data.split_first() else {
        return;
    };
    let formats = [
        Format::Auto,
        Format::Tar,
        Format::Cpio,
        Format::Ar,
        Format::Deb,
        Format::Rpm,
    ];
    let whiteouts = [Whiteouts::Keep, Whiteouts::Apply, Whiteouts::Overlay];
    let options = ArchiveOptions {
        format: match first {
            63 => Format::Oci,
            first => formats[usize::from(first) % formats.len()],
        },
        whiteouts: whiteouts[usize::from(first / 8) % whiteouts.len()],
        memory_limit: Some(64 << 20),
        ..ArchiveOptions::default()
    };
    let progress = SilentProgress::default();
    let stop = AtomicBool::new(false);
    let Ok(source) = read_stream(archive, "archive", &options, &progress, &stop) else {
        return;
    };
    let source = match first / 64 {
        0 => source.with_symlinks(Symlinks::Drop),
        _ => source,
    };
    visit(&source);
}

/// Lists everything, and reads the beginning of every file.
fn visit(source: &dyn Source) {
    let root = source.root().expect("there is a root");
    assert_eq!(root.kind, FileType::Directory);
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let items = source.read_dir(&path).expect("a directory can be listed");
        let mut names = HashSet::new();
        for item in items {
            let name = item.name;
            let bad = name.is_empty() || name == b"." || name == b"..";
            assert!(!bad && !name.contains(&b'/') && !name.contains(&0));
            assert!(names.insert(name.clone()), "a name appears twice");
            let meta = item.meta.expect("entries have attributes");
            assert!(meta.mtime.nsec < 1_000_000_000);
            assert!(meta.allocated <= meta.size && meta.permissions < 0o10000);
            let whole = match path.is_empty() {
                true => name,
                false => [&path[..], b"/", &name].concat(),
            };
            match meta.kind {
                FileType::Directory => todo.push(whole),
                FileType::Regular => contents(source, &whole, meta.size),
                FileType::Symlink => assert!(meta.target.is_some()),
                _ => {}
            }
        }
    }
}

fn contents(source: &dyn Source, path: &[u8], size: u64) {
    let file = source.open(path).expect("a file can be opened");
    assert_eq!(file.stamp().expect("it has a stamp").size, size);
    let mut buffer = vec![0; 4096];
    let (mut at, end) = (0, size.min(READ));
    while at < end {
        let n = file.read_at(at, &mut buffer).expect("contents can be read");
        assert!(n > 0, "a file ends early");
        at += n as u64;
    }
    assert_eq!(
        file.read_at(size, &mut buffer)
            .expect("the end can be read"),
        0
    );
    let (mut at, mut data) = (0, 0);
    while let Some(extent) = file.next_data(at, size).expect("extents are known") {
        assert!(extent.offset >= at && extent.size > 0);
        at = extent.offset.checked_add(extent.size).expect("an end");
        assert!(at <= size);
        data += extent.size;
        if data > READ {
            break;
        }
    }
}
