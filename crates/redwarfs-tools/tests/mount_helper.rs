//! `mount.dwarfs` and `mount.fuse.dwarfs`, called by mount(8).
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::{LINK_IN_SBIN, as_user, can_mount, in_namespace, stderr, stdout, temp};
use redwarfs_testkit::skip;

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");

/// An image with one file.
fn image(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).expect("mkdir");
    fs::write(tree.join("file"), "data\n").expect("write");
    let image = dir.join("image.dwarfs");
    let built = Command::new(MKDWARFS)
        .args(["--log-level=warn", "-l1", "-i"])
        .arg(&tree)
        .arg("-o")
        .arg(&image)
        .output()
        .expect("mkdwarfs can be started");
    assert!(built.status.success(), "{}", stderr(&built));
    image
}

/// Lines of fstab with images on a server.
#[cfg(feature = "remote")]
#[test]
fn fstab_has_images_on_servers() {
    let test = "fstab_has_images_on_servers";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    let server = redwarfs_testkit::web::WebServer::start().expect("a server");
    server.put("/a%20b/x.dwarfs", fs::read(&image).expect("read"));
    let url = server.url("/a%20b/x.dwarfs");
    for name in ["one", "two", "gone"] {
        fs::create_dir(dir.path().join(name)).expect("mkdir");
    }
    let script = format!(
        r#"{LINK_IN_SBIN}
        ln -s "$2" /sbin/mount.fuse.dwarfs
        notes=nofail,_netdev,x-systemd.automount,x-systemd.mount-timeout=30s
        cat >"$1/fstab" <<END
$3 $1/one fuse.dwarfs ro,$notes 0 0
$3 $1/two dwarfs defaults,noauto,users,comment=x,rw_layer=tmp 0 0
$3.no $1/gone dwarfs ro,noauto,nofail,_netdev 0 0
END
        mount --bind "$1/fstab" /etc/fstab
        mount -a -O _netdev; mount -a; grep -c "^$3 $1/one fuse.dwarfs ro," /proc/self/mounts
        cat "$1/one/file"; umount "$1/one"
        mount -f "$1/two"; if mountpoint -q "$1/two"; then exit 90; fi
        mount -v -n -s "$1/two" >"$1/said"; cat "$1/two/file"
        echo more >"$1/two/new"; umount "$1/two"
        /sbin/mount.fuse.dwarfs "$3" "$1/two" -sn -o rw,$notes,user=me,nodev; cat "$1/two/file"
        umount "$3"
        if mount "$1/gone" 2>"$1/error"; then exit 91; fi
        tail -1 "$1/error""#
    );
    let Some(output) = in_namespace(test, &script, dir.path(), &[url.as_ref()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let rest = text.strip_prefix("1\ndata\ndata\ndata\n");
    let rest = rest.unwrap_or_else(|| panic!("{text}{errors}"));
    assert!(rest.contains("x.dwarfs.no"), "{rest}{errors}");
}

/// In a user namespace, as programs for containers make it.
#[test]
fn mount_works_in_user_namespaces() {
    let test = "mount_works_in_user_namespaces";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    let mnt = dir.path().join("mnt");
    std::os::unix::fs::chown(&mnt, Some(65534), Some(65534)).expect("chown");
    let script = format!(
        r#"{LINK_IN_SBIN}
        ln -s "$2" /sbin/mount.fuse.dwarfs
        user unshare -Urm true 2>/dev/null || {{ echo none; exit 0; }}
        for type in fuse.dwarfs dwarfs; do
            user unshare -Urm sh -ec 'mount -t "$3" "$1" "$2"; grep -c " $2 fuse.dwarfs ro," /proc/self/mounts
                cat "$2/file"; stat -c %u "$2/file"; umount "$2"; ls "$2"
                mount -t "$3" "$1" "$2" -o allow_other,rw_layer=tmp; echo new >"$2/file"; cat "$2/file"
                umount "$2"' sh "$3" "$1/mnt" "$type"
        done
        mount | grep " $1/mnt " || echo unmounted"#
    );
    let Some(output) = as_user(test, &script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    if text == "none\n" {
        return skip(test, "users may not make namespaces here");
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 9, "{text}{errors}");
    for part in lines.chunks(4).take(2) {
        // Files of root belong to nobody there.
        assert_eq!((part[0], part[1], part[3]), ("1", "data", "new"), "{text}");
        assert!(matches!(part[2], "65534" | "0"), "{text}");
    }
    assert_eq!(lines[8], "unmounted");
}
