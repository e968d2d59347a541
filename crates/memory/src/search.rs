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
use crate::plain::compares_plainly;
use crate::shard::Shard;
use crate::sync::{AtomicPtr, Ordering};

/// An entry that a reader has found, kept by a cell. Two words, which functions return in
/// registers.
pub(crate) struct Found<'a, K, V> {
    pub(crate) entry: &'a Entry<K, V>,
    pub(crate) cell: &'a Cell,
}

/// An entry with the policy's marks, unless comparing keys has led the thread away from the table.
type Marked<'a, K, V, P> = (Found<'a, K, V>, Option<&'a <P as Eviction>::Marks>);

/// The result of a fast lookup.
pub(crate) enum Fast<'a, K, V, P: Eviction> {
    Hit(Marked<'a, K, V, P>),
    Miss,
    /// Only a slow lookup can tell.
    Unsure,
}

impl<K, V, P: Eviction> Shard<K, V, P> {
    /// The present table, kept from being freed while `record` names it.
    #[inline(always)]
    pub(crate) fn probe(&self, record: &Record) -> *const TableOf<P> {
        // not used before it is read again
        let mut table = self.published().load(Ordering::Relaxed);
        loop {
            record.probe(table as usize);
            barrier::light();
            // Acquire: what is in the table was written before it was published.
            let again = self.published().load(Ordering::Acquire);
            if again == table {
                return table;
            }
            table = again;
        }
    }

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
        let lookups = record.lookups.get();
        let (found, table) = self.slow_lookup(record, hash, key, true)?;
        // SAFETY: the record names the table, unless comparing keys has looked something else up.
        let marks = (!record.has_strayed(lookups)).then(|| unsafe { &(*table).marks });
        Some((found, marks))
    }

    /// The table that is published at a place, unless it is being replaced: until the record names
    /// another one. For a thread that [does without fences](Record::does_without_fences).
    #[inline(always)]
    pub(crate) fn glance<'a>(
        published: &'a AtomicPtr<TableOf<P>>,
        record: &'a Record,
    ) -> Option<&'a TableOf<P>> {
        let address = published.load(Ordering::Relaxed); // not used before it is read again
        record.probe(address as usize);
        barrier::light_if_asymmetric();
        // Acquire: as in `probe`.
        let is_it = published.load(Ordering::Acquire) == address;
        // SAFETY: the record names the table, and it was published after the record did.
        is_it.then(|| unsafe { &*address })
    }

    /// Looks a key up where nearly all are found, at the first place in its first bucket that may
    /// be the key's. The rest is as with [`fast_lookup`](Self::fast_lookup), which is to follow if
    /// this is unsure.
    #[inline(always)]
    pub(crate) fn first_lookup<'a, Q>(
        published: &'a AtomicPtr<TableOf<P>>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Only keys of the user's can lead astray.
        let is_plain = compares_plainly::<K, Q>();
        let lookups = if is_plain { 0 } else { record.lookups.get() };
        let Some(table) = Self::glance(published, record) else { return Fast::Unsure };
        let bucket = table.index.bucket(table.index.first(hash));
        let tags = bucket.tags();
        let Some(lane) = tags.matching(hash).first() else {
            // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
            // first.
            let is_miss = !tags.were_passed_by()
                && table.old.is_none()
                && std::ptr::eq(published.load(Ordering::Acquire), table);
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
        // Comparing keys is the user's code and may have used this cache: then the table may be
        // gone.
        let astray = !is_plain && record.has_strayed(lookups);
        Fast::Hit((Found { entry, cell }, if astray { None } else { Some(&table.marks) }))
    }

    /// Looks a key up in the usual case, in the shard whose table is published at a place, for a
    /// lookup that is counted already, of a thread that [does without
    /// fences](Record::does_without_fences). Takes no lock, and writes nothing but the thread's own
    /// record. Takes as few instructions as it can: the fewer there are, the more lookups the
    /// processor has under way while it waits for the memory of the first.
    #[inline(always)]
    pub(crate) fn fast_lookup<'a, Q>(
        published: &'a AtomicPtr<TableOf<P>>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Only keys of the user's can lead astray.
        let is_plain = compares_plainly::<K, Q>();
        let lookups = if is_plain { 0 } else { record.lookups.get() };
        let Some(table) = Self::glance(published, record) else { return Fast::Unsure };
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
                let found = key.equivalent(&entry.key);
                // Comparing keys is the user's code and may have used this cache: then the table
                // may be gone.
                let astray = !is_plain && record.has_strayed(lookups);
                if found {
                    std::mem::forget(keep);
                    let marks = if astray { None } else { Some(&table.marks) };
                    return Fast::Hit((Found { entry, cell }, marks));
                }
                if astray {
                    return Fast::Unsure;
                }
            }
            if !tags.were_passed_by() {
                // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
                // first.
                let is_miss =
                    table.old.is_none() && std::ptr::eq(published.load(Ordering::Acquire), table);
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

    /// Looks a key up, whatever happens meanwhile. Also returns the table that was searched, which
    /// the record names after a `counted` lookup, unless comparing keys has [led
    /// astray](Record::has_strayed).
    ///
    /// Comparing keys is the user's code and may use this cache, that is, probe other tables and
    /// replace this one. So a cell names the table throughout.
    #[inline(never)]
    fn slow_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
        counted: bool,
    ) -> Option<(Found<'a, K, V>, *const TableOf<P>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not where this may be in the middle of another lookup, which does not look at that again.
        if counted && !barrier::is_asymmetric() {
            record.knows_to_fence();
        }
        let kept = Keep::new(record.another_cell());
        'again: loop {
            let address = if counted { self.probe(record) } else { self.probe_by(&kept) };
            // From the record to the cell: that is the order in which they are read.
            kept.name(address as usize);
            // SAFETY: the record or the cell names the table, and it was published after they did;
            // the cell goes on to.
            let table = unsafe { &*address };
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
                            return Some((Found { entry, cell }, address));
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
            // Acquire: if the table has been replaced, what was not found here may be in the next
            // one.
            if self.published().load(Ordering::Acquire).cast_const() == address {
                return None;
            }
        }
    }

    /// The present table, kept from being freed while a cell names it.
    fn probe_by(&self, cell: &Keep<'_>) -> *const TableOf<P> {
        // not used before it is read again
        let mut table = self.published().load(Ordering::Relaxed);
        loop {
            cell.name(table as usize);
            barrier::light();
            // Acquire: as in `probe`.
            let again = self.published().load(Ordering::Acquire);
            if again == table {
                return table;
            }
            table = again;
        }
    }

    /// The address at which a key's entry may be, to prefetch it. The record must name the table.
    #[inline(always)]
    pub(crate) fn likely_address(table: &TableOf<P>, hash: Hash32) -> *const Entry<K, V> {
        let bucket = table.index.bucket(table.index.first(hash));
        let place = bucket.tags().matching(hash).first().map_or(NOWHERE, |lane| bucket.place(lane));
        std::ptr::without_provenance(table.places.address::<Entry<K, V>>(place))
    }
}
