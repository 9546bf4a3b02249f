//! The content of a block, as far as a codec can use it.

use std::fmt;

use serde_json::Value;

use crate::{Error, Result};

/// Order of the bytes of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    pub(crate) fn is_big(self) -> bool {
        self == Self::Big
    }

    pub(crate) fn from_big(big: bool) -> Self {
        if big { Self::Big } else { Self::Little }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Big => "big",
        }
    }
}

/// The place of the unused bits in the container of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Above the value, which is sign- or zero-extended.
    Msb,
    /// Below the value, as zeros.
    Lsb,
}

impl Padding {
    fn name(self) -> &'static str {
        match self {
            Self::Msb => "msb",
            Self::Lsb => "lsb",
        }
    }
}

/// Layout of PCM audio: frames of one sample per channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PcmFormat {
    /// Samples of a frame, 1..=8.
    pub channels: u8,
    /// Significant bits of a sample, 8..=32 and no more than its bytes hold.
    pub bits: u8,
    /// Bytes that a sample takes, 1..=4.
    pub bytes: u8,
    /// Order of these bytes.
    pub byte_order: ByteOrder,
    /// Whether samples are in two's complement; otherwise zero is the lowest value.
    pub signed: bool,
    /// Where the bits are that a sample leaves unused.
    pub padding: Padding,
}

impl PcmFormat {
    /// Whether all numbers are in their ranges.
    pub fn is_valid(&self) -> bool {
        (1..=8).contains(&self.channels)
            && (1..=4).contains(&self.bytes)
            && (8..=32).contains(&self.bits)
            && self.bits <= 8 * self.bytes
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        usize::from(self.channels) * usize::from(self.bytes)
    }
}

/// Bytes of a component of a pixel: the only size there is.
pub(crate) const BYTES_PER_PIXEL: u8 = 2;

/// Layout of images with 16 bits per pixel and component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PixelFormat {
    /// Components that take turns in the data, 1..=2.
    pub components: u8,
    /// Low bits that are zero in every value, 0..=8.
    pub unused_lsb: u8,
    /// Order of the two bytes of a value.
    pub byte_order: ByteOrder,
}

impl PixelFormat {
    /// Whether all numbers are in their ranges.
    pub fn is_valid(&self) -> bool {
        (1..=2).contains(&self.components) && self.unused_lsb <= 8
    }

    /// Bytes of a group of components.
    pub fn group_bytes(&self) -> usize {
        2 * usize::from(self.components)
    }
}

/// The content of a block.
///
/// Categorizers find it out, images keep it as one JSON text for each kind of content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Content {
    /// Nothing is known.
    #[default]
    Bytes,
    /// PCM audio.
    Pcm(PcmFormat),
    /// Pixels of 16 bits.
    Pixels(PixelFormat),
}

/// A kind of content, without its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContentKind {
    /// [`Content::Bytes`]
    Bytes,
    /// [`Content::Pcm`]
    Pcm,
    /// [`Content::Pixels`]
    Pixels,
}

impl fmt::Display for ContentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bytes => "bytes",
            Self::Pcm => "PCM audio",
            Self::Pixels => "16-bit pixels",
        })
    }
}

impl Content {
    /// The kind of this content.
    pub fn kind(&self) -> ContentKind {
        match self {
            Self::Bytes => ContentKind::Bytes,
            Self::Pcm(_) => ContentKind::Pcm,
            Self::Pixels(_) => ContentKind::Pixels,
        }
    }

    /// Reads the JSON text of an image's category metadata.
    ///
    /// An object that describes neither audio nor pixels, or describes some that no codec takes,
    /// is [`Content::Bytes`]. Keys that are not needed are ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the text is not a JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        let Ok(Value::Object(keys)) = serde_json::from_str(text) else {
            return Err(Error::corrupt("category metadata is not a JSON object"));
        };
        let number = |key: &str| u8::try_from(keys.get(key)?.as_u64()?).ok();
        let word = |key: &str| keys.get(key)?.as_str();
        let byte_order = || match word("endianness")? {
            "little" => Some(ByteOrder::Little),
            "big" => Some(ByteOrder::Big),
            _ => None,
        };
        let pcm = || {
            Some(PcmFormat {
                channels: number("number_of_channels")?,
                bits: number("bits_per_sample")?,
                bytes: number("bytes_per_sample")?,
                byte_order: byte_order()?,
                signed: match word("signedness")? {
                    "signed" => true,
                    "unsigned" => false,
                    _ => return None,
                },
                padding: match word("padding")? {
                    "msb" => Padding::Msb,
                    "lsb" => Padding::Lsb,
                    _ => return None,
                },
            })
        };
        let pixels = || {
            (number("bytes_per_sample")? == BYTES_PER_PIXEL).then_some(())?;
            Some(PixelFormat {
                components: number("component_count")?,
                unused_lsb: number("unused_lsb_count")?,
                byte_order: byte_order()?,
            })
        };
        if let Some(format) = pcm().filter(PcmFormat::is_valid) {
            return Ok(Self::Pcm(format));
        }
        if let Some(format) = pixels().filter(PixelFormat::is_valid) {
            return Ok(Self::Pixels(format));
        }
        Ok(Self::Bytes)
    }

    /// The JSON text that images keep, keys in alphabetical order and without spaces. `None` for
    /// [`Content::Bytes`].
    pub fn to_json(&self) -> Option<String> {
        match self {
            Self::Bytes => None,
            Self::Pcm(format) => Some(format!(
                "{{\"bits_per_sample\":{},\"bytes_per_sample\":{},\"endianness\":\"{}\",\
                 \"number_of_channels\":{},\"padding\":\"{}\",\"signedness\":\"{}\"}}",
                format.bits,
                format.bytes,
                format.byte_order.name(),
                format.channels,
                format.padding.name(),
                if format.signed { "signed" } else { "unsigned" },
            )),
            Self::Pixels(format) => Some(format!(
                "{{\"bytes_per_sample\":{},\"component_count\":{},\"endianness\":\"{}\",\
                 \"unused_lsb_count\":{}}}",
                BYTES_PER_PIXEL,
                format.components,
                format.byte_order.name(),
                format.unused_lsb,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails by panicking

    use super::*;

    #[test]
    fn json_is_read_and_written_as_images_have_it() {
        let pcm = PcmFormat {
            channels: 2,
            bits: 16,
            bytes: 2,
            byte_order: ByteOrder::Little,
            signed: true,
            padding: Padding::Lsb,
        };
        let pixels = PixelFormat {
            components: 1,
            unused_lsb: 4,
            byte_order: ByteOrder::Big,
        };
        let table = [
            (
                Content::Pcm(pcm),
                r#"{"bits_per_sample":16,"bytes_per_sample":2,"endianness":"little","number_of_channels":2,"padding":"lsb","signedness":"signed"}"#,
            ),
            (
                Content::Pcm(PcmFormat {
                    bits: 8,
                    bytes: 1,
                    byte_order: ByteOrder::Big,
                    signed: false,
                    padding: Padding::Msb,
                    ..pcm
                }),
                r#"{"bits_per_sample":8,"bytes_per_sample":1,"endianness":"big","number_of_channels":2,"padding":"msb","signedness":"unsigned"}"#,
            ),
            (
                Content::Pixels(pixels),
                r#"{"bytes_per_sample":2,"component_count":1,"endianness":"big","unused_lsb_count":4}"#,
            ),
        ];
        for (content, json) in table {
            assert_eq!(content.to_json().as_deref(), Some(json));
            assert_eq!(Content::from_json(json).unwrap(), content);
            let spaced = json
                .replace(',', " , ")
                .replace('{', "{ \"more\": [null], ");
            assert_eq!(Content::from_json(&spaced).unwrap(), content);
        }
        assert_eq!(Content::Bytes.to_json(), None);
    }

    #[test]
    fn json_that_no_codec_takes_is_bytes() {
        let pcm = r#"{"bits_per_sample":16,"bytes_per_sample":2,"endianness":"little","number_of_channels":2,"padding":"lsb","signedness":"signed"}"#;
        let pixels =
            r#"{"bytes_per_sample":2,"component_count":1,"endianness":"big","unused_lsb_count":4}"#;
        for (text, from, to) in [
            (pcm, ":16", ":7"),
            (pcm, ":16", ":17"),
            (pcm, ":16", ":256"),
            (pcm, ":16", ":-16"),
            (pcm, ":16", ":\"16\""),
            (pcm, "little", "middle"),
            (pcm, "lsb", "none"),
            (pcm, "signed\"}", "both\"}"),
            (pcm, "channels\":2", "channels\":9"),
            (pcm, "channels\":2", "channels\":0"),
            (pixels, "sample\":2", "sample\":4"),
            (pixels, "count\":1", "count\":3"),
            (pixels, "count\":4", "count\":9"),
            (pixels, "endianness", "byteorder"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            assert_eq!(
                Content::from_json(&changed).unwrap(),
                Content::Bytes,
                "{changed}"
            );
        }
        assert_eq!(Content::from_json("{}").unwrap(), Content::Bytes);
        for text in ["", "[]", "1", "{", "{\"a\":}"] {
            assert!(Content::from_json(text).is_err(), "{text}");
        }
    }
}
