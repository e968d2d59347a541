//! Finishes the departure of entries: tells the listener, and frees memory once no thread reads it.
//!
//! Both are the user's code, which may use the cache, take its time or panic: so they come after
//! the lock of the shard, and what they were not done for waits in [limbo](crate::limbo) like
//! everything else.

use floe_policy::Replacement;

use crate::entry::Entry;
use crate::grace::Round;
use crate::inner::Inner;
use crate::nesting::Leaving;
use crate::owner::{Gone, Owner};
use crate::retired::{Batch, Retired, Waiting};
use crate::shard::Shard;
use crate::shards::rest;
use crate::sync::MutexGuard;
use crate::thrown::FirstPanic;

/// Cells that are read, or entries that are looked for, under one lock of the records.
const STEP: usize = 1024;

/// Cells that are read for each entry of a batch, where threads have many.
const CELLS_PER_ENTRY: usize = 8;

/// Holds what is left to do once a shard's lock is released. If that is not done, because the
/// user's code panics before, what has left waits like everything else.
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
        let _quiet = crate::quiet::quiet();
        let mut owner = self.shard.owner();
        let told = self.gone.take_all().into_iter().map(|(retired, _)| retired);
        told.for_each(|retired| owner.limbo.push(retired));
        if let Some(batch) = self.batch.take() {
            batch.entries.into_iter().for_each(|retired| owner.limbo.push(retired));
            owner.limbo.keep(batch.held.into_iter());
        }
    }
}

/// A batch that is being dropped. When that is over, places are given back, and what is left waits
/// again.
struct Freed<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    entries: Vec<Retired>,
    held: Vec<Waiting>,
    /// Counts how many of the entries are no more.
    dropped: usize,
}

impl<K, V, P: Replacement> Drop for Freed<'_, K, V, P> {
    fn drop(&mut self) {
        let _quiet = crate::quiet::quiet();
        let mut owner = self.shard.owner();
        debug_assert_eq!(self.dropped, self.entries.len(), "all panics are caught");
        owner.limbo.keep(self.held.drain(..));
        owner.slab.give_back(self.entries.iter().map(|retired| retired.place));
        owner.limbo.recycle(std::mem::take(&mut self.entries));
    }
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Changes a shard whose lock the caller has taken and releases that. [`settle`](Self::settle)
    /// does the remaining work.
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

    /// Releases a shard's lock after it was changed.
    #[inline(always)]
    fn leave(&self, mut owner: MutexGuard<'_, Owner<K, V, P>>, after: &mut After<'_, K, V, P>) {
        if owner.limbo.is_due() {
            after.batch = self.due(after.shard, &mut owner);
        }
        drop(owner);
        self.threads.records.answer(self.record());
    }

    /// Returns the memory to be freed after the lock. Where places only have to be given back,
    /// without waiting for any thread, that is done here.
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

    /// Returns whether a batch is compared with what is held under one lock: not one of many
    /// entries, unless nothing is held.
    fn is_checked_at_once(&self, batch: &Batch) -> bool {
        batch.len() <= STEP || self.threads.records.holds().is_empty()
    }

    /// Tells the listener of the entries that left, and frees those that no thread reads when there
    /// are enough of them. The first panic of the user's code is raised when all of it has run.
    #[inline(always)]
    pub(crate) fn settle(&self, after: After<'_, K, V, P>) {
        if self.listener.is_some() || after.batch.is_some() {
            self.settle_up(after);
        } else {
            std::mem::forget(after); // there is nothing in it
        }
    }

    #[inline(never)]
    fn settle_up(&self, mut after: After<'_, K, V, P>) {
        let (to_tell, batch) = (after.gone.take_all(), after.batch.take());
        if to_tell.is_empty() && batch.is_none() {
            return;
        }
        Reclaimer::finish(
            self,
            Leaving { shard: self.shards.number_of(after.shard), to_tell, batch },
        );
    }

    /// Frees a batch of a shard.
    #[cold]
    pub(crate) fn free(&self, shard: &Shard<K, V, P>, batch: Box<Batch>) {
        let shard = self.shards.number_of(shard);
        Reclaimer::finish(self, Leaving { shard, batch: Some(batch), ..Leaving::default() });
    }

    /// Changes a shard whose lock the caller has taken, and does what that leaves to do.
    pub(crate) fn with_owner<R>(
        &self,
        shard: &Shard<K, V, P>,
        owner: MutexGuard<'_, Owner<K, V, P>>,
        change: impl FnOnce(&mut Owner<K, V, P>, &mut Gone) -> R,
    ) -> R {
        let (result, after) = self.change(shard, owner, change);
        self.settle(after);
        result
    }

    /// Drops what has left all shards and is not looked at. Returns whether something still waits.
    pub(crate) fn reclaim(&self, panic: &mut FirstPanic) -> bool {
        let quiet = crate::quiet::quiet();
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
        let _quiet = crate::quiet::quiet();
        self.shards.iter().any(|shard| shard.owner().limbo.len() > 0)
    }
}

/// Finishes the departure of a shard's entries, for a thread that has no lock.
struct Reclaimer<'a, K, V, P: Replacement, S> {
    inner: &'a Inner<K, V, P, S>,
    shard: &'a Shard<K, V, P>,
}

impl<'a, K, V, P: Replacement, S> Reclaimer<'a, K, V, P, S> {
    /// Runs the user's code for what leaves, here or in an [outer call](crate::nesting).
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

    /// Runs the user's code for what leaves.
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
        let quiet = crate::quiet::quiet();
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

    /// Tells the entries of a batch that can be freed from those that are to wait.
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

    /// Addresses in order, those of the batch's entries that must not be freed among them. `None`
    /// where threads have many cells.
    fn protected(&self, batch: &Batch) -> Option<Vec<usize>> {
        let (records, own) = (&self.inner.threads.records, self.inner.record());
        let addresses = batch.all().map(|retired| self.shard.entry(retired.place) as usize);
        if self.inner.is_checked_at_once(batch) {
            let _quiet = crate::quiet::quiet();
            return records.protected(own, batch.asked, addresses);
        }
        let (addresses, mut protected) = (addresses.collect::<Vec<_>>(), Vec::new());
        for some in addresses.chunks(STEP) {
            let quiet = crate::quiet::quiet();
            let found = records.protected(own, batch.asked, some.iter().copied());
            drop(quiet);
            protected.append(&mut found?);
            rest();
        }
        protected.sort_unstable();
        Some(protected)
    }

    /// [`sift`](Self::sift) where threads have many cells: in steps, each of some work for each
    /// entry of the batch.
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
            let quiet = crate::quiet::quiet();
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
            let quiet = crate::quiet::quiet();
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

    /// Returns whether an entry that has left is to be kept, and is in any case if it
    /// `is_looked_at`.
    fn is_kept(&self, retired: &Retired, is_looked_at: bool) -> bool {
        match &self.inner.keeper {
            None => is_looked_at,
            // SAFETY: not freed yet, and by this thread only.
            Some(keeper) => keeper(unsafe { &*self.shard.entry(retired.place) }, is_looked_at),
        }
    }
}
