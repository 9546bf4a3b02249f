//! Builds a tree many times under load: see `redwarfs_testkit::reproduce`.

use std::path::PathBuf;
use std::process::ExitCode;

use redwarfs_testkit::reproduce::{OPTION_SETS, Outcome, Plan, extent, reproduce};

const USAGE: &str = "usage: reproduce --tools DIR --source DIR [--builds N] [--load THREADS] \
[--sets N,N,...]";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(text) => {
            eprintln!("reproduce: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut builds, mut load) = (20, 3);
    let (mut tools, mut source) = (None, None);
    let mut sets = OPTION_SETS.to_vec();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        let number = || value.parse::<u64>().map_err(|e| format!("{value}: {e}"));
        match argument.as_str() {
            "--builds" => builds = number()?,
            "--load" => load = number()?,
            "--sets" => sets = value.split(',').map(set).collect::<Result<_, _>>()?,
            "--tools" => tools = Some(PathBuf::from(value)),
            "--source" => source = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {argument}\n{USAGE}")),
        }
    }
    let (tools, source) = (tools.ok_or(USAGE)?, source.ok_or(USAGE)?);
    let scratch = std::env::temp_dir().join(format!("redwarfs-reproduce-{}", std::process::id()));
    std::fs::create_dir(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    let plan = Plan {
        mkdwarfs: tools.join("mkdwarfs"),
        source,
        scratch: scratch.clone(),
        sets,
        builds,
        load: usize::try_from(load).unwrap_or(usize::MAX),
        history: true,
    };
    let judged = judge(&plan);
    let _ = std::fs::remove_dir_all(&scratch);
    judged
}

/// The option set with a number from 1 on.
fn set(text: &str) -> Result<&'static str, String> {
    let number = text.parse::<usize>().ok();
    let set = number.and_then(|n| OPTION_SETS.get(n.checked_sub(1)?));
    set.copied()
        .ok_or_else(|| format!("{text}: not 1 to {}", OPTION_SETS.len()))
}

fn judge(plan: &Plan) -> Result<bool, String> {
    let (bytes, files) = extent(&plan.source).map_err(|e| e.to_string())?;
    println!(
        "{files} files, {bytes} bytes; {} builds of each option set with 1 to 8 threads, {} threads \
         of load",
        plan.builds, plan.load
    );
    let outcomes = reproduce(plan, show).map_err(|e| e.to_string())?;
    let good = outcomes.iter().all(|outcome| outcome.checksums.len() == 1);
    let text = if good {
        "one checksum per option set"
    } else {
        "NOT reproducible"
    };
    println!("{text}");
    Ok(good && !outcomes.is_empty() && plan.builds > 0)
}

fn show(outcome: &Outcome) {
    let checksums = outcome.checksums.len();
    let first = outcome
        .checksums
        .first()
        .map_or("", |(checksum, _)| checksum);
    println!(
        "{checksums} checksum(s), {} bytes, {:.0} s: {} ({})",
        outcome.size,
        outcome.time.as_secs_f64(),
        outcome.options,
        first.get(..16).unwrap_or_default()
    );
    if checksums > 1 {
        for (checksum, workers) in &outcome.checksums {
            println!("  {checksum} with {workers:?}");
        }
    }
}
