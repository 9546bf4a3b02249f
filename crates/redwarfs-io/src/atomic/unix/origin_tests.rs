//! Tests of output files that are made from other files.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use super::*;

struct TestDir {
    dir: tempfile::TempDir,
    /// What the system grants to a new file.
    granted: u32,
}

impl TestDir {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        File::create(&plain).unwrap();
        let granted = mode_of(&plain);
        Self { dir, granted }
    }

    fn file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn made(&self, origin: &Origin, unnamed: bool) -> std::fs::Metadata {
        let path = self.dir.path().join("made");
        let mut file =
            AtomicFile::create_inner(&path, Overwrite::No, Some(origin), unnamed).unwrap();
        // Before the first byte is written, and later.
        let first = rustix::fs::fstat(&file).unwrap().st_mode & 0o7777;
        if let OutputState::Hidden { temp, .. } = &file.state {
            assert_eq!(mode_of(&self.dir.path().join(temp)), first);
        }
        file.write_all(b"new").unwrap();
        if unnamed && matches!(file.state, OutputState::Unnamed { .. }) {
            file.copy_to_hidden().unwrap();
        }
        file.commit().unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o7777, first);
        std::fs::remove_file(&path).unwrap();
        found
    }
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_file_is_no_more_open_than_what_it_is_made_from() {
    let place = TestDir::new();
    for unnamed in [true, false] {
        for (mode, expected) in [
            (0o600, 0o600),
            (0o400, 0o600),
            (0o644, 0o644),
            (0o4755, 0o644),
            (0o444, 0o644),
        ] {
            let origin = Origin::of(place.file("image", mode)).unwrap();
            let found = place.made(&origin, unnamed).mode() & 0o7777;
            assert_eq!(
                found,
                expected & (place.granted | 0o600),
                "{mode:o} {unnamed}"
            );
        }
        // Rights of the group or of the others only, which a file with a name cannot have at first.
        for mode in [0o640, 0o604] {
            let origin = Origin::of(place.file("image", mode)).unwrap();
            let found = place.made(&origin, unnamed).mode() & 0o7777;
            let more = if unnamed { mode & place.granted } else { 0 };
            assert_eq!(found, 0o600 | more, "{mode:o} {unnamed}");
        }
    }
}

#[test]
fn owner_and_group_are_taken_if_that_is_possible() {
    let place = TestDir::new();
    let image = place.file("image", 0o640);
    if chown(&image, Some(1234), Some(2345)).is_err() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    for unnamed in [true, false] {
        let found = place.made(&Origin::of(&image).unwrap(), unnamed);
        assert_eq!((found.uid(), found.gid()), (1234, 2345));
        assert_eq!(found.mode() & 0o007, 0);
    }
    // Through a link, too.
    let link = place.dir.path().join("link");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let found = place.made(&Origin::of(&link).unwrap(), true);
    assert_eq!((found.uid(), found.mode() & 0o007), (1234, 0));
}

#[test]
fn of_several_files_the_narrowest_counts() {
    let place = TestDir::new();
    let origin = |name, mode| Origin::of(place.file(name, mode)).unwrap();
    let mode = |origin: &Origin| place.made(origin, true).mode() & 0o777;
    let both = origin("one", 0o644).and(&origin("other", 0o600));
    assert_eq!(mode(&both), 0o600);
    let both = origin("one", 0o644).and(&origin("other", 0o664));
    assert_eq!(mode(&both), 0o644 & place.granted);
    let private = place.file("private", 0o640);
    if chown(&private, Some(1234), Some(2345)).is_ok() {
        // Neither group may read both.
        let both = origin("one", 0o640).and(&Origin::of(&private).unwrap());
        let found = place.made(&both, true);
        assert_eq!(found.mode() & 0o777, 0o600);
        assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
        // Everybody may read it, except a group whose members are others for the new file.
        let shut = place.file("shut", 0o604);
        chown(&shut, Some(1234), Some(2345)).unwrap();
        let both = origin("three", 0o644).and(&Origin::of(&shut).unwrap());
        assert_eq!(place.made(&both, true).mode() & 0o777, 0o600);
    }
}

#[test]
fn access_lists_are_taken_or_narrowed() {
    let place = TestDir::new();
    let image = place.file("image", 0o644);
    let name = "system.posix_acl_access";
    // The others may read it, but not user 1234.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x01_u16, 6_u16, u32::MAX),
        (0x02, 0, 1234),
        (0x04, 4, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 4, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&image, name, &acl, flags).is_err() {
        eprintln!("SKIPPED: no ACLs in {}", place.dir.path().display());
        return;
    }
    let origin = Origin::of(&image).unwrap();
    for unnamed in [true, false] {
        let path = place.dir.path().join(format!("made-{unnamed}"));
        AtomicFile::create_inner(&path, Overwrite::No, Some(&origin), unnamed)
            .unwrap()
            .commit()
            .unwrap();
        let mut value = [0; 256];
        let length = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
        // The entry of the user, which is the second one.
        assert_eq!(value[12..20], acl[12..20], "{length}");
        assert_eq!(mode_of(&path) & !(0o644 & place.granted), 0);
    }
    // Together with another file, nobody but the owner is left.
    let both = Origin::of(place.file("other", 0o644)).unwrap().and(&origin);
    assert_eq!(place.made(&both, true).mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    let place = TestDir::new();
    let origin = Origin::of(place.file("image", 0o600)).unwrap();
    let old = place.file("old", 0o644);
    AtomicFile::create_from(&old, Overwrite::Yes, &origin)
        .unwrap()
        .commit()
        .unwrap();
    assert_eq!(mode_of(&old), 0o644);
}

#[test]
fn directories_can_be_entered_by_whoever_may_read() {
    let place = TestDir::new();
    for (mode, expected) in [(0o600, 0o700), (0o644, 0o755), (0o400, 0o700)] {
        let origin = Origin::of(place.file("image", mode)).unwrap();
        let path = place.dir.path().join(format!("dir-{mode:o}"));
        origin.create_dir(&path).unwrap();
        let granted = place.granted | (place.granted & 0o444) >> 2;
        assert_eq!(mode_of(&path), expected & granted, "{mode:o}");
        let again = origin.create_dir(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(again.to_string().contains("dir-"), "{again}");
    }
}
