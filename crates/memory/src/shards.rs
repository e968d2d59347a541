//! The shards of a cache. The first bits of a key's hash choose the key's shard.

use std::ops::{Deref, DerefMut, Range};

use floe_policy::Replacement;

use crate::hash::KeyHash;
use crate::owner::Owner;
use crate::shard::Shard;

/// Slots looked at under one lock when something goes through all of them.
pub(crate) const SLOTS_PER_LOCK: u32 = 256;

/// All shards of a cache: a power of two of them.
pub(crate) struct Shards<K, V, P: Replacement> {
    all: Box<[Shard<K, V, P>]>,
    shift: u32,
}

impl<K, V, P: Replacement> Shards<K, V, P> {
    pub(crate) fn new(all: Vec<Shard<K, V, P>>) -> Self {
        assert!(all.len().is_power_of_two(), "{} shards", all.len());
        Self { shift: 32 - all.len().ilog2(), all: all.into() }
    }

    /// Returns the shard of a key.
    #[inline(always)]
    pub(crate) fn of(&self, hash: KeyHash) -> &Shard<K, V, P> {
        let number = hash.shard(self.shift);
        debug_assert!(number < self.all.len());
        // SAFETY: the shift leaves as many bits as the number of shards, a power of two, has
        // numbers.
        unsafe { self.all.get_unchecked(number) }
    }
}

impl<K, V, P: Replacement> Deref for Shards<K, V, P> {
    type Target = [Shard<K, V, P>];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<K, V, P: Replacement> DerefMut for Shards<K, V, P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
    }
}

/// Goes through the slots of a shard, some under each lock. Slots that come in meanwhile may be
/// left out.
pub(crate) fn for_slots<K, V, P: Replacement>(
    shard: &Shard<K, V, P>,
    mut change: impl FnMut(&mut Owner<K, V, P>, Range<u32>),
) {
    let mut next = 0;
    loop {
        let mut owner = shard.owner();
        let end = owner.slots.len().min(next + SLOTS_PER_LOCK);
        if next >= end {
            return;
        }
        change(&mut owner, next..end);
        drop(owner);
        next = end;
    }
}
