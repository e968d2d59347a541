//! CAR, CLOCK-Pro, Clock2Q+, S4-FIFO, MQ and LFRU with its sweep against models of themselves, as
//! those in [`models`](crate::models).

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::models::{Key, Model, agrees, keys, take};

/// A page in a clock, with its bit.
type Page = (Key, bool);

/// Sets the bit of a page and says whether it was there.
fn reference(clock: &mut VecDeque<Page>, key: Key) -> bool {
    let page = clock.iter_mut().find(|page| page.0 == key);
    page.is_some_and(|page| {
        page.1 = true;
        true
    })
}

/// Figure 2 of the paper.
#[derive(Default)]
struct CarModel {
    c: usize,
    p: f64,
    t1: VecDeque<Page>,
    t2: VecDeque<Page>,
    b1: VecDeque<Key>,
    b2: VecDeque<Key>,
}

impl CarModel {
    fn replace(&mut self) {
        loop {
            if self.t1.len() as f64 >= self.p.max(1.0) {
                match self.t1.pop_front().expect("T1 is not empty") {
                    (key, false) => return self.b1.push_back(key),
                    (key, true) => self.t2.push_back((key, false)),
                }
            } else {
                match self.t2.pop_front().expect("the cache is full") {
                    (key, false) => return self.b2.push_back(key),
                    (key, true) => self.t2.push_back((key, false)),
                }
            }
        }
    }
}

impl Model for CarModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if reference(&mut self.t1, key) || reference(&mut self.t2, key) {
            return true;
        }
        let known = self.b1.contains(&key) || self.b2.contains(&key);
        if self.t1.len() + self.t2.len() == self.c {
            self.replace();
            let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if !known && self.t1.len() + self.b1.len() == self.c {
                self.b1.pop_front();
            } else if !known && all == 2 * self.c {
                self.b2.pop_front();
            }
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.b1, key) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            self.t2.push_back((key, false));
        } else if take(&mut self.b2, key) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            self.t2.push_back((key, false));
        } else {
            self.t1.push_back((key, false));
        }
        false
    }
}

/// The window is an age here: the entries that came to the small FIFO since.
struct Clock2QPlusModel {
    size: usize,
    small_size: usize,
    window: f64,
    ghosts_most: usize,
    filling: bool,
    admitted: u64,
    /// Key, bit and number of the admission.
    small: VecDeque<(Key, bool, u64)>,
    main: VecDeque<Page>,
    ghosts: VecDeque<Key>,
}

impl Clock2QPlusModel {
    fn evict(&mut self) {
        if self.small.len() >= self.small_size || self.main.is_empty() {
            while let Some((key, hit, _)) = self.small.pop_front() {
                if !hit {
                    self.ghosts.push_back(key);
                    if self.ghosts.len() > self.ghosts_most {
                        self.ghosts.pop_front();
                    }
                    return;
                }
                self.main.push_back((key, false));
            }
        }
        while let Some((key, true)) = self.main.pop_front() {
            self.main.push_back((key, false));
        }
    }
}

impl Model for Clock2QPlusModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if let Some(entry) = self.small.iter_mut().find(|entry| entry.0 == key) {
            entry.1 |= (self.admitted - entry.2) as f64 >= self.window;
            return true;
        }
        if reference(&mut self.main, key) {
            return true;
        }
        if self.small.len() + self.main.len() == self.size {
            self.evict();
            self.filling = false;
        }
        self.filling |= self.small.is_empty() && self.main.is_empty();
        let known = take(&mut self.ghosts, key);
        if known || self.filling && self.small.len() >= self.small_size {
            self.main.push_back((key, false));
        } else {
            self.admitted += 1;
            self.small.push_back((key, false, self.admitted));
        }
        false
    }
}

/// An entry of the small queue of [`S4FifoModel`].
struct Candidate {
    key: Key,
    hits: u32,
    /// Number of entries that had come to the small queue with it.
    admitted: u64,
    returns: u32,
}

/// The skipped part is an age here, too. Ghosts carry the times that their keys have come back.
struct S4FifoModel {
    size: usize,
    small_size: usize,
    skipped: u64,
    hits_needed: u32,
    returns_ignored: u32,
    ghosts_most: usize,
    filling: bool,
    admitted: u64,
    small: VecDeque<Candidate>,
    main: VecDeque<(Key, u32)>,
    ghosts: VecDeque<(Key, u32)>,
}

impl S4FifoModel {
    fn evict(&mut self) {
        if self.small.len() >= self.small_size || self.main.is_empty() {
            while let Some(oldest) = self.small.pop_front() {
                if oldest.hits < self.hits_needed {
                    self.ghosts.push_back((oldest.key, oldest.returns));
                    if self.ghosts.len() > self.ghosts_most {
                        self.ghosts.pop_front();
                    }
                    return;
                }
                self.main.push_back((oldest.key, 0));
            }
        }
        while let Some((key, hits @ 1..)) = self.main.pop_front() {
            self.main.push_back((key, hits.min(3) - 1));
        }
    }
}

impl Model for S4FifoModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if let Some(entry) = self.small.iter_mut().find(|entry| entry.key == key) {
            entry.hits += u32::from(self.admitted - entry.admitted >= self.skipped);
            return true;
        }
        if let Some((_, hits)) = self.main.iter_mut().find(|entry| entry.0 == key) {
            *hits += 1;
            return true;
        }
        if self.small.len() + self.main.len() == self.size {
            self.evict();
            self.filling = false;
        }
        self.filling |= self.small.is_empty() && self.main.is_empty();
        let known = self.ghosts.iter().position(|ghost| ghost.0 == key);
        let returns = known.and_then(|at| self.ghosts.remove(at)).map_or(0, |ghost| ghost.1 + 1);
        let fills_main = self.filling && self.small.len() >= self.small_size;
        if returns > self.returns_ignored || fills_main {
            self.main.push_back((key, 0));
        } else {
            self.admitted += 1;
            let admitted = self.admitted;
            self.small.push_back(Candidate { key, hits: 0, admitted, returns });
        }
        false
    }
}

/// An entry of [`LfruModel`]; the slot breaks ties.
#[derive(Clone, Copy)]
struct Used {
    key: Key,
    slot: usize,
    last: u64,
    count: u64,
}

/// A scan of all entries chooses victims, of which those that were not used since leave one by one.
struct LfruModel {
    size: usize,
    window: u64,
    chosen: usize,
    now: u64,
    scanned: u64,
    entries: Vec<Used>,
    victims: VecDeque<Key>,
}

impl LfruModel {
    fn evict(&mut self) -> usize {
        loop {
            while let Some(key) = self.victims.pop_front() {
                let unused = |entry: &Used| entry.key == key && entry.last <= self.scanned;
                if let Some(at) = self.entries.iter().position(unused) {
                    return self.entries.remove(at).slot;
                }
            }
            let in_window = |entry: &Used| self.now - entry.last < self.window;
            let mut order = self.entries.clone();
            order.sort_by_key(|entry| (in_window(entry), entry.count, entry.last, entry.slot));
            self.victims = order.iter().take(self.chosen).map(|entry| entry.key).collect();
            let (now, window) = (self.now, self.window);
            for entry in self.entries.iter_mut().filter(|entry| now - entry.last >= window) {
                entry.count /= 2;
            }
            self.scanned = self.now;
        }
    }
}

impl Model for LfruModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            (entry.last, entry.count) = (self.now, entry.count + 1);
            return true;
        }
        let full = self.entries.len() == self.size;
        let slot = if full { self.evict() } else { self.entries.len() };
        self.now += 1;
        self.entries.push(Used { key, slot, last: self.now, count: 0 });
        false
    }
}

/// Figure 5 of the paper: queues coldest first, of keys with their uses and expiries.
struct MqModel {
    size: usize,
    lifetime: u64,
    ghosts_most: usize,
    now: u64,
    queues: Vec<VecDeque<(Key, u64, u64)>>,
    ghosts: VecDeque<(Key, u64)>,
}

impl MqModel {
    fn put(&mut self, key: Key, uses: u64) {
        let queue = (0..self.queues.len()).rev().find(|&queue| uses >= 1 << queue);
        let queue = queue.expect("a key was used at least once");
        self.queues[queue].push_back((key, uses, self.now + self.lifetime));
        self.now += 1;
        for queue in 1..self.queues.len() {
            let coldest = self.queues[queue].front().copied();
            if let Some((key, uses, expiry)) = coldest
                && expiry < self.now
            {
                self.queues[queue].pop_front();
                self.queues[queue - 1].push_back((key, uses, self.now + self.lifetime));
            }
        }
    }
}

impl Model for MqModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let held = self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|entry| entry.0 == key)?;
            queue.remove(at)
        });
        if let Some((_, uses, _)) = held {
            self.put(key, uses + 1);
            return true;
        }
        if self.queues.iter().map(VecDeque::len).sum::<usize>() == self.size {
            let lowest = self.queues.iter_mut().find(|queue| !queue.is_empty());
            let (left, uses, _) = lowest.and_then(VecDeque::pop_front).expect("the cache is full");
            self.ghosts.push_back((left, uses));
            if self.ghosts.len() > self.ghosts_most {
                self.ghosts.pop_front();
            }
        }
        let known = self.ghosts.iter().position(|ghost| ghost.0 == key);
        let uses = known.and_then(|at| self.ghosts.remove(at)).map_or(0, |ghost| ghost.1);
        self.put(key, uses + 1);
        false
    }
}

/// State of a page of [`ClockProModel`].
#[derive(Clone, Copy, PartialEq)]
enum State {
    Hot,
    Cold,
    InTest,
    Ghost,
}

/// One clock as in section 4 of the paper, from the page that came to the head first. Each hand is
/// looked for from there.
struct ClockProModel {
    size: usize,
    least: usize,
    most: usize,
    ghosts_most: usize,
    evicts_late_hits: bool,
    target: usize,
    filling: bool,
    clock: Vec<(Key, State, bool)>,
}

impl ClockProModel {
    fn first(&self, states: &[State]) -> Option<usize> {
        self.clock.iter().position(|page| states.contains(&page.1))
    }

    fn count(&self, states: &[State]) -> usize {
        self.clock.iter().filter(|page| states.contains(&page.1)).count()
    }

    fn resident(&self) -> usize {
        self.clock.len() - self.count(&[State::Ghost])
    }

    /// The place of a key's page in test.
    fn tested(&self, key: Key) -> Option<usize> {
        let in_test = |state| state == State::InTest || state == State::Ghost;
        self.clock.iter().position(|page| page.0 == key && in_test(page.1))
    }

    fn end_test(&mut self, at: usize) {
        let (_, state, referenced) = self.clock[at];
        if state == State::Ghost {
            self.clock.remove(at);
        } else {
            self.clock[at].1 = State::Cold;
        }
        self.target = if referenced {
            self.most.min(self.target + 1)
        } else {
            self.least.max(self.target.saturating_sub(1))
        };
    }

    fn end_tests(&mut self) {
        while let Some(hand) = self.first(&[State::Hot])
            && let Some(at) = self.first(&[State::InTest, State::Ghost]).filter(|&at| at < hand)
        {
            self.end_test(at);
        }
    }

    fn demote(&mut self, candidate: Key) -> bool {
        let mut demoted = false;
        while !demoted
            && let Some(hand) = self.first(&[State::Hot])
            && self.tested(candidate).is_some_and(|at| hand < at)
        {
            let (key, _, referenced) = self.clock.remove(hand);
            demoted = !referenced;
            self.clock.push((key, if demoted { State::Cold } else { State::Hot }, false));
        }
        self.end_tests();
        demoted
    }

    fn promotes(&mut self, key: Key) -> bool {
        let Some(at) = self.tested(key) else { return false };
        self.target = self.most.min(self.target + 1);
        self.clock[at].2 = false;
        while self.count(&[State::Hot]) + 1 + self.target > self.size {
            if self.tested(key).is_none() || !self.demote(key) {
                return false;
            }
        }
        true
    }

    fn evict(&mut self) {
        while let Some(hand) = self.first(&[State::Cold, State::InTest]) {
            match self.clock[hand] {
                (_, State::InTest, false) => {
                    self.clock[hand].1 = State::Ghost;
                    while self.count(&[State::Ghost]) > self.ghosts_most {
                        let test = self.first(&[State::InTest, State::Ghost]);
                        self.end_test(test.expect("there are ghosts"));
                    }
                    return;
                }
                (_, state, referenced)
                    if !referenced || self.evicts_late_hits && state == State::Cold =>
                {
                    self.clock.remove(hand);
                    return;
                }
                (key, ..) => {
                    let promotes = self.promotes(key);
                    self.clock.retain(|page| page.0 != key);
                    let state = if promotes { State::Hot } else { State::InTest };
                    self.clock.push((key, state, false));
                }
            }
        }
        loop {
            let hand = self.first(&[State::Hot]).expect("the cache is full");
            match self.clock.remove(hand) {
                (_, _, false) => return,
                (key, state, true) => self.clock.push((key, state, false)),
            }
        }
    }
}

impl Model for ClockProModel {
    fn request(&mut self, key: Key, _: u64) -> bool {
        let cached = |page: &&mut (Key, State, bool)| page.0 == key && page.1 != State::Ghost;
        if let Some(page) = self.clock.iter_mut().find(cached) {
            page.2 = true;
            return true;
        }
        if self.resident() == self.size {
            self.evict();
            self.filling = false;
        }
        self.filling |= self.resident() == 0;
        let is_hot =
            self.filling && self.resident() + 1 + self.least <= self.size || self.promotes(key);
        self.clock.retain(|page| page.0 != key);
        self.clock.push((key, if is_hot { State::Hot } else { State::InTest }, false));
        self.end_tests();
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn car_is_figure_2_of_its_paper(keys in keys(), size in 1..16usize) {
        agrees("car", size, &keys, CarModel { c: size, ..CarModel::default() });
    }

    #[test]
    fn clock_pro_is_one_clock_with_three_hands(
        keys in keys(),
        size in 1..=24usize,
        most in 2..=4u8,
        ghosts in 1..=2u8,
        evicts_late_hits: bool,
    ) {
        let (most, ghosts) = (f64::from(most) / 4.0, f64::from(ghosts) / 2.0);
        let least = (size / 10).max(2.min(size / 2));
        let model = ClockProModel {
            size,
            least,
            most: ((size as f64 * most) as usize).min(size - least).max(least),
            ghosts_most: (size as f64 * ghosts) as usize,
            evicts_late_hits,
            target: least,
            filling: true,
            clock: Vec::new(),
        };
        let late_hit = if evicts_late_hits { "evict" } else { "spare" };
        let asked = format!("min=0.1:max={most}:ghosts={ghosts}:late-hit={late_hit}");
        agrees(&format!("clock-pro:{asked}"), size, &keys, model);
    }

    #[test]
    fn mq_is_figure_5_of_its_paper(keys in keys(), size in 1..16usize, queues in 1..=4usize) {
        let model = MqModel {
            size,
            lifetime: size as u64 / 2,
            ghosts_most: size,
            now: 0,
            queues: vec![VecDeque::new(); queues],
            ghosts: VecDeque::new(),
        };
        agrees(&format!("mq:queues={queues}:lifetime=0.5:out=1"), size, &keys, model);
    }

    #[test]
    fn clock2q_plus_ignores_hits_by_age(keys in keys(), size in 1..=16usize, window in 0..=4u8) {
        let small_size = size / 2;
        let window = f64::from(window) / 4.0;
        let model = Clock2QPlusModel {
            size,
            small_size,
            window: small_size as f64 * window,
            ghosts_most: size * 3 / 4,
            filling: true,
            admitted: 0,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
        };
        agrees(&format!("clock2q-plus:small=0.5:ghosts=0.75:window={window}"), size, &keys, model);
    }

    #[test]
    fn s4_fifo_counts_hits_and_returns_as_its_parameters_say(
        keys in keys(),
        size in 1..=16usize,
        skip in 0..=4u8,
        hits_needed in 1..=4u32,
        returns_ignored in 0..=2u32,
    ) {
        let small_size = size / 2;
        let skip = f64::from(skip) / 4.0;
        let model = S4FifoModel {
            size,
            small_size,
            skipped: (small_size as f64 * skip) as u64,
            hits_needed,
            returns_ignored,
            ghosts_most: size * 3 / 2,
            filling: true,
            admitted: 0,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
        };
        let asked = format!("skip={skip}:hits={hits_needed}:ghost-hits={returns_ignored}");
        agrees(&format!("s4-fifo:small=0.5:ghosts=1.5:{asked}"), size, &keys, model);
    }

    #[test]
    fn lfru_takes_the_victims_of_a_sweep(keys in keys(), size in 1..16usize, sweep in 1..=4u8) {
        let share = f64::from(sweep) / 4.0;
        let model = LfruModel {
            size,
            window: size as u64 / 2,
            chosen: ((size as f64 * share) as usize).max(1),
            now: 0,
            scanned: 0,
            entries: Vec::new(),
            victims: VecDeque::new(),
        };
        agrees(&format!("lfru:window=0.5:sweep={share}"), size, &keys, model);
    }
}
