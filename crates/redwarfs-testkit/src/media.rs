//! Audio and image files around any bytes.

use crate::tree::Random;

/// How samples are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples {
    /// Samples of a frame.
    pub channels: u16,
    /// Significant bits.
    pub bits: u16,
    /// Bytes of a sample.
    pub bytes: u16,
    /// Most significant byte first.
    pub big: bool,
    /// Two's complement.
    pub signed: bool,
}

impl Samples {
    /// The usual 16-bit stereo: little-endian, signed.
    pub const CD: Samples = Samples {
        channels: 2,
        bits: 16,
        bytes: 2,
        big: false,
        signed: true,
    };

    /// Bytes of a frame.
    #[must_use]
    pub fn frame(&self) -> usize {
        usize::from(self.channels) * usize::from(self.bytes)
    }

    /// A random walk in every channel: sounds like noise, compresses like music. Bits below the
    /// significant ones are zero.
    #[must_use]
    pub fn walk(&self, frames: usize, seed: u64) -> Vec<u8> {
        let mut random = Random::new(seed);
        let (bits, bytes) = (u32::from(self.bits), usize::from(self.bytes));
        let range = 1i64 << (bits - 1);
        let mut levels = vec![0i64; usize::from(self.channels)];
        let mut out = Vec::with_capacity(frames * self.frame());
        for _ in 0..frames {
            for level in &mut levels {
                let step = range / 64 + 1;
                *level += (random.draw() >> 20) as i64 % (2 * step) - step;
                *level = (*level).clamp(-range, range - 1);
                let value = if self.signed { *level } else { *level + range };
                let value = value << (8 * u32::from(self.bytes) - bits);
                let little = value.to_le_bytes();
                if self.big {
                    out.extend(little.iter().take(bytes).rev());
                } else {
                    out.extend(little.iter().take(bytes));
                }
            }
        }
        out
    }
}

/// A chunk with a header of four letters and a size of 32 bits, padded to an even size.
#[must_use]
pub fn chunk(id: &[u8; 4], big: bool, data: &[u8]) -> Vec<u8> {
    let size = data.len() as u32;
    let mut out = id.to_vec();
    out.extend(if big {
        size.to_be_bytes()
    } else {
        size.to_le_bytes()
    });
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(2), 0);
    out
}

fn format_chunk(samples: &Samples) -> Vec<u8> {
    let mut out = vec![1, 0];
    out.extend(samples.channels.to_le_bytes());
    out.extend(44_100u32.to_le_bytes());
    out.extend((44_100 * samples.frame() as u32).to_le_bytes());
    out.extend((samples.frame() as u16).to_le_bytes());
    out.extend(samples.bits.to_le_bytes());
    out
}

/// A WAV file. `data` need not consist of whole frames.
#[must_use]
pub fn wav(samples: &Samples, data: &[u8]) -> Vec<u8> {
    let format = chunk(b"fmt ", false, &format_chunk(samples));
    let body = [b"WAVE".to_vec(), format, chunk(b"data", false, data)].concat();
    chunk(b"RIFF", false, &body)
}

/// The same with sizes of 64 bits in a separate chunk.
#[must_use]
pub fn rf64(samples: &Samples, data: &[u8]) -> Vec<u8> {
    let mut sizes = vec![0; 28];
    sizes[8..16].copy_from_slice(&(data.len() as u64).to_le_bytes());
    let format = chunk(b"fmt ", false, &format_chunk(samples));
    let mut data = chunk(b"data", false, data);
    data[4..8].fill(0xff);
    let body = [
        b"WAVE".to_vec(),
        chunk(b"ds64", false, &sizes),
        format,
        data,
    ];
    let mut file = chunk(b"RF64", false, &body.concat());
    file[4..8].fill(0xff);
    file
}

/// A Sony Wave64 file.
#[must_use]
pub fn wave64(samples: &Samples, data: &[u8]) -> Vec<u8> {
    let guid = |letters: &[u8; 4]| {
        let rest = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a";
        [letters.as_slice(), rest].concat()
    };
    let chunk = |letters: &[u8; 4], data: &[u8]| {
        let mut out = guid(letters);
        out.extend((24 + data.len() as u64).to_le_bytes());
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    };
    let body = [
        guid(b"wave"),
        chunk(b"fmt ", &format_chunk(samples)),
        chunk(b"data", data),
    ]
    .concat();
    let mut file = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00".to_vec();
    file.extend((24 + body.len() as u64).to_le_bytes());
    file.extend(body);
    file
}

/// An AIFF file, or an AIFF-C file of a type. Announces the whole frames of `data`.
#[must_use]
pub fn aiff(samples: &Samples, kind: Option<&[u8; 4]>, data: &[u8]) -> Vec<u8> {
    let frames = (data.len() / samples.frame()) as u32;
    let mut common = samples.channels.to_be_bytes().to_vec();
    common.extend(frames.to_be_bytes());
    common.extend(samples.bits.to_be_bytes());
    common.extend(b"\x40\x0e\xac\x44\0\0\0\0\0\0");
    if let Some(kind) = kind {
        common.extend(kind);
        common.extend([0, 0]);
    }
    let form: &[u8] = if kind.is_some() { b"AIFC" } else { b"AIFF" };
    let sound = [&[0; 8], data].concat();
    let body = [
        form.to_vec(),
        chunk(b"COMM", true, &common),
        chunk(b"SSND", true, &sound),
    ];
    chunk(b"FORM", true, &body.concat())
}

/// A CAF file.
#[must_use]
pub fn caf(samples: &Samples, data: &[u8]) -> Vec<u8> {
    let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
    file.extend(44_100f64.to_be_bytes());
    file.extend(b"lpcm");
    let flags = if samples.big { 0 } else { 2 };
    for number in [
        flags,
        samples.frame() as u32,
        1,
        u32::from(samples.channels),
        u32::from(samples.bits),
    ] {
        file.extend(number.to_be_bytes());
    }
    file.extend(b"data");
    file.extend((4 + data.len() as u64).to_be_bytes());
    file.extend([0; 4]);
    file.extend_from_slice(data);
    file
}

/// A FITS file whose header announces `width` times `height` pixels, around any bytes.
#[must_use]
pub fn fits(width: usize, height: usize, bayer: bool, data: &[u8]) -> Vec<u8> {
    let mut cards = vec![
        "SIMPLE  =                    T".to_owned(),
        "BITPIX  =                   16".to_owned(),
        "NAXIS   =                    2".to_owned(),
        format!("NAXIS1  = {width:>20}"),
        format!("NAXIS2  = {height:>20}"),
    ];
    if bayer {
        cards.push("BAYERPAT= 'RGGB    '".to_owned());
    }
    cards.push("END".to_owned());
    let mut file: Vec<u8> = cards
        .iter()
        .flat_map(|card| format!("{card:<80}").into_bytes())
        .collect();
    file.resize(2880, b' ');
    file.extend_from_slice(data);
    file.resize(file.len().next_multiple_of(2880), 0);
    file
}

/// Pixels like those of a night sky; the low `unused` bits are zero.
#[must_use]
pub fn sky(count: usize, unused: u32, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut pixel = || {
        let noise = random.draw() >> 30;
        let value = match noise % 61 {
            0 => noise as u16 >> unused,
            _ => 300 + (noise % 29) as u16,
        };
        (value << unused).to_be_bytes()
    };
    (0..count).flat_map(|_| pixel()).collect()
}

/// Pixels as in [`sky`], every other one brighter as with a colour filter, with some lines of noise and
/// some of a single value. These are all cases of a Rice coder.
#[must_use]
pub fn picture(width: usize, height: usize, unused: u32, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut pixel = |at: usize| {
        let noise = random.draw() >> 30;
        let any = noise as u16 >> unused;
        let value = match (at / width % 37, noise % 61) {
            (5, _) | (_, 0) => any,
            (6, _) => 77,
            _ => 300 + (at % 2 * 90) as u16 + (noise % 29) as u16,
        };
        (value << unused).to_be_bytes()
    };
    (0..width * height).flat_map(&mut pixel).collect()
}
