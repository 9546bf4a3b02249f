//! Place and format of the samples of an audio file.

use redwarfs_codec::{ByteOrder, Padding, PcmFormat};

use crate::category::cut::Complaint;

/// The place of the samples.
pub(super) struct Waveform {
    pub(super) format: PcmFormat,
    pub(super) start: u64,
    /// Whole frames.
    pub(super) size: u64,
}

impl Waveform {
    /// The whole frames in `size` bytes from `start`.
    pub(super) fn new(format: PcmFormat, start: u64, size: u64) -> Self {
        let frame = format.frame_bytes().max(1) as u64;
        Self {
            format,
            start,
            size: size - size % frame,
        }
    }
}

/// A format, if its numbers are valid.
pub(super) fn pcm(
    channels: u32,
    bits: u32,
    bytes: u32,
    byte_order: ByteOrder,
    signed: bool,
) -> Result<PcmFormat, Complaint> {
    let known = matches!(
        (bits, bytes),
        (8, 1) | (16, 2) | (20, 3) | (20, 4) | (24, 3) | (24, 4) | (32, 4)
    );
    match u8::try_from(channels) {
        Ok(channels) if known && channels > 0 => Ok(PcmFormat {
            channels,
            bits: bits as u8,
            bytes: bytes as u8,
            byte_order,
            signed,
            padding: Padding::Lsb,
        }),
        _ => Err(Complaint::warn(format!(
            "audio with {channels} channels of {bits} bits in {bytes} bytes is not supported"
        ))),
    }
}
