//! The shards of a cache. Some bits of a key's hash choose the key's shard.

use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use floe_policy::{Cursor, Replacement};

use crate::hash::KeyHash;
use crate::owner::{Owner, TableOf};
use crate::shard::{Published, Shard};
use crate::sync::AtomicPtr;

/// Slots looked at under one lock when something goes through all of them.
pub(crate) const SLOTS_PER_LOCK: u32 = 256;

/// All shards of a cache: a power of two of them.
pub(crate) struct Shards<K, V, P: Replacement> {
    all: Box<[Shard<K, V, P>]>,
    /// The table of each, side by side: all that most hits read of a shard. Dropped after them.
    tables: Box<[AtomicPtr<TableOf<P>>]>,
    /// One less than the number of shards.
    mask: u32,
}

impl<K, V, P: Replacement> Shards<K, V, P> {
    pub(crate) fn new(owners: Vec<(Owner<K, V, P>, TableOf<P>)>) -> Self {
        assert!(owners.len().is_power_of_two(), "{} shards", owners.len());
        let tables: Box<[_]> = owners.iter().map(|_| AtomicPtr::default()).collect();
        let mask = owners.len() as u32 - 1;
        let made = owners.into_iter().zip(&tables);
        // SAFETY: the shards are dropped before the memory of the tables' addresses.
        let all = made.map(|((owner, table), at)| unsafe { Shard::new(owner, table, at) });
        Self { all: all.collect(), tables, mask }
    }

    /// Returns about how many bytes all indexes have, by that of a key's shard.
    pub(crate) fn index_bytes(&self, hash: KeyHash) -> usize {
        self.table(hash).table().memory_bytes() * self.all.len()
    }

    /// Returns where the table of a key's shard is published.
    #[inline(always)]
    pub(crate) fn table(&self, hash: KeyHash) -> Published<'_, P> {
        let number = hash.shard(self.mask);
        debug_assert!(number < self.tables.len());
        // SAFETY: as in `of`.
        Published(unsafe { self.tables.get_unchecked(number) })
    }

    /// Returns the number of a shard, which is one of these.
    pub(crate) fn number_of(&self, shard: &Shard<K, V, P>) -> usize {
        let offset = std::ptr::from_ref(shard).addr() - self.all.as_ptr().addr();
        offset / size_of::<Shard<K, V, P>>()
    }

    /// Returns the shard of a key.
    #[inline(always)]
    pub(crate) fn of(&self, hash: KeyHash) -> &Shard<K, V, P> {
        let number = hash.shard(self.mask);
        debug_assert!(number < self.all.len());
        // SAFETY: the mask leaves as many bits as the number of shards, a power of two, has
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
        let end = owner.slots.len().min(next + Cursor::BATCH as u32);
        if next >= end {
            return;
        }
        change(&mut owner, next..end);
        let is_last = end == owner.slots.len();
        drop(owner);
        if !is_last {
            rest();
        }
        next = end;
    }
}

/// Between two holds of a shard's lock: with what Linux adds, long enough for a thread to wake.
const REST: Duration = Duration::from_micros(10);

/// Lets threads that wait for a shard's lock have it, between two holds. The lock is not fair: they
/// would lose it to the next hold, over and over, for all of the shard.
pub(crate) fn rest() {
    std::thread::sleep(REST);
}
