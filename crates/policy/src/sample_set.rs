//! An unordered set of slots from which random ones can be drawn, for policies that sample.
//!
//! Members lie side by side in a flat array and the place of each is stored, so one is added,
//! removed or drawn in constant time. Frozen slots leave the set. Eight bytes a slot.

use crate::count::{Names, Operation};
use crate::lists::FrozenList;
use crate::sketch::Random;
use crate::{Cursor, Slot};

/// Stored place of a slot that is neither a member nor frozen.
const OUT: u32 = u32::MAX;
/// Flag in the stored place of a frozen slot; the other bits are its place in the frozen list.
const FROZEN: u32 = 1 << 31;

/// Seed of the random draws; any number works.
const SEED: u64 = 0xf10e;

/// Name under which insertions and removals, which share one array, are counted.
const NAMES: Names<1> = Names::new(["entries"]);

/// An unordered set of slots with random draws.
#[derive(Debug, Clone)]
pub(crate) struct SampleSet {
    members: Vec<Slot>,
    places: Vec<u32>,
    frozen: FrozenList,
    random: Random,
}

impl Default for SampleSet {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            places: Vec::new(),
            frozen: FrozenList::default(),
            random: Random::new(SEED),
        }
    }
}

impl SampleSet {
    pub(crate) fn reserve(&mut self, slots: usize) {
        if slots > self.places.len() {
            self.members.reserve(slots - self.members.len());
            self.places.resize(slots, OUT);
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len() + self.frozen.len()
    }

    /// Returns the slots that are not frozen, in no particular order.
    pub(crate) fn members(&self) -> &[Slot] {
        &self.members
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.places[slot.index()] < FROZEN
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot) {
        debug_assert_eq!(self.places[slot.index()], OUT, "slot {} is in the order already", slot.0);
        NAMES.note(0, Operation::Head);
        self.put(slot);
    }

    fn put(&mut self, slot: Slot) {
        self.places[slot.index()] = self.members.len() as u32;
        self.members.push(slot);
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        match std::mem::replace(&mut self.places[slot.index()], OUT) {
            OUT => {}
            frozen if frozen >= FROZEN => {
                let places = &mut self.places;
                self.frozen
                    .leave(frozen - FROZEN, |slot, place| places[slot.index()] = FROZEN + place);
            }
            place => {
                NAMES.note(0, Operation::Tail);
                self.take(place as usize);
            }
        }
    }

    fn take(&mut self, place: usize) {
        self.members.swap_remove(place);
        if let Some(moved) = self.members.get(place) {
            self.places[moved.index()] = place as u32;
        }
    }

    /// Returns a random member, which stays in the set.
    #[inline]
    pub(crate) fn draw(&mut self) -> Option<Slot> {
        NAMES.note(0, Operation::Draw);
        if self.members.is_empty() {
            None
        } else {
            Some(self.members[self.random.below(self.members.len())])
        }
    }

    /// Draws `samples` members and returns the one with the least `worth`.
    #[inline]
    pub(crate) fn worst<W: PartialOrd>(
        &mut self,
        samples: u64,
        worth: impl Fn(Slot) -> W,
    ) -> Option<Slot> {
        let mut worst = self.draw()?;
        let mut least = worth(worst);
        for _ in 1..samples {
            let slot = self.draw()?;
            let its = worth(slot);
            if its < least {
                (worst, least) = (slot, its);
            }
        }
        Some(worst)
    }

    pub(crate) fn transfer(&mut self, from: Slot, to: Slot) {
        let place = std::mem::replace(&mut self.places[from.index()], OUT);
        self.places[to.index()] = place;
        match place {
            OUT => {}
            frozen if frozen >= FROZEN => self.frozen.replace(frozen - FROZEN, to),
            place => self.members[place as usize] = to,
        }
    }

    /// Appends a batch of members by class, class 0 first and [`CLASSES`](Self::CLASSES) - 1 last.
    /// Each class is one walk through the members from the last to the first, so that removing the
    /// returned members skips none.
    pub(crate) fn rank(
        &self,
        from: Cursor,
        out: &mut Vec<Slot>,
        class: impl Fn(Slot) -> u32,
    ) -> Cursor {
        let Cursor { mut part, mut at } = from;
        let mut left = Cursor::BATCH;
        while part < Self::CLASSES {
            let end = at
                .checked_sub(1)
                .map_or(self.members.len(), |end| self.members.len().min(end as usize));
            let start = end.saturating_sub(left);
            let seen = self.members[start..end].iter().rev();
            out.extend(seen.filter(|&&slot| class(slot).min(Self::CLASSES - 1) == part));
            left -= end - start;
            if start > 0 {
                return Cursor { part, at: start as u32 + 1 };
            }
            (part, at) = (part + 1, 0);
        }
        Cursor::END
    }

    /// Number of classes that [`rank`](Self::rank) distinguishes.
    pub(crate) const CLASSES: u32 = 32;

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if self.contains(slot) {
                self.take(self.places[slot.index()] as usize);
                self.places[slot.index()] = FROZEN + self.frozen.push(slot);
            }
        }
    }

    /// Returns the frozen slots to the set and calls `back` with each.
    pub(crate) fn thaw(&mut self, back: impl Fn(Slot)) {
        for slot in self.frozen.take() {
            self.put(slot);
            back(slot);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.members.capacity() + self.places.capacity()) * size_of::<u32>()
            + self.frozen.memory_bytes()
    }
}

/// Implements the methods of [`Eviction`](crate::Eviction) that are equal for every policy whose
/// order is a [`SampleSet`] with marks that store the last use. `class` ranks a slot, 0 for slots
/// most worth keeping; `reweighed` names a method that stores a slot's new weight, where weights
/// matter.
macro_rules! ordered_by_samples {
    (order: $order:ident, marks: $marks:ident, class: |$this:ident, $slot:ident| $class:expr
     $(, resized: $resized:ident)? $(, reweighed: $reweighed:ident)? $(, moved: $moved:ident)?
     $(, memory: $memory:ident)?) => {
        fn reserve(&mut self, slots: usize) {
            self.$order.reserve(slots);
            $crate::Marks::reserve(&mut self.$marks, slots);
            $(self.$resized();)?
        }

        fn set_capacity(&mut self, _: u64) {}

        fn len(&self) -> usize {
            self.$order.len()
        }

        fn remove(&mut self, slot: $crate::Slot) {
            self.$order.remove(slot);
        }

        fn transfer(&mut self, from: $crate::Slot, to: $crate::Slot) {
            if from != to {
                self.$order.transfer(from, to);
                self.$marks.transfer(from, to);
                $(self.$moved(from, to);)?
            }
        }

        fn reweigh(&mut self, _slot: $crate::Slot, _weight: u32) {
            $(self.$reweighed(_slot, _weight);)?
        }

        fn rank(&self, from: $crate::Cursor, out: &mut Vec<$crate::Slot>) -> $crate::Cursor {
            let $this = self;
            self.$order.rank(from, out, |$slot| $class)
        }

        fn freeze(&mut self, slots: &[$crate::Slot]) {
            self.$order.freeze(slots);
        }

        fn thaw(&mut self) {
            let marks = &self.$marks;
            self.$order.thaw(|slot| marks.stamp(slot));
        }

        fn memory_bytes(&self) -> usize {
            self.$order.memory_bytes()
                + $crate::Marks::memory_bytes(&self.$marks)
                $(+ self.$memory())?
        }
    };
}
pub(crate) use ordered_by_samples;
