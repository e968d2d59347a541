//! Checks that what threads saw of a cache could have happened one operation after the other.
//!
//! Each key is a register of its own. Its history is checked as a whole (Wing and Gong, JPDC '93):
//! is there an order of the operations, each between its call and its return, in which every result
//! is what a register would say?

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use floe_memory::Cache;
use floe_memory::policy::Replacement;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const THREADS: u64 = 4;
const KEYS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Insert(u64),
    Get(Option<u64>),
    Remove(Option<u64>),
    /// Tells what the caller would have loaded, and what it got.
    Load(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Event {
    called: u64,
    returned: u64,
    did: Did,
}

impl Event {
    fn overlaps(&self, other: &Self) -> bool {
        self.called < other.returned && other.called < self.returned
    }
}

/// True if entries can leave by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    Scarce,
}

struct Checker<'a> {
    events: &'a [Event],
    room: Room,
    seen: HashSet<(u128, Option<u64>)>,
}

impl Checker<'_> {
    /// Returns what a register can hold after an operation, if it can have that result.
    fn after(&self, event: &Event, holds: Option<u64>) -> Option<Option<u64>> {
        match event.did {
            Did::Insert(value) => Some(Some(value)),
            Did::Get(found) => (found == holds).then_some(holds),
            Did::Remove(found) => (found == holds).then_some(None),
            Did::Load(own, got) if own == got => holds.is_none().then_some(Some(own)),
            Did::Load(_, got) => {
                // What another loads is handed to those who wait for it even if it does not come
                // in.
                let waited = |other: &Event| {
                    matches!(other.did, Did::Load(own, _) if own == got) && other.overlaps(event)
                };
                let handed = holds.is_none() && self.events.iter().any(waited);
                (holds == Some(got) || handed).then_some(holds)
            }
        }
    }

    fn explains(&mut self, done: u128, holds: Option<u64>) -> bool {
        if done.count_ones() as usize == self.events.len() {
            return true;
        }
        if !self.seen.insert((done, holds)) {
            return false;
        }
        let is_open = |at: &usize| done & 1 << at == 0;
        let open = || (0..self.events.len()).filter(is_open);
        let first_return = open().map(|at| self.events[at].returned).min().expect("some are open");
        let next: Vec<_> = open().filter(|&at| self.events[at].called < first_return).collect();
        for at in next {
            let event = self.events[at];
            let mut states = vec![holds];
            if self.room == Room::Scarce && holds.is_some() {
                states.push(None); // it was evicted before
            }
            for holds in states {
                let Some(after) = self.after(&event, holds) else { continue };
                if self.explains(done | 1 << at, after) {
                    return true;
                }
                // What is loaded while the key changes is handed out and does not come in.
                let changes = |other: &Event| {
                    matches!(other.did, Did::Insert(_) | Did::Remove(_)) && other.overlaps(&event)
                };
                let passes = matches!(event.did, Did::Load(own, got) if own == got)
                    && self.events.iter().any(changes);
                if passes && self.explains(done | 1 << at, None) {
                    return true;
                }
            }
        }
        false
    }
}

/// Panics when the history of a key has no explanation.
fn check(key: u64, mut events: Vec<Event>, room: Room) {
    assert!(events.len() <= 128, "the checker has a bit for each");
    events.sort_by_key(|event| event.called);
    let mut checker = Checker { events: &events, room, seen: HashSet::new() };
    assert!(checker.explains(0, None), "no order explains what was seen of key {key}: {events:#?}");
}

/// Freezes and thaws at random, and hides what is frozen and shows it again.
pub(crate) fn freeze_at_random<P: Replacement>(cache: &Cache<u64, u64, P>, random: &mut StdRng) {
    match random.random_range(0..8) {
        0 => cache.thaw(),
        1..3 => _ = cache.freeze(1.0),
        3..5 => _ = cache.freeze(random.random_range(0.0..1.0)),
        hides => floe_memory::bypass(cache, hides == 7),
    }
}

/// Random operations of some threads on some keys of a new cache, with others inserted beside them.
pub(crate) fn round<P: Replacement>(
    cache: &Cache<u64, u64, P>,
    seed: u64,
    room: Room,
    others: u64,
) {
    let start = Barrier::new(THREADS as usize);
    run(cache, seed, room, others, &start, &AtomicU64::new(0));
}

/// [`round`] while another thread freezes and thaws at random.
pub(crate) fn frozen_round<P: Replacement>(
    cache: &Cache<u64, u64, P>,
    seed: u64,
    room: Room,
    others: u64,
) {
    let (start, ended) = (Barrier::new(THREADS as usize + 1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let freezer = scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(seed);
            start.wait();
            while ended.load(SeqCst) < THREADS {
                freeze_at_random(cache, &mut random);
                std::thread::yield_now();
            }
        });
        run(cache, seed, room, others, &start, &ended);
        freezer.join().expect("it ends well");
    });
}

fn run<P: Replacement>(
    cache: &Cache<u64, u64, P>,
    seed: u64,
    room: Room,
    others: u64,
    start: &Barrier,
    ended: &AtomicU64,
) {
    let (now, values) = (AtomicU64::new(1), AtomicU64::new(1));
    let run = |thread: u64| {
        let mut random = StdRng::seed_from_u64(seed * THREADS + thread);
        let mut events = Vec::new();
        start.wait();
        for step in 0..24u64 {
            let key = random.random_range(0..KEYS);
            let called = now.fetch_add(1, SeqCst);
            let one = |did| vec![(key, did)];
            let did = match random.random_range(0..13) {
                0..3 => {
                    let value = values.fetch_add(1, SeqCst);
                    cache.insert(key, value);
                    one(Did::Insert(value))
                }
                3..5 => one(Did::Remove(cache.remove(&key).map(|value| *value))),
                5..7 => {
                    let own = values.fetch_add(1, SeqCst);
                    let got =
                        cache.get_or_insert_with(&key, || Ok::<_, ()>(own)).expect("it loads");
                    one(Did::Load(own, *got))
                }
                7 => one(Did::Get(cache.hold(&key).map(|value| *value))),
                8..10 => {
                    let keys: Vec<u64> = (0..KEYS).collect();
                    let mut found = vec![None; keys.len()];
                    cache.get_many(&keys, |at, value| found[at] = Some(*value));
                    keys.into_iter().zip(found.into_iter().map(Did::Get)).collect()
                }
                _ => one(Did::Get(cache.get(&key).map(|value| *value))),
            };
            let returned = now.fetch_add(1, SeqCst);
            events.extend(did.into_iter().map(|(key, did)| (key, Event { called, returned, did })));
            for other in 0..others {
                cache.insert(1000 + (step * others + other) * THREADS + thread, 0);
            }
        }
        ended.fetch_add(1, SeqCst);
        events
    };
    let run = &run;
    let histories: Vec<Vec<(u64, Event)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    for key in 0..KEYS {
        let of_key =
            histories.iter().flatten().filter(|(of, _)| *of == key).map(|(_, event)| *event);
        check(key, of_key.collect(), room);
    }
}

/// Returns how often.
pub(crate) fn rounds() -> u64 {
    if cfg!(miri) { 2 } else { 400 }
}

#[test]
fn the_checker_refuses_what_no_register_does() {
    let event = |called, returned, did| Event { called, returned, did };
    let explains =
        |events: &[Event], room| Checker { events, room, seen: HashSet::new() }.explains(0, None);
    let insert = event(1, 2, Did::Insert(7));
    let lost = [insert, event(3, 4, Did::Get(None))];
    assert!(!explains(&lost, Room::Enough) && explains(&lost, Room::Scarce));
    let back = [insert, event(3, 4, Did::Get(None)), event(5, 6, Did::Get(Some(7)))];
    assert!(!explains(&back, Room::Scarce), "what was evicted is there again");
    let stale = [insert, event(3, 4, Did::Insert(8)), event(5, 6, Did::Get(Some(7)))];
    assert!(!explains(&stale, Room::Scarce));
    let beside = [insert, event(3, 6, Did::Insert(8)), event(4, 5, Did::Get(Some(7)))];
    assert!(explains(&beside, Room::Enough));
    let over = [insert, event(3, 4, Did::Load(8, 8))];
    assert!(!explains(&over, Room::Enough), "loaded although it was there");
}
