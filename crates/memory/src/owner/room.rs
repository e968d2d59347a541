//! The room of a shard: its part of the cache's limits, and how that changes hands. See
//! [`budget`](crate::budget) for the rules.

use super::Shape;
use crate::budget::{Amount, Budget, Share};

/// The room of a shard: what its entries take, and what it may fill without asking.
#[derive(Debug)]
pub(crate) struct Room {
    held: Amount,
    spare: Amount,
    /// The part of the limits that no other shard may take.
    share: Share,
}

impl Room {
    /// The room of a shard without entries, which may fill so much.
    pub(super) fn new(spare: Amount, share: Share) -> Self {
        Self { held: Amount::default(), spare, share }
    }

    /// Returns what is in the shard.
    #[inline(always)]
    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    /// Returns what the shard has of the limits.
    #[inline(always)]
    pub(crate) fn total(&self) -> Amount {
        self.held + self.spare
    }

    /// Returns what it has beyond its share.
    #[inline(always)]
    pub(super) fn beyond(&self) -> Amount {
        self.share.now().lacks(self.total())
    }

    /// Returns what it has less than its share.
    #[cfg(test)]
    pub(crate) fn below(&self) -> Amount {
        self.total().lacks(self.share.now())
    }

    /// Returns what a need takes beyond what is to spare.
    #[inline(always)]
    pub(super) fn lacks(&self, need: Amount) -> Amount {
        self.spare.lacks(need)
    }

    /// Returns whether a need can be met without any eviction.
    #[inline(always)]
    pub(super) fn meets(&self, budget: &Budget, need: Amount) -> bool {
        let left = budget.left();
        self.spare.entries + left.entries >= need.entries
            && self.spare.weight + left.weight >= need.weight
    }

    /// Returns whether the room for an entry, so much more than the shard holds, is to come from
    /// elsewhere: the budget has it, or the shard would not exceed its share with it.
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

    /// Returns whether the shard is to evict its own entries for a need, which takes so much more
    /// than there is: not for what can never be in, nor for what others owe it.
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

    /// Takes from the budget what is lacking for a need, if it has that, and returns it.
    #[inline(always)]
    pub(super) fn take(&mut self, budget: &Budget, need: Amount) -> Option<Amount> {
        let lacking = self.lacks(need);
        let has = lacking.is_nothing() || budget.take(lacking);
        has.then(|| {
            self.spare += lacking;
            lacking
        })
    }

    /// Gives room to the budget that is to spare.
    pub(crate) fn release(&mut self, budget: &Budget, amount: Amount) {
        self.spend(amount);
        budget.give(amount);
    }

    /// Gives back what is to spare beyond the share: others can fill it.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, budget: &Budget) {
        let beyond = self.beyond();
        if !beyond.is_nothing() {
            self.release(budget, beyond.min(self.spare));
        }
    }

    /// Gives up what is to spare for another shard, at most as much as is wanted, and returns it.
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

    /// Notes an entry that has come in.
    #[inline(always)]
    pub(super) fn entered(&mut self, weight: u32) {
        self.held += Amount::of(weight);
        self.spare -= Amount::of(weight);
        self.share.came(weight.into());
    }

    /// Notes an entry that has left, and returns what it took: the shard has that to spare.
    #[inline(always)]
    pub(super) fn left(&mut self, weight: u32) -> Amount {
        let room = Amount::of(weight);
        self.held -= room;
        self.spare += room;
        self.share.left(room.weight);
        room
    }

    /// Takes over the share by other limits, for entries of these weights. Spare room goes back, as
    /// the limits may be lower.
    pub(super) fn reshape(
        &mut self,
        budget: &Budget,
        shape: &Shape,
        weights: impl Iterator<Item = u32>,
    ) {
        self.share.reshape(budget.share_of(shape.shards), weights.map(i64::from));
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

    /// The shard for which it was lent has it.
    pub(crate) fn arrive(mut self, room: &mut Room) {
        room.spare += std::mem::take(&mut self.amount);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.budget.give(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: usize = 4;

    /// A budget of weight alone, and the rooms of its shards.
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

    /// Brings in an entry for which the budget has room.
    fn enter(room: &mut Room, budget: &Budget, weight: u32) {
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
