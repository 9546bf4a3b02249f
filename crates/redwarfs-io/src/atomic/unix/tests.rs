//! Tests of output files.

use super::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn create(path: &Path, overwrite: Overwrite, unnamed: bool) -> io::Result<AtomicFile> {
    AtomicFile::create_inner(path, overwrite, None, unnamed)
}

#[test]
fn appears_complete_or_not_at_all() {
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = create(&path, Overwrite::No, unnamed).unwrap();
        file.write_all(b"data").unwrap();
        assert!(!path.exists());
        if unnamed && matches!(file.state, OutputState::Unnamed { .. }) {
            assert!(names(dir.path()).is_empty());
        }
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        assert_eq!(names(dir.path()), ["out"]);

        let other = dir.path().join("other");
        let mut file = create(&other, Overwrite::No, unnamed).unwrap();
        file.write_all(b"data").unwrap();
        drop(file);
        assert_eq!(names(dir.path()), ["out"]);
    }
}

#[test]
fn never_clobbers_without_permission() {
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = create(&path, Overwrite::No, unnamed).unwrap();
        file.write_all(b"late").unwrap();
        std::fs::write(&path, b"early").unwrap();
        let e = file.commit().unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"early");
        assert_eq!(names(dir.path()), ["out"]);
        let e = AtomicFile::create(&path, Overwrite::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert!(e.to_string().contains("out"), "{e}");
    }
}

#[test]
fn of_two_writers_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let files: Vec<_> = (0..4)
        .map(|i| {
            let mut f = create(&path, Overwrite::No, i % 2 == 0).unwrap();
            f.write_all(&[i; 10]).unwrap();
            f
        })
        .collect();
    let results: Vec<_> = files.into_iter().map(AtomicFile::commit).collect();
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn overwriting_keeps_the_old_file_until_the_end() {
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, b"old").unwrap();
        let mut file = create(&path, Overwrite::Yes, unnamed).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["out"]);
        let mut file = create(&path, Overwrite::Yes, unnamed).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["out"]);
    }
}

#[test]
fn copies_when_linking_is_impossible() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let mut file = create(&path, Overwrite::No, true).unwrap();
    if !matches!(file.state, OutputState::Unnamed { .. }) {
        eprintln!("note: no unnamed files here, nothing to test");
        return;
    }
    file.write_all(b"data").unwrap();
    file.copy_to_hidden().unwrap();
    file.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn mode_follows_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    File::create(&plain).unwrap();
    let expected = std::fs::metadata(&plain).unwrap().mode();
    for unnamed in [true, false] {
        let path = dir.path().join(format!("out-{unnamed}"));
        create(&path, Overwrite::No, unnamed)
            .unwrap()
            .commit()
            .unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode(), expected);
    }
}

#[test]
fn links_are_followed_when_overwriting() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let link = dir.path().join("link");
    symlink("sub/real", &link).unwrap();
    for content in ["first", "second"] {
        let mut file = AtomicFile::create(&link, Overwrite::Yes).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read_to_string(&link).unwrap(), content);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    let e = AtomicFile::create(&link, Overwrite::No).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
    let a = dir.path().join("a");
    symlink("a", &a).unwrap();
    assert!(AtomicFile::create(&a, Overwrite::Yes).is_err());
}

#[test]
fn special_files_are_written_in_place() {
    let mut file = AtomicFile::create("/dev/null", Overwrite::Yes).unwrap();
    file.write_all(b"data").unwrap();
    file.commit().unwrap();
    let meta = std::fs::metadata("/dev/null").unwrap();
    assert!(meta.file_type().is_char_device());
    assert!(AtomicFile::create("/dev/null", Overwrite::No).is_ok());

    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, MODE, 0).unwrap();
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || std::fs::read(fifo).unwrap())
    };
    let mut file = AtomicFile::create(&fifo, Overwrite::Yes).unwrap();
    file.write_all(b"through the pipe").unwrap();
    file.commit().unwrap();
    assert_eq!(reader.join().unwrap(), b"through the pipe");
    assert!(std::fs::metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn errors_name_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let e = AtomicFile::create(dir.path(), Overwrite::Yes).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::IsADirectory);
    let e = AtomicFile::create(dir.path().join("no/such"), Overwrite::No).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::NotFound);
    assert!(e.to_string().contains("no/such"), "{e}");
    let long = dir.path().join("n".repeat(250));
    let mut file = create(&long, Overwrite::Yes, true).unwrap();
    file.write_all(b"data").unwrap();
    file.commit().unwrap();
    assert_eq!(std::fs::read(&long).unwrap(), b"data");
}

/// The value of an ACL that lets user 1234 write and the owning group do nothing.
fn acl() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x01_u16, 6_u16, u32::MAX),
        (0x02, 6, 1234),
        (0x04, 0, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn replace(path: &Path, unnamed: bool) -> Option<Notice> {
    let mut file = create(path, Overwrite::Yes, unnamed).unwrap();
    file.write_all(b"new").unwrap();
    let notice = file.notice();
    file.commit().unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"new");
    notice
}

#[test]
fn replacing_keeps_permissions_and_owner() {
    use std::os::unix::fs::{PermissionsExt, chown};
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for (mode, kept) in [
            (0o600, 0o600),
            (0o755, 0o755),
            (0o666, 0o666),
            (0o4711, 0o711),
            (0o444, 0o444),
        ] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let owned = chown(&path, Some(1234), Some(2345)).is_ok();
            assert_eq!(replace(&path, unnamed), None);
            assert_eq!(mode_of(&path), kept, "{mode:o}");
            if owned {
                let meta = std::fs::metadata(&path).unwrap();
                assert_eq!((meta.uid(), meta.gid()), (1234, 2345));
            }
            std::fs::remove_file(&path).unwrap();
        }
        // The hidden file must not be open to more users than the old one while it is written.
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = create(&path, Overwrite::Yes, unnamed).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o7777, 0o600);
    }
}

#[test]
fn replacing_keeps_access_lists_and_adds_none() {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, name: &str| {
        rustix::fs::setxattr(path, name, &acl(), rustix::fs::XattrFlags::empty()).is_ok()
    };
    let get = |path: &Path| {
        let mut value = [0; 256];
        rustix::fs::getxattr(path, "system.posix_acl_access", &mut value[..])
            .map(|length| value[..length].to_vec())
            .ok()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, "old").unwrap();
    if !set(&path, "system.posix_acl_access") {
        eprintln!("SKIPPED: no ACLs in {}", dir.path().display());
        return;
    }
    for unnamed in [true, false] {
        assert_eq!(replace(&path, unnamed), None);
        assert_eq!(get(&path), Some(acl()));
        assert_eq!(mode_of(&path), 0o660);
    }
    // What the directory gives to new files is no reason to let in more than before.
    assert!(set(dir.path(), "system.posix_acl_default"));
    let plain = dir.path().join("plain");
    for unnamed in [true, false] {
        std::fs::write(&plain, "old").unwrap();
        rustix::fs::removexattr(&plain, "system.posix_acl_access").unwrap();
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(replace(&plain, unnamed), None);
        assert_eq!((get(&plain), mode_of(&plain)), (None, 0o640));
    }
}

#[test]
fn what_cannot_be_replaced_is_overwritten_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("out"), dir.path().join("other"));
    std::fs::write(&path, "hidden").unwrap();
    std::fs::write(&other, "a longer old content").unwrap();
    let mounted = rustix::mount::mount_bind(&other, &path).is_ok();
    if !mounted {
        eprintln!("SKIPPED: bind mounts need root");
        return;
    }
    let mut file = AtomicFile::create(&path, Overwrite::Yes).unwrap();
    let notice = file.notice();
    file.write_all(b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"a longer old content");
    drop(file);
    let given_up = std::fs::read(&path).unwrap();
    let mut file = AtomicFile::create(&path, Overwrite::Yes).unwrap();
    file.write_all(b"new").unwrap();
    let source = file.written().unwrap().unwrap();
    let committed = file.commit();
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    committed.unwrap();
    assert_eq!(crate::Source::len(&source).unwrap(), 3);
    assert_eq!(notice, Some(Notice::InPlace("it is a mount point")));
    assert_eq!(given_up, b"a longer old content");
    assert_eq!(std::fs::read(&other).unwrap(), b"new");
    assert_eq!(std::fs::read(&path).unwrap(), b"hidden");
    assert_eq!(names(dir.path()), ["other", "out"]);
}

#[test]
fn what_can_neither_be_replaced_nor_written_is_an_error_at_once() {
    use rustix::fs::IFlags;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, "old").unwrap();
    let file = File::open(&path).unwrap();
    for (flag, why) in [
        (IFlags::IMMUTABLE, "it is immutable (see lsattr)"),
        (IFlags::APPEND, "it is append-only (see lsattr)"),
    ] {
        if rustix::fs::ioctl_setflags(&file, flag).is_err() {
            eprintln!("SKIPPED: file flags need root and a file system that has them");
            return;
        }
        let done = AtomicFile::create(&path, Overwrite::Yes).map(|_| ());
        rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
        let text = done.unwrap_err().to_string();
        assert!(
            text.ends_with(&format!("out: cannot be replaced, because {why}")),
            "{text}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn what_is_no_regular_file_needs_no_permission() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, MODE, 0).unwrap();
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || std::fs::read(fifo).unwrap())
    };
    let mut file = AtomicFile::create(&fifo, Overwrite::No).unwrap();
    assert_eq!(file.notice(), Some(Notice::Stream("a pipe")));
    assert!(file.written().unwrap().is_none());
    file.write_all(b"through").unwrap();
    file.commit().unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    let file = AtomicFile::create("/dev/null", Overwrite::No).unwrap();
    assert_eq!(file.notice(), Some(Notice::Stream("a device")));
}

#[test]
fn temporary_files_have_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = super::temporary_file(dir.path()).unwrap();
    file.write_all(b"words").unwrap();
    assert!(names(dir.path()).is_empty());
    let mut found = [0; 5];
    crate::os::read_exact_at(&file, 0, &mut found).unwrap();
    assert_eq!(&found, b"words");
    assert!(super::temporary_file(&dir.path().join("none")).is_err());
    let shared = std::path::Path::new("/dev/shm");
    if cfg!(target_os = "linux") && shared.is_dir() {
        assert!(super::is_in_memory(&super::temporary_file(shared).unwrap()));
        let proc = std::fs::File::open("/proc/self/status").unwrap();
        assert!(!super::is_in_memory(&proc));
    }
}
