//! Finding data that does not get smaller, by compressing it.

use std::io;

use redwarfs_codec::{CodecSpec, Compressor};

use super::cut::{Cut, Found};
use super::names::{Category, StreamKey};
use super::probe::Probe;
use crate::error::{Error, Result};

/// Parameters of the test. Start from the default and set fields.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Incompressible {
    /// Smallest size of a tested file, in bytes.
    pub min_size: u64,
    /// Bytes that are compressed at a time, 1..=2^30.
    pub block_size: u64,
    /// Categorize each unit of `block_size` on its own, instead of the whole file (between its holes).
    pub fragments: bool,
    /// Data that compresses to at least this fraction of its size is incompressible, 0..=1.
    pub ratio: f64,
    /// Level of the zstd compressor for the test, -131072..=22.
    pub zstd_level: i32,
}

impl Default for Incompressible {
    fn default() -> Self {
        Self {
            min_size: 256,
            block_size: 1 << 20,
            fragments: false,
            ratio: 0.99,
            zstd_level: -1,
        }
    }
}

impl Incompressible {
    pub(super) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::InvalidOption(what.to_owned()));
        if !(1..=1 << 30).contains(&self.block_size) {
            return bad("the block size of incompressible must be between 1 and 1g");
        }
        if !(0.0..=1.0).contains(&self.ratio) {
            return bad("the ratio of incompressible must be between 0 and 1");
        }
        if self.codec().is_none() {
            return bad("the zstd level of incompressible must be between -131072 and 22");
        }
        Ok(())
    }

    fn codec(&self) -> Option<CodecSpec> {
        format!("zstd:level={}", self.zstd_level).parse().ok()
    }
}

/// Compressor and buffer, kept between files.
#[derive(Default)]
pub(crate) struct Tester {
    compressor: Option<Compressor>,
    buffer: Vec<u8>,
}

impl Tester {
    pub(crate) fn categorize(&mut self, options: &Incompressible, probe: &Probe<'_>) -> Found {
        if probe.size() < options.min_size {
            return Ok(None);
        }
        let mut fragments = Cut::default();
        let mut position = 0;
        while let Some((start, end)) = probe.data(position, probe.size())? {
            fragments.push(StreamKey::DEFAULT, start - position);
            let (mut total, mut compressed) = (0, 0);
            let mut at = start;
            while at < end {
                let size = options.block_size.min(end - at);
                let result = self.compressed_size(options, probe, at, size)?;
                if options.fragments {
                    fragments.push(judged(options, result, size), size);
                }
                total += size;
                compressed += result;
                at += size;
            }
            if !options.fragments {
                fragments.push(judged(options, compressed, total), total);
            }
            position = end;
        }
        fragments.push(StreamKey::DEFAULT, probe.size() - position);
        let found = options.fragments || fragments.iter().any(|p| p.key != StreamKey::DEFAULT);
        Ok(found.then_some(fragments))
    }

    /// Size after compression; at most `size`.
    fn compressed_size(
        &mut self,
        options: &Incompressible,
        probe: &Probe<'_>,
        offset: u64,
        size: u64,
    ) -> io::Result<u64> {
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        let unit = self.buffer.get_mut(..length).unwrap_or_default();
        probe.read(offset, unit)?;
        if self.compressor.is_none() {
            self.compressor = options.codec().map(|codec| codec.compressor());
        }
        let Some(compressor) = &mut self.compressor else {
            return Ok(size);
        };
        let compressed = compressor.compress(unit).map_err(io::Error::other)?;
        Ok(compressed.data.map_or(size, |data| data.len() as u64))
    }
}

fn judged(options: &Incompressible, compressed: u64, size: u64) -> StreamKey {
    if compressed as f64 >= options.ratio * size as f64 {
        StreamKey::plain(Category::Incompressible)
    } else {
        StreamKey::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::tests::{probe, shape};
    use super::*;

    fn noise(size: usize) -> Vec<u8> {
        let mut x = 0x2545_f491_4f6c_dd1du64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..size).map(|_| next()).collect()
    }

    fn test(options: &Incompressible, data: &[u8]) -> Option<Vec<(Category, u64)>> {
        shape(Tester::default().categorize(options, &probe(data)))
    }

    #[test]
    fn whole_files() {
        let options = Incompressible::default();
        let noise = noise(3 << 20);
        let whole = Some(vec![(Category::Incompressible, 3 << 20)]);
        assert_eq!(test(&options, &noise), whole);
        assert_eq!(test(&options, &noise[..255]), None);
        assert!(test(&options, &noise[..256]).is_some());
        assert_eq!(test(&options, &vec![7; 1 << 20]), None);
        // Two thirds of noise are not enough, unless the ratio says so.
        let mut mixed = noise.clone();
        mixed[..1 << 20].fill(1);
        assert_eq!(test(&options, &mixed), None);
        let lenient = Incompressible {
            ratio: 0.5,
            ..options
        };
        assert_eq!(test(&lenient, &mixed), whole);
    }

    #[test]
    fn fragments() {
        let options = Incompressible {
            fragments: true,
            block_size: 1 << 16,
            ..Incompressible::default()
        };
        let mut data = noise(1 << 19);
        data[1 << 17..1 << 18].fill(9);
        let parts = vec![
            (Category::Incompressible, 1 << 17),
            (Category::Default, 1 << 17),
            (Category::Incompressible, 1 << 18),
        ];
        assert_eq!(test(&options, &data), Some(parts));
        let flat = Some(vec![(Category::Default, 1000)]);
        assert_eq!(test(&options, &[0; 1000]), flat);
    }

    #[test]
    fn ranges() {
        let good = Incompressible::default();
        assert!(good.check().is_ok());
        let changes: [fn(&mut Incompressible); 5] = [
            |o| o.block_size = 0,
            |o| o.ratio = 1.5,
            |o| o.ratio = f64::NAN,
            |o| o.zstd_level = 23,
            |o| o.zstd_level = -131_073,
        ];
        for change in changes {
            let mut options = good.clone();
            change(&mut options);
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
