//! The index of the windows of a block, by checksum.

use std::collections::VecDeque;

/// Number of equal windows that are kept per block. More would only take time.
const SAME: usize = 8;

/// Bytes that are summed side by side.
const LANES: usize = 16;
/// Smallest number of bytes for which lanes save more time than adding their sums takes.
const SHORT: usize = 128;
/// Number of rows of lanes whose sums fit into two bytes.
const ROWS: usize = 16;

/// Rolling checksum: sum of the bytes, and sum of all prefix sums, modulo 2^32.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    a: u32,
    b: u32,
}

impl Sums {
    /// Sums of a slice from scratch.
    pub(super) fn of(data: &[u8]) -> Self {
        let mut sums = Self::default();
        let (groups, rest) = if data.len() < SHORT {
            (&[][..], data)
        } else {
            data.as_chunks::<LANES>()
        };
        for part in groups.chunks(ROWS) {
            // Small enough for two bytes each, which lets the loop use vectors.
            let mut sum = [0u16; LANES];
            let mut rows = [0u16; LANES];
            for group in part {
                for i in 0..LANES {
                    sum[i] += u16::from(group[i]);
                    rows[i] += sum[i];
                }
            }
            let mut next = Self::default();
            for (i, (&sum, &rows)) in (0..).zip(sum.iter().zip(&rows)) {
                next.a += u32::from(sum);
                next.b += u32::from(rows) * LANES as u32 - i * u32::from(sum);
            }
            sums = sums.followed_by(next, (part.len() * LANES) as u32);
        }
        let (groups, rest) = rest.as_chunks();
        for group in groups {
            sums = sums.followed_by(Self::of_group(*group), group.len() as u32);
        }
        for &byte in rest {
            sums.slide(0, byte, 0);
        }
        sums
    }

    /// Moves a window of `window` bytes by one byte.
    #[inline(always)]
    pub(super) fn slide(&mut self, old: u8, new: u8, window: u32) {
        self.a = self
            .a
            .wrapping_sub(u32::from(old))
            .wrapping_add(u32::from(new));
        self.b = self
            .b
            .wrapping_sub(window.wrapping_mul(u32::from(old)))
            .wrapping_add(self.a);
    }

    /// Moves a window of `window` bytes back by one byte.
    #[inline(always)]
    pub(super) fn slide_back(&mut self, entering: u8, leaving: u8, window: u32) {
        self.b = self
            .b
            .wrapping_sub(self.a)
            .wrapping_add(window.wrapping_mul(u32::from(entering)));
        self.a = self
            .a
            .wrapping_sub(u32::from(leaving))
            .wrapping_add(u32::from(entering));
    }

    /// Sums of eight bytes.
    #[inline(always)]
    pub(super) fn of_group(group: [u8; 8]) -> Self {
        const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
        let bytes = u64::from_le_bytes(group);
        let odd = (bytes >> 8) & EVEN;
        let pairs = (bytes & EVEN) + odd;
        // The top 16 bits of a product are the sum of all lanes, each times its factor; no other lane
        // overflows. A pair counts like its first byte, so the second bytes must be subtracted once.
        let odd = odd.wrapping_mul(0x0001_0001_0001_0001) >> 48;
        let weighted = pairs.wrapping_mul(0x0008_0006_0004_0002) >> 48;
        Self {
            a: (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32,
            b: (weighted - odd) as u32,
        }
    }

    /// Sums of a slice followed by `size` bytes, whose sums are `next`.
    #[inline(always)]
    pub(super) fn followed_by(self, next: Self, size: u32) -> Self {
        Self {
            a: self.a.wrapping_add(next.a),
            b: self
                .b
                .wrapping_add(size.wrapping_mul(self.a))
                .wrapping_add(next.b),
        }
    }

    /// Sums of the last `size` bytes of a slice, the rest of which has the sums `before`.
    #[inline(always)]
    pub(super) fn since(self, before: Self, size: u32) -> Self {
        Self {
            a: self.a.wrapping_sub(before.a),
            b: self
                .b
                .wrapping_sub(before.b)
                .wrapping_sub(size.wrapping_mul(before.a)),
        }
    }
}

/// The well-mixed 32 bits of a checksum that filter and index use.
#[inline(always)]
pub(super) fn tag(sums: Sums) -> u32 {
    // The upper half of the product depends on all bits of both sums, its top bits most.
    let both = (u64::from(sums.a) << 32) | u64::from(sums.b);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    tag: u32,
    /// End of the window in the block; 0 is free.
    end: u32,
}

/// Index of the windows of one block that end at multiples of the step. Open addressing with
/// 8 bytes per slot, at most half full; a block of 16 MiB and a step of 512 take 512 KiB.
#[derive(Debug)]
pub(super) struct WindowIndex {
    window: usize,
    step: usize,
    slots: Vec<Slot>,
    used: usize,
    /// Sums of the pieces of the last window.
    pieces: VecDeque<Sums>,
    sums: Sums,
    /// Sums of the second half of the last window, if it consists of pieces.
    half: Sums,
    /// End of the last piece.
    position: usize,
    /// The run of whole pieces of one value that ends at `position`.
    run_value: u8,
    run_size: usize,
    /// Longest run per value: offset and size.
    runs: Vec<Option<(u32, u32)>>,
}

impl WindowIndex {
    /// `step` divides `window`.
    pub(super) fn new(window: usize, step: usize) -> Self {
        Self {
            window,
            step,
            slots: Vec::new(),
            used: 0,
            pieces: VecDeque::new(),
            sums: Sums::default(),
            half: Sums::default(),
            position: 0,
            run_value: 0,
            run_size: 0,
            runs: Vec::new(),
        }
    }

    /// Takes over the memory of an index that is not needed.
    pub(super) fn recycle(&mut self, old: WindowIndex) {
        self.slots = old.slots;
        self.slots.fill(Slot::default());
        self.used = 0;
    }

    /// Indexes the new windows of `data`, the block so far. Reports their tags, their ends, and the
    /// sums of their second halves if a half consists of whole pieces.
    pub(super) fn update(&mut self, data: &[u8], mut added: impl FnMut(u32, usize, Sums)) {
        let step = self.step;
        let count = self.window / step;
        while let Some(piece) = data.get(self.position..self.position + step) {
            let sums = Sums::of(piece);
            self.position += step;
            self.track_run(piece, sums);
            let middle = self.pieces.len().checked_sub(count / 2);
            let middle = middle.and_then(|i| self.pieces.get(i)).copied();
            self.half = shift(self.half, self.window / 2, step, middle, sums);
            let full = self.pieces.len() == count;
            let old = full.then(|| self.pieces.pop_front()).flatten();
            self.sums = shift(self.sums, self.window, step, old, sums);
            self.pieces.push_back(sums);
            if self.position < self.window || self.run_size >= self.window {
                continue;
            }
            let tag = tag(self.sums);
            self.insert(tag, self.position as u32);
            added(tag, self.position, self.half);
        }
    }

    fn track_run(&mut self, piece: &[u8], sums: Sums) {
        let value = piece.first().copied().unwrap_or(0);
        let uniform = sums.a == u32::from(value).wrapping_mul(piece.len() as u32)
            && piece.iter().all(|&b| b == value);
        if !uniform {
            self.run_size = 0;
            return;
        }
        if value != self.run_value {
            self.run_size = 0;
            self.run_value = value;
        }
        self.run_size += piece.len();
        if self.run_size >= self.window {
            if self.runs.is_empty() {
                self.runs = vec![None; 256];
            }
            if let Some(run) = self.runs.get_mut(usize::from(value))
                && run.is_none_or(|(_, size)| (size as usize) < self.run_size)
            {
                *run = Some(((self.position - self.run_size) as u32, self.run_size as u32));
            }
        }
    }

    /// The longest run of a value, if it is at least a window: offset and size.
    pub(super) fn run(&self, value: u8) -> Option<(usize, usize)> {
        let (offset, size) = (*self.runs.get(usize::from(value))?)?;
        Some((offset as usize, size as usize))
    }

    fn home(&self, tag: u32) -> usize {
        // The length is a power of two and not zero where this is used.
        let bits = self.slots.len().trailing_zeros();
        (u64::from(tag) << bits >> 32) as usize
    }

    /// Adds a window that ends at `end`, above 0.
    pub(super) fn insert(&mut self, tag: u32, end: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(tag);
        let mut same = 0;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.end == 0 {
                *slot = Slot { tag, end };
                self.used += 1;
                return;
            }
            if slot.tag == tag {
                same += 1;
                if same == SAME {
                    return;
                }
            }
            at = (at + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(256);
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); size]);
        self.used = 0;
        // Starting the walk at a free slot keeps equal tags in the order of insertion.
        let start = old.iter().position(|slot| slot.end == 0).unwrap_or(0);
        let (tail, head) = old.split_at(start);
        for slot in head.iter().chain(tail).filter(|slot| slot.end != 0) {
            self.insert(slot.tag, slot.end);
        }
    }

    /// Ends of the windows with this tag.
    pub(super) fn candidates(&self, tag: u32) -> impl Iterator<Item = u32> + '_ {
        let mask = self.slots.len().wrapping_sub(1);
        let home = if self.slots.is_empty() {
            0
        } else {
            self.home(tag)
        };
        (0..self.slots.len())
            .map_while(move |i| {
                self.slots
                    .get((home + i) & mask)
                    .filter(|slot| slot.end != 0)
            })
            .filter(move |slot| slot.tag == tag)
            .map(|slot| slot.end)
    }
}

/// Moves the sums of `window` bytes by a piece of `step` bytes: `old` leaves, `new` enters.
fn shift(sums: Sums, window: usize, step: usize, old: Option<Sums>, new: Sums) -> Sums {
    let kept = match old {
        Some(old) => sums.since(old, window.saturating_sub(step) as u32),
        None => sums,
    };
    kept.followed_by(new, step as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sliding_equals_summing() {
        let data: Vec<u8> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for window in [2usize, 64, 1024] {
            let mut sums = Sums::of(&data[..window]);
            for end in window..data.len() {
                sums.slide(data[end - window], data[end], window as u32);
                if end % 97 == 0 {
                    assert_eq!(sums, Sums::of(&data[end + 1 - window..=end]));
                }
            }
        }
    }

    #[test]
    fn sums_are_what_they_are_defined_as() {
        for value in [255u32, 250, 2] {
            let data: Vec<u8> = (0..5000u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
                .map(|byte| {
                    if value == 255 {
                        255
                    } else {
                        byte % value as u8
                    }
                })
                .collect();
            for size in (0..600).chain([1024, 4096, 5000]) {
                let mut plain = Sums::default();
                for &byte in &data[..size] {
                    plain.a = plain.a.wrapping_add(u32::from(byte));
                    plain.b = plain.b.wrapping_add(plain.a);
                }
                assert_eq!(Sums::of(&data[..size]), plain, "{value} {size}");
                let part = size / 3;
                let (front, back) = (Sums::of(&data[..part]), Sums::of(&data[part..size]));
                assert_eq!(front.followed_by(back, (size - part) as u32), plain);
                assert_eq!(plain.since(front, (size - part) as u32), back);
            }
            let (groups, _) = data.as_chunks();
            for group in groups {
                assert_eq!(Sums::of_group(*group), Sums::of(group));
            }
        }
    }

    #[test]
    fn sliding_back_undoes_sliding() {
        let data: Vec<u8> = (0..999u32).map(|i| ((i * i) >> 3) as u8).collect();
        let first = Sums::of(&data[..128]);
        let mut sums = first;
        for end in 128..data.len() {
            sums.slide(data[end - 128], data[end], 128);
        }
        for end in (128..data.len()).rev() {
            sums.slide_back(data[end - 128], data[end], 128);
        }
        assert_eq!(sums, first);
    }

    #[test]
    fn equal_windows_are_kept_up_to_a_limit() {
        let mut index = WindowIndex::new(2, 2);
        for number in 1..2000u32 {
            index.insert(number % 100 * 0x0101_0101, number * 2);
        }
        for tag in 0..100u32 {
            let mut ends: Vec<u32> = index.candidates(tag * 0x0101_0101).collect();
            ends.sort_unstable();
            let first = if tag == 0 { 100 } else { tag };
            let expected: Vec<u32> = (0..SAME as u32).map(|i| (first + i * 100) * 2).collect();
            assert_eq!(ends, expected, "{tag}");
        }
        assert_eq!(index.used, 800);
        assert_eq!(index.candidates(5).count(), 0);
    }

    #[test]
    fn block_side_equals_file_side() {
        let data: Vec<u8> = (0..9000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8)
            .collect();
        for (window, step) in [(1024usize, 128usize), (64, 64), (16, 1), (512, 2)] {
            let mut index = WindowIndex::new(window, step);
            for end in (0..data.len()).step_by(311) {
                index.update(&data[..end], |_, _, _| {});
            }
            let mut end = window;
            while end + 311 < data.len() {
                let wanted = tag(Sums::of(&data[end - window..end]));
                assert!(
                    index.candidates(wanted).any(|e| e as usize == end),
                    "{window} {step} {end}"
                );
                end += step;
            }
        }
    }

    #[test]
    fn uniform_windows_are_runs_not_entries() {
        let mut data = vec![7u8; 1000];
        data.extend_from_slice(&[9; 3000]);
        let mut index = WindowIndex::new(256, 64);
        index.update(&data, |_, _, _| {});
        let (offset, size) = index.run(9).unwrap();
        assert!((1000..1064).contains(&offset) && offset + size <= 4000 && size > 2800);
        assert!(index.run(0).is_none());
        assert_eq!(index.candidates(tag(Sums::of(&[9; 256]))).count(), 0);
    }
}
