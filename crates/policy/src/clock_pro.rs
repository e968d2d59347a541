//! CLOCK-Pro: LIRS with a clock in place of its stack, so a hit only sets a bit.
//!
//! All pages are in one clock, in the order in which they came to its head. A *hot* page returned
//! after few others; the rest are *cold*. A new page is cold, and for some time *in test*: if it is
//! hit meanwhile, it becomes hot. Cold pages leave the cache first; one in test remains as a ghost.
//! Each of three hands is at the last page of its kind. The cold hand is at the next victim. The
//! hot hand points to the hot page that would become cold; it ends the tests of the pages that it
//! passes. The test hand points to the page whose test ends next if there are too many ghosts. A
//! page that is hit in its test raises the target share of cold pages; a page that is not lowers it
//! (Jiang, Chen and Zhang, "CLOCK-Pro: An Effective Improvement of the CLOCK Replacement", USENIX
//! ATC '05).
//!
//! The paper leaves cases open. They are as in the author's simulation (clock-pro.c), which
//! Caffeine's simulator follows, too: pages are hot while an empty cache fills, but for the least
//! share of cold ones; a page becomes hot only if the hot hand finds one to demote before it meets
//! that page; a page that left and is refused begins anew. A cold page that was hit after its test
//! gets another one, as in the paper, or with `late-hit=evict` leaves, as in the simulation, whose
//! misses are then the same to the last one. But it takes requests for one key in a row as one,
//! which is up to the owner here.
//!
//! A hand is the last place of its kind only, so each kind is a list of its own, with the number of
//! each page's arrival at the head. The older of two tails is the one that a hand would meet first.
//! A cold page whose test ends keeps its place, and pages do so from the oldest on. So the list of
//! those is in order, as is the list of those that were hot.
//!
//! Sizes are weights; the number of ghosts is in proportion to the slots reserved.
//!
//! Do not use CLOCK-Pro where the load often changes: an old hot page leaves only when others have
//! proved themselves.

use crate::ghost_queues::{Found, GhostQueues};
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

const HOT: usize = 0;
/// Cold pages in test.
const TESTED: usize = 1;
/// Cold pages that were hot.
const DEMOTED: usize = 2;
/// Cold pages whose test is over.
const FAILED: usize = 3;

/// The lists of cold pages.
const COLD: [usize; 3] = [TESTED, DEMOTED, FAILED];

/// The only queue of ghosts.
const GHOSTS: usize = 0;

/// The fate of a cold page that was hit after its test.
const LATE_HIT: Parameter = Parameter::choice(
    "late-hit",
    &["spare", "evict"],
    "fate of a cold page that was hit after its test",
);

/// Least number of cold pages, except where the cache has fewer than four.
const LEAST_COLD: u64 = 2;

/// CLOCK-Pro (`clock-pro`): keeps pages that returned after few others, by a clock with three
/// hands. FIFO-like.
#[derive(Debug, Clone)]
pub struct ClockPro {
    pages: Lists<4>,
    used: Counters,
    /// Pages that left while in test, with the numbers of their arrivals.
    ghosts: GhostQueues<1, u64>,
    tags: Vec<Tag>,
    /// For each slot, the number of its page's arrival at the head.
    arrivals: Vec<u64>,
    /// Number of arrivals at the head until now.
    arrived: u64,
    cold_least_share: f64,
    cold_most_share: f64,
    ghost_share: f64,
    /// True if a cold page that was hit after its test leaves all the same.
    evicts_late_hits: bool,
    /// Target weight of the cold pages, from `cold_least` to `cold_most`.
    cold_target: u64,
    cold_least: u64,
    cold_most: u64,
    ghosts_most: usize,
    /// True if there was no eviction since the order was empty.
    filling: bool,
    /// Arrival of the hot page behind which all tests are known to have ended; 0 if unknown.
    ended_before: u64,
}

/// A cold page that asks to become hot.
#[derive(Clone, Copy)]
enum Candidate {
    Cached(Slot),
    Ghost(Found),
}

impl ClockPro {
    /// Moves a listed page to the head of the clock, as one of a kind, and forgets its hits.
    #[inline]
    fn move_to_head(&mut self, list: usize, slot: Slot) {
        self.used.set(slot, 0);
        self.pages.move_to_head(list, slot);
        self.arrive(slot);
    }

    #[inline]
    fn arrive(&mut self, slot: Slot) {
        self.arrived += 1;
        self.arrivals[slot.index()] = self.arrived;
    }

    /// Returns the arrival of the last page of a list; `None` if the list is empty.
    #[inline]
    fn last(&self, list: usize) -> Option<u64> {
        self.pages.tail(list).map(|slot| self.arrivals[slot.index()])
    }

    /// Returns the arrival of a candidate in test; `None` if its test is over.
    #[inline]
    fn in_test(&self, candidate: Candidate) -> Option<u64> {
        match candidate {
            Candidate::Cached(slot) => {
                (self.pages.list_of(slot) == Some(TESTED)).then(|| self.arrivals[slot.index()])
            }
            Candidate::Ghost(ghost) => {
                self.ghosts.remembers(ghost).then(|| self.ghosts.note(ghost))
            }
        }
    }

    #[inline]
    fn more_cold(&mut self, weight: u64) {
        self.cold_target = self.cold_target.saturating_add(weight).min(self.cold_most);
    }

    #[inline]
    fn less_cold(&mut self, weight: u64) {
        self.cold_target = self.cold_target.saturating_sub(weight).max(self.cold_least);
    }

    /// Ends the test of the last page in test, which the test hand points to, if it arrived before
    /// `before`. Returns false if there is none.
    #[inline]
    fn end_test(&mut self, before: u64) -> bool {
        let (page, ghost) = (self.last(TESTED), self.ghosts.oldest(GHOSTS));
        match (page, ghost) {
            (page, Some((arrival, weight)))
                if arrival < before && page.is_none_or(|page| arrival < page) =>
            {
                self.ghosts.pop_oldest(GHOSTS);
                self.less_cold(weight);
                true
            }
            (Some(page), _) if page < before => {
                let Some(slot) = self.pages.tail(TESTED) else { return false };
                let weight = self.pages.weight(slot);
                self.pages.move_to_head(FAILED, slot);
                if self.used.get(slot) > 0 {
                    self.more_cold(weight);
                } else {
                    self.less_cold(weight);
                }
                true
            }
            _ => false,
        }
    }

    /// Ends the tests of all pages behind the hot hand. Pages arrive ahead of it, so there are
    /// tests to end only once it has moved.
    #[inline]
    fn end_tests(&mut self) {
        if let Some(hand) = self.last(HOT)
            && hand != self.ended_before
        {
            while self.end_test(hand) {}
            self.ended_before = hand;
        }
    }

    /// Runs the hot hand until it has demoted a page, but not past a candidate's arrival. Returns
    /// whether it has demoted one.
    fn demote(&mut self, candidate: u64) -> bool {
        let mut demoted = false;
        while !demoted
            && let Some(hand) = self.pages.tail(HOT)
            && self.arrivals[hand.index()] < candidate
        {
            demoted = self.used.get(hand) == 0;
            self.move_to_head(if demoted { DEMOTED } else { HOT }, hand);
        }
        self.end_tests();
        demoted
    }

    /// Makes room among the hot pages for a candidate that was hit in its test. Returns false if
    /// the candidate stays cold.
    fn promotes(&mut self, candidate: Candidate, weight: u64) -> bool {
        if self.in_test(candidate).is_none() {
            return false;
        }
        self.more_cold(weight);
        if let Candidate::Cached(slot) = candidate {
            self.used.set(slot, 0);
        }
        while self.pages.size(HOT) + weight + self.cold_target > self.pages.capacity() {
            match self.in_test(candidate) {
                Some(arrival) if self.demote(arrival) => {}
                _ => return false,
            }
        }
        true
    }

    /// Returns whether an empty cache that fills has room for another hot page.
    fn has_room_for_hot(&self, weight: u64) -> bool {
        let all: u64 =
            [HOT, TESTED, DEMOTED, FAILED].map(|list| self.pages.size(list)).iter().sum();
        all + weight + self.cold_least <= self.pages.capacity()
    }

    /// Runs the cold hand until it points to a victim. Returns the victim's list and slot.
    #[inline]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        loop {
            let mut oldest: Option<(u64, usize, Slot)> = None;
            for list in COLD {
                if let Some(slot) = self.pages.tail(list) {
                    let arrival = self.arrivals[slot.index()];
                    if oldest.is_none_or(|(oldest, ..)| arrival < oldest) {
                        oldest = Some((arrival, list, slot));
                    }
                }
            }
            let Some((_, list, hand)) = oldest else { break };
            if self.used.get(hand) == 0 || self.evicts_late_hits && list != TESTED {
                return Some((list, hand));
            }
            let weight = self.pages.weight(hand);
            let promotes = list == TESTED && self.promotes(Candidate::Cached(hand), weight);
            self.move_to_head(if promotes { HOT } else { TESTED }, hand);
        }
        // Only where no share of cold pages can be kept, as in a cache of one page.
        loop {
            let hand = self.pages.tail(HOT)?;
            if self.used.get(hand) == 0 {
                return Some((HOT, hand));
            }
            self.move_to_head(HOT, hand);
        }
    }
}

impl Policy for ClockPro {
    const INFO: PolicyInfo = PolicyInfo::new(
        "clock-pro",
        "LIRS as a clock with three hands, whose share of cold pages adapts",
        "Jiang, Chen & Zhang, USENIX ATC '05",
    )
    .with(&[
        Parameter::share("min", 0.01, "least share of cold pages"),
        Parameter::share("max", 0.99, "greatest share of cold pages"),
        Parameter::share("ghosts", 1.0, "ghosts for each page"),
        LATE_HIT,
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            pages: Lists::named(["hot", "in test", "demoted", "failed"]),
            used: Counters::new(1),
            ghosts: GhostQueues::named(["ghosts"]),
            tags: Vec::new(),
            arrivals: Vec::new(),
            arrived: 0,
            cold_least_share: parameters.get("min"),
            cold_most_share: parameters.get("max"),
            ghost_share: parameters.get("ghosts"),
            evicts_late_hits: parameters.count(LATE_HIT.name) == 1,
            cold_target: 0,
            cold_least: 0,
            cold_most: 0,
            ghosts_most: 0,
            filling: true,
            ended_before: 0,
        }
    }
}

impl Listed for ClockPro {
    type Marks = Counters;
    type Lists = Lists<4>;

    const BY_PLACE: bool = true;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<4> {
        &self.pages
    }

    fn lists_mut(&mut self) -> &mut Lists<4> {
        self.ended_before = 0; // pages that thaw come back with their earlier arrivals
        &mut self.pages
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.used
    }

    fn reserve_places(&mut self, places: usize) {
        self.used.reserve_places(places);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let (tag, weight) = (Tag::of(access.hash), u64::from(access.weight));
        self.filling |= self.pages.is_empty();
        let fills = self.filling && self.has_room_for_hot(weight);
        let known = self.ghosts.find(tag);
        let promotes = |ghost| self.promotes(Candidate::Ghost(ghost), weight);
        let is_hot = fills || known.is_some_and(promotes);
        // Its test may be over by now.
        self.ghosts.take_found(known.filter(|&ghost| self.ghosts.remembers(ghost)));
        self.tags[slot.index()] = tag;
        self.used.set(slot, 0);
        self.pages.set_weight(slot, access.weight);
        self.pages.push_head(if is_hot { HOT } else { TESTED }, slot);
        self.arrive(slot);
        self.end_tests();
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (list, hand) = self.advance()?;
        if list == TESTED {
            let arrival = self.arrivals[hand.index()];
            let weight = self.pages.weight(hand);
            self.pages.pop_tail(list);
            self.ghosts.push_instead(GHOSTS, self.tags[hand.index()], weight, arrival);
            while self.ghosts.len(GHOSTS) > self.ghosts_most && self.end_test(u64::MAX) {}
        } else {
            self.pages.pop_tail(list);
        }
        Some(hand)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, hand)| hand)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [HOT, TESTED, DEMOTED, FAILED]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.used)
    }

    fn resized(&mut self) {
        let slots = self.pages.slots();
        self.used.reserve(slots);
        self.tags.resize(slots, Tag::default());
        self.arrivals.resize(slots, 0);
        self.ghosts_most = (slots as f64 * self.ghost_share) as usize;
        self.ghosts.reserve(self.ghosts_most + 1); // one more, until the oldest test has ended
        let capacity = self.pages.capacity();
        let least = (capacity as f64 * self.cold_least_share) as u64;
        self.cold_least = least.max(LEAST_COLD.min(capacity / 2));
        let most = (capacity as f64 * self.cold_most_share) as u64;
        let most = most.min(capacity.saturating_sub(self.cold_least));
        self.cold_most = most.max(self.cold_least);
        self.cold_target = self.cold_target.clamp(self.cold_least, self.cold_most);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.used.set(to, self.used.get(from));
        self.tags[to.index()] = self.tags[from.index()];
        self.arrivals[to.index()] = self.arrivals[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.used.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
            + self.arrivals.capacity() * size_of::<u64>()
            + self.ghosts.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::ClockPro;
    use crate::{Access, Eviction, Slot, mix};

    /// A cache of `N` keys that are letters.
    struct Letters<const N: usize> {
        order: ClockPro,
        held: [Option<char>; N],
    }

    impl<const N: usize> Letters<N> {
        fn new() -> Self {
            let mut order = ClockPro::default();
            order.reserve(N);
            Self { order, held: [None; N] }
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
    }

    /// Worked out by hand: four pages, of which always two are hot. The clock afterwards, from the
    /// oldest page: a capital is hot, `:` is in test, `.` is not, `-` is a ghost.
    #[test]
    fn the_hands_move_as_in_the_paper() {
        let mut cache = Letters::<4>::new();
        for (step, (key, left)) in [
            ('a', None),
            ('b', None),      // A B
            ('c', None),      // A B c:
            ('d', None),      // A B c: d:
            ('e', Some('c')), // A B c- d: e:
            ('c', Some('d')), // B d- e: a. C, as the hot hand demotes a
            ('a', None),
            ('b', None),      // a and b have their bits
            ('d', Some('e')), // a. C B d:, as the hot hand spares b and then meets d and e
            ('f', Some('d')), // C B d- a: f:, as the cold hand gives a a test
            ('d', Some('a')), // B a- f: c. D
            ('b', None),
            ('a', Some('f')), // c. D B a:, as the hot hand spares b and then meets a
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(cache.request(key), left, "step {step}, {key}");
        }
    }

    /// Worked out by hand: eight pages, of which two to six may be cold.
    #[test]
    fn a_ghost_that_returns_makes_room_for_cold_pages_and_one_that_does_not_takes_it() {
        let mut cache = Letters::<8>::new();
        "abcdefgh".chars().for_each(|key| assert_eq!(cache.request(key), None));
        assert_eq!(cache.order.cold_target, 2); // A B C D E F g: h:
        assert_eq!(cache.request('i'), Some('g'));
        assert_eq!(cache.request('g'), Some('h'));
        assert_eq!(cache.order.cold_target, 3); // C D E F h- i: a. b. G
        for (key, left) in "jklmnop".chars().zip("iabjklm".chars()) {
            assert_eq!(cache.request(key), Some(left), "for {key}");
        }
        // C D E F h- i- G j- k- l- m- n: o: p:, of which there may be eight ghosts.
        assert_eq!(cache.order.cold_target, 3);
        "qrs".chars().for_each(|key| assert!(cache.request(key).is_some()));
        assert_eq!(cache.order.cold_target, 2, "nine ghosts: the test of h has ended");
    }
}
