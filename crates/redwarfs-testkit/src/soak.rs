//! Many processes read random ranges of random files of a mounted image, and compare every byte with
//! the source tree. Meanwhile the memory of the driver is measured.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags};

use crate::tree::Random;

/// Memory of a driver beyond its cache and its jobs, in bytes: the program, its threads, and the
/// overhead of the allocator.
const BASE: u64 = 32 << 20;

/// Largest resident memory that a driver may have, in bytes (see `docs/limits.md`). It is the sum of
/// the cache, the raw metadata, and a job for each of `workers` threads, of two threads that read
/// ahead, and of the reading thread. A job is a block, its payload and a decoder.
pub fn resident_bound(cache: u64, metadata: u64, workers: u64, block: u64) -> u64 {
    let job = 2 * block + block.clamp(9 << 20, 128 << 20);
    BASE + cache + metadata + (workers + 3) * job
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The driver.
    pub dwarfs: PathBuf,
    /// The image.
    pub image: PathBuf,
    /// The tree that it was made from.
    pub source: PathBuf,
    /// An empty directory.
    pub point: PathBuf,
    /// This program, for it is also what reads.
    pub reader: PathBuf,
    /// How long.
    pub time: Duration,
    /// Number of reading processes.
    pub processes: u64,
    /// `cachesize` in bytes.
    pub cache: u64,
    /// `workers`.
    pub workers: u64,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Reads, all processes together.
    pub reads: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Largest resident memory of the driver in bytes.
    pub resident: u64,
    /// Largest proportional share of memory of the driver in bytes.
    pub share: u64,
    /// What must not happen.
    pub failures: Vec<String>,
}

/// Runs a plan.
///
/// # Errors
/// The set-up is broken.
pub fn soak(plan: &Plan) -> io::Result<Report> {
    let mut driver = Mounted::new(plan)?;
    let mut readers = Vec::new();
    for number in 0..plan.processes {
        let reader = Command::new(&plan.reader)
            .arg("--read")
            .args([&plan.point, &plan.source])
            .arg(number.to_string())
            .arg(plan.time.as_secs_f64().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        readers.push(reader);
    }
    let mut report = Report::default();
    // Readers end by themselves.
    while readers
        .iter_mut()
        .any(|reader| matches!(reader.try_wait(), Ok(None)))
    {
        report.resident = report.resident.max(driver.memory("status", "VmRSS:"));
        report.share = report.share.max(driver.memory("smaps_rollup", "Pss:"));
        if driver.child.try_wait()?.is_some() {
            report.failures.push("the driver ended".to_owned());
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for reader in readers {
        let out = reader.wait_with_output()?;
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr);
            report.failures.push(format!("a reader: {}", text.trim()));
        }
        let text = String::from_utf8_lossy(&out.stdout);
        let mut numbers = text
            .split_whitespace()
            .filter_map(|n| n.parse::<u64>().ok());
        report.reads += numbers.next().unwrap_or(0);
        report.bytes += numbers.next().unwrap_or(0);
    }
    let log = driver.finish()?;
    if !log.is_empty() {
        report.failures.push(format!("the driver said: {log}"));
    }
    Ok(report)
}

struct Mounted {
    child: Child,
    point: PathBuf,
    log: File,
}

impl Mounted {
    fn new(plan: &Plan) -> io::Result<Self> {
        let log = crate::process::unnamed_file(&std::env::temp_dir())?;
        let child = Command::new(&plan.dwarfs)
            .arg("-f")
            .arg(&plan.image)
            .arg(&plan.point)
            .arg("-o")
            .arg(format!(
                "cachesize={},workers={},debuglevel=warn",
                plan.cache, plan.workers
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.try_clone()?)
            .spawn()?;
        let mut mounted = Self {
            child,
            point: plan.point.clone(),
            log,
        };
        let before = fs::metadata(plan.point.join(".."))?;
        loop {
            use std::os::unix::fs::MetadataExt;
            if mounted.child.try_wait()?.is_some() {
                return Err(io::Error::other("the driver ended at once"));
            }
            if fs::metadata(&plan.point)?.dev() != before.dev() {
                return Ok(mounted);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A line of a file of the driver in `/proc` that counts KiB, in bytes.
    fn memory(&self, file: &str, key: &str) -> u64 {
        let path = format!("/proc/{}/{file}", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0) * 1024
    }

    /// Unmounts, and returns the log of the driver.
    fn finish(&mut self) -> io::Result<String> {
        rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH)?;
        let status = self.child.wait()?;
        let mut text = vec![0; self.log.metadata()?.len().min(4096) as usize];
        self.log.read_exact_at(&mut text, 0)?;
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if !status.success() {
            text = format!("{status}: {text}");
        }
        Ok(text)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
        let _ = self.child.wait();
    }
}

/// Reads and compares until the time is over; returns the number of reads and of bytes. Half of the
/// reads bypass the page cache, and the pages of the others are dropped, so that the driver sees almost
/// all reads.
///
/// # Errors
/// A read fails or gives other bytes than the source.
pub fn read(point: &Path, source: &Path, seed: u64, time: Duration) -> io::Result<(u64, u64)> {
    let files = regular_files(source)?;
    let mut random = Random::new(seed + 1);
    let (mut reads, mut bytes) = (0, 0);
    let end = Instant::now() + time;
    let (mut got, mut want) = (Vec::new(), Vec::new());
    while Instant::now() < end && !files.is_empty() {
        let path = &files[random.below(files.len() as u64) as usize];
        let flags = if random.below(2) == 0 {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let mounted = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(point.join(path))?;
        let original = File::open(source.join(path))?;
        let size = original.metadata()?.len();
        for _ in 0..1 + random.below(4) {
            let offset = random.below(size + 1);
            let longest = [4096, 65_536, 1 << 20][random.below(3) as usize];
            let len = 1 + random.below(longest);
            want.resize(len as usize, 0);
            got.resize(len as usize, 0xee);
            let (expected, actual) = (
                read_full(&original, &mut want, offset)?,
                read_full(&mounted, &mut got, offset)
                    .map_err(|e| named(path, format!("{len} bytes at {offset}: {e}")))?,
            );
            if want[..expected] != got[..actual] {
                let at = want.iter().zip(&got).position(|(a, b)| a != b);
                let text = format!("{len} bytes at {offset} differ, first at {at:?}");
                return Err(named(path, text));
            }
            reads += 1;
            bytes += actual as u64;
        }
        let _ = rustix::fs::fadvise(&mounted, 0, None, Advice::DontNeed);
    }
    Ok((reads, bytes))
}

fn named(path: &Path, text: String) -> io::Error {
    io::Error::other(format!("{}: {text}", path.display()))
}

fn read_full(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Paths of all regular files below `root`, relative to it, in a fixed order.
fn regular_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let ty = entry.file_type()?;
            if ty.is_dir() {
                todo.push(path);
            } else if ty.is_file() {
                out.push(path);
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Fills `root` with about `size` bytes: texts, bytes without structure, and copies.
///
/// # Errors
/// It cannot be written.
pub fn make_source(root: &Path, size: u64) -> io::Result<()> {
    fs::create_dir_all(root)?;
    let mut random = Random::new(99);
    let (mut done, mut number) = (0, 0);
    let mut last = Vec::new();
    while done < size {
        let len = 1 + random.below([2000, 100_000, 4 << 20][number % 3]) as usize;
        let data = match number % 7 {
            0 | 3 => random.bytes(len),
            5 => std::mem::take(&mut last),
            _ => random.text(len),
        };
        let dir = root.join(format!("{:02}", number % 20));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("{number:05}")), &data)?;
        done += data.len() as u64;
        number += 1;
        last = data;
    }
    Ok(())
}
