//! Where `mkdwarfs` writes, what becomes of a file that is there, and what the image leaves out.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Command, Stdio};

use crate::builder::{Done, TestDir, mkdwarfs};
use crate::support;
use redwarfs_testkit::skip;

/// A build without `--force` and at the level `info`.
fn build(place: &TestDir, output: &str, args: &[&str]) -> Done {
    mkdwarfs()
        .args(["-i", &place.text("in"), "-o", output, "-l1"])
        .args(args)
        .output()
        .unwrap()
        .into()
}

/// A command line of a shell, in which `$0` is the program and `$1` the directory of the place.
fn shell(place: &TestDir, line: &str) -> Done {
    Command::new("bash")
        .args(["-c", line, support::MKDWARFS])
        .arg(place.path("."))
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

fn is_image(bytes: &[u8]) -> bool {
    bytes.starts_with(b"DWARFS")
}

#[test]
fn replaced_files_keep_mode_and_owner() {
    let place = TestDir::new(&["a"]);
    for mode in [0o600, 0o755, 0o640] {
        let out = place.file("out", "old");
        fs::set_permissions(&out, fs::Permissions::from_mode(mode)).unwrap();
        let owned = chown(&out, Some(1234), Some(2345)).is_ok();
        let done = place.run::<&str>(&[]);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        let meta = fs::metadata(&out).unwrap();
        assert_eq!(meta.mode() & 0o7777, mode);
        assert!(is_image(&fs::read(&out).unwrap()));
        if owned {
            assert_eq!((meta.uid(), meta.gid()), (1234, 2345));
        } else {
            skip("owners of replaced files", "changing owners needs root");
        }
    }
}

/// What cannot be replaced is known before the work, which would begin with a message.
#[test]
fn immutable_files_are_refused_before_the_work() {
    let place = TestDir::new(&["a"]);
    let out = place.file("out", "old");
    let file = File::open(&out).unwrap();
    let set = |flags| rustix::fs::ioctl_setflags(&file, flags);
    if set(rustix::fs::IFlags::IMMUTABLE).is_err() {
        skip(
            "immutable outputs",
            "file flags need root and a file system with them",
        );
        return;
    }
    let done = build(&place, &out, &["-f"]);
    set(rustix::fs::IFlags::empty()).unwrap();
    let want = format!(
        "mkdwarfs: cannot write image: {out}: cannot be replaced, because it is immutable (see lsattr)\n"
    );
    assert_eq!((done.code, done.stderr), (Some(1), want));
    assert_eq!(fs::read(&out).unwrap(), b"old");
}

#[test]
fn files_of_others_in_sticky_directories() {
    let place = TestDir::new(&["a"]);
    let root = rustix::process::geteuid().is_root();
    let setpriv = Command::new("setpriv").arg("--version").output();
    if !root || setpriv.is_err() {
        skip("outputs in sticky directories", "needs root and setpriv");
        return;
    }
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path("program");
    fs::copy(support::MKDWARFS, &program).unwrap();
    let out = shared.join("out");
    let run = |mode: u32| -> Done {
        fs::write(&out, "old").unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(mode)).unwrap();
        Command::new("setpriv")
            .args(["--reuid=1234", "--regid=2345", "--clear-groups"])
            .arg(&program)
            .args(["-i", &place.text("in"), "-l1", "--log-level=warn", "-fo"])
            .arg(&out)
            .output()
            .unwrap()
            .into()
    };
    let why = "because it belongs to another user, in a directory with the sticky bit";
    let shown = out.display();
    let done = run(0o644);
    let want = format!("mkdwarfs: cannot write image: {shown}: cannot be replaced, {why}\n");
    assert_eq!((done.code, done.stderr), (Some(1), want));
    assert_eq!(fs::read(&out).unwrap(), b"old");
    // What cannot be replaced can be written to.
    let done = run(0o666);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let said = format!("output {shown} cannot be replaced, {why}; it is overwritten");
    assert!(done.stderr.contains(&said), "{}", done.stderr);
    assert!(is_image(&fs::read(&out).unwrap()));
    assert_eq!(fs::metadata(&out).unwrap().uid(), 0);
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 1);
    // The same where nothing can be added to the directory.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    let done = run(0o666);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let said = "cannot be replaced, because its directory cannot be changed; it is overwritten";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    assert!(is_image(&fs::read(&out).unwrap()));
    let done = run(0o644);
    let want = format!("mkdwarfs: cannot write image: {shown}: permission denied\n");
    assert_eq!((done.code, done.stderr), (Some(1), want));
}

#[test]
fn mount_points_are_written_to() {
    let place = TestDir::new(&["a"]);
    let (out, other) = (place.file("out", "hidden"), place.file("other", "old"));
    let mount = |from: &str| {
        let mut command = Command::new("mount");
        command.args(["--bind", from, &out]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !mount(&other) {
        skip("mount points as outputs", "mounting needs root");
        return;
    }
    let done = place.run::<&str>(&[]);
    support::must("umount", [&out]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let said = "cannot be replaced, because it is a mount point; it is overwritten";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    assert!(is_image(&fs::read(&other).unwrap()));
    assert_eq!(fs::read(&out).unwrap(), b"hidden");
}

#[test]
fn what_is_no_regular_file_needs_no_force() {
    let place = TestDir::new(&["a"]);
    let done = build(&place, "/dev/null", &[]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let said = "output /dev/null is a device, which is written to directly";
    assert!(done.stderr.contains(said), "{}", done.stderr);

    let fifo = place.text("fifo");
    support::must("mkfifo", [&fifo]);
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).unwrap()
    });
    let done = build(&place, &fifo, &[]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(is_image(&reader.join().unwrap()));

    // Appends to what the shell has opened, and leaves what is there.
    for (line, start) in [
        (
            "echo head >$1/a; $0 -i $1/in -o /dev/stdout -l1 >>$1/a",
            &b"head\n"[..],
        ),
        ("(echo head; $0 -i $1/in -o /dev/fd/1 -l1) >$1/a", b"head\n"),
        ("$0 -i $1/in -o >(cat >$1/a) -l1; wait $!", b""),
        ("exec 5>$1/a; $0 -i $1/in -o /dev/fd/5 -l1", b""),
    ] {
        let done = shell(&place, line);
        assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
        let bytes = fs::read(place.path("a")).unwrap();
        assert!(bytes.starts_with(start), "{line}");
        assert!(is_image(&bytes[start.len()..]), "{line}");
    }
}

#[test]
fn a_closed_standard_output_is_an_error() {
    let place = TestDir::new(&["a"]);
    let want = "cannot write image: standard output: it is closed";
    for (line, want) in [
        ("$0 -i $1/in -o - -l1 >&-", want),
        (
            "$0 -i $1/in -o /dev/stdout -l1 >&-",
            "/dev/stdout: it is closed",
        ),
        (
            "$0 -i $1/in --debug-filter >&-",
            "cannot write to standard output: it is closed",
        ),
        (
            "$0 -i $1/in -o - -l1 1</dev/null",
            "standard output: bad file descriptor",
        ),
    ] {
        let done = shell(&place, line);
        assert_eq!(done.code, Some(1), "{line}");
        assert!(done.stderr.contains(want), "{line}: {}", done.stderr);
    }
    let done = shell(
        &place,
        "$0 -i $1/in -o - -l1 >/dev/null && $0 -i $1/in -o - -l1 1<>/dev/null",
    );
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[test]
fn headers_that_hide_the_image_are_refused() {
    let place = TestDir::new(&["a", "b/c"]);
    let build_with = |header: &[u8]| {
        let header = place.file("header", header);
        place.run(&["--header", &header])
    };
    assert_eq!(build_with(b"#!/bin/sh\n").code, Some(0));
    let image = fs::read(place.path("out")).unwrap()[10..].to_vec();
    let old = fs::read(place.path("out")).unwrap();
    let text = [b"#!/bin/sh\n", &image[..]].concat();
    for (header, at) in [
        (&image[..image.len() - 10], 0),
        (&image[..], 0),
        (&text[..], 10),
    ] {
        let done = build_with(header);
        let want = format!(
            "mkdwarfs: cannot use header file: {}: what looks like an image at byte {at} would be \
             found in place of the new image\n",
            place.text("header")
        );
        assert_eq!((done.code, done.stderr), (Some(1), want));
        assert_eq!(fs::read(place.path("out")).unwrap(), old);
    }
    // What only begins like an image hides nothing.
    let half = &image[..40];
    for header in [half, b"DWARFS\x02\x05", &[half, half, b"text"].concat()] {
        let done = build_with(header);
        let why = "it is neither an ELF file nor a script that begins with #!\n";
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(
            done.stderr.ends_with(why) && done.stderr.lines().count() == 1,
            "{}",
            done.stderr
        );
        assert_eq!(place.built().0.header_bytes().unwrap(), header);
    }
}

#[test]
fn the_runtime_makes_a_program() {
    let place = TestDir::new(&["AppRun"]);
    let app_run = place.path("in/AppRun");
    fs::set_permissions(&app_run, fs::Permissions::from_mode(0o755)).unwrap();
    let with = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
            .args(["--log-level=warn", "--header=runtime"])
            .args(args)
            .env_remove("REDWARFS_RUNTIME");
        command
    };
    let run = |mut command: Command| Done::from(command.output().unwrap());
    let mode = || fs::metadata(place.path("out")).unwrap().mode() & 0o777;
    let is_header = |wanted: &[u8]| {
        assert_eq!(place.built().0.header_bytes().unwrap(), wanted);
    };
    // Named by the environment. Launchers know the file by bytes of the ELF header.
    let elf = [&b"\x7fELF\x02\x01\x01\0"[..], &[0; 56]].concat();
    let named = place.file("named", &elf);
    let mut command = with(support::MKDWARFS.as_ref(), &[]);
    command.env("REDWARFS_RUNTIME", &named);
    let done = run(command);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let mut marked = elf.clone();
    marked[8..11].copy_from_slice(b"AI\x02");
    is_header(&marked);
    assert_eq!(fs::read(&named).unwrap(), elf);
    // Whoever may read it may execute it, also if it replaces a file.
    assert_eq!(mode() & 0o111, (mode() & 0o444) >> 2);
    assert_eq!(mode() & 0o100, 0o100);
    fs::set_permissions(place.path("out"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut command = with(support::MKDWARFS.as_ref(), &[]);
    command.env("REDWARFS_RUNTIME", &named);
    assert_eq!(run(command).code, Some(0));
    assert_eq!(mode(), 0o750);
    // Without a program, the file can still be mounted.
    for (prepare, problem) in [
        (Some(0o644), "not an executable file"),
        (None, "no such file or directory"),
    ] {
        match prepare {
            Some(mode) => {
                fs::set_permissions(&app_run, fs::Permissions::from_mode(mode)).unwrap();
            }
            None => fs::remove_file(&app_run).unwrap(),
        }
        let mut command = with(support::MKDWARFS.as_ref(), &[]);
        command.env("REDWARFS_RUNTIME", &named);
        let done = run(command);
        let said = format!(
            "the runtime will have nothing to start: {}: {problem}\n",
            app_run.display()
        );
        assert_eq!(done.code, Some(0));
        assert!(done.stderr.ends_with(&said), "{}", done.stderr);
    }
    // Nowhere, in the library directory, and beside the program.
    fs::create_dir(place.path("bin")).unwrap();
    let program = place.path("bin/mkdwarfs");
    fs::copy(support::MKDWARFS, &program).unwrap();
    let done = run(with(&program, &[]));
    let want = format!(
        "mkdwarfs: cannot find the runtime: {}: no such file, nor is it in ../lib/redwarfs (set \
         REDWARFS_RUNTIME to its path, or give --header=./runtime for a file of that name)\n",
        place.text("bin/dwarfs-runtime")
    );
    assert_eq!((done.code, done.stderr), (Some(1), want));
    fs::create_dir_all(place.path("lib/redwarfs")).unwrap();
    for name in ["lib/redwarfs/dwarfs-runtime", "bin/dwarfs-runtime"] {
        place.file(name, format!("#!/bin/sh\n# {name}\n"));
        assert_eq!(run(with(&program, &[])).code, Some(0));
        is_header(&fs::read(place.path(name)).unwrap());
    }
    // Rewriting replaces it.
    let mut command = Command::new(&program);
    command
        .args([
            "-i",
            &place.text("out"),
            "-o",
            &place.text("new"),
            "--recompress=none",
        ])
        .args(["--log-level=warn", "--header=runtime"])
        .env("REDWARFS_RUNTIME", &named);
    let done = run(command);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert!(fs::read(place.path("new")).unwrap().starts_with(&marked));
    let meta = fs::metadata(place.path("new")).unwrap();
    assert_eq!(meta.mode() & 0o100, 0o100);
    // A program that is kept in front stays one.
    for (mode, want) in [(0o755, 0o111), (0o644, 0)] {
        fs::set_permissions(place.path("new"), fs::Permissions::from_mode(mode)).unwrap();
        let mut command = mkdwarfs();
        command
            .args(["-i", &place.text("new"), "-fo", &place.text("newer")])
            .args(["--recompress=none", "--log-level=warn"]);
        assert_eq!(run(command).code, Some(0));
        let mode = fs::metadata(place.path("newer")).unwrap().mode();
        assert_eq!(mode & 0o111, want & (mode & 0o444) >> 2);
        fs::remove_file(place.path("newer")).unwrap();
    }
}

#[test]
fn the_runtime_in_front_reads_all_codecs() {
    let place = TestDir::new(&["AppRun"]);
    let app_run = place.path("in/AppRun");
    fs::write(&app_run, "text ".repeat(10_000)).unwrap();
    fs::set_permissions(&app_run, fs::Permissions::from_mode(0o755)).unwrap();
    let build = |runtime: &str, codec: &str| {
        Done::from(
            mkdwarfs()
                .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
                .args(["--log-level=warn", "--header=runtime", "-C", codec])
                .args(["--no-history"])
                .env("REDWARFS_RUNTIME", runtime)
                .output()
                .unwrap(),
        )
    };
    let reads = |codecs: &[&str]| -> Vec<u8> {
        let texts = codecs
            .iter()
            .map(|codec| format!("redwarfs-runtime reads {codec}\0"));
        let all = texts.collect::<String>();
        [b"\x7fELF".as_slice(), &[0; 60], all.as_bytes()].concat()
    };
    let two = place.file("two", reads(&["zstd", "lz4"]));
    for codec in ["null", "zstd", "lz4", "lz4hc"] {
        let done = build(&two, codec);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{codec}");
    }
    let before = fs::read(place.path("out")).unwrap();
    for codec in ["lzma", "brotli"] {
        let done = build(&two, codec);
        let said = format!(
            "mkdwarfs: cannot write image: {}: the runtime in front does not read {}, which section 0 needs: \
             choose another codec with --compression, or a runtime with this one\n",
            place.text("out"),
            codec.to_uppercase()
        );
        assert_eq!((done.code, done.stderr), (Some(1), said));
        assert_eq!(fs::read(place.path("out")).unwrap(), before);
    }
    // One that does not say what it reads, and words that are no codec.
    let other = place.file("other", reads(&["nothing"]));
    assert_eq!(build(&other, "brotli").code, Some(0));
    let all = ["zstd", "lz4", "lzma", "brotli", "ricepp", "flac"];
    let all = place.file("all", reads(&all));
    assert_eq!(build(&all, "brotli").code, Some(0));
    // Rewriting looks at what it keeps in front.
    let done = Done::from(
        mkdwarfs()
            .args(["-i", &place.text("out"), "-o", &place.text("new")])
            .args(["--recompress", "--log-level=warn", "--header", &two])
            .args(["-C", "brotli"])
            .output()
            .unwrap(),
    );
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(!place.path("new").exists());
}

fn left_out(place: &TestDir, args: &[&str]) -> Vec<String> {
    let done: Done = mkdwarfs()
        .args(["-i", &place.text("in"), "-fo", &place.text("out"), "-l1"])
        .args(args)
        .output()
        .unwrap()
        .into();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let lines = done.stderr.lines();
    let lines = lines.filter(|line| line.contains("left out") && *line != "left out: nothing");
    lines.map(str::to_owned).collect()
}

#[test]
fn entries_that_rules_exclude_are_counted() {
    let place = TestDir::new(&["keep", "a.tmp", "dir/b.tmp", "old/x", "old/y"]);
    let rules = ["-F", "- *.tmp", "- /old/"];
    let line = "left out: 3 entries that rules exclude (-F)";
    for more in [&[][..], &["-N1"], &["--file-timeout=10s"]] {
        assert_eq!(left_out(&place, &[&rules, more].concat()), [line]);
    }
    assert!(left_out(&place, &["-F", "+ *.tmp"]).is_empty());
}

#[test]
fn devices_and_specials_that_are_not_stored_are_counted() {
    let place = TestDir::new(&["a"]);
    support::must("mkfifo", [place.path("in/fifo")]);
    let _socket = std::os::unix::net::UnixListener::bind(place.path("in/socket")).unwrap();
    let specials = "2 FIFOs and sockets (see --with-specials)";
    assert_eq!(left_out(&place, &[]), [format!("left out: {specials}")]);
    let mknod = |name: &str| {
        let at = place.path("in").join(name);
        let mut command = Command::new("mknod");
        let command = command.arg(at).args(["c", "1", "3"]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !mknod("null") {
        skip("devices", "making them needs root");
        return;
    }
    let both = format!("left out: 1 device (see --with-devices), {specials}");
    assert_eq!(left_out(&place, &[]), [both]);
    assert!(left_out(&place, &["--with-devices", "--with-specials"]).is_empty());
}

/// An archive is replaced like an image.
#[test]
fn archives_keep_mode_and_owner_and_need_an_output() {
    let place = TestDir::new(&["a"]);
    place.image::<&str>(&[]);
    let image = place.text("out");
    let archive = place.file("archive", "old");
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o600)).unwrap();
    let owned = chown(&archive, Some(1234), Some(2345)).is_ok();
    support::must(
        support::DWARFSEXTRACT,
        ["-i", &image, "-f", "ustar", "-o", &archive],
    );
    let meta = fs::metadata(&archive).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o600);
    assert!(!owned || (meta.uid(), meta.gid()) == (1234, 2345));
    let mut bytes = Vec::new();
    File::open(&archive)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert!(bytes.windows(5).any(|window| window == b"ustar"));

    for rest in [
        "-f ustar >&-",
        "-f ustar -o - >&-",
        "-f ustar -o /dev/stdout >&-",
        "--stdout a >&-",
    ] {
        let done: Done = Command::new("bash")
            .args([
                "-c",
                &format!("$0 -i $1 {rest}"),
                support::DWARFSEXTRACT,
                &image,
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .into();
        assert_eq!(done.code, Some(1), "{rest}: {}", done.stderr);
        assert!(
            done.stderr.ends_with(": it is closed\n"),
            "{rest}: {}",
            done.stderr
        );
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    for what in [
        "--list",
        "--json",
        "--checksum=md5",
        "--print-header",
        "--export-metadata=-",
    ] {
        let done: Done = Command::new("bash")
            .args(["-c", "$0 $2 $1 >&-", support::DWARFSCK, &image, what])
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .into();
        let want = "dwarfsck: cannot write to standard output: it is closed\n";
        assert_eq!((done.code, done.stderr.as_str()), (Some(1), want), "{what}");
    }
}

#[test]
fn the_history_names_this_library() {
    let place = TestDir::new(&["a"]);
    place.image::<&str>(&[]);
    let done: Done = Command::new(support::DWARFSCK)
        .args(["-i", &place.text("out"), "-d", "history", "--no-check"])
        .output()
        .unwrap()
        .into();
    let text = String::from_utf8(done.stdout).unwrap();
    let version = format!("libredwarfs v{} on ", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&version), "{text}");
    assert!(!text.contains("libdwarfs"), "{text}");
}
