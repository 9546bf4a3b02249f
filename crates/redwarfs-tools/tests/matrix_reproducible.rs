//! Builds with different numbers of threads on a busy machine give the same bytes;
//! `redwarfs_testkit::reproduce` says which.
//!
//! `REDWARFS_OTHER_TOOLS` is a directory with tools for another processor (`scripts/test-foreign` sets it). They
//! have to make the same images.
//!
//! `REDWARFS_REPRODUCE` sets the number of builds of each option set. A large tree is better done
//! by the program `reproduce` of the crate `redwarfs-testkit` with programs that were built with
//! `--release`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::support;
use crate::support::{DWARFSEXTRACT, MKDWARFS};
use redwarfs_testkit::assorted::{Extent, assorted_tree};
use redwarfs_testkit::reproduce::{OPTION_SETS, Plan, reproduce};
use redwarfs_testkit::{Fields, Manifest, skip};

/// Directories with a tree in `dir`, and for files of a [`Plan`].
fn source_and_scratch(dir: &Path) -> (PathBuf, PathBuf) {
    let (source, scratch) = (dir.join("source"), dir.join("scratch"));
    for dir in [&source, &scratch] {
        std::fs::create_dir(dir).unwrap();
    }
    assorted_tree(&source, Extent::Full).unwrap();
    (source, scratch)
}

#[test]
fn one_checksum_per_option_set() {
    let dir = tempfile::tempdir().unwrap();
    let (source, scratch) = source_and_scratch(dir.path());
    let plan = Plan {
        mkdwarfs: MKDWARFS.into(),
        source,
        scratch,
        sets: OPTION_SETS.to_vec(),
        builds: std::env::var("REDWARFS_REPRODUCE").map_or(3, |text| text.parse().unwrap()),
        load: 2,
        history: true,
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

#[test]
fn programs_of_another_processor_make_and_read_the_same_images() {
    let test = "programs_of_another_processor_make_and_read_the_same_images";
    let Some(others) = std::env::var_os("REDWARFS_OTHER_TOOLS").map(PathBuf::from) else {
        return skip(test, "REDWARFS_OTHER_TOOLS is not set");
    };
    let dir = tempfile::tempdir().unwrap();
    let (source, scratch) = source_and_scratch(dir.path());
    let plan = |mkdwarfs: PathBuf| Plan {
        mkdwarfs,
        source: source.clone(),
        scratch: scratch.clone(),
        sets: OPTION_SETS.to_vec(),
        builds: 1,
        load: 0,
        history: false,
    };
    let here = reproduce(&plan(MKDWARFS.into()), |_| ()).unwrap();
    let there = reproduce(&plan(others.join("mkdwarfs")), |_| ()).unwrap();
    // LZ4 finds other matches on processors of 32 bits, and so do LZ4, LZ4HC and most levels of zstd on
    // big-endian ones.
    let is_comparable = |options: &str| {
        let words: Vec<&str> = options.split([' ', '=']).collect();
        let has = |word| words.contains(&word);
        if cfg!(target_endian = "big") {
            !has("-C") && ["-l0", "-l9"].into_iter().any(has)
        } else {
            cfg!(target_pointer_width = "64") || !(has("-l1") || has("lz4"))
        }
    };
    let pairs = here.iter().zip(&there);
    for (here, there) in pairs.filter(|(here, _)| is_comparable(here.options)) {
        assert_eq!(here.size, there.size, "{}", here.options);
        assert_eq!(
            here.checksums[0].0, there.checksums[0].0,
            "{}",
            here.options
        );
    }

    // Nothing else differs: without compression, the images are the same.
    let other = |name| others.join(name).into_os_string();
    let image = dir.path().join("image");
    let plain = dir.path().join("plain");
    let mkdwarfs = |program: &OsStr, input: &Path, output: &Path, options: &str| {
        let mut args: Vec<&OsStr> = options.split(' ').map(OsStr::new).collect();
        args.extend(["-i".as_ref(), input.as_os_str()]);
        args.extend(["-o".as_ref(), output.as_os_str()]);
        support::must(program, args);
    };
    for level in ["-l1 --categorize", "-l3", "-l5", "-l7 --categorize"] {
        let build = format!("{level} -f --no-history --no-create-timestamp --log-level=error");
        let [here, there] = [OsString::from(MKDWARFS), other("mkdwarfs")].map(|program| {
            mkdwarfs(&program, &source, &image, &build);
            let decode = "-f --recompress -C null --no-history --log-level=error";
            mkdwarfs(&other("mkdwarfs"), &image, &plain, decode);
            std::fs::read(&plain).unwrap()
        });
        assert!(here == there, "{level}: {} and {}", here.len(), there.len());
    }

    // Each reads the images of the other.
    for (builder, number) in [(OsString::from(MKDWARFS), 1), (other("mkdwarfs"), 2)] {
        let options = "-f -l1 --categorize --with-devices --with-specials --log-level=error";
        mkdwarfs(&builder, &source, &image, options);
        let [one, two] = [DWARFSEXTRACT.into(), other("dwarfsextract")].map(|reader| {
            let out = tempfile::tempdir_in(dir.path()).unwrap();
            let args = [
                "-i".as_ref(),
                image.as_os_str(),
                "-o".as_ref(),
                out.path().as_ref(),
            ];
            support::must(reader, args);
            Manifest::from_directory(out.path(), true).unwrap()
        });
        one.assert_same(&two, Fields::EXTRACTED, &format!("image {number}"));
        assert!(one.0.len() > 100, "{} entries", one.0.len());
    }
}
