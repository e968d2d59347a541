//! Looking keys up: in the frozen index if there is one, then in the shard; what hits leave behind.

mod frozen;

use std::any::TypeId;
use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
use floe_policy::{HitKind, Marks, Replacement, Slot, Touch};

use crate::cell::Cell;
use crate::entry::Entry;
use crate::frozen::timing::{self, Outcome};
use crate::guard::Keep;
use crate::hash::{DefaultHasher, KeyHash};
use crate::hazard::Record;
use crate::inner::Inner;
use crate::lookup::frozen::{look_up_beside_guards, look_up_frozen};
use crate::search::{Fast, Found};
use crate::shard::Shard;

/// Lookups that [`Inner::look_up_many`] has under way at once.
pub(crate) const BATCH: usize = 16;
/// Bytes of an index that is taken to be in the processor's cache.
const NEAR_BYTES: usize = 64 << 10;

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Notes a hit in the policy's marks, and in its order where they say so.
    #[inline(always)]
    fn note_hit(
        &self,
        hash: KeyHash,
        record: &Record,
        found: &Found<'_, K, V>,
        slot: u32,
        marks: &P::Marks,
    ) {
        record.dynamic_hits.add(1);
        let touch = if <P::Marks as Marks>::PLAIN.is_some() {
            marks.touch(Slot(slot))
        } else {
            touch_with_care(found, marks, slot)
        };
        if <P::Marks as Marks>::KIND == HitKind::LruLike && touch != Touch::Noted {
            self.promote(self.shards.of(hash), record, found.entry, touch);
        }
    }

    #[inline(never)]
    fn promote(&self, shard: &Shard<K, V, P>, record: &Record, entry: &Entry<K, V>, touch: Touch) {
        let owner = if touch == Touch::Promote { Some(shard.owner()) } else { shard.try_owner() };
        match owner {
            Some(mut owner) => owner.promote(shard.table(), entry.slot(), entry),
            None => record.promotions_skipped.add(1),
        }
    }
}

impl<K, V, P: Replacement, S: BuildHasher + 'static> Inner<K, V, P, S> {
    #[inline(always)]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> KeyHash {
        let raw = self.hasher.hash_one(key);
        // Known when this is compiled.
        if TypeId::of::<S>() == TypeId::of::<DefaultHasher>() {
            KeyHash::of_mixed(raw)
        } else {
            KeyHash::of_any(raw)
        }
    }

    /// Looks a key up that has not expired. Counts nothing, marks nothing, and renews a time to
    /// idle only if it `is_use`.
    pub(crate) fn peek<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
        is_use: bool,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let found = self.shards.of(hash).peek(record, hash.in_shard(), key)?;
        let expiry = &found.entry.head;
        if !expiry.is_set() {
            return Some(found);
        }
        if is_use {
            return self.unless_expired(found);
        }
        let keep = Keep::new(found.cell);
        (!expiry.has_expired(self.lifetimes.clock().now())).then(|| {
            keep.into_cell();
            found
        })
    }

    /// Looks a key up and counts the hit or the miss.
    #[inline(always)]
    pub(crate) fn look_up<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if record.lookups.next() >= record.usual_below.get() {
            return self.look_up_unusually(record, hash, key);
        }
        let frozen = self.frozen.published();
        if frozen.is_null() {
            return self.look_up_dynamic(record, hash, key);
        }
        look_up_frozen(self, frozen, record, hash, key)
    }

    /// [`look_up`](Self::look_up) by the clock, or by a thread that is to fence.
    #[cold]
    fn look_up_unusually<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let is_timed = record.lookups.get() >= record.timings.next.get();
        if is_timed {
            let one_in = self.frozen.timed_one_in();
            record.timings.next.set(record.lookups.get() + record.timings.draw(one_in));
        }
        let fenceless = record.does_without_fences();
        if fenceless {
            record.usual_below.set(record.timings.next.get());
        }
        let (began, dynamic_hits) = (is_timed.then(timing::now), record.dynamic_hits.get());
        let found = if fenceless {
            look_up_beside_guards(self, record, key)
        } else {
            self.look_up_slowly(record, key)
        };
        if let Some(began) = began {
            let outcome = match &found {
                None => Outcome::Miss,
                Some(_) if record.dynamic_hits.get() == dynamic_hits => Outcome::Frozen,
                Some(_) => Outcome::Dynamic,
            };
            record.timings.note(outcome, hash, began);
        }
        found
    }

    /// Looks up to [`BATCH`] keys up, their memory fetched at once, and tells `found` of those that
    /// are there, in order.
    #[inline]
    pub(crate) fn look_up_many<'a, Q>(
        &'a self,
        record: &'a Record,
        hashes: &[KeyHash],
        keys: &[Q],
        mut found: impl FnMut(usize, Found<'a, K, V>),
    ) where
        Q: Hash + Equivalent<K>,
    {
        let Some(first) = hashes.first() else { return };
        if !record.does_without_fences() || self.shards.index_bytes(*first) <= NEAR_BYTES {
            for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
                if let Some(hit) = self.look_up(record, *hash, key) {
                    found(at, hit);
                }
            }
            return;
        }
        let mut likely = [None; BATCH];
        let index = self.frozen.keep(record);
        let index = index.as_ref().map(|(index, _)| *index);
        if let Some(index) = index {
            hashes.iter().for_each(|hash| index.prefetch(hash.in_shard()));
            for (likely, hash) in likely.iter_mut().zip(hashes) {
                *likely = index.likely_further(hash.in_shard());
                likely.iter().for_each(|&likely| index.prefetch_entry(likely));
            }
        } else {
            for hash in hashes {
                self.shards.table(*hash).table().index.prefetch(hash.in_shard());
            }
            for hash in hashes {
                let table = self.shards.table(*hash).table();
                crate::prefetch::span(Shard::<K, V, P>::likely_address(table, hash.in_shard()));
            }
        }
        for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
            // By the usual way, which times it.
            let is_timed = record.lookups.get() + 1 >= record.usual_below.get();
            let likely = likely[at].filter(|_| !is_timed);
            let frozen = likely.zip(index).and_then(|(likely, index)| {
                if !record.does_without_fences() {
                    return None; // this thread may have told so by now, between two keys
                }
                let (entry, keep) = index.keep(likely, record.first_cell()?)?;
                if !key.equivalent(&entry.key) {
                    return None;
                }
                self.unless_expired(Found { entry, cell: keep.into_cell() })
            });
            if let Some(hit) = frozen {
                record.lookups.add(1);
                found(at, hit);
            } else if let Some(hit) = self.look_up(record, *hash, key) {
                found(at, hit);
            }
        }
    }

    /// Returns the entry that was found, unless it has expired.
    #[inline(always)]
    fn unless_expired<'a>(&self, found: Found<'a, K, V>) -> Option<Found<'a, K, V>> {
        if found.entry.head.is_set() && self.drop_expired(found.entry, found.cell) {
            return None;
        }
        Some(found)
    }

    /// Lets an entry go that was found and has expired; false if it has not.
    #[cold]
    #[inline(never)]
    fn drop_expired(&self, entry: &Entry<K, V>, cell: &Cell) -> bool {
        let is_over = !self.lifetimes.is_alive(&entry.head);
        if is_over {
            drop(Keep::new(cell));
        }
        is_over
    }

    /// Looks a key up in its shard and counts the hit or the miss.
    #[inline(always)]
    fn look_up_dynamic<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let table = self.shards.table(hash);
        match Shard::<K, V, P>::first_lookup(table, record, hash.in_shard(), key) {
            Fast::Hit((found, marks)) => self.count(hash, record, found, marks),
            Fast::Miss => {
                record.misses.add(1);
                None
            }
            Fast::Unsure => self.look_up_further(record, key),
        }
    }

    /// [`look_up_dynamic`](Self::look_up_dynamic) where the key is not in the frozen index, or not
    /// where nearly all are, here or there: one in twenty. It is hashed again, so that others need
    /// not keep its hash.
    #[inline(never)]
    fn look_up_further<'a, Q>(&'a self, record: &'a Record, key: &Q) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        // Comparing and hashing keys is the user's code: the thread may know by now that it has to
        // fence.
        if !record.does_without_fences() {
            return self.look_up_slowly(record, key);
        }
        let table = self.shards.table(hash);
        match Shard::<K, V, P>::fast_lookup(table, record, hash.in_shard(), key) {
            Fast::Hit((found, marks)) => self.count(hash, record, found, marks),
            Fast::Miss => {
                record.misses.add(1);
                None
            }
            Fast::Unsure => self.look_up_slowly(record, key),
        }
    }

    /// [`look_up_further`](Self::look_up_further) where that was unsure.
    #[cold]
    #[inline(never)]
    fn look_up_slowly<'a, Q>(&'a self, record: &'a Record, key: &Q) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        match self.shards.of(hash).sure_lookup(record, hash.in_shard(), key) {
            Some((found, marks)) => self.count(hash, record, found, marks),
            None => {
                record.misses.add(1);
                None
            }
        }
    }

    /// Counts and marks a hit, or counts a miss where the entry has expired.
    #[inline(always)]
    fn count<'a>(
        &self,
        hash: KeyHash,
        record: &Record,
        found: Found<'a, K, V>,
        marks: &P::Marks,
    ) -> Option<Found<'a, K, V>> {
        let state = found.entry.head.state();
        if !state.is_plain() {
            return self.count_with_care(hash, record, found, marks);
        }
        self.note_hit(hash, record, &found, state.slot(), marks);
        Some(found)
    }

    /// [`count`](Self::count) for an entry that expires or is frozen.
    #[cold]
    #[inline(never)]
    fn count_with_care<'a>(
        &self,
        hash: KeyHash,
        record: &Record,
        found: Found<'a, K, V>,
        marks: &P::Marks,
    ) -> Option<Found<'a, K, V>> {
        let state = found.entry.head.state();
        let Some(found) = self.unless_expired(found) else {
            record.misses.add(1);
            return None;
        };
        // A hit on a frozen entry is what remains of all lookups, so that the usual case there
        // counts once.
        if !state.is_frozen() {
            self.note_hit(hash, record, &found, state.slot(), marks);
        }
        Some(found)
    }
}

/// Notes a hit in marks that are the user's code, which may use this cache.
#[inline(never)]
fn touch_with_care<K, V>(found: &Found<'_, K, V>, marks: &impl Marks, slot: u32) -> Touch {
    let found = Keep::new(found.cell); // it may panic
    let touch = marks.touch(Slot(slot));
    found.into_cell();
    touch
}
