//! All tests of the programs, as one program: each program more takes seconds to link.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod archives;
mod builder;
mod driver;
mod extract_support;
mod matrix_support;
mod support;
#[allow(dead_code, reason = "the tests of redwarfs-fuse use the rest")]
#[path = "../../redwarfs-fuse/tests/writable_support/mod.rs"]
mod writable_support;

mod bad_input;
mod bad_input_damage;
mod book;
mod bundles;
mod callers;
mod commit;
mod documentation;
mod dwarfs_cache;
mod dwarfs_driver;
mod dwarfs_kernel;
mod dwarfs_logs;
mod dwarfs_options;
mod dwarfs_reports;
mod dwarfs_rw;
mod dwarfs_rw_kernel;
mod dwarfs_system;
mod dwarfs_users;
mod dwarfsck_contradictions;
mod dwarfsck_damage;
mod dwarfsck_json;
mod dwarfsck_messages;
mod dwarfsck_output;
mod dwarfsck_recovery;
mod dwarfsck_reference;
mod dwarfsck_signing;
mod dwarfsextract_formats;
mod dwarfsextract_formats_filters;
mod dwarfsextract_options;
mod dwarfsextract_targets;
mod emulated;
mod extended;
mod extended_flags;
mod faults;
mod hints;
mod hostile;
mod independent;
mod lasting;
mod lasting_copies;
mod lasting_modes;
mod main_job;
mod matrix;
mod matrix_reproducible;
mod media;
mod merge;
mod mkdwarfs;
mod mkdwarfs_affinity;
mod mkdwarfs_archives;
mod mkdwarfs_categories;
mod mkdwarfs_checkpoint;
mod mkdwarfs_failing;
mod mkdwarfs_images;
mod mkdwarfs_input;
mod mkdwarfs_layers;
mod mkdwarfs_options;
mod mkdwarfs_output;
mod mkdwarfs_refused;
mod mkdwarfs_run;
mod mkdwarfs_script;
mod mkdwarfs_script_limits;
mod mkdwarfs_xattrs;
mod mount;
mod mount_helper;
mod programs;
mod reading_lists;
mod reading_tools;
mod recovery_before;
mod remote;
mod remote_cache;
mod remote_faults;
mod remote_opening;
mod remote_stalls;
mod rewrite;
mod rewrite_refused;
mod s3;
mod salvage_snapshots;
mod salvage_tools;
mod scrub;
mod several_images;
mod several_opening;
mod snapshots;
mod snapshots_archive;
mod snapshots_changed;
mod snapshots_check;
mod snapshots_cut;
mod snapshots_delta;
mod snapshots_mount;
mod snapshots_newest;
mod snapshots_opening;
mod snapshots_space;
mod terminal;
mod union;

/// Cargo looks for no tests in crates that have them as modules of one program: a file that nobody names would be
/// compiled by nobody.
#[test]
fn every_file_of_tests_is_part_of_a_program() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut seen = 0;
    for member in std::fs::read_dir(crates).unwrap() {
        let member = member.unwrap().path();
        let manifest = std::fs::read_to_string(member.join("Cargo.toml")).unwrap();
        if !manifest.contains("\nautotests = false\n") {
            continue;
        }
        let read = |path: &str| std::fs::read_to_string(member.join(path)).unwrap();
        let programs: Vec<&str> = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("path = \"tests/")?.strip_suffix(".rs\""))
            .collect();
        let modules: String = programs
            .iter()
            .map(|program| read(&format!("tests/{program}.rs")))
            .collect();
        for entry in std::fs::read_dir(member.join("tests")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(name) = name.strip_suffix(".rs") {
                let is_part =
                    programs.contains(&name) || modules.contains(&format!("\nmod {name};\n"));
                assert!(is_part, "{}: {name}", member.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
}
