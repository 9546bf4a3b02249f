//! The analysis file: which files were opened, in the order of their first opening.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::MetadataView;
use redwarfs_format::{Error, Result};
use tracing::debug;

use crate::bits::Bits;
use crate::error::{self, io_text};
use crate::options::MountOptions;

/// Regular files of the largest image that is analysed (2 GiB of memory).
const MOST_FILES: u32 = 1 << 28;

/// Writes the list. Needs 8 bytes for each regular file.
#[derive(Debug)]
pub(crate) struct Analysis {
    file: File,
    seen: Bits,
    failed: AtomicBool,
    /// First regular inode.
    first: u32,
    /// Directory and first entry of each regular file.
    entries: Vec<(InodeNo, EntryIndex)>,
}

/// A file without an entry, which only a corrupt image has.
const NOWHERE: (InodeNo, EntryIndex) = (InodeNo(u32::MAX), EntryIndex(u32::MAX));

impl Analysis {
    /// Creates or empties the file of [`MountOptions::analysis_file`]; none without this option.
    ///
    /// # Errors
    /// The file cannot be created, or the metadata is corrupt.
    pub(crate) fn wanted(
        meta: &MetadataView,
        options: &MountOptions,
    ) -> error::Result<Option<Self>> {
        let Some(path) = &options.analysis_file else {
            return Ok(None);
        };
        let file = File::create(path).map_err(|source| error::Error::AnalysisFile {
            path: path.clone(),
            source,
        })?;
        Ok(Some(Self::new(file, meta)?))
    }

    /// Finds a path for each file: the first one in the order of directories.
    ///
    /// # Errors
    /// The metadata is corrupt.
    fn new(file: File, meta: &MetadataView) -> Result<Self> {
        let counts = meta.counts();
        if counts.files > MOST_FILES {
            return Err(Error::Limit(format!(
                "an analysis of {} files",
                counts.files
            )));
        }
        let mut entries = vec![NOWHERE; counts.files as usize];
        for dir in (0..counts.directories).map(InodeNo) {
            for entry in meta.entries(dir)?.map(EntryIndex) {
                let inode = meta.entry_inode(entry)?;
                let place = inode
                    .0
                    .checked_sub(counts.file_offset)
                    .and_then(|at| entries.get_mut(at as usize));
                if let Some(place) = place
                    && *place == NOWHERE
                {
                    *place = (dir, entry);
                }
            }
        }
        Ok(Self {
            file,
            seen: Bits::new(counts.inodes),
            failed: AtomicBool::new(false),
            first: counts.file_offset,
            entries,
        })
    }

    /// Notes that a file was opened.
    pub(crate) fn opened(&self, meta: &MetadataView, inode: InodeNo) {
        let place = inode
            .0
            .checked_sub(self.first)
            .and_then(|at| self.entries.get(at as usize));
        let Some(&(dir, entry)) = place.filter(|place| **place != NOWHERE) else {
            return;
        };
        if !self.seen.insert(inode) {
            return;
        }
        let line = match meta.path(dir, entry) {
            // A path with a line break would be read as two paths.
            Ok(path) if path.contains(&b'\n') => {
                return debug!("not in the analysis: a path with a line break");
            }
            Ok(mut path) => {
                path.push(b'\n');
                path
            }
            Err(cause) => return debug!("not in the analysis: {cause}"),
        };
        // One write, so that each line is complete and appears at once.
        if let Err(error) = (&self.file).write_all(&line)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!("cannot write analysis file: {}", io_text(&error));
        }
    }
}
