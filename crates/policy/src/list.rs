//! A doubly linked list of slots in one flat array: what FIFO, LRU and their relatives are made of.
//!
//! The array's first link is a sentinel that closes the ring, so no operation has a case for the ends. A slot out
//! of the list is linked to itself. Eight bytes a slot.

use crate::Slot;

/// Growth in steps of a sixteenth keeps the unused part of the array small: block caches count metadata bytes.
const GROWTH_SHARE: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Link {
    colder: u32,
    hotter: u32,
}

/// A list of slots from hot (head) to cold (tail). Each slot is in it at most once.
#[derive(Debug, Clone)]
pub struct List {
    /// `links[0]` is the sentinel: its `colder` is the head, its `hotter` the tail. Slot `s` is `links[s + 1]`.
    links: Vec<Link>,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { links: vec![Link { colder: 0, hotter: 0 }], len: 0 }
    }
}

impl List {
    /// A list with room for slots `0..slots`.
    pub fn with_slots(slots: usize) -> Self {
        let mut list = Self::default();
        list.reserve(slots);
        list
    }

    /// Makes room for slots `0..slots`.
    ///
    /// # Panics
    /// When `slots` does not fit in 32 bits.
    pub fn reserve(&mut self, slots: usize) {
        let wanted = slots + 1;
        assert!(u32::try_from(wanted).is_ok(), "a list holds fewer than 2^32 slots, not {slots}");
        if wanted > self.links.capacity() {
            let step = if self.len == 0 { 0 } else { self.links.len() / GROWTH_SHARE };
            let target = wanted.max(self.links.len() + step);
            self.links.reserve_exact(target - self.links.len());
        }
        for own in self.links.len()..wanted {
            self.links.push(Link { colder: own as u32, hotter: own as u32 });
        }
    }

    /// The number of slots in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list holds no slot.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `slot` is in the list.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        self.links.get(slot.index() + 1).is_some_and(|link| link.colder != slot.0 + 1)
    }

    /// Puts a slot at the hot end.
    #[inline]
    pub fn push_head(&mut self, slot: Slot) {
        debug_assert!(!self.contains(slot), "slot {} is in the list already", slot.0);
        let own = slot.0 + 1;
        let head = self.links[0].colder;
        self.links[own as usize] = Link { colder: head, hotter: 0 };
        self.links[head as usize].hotter = own;
        self.links[0].colder = own;
        self.len += 1;
    }

    /// Takes a slot out; `false` when it is not in the list.
    #[inline]
    pub fn delink(&mut self, slot: Slot) -> bool {
        let own = slot.0 + 1;
        let Link { colder, hotter } = self.links[own as usize];
        if colder == own {
            return false;
        }
        self.links[colder as usize].hotter = hotter;
        self.links[hotter as usize].colder = colder;
        self.links[own as usize] = Link { colder: own, hotter: own };
        self.len -= 1;
        true
    }

    /// Moves a slot of the list to the hot end; a slot out of the list is left out.
    #[inline]
    pub fn move_to_head(&mut self, slot: Slot) {
        if self.links[0].colder != slot.0 + 1 && self.delink(slot) {
            self.push_head(slot);
        }
    }

    /// The slot at the cold end.
    #[inline]
    pub fn tail(&self) -> Option<Slot> {
        self.links[0].hotter.checked_sub(1).map(Slot)
    }

    /// Takes the slot at the cold end out.
    #[inline]
    pub fn pop_tail(&mut self) -> Option<Slot> {
        let tail = self.tail()?;
        self.delink(tail);
        Some(tail)
    }

    /// Slots from the cold end to the hot end.
    pub fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(self.tail(), |slot| {
            self.links[slot.index() + 1].hotter.checked_sub(1).map(Slot)
        })
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}
