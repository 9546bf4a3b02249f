//! Fetches the blocks of files that the user names, in the background.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::io;

use redwarfs_format::BlockNo;
use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_reader::{Image, Preload};

use crate::common::error::Result;
use crate::common::{LogLevel, Logger};
use crate::dwarfsextract::Patterns;

/// Begins to fetch the blocks of the files that match, into the cache on disk, or into memory if there is none.
///
/// # Errors
/// No thread could be started.
pub(super) fn begin(image: &Image, patterns: Patterns, logger: &Logger) -> io::Result<()> {
    let (image, logger) = (image.clone(), logger.clone());
    let thread = std::thread::Builder::new().name(String::from("prefetch"));
    thread.spawn(move || {
        let fetched = blocks_of(&image, &patterns).and_then(|blocks| {
            for pattern in patterns.unused() {
                logger.warn(format_args!(
                    "nothing is prefetched: no file matches: {pattern}"
                ));
            }
            image.preload(Preload::Blocks(blocks))
        });
        // The image can be closed meanwhile.
        drop(image);
        match fetched {
            Ok(handle) => {
                let summary = handle.wait();
                logger.log(
                    LogLevel::Verbose,
                    format_args!(
                        "prefetched {} of {} blocks, {} failed",
                        summary.loaded, summary.wanted, summary.failed
                    ),
                );
            }
            Err(error) => logger.warn(format_args!("cannot prefetch: {error}")),
        }
    })?;
    Ok(())
}

/// The blocks with data of the files that match.
fn blocks_of(image: &Image, patterns: &Patterns) -> redwarfs_format::Result<Vec<BlockNo>> {
    let view = image.metadata();
    let (mut blocks, mut seen) = (BTreeSet::new(), HashSet::new());
    for entry in image.walk() {
        let entry = entry?;
        let kind = view.file_type(entry.inode)?;
        if !patterns.want(&entry.path, kind) || kind != FileType::Regular {
            continue;
        }
        // Names of the same file, and equal files.
        if !seen.insert(view.content_id(entry.inode)?) {
            continue;
        }
        for extent in view.extents(entry.inode)? {
            if let Extent::Data { block, .. } = extent? {
                blocks.insert(block);
            }
        }
    }
    Ok(blocks.into_iter().collect())
}

/// Understands the patterns of the option.
///
/// # Errors
/// A pattern is wrong.
pub(super) fn patterns(texts: &[OsString]) -> Result<Patterns> {
    Patterns::new(texts.iter().map(OsString::as_os_str))
}
