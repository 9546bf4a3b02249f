//! Memory that seems to lie before a frame, so that the library fetches what matches refer to
//! ahead of time.
//!
//! A match far back is a cache miss. The library has a loop that asks for the sources of matches
//! eight sequences ahead, and takes it where enough of them lie 8 MiB back or more, but only if
//! what they can refer to is larger than 16 MiB: never in a block of 16 MiB. What they can refer to
//! includes a prefix that lies before the frame. With a [`Blank`] of 8 MiB as the prefix, all that
//! has matches so far back gets the fast loop (and the first 128 KiB of a frame, as of any with a
//! prefix). Words at random, whose matches lie anywhere, are decoded in 0.7 to 0.8 of the time at level
//! 22, programs and scripts in about the same (docs/bench).
//!
//! No valid frame refers to the prefix, since none was there when it was made. One that does has
//! to be refused as it would be without: the pages of a blank have never been touched, and the
//! system tells if they have been since. Asking for memory ahead of time does not touch it.

use std::sync::{Mutex, PoisonError};

/// Length of a blank in bytes: where matches can lie 8 MiB back, 8 MiB more make 16.
const LEN: usize = 8 << 20;

/// The most blanks that are made. Beyond, frames are decoded without: a frame that is decoded in part
/// keeps its blank until somebody wants more of it.
const MOST: usize = 32;

/// All blanks. As many are made as are in use at a time, and they are kept.
static BLANKS: Mutex<Blanks> = Mutex::new(Blanks {
    spare: Vec::new(),
    made: 0,
});

struct Blanks {
    /// Those that nobody uses.
    spare: Vec<&'static [u8]>,
    made: usize,
}

/// Untouched memory for one decoder at a time. It takes [`LEN`] bytes of addresses and no memory.
#[derive(Debug)]
pub(super) struct Blank(&'static [u8]);

impl Blank {
    /// A blank that has not been touched, for a frame of `raw_size` bytes. `None` if it would be of
    /// no use, or if the system has no addresses left or does not tell what has been touched.
    pub(super) fn for_frame(raw_size: usize) -> Option<Self> {
        // In shorter frames nothing lies so far back. In much longer ones it would make a difference
        // only at the start: from 16 MiB on the library decides by itself.
        if !(LEN + 1..=4 * LEN).contains(&raw_size) {
            return None;
        }
        let mut blanks = BLANKS.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match blanks.spare.pop() {
            Some(bytes) => bytes,
            None if blanks.made < MOST => {
                let bytes = os::reserve(LEN)?;
                blanks.made += 1;
                bytes
            }
            None => return None,
        };
        drop(blanks);
        let blank = Self(bytes);
        (!blank.is_touched()).then_some(blank)
    }

    /// The bytes, all zero. Nobody but the decoder may read them.
    pub(super) fn bytes(&self) -> &'static [u8] {
        self.0
    }

    /// Whether any byte has been read.
    pub(super) fn is_touched(&self) -> bool {
        os::is_touched(self.0)
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        if self.is_touched() {
            os::forget(self.0);
        }
        let mut blanks = BLANKS.lock().unwrap_or_else(PoisonError::into_inner);
        blanks.spare.push(self.0);
    }
}

#[cfg(target_os = "linux")]
mod os {
    use std::ptr;

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    /// The smallest page there is, in bytes.
    const SMALLEST_PAGE: usize = 4096;

    /// New memory that is never unmapped and cannot be written to.
    pub(super) fn reserve(len: usize) -> Option<&'static [u8]> {
        // SAFETY: a new mapping at an address that the system chooses.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .ok()?;
        // A huge page could reach into a neighbour, which then would seem to have been touched.
        // SAFETY: what pages a mapping of our own is made of changes nothing that is in it.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        // SAFETY: the mapping has `len` readable bytes that are zero. Nobody can write to them or
        // unmaps them.
        Some(unsafe { std::slice::from_raw_parts(start.cast::<u8>().cast_const(), len) })
    }

    /// Whether any page is in memory; `true` if that cannot be found out.
    pub(super) fn is_touched(bytes: &[u8]) -> bool {
        let mut pages = [0; super::LEN / SMALLEST_PAGE];
        if bytes.len() > super::LEN {
            return true;
        }
        // More than once, since the system can be short of memory for a moment.
        let known = (0..8).any(|_| {
            let start = bytes.as_ptr().cast_mut().cast();
            // SAFETY: the range is mapped, and `pages` has room for a byte for each page of it,
            // since it has one for each of the smallest pages.
            unsafe { libc::mincore(start, bytes.len(), pages.as_mut_ptr()) == 0 }
        });
        !known || pages.iter().any(|page| page & 1 != 0)
    }

    /// Makes a memory of [`reserve`] untouched again.
    pub(super) fn forget(bytes: &'static [u8]) {
        // SAFETY: the range is a mapping of its own, and its bytes stay what they were, zero.
        let _ = unsafe {
            madvise(
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                Advice::LinuxDontNeed,
            )
        };
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    pub(super) fn reserve(_: usize) -> Option<&'static [u8]> {
        None
    }

    pub(super) fn is_touched(_: &[u8]) -> bool {
        true
    }

    pub(super) fn forget(_: &'static [u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_byte_shows_until_the_next_use() {
        let Some(blank) = Blank::for_frame(LEN + 1) else {
            eprintln!("skipped: the system does not tell what memory has been touched");
            return;
        };
        assert!(!blank.is_touched());
        let other = Blank::for_frame(LEN + 1).expect("as many as wanted");
        assert!(std::hint::black_box(blank.bytes())[LEN - 1] == 0);
        assert!(blank.is_touched());
        assert!(!other.is_touched(), "each decoder has its own");
        let bytes = blank.bytes();
        drop(blank);
        assert!(!os::is_touched(bytes));
        assert!(Blank::for_frame(LEN).is_none() && Blank::for_frame(4 * LEN + 1).is_none());
    }
}
