//! A plan: the blocks that will be requested.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use redwarfs_format::BlockNo;

/// Blocks in the order of their first use. Takes up to 64 bytes for each.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Each with its needed number of bytes, counted from its start.
    blocks: Vec<(BlockNo, u64)>,
    /// The position of a block in `blocks`.
    places: HashMap<BlockNo, usize>,
    /// Blocks before this place have been requested or begun.
    begun: usize,
}

impl Plan {
    /// `needs` has a block and the end of the needed bytes for each read, in order. The blocks exist.
    /// `None` without any.
    pub(super) fn new(needs: impl IntoIterator<Item = (BlockNo, u64)>) -> Option<Self> {
        let mut plan = Self::default();
        let mut last = None;
        for (block, end) in needs {
            // Most needs are of the same block as the previous one.
            let place = match last {
                Some((same, place)) if same == block => place,
                _ => match plan.places.entry(block) {
                    Entry::Occupied(entry) => *entry.get(),
                    Entry::Vacant(entry) => {
                        plan.blocks.push((block, 0));
                        *entry.insert(plan.blocks.len() - 1)
                    }
                },
            };
            last = Some((block, place));
            if let Some((_, needed)) = plan.blocks.get_mut(place) {
                *needed = end.max(*needed);
            }
        }
        (!plan.blocks.is_empty()).then_some(plan)
    }

    /// The blocks to begin when `block` is requested: up to `most` of the following ones. Each block is
    /// begun once. If a block is requested again that is `missing` from the cache, the following blocks
    /// are begun again.
    pub(super) fn behind(
        &mut self,
        block: BlockNo,
        missing: bool,
        most: usize,
    ) -> &[(BlockNo, u64)] {
        let Some(&place) = self.places.get(&block) else {
            return &[];
        };
        if missing {
            self.begun = self.begun.min(place + 1);
        }
        let from = self.begun.max(place + 1);
        let to = place
            .saturating_add(1)
            .saturating_add(most)
            .min(self.blocks.len());
        self.begun = self.begun.max(to);
        self.blocks.get(from..to).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(needs: &[(u32, u64)]) -> Option<Plan> {
        Plan::new(needs.iter().map(|&(block, end)| (BlockNo(block), end)))
    }

    #[test]
    fn blocks_are_begun_once_in_the_order_of_their_first_use() {
        let needs = [
            (3, 10),
            (3, 20),
            (1, 5),
            (3, 15),
            (7, 1),
            (1, 9),
            (9, 2),
            (2, 2),
        ];
        let mut plan = plan(&needs).unwrap();
        let mut behind = |block, most| -> Vec<(u32, u64)> {
            let found = plan.behind(BlockNo(block), false, most).iter();
            found.map(|(block, end)| (block.0, *end)).collect()
        };
        assert_eq!(behind(5, 2), []);
        assert_eq!(behind(3, 2), [(1, 9), (7, 1)]);
        assert_eq!(behind(3, 2), []);
        assert_eq!(behind(1, 2), [(9, 2)]);
        // An earlier one again.
        assert_eq!(behind(3, 2), []);
        assert_eq!(behind(9, 2), [(2, 2)]);
        assert_eq!(behind(2, 2), []);
    }

    #[test]
    fn what_was_left_out_is_not_begun() {
        let mut plan = plan(&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]).unwrap();
        assert_eq!(plan.behind(BlockNo(2), true, 1), [(BlockNo(3), 1)]);
        assert!(plan.behind(BlockNo(4), true, usize::MAX).is_empty());
    }

    #[test]
    fn who_goes_back_to_what_is_gone_goes_on_from_there() {
        let mut plan = plan(&[(0, 1), (1, 1), (2, 1), (3, 1)]).unwrap();
        assert_eq!(plan.behind(BlockNo(0), true, 3).len(), 3);
        assert!(plan.behind(BlockNo(1), false, 1).is_empty());
        assert_eq!(plan.behind(BlockNo(1), true, 1), [(BlockNo(2), 1)]);
        assert_eq!(plan.behind(BlockNo(2), false, 1), [(BlockNo(3), 1)]);
    }

    #[test]
    fn nothing_is_no_plan() {
        assert!(plan(&[]).is_none());
    }
}
