//! Errors that end a build.

/// Why no image was made. Problems with single inputs are not errors: they are logged, counted
/// in [`Counters::errors`](crate::Counters::errors) and worked around.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its range, or options contradict each other.
    #[error("invalid option: {0}")]
    InvalidOption(String),
    /// The root of the source cannot be used, or the source [has failed](crate::Source::failure).
    #[error("cannot read the input: {0}")]
    Source(std::io::Error),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The system refuses to start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Encoding metadata or compressing failed.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// More entries, strings or chunks than the format can number.
    #[error("limit exceeded: {0}")]
    Limit(String),
    /// The memory limit is too low for one compression thread and one block.
    #[error(
        "the memory limit of {limit} bytes is too low, {}{needed} bytes are needed, {enough} bytes are enough{}",
        at_least(*.whole),
        for_entries(*.entries)
    )]
    MemoryLimit {
        /// The limit in bytes.
        limit: u64,
        /// Needed bytes; a lower bound if the input is not completely known.
        needed: u64,
        /// Whether everything that counts is known of the input.
        whole: bool,
        /// A limit that is enough for the input, as far as that is known.
        enough: u64,
        /// If the input has not been listed to its end: `enough` is for so many entries, with names of usual length.
        entries: Option<u64>,
    },
    /// The temporary file with tables of the build cannot be read.
    #[error("cannot read a temporary file: {0}")]
    Spill(std::io::Error),
    /// The hook that is asked about entries failed; its own words.
    #[error("{0}")]
    Hook(String),
    /// The stop flag was set.
    #[error("interrupted")]
    Interrupted,
}

fn at_least(whole: bool) -> &'static str {
    if whole { "" } else { "at least " }
}

fn for_entries(entries: Option<u64>) -> String {
    entries.map_or_else(String::new, |entries| format!(" for {entries} entries"))
}

impl Error {
    pub(crate) fn too_many_blocks() -> Self {
        Error::Limit("too many blocks; use a larger block size".into())
    }
}

/// Result of building.
pub type Result<T, E = Error> = std::result::Result<T, E>;
