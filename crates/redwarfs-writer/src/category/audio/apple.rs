//! AIFF, AIFF-C and CAF. All numbers but the samples are big-endian.

use redwarfs_codec::{ByteOrder, PcmFormat};

use super::chunks::{Chunks, Layout, OpenData, bad_format};
use super::waveform::{Waveform, pcm};
use crate::category::cut::{Complaint, Found};
use crate::category::probe::Probe;

fn u16_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |&b| u32::from(u16::from_be_bytes(b)))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |&b| u32::from_be_bytes(b))
}

/// AIFF or, with `compressed`, AIFF-C. Only uncompressed kinds of AIFF-C are accepted.
pub(super) fn aiff(probe: &Probe<'_>, compressed: bool) -> Found<Waveform> {
    let layout = Layout {
        id: 4,
        size: 4,
        big: true,
        inclusive: false,
        alignment: 2,
    };
    let mut chunks = Chunks::new(probe, layout, 12);
    let mut format: Option<(PcmFormat, u32)> = None;
    while let Some(chunk) = chunks.next()? {
        if chunk.is(b"COMM") {
            if format.is_some() {
                return Err(bad_format("a second format chunk"));
            }
            if !compressed && chunk.size != 18 {
                return Err(bad_format("a format chunk of unknown size"));
            }
            let common = chunks.content::<18>(&chunk)?;
            let (channels, frames, bits) =
                (u16_at(&common, 0), u32_at(&common, 2), u16_at(&common, 6));
            let (mut order, mut signed) = (ByteOrder::Big, true);
            if compressed {
                let [.., a, b, c, d] = chunks.content::<22>(&chunk)?;
                match &[a, b, c, d] {
                    b"NONE" | b"twos" | b"in24" | b"in32" => {}
                    b"sowt" => order = ByteOrder::Little,
                    b"raw " => signed = false,
                    kind => {
                        return Err(Complaint::info(format!(
                            "AIFF-C audio of type '{}' is not supported",
                            kind.escape_ascii()
                        )));
                    }
                }
            }
            format = Some((
                pcm(channels, bits, bits.div_ceil(8), order, signed)?,
                frames,
            ));
        } else if chunk.is(b"SSND") {
            let Some((format, frames)) = format else {
                return Err(bad_format("data before its format"));
            };
            let offset = 8 + u64::from(u32_at(&chunks.content::<8>(&chunk)?, 0));
            let size = u64::from(frames) * format.frame_bytes() as u64;
            if offset + size > chunk.size {
                return Err(bad_format("more samples than data"));
            }
            return Ok(Some(Waveform::new(format, chunk.start + offset, size)));
        }
    }
    Ok(None)
}

pub(super) fn caf(probe: &Probe<'_>) -> Found<Waveform> {
    let Some([_, _, _, _, 0, 1, 0, 0]) = probe.bytes::<8>(0)? else {
        return Err(bad_format("an unknown version"));
    };
    let layout = Layout {
        id: 4,
        size: 8,
        big: true,
        inclusive: false,
        alignment: 1,
    };
    let mut chunks = Chunks::new(probe, layout, 8);
    let mut format = None;
    chunks.open_data = OpenData::ToTheEnd;
    while let Some(chunk) = chunks.next()? {
        if chunk.is(b"desc") {
            if format.is_some() {
                return Err(bad_format("a second format chunk"));
            }
            if chunk.size != 32 {
                return Err(bad_format("a format chunk of unknown size"));
            }
            let desc = chunks.content::<32>(&chunk)?;
            if desc.get(8..12) != Some(b"lpcm") {
                return Err(Complaint::info("compressed CAF audio is not supported"));
            }
            let flags = u32_at(&desc, 12);
            let (packet, frames) = (u32_at(&desc, 16), u32_at(&desc, 20));
            let (channels, bits) = (u32_at(&desc, 24), u32_at(&desc, 28));
            if flags & 1 != 0 {
                return Err(Complaint::info("floating point audio is not supported"));
            }
            let order = if flags & 2 != 0 {
                ByteOrder::Little
            } else {
                ByteOrder::Big
            };
            if frames != 1 || channels == 0 || packet == 0 || !packet.is_multiple_of(channels) {
                return Err(bad_format("packets of unknown layout"));
            }
            format = Some(pcm(channels, bits, packet / channels, order, true)?);
        } else if chunk.is(b"data") {
            let Some(format) = format else {
                return Err(bad_format("data before its format"));
            };
            // The count of edits precedes the samples.
            let Some(size) = chunk.size.checked_sub(4) else {
                return Err(bad_format("a data chunk that is too short"));
            };
            return Ok(Some(Waveform::new(format, chunk.start + 4, size)));
        }
    }
    Ok(None)
}
