//! Throughput of the codecs for sounds and pictures on one block of 4 MiB, in millions of raw
//! bytes per second of CPU time, so that other work on the machine does little harm. Encoding
//! includes the proof that it is lossless.

use std::hint::black_box;

use redwarfs_codec::{
    ByteOrder, CodecSpec, CompressionId, Content, Padding, PcmFormat, PixelFormat, decompress,
};
use rustix::time::{ClockId, clock_gettime};

const SIZE: usize = 4 << 20;

/// Small random numbers, the same ones every time.
struct Noise(u64);

impl Noise {
    /// Uniform, 0 to 2^32 - 1.
    fn draw(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 32) as u32
    }

    /// Close to normal, with a deviation of `deviation` around zero.
    fn normal(&mut self, deviation: f64) -> f64 {
        let sum: f64 = (0..12)
            .map(|_| f64::from(self.draw()) / 4_294_967_296.0)
            .sum();
        (sum - 6.0) * deviation
    }
}

/// A picture of the night: noise of the given deviation, a star now and then.
fn pixels(deviation: f64, format: &PixelFormat) -> Vec<u8> {
    let mut noise = Noise(7);
    let mut star = 0.0;
    let mut data = Vec::with_capacity(SIZE);
    for at in 0..SIZE / 2 {
        star *= 0.6;
        if noise.draw() < 1 << 22 {
            star = f64::from(noise.draw() % 20_000);
        }
        // Neighbours behind a colour filter differ.
        let level = 700.0 + 300.0 * f64::from((at % usize::from(format.components)) as u32);
        let value = (level + star + noise.normal(deviation)).clamp(0.0, 4095.0) as u16;
        let value = value << format.unused_lsb;
        data.extend(match format.byte_order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        });
    }
    data
}

/// A chord that swells and fades, with noise below.
fn samples(format: &PcmFormat) -> Vec<u8> {
    let mut noise = Noise(3);
    let scale = f64::from(1u32 << (format.bits - 2));
    let frames = SIZE / format.frame_bytes();
    let mut data = Vec::with_capacity(SIZE);
    for frame in 0..frames {
        let time = frame as f64 / 44_100.0;
        for channel in 0..format.channels {
            let tone = |hertz: f64| (time * hertz * std::f64::consts::TAU).sin();
            let chord = tone(220.0 + f64::from(channel)) + tone(277.2) + 0.5 * tone(329.6);
            let value = chord * (0.3 + 0.2 * (time * 3.0).sin()) + noise.normal(0.002);
            let value = (value * scale * 0.5) as i32;
            let bytes = value.to_le_bytes();
            data.extend_from_slice(&bytes[..usize::from(format.bytes)]);
        }
    }
    data
}

/// Bytes per second of CPU time, in millions: the median of 25 runs.
fn throughput(bytes: usize, mut work: impl FnMut()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    work();
    let mut runs: Vec<f64> = (0..25)
        .map(|_| {
            let start = now();
            work();
            now() - start
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    bytes as f64 / runs[runs.len() / 2] / 1e6
}

fn measure(name: &str, spec: &str, raw: &[u8], content: &Content) {
    let parsed: CodecSpec = spec.parse().expect("a valid spec");
    let mut compressor = parsed.compressor();
    let compressed = compressor
        .compress_with(raw, content)
        .expect("there is memory");
    assert!(
        [CompressionId::FLAC, CompressionId::RICEPP].contains(&compressed.id),
        "{name} went to the fallback"
    );
    let payload = compressed.data.expect("it is compressible");
    let encode = throughput(raw.len(), || {
        black_box(compressor.compress_with(black_box(raw), content).is_ok());
    });
    let decode = throughput(raw.len(), || {
        black_box(decompress(compressed.id, black_box(&payload), SIZE as u64).is_ok());
    });
    let share = 100.0 * payload.len() as f64 / raw.len() as f64;
    println!("{name:28} {share:7.1} % {encode:9.0} {decode:9.0}");
}

fn main() {
    println!("{:28} {:>9} {:>9} {:>9}", "", "of raw", "encode", "decode");
    for (name, deviation, components, unused_lsb) in [
        ("ricepp, faint noise", 4.0, 1, 0),
        ("ricepp, noise", 25.0, 1, 0),
        ("ricepp, strong noise", 300.0, 1, 0),
        ("ricepp, Bayer, 12 bits", 25.0, 2, 4),
    ] {
        let format = PixelFormat {
            components,
            unused_lsb,
            byte_order: ByteOrder::Big,
        };
        let raw = pixels(deviation, &format);
        measure(name, "ricepp", &raw, &Content::Pixels(format));
    }
    for (bits, bytes) in [(16, 2), (24, 3)] {
        let format = PcmFormat {
            channels: 2,
            bits,
            bytes,
            signed: true,
            byte_order: ByteOrder::Little,
            padding: Padding::Lsb,
        };
        let mut raw = samples(&format);
        raw.truncate(raw.len() / format.frame_bytes() * format.frame_bytes());
        let name = format!("flac:level=5, {bits} bits");
        let content = Content::Pcm(format);
        measure(&name, "flac:level=5", &raw, &content);
    }
}
