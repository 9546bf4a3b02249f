//! Comparing bytes.

/// Bytes of one value at such a multiple may belong to a run. This is at most half the stripe of a
/// search by groups, so that every stripe of a run has such bytes.
pub(super) const EVEN: usize = 64;

/// The places at multiples of [`EVEN`] where a buffer has [`EVEN`] bytes of one value, as far as they
/// were searched. Searches of overlapping ranges examine no place twice.
#[derive(Debug, Default)]
pub(super) struct Evens {
    /// The compared bytes, up to the first such place if there is one.
    from: usize,
    to: usize,
    found: bool,
}

impl Evens {
    /// Forgets everything: the buffer has changed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there is such a place with bytes that may belong to the same run as a byte of
    /// `from..to`. Adds the number of examined bytes to `looked`.
    pub(super) fn any(&mut self, buffer: &[u8], from: usize, to: usize, looked: &mut u64) -> bool {
        let first = from.saturating_sub(EVEN) / EVEN * EVEN;
        if first < self.from || first > self.to {
            *self = Self {
                from: first,
                to: first,
                found: false,
            };
        }
        if self.found {
            return self.to + EVEN <= to;
        }
        let groups = buffer.get(self.to..to).unwrap_or_default();
        let groups = groups.as_chunks::<EVEN>().0;
        let found = groups.iter().position(|group| {
            let start = u64::from_le_bytes(*group.first_chunk().unwrap_or(&[0; 8]));
            start == start.rotate_left(8) && uniform(group).is_some()
        });
        let passed = found.unwrap_or(groups.len()) * EVEN;
        self.to += passed;
        self.found = found.is_some();
        *looked += passed as u64;
        self.found
    }
}

/// The value of a slice of one repeated byte.
pub(super) fn uniform(data: &[u8]) -> Option<u8> {
    let (&first, rest) = data.split_first()?;
    // Nearly all data fails at the first or the last byte.
    if rest.last().is_some_and(|&l| l != first) || rest.first().is_some_and(|&b| b != first) {
        return None;
    }
    rest.iter().all(|&b| b == first).then_some(first)
}

/// Index at which the final run of `value` begins.
pub(super) fn trailing(data: &[u8], value: u8) -> usize {
    data.iter().rposition(|&b| b != value).map_or(0, |i| i + 1)
}

pub(super) fn leading(data: &[u8], value: u8) -> usize {
    data.iter().position(|&b| b != value).unwrap_or(data.len())
}

pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 256;
    let size = a.len().min(b.len());
    let (a, b) = (&a[..size], &b[..size]);
    let mut done = 0;
    for (x, y) in a.chunks_exact(STEP).zip(b.chunks_exact(STEP)) {
        if x != y {
            break;
        }
        done += STEP;
    }
    let (words, rest) = a[done..].as_chunks();
    let (others, other_rest) = b[done..].as_chunks();
    for (&x, &y) in words.iter().zip(others) {
        let differing = u64::from_le_bytes(x) ^ u64::from_le_bytes(y);
        if differing != 0 {
            return done + differing.trailing_zeros() as usize / 8;
        }
        done += size_of::<u64>();
    }
    let rest = rest.iter().zip(other_rest);
    done + rest.take_while(|(x, y)| x == y).count()
}

pub(super) fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let size = a.len().min(b.len());
    let (rest, words) = a[a.len() - size..].as_rchunks();
    let (other_rest, others) = b[b.len() - size..].as_rchunks();
    let mut done = 0;
    for (&x, &y) in words.iter().zip(others).rev() {
        let differing = u64::from_le_bytes(x) ^ u64::from_le_bytes(y);
        if differing != 0 {
            return done + differing.leading_zeros() as usize / 8;
        }
        done += size_of::<u64>();
    }
    let rest = rest.iter().zip(other_rest).rev();
    done + rest.take_while(|(x, y)| x == y).count()
}
