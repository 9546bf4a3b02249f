//! The command line of `dwarfsextract`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use redwarfs_extractor::TarFormat;
use redwarfs_reader::ImageOffset;

use crate::common::cli::{LogArgs, prepare, whole};
use crate::common::number::parse_size;

/// Extract a DwarFS image to a directory or convert it to an archive.
#[derive(Debug, Clone, Parser)]
#[command(name = "dwarfsextract")]
#[command(
    override_usage = "dwarfsextract -i IMAGE [-o DIR]\n       dwarfsextract -i IMAGE -f FORMAT [-o FILE|-]"
)]
pub(crate) struct Args {
    /// Image to extract
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Existing directory to extract to (default: the current one), or archive file with -f;
    /// '-' is standard output
    #[arg(short, long, value_name = "DIR|FILE")]
    pub output: Option<PathBuf>,

    /// Extract only what matches (not supported yet)
    #[arg(long, value_name = "GLOB")]
    pub pattern: Vec<String>,

    /// As --pattern
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,

    /// Leave out block and character devices
    #[arg(long)]
    pub skip_devices: bool,

    /// Leave out fifos and sockets
    #[arg(long)]
    pub skip_specials: bool,

    /// Where the image starts in its file: a number of bytes or 'auto'
    #[arg(short = 'O', long, value_name = "N", default_value = "auto", allow_hyphen_values = true,
          value_parser = whole(|s: &str| s.parse::<ImageOffset>().map_err(|e| e.to_string())))]
    pub image_offset: ImageOffset,

    /// Write an archive: ustar, pax or gnutar. Directories that hold files are listed twice in
    /// it, so that unpacking in one pass restores their times
    #[arg(short, long, value_name = "FORMAT", value_parser = whole(str::parse::<TarFormat>))]
    pub format: Option<TarFormat>,

    /// Leave out files that cannot be read, report them, and exit with 2
    #[arg(long)]
    pub continue_on_error: bool,

    /// Show the percentage on standard output
    #[arg(long)]
    pub stdout_progress: bool,

    /// Number of threads that decompress
    #[arg(short, long, value_name = "N", default_value = "4", value_parser = threads)]
    pub num_workers: usize,

    /// Number of threads that write to disk; 0 chooses
    #[arg(long, value_name = "N", default_value = "0", value_parser = threads_or_none)]
    pub num_disk_writers: usize,

    /// Memory for decompressed blocks
    #[arg(short = 's', long, value_name = "SIZE", default_value = "512m", value_parser = parse_size)]
    pub cache_size: u64,

    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    pub(crate) fn prepared() -> clap::Command {
        prepare(Self::command())
    }
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
