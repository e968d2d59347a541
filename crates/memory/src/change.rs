//! The last steps of removed entries: the listener is called, and memory is freed once no thread
//! reads it.
//!
//! Both run the user's code, which may use the cache, take its time or panic. So they run after the
//! shard's lock is released. Entries that they have not processed wait in [limbo](crate::limbo)
//! like all others.

use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use floe_policy::Replacement;

use crate::budget::{Amount, Lent};
use crate::entry::{Candidate, Entry, Unplaced};
use crate::index::KeyHash;
use crate::inner::Inner;
use crate::maintenance;
use crate::options::InsertOptions;
use crate::owner::{Gone, Owner, move_more, shrink_index};
use crate::records::Estate;
use crate::retired::{Batch, Retired, Round, Waiting};
use crate::shard::{SLOTS_PER_LOCK, Shard, rest};
use crate::slab::Slab;
use crate::stats::Cause;
use crate::sync::{Arc, MutexGuard};
use crate::user_code::{FirstPanic, Leaving};

/// Number of cells that are read, or entries that are searched for, under one lock of the records.
const STEP: usize = 1024;

/// Number of cells read for each entry of a batch, if threads have many cells.
const CELLS_PER_ENTRY: usize = 8;

/// Work of a change that follows once the shard's lock is released. If it is dropped undone,
/// because the user's code panics before, the removed entries wait in limbo like all others.
#[must_use]
pub(crate) struct After<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    gone: Gone,
    batch: Option<Box<Batch>>,
}

impl<K, V, P: Replacement> Drop for After<'_, K, V, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.gone.is_empty() || self.batch.is_some() {
            self.wait();
        }
    }
}

impl<K, V, P: Replacement> After<'_, K, V, P> {
    #[cold]
    fn wait(&mut self) {
        let _quiet = crate::maintenance::quiet();
        let mut owner = self.shard.owner();
        let told = self.gone.take_all().into_iter().map(|(retired, _)| retired);
        told.for_each(|retired| owner.limbo.push(retired));
        if let Some(batch) = self.batch.take() {
            batch.entries.into_iter().for_each(|retired| owner.limbo.push(retired));
            owner.limbo.keep(batch.held.into_iter());
        }
    }
}

/// A batch of entries being dropped. On drop, returns the memory of dropped entries to the slab and
/// the remaining entries to limbo.
struct Freed<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    entries: Vec<Retired>,
    held: Vec<Waiting>,
    /// Number of entries, from the first, that have been dropped.
    dropped: usize,
}

impl<K, V, P: Replacement> Freed<'_, K, V, P> {
    /// Returns entries that have to wait to limbo.
    fn return_held(&mut self) {
        if !self.held.is_empty() {
            let _quiet = crate::maintenance::quiet();
            self.shard.owner().limbo.keep(self.held.drain(..));
        }
    }
}

impl<K, V, P: Replacement> Drop for Freed<'_, K, V, P> {
    fn drop(&mut self) {
        let _quiet = crate::maintenance::quiet();
        let mut owner = self.shard.owner();
        debug_assert_eq!(self.dropped, self.entries.len(), "all panics are caught");
        owner.limbo.keep(self.held.drain(..));
        owner.slab.give_back(self.entries.iter().map(|retired| retired.place));
        owner.limbo.recycle(std::mem::take(&mut self.entries));
    }
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Changes a shard whose lock the caller has taken, and releases the lock. The caller passes
    /// the returned work to [`finish`](Self::finish).
    #[inline(always)]
    pub(crate) fn change<'a, R>(
        &self,
        shard: &'a Shard<K, V, P>,
        owner: MutexGuard<'a, Owner<K, V, P>>,
        change: impl FnOnce(&mut Owner<K, V, P>, &mut Gone) -> R,
    ) -> (R, After<'a, K, V, P>) {
        let mut after = After { shard, gone: Gone::new(self.listener.is_some()), batch: None };
        let mut owner = owner; // released before `after` is dropped, even by a panic
        let result = change(&mut owner, &mut after.gone);
        self.leave(owner, &mut after);
        (result, after)
    }

    /// Releases a shard's lock after a change, and takes a batch to be freed if one is due.
    #[inline(always)]
    fn leave(&self, mut owner: MutexGuard<'_, Owner<K, V, P>>, after: &mut After<'_, K, V, P>) {
        if owner.limbo.is_due() {
            after.batch = self.due(after.shard, &mut owner);
        }
        drop(owner);
        self.threads.records.answer(self.record());
    }

    /// Returns the batch that is to be freed after the lock is released. If entries need no drop
    /// and no thread has to be waited for, it frees them at once and returns `None`.
    #[inline(never)]
    pub(crate) fn due(
        &self,
        shard: &Shard<K, V, P>,
        owner: &mut Owner<K, V, P>,
    ) -> Option<Box<Batch>> {
        let records = &self.threads.records;
        let mut batch = owner.limbo.turn(records)?;
        let address = |retired: &Retired| shard.entry(retired.place) as usize;
        if !std::mem::needs_drop::<Entry<K, V>>()
            && self.is_checked_at_once(&batch)
            && let Some(protected) =
                records.protected_at_once(self.record(), batch.asked, batch.all().map(address))
        {
            let Batch { asked, held, entries, .. } = &mut batch;
            if !protected.is_empty() {
                let is_looked_at =
                    |retired: &Retired| protected.binary_search(&address(retired)).is_ok();
                let keep = |retired| Waiting { retired, asked: *asked };
                let looked_at = entries.extract_if(.., |retired| is_looked_at(retired));
                owner.limbo.keep(looked_at.map(keep));
                owner.limbo.keep(held.extract_if(.., |waiting| is_looked_at(&waiting.retired)));
            }
            owner.slab.give_back(batch.all().map(|retired| retired.place));
            owner.limbo.recycle(batch.entries);
            return None;
        }
        Some(Box::new(batch))
    }

    /// Returns true if a batch is compared with all held values under one lock: it is small, or no
    /// value is held.
    fn is_checked_at_once(&self, batch: &Batch) -> bool {
        batch.len() <= STEP || self.threads.records.holds().is_empty()
    }

    /// Calls the listener for the entries that left, and frees those that no thread reads when
    /// there are enough of them. The first panic of the user's code is raised when all of it has
    /// run.
    #[inline(always)]
    pub(crate) fn finish(&self, after: After<'_, K, V, P>) {
        if self.listener.is_some() || after.batch.is_some() {
            self.finish_all(after);
        } else {
            std::mem::forget(after); // there is nothing in it
        }
    }

    #[inline(never)]
    fn finish_all(&self, mut after: After<'_, K, V, P>) {
        let (to_tell, batch) = (after.gone.take_all(), after.batch.take());
        if to_tell.is_empty() && batch.is_none() {
            return;
        }
        Reclaimer::finish(
            self,
            Leaving { shard: self.shards.number_of(after.shard), to_tell, batch },
        );
    }

    /// Frees the entries of a shard's batch that no thread reads.
    #[cold]
    pub(crate) fn free(&self, shard: &Shard<K, V, P>, batch: Box<Batch>) {
        let shard = self.shards.number_of(shard);
        Reclaimer::finish(self, Leaving { shard, batch: Some(batch), ..Leaving::default() });
    }

    /// Changes a shard whose lock the caller has taken, releases the lock, and finishes the work of
    /// the change.
    pub(crate) fn with_owner<R>(
        &self,
        shard: &Shard<K, V, P>,
        owner: MutexGuard<'_, Owner<K, V, P>>,
        change: impl FnOnce(&mut Owner<K, V, P>, &mut Gone) -> R,
    ) -> R {
        let (result, after) = self.change(shard, owner, change);
        self.finish(after);
        result
    }

    /// Drops all removed entries of all shards that no thread reads. Returns true if some entries
    /// still wait.
    pub(crate) fn reclaim(&self, panic: &mut FirstPanic) -> bool {
        let quiet = crate::maintenance::quiet();
        let records = &self.threads.records;
        let take = |shard: &Shard<K, V, P>| {
            let mut owner = shard.owner();
            (owner.limbo.len() > 0).then(|| owner.limbo.everything(records))
        };
        // All of them first, so that one barrier does for all.
        let batches: Vec<_> = self.shards.iter().map(take).collect();
        drop(quiet);
        for (shard, batch) in self.shards.iter().zip(batches) {
            if let Some(batch) = batch {
                panic.catch(|| self.free(shard, Box::new(batch)));
            }
        }
        let _quiet = crate::maintenance::quiet();
        self.shards.iter().any(|shard| shard.owner().limbo.len() > 0)
    }

    /// Inserts an entry, and makes room in other shards if need be. If the candidate has a guard,
    /// that keeps the entry even if it is rejected. `then` gets the remaining work in each shard,
    /// to be passed to [`finish`](Self::finish).
    #[inline(always)]
    pub(crate) fn put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        mut then: impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        // Where all is frozen no shard can make room.
        let all_frozen = self.frozen.is_all();
        let asks_others = self.shards.len() > 1 && !all_frozen;
        // at the end, after it came in: see `Upkeep`
        let _asks = candidate.due.map(|due| self.lifetimes.upkeep().asks(due));
        if let Err(lacking) = self.try_put(shard, candidate, asks_others, &mut then) {
            self.put_with_help(shard, candidate, lacking, all_frozen, &mut then);
        }
    }

    /// Inserts an entry as [`put`](Self::put) does, if `decide` agrees. `decide` runs under the
    /// lock and gets the key's present entry, unless that has expired.
    #[inline(never)]
    pub(crate) fn put_if<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        decide: impl FnOnce(Option<&Entry<K, V>>) -> bool,
        mut then: impl FnMut(After<'a, K, V, P>),
    ) -> bool
    where
        K: Eq,
    {
        let all_frozen = self.frozen.is_all();
        let asks_others = self.shards.len() > 1 && !all_frozen;
        let clock = self.lifetimes.clock();
        // as in `put`
        let _asks = candidate.due.map(|due| self.lifetimes.upkeep().asks(due));
        let owner = self.owner_past_loads(shard, candidate.unplaced.hash, candidate.unplaced.key());
        let (result, after) = self.change(shard, owner, |owner, gone| {
            let hash = candidate.unplaced.hash.in_shard();
            let there = owner.find(shard.table(), hash, candidate.unplaced.key());
            decide(there.filter(|entry| !entry.head.is_over(clock)))
                .then(|| owner.insert(shard, &self.budget, clock, candidate, asks_others, gone))
        });
        then(after);
        if let Some(Err(lacking)) = result {
            // The entry that was there has left for it; one that comes now does not know of it.
            candidate.yields = true;
            self.put_with_help(shard, candidate, lacking, all_frozen, &mut then);
        }
        result.is_some()
    }

    /// Inserts an entry if its shard can make room for it. Otherwise returns the room that it
    /// lacks.
    #[inline(always)]
    fn try_put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> Result<(), Amount>
    where
        K: Eq,
    {
        // A loaded value has no load of its key to outdate any more, and its caller has the
        // pending loads' lock. What is put in for a guard otherwise has outdated loads before this.
        let owner = if candidate.guard.is_some() {
            shard.owner()
        } else {
            self.owner_past_loads(shard, candidate.unplaced.hash, candidate.unplaced.key())
        };
        let (result, after) = self.change(shard, owner, |owner, gone| {
            owner.insert(shard, &self.budget, self.lifetimes.clock(), candidate, asks_others, gone)
        });
        then(after);
        result
    }

    /// Inserts an entry for which its shard lacks room. Shards that exceed their share give room
    /// first. If the shard still cannot make room by itself, all others give room in turns.
    #[inline(never)]
    fn put_with_help<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        mut lacking: Amount,
        all_frozen: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        let mut asks_others = self.shards.len() > 1 && !all_frozen;
        let weight = candidate.weight;
        loop {
            let could = !all_frozen && self.budget.could_hold(Amount::of(weight));
            let made = could && self.borrow(shard, weight, lacking, asks_others, then);
            if !made && !asks_others {
                break;
            }
            asks_others &= made;
            match self.try_put(shard, candidate, asks_others, then) {
                Ok(()) => return,
                Err(still) => lacking = still,
            }
        }
        let ((), after) = self.change(shard, shard.owner(), |owner, gone| {
            owner.room.give_back(&self.budget);
            owner.pass_through(shard, candidate, Cause::Rejected, gone);
        });
        then(after);
    }

    /// Moves room for an entry from other shards to the borrowing one. `beyond` restricts lenders
    /// to shards that exceed their share. Returns false if none had room to give.
    fn borrow<'a>(
        &'a self,
        borrower: &'a Shard<K, V, P>,
        weight: u64,
        lacking: Amount,
        beyond: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> bool {
        let _coming = self.budget.makes_room_for(Amount::of(weight).weight, self.shards.len());
        let mut lent = Lent::none(&self.budget);
        let first = self.budget.lender();
        let mut came = true;
        // One entry of a shard at a time, so that all give alike what all have to give.
        while std::mem::take(&mut came) {
            for step in 0..self.shards.len() {
                let number = (first + step) % self.shards.len();
                let lender = &self.shards[number];
                let wanted = lent.amount().lacks(lacking);
                if std::ptr::eq(lender, borrower) || wanted.is_nothing() {
                    continue;
                }
                let lend = |owner: &mut Owner<K, V, P>, gone: &mut _| {
                    let amount = owner.lend(lender.table(), wanted, beyond, gone);
                    lent.add(amount); // at once: the user's code, which comes next, may panic
                    !amount.is_nothing()
                };
                let (lends, after) = self.change(lender, lender.owner(), lend);
                then(after);
                if lends {
                    came = true;
                    // The same again as long as it has more than its share, else each in turn.
                    self.budget.set_lender(if beyond { number } else { number + 1 });
                }
            }
            came &= !lent.amount().lacks(lacking).is_nothing();
        }
        let made = !lent.amount().is_nothing();
        lent.arrive(&mut borrower.owner().room);
        made
    }

    /// Evicts entries until lowered limits are met, first from shards that exceed their share.
    /// Pinned entries stay.
    pub(crate) fn shrink(&self) {
        let mut panic = FirstPanic::none();
        let (mut evicted, mut beyond) = (true, true);
        while self.budget.is_exceeded() {
            if !evicted && !std::mem::take(&mut beyond) {
                let mut freezer = self.frozen.freezer();
                if !freezer.is_frozen() {
                    break; // what is left is pinned
                }
                // It was frozen after it had thawed for this.
                self.freezing().thaw(freezer.by_hand());
            }
            evicted = false;
            for shard in self.shards.iter() {
                let (lends, after) = self.change(shard, shard.owner(), |owner, gone| {
                    let amount = owner.lend(shard.table(), self.budget.excess(), beyond, gone);
                    self.budget.give(amount);
                    !amount.is_nothing()
                });
                evicted |= lends;
                panic.catch(|| self.finish(after)); // the limits are kept all the same
                if !self.budget.is_exceeded() {
                    break;
                }
            }
        }
        panic.raise();
    }

    /// Removes all entries of a shard for which `leaves` returns a cause. The lock is taken for
    /// some slots at a time.
    pub(crate) fn retain(
        &self,
        shard: &Shard<K, V, P>,
        panic: &mut FirstPanic,
        leaves: impl Fn(&Entry<K, V>) -> Option<Cause>,
    ) {
        let (mut next, mut holds) = (0, 0);
        loop {
            if holds == HOLDS_PER_REST {
                crate::shard::rest();
                holds = 0;
            }
            holds += 1;
            let quiet = crate::maintenance::quiet();
            let (seen_all, after) = self.change(shard, shard.owner(), |owner, gone| {
                let end = owner.slots.len().min(next + SLOTS_PER_LOCK);
                for slot in next..end {
                    let Some(entry) = owner.entry(shard.table(), slot) else { continue };
                    // SAFETY: it is in, and is taken out under this lock only.
                    if let Some(cause) = leaves(unsafe { &*entry }) {
                        let room = owner.take_out(shard.table(), slot, cause, gone);
                        owner.room.release(&self.budget, room);
                    }
                }
                next = end;
                end == owner.slots.len()
            });
            drop(quiet);
            panic.catch(|| self.finish(after));
            if seen_all {
                return;
            }
        }
    }

    /// Drops all entries at the end of the cache. Held entries stay in memory until their last
    /// holder drops them.
    pub(crate) fn drop_entries(&mut self) {
        let holds = Arc::clone(self.threads.records.holds());
        let mut held = Vec::new();
        if holds.held(&mut held) == 0 {
            // and nobody is left who could hold anything
            let entries: Vec<_> = self.shards.iter_mut().flat_map(Shard::take_entries).collect();
            // SAFETY: taken out of the shards, each once, and not looked at: guards borrow the
            // cache.
            return unsafe { crate::shard::drop_all(entries.into_iter()) };
        }
        held.sort_unstable();
        let (mut entries, mut needed, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for shard in self.shards.iter_mut() {
            entries.extend(shard.take_entries());
            let owner = shard.owner_mut();
            let (with, without) = std::mem::replace(&mut owner.slab, Slab::new(None)).split(&held);
            needed.push(with);
            other.push(without);
        }
        let mut memory: Vec<_> = needed.iter().flat_map(Slab::memory).collect();
        if needed.iter().any(Slab::is_in_arena) {
            // there as long as the arena is
            memory.extend(other.iter().filter_map(Slab::part_of_arena));
        }
        // SAFETY: `needed` has all memory in which something is held, and those entries are taken
        // out of the list of what is dropped here. Holds are made where keys and values are `Send`,
        // `Sync` and `'static`.
        let estate = unsafe { Estate::new::<Entry<K, V>, _>(needed) };
        let held = holds.leave(&estate);
        entries.retain(|entry| held.binary_search(&entry.expose_provenance()).is_err());
        // SAFETY: taken out of the shards, each once, and neither held nor looked at: guards borrow
        // the cache.
        unsafe { crate::shard::drop_all(entries.into_iter()) };
        drop(other);
        let kept: Vec<_> =
            held.iter().map(|&entry| entry..entry + size_of::<Entry<K, V>>()).collect();
        for chunk in memory {
            // SAFETY: memory of the estate, of which this has a part until the end; nothing lives
            // in it but what is held.
            unsafe { crate::hints::give_back(chunk, &kept) };
        }
        drop(estate);
    }
}

/// Runs the last steps of a shard's removed entries in a thread that holds no lock.
struct Reclaimer<'a, K, V, P: Replacement, S> {
    inner: &'a Inner<K, V, P, S>,
    shard: &'a Shard<K, V, P>,
}

impl<'a, K, V, P: Replacement, S> Reclaimer<'a, K, V, P, S> {
    /// Calls the listener and frees entries, here or in an [outer call](crate::user_code).
    fn finish(inner: &'a Inner<K, V, P, S>, leaving: Leaving) {
        let nesting = &inner.record().nesting;
        let Some(nested) = nesting.enter() else { return nesting.leave(leaving) };
        let (mut panic, mut next) = (FirstPanic::none(), Some(leaving));
        while let Some(leaving) = next {
            let shard = &inner.shards[leaving.shard];
            Self { inner, shard }.let_leave(leaving, &mut panic);
            next = nesting.next();
        }
        drop(nested);
        panic.raise();
    }

    /// Calls the listener and frees entries now.
    fn let_leave(&self, leaving: Leaving, panic: &mut FirstPanic) {
        let (inner, shard) = (self.inner, self.shard);
        let Leaving { to_tell, batch, .. } = leaving;
        if let Some(listener) = &inner.listener {
            for (retired, cause) in &to_tell {
                // SAFETY: taken out by this thread, and not yet in limbo, from where alone it would
                // be freed.
                let entry = unsafe { &*shard.entry(retired.place) };
                panic.catch(|| listener(&entry.key, &entry.value, *cause));
            }
        }
        if let Some(batch) = batch {
            self.free(*batch, panic);
        }
        if to_tell.is_empty() {
            return;
        }
        // What was told of waits from now on, no more than what nobody is told of.
        let quiet = crate::maintenance::quiet();
        let mut owner = shard.owner();
        to_tell.into_iter().for_each(|(retired, _)| owner.limbo.push(retired));
        let batch = if owner.limbo.is_due() { inner.due(shard, &mut owner) } else { None };
        drop((owner, quiet));
        if let Some(batch) = batch {
            self.free(*batch, panic);
        }
    }

    /// Drops the entries of a batch that no thread reads; the others go back to limbo.
    fn free(&self, batch: Batch, panic: &mut FirstPanic) {
        let mut freed = self.sift(batch);
        freed.return_held(); // before the user's code runs: a guard may ask for them
        if !std::mem::needs_drop::<Entry<K, V>>() {
            freed.dropped = freed.entries.len();
        }
        // After a panic the next turn goes on with the rest.
        while freed.dropped < freed.entries.len() {
            panic.catch(|| {
                while let Some(retired) = freed.entries.get(freed.dropped) {
                    freed.dropped += 1;
                    // SAFETY: taken out of the index before the barrier, and no cell names it
                    // after. The place gets another entry only once it is given back, when `freed`
                    // is dropped.
                    unsafe { self.shard.entry(retired.place).drop_in_place() };
                }
            });
        }
    }

    /// Separates the entries of a batch that can be freed from those that have to wait.
    fn sift(&self, batch: Batch) -> Freed<'a, K, V, P> {
        let shard = self.shard;
        let address = |retired: &Retired| shard.entry(retired.place) as usize;
        let protected = self.protected(&batch);
        let Batch { mut entries, asked, held: mut waiting, is_urgent } = batch;
        let Some(protected) = protected else {
            waiting.extend(entries.drain(..).map(|retired| Waiting { retired, asked }));
            return self.sift_by_scan((entries, waiting), asked, is_urgent);
        };
        entries.extend(waiting.into_iter().map(|waiting| waiting.retired));
        let is_held = |retired: &Retired| {
            self.is_kept(retired, protected.binary_search(&address(retired)).is_ok())
        };
        let held = entries.extract_if(.., |retired| is_held(retired));
        let held = held.map(|retired| Waiting { retired, asked }).collect();
        Freed { shard, entries, held, dropped: 0 }
    }

    /// Returns sorted addresses that include those of the batch's entries that must not be freed.
    /// Returns `None` where threads have many cells, so that a scan in steps is needed.
    fn protected(&self, batch: &Batch) -> Option<Vec<usize>> {
        let (records, own) = (&self.inner.threads.records, self.inner.record());
        let addresses = batch.all().map(|retired| self.shard.entry(retired.place) as usize);
        if self.inner.is_checked_at_once(batch) {
            let _quiet = crate::maintenance::quiet();
            return records.protected(own, batch.asked, addresses);
        }
        let (addresses, mut protected) = (addresses.collect::<Vec<_>>(), Vec::new());
        for some in addresses.chunks(STEP) {
            let quiet = crate::maintenance::quiet();
            let found = records.protected(own, batch.asked, some.iter().copied());
            drop(quiet);
            protected.append(&mut found?);
            rest();
        }
        protected.sort_unstable();
        Some(protected)
    }

    /// Works as [`sift`](Self::sift) where threads have many cells: it scans in steps, with an
    /// amount of work in proportion to the batch.
    #[cold]
    fn sift_by_scan(
        &self,
        (mut entries, mut waiting): (Vec<Retired>, Vec<Waiting>),
        asked: Round,
        is_urgent: bool,
    ) -> Freed<'a, K, V, P> {
        let (inner, shard) = (self.inner, self.shard);
        let (records, own) = (&inner.threads.records, inner.record());
        let address =
            |waiting: &Waiting| (shard.entry(waiting.retired.place) as usize, waiting.asked);
        let mut left = if is_urgent { usize::MAX } else { CELLS_PER_ENTRY * waiting.len() };
        loop {
            let step = left.min(STEP);
            let quiet = crate::maintenance::quiet();
            let has_ended = records.advance(own, step, asked);
            drop(quiet);
            left -= step;
            if has_ended || left == 0 {
                break;
            }
            rest();
        }
        let mut held = Vec::new();
        while !waiting.is_empty() {
            let some = waiting.split_off(waiting.len().saturating_sub(STEP));
            let quiet = crate::maintenance::quiet();
            let are_cleared = records.are_cleared(&some.iter().map(address).collect::<Vec<_>>());
            drop(quiet);
            for (waiting, is_cleared) in some.into_iter().zip(are_cleared) {
                if is_cleared && !self.is_kept(&waiting.retired, false) {
                    entries.push(waiting.retired);
                } else {
                    held.push(waiting);
                }
            }
            if !waiting.is_empty() {
                rest();
            }
        }
        Freed { shard, entries, held, dropped: 0 }
    }

    /// Returns true if a removed entry must not be freed. `is_looked_at` is true if a cell or hold
    /// names it.
    fn is_kept(&self, retired: &Retired, is_looked_at: bool) -> bool {
        match &self.inner.keep_check {
            None => is_looked_at,
            Some(keep_check) => {
                // SAFETY: not freed yet, and by this thread only.
                keep_check(unsafe { &*self.shard.entry(retired.place) }, is_looked_at)
            }
        }
    }
}

/// Gives memory back to the system that a smaller cache does not need: pages without entries, and
/// the larger part of indexes.
pub(crate) fn release_memory<K, V, P: Replacement, S>(inner: &Inner<K, V, P, S>) {
    for shard in inner.shards.iter() {
        let quiet = crate::maintenance::quiet();
        let mut owner = shard.owner();
        owner.slab.release_pages();
        let mut moves = shrink_index(&mut owner, shard);
        drop((owner, quiet));
        while moves {
            rest();
            let _quiet = crate::maintenance::quiet();
            moves = move_more(&mut shard.owner(), shard);
        }
    }
}

/// Number of lock acquisitions between two pauses of a walk over all entries.
const HOLDS_PER_REST: u32 = 16;

/// Inserts an entry on the fast path, which covers the usual case. Returns the entry if it needs
/// the slow path.
#[inline(always)]
fn put<'u, K: Eq, V, P: Replacement, S>(
    inner: &Inner<K, V, P, S>,
    mut unplaced: Unplaced<'u, K, V>,
) -> Option<Unplaced<'u, K, V>> {
    // Where the library has no threads, insertions sweep the entries that expire.
    let sweeps = inner.lifetimes.upkeep().is_kept() && maintenance::is_alone();
    if !inner.inserts_usually || sweeps || inner.frozen.is_all() {
        return Some(unplaced);
    }
    let shard = inner.shards.of(unplaced.hash);
    shard.prefetch_to_write(unplaced.hash.in_shard());
    let mut owner = shard.owner();
    if shard.is_loading() {
        return Some(unplaced); // the load is to be detached
    }
    let asks_others = inner.shards.len() > 1;
    let is_in = owner.insert_usually(shard, &inner.budget, &mut unplaced, asks_others);
    let batch = if owner.limbo.is_due() { inner.due(shard, &mut owner) } else { None };
    drop(owner);
    inner.threads.records.answer(inner.record());
    if let Some(batch) = batch {
        inner.free(shard, batch);
    }
    if is_in { None } else { Some(unplaced) }
}

/// Implements [`Cache::insert`](crate::Cache::insert): takes the fast path if it applies, and the
/// slow one otherwise. The caller gives up key and value.
#[inline(never)]
pub(crate) fn usually<K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &mut ManuallyDrop<K>,
    value: &mut ManuallyDrop<V>,
) where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let unplaced = Unplaced::new(hash, key, value);
    let is_in = put(inner, unplaced).map(Unplaced::hand_back).is_none();
    if !is_in {
        return unusually(inner, hash, key, value, InsertOptions::new());
    }
    inner.note_insertion(hash);
}

/// Implements [`Cache::insert_with`](crate::Cache::insert_with): the slow path of insertions. The
/// caller gives up key and value.
#[inline(never)]
pub(crate) fn unusually<K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &mut ManuallyDrop<K>,
    value: &mut ManuallyDrop<V>,
    options: InsertOptions,
) where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let mut candidate = candidate(inner, hash, key, value, &options);
    let mut panic = FirstPanic::none(); // the entry comes in all the same
    let then = |after| _ = panic.catch(|| inner.finish(after));
    inner.put(inner.shards.of(hash), &mut candidate, then);
    drop(candidate);
    inner.note_insertion(hash);
    panic.raise();
}

/// Creates the candidate of an insertion with its weight and options. It takes over key and value.
#[inline(always)]
pub(crate) fn candidate<'a, K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    options: &InsertOptions,
) -> Candidate<'a, K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let mut candidate = Candidate::new(Unplaced::new(hash, key, value));
    let (key, value) = (candidate.unplaced.key(), candidate.unplaced.value());
    let options = options.with_live(inner.live_with.as_ref(), key, value);
    if let Some((expiry, due)) = inner.lifetimes.expiry(inner, &options) {
        (candidate.expiry, candidate.due) = (expiry, due);
    }
    candidate.weight = inner.weigh(candidate.unplaced.key(), candidate.unplaced.value());
    (candidate.priority, candidate.pinned) =
        (options.told_priority(inner.tells_low), options.pinned);
    candidate
}
