//! Policies of the user's that are wrong, from safe code: they cost a panic or an entry, never the
//! safety of memory. Run under the address sanitizer (`make sanitize`), this finds what is used
//! after its end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::common::{Tally, Value};
use floe_memory::policy::{
    Access, Counters, Cursor, Eviction, HitKind, Marks, Policy, PolicyInfo, Replacement, Slot,
    Touch,
};
use floe_memory::{Cache, InsertOptions};

/// Holds what a policy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// `evict` names a slot that is always out of range.
    OutOfRange,
    /// `evict` names the slot before the right one.
    Neighbour,
    /// `evict` names the same slot again and again.
    SameAgain,
    /// `evict` names any slot.
    Any,
    /// `evict` names a slot and leaves it in the order.
    Keeps,
    /// `victim` names any slot.
    AnyVictim,
    /// `rank` names each slot twice.
    RanksTwice,
    /// `rank` names any slots.
    RanksAny,
    /// `rank` begins anew each time.
    RanksFromTheStart,
    NoFreeze,
    NoThaw,
    NoRemove,
    NoInsert,
    NoTransfer,
    NoReserve,
    /// Every seventh call of any method panics.
    Panics,
}

const FAULTS: [Fault; 16] = [
    Fault::OutOfRange,
    Fault::Neighbour,
    Fault::SameAgain,
    Fault::Any,
    Fault::Keeps,
    Fault::AnyVictim,
    Fault::RanksTwice,
    Fault::RanksAny,
    Fault::RanksFromTheStart,
    Fault::NoFreeze,
    Fault::NoThaw,
    Fault::NoRemove,
    Fault::NoInsert,
    Fault::NoTransfer,
    Fault::NoReserve,
    Fault::Panics,
];

/// CLOCK, which does one thing wrong while it is told to.
#[derive(Debug, Clone)]
struct Wrong {
    order: floe_memory::policy::Clock,
    fault: Fault,
    on: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Wrong {
    fn does(&self, fault: Fault) -> bool {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        let on = self.on.load(Relaxed);
        assert!(!on || self.fault != Fault::Panics || !call.is_multiple_of(7), "the policy panics");
        on && self.fault == fault
    }

    /// A number that is like none before, as far as the cache could tell.
    fn any(&self) -> u32 {
        self.calls.load(Relaxed).wrapping_mul(0x9e37_79b9) >> 24
    }
}

impl Replacement for Wrong {
    fn info(&self) -> &'static PolicyInfo {
        &<floe_memory::policy::Clock as Policy>::INFO
    }
}

impl Eviction for Wrong {
    type Marks = Counters;

    fn marks(&self) -> &Counters {
        self.does(Fault::Panics); // also in the middle of growth
        self.order.marks()
    }

    fn reserve(&mut self, slots: usize) {
        // Too few at first is a panic of the order's own.
        let slots = if self.does(Fault::NoReserve) { slots.min(50) } else { slots };
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
        if !self.does(Fault::NoInsert) {
            self.order.remove(slot);
            self.order.insert(slot, access);
        }
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if self.does(Fault::OutOfRange) {
            return Some(Slot(u32::MAX));
        } else if self.does(Fault::SameAgain) {
            return Some(Slot(3));
        } else if self.does(Fault::Any) {
            return Some(Slot(self.any()));
        } else if self.does(Fault::Keeps) {
            return self.order.victim(incoming);
        }
        let victim = self.order.evict(incoming)?;
        Some(if self.does(Fault::Neighbour) { Slot(victim.0.wrapping_sub(1)) } else { victim })
    }

    fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if self.does(Fault::AnyVictim) {
            Some(Slot(self.any()))
        } else {
            self.order.victim(incoming)
        }
    }

    fn remove(&mut self, slot: Slot) {
        if !self.does(Fault::NoRemove) {
            self.order.remove(slot);
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        if !self.does(Fault::NoTransfer) {
            self.order.transfer(from, to);
        }
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        self.order.reweigh(slot, weight);
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        if self.does(Fault::RanksAny) {
            out.extend((0..1000).map(Slot).chain([Slot(u32::MAX)]));
        }
        let next = self.order.rank(from, out);
        if self.does(Fault::RanksTwice) {
            out.extend_from_within(..);
        }
        if self.does(Fault::RanksFromTheStart) { Cursor::START } else { next }
    }

    fn freeze(&mut self, slots: &[Slot]) {
        if !self.does(Fault::NoFreeze) {
            self.order.freeze(slots);
        }
    }

    fn thaw(&mut self) {
        if !self.does(Fault::NoThaw) {
            self.order.thaw();
        }
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
    }
}

/// Uses all of a cache. Every step may panic.
fn use_all(cache: &Cache<u64, Value, impl Replacement>, tally: &Arc<Tally>) -> usize {
    let mut panics = 0;
    let mut step =
        |run: &mut dyn FnMut()| panics += usize::from(catch_unwind(AssertUnwindSafe(run)).is_err());
    for round in 0..6u64 {
        for key in round * 40..round * 40 + 150 {
            step(&mut || cache.insert(key, tally.value(key)));
            step(&mut || _ = cache.get(&(key / 2)).map(|value| value.of(key / 2)));
            match key % 16 {
                0 => step(&mut || drop(cache.remove(&(key - key % 32)))),
                1 => step(&mut || _ = cache.pin(&(key - 1))),
                2 => step(&mut || _ = cache.unpin(&(key - 2))),
                3 => step(&mut || {
                    cache.insert_with(key / 2, tally.value(key / 2), InsertOptions::new().pinned());
                }),
                4 => step(&mut || {
                    let load = || Ok::<_, ()>(tally.value(key + 500));
                    cache.get_or_insert_with(&(key + 500), load).unwrap().of(key + 500);
                }),
                5 => {
                    step(&mut || _ = cache.get_many(&[key, 1, 2, 3], |_, value| _ = value.number()))
                }
                _ => {}
            }
        }
        step(&mut || _ = cache.freeze(0.3 + 0.1 * round as f64));
        for key in 0..200 {
            step(&mut || cache.insert(key * 7 % 400, tally.value(key * 7 % 400)));
            step(&mut || _ = cache.get(&key).map(|value| value.of(key)));
        }
        step(&mut || cache.iter().for_each(|item| _ = item.value().of(*item.key())));
        if round % 2 == 0 {
            step(&mut || cache.thaw());
        }
        step(&mut || cache.resize(30 + 20 * round as usize));
        step(&mut || cache.reclaim());
    }
    panics
}

/// Uses caches with a policy that does something wrong, and then lets it do right.
fn with_fault(fault: Fault) -> usize {
    let mut panics = 0;
    for (shards, admits, told) in [(1, false, false), (4, false, true), (1, true, true)] {
        let tally = Tally::new();
        let on = Arc::new(AtomicBool::new(false));
        let order = floe_memory::policy::Clock::default();
        let policy = Wrong { order, fault, on: Arc::clone(&on), calls: Arc::default() };
        let mut builder = Cache::<u64, Value>::builder().capacity(80).shards(shards);
        if told {
            builder = builder.listener(|key, value: &Value, _| _ = value.of(*key));
        }
        if admits {
            builder = builder.admission_named("duel").expect("it is registered");
        }
        let cache = builder.policy(policy).build();
        (0..60).for_each(|key| cache.insert(key, tally.value(key)));
        on.store(true, Relaxed);
        panics += use_all(&cache, &tally);
        on.store(false, Relaxed);
        // What the order has lost by then stays lost; nothing else is.
        _ = catch_unwind(AssertUnwindSafe(|| cache.clear()));
        drop(cache);
        assert_eq!(tally.alive(), 0, "{fault:?}");
    }
    panics
}

#[test]
fn a_wrong_policy_costs_a_panic_and_never_the_safety_of_memory() {
    std::panic::set_hook(Box::new(|_| {})); // there are thousands
    let panics: Vec<_> = FAULTS.into_iter().map(|fault| (fault, with_fault(fault))).collect();
    _ = std::panic::take_hook();
    let expected =
        [Fault::OutOfRange, Fault::Neighbour, Fault::SameAgain, Fault::Any, Fault::Panics];
    for (fault, panics) in panics {
        assert!(!expected.contains(&fault) || panics > 0, "{fault:?} went unnoticed");
    }
}

#[test]
fn a_shard_grows_by_a_policy_that_panics_and_loses_no_entry() {
    std::panic::set_hook(Box::new(|_| {}));
    let (tally, on) = (Tally::new(), Arc::new(AtomicBool::new(true)));
    let (order, calls) = (floe_memory::policy::Clock::default(), Arc::default());
    let policy = Wrong { order, fault: Fault::Panics, on: Arc::clone(&on), calls };
    let cache = Cache::<u64, Value>::builder().capacity(20_000).shards(1).policy(policy).build();
    for key in 0..10_000 {
        _ = catch_unwind(AssertUnwindSafe(|| cache.insert(key, tally.value(key))));
    }
    on.store(false, Relaxed);
    _ = std::panic::take_hook();
    let found = cache.iter().inspect(|item| _ = item.value().of(*item.key())).count();
    assert_eq!(found, cache.len());
    assert!(found > 5000, "{found}");
    assert_eq!((0..10_000).filter(|key| cache.get(key).is_some()).count(), found);
    drop(cache);
    assert_eq!(tally.alive(), 0);
}

#[test]
fn a_victim_without_an_entry_is_named_in_the_panic() {
    let order = floe_memory::policy::Clock::default();
    let on = Arc::new(AtomicBool::new(true));
    let policy = Wrong { order, fault: Fault::OutOfRange, on, calls: Arc::default() };
    let cache = Cache::<u64, u64>::builder().capacity(1).shards(1).policy(policy).build();
    cache.insert(1, 1);
    let panic = catch_unwind(AssertUnwindSafe(|| cache.insert(2, 2))).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a message");
    assert_eq!(
        message,
        "the policy evicted slot 4294967295, which holds no entry in reach of `Eviction::evict`"
    );
    assert_eq!((cache.len(), cache.get_cloned(&1)), (1, Some(1)), "nothing has changed");
}

thread_local! {
    static CACHE: RefCell<Option<Cache<u64, u64, Restless>>> = const { RefCell::new(None) };
}

/// FIFO whose marks use the cache that they are of.
#[derive(Debug, Clone, Default)]
struct Restless {
    order: floe_memory::policy::Fifo,
    marks: RestlessMarks,
}

#[derive(Debug, Clone, Default)]
struct RestlessMarks(Vec<u64>);

impl Marks for RestlessMarks {
    const KIND: HitKind = HitKind::FifoLike;

    fn touch(&self, _: Slot) -> Touch {
        if let Some(cache) = CACHE.take() {
            // Tables come and go, the one with these marks too.
            for more in 0..4000 {
                cache.insert(1_000_000 + more, 0);
            }
            assert!(cache.get(&1_000_000).is_some());
            cache.reclaim();
            assert!(cache.contains_key(&1_000_001));
            cache.reclaim();
            CACHE.set(Some(cache));
        }
        assert_eq!(self.0.iter().sum::<u64>(), 64 * 7, "the marks are freed");
        Touch::Noted
    }
}

impl Replacement for Restless {
    fn info(&self) -> &'static PolicyInfo {
        &<floe_memory::policy::Fifo as Policy>::INFO
    }
}

impl Eviction for Restless {
    type Marks = RestlessMarks;

    fn marks(&self) -> &RestlessMarks {
        &self.marks
    }

    fn reserve(&mut self, slots: usize) {
        self.marks = RestlessMarks(vec![7; 64]);
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

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.order.evict(incoming)
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
fn marks_that_use_the_cache_are_not_freed_while_they_are_touched() {
    let cache = Cache::builder().capacity(1 << 20).shards(1).policy(Restless::default()).build();
    (0..1000).for_each(|key| cache.insert(key, key));
    CACHE.set(Some(cache.clone()));
    assert_eq!(cache.get_cloned(&5), Some(5));
    assert_eq!(cache.get_many(&[6, 7], |_, _| ()), 2);
    CACHE.set(None);
}
