//! Covering arrays: few combinations of parameters in which every two values of every two
//! parameters meet.
//!
//! The rows are made greedily, one after the other, each the best of several candidates by the
//! number of pairs that it adds (the scheme of AETG: Cohen, Dalal, Fredman, Patton, 1997), without
//! chance: the same space always gives the same rows. Early rows add most pairs.

use crate::tree::Random;

/// Rows that are tried for each chosen row.
const CANDIDATES: u64 = 12;

/// A value: the number of its parameter and its own number there.
pub type Value = (usize, usize);

/// Parameters with their numbers of values, and pairs of values that do not go together.
///
/// Value 0 of each parameter goes with everything, so every pair that is not forbidden has a row.
#[derive(Debug, Clone)]
pub struct Space {
    sizes: Vec<usize>,
    /// Where the values of each parameter begin in a numbering of all values.
    starts: Vec<usize>,
    forbidden: Relation,
}

/// A symmetric relation of values.
#[derive(Debug, Clone)]
struct Relation {
    side: usize,
    bits: Vec<bool>,
}

impl Relation {
    fn new(side: usize) -> Self {
        Self {
            side,
            bits: vec![false; side * side],
        }
    }

    fn has(&self, a: usize, b: usize) -> bool {
        self.bits[a * self.side + b]
    }

    /// Whether that is new.
    fn add(&mut self, a: usize, b: usize) -> bool {
        self.bits[b * self.side + a] = true;
        !std::mem::replace(&mut self.bits[a * self.side + b], true)
    }
}

impl Space {
    /// Parameters with these numbers of values, each at least 1.
    ///
    /// # Panics
    /// If a parameter has no value.
    #[must_use]
    pub fn new(sizes: &[usize]) -> Self {
        assert!(sizes.iter().all(|&size| size > 0), "parameters have values");
        let mut starts = Vec::with_capacity(sizes.len());
        let mut all = 0;
        for size in sizes {
            starts.push(all);
            all += size;
        }
        Self {
            sizes: sizes.to_vec(),
            starts,
            forbidden: Relation::new(all),
        }
    }

    fn number(&self, (parameter, value): Value) -> usize {
        assert!(value < self.sizes[parameter], "a value that there is");
        self.starts[parameter] + value
    }

    /// Says that two values of different parameters do not go together.
    ///
    /// # Panics
    /// If one of them is the first of its parameter, or they are of the same.
    pub fn forbid(&mut self, a: Value, b: Value) {
        assert!(a.1 != 0 && b.1 != 0, "first values go with everything");
        assert!(a.0 != b.0, "values of different parameters");
        let (a, b) = (self.number(a), self.number(b));
        self.forbidden.add(a, b);
    }

    /// Whether two values go together.
    #[must_use]
    pub fn together(&self, a: Value, b: Value) -> bool {
        !self.forbidden.has(self.number(a), self.number(b))
    }

    /// All pairs of values of different parameters that go together.
    pub fn pairs(&self) -> impl Iterator<Item = (Value, Value)> + '_ {
        let values = |p: usize| (0..self.sizes[p]).map(move |v| (p, v));
        let parameters = 0..self.sizes.len();
        parameters
            .flat_map(move |p| (p + 1..self.sizes.len()).map(move |q| (p, q)))
            .flat_map(move |(p, q)| values(p).flat_map(move |a| values(q).map(move |b| (a, b))))
            .filter(|&(a, b)| self.together(a, b))
    }

    /// How many of the pairs are in these rows.
    #[must_use]
    pub fn covered(&self, rows: &[Vec<usize>]) -> usize {
        let meet = |(p, v): Value, (q, w): Value| rows.iter().any(|r| r[p] == v && r[q] == w);
        self.pairs().filter(|&(a, b)| meet(a, b)).count()
    }

    /// Rows with a value for each parameter, in which all pairs are, and none that is forbidden.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<usize>> {
        let mut done = Relation::new(self.forbidden.side);
        let mut missing: Vec<(Value, Value)> = self.pairs().collect();
        let mut rows: Vec<Vec<usize>> = Vec::new();
        while !missing.is_empty() {
            let candidates = (0..CANDIDATES).map(|k| {
                let mut random = Random::new(rows.len() as u64 * CANDIDATES + k + 1);
                let (a, b) = missing[random.below(missing.len() as u64) as usize];
                self.row(a, b, &done, &mut random)
            });
            let best = candidates.max_by_key(|row| self.gain(row, &done));
            let row = best.expect("there are candidates");
            for (p, &v) in row.iter().enumerate() {
                for (q, &w) in row.iter().enumerate() {
                    done.add(self.number((p, v)), self.number((q, w)));
                }
            }
            rows.push(row);
            missing.retain(|&(a, b)| !done.has(self.number(a), self.number(b)));
        }
        rows
    }

    /// A row with `a` and `b`; other parameters follow in an order by chance, each with the value
    /// that adds most pairs.
    fn row(&self, a: Value, b: Value, done: &Relation, random: &mut Random) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.sizes.len())
            .filter(|&p| p != a.0 && p != b.0)
            .collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut row = vec![0; self.sizes.len()];
        let mut taken = vec![self.number(a), self.number(b)];
        (row[a.0], row[b.0]) = (a.1, b.1);
        for p in order {
            let first = random.below(self.sizes[p] as u64) as usize;
            let values = (0..self.sizes[p]).map(|i| (first + i) % self.sizes[p]);
            let value = values
                .filter(|&v| {
                    let own = self.number((p, v));
                    !taken.iter().any(|&other| self.forbidden.has(own, other))
                })
                .max_by_key(|&v| {
                    let own = self.number((p, v));
                    taken.iter().filter(|&&other| !done.has(own, other)).count()
                })
                .expect("the first value goes with everything");
            row[p] = value;
            taken.push(self.number((p, value)));
        }
        row
    }

    fn gain(&self, row: &[usize], done: &Relation) -> usize {
        let own: Vec<usize> = row
            .iter()
            .enumerate()
            .map(|v| self.number((v.0, *v.1)))
            .collect();
        let news = own.iter().enumerate().map(|(i, &a)| {
            let others = own[i + 1..].iter();
            others.filter(|&&b| !done.has(a, b)).count()
        });
        news.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of values of every two parameters is in a row, or forbidden and in none.
    fn check(space: &Space, most: usize) {
        let rows = space.rows();
        assert!(rows.len() <= most, "{} rows", rows.len());
        for (p, &values) in space.sizes.iter().enumerate() {
            for (q, &others) in space.sizes.iter().enumerate().skip(p + 1) {
                for (v, w) in (0..values).flat_map(|v| (0..others).map(move |w| (v, w))) {
                    let met = rows.iter().any(|row| row[p] == v && row[q] == w);
                    let allowed = space.together((p, v), (q, w));
                    assert_eq!(met, allowed, "{p}={v} with {q}={w}");
                }
            }
        }
        let all = space.pairs().count();
        assert_eq!(space.covered(&rows), all);
        assert_eq!(space.rows(), rows, "the same rows again");
        if rows.len() > 1 {
            assert!(space.covered(&rows[..1]) < all);
        }
    }

    #[test]
    fn all_pairs_are_covered() {
        check(&Space::new(&[1]), 0);
        check(&Space::new(&[1, 1, 1]), 1);
        check(&Space::new(&[2, 2, 2]), 6);
        check(&Space::new(&[3; 13]), 27);
        check(&Space::new(&[10, 10, 2, 2, 7, 3, 3, 3, 3, 5]), 130);
        check(&Space::new(&[2; 40]), 18);
    }

    #[test]
    fn what_is_forbidden_is_in_no_row() {
        let mut space = Space::new(&[4, 3, 2, 5, 2]);
        space.forbid((0, 1), (1, 1));
        space.forbid((0, 1), (1, 2));
        space.forbid((4, 1), (3, 4));
        for value in 1..4 {
            space.forbid((0, value), (2, 1));
        }
        assert!(!space.together((2, 1), (0, 3)) && space.together((2, 1), (0, 0)));
        check(&space, 30);
    }

    #[test]
    #[should_panic(expected = "first values go with everything")]
    fn first_values_cannot_be_forbidden() {
        Space::new(&[2, 2]).forbid((0, 0), (1, 1));
    }
}
