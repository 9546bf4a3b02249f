//! The snapshots of a continued image: changes of their table, what differs between two, and a copy of those that stay.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::append::{Recorder, append, build, check, open, open_snapshot, read, states, tree_of};
use redwarfs_append::{
    Change, ChangeKind, Compaction, Error, TableChange, change, diff, roll_back,
};
use redwarfs_format::GenerationNo;
use redwarfs_format::section::SnapshotTable;
use redwarfs_io::Medium;
use redwarfs_reader::{Image, ImageOffset, SnapshotChoice};
use redwarfs_testkit::tree::Random;

fn table(bytes: &[u8]) -> SnapshotTable {
    open(bytes).snapshots().unwrap()
}

#[test]
fn the_table_is_changed_behind_the_image() {
    let [first, second] = states();
    let file = Recorder::of(&build(&tree_of(&first, 10)));
    append(&file, &tree_of(&second, 10), "second");
    append(&file, &tree_of(&first, 10), "third");
    let before = file.bytes();
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let change = |changes: &[TableChange]| change(&medium, ImageOffset::Auto, changes);
    let number = GenerationNo;
    change(&[
        TableChange::Rename(number(2), "other".into()),
        TableChange::Pin(number(1), true),
    ])
    .unwrap();
    let bytes = file.bytes();
    assert!(bytes.starts_with(&before));
    check(&bytes);
    let after = table(&bytes);
    assert_eq!(after.number(number(2)).unwrap().name, "other");
    assert!(after.number(number(1)).unwrap().pinned);
    assert!(matches!(
        change(&[TableChange::Delete(number(1))]),
        Err(Error::Pinned(_))
    ));
    assert!(matches!(
        change(&[TableChange::Delete(number(3))]),
        Err(Error::Newest(_))
    ));
    let taken = TableChange::Rename(number(2), "third".into());
    assert!(matches!(change(&[taken]), Err(Error::Exists(_))));
    let wrong = TableChange::Rename(number(2), "..".into());
    assert!(matches!(change(&[wrong]), Err(Error::Name { .. })));
    assert!(change(&[TableChange::Delete(number(9))]).is_err());
    // Nothing of that is written.
    assert!(file.bytes() == bytes);
    change(&[TableChange::Delete(number(2))]).unwrap();
    let bytes = file.bytes();
    assert!(open_snapshot(&bytes, "other", None).is_err());
    assert!(open_snapshot(&bytes, "2", None).is_err());
    assert!(read(&open_snapshot(&bytes, "third", None).unwrap()) == first);
    // The table goes on from there.
    append(&file, &tree_of(&second, 10), "other");
    let after = table(&file.bytes());
    assert_eq!(after.snapshots.len(), 4);
    assert!(after.snapshots[0].pinned && after.snapshots[1].deleted);
    assert_eq!(after.snapshots[3].number, number(4));
}

#[test]
fn trees_are_compared() {
    let [first, second] = states();
    let file = Recorder::of(&build(&tree_of(&first, 10)));
    append(&file, &tree_of(&second, 11), "second");
    let bytes = file.bytes();
    let old = open_snapshot(&bytes, "1", None).unwrap();
    let new = open(&bytes);
    let compare = |old: &Image, new: &Image, same: bool| {
        let mut changes: Vec<Change> = Vec::new();
        diff(old, new, same, &mut |change| {
            changes.push(change);
            ControlFlow::Continue(())
        })
        .unwrap();
        let line = |c: &Change| {
            let kind = match c.kind {
                ChangeKind::Added => '+',
                ChangeKind::Removed => '-',
                ChangeKind::Content => 'M',
                ChangeKind::Attributes => 'm',
            };
            format!("{kind} {}", String::from_utf8_lossy(&c.path))
        };
        changes.iter().map(line).collect::<Vec<_>>()
    };
    let expected = [
        "M changed",
        "m dir/large",
        "- dir/moved",
        "+ elsewhere",
        "+ elsewhere/copy",
        "+ elsewhere/moved",
        "m empty",
        "- gone",
        "+ new",
        "m same",
    ];
    assert_eq!(compare(&old, &new, true), expected);
    assert_eq!(compare(&old, &new, false), expected);
    assert!(compare(&new, &new, true).is_empty());
    let mut first_only = 0;
    diff(&old, &new, true, &mut |_| {
        first_only += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(first_only, 1);
}

#[test]
fn a_compacted_copy_has_the_kept_generations() {
    let mut random = Random::new(5);
    let mut files = states()[0].clone();
    let mut all = vec![files.clone()];
    let file = Recorder::of(&build(&tree_of(&files, 5)));
    for night in 0..6_usize {
        // Every other night, a large file is there for that night alone.
        files.remove(&b"guest"[..]);
        if night % 2 == 0 {
            files.insert(b"guest".to_vec(), random.bytes(50_000 + night));
        }
        files.insert(b"changed".to_vec(), random.bytes(3000 + night));
        append(&file, &tree_of(&files, 5), &format!("n{night}"));
        all.push(files.clone());
    }
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&file);
    let delete = [2, 4, 6].map(|number| TableChange::Delete(GenerationNo(number)));
    change(&medium, ImageOffset::Auto, &delete).unwrap();
    let bytes = file.bytes();
    let plan = Compaction::of(&open(&bytes)).unwrap();
    let mut copy = Vec::new();
    let stop = AtomicBool::new(false);
    let done = plan.write(&mut copy, &stop).unwrap();
    assert_eq!(done, plan.result());
    assert_eq!((done.snapshots, done.new_size), (4, copy.len() as u64));
    assert!(done.live_blocks < done.blocks);
    // Three guests and three changed files are gone.
    let freed = bytes.len() - copy.len();
    assert!((150_000..170_000).contains(&freed), "{freed}");
    check(&copy);
    for number in [1_usize, 3, 5, 7] {
        let image = open_snapshot(&copy, &number.to_string(), None).unwrap();
        assert!(read(&image) == all[number - 1], "{number}");
    }
    for number in [2, 4, 6] {
        assert!(open_snapshot(&copy, &number.to_string(), None).is_err());
    }
    // The copy goes on, and back.
    let next = Recorder::of(&copy);
    append(&next, &tree_of(&files, 5), "next");
    assert!(read(&open(&next.bytes())) == files);
    let medium: Arc<dyn Medium> = Arc::<Recorder>::clone(&next);
    let choice = SnapshotChoice {
        text: "n1".into(),
        time: None,
    };
    roll_back(&medium, ImageOffset::Auto, &choice).unwrap();
    assert!(read(&open(&next.bytes())) == all[2]);
    check(&next.bytes());
    let stop = AtomicBool::new(true);
    assert!(plan.write(&mut Vec::new(), &stop).is_err());
}
