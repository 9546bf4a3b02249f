//! A mount as the lower layer of an overlay.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use redwarfs_fuse::MountOptions;
use redwarfs_testkit::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{Maker, Mount, can_mount};
use tempfile::TempDir;

/// Something mounted by a test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn sub(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir(&path).expect("mkdir");
    path
}

#[test]
fn lower_layers() {
    if !can_mount("lower_layers") {
        return;
    }
    let mut bottom = Maker::new();
    bottom
        .dir("d")
        .file("d/deep", "deep")
        .file("only-bottom", "bottom")
        .file("both", "bottom")
        .file("doomed", "x")
        .file("first", "linked")
        .same("second", "first")
        .link("soft", "both");
    let mut top = Maker::new();
    top.dir("d").file("d/more", "more").file("both", "top");
    let options = MountOptions::default();
    let (bottom, top) = (Mount::new(&bottom, &options), Mount::new(&top, &options));

    let dir = TempDir::with_prefix("redwarfs-overlay-").expect("a temporary directory");
    let scratch = sub(dir.path(), "scratch");
    let merged = sub(dir.path(), "merged");
    if let Err(error) = mount("tmpfs", &scratch, "tmpfs", MountFlags::empty(), c"size=8m") {
        return skip("lower_layers", &format!("cannot mount a tmpfs: {error}"));
    }
    let _scratch = Mounted(scratch.clone());
    let (upper, work) = (sub(&scratch, "upper"), sub(&scratch, "work"));
    let data = format!(
        "lowerdir={}:{},upperdir={},workdir={}",
        top.point().display(),
        bottom.point().display(),
        upper.display(),
        work.display()
    );
    let data = std::ffi::CString::new(data).expect("no zero");
    if let Err(error) = mount(
        "overlay",
        &merged,
        "overlay",
        MountFlags::empty(),
        data.as_c_str(),
    ) {
        return skip("lower_layers", &format!("cannot mount an overlay: {error}"));
    }
    let _merged = Mounted(merged.clone());
    let at = |name: &str| merged.join(name);
    let read = |name: &str| fs::read_to_string(at(name)).unwrap_or_else(|e| panic!("{name}: {e}"));

    assert_eq!(read("both"), "top");
    assert_eq!(read("only-bottom"), "bottom");
    assert_eq!(
        (read("d/deep"), read("d/more")),
        ("deep".into(), "more".into())
    );
    assert_eq!(read("soft"), "top");
    assert_eq!(fs::metadata(at("first")).expect("stat").nlink(), 2);
    let names: Vec<_> = {
        let mut names: Vec<_> = fs::read_dir(&merged)
            .expect("readable")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names,
        [
            "both",
            "d",
            "doomed",
            "first",
            "only-bottom",
            "second",
            "soft"
        ]
    );

    // Copy-up, of contents and of attributes alone.
    fs::write(at("only-bottom"), "changed").expect("copy-up");
    assert_eq!(read("only-bottom"), "changed");
    let stat = fs::metadata(at("d/deep")).expect("stat");
    fs::set_permissions(at("d/deep"), {
        use std::os::unix::fs::PermissionsExt;
        fs::Permissions::from_mode(0o600)
    })
    .expect("copy-up");
    let after = fs::metadata(at("d/deep")).expect("stat");
    assert_eq!((after.mode() & 0o777, after.mtime()), (0o600, stat.mtime()));
    assert_eq!(read("d/deep"), "deep");
    // Whiteout.
    fs::remove_file(at("doomed")).expect("whiteout");
    assert!(!at("doomed").exists());
    // Rename of a file, and of a directory by copying as `mv` does.
    fs::rename(at("both"), at("d/moved")).expect("rename");
    assert_eq!(read("d/moved"), "top");
    assert!(!at("both").exists(), "the one below must not show through");
    let renamed = fs::rename(at("d"), at("e"));
    if let Err(error) = &renamed {
        // Without `redirect_dir` the kernel leaves that to the program.
        assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
    } else {
        assert_eq!(read("e/moved"), "top");
    }
    fs::create_dir(at("new")).expect("mkdir");
    fs::write(at("new/file"), "new").expect("writable");
    // The image never changes.
    let below = |mount: &Mount, name: &str| fs::read_to_string(mount.path(name)).expect(name);
    assert_eq!(below(&bottom, "only-bottom"), "bottom");
    assert_eq!(below(&top, "both"), "top");
    assert_eq!(below(&bottom, "doomed"), "x");
}
