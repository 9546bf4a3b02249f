//! Builds the same tree many times with different numbers of threads on a busy machine. All images of
//! an option set must have the same checksum.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::Manifest;
use crate::tree::Random;

/// Option sets: each way to order and to segment, with one and with many streams. `{order}` and
/// `{hot}` are files with paths of the tree.
///
/// Some have a faster codec than their level, because threads could only change searching and ordering,
/// not the codec.
pub const OPTION_SETS: [&str; 14] = [
    "-l0",
    "-l1 --categorize",
    "-l3",
    "-l4 --categorize",
    "-l5",
    "-l7 --categorize",
    "-l9",
    "-l9 -C lzma:level=0 --categorize -S20 -B4",
    "-l6 -C zstd:level=1 --order=nilsimsa:max-children=50:max-cluster-size=60",
    "-l4 --order=families --categorize -S18",
    "-l7 -C zstd:level=1 --order=explicit:file={order} --categorize --order=binary/elf::nilsimsa",
    "-l3 -C lz4 -S16 -B9 -W9 -w3 --file-hash=xxh3-64 --verify-dedup=always -L 1g",
    "-l4 -C zstd:level=1 --categorize=hotness,incompressible,binary,pcmaudio \
     --hotness-list={hot} --incompressible-fragments --incompressible-block-size=64k",
    "-l2 -S18 --file-hash=none --symlinks=follow --hard-links=dissolve --keep-all-times",
];

/// Threads of a build are 1 to this many, for each of its stages.
const MOST_WORKERS: u64 = 8;

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program.
    pub mkdwarfs: PathBuf,
    /// The tree.
    pub source: PathBuf,
    /// An empty directory.
    pub scratch: PathBuf,
    /// The option sets, of [`OPTION_SETS`].
    pub sets: Vec<&'static str>,
    /// Builds of each option set.
    pub builds: u64,
    /// Threads that keep CPUs and files busy meanwhile.
    pub load: usize,
    /// Whether images say which program has made them. Those of other processors say something else.
    pub history: bool,
}

/// What came of an option set.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The options.
    pub options: &'static str,
    /// Bytes of the image.
    pub size: u64,
    /// Checksums (SHA-256), each with the threads of the first build that gave it.
    pub checksums: Vec<(String, Workers)>,
    /// Wall time of all builds.
    pub time: Duration,
}

/// Numbers of threads of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// `--num-workers`.
    pub all: u64,
    /// `--num-scanner-workers`, if it is not the same.
    pub scanner: Option<u64>,
    /// `--num-segmenter-workers`, if it is not the same.
    pub segmenter: Option<u64>,
}

impl Workers {
    /// Those of build `number`. Eight builds have every number from 1 to 8. Every second build has
    /// different numbers for the stages.
    #[must_use]
    pub fn of(number: u64) -> Self {
        let mut random = Random::new(number + 1);
        let mut stage = || (number % 2 == 1).then(|| 1 + random.below(MOST_WORKERS));
        Self {
            // 1, 8, 2, 7, 3, 6, 4, 5, and again.
            all: match number % MOST_WORKERS {
                even if even % 2 == 0 => even / 2 + 1,
                odd => MOST_WORKERS - odd / 2,
            },
            scanner: stage(),
            segmenter: stage(),
        }
    }

    fn arguments(self) -> Vec<String> {
        let stages = [
            ("--num-scanner-workers", self.scanner),
            ("--num-segmenter-workers", self.segmenter),
        ];
        let stages = stages.into_iter();
        let given = stages.filter_map(|(name, n)| n.map(|n| format!("{name}={n}")));
        given
            .chain([format!("--num-workers={}", self.all)])
            .collect()
    }
}

/// Builds with one option set after the other, and hands out each outcome.
///
/// # Errors
/// The set-up is broken, or a build fails.
pub fn reproduce(plan: &Plan, mut done: impl FnMut(&Outcome)) -> io::Result<Vec<Outcome>> {
    lists(plan)?;
    let load = Load::start(plan.load, &plan.scratch)?;
    let mut outcomes = Vec::new();
    for &options in &plan.sets {
        let start = Instant::now();
        let mut outcome = Outcome {
            options,
            size: 0,
            checksums: Vec::new(),
            time: Duration::ZERO,
        };
        for number in 0..plan.builds {
            let workers = Workers::of(number);
            let (checksum, size) = build(plan, options, workers)?;
            if outcome
                .checksums
                .iter()
                .all(|(known, _)| *known != checksum)
            {
                outcome.checksums.push((checksum, workers));
            }
            outcome.size = size;
        }
        outcome.time = start.elapsed();
        done(&outcome);
        outcomes.push(outcome);
    }
    drop(load);
    Ok(outcomes)
}

/// Writes the files that options name.
fn lists(plan: &Plan) -> io::Result<()> {
    let paths = Manifest::from_directory(&plan.source, false)?;
    // A list cannot hold a name with a newline.
    let paths: Vec<&Vec<u8>> = paths.0.keys().filter(|p| !p.contains(&b'\n')).collect();
    let write = |name: &str, step: usize| -> io::Result<()> {
        let mut out = io::BufWriter::new(File::create(plan.scratch.join(name))?);
        for path in paths.iter().rev().step_by(step) {
            out.write_all(path)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    };
    write("order", 2)?;
    write("hot", 7)
}

/// SHA-256 and size of an image.
fn build(plan: &Plan, options: &str, workers: Workers) -> io::Result<(String, u64)> {
    let mut command = Command::new(&plan.mkdwarfs);
    command.arg("-i").arg(&plan.source).args(["-o", "-"]);
    command.args(["--log-level=error", "--no-progress"]);
    // The differences from build to build: times, and the numbers of threads.
    command.args(["--no-create-timestamp", "--no-history-timestamps"]);
    command.arg("--no-history-command-line");
    if !plan.history {
        command.arg("--no-history");
    }
    command.env_remove("SOURCE_DATE_EPOCH");
    for option in options.split(' ').filter(|option| !option.is_empty()) {
        let mut option = option.to_owned();
        for name in ["order", "hot"] {
            let file = plan.scratch.join(name);
            option = option.replace(&format!("{{{name}}}"), &file.to_string_lossy());
        }
        command.arg(option);
    }
    command.args(workers.arguments());
    // Links that cannot be followed are left out of the tree.
    let partial = options.contains("--symlinks=follow");
    if partial {
        command.stderr(Stdio::null());
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = child.stdout.take().expect("a pipe");
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        let n = out.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        size += n as u64;
    }
    let status = child.wait()?;
    let complete = status.success() || (partial && status.code() == Some(2));
    if !complete {
        return Err(io::Error::other(format!("mkdwarfs {options}: {status}")));
    }
    let hash = hasher.finalize();
    Ok((
        hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        size,
    ))
}

/// Threads that compute in bursts of different lengths, and write, read and drop files, so that other
/// threads run at different times.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(threads: usize, scratch: &Path) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Self {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        for number in 0..threads {
            let file = crate::process::unnamed_file(scratch)?;
            let stop = Arc::clone(&stop);
            load.threads.push(std::thread::spawn(move || {
                burden(number as u64, file, &stop);
            }));
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn burden(number: u64, mut file: File, stop: &AtomicBool) {
    let mut random = Random::new(number + 77);
    let data = random.bytes(1 << 20);
    while !stop.load(Ordering::Relaxed) {
        let end = Instant::now() + Duration::from_micros(random.below(20_000));
        while Instant::now() < end {
            black_box(random.draw());
        }
        // Full disks and the like are no concern of the load.
        let _ = (0..random.below(4)).try_for_each(|_| file.write_all(&data));
        let _ = file.sync_data().and_then(|()| file.rewind());
        let _ = io::copy(&mut file, &mut io::sink());
        let _ = file.set_len(0).and_then(|()| file.rewind());
        std::thread::sleep(Duration::from_micros(random.below(3000)));
    }
}

/// Bytes and number of the regular files of a tree.
///
/// # Errors
/// It cannot be read.
pub fn extent(source: &Path) -> io::Result<(u64, usize)> {
    let mut todo = vec![source.to_owned()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.is_file() {
                bytes += meta.len();
                files += 1;
            }
        }
    }
    Ok((bytes, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_threads_occur() {
        let all: Vec<u64> = (0..8).map(|n| Workers::of(n).all).collect();
        assert_eq!(all, [1, 8, 2, 7, 3, 6, 4, 5]);
        let stages = (0..20).filter_map(|n| Workers::of(n).segmenter);
        assert_eq!(stages.clone().count(), 10);
        assert!(stages.clone().all(|n| (1..=8).contains(&n)));
        assert!(stages.clone().max() > stages.min());
        assert_eq!(Workers::of(0).arguments(), ["--num-workers=1"]);
        assert_eq!(Workers::of(1).arguments().len(), 3);
    }

    #[test]
    fn load_ends() {
        let load = Load::start(2, &std::env::temp_dir()).expect("threads");
        let stop = Arc::clone(&load.stop);
        assert!(!stop.load(Ordering::Relaxed));
        drop(load);
        assert!(stop.load(Ordering::Relaxed));
    }
}
