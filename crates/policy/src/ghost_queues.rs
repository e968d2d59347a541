//! Exact ghost queues without links, which remember the keys that left and in what order.
//!
//! The departures of each queue are numbered. A ghost is its tag and its number, in the bucket that
//! its tag belongs to: a cache line, of which there are enough for all ghosts. A queue forgets its
//! oldest ghost by moving `oldest` past it, which touches no bucket: places whose number is before
//! `oldest` are free. So a ghost costs one cache line when it is added and one when it is looked
//! up, none when it is forgotten. One bit per number marks ghosts that are still present, because
//! some are taken out of the middle. Notes of ghosts are in the order of their numbers.
//!
//! A lookup compares all places of a bucket at once: most keys are no ghosts, and where one stands
//! matters for the few only. In a single queue a new ghost takes the first place, and the others
//! move on by one, as long as the last is free. So no branch depends on the places of the rest.
//! With two queues it takes the first free place.
//!
//! Invariants: each ghost's bit is set and one place holds its number. A ghost that does not fit
//! into its bucket is in the first later bucket that had room. Every bucket on the way stores the
//! newest number of that queue which passed it.

use crate::count::{Names, Operation, looked_up_ghost};
use crate::ghosts::Tag;

/// Number of ghosts in a bucket. Together with the numbers of passed ghosts they fill a cache line.
const PLACES: usize = 7;
/// Place where a bucket stores the newest ghost of each queue that found no room in it and was put
/// into a later one: among the tags that of the first queue, among the stamps that of the second.
const PASSED: usize = PLACES;
/// Number of ghosts per bucket when all are in use. At four, one bucket in twenty overflows.
const LOAD: usize = 4;
/// Minimum number of presence bits. At any number of ghosts a word of them is left for ghosts that
/// were taken out, besides the word that a partly used first one may take.
const NUMBERS_MIN: usize = 256;
const WORD: usize = u64::BITS as usize;
/// Mask of a departure number: numbers have 31 bits and wrap around.
const NUMBER_MASK: u32 = u32::MAX >> 1;

/// A departure number with the number of its queue in the lowest bit.
type Stamp = u32;

#[inline]
fn stamp_of(number: u32, queue: usize) -> Stamp {
    number << 1 | queue as Stamp
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; PLACES + 1],
    stamps: [Stamp; PLACES + 1],
}

impl Bucket {
    #[inline(always)]
    fn passed(&self, queue: usize) -> Stamp {
        if queue == 0 { self.tags[PASSED] } else { self.stamps[PASSED] }
    }

    fn set_passed(&mut self, queue: usize, stamp: Stamp) {
        if queue == 0 {
            self.tags[PASSED] = stamp;
        } else {
            self.stamps[PASSED] = stamp;
        }
    }

    /// Returns false if no place has a tag. If one has, or a passed ghost's stamp looks so, returns
    /// true.
    #[inline(always)]
    fn may_have(&self, tag: u32) -> bool {
        let mut has = false;
        for known in self.tags {
            has |= known == tag;
        }
        has
    }

    /// Puts a ghost into the first place, and moves the others on by one. The last is lost.
    #[inline(always)]
    fn put_first(&mut self, tag: u32, stamp: Stamp) {
        self.tags.copy_within(..PLACES - 1, 1);
        self.stamps.copy_within(..PLACES - 1, 1);
        (self.tags[0], self.stamps[0]) = (tag, stamp);
    }
}

/// The departures that each queue has not forgotten.
#[derive(Clone, Copy)]
struct Current<const N: usize> {
    /// Stamp of the oldest.
    oldest: [Stamp; N],
    /// Difference between the stamps of the oldest and of the next departure.
    span: [Stamp; N],
}

impl<const N: usize> Current<N> {
    #[inline(always)]
    fn has(&self, stamp: Stamp) -> bool {
        let queue = (stamp & 1) as usize % N;
        stamp.wrapping_sub(self.oldest[queue]) < self.span[queue]
    }
}

/// The departure numbers of one queue.
#[derive(Debug, Clone)]
struct Queue<Note> {
    /// Number of the oldest remembered ghost; earlier ghosts are forgotten.
    oldest: u32,
    /// Number that the next departure gets.
    next: u32,
    /// One presence bit per number, indexed by the number's lowest bits.
    present: Vec<u64>,
    /// Weights of the ghosts, stored only once one differs from 1.
    weights: Vec<u32>,
    notes: Vec<Note>,
    len: usize,
    size: u64,
}

impl<Note> Default for Queue<Note> {
    fn default() -> Self {
        // Places start with number 0, which is before the oldest.
        let (present, weights, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { oldest: 1, next: 1, present, weights, notes, len: 0, size: 0 }
    }
}

impl<Note: Copy + Default> Queue<Note> {
    /// Returns the distance from one number to another, across the wrap-around.
    #[inline]
    fn distance(from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & NUMBER_MASK
    }

    /// Returns the number of departures from the oldest remembered one on.
    #[inline]
    fn span(&self) -> u32 {
        Self::distance(self.oldest, self.next)
    }

    #[inline]
    fn mask(&self) -> usize {
        self.present.len() * WORD - 1
    }

    #[inline]
    fn at(&self, number: u32) -> (usize, u64) {
        let at = number as usize & self.mask();
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
            u64::from(self.weights[number as usize & self.mask()])
        }
    }

    #[inline]
    fn note(&self, number: u32) -> Note {
        match size_of::<Note>() {
            0 => Note::default(),
            _ => self.notes[number as usize & self.mask()],
        }
    }

    /// Assigns the next number to a ghost of this weight, and returns it.
    #[inline]
    fn number(&mut self, weight: u64, note: Note) -> u32 {
        let number = self.next;
        let (word, bit) = self.at(number);
        self.present[word] |= bit;
        let mask = self.mask();
        if weight != 1 || !self.weights.is_empty() {
            self.weights.resize(mask + 1, 1);
            self.weights[number as usize & mask] = weight as u32;
        }
        if size_of::<Note>() > 0 {
            self.notes[number as usize & mask] = note;
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

    /// Moves `oldest` to the oldest ghost that is present. Returns its number; `None` if there is
    /// none.
    #[inline]
    fn oldest(&mut self) -> Option<u32> {
        while self.oldest != self.next {
            if self.is_present(self.oldest) {
                return Some(self.oldest);
            }
            self.oldest = (self.oldest + 1) & NUMBER_MASK;
        }
        None
    }

    /// Forgets the oldest ghost and returns its note; `None` if the queue was empty.
    #[inline]
    fn pop_oldest(&mut self) -> Option<Note> {
        let number = self.oldest()?;
        self.forget(number);
        self.oldest = (number + 1) & NUMBER_MASK;
        Some(self.note(number))
    }

    /// Returns whether the presence bits are used up. The word with the oldest ghost cannot be
    /// reused yet.
    #[inline]
    fn is_full(&self) -> bool {
        self.span() as usize + WORD >= self.present.len() * WORD
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + use<Note> {
        let oldest = self.oldest;
        (0..self.span()).map(move |step| (oldest + step) & NUMBER_MASK)
    }

    /// Grows the presence bits to `numbers`.
    fn reserve(&mut self, numbers: usize) {
        let mut grown = Self {
            present: vec![0; numbers / WORD],
            weights: vec![1; if self.weights.is_empty() { 0 } else { numbers }],
            notes: vec![Note::default(); numbers],
            ..*self
        };
        for number in self.numbers().filter(|&number| self.is_present(number)) {
            let (word, bit) = grown.at(number);
            grown.present[word] |= bit;
            if !grown.weights.is_empty() {
                grown.weights[number as usize & (numbers - 1)] = self.weight(number) as u32;
            }
            grown.notes[number as usize & (numbers - 1)] = self.note(number);
        }
        *self = grown;
    }
}

/// A ghost that was found, until the next one is added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    bucket: usize,
    place: usize,
    stamp: Stamp,
}

/// One or two queues of tags, each from newest to oldest, with a note for each tag.
#[derive(Debug, Clone)]
pub(crate) struct GhostQueues<const N: usize, Note = ()> {
    buckets: Vec<Bucket>,
    queues: [Queue<Note>; N],
    /// Maximum number of ghosts that all queues together can hold.
    room: usize,
    /// During renumbering: the set presence bits before each word.
    present_before: Vec<u32>,
    names: Names<N>,
}

impl<const N: usize, Note: Copy + Default> GhostQueues<N, Note> {
    /// Presence bits per ghost; more bits make renumbering rarer. The bits of either of two queues
    /// must do for all ghosts, and one of them may hardly move.
    const NUMBERS_PER_GHOST: usize = if N == 1 { 2 } else { 4 };

    /// Creates empty queues with these names in operation counts.
    pub(crate) fn named(names: [&'static str; N]) -> Self {
        const { assert!(N == 1 || N == 2, "a stamp has one bit for the queue") };
        Self {
            buckets: Vec::new(),
            queues: std::array::from_fn(|_| Queue::default()),
            room: 0,
            present_before: Vec::new(),
            names: Names::new(names),
        }
    }

    /// Allocates for `count` ghosts in all queues together.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count <= self.room {
            return;
        }
        self.room = count;
        let old =
            std::mem::replace(&mut self.buckets, vec![Bucket::default(); count.div_ceil(LOAD)]);
        let numbers = (count * Self::NUMBERS_PER_GHOST).next_power_of_two().max(NUMBERS_MIN);
        for queue in &mut self.queues {
            queue.reserve(numbers);
        }
        self.present_before = vec![0; numbers / WORD];
        let current = self.current();
        for bucket in old {
            for place in 0..PLACES {
                if current.has(bucket.stamps[place]) {
                    self.place(bucket.tags[place], bucket.stamps[place]);
                }
            }
        }
    }

    /// Returns the total weight of the ghosts in a queue.
    #[inline]
    pub(crate) fn size(&self, queue: usize) -> u64 {
        self.queues[queue].size
    }

    /// Returns the number of ghosts in a queue.
    #[inline]
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    #[inline(always)]
    fn current(&self) -> Current<N> {
        let stamps =
            |of: fn(&Queue<Note>) -> u32| std::array::from_fn(|queue| of(&self.queues[queue]) << 1);
        let mut oldest: [Stamp; N] = stamps(|queue| queue.oldest);
        oldest.iter_mut().zip(0..).for_each(|(stamp, queue)| *stamp |= queue);
        Current { oldest, span: stamps(Queue::span) }
    }

    #[inline(always)]
    fn queue_of(stamp: Stamp) -> usize {
        (stamp & 1) as usize % N
    }

    #[inline(always)]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag.spread()) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Puts a ghost into its bucket, or if there is no room into the first later one that has some.
    /// One must have.
    #[inline(always)]
    fn place(&mut self, tag: u32, stamp: Stamp) {
        let home = self.home(Tag::from_bits(tag));
        let current = self.current();
        let bucket = &mut self.buckets[home];
        // Of two ghosts with one tag, the one in the lower place is found. Between two queues that
        // decides how ARC and CAR adapt, so there the others stay where they are.
        if N == 1 && !current.has(bucket.stamps[PLACES - 1]) {
            bucket.put_first(tag, stamp);
        } else {
            self.place_at_or_after(home, tag, stamp);
        }
    }

    /// Puts a ghost into the first free place at or after a bucket.
    #[inline(never)]
    fn place_at_or_after(&mut self, mut at: usize, tag: u32, stamp: Stamp) {
        let current = self.current();
        let which = Self::queue_of(stamp);
        let next = self.queues[which].next;
        let age = |stamp: Stamp| Queue::<Note>::distance(stamp >> 1, next);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(free) = (0..PLACES).find(|&place| !current.has(bucket.stamps[place])) {
                (bucket.tags[free], bucket.stamps[free]) = (tag, stamp);
                return;
            }
            let passed = bucket.passed(which);
            if !current.has(passed) || age(stamp) < age(passed) {
                bucket.set_passed(which, stamp);
            }
            at = if at + 1 < self.buckets.len() { at + 1 } else { 0 };
        }
    }

    /// Adds a tag as the newest ghost of a queue. If there is one of this tag already, both are
    /// kept.
    #[inline(always)]
    pub(crate) fn push(&mut self, queue: usize, tag: Tag, weight: u64, note: Note) {
        if self.make_room(queue) {
            self.push_newest(queue, tag, weight, note);
        }
    }

    /// Adds a tag as the newest ghost of a queue, instead of one with this tag. Room is made
    /// before the other is forgotten.
    #[inline(always)]
    pub(crate) fn push_instead(&mut self, queue: usize, tag: Tag, weight: u64, note: Note) {
        if self.make_room(queue) {
            if let Some(found) = self.find(tag) {
                self.remove(found);
            }
            self.push_newest(queue, tag, weight, note);
        }
    }

    /// Forgets the oldest ghost of a queue, or of the larger one if that is empty, if all are in
    /// use. Returns false if there is room for none.
    #[inline(always)]
    fn make_room(&mut self, queue: usize) -> bool {
        if self.queues.iter().map(|queue| queue.len).sum::<usize>() >= self.room {
            if self.room == 0 {
                return false;
            }
            let larger = usize::from(N > 1 && self.queues[N - 1].size > self.queues[0].size);
            self.pop_oldest(if self.queues[queue].len > 0 { queue } else { larger });
        }
        true
    }

    #[inline(always)]
    fn push_newest(&mut self, queue: usize, tag: Tag, weight: u64, note: Note) {
        self.names.note(queue, Operation::Head);
        if self.queues[queue].is_full() {
            self.renumber(queue);
        }
        let stamp = stamp_of(self.queues[queue].number(weight, note), queue);
        self.place(tag.bits(), stamp);
    }

    /// Returns the ghost of a tag.
    #[inline(always)]
    pub(crate) fn find(&self, tag: Tag) -> Option<Found> {
        let home = self.home(tag);
        let bucket = self.buckets.get(home)?; // there is none without room
        let current = self.current();
        let has_passed = (0..N).any(|queue| current.has(bucket.passed(queue)));
        if bucket.may_have(tag.bits()) || has_passed { self.find_from(home, tag) } else { None }
    }

    /// Returns the ghost of a tag in a bucket, or in a later one that it was put into.
    #[inline(never)]
    fn find_from(&self, home: usize, tag: Tag) -> Option<Found> {
        let current = self.current();
        let later = (home..self.buckets.len()).chain(0..home);
        for at in later {
            let bucket = &self.buckets[at];
            for place in 0..PLACES {
                let stamp = bucket.stamps[place];
                if bucket.tags[place] == tag.bits()
                    && current.has(stamp)
                    && self.queues[Self::queue_of(stamp)].is_present(stamp >> 1)
                {
                    return Some(Found { bucket: at, place, stamp });
                }
            }
            if !(0..N).any(|queue| current.has(bucket.passed(queue))) {
                break;
            }
        }
        None
    }

    /// Returns whether a ghost that was found is still remembered.
    #[inline]
    pub(crate) fn remembers(&self, found: Found) -> bool {
        self.current().has(found.stamp)
    }

    /// Returns the note of a ghost that was found.
    #[inline]
    pub(crate) fn note(&self, found: Found) -> Note {
        self.queues[Self::queue_of(found.stamp)].note(found.stamp >> 1)
    }

    /// Forgets a ghost that was found and is still remembered.
    #[inline]
    fn remove(&mut self, found: Found) {
        let Found { bucket, place, stamp } = found;
        let which = Self::queue_of(stamp);
        let queue = &mut self.queues[which];
        queue.forget(stamp >> 1);
        self.names.note(which, Operation::Delink);
        self.buckets[bucket].stamps[place] = stamp_of(queue.oldest.wrapping_sub(1), which);
    }

    /// Forgets the ghost of a tag, found before or not, and counts the lookup. Returns its queue.
    #[inline(always)]
    pub(crate) fn take_found(&mut self, found: Option<Found>) -> Option<usize> {
        looked_up_ghost(found.is_some());
        let found = found?;
        self.remove(found);
        Some(Self::queue_of(found.stamp))
    }

    /// Forgets a tag and returns the queue that it was in.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: Tag) -> Option<usize> {
        let found = self.find(tag);
        self.take_found(found)
    }

    /// Forgets a tag and returns its note.
    #[inline(always)]
    pub(crate) fn take_note(&mut self, tag: Tag) -> Option<Note> {
        let found = self.find(tag);
        let note = found.map(|found| self.note(found));
        self.take_found(found);
        note
    }

    /// Returns the note and the weight of the oldest tag of a queue.
    #[inline]
    pub(crate) fn oldest(&mut self, queue: usize) -> Option<(Note, u64)> {
        let queue = &mut self.queues[queue];
        queue.oldest().map(|number| (queue.note(number), queue.weight(number)))
    }

    /// Forgets the oldest tag of a queue.
    #[inline]
    pub(crate) fn pop_oldest(&mut self, queue: usize) {
        if self.queues[queue].pop_oldest().is_some() {
            self.names.note(queue, Operation::Tail);
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
        let current = self.current();
        let queue = &mut self.queues[which];
        let oldest = queue.oldest;
        let words = queue.present.len();
        let mut present = 0;
        for step in 0..words {
            let word = (oldest as usize / WORD + step) % words;
            self.present_before[word] = present;
            present += queue.present[word].count_ones();
        }
        let before = |queue: &Queue<Note>, number: u32| {
            let (word, bit) = queue.at(number);
            self.present_before[word] + (queue.present[word] & (bit - 1)).count_ones()
        };
        let renumbered = |number: u32| oldest.wrapping_add(number) & NUMBER_MASK;
        if !queue.weights.is_empty() || size_of::<Note>() > 0 {
            let mask = queue.mask();
            for number in queue.numbers() {
                if !queue.is_present(number) {
                    continue;
                }
                let now = renumbered(before(queue, number)) as usize & mask;
                queue.notes[now] = queue.notes[number as usize & mask];
                if !queue.weights.is_empty() {
                    queue.weights[now] = queue.weights[number as usize & mask];
                }
            }
        }
        for bucket in &mut self.buckets {
            for stamp in &mut bucket.stamps[..PLACES] {
                if Self::queue_of(*stamp) == which && current.has(*stamp) {
                    *stamp = stamp_of(renumbered(before(queue, *stamp >> 1)), which);
                }
            }
            let passed = bucket.passed(which);
            if current.has(passed) {
                // The newest present one up to it, or the one before the oldest.
                let number = passed >> 1;
                let upto = before(queue, number) + u32::from(queue.is_present(number));
                bucket.set_passed(which, stamp_of(renumbered(upto.wrapping_sub(1)), which));
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
                + size_of_val(&queue.notes[..])
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

    /// Compares `N` queues with a simple model: lists of keys, weights and notes.
    fn behaves<const N: usize>(steps: Vec<Step>) {
        let mut ghosts = GhostQueues::<N, u64>::named(["ghosts"; N]);
        let mut model: [VecDeque<(u64, u64, u64)>; N] = std::array::from_fn(|_| VecDeque::new());
        let mut room = 0;
        for (step, note) in steps.into_iter().zip(0u64..) {
            match step {
                Step::Push { queue, key, weight } => {
                    let (queue, weight) = (queue % N, u64::from(weight));
                    if room > 0 {
                        if model.iter().map(VecDeque::len).sum::<usize>() == room {
                            let full = if model[queue].is_empty() { N - 1 - queue } else { queue };
                            model[full].pop_front();
                        }
                        model.iter_mut().for_each(|list| list.retain(|ghost| ghost.0 != key));
                        model[queue].push_back((key, weight, note));
                    }
                    ghosts.push_instead(queue, Tag::of(key), weight, note);
                }
                Step::Take(key) => {
                    let known = (0..N).find_map(|queue| {
                        let at = model[queue].iter().position(|ghost| ghost.0 == key)?;
                        Some((queue, model[queue].remove(at)?))
                    });
                    let found = ghosts.find(Tag::of(key));
                    let note = found.map(|found| ghosts.note(found));
                    assert_eq!(note, known.map(|(_, ghost)| ghost.2), "{key}");
                    assert_eq!(ghosts.take_found(found), known.map(|(queue, _)| queue), "{key}");
                }
                Step::PopOldest(queue) => {
                    model[queue % N].pop_front();
                    ghosts.pop_oldest(queue % N);
                }
                Step::Grow(count) => {
                    room = room.max(count);
                    ghosts.reserve(count);
                }
            }
            for (queue, expected) in model.iter().enumerate() {
                assert_eq!(ghosts.size(queue), expected.iter().map(|ghost| ghost.1).sum());
                assert_eq!(ghosts.len(queue), expected.len());
                let oldest = expected.front().map(|ghost| (ghost.2, ghost.1));
                assert_eq!(ghosts.oldest(queue), oldest);
            }
        }
        for (list, queue) in model.iter().zip(0..) {
            list.iter().for_each(|ghost| assert_eq!(ghosts.take(Tag::of(ghost.0)), Some(queue)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn ghost_queues_are_two_queues(steps in steps(1)) {
            behaves::<2>(steps);
        }

        #[test]
        fn weighted_ghost_queues_are_two_queues(steps in steps(9)) {
            behaves::<2>(steps);
        }

        #[test]
        fn one_ghost_queue_is_a_queue(steps in steps(9)) {
            behaves::<1>(steps);
        }
    }

    #[test]
    fn a_ghost_that_stays_outlives_renumbering() {
        let mut ghosts = GhostQueues::<2, char>::named(["B1", "B2"]);
        ghosts.reserve(8);
        ghosts.push(1, Tag::of(1), 3, 'a');
        for key in 2..10_000 {
            ghosts.push(1, Tag::of(key), 1, 'b');
            assert_eq!(ghosts.take(Tag::of(key)), Some(1));
        }
        assert_eq!(ghosts.size(1), 3);
        assert_eq!(ghosts.take_note(Tag::of(1)), Some('a'));
    }

    #[test]
    fn a_ghost_found_is_remembered_until_the_queue_forgets_it() {
        let mut ghosts = GhostQueues::<1>::named(["ghosts"]);
        ghosts.reserve(8);
        (1..4).for_each(|key| ghosts.push(0, Tag::of(key), 1, ()));
        let found = ghosts.find(Tag::of(2)).expect("it was added");
        ghosts.pop_oldest(0);
        assert!(ghosts.remembers(found));
        ghosts.pop_oldest(0);
        assert!(!ghosts.remembers(found));
    }

    #[test]
    fn two_ghosts_of_one_tag_are_kept_unless_one_is_instead_of_the_other() {
        let mut ghosts = GhostQueues::<1, u8>::named(["ghosts"]);
        ghosts.reserve(8);
        (1..3).for_each(|note| ghosts.push(0, Tag::of(7), 1, note));
        assert_eq!(ghosts.len(0), 2);
        ghosts.pop_oldest(0);
        ghosts.push_instead(0, Tag::of(7), 1, 3);
        assert_eq!((ghosts.len(0), ghosts.take_note(Tag::of(7))), (1, Some(3)));
    }
}
