//! Archives that ask for too much, and entries that no tree can have.

use std::io::Write as _;

use crate::common::{dir, entry, file, lines, pax, read, tar};
use redwarfs_archive::{Error, Format};
use redwarfs_writer::{Source, Symlinks, Tag};

fn error(bytes: &[u8], format: Format) -> String {
    let outcome = read(&[("", bytes)], |options| options.format = format);
    outcome.source.expect_err("an error").to_string()
}

#[test]
fn records_of_one_entry_have_a_limit() {
    let value = vec![b'v'; 9 << 20];
    let large = |key| pax(b'x', &[(key, &value)]);
    let one = tar(&[large("a"), file("x", b"")]);
    assert_eq!(lines(&read(&[("", &one)], |_| ()).source.unwrap()).len(), 1);
    let found = error(&tar(&[large("a"), large("b"), file("x", b"")]), Format::Tar);
    assert!(
        found.ends_with("the extended headers of an entry are too large"),
        "{found}"
    );
    // A record that takes the place of another one.
    let same = tar(&[large("a"), large("a"), file("x", b"")]);
    assert!(read(&[("", &same)], |_| ()).source.is_ok());
}

#[test]
fn one_entry_may_need_too_much_memory() {
    let value = vec![b'v'; 4 << 20];
    for kind in [b'x', b'g'] {
        let bytes = tar(&[
            pax(kind, &[("SCHILY.xattr.user.a", &value)]),
            file("x", b""),
        ]);
        let outcome = read(&[("", &bytes)], |options| {
            options.memory_limit = Some(1 << 20);
        });
        assert!(matches!(outcome.source, Err(Error::Memory { .. })));
        assert!(read(&[("", &bytes)], |_| ()).source.is_ok());
    }
}

#[test]
fn entries_wait_in_a_file_if_the_limit_is_low() {
    let all: Vec<_> = (0..2000).map(|i| file(&format!("dir/{i}"), b"x")).collect();
    let bytes = tar(&all);
    let usual = read(&[("", &bytes)], |_| ()).source.unwrap();
    let limit = Some(512 << 10);
    let limited = read(&[("", &bytes)], |options| options.memory_limit = limit);
    let limited = limited.source.unwrap();
    assert_eq!(lines(&limited), lines(&usual));
    assert!(limited.memory() < usual.memory() / 20);
    // Without a place for the file they stay where they are.
    let outcome = read(&[("", &bytes)], |options| {
        options.memory_limit = limit;
        options.spool = options.spool.join("none");
    });
    let [message] = &outcome.messages[..] else {
        panic!("{:?}", outcome.messages);
    };
    let says = "Warn: entries stay in memory: cannot write a temporary file in none: ";
    assert!(message.starts_with(says), "{message}");
    let stays = outcome.source.unwrap();
    assert_eq!(lines(&stays), lines(&usual));
    assert!(stays.memory() > usual.memory() / 2);
}

#[test]
fn files_are_opened_by_number_when_all_are_listed() {
    let mut all: Vec<_> = (0..2000)
        .map(|i| file(&format!("dir/{i}"), format!("number {i}").as_bytes()))
        .collect();
    all.push(entry("link", b'2', b"dir/7", b""));
    all.push(entry("hard", b'1', b"dir/8", b""));
    let bytes = tar(&all);
    let build = |source: &dyn Source| {
        let log = crate::common::Log::default();
        let mut image = Vec::new();
        let builder = redwarfs_writer::Builder::new(redwarfs_writer::BuildOptions::level(4));
        let running = std::sync::atomic::AtomicBool::new(false);
        builder.build(source, &mut image, &log, &running).unwrap();
        image
    };
    for symlinks in [Symlinks::Keep, Symlinks::Follow] {
        let open = |limit| {
            let outcome = read(&[("", &bytes)], |options| options.memory_limit = limit);
            outcome.source.unwrap().with_symlinks(symlinks)
        };
        let usual = open(None);
        assert!(!usual.numbers_files());
        let expected = build(&usual);
        for limit in [None, Some(512 << 10)] {
            let source = open(limit).for_one_build();
            assert!(source.numbers_files());
            assert!(build(&source) == expected, "{limit:?}");
            let source = open(limit).for_one_build();
            let items = source.read_dir(b"dir").unwrap();
            let before = source.memory();
            source.all_listed();
            let left = if limit.is_some() {
                before
            } else {
                before - 2000 * 16
            };
            assert!(source.memory() <= left);
            for item in items {
                let number = u32::try_from(item.meta.unwrap().identity.1).unwrap();
                let opened = source.open_number(number).unwrap();
                let mut text = [0; 32];
                let n = opened.read_at(0, &mut text).unwrap();
                let name = String::from_utf8(item.name).unwrap();
                assert_eq!(text[..n], *format!("number {name}").as_bytes());
            }
            assert!(source.open(b"dir/7").is_err());
            assert!(source.open_number(0).is_err());
            assert!(source.open_number(u32::MAX).is_err());
        }
    }
}

#[test]
fn a_listing_that_does_not_fit_the_memory_ends() {
    let mut all: Vec<_> = (0..9_000)
        .map(|i| file(&format!("dir/{i}"), b"x"))
        .collect();
    all.push(file(
        "dir/CACHEDIR.TAG",
        b"Signature: 8a477f597d28d172789f06886806bc55",
    ));
    let bytes = tar(&all);
    for limit in [None, Some(4 << 20)] {
        let made = || {
            let outcome = read(&[("", &bytes)], |options| options.memory_limit = limit);
            assert_eq!(outcome.entries_in_file, limit.is_some());
            outcome.source.unwrap()
        };
        let source = made();
        assert_eq!(source.read_dir(b"dir").unwrap().len(), 9_001);
        source.most_entries(9_000);
        let kind = source.read_dir(b"dir").unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::QuotaExceeded);
        source.most_entries(1);
        assert_eq!(source.read_dir(b"").unwrap().len(), 1);
        // The entries that nobody asks for do not count.
        let (listed, _) = made().with_list(["dir/8999".into(), "dir/17".into()]);
        listed.most_entries(2);
        let names = listed.read_dir(b"dir").unwrap().into_iter();
        let names: Vec<_> = names.map(|item| item.name).collect();
        assert_eq!(names, [&b"17"[..], b"8999"]);
        listed.most_entries(1);
        assert!(listed.read_dir(b"dir").is_err());
        let tagged = made().without_tagged(vec![Tag::Cache]);
        let kept = tagged.read_dir(b"dir").unwrap();
        assert_eq!((kept.len(), &kept[0].name[..]), (1, &b"CACHEDIR.TAG"[..]));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn files_in_memory_are_no_place_for_entries() {
    let all: Vec<_> = (0..2000).map(|i| file(&format!("dir/{i}"), b"x")).collect();
    let bytes = tar(&all);
    let shared = std::path::Path::new("/dev/shm");
    if !shared.is_dir() {
        eprintln!("skipped: there is no /dev/shm");
        return;
    }
    let outcome = read(&[("", &bytes)], |options| {
        options.memory_limit = Some(512 << 10);
        options.spool = shared.to_owned();
    });
    let usual = read(&[("", &bytes)], |_| ()).source.unwrap();
    let stays = outcome.source.unwrap();
    assert_eq!(lines(&stays), lines(&usual));
    assert!(stays.memory() > usual.memory() / 2);
}

/// Entries must not be missing in an image because of a file of our own.
#[cfg(target_os = "linux")]
#[test]
fn a_build_fails_if_the_file_with_the_entries_cannot_be_read() {
    let all: Vec<_> = (0..2000).map(|i| file(&format!("dir/{i}"), b"x")).collect();
    let bytes = tar(&all);
    let mut place = std::path::PathBuf::new();
    let outcome = read(&[("", &bytes)], |options| {
        options.memory_limit = Some(512 << 10);
        place.clone_from(&options.spool);
    });
    let source = outcome.source.unwrap();
    let build = || {
        let log = crate::common::Log::default();
        let mut image = Vec::new();
        let built = redwarfs_writer::Builder::new(redwarfs_writer::BuildOptions::default()).build(
            &source,
            &mut image,
            &log,
            &std::sync::atomic::AtomicBool::new(false),
        );
        built.map(|_| image)
    };
    assert!(build().is_ok());
    assert!(source.failure().is_none());
    let mut cut = 0;
    for descriptor in std::fs::read_dir("/proc/self/fd").unwrap() {
        let descriptor = descriptor.unwrap().path();
        if std::fs::read_link(&descriptor).is_ok_and(|to| to.starts_with(&place)) {
            let file = std::fs::OpenOptions::new().write(true).open(&descriptor);
            // The archive has a name.
            let file = file.unwrap();
            let link = std::fs::read_link(&descriptor).unwrap();
            if !link.to_string_lossy().contains(".archive") {
                file.set_len(10).unwrap();
                cut += 1;
            }
        }
    }
    assert_eq!(cut, 1);
    let error = build().unwrap_err();
    assert!(
        matches!(error, redwarfs_writer::Error::Source(_)),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("the temporary file of the entries: reading"),
        "{text}"
    );
    assert!(source.failure().is_some());
}

#[test]
fn global_records_hold_for_all_entries() {
    let filler = vec![b'v'; 8 << 20];
    let mut entries = vec![pax(
        b'g',
        &[
            ("comment", &filler),
            ("SCHILY.xattr.user.a", b"global"),
            ("SCHILY.xattr.user.b", b"global"),
        ],
    )];
    // Copies for each entry would have 40 GB together.
    for number in 0..5000 {
        entries.push(pax(b'x', &[("SCHILY.xattr.user.b", b"own")]));
        entries.push(file(&format!("{number}"), b""));
    }
    let source = read(&[("", &tar(&entries))], |_| ()).source.unwrap();
    let items = source.read_dir(b"").unwrap();
    assert_eq!(items.len(), 5000);
    for item in items {
        let extended = item.meta.unwrap().extended;
        let mut xattrs: Vec<_> = extended.xattrs().to_vec();
        xattrs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let values: Vec<_> = xattrs.iter().map(|xattr| &xattr.value[..]).collect();
        assert_eq!(values, [&b"global"[..], b"own"]);
    }
}

#[test]
fn names_of_attributes_have_a_limit() {
    let keys: Vec<String> = (0..30_000)
        .map(|number| format!("SCHILY.xattr.user.{number:05}"))
        .collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (&key[..], &b"1"[..])).collect();
    let bytes = tar(&[pax(b'x', &records), file("x", b"")]);
    let source = read(&[("", &bytes)], |_| ()).source.unwrap();
    let items = source.read_dir(b"").unwrap();
    let extended = &items[0].meta.as_ref().unwrap().extended;
    // Each has 10 bytes and an end.
    let fit = (64 << 10) / 11;
    assert_eq!(extended.xattrs().len(), fit);
    let first = format!("user.{fit:05}").into_bytes();
    assert_eq!(extended.unreadable(), [first, Vec::new()]);
}

#[test]
fn paths_have_a_longest_length() {
    let deep = "a/".repeat((8 << 20) - 64);
    let fits = [&"b".repeat(255)[..], "/", &"c/".repeat(1000), "file"].concat();
    let outcome = read(
        &[(
            "",
            &tar(&[
                pax(b'x', &[("path", deep.as_bytes())]),
                file("short", b""),
                pax(b'x', &[("path", &[b'p'; 256])]),
                file("short", b""),
                pax(b'x', &[("path", fits.as_bytes())]),
                file("short", b"1"),
                pax(b'x', &[("linkpath", deep.as_bytes())]),
                entry("link", b'1', b"short", b""),
                dir("last"),
            ]),
        )],
        |_| (),
    );
    assert_eq!((outcome.errors, outcome.messages.len()), (3, 3));
    let ends = [
        "a/...': its name is longer than 64 KiB",
        "ppp': a part of its name is longer than 255 bytes",
        "'link': the other name of this hard link is invalid",
    ];
    for (message, end) in outcome.messages.iter().zip(ends) {
        assert!(message.ends_with(end), "{message}");
        assert!(message.len() < 5000);
    }
    let lines = lines(&outcome.source.unwrap());
    assert_eq!(lines.len(), 1003);
    assert!(lines.iter().any(|line| line.starts_with(&fits)));
    assert!(lines.iter().any(|line| line.starts_with("last ")));
}

#[test]
fn what_follows_gzip_is_padding_or_counted() {
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let whole = tar(&[file("x", b"1"), file("y", b"2")]);
    let (first, second) = whole.split_at(700);
    let members = [gzip(first), gzip(second)].concat();
    for (more, messages) in [
        (vec![], vec![]),
        (vec![0; 1], vec![]),
        (vec![0; 10240], vec![]),
        (
            b"\0\0more\0".to_vec(),
            vec!["Warn: 0.archive: 6 bytes after the end of the archive are ignored"],
        ),
    ] {
        let outcome = read(&[("", &[&members[..], &more].concat())], |_| ());
        assert_eq!(outcome.messages, messages);
        assert_eq!(lines(&outcome.source.unwrap()).len(), 2);
    }
    // A member that is cut or damaged is no padding.
    let cut = &members[..members.len() - 3];
    assert!(error(cut, Format::Auto).contains("truncated"));
    let broken = [&members[..], b"\x1f\x8b\x09"].concat();
    assert!(read(&[("", &broken)], |_| ()).source.is_err());
    let mut sum = members.clone();
    let at = sum.len() - 6;
    sum[at] ^= 1;
    assert!(error(&sum, Format::Auto).contains("damaged"));
}

#[test]
fn what_follows_other_compressed_data_is_padding_or_counted() {
    let bzip2 = |bytes: &[u8]| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let lz4 = |bytes: &[u8]| {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| {
        let mut frame = vec![0; zstd_safe::compress_bound(bytes.len())];
        let size = zstd_safe::compress(&mut frame[..], bytes, 1).unwrap();
        frame.truncate(size);
        frame
    };
    let skipped = b"\x51\x2a\x4d\x18\x03\0\0\0abc";
    let whole = tar(&[file("x", b"1"), file("y", b"2")]);
    let (first, second) = whole.split_at(700);
    for (name, members) in [
        ("bzip2", [bzip2(first), bzip2(second)].concat()),
        (
            "lz4",
            [&lz4(first), &skipped[..], &lz4(second), skipped].concat(),
        ),
        (
            "zstd",
            [&zstd(first), &skipped[..], &zstd(second), skipped].concat(),
        ),
    ] {
        for (more, ignored) in [
            (vec![], None),
            (vec![0; 1], None),
            (vec![0; 3], None),
            (vec![0; 10240], None),
            (b"\0\0more\0".to_vec(), Some(6)),
            (b"more".to_vec(), Some(4)),
        ] {
            let outcome = read(&[("", &[&members[..], &more].concat())], |_| ());
            let said = ignored.map(|n| {
                format!("Warn: 0.archive: {n} bytes after the end of the archive are ignored")
            });
            assert_eq!(outcome.messages, Vec::from_iter(said), "{name} {more:?}");
            assert_eq!(lines(&outcome.source.unwrap()).len(), 2);
        }
        let cut = &members[..members.len() - skipped.len() - 3];
        assert!(read(&[("", cut)], |_| ()).source.is_err(), "{name}");
    }
}

#[test]
fn symlinks_need_a_target() {
    let bytes = tar(&[entry("link", b'2', b"", b""), file("x", b"")]);
    let outcome = read(&[("", &bytes)], |_| ());
    assert_eq!(outcome.errors, 1);
    assert_eq!(
        outcome.messages,
        ["Error: leaving out 'link': it is a symbolic link without a target"]
    );
    assert_eq!(lines(&outcome.source.unwrap()).len(), 1);
}

#[test]
fn stripped_entries_of_packages_are_named() {
    let found = error(b"07070X00000000\0\0", Format::Cpio);
    assert!(
        found.ends_with(
            ": unsupported: RPM packages with stripped entries (version 6, or files of 4 GiB)"
        ),
        "{found}"
    );
    assert!(error(b"07070Y00000000\0\0", Format::Cpio).contains("damaged"));
}

#[test]
fn only_tables_of_symbols_are_no_members() {
    let mut bytes = b"!<arch>\n".to_vec();
    for name in [
        "/",
        "/SYM64/",
        "__.SYMDEF",
        "__.SYMDEF SORTED",
        "__.SYMDEF_64",
        "__.SYMDEF.txt",
        "__.SYMDEFS/",
        "x/",
    ] {
        let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, 2);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(b"ab");
    }
    let lines = lines(&read(&[("", &bytes)], |_| ()).source.unwrap());
    let names = lines.iter().filter_map(|line| line.split(' ').next());
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["__.SYMDEF.txt", "__.SYMDEFS", "x"]);
}
