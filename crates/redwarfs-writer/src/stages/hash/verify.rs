//! Comparing files whose hashes are equal.
//!
//! With a fast hash, an attacker can make two different files with the same hash. One file would then
//! silently take the place of the other. Small files are compared in memory while they are grouped.
//! All others are read again, side by side.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

use super::Hasher;
use crate::contents::{Content, Contents, Files, Origin};
use crate::error::Result;
use crate::progress::Level;
use crate::source;

/// Files that are open at the same time, in addition to the file with which they are compared.
const SIDE_BY_SIDE: usize = 16;
/// Bytes that are read at once from each.
const STEP: usize = 256 << 10;

/// What a comparison came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Different,
    /// One of them cannot be read, or has changed. The error is found when it is stored.
    Unknown,
}

impl Hasher<'_> {
    /// Compares files with the first one of their content: `suspects` holds the numbers of files by the
    /// number of their content. Files that differ get separate contents.
    pub(super) fn verify(
        &self,
        contents: &mut Contents,
        suspects: &BTreeMap<u32, Vec<u32>>,
    ) -> Result<()> {
        let jobs: Vec<u32> = suspects.keys().copied().collect();
        let list = &contents.list;
        let groups = |buffers: &mut Vec<Vec<u8>>, job: u32| {
            let first = list.get(job as usize).map_or(0, Content::first_file);
            let files = suspects.get(&job).map_or(&[][..], Vec::as_slice);
            self.groups(first, files, buffers)
        };
        let mut found: Vec<(u32, Vec<u32>)> = Vec::new();
        self.context.scan(&jobs, Vec::new, groups, |job, groups| {
            found.extend(groups?.into_iter().map(|group| (job, group)));
            Ok(())
        })?;
        let grown = !found.is_empty();
        for (job, group) in found {
            self.separate(contents, job, group);
        }
        if grown {
            // In the order in which their files were found, like all others.
            contents.list.sort_by_key(Content::first_file);
        }
        Ok(())
    }

    /// Gives a separate content to some files of a content.
    fn separate(&self, contents: &mut Contents, content: u32, group: Vec<u32>) {
        let Some(old) = contents.list.get_mut(content as usize) else {
            return;
        };
        let Some(&first) = group.first() else { return };
        let (a, b) = (old.first_file(), first);
        for &file in &group {
            old.files.remove(file);
        }
        let counters = self.context.counters();
        // The first of them is not a duplicate.
        counters.duplicate_files.fetch_sub(1, Ordering::Relaxed);
        let saved = &counters.saved_by_deduplication;
        saved.fetch_sub(old.size, Ordering::Relaxed);
        let fresh = Content {
            size: old.size,
            files: Files::of(group, old.files.digest()),
            origin: Origin::Files,
            parts: None,
        };
        contents.list.push(fresh);
        let path = |file| {
            let path = self.tree.file_path(file);
            self.context.source.display_path(&path)
        };
        self.context.progress.log(
            Level::Warn,
            &format!(
                "'{}' and '{}' have the same hash, but not the same content",
                path(a),
                path(b)
            ),
        );
    }

    /// Groups those of `files` that differ from `first`, equal ones together.
    fn groups(
        &self,
        first: u32,
        files: &[u32],
        buffers: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u32>>> {
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let (mut reference, mut left) = (first, files.to_vec());
        loop {
            let mut different = Vec::new();
            for some in left.chunks(SIDE_BY_SIDE) {
                let outcomes = self.compare(reference, some, buffers)?;
                for (&file, outcome) in some.iter().zip(outcomes) {
                    match (outcome, groups.last_mut()) {
                        (Comparison::Different, _) => different.push(file),
                        // Nothing is known against it being what its digest says.
                        (Comparison::Unknown, _) | (Comparison::Equal, None) => {}
                        (Comparison::Equal, Some(group)) => group.push(file),
                    }
                }
            }
            let Some((&next, rest)) = different.split_first() else {
                return Ok(groups);
            };
            groups.push(vec![next]);
            (reference, left) = (next, rest.to_vec());
        }
    }

    /// Compares `files` with `reference`, all of which were listed with the same size.
    fn compare(
        &self,
        reference: u32,
        files: &[u32],
        buffers: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<Comparison>> {
        let size = self.size(reference);
        let open = |file: u32| {
            let opened = self.context.open(self.tree, file).ok()?;
            (opened.stamp().ok()?.size == size).then_some(opened)
        };
        let mut outcomes = vec![Comparison::Unknown; files.len()];
        let Some(first) = open(reference) else {
            return Ok(outcomes);
        };
        let mut running: Vec<(usize, u32, Box<dyn source::Content>)> = files
            .iter()
            .enumerate()
            .filter_map(|(at, &file)| Some((at, file, open(file)?)))
            .collect();
        buffers.resize_with(buffers.len().max(2), Vec::new);
        let [mine, theirs, ..] = buffers.as_mut_slice() else {
            return Ok(outcomes);
        };
        mine.resize(STEP, 0);
        theirs.resize(STEP, 0);
        let mut offset = 0;
        while offset < size && !running.is_empty() {
            self.context.check_stop()?;
            let hole = self.hole(reference, &*first, offset, size);
            let hole = running.iter().fold(hole, |end, (_, file, content)| {
                end.min(self.hole(*file, &**content, offset, size))
            });
            if hole > offset {
                offset = hole;
                continue;
            }
            let length = usize::try_from(size - offset).map_or(STEP, |left| left.min(STEP));
            let mine = mine.get_mut(..length).unwrap_or_default();
            if fill(&*first, offset, mine).is_err() {
                return Ok(outcomes);
            }
            let theirs = theirs.get_mut(..length).unwrap_or_default();
            running.retain(|(at, _, content)| {
                let same = fill(&**content, offset, theirs).map(|()| mine == theirs);
                if matches!(same, Ok(false)) {
                    outcomes[*at] = Comparison::Different;
                }
                matches!(same, Ok(true))
            });
            offset += length as u64;
        }
        for (at, ..) in running {
            outcomes[at] = Comparison::Equal;
        }
        Ok(outcomes)
    }

    /// Where the hole ends that `offset` is in, or `offset` itself.
    fn hole(&self, file: u32, content: &dyn source::Content, offset: u64, size: u64) -> u64 {
        if !self.tree.files[file as usize].sparse() {
            return offset;
        }
        match content.next_data(offset, size) {
            Ok(Some(data)) => data.offset.clamp(offset, size),
            Ok(None) => size,
            Err(_) => offset,
        }
    }
}

/// Reads exactly `buf.len()` bytes.
fn fill(content: &dyn source::Content, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let rest = buf.get_mut(done..).unwrap_or_default();
        let got = content.read_at(offset + done as u64, rest)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += got.min(rest.len());
    }
    Ok(())
}
