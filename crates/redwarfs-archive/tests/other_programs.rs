//! Odd tar archives as this crate, Python, bsdtar and GNU tar see them. `docs/archives.md` has the result as a
//! table, and this test compares both. `REDWARFS_SHOW_ARCHIVES=1` prints the rows.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::common::{BLOCK, Header, dir, entry, file, padded, pax, tar};
use redwarfs_testkit::skip;

/// Entries that are no directories, by name: a letter for the type, and the size of files.
type View = BTreeMap<String, String>;

/// The programs, and the versions for which the table holds.
const PROGRAMS: [(&str, &str); 3] = [
    ("python3", "Python 3."),
    ("bsdtar", "bsdtar 3.6."),
    ("tar", "tar (GNU tar) 1.34"),
];

/// Prints what `tarfile` lists.
const PYTHON: &str = r#"
import sys, tarfile
kinds = {b"1": "h", b"2": "l", b"3": "c", b"4": "b", b"5": "d", b"6": "p"}
try:
    with tarfile.open(sys.argv[1]) as archive:
        for m in archive:
            parts = [kinds.get(m.type, "-"), str(m.size), m.name, m.linkname if m.type in b"12" else ""]
            line = b"\0".join(p.encode("utf-8", "surrogateescape") for p in parts)
            sys.stdout.buffer.write(line + b"\0\0")
except Exception as e:
    sys.exit(2)
"#;

/// Bytes as text: control characters, and bytes that are not UTF-8, have escapes.
fn printable(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return bytes.escape_ascii().to_string();
    };
    let mut line = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// A name as all programs write it after normalisation.
fn plain(name: &str) -> String {
    let parts = name.split('/');
    let parts = parts.filter(|part| !part.is_empty() && *part != ".");
    parts.collect::<Vec<_>>().join("/")
}

/// Follows hard links and leaves out directories. The last entry of a name counts.
fn view(members: Vec<(char, String, String, String)>) -> View {
    let mut all: BTreeMap<String, (char, String, String)> = BTreeMap::new();
    for (kind, size, name, target) in members {
        all.insert(plain(&name), (kind, size, plain(&target)));
    }
    let mut view = View::new();
    for (name, (kind, size, target)) in &all {
        let (mut kind, mut size, mut target) = (*kind, size, target);
        for _ in 0..8 {
            let Some((k, s, t)) = all.get(target).filter(|_| kind == 'h') else {
                break;
            };
            (kind, size, target) = (*k, s, t);
        }
        let text = match kind {
            'd' => continue,
            '-' => format!("-{size}"),
            kind => kind.to_string(),
        };
        view.insert(name.clone(), text);
    }
    view
}

/// Undoes `\ooo`, `\n` and `\\`, and shows other bytes than ASCII as `\xff`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let octal = more.get(..3).and_then(|o| std::str::from_utf8(o).ok());
        let octal = octal.and_then(|o| u8::from_str_radix(o, 8).ok());
        let letter = more.first().and_then(|c| match c {
            b'n' => Some(b'\n'),
            b't' => Some(b'\t'),
            b'\\' => Some(b'\\'),
            _ => None,
        });
        let (after, byte) = match (first, octal, letter) {
            (b'\\', Some(byte), _) => (&more[3..], byte),
            (b'\\', None, Some(byte)) => (&more[1..], byte),
            _ => (more, first),
        };
        rest = after;
        bytes.push(byte);
    }
    printable(&bytes)
}

/// What a program lists, and whether it is content.
fn listed(program: &str, path: &Path) -> (View, bool) {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").env("TZ", "UTC");
    match program {
        "python3" => command.args(["-c", PYTHON]).arg(path),
        "bsdtar" => command.arg("-tvf").arg(path),
        _ => command
            .args(["--quoting-style=escape", "--full-time", "-tvf"])
            .arg(path),
    };
    let output = command.output().unwrap();
    let mut members = Vec::new();
    if program == "python3" {
        let fields: Vec<&[u8]> = output.stdout.split(|&b| b == 0).collect();
        for record in fields.chunks_exact(5) {
            let text = |at: usize| printable(record[at]);
            let kind = text(0).chars().next().unwrap_or('-');
            members.push((kind, text(1), text(2), text(3)));
        }
        return (view(members), output.status.success());
    }
    let columns = if program == "bsdtar" { 8 } else { 5 };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut rest = line;
        let mut fields = Vec::new();
        for _ in 0..columns {
            let (field, more) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
            fields.push(field);
            rest = more;
        }
        let kind = fields[0].chars().next().unwrap_or('-');
        let size = fields[if program == "bsdtar" { 4 } else { 2 }];
        let links = [" link to ", " -> "];
        let cut = links.iter().find_map(|link| rest.split_once(link));
        let (name, target) = match kind {
            'h' | 'l' => cut.unwrap_or((rest, "")),
            _ => cut
                .filter(|_| rest.contains(" link to "))
                .unwrap_or((rest, "")),
        };
        let kind = match (kind, target) {
            ('-', target) if !target.is_empty() => 'h',
            ('C', _) => '-',
            (kind, _) => kind,
        };
        members.push((kind, size.to_owned(), unescaped(name), unescaped(target)));
    }
    (view(members), output.status.success())
}

/// What this crate makes of an archive: its view, and what it says.
fn own(path: &Path) -> (Option<View>, String) {
    let outcome = crate::common::read_file(path);
    let said = outcome.messages.join("; ");
    match outcome.source {
        Err(error) => {
            let text = error.to_string();
            let text = text
                .split_once(".tar: ")
                .map_or(&text[..], |(_, text)| text);
            (None, text.to_owned())
        }
        Ok(source) => {
            let mut view = View::new();
            for (name, kind, size) in crate::common::entries(&source) {
                let text = match kind {
                    'd' => continue,
                    '-' => format!("-{size}"),
                    kind => kind.to_string(),
                };
                view.insert(printable(&name), text);
            }
            (Some(view), said)
        }
    }
}

fn shown(view: &View) -> String {
    let mut parts = Vec::new();
    for (name, what) in view.iter().take(4) {
        let name = match name.len() > 40 {
            true => format!("{}...", &name[..12]),
            false => name.clone(),
        };
        parts.push(match what.strip_prefix('-') {
            Some(size) => format!("`{name}` {size}"),
            None => format!("`{name}` ({what})"),
        });
    }
    match parts.is_empty() {
        true => "nothing".to_owned(),
        false => parts.join(", "),
    }
}

/// How another view differs.
fn difference(own: Option<&View>, other: &View, content: bool) -> String {
    let error = if content { "" } else { "error" };
    let Some(own) = own else {
        return match content {
            true => format!("lists {}", shown(other)),
            false => error.to_owned(),
        };
    };
    let mut parts = Vec::new();
    let more = other.iter().filter(|(name, _)| !own.contains_key(*name));
    let more: View = more.map(|(n, w)| (n.clone(), w.clone())).collect();
    if !more.is_empty() {
        parts.push(format!("also {}", shown(&more)));
    }
    let less = own.iter().filter(|(name, _)| !other.contains_key(*name));
    let less: View = less.map(|(n, w)| (n.clone(), w.clone())).collect();
    if !less.is_empty() {
        parts.push(format!("without {}", shown(&less)));
    }
    let unlike = other.iter();
    let unlike = unlike.filter(|(name, what)| own.get(*name).is_some_and(|own| own != *what));
    let unlike: View = unlike.map(|(n, w)| (n.clone(), w.clone())).collect();
    if !unlike.is_empty() {
        parts.push(format!("with {}", shown(&unlike)));
    }
    if !content {
        parts.push(error.to_owned());
    }
    match parts.is_empty() {
        true => "same".to_owned(),
        false => parts.join("; "),
    }
}

fn gnu(kind: u8, name: &[u8]) -> Vec<u8> {
    let data = [name, b"\0"].concat();
    let header = Header::new(b"././@LongLink", kind, data.len() as u64).gnu();
    [header.bytes(), padded(&data)].concat()
}

fn sparse_old() -> Vec<u8> {
    let header = Header::new(b"f", b'S', 1024).gnu().octal(483, 12, 4096);
    let header = header.octal(386, 12, 1024).octal(398, 12, 512);
    let header = header.octal(410, 12, 2560).octal(422, 12, 512);
    let header = header.octal(434, 12, 4096).octal(446, 12, 0);
    [header.bytes(), vec![b'a'; 1024]].concat()
}

fn signed() -> Vec<u8> {
    let header = Header::new(b"\xff\xff", b'0', 0).with(148, b"        ");
    let sum: i64 = header.0.iter().map(|&b| i64::from(b.cast_signed())).sum();
    let sum = format!("{sum:06o}\0 ");
    header.with(148, sum.as_bytes()).0.to_vec()
}

/// Kinds of archives: what is odd, and the bytes.
fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let base = |name: &[u8]| Header::new(name, b'0', 0);
    let whole = tar(&[file("a", b"one"), file("b", &[7; 2000])]);
    let long = "d/".repeat(80) + "name";
    let mut one_block = tar(&[file("a", b"one")]);
    one_block.truncate(3 * BLOCK);
    vec![
        ("no entries", tar(&[])),
        (
            "v7: no magic, directories end with `/`",
            tar(&[
                Header::new(b"d/", 0, 0).with(257, &[0; 8]).bytes(),
                Header::new(b"d/f", 0, 0).with(257, &[0; 8]).bytes(),
            ]),
        ),
        (
            "`./`, `//` and `/` at the end in names",
            tar(&[file("./a//b", b"1"), dir("./c/")]),
        ),
        ("absolute name", tar(&[file("/a", b"1")])),
        (
            "`..` in a name",
            tar(&[file("../up", b"1"), file("a/../b", b"2"), file("c", b"3")]),
        ),
        ("empty name", tar(&[file("", b"1"), file("a", b"2")])),
        (
            "one name twice",
            tar(&[file("a", b"old!"), file("a", b"new")]),
        ),
        (
            "file, then directory of the same name",
            tar(&[file("a", b"1"), dir("a"), file("a/b", b"2")]),
        ),
        ("file in a file", tar(&[file("a", b"1"), file("a/b", b"2")])),
        (
            "file below a symlink that leads outside",
            tar(&[entry("l", b'2', b"/tmp", b""), file("l/a", b"1")]),
        ),
        (
            "symlink to a file in the archive",
            tar(&[file("a", b"1"), entry("l", b'2', b"a", b"")]),
        ),
        (
            "symlink without a target",
            tar(&[entry("l", b'2', b"", b""), file("a", b"1")]),
        ),
        (
            "hard link to an earlier entry",
            tar(&[file("a", b"one"), entry("b", b'1', b"a", b"")]),
        ),
        (
            "hard link to a later entry",
            tar(&[entry("b", b'1', b"a", b""), file("a", b"one")]),
        ),
        (
            "hard link to nothing",
            tar(&[entry("b", b'1', b"none", b""), file("a", b"1")]),
        ),
        (
            "hard link to itself",
            tar(&[entry("b", b'1', b"b", b""), file("a", b"1")]),
        ),
        (
            "hard link with data (pax)",
            tar(&[
                file("a", b"one"),
                pax(b'x', &[("mtime", b"5")]),
                entry("b", b'1', b"a", b"one"),
                file("c", b"1"),
            ]),
        ),
        (
            "negative time, binary",
            tar(&[base(b"a").binary(136, 12, -2).bytes()]),
        ),
        (
            "negative time with fraction, pax",
            tar(&[pax(b'x', &[("mtime", b"-1.25")]), file("a", b"1")]),
        ),
        (
            "user 3000000000, binary",
            tar(&[base(b"a").binary(108, 8, 3_000_000_000).bytes()]),
        ),
        (
            "user 2^40, binary",
            tar(&[base(b"a").binary(108, 8, 1 << 40).bytes(), file("b", b"")]),
        ),
        (
            "long name, GNU",
            tar(&[gnu(b'L', long.as_bytes()), file("cut", b"1")]),
        ),
        (
            "long link, GNU",
            tar(&[gnu(b'K', &[b'x'; 300]), entry("l", b'2', b"cut", b"")]),
        ),
        (
            "long name, pax",
            tar(&[pax(b'x', &[("path", &[b'p'; 200])]), file("cut", b"1")]),
        ),
        (
            "long name, prefix of ustar",
            tar(&[base(b"f").with(345, b"pre/fix").bytes()]),
        ),
        ("name in Latin-1", tar(&[base(b"\xe4").bytes()])),
        ("name in UTF-8", tar(&[file("\u{e4}", b"1")])),
        (
            "name of bytes, pax with `hdrcharset=BINARY`",
            tar(&[
                pax(b'x', &[("hdrcharset", b"BINARY"), ("path", b"\xe4\xff")]),
                file("cut", b"1"),
            ]),
        ),
        ("line break in a name", tar(&[file("a\nb", b"1")])),
        ("sparse, old GNU", tar(&[sparse_old()])),
        (
            "sparse, pax 0.0",
            tar(&[
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
                file("f", &[b'a'; 1024]),
            ]),
        ),
        (
            "sparse, pax 0.1",
            tar(&[
                pax(
                    b'x',
                    &[
                        ("GNU.sparse.size", b"4096"),
                        ("GNU.sparse.name", b"f"),
                        ("GNU.sparse.numblocks", b"2"),
                        ("GNU.sparse.map", b"1024,512,2560,512"),
                    ],
                ),
                file("GNUSparseFile.0/f", &[b'a'; 1024]),
            ]),
        ),
        (
            "sparse, pax 1.0",
            tar(&[
                pax(
                    b'x',
                    &[
                        ("GNU.sparse.major", b"1"),
                        ("GNU.sparse.minor", b"0"),
                        ("GNU.sparse.realsize", b"4096"),
                        ("GNU.sparse.name", b"f"),
                    ],
                ),
                file(
                    "GNUSparseFile.0/f",
                    &[&padded(b"2\n1024\n512\n2560\n512\n")[..], &[b'a'; 1024]].concat(),
                ),
            ]),
        ),
        (
            "sparse map beyond the file",
            tar(&[
                pax(
                    b'x',
                    &[
                        ("GNU.sparse.size", b"4096"),
                        ("GNU.sparse.name", b"f"),
                        ("GNU.sparse.map", b"4096,1"),
                    ],
                ),
                file("f", b"x"),
            ]),
        ),
        (
            "global pax header",
            tar(&[
                pax(b'g', &[("mtime", b"10"), ("uid", b"11")]),
                file("a", b"1"),
            ]),
        ),
        (
            "pax record with a wrong length",
            tar(&[
                [
                    Header::new(b"pax", b'x', 12).bytes(),
                    padded(b"99 path=x\n\0\0"),
                ]
                .concat(),
                file("a", b"1"),
            ]),
        ),
        (
            "device and FIFO",
            tar(&[
                Header::new(b"c", b'3', 0)
                    .octal(329, 8, 1)
                    .octal(337, 8, 3)
                    .bytes(),
                entry("p", b'6', b"", b""),
            ]),
        ),
        (
            "contiguous file (`7`)",
            tar(&[entry("a", b'7', b"", b"one")]),
        ),
        ("unknown type (`Z`)", tar(&[entry("a", b'Z', b"", b"one")])),
        (
            "volume label, GNU",
            tar(&[
                Header::new(b"label", b'V', 0).gnu().bytes(),
                file("a", b"1"),
            ]),
        ),
        (
            "directory of an incremental dump, GNU",
            tar(&[entry("d", b'D', b"", b"Ya\0\0"), file("d/a", b"1")]),
        ),
        (
            "continued from another volume, GNU",
            tar(&[
                [
                    Header::new(b"a", b'M', 3)
                        .gnu()
                        .octal(369, 12, 100)
                        .octal(483, 12, 103)
                        .bytes(),
                    padded(b"one"),
                ]
                .concat(),
                file("b", b"1"),
            ]),
        ),
        (
            "concatenated archives",
            [tar(&[file("a", b"1")]), tar(&[file("b", b"2")])].concat(),
        ),
        (
            "bytes after the end",
            [tar(&[file("a", b"1")]), vec![b'x'; 700]].concat(),
        ),
        ("one block of zeros at the end", one_block),
        (
            "no mark at the end",
            whole[..whole.len() - 2 * BLOCK].to_vec(),
        ),
        ("truncated in a header", whole[..2 * BLOCK + 100].to_vec()),
        ("truncated in a file", whole[..4 * BLOCK].to_vec()),
        ("wrong checksum of the first header", {
            let mut bytes = whole.clone();
            bytes[5] ^= 1;
            bytes
        }),
        ("wrong checksum of a later header", {
            let mut bytes = whole;
            bytes[2 * BLOCK + 5] ^= 1;
            bytes
        }),
        ("checksum of signed bytes", tar(&[signed()])),
    ]
}

/// Archives with a file of 9 GiB, which is a hole of the archive.
fn large(path: &Path, head: &[u8]) {
    let mut archive = File::create(path).unwrap();
    archive.write_all(head).unwrap();
    let end = head.len() as u64 + (9 << 30);
    archive.set_len(end).unwrap();
    let mut rest = fs::OpenOptions::new().append(true).open(path).unwrap();
    rest.write_all(&tar(&[file("b", b"1")])).unwrap();
}

#[test]
fn odd_archives_are_as_the_table_says() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("odd.tar");
    let mut rows = Vec::new();
    let mut present = [false; PROGRAMS.len()];
    for ((program, version), present) in PROGRAMS.iter().zip(&mut present) {
        let said = Command::new(program).arg("--version").output();
        let said = said.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        *present = said.is_ok_and(|said| said.starts_with(version));
        if !*present {
            skip(
                &format!("odd archives beside {program}"),
                &format!("there is no {version}"),
            );
        }
    }
    let mut row = |kind: &str| {
        let (own, said) = own(&path);
        let mut cells = match &own {
            None => said,
            Some(view) if said.is_empty() => shown(view),
            Some(view) => format!("{}; {said}", shown(view)),
        };
        cells = cells.replace('|', "\\|");
        let mut row = vec![kind.to_owned(), cells];
        for ((program, _), present) in PROGRAMS.iter().zip(present) {
            row.push(match present {
                true => {
                    let (other, content) = listed(program, &path);
                    difference(own.as_ref(), &other, content)
                }
                false => String::new(),
            });
        }
        rows.push(row);
    };
    for (kind, bytes) in kinds() {
        fs::write(&path, bytes).unwrap();
        row(kind);
    }
    let size: u64 = 9 << 30;
    large(
        &path,
        &Header::new(b"a", b'0', 0)
            .gnu()
            .binary(124, 12, size.into())
            .bytes(),
    );
    row("file of 9 GiB, size in binary");
    let text = size.to_string();
    let head = [pax(b'x', &[("size", text.as_bytes())]), file("a", b"")].concat();
    large(&path, &head);
    row("file of 9 GiB, size in pax");

    if std::env::var_os("REDWARFS_SHOW_ARCHIVES").is_some() {
        for row in &rows {
            println!("| {} |", row.join(" | "));
        }
    }
    let table =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/archives.md"));
    let table = table.unwrap();
    let mut wrong = Vec::new();
    for row in &rows {
        let start = format!("| {} | ", row[0]);
        let Some(line) = table.lines().find(|line| line.starts_with(&start)) else {
            wrong.push(format!("no row: {}", row[0]));
            continue;
        };
        let cells = line.trim_matches('|').split(" | ").map(str::trim);
        for (at, (cell, found)) in cells.zip(row).enumerate() {
            // Programs that are not here leave their cell empty.
            let here = at <= 1 || present[at - 2];
            // As a program says it that cannot load libarchive.
            let found = found
                .split(" without libarchive (")
                .next()
                .unwrap_or_default();
            if here && cell != found {
                wrong.push(format!("{}: table '{cell}', found '{found}'", row[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The table ends where the next heading begins.
    let (_, below) = table.split_once("\n| archive").unwrap();
    let below = below.split("\n#").next().unwrap();
    let count = 1 + below.lines().filter(|line| line.starts_with("| ")).count();
    assert_eq!(count, rows.len() + 1, "rows of other kinds");
}
