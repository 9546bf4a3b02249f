//! `mkdwarfs --checkpoint`: a build that is killed goes on, and the image is that of an uninterrupted one.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::MKDWARFS;
use redwarfs_testkit::skip;
use redwarfs_testkit::tree::Random;

/// Where a build is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Listing,
    Comparing,
    Segmenting,
    Compressing,
    Metadata,
}

/// The last words of the stage before.
const LISTED: &str = "listed the input";
const COMPARED: &str = "compared the files";
const ORDERED: &str = "put the contents into order";
const COMPRESSED: &str = "compressed the contents";

struct TestDir {
    dir: tempfile::TempDir,
}

impl TestDir {
    /// A tree of which every stage takes a while.
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let mut random = Random::new(5);
        for n in 0..24 {
            place.write(&format!("text/{}/{n}", n % 5), &random.text(150_000));
        }
        for n in 0..6000 {
            place.write(&format!("many/{}/a longer name {}", n % 60, n * 7919), b"");
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, data: &[u8]) {
        let path = self.path("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }

    fn checkpoint(&self) -> PathBuf {
        self.path("checkpoint")
    }

    /// A build of slow compression.
    fn command(&self, image: &str) -> Command {
        self.with(&self.path(image), "-N2", "-Czstd:level=19")
    }

    fn with(&self, output: &Path, threads: &str, codec: &str) -> Command {
        let mut command = Command::new(MKDWARFS);
        command.arg("-i").arg(self.path("in"));
        command.arg("-fo").arg(output).args([
            "-S18",
            threads,
            codec,
            "--metadata-compression=lzma:level=9",
            "--file-hash=sha3-512",
            "--no-create-timestamp",
            "--no-history",
            "--no-progress",
        ]);
        command
    }

    fn resumable(&self, image: &str) -> Command {
        self.checkpointed(self.command(image))
    }

    fn checkpointed(&self, mut command: Command) -> Command {
        command.arg("--checkpoint").arg(self.checkpoint());
        command
    }

    /// Runs a build that has to succeed. Returns the bytes of the image, and what it said.
    fn build(&self, image: &str, command: &mut Command) -> (Vec<u8>, String) {
        let out = command.output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{text}");
        (fs::read(self.path(image)).unwrap(), text)
    }

    /// An image without a checkpoint. It takes so long that files made before it have settled.
    fn whole(&self) -> Vec<u8> {
        std::thread::sleep(Duration::from_secs(4));
        self.build("whole", &mut self.command("whole")).0
    }

    /// Finishes a build; says how many blocks and digests of files were used again.
    fn resume(&self) -> (Vec<u8>, u64, u64) {
        let (bytes, text) = self.build("out", &mut self.resumable("out"));
        assert!(!self.checkpoint().exists(), "{text}");
        let line = text.lines().find(|line| line.starts_with("resumed: "));
        let numbers: Vec<u64> = line.map_or_else(Vec::new, |line| {
            let parts = line["resumed: ".len()..].split(", ");
            let first = parts.map(|part| part.split_whitespace().next().unwrap());
            first.map(|number| number.parse().unwrap()).collect()
        });
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        (bytes, number(0), number(1))
    }

    /// The files of blocks in the checkpoint.
    fn blocks(&self) -> Vec<PathBuf> {
        let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let directories = list(&self.checkpoint()).map(|entry| entry.path());
        let files = directories.flat_map(|path| list(&path).collect::<Vec<_>>());
        files
            .filter(|file| file.file_name().to_string_lossy().starts_with("block-"))
            .map(|file| file.path())
            .collect()
    }

    /// Kills a build at a point, and tries again if it was too late. The checkpoint stays.
    fn kill(&self, point: Point) {
        let (waited, last) = match point {
            Point::Listing => ("", ""),
            Point::Comparing => (LISTED, LISTED),
            Point::Segmenting => (ORDERED, ORDERED),
            Point::Compressing => (ORDERED, ORDERED),
            Point::Metadata => (COMPRESSED, COMPRESSED),
        };
        for _ in 0..20 {
            let before = self.blocks().len();
            let mut command = self.resumable("out");
            command.arg("--log-level=verbose").stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
            let mut found = "";
            let note = |line: &str, found: &mut &str| {
                for words in [LISTED, COMPARED, ORDERED, COMPRESSED] {
                    if line.contains(words) {
                        *found = words;
                    }
                }
            };
            while found != waited {
                note(&lines.next().unwrap().unwrap(), &mut found);
            }
            match point {
                Point::Listing => {
                    // A build that was killed before it wrote this would leave an empty directory.
                    let marker = self.checkpoint().join(".redwarfs-store");
                    while !fs::metadata(&marker).is_ok_and(|found| found.len() > 0) {
                        std::thread::yield_now();
                    }
                }
                Point::Compressing => {
                    while self.blocks().len() < before + 4 {
                        std::thread::sleep(Duration::from_millis(1));
                        assert!(child.try_wait().unwrap().is_none());
                    }
                }
                _ => {}
            }
            child.kill().unwrap();
            let status = child.wait().unwrap();
            for line in lines {
                note(&line.unwrap(), &mut found);
            }
            if status.signal() == Some(9) && found == last {
                assert!(!self.path("out").exists());
                return;
            }
            if status.success() {
                fs::remove_file(self.path("out")).unwrap();
            }
        }
        panic!("no build was killed at {point:?}");
    }
}

#[test]
fn a_killed_build_goes_on_with_the_same_image() {
    let place = TestDir::new();
    let whole = place.whole();
    for point in [
        Point::Listing,
        Point::Comparing,
        Point::Segmenting,
        Point::Compressing,
        Point::Metadata,
    ] {
        place.kill(point);
        let kept = place.blocks().len() as u64;
        let (image, reused, files) = place.resume();
        println!("{point:?}: {kept} blocks were kept, {reused} used again, {files} digests");
        assert!(image == whole, "{point:?}");
        // One may have been on its way.
        assert_eq!(reused, kept, "{point:?}");
        match point {
            Point::Listing => assert_eq!((kept, files), (0, 0)),
            Point::Comparing => assert_eq!(kept, 0),
            // A hash and a similarity digest of each.
            Point::Segmenting => assert_eq!(files, 2 * 24),
            Point::Compressing => assert!(kept >= 4, "{kept}"),
            Point::Metadata => assert!(kept > 10, "{kept}"),
        }
        fs::remove_file(place.path("out")).unwrap();
    }
    // One after the other, and with another number of threads.
    for point in [
        Point::Compressing,
        Point::Listing,
        Point::Compressing,
        Point::Comparing,
        Point::Metadata,
    ] {
        place.kill(point);
    }
    let kept = place.blocks().len() as u64;
    let one = place.with(&place.path("out"), "-N1", "-Czstd:level=19");
    let (image, text) = place.build("out", &mut place.checkpointed(one));
    assert!(image == whole);
    assert!(text.contains(&format!("resumed:  {kept} blocks")), "{text}");
}

#[test]
fn damage_of_a_checkpoint_never_reaches_the_image() {
    let place = TestDir::new();
    let whole = place.whole();
    place.kill(Point::Compressing);
    place.kill(Point::Compressing);
    let blocks = place.blocks();
    let mut random = Random::new(3);
    for (n, path) in blocks.iter().enumerate() {
        let mut bytes = fs::read(path).unwrap();
        match n % 4 {
            // A bit anywhere.
            0 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            // A torn end.
            1 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            // The right length, without the bytes.
            2 => {
                let half = bytes.len() / 2;
                bytes[half..].fill(0);
            }
            // It is intact.
            _ => continue,
        }
        fs::write(path, bytes).unwrap();
    }
    // What is written next to blocks.
    let parent = blocks[0].parent().unwrap();
    fs::write(parent.join(".new-1-1"), b"garbage").unwrap();
    let (image, reused, _) = place.resume();
    assert!(image == whole);
    assert_eq!(reused, blocks.len() as u64 / 4);
}

#[test]
fn other_data_and_other_options_give_their_own_image() {
    let place = TestDir::new();
    place.whole();
    place.kill(Point::Metadata);
    let kept = place.blocks().len() as u64;
    // One file changes; its size and its time do not.
    let path = place.path("in/text/0/5");
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, Random::new(99).text(150_000)).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(times)
        .unwrap();
    place.write("text/9/new", &Random::new(100).text(40_000));
    let (whole, (image, reused, files)) = (place.whole(), place.resume());
    assert!(image == whole);
    assert!(reused > 0 && reused < kept, "{reused} of {kept}");
    // Other files keep their sizes and times.
    assert_eq!(files, 2 * 23);

    fs::remove_file(place.path("out")).unwrap();
    place.kill(Point::Metadata);
    let other = || place.with(&place.path("out"), "-N2", "-Czstd:level=3");
    let (image, text) = place.build("out", &mut place.checkpointed(other()));
    assert!(
        text.contains("resumed:  0 blocks (0 B), 49 digests"),
        "{text}"
    );
    // No block fits, and nothing stays.
    assert!(image == place.build("out", &mut other()).0);
    assert!(!place.checkpoint().exists());
}

#[test]
fn a_checkpoint_is_private_and_of_one_build() {
    let place = TestDir::new();
    let refused = |what: &str| {
        let out = place.resumable("out").output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(what), "{text}");
        assert!(
            text.starts_with("mkdwarfs: cannot use the checkpoint: "),
            "{text}"
        );
        assert!(!place.path("out").exists());
    };
    let mut other = place.resumable("other").spawn().unwrap();
    while place.blocks().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.checkpoint()), 0o700);
    assert_eq!(mode(&place.blocks()[0]), 0o600);
    refused("another program uses it");
    other.kill().unwrap();
    other.wait().unwrap();
    fs::set_permissions(place.checkpoint(), fs::Permissions::from_mode(0o777)).unwrap();
    refused("other users can write to this directory");
    fs::remove_dir_all(place.checkpoint()).unwrap();
    fs::write(place.checkpoint(), b"").unwrap();
    refused("not a directory");
    fs::remove_file(place.checkpoint()).unwrap();
    // An output that is refused leaves no checkpoint.
    fs::write(place.path("out"), b"old").unwrap();
    let mut command = Command::new(MKDWARFS);
    command
        .arg("-i")
        .arg(place.path("in"))
        .arg("-o")
        .arg(place.path("out"));
    command.arg("--checkpoint").arg(place.checkpoint());
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    assert!(!place.checkpoint().exists());
}

#[test]
fn a_checkpoint_is_no_part_of_the_input() {
    let place = TestDir::new();
    let whole = |checkpoint: &Path| {
        let mut command = place.command("out");
        let out = command
            .arg("--checkpoint")
            .arg(checkpoint)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    // Nothing of it is changed, whatever its files are called.
    place.write("lock", b"mine");
    let (code, text) = whole(&place.path("in"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.ends_with("it is the input\n"), "{text}");
    let names = fs::read_dir(place.path("in")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lock", "many", "text"]);
    assert_eq!(fs::read(place.path("in/lock")).unwrap(), b"mine");
    // Nor what an earlier build has left there.
    place.kill(Point::Compressing);
    let kept = place.blocks().len();
    let (whole_input, inner) = (place.path("in"), place.path("in/inner"));
    fs::rename(place.checkpoint(), &inner).unwrap();
    fs::rename(&whole_input, place.path("hidden")).unwrap();
    fs::rename(place.path("hidden/inner"), &whole_input).unwrap();
    let (code, text) = whole(&whole_input);
    assert_eq!(code, Some(1), "{text}");
    fs::rename(&whole_input, place.checkpoint()).unwrap();
    assert_eq!(place.blocks().len(), kept);
    fs::rename(place.path("hidden"), &whole_input).unwrap();
    // Other directories that are in use.
    let (code, text) = whole(place.dir.path());
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.ends_with("it is not empty, and no checkpoint\n"),
        "{text}"
    );
    let inside = place.path("in/text/checkpoint");
    fs::create_dir(&inside).unwrap();
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).unwrap();
    let (code, text) = whole(&inside);
    assert_eq!(code, Some(0), "{text}");
    let list = support::must(
        support::DWARFSCK,
        ["-l".as_ref(), place.path("out").as_os_str()],
    );
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(
        list.contains("text/0/5") && !list.contains("checkpoint"),
        "{list}"
    );
    // The user has made it.
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
}

#[test]
fn a_full_disk_costs_the_checkpoint_and_not_the_build() {
    let place = TestDir::new();
    let Some(disk) = Disk::mounted(place.path("disk"), "256k") else {
        return skip(
            "a_full_disk_costs_the_checkpoint_and_not_the_build",
            "no tmpfs can be mounted",
        );
    };
    let mut command = place.command("out");
    let (image, text) = place.build("out", command.arg("--checkpoint").arg(&disk.0));
    assert!(image == place.whole());
    let warned = text
        .lines()
        .filter(|line| line.contains("cannot write to the checkpoint"));
    assert_eq!(warned.count(), 1, "{text}");
}

/// A small file system.
struct Disk(PathBuf);

impl Disk {
    fn mounted(path: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        let options = format!("size={size},mode=700");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
        let mounted = mount.arg(&path).status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_checkpoint_gives_way_to_the_image() {
    let place = TestDir::new();
    let whole = place.whole();
    // Enough for the image, not for the checkpoint too.
    let size = format!("{}", whole.len() * 3 / 2);
    let Some(disk) = Disk::mounted(place.path("disk"), &size) else {
        return skip(
            "a_checkpoint_gives_way_to_the_image",
            "no tmpfs can be mounted",
        );
    };
    let build = |output: &Path| {
        let mut command = place.with(output, "-N2", "-Czstd:level=19");
        command.arg("--checkpoint").arg(disk.0.join("checkpoint"));
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        (out, text)
    };
    let image = disk.0.join("image");
    let (out, text) = build(&image);
    assert!(out.status.success(), "{text}");
    assert!(fs::read(&image).unwrap() == whole);
    let warned = "no space is left for the image: going on without the checkpoint";
    assert!(text.contains(warned), "{text}");
    assert!(!disk.0.join("checkpoint").exists());
    fs::remove_file(&image).unwrap();

    // It does not help where the image is elsewhere, and stays.
    let Some(small) = Disk::mounted(place.path("small"), "128k") else {
        return;
    };
    let (out, text) = build(&small.0.join("image"));
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("no space left on device"), "{text}");
    assert!(
        text.contains("checkpoint: the same command goes on with them"),
        "{text}"
    );
    assert!(disk.0.join("checkpoint").exists());
    // Nor where standard output goes to it, from a directory on the disk of the checkpoint.
    let mut command = place.with(Path::new("-"), "-N2", "-Czstd:level=19");
    command.arg("--checkpoint").arg(disk.0.join("checkpoint"));
    command.stdout(fs::File::create(small.0.join("image")).unwrap());
    let out = command.current_dir(&disk.0).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(!text.contains("going on without the checkpoint"), "{text}");
    assert!(disk.0.join("checkpoint").exists());
}

#[test]
fn an_interrupted_build_says_what_stays() {
    let place = TestDir::new();
    let interrupted = |ready: &dyn Fn() -> bool| {
        let mut command = place.resumable("out");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        while !ready() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        let mut text = String::new();
        let mut errors = child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
        text
    };
    let text = interrupted(&|| place.blocks().len() > 2);
    let kept = place.blocks().len();
    assert!(text.contains(" results stay in the checkpoint "), "{text}");
    assert!(
        text.ends_with("mkdwarfs: interrupted, no image was written\n"),
        "{text}"
    );
    let (image, reused, _) = place.resume();
    assert!(image == place.whole());
    assert_eq!(reused, kept as u64);
}

#[test]
fn pipes_appends_and_archives_resume_too() {
    let place = TestDir::new();
    // To standard output.
    let whole = place.whole();
    place.kill(Point::Metadata);
    let pipe = place.with(Path::new("-"), "-N2", "-Czstd:level=19");
    let out = place.checkpointed(pipe).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.stdout == whole && text.contains("resumed: "), "{text}");

    // From a pipe, where nothing but blocks can be known again.
    let tar = place.path("in.tar");
    let mut pack = Command::new("tar");
    pack.arg("-C")
        .arg(place.path("in"))
        .arg("-cf")
        .arg(&tar)
        .arg(".");
    assert!(pack.status().unwrap().success());
    let archive = fs::read(&tar).unwrap();
    let feed = |checkpoint: bool| {
        let mut command = Command::new(MKDWARFS);
        command.args([
            "-i-",
            "-S18",
            "-N2",
            "-Czstd:level=19",
            "--no-create-timestamp",
        ]);
        command
            .args(["--no-history", "--no-progress", "-fo"])
            .arg(place.path("out"));
        if checkpoint {
            command.arg("--checkpoint").arg(place.checkpoint());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&archive).unwrap();
        child
    };
    assert!(feed(false).wait().unwrap().success());
    let whole = fs::read(place.path("out")).unwrap();
    let mut killed = feed(true);
    while place.blocks().len() < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let out = feed(true).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("resumed: "), "{text}");
    assert!(fs::read(place.path("out")).unwrap() == whole);

    // An append in place, which leaves the old image when it is killed.
    let old = fs::read(place.path("out")).unwrap();
    for n in 0..20 {
        place.write(&format!("later/{n}"), &Random::new(n).text(150_000));
    }
    let append = |checkpoint: bool| {
        let mut command = Command::new(MKDWARFS);
        command
            .arg("--append")
            .arg(place.path("out"))
            .arg("-i")
            .arg(place.path("in"));
        command.args([
            "-S18",
            "-N2",
            "-Czstd:level=19",
            "--no-history",
            "--no-progress",
        ]);
        command.args(["--snapshot-name=second", "--no-create-timestamp"]);
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        if checkpoint {
            command.arg("--checkpoint").arg(place.checkpoint());
        }
        command
    };
    place.build("out", &mut append(false));
    let whole = fs::read(place.path("out")).unwrap();
    fs::write(place.path("out"), &old).unwrap();
    let mut killed = append(true).spawn().unwrap();
    while place.blocks().len() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (image, text) = place.build("out", &mut append(true));
    assert!(image == whole);
    assert!(text.contains("resumed: "), "{text}");
}
