//! The number of files that this process may have open.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Lets this process open as many files as it may. Returns how many that are.
pub(crate) fn allow_many_files() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!("few files can be open at a time: {error}");
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Something is opened so many times more while this process can open no further file.
const OPENINGS: u32 = 20;
/// The time between.
const PAUSE: Duration = Duration::from_millis(5);

/// Opens something. While this process can open no further file, `close` has to close one, and it is tried again.
///
/// What was closed keeps its file until the last request with it has ended. So the files may have been used up when
/// `open` failed, and not a moment later: `closing` says that this is possible.
pub(crate) fn open_with_few_files<T, E>(
    open: impl Fn() -> Result<T, E>,
    closing: bool,
    close: impl Fn(),
) -> Result<T, E> {
    let mut opened = open();
    for opening in 0..OPENINGS {
        if opened.is_ok() {
            break;
        }
        if are_used_up() {
            close();
        } else if !closing || opening > 0 {
            break;
        }
        thread::sleep(PAUSE);
        opened = open();
    }
    opened
}

/// Whether this process, or the system, can open no further file.
fn are_used_up() -> bool {
    let opened = std::fs::File::open("/dev/null");
    let error = opened.err().and_then(|error| error.raw_os_error());
    error.is_some_and(|error| {
        [Errno::MFILE, Errno::NFILE]
            .iter()
            .any(|errno| errno.raw_os_error() == error)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn files_of_what_is_being_closed_are_waited_for() {
        let openings = Cell::new(0);
        let second = || {
            openings.set(openings.get() + 1);
            if openings.get() == 2 { Ok(()) } else { Err(()) }
        };
        let unused = || unreachable!("files are left");
        assert_eq!(open_with_few_files(second, true, unused), Ok(()));
        // What is broken is not opened for ever, and only once if nothing is being closed.
        assert_eq!(open_with_few_files(second, true, unused), Err(()));
        assert_eq!(openings.get(), 4);
        assert_eq!(open_with_few_files(second, false, unused), Err(()));
        assert_eq!(openings.get(), 5);
    }
}
