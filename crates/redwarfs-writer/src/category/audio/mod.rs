//! Integer PCM audio (format/07 section 2).

mod apple;
mod chunks;
mod riff;

use redwarfs_codec::{ByteOrder, Padding, PcmFormat};

use super::{Category, Complaint, Found, Kind, Pieces, Probe, StreamKey};

/// Smaller files hold no audio worth the effort.
const MIN_SIZE: usize = 32;

pub(super) fn categorize(probe: &Probe<'_>) -> Found {
    let Some(head) = probe.bytes::<MIN_SIZE>(0)? else {
        return Ok(None);
    };
    let waveform = match (&head[..4], &head[8..12]) {
        (b"FORM", b"AIFF") => apple::aiff(probe, false),
        (b"FORM", b"AIFC") => apple::aiff(probe, true),
        (b"caff", _) => apple::caf(probe),
        (b"RIFF", b"WAVE") => riff::wav(probe, false),
        (b"RF64" | b"BW64", b"WAVE") => riff::wav(probe, true),
        (b"riff", _) => riff::wave64(probe),
        _ => Ok(None),
    };
    let Some(waveform) = waveform? else {
        return Ok(None);
    };
    let metadata = StreamKey::plain(Category::PcmMetadata);
    let samples = StreamKey {
        category: Category::PcmWaveform,
        kind: Kind::Pcm(waveform.format),
    };
    let mut pieces = Pieces::default();
    pieces.push(metadata, waveform.start);
    pieces.push(samples, waveform.size);
    pieces.push(
        metadata,
        probe.size().saturating_sub(waveform.start + waveform.size),
    );
    Ok(Some(pieces))
}

/// Where the samples are.
struct Waveform {
    format: PcmFormat,
    start: u64,
    /// Whole frames.
    size: u64,
}

impl Waveform {
    /// The whole frames in `size` bytes from `start`.
    fn new(format: PcmFormat, start: u64, size: u64) -> Self {
        let frame = format.frame_bytes().max(1) as u64;
        Self {
            format,
            start,
            size: size - size % frame,
        }
    }
}

/// A format, if its numbers make sense.
fn pcm(
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

#[cfg(test)]
mod tests;
