//! Recovery data: made by `mkdwarfs` and `dwarfsck`, checked, used and removed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::lasting::{TestDir, noise, said};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, run};

/// With four files of 400,000 bytes.
fn place(options: &[&str]) -> TestDir {
    TestDir::new(400_000, options)
}

fn extracts(image: &Path, tree: &Path) {
    let out = tempfile::tempdir().unwrap();
    must(
        DWARFSEXTRACT,
        [
            "-i",
            image.to_str().unwrap(),
            "-o",
            out.path().to_str().unwrap(),
        ],
    );
    for number in 0..4 {
        let name = format!("file{number}");
        assert!(fs::read(out.path().join(&name)).unwrap() == fs::read(tree.join(name)).unwrap());
    }
}

/// The system lets nobody write a program that runs, so a repair of it makes a copy.
#[cfg(target_os = "linux")]
#[test]
fn a_program_that_runs_is_repaired_in_a_copy() {
    let place = place(&[]);
    let program = place.path("program");
    // Another process writes it: what is open for writing here would be so in the processes of other tests.
    let script = "cat \"$(command -v sleep)\" \"$1\" >\"$2\" && chmod +x \"$2\"";
    let mut make = std::process::Command::new("sh");
    make.args(["-c", script, "sh"])
        .arg(&place.image)
        .arg(&program);
    assert!(make.status().unwrap().success());
    let file = program.to_str().unwrap();
    must(DWARFSCK, [file, "--add-recovery=10"]);
    let mut running = std::process::Command::new(&program)
        .arg("60")
        .spawn()
        .unwrap();
    let refused = |option: &str| {
        let output = run(DWARFSCK, [file, option]);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let line = format!(
        "dwarfsck: cannot open: {file}: text file busy: the program in it runs; end that first"
    );
    let advice = "(--repair=FILE writes a repaired copy)";
    assert_eq!(refused("--repair"), (Some(1), format!("{line} {advice}\n")));
    assert_eq!(refused("--remove-recovery"), (Some(1), format!("{line}\n")));
    let copy = place.path("copy");
    must(DWARFSCK, [file, &format!("--repair={}", copy.display())]);
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(fs::read(copy).unwrap() == fs::read(&program).unwrap());
    must(DWARFSCK, [file, "--repair"]);
}

#[test]
fn damage_is_found_and_repaired() {
    let place = place(&[]);
    let plain = place.bytes();
    let text = place.good(&["--add-recovery=10%"]);
    assert!(
        text.starts_with("added:    ") && text.contains("1 group of "),
        "{text}"
    );
    let whole = place.bytes();
    assert!(whole.starts_with(&plain) && whole.len() < plain.len() * 6 / 5);
    assert!(
        place
            .good(&["--check-recovery"])
            .ends_with("OK: the file is as it was\n")
    );
    assert!(place.good(&["--check-integrity"]).contains("OK"));
    extracts(&place.image, &place.tree());
    assert_eq!(
        place.good(&["--repair"]),
        "repaired: nothing, the file is intact\n"
    );

    // Neither the start nor the end of the image is there any more.
    let end = plain.len();
    place.damage(|bytes| {
        bytes[..5000].fill(0);
        bytes[end - 5000..end].fill(0xff);
        bytes[700_000..750_000].fill(1);
    });
    let text = place.bad(&["--check-recovery"]);
    assert!(
        text.contains("damaged: ") && text.contains("dwarfsck --repair restores them"),
        "{text}"
    );
    let json = place.bad(&["--check-recovery", "-j"]);
    let json: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(json["recovery"]["intact"], false);
    assert_eq!(json["recovery"]["repairable"], true);
    let damaged = place.bytes();
    // A copy is repaired, and the file stays as it is.
    let copy = place.dir.path().join("copy");
    let option = format!("--repair={}", copy.display());
    let text = place.good(&[&option]);
    assert!(
        text.starts_with("repaired: ") && text.contains(" shards of data"),
        "{text}"
    );
    assert!(fs::read(&copy).unwrap() == whole && place.bytes() == damaged);
    assert!(place.bad(&[&option]).contains("exists"));
    place.good(&["--repair"]);
    assert!(place.bytes() == whole);
    // A check and a repair count the same, also if the image must be repaired before the frame can be judged.
    place.damage(|bytes| {
        bytes[end - 200..end + 400].fill(0xff);
        let len = bytes.len();
        bytes.truncate(len - 100);
    });
    let text = place.bad(&["--check-recovery"]);
    let pages = text.split("of parity, ").nth(1).unwrap();
    let pages = pages.split(';').next().unwrap();
    let text = place.good(&["--repair"]);
    assert!(text.trim().ends_with(pages), "{text} {pages}");
    assert!(place.bytes() == whole);

    place.good(&["--remove-recovery"]);
    assert!(place.bytes() == plain);
}

/// What a killed `--add-recovery` leaves: a longer file, whose end still leads to the image.
#[test]
fn an_interrupted_addition_is_begun_again() {
    let place = place(&[]);
    let plain = place.bytes();
    let pointer = plain[plain.len() - 8..].to_vec();
    place.damage(|bytes| {
        bytes.extend(noise(5000, 1));
        bytes.resize(200_000 + bytes.len(), 0);
        bytes.extend(pointer);
    });
    assert!(place.bad(&[]).contains("unused tail of "));
    place.good(&["--add-recovery=5"]);
    assert!(place.good(&["--check-recovery"]).contains("OK: "));
    place.good(&["--remove-recovery"]);
    assert!(place.bytes() == plain);
}

#[test]
fn a_build_and_a_rewrite_protect_their_image() {
    let place = place(&["--recovery=15", "-l1", "--header=/bin/sh"]);
    let whole = place.bytes();
    assert!(place.good(&["--check-recovery"]).contains("OK: "));
    // The header is protected, too.
    place.damage(|bytes| bytes[..9000].fill(7));
    place.good(&["--repair"]);
    assert!(place.bytes() == whole);
    // A header of another length is another one, and stays. Nothing says whether it is right.
    place.damage(|bytes| drop(bytes.drain(..3000)));
    for task in ["--check-recovery", "--repair", "--repair-patch=none"] {
        let text = place.bad(&[task]);
        assert!(
            text.contains("what is protected is ")
                && text.contains("out recovery data") | text.contains("have no recovery data")
                && text.contains(" at offset 0 of the file"),
            "{task}: {text}"
        );
    }
    // Cut off further behind: only a copy can be repaired. It gets its header back, too.
    let header = fs::metadata("/bin/sh").unwrap().len() as usize;
    fs::write(&place.image, &whole[header + 1000..]).unwrap();
    for task in ["--repair", "--check-recovery"] {
        let text = place.bad(&[task]);
        assert!(
            text.contains("--repair=FILE makes a repaired copy") && !text.contains("offset -"),
            "{task}: {text}"
        );
    }
    let copy = place.dir.path().join("copy");
    place.good(&[&format!("--repair={}", copy.display())]);
    assert!(fs::read(&copy).unwrap() == whole);
    fs::write(&place.image, &whole).unwrap();
    // A rewrite says what it drops, and makes its own.
    let rewritten = place.dir.path().join("rewritten");
    let paths = [
        "-i",
        copy.to_str().unwrap(),
        "-o",
        rewritten.to_str().unwrap(),
    ];
    let args = |more: &[&'static str]| -> Vec<String> {
        let all = paths.iter().copied().chain(["--recompress=none", "-f"]);
        all.chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let out = must(MKDWARFS, args(&[]));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        said.contains("drops 1 hidden section(s) of the old image: RECOVERY"),
        "{said}"
    );
    must(MKDWARFS, args(&["--recovery=1%"]));
    let moved = TestDir {
        image: rewritten,
        ..place
    };
    assert!(moved.good(&["--check-recovery"]).contains("OK: "));
}

#[test]
fn what_cannot_be_done_is_said() {
    let place = place(&[]);
    let plain = place.bytes();
    for task in ["--check-recovery", "--repair"] {
        assert!(
            place.bad(&[task]).contains("no recovery data found"),
            "{task}"
        );
    }
    assert!(
        place
            .bad(&["--remove-recovery"])
            .contains("no recovery data found")
    );
    for (options, message) in [
        (&["--add-recovery=0"][..], "must be a number of per cent"),
        (&["--add-recovery=x%"], "must be a number of per cent"),
        (&["--add-recovery=5", "--repair"], "mutually exclusive"),
        (&["--check-recovery", "-l"], "mutually exclusive"),
        (
            &["--check-recovery", "--image-size=99"],
            "--image-size does not go with",
        ),
    ] {
        assert!(place.bad(options).contains(message), "{options:?}");
    }
    assert!(place.bytes() == plain);
    // Parity of a damaged image would protect the damage.
    place.damage(|bytes| bytes[900_000] ^= 1);
    let damaged = place.bytes();
    let text = place.bad(&["--add-recovery=5"]);
    assert!(text.contains("is damaged, and was left as it is"), "{text}");
    assert!(place.bytes() == damaged);
    place.good(&["--add-recovery=1", "--no-check"]);
    assert!(
        place
            .bad(&["--add-recovery=1", "--no-check"])
            .contains("--remove-recovery removes it")
    );
    // More than the parity can restore: nothing is written.
    place.damage(|bytes| {
        for at in (0..1_500_000).step_by(2000) {
            bytes[at] ^= 0x10;
        }
    });
    let damaged = place.bytes();
    let text = place.bad(&["--check-recovery"]);
    assert!(
        text.contains("1 group has more damage than can be repaired"),
        "{text}"
    );
    let text = place.bad(&["--repair"]);
    assert!(
        text.contains("lost: ") && text.contains("1 of 1 groups"),
        "{text}"
    );
    assert!(place.bytes() == damaged);
    // Where there is no file to change.
    let tree = place.tree();
    let tree = tree.to_str().unwrap();
    for (options, message) in [
        (
            ["-o", "-", "--recovery=5"],
            "an output that is a regular file",
        ),
        (["-o", "x", "--recovery=y"], "must be a number of per cent"),
    ] {
        let mut args = vec!["-i", tree];
        args.extend(options);
        let out = run(MKDWARFS, &args);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains(message), "{text}");
    }
}

/// Recovery data in a file of its own: the image stays as it is, and is found, repaired and salvaged with it.
#[test]
fn a_sidecar_protects_an_image_that_stays_as_it_is() {
    let place = place(&["--no-section-index"]);
    let plain = place.bytes();
    let sidecar = PathBuf::from(format!("{}.dwrec", place.image.display()));
    let text = place.good(&["--add-recovery=10%", "--sidecar"]);
    let name = sidecar.display().to_string();
    assert!(
        text.starts_with("added:    ") && text.contains(&format!(" in {name}, 1 group of ")),
        "{text}"
    );
    assert!(place.bytes() == plain);
    let beside = fs::read(&sidecar).unwrap();
    let again = place.bad(&["--add-recovery=10%", "--sidecar"]);
    assert!(again.contains("exists"), "{again}");
    // By its name, whether or not it is asked for.
    for options in [
        &["--check-recovery"][..],
        &["--check-recovery", "--sidecar"],
    ] {
        let text = place.good(options);
        assert!(
            text.contains(&format!("protected by {name}, ")) && text.contains("OK: "),
            "{text}"
        );
    }
    let json = place.good(&["--check-recovery", "-j"]);
    let json: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(json["recovery"]["sidecar"], name.as_str());
    assert_eq!(json["recovery"]["parts"][0]["length"], plain.len());

    let hurt = |bytes: &mut Vec<u8>| {
        bytes[..5000].fill(0);
        bytes.truncate(plain.len() - 5000);
    };
    place.damage(hurt);
    let text = place.bad(&["--check-recovery"]);
    assert!(text.contains("dwarfsck --repair restores them"), "{text}");
    let text = place.bad(&["--salvage-report"]);
    assert!(text.contains("there is recovery data"), "{text}");
    // Salvaging repairs everything first.
    let (out, _, parts) = place.salvage("out", &[]);
    assert!(out.status.success(), "{}", said(&out));
    assert!(fs::read(parts.join("repaired.dwarfs")).unwrap() == plain);
    // A copy is repaired with the sidecar of the file.
    let copy = place.dir.path().join("copy");
    place.good(&[&format!("--repair={}", copy.display())]);
    assert!(fs::read(&copy).unwrap() == plain);
    // In place, and the sidecar with the image.
    fs::write(&sidecar, &beside[9000..]).unwrap();
    let moved = place.dir.path().join("moved");
    fs::rename(&sidecar, &moved).unwrap();
    assert!(place.bad(&["--repair"]).contains("no recovery data found"));
    let named = format!("--sidecar={}", moved.display());
    let text = place.bad(&["--check-recovery", &named]);
    assert!(text.contains("dwarfsck --repair restores them"), "{text}");
    place.good(&["--repair", &named]);
    assert!(place.bytes() == plain);
    fs::write(&moved, &beside).unwrap();
    place.damage(hurt);
    let mut damaged = beside.clone();
    damaged[..5000].fill(7);
    fs::write(&moved, damaged).unwrap();
    place.good(&["--repair", &named]);
    assert!(place.bytes() == plain && fs::read(&moved).unwrap() == beside);

    for (options, message) in [
        (&["--sidecar"][..], "--sidecar needs --add-recovery"),
        (&["--remove-recovery", "--sidecar"], "just delete the file"),
        (&["--check-recovery", "--sidecar=none"], "none: "),
    ] {
        let text = place.bad(options);
        assert!(text.contains(message), "{options:?}: {text}");
    }
    fs::write(&moved, noise(50_000, 3)).unwrap();
    let text = place.bad(&["--repair", &named]);
    assert!(text.contains("moved: no recovery data found"), "{text}");
    // That of another file.
    fs::write(&moved, &beside).unwrap();
    place.damage(|bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x55));
    let text = place.bad(&["--repair", &named]);
    assert!(text.contains("is that of another file"), "{text}");
    // Salvaging says so, and goes on without it.
    fs::write(&place.image, &plain).unwrap();
    fs::write(&sidecar, noise(50_000, 3)).unwrap();
    let (out, _, _) = place.salvage("out2", &[]);
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("cannot use recovery data: "), "{text}");
}

/// What cannot all be repaired comes out as far as it can.
#[test]
fn salvage_repairs_the_groups_that_can_be_repaired() {
    // A group has at most 64 MiB, so this takes several of them in a small file: there is one here, and it is lost.
    let place = place(&["-S18"]);
    place.good(&["--add-recovery=2%"]);
    place.damage(|bytes| {
        for at in (0..1_500_000).step_by(2000) {
            bytes[at] ^= 0x10;
        }
    });
    let (out, _, parts) = place.salvage("out", &[]);
    let text = said(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(
        text.contains("it cannot repair everything: 1 of 1 groups")
            && text.contains("more is damaged than the recovery data can repair: "),
        "{text}"
    );
    assert!(!parts.join("repaired.dwarfs").exists());
}

/// A sidecar that was made for the file as it was, before another image took its name.
#[test]
fn a_stale_sidecar_changes_nothing() {
    for percent in ["5%", "100%"] {
        let place = place(&["-l1"]);
        place.good(&[&format!("--add-recovery={percent}"), "--sidecar"]);
        let tree = place.tree();
        fs::write(tree.join("file3"), noise(400_100, 77)).unwrap();
        let (tree, image) = (tree.to_str().unwrap(), place.image.to_str().unwrap());
        must(MKDWARFS, ["-i", tree, "-o", image, "-l1", "-f"]);
        let rebuilt = place.bytes();
        for task in ["--check-recovery", "--repair"] {
            let text = place.bad(&[task]);
            assert!(
                text.contains("the image was changed after the sidecar was made"),
                "{percent} {task}: {text}"
            );
        }
        assert!(place.bytes() == rebuilt);
        // Old contents do not come out, either.
        let out = tempfile::tempdir().unwrap();
        let to = out.path().to_str().unwrap();
        let done = run(DWARFSEXTRACT, ["-i", image, "-o", to, "--repair=memory"]);
        let text = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(text.contains("the image was changed"), "{text}");
        extracts(&place.image, &place.tree());
    }
}

/// A trailer that was added after a sidecar was made is there, and is not protected.
#[test]
fn a_trailer_behind_what_a_sidecar_protects_is_seen() {
    let place = place(&["-l1"]);
    place.good(&["--add-recovery=10%", "--sidecar"]);
    place.good(&["--add-digests"]);
    let whole = place.bytes();
    let text = place.bad(&["--repair"]);
    assert!(
        text.contains("repaired: nothing, what is protected is intact")
            && text.contains("have no recovery data, and may be damaged"),
        "{text}"
    );
    // What is protected is repaired, and the rest is said to be open.
    place.damage(|bytes| bytes[100_000..110_000].fill(0));
    let copy = place.dir.path().join("copy");
    for option in [
        format!("--repair={}", copy.display()),
        "--repair".to_owned(),
    ] {
        let text = place.bad(&[&option]);
        assert!(
            text.contains("have no recovery data, and may be damaged"),
            "{option}: {text}"
        );
    }
    assert!(place.bytes() == whole);
    place.good(&["--check-digests"]);
}
