//! Small source trees, images of them, and the program under test.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{is_installed, skip};
use rustix::fs::{CWD, FileType, Mode};

/// A source tree and the image of it, in a directory of their own.
pub(crate) struct Sample {
    dir: tempfile::TempDir,
}

impl Sample {
    pub(crate) fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::with(fill, &[])
    }

    /// With further options of `mkdwarfs`.
    pub(crate) fn with(fill: impl FnOnce(&Path), options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        fs::create_dir(&source).unwrap();
        fill(&source);
        let made = Command::new(env!("CARGO_BIN_EXE_mkdwarfs"))
            .args(["-i", "source", "-o", "image.dwarfs", "-l1"])
            .args(["--log-level=error", "--progress=none"])
            .args(options.iter().filter(|o| !o.starts_with("-l")))
            .args(if options.contains(&"-l0") {
                &["-C", "null"][..]
            } else {
                &[]
            })
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path().join("source")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.path().join("image.dwarfs")
    }

    /// A new directory.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path().join(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Runs `dwarfsextract -i IMAGE` in the directory of the sample.
    pub(crate) fn extract(&self, args: &[&str]) -> Output {
        dwarfsextract(self.path(), &[&["-i", "image.dwarfs"], args].concat())
    }

    /// Changes the first byte of the only place where the image has `text`.
    pub(crate) fn damage(&self, text: &[u8]) {
        let image = fs::read(self.image()).unwrap();
        let found: Vec<usize> = image
            .windows(text.len())
            .enumerate()
            .filter(|(_, window)| *window == text)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(found.len(), 1);
        self.flip(found[0] as u64);
    }

    /// Changes a byte of the image.
    pub(crate) fn flip(&self, at: u64) {
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.image())
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
    }
}

pub(crate) fn dwarfsextract(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwarfsextract"))
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The paths of everything but directories, sorted.
pub(crate) fn files_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else {
                let path = entry.path();
                let path = path.strip_prefix(dir).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a program can be started.
pub(crate) fn have(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        skip(program, "not installed");
    }
    found
}

/// The table of contents of an archive, if there is a program that shows it.
pub(crate) fn list(archive: &Path) -> Option<Vec<String>> {
    if !have("bsdtar") {
        return None;
    }
    let done = Command::new("bsdtar")
        .arg("-tf")
        .arg(archive)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    Some(text.lines().map(str::to_owned).collect())
}

fn set_time(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(path).unwrap().set_modified(time).unwrap();
}

pub(crate) fn tree_with_links(dir: &Path) {
    fs::create_dir_all(dir.join("docs/deep")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("a.txt"), "contents of a\n").unwrap();
    fs::hard_link(dir.join("a.txt"), dir.join("twin")).unwrap();
    std::os::unix::fs::symlink("a.txt", dir.join("link")).unwrap();
    fs::write(dir.join("docs/b.txt"), "b").unwrap();
    fs::write(dir.join("docs/deep/C.TXT"), "c".repeat(5000)).unwrap();
    let docs = dir.join("docs");
    fs::set_permissions(&docs, fs::Permissions::from_mode(0o750)).unwrap();
    set_time(&dir.join("a.txt"));
    set_time(&docs);
}

/// A socket, a fifo, and for root a device.
pub(crate) fn specials(dir: &Path) {
    fs::write(dir.join("file"), "f").unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap());
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(
            CWD,
            dir.join(name),
            kind,
            Mode::from_raw_mode(0o644),
            device,
        )
    };
    node("fifo", FileType::Fifo, 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    // Only root may.
    let _ = node("null", FileType::CharacterDevice, null);
}

fn noise(seed: u64, size: usize) -> Vec<u8> {
    Random::new(seed).bytes(size)
}

/// Files that have pieces of each other: with many look-back blocks they refer to blocks all over the
/// image.
pub(crate) fn scattered(dir: &Path) {
    let parts: Vec<Vec<u8>> = (0..24).map(|n| noise(n + 1, 20_000)).collect();
    for n in 0..30_usize {
        let sub = dir.join(format!("d{}", n % 4));
        fs::create_dir_all(&sub).unwrap();
        let mut file = File::create(sub.join(format!("f{n}"))).unwrap();
        file.write_all(&noise(1000 + n as u64, 15_000)).unwrap();
        for k in 0..4 {
            file.write_all(&parts[(n * 7 + k * 5) % parts.len()])
                .unwrap();
            file.write_all(&noise((n * 10 + k) as u64 + 5000, 1000))
                .unwrap();
        }
    }
}

/// Files of which each fills blocks of 1 MiB, two of them with a text to find in the image.
pub(crate) fn one_block_each(dir: &Path) {
    let mut large = noise(1, 3 << 20);
    large[(2 << 20) + 100..][..17].copy_from_slice(b"large-and-damaged");
    fs::write(dir.join("large"), large).unwrap();
    fs::hard_link(dir.join("large"), dir.join("large-link")).unwrap();
    fs::write(dir.join("large-and-good"), noise(2, 3 << 20)).unwrap();
    let mut small = noise(3, 1 << 20);
    small[100..117].copy_from_slice(b"small-and-damaged");
    fs::write(dir.join("small"), small).unwrap();
    fs::write(dir.join("good"), noise(4, 1 << 20)).unwrap();
}
