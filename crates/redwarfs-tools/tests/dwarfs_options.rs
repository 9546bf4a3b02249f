//! Every `-o` option of `dwarfs` with real mounts: what it does, not only that it is accepted.

use crate::driver;
use crate::driver::{
    Mount, can_mount, driver_of, dwarfs, kill, run, stderr, table_line, wait_until,
};
use crate::support;
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{Fields, Manifest, skip};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) fn temp() -> TempDir {
    TempDir::with_prefix("redwarfs-options-").expect("a temporary directory")
}

/// The last value of a line `name: value` in a log.
pub(crate) fn statistic(log: &str, name: &str) -> Option<u64> {
    let mark = format!(" {name}: ");
    let line = log.lines().rev().find(|line| line.contains(&mark))?;
    line.split(&mark).nth(1)?.parse().ok()
}

/// A mount in the background that writes a log.
pub(crate) struct Logged {
    pub(crate) mount: Mount,
    pub(crate) log: PathBuf,
    pub(crate) _dir: TempDir,
}

impl Logged {
    pub(crate) fn new(image: &Path, options: &str) -> Self {
        let dir = temp();
        let log = dir.path().join("log");
        let all = format!("log_file={},debuglevel=verbose,{options}", log.display());
        Self {
            mount: Mount::background(image, &all),
            log,
            _dir: dir,
        }
    }

    pub(crate) fn point(&self) -> &Path {
        self.mount.point()
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// Asks the driver for a statistic.
    pub(crate) fn ask(&self, name: &str) -> u64 {
        let length = self.text().len();
        kill(driver_of(self.point()), Signal::USR1);
        let mut found = None;
        wait_until("statistics", || {
            let text = self.text();
            let new = text.get(length..).unwrap_or_default();
            // Whole lines only.
            let end = new.rfind('\n').map_or(0, |end| end + 1);
            found = statistic(&new[..end], name);
            found.is_some()
        });
        found.expect("just found")
    }

    /// Ends the driver and returns the whole log.
    pub(crate) fn end(self) -> String {
        let pid = driver_of(self.point());
        kill(pid, Signal::TERM);
        wait_until("the end of the driver", || !driver::alive(pid));
        self.text()
    }
}

/// Content that compresses, but not to nothing.
fn noise(length: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    let letter = || b"etaoin shrdlu\n"[random.below(14) as usize];
    std::iter::repeat_with(letter).take(length).collect()
}

/// An image with one large file `big` and a few small ones.
pub(crate) fn big_image(dir: &Path, options: &[&str]) -> (PathBuf, Vec<u8>) {
    let tree = dir.join("tree");
    fs::create_dir(&tree).expect("mkdir");
    let content = noise(3 << 20);
    fs::write(tree.join("big"), &content).expect("write");
    fs::write(tree.join("small"), "small").expect("write");
    let image = dir.join("big.dwarfs");
    support::build(&tree, &image, options);
    (image, content)
}

#[test]
fn files_look_as_told() {
    if !can_mount("files_look_as_told") {
        return;
    }
    let image = golden("basic-default").image;
    let stat = |options: &str| {
        let mount = Mount::background(&image, options);
        let of = |name: &str| fs::metadata(mount.point().join(name)).expect("stat");
        (of("text.txt"), of("a"))
    };
    let (file, directory) = stat("");
    assert_eq!(
        (file.blksize(), directory.blksize()),
        (512 << 10, 512 << 10)
    );
    assert_ne!(file.mode() & 0o222, 0);
    let (owner, group) = (file.uid(), file.gid());
    let (file, directory) = stat("blocksize=64k,uid=7,gid=4294967294,readonly");
    assert_eq!((file.blksize(), directory.blksize()), (64 << 10, 64 << 10));
    assert_eq!((file.uid(), file.gid()), (7, u32::MAX - 1));
    assert_eq!((directory.uid(), directory.gid()), (7, u32::MAX - 1));
    assert_eq!((file.mode() | directory.mode()) & 0o222, 0);
    let (file, _) = stat("blocksize=0,uid=root,uid=3,gid=root");
    assert_eq!((file.blksize(), file.uid(), file.gid()), (4096, 3, 0));
    let (file, _) = stat("uid=9");
    assert_ne!((owner, group), (9, group));
    assert_eq!((file.uid(), file.gid()), (9, group));
}

#[test]
fn the_mount_table_shows_the_flags() {
    if !can_mount("the_mount_table_shows_the_flags") {
        return;
    }
    let image = golden("one").image;
    let source = image.canonicalize().expect("a path");
    let table = |options: &str| {
        let mount = Mount::background(&image, options);
        let line = table_line(mount.point()).expect("mounted");
        let mut fields = line.split(' ').map(str::to_owned);
        let source = fields.next().expect("a source");
        let kind = fields.nth(1).expect("a type");
        let flags = fields.next().expect("flags");
        let flags: Vec<String> = flags.split(',').map(str::to_owned).collect();
        (source, kind, flags)
    };
    let has = |flags: &[String], wanted: &[&str]| {
        for flag in wanted {
            assert!(flags.iter().any(|f| f == flag), "{flag} in {flags:?}");
        }
    };
    let (shown, kind, flags) = table("");
    assert_eq!(Path::new(&shown), source);
    assert_eq!(kind, "fuse.dwarfs");
    has(&flags, &["ro", "nosuid", "nodev", "default_permissions"]);
    assert!(!flags.iter().any(|f| f == "allow_other" || f == "noexec"));

    let (shown, kind, flags) = table(
        "fsname=a name\\,with\\\\all,subtype=xyz,suid,dev,noexec,allow_other,max_read=65536,no_default_permissions,rw",
    );
    assert_eq!(shown, "a\\040name,with\\134all");
    assert_eq!(kind, "fuse.xyz");
    has(&flags, &["ro", "noexec", "allow_other", "max_read=65536"]);
    for flag in ["nosuid", "nodev", "default_permissions"] {
        assert!(!flags.iter().any(|f| f == flag), "{flag} in {flags:?}");
    }
    let (.., flags) = table("suid,nosuid,dev,nodev,noexec,exec,allow_root,default_permissions");
    has(&flags, &["nosuid", "nodev", "default_permissions"]);
    // Root needs no permission for itself.
    assert!(!flags.iter().any(|f| f == "noexec" || f == "allow_other"));
}

/// Whoever is neither owner nor root stays out with `allow_root`.
#[test]
fn allow_root_lets_only_root_in() {
    if !can_mount("allow_root_lets_only_root_in") {
        return;
    }
    let mount = Mount::background(&golden("one").image, "allow_root");
    let stranger = Command::new("setpriv")
        .args(["--reuid=65533", "--regid=65533", "--clear-groups", "ls"])
        .arg(mount.point())
        .output();
    let Ok(stranger) = stranger else {
        return skip("allow_root_lets_only_root_in", "no setpriv here");
    };
    assert!(!stranger.status.success());
    assert!(mount.point().join("only").exists());
}

/// Whatever the cache is told to do, the bytes are the same.
#[test]
fn cache_options_serve_the_same_bytes() {
    if !can_mount("cache_options_serve_the_same_bytes") {
        return;
    }
    let image = golden("basic-zstd-small-blocks");
    let wanted = image.manifest();
    for options in [
        "cachesize=0",
        "cachesize=1k,workers=0",
        "cachesize=2M,workers=7",
        "decratio=0",
        "decratio=1.0,readahead=1m",
        "seq_detector=0,no_cache_files",
        "seq_detector=1,cache_sparse",
        "block_allocator=mmap,cachesize=64k",
        "block_allocator=malloc,mlock=try",
        "tidy_strategy=time,tidy_interval=1ms,tidy_max_age=1ms",
        "tidy_strategy=swap,tidy_interval=1ms",
        "tidy_strategy=none,tidy_interval=nonsense",
        "preload_all,no_cache_sparse",
        "no_push,no_guard,no_follow",
        "push,guard,follow,cache_files",
        "max_threads=1,max_idle_threads=-1,clone_fd",
        "max_threads=4",
    ] {
        let mount = Mount::background(&image.image, &format!("{options},blocksize=0"));
        let seen = Manifest::from_directory(mount.point(), true).expect("a readable tree");
        wanted.assert_same(&seen, Fields::ALL, options);
    }
    let mount = Mount::foreground(&image.image, &["-s", "-o", "blocksize=0"]);
    let seen = Manifest::from_directory(mount.point(), true).expect("a readable tree");
    wanted.assert_same(&seen, Fields::ALL, "-s");
}

#[test]
fn cachesize_and_workers_have_an_effect() {
    if !can_mount("cachesize_and_workers_have_an_effect") {
        return;
    }
    let dir = temp();
    let (image, content) = big_image(dir.path(), &["-l4", "-S16"]);
    // Without the kernel's own cache every reading comes through ours.
    let decoded = |options: &str| {
        let logged = Logged::new(&image, &format!("no_cache_files,no_push,{options}"));
        for _ in 0..2 {
            let seen = fs::read(logged.point().join("big")).expect("read");
            assert!(seen == content, "{options}");
        }
        let log = logged.end();
        let bytes = statistic(&log, "total bytes decompressed").expect("statistics");
        let evicted = statistic(&log, "blocks evicted").expect("statistics");
        (bytes as usize, evicted)
    };
    let (bytes, evicted) = decoded("cachesize=64m");
    assert!(bytes < content.len() * 3 / 2, "{bytes}");
    assert_eq!(evicted, 0);
    for options in ["cachesize=0", "cachesize=64k"] {
        let (bytes, evicted) = decoded(options);
        assert!(bytes > content.len() * 3 / 2, "{options}: {bytes}");
        assert!(evicted > 0, "{options}");
    }

    let threads = |workers: usize| {
        let mount = Mount::background(&image, &format!("workers={workers},seq_detector=1"));
        fs::read(mount.point().join("big")).expect("read");
        let tasks = format!("/proc/{}/task", driver_of(mount.point()));
        fs::read_dir(tasks).expect("alive").count()
    };
    assert_eq!(threads(0), threads(1));
    assert!(threads(9) >= threads(1) + 8);
}

#[test]
fn max_threads_is_the_number_of_readers() {
    if !can_mount("max_threads_is_the_number_of_readers") {
        return;
    }
    for (option, readers) in [("max_threads=1", 1), ("max_threads=5", 5)] {
        let mount = Mount::background(&golden("one").image, option);
        let tasks = format!("/proc/{}/task", driver_of(mount.point()));
        // `fuse-` and a number; those that read blocks are called `fuse-read-` and a number.
        let reads_requests = |name: String| {
            let number = name.trim_end().strip_prefix("fuse-");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let count = || {
            let names = fs::read_dir(&tasks).expect("alive").flatten();
            let names = names.map(|task| fs::read_to_string(task.path().join("comm")));
            names
                .flatten()
                .filter(|name| reads_requests(name.clone()))
                .count()
        };
        // A thread gives itself its name when it first runs.
        let deadline = Instant::now() + Duration::from_secs(20);
        while count() < readers && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(count(), readers, "{option}");
    }
}

#[test]
fn decratio_and_readahead_decide_how_far_a_block_is_decompressed() {
    if !can_mount("decratio_and_readahead_decide_how_far_a_block_is_decompressed") {
        return;
    }
    let dir = temp();
    let (image, content) = big_image(dir.path(), &["-l4"]);
    let start = |options: &str| {
        let logged = Logged::new(&image, &format!("no_push,{options}"));
        let mut buffer = [0; 100];
        let file = File::open(logged.point().join("big")).expect("open");
        file.read_exact_at(&mut buffer, 0).expect("read");
        assert_eq!(buffer, content[..100]);
        logged
    };
    let total = "total bytes decompressed";
    let logged = start("decratio=1.0");
    let little = logged.ask(total);
    assert!(little > 0 && little < 1 << 20, "{little}");
    let log = logged.end();
    assert_eq!(
        statistic(&log, total),
        Some(little),
        "nothing in the background"
    );

    let logged = start("decratio=0.0");
    wait_until("the rest of the block", || {
        logged.ask(total) >= content.len() as u64
    });
    let logged = start("decratio=1,readahead=2m");
    wait_until("what is ahead", || logged.ask(total) >= 2 << 20);
    assert!(logged.ask(total) < content.len() as u64);
}

#[test]
fn seq_detector_prefetches() {
    if !can_mount("seq_detector_prefetches") {
        return;
    }
    let dir = temp();
    let (image, content) = big_image(dir.path(), &["-l4", "-S16"]);
    let prefetched = |options: &str| {
        let logged = Logged::new(&image, options);
        let seen = fs::read(logged.point().join("big")).expect("read");
        assert!(seen == content);
        statistic(&logged.end(), "sequential prefetches").expect("statistics")
    };
    assert_eq!(prefetched("seq_detector=0"), 0);
    assert!(prefetched("seq_detector=1") > 0);
    assert!(prefetched("") > 0);
}

#[test]
fn preloading_and_tidying() {
    if !can_mount("preloading_and_tidying") {
        return;
    }
    let image = golden("bin-categorize").image;
    let (created, tidied) = ("blocks created", "blocks tidied");
    // Three blocks: code, other files, and one that is stored and needs no cache.
    let logged = Logged::new(&image, "");
    assert_eq!(logged.ask(created), 0);
    let logged = Logged::new(&image, "preload_category=binary/elf");
    wait_until("one block", || logged.ask(created) == 1);
    let logged = Logged::new(&image, "preload_all");
    wait_until("all blocks", || logged.ask(created) >= 2);
    assert_eq!(logged.ask(tidied), 0);
    let age = "tidy_strategy=time,tidy_interval=20ms,tidy_max_age=30ms";
    let logged = Logged::new(&image, &format!("preload_all,{age}"));
    wait_until("idle blocks to go", || logged.ask(tidied) >= 2);

    // A name that does not exist preloads nothing, and a warning has those that do.
    let logged = Logged::new(&image, "preload_category=nothing");
    assert_eq!(logged.ask(created), 0);
    let text = logged.text();
    for part in ["nothing", "binary/elf", "incompressible", "<default>"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    if !can_mount("unknown_names_are_refused_with_the_known_ones") {
        return;
    }
    let point = Mount::new_dir();
    for (options, parts) in [
        (
            "mlock=yes",
            &["invalid lock mode: yes", "none, try, must"][..],
        ),
        (
            "tidy_strategy=never",
            &["no such cache tidy strategy: never", "none, time, swap"],
        ),
        (
            "block_allocator=foo",
            &["no such block allocator: foo", "malloc, mmap"],
        ),
        (
            "log_target=moon",
            &["no such log target: moon", "stderr, syslog"],
        ),
        ("debuglevel=loud", &["invalid logger level: loud"]),
    ] {
        let output = run(&[
            golden("one").image.as_os_str(),
            point.path().as_os_str(),
            OsStr::new("-o"),
            OsStr::new(options),
        ]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{options}: {text}");
        assert!(table_line(point.path()).is_none(), "{options}");
        for part in parts {
            assert!(text.contains(part), "{options}: {part} in {text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn mlock_keeps_metadata_in_memory() {
    if !can_mount("mlock_keeps_metadata_in_memory") {
        return;
    }
    let image = golden("many-default").image;
    let locked = |options: &str| {
        let mount = Mount::background(&image, options);
        let status = format!("/proc/{}/status", driver_of(mount.point()));
        let status = fs::read_to_string(status).expect("alive");
        let line = status.lines().find(|line| line.starts_with("VmLck:"));
        let words: Vec<_> = line.expect("a line").split_whitespace().collect();
        words[1].parse::<u64>().expect("a number")
    };
    assert_eq!(locked("mlock=none"), 0);
    for mode in ["try", "must"] {
        assert!(locked(&format!("mlock={mode}")) > 0, "{mode}");
    }
    // Without the right to lock: a warning, or a refusal.
    let point = Mount::new_dir();
    let limited = |mode: &str| {
        Command::new("prlimit")
            .args(["--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock"])
            .args(["--inh-caps=-ipc_lock", env!("CARGO_BIN_EXE_dwarfs")])
            .arg(&image)
            .arg(point.path())
            .arg("-o")
            .arg(format!("mlock={mode}"))
            .output()
    };
    let Ok(output) = limited("must") else {
        return skip("mlock_keeps_metadata_in_memory", "no prlimit here");
    };
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("dwarfs: cannot lock metadata in memory: "),
        "{text}"
    );
    assert!(table_line(point.path()).is_none());
    let output = limited("try").expect("prlimit worked before");
    let mount = Mount {
        dir: point,
        child: None,
    };
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.starts_with("W ") && text.contains("cannot lock metadata"),
        "{text}"
    );
    assert!(table_line(mount.point()).is_some());
}

#[test]
fn case_insensitive_finds_every_spelling_and_prefers_the_exact_one() {
    if !can_mount("case_insensitive_finds_every_spelling_and_prefers_the_exact_one") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("Sub")).expect("mkdir");
    for (name, text) in [
        ("Readme.TXT", "r"),
        ("STRASSE", "s"),
        ("Sub/äöÜ", "u"),
        ("Sub/file", "lower"),
        ("Sub/File", "upper"),
    ] {
        fs::write(tree.join(name), text).expect("write");
    }
    let image = dir.path().join("x.dwarfs");
    support::build(&tree, &image, &["-l1"]);
    let log = dir.path().join("log");
    let option = format!("case_insensitive,log_file={}", log.display());
    let mount = Mount::background(&image, &option);
    let read = |name: &str| fs::read_to_string(mount.point().join(name)).ok();
    for (name, want) in [
        ("Readme.TXT", "r"),
        ("README.txt", "r"),
        ("sTRASSE", "s"),
        ("sub/ÄÖü", "u"),
        ("SUB/äöü", "u"),
        ("Sub/file", "lower"),
        ("sUb/File", "upper"),
    ] {
        assert_eq!(read(name).as_deref(), Some(want), "{name}");
    }
    // Any of the two, but one of them.
    assert!(["lower", "upper"].contains(&read("sub/FILE").expect("found").as_str()));
    assert_eq!(read("sub/nothing"), None);
    let text = fs::read_to_string(&log).expect("a log");
    let warning = text.lines().find(|line| line.starts_with("W "));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {text}"));
    assert!(
        warning.contains("Sub") && warning.contains("file") && warning.contains("File"),
        "{warning}"
    );
    drop(mount);
    let mount = Mount::background(&image, "");
    assert!(!mount.point().join("readme.txt").exists());
}

#[test]
fn offset_and_imagesize_choose_the_image() {
    if !can_mount("offset_and_imagesize_choose_the_image") {
        return;
    }
    let dir = temp();
    let first = fs::read(golden("one").image).expect("read");
    let second = fs::read(golden("empty").image).expect("read");
    let path = dir.path().join("all");
    let header = b"#!/bin/sh\nexit 0\n".repeat(50);
    fs::write(&path, [&header[..], &first, &second, b"trailer"].concat()).expect("write");
    let names = |options: &str| -> Vec<String> {
        let mount = Mount::background(&path, options);
        let entries = fs::read_dir(mount.point()).expect("list");
        entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("plain")
            })
            .collect()
    };
    let at = header.len();
    let size = first.len();
    for options in [
        "offset=auto".to_owned(),
        "offset=auto:1".to_owned(),
        format!("offset={at}"),
        format!("offset={at},imagesize={size}"),
        format!("imagesize={size},offset=auto"),
    ] {
        assert_eq!(names(&options), ["only"], "{options}");
    }
    for options in ["offset=auto:2".to_owned(), format!("offset={}", at + size)] {
        assert_eq!(names(&options), [""; 0], "{options}");
    }
    let refused = |options: &str| {
        let output = run(&[
            path.as_os_str(),
            Mount::new_dir().path().as_os_str(),
            OsStr::new("-o"),
            OsStr::new(options),
        ]);
        assert_eq!(output.status.code(), Some(1), "{options}");
        stderr(&output)
    };
    let text = refused("offset=0");
    assert!(text.contains("use -o offset=auto"), "{text}");
    for options in ["offset=auto:3", "offset=5", "offset=99999999"] {
        let text = refused(options);
        assert!(text.starts_with("dwarfs: cannot open image: "), "{text}");
    }
    let text = refused(&format!("offset={at},imagesize={}", size - 1));
    assert!(text.contains("truncated section"), "{text}");
    assert!(refused("offset=foo").contains("failed to parse image offset: foo"));
    assert!(refused("imagesize=1k").contains("invalid value for option 'imagesize': 1k"));
}

#[test]
fn obsolete_options_warn_and_foreign_ones_are_ignored() {
    if !can_mount("obsolete_options_warn_and_foreign_ones_are_ignored") {
        return;
    }
    let mount = Mount {
        dir: Mount::new_dir(),
        child: None,
    };
    let output = dwarfs()
        .arg(golden("one").image)
        .arg("-o")
        .arg("ro,noauto,user,nofail,x-systemd.automount,x-a=b,X-c,comment=d,defaults,loop,nonempty,relatime")
        .arg(mount.point())
        .args(["-oenable_nlink,cache_image", "-o", "no_cache_image"])
        .output()
        .expect("the program can be started");
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    let warnings: Vec<&str> = text.lines().collect();
    assert_eq!(warnings.len(), 3, "{text}");
    for (line, name) in warnings
        .iter()
        .zip(["enable_nlink", "cache_image", "no_cache_image"])
    {
        assert!(line.starts_with("W "), "{line}");
        let end = format!(" `{name}` is obsolete and has no effect");
        assert!(line.ends_with(&end), "{line}");
    }
    assert!(mount.point().join("only").exists());
}

/// Each option of the driver has its row in the table of the documentation.
#[test]
fn the_documentation_has_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options/dwarfs.md");
    let table = fs::read_to_string(path).expect("the table");
    let rows: Vec<&str> = table.lines().filter(|l| l.starts_with("| `")).collect();
    let command = stdout_of(&["--help"]);
    let options = command
        .lines()
        .skip_while(|line| !line.starts_with("Image (-o)"))
        .take_while(|line| !line.starts_with("Examples"))
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next());
    let mut count = 0;
    for option in options {
        count += 1;
        let name = option.split('=').next().unwrap_or_default();
        let name = name.trim_start_matches("(no_)").trim_start_matches("(no)");
        let wanted = format!("`{name}");
        assert!(
            rows.iter().any(|row| row.contains(&wanted)),
            "{option} has no row"
        );
    }
    assert!(count > 35, "{count}");
}

fn stdout_of(arguments: &[&str]) -> String {
    let output = dwarfs().args(arguments).output();
    driver::stdout(&output.expect("the program can be started"))
}
