//! The limits of a cache, and the shares of its shards in them.
//!
//! Every shard has an equal *share* of the limits, and it has *room*: the size of its entries, and
//! the spare part that it may fill without asking. The rooms of all shards and the rest of the
//! budget always add up to the limits.
//!
//! - While the budget has something left, a shard takes room from it as it grows, beyond its share
//!   as well. So a cache holds as many entries as its limit says, however unevenly keys are spread.
//! - Once the budget is empty, a shard with its full share evicts its own entries for a candidate.
//!   It keeps the spare room, which is less than one entry, for the next candidate. Entries that
//!   are removed, expire, or are replaced by lighter ones return their room to the budget.
//! - A shard whose room would stay within its share with the candidate evicts nothing: it gets the
//!   room of a shard that has more than its share. There is one then, because the rooms make up the
//!   limits.
//! - An entry that weighs a sixteenth of a share or more is *heavy*: all shards make room for it
//!   alike, in turns. While it is in the cache, each share is smaller by the entry's weight divided
//!   by the number of shards. The share of its own shard is larger by its weight. Otherwise the
//!   shard of such an entry would lose a good part of its other entries, and with them hits, which
//!   no other shard gains.
//!
//! So insertions never take room from a shard that is within its share: shares do not drift. In a
//! full cache whose shards have their shares, an insertion writes nothing shared.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize};

use crate::slab::{Arena, Slab};

use std::sync::Arc; // not that of the models: a sum

/// Weight of the heaviest entry that there can be. Sums of entries stay within [`UNLIMITED`], and
/// what threads are about to insert at the same time fits beside that.
pub(crate) const WEIGHT_MAX: u64 = 1 << 48;

/// A number of entries and their weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) entries: i64,
    pub(crate) weight: i64,
}

impl Amount {
    /// Returns the amount for one entry of this weight.
    #[inline(always)]
    pub(crate) fn of(weight: u64) -> Self {
        debug_assert!(weight <= WEIGHT_MAX);
        Self { entries: 1, weight: weight as i64 }
    }

    /// Returns the amount by which this one falls short of `need`.
    #[inline(always)]
    pub(crate) fn lacks(self, need: Self) -> Self {
        Self {
            entries: (need.entries - self.entries).max(0),
            weight: (need.weight - self.weight).max(0),
        }
    }

    #[inline(always)]
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Returns the smaller value of each of the two numbers.
    pub(crate) fn min(self, other: Self) -> Self {
        Self { entries: self.entries.min(other.entries), weight: self.weight.min(other.weight) }
    }
}

impl std::ops::Add for Amount {
    type Output = Self;

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::AddAssign for Amount {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.weight += other.weight;
    }
}

impl std::ops::SubAssign for Amount {
    #[inline(always)]
    fn sub_assign(&mut self, other: Self) {
        self.entries -= other.entries;
        self.weight -= other.weight;
    }
}

/// A limit and its unassigned rest, which is negative while a cache shrinks to a lower limit.
#[derive(Debug)]
struct LimitLeft {
    limit: AtomicU64,
    left: AtomicI64,
}

/// Stand-in for the limit where none is set.
const UNLIMITED: u64 = i64::MAX as u64 / 2;

impl LimitLeft {
    fn new(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(UNLIMITED).min(UNLIMITED);
        Self { limit: AtomicU64::new(limit), left: AtomicI64::new(limit as i64) }
    }

    #[inline(always)]
    fn take(&self, amount: i64) -> bool {
        // All Relaxed: these are sums; no memory is handed over through them.
        amount == 0
            || self
                .left
                .fetch_update(Relaxed, Relaxed, |left| (left >= amount).then(|| left - amount))
                .is_ok()
    }

    #[inline(always)]
    fn give(&self, amount: i64) {
        if amount != 0 {
            self.left.fetch_add(amount, Relaxed); // see `take`
        }
    }

    fn set(&self, limit: u64) {
        let limit = limit.min(UNLIMITED);
        let before = self.limit.swap(limit, Relaxed); // see `take`
        self.give(limit as i64 - before as i64);
    }
}

/// The limits of a cache.
#[derive(Debug)]
pub(crate) struct Budget {
    entries: LimitLeft,
    weight: LimitLeft,
    lender: AtomicUsize,
    /// Weight of all heavy entries in the cache.
    heavy: Arc<AtomicI64>,
}

/// Divisor of a share: an entry of at least this part of it is heavy.
const HEAVY_PART: i64 = 16;

/// The share of a shard in the limits, which changes as heavy entries come and go.
#[derive(Debug)]
pub(crate) struct Share {
    /// The share while no entry is heavy.
    limits: Amount,
    /// Minimum weight of a heavy entry.
    heavy_from: i64,
    /// Binary logarithm of the number of shards.
    shards_log: u32,
    /// Weight of the shard's own heavy entries.
    own_heavy: i64,
    all_heavy: Arc<AtomicI64>,
}

/// Returns the least weight of a heavy entry, given the share of a shard and the number of shards.
/// With one shard, no entry is heavy.
fn heavy_from(limits: Amount, shards: u64) -> i64 {
    if shards == 1 { i64::MAX } else { (limits.weight / HEAVY_PART).max(2) }
}

impl Share {
    /// Returns the present share. The sum over all shards is at most the limit.
    #[inline(always)]
    pub(crate) fn now(&self) -> Amount {
        self.with(0)
    }

    /// Returns the share as it would be with another entry of this weight in the shard.
    #[inline(always)]
    pub(crate) fn with(&self, weight: i64) -> Amount {
        let coming = if weight >= self.heavy_from { weight } else { 0 };
        let all = self.all_heavy.load(Relaxed) + coming; // a sum; no memory is handed over
        let part = (all + (1 << self.shards_log) - 1) >> self.shards_log; // rounded up
        Amount { weight: self.limits.weight + self.own_heavy + coming - part, ..self.limits }
    }

    /// Returns true if an entry of this weight fits a share, and thus the cache.
    #[inline(always)]
    pub(crate) fn fits(&self, weight: i64) -> bool {
        weight <= self.limits.weight
    }

    /// Records an entry that was inserted.
    #[inline(always)]
    pub(crate) fn came(&mut self, weight: i64) {
        if weight >= self.heavy_from {
            self.change(weight);
        }
    }

    /// Records an entry that has left.
    #[inline(always)]
    pub(crate) fn left(&mut self, weight: i64) {
        if weight >= self.heavy_from {
            self.change(-weight);
        }
    }

    #[cold]
    fn change(&mut self, by: i64) {
        self.own_heavy += by;
        self.all_heavy.fetch_add(by, Relaxed); // see `with`
    }

    /// Replaces the share after a change of the limits. `held` yields the weights of the shard's
    /// entries.
    pub(crate) fn reshape(&mut self, other: Self, held: impl Iterator<Item = i64>) {
        self.change(-self.own_heavy);
        *self = other;
        let heavy = held.filter(|&weight| weight >= self.heavy_from).sum();
        self.change(heavy);
    }
}

/// Guard that counts a heavy entry among the contents while all shards make room for it.
#[derive(Debug)]
pub(crate) struct Coming<'a> {
    budget: &'a Budget,
    weight: i64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.budget.heavy.fetch_sub(self.weight, Relaxed); // see `Share::with`
    }
}

impl Budget {
    pub(crate) fn new(entries: Option<u64>, weight: Option<u64>) -> Self {
        Self {
            entries: LimitLeft::new(entries),
            weight: LimitLeft::new(weight),
            lender: AtomicUsize::new(0),
            heavy: Arc::default(),
        }
    }

    /// Returns the share of one of `shards` shards, a power of two, while no entry is heavy.
    pub(crate) fn share_of(&self, shards: usize) -> Share {
        let limits = self.share(shards as u64);
        Share {
            limits,
            heavy_from: heavy_from(limits, shards as u64),
            shards_log: shards.ilog2(),
            own_heavy: 0,
            all_heavy: Arc::clone(&self.heavy),
        }
    }

    /// Lowers the share of every shard for a heavy entry as long as the guard lives. Has no effect
    /// for entries that are not heavy.
    pub(crate) fn makes_room_for(&self, weight: i64, shards: usize) -> Coming<'_> {
        let from = heavy_from(self.share(shards as u64), shards as u64);
        let weight = if weight >= from { weight } else { 0 };
        self.heavy.fetch_add(weight, Relaxed); // see `Share::with`
        Coming { budget: self, weight }
    }

    /// Takes the whole amount from the budget, or nothing. Returns true if it was taken.
    #[inline(always)]
    pub(crate) fn take(&self, amount: Amount) -> bool {
        if !self.entries.take(amount.entries) {
            return false;
        }
        let taken = self.weight.take(amount.weight);
        if !taken {
            self.entries.give(amount.entries);
        }
        taken
    }

    /// Returns an amount to the budget.
    #[inline(always)]
    pub(crate) fn give(&self, amount: Amount) {
        self.entries.give(amount.entries);
        self.weight.give(amount.weight);
    }

    /// Returns the unassigned room; negative while a cache that was made smaller still shrinks.
    #[inline(always)]
    pub(crate) fn left(&self) -> Amount {
        // See `LimitLeft::take`.
        Amount { entries: self.entries.left.load(Relaxed), weight: self.weight.left.load(Relaxed) }
    }

    /// Returns the amount by which the cache exceeds its limits.
    pub(crate) fn excess(&self) -> Amount {
        self.left().lacks(Amount::default())
    }

    /// Returns true while the cache exceeds a limit.
    pub(crate) fn is_exceeded(&self) -> bool {
        !self.excess().is_nothing()
    }

    /// Returns the part of the limits for each of `shards` shards.
    pub(crate) fn share(&self, shards: u64) -> Amount {
        // See `LimitLeft::take`.
        let part = |limit: &LimitLeft| (limit.limit.load(Relaxed) / shards) as i64;
        Amount { entries: part(&self.entries), weight: part(&self.weight) }
    }

    /// Returns the amount, with 0 in place of each number that has a limit.
    pub(crate) fn unlimited(&self, amount: Amount) -> Amount {
        Amount {
            entries: if self.entries_limit().is_none() { amount.entries } else { 0 },
            weight: if self.weight_limit().is_none() { amount.weight } else { 0 },
        }
    }

    /// Returns true if the limits are large enough for this amount.
    #[inline(always)]
    pub(crate) fn could_hold(&self, amount: Amount) -> bool {
        // see `LimitLeft::take`
        let fits = |limit: &LimitLeft, amount: i64| amount as u64 <= limit.limit.load(Relaxed);
        fits(&self.entries, amount.entries) && fits(&self.weight, amount.weight)
    }

    /// Returns the number of the shard that is asked first for room. It may exceed the number of
    /// shards.
    pub(crate) fn lender(&self) -> usize {
        self.lender.load(Relaxed) // any will do
    }

    pub(crate) fn set_lender(&self, shard: usize) {
        self.lender.store(shard, Relaxed); // as above
    }

    pub(crate) fn set_entries(&self, limit: u64) {
        self.entries.set(limit);
    }

    pub(crate) fn set_weight(&self, limit: u64) {
        self.weight.set(limit);
    }

    /// Returns the limit of entries; `None` without one.
    pub(crate) fn entries_limit(&self) -> Option<u64> {
        Some(self.entries.limit.load(Relaxed)).filter(|&limit| limit < UNLIMITED)
    }

    /// Returns the limit of weight; `None` without one.
    pub(crate) fn weight_limit(&self) -> Option<u64> {
        Some(self.weight.limit.load(Relaxed)).filter(|&limit| limit < UNLIMITED)
    }
}

/// The room of a shard: the size of its entries, and the spare part that it may fill without
/// asking.
#[derive(Debug)]
pub(crate) struct Room {
    held: Amount,
    spare: Amount,
    /// The part of the limits that no other shard may take.
    share: Share,
}

impl Room {
    /// Creates the room of an empty shard with this much to spare.
    pub(super) fn new(spare: Amount, share: Share) -> Self {
        Self { held: Amount::default(), spare, share }
    }

    /// Returns the size of the shard's entries.
    #[inline(always)]
    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    /// Returns the shard's entries and spare room together.
    #[inline(always)]
    pub(crate) fn total(&self) -> Amount {
        self.held + self.spare
    }

    /// Returns the room by which the shard exceeds its share.
    #[inline(always)]
    pub(super) fn beyond(&self) -> Amount {
        self.share.now().lacks(self.total())
    }

    /// Returns the room by which the shard falls short of its share.
    #[cfg(test)]
    pub(crate) fn below(&self) -> Amount {
        self.total().lacks(self.share.now())
    }

    /// Returns the part of `need` that exceeds the spare room.
    #[inline(always)]
    pub(super) fn lacks(&self, need: Amount) -> Amount {
        self.spare.lacks(need)
    }

    /// Returns true if the spare room and the budget suffice for `need`, so that nothing has to be
    /// evicted.
    #[inline(always)]
    pub(super) fn meets(&self, budget: &Budget, need: Amount) -> bool {
        let left = budget.left();
        self.spare.entries + left.entries >= need.entries
            && self.spare.weight + left.weight >= need.weight
    }

    /// Returns true if the room for an entry is to come from elsewhere: the budget has it, or the
    /// shard stays within its share with it. `more` is the growth of the shard's contents.
    #[inline(always)]
    pub(super) fn is_owed(&self, budget: &Budget, need: Amount, more: Amount) -> bool {
        let (left, after) = (budget.left(), self.held + more);
        // The rarer answer last: a cache has one limit, as a rule.
        let is_left = |left: i64, spare: i64, more: i64| spare + left >= more;
        (is_left(left.entries, self.spare.entries, more.entries)
            || after.entries <= self.share.with(0).entries)
            && (is_left(left.weight, self.spare.weight, more.weight)
                || after.weight <= self.share.with(need.weight).weight)
    }

    /// Returns true if the shard is to evict its own entries for an insertion. It does not for an
    /// entry that can never fit, nor where other shards owe it the room.
    #[inline(always)]
    pub(super) fn is_made_here(
        &self,
        budget: &Budget,
        need: Amount,
        more: Amount,
        asks_others: bool,
    ) -> bool {
        let fits = self.share.fits(need.weight) || budget.could_hold(need);
        fits && !(asks_others && self.is_owed(budget, need, more))
    }

    /// Takes from the budget the room that `need` lacks, and returns it; `None` if the budget has
    /// too little.
    #[inline(always)]
    pub(super) fn take(&mut self, budget: &Budget, need: Amount) -> Option<Amount> {
        let lacking = self.lacks(need);
        let has = lacking.is_nothing() || budget.take(lacking);
        has.then(|| {
            self.spare += lacking;
            lacking
        })
    }

    /// Returns spare room to the budget.
    pub(crate) fn release(&mut self, budget: &Budget, amount: Amount) {
        self.spend(amount);
        budget.give(amount);
    }

    /// Returns spare room beyond the share to the budget, so that other shards can fill it.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, budget: &Budget) {
        let beyond = self.beyond();
        if !beyond.is_nothing() {
            self.release(budget, beyond.min(self.spare));
        }
    }

    /// Gives up spare room for another shard, at most as much as is wanted, and returns the amount.
    pub(super) fn lend(&mut self, wanted: Amount) -> Amount {
        let lent = wanted.min(self.spare);
        self.spend(lent);
        lent
    }

    #[inline(always)]
    fn spend(&mut self, amount: Amount) {
        self.spare -= amount;
        debug_assert!(
            self.spare.entries >= 0 && self.spare.weight >= 0,
            "room that is not there: {:?}",
            self.spare
        );
    }

    /// Records an entry that was inserted.
    #[inline(always)]
    pub(super) fn entered(&mut self, weight: u64) {
        let size = Amount::of(weight);
        self.held += size;
        self.spare -= size;
        self.share.came(size.weight);
    }

    /// Records an entry that has left, and returns its size, which is spare now.
    #[inline(always)]
    pub(super) fn left(&mut self, weight: u64) -> Amount {
        let room = Amount::of(weight);
        self.held -= room;
        self.spare += room;
        self.share.left(room.weight);
        room
    }

    /// Replaces the share after a change of the limits, for entries of these weights. Returns spare
    /// room to the budget, as the limits may be lower.
    pub(super) fn reshape(
        &mut self,
        budget: &Budget,
        shape: &Shape,
        weights: impl Iterator<Item = u64>,
    ) {
        self.share.reshape(
            budget.share_of(shape.shards),
            weights.map(|weight| Amount::of(weight).weight),
        );
        let kept = shape.unlimited.min(self.spare);
        let mut given = self.spare;
        given -= kept;
        self.release(budget, given);
    }
}

/// Room on its way from one shard to another. Room that does not arrive goes to the budget.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    budget: &'a Budget,
    amount: Amount,
}

impl<'a> Lent<'a> {
    pub(crate) fn none(budget: &'a Budget) -> Self {
        Self { budget, amount: Amount::default() }
    }

    pub(crate) fn amount(&self) -> Amount {
        self.amount
    }

    pub(crate) fn add(&mut self, amount: Amount) {
        self.amount += amount;
    }

    /// Adds the room to that of the borrowing shard.
    pub(crate) fn arrive(mut self, room: &mut Room) {
        room.spare += std::mem::take(&mut self.amount);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.budget.give(self.amount);
    }
}

/// Largest number of slots that a shard begins with. It starts small because the cache may never be
/// filled.
const SLOTS_FIRST: usize = 16;
/// Largest capacity, in entries, that is reported to policy and admission at once; their memory of
/// keys depends on it. The capacity of a larger cache is reported as it fills.
const TOLD_AT_ONCE: usize = (1 << 22) + (1 << 19);

/// Size of a shard and of its batches of removed entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Slots that the shard needs at most; `None` if that is unknown.
    pub(crate) slots: Option<usize>,
    pub(crate) shards: usize,
    /// Removed entries that may wait to be freed, and their weight.
    pub(crate) batch: usize,
    pub(crate) batch_weight: u64,
    /// Capacity reported to the policy, in weight if that is limited, or else in entries.
    pub(crate) capacity: u64,
    /// The part of the share that has no limit. The shard has it as room from the beginning.
    pub(crate) unlimited: Amount,
}

impl Shape {
    /// Returns the entries that need memory, present ones and removed ones that wait to be freed;
    /// `None` if that is unknown.
    fn places(&self) -> Option<usize> {
        self.slots.map(|slots| slots + 2 * self.batch)
    }

    /// Returns the number of slots that the shard reserves at first. Doubled, it becomes the limit
    /// or a little more, so that the last step to the limit is a long one and reserves no more: the
    /// policy was told to [expect](floe_policy::Eviction::expect) no more.
    pub(super) fn slots_first(&self) -> usize {
        self.slots.map_or(SLOTS_FIRST, |slots| {
            let slots = slots.max(1);
            slots.div_ceil(slots.div_ceil(SLOTS_FIRST).next_power_of_two())
        })
    }

    /// Returns the number of entries that is first reported to policy and admission.
    pub(super) fn told_first(&self) -> usize {
        let is_told = |slots: &usize| slots.saturating_mul(self.shards) <= TOLD_AT_ONCE;
        self.slots.filter(is_told).map_or(self.slots_first(), |slots| slots.max(1))
    }

    /// Returns an iterator over the slabs of `shards` shards of this shape.
    pub(crate) fn slabs<E>(&self, shards: usize) -> impl Iterator<Item = Slab<E>> {
        let places = self.places();
        let arena = places.and_then(|places| Arena::new(shards, places));
        (0..shards).map(move |shard| match &arena {
            Some(arena) => Slab::in_arena(arena, shard),
            None => Slab::new(places),
        })
    }
}

#[cfg(test)]
mod room_tests {
    use super::*;

    const SHARDS: usize = 4;

    /// Creates a budget of weight alone, and the rooms of its shards.
    fn rooms(weight: u64) -> (Budget, Vec<Room>) {
        let budget = Budget::new(None, Some(weight));
        let unlimited = budget.unlimited(budget.share(SHARDS as u64));
        let room = |_| {
            assert!(budget.take(unlimited));
            Room::new(unlimited, budget.share_of(SHARDS))
        };
        let rooms = (0..SHARDS).map(room).collect();
        (budget, rooms)
    }

    fn weight(weight: i64) -> Amount {
        Amount { entries: 0, weight }
    }

    /// Records the insertion of an entry, with room from the budget.
    fn enter(room: &mut Room, budget: &Budget, weight: u64) {
        assert!(room.take(budget, Amount::of(weight)).is_some());
        room.entered(weight);
    }

    #[test]
    fn a_need_takes_from_the_budget_only_what_is_lacking() {
        let (budget, mut rooms) = rooms(400);
        let room = &mut rooms[0];
        assert_eq!(room.take(&budget, Amount::of(30)), Some(weight(30)));
        assert_eq!(room.take(&budget, Amount::of(40)), Some(weight(10)));
        room.entered(40);
        assert_eq!((room.held().weight, budget.left().weight), (40, 360));
        assert!(room.meets(&budget, Amount::of(360)) && !room.meets(&budget, Amount::of(361)));
        assert_eq!(room.take(&budget, Amount::of(361)), None);
        assert_eq!((room.left(40), budget.left().weight), (Amount::of(40), 360));
        assert_eq!(room.take(&budget, Amount::of(41)), Some(weight(1)), "40 were to spare");
    }

    #[test]
    fn only_spare_room_beyond_the_share_goes_back() {
        let (budget, mut rooms) = rooms(400);
        let room = &mut rooms[0];
        (0..50).for_each(|_| enter(room, &budget, 3));
        assert_eq!(room.beyond().weight, 50, "a share is 100");
        for _ in 0..10 {
            room.left(3);
        }
        room.give_back(&budget);
        assert_eq!((room.held().weight, budget.left().weight), (120, 280), "all 30 are beyond");
        for _ in 0..10 {
            room.left(3);
        }
        room.give_back(&budget);
        assert_eq!((room.held().weight, budget.left().weight), (90, 300), "10 are kept");
        assert!(room.beyond().is_nothing());
    }

    #[test]
    fn a_shard_below_its_share_is_owed_room_and_one_with_its_share_makes_it() {
        let (budget, mut rooms) = rooms(400);
        (0..100).for_each(|_| enter(&mut rooms[1], &budget, 3));
        (0..32).for_each(|_| enter(&mut rooms[0], &budget, 3));
        assert!(budget.take(budget.left()), "nothing is left");
        let need = Amount::of(4);
        let is_made_here = |room: &Room, need, asks| room.is_made_here(&budget, need, need, asks);
        assert!(rooms[0].is_owed(&budget, need, need), "96 and 4 are a share");
        assert!(!is_made_here(&rooms[0], need, true) && is_made_here(&rooms[0], need, false));
        rooms[0].entered(1);
        assert!(!rooms[0].is_owed(&budget, need, need));
        assert!(is_made_here(&rooms[0], need, true));
        assert!(!is_made_here(&rooms[0], Amount::of(401), false), "the cache cannot hold that");
    }

    #[test]
    fn lent_room_arrives_or_goes_to_the_budget() {
        let (budget, mut rooms) = rooms(400);
        enter(&mut rooms[0], &budget, 5);
        rooms[0].left(5);
        let mut lent = Lent::none(&budget);
        lent.add(rooms[0].lend(weight(3)));
        lent.arrive(&mut rooms[1]);
        assert_eq!((rooms[1].lacks(weight(4)), budget.left().weight), (weight(1), 395));
        let mut lost = Lent::none(&budget);
        lost.add(rooms[0].lend(weight(3)));
        assert_eq!(lost.amount(), weight(2), "no more was to spare");
        drop(lost);
        assert_eq!(budget.left().weight, 397);
    }
}
