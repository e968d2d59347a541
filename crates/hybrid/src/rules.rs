//! [`Rule`]: an admission rule as the gate and the trial of it apply it.

use std::collections::VecDeque;

use floe_policy::admission::{Admission as _, Admissions, Orders, Room, Times, Victim, Window};
use floe_policy::{Access, Slot, Tick};

/// Events between two windows of an admission.
const EVENTS_PER_WINDOW: u64 = 256;
/// Number of evicted objects that are remembered as rivals of candidates.
const RIVALS: usize = 64;

/// An object that could be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) hash: u64,
    /// Bytes that it takes in the log.
    pub(crate) bytes: u64,
    /// Requests that memory has answered.
    pub(crate) uses: u8,
    /// Requests of late, these included.
    pub(crate) requests: u8,
}

/// The popularity that an object needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    /// Requests of late.
    requests: u8,
    /// Offers that are admitted, of [`OFFERS`]. An object that is offered often gets in.
    offers: u64,
}

const OFFERS: u64 = 8;

/// The levels of popularity, from the loosest, which admits everything.
pub(crate) const LEVELS: [Level; 5] = [
    Level { requests: 0, offers: OFFERS },
    Level { requests: 1, offers: OFFERS },
    Level { requests: 2, offers: OFFERS },
    Level { requests: 3, offers: OFFERS },
    Level { requests: 3, offers: 2 },
];

impl Level {
    /// Returns whether an object with this many requests is admitted. `judged` is the number of
    /// objects judged so far, from which a coin is drawn.
    pub(crate) fn admits(self, requests: u8, judged: u64) -> bool {
        requests >= self.requests && floe_policy::mix(judged) % OFFERS < self.offers
    }
}

/// A rule that admits objects to flash.
#[derive(Debug)]
pub(crate) enum Rule {
    Everything,
    /// Objects as popular as this level asks for, and the number of objects judged.
    Popular(Level, u64),
    /// An admission of `floe_policy`.
    Policy(Box<PolicyRule>),
}

impl Rule {
    /// Returns whether an object is admitted.
    pub(crate) fn judge(&mut self, candidate: &Candidate) -> bool {
        match self {
            Self::Everything => true,
            Self::Popular(level, judged) => {
                *judged += 1;
                level.admits(candidate.requests, *judged)
            }
            Self::Policy(policy) => policy.judge(candidate),
        }
    }

    /// Notes a lookup of an object that is not in memory, with its bytes if flash has it.
    pub(crate) fn looked_up(&mut self, hash: u64, found: Option<u64>) {
        if let Self::Policy(policy) = self {
            policy.looked_up(hash, found);
        }
    }

    /// Notes that an object left flash.
    pub(crate) fn evicted(&mut self, hash: u64) {
        if let Self::Policy(policy) = self {
            policy.evicted(hash);
        }
    }

    /// Sets the measured cost of a byte written, in bytes read.
    pub(crate) fn set_write_cost(&mut self, cost: f64) {
        if let Self::Policy(policy) = self {
            policy.window.times = Times { write_cost: Some(cost), ..Times::default() };
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Policy(policy) => size_of::<PolicyRule>() + policy.admission.memory_bytes(),
            _ => 0,
        }
    }
}

/// An admission of `floe_policy`, and the counts that it needs.
#[derive(Debug)]
pub(crate) struct PolicyRule {
    admission: Admissions,
    window: Window,
    events: u64,
    /// Mean bytes of the objects of late, for lookups whose object is unknown.
    mean_bytes: f64,
    /// Hashes of objects that left flash last.
    rivals: VecDeque<u64>,
}

impl PolicyRule {
    /// Creates the rule for a share of `2^-bits` of a cache of this room.
    pub(crate) fn new(mut admission: Admissions, room: &Room, bits: u32) -> Self {
        if bits > 0 {
            admission.split(0, 1 << bits.min(30));
        }
        let share = |whole: u64| (whole >> bits).max(1);
        admission.reserve(&Room {
            entries: share(room.entries as u64) as usize,
            weight: share(room.weight),
            above: share(room.above),
        });
        let mean_bytes = room.weight as f64 / room.entries.max(1) as f64;
        let window = Window::default();
        let rivals = VecDeque::with_capacity(RIVALS);
        Self { admission, window, events: 0, mean_bytes, rivals }
    }

    fn access(&self, hash: u64, bytes: u64) -> Access {
        Access { weight: bytes.min(u64::from(u32::MAX)) as u32, ..Access::new(hash) }
    }

    fn looked_up(&mut self, hash: u64, found: Option<u64>) {
        let bytes = found.unwrap_or(self.mean_bytes as u64);
        self.window.lookups.blocks += 1;
        self.window.lookups.bytes += bytes;
        if found.is_some() {
            self.window.hits.blocks += 1;
            self.window.hits.bytes += bytes;
            self.admission.used(&self.access(hash, bytes));
        }
        self.tick();
    }

    fn judge(&mut self, candidate: &Candidate) -> bool {
        let Candidate { hash, bytes, uses, .. } = *candidate;
        self.mean_bytes += (bytes as f64 - self.mean_bytes) / 256.0;
        for _ in 0..uses {
            self.admission.used(&self.access(hash, bytes));
        }
        // None before the first eviction: there is room.
        let victim = self.rivals.pop_front().map(|hash| Victim { slot: Slot(0), hash });
        self.rivals.extend(victim.map(|victim| victim.hash)); // for a later candidate
        let admits = self.admission.admit(&self.access(hash, bytes), victim.as_ref()).admits();
        if admits {
            self.window.inserted.blocks += 1;
            self.window.inserted.bytes += bytes;
        }
        self.tick();
        admits
    }

    fn evicted(&mut self, hash: u64) {
        if self.rivals.len() == RIVALS {
            self.rivals.pop_front();
        }
        self.rivals.push_back(hash);
        // The log frees whole segments, which writes nothing.
        self.window.removed.blocks += 1;
    }

    fn tick(&mut self) {
        self.events += 1;
        if self.events.is_multiple_of(EVENTS_PER_WINDOW) {
            let window = std::mem::take(&mut self.window);
            self.admission.observe(&window);
            self.admission.tick(Tick(self.events / EVENTS_PER_WINDOW), &mut Orders::default());
        }
    }
}
