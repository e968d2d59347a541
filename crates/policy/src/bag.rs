//! A set of slots without order, from which random ones can be drawn: for policies that sample.
//!
//! Members lie side by side in a flat array and each knows its place, so one is added, taken out or drawn in constant
//! time. Frozen slots leave the set. Eight bytes a slot.

use crate::random::Random;
use crate::{Cursor, Slot};

/// Place of a slot that is not there.
const OUT: u32 = u32::MAX;
/// Place of a slot that is frozen.
const FROZEN: u32 = u32::MAX - 1;

/// Seed of the draws; any number does.
const SEED: u64 = 0xf10e;

/// A set of slots.
#[derive(Debug, Clone)]
pub(crate) struct Bag {
    members: Vec<Slot>,
    places: Vec<u32>,
    frozen: Vec<Slot>,
    frozen_len: usize,
    random: Random,
}

impl Default for Bag {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            places: Vec::new(),
            frozen: Vec::new(),
            frozen_len: 0,
            random: Random::new(SEED),
        }
    }
}

impl Bag {
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
        self.members.len() + self.frozen_len
    }

    /// Slots that are not frozen, in no particular order.
    pub(crate) fn members(&self) -> &[Slot] {
        &self.members
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.places[slot.index()] < FROZEN
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot) {
        debug_assert_eq!(self.places[slot.index()], OUT, "slot {} is in the order already", slot.0);
        self.put(slot);
    }

    fn put(&mut self, slot: Slot) {
        self.places[slot.index()] = self.members.len() as u32;
        self.members.push(slot);
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        match self.places[slot.index()] {
            OUT => {}
            FROZEN => self.frozen_len -= 1,
            place => self.take(place as usize),
        }
        self.places[slot.index()] = OUT;
    }

    fn take(&mut self, place: usize) {
        self.members.swap_remove(place);
        if let Some(moved) = self.members.get(place) {
            self.places[moved.index()] = place as u32;
        }
    }

    /// A random member.
    #[inline]
    pub(crate) fn draw(&mut self) -> Option<Slot> {
        if self.members.is_empty() { None } else { Some(self.members[self.random.below(self.members.len())]) }
    }

    /// Of `samples` random members the one whose `worth` is least.
    #[inline]
    pub(crate) fn worst<W: PartialOrd>(&mut self, samples: u64, worth: impl Fn(Slot) -> W) -> Option<Slot> {
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
            FROZEN => self.frozen.push(to),
            place => self.members[place as usize] = to,
        }
    }

    /// Members by class, class 0 first and [`CLASSES`](Self::CLASSES) - 1 last: one walk through the members per class.
    pub(crate) fn rank(&self, from: Cursor, out: &mut Vec<Slot>, class: impl Fn(Slot) -> u32) -> Cursor {
        let Cursor { mut part, mut at } = from;
        let mut left = Cursor::BATCH;
        while part < Self::CLASSES {
            let rest = self.members.get(at as usize..).unwrap_or_default();
            let seen = &rest[..rest.len().min(left)];
            out.extend(seen.iter().filter(|&&slot| class(slot).min(Self::CLASSES - 1) == part));
            left -= seen.len();
            if left == 0 {
                return Cursor { part, at: at + seen.len() as u32 };
            }
            (part, at) = (part + 1, 0);
        }
        Cursor::END
    }

    /// Classes that [`rank`](Self::rank) tells apart.
    pub(crate) const CLASSES: u32 = 32;

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if self.contains(slot) {
                self.take(self.places[slot.index()] as usize);
                self.places[slot.index()] = FROZEN;
                self.frozen.push(slot);
                self.frozen_len += 1;
            }
        }
    }

    /// Brings the frozen slots back and tells `back` each of them.
    pub(crate) fn thaw(&mut self, back: impl Fn(Slot)) {
        for slot in std::mem::take(&mut self.frozen) {
            if self.places[slot.index()] == FROZEN {
                self.frozen_len -= 1;
                self.put(slot);
                back(slot);
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.members.capacity() + self.places.capacity() + self.frozen.capacity()) * size_of::<u32>()
    }
}

/// The methods of [`Eviction`](crate::Eviction) that are the same for every policy whose order is a [`Bag`] with
/// [`Stamps`](crate::Stamps). `class` ranks a slot, 0 for what is most worth keeping.
macro_rules! ordered_by_bag {
    (order: $order:ident, marks: $marks:ident, class: |$this:ident, $slot:ident| $class:expr
     $(, resized: $resized:ident)? $(, moved: $moved:ident)? $(, memory: $memory:ident)?) => {
        fn reserve(&mut self, slots: usize) {
            self.$order.reserve(slots);
            self.$marks.reserve(slots);
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

        fn rank(&self, from: $crate::Cursor, out: &mut Vec<$crate::Slot>) -> $crate::Cursor {
            let $this = self;
            self.$order.rank(from, out, |$slot| $class)
        }

        fn freeze(&mut self, slots: &[$crate::Slot]) {
            self.$order.freeze(slots);
        }

        fn thaw(&mut self) {
            let marks = &self.$marks;
            self.$order.thaw(|slot| marks.set(slot, marks.count(slot)));
        }

        fn memory_bytes(&self) -> usize {
            self.$order.memory_bytes() + self.$marks.memory_bytes() $(+ self.$memory())?
        }
    };
}
pub(crate) use ordered_by_bag;
