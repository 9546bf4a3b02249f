//! Lists, checksums and checks of good images.

use crate::reading_tools::{DIRECTORY, REGULAR, SYMLINK, check, extract, file_type, text};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, run};
use redwarfs_extractor::display_path;
use redwarfs_testkit::golden::{golden, golden_images};
use redwarfs_testkit::skip;
use std::collections::BTreeMap;
use std::fs::{self};
use std::process::Command;

/// A path as the listing shows it.
fn listed_name(path: &[u8]) -> String {
    display_path(path)
}

#[test]
fn lists_show_every_entry() {
    for image in golden_images() {
        let manifest = image.manifest();
        let short = check(&image.image, &["-l"]);
        assert_eq!(
            (short.status.code(), text(&short.stderr)),
            (Some(0), String::new())
        );
        let mut want: Vec<String> = manifest
            .0
            .keys()
            .filter(|path| path.as_slice() != b".")
            .map(|path| listed_name(path))
            .collect();
        let listing = text(&short.stdout);
        let mut lines: Vec<String> = listing.lines().map(str::to_owned).collect();
        want.sort();
        lines.sort();
        assert_eq!(lines, want, "{}", image.name);

        let long = check(&image.image, &["-l", "-v", "--no-check"]);
        assert!(long.status.success());
        let long = text(&long.stdout);
        want.push(".".into());
        assert!(long.lines().count() >= want.len());
        for (path, entry) in &manifest.0 {
            let name = listed_name(path);
            let shown = match &entry.target {
                Some(target) => format!("{name} -> {}", display_path(target)),
                None => name,
            };
            let line = long
                .lines()
                .find(|line| {
                    let mut fields = line.splitn(2, ':');
                    fields.next();
                    fields.next().and_then(|rest| rest.get(3..)) == Some(shown.as_str())
                })
                .unwrap_or_else(|| panic!("{}: no line for {shown}", image.name));
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let kind = match file_type(entry.mode) {
                REGULAR => '-',
                DIRECTORY => 'd',
                SYMLINK => 'l',
                0o020_000 => 'c',
                0o060_000 => 'b',
                0o010_000 => 'p',
                _ => 's',
            };
            let id = |bit, letter| if entry.mode & bit == 0 { '-' } else { letter };
            let mut mode: String = [id(0o4000, 'U'), id(0o2000, 'G'), id(0o1000, 'S'), kind]
                .iter()
                .collect();
            for at in (0..9).rev() {
                let letter = ['x', 'w', 'r'][at % 3];
                mode.push(if entry.mode >> at & 1 == 1 {
                    letter
                } else {
                    '-'
                });
            }
            assert_eq!(fields[0], mode, "{line}");
            let rest = line[fields[0].len()..].trim_start();
            let (uid, rest) = rest.split_once('/').unwrap();
            assert_eq!(uid.trim(), entry.uid.to_string(), "{line}");
            let mut rest = rest.split_ascii_whitespace();
            assert_eq!(rest.next(), Some(entry.gid.to_string().as_str()), "{line}");
            assert_eq!(rest.next(), Some(entry.size.to_string().as_str()), "{line}");
        }
    }
}

#[test]
fn checksums_are_those_of_the_files() {
    for image in golden_images() {
        let manifest = image.manifest();
        // Gigabytes of zeros take their time and prove nothing.
        if manifest.0.values().any(|e| e.size > 64 << 20) {
            continue;
        }
        let done = check(&image.image, &["--checksum=sha256"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let want: BTreeMap<String, String> = manifest
            .0
            .iter()
            .filter(|(_, entry)| file_type(entry.mode) == REGULAR)
            .map(|(path, entry)| (text(path), entry.sha256.clone().unwrap()))
            .collect();
        let plain: Vec<String> = text(&done.stdout).lines().map(str::to_owned).collect();
        assert_eq!(plain.len(), want.len(), "{}", image.name);
        for line in plain.iter().filter(|line| !line.starts_with('\\')) {
            let (digest, path) = line.split_once("  ").unwrap();
            assert_eq!(want.get(path).map(String::as_str), Some(digest), "{line}");
        }

        let dir = tempfile::tempdir().unwrap();
        let (extracted, out) = extract(&image.image, dir.path(), &["--skip-devices"]);
        assert!(extracted.status.success());
        let list = dir.path().join("sums");
        fs::write(&list, &done.stdout).unwrap();
        let verified = Command::new("sha256sum")
            .args(["--check", "--quiet", "--strict"])
            .arg(&list)
            .current_dir(&out)
            .output();
        match verified {
            Err(error) => skip("checksums verified by sha256sum", &error.to_string()),
            Ok(_) if want.is_empty() => {}
            Ok(verified) => assert!(
                verified.status.success(),
                "{}: {}{}",
                image.name,
                text(&verified.stdout),
                text(&verified.stderr)
            ),
        }
    }
}

/// Small files are done long before the large one that is stored before them.
#[test]
fn checksums_come_in_the_same_order_for_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("!large"), vec![7; 40 << 20]).unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("{number}")), format!("{number}")).unwrap();
    }
    let image = dir.path().join("image");
    let (from, to) = (tree.to_str().unwrap(), image.to_str().unwrap());
    must(MKDWARFS, ["-i", from, "-o", to, "-l1", "--order=path"]);
    let want = text(&check(&image, &["--checksum=sha256", "-n1"]).stdout);
    assert!(want.lines().next().unwrap().ends_with("  !large"), "{want}");
    assert_eq!(want.lines().count(), 301);
    for threads in ["-n2", "-n8"] {
        let done = check(&image, &["--checksum=sha256", threads]);
        assert!(text(&done.stdout) == want, "{threads}");
    }
}

#[test]
fn every_kind_of_check_accepts_good_images() {
    for image in golden_images() {
        // Without index and history only that says that the image is complete.
        let size = fs::metadata(&image.image).unwrap().len();
        let size = format!("--image-size={size}");
        for options in [
            &["-q"][..],
            &["-q", "--check-integrity", "-n3", &size],
            &["-q", "--no-check"],
        ] {
            let done = check(&image.image, options);
            assert_eq!(
                (done.status.code(), text(&done.stdout), text(&done.stderr)),
                (Some(0), String::new(), String::new()),
                "{} {options:?}",
                image.name
            );
        }
        let mut sizes = Vec::new();
        for level in ["0", "1", "2", "3", "-1"] {
            let done = check(&image.image, &["-d", level]);
            assert_eq!(
                (done.status.code(), text(&done.stderr)),
                (Some(0), String::new())
            );
            sizes.push(done.stdout.len());
        }
        assert!(sizes[..4].is_sorted(), "{}: {sizes:?}", image.name);
        assert_eq!(sizes[0], sizes[4]);
        let details = text(&check(&image.image, &["-d", "section_details,version"]).stdout);
        assert!(details.starts_with("DwarFS version 2.5 [2]"), "{details}");
        assert!(details.contains("SECTION [V2.5] num=0, type="), "{details}");
        assert!(!details.contains("ERROR]"), "{details}");
    }
}

#[test]
fn headers_are_printed() {
    let image = golden("basic-header").image;
    let bytes = fs::read(&image).unwrap();
    let done = must(DWARFSCK, [image.as_os_str(), "-H".as_ref()]);
    let header = done.stdout;
    assert!(!header.is_empty() && bytes.starts_with(&header));
    assert!(bytes[header.len()..].starts_with(b"DWARFS"));
    let version = text(&check(&image, &["-d1"]).stdout);
    assert!(
        version.starts_with(&format!(
            "DwarFS version 2.5 [2] at offset {}\n",
            header.len()
        )),
        "{version}"
    );

    let plain = golden("one").image;
    let done = check(&plain, &["-H"]);
    assert_eq!(
        (done.status.code(), text(&done.stderr)),
        (
            Some(2),
            format!(
                "dwarfsck: filesystem does not contain a header: {}\n",
                plain.display()
            )
        )
    );
}

#[test]
fn versions_and_help() {
    for (program, name) in [(DWARFSCK, "dwarfsck"), (DWARFSEXTRACT, "dwarfsextract")] {
        let version = text(&must(program, ["--version"]).stdout);
        assert_eq!(
            version,
            format!("{name} {} (RedwarFS)\n", env!("CARGO_PKG_VERSION"))
        );
        for flag in ["-h", "--help"] {
            let help = text(&must(program, [flag]).stdout);
            assert!(
                help.contains("Usage:") && help.contains("--image-offset"),
                "{help}"
            );
        }
        let none = run::<&str>(program, []);
        assert_eq!(none.status.code(), Some(1));
        assert!(text(&none.stderr).starts_with(&format!("{name}: no image given (")));
    }
    let help = text(&must(DWARFSEXTRACT, ["--help"]).stdout);
    assert!(help.contains("--format-filters"), "{help}");
}
