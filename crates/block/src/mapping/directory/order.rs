//! The order in which a shard's blocks are evicted: that of any policy, chosen at run time.
//!
//! LRU, the default, is walked from its cold end. A block in use is passed over and keeps its
//! place, and a hit costs one comparison more than in a fixed LRU. Other policies cannot be walked:
//! their victims are [pending](floe_policy::PendingVictims), and cached until another block takes
//! their place. A victim may have to be cleaned first, and may be used again before that is done.

use floe_policy::{Access, AnyPolicy, Eviction, Lru, PendingVictims, Ranked};

use super::Block;
use crate::evict::Evict;

/// Most victims tried to find one that is not in use.
pub(super) const VICTIMS_TRIED: usize = 64;

/// The order of a shard's blocks.
#[derive(Debug)]
pub(super) enum Order {
    Lru(Lru),
    Chosen(Box<PendingVictims<AnyPolicy>>),
}

impl Order {
    /// Returns an empty order of blocks with at most this total weight.
    pub(super) fn new(evict: &Evict, weight: u64) -> Self {
        if evict.is_lru() {
            return Self::Lru(Lru::default());
        }
        let mut policy = AnyPolicy::new(evict.choice());
        policy.set_capacity(weight);
        Self::Chosen(Box::new(PendingVictims::new(policy)))
    }

    /// Makes room for slots `0..slots`.
    pub(super) fn reserve(&mut self, slots: usize) {
        match self {
            Self::Lru(lru) => lru.reserve(slots),
            Self::Chosen(chosen) => chosen.policy_mut().reserve(slots),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.len(),
            Self::Chosen(chosen) => chosen.len(),
        }
    }

    /// Puts a new block into the order.
    pub(super) fn insert(&mut self, block: Block, access: &Access) {
        match self {
            Self::Lru(lru) => lru.insert(block, access),
            Self::Chosen(chosen) => chosen.policy_mut().insert(block, access),
        }
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, block: Block) {
        match self {
            Self::Lru(lru) => lru.remove(block),
            Self::Chosen(chosen) => chosen.remove(block),
        }
    }

    /// Notes a use of a block.
    #[inline]
    pub(super) fn touch(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        match self {
            Self::Lru(lru) => lru.access(block),
            Self::Chosen(chosen) => {
                if chosen.forgo(block) {
                    chosen.policy_mut().insert(block, &access(block));
                } else {
                    chosen.policy_mut().access(block);
                }
            }
        }
    }

    /// Moves a block that cannot be evicted now behind the others.
    pub(super) fn spare(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        self.remove(block);
        self.insert(block, &access(block));
    }

    /// Returns the next victim that is not in use, for `incoming` where that is known.
    pub(super) fn coldest(
        &mut self,
        incoming: Option<&Access>,
        in_use: impl Fn(Block) -> bool,
    ) -> Option<Block> {
        match self {
            Self::Lru(lru) => lru.coldest_first().take(VICTIMS_TRIED).find(|&block| !in_use(block)),
            Self::Chosen(chosen) => chosen.next(incoming, VICTIMS_TRIED, in_use),
        }
    }

    /// Returns all blocks, the next victim first.
    pub(super) fn by_heat(&self) -> Vec<Block> {
        match self {
            Self::Lru(lru) => lru.coldest_first().collect(),
            Self::Chosen(chosen) => chosen.coldest_first(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.memory_bytes(),
            Self::Chosen(chosen) => size_of_val(&**chosen) + chosen.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_policy::Slot;

    const BLOCKS: u32 = 100;

    fn access(block: Block) -> Access {
        Access::new(u64::from(block.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns an order of as many blocks as fit, the even ones used again.
    fn order(policy: &Evict) -> Order {
        let mut order = Order::new(policy, u64::from(BLOCKS));
        order.reserve(BLOCKS as usize);
        (0..BLOCKS).map(Slot).for_each(|block| order.insert(block, &access(block)));
        (0..BLOCKS).step_by(2).map(Slot).for_each(|block| order.touch(block, access));
        order
    }

    #[test]
    fn who_is_in_use_when_it_is_to_leave_keeps_its_turn() {
        for policy in Evict::all() {
            let mut order = order(&policy);
            let first = order.coldest(None, |_| false).unwrap();
            let second = order.coldest(None, |block| block == first).unwrap();
            let third = order.coldest(None, |block| block == first || block == second).unwrap();
            assert!(first != second && first != third && second != third, "{policy}");
            assert_eq!(order.coldest(None, |block| block == first), Some(second), "{policy}");
            assert_eq!(order.coldest(None, |_| false), Some(first), "{policy}");
            assert_eq!(order.len(), BLOCKS as usize, "{policy}");
            let last = order.by_heat();
            assert_eq!(last[..3], [first, second, third], "{policy}");
        }
    }

    #[test]
    fn who_is_used_while_it_is_to_leave_stays() {
        for policy in Evict::all() {
            let mut order = order(&policy);
            let first = order.coldest(None, |_| false).unwrap();
            let second = order.coldest(None, |block| block == first).unwrap();
            order.touch(first, access);
            assert_eq!(order.coldest(None, |_| false), Some(second), "{policy}");
            order.remove(second);
            let mut left = vec![second];
            while let Some(block) = order.coldest(None, |_| false) {
                order.remove(block);
                left.push(block);
            }
            assert!(left.contains(&first), "{policy}");
            left.sort_unstable();
            assert_eq!(
                left,
                (0..BLOCKS).map(Slot).collect::<Vec<_>>(),
                "{policy}: each leaves once"
            );
        }
    }

    #[test]
    fn where_all_are_in_use_nobody_leaves() {
        for policy in Evict::all() {
            let mut order = order(&policy);
            assert_eq!(order.coldest(None, |_| true), None, "{policy}");
            assert_eq!(order.len(), BLOCKS as usize, "{policy}");
            assert!(order.coldest(None, |_| false).is_some(), "{policy}");
        }
    }
}
