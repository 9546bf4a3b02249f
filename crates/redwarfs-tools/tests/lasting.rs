//! Images that are repaired in parts: by patches, in memory, and with recovery data for each snapshot.

use std::fs;
use std::ops::Range;

use crate::support::lasting::{self, TestDir};
use crate::support::{DWARFS, MKDWARFS, Mount, must, reference, run};
use redwarfs_testkit::skip;

/// With four files of 200,000 bytes.
fn place(options: &[&str]) -> TestDir {
    TestDir::new(200_000, options)
}

/// Puts files into the tree.
fn add(place: &TestDir, numbers: Range<u64>) {
    lasting::add(&place.tree(), numbers, 200_000);
}

/// Continues the image with the tree as it is. Returns what was said.
fn append(place: &TestDir, options: &[&str]) -> String {
    let tree = place.tree();
    let mut args = vec!["-i", tree.to_str().unwrap(), "--append"];
    args.push(place.image.to_str().unwrap());
    args.extend(options);
    let out = must(MKDWARFS, args);
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn patches_hold_the_corrected_bytes() {
    let place = place(&["--recovery=10%"]);
    let whole = place.bytes();
    let patch = place.path("patch");
    let write = format!("--repair-patch={}", patch.display());
    let apply = format!("--apply-patch={}", patch.display());
    assert_eq!(
        place.check(0, &[&write]),
        "patch:    none, the file is intact\n"
    );
    assert!(!patch.exists());
    let end = whole.len();
    let bad = place.damage(|bytes| {
        bytes[..3000].fill(0);
        bytes[400_000..408_000].fill(1);
        bytes.truncate(end - 5000);
    });
    let value = |options: &[&str]| -> serde_json::Value {
        serde_json::from_str(place.check(0, options).trim()).unwrap()
    };
    let json = value(&[&write, "-j"]);
    assert_eq!(json["patch"]["file"], patch.to_str().unwrap());
    assert_eq!(json["patch"]["bytes"], fs::metadata(&patch).unwrap().len());
    fs::remove_file(&patch).unwrap();
    let text = place.check(0, &[&write]);
    assert!(
        text.starts_with(&format!("patch:    {}, ", patch.display())),
        "{text}"
    );
    assert!(place.bytes() == bad, "the file was changed");
    assert!(fs::metadata(&patch).unwrap().len() < 40_000);
    assert!(place.check(1, &[&write]).contains("exists"));
    let text = place.check(0, &[&apply]);
    assert!(
        text.contains("; the file is what the maker of the patch had"),
        "{text}"
    );
    assert!(place.bytes() == whole);
    assert!(place.check(0, &[&apply]).contains("applied:  nothing"));
    assert_eq!(value(&[&apply, "-j"])["applied"]["entries"], 0);
    let json = value(&["--repair", "-j"]);
    assert_eq!(json["repaired"]["data_shards"], 0);
    assert_eq!(json["repaired"]["open"], serde_json::json!([]));
    let json = value(&["--remove-recovery", "-j"]);
    assert!(json["removed"]["bytes"].as_u64() > Some(10_000), "{json}");
    let json = value(&["--add-recovery=10%", "-j"]);
    assert!(json["added"]["parity_shards"].as_u64() > Some(10), "{json}");
    assert!(place.bytes() == whole);
    // It is for this file and this damage.
    place.damage(|bytes| bytes[700_000] ^= 1);
    let other = place.bytes();
    assert!(place.check(1, &[&apply]).contains("nothing was written"));
    assert!(place.bytes() == other);
    fs::write(&patch, &whole[..5000]).unwrap();
    assert!(place.check(1, &[&apply]).contains("is no patch"));
    assert!(
        place
            .check(1, &[&apply, "--sidecar"])
            .contains("a patch has all that it needs")
    );
    assert!(
        place
            .check(1, &[&apply, "-l"])
            .contains("mutually exclusive")
    );
    // Too much: no patch.
    fs::remove_file(&patch).unwrap();
    place.damage(|bytes| bytes[..400_000].fill(3));
    let text = place.check(1, &[&write]);
    assert!(
        text.contains("lost: ") && text.contains("more damage"),
        "{text}"
    );
    assert!(!patch.exists());
}

#[test]
fn extraction_repairs_in_memory() {
    let place = place(&["-S18", "--recovery=10%"]);
    let whole = place.bytes();
    let hurt = |bytes: &mut Vec<u8>| {
        bytes[..5000].fill(0);
        bytes[300_000..310_000].fill(1);
        bytes.truncate(whole.len() - 3000);
    };
    let bad = place.damage(hurt);
    let extract = |name: &str, more: &[&str]| {
        let (out, _) = place.extract(name, more);
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, _) = extract("without", &[]);
    assert_ne!(code, Some(0));
    let (code, text) = extract("with", &["--repair=memory"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("repaired in memory: ").count(), 1, "{text}");
    place.same_as_tree(&place.path("with"));
    assert!(place.bytes() == bad);
    // With a sidecar, of an image without recovery data.
    fs::write(&place.image, &whole).unwrap();
    place.check(0, &["--remove-recovery"]);
    place.check(0, &["--add-recovery=10%", "--sidecar"]);
    let moved = place.path("moved");
    place.damage(|bytes| bytes[200_000..210_000].fill(0));
    let (code, text) = extract("beside", &["--repair=memory"]);
    assert_eq!(code, Some(0), "{text}");
    place.same_as_tree(&place.path("beside"));
    fs::rename(place.path("image.dwrec"), &moved).unwrap();
    let (code, text) = extract("none", &["--repair=memory"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no recovery data found"), "{text}");
    let named = format!("--sidecar={}", moved.display());
    let (code, text) = extract("named", &["--repair=memory", &named]);
    assert_eq!(code, Some(0), "{text}");
    place.same_as_tree(&place.path("named"));
    let (code, text) = extract("alone", &[&named]);
    assert_eq!(code, Some(1));
    assert!(text.contains("--sidecar needs --repair or"), "{text}");
}

#[test]
fn a_rescue_mount_repairs_in_memory() {
    let place = place(&["-S18", "--recovery=10%"]);
    let end = place.bytes().len();
    let bad = place.damage(|bytes| {
        bytes[100_000..110_000].fill(1);
        bytes[500_000..505_000].fill(2);
        bytes.truncate(end - 3000);
    });
    let (at, log) = (place.path("mnt"), place.path("log"));
    let options = format!("repair=memory,log_file={}", log.display());
    let refused = run(DWARFS, ["image", "mnt", "-o", "repair=disk"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("no such repair: disk"), "{text}");
    let Some(mount) = Mount::new(&place.image, &at, &["-o", &options]) else {
        return;
    };
    place.same_as_tree(&at);
    place.same_as_tree(&at);
    drop(mount);
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("repaired in memory: ").count(), 1, "{said}");
    assert!(said.contains(" places so far"), "{said}");
    assert!(place.bytes() == bad);
}

/// Each append protects what is new, and all parts are checked and repaired together.
#[test]
fn each_snapshot_has_recovery_data_of_its_own() {
    let place = place(&["-S18", "--recovery=10%"]);
    let first = place.bytes();
    add(&place, 4..6);
    let said = append(&place, &["--recovery=10%", "--snapshot-name=second"]);
    assert!(!said.contains("does not protect"), "{said}");
    let second = place.bytes();
    assert!(second.starts_with(&first), "old bytes have changed");
    // Only what is new gets parity.
    assert!(second.len() - first.len() < 600_000, "{}", second.len());
    let text = place.check(0, &["--check-recovery"]);
    assert_eq!(text.matches("recovery: ").count(), 2, "{text}");
    assert!(text.contains(&format!(" protected at offset {}, ", first.len())));
    add(&place, 6..7);
    append(&place, &["--recovery=5%"]);
    let third = place.bytes();
    let json = place.check(0, &["--check-recovery", "-j"]);
    let json: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(json["recovery"]["parts"].as_array().unwrap().len(), 3);
    assert_eq!(json["recovery"]["parts"][2]["start"], second.len());

    let heals = |what: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        fs::write(&place.image, &third).unwrap();
        place.damage(|bytes| damage(bytes));
        place.check(1, &["--check-recovery"]);
        place.check(0, &["--repair"]);
        assert!(place.bytes() == third, "{what}");
    };
    let (one, two, all) = (first.len(), second.len(), third.len());
    heals("start", &|bytes| bytes[..9000].fill(0));
    heals("each generation", &|bytes| {
        for at in [50_000, one + 50_000, two + 50_000] {
            bytes[at..at + 5000].fill(1);
        }
    });
    heals("end", &|bytes| bytes.truncate(all - 3000));
    heals("old recovery data", &|bytes| {
        bytes[one - 9000..one].fill(7);
        bytes[two - 9000..two].fill(7);
    });
    heals("frame of an old section", &|bytes| {
        bytes[one - 24..one].fill(0);
    });
    heals("a bit of everything", &|bytes| {
        for at in (1000..all - 100).step_by(40_000) {
            bytes[at] ^= 1;
        }
    });

    // Going back gives the file of that day with its own recovery data.
    fs::write(&place.image, &third).unwrap();
    let compact = format!("--compact={}", place.path("compacted").display());
    let text = place.check(0, &[&compact]);
    assert!(
        text.contains("the copy has no RECOVERY: it has to be made again"),
        "{text}"
    );
    assert!(place.check(0, &["--check-integrity"]).contains("OK: "));
    place.check(0, &["--roll-back=second"]);
    assert!(place.bytes() == second);
    place.check(0, &["--check-recovery"]);
    // A copy with the new snapshot has it, too.
    let copy = place.path("copy");
    let option = format!("-o{}", copy.display());
    append(&place, &["--recovery=5%", &option]);
    let found = fs::read(&copy).unwrap();
    assert!(found.starts_with(&second));
    let copied = TestDir {
        image: copy,
        ..place
    };
    let text = copied.check(0, &["--check-recovery"]);
    assert_eq!(text.matches("recovery: ").count(), 3, "{text}");

    let Some(programs) = reference() else {
        return;
    };
    let to = copied.path("out");
    fs::create_dir(&to).unwrap();
    let args = [
        "-i",
        copied.image.to_str().unwrap(),
        "-o",
        to.to_str().unwrap(),
    ];
    must(programs.join("dwarfsextract"), args);
    copied.same_as_tree(&to);
    let out = must(programs.join("dwarfsck"), ["--check-integrity", args[1]]);
    assert!(out.stderr.is_empty(), "{:?}", String::from_utf8(out.stderr));
}

/// A compacted copy lacks what describes the bytes of the old file: of the newest snapshot, and of older ones that are kept.
#[test]
fn a_compacted_copy_names_what_it_lacks() {
    let sign = format!(
        "--sign={}/../../tests/fixtures/keys/minisign.key",
        env!("CARGO_MANIFEST_DIR")
    );
    let place = place(&["-S18"]);
    place.check(0, &[&sign]);
    place.check(0, &["--add-recovery=5%"]);
    add(&place, 4..5);
    append(&place, &["--snapshot-name=second", "--match-index"]);
    place.check(0, &["--add-digests"]);
    let copied = |options: &[&str]| {
        let copy = place.path("compacted");
        let compact = format!("--compact={}", copy.display());
        let text = place.check(0, &[&[compact.as_str()], options].concat());
        fs::remove_file(copy).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.split_once("the copy has no "));
        let said: Vec<_> = lines.map(|(_, said)| said.to_owned()).collect();
        assert!(said.len() < 2, "{text}");
        said.concat()
    };
    assert_eq!(
        copied(&[]),
        "MATCH, no DIGESTS, no SIGNATURE of older snapshots, no RECOVERY of older snapshots: they have to be made again"
    );
    // One that is built anew has an index.
    for options in [&["--repack=0"][..], &["--archive", "--repack=0"]] {
        assert_eq!(
            copied(options),
            "DIGESTS, no SIGNATURE of older snapshots, no RECOVERY of older snapshots: they have to be made again"
        );
    }
    // What only deleted snapshots have had does not count.
    place.check(0, &["--delete-snapshot=1"]);
    assert_eq!(copied(&[]), "MATCH, no DIGESTS: they have to be made again");
    add(&place, 5..6);
    append(&place, &["--snapshot-name=third"]);
    place.check(0, &["--delete-snapshot=second"]);
    assert_eq!(copied(&[]), "");
}

/// Recovery data for everything takes the place of that of each snapshot, which is used again if the newer one is lost.
#[test]
fn recovery_data_of_snapshots_is_merged() {
    let place = place(&["-S18", "--recovery=10%"]);
    let first = place.bytes();
    add(&place, 4..6);
    append(&place, &["--recovery=10%"]);
    let second = place.bytes();
    add(&place, 6..7);
    append(&place, &["--recovery=10%,merge"]);
    let third = place.bytes();
    assert!(third.starts_with(&second), "old bytes have changed");
    let json = place.check(0, &["--check-recovery", "-j"]);
    let json: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    let parts = json["recovery"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 1, "{json}");
    assert_eq!(parts[0]["start"], 0);

    // More in one place than the recovery data of the first snapshot could repair.
    let burst = second.len() / 15;
    assert!(burst > first.len() / 10);
    place.damage(|bytes| bytes[1000..1000 + burst].fill(3));
    place.check(1, &["--check-recovery"]);
    place.check(0, &["--repair"]);
    assert!(place.bytes() == third);

    // Without the newest, that of the older snapshots counts.
    let place_of_pages = |bytes: &[u8]| {
        let mut places = bytes.windows(8).enumerate().skip(second.len());
        let first = places.find(|(_, magic)| magic == b"DwRSrec1");
        first.unwrap().0
    };
    place.damage(|bytes| {
        let from = place_of_pages(bytes);
        bytes[from..].fill(0);
        bytes[1000..2000].fill(3);
    });
    let text = place.check(1, &["--check-recovery"]);
    let open = format!(
        " bytes at offset {} of the image, without recovery data",
        second.len()
    );
    assert!(text.contains(&open), "{text}");
    place.check(1, &["--repair"]);
    assert!(place.bytes().starts_with(&second));

    // In a finished image, too.
    std::fs::write(&place.image, &third).unwrap();
    place.check(0, &["--remove-recovery"]);
    place.check(1, &["--check-recovery"]);
    place.check(0, &["--add-recovery=10%,merge"]);
    assert!(place.bytes() == third);
    place.check(1, &["--add-recovery=10%,both"]);
    assert!(place.bytes() == third);
}

/// What nothing protects is named.
#[test]
fn snapshots_without_recovery_data_are_named() {
    let place = place(&["-S18", "--recovery=10%"]);
    let first = place.bytes().len();
    add(&place, 4..6);
    let said = append(&place, &[]);
    assert!(
        said.contains("its recovery data does not protect the new snapshot"),
        "{said}"
    );
    let second = place.bytes();
    let text = place.check(1, &["--check-recovery"]);
    let open = format!(" bytes at offset {first} of the image, without recovery data");
    assert!(
        text.contains(&open) && text.contains("incomplete: what is protected is as it was"),
        "{text}"
    );
    // The old part is repaired all the same.
    place.damage(|bytes| bytes[..9000].fill(0));
    let text = place.check(1, &["--repair"]);
    assert!(text.contains("have no recovery data"), "{text}");
    assert!(place.bytes() == second);
    // What is missing is added, with the old part as it is.
    place.check(0, &["--add-recovery=10%"]);
    assert!(place.bytes().starts_with(&second));
    let text = place.check(0, &["--check-recovery"]);
    assert!(text.contains("OK: the file is as it was"), "{text}");
    place.damage(|bytes| {
        bytes[..9000].fill(0);
        bytes[first + 50_000..first + 60_000].fill(0);
    });
    place.check(0, &["--repair"]);
    assert!(place.bytes().starts_with(&second));
    place.check(0, &["--remove-recovery"]);
    assert!(place.bytes() == second);
    // If the recovery data of the first part is lost, nothing protects that.
    place.check(0, &["--add-recovery=10%"]);
    let whole = place.bytes();
    let pages: Vec<usize> = (0..first)
        .filter(|&at| whole[at..].starts_with(b"DwRSrec1"))
        .collect();
    assert!(pages.len() >= 4);
    place.damage(|bytes| {
        for at in &pages {
            bytes[*at] ^= 1;
        }
        bytes[first + 50_000..first + 60_000].fill(0);
    });
    let text = place.check(1, &["--check-recovery"]);
    assert!(
        text.contains(" bytes at offset 0 of the image, without recovery data"),
        "{text}"
    );
    place.check(1, &["--repair"]);
    let repaired = place.bytes();
    assert!(repaired[first..] == whole[first..]);
}

/// Whatever is added behind recovery data: it is open until recovery data is added once more.
#[test]
fn what_is_added_behind_recovery_data_can_be_protected() {
    let key = |name: &str| -> String {
        let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/keys");
        format!("{keys}/{name}")
    };
    let sign = format!("--sign={}", key("minisign.key"));
    let verify = format!("--verify-signature={}", key("minisign.pub"));
    let place = place(&["-S18"]);
    add(&place, 4..5);
    append(&place, &["--snapshot-name=second"]);
    place.check(0, &["--add-recovery=10%"]);
    let protected = place.bytes();
    let changes: [&[&str]; 6] = [
        &["--pin-snapshot=second"],
        &["--rename-snapshot", "second", "other"],
        &["--delete-snapshot=1"],
        &["--keep-last=1"],
        &["--add-digests"],
        &[&sign],
    ];
    let goes_on = |change: &[&str]| {
        let before = place.bytes();
        let text = place.check(0, change);
        assert!(
            text.contains("its recovery data does not protect th")
                && text.contains("--add-recovery=PERCENT adds more"),
            "{change:?}: {text}"
        );
        let changed = place.bytes();
        let text = place.check(1, &["--check-recovery"]);
        let open = format!(
            "{} bytes at offset {} of the image, without recovery data",
            changed.len() - before.len(),
            before.len()
        );
        assert!(
            text.replace(',', "").contains(&open.replace(',', "")),
            "{change:?}: {text}"
        );
        // What is not the last cannot be removed, and the message says what can be done.
        let text = place.check(1, &["--remove-recovery"]);
        assert!(
            text.contains("--add-recovery protects what follows it"),
            "{text}"
        );
        assert!(place.bytes() == changed);
        place.check(0, &["--add-recovery=100%"]);
        let whole = place.bytes();
        assert!(whole.starts_with(&changed));
        assert!(place.check(0, &["--check-recovery"]).contains("OK: "));
        assert!(place.check(0, &["--check-integrity"]).contains("OK: "));
        place.damage(|bytes| {
            bytes[5000..9000].fill(1);
            bytes[before.len()..changed.len()].fill(2);
        });
        place.check(0, &["--repair"]);
        assert!(place.bytes() == whole, "{change:?}");
        place.check(0, &["--remove-recovery"]);
        assert!(place.bytes() == changed, "{change:?}");
        fs::write(&place.image, &whole).unwrap();
    };
    for change in changes {
        fs::write(&place.image, &protected).unwrap();
        goes_on(change);
    }
    place.check(0, &[&verify]);
    // One after the other, and a snapshot behind all of it.
    for change in [changes[0], changes[1], changes[5]] {
        goes_on(change);
    }
    add(&place, 5..6);
    append(&place, &["--recovery=10%"]);
    let text = place.check(0, &["--check-recovery"]);
    assert_eq!(text.matches("recovery: ").count(), 6, "{text}");
    // Everything anew.
    place.check(0, &["--remove-recovery"]);
    place.check(0, &["--add-recovery=10%,merge"]);
    let text = place.check(0, &["--check-recovery"]);
    assert_eq!(text.matches("recovery: ").count(), 1, "{text}");
}

#[test]
fn the_reference_reads_images_with_sidecars_and_patches() {
    let Some(programs) = reference() else {
        skip("images with sidecars", "there is no reference");
        return;
    };
    let place = place(&["-S18", "--recovery=10%"]);
    place.damage(|bytes| bytes[5000..9000].fill(0));
    let patch = place.path("patch");
    place.check(0, &[&format!("--repair-patch={}", patch.display())]);
    place.check(0, &[&format!("--apply-patch={}", patch.display())]);
    let image = place.image.to_str().unwrap();
    must(programs.join("dwarfsck"), ["--check-integrity", image]);
    let to = place.path("out");
    fs::create_dir(&to).unwrap();
    let args = ["-i", image, "-o", to.to_str().unwrap()];
    must(programs.join("dwarfsextract"), args);
    place.same_as_tree(&to);
}
