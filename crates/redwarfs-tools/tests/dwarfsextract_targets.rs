//! Extraction to file systems that cannot hold everything, and to full ones.
//!
//! What is there of these file systems is mounted; a test of one that is not to be had is skipped.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::extract_support;
use crate::extract_support::{Sample, files_below, specials, stderr, tree_with_links};
use crate::support::DWARFSEXTRACT;
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::skip;
use redwarfs_testkit::tree::Random;

/// Something mounted on a directory, over a loop device or not.
struct Mounted {
    at: PathBuf,
    device: Option<String>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).output();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["-d", device]).output();
        }
    }
}

fn succeeds(program: &str, args: &[&OsStr]) -> Option<Output> {
    let done = Command::new(program).args(args).output().ok()?;
    done.status.success().then_some(done)
}

/// A new file system of `size` bytes in a file, on `at`; `None` and a message if it cannot be had.
fn mount(what: &str, at: &Path, size: u64, make: &[&str], mount: &[&str]) -> Option<Mounted> {
    let missing = |why: &str| skip(&format!("extraction to {what}"), why);
    if !rustix::process::geteuid().is_root() {
        missing("needs root");
        return None;
    }
    fs::create_dir(at).unwrap();
    let image = at.with_extension("image");
    fs::File::create(&image).unwrap().set_len(size).unwrap();
    let mut args: Vec<&OsStr> = make[1..].iter().map(OsStr::new).collect();
    args.push(image.as_os_str());
    if succeeds(make[0], &args).is_none() {
        missing(&format!("{} is not there", make[0]));
        return None;
    }
    let find = ["-f", "--show"].map(OsStr::new);
    let Some(found) = succeeds("losetup", &[find[0], find[1], image.as_os_str()]) else {
        missing("no loop device");
        return None;
    };
    let device = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    let mut args: Vec<&OsStr> = mount[1..].iter().map(OsStr::new).collect();
    args.extend([OsStr::new(&device), at.as_os_str()]);
    let mounted = succeeds(mount[0], &args).is_some();
    let guard = Mounted {
        at: at.to_owned(),
        device: Some(device),
    };
    if !mounted {
        missing(&format!("{} does not mount it", mount.join(" ")));
        return None;
    }
    Some(guard)
}

/// Every type of entry, and names that some file systems do not take.
fn everything(dir: &Path) {
    tree_with_links(dir);
    specials(dir);
    fs::write(dir.join("README"), "upper").unwrap();
    fs::write(dir.join("readme"), "lower").unwrap();
    fs::create_dir_all(dir.join("Both")).unwrap();
    fs::create_dir_all(dir.join("both")).unwrap();
    fs::write(dir.join("Both/f"), "upper").unwrap();
    fs::write(dir.join("both/f"), "lower").unwrap();
    fs::write(dir.join("what?"), "question").unwrap();
    fs::hard_link(dir.join("what?"), dir.join("zlink")).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"bad\xff")), "bytes").unwrap();
}

fn sample() -> Sample {
    Sample::with(everything, &["--with-devices", "--with-specials"])
}

fn left_out(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines
        .filter_map(|line| line.split_once("left out: "))
        .filter_map(|(_, rest)| rest.split(": ").next())
        .collect()
}

#[test]
fn exfat_gets_all_that_it_can_hold() {
    let sample = sample();
    let at = sample.path().join("exfat");
    let make = ["mkfs.exfat"];
    let Some(_mounted) = mount("exFAT", &at, 16 << 20, &make, &["mount.exfat-fuse"]) else {
        return;
    };
    let strict = sample.extract(&["-o", "exfat"]);
    assert_eq!(strict.status.code(), Some(1));
    assert_eq!(stderr(&strict).lines().count(), 1, "{}", stderr(&strict));
    assert!(
        stderr(&strict).contains("--continue-on-error"),
        "{}",
        stderr(&strict)
    );
    // Twice: what is there already is replaced, but not taken for a name of the image.
    for _ in 0..2 {
        let done = sample.extract(&["-o", "exfat", "--continue-on-error"]);
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(2), "{text}");
        let mut lost = left_out(&text);
        lost.sort_unstable();
        let want = [
            "bad\\xff", "both", "fifo", "link", "null", "readme", "socket", "what?",
        ];
        assert_eq!(lost, want, "{text}");
        // With the file below "both".
        assert!(
            text.contains("extraction finished with 9 error(s)"),
            "{text}"
        );
        let collision = "the file system takes it for README, which is in the image, too";
        assert!(text.contains(collision), "{text}");
        assert!(text.contains("copied (said once)"), "{text}");
        let want = [
            "Both/f",
            "README",
            "a.txt",
            "docs/b.txt",
            "docs/deep/C.TXT",
            "file",
            "twin",
            "zlink",
        ];
        assert_eq!(files_below(&at), want);
        let read = |name: &str| fs::read_to_string(at.join(name)).unwrap();
        assert_eq!(
            (&read("README")[..], &read("Both/f")[..]),
            ("upper", "upper")
        );
        assert_eq!(
            (&read("twin")[..], &read("zlink")[..]),
            ("contents of a\n", "question")
        );
    }
    let skips = [
        "--skip-symlinks",
        "--skip-hardlinks",
        "--skip-devices",
        "--skip-specials",
    ];
    let done = sample.extract(&[&["-o", "exfat", "--continue-on-error"][..], &skips].concat());
    assert_eq!(left_out(&stderr(&done)).len(), 4, "{}", stderr(&done));
}

#[test]
fn fat_gets_all_that_it_can_hold() {
    let sample = sample();
    let at = sample.path().join("fat");
    let make = ["mkfs.vfat", "-F", "32"];
    let kernel: &[&str] = &["mount", "-t", "vfat"];
    let fuse: &[&str] = &["fusefat", "-o", "rw+"];
    let driver = if fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.contains("vfat")) {
        kernel
    } else {
        fuse
    };
    let Some(_mounted) = mount("FAT32", &at, 64 << 20, &make, driver) else {
        return;
    };
    fs::create_dir(at.join("out")).unwrap();
    let done = sample.extract(&["-o", "fat/out", "--continue-on-error"]);
    let text = stderr(&done);
    assert_eq!(done.status.code(), Some(2), "{text}");
    let lost = left_out(&text);
    for name in ["both", "fifo", "link", "null", "readme", "socket", "what?"] {
        assert!(lost.contains(&name), "{name}: {text}");
    }
    assert!(text.contains("copied (said once)"), "{text}");
    let read = |name: &str| fs::read_to_string(at.join("out").join(name)).unwrap();
    assert_eq!(
        (&read("README")[..], &read("Both/f")[..]),
        ("upper", "upper")
    );
    assert_eq!(
        (&read("twin")[..], &read("zlink")[..]),
        ("contents of a\n", "question")
    );
}

#[test]
fn an_ext4_without_case_merges_nothing() {
    let sample = sample();
    let at = sample.path().join("folding");
    let make = ["mkfs.ext4", "-q", "-F", "-O", "casefold"];
    let what = "an ext4 without case";
    let Some(_mounted) = mount(what, &at, 16 << 20, &make, &["mount"]) else {
        return;
    };
    let out = at.join("out");
    fs::create_dir(&out).unwrap();
    if succeeds("chattr", &[OsStr::new("+F"), out.as_os_str()]).is_none() {
        return skip(&format!("extraction to {what}"), "chattr +F fails");
    }
    for _ in 0..2 {
        let done = sample.extract(&["-o", "folding/out", "--continue-on-error"]);
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(2), "{text}");
        let mut lost = left_out(&text);
        lost.sort_unstable();
        assert_eq!(lost, ["both", "readme"], "{text}");
        assert_eq!(fs::read_to_string(out.join("README")).unwrap(), "upper");
        assert_eq!(fs::read_to_string(out.join("Both/f")).unwrap(), "upper");
    }
}

#[test]
fn ntfs_without_case_merges_nothing() {
    let sample = sample();
    let at = sample.path().join("ntfs");
    let make = ["mkfs.ntfs", "-q", "-F"];
    let driver = ["lowntfs-3g", "-o", "windows_names,ignore_case"];
    let Some(_mounted) = mount("NTFS", &at, 16 << 20, &make, &driver) else {
        return;
    };
    for _ in 0..2 {
        let done = sample.extract(&["-o", "ntfs", "--continue-on-error"]);
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(2), "{text}");
        let mut lost = left_out(&text);
        lost.sort_unstable();
        assert_eq!(lost, ["bad\\xff", "both", "readme", "what?"], "{text}");
        assert!(
            text.contains("extraction finished with 5 error(s)"),
            "{text}"
        );
        assert_eq!(fs::read_to_string(at.join("README")).unwrap(), "upper");
        assert_eq!(fs::read_to_string(at.join("both/f")).unwrap(), "upper");
        let ino = |name: &str| at.join(name).metadata().unwrap().ino();
        assert_eq!(ino("a.txt"), ino("twin"));
    }
}

/// A directory where a file is to be: an error of one entry on any file system.
#[test]
fn what_is_in_the_way_is_an_error_of_one_entry() {
    let sample = Sample::new(tree_with_links);
    let out = sample.dir("out");
    fs::create_dir_all(out.join("docs/b.txt/full")).unwrap();
    fs::create_dir_all(out.join("link/full")).unwrap();
    let done = sample.extract(&["-o", "out"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    let done = sample.extract(&["-o", "out", "--continue-on-error"]);
    let text = stderr(&done);
    assert_eq!(done.status.code(), Some(2), "{text}");
    let mut lost = left_out(&text);
    lost.sort_unstable();
    assert_eq!(lost, ["docs/b.txt", "link"], "{text}");
    assert!(
        text.contains("extraction finished with 2 error(s)"),
        "{text}"
    );
    let want = ["a.txt", "docs/deep/C.TXT", "twin"];
    assert_eq!(files_below(&out), want);
    // The first name of a file is lost, not its contents under another name.
    let out = sample.dir("other");
    fs::create_dir_all(out.join("a.txt/full")).unwrap();
    let done = sample.extract(&["-o", "other", "--continue-on-error"]);
    assert_eq!(done.status.code(), Some(2), "{}", stderr(&done));
    assert_eq!(left_out(&stderr(&done)), ["a.txt"]);
    assert_eq!(fs::read(out.join("twin")).unwrap(), b"contents of a\n");
}

#[test]
fn a_full_disk_ends_the_extraction_with_one_message() {
    let sample = Sample::new(|dir| {
        for n in 0..200_u64 {
            fs::write(
                dir.join(format!("f{n:03}")),
                Random::new(n + 1).bytes(40_000),
            )
            .unwrap();
        }
    });
    let at = sample.dir("full");
    let mounted = rustix::process::geteuid().is_root()
        && Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(&at)
            .output()
            .is_ok_and(|done| done.status.success());
    if !mounted {
        return skip("extraction to a full disk", "cannot mount a small tmpfs");
    }
    let _mounted = Mounted {
        at: at.clone(),
        device: None,
    };
    for option in [&[][..], &["--continue-on-error"]] {
        let done = sample.extract(&[&["-o", "full"], option].concat());
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("no space left on device"), "{text}");
        assert!(!text.contains("--continue-on-error"), "{text}");
        // Only whole files stay.
        let files = files_below(&at);
        assert!(!files.is_empty() && files.len() < 200);
        for file in files {
            let same =
                fs::read(at.join(&file)).unwrap() == fs::read(sample.source().join(&file)).unwrap();
            assert!(same, "{file}");
        }
    }
}

/// The limit of ext4 is 65000 names.
#[test]
fn more_links_than_a_file_can_have_become_links_of_a_copy() {
    let what = "more hard links than ext4 has";
    let names = 65_010;
    let sample = Sample::new(|dir| fs::write(dir.join("f"), "f").unwrap());
    let source = sample.dir("many");
    let is_root = rustix::process::geteuid().is_root();
    let tmpfs = ["-t", "tmpfs", "none"].map(OsStr::new);
    if !is_root || succeeds("mount", &[&tmpfs[..], &[source.as_os_str()]].concat()).is_none() {
        return skip(what, "cannot mount a tmpfs");
    }
    let _source = Mounted {
        at: source.clone(),
        device: None,
    };
    fs::write(source.join("f"), "f").unwrap();
    for n in 1..names {
        fs::hard_link(source.join("f"), source.join(format!("l{n}"))).unwrap();
    }
    let made = Command::new(env!("CARGO_BIN_EXE_mkdwarfs"))
        .args([
            "-i",
            "many",
            "-o",
            "many.dwarfs",
            "-l1",
            "--log-level=error",
            "--progress=none",
        ])
        .current_dir(sample.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let at = sample.path().join("ext4");
    let make = ["mkfs.ext4", "-q", "-F"];
    let Some(_mounted) = mount(what, &at, 32 << 20, &make, &["mount"]) else {
        return;
    };
    let done = extract_support::dwarfsextract(sample.path(), &["many.dwarfs", "-o", "ext4"]);
    let text = stderr(&done);
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(text.contains("copied (said once)"), "{text}");
    let links: Vec<u64> = ["f", "l1"]
        .map(|n| at.join(n).metadata().unwrap().nlink())
        .to_vec();
    let files = files_below(&at);
    assert_eq!(
        files.len(),
        names as usize + usize::from(at.join("lost+found").is_file())
    );
    let inodes: std::collections::HashSet<u64> = files
        .iter()
        .map(|f| at.join(f).metadata().unwrap().ino())
        .collect();
    assert_eq!(inodes.len(), 2, "{links:?}");
}

#[test]
fn full_disks_are_named() {
    if !rustix::process::geteuid().is_root() {
        return skip("full disks", "needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(dir.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip("full disks", "cannot mount a tmpfs");
    }
    let image = golden("many-default").image;
    let run = |args: &[&str]| {
        Command::new(DWARFSEXTRACT)
            .arg("-i")
            .arg(&image)
            .args(args)
            .current_dir(dir.path())
            .output()
    };
    fs::write(dir.path().join("old.tar"), "precious").unwrap();
    let archive = run(&["-f", "pax", "-o", "old.tar"]);
    let old = fs::read(dir.path().join("old.tar"));
    let left = fs::read_dir(dir.path()).unwrap().count();
    let tree = run(&["-o", "."]);
    let kept = fs::read(dir.path().join("old.tar"));
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success());

    let archive = archive.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&archive.stderr),
        "dwarfsextract: extraction aborted: cannot write archive: old.tar: no space left on device\n"
    );
    assert_eq!(archive.status.code(), Some(1));
    assert_eq!((old.unwrap().as_slice(), left), (&b"precious"[..], 1));

    let tree = tree.unwrap();
    let text = String::from_utf8_lossy(&tree.stderr);
    assert!(
        text.starts_with("dwarfsextract: extraction aborted: cannot "),
        "{text}"
    );
    assert!(text.ends_with(": no space left on device\n"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(tree.status.code(), Some(1));
    assert_eq!(kept.unwrap(), b"precious");
}
