//! The Nilsimsa digest (E. Damiani, S. De Capitani di Vimercati, S. Paraboschi and P. Samarati, "An
//! Open Digest-based Technique for Spam Detection", 2004): 256 bits; similar contents have most bits in
//! common. Details as in format/08 section 3.3.
//!
//! Every byte closes eight triples of bytes, and each triple is hashed to one of 256 counters. The
//! hashes of all eight are computed at once, one per byte of a 64-bit word. A byte is the first, second
//! or third of a triple. Its contribution depends only on the byte and this role, so there is a table
//! for each role.

/// Bit i of the digest is bit `i % 64` of word `i / 64`.
pub(crate) type Digest = [u64; 4];

/// The permutation with the multiplier 53.
const PERMUTATION: [u8; 256] = permutation();

const fn permutation() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut used = [false; 256];
    let mut j = 0usize;
    let mut i = 0;
    while i < 256 {
        j = (j * 53 + 1) % 256;
        j += j;
        if j > 255 {
            j -= 255;
        }
        while used[j % 256] {
            j = (j + 1) % 256;
        }
        j %= 256;
        used[j] = true;
        table[i] = j as u8;
        i += 1;
    }
    table
}

/// Byte n of an entry belongs to triple n.
type Role = [u64; 256];

const FIRST: Role = role(0);
const SECOND: Role = role(1);
const THIRD: Role = role(2);

const fn role(which: u8) -> Role {
    let mut table = [0u64; 256];
    let mut value = 0;
    while value < 256 {
        let mut n = 0;
        while n < 8 {
            let byte = match which {
                0 => PERMUTATION[(value + n) % 256],
                1 => PERMUTATION[value].wrapping_mul(2 * n as u8 + 1),
                _ => PERMUTATION[value ^ PERMUTATION[n] as usize],
            };
            table[value] |= (byte as u64) << (8 * n);
            n += 1;
        }
        value += 1;
    }
    table
}

/// Selects triples by their numbers.
const fn triples(numbers: &[u32]) -> u64 {
    let mut mask = 0;
    let mut i = 0;
    while i < numbers.len() {
        mask |= 0xff << (8 * numbers[i]);
        i += 1;
    }
    mask
}

/// The hashes of the eight triples in five consecutive bytes, one in each byte.
#[inline(always)]
fn hashes([w4, w3, w2, w1, w0]: [u8; 5]) -> u64 {
    const LATE: u64 = triples(&[6, 7]);
    let at = |table: &Role, byte: u8| table[usize::from(byte)];
    let first = (at(&FIRST, w0) & !LATE) | (at(&FIRST, w4) & LATE);
    let second = (at(&SECOND, w1) & const { triples(&[0, 1, 3, 6]) })
        | (at(&SECOND, w2) & const { triples(&[2, 4]) })
        | (at(&SECOND, w3) & const { triples(&[5, 7]) });
    let third = (at(&THIRD, w2) & const { triples(&[0]) })
        | (at(&THIRD, w3) & const { triples(&[1, 2]) })
        | (at(&THIRD, w4) & const { triples(&[3, 4, 5]) })
        | (at(&THIRD, w0) & LATE);
    // Eight additions modulo 256: without the top bits there is no carry into the next byte.
    const TOP: u64 = 0x8080_8080_8080_8080;
    let a = first ^ second;
    ((a & !TOP) + (third & !TOP)) ^ ((a ^ third) & TOP)
}

/// Computes the digest of a content piece by piece. It takes 10 KiB.
pub(crate) struct Nilsimsa {
    /// Counters for each triple, so that increments for equal consecutive hashes do not wait for each
    /// other.
    counts: [[u32; 256]; 8],
    totals: [u64; 256],
    /// Number of bytes that `counts` covers.
    counted: u32,
    size: u64,
    /// The last four bytes, oldest first.
    last: [u8; 4],
}

impl Nilsimsa {
    /// Bytes after which the counters are emptied.
    const PART: usize = 1 << 30;

    pub(crate) fn new() -> Self {
        Self {
            counts: [[0; 256]; 8],
            totals: [0; 256],
            counted: 0,
            size: 0,
            last: [0; 4],
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        for part in data.chunks(Self::PART) {
            self.part(part);
        }
    }

    fn part(&mut self, part: &[u8]) {
        if self.counted as usize + part.len() > 2 * Self::PART {
            self.empty();
        }
        self.counted += part.len() as u32;
        let (start, _) = part.split_at(part.len().min(4));
        for &byte in start {
            let [w4, w3, w2, w1] = self.last;
            // The triples whose bytes are complete.
            let number = match self.size {
                0 | 1 => 0,
                2 => 1,
                3 => 3,
                _ => 8,
            };
            let hashes = hashes([w4, w3, w2, w1, byte]).to_le_bytes();
            for (counts, hash) in self.counts.iter_mut().zip(hashes).take(number) {
                counts[usize::from(hash)] += 1;
            }
            self.last = [w3, w2, w1, byte];
            self.size += 1;
        }
        // From here on, the previous bytes are in this part.
        for five in part.windows(5) {
            let Ok(five) = <[u8; 5]>::try_from(five) else {
                break;
            };
            let [h0, h1, h2, h3, h4, h5, h6, h7] = hashes(five).to_le_bytes();
            let [c0, c1, c2, c3, c4, c5, c6, c7] = &mut self.counts;
            c0[usize::from(h0)] += 1;
            c1[usize::from(h1)] += 1;
            c2[usize::from(h2)] += 1;
            c3[usize::from(h3)] += 1;
            c4[usize::from(h4)] += 1;
            c5[usize::from(h5)] += 1;
            c6[usize::from(h6)] += 1;
            c7[usize::from(h7)] += 1;
        }
        if let Some(&last) = part.last_chunk() {
            self.last = last;
        }
        self.size += part.len().saturating_sub(4) as u64;
    }

    fn empty(&mut self) {
        for counts in &mut self.counts {
            for (total, count) in self.totals.iter_mut().zip(counts) {
                *total += u64::from(std::mem::take(count));
            }
        }
        self.counted = 0;
    }

    /// Bits are set where a counter is above the average.
    pub(crate) fn finish(mut self) -> Digest {
        self.empty();
        let triples = match self.size {
            0..3 => 0,
            3 => 1,
            4 => 4,
            size => 8 * size - 28,
        };
        let threshold = triples / 256;
        let mut digest = [0u64; 4];
        for (word, totals) in digest.iter_mut().zip(self.totals.chunks(64)) {
            for (bit, &total) in totals.iter().enumerate() {
                *word |= u64::from(total > threshold) << bit;
            }
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(data: &[u8]) -> Digest {
        let mut nilsimsa = Nilsimsa::new();
        nilsimsa.update(data);
        nilsimsa.finish()
    }

    /// The usual notation: the highest bit first.
    fn hex(digest: Digest) -> String {
        digest.iter().rev().map(|w| format!("{w:016x}")).collect()
    }

    /// As the definition has it, triple by triple.
    fn plain(data: &[u8]) -> Digest {
        let t = |i: usize| PERMUTATION[i % 256];
        let tran = |a: u8, b: u8, c: u8, n: usize| {
            let first = t(usize::from(a) + n);
            let second = t(usize::from(b)).wrapping_mul(2 * n as u8 + 1);
            usize::from((first ^ second).wrapping_add(t(usize::from(c ^ t(n)))))
        };
        let mut counts = [0u64; 256];
        let mut number = 0;
        for i in 0..data.len() {
            let w = |back: usize| data[i - back];
            let mut count = |hash: usize| {
                counts[hash] += 1;
                number += 1;
            };
            if i >= 2 {
                count(tran(w(0), w(1), w(2), 0));
            }
            if i >= 3 {
                count(tran(w(0), w(1), w(3), 1));
                count(tran(w(0), w(2), w(3), 2));
            }
            if i >= 4 {
                count(tran(w(0), w(1), w(4), 3));
                count(tran(w(0), w(2), w(4), 4));
                count(tran(w(0), w(3), w(4), 5));
                count(tran(w(4), w(1), w(0), 6));
                count(tran(w(4), w(3), w(0), 7));
            }
        }
        let mut digest = [0; 4];
        for (i, &count) in counts.iter().enumerate() {
            digest[i / 64] |= u64::from(count > number / 256) << (i % 64);
        }
        digest
    }

    #[test]
    fn the_permutation_is_one() {
        let mut seen = PERMUTATION;
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..=255));
        // The table is printed in many places; its first row:
        let row = [
            0x02, 0xD6, 0x9E, 0x6F, 0xF9, 0x1D, 0x04, 0xAB, 0xD0, 0x22, 0x16, 0x1F, 0xD8, 0x73,
            0xA1, 0xAC,
        ];
        assert_eq!(PERMUTATION[..16], row);
    }

    #[test]
    fn published_digests() {
        // From the tests of other implementations.
        assert_eq!(
            hex(digest(b"abcdefgh")),
            "14c8118000000000030800000004042004189020001308014088003280000078"
        );
        assert_eq!(
            hex(digest(b"abcdefghijk")),
            "14c811840010000c0328200108040630041890200217582d4098103280000078"
        );
    }

    #[test]
    fn short_contents() {
        assert_eq!(digest(b""), [0; 4]);
        assert_eq!(digest(b"ab"), [0; 4]);
        for size in 0..12 {
            let data: Vec<u8> = (0..size).map(|i: u8| i.wrapping_mul(37)).collect();
            assert_eq!(digest(&data), plain(&data), "{size}");
        }
    }

    #[test]
    fn as_defined_in_any_pieces() {
        let data: Vec<u8> = (0..20_000u32)
            .map(|i| ((i * i) >> 7) as u8 ^ (i % 11) as u8)
            .collect();
        let want = plain(&data);
        assert_eq!(digest(&data), want);
        for step in [1, 2, 3, 4, 5, 7, 4096] {
            let mut pieces = Nilsimsa::new();
            for part in data.chunks(step) {
                pieces.update(part);
            }
            assert_eq!(pieces.finish(), want, "{step}");
        }
    }
}
