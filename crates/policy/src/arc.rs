//! ARC: two LRU lists, one for entries seen once and one for entries seen again, whose sizes adapt
//! by ghost hits.
//!
//! T1 holds entries seen once lately, T2 entries seen at least twice; B1 and B2 are their ghost
//! lists. A miss remembered in B1 shows that T1 was too small, one in B2 that T2 was, and the
//! target p for the size of T1 moves accordingly (Megiddo and Modha, "ARC: A Self-Tuning, Low
//! Overhead Replacement Cache", FAST '03, figure 4).
//!
//! Sizes are weights here; with weights of 1 this is the paper's algorithm to the letter.
//!
//! Do not use ARC with many cores: every hit moves its entry to the head of T2.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, AlwaysPromote, Lists, Parameters, Policy, PolicyInfo, Slot};

/// T1 and B1, the lists of entries seen once.
const ONCE: usize = 0;
/// T2 and B2, the lists of entries seen again.
const AGAIN: usize = 1;

/// ARC (`arc`): a recency and a frequency list, whose sizes adapt by ghost hits. LRU-like.
#[derive(Debug, Clone)]
pub struct Arc {
    cached: Lists<2>,
    ghosts: GhostQueues<2>,
    tags: Vec<Tag>,
    /// The paper's p: the target size of T1, in weight.
    once_target: f64,
    /// Key for which room is being made, and the ghost list that remembered it, if any.
    coming: Option<(Tag, Option<usize>)>,
}

impl Arc {
    /// Looks up a missed key in the ghost lists, removes it there, and adapts p. Cases II and III
    /// of the paper.
    #[inline]
    fn recall(&mut self, access: &Access) -> Option<usize> {
        let tag = Tag::of(access.hash);
        if let Some((known, seen)) = self.coming
            && known == tag
        {
            return seen;
        }
        let (b1, b2) = (self.ghosts.size(ONCE) as f64, self.ghosts.size(AGAIN) as f64);
        let seen = self.ghosts.take(tag);
        if let Some(list) = seen {
            let step = f64::from(access.weight);
            self.once_target = if list == ONCE {
                (self.once_target + step * (b2 / b1).max(1.0)).min(self.cached.capacity() as f64)
            } else {
                (self.once_target - step * (b1 / b2).max(1.0)).max(0.0)
            };
            debug_assert!(self.once_target >= 0.0, "p is a size");
        }
        seen
    }

    /// Forgets ghosts of B2 until all four lists together have room for a new key. Case IV of the
    /// paper, after L1 has room.
    #[inline]
    fn shrink_b2(&mut self, capacity: u64) {
        let (t1, t2, b1) =
            (self.cached.size(ONCE), self.cached.size(AGAIN), self.ghosts.size(ONCE));
        self.ghosts.shrink(AGAIN, (2 * capacity).saturating_sub(t1 + t2 + b1 + 1));
        // Entries that exceed the bounds by themselves, after the capacity was lowered, have no
        // ghosts beside them.
        debug_assert!(b1 == 0 || t1 + b1 < capacity, "L1 keeps to c");
        let b2 = self.ghosts.size(AGAIN);
        debug_assert!(b2 == 0 || t1 + t2 + b1 + b2 < 2 * capacity, "all lists keep to 2c");
    }

    /// Evicts the tail of T1 or T2 into its ghost list. REPLACE of the paper.
    #[inline]
    fn replace(&mut self, seen: Option<usize>) -> Option<Slot> {
        let once = self.cached.size(ONCE) as f64;
        let once_is_due =
            once > self.once_target || (seen == Some(AGAIN) && once == self.once_target);
        let list = if (once_is_due && once > 0.0) || self.cached.tail(AGAIN).is_none() {
            ONCE
        } else {
            AGAIN
        };
        let slot = self.cached.pop_tail(list)?;
        self.ghosts.push(list, self.tags[slot.index()], self.cached.weight(slot), ());
        Some(slot)
    }
}

impl Policy for Arc {
    const INFO: PolicyInfo = PolicyInfo::new(
        "arc",
        "recency and frequency lists, sized by hits on their ghosts",
        "Megiddo & Modha, FAST '03",
    );

    fn new(_: &Parameters) -> Self {
        Self {
            cached: Lists::named(["T1", "T2"]),
            ghosts: GhostQueues::named(["B1", "B2"]),
            tags: Vec::new(),
            once_target: 0.0,
            coming: None,
        }
    }
}

impl Listed for Arc {
    type Marks = AlwaysPromote;
    type Lists = Lists<2>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.cached
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.cached
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    /// Moves an entry that was hit to the head of T2. Case I of the paper.
    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.cached.move_to_head(AGAIN, slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let seen = self.recall(access);
        self.coming = None;
        self.tags[slot.index()] = Tag::of(access.hash);
        self.cached.set_weight(slot, access.weight);
        self.cached.push_head(if seen.is_some() { AGAIN } else { ONCE }, slot);
    }

    #[inline]
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let seen = incoming.and_then(|access| {
            let seen = self.recall(access);
            self.coming = Some((Tag::of(access.hash), seen));
            seen
        });
        if seen.is_none() {
            // Case IV: a new key. L1 = T1 + B1 keeps to c, all four lists together to 2c.
            let capacity = self.cached.capacity();
            let (t1, b1) = (self.cached.size(ONCE), self.ghosts.size(ONCE));
            if t1 + b1 >= capacity {
                self.ghosts.shrink(ONCE, capacity.saturating_sub(t1 + 1));
                if t1 >= capacity
                    && let Some(slot) = self.cached.pop_tail(ONCE)
                {
                    self.shrink_b2(capacity);
                    return Some(slot);
                }
            }
            self.shrink_b2(capacity);
        }
        self.replace(seen)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [AGAIN, ONCE]
    }

    fn resized(&mut self) {
        let slots = self.cached.slots();
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve(slots + 1);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.ghosts.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{AGAIN, Arc, ONCE};
    use crate::{Access, Eviction, Slot, mix};

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Checks A.1 to A.5 of the paper's section III.A, and the range of p. They hold while
        /// entries weigh 1 and leave only when room is needed.
        #[test]
        fn the_lists_keep_to_the_papers_bounds(
            keys in proptest::collection::vec(prop_oneof![0..6u64, 0..24u64, 0..60u64], 0..400),
            size in 1..16usize,
        ) {
            let mut order = Arc::default();
            order.reserve(size);
            let mut slots: HashMap<u64, Slot> = HashMap::new();
            for key in keys {
                let access = Access::new(mix(key));
                if let Some(&slot) = slots.get(&key) {
                    order.access(slot);
                } else {
                    let slot = if slots.len() < size {
                        Slot(slots.len() as u32)
                    } else {
                        order.evict(Some(&access)).expect("a full cache has a victim")
                    };
                    slots.retain(|_, &mut used| used != slot);
                    order.insert(slot, &access);
                    slots.insert(key, slot);
                }
                let c = size as u64;
                let [t1, t2] = [ONCE, AGAIN].map(|list| order.cached.size(list));
                let [b1, b2] = [ONCE, AGAIN].map(|list| order.ghosts.size(list));
                prop_assert!(t1 + t2 <= c);
                prop_assert!(t1 + b1 <= c && t2 + b2 <= 2 * c && t1 + t2 + b1 + b2 <= 2 * c);
                prop_assert!(t1 + t2 == c || b1 + b2 == 0);
                prop_assert!((0.0..=c as f64).contains(&order.once_target));
            }
        }

        /// Removals and a lower capacity break the bounds; the next new keys restore them.
        #[test]
        fn the_bounds_come_back_after_removals(
            steps in proptest::collection::vec((0..40u64, 0..8u8), 0..300),
            size in 2..16usize,
        ) {
            let mut order = Arc::default();
            order.reserve(size);
            let mut slots: HashMap<u64, Slot> = HashMap::new();
            let mut free: Vec<Slot> = (0..size as u32).map(Slot).collect();
            for (key, what) in steps {
                let access = Access::new(mix(key));
                match (slots.get(&key).copied(), what) {
                    (Some(slot), 0) => {
                        order.remove(slot);
                        slots.remove(&key);
                        free.push(slot);
                    }
                    (Some(slot), _) => order.access(slot),
                    (None, 1) => order.set_capacity((size as u64 / 2).max(1)),
                    (None, 2) => order.set_capacity(size as u64),
                    (None, _) => {
                        // Asserts has_room_for_new_key.
                        if let Some(victim) = order.evict(Some(&access)) {
                            slots.retain(|_, &mut used| used != victim);
                            free.push(victim);
                        }
                        let slot = free.pop().expect("an eviction left a free slot");
                        order.insert(slot, &access);
                        slots.insert(key, slot);
                    }
                }
            }
        }
    }
}
