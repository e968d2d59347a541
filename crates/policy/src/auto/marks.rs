//! The marks of [`Auto`](super::Auto): hit counters, and a bit for each slot whose key is in the
//! sample.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Counters, HitKind, Marks, Plain, Slot, Touch};

/// Hit counters whose owner is told of hits on sampled slots. A hit on any other slot does what a
/// hit of [`QdClock`](crate::QdClock) does.
#[derive(Debug, Clone)]
pub struct AutoMarks {
    hits: Counters,
    /// A bit for each slot, set where the key is in the sample.
    sampled: Arc<[AtomicU64]>,
}

impl AutoMarks {
    pub(crate) fn new(hits: &Counters) -> Self {
        Self { hits: hits.clone(), sampled: Arc::default() }
    }

    /// Counts in `hits`, which have room for `slots`, from now on.
    pub(crate) fn follow(&mut self, hits: &Counters, slots: usize) {
        self.hits = hits.clone();
        let words = slots.div_ceil(WORD);
        if words > self.sampled.len() {
            let old = &self.sampled;
            let word = |at: usize| old.get(at).map_or(0, |word| word.load(Relaxed));
            self.sampled = (0..words).map(|at| AtomicU64::new(word(at))).collect();
        }
    }

    /// Returns the bytes of memory held besides the counters, which belong to the order.
    pub(crate) fn sampled_bytes(&self) -> usize {
        size_of_val(&*self.sampled)
    }

    /// Sets whether hits on a slot are reported to the owner.
    pub(crate) fn report(&self, slot: Slot, is_sampled: bool) {
        let (word, bit) = (&self.sampled[slot.index() / WORD], 1 << (slot.index() % WORD));
        // Only the owner writes the bits, so no other write is lost. A hit that sees an old bit is
        // missing in the sample, or is reported and ignored.
        let bits = word.load(Relaxed);
        let changed = if is_sampled { bits | bit } else { bits & !bit };
        if changed != bits {
            word.store(changed, Relaxed);
        }
    }
}

/// Number of slots in a word of bits.
const WORD: usize = u64::BITS as usize;

impl Marks for AutoMarks {
    /// Hits on sampled slots owe the order a visit.
    const KIND: HitKind = HitKind::LruLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        let mut hits = self.hits.clone();
        hits.reserve(slots);
        self.follow(&hits, slots);
    }

    fn memory_bytes(&self) -> usize {
        self.hits.memory_bytes() + self.sampled_bytes()
    }

    #[inline]
    fn touch(&self, slot: Slot) -> Touch {
        let _ = self.hits.touch(slot);
        // a hint: see `report`
        let word = self.sampled[slot.index() / WORD].load(Relaxed);
        if word >> (slot.index() % WORD) & 1 == 0 { Touch::Noted } else { Touch::TryPromote }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hits_on_sampled_slots_are_reported_and_all_are_counted() {
        let mut marks = AutoMarks::new(&Counters::new(7));
        marks.reserve(100);
        marks.report(Slot(70), true);
        let touched = |slot| {
            let touch = marks.touch(Slot(slot));
            (touch, marks.hits.get(Slot(slot)))
        };
        assert_eq!(touched(70), (Touch::TryPromote, 1));
        assert_eq!(touched(71), (Touch::Noted, 1));
        marks.report(Slot(70), false);
        assert_eq!(touched(70), (Touch::Noted, 2));
        let mut grown = marks.clone();
        grown.report(Slot(3), true);
        grown.reserve(1000);
        assert_eq!(
            (grown.touch(Slot(3)), grown.touch(Slot(999))),
            (Touch::TryPromote, Touch::Noted)
        );
    }
}
