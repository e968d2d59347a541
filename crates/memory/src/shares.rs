//! The room of a shard: what it keeps, gives back and lends. See [`budget`](crate::budget) for the
//! rules.

use floe_policy::Eviction;

use crate::budget::{Amount, Budget};
use crate::cause::Cause;
use crate::owner::{Gone, Owner, TableOf};

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Returns what the shard has of the limits.
    #[inline(always)]
    fn room(&self) -> Amount {
        self.held + self.spare
    }

    /// Returns what it has beyond its share.
    fn beyond(&self) -> Amount {
        self.share.now().lacks(self.room())
    }

    /// Returns whether a need can be met without any eviction.
    #[inline(always)]
    pub(crate) fn has_room(&self, budget: &Budget, need: Amount) -> bool {
        let left = budget.left();
        self.spare.entries + left.entries >= need.entries
            && self.spare.weight + left.weight >= need.weight
    }

    /// Returns whether the room for an entry, so much more than the shard holds, is to come from
    /// elsewhere: the budget has it, or the shard would not exceed its share with it.
    #[inline(always)]
    pub(crate) fn is_owed(&self, budget: &Budget, need: Amount, more: Amount) -> bool {
        let (left, after) = (budget.left(), self.held + more);
        // The rarer answer last: a cache has one limit, as a rule.
        let is_left = |left: i64, spare: i64, more: i64| spare + left >= more;
        (is_left(left.entries, self.spare.entries, more.entries)
            || after.entries <= self.share.with(0).entries)
            && (is_left(left.weight, self.spare.weight, more.weight)
                || after.weight <= self.share.with(need.weight).weight)
    }

    /// Takes from the budget what is lacking for a need, if it has that.
    #[inline(always)]
    pub(crate) fn take_room(&mut self, budget: &Budget, need: Amount) -> Option<Amount> {
        let lacking = self.spare.lacks(need);
        let has = lacking.is_nothing() || budget.take(lacking);
        has.then(|| {
            self.spare += lacking;
            lacking
        })
    }

    /// Gives room to the budget that is to spare.
    pub(crate) fn release(&mut self, budget: &Budget, amount: Amount) {
        self.spare -= amount;
        debug_assert!(
            self.spare.entries >= 0 && self.spare.weight >= 0,
            "room that is not there: {:?}",
            self.spare
        );
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

    /// Gives up room for another shard, as much as is wanted, and evicts one entry if it has less
    /// to spare. With `beyond` it gives up only what it has beyond its share. Nothing if it cannot.
    pub(crate) fn lend(
        &mut self,
        table: &TableOf<P>,
        wanted: Amount,
        beyond: bool,
        gone: &mut Gone<K, V>,
    ) -> Amount {
        let wanted = if beyond { wanted.min(self.beyond()) } else { wanted };
        if !self.spare.lacks(wanted).is_nothing()
            && let Some(victim) = self.choose_victim(None)
        {
            self.take_out(table, victim.0, Cause::Evicted, gone);
        }
        let lent = wanted.min(self.spare);
        self.spare -= lent;
        lent
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
    pub(crate) fn arrive<K, V, P: Eviction>(mut self, owner: &mut Owner<K, V, P>) {
        owner.spare += std::mem::take(&mut self.amount);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.budget.give(self.amount);
    }
}
