//! LFU: evicts the entry with the fewest hits, and among equals the least recently used.
//!
//! Hits are counted while an entry is cached and never forgotten until it leaves; a hit moves the
//! entry up in a list ordered by count, in constant time (Shah, Mitra, Matani, 2010).
//!
//! Entries count as one each whatever their weight; an owner that needs more room evicts again.
//!
//! Do not use LFU where popularity changes: yesterday's favourites hold their place, and on block
//! traces it loses to everything else. Its main use is as a base for freezing, because it fills the
//! frozen part with the entries hit most.

use crate::{
    Access, AlwaysPromote, Cursor, Eviction, Lists, Parameters, Policy, PolicyInfo, Ranked, Slot,
};

/// LFU (`lfu`): evicts the entry with the fewest hits. LRU-like.
#[derive(Debug, Clone)]
pub struct Lfu {
    order: FrequencyList,
}

impl Policy for Lfu {
    const INFO: PolicyInfo =
        PolicyInfo::new("lfu", "evicts the entry with the fewest hits", "O(1): Shah et al., 2010");

    fn new(_: &Parameters) -> Self {
        Self { order: FrequencyList::default() }
    }
}

impl Eviction for Lfu {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
    }

    fn set_capacity(&mut self, _: u64) {}

    fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.order.hit(slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.order.insert(slot, 1);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let coldest = self.order.coldest()?;
        self.order.remove(coldest);
        Some(coldest)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.order.coldest()
    }

    fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
    }

    /// Ignores the weight: each entry counts as one.
    fn reweigh(&mut self, _: Slot, _: u32) {}

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.order.transfer(from, to);
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.order.rank(from, out)
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.order.freeze(slots);
    }

    fn thaw(&mut self) {
        self.order.thaw();
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
    }
}

impl Ranked for Lfu {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.order.coldest_first()
    }
}

/// Highest frequency that is counted.
const FREQUENCY_MAX: usize = 4095;
const NONE: u32 = u32::MAX;

/// Slots ordered by how often they were hit, most recent first among equals; every operation takes
/// constant time.
///
/// One list holds all slots, and for each frequency the newest slot is known. A slot hit once more
/// goes right above the newest slot of its new frequency (Shah, Mitra, Matani, "An O(1) algorithm
/// for implementing the LFU cache eviction scheme", 2010, with an array for their list of
/// frequencies). Frequencies stop at a limit, because a slot that popular is not about to leave. A
/// slot takes ten bytes.
#[derive(Debug, Clone)]
pub(crate) struct FrequencyList {
    order: Lists<1>,
    frequencies: Vec<u16>,
    /// For each frequency, the slot that reached it last.
    newest: Vec<u32>,
}

impl Default for FrequencyList {
    fn default() -> Self {
        Self {
            order: Lists::named(["frequencies"]),
            frequencies: Vec::new(),
            newest: vec![NONE; FREQUENCY_MAX + 1],
        }
    }
}

impl FrequencyList {
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
        self.frequencies.resize(self.order.slots(), 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn frequency(&self, slot: Slot) -> u16 {
        self.frequencies[slot.index()]
    }

    /// Inserts a slot with a frequency of at least 1. Takes as many steps as there are frequencies
    /// in use below, none for frequency 1.
    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot, frequency: u16) {
        let frequency = frequency.clamp(1, FREQUENCY_MAX as u16);
        let below =
            (1..=usize::from(frequency)).rev().map(|f| self.newest[f]).find(|&slot| slot != NONE);
        self.place(slot, frequency, below.map(Slot));
    }

    fn place(&mut self, slot: Slot, frequency: u16, above: Option<Slot>) {
        self.frequencies[slot.index()] = frequency;
        self.newest[usize::from(frequency)] = slot.0;
        self.order.push_hotter(0, slot, above);
    }

    /// Raises the frequency of a slot by one.
    #[inline]
    pub(crate) fn hit(&mut self, slot: Slot) {
        if !self.order.contains(slot) {
            return;
        }
        let frequency = usize::from(self.frequencies[slot.index()]);
        let more = (frequency + 1).min(FREQUENCY_MAX);
        let newest = self.newest[frequency];
        let above = match self.newest[more] {
            NONE if newest == slot.0 => self.order.colder(slot),
            NONE => Some(Slot(newest)),
            other if other == slot.0 => return,
            other => Some(Slot(other)),
        };
        self.remove(slot);
        self.place(slot, more as u16, above);
    }

    /// Updates `newest` before a slot leaves its frequency.
    fn step_down(&mut self, slot: Slot) {
        let frequency = self.frequencies[slot.index()];
        if self.order.contains(slot) && self.newest[usize::from(frequency)] == slot.0 {
            let next =
                self.order.colder(slot).filter(|next| self.frequencies[next.index()] == frequency);
            self.newest[usize::from(frequency)] = next.map_or(NONE, |next| next.0);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.step_down(slot);
        self.order.delink(slot);
    }

    /// Returns the slot hit least often; among equals, the least recently hit.
    #[inline]
    pub(crate) fn coldest(&self) -> Option<Slot> {
        self.order.tail(0)
    }

    /// Returns the slot hit least often; among equals, the most recently hit.
    #[inline]
    pub(crate) fn newest_of_rarest(&self) -> Option<Slot> {
        let frequency = self.frequencies[self.coldest()?.index()];
        Some(Slot(self.newest[usize::from(frequency)]))
    }

    pub(crate) fn transfer(&mut self, from: Slot, to: Slot) {
        let frequency = self.frequencies[from.index()];
        if self.order.contains(from) && self.newest[usize::from(frequency)] == from.0 {
            self.newest[usize::from(frequency)] = to.0;
        }
        self.frequencies[to.index()] = frequency;
        self.order.transfer(from, to);
    }

    pub(crate) fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.order.rank(&[0], from, out)
    }

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            self.step_down(slot);
            self.order.freeze(&[slot]);
        }
    }

    /// Returns the frozen slots to the hot end. Their frequencies grow by the highest one in the
    /// list, because hits on them were not counted (FrozenHot, section 3.4).
    pub(crate) fn thaw(&mut self) {
        let head = self.order.head(0).map_or(0, |head| self.frequencies[head.index()]);
        let mut below = head;
        for slot in self.order.frozen().rev() {
            // Slots frozen in several steps may no longer be sorted.
            let boosted = self.frequencies[slot.index()]
                .saturating_add(head)
                .clamp(below, FREQUENCY_MAX as u16);
            self.frequencies[slot.index()] = boosted;
            self.newest[usize::from(boosted)] = slot.0;
            below = boosted;
        }
        self.order.thaw();
    }

    pub(crate) fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.order.coldest_first(0)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.frequencies.capacity() * size_of::<u16>()
            + self.newest.capacity() * size_of::<u32>()
    }
}
