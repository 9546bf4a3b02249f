//! Several sources, one after the other.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{Line, Source};

/// The bytes of several sources, one after the other.
#[derive(Debug)]
pub struct JoinedSource {
    /// With the offset behind each.
    parts: Vec<(Arc<dyn Source>, u64)>,
}

impl JoinedSource {
    /// Joins sources, whose lengths must not change.
    ///
    /// # Errors
    /// The errors of their lengths, and [`io::ErrorKind::FileTooLarge`] if they are too long together.
    pub fn new(sources: impl IntoIterator<Item = Arc<dyn Source>>) -> io::Result<Self> {
        let mut parts: Vec<(Arc<dyn Source>, u64)> = Vec::new();
        for source in sources {
            let start = parts.last().map_or(0, |(_, end)| *end);
            let end = start.checked_add(source.len()?);
            parts.push((source, end.ok_or(io::ErrorKind::FileTooLarge)?));
        }
        Ok(Self { parts })
    }

    /// The part with the byte at an offset, and where it starts.
    fn part(&self, offset: u64) -> Option<(&Arc<dyn Source>, u64, u64)> {
        let at = self.parts.partition_point(|(_, end)| *end <= offset);
        let (source, end) = self.parts.get(at)?;
        let before = at.checked_sub(1).and_then(|at| self.parts.get(at));
        Some((source, before.map_or(0, |(_, end)| *end), *end))
    }
}

impl JoinedSource {
    /// Says to each part which ranges of it are in `ranges`.
    fn announce(&self, ranges: &[Range<u64>], mut say: impl FnMut(&dyn Source, &[Range<u64>])) {
        let mut start = 0;
        for (source, end) in &self.parts {
            let inside: Vec<Range<u64>> = ranges
                .iter()
                .map(|range| range.start.max(start)..range.end.min(*end))
                .filter(|range| !range.is_empty())
                .map(|range| range.start - start..range.end - start)
                .collect();
            if !inside.is_empty() {
                say(source.as_ref(), &inside);
            }
            start = *end;
        }
    }
}

impl Source for JoinedSource {
    fn len(&self) -> io::Result<u64> {
        Ok(self.parts.last().map_or(0, |(_, end)| *end))
    }

    fn read_exact_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let found = self.part(offset);
            let (source, start, end) = found.ok_or(io::ErrorKind::UnexpectedEof)?;
            let room = usize::try_from(end - offset).unwrap_or(usize::MAX);
            let (now, later) = buf.split_at_mut(room.min(buf.len()));
            source.read_exact_at(offset - start, now)?;
            offset += now.len() as u64;
            buf = later;
        }
        Ok(())
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        match self.part(offset) {
            Some((source, start, end)) if end - offset >= buf.len() as u64 => {
                source.try_read_exact_at(offset - start, buf)
            }
            _ => false,
        }
    }

    fn next_data(&self, mut offset: u64) -> io::Result<u64> {
        while let Some((source, start, end)) = self.part(offset) {
            let found = start.saturating_add(source.next_data(offset - start)?);
            if found < end {
                return Ok(found);
            }
            offset = end;
        }
        self.len()
    }

    fn is_remote(&self) -> bool {
        self.parts.iter().any(|(source, _)| source.is_remote())
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        self.announce(ranges, |source, inside| source.will_need(inside));
    }

    fn may_need(&self, ranges: &[Range<u64>]) {
        self.announce(ranges, |source, inside| source.may_need(inside));
    }

    fn is_coming(&self, range: &Range<u64>) -> bool {
        let mut all = true;
        self.announce(std::slice::from_ref(range), |source, inside| {
            all &= inside.iter().all(|range| source.is_coming(range));
        });
        all
    }

    fn line(&self) -> Option<Line> {
        let parts = self.parts.iter();
        let lines = parts.filter_map(|(source, _)| source.line());
        lines.max_by_key(Line::in_flight)
    }

    fn identity(&self) -> Option<String> {
        let parts = self.parts.iter().map(|(source, _)| source.identity());
        parts.collect::<Option<Vec<_>>>().map(|all| all.join("\n"))
    }

    fn opened(&self) {
        self.parts.iter().for_each(|(source, _)| source.opened());
    }

    fn abandon(&self) {
        self.parts.iter().for_each(|(source, _)| source.abandon());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySource;

    #[test]
    fn reads_go_over_the_borders() {
        let all: Vec<u8> = (0..100).collect();
        let cuts = [0, 0, 7, 8, 60, 100, 100];
        let parts = cuts.windows(2).map(|cut| {
            let part = all[cut[0]..cut[1]].to_vec();
            Arc::new(MemorySource::new(part)) as Arc<dyn Source>
        });
        let joined = JoinedSource::new(parts).unwrap();
        assert_eq!(joined.len().unwrap(), 100);
        for start in 0..100 {
            for end in start..=100 {
                let mut buf = vec![0; end - start];
                joined.read_exact_at(start as u64, &mut buf).unwrap();
                assert_eq!(buf, all[start..end]);
                if joined.try_read_exact_at(start as u64, &mut buf) {
                    assert_eq!(buf, all[start..end]);
                }
            }
            assert_eq!(joined.next_data(start as u64).unwrap(), start as u64);
        }
        assert!(joined.read_exact_at(90, &mut [0; 11]).is_err());
        assert_eq!(joined.next_data(100).unwrap(), 100);
        let none = JoinedSource::new([]).unwrap();
        assert!(none.is_empty().unwrap());
    }
}
