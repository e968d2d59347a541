//! FussyCache tuned by measured times: over an LRU list whose hits and misses take known times.

use std::collections::{HashSet, VecDeque};

use floe_policy::admission::registry::Choice;
use floe_policy::admission::{
    Admission, Fussy, Orders, RegisteredAdmission, Room, Times, Traffic, Window,
};
use floe_policy::{Access, Direction, Tick, mix};

const CHECK: u64 = 200;
const WARM_UP: u64 = 2000;
const HIT_NS: f64 = 1_000.0;
const BELOW_NS: f64 = 11_000.0;

fn access(key: u64) -> Access {
    Access { position: key, ..Access::new(mix(key)) }
}

fn blocks(blocks: u64) -> Traffic {
    Traffic { blocks, bytes: blocks }
}

fn times(insert_ns: f64) -> Times {
    Times {
        hit_ns: Some(HIT_NS),
        backing_read_ns: Some(BELOW_NS),
        backing_write_ns: Some(BELOW_NS),
        insert_ns: Some(insert_ns),
        ..Times::default()
    }
}

fn fussy(text: &str, entries: usize) -> Fussy {
    let choice: Choice = text.parse().expect("the choice is valid");
    let mut fussy = Fussy::with(choice.parameters());
    fussy.reserve(&Room { entries, weight: entries as u64, above: 0 });
    fussy
}

/// So many requests; what is fetched then.
fn interval(fussy: &mut Fussy, requests: u64, times: Times) -> Vec<u64> {
    fussy.observe(&Window { lookups: blocks(requests), entries: 100, times, ..Window::default() });
    let mut orders = Orders::default();
    fussy.tick(Tick::default(), &mut orders);
    orders.fetch.iter().map(|fetch| fetch.position).collect()
}

/// One past its warm-up, with room for 100 entries and 400 blocks in its table.
fn warm() -> Fussy {
    let mut fussy = fussy("fussy:tune=1", 100);
    assert_eq!(interval(&mut fussy, WARM_UP, Times::default()), [0_u64; 0]);
    fussy
}

/// One that is fussy, for insertions cost something and blocks never return.
fn made_fussy(times: Times) -> Fussy {
    let mut fussy = warm();
    interval(&mut fussy, CHECK, times);
    for key in 0..1000 {
        fussy.admit(&access(2_000_000 + key), None);
    }
    interval(&mut fussy, CHECK, times);
    assert!(!fussy.admits_all());
    fussy
}

#[test]
fn popular_is_who_is_worth_a_fetch_and_who_is_displaced() {
    let threshold = |insert_ns, evicted: u64, returns: u64| {
        let mut fussy = warm();
        (0..evicted).for_each(|key| fussy.evicted(&access(key)));
        for key in 0..returns {
            fussy.admit(&access(key % evicted), None);
        }
        interval(&mut fussy, CHECK, times(insert_ns));
        fussy.threshold()
    };
    assert_eq!(threshold(0.0, 0, 0), 2, "a fetch takes 1.1 of what a hit saves");
    assert_eq!(threshold(20_000.0, 0, 0), 4, "3.1, with an insertion that slow");
    assert_eq!(threshold(0.0, 10, 0), 2, "nobody wants back who had to leave");
    assert_eq!(threshold(0.0, 10, 25), 4, "1.1 and the 2.5 accesses of each that left");
    assert_eq!(threshold(20_000.0, 10, 25), 6);
}

#[test]
fn accesses_count_by_what_a_hit_saves() {
    let popular_after = |direction, times: Times| {
        let mut fussy = made_fussy(times);
        let threshold = fussy.threshold();
        let found = (1..200).find(|_| {
            fussy.admit(&Access { direction, ..access(5) }, None);
            interval(&mut fussy, CHECK, times) == [5]
        });
        found.map(|accesses| accesses as f64 / threshold as f64)
    };
    let times = Times {
        hit_ns: Some(0.0),
        backing_read_ns: Some(10_000.0),
        backing_write_ns: Some(40_000.0),
        insert_ns: Some(110_000.0),
        ..Times::default()
    };
    assert_eq!(popular_after(Direction::Write, times), Some(1.0));
    assert_eq!(
        popular_after(Direction::Read, times),
        Some(4.0),
        "a read saves a quarter of a write"
    );
    let useless = Times { backing_read_ns: Some(0.0), backing_write_ns: Some(0.0), ..times };
    assert_eq!(popular_after(Direction::Read, useless), None, "a hit saves nothing");
}

#[test]
fn writes_that_wait_for_nobody_once_they_are_in_are_worth_letting_in() {
    // Blocks that never return; an insertion takes longer than a hit saves, and a write below more.
    let is_plain = |direction, puts_writes_off| {
        let times = Times { backing_write_ns: Some(40_000.0), ..times(15_000.0) };
        let window = |requests| Window {
            lookups: blocks(requests),
            entries: 100,
            times,
            puts_writes_off,
            ..Window::default()
        };
        let mut fussy = warm();
        let mut orders = Orders::default();
        fussy.observe(&window(CHECK));
        fussy.tick(Tick::default(), &mut orders);
        for key in 0..1000 {
            fussy.admit(&Access { direction, ..access(2_000_000 + key) }, None);
        }
        fussy.observe(&window(CHECK));
        fussy.tick(Tick::default(), &mut orders);
        fussy.admits_all()
    };
    assert!(is_plain(Direction::Write, true));
    assert!(!is_plain(Direction::Write, false), "the device below is written to all the same");
    assert!(!is_plain(Direction::Read, true), "a read has waited before its block comes in");
}

#[test]
fn checks_come_after_so_many_requests_however_many_blocks_each_has() {
    let mut fussy = fussy("fussy:check=200:warm-up=2000", 100);
    let mut serve = |requests: u64| {
        fussy.observe(&Window { requests, lookups: blocks(128 * requests), ..Window::default() });
        fussy.tick(Tick::default(), &mut Orders::default());
        fussy.admits_all()
    };
    assert!(serve(WARM_UP - 1), "it warms up");
    assert!(!serve(1));
}

#[test]
fn without_measured_times_the_threshold_is_the_given_one() {
    let mut fussy = warm();
    (0..10).for_each(|key| fussy.evicted(&access(key)));
    interval(&mut fussy, CHECK, Times::default());
    assert_eq!(fussy.threshold(), 4);
}

/// An LRU cache that does as it is told.
struct Cache {
    fussy: Fussy,
    entries: usize,
    /// The last one was used last.
    order: VecDeque<u64>,
    held: HashSet<u64>,
    window: Window,
}

impl Cache {
    fn new(text: &str, entries: usize) -> Self {
        let (order, held) = (VecDeque::new(), HashSet::new());
        Self { fussy: fussy(text, entries), entries, order, held, window: Window::default() }
    }

    fn insert(&mut self, key: u64) {
        if self.order.len() == self.entries {
            let victim = self.order.pop_front().expect("it is full");
            self.held.remove(&victim);
            self.fussy.evicted(&access(victim));
        }
        self.order.push_back(key);
        self.held.insert(key);
    }

    /// Serves requests up to the next check; their mean latency.
    fn serve(&mut self, keys: &mut impl Iterator<Item = u64>) -> f64 {
        let mut sum_ns = 0.0;
        for key in keys.take(CHECK as usize) {
            self.window.lookups += blocks(1);
            if self.held.contains(&key) {
                sum_ns += HIT_NS;
                self.window.hits += blocks(1);
                let at = self.order.iter().position(|&held| held == key).expect("it is held");
                self.order.remove(at);
                self.order.push_back(key);
                self.fussy.used(&access(key));
            } else {
                sum_ns += BELOW_NS;
                if self.fussy.admit(&access(key), None).admits() {
                    self.insert(key);
                }
            }
        }
        (self.window.entries, self.window.times) = (self.order.len() as u64, times(0.0));
        self.fussy.observe(&std::mem::take(&mut self.window));
        let mut orders = Orders::default();
        self.fussy.tick(Tick::default(), &mut orders);
        for fetch in orders.fetch {
            if !self.held.contains(&fetch.position) {
                self.insert(fetch.position);
            }
        }
        sum_ns / CHECK as f64
    }

    /// The mean latency of so many checks.
    fn serve_for(&mut self, checks: u64, keys: &mut impl Iterator<Item = u64>) -> f64 {
        (0..checks).map(|_| self.serve(keys)).sum::<f64>() / checks as f64
    }
}

/// Eighty blocks are asked for again and again, and between them others once: too many for an LRU
/// list of 100.
fn few_are_popular(seed: u64) -> impl Iterator<Item = u64> {
    (0u64..).map(move |at| {
        let draw = mix(seed ^ at);
        if draw % 5 < 2 { (draw >> 8) % 80 } else { 1_000_000 + at }
    })
}

/// Each block is asked for three times, soon, and never again.
fn all_are_popular_for_a_moment(seed: u64) -> impl Iterator<Item = u64> {
    (0u64..).map(move |at| {
        let (group, place) = (at / 30, at % 10);
        seed * 1_000_000_000 + 2_000_000 + group * 10 + place
    })
}

/// Plain LRU: fussy without end to its warm-up.
const PLAIN: &str = "fussy:warm-up=4294967296";
/// Fussy without end to its patience.
const FUSSY: &str = "fussy:patience=4294967296";
const TUNED: &str = "fussy:tune=1";

#[test]
fn it_is_fussy_where_only_the_popular_pay() {
    let mean = |text| {
        let mut cache = Cache::new(text, 100);
        let keys = &mut few_are_popular(1);
        cache.serve_for(30, keys);
        (cache.serve_for(100, keys), cache.fussy.admits_all())
    };
    let ((plain, _), (fussy, _), (tuned, admits_all)) = (mean(PLAIN), mean(FUSSY), mean(TUNED));
    assert!(fussy < 0.8 * plain, "{fussy} {plain}: the load is one that fussy is for");
    assert!(!admits_all && tuned < 1.02 * fussy, "{tuned} {fussy}");
}

#[test]
fn it_stays_plain_where_being_fussy_does_harm() {
    let mean = |text| {
        let mut cache = Cache::new(text, 100);
        cache.serve_for(130, &mut all_are_popular_for_a_moment(0))
    };
    let (plain, fussy, tuned) = (mean(PLAIN), mean(FUSSY), mean(TUNED));
    assert!(plain < 0.5 * fussy, "{plain} {fussy}: the load is one that fussy is not for");
    assert_eq!(tuned, plain, "it was never fussy");
}

#[test]
fn it_steps_back_and_returns_within_a_few_checks() {
    let mut cache = Cache::new(TUNED, 100);
    cache.serve_for(50, &mut few_are_popular(1));
    assert!(!cache.fussy.admits_all());
    // Doubt doubles with each change, up to a hit per entry: more than that is missed in each
    // check.
    for phase in 2..12 {
        let keys = &mut all_are_popular_for_a_moment(phase);
        let plain_after = (1..10).find(|_| {
            cache.serve(keys);
            cache.fussy.admits_all()
        });
        assert!(plain_after.is_some_and(|checks| checks <= 3), "phase {phase}: {plain_after:?}");
        cache.serve_for(50, keys);
        assert!(cache.fussy.admits_all());
        let keys = &mut few_are_popular(phase);
        let fussy_after = (1..30).find(|_| {
            cache.serve(keys);
            !cache.fussy.admits_all()
        });
        assert!(fussy_after.is_some_and(|checks| checks <= 12), "phase {phase}: {fussy_after:?}");
        cache.serve_for(50, keys);
        assert!(!cache.fussy.admits_all());
    }
}

#[test]
fn it_does_not_change_where_both_modes_are_alike() {
    let mut cache = Cache::new(TUNED, 100);
    let keys = &mut (0u64..).map(|at| mix(at) % 90);
    for _ in 0..500 {
        cache.serve(keys);
        assert!(cache.fussy.admits_all(), "all fits, so nobody has to be kept out");
    }
}

#[test]
fn a_large_cache_is_judged_by_a_sample() {
    // One block in eight is looked at; what the cache itself would hit plays no part in the
    // judgement.
    let mut fussy = fussy(TUNED, 1 << 16);
    let fussy_after = (0..700_000u64).find(|&at| {
        let draw = mix(at);
        fussy
            .admit(&access(if draw % 5 < 2 { (draw >> 8) % 50_000 } else { 1_000_000 + at }), None);
        if (at + 1) % CHECK == 0 {
            interval(&mut fussy, CHECK, times(0.0));
        }
        at > WARM_UP && !fussy.admits_all()
    });
    assert!(fussy_after.is_some());
}
