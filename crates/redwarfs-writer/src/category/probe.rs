//! Reading single places of a file.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::source::{Content, DataExtent};

/// The source of the bytes of a probed file.
pub(crate) enum Input<'a> {
    Memory(&'a [u8]),
    File {
        content: Box<dyn Content>,
        /// An open file, which also has holes.
        sparse: bool,
    },
}

/// A file that is being categorized: positional reads within its size as listed.
pub(crate) struct Probe<'a> {
    input: Input<'a>,
    size: u64,
    stop: &'a AtomicBool,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(input: Input<'a>, size: u64, stop: &'a AtomicBool) -> Self {
        Self { input, size, stop }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Fills `buffer` from `offset`.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match &self.input {
            Input::Memory(data) => {
                let found = usize::try_from(offset)
                    .ok()
                    .and_then(|start| data.get(start..)?.get(..buffer.len()))
                    .ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(found);
                Ok(())
            }
            Input::File { content, .. } => {
                let mut done = 0;
                while let Some(space) = buffer.get_mut(done..).filter(|space| !space.is_empty()) {
                    let at = offset
                        .checked_add(done as u64)
                        .ok_or(io::ErrorKind::UnexpectedEof)?;
                    let wanted = space.len();
                    match content.read_at(at, space)?.min(wanted) {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        n => done += n,
                    }
                }
                Ok(())
            }
        }
    }

    /// `N` bytes from `offset`; `None` if the file ends before.
    pub(super) fn bytes<const N: usize>(&self, offset: u64) -> io::Result<Option<[u8; N]>> {
        if offset
            .checked_add(N as u64)
            .is_none_or(|end| end > self.size)
        {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The data at or after `offset` and before `end`: start and end, not empty. `None` if there
    /// is only a hole.
    pub(super) fn data(&self, offset: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let end = end.min(self.size);
        if offset >= end {
            return Ok(None);
        }
        let found = match &self.input {
            Input::File {
                content,
                sparse: true,
            } => content.next_data(offset, end)?,
            _ => Some(DataExtent {
                offset,
                size: end - offset,
            }),
        };
        Ok(found.and_then(|extent| {
            let start = extent.offset.max(offset);
            let stop = extent.offset.saturating_add(extent.size).min(end);
            (start < stop).then_some((start, stop))
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cut::{Cut, Found};
    use super::super::names::Category;
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    pub(in crate::category) fn probe(data: &[u8]) -> Probe<'_> {
        Probe::new(Input::Memory(data), data.len() as u64, &NEVER)
    }

    /// Categories and sizes.
    pub(in crate::category) fn shape(found: Found) -> Option<Vec<(Category, u64)>> {
        let list = |fragments: Cut| fragments.iter().map(|p| (p.key.category, p.size)).collect();
        found.unwrap().map(list)
    }

    #[test]
    fn reads_stay_inside() {
        let data = [1, 2, 3, 4];
        let probe = probe(&data);
        assert_eq!(probe.bytes::<2>(2).unwrap(), Some([3, 4]));
        assert_eq!(probe.bytes::<2>(3).unwrap(), None);
        assert_eq!(probe.bytes::<2>(u64::MAX).unwrap(), None);
        assert_eq!(probe.data(1, 9).unwrap(), Some((1, 4)));
        assert_eq!(probe.data(4, 9).unwrap(), None);
    }
}
