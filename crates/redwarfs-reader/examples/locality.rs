//! How many blocks the directories of images are spread over: `locality IMAGE...`.
//!
//! For the folders at the top and for every directory with files of its own: blocks that its
//! files touch on average, and blocks that the data would take if they were together.

use std::collections::{BTreeMap, BTreeSet};

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_reader::{Image, OpenOptions};

#[derive(Default)]
struct Folder {
    blocks: BTreeSet<u32>,
    chunks: BTreeSet<(u32, u32, u32)>,
}

fn show(what: &str, folders: &BTreeMap<Vec<u8>, Folder>, block_size: u64) {
    let count = folders.len().max(1) as f64;
    let touched: usize = folders.values().map(|f| f.blocks.len()).sum();
    let needed: u64 = folders
        .values()
        .map(|f| f.chunks.iter().map(|c| u64::from(c.2)).sum::<u64>())
        .map(|bytes| bytes.div_ceil(block_size).max(1))
        .sum();
    println!(
        "  {what}: {} folders, {:.2} blocks each, {:.2} needed",
        folders.len(),
        touched as f64 / count,
        needed as f64 / count
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args_os().skip(1) {
        let image = Image::open(&path, &OpenOptions::default())?;
        let view = image.metadata();
        let (mut top, mut all) = (BTreeMap::new(), BTreeMap::new());
        for step in image.walk() {
            let step = step?;
            if view.file_type(step.inode)? != FileType::Regular {
                continue;
            }
            let slash = |path: &[u8]| path.iter().position(|&b| b == b'/');
            let last = step.path.iter().rposition(|&b| b == b'/');
            let first = slash(&step.path).map(|at| step.path[..at].to_vec());
            let parent = last.map(|at| step.path[..at].to_vec());
            for extent in view.extents(step.inode)? {
                let Extent::Data {
                    block,
                    offset,
                    size,
                } = extent?
                else {
                    continue;
                };
                for (folders, name) in [(&mut top, &first), (&mut all, &parent)] {
                    let name = name.clone().unwrap_or_default();
                    let folder: &mut Folder = folders.entry(name).or_default();
                    folder.blocks.insert(block.0);
                    folder.chunks.insert((block.0, offset, size));
                }
            }
        }
        println!(
            "{}: {} bytes",
            path.display(),
            std::fs::metadata(&path)?.len()
        );
        let block_size = u64::from(view.block_size());
        show("top", &top, block_size);
        show("directories", &all, block_size);
    }
    Ok(())
}
