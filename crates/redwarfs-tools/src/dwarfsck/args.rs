//! The command line of `dwarfsck`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser};
use redwarfs_reader::ImageOffset;
use redwarfs_signature::DigestAlgorithm;

use super::checksum::Algorithm;
use super::detail::Detail;
use super::output::Form;
use super::signing::algorithm;
use super::snapshot_args::SnapshotArgs;
use crate::common::cli::{LogArgs, prepare, whole};
use crate::common::number::{parse_duration, parse_size};
use crate::common::open::image_offset;
use crate::common::progress::ProgressArgs;
use crate::common::recovery::Amount;

/// The group of the options of which there can be one.
const SIGNING: &str = "task";

/// Check a DwarFS image and show its properties and contents.
#[derive(Debug, Clone, Parser)]
#[command(name = "dwarfsck")]
#[command(group = clap::ArgGroup::new(SIGNING).conflicts_with_all(["list", "checksum", "print_header", "export_metadata", "add_recovery", "check_recovery", "repair", "repair_patch", "apply_patch", "remove_recovery"]))]
#[command(override_usage = "dwarfsck [-i] IMAGE [OPTIONS...]")]
pub(crate) struct Args {
    /// Image to check
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append)]
    pub input: Vec<PathBuf>,

    /// Image to check (as --input)
    #[arg(value_name = "IMAGE")]
    pub image: Vec<PathBuf>,

    /// Information to show: a level from 0 to 7, or a list of features
    ///
    /// Each level adds features. 1: version, metadata_summary. 2: history, frozen_analysis.
    /// 3: section_details, metadata_details, frozen_details. 4: frozen_layout, directory_tree.
    /// 5: chunk_details. 6: metadata_full_dump. 7: schema_raw_dump.
    #[arg(short, long, value_name = "LEVEL|LIST", default_value = "2", allow_hyphen_values = true,
          value_parser = whole(str::parse::<Detail>))]
    pub detail: Detail,

    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,

    /// With --list: show modes, owners, sizes and times; otherwise: name all files that damage affects
    #[arg(short, long)]
    pub verbose: bool,

    /// Offset of the image in its file: a number of bytes, 'auto', or 'auto:N' for the N-th image
    #[arg(short = 'O', long, value_name = "N", default_value = "auto", allow_hyphen_values = true,
          value_parser = whole(image_offset))]
    pub image_offset: ImageOffset,

    /// Size of the image in bytes, if other data follows it in its file
    #[arg(long, value_name = "BYTES", value_parser = image_size)]
    pub image_size: Option<u64>,

    /// Write the data before the image to standard output
    #[arg(short = 'H', long)]
    pub print_header: bool,

    /// List all names; with -v also modes, owners, sizes and times; with -j as lines of JSON with all
    /// attributes
    #[arg(short, long)]
    pub list: bool,

    /// With --list or --checksum: end each line with NUL, and do not escape names
    #[arg(short = '0', long)]
    pub null: bool,

    /// Print a checksum of every file, in the format that sha256sum and similar tools verify
    #[arg(long, value_name = "ALGORITHM", value_parser = whole(str::parse::<Algorithm>))]
    pub checksum: Option<Algorithm>,

    /// Print the extended attributes of all entries, in the format of getfattr(1)
    #[arg(long, conflicts_with_all = ["list", "checksum", "json", "null", "print_header"])]
    pub xattrs: bool,

    /// Exit with 1 if the image has anything that the original implementation does not know, and say what
    #[arg(long)]
    pub is_canonical: bool,

    /// Number of threads [default: number of CPUs]
    #[arg(short, long, value_name = "N", value_parser = workers)]
    pub num_workers: Option<usize>,

    /// Memory for decompressed blocks, with --checksum and --decode
    #[arg(short = 's', long, value_name = "SIZE", default_value = "512m", value_parser = parse_size)]
    pub cache_size: u64,

    /// Also verify the SHA-512/256 digest of every section
    #[arg(long)]
    pub check_integrity: bool,

    /// Also decode every block, which finds data that was already wrong when it was stored. Images of
    /// formats 2.0 and 2.1, which have no checksums, are always checked in this way
    #[arg(long)]
    pub decode: bool,

    /// Verify only the data that is read for other options
    #[arg(long)]
    pub no_check: bool,

    /// Show the information as one line of JSON, with a list of all errors; with --list or --checksum,
    /// one line of JSON per entry
    #[arg(short, long)]
    pub json: bool,

    /// Write the metadata as JSON to a file instead of showing information; '-' is standard output
    #[arg(long, value_name = "FILE")]
    pub export_metadata: Option<PathBuf>,

    /// Add recovery data behind the image, of so many per cent of its size, from which damage can be
    /// repaired. All snapshots are checked first. Recovery data that the file has stays in use, and what follows it is protected;
    /// ',merge' behind the number protects everything anew
    #[arg(long, value_name = "PERCENT[,merge]", value_parser = Amount::parse)]
    pub add_recovery: Option<Amount>,

    /// With --add-recovery: write the recovery data to a file of its own, and leave the image as it is [default: the
    /// name of the image with .dwrec behind it]. With other options: use the recovery data of this file, which they
    /// otherwise do if it has the default name and the image has none
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub sidecar: Option<Option<PathBuf>>,

    /// Compare the file with its recovery data, and say whether damage can be repaired
    #[arg(long)]
    pub check_recovery: bool,

    /// Repair the file with its recovery data, in place; or write a repaired copy to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub repair: Option<Option<PathBuf>>,

    /// Write a patch with what --repair would write to FILE, and leave the file as it is
    #[arg(long, value_name = "FILE")]
    pub repair_patch: Option<PathBuf>,

    /// Put the bytes of a patch of --repair-patch into the file, if that makes it what it was
    #[arg(long, value_name = "FILE")]
    pub apply_patch: Option<PathBuf>,

    /// Remove the recovery data that ends the file
    #[arg(long)]
    pub remove_recovery: bool,

    /// Search the whole file, of which anything may be damaged or missing, and say what dwarfsextract --salvage can save
    #[arg(long, group = SIGNING)]
    pub salvage_report: bool,

    /// Add digests of all sections behind the image: blake3 (the default) or sha512-256. Images are read with
    /// verify=digests then, and can be signed. The image is checked first
    #[arg(long, value_name = "ALGORITHM", num_args = 0..=1, require_equals = true, default_missing_value = "blake3",
          group = SIGNING, value_parser = whole(algorithm))]
    pub add_digests: Option<DigestAlgorithm>,

    /// Compare all sections with the digests of the image
    #[arg(long, group = SIGNING)]
    pub check_digests: bool,

    /// Write what is signed to a file, for other programs; '-' is standard output
    #[arg(long, value_name = "FILE", group = SIGNING)]
    pub export_digests: Option<PathBuf>,

    /// Sign the image with a secret key of minisign or a private key of SSH; adds digests if there are none. The
    /// image is checked first
    #[arg(long, value_name = "KEYFILE", group = SIGNING)]
    pub sign: Option<PathBuf>,

    /// Add a signature of what --export-digests has written: a file of minisign, or of ssh-keygen with the
    /// namespace 'dwarfs'
    #[arg(long, value_name = "FILE", group = SIGNING)]
    pub add_signature: Option<PathBuf>,

    /// Verify that the image is signed with this public key of minisign or SSH, or one of a file of allowed signers,
    /// and that all sections are as they were signed
    #[arg(long, value_name = "KEY", group = SIGNING)]
    pub verify_signature: Option<String>,

    /// With --sign: the file whose first line is the password of the key; '-' is standard input. Without it,
    /// the terminal asks for it
    #[arg(long, value_name = "FILE", requires = "sign")]
    pub password_file: Option<PathBuf>,

    /// With --sign and a key of minisign: a comment that is signed, too [default: time and name of the file]
    #[arg(long, value_name = "TEXT", requires = "sign", value_parser = whole(comment))]
    pub trusted_comment: Option<String>,

    /// Verify the sections of all snapshots one after the other, and remember in the file STATE which is next: a later run
    /// goes on from there. All runs of a pass together verify every section of the file
    #[arg(long, value_name = "STATE", group = SIGNING)]
    pub scrub: Option<PathBuf>,

    /// With --scrub: read at most so many bytes in a second
    #[arg(long, value_name = "SIZE", requires = "scrub", value_parser = parse_size)]
    pub scrub_rate: Option<u64>,

    /// With --scrub: begin no section after this time, such as 30m
    #[arg(long, value_name = "DURATION", requires = "scrub", value_parser = parse_duration)]
    pub scrub_time: Option<Duration>,

    #[command(flatten)]
    pub snapshots: SnapshotArgs,

    #[command(flatten)]
    pub progress: ProgressArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    pub(crate) fn prepared() -> clap::Command {
        prepare(Self::command())
    }

    /// The form of the lists.
    pub(super) fn form(&self) -> Form {
        if self.json {
            Form::Json
        } else if self.null {
            Form::Null
        } else {
            Form::Lines
        }
    }
}

fn comment(text: &str) -> Result<String, String> {
    match text.chars().any(|c| c == '\n' || c == '\r') {
        true => Err("must be one line".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn image_size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(n @ 1..) if text.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
        _ => Err("must be a number of bytes".to_owned()),
    }
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("must be a number from 1 to 1024".to_owned()),
    }
}
