//! Entries on their way out: taken out of the index, perhaps still looked at.
//!
//! They wait in batches, because a check that no thread reads them takes a look at all threads, or
//! even a heavy barrier, regardless of their number. Two batches wait: by the time the younger one
//! is full, most threads have [answered](crate::grace) for the older one, or some other shard has
//! passed the barrier.

use std::collections::VecDeque;

use crate::records::Records;
use crate::retired::Round;
use crate::retired::{Batch, Retired, Waiting};

/// Room for so many that wait is kept.
const ROOM: usize = 64;

/// Entries of a shard that wait to be freed. An insertion touches the front of it only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Limbo {
    fresh: Vec<Retired>,
    fresh_weight: u64,
    /// It is time for a batch when so many are fresh, or they have so much weight. At most `batch`,
    /// and with what is aged at most twice that.
    due_at: usize,
    batch_weight: u64,
    older: Box<Older>,
}

/// Entries that wait for longer.
#[derive(Debug, Default)]
struct Older {
    aged: Vec<Retired>,
    /// Asked when they had left.
    aged_at: Round,
    /// Guards keep them, or did the last time.
    held: VecDeque<Waiting>,
    /// Memory for the next batch.
    spare: Vec<Retired>,
    /// Entries in a batch.
    batch: usize,
}

impl Limbo {
    /// With batches of so many entries, or of so much weight.
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
        self.fresh_weight += u64::from(retired.weight);
        self.fresh.push(retired);
    }

    /// Returns what guards were found to keep waits for the next batch.
    pub(crate) fn keep(&mut self, held: impl Iterator<Item = Waiting>) {
        self.older.held.extend(held);
    }

    /// Takes over memory for a later batch.
    pub(crate) fn recycle(&mut self, mut entries: Vec<Retired>) {
        entries.clear();
        self.older.spare = entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.older.aged.len() + self.older.held.len()
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let Older { aged, held, spare, .. } = &*self.older;
        let lists = [&self.fresh, aged, spare].map(Vec::capacity);
        lists.iter().sum::<usize>() * size_of::<Retired>() + held.capacity() * size_of::<Waiting>()
    }

    /// Returns whether it is time for a batch.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.fresh.len() >= self.due_at || self.fresh_weight >= self.batch_weight
    }

    /// A batch, if one has waited long enough, when it is time. With it come some of those that
    /// guards kept, so that many of them cost a batch no more than few.
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

    /// All that waits, to be freed now.
    pub(crate) fn everything(&mut self, records: &Records) -> Batch {
        self.fresh_weight = 0;
        let older = &mut *self.older;
        let mut entries = std::mem::replace(&mut older.aged, std::mem::take(&mut older.spare));
        entries.append(&mut self.fresh);
        let held = older.some_held(usize::MAX);
        self.set_due();
        Batch { entries, asked: records.ask(), held, is_urgent: true }
    }

    /// All that waits, for the end.
    pub(crate) fn take_all(&mut self) -> Vec<Retired> {
        let older = std::mem::take(&mut *self.older);
        let mut entries = std::mem::take(&mut self.fresh);
        entries.extend(older.aged);
        entries.extend(older.held.into_iter().map(|waiting| waiting.retired));
        entries
    }
}

impl Older {
    /// Takes so many of those that guards kept, in turn.
    fn some_held(&mut self, most: usize) -> Vec<Waiting> {
        let some = self.held.drain(..most.min(self.held.len())).collect();
        if self.held.capacity() > ROOM.max(8 * self.held.len()) {
            self.held.shrink_to(2 * self.held.len());
        }
        some
    }
}
