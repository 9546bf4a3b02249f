//! The settings of each codec in typed form, made from a parsed spec.

/// Settings of one codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Options {
    Null,
    Zstd(ZstdOptions),
    Lzma(LzmaOptions),
    Lz4,
    /// `level`: 0..=12, where 0 is the library's default of 9.
    Lz4hc {
        level: i32,
    },
    /// `quality`: 0..=11; `lgwin`: 10..=30, above 24 in the large-window format.
    Brotli {
        quality: i32,
        lgwin: i32,
    },
    #[cfg(feature = "flac")]
    Flac(FlacOptions),
    /// `block_size`: 16..=512 pixels.
    Ricepp {
        block_size: u32,
    },
}

impl Options {
    /// Whether a block takes seconds.
    pub(crate) fn are_slow(&self) -> bool {
        match self {
            Options::Zstd(options) => {
                options.level >= 13 || options.strategy.is_some_and(|strategy| strategy >= 6)
            }
            Options::Lzma(_) => true,
            Options::Brotli { quality, .. } => *quality > 4,
            _ => false,
        }
    }
}

/// Settings of the FLAC encoder.
#[cfg(feature = "flac")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlacOptions {
    /// 0..=8
    pub(crate) level: u32,
    /// Try every model instead of estimating which is best.
    pub(crate) exhaustive: bool,
}

/// Settings of the zstd encoder. A parameter that is `None` follows the level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ZstdOptions {
    pub(crate) level: i32,
    /// Long-distance matching, with a window that covers the block.
    pub(crate) long: bool,
    pub(crate) window_log: Option<u32>,
    pub(crate) hash_log: Option<u32>,
    pub(crate) chain_log: Option<u32>,
    pub(crate) search_log: Option<u32>,
    pub(crate) min_match: Option<u32>,
    pub(crate) target_length: Option<u32>,
    pub(crate) strategy: Option<u32>,
    pub(crate) ldm_hash_log: Option<u32>,
    pub(crate) ldm_min_match: Option<u32>,
    pub(crate) ldm_bucket_log: Option<u32>,
    pub(crate) ldm_hash_rate_log: Option<u32>,
    /// Level that is tried first, and whose result is taken if it is small enough.
    pub(crate) quick: Option<i32>,
    /// Blocks that a fast level makes smaller than one part in this number are searched more
    /// thoroughly, made of matches without literals if a sample gets smaller by that, and never
    /// left at `quick`.
    pub(crate) deep: Option<u32>,
}

impl ZstdOptions {
    /// Nothing but a level.
    pub(crate) const NONE: Self = Self {
        level: 0,
        long: false,
        window_log: None,
        hash_log: None,
        chain_log: None,
        search_log: None,
        min_match: None,
        target_length: None,
        strategy: None,
        ldm_hash_log: None,
        ldm_min_match: None,
        ldm_bucket_log: None,
        ldm_hash_rate_log: None,
        quick: None,
        deep: None,
    };
}

/// Settings of the LZMA encoder. What is `None` follows the preset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LzmaOptions {
    pub(crate) level: u32,
    pub(crate) extreme: bool,
    /// Binary logarithm of the dictionary size, 12..=30.
    pub(crate) dict_log: Option<u32>,
    pub(crate) branch: Option<Filter>,
    pub(crate) mode: Option<Mode>,
    pub(crate) match_finder: Option<MatchFinder>,
    pub(crate) nice: Option<u32>,
    pub(crate) depth: Option<u32>,
}

/// Which branch filter is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// This one, for the whole block.
    Fixed(Branch),
    /// The one that helps most for a sample of the block, if any.
    Automatic,
}

/// Branch filter for machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Branch {
    X86,
    PowerPc,
    Ia64,
    Arm,
    ArmThumb,
    Arm64,
    Sparc,
    RiscV,
}

/// How the LZMA encoder chooses among matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Fast,
    Normal,
}

/// Match finder of the LZMA encoder: hash chains or binary trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchFinder {
    Hc3,
    Hc4,
    Bt2,
    Bt3,
    Bt4,
}
