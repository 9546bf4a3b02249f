//! Who may read what, and what those who read take away with them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver;
use crate::driver::{Mount, as_user, can_mount, in_namespace, stderr, stdout, temp};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{is_installed, skip};

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");

/// An image with files and directories that one user keeps to itself.
fn private_image(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("closed")).expect("mkdir");
    for (name, text, mode) in [
        ("open", "for all\n", 0o644),
        ("secret", "for one\n", 0o600),
        ("start.sh", "#!/bin/sh\necho started\n", 0o700),
        ("closed/inner", "inside\n", 0o600),
    ] {
        fs::write(tree.join(name), text).expect("write");
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
        std::os::unix::fs::chown(tree.join(name), Some(1000), Some(1000)).expect("chown");
    }
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(tree.join("closed"), closed).expect("chmod");
    std::os::unix::fs::chown(tree.join("closed"), Some(1000), Some(1000)).expect("chown");
    symlink("secret", tree.join("link")).expect("symlink");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .expect("mkfifo");
    let image = dir.join("private.dwarfs");
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

/// A directory on which a user may mount.
fn point_of_a_user(dir: &Path, name: &str) {
    let point = dir.join(name);
    fs::create_dir(&point).expect("mkdir");
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");
}

#[test]
fn who_mounts_reads_everything_in_a_private_mount() {
    let test = "who_mounts_reads_everything_in_a_private_mount";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = private_image(dir.path());
    point_of_a_user(dir.path(), "mnt");
    let script = r#"
        mnt=$1/mnt
        echo user_allow_other >"$1/fuse.conf"
        [ ! -e /etc/fuse.conf ] || mount --bind "$1/fuse.conf" /etc/fuse.conf
        # What programs and scripts do with files of another owner.
        look() {
            user sh -c 'cd "$1" && [ -r secret ] && cat secret && [ -x start.sh ] && ./start.sh &&
                [ ! -x secret ] && ls closed && cd closed && cat inner' sh "$mnt" &&
                echo "$1: everything"
        }
        for options in cachesize=1m allow_root; do
            user "$2" "$3" "$mnt" -o "$options" || { echo "$options: not mounted"; continue; }
            look "$options"; user fusermount3 -u "$mnt"
        done
        for options in default_permissions allow_other; do
            user "$2" "$3" "$mnt" -o "$options" || { echo "$options: not mounted"; continue; }
            if look "$options" 2>/dev/null; then exit 90; fi
            user cat "$mnt/open"
            if user cat "$mnt/secret" 2>/dev/null; then exit 91; fi
            user fusermount3 -u "$mnt"
        done
        # Root of a user namespace may not override what belongs to nobody in there.
        if user unshare -rm true 2>/dev/null; then
            user unshare -rm sh -ec '"$1" "$2" "$3" || exit 1; cat "$3/secret"; echo "namespace: everything"
                umount "$3"' sh "$2" "$3" "$mnt"
        else
            echo "namespace: none"
        fi
        # Root of the system: enforced, and overridden by its capabilities.
        "$2" "$3" "$mnt"; cat "$mnt/secret"; grep " $mnt " /proc/self/mounts; umount "$mnt""#;
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let lines: Vec<&str> = text.lines().collect();
    for wanted in ["cachesize=1m: everything", "for all", "inside", "started"] {
        assert!(lines.contains(&wanted), "{wanted}: {text}{errors}");
    }
    if Path::new("/etc/fuse.conf").exists() {
        assert!(lines.contains(&"allow_root: everything"), "{text}{errors}");
        assert!(!text.contains("not mounted"), "{text}{errors}");
    }
    if lines.contains(&"namespace: none") {
        skip(
            test,
            "users may not make namespaces here: that part is left out",
        );
    } else {
        assert!(lines.contains(&"namespace: everything"), "{text}{errors}");
    }
    let of_root = lines.last().expect("the mount table");
    assert!(of_root.contains(",default_permissions"), "{text}");
}

/// The way of the scripts that start games.
#[test]
fn an_overlay_of_a_user_squashes_owners() {
    let test = "an_overlay_of_a_user_squashes_owners";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = private_image(dir.path());
    for name in ["mnt", "upper", "work", "merged"] {
        point_of_a_user(dir.path(), name);
    }
    let script = r#"
        cd "$1"
        command -v fuse-overlayfs >/dev/null || { echo none; exit 0; }
        user "$2" "$3" mnt -o cachesize=65536k -o clone_fd -o cache_image
        user fuse-overlayfs -o squash_to_uid=65534 -o squash_to_gid=65534 \
            -o lowerdir=mnt,upperdir=upper,workdir=work merged
        user sh -ec 'cat merged/secret merged/closed/inner; merged/start.sh
            echo more >>merged/secret; cat merged/secret; cat upper/secret'
        getfattr -d -m - upper/secret 2>/dev/null | grep ^user.dwarfs || echo clean
        user fusermount3 -u merged; user fusermount3 -u mnt"#;
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    if text == "none\n" {
        return skip(test, "there is no fuse-overlayfs");
    }
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(
        text, "for one\ninside\nstarted\nfor one\nmore\nfor one\nmore\nclean\n",
        "{errors}"
    );
}

/// Names of attributes that the driver makes.
fn made_names(path: &Path) -> Vec<u8> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    names.truncate(length);
    let made = names
        .split(|&byte| byte == 0)
        .filter(|name| name.starts_with(b"user.dwarfs"));
    made.flatten().copied().collect()
}

#[test]
fn copies_have_no_attributes_of_the_driver() {
    let test = "copies_have_no_attributes_of_the_driver";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = private_image(dir.path());
    let mount = Mount::background(&image, "");
    let listing = Mount::background(&image, "list_xattrs");
    assert!(!made_names(listing.point()).is_empty());
    assert!(!made_names(&listing.point().join("secret")).is_empty());
    for name in ["link", "pipe"] {
        assert!(made_names(&listing.point().join(name)).is_empty(), "{name}");
    }
    for name in ["", "secret", "closed", "link", "pipe"] {
        assert!(made_names(&mount.point().join(name)).is_empty(), "{name}");
    }
    // They are still there for those who know them.
    for (name, attribute) in [
        ("", "user.dwarfs.driver.pid"),
        ("secret", "user.dwarfs.inodeinfo"),
    ] {
        driver::xattr(&mount.point().join(name), attribute).expect("the attribute");
    }
    let copy = dir.path().join("copy");
    for command in [
        r#"cp -a "$1" "$2""#,
        r#"mkdir "$2"; tar --xattrs --xattrs-include='*' -C "$1" -cf - . | tar --xattrs --xattrs-include='*' -C "$2" -xf -"#,
        r#"rsync -aX "$1/" "$2/""#,
    ] {
        let program = command.split(' ').next().expect("a program");
        if !is_installed(program) && !command.contains("tar") {
            skip(test, "a program for copies is not installed");
            continue;
        }
        let output = Command::new("sh")
            .args(["-euc", command, "sh"])
            .args([mount.point(), &copy])
            .output()
            .expect("sh can be started");
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        for name in ["", "secret", "closed", "closed/inner"] {
            assert!(copy.join(name).exists(), "{command}: {name}");
            assert!(made_names(&copy.join(name)).is_empty(), "{command}: {name}");
        }
        fs::remove_dir_all(&copy).expect("remove");
    }
    // The kernel's overlay copies a file when it is changed.
    let script = r#"mount -t tmpfs none "$1"; mkdir "$1/u" "$1/w" "$1/m"
        mount -t overlay none -o "lowerdir=$3,upperdir=$1/u,workdir=$1/w" "$1/m" || exit 77
        echo more >>"$1/m/secret"; touch "$1/m/closed"
        getfattr -d -m - "$1/u" "$1/u/secret" "$1/u/closed" 2>/dev/null | grep ^user.dwarfs || echo clean"#;
    let place = temp();
    let arguments = [mount.point().as_os_str()];
    let Some(output) = in_namespace(test, script, place.path(), &arguments) else {
        return;
    };
    if output.status.code() == Some(77) {
        return skip(test, "there is no overlay file system");
    }
    assert_eq!(stdout(&output), "clean\n", "{}", stderr(&output));
}

#[test]
fn the_mount_table_has_the_name_of_the_image() {
    let test = "the_mount_table_has_the_name_of_the_image";
    if !can_mount(test) {
        return;
    }
    let names: [&[u8]; 4] = [
        b"a,b\\c.dwarfs",
        b"a b.dwarfs",
        b"new\nline.dwarfs",
        b"x\\054,ro.d",
    ];
    let dir = temp();
    point_of_a_user(dir.path(), "mnt");
    // Where the image is in the table, `umount IMAGE` finds it, and `mount -a` does not mount it
    // again. With and without the helper program.
    let script = r#"
        for who in "user" ""; do
            $who "$2" "$3" "$1/mnt"
            [ "$(findmnt -n -o TARGET -S "$3")" = "$1/mnt" ] || { cat /proc/self/mounts; exit 90; }
            umount "$3"
            if grep " $1/mnt " /proc/self/mounts; then exit 91; fi
        done"#;
    for name in names {
        let image = dir.path().join(OsStr::from_bytes(name));
        fs::copy(golden("one").image, &image).expect("copy");
        let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
            return;
        };
        let (text, errors) = (stdout(&output), stderr(&output));
        assert!(output.status.success(), "{name:?}: {text}{errors}");
        fs::remove_dir(dir.path().join("dev")).expect("only the namespace has it");
    }
}
