//! How to open an image.

use std::fmt;
use std::str::FromStr;

/// Where the image starts in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageOffset {
    /// Search for it (format chapter 01, section 6).
    #[default]
    Auto,
    /// At this byte.
    At(u64),
}

impl FromStr for ImageOffset {
    type Err = ParseOffsetError;

    /// Accepts `auto` or a decimal number.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s == "auto" {
            return Ok(Self::Auto);
        }
        if let Some(digits) = s.strip_prefix('-')
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(ParseOffsetError("image offset must be positive".to_owned()));
        }
        if !s.starts_with('+')
            && let Ok(offset) = s.parse()
        {
            return Ok(Self::At(offset));
        }
        Err(ParseOffsetError(format!(
            "failed to parse image offset: {s}"
        )))
    }
}

impl fmt::Display for ImageOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::At(offset) => offset.fmt(f),
        }
    }
}

/// The text is no image offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseOffsetError(String);

/// Everything that can be chosen when opening an image.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OpenOptions {
    /// Where the image starts. Searched for by default.
    pub offset: ImageOffset,
    /// Size of the image in bytes if it ends before the end of the file.
    pub image_size: Option<u64>,
    /// Check the consistency of all metadata (format chapter 04, section 12). Images with
    /// 8-byte section headers have no checksums and are always checked.
    pub check: bool,
    /// The block cache.
    pub cache: CacheOptions,
}

/// Options of the block cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheOptions {
    /// Bytes that blocks not in use may take; 512 MiB by default. 0 keeps nothing.
    pub size: u64,
    /// Threads that decode ahead of the readers; 2 by default, 0 behaves as 1. They start when
    /// they are first needed.
    pub workers: usize,
    /// If the last so many blocks requested are consecutive, the next one is decoded ahead;
    /// 4 by default, 0 is off.
    pub seq_detector: usize,
    /// A block of which at least this share (0 to 1) is decoded is decoded to its end, which
    /// frees the state of the decoder; 0.8 by default, above 1 is never.
    pub partial_ratio: f64,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            size: 512 << 20,
            workers: 2,
            seq_detector: 4,
            partial_ratio: 0.8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_parse() {
        let good = [
            ("auto", ImageOffset::Auto),
            ("0", ImageOffset::At(0)),
            ("18446744073709551615", ImageOffset::At(u64::MAX)),
        ];
        for (text, offset) in good {
            assert_eq!(text.parse(), Ok(offset));
            assert_eq!(offset.to_string(), text);
        }
        for (text, message) in [
            ("-1", "image offset must be positive"),
            ("foo", "failed to parse image offset: foo"),
            ("", "failed to parse image offset: "),
            ("+1", "failed to parse image offset: +1"),
            ("1k", "failed to parse image offset: 1k"),
            (
                "18446744073709551616",
                "failed to parse image offset: 18446744073709551616",
            ),
        ] {
            let e = text.parse::<ImageOffset>().unwrap_err();
            assert_eq!(e.to_string(), message);
        }
    }
}
