//! Entries on their way out: taken out of the index, perhaps still looked at.
//!
//! They wait in batches, because a check that no thread reads them takes a look at all threads, or
//! even a heavy barrier, regardless of their number. Two batches wait: by the time the younger one
//! is full, most threads have [answered](crate::grace) for the older one, or some other shard has
//! passed the barrier.

use crate::grace::Round;
use crate::records::Records;

/// An entry that was taken out.
#[derive(Debug)]
pub(crate) struct Retired<E> {
    pub(crate) entry: *mut E,
    /// Where it lies, by its number.
    pub(crate) place: u32,
    pub(crate) weight: u32,
}

/// Holds what waits in a shard.
#[derive(Debug)]
pub(crate) struct Limbo<E, T> {
    fresh: Vec<Retired<E>>,
    fresh_weight: u64,
    aged: Vec<Retired<E>>,
    /// Asked when they had left.
    aged_at: Round,
    /// Found to be looked at the last time: guards keep them.
    held: Vec<Retired<E>>,
    /// Tables that were replaced.
    tables: Vec<*mut T>,
    /// Tables that a thread was probing at the last check: they wait for the next batch.
    tables_probed: Vec<*mut T>,
    /// Memory for the next batch.
    spare: Vec<Retired<E>>,
    batch: usize,
    batch_weight: u64,
}

/// Entries and tables to be freed now, unless a thread reads them.
#[derive(Debug)]
pub(crate) struct Batch<E, T> {
    pub(crate) entries: Vec<Retired<E>>,
    pub(crate) tables: Vec<*mut T>,
    /// Asked when they had left.
    pub(crate) asked: Round,
}

impl<E, T> Limbo<E, T> {
    /// With batches of so many entries, or of so much weight.
    pub(crate) fn new(batch: usize, batch_weight: u64) -> Self {
        Self {
            fresh: Vec::new(),
            fresh_weight: 0,
            aged: Vec::new(),
            aged_at: Round::default(),
            held: Vec::new(),
            tables: Vec::new(),
            tables_probed: Vec::new(),
            spare: Vec::new(),
            batch,
            batch_weight,
        }
    }

    pub(crate) fn set_batch(&mut self, batch: usize, batch_weight: u64) {
        (self.batch, self.batch_weight) = (batch, batch_weight);
    }

    pub(crate) fn push(&mut self, retired: Retired<E>) {
        self.fresh_weight += u64::from(retired.weight);
        self.fresh.push(retired);
    }

    pub(crate) fn push_table(&mut self, table: *mut T) {
        self.tables.push(table);
    }

    /// Returns what guards were found to keep waits for the next batch.
    pub(crate) fn keep(&mut self, held: impl Iterator<Item = Retired<E>>) {
        self.held.extend(held);
    }

    /// A table that was still probed waits, too.
    pub(crate) fn keep_table(&mut self, table: *mut T) {
        self.tables_probed.push(table);
    }

    /// Takes over memory for a later batch.
    pub(crate) fn recycle(&mut self, mut entries: Vec<Retired<E>>) {
        entries.clear();
        self.spare = entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.aged.len() + self.held.len()
    }

    /// Returns whether it is time for a batch.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.fresh.len() >= self.batch
            || self.fresh_weight >= self.batch_weight
            || !self.tables.is_empty()
    }

    /// A batch, if one has waited long enough, when it is time.
    pub(crate) fn turn(&mut self, records: &Records) -> Option<Batch<E, T>> {
        if self.fresh_weight >= 2 * self.batch_weight || !self.tables.is_empty() {
            return Some(self.everything(records)); // too much to wait
        }
        let asked = std::mem::replace(&mut self.aged_at, records.ask());
        self.fresh_weight = 0;
        let fresh = std::mem::replace(&mut self.fresh, std::mem::take(&mut self.spare));
        let mut entries = std::mem::replace(&mut self.aged, fresh);
        entries.append(&mut self.held); // older still
        (!entries.is_empty()).then(|| Batch { entries, tables: Vec::new(), asked })
    }

    /// All that waits, to be freed now.
    pub(crate) fn everything(&mut self, records: &Records) -> Batch<E, T> {
        let (entries, tables) = self.take_all();
        Batch { entries, tables, asked: records.ask() }
    }

    /// All that waits.
    pub(crate) fn take_all(&mut self) -> (Vec<Retired<E>>, Vec<*mut T>) {
        self.fresh_weight = 0;
        let mut entries = std::mem::replace(&mut self.aged, std::mem::take(&mut self.spare));
        entries.append(&mut self.fresh);
        entries.append(&mut self.held);
        let mut tables = std::mem::take(&mut self.tables);
        tables.append(&mut self.tables_probed);
        (entries, tables)
    }
}
