//! Caches that ask an admission who comes in: against a model too simple to be wrong, and what
//! users see of it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::hash::BuildHasherDefault;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{Tally, Value};
use floe_memory::policy::admission::{
    Admission, Admissions, Duel, Never, Orders, RegisteredAdmission, Room, SecondAccess, Traffic,
    Verdict, Victim, Window,
};
use floe_memory::policy::{Access, AnyPolicy, Fifo, Lru, Parameters, PolicyInfo, Slot, Tick, mix};
use floe_memory::{BuildError, Cache, Cause, Clock, InsertOptions};
use floe_testkit::Identity;
use proptest::prelude::*;

/// Offers between two windows, as the cache has it.
const WINDOW_OFFERS: u64 = 100;

type Plain = BuildHasherDefault<Identity>;

fn access(key: u64) -> Access {
    Access::new(mix(key))
}

#[derive(Debug, Clone)]
enum Op {
    Get(u64),
    Insert { key: u64, pinned: bool },
    Load(u64),
    Remove(u64),
    Unpin(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Some keys are asked for more often than others.
    let key = || prop_oneof![0u64..12, 0u64..60];
    let op = prop_oneof![
        6 => key().prop_map(Op::Get),
        6 => (key(), prop::bool::weighted(0.02))
            .prop_map(|(key, pinned)| Op::Insert { key, pinned }),
        6 => key().prop_map(Op::Load),
        1 => key().prop_map(Op::Remove),
        1 => key().prop_map(Op::Unpin),
    ];
    prop::collection::vec(op, 1..800)
}

/// A cache in the simplest form: a list from cold to hot, a map, and the admission that the cache
/// has.
struct Model {
    admission: Admissions,
    promotes: bool,
    capacity: usize,
    /// Those that can be evicted.
    order: VecDeque<u64>,
    /// The number of each value, and whether it is pinned.
    held: BTreeMap<u64, (u64, bool)>,
    left: Vec<(u64, u64, Cause)>,
    orders: Orders,
    window: Window,
    offered_in_window: u64,
    offered: u64,
    bypassed: u64,
}

impl Model {
    fn new(text: &str, promotes: bool, capacity: usize) -> Self {
        let mut admission: Admissions = text.parse().expect("it is registered");
        admission.reserve(&Room { entries: capacity, weight: capacity as u64, above: 0 });
        let mut orders = Orders::default();
        admission.tick(Tick::default(), &mut orders);
        Self {
            admission,
            promotes,
            capacity,
            order: VecDeque::new(),
            held: BTreeMap::new(),
            left: Vec::new(),
            orders,
            window: Window::default(),
            offered_in_window: 0,
            offered: 0,
            bypassed: 0,
        }
    }

    fn forget(&mut self, key: u64) {
        self.order.retain(|&other| other != key);
    }

    /// Returns whether a key is there; it was looked up.
    fn looks_up(&mut self, key: u64) -> Option<u64> {
        self.window.lookups += ONE;
        let number = self.held.get(&key).map(|&(number, _)| number);
        if number.is_some() {
            self.window.hits += ONE;
            if self.promotes {
                self.hit(key);
                self.admission.used(&access(key));
            }
        }
        number
    }

    fn hit(&mut self, key: u64) {
        if self.promotes && self.order.contains(&key) {
            self.forget(key);
            self.order.push_back(key);
        }
    }

    fn inserts(&mut self, key: u64, number: u64, pinned: bool) {
        if let Some((before, was_pinned)) = self.held.insert(key, (number, pinned)) {
            self.left.push((key, before, Cause::Replaced));
            match (was_pinned, pinned) {
                (false, false) => self.hit(key),
                (false, true) => self.forget(key),
                (true, false) => self.order.push_back(key),
                (true, true) => {}
            }
            self.window.inserted += ONE;
            self.window.replaced += ONE;
            self.admission.used(&access(key));
            return;
        }
        self.held.remove(&key);
        let fits = self.held.len() < self.capacity;
        if !pinned && !self.admits(key, fits) {
            self.left.push((key, number, Cause::Bypassed));
            return;
        }
        if !fits {
            let Some(victim) = self.order.pop_front() else {
                self.left.push((key, number, Cause::Rejected)); // all are pinned
                return;
            };
            let (before, _) = self.held.remove(&victim).expect("it is in");
            self.left.push((victim, before, Cause::Evicted));
            self.window.removed.blocks += 1;
            self.admission.evicted(&access(victim));
        }
        self.held.insert(key, (number, pinned));
        if !pinned {
            self.order.push_back(key);
        }
        self.window.inserted += ONE;
    }

    fn admits(&mut self, key: u64, fits: bool) -> bool {
        if self.offered_in_window == WINDOW_OFFERS {
            self.offered_in_window = 0;
            self.window.entries = self.held.len() as u64;
            self.admission.observe(&std::mem::take(&mut self.window));
            self.admission.tick(Tick::default(), &mut self.orders);
        }
        self.offered_in_window += 1;
        self.offered += 1;
        let victim = self.order.front().filter(|_| !fits);
        let victim = victim.map(|&key| Victim { slot: Slot(0), hash: mix(key) });
        let verdict = self.admission.judge(&access(key), victim.as_ref());
        let verdict = if self.orders.hold && !fits { Verdict::Bypass } else { verdict };
        self.admission.settle(&access(key), verdict);
        self.bypassed += u64::from(!verdict.admits());
        verdict.admits()
    }

    fn removes(&mut self, key: u64) {
        if let Some((number, _)) = self.held.remove(&key) {
            self.left.push((key, number, Cause::Removed));
            self.forget(key);
            self.window.removed.blocks += 1;
        }
    }

    fn unpins(&mut self, key: u64) {
        if let Some((_, pinned @ true)) = self.held.get_mut(&key) {
            *pinned = false;
            self.order.push_back(key);
        }
    }
}

const ONE: Traffic = Traffic { blocks: 1, bytes: 1 };

const ADMISSIONS: [&str; 10] = [
    "until-full",
    "always",
    "never",
    "probability:p=0.5",
    "second-access",
    "duel",
    "obp:target=0.3:half-life=200",
    "obp:target=0.3:bytes=1",
    "small-bypass:memory=20",
    "small-bypass:memory=10 + duel + probability:p=0.9",
];

fn runs_as_its_model(admission: &str, promotes: bool, capacity: usize, listens: bool, ops: &[Op]) {
    let (tally, left) = (Tally::new(), Arc::new(Mutex::new(Vec::new())));
    let builder =
        Cache::<u64, Value>::builder().capacity(capacity).shards(1).hasher(Plain::default());
    let policy = if promotes { "lru" } else { "fifo" };
    let mut builder = builder.policy_named(policy).unwrap().admission_named(admission).unwrap();
    if listens {
        let log = Arc::clone(&left);
        builder = builder.listener(move |key, value: &Value, cause| {
            log.lock().unwrap().push((*key, value.of(*key), cause));
        });
    }
    let cache: Cache<u64, Value, AnyPolicy, Plain> = builder.build();
    let mut model = Model::new(admission, promotes, capacity);
    for op in ops {
        match *op {
            Op::Get(key) => {
                assert_eq!(
                    cache.get(&key).map(|value| value.of(key)),
                    model.looks_up(key),
                    "{op:?}"
                );
            }
            Op::Insert { key, pinned } => {
                let value = tally.value(key);
                model.inserts(key, value.number(), pinned);
                let options = InsertOptions::new();
                cache.insert_with(key, value, if pinned { options.pinned() } else { options });
            }
            Op::Load(key) => {
                let value = tally.value(key);
                let number = value.number();
                let expected = model.looks_up(key).unwrap_or_else(|| {
                    model.inserts(key, number, false);
                    number
                });
                let found = cache.get_or_insert_with(&key, || Ok::<_, ()>(value)).unwrap();
                assert_eq!(
                    found.of(key),
                    expected,
                    "{op:?}: what was loaded is handed out in any case"
                );
            }
            Op::Remove(key) => {
                model.removes(key);
                cache.remove(&key);
            }
            Op::Unpin(key) => {
                model.unpins(key);
                cache.unpin(&key);
            }
        }
        let held: BTreeMap<u64, u64> =
            cache.iter().map(|item| (*item.key(), item.value().number())).collect();
        let expected: BTreeMap<u64, u64> =
            model.held.iter().map(|(&key, &(number, _))| (key, number)).collect();
        assert_eq!(held, expected, "after {op:?}");
        let told = std::mem::take(&mut *left.lock().unwrap());
        let mut expected = std::mem::take(&mut model.left);
        expected.retain(|_| listens);
        let sorted = |mut left: Vec<(u64, u64, Cause)>| {
            left.sort_by_key(|&(key, number, _)| (key, number));
            left
        };
        assert_eq!(sorted(told), sorted(expected), "{op:?}");
        let stats = cache.stats();
        let counted = stats.admission.expect("there is one");
        assert_eq!((counted.offered, counted.bypassed), (model.offered, model.bypassed), "{op:?}");
        assert_eq!(counted.admitted, model.offered - model.bypassed);
        assert_eq!(tally.alive(), stats.entries + stats.waiting, "what stays out is dropped");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_cache_with_an_admission_does_as_its_model(
        admission in prop::sample::select(&ADMISSIONS[..]),
        promotes in any::<bool>(),
        capacity in 1usize..30,
        listens in any::<bool>(),
        ops in ops(),
    ) {
        runs_as_its_model(admission, promotes, capacity, listens, &ops);
    }
}

/// Counts what it is asked, and does as it is told.
#[derive(Debug, Clone, Default)]
struct Watched {
    asked: Arc<AtomicU64>,
    evicted: Arc<AtomicU64>,
    holds: bool,
}

impl RegisteredAdmission for Watched {
    const INFO: PolicyInfo = PolicyInfo::new("watched", "counts", "-");

    fn with(_: &Parameters) -> Self {
        Self::default()
    }
}

impl Admission for Watched {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        self.asked.fetch_add(1, SeqCst);
        Verdict::Admit
    }

    fn evicted(&mut self, _: &Access) {
        self.evicted.fetch_add(1, SeqCst);
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold = self.holds;
    }
}

#[test]
fn an_offer_is_asked_about_once_whichever_shard_makes_room() {
    let watched = Watched::default();
    let heavy = |key: &u64, _: &()| 1 + (key % 7) as u32;
    let cache = Cache::builder()
        .weight_capacity(40)
        .weigher(heavy)
        .shards(8)
        .admission(watched.clone())
        .build();
    let mut random = 1u64;
    for offers in 1..=3000 {
        random = mix(random);
        cache.insert(random, ()); // a new key each time
        assert_eq!(watched.asked.load(SeqCst), offers);
        assert!(cache.stats().weight <= 40);
    }
    let stats = cache.stats();
    assert_eq!(stats.admission.unwrap().offered, 3000);
    assert_eq!(
        watched.evicted.load(SeqCst),
        stats.evictions,
        "each eviction is told, in whichever shard"
    );
    assert!(stats.evictions > 1000);
}

#[test]
fn what_is_replaced_or_pinned_or_can_never_fit_is_no_offer_and_what_has_expired_is_none_any_more() {
    let clock = Clock::manual();
    let cache = Cache::builder()
        .weight_capacity(10)
        .weigher(|_: &u64, weight: &u32| *weight)
        .shards(1)
        .clock(clock.clone())
        .time_to_live(Duration::from_secs(1))
        .admission(Never)
        .build();
    let offered = || cache.stats().admission.unwrap().offered;
    cache.insert_with(1, 1, InsertOptions::new().pinned());
    assert_eq!((offered(), cache.get_cloned(&1)), (0, Some(1)), "pinned");
    cache.insert(1, 2);
    cache.insert(1, 3); // of another weight, and with the time to live: the long way
    assert_eq!((offered(), cache.get_cloned(&1)), (0, Some(3)), "replaced");
    cache.insert(2, 11);
    assert_eq!((offered(), cache.stats().rejections), (0, 1), "too heavy");
    clock.advance(Duration::from_secs(2));
    cache.insert(1, 4);
    assert_eq!((offered(), cache.len()), (1, 0), "its predecessor had expired");
    assert_eq!(cache.stats().expirations, 1);
}

#[test]
fn a_replacement_for_which_room_is_made_elsewhere_is_no_offer() {
    let watched = Watched::default();
    let cache = Cache::builder()
        .weight_capacity(64)
        .weigher(|_: &u64, weight: &u32| *weight)
        .shards(4)
        .admission(watched.clone())
        .build();
    (0..64).for_each(|key| cache.insert(key, 1));
    for weight in [20, 30, 50, 60] {
        let held: Vec<u64> = cache.iter().map(|item| *item.key()).collect();
        let before = watched.asked.load(SeqCst);
        cache.insert(held[0], weight);
        assert_eq!(watched.asked.load(SeqCst), before, "a replacement of weight {weight}");
        assert_eq!(cache.get_cloned(&held[0]), Some(weight));
        assert!(cache.stats().weight <= 64);
    }
}

#[test]
fn while_an_admission_holds_nobody_leaves() {
    let watched = Watched { holds: true, ..Watched::default() };
    let cache =
        Cache::builder().capacity(10).shards(1).policy(Fifo::default()).admission(watched).build();
    (0..30).for_each(|key| cache.insert(key, key));
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.evictions), (10, 0));
    assert_eq!(stats.admission.unwrap().bypassed, 20);
    assert!((0..10).all(|key| cache.contains_key(&key)));
    cache.remove(&3);
    cache.insert(40, 40);
    assert!(cache.contains_key(&40), "there was room");
}

/// A value whose end uses the cache it was to be in.
struct Nosy(Place, Arc<AtomicU64>);

type Place = Arc<Mutex<Option<Cache<u64, Nosy>>>>;

impl Drop for Nosy {
    fn drop(&mut self) {
        let cache = self.0.lock().unwrap().clone();
        if let Some(cache) = cache {
            assert!(cache.get(&1).is_none());
            assert_eq!(cache.len(), 0);
        }
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_stays_out_is_dropped_at_once_and_outside_of_locks() {
    let (place, dropped) = (Place::default(), Arc::new(AtomicU64::new(0)));
    let cache = Cache::builder().capacity(10).shards(1).admission(Never).build();
    *place.lock().unwrap() = Some(cache.clone());
    for key in 0..5 {
        cache.insert(key, Nosy(Arc::clone(&place), Arc::clone(&dropped)));
        assert_eq!(dropped.load(SeqCst), key + 1);
    }
    assert_eq!(cache.stats().waiting, 0);
}

#[test]
fn what_is_loaded_and_stays_out_is_handed_to_all_who_waited() {
    let cache = Cache::builder().capacity(10).admission(Never).build();
    let (loads, together) = (AtomicU64::new(0), Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                together.wait();
                let value = cache.get_or_insert_with(&7, || {
                    // for the others to find it under way
                    std::thread::sleep(Duration::from_millis(50));
                    Ok::<_, ()>(loads.fetch_add(1, SeqCst).to_string())
                });
                assert!(value.unwrap().parse::<u64>().unwrap() < 4);
            });
        }
    });
    assert!(cache.is_empty());
    let stats = cache.stats();
    assert_eq!(stats.admission.unwrap().bypassed, loads.load(SeqCst));
    let load = pin!(cache.get_or_insert_async(&8, async { Ok::<_, ()>("eight".to_owned()) }));
    let Poll::Ready(value) = load.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it is ready")
    };
    assert_eq!(*value.unwrap(), "eight");
    assert!(cache.is_empty());
}

#[test]
fn admissions_that_a_cache_cannot_serve_are_refused() {
    let refusal = |text: &str| {
        let builder = Cache::<u64, u64>::builder().capacity(10).admission_named(text).unwrap();
        builder.try_build().map(drop).unwrap_err()
    };
    for (text, why) in [
        ("fussy", "admission fussy asks for entries to be fetched"),
        ("second-access+sequential:threshold=8", "depends on the positions of blocks"),
    ] {
        let error = refusal(text);
        assert!(matches!(&error, BuildError::Admission { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
    let unknown =
        Cache::<u64, u64>::builder().admission_named("magic").err().expect("there is none");
    assert!(unknown.to_string().contains("second-access"), "it says which there are: {unknown}");
}

#[test]
fn a_cache_without_an_admission_counts_no_offers() {
    let cache = Cache::new(10);
    cache.insert(1, 1);
    assert_eq!(cache.stats().admission, None);
    let named = Cache::<u64, u64>::builder()
        .capacity(10)
        .admission_named("obp:target=0.2 + duel")
        .unwrap()
        .build();
    assert_eq!(named.stats().admission.unwrap().name, "obp:target=0.2 + duel");
    let typed = Cache::<u64, u64>::builder().capacity(10).admission(Duel::default()).build();
    assert_eq!(typed.stats().admission.unwrap().name, "duel");
}

#[test]
fn the_parts_of_a_cache_together_write_as_much_as_obp_allows() {
    // Each shard sees its own insertions and its part of all lookups.
    let (keys, lookups) = (20_000u64, 400_000);
    for shards in [1, 8] {
        let cache = Cache::builder()
            .capacity(2000)
            .shards(shards)
            .hasher(Plain::default())
            .admission_named("obp:target=0.1")
            .unwrap()
            .build();
        let mut random = 1u64;
        for _ in 0..lookups {
            random = mix(random);
            // Small numbers are asked for more often.
            let share = (random >> 11) as f64 / (1u64 << 53) as f64;
            let key = ((keys as f64).powf(share) as u64).min(keys);
            if cache.get(&key).is_none() {
                cache.insert(key, key);
            }
        }
        let stats = cache.stats();
        let written = (stats.insertions + stats.evictions) as f64 / lookups as f64;
        assert!((0.06..=0.105).contains(&written), "{shards} shards: {written}");
    }
}

#[test]
fn threads_keep_the_limits_and_find_their_own_values() {
    const THREADS: u64 = 4;
    let operations = if cfg!(miri) { 300 } else { 60_000 };
    for (name, shards) in [("second-access", 4), ("duel", 1), ("duel", 4), ("obp:target=0.2", 4)] {
        let tally = Tally::new();
        let cache = Cache::<u64, Value>::builder()
            .capacity(200)
            .shards(shards)
            .policy(Lru::default())
            .admission_named(name)
            .unwrap()
            .build();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (cache, tally) = (&cache, &tally);
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..operations {
                        random = mix(random.wrapping_add(1));
                        // A few keys are asked for by all.
                        let key =
                            if random % 3 == 0 { random >> 32 & 63 } else { random >> 32 & 1023 };
                        match random >> 8 & 15 {
                            0 => drop(cache.remove(&key)),
                            1 => {
                                let load = || Ok::<_, ()>(tally.value(key));
                                cache.get_or_insert_with(&key, load).unwrap().of(key);
                            }
                            _ => match cache.get(&key) {
                                Some(value) => assert!(value.of(key) < tally.made()),
                                None => cache.insert(key, tally.value(key)),
                            },
                        }
                        // Shards are looked at one after the other.
                        if shards == 1 && random >> 12 & 255 == 0 {
                            assert!(cache.len() <= 200);
                        }
                    }
                });
            }
        });
        let stats = cache.stats();
        let counted = stats.admission.expect("there is one");
        assert_eq!(counted.offered, counted.admitted + counted.bypassed, "{name}");
        assert!(counted.bypassed > 0 && counted.admitted > 0, "{name}: {counted:?}");
        assert!(counted.admitted <= stats.insertions, "{name}");
        cache.reclaim();
        let stats = cache.stats();
        assert!(stats.entries <= 200);
        assert_eq!(tally.alive(), stats.entries + stats.waiting, "{name}");
        drop(cache);
        assert_eq!(tally.alive(), 0);
    }
}

#[test]
fn a_duel_keeps_popular_entries_from_a_scan() {
    let run = |duel: bool| {
        let builder = Cache::builder()
            .capacity(500)
            .shards(1)
            .hasher(Plain::default())
            .policy(Lru::default());
        let cache = if duel { builder.admission(Duel::default()).build() } else { builder.build() };
        let (mut scanned, mut hits) = (1 << 32, 0);
        for round in 0..200u64 {
            for at in 0..400u64 {
                let key = mix(round * 400 + at) % 500;
                hits += u64::from(cache.get(&key).is_some());
                if !cache.contains_key(&key) {
                    cache.insert(key, ());
                }
            }
            for _ in 0..300 {
                scanned += 1;
                cache.insert(scanned, ());
            }
        }
        hits
    };
    let (plain, duel) = (run(false), run(true));
    assert!(duel as f64 > 1.2 * plain as f64, "{duel} hits with a duel, {plain} without");
}

#[test]
fn each_shard_has_an_admission_of_its_own() {
    let cache = Cache::builder().capacity(4000).shards(8).hasher(Plain::default());
    let cache = cache.admission(SecondAccess::default()).build();
    let mut times: HashMap<u64, u64> = HashMap::new();
    for key in (0..1000u64).chain(0..1000).chain(500..1500) {
        *times.entry(key).or_default() += 1;
        cache.insert(key, ());
    }
    for (key, times) in times {
        assert_eq!(cache.contains_key(&key), times > 1, "{key} was offered {times} times");
    }
}
