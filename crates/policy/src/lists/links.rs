//! The links of [lists](super): near ones where few bits are enough, or else far ones.

use crate::Slot;

/// The neighbours of a slot or sentinel, and its list.
pub(super) trait Link: Copy {
    /// The link of a slot in no list.
    const OUT: Self;

    /// Creates the link of a slot in a list.
    fn new(colder: u32, list: usize, hotter: u32) -> Self;
    /// Creates the link of a frozen slot of a list.
    fn frozen(place: u32, list: usize) -> Self;
    /// Returns the number of the next link towards the cold end.
    fn colder(self) -> u32;
    /// Returns the number of the next link towards the hot end.
    fn hotter(self) -> u32;
    /// Returns the list of a slot that is listed or frozen.
    fn list(self) -> usize;
    /// Returns the place of a frozen slot in the frozen list.
    fn place(self) -> u32;
    fn is_listed(self) -> bool;
    fn is_frozen(self) -> bool;
    fn set_colder(&mut self, colder: u32);
    fn set_hotter(&mut self, hotter: u32);
}

/// A link of five bytes, for up to 2¹⁶ slots and sentinels: shards of a cache in memory seldom have
/// more.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Near {
    /// Number of the next link towards the cold end; of a frozen slot, the lower half of its place.
    colder: u16,
    /// Number of the next link towards the hot end; of a frozen slot, the upper half of its place.
    hotter: u16,
    /// The list, and the flags below.
    state: u8,
}

impl Near {
    /// Largest number of slots and sentinels.
    pub(super) const MOST: usize = 1 << u16::BITS;
    /// Largest number of lists: flags take the other bits.
    pub(super) const LISTS_MAX: usize = 1 << 6;
    /// Flag of a slot in no list.
    const NOWHERE: u8 = 1 << 7;
    /// Flag of a frozen slot.
    const FROZEN: u8 = 1 << 6;
}

impl Link for Near {
    const OUT: Self = Self { colder: 0, hotter: 0, state: Self::NOWHERE };

    #[inline(always)]
    fn new(colder: u32, list: usize, hotter: u32) -> Self {
        Self { colder: colder as u16, hotter: hotter as u16, state: list as u8 }
    }

    fn frozen(place: u32, list: usize) -> Self {
        let (colder, hotter) = (place as u16, (place >> u16::BITS) as u16);
        Self { colder, hotter, state: list as u8 | Self::FROZEN }
    }

    #[inline(always)]
    fn colder(self) -> u32 {
        self.colder.into()
    }

    #[inline(always)]
    fn hotter(self) -> u32 {
        self.hotter.into()
    }

    #[inline(always)]
    fn list(self) -> usize {
        usize::from(self.state & !Self::FROZEN)
    }

    fn place(self) -> u32 {
        u32::from(self.hotter) << u16::BITS | u32::from(self.colder)
    }

    #[inline(always)]
    fn is_listed(self) -> bool {
        self.state < Self::FROZEN
    }

    #[inline(always)]
    fn is_frozen(self) -> bool {
        self.state & Self::FROZEN != 0
    }

    #[inline(always)]
    fn set_colder(&mut self, colder: u32) {
        self.colder = colder as u16;
    }

    #[inline(always)]
    fn set_hotter(&mut self, hotter: u32) {
        self.hotter = hotter as u16;
    }
}

/// A link of eight bytes, in one of `N` lists. The list is in the lowest bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Far<const N: usize> {
    /// Number of the next link towards the cold end, or the place of a frozen slot, and the list.
    colder_in_list: u32,
    hotter: u32,
}

impl<const N: usize> Far<N> {
    /// Number of bits for the list.
    pub(super) const LIST_BITS: u32 = usize::BITS - (N - 1).leading_zeros();
    /// Mask of these bits.
    const LIST: u32 = (1 << Self::LIST_BITS) - 1;
    /// The `hotter` link of a slot in no list.
    const NOWHERE: u32 = u32::MAX;
    /// The `hotter` link of a frozen slot.
    pub(super) const FROZEN: u32 = u32::MAX - 1;
}

impl<const N: usize> From<Near> for Far<N> {
    fn from(near: Near) -> Self {
        match (near.is_listed(), near.is_frozen()) {
            (true, _) => Self::new(near.colder(), near.list(), near.hotter()),
            (_, true) => Self::frozen(near.place(), near.list()),
            _ => Self::OUT,
        }
    }
}

impl<const N: usize> Link for Far<N> {
    const OUT: Self = Self { colder_in_list: 0, hotter: Self::NOWHERE };

    #[inline(always)]
    fn new(colder: u32, list: usize, hotter: u32) -> Self {
        Self { colder_in_list: colder << Self::LIST_BITS | list as u32, hotter }
    }

    fn frozen(place: u32, list: usize) -> Self {
        Self::new(place, list, Self::FROZEN)
    }

    #[inline(always)]
    fn colder(self) -> u32 {
        self.colder_in_list >> Self::LIST_BITS
    }

    #[inline(always)]
    fn hotter(self) -> u32 {
        self.hotter
    }

    #[inline(always)]
    fn list(self) -> usize {
        (self.colder_in_list & Self::LIST) as usize
    }

    fn place(self) -> u32 {
        self.colder()
    }

    #[inline(always)]
    fn is_listed(self) -> bool {
        self.hotter < Self::FROZEN
    }

    #[inline(always)]
    fn is_frozen(self) -> bool {
        self.hotter == Self::FROZEN
    }

    #[inline(always)]
    fn set_colder(&mut self, colder: u32) {
        *self = Self::new(colder, self.list(), self.hotter);
    }

    #[inline(always)]
    fn set_hotter(&mut self, hotter: u32) {
        self.hotter = hotter;
    }
}

/// The links of all sentinels and slots, near or far ones. Sentinel `l` is that of list `l`: its
/// `colder` is the head, its `hotter` the tail. Slot `s` has link `N + s`.
#[derive(Debug, Clone)]
pub(super) struct Links<const N: usize> {
    pub(super) near: Vec<Near>,
    /// Empty while links are near.
    pub(super) far: Vec<Far<N>>,
}

/// Evaluates an expression with a link. The check that a near link is there finds out of which kind
/// links are, so it costs nothing more.
macro_rules! at {
    ($links:expr, $at:expr, |$link:ident| $does:expr) => {
        match $links.near.get($at) {
            Some($link) => $does,
            None => {
                let $link = crate::lists::links::far(&$links.far, $at);
                $does
            }
        }
    };
}

/// Changes a link.
macro_rules! change {
    ($links:expr, $at:expr, |$link:ident| $does:expr) => {
        match $links.near.get_mut($at) {
            Some($link) => $does,
            None => {
                let $link = crate::lists::links::far_mut(&mut $links.far, $at);
                $does
            }
        }
    };
}

/// Returns a far link. Functions of their own, which see nothing of the near links, keep these in
/// registers.
#[cold]
#[inline(never)]
pub(super) fn far<L>(links: &[L], at: usize) -> &L {
    &links[at]
}

#[cold]
#[inline(never)]
pub(super) fn far_mut<L>(links: &mut [L], at: usize) -> &mut L {
    &mut links[at]
}

impl<const N: usize> Links<N> {
    pub(super) fn len(&self) -> usize {
        self.near.len() + self.far.len()
    }

    /// Grows to a number of links, with room for more.
    pub(super) fn resize(&mut self, wanted: usize, room: usize) {
        if wanted <= Near::MOST {
            reserve(&mut self.near, room, wanted);
            return self.near.resize(wanted, Link::OUT);
        }
        reserve(&mut self.far, room, wanted);
        self.far.extend(std::mem::take(&mut self.near).into_iter().map(Far::from));
        self.far.resize(wanted, Link::OUT);
    }

    /// Puts a slot, given by the number of its link, at the hot end of a list.
    #[inline(always)]
    pub(super) fn link_at_head(&mut self, list: usize, own: u32) {
        let head = at!(self, list, |link| link.colder());
        change!(self, own as usize, |link| *link = Link::new(head, list, list as u32));
        change!(self, head as usize, |link| link.set_hotter(own));
        change!(self, list, |link| link.set_colder(own));
    }

    /// Connects the neighbours of a listed slot with each other.
    #[inline(always)]
    pub(super) fn unlink(&mut self, own: u32) {
        let (colder, hotter) = at!(self, own as usize, |link| (link.colder(), link.hotter()));
        change!(self, colder as usize, |link| link.set_hotter(hotter));
        change!(self, hotter as usize, |link| link.set_colder(colder));
    }
}

/// Returns the number of a slot's link, after `N` sentinels.
#[inline(always)]
pub(super) fn own<const N: usize>(slot: Slot) -> u32 {
    slot.0 + N as u32
}

/// Returns the slot of a link; `None` if it is a sentinel.
#[inline(always)]
pub(super) fn slot_of<const N: usize>(link: u32) -> Option<Slot> {
    link.checked_sub(N as u32).map(Slot)
}

pub(super) use {at, change};

/// Grows a vector that is too short for what is wanted, to more.
fn reserve<T>(vector: &mut Vec<T>, room: usize, wanted: usize) {
    if wanted > vector.capacity() {
        vector.reserve_exact(room - vector.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Lists;

    const SLOTS: u32 = 9;
    const LISTS: usize = 3;
    /// More slots than near links reach.
    const MANY: usize = Near::MOST;

    /// Creates lists with room for so many slots.
    fn lists(slots: usize) -> Lists<LISTS> {
        let mut lists = Lists::default();
        lists.reserve(slots);
        lists
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn links_of_both_kinds_and_links_that_change_are_in_one_order(
            steps in proptest::collection::vec((0..8u8, 0..SLOTS, 0..SLOTS, 0..LISTS), 1..80),
            grows_at in 0..80usize,
        ) {
            let mut all = [lists(SLOTS as usize), lists(MANY), lists(SLOTS as usize)];
            prop_assert!(all[0].links.far.is_empty() && all[1].links.near.is_empty());
            for (at, (step, slot, other, list)) in steps.into_iter().enumerate() {
                if at == grows_at {
                    all[2].reserve(MANY);
                    prop_assert!(all[2].links.near.is_empty());
                }
                for lists in &mut all {
                    let (slot, other) = (Slot(slot), Slot(other));
                    let is_out = |slot| !lists.contains(slot) && !lists.is_frozen(slot);
                    let (is_new, is_free) = (is_out(slot), is_out(other));
                    match step {
                        0 | 1 if is_new => lists.push_head(list, slot),
                        2 if is_new && lists.list_of(other) == Some(list) => {
                            lists.push_hotter(list, slot, Some(other));
                        }
                        0..=2 => lists.move_to_head(list, slot),
                        3 => _ = lists.delink(slot),
                        4 => _ = lists.pop_tail(list),
                        5 if is_free => _ = lists.transfer(slot, other),
                        6 => _ = lists.thaw_last(),
                        _ => lists.freeze(&[slot]),
                    }
                }
                let order = |lists: &Lists<LISTS>| {
                    let listed = (0..LISTS).map(|list| lists.coldest_first(list).collect());
                    let mut order: Vec<Vec<Slot>> = listed.collect();
                    order.push(lists.frozen().collect());
                    (order, lists.sizes, lists.len)
                };
                prop_assert_eq!(order(&all[0]), order(&all[1]));
                prop_assert_eq!(order(&all[0]), order(&all[2]));
            }
        }
    }

    #[test]
    fn the_last_near_link_and_the_first_far_one_are_kept() {
        let mut lists = lists(Near::MOST - LISTS);
        let last = Slot((Near::MOST - LISTS - 1) as u32);
        lists.push_head(1, last);
        lists.push_head(1, Slot(0));
        assert!(lists.links.far.is_empty());
        lists.reserve(Near::MOST - LISTS + 1);
        assert!(lists.links.near.is_empty());
        lists.push_head(1, Slot(last.0 + 1));
        let order: Vec<_> = lists.coldest_first(1).collect();
        assert_eq!(order, [last, Slot(0), Slot(last.0 + 1)]);
    }
}
