//! Extended attributes from end to end: a directory with capabilities, access lists and labels, through
//! images, mounts, extraction and archives, as `getfattr`, `getfacl` and the kernel see it.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::driver::{Mount, can_mount, temp};
use redwarfs_testkit::{is_installed, skip};

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");
pub(crate) const DWARFSEXTRACT: &str = env!("CARGO_BIN_EXE_dwarfsextract");

/// Runs a shell with positional arguments; `None` if it fails.
pub(crate) fn shell(script: &str, arguments: &[&Path]) -> Option<String> {
    let output = Command::new("sh")
        .args(["-euc", script, "sh"])
        .args(arguments)
        .output()
        .unwrap();
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn success(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A tree with all kinds of attributes, if this machine has the programs and rights for it.
fn tree(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let here = ["getfattr", "setfattr", "getfacl", "setfacl"];
    if !here.iter().all(|name| is_installed(name)) {
        skip(test, "there is no getfattr or getfacl");
        return None;
    }
    if !can_mount(test) {
        return None;
    }
    let dir = temp();
    let root = dir.path().join("in");
    fs::create_dir_all(root.join("lists/deep")).unwrap();
    fs::create_dir(root.join("bin")).unwrap();
    fs::write(root.join("bin/tool"), "#!/bin/true\n").unwrap();
    fs::set_permissions(root.join("bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    for i in 0..300 {
        fs::write(root.join(format!("lists/{i:03}")), format!("{i}")).unwrap();
    }
    fs::write(root.join("linked"), "two names").unwrap();
    fs::hard_link(root.join("linked"), root.join("other-name")).unwrap();
    symlink("linked", root.join("link")).unwrap();
    fs::write(root.join("plain"), "plain").unwrap();
    fs::write(dir.path().join("long"), vec![b'l'; 3000]).unwrap();
    let script = r#"
        cd "$1"
        i=0
        for file in lists/*; do
            i=$((i + 1))
            if [ -d "$file" ]; then
                setfacl -d -m u:1001:rwx,g:50:r-x "$file"; setfacl -m u:1002:--x "$file"
            else
                setfacl -m "u:$((1000 + i % 7)):r--,g:$((i % 5 + 10)):rw-" "$file"
            fi
        done
        setcap cap_net_raw,cap_net_bind_service=ep bin/tool
        setfattr -n user.note -v "two names" linked
        setfattr -n user.long -v "$(cat "$2")" linked
        setfattr -h -n trusted.link -v "of the link" link
        setfattr -n user.empty lists
        setfattr -n user.binary -v 0x000aff3d25 lists/deep
        setfattr -n trusted.overlay.opaque -v y lists/deep
        find . -exec setfattr -h -n security.label -v "system_u:object_r:a_t:s0" {} +
    "#;
    if shell(script, &[&root, &dir.path().join("long")]).is_none() {
        skip(test, "the file system or the user cannot set attributes");
        return None;
    }
    Some((dir, root))
}

/// Everything that the programs show of a tree.
fn shown(root: &Path) -> String {
    let script = r#"
        cd "$1"
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex
        find . ! -type l -print0 | sort -z | xargs -0 getfacl -n -p
        find . -type f -print0 | sort -z | xargs -0 getcap
    "#;
    shell(script, &[root]).unwrap()
}

/// Compares two of these texts, and shows the first difference only.
fn same(found: &str, want: &str, what: &str) {
    let lines = |text: &str| {
        text.lines()
            .map(|l| l.get(..200).unwrap_or(l).to_owned())
            .collect()
    };
    let (found_lines, want_lines): (Vec<String>, Vec<String>) = (lines(found), lines(want));
    for (at, line) in want_lines.iter().enumerate() {
        assert_eq!(found_lines.get(at), Some(line), "{what}, line {at}");
    }
    assert!(found == want, "{what}: lengths differ");
}

pub(crate) fn build(input: &Path, image: &Path, options: &[&str]) {
    let output = Command::new(MKDWARFS)
        .arg("-i")
        .arg(input)
        .arg("-o")
        .arg(image)
        .args(["-l1", "--log-level=warn", "--no-progress"])
        .args(options)
        .output()
        .unwrap();
    success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

pub(crate) fn extract(image: &Path, to: &Path, options: &[&str]) -> Output {
    Command::new(DWARFSEXTRACT)
        .arg(image)
        .arg("-o")
        .arg(to)
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn a_mount_shows_what_the_directory_has() {
    let Some((dir, root)) = tree("a_mount_shows_what_the_directory_has") else {
        return;
    };
    let image = dir.path().join("image");
    build(&root, &image, &["--keep-btime"]);
    let want = shown(&root);
    assert!(
        want.contains("user:1003") && want.contains("cap_net_raw"),
        "{want}"
    );
    for options in ["", "uring", "list_xattrs,cachesize=0"] {
        let mount = Mount::background(&image, options);
        if options.starts_with("list") {
            let names = shell("getfattr -m - \"$1/plain\"", &[mount.point()]).unwrap();
            assert!(names.contains("security.label") && names.contains("user.dwarfs.inodeinfo"));
            continue;
        }
        same(&shown(mount.point()), &want, options);
        // The driver still describes itself.
        let pid = shell(
            "getfattr -n user.dwarfs.driver.pid --only-values \"$1\"",
            &[mount.point()],
        );
        assert!(pid.unwrap().parse::<u32>().is_ok());
        let birth = fs::metadata(mount.point().join("plain")).unwrap().created();
        let original = fs::metadata(root.join("plain")).unwrap().created();
        if let Ok(original) = original {
            let whole = |time: std::time::SystemTime| {
                time.duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_secs()
            };
            assert_eq!(whole(birth.unwrap()), whole(original));
        }
    }
    // An overlay on top keeps them.
    let mount = Mount::background(&image, "");
    let script = r#"
        mkdir "$2/upper" "$2/work" "$2/merged"
        mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" || exit 3
        getfattr -h -d -m - -e hex "$2/merged/linked" "$2/merged/plain" | grep -v '^#'
        umount "$2/merged"
    "#;
    let direct = "cd \"$1\"; getfattr -h -d -m - -e hex linked plain | grep -v '^#'";
    match shell(script, &[mount.point(), dir.path()]) {
        Some(text) => assert_eq!(text, shell(direct, &[&root]).unwrap()),
        None => skip("overlay", "overlays on FUSE are not possible here"),
    }
    drop(mount);
    let mount = Mount::background(&image, "noxattr");
    let names = shell(
        "getfattr -h -m - -R \"$1\" 2>/dev/null || true",
        &[mount.point()],
    );
    assert_eq!(names.unwrap(), "");
}

/// Access lists and capabilities do what they say for an ordinary user.
#[test]
fn access_lists_and_capabilities_count_in_a_mount() {
    let test = "access_lists_and_capabilities_count_in_a_mount";
    let Some((dir, root)) = tree(test) else {
        return;
    };
    if !is_installed("setpriv") {
        skip(test, "there is no setpriv");
        return;
    }
    let script = r#"
        cd "$1"
        cp "$(command -v cat)" bin/reader
        echo secret >secret; chmod 600 secret; setfacl -m u:12345:r secret
        echo closed >closed; chmod 600 closed; setfacl -m u:12345:r,m::--- closed
        setcap cap_dac_read_search=ep bin/reader
    "#;
    if shell(script, &[&root]).is_none() {
        skip(test, "attributes cannot be set here");
        return;
    }
    let image = dir.path().join("image");
    build(&root, &image, &[]);
    let script = r#"
        user() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
        chmod 755 "$1" 2>/dev/null || true
        user cat "$1/secret"
        if user cat "$1/closed" 2>/dev/null; then exit 9; fi
        # Who is not in the list.
        if setpriv --reuid 54321 --regid 54321 --clear-groups cat "$1/secret" 2>/dev/null; then exit 8; fi
        user "$1/bin/reader" "$1/closed" 2>/dev/null || echo no capability
    "#;
    let mount = Mount::background(&image, "allow_other,suid");
    let text = shell(script, &[mount.point()]).unwrap();
    assert_eq!(text, "secret\nclosed\n");
    drop(mount);
    let mount = Mount::background(&image, "allow_other");
    let text = shell(script, &[mount.point()]).unwrap();
    assert_eq!(text, "secret\nno capability\n");
}

#[test]
fn extraction_restores_them() {
    let Some((dir, root)) = tree("extraction_restores_them") else {
        return;
    };
    let image = dir.path().join("image");
    build(&root, &image, &[]);
    let want = shown(&root);
    let out = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let whole = out("whole");
    success(&extract(&image, &whole, &["--strict"]));
    same(&shown(&whole), &want, "the tree");
    // Again over what is there.
    success(&extract(&image, &whole, &["--strict"]));
    same(&shown(&whole), &want, "the tree");

    let none = out("none");
    success(&extract(&image, &none, &["--xattrs=none"]));
    let names = shell("getfattr -h -m - -R \"$1\" 2>/dev/null || true", &[&none]);
    assert_eq!(names.unwrap(), "");
    let user = out("user");
    success(&extract(&image, &user, &["--xattrs=user"]));
    let names = shell(
        "cd \"$1\"; getfattr -h -m - -R . | grep -v '^#' | sort -u",
        &[&user],
    );
    let names = names.unwrap();
    let names: Vec<&str> = names.split_whitespace().collect();
    assert_eq!(
        names,
        ["user.binary", "user.empty", "user.long", "user.note"]
    );

    // Rewritten images, and images of the result, are the same.
    for (name, options) in [
        ("rebuilt", &["--rebuild-metadata"][..]),
        ("recompressed", &["--recompress", "-C", "zstd:level=3"]),
        ("recut", &["--change-block-size", "-S", "11"]),
    ] {
        let new = dir.path().join(name);
        build(&image, &new, options);
        let mount = Mount::background(&new, "");
        same(&shown(mount.point()), &want, name);
    }

    // Without privilege: what is possible, and one line about the rest.
    if !is_installed("setpriv") {
        return skip("extraction without privilege", "there is no setpriv");
    }
    let open = out("open");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for (strict, code) in [("--log-level=warn", 0), ("--strict", 2)] {
        let output = Command::new("setpriv")
            .args(["--reuid", "12345", "--regid", "12345", "--clear-groups"])
            .arg(DWARFSEXTRACT)
            .arg(&image)
            .arg("-o")
            .arg(&open)
            .arg(strict)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let about: Vec<&str> = said.lines().filter(|l| l.contains("extended")).collect();
        assert_eq!(about.len(), 2, "{said}");
        assert!(about[0].contains("(said once)"), "{said}");
        assert!(
            about[1].contains("cannot set extended attributes: "),
            "{said}"
        );
    }
    let note = shell(
        "getfattr -n user.note --only-values \"$1/linked\"",
        &[&open],
    );
    assert_eq!(note.unwrap(), "two names");
}

/// An ordinary user gets the attributes in `user` of what he may not write in the end.
#[test]
fn read_only_entries_keep_theirs() {
    let test = "read_only_entries_keep_theirs";
    if !is_installed("setpriv") || !is_installed("setfattr") {
        return skip(test, "there is no setpriv or setfattr");
    }
    let dir = temp();
    let root = dir.path().join("in");
    fs::create_dir_all(root.join("directory")).unwrap();
    fs::write(root.join("directory/file"), "read only").unwrap();
    fs::write(root.join("program"), "#!/bin/true\n").unwrap();
    let script = r#"
        cd "$1"
        setfattr -n user.note -v kept directory directory/file program
        setfattr -n user.second -v "kept, too" directory/file
        chmod 444 directory/file; chmod 555 directory; chmod 4511 program
        chown -R 12345:12345 .
        chmod 4511 program
    "#;
    if shell(script, &[&root]).is_none() {
        return skip(test, "the file system or the user cannot set attributes");
    }
    let image = dir.path().join("image");
    build(&root, &image, &[]);
    let other = dir.path().join("other");
    build(&root, &other, &["--set-owner=1", "--set-group=1"]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // With the modes that entries get at once, and with those that they get later.
    for (name, image, program) in [("own", &image, 0o4511), ("foreign", &other, 0o511)] {
        let out = dir.path().join(name);
        fs::create_dir(&out).unwrap();
        std::os::unix::fs::chown(&out, Some(12345), Some(12345)).unwrap();
        let output = Command::new("setpriv")
            .args(["--reuid", "12345", "--regid", "12345", "--clear-groups"])
            .arg(DWARFSEXTRACT)
            .arg(image)
            .arg("-o")
            .arg(&out)
            .output()
            .unwrap();
        success(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("extended"), "{name}: {said}");
        let script = r#"
            cd "$1"
            getfattr -d directory directory/file program
        "#;
        let found = shell(script, &[&out]).unwrap();
        assert_eq!(found, shell(script, &[&root]).unwrap(), "{name}");
        for (entry, mode) in [
            ("directory", 0o555),
            ("directory/file", 0o444),
            ("program", program),
        ] {
            let found = fs::metadata(out.join(entry)).unwrap().permissions().mode();
            assert_eq!(found & 0o7777, mode, "{name}: {entry}");
        }
    }
}

/// Capabilities are for the owner of the image, as set-id bits are.
#[test]
fn capabilities_need_the_owner() {
    let test = "capabilities_need_the_owner";
    if !["setpriv", "setfattr", "getfattr"]
        .iter()
        .all(|name| is_installed(name))
    {
        return skip(test, "there is no setpriv or setfattr");
    }
    let dir = temp();
    let root = dir.path().join("in");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("program"), "#!/bin/true\n").unwrap();
    let script = "chown 7:7 \"$1\"; setcap cap_net_raw=ep \"$1\"";
    if shell(script, &[&root.join("program")]).is_none() {
        return skip(test, "the file system or the user cannot set capabilities");
    }
    let image = dir.path().join("image");
    build(&root, &image, &[]);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    // Root who may not give files away, but may set capabilities.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-chown", DWARFSEXTRACT])
        .arg(&image)
        .arg("-o")
        .arg(&out)
        .output()
        .unwrap();
    success(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("program: security.capability: "), "{said}");
    let script = "getfattr -m - \"$1/program\"";
    assert_eq!(shell(script, &[&out]).unwrap(), "");
}

#[test]
fn archives_hold_them() {
    let Some((dir, root)) = tree("archives_hold_them") else {
        return;
    };
    let image = dir.path().join("image");
    build(
        &root,
        &image,
        &["--keep-btime", "--keep-all-times", "--time-resolution=ns"],
    );
    let want = shown(&root);
    let archive = dir.path().join("archive.tar");
    let output = extract(&image, &archive, &["-f", "pax", "--strict"]);
    success(&output);
    // GNU tar, which needs all of this to be said.
    let script = r#"
        mkdir "$2"
        tar --xattrs --xattrs-include='*' --acls -p --numeric-owner -C "$2" -xf "$1"
    "#;
    let unpacked = dir.path().join("unpacked");
    match shell(script, &[&archive, &unpacked]) {
        Some(_) => same(&shown(&unpacked), &want, "GNU tar"),
        None => skip("GNU tar", "it has no access control lists here"),
    }
    // Back into an image, and as an image of the directory.
    let again = dir.path().join("again");
    let all = ["--keep-btime", "--keep-all-times", "--time-resolution=ns"];
    build(&archive, &again, &all);
    let mount = Mount::background(&again, "");
    same(&shown(mount.point()), &want, "the tree");
    let birth = |at: &Path| fs::metadata(at.join("plain")).unwrap().created().ok();
    assert_eq!(birth(mount.point()), birth(&root));

    // Other formats say what they leave out.
    let output = extract(&image, &dir.path().join("archive.cpio"), &["-f", "newc"]);
    success(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("newc holds no extended attributes: those of 308"),
        "{said}"
    );
    let output = extract(
        &image,
        &dir.path().join("strict.cpio"),
        &["-f", "newc", "--strict"],
    );
    assert_eq!(output.status.code(), Some(2));
}

/// What `dwarfsck --xattrs` prints is what `setfattr --restore` reads.
#[test]
fn the_dump_restores_them() {
    let Some((dir, root)) = tree("the_dump_restores_them") else {
        return;
    };
    fs::write(root.join("od\\d\nname"), "x").unwrap();
    let script = "setfattr -n user.odd -v 'a\"b\\c' \"$1\"/od*";
    assert!(shell(script, &[&root]).is_some());
    let image = dir.path().join("image");
    build(&root, &image, &["--keep-btime"]);
    let dwarfsck = env!("CARGO_BIN_EXE_dwarfsck");
    let run = |option: &str| {
        let output = Command::new(dwarfsck)
            .arg(&image)
            .arg(option)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = run("--xattrs");
    assert_eq!(code, Some(0));
    fs::write(dir.path().join("dump"), &text).unwrap();
    // Onto the same tree without any attributes.
    let bare = dir.path().join("bare");
    fs::create_dir(&bare).unwrap();
    success(&extract(&image, &bare, &["--xattrs=none"]));
    let script = "cd \"$1\"; setfattr -h --restore=\"$2\"";
    assert!(shell(script, &[&bare, &dir.path().join("dump")]).is_some());
    same(&shown(&bare), &shown(&root), "restored");

    assert_eq!(run("--is-canonical").0, Some(1));
    let (_, text) = run("--detail=metadata_summary");
    assert!(
        text.contains("extensions:\n  xattrs: 309 inodes, "),
        "{text}"
    );
    assert!(text.contains("  birth times: yes\n"), "{text}");
    let (_, text) = run("-j");
    assert!(
        text.contains("\"extensions\":{\"birth_times\":true"),
        "{text}"
    );
    let output = Command::new(dwarfsck)
        .arg(&image)
        .args(["-l", "-j"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains("\"path\":\"linked\""))
        .unwrap();
    assert!(
        line.contains("{\"name\":\"user.long\",\"size\":3000}"),
        "{line}"
    );
    assert!(line.contains("\"btime\":{"), "{line}");
}

/// A damaged block with values of attributes is one of the files that have them.
#[test]
fn damage_of_values_names_their_files() {
    use redwarfs_format::metadata::{Extent, XattrData};
    use redwarfs_reader::{Image, OpenOptions};

    let Some((dir, root)) = tree("damage_of_values_names_their_files") else {
        return;
    };
    let path = dir.path().join("image");
    build(&root, &path, &[]);
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    let inode = image.find_path(b"linked").unwrap().unwrap();
    let xattrs = image.metadata().xattrs(inode).unwrap();
    let long = xattrs.find(b"user.long").unwrap().unwrap();
    let XattrData::Blocks(extents) = long.value().unwrap() else {
        panic!("a long value");
    };
    let Extent::Data { block, .. } = extents[0] else {
        panic!("a value is no hole");
    };
    let section = image.container().block(block).unwrap();
    let at = image.container().file_offset(section) as usize;
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dwarfsck"))
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("2 files are affected: linked, other-name"),
        "{said}"
    );
    // The contents are intact. Extraction without the attribute restores them, and with it names the files.
    let out = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    success(&extract(&path, &out("without"), &["--xattrs=none"]));
    assert_eq!(extract(&path, &out("stops"), &[]).status.code(), Some(1));
    let rest = out("rest");
    let output = extract(&path, &rest, &["--continue-on-error"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("linked"), "{said}");
    assert_eq!(fs::read_to_string(rest.join("plain")).unwrap(), "plain");
}
