//! The images that get damaged, and how much there is in one.

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use redwarfs_codec::raw_size;
use redwarfs_format::InodeNo;
use redwarfs_format::section::SectionType;
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions};

use super::{HEAVY, Tools, Weight, scratch};
use crate::mutate::Parts;
use crate::tree::Random;
use crate::{compat_images, golden_images};

/// Images larger than this are not damaged: it would take long and find nothing more (bytes).
const LARGEST: u64 = 160 << 10;

/// An intact image, taken apart.
#[derive(Debug)]
pub struct Base {
    /// Name.
    pub name: String,
    /// Sections.
    pub parts: Parts,
}

/// Options of `mkdwarfs` for images of our own: every packing and every codec.
const BUILDS: [(&str, &[&str]); 14] = [
    ("null", &["-C", "null", "--pack-metadata=none"]),
    ("plain-names", &["--pack-metadata=plain"]),
    ("packed", &["--pack-metadata=all"]),
    ("packed-force", &["--pack-metadata=all,force"]),
    ("chunk-table", &["--pack-metadata=chunk_table"]),
    ("directories", &["--pack-metadata=directories"]),
    ("shared-files", &["--pack-metadata=shared_files"]),
    (
        "names",
        &["--pack-metadata=names,names_index,symlinks,symlinks_index"],
    ),
    ("lz4", &["-C", "lz4"]),
    ("lz4hc", &["-C", "lz4hc:level=9"]),
    (
        "zstd",
        &["-C", "zstd:level=3", "--metadata-compression=zstd"],
    ),
    (
        "lzma",
        &["-C", "lzma:level=1", "--metadata-compression=lzma"],
    ),
    (
        "brotli",
        &["-C", "brotli:quality=3", "--metadata-compression=brotli"],
    ),
    (
        "small-blocks",
        &["-S", "12", "-W", "8", "-C", "zstd:level=1"],
    ),
];

/// The golden images and those of old releases that are not large, and images of our own that
/// use every packing and every codec; the smallest first.
///
/// # Panics
/// `mkdwarfs` does not work.
pub fn bases(tools: &Tools) -> Vec<Base> {
    let mut list = Vec::new();
    for golden in golden_images().into_iter().chain(compat_images()) {
        let image = fs::read(&golden.image).expect("a golden image");
        if image.len() as u64 <= LARGEST
            && let Some(parts) = Parts::try_of(&image)
        {
            list.push((image.len(), golden.name, parts));
        }
    }
    let dir = scratch();
    let tree = dir.join("tree");
    source(&tree).expect("room for a small tree");
    for (name, options) in BUILDS {
        let out = dir.join("built");
        let built = Command::new(&tools.mkdwarfs)
            .arg("-i")
            .arg(&tree)
            .arg("-o")
            .arg(&out)
            .args(["--force", "--log-level=error", "--with-specials", "-l3"])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .expect("mkdwarfs can be started");
        let text = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(built.status.success(), "mkdwarfs {options:?}: {text}");
        let image = fs::read(&out).expect("what was built");
        list.push((image.len(), format!("own-{name}"), Parts::of(&image)));
    }
    let _ = fs::remove_dir_all(&dir);
    list.sort_by_key(|(size, ..)| *size);
    list.into_iter()
        .map(|(_, name, parts)| Base { name, parts })
        .collect()
}

/// A small tree with every kind of file but devices.
fn source(root: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::symlink;
    let mut random = Random::new(7);
    for dir in ["a/b/c", "many", "empty", "links"] {
        fs::create_dir_all(root.join(dir))?;
    }
    for n in 0..40 {
        let len = random.below(2000) as usize;
        fs::write(
            root.join(format!("many/file number {n}.txt")),
            random.text(len),
        )?;
    }
    fs::write(root.join("a/noise"), random.bytes(6000))?;
    let text = random.text(40_000);
    fs::write(root.join("a/b/text"), &text)?;
    fs::write(root.join("a/b/copy"), &text)?;
    fs::write(
        root.join("a/b/c/longer"),
        [&text[..], &random.text(9000)].concat(),
    )?;
    fs::hard_link(root.join("a/b/text"), root.join("links/hard"))?;
    for n in 0..6 {
        symlink(
            format!("../many/file number {n}.txt"),
            root.join(format!("links/{n}")),
        )?;
    }
    fs::write(root.join("zero"), b"")?;
    let sparse = fs::File::create(root.join("sparse"))?;
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 3 << 20)?;
    drop(std::os::unix::net::UnixListener::bind(root.join("socket"))?);
    Ok(())
}

thread_local! {
    static WEIGHING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of the libraries, where an image is looked at only to know its size, from being
/// printed.
pub fn silence() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !WEIGHING.get() {
            before(info);
        }
    }));
}

/// How much an image holds. Panics of the libraries count as nothing here; the programs will
/// show them.
pub(super) fn weigh(image: &[u8]) -> Weight {
    let data = image.to_vec();
    WEIGHING.set(true);
    let weighed = catch_unwind(AssertUnwindSafe(|| {
        let source = Arc::new(MemorySource::from(data));
        let mut weight = Weight::default();
        let Ok(image) = Image::from_source(source, &OpenOptions::default()) else {
            return weight;
        };
        let meta = image.metadata();
        for inode in (0..meta.inode_count()).map(InodeNo) {
            let size = meta.stat(inode).map_or(0, |stat| stat.size);
            weight.content = weight.content.saturating_add(size);
            if weight.content > HEAVY {
                break;
            }
        }
        let limit = u64::from(meta.block_size());
        for section in image.container().blocks() {
            if section.ty != SectionType::BLOCK {
                continue;
            }
            let start = image.container().file_offset(section);
            let mut payload = vec![0; usize::try_from(section.length).unwrap_or(0)];
            let read = image.source().read_exact_at(start, &mut payload);
            let Some(id) = section.compression.or_else(|| {
                let mut header = [0; redwarfs_format::section::SectionHeader::LEN];
                let at = start.checked_sub(header.len() as u64)?;
                image.source().read_exact_at(at, &mut header).ok()?;
                Some(
                    redwarfs_format::section::SectionHeader::parse(&header)
                        .ok()?
                        .compression,
                )
            }) else {
                continue;
            };
            if read.is_ok()
                && let Ok(raw) = raw_size(id, &payload)
                && raw <= limit
            {
                weight.block = weight.block.max(raw);
            }
        }
        weight
    }));
    WEIGHING.set(false);
    weighed.unwrap_or_default()
}
