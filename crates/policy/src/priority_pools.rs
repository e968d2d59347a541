//! Pools for entries of high and of low priority, in front of another policy's order.
//!
//! A share of the capacity is reserved for entries of high priority, and one for those of low
//! priority, as in RocksDB's `LRUCache`. Each pool is a queue. A full pool moves its oldest entry
//! down: to the next pool, or into the policy's order as an entry that was used once. So an entry
//! with a priority is evicted only after it has left its pool. Entries of bottom priority have no
//! pool, nor have those whose pool has a share of 0.
//!
//! A hit that the policy handles by a promotion moves an entry to the head of its pool. Hits that
//! only leave marks move nothing, so the pools of such policies are FIFO queues.
//!
//! Invariants: a slot is in one pool, or in the policy's order, or in neither. A pool is not larger
//! than its share of the capacity.

use crate::{Access, Adaptation, Cursor, Eviction, Lists, PolicyInfo, Priority, Replacement, Slot};

const HIGH: usize = 0;
const LOW: usize = 1;

/// Cursor part from which cursors are positions in the pools; the policy's own cursors have smaller
/// parts.
const POOLS: u32 = u32::MAX - 3;
/// The cursor at which the policy's ranking begins.
const ORDER: Cursor = Cursor { part: POOLS + 2, at: 0 };

/// A policy's order with pools for entries of high and low priority.
///
/// ```
/// use floe_policy::{Access, Eviction, Lru, Priority, PriorityPools, Slot};
///
/// let mut order = PriorityPools::new(Lru::default(), 0.5, 0.0);
/// order.reserve(2);
/// order.insert(Slot(0), &Access::new(10));
/// order.prioritize(Slot(0), Priority::High);
/// order.insert(Slot(1), &Access::new(11));
/// assert_eq!(order.evict(None), Some(Slot(1)));
/// ```
#[derive(Debug, Clone)]
pub struct PriorityPools<P> {
    order: P,
    shares: [f64; 2],
    sizes: [u64; 2],
    capacity: Option<u64>,
    pools: Lists<2>,
    /// Hash of each slot's key, needed when the slot moves from a pool to the policy. Like `pools`,
    /// empty without pools.
    hashes: Vec<u64>,
}

impl<P: Eviction> PriorityPools<P> {
    /// Puts pools, with these shares of the capacity, in front of an order without room.
    ///
    /// # Panics
    /// When a share is negative, or both are more than 1 together.
    pub fn new(order: P, high: f64, low: f64) -> Self {
        let valid = high >= 0.0 && low >= 0.0 && high + low <= 1.0;
        assert!(valid, "shares of pools are parts of the capacity, not {high} and {low}");
        let (pools, hashes) = (Lists::named(["high", "low"]), Vec::new());
        Self { order, shares: [high, low], sizes: [0; 2], capacity: None, pools, hashes }
    }

    /// Returns the share of the capacity that the pool for this priority has.
    pub fn share(&self, priority: Priority) -> f64 {
        match priority {
            Priority::High => self.shares[HIGH],
            Priority::Low => self.shares[LOW],
            Priority::Bottom => 0.0,
        }
    }

    fn has_pools(&self) -> bool {
        self.shares != [0.0; 2]
    }

    /// Returns the pool that a slot is in.
    #[inline]
    fn pool_of(&self, slot: Slot) -> Option<usize> {
        if self.has_pools() { self.pools.list_of(slot) } else { None }
    }

    /// Returns the pool that takes entries of a priority: its own, or the next lower one that
    /// exists.
    fn pool_for(&self, priority: Priority) -> Option<usize> {
        match priority {
            Priority::High if self.shares[HIGH] > 0.0 => Some(HIGH),
            Priority::High | Priority::Low if self.shares[LOW] > 0.0 => Some(LOW),
            _ => None,
        }
    }

    fn resized(&mut self) {
        let capacity = self.capacity.unwrap_or(self.hashes.len() as u64);
        self.sizes = self.shares.map(|share| (share * capacity as f64) as u64);
        self.spill();
    }

    /// Demotes the oldest entries of pools that exceed their share.
    fn spill(&mut self) {
        while self.pools.size(HIGH) > self.sizes[HIGH]
            && let Some(oldest) = self.pools.pop_tail(HIGH)
        {
            if self.sizes[LOW] > 0 {
                self.pools.push_head(LOW, oldest);
            } else {
                self.hand_down(oldest);
            }
        }
        while self.pools.size(LOW) > self.sizes[LOW]
            && let Some(oldest) = self.pools.pop_tail(LOW)
        {
            self.hand_down(oldest);
        }
    }

    fn hand_down(&mut self, slot: Slot) {
        let weight = self.pools.weight(slot) as u32; // it came as one
        let access = Access { weight, ..Access::new(self.hashes[slot.index()]) };
        self.order.insert(slot, &access);
        self.order.access(slot);
    }
}

impl<P: Replacement> Replacement for PriorityPools<P> {
    fn info(&self) -> &'static PolicyInfo {
        self.order.info()
    }

    fn tells_low_from_bottom(&self) -> bool {
        self.shares[LOW] > 0.0
    }
}

impl<P: Eviction> Eviction for PriorityPools<P> {
    type Marks = P::Marks;

    const BY_PLACE: bool = P::BY_PLACE;

    #[inline]
    fn marks(&self) -> &P::Marks {
        self.order.marks()
    }

    fn expect(&mut self, slots: usize) {
        self.order.expect(slots);
    }

    fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
        if self.has_pools() {
            self.pools.reserve(slots);
            self.hashes.resize(slots.max(self.hashes.len()), 0);
            self.resized();
        }
    }

    fn reserve_places(&mut self, places: usize) {
        self.order.reserve_places(places);
    }

    #[inline]
    fn place(&mut self, slot: Slot, place: u32, moves: bool) {
        self.order.place(slot, place, moves);
    }

    fn leave_tags_to_owner(&mut self) {
        self.order.leave_tags_to_owner();
    }

    #[inline]
    fn departed(&mut self, tag: u32) {
        self.order.departed(tag); // it knows whether the last victim was its own
    }

    fn set_capacity(&mut self, weight: u64) {
        self.order.set_capacity(weight);
        self.capacity = Some(weight);
        self.resized();
    }

    fn len(&self) -> usize {
        self.order.len() + self.pools.len()
    }

    fn promote(&mut self, slot: Slot) {
        match self.pool_of(slot) {
            Some(pool) => self.pools.move_to_head(pool, slot),
            None => self.order.promote(slot),
        }
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        if self.has_pools() {
            self.hashes[slot.index()] = access.hash;
            self.pools.set_weight(slot, access.weight);
        }
        self.order.insert(slot, access);
    }

    fn prioritize(&mut self, slot: Slot, priority: Priority) {
        match self.pool_for(priority) {
            None => self.order.prioritize(slot, priority),
            Some(HIGH) if self.pool_of(slot) == Some(LOW) => {
                self.pools.move_to_head(HIGH, slot);
                self.spill();
            }
            Some(pool) => {
                if self.pool_of(slot).is_none() && !self.pools.is_frozen(slot) {
                    let before = self.order.len();
                    self.order.remove(slot);
                    if self.order.len() < before {
                        self.pools.push_head(pool, slot);
                        self.spill();
                    }
                }
            }
        }
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let victim = self.order.evict(incoming);
        victim.or_else(|| self.pools.pop_tail(LOW)).or_else(|| self.pools.pop_tail(HIGH))
    }

    fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        // An order that names nothing may still evict something.
        let tail = || self.pools.tail(LOW).or_else(|| self.pools.tail(HIGH));
        if self.order.is_empty() { tail() } else { self.order.victim(incoming) }
    }

    fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
        if self.has_pools() {
            self.pools.delink(slot);
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.order.transfer(from, to);
        if self.has_pools() {
            self.pools.transfer(from, to);
            self.hashes[to.index()] = self.hashes[from.index()];
            self.pools.set_weight(to, self.pools.weight(from) as u32);
        }
    }

    #[inline]
    fn access(&mut self, slot: Slot) {
        match self.pool_of(slot) {
            Some(pool) => self.pools.move_to_head(pool, slot),
            None => self.order.access(slot),
        }
    }

    #[inline]
    fn hit(&mut self, slot: Slot, access: &Access) {
        match self.pool_of(slot) {
            Some(pool) => self.pools.move_to_head(pool, slot),
            None => self.order.hit(slot, access),
        }
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        if !self.has_pools() {
            self.order.reweigh(slot, weight);
        } else if self.pools.reweigh(slot, weight) {
            self.spill();
        } else {
            self.pools.set_weight(slot, weight);
            self.order.reweigh(slot, weight);
        }
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        let in_pools = match from {
            Cursor::START if !self.pools.is_empty() => Cursor::START,
            Cursor { part, at } if (POOLS..ORDER.part).contains(&part) => {
                Cursor { part: part - POOLS, at }
            }
            ORDER => return self.order.rank(Cursor::START, out),
            _ => return self.order.rank(from, out),
        };
        match self.pools.rank(&[HIGH, LOW], in_pools, out) {
            Cursor::END => ORDER,
            Cursor { part, at } => Cursor { part: part + POOLS, at },
        }
    }

    fn remembered_hits(&self, slot: Slot) -> u32 {
        self.order.remembered_hits(slot)
    }

    fn freeze(&mut self, slots: &[Slot]) {
        if self.has_pools() {
            self.pools.freeze(slots);
        }
        self.order.freeze(slots);
    }

    fn thaw(&mut self) {
        self.order.thaw();
        self.pools.thaw();
        self.spill();
    }

    fn thaw_some(&mut self, most: usize) -> bool {
        let back = (0..most).take_while(|_| self.pools.thaw_last().is_some()).count();
        let all = back < most && self.order.thaw_some(most - back);
        if all {
            self.spill();
        }
        all
    }

    fn fetches_ahead(&self) -> Option<u64> {
        self.order.fetches_ahead()
    }

    fn adaptation(&self) -> Option<Adaptation> {
        self.order.adaptation()
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.pools.memory_bytes()
            + self.hashes.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnyPolicy, Lru};

    /// Returns slots 0 to 9 in the order in which they are evicted, after each was inserted with
    /// its priority.
    fn leave(mut order: impl Eviction, priorities: &[Priority]) -> Vec<u32> {
        order.reserve(priorities.len());
        for (slot, &priority) in (0..).zip(priorities) {
            order.insert(Slot(slot), &Access::new(slot.into()));
            order.prioritize(Slot(slot), priority);
        }
        std::iter::from_fn(|| order.evict(None)).map(|slot| slot.0).collect()
    }

    use Priority::{Bottom, High, Low};

    #[test]
    fn what_has_a_priority_leaves_after_what_has_a_lower_one() {
        let priorities = [High, High, Low, Bottom, Low, High, Bottom, Low, Low, Bottom];
        let order = PriorityPools::new(Lru::default(), 0.3, 0.4);
        assert_eq!(leave(order, &priorities), [3, 6, 9, 2, 4, 7, 8, 0, 1, 5]);
    }

    #[test]
    fn a_full_pool_lets_its_oldest_entry_down() {
        let order = PriorityPools::new(Lru::default(), 0.2, 0.0);
        assert_eq!(
            leave(order, &[High, Low, High, High, Low, Low, Low, Low, Low, Low])[..3],
            [1, 0, 4]
        );
        // By way of the pool below.
        let order = PriorityPools::new(Lru::default(), 0.1, 0.2);
        assert_eq!(
            leave(order, &[High, High, Bottom, Low, Low, Low, Bottom, Low, Low, Low]),
            [2, 0, 3, 6, 4, 5, 7, 8, 9, 1]
        );
    }

    #[test]
    fn an_entry_rises_from_the_low_pool_to_the_high_one_and_does_not_come_down() {
        let mut order = PriorityPools::new(Lru::default(), 0.25, 0.5);
        order.reserve(8);
        for slot in 0..5 {
            order.insert(Slot(slot), &Access { weight: 1, ..Access::new(slot.into()) });
            order.prioritize(Slot(slot), Low);
        }
        [3, 2, 4].into_iter().for_each(|slot| order.prioritize(Slot(slot), High));
        order.prioritize(Slot(4), Low);
        assert_eq!((order.pools.size(HIGH), order.pools.size(LOW), order.len()), (2, 2, 5));
        let left: Vec<_> = std::iter::from_fn(|| order.evict(None)).map(|slot| slot.0).collect();
        assert_eq!(left, [0, 1, 3, 2, 4], "3 has come down for 4");
    }

    #[test]
    fn without_pools_the_order_is_the_policys() {
        for name in ["lru", "qd-clock", "s3-fifo", "slru"] {
            let plain: AnyPolicy = name.parse().expect("a policy");
            let with_pools = PriorityPools::new(plain.clone(), 0.0, 0.0);
            let priorities = [High, Low, Bottom, High, Low, Low, Low, Bottom];
            assert_eq!(leave(with_pools, &priorities), leave(plain, &priorities), "{name}");
        }
    }

    #[test]
    fn a_smaller_capacity_makes_the_pools_smaller() {
        let mut order = PriorityPools::new(Lru::default(), 0.5, 0.0);
        order.reserve(8);
        for slot in 0..4 {
            order.insert(Slot(slot), &Access { weight: 3, ..Access::new(slot.into()) });
        }
        order.set_capacity(12);
        order.prioritize(Slot(0), High);
        order.prioritize(Slot(1), High);
        order.set_capacity(6);
        assert_eq!(order.evict(None), Some(Slot(2)), "0 and 1 have come down or stayed");
        assert_eq!(order.evict(None), Some(Slot(3)));
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.reweigh(Slot(1), 4);
        assert_eq!((order.pools.size(HIGH), order.evict(None)), (0, Some(Slot(1))));
    }
}
