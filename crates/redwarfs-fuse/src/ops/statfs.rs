//! STATFS: the size of the file system.

use std::iter::Sum;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::proto::{Header, Put};

/// The size of images.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Bytes of all files.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Totals {
    /// The size of an image.
    pub(crate) fn of(state: &ImageState) -> Self {
        Self {
            bytes: state.image.metadata().totals().allocated,
            inodes: state.inodes.into(),
        }
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            bytes: sum.bytes.saturating_add(one.bytes),
            inodes: sum.inodes.saturating_add(one.inodes),
        })
    }
}

pub(crate) fn answer(state: &ImageState, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let _timer = state.timers.statfs.start();
    log_op!(header, "op_statfs({})", header.node);
    put(Totals::of(state), out)
}

/// Replies with the size of images.
pub(crate) fn put(totals: Totals, out: &mut Vec<u8>) -> Outcome {
    out.put64(totals.bytes);
    // Free and available blocks.
    out.put64(0);
    out.put64(0);
    out.put64(totals.inodes);
    // Free inodes.
    out.put64(0);
    // Block size, longest name, fragment size, padding.
    for value in [1, 4096, 1, 0] {
        out.put32(value);
    }
    out.extend_from_slice(&[0; 6 * 4]);
    Ok(Answer::Reply)
}
