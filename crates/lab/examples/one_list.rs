//! Measures an LRU cache with one global list, as the one that "Can Increasing the Hit Ratio Hurt
//! Cache Throughput?" (Qiu, Yang, Harchol-Balter) measures: only list operations take the lock, and
//! they are nearly all that a request does.
//!
//! `cargo run --release --locked -p floe-lab --example one_list [seconds] [lock]`
//!
//! The lock is the standard library's mutex, which lets the thread that has just left come back
//! before one that sleeps (`mutex`), or the same behind tickets, which serve in turn (`ticket`);
//! both, one after the other, without an argument.
//!
//! The index is an array, since keys are dense, and is read and changed outside of the lock. A hit
//! delinks a node and makes it the head; a miss takes the tail and makes it the head. Each node has
//! a cache line of its own. A line of JSON for each lock, disk, number of clients and hit ratio,
//! with the share of list operations that came after one of the other thread: with those the list
//! changes processors.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use floe_lab::bench::{
    CacheCompetitor, Competitor, Curve, Disk, Estimate, Load, Looped, MeasureStep, PassOrder, Plan,
    Setup, Subject, capacity_for, measure,
};
use floe_lab::simulate::stream::{Builder, Keep};
use floe_trace::{GeneratorSpec, Trace};

/// As in `scripts/results-hit-ratio`.
const LOAD: &str = "zipf:keys=6000,theta=0.99,requests=400000";
const HIT_RATIOS: [f64; 7] = [0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0];
const DISKS_US: [u64; 2] = [5, 100];
const MPLS: [usize; 3] = [2, 16, 72];
const THREADS: usize = 2;
const REPETITIONS: usize = 9;

/// Looks at a ticket between two times that a thread gives its processor up.
const SPINS: u32 = 1000;

/// No slot.
const NONE: u32 = u32::MAX;

thread_local! {
    /// Tells threads apart by its address.
    static THREAD: u8 = const { 0 };
}

/// A node of the list, in a cache line of its own.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Node {
    newer: u32,
    older: u32,
    key: u32,
}

#[derive(Debug)]
struct List {
    nodes: Vec<Node>,
    head: u32,
    tail: u32,
    used: u32,
    /// The thread that has had the lock last.
    thread: usize,
    counts: Arc<Counts>,
}

/// List operations, and those that came after one of another thread. Written under the lock.
#[derive(Debug, Default)]
struct Counts {
    operations: AtomicU64,
    handovers: AtomicU64,
}

impl Counts {
    // Relaxed, here and below: numbers to look at, which one thread at a time changes.
    fn now(&self) -> [u64; 2] {
        [&self.operations, &self.handovers].map(|count| count.load(Ordering::Relaxed))
    }
}

impl List {
    /// Counts an operation, and whether the one before was another thread's.
    fn count(&mut self) {
        let thread = THREAD.with(|own| std::ptr::from_ref(own).addr());
        let [operations, handovers] = self.counts.now();
        let is_other = std::mem::replace(&mut self.thread, thread) != thread;
        self.counts.operations.store(operations + 1, Ordering::Relaxed);
        self.counts.handovers.store(handovers + u64::from(is_other), Ordering::Relaxed);
    }

    fn delink(&mut self, slot: u32) {
        let Node { newer, older, .. } = self.nodes[slot as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.head = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.tail = newer,
        }
    }

    fn put_at_head(&mut self, slot: u32, key: u32) {
        let head = std::mem::replace(&mut self.head, slot);
        self.nodes[slot as usize] = Node { newer: NONE, older: head, key };
        match self.nodes.get_mut(head as usize) {
            Some(node) => node.newer = slot,
            None => self.tail = slot,
        }
    }

    /// Takes a slot that was never used, or the one at the tail with its key.
    fn take(&mut self) -> (u32, Option<u32>) {
        if (self.used as usize) < self.nodes.len() {
            self.used += 1;
            return (self.used - 1, None);
        }
        let slot = self.tail;
        self.delink(slot);
        (slot, Some(self.nodes[slot as usize].key))
    }
}

/// Tickets in front of a lock: threads get it in the order in which they came.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Tickets {
    next: AtomicU64,
    serving: AtomicU64,
}

impl Tickets {
    fn take(&self) -> Turn<'_> {
        // Relaxed: a ticket orders nothing but tickets.
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0u32;
        // Acquire: what the thread before has done.
        while self.serving.load(Ordering::Acquire) != mine {
            looks += 1;
            // The thread whose turn it is may not be running.
            if looks.is_multiple_of(SPINS) { std::thread::yield_now() } else { spin_loop() }
        }
        Turn { tickets: self, mine }
    }
}

/// The turn of one ticket, until it is dropped.
struct Turn<'a> {
    tickets: &'a Tickets,
    mine: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: see `take`.
        self.tickets.serving.store(self.mine + 1, Ordering::Release);
    }
}

/// A locked list. The fields are dropped in this order.
struct Locked<'a> {
    list: MutexGuard<'a, List>,
    _turn: Option<Turn<'a>>,
}

/// An LRU cache with one list.
struct OneList {
    list: Mutex<List>,
    /// None for the bare mutex.
    tickets: Option<Tickets>,
    /// The slot of each key.
    index: Vec<AtomicU32>,
    /// The value of each slot, which is its key.
    values: Vec<AtomicU64>,
}

impl OneList {
    fn new(keys: usize, capacity: usize, tickets: Option<Tickets>, counts: Arc<Counts>) -> Self {
        let nodes = vec![Node { newer: NONE, older: NONE, key: NONE }; capacity];
        Self {
            list: Mutex::new(List { nodes, head: NONE, tail: NONE, used: 0, thread: 0, counts }),
            tickets,
            index: (0..keys).map(|_| AtomicU32::new(NONE)).collect(),
            values: (0..capacity).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    fn list(&self) -> Locked<'_> {
        let turn = self.tickets.as_ref().map(Tickets::take);
        let mut list = self.list.lock().expect("no operation of the list panics");
        list.count();
        Locked { list, _turn: turn }
    }
}

impl Subject for OneList {
    fn lookup(&self, key: u64) -> bool {
        // Acquire: the value was stored before the slot was published.
        let slot = self.index[key as usize].load(Ordering::Acquire);
        // Relaxed: another key's value means that the slot was taken meanwhile, and is a miss.
        let value = self.values.get(slot as usize).map(|value| value.load(Ordering::Relaxed));
        if value != Some(key) {
            return false;
        }
        let Locked { list, _turn } = &mut self.list();
        if list.nodes[slot as usize].key == key as u32 {
            list.delink(slot);
            list.put_at_head(slot, key as u32);
        }
        true
    }

    fn fill(&self, key: u64) {
        let (slot, victim) = {
            let Locked { list, _turn } = &mut self.list();
            let (slot, victim) = list.take();
            list.put_at_head(slot, key as u32);
            (slot, victim)
        };
        if let Some(victim) = victim {
            // Relaxed: who still sees the slot finds another value there. A victim that came back
            // meanwhile keeps its new slot.
            let ours = self.index[victim as usize].compare_exchange(
                slot,
                NONE,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            _ = ours;
        }
        self.values[slot as usize].store(key, Ordering::Relaxed);
        // Release: see `lookup`.
        self.index[key as usize].store(slot, Ordering::Release);
    }

    fn update(&self, key: u64) {
        self.fill(key);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(0.05), |text| text.parse())?;
    let mut trace = Trace::generate(&LOAD.parse::<GeneratorSpec>()?)?;
    let mut builder =
        Builder::new(trace.kind(), Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
    trace.by_ref().try_for_each(|request| -> Result<(), Box<dyn std::error::Error>> {
        Ok(builder.add(&request?)?)
    })?;
    let stream = builder.finish()?;
    let load = Load::new(&stream, None, PassOrder::Drawn)?;
    let (looped, mut known) = (Looped::new(&stream, PassOrder::Drawn), Curve::new());
    let lru = "lru".parse()?;
    let capacities =
        HIT_RATIOS.map(|ratio| capacity_for(ratio, &lru, &looped, &mut known).capacity as usize);
    let plan = Plan {
        repetitions: REPETITIONS,
        seconds,
        warm_up_seconds_max: 2.0,
        in_step: false,
        disturbed_max: None,
    };
    let locks = ["mutex", "ticket"].into_iter();
    let chosen = std::env::args().nth(2);
    for lock in locks.filter(|lock| chosen.as_ref().is_none_or(|chosen| chosen == lock)) {
        let grid = DISKS_US.into_iter().flat_map(|disk_us| MPLS.map(|mpl| (disk_us, mpl)));
        for (disk_us, mpl) in grid {
            let disk = Disk { mean_ns: disk_us * 1000, exponential: true };
            let setup = Setup { threads: THREADS, mpl, disk };
            let counts = HIT_RATIOS.map(|_| Arc::new(Counts::default()));
            let competitors: Vec<Box<dyn Competitor>> = capacities
                .iter()
                .zip(&counts)
                .map(|(&capacity, counts)| {
                    let tickets = (lock == "ticket").then(Tickets::default);
                    let cache = OneList::new(load.keys(), capacity, tickets, Arc::clone(counts));
                    Box::new(CacheCompetitor::new(cache, capacity as u64, setup)) as _
                })
                .collect();
            let mut warm = Vec::new();
            let measured = measure(&load, &competitors, &plan, |step| {
                if let MeasureStep::Run(0, _) = step {
                    warm.extend(counts.iter().map(|counts| counts.now()));
                }
            });
            for (((wanted, found), counts), warm) in
                HIT_RATIOS.iter().zip(&measured).zip(&counts).zip(&warm)
            {
                let ([operations, handovers], [before, handed]) = (counts.now(), *warm);
                let handed = (handovers - handed) as f64 / (operations - before).max(1) as f64;
                let rates = found.repetitions.iter().map(|repetition| repetition.ops_per_second);
                let Estimate { median, low, high, .. } = Estimate::of(rates);
                println!(
                    "{{\"part\": \"one-list\", \"lock\": \"{lock}\", \"disk_us\": {disk_us}, \
                     \"mpl\": {mpl}, \"wanted\": {wanted}, \"hit_ratio\": {:.4}, \
                     \"ops_per_second\": {median:.0}, \"low\": {low:.0}, \"high\": {high:.0}, \
                     \"handed_over\": {handed:.4}}}",
                    found.total.hit_ratio()
                );
            }
        }
    }
    Ok(())
}
