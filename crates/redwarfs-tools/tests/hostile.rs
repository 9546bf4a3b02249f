//! Damaged images through the real programs; `redwarfs_testkit::hostile` says how they are made
//! and what must not happen.
//!
//! `REDWARFS_HOSTILE` sets the number of images, `REDWARFS_FIRST_HOSTILE` the number of the first
//! one. Many are done faster by the program `hostile` of the crate `redwarfs-testkit` with
//! programs that were built with `--release`.

use std::path::Path;

use crate::support;
use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS};
use redwarfs_testkit::fuzz::{self, mutators};
use redwarfs_testkit::hostile::{Plan, Tools, bases, hunt, silence};
use redwarfs_testkit::mutate::Rng;
use redwarfs_testkit::{no_mount_as_root, skip};

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn damaged_images_do_no_harm() {
    let mount = no_mount_as_root().is_none();
    if let Some(reason) = no_mount_as_root() {
        skip("mounting damaged images", reason);
    }
    let tools = Tools {
        mkdwarfs: MKDWARFS.into(),
        dwarfs: DWARFS.into(),
        dwarfsck: DWARFSCK.into(),
        dwarfsextract: DWARFSEXTRACT.into(),
    };
    let plan = Plan {
        first: variable("REDWARFS_FIRST_HOSTILE", 0),
        count: variable("REDWARFS_HOSTILE", 80),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        mount,
        keep: std::env::var_os("REDWARFS_KEEP_HOSTILE").map(Into::into),
        verbose: false,
    };
    silence();
    let report = hunt(&tools, &bases(&tools), &plan);
    println!("{report}");
    assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
    // The damage is neither without effect nor refused at once.
    let ends = |program: &str, end: &str| -> u64 {
        let all = report.ends.iter();
        all.filter(|((p, e), _)| *p == program && (end.is_empty() || e == end))
            .map(|(_, count)| count)
            .sum()
    };
    for program in [
        "dwarfsck",
        "dwarfsextract",
        "dwarfsck --checksum",
        "dwarfsck -l",
    ] {
        assert!(ends(program, "exit 0") > 0, "{program}");
        assert!(ends(program, "exit 0") < ends(program, ""), "{program}");
    }
    assert!(!mount || ends("mounted", "walked") > plan.count / 4);
}

/// The other targets are run by the tests of the testkit, which need no extractor, and neither append nor join.
#[test]
fn the_fuzz_targets_for_archives_and_snapshots_accept_their_corpora() {
    type Target = fn(&[u8]);
    let targets: [(&str, Target); 4] = [
        ("tar", fuzz::tar),
        ("archive_input", fuzz::archive_input),
        ("generations", fuzz::generations),
        ("merge", fuzz::merge),
    ];
    for (name, target) in targets {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let mut inputs = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
            let input = std::fs::read(entry.unwrap().path()).unwrap();
            let ends = (0..input.len()).step_by(input.len() / 20 + 1);
            for end in ends.chain([input.len()]) {
                target(&input[..end]);
            }
            inputs += 1;
        }
        assert!(inputs > 0, "{name}");
    }
}

/// Files, sidecars, patches, keys and signatures that differ a little from intact ones. `REDWARFS_LASTING` sets how many are
/// made of each.
#[test]
fn changed_recovery_data_patches_and_keys_are_used_or_refused() {
    type Target = fn(&[u8]);
    let targets: [(&str, Target); 4] = [
        ("patch", fuzz::patch),
        ("salvage", fuzz::salvage),
        ("sidecar", fuzz::sidecar),
        ("signatures", fuzz::signatures),
    ];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut rng = Rng::new(2);
    for (name, target) in targets {
        let mut files: Vec<_> = std::fs::read_dir(corpus.join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{name}");
        for file in files {
            let intact = std::fs::read(&file).unwrap();
            let ends = (0..intact.len()).step_by(intact.len() / 20 + 1);
            for end in ends.chain([intact.len()]) {
                target(&intact[..end]);
            }
            for _ in 0..variable("REDWARFS_LASTING", 100) {
                let mut changed = intact.clone();
                for _ in 0..=rng.below(4) {
                    let at = rng.below(changed.len());
                    match rng.below(4) {
                        0 => changed[at] ^= 1 << rng.below(8),
                        1 => changed[at] = [0, 1, 0x7f, 0xff][rng.below(4)],
                        2 => changed[at..]
                            .iter_mut()
                            .take(8)
                            .for_each(|byte| *byte = 0xff),
                        _ => {
                            let from = rng.below(changed.len());
                            let size = (1 + rng.below(64)).min(changed.len() - at.max(from));
                            changed.copy_within(from..from + size, at);
                        }
                    }
                }
                if rng.one_in(8) {
                    changed.truncate(rng.below(changed.len()) + 1);
                }
                target(&changed);
            }
        }
    }
}

/// Thousands of archives that differ a little from intact ones. `REDWARFS_ARCHIVES` sets how many are made
/// of each.
#[test]
fn changed_archives_are_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/archive_input");
    let mut files: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut rng = Rng::new(1);
    for file in files {
        let intact = std::fs::read(&file).unwrap();
        for _ in 0..variable("REDWARFS_ARCHIVES", 300) {
            let mut changed = intact.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(changed.len());
                match rng.below(3) {
                    0 => changed[at] ^= 1 << rng.below(8),
                    1 => changed[at] = b"0/\0\xff9.-"[rng.below(7)],
                    _ => {
                        let from = rng.below(changed.len());
                        let size = 1 + rng.below(32);
                        let size = size.min(changed.len() - at.max(from));
                        changed.copy_within(from..from + size, at);
                    }
                }
            }
            if rng.one_in(4) {
                changed.truncate(rng.below(changed.len()) + 1);
            }
            mutators::repair_tar(&mut changed[1..]);
            fuzz::archive_input(&changed);
        }
    }
}

/// A mounted image larger than the cache, read by several processes at once, for a moment. The
/// program `soak` of the crate `redwarfs-testkit` does it for as long as wanted.
#[test]
fn random_reads_by_many_processes_are_right_and_bounded() {
    use redwarfs_testkit::soak;
    if let Some(reason) = no_mount_as_root() {
        return skip("random reads of a mount", reason);
    }
    // The readers are this very program.
    if let Some(job) = std::env::var_os("REDWARFS_SOAK_READER") {
        let job = job.into_string().unwrap();
        let parts: Vec<&str> = job.split('\n').collect();
        let time = std::time::Duration::from_secs(2);
        let seed = u64::from(std::process::id());
        soak::read(Path::new(parts[0]), Path::new(parts[1]), seed, time).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image, point) = (
        dir.path().join("source"),
        dir.path().join("image.dwarfs"),
        dir.path().join("mnt"),
    );
    soak::make_source(&source, 24 << 20).unwrap();
    support::build(&source, &image, &["-l3", "-S18"]);
    let mount = support::Mount::new(&image, &point, &["-o", "cachesize=2m"]).unwrap();
    let pid = {
        let mut buffer = [0; 32];
        let name = "user.dwarfs.driver.pid";
        let length = rustix::fs::lgetxattr(&point, name, &mut buffer[..]).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let job = format!("{}\n{}", point.display(), source.display());
    let readers: Vec<_> = (0..4)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "random_reads_by_many_processes_are_right_and_bounded",
                    "--exact",
                ])
                .env("REDWARFS_SOAK_READER", &job)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut reader in readers {
        assert!(reader.wait().unwrap().success());
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let peak: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let bound = soak::resident_bound(2 << 20, 1 << 20, 2, 256 << 10);
    assert!(peak << 10 <= bound, "{peak} KiB of {} KiB", bound >> 10);
    drop(mount);
}
