//! What `mkdwarfs` takes from its input, and what it changes or adds: filters, lists, policies,
//! owners, modes, declared entries.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::builder::{Done, TestDir, mkdwarfs};
use crate::support;
use crate::support::{reference, run};
use redwarfs_testkit::skip;

const DOCS: [&str; 5] = [
    "docs/README.md",
    "docs/b.txt",
    "docs/sub/c.txt",
    "a/b.txt",
    "top.txt",
];

/// Sets of rules, with everything that matters about them.
const RULES: [&[&str]; 24] = [
    &[],
    &["- a/b.txt"],
    &["- /a/b.txt"],
    &["- /b.txt"],
    &["- b.txt"],
    &["- in/a/b.txt"],
    &["- i?/*.txt"],
    &["- a"],
    &["- a/"],
    &["- **/a/"],
    &["- a/**"],
    &["- s**"],
    &["- u**"],
    &["- **"],
    &["- /**/"],
    &["- *a*/"],
    &["- in/"],
    &["-i A/B.TXT"],
    &["+ docs/README.md", "- docs/*", "- *.txt"],
    &["+ docs/", "+ docs/**.md", "- *"],
    &["- docs/sub/**", "+ *.txt", "- **"],
    &["+ *.{md,[!x]}", "- *.[st]xt"],
    &["-   {a,docs}/b.txt"],
    &["- \\a/?.txt"],
];

/// Arguments with an `-F` for each rule.
fn with_rules<'a>(rules: &[&'a str]) -> Vec<&'a str> {
    rules.iter().flat_map(|rule| ["-F", rule]).collect()
}

fn shown(place: &TestDir, program: &Path, rules: &[&str]) -> Vec<String> {
    let mut args = vec![
        "-i".to_owned(),
        place.text("in"),
        "--debug-filter".to_owned(),
    ];
    args.extend(with_rules(rules).iter().map(|&arg| arg.to_owned()));
    let done = run(program, &args);
    assert!(
        done.status.success(),
        "{rules:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8(done.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn filters_decide_as_those_of_the_reference() {
    let Some(reference) = reference() else { return };
    let place = TestDir::new(&DOCS);
    for rules in RULES {
        let want = shown(&place, &reference.join("mkdwarfs"), rules);
        let got = shown(&place, Path::new(support::MKDWARFS), rules);
        assert_eq!(got, want, "{rules:?}");
    }
}

#[test]
fn what_a_filter_shows_is_what_is_built() {
    let place = TestDir::new(&DOCS);
    let mut images = std::collections::BTreeSet::new();
    for rules in RULES {
        let root = format!("{}/", fs::canonicalize(place.path("in")).unwrap().display());
        let lines = shown(&place, Path::new(support::MKDWARFS), rules);
        let included = lines.iter().filter_map(|line| line.strip_prefix("+ "));
        let mut want: Vec<&str> = included
            .map(|path| path.strip_prefix(&root).unwrap().trim_end_matches('/'))
            .collect();
        want.sort_unstable();
        let mut got = place.image(&with_rules(rules)).paths();
        got.sort_unstable();
        assert_eq!(got, want, "{rules:?}");
        images.insert(got);
    }
    assert!(images.len() > 8, "the rules make no difference");
}

#[test]
fn filter_rules_come_from_arguments_and_files() {
    let place = TestDir::new(&DOCS);
    let inner = place.file("inner", "# text\n\n- /a/**\n");
    let outer = place.file("outer", format!("+ README.md\n. {inner}\n- docs/*\n"));
    let want = ["docs", "docs/README.md", "docs/sub", "docs/sub/c.txt"];
    let outer = format!(". {outer}");
    for args in [
        &["-F", outer.as_str(), "-F", "- top*"][..],
        &["-F", outer.as_str(), "- top*"],
        &[
            "--filter=+ README.md",
            "-F",
            "- /a/**",
            "- docs/*",
            "- top*",
        ],
        &[
            "--filt",
            "+ README.md",
            "- /a/**",
            "- docs/*",
            "--filter",
            "- top*",
        ],
    ] {
        assert_eq!(place.image(args).paths(), want, "{args:?}");
    }
    let recursion = place.file("loop", "");
    fs::write(place.path("loop"), format!("- x\n. {recursion}\n")).unwrap();
    let done = place.run(&["-F", &format!(". {recursion}")]);
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.stderr,
        format!(
            "mkdwarfs: could not parse filter rule '. {recursion}': {recursion}: line 2: recursion \
             detected while opening file: {recursion}\n"
        )
    );
}

#[test]
fn debug_filter_has_modes_and_builds_nothing() {
    let place = TestDir::new(&["d/x", "d/y", "e/z"]);
    let root = fs::canonicalize(place.path("in")).unwrap();
    for (mode, want) in [
        ("", "+ R/d/\n- R/e/\n- R/d/x\n+ R/d/y\n"),
        ("=all", "+ R/d/\n- R/e/\n- R/d/x\n+ R/d/y\n"),
        ("=files", "- R/d/x\n+ R/d/y\n"),
        ("=included", "R/d/\nR/d/y\n"),
        ("=included-files", "R/d/y\n"),
        ("=excluded", "R/e/\nR/d/x\n"),
        ("=excluded-files", "R/d/x\n"),
    ] {
        let args = [&format!("--debug-filter{mode}"), "-F", "- x", "- e/**"];
        let done = place.run(&args);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(text, want.replace('R', root.to_str().unwrap()), "{mode}");
    }
    assert!(!place.path("out").exists());
    // What other options leave out is shown as excluded, devices without their options are not.
    symlink("x", place.path("in/d/link")).unwrap();
    let mkfifo = Command::new("mkfifo").arg(place.path("in/pipe")).status();
    assert!(mkfifo.unwrap().success());
    let done = place.run(&["--debug-filter", "files", "--symlinks=drop"]);
    let text = String::from_utf8(done.stdout).unwrap();
    let want = "+ R/pipe\n- R/d/link\n+ R/d/x\n+ R/d/y\n+ R/e/z\n";
    assert_eq!(text, want.replace('R', root.to_str().unwrap()));
}

#[test]
fn empty_directories_go_after_filtering() {
    let place = TestDir::new(&["a/b/file.o", "a/c/", "d/e/file.c", "f/"]);
    let args = ["--remove-empty-dirs", "-F", "- *.o"];
    assert_eq!(place.image(&args).paths(), ["d", "d/e", "d/e/file.c"]);
    assert_eq!(place.image(&args[1..]).paths().len(), 7);
}

fn with_list(place: &TestDir, list: &[u8], args: &[&str]) -> Done {
    let mut child = place
        .command(&[&["--input-list=-"], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its options ends without reading.
    if let Err(error) = child.stdin.take().unwrap().write_all(list) {
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
    child.wait_with_output().unwrap().into()
}

#[test]
fn lists_from_standard_input_and_with_nul() {
    let place = TestDir::new(&["a/x", "a/line\nbreak", "b/y", "c"]);
    fs::set_permissions(place.path("in/a"), fs::Permissions::from_mode(0o711)).unwrap();
    let done = with_list(&place, b"./a//x\n\nb\n", &[]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    // Parents come with their attributes, listed directories without their content.
    assert_eq!(place.built().paths(), ["a", "a/x", "b"]);
    assert_eq!(place.built().permissions("a"), 0o711);
    for null in ["--null", "-0"] {
        let done = with_list(&place, b"a/line\nbreak\0c\0", &[null]);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        assert_eq!(place.built().paths(), ["a", "a/line\nbreak", "c"]);
    }
    // Absolute paths, also as the user writes the input directory.
    symlink("in", place.path("link")).unwrap();
    let list = format!(
        "{}/c\n{}/a/x\n",
        place.text("link"),
        fs::canonicalize(place.path("in")).unwrap().display()
    );
    let done: Done = mkdwarfs()
        .args([
            "-i",
            &place.text("link"),
            "-fo",
            &place.text("out"),
            "-l1",
            "--log-level=warn",
        ])
        .args(["--input-list", &place.file("list", list)])
        .output()
        .unwrap()
        .into();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(place.built().paths(), ["a", "a/x", "c"]);
    // Without an input directory paths are those of the current one.
    let done: Done = mkdwarfs()
        .current_dir(place.path("in"))
        .args(["-fo", &place.text("out"), "-l1", "--log-level=warn"])
        .args(["--input-list", &place.file("list", "b/y\n")])
        .output()
        .unwrap()
        .into();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(place.built().paths(), ["b", "b/y"]);
}

#[test]
fn lists_with_mistakes() {
    let place = TestDir::new(&["a/x", "c"]);
    symlink("a", place.path("in/link")).unwrap();
    for (list, code, want) in [
        ("c\nnone\n", 2, "error reading entry: none: "),
        ("c\nnone/x\n", 2, "error reading entry: none/x: "),
        (
            "c\n/etc/hosts\n",
            2,
            "ignoring path '/etc/hosts' not below input path",
        ),
        ("c\n../x\n", 2, "ignoring path '../x' not below input path"),
        (
            "c/x\nc\n",
            2,
            "error reading entry: c/x: 'c' is not a directory",
        ),
        (
            "link/x\nc\nlink/none/y\n",
            2,
            "error reading entry: link/x: 'link' is a symbolic link, which is not followed",
        ),
    ] {
        let done = with_list(&place, list.as_bytes(), &[]);
        assert_eq!(done.code, Some(code), "{list}: {}", done.stderr);
        assert!(done.stderr.contains(want), "{list}: {}", done.stderr);
        assert_eq!(place.path("out").exists(), code == 2);
        if code == 2 {
            assert_eq!(place.built().paths(), ["c"]);
            fs::remove_file(place.path("out")).unwrap();
        }
    }
    let done = with_list(
        &place,
        b"c\nc\n./c\n",
        &["--log-level=info", "--no-progress"],
    );
    // The level is given twice.
    assert_eq!(done.code, Some(1));
}

#[test]
fn lists_keep_their_order_and_imply_devices() {
    let place = TestDir::new(&["1", "2", "3"]);
    let mkfifo = Command::new("mkfifo").arg(place.path("in/pipe")).status();
    assert!(mkfifo.unwrap().success());
    let done = with_list(&place, b"3\n1\npipe\n2\n", &["--order=none", "-C", "null"]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let built = place.built();
    assert_eq!(built.paths(), ["1", "2", "3", "pipe"]);
    let block = built.0.decode_block(redwarfs_format::BlockNo(0)).unwrap();
    assert_eq!(block, b"312");
}

#[test]
fn explicit_orders_may_be_separated_by_nul() {
    let place = TestDir::new(&["1", "2", "3", "4\n"]);
    for (list, null, want) in [
        ("/3\n2\n", &[][..], &b"3214\n"[..]),
        ("./3\n.//2\n", &[], b"3214\n"),
        ("4\n\0/3\0", &["-0"], b"4\n312"),
    ] {
        let order = format!("--order=explicit:file={}", place.file("order", list));
        let built = place.image(&[&[order.as_str(), "-C", "null"], null].concat());
        let block = built.0.decode_block(redwarfs_format::BlockNo(0)).unwrap();
        assert_eq!(block, want);
    }
}

/// Lists of several runs that were joined.
#[test]
fn in_explicit_orders_the_first_place_of_a_path_counts() {
    let place = TestDir::new(&["1", "2", "3"]);
    let order = place.file("order", "/3\n2\n./3\n1\n2\n");
    let built = place.image(&[&format!("--order=explicit:file={order}"), "-C", "null"]);
    let block = built.0.decode_block(redwarfs_format::BlockNo(0)).unwrap();
    assert_eq!(block, b"321");
    let order = format!("--order=explicit:file={order}");
    let mut command = mkdwarfs();
    command.args(["-i", "in", "-o", "other", "--log-level=info", &order]);
    let said = Done::from(command.current_dir(place.path("")).output().unwrap()).stderr;
    let note = "/order: ignoring 2 lines with a path that stands further up\n";
    assert!(said.contains(note), "{said}");
}

#[test]
fn one_file_system_and_tagged_directories() {
    let place = TestDir::new(&[
        "cache/x",
        "cache/y/z",
        "skip/.nobackup",
        "skip/x",
        "keep/x",
        "mnt/",
    ]);
    let signature = "Signature: 8a477f597d28d172789f06886806bc55\n";
    fs::write(place.path("in/cache/CACHEDIR.TAG"), signature).unwrap();
    let built = place.image(&["--exclude-caches"]);
    let caches: Vec<String> = built
        .paths()
        .into_iter()
        .filter(|p| p.starts_with("cache"))
        .collect();
    assert_eq!(caches, ["cache", "cache/CACHEDIR.TAG"]);
    let built = place.image(&[
        "--exclude-if-present=.nobackup",
        "--exclude-if-present",
        "z",
    ]);
    let want = [
        "cache",
        "cache/CACHEDIR.TAG",
        "cache/x",
        "cache/y",
        "cache/y/z",
        "keep",
        "keep/x",
        "mnt",
        "skip",
        "skip/.nobackup",
    ];
    assert_eq!(built.paths(), want);

    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(place.path("in/mnt"))
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        skip("--one-file-system", "mounting needs root");
        return;
    }
    fs::write(place.path("in/mnt/elsewhere"), "x").unwrap();
    let all = place.image::<&str>(&[]).paths();
    let done: Done = mkdwarfs()
        .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
        .args(["--one-file-system", "--log-level=verbose"])
        .output()
        .unwrap()
        .into();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let one = place.built().paths();
    let status = Command::new("umount")
        .arg("-l")
        .arg(place.path("in/mnt"))
        .status();
    assert!(status.unwrap().success());
    assert!(all.contains(&"mnt/elsewhere".to_owned()));
    assert!(one.contains(&"mnt".to_owned()) && !one.contains(&"mnt/elsewhere".to_owned()));
    let said = &done.stderr;
    assert!(
        said.contains("left out: 1 mount point of another file system (--one-file-system)\n"),
        "{said}"
    );
    assert!(
        said.contains("of another file system, left out: "),
        "{said}"
    );
}

#[test]
fn links_have_policies() {
    let place = TestDir::new(&["a", "dir/b"]);
    symlink("dir", place.path("in/to-dir")).unwrap();
    symlink("nowhere", place.path("in/broken")).unwrap();
    fs::hard_link(place.path("in/a"), place.path("in/hard")).unwrap();
    let all = ["a", "broken", "dir", "dir/b", "hard", "to-dir"];
    assert_eq!(place.image(&["--symlinks=keep"]).paths(), all);
    assert_eq!(
        place.image(&["--symlinks=drop"]).paths(),
        ["a", "dir", "dir/b", "hard"]
    );
    let done = place.run(&["--symlinks=follow"]);
    assert_eq!(done.code, Some(2));
    assert!(
        done.stderr
            .contains("broken': cannot read entry, leaving it out: ")
    );
    let followed = ["a", "dir", "dir/b", "hard", "to-dir", "to-dir/b"];
    assert_eq!(place.built().paths(), followed);
    assert_eq!(place.built().read("to-dir/b"), b"dir/b");

    assert_eq!(place.image(&["--hard-links=keep"]).stat("a").nlink, 2);
    let built = place.image(&["--hard-links=dissolve"]);
    assert_eq!((built.stat("a").nlink, built.stat("hard").nlink), (1, 1));
    assert_ne!(
        built.0.find_path(b"a").unwrap(),
        built.0.find_path(b"hard").unwrap()
    );
    assert_eq!(built.read("hard"), b"a");
}

#[test]
fn owners_are_set_or_mapped() {
    let place = TestDir::new(&["mine"]);
    let me = fs::metadata(place.path("in/mine")).unwrap();
    let (uid, gid) = (me.uid(), me.gid());
    let map = place.file(
        "map",
        format!(
            "# shifted\nuser {uid}-{} 4000000000\ngroup {gid} root\ngroup * 7\n",
            uid + 10
        ),
    );
    let map = format!("--owner-map={map}");
    let owner = |args: &[&str]| {
        let stat = place.image(args).stat("mine");
        (stat.uid, stat.gid)
    };
    assert_eq!(owner(&[]), (uid, gid));
    assert_eq!(owner(&[&map]), (4_000_000_000, 0));
    assert_eq!(owner(&[&map, "--set-owner=root"]), (0, 0));
    assert_eq!(
        owner(&["--set-owner=4294967295", "--set-group=65536"]),
        (u32::MAX, 65_536)
    );
    let bad = place.file("bad", "user 1 2\nuser x\n");
    let done = place.run(&["--owner-map", &bad]);
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.stderr,
        format!(
            "mkdwarfs: bad owner map: {bad}: line 2: expected 'user FROM TO' or 'group FROM TO'\n"
        )
    );
}

/// Specifications that the program `chmod` understands as well.
const MODES: [&str; 16] = [
    "+x",
    "-w",
    "=r",
    "a+w,o-rwx",
    "u=rwX,go=rX",
    "ug=rw,o=",
    "g=u,o=g",
    "u+s,g+s",
    "+t",
    "a=X",
    "u-x+w",
    "=755",
    "+111",
    "-222",
    "go=",
    "ug-st,=Xr",
];

#[test]
fn chmod_does_what_the_program_does() {
    let place = TestDir::new(&["f644", "f755", "f4710", "f000", "d/", "d/sub/"]);
    let modes = |root: &str| {
        for (name, mode) in [
            ("f644", 0o644),
            ("f755", 0o755),
            ("f4710", 0o4710),
            ("f000", 0o000),
            ("d", 0o6750),
            ("d/sub", 0o755),
        ] {
            let at = place.path(root).join(name);
            fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    modes("in");
    for umask in ["022", "077"] {
        for spec in MODES {
            let copy = place.path("copy");
            let _ = fs::remove_dir_all(&copy);
            support::must(
                "cp",
                [
                    "-r".as_ref(),
                    place.path("in").as_os_str(),
                    copy.as_os_str(),
                ],
            );
            modes("copy");
            // The names after the mode are those of the tree, deepest first.
            let names = ["d/sub", "d", "f000", "f4710", "f644", "f755"];
            let changed = Command::new("sh")
                .args([
                    "-c",
                    "umask $0; cd $1 && shift && chmod -- \"$@\" 2>&1",
                    umask,
                ])
                .arg(&copy)
                .arg(spec)
                .args(names)
                .output()
                .unwrap();
            // With a bare `-w` chmod complains about what the umask keeps it from doing.
            let _ = changed;
            let done: Done = Command::new("sh")
                .args(["-c", "umask $0; exec \"$@\"", umask])
                .arg(support::MKDWARFS)
                .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l0"])
                .args(["--log-level=warn", "--chmod", spec])
                .output()
                .unwrap()
                .into();
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{spec}");
            let built = place.built();
            for name in names {
                let want = fs::symlink_metadata(copy.join(name)).unwrap().mode() & 0o7777;
                let got = built.permissions(name);
                assert_eq!(
                    got, want,
                    "{spec} with umask {umask} on {name}: {got:o}, not {want:o}"
                );
            }
        }
    }
    let built = place.image(&["--chmod=norm"]);
    assert_eq!(
        (built.permissions("f755"), built.permissions("f644")),
        (0o555, 0o444)
    );
    assert_eq!(built.permissions("d"), 0o555);
    let built = place.image(&["--chmod", "D=711,F600"]);
    assert_eq!(
        (built.permissions("f755"), built.permissions("d")),
        (0o600, 0o711)
    );
}

#[test]
fn pseudo_files_declare_what_needs_root_elsewhere() {
    let place = TestDir::new(&["etc/passwd", "bin/tool"]);
    let host = place.file("motd", "hello\n");
    let pseudo = place.file(
        "pseudo",
        format!(
            "# devices\n/dev d 755 root root\n/dev/null c 666 0 0 1 3\ndev/sda b 660 0 6 8 0\n\
             dev/log i 666 0 0 s\nrun/fifo i 600 0 0\netc/passwd m 600 4000000000 -\n\
             \"etc/the motd\" f 644 0 0 {host}\nbin/sh s 777 0 0 tool\n/ m 700 1 2\n"
        ),
    );
    let mkfifo = Command::new("mkfifo").arg(place.path("in/found")).status();
    assert!(mkfifo.unwrap().success());
    let built = place.image(&["--pseudo-file", &pseudo]);
    // A FIFO that is found is not stored without its option; declared ones are.
    let want = [
        "bin",
        "bin/sh",
        "bin/tool",
        "dev",
        "dev/log",
        "dev/null",
        "dev/sda",
        "etc",
        "etc/passwd",
        "etc/the motd",
        "run",
        "run/fifo",
    ];
    assert_eq!(built.paths(), want);
    assert_eq!(built.stat("dev/null").mode, 0o020_666);
    assert_eq!(built.stat("dev/null").rdev, rustix::fs::makedev(1, 3));
    assert_eq!(built.stat("dev/sda").mode, 0o060_660);
    assert_eq!(built.stat("dev/log").mode, 0o140_666);
    assert_eq!(built.stat("run/fifo").mode, 0o010_600);
    assert_eq!((built.stat("").mode, built.stat("").uid), (0o040_700, 1));
    assert_eq!(built.stat("etc/passwd").uid, 4_000_000_000);
    assert_eq!(built.read("etc/passwd"), b"etc/passwd");
    assert_eq!(built.read("etc/the motd"), b"hello\n");
    assert_eq!(
        place
            .image(&["--pseudo-file", &pseudo, "--with-specials"])
            .paths()
            .len(),
        13
    );

    let useless = place.file("useless", "etc/none m 600 0 0\n");
    let done = place.run(&["--pseudo-file", &useless]);
    assert_eq!(done.code, Some(2));
    assert!(
        done.stderr
            .contains("declared in a pseudo file, but not in the tree: etc/none")
    );
    let bad = place.file("bad", "a d 755 0 0\nb q 755 0 0\n");
    let done = place.run(&["--pseudo-file", &bad]);
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.stderr,
        format!(
            "mkdwarfs: bad pseudo file: {bad}: line 2: unknown type 'q' (one of m d f s c b i x)\n"
        )
    );
}

#[test]
fn a_stalled_file_does_not_stall_the_build() {
    if !redwarfs_testkit::can_mount("a stalled file system") {
        return;
    }
    let place = TestDir::new(&["a", "z"]);
    let disk = place.path("disk");
    fs::create_dir(&disk).unwrap();
    symlink("../disk/image", place.path("in/image")).unwrap();
    let file = redwarfs_testkit::faulty::FaultyFile::mount(&disk, vec![1; 5000]);
    let file = file.unwrap();
    let built = place.image(&["--file-timeout=20s", "--symlinks=follow"]);
    assert_eq!(built.read("image"), vec![1; 5000]);
    // Only the entry that does not answer is missing, not what lies beside it.
    file.stall();
    let start = Instant::now();
    // A list is looked at before anything is listed.
    let list = place.file("list", "a\nimage\nimage/below\nz\n");
    let follow = ["--file-timeout=300ms", "--symlinks=follow"];
    let listed = place.run(&[&follow[..], &["--input-list", &list]].concat());
    let done = place.run(&follow);
    let took = start.elapsed();
    file.go_on();
    assert_eq!(listed.code, Some(2), "{}", listed.stderr);
    for path in ["image", "image/below"] {
        let text = format!("error reading entry: {path}: given up");
        assert!(listed.stderr.contains(&text), "{}", listed.stderr);
    }
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(
        done.stderr.contains("in/image': cannot read entry"),
        "{}",
        done.stderr
    );
    assert!(done.stderr.contains("given up"), "{}", done.stderr);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert_eq!(place.built().paths(), ["a", "z"]);
    assert_eq!(place.built().read("z"), b"z");
}
