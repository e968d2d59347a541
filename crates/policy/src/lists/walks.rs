//! Operations on many slots of [`Lists`] at once: freezing, thawing, ranking and iteration.

use super::{FROZEN, Link, Lists};
use crate::{Cursor, Slot};

impl<const N: usize> Lists<N> {
    /// Takes slots out of the lists until [`thaw`](Self::thaw).
    pub fn freeze(&mut self, slots: &[Slot]) {
        self.frozen.reserve(slots.len());
        for &slot in slots {
            if self.contains(slot) {
                let (list, weight) = (self.list_before(slot), self.weight(slot));
                self.unlink(slot);
                self.sizes[list] -= weight;
                let place = self.frozen.push(slot);
                self.links[slot.index() + N] = Link { colder: place, hotter: FROZEN };
                self.frozen_size += weight;
            }
        }
    }

    /// The frozen slots, in the order in which they were frozen.
    pub fn frozen(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        self.frozen.iter()
    }

    /// Puts each frozen slot back at the hot end of its list, in the order in which they were
    /// frozen.
    pub fn thaw(&mut self) {
        while self.thaw_last().is_some() {}
    }

    /// Puts the slot that was frozen last back at the hot end of its list. Returns it.
    pub fn thaw_last(&mut self) -> Option<Slot> {
        let slot = self.frozen.pop()?;
        let (list, weight) = (self.list_before(slot), self.weight(slot));
        self.link_at_head(list, slot);
        self.sizes[list] += weight;
        self.frozen_size -= weight;
        Some(slot)
    }

    /// Appends slots from the hot end of `lists[0]` to the cold end of the last one, a batch at a
    /// time.
    pub fn rank(&self, lists: &[usize], from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.rank_by(lists, 1, |_| 0, from, out)
    }

    /// The same by classes: slots of class 0 of all lists first, those of class `classes` - 1 last.
    /// One walk for each class.
    pub(crate) fn rank_by(
        &self,
        lists: &[usize],
        classes: usize,
        class: impl Fn(Slot) -> usize,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor {
        let Cursor { mut part, mut at } = from;
        let mut left = Cursor::BATCH;
        while (part as usize) < classes * lists.len() {
            let (wanted, list) = (part as usize / lists.len(), lists[part as usize % lists.len()]);
            let mut next = match at.checked_sub(1).map(Slot) {
                None => self.head(list),
                Some(slot) => (self.list_of(slot) == Some(list)).then_some(slot),
            };
            while let Some(slot) = next {
                if left == 0 {
                    return Cursor { part, at: slot.0 + 1 };
                }
                left -= 1;
                if classes == 1 || class(slot) == wanted {
                    out.push(slot);
                }
                next = self.colder(slot);
            }
            (part, at) = (part + 1, 0);
        }
        Cursor::END
    }

    /// Slots of a list from the cold end to the hot end.
    pub fn coldest_first(&self, list: usize) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(self.tail(list), |&slot| self.hotter(slot))
    }
}
