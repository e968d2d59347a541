//! An owner of slots: inserts, evicts and assigns slots for any [`Eviction`].
//!
//! The simulator, the counting of operations, the simulated machine of freezing and the tests of
//! policies all run this code, so they cannot drift apart. An owner keeps four things: an index
//! from keys to slots, which the caller supplies; the key and the weight of each slot; the vacant
//! slots; and the pending victims, which were named and still hold their slots.
//!
//! The shard of the cache in memory does not use it. Its entries share a budget with other shards,
//! may be pinned or frozen, and change under a lock while other threads read. So each step differs,
//! and a hit or an insertion would pay for the general form. A test drives both with one stream of
//! requests and compares every victim.
//!
//! Invariants: a slot is vacant, or it has a key and the index maps that key to it; the weights of
//! the held slots add up to `held`, which never exceeds the capacity.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use crate::admission::{Admission, Verdict, Victim};
use crate::{Access, Cursor, Eviction, Slot};

/// Maps keys to slots.
pub trait SlotIndex {
    /// The key of an entry.
    type Key: Copy;

    /// Returns the maximum number of keys that can ever be held at once; an owner reserves no more
    /// slots.
    fn keys_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the slot of a key; `None` if the key is not held.
    fn find(&self, key: Self::Key) -> Option<Slot>;

    /// Maps a key to a slot.
    fn put(&mut self, key: Self::Key, slot: Slot);

    /// Removes a key.
    fn remove(&mut self, key: Self::Key);
}

impl<K: Copy + Eq + Hash, S: BuildHasher> SlotIndex for HashMap<K, Slot, S> {
    type Key = K;

    fn find(&self, key: K) -> Option<Slot> {
        self.get(&key).copied()
    }

    fn put(&mut self, key: K, slot: Slot) {
        self.insert(key, slot);
    }

    fn remove(&mut self, key: K) {
        HashMap::remove(self, &key);
    }
}

/// Index of keys that are dense small numbers, as an array.
#[derive(Debug, Clone)]
pub struct DenseIndex(Vec<u32>);

impl DenseIndex {
    const NONE: u32 = u32::MAX;

    /// Creates an index of keys `0..keys`, none of which is held.
    pub fn new(keys: usize) -> Self {
        Self(vec![Self::NONE; keys])
    }
}

impl SlotIndex for DenseIndex {
    type Key = u32;

    fn keys_max(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn find(&self, key: u32) -> Option<Slot> {
        let slot = self.0[key as usize];
        (slot != Self::NONE).then_some(Slot(slot))
    }

    #[inline]
    fn put(&mut self, key: u32, slot: Slot) {
        self.0[key as usize] = slot.0;
    }

    #[inline]
    fn remove(&mut self, key: u32) {
        self.0[key as usize] = Self::NONE;
    }
}

/// The weights of held slots.
pub trait SlotWeights: Default {
    /// Returns the weight of a slot.
    fn of(&self, slot: Slot) -> u64;

    /// Stores the weight of a slot.
    fn set(&mut self, slot: Slot, weight: u64);
}

/// Weights for caches in which every entry weighs 1; nothing is stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnitWeights;

impl SlotWeights for UnitWeights {
    #[inline]
    fn of(&self, _: Slot) -> u64 {
        1
    }

    #[inline]
    fn set(&mut self, _: Slot, weight: u64) {
        debug_assert_eq!(weight, 1, "entries of an owner that counts weigh 1");
    }
}

impl SlotWeights for Vec<u64> {
    #[inline]
    fn of(&self, slot: Slot) -> u64 {
        self[slot.index()]
    }

    fn set(&mut self, slot: Slot, weight: u64) {
        if slot.index() == self.len() {
            self.push(weight);
        } else {
            self[slot.index()] = weight;
        }
    }
}

/// Owner of a policy's slots: a cache of keys without values.
#[derive(Debug, Clone)]
pub struct SlotOwner<P, I: SlotIndex, W = UnitWeights> {
    order: PendingVictims<P>,
    index: I,
    /// Latest key of each slot.
    keys: Vec<I::Key>,
    weights: W,
    vacant: Vec<Slot>,
    /// Slots reserved in the policy.
    reserved: usize,
    held: u64,
    capacity: u64,
}

impl<P: Eviction, I: SlotIndex, W: SlotWeights> SlotOwner<P, I, W> {
    /// Creates an empty owner with a `capacity` in weight. The policy has room for `slots` at
    /// first, and for twice as many whenever more are needed.
    pub fn new(mut policy: P, index: I, capacity: u64, slots: usize) -> Self {
        policy.reserve(slots);
        policy.set_capacity(capacity);
        Self {
            order: PendingVictims::new(policy),
            index,
            keys: Vec::with_capacity(slots),
            weights: W::default(),
            vacant: Vec::new(),
            reserved: slots,
            held: 0,
            capacity,
        }
    }

    /// Returns the policy's order.
    pub fn policy(&self) -> &P {
        self.order.policy()
    }

    /// Returns the policy's order, for changes that keep every slot's owner: promotions, freezing,
    /// thawing.
    pub fn policy_mut(&mut self) -> &mut P {
        self.order.policy_mut()
    }

    /// Returns the number of entries held.
    pub fn len(&self) -> usize {
        self.keys.len() - self.vacant.len()
    }

    /// Returns whether no entry is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the largest number of entries that were held at once.
    pub fn most(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether inserting an entry of this weight needs an eviction.
    #[inline]
    pub fn is_full_for(&self, weight: u64) -> bool {
        self.held + weight > self.capacity
    }

    /// Returns the slot of a key; `None` if the key is not held.
    #[inline]
    pub fn find(&self, key: I::Key) -> Option<Slot> {
        self.index.find(key)
    }

    /// Returns the weight of a held slot.
    #[inline]
    pub fn weight(&self, slot: Slot) -> u64 {
        self.weights.of(slot)
    }

    /// Records a hit, for callers that never name victims ahead of their eviction.
    #[inline]
    pub fn access(&mut self, slot: Slot) {
        self.order.policy_mut().access(slot);
    }

    /// Records a hit. A pending victim returns to the order.
    #[inline]
    pub fn hit(&mut self, slot: Slot, access: &Access) {
        if self.order.forgo(slot) {
            self.order.policy_mut().insert(slot, access);
        } else {
            self.order.policy_mut().hit(slot, access);
        }
    }

    /// Asks an admission about a candidate of this weight that is not held. If an eviction is
    /// needed, the admission is told the victim when the policy can name it, and always with
    /// `names_victims`. While the admission `holds`, nothing is evicted for a candidate.
    pub fn admits(
        &mut self,
        candidate: &Access,
        weight: u64,
        admission: &mut impl Admission,
        (names_victims, holds): (bool, bool),
        hash: impl FnOnce(I::Key) -> u64,
    ) -> bool {
        if weight > self.capacity {
            return false;
        }
        let is_full = self.is_full_for(weight);
        let victim = match is_full {
            false => None,
            true if names_victims => self.order.victim(Some(candidate)),
            // As the cache in memory asks: some policies change while they look for a victim.
            true => self.order.policy_mut().victim(Some(candidate)),
        };
        let victim = victim.map(|slot| Victim { slot, hash: hash(self.keys[slot.index()]) });
        let verdict = admission.judge(candidate, victim.as_ref());
        let verdict = if holds && is_full { Verdict::Bypass } else { verdict };
        admission.settle(candidate, verdict);
        verdict.admits()
    }

    /// Inserts a key that is not held, and evicts others until it fits. Calls `evicted` with slot,
    /// key and weight of each. Returns `None` if the entry is larger than the capacity, or if no
    /// further entry can be evicted.
    #[inline]
    pub fn insert(
        &mut self,
        key: I::Key,
        access: &Access,
        evicted: impl FnMut(Slot, I::Key, u64),
    ) -> Option<Slot> {
        self.insert_weighing(u64::from(access.weight), key, access, evicted)
    }

    /// Does [`insert`](Self::insert) with an explicit weight, which may be larger than an
    /// [`Access`] can express.
    #[inline]
    pub fn insert_weighing(
        &mut self,
        weight: u64,
        key: I::Key,
        access: &Access,
        mut evicted: impl FnMut(Slot, I::Key, u64),
    ) -> Option<Slot> {
        if weight > self.capacity {
            return None;
        }
        let mut vacated = None;
        while self.is_full_for(weight) {
            let victim = self.evict(Some(access), &mut evicted);
            if let Some(earlier) = vacated.take() {
                self.vacant.push(earlier);
            }
            vacated = Some(victim?);
        }
        let slot = match vacated.or_else(|| self.vacant.pop()) {
            Some(slot) => {
                self.keys[slot.index()] = key;
                slot
            }
            None => self.next_slot(key),
        };
        self.weights.set(slot, weight);
        self.index.put(key, slot);
        self.held += weight;
        self.order.policy_mut().insert(slot, access);
        Some(slot)
    }

    /// Removes the next victim from the order and the index. Its slot is not vacant yet.
    #[inline]
    fn evict(
        &mut self,
        incoming: Option<&Access>,
        evicted: &mut impl FnMut(Slot, I::Key, u64),
    ) -> Option<Slot> {
        let victim = self.order.evict(incoming)?;
        let (key, weight) = (self.keys[victim.index()], self.weights.of(victim));
        self.index.remove(key);
        self.held -= weight;
        evicted(victim, key, weight);
        Some(victim)
    }

    /// Removes the entry in a held slot.
    pub fn remove(&mut self, slot: Slot) {
        self.index.remove(self.keys[slot.index()]);
        self.held -= self.weights.of(slot);
        self.order.remove(slot);
        self.vacant.push(slot);
    }

    /// Changes the weight of a held entry; the policy is given the weight `told`. Evicts until all
    /// fits, possibly the entry itself, and calls `evicted` as [`insert`](Self::insert) does. An
    /// entry that has grown larger than the capacity leaves at once.
    pub fn reweigh(
        &mut self,
        slot: Slot,
        weight: u64,
        told: u32,
        mut evicted: impl FnMut(Slot, I::Key, u64),
    ) {
        if weight > self.capacity {
            return self.remove(slot);
        }
        self.held = self.held - self.weights.of(slot) + weight;
        self.weights.set(slot, weight);
        self.order.policy_mut().reweigh(slot, told);
        while self.is_full_for(0) {
            let Some(victim) = self.evict(None, &mut evicted) else { return };
            self.vacant.push(victim);
        }
    }

    /// Changes the capacity, in the unit of weights. Evicts until all fits.
    pub(crate) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.order.policy_mut().set_capacity(capacity);
        while self.is_full_for(0) {
            let Some(victim) = self.evict(None, &mut |_, _, _| ()) else { return };
            self.vacant.push(victim);
        }
    }

    /// Returns the index from keys to slots.
    pub(crate) fn index(&self) -> &I {
        &self.index
    }

    /// Removes the keys that `keeps` refuses.
    pub(crate) fn retain(&mut self, keeps: impl Fn(I::Key) -> bool) {
        for slot in (0..self.keys.len() as u32).map(Slot) {
            let key = self.keys[slot.index()];
            if self.find(key) == Some(slot) && !keeps(key) {
                self.remove(slot);
            }
        }
    }

    /// Assigns a slot that was never used to a key.
    fn next_slot(&mut self, key: I::Key) -> Slot {
        let slot = Slot(self.keys.len() as u32);
        self.keys.push(key);
        if self.keys.len() > self.reserved {
            // Policies take the number of slots for about what the cache holds.
            self.reserved = (self.keys.len() * 2).min(self.index.keys_max());
            self.order.policy_mut().reserve(self.reserved);
        }
        slot
    }

    /// Returns the bytes of memory held by the order and its pending victims.
    pub fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
    }
}

/// A policy's order with *pending victims*: victims that were named and still hold their slots.
///
/// Owners need to know a victim before it leaves: an [admission](crate::admission) compares it with
/// the candidate, and a dirty block is cleaned first and may be in use when its turn comes. Some
/// policies cannot name their victim in advance, because they draw it at random or move it to a
/// ghost list. A victim that was taken from such a policy is pending: it is out of the order but
/// held until another entry takes its place. A pending victim that is in use keeps its turn while
/// another is sought. One that is hit is inserted again, like a key that returns.
///
/// Invariant: a pending slot is not in the policy's order; every other held slot is.
#[derive(Debug, Clone)]
pub struct PendingVictims<P> {
    policy: P,
    /// Pending victims in the order in which they leave.
    pending: Vec<Slot>,
}

impl<P: Eviction> PendingVictims<P> {
    /// Wraps an order, without pending victims.
    pub fn new(policy: P) -> Self {
        Self { policy, pending: Vec::new() }
    }

    /// Returns the order of all slots except pending ones.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns the order for [insertions](Eviction::insert), [reserving](Eviction::reserve), and
    /// hits on slots known not to be pending.
    #[inline]
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Returns the number of slots held.
    pub fn len(&self) -> usize {
        self.policy.len() + self.pending.len()
    }

    /// Returns whether no slot is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Withdraws a pending victim; returns false if the slot is not pending. The slot is then out
    /// of the order: if it was used, the caller inserts it again.
    #[inline]
    pub fn forgo(&mut self, slot: Slot) -> bool {
        let at = self.pending.iter().position(|&pending| pending == slot);
        at.map(|at| self.pending.remove(at)).is_some()
    }

    /// Removes a slot, pending or not.
    pub fn remove(&mut self, slot: Slot) {
        if !self.forgo(slot) {
            self.policy.remove(slot);
        }
    }

    /// Returns the first victim that is not in use and makes it pending. `incoming` is the
    /// candidate, where it is known. At most `most` victims are pending; returns `None` if all of
    /// them are in use.
    pub fn next(
        &mut self,
        incoming: Option<&Access>,
        most: usize,
        in_use: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        if let Some(&free) = self.pending.iter().find(|&&pending| !in_use(pending)) {
            return Some(free);
        }
        while self.pending.len() < most {
            let victim = self.policy.evict(incoming)?;
            self.pending.push(victim);
            if !in_use(victim) {
                return Some(victim);
            }
        }
        None
    }

    /// Returns the slot that [`evict`](Self::evict), called next with the same `incoming`, removes.
    /// The policy [names](Eviction::victim) it, or its victim becomes pending.
    pub fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let said = if self.pending.is_empty() { self.policy.victim(incoming) } else { None };
        said.or_else(|| self.next(incoming, 1, |_| false))
    }

    /// Removes the first pending victim, or else the policy's next victim, and returns it.
    #[inline]
    pub fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if self.pending.is_empty() {
            self.policy.evict(incoming)
        } else {
            Some(self.pending.remove(0))
        }
    }

    /// Returns all slots, the next to leave first.
    pub fn coldest_first(&self) -> Vec<Slot> {
        let (mut slots, mut at) = (Vec::with_capacity(self.len()), Cursor::START);
        while at != Cursor::END {
            at = self.policy.rank(at, &mut slots);
        }
        slots.extend(self.pending.iter().rev());
        slots.reverse();
        slots
    }

    /// Returns the bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes() + self.pending.capacity() * size_of::<Slot>()
    }
}
