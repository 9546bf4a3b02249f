//! The data that every stage of a build gets in addition to its input.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::BaseImage;
use crate::error::{Error, Result};
use crate::memory::Watch;
use crate::options::{BuildOptions, ThreadGroup};
use crate::ordered::{self, Threads};
use crate::progress::{Counters, Level, Progress, add};
use crate::source::{Content, Source};
use crate::tree::Tree;

/// Options, source, progress and stop flag of one build.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) options: &'a BuildOptions,
    pub(crate) source: &'a dyn Source,
    /// The image that the build continues.
    pub(crate) base: Option<&'a dyn BaseImage>,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) stop: &'a AtomicBool,
    /// Compares the memory for the input found so far with the memory limit.
    pub(crate) watch: &'a Watch<'a>,
}

impl<'a> Context<'a> {
    pub(crate) fn counters(&self) -> &'a Counters {
        self.progress.counters()
    }

    /// Opens a file of the tree.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn open(&self, tree: &Tree, file: u32) -> io::Result<Box<dyn Content>> {
        match tree.numbers.get(file as usize) {
            Some(&number) => self.source.open_number(number),
            None => self.source.open(&tree.file_path(file)),
        }
    }

    /// Whether the caller wants the build to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Interrupted`] if the caller wants the build to end.
    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Counts and logs an input that differs in the image from the source. `what` describes the result.
    pub(crate) fn problem(&self, path: &[u8], what: &str) {
        add(&self.counters().errors, 1);
        self.log(Level::Error, path, what);
    }

    /// Logs something about one input.
    pub(crate) fn log(&self, level: Level, path: &[u8], what: &str) {
        let path = self.source.display_path(path);
        self.progress.log(level, &format!("'{path}': {what}"));
    }

    /// Calls `work` with every job in the threads that scan files, each with its own state, and `take`
    /// with the results in the order of the jobs.
    pub(crate) fn scan<T: Send, S>(
        &self,
        jobs: &[u32],
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u32) -> T + Sync,
        take: impl FnMut(u32, T) -> Result<()>,
    ) -> Result<()> {
        let begin = || self.options.begin(ThreadGroup::Scanner);
        let threads = Threads {
            name: "scan",
            count: self.options.scanners(),
            begin: self.options.thread_start.is_some().then_some(&begin),
            cpu_ns: &self.counters().scan_cpu_ns,
        };
        ordered::list(threads, jobs, state, work, take)
    }
}
