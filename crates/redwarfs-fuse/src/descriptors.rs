//! The number of files that this process may have open.

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

/// Whether this process, or the system, can open no further file.
pub(crate) fn are_used_up() -> bool {
    let opened = std::fs::File::open("/dev/null");
    let error = opened.err().and_then(|error| error.raw_os_error());
    error.is_some_and(|error| {
        [Errno::MFILE, Errno::NFILE]
            .iter()
            .any(|errno| errno.raw_os_error() == error)
    })
}
