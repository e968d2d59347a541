//! The search for the coldest clean block of an LRU, which passes over each dirty block once.
//!
//! A hand stands at the last block that it passed over; those of its class that are colder were
//! dirty or in use then. The next search goes on from there, towards the hot end. A hand does not
//! follow a block that is used. It returns to the cold end when enough blocks have become clean, so
//! that the steps repeated are bounded for each of these.

use floe_policy::{Eviction, Lru, Ranked};

use super::Block;
use crate::geometry::Class;

/// Maximum number of steps that are repeated for a block that has become clean.
pub(super) const STEPS_REPEATED: u64 = 512;

/// Maximum number of steps of a search.
const MOST_STEPS: usize = 4096;

/// The result of a look at a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is of another class.
    Other,
    /// It is dirty or in use.
    Blocked,
    Clean,
}

/// The hands of an LRU, one for each class that was searched for.
#[derive(Debug, Default)]
pub(super) struct Hands(Vec<Hand>);

#[derive(Debug, Clone, Copy, Default)]
struct Hand {
    /// The last block that was passed over; `None` at the cold end.
    at: Option<Block>,
    /// Blocks passed over since the hand was at the cold end, and those of them that were blocked.
    steps: u64,
    blocked: usize,
    /// Blocks that had become clean when the hand was at the cold end.
    cleaned: u64,
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Search {
    pub(super) found: Option<Block>,
    /// Blocks of the class that are colder and were dirty or in use.
    pub(super) blocked: usize,
    /// Set if the search began at the cold end.
    pub(super) anew: bool,
}

impl Hands {
    /// Moves the hands off a block that is used or leaves.
    #[inline]
    pub(super) fn leave(&mut self, block: Block, lru: &Lru) {
        for hand in &mut self.0 {
            if hand.at == Some(block) {
                hand.at = lru.colder(block);
            }
        }
    }

    /// Finds the coldest clean block of a class ahead of its hand; `cleaned` is the number of
    /// blocks that have ever become clean.
    pub(super) fn search(
        &mut self,
        lru: &Lru,
        class: Class,
        cleaned: u64,
        fit: impl Fn(Block) -> Fit,
    ) -> Search {
        let number = usize::from(class.0);
        self.0.resize(self.0.len().max(number + 1), Hand::default());
        let hand = &mut self.0[number];
        let is_round = hand.steps > lru.len() as u64;
        if is_round || hand.steps <= (cleaned - hand.cleaned).saturating_mul(STEPS_REPEATED) {
            *hand = Hand { cleaned, ..Hand::default() };
        }
        let anew = hand.at.is_none();
        let mut next = match hand.at {
            Some(block) => lru.hotter(block),
            None => lru.coldest_first().next(),
        };
        for _ in 0..MOST_STEPS {
            let Some(block) = next else { break };
            let fit = fit(block);
            if fit == Fit::Clean {
                return Search { found: next, blocked: hand.blocked, anew };
            }
            hand.at = Some(block);
            hand.steps += 1;
            hand.blocked += usize::from(fit == Fit::Blocked);
            next = lru.hotter(block);
        }
        Search { found: None, blocked: hand.blocked, anew }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_policy::{Access, Slot};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const CLASSES: u32 = 2;

    /// An LRU with hands, and the state of its blocks.
    struct Blocks {
        lru: Lru,
        hands: Hands,
        is_dirty: Vec<bool>,
        cleaned: u64,
    }

    impl Blocks {
        fn search(&mut self, class: u8) -> Search {
            let fit = |block: Block| match () {
                () if block.0 % CLASSES != u32::from(class) => Fit::Other,
                () if self.is_dirty[block.index()] => Fit::Blocked,
                () => Fit::Clean,
            };
            self.hands.search(&self.lru, Class(class), self.cleaned, fit)
        }

        fn clean(&mut self, block: Block) {
            self.cleaned += u64::from(std::mem::take(&mut self.is_dirty[block.index()]));
        }

        fn use_block(&mut self, block: Block) {
            self.hands.leave(block, &self.lru);
            self.lru.access(block);
        }
    }

    fn blocks(count: u32) -> Blocks {
        let mut lru = Lru::default();
        lru.reserve(count as usize);
        let access = Access::default();
        (0..count).for_each(|block| lru.insert(Slot(block), &access));
        Blocks { lru, hands: Hands::default(), is_dirty: vec![false; count as usize], cleaned: 0 }
    }

    #[test]
    fn a_search_goes_on_behind_the_dirty_blocks_of_the_last() {
        let mut blocks = blocks(8);
        blocks.is_dirty[..6].fill(true);
        let search = |found, blocked, anew| Search { found, blocked, anew };
        assert_eq!(blocks.search(0), search(Some(Slot(6)), 3, true));
        assert_eq!(blocks.search(0), search(Some(Slot(6)), 3, false));
        blocks.is_dirty[6] = true;
        assert_eq!(blocks.search(0), search(None, 4, false));
        assert_eq!(blocks.search(1), search(Some(Slot(7)), 3, true), "a hand of its own");
        blocks.clean(Slot(2));
        assert_eq!(blocks.search(0), search(Some(Slot(2)), 1, true));
    }

    #[test]
    fn a_search_ends_after_a_number_of_steps_and_the_next_goes_on() {
        let mut blocks = blocks(3 * MOST_STEPS as u32);
        blocks.is_dirty[..2 * MOST_STEPS + 2].fill(true);
        let found: Vec<_> = (0..3).map(|_| blocks.search(0).found).collect();
        assert_eq!(found, [None, None, Some(Slot(2 * MOST_STEPS as u32 + 2))]);
    }

    #[test]
    fn a_hand_returns_when_it_has_gone_round() {
        let mut blocks = blocks(STEPS_REPEATED as u32 * 8);
        blocks.is_dirty.fill(true);
        assert_eq!(blocks.search(0).found, None);
        blocks.clean(Slot(4));
        assert_eq!(blocks.search(0).found, None, "one is too few for so many steps");
        (6..12).step_by(2).for_each(|block| blocks.use_block(Slot(block)));
        assert_eq!(blocks.search(0).found, None);
        assert_eq!(blocks.search(0).found, Some(Slot(4)), "as many steps as blocks were made");
    }

    #[test]
    fn every_clean_block_is_found_whatever_is_used_or_leaves() {
        for seed in 0..200 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let count = rng.random_range(1..40);
            let mut blocks = blocks(count);
            for _ in 0..300 {
                let block = Slot(rng.random_range(0..count));
                match rng.random_range(0..4) {
                    0 => blocks.use_block(block),
                    1 => {
                        // it is replaced
                        blocks.hands.leave(block, &blocks.lru);
                        blocks.lru.remove(block);
                        blocks.lru.insert(block, &Access::default());
                        blocks.is_dirty[block.index()] = false;
                    }
                    2 => blocks.is_dirty[block.index()] = true,
                    _ => blocks.clean(block),
                }
                let class = rng.random_range(0..CLASSES);
                let expected = blocks
                    .lru
                    .coldest_first()
                    .find(|block| block.0 % CLASSES == class && !blocks.is_dirty[block.index()]);
                assert_eq!(blocks.search(class as u8).found, expected, "seed {seed}");
            }
        }
    }
}
