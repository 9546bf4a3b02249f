//! From decoded blocks to files.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crossbeam_channel::Receiver;
use redwarfs_format::metadata::{Extent, Stat};

use super::plan::PlannedExtent;
use super::{Decoded, Run, WriteJob};
use crate::error::{Error, Result, target};
use crate::files::DirCache;
use crate::os::{self, OutFile};

/// Largest number of pieces that one call writes.
const MAX_GATHER: usize = 256;

/// A position in a file and the slices of a block that follow each other from there on.
type Piecewise<'b> = (u64, Vec<&'b [u8]>);

impl Run<'_> {
    pub(super) fn write_all(&self, jobs: &Receiver<WriteJob>) {
        let mut last = DirCache::default();
        for WriteJob { block, pieces } in jobs {
            for group in pieces.as_slice().chunk_by(|a, b| a.content == b.content) {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(e) = self.write_group(&block, group, &mut last) {
                    self.fail(e);
                }
            }
        }
    }

    /// Writes the pieces of one content that are in one block.
    pub(super) fn write_group(
        &self,
        block: &std::result::Result<Decoded, String>,
        group: &[PlannedExtent],
        last: &mut DirCache,
    ) -> Result<()> {
        let Some(content) = group.first().map(|p| p.content) else {
            return Ok(());
        };
        let number = u32::try_from(group.len()).unwrap_or(u32::MAX);
        match block {
            Err(cause) => self.note_damage(content, cause.clone()),
            Ok(_) if self.is_damaged(content) => {}
            Ok(decoded) => match self.gather(content, group, decoded.bytes()) {
                Ok(runs) => {
                    // No other thread works on this content, so the table is not needed.
                    let alone = self.remaining_of(content).load(Ordering::Acquire) == number;
                    for file in self.tree.files_of(content) {
                        self.write_runs(file, &runs, alone, last)?;
                    }
                    if alone && !self.is_damaged(content) {
                        self.remaining_of(content).store(0, Ordering::Release);
                        return Ok(());
                    }
                }
                Err(e) => self.content_error(content, e)?,
            },
        }
        if self
            .remaining_of(content)
            .fetch_sub(number, Ordering::AcqRel)
            == number
        {
            self.finish(content, last)?;
        }
        Ok(())
    }

    /// Joins pieces that follow each other in the file.
    pub(super) fn gather<'b>(
        &self,
        content: u32,
        group: &[PlannedExtent],
        bytes: &'b [u8],
    ) -> redwarfs_format::Result<Vec<Piecewise<'b>>> {
        let mut runs: Vec<Piecewise<'_>> = Vec::new();
        let Some(ino) = self.tree.inode_of(content) else {
            return Ok(runs);
        };
        let extents = self.image.metadata().extents(ino)?;
        let mut expected = None;
        for piece in group {
            let Extent::Data {
                block,
                offset,
                size,
            } = extents.get(piece.extent as usize)?
            else {
                return Err(redwarfs_format::Error::corrupt("extent changed its kind"));
            };
            let data = (offset as usize)
                .checked_add(size as usize)
                .and_then(|end| bytes.get(offset as usize..end))
                .ok_or_else(|| {
                    redwarfs_format::Error::corrupt(format!(
                        "chunk of {size} bytes at {offset} reaches beyond block {block} of {} bytes",
                        bytes.len()
                    ))
                })?;
            match runs.last_mut() {
                Some((_, slices))
                    if expected == Some(piece.offset) && slices.len() < MAX_GATHER =>
                {
                    slices.push(data);
                }
                _ => runs.push((piece.offset, vec![data])),
            }
            expected = piece.offset.checked_add(u64::from(size));
        }
        Ok(runs)
    }

    pub(super) fn write_runs(
        &self,
        file: u32,
        runs: &[Piecewise<'_>],
        alone: bool,
        last: &mut DirCache,
    ) -> Result<()> {
        let Some(f) = self.tree.file(file).filter(|_| !self.files.is_lost(file)) else {
            return Ok(());
        };
        let stat = self.tree.stat(f)?;
        let written = self.try_write_runs(file, &stat, runs, alone, last);
        self.unless_lost(file, written, last)
    }

    /// Gives up a file after an error that concerns only this file.
    fn unless_lost(&self, file: u32, written: Result<()>, last: &mut DirCache) -> Result<()> {
        match written {
            Err(e @ Error::Target { .. }) => self.files.give_up(file, e, last),
            other => other,
        }
    }

    fn try_write_runs(
        &self,
        file: u32,
        stat: &Stat,
        runs: &[Piecewise<'_>],
        alone: bool,
        last: &mut DirCache,
    ) -> Result<()> {
        let write = |fd: &OutFile| -> Result<()> {
            for (offset, slices) in runs {
                let written = os::write_at(fd, *offset, slices)
                    .map_err(|e| target("cannot write", self.tree.shown_file(file), e))?;
                self.bytes.fetch_add(written, Ordering::Relaxed);
                self.progress.advance(written);
            }
            Ok(())
        };
        if alone && !self.files.is_created(file) {
            let Some(fd) = self.files.create(file, stat, last)? else {
                return Ok(());
            };
            write(&fd)?;
            self.complete(&fd, file, stat)
        } else {
            let Some(fd) = self.files.open(file, stat, last)? else {
                return Ok(());
            };
            write(&fd)?;
            if alone {
                self.files.close(file);
                self.complete(&fd, file, stat)?;
            }
            Ok(())
        }
    }

    pub(super) fn complete(&self, fd: &OutFile, file: u32, stat: &Stat) -> Result<()> {
        self.progress
            .file(&|| self.tree.shown_file(file), stat.size);
        if stat.allocated != stat.size {
            os::set_size(fd, stat.size)
                .map_err(|e| target("cannot set size", self.tree.shown_file(file), e))?;
        }
        let set = self.files.finish(fd, file, stat, self.progress);
        self.losses.settle_attributes(set)?;
        let holes = stat.size.saturating_sub(stat.allocated);
        self.bytes.fetch_add(holes, Ordering::Relaxed);
        self.progress.advance(holes);
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// After all pieces of a content: sets the attributes of its files, or removes them.
    pub(super) fn finish(&self, content: u32, last: &mut DirCache) -> Result<()> {
        if self.is_damaged(content) {
            return self.give_up(content, last);
        }
        for file in self.tree.files_of(content) {
            let Some(f) = self.tree.file(file) else {
                continue;
            };
            let stat = self.tree.stat(f)?;
            let opened = self.files.open(file, &stat, last).and_then(|fd| {
                let Some(fd) = fd else {
                    return Ok(());
                };
                self.files.close(file);
                self.complete(&fd, file, &stat)
            });
            self.unless_lost(file, opened, last)?;
        }
        Ok(())
    }

    pub(super) fn give_up(&self, content: u32, last: &mut DirCache) -> Result<()> {
        let cause = {
            let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
            damaged.get(&content).cloned().unwrap_or_default()
        };
        let cause = format!("{cause}; not extracted");
        for file in self.tree.files_of(content) {
            if self.files.is_lost(file) {
                continue;
            }
            self.files.forget(file, last)?;
            self.losses.count(1);
            self.progress.damaged(&self.tree.shown_file(file), &cause);
            for link in self.tree.links_of(file) {
                self.losses.count(1);
                self.progress
                    .damaged(&self.tree.shown(link.dir, link.entry), &cause);
            }
        }
        Ok(())
    }

    /// After a fatal error: incomplete files are removed.
    pub(super) fn remove_incomplete(&self) {
        let mut last = DirCache::default();
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Acquire) == 0 {
                continue;
            }
            for file in self.tree.files_of(content) {
                if self.files.is_created(file) {
                    // The extraction has failed already, with an error that will be reported.
                    let _ = self.files.remove(file, &mut last);
                }
            }
        }
    }
}
