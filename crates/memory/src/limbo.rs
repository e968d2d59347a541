//! Limbo: entries that were removed from the index and that threads may still read.
//!
//! They wait in batches, because the check that no thread reads them visits all threads, or even
//! needs a heavy barrier, however few they are. Two batches wait. By the time the younger one is
//! full, most threads have [answered](crate::retired) for the older one, or another shard has
//! passed the barrier.

use std::collections::VecDeque;

use crate::records::Records;
use crate::retired::{Batch, Retired, Round, Waiting};

/// Capacity up to which the queue of waiting entries is not shrunk.
const ROOM: usize = 64;

/// Removed entries of a shard that wait to be freed. An insertion touches its first fields only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Limbo {
    fresh: Vec<Retired>,
    fresh_weight: u64,
    /// Number of fresh entries at which a batch is due; their weight may make it due earlier. At
    /// most `batch`, and at most twice that together with the aged entries.
    due_at: usize,
    batch_weight: u64,
    older: Box<Older>,
}

/// The entries that have waited for longer.
#[derive(Debug, Default)]
struct Older {
    aged: Vec<Retired>,
    /// Round that was asked after the aged entries had left.
    aged_at: Round,
    /// Entries that guards kept at the last check.
    held: VecDeque<Waiting>,
    /// Memory for the next batch.
    spare: Vec<Retired>,
    /// Entries in a batch.
    batch: usize,
}

impl Limbo {
    /// Creates a limbo with batches of this many entries, or of this weight.
    pub(crate) fn new(batch: usize, batch_weight: u64) -> Self {
        let older = Box::new(Older { batch, ..Older::default() });
        Self { fresh: Vec::new(), fresh_weight: 0, due_at: batch, batch_weight, older }
    }

    pub(crate) fn set_batch(&mut self, batch: usize, batch_weight: u64) {
        (self.older.batch, self.batch_weight) = (batch, batch_weight);
        self.set_due();
    }

    fn set_due(&mut self) {
        let Older { batch, aged, .. } = &*self.older;
        self.due_at = (2 * batch).saturating_sub(aged.len()).clamp(1, *batch);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, retired: Retired) {
        self.fresh_weight += self.counted(&retired);
        self.fresh.push(retired);
    }

    /// Returns the weight that an entry counts here. One that is too heavy to tell makes a batch
    /// due.
    #[inline(always)]
    fn counted(&self, retired: &Retired) -> u64 {
        match retired.weight {
            u32::MAX => self.batch_weight,
            weight => weight.into(),
        }
    }

    /// Adds entries that guards were found to keep. They wait for the next batch.
    pub(crate) fn keep(&mut self, held: impl Iterator<Item = Waiting>) {
        self.older.held.extend(held);
    }

    /// Takes a waiting entry, which the caller then has to free or to [keep](Self::keep). Examines
    /// all waiting entries, those that left last first.
    pub(crate) fn take(&mut self, is_it: impl Fn(&Retired) -> bool) -> Option<Retired> {
        if let Some(at) = self.fresh.iter().rposition(&is_it) {
            let retired = self.fresh.swap_remove(at);
            // The weight of a batch may have changed since.
            self.fresh_weight = self.fresh_weight.saturating_sub(self.counted(&retired));
            return Some(retired);
        }
        let older = &mut *self.older;
        if let Some(at) = older.aged.iter().rposition(&is_it) {
            let retired = older.aged.swap_remove(at);
            self.set_due();
            return Some(retired);
        }
        let at = older.held.iter().rposition(|waiting| is_it(&waiting.retired))?;
        older.held.swap_remove_back(at).map(|waiting| waiting.retired)
    }

    /// Takes over memory for a later batch.
    pub(crate) fn recycle(&mut self, mut entries: Vec<Retired>) {
        entries.clear();
        self.older.spare = entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.older.aged.len() + self.older.held.len()
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let Older { aged, held, spare, .. } = &*self.older;
        let lists = [&self.fresh, aged, spare].map(Vec::capacity);
        lists.iter().sum::<usize>() * size_of::<Retired>() + held.capacity() * size_of::<Waiting>()
    }

    /// Returns true if a batch is due.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.fresh.len() >= self.due_at || self.fresh_weight >= self.batch_weight
    }

    /// Returns the batch that has waited long enough, if there is one. It includes some of the
    /// entries that guards kept, so the number of those does not make a batch dearer.
    pub(crate) fn turn(&mut self, records: &Records) -> Option<Batch> {
        let is_too_much =
            self.fresh_weight >= 2 * self.batch_weight || self.fresh.len() >= 2 * self.older.batch;
        let (asked, older) = (records.ask(), &mut *self.older);
        self.fresh_weight = 0;
        let fresh = std::mem::replace(&mut self.fresh, std::mem::take(&mut older.spare));
        let before = std::mem::replace(&mut older.aged_at, asked);
        let mut entries = std::mem::replace(&mut older.aged, fresh);
        let asked = if is_too_much {
            entries.append(&mut older.aged); // too much to wait
            asked
        } else {
            before
        };
        let held = older.some_held(2 * older.batch);
        self.set_due();
        let is_empty = entries.is_empty() && held.is_empty();
        (!is_empty).then_some(Batch { entries, asked, held, is_urgent: false })
    }

    /// Returns all waiting entries as one batch, to be freed now.
    pub(crate) fn everything(&mut self, records: &Records) -> Batch {
        self.fresh_weight = 0;
        let older = &mut *self.older;
        let mut entries = std::mem::replace(&mut older.aged, std::mem::take(&mut older.spare));
        entries.append(&mut self.fresh);
        let held = older.some_held(usize::MAX);
        self.set_due();
        Batch { entries, asked: records.ask(), held, is_urgent: true }
    }

    /// Takes all waiting entries, at the end of the cache.
    pub(crate) fn take_all(&mut self) -> Vec<Retired> {
        let older = std::mem::take(&mut *self.older);
        let mut entries = std::mem::take(&mut self.fresh);
        entries.extend(older.aged);
        entries.extend(older.held.into_iter().map(|waiting| waiting.retired));
        entries
    }
}

impl Older {
    /// Takes up to `most` of the entries that guards kept, in turn.
    fn some_held(&mut self, most: usize) -> Vec<Waiting> {
        let some = self.held.drain(..most.min(self.held.len())).collect();
        if self.held.capacity() > ROOM.max(8 * self.held.len()) {
            self.held.shrink_to(2 * self.held.len());
        }
        some
    }
}
