//! Whether any image of a mount can be opened. One that shows only empty directories is a mistake of the user.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use redwarfs_io::place::is_remote;

use super::{Given, Opener};
use crate::common::error::{Result, ToolError};
use crate::common::number::counted;

/// How long a mount waits for the first image that opens. A server that is away may come back later.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time without a result, one more image is opened at the same time.
const SLOW: Duration = Duration::from_millis(100);
/// Most images that are opened at the same time.
const AT_ONCE: usize = 8;
/// Most images that messages name.
const NAMED: usize = 20;

/// What the threads share that open images.
struct Probe {
    opener: Opener,
    images: Vec<PathBuf>,
    next: AtomicUsize,
    /// Nobody waits for more.
    over: AtomicBool,
}

impl Probe {
    /// Opens one image after the other, and sends the number of each with its result.
    fn work(&self, results: &Sender<(usize, Result<()>)>) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(image) = self.images.get(number) else {
                return;
            };
            let result = self.opener.try_image(image);
            if result.is_ok() {
                // The other images are opened when they are used, and not before.
                self.over.store(true, Ordering::Relaxed);
            }
            if results.send((number, result)).is_err() {
                return;
            }
        }
    }
}

impl Opener {
    /// Opens images until one can be opened. What is found is closed again.
    ///
    /// # Errors
    /// None of them can be opened. The log names them. If that is not known soon, a warning says so.
    pub(in crate::dwarfs) fn need_one(&self, given: &[Given]) -> Result<()> {
        let probe = Arc::new(Probe {
            opener: self.clone(),
            images: given.iter().map(|one| one.image.clone()).collect(),
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let (results, opened) = channel();
        let mut threads = 0;
        let mut more = || {
            let (probe, results) = (Arc::clone(&probe), results.clone());
            let work = move || probe.work(&results);
            let thread = std::thread::Builder::new().name(String::from("probe"));
            // Without a thread, nothing is known: the mount goes on.
            if threads < AT_ONCE && thread.spawn(work).is_ok() {
                threads += 1;
            }
        };
        more();
        let end = Instant::now() + PATIENCE;
        let mut failed: Vec<Option<ToolError>> = given.iter().map(|_| None).collect();
        let mut left = given.len();
        while left > 0 {
            let rest = end.saturating_duration_since(Instant::now());
            match opened.recv_timeout(rest.min(SLOW)) {
                Ok((number, Err(error))) => {
                    if let Some(place) = failed.get_mut(number) {
                        *place = Some(error);
                    }
                    left -= 1;
                }
                Err(RecvTimeoutError::Timeout) if !rest.is_zero() => more(),
                result => {
                    probe.over.store(true, Ordering::Relaxed);
                    if result.is_err() {
                        self.say_undecided(given, &failed);
                    }
                    return Ok(());
                }
            }
        }
        let mut failed = failed.into_iter().flatten();
        let Some(first) = failed.next() else {
            return Ok(());
        };
        if given.len() == 1 {
            return Err(first);
        }
        self.logger.error(&first);
        failed
            .by_ref()
            .take(NAMED - 1)
            .for_each(|error| self.logger.error(error));
        let count = counted(given.len() as u64, "image", "images");
        Err(ToolError::new(format!("none of {count} can be opened")).cause(first))
    }

    /// Says which images cannot be opened so far.
    fn say_undecided(&self, given: &[Given], failed: &[Option<ToolError>]) {
        // Of files that are not there, the log says so in any case.
        let is_named =
            |given: &Given| !is_remote(&given.image) && std::fs::metadata(&given.image).is_err();
        let failed = given
            .iter()
            .zip(failed)
            .filter(|(given, _)| !is_named(given));
        for error in failed.filter_map(|(_, error)| error.as_ref()).take(NAMED) {
            self.logger.warn(error);
        }
        self.logger.warn(
            "no image could be opened so far: the driver goes on, and opens each when it is used",
        );
    }
}
