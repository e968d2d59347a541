//! The readers' way through a shard, without its lock: from a key to its entry.

use equivalent::Equivalent;
use floe_policy::Eviction;

use crate::barrier;
use crate::cell::Cell;
use crate::entry::Entry;
use crate::guard::Keep;
use crate::hazard::Record;
use crate::index::Hash32;
use crate::owner::TableOf;
use crate::places::NOWHERE;
use crate::shard::{Published, Shard};
use crate::sync::Ordering;

/// An entry that a reader has found, kept by a cell. Two words, which functions return in
/// registers.
pub(crate) struct Found<'a, K, V> {
    pub(crate) entry: &'a Entry<K, V>,
    pub(crate) cell: &'a Cell,
}

/// An entry with the policy's marks.
type Marked<'a, K, V, P> = (Found<'a, K, V>, &'a <P as Eviction>::Marks);

/// The result of a fast lookup.
pub(crate) enum Fast<'a, K, V, P: Eviction> {
    Hit(Marked<'a, K, V, P>),
    Miss,
    /// Only a slow lookup can tell.
    Unsure,
}

impl<K, V, P: Eviction> Shard<K, V, P> {
    /// Looks a key up, whatever happens meanwhile. The lookup is counted already, and the
    /// [fast](Self::fast_lookup) one was unsure.
    #[cold]
    #[inline(never)]
    pub(crate) fn sure_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Option<Marked<'a, K, V, P>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let (found, table) = self.slow_lookup(record, hash, key, true)?;
        Some((found, &table.marks))
    }

    /// Looks a key up where nearly all are found, at the first place in its first bucket that may
    /// be the key's. The rest is as with [`fast_lookup`](Self::fast_lookup), which is to follow if
    /// this is unsure.
    #[inline(always)]
    pub(crate) fn first_lookup<'a, Q>(
        published: Published<'a, P>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let table = published.table();
        let bucket = table.index.bucket(table.index.first(hash));
        let tags = bucket.tags();
        let Some(lane) = tags.matching(hash).first() else {
            // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
            // first.
            let is_miss = !tags.were_passed_by()
                && table.old.is_none()
                && std::ptr::eq(published.table(), table);
            return if is_miss { Fast::Miss } else { Fast::Unsure };
        };
        let place = bucket.place(lane);
        let Some(cell) = record.first_cell() else { return Fast::Unsure };
        if place == NOWHERE {
            return Fast::Unsure;
        }
        let entry = table.places.address::<Entry<K, V>>(place);
        cell.store(entry, Ordering::Release); // see `Record::looked_at`
        barrier::light_if_asymmetric();
        let keep = Keep::new(cell); // comparing keys is the user's code and may panic
        if bucket.place(lane) != place {
            return Fast::Unsure;
        }
        // SAFETY: a place that stands in a lane is that of an entry.
        unsafe { std::hint::assert_unchecked(entry != 0) };
        // SAFETY: as in `slow_lookup`.
        let entry = unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
        if !key.equivalent(&entry.key) {
            return Fast::Unsure;
        }
        std::mem::forget(keep);
        Fast::Hit((Found { entry, cell }, &table.marks))
    }

    /// Looks a key up in the usual case, in the shard whose table is published at a place, for a
    /// lookup that is counted already, of a thread that [does without
    /// fences](Record::does_without_fences). Takes no lock, and writes nothing but the thread's own
    /// record. Takes as few instructions as it can: the fewer there are, the more lookups the
    /// processor has under way while it waits for the memory of the first.
    #[inline(always)]
    pub(crate) fn fast_lookup<'a, Q>(
        published: Published<'a, P>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let table = published.table();
        let first = table.index.first(hash);
        let mut number = first;
        loop {
            let bucket = table.index.bucket(number);
            let tags = bucket.tags();
            for lane in tags.matching(hash) {
                let place = bucket.place(lane);
                let Some(cell) = record.first_cell() else { return Fast::Unsure };
                if place == NOWHERE {
                    return Fast::Unsure;
                }
                let entry = table.places.address::<Entry<K, V>>(place);
                cell.store(entry, Ordering::Release); // see `Record::looked_at`
                barrier::light_if_asymmetric();
                let keep = Keep::new(cell); // comparing keys is the user's code and may panic
                if bucket.place(lane) != place {
                    return Fast::Unsure;
                }
                // SAFETY: as in `slow_lookup`.
                let entry = unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
                if key.equivalent(&entry.key) {
                    std::mem::forget(keep);
                    return Fast::Hit((Found { entry, cell }, &table.marks));
                }
                // Comparing keys is the user's code and may have used this cache: then the thread
                // may have learned that it has to fence.
                if !record.does_without_fences() {
                    return Fast::Unsure;
                }
            }
            if !tags.were_passed_by() {
                // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
                // first.
                let is_miss = table.old.is_none() && std::ptr::eq(published.table(), table);
                return if is_miss { Fast::Miss } else { Fast::Unsure };
            }
            number = table.index.after(number);
            if number == first {
                return Fast::Unsure;
            }
        }
    }

    /// Looks a key up without counting or marking anything, in the middle of another lookup of the
    /// thread's, too.
    pub(crate) fn peek<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        Some(self.slow_lookup(record, hash, key, false)?.0)
    }

    /// Looks a key up, whatever happens meanwhile. Also returns the table that was searched.
    #[inline(never)]
    fn slow_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
        counted: bool,
    ) -> Option<(Found<'a, K, V>, &'a TableOf<P>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not where this may be in the middle of another lookup, which does not look at that again.
        if counted && !barrier::is_asymmetric() {
            record.knows_to_fence();
        }
        'again: loop {
            let table = self.published().table();
            for index in table.indexes() {
                let first = index.first(hash);
                let mut number = first;
                loop {
                    let bucket = index.bucket(number);
                    let tags = bucket.tags();
                    for lane in tags.matching(hash) {
                        let place = bucket.place(lane);
                        if place == NOWHERE {
                            // about to get a key, or just emptied; or the table was replaced, see
                            // below
                            continue;
                        }
                        let entry = table.places.address::<Entry<K, V>>(place);
                        let cell = record.cell();
                        cell.store(entry, Ordering::Release); // see `Record::looked_at`
                        let keep = Keep::new(cell);
                        barrier::light();
                        if bucket.place(lane) != place {
                            continue 'again;
                        }
                        // SAFETY: the place is in the index after the cell names the entry, so a
                        // thread that takes it out later will see the cell and not free it.
                        let entry =
                            unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
                        if key.equivalent(&entry.key) {
                            let cell = keep.into_cell();
                            return Some((Found { entry, cell }, table));
                        }
                    }
                    if !tags.were_passed_by() {
                        break;
                    }
                    number = index.after(number);
                    if number == first {
                        break;
                    }
                }
            }
            // If the table has been replaced, what was not found here may be in the next one.
            if std::ptr::eq(self.published().table(), table) {
                return None;
            }
        }
    }

    /// The address at which a key's entry may be, to prefetch it.
    #[inline(always)]
    pub(crate) fn likely_address(table: &TableOf<P>, hash: Hash32) -> *const Entry<K, V> {
        let bucket = table.index.bucket(table.index.first(hash));
        let place = bucket.tags().matching(hash).first().map_or(NOWHERE, |lane| bucket.place(lane));
        std::ptr::without_provenance(table.places.address::<Entry<K, V>>(place))
    }
}
