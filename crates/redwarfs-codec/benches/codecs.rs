//! Throughput of every codec on one block of 4 MiB, in raw bytes per second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use redwarfs_codec::{CodecSpec, Decoder, decompress};

const SIZE: usize = 4 << 20;

/// Fast and usual settings of each codec.
const SPECS: [&str; 14] = [
    "zstd:level=1",
    "zstd:level=7",
    "zstd:level=12",
    "zstd:level=19",
    "zstd:level=22:long",
    "lzma:level=1",
    "lzma:level=6",
    "lzma:level=9",
    "lz4",
    "lz4hc:level=9",
    "lz4hc:level=12",
    "brotli:quality=2",
    "brotli:quality=6",
    "brotli:quality=9:lgwin=24",
];

/// The test machine's own programs are the data, for lack of anything better that
/// is there everywhere; text made of words where there are none.
fn block() -> Vec<u8> {
    let mut data = std::env::current_exe()
        .and_then(std::fs::read)
        .unwrap_or_default();
    if data.len() < SIZE {
        data.extend((0..SIZE as u64).flat_map(|i| (i * i / 7).to_string().into_bytes()));
    }
    data.truncate(SIZE);
    data
}

fn codecs(criterion: &mut Criterion) {
    let raw = block();
    for spec in SPECS {
        let parsed: CodecSpec = spec.parse().expect("the table has valid specs");
        let mut compressor = parsed.compressor();
        let compressed = compressor.compress(&raw).expect("there is memory");
        let payload = compressed.data.expect("programs are compressible");
        eprintln!("{spec}: {} of {} bytes", payload.len(), raw.len());

        let mut group = criterion.benchmark_group(spec);
        group.throughput(Throughput::Bytes(raw.len() as u64));
        group.sample_size(10);
        group.bench_function("encode", |bencher| {
            bencher.iter(|| compressor.compress(black_box(&raw)));
        });
        group.bench_function("decode", |bencher| {
            bencher.iter(|| decompress(compressed.id, black_box(&payload), SIZE as u64));
        });
        group.bench_function("decode-64k-steps", |bencher| {
            let mut out = vec![0; 64 << 10];
            bencher.iter(|| {
                let mut decoder = Decoder::new(compressed.id, &payload[..], SIZE as u64)
                    .expect("the payload is whole");
                for _ in 0..SIZE / out.len() {
                    decoder.fill(&mut out).expect("the payload is whole");
                }
            });
        });
        group.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
