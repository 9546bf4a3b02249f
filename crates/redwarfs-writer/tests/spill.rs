//! Inodes in a temporary file under a low memory limit.

use std::cell::Cell;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use crate::common::build;
use crate::common::trees::{options, tree};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redwarfs_writer::{
    BuildOptions, Builder, Counters, Error, Level, MemoryNode, MemoryTree, Phase, Progress, Source,
    Timestamp,
};

/// Keeps messages, and calls a function when the search for equal files begins.
struct Log<'a> {
    counters: Counters,
    lines: Mutex<Vec<(Level, String)>>,
    at_hashing: &'a (dyn Fn() + Sync),
}

impl<'a> Log<'a> {
    fn new(at_hashing: &'a (dyn Fn() + Sync)) -> Self {
        Self {
            counters: Counters::default(),
            lines: Mutex::default(),
            at_hashing,
        }
    }

    fn has(&self, level: Level, start: &str) -> bool {
        let lines = self.lines.lock().unwrap();
        let mut lines = lines.iter();
        lines.any(|(of, text)| *of == level && text.starts_with(start))
    }
}

impl Progress for Log<'_> {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn phase(&self, phase: Phase) {
        if phase == Phase::Hashing {
            (self.at_hashing)();
        }
    }

    fn log(&self, level: Level, message: &str) {
        self.lines.lock().unwrap().push((level, message.to_owned()));
    }
}

const WAITS: &str = "inodes wait in a temporary file of ";

fn try_build(options: &BuildOptions, source: &dyn Source, log: &Log<'_>) -> Result<Vec<u8>, Error> {
    let mut image = Vec::new();
    let running = AtomicBool::new(false);
    let built = Builder::new(options.clone()).build(source, &mut image, log, &running);
    built.map(|_| image)
}

/// The image under the lowest limit that is not refused, this limit, and whether inodes were in a file.
fn lowest(options: &BuildOptions, source: &dyn Source) -> (Vec<u8>, u64, bool) {
    let mut options = options.clone();
    options.memory_limit = Some(1);
    loop {
        let log = Log::new(&|| ());
        match try_build(&options, source, &log) {
            Ok(image) => {
                let limit = options.memory_limit.unwrap();
                return (image, limit, log.has(Level::Verbose, WAITS));
            }
            Err(Error::MemoryLimit { limit, needed, .. }) => {
                assert!(needed > limit, "{needed} after {limit}");
                options.memory_limit = Some(needed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Each file has a content of its own, or a quarter of them that of another one.
fn some_files(equal: bool) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for i in 0..2000u32 {
        let directory = format!("{:02}", i % 40);
        if i < 40 {
            let node = MemoryNode::new(redwarfs_writer::FileType::Directory);
            tree.insert(directory.clone(), node);
        }
        let content = i - if equal { i % 4 / 3 } else { 0 };
        let text = format!("the file with number {content}");
        let mut node = MemoryNode::file(text);
        node.meta.mtime = Timestamp {
            sec: i64::from(i) * 7919,
            nsec: i,
        };
        node.meta.permissions = 0o600 | (i % 64);
        tree.insert(format!("{directory}/a-file-{i}"), node);
    }
    tree
}

#[test]
fn an_image_does_not_depend_on_where_inodes_wait() {
    let place = tempfile::tempdir().unwrap();
    let spilled = Cell::new(0);
    let cases = 60;
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let all = (tree(), options(), any::<bool>());
    let done = runner.run(&all, |(tree, mut options, keep_births)| {
        options.keep_birth_times = keep_births;
        let (usual, _) = build(&options, &tree);
        options.spool = Some(place.path().to_owned());
        let (low, _, in_file) = lowest(&options, &tree);
        spilled.set(spilled.get() + u32::from(in_file));
        prop_assert!(low == usual, "the limit changes the image");
        Ok(())
    });
    done.unwrap();
    // In some trees there is nothing but directories, for example.
    assert!(spilled.get() > cases / 3, "{} of {cases}", spilled.get());
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_file_lowers_what_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let tree = some_files(true);
    for level in [1, 4, 5] {
        let mut options = BuildOptions::level(level);
        options.workers = 2;
        let (usual, _) = build(&options, &tree);
        let (first, without, in_file) = lowest(&options, &tree);
        assert!(first == usual && !in_file, "level {level}");
        options.spool = Some(place.path().to_owned());
        let (second, with, in_file) = lowest(&options, &tree);
        assert!(second == usual && in_file, "level {level}");
        assert!(with + 24 * 2040 <= without, "{with} {without}");
    }
}

/// Builds under a limit for which a file is needed, or would have been.
fn with_spool(spool: &Path, enough: bool) -> (Result<Vec<u8>, Error>, Log<'static>) {
    let tree = some_files(true);
    let mut options = BuildOptions::level(1);
    options.workers = 2;
    let (_, without, _) = lowest(&options, &tree);
    options.memory_limit = Some(if enough { without } else { without - 1000 });
    options.spool = Some(spool.to_owned());
    let log = Log::new(&|| ());
    (try_build(&options, &tree, &log), log)
}

#[test]
fn inodes_stay_in_memory_if_there_can_be_no_file() {
    let (usual, _) = build(&BuildOptions::level(1), &some_files(true));
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("none");
    let says = format!(
        "inodes stay in memory: cannot write a temporary file in {}: ",
        nowhere.display()
    );
    let (image, log) = with_spool(&nowhere, true);
    assert!(image.unwrap() == usual && log.has(Level::Warn, &says));
    let (image, log) = with_spool(&nowhere, false);
    assert!(matches!(image, Err(Error::MemoryLimit { .. })), "{image:?}");
    assert!(log.has(Level::Warn, &says));
    let (image, log) = with_spool(place.path(), false);
    assert!(image.unwrap() == usual && log.has(Level::Verbose, WAITS));
}

#[cfg(target_os = "linux")]
#[test]
fn files_in_memory_are_no_place_for_inodes() {
    let shared = Path::new("/dev/shm");
    if !shared.is_dir() {
        eprintln!("skipped: there is no /dev/shm");
        return;
    }
    let (usual, _) = build(&BuildOptions::level(1), &some_files(true));
    let (image, log) = with_spool(shared, true);
    let says = "inodes stay in memory, because /dev/shm is in memory, too";
    assert!(image.unwrap() == usual && log.has(Level::Verbose, says));
    let (image, _) = with_spool(shared, false);
    assert!(matches!(image, Err(Error::MemoryLimit { .. })), "{image:?}");
}

/// Attributes must not be wrong in an image because of a file of our own.
#[cfg(target_os = "linux")]
#[test]
fn a_build_fails_if_the_file_with_the_inodes_cannot_be_read() {
    let place = tempfile::tempdir().unwrap();
    // What cannot be compared with its listing is equal to nothing.
    let tree = some_files(false);
    let mut options = BuildOptions::level(1);
    options.workers = 2;
    options.spool = Some(place.path().to_owned());
    let (_, limit, _) = lowest(&options, &tree);
    options.memory_limit = Some(limit);
    let cut = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        for descriptor in open.map(|descriptor| descriptor.unwrap().path()) {
            if std::fs::read_link(&descriptor).is_ok_and(|to| to.starts_with(place.path())) {
                let file = std::fs::OpenOptions::new().write(true).open(&descriptor);
                file.unwrap().set_len(10).unwrap();
            }
        }
    };
    let log = Log::new(&cut);
    let error = try_build(&options, &tree, &log).unwrap_err();
    assert!(matches!(error, Error::Spill(_)), "{error}");
    let text = error.to_string();
    let says = "cannot read a temporary file: the temporary file of the inodes: ";
    assert!(text.starts_with(says), "{text}");
}
