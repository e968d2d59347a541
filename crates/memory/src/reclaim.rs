//! Finishes the departure of entries: tells the listener, and frees memory once no thread reads it.
//!
//! Both are the user's code, which may use the cache, take its time or panic: so they come after
//! the lock of the shard, and what they were not done for waits in [limbo](crate::limbo) like
//! everything else.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use floe_policy::Replacement;

use crate::entry::Entry;
use crate::inner::Inner;
use crate::limbo::{Batch, Retired};
use crate::owner::{Gone, Owner};
use crate::shard::Shard;
use crate::sync::MutexGuard;

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
        if self.gone.has_listener() || self.batch.is_some() {
            self.wait();
        }
    }
}

impl<K, V, P: Replacement> After<'_, K, V, P> {
    #[cold]
    fn wait(&mut self) {
        let _quiet = crate::quiet::quiet();
        let mut owner = self.shard.owner();
        let told = self.gone.take_all();
        let entries = self.batch.take().map(|batch| batch.entries).unwrap_or_default();
        told.chain(entries).for_each(|retired| owner.limbo.push(retired));
    }
}

/// A batch that is being dropped. When that is over, even by a panic of the user's, places are
/// given back and what is left waits again.
struct Freed<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    entries: Vec<Retired>,
    held: Vec<Retired>,
    /// Counts how many of the entries are no more.
    dropped: usize,
}

impl<K, V, P: Replacement> Drop for Freed<'_, K, V, P> {
    fn drop(&mut self) {
        let _quiet = crate::quiet::quiet();
        let mut owner = self.shard.owner();
        let left = self.entries.drain(self.dropped..).chain(self.held.drain(..));
        owner.limbo.keep(left);
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
        if !std::mem::needs_drop::<Entry<K, V>>()
            && let Some(protected) = records.protected_at_once(self.record(), batch.asked)
        {
            if !protected.is_empty() {
                let is_looked_at = |retired: &mut Retired| {
                    protected.binary_search(&(shard.entry(retired.place) as usize)).is_ok()
                };
                owner.limbo.keep(batch.entries.extract_if(.., is_looked_at));
            }
            owner.slab.give_back(batch.entries.iter().map(|retired| retired.place));
            owner.limbo.recycle(batch.entries);
            return None;
        }
        Some(Box::new(batch))
    }

    /// Tells the listener of the entries that left, and frees those that no thread reads when there
    /// are enough of them.
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
        let (shard, mut panicked) = (after.shard, None);
        if let Some(listener) = &self.listener {
            for (retired, cause) in after.gone.untold().iter() {
                // SAFETY: taken out by this thread, and not yet in limbo, from where alone it would
                // be freed.
                let entry = unsafe { &*shard.entry(retired.place) };
                let tell = || listener(&entry.key, &entry.value, *cause);
                // The others are told of all the same.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(tell)) {
                    crate::thrown::keep_first(&mut panicked, panic);
                }
            }
        }
        let batch = after.batch.take();
        drop(after); // what was told of waits from now on
        if let Some(batch) = batch {
            self.free(shard, *batch);
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
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

    /// Drops the entries of a batch that no thread reads; the others go back to limbo.
    #[cold]
    pub(crate) fn free(&self, shard: &Shard<K, V, P>, batch: Batch) {
        let quiet = crate::quiet::quiet();
        let protected = self.threads.records.protected(self.record(), batch.asked);
        drop(quiet);
        let is_looked_at = |address: usize| protected.binary_search(&address).is_ok();
        let mut freed = Freed { shard, entries: batch.entries, held: Vec::new(), dropped: 0 };
        let is_held = |retired: &mut Retired| {
            let entry = shard.entry(retired.place);
            let is_looked_at = is_looked_at(entry as usize);
            match &self.keeper {
                None => is_looked_at,
                // SAFETY: not freed yet, and by this thread only.
                Some(keeper) => keeper(unsafe { &*entry }, is_looked_at),
            }
        };
        freed.held.extend(freed.entries.extract_if(.., is_held));
        if !std::mem::needs_drop::<Entry<K, V>>() {
            freed.dropped = freed.entries.len();
        }
        while let Some(retired) = freed.entries.get(freed.dropped) {
            freed.dropped += 1;
            // SAFETY: taken out of the index before the barrier, and no cell names it after. The
            // place gets another entry only once it is given back, when `freed` is dropped.
            unsafe { shard.entry(retired.place).drop_in_place() };
        }
    }

    /// Drops what has left all shards and is not looked at.
    pub(crate) fn reclaim(&self) {
        for shard in self.shards.iter() {
            let batch = shard.owner().limbo.everything(&self.threads.records);
            self.free(shard, batch);
        }
    }
}
