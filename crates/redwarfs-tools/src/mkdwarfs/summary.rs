//! The summary at the end of a build.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redwarfs_writer::{Counters, Progress};

use super::display::Report;
use super::header::Header;
use crate::common::LogLevel;
use crate::common::error::display_path;
use crate::common::number::{
    counted, format_duration, format_grouped, format_rate, format_ratio, format_size,
};
use crate::common::progress::{Activity, ProgressMode};

/// Entries of the input that are not in the image.
#[derive(Debug, Clone, Default)]
pub(super) struct LeftOut {
    parts: Vec<String>,
}

impl LeftOut {
    /// Notes a number of entries that were left out, if it is not 0. `how` says how to have them in the
    /// image, or why they are not.
    pub(super) fn add(&mut self, count: u64, one: &str, many: &str, how: &str) {
        if count == 0 {
            return;
        }
        let how = match how {
            "" => String::new(),
            how => format!(" ({how})"),
        };
        self.parts
            .push(format!("{}{how}", counted(count, one, many)));
    }

    fn line(&self) -> String {
        match self.parts.is_empty() {
            true => "nothing".to_owned(),
            false => self.parts.join(", "),
        }
    }
}

/// The results of a complete image.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    pub(super) output: &'a Path,
    /// `created`, `appended` or `rewritten`.
    pub(super) verb: &'static str,
    /// A line about the new snapshot.
    pub(super) snapshot: Option<String>,
    /// A line about what an earlier build had done.
    pub(super) resumed: Option<String>,
    /// Of the whole image, with what is in front of it.
    pub(super) image_size: u64,
    /// Size of the input.
    pub(super) input_size: u64,
    /// The same without holes, which take no place on the disk.
    pub(super) allocated_size: u64,
    /// What is in front of the image.
    pub(super) front: Option<Header>,
    pub(super) errors: u64,
    pub(super) left_out: LeftOut,
    pub(super) verbose: bool,
}

impl Summary<'_> {
    /// Shows it, if messages about normal things are shown or progress was. Errors are mentioned
    /// in any case.
    pub(super) fn show(&self, report: &Report, mode: ProgressMode) {
        let logger = report.logger();
        if mode != ProgressMode::None || logger.enabled(LogLevel::Info) {
            let mut lines = self.lines(report);
            if self.verbose {
                lines.extend(report.details());
            }
            logger.console().line(&lines.join("\n"));
        } else if self.errors > 0 {
            logger.error(self.outcome());
        }
    }

    fn outcome(&self) -> String {
        let name = match self.output == Path::new("-") {
            true => "standard output".to_owned(),
            false => display_path(self.output),
        };
        let errors = match self.errors {
            0 => "without errors".to_owned(),
            n => format!("with {}", counted(n, "error", "errors")),
        };
        format!("{name}, {} {errors}", self.verb)
    }

    fn lines(&self, report: &Report) -> Vec<String> {
        let c = report.counters();
        let front = self.front.as_ref();
        let image_size = self
            .image_size
            .saturating_sub(front.map_or(0, |front| front.length));
        let took = report.stopwatch().elapsed();
        let speed = Duration::max(took, Duration::from_micros(1)).as_secs_f64();
        let speed = format_rate((self.input_size as f64 / speed) as u64);
        let allocated = match (self.allocated_size, self.input_size) {
            (allocated, all) if allocated == all => String::new(),
            (allocated, _) => format!(
                " ({} of {} without holes)",
                format_ratio(image_size, allocated),
                format_size(allocated)
            ),
        };
        let memory = peak_memory().map_or_else(String::new, |bytes| {
            format!(", {} of memory", format_size(bytes))
        });
        let mut lines = vec![
            format!("image:    {}", self.outcome()),
            format!(
                "size:     {}, {} of {}{allocated}",
                format_size(image_size),
                format_ratio(image_size, self.input_size),
                format_size(self.input_size),
            ),
            format!("content:  {}", content(c, self.verb == "rewritten")),
            format!("time:     {}, {speed}{memory}", format_duration(took)),
            format!("left out: {}", self.left_out.line()),
        ];
        if let Some(resumed) = &self.resumed {
            lines.insert(3, resumed.clone());
        }
        if let Some(front) = front {
            let length = format_size(front.length);
            lines.insert(2, format!("in front: {length}, {}", front.what));
        }
        if let Some(snapshot) = &self.snapshot {
            let known = c.files_in_base.load(Ordering::Relaxed);
            let known = counted(known, "file was", "files were");
            lines.insert(1, format!("{snapshot}, {known} there before"));
        }
        lines
    }
}

fn content(c: &Counters, rewritten: bool) -> String {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let blocks = counted(get(&c.blocks_written), "block", "blocks");
    if rewritten {
        return blocks;
    }
    let mut parts = Vec::new();
    let mut files = counted(get(&c.files_found), "file", "files");
    match get(&c.duplicate_files) {
        0 => {}
        equal => files.push_str(&format!(" ({} equal to others)", format_grouped(equal))),
    }
    parts.push(files);
    parts.push(counted(get(&c.dirs), "directory", "directories"));
    let rest = [
        (&c.symlinks, "symbolic link", "symbolic links"),
        (&c.hardlinks, "hard link", "hard links"),
        (&c.devices, "device", "devices"),
        (&c.specials, "FIFO or socket", "FIFOs and sockets"),
    ];
    for (counter, one, many) in rest {
        if get(counter) > 0 {
            parts.push(counted(get(counter), one, many));
        }
    }
    let mut content = format!("{} in {blocks}", parts.join(", "));
    if get(&c.extended_attributes) > 0 {
        content.push_str(&format!(
            "; extended attributes of {}",
            counted(get(&c.extended_attributes), "entry", "entries")
        ));
        let kinds = [
            (&c.access_lists, "access control lists"),
            (&c.file_capabilities, "capabilities"),
        ];
        for (counter, what) in kinds {
            if get(counter) > 0 {
                let number = format_grouped(get(counter));
                content.push_str(&format!(", {number} with {what}"));
            }
        }
    }
    content
}

/// The most memory that this process had.
fn peak_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::console::Capture;
    use crate::common::{Console, Logger};

    #[test]
    fn five_lines_say_it_all() {
        let console = Console::new(Box::new(Capture::default()), false);
        let logger = Logger::new(console, LogLevel::Info, false);
        let report = Report::new(logger, false, false);
        let c = report.counters();
        for (counter, value) in [
            (&c.files_found, 1500),
            (&c.duplicate_files, 3),
            (&c.dirs, 1),
            (&c.symlinks, 2),
            (&c.blocks_written, 1),
            (&c.extended_attributes, 1200),
            (&c.access_lists, 2),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
        let mut left_out = LeftOut::default();
        left_out.add(0, "socket", "sockets", "");
        left_out.add(1, "device", "devices", "--with-devices stores them");
        left_out.add(2000, "entry", "entries", "");
        let summary = Summary {
            output: Path::new("out/a.dwarfs"),
            verb: "created",
            snapshot: None,
            resumed: None,
            image_size: 1 << 20,
            input_size: 4 << 20,
            allocated_size: 2 << 20,
            front: None,
            errors: 2,
            left_out,
            verbose: false,
        };
        let lines = summary.lines(&report);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[0], "image:    out/a.dwarfs, created with 2 errors");
        assert_eq!(
            lines[1],
            "size:     1 MiB, 25% of 4 MiB (50% of 2 MiB without holes)"
        );
        assert_eq!(
            lines[2],
            "content:  1,500 files (3 equal to others), 1 directory, 2 symbolic links in 1 block; extended \
             attributes of 1,200 entries, 2 with access control lists"
        );
        assert!(lines[3].starts_with("time:     "), "{}", lines[3]);
        assert_eq!(
            lines[4],
            "left out: 1 device (--with-devices stores them), 2,000 entries"
        );
        // The size is that of the image alone.
        let summary = Summary {
            image_size: (1 << 20) + 2048,
            front: Some(Header {
                length: 2048,
                what: "dwarfs-runtime (x86_64)".to_owned(),
                runs: true,
            }),
            ..summary
        };
        let with_front = summary.lines(&report);
        assert_eq!((&with_front[1], with_front.len()), (&lines[1], 6));
        assert_eq!(with_front[2], "in front: 2 KiB, dwarfs-runtime (x86_64)");
    }
}
