//! Images as layers of one tree, beside overlayfs of the kernel.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::driver;
use crate::driver::{Mount, can_mount, dwarfs, errno, stderr, xattr};
use crate::support::{MKDWARFS, must};
use redwarfs_testkit::skip;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A directory on a file system of its own, which overlayfs accepts as a layer.
struct TestDir(tempfile::TempDir);

impl TestDir {
    /// None, with a note, if that cannot be.
    fn new(test: &str) -> Option<Self> {
        if !can_mount(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        if mount("none", dir.path(), "tmpfs", MountFlags::empty(), None).is_err() {
            skip(test, "no right to mount a tmpfs");
            return None;
        }
        Some(Self(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The images of the layers `l0`, which is the uppermost one, and on.
    fn build(&self, layers: usize) -> Vec<String> {
        let build = |layer: usize| {
            let [tree, image] = [format!("l{layer}"), format!("l{layer}.dwarfs")];
            let [tree, image] = [self.path(&tree), self.path(&image)];
            let [tree, image] = [tree, image].map(|path| path.to_str().unwrap().to_owned());
            let fixed = [
                "-l1",
                "-f",
                "--with-devices",
                "--no-progress",
                "--log-level=error",
            ];
            must(
                MKDWARFS,
                [&["-i", &tree, "-o", &image][..], &fixed].concat(),
            );
            image
        };
        (0..layers).map(build).collect()
    }

    /// What the kernel shows for the directories of the layers. None if it has no overlayfs.
    fn overlay(&self, layers: usize) -> Option<Tree> {
        let point = self.path("overlay");
        fs::create_dir_all(&point).unwrap();
        let dirs = (0..layers).map(|layer| self.path(&format!("l{layer}")));
        let dirs: Vec<_> = dirs.map(|dir| dir.to_str().unwrap().to_owned()).collect();
        let options = format!("lowerdir={}", dirs.join(":"));
        let options = std::ffi::CString::new(options).unwrap();
        mount("none", &point, "overlay", MountFlags::RDONLY, &*options).ok()?;
        let shown = tree(&point, true);
        unmount(&point, UnmountFlags::DETACH).unwrap();
        Some(shown)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// By path: everything that `stat` and reading tell.
type Tree = BTreeMap<PathBuf, String>;

fn tree(root: &Path, by_kernel: bool) -> Tree {
    let mut found = Tree::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            let meta = match fs::symlink_metadata(root.join(&path)) {
                // In a directory of one layer, the kernel lists whiteouts, which nobody can look up.
                Err(_) if by_kernel => continue,
                other => other.unwrap(),
            };
            assert_eq!(entry.file_type().unwrap(), meta.file_type());
            let ty = meta.file_type();
            let contents = if ty.is_file() {
                fs::read_to_string(root.join(&path)).unwrap()
            } else if ty.is_symlink() {
                fs::read_link(root.join(&path))
                    .unwrap()
                    .display()
                    .to_string()
            } else if ty.is_char_device() {
                meta.rdev().to_string()
            } else {
                todo.push(path.clone());
                String::new()
            };
            let (mode, user, time) = (meta.mode(), meta.uid(), meta.mtime());
            found.insert(path, format!("{mode:o} {user} {time} {contents}"));
        }
    }
    found
}

fn try_union(options: &str, images: &[String]) -> (Mount, Output) {
    let mount = Mount::on(Mount::new_dir());
    let options = format!("union,dir={},{options}", mount.point().display());
    let output = dwarfs()
        .arg("-o")
        .arg(options)
        .args(images)
        .output()
        .unwrap();
    (mount, output)
}

fn union(options: &str, images: &[String]) -> Mount {
    let (mount, output) = try_union(options, images);
    assert!(output.status.success(), "{}", stderr(&output));
    mount
}

fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn opaque(path: &Path, value: &str) {
    setxattr(
        path,
        "trusted.overlay.opaque",
        value.as_bytes(),
        XattrFlags::empty(),
    )
    .unwrap();
}

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Fills a directory of a layer.
fn fill(dir: &Path, random: &mut Random, depth: u32) {
    for name in ["a", "b", "c", "d", "e"] {
        let path = dir.join(name);
        match random.below(if depth < 3 { 11 } else { 6 }) {
            0 | 1 => {}
            2 => whiteout(&path),
            3 => symlink(format!("to {}", random.below(100)), &path).unwrap(),
            4 | 5 => {
                fs::write(&path, random.below(1000).to_string()).unwrap();
                let mode = 0o600 + random.below(0o100) as u32;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            _ => {
                fs::create_dir(&path).unwrap();
                let mode = 0o700 + random.below(0o100) as u32;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                if random.below(4) == 0 {
                    opaque(&path, "y");
                }
                fill(&path, random, depth + 1);
            }
        }
    }
}

#[test]
fn random_stacks_are_what_overlayfs_shows() {
    let test = "random_stacks_are_what_overlayfs_shows";
    let cases = std::env::var("REDWARFS_UNION_CASES").ok();
    let slow = std::env::var_os("REDWARFS_SLOW").is_some();
    let default = if slow { 200 } else { 20 };
    let cases: u64 = cases.map_or(default, |text| text.parse().unwrap());
    for case in 0..cases {
        let Some(place) = TestDir::new(test) else {
            return;
        };
        let mut random = Random(case + 1);
        let layers = 2 + random.below(3) as usize;
        for layer in 0..layers {
            let dir = place.path(&format!("l{layer}"));
            fs::create_dir(&dir).unwrap();
            fill(&dir, &mut random, 0);
        }
        let Some(wanted) = place.overlay(layers) else {
            return skip(test, "no overlayfs");
        };
        let mount = union("", &place.build(layers));
        let found = tree(mount.point(), false);
        assert_eq!(found, wanted, "case {case}");
        assert!(found.len() > 3 || case > 0);
    }
}

#[test]
fn long_directories_are_whole_and_data_below_is_no_zeros() {
    let test = "long_directories_are_whole_and_data_below_is_no_zeros";
    let Some(place) = TestDir::new(test) else {
        return;
    };
    for (layer, numbers) in [("l0", 2000..5000), ("l1", 0..4000)] {
        fs::create_dir_all(place.path(layer).join("many")).unwrap();
        for number in numbers {
            let name = format!("many/{number} a name that fills the buffer of a listing");
            fs::write(place.path(layer).join(name), layer).unwrap();
        }
    }
    for number in [2500, 3500] {
        let name = format!("l0/many/{number} a name that fills the buffer of a listing");
        fs::remove_file(place.path(&name)).unwrap();
        whiteout(&place.path(&name));
    }
    // What overlayfs makes of a file whose mode has changed, if it copies attributes only.
    let copied = place.path("l0/copied");
    fs::write(&copied, [0; 4]).unwrap();
    setxattr(
        &copied,
        "trusted.overlay.metacopy",
        b"",
        XattrFlags::empty(),
    )
    .unwrap();
    fs::write(place.path("l1/copied"), "data").unwrap();

    let mounted = union("", &place.build(2));
    let names: Vec<_> = fs::read_dir(mounted.point().join("many"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let different: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), different.len()), (4998, 4998));
    let listed = fs::read_dir(mounted.point()).unwrap();
    let listed: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    assert!(listed.contains(&"copied".into()), "{listed:?}");
    let read = fs::read(mounted.point().join("copied"));
    assert_eq!(errno(read), rustix::io::Errno::IO.raw_os_error());
}

#[test]
fn layers_hide_what_is_below() {
    let Some(place) = TestDir::new("layers_hide_what_is_below") else {
        return;
    };
    let write = |path: &str, text: &str| {
        let path = place.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("l1/both/low", "low");
    write("l1/both/same", "below");
    write("l1/both/gone", "gone");
    write("l1/empty/x", "x");
    write("l1/white/kept", "kept");
    write("l1/white/gone", "gone");
    write("l1/only/deep/file", "deep");
    write("l0/both/same", "above");
    whiteout(&{
        fs::create_dir_all(place.path("l0/both")).unwrap();
        place.path("l0/both/gone")
    });
    fs::create_dir_all(place.path("l0/empty")).unwrap();
    opaque(&place.path("l0/empty"), "y");
    // Files as whiteouts.
    write("l0/white/gone", "");
    opaque(&place.path("l0/white"), "x");
    setxattr(
        place.path("l0/white/gone"),
        "trusted.overlay.whiteout",
        b"y",
        XattrFlags::empty(),
    )
    .unwrap();
    let images = place.build(2);
    let mount = union("", &images);
    let root = mount.point();
    let paths = |root: &Path| -> Vec<String> {
        tree(root, false)
            .into_keys()
            .map(|path| path.display().to_string())
            .collect()
    };
    let shown = paths(root);
    assert_eq!(
        shown,
        [
            "both",
            "both/low",
            "both/same",
            "empty",
            "only",
            "only/deep",
            "only/deep/file",
            "white",
            "white/kept"
        ]
    );
    assert_eq!(fs::read_to_string(root.join("both/same")).unwrap(), "above");
    assert_eq!(fs::read_to_string(root.join("both/low")).unwrap(), "low");
    assert_eq!(errno(fs::metadata(root.join("both/gone"))), libc::ENOENT);
    assert_eq!(errno(fs::write(root.join("both/new"), "")), libc::EROFS);
    // Numbers are small, differ, and are those of the listing.
    let number = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().ino();
    let numbers: std::collections::BTreeSet<u64> = shown.iter().map(|path| number(path)).collect();
    assert_eq!(numbers.len(), shown.len());
    assert!(numbers.first() > Some(&1) && numbers.last() < Some(&100));
    use std::os::unix::fs::DirEntryExt;
    for entry in fs::read_dir(root.join("both")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.ino(), fs::metadata(entry.path()).unwrap().ino());
    }
    assert_eq!(number("only/deep/.."), number("only"));
    assert_eq!((number("."), number("only/..")), (1, 1));
    // How directories merge is nobody's business, unless the mount is to be a layer.
    assert!(xattr(&root.join("empty"), "trusted.overlay.opaque").is_err());
    let whole = rustix::fs::statvfs(root).unwrap();
    assert!(whole.f_files > 15, "{}", whole.f_files);

    let layer = union("whiteouts=show", &images);
    let hidden = fs::symlink_metadata(layer.point().join("both/gone")).unwrap();
    assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
    let value = xattr(&layer.point().join("empty"), "trusted.overlay.opaque");
    assert_eq!(value.unwrap(), "y");
}

#[test]
fn whiteouts_of_containers_count_if_asked_for() {
    let Some(place) = TestDir::new("whiteouts_of_containers_count_if_asked_for") else {
        return;
    };
    for (path, text) in [
        ("l1/a", "a"),
        ("l1/dir/x", "x"),
        ("l1/opaque/below", "below"),
        ("l1/again/old", "old"),
        ("l0/.wh.a", ""),
        ("l0/dir/.wh.x", ""),
        ("l0/opaque/.wh..wh..opq", ""),
        ("l0/opaque/above", "above"),
        ("l0/.wh.again", ""),
        ("l0/again/new", "new"),
    ] {
        let path = place.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let images = place.build(2);
    let names = |options: &str| -> Vec<String> {
        let mount = union(options, &images);
        let found = tree(mount.point(), false);
        found
            .into_keys()
            .map(|path| path.display().to_string())
            .collect()
    };
    assert_eq!(
        names("whiteouts=oci"),
        ["again", "again/new", "dir", "opaque", "opaque/above"]
    );
    let plain = names("");
    assert!(plain.contains(&"a".into()) && plain.contains(&".wh.a".into()));
}

#[test]
fn a_layer_has_only_what_differs() {
    let Some(place) = TestDir::new("a_layer_has_only_what_differs") else {
        return;
    };
    let path = |name: &str| place.path("l0").join(name);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), text).unwrap();
    };
    for name in [
        "same/a",
        "same/deep/b",
        "gone/c",
        "some/gone",
        "some/kept",
        "some/changed",
    ] {
        write(name, name);
    }
    write("kind", "a file");
    write("other kind/x", "x");
    write("quiet", "12345");
    symlink("before", path("link")).unwrap();
    let time = |name: &str| {
        let time = fs::metadata(path("same/a")).unwrap().modified().unwrap();
        fs::File::open(path(name))
            .unwrap()
            .set_modified(time)
            .unwrap();
    };
    time("quiet");
    let below = place.build(1).remove(0);
    let kept = place.path("below.dwarfs");
    fs::rename(&below, &kept).unwrap();

    fs::remove_dir_all(path("gone")).unwrap();
    fs::remove_file(path("some/gone")).unwrap();
    write("some/changed", "other contents");
    write("some/new/file", "new");
    fs::remove_file(path("kind")).unwrap();
    write("kind/inside", "inside");
    fs::remove_dir_all(path("other kind")).unwrap();
    write("other kind", "a file");
    fs::remove_file(path("link")).unwrap();
    symlink("after", path("link")).unwrap();
    // Same size and time.
    write("quiet", "54321");
    time("quiet");
    let (tree_path, kept) = (place.path("l0"), kept.to_str().unwrap());
    let build = |more: &[&str]| -> String {
        let image = place.path("upper.dwarfs").to_str().unwrap().to_owned();
        let arguments = [
            "-i",
            tree_path.to_str().unwrap(),
            "-o",
            &image,
            "--layer",
            kept,
            "-l1",
        ];
        let quiet = ["-f", "--no-progress", "--log-level=error"];
        must(MKDWARFS, [&arguments[..], &quiet, more].concat());
        image
    };
    let shown = |images: &[String], options: &str| {
        let mount = union(options, images);
        tree(mount.point(), false)
    };
    let names = |tree: Tree| -> Vec<String> {
        tree.into_keys()
            .map(|path| path.display().to_string())
            .collect()
    };
    let upper = build(&[]);
    let own = names(shown(std::slice::from_ref(&upper), "whiteouts=show"));
    assert_eq!(
        own,
        [
            "gone",
            "kind",
            "kind/inside",
            "link",
            "other kind",
            "some",
            "some/changed",
            "some/gone",
            "some/new",
            "some/new/file"
        ]
    );
    let mut wanted = tree(&tree_path, false);
    let both = shown(&[upper, kept.to_owned()], "");
    assert!(both[Path::new("quiet")].ends_with("12345"));
    wanted.insert(PathBuf::from("quiet"), both[Path::new("quiet")].clone());
    assert_eq!(both, wanted);
    // With checksums, nothing is missed.
    let upper = build(&["--checksum"]);
    let both = shown(&[upper, kept.to_owned()], "");
    assert_eq!(both, tree(&tree_path, false));
    // The same tree needs nothing.
    let again = place.build(1).remove(0);
    let image = place.path("empty.dwarfs").to_str().unwrap().to_owned();
    let arguments = [
        "-i",
        tree_path.to_str().unwrap(),
        "-o",
        &image,
        "--layer",
        &again,
    ];
    must(
        MKDWARFS,
        [
            &arguments[..],
            &["-l1", "--no-progress", "--log-level=error"],
        ]
        .concat(),
    );
    assert_eq!(shown(&[image], "whiteouts=show").len(), 0);
    // Nor does it with attributes that only the images have.
    let fixed = [
        "--set-owner=7",
        "--set-group=8",
        "--chmod=a-w",
        "--set-time=1000",
        "--set-xattr=user.a=b",
        "-f",
        "-l1",
        "--no-progress",
        "--log-level=error",
    ];
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (tree_path, base) = (tree_path.to_str().unwrap(), path("fixed.dwarfs"));
    must(
        MKDWARFS,
        [&["-i", tree_path, "-o", &base][..], &fixed].concat(),
    );
    let image = path("empty.dwarfs");
    let arguments = ["-i", tree_path, "-o", &image, "--layer", &base];
    must(MKDWARFS, [&arguments[..], &fixed].concat());
    assert_eq!(shown(&[image], "whiteouts=show").len(), 0);
}

#[test]
fn unions_that_cannot_be() {
    let Some(place) = TestDir::new("unions_that_cannot_be") else {
        return;
    };
    fs::create_dir_all(place.path("l0/a")).unwrap();
    let images = place.build(1);
    for (options, more, cause) in [
        (
            "",
            Some("/nowhere"),
            "cannot open image: /nowhere: no such file",
        ),
        ("noxattr", None, "noxattr cannot be used with union"),
        (
            "case_insensitive",
            None,
            "case_insensitive cannot be used with union",
        ),
        ("whiteouts=x", None, "no such kind of whiteouts: x"),
    ] {
        let images = [
            images.clone(),
            more.map(str::to_owned).into_iter().collect(),
        ]
        .concat();
        let (mount, output) = try_union(options, &images);
        assert_eq!(output.status.code(), Some(1), "{options}");
        assert!(stderr(&output).contains(cause), "{}", stderr(&output));
        assert!(driver::table_line(mount.point()).is_none());
    }
    let point = Mount::new_dir();
    let one = dwarfs()
        .arg(&images[0])
        .arg(point.path())
        .args(["-o", "union"])
        .output()
        .unwrap();
    assert!(
        stderr(&one).contains("union needs several images"),
        "{}",
        stderr(&one)
    );
}
