//! The command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Arg, ArgAction, CommandFactory, Parser};
use redwarfs_archive::{Format, Whiteouts};
use redwarfs_codec::CodecSpec;
use redwarfs_format::metadata::Packing;
use redwarfs_writer::TimeResolution;

use super::append_args::AppendArgs;
use super::definition::WhenRewriting::{
    NeedsBlockSize, NeedsRebuild, NeedsSource, NeedsTree, NoEffect, Refused, Used,
};
use super::definition::{self, Definition as _, List};
use super::filter::{self, DebugMode};
use super::merge_args::MergeArgs;
use super::rewrite_args::RewriteArgs;
use super::stream_args::{self, StreamArgs};
use super::values::{self, HashChoice, LinkPolicy, MemoryLimit, TimeSpec, Verification};
use super::xattr_args::XattrArgs;
use crate::common::cli::{LogArgs, prepare, whole};
use crate::common::progress::ProgressArgs;
use crate::common::recovery::Amount;
use crate::common::users::{parse_group, parse_user};
use crate::common::{LogLevel, Logger};

/// Name of the tool in its messages.
pub(super) const TOOL: &str = "mkdwarfs";

/// Build a DwarFS image from a directory, from archives, or from another image.
#[derive(Debug, Clone, Parser)]
#[command(name = "mkdwarfs", disable_help_flag = true)]
#[command(
    override_usage = "mkdwarfs -i DIR|ARCHIVE|IMAGE -o FILE|- [OPTIONS...]\n       mkdwarfs --merge -o FILE IMAGE..."
)]
pub(crate) struct Args {
    /// Directory or archive to build the image from, or image to rewrite
    ///
    /// '-' reads an archive from standard input. Several archives make one tree: give the option several
    /// times. NAME=ARCHIVE puts an archive into the directory NAME.
    #[arg(short, long, value_name = "DIR|ARCHIVE|IMAGE", action = ArgAction::Append, when_rewriting = Used)]
    pub input: Vec<PathBuf>,

    /// Read the paths to store from this file, one per line; '-' reads standard input
    ///
    /// Relative paths start at the input directory, or without --input at the current directory.
    /// mkdwarfs adds parent directories as needed, and stores a listed directory without its content.
    /// The option implies --with-devices and --with-specials.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "debug_filter", "one_file_system", "exclude_caches", "exclude_if_present"], when_rewriting = Refused)]
    pub input_list: Option<PathBuf>,

    /// Paths in the files of --input-list and --order=explicit end with NUL instead of a newline
    #[arg(short = '0', long, when_rewriting = Refused)]
    pub null: bool,

    /// Image to write; '-' writes to standard output
    #[arg(short, long, value_name = "FILE", when_rewriting = Used)]
    pub output: Option<PathBuf>,

    /// Replace an existing output file, and keep its mode and owner
    #[arg(short, long, when_rewriting = Used)]
    pub force: bool,

    /// Compression level, 0 (fastest) to 9 (smallest)
    #[arg(short = 'l', long, value_name = "N", default_value = "7", value_parser = whole(values::level), allow_hyphen_values = true, when_rewriting = Used)]
    pub compress_level: u8,

    /// Show more about progress, and messages of level verbose
    #[arg(short, long, when_rewriting = Used)]
    pub verbose: bool,

    #[command(flatten)]
    pub log: LogArgs,

    /// Print basic help (this text)
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Print help with all options, levels and compression algorithms
    #[arg(short = 'H', long, action = ArgAction::HelpLong)]
    long_help: Option<bool>,

    /// Log2 of the block size, 10 to 30 [default: by level]
    ///
    /// Blocks of more than 16 MiB may end up to three eighths early, so that fewer directories are
    /// spread over two blocks.
    #[arg(short = 'S', long, value_name = "BITS", help_heading = "Advanced options", value_parser = whole(crate::common::number::block_size_bits), allow_hyphen_values = true, when_rewriting = NeedsBlockSize)]
    pub block_size_bits: Option<u32>,

    /// Number of threads [default: number of CPUs]
    #[arg(short = 'N', long, value_name = "N", help_heading = "Advanced options", value_parser = values::ranged(1, 1024), allow_hyphen_values = true, when_rewriting = Used)]
    pub num_workers: Option<u32>,

    /// Number of threads that read and hash files [default: as --num-workers]
    #[arg(long, value_name = "N", help_heading = "Advanced options", value_parser = values::ranged(1, 1024), allow_hyphen_values = true, when_rewriting = NoEffect)]
    pub num_scanner_workers: Option<u32>,

    /// Number of threads that order and segment files [default: as --num-workers]
    #[arg(long, value_name = "N", help_heading = "Advanced options", value_parser = values::ranged(1, 1024), allow_hyphen_values = true, when_rewriting = NoEffect)]
    pub num_segmenter_workers: Option<u32>,

    /// Niceness of the compression threads
    #[arg(long, value_name = "N", default_value = "5", help_heading = "Advanced options", value_parser = values::ranged(0, 19), allow_hyphen_values = true, when_rewriting = Used)]
    pub compress_niceness: u32,

    /// Limit for the memory of the whole program: 'auto' or a size (k, m, g, t)
    #[arg(short = 'L', long, value_name = "SIZE", default_value = "auto", help_heading = "Advanced options", value_parser = values::memory_limit, allow_hyphen_values = true, when_rewriting = Used)]
    pub memory_limit: MemoryLimit,

    /// Keep results in this directory, with which the same command goes on after it was killed
    ///
    /// The image is that of a build without interruption. mkdwarfs lists, orders and segments the input again. It takes compressed
    /// blocks and digests of files from DIR, which needs as much space as the image, and removes DIR when the image is complete.
    #[arg(long, value_name = "DIR", help_heading = "Advanced options", conflicts_with = "delta", when_rewriting = Refused)]
    pub checkpoint: Option<PathBuf>,

    #[command(flatten)]
    pub streams: StreamArgs,

    /// Larger files are not compared for similarity, and come first; 0 means no limit
    #[arg(long, value_name = "SIZE", help_heading = "Advanced options", value_parser = crate::common::number::parse_size, allow_hyphen_values = true, when_rewriting = NoEffect)]
    pub max_similarity_size: Option<u64>,

    /// Hash that finds equal files: xxh3-128, xxh3-64, sha256, ..., or none
    #[arg(long, value_name = "NAME", default_value = "xxh3-128", help_heading = "Advanced options", value_parser = whole(values::file_hash), when_rewriting = NoEffect)]
    pub file_hash: HashChoice,

    /// Compare files with equal hashes byte by byte before storing them once: auto, always, never
    ///
    /// Somebody can make two different files with the same hash unless the hash is cryptographic;
    /// 'auto' compares in this case. For that, large files that have copies are read once more.
    #[arg(long, value_name = "WHEN", default_value = "auto", num_args = 0..=1, default_missing_value = "always", help_heading = "Advanced options", value_parser = whole(values::verification), when_rewriting = NoEffect)]
    pub verify_dedup: Verification,

    /// Give up a file if the build waits for it longer than this, plus a second per MiB that arrives
    #[arg(long, value_name = "DURATION", help_heading = "Advanced options", value_parser = values::timeout, allow_hyphen_values = true, when_rewriting = NeedsSource)]
    pub file_timeout: Option<Duration>,

    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Include or exclude entries: '+ PATTERN', '- PATTERN', or '. FILE' to read rules
    #[arg(short = 'F', long, value_name = "RULE", action = ArgAction::Append, help_heading = "Filter options", allow_hyphen_values = true, when_rewriting = NeedsTree, list = true)]
    pub filter: Vec<OsString>,

    /// Show the decisions of the filter rules, and build nothing
    ///
    /// The mode selects the entries to show: all, files, included, included-files, excluded,
    /// excluded-files.
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "all", help_heading = "Filter options", value_parser = whole(filter::debug_mode), when_rewriting = Refused)]
    pub debug_filter: Option<DebugMode>,

    /// Lua script that selects entries, and groups and orders files
    ///
    /// mkdwarfs calls 'filter' for each entry, and 'category' and 'order' for each file (see --man).
    #[arg(long, value_name = "FILE", help_heading = "Filter options", when_rewriting = Refused)]
    pub script: Option<PathBuf>,

    /// Leave out directories that are empty after filtering
    #[arg(long, help_heading = "Filter options", when_rewriting = NeedsTree)]
    pub remove_empty_dirs: bool,

    /// Stay on the file system of the input directory
    #[arg(long, help_heading = "Filter options", when_rewriting = NeedsSource)]
    pub one_file_system: bool,

    /// Leave out the contents of directories with a CACHEDIR.TAG, except the tag
    #[arg(long, help_heading = "Filter options", when_rewriting = NeedsSource)]
    pub exclude_caches: bool,

    /// Leave out the contents of directories with an entry of this name, except that entry
    #[arg(long, value_name = "NAME", action = ArgAction::Append, help_heading = "Filter options", value_parser = clap::builder::OsStringValueParser::new().try_map(values::plain_name), when_rewriting = NeedsSource)]
    pub exclude_if_present: Vec<OsString>,

    /// Compression of the metadata schema [default: by level]
    #[arg(long, value_name = "SPEC", help_heading = "Compressor options", value_parser = values::codec, when_rewriting = Used)]
    pub schema_compression: Option<CodecSpec>,

    /// Compression of the metadata [default: by level]
    #[arg(long, value_name = "SPEC", help_heading = "Compressor options", value_parser = values::codec, when_rewriting = Used)]
    pub metadata_compression: Option<CodecSpec>,

    /// Compression of the history [default: by level]
    #[arg(long, value_name = "SPEC", help_heading = "Compressor options", value_parser = values::codec, when_rewriting = Used)]
    pub history_compression: Option<CodecSpec>,

    /// Store character and block devices
    #[arg(long, help_heading = "File system options", when_rewriting = NeedsSource)]
    pub with_devices: bool,

    /// Store FIFOs and sockets
    #[arg(long, help_heading = "File system options", when_rewriting = NeedsSource)]
    pub with_specials: bool,

    /// Treatment of symbolic links: keep, follow, drop
    #[arg(long, value_name = "POLICY", default_value = "keep", help_heading = "File system options", value_parser = whole(values::symlinks), when_rewriting = NeedsSource)]
    pub symlinks: redwarfs_writer::Symlinks,

    /// Treatment of hard links: keep, dissolve
    #[arg(long, value_name = "POLICY", default_value = "keep", help_heading = "File system options", value_parser = whole(values::hard_links), when_rewriting = NeedsTree)]
    pub hard_links: LinkPolicy,

    /// File that declares entries: devices, directories, owners, modes (see --man)
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "File system options", when_rewriting = Refused)]
    pub pseudo_file: Vec<PathBuf>,

    /// Format of input archives: auto, tar, cpio, ar, deb, rpm, oci, zip, 7z, iso, ...
    ///
    /// mkdwarfs recognises the compression of an archive in any case. It reads tar, cpio, ar, deb and rpm
    /// itself, and with libarchive zip, 7z, iso, xar, cab, lha, rar, warc and mtree. It never guesses
    /// mtree, because such a list names files outside of itself. 'oci' takes the files of the layers of a
    /// container image, which 'docker save' and 'podman save' write.
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = "Archive options", value_parser = whole(values::input_format), when_rewriting = NeedsSource)]
    pub input_format: Format,

    /// Treatment of the whiteouts of container layers: keep, apply, overlay [default: keep, for oci apply]
    ///
    /// With apply, they remove what the archives before have, or the images before with --merge=overlay.
    /// With overlay, they become what overlayfs takes for whiteouts; this implies --with-devices.
    #[arg(long, value_name = "POLICY", help_heading = "Archive options", value_parser = whole(values::whiteouts), when_rewriting = NeedsTree)]
    whiteouts: Option<Whiteouts>,

    /// Directory for temporary files with contents of archives, and tables beyond the memory limit [default: TMPDIR, or that of the output]
    #[arg(long, value_name = "DIR", help_heading = "Advanced options", when_rewriting = NeedsSource)]
    pub spool: Option<PathBuf>,

    /// Store holes of sparse files as zeros
    #[arg(long, help_heading = "File system options", when_rewriting = NeedsSource)]
    pub no_sparse_files: bool,

    /// Store no data: every file reads as zeros
    #[arg(long, help_heading = "File system options", conflicts_with = "no_sparse_files", when_rewriting = Refused)]
    pub hollow: bool,

    /// Write this file before the image, or 'runtime' for a program that mounts itself
    #[arg(long, value_name = "FILE", help_heading = "File system options", when_rewriting = Used)]
    pub header: Option<PathBuf>,

    /// Omit the section index
    #[arg(long, help_heading = "File system options", when_rewriting = Used)]
    pub no_section_index: bool,

    /// Add recovery data behind the image, of so many per cent of its size
    ///
    /// With it, dwarfsck --repair restores damaged parts of the file. It also protects the header. With --append, it
    /// protects what no recovery data of an older snapshot does, or everything if ',merge' is behind the number. What it
    /// protects of the old image is checked first; ',merge' reads all of that.
    #[arg(long, value_name = "PERCENT[,merge]", help_heading = "File system options", when_rewriting = Used,
          value_parser = Amount::parse)]
    pub recovery: Option<Amount>,

    /// Store what a program reads first, as 'dwarfs -o hints_file=FILE' has recorded it
    ///
    /// A mount of the image loads these parts at once, in the background. FILE can be of another image with the same
    /// files; it can also be a list of paths, one per line, for whole files. Without this option, --recompress keeps the
    /// hints of the image unless blocks change their size, and --append keeps those of the snapshot before.
    #[arg(long, value_name = "FILE", help_heading = "File system options", conflicts_with_all = ["no_section_index", "canonical"],
          when_rewriting = Used)]
    pub hints: Option<PathBuf>,

    /// Omit the history
    #[arg(long, help_heading = "File system options", when_rewriting = Used)]
    pub no_history: bool,

    /// Omit the times from the history
    #[arg(long, help_heading = "File system options", when_rewriting = Used)]
    pub no_history_timestamps: bool,

    /// Omit the command line from the history
    #[arg(long, help_heading = "File system options", when_rewriting = Used)]
    pub no_history_command_line: bool,

    /// Owner of every entry: a user name or number
    #[arg(long, value_name = "USER", help_heading = "Metadata options", value_parser = parse_user, allow_hyphen_values = true, when_rewriting = NeedsRebuild)]
    pub set_owner: Option<u32>,

    /// Group of every entry: a group name or number
    #[arg(long, value_name = "GROUP", help_heading = "Metadata options", value_parser = parse_group, allow_hyphen_values = true, when_rewriting = NeedsRebuild)]
    pub set_group: Option<u32>,

    /// Map owners and groups by the lines of this file (see --man)
    #[arg(long, value_name = "FILE", help_heading = "Metadata options", when_rewriting = NeedsTree)]
    pub owner_map: Option<PathBuf>,

    /// Change permissions as chmod(1) does, or 'norm' for readable by all and writable by none
    #[arg(long, value_name = "MODE", help_heading = "Metadata options", allow_hyphen_values = true, when_rewriting = NeedsRebuild)]
    pub chmod: Option<String>,

    /// Time of every entry: now, Unix seconds, or a date and time, in UTC unless a zone follows
    #[arg(long, value_name = "TIME", help_heading = "Metadata options", value_parser = whole(values::set_time), allow_hyphen_values = true, when_rewriting = NeedsRebuild)]
    pub set_time: Option<TimeSpec>,

    /// Store access and change times too
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsRebuild)]
    pub keep_all_times: bool,

    /// Granularity of times, such as 1s, 10ms or 1min
    #[arg(long, value_name = "DURATION", default_value = "1s", help_heading = "Metadata options", value_parser = whole(values::time_resolution), allow_hyphen_values = true, when_rewriting = NeedsRebuild)]
    pub time_resolution: TimeResolution,

    /// Omit the creation time
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsRebuild)]
    pub no_create_timestamp: bool,

    /// Omit link counts
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsRebuild)]
    pub no_hardlink_table: bool,

    /// Parts of the metadata to pack: auto, none, or a list
    ///
    /// The parts are all, chunk_table, directories, shared_files, names, names_index, symlinks and
    /// symlinks_index. With force, strings are packed even if this makes them larger; with plain, they
    /// are not packed.
    #[arg(short = 'P', long, value_name = "LIST", default_value = "auto", help_heading = "Metadata options", value_parser = whole(values::packing), when_rewriting = NeedsRebuild)]
    pub pack_metadata: Packing,

    #[command(flatten)]
    pub xattrs: XattrArgs,

    #[command(flatten)]
    pub append: AppendArgs,

    #[command(flatten)]
    pub rewrite: RewriteArgs,

    #[command(flatten)]
    pub merge: MergeArgs,
}

impl Args {
    /// Treatment of whiteouts.
    pub(crate) fn whiteouts(&self) -> Whiteouts {
        self.whiteouts.unwrap_or(match self.input_format {
            Format::Oci => Whiteouts::Apply,
            _ => Whiteouts::Keep,
        })
    }

    /// The input, or the first one.
    pub(crate) fn first_input(&self) -> Option<&Path> {
        self.input.first().map(PathBuf::as_path)
    }

    /// An argument that belongs to no option.
    pub(crate) fn stray(&self) -> Option<String> {
        let first = self.merge.images.first();
        let first = first.filter(|_| self.merge.merge.is_none())?;
        Some(first.to_string_lossy().into_owned())
    }

    /// The file that is written.
    pub(crate) fn written(&self) -> Option<&Path> {
        let append = &self.append;
        let written = append.delta_out.as_ref().or(self.output.as_ref());
        written.or(append.append.as_ref()).map(PathBuf::as_path)
    }

    /// The logger that the options ask for. It also gets the events of the libraries.
    pub(crate) fn logger(&self) -> Logger {
        self.log.logger_at_least(match self.verbose {
            true => LogLevel::Verbose,
            false => LogLevel::Error,
        })
    }
}

/// Options of the reference that this version knows but does not have: name, short name,
/// whether a value follows.
const UNSUPPORTED: [(&str, Option<char>, bool); 1] = [("extract-wrapped-binary", None, true)];

/// The first option in `matches` that this version does not have.
pub(crate) fn unsupported(matches: &clap::ArgMatches) -> Option<&'static str> {
    UNSUPPORTED
        .iter()
        .map(|(name, ..)| *name)
        .find(|name| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine))
}

/// Puts the name of a list option before each further value, because the parser of the command line
/// needs a name for each value.
pub(crate) fn spread_lists(args: &[OsString]) -> Vec<OsString> {
    let lists = definition::lists(command());
    let mut out = Vec::with_capacity(args.len());
    let mut list: Option<&List> = None;
    let mut value_follows = false;
    for arg in args {
        let bytes = arg.as_encoded_bytes();
        // No option has a space after its dash, but rules do.
        let rules = list.is_some_and(|list| list.long == "--filter");
        let value = !bytes.starts_with(b"-") || (rules && bytes.starts_with(b"- "));
        if value_follows {
            value_follows = false;
        } else if value && let Some(list) = list {
            out.push(OsString::from(&list.long));
        } else {
            let found = list_option(&lists, bytes);
            list = found.map(|(list, _)| list);
            value_follows = found.is_some_and(|(_, complete)| !complete);
        }
        out.push(arg.clone());
    }
    out
}

/// The list option that an argument names, and whether it carries a value.
fn list_option<'a>(lists: &'a [List], arg: &[u8]) -> Option<(&'a List, bool)> {
    let name = arg.split(|&b| b == b'=').next().unwrap_or_default();
    lists.iter().find_map(|list| {
        // A beginning of a name is valid, too. If it fits several options, the parser reports that.
        let long = list.long.as_bytes();
        if name.len() > 3 && name.starts_with(b"--") && long.starts_with(name) {
            return Some((list, name.len() < arg.len()));
        }
        let short = list.short.map(|short| format!("-{short}"))?;
        arg.starts_with(short.as_bytes())
            .then_some((list, arg.len() > short.len()))
    })
}

/// What to write instead of an argument that belongs to no option: input and output have options.
pub(crate) fn place_of_stray(stray: &str, args: &[OsString]) -> String {
    let texts: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let given = |short: &str, long: &str| {
        let mut texts = texts.iter();
        texts.any(|text| {
            text.starts_with(long) || (!text.starts_with("--") && text.starts_with(short))
        })
    };
    let next = texts.iter().skip_while(|text| *text != stray).nth(1);
    let next = next.filter(|next| !next.starts_with('-'));
    match (given("-i", "--input"), given("-o", "--output"), next) {
        (false, false, Some(next)) => format!("write -i {stray} -o {next}"),
        (false, false, None) => format!("write -i {stray} -o IMAGE"),
        (false, true, _) => format!("write -i {stray}"),
        (true, false, _) => format!("write -o {stray}"),
        (true, true, _) => "try 'mkdwarfs --help'".to_owned(),
    }
}

/// The levels, for the long help.
const LEVELS: &str = "\
Compression levels:
  level  block   data           metadata       window/step  blocks  order
  0      1 MiB   null           null           -            -       none
  1      1 MiB   lz4            null           -            -       versions
  2      1 MiB   lz4hc:level=9  null           12/2         16      families
  3      2 MiB   lz4hc:level=9  null           12/2         16      families
  4      4 MiB   zstd:level=11  zstd:level=12  11/2         8       families
  5      8 MiB   zstd (1)       zstd:level=12  11/3         8       families
  6      16 MiB  zstd (1)       zstd:level=12  11/3         4       families
  7      16 MiB  zstd (2)       zstd:level=19  11/3         4       families
  8      16 MiB  lzma (3)       lzma:level=9   11/3         4       families
  9      64 MiB  lzma (3)       lzma:level=9   11/3         2       families
  blocks: number of blocks that are searched, see --max-lookback-blocks
  schema and history: zstd:level=16, at level 0 null
  level 7 uses lzma:level=9 for the metadata if it saves 1 % of the image
  (1) as (2) with quick=12
  (2)
    zstd:level=19:wlog=24:hlog=22:clog=24:slog=5:mml=3:tlen=128:strat=9:deep=32
  (3) lzma:level=9:binary=auto
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
    let command = definition::with_groups(prepare(Args::command()));
    command.args(unsupported).after_long_help(format!(
        "{LEVELS}\nCompression algorithms and their options:\n{}\n{}",
        redwarfs_codec::help(),
        stream_args::help().trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;
    use redwarfs_writer::{BuildOptions, Order};

    /// The text of a note below the table, which starts with `mark` and may go on in the next line.
    fn note(mark: &str) -> Option<&'static str> {
        let mut lines = LEVELS.lines().map(str::trim);
        let words = lines.find_map(|line| line.strip_prefix(mark))?;
        match words.trim() {
            "" => lines.next(),
            words => Some(words),
        }
    }

    /// Codecs that the table names below itself are spelled out.
    fn spelled_out(codec: &str) -> String {
        let Some((_, mark)) = codec.split_once(' ') else {
            return codec.to_owned();
        };
        let text = note(mark).unwrap();
        match text.strip_prefix("as (2) with ") {
            Some(more) => format!("{}:{more}", note("(2)").unwrap()),
            None => text.to_owned(),
        }
    }

    /// Codec, window and order of a category, as the help names them.
    #[test]
    fn the_table_of_categories_is_what_levels_are() {
        use redwarfs_writer::Category;

        let help = stream_args::help();
        let rows = help.lines().skip_while(|line| !line.contains("level  pcm"));
        let rows: Vec<&str> = rows.skip(1).collect();
        assert_eq!(rows.len(), 4);
        for row in rows {
            let cells: Vec<&str> = row.split("  ").filter(|cell| !cell.is_empty()).collect();
            let (first, last) = cells[0].split_once('-').unwrap_or((cells[0], cells[0]));
            for level in first.trim().parse::<u8>().unwrap()..=last.trim().parse().unwrap() {
                let options = BuildOptions::level(level);
                let found = |category, window: &str| {
                    let Some(own) = options.categories.get(&category) else {
                        return "-".to_owned();
                    };
                    let codec = own.compression.as_ref().unwrap().to_string();
                    let order = own.order.as_ref().map(|order| {
                        assert_eq!(*order, Order::RevPath);
                        "revpath".to_owned()
                    });
                    let window = own.window_bits.map(|bits| format!("{window}{bits}"));
                    let parts = [Some(codec), window, order];
                    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
                };
                let audio = found(Category::PcmWaveform, "window ");
                let image = found(Category::FitsImage, "").replace(":block_size=128", "");
                let stored = found(Category::Incompressible, "");
                let cells: Vec<&str> = cells[1..].iter().map(|cell| cell.trim()).collect();
                assert_eq!(cells, [audio, image, stored], "level {level}");
            }
        }
    }

    #[test]
    fn the_table_of_levels_is_what_levels_are() {
        let codec = |text: &str| text.parse::<redwarfs_codec::CodecSpec>().unwrap();
        for level in 0..=9 {
            let row = LEVELS.lines().nth(2 + usize::from(level)).unwrap();
            let cells: Vec<&str> = row
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect();
            let options = BuildOptions::level(level);
            let mebibytes = (1_u64 << options.block_size_bits) >> 20;
            assert_eq!(cells[..2], [level.to_string(), format!("{mebibytes} MiB")]);
            // Whatever the order of the parameters.
            let sorted = |spec: String| {
                let mut words: Vec<String> = spec.split(':').map(str::to_owned).collect();
                words.sort();
                words
            };
            let found = sorted(options.compression.to_string());
            assert_eq!(found, sorted(codec(&spelled_out(cells[2])).to_string()));
            let schema = note("schema and history:").unwrap();
            let (usual, at_zero) = schema.split_once(", at level 0 ").unwrap();
            let schema = codec(if level == 0 { at_zero } else { usual });
            assert_eq!(options.schema_compression, schema);
            assert_eq!(options.history_compression, schema);
            assert_eq!(options.metadata_compression, codec(cells[3]));
            let alternative = note(&format!("level {level} uses "))
                .and_then(|text| text.split_once(" for the metadata"))
                .map(|(spec, _)| codec(spec));
            assert_eq!(options.metadata_alternative, alternative);
            let window = match options.window_bits {
                0 => "-".to_owned(),
                bits => format!("{bits}/{}", options.window_step),
            };
            let blocks = match options.lookback {
                1 => "-".to_owned(),
                blocks => blocks.to_string(),
            };
            let order = match options.order {
                Order::None => "none",
                Order::Versions(_) => "versions",
                Order::Families(_) => "families",
                _ => "another",
            };
            assert_eq!(cells[4..], [window.as_str(), &blocks, order], "{row}");
        }
    }

    #[test]
    fn the_tables_fit_eighty_columns() {
        let command = command();
        let tables = command.get_after_long_help().unwrap().to_string();
        for line in tables.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn every_option_says_what_it_means_when_rewriting() {
        let mut command = command();
        command.build();
        // What all tools have says nothing about images.
        let shared = ProgressArgs::augment_args(LogArgs::augment_args(clap::Command::new("")));
        let shared = shared.get_arguments().filter_map(Arg::get_long);
        let help = ["help", "long-help", "version", "man"];
        let shared: Vec<&str> = shared.chain(help).collect();
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let name = arg.get_long().unwrap_or_default();
            let meaning = definition::meaning(&command, arg);
            assert_eq!(
                meaning.is_none(),
                shared.contains(&name),
                "--{name}: {meaning:?}"
            );
        }
    }

    #[test]
    fn options_that_take_categories_are_lists() {
        let lists = definition::lists(command());
        let names: Vec<&str> = lists.iter().map(|list| list.long.as_str()).collect();
        assert!(names.contains(&"--filter"), "{names:?}");
        for arg in command().get_arguments() {
            let value = arg.get_value_names().unwrap_or_default().first();
            if value.is_some_and(|value| value.starts_with("[CAT")) {
                let long = format!("--{}", arg.get_long().unwrap());
                assert!(names.contains(&long.as_str()), "{long}");
            }
        }
    }

    #[test]
    fn stray_arguments_are_told_their_place() {
        for (args, want) in [
            (&["in", "a.dwarfs"][..], "write -i in -o a.dwarfs"),
            (&["-l9", "in"], "write -i in -o IMAGE"),
            (&["-i", "x", "in"], "write -o in"),
            (&["--output=x", "in"], "write -i in"),
            (&["-ix", "-ox", "in"], "try 'mkdwarfs --help'"),
        ] {
            let args: Vec<OsString> = args.iter().map(Into::into).collect();
            assert_eq!(place_of_stray("in", &args), want);
        }
    }

    #[test]
    fn values_of_lists_follow_each_other() {
        let spread = |args: &[&str]| -> Vec<String> {
            let args: Vec<OsString> = args.iter().map(Into::into).collect();
            let out = spread_lists(&args).into_iter();
            out.map(|arg| arg.to_string_lossy().into_owned()).collect()
        };
        for (args, want) in [
            (&["-F", "- a", "-f"][..], &["-F", "- a", "-f"][..]),
            (
                &["-F", "- a", "- b", "+ c", "-o", "x"],
                &["-F", "- a", "--filter", "- b", "--filter", "+ c", "-o", "x"],
            ),
            (
                &["-F- a", "+ b", "--filt=. f", "- c"],
                &["-F- a", "--filter", "+ b", "--filt=. f", "--filter", "- c"],
            ),
            (
                &["-C", "zstd", "a::null", "-W12", "a::10"],
                &[
                    "-C",
                    "zstd",
                    "--compression",
                    "a::null",
                    "-W12",
                    "--window-size",
                    "a::10",
                ],
            ),
            (&["-B", "-1", "-i", "x"], &["-B", "-1", "-i", "x"]),
            (&["-C", "zstd", "- b"], &["-C", "zstd", "- b"]),
            (&["x", "--output", "y", "z"], &["x", "--output", "y", "z"]),
        ] {
            assert_eq!(spread(args), want, "{args:?}");
        }
    }
}
