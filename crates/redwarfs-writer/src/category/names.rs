//! Names of categories, and the key that identifies a stream.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use redwarfs_codec::{ByteOrder, CodecSpec, Content, ContentKind, Padding, PcmFormat, PixelFormat};

/// The category of a part of a file. Categories are in the order of their names, which is the order of
/// the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// All data that no categorizer claims, `<default>`.
    Default,
    /// ELF files.
    BinaryElf,
    /// Data between the parts of Mach-O files for several machines.
    BinaryMachoHeader,
    /// Mach-O files, and the parts of Mach-O files for several machines.
    BinaryMachoSection,
    /// PE files.
    BinaryPe,
    /// Pixels of FITS files.
    FitsImage,
    /// Headers of FITS files, and data after the image.
    FitsMetadata,
    /// Files from a list.
    Hotness,
    /// Data that does not get smaller.
    Incompressible,
    /// Data before and after the samples of audio files.
    PcmMetadata,
    /// Samples of audio files.
    PcmWaveform,
    /// A category of an [`EntryHook`](crate::EntryHook), which no categorizer finds.
    Named(CategoryName),
}

/// The name of a category that is not built in: 1 to [`MAX`](Self::MAX) letters and digits of
/// ASCII and `_`, `-`, `+`, `.`, `/`. 32 bytes, the name included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CategoryName {
    size: u8,
    bytes: [u8; Self::MAX],
}

impl CategoryName {
    /// Longest name in bytes.
    pub const MAX: usize = 31;

    fn new(name: &str) -> Option<Self> {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"_-+./".contains(&b);
        let mut bytes = [0; Self::MAX];
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        let size = u8::try_from(name.len()).ok()?;
        (size > 0 && name.bytes().all(good)).then_some(Self { size, bytes })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.size));
        str::from_utf8(name.unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Debug for CategoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A name that no category can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad name of a category: '{0}' (1 to {max} letters, digits, or any of _ - + . /)",
    max = CategoryName::MAX
)]
pub struct BadCategoryName(pub String);

/// A name that no category has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown category: '{0}' (one of {names})", names = names())]
pub struct UnknownCategory(pub String);

fn names() -> String {
    let names: Vec<&str> = Category::ALL.iter().map(Category::name).collect();
    names.join(", ")
}

impl Category {
    /// All categories that are built in, in the order of their names.
    pub const ALL: [Category; 11] = [
        Self::Default,
        Self::BinaryElf,
        Self::BinaryMachoHeader,
        Self::BinaryMachoSection,
        Self::BinaryPe,
        Self::FitsImage,
        Self::FitsMetadata,
        Self::Hotness,
        Self::Incompressible,
        Self::PcmMetadata,
        Self::PcmWaveform,
    ];

    /// The category with this name, built in or not.
    ///
    /// # Errors
    /// The name is neither built in nor valid for [`CategoryName`].
    pub fn named(name: &str) -> Result<Self, BadCategoryName> {
        name.parse().or_else(|_| {
            let name = CategoryName::new(name).ok_or_else(|| BadCategoryName(name.to_owned()))?;
            Ok(Self::Named(name))
        })
    }

    /// The category of long values of extended attributes.
    pub(crate) fn of_xattrs() -> Self {
        CategoryName::new("xattr").map_or(Self::Default, Self::Named)
    }

    /// The name that images and options use.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Default => "<default>",
            Self::BinaryElf => "binary/elf",
            Self::BinaryMachoHeader => "binary/macho-header",
            Self::BinaryMachoSection => "binary/macho-section",
            Self::BinaryPe => "binary/pe",
            Self::FitsImage => "fits/image",
            Self::FitsMetadata => "fits/metadata",
            Self::Hotness => "hotness",
            Self::Incompressible => "incompressible",
            Self::PcmMetadata => "pcmaudio/metadata",
            Self::PcmWaveform => "pcmaudio/waveform",
            Self::Named(name) => name.as_str(),
        }
    }

    /// Name of the categorizer that finds it; `None` for the default category, and for categories that
    /// are not built in.
    #[must_use]
    pub fn categorizer(&self) -> Option<&str> {
        let name = self.name();
        (!matches!(self, Self::Default | Self::Named(_)))
            .then(|| name.split_once('/').map_or(name, |(before, _)| before))
    }

    /// The kind of content of its blocks.
    #[must_use]
    pub fn content_kind(&self) -> ContentKind {
        match self {
            Self::FitsImage => ContentKind::Pixels,
            Self::PcmWaveform => ContentKind::Pcm,
            _ => ContentKind::Bytes,
        }
    }
}

impl Ord for Category {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for Category {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Category {
    type Err = UnknownCategory;

    fn from_str(name: &str) -> Result<Self, UnknownCategory> {
        Self::ALL
            .into_iter()
            .find(|category| category.name() == name)
            .ok_or_else(|| UnknownCategory(name.to_owned()))
    }
}

/// The kind of a stream within its category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plain,
    /// Machine code. The number identifies the machine, by category (format/07 section 4).
    Machine(u64),
    Pcm(PcmFormat),
    Pixels(PixelFormat),
}

/// A category and the kind of stream; in the order of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamKey {
    pub(crate) category: Category,
    pub(crate) kind: Kind,
}

impl StreamKey {
    pub(crate) const DEFAULT: Self = Self::plain(Category::Default);

    pub(crate) const fn plain(category: Category) -> Self {
        Self {
            category,
            kind: Kind::Plain,
        }
    }

    /// Position among the streams of the category.
    fn rank(&self) -> u64 {
        let big = |order: ByteOrder| u64::from(order == ByteOrder::Big);
        match self.kind {
            Kind::Plain => 0,
            Kind::Machine(machine) => machine,
            Kind::Pcm(format) => {
                big(format.byte_order) << 40
                    | u64::from(!format.signed) << 32
                    | u64::from(format.padding == Padding::Msb) << 24
                    | u64::from(format.bits) << 16
                    | u64::from(format.bytes) << 8
                    | u64::from(format.channels)
            }
            Kind::Pixels(format) => {
                big(format.byte_order) << 16
                    | u64::from(format.unused_lsb) << 8
                    | u64::from(format.components)
            }
        }
    }

    pub(crate) fn content(&self) -> Content {
        match self.kind {
            Kind::Pcm(format) => Content::Pcm(format),
            Kind::Pixels(format) => Content::Pixels(format),
            Kind::Plain | Kind::Machine(_) => Content::Bytes,
        }
    }

    /// The text that the image stores about blocks of this stream.
    pub(crate) fn json(&self) -> Option<String> {
        self.content().to_json()
    }

    /// Size of a unit in bytes: no chunk and no block ends within a unit. It does not depend on the
    /// codec, so that blocks can later be compressed with any codec.
    pub(crate) fn granularity(&self) -> u64 {
        match self.kind {
            Kind::Pcm(format) if format.is_valid() => format.frame_bytes() as u64,
            Kind::Pixels(format) => format.group_bytes() as u64,
            // No codec needs whole frames with this many channels.
            Kind::Pcm(_) | Kind::Plain | Kind::Machine(_) => 1,
        }
    }

    /// `codec` with the branch filter for the machine code of this stream, if it can have one.
    pub(crate) fn tune(&self, codec: &CodecSpec) -> CodecSpec {
        let text = codec.to_string();
        let plain_lzma = text.split(':').next() == Some("lzma") && !text.contains(":binary=");
        self.branch_filter()
            .filter(|_| plain_lzma)
            .and_then(|filter| format!("{text}:binary={filter}").parse().ok())
            .unwrap_or_else(|| codec.clone())
    }

    /// Name of the branch filter for the machine.
    fn branch_filter(&self) -> Option<&'static str> {
        let Kind::Machine(key) = self.kind else {
            return None;
        };
        match self.category {
            Category::BinaryElf => {
                let big = key >> 48 & 0xff == 2;
                match (key & 0xffff, big) {
                    (3 | 62, _) => Some("x86"),
                    (20 | 21, true) => Some("powerpc"),
                    (50, _) => Some("ia64"),
                    (40, false) => Some("arm"),
                    (183, false) => Some("arm64"),
                    (2 | 18 | 43, true) => Some("sparc"),
                    _ => None,
                }
            }
            Category::BinaryPe => match key & 0xffff {
                0x14c | 0x8664 => Some("x86"),
                0x200 => Some("ia64"),
                0x1c0 => Some("arm"),
                0x1c2 | 0x1c4 => Some("armthumb"),
                0xaa64 => Some("arm64"),
                _ => None,
            },
            Category::BinaryMachoSection => {
                let wide = key >> 62 & 1 == 1;
                match (key & 0xf_ffff, wide) {
                    (7, _) => Some("x86"),
                    (12, true) => Some("arm64"),
                    (12, false) => Some("armthumb"),
                    (18, _) => Some("powerpc"),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl Ord for StreamKey {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.category, self.rank()).cmp(&(other.category, other.rank()))
    }
}

impl PartialOrd for StreamKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_parse() {
        for pair in Category::ALL.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].name() < pair[1].name());
        }
        for category in Category::ALL {
            assert_eq!(category.name().parse(), Ok(category));
            let finder = category.categorizer();
            assert!(finder.is_none_or(|f| crate::Categorizer::NAMES.contains(&f)));
        }
        assert!("hot".parse::<Category>().is_err());
    }

    #[test]
    fn names_that_are_not_built_in() {
        let longest = "x".repeat(CategoryName::MAX);
        for name in ["a", "Media/video-2.1_b+", longest.as_str()] {
            let category = Category::named(name).unwrap();
            assert_eq!(category.name(), name);
            assert!(matches!(category, Category::Named(_)), "{name}");
            assert_eq!(category.categorizer(), None);
            assert_eq!(category.content_kind(), ContentKind::Bytes);
        }
        for category in Category::ALL {
            assert_eq!(Category::named(category.name()), Ok(category));
        }
        let long = "x".repeat(CategoryName::MAX + 1);
        for bad in [
            "",
            "a b",
            "a,b",
            "a::b",
            "<default",
            "ä",
            "a\0",
            long.as_str(),
        ] {
            assert_eq!(Category::named(bad), Err(BadCategoryName(bad.to_owned())));
        }
        let of = |name| Category::named(name).unwrap();
        assert!(of("<default>") < of("a") && of("binary/elf") < of("binary/elg"));
        assert!(of("zebra") > of("pcmaudio/waveform"));
    }

    #[test]
    fn streams_of_audio_are_sorted_by_parameters() {
        let pcm = |byte_order, signed, padding, bits, bytes, channels| StreamKey {
            category: Category::PcmWaveform,
            kind: Kind::Pcm(PcmFormat {
                channels,
                bits,
                bytes,
                byte_order,
                signed,
                padding,
            }),
        };
        use {ByteOrder::*, Padding::*};
        let sorted = [
            pcm(Little, true, Lsb, 16, 2, 2),
            pcm(Little, true, Lsb, 20, 3, 1),
            pcm(Little, true, Lsb, 20, 3, 2),
            pcm(Little, true, Lsb, 20, 4, 1),
            pcm(Little, true, Msb, 16, 4, 1),
            pcm(Little, false, Lsb, 8, 1, 1),
            pcm(Big, true, Lsb, 8, 1, 1),
        ];
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(sorted[1].granularity(), 3);
        assert!(StreamKey::DEFAULT < sorted[0]);
    }

    #[test]
    fn branch_filters_by_machine() {
        let key = |category, machine| StreamKey {
            category,
            kind: Kind::Machine(machine),
        };
        let lzma: CodecSpec = "lzma:level=9".parse().unwrap();
        let cases = [
            (key(Category::BinaryElf, 1 << 48 | 62), "x86"),
            (key(Category::BinaryElf, 2 << 48 | 21), "powerpc"),
            (key(Category::BinaryElf, 1 << 48 | 183), "arm64"),
            (key(Category::BinaryPe, 0x8664), "x86"),
            (key(Category::BinaryMachoSection, 1 << 62 | 12), "arm64"),
            (key(Category::BinaryMachoSection, 12), "armthumb"),
        ];
        for (key, filter) in cases {
            let tuned = key.tune(&lzma).to_string();
            assert!(tuned.ends_with(&format!(":binary={filter}")), "{tuned}");
        }
        for key in [
            key(Category::BinaryElf, 1 << 48 | 21),
            key(Category::BinaryElf, 1 << 48 | 243),
            StreamKey::DEFAULT,
        ] {
            assert_eq!(key.tune(&lzma), lzma);
        }
        let elf = key(Category::BinaryElf, 62);
        for given in ["zstd:level=3", "lzma:level=1:binary=arm"] {
            let given: CodecSpec = given.parse().unwrap();
            assert_eq!(elf.tune(&given), given);
        }
    }
}
