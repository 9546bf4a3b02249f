//! `--scrub`: verifies all sections of a file piece by piece, on a budget, over many runs.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redwarfs_format::section::{GenerationId, SectionHasher, SectionHeader};
use redwarfs_io::{FileSource, Overwrite, Source};
use redwarfs_reader::Image;
use redwarfs_reader::check::{FileSections, GenerationsCheck, ListedSection};
use serde_json::{Value, json};

use super::args::Args;
use super::output::Output;
use super::{generations, open_error, open_options};
use crate::common::error::{EXIT_FAILURE, EXIT_OK, io_cause};
use crate::common::number::{counted, format_percent, format_size};
use crate::common::os::stop_flag;
use crate::common::output::create_output;
use crate::common::verify::utc;
use crate::common::{Logger, Result, ToolError};

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;
/// Longest state that is read (1 MiB).
const LONGEST: u64 = 1 << 20;
/// Most damaged sections that a state names.
const MOST: usize = 1000;
const WHAT: &str = "cannot use the state";

/// What is known from earlier runs of the pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ScrubState {
    /// Identity of the sections in front of the next one.
    image: String,
    /// The next section.
    next: usize,
    /// When the pass began, in seconds since 1970.
    began: i64,
    /// Offsets of the headers of the sections that are damaged.
    damaged: Vec<u64>,
    /// When the last complete pass ended; 0 if there was none.
    finished: i64,
}

impl ScrubState {
    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let damaged = value.get("damaged")?.as_array()?;
        Some(Self {
            image: value.get("image")?.as_str()?.to_owned(),
            next: usize::try_from(value.get("next")?.as_u64()?).ok()?,
            began: value.get("began")?.as_i64()?,
            damaged: damaged.iter().map(Value::as_u64).collect::<Option<_>>()?,
            finished: value.get("finished")?.as_i64()?,
        })
    }

    fn text(&self) -> String {
        let value = json!({
            "image": self.image,
            "next": self.next,
            "began": self.began,
            "damaged": self.damaged,
            "finished": self.finished,
        });
        format!("{value}\n")
    }

    /// The state in a file, or a new one if there is no file.
    fn read(path: &Path) -> Result<Self> {
        use std::io::Read;
        let failed = |e: &std::io::Error| ToolError::new(WHAT).path(path).io(e);
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(failed(&e)),
        };
        let mut text = String::new();
        file.take(LONGEST)
            .read_to_string(&mut text)
            .map_err(|e| failed(&e))?;
        Self::parse(&text).ok_or_else(|| {
            ToolError::new(WHAT)
                .path(path)
                .cause("it is no state of a scrub")
                .hint("remove it to begin anew")
        })
    }

    /// Names a damaged section, and remembers it.
    fn note(&mut self, listed: &ListedSection, why: &str, logger: &Logger) {
        let section = &listed.section;
        let at = section.payload_offset;
        logger.error(match listed.lost {
            true => format!("section at offset {at}: {why}"),
            false => format!(
                "section {} at offset {at} ({}): {why}",
                section.number, section.ty
            ),
        });
        let place = section.header_offset;
        if self.damaged.len() < MOST && !self.damaged.contains(&place) {
            self.damaged.push(place);
        }
    }

    fn write(&self, path: &Path, logger: &Logger) -> Result<()> {
        let failed = |e: &std::io::Error| ToolError::new(WHAT).path(path).io(e);
        let mut file = create_output(path, Overwrite::Yes, logger)
            .map_err(|e| ToolError::new(WHAT).cause(io_cause(&e)))?;
        file.write_all(self.text().as_bytes())
            .map_err(|e| failed(&e))?;
        file.commit().map_err(|e| failed(&e))
    }
}

/// How much may be done in a run.
struct Budget<'a> {
    /// Bytes in a second.
    rate: Option<u64>,
    end: Option<Instant>,
    began: Instant,
    read: u64,
    stop: &'a AtomicBool,
}

impl Budget<'_> {
    fn is_spent(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits until so many more bytes may be read.
    fn take(&mut self, bytes: u64) {
        self.read = self.read.saturating_add(bytes);
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else {
            return;
        };
        let due = Duration::from_secs_f64(self.read as f64 / rate as f64);
        // A signal need not wait for long.
        while let Some(left) = due.checked_sub(self.began.elapsed())
            && !self.stop.load(Ordering::Relaxed)
        {
            thread::sleep(left.min(Duration::from_millis(200)));
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().cast_signed())
}

pub(super) fn run(args: &Args, path: &Path, input: &Path, logger: &Logger) -> Result<u8> {
    let stop = stop_flag().map_err(|e| ToolError::new("cannot handle signals").io(&e))?;
    let options = open_options(args, 1);
    let cannot = |e: redwarfs_format::Error| {
        ToolError::new("cannot scrub")
            .path(input)
            .cause(ToolError::from(e))
    };
    let source =
        FileSource::open(input).map_err(|e| ToolError::new("cannot scrub").cause(io_cause(&e)))?;
    let source: Arc<dyn Source> = Arc::new(source);
    // Opening verifies schema and metadata of the newest snapshot, in each run.
    let image = Image::from_source(Arc::clone(&source), &options);
    let image = image.map_err(|e| open_error(input, &options, e))?;
    if !image.container().has_hashes() {
        return Err(ToolError::new("cannot scrub")
            .path(input)
            .cause("the image has no checksums"));
    }
    let plan = GenerationsCheck::find(Arc::clone(&source), &options).map_err(cannot)?;
    let newest = image.list_sections().map_err(cannot)?;
    let FileSections { list, lost } = plan.sections(newest);
    let sections = list.sections;
    let mut state = ScrubState::read(path)?;
    let verified = sections.get(..state.next);
    let same = verified.is_some_and(|verified| identity(verified) == state.image);
    let complete = state.finished >= state.began;
    if !same || complete {
        if state.next > 0 && !complete {
            logger.info("the file is not the one of the last run: a new pass begins");
        }
        state = ScrubState {
            began: now(),
            finished: if same { state.finished } else { 0 },
            ..ScrubState::default()
        };
    }
    let began = Instant::now();
    let mut budget = Budget {
        rate: args.scrub_rate,
        end: args.scrub_time.and_then(|time| began.checked_add(time)),
        began,
        read: 0,
        stop: &stop,
    };
    let base = image.container().offset;
    while let Some(listed) = sections.get(state.next)
        && !budget.is_spent()
    {
        match verify(source.as_ref(), base, listed, &mut budget) {
            Ok(true) => {}
            Ok(false) if stop.load(Ordering::Relaxed) => break,
            Ok(false) => state.note(listed, "checksum error", logger),
            Err(why) => state.note(listed, &why, logger),
        }
        state.next += 1;
    }
    state.image = identity(sections.get(..state.next).unwrap_or_default());
    let complete = state.next >= sections.len();
    if complete {
        // Also if the clock was set back meanwhile.
        state.finished = now().max(state.began);
    }
    state.write(path, logger)?;
    if state.damaged.is_empty() && lost.is_empty() {
        say(args, &state, &sections, None, complete, budget.read)?;
        return Ok(EXIT_OK);
    }
    let damaged: BTreeSet<u64> = state.damaged.iter().copied().collect();
    let report = plan.judge(&image, &damaged).map_err(cannot)?;
    let bad = generations::log_damaged(&report, logger);
    let all = report.snapshots.len() as u64;
    say(
        args,
        &state,
        &sections,
        Some((bad, all)),
        complete,
        budget.read,
    )?;
    Ok(EXIT_FAILURE)
}

/// What tells the sections at the start of a file from those of another one. What is appended behind them does not matter.
fn identity(sections: &[ListedSection]) -> String {
    // States of scrubs of the newest snapshot alone name sections in another way.
    let mut known = b"all generations".to_vec();
    for ListedSection { section, .. } in sections {
        known.extend(section.header_offset.to_le_bytes());
        known.extend(section.header.iter().flat_map(SectionHeader::encode));
    }
    let id = GenerationId::of(&known);
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the checksums of a section of the image at `base` are right. False also if the run was stopped.
fn verify(
    source: &dyn Source,
    base: u64,
    listed: &ListedSection,
    budget: &mut Budget<'_>,
) -> Result<bool, String> {
    let section = &listed.section;
    if listed.lost {
        return Err("its header is damaged".to_owned());
    }
    let Some(header) = &section.header else {
        return Ok(true);
    };
    let mut hasher = SectionHasher::both(header);
    let mut buffer = vec![0; usize::try_from(PIECE.min(section.length)).unwrap_or(0)];
    let (mut at, mut left) = (base.saturating_add(section.payload_offset), section.length);
    while left > 0 {
        if budget.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let length = PIECE.min(left);
        let part = buffer
            .get_mut(..usize::try_from(length).unwrap_or(0))
            .unwrap_or_default();
        source.read_exact_at(at, part).map_err(|e| io_cause(&e))?;
        hasher.update(part);
        budget.take(length);
        at += length;
        left -= length;
    }
    Ok(hasher.matches())
}

/// `affected` counts the snapshots that damage affects, and all.
fn say(
    args: &Args,
    state: &ScrubState,
    sections: &[ListedSection],
    affected: Option<(u64, u64)>,
    complete: bool,
    read: u64,
) -> Result<()> {
    if args.quiet {
        return Ok(());
    }
    let bytes = |sections: &[ListedSection]| -> u64 {
        let lengths = sections.iter().map(|listed| listed.section.length);
        lengths.fold(0, u64::saturating_add)
    };
    let done = sections.get(..state.next).unwrap_or_default();
    let damaged = match affected {
        None => "OK".to_owned(),
        Some((bad, all)) => format!(
            "damaged: {}, {bad} of {} affected",
            counted(state.damaged.len() as u64, "section", "sections"),
            counted(all, "snapshot", "snapshots")
        ),
    };
    let mut out = Output::new();
    out.line(&match complete {
        true => format!(
            "{damaged}; {} verified since {}",
            counted(sections.len() as u64, "section", "sections"),
            utc(state.began)
        ),
        false => format!(
            "{damaged} so far; {} of the pass since {}, {} in this run",
            format_percent(bytes(done), bytes(sections)),
            utc(state.began),
            format_size(read)
        ),
    })?;
    out.finish()
}
