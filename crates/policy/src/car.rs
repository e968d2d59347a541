//! CAR: ARC with clocks in place of LRU lists, so a hit only sets a bit.
//!
//! T1 and T2 are clocks, B1 and B2 the ghost lists of the keys that left them. The hand of T1
//! evicts entries without the bit, and moves entries with it to T2; the hand of T2 evicts entries
//! without the bit and spares the others for a round. A miss remembered in B1 shows that T1 was too
//! small, one in B2 that T2 was, and the target p for the size of T1 moves accordingly (Bansal and
//! Modha, "CAR: Clock with Adaptive Replacement", FAST '04, figure 2, whose lines are named below).
//!
//! Sizes are weights here; with weights of 1 this is the paper's algorithm to the letter. Only its
//! line 7 looks up a new key's ghost after line 6 has made room, while here the ghost is taken out
//! before, because its place may be needed.
//!
//! Do not use CAR where entries are hit twice in a burst and never again: the second hit of a burst
//! counts as frequency, as in ARC.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameters, Policy, PolicyInfo, Slot};

/// T1 and B1, for entries seen once.
const ONCE: usize = 0;
/// T2 and B2, for entries seen again.
const AGAIN: usize = 1;

/// CAR (`car`): ARC with two clocks; a hit sets a bit. FIFO-like.
#[derive(Debug, Clone)]
pub struct Car {
    clocks: Lists<2>,
    used: Counters,
    ghosts: GhostQueues<2>,
    tags: Vec<Tag>,
    /// The paper's p: the target size of T1, in weight.
    once_target: f64,
    /// Key for which room is being made, and the ghost list that remembered it, if any.
    coming: Option<(Tag, Option<usize>)>,
}

impl Car {
    /// Takes a missed key out of the ghost lists, once for all evictions that make room for it.
    #[inline]
    fn recall(&mut self, tag: Tag) -> Option<usize> {
        match self.coming {
            Some((known, seen)) if known == tag => seen,
            _ => {
                let seen = self.ghosts.take(tag);
                self.coming = Some((tag, seen));
                seen
            }
        }
    }

    /// Moves the hands to the next victim, and returns its clock and slot. Lines 24 to 39.
    #[inline]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        loop {
            let once_is_due = self.clocks.size(ONCE) as f64 >= self.once_target.max(1.0);
            let clock = if once_is_due || self.clocks.tail(AGAIN).is_none() { ONCE } else { AGAIN };
            let hand = self.clocks.tail(clock)?;
            if self.used.get(hand) == 0 {
                return Some((clock, hand));
            }
            self.used.set(hand, 0);
            self.clocks.move_to_head(AGAIN, hand);
        }
    }

    /// Forgets ghosts until a new key has room: T1 and B1 keep to c, all lists to 2c. Lines 7 to
    /// 10.
    #[inline]
    fn shrink_ghosts(&mut self, weight: u64) {
        let capacity = self.clocks.capacity();
        let (t1, t2) = (self.clocks.size(ONCE), self.clocks.size(AGAIN));
        self.ghosts.shrink(ONCE, capacity.saturating_sub(t1 + weight));
        let others = t1 + t2 + self.ghosts.size(ONCE) + weight;
        self.ghosts.shrink(AGAIN, (2 * capacity).saturating_sub(others));
    }

    /// Moves the target towards the list whose ghost came back. Lines 16 and 19; `size` is the
    /// weight that left its ghost list.
    #[inline]
    fn adapt(&mut self, list: usize, size: u64) {
        let left =
            |which: usize| (self.ghosts.size(which) + if which == list { size } else { 0 }) as f64;
        let step = size as f64;
        if list == ONCE {
            let by = step * (left(AGAIN) / left(ONCE)).max(1.0);
            self.once_target = (self.once_target + by).min(self.clocks.capacity() as f64);
        } else {
            let by = step * (left(ONCE) / left(AGAIN)).max(1.0);
            self.once_target = (self.once_target - by).max(0.0);
        }
    }
}

impl Policy for Car {
    const INFO: PolicyInfo =
        PolicyInfo::new("car", "ARC with clocks in place of LRU lists", "Bansal & Modha, FAST '04");

    fn new(_: &Parameters) -> Self {
        Self {
            clocks: Lists::named(["T1", "T2"]),
            used: Counters::new(1),
            ghosts: GhostQueues::named(["B1", "B2"]),
            tags: Vec::new(),
            once_target: 0.0,
            coming: None,
        }
    }
}

impl Listed for Car {
    type Marks = Counters;
    type Lists = Lists<2>;

    const BY_PLACE: bool = true;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.clocks
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.clocks
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.used
    }

    fn reserve_places(&mut self, places: usize) {
        self.used.reserve_places(places);
    }

    /// Inserts a new key into T1 and a remembered one into T2. Lines 12 to 20.
    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let seen = self.recall(tag);
        self.coming = None;
        match seen {
            Some(list) => self.adapt(list, access.weight.into()),
            None => self.shrink_ghosts(access.weight.into()),
        }
        self.tags[slot.index()] = tag;
        self.used.set(slot, 0);
        self.clocks.set_weight(slot, access.weight);
        self.clocks.push_head(if seen.is_some() { AGAIN } else { ONCE }, slot);
    }

    #[inline]
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if let Some(access) = incoming {
            self.recall(Tag::of(access.hash));
        }
        let (clock, slot) = self.advance()?;
        self.ghosts.push(clock, self.tags[slot.index()], self.clocks.weight(slot), ());
        self.clocks.pop_tail(clock)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, slot)| slot)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [AGAIN, ONCE]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.used)
    }

    fn resized(&mut self) {
        let slots = self.clocks.slots();
        self.used.reserve(slots);
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve(slots + 1);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.used.set(to, self.used.get(from));
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.used.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
            + self.ghosts.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{AGAIN, Car, ONCE};
    use crate::{Access, Eviction, Slot, mix};

    /// A cache of two keys that are letters.
    struct Two {
        order: Car,
        held: [Option<char>; 2],
    }

    impl Two {
        fn new() -> Self {
            let mut order = Car::default();
            order.reserve(2);
            Self { order, held: [None; 2] }
        }

        /// Returns the key that leaves for this one, if any.
        fn request(&mut self, key: char) -> Option<char> {
            let access = Access::new(mix(key as u64));
            if let Some(slot) = self.held.iter().position(|&held| held == Some(key)) {
                self.order.access(Slot(slot as u32));
                return None;
            }
            let free = self.held.iter().position(Option::is_none);
            let slot = free.map_or_else(
                || self.order.evict(Some(&access)).expect("a full cache has a victim"),
                |slot| Slot(slot as u32),
            );
            self.order.insert(slot, &access);
            self.held[slot.index()].replace(key)
        }

        fn sizes(&self) -> [u64; 4] {
            let (clocks, ghosts) = (&self.order.clocks, &self.order.ghosts);
            [clocks.size(ONCE), clocks.size(AGAIN), ghosts.size(ONCE), ghosts.size(AGAIN)]
        }
    }

    /// Figure 2 of the paper, followed by hand: key, the key that leaves for it, p, and the sizes
    /// of T1, T2, B1 and B2 afterwards.
    #[test]
    fn the_clocks_and_the_target_move_as_in_the_paper() {
        let mut cache = Two::new();
        for (step, (key, left, p, sizes)) in [
            ('a', None, 0.0, [1, 0, 0, 0]),
            ('b', None, 0.0, [2, 0, 0, 0]),
            ('c', Some('a'), 0.0, [2, 0, 0, 0]), // T1 and B1 would exceed 2: a is forgotten
            ('b', None, 0.0, [2, 0, 0, 0]),
            ('d', Some('c'), 0.0, [1, 1, 1, 0]), // b has its bit and moves to T2
            ('c', Some('d'), 1.0, [0, 2, 1, 0]), // from B1: p + max(1, 0/2)
            ('e', Some('b'), 1.0, [1, 1, 1, 1]), // T1 is below p: the hand of T2
            ('d', Some('e'), 2.0, [0, 2, 1, 1]), // from B1: p + max(1, 1/2)
            ('b', Some('c'), 1.0, [0, 2, 1, 1]), // from B2: p - max(1, 1/2)
            ('d', None, 1.0, [0, 2, 1, 1]),
            ('f', Some('b'), 1.0, [1, 1, 1, 1]), // d is spared; four lists of 5: c is forgotten
            ('c', Some('f'), 1.0, [1, 1, 1, 1]), // a new key again; e is forgotten
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(cache.request(key), left, "step {step}, {key}");
            assert_eq!(cache.order.once_target, p, "step {step}, {key}");
            assert_eq!(cache.sizes(), sizes, "step {step}, {key}");
        }
    }

    #[test]
    fn a_ghost_of_the_key_that_needs_room_is_not_pushed_out_by_its_victim() {
        let mut cache = Two::new();
        for key in "abcbd".chars() {
            cache.request(key); // c is the only ghost of B1
        }
        let access = Access::new(mix('c' as u64));
        assert_eq!(cache.order.victim(Some(&access)), cache.order.evict(Some(&access)));
        cache.order.insert(Slot(0), &access);
        assert_eq!(cache.sizes()[1], 2, "c is in T2, with b");
    }
}
