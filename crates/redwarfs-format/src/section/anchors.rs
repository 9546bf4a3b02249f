//! Anchors: places that data has wherever it lies, by which equal data is found (format chapter 12).

/// Bytes before an anchor on which it depends.
pub const ANCHOR_WINDOW: usize = 64;

/// A place in data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// Offset behind its window.
    pub end: u32,
    /// Hash of its window.
    pub hash: u32,
}

/// A value for each byte, from the generator splitmix64.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < table.len() {
        let state = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = mixed ^ (mixed >> 31);
        i += 1;
    }
    table
};

/// Calls `found` with the anchors of data in ascending order: of `2^bits` places one, on average. `bits` is 1
/// to 32. Among neighbours with equal hashes only the first one counts, as in runs of one value. Data behind
/// the first 4 GiB has none.
pub fn anchors(data: &[u8], bits: u32, mut found: impl FnMut(Anchor)) {
    let bits = bits.clamp(1, 32);
    let (mut sum, mut last) = (0_u64, None);
    for (end, &byte) in (1..=u32::MAX).zip(data) {
        sum = (sum << 1).wrapping_add(GEAR[byte as usize]);
        if sum >> (64 - bits) == 0 && end as usize >= ANCHOR_WINDOW {
            let hash = (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
            if last != Some(hash) {
                found(Anchor { end, hash });
                last = Some(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data: &[u8], bits: u32) -> Vec<Anchor> {
        let mut all = Vec::new();
        anchors(data, bits, |anchor| all.push(anchor));
        all
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        };
        (0..length).map(next).collect()
    }

    #[test]
    fn they_move_with_the_data() {
        let data = noise(1 << 16);
        let all = of(&data, 7);
        assert!((400..640).contains(&all.len()), "{}", all.len());
        let mut moved = vec![7; 1001];
        moved.extend_from_slice(&data);
        let behind: Vec<Anchor> = of(&moved, 7);
        for anchor in &all {
            let end = anchor.end + 1001;
            assert!(behind.contains(&Anchor { end, ..*anchor }));
        }
        let fewer = of(&data, 9);
        assert!(fewer.iter().all(|anchor| all.contains(anchor)));
    }

    #[test]
    fn runs_have_at_most_one() {
        for byte in 0..=255 {
            assert!(of(&vec![byte; 10_000], 1).len() <= 1);
        }
        assert!(of(&noise(63), 1).is_empty());
    }
}
