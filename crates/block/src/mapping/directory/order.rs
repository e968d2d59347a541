//! The order in which a shard's blocks are evicted: that of any policy, chosen at run time.
//!
//! LRU, the default, is walked from its cold end. A block in use is passed over and keeps its
//! place, and a hit costs one comparison more than in a fixed LRU. Other policies cannot be walked:
//! their victims are [pending](floe_policy::PendingVictims), and cached until another block takes
//! their place. A victim may have to be cleaned first, and may be used again before that is done.

use std::fmt;
use std::str::FromStr;

use floe_policy::registry::{Choice, ChoiceError, Entry};
use floe_policy::{Access, AnyPolicy, Eviction, Lru, POLICIES, PendingVictims, Policy, Ranked};

use super::Block;

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

/// The eviction policy; each shard has an order of its own. The default is LRU.
#[derive(Debug, Clone, PartialEq)]
pub struct Evict(Choice);

/// The reason for which a text is no policy for a block cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvictError {
    /// The text names no registered policy.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The policy cannot be used while serving.
    #[error(
        "policy {name} has to know what is asked for next, and a cache does not; it can have {}",
        known().join(", ")
    )]
    Future {
        /// The policy's name.
        name: &'static str,
    },
}

/// Returns whether a policy needs no knowledge of future requests.
fn serves(entry: &&Entry) -> bool {
    !entry.info.next_uses
}

fn known() -> Vec<&'static str> {
    POLICIES.iter().filter(serves).map(|entry| entry.info.name).collect()
}

impl Evict {
    /// Returns every policy that a block cache can have, with its defaults.
    pub fn all() -> impl Iterator<Item = Self> {
        POLICIES.iter().filter(serves).map(|entry| Self(Choice::of(&entry.info)))
    }

    /// Returns the policy and its parameters.
    pub fn choice(&self) -> &Choice {
        &self.0
    }

    /// Returns the length, in smallest blocks, from which a stream's continuation is fetched ahead;
    /// `None` for most policies.
    pub fn fetches_ahead(&self) -> Option<u64> {
        AnyPolicy::new(&self.0).fetches_ahead()
    }

    /// Returns whether the policy is LRU.
    pub fn is_lru(&self) -> bool {
        self.0.name() == Lru::INFO.name
    }
}

impl Default for Evict {
    fn default() -> Self {
        Self(Choice::of(&Lru::INFO))
    }
}

impl fmt::Display for Evict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Evict {
    type Err = EvictError;

    /// Reads a [`Choice`], such as `s3-fifo:small=0.2`.
    fn from_str(text: &str) -> Result<Self, EvictError> {
        let choice: Choice = text.parse()?;
        let entry = POLICIES.iter().find(|entry| entry.info.name == choice.name());
        match entry.filter(serves) {
            Some(_) => Ok(Self(choice)),
            None => Err(EvictError::Future { name: choice.name() }),
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
