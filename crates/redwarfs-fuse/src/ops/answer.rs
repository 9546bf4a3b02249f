//! What all operations have in common: how they answer, and how they are timed and logged.

use redwarfs_reader::perfmon::{Running, Timer};
use rustix::io::Errno;

use crate::proto::Header;

/// How an operation answers its request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With the bytes in the buffer.
    Reply,
    /// The request has no reply.
    NoReply,
    /// The ticket is with another owner, who replies or has replied.
    Passed,
}

/// An answer, or the error that the program gets.
pub(crate) type Outcome = std::result::Result<Answer, Errno>;

/// Times the operation of a request.
pub(super) fn timed<'a>(timer: &'a Timer, header: &Header) -> Running<'a> {
    timer.start_with(&[("inode", header.node)])
}

/// Logs an operation with the requesting process.
macro_rules! log_op {
    ($header:expr, $($text:tt)*) => {
        tracing::debug!(
            "{} [pid={}, uid={}, gid={}]",
            format_args!($($text)*),
            $header.pid,
            $header.uid,
            $header.gid
        )
    };
}
pub(crate) use log_op;
