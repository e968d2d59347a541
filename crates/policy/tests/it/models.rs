//! Policies against models of themselves: the papers transcribed onto plain vectors, coldest entry
//! first, too simple to be wrong and too slow to be used.

use std::collections::{HashMap, VecDeque};

use floe_policy::owner::SlotOwner;
use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Policy, Slot, mix, with};
use proptest::prelude::*;

pub(crate) type Key = u64;

/// A policy that knows keys and a fixed number of entries of weight 1.
pub(crate) trait Model {
    /// Whether the key was cached; it is afterwards.
    fn request(&mut self, key: Key, next_use: u64) -> bool;
}

/// Takes a key out of a queue and says whether it was there.
pub(crate) fn take(queue: &mut VecDeque<Key>, key: Key) -> bool {
    let at = queue.iter().position(|&known| known == key);
    at.is_some_and(|at| queue.remove(at).is_some())
}

struct FifoModel(usize, VecDeque<Key>);

impl Model for FifoModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if self.1.contains(&key) {
            return true;
        }
        if self.1.len() == self.0 {
            self.1.pop_front();
        }
        self.1.push_back(key);
        false
    }
}

struct LruModel(usize, VecDeque<Key>);

impl Model for LruModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let hit = take(&mut self.1, key);
        if self.1.len() == self.0 {
            self.1.pop_front();
        }
        self.1.push_back(key);
        hit
    }
}

struct ClockModel(usize, u8, VecDeque<(Key, u8)>);

impl Model for ClockModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let (size, most, ring) = (self.0, self.1, &mut self.2);
        if let Some((_, count)) = ring.iter_mut().find(|entry| entry.0 == key) {
            *count = (*count + 1).min(most);
            return true;
        }
        while ring.len() == size {
            let (oldest, count) = ring.pop_front().expect("the ring is full");
            if count > 0 {
                ring.push_back((oldest, count - 1));
            }
        }
        ring.push_back((key, 0));
        false
    }
}

/// The paper's pseudocode: a queue, newest last, and a hand that is a place in it.
struct SieveModel(usize, Vec<(Key, bool)>, Option<usize>);

impl Model for SieveModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let (size, queue) = (self.0, &mut self.1);
        if let Some(entry) = queue.iter_mut().find(|entry| entry.0 == key) {
            entry.1 = true;
            return true;
        }
        if queue.len() == size {
            let mut hand = self.2.unwrap_or(0);
            while queue[hand].1 {
                queue[hand].1 = false;
                hand = if hand + 1 < queue.len() { hand + 1 } else { 0 };
            }
            queue.remove(hand);
            self.2 = (hand < queue.len()).then_some(hand);
        }
        queue.push((key, false));
        false
    }
}

struct LfuModel(usize, Vec<(Key, u64, u64)>, u64);

impl Model for LfuModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        self.2 += 1;
        let (size, entries, now) = (self.0, &mut self.1, self.2);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.0 == key) {
            (entry.1, entry.2) = (entry.1 + 1, now);
            return true;
        }
        if entries.len() == size {
            let least = (0..size)
                .min_by_key(|&at| (entries[at].1, entries[at].2))
                .expect("the cache is full");
            entries.remove(least);
        }
        entries.push((key, 1, now));
        false
    }
}

/// Entries with their uses, priority and last use; the age; the time. Sizes are all one, so a
/// priority is the age at the last use and all uses.
struct GdsfModel(usize, Vec<(Key, u64, u64, u64)>, u64, u64);

impl Model for GdsfModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        self.3 += 1;
        let (size, entries, now) = (self.0, &mut self.1, self.3);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.0 == key) {
            *entry = (key, entry.1 + 1, self.2 + entry.1 + 1, now);
            return true;
        }
        if entries.len() == size {
            let least = (0..size)
                .min_by_key(|&at| (entries[at].2, entries[at].3))
                .expect("the cache is full");
            self.2 = entries.remove(least).2;
        }
        entries.push((key, 1, self.2 + 1, now));
        false
    }
}

struct BeladyModel(usize, Vec<(Key, u64)>);

impl Model for BeladyModel {
    fn request(&mut self, key: Key, next_use: u64) -> bool {
        let (size, entries) = (self.0, &mut self.1);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.0 == key) {
            entry.1 = next_use;
            return true;
        }
        if entries.len() == size {
            let furthest = (0..size).max_by_key(|&at| entries[at].1).expect("the cache is full");
            entries.remove(furthest);
        }
        entries.push((key, next_use));
        false
    }
}

/// Segments, lowest first, of equal size.
struct SlruModel(usize, Vec<VecDeque<Key>>);

impl Model for SlruModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let (size, segments) = (self.0, &mut self.1);
        let share = size / segments.len();
        if let Some(found) = segments.iter().position(|segment| segment.contains(&key)) {
            take(&mut segments[found], key);
            let next = (found + 1).min(segments.len() - 1);
            segments[next].push_back(key);
            for segment in (1..=next).rev() {
                while segments[segment].len() > share {
                    let coldest = segments[segment].pop_front().expect("the segment overflows");
                    segments[segment - 1].push_back(coldest);
                }
            }
            return true;
        }
        if segments.iter().map(VecDeque::len).sum::<usize>() == size {
            let lowest =
                segments.iter_mut().find(|segment| !segment.is_empty()).expect("the cache is full");
            lowest.pop_front();
        }
        segments[0].push_back(key);
        false
    }
}

/// Figure 4 of the ARC paper.
#[derive(Default)]
struct ArcModel {
    c: usize,
    p: f64,
    t1: VecDeque<Key>,
    t2: VecDeque<Key>,
    b1: VecDeque<Key>,
    b2: VecDeque<Key>,
}

impl ArcModel {
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if t1 > 0.0 && (t1 > self.p || (in_b2 && t1 == self.p)) {
            self.b1.extend(self.t1.pop_front());
        } else if let Some(key) = self.t2.pop_front() {
            self.b2.push_back(key);
        } else {
            self.b1.extend(self.t1.pop_front());
        }
    }
}

impl Model for ArcModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let (c, b1, b2) = (self.c, self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.t1, key) || take(&mut self.t2, key) {
            self.t2.push_back(key);
            return true;
        }
        if self.b1.contains(&key) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(c as f64);
            take(&mut self.b1, key);
            self.replace(false);
            self.t2.push_back(key);
        } else if self.b2.contains(&key) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            take(&mut self.b2, key);
            self.replace(true);
            self.t2.push_back(key);
        } else {
            let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if self.t1.len() + self.b1.len() == c {
                if self.t1.len() < c {
                    self.b1.pop_front();
                    self.replace(false);
                } else {
                    self.t1.pop_front();
                }
            } else if all >= c {
                if all == 2 * c {
                    self.b2.pop_front();
                }
                self.replace(false);
            }
            self.t1.push_back(key);
        }
        false
    }
}

/// The full version of 2Q; its ghost queue remembers the last `kout` departures.
struct TwoQModel {
    size: usize,
    kin: usize,
    kout: usize,
    a1in: VecDeque<Key>,
    am: VecDeque<Key>,
    departures: Vec<Key>,
}

impl Model for TwoQModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if take(&mut self.am, key) {
            self.am.push_back(key);
            return true;
        }
        if self.a1in.contains(&key) {
            return true;
        }
        if self.a1in.len() + self.am.len() == self.size {
            if self.a1in.len() > self.kin || self.am.is_empty() {
                self.departures.extend(self.a1in.pop_front());
            } else {
                self.am.pop_front();
            }
        }
        match self.departures.iter().rev().take(self.kout).position(|&left| left == key) {
            Some(back) => {
                // Forgotten, but the departures since keep their distance.
                let at = self.departures.len() - 1 - back;
                self.departures[at] = Key::MAX;
                self.am.push_back(key);
            }
            None => self.a1in.push_back(key),
        }
        false
    }
}

/// Algorithm 1 of the S3-FIFO paper; its ghost queue remembers the last `ghosts` departures. With
/// `main_first` the main queue fills up before the small one gets anything, as long as nothing had
/// to leave.
struct S3FifoModel {
    size: usize,
    small_size: usize,
    ghosts: usize,
    hits_to_stay: u8,
    hits_max: u8,
    main_first: bool,
    overflows: bool,
    filling: bool,
    small: VecDeque<Key>,
    main: VecDeque<Key>,
    hits: HashMap<Key, u8>,
    departures: Vec<Key>,
}

impl S3FifoModel {
    fn evict(&mut self) {
        loop {
            if !self.small.is_empty()
                && (self.small.len() >= self.small_size || self.main.is_empty())
            {
                let oldest = self.small.pop_front().expect("the queue is not empty");
                if self.hits[&oldest] < self.hits_to_stay {
                    self.departures.push(oldest);
                    return;
                }
                self.hits.insert(oldest, 0);
                self.main.push_back(oldest);
            } else {
                let oldest = self.main.pop_front().expect("one of the queues is not empty");
                if self.hits[&oldest] == 0 {
                    return;
                }
                *self.hits.entry(oldest).or_default() -= 1;
                self.main.push_back(oldest);
            }
        }
    }
}

impl Model for S3FifoModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if self.small.contains(&key) || self.main.contains(&key) {
            let hits = self.hits.entry(key).or_default();
            *hits = (*hits + 1).min(self.hits_max);
            return true;
        }
        if self.small.len() + self.main.len() == self.size {
            self.evict();
            self.filling = false;
        }
        self.filling |= self.small.is_empty() && self.main.is_empty();
        self.hits.insert(key, 0);
        match self.departures.iter().rev().take(self.ghosts).position(|&left| left == key) {
            Some(back) => {
                let at = self.departures.len() - 1 - back;
                self.departures[at] = Key::MAX;
                self.main.push_back(key);
            }
            None if self.main_first
                && self.filling
                && self.main.len() < self.size - self.small_size =>
            {
                self.main.push_back(key);
            }
            None if self.overflows && self.filling && self.small.len() >= self.small_size => {
                self.main.push_back(key);
            }
            None => self.small.push_back(key),
        }
        false
    }
}

/// LRU-2 with a history of as many keys as the cache holds.
struct Lru2Model {
    size: usize,
    now: u64,
    /// Key, last use, last use but one.
    entries: Vec<(Key, u64, Option<u64>)>,
    history: VecDeque<(Key, u64)>,
}

impl Model for Lru2Model {
    fn request(&mut self, key: Key, _: u64) -> bool {
        self.now += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.0 == key) {
            (entry.1, entry.2) = (self.now, Some(entry.1));
            return true;
        }
        if self.entries.len() == self.size {
            let worst = |at: &usize| match self.entries[*at] {
                (_, last, None) => (false, last),
                (_, _, Some(before)) => (true, before),
            };
            let (left, last, _) =
                self.entries.remove((0..self.size).min_by_key(worst).expect("the cache is full"));
            self.history.push_back((left, last));
            if self.history.len() > self.size {
                self.history.pop_front();
            }
        }
        let known = self.history.iter().position(|entry| entry.0 == key);
        let before = known.and_then(|at| self.history.remove(at)).map(|entry| entry.1);
        self.entries.push((key, self.now, before));
        false
    }
}

/// LIRS: the stack S as in the paper, with ghosts, and the queue Q of resident HIR keys. No more
/// ghosts than entries: the oldest is forgotten, as in every implementation.
struct LirsModel {
    low_size: usize,
    high_size: usize,
    /// Newest last.
    stack: Vec<Key>,
    queue: VecDeque<Key>,
    low: Vec<Key>,
    /// In the order in which they left.
    ghosts: VecDeque<Key>,
}

impl LirsModel {
    fn lift(&mut self, key: Key) {
        self.stack.retain(|&known| known != key);
        self.stack.push(key);
    }

    fn prune(&mut self) {
        while let Some(&bottom) = self.stack.first() {
            if self.low.contains(&bottom) {
                return;
            }
            take(&mut self.ghosts, bottom);
            self.stack.remove(0);
        }
    }

    fn make_low(&mut self, key: Key) {
        self.low.push(key);
        self.lift(key);
        self.prune();
        if self.low.len() > self.low_size {
            let bottom = self.stack.remove(0);
            self.low.retain(|&known| known != bottom);
            self.queue.push_back(bottom);
            self.prune();
        }
    }
}

impl Model for LirsModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if self.low.contains(&key) {
            self.lift(key);
            self.prune();
            return true;
        }
        let in_stack = self.stack.contains(&key);
        if take(&mut self.queue, key) {
            if in_stack {
                self.make_low(key);
            } else {
                self.queue.push_back(key);
                self.stack.push(key);
            }
            return true;
        }
        let size = self.low_size + self.high_size;
        if self.low.len() + self.queue.len() == size {
            let victim = self.queue.pop_front().unwrap_or_else(|| self.low.remove(0));
            if self.stack.contains(&victim) {
                if self.ghosts.len() == size
                    && let Some(oldest) = self.ghosts.pop_front()
                {
                    self.stack.retain(|&known| known != oldest);
                }
                self.ghosts.push_back(victim);
            }
            self.prune();
        }
        let known = take(&mut self.ghosts, key);
        self.stack.retain(|&other| other != key);
        if known || self.low.len() < self.low_size {
            self.make_low(key);
        } else {
            self.stack.push(key);
            self.queue.push_back(key);
        }
        false
    }
}

/// W-TinyLFU with a fixed window and exact counts up to 15. Counts do not age within so few
/// requests.
struct WTinyLfuModel {
    size: usize,
    window_size: usize,
    protected_size: usize,
    window: VecDeque<Key>,
    probation: VecDeque<Key>,
    protected: VecDeque<Key>,
    uses: HashMap<Key, u64>,
}

impl WTinyLfuModel {
    fn used(&self, key: Key) -> u64 {
        self.uses.get(&key).copied().unwrap_or(0).min(15)
    }

    fn evict(&mut self) {
        let candidate = (self.window.len() >= self.window_size).then(|| self.window[0]);
        let probation_first = !self.probation.is_empty();
        let main = if probation_first { &mut self.probation } else { &mut self.protected };
        match (candidate, main.front().copied()) {
            (Some(candidate), Some(victim)) => {
                self.window.pop_front();
                if self.used(candidate) > self.used(victim) {
                    let main =
                        if probation_first { &mut self.probation } else { &mut self.protected };
                    main.pop_front();
                    self.probation.push_back(candidate);
                }
            }
            (Some(_), None) => drop(self.window.pop_front()),
            (None, _) => drop(main.pop_front()),
        }
    }
}

impl Model for WTinyLfuModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if take(&mut self.window, key) {
            self.window.push_back(key);
            return true;
        }
        let hit = take(&mut self.probation, key) || take(&mut self.protected, key);
        *self.uses.entry(key).or_default() += u64::from(hit);
        if hit {
            self.protected.push_back(key);
            while self.protected.len() > self.protected_size {
                self.probation.extend(self.protected.pop_front());
            }
            return true;
        }
        if self.window.len() + self.probation.len() + self.protected.len() == self.size {
            self.evict();
        }
        *self.uses.entry(key).or_default() += 1;
        self.window.push_back(key);
        while self.window.len() > self.window_size {
            self.probation.extend(self.window.pop_front());
        }
        false
    }
}

/// LeCaR as in its authors' code, with the policy's draws.
struct LeCaRModel {
    size: usize,
    now: u64,
    trust_in_lru: f64,
    draws: u64,
    entries: Vec<LeCaREntry>,
    /// Of LRU and of LFU, oldest first: key, when it left, uses.
    histories: [VecDeque<(Key, u64, u64)>; 2],
}

#[derive(Clone, Copy)]
struct LeCaREntry {
    key: Key,
    uses: u64,
    last_use: u64,
}

impl LeCaRModel {
    /// SplitMix64 from the policy's seed.
    fn draw(&mut self) -> f64 {
        let state = 0xf10e_u64.wrapping_add(self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.draws += 1;
        (mix(state) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn evict(&mut self) {
        let oldest =
            (0..self.size).min_by_key(|&at| self.entries[at].last_use).expect("the cache is full");
        let rarest = (0..self.size)
            .min_by_key(|&at| (self.entries[at].uses, self.entries[at].last_use))
            .expect("the cache is full");
        let expert = usize::from(self.draw() >= self.trust_in_lru);
        let left = self.entries.remove(if expert == 0 { oldest } else { rarest });
        if oldest != rarest {
            let history = &mut self.histories[expert];
            history.push_back((left.key, self.now, left.uses));
            if history.len() > (self.size / 2).max(1) {
                history.pop_front();
            }
        }
    }
}

impl Model for LeCaRModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        self.now += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            (entry.uses, entry.last_use) = (entry.uses + 1, self.now);
            return true;
        }
        let mut uses = 1;
        for expert in 0..2 {
            let history = &mut self.histories[expert];
            let Some(at) = history.iter().position(|left| left.0 == key) else { continue };
            let (_, left_at, used) = history.remove(at).expect("the place is in the history");
            uses += used;
            let age = (self.now - left_at) as f64 / self.size as f64;
            let factor = (-0.45 * 0.005_f64.powf(age)).exp();
            let mut weights = [self.trust_in_lru, 1.0 - self.trust_in_lru];
            weights[expert] *= factor;
            self.trust_in_lru = (weights[0] / (weights[0] + weights[1])).clamp(0.01, 0.99);
        }
        if self.entries.len() == self.size {
            self.evict();
        }
        self.entries.push(LeCaREntry { key, uses, last_use: self.now });
        false
    }
}

/// Asks policy and model for the same keys and compares every answer.
struct Agrees<'a> {
    size: usize,
    slots: usize,
    keys: &'a [Key],
    model: Box<dyn Model>,
}

impl Visitor for Agrees<'_> {
    type Out = ();

    fn visit<P: Policy>(mut self, make: impl Fn() -> P) {
        let index: HashMap<Key, Slot> = HashMap::new();
        let mut owner = SlotOwner::<P, _>::new(make(), index, self.size as u64, self.slots);
        for (at, &key) in self.keys.iter().enumerate() {
            let later = self.keys[at + 1..].iter().position(|&other| other == key);
            // Keys that never come back still differ, so that Belady has no ties.
            let next_use =
                later.map_or(Access::NEVER - at as u64, |distance| (at + 1 + distance) as u64);
            let access = Access { next_use, ..Access::new(mix(key)) };
            let hit = owner.find(key);
            assert_eq!(
                hit.is_some(),
                self.model.request(key, next_use),
                "{} with {} entries, request {at} for {key}",
                P::INFO.name,
                self.size
            );
            match hit {
                Some(slot) => owner.hit(slot, &access),
                None => {
                    let slot = owner.insert(key, &access, |_, _, _| ());
                    assert!(slot.is_some(), "a full cache has a victim");
                }
            }
        }
    }
}

pub(crate) fn agrees(policy: &str, size: usize, keys: &[Key], model: impl Model + 'static) {
    let choice: Choice = policy.parse().expect("the policy is registered");
    with(&choice, Agrees { size, slots: size, keys, model: Box::new(model) });
}

/// Requests for few keys, popular ones among them.
pub(crate) fn keys() -> impl Strategy<Value = Vec<Key>> {
    proptest::collection::vec(prop_oneof![0..6u64, 0..24u64, 0..60u64], 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fifo_is_a_queue(keys in keys(), size in 1..16usize) {
        agrees("fifo", size, &keys, FifoModel(size, VecDeque::new()));
    }

    #[test]
    fn lru_is_a_queue_whose_hits_go_to_the_end(keys in keys(), size in 1..16usize) {
        agrees("lru", size, &keys, LruModel(size, VecDeque::new()));
        agrees("relaxed-lru", size, &keys, LruModel(size, VecDeque::new()));
        agrees("prob-lru:q=0", size, &keys, LruModel(size, VecDeque::new()));
        agrees("prob-lru:q=1", size, &keys, FifoModel(size, VecDeque::new()));
    }

    #[test]
    fn clock_is_a_queue_with_second_chances(keys in keys(), size in 1..16usize) {
        agrees("clock", size, &keys, ClockModel(size, 1, VecDeque::new()));
        agrees("clock:bits=2", size, &keys, ClockModel(size, 3, VecDeque::new()));
    }

    #[test]
    fn sieve_is_a_queue_with_a_hand(keys in keys(), size in 1..16usize) {
        agrees("sieve", size, &keys, SieveModel(size, Vec::new(), None));
    }

    #[test]
    fn lfu_counts_hits(keys in keys(), size in 1..16usize) {
        agrees("lfu", size, &keys, LfuModel(size, Vec::new(), 0));
    }

    #[test]
    fn gdsf_is_lfu_above_an_age_that_rises(keys in keys(), size in 1..16usize) {
        agrees("gdsf", size, &keys, GdsfModel(size, Vec::new(), 0, 0));
    }

    #[test]
    fn belady_looks_ahead(keys in keys(), size in 1..16usize) {
        agrees("belady", size, &keys, BeladyModel(size, Vec::new()));
    }

    #[test]
    fn slru_lifts_by_one_segment(keys in keys(), size in 1..16usize) {
        for segments in [2, 4] {
            agrees(
                &format!("slru:segments={segments}"), size, &keys,
                SlruModel(size, vec![VecDeque::new(); segments]),
            );
        }
    }

    #[test]
    fn arc_is_figure_4_of_its_paper(keys in keys(), size in 1..16usize) {
        agrees("arc", size, &keys, ArcModel { c: size, ..ArcModel::default() });
    }

    #[test]
    fn two_q_is_the_full_version_of_its_paper(keys in keys(), size in 1..16usize) {
        let (kin, kout) = (size / 4, size / 2);
        let model = TwoQModel {
            size, kin, kout, a1in: VecDeque::new(), am: VecDeque::new(), departures: Vec::new(),
        };
        agrees("2q", size, &keys, model);
    }

    #[test]
    fn s3_fifo_qdlp_and_qd_clock_are_algorithm_1_of_the_paper(keys in keys(), size in 1..=16usize) {
        // With so few ghosts, no bucket of the ghost table overflows.
        let names = [
            ("s3-fifo:small=0.5", 2, 3, false, false),
            ("s3-fifo:small=0.5:fill=main", 2, 3, false, true),
            ("qdlp:small=0.5", 1, 3, false, false),
            ("qd-clock:small=0.5:ghosts=0.5", 1, 7, true, false),
            ("qd-clock:small=0.5:ghosts=0.5:bits=2", 1, 3, true, false),
        ];
        for (name, hits_to_stay, hits_max, main_first, overflows) in names {
            let model = S3FifoModel {
                size,
                small_size: size / 2,
                ghosts: size / 2,
                hits_to_stay,
                hits_max,
                main_first,
                overflows,
                filling: true,
                small: VecDeque::new(),
                main: VecDeque::new(),
                hits: HashMap::new(),
                departures: Vec::new(),
            };
            agrees(name, size, &keys, model);
        }
    }

    #[test]
    fn lru_k_orders_by_the_last_use_but_one(keys in keys(), size in 1..16usize) {
        let model = Lru2Model { size, now: 0, entries: Vec::new(), history: VecDeque::new() };
        agrees("lru-k", size, &keys, model);
    }

    #[test]
    fn lirs_is_a_stack_and_a_queue(keys in keys(), size in 2..16usize) {
        let high_size = (size / 4).max(1);
        let model = LirsModel {
            low_size: size - high_size,
            high_size,
            stack: Vec::new(),
            queue: VecDeque::new(),
            low: Vec::new(),
            ghosts: VecDeque::new(),
        };
        agrees("lirs:hir=0.25", size, &keys, model);
    }

    #[test]
    fn lecar_learns_from_its_mistakes(keys in keys(), size in 1..16usize) {
        let model = LeCaRModel {
            size,
            now: 0,
            trust_in_lru: 0.5,
            draws: 0,
            entries: Vec::new(),
            histories: [VecDeque::new(), VecDeque::new()],
        };
        agrees("lecar", size, &keys, model);
    }

    #[test]
    fn w_tinylfu_asks_who_was_used_more(keys in keys(), size in 1..16usize) {
        // So many slots that no two keys share counters, and that ageing, which begins with the
        // first lines of the sketch, has not come to a line with a key when the requests end.
        const SLOTS: usize = 1 << 18;
        let model = WTinyLfuModel {
            size,
            window_size: (size / 4).max(1),
            protected_size: (size as f64 * 0.75 * 0.8) as usize,
            window: VecDeque::new(),
            probation: VecDeque::new(),
            protected: VecDeque::new(),
            uses: HashMap::new(),
        };
        let choice = "w-tinylfu:window=0.25:adapt=0";
        let choice: Choice = choice.parse().expect("the policy is registered");
        with(&choice, Agrees { size, slots: SLOTS, keys: &keys, model: Box::new(model) });
    }
}
