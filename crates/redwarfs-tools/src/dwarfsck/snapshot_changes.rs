//! Changes of the table of snapshots: names, pins, and which are deleted.

use std::collections::BTreeSet;
use std::path::Path;

use redwarfs_append::TableChange;
use redwarfs_format::GenerationNo;
use redwarfs_format::section::SnapshotTable;
use redwarfs_reader::SnapshotChoice;
use serde_json::{Value, json};

use super::args::Args;
use super::recovery::{say, warn_if_open};
use super::snapshots::{failed, find, lock, open, table, try_lock};
use crate::common::open::snapshot_choice;
use crate::common::time::LocalTime;
use crate::common::{Logger, Result, ToolError};

/// The changes that the options ask for, and what they make of the table.
struct Changes {
    changes: Vec<TableChange>,
    before: SnapshotTable,
    after: SnapshotTable,
}

/// Changes the table of the image, or says what would be changed.
pub(super) fn run(args: &Args, input: &Path, workers: usize, logger: &Logger) -> Result<()> {
    let image = open(args, None, input, workers)?;
    let changes = Changes::of(args, table(&image)?, input)?;
    let dry_run = args.snapshots.dry_run;
    let done = match (changes.changes.is_empty(), dry_run) {
        (true, _) => Ok(()),
        (false, true) => {
            try_lock(input, logger);
            redwarfs_append::changeable(&image)
        }
        (false, false) => {
            redwarfs_append::change(&lock(input)?, args.image_offset, &changes.changes).map(drop)
        }
    };
    done.map_err(|e| failed("cannot change the snapshots", input, args.image_offset, e))?;
    let lines = changes.lines(dry_run);
    if lines.is_empty() && !args.json {
        return match dry_run {
            true => say(args, "would delete no snapshot", &Value::Null),
            false => Ok(()),
        };
    }
    if !dry_run && !changes.changes.is_empty() {
        warn_if_open(&image, "this change", input, logger);
    }
    say(args, &lines.join("\n"), &changes.json(dry_run))
}

impl Changes {
    /// Rules see what the other options do: names, pins, and what is deleted by its name.
    fn of(args: &Args, before: SnapshotTable, input: &Path) -> Result<Self> {
        let own = &args.snapshots;
        let rules = own.rules();
        if own.has_rules() && rules.is_empty() {
            return Err(ToolError::new(
                "the --keep options keep no snapshot: give one of them a number above 0",
            ));
        }
        let number = |choice: &SnapshotChoice| -> Result<GenerationNo> {
            Ok(find(choice, &before, input, args.image_offset)?.number)
        };
        let mut changes = Vec::new();
        if let Some([old, new]) = own.rename_snapshot.as_deref() {
            let old = snapshot_choice(old).map_err(ToolError::new)?;
            changes.push(TableChange::Rename(number(&old)?, new.clone()));
        }
        for (choices, pinned) in [(&own.pin_snapshot, true), (&own.unpin_snapshot, false)] {
            for choice in choices {
                changes.push(TableChange::Pin(number(choice)?, pinned));
            }
        }
        let named = own.delete_snapshot.iter().map(number);
        let named: BTreeSet<GenerationNo> = named.collect::<Result<_>>()?;
        changes.extend(named.into_iter().map(TableChange::Delete));
        let fail = |e| failed("cannot change the snapshots", input, args.image_offset, e);
        let mut after = before.clone();
        for change in &changes {
            change.apply(&mut after).map_err(fail)?;
        }
        let local = |seconds: i64| seconds + i64::from(LocalTime::from_unix(seconds).offset);
        for number in rules.dropped(&after, &local) {
            let change = TableChange::Delete(number);
            change.apply(&mut after).map_err(fail)?;
            changes.push(change);
        }
        Ok(Self {
            changes,
            before,
            after,
        })
    }

    /// A line for each change.
    fn lines(&self, dry_run: bool) -> Vec<String> {
        let verb = |would: &str, did: &str| match dry_run {
            true => format!("would {would}"),
            false => did.to_owned(),
        };
        let lines = self.changes.iter().map(|change| match change {
            TableChange::Rename(number, name) => {
                let old = name_of(&self.before, *number);
                let verb = verb("rename", "renamed");
                format!("{verb} snapshot {number} '{old}' to '{name}'")
            }
            TableChange::Pin(number, pinned) => {
                let verb = match pinned {
                    true => verb("pin", "pinned"),
                    false => verb("unpin", "unpinned"),
                };
                format!(
                    "{verb} snapshot {number} '{}'",
                    name_of(&self.after, *number)
                )
            }
            TableChange::Delete(number) => {
                let verb = verb("delete", "deleted");
                format!(
                    "{verb} snapshot {number} '{}'",
                    name_of(&self.after, *number)
                )
            }
        });
        lines.collect()
    }

    fn json(&self, dry_run: bool) -> Value {
        let mut lists = [(); 4].map(|()| Vec::new());
        let [renamed, pinned, unpinned, deleted] = &mut lists;
        for change in &self.changes {
            let (TableChange::Rename(number, _)
            | TableChange::Pin(number, _)
            | TableChange::Delete(number)) = change;
            let list = match change {
                TableChange::Rename(..) => &mut *renamed,
                TableChange::Pin(_, true) => &mut *pinned,
                TableChange::Pin(_, false) => &mut *unpinned,
                TableChange::Delete(_) => &mut *deleted,
            };
            list.push(json!({"number": number.0, "name": name_of(&self.after, *number)}));
        }
        let [renamed, pinned, unpinned, deleted] = lists;
        json!({
            "dry_run": dry_run,
            "renamed": renamed,
            "pinned": pinned,
            "unpinned": unpinned,
            "deleted": deleted,
        })
    }
}

fn name_of(table: &SnapshotTable, number: GenerationNo) -> &str {
    table.number(number).map_or("", |found| &found.name)
}
