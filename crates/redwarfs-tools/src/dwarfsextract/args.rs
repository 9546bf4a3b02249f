//! The command line of `dwarfsextract`.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use redwarfs_reader::perfmon::Component;
use redwarfs_reader::{ImageOffset, SnapshotChoice, Verification};
use redwarfs_writer::XattrFilter;

use super::salvage::directory;
use crate::common::cli::{LogArgs, prepare, whole};
use crate::common::number::parse_size;
use crate::common::open::{image_offset, snapshot_choice};
use crate::common::progress::ProgressArgs;
use crate::common::verify::verification;
use crate::common::xattr_list::xattr_list;

/// Extract a DwarFS image to a directory or convert it to an archive.
#[derive(Debug, Clone, Parser)]
#[command(name = "dwarfsextract")]
#[command(
    override_usage = "dwarfsextract [-i] IMAGE [-o DIR] [PATTERN...]\n       dwarfsextract [-i] IMAGE -f FORMAT [-o FILE|-] [PATTERN...]\n       dwarfsextract [-i] IMAGE --stdout PATH"
)]
pub(crate) struct Args {
    /// Image to extract; without this option the first argument is the image
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Existing directory to extract to (default: the current one), or archive file with -f;
    /// '-' is standard output
    #[arg(short, long, value_name = "DIR|FILE")]
    pub output: Option<PathBuf>,

    /// Extract only entries that match this glob, or this path and all entries below it; a leading
    /// 'i:' ignores case
    #[arg(long, value_name = "PATTERN")]
    pub pattern: Vec<OsString>,

    /// The image, unless --input names it; all further arguments are patterns (as --pattern)
    #[arg(value_name = "IMAGE|PATTERN")]
    arguments: Vec<OsString>,

    /// Copy the contents of one file to standard output
    #[arg(long, value_name = "PATH",
          conflicts_with_all = ["output", "pattern", "format", "stdout_progress"])]
    pub stdout: Option<OsString>,

    /// Leave out block and character devices
    #[arg(long)]
    pub skip_devices: bool,

    /// Leave out FIFOs and sockets
    #[arg(long)]
    pub skip_specials: bool,

    /// Leave out symbolic links
    #[arg(long)]
    pub skip_symlinks: bool,

    /// Leave out all names of a file except the first
    #[arg(long)]
    pub skip_hardlinks: bool,

    /// Offset of the image in its file: a number of bytes, 'auto', or 'auto:N' for the N-th image
    #[arg(short = 'O', long, value_name = "N", default_value = "auto", allow_hyphen_values = true,
          value_parser = whole(image_offset))]
    pub image_offset: ImageOffset,

    /// Extract this snapshot instead of the newest one: its name or number, or a time. Neither is signed: see --verify
    #[arg(long, value_name = "NAME|NUMBER|TIME", value_parser = whole(snapshot_choice))]
    pub snapshot: Option<SnapshotChoice>,

    /// Write an archive: pax, ustar, gnutar, cpio, newc, zip, 7zip, iso9660, mtree and others, or
    /// 'auto' to choose by the name of the output file
    #[arg(short, long, value_name = "FORMAT")]
    pub format: Option<String>,

    /// Pass the archive through these filters, such as gzip, xz or zstd, in this order
    #[arg(
        long,
        value_name = "NAME[,NAME...]",
        value_delimiter = ',',
        requires = "format"
    )]
    pub format_filters: Vec<String>,

    /// Options for the format and the filters
    #[arg(
        long,
        value_name = "KEY=VALUE[,...]",
        default_value = "",
        hide_default_value = true
    )]
    pub format_options: String,

    /// Leave out entries that cannot be read or written, report them, and exit with 2
    #[arg(long)]
    pub continue_on_error: bool,

    /// Extended attributes to restore: all, user, none, or a list of patterns; a leading '!' excludes
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = whole(xattr_list))]
    pub xattrs: XattrFilter,

    /// Leave out file flags, such as immutable, which mkdwarfs --file-flags has stored
    #[arg(long)]
    pub skip_file_flags: bool,

    /// Exit with 2 if an owner, mode, time, extended attribute or file flag could not be set
    #[arg(long)]
    pub strict: bool,

    /// What the image must prove: signed:KEY, digests or checksums. KEY is a public key of minisign or SSH, or a file
    /// with one. Names of snapshots are not signed: the log says of which time the tree is
    #[arg(long, value_name = "HOW", default_value = "checksums", value_parser = whole(verification),
          conflicts_with = "disable_integrity_check")]
    pub verify: Verification,

    /// Do not verify the checksums of blocks; damage then goes unnoticed
    #[arg(long)]
    pub disable_integrity_check: bool,

    /// For images of which anything may be damaged or missing: search the whole file, extract all files that are whole,
    /// and write the rest to DIR, a new directory: parts of files with maps of what is missing, or raw blocks if
    /// there is no metadata, and a report
    #[arg(long, value_name = "DIR", value_parser = whole(directory), conflicts_with_all = ["stdout", "verify", "image_offset", "disable_integrity_check"])]
    pub salvage: Option<PathBuf>,

    /// Repair damaged parts of the image in memory, with its recovery data, while they are read
    #[arg(long, value_name = "memory", value_parser = ["memory"], conflicts_with = "salvage")]
    pub repair: Option<String>,

    /// With --repair and --salvage: the file with the recovery data [default: what the image has, or the file with its
    /// name and .dwrec behind it]
    #[arg(long, value_name = "FILE")]
    pub sidecar: Option<PathBuf>,

    /// Show the percentage on standard output
    #[arg(long)]
    pub stdout_progress: bool,

    /// Number of threads that decompress [default: number of CPUs, at most 4]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    num_workers: Option<usize>,

    /// Number of threads that write to disk; 0 means automatic
    #[arg(long, value_name = "N", default_value = "0", value_parser = threads_or_none)]
    pub num_disk_writers: usize,

    /// Memory for decompressed blocks
    #[arg(short = 's', long, value_name = "SIZE", default_value = "512m", value_parser = parse_size)]
    pub cache_size: u64,

    /// Keep blocks that are read in this directory, too, as they are stored: for images on servers and slow media
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// Size of the directory of --cache-dir
    #[arg(long, value_name = "SIZE", default_value = "10g", value_parser = parse_size)]
    pub cache_limit: u64,

    /// Read only from the directory of --cache-dir, and ask no server
    #[arg(long, requires = "cache_dir")]
    pub offline: bool,

    /// Measure the operations of these parts: filesystem_v2, inode_reader_v2, block_cache; the result
    /// goes to standard error at the end
    #[arg(long, value_name = "NAME[,NAME...]", value_parser = whole(components))]
    pub perfmon: Option<Components>,

    /// Also write a trace of the measured operations for a browser (about:tracing)
    #[arg(long, value_name = "FILE", requires = "perfmon")]
    pub perfmon_trace: Option<PathBuf>,

    #[command(flatten)]
    pub progress: ProgressArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

/// The parts that --perfmon names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Components(pub(crate) Vec<Component>);

impl Args {
    /// The image: the value of `--input`, or else the first argument.
    pub(super) fn image(&self) -> Option<&Path> {
        match &self.input {
            Some(input) => Some(input),
            None => self.arguments.first().map(Path::new),
        }
    }

    /// The patterns: the values of `--pattern`, and the arguments that are not the image.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &OsStr> {
        let image = usize::from(self.input.is_none());
        let arguments = self.arguments.iter().skip(image);
        self.pattern
            .iter()
            .chain(arguments)
            .map(OsString::as_os_str)
    }

    /// Threads that decompress. More threads than CPUs would only compete for CPU caches and memory.
    pub(super) fn workers(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.num_workers.unwrap_or_else(|| processors().min(4))
    }

    pub(crate) fn prepared() -> clap::Command {
        prepare(Self::command())
    }
}

/// Separated by commas, or as in the driver by plus signs.
fn components(text: &str) -> Result<Components, String> {
    text.split([',', '+'])
        .map(|name| name.parse::<Component>().map_err(|e| e.to_string()))
        .collect::<Result<_, _>>()
        .map(Components)
}

fn threads(text: &str) -> Result<usize, String> {
    match threads_or_none(text)? {
        0 => Err("must be at least 1".to_owned()),
        n => Ok(n),
    }
}

fn threads_or_none(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= 1024 => Ok(n),
        _ => Err("must be a number up to 1024".to_owned()),
    }
}
