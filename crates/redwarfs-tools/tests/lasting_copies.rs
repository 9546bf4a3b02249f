//! Repaired copies, of `dwarfsck --repair=FILE` and `dwarfsextract --salvage`, where something stands in their way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use redwarfs_testkit::faulty::{FaultyFile, Medium};
use redwarfs_testkit::{no_mount_as_root, skip};

use crate::support::lasting::{TestDir, add, said};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, run};

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Salvaging goes on without the copy, and leaves nothing of it.
#[test]
fn salvage_goes_on_if_the_copy_cannot_be_made() {
    let place = TestDir::new(200_000, &["-l1", "-S16", "--recovery=10%"]);
    let length = place.bytes().len();
    place.damage(|bytes| {
        bytes[..3000].fill(0);
        bytes[100_000..120_000].fill(7);
    });
    let (out, parts) = (place.path("out"), place.path("parts"));
    fs::create_dir(&out).unwrap();
    // No file may become as long as the image.
    let blocks = length / 512 - 100;
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let salvage = format!("--salvage={}", parts.display());
    let args = [
        "-c",
        &script,
        "sh",
        DWARFSEXTRACT,
        "-i",
        place.image.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
        &salvage,
    ];
    let done = run("sh", args);
    let text = said(&done);
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(
        text.contains("cannot make a repaired copy: ")
            && text.contains("the file is repaired in memory instead")
            && text.contains("repaired in memory: "),
        "{text}"
    );
    place.same_as_tree(&out);
    assert_eq!(names(&parts), ["report.json"]);
}

/// What is wrong at first is said before anything is made.
#[test]
fn salvage_makes_its_directory_when_it_begins() {
    let place = TestDir::new(50_000, &["-l1"]);
    let (out, _, parts) = place.salvage("one", &["--sidecar=none"]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("none: "), "{}", said(&out));
    assert!(!parts.exists());
    // There is no image: nothing is left.
    place.damage(|bytes| bytes.fill(1));
    let (out, _, parts) = place.salvage("two", &[]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(
        said(&out).contains("no section of an image"),
        "{}",
        said(&out)
    );
    assert!(!parts.exists());
}

/// A sidecar of another state of the image does not keep it from coming out.
#[test]
fn salvage_goes_on_without_recovery_data_that_is_of_no_use() {
    let place = TestDir::new(150_000, &["-l1"]);
    place.good(&["--add-recovery=50%", "--sidecar"]);
    add(&place.tree(), 0..1, 151_000);
    let (tree, image) = (place.tree(), place.image.to_str().unwrap().to_owned());
    must(
        MKDWARFS,
        ["-i", tree.to_str().unwrap(), "-o", &image, "-l1", "-f"],
    );
    let (out, to, parts) = place.salvage("out", &[]);
    let text = said(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert!(text.contains("the image was changed"), "{text}");
    place.same_as_tree(&to);
    assert_eq!(names(&parts), ["report.json"]);
}

#[test]
fn a_sparse_file_stays_sparse() {
    let place = TestDir::new(50_000, &["-l1"]);
    let header = place.path("header");
    let file = fs::File::create(&header).unwrap();
    file.set_len(48 << 20).unwrap();
    let option = format!("--header={}", header.display());
    let (tree, image) = (place.tree(), place.image.to_str().unwrap().to_owned());
    let args = [
        "-i",
        tree.to_str().unwrap(),
        "-o",
        &image,
        "-l1",
        "-f",
        &option,
    ];
    must(MKDWARFS, args);
    place.good(&["--add-recovery=1%", "--sidecar"]);
    let whole = place.bytes();
    place.damage(|bytes| bytes[(48 << 20) + 500] ^= 1);
    let copy = place.path("copy");
    place.good(&[&format!("--repair={}", copy.display())]);
    assert!(fs::read(&copy).unwrap() == whole);
    let used = fs::metadata(&copy).unwrap().blocks() * 512;
    assert!(used < 4 << 20, "{used}");
}

/// What cannot be read, and has no recovery data, is zeros in a copy. All ways to ask say so.
#[test]
fn unreadable_bytes_that_nothing_protects_are_named() {
    let test = "unreadable bytes that nothing protects";
    if let Some(reason) = no_mount_as_root() {
        skip(test, reason);
        return;
    }
    let place = TestDir::new(100_000, &["-l1", "-S16", "--recovery=10%"]);
    let first = place.bytes().len() as u64;
    add(&place.tree(), 4..8, 100_000);
    let (tree, image) = (place.tree(), place.image.to_str().unwrap().to_owned());
    must(MKDWARFS, ["-i", tree.to_str().unwrap(), "--append", &image]);
    let whole = place.bytes();
    let point = place.path("disk");
    fs::create_dir(&point).unwrap();
    let disk = FaultyFile::mount(&point, whole.clone()).unwrap();
    let bad = first + 100_000..first + 104_000;
    disk.set(Medium::Fails(bad.clone()));
    let from = disk.path();
    let check = |code: i32, options: &[&str]| {
        let mut args = vec![from.to_str().unwrap()];
        args.extend(options);
        let out = run(DWARFSCK, &args);
        assert_eq!(out.status.code(), Some(code), "{options:?}: {}", said(&out));
        said(&out)
    };
    let text = check(1, &["--check-recovery"]);
    assert!(
        text.contains("open:     ") && !text.contains("OK: "),
        "{text}"
    );
    let copy = place.path("copy");
    let option = format!("--repair={}", copy.display());
    let text = check(1, &[&option]);
    assert!(
        text.contains("lost: ")
            && text.contains(&format!("{} has zeros instead", copy.display()))
            && text.contains("have no recovery data, and may be damaged"),
        "{text}"
    );
    let second = place.path("second");
    let option = format!("--repair={}", second.display());
    let out = run(DWARFSCK, [from.to_str().unwrap(), &option, "-j"]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let zeros = &json["repaired"]["zeros"][0];
    let (at, bytes) = (zeros["offset"].as_u64(), zeros["bytes"].as_u64());
    assert!(
        at.unwrap() <= bad.start && at.unwrap() + bytes.unwrap() >= bad.end,
        "{json}"
    );
    assert_eq!(json["repaired"]["open"][0]["offset"], first);
    assert_eq!(json["repaired"]["copy"], second.to_str().unwrap());
    // The copy has everything else.
    let found = fs::read(&copy).unwrap();
    assert_eq!(found.len(), whole.len());
    let differing: Vec<u64> = (0..whole.len() as u64)
        .filter(|&at| found[at as usize] != whole[at as usize])
        .collect();
    let (low, high) = (differing[0], differing[differing.len() - 1]);
    assert!(
        low >= bad.start - 4096 && high < bad.end + 4096,
        "{low} {high}"
    );
    assert!(found[low as usize..high as usize].iter().all(|b| *b == 0));
    // A patch needs every byte of the file.
    let patch = place.path("patch");
    let option = format!("--repair-patch={}", patch.display());
    disk.set(Medium::Fails(5000..9000));
    let text = check(1, &[&option]);
    assert!(!text.contains("lost: ") && patch.exists(), "{text}");
    fs::remove_file(&patch).unwrap();
    disk.set(Medium::Fails(first - 2000..first + 2000));
    let text = check(1, &[&option]);
    assert!(
        text.contains("cannot make a patch: ") && !patch.exists(),
        "{text}"
    );
}
