//! Settings of the encoder.

#![allow(unsafe_code)]

use std::ops::RangeInclusive;

use zstd_safe::zstd_sys::{self, ZSTD_cParameter as Z};

use crate::grammar::{Kind, OptionDef, Values, flag, option};

/// The accepted range of one encoder parameter, from the library.
fn bounds(parameter: Z) -> RangeInclusive<i64> {
    // SAFETY: the function takes any value and returns a plain struct.
    let bounds = unsafe { zstd_sys::ZSTD_cParam_getBounds(parameter) };
    i64::from(bounds.lowerBound)..=i64::from(bounds.upperBound)
}

const fn zstd_parameter(
    key: &'static str,
    range: fn() -> RangeInclusive<i64>,
    help: &'static str,
) -> OptionDef {
    option(key, Kind::Asked(range), None, help)
}

pub(super) static OPTIONS: &[OptionDef] = &[
    option(
        "level",
        Kind::Asked(|| bounds(Z::ZSTD_c_compressionLevel)),
        Some(22),
        "compression level",
    ),
    flag("long", "long-distance matching over the whole block"),
    zstd_parameter("wlog", || bounds(Z::ZSTD_c_windowLog), "window size (log2)"),
    zstd_parameter(
        "hlog",
        || bounds(Z::ZSTD_c_hashLog),
        "hash table size (log2)",
    ),
    zstd_parameter(
        "clog",
        || bounds(Z::ZSTD_c_chainLog),
        "chain table size (log2)",
    ),
    zstd_parameter(
        "slog",
        || bounds(Z::ZSTD_c_searchLog),
        "search attempts (log2)",
    ),
    zstd_parameter("mml", || bounds(Z::ZSTD_c_minMatch), "minimum match length"),
    zstd_parameter("tlen", || bounds(Z::ZSTD_c_targetLength), "target length"),
    zstd_parameter(
        "strat",
        || bounds(Z::ZSTD_c_strategy),
        "strategy, fast to btultra2",
    ),
    zstd_parameter(
        "lhlog",
        || bounds(Z::ZSTD_c_ldmHashLog),
        "long-distance hash table (log2)",
    ),
    zstd_parameter(
        "lmml",
        || bounds(Z::ZSTD_c_ldmMinMatch),
        "long-distance minimum match",
    ),
    zstd_parameter(
        "lblog",
        || bounds(Z::ZSTD_c_ldmBucketSizeLog),
        "long-distance bucket (log2)",
    ),
    zstd_parameter(
        "lhrlog",
        || bounds(Z::ZSTD_c_ldmHashRateLog),
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
];

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
    /// If a fast level makes a block smaller than one part in this number, the block is searched more
    /// thoroughly, and never compressed with `quick`. It is made of matches without literals if this
    /// makes a sample smaller.
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

impl ZstdOptions {
    /// A fast level, with a window that covers most blocks.
    pub(super) const PROBE: Self = Self {
        level: 1,
        window_log: Some(24),
        ..Self::NONE
    };

    pub(super) fn of(values: &Values) -> Self {
        Self {
            level: values.signed("level"),
            long: values.flag("long"),
            window_log: values.unsigned("wlog"),
            hash_log: values.unsigned("hlog"),
            chain_log: values.unsigned("clog"),
            search_log: values.unsigned("slog"),
            min_match: values.unsigned("mml"),
            target_length: values.unsigned("tlen"),
            strategy: values.unsigned("strat"),
            ldm_hash_log: values.unsigned("lhlog"),
            ldm_min_match: values.unsigned("lmml"),
            ldm_bucket_log: values.unsigned("lblog"),
            ldm_hash_rate_log: values.unsigned("lhrlog"),
            quick: values.unsigned("quick").map(|level| level as i32),
            deep: values.unsigned("deep"),
        }
    }
}
