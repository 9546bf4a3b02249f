//! The grammar of codec selection: `name[:key[=value]]...`.
//!
//! Everything that can be wrong with a spec is found here, before any work starts:
//! an unknown name or key, a key given twice, a missing or superfluous value, and
//! numbers out of range. Each error is one line that names option and codec.

use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::str::FromStr;

use zstd_safe::zstd_sys::ZSTD_cParameter as Z;

use crate::compress::Compressor;
use crate::content::{Content, ContentKind};
#[cfg(feature = "flac")]
use crate::options::FlacOptions;
use crate::options::{Branch, Filter, LzmaOptions, MatchFinder, Mode, Options, ZstdOptions};
use crate::{brotli_codec, lz4, ricepp, xz, zstd};

/// What is wrong with a codec spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The spec is empty or starts with a colon.
    #[error("missing compression name")]
    MissingName,
    /// No codec has this name.
    #[error("unknown compression: {0} (one of {names})", names = codec_names())]
    UnknownName(String),
    /// The codec exists in the format, but this build is without it.
    #[error("compression '{0}' is not in this build")]
    Unsupported(&'static str),
    /// Keys that the codec does not have, separated by commas.
    #[error("invalid option(s) for choice '{codec}': {keys} ({advice})", advice = advice(codec, keys))]
    UnknownOptions {
        /// Name of the codec.
        codec: &'static str,
        /// The keys, in the order given.
        keys: String,
    },
    /// A key that needs a value has none.
    #[error("missing value for option '{option}' of choice '{codec}'")]
    MissingValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A flag was given a value.
    #[error("value not allowed for option '{option}' of choice '{codec}'")]
    UnexpectedValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A key occurs twice.
    #[error("duplicate option '{option}' for choice '{codec}'")]
    Duplicate {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A value that is no number, out of range, or none of the choices.
    #[error("invalid option '{option}' for choice '{codec}': {problem}")]
    InvalidValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
        /// What is wrong, with the range or the choices.
        problem: String,
    },
}

/// What an option accepts.
enum Kind {
    Flag,
    /// Whole numbers of a fixed range.
    Int(RangeInclusive<i64>),
    /// Whole numbers in the range of a zstd parameter.
    Zstd(Z),
    Choice(&'static [&'static str]),
}

struct OptionDef {
    key: &'static str,
    kind: Kind,
    /// The value without the option, if it is a number known beforehand.
    default: Option<i64>,
    help: &'static str,
}

struct CodecDef {
    name: &'static str,
    options: &'static [OptionDef],
}

const fn flag(key: &'static str, help: &'static str) -> OptionDef {
    option(key, Kind::Flag, None, help)
}

const fn zstd_parameter(key: &'static str, parameter: Z, help: &'static str) -> OptionDef {
    option(key, Kind::Zstd(parameter), None, help)
}

const fn option(
    key: &'static str,
    kind: Kind,
    default: Option<i64>,
    help: &'static str,
) -> OptionDef {
    OptionDef {
        key,
        kind,
        default,
        help,
    }
}

const BRANCHES: [(&str, Filter); 9] = [
    ("x86", Filter::Fixed(Branch::X86)),
    ("powerpc", Filter::Fixed(Branch::PowerPc)),
    ("ia64", Filter::Fixed(Branch::Ia64)),
    ("arm", Filter::Fixed(Branch::Arm)),
    ("armthumb", Filter::Fixed(Branch::ArmThumb)),
    ("arm64", Filter::Fixed(Branch::Arm64)),
    ("sparc", Filter::Fixed(Branch::Sparc)),
    ("riscv", Filter::Fixed(Branch::RiscV)),
    ("auto", Filter::Automatic),
];
const BRANCH_NAMES: &[&str] = &names(BRANCHES);

const MODES: [(&str, Mode); 2] = [("fast", Mode::Fast), ("normal", Mode::Normal)];
const MODE_NAMES: &[&str] = &names(MODES);

const FINDERS: [(&str, MatchFinder); 5] = [
    ("hc3", MatchFinder::Hc3),
    ("hc4", MatchFinder::Hc4),
    ("bt2", MatchFinder::Bt2),
    ("bt3", MatchFinder::Bt3),
    ("bt4", MatchFinder::Bt4),
];
const FINDER_NAMES: &[&str] = &names(FINDERS);

const fn names<T: Copy, const N: usize>(table: [(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = table[i].0;
        i += 1;
    }
    names
}

/// The codecs in the order of the help text.
static CODECS: &[CodecDef] = &[
    CodecDef {
        name: "null",
        options: &[],
    },
    CodecDef {
        name: "zstd",
        options: &[
            option(
                "level",
                Kind::Zstd(Z::ZSTD_c_compressionLevel),
                Some(22),
                "compression level",
            ),
            flag("long", "long-distance matching over the whole block"),
            zstd_parameter("wlog", Z::ZSTD_c_windowLog, "window size (log2)"),
            zstd_parameter("hlog", Z::ZSTD_c_hashLog, "hash table size (log2)"),
            zstd_parameter("clog", Z::ZSTD_c_chainLog, "chain table size (log2)"),
            zstd_parameter("slog", Z::ZSTD_c_searchLog, "search attempts (log2)"),
            zstd_parameter("mml", Z::ZSTD_c_minMatch, "minimum match length"),
            zstd_parameter("tlen", Z::ZSTD_c_targetLength, "target length"),
            zstd_parameter("strat", Z::ZSTD_c_strategy, "strategy, fast to btultra2"),
            zstd_parameter(
                "lhlog",
                Z::ZSTD_c_ldmHashLog,
                "long-distance hash table (log2)",
            ),
            zstd_parameter("lmml", Z::ZSTD_c_ldmMinMatch, "long-distance minimum match"),
            zstd_parameter(
                "lblog",
                Z::ZSTD_c_ldmBucketSizeLog,
                "long-distance bucket (log2)",
            ),
            zstd_parameter(
                "lhrlog",
                Z::ZSTD_c_ldmHashRateLog,
                "long-distance hash rate (log2)",
            ),
            option(
                "quick",
                Kind::Int(1..=12),
                None,
                "level to use if it compresses to below 1/6",
            ),
            option(
                "deep",
                Kind::Int(2..=1000),
                None,
                "slog=6, tlen=256 if zstd 1 compresses to below 1/N",
            ),
        ],
    },
    CodecDef {
        name: "lzma",
        options: &[
            option("level", Kind::Int(0..=9), Some(9), "preset"),
            flag("extreme", "slower variant of the preset"),
            option(
                "dict_size",
                Kind::Int(12..=30),
                None,
                "dictionary size (log2)",
            ),
            option(
                "binary",
                Kind::Choice(BRANCH_NAMES),
                None,
                "branch filter to try",
            ),
            option("mode", Kind::Choice(MODE_NAMES), None, "compression mode"),
            option("mf", Kind::Choice(FINDER_NAMES), None, "match finder"),
            option("nice", Kind::Int(2..=273), None, "length of a nice match"),
            option(
                "depth",
                Kind::Int(0..=u32::MAX as i64),
                None,
                "search depth",
            ),
        ],
    },
    CodecDef {
        name: "lz4",
        options: &[],
    },
    CodecDef {
        name: "lz4hc",
        options: &[option(
            "level",
            Kind::Int(0..=12),
            Some(9),
            "compression level",
        )],
    },
    CodecDef {
        name: "brotli",
        options: &[
            option(
                "quality",
                Kind::Int(0..=11),
                Some(11),
                "compression quality",
            ),
            option("lgwin", Kind::Int(10..=30), Some(22), "window size (log2)"),
        ],
    },
    #[cfg(feature = "flac")]
    CodecDef {
        name: "flac",
        options: &[
            option("level", Kind::Int(0..=8), Some(5), "compression level"),
            flag("exhaustive", "try every model"),
        ],
    },
    CodecDef {
        name: "ricepp",
        options: &[option(
            "block_size",
            Kind::Int(16..=512),
            Some(128),
            "pixels per block",
        )],
    },
];

/// Codecs of the format that this build is without.
const MISSING: &[&str] = if cfg!(feature = "flac") {
    &[]
} else {
    &["flac"]
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Set,
    Int(i64),
    Choice(&'static str),
}

impl OptionDef {
    fn range(&self) -> Option<RangeInclusive<i64>> {
        match &self.kind {
            Kind::Int(range) => Some(range.clone()),
            Kind::Zstd(parameter) => Some(zstd::bounds(*parameter)),
            Kind::Flag | Kind::Choice(_) => None,
        }
    }

    fn parse(&self, codec: &'static str, value: Option<&str>) -> Result<Value, SpecError> {
        let option = self.key;
        let invalid = |problem: String| SpecError::InvalidValue {
            codec,
            option,
            problem,
        };
        let value = match (&self.kind, value) {
            (Kind::Flag, None) => return Ok(Value::Set),
            (Kind::Flag, Some(_)) => return Err(SpecError::UnexpectedValue { codec, option }),
            (_, None | Some("")) => return Err(SpecError::MissingValue { codec, option }),
            (_, Some(value)) => value,
        };
        if let Kind::Choice(choices) = self.kind {
            return choices
                .iter()
                .find(|choice| **choice == value)
                .map(|choice| Value::Choice(choice))
                .ok_or_else(|| invalid(format!("'{value}' is not one of {}", choices.join(", "))));
        }
        let Some(range) = self.range() else {
            unreachable!("flags and choices have been dealt with")
        };
        let Some(number) = parse_decimal(value) else {
            return Err(invalid(format!("'{value}' is not a decimal number")));
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Value::Int(number)),
            _ => Err(invalid(out_of_range(value, &range))),
        }
    }
}

fn out_of_range(value: impl fmt::Display, range: &RangeInclusive<i64>) -> String {
    format!("{value} is out of range {}..{}", range.start(), range.end())
}

/// A decimal number with an optional minus sign. `None` if it is none, `Some(None)`
/// if it is one that is too large for any range.
fn parse_decimal(text: &str) -> Option<Option<i64>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().ok())
}

/// The values of a spec, one slot for each option of the codec.
struct Values {
    codec: &'static CodecDef,
    slots: Vec<Option<Value>>,
}

impl Values {
    fn parse(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            return Err(SpecError::MissingName);
        }
        if let Some(name) = MISSING.iter().find(|known| **known == name) {
            return Err(SpecError::Unsupported(name));
        }
        let codec = CODECS
            .iter()
            .find(|codec| codec.name == name)
            .ok_or_else(|| SpecError::UnknownName(name.to_owned()))?;
        let mut slots = vec![None; codec.options.len()];
        let mut unknown = Vec::new();
        for part in parts {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            let known = codec.options.iter().zip(&mut slots);
            let Some((option, slot)) = known.into_iter().find(|(option, _)| option.key == key)
            else {
                unknown.push(if key.is_empty() { "''" } else { key });
                continue;
            };
            if slot.is_some() {
                return Err(SpecError::Duplicate {
                    codec: codec.name,
                    option: option.key,
                });
            }
            *slot = Some(option.parse(codec.name, value)?);
        }
        if !unknown.is_empty() {
            return Err(SpecError::UnknownOptions {
                codec: codec.name,
                keys: unknown.join(", "),
            });
        }
        Ok(Self { codec, slots })
    }

    fn get(&self, key: &str) -> Option<Value> {
        let known = self.codec.options.iter().zip(&self.slots);
        known
            .filter(|(option, _)| option.key == key)
            .find_map(|(option, slot)| slot.or(option.default.map(Value::Int)))
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The value of a number, which the table keeps within i32 or u32.
    fn unsigned(&self, key: &str) -> Option<u32> {
        match self.get(key) {
            Some(Value::Int(value)) => u32::try_from(value).ok(),
            _ => None,
        }
    }

    fn signed(&self, key: &str) -> i32 {
        match self.get(key) {
            Some(Value::Int(value)) => i32::try_from(value).unwrap_or_default(),
            _ => 0,
        }
    }

    fn choice<T: Copy>(&self, key: &str, table: &[(&str, T)]) -> Option<T> {
        let Some(Value::Choice(value)) = self.get(key) else {
            return None;
        };
        let row = table.iter().find(|(name, _)| *name == value);
        row.map(|(_, choice)| *choice)
    }

    fn options(&self) -> Result<Options, SpecError> {
        Ok(match self.codec.name {
            "zstd" => Options::Zstd(ZstdOptions {
                level: self.signed("level"),
                long: self.flag("long"),
                window_log: self.unsigned("wlog"),
                hash_log: self.unsigned("hlog"),
                chain_log: self.unsigned("clog"),
                search_log: self.unsigned("slog"),
                min_match: self.unsigned("mml"),
                target_length: self.unsigned("tlen"),
                strategy: self.unsigned("strat"),
                ldm_hash_log: self.unsigned("lhlog"),
                ldm_min_match: self.unsigned("lmml"),
                ldm_bucket_log: self.unsigned("lblog"),
                ldm_hash_rate_log: self.unsigned("lhrlog"),
                quick: self.unsigned("quick").map(|level| level as i32),
                deep: self.unsigned("deep"),
            }),
            "lzma" => Options::Lzma(self.lzma()?),
            "lz4" => Options::Lz4,
            "lz4hc" => Options::Lz4hc {
                level: self.signed("level"),
            },
            "brotli" => Options::Brotli {
                quality: self.signed("quality"),
                lgwin: self.signed("lgwin"),
            },
            #[cfg(feature = "flac")]
            "flac" => Options::Flac(FlacOptions {
                level: self.unsigned("level").unwrap_or_default(),
                exhaustive: self.flag("exhaustive"),
            }),
            "ricepp" => Options::Ricepp {
                block_size: self.unsigned("block_size").unwrap_or_default(),
            },
            _ => Options::Null,
        })
    }

    fn lzma(&self) -> Result<LzmaOptions, SpecError> {
        let options = LzmaOptions {
            level: self.unsigned("level").unwrap_or_default(),
            extreme: self.flag("extreme"),
            dict_log: self.unsigned("dict_size"),
            branch: self.choice("binary", &BRANCHES),
            mode: self.choice("mode", &MODES),
            match_finder: self.choice("mf", &FINDERS),
            nice: self.unsigned("nice"),
            depth: self.unsigned("depth"),
        };
        // The encoder wants a nice match to be at least as long as what its match
        // finder hashes.
        let finder = options
            .match_finder
            .unwrap_or_else(|| xz::match_finder_of_preset(options.level, options.extreme));
        let shortest = match finder {
            MatchFinder::Bt2 => 2,
            MatchFinder::Hc3 | MatchFinder::Bt3 => 3,
            MatchFinder::Hc4 | MatchFinder::Bt4 => 4,
        };
        match options.nice {
            Some(nice) if nice < shortest => Err(SpecError::InvalidValue {
                codec: "lzma",
                option: "nice",
                problem: out_of_range(nice, &(i64::from(shortest)..=273)),
            }),
            _ => Ok(options),
        }
    }

    /// The spec in canonical form: options in the order of the help text, numbers
    /// with a default always, other options if given.
    fn canonical(&self) -> String {
        let mut text = self.codec.name.to_owned();
        for option in self.codec.options {
            let key = option.key;
            let written = match self.get(key) {
                None => Ok(()),
                Some(Value::Set) => write!(text, ":{key}"),
                Some(Value::Int(value)) => write!(text, ":{key}={value}"),
                Some(Value::Choice(value)) => write!(text, ":{key}={value}"),
            };
            written.expect("writing to a string cannot fail");
        }
        text
    }
}

/// A codec with its settings.
///
/// Parsed from `name[:key[=value]]...`; [`help`] lists names and options. Displays
/// as its canonical form, which parses to an equal value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecSpec {
    options: Options,
    canonical: String,
}

impl CodecSpec {
    /// The codec that stores blocks as they are, `null`.
    pub fn none() -> Self {
        Self {
            options: Options::Null,
            canonical: "null".to_owned(),
        }
    }

    /// A compressor with these settings; one for each worker. For codecs that take only some
    /// data, see also [`Compressor::with_fallback`].
    pub fn compressor(&self) -> Compressor {
        Compressor::new(&self.options)
    }

    /// What this codec compresses: anything, which is [`ContentKind::Bytes`], or only blocks of
    /// one kind.
    pub fn requires(&self) -> ContentKind {
        match &self.options {
            #[cfg(feature = "flac")]
            Options::Flac(_) => ContentKind::Pcm,
            Options::Ricepp { .. } => ContentKind::Pixels,
            _ => ContentKind::Bytes,
        }
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

    /// The unit in bytes that blocks of `content` have to consist of: no chunk of a file and no
    /// block may end inside of one. 1 for codecs that take anything.
    pub fn granularity(&self, content: &Content) -> usize {
        match (self.requires(), content) {
            (ContentKind::Pcm, Content::Pcm(format)) => format.frame_bytes(),
            (ContentKind::Pixels, Content::Pixels(format)) => format.group_bytes(),
            _ => 1,
        }
    }

    /// An estimate of the memory, in bytes, that a [`Compressor`] holds while it
    /// works on a block of `raw_size` bytes, the block itself not included. For
    /// zstd and lzma it is the library's own (with `long`, for assumed sizes of its tables), for
    /// brotli and flac a formula. A fallback takes memory of its own.
    pub fn encoder_memory(&self, raw_size: usize) -> u64 {
        let probe = if self.options.are_slow() {
            Compressor::probe_memory(raw_size)
        } else {
            0
        };
        probe.saturating_add(self.options.encoder_memory(raw_size))
    }
}

impl Options {
    fn encoder_memory(&self, raw_size: usize) -> u64 {
        match self {
            Options::Null => 0,
            Options::Zstd(options) => zstd::encoder_memory(options, raw_size),
            Options::Lzma(options) => xz::encoder_memory(options, raw_size),
            Options::Lz4 => lz4::encoder_memory(false, raw_size),
            Options::Lz4hc { .. } => lz4::encoder_memory(true, raw_size),
            Options::Brotli { quality, lgwin } => {
                brotli_codec::encoder_memory(*quality, *lgwin, raw_size)
            }
            #[cfg(feature = "flac")]
            Options::Flac(_) => crate::flac::encoder_memory(raw_size),
            Options::Ricepp { .. } => ricepp::encoder_memory(raw_size),
        }
    }
}

impl FromStr for CodecSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let values = Values::parse(text)?;
        Ok(Self {
            options: values.options()?,
            canonical: values.canonical(),
        })
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.canonical)
    }
}

/// The names of all codecs of this build.
fn codec_names() -> String {
    let names: Vec<&str> = CODECS.iter().map(|codec| codec.name).collect();
    names.join(", ")
}

/// What to write instead of a key that a codec does not have.
fn advice(codec: &str, keys: &str) -> String {
    let codec = CODECS.iter().find(|known| known.name == codec);
    let options = codec.map_or(&[][..], |codec| codec.options);
    // A bare number is meant for the level, or for what a codec has instead.
    let number = options.iter().find(|option| option.range().is_some());
    if let (Some(codec), Some(option)) = (codec, number)
        && parse_decimal(keys).is_some()
    {
        return format!("write {}:{}={keys}", codec.name, option.key);
    }
    if options.is_empty() {
        return "it has none".to_owned();
    }
    let keys: Vec<&str> = options.iter().map(|option| option.key).collect();
    format!("one of {}", keys.join(", "))
}

/// The codecs with their options, ranges and defaults, for a help text. Lines are
/// indented by two spaces and end with a line break.
pub fn help() -> String {
    /// Columns of the name and value of an option.
    const USAGE: usize = 24;
    let mut text = String::new();
    for codec in CODECS {
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
