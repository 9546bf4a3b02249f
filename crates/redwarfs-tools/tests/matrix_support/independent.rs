//! The crate `dwarfs`, a reader that others wrote.
//!
//! It does not read: images with holes; Brotli, FLAC and RICEPP; a packed table of shared files
//! (it takes counts for numbers of files); times that do not fit 32 bits beside the earliest one,
//! or are before 1970; names and targets that are not UTF-8.

use std::collections::BTreeMap;

use dwarfs::section::{CompressAlgo, SectionReader};
use dwarfs::{Archive, ArchiveIndex, AsChunks, InodeKind};
use redwarfs_testkit::Manifest;
use sha2::{Digest, Sha256};

use super::model::Model;

/// How many files it has read, and how many not, because they are in blocks of codecs that it does
/// not have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) read: usize,
    pub(crate) unread: usize,
}

/// Why it cannot read images with these options, if files have content and some of them are equal.
pub(crate) fn obstacle(model: &Model) -> Option<&'static str> {
    if model.brotli_metadata {
        Some("Brotli in the metadata")
    } else if model.hollow {
        Some("holes")
    } else if model.packed_shared_files {
        Some("a packed table of shared files")
    } else {
        None
    }
}

/// Whether it opens an image and reads the content of all files that it finds.
pub(crate) fn manages(image: &[u8]) -> bool {
    let Ok((index, mut archive)) = Archive::new(image.to_vec()) else {
        return false;
    };
    index.inodes().all(|inode| match inode.as_file() {
        Some(file) => file.read_to_vec(&mut archive).is_ok(),
        None => true,
    })
}

/// Lets it read an image and compares everything with `want`.
///
/// # Errors
/// All differences, or that it does not open the image.
pub(crate) fn check(image: &[u8], want: &Manifest, model: &Model) -> Result<Files, String> {
    let (index, mut archive) = Archive::new(image.to_vec()).map_err(|e| e.to_string())?;
    let codecs = codecs(image, &index)?;
    let mut problems = Vec::new();
    let mut files = Files::default();
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut todo = vec![(b".".to_vec(), dwarfs::Inode::from(index.root()))];
    while let Some((path, inode)) = todo.pop() {
        let name = path.escape_ascii().to_string();
        seen.insert(path.clone(), dwarfs::archive::IsInode::inode_num(&inode));
        let Some(entry) = want.0.get(&path) else {
            problems.push(format!("{name}: unexpected"));
            continue;
        };
        let meta = inode.metadata();
        let seconds = |ns: i128| u64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(u64::MAX);
        let mut same = |what: &str, want: u64, got: u64| {
            if want != got {
                problems.push(format!("{name}: {what}: expected {want:o}, found {got:o}"));
            }
        };
        same("mode", entry.mode.into(), meta.file_type_mode().0.into());
        same("uid", entry.uid.into(), meta.uid().into());
        same("gid", entry.gid.into(), meta.gid().into());
        same("mtime", seconds(entry.mtime_ns), meta.mtime());
        if model.all_times {
            let of = |time: Option<u64>| time.unwrap_or(0);
            same("atime", seconds(entry.atime_ns), of(meta.atime()));
            same("ctime", seconds(entry.ctime_ns), of(meta.ctime()));
        }
        match inode.classify() {
            InodeKind::Directory(dir) => {
                for child in dir.entries() {
                    let below = match path.as_slice() {
                        b"." => child.name().as_bytes().to_vec(),
                        path => [path, b"/", child.name().as_bytes()].concat(),
                    };
                    todo.push((below, child.inode()));
                }
            }
            InodeKind::Symlink(link) => {
                if entry.target.as_deref() != Some(link.target().as_bytes()) {
                    problems.push(format!("{name}: target"));
                }
            }
            InodeKind::Device(device) => {
                let number = entry
                    .rdev
                    .map(|(major, minor)| rustix::fs::makedev(major, minor));
                same("device", number.unwrap_or(0), device.device_id());
            }
            InodeKind::Ipc(_) => {}
            InodeKind::File(file) => {
                same("size", entry.size, file.as_chunks().total_size());
                let known = file
                    .as_chunks()
                    .all(|chunk| reads(codecs[chunk.section_idx() as usize]));
                match (file.read_to_vec(&mut archive), known) {
                    (Ok(data), true) => {
                        files.read += 1;
                        let hash = Sha256::digest(&data);
                        let hash: String = hash.iter().map(|b| format!("{b:02x}")).collect();
                        if Some(hash) != entry.sha256 {
                            problems.push(format!("{name}: content"));
                        }
                    }
                    (Err(_), false) => files.unread += 1,
                    (Ok(_), false) => problems.push(format!("{name}: read what it cannot read")),
                    (Err(error), true) => problems.push(format!("{name}: {error}")),
                }
            }
            other => problems.push(format!("{name}: {other:?}")),
        }
    }
    for (path, entry) in &want.0 {
        let Some(own) = seen.get(path) else {
            problems.push(format!("{}: missing", path.escape_ascii()));
            continue;
        };
        let names = want.0.iter().filter(|(_, other)| other.ino == entry.ino);
        if names.clone().any(|(other, _)| seen.get(other) != Some(own)) {
            problems.push(format!("{}: names of one inode", path.escape_ascii()));
        }
    }
    match problems.is_empty() {
        true => Ok(files),
        false => Err(problems.join("\n")),
    }
}

/// Whether blocks of this algorithm can be read.
fn reads(codec: CompressAlgo) -> bool {
    ![
        CompressAlgo::BROTLI,
        CompressAlgo::FLAC,
        CompressAlgo::RICEPP,
    ]
    .contains(&codec)
}

/// The algorithm of each section.
fn codecs(image: &[u8], index: &ArchiveIndex) -> Result<Vec<CompressAlgo>, String> {
    let mut reader = SectionReader::new(image.to_vec());
    let sections = index.section_index().iter();
    sections
        .map(|section| match reader.read_header_at(section.offset()) {
            Ok(header) => Ok(header.compress_algo),
            Err(error) => Err(error.to_string()),
        })
        .collect()
}
