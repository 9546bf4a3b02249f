//! Archives of every odd kind, made by hand, and what becomes of each.

use crate::common::{BLOCK, Header, Outcome, dir, entry, file, lines, padded, pax, read, tar};
use redwarfs_archive::{Error, Format};
use redwarfs_writer::Source;

fn one(bytes: &[u8]) -> Outcome {
    read(&[("", bytes)], |_| ())
}

/// The tree of an archive without any message.
fn tree(entries: &[Vec<u8>]) -> Vec<String> {
    let outcome = one(&tar(entries));
    assert_eq!(outcome.messages, Vec::<String>::new());
    lines(&outcome.source.unwrap())
}

/// The tree and the messages.
fn both(entries: &[Vec<u8>]) -> (Vec<String>, Vec<String>) {
    let outcome = one(&tar(entries));
    let problems = outcome.messages.iter().filter(|m| m.starts_with("Error"));
    assert_eq!(problems.count() as u64, outcome.errors);
    (lines(&outcome.source.unwrap()), outcome.messages)
}

/// The error of an archive, without its name.
fn error(bytes: &[u8]) -> String {
    let error = one(bytes).source.expect_err("an error").to_string();
    let (_, error) = error.split_once("0.archive: ").unwrap();
    error.to_owned()
}

fn leaving_out(path: &str, why: &str) -> String {
    format!("Error: leaving out '{path}': {why}")
}

#[test]
fn names_stay_inside() {
    let (lines, messages) = both(&[
        file("/abs", b"a"),
        file("./dot/./x//y", b"b"),
        file("../up", b"c"),
        file("a/../../up", b"d"),
        file("", b"e"),
        file("slash/", b"f"),
        entry("/", b'2', b"to", b""),
        entry("..", b'5', b"", b""),
        pax(b'x', &[("path", b"nul\0inside")]),
        file("short", b"g"),
        file("line\nend/..", b""),
    ]);
    assert_eq!(
        lines,
        [
            "abs Regular 644 1:2 3.000000000 1:a",
            "dot Directory 755 0:0 3.000000000",
            "dot/x Directory 755 0:0 3.000000000",
            "dot/x/y Regular 644 1:2 3.000000000 1:b",
            "slash Directory 644 1:2 3.000000000",
        ]
    );
    let dots = "its name contains '..'";
    assert_eq!(
        messages,
        [
            leaving_out("../up", dots),
            leaving_out("a/../../up", dots),
            leaving_out("", "its name is empty"),
            leaving_out("/", "it would take the place of the root directory"),
            leaving_out("..", dots),
            leaving_out("nul\\u{0}inside", "its name contains NUL"),
            leaving_out("line\\nend/..", dots),
            "Info: 0.archive: removed the '/' at the beginning of 2 names".to_owned(),
        ]
    );
}

#[test]
fn the_last_entry_of_a_name_counts() {
    assert_eq!(
        tree(&[
            file("twice", b"old"),
            file("twice", b"new"),
            dir("d"),
            file("d/in", b"x"),
            [Header::new(b"d", b'5', 0).octal(100, 8, 0o700).bytes()].concat(),
            dir("gone"),
            file("gone/in", b"x"),
            entry("gone", b'2', b"twice", b""),
            entry("made", b'2', b"d", b""),
            dir("made"),
            file("made/in", b"y"),
            file("fifo", b"data"),
            entry("fifo", b'6', b"", b""),
        ]),
        [
            "d Directory 700 1:2 3.000000000",
            "d/in Regular 644 1:2 3.000000000 1:x",
            "fifo Fifo 644 1:2 3.000000000 0x0",
            "gone Symlink 777 1:2 3.000000000 -> twice",
            "made Directory 644 1:2 3.000000000",
            "made/in Regular 644 1:2 3.000000000 1:y",
            "twice Regular 644 1:2 3.000000000 3:new",
        ]
    );
}

#[test]
fn no_symlink_is_followed() {
    let (lines, messages) = both(&[
        entry("link", b'2', b"/tmp", b""),
        file("link/inside", b"x"),
        entry("dots", b'2', b"..", b""),
        file("dots/a/inside", b"x"),
        file("file", b"x"),
        file("file/inside", b"x"),
        entry("hard", b'1', b"link/inside", b""),
    ]);
    assert_eq!(
        lines,
        [
            "dots Symlink 777 1:2 3.000000000 -> ..",
            "file Regular 644 1:2 3.000000000 1:x",
            "link Symlink 777 1:2 3.000000000 -> /tmp",
        ]
    );
    let link = "a directory above it is a symbolic link, which is not followed";
    assert_eq!(
        messages,
        [
            leaving_out("link/inside", link),
            leaving_out("dots/a/inside", link),
            leaving_out("file/inside", "an entry above it is not a directory"),
            leaving_out(
                "hard",
                "its other name, to which it is a hard link, is not in the archive"
            ),
        ]
    );
}

#[test]
fn hard_links_find_their_file() {
    let link = |name: &str, target: &[u8]| entry(name, b'1', target, b"");
    let (lines, messages) = both(&[
        file("a", b"one"),
        link("b", b"a"),
        link("c", b"./b"),
        file("a", b"two"),
        link("later", b"z"),
        link("chain", b"later"),
        file("z", b"zz"),
        link("self", b"self"),
        link("z", b"z"),
        link("x", b"y"),
        link("y", b"x"),
        link("missing", b"nowhere"),
        link("up", b"../a"),
        dir("d"),
        link("directory", b"d"),
        link("replaced", b"nowhere"),
        file("replaced", b"r"),
        entry("s", b'2', b"t", b""),
        link("s2", b"s"),
    ]);
    let missing = "its other name, to which it is a hard link, is not in the archive";
    assert_eq!(
        lines,
        [
            "a Regular 644 1:2 3.000000000 3:two",
            "b Regular 644 1:2 3.000000000 links=2 3:one",
            "c Regular 644 1:2 3.000000000 links=2 3:one",
            "chain Regular 644 1:2 3.000000000 links=3 2:zz",
            "d Directory 644 1:2 3.000000000",
            "later Regular 644 1:2 3.000000000 links=3 2:zz",
            "replaced Regular 644 1:2 3.000000000 1:r",
            "s Symlink 777 1:2 3.000000000 links=2 -> t",
            "s2 Symlink 777 1:2 3.000000000 links=2 -> t",
            "z Regular 644 1:2 3.000000000 links=3 2:zz",
        ]
    );
    assert_eq!(
        messages,
        [
            leaving_out("self", "it is a hard link to itself"),
            leaving_out("up", "the other name of this hard link is invalid"),
            leaving_out("directory", "it is a hard link to a directory"),
            leaving_out("x", missing),
            leaving_out("y", missing),
            leaving_out("missing", missing),
        ]
    );
}

#[test]
fn hard_links_may_come_with_data() {
    // In pax archives the data is there. Other headers only repeat the size.
    assert_eq!(
        tree(&[
            file("a", b"one"),
            pax(b'x', &[("mtime", b"5")]),
            entry("b", b'1', b"a", b"one"),
            Header::new(b"c", b'1', 3).link(b"a").bytes(),
            pax(b'x', &[("mtime", b"5")]),
            entry("lost", b'1', b"nowhere", b"mine"),
            file("d", b"d"),
        ]),
        [
            "a Regular 644 1:2 3.000000000 links=3 3:one",
            "b Regular 644 1:2 3.000000000 links=3 3:one",
            "c Regular 644 1:2 3.000000000 links=3 3:one",
            "d Regular 644 1:2 3.000000000 1:d",
            "lost Regular 644 1:2 5.000000000 4:mine",
        ]
    );
}

#[test]
fn numbers_in_all_forms() {
    let signed = {
        let header = Header::new(b"\xff\xff", b'0', 0).with(148, b"        ");
        let sum: i64 = header.0.iter().map(|&b| i64::from(b.cast_signed())).sum();
        header
            .with(148, format!("{sum:06o}\0 ").as_bytes())
            .0
            .to_vec()
    };
    let base = |name: &[u8]| Header::new(name, b'0', 0);
    assert_eq!(
        tree(&[
            base(b"a").binary(136, 12, -2).bytes(),
            base(b"b")
                .binary(108, 8, 3_000_000_000)
                .binary(116, 8, -2)
                .bytes(),
            pax(
                b'x',
                &[("mtime", b"-1.25"), ("uid", b"4294967295"), ("gid", b"0")]
            ),
            base(b"c").bytes(),
            base(b"d")
                .with(100, b"   644 \0")
                .with(136, b"0\0\0\0\0\0\0\0\0\0\0\0")
                .bytes(),
            signed,
            pax(b'x', &[("mtime", b"99999999999.999999999")]),
            base(b"e").bytes(),
        ]),
        [
            "\\xff\\xff Regular 644 1:2 3.000000000 0:",
            "a Regular 644 1:2 -2.000000000 0:",
            "b Regular 644 3000000000:4294967294 3.000000000 0:",
            "c Regular 644 4294967295:0 -2.750000000 0:",
            "d Regular 644 1:2 0.000000000 0:",
            "e Regular 644 1:2 99999999999.999999999 0:",
        ]
    );
    let (lines, messages) = both(&[base(b"a").binary(108, 8, 1 << 40).bytes(), file("b", b"")]);
    assert_eq!(lines, ["b Regular 644 1:2 3.000000000 0:"]);
    assert_eq!(
        messages,
        [leaving_out("a", "its owner or group is out of range")]
    );
}

#[test]
fn names_of_every_length_and_encoding() {
    let long = "d/".repeat(80) + "name";
    let gnu = |kind, name: &[u8]| {
        let data = [name, b"\0"].concat();
        let header = Header::new(b"././@LongLink", kind, data.len() as u64).gnu();
        [header.bytes(), padded(&data)].concat()
    };
    let found = tree(&[
        gnu(b'L', long.as_bytes()),
        Header::new(b"cut", b'0', 0).gnu().bytes(),
        gnu(b'K', &[b'x'; 300]),
        Header::new(b"link", b'2', 0).gnu().link(b"cut").bytes(),
        pax(b'x', &[("path", &[b'p'; 200]), ("linkpath", &[b'q'; 200])]),
        entry("cut", b'2', b"cut", b""),
        Header::new(b"file", b'0', 0).with(345, b"pre/fix").bytes(),
        pax(b'x', &[("hdrcharset", b"BINARY"), ("path", b"\xe4\xff")]),
        file("cut", b""),
        file("\u{e4}", b""),
        Header::new(b"\xe4", b'0', 0).bytes(),
        // Star keeps times behind a shorter prefix.
        Header::new(b"star", b'0', 0)
            .with(345, b"pre")
            .octal(476, 12, 7)
            .with(508, b"tar\0")
            .bytes(),
    ]);
    let mut names: Vec<&str> = found
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.retain(|name| !name.starts_with('d') || *name == long);
    let p = "p".repeat(200);
    assert_eq!(
        names,
        [
            "\\xc3\\xa4",
            "\\xe4",
            "\\xe4\\xff",
            &long,
            "link",
            &p,
            "pre",
            "pre/fix",
            "pre/fix/file",
            "pre/star"
        ]
    );
    assert!(
        found
            .iter()
            .any(|line| line.ends_with(&format!("-> {}", "x".repeat(300))))
    );
    assert!(
        found
            .iter()
            .any(|line| line.ends_with(&format!("-> {}", "q".repeat(200))))
    );
}

#[test]
fn global_headers_hold_until_others_follow() {
    assert_eq!(
        tree(&[
            pax(b'g', &[("mtime", b"10"), ("uid", b"11")]),
            file("a", b""),
            pax(b'x', &[("mtime", b"12")]),
            file("b", b""),
            file("c", b""),
            pax(b'g', &[("mtime", b"")]),
            file("d", b""),
        ]),
        [
            "a Regular 644 11:2 10.000000000 0:",
            "b Regular 644 11:2 12.000000000 0:",
            "c Regular 644 11:2 10.000000000 0:",
            "d Regular 644 11:2 3.000000000 0:",
        ]
    );
}

#[test]
fn holes_in_all_formats() {
    let data = [[b'a'; 512], [b'b'; 512]].concat();
    let holes = "4096:<1024>[512 aaaaaaaa]<1024>[512 bbbbbbbb]<1024>";
    let size = |name: &str, stored: usize| Header::new(name.as_bytes(), b'0', stored as u64);
    let old = |name: &[u8], pairs: &[(u64, u64)], more: u8, size: u64, data: usize| {
        let mut header = Header::new(name, b'S', data as u64)
            .gnu()
            .octal(483, 12, size);
        for (at, (offset, bytes)) in pairs.iter().enumerate() {
            header = header
                .octal(386 + 24 * at, 12, *offset)
                .octal(398 + 24 * at, 12, *bytes);
        }
        header.with(482, &[more]).bytes()
    };
    let pairs = [(1024, 512), (2560, 512), (4096, 0)];
    // A block with 21 more pairs.
    let mut more = Header([0; BLOCK]);
    for at in 0..21u64 {
        let offset = 8192 + 1024 * at;
        more = more
            .octal(24 * at as usize, 12, offset)
            .octal(24 * at as usize + 12, 12, 1);
    }
    let map = b"2\n1024\n512\n2560\n512\n";
    let found = tree(&[
        old(b"old", &pairs, 0, 4096, 1024),
        data.clone(),
        old(
            b"more",
            &[(0, 1), (1024, 1), (2048, 1), (3072, 1)],
            1,
            32768,
            25,
        ),
        more.0.to_vec(),
        padded(&[b'x'; 25]),
        pax(
            b'x',
            &[
                ("GNU.sparse.size", b"4096"),
                ("GNU.sparse.numblocks", b"2"),
                ("GNU.sparse.offset", b"1024"),
                ("GNU.sparse.numbytes", b"512"),
                ("GNU.sparse.offset", b"2560"),
                ("GNU.sparse.numbytes", b"512"),
            ],
        ),
        [size("pax00", 1024).bytes(), data.clone()].concat(),
        pax(
            b'x',
            &[
                ("GNU.sparse.size", b"4096"),
                ("GNU.sparse.name", b"pax01"),
                ("GNU.sparse.map", b"1024,512,2560,512"),
            ],
        ),
        [size("GNUSparseFile.0/pax01", 1024).bytes(), data.clone()].concat(),
        pax(
            b'x',
            &[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.realsize", b"4096"),
                ("GNU.sparse.name", b"pax10"),
            ],
        ),
        [size("cut", 1536).bytes(), padded(map), data.clone()].concat(),
        // Nothing but a hole, larger than any disk.
        pax(
            b'x',
            &[
                ("GNU.sparse.size", b"9000000000000000000"),
                ("GNU.sparse.name", b"hole"),
                ("GNU.sparse.numblocks", b"0"),
            ],
        ),
        size("cut", 0).bytes(),
    ]);
    let line = |name: &str| format!("{name} Regular 644 1:2 3.000000000 {holes}");
    assert_eq!(
        found[0],
        "hole Regular 644 1:2 3.000000000 9000000000000000000:<9000000000000000000>"
    );
    assert!(found[1].contains("more Regular 644 1:2 3.000000000 32768:x<1023>x<1023>x"));
    assert_eq!(found[1].matches('x').count(), 25);
    assert_eq!(
        found[2..],
        [line("old"), line("pax00"), line("pax01"), line("pax10")]
    );
}

#[test]
fn maps_that_do_not_fit_are_damage() {
    let sparse = |map: &[u8], stored: &[u8]| {
        let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"4096"), ("GNU.sparse.map", map)];
        let all = tar(&[pax(b'x', records), file("f", stored)]);
        error(&all)
    };
    let list = "a sparse map is no list of numbers";
    let fit = "a sparse map does not fit its file";
    for (map, stored, cause) in [
        (&b"0,1,2"[..], &b"x"[..], list),
        (b"0,x", b"x", list),
        (b"0,1,0,1", b"xx", fit),
        (b"4096,1", b"x", fit),
        (b"0,2", b"x", fit),
        (b"18446744073709551615,2", b"xx", fit),
    ] {
        let error = sparse(map, stored);
        assert!(
            error.starts_with("damaged at byte ") && error.ends_with(cause),
            "{error}"
        );
    }
    let version = |data: &[u8]| {
        let records: &[(&str, &[u8])] =
            &[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9")];
        error(&tar(&[pax(b'x', records), file("f", data)]))
    };
    for data in [
        &b""[..],
        b"1",
        b"1\n5\n",
        b"999999999999\n",
        b"1\n99999999999999999999999\n",
    ] {
        version(data);
    }
}

#[test]
fn types_of_entries() {
    let device = |name: &[u8], kind| {
        Header::new(name, kind, 0)
            .octal(329, 8, 1)
            .octal(337, 8, 300)
    };
    let (lines, messages) = both(&[
        Header::new(b"label", b'V', 0).gnu().bytes(),
        device(b"chr", b'3').bytes(),
        device(b"blk", b'4').bytes(),
        entry("fifo", b'6', b"", b""),
        // Old programs know no directories but those with a slash.
        Header::new(b"v7dir/", 0, 0).with(257, &[0; 8]).bytes(),
        Header::new(b"v7file", 0, 0).with(257, &[0; 8]).bytes(),
        entry("cont", b'7', b"", b"c"),
        entry("dump", b'D', b"", b"Yname\0\0"),
        entry("what", b'Z', b"", b"z"),
        Header::new(b"sized", b'5', 99).bytes(),
        Header::new(b"long", b'2', 99).link(b"to").bytes(),
    ]);
    assert_eq!(
        lines,
        [
            "blk BlockDevice 644 1:2 3.000000000 0x10012c",
            "chr CharDevice 644 1:2 3.000000000 0x10012c",
            "cont Regular 644 1:2 3.000000000 1:c",
            "dump Directory 644 1:2 3.000000000",
            "fifo Fifo 644 1:2 3.000000000 0x0",
            "long Symlink 777 1:2 3.000000000 -> to",
            "sized Directory 644 1:2 3.000000000",
            "v7dir Directory 644 1:2 3.000000000",
            "v7file Regular 644 1:2 3.000000000 0:",
            "what Regular 644 1:2 3.000000000 1:z",
        ]
    );
    assert_eq!(
        messages,
        ["Warn: 'what': unknown type 'Z', stored as a regular file"]
    );
    for kind in [b'M', b'S'] {
        let error = one(&tar(&[entry("x", kind, b"", b"")])).source.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}

#[test]
fn what_is_truncated_is_named() {
    let whole = tar(&[file("first", b"1"), file("second", &[7; 2000])]);
    for (end, want) in [
        (
            700,
            "truncated at byte 700, after 'first', complete entries before it: 1",
        ),
        (
            1100,
            "truncated at byte 1024, after 'first', complete entries before it: 1",
        ),
        (
            2000,
            "truncated at byte 2000, 1536 bytes of 'second' are missing, complete entries before it: 1",
        ),
    ] {
        assert_eq!(error(&whole[..end]), want);
    }
    // Contents that are not read but skipped.
    let large = tar(&[file("first", b"1"), file("second", &[7; 400_000])]);
    assert_eq!(
        error(&large[..300_000]),
        "truncated at byte 300000, 101536 bytes of 'second' are missing, complete entries before it: 1"
    );
    let mut gzip = Vec::new();
    std::io::Write::write_all(
        &mut flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast()),
        &whole,
    )
    .unwrap();
    assert_eq!(lines(&one(&gzip).source.unwrap()).len(), 2);
    let found = error(&gzip[..gzip.len() - 9]);
    assert!(found.starts_with("truncated"), "{found}");
    // Without end mark, but at the end of an entry.
    let outcome = one(&whole[..whole.len() - 2 * BLOCK]);
    assert_eq!(lines(&outcome.source.unwrap()).len(), 2);
    let warning = "Warn: 0.archive: the end of the archive is not marked, it may be incomplete";
    assert_eq!(outcome.messages, [warning]);
    // The padding of the last entry is missing, too.
    let last = tar(&[file("first", b"1")]);
    assert_eq!(lines(&one(&last[..BLOCK + 1]).source.unwrap()).len(), 1);
}

#[test]
fn what_follows_the_end_is_counted() {
    let first = tar(&[file("first", b"1")]);
    let both = [first.clone(), tar(&[file("second", b"2")])].concat();
    let outcome = one(&both);
    assert_eq!(lines(&outcome.source.unwrap()).len(), 1);
    let warning = "Warn: 0.archive: 1025 bytes after the end of the archive are ignored";
    assert_eq!(outcome.messages, [warning]);
    // One block of zeros is an end, too, and more zeros are padding.
    let lone = [&first[..first.len() - BLOCK], &file("x", b"")].concat();
    assert!(one(&lone).messages[0].contains("bytes after the end"));
    let mut padded = first;
    padded.resize(10240, 0);
    assert!(one(&padded).messages.is_empty());
    // Several extended attributes of a block of zeros alone: an empty archive.
    assert!(lines(&one(&[0; 1024]).source.unwrap()).is_empty());
}

#[test]
fn damage_is_an_error_with_its_place() {
    let mut bytes = tar(&[file("first", b"1"), file("second", b"2")]);
    bytes[1024 + 3] ^= 1;
    assert_eq!(
        error(&bytes),
        "damaged at byte 1536, after 'first', complete entries before it: 1: the checksum of a \
         header is wrong"
    );
    for header in [
        Header::new(b"x", b'0', 0).binary(124, 12, -1),
        Header::new(b"x", b'0', 0).binary(124, 12, 1 << 80),
        Header::new(b"x", b'0', 0).with(124, b"12345678901x"),
        Header::new(b"x", b'0', 0).with(100, b"rw-r--r-"),
        Header::new(b"x", b'x', 17 << 20),
        Header::new(b"x", b'L', 17 << 20),
        Header::new(b"x", b'S', 0).gnu().with(386, b"zzz"),
    ] {
        let found = error(&tar(&[header.bytes()]));
        assert!(found.starts_with("damaged at byte 512"), "{found}");
    }
    // Larger than the archive.
    for size in [1 << 20, i64::MAX as i128] {
        let header = Header::new(b"x", b'0', 0).binary(124, 12, size);
        let found = error(&tar(&[header.bytes()]));
        assert!(found.starts_with("truncated at byte "), "{found}");
    }
    for records in [
        &[("size", &b"x"[..])][..],
        &[("mtime", b"yesterday")],
        &[("uid", b"--1")],
        &[("LIBARCHIVE.xattr.a", b"!")],
    ] {
        let found = error(&tar(&[pax(b'x', records), file("x", b"")]));
        assert!(found.starts_with("damaged"), "{found}");
    }
    let found = error(b"no archive at all");
    assert!(
        found.starts_with("not a directory, and not an archive"),
        "{found}"
    );
    let forced = read(&[("", &[b'x'; 600])], |options| {
        options.format = Format::Tar;
    });
    assert!(forced.source.is_err());
}

#[test]
fn sizes_of_more_than_eight_gigabytes() {
    // A sparse file, so that the archive is small; base 256 and pax.
    let size: u64 = 9 << 30;
    let header = Header::new(b"gnu", b'S', 0)
        .gnu()
        .binary(483, 12, size.into());
    let text = size.to_string();
    let records: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", text.as_bytes()),
        ("GNU.sparse.map", b"9000000000,1"),
    ];
    let found = tree(&[header.bytes(), pax(b'x', records), file("pax", b"x")]);
    assert_eq!(
        found[0],
        format!("gnu Regular 644 1:2 3.000000000 {size}:<{size}>")
    );
    assert_eq!(
        found[1],
        format!(
            "pax Regular 644 1:2 3.000000000 {size}:<9000000000>x<{}>",
            size - 9_000_000_001
        )
    );
    // The size in the extended header counts.
    let found = tree(&[
        pax(b'x', &[("size", b"3")]),
        [Header::new(b"x", b'0', 0).bytes(), padded(b"abc")].concat(),
        file("y", b""),
    ]);
    assert_eq!(found[0], "x Regular 644 1:2 3.000000000 3:abc");
}

#[test]
fn archives_without_any_entry_for_the_root() {
    let source = one(&tar(&[file("a", b"")])).source.unwrap();
    let root = source.root().unwrap();
    assert_eq!((root.permissions, root.uid, root.mtime.sec), (0o755, 0, 3));
    let header = Header::new(b"./", b'5', 0)
        .octal(100, 8, 0o700)
        .octal(136, 12, 99);
    let source = one(&tar(&[file("a", b""), header.bytes()])).source.unwrap();
    let root = source.root().unwrap();
    assert_eq!((root.permissions, root.uid, root.mtime.sec), (0o700, 1, 99));
}
