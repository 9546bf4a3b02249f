//! Options of streams: values that can differ by category (codec, order, search for repeated data), and
//! the categorizers.
//!
//! [`StreamArgs::apply`] puts them into `redwarfs_writer::BuildOptions`, and
//! `redwarfs-writer/src/settings.rs` resolves them for each stream.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use redwarfs_codec::CodecSpec;
use redwarfs_writer::{
    BuildOptions, Categorizer, Category, CategoryOptions, HotPaths, Incompressible, Order,
};

use super::definition::Definition as _;
use super::definition::WhenRewriting::{NeedsRebuild, NoEffect, Refused, Used};
use super::order::{self, OrderSpec};
use super::values::{self, NEEDS_CATEGORIES};
use crate::common::cli::whole;
use crate::common::error::display_path;
use crate::common::number::parse_size;
use crate::common::suggest::one_of;
use crate::common::{Logger, Result, ToolError};

/// What `--categorize` without a value means.
const USUAL: &str = "fits,pcmaudio,binary,incompressible";

/// Options of categorizers, and options that take categories before their value.
#[derive(Debug, Clone, Args)]
pub(crate) struct StreamArgs {
    /// Categorize data, and compress each category in its own way
    ///
    /// A list of fits, pcmaudio, binary, incompressible and hotness. The first categorizer that claims
    /// a file wins. Without a list: fits,pcmaudio,binary,incompressible.
    #[arg(long, value_name = "LIST", num_args = 0..=1, default_missing_value = USUAL, help_heading = "Advanced options", when_rewriting = NoEffect)]
    pub categorize: Option<String>,

    /// Order of file data [default: script if the script has an order, else by level]
    ///
    /// One of none, path, revpath, similarity, versions[:gain=PERCENT], families[:gain=PERCENT],
    /// nilsimsa[:max-children=N][:max-cluster-size=N], explicit:file=FILE and script.
    ///
    /// 'versions' sorts by path, and places versions of a directory next to each other if samples of
    /// small files show that this saves space. 'families' decides this from all files, and also places
    /// files next to others that they share data with. A directory may spread over half as many blocks
    /// again as its data needs. Each further block has to save PERCENT of a block (default: 1). With 0
    /// only the size of the image counts.
    #[arg(long, value_name = "[CAT,..::]ORDER", action = ArgAction::Append, help_heading = "Advanced options", value_parser = whole(|text| scoped(text, order::order)), when_rewriting = NoEffect, list = true)]
    pub order: Vec<Scoped<OrderSpec>>,

    /// Number of most recent blocks searched for repeated data; 0 switches the search off
    /// [default: by level]
    ///
    /// The block being filled is the first of them. In finished blocks only matches of at least two
    /// windows count (see --window-size), because each one makes a file depend on another block. All
    /// searched blocks stay in memory. From 2 on, pieces of at least 32 KiB in files of at least
    /// 64 KiB are also found in older blocks, up to 24 GiB back.
    #[arg(short = 'B', long, value_name = "[CAT,..::]N", action = ArgAction::Append, help_heading = "Segmenter options", value_parser = ranged(0, 1 << 20), allow_hyphen_values = true, when_rewriting = NoEffect, list = true)]
    pub max_lookback_blocks: Vec<Scoped<u32>>,

    /// Log2 of the window size of the search, 0 to 24; 0 switches the search off [default: by level]
    ///
    /// A window is the shortest piece of data that the search finds again. Its size counts bytes, for
    /// audio samples of all channels, and for FITS images pixels.
    #[arg(short = 'W', long, value_name = "[CAT,..::]BITS", action = ArgAction::Append, help_heading = "Segmenter options", value_parser = ranged(0, 24), allow_hyphen_values = true, when_rewriting = NoEffect, list = true)]
    pub window_size: Vec<Scoped<u32>>,

    /// Start a window every (window size >> N) bytes, 0 to 8 [default: by level]
    #[arg(short = 'w', long, value_name = "[CAT,..::]N", action = ArgAction::Append, help_heading = "Segmenter options", value_parser = ranged(0, 8), allow_hyphen_values = true, when_rewriting = NoEffect, list = true)]
    pub window_step: Vec<Scoped<u32>>,

    /// Log2 of the bits per window in the Bloom filter of the search, 0 to 10 [default: 4]
    ///
    /// More bits take more memory and less time. The size of the image hardly depends on them.
    #[arg(long, value_name = "[CAT,..::]BITS", action = ArgAction::Append, help_heading = "Segmenter options", value_parser = ranged(0, 10), allow_hyphen_values = true, when_rewriting = NoEffect, list = true)]
    pub bloom_filter_size: Vec<Scoped<u32>>,

    /// Compression of file data [default: by level]
    #[arg(short = 'C', long, value_name = "[CAT,..::]SPEC", action = ArgAction::Append, help_heading = "Compressor options", value_parser = codec, when_rewriting = Used, list = true)]
    pub compression: Vec<Scoped<CodecSpec>>,

    /// File with the paths that the hotness categorizer looks for, one per line
    #[arg(long, value_name = "FILE", help_heading = "Categorizer options", when_rewriting = Refused)]
    pub hotness_list: Option<PathBuf>,

    /// The incompressible categorizer skips files below this size
    #[arg(long, value_name = "SIZE", default_value = "256", help_heading = "Categorizer options", value_parser = parse_size, allow_hyphen_values = true, when_rewriting = Refused)]
    pub incompressible_min_input_size: u64,

    /// The incompressible categorizer tests data in units of this size, up to 1g
    #[arg(long, value_name = "SIZE", default_value = "1m", help_heading = "Categorizer options", value_parser = parse_size, allow_hyphen_values = true, when_rewriting = Refused)]
    pub incompressible_block_size: u64,

    /// Categorize each unit on its own instead of the whole file
    #[arg(long, help_heading = "Categorizer options", when_rewriting = Refused)]
    pub incompressible_fragments: bool,

    /// Data that compresses to at least this fraction of its size is incompressible, 0 to 1
    #[arg(long, value_name = "RATIO", default_value = "0.99", help_heading = "Categorizer options", allow_hyphen_values = true, when_rewriting = Refused)]
    pub incompressible_ratio: f64,

    /// zstd level with which the incompressible categorizer tests, -131072 to 22
    #[arg(long, value_name = "N", default_value = "-1", help_heading = "Categorizer options", allow_hyphen_values = true, when_rewriting = Refused)]
    pub incompressible_zstd_level: i32,

    /// Omit the names of the categories, and the category of each block
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsRebuild)]
    pub no_category_names: bool,

    /// Omit the sample format of audio and the pixel format of images
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsRebuild)]
    pub no_category_metadata: bool,
}

/// Which names of categories can occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// None: nothing is categorized.
    None,
    BuiltIn,
    /// Others too: a script makes them, or an image has them.
    Any,
}

/// A value for some categories, or for all categories without their own value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scoped<T> {
    /// None means all.
    pub(crate) categories: Vec<String>,
    pub(crate) value: T,
}

fn scoped<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Scoped<T>, String> {
    let (categories, value) = match text.split_once("::") {
        Some((categories, value)) => (categories.split(',').map(str::to_owned).collect(), value),
        None => (Vec::new(), text),
    };
    Ok(Scoped {
        categories,
        value: parse(value)?,
    })
}

fn ranged(low: u32, high: u32) -> impl Fn(&str) -> Result<Scoped<u32>, String> + Clone {
    move |text| scoped(text, values::ranged(low, high))
}

fn codec(text: &str) -> Result<Scoped<CodecSpec>, String> {
    if text.contains("::") {
        scoped(text, |value| {
            value.parse::<CodecSpec>().map_err(|e| e.to_string())
        })
    } else {
        scoped(text, values::codec)
    }
}

/// The last value for everything, if there is one.
fn general<T>(values: &[Scoped<T>]) -> Option<&T> {
    let all = values.iter().rev().find(|v| v.categories.is_empty());
    all.map(|v| &v.value)
}

/// Hands out the values of single categories.
fn each<T>(
    option: &str,
    values: &[Scoped<T>],
    names: Names,
    mut set: impl FnMut(Category, &T) -> Result<()>,
) -> Result<()> {
    let mut seen: Vec<Category> = Vec::new();
    for scoped in values {
        for name in &scoped.categories {
            let known: Result<Category, _> = name.parse();
            let category = match names {
                Names::None => return Err(ToolError::new(NEEDS_CATEGORIES)),
                Names::BuiltIn => known.map_err(|e| e.to_string()),
                Names::Any => Category::named(name).map_err(|e| e.to_string()),
            };
            let category =
                category.map_err(|e| ToolError::new(format!("{e} in option '{option}'")))?;
            if seen.contains(&category) {
                return Err(ToolError::new(format!(
                    "duplicate context '{category}' for option '{option}'"
                )));
            }
            seen.push(category);
            set(category, &scoped.value)?;
        }
    }
    Ok(())
}

impl StreamArgs {
    /// Puts all of this into build options. `any` says that there may be categories of any name
    /// although nothing is categorized. `order` reads the files of an order; its second argument is the
    /// order of files without a key from the script. Without a value, `usual` is the order.
    pub(crate) fn apply(
        &self,
        o: &mut BuildOptions,
        logger: &Logger,
        any: bool,
        usual: Option<&OrderSpec>,
        order: impl Fn(&OrderSpec, Order) -> Result<Order>,
    ) -> Result<()> {
        o.categorizers = self.categorizers(logger)?;
        o.category_names = !self.no_category_names;
        o.category_metadata = !self.no_category_metadata;
        if let Some(spec) = general(&self.order).or(usual) {
            o.order = order(spec, o.order.clone())?;
        }
        let rest = match &o.order {
            Order::Script(rest) => (**rest).clone(),
            other => other.clone(),
        };
        if let Some(spec) = general(&self.compression) {
            o.compression = spec.clone();
        }
        let on = match &self.categorize {
            _ if any => Names::Any,
            Some(_) => Names::BuiltIn,
            None => Names::None,
        };
        each("--order", &self.order, on, |category, spec| {
            let order = order(spec, rest.clone())?;
            o.categories.entry(category).or_default().order = Some(order);
            Ok(())
        })?;
        each("--compression", &self.compression, on, |category, spec| {
            o.categories.entry(category).or_default().compression = Some(spec.clone());
            Ok(())
        })?;
        type Field = fn(&mut CategoryOptions) -> &mut Option<u32>;
        let numbers: [(&str, &[Scoped<u32>], &mut u32, Field); 4] = [
            (
                "--max-lookback-blocks",
                &self.max_lookback_blocks,
                &mut o.lookback,
                |own| &mut own.lookback,
            ),
            (
                "--window-size",
                &self.window_size,
                &mut o.window_bits,
                |own| &mut own.window_bits,
            ),
            (
                "--window-step",
                &self.window_step,
                &mut o.window_step,
                |own| &mut own.window_step,
            ),
            (
                "--bloom-filter-size",
                &self.bloom_filter_size,
                &mut o.bloom_filter_size,
                |own| &mut own.bloom_filter_size,
            ),
        ];
        for (option, values, all, field) in numbers {
            if let Some(&value) = general(values) {
                *all = value;
            }
            each(option, values, on, |category, &value| {
                *field(o.categories.entry(category).or_default()) = Some(value);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn categorizers(&self, logger: &Logger) -> Result<Vec<Categorizer>> {
        let Some(list) = &self.categorize else {
            return Ok(Vec::new());
        };
        let named = list.split(',').map(|name| {
            Ok(match name {
                "binary" => Categorizer::Binary,
                "fits" => Categorizer::Fits,
                "pcmaudio" => Categorizer::PcmAudio,
                "incompressible" => {
                    let mut options = Incompressible::default();
                    options.min_size = self.incompressible_min_input_size;
                    options.block_size = self.incompressible_block_size;
                    options.fragments = self.incompressible_fragments;
                    options.ratio = self.incompressible_ratio;
                    options.zstd_level = self.incompressible_zstd_level;
                    Categorizer::Incompressible(options)
                }
                "hotness" => Categorizer::Hotness(self.hot_paths(logger)?),
                other => {
                    return Err(ToolError::new(format!(
                        "could not create categorizer: unknown categorizer: {other}"
                    ))
                    .hint(one_of([
                        "binary",
                        "fits",
                        "pcmaudio",
                        "incompressible",
                        "hotness",
                    ])));
                }
            })
        });
        named.collect()
    }

    /// Says which options have no effect without others.
    pub(super) fn warn_without_effect(&self, logger: &Logger) {
        let mut names = self.categorize.iter().flat_map(|list| list.split(','));
        if let Some(file) = &self.hotness_list
            && !names.any(|name| name == "hotness")
        {
            logger.warn(format_args!(
                "the hotness list has no effect without --categorize=hotness: {}",
                display_path(file)
            ));
        }
    }

    fn hot_paths(&self, logger: &Logger) -> Result<HotPaths> {
        let Some(file) = &self.hotness_list else {
            logger.warn("hotness categorizer: no hotness list provided");
            return Ok(HotPaths::default());
        };
        let paths = read_hot_paths(file)?;
        if paths.is_empty() {
            logger.warn("hotness categorizer: empty hotness list");
        }
        Ok(paths)
    }
}

fn read_hot_paths(file: &Path) -> Result<HotPaths> {
    let text = std::fs::read(file).map_err(|e| {
        ToolError::new("failed to open hotness list")
            .path(file)
            .io(&e)
    })?;
    HotPaths::parse(&text).map_err(|e| {
        let list = display_path(file);
        ToolError::new(e.to_string()).hint(format!(
            "awk '!seen[$0]++' {list} prints {list} with the first of equal lines"
        ))
    })
}

/// The categorizers and their categories, for the long help.
pub(crate) fn help() -> String {
    let mut text = "Categorizers and their categories:\n".to_owned();
    for name in Categorizer::NAMES {
        let own = Category::ALL.into_iter();
        let own = own.filter(|category| category.categorizer() == Some(name));
        let list: Vec<String> = own.map(|own| own.to_string()).collect();
        text.push_str(&format!("  {name}: {}\n", list.join(", ")));
    }
    text.push_str(
        "\n\
Codec, window size and order of categories by level, unless given:\n  \
  level  pcmaudio/waveform                 fits/image          incompressible\n  \
  0      -                                 -                   null\n  \
  1-4    flac:level=3, window 0, revpath   ricepp, 0, revpath  null\n  \
  5-7    flac:level=5, window 16, revpath  ricepp, 0, revpath  null\n  \
  8-9    flac:level=8, window 16           ricepp, 0, revpath  null\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let number = ranged(0, 24);
        let plain = Scoped {
            categories: Vec::new(),
            value: 12,
        };
        assert_eq!(number("12"), Ok(plain));
        let two = Scoped {
            categories: vec!["fits/image".to_owned(), "hotness".to_owned()],
            value: 0,
        };
        assert_eq!(number("fits/image,hotness::0"), Ok(two));
        let over = "value 25 out of range [0..24]".to_owned();
        assert_eq!(number("hotness::25"), Err(over));
        assert_eq!(codec("hotness::lz4").unwrap().categories, ["hotness"]);
        assert!(codec("pcmaudio/waveform::flac").is_ok());
        assert!(codec("flac").is_err_and(|e| e.contains("without a category")));
        let nested = scoped("a::b::c", |text| Ok(text.to_owned())).unwrap();
        assert_eq!(nested.value, "b::c");
    }

    #[test]
    fn the_last_general_value_counts() {
        let values: Vec<Scoped<u32>> = ["3", "hotness::5", "4", "fits/image::6"]
            .map(|text| ranged(0, 9)(text).unwrap())
            .into();
        assert_eq!(general(&values), Some(&4));
        let mut own = Vec::new();
        each("-B", &values, Names::BuiltIn, |category, &value| {
            own.push((category.to_string(), value));
            Ok(())
        })
        .unwrap();
        let want = [("hotness", 5), ("fits/image", 6)];
        assert_eq!(own, want.map(|(name, value)| (name.to_owned(), value)));
        let twice = [values[1].clone(), values[1].clone()];
        assert!(each("-B", &twice, Names::BuiltIn, |_, _| Ok(())).is_err());
        assert!(each("-B", &values, Names::None, |_, _| Ok(())).is_err());
        let other = [ranged(0, 9)("video::1").unwrap()];
        assert!(each("-B", &other, Names::BuiltIn, |_, _| Ok(())).is_err());
        assert!(each("-B", &other, Names::Any, |_, _| Ok(())).is_ok());
        let bad = [ranged(0, 9)("a b::1").unwrap()];
        assert!(each("-B", &bad, Names::Any, |_, _| Ok(())).is_err());
    }
}
