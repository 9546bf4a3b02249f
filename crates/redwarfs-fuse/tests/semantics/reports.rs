//! What a mount says of itself: extended attributes, operations that were measured, files that were read.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use redwarfs_fuse::MountOptions;
use redwarfs_reader::OpenOptions as ImageOptions;
use redwarfs_reader::perfmon::{Component, PerfMonitor};
use rustix::io::Errno;

use crate::small_tree;
use crate::support::{FilePart, Gate, Mount, can_mount};

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65536];
    let len = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn xattr_names(path: &Path) -> Vec<String> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list).expect("listxattr");
    list.truncate(len);
    list.split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()).expect("plain names"))
        .collect()
}

#[test]
fn extended_attributes() {
    if !can_mount("extended_attributes") {
        return;
    }
    let mut maker = small_tree();
    maker
        .category(b"a\"b\\c\n\xff\x01")
        .pieces("nine", &vec![FilePart::Data(vec![7; 3]); 9])
        .pieces(
            "holes",
            &[FilePart::Data(vec![1; 4096]), FilePart::Hole(3_145_728)],
        );
    let all = [
        "user.dwarfs.driver.pid",
        "user.dwarfs.driver.perfmon",
        "user.dwarfs.inodeinfo",
    ];
    // Listed only if asked for, and only what can then be had.
    let mut listing = MountOptions::default();
    listing.list_xattrs = true;
    let mount = Mount::new(&maker, &listing);
    assert_eq!(xattr_names(mount.point()), all);
    for name in ["d", "plain"] {
        assert_eq!(xattr_names(&mount.path(name)), all[2..], "{name}");
    }
    for name in ["link", "pipe"] {
        assert!(xattr_names(&mount.path(name)).is_empty(), "{name}");
    }
    drop(mount);
    let mount = Mount::new(&maker, &MountOptions::default());
    for name in ["", "d", "plain", "link", "pipe"] {
        assert!(xattr_names(&mount.path(name)).is_empty(), "{name}");
    }
    let root = mount.point();
    let pid = std::process::id().to_string();
    assert_eq!(xattr(root, all[0]), Ok(pid.into_bytes()));
    let off = b"performance monitor is disabled\n".to_vec();
    assert_eq!(xattr(root, all[1]), Ok(off));
    for (name, attribute) in [
        ("d", all[0]),
        ("d", all[1]),
        ("plain", "user.dwarfs.other"),
        ("plain", "security.selinux"),
        ("plain", "trusted.overlay.opaque"),
        ("plain", "user.inodeinfo"),
    ] {
        assert_eq!(
            xattr(&mount.path(name), attribute),
            Err(Errno::NODATA),
            "{attribute}"
        );
    }
    // The system refuses `user.` attributes of these before anybody is asked.
    for name in ["link", "pipe"] {
        assert!(xattr(&mount.path(name), all[2]).is_err());
    }
    let info = |name: &str| {
        let text = xattr(&mount.path(name), all[2]).expect(name);
        let text = String::from_utf8(text).expect("UTF-8");
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        (text, value)
    };
    assert_eq!(
        info("d").0,
        "{\"gid\":0,\"mode\":16877,\"modestring\":\"---drwxr-xr-x\",\"uid\":0}\n"
    );
    assert_eq!(
        info("empty").0,
        "{\"gid\":0,\"mode\":33188,\"modestring\":\"----rw-r--r--\",\"uid\":0}\n"
    );
    assert_eq!(
        info("nine").0,
        "{\"chunks\":\"too many chunks (9)\",\"gid\":0,\"mode\":33188,\
         \"modestring\":\"----rw-r--r--\",\"uid\":0}\n"
    );
    let (text, value) = info("holes");
    assert!(
        text.contains("{\"kind\":\"hole\",\"size\":3145728}"),
        "{text}"
    );
    let category = value["chunks"][0]["category"].as_str();
    assert_eq!(category, Some("a\"b\\c\n\u{fffd}\u{1}"));
    let keys = "{\"chunks\":[{\"block\":0,\"category\":";
    assert!(text.starts_with(keys), "{text}");
    assert!(text.contains("\"kind\":\"data\",\"offset\":"), "{text}");
    // Too little room.
    let mut little = [0; 4];
    let result = rustix::fs::getxattr(mount.path("d"), all[2], &mut little);
    assert_eq!(result, Err(Errno::RANGE));
}

#[test]
fn performance_monitor() {
    if !can_mount("performance_monitor") {
        return;
    }
    let mut open = ImageOptions::default();
    open.perfmon = PerfMonitor::new(&[Component::Fuse], false);
    let mount = Mount::with(
        Gate::new(small_tree().image().0),
        &open,
        &MountOptions::default(),
    );
    fs::read(mount.path("plain")).expect("readable");
    fs::read_link(mount.path("link")).expect("readable");
    fs::read_dir(mount.path("d")).expect("readable").count();
    xattr_names(&mount.path("d"));
    let name = "user.dwarfs.driver.perfmon";
    let value = String::from_utf8(xattr(mount.point(), name).expect("a value")).expect("UTF-8");
    for operation in [
        "op_init",
        "op_lookup",
        "op_getattr",
        "op_readlink",
        "op_read",
        "op_readdir",
        "op_statfs",
        "op_listxattr",
    ] {
        let head = format!("[fuse.{operation}]\n      samples: ");
        assert!(value.contains(&head), "{operation} in {value}");
    }
    // One read, whether it was answered at once or by a worker.
    assert!(
        value.contains("[fuse.op_read]\n      samples: 1\n"),
        "{value}"
    );
    let path = CString::new(mount.point().as_os_str().as_bytes()).expect("no zero");
    let name = CString::new(name).expect("no zero");
    // SAFETY: both are C strings, and without room nothing is written.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    let least = value.len() + 4096 - 100;
    assert!(usize::try_from(size).expect("a size") >= least, "{size}");
    let summary = mount.observer.perfmon_summary().expect("it is on");
    assert!(summary.contains("[fuse.op_getxattr]"), "{summary}");
}

#[test]
fn analysis_file() {
    if !can_mount("analysis_file") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let list = dir.path().join("list");
    fs::write(&list, "old\n").expect("writable");
    let mut options = MountOptions::default();
    options.analysis_file = Some(list.clone());
    let mut maker = small_tree();
    maker.dir("d/e").file("d/e/deep", "deep");
    let mut mount = Mount::new(&maker, &options);
    let seen = || fs::read_to_string(&list).expect("readable");
    assert_eq!(seen(), "");
    for name in ["plain", "d/e/deep", "plain", "zwei", "two", "empty", "link"] {
        fs::read(mount.path(name)).expect(name);
    }
    fs::read_dir(mount.path("d")).expect("readable").count();
    fs::metadata(mount.path("private")).expect("stat");
    // There at once, each file once: also one with two names, and an empty one.
    let expected = "plain\nd/e/deep\ntwo\nempty\n";
    assert_eq!(seen(), expected);
    mount.unmount();
    assert_eq!(seen(), expected);

    let point = tempfile::tempdir().expect("a temporary directory");
    let mut options = MountOptions::default();
    options.analysis_file = Some(dir.path().join("no/such/dir"));
    let image =
        redwarfs_reader::Image::from_source(Gate::new(maker.image().0), &ImageOptions::default())
            .expect("a valid image");
    let error = redwarfs_fuse::mount(image, point.path(), &options).expect_err("no such directory");
    let text = error.to_string();
    assert!(text.starts_with("cannot create analysis file: "), "{text}");
    assert!(
        text.contains("no/such/dir: no such file or directory"),
        "{text}"
    );
}
