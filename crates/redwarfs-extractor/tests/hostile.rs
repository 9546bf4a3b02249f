//! Images that try to write outside of the target.

#![cfg(unix)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_extractor::{
    ExtractOptions, Silent, TarFormat, extract_to_archive, extract_to_directory,
};
use redwarfs_format::metadata::{Chunk, DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions};

const DIR: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_644;

/// An image with one block, `contents`.
fn image(metadata: &Metadata) -> redwarfs_format::Result<Image> {
    image_with(metadata, 1)
}

/// An image with such blocks.
fn image_with(metadata: &Metadata, blocks: usize) -> redwarfs_format::Result<Image> {
    let frozen = freeze(metadata)?;
    let mut bytes = Vec::new();
    let mut sections: Vec<(SectionType, &[u8])> = vec![(SectionType::BLOCK, b"contents"); blocks];
    sections.push((SectionType::METADATA_V2_SCHEMA, &frozen.schema));
    sections.push((SectionType::METADATA_V2, &frozen.data));
    for (number, (ty, payload)) in (0..).zip(sections) {
        bytes.extend_from_slice(
            &SectionHeader::seal(number, ty, CompressionId::NONE, payload).encode(),
        );
        bytes.extend_from_slice(payload);
    }
    Image::from_source(Arc::new(MemorySource::new(bytes)), &OpenOptions::default())
}

/// The root with a symbolic link `target`, and a file, under the given names.
fn flat(link_name: &[u8], target: &[u8], file_name: &[u8]) -> Metadata {
    Metadata {
        chunks: vec![Chunk {
            block: 0,
            offset: 0,
            size: 8,
        }],
        directories: vec![
            Directory {
                parent_entry: 0,
                first_entry: 1,
                self_entry: 0,
            },
            Directory {
                parent_entry: 0,
                first_entry: 3,
                self_entry: 0,
            },
        ],
        inodes: (0..3)
            .map(|mode_index| InodeData {
                mode_index,
                ..InodeData::default()
            })
            .collect(),
        chunk_table: vec![0, 1],
        symlink_table: vec![0],
        uids: vec![0],
        gids: vec![0],
        modes: vec![DIR, LINK, FILE],
        names: vec![link_name.to_vec(), file_name.to_vec()],
        symlinks: vec![target.to_vec()],
        block_size: 4096,
        total_fs_size: 8,
        dir_entries: Some(vec![
            DirEntry {
                name_index: 0,
                inode_num: 0,
            },
            DirEntry {
                name_index: 0,
                inode_num: 1,
            },
            DirEntry {
                name_index: 1,
                inode_num: 2,
            },
        ]),
        ..Metadata::default()
    }
}

/// A directory and a symbolic link, both called `twin`, and a file in the directory.
fn twins(target: &[u8]) -> Metadata {
    Metadata {
        directories: vec![
            Directory {
                parent_entry: 0,
                first_entry: 1,
                self_entry: 0,
            },
            Directory {
                parent_entry: 0,
                first_entry: 3,
                self_entry: 2,
            },
            Directory {
                parent_entry: 0,
                first_entry: 4,
                self_entry: 0,
            },
        ],
        inodes: [0, 0, 1, 2]
            .map(|mode_index| InodeData {
                mode_index,
                ..InodeData::default()
            })
            .to_vec(),
        names: vec![b"twin".to_vec(), b"passwd".to_vec()],
        dir_entries: Some(vec![
            DirEntry {
                name_index: 0,
                inode_num: 0,
            },
            DirEntry {
                name_index: 0,
                inode_num: 2,
            },
            DirEntry {
                name_index: 0,
                inode_num: 1,
            },
            DirEntry {
                name_index: 1,
                inode_num: 3,
            },
        ]),
        ..flat(b"", target, b"")
    }
}

/// A directory that contains itself.
fn cycle() -> Metadata {
    let mut metadata = twins(b"x");
    metadata.names = vec![b"a".to_vec(), b"b".to_vec()];
    metadata.dir_entries = Some(vec![
        DirEntry {
            name_index: 0,
            inode_num: 0,
        },
        DirEntry {
            name_index: 0,
            inode_num: 2,
        },
        DirEntry {
            name_index: 1,
            inode_num: 1,
        },
        DirEntry {
            name_index: 1,
            inode_num: 1,
        },
    ]);
    metadata
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Extracts and checks that nothing appears beside the target.
fn refused(metadata: &Metadata, what: &str) {
    let Ok(image) = image(metadata) else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("a/target");
    std::fs::create_dir_all(&target).unwrap();
    let result = extract_to_directory(&image, &target, &ExtractOptions::default(), &Silent);
    assert!(result.is_err(), "{what}: {result:?}");
    assert_eq!(
        (
            entries(dir.path()),
            entries(&dir.path().join("a")),
            entries(&target)
        ),
        (1, 1, 0),
        "{what}"
    );
    let mut out = Vec::new();
    let result = extract_to_archive(
        &image,
        &mut out,
        &TarFormat::Pax.into(),
        &ExtractOptions::default(),
        &Silent,
    );
    assert!(result.is_err() && out.is_empty(), "{what}: {result:?}");
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in [
        &b".."[..],
        b".",
        b"",
        b"a/b",
        b"/etc",
        b"../../x",
        b"a\0b",
        b"/",
    ] {
        refused(
            &flat(b"l", b"x", name),
            &format!("file {}", name.escape_ascii()),
        );
        refused(
            &flat(name, b"x", b"~f"),
            &format!("link {}", name.escape_ascii()),
        );
    }
    refused(&cycle(), "cycle");
}

#[test]
fn links_of_the_image_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().to_str().unwrap().as_bytes();
    refused(&twins(path), "twins");
    refused(&flat(b"same", path, b"same"), "same name");
    assert_eq!(entries(outside.path()), 0);

    // A link alone, wherever it leads, is created as it is.
    let target = tempfile::tempdir().unwrap();
    let image = image(&flat(b"link", path, b"name")).unwrap();
    extract_to_directory(&image, target.path(), &ExtractOptions::default(), &Silent).unwrap();
    assert_eq!(
        std::fs::read_link(target.path().join("link")).unwrap(),
        outside.path()
    );
    assert_eq!(
        std::fs::read(target.path().join("name")).unwrap(),
        b"contents"
    );
}

#[test]
fn links_in_the_target_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "old").unwrap();
    let target = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path().join("precious"), target.path().join("name"))
        .unwrap();
    let image = image(&flat(b"link", b"x", b"name")).unwrap();
    extract_to_directory(&image, target.path(), &ExtractOptions::default(), &Silent).unwrap();
    assert_eq!(
        std::fs::read(outside.path().join("precious")).unwrap(),
        b"old"
    );
    assert_eq!(
        std::fs::read(target.path().join("name")).unwrap(),
        b"contents"
    );
}

/// `files` files in a block each, `dirs` directories, and a symbolic link in the last one of them that cannot
/// be made.
fn many(dirs: u32, files: u32) -> Metadata {
    let last = 1 + dirs + files;
    let directory = |first_entry, self_entry| Directory {
        parent_entry: 0,
        first_entry,
        self_entry,
    };
    let mut directories = vec![directory(1, 0)];
    directories.extend((1..=dirs).map(|entry| directory(last, entry)));
    directories.push(directory(last + 1, 0));
    // Inodes: directories, the link, files.
    let inode = |entry: u32| entry + u32::from(entry > dirs);
    let mut entries: Vec<DirEntry> = (0..last)
        .map(|entry| DirEntry {
            name_index: entry.saturating_sub(1),
            inode_num: inode(entry),
        })
        .collect();
    entries.push(DirEntry {
        name_index: 0,
        inode_num: dirs + 1,
    });
    Metadata {
        chunks: (0..files)
            .map(|block| Chunk {
                block,
                offset: 0,
                size: 8,
            })
            .collect(),
        directories,
        inodes: (0..2 + dirs + files)
            .map(|inode| InodeData {
                mode_index: u32::from(inode > dirs) + u32::from(inode > dirs + 1),
                ..InodeData::default()
            })
            .collect(),
        chunk_table: (0..=files).collect(),
        names: (1..last).map(|n| format!("{n:05}").into()).collect(),
        dir_entries: Some(entries),
        total_fs_size: u64::from(files) * 8,
        ..flat(b"", &[b'x'; 5000], b"")
    }
}

/// Blocks are decoded while directories are made: what goes wrong there ends all of it.
#[test]
fn no_file_is_written_if_an_entry_cannot_be_made() {
    for memory in [1, 512 << 20] {
        let image = image_with(&many(3000, 30), 30).unwrap();
        let (done, result) = std::sync::mpsc::channel();
        // Not to be waited for if it hangs.
        std::thread::spawn(move || {
            let dir = tempfile::tempdir().unwrap();
            let mut options = ExtractOptions::default();
            options.memory = memory;
            let error = extract_to_directory(&image, dir.path(), &options, &Silent).unwrap_err();
            let files = std::fs::read_dir(dir.path()).unwrap().filter(|entry| {
                let kind = entry.as_ref().unwrap().file_type();
                kind.unwrap().is_file()
            });
            done.send((error.to_string(), files.count())).unwrap();
        });
        let (error, files) = result.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(error.contains("cannot create symbolic link"), "{error}");
        assert_eq!(files, 0);
    }
}

#[test]
fn chunks_beyond_their_block_are_errors() {
    let cases = [
        Chunk {
            block: 1,
            offset: 0,
            size: 8,
        },
        Chunk {
            block: 0,
            offset: 1,
            size: 8,
        },
        Chunk {
            block: 0,
            offset: u32::MAX,
            size: 8,
        },
        Chunk {
            block: u32::MAX,
            offset: 0,
            size: 8,
        },
    ];
    for chunk in cases {
        let mut metadata = flat(b"link", b"x", b"name");
        metadata.chunks = vec![chunk];
        let Ok(image) = image(&metadata) else {
            continue;
        };
        let target = tempfile::tempdir().unwrap();
        let mut options = ExtractOptions::default();
        assert!(
            extract_to_directory(&image, target.path(), &options, &Silent).is_err(),
            "{chunk:?}"
        );
        assert!(
            target.path().join("name").symlink_metadata().is_err(),
            "{chunk:?}"
        );
        options.continue_on_error = true;
        let summary = extract_to_directory(&image, target.path(), &options, &Silent).unwrap();
        assert_eq!((summary.damaged, summary.symlinks), (1, 1), "{chunk:?}");
        assert!(
            target.path().join("name").symlink_metadata().is_err(),
            "{chunk:?}"
        );
    }
}
