//! The command line.

use std::path::PathBuf;

use clap::{Arg, ArgAction, CommandFactory, Parser, ValueEnum};
use redwarfs_codec::CodecSpec;
use redwarfs_format::metadata::Packing;
use redwarfs_writer::TimeResolution;

use super::values::{self, HashChoice, MemoryLimit, OrderSpec, TimeSpec};
use crate::common::cli::{LogArgs, prepare, whole};
use crate::common::users::{parse_group, parse_user};

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressMode {
    /// Not at all
    None,
    /// A line every two seconds
    Simple,
    /// Redrawn in place, ASCII only
    Ascii,
    /// Redrawn in place
    Unicode,
}

fn progress_mode(text: &str) -> Result<ProgressMode, String> {
    ProgressMode::from_str(text, false)
        .map_err(|_| format!("invalid progress mode '{text}' (none, simple, ascii, unicode)"))
}

/// Build a DwarFS image from a directory.
#[derive(Debug, Clone, Parser)]
#[command(name = "mkdwarfs", disable_help_flag = true)]
#[command(override_usage = "mkdwarfs -i DIR -o FILE|- [OPTIONS...]")]
pub(crate) struct Args {
    /// Directory to build the image from
    #[arg(short, long, value_name = "DIR")]
    pub input: Option<PathBuf>,

    /// Read the paths to store from this file, one per line; '-' reads standard input
    ///
    /// Relative paths start at the input directory (or the current one). Parent directories are
    /// added as needed; a listed directory comes without its content. Implies --with-devices and
    /// --with-specials.
    #[arg(long, value_name = "FILE")]
    pub input_list: Option<PathBuf>,

    /// Image to write; '-' writes to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing output file
    #[arg(short, long)]
    pub force: bool,

    /// Compression level, 0 (fastest) to 9 (smallest)
    #[arg(short = 'l', long, value_name = "N", default_value = "7", value_parser = whole(values::level), allow_hyphen_values = true)]
    pub compress_level: u8,

    #[command(flatten)]
    pub log: LogArgs,

    /// Print basic help (this text)
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Print help with all options, levels and compression algorithms
    #[arg(short = 'H', long, action = ArgAction::HelpLong)]
    long_help: Option<bool>,

    /// Log2 of the block size, 10 to 30 [default: by level]
    #[arg(short = 'S', long, value_name = "BITS", hide_short_help = true, help_heading = "Advanced options", value_parser = whole(values::block_size_bits), allow_hyphen_values = true)]
    pub block_size_bits: Option<u32>,

    /// Number of threads [default: number of CPUs]
    #[arg(short = 'N', long, value_name = "N", hide_short_help = true, help_heading = "Advanced options", value_parser = values::ranged(1, 1024), allow_hyphen_values = true)]
    pub num_workers: Option<u32>,

    /// Accepted for compatibility; --num-workers sets the number of threads
    #[arg(long, value_name = "N", hide = true, value_parser = values::ranged(1, 1024), allow_hyphen_values = true)]
    pub num_scanner_workers: Option<u32>,

    /// Accepted for compatibility; segmenting is done by one thread
    #[arg(long, value_name = "N", hide = true, value_parser = values::ranged(1, 1024), allow_hyphen_values = true)]
    pub num_segmenter_workers: Option<u32>,

    /// Niceness of the compression threads
    #[arg(long, value_name = "N", default_value = "5", hide_short_help = true, help_heading = "Advanced options", value_parser = values::ranged(0, 19), allow_hyphen_values = true)]
    pub compress_niceness: u32,

    /// Limit for the blocks that wait for compression or output: 'auto' or a size (k, m, g, t)
    #[arg(short = 'L', long, value_name = "SIZE", default_value = "auto", hide_short_help = true, help_heading = "Advanced options", value_parser = values::memory_limit, allow_hyphen_values = true)]
    pub memory_limit: MemoryLimit,

    /// Order of file data: none, path, revpath, similarity, explicit:file=FILE [default: by level]
    #[arg(long, value_name = "ORDER", hide_short_help = true, help_heading = "Advanced options", value_parser = whole(values::order))]
    pub order: Option<OrderSpec>,

    /// Larger files are not compared by similarity and come first; 0 means no limit
    #[arg(long, value_name = "SIZE", hide_short_help = true, help_heading = "Advanced options", value_parser = crate::common::number::parse_size, allow_hyphen_values = true)]
    pub max_similarity_size: Option<u64>,

    /// Hash that finds duplicate files: xxh3-128, xxh3-64, sha256, ..., or none
    #[arg(long, value_name = "NAME", default_value = "xxh3-128", hide_short_help = true, help_heading = "Advanced options", value_parser = whole(values::file_hash))]
    pub file_hash: HashChoice,

    /// How to show progress: none, simple, ascii, unicode [default: by terminal]
    #[arg(long, value_name = "MODE", hide_short_help = true, help_heading = "Advanced options", value_parser = whole(progress_mode))]
    pub progress: Option<ProgressMode>,

    /// Same as --progress=none
    #[arg(
        long,
        hide_short_help = true,
        help_heading = "Advanced options",
        conflicts_with = "progress"
    )]
    pub no_progress: bool,

    /// Number of most recent blocks searched for repeated data; 0 switches the search off
    #[arg(short = 'B', long, value_name = "N", default_value = "1", hide_short_help = true, help_heading = "Segmenter options", value_parser = values::ranged(0, 1 << 20), allow_hyphen_values = true)]
    pub max_lookback_blocks: u32,

    /// Log2 of the window that finds repeated data, 0 to 24; 0 switches it off [default: by level]
    #[arg(short = 'W', long, value_name = "BITS", hide_short_help = true, help_heading = "Segmenter options", value_parser = values::ranged(0, 24), allow_hyphen_values = true)]
    pub window_size: Option<u32>,

    /// Windows start every (window >> N) bytes, 0 to 8 [default: by level]
    #[arg(short = 'w', long, value_name = "N", hide_short_help = true, help_heading = "Segmenter options", value_parser = values::ranged(0, 8), allow_hyphen_values = true)]
    pub window_step: Option<u32>,

    /// Accepted for compatibility; does not change the image
    #[arg(long, value_name = "BITS", hide = true, value_parser = values::ranged(0, 10), allow_hyphen_values = true)]
    pub bloom_filter_size: Option<u32>,

    /// Compression of file data [default: by level]
    #[arg(short = 'C', long, value_name = "SPEC", hide_short_help = true, help_heading = "Compressor options", value_parser = values::codec)]
    pub compression: Option<CodecSpec>,

    /// Compression of the metadata schema [default: by level]
    #[arg(long, value_name = "SPEC", hide_short_help = true, help_heading = "Compressor options", value_parser = values::codec)]
    pub schema_compression: Option<CodecSpec>,

    /// Compression of the metadata [default: by level]
    #[arg(long, value_name = "SPEC", hide_short_help = true, help_heading = "Compressor options", value_parser = values::codec)]
    pub metadata_compression: Option<CodecSpec>,

    /// Compression of the history [default: by level]
    #[arg(long, value_name = "SPEC", hide_short_help = true, help_heading = "Compressor options", value_parser = values::codec)]
    pub history_compression: Option<CodecSpec>,

    /// Store character and block devices
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub with_devices: bool,

    /// Store FIFOs and sockets
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub with_specials: bool,

    /// Leave out directories without content
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub remove_empty_dirs: bool,

    /// Store holes of sparse files as zeros
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub no_sparse_files: bool,

    /// Store no data: every file reads as zeros
    #[arg(
        long,
        hide_short_help = true,
        help_heading = "File system options",
        conflicts_with = "no_sparse_files"
    )]
    pub hollow: bool,

    /// Copy this file in front of the image
    #[arg(
        long,
        value_name = "FILE",
        hide_short_help = true,
        help_heading = "File system options"
    )]
    pub header: Option<PathBuf>,

    /// Omit the section index
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub no_section_index: bool,

    /// Omit the history
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub no_history: bool,

    /// Omit the time in the history
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub no_history_timestamps: bool,

    /// Omit the command line in the history
    #[arg(long, hide_short_help = true, help_heading = "File system options")]
    pub no_history_command_line: bool,

    /// One owner for everything: a user name or number
    #[arg(long, value_name = "USER", hide_short_help = true, help_heading = "Metadata options", value_parser = parse_user, allow_hyphen_values = true)]
    pub set_owner: Option<u32>,

    /// One group for everything: a group name or number
    #[arg(long, value_name = "GROUP", hide_short_help = true, help_heading = "Metadata options", value_parser = parse_group, allow_hyphen_values = true)]
    pub set_group: Option<u32>,

    /// One time for everything: now, unix seconds, or a date and time in UTC
    #[arg(long, value_name = "TIME", hide_short_help = true, help_heading = "Metadata options", value_parser = whole(values::set_time), allow_hyphen_values = true)]
    pub set_time: Option<TimeSpec>,

    /// Store access and change times too
    #[arg(long, hide_short_help = true, help_heading = "Metadata options")]
    pub keep_all_times: bool,

    /// Granularity of times, such as 1s, 10ms or 1min
    #[arg(long, value_name = "DURATION", default_value = "1s", hide_short_help = true, help_heading = "Metadata options", value_parser = whole(values::time_resolution), allow_hyphen_values = true)]
    pub time_resolution: TimeResolution,

    /// Omit the creation time
    #[arg(long, hide_short_help = true, help_heading = "Metadata options")]
    pub no_create_timestamp: bool,

    /// Accepted for compatibility; nothing is categorized
    #[arg(long, hide = true)]
    pub no_category_names: bool,

    /// Accepted for compatibility; nothing is categorized
    #[arg(long, hide = true)]
    pub no_category_metadata: bool,

    /// Omit link counts
    #[arg(long, hide_short_help = true, help_heading = "Metadata options")]
    pub no_hardlink_table: bool,

    /// Pack metadata: auto, none, or a list of all, chunk_table, directories, shared_files, names,
    /// names_index, symlinks, symlinks_index, force, plain
    #[arg(short = 'P', long, value_name = "LIST", default_value = "auto", hide_short_help = true, help_heading = "Metadata options", value_parser = whole(values::packing))]
    pub pack_metadata: Packing,
}

/// Options of the reference that this version knows but does not have: name, short name,
/// whether a value follows.
const UNSUPPORTED: [(&str, Option<char>, bool); 18] = [
    ("recompress", None, true),
    ("rebuild-metadata", None, false),
    ("change-block-size", None, false),
    ("no-metadata-version-history", None, false),
    ("recompress-categories", None, true),
    ("no-check", None, false),
    ("remove-header", None, false),
    ("categorize", None, true),
    ("hotness-list", None, true),
    ("incompressible-min-input-size", None, true),
    ("incompressible-block-size", None, true),
    ("incompressible-ratio", None, true),
    ("incompressible-zstd-level", None, true),
    ("incompressible-fragments", None, false),
    ("filter", Some('F'), true),
    ("debug-filter", None, true),
    ("chmod", None, true),
    ("extract-wrapped-binary", None, true),
];

/// The first option in `matches` that this version does not have.
pub(crate) fn unsupported(matches: &clap::ArgMatches) -> Option<&'static str> {
    UNSUPPORTED
        .iter()
        .map(|(name, ..)| *name)
        .find(|name| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine))
}

/// The levels, for the long help.
const LEVELS: &str = "\
Compression levels:
  level  block   data            schema, history  metadata       window/step  order
  0      1 MiB   null            null             null           -            none
  1      1 MiB   lz4             zstd:level=16    null           -            path
  2      1 MiB   lz4hc:level=9   zstd:level=16    null           -            path
  3      2 MiB   lz4hc:level=9   zstd:level=16    null           12/1         similarity
  4      4 MiB   zstd:level=11   zstd:level=16    null           12/2         similarity
  5      8 MiB   zstd:level=19   zstd:level=16    null           12/2         similarity
  6      16 MiB  zstd:level=22   zstd:level=16    null           12/3         similarity
  7      16 MiB  zstd:level=22   zstd:level=16    zstd:level=22  12/3         similarity
  8      16 MiB  lzma:level=9    zstd:level=16    lzma:level=9   12/4         similarity
  9      64 MiB  lzma:level=9    zstd:level=16    lzma:level=9   12/4         similarity
";

/// The complete command, for parsing and for generated documentation.
pub(crate) fn command() -> clap::Command {
    let unsupported = UNSUPPORTED.iter().map(|&(name, short, value)| {
        let mut arg = Arg::new(name).long(name).hide(true);
        if let Some(short) = short {
            arg = arg.short(short);
        }
        if value {
            arg.num_args(0..=1)
                .allow_hyphen_values(true)
                .action(ArgAction::Append)
        } else {
            arg.action(ArgAction::SetTrue)
        }
    });
    prepare(Args::command())
        .args(unsupported)
        .after_long_help(format!("{LEVELS}\n{}", redwarfs_codec::help().trim_end()))
}
