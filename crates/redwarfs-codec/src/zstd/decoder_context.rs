//! Decoding contexts of the library, and its errors.

use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{DCtx, DParameter};

use crate::{Error, Result};

/// The largest window that the library can handle. Frames may ask for any window
/// up to it: the memory that a decoder takes is bounded by the content size, which
/// is known and checked before.
pub(super) const WINDOW_LOG_MAX: u32 = if usize::BITS == 32 { 30 } else { 31 };

/// What functions of the library return for a frame whose window is larger than they can handle at all.
pub(super) const WINDOW_TOO_LARGE: usize =
    0usize.wrapping_sub(ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize);

pub(super) fn decoder_error(code: usize) -> Error {
    Error::corrupt(format!("zstd: {}", zstd_safe::get_error_name(code)))
}

pub(super) fn new_context() -> Result<DCtx<'static>> {
    DCtx::try_create().ok_or_else(|| Error::Limit("no memory for a zstd decoder".into()))
}

/// A context for decoding one frame by steps.
pub(super) fn stream_context() -> Result<DCtx<'static>> {
    let mut context = new_context()?;
    context
        .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
        .map_err(decoder_error)?;
    Ok(context)
}
