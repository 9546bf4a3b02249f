//! Settings of the encoder, and what liblzma makes of them.

#![allow(unsafe_code)]

use std::mem;

use liblzma_sys as sys;

use crate::grammar::{Kind, OptionDef, SpecError, Values, flag, names, option, out_of_range};

/// The smallest dictionary that liblzma accepts, in bytes.
const DICT_MIN: usize = 4096;

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

pub(super) static OPTIONS: &[OptionDef] = &[
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
];

/// Settings of the LZMA encoder. For `None`, the preset decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LzmaOptions {
    pub(super) level: u32,
    pub(super) extreme: bool,
    /// Binary logarithm of the dictionary size, 12..=30.
    pub(super) dict_log: Option<u32>,
    pub(super) branch: Option<Filter>,
    pub(super) mode: Option<Mode>,
    pub(super) match_finder: Option<MatchFinder>,
    pub(super) nice: Option<u32>,
    pub(super) depth: Option<u32>,
}

/// Which branch filter is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// This one, for the whole block.
    Fixed(Branch),
    /// The filter that saves most for a sample of the block, if any.
    Automatic,
}

/// Branch filter for machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Branch {
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
pub(super) enum Mode {
    Fast,
    Normal,
}

/// Match finder of the LZMA encoder: hash chains or binary trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchFinder {
    Hc3,
    Hc4,
    Bt2,
    Bt3,
    Bt4,
}

impl LzmaOptions {
    pub(super) fn of(values: &Values) -> Result<Self, SpecError> {
        let options = Self {
            level: values.unsigned("level").unwrap_or_default(),
            extreme: values.flag("extreme"),
            dict_log: values.unsigned("dict_size"),
            branch: values.choice("binary", &BRANCHES),
            mode: values.choice("mode", &MODES),
            match_finder: values.choice("mf", &FINDERS),
            nice: values.unsigned("nice"),
            depth: values.unsigned("depth"),
        };
        // The encoder wants a nice match to be at least as long as what its match
        // finder hashes.
        let finder = options
            .match_finder
            .unwrap_or_else(|| match_finder_of_preset(options.level, options.extreme));
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
}

fn preset(level: u32, extreme: bool) -> sys::lzma_options_lzma {
    let flag = if extreme { sys::LZMA_PRESET_EXTREME } else { 0 };
    // SAFETY: all-zero is a valid value of the plain C struct, and the call fills
    // it in. Levels come from the checked range, so it cannot fail.
    unsafe {
        let mut options: sys::lzma_options_lzma = mem::zeroed();
        sys::lzma_lzma_preset(&mut options, level | flag);
        options
    }
}

/// The encoder's options for a block of `raw_size` bytes: the preset with the given options, and a
/// dictionary no larger than the block.
pub(super) fn lzma_options(options: &LzmaOptions, raw_size: usize) -> sys::lzma_options_lzma {
    let mut lzma = preset(options.level, options.extreme);
    if let Some(log) = options.dict_log {
        lzma.dict_size = 1 << log;
    }
    if let Some(mode) = options.mode {
        lzma.mode = match mode {
            Mode::Fast => sys::LZMA_MODE_FAST,
            Mode::Normal => sys::LZMA_MODE_NORMAL,
        };
    }
    if let Some(finder) = options.match_finder {
        lzma.mf = match finder {
            MatchFinder::Hc3 => sys::LZMA_MF_HC3,
            MatchFinder::Hc4 => sys::LZMA_MF_HC4,
            MatchFinder::Bt2 => sys::LZMA_MF_BT2,
            MatchFinder::Bt3 => sys::LZMA_MF_BT3,
            MatchFinder::Bt4 => sys::LZMA_MF_BT4,
        };
    }
    if let Some(nice) = options.nice {
        lzma.nice_len = nice;
    }
    if let Some(depth) = options.depth {
        lzma.depth = depth;
    }
    let useful = u32::try_from(raw_size.max(DICT_MIN)).unwrap_or(u32::MAX);
    lzma.dict_size = lzma.dict_size.min(useful);
    lzma
}

/// The match finder that a preset uses.
fn match_finder_of_preset(level: u32, extreme: bool) -> MatchFinder {
    match preset(level, extreme).mf {
        sys::LZMA_MF_HC3 => MatchFinder::Hc3,
        sys::LZMA_MF_HC4 => MatchFinder::Hc4,
        sys::LZMA_MF_BT2 => MatchFinder::Bt2,
        sys::LZMA_MF_BT3 => MatchFinder::Bt3,
        _ => MatchFinder::Bt4,
    }
}
