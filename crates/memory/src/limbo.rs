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
pub(crate) struct Retired {
    /// Where it lies, by its number.
    pub(crate) place: u32,
    pub(crate) weight: u32,
}

/// Holds what waits in a shard. The insertions of a batch touch the front of it only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Limbo {
    fresh: Vec<Retired>,
    fresh_weight: u64,
    /// It is time for a batch when so many are fresh, or they have so much weight.
    batch: usize,
    batch_weight: u64,
    older: Box<Older>,
}

/// Holds what waits for longer.
#[derive(Debug, Default)]
struct Older {
    aged: Vec<Retired>,
    /// Asked when they had left.
    aged_at: Round,
    /// Found to be looked at the last time: guards keep them.
    held: Vec<Retired>,
    /// Memory for the next batch.
    spare: Vec<Retired>,
}

/// Entries to be freed now, unless a thread reads them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Retired>,
    /// Asked when they had left.
    pub(crate) asked: Round,
}

impl Limbo {
    /// With batches of so many entries, or of so much weight.
    pub(crate) fn new(batch: usize, batch_weight: u64) -> Self {
        Self { fresh: Vec::new(), fresh_weight: 0, batch, batch_weight, older: Box::default() }
    }

    pub(crate) fn set_batch(&mut self, batch: usize, batch_weight: u64) {
        (self.batch, self.batch_weight) = (batch, batch_weight);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, retired: Retired) {
        self.fresh_weight += u64::from(retired.weight);
        self.fresh.push(retired);
    }

    /// Returns what guards were found to keep waits for the next batch.
    pub(crate) fn keep(&mut self, held: impl Iterator<Item = Retired>) {
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
        let lists = [&self.fresh, aged, held, spare];
        lists.iter().map(|list| list.capacity() * size_of::<Retired>()).sum()
    }

    /// Returns whether it is time for a batch.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.fresh.len() >= self.batch || self.fresh_weight >= self.batch_weight
    }

    /// A batch, if one has waited long enough, when it is time.
    pub(crate) fn turn(&mut self, records: &Records) -> Option<Batch> {
        if self.fresh_weight >= 2 * self.batch_weight {
            return Some(self.everything(records)); // too much to wait
        }
        let older = &mut *self.older;
        let asked = std::mem::replace(&mut older.aged_at, records.ask());
        self.fresh_weight = 0;
        let fresh = std::mem::replace(&mut self.fresh, std::mem::take(&mut older.spare));
        let mut entries = std::mem::replace(&mut older.aged, fresh);
        entries.append(&mut older.held); // older still
        (!entries.is_empty()).then_some(Batch { entries, asked })
    }

    /// All that waits, to be freed now.
    pub(crate) fn everything(&mut self, records: &Records) -> Batch {
        Batch { entries: self.take_all(), asked: records.ask() }
    }

    /// All that waits.
    pub(crate) fn take_all(&mut self) -> Vec<Retired> {
        self.fresh_weight = 0;
        let older = &mut *self.older;
        let mut entries = std::mem::replace(&mut older.aged, std::mem::take(&mut older.spare));
        entries.append(&mut self.fresh);
        entries.append(&mut older.held);
        entries
    }
}
