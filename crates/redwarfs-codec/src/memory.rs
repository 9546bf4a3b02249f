//! Memory for decoded data.

use crate::{Error, Result};

/// A zeroed buffer, or an error where `vec!` would abort. `vec!` does not touch large buffers,
/// so what a payload announces without yielding it costs no memory.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    Vec::<u8>::new()
        .try_reserve_exact(len)
        .map_err(|_| Error::Limit(format!("no memory for {len} bytes")))?;
    Ok(vec![0; len])
}

/// Whether a decoder yields `raw`, found out without holding the data a second time. `next` fills
/// the buffer with the next bytes.
pub(crate) fn yields(raw: &[u8], mut next: impl FnMut(&mut [u8]) -> Result<()>) -> Result<bool> {
    const STEP: usize = 64 << 10;
    let mut step = vec![0; STEP.min(raw.len())];
    for expected in raw.chunks(STEP) {
        let part = &mut step[..expected.len()];
        next(part)?;
        if part != expected {
            return Ok(false);
        }
    }
    Ok(true)
}
