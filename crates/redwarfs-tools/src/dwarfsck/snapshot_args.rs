//! The options about snapshots.

use std::time::Duration;

use redwarfs_append::KeepRules;
use redwarfs_reader::SnapshotChoice;

use crate::common::cli::whole;
use crate::common::number::{block_size_bits, parse_duration};
use crate::common::open::snapshot_choice;

/// Options about the snapshots of an image.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// Look at this snapshot instead of the newest one: its name or number, or a time
    #[arg(long, value_name = "NAME|NUMBER|TIME", help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub snapshot: Option<SnapshotChoice>,

    /// Check all snapshots of the image, and say which of them damage affects
    ///
    /// Sections that several snapshots have are verified once, and with --decode also decoded once. Sections that no snapshot has are
    /// verified, too. --scrub always covers all snapshots.
    #[arg(long, help_heading = "Snapshot options", conflicts_with_all = ["snapshot", "no_check", "print_header", "salvage_report", "add_digests", "check_digests", "export_digests", "sign", "add_signature", "verify_signature", "add_recovery", "check_recovery", "repair", "repair_patch", "apply_patch", "remove_recovery"])]
    pub all_generations: bool,

    /// List the snapshots of the image: number, time, size, bytes added, name; with -j as lines of JSON
    #[arg(long = "snapshots", help_heading = "Snapshot options")]
    pub list_snapshots: bool,

    /// List what differs between two snapshots: + added, - removed, M other content, m other attributes;
    /// with -j as lines of JSON
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2, help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub diff: Option<Vec<SnapshotChoice>>,

    /// Go back to a snapshot: cut off everything that was appended after it
    #[arg(long, value_name = "SNAPSHOT", help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub roll_back: Option<SnapshotChoice>,

    /// Give a snapshot another name
    #[arg(long, value_names = ["SNAPSHOT", "NAME"], num_args = 2, help_heading = "Snapshot options")]
    pub rename_snapshot: Option<Vec<String>>,

    /// Keep a snapshot from being deleted
    #[arg(long, value_name = "SNAPSHOT", help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub pin_snapshot: Vec<SnapshotChoice>,

    /// Allow that a pinned snapshot is deleted
    #[arg(long, value_name = "SNAPSHOT", help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub unpin_snapshot: Vec<SnapshotChoice>,

    /// Delete a snapshot; --punch and --compact give its space back
    #[arg(long, value_name = "SNAPSHOT", help_heading = "Snapshot options", value_parser = whole(snapshot_choice))]
    pub delete_snapshot: Vec<SnapshotChoice>,

    /// Delete all snapshots but the last N, and those that other --keep options keep
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_last: Option<u32>,

    /// Keep all snapshots that are at most so much older than the newest one, such as 14d or 36h
    #[arg(long, value_name = "DURATION", help_heading = "Snapshot options", value_parser = parse_duration)]
    pub keep_within: Option<Duration>,

    /// Keep the last snapshot of each of the last N hours that have one
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_hourly: Option<u32>,

    /// Keep the last snapshot of each of the last N days that have one
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_daily: Option<u32>,

    /// Keep the last snapshot of each of the last N weeks that have one
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_weekly: Option<u32>,

    /// Keep the last snapshot of each of the last N months that have one
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_monthly: Option<u32>,

    /// Keep the last snapshot of each of the last N years that have one
    #[arg(long, value_name = "N", help_heading = "Snapshot options")]
    pub keep_yearly: Option<u32>,

    /// Give the space of deleted snapshots back: data that only they have becomes holes of the file
    ///
    /// The file keeps its length, and takes less space on the disk. The file system must support holes. A small block
    /// stays as it is, and so does a block of which a snapshot uses a part: --compact with --repack frees more.
    #[arg(long, help_heading = "Snapshot options")]
    pub punch: bool,

    /// Write a copy of the image without deleted snapshots and without data that only they have
    #[arg(long, value_name = "FILE", help_heading = "Snapshot options")]
    pub compact: Option<std::path::PathBuf>,

    /// With --compact: compress all contents anew, as mkdwarfs with this level would
    ///
    /// That takes as long as a build of the remaining snapshots, and gives a smaller image than a copy.
    #[arg(long, value_name = "LEVEL", help_heading = "Snapshot options", requires = "compact", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub repack: Option<u8>,

    /// With --compact: put all snapshots but the newest N into an archive, which takes the space of one build; bare: N is 1
    ///
    /// The contents are compressed anew, as with --repack=7 if that is not given. All snapshots stay, and are opened as before,
    /// but --roll-back does not go back to one of an archive. Later snapshots can be put into the next archive.
    #[arg(long, value_name = "N", help_heading = "Snapshot options", requires = "compact", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub archive: Option<u32>,

    /// With --repack or --archive: log2 of the size of the new blocks, 10 to 30 [default: by the level of --repack]
    ///
    /// Damage in one place affects the files of one block, in all snapshots.
    #[arg(short = 'S', long, value_name = "BITS", help_heading = "Snapshot options", requires = "compact", value_parser = whole(block_size_bits), allow_hyphen_values = true)]
    pub block_size_bits: Option<u32>,

    /// Only say what would be done
    #[arg(long, help_heading = "Snapshot options")]
    pub dry_run: bool,
}

impl SnapshotArgs {
    /// Whether --compact compresses all contents anew.
    pub(super) fn is_anew(&self) -> bool {
        self.repack.is_some() || self.archive.is_some()
    }

    /// Whether there is any --keep option.
    pub(super) fn has_rules(&self) -> bool {
        let numbers = [
            self.keep_last,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
            self.keep_monthly,
            self.keep_yearly,
        ];
        self.keep_within.is_some() || numbers.iter().any(Option::is_some)
    }

    /// The rules of the --keep options.
    pub(super) fn rules(&self) -> KeepRules {
        KeepRules {
            last: self.keep_last.unwrap_or(0),
            within: self.keep_within.unwrap_or_default(),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            monthly: self.keep_monthly.unwrap_or(0),
            yearly: self.keep_yearly.unwrap_or(0),
        }
    }
}
