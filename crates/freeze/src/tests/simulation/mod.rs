//! A simulated cache: a real policy, a stream of keys, noisy latencies by kind of request, and a
//! clock that they advance.
//!
//! Latencies are a thousand times those of memory, so that hours of histories pass in seconds.

mod keys;
mod machine;

use std::collections::HashMap;
use std::time::Duration;

use floe_policy::owner::SlotOwner;
use floe_policy::registry::Choice;
use floe_policy::{Access, AnyPolicy, Cursor, Eviction, Slot, mix};

pub(crate) use self::keys::Keys;
pub(crate) use self::machine::Machine;
use crate::{Action, Controller, Done, Freezing, Observations, Phase, Wake};

const TICK: Duration = Duration::from_millis(5);
const SAMPLED_ONE_IN: u64 = 10;
/// Length of a stall in microseconds.
const STALL: f64 = 4000.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HitKind {
    Frozen,
    Dynamic,
    Miss,
}

/// Frozen entries and their index.
struct Frozen {
    /// Frozen mark of each slot.
    slots: Vec<bool>,
    count: u64,
    /// True if there is a frozen index.
    index: bool,
    bypassed: bool,
    skips_insertions: bool,
}

/// Hits since the hit ratio was last read, and the number of requests at that time.
struct HitRatio {
    hits: u64,
    from: u64,
}

/// State of the simulated maintenance thread.
struct Maintenance {
    pending: Option<(Duration, Done)>,
    wake: Wake,
    tick: Duration,
}

/// A cache, its machine and its controller.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) keys: Keys,
    pub(crate) controller: Controller,
    pub(crate) now: Duration,
    pub(crate) requests: u64,
    hit_ratio: HitRatio,
    /// Offset added to all keys: another value selects a disjoint set of keys.
    pub(crate) other_keys: u64,
    /// Phases, each with its start.
    pub(crate) phases: Vec<(Duration, Phase)>,
    /// Time during which the frozen index served.
    pub(crate) served: Duration,
    random: u64,
    owner: SlotOwner<AnyPolicy, HashMap<u64, Slot>>,
    capacity: usize,
    frozen: Frozen,
    counts: Observations,
    maintenance: Maintenance,
}

impl World {
    pub(crate) fn new(
        policy: &str,
        capacity: usize,
        keys: Keys,
        machine: Machine,
        options: Freezing,
    ) -> Self {
        let order = AnyPolicy::new(&policy.parse::<Choice>().expect("a policy"));
        Self {
            machine,
            keys,
            controller: Controller::new(options),
            now: Duration::ZERO,
            requests: 0,
            hit_ratio: HitRatio { hits: 0, from: 0 },
            other_keys: 0,
            phases: Vec::new(),
            served: Duration::ZERO,
            random: mix(1),
            owner: SlotOwner::new(order, HashMap::new(), capacity as u64, capacity),
            capacity,
            frozen: Frozen {
                slots: vec![false; capacity],
                count: 0,
                index: false,
                bypassed: false,
                skips_insertions: false,
            },
            counts: Observations::default(),
            maintenance: Maintenance {
                pending: None,
                wake: Wake { at: Duration::ZERO, lookups: 0 },
                tick: Duration::ZERO,
            },
        }
    }

    /// Sets the seed, which selects another history of the same kind.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.random = mix(seed);
    }

    fn uniform(&mut self) -> f64 {
        self.random = mix(self.random);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn key(&mut self) -> u64 {
        let (draw, requests) = (self.uniform(), self.requests);
        let key = match &self.keys {
            Keys::Zipf { shares, shift, every } => {
                let rank = shares.partition_point(|&share| share < draw) as u64;
                (rank * 7919 + requests / every * shift * 7919) % (shares.len() as u64 * 8)
            }
            Keys::Loop(length) => requests % length,
            Keys::Scan => requests,
            Keys::Uniform(keys) => (draw * *keys as f64) as u64,
        };
        key + self.other_keys
    }

    /// Returns a latency in microseconds, with noise around the mean.
    fn noisy(&mut self, mean: f64) -> f64 {
        let noise = self.machine.noise;
        let draw = self.uniform();
        let (share, period) = self.machine.wander;
        let tide = 1.0 + share * (std::f64::consts::TAU * self.now.as_secs_f64() / period).sin();
        tide * mean * (1.0 - noise + noise * -(1.0 - draw).ln())
    }

    /// Serves one request.
    fn request(&mut self) {
        let key = self.key();
        self.requests += 1;
        let index_serves = self.frozen.index && !self.frozen.bypassed;
        let Machine { frozen, lookup, promotion, failing, load, insertion, .. } = self.machine;
        let in_vain = if index_serves { failing } else { 0.0 };
        let (mean, kind) = match self.owner.find(key) {
            Some(slot) if self.frozen.slots[slot.index()] => {
                (if index_serves { frozen } else { lookup }, HitKind::Frozen)
            }
            Some(slot) => {
                self.owner.access(slot);
                (in_vain + lookup + promotion, HitKind::Dynamic)
            }
            None => {
                let is_inserted = !self.frozen.skips_insertions && self.insert(key);
                (in_vain + lookup + load + if is_inserted { insertion } else { 0.0 }, HitKind::Miss)
            }
        };
        let mut took = self.noisy(mean);
        if self.uniform() < self.machine.stalls * took * 1e-6 {
            took += STALL;
        }
        let counts = &mut self.counts;
        let (count, sums) = match kind {
            HitKind::Frozen => (&mut counts.frozen_hits, &mut counts.latencies.frozen),
            HitKind::Dynamic => (&mut counts.dynamic_hits, &mut counts.latencies.dynamic),
            HitKind::Miss => (&mut counts.misses, &mut counts.latencies.miss),
        };
        *count += 1;
        if mix(self.requests).is_multiple_of(SAMPLED_ONE_IN) {
            sums.add((took + self.machine.clock) * 1e3);
        }
        self.hit_ratio.hits += u64::from(kind != HitKind::Miss);
        let span = Duration::from_nanos((took * 1e3) as u64);
        self.now += span;
        if index_serves {
            self.served += span;
        }
    }

    fn insert(&mut self, key: u64) -> bool {
        let access = Access::new(mix(key));
        let evictions = &mut self.counts.evictions;
        let slot = self.owner.insert(key, &access, |_, _, _| *evictions += 1);
        self.counts.insertions += u64::from(slot.is_some());
        slot.is_some()
    }

    /// Freezes the best ranked entries until `wanted` are frozen.
    fn freeze_best(&mut self, wanted: u64) {
        let (mut cursor, mut before) = (Cursor::START, self.frozen.count);
        while self.machine.freezes && self.frozen.count < wanted && cursor != Cursor::END {
            let mut batch = Vec::new();
            cursor = self.owner.policy().rank(cursor, &mut batch);
            batch.truncate((wanted - self.frozen.count) as usize);
            self.owner.policy_mut().freeze(&batch);
            batch.iter().for_each(|slot| self.frozen.slots[slot.index()] = true);
            self.frozen.count += batch.len() as u64;
            if cursor == Cursor::END && self.frozen.count > before {
                (cursor, before) = (Cursor::START, self.frozen.count);
            }
        }
    }

    fn thaw(&mut self) {
        self.owner.policy_mut().thaw();
        self.frozen.slots.fill(false);
        self.frozen.count = 0;
        (self.frozen.index, self.frozen.bypassed, self.frozen.skips_insertions) =
            (false, false, false);
    }

    fn entries(&self) -> u64 {
        self.owner.len() as u64
    }

    fn perform(&mut self, action: Action) {
        let later = |micros: f64| self.now + Duration::from_nanos((micros * 1e3) as u64);
        let entries = self.entries() as f64;
        match action {
            Action::Keep => {}
            Action::Thaw => {
                self.maintenance.pending = Some((later(100.0), Done::Thawed));
                self.thaw();
            }
            Action::Extend { to } => {
                assert!(!self.frozen.index, "learning goes without an index");
                let at = later(100.0);
                self.freeze_best((to * entries) as u64);
                self.maintenance.pending = Some((
                    at,
                    Done::Extended { share: self.frozen.count as f64 / entries.max(1.0) },
                ));
            }
            Action::Freeze { ratio } => {
                self.thaw();
                self.freeze_best((ratio * entries) as u64);
                self.construct();
            }
            Action::FreezeAll => {
                self.freeze_best(self.entries());
                self.construct();
            }
            Action::Bypass => {
                assert!(self.frozen.index && !self.frozen.bypassed, "there is an index to bypass");
                self.frozen.bypassed = true;
            }
            Action::Resume => {
                assert!(self.frozen.index && self.frozen.bypassed, "an index is bypassed");
                self.frozen.bypassed = false;
            }
        }
    }

    fn construct(&mut self) {
        self.frozen.skips_insertions = false;
        let took = Duration::from_nanos(
            (self.frozen.count as f64 * self.machine.construction * 1e3) as u64,
        );
        self.maintenance.pending =
            Some((self.now + took, Done::Constructed { took, entries: self.frozen.count }));
    }

    /// Runs the maintenance thread, which steps the controller if that is due.
    fn look(&mut self) {
        let mut done = None;
        if let Some((at, what)) = self.maintenance.pending
            && self.now >= at
        {
            self.maintenance.pending = None;
            done = Some(what);
            if let Done::Constructed { .. } = what {
                self.frozen.index = true;
                self.frozen.skips_insertions = self.frozen.count == self.entries();
            }
        }
        if done.is_none()
            && self.now < self.maintenance.wake.at
            && self.counts.lookups() < self.maintenance.wake.lookups
        {
            return;
        }
        let seen = Observations {
            now: self.now,
            entries: self.entries(),
            frozen: self.frozen.count,
            capacity: self.capacity as u64,
            threads: u32::from(self.counts.lookups() > 0),
            done,
            ..std::mem::take(&mut self.counts)
        };
        let step = self.controller.step(&seen);
        assert!(
            step.action == Action::Keep
                || step.action == Action::Thaw
                || self.maintenance.pending.is_none(),
            "{:?} while {:?} is under way",
            step.action,
            self.maintenance.pending
        );
        self.maintenance.wake = step.wake;
        self.perform(step.action);
        let phase = self.controller.phase();
        if self.phases.last().is_none_or(|&(_, last)| last != phase) {
            self.phases.push((self.now, phase));
        }
    }

    /// Runs the simulation for some seconds, and returns requests per second.
    pub(crate) fn run(&mut self, seconds: f64) -> f64 {
        let (until, before) = (self.now + Duration::from_secs_f64(seconds), self.requests);
        while self.now < until {
            if self.now >= self.maintenance.tick {
                self.maintenance.tick = self.now + TICK;
                self.look();
            }
            self.request();
        }
        (self.requests - before) as f64 / seconds
    }

    /// Advances the time without requests.
    pub(crate) fn idle(&mut self, seconds: f64) {
        let until = self.now + Duration::from_secs_f64(seconds);
        while self.now < until {
            self.now += TICK;
            self.look();
        }
    }

    /// Returns the hit ratio of all requests since the last call.
    pub(crate) fn take_hit_ratio(&mut self) -> f64 {
        let HitRatio { hits, from } = self.hit_ratio;
        self.hit_ratio = HitRatio { hits: 0, from: self.requests };
        hits as f64 / self.requests.saturating_sub(from) as f64
    }

    /// Returns how often a phase was entered.
    pub(crate) fn times(&self, phase: Phase) -> usize {
        self.phases.iter().filter(|entered| entered.1 == phase).count()
    }

    /// Returns the length of each visit to a phase in seconds.
    pub(crate) fn lengths(&self, phase: Phase) -> Vec<f64> {
        let ends = self.phases.iter().skip(1).map(|next| next.0).chain([self.now]);
        let visits = self.phases.iter().zip(ends).filter(|(visit, _)| visit.1 == phase);
        visits.map(|(visit, end)| (end - visit.0).as_secs_f64()).collect()
    }

    /// Returns the decisions with their reasons, for messages of failing tests.
    pub(crate) fn story(&self) -> String {
        let decisions = self.controller.stats().decisions;
        let lines = decisions
            .iter()
            .map(|one| format!("{:8.2} s {:12} {}\n", one.at.as_secs_f64(), one.phase, one.reason));
        lines.collect()
    }
}
