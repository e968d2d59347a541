//! The eviction policy of a block cache, the order in which it evicts a shard's blocks, and lists
//! of the blocks and groups of each volume in the order of their use.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use floe_policy::registry::{Choice, ChoiceError, Entry};
use floe_policy::{
    Access, Adaptation, AnyPolicy, Eviction, Lru, POLICIES, PendingVictims, Policy, Ranked, Slot,
};

use super::hands::{Fit, Hands, Search};
use super::{Block, NOBODY, reserve_by_share};
use crate::geometry::{Class, VolumeId};

/// Maximum number of victims tried to find one that is not in use.
pub(super) const VICTIMS_TRIED: usize = 64;

/// The order of eviction of a shard's blocks: that of a policy, and *parked* blocks.
///
/// A parked block is one that the policy has evicted and that stays, because other volumes may not
/// evict it. It is out of the policy's order until it is used. Then it is inserted again, as a key
/// that returns: so a policy with ghosts learns from it what it would learn from an eviction.
///
/// Filler blocks that only one volume may replace are *set aside*: they are among the parked ones.
#[derive(Debug)]
pub(super) struct EvictionOrder {
    order: PolicyOrder,
    parked: BTreeSet<Block>,
    /// The first parked block to be checked for release; `None` once all have been.
    unchecked: Option<Block>,
}

impl EvictionOrder {
    pub(super) fn new(evict: &Evict, weight: u64) -> Self {
        Self { order: PolicyOrder::new(evict, weight), parked: BTreeSet::new(), unchecked: None }
    }

    pub(super) fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
    }

    /// Changes the number of smallest blocks for which the policy sizes its parts and ghosts.
    pub(super) fn set_capacity(&mut self, weight: u64) {
        if let PolicyOrder::Chosen(chosen) = &mut self.order {
            chosen.policy_mut().set_capacity(weight);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + self.parked.len()
    }

    pub(super) fn insert(&mut self, block: Block, access: &Access) {
        self.order.insert(block, access);
    }

    pub(super) fn remove(&mut self, block: Block) {
        if !self.unpark(block) {
            self.order.remove(block);
        }
    }

    /// Promotes a block that is not parked.
    #[inline]
    pub(super) fn touch(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        debug_assert!(!self.is_parked(block), "it is released instead");
        self.order.touch(block, access);
    }

    /// Ends the parking of a block, as a key that returns; returns false if it was not parked.
    pub(super) fn release(&mut self, block: Block, access: impl Fn(Block) -> Access) -> bool {
        let was_parked = self.unpark(block);
        if was_parked {
            self.order.insert(block, &access(block));
        }
        was_parked
    }

    /// Moves a block that cannot be evicted now behind the others.
    pub(super) fn spare(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        self.remove(block);
        self.insert(block, &access(block));
    }

    /// Returns the next victim of the policy that is not in use; `incoming` is the new block, where
    /// that is known.
    pub(super) fn coldest(
        &mut self,
        incoming: Option<&Access>,
        in_use: impl Fn(Block) -> bool,
    ) -> Option<Block> {
        self.order.coldest(incoming, in_use)
    }

    /// Finds the coldest block of a class that is neither dirty nor in use; `cleaned` is the number
    /// of blocks that have ever become clean.
    pub(super) fn coldest_clean(
        &mut self,
        incoming: &Access,
        class: Class,
        cleaned: u64,
        fit: impl Fn(Block) -> Fit,
    ) -> Search {
        self.order.coldest_clean(incoming, class, cleaned, fit)
    }

    /// Returns whether the policy is LRU.
    pub(super) fn is_lru(&self) -> bool {
        matches!(self.order, PolicyOrder::Lru(..))
    }

    /// Takes the victim that [`coldest`](Self::coldest) has just named out of the policy's order,
    /// as an eviction does.
    pub(super) fn park(&mut self, victim: Block) {
        self.order.take_victim(victim);
        self.parked.insert(victim);
    }

    /// Takes a block out of the policy's order that is no victim, as a removal does.
    pub(super) fn set_aside(&mut self, block: Block) {
        if self.parked.insert(block) {
            self.order.remove(block);
        }
    }

    /// Has all parked blocks checked for release.
    pub(super) fn check_parked(&mut self) {
        self.unchecked = Some(Slot(0));
    }

    /// Returns some parked blocks that are to be checked for release, until all have been.
    pub(super) fn next_to_check(&mut self) -> Option<Vec<Block>> {
        let rest = self.parked.range(self.unchecked?..);
        let blocks: Vec<Block> = rest.take(CHECKED_AT_ONCE).copied().collect();
        self.unchecked = blocks.last().map(|last| Slot(last.0 + 1));
        Some(blocks)
    }

    /// Takes a block out of the parked ones; returns false if it was not parked.
    fn unpark(&mut self, block: Block) -> bool {
        !self.parked.is_empty() && self.parked.remove(&block)
    }

    pub(super) fn is_parked(&self, block: Block) -> bool {
        self.parked.contains(&block)
    }

    /// Returns all parked blocks.
    pub(super) fn parked(&self) -> impl Iterator<Item = Block> + '_ {
        self.parked.iter().copied()
    }

    /// Returns all blocks, the next victim first; parked blocks are before all others.
    pub(super) fn by_heat(&self) -> Vec<Block> {
        self.parked().chain(self.order.by_heat()).collect()
    }

    pub(super) fn adaptation(&self) -> Option<Adaptation> {
        self.order.adaptation()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes() + self.parked.len() * PARKED_BYTES
    }
}

/// Maximum number of parked blocks checked for release at once.
const CHECKED_AT_ONCE: usize = 256;

/// Estimated memory of a parked block: an entry of a B-tree, with nodes half to wholly full.
const PARKED_BYTES: usize = size_of::<Block>() * 3 / 2;

/// The order of a policy: LRU or another one.
#[derive(Debug)]
enum PolicyOrder {
    Lru(Lru, Hands),
    Chosen(Box<PendingVictims<AnyPolicy>>),
}

impl PolicyOrder {
    fn new(evict: &Evict, weight: u64) -> Self {
        if evict.is_lru() {
            return Self::Lru(Lru::default(), Hands::default());
        }
        let mut policy = AnyPolicy::new(evict.choice());
        policy.set_capacity(weight);
        Self::Chosen(Box::new(PendingVictims::new(policy)))
    }

    fn reserve(&mut self, slots: usize) {
        match self {
            Self::Lru(lru, _) => lru.reserve(slots),
            Self::Chosen(chosen) => chosen.policy_mut().reserve(slots),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Lru(lru, _) => lru.len(),
            Self::Chosen(chosen) => chosen.len(),
        }
    }

    fn insert(&mut self, block: Block, access: &Access) {
        match self {
            Self::Lru(lru, _) => lru.insert(block, access),
            Self::Chosen(chosen) => chosen.policy_mut().insert(block, access),
        }
    }

    fn remove(&mut self, block: Block) {
        match self {
            Self::Lru(lru, hands) => {
                hands.leave(block, lru);
                lru.remove(block);
            }
            Self::Chosen(chosen) => chosen.remove(block),
        }
    }

    #[inline]
    fn touch(&mut self, block: Block, access: impl Fn(Block) -> Access) {
        match self {
            Self::Lru(lru, hands) => {
                hands.leave(block, lru);
                lru.access(block);
            }
            Self::Chosen(chosen) => {
                if chosen.forgo(block) {
                    chosen.policy_mut().insert(block, &access(block));
                } else {
                    chosen.policy_mut().access(block);
                }
            }
        }
    }

    /// Takes a victim that [`coldest`](Self::coldest) has named out of the order. The policy has
    /// evicted it already, unless it is LRU.
    fn take_victim(&mut self, victim: Block) {
        match self {
            Self::Lru(..) => self.remove(victim),
            Self::Chosen(chosen) => {
                let was_named = chosen.forgo(victim);
                debug_assert!(was_named, "a victim of the policy is pending");
            }
        }
    }

    /// Returns the next victim that is not in use; `incoming` is the new block, where that is
    /// known.
    fn coldest(
        &mut self,
        incoming: Option<&Access>,
        in_use: impl Fn(Block) -> bool,
    ) -> Option<Block> {
        match self {
            Self::Lru(lru, _) => {
                lru.coldest_first().take(VICTIMS_TRIED).find(|&block| !in_use(block))
            }
            Self::Chosen(chosen) => chosen.next(incoming, VICTIMS_TRIED, in_use),
        }
    }

    /// Finds the coldest block that fits as a victim.
    fn coldest_clean(
        &mut self,
        incoming: &Access,
        class: Class,
        cleaned: u64,
        fit: impl Fn(Block) -> Fit,
    ) -> Search {
        match self {
            Self::Lru(lru, hands) => hands.search(lru, class, cleaned, fit),
            Self::Chosen(chosen) => {
                let blocked = Cell::new(0);
                let is_unfit = |block| {
                    let fit = fit(block);
                    blocked.update(|blocked| blocked + usize::from(fit == Fit::Blocked));
                    fit != Fit::Clean
                };
                let found = chosen.next(Some(incoming), VICTIMS_TRIED, is_unfit);
                Search { found, blocked: blocked.get(), anew: true }
            }
        }
    }

    /// Returns all blocks, the next victim first.
    fn by_heat(&self) -> Vec<Block> {
        match self {
            Self::Lru(lru, _) => lru.coldest_first().collect(),
            Self::Chosen(chosen) => chosen.coldest_first(),
        }
    }

    fn adaptation(&self) -> Option<Adaptation> {
        match self {
            Self::Lru(..) => None,
            Self::Chosen(chosen) => chosen.policy().adaptation(),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Lru(lru, _) => lru.memory_bytes(),
            Self::Chosen(chosen) => size_of_val(&**chosen) + chosen.memory_bytes(),
        }
    }
}

/// The eviction policy; each shard has an order of its own. The default is LRU.
#[derive(Debug, Clone, PartialEq)]
pub struct Evict(Choice);

/// The reason for which a text names no usable eviction policy of a block cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvictError {
    /// The text names no registered policy.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The policy needs knowledge of future requests, so a cache cannot use it.
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

    /// Returns the length of a stream, in smallest blocks, from which its continuation is fetched
    /// ahead. `None` for most policies, which fetch nothing ahead.
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

/// The number of a list. The first has the filler blocks in common groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List(usize);

impl List {
    /// Returns the list of what a volume has; for [`NOBODY`] that of filler blocks in common
    /// groups.
    pub(super) fn of(volume: VolumeId) -> Self {
        Self(if volume == NOBODY { 0 } else { 2 * usize::from(volume.0) + 1 })
    }

    /// Returns the list of filler blocks in the groups of an owner, [`NOBODY`] for common ones.
    pub(super) fn fillers_of(owner: VolumeId) -> Self {
        Self(if owner == NOBODY { 0 } else { 2 * usize::from(owner.0) + 2 })
    }
}

/// Marks the end of a list.
const END: u32 = u32::MAX;

/// Doubly linked lists of slots, from cold to hot. A slot is in one at most.
#[derive(Debug, Default)]
pub(super) struct VolumeLists {
    links: Vec<VolumeLink>,
    /// The two ends of each list: `hotter` is the coldest slot, and `colder` the hottest.
    ends: Vec<VolumeLink>,
}

/// The neighbours of a slot.
#[derive(Debug, Clone, Copy)]
struct VolumeLink {
    colder: u32,
    hotter: u32,
}

impl VolumeLink {
    const NONE: Self = Self { colder: END, hotter: END };
}

impl VolumeLists {
    /// Allocates for slots `0..slots`.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.links.reserve_exact(slots.saturating_sub(self.links.len()));
    }

    /// Adds a slot, which is in no list, at the hot end of a list.
    pub(super) fn push(&mut self, block: Block, list: List) {
        self.make_room(block, list);
        let hottest = self.ends[list.0].colder;
        self.links[block.index()] = VolumeLink { colder: hottest, hotter: END };
        self.link_of(list.0, hottest).hotter = block.0;
        self.ends[list.0].colder = block.0;
    }

    /// Adds a slot, which is in no list, at the cold end of a list.
    pub(super) fn push_cold(&mut self, block: Block, list: List) {
        self.make_room(block, list);
        let coldest = self.ends[list.0].hotter;
        self.links[block.index()] = VolumeLink { colder: END, hotter: coldest };
        self.link_of(list.0, coldest).colder = block.0;
        self.ends[list.0].hotter = block.0;
    }

    fn make_room(&mut self, block: Block, List(list): List) {
        let slot = block.index();
        if self.links.len() <= slot {
            reserve_by_share(&mut self.links, slot + 1);
            self.links.resize(slot + 1, VolumeLink::NONE);
        }
        if self.ends.len() <= list {
            self.ends.resize(list + 1, VolumeLink::NONE);
        }
    }

    /// Removes a slot from its list.
    pub(super) fn remove(&mut self, block: Block, List(list): List) {
        let VolumeLink { colder, hotter } = self.links[block.index()];
        self.link_of(list, colder).hotter = hotter;
        self.link_of(list, hotter).colder = colder;
        self.links[block.index()] = VolumeLink::NONE;
    }

    /// Returns the link of a slot, or the ends of a list for [`END`].
    fn link_of(&mut self, list: usize, slot: u32) -> &mut VolumeLink {
        match slot {
            END => &mut self.ends[list],
            slot => &mut self.links[slot as usize],
        }
    }

    pub(super) fn coldest_first(&self, list: List) -> impl Iterator<Item = Block> + '_ {
        let ends = self.ends.get(list.0);
        let first = ends.map_or(END, |ends| ends.hotter);
        let slot = |slot: u32| (slot != END).then_some(Slot(slot));
        std::iter::successors(slot(first), move |block| slot(self.links[block.index()].hotter))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.links.capacity() + self.ends.capacity()) * size_of::<VolumeLink>()
    }
}

#[cfg(test)]
mod order_tests {
    use super::*;

    const BLOCKS: u32 = 100;

    fn access(block: Block) -> Access {
        Access::new(u64::from(block.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns an order with as many blocks as fit, of which the even ones were used again.
    fn order(policy: &Evict) -> EvictionOrder {
        let mut order = EvictionOrder::new(policy, u64::from(BLOCKS));
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

#[cfg(test)]
mod lists_tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The lists behave as vectors from which a slot is removed wherever it is.
        #[test]
        fn lists_of_volumes_are_vectors(
            steps in proptest::collection::vec((0u32..24, 0u16..3, 0..3u8), 0..200),
        ) {
            let mut lists = VolumeLists::default();
            let mut model: Vec<Vec<Block>> = vec![Vec::new(); 3];
            for (slot, volume, push) in steps {
                let block = Slot(slot);
                let held = model.iter().position(|list| list.contains(&block));
                if let Some(held) = held {
                    lists.remove(block, List::of(VolumeId(held as u16)));
                    model[held].retain(|other| *other != block);
                }
                let list = List::of(VolumeId(volume));
                match push {
                    0 => {}
                    1 => {
                        lists.push_cold(block, list);
                        model[usize::from(volume)].insert(0, block);
                    }
                    _ => {
                        lists.push(block, list);
                        model[usize::from(volume)].push(block);
                    }
                }
                for (volume, blocks) in (0..).map(VolumeId).zip(&model) {
                    let listed: Vec<_> = lists.coldest_first(List::of(volume)).collect();
                    prop_assert_eq!(&listed, blocks);
                    prop_assert_eq!(lists.coldest_first(List::fillers_of(volume)).count(), 0);
                }
            }
        }
    }
}
