//! Reads of one file, which signals end if they wait for a server.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use pyo3::prelude::*;
use redwarfs::format::InodeNo;
use redwarfs::{Error, FormatError, Image};

use crate::error::{exception, internal, of_system};
use crate::raw;
use crate::run::PAUSE;

/// Bytes that another thread reads at a time (4 MiB).
const PART: usize = 4 << 20;

/// Reads from a file at `offset`. Returns the number of bytes, which is less than the length of `out` only at the end of the
/// file. Must be called without the lock of the interpreter.
///
/// A signal ends a read that waits for a server. Therefore another thread reads, into memory of its own: it goes on with its part
/// after that.
///
/// # Errors
/// The exception of the read, or of a signal.
pub(crate) fn read_at(
    image: &Image,
    inode: InodeNo,
    offset: u64,
    out: &mut [u8],
) -> PyResult<usize> {
    let reader = image.reader();
    if !reader.source().is_remote() || !raw::is_main_thread() {
        return reader.read_at(inode, offset, out).map_err(failed);
    }
    let mut scratch = Vec::new();
    let cached = reader.try_read_pinned(inode, offset, out.len(), &mut scratch);
    if let Some(cached) = cached.map_err(failed)? {
        let parts = cached.parts();
        return Ok(parts.fold(0, |filled, part| put(out, filled, part)));
    }
    let parts = started(image.clone(), inode, offset, out.len())?;
    let mut filled = 0;
    while filled < out.len() {
        match parts.recv_timeout(PAUSE) {
            Ok(Ok(part)) if part.is_empty() => break,
            Ok(Ok(part)) => filled = put(out, filled, &part),
            Ok(Err(e)) => return Err(failed(e)),
            Err(RecvTimeoutError::Timeout) => signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(internal("the read panicked")),
        }
    }
    Ok(filled)
}

/// Starts a thread that reads, and sends parts: an empty one at the end of the file. It ends when nobody takes them.
fn started(
    image: Image,
    inode: InodeNo,
    offset: u64,
    len: usize,
) -> PyResult<mpsc::Receiver<Result<Vec<u8>, FormatError>>> {
    let (sender, parts) = mpsc::sync_channel(1);
    let work = move || {
        let mut at = 0;
        while at < len {
            let mut part = vec![0; PART.min(len - at)];
            let read = image.reader();
            let read = read.read_at(inode, offset.saturating_add(at as u64), &mut part);
            let (count, sent) = match read {
                Ok(count) => {
                    part.truncate(count);
                    (count, sender.send(Ok(part)))
                }
                Err(e) => (0, sender.send(Err(e))),
            };
            at += count;
            if count == 0 || sent.is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("redwarfs-read".to_owned());
    thread.spawn(work).map_err(|e| of_system(&e))?;
    Ok(parts)
}

/// Handles signals. The exception of a handler is an error.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method alone has the wrong lifetime"
)]
fn signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Copies a part, and returns where the next one goes.
fn put(out: &mut [u8], at: usize, part: &[u8]) -> usize {
    let (_, room) = out.split_at_mut(at.min(out.len()));
    let count = part.len().min(room.len());
    let (room, _) = room.split_at_mut(count);
    room.copy_from_slice(part.get(..count).unwrap_or_default());
    at + count
}

fn failed(source: FormatError) -> PyErr {
    Python::attach(|py| exception(py, &unnamed(source)))
}

/// An error of an operation on an inode, whose path the caller knows.
pub(crate) fn unnamed(source: FormatError) -> Error {
    Error::Read {
        path: PathBuf::new(),
        source,
    }
}
