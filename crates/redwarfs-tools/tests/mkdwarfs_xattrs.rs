//! Extended attributes, birth times and file flags: what `mkdwarfs` stores, and what the options say.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::builder::{Built, Done, TestDir, mkdwarfs};
use redwarfs_testkit::skip;
use rustix::fs::{IFlags, XattrFlags, ioctl_setflags, lsetxattr};

type Set = BTreeMap<String, Vec<u8>>;

fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    lsetxattr(path, name, value, XattrFlags::empty()).is_ok()
}

fn of(image: &Built, path: &str) -> Set {
    let ino = image.0.find_path(path.as_bytes()).unwrap().unwrap();
    let xattrs = image.0.xattrs(ino).unwrap();
    xattrs
        .map(|xattr| {
            let name = String::from_utf8(xattr.name().unwrap().into_owned()).unwrap();
            (name, image.0.xattr_value(&xattr).unwrap().into_owned())
        })
        .collect()
}

fn expected(xattrs: &[(&str, &[u8])]) -> Set {
    let owned = |(name, value): &(&str, &[u8])| ((*name).to_owned(), value.to_vec());
    xattrs.iter().map(owned).collect()
}

/// A place whose files have attributes, if the file system can hold them.
fn place() -> Option<TestDir> {
    let place = TestDir::new(&["file", "plain", "dir/x"]);
    let at = |path: &str| place.path("in").join(path);
    let done = set(&at("file"), "user.note", b"x")
        && set(&at("file"), "user.other", b"y")
        && set(&at("dir"), "user.note", b"of the directory");
    if !done {
        skip("extended attributes", "the file system has none");
        return None;
    }
    Some(place)
}

fn summary(place: &TestDir, args: &[&str]) -> Vec<String> {
    let done: Done = mkdwarfs()
        .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
        .args(args)
        .output()
        .unwrap()
        .into();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    done.stderr.lines().map(str::to_owned).collect()
}

#[test]
fn attributes_are_selected_by_name() {
    let Some(place) = place() else { return };
    let file = [("user.note", &b"x"[..]), ("user.other", b"y")];
    let image = place.image::<&str>(&[]);
    assert_eq!(of(&image, "file"), expected(&file));
    assert_eq!(of(&image, "plain"), Set::new());
    let directory = expected(&[("user.note", b"of the directory")]);
    assert_eq!(of(&image, "dir"), directory);
    let image = place.image(&["--xattrs=!user.other"]);
    assert_eq!(of(&image, "file"), expected(&file[..1]));
    assert_eq!(of(&image, "dir"), directory);
    let image = place.image(&["--xattrs=user,!*.n*"]);
    assert_eq!(of(&image, "file"), expected(&file[1..]));
    assert_eq!(of(&image, "dir"), Set::new());
    assert!(!place.image(&["--xattrs=none"]).0.metadata().has_xattrs());
    for more in ["--file-timeout=10s", "--symlinks=follow", "-N1"] {
        assert_eq!(of(&place.image(&[more]), "file"), expected(&file));
    }
    let done = place.run(&["--xattrs=a,,b"]);
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.contains("empty pattern in 'a,,b'"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_summary_counts_them() {
    let Some(place) = place() else { return };
    let lines = summary(&place, &[]);
    assert!(
        lines[2].ends_with("; extended attributes of 2 entries"),
        "{}",
        lines[2]
    );
    assert_eq!(lines[4], "left out: nothing");
    let lines = summary(&place, &["--xattrs=*.other"]);
    assert!(lines[2].ends_with("of 1 entry"), "{}", lines[2]);
    assert_eq!(lines[4], "left out: 2 extended attributes (see --xattrs)");
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1_u16, 7_u16), (4, 5), (0x20, 5)] {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(u32::MAX.to_le_bytes());
    }
    let default = "system.posix_acl_default";
    if !set(&place.path("in/dir"), default, &acl) {
        skip("access control lists", "the file system has none");
        return;
    }
    let mut capability = vec![0; 20];
    capability[3] = 2;
    capability[5] = 0x20;
    if !set(&place.path("in/plain"), "security.capability", &capability) {
        skip("file capabilities", "setting them needs root");
        return;
    }
    let lines = summary(&place, &[]);
    let counted =
        "; extended attributes of 3 entries, 1 with access control lists, 1 with capabilities";
    assert!(lines[2].ends_with(counted), "{}", lines[2]);
    let image = place.built();
    assert_eq!(of(&image, "dir")[default], acl);
    let done = place.run(&["--set-owner=7"]);
    assert_eq!(done.code, Some(0));
    let warned =
        "owners and groups are changed, but not those in the access control lists of 1 entry";
    assert!(done.stderr.contains(warned), "{}", done.stderr);
    assert_eq!(of(&image, "plain")["security.capability"], capability);
}

#[test]
fn attributes_can_be_set() {
    let Some(place) = place() else { return };
    std::os::unix::fs::symlink("file", place.path("in/link")).unwrap();
    let args = [
        "--set-xattr=user.note=of all",
        "--set-xattr=trusted.n=0x00ff",
    ];
    let image = place.image(&args);
    let all = [("trusted.n", &b"\0\xff"[..]), ("user.note", b"of all")];
    for path in ["", "plain", "dir", "dir/x"] {
        assert_eq!(of(&image, path), expected(&all), "{path}");
    }
    assert_eq!(of(&image, "link"), expected(&all[..1]));
    let mut file = expected(&all);
    file.insert("user.other".into(), b"y".to_vec());
    assert_eq!(of(&image, "file"), file);

    let declared = "/file x user.note=declared\n\
                    new x user.a=1\nnew f 600 0 0\nnew x user.b=0sMg==\n\
                    dir m 700 - -\ndir x \"user.c=3 4\"\n/ x user.root=r\n";
    let pseudo = place.file("pseudo", declared);
    let image = place.image(&["--pseudo-file", &pseudo]);
    let file = [("user.note", &b"declared"[..]), ("user.other", b"y")];
    assert_eq!(of(&image, "file"), expected(&file));
    assert_eq!(
        of(&image, "new"),
        expected(&[("user.a", b"1"), ("user.b", b"2")])
    );
    let directory = [("user.c", &b"3 4"[..]), ("user.note", b"of the directory")];
    assert_eq!(of(&image, "dir"), expected(&directory));
    assert_eq!(image.stat("dir").mode & 0o7777, 0o700);
    assert_eq!(of(&image, ""), expected(&[("user.root", b"r")]));
}

#[test]
fn birth_times_and_flags_are_stored_as_asked() {
    let place = TestDir::new(&["a", "b"]);
    let file = fs::File::open(place.path("in/a")).unwrap();
    let flags = ioctl_setflags(&file, IFlags::NODUMP).is_ok();
    let image = place.image::<&str>(&[]);
    let view = image.0.metadata();
    assert!(!view.options().has_btime && !view.has_file_flags());
    let image = place.image(&["--keep-btime", "--file-flags", "--time-resolution=ns"]);
    let ino = image.0.find_path(b"a").unwrap().unwrap();
    let birth = image.0.metadata().birth_time(ino).unwrap().unwrap();
    match file.metadata().unwrap().created() {
        Ok(created) => {
            let since = created.duration_since(std::time::UNIX_EPOCH).unwrap();
            let expected = (since.as_secs() as i64, since.subsec_nanos());
            assert_eq!((birth.sec, birth.nsec), expected);
        }
        Err(_) => skip("birth times", "the file system has none"),
    }
    match flags {
        true => assert_eq!(image.0.metadata().file_flags(ino).unwrap(), 0x40),
        false => skip("file flags", "the file system has none"),
    }
}

#[test]
fn canonical_images_have_nothing_of_ours() {
    let Some(place) = place() else { return };
    let image = place.image(&["--canonical"]);
    let thawed = image.0.metadata().thaw().unwrap();
    assert!(thawed.xattrs.is_none() && thawed.file_flags.is_none());
    let is_canonical = |place: &TestDir| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_dwarfsck"))
            .arg(place.path("out"))
            .args(["-q", "--is-canonical"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(is_canonical(&place), (Some(0), String::new()));
    assert_eq!(place.run(&["--canonical", "--keep-btime"]).code, Some(1));
    // A rebuild can drop them, too, and keeps them otherwise.
    place.image(&["--keep-btime", "--file-flags"]);
    let (code, said) = is_canonical(&place);
    assert_eq!(code, Some(1));
    assert!(said.contains("it has extended attributes") && said.contains("it has birth times"));
    for (args, kept) in [
        (&["--rebuild-metadata"][..], true),
        (&["--recompress"], true),
        (&["--change-block-size", "-S", "12"], true),
        (&["--rebuild-metadata", "--canonical"], false),
    ] {
        let done: Done = mkdwarfs()
            .args(["-i", &place.text("out"), "-fo", &place.text("new"), "-l1"])
            .arg("--log-level=warn")
            .args(args)
            .output()
            .unwrap()
            .into();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        fs::rename(place.path("new"), place.path("rewritten")).unwrap();
        let mut options = redwarfs_reader::OpenOptions::default();
        options.check = true;
        let image = redwarfs_reader::Image::open(place.path("rewritten"), &options).unwrap();
        let built = Built(image);
        assert_eq!(built.0.metadata().has_xattrs(), kept, "{args:?}");
        assert_eq!(built.0.metadata().options().has_btime, kept, "{args:?}");
        let file = [("user.note", &b"x"[..]), ("user.other", b"y")];
        assert_eq!(of(&built, "file") == expected(&file), kept, "{args:?}");
    }
    let done: Done = mkdwarfs()
        .args(["-i", &place.text("out"), "-fo", &place.text("new"), "-l1"])
        .args(["--recompress", "--canonical", "--log-level=warn"])
        .output()
        .unwrap()
        .into();
    assert_eq!(done.code, Some(1), "{}", done.stderr);
}
