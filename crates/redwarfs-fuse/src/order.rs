//! The order in which things were used last.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Keys in the order of their last use.
#[derive(Debug)]
pub(crate) struct Order<K> {
    /// When each was used.
    times: HashMap<K, u64>,
    keys: BTreeMap<u64, K>,
    now: u64,
}

impl<K> Default for Order<K> {
    fn default() -> Self {
        Self {
            times: HashMap::new(),
            keys: BTreeMap::new(),
            now: 0,
        }
    }
}

impl<K: Copy + Eq + Hash> Order<K> {
    /// Notes that a key is used, which is then the last one.
    pub(crate) fn touch(&mut self, key: K) {
        if self
            .keys
            .last_key_value()
            .is_some_and(|(_, &last)| last == key)
        {
            return;
        }
        self.now += 1;
        if let Some(before) = self.times.insert(key, self.now) {
            self.keys.remove(&before);
        }
        self.keys.insert(self.now, key);
    }

    pub(crate) fn remove(&mut self, key: K) {
        if let Some(time) = self.times.remove(&key) {
            self.keys.remove(&time);
        }
    }

    /// All keys, the least recently used one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = K> {
        self.keys.values().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_one_is_the_first() {
        let mut order = Order::default();
        for key in [1, 2, 3, 1, 1, 4] {
            order.touch(key);
        }
        assert_eq!(order.iter().collect::<Vec<_>>(), [2, 3, 1, 4]);
        order.remove(3);
        order.remove(7);
        order.touch(2);
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 4, 2]);
        assert_eq!((order.len(), order.times.len()), (3, 3));
    }
}
