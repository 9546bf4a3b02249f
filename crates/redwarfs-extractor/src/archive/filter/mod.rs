//! The filters that need no libarchive: gzip, and zstd in a build that has the codec.

#[cfg(feature = "zstd")]
mod zstd;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::Error;

/// The filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnFilter {
    Gzip,
    #[cfg(feature = "zstd")]
    Zstd,
}

impl OwnFilter {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "gzip" => Some(Self::Gzip),
            #[cfg(feature = "zstd")]
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Calls `write` with what passes bytes through the filter to `out`, and ends the stream.
    pub(crate) fn with<T>(
        self,
        out: &mut dyn Write,
        write: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self {
            Self::Gzip => {
                let mut filter = GzEncoder::new(out, Compression::default());
                let done = write(&mut Unflushed(&mut filter))?;
                let ended = filter.finish().and_then(Write::flush);
                ended.map_err(Error::Output)?;
                Ok(done)
            }
            #[cfg(feature = "zstd")]
            Self::Zstd => {
                let mut filter = zstd::Zstd::new(out).map_err(Error::Output)?;
                let done = write(&mut Unflushed(&mut filter))?;
                filter.finish().map_err(Error::Output)?;
                Ok(done)
            }
        }
    }
}

/// Keeps a filter from ending a block at the end of the archive, and another one after it.
struct Unflushed<'a>(&'a mut dyn Write);

impl Write for Unflushed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn passed(filter: OwnFilter, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let write = |to: &mut dyn Write| {
            for piece in data.chunks(70_000) {
                to.write_all(piece).unwrap();
                to.flush().unwrap();
            }
            Ok(())
        };
        filter.with(&mut out, write).unwrap();
        out
    }

    #[test]
    fn streams_come_back() {
        let long: Vec<u8> = (0..1_000_000_u32)
            .map(|n| (n.wrapping_mul(n) >> 9) as u8)
            .collect();
        for data in [&b""[..], b"x", &long] {
            let mut back = Vec::new();
            flate2::read::GzDecoder::new(&passed(OwnFilter::Gzip, data)[..])
                .read_to_end(&mut back)
                .unwrap();
            assert!(back == data);
            #[cfg(feature = "zstd")]
            {
                let packed = passed(OwnFilter::Zstd, data);
                let mut back = Vec::with_capacity(data.len() + 1);
                zstd_safe::decompress(&mut back, &packed).unwrap();
                assert!(back == data);
            }
        }
    }

    #[test]
    fn an_error_of_the_archive_is_the_result() {
        let mut out = Vec::new();
        for name in ["gzip", "zstd"] {
            let Some(filter) = OwnFilter::named(name) else {
                continue;
            };
            let done = filter.with(&mut out, |_| Err::<(), _>(Error::Spec("no".to_owned())));
            assert_eq!(done.unwrap_err().to_string(), "no");
        }
    }
}
