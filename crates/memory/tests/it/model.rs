//! Random operations on one thread, compared with maps that are too simple to be wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Tally, Value};
use floe_memory::policy::{AnyPolicy, registry};
use floe_memory::{Cache, Cause, Clock, Held, InsertOptions, Ref};
use proptest::prelude::*;

const KEYS: u64 = 24;
/// An entry is gone so long after its time at the latest.
const LATE_MS: u64 = 16;

#[derive(Debug, Clone)]
enum Op {
    Insert {
        key: u64,
        weight: u32,
    },
    InsertWith {
        key: u64,
        weight: u32,
        live_ms: Option<u64>,
        idle_ms: Option<u64>,
        pinned: bool,
    },
    Swap {
        key: u64,
        weight: u32,
    },
    Upsert {
        key: u64,
        weight: u32,
    },
    ReplaceIf {
        key: u64,
        weight: u32,
        agrees: bool,
    },
    RemoveIf {
        key: u64,
        agrees: bool,
    },
    /// Keeps the even keys, or the odd ones.
    Retain(u64),
    Peek(u64),
    HoldGuard(usize),
    Get(u64),
    GetCloned(u64),
    GetMany(Vec<u64>),
    Contains(u64),
    Keep(u64),
    Hold(u64),
    LetGo(usize),
    Remove(u64),
    RemoveAndKeep(u64),
    Load {
        key: u64,
        weight: u32,
        fails: bool,
    },
    Clear,
    Resize(usize),
    ResizeWeight(u64),
    Pin(u64),
    Unpin(u64),
    Advance(u64),
    Freeze(f64),
    Thaw,
    /// Hides what is frozen, or shows it again.
    Bypass(bool),
    Iterate,
    Reclaim,
}

#[derive(Debug, Clone)]
struct Shape {
    entries: Option<usize>,
    weight: Option<u64>,
    shards: usize,
    policy: &'static str,
    listener: bool,
    live_ms: Option<u64>,
    idle_ms: Option<u64>,
}

/// Holds what is known to be in, or to be gone, or not known because the policy decides.
#[derive(Debug, Clone)]
struct Expected {
    number: u64,
    weight: u32,
    pinned: bool,
    /// Surely so, and then out of reach of eviction.
    frozen: bool,
    last_ms: Option<u64>,
    idle_ms: Option<u64>,
    used_ms: u64,
}

impl Expected {
    /// When it is to expire, as far as is known.
    fn end_ms(&self) -> Option<u64> {
        self.last_ms.into_iter().chain(self.idle_ms.map(|idle| self.used_ms + idle)).min()
    }

    fn may_have_expired(&self, now_ms: u64) -> bool {
        self.end_ms().is_some_and(|end| now_ms >= end)
    }

    fn must_have_expired(&self, now_ms: u64) -> bool {
        self.end_ms().is_some_and(|end| now_ms >= end + LATE_MS)
    }
}

fn policies() -> Vec<&'static str> {
    registry::names().into_iter().filter(|name| !["sarc", "belady"].contains(name)).collect()
}

fn shapes() -> impl Strategy<Value = Shape> {
    let limits = prop_oneof![
        (0usize..20).prop_map(|entries| (Some(entries), None)),
        (0u64..60).prop_map(|weight| (None, Some(weight))),
        (0usize..20, 0u64..60).prop_map(|(entries, weight)| (Some(entries), Some(weight))),
    ];
    let times = (prop::option::weighted(0.2, 1u64..200), prop::option::weighted(0.2, 1u64..200));
    let policy = prop::sample::select(policies());
    (limits, prop::sample::select(vec![1usize, 1, 4]), policy, any::<bool>(), times).prop_map(
        |((entries, weight), shards, policy, listener, (live_ms, idle_ms))| Shape {
            entries,
            weight,
            shards,
            policy,
            listener,
            live_ms,
            idle_ms,
        },
    )
}

fn ops() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS;
    let weight = || prop_oneof![8 => 1u32..8, 1 => 1u32..80];
    let time = || prop::option::weighted(0.4, 1u64..100);
    prop_oneof![
        10 => (key(), weight()).prop_map(|(key, weight)| Op::Insert { key, weight }),
        5 => (key(), weight(), time(), time(), prop::bool::weighted(0.3)).prop_map(
            |(key, weight, live_ms, idle_ms, pinned)| {
                Op::InsertWith { key, weight, live_ms, idle_ms, pinned }
            }
        ),
        2 => (key(), weight()).prop_map(|(key, weight)| Op::Swap { key, weight }),
        2 => (key(), weight()).prop_map(|(key, weight)| Op::Upsert { key, weight }),
        2 => (key(), weight(), any::<bool>())
            .prop_map(|(key, weight, agrees)| Op::ReplaceIf { key, weight, agrees }),
        2 => (key(), any::<bool>()).prop_map(|(key, agrees)| Op::RemoveIf { key, agrees }),
        1 => (0..2u64).prop_map(Op::Retain),
        2 => key().prop_map(Op::Peek),
        1 => (0usize..8).prop_map(Op::HoldGuard),
        10 => key().prop_map(Op::Get),
        2 => key().prop_map(Op::GetCloned),
        1 => prop::collection::vec(key(), 0..40).prop_map(Op::GetMany),
        3 => key().prop_map(Op::Contains),
        3 => key().prop_map(Op::Keep),
        2 => key().prop_map(Op::Hold),
        3 => (0usize..8).prop_map(Op::LetGo),
        3 => key().prop_map(Op::Remove),
        1 => key().prop_map(Op::RemoveAndKeep),
        4 => (key(), weight(), prop::bool::weighted(0.3))
            .prop_map(|(key, weight, fails)| Op::Load { key, weight, fails }),
        1 => Just(Op::Clear),
        2 => (0usize..20).prop_map(Op::Resize),
        2 => (0u64..60).prop_map(Op::ResizeWeight),
        2 => key().prop_map(Op::Pin),
        3 => key().prop_map(Op::Unpin),
        4 => prop_oneof![0u64..20, 0u64..100].prop_map(Op::Advance),
        3 => prop_oneof![Just(1.0), 0.0..=1.0].prop_map(Op::Freeze),
        2 => Just(Op::Thaw),
        1 => any::<bool>().prop_map(Op::Bypass),
        1 => Just(Op::Iterate),
        1 => Just(Op::Reclaim),
    ]
}

type Departures = Arc<Mutex<Vec<(u64, u64, Cause)>>>;
type Cached = Cache<u64, (Value, u32), AnyPolicy>;

/// A guard, whatever kind it is of.
enum Guard<'a> {
    Here(Ref<'a, (Value, u32)>),
    Travels(Held<(Value, u32)>),
}

impl Guard<'_> {
    fn value(&self) -> &Value {
        match self {
            Self::Here(guard) => &guard.0,
            Self::Travels(guard) => &guard.0,
        }
    }
}

struct Run<'a> {
    cache: &'a Cached,
    shape: &'a Shape,
    clock: Clock,
    now_ms: u64,
    tally: Arc<Tally>,
    departures: Departures,
    /// With a listener, all that is in; without one, all that can be.
    model: HashMap<u64, Expected>,
    told: HashMap<Cause, u64>,
    guards: Vec<(Guard<'a>, u64, u64)>,
    entries_limit: Option<u64>,
    weight_limit: Option<u64>,
    /// True if anything may be frozen.
    frozen: bool,
}

impl<'a> Run<'a> {
    fn expected(
        &self,
        number: u64,
        weight: u32,
        options: (Option<u64>, Option<u64>, bool),
    ) -> Expected {
        let (live, idle, pinned) = options;
        let live = live.or(self.shape.live_ms);
        let idle_ms = idle.or(self.shape.idle_ms);
        let last_ms = live.map(|live| self.now_ms + live);
        let weight = if self.weighs() { weight } else { 1 };
        Expected { number, weight, pinned, frozen: false, last_ms, idle_ms, used_ms: self.now_ms }
    }

    fn weighs(&self) -> bool {
        self.shape.weight.is_some()
    }

    /// Returns what a lookup found must be what was inserted last; what it did not find must have
    /// had a reason to go.
    fn found(&mut self, key: u64, number: Option<u64>) {
        match (number, self.model.get_mut(&key)) {
            (Some(number), Some(expected)) => {
                assert_eq!(number, expected.number, "key {key} has a value that was replaced");
                assert!(!expected.must_have_expired(self.now_ms), "key {key} has expired");
                expected.used_ms = self.now_ms;
            }
            (Some(number), None) => {
                panic!("key {key} has left and is there again, as number {number}")
            }
            (None, Some(expected)) => {
                let expired = expected.may_have_expired(self.now_ms);
                // Without a listener nobody says who was evicted.
                let evicted = !self.shape.listener && !expected.pinned;
                assert!(expired || evicted, "key {key} is lost: {expected:?}");
                if expired {
                    expected.last_ms = Some(0); // and must not come back
                } else {
                    self.model.remove(&key);
                }
            }
            (None, None) => {}
        }
    }

    /// As a lookup that says nothing but whether the key is there, and is no use of it.
    fn is_there(&mut self, key: u64, is_there: bool) {
        if is_there {
            let expected =
                self.model.get(&key).unwrap_or_else(|| panic!("key {key} is there again"));
            assert!(!expected.must_have_expired(self.now_ms), "key {key} has expired");
        } else {
            self.found(key, None);
        }
    }

    fn inserts(
        &mut self,
        key: u64,
        weight: u32,
        options: (Option<u64>, Option<u64>, bool),
        insert: impl FnOnce(&Self, Value),
    ) {
        let before = self.totals();
        let previous = self.model.remove(&key);
        let value = self.tally.value(key);
        let coming = self.expected(value.number(), weight, options);
        let rejections = self.cache.stats().rejections;
        insert(self, value);
        if !self.shape.listener {
            if self.cache.stats().rejections == rejections {
                self.model.insert(key, coming);
            }
            return;
        }
        let mut rejected = false;
        let mut told_of_previous = false;
        let mut others: HashMap<_, _> = self.model.clone();
        for (at, number, cause) in self.take_departures() {
            match cause {
                Cause::Rejected => {
                    assert_eq!(
                        (at, number),
                        (key, coming.number),
                        "the newcomer alone is rejected"
                    );
                    rejected = true;
                }
                Cause::Replaced => {
                    let previous = previous.as_ref().expect("there was something to replace");
                    assert_eq!((at, number), (key, previous.number));
                    told_of_previous = true;
                }
                Cause::Expired if at == key => {
                    let previous = previous.as_ref().expect("there was something that expired");
                    assert!(previous.number == number && previous.may_have_expired(self.now_ms));
                    told_of_previous = true;
                }
                Cause::Evicted => {
                    let gone =
                        others.remove(&at).unwrap_or_else(|| panic!("{at} is not in, and evicted"));
                    let in_reach = !gone.pinned && !gone.frozen;
                    assert!(gone.number == number && in_reach, "{gone:?} evicted as {number}");
                    let full = |limit: Option<u64>, held: u64, need: u64| {
                        limit.is_some_and(|limit| held + need > limit)
                    };
                    let (mut held, mut weight) = before;
                    if let Some(previous) = &previous {
                        (held, weight) = (held - 1, weight - u64::from(previous.weight));
                    }
                    // A shard keeps to itself what an exchange of unequal entries leaves over.
                    let kept_elsewhere = self.shape.shards > 1 && self.weight_limit.is_some();
                    let needed = full(self.entries_limit, held, 1)
                        || full(self.weight_limit, weight, u64::from(coming.weight))
                        || kept_elsewhere;
                    assert!(needed, "evicted although there was room: {held} entries of {weight}");
                }
                other => panic!("{at} left an insertion of {key} as {other:?}"),
            }
        }
        assert_eq!(told_of_previous, previous.is_some(), "what was replaced is told of");
        self.model = others;
        let pinned = self.model.values().filter(|entry| entry.pinned);
        let (count, weight) =
            pinned.fold((0, 0), |(n, w), entry| (n + 1, w + u64::from(entry.weight)));
        let fits = self.entries_limit.is_none_or(|limit| count < limit)
            && self.weight_limit.is_none_or(|limit| weight + u64::from(coming.weight) <= limit);
        let may_fit = fits && !(self.frozen && rejected);
        assert_eq!(
            rejected, !may_fit,
            "rejected when it cannot be held beside what is pinned, and only then"
        );
        if !rejected {
            self.model.insert(key, coming);
        }
    }

    fn totals(&self) -> (u64, u64) {
        self.model.values().fold((0, 0), |(n, w), entry| (n + 1, w + u64::from(entry.weight)))
    }

    fn take_departures(&mut self) -> Vec<(u64, u64, Cause)> {
        let departures = std::mem::take(&mut *self.departures.lock().unwrap());
        for (_, _, cause) in &departures {
            *self.told.entry(*cause).or_default() += 1;
        }
        departures
    }

    /// Those who left by an operation, of which each had one of these causes.
    fn departed(&mut self, causes: &[Cause]) {
        for (key, number, cause) in self.take_departures() {
            assert!(causes.contains(&cause), "{key} left as {cause:?}");
            let gone = self.model.remove(&key).unwrap_or_else(|| panic!("{key} left twice"));
            assert_eq!(gone.number, number);
            match cause {
                Cause::Evicted => {
                    assert!(!gone.pinned && !gone.frozen, "{key} is pinned or frozen")
                }
                Cause::Expired => {
                    assert!(gone.may_have_expired(self.now_ms), "{key} has not expired")
                }
                _ => {}
            }
        }
    }

    fn keep(&mut self, key: u64, guard: Option<Guard<'a>>) {
        let number = guard.as_ref().map(|guard| guard.value().of(key));
        self.found(key, number);
        if let Some(guard) = guard {
            self.guards.push((guard, key, number.expect("there is one")));
        }
    }

    fn step(&mut self, op: &Op) {
        let cache = self.cache;
        match *op {
            Op::Insert { key, weight } => {
                self.inserts(key, weight, (None, None, false), |run, value| {
                    run.cache.insert(key, (value, weight));
                })
            }
            Op::InsertWith { key, weight, live_ms, idle_ms, pinned } => {
                let mut options = InsertOptions::new();
                if let Some(live) = live_ms {
                    options = options.time_to_live(Duration::from_millis(live));
                }
                if let Some(idle) = idle_ms {
                    options = options.time_to_idle(Duration::from_millis(idle));
                }
                if pinned {
                    options = options.pinned();
                }
                self.inserts(key, weight, (live_ms, idle_ms, pinned), |run, value| {
                    run.cache.insert_with(key, (value, weight), options);
                });
            }
            Op::Swap { key, weight } => {
                let known = self.model.get(&key).cloned();
                let mut before = None;
                self.inserts(key, weight, (None, None, false), |run, value| {
                    let guard = run.cache.swap(key, (value, weight));
                    before = guard.map(|before| before.0.of(key));
                });
                self.was_there(known, before);
            }
            Op::Upsert { key, weight } => {
                let known = self.model.get(&key).cloned();
                let mut before = None;
                self.inserts(key, weight, (None, None, false), |run, value| {
                    let (number, mut value) = (value.number(), Some(value));
                    let guard = run.cache.upsert_with(key, |there| {
                        before = there.map(|there| there.0.of(key));
                        (value.take().expect("it is asked for once"), weight)
                    });
                    assert_eq!(guard.0.of(key), number, "it hands out the new value");
                });
                self.was_there(known, before);
            }
            Op::ReplaceIf { key, weight, agrees } => {
                let known = self.model.get(&key).cloned();
                let there = cache.contains_key(&key);
                self.is_there(key, there);
                if there && agrees {
                    let mut before = None;
                    self.inserts(key, weight, (None, None, false), |run, value| {
                        let guard = run.cache.replace_if(key, (value, weight), |_| true);
                        before = Some(guard.expect("it is there").0.of(key));
                    });
                    self.was_there(known, before);
                } else {
                    let value = (self.tally.value(key), weight);
                    let number = value.0.number();
                    let back = cache.replace_if(key, value, |_| agrees).unwrap_err();
                    assert_eq!(back.0.number(), number, "the value comes back");
                }
            }
            Op::RemoveIf { key, agrees: false } => {
                let mut seen = None;
                let none = cache.remove_if(&key, |value| {
                    seen = Some(value.0.of(key));
                    false
                });
                assert!(none.is_none());
                self.is_there(key, seen.is_some());
                assert!(seen.is_none_or(|seen| seen == self.model[&key].number));
            }
            Op::RemoveIf { key, agrees: true } => {
                let number = cache.remove_if(&key, |_| true).map(|value| value.0.of(key));
                self.is_there(key, number.is_some());
                assert!(number.is_none_or(|number| number == self.model[&key].number));
                self.departed(&[Cause::Removed]);
                if number.is_some() {
                    assert!(!self.shape.listener || !self.model.contains_key(&key));
                    self.model.remove(&key);
                }
            }
            Op::Retain(parity) => {
                cache.retain(|key, _| key % 2 == parity);
                self.departed(&[Cause::Removed]);
                let now_ms = self.now_ms;
                let leaves = |(key, entry): (&u64, &Expected)| {
                    key % 2 != parity && !entry.may_have_expired(now_ms)
                };
                assert!(!self.shape.listener || !self.model.iter().any(leaves), "some stayed");
                self.model.retain(|key, entry| !leaves((key, entry)));
            }
            Op::Peek(key) => {
                let hits = cache.stats().hits;
                let number = cache.peek(&key).map(|value| value.0.of(key));
                assert_eq!(cache.stats().hits, hits, "no hit is counted");
                self.is_there(key, number.is_some());
                assert!(number.is_none_or(|number| number == self.model[&key].number));
            }
            Op::HoldGuard(at) => {
                if at < self.guards.len() {
                    let (guard, key, number) = self.guards.swap_remove(at);
                    let guard = match guard {
                        Guard::Here(guard) => Guard::Travels(guard.hold(cache)),
                        held => held,
                    };
                    self.guards.push((guard, key, number));
                }
            }
            Op::Get(key) => {
                let number = cache.get(&key).map(|value| value.0.of(key));
                self.found(key, number);
            }
            Op::GetCloned(key) => {
                let number = cache.read(&key, |value| value.0.of(key));
                self.found(key, number);
            }
            Op::GetMany(ref keys) => {
                let mut numbers = vec![None; keys.len()];
                let count =
                    cache.get_many(keys, |at, value| numbers[at] = Some(value.0.of(keys[at])));
                assert_eq!(count, numbers.iter().flatten().count());
                for (key, number) in keys.iter().zip(numbers) {
                    self.found(*key, number);
                }
            }
            Op::Contains(key) => {
                let hits = cache.stats().hits;
                let number = cache.contains_key(&key);
                assert_eq!(cache.stats().hits, hits, "no hit is counted");
                self.is_there(key, number); // and it is no use
            }
            Op::Keep(key) => self.keep(key, cache.get(&key).map(Guard::Here)),
            Op::Hold(key) => self.keep(key, cache.hold(&key).map(Guard::Travels)),
            Op::LetGo(at) => {
                if at < self.guards.len() {
                    self.guards.swap_remove(at);
                }
            }
            Op::Remove(key) | Op::RemoveAndKeep(key) => {
                let guard = cache.remove(&key);
                let number = guard.as_ref().map(|value| value.0.of(key));
                self.found(key, number);
                if self.shape.listener {
                    self.departed(&[Cause::Removed, Cause::Expired]);
                    assert!(!self.model.contains_key(&key), "removed, and nobody told");
                }
                self.model.remove(&key);
                if let (Some(guard), Op::RemoveAndKeep(_)) = (guard, op) {
                    self.guards.push((Guard::Here(guard), key, number.expect("there is one")));
                }
            }
            Op::Load { key, weight, fails } => self.load(key, weight, fails),
            Op::Clear => {
                cache.clear();
                if self.shape.listener {
                    self.departed(&[Cause::Removed]);
                    assert!(self.model.is_empty(), "cleared, and nobody told of {:?}", self.model);
                }
                self.model.clear();
                assert_eq!((cache.len(), cache.stats().weight), (0, 0));
            }
            Op::Resize(entries) => {
                self.thaws();
                cache.resize(entries);
                self.entries_limit = Some(entries as u64);
                self.departed(&[Cause::Evicted]);
            }
            Op::ResizeWeight(weight) => {
                if self.weighs() {
                    self.thaws();
                    cache.resize_weight(weight);
                    self.weight_limit = Some(weight);
                    self.departed(&[Cause::Evicted]);
                }
            }
            Op::Pin(key) | Op::Unpin(key) => {
                let pinned = matches!(op, Op::Pin(_));
                let there = if pinned { cache.pin(&key) } else { cache.unpin(&key) };
                self.is_there(key, there);
                if let (true, Some(expected)) = (there, self.model.get_mut(&key)) {
                    expected.pinned = pinned;
                    expected.frozen = false;
                }
                self.departed(&[Cause::Evicted]);
            }
            Op::Advance(ms) => {
                self.clock.advance(Duration::from_millis(ms));
                self.now_ms += ms;
            }
            Op::Freeze(share) => {
                self.thaws();
                let frozen = cache.freeze(share).entries as u64;
                let stats = cache.stats();
                assert!(
                    frozen <= stats.frozen && stats.frozen <= stats.entries - stats.pinned,
                    "{stats:?}"
                );
                self.frozen = true;
                // All that can be, where it is known what is in.
                for expected in
                    self.model.values_mut().filter(|_| share == 1.0 && self.shape.listener)
                {
                    expected.frozen = !expected.pinned && expected.idle_ms.is_none();
                }
            }
            Op::Thaw => {
                self.thaws();
                cache.thaw();
                assert_eq!(cache.stats().frozen, 0);
            }
            Op::Bypass(bypass) => floe_memory::bypass(cache, bypass),
            Op::Iterate => {
                let found: Vec<_> =
                    cache.iter().map(|item| (*item.key(), item.value().0.number())).collect();
                let by_key: HashMap<_, _> = found.iter().copied().collect();
                assert_eq!(by_key.len(), found.len(), "each entry is yielded once");
                let keys: Vec<_> =
                    self.model.keys().copied().chain(by_key.keys().copied()).collect();
                for key in keys {
                    let number = by_key.get(&key).copied();
                    self.is_there(key, number.is_some());
                    assert!(number.is_none() || self.model[&key].number == number.expect("some"));
                }
            }
            Op::Reclaim => {
                cache.reclaim();
                self.departed(&[Cause::Expired]);
                if self.shape.listener {
                    let late =
                        self.model.values().find(|entry| entry.must_have_expired(self.now_ms));
                    assert!(late.is_none(), "{late:?} is still in");
                }
                let kept = self.guards.len() as u64;
                let stats = cache.stats();
                assert!(stats.waiting <= kept, "{} wait for {kept} guards", stats.waiting);
                assert_eq!(self.tally.alive(), stats.entries + stats.waiting, "none is lost");
            }
        }
    }

    /// An operation has told what was there before it: what was inserted last, unless that had a
    /// reason to go.
    fn was_there(&self, known: Option<Expected>, before: Option<u64>) {
        match (known, before) {
            (Some(known), Some(before)) => {
                assert_eq!(before, known.number);
                assert!(!known.must_have_expired(self.now_ms), "{known:?} has expired");
            }
            (None, Some(before)) => panic!("number {before} has left and is there again"),
            (Some(known), None) => {
                let evicted = !self.shape.listener && !known.pinned;
                assert!(known.may_have_expired(self.now_ms) || evicted, "{known:?} is lost");
            }
            (None, None) => {}
        }
    }

    fn thaws(&mut self) {
        self.frozen = false;
        self.model.values_mut().for_each(|expected| expected.frozen = false);
    }

    fn load(&mut self, key: u64, weight: u32, fails: bool) {
        let cache = self.cache;
        let may_be_there =
            self.model.get(&key).is_some_and(|entry| !entry.must_have_expired(self.now_ms));
        let surely_there = self.model.get(&key).is_some_and(|entry| {
            !entry.may_have_expired(self.now_ms) && (self.shape.listener || entry.pinned)
        });
        let mut called = false;
        let expected = self.model.get(&key).map(|entry| entry.number);
        let mut out = None;
        let tally = Arc::clone(&self.tally);
        let load = || {
            called = true;
            if fails { Err("no such thing") } else { Ok((tally.value(key), weight)) }
        };
        // Whether it is called decides what the model says, so it is known first.
        let there = cache.contains_key(&key);
        assert!(!there || may_be_there);
        assert!(there || !surely_there);
        if there || fails {
            let result = cache.get_or_insert_with(&key, load);
            assert_eq!(called, !there);
            match result {
                Ok(value) => out = Some(value.0.of(key)),
                Err(error) => assert_eq!((error, there), ("no such thing", false)),
            }
            assert!(!there || out == expected);
            self.found(key, out);
        } else {
            self.found(key, None);
            if !self.shape.listener {
                self.model.remove(&key);
            }
            self.inserts(key, weight, (None, None, false), |run, value| {
                let number = value.number();
                let result = run.cache.get_or_insert_with(&key, || Ok::<_, ()>((value, weight)));
                assert_eq!(result.expect("it loads").0.of(key), number);
            });
        }
    }

    /// Returns what holds after each operation.
    fn check(&self) {
        let stats = self.cache.stats();
        let exceeds = |limit: Option<u64>, held: u64| limit.is_some_and(|limit| held > limit);
        if exceeds(self.entries_limit, stats.entries) || exceeds(self.weight_limit, stats.weight) {
            assert_eq!(
                stats.pinned, stats.entries,
                "a limit is exceeded by what is not pinned: {stats:?}"
            );
        }
        assert_eq!(
            (stats.capacity, stats.weight_capacity),
            (self.entries_limit, self.weight_limit)
        );
        let left = stats.evictions + stats.expirations + stats.removals + stats.replacements;
        assert_eq!(stats.insertions, stats.entries + left, "stats add up: {stats:?}");
        assert_eq!(stats.entries, self.cache.len() as u64);
        assert_eq!(self.cache.is_empty(), stats.entries == 0);
        let batch = self.entries_limit.map_or(256, |limit| (limit / stats.shards / 32).max(16));
        let slack = 2 * batch * stats.shards + self.guards.len() as u64;
        assert!(
            stats.waiting <= slack,
            "{} wait, with {} guards",
            stats.waiting,
            self.guards.len()
        );
        assert_eq!(self.tally.alive(), stats.entries + stats.waiting, "each value is in or waits");
        for (guard, key, number) in &self.guards {
            assert_eq!(guard.value().of(*key), *number);
        }
        if self.shape.listener {
            let told = |cause| self.told.get(&cause).copied().unwrap_or_default();
            let counted = [
                stats.evictions,
                stats.expirations,
                stats.removals,
                stats.replacements,
                stats.rejections,
            ];
            let causes =
                [Cause::Evicted, Cause::Expired, Cause::Removed, Cause::Replaced, Cause::Rejected];
            assert_eq!(causes.map(told), counted, "the listener heard of each once, of {causes:?}");
            assert_eq!(self.totals(), (stats.entries, stats.weight));
            assert_eq!(
                self.model.values().filter(|entry| entry.pinned).count() as u64,
                stats.pinned
            );
        }
    }
}

fn run(shape: &Shape, ops: &[Op]) {
    let (tally, departures, clock) = (Tally::new(), Departures::default(), Clock::manual());
    let mut builder =
        Cache::<u64, (Value, u32)>::builder().shards(shape.shards).clock(clock.clone());
    if let Some(entries) = shape.entries {
        builder = builder.capacity(entries);
    }
    if let Some(weight) = shape.weight {
        builder = builder.weight_capacity(weight).weigher(|_, (_, weight)| *weight);
    }
    if let Some(live) = shape.live_ms {
        builder = builder.time_to_live(Duration::from_millis(live));
    }
    if let Some(idle) = shape.idle_ms {
        builder = builder.time_to_idle(Duration::from_millis(idle));
    }
    if shape.listener {
        let departures = Arc::clone(&departures);
        builder = builder.listener(move |key, value: &(Value, u32), cause| {
            departures.lock().unwrap().push((*key, value.0.of(*key), cause));
        });
    }
    let cache = builder.policy_named(shape.policy).expect("the policy is registered").build();
    let mut run = Run {
        cache: &cache,
        shape,
        clock,
        now_ms: 0,
        tally: Arc::clone(&tally),
        departures: Arc::clone(&departures),
        model: HashMap::new(),
        told: HashMap::new(),
        guards: Vec::new(),
        entries_limit: shape.entries.map(|entries| entries as u64),
        weight_limit: shape.weight,
        frozen: false,
    };
    for op in ops {
        run.step(op);
        assert!(departures.lock().unwrap().is_empty(), "somebody left {op:?}");
        run.check();
    }
    let mut guards = std::mem::take(&mut run.guards);
    drop(run);
    guards.retain(|(guard, ..)| matches!(guard, Guard::Travels(_)));
    cache.reclaim();
    cache.clear();
    assert!(cache.stats().waiting <= guards.len() as u64);
    let held: Vec<_> = guards
        .into_iter()
        .filter_map(|(guard, key, number)| match guard {
            Guard::Travels(held) => Some((held, key, number)),
            Guard::Here(_) => None,
        })
        .collect();
    drop(cache);
    for (held, key, number) in held {
        assert_eq!(held.0.of(key), number, "a held value outlives its cache");
    }
    assert_eq!(tally.alive(), 0, "each value is dropped");
}

fn cases() -> u32 {
    if cfg!(miri) { 4 } else { 1500 }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_cache_does_as_its_model(shape in shapes(), ops in prop::collection::vec(ops(), 1..120)) {
        run(&shape, &ops);
    }
}
