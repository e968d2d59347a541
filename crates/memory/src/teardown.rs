//! The end of a cache of which something is still held: everything else is dropped, and what is
//! held is left to its holders.

use floe_policy::Replacement;

use crate::entry::Entry;
use crate::holds::Estate;
use crate::inner::Inner;
use crate::shard::Shard;
use crate::slab::Slab;
use crate::sync::Arc;

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Drops all entries, and leaves those that are held to their holders.
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
            unsafe { crate::huge::give_back(chunk, &kept) };
        }
        drop(estate);
    }
}
