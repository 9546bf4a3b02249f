//! Integer PCM audio (format/07 section 2).

mod apple;
mod chunks;
mod riff;
mod waveform;

use super::cut::{Cut, Found};
use super::names::{Category, Kind, StreamKey};
use super::probe::Probe;

/// Smallest file that is examined. Smaller files have too little audio.
const MIN_SIZE: usize = 32;

pub(crate) fn categorize(probe: &Probe<'_>) -> Found {
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
    let mut fragments = Cut::default();
    fragments.push(metadata, waveform.start);
    fragments.push(samples, waveform.size);
    fragments.push(
        metadata,
        probe.size().saturating_sub(waveform.start + waveform.size),
    );
    Ok(Some(fragments))
}

#[cfg(test)]
mod tests;
