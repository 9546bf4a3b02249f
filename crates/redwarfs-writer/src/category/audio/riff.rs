//! WAV, its 64-bit forms RF64 and BW64, and Sony Wave64. All numbers are little-endian.

use redwarfs_codec::{ByteOrder, PcmFormat};

use super::chunks::{Chunk, Chunks, Layout, OpenData, bad_format};
use super::waveform::{Waveform, pcm};
use crate::category::cut::{Complaint, Found};
use crate::category::probe::Probe;

const PCM: u32 = 1;
const FLOAT: u32 = 3;
const EXTENSIBLE: u32 = 0xfffe;

/// The bytes after the four letters of a Wave64 id.
const GUID: [u8; 12] = [
    0xf3, 0xac, 0xd3, 0x11, 0x8c, 0xd1, 0x00, 0xc0, 0x4f, 0x8e, 0xdb, 0x8a,
];
/// The same for the id of the file.
const FILE_GUID: [u8; 12] = [
    0x2e, 0x91, 0xcf, 0x11, 0xa5, 0xd6, 0x28, 0xdb, 0x04, 0xc1, 0x00, 0x00,
];

fn guid(letters: &[u8; 4], rest: &[u8; 12]) -> [u8; 16] {
    let mut id = [0; 16];
    for (place, &byte) in id.iter_mut().zip(letters.iter().chain(rest)) {
        *place = byte;
    }
    id
}

/// WAV or, with `wide`, RF64 and BW64, which have a separate chunk for large sizes.
pub(super) fn wav(probe: &Probe<'_>, wide: bool) -> Found<Waveform> {
    let layout = Layout {
        id: 4,
        size: 4,
        big: false,
        inclusive: false,
        alignment: 2,
    };
    let mut chunks = Chunks::new(probe, layout, 12);
    if wide {
        let Some(sizes) = chunks.next()?.filter(|chunk| chunk.is(b"ds64")) else {
            return Err(bad_format("no table of sizes"));
        };
        let [_, _, _, _, _, _, _, _, size @ ..] = chunks.content::<16>(&sizes)?;
        chunks.open_data = OpenData::Size(u64::from_le_bytes(size));
    }
    walk(chunks, b"fmt ", b"data", &[16, 18, 20, 40])
}

pub(super) fn wave64(probe: &Probe<'_>) -> Found<Waveform> {
    let id = |offset| probe.bytes::<16>(offset);
    if id(0)? != Some(guid(b"riff", &FILE_GUID)) || id(24)? != Some(guid(b"wave", &GUID)) {
        return Ok(None);
    }
    let layout = Layout {
        id: 16,
        size: 8,
        big: false,
        inclusive: true,
        alignment: 8,
    };
    let chunks = Chunks::new(probe, layout, 40);
    let (format, data) = (guid(b"fmt ", &GUID), guid(b"data", &GUID));
    walk(chunks, &format, &data, &[16, 18, 40])
}

fn walk(
    mut chunks: Chunks<'_, '_>,
    format_id: &[u8],
    data_id: &[u8],
    sizes: &[u64],
) -> Found<Waveform> {
    let mut format = None;
    while let Some(chunk) = chunks.next()? {
        if chunk.is(format_id) {
            if format.is_some() {
                return Err(bad_format("a second format chunk"));
            }
            if !sizes.contains(&chunk.size) {
                return Err(bad_format("a format chunk of unknown size"));
            }
            format = Some(read_format(&chunks, &chunk)?);
        } else if chunk.is(data_id) {
            let Some(format) = format else {
                return Err(bad_format("data before its format"));
            };
            return Ok(Some(Waveform::new(format, chunk.start, chunk.size)));
        }
    }
    Ok(None)
}

fn read_format(chunks: &Chunks<'_, '_>, chunk: &Chunk) -> Result<PcmFormat, Complaint> {
    let bytes = chunks.content::<16>(chunk)?;
    let number = |bytes: &[u8], at: usize| {
        let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
        found.map_or(0, |&b| u32::from(u16::from_le_bytes(b)))
    };
    let (mut format, channels, bits) = (number(&bytes, 0), number(&bytes, 2), number(&bytes, 14));
    if format == EXTENSIBLE && chunk.size == 40 {
        format = number(&chunks.content::<40>(chunk)?, 24);
    }
    match format {
        PCM => pcm(
            channels,
            bits,
            bits.div_ceil(8),
            ByteOrder::Little,
            bits > 8,
        ),
        FLOAT => Err(Complaint::info("floating point audio is not supported")),
        other => Err(Complaint::info(format!(
            "audio format {other:#x} is not supported"
        ))),
    }
}
