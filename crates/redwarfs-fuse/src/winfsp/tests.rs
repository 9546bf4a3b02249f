//! A fake of WinFsp sends requests to mounts of small images.
// A part of this file is unused: real mounts need it.
#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/support/maker.rs"]
mod maker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};

use redwarfs_format::frozen::FrozenBytes;
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::{Image, OpenOptions};

use crate::options::{Access, MountOptions};
use crate::winfsp::binding::abi::{FileInfo, flag};
use crate::winfsp::binding::fake::{self, Requests};
use crate::winfsp::error::Error;
use crate::winfsp::mount::{Mounted, mount_with};
use crate::winfsp::reparse::tests::parse_symlink;
use crate::winfsp::security::Sid;
use crate::winfsp::status::Status;
use maker::{FilePart, Maker};

/// To read the data of a file, and its attributes.
const READ: u32 = 0x0012_0089;
/// To read only attributes.
const LOOK: u32 = 0x0080;

const DIRECTORY: u32 = 0x10;
const NORMAL: u32 = 0x80;
const LINK: u32 = 0x400;

fn image(maker: &Maker) -> Image {
    open(maker.image().0)
}

fn open(bytes: Vec<u8>) -> Image {
    let source = Arc::new(MemorySource::new(bytes));
    Image::from_source(source, &OpenOptions::default()).unwrap()
}

fn account() -> Sid {
    Sid::from_bytes(&[1, 1, 0, 0, 0, 0, 0, 5, 99, 0, 0, 0]).unwrap()
}

fn mount_on(image: Image, point: &str, options: &MountOptions) -> Result<Mounted, Error> {
    mount_with(
        fake::functions(),
        image,
        Path::new(point),
        options,
        account(),
    )
}

fn mounted(maker: &Maker, options: &MountOptions) -> (Mounted, Requests) {
    let mounted = mount_on(image(maker), "x:", options).unwrap();
    (mounted, Requests::new())
}

fn names(list: &[(String, FileInfo)]) -> Vec<&str> {
    list.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_volume_is_described() {
    let options = MountOptions {
        source: "Ph\u{f6}tos \u{1f600} and a label that is too long".into(),
        subtype: "a type that is too long".into(),
        ..MountOptions::default()
    };
    let mut maker = Maker::new();
    maker.file("a", vec![1; 5000]);
    let (mount, requests) = mounted(&maker, &options);
    assert_eq!((mount.point(), requests.point()), ("X:", Some("X:")));
    assert_eq!(requests.device(), "WinFsp.Disk");
    let params = requests.params();
    assert_eq!(params.version, 504);
    assert_eq!(
        (params.sector_size, params.sectors_per_allocation_unit),
        (512, 8)
    );
    assert_eq!(
        (params.max_component_length, params.file_info_timeout),
        (255, u32::MAX)
    );
    let wanted = flag::CASE_SENSITIVE_SEARCH
        | flag::CASE_PRESERVED_NAMES
        | flag::UNICODE_ON_DISK
        | flag::PERSISTENT_ACLS
        | flag::REPARSE_POINTS
        | flag::READ_ONLY_VOLUME
        | flag::POST_CLEANUP_WHEN_MODIFIED_ONLY
        | flag::UM_FILE_CONTEXT_IS_USER_CONTEXT2;
    assert_eq!(params.flags, wanted);
    let name = String::from_utf16(&params.file_system_name).unwrap();
    assert_eq!(name, "a type that is \0");
    assert_eq!((params.prefix, params.flags2), ([0; 192], 0));
    let info = requests.volume_info();
    assert_eq!((info.total_size, info.free_size), (8192, 0));
    let label = &info.label[..usize::from(info.label_length) / 2];
    let label = String::from_utf16(label).unwrap();
    assert_eq!(label, "Ph\u{f6}tos \u{1f600} and a label that is to");

    // The same image has the same number, and another one most likely another.
    let serial = params.volume_serial_number;
    drop(mount);
    let (mount, requests) = mounted(&maker, &MountOptions::default());
    assert_eq!(requests.params().volume_serial_number, serial);
    drop(mount);
    maker.file("b", "more");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    assert_ne!(requests.params().volume_serial_number, serial);
}

#[test]
fn files_are_opened_and_read() {
    let contents: Vec<u8> = (0..200_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let pieces: Vec<FilePart> = contents
        .chunks(60_000)
        .map(|part| FilePart::Data(part.to_vec()))
        .collect();
    let mut maker = Maker::new();
    maker
        .dir("dir")
        .pieces("dir/large", &pieces)
        .file("dir/empty", "")
        .file_with_mode("ro", "x", 0o444);
    maker.pieces(
        "sparse",
        &[
            FilePart::Data(vec![1; 10]),
            FilePart::Hole(1 << 20),
            FilePart::Data(vec![2; 10]),
        ],
    );
    let (mount, requests) = mounted(&maker, &MountOptions::default());
    assert!(!mount.is_in_use());

    let (file, info) = requests.open("\\dir\\large", READ).unwrap();
    assert!(mount.is_in_use());
    assert_eq!((info.attributes, info.file_size), (NORMAL, 200_000));
    assert_eq!((info.allocation_size, info.reparse_tag), (200_704, 0));
    assert_eq!(file.read(0, 200_001), Ok(contents.clone()));
    assert_eq!(file.read(59_990, 20), Ok(contents[59_990..60_010].to_vec()));
    assert_eq!(file.read(199_990, 1000), Ok(contents[199_990..].to_vec()));
    assert_eq!(file.read(5, 0), Ok(vec![]));
    for offset in [200_000, 200_001, 1 << 40, u64::MAX] {
        assert_eq!(file.read(offset, 1), Err(Status::END_OF_FILE), "{offset}");
    }
    drop(file);
    assert!(!mount.is_in_use());

    let (empty, info) = requests.open("\\dir\\empty", READ).unwrap();
    assert_eq!((info.file_size, info.allocation_size), (0, 0));
    assert_eq!(empty.read(0, 1), Err(Status::END_OF_FILE));
    let (sparse, info) = requests.open("\\sparse", READ).unwrap();
    assert_eq!(info.file_size, (1 << 20) + 20);
    let wanted = [vec![1; 10], vec![0; 1 << 20], vec![2; 10]].concat();
    assert_eq!(sparse.read(0, 2 << 20), Ok(wanted));
    assert_eq!(requests.open("\\ro", READ).unwrap().1.attributes, 1);
    for root in ["\\", ""] {
        let (dir, info) = requests.open(root, READ).unwrap();
        assert_eq!(
            (info.attributes, info.index_number, info.file_size),
            (DIRECTORY, 1, 0)
        );
        assert_eq!(dir.read(0, 1), Err(Status::INVALID_DEVICE_REQUEST));
    }
    drop((empty, sparse));
    assert!(!mount.is_in_use());
    let statistics = mount.observer().statistics();
    for line in ["files and directories opened: 6", "blocks created: "] {
        assert!(statistics.contains(line), "{statistics}");
    }
}

#[test]
fn paths_that_lead_nowhere() {
    let mut maker = Maker::new();
    maker
        .dir("dir")
        .file("dir/file", "x")
        .link("link", "dir")
        .fifo("fifo");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    for (path, status) in [
        ("\\none", Status::OBJECT_NAME_NOT_FOUND),
        ("\\DIR", Status::OBJECT_NAME_NOT_FOUND),
        ("\\dir\\none", Status::OBJECT_NAME_NOT_FOUND),
        ("\\none\\file", Status::OBJECT_PATH_NOT_FOUND),
        ("\\dir\\file\\x", Status::OBJECT_PATH_NOT_FOUND),
        ("\\fifo\\x", Status::OBJECT_PATH_NOT_FOUND),
        ("\\link\\file", Status::REPARSE),
        ("\\link\\none", Status::REPARSE),
        ("\\dir\\..", Status::OBJECT_NAME_NOT_FOUND),
        ("\\.", Status::OBJECT_NAME_NOT_FOUND),
    ] {
        assert_eq!(requests.security(path).unwrap_err(), status, "{path}");
        // Whoever opens a path has followed its links before.
        let opened = match status {
            Status::REPARSE => Status::OBJECT_PATH_NOT_FOUND,
            other => other,
        };
        assert_eq!(requests.open(path, READ).err(), Some(opened), "{path}");
    }
    for context in [0, 1 << 32, 0x00ff_ffff, usize::MAX] {
        let status = requests.info_of_nothing(context);
        assert!(status.check().is_err(), "{context:#x} {status}");
    }
    assert_eq!(requests.info_of_nothing(0), Status::INVALID_HANDLE);
}

#[test]
fn directories_are_listed_in_parts_of_any_size() {
    let mut maker = Maker::new();
    maker
        .dir("dir")
        .dir("dir/sub")
        .link("dir/to-sub", "sub")
        .link("dir/to-none", "none");
    for number in 0..300 {
        maker.file(format!("dir/file{number:03}"), "x".repeat(number));
    }
    maker
        .file(format!("dir/{}", "n".repeat(255)), "")
        .file(format!("dir/{}", "o".repeat(256)), "");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    let (dir, _) = requests.open("\\dir", READ).unwrap();
    let all = dir.list(1 << 17).unwrap();
    let mut wanted: Vec<String> = (0..300).map(|number| format!("file{number:03}")).collect();
    // The name with 256 units cannot be shown.
    wanted.extend([
        "n".repeat(255),
        "sub".into(),
        "to-none".into(),
        "to-sub".into(),
    ]);
    let wanted = [vec![".".into(), "..".into()], wanted].concat();
    assert_eq!(names(&all), wanted);
    // The smallest buffer holds one entry with the longest name.
    for room in [616, 800, 1000, 4096, 16 << 10] {
        assert_eq!(dir.list(room).unwrap(), all, "{room}");
    }
    for (name, info) in &all[2..] {
        let (_file, opened) = requests.open(&format!("\\dir\\{name}"), LOOK).unwrap();
        assert_eq!(*info, opened, "{name}");
    }
    let info = |name: &str| all.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(info("."), dir.info().unwrap());
    assert_eq!(info("..").index_number, 1);
    assert_eq!(info("file123").file_size, 123);
    assert_eq!(info("to-sub").attributes, LINK | DIRECTORY);
    assert_eq!(info("to-none").attributes, LINK);

    assert_eq!(
        dir.names_after("file297").unwrap()[..2],
        ["file298", "file299"]
    );
    assert_eq!(dir.names_after(".").unwrap()[..2], ["..", "file000"]);
    assert_eq!(dir.names_after("..").unwrap()[0], "file000");
    assert!(dir.names_after("to-sub").unwrap().is_empty());
    assert_eq!(dir.names_after("file"), Err(Status::OBJECT_NAME_NOT_FOUND));
    let (root, _) = requests.open("\\", READ).unwrap();
    assert_eq!(names(&root.list(4096).unwrap()), ["dir"]);
    let (file, _) = requests.open("\\dir\\file001", READ).unwrap();
    assert_eq!(file.list(4096), Err(Status::NOT_A_DIRECTORY));
    let (empty, _) = requests.open("\\dir\\sub", READ).unwrap();
    assert_eq!(names(&empty.list(4096).unwrap()), [".", ".."]);
}

#[test]
fn names_that_windows_refuses_are_found_under_others() {
    let mut maker = Maker::new();
    for name in [
        &b"a:b"[..],
        b"what?",
        b"end.",
        b"bad\xff",
        b"mixed\xef\x80\xba:",
        "plain\u{e4}".as_bytes(),
    ] {
        maker.file(name, name);
    }
    maker.dir("d:").file("d:/x*", "deep");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    let (root, _) = requests.open("\\", READ).unwrap();
    let all = root.list(4096).unwrap();
    let shown = [
        "a\u{f03a}b",
        "bad\u{f0ff}",
        "d\u{f03a}",
        "end\u{f02e}",
        "mixed\u{f03a}\u{f03a}",
        "plain\u{e4}",
        "what\u{f03f}",
    ];
    assert_eq!(names(&all), shown);
    assert_eq!(root.list(616).unwrap(), all);
    for (name, info) in all {
        let (file, opened) = requests.open(&format!("\\{name}"), READ).unwrap();
        assert_eq!(opened, info);
        if info.attributes != DIRECTORY {
            assert_eq!(file.read(0, 100).unwrap().len() as u64, info.file_size);
        }
    }
    let (file, _) = requests.open("\\d\u{f03a}\\x\u{f02a}", READ).unwrap();
    assert_eq!(file.read(0, 100).unwrap(), b"deep");
    assert_eq!(
        requests.open("\\a\u{f03b}b", READ).err(),
        Some(Status::OBJECT_NAME_NOT_FOUND)
    );
}

#[test]
#[cfg(feature = "case-insensitive")]
fn letter_case_is_ignored_on_request() {
    let mut maker = Maker::new();
    maker
        .dir("Dir")
        .file("Dir/ReadMe", "1")
        .file("both", "lower")
        .file("Both", "upper")
        .link("l", "DIR");
    let options = MountOptions {
        case_insensitive: true,
        ..MountOptions::default()
    };
    let (_mount, requests) = mounted(&maker, &options);
    assert_eq!(requests.params().flags & flag::CASE_SENSITIVE_SEARCH, 0);
    let read = |path: &str| {
        let (file, _) = requests.open(path, READ)?;
        file.read(0, 100)
    };
    assert_eq!(read("\\DIR\\README"), Ok(b"1".to_vec()));
    assert_eq!(read("\\both"), Ok(b"lower".to_vec()));
    assert_eq!(read("\\Both"), Ok(b"upper".to_vec()));
    assert_eq!(read("\\BOTH"), Ok(b"lower".to_vec()));
    assert_eq!(
        requests.open("\\l", LOOK).unwrap().1.attributes,
        LINK | DIRECTORY
    );
    // A listing goes on after exactly the name that it gave.
    let (root, _) = requests.open("\\", READ).unwrap();
    assert_eq!(
        names(&root.list(616).unwrap()),
        ["Both", "Dir", "both", "l"]
    );
}

#[test]
fn links_are_reparse_points() {
    let mut maker = Maker::new();
    maker.dir("dir").dir("dir/sub").file("dir/file", "contents");
    for (name, target) in [
        ("to-file", "dir/file"),
        ("to-dir", "dir"),
        ("dir/up", ".."),
        ("dir/absolute", "/dir/sub/"),
        ("chain", "to-dir/up/dir/absolute"),
        ("loop", "loop"),
        ("loop2", "loop2/x"),
        ("outside", "../../.."),
        ("network", "//server/share"),
        ("drive", "C:/Windows"),
        ("through-file", "dir/file/.."),
        ("dangling", "dir/none"),
    ] {
        maker.link(name, target);
    }
    maker.fifo("fifo");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    for (name, target, leads_to_directory) in [
        ("to-file", r"dir\file", false),
        ("to-dir", "dir", true),
        (r"dir\up", "..", true),
        (r"dir\absolute", r"\dir\sub", true),
        ("chain", r"to-dir\up\dir\absolute", true),
        ("loop", "loop", false),
        ("loop2", r"loop2\x", false),
        // The parent of the root is the root.
        ("outside", r"..\..\..", true),
        ("network", r"\server\share", false),
        ("drive", r"\??\C:\Windows", false),
        ("through-file", r"dir\file\..", false),
        ("dangling", r"dir\none", false),
    ] {
        let (link, info) = requests.open(&format!("\\{name}"), LOOK).unwrap();
        let directory = if leads_to_directory { DIRECTORY } else { 0 };
        assert_eq!(info.attributes, LINK | directory, "{name}");
        assert_eq!((info.reparse_tag, info.file_size), (0xa000_000c, 0));
        assert_eq!(
            requests.security(&format!("\\{name}")).unwrap().0,
            info.attributes
        );
        let (data, too_small) = link.reparse_point().unwrap();
        assert_eq!(parse_symlink(&data).0, target, "{name}");
        assert_eq!(too_small, Status::BUFFER_TOO_SMALL);
        assert_eq!(link.read(0, 10), Err(Status::INVALID_DEVICE_REQUEST));
    }
    let (fifo, info) = requests.open("\\fifo", LOOK).unwrap();
    assert_eq!((info.attributes, info.reparse_tag), (LINK, 0x8000_0014));
    assert_eq!(fifo.reparse_point().unwrap().0[8..], *b"FIFO\0\0\0\0");
    let (file, _) = requests.open("\\dir\\file", LOOK).unwrap();
    assert_eq!(file.reparse_point(), Err(Status::NOT_A_REPARSE_POINT));

    assert_eq!(
        requests.security("\\to-dir\\file").err(),
        Some(Status::REPARSE)
    );
    for (path, last, resolved) in [
        ("\\to-dir\\file", true, r"\dir\file"),
        ("\\to-dir\\file", false, r"\dir\file"),
        ("\\to-file", true, r"\dir\file"),
        ("\\dir\\absolute\\x", true, r"\dir\sub\x"),
        ("\\dir\\up\\to-file", false, r"\dir\..\to-file"),
    ] {
        assert_eq!(
            requests.resolve(path, last).as_deref(),
            Ok(resolved),
            "{path}"
        );
    }
    assert_eq!(
        requests.resolve("\\to-file", false),
        Err(Status::OBJECT_NAME_NOT_FOUND)
    );
}

#[test]
fn descriptors_come_by_name_and_by_handle() {
    let mut maker = Maker::new();
    maker.file_with_mode("private", "x", 0o600).dir("dir");
    for (access, checks) in [(Access::Owner, None), (Access::Everyone, Some(true))] {
        let options = MountOptions {
            access,
            default_permissions: checks,
            uid: Some(1234),
            ..MountOptions::default()
        };
        let (_mount, requests) = mounted(&maker, &options);
        for path in ["\\private", "\\dir", "\\"] {
            let (_, descriptor) = requests.security(path).unwrap();
            let (file, _) = requests.open(path, LOOK).unwrap();
            assert_eq!(file.security().as_ref(), Ok(&descriptor), "{path}");
            // The owner follows the head: S-1-22-1-1234.
            assert_eq!(
                descriptor[20..36],
                [1, 2, 0, 0, 0, 0, 0, 22, 1, 0, 0, 0, 0xd2, 4, 0, 0]
            );
        }
        let private = requests.security("\\private").unwrap().1;
        let public = requests.security("\\dir").unwrap().1;
        assert_eq!(private == public, checks.is_none());
    }
}

#[test]
fn nothing_can_be_changed() {
    let mut maker = Maker::new();
    maker.file("file", "x");
    let (_mount, requests) = mounted(&maker, &MountOptions::default());
    let (file, _) = requests.open("\\file", READ).unwrap();
    let answers = requests.changes(&file);
    assert_eq!(answers, vec![Status::MEDIA_WRITE_PROTECTED.0; 11]);
    // Writing, appending, attributes, deleting, owner.
    for right in [0x2, 0x4, 0x100, 0x10000, 0x80000] {
        let refused = requests.open("\\file", READ | right).err();
        assert_eq!(refused, Some(Status::MEDIA_WRITE_PROTECTED), "{right:#x}");
    }
    assert_eq!(file.read(0, 10), Ok(b"x".to_vec()));
}

#[test]
fn damage_fails_the_reads_that_need_it() {
    let mut maker = Maker::new();
    maker.file("a", vec![1; 60_000]).file("b", vec![2; 60_000]);
    let (mut bytes, starts) = maker.image();
    bytes[starts[1] + 100] ^= 1;
    let _mount = mount_on(open(bytes), "x:", &MountOptions::default()).unwrap();
    let requests = Requests::new();
    let (good, _) = requests.open("\\a", READ).unwrap();
    assert_eq!(good.read(0, 60_000), Ok(vec![1; 60_000]));
    let (bad, _) = requests.open("\\b", READ).unwrap();
    assert_eq!(bad.read(0, 60_000), Err(Status::DATA_ERROR));
    assert_eq!(good.read(0, 10), Ok(vec![1; 10]));
}

#[test]
fn opened_files_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record");
    let mut maker = Maker::new();
    maker
        .dir("d")
        .file("d/one", "1")
        .file("two", "2")
        .file("looked-at", "3");
    let options = MountOptions {
        analysis_file: Some(record.clone()),
        ..MountOptions::default()
    };
    let (mount, requests) = mounted(&maker, &options);
    for (path, rights) in [
        ("\\two", READ),
        ("\\looked-at", LOOK),
        ("\\d\\one", READ),
        ("\\two", READ),
    ] {
        requests.open(path, rights).unwrap();
    }
    drop(mount);
    assert_eq!(fs::read_to_string(record).unwrap(), "two\nd/one\n");
    let options = MountOptions {
        analysis_file: Some(dir.path().join("none").join("record")),
        ..MountOptions::default()
    };
    let error = mount_on(image(&maker), "x:", &options)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot create analysis file"), "{error}");
}

#[test]
fn a_mount_ends_and_can_be_idle() {
    let maker = Maker::new();
    let options = MountOptions {
        idle: Some(Duration::ZERO),
        keep_cache: false,
        ..MountOptions::default()
    };
    let (mount, requests) = mounted(&maker, &options);
    assert_eq!(requests.params().file_info_timeout, 1000);
    let mut idle = mount.idle_watch().unwrap();
    requests.security("\\").unwrap();
    // A use begins the time anew.
    assert!(!idle.is_over());
    std::thread::sleep(Duration::from_millis(1100));
    assert!(idle.is_over());
    requests.stop(true);
    assert!(!mount.has_ended());
    requests.stop(false);
    assert!(mount.has_ended());
    drop(mount);
    assert!(!fake::is_there());
    let (mount, _requests) = mounted(&maker, &MountOptions::default());
    assert!(mount.idle_watch().is_none());
}

#[test]
fn refusals_leave_nothing() {
    let maker = Maker::new();
    let mount = |point: &str| mount_on(image(&maker), point, &MountOptions::default());
    fake::take(&["Z:", "Y:", "Q:"]);
    assert_eq!(mount("*").unwrap().point(), "X:");
    let error = mount("q:\\").unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot mount: Q:: it is in use already (NTSTATUS 0xc0000035)"
    );
    assert!(!fake::is_there());
    let all: Vec<String> = ('D'..='Z').map(|letter| format!("{letter}:")).collect();
    fake::take(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        mount("*")
            .unwrap_err()
            .to_string()
            .starts_with("cannot mount: *:")
    );
    fake::take(&[]);
    fake::refuse(Status::NO_SUCH_DEVICE, Status::SUCCESS);
    let error = mount("x:").unwrap_err().to_string();
    assert!(error.starts_with("cannot make a file system: the driver of WinFsp does not run"));
    fake::refuse(Status::SUCCESS, Status::INSUFFICIENT_RESOURCES);
    let error = mount("x:").unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot start the threads of WinFsp: NTSTATUS 0xc000009a"
    );
    assert!(!fake::is_there());
    fake::refuse(Status::SUCCESS, Status::SUCCESS);
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().join("mnt");
    let mounted = mount(point.to_str().unwrap()).unwrap();
    assert_eq!(Path::new(mounted.point()), point);
}

#[test]
fn old_images_have_attributes_for_each_name() {
    let images = redwarfs_testkit::compat_images();
    let mut checked = 0;
    for golden in images {
        let image = Image::open(&golden.image, &OpenOptions::default()).unwrap();
        if !image.metadata().is_legacy() {
            continue;
        }
        checked += 1;
        let walk: Vec<_> = image.walk().map(Result::unwrap).collect();
        let _mount = mount_on(image.clone(), "x:", &MountOptions::default()).unwrap();
        let requests = Requests::new();
        for entry in walk.iter().filter(|entry| !entry.path.is_empty()) {
            let path = String::from_utf8(entry.path.clone())
                .unwrap()
                .replace('/', "\\");
            let (_file, info) = requests.open(&format!("\\{path}"), LOOK).unwrap();
            assert_eq!(info.index_number, u64::from(entry.inode.0) + 1, "{path}");
        }
    }
    assert!(checked > 0);
}

/// An image whose byte at one place can become unreadable.
#[derive(Debug)]
struct Failing {
    bytes: MemorySource,
    at: u64,
    fails: AtomicBool,
}

impl Source for Failing {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + buf.len() as u64;
        match self.fails.load(Ordering::Relaxed) && range.contains(&self.at) {
            true => Err(io::Error::other("the medium fails")),
            false => self.bytes.read_exact_at(offset, buf),
        }
    }
}

/// Windows would keep wrong attributes in its cache.
#[test]
fn a_link_whose_target_cannot_be_looked_up_has_no_attributes() {
    let mut maker = Maker::new();
    let name = |number: u32| format!("{number:04}-{}", "x".repeat(120));
    maker
        .dir("a")
        .link("a/link", "../big/zz")
        .file("a/file", "");
    maker.dir("big").dir("big/zz");
    for number in 0..9000 {
        maker.file(format!("big/{}", name(number)), "");
    }
    let bytes = maker.image().0;
    // A search for the last name of the directory reads this one.
    let middle = name(4500).into_bytes();
    let at = bytes.windows(middle.len()).position(|part| part == middle);
    let source = Arc::new(Failing {
        at: at.unwrap() as u64,
        bytes: MemorySource::new(bytes),
        fails: AtomicBool::new(false),
    });
    let mut open = OpenOptions::default();
    open.lazy_metadata = true;
    let image = Image::from_source(source.clone(), &open).unwrap();
    assert!(matches!(image.metadata().bytes(), FrozenBytes::Lazy(_)));
    let _mount = mount_on(image, "x:", &MountOptions::default()).unwrap();
    let requests = Requests::new();
    source.fails.store(true, Ordering::Relaxed);
    let failed = Some(Status::IO_DEVICE_ERROR);
    assert_eq!(requests.open("\\a\\link", LOOK).err(), failed);
    assert_eq!(requests.security("\\a\\link").err(), failed);
    let near = requests.open("\\a\\file", LOOK).unwrap();
    assert_eq!(near.1.attributes, NORMAL);
    source.fails.store(false, Ordering::Relaxed);
    let (_link, info) = requests.open("\\a\\link", LOOK).unwrap();
    assert_eq!(info.attributes, LINK | DIRECTORY);
}
