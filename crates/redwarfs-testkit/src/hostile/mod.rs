//! Damaged images through the real programs.
//!
//! Every case depends only on its number and on the base images. The number seeds a generator, which
//! picks a base (small ones more often), damages it with [`mutate::image`], and picks options for the
//! programs. The image then goes through
//!
//! * `dwarfsck`: the normal check at some detail level, JSON (which must parse if the program reports
//!   no error), checksums of all files, and a listing or an export;
//! * `dwarfs`: mounted, walked, every file read at its start, middle, end and far beyond, every
//!   attribute, link, extended attribute and hole looked at, unmounted;
//! * `dwarfsextract`: to a directory, and to a pax archive whose member names are looked at.
//!
//! A case fails if a program ends by a signal, panics in any thread, or returns an undocumented exit
//! code. It also fails if the program computes longer than [`TIME`], waits longer than [`WAIT`], uses
//! more memory than [`memory_bound`] allows, or writes outside of its target directory.
//!
//! A valid image may have very large contents. If they are larger than [`HEAVY`], programs that read
//! all of them get a request to end after [`PATIENCE`], and must then end.

mod archive;
mod base;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::mutate::{self, Rng};
use crate::process::{End, Limits, Run, Running, run};
pub use base::{Base, bases, silence};

/// Longest that a program may compute, all of its threads together.
pub const TIME: Duration = Duration::from_secs(10);
/// Longest that a program may take, which differs from [`TIME`] only on a busy machine.
pub const WAIT: Duration = Duration::from_secs(60);
/// When a program that has a lot to do is asked to end.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Contents of an image above which a program has a lot to do (bytes).
pub const HEAVY: u64 = 256 << 20;
/// Cache of every program (bytes).
const CACHE: u64 = 8 << 20;
/// Number of threads, for programs with such an option.
const WORKERS: u64 = 2;
/// Memory of a program that does nothing, including its libraries and stacks, and the small tables of
/// an image of this size, in bytes.
const BASE: u64 = 32 << 20;

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Tools {
    /// `mkdwarfs`
    pub mkdwarfs: PathBuf,
    /// `dwarfs`
    pub dwarfs: PathBuf,
    /// `dwarfsck`
    pub dwarfsck: PathBuf,
    /// `dwarfsextract`
    pub dwarfsextract: PathBuf,
}

impl Tools {
    /// All in one directory.
    pub fn in_dir(dir: &Path) -> Self {
        Self {
            mkdwarfs: dir.join("mkdwarfs"),
            dwarfs: dir.join("dwarfs"),
            dwarfsck: dir.join("dwarfsck"),
            dwarfsextract: dir.join("dwarfsextract"),
        }
    }
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of the first case.
    pub first: u64,
    /// Number of cases.
    pub count: u64,
    /// Cases at a time.
    pub threads: usize,
    /// Whether to mount.
    pub mount: bool,
    /// Where images that make a program fail are kept.
    pub keep: Option<PathBuf>,
    /// Prints how far it is.
    pub verbose: bool,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases done.
    pub cases: u64,
    /// How often each kind of damage was done.
    pub damage: BTreeMap<&'static str, u64>,
    /// Program and how it ended, with the number of times.
    pub ends: BTreeMap<(&'static str, String), u64>,
    /// Longest run of each program in cases that are not heavy.
    pub slowest: BTreeMap<&'static str, (Duration, u64)>,
    /// Largest memory of each program in bytes.
    pub largest: BTreeMap<&'static str, (u64, u64)>,
    /// Cases with contents above [`HEAVY`].
    pub heavy: u64,
    /// Programs that were asked to end and did.
    pub asked: u64,
    /// Programs whose memory is not known: this process had more than they may use.
    pub unmeasured: u64,
    /// One text per failure.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "damaged images: {} ({} heavy)", self.cases, self.heavy)?;
        for (what, count) in &self.damage {
            writeln!(f, "  {count:6} {what}")?;
        }
        for ((program, end), count) in &self.ends {
            writeln!(f, "{program}: {end}: {count}")?;
        }
        for (program, (time, case)) in &self.slowest {
            let ms = time.as_millis();
            writeln!(f, "{program}: slowest {ms} ms (case {case})")?;
        }
        for (program, (bytes, case)) in &self.largest {
            let mib = bytes >> 20;
            writeln!(f, "{program}: largest {mib} MiB (case {case})")?;
        }
        writeln!(f, "asked to end, and did: {}", self.asked)?;
        writeln!(f, "memory not known: {}", self.unmeasured)?;
        writeln!(f, "failures: {}", self.failures.len())?;
        for failure in &self.failures {
            writeln!(f, "  {failure}")?;
        }
        Ok(())
    }
}

impl Report {
    fn add(&mut self, other: Report) {
        self.cases += other.cases;
        self.heavy += other.heavy;
        self.asked += other.asked;
        self.unmeasured += other.unmeasured;
        for (key, count) in other.damage {
            *self.damage.entry(key).or_default() += count;
        }
        for (key, count) in other.ends {
            *self.ends.entry(key).or_default() += count;
        }
        for (key, value) in other.slowest {
            let entry = self.slowest.entry(key).or_default();
            *entry = (*entry).max(value);
        }
        for (key, value) in other.largest {
            let entry = self.largest.entry(key).or_default();
            *entry = (*entry).max(value);
        }
        self.failures.extend(other.failures);
    }
}

/// The contents of an image, determined from its data, not from its claims.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    /// Sum of the sizes of all files, or more than [`HEAVY`].
    content: u64,
    /// Largest raw size that a block announces and may have, in bytes.
    block: u64,
}

/// Memory that a program may use for an image whose largest block announces `block` bytes. It is the
/// sum of the cache and, for every thread, two blocks with their decoders. A decoder takes at most the
/// size of the block or 9 MiB, whichever is more.
pub fn memory_bound(block: u64) -> u64 {
    let job = 2 * block + block.clamp(9 << 20, 128 << 20);
    BASE + CACHE + (WORKERS + 2) * job
}

/// Runs a plan.
///
/// # Panics
/// The set-up is broken: a program is missing, or there is no room.
pub fn hunt(tools: &Tools, bases: &[Base], plan: &Plan) -> Report {
    let next = AtomicU64::new(plan.first);
    let end = plan.first + plan.count;
    let total = Mutex::new(Report::default());
    let stop = AtomicBool::new(false);
    let levels = detail_levels(tools, &bases[0]);
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                let mut hunter = Hunter::new(tools, bases, plan, levels);
                while !stop.load(Ordering::Relaxed) {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= end {
                        break;
                    }
                    let report = hunter.case(case);
                    if plan.verbose {
                        for failure in &report.failures {
                            println!("{failure}");
                        }
                    }
                    let mut total = total.lock().expect("no thread panics with it");
                    total.add(report);
                    if total.failures.len() >= 200 {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if plan.verbose && total.cases % 500 == 0 {
                        let (cases, failures) = (total.cases, total.failures.len());
                        println!("{cases} of {}, {failures} failures", plan.count);
                    }
                }
            });
        }
    });
    total.into_inner().expect("no thread panicked")
}

/// The image of a case, the name of its base, and the damage.
pub fn image_of(bases: &[Base], case: u64) -> (Vec<u8>, &str, &'static str, Rng) {
    let mut rng = Rng::new(case);
    let at = rng.below(bases.len()).min(rng.below(bases.len()));
    let base = &bases[at];
    let (image, what) = mutate::image(&base.parts, &mut rng);
    (image, &base.name, what, rng)
}

/// Highest detail level that `dwarfsck` knows.
fn detail_levels(tools: &Tools, base: &Base) -> usize {
    let dir = scratch();
    let path = dir.join("intact");
    fs::write(&path, base.parts.assemble()).expect("room for an image");
    let highest = (0..=9).rev().find(|level| {
        let mut command = Command::new(&tools.dwarfsck);
        command
            .arg(&path)
            .arg(format!("-d{level}"))
            .stdout(Stdio::null());
        let run = run(&mut command, Limits::default(), &dir).expect("dwarfsck can be started");
        run.end == End::Code(0)
    });
    let _ = fs::remove_dir_all(&dir);
    highest.expect("dwarfsck accepts an intact image")
}

/// A new directory for one thread.
fn scratch() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("redwarfs-hostile-{}-{number}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    fs::create_dir_all(&dir).expect("a directory for temporary files");
    dir.canonicalize().expect("it was just made")
}

struct Hunter<'a> {
    tools: &'a Tools,
    bases: &'a [Base],
    plan: &'a Plan,
    levels: usize,
    dir: PathBuf,
}

impl Drop for Hunter<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.join("mnt"), rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One case while it runs.
struct Case<'a> {
    number: u64,
    base: &'a str,
    what: &'static str,
    weight: Weight,
    report: Report,
}

impl Case<'_> {
    fn fail(&mut self, program: &str, what: impl fmt::Display) {
        let Self {
            number,
            base,
            what: damage,
            ..
        } = self;
        let text = format!("case {number} ({damage} of {base}): {program}: {what}");
        self.report.failures.push(text);
    }

    /// Judges how a program ended.
    fn judge(&mut self, program: &'static str, run: &Run, codes: &[i32]) {
        let end = match run.end {
            End::Code(code) => format!("exit {code}"),
            End::Signal(signal) => format!("signal {signal}"),
            End::TimedOut => "killed".to_owned(),
        };
        *self.report.ends.entry((program, end)).or_default() += 1;
        let first = |text: &str| text.lines().take(4).collect::<Vec<_>>().join(" | ");
        let asked = run.asked && run.end == End::Signal(libc::SIGTERM);
        let code = matches!(run.end, End::Code(code) if codes.contains(&code) || run.asked);
        if run.end == End::TimedOut {
            self.fail(
                program,
                format_args!("took more than {TIME:?}: {}", first(&run.stderr)),
            );
        } else if run.crashed() && !asked {
            self.fail(
                program,
                format_args!("crashed ({:?}): {}", run.end, first(&run.stderr)),
            );
        } else if !code && !asked {
            self.fail(
                program,
                format_args!("{:?}: {}", run.end, first(&run.stderr)),
            );
        }
        if run.asked {
            self.report.asked += 1;
        } else if self.weight.content <= HEAVY {
            self.report.slowest.insert(program, (run.time, self.number));
        }
        let bound = memory_bound(self.weight.block);
        if run.peak <= run.inherited {
            self.report.unmeasured += u64::from(run.peak > bound);
            return;
        }
        if run.peak > bound {
            self.fail(
                program,
                format_args!(
                    "{} KiB of memory, the bound is {} KiB",
                    run.peak >> 10,
                    bound >> 10
                ),
            );
        }
        let entry = self.report.largest.entry(program).or_default();
        *entry = (*entry).max((run.peak, self.number));
    }
}

impl<'a> Hunter<'a> {
    fn new(tools: &'a Tools, bases: &'a [Base], plan: &'a Plan, levels: usize) -> Self {
        let dir = scratch();
        fs::create_dir(dir.join("mnt")).expect("a mount point");
        Self {
            tools,
            bases,
            plan,
            levels,
            dir,
        }
    }

    fn case(&mut self, number: u64) -> Report {
        let (image, base, what, mut rng) = image_of(self.bases, number);
        let weight = base::weigh(&image);
        let mut case = Case {
            number,
            base,
            what,
            weight,
            report: Report {
                cases: 1,
                heavy: u64::from(weight.content > HEAVY),
                ..Report::default()
            },
        };
        case.report.damage.insert(what, 1);
        let path = self.dir.join("image.dwarfs");
        fs::write(&path, &image).expect("room for an image");
        drop(image);
        crate::process::trim();
        self.check(&mut case, &path, &mut rng);
        if self.plan.mount {
            self.mount(&mut case, &path, &mut rng);
        }
        self.extract(&mut case, &path, &mut rng);
        if let (Some(keep), false) = (&self.plan.keep, case.report.failures.is_empty()) {
            fs::create_dir_all(keep).expect("the directory for failures");
            fs::copy(&path, keep.join(format!("{number}.dwarfs"))).expect("room for an image");
        }
        case.report
    }

    fn limits(&self, case: &Case<'_>) -> Limits {
        Limits {
            processor: TIME,
            time: WAIT,
            ask_after: (case.weight.content > HEAVY).then_some(PATIENCE),
            // Stacks and arenas of threads are reserved, not used.
            address_space: (2 << 30) + 8 * case.weight.block,
            ..Limits::default()
        }
    }

    fn check(&self, case: &mut Case<'_>, image: &Path, rng: &mut Rng) {
        const ALGORITHMS: [&str; 4] = ["sha512-256", "xxh3-64", "md5", "sha256"];
        let start = |args: &[&str]| {
            let mut command = Command::new(&self.tools.dwarfsck);
            command
                .arg(image)
                .args(["-s", "8m", "-n", "2"])
                .args(args)
                .stdout(Stdio::null());
            command
        };
        let limits = self.limits(case);
        let codes = [0, 1];

        let level = format!("-d{}", rng.below(self.levels + 1));
        let extra = [&[][..], &["--check-integrity"], &["--no-check"], &["-q"]][rng.below(4)];
        let mut command = start(&[&[level.as_str()], extra].concat());
        let run = self.run(&mut command, limits);
        case.judge("dwarfsck", &run, &codes);

        let out = self.dir.join("out.json");
        let mut command = start(&["--json", &level, "--no-check"]);
        command.stdout(fs::File::create(&out).expect("a file"));
        let run = self.run(&mut command, limits);
        case.judge("dwarfsck --json", &run, &codes);
        if run.end == End::Code(0) {
            let text = fs::read(&out).expect("what was written");
            if let Err(e) = serde_json::from_slice::<serde::de::IgnoredAny>(&text) {
                case.fail("dwarfsck --json", format_args!("not JSON: {e}"));
            }
        }

        let algorithm = ALGORITHMS[rng.below(4)];
        let run = self.run(&mut start(&["--checksum", algorithm]), limits);
        case.judge("dwarfsck --checksum", &run, &codes);

        match rng.below(3) {
            0 => {
                let run = self.run(&mut start(&["-l"]), limits);
                case.judge("dwarfsck -l", &run, &codes);
            }
            1 => {
                let run = self.run(&mut start(&["-l", "-v"]), limits);
                case.judge("dwarfsck -l", &run, &codes);
            }
            _ => {
                let file = self.dir.join("export.json");
                let _ = fs::remove_file(&file);
                let mut command = start(&["--export-metadata"]);
                command.arg(&file);
                let run = self.run(&mut command, limits);
                case.judge("dwarfsck --export-metadata", &run, &codes);
            }
        }
    }

    fn run(&self, command: &mut Command, limits: Limits) -> Run {
        run(command, limits, &self.dir).expect("the program can be started")
    }

    fn extract(&self, case: &mut Case<'_>, image: &Path, rng: &mut Rng) {
        // Two levels, so that `..` and `../..` lead to places that are looked at.
        let outer = self.dir.join("extract");
        let _ = fs::remove_dir_all(&outer);
        let target = outer.join("inner/target");
        for dir in [&target, &outer.join("trap"), &outer.join("inner/trap")] {
            fs::create_dir_all(dir).expect("a directory");
        }
        let go_on = rng.one_in(2);
        let start = |args: &[&str]| {
            let mut command = Command::new(&self.tools.dwarfsextract);
            command.arg("-i").arg(image).args(["-s", "8m", "-n", "2"]);
            command.args(args).stdout(Stdio::null());
            if go_on {
                command.arg("--continue-on-error");
            }
            command
        };
        let limits = self.limits(case);
        let codes = [0, 1, 2];
        let mut command = start(&[]);
        command.arg("-o").arg(&target);
        let directory = self.run(&mut command, limits);
        let tar = self.dir.join("out.tar");
        let mut command = start(&["-f", "pax", "-o", "-", "--skip-specials"]);
        command.stdout(fs::File::create(&tar).expect("a file"));
        let archive = self.run(&mut command, limits);
        case.judge("dwarfsextract", &directory, &codes);
        case.judge("dwarfsextract -f pax", &archive, &codes);

        for (dir, allowed) in [
            (outer.clone(), &["inner", "trap"][..]),
            (outer.join("inner"), &["target", "trap"]),
            (outer.join("trap"), &[]),
            (outer.join("inner/trap"), &[]),
        ] {
            let found = fs::read_dir(&dir).expect("a directory of ours");
            for entry in found {
                let name = entry.expect("an entry").file_name();
                if !allowed.iter().any(|ok| name == *ok) {
                    let at = dir.join(name);
                    case.fail("dwarfsextract", format_args!("wrote {}", at.display()));
                }
            }
        }
        if Path::new("/redwarfs-hostile-escape").exists() {
            case.fail("dwarfsextract", "wrote to an absolute path");
        }
        let bytes = fs::read(&tar).expect("the archive");
        if let Some(name) = archive::bad_member(&bytes) {
            let name = name.escape_ascii();
            case.fail(
                "dwarfsextract -f pax",
                format_args!("a member called {name}"),
            );
        }
        clear(&outer).expect("the extracted tree can be removed");
    }

    fn mount(&self, case: &mut Case<'_>, image: &Path, rng: &mut Rng) {
        let point = self.dir.join("mnt");
        let mut command = Command::new(&self.tools.dwarfs);
        let sparse = if rng.one_in(2) { ",cache_files" } else { "" };
        command
            .arg("-f")
            .arg(image)
            .arg(&point)
            .arg("-o")
            .arg(format!(
                "cachesize=8m,workers=2,offset=auto,debuglevel=error{sparse}"
            ))
            .stdout(Stdio::null());
        let limits = Limits {
            // Walking is our own doing and has its own bounds.
            ask_after: None,
            ..self.limits(case)
        };
        let driver =
            Running::start(&mut command, limits, &self.dir).expect("dwarfs can be started");
        let mounted = loop {
            if driver.ended_within(Duration::from_millis(1)) {
                break false;
            }
            if is_mounted(&point) {
                break true;
            }
            if driver.is_overdue() {
                break false;
            }
        };
        let mut problem = None;
        if mounted {
            let done = AtomicBool::new(false);
            problem = std::thread::scope(|scope| {
                // When the driver ends, pending requests fail.
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        if driver.is_overdue() {
                            driver.signal(rustix::process::Signal::KILL);
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
                let problem = walk::walk(&point);
                let unmounted = unmount(&point);
                done.store(true, Ordering::Relaxed);
                problem
                    .err()
                    .or(unmounted.err().map(|e| format!("unmount: {e}")))
            });
            *case
                .report
                .ends
                .entry(("mounted", "walked".to_owned()))
                .or_default() += 1;
        }
        let run = driver.wait().expect("waiting for a child");
        // 3: the root itself cannot be looked at, and the mount is taken down again.
        let codes: &[i32] = if mounted { &[0, 3] } else { &[1, 3] };
        case.judge("dwarfs", &run, codes);
        if let (Some(problem), false) = (problem, run.end == End::Code(3)) {
            case.fail("mounted", problem);
        }
        if is_mounted(&point) {
            case.fail("dwarfs", "left its mount behind");
            let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Removes a tree whose directories may have any mode.
fn clear(dir: &Path) -> io::Result<()> {
    let end = Instant::now() + WAIT;
    loop {
        match fs::remove_dir_all(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() > end => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn unmount(point: &Path) -> io::Result<()> {
    let end = Instant::now() + WAIT;
    loop {
        match rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => return Ok(()),
            // The last file is still being closed.
            Err(rustix::io::Errno::BUSY) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            // The driver died, and another process unmounted.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether a file system is mounted on `point`, without a request to that file system.
fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|at| Path::new(at) == point)
    })
}
