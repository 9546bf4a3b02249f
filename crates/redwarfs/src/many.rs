//! Many files at once, in the order in which the image stores them.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

use redwarfs_format::metadata::Extent;
use redwarfs_format::{BlockNo, Error as FormatError};

use crate::entry::DirEntry;
use crate::error::{Error, Result};
use crate::image::Image;

/// Largest number of files that a thread takes at a time.
const MOST_FILES: usize = 256;
/// Bytes after which a thread takes no further file of the same block (4 MiB).
const ENOUGH_BYTES: usize = 4 << 20;
/// Pieces of a file that are looked at for its first block. A file that begins with more holes is read
/// last.
const FIRST_PIECES: usize = 16;

/// A block that no image has.
const NOWHERE: BlockNo = BlockNo(u32::MAX);

/// A file and the memory for its first bytes.
type Job<'a> = (DirEntry, &'a mut [u8]);

impl Image {
    /// Reads the first bytes of many files: each buffer gets as many bytes as it has room for. The
    /// files may come in any order. They are read in the order of their blocks, so that each block is
    /// decoded once, on up to `threads` threads. The calling thread is one of them.
    ///
    /// ```
    /// # let work = tempfile::tempdir()?;
    /// # for name in ["a", "b", "c"] { std::fs::write(work.path().join(name), name.repeat(3))?; }
    /// # let mut bytes = Vec::new();
    /// # redwarfs::Builder::new(work.path()).level(1).write(&mut bytes)?;
    /// # let source = std::sync::Arc::new(redwarfs::io::MemorySource::new(bytes));
    /// # let image = redwarfs::Image::from_source(source, &Default::default())?;
    /// let files = [image.entry("b")?, image.entry("a")?];
    /// let mut buffers = [[0; 3]; 2];
    /// image.read_many(files.into_iter().zip(buffers.iter_mut().map(|b| &mut b[..])), 4)?;
    /// assert_eq!(&buffers, &[*b"bbb", *b"aaa"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`] for the first file that cannot be read, or is shorter than its buffer. The
    /// contents of all buffers are unspecified then.
    pub fn read_many<'a>(
        &self,
        files: impl IntoIterator<Item = (DirEntry, &'a mut [u8])>,
        threads: usize,
    ) -> Result<()> {
        let mut sorted = Vec::new();
        for (number, (entry, buffer)) in files.into_iter().enumerate() {
            sorted.push((self.place(&entry)?, number, (entry, buffer)));
        }
        sorted.sort_unstable_by_key(|(place, number, _)| (*place, *number));
        let batches = batches(sorted.into_iter().map(|((block, _), _, job)| (block, job)));
        let workers = threads.clamp(1, batches.len().max(1));
        let work = Work {
            image: self,
            batches: Mutex::new(batches.into_iter()),
            failed: Mutex::new(None),
        };
        thread::scope(|scope| {
            for number in 1..workers {
                let thread = thread::Builder::new().name(format!("redwarfs-many{number}"));
                // The other threads do the work of one that cannot be started.
                if thread.spawn_scoped(scope, || work.run()).is_err() {
                    break;
                }
            }
            work.run();
        });
        let failed = work
            .failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    /// The block that holds the first data of a file; `None` for an empty file, and one that begins with
    /// many holes. Files of one block are cheap to read one after the other.
    ///
    /// # Errors
    /// [`Error::Read`] if its metadata is damaged, or it is no regular file.
    pub fn first_block(&self, entry: &DirEntry) -> Result<Option<BlockNo>> {
        let (block, _) = self.place(entry)?;
        Ok(Some(block).filter(|&block| block != NOWHERE))
    }

    /// Where the data of a file begins: block and offset. Files without data come last.
    fn place(&self, entry: &DirEntry) -> Result<(BlockNo, u32)> {
        let failed = || Error::read(entry.path());
        let view = self.reader().metadata();
        let extents = view.extents(entry.inode()).map_err(failed())?;
        for extent in extents.take(FIRST_PIECES) {
            if let Extent::Data { block, offset, .. } = extent.map_err(failed())? {
                return Ok((block, offset));
            }
        }
        Ok((NOWHERE, 0))
    }
}

/// Consecutive files of one block, a bounded number in each batch.
fn batches<'a>(jobs: impl Iterator<Item = (BlockNo, Job<'a>)>) -> Vec<Vec<Job<'a>>> {
    let mut batches: Vec<Vec<Job<'a>>> = Vec::new();
    let mut last = None;
    let mut bytes = 0;
    for (block, job) in jobs {
        let len = job.1.len();
        match batches.last_mut() {
            Some(batch)
                if last == Some(block) && batch.len() < MOST_FILES && bytes < ENOUGH_BYTES =>
            {
                batch.push(job);
                bytes += len;
            }
            _ => {
                batches.push(vec![job]);
                bytes = len;
            }
        }
        last = Some(block);
    }
    batches
}

struct Work<'a> {
    image: &'a Image,
    batches: Mutex<std::vec::IntoIter<Vec<Job<'a>>>>,
    failed: Mutex<Option<Error>>,
}

impl Work<'_> {
    fn run(&self) {
        loop {
            let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
            let batch = batches.next();
            drop(batches);
            let Some(batch) = batch else { return };
            for job in batch {
                if let Err(e) = self.read(job) {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(e);
                }
                let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.is_some() {
                    return;
                }
            }
        }
    }

    fn read(&self, (entry, buffer): Job<'_>) -> Result<()> {
        let reader = self.image.reader();
        let read = reader.read_at(entry.inode(), 0, buffer).and_then(|count| {
            if count < buffer.len() {
                let (found, wanted) = (count, buffer.len());
                let what = format!("the file has {found} bytes and not {wanted}");
                return Err(FormatError::corrupt(what));
            }
            Ok(())
        });
        read.map_err(Error::read(entry.path()))
    }
}
