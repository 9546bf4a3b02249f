//! Snapshots through the programs: made by `mkdwarfs --append`, listed, compared, changed and given back by
//! `dwarfsck`, extracted, mounted, and read by the reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::driver::{Mount, can_mount};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, reference, run};
use redwarfs_testkit::skip;
use redwarfs_testkit::tree::Random;

/// A time long before the images are made.
pub(crate) const OLD: Duration = Duration::from_secs(1_600_000_000);

pub(crate) struct TestDir {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) image: PathBuf,
    random: Random,
}

impl TestDir {
    /// A directory with an image of a few files.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
        let mut place = Self {
            dir,
            image,
            random: Random::new(9),
        };
        for name in ["a", "b", "sub/c"] {
            place.write(name, 30_000);
        }
        must(
            MKDWARFS,
            place.arguments(&["-l3", "-o", place.image.to_str().unwrap()]),
        );
        place
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        let tree = self.tree();
        let fixed = [
            "-i",
            tree.to_str().unwrap(),
            "--log-level=warn",
            "--no-progress",
        ];
        fixed
            .iter()
            .chain(more)
            .map(|&text| text.to_owned())
            .collect()
    }

    /// Writes a file with new contents and an old time.
    pub(crate) fn write(&mut self, name: &str, size: usize) {
        let path = self.tree().join(name);
        fs::write(&path, self.random.bytes(size)).unwrap();
        old(&path);
    }

    pub(crate) fn append(&self, more: &[&str]) -> Output {
        let mut all = vec!["-l3", "--append", self.image.to_str().unwrap()];
        all.extend(more);
        run(MKDWARFS, self.arguments(&all))
    }

    /// Appends the tree as it is.
    pub(crate) fn snapshot(&self, name: &str) {
        let output = self.append(&["--snapshot-name", name]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    pub(crate) fn check(&self, more: &[&str]) -> Output {
        let mut all = vec![self.image.to_str().unwrap()];
        all.extend(more);
        run(DWARFSCK, &all)
    }

    /// What a successful call of the checker prints.
    pub(crate) fn good(&self, more: &[&str]) -> String {
        let output = self.check(more);
        assert!(
            output.status.success(),
            "{}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// The one line that a failing call prints.
    pub(crate) fn bad(&self, more: &[&str]) -> String {
        let output = self.check(more);
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let text = text(&output.stderr);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).unwrap()
    }

    /// The files of a snapshot.
    pub(crate) fn extracted(&self, more: &[&str]) -> Files {
        extracted(&self.image, more)
    }
}

pub(crate) fn old(path: &Path) {
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + OLD).unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

pub(crate) fn extracted(image: &Path, more: &[&str]) -> Files {
    let dir = tempfile::tempdir().unwrap();
    let mut all = vec![
        "-i",
        image.to_str().unwrap(),
        "-o",
        dir.path().to_str().unwrap(),
    ];
    all.extend(more);
    must(DWARFSEXTRACT, all);
    files(dir.path())
}

#[test]
fn snapshots_are_made_listed_and_read() {
    let mut place = TestDir::new();
    let first = files(&place.tree());
    let old_bytes = place.bytes();
    place.write("a", 31_000);
    fs::remove_file(place.tree().join("b")).unwrap();
    place.write("sub/new", 5000);
    place.snapshot("second");
    let second = files(&place.tree());
    let bytes = place.bytes();
    assert!(bytes.starts_with(&old_bytes));
    let added = bytes.len() - old_bytes.len();
    assert!((36_000..40_000).contains(&added), "{added}");
    place.good(&["--check-integrity", "--decode"]);

    let list = place.good(&["--snapshots"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[2].trim_start().starts_with('2') && lines[2].ends_with("  second"),
        "{list}"
    );
    let json = place.good(&["--snapshots", "-j"]);
    let json: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(json[0]["image_size"], old_bytes.len());
    assert_eq!(json[1]["name"], "second");
    assert_eq!(json[1]["parent"], 1);
    assert_eq!(json[1]["size"], 66_000);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(now - json[1]["time"].as_u64().unwrap() < 600);

    assert!(place.extracted(&[]) == second);
    assert!(place.extracted(&["--snapshot", "second"]) == second);
    assert!(place.extracted(&["--snapshot=1"]) == first);
    assert!(place.extracted(&["--snapshot", json[0]["name"].as_str().unwrap()]) == first);
    assert!(place.extracted(&["--snapshot", "2200-01-01"]) == second);
    let listed = place.good(&["--snapshot", "1", "-l"]);
    assert!(listed.lines().any(|line| line == "b"), "{listed}");
    place.good(&["--snapshot", "1", "-q", "--decode"]);
    let error = place.bad(&["--snapshot", "2000-01-01", "-l"]);
    assert!(
        error.contains("there is no snapshot '2000-01-01'"),
        "{error}"
    );
}

#[test]
fn unchanged_files_are_trusted_or_read() {
    let mut place = TestDir::new();
    let first = files(&place.tree());
    place.write("a", 30_000);
    place.snapshot("trusting");
    assert!(place.extracted(&[]) == first);
    let output = place.append(&["--checksum"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(place.extracted(&[]) == files(&place.tree()));
    // With an old time of its own, it is read anyway.
    place.write("a", 30_000);
    let file = fs::File::options()
        .append(true)
        .open(place.tree().join("a"))
        .unwrap();
    file.set_modified(UNIX_EPOCH + OLD + Duration::from_secs(5))
        .unwrap();
    place.snapshot("fourth");
    assert!(place.extracted(&[]) == files(&place.tree()));
    assert_eq!(place.good(&["--snapshots"]).lines().count(), 5);
}

#[test]
fn the_difference_of_two_snapshots() {
    let mut place = TestDir::new();
    place.write("a", 31_000);
    fs::remove_file(place.tree().join("b")).unwrap();
    fs::create_dir(place.tree().join("dir")).unwrap();
    place.write("dir/new", 10);
    fs::write(place.tree().join("sub/c2"), "x").unwrap();
    fs::remove_file(place.tree().join("sub/c2")).unwrap();
    place.snapshot("second");
    let lines = place.good(&["--diff", "1", "second"]);
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| !line.starts_with('m'))
        .collect();
    assert_eq!(lines, ["M a", "- b", "+ dir", "+ dir/new"]);
    let back = place.good(&["--diff", "2", "1"]);
    assert!(
        back.contains("+ b\n") && back.contains("- dir/new\n"),
        "{back}"
    );
    assert_eq!(place.good(&["--diff", "2", "2"]), "");
    let json = place.good(&["--diff", "1", "2", "-j"]);
    let json: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let a = json.iter().find(|change| change["path"] == "a").unwrap();
    assert_eq!(
        (&a["change"], &a["old_size"]),
        (&"content".into(), &30_000.into())
    );
    let said = place.bad(&["--diff", "1", "nothing"]);
    assert!(
        said.contains("cannot find the snapshot: ")
            && said.contains("there is no snapshot 'nothing'; there are '")
            && said.contains(", 'second' (")
            && !said.contains("unsupported"),
        "{said}"
    );
    // What a time means is said.
    let output = run(
        DWARFSCK,
        [place.image.to_str().unwrap(), "--diff", "1", "2999-01-01"],
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("from snapshot 1 '")
            && said.contains("' of ")
            && said.contains(" to 2 'second' of "),
        "{said}"
    );
}

#[test]
fn a_delta_file_and_a_copy_are_the_image_that_an_append_makes() {
    let mut place = TestDir::new();
    let old_bytes = place.bytes();
    place.write("new", 5000);
    let path = |name: &str| place.dir.path().join(name);
    let (delta, copy) = (path("delta"), path("copy"));
    let command = |more: &[&str]| {
        let all = [
            &[
                "--append",
                place.image.to_str().unwrap(),
                "--snapshot-name=x",
            ],
            more,
        ]
        .concat();
        let mut command = Command::new(MKDWARFS);
        // The same times and the same command line.
        command
            .args(place.arguments(&all))
            .arg("--no-history-command-line");
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    command(&["--delta-out", delta.to_str().unwrap()]);
    command(&["-o", copy.to_str().unwrap()]);
    assert!(place.bytes() == old_bytes);
    command(&[]);
    let whole = [old_bytes, fs::read(&delta).unwrap()].concat();
    assert!(place.bytes() == whole);
    assert!(fs::read(&copy).unwrap() == whole);
    // The tools take both files for the image.
    let base = path("base");
    fs::write(
        &base,
        &whole[..whole.len() - fs::read(&delta).unwrap().len()],
    )
    .unwrap();
    let both = format!("{}+{}", base.display(), delta.display());
    assert!(extracted(Path::new(&both), &[]) == files(&place.tree()));
    must(DWARFSCK, [&both, "-q", "--check-integrity"]);
    if can_mount("a_delta_file_and_a_copy_are_the_image_that_an_append_makes") {
        let mount = Mount::background(Path::new(&both), "");
        assert!(files(mount.point()) == files(&place.tree()));
    }
    let refused = |path: &str| {
        let output = run(DWARFSCK, [path]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let twice = format!("{both}+{}", delta.display());
    assert!(refused(&twice).contains("continues another image"));
    let wrong = format!("{}+{}", delta.display(), base.display());
    refused(&wrong);
    let none = format!("{}+{}", base.display(), base.display());
    assert!(refused(&none).contains("delta file"));
    let missing = refused("no/such+file");
    let want = "cannot open image: no/such+file: no/such: no such file or directory";
    assert!(missing.contains(want), "{missing}");
}

#[test]
fn what_cannot_be_continued_is_said_in_one_line() {
    let place = TestDir::new();
    let fails = |more: &[&str]| {
        let output = place.append(more);
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let text = text(&output.stderr);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    let before = place.bytes();
    assert!(fails(&["--recovery=5", "--delta-out=x"]).contains("--delta-out"));
    assert!(fails(&["--hollow"]).contains("--hollow"));
    assert!(fails(&["--header", "/dev/null"]).contains("header"));
    assert!(fails(&["--no-section-index"]).contains("index"));
    assert!(fails(&["--snapshot-name", "a/b"]).contains("slash"));
    assert!(fails(&["--recompress"]).contains("--append"));
    assert_eq!(place.bytes(), before);
    fs::write(&place.image, [&before[..], b"more"].concat()).unwrap();
    assert!(fails(&[]).contains("other data follows"));
    fs::write(&place.image, "nothing").unwrap();
    assert!(fails(&[]).contains("cannot append"));
    fs::remove_file(&place.image).unwrap();
    assert!(fails(&[]).contains("no such file"));
    let output = run(
        MKDWARFS,
        place.arguments(&["--snapshot-name=x", "-o", "/dev/null"]),
    );
    assert_eq!(output.status.code(), Some(1));
}

/// An append that takes a while.
fn slow(place: &TestDir) -> Command {
    let mut command = Command::new(MKDWARFS);
    let image = place.image.to_str().unwrap();
    command.args(place.arguments(&["--append", image, "-l9"]));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn the_second_writer_is_refused() {
    let place = TestDir::new();
    let before = place.bytes();
    let writer = redwarfs_io::LockedFile::open(&place.image).unwrap();
    let output = place.append(&[]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("another program is changing it"), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(
        place
            .bad(&["--pin-snapshot", "1"])
            .contains("another program")
    );
    assert!(place.bad(&["--roll-back", "1"]).contains("another program"));
    assert_eq!(place.bytes(), before);
    drop(writer);
    place.snapshot("second");
    // Several at once: each one works or is refused.
    let children: Vec<_> = (0..4).map(|_| slow(&place).spawn().unwrap()).collect();
    let mut done = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let error = text(&output.stderr);
        match output.status.code() {
            Some(0) => done += 1,
            code => assert!(
                code == Some(1) && error.contains("another program"),
                "{error}"
            ),
        }
    }
    let list = place.good(&["--snapshots"]);
    assert!(done > 0 && list.lines().count() == 3 + done, "{list}");
    place.good(&["--check-integrity"]);
}

#[test]
fn a_killed_append_leaves_the_old_image() {
    let mut place = TestDir::new();
    let (first, before) = (files(&place.tree()), place.bytes());
    place.write("large", 3_000_000);
    let second = files(&place.tree());
    let started = std::time::Instant::now();
    assert!(slow(&place).output().unwrap().status.success());
    let mut whole = started.elapsed();
    assert!(place.extracted(&[]) == second);
    let (mut states, mut late) = ([0_u32, 0], 0);
    let cases = std::env::var("REDWARFS_KILL_CASES").map_or(24_u32, |n| n.parse().unwrap());
    let mut random = Random::new(11);
    for round in 0..cases {
        fs::write(&place.image, &before).unwrap();
        let mut child = slow(&place).spawn().unwrap();
        // Somewhere in it, or a little later.
        let part = 1.3 * random.below(1000) as f64 / 1000.0;
        std::thread::sleep(whole.mul_f64(part));
        // The load of the machine changes, and with it how long an append takes.
        let over = child.try_wait().unwrap().is_some();
        late += u32::from(over);
        match (over, part > 1.0) {
            (true, _) => whole = whole.mul_f64(0.95),
            (false, true) => whole = whole.mul_f64(1.1),
            (false, false) => {}
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(place.bytes().starts_with(&before));
        let found = place.extracted(&[]);
        let new = usize::from(found != first);
        assert!(new == 0 || found == second, "{round}");
        states[new] += 1;
    }
    println!(
        "{cases} appends, {late} of them over when they were killed: {states:?} old and new images"
    );
    assert!(states[0] > cases / 8, "{states:?}");
    assert!(states[1] > 0 || cases < 100, "{states:?}");
    // The rest of a killed append does not stop the next one.
    fs::write(&place.image, &before).unwrap();
    let mut child = slow(&place).spawn().unwrap();
    while fs::metadata(&place.image).unwrap().len() < 1 << 20 && child.try_wait().unwrap().is_none()
    {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = [&before[..], &[0; 1000], &before[before.len() - 8..]].concat();
    fs::write(&place.image, rest).unwrap();
    place.snapshot("again");
    assert!(place.extracted(&[]) == second);
    place.good(&["--check-integrity"]);
}

/// A small disk, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    /// With the image of a place on it. None, with a message of the test, if it cannot be mounted.
    fn new(place: &mut TestDir, test: &str) -> Option<Self> {
        let disk = place.dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(&disk)
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            skip(test, "no tmpfs can be mounted");
            return None;
        }
        let before = place.bytes();
        place.image = disk.join("image");
        fs::write(&place.image, before).unwrap();
        Some(Self(disk))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The disk has room for the snapshot, and not for its recovery data.
#[test]
fn a_snapshot_counts_with_its_recovery_data_or_not_at_all() {
    let mut place = TestDir::new();
    place.good(&["--add-recovery=5%"]);
    let Some(_disk) = Disk::new(&mut place, "a snapshot without room for its recovery data") else {
        return;
    };
    let before = place.bytes();
    place.write("more", 100_000);
    for amount in ["--recovery=1000%", "--recovery=600%,merge"] {
        let output = place.append(&[amount]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(
            error.contains("recovery data: no space left") && error.lines().count() == 1,
            "{amount}: {error}"
        );
        assert!(place.bytes() == before, "{amount}");
        place.good(&["--check-recovery"]);
        assert_eq!(place.good(&["--snapshots"]).lines().count(), 2);
    }
    let output = place.append(&["--recovery=50%,merge"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    place.good(&["--check-recovery"]);
    assert!(place.extracted(&[]) == files(&place.tree()));
}

#[test]
fn a_full_disk_leaves_the_old_image() {
    let mut place = TestDir::new();
    let Some(_disk) = Disk::new(&mut place, "a_full_disk_leaves_the_old_image") else {
        return;
    };
    let before = place.bytes();
    place.write("large", 3_000_000);
    let output = place.append(&[]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("no space left") && error.lines().count() == 1,
        "{error}"
    );
    assert!(place.bytes() == before);
    place.write("large", 300_000);
    place.snapshot("fits");
    assert!(place.extracted(&[]) == files(&place.tree()));
}

#[test]
fn a_mount_shows_its_snapshot_while_the_image_grows() {
    if !can_mount("a_mount_shows_its_snapshot_while_the_image_grows") {
        return;
    }
    let mut place = TestDir::new();
    let first = files(&place.tree());
    let before = Mount::background(&place.image, "");
    place.write("a", 33_000);
    place.write("new", 100);
    place.snapshot("second");
    let second = files(&place.tree());
    // Nothing was read before.
    assert!(files(before.point()) == first);
    for (options, expected) in [
        ("", &second),
        ("snapshot=second", &second),
        ("snapshot=1", &first),
        ("snapshot=2200-01-01", &second),
    ] {
        let mount = Mount::background(&place.image, options);
        assert!(files(mount.point()) == *expected, "{options}");
    }
    assert!(files(before.point()) == first);
}

#[test]
fn the_reference_reads_the_newest_snapshot_and_older_ones() {
    let name = "the_reference_reads_the_newest_snapshot_and_older_ones";
    let Some(reference) = reference() else {
        return skip(name, "there is no reference");
    };
    let mut place = TestDir::new();
    let mut trees = vec![files(&place.tree())];
    for number in 2..5 {
        place.write("a", 20_000 + number);
        place.write(&format!("n{number}"), 1000);
        let name = format!("s{number}");
        let output = place.append(&["--snapshot-name", &name, "--match-index"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        trees.push(files(&place.tree()));
    }
    place.good(&["--rename-snapshot", "s3", "third"]);
    let json = place.good(&["--snapshots", "-j"]);
    let ends: Vec<u64> = json
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["image_size"]
                .as_u64()
                .unwrap()
        })
        .collect();
    let program = |name: &str, args: &[&str]| {
        let output = Command::new(reference.join(name))
            .args(args)
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert!(output.status.success(), "{name} {args:?}: {error}");
        assert!(
            !error.contains("warning") && !error.contains("W "),
            "{error}"
        );
    };
    let image = place.image.to_str().unwrap();
    program(
        "dwarfsck",
        &["-i", image, "--check-integrity", "--log-level=warn", "-q"],
    );
    let extract = |image: &str| {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().to_str().unwrap();
        program(
            "dwarfsextract",
            &["-i", image, "-o", out, "--log-level=warn"],
        );
        files(dir.path())
    };
    assert!(extract(image) == trees[3]);
    for (end, tree) in ends.iter().zip(&trees) {
        // What imagesize does in a mount.
        let cut = place.dir.path().join("cut");
        fs::write(&cut, &place.bytes()[..*end as usize]).unwrap();
        assert!(extract(cut.to_str().unwrap()) == *tree);
    }
    // A rewrite by it has the newest tree.
    let rewritten = place.dir.path().join("rewritten");
    let out = rewritten.to_str().unwrap();
    program(
        "mkdwarfs",
        &[
            "-i",
            image,
            "-o",
            out,
            "--recompress=none",
            "--log-level=warn",
            "--no-progress",
        ],
    );
    assert!(extracted(&rewritten, &[]) == trees[3]);
}
