//! Archives as input of `mkdwarfs`: the image is that of the unpacked directory.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use crate::archives::{SAME, WITHOUT_LIBARCHIVE, has, image, piped, place, run, shell};
use crate::builder::{Done, mkdwarfs};
use redwarfs_testkit::skip;

#[test]
fn an_archive_makes_the_image_of_its_directory() {
    let place = place();
    let want = image(&place, &["-i", "in"]);
    let formats = [
        ("gnu", "tar --format=gnu -C in -cf $A ."),
        ("pax", "tar --format=pax -C in -cf $A ."),
        ("ustar", "tar --format=ustar -C in -cf $A ."),
        (
            "v7",
            "tar --format=v7 -C in -cf $A --exclude=./fifo --exclude=. . 2>&1; exit 1",
        ),
        ("bsdpax", "bsdtar --format=pax -C in -cf $A ."),
        ("bsdgnu", "bsdtar --format=gnutar -C in -cf $A ."),
        ("newc", "bsdtar --format=newc -C in -cf $A ."),
        ("odc", "bsdtar --format=odc -C in -cf $A ."),
        ("cpio", "cd in && find . | cpio -o -H newc >../$A"),
        ("crc", "cd in && find . | cpio -o -H crc >../$A"),
    ];
    let mut done = 0;
    for (name, command) in formats {
        let program = command.split("&& find . | ").last().unwrap();
        let program = program.split(' ').next().unwrap();
        if name == "v7" || !has(program) {
            continue;
        }
        assert!(shell(&place, &command.replace("$A", name)), "{name}");
        assert!(image(&place, &["-i", name]) == want, "{name} differs");
        let piped = piped(&place, name, &["-i", "-"]);
        assert_eq!((piped.code, piped.stderr.as_str()), (Some(0), ""), "{name}");
        assert!(
            fs::read(place.path("out")).unwrap() == want,
            "piped {name} differs"
        );
        done += 1;
    }
    assert!(done >= 3);
    if !has("cpio") {
        skip("archives of cpio", "there is no cpio");
    }
}

#[test]
fn an_archive_with_an_image_in_it_is_an_archive() {
    let place = place();
    let held = image(&place, &["-i", "in"]);
    fs::create_dir(place.path("holder")).unwrap();
    fs::write(place.path("holder/held.dwarfs"), &held).unwrap();
    let want = image(&place, &["-i", "holder"]);
    let mut done = 0;
    for (program, command) in [
        ("tar", "tar --format=pax -C holder -cf $A ."),
        ("bsdtar", "bsdtar --format=newc -C holder -cf $A ."),
        (
            "bsdtar",
            "bsdtar --format=zip --options=compression=store -C holder -cf $A .",
        ),
        ("ar", "cd holder && ar qcS ../$A held.dwarfs"),
    ] {
        if !has(program) {
            continue;
        }
        assert!(
            shell(&place, &command.replace("$A", "holding")),
            "{command}"
        );
        let read = run(&place, &["-i", "holding"]);
        if read.stderr.contains("libarchive") {
            skip(
                "archives in which an image is stored",
                "there is no libarchive",
            );
            fs::remove_file(place.path("holding")).unwrap();
            continue;
        }
        assert_eq!(
            (read.code, read.stderr.as_str()),
            (Some(0), ""),
            "{command}"
        );
        // Other formats have other times and owners.
        if program == "tar" {
            assert!(fs::read(place.path("out")).unwrap() == want);
        }
        fs::remove_file(place.path("holding")).unwrap();
        done += 1;
    }
    assert!(done >= 1);
}

#[test]
fn python_writes_the_same_tree() {
    let place = place();
    if !has("python3") {
        skip("archives of Python", "there is no python3");
        return;
    }
    let want = image(&place, &["-i", "in"]);
    for format in ["USTAR", "GNU", "PAX"] {
        let script = format!(
            "python3 -c \"import tarfile; t = tarfile.open('py.tar', 'w', format=tarfile.{format}_FORMAT); t.add('in', '.'); t.close()\""
        );
        assert!(shell(&place, &script));
        assert!(image(&place, &["-i", "py.tar"]) == want, "{format} differs");
    }
}

#[test]
fn compressed_archives_are_read_through_the_spool() {
    let place = place();
    let want = image(&place, &["-i", "in"]);
    assert!(shell(&place, "tar --format=gnu -C in -cf a.tar ."));
    fs::create_dir(place.path("spool")).unwrap();
    let mut done = 0;
    for (program, command) in [
        ("gzip", "gzip -c a.tar"),
        ("bzip2", "bzip2 -c a.tar"),
        ("xz", "xz -c a.tar"),
        ("xz", "xz -c --format=lzma a.tar"),
        ("zstd", "zstd -qc a.tar"),
        ("lz4", "lz4 -qc a.tar"),
        ("lz4", "lz4 -qlc a.tar"),
        (
            "gzip",
            "(head -c 300000 a.tar | gzip -c; tail -c +300001 a.tar | gzip -c)",
        ),
        (
            "zstd",
            "(head -c 300000 a.tar | zstd -qc; tail -c +300001 a.tar | zstd -qc)",
        ),
        (
            "lz4",
            "(head -c 300000 a.tar | lz4 -qc; tail -c +300001 a.tar | lz4 -qc)",
        ),
        (
            "xz",
            "(head -c 300000 a.tar | xz -c; tail -c +300001 a.tar | xz -c)",
        ),
        (
            "bzip2",
            "(head -c 300000 a.tar | bzip2 -c; tail -c +300001 a.tar | bzip2 -c)",
        ),
        ("gzip", "gzip -c a.tar | gzip -c"),
    ] {
        if !has(program) {
            skip(program, "it is not there");
            continue;
        }
        assert!(
            shell(&place, &format!("{command} >compressed")),
            "{command}"
        );
        let found = image(&place, &["-i", "compressed", "--spool", "spool"]);
        assert!(found == want, "{command} differs");
        assert_eq!(fs::read_dir(place.path("spool")).unwrap().count(), 0);
        // An archive that is cut gives no image, and says so.
        assert!(shell(
            &place,
            "head -c $(($(wc -c <compressed) / 2)) compressed >cut"
        ));
        let cut = run(&place, &["-i", "cut"]);
        let says = "mkdwarfs: cannot read input: cut: the archive is ";
        assert!(cut.stderr.starts_with(says), "{command}: {}", cut.stderr);
        assert_eq!((cut.code, cut.stderr.lines().count()), (Some(1), 1));
        done += 1;
    }
    assert!(done > 0);
    let no = run(&place, &["-i", "compressed", "--spool", "none"]);
    assert_eq!(
        no.stderr,
        "mkdwarfs: cannot write the temporary file: none: no such file or directory (--spool names \
         another directory)\n"
    );
}

#[test]
fn options_work_as_with_a_directory() {
    let place = place();
    assert!(shell(&place, "tar --format=gnu -C in -cf a.tar ."));
    assert!(shell(&place, "gzip -kf a.tar"));
    let pseudo = "declared d 711 3 4\nlink s 777 0 0 docs\n";
    place.file("pseudo", pseudo);
    assert!(shell(&place, "touch -d @1700000000 pseudo"));
    place.file("list", "docs/sub/b.txt\nsym\nempty\n");
    place.file(
        "script.lua",
        "function filter(entry) return entry.name ~= 'z.bin' end\n\
         function category(file) return 'mine' end\n\
         function order(file) return file.path end\n",
    );
    for args in [
        &["-F", "- *.txt", "- /empty/"][..],
        &["-F", "- docs/**"],
        &["--chmod=ug=rwX,o=", "--set-owner=7", "--set-group=8"],
        &["--symlinks=drop"],
        &["--symlinks=follow"],
        &["--hard-links=dissolve"],
        &["--pseudo-file", "pseudo"],
        &["--input-list", "list", "--order=none"],
        &["--script", "script.lua"],
        &["--categorize"],
        &["--order=path"],
        &["--order=nilsimsa"],
        &["--exclude-if-present=b.txt"],
        &["--remove-empty-dirs", "-F", "- nothing"],
        &["--keep-all-times", "--set-time=1000"],
        &["-N1"],
        &["--file-hash=none"],
    ] {
        let want = image(&place, &[&["-i", "in"], args].concat());
        for archive in ["a.tar", "a.tar.gz"] {
            let found = image(&place, &[&["-i", archive], args].concat());
            assert!(found == want, "{archive} {args:?} differs");
        }
    }
    // The rules see the tree as a root.
    let shown = |input: &str| {
        let done = run(&place, &["-i", input, "--debug-filter", "-F", "- *.txt"]);
        let text = String::from_utf8(done.stdout).unwrap();
        let root = format!(
            "{}/in",
            fs::canonicalize(place.path(".")).unwrap().display()
        );
        text.replace(&root, "")
    };
    assert_eq!(shown("a.tar"), shown("in"));
    for (args, message) in [
        (
            &["-i", "a.tar", "--one-file-system"][..],
            "option '--one-file-system' cannot be used with an archive as input",
        ),
        (
            &["-i", "a.tar", "--file-timeout=1s"],
            "option '--file-timeout' cannot be used with an archive as input",
        ),
        (
            &["-i", "in", "--input-format=tar"],
            "option '--input-format' needs an archive as input",
        ),
        (
            &["-i", "a.tar", "-i", "in"],
            "cannot read input: in: a directory; only archives can have names or be several",
        ),
        (
            &["-i", "x=in"],
            "cannot read input: in: a directory; only archives can have names or be several",
        ),
        (&["-i", "../x=a.tar"], "invalid name of an input: ../x"),
        (
            &["-i", "-", "-i", "y=-"],
            "standard input can be read once only",
        ),
        (
            &["-i", "-", "--input-list=-"],
            "standard input can be read once only",
        ),
        (
            &["-i", "pseudo"],
            "cannot read input: pseudo: not a directory, and not an archive in a format that is known",
        ),
        (
            &["-i", "a.tar", "--input-format=cpio"],
            "cannot read input: a.tar: the archive is damaged at byte 0, complete entries before \
             it: 0: a header does not begin as one",
        ),
    ] {
        let done = run(&place, args);
        // Without libarchive, the message says so.
        let said = done.stderr.replace(WITHOUT_LIBARCHIVE, "");
        assert_eq!(said, format!("mkdwarfs: {message}\n"), "{args:?}");
        assert_eq!(done.code, Some(1));
    }
}

#[test]
fn sparse_files_of_tar_keep_their_holes() {
    let place = place();
    let at = place.path("in/holes");
    let file = File::create(&at).unwrap();
    file.set_len(3 << 20).unwrap();
    for offset in [1 << 20, 2 << 20] {
        std::os::unix::fs::FileExt::write_all_at(&file, &[b'x'; 8192], offset).unwrap();
    }
    assert!(shell(&place, "touch -d @1700000000 in/holes in"));
    let want = image(&place, &["-i", "in"]);
    for format in [
        "--format=gnu",
        "--format=pax --sparse-version=0.0",
        "--format=pax --sparse-version=0.1",
        "--format=pax --sparse-version=1.0",
    ] {
        assert!(shell(
            &place,
            &format!("tar {format} -S -C in -cf a.tar . && gzip -kf a.tar")
        ));
        assert!(image(&place, &["-i", "a.tar"]) == want, "{format} differs");
        assert!(
            image(&place, &["-i", "a.tar.gz"]) == want,
            "{format} differs"
        );
    }
}

#[test]
fn problems_with_entries_are_counted() {
    let place = place();
    let script = "python3 -c \"
import tarfile, io
t = tarfile.open('bad.tar', 'w')
def add(name, type=tarfile.REGTYPE, link='', data=b'x'):
    i = tarfile.TarInfo(name)
    i.type, i.linkname = type, link
    i.size = len(data) if type == tarfile.REGTYPE else 0
    t.addfile(i, io.BytesIO(data))
add('../up')
add('good')
add('link', tarfile.SYMTYPE, '/tmp')
add('link/x')
add('hard', tarfile.LNKTYPE, 'none')
t.close()\"";
    if !has("python3") {
        skip("archives of Python", "there is no python3");
        return;
    }
    assert!(shell(&place, script));
    let done = run(&place, &["-i", "bad.tar"]);
    assert_eq!(done.code, Some(2));
    let want = [
        "leaving out '../up': its name contains '..'",
        "leaving out 'link/x': a directory above it is a symbolic link, which is not followed",
        "leaving out 'hard': its other name, to which it is a hard link, is not in the archive",
    ];
    for line in want {
        assert!(done.stderr.contains(line), "{line}: {}", done.stderr);
    }
    assert_eq!(place.built().paths(), ["good", "link"]);
}

/// Whether the program finds libarchive.
fn libarchive() -> bool {
    let there = has("bsdtar") && redwarfs_extractor::libarchive_version().is_some();
    if !there {
        skip("archives of libarchive", "no bsdtar, or no libarchive");
    }
    there
}

#[test]
fn formats_of_libarchive_make_the_image_of_what_they_unpack_to() {
    if !libarchive() {
        return;
    }
    let place = place();
    fs::remove_file(place.path("in/fifo")).unwrap();
    for (name, command) in [
        ("zip", "bsdtar --format=zip -C in -cf $A ."),
        ("7z", "bsdtar --format=7zip -C in -cf $A ."),
        ("iso", "bsdtar --format=iso9660 -C in -cf $A ."),
        ("xar", "bsdtar --format=xar -C in -cf $A ."),
        ("iso", "bsdtar --format=iso9660 -C in -cf - . | gzip >$A"),
        ("zip", "cd in && zip -qyr ../$A ."),
        ("zip", "cd in && python3 -m zipfile -c ../$A ."),
    ] {
        if command.contains("&& zip") && !has("zip") {
            continue;
        }
        let archive = format!("a.{name}");
        assert!(shell(&place, &format!("rm -rf {archive} un && mkdir un")));
        assert!(shell(&place, &command.replace("$A", &archive)), "{command}");
        assert!(shell(
            &place,
            &format!("bsdtar -xpf {archive} -C un && chmod 755 un")
        ));
        // Of the root, not all formats have an entry.
        let same = ["--set-time=1700000000", "--chmod=D755"];
        let want = image(&place, &[&["-i", "un"], &same[..]].concat());
        assert!(
            image(&place, &[&["-i", &archive], &same[..]].concat()) == want,
            "{command}"
        );
        let format = format!("--input-format={name}");
        let named = image(&place, &[&["-i", &archive, &format], &same[..]].concat());
        assert!(named == want, "{command}");
        let piped = piped(&place, &archive, &[&["-i", "-"], &same[..]].concat());
        assert_eq!(
            (piped.code, piped.stderr.as_str()),
            (Some(0), ""),
            "{command}"
        );
        assert!(
            fs::read(place.path("out")).unwrap() == want,
            "piped {command}"
        );
        if command.contains("gzip") {
            continue;
        }
        // A cut archive is an error, or it says what it lost; it never crashes the program.
        assert!(shell(
            &place,
            &format!("head -c $(($(wc -c <{archive}) / 2)) {archive} >cut")
        ));
        let cut = run(&place, &["-i", "cut", &format]);
        assert_ne!(cut.code, Some(0), "{command}");
        assert_eq!(cut.stderr.lines().count(), 1, "{}", cut.stderr);
    }
    // A list of files of this machine is never guessed.
    let list =
        "#mtree\ndocs type=dir mode=0711\ndocs/a.txt type=file contents=in/docs/a.txt mode=0600\n";
    place.file("list.mtree", list);
    let guessed = run(&place, &["-i", "list.mtree"]);
    assert!(
        guessed
            .stderr
            .ends_with("not an archive in a format that is known\n")
    );
    let listed = run(&place, &["-i", "list.mtree", "--input-format=mtree"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert_eq!(place.built().read("docs/a.txt"), b"docs/a.txt");
    assert_eq!(place.built().permissions("docs"), 0o711);
    // Without the library, the message says so.
    let mut command = mkdwarfs();
    command
        .current_dir(place.path("."))
        .args(["-fo", "out", "-i", "a.zip"]);
    command.args(SAME).env("REDWARFS_LIBARCHIVE", "none.so");
    let done = Done::from(command.output().unwrap());
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr
            .contains("libarchive (tar, cpio, ar, deb, rpm), which cannot be loaded")
    );
}

#[test]
fn libarchive_finds_damaged_contents() {
    if !libarchive() {
        return;
    }
    let place = place();
    let text = b"contents that are stored as they are, and have a checksum";
    place.file("file", text);
    for (name, command) in [
        (
            "zip",
            "bsdtar --format=zip --options=zip:compression=store -cf $A file",
        ),
        (
            "7z",
            "bsdtar --format=7zip --options=7zip:compression=store -cf $A file",
        ),
    ] {
        let archive = format!("a.{name}");
        assert!(shell(&place, &command.replace("$A", &archive)), "{command}");
        let mut bytes = fs::read(place.path(&archive)).unwrap();
        let at = bytes.windows(text.len()).position(|part| part == text);
        bytes[at.unwrap() + 9] ^= 1;
        fs::write(place.path(&archive), bytes).unwrap();
        let _ = fs::remove_file(place.path("out"));
        let done = run(&place, &["-i", &archive]);
        assert_eq!(done.code, Some(1), "{command}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(done.stderr.contains("bad CRC"), "{}", done.stderr);
        assert!(done.stderr.contains("'file'"), "{}", done.stderr);
        assert!(!place.path("out").exists(), "{command}");
    }
    // A list that has the size of a file which does not exist.
    let list = "#mtree\nabsent type=file size=1000\n";
    place.file("list.mtree", list);
    let done = run(&place, &["-i", "list.mtree", "--input-format=mtree"]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(
        done.stderr.contains("1000 bytes shorter"),
        "{}",
        done.stderr
    );
    assert!(!place.path("out").exists());
}

#[test]
fn a_killed_build_leaves_nothing() {
    let place = place();
    fs::create_dir(place.path("spool")).unwrap();
    let mut command = mkdwarfs();
    command.current_dir(place.path("."));
    command.args([
        "-o",
        "new",
        "-i",
        "-",
        "--spool",
        "spool",
        "--input-format=tar",
    ]);
    command
        .args(SAME)
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The beginning of a file that never ends.
    let mut header = vec![0u8; 512];
    header[..4].copy_from_slice(b"file");
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(b"00010000000\0");
    header[156] = b'0';
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    std::io::Write::write_all(&mut stdin, &header).unwrap();
    std::io::Write::write_all(&mut stdin, &vec![1; 300_000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(names(&place.path("spool")), 0);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&place.path("spool")), 0);
    assert!(!place.path("new").exists());
}
