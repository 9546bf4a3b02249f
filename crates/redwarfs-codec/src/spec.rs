//! Codec specs: a codec with its settings, parsed from `name[:key[=value]]...`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::codec::{Encode, Encoding, Settings};
use crate::codecs::{ENCODINGS, codec_names, missing_codec_names};
use crate::content::{Content, ContentKind};
use crate::grammar::{Kind, SpecError, Values};
use crate::null::Null;
use crate::{Error, null};

/// A codec with its settings.
///
/// Parsed from `name[:key[=value]]...`; [`help`] lists names and options. Displays
/// as its canonical form, which parses to an equal value.
#[derive(Debug, Clone)]
pub struct CodecSpec {
    /// `None` if this build is without the codec.
    codec: Option<&'static Encoding>,
    settings: Arc<dyn Settings>,
    canonical: String,
}

impl PartialEq for CodecSpec {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for CodecSpec {}

impl CodecSpec {
    /// The codec that stores blocks uncompressed, `null`.
    pub fn none() -> Self {
        Self {
            codec: Some(&null::ENCODING),
            settings: Arc::new(Null),
            canonical: null::ENCODING.name.to_owned(),
        }
    }

    /// A spec that is known to be correct, such as one of a preset. If this build is without its codec,
    /// the result is not [available](Self::is_available).
    ///
    /// # Errors
    ///
    /// As parsing, for everything but a codec that is not in this build.
    pub fn preset(text: &str) -> Result<Self, SpecError> {
        match text.parse() {
            Err(SpecError::Unsupported { .. }) => Ok(Self {
                codec: None,
                settings: Arc::new(NotInThisBuild(text.to_owned())),
                canonical: text.to_owned(),
            }),
            parsed => parsed,
        }
    }

    /// Whether this build has the codec. A [`Compressor`](crate::Compressor) of a codec that it is
    /// without refuses every block.
    pub fn is_available(&self) -> bool {
        self.codec.is_some()
    }

    /// The same as a result, with a message that names the codecs that there are.
    ///
    /// # Errors
    ///
    /// [`SpecError::Unsupported`] if this build is without the codec.
    pub fn check_available(&self) -> Result<(), SpecError> {
        match self.codec {
            Some(_) => Ok(()),
            None => Err(unsupported(&self.canonical)),
        }
    }

    /// What this codec compresses: anything, which is [`ContentKind::Bytes`], or only blocks of
    /// one kind.
    pub fn requires(&self) -> ContentKind {
        self.codec.map_or(ContentKind::Bytes, |codec| codec.takes)
    }

    pub(crate) fn codec(&self) -> Option<&'static Encoding> {
        self.codec
    }

    pub(crate) fn settings(&self) -> &dyn Settings {
        &*self.settings
    }

    /// Whether this codec can compress blocks of `content`.
    pub fn accepts(&self, content: &Content) -> bool {
        match (self.requires(), content) {
            (ContentKind::Bytes, _) => true,
            (ContentKind::Pcm, Content::Pcm(format)) => format.is_valid(),
            (ContentKind::Pixels, Content::Pixels(format)) => format.is_valid(),
            _ => false,
        }
    }

    /// The unit in bytes of blocks of `content`: no chunk of a file and no block may end inside of a
    /// unit. It is 1 for codecs that accept any bytes.
    pub fn granularity(&self, content: &Content) -> usize {
        match (self.requires(), content) {
            (ContentKind::Pcm, Content::Pcm(format)) => format.frame_bytes(),
            (ContentKind::Pixels, Content::Pixels(format)) => format.group_bytes(),
            _ => 1,
        }
    }
}

impl FromStr for CodecSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            return Err(SpecError::MissingName);
        }
        let Some(codec) = ENCODINGS.iter().find(|codec| codec.name == name) else {
            return Err(if missing_codec_names().contains(&name) {
                unsupported(name)
            } else {
                SpecError::UnknownName {
                    name: name.to_owned(),
                    known: codec_names().join(", "),
                }
            });
        };
        let values = Values::parse(codec.name, codec.options, parts)?;
        Ok(Self {
            codec: Some(codec),
            settings: (codec.settings)(&values)?,
            canonical: values.canonical(),
        })
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.canonical)
    }
}

/// The error for a codec that this build is without.
fn unsupported(name: &str) -> SpecError {
    SpecError::Unsupported {
        name: name.to_owned(),
        known: codec_names().join(", "),
    }
}

/// The settings of a codec that this build is without: the spec.
#[derive(Debug, Clone)]
struct NotInThisBuild(String);

impl Settings for NotInThisBuild {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(self.clone())
    }

    fn memory(&self, _raw_size: usize) -> u64 {
        0
    }
}

impl Encode for NotInThisBuild {
    fn compress(
        &mut self,
        _raw: &[u8],
        _content: &Content,
        _probed: Option<usize>,
    ) -> crate::Result<Option<Vec<u8>>> {
        let spec = &self.0;
        let problem = format!("compression '{spec}' is not in this build");
        Err(Error::Unsupported(problem))
    }
}

/// The codecs with their options, ranges and defaults, for a help text. Lines are
/// indented by two spaces and end with a line break.
pub fn help() -> String {
    /// Columns of the name and value of an option.
    const USAGE: usize = 24;
    let mut text = String::new();
    for codec in ENCODINGS {
        text.push_str("  ");
        text.push_str(codec.name);
        text.push('\n');
        for option in codec.options {
            let value = match (&option.kind, option.range()) {
                (Kind::Choice(choices), _) => format!("={}", choices.join("|")),
                (_, Some(range)) => format!("={}..{}", range.start(), range.end()),
                _ => String::new(),
            };
            let usage = format!("{}{value}", option.key);
            let default = option
                .default
                .map_or_else(String::new, |default| format!(" (default: {default})"));
            if usage.len() > USAGE {
                text.push_str(&format!("    {usage}\n    {:USAGE$}", ""));
            } else {
                text.push_str(&format!("    {usage:<USAGE$}"));
            }
            text.push_str(&format!(" {}{default}\n", option.help));
        }
    }
    text
}
