//! Reads a mounted image with many processes for a time: see `redwarfs_testkit::soak`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::soak::{Plan, make_source, read, resident_bound, soak};

const USAGE: &str = "usage: soak --tools DIR [--seconds T] [--processes N] [--cache MIB] \
[--workers N]\n            [--size MIB | --source DIR [--image FILE]]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [first, point, source, seed, seconds] if first == "--read" => {
            read_only(point, source, seed, seconds).map(|()| true)
        }
        _ => run(arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(text) => {
            eprintln!("soak: {text}");
            ExitCode::FAILURE
        }
    }
}

fn read_only(point: &str, source: &str, seed: &str, seconds: &str) -> Result<(), String> {
    let seed = seed.parse().map_err(|e| format!("{seed}: {e}"))?;
    let seconds = seconds.parse().map_err(|e| format!("{seconds}: {e}"))?;
    let time = Duration::from_secs_f64(seconds);
    let (reads, bytes) =
        read(Path::new(point), Path::new(source), seed, time).map_err(|e| e.to_string())?;
    println!("{reads} {bytes}");
    Ok(())
}

fn run(arguments: Vec<String>) -> Result<bool, String> {
    let (mut seconds, mut processes, mut cache, mut size, mut workers) = (20, 16, 64, 256, 2);
    let (mut tools, mut source, mut image) = (None, None, None);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        let number = || value.parse::<u64>().map_err(|e| format!("{value}: {e}"));
        match argument.as_str() {
            "--seconds" => seconds = number()?,
            "--processes" => processes = number()?,
            "--cache" => cache = number()?,
            "--size" => size = number()?,
            "--workers" => workers = number()?,
            "--tools" => tools = Some(PathBuf::from(value)),
            "--source" => source = Some(PathBuf::from(value)),
            "--image" => image = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {argument}\n{USAGE}")),
        }
    }
    let tools = tools.ok_or(USAGE)?;
    let work = std::env::temp_dir().join(format!("redwarfs-soak-{}", std::process::id()));
    let result = prepared(&work, &tools, source, image, size).and_then(|(source, image)| {
        let plan = Plan {
            dwarfs: tools.join("dwarfs"),
            image,
            source,
            point: work.join("mnt"),
            reader: std::env::current_exe().map_err(|e| e.to_string())?,
            time: Duration::from_secs(seconds),
            processes,
            cache: cache << 20,
            workers,
        };
        judge(&plan)
    });
    let _ = std::fs::remove_dir_all(&work);
    result
}

/// The source and the image; those that were not given are made.
fn prepared(
    work: &Path,
    tools: &Path,
    source: Option<PathBuf>,
    image: Option<PathBuf>,
    size: u64,
) -> Result<(PathBuf, PathBuf), String> {
    let text = |e: std::io::Error| format!("{}: {e}", work.display());
    std::fs::create_dir_all(work.join("mnt")).map_err(text)?;
    let source = match source {
        Some(source) => source,
        None => {
            let source = work.join("source");
            make_source(&source, size << 20).map_err(text)?;
            source
        }
    };
    if let Some(image) = image {
        return Ok((source, image));
    }
    let image = work.join("image.dwarfs");
    let built = Command::new(tools.join("mkdwarfs"))
        .arg("-i")
        .arg(&source)
        .arg("-o")
        .arg(&image)
        .args(["-l4", "-S20", "--log-level=error"])
        .status()
        .map_err(|e| format!("mkdwarfs: {e}"))?;
    if !built.success() {
        return Err(format!("mkdwarfs: {built}"));
    }
    Ok((source, image))
}

fn judge(plan: &Plan) -> Result<bool, String> {
    let image = Image::open(&plan.image, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let block = u64::from(image.metadata().block_size());
    // Raw; where it is stored plain, it is not larger.
    let metadata = image.metadata().bytes().len() as u64;
    drop(image);
    let bound = resident_bound(plan.cache, metadata, plan.workers, block);
    let report = soak(plan).map_err(|e| e.to_string())?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{} processes, {} s: {} reads, {:.0} MiB compared",
        plan.processes,
        plan.time.as_secs(),
        report.reads,
        mib(report.bytes)
    );
    println!(
        "driver: {:.1} MiB resident, {:.1} MiB proportional at most; bound {:.1} MiB = cache {:.0} \
         + overhead {:.1}",
        mib(report.resident),
        mib(report.share),
        mib(bound),
        mib(plan.cache),
        mib(bound - plan.cache)
    );
    for failure in &report.failures {
        println!("FAILED: {failure}");
    }
    let fits = report.resident <= bound;
    if !fits {
        println!("FAILED: more memory than the bound");
    }
    let good = fits && report.failures.is_empty() && report.reads > 0;
    println!("{}", if good { "every byte right" } else { "not good" });
    Ok(good)
}
