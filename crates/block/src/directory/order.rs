//! The order in which a shard's blocks leave: that of any policy, chosen at run time.
//!
//! LRU, the default, is walked from its cold end, so that a block in use is passed over and keeps its place, and a hit costs a
//! comparison more than if there were nothing else. A policy that is no list cannot be walked, and what it evicts it may have drawn
//! or sent to its ghosts; but a block that is to leave may have to be cleaned first, and may be used again before that is
//! done. So whom such a policy evicts is *due*: out of its order and still cached, until somebody takes its place. If it is used
//! meanwhile, or found in use, it is inserted again, as one that has come back.
//!
//! Invariant: a block that is due is not in the policy's order; every other is.

use floe_policy::{Access, AnyPolicy, Eviction, Lru, Ranked};

use super::Block;
use crate::evict::Evict;

/// How many of those that are to leave are looked at for one that is not in use.
pub(super) const VICTIMS_TRIED: usize = 64;

/// The order of a shard's blocks.
#[derive(Debug)]
pub(super) enum Order {
    Lru(Lru),
    Chosen(Box<Chosen>),
}

/// An order by a policy.
#[derive(Debug)]
pub(super) struct Chosen {
    policy: AnyPolicy,
    due: Option<Block>,
}

impl Order {
    /// An empty order of blocks that together weigh so much at most.
    pub(super) fn new(evict: &Evict, weight: u64) -> Self {
        if evict.is_lru() {
            return Self::Lru(Lru::default());
        }
        let mut policy = AnyPolicy::new(evict.choice());
        policy.set_capacity(weight);
        Self::Chosen(Box::new(Chosen { policy, due: None }))
    }

    /// Makes room for slots `0..slots`.
    pub(super) fn reserve(&mut self, slots: usize) {
        match self {
            Self::Lru(lru) => lru.reserve(slots),
            Self::Chosen(chosen) => chosen.policy.reserve(slots),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.len(),
            Self::Chosen(chosen) => chosen.policy.len() + usize::from(chosen.due.is_some()),
        }
    }

    /// Puts a new block into the order.
    pub(super) fn insert(&mut self, block: Block, access: &Access) {
        match self {
            Self::Lru(lru) => lru.insert(block, access),
            Self::Chosen(chosen) => chosen.policy.insert(block, access),
        }
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, block: Block) {
        match self {
            Self::Lru(lru) => lru.remove(block),
            Self::Chosen(chosen) if chosen.due == Some(block) => chosen.due = None,
            Self::Chosen(chosen) => chosen.policy.remove(block),
        }
    }

    /// A block is used.
    #[inline]
    pub(super) fn touch(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        match self {
            Self::Lru(lru) => lru.access(block),
            Self::Chosen(chosen) => chosen.touch(block, access),
        }
    }

    /// A block that cannot leave now, though it may be the next: others come before it.
    pub(super) fn spare(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        self.remove(block);
        self.insert(block, &access(block));
    }

    /// Who is to leave for `incoming`, where that is known, of those that are not in use.
    pub(super) fn coldest(
        &mut self,
        incoming: Option<&Access>,
        in_use: impl Fn(Block) -> bool,
        access: impl Fn(Block) -> Access,
    ) -> Option<Block> {
        match self {
            Self::Lru(lru) => lru.coldest_first().take(VICTIMS_TRIED).find(|&block| !in_use(block)),
            Self::Chosen(chosen) => (0..VICTIMS_TRIED).find_map(|_| {
                let due = chosen.due(incoming)?;
                let free = !in_use(due);
                if !free {
                    chosen.touch(due, &access);
                }
                free.then_some(due)
            }),
        }
    }

    /// All blocks, the next to leave first.
    pub(super) fn by_heat(&self) -> Vec<Block> {
        match self {
            Self::Lru(lru) => lru.coldest_first().collect(),
            Self::Chosen(chosen) => {
                let (mut blocks, mut at) = (Vec::with_capacity(self.len()), floe_policy::Cursor::START);
                while at != floe_policy::Cursor::END {
                    at = chosen.policy.rank(at, &mut blocks);
                }
                blocks.extend(chosen.due);
                blocks.reverse();
                blocks
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.memory_bytes(),
            Self::Chosen(chosen) => size_of::<Chosen>() + chosen.policy.memory_bytes(),
        }
    }
}

impl Chosen {
    #[inline]
    fn touch(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        if self.due == Some(block) {
            self.due = None;
            self.policy.insert(block, &access(block));
        } else {
            self.policy.access(block);
        }
    }

    fn due(&mut self, incoming: Option<&Access>) -> Option<Block> {
        if self.due.is_none() {
            self.due = self.policy.evict(incoming);
        }
        self.due
    }
}
