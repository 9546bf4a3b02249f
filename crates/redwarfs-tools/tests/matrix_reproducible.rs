//! Builds with different numbers of threads on a busy machine give the same bytes;
//! `redwarfs_testkit::reproduce` says which.
//!
//! `REDWARFS_REPRODUCE` sets the number of builds of each option set. A large tree is better done
//! by the program `reproduce` of the crate `redwarfs-testkit` with programs that were built with
//! `--release`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use redwarfs_testkit::assorted::{Extent, assorted_tree};
use redwarfs_testkit::reproduce::{OPTION_SETS, Plan, reproduce};
use support::MKDWARFS;

#[test]
fn one_checksum_per_option_set() {
    let dir = tempfile::tempdir().unwrap();
    let (source, scratch) = (dir.path().join("source"), dir.path().join("scratch"));
    for dir in [&source, &scratch] {
        std::fs::create_dir(dir).unwrap();
    }
    assorted_tree(&source, Extent::Full).unwrap();
    let plan = Plan {
        mkdwarfs: MKDWARFS.into(),
        source,
        scratch,
        sets: OPTION_SETS.to_vec(),
        builds: std::env::var("REDWARFS_REPRODUCE").map_or(3, |text| text.parse().unwrap()),
        load: 2,
    };
    let outcomes = reproduce(&plan, |outcome| println!("{outcome:?}")).unwrap();
    for outcome in &outcomes {
        let checksums = &outcome.checksums;
        assert_eq!(checksums.len(), 1, "{}: {checksums:?}", outcome.options);
    }
    // No two sets are the same.
    let mut all: Vec<_> = outcomes
        .iter()
        .map(|outcome| &outcome.checksums[0].0)
        .collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), OPTION_SETS.len());
}
