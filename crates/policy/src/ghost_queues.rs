//! Two exact ghost queues without links, which remember the keys that left and in what order.
//!
//! The departures of each queue are numbered. A ghost is its tag and its number, in the bucket that
//! its tag belongs to: a cache line, of which there are enough for all ghosts. A queue forgets its
//! oldest ghost by moving `oldest` past it, which touches no bucket: places whose number is before
//! `oldest` are free. So a ghost costs one cache line when it is added and one when it is looked
//! up, none when it is forgotten. One bit per number marks ghosts that are still present, because
//! some are taken out of the middle.
//!
//! Invariants: each ghost's bit is set and one place holds its number. A ghost that does not fit
//! into its bucket is in the first later bucket that had room. Every bucket on the way stores the
//! newest number of that queue which passed it.

use crate::count::{Names, Operation, looked_up_ghost};
use crate::ghosts::Tag;

/// Names of the two queues in operation counts, as in ARC.
const NAMES: Names<2> = Names::new(["B1", "B2"]);

/// Number of ghosts in a bucket. Together with the numbers of passed ghosts they fill a cache line.
const PLACES: usize = 7;
/// Number of ghosts per bucket when all are in use. At four, one bucket in twenty overflows.
const LOAD: usize = 4;
/// Presence bits per ghost; more bits make renumbering rarer.
const NUMBERS_PER_GHOST: usize = 4;
/// Minimum number of presence bits: two words, one of which a partly used first word may take.
const NUMBERS_MIN: usize = 128;
const WORD: usize = u64::BITS as usize;
/// Mask of a departure number: numbers have 31 bits and wrap around.
const NUMBER_MASK: u32 = u32::MAX >> 1;

/// A departure number with the number of its queue in the lowest bit.
type Stamp = u32;

#[inline]
fn queue_of(stamp: Stamp) -> usize {
    (stamp & 1) as usize
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; PLACES],
    stamps: [Stamp; PLACES],
    /// For each queue, the newest ghost that found no room in this bucket and was put into a later
    /// one.
    passed: [Stamp; 2],
}

/// The departure numbers of one queue.
#[derive(Debug, Clone)]
struct Queue {
    /// Number of the oldest remembered ghost; earlier ghosts are forgotten.
    oldest: u32,
    /// Number that the next departure gets.
    next: u32,
    /// One presence bit per number, indexed by the number's lowest bits.
    present: Vec<u64>,
    /// Weights of the ghosts, stored only once one differs from 1.
    weights: Vec<u32>,
    len: usize,
    size: u64,
}

impl Default for Queue {
    fn default() -> Self {
        // Places start with number 0, which is before the oldest.
        Self { oldest: 1, next: 1, present: Vec::new(), weights: Vec::new(), len: 0, size: 0 }
    }
}

impl Queue {
    /// Returns the distance from one number to another, across the wrap-around.
    #[inline]
    fn distance(from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & NUMBER_MASK
    }

    #[inline]
    fn is_current(&self, stamp: Stamp) -> bool {
        Self::distance(self.oldest, stamp >> 1) < Self::distance(self.oldest, self.next)
    }

    #[inline]
    fn at(&self, number: u32) -> (usize, u64) {
        let at = number as usize & (self.present.len() * WORD - 1);
        (at / WORD, 1 << (at % WORD))
    }

    #[inline]
    fn is_present(&self, number: u32) -> bool {
        let (word, bit) = self.at(number);
        self.present[word] & bit != 0
    }

    #[inline]
    fn weight(&self, number: u32) -> u64 {
        if self.weights.is_empty() {
            1
        } else {
            u64::from(self.weights[number as usize & (self.weights.len() - 1)])
        }
    }

    /// Assigns the next number to a ghost of this weight, and returns it.
    #[inline]
    fn number(&mut self, weight: u64) -> u32 {
        let number = self.next;
        let (word, bit) = self.at(number);
        self.present[word] |= bit;
        if weight != 1 || !self.weights.is_empty() {
            let numbers = self.present.len() * WORD;
            self.weights.resize(numbers, 1);
            self.weights[number as usize & (numbers - 1)] = weight as u32;
        }
        self.next = (number + 1) & NUMBER_MASK;
        self.len += 1;
        self.size += weight;
        number
    }

    /// Forgets a number that is present.
    #[inline]
    fn forget(&mut self, number: u32) {
        let (word, bit) = self.at(number);
        self.present[word] &= !bit;
        self.len -= 1;
        self.size -= self.weight(number);
    }

    /// Forgets the oldest ghost; returns false if the queue was empty.
    fn pop_oldest(&mut self) -> bool {
        while self.oldest != self.next {
            let number = self.oldest;
            self.oldest = (number + 1) & NUMBER_MASK;
            if self.is_present(number) {
                self.forget(number);
                return true;
            }
        }
        false
    }

    /// Returns whether the presence bits are used up. The word with the oldest ghost cannot be
    /// reused yet.
    #[inline]
    fn is_full(&self) -> bool {
        Self::distance(self.oldest, self.next) as usize + WORD >= self.present.len() * WORD
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let oldest = self.oldest;
        (0..Self::distance(oldest, self.next)).map(move |step| (oldest + step) & NUMBER_MASK)
    }

    /// Grows the presence bits to `numbers`.
    fn reserve(&mut self, numbers: usize) {
        let mut grown = Self { present: vec![0; numbers / WORD], ..self.clone() };
        grown.weights.resize(if self.weights.is_empty() { 0 } else { numbers }, 1);
        for number in self.numbers().filter(|&number| self.is_present(number)) {
            let (word, bit) = grown.at(number);
            grown.present[word] |= bit;
            if !grown.weights.is_empty() {
                grown.weights[number as usize & (numbers - 1)] = self.weight(number) as u32;
            }
        }
        *self = grown;
    }
}

/// Two queues of tags, each from newest to oldest.
#[derive(Debug, Clone, Default)]
pub(crate) struct GhostQueues {
    buckets: Vec<Bucket>,
    queues: [Queue; 2],
    /// Maximum number of ghosts that both queues together can hold.
    room: usize,
    /// During renumbering: the set presence bits before each word.
    present_before: Vec<u32>,
}

impl GhostQueues {
    /// Allocates for `count` ghosts in both queues together.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count <= self.room {
            return;
        }
        self.room = count;
        let old =
            std::mem::replace(&mut self.buckets, vec![Bucket::default(); count.div_ceil(LOAD)]);
        let numbers = (count * NUMBERS_PER_GHOST).next_power_of_two().max(NUMBERS_MIN);
        for queue in &mut self.queues {
            queue.reserve(numbers);
        }
        self.present_before = vec![0; numbers / WORD];
        for bucket in old {
            for (tag, stamp) in bucket.tags.into_iter().zip(bucket.stamps) {
                if self.queues[queue_of(stamp)].is_current(stamp) {
                    self.place(tag, stamp);
                }
            }
        }
    }

    /// Returns the total weight of the ghosts in a queue.
    #[inline]
    pub(crate) fn size(&self, queue: usize) -> u64 {
        self.queues[queue].size
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag.spread()) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Puts a ghost into the first free place at or after its bucket. One must be free.
    #[inline]
    fn place(&mut self, tag: u32, stamp: Stamp) {
        let mut at = self.home(Tag::from_bits(tag));
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            let free = |&known: &Stamp| !self.queues[queue_of(known)].is_current(known);
            if let Some(place) = bucket.stamps.iter().position(free) {
                bucket.tags[place] = tag;
                bucket.stamps[place] = stamp;
                return;
            }
            let (queue, passed) =
                (&self.queues[queue_of(stamp)], &mut bucket.passed[queue_of(stamp)]);
            let age = |stamp: Stamp| Queue::distance(stamp >> 1, queue.next);
            if !queue.is_current(*passed) || age(stamp) < age(*passed) {
                *passed = stamp;
            }
            at = self.after(at);
        }
    }

    /// Adds a tag as the newest ghost of a queue.
    #[inline]
    pub(crate) fn push(&mut self, queue: usize, tag: Tag, weight: u64) {
        if self.queues[0].len + self.queues[1].len >= self.room {
            if self.room == 0 {
                return;
            }
            let longer = usize::from(self.queues[1].size > self.queues[0].size);
            self.pop_oldest(if self.queues[queue].len > 0 { queue } else { longer });
        }
        NAMES.note(queue, Operation::Head);
        if self.queues[queue].is_full() {
            self.renumber(queue);
        }
        let stamp = self.queues[queue].number(weight) << 1 | queue as Stamp;
        self.place(tag.bits(), stamp);
    }

    /// Forgets a tag and returns the queue that it was in.
    #[inline]
    pub(crate) fn take(&mut self, tag: Tag) -> Option<usize> {
        let mut at = self.home(tag);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            let mut same = (0..PLACES)
                .fold(0u32, |same, at| same | u32::from(bucket.tags[at] == tag.bits()) << at);
            while same != 0 {
                let place = same.trailing_zeros() as usize % PLACES;
                let stamp = bucket.stamps[place];
                let queue = &mut self.queues[queue_of(stamp)];
                if queue.is_current(stamp) && queue.is_present(stamp >> 1) {
                    queue.forget(stamp >> 1);
                    looked_up_ghost(true);
                    NAMES.note(queue_of(stamp), Operation::Delink);
                    bucket.stamps[place] = (queue.oldest.wrapping_sub(1) << 1) | stamp & 1;
                    return Some(queue_of(stamp));
                }
                same &= same - 1;
            }
            if !bucket.passed.iter().any(|&passed| self.queues[queue_of(passed)].is_current(passed))
            {
                break;
            }
            at = self.after(at);
        }
        looked_up_ghost(false);
        None
    }

    /// Forgets the oldest tag of a queue.
    #[inline]
    pub(crate) fn pop_oldest(&mut self, queue: usize) {
        if self.queues[queue].pop_oldest() {
            NAMES.note(queue, Operation::Tail);
        }
    }

    /// Forgets the oldest tags of a queue until its weight is at most `size`.
    #[inline]
    pub(crate) fn shrink(&mut self, queue: usize, size: u64) {
        while self.queues[queue].size > size {
            self.pop_oldest(queue);
        }
    }

    /// Renumbers a queue's ghosts without gaps: each gets `oldest` plus the number of ghosts before
    /// it.
    #[cold]
    fn renumber(&mut self, which: usize) {
        let queue = &mut self.queues[which];
        let oldest = queue.oldest;
        let words = queue.present.len();
        let mut present = 0;
        for step in 0..words {
            let word = (oldest as usize / WORD + step) % words;
            self.present_before[word] = present;
            present += queue.present[word].count_ones();
        }
        let before = |queue: &Queue, number: u32| {
            let (word, bit) = queue.at(number);
            self.present_before[word] + (queue.present[word] & (bit - 1)).count_ones()
        };
        let renumbered = |number: u32| oldest.wrapping_add(number) & NUMBER_MASK;
        if !queue.weights.is_empty() {
            let mask = queue.weights.len() - 1;
            for number in queue.numbers() {
                if queue.is_present(number) {
                    let now = renumbered(before(queue, number));
                    queue.weights[now as usize & mask] = queue.weights[number as usize & mask];
                }
            }
        }
        for bucket in &mut self.buckets {
            for stamp in &mut bucket.stamps {
                if queue_of(*stamp) == which && queue.is_current(*stamp) {
                    *stamp = renumbered(before(queue, *stamp >> 1)) << 1 | which as Stamp;
                }
            }
            let passed = &mut bucket.passed[which];
            if queue.is_current(*passed) {
                // The newest present one up to it, or the one before the oldest.
                let number = *passed >> 1;
                let upto = before(queue, number) + u32::from(queue.is_present(number));
                *passed = renumbered(upto.wrapping_sub(1)) << 1 | which as Stamp;
            }
        }
        queue.present.fill(0);
        queue.next = renumbered(present);
        for number in queue.numbers() {
            let (word, bit) = queue.at(number);
            queue.present[word] |= bit;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let queues = self.queues.iter().map(|queue| {
            queue.present.capacity() * size_of::<u64>()
                + queue.weights.capacity() * size_of::<u32>()
        });
        self.buckets.capacity() * size_of::<Bucket>()
            + queues.sum::<usize>()
            + self.present_before.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push { queue: usize, key: u64, weight: u32 },
        Take(u64),
        PopOldest(usize),
        Grow(usize),
    }

    fn steps(weight_max: u32) -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (0..2usize, 0..40u64, 1..=weight_max)
                .prop_map(|(queue, key, weight)| Step::Push { queue, key, weight }),
            16 => (0..40u64).prop_map(Step::Take),
            1 => (0..2usize).prop_map(Step::PopOldest),
            1 => (1..40usize).prop_map(Step::Grow),
        ];
        proptest::collection::vec(step, 0..1200)
    }

    /// Compares the queues with a simple model: two lists of keys and weights.
    fn behaves(steps: Vec<Step>) {
        let mut ghosts = GhostQueues::default();
        let mut model = [VecDeque::new(), VecDeque::new()];
        let mut room = 0;
        for step in steps {
            match step {
                Step::Push { queue, key, weight } => {
                    if room == 0 || model.iter().flatten().any(|&(known, _)| known == key) {
                        continue;
                    }
                    if model[0].len() + model[1].len() == room {
                        let full = if model[queue].is_empty() { 1 - queue } else { queue };
                        model[full].pop_front();
                    }
                    model[queue].push_back((key, weight));
                    ghosts.push(queue, Tag::of(key), u64::from(weight));
                }
                Step::Take(key) => {
                    let known = (0..2).find_map(|queue| {
                        let at = model[queue].iter().position(|&(known, _)| known == key)?;
                        model[queue].remove(at);
                        Some(queue)
                    });
                    assert_eq!(ghosts.take(Tag::of(key)), known, "{key}");
                }
                Step::PopOldest(queue) => {
                    model[queue].pop_front();
                    ghosts.pop_oldest(queue);
                }
                Step::Grow(count) => {
                    room = room.max(count);
                    ghosts.reserve(count);
                }
            }
            for (queue, ghosts_expected) in model.iter().enumerate() {
                let size: u64 = ghosts_expected.iter().map(|&(_, weight)| u64::from(weight)).sum();
                assert_eq!(ghosts.size(queue), size);
            }
        }
        for (key, queue) in
            (0..2).flat_map(|queue| model[queue].iter().map(move |&(key, _)| (key, queue)))
        {
            assert_eq!(ghosts.take(Tag::of(key)), Some(queue));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn ghost_queues_are_two_queues(steps in steps(1)) {
            behaves(steps);
        }

        #[test]
        fn weighted_ghost_queues_are_two_queues(steps in steps(9)) {
            behaves(steps);
        }
    }

    #[test]
    fn a_ghost_that_stays_outlives_renumbering() {
        let mut ghosts = GhostQueues::default();
        ghosts.reserve(8);
        ghosts.push(1, Tag::of(1), 3);
        for key in 2..10_000 {
            ghosts.push(1, Tag::of(key), 1);
            assert_eq!(ghosts.take(Tag::of(key)), Some(1));
        }
        assert_eq!(ghosts.size(1), 3);
        assert_eq!(ghosts.take(Tag::of(1)), Some(1));
    }
}
