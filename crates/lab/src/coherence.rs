//! Simulates cores that share a cache, by the cache lines that their requests pass between them:
//! the output of `floe coherence`.
//!
//! Each core makes one request after the other. A request works, reads lines and writes lines, in
//! the order of the cache's code (`requests`). A core that reads a line which another core has
//! written fetches it; a core that writes takes the line from all others, and one line goes to one
//! core at a time. Both take the time of a transfer. Locks, loops of compare-and-swap and their
//! pauses come from that; nothing else slows a core down.
//!
//! The protocol is MESI with two distances: to a core of the same group, with which a core shares a
//! cache, and to any other. Times are counted in picoseconds, and a run is a function of its
//! settings and seed. Cores have a line in the order in which they ask for it, so more
//! compare-and-swaps fail than where a processor lets its last owner go first; without `retries`
//! none fails, and the truth lies between the two.
//!
//! Left out: more distances, the bandwidth of the interconnect, prefetching, lines evicted from a
//! core's own cache, threads that sleep at a lock or lose their core, and the overlap of several
//! transfers of one request. A lock goes to the waiter that has waited for longest.

mod measure;
mod requests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use thiserror::Error;

pub use measure::measure;
pub use requests::{CACHES, SharedCache};
use requests::{Progress, World};

/// Maximum number of cores.
pub const CORES_MAX: u32 = 512;

/// Maximum number of keys.
pub const KEYS_MAX: u32 = 1 << 24;

/// Share of the requests of a run that are not counted, as a fraction.
const WARM_UP: u64 = 5;

/// Times of a machine, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Machine {
    /// Time until a core has a line that another core of its group has written.
    pub transfer_ns: f64,
    /// The same from a core of another group.
    pub far_ns: f64,
    /// Number of cores in a group.
    pub group: u32,
    /// Time of one pause in a loop that waits.
    pub pause_ns: f64,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The simulated cache.
    pub cache: &'static SharedCache,
    /// Times of the machine.
    pub machine: Machine,
    /// Number of cores, each with one thread.
    pub cores: u32,
    /// Number of keys, which Zipf's law chooses from.
    pub keys: u32,
    /// Exponent of Zipf's law.
    pub theta: f64,
    /// Share of requests that hit. Keys that miss are all as likely.
    pub hit_ratio: f64,
    /// Number of shards; `None` for the default of the cache on a machine with these cores.
    pub shards: Option<u32>,
    /// Time of a hit on one core in nanoseconds, in place of the measured one.
    pub hit_ns: Option<f64>,
    /// False to let every compare-and-swap succeed, which bounds the throughput from above: fair
    /// turns at a line make more of them fail than a processor that favours the last owner.
    pub retries: bool,
    /// Number of requests to simulate.
    pub requests: u64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Coherence {
    /// Name of the cache.
    pub cache: &'static str,
    /// Number of cores.
    pub cores: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of keys.
    pub keys: u32,
    /// Share of requests that hit.
    pub hit_ratio: f64,
    /// Time of a transfer within a group of cores in nanoseconds.
    pub transfer_ns: f64,
    /// Time of a transfer between groups in nanoseconds.
    pub far_ns: f64,
    /// Million requests a second, of all cores together.
    pub mrps: f64,
    /// Mean time of a request on its core, in nanoseconds.
    pub request_ns: f64,
    /// Lines that came from another core or were taken from others, for each request.
    pub transfers_per_request: f64,
    /// Compare-and-swap operations that failed, for each request.
    pub retries_per_request: f64,
}

/// A setting that cannot be simulated.
#[derive(Debug, Error)]
pub enum CoherenceError {
    /// Two cores were hardly ever free at the same time.
    #[error("cannot measure a transfer: two cores were not free at the same time; try again")]
    Busy,
    /// No cache has this name.
    #[error("no cache `{name}`; there are {}", requests::names())]
    Unknown {
        /// The given name.
        name: String,
    },
    /// A number is out of its range.
    #[error("{what} must be {range}, not {given}")]
    Range {
        /// The setting.
        what: &'static str,
        /// The allowed range in words.
        range: String,
        /// The given number.
        given: f64,
    },
}

impl Setting {
    fn check(&self) -> Result<(), CoherenceError> {
        let checks = [
            ("the number of cores", f64::from(self.cores), 1.0, f64::from(CORES_MAX)),
            ("the number of keys", f64::from(self.keys), 1.0, f64::from(KEYS_MAX)),
            ("the exponent of Zipf's law", self.theta, 0.0, 5.0),
            ("the hit ratio", self.hit_ratio, 0.0, 1.0),
            ("the time of a transfer in ns", self.machine.transfer_ns, 0.0, 1e5),
            ("the time of a far transfer in ns", self.machine.far_ns, 0.0, 1e5),
            ("the number of cores in a group", f64::from(self.machine.group), 1.0, 512.0),
            ("the time of a pause in ns", self.machine.pause_ns, 0.0, 1e5),
            ("the time of a hit in ns", self.hit_ns.unwrap_or(1.0), 0.1, 1e6),
            ("the number of shards", self.shards.map_or(1.0, f64::from), 1.0, 65_536.0),
            ("the number of requests", self.requests as f64, 100.0, 1e9),
        ];
        for (what, given, least, most) in checks {
            if !(least..=most).contains(&given) {
                return Err(CoherenceError::Range {
                    what,
                    range: format!("{least} to {most}"),
                    given,
                });
            }
        }
        Ok(())
    }
}

/// Simulates one cache on a number of cores.
///
/// # Errors
/// A number of the setting is out of range.
pub fn simulate(setting: &Setting) -> Result<Coherence, CoherenceError> {
    setting.check()?;
    Ok(CoreSimulation::new(setting).run())
}

/// A cache line, by number; [`requests`] numbers them.
type LineId = u64;

/// One step of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LineStep {
    /// Works for this many nanoseconds with lines that the core has.
    Work(f64),
    /// Waits for this many pauses.
    Pause(u32),
    /// Reads a line.
    Read(LineId),
    /// Reads a line and remembers its version for [`LineStep::Swap`] and [`LineStep::Reread`].
    Watch(LineId),
    /// Reads a line; succeeds if it still has the remembered version.
    Reread(LineId),
    /// Writes a line without waiting for it: the store waits in the core's buffer.
    Store(LineId),
    /// Writes a line that has to be read before, or by a read-modify-write.
    Update(LineId),
    /// Compare-and-swap; succeeds if the line still has the remembered version.
    Swap(LineId),
    /// Swap that also takes a lock for reading; waits while a writer has it.
    SwapToShare(LineId),
    /// Returns a lock that was taken for reading.
    Unshare(LineId),
    /// Takes a lock alone, waiting in line.
    Lock(LineId),
    /// Takes a lock alone if it is free; succeeds if so.
    TryLock(LineId),
    /// Returns a lock that was taken alone.
    Unlock(LineId),
    /// Ends the request.
    End,
}

/// A line, and the cores that have it.
#[derive(Debug, Clone)]
struct Line {
    /// A bit for each core.
    holders: [u64; CORES_MAX as usize / 64],
    /// A single core has it and may write it.
    is_exclusive: bool,
    /// Time from which the line can go to the next core.
    free_at: u64,
    /// Number of writes.
    version: u64,
}

impl Line {
    const NEW: Self =
        Self { holders: [0; CORES_MAX as usize / 64], is_exclusive: false, free_at: 0, version: 0 };

    fn has(&self, core: usize) -> bool {
        self.holders[core / 64] >> (core % 64) & 1 == 1
    }

    fn add(&mut self, core: usize) {
        self.holders[core / 64] |= 1 << (core % 64);
    }

    /// Returns whether another core of the group of `core` has the line, and whether a core of
    /// another group has it.
    fn held(&self, core: usize, group: u32) -> [bool; 2] {
        let begin = core - core % group as usize;
        let end = (begin + group as usize).min(CORES_MAX as usize);
        let all: u32 = self.holders.iter().map(|bits| bits.count_ones()).sum();
        let of_group = (begin..end).filter(|&other| self.has(other)).count() as u32;
        [of_group > u32::from(self.has(core)), all > of_group]
    }

    fn is_new(&self) -> bool {
        self.holders.iter().all(|&bits| bits == 0)
    }
}

/// Holders of a lock, and cores that wait for it in their order.
#[derive(Debug, Default)]
struct LockState {
    is_alone: bool,
    readers: u32,
    /// A core, and whether it wants the lock alone.
    waiting: VecDeque<(usize, bool)>,
}

struct CoreSimulation<'a> {
    setting: &'a Setting,
    world: World,
    cores: Vec<Progress>,
    /// Time until which the stores of each core are buffered.
    buffered: Vec<u64>,
    lines: HashMap<LineId, Line, foldhash::fast::FixedState>,
    locks: HashMap<LineId, LockState, foldhash::fast::FixedState>,
    /// Time, an ascending number that keeps equal times in order, and the core.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    number: u64,
    random: SmallRng,
    transfers: u64,
    retries: u64,
}

const PICOSECONDS: f64 = 1000.0;

impl<'a> CoreSimulation<'a> {
    fn new(setting: &'a Setting) -> Self {
        let mut random = SmallRng::seed_from_u64(setting.seed);
        let cores = setting.cores as usize;
        let mut simulation = Self {
            setting,
            world: World::new(setting),
            cores: vec![Progress::default(); cores],
            buffered: vec![0; cores],
            lines: HashMap::default(),
            locks: HashMap::default(),
            events: BinaryHeap::new(),
            number: 0,
            random: SmallRng::seed_from_u64(random.random()),
            transfers: 0,
            retries: 0,
        };
        for core in 0..cores {
            let start = (random.random::<f64>() * 1000.0 * PICOSECONDS) as u64;
            simulation.resume(core, start);
        }
        simulation
    }

    fn resume(&mut self, core: usize, at: u64) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, core)));
    }

    fn run(mut self) -> Coherence {
        let Setting { cache, machine, cores, keys, hit_ratio, requests, .. } = *self.setting;
        let warm_up = requests / WARM_UP;
        let (mut ended, mut began_at, mut now) = (0, 0, 0);
        while ended < requests {
            let Some(Reverse((at, _, core))) = self.events.pop() else {
                unreachable!("a core waits only for one that goes on");
            };
            now = at;
            let mut progress = std::mem::take(&mut self.cores[core]);
            let step = cache.next(&mut progress, &mut self.world, &mut self.random);
            self.cores[core] = progress;
            if step == LineStep::End {
                ended += 1;
                if ended == warm_up {
                    (began_at, self.transfers, self.retries) = (now, 0, 0);
                }
            }
            if let Some(next) = self.perform(core, step, now) {
                self.resume(core, next);
            }
        }
        let counted = (requests - warm_up) as f64;
        let mrps = counted / ((now - began_at) as f64 / PICOSECONDS) * 1000.0;
        Coherence {
            cache: cache.name,
            cores,
            shards: self.world.shards,
            keys,
            hit_ratio,
            transfer_ns: machine.transfer_ns,
            far_ns: machine.far_ns,
            mrps,
            request_ns: f64::from(cores) / mrps * 1000.0,
            transfers_per_request: self.transfers as f64 / counted,
            retries_per_request: self.retries as f64 / counted,
        }
    }

    /// Carries a step out and returns the time at which the core goes on; `None` if it waits.
    fn perform(&mut self, core: usize, step: LineStep, now: u64) -> Option<u64> {
        let at = match step {
            // A fifth more or less, so that cores do not stay in step.
            LineStep::Work(ns) => {
                now + (ns * (0.8 + 0.4 * self.random.random::<f64>()) * PICOSECONDS) as u64
            }
            LineStep::Pause(pauses) => {
                now + (f64::from(pauses) * self.setting.machine.pause_ns * PICOSECONDS) as u64
            }
            LineStep::End => now,
            LineStep::Read(line) => self.read(core, line, now),
            LineStep::Watch(line) => {
                let at = self.read(core, line, now);
                self.cores[core].seen = self.line(line).version;
                at
            }
            LineStep::Reread(line) => {
                let at = self.read(core, line, now);
                self.cores[core].succeeded = self.line(line).version == self.cores[core].seen;
                self.cores[core].seen = self.line(line).version;
                at
            }
            LineStep::Store(line) => {
                let at = self.take(core, line, now.max(self.buffered[core]));
                self.line(line).version += 1;
                self.buffered[core] = at;
                now
            }
            LineStep::Update(line) => {
                let at = self.take(core, line, now.max(self.buffered[core]));
                self.line(line).version += 1;
                at
            }
            LineStep::Swap(line) => self.swap(core, line, now),
            LineStep::SwapToShare(line) => return self.swap_to_share(core, line, now),
            LineStep::Unshare(line) => {
                let at = self.take(core, line, now.max(self.buffered[core]));
                self.line(line).version += 1;
                let lock = self.locks.entry(line).or_default();
                lock.readers -= 1;
                if lock.readers == 0 {
                    self.wake(line, at);
                }
                at
            }
            LineStep::Lock(line) => {
                let lock = self.locks.entry(line).or_default();
                if lock.is_alone || lock.readers > 0 || !lock.waiting.is_empty() {
                    lock.waiting.push_back((core, true));
                    // It has tried, and so taken the line from the holder.
                    self.take(core, line, now.max(self.buffered[core]));
                    return None;
                }
                lock.is_alone = true;
                self.line(line).version += 1;
                self.take(core, line, now.max(self.buffered[core]))
            }
            LineStep::TryLock(line) => {
                let at = self.read(core, line, now);
                let lock = self.locks.entry(line).or_default();
                self.cores[core].succeeded = !lock.is_alone;
                if lock.is_alone {
                    return Some(at);
                }
                lock.is_alone = true;
                self.line(line).version += 1;
                self.take(core, line, at.max(self.buffered[core]))
            }
            LineStep::Unlock(line) => {
                let at = self.take(core, line, now.max(self.buffered[core]));
                self.line(line).version += 1;
                self.locks.entry(line).or_default().is_alone = false;
                self.wake(line, at);
                at
            }
        };
        Some(at)
    }

    /// Compares and swaps: the core takes the line even where the swap fails.
    fn swap(&mut self, core: usize, line: LineId, now: u64) -> u64 {
        let at = self.take(core, line, now.max(self.buffered[core]));
        let (seen, retries) = (self.cores[core].seen, self.setting.retries);
        let state = self.line(line);
        let succeeded = state.version == seen || !retries;
        state.version += u64::from(succeeded);
        // What a failed swap returns is what the line holds.
        let seen = state.version;
        self.cores[core].succeeded = succeeded;
        self.cores[core].seen = seen;
        self.retries += u64::from(!succeeded);
        at
    }

    fn swap_to_share(&mut self, core: usize, line: LineId, now: u64) -> Option<u64> {
        let lock = self.locks.entry(line).or_default();
        if lock.is_alone || !lock.waiting.is_empty() {
            lock.waiting.push_back((core, false));
            self.take(core, line, now.max(self.buffered[core])); // as above: it has tried
            return None;
        }
        let at = self.swap(core, line, now);
        if self.cores[core].succeeded {
            self.locks.entry(line).or_default().readers += 1;
        }
        Some(at)
    }

    /// Gives a free lock to the first that waits, and to all readers right behind a reader.
    fn wake(&mut self, line: LineId, now: u64) {
        let mut at = now;
        loop {
            let lock = self.locks.entry(line).or_default();
            let Some(&(core, is_alone)) = lock.waiting.front() else { return };
            if lock.is_alone || is_alone && lock.readers > 0 {
                return;
            }
            lock.waiting.pop_front();
            lock.is_alone = is_alone;
            lock.readers += u32::from(!is_alone);
            at = self.take(core, line, at.max(self.buffered[core]));
            self.line(line).version += 1;
            self.cores[core].succeeded = true;
            self.resume(core, at);
        }
    }

    fn line(&mut self, line: LineId) -> &mut Line {
        self.lines.entry(line).or_insert(Line::NEW)
    }

    /// Returns the times of a transfer within a group and between groups.
    fn transfers(&self) -> [u64; 2] {
        let Machine { transfer_ns, far_ns, .. } = self.setting.machine;
        [transfer_ns, far_ns].map(|ns| (ns * PICOSECONDS) as u64)
    }

    /// Returns the time at which the core can read the line.
    fn read(&mut self, core: usize, line: LineId, now: u64) -> u64 {
        let ([near, far], group) = (self.transfers(), self.setting.machine.group);
        let state = self.line(line);
        if state.has(core) {
            // Its own transfer of the line may still be under way.
            return if state.is_exclusive { now.max(state.free_at) } else { now };
        }
        let is_new = state.is_new();
        let [of_group, _] = state.held(core, group);
        let transfer = if of_group { near } else { far };
        state.add(core);
        if is_new {
            // Nobody has written it in this run: it comes from memory once, which is not counted.
            return now;
        }
        let start = now.max(state.free_at);
        if state.is_exclusive {
            // The writer passes it on once; after that any number can fetch it at the same time.
            state.is_exclusive = false;
            state.free_at = start + transfer;
        }
        self.transfers += 1;
        start + transfer
    }

    /// Returns the time at which the core alone has the line.
    fn take(&mut self, core: usize, line: LineId, now: u64) -> u64 {
        let ([near, far], group) = (self.transfers(), self.setting.machine.group);
        let state = self.line(line);
        let is_alone = state.is_exclusive && state.has(core);
        let is_new = state.is_new();
        if is_alone || is_new {
            state.add(core);
            state.is_exclusive = true;
            return now.max(state.free_at);
        }
        let [_, elsewhere] = state.held(core, group);
        let at = now.max(state.free_at) + if elsewhere { far } else { near };
        state.holders = Line::NEW.holders;
        state.add(core);
        state.is_exclusive = true;
        state.free_at = at;
        self.transfers += 1;
        at
    }
}

#[cfg(test)]
mod tests;
