//! File flags and birth times from end to end: through images, extraction and archives, as `lsattr` shows them.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::temp;
use crate::extended::{DWARFSEXTRACT, build, extract, shell, success};
use redwarfs_testkit::{is_installed, skip};

/// Takes back what would keep a temporary directory from being removed.
struct Unlocked(PathBuf);

impl Drop for Unlocked {
    fn drop(&mut self) {
        let _ = shell("chattr -R -f -i -a \"$1\" || true", &[&self.0]);
    }
}

/// Flags come last, and lock what is complete.
#[test]
fn file_flags_are_restored() {
    let test = "file_flags_are_restored";
    if !is_installed("chattr") || !is_installed("lsattr") {
        return skip(test, "there is no chattr");
    }
    let dir = temp();
    let _unlocked = Unlocked(dir.path().to_owned());
    let root = dir.path().join("in");
    fs::create_dir(&root).unwrap();
    let script = r#"
        cd "$1"
        mkdir -p locked/below plain
        echo log >log; echo fixed >fixed; echo none >plain/none; echo deep >locked/below/deep
        ln fixed plain/other; ln -s fixed link; echo all >all
        touch -d 2001-02-03 locked locked/below fixed log
        chattr +i fixed locked/below/deep locked; chattr +a log; chattr +d plain; chattr +dAS all
    "#;
    if shell(script, &[&root]).is_none() {
        return skip(test, "the file system or the user cannot set flags");
    }
    let flags = |at: &Path| {
        let letters = "SDiadAcTCP";
        let script = "cd \"$1\"; find . ! -type l | sort | xargs lsattr -d";
        let lines = shell(script, &[at]).unwrap();
        let kept = |c: &char| letters.contains(*c);
        let line = |line: &str| {
            let (flags, path) = line.split_once(' ').unwrap();
            format!(
                "{} {path}\n",
                flags.chars().filter(kept).collect::<String>()
            )
        };
        lines.lines().map(line).collect::<String>()
    };
    let want = flags(&root);
    assert!(
        want.contains("i ./locked\n") && want.contains("SdA ./all\n"),
        "{want}"
    );
    let image = dir.path().join("image");
    build(&root, &image, &["--file-flags"]);
    let out = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let whole = out("whole");
    let output = extract(&image, &whole, &["--strict"]);
    success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(flags(&whole), want);
    for name in ["locked", "locked/below", "fixed", "log"] {
        let time = |at: &Path| fs::metadata(at.join(name)).unwrap().modified().unwrap();
        assert_eq!(time(&whole), time(&root), "{name}");
    }
    assert_eq!(
        std::os::unix::fs::MetadataExt::nlink(&fs::metadata(whole.join("fixed")).unwrap()),
        2
    );
    assert!(fs::write(whole.join("plain/other"), "x").is_err());

    let none = out("none");
    success(&extract(&image, &none, &["--skip-file-flags", "--strict"]));
    fs::write(none.join("fixed"), "may be written").unwrap();

    // Through pax, and in rewritten images.
    let archive = dir.path().join("archive.tar");
    success(&extract(&image, &archive, &["-f", "pax", "--strict"]));
    for (name, input, options) in [
        ("again", &archive, &["--file-flags"][..]),
        ("rebuilt", &image, &["--rebuild-metadata"]),
        ("recut", &image, &["--change-block-size", "-S", "11"]),
    ] {
        let new = dir.path().join(name);
        build(input, &new, options);
        let to = out(&format!("{name}.out"));
        success(&extract(&new, &to, &["--strict"]));
        assert_eq!(flags(&to), want, "{name}");
    }
    let zip = dir.path().join("archive.zip");
    let output = extract(&image, &zip, &["-f", "zip", "--strict"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("zip holds no file flags: those of 7 entries are left out"),
        "{said}"
    );

    // Without privilege: flags of the owner, and one line about the others.
    if !is_installed("setpriv") {
        return skip("flags without privilege", "there is no setpriv");
    }
    let open = out("open");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "12345", "--regid", "12345", "--clear-groups"])
        .arg(DWARFSEXTRACT)
        .arg(&image)
        .arg("-o")
        .arg(&open)
        .output()
        .unwrap();
    success(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    let about: Vec<&str> = said.lines().filter(|l| l.contains("file flags")).collect();
    assert_eq!(about.len(), 2, "{said}");
    assert!(
        about[0].contains("operation not permitted (said once)"),
        "{said}"
    );
    assert!(
        about[1].ends_with("cannot set file flags: 4 entries in all"),
        "{said}"
    );
    assert!(flags(&open).contains("SdA ./all\n"));
    fs::write(open.join("fixed"), "may be written").unwrap();
}

#[test]
fn birth_times_are_counted_where_they_cannot_be_set() {
    let dir = temp();
    let root = dir.path().join("in");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("file"), "x").unwrap();
    let image = dir.path().join("image");
    build(&root, &image, &["--keep-btime"]);
    for (name, options, code) in [("out", &[][..], 0), ("strict", &["--strict"][..], 2)] {
        let to = dir.path().join(name);
        fs::create_dir(&to).unwrap();
        let output = extract(&image, &to, options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let line = "cannot set birth times: the system has no call for this: 2 entries";
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
}
