//! Complaints of users of other caches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::Tally;
use floe_memory::policy::{
    Access, Counters, Cursor, Eviction, Lru, Policy, PolicyInfo, Replacement, Slot,
};
use floe_memory::{Cache, Cause, Clock, InsertOptions};

const MANY: u64 = if cfg!(miri) { 300 } else { 20_000 };

#[test]
fn memory_is_bounded_while_a_guard_is_held_and_values_are_written() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(1600).shards(4).build();
    cache.insert(0, tally.value(0));
    let guard = cache.get(&0).expect("just inserted");
    let travels = cache.hold(&0).expect("just inserted");
    // In entries: what is in, what may wait to be freed, and what the guards keep.
    let most = 1600 + 2 * 4 * 16 + 1 + 2 * 16;
    let mut memory = 0;
    for key in 0..5 * MANY {
        cache.insert(key % (3 * MANY), tally.value(key % (3 * MANY)));
        assert!(tally.alive() <= most, "{} values are alive", tally.alive());
        if key == 2 * MANY {
            memory = cache.stats().memory_bytes;
        }
    }
    assert_eq!((guard.of(0), travels.of(0)), (0, 0));
    // Lists of what is free may still double; entries and tables may not.
    let now = cache.stats().memory_bytes;
    assert!(now < memory + memory / 10, "memory grows from {memory} to {now}");
}

/// CLOCK that notes how many entries an eviction may have to go past.
#[derive(Clone, Default)]
struct Watched {
    order: floe_memory::policy::Clock,
    longest: Arc<AtomicUsize>,
}

impl Replacement for Watched {
    fn info(&self) -> &'static PolicyInfo {
        &<floe_memory::policy::Clock as Policy>::INFO
    }
}

impl Eviction for Watched {
    type Marks = Counters;

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.longest.fetch_max(self.order.len(), SeqCst);
        self.order.evict(incoming)
    }

    fn marks(&self) -> &Counters {
        self.order.marks()
    }

    fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
    }

    fn set_capacity(&mut self, weight: u64) {
        self.order.set_capacity(weight);
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn promote(&mut self, slot: Slot) {
        self.order.promote(slot);
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.order.insert(slot, access);
    }

    fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.order.transfer(from, to);
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        self.order.reweigh(slot, weight);
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

#[test]
fn pinned_entries_are_out_of_the_way_of_evictions() {
    let (policy, tally) = (Watched::default(), Tally::new());
    let longest = Arc::clone(&policy.longest);
    let cache = Cache::builder().capacity(MANY as usize + 3).shards(1).policy(policy).build();
    for key in 0..MANY {
        match key % 2 {
            0 => cache.insert_with(key, tally.value(key), InsertOptions::new().pinned()),
            _ => {
                cache.insert(key, tally.value(key));
                assert!(cache.pin(&key));
            }
        }
        assert!(cache.get(&key).is_some());
    }
    (MANY..3 * MANY).for_each(|key| cache.insert(key, tally.value(key)));
    let stats = cache.stats();
    assert_eq!((stats.pinned, stats.evictions, stats.rejections), (MANY, 2 * MANY - 3, 0));
    assert_eq!(longest.load(SeqCst), 3, "an eviction has those to choose from that are not pinned");
}

#[test]
fn what_was_replaced_does_not_take_its_successor_along_when_it_leaves() {
    let causes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&causes);
    let cache = Cache::builder()
        .capacity(3)
        .shards(1)
        .policy(Lru::default())
        .listener(move |key: &u64, value: &u64, cause| {
            log.lock().unwrap().push((*key, *value, cause))
        })
        .build();
    (1..=3).for_each(|key| cache.insert(key, key * 10));
    cache.insert(1, 11); // a use, as well
    cache.insert(4, 40);
    cache.insert(5, 50);
    assert_eq!(cache.get_cloned(&1), Some(11));
    let told = causes.lock().unwrap().clone();
    assert_eq!(told, [(1, 10, Cause::Replaced), (2, 20, Cause::Evicted), (3, 30, Cause::Evicted)]);
}

#[test]
fn a_slow_reader_holds_nobody_up_and_keeps_one_value() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(100).shards(1).build();
    cache.insert(0, tally.value(0));
    let (begun, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        let slow = scope.spawn(move || {
            cache.read(&0, |value| {
                begun.send(()).expect("the test waits");
                goes.recv().expect("the test goes on");
                value.of(0)
            })
        });
        begins.recv().expect("it reads");
        // All of this ends while the reader is where it was.
        for key in 0..MANY {
            cache.insert(key % 500, tally.value(key % 500));
        }
        cache.resize(50);
        cache.clear();
        cache.reclaim();
        assert_eq!((cache.stats().waiting, tally.alive()), (1, 1), "the one that is read");
        go.send(()).expect("it reads on");
        assert_eq!(slow.join().expect("no panic"), Some(0));
    });
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
}

#[test]
fn a_cache_is_resized_while_it_is_used() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(1000).shards(4).build();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (cache, tally, stop) = (&cache, &tally, &stop);
            scope.spawn(move || {
                for key in (thread..).step_by(2).take_while(|_| !stop.load(SeqCst)) {
                    cache.insert(key % 5000, tally.value(key % 5000));
                    _ = cache.read(&(key % 300), |value| value.of(key % 300));
                }
            });
        }
        for round in 0..if cfg!(miri) { 2 } else { 200 } {
            let entries = [10, 3000, 1, 500][round % 4];
            cache.resize(entries);
            assert_eq!(cache.stats().capacity, Some(entries as u64));
        }
        stop.store(true, SeqCst);
    });
    assert!(cache.len() <= 500, "{}", cache.len());
    cache.resize(2000);
    (0..100 * 2000).for_each(|key| cache.insert(key, tally.value(key)));
    assert_eq!(cache.len(), 2000, "all of a larger limit can be used");
}

#[test]
fn both_times_hold_for_an_entry_that_has_both() {
    let (clock, second) = (Clock::manual(), Duration::from_secs(1));
    let builder = Cache::builder().capacity(10).clock(clock.clone());
    let cache = builder.time_to_live(10 * second).time_to_idle(3 * second).build();
    cache.insert("used", ());
    cache.insert("unused", ());
    for at in 1..=9 {
        clock.advance(second);
        assert!(cache.get("used").is_some());
        assert!(at < 4 || !cache.contains_key("unused"), "nobody used it");
    }
    clock.advance(second + Duration::from_millis(16));
    assert!(cache.get("used").is_none(), "its time to live is over, used or not");
    cache.reclaim();
    assert!(cache.is_empty());
}

/// Returns whether the thread that keeps time is there.
#[cfg(all(target_os = "linux", not(miri)))]
fn is_time_kept() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs is there");
    let name = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).unwrap_or_default()
    };
    tasks.flatten().any(|task| name(task).trim() == "floe-keeper")
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn no_thread_runs_but_while_a_cache_has_entries_that_expire() {
    let cache = Cache::builder().capacity(10).time_to_live(Duration::from_secs(60)).build();
    cache.insert(1, 1);
    floe_testkit::wait_until("no thread keeps the time", is_time_kept);
    drop(cache);
    floe_testkit::wait_until("a thread keeps the time of no cache", || !is_time_kept());
    let cache = Cache::new(10);
    cache.insert(1, 1);
    assert!(!is_time_kept());
}

/// quick_cache counts weights in 64 bits, moka in 32.
#[test]
fn an_entry_may_weigh_more_than_four_gibibytes() {
    const GIB: u64 = 1 << 30;
    for (policy, shards) in [("qd-clock", 1), ("qd-clock", 8), ("lru", 1), ("gdsf", 1), ("arc", 8)]
    {
        let cache = Cache::<u64, u64>::builder()
            .weight_capacity(16 * GIB)
            .weigher(|_, weight: &u64| *weight)
            .shards(shards)
            .policy_named(policy)
            .unwrap()
            .build();
        let sum = || cache.iter().map(|item| *item.value()).sum::<u64>();
        let holds =
            |weight| assert_eq!((cache.stats().weight, sum()), (weight, weight), "{policy}");
        for (key, weight) in [5 * GIB, 4 * GIB, 4 * GIB - 1, 3 * GIB + 1].into_iter().enumerate() {
            cache.insert(key as u64, weight);
        }
        holds(16 * GIB);
        cache.insert(0, 5 * GIB - 7);
        holds(16 * GIB - 7);
        cache.insert(4, 7);
        holds(16 * GIB);
        cache.insert(5, 17 * GIB);
        assert!(cache.get(&5).is_none(), "{policy}: it weighs more than the cache may hold");
        cache.insert(6, 12 * GIB);
        let weight = cache.stats().weight;
        assert!(cache.get(&6).is_some() && weight <= 16 * GIB, "{policy}: {weight}");
        holds(weight);
        for step in 0..2000u64 {
            let weight = (step * step * 7919) % (9 * GIB);
            cache.insert(step % 29, if step % 3 == 0 { weight } else { weight % 1000 });
            if step % 7 == 0 {
                drop(cache.remove(&(step % 23)));
            }
            let weight = cache.stats().weight;
            let ones = cache.iter().filter(|item| *item.value() == 0).count() as u64;
            assert_eq!(weight, sum() + ones, "{policy} at {step}");
            assert!(weight <= 16 * GIB);
        }
        cache.resize_weight(6 * GIB);
        let weight = cache.stats().weight;
        assert!(weight <= 6 * GIB, "{policy}: {weight}");
        cache.clear();
        holds(0);
        cache.insert(1, u64::MAX);
        holds(0);
    }
}

#[test]
fn few_entries_of_enormous_weight_wait_to_be_dropped() {
    let cache = Cache::<u64, Box<u64>>::builder()
        .weight_capacity(1 << 50)
        .weigher(|_, _| 1u64 << 40)
        .shards(1)
        .build();
    for key in 0..5000 {
        cache.insert(key, Box::new(key));
        let waiting = cache.stats().waiting;
        assert!(waiting <= 1024 / 16, "{waiting} of 1024 wait");
    }
    let guards: Vec<_> = (0..5000).filter_map(|key| cache.remove(&key)).collect();
    assert_eq!(guards.len(), 1024);
    for guard in guards {
        assert!(guard.try_into_inner(&cache).is_ok());
    }
    assert_eq!(cache.stats().waiting, 0);
}
