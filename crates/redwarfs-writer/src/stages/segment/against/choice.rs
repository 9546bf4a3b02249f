//! Which matches become references.
//!
//! A reference takes metadata in this generation, and in all later ones as long as the file stays. Stored
//! data takes a fraction of its size, once. A reference between stored data also divides that in two. So a
//! match is used if it is long, or next to other references.

/// A piece of new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// In bytes.
    pub(super) size: usize,
    /// Block and offset of the same bytes, if they are in an old block.
    pub(super) place: Option<(u32, u32)>,
}

impl Part {
    pub(super) fn new(size: usize) -> Self {
        Self { size, place: None }
    }

    fn continues(&self, previous: &Self) -> bool {
        let Some(((block, offset), (before, from))) = self.place.zip(previous.place) else {
            return false;
        };
        block == before && u64::from(from) + previous.size as u64 == u64::from(offset)
    }
}

/// How many bytes of new data take as much space as the metadata of a chunk does in one generation.
const NIGHT: u64 = 64;
/// A chunk lives at least this number of generations, and at most that one.
const NIGHTS: (u64, u64) = (2, 32);
/// As long lives one of a file that has no old version.
const USUAL: u64 = 4;

/// How many bytes of new data take as much space as a chunk does in this and in later generations. `held` is the number
/// of generations that hold the old version of the file. A file that has not changed for long will stay as it is for long,
/// and so do its chunks.
pub(super) fn price(held: Option<u32>) -> u64 {
    let (least, most) = NIGHTS;
    NIGHT * held.map_or(USUAL, |held| u64::from(held).clamp(least, most))
}

/// Turns matches into new data where that is cheaper at this [`price`] of a chunk, and joins what belongs together.
/// No size is 0.
pub(super) fn choose(parts: &mut Vec<Part>, price: u64) {
    // The cheapest way to store all parts up to one, if that is stored as data, or as a reference.
    // For each way, whether the part before is data.
    let mut ways: Vec<(bool, bool)> = Vec::with_capacity(parts.len());
    let (mut as_data, mut as_reference) = (price, 0_u64);
    let mut previous = Part::new(0);
    for part in parts.iter() {
        let size = part.size as u64;
        let (after_data, after_reference) = (as_data, as_reference.saturating_add(price));
        let data_before_data = after_data <= after_reference;
        let next_data = after_data.min(after_reference).saturating_add(size);
        let (next_reference, data_before_reference) = match part.place {
            None => (u64::MAX, false),
            Some(_) => {
                let joined = if part.continues(&previous) { 0 } else { price };
                let after_data = as_data.saturating_add(price);
                let after_reference = as_reference.saturating_add(joined);
                (
                    after_data.min(after_reference),
                    after_data < after_reference,
                )
            }
        };
        ways.push((data_before_data, data_before_reference));
        (as_data, as_reference) = (next_data, next_reference);
        previous = *part;
    }
    let mut data = as_data <= as_reference;
    for (part, (before_data, before_reference)) in parts.iter_mut().zip(ways).rev() {
        if data {
            part.place = None;
            data = before_data;
        } else {
            data = before_reference;
        }
    }
    parts.dedup_by(|part, before| {
        let joined = part.continues(before) || (part.place.is_none() && before.place.is_none());
        if joined {
            before.size += part.size;
        }
        joined
    });
}

#[cfg(test)]
mod tests {
    use redwarfs_testkit::tree::Random;

    use super::*;

    const CHUNK: u64 = 256;

    /// The space that parts take.
    fn cost(parts: &[Part]) -> u64 {
        let mut cost = 0;
        let mut previous = None;
        for part in parts {
            let joined = previous.is_some_and(|previous| {
                part.continues(&previous) || (part.place.is_none() && previous.place.is_none())
            });
            cost += if joined { 0 } else { CHUNK };
            cost += if part.place.is_none() {
                part.size as u64
            } else {
                0
            };
            previous = Some(*part);
        }
        cost
    }

    /// The smallest space, by all ways to make data of matches.
    fn least(parts: &[Part]) -> u64 {
        let ways = (0..1_u32 << parts.len()).map(|way| {
            let mut tried = parts.to_vec();
            for (number, part) in tried.iter_mut().enumerate() {
                if way >> number & 1 == 1 {
                    part.place = None;
                }
            }
            cost(&tried)
        });
        ways.min().unwrap()
    }

    /// The place of each byte.
    fn places(parts: &[Part]) -> Vec<Option<(u32, u32)>> {
        let of = |part: &Part| {
            let place = part.place;
            (0..part.size as u32).map(move |n| place.map(|(block, at)| (block, at + n)))
        };
        parts.iter().flat_map(of).collect()
    }

    #[test]
    fn chunks_of_files_that_stay_cost_more() {
        assert_eq!(price(Some(1)), price(Some(2)));
        assert!(price(Some(2)) < price(None) && price(None) < price(Some(10)));
        assert_eq!(price(Some(32)), price(Some(u32::MAX)));
    }

    #[test]
    fn the_least_space_is_taken() {
        let mut random = Random::new(4);
        for _ in 0..500 {
            let mut next = 0;
            let mut parts = Vec::new();
            for _ in 0..1 + random.below(8) {
                let size = 1 + random.below(800) as usize;
                let at = if random.below(2) == 0 { next } else { 50_000 };
                let place = (random.below(3) > 0).then_some((1, at));
                next = at + size as u32;
                parts.push(Part { size, place });
            }
            let mut chosen = parts.clone();
            choose(&mut chosen, CHUNK);
            assert_eq!(cost(&chosen), least(&parts), "{parts:?}");
            let (old, new) = (places(&parts), places(&chosen));
            assert_eq!(old.len(), new.len());
            assert!(
                old.iter()
                    .zip(&new)
                    .all(|(old, new)| new.is_none() || old == new)
            );
            let apart = |pair: &[Part]| {
                !pair[1].continues(&pair[0]) && (pair[0].place.is_some() || pair[1].place.is_some())
            };
            assert!(chosen.windows(2).all(apart));
        }
    }
}
