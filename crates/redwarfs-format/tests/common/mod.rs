//! Metadata payloads of the golden images.

use std::path::{Path, PathBuf};

use redwarfs_format::section::{Container, SectionType, locate_image};

/// A golden image and its uncompressed metadata.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) schema: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) blocks: u32,
}

fn load(path: &Path) -> Golden {
    let bytes = std::fs::read(path).unwrap();
    let read = |offset: u64, out: &mut [u8]| {
        let start = usize::try_from(offset).unwrap();
        let from = bytes.get(start..start + out.len());
        out.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let size = bytes.len() as u64;
    let offset = locate_image(size, &read).unwrap();
    let container = Container::open(&read, size, offset, None).unwrap();
    let payload = |ty| {
        let section = container.only_section_of_type(ty).unwrap();
        let section = container.load_header(&read, section.position).unwrap();
        let start = usize::try_from(container.file_offset(&section)).unwrap();
        let stored = &bytes[start..start + usize::try_from(section.length).unwrap()];
        redwarfs_codec::decompress(section.compression.unwrap(), stored, 1 << 30).unwrap()
    };
    Golden {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        path: path.to_owned(),
        schema: payload(SectionType::METADATA_V2_SCHEMA),
        data: payload(SectionType::METADATA_V2),
        blocks: container.block_count(),
    }
}

fn load_all(dir: &Path) -> Vec<Golden> {
    let mut list: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "dwarfs"))
        .collect();
    list.sort();
    list.iter().map(|p| load(p)).collect()
}

/// Images of release 0.15.3.
pub(crate) fn current() -> Vec<Golden> {
    let list = load_all(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/images"
    )));
    assert!(list.len() > 30);
    list
}

/// One image of release 0.15.3.
pub(crate) fn one(name: &str) -> Golden {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/images");
    load(&dir.join(format!("{name}.dwarfs")))
}

/// Images of releases 0.2.0 to 0.9.10.
pub(crate) fn older() -> Vec<Golden> {
    let list = load_all(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/compat"
    )));
    assert!(list.len() >= 12);
    list
}
