//! Sends damaged images through the programs: see `redwarfs_testkit::hostile`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use redwarfs_testkit::hostile::{Plan, Tools, bases, hunt, image_of, silence};

const USAGE: &str = "usage: hostile --tools DIR [--count N] [--first N] [--threads N] [--keep DIR] \
[--no-mount]\n       hostile --tools DIR --first N --write FILE   (the image of one case)";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(text) => {
            eprintln!("hostile: {text}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, String> {
    let mut plan = Plan {
        first: 0,
        count: 1000,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        mount: Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root(),
        keep: None,
        verbose: true,
    };
    let (mut tools, mut write) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match argument.as_str() {
            "--tools" => tools = Some(PathBuf::from(value()?)),
            "--count" => plan.count = number(value()?)?,
            "--first" => plan.first = number(value()?)?,
            "--threads" => plan.threads = number(value()?)? as usize,
            "--keep" => plan.keep = Some(value()?.into()),
            "--write" => write = Some(PathBuf::from(value()?)),
            "--no-mount" => plan.mount = false,
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    let tools = Tools::in_dir(&tools.ok_or("--tools is missing")?);
    silence();
    let bases = bases(&tools);
    if let Some(path) = write {
        let (image, base, what, _) = image_of(&bases, plan.first);
        println!("{}: {what} of {base}", path.display());
        std::fs::write(&path, image).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(true);
    }
    println!("{} base images", bases.len());
    let start = std::time::Instant::now();
    let report = hunt(&tools, &bases, &plan);
    print!("{report}");
    println!("{:.0} s", start.elapsed().as_secs_f64());
    if !plan.mount {
        println!("SKIPPED: mounting: no /dev/fuse, not root, or --no-mount");
    }
    Ok(report.failures.is_empty())
}
