//! The requests of each simulated cache, as steps on cache lines.
//!
//! The order of the steps is that of the caches' code, read; the number of shared lines and of
//! read-modify-writes is counted on their machine code (`rivals`, `shared_lines`), and the times on
//! one core are those of docs/results/memory.md. Only lines that requests write are steps: a line
//! that all only read stays with every core.

use rand::Rng;
use rand::rngs::SmallRng;

use super::{CoherenceError, LineId, LineStep, Setting};

/// A cache that can be simulated.
#[derive(Debug)]
pub struct SharedCache {
    /// Name of the cache.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Time of a hit on one core in nanoseconds.
    pub hit_ns: f64,
    /// Time of a miss with its insertion on one core, in nanoseconds.
    pub miss_ns: f64,
    /// Number of shards on a machine with this number of cores, for this number of entries.
    shards: fn(u32, u32) -> u32,
    /// Carries on with a request.
    request: fn(&SharedCache, &mut Progress, &mut World, &mut SmallRng) -> LineStep,
}

/// All caches.
pub static CACHES: [SharedCache; 5] = [
    SharedCache {
        name: "floe",
        about: "Floe with its default policy, QD-CLOCK: hits take no lock",
        hit_ns: 8.9,
        miss_ns: 95.0,
        shards: floe_shards,
        request: floe,
    },
    SharedCache {
        name: "floe-lru",
        about: "Floe with LRU: a hit moves its entry under the lock of its shard",
        hit_ns: 25.3,
        miss_ns: 80.0,
        shards: floe_shards,
        request: floe_lru,
    },
    SharedCache {
        name: "quick_cache",
        about: "quick_cache 0.7: a hit takes the lock of its shard for reading",
        hit_ns: 9.1,
        miss_ns: 71.0,
        shards: quick_cache_shards,
        request: quick_cache,
    },
    SharedCache {
        name: "moka",
        about: "moka 0.12: a hit is sent to one channel, which readers drain",
        hit_ns: 94.0,
        miss_ns: 841.0,
        shards: |_, _| 1,
        request: moka,
    },
    SharedCache {
        name: "mutex-lru",
        about: "the crate lru behind one mutex",
        hit_ns: 11.6,
        miss_ns: 79.0,
        shards: |_, _| 1,
        request: mutex_lru,
    },
];

/// Returns the names of all caches, for messages.
pub(super) fn names() -> String {
    CACHES.iter().map(|cache| cache.name).collect::<Vec<_>>().join(", ")
}

impl SharedCache {
    /// Returns the cache with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<&'static Self, CoherenceError> {
        CACHES
            .iter()
            .find(|cache| cache.name == name)
            .ok_or_else(|| CoherenceError::Unknown { name: name.to_owned() })
    }

    /// Returns the next step of a core.
    pub(super) fn next(
        &self,
        core: &mut Progress,
        world: &mut World,
        random: &mut SmallRng,
    ) -> LineStep {
        if core.at == 0 {
            core.hits = random.random::<f64>() < world.hit_ratio;
            // Popular keys are in the cache; those that miss are seldom asked for.
            core.key =
                if core.hits { world.draw(random) } else { random.random_range(0..world.keys) };
            core.spins = 0;
        }
        let step = (self.request)(self, core, world, random);
        if step == LineStep::End {
            core.at = 0;
        }
        step
    }
}

/// Progress of a core within its request.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Place in the request; 0 at its begin.
    at: u16,
    key: u32,
    hits: bool,
    /// Version of the watched line.
    pub(super) seen: u64,
    /// Result of the last step that can fail.
    pub(super) succeeded: bool,
    /// Failures of the present loop.
    spins: u32,
    /// Messages that are left to be received, and lines to be written.
    left: u32,
    /// Repetitions of a drain that are left.
    rounds: u32,
}

impl Progress {
    /// Returns a step, and goes on at another place after it.
    fn then(&mut self, at: u16, step: LineStep) -> LineStep {
        self.at = at;
        step
    }
}

/// State that the requests of all cores share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) shards: u32,
    keys: u32,
    hit_ratio: f64,
    /// Time of hits, as a multiple of the measured one.
    scale: f64,
    /// Sums of the weights of the keys, the most popular first.
    sums: Vec<f64>,
    /// Messages that were sent to moka's channel of reads, and received from it.
    sent: u64,
    received: u64,
}

impl World {
    pub(super) fn new(setting: &Setting) -> Self {
        let mut sum = 0.0;
        let weights = (1..=setting.keys).map(|rank| {
            sum += f64::from(rank).powf(-setting.theta);
            sum
        });
        let sums = weights.collect();
        let shards = (setting.cache.shards)(setting.cores, 2 * setting.keys);
        Self {
            shards: setting.shards.unwrap_or(shards),
            keys: setting.keys,
            hit_ratio: setting.hit_ratio,
            scale: setting.hit_ns.map_or(1.0, |ns| ns / setting.cache.hit_ns),
            sums,
            sent: 0,
            received: 0,
        }
    }

    fn draw(&self, random: &mut SmallRng) -> u32 {
        let drawn = random.random::<f64>() * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|&up_to| up_to < drawn).min(self.sums.len() - 1) as u32
    }

    /// A line of the shard of a key.
    fn of_shard(&self, key: u32, line: u64) -> LineId {
        // Scattered, so that popular keys do not share a shard by their rank.
        let scattered = (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        SHARDS + scattered % u64::from(self.shards) * PER_SHARD + line
    }

    /// The line of an entry, of its own.
    fn of_entry(key: u32, line: u64) -> LineId {
        ENTRIES + u64::from(key) * PER_ENTRY + line
    }

    /// The line of any entry.
    fn of_any(&self, line: u64, random: &mut SmallRng) -> LineId {
        Self::of_entry(random.random_range(0..self.keys), line)
    }

    /// The line of the place of a message in moka's channel.
    fn of_message(number: u64) -> LineId {
        MESSAGES + number % CHANNEL / MESSAGES_PER_LINE
    }

    fn hit(&self, cache: &SharedCache) -> f64 {
        cache.hit_ns * self.scale
    }

    fn miss(&self, cache: &SharedCache) -> f64 {
        cache.miss_ns * self.scale
    }
}

// Numbers of lines.
const TAIL: LineId = 0;
const HEAD: LineId = 1;
const HOUSEKEEPER: LineId = 2;
const RUN_AFTER: LineId = 3;
const QUEUES: LineId = 4;
const WRITES: LineId = 5;
const MESSAGES: LineId = 1 << 10;
const SKETCH: LineId = 1 << 12;
const SHARDS: LineId = 1 << 20;
const PER_SHARD: u64 = 16;
const ENTRIES: LineId = 1 << 32;
const PER_ENTRY: u64 = 4;

/// Four shards a core, a power of two, where each has 160 entries.
fn floe_shards(cores: u32, entries: u32) -> u32 {
    let most = 1 << (entries / 160).max(1).ilog2();
    (cores * 4).next_power_of_two().min(most)
}

/// Four shards a core, a power of two, where each has 32 entries.
fn quick_cache_shards(cores: u32, entries: u32) -> u32 {
    let mut shards = (cores * 4).next_power_of_two();
    while shards > 1 && entries.div_ceil(shards) < 32 {
        shards /= 2;
    }
    shards
}

/// Share of QD-CLOCK's hits that write their mark where entries are evicted; where none are, no hit
/// does. Counted at a hit ratio of 0.65 (docs/results/memory.md).
const MARKS_WRITTEN: f64 = 0.18;

/// Marks in one line.
const MARKS_PER_LINE: u32 = 64;

fn floe(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    let evicts = world.hit_ratio < 1.0;
    let mark = World::of_entry(core.key / MARKS_PER_LINE, MARK);
    match core.at {
        0 if core.hits => {
            core.then(if evicts { 1 } else { DONE }, LineStep::Work(world.hit(cache)))
        }
        // The bucket of the index, the entry and its mark: insertions and other hits write them.
        1 => core.then(2, LineStep::Read(World::of_entry(core.key, BUCKET))),
        2 => core.then(3, LineStep::Read(World::of_entry(core.key, ENTRY))),
        3 => core.then(4, LineStep::Read(mark)),
        4 if random.random::<f64>() < MARKS_WRITTEN => core.then(DONE, LineStep::Store(mark)),
        _ => insertion(cache, core, world, random),
    }
}

/// Lines of an entry.
const BUCKET: u64 = 0;
const ENTRY: u64 = 1;
const MARK: u64 = 2;
const LINKS: u64 = 3;

/// Place at which a request ends.
const DONE: u16 = u16::MAX;
/// Place of an insertion behind its lock.
const INSERT: u16 = 100;
/// Place of an insertion whose lookup has taken a lock of its own.
const FOUND_NONE: u16 = 99;

/// Lines that an insertion of Floe writes below its lock: those of the shard, and those of entries
/// that others use, too.
const FLOE_INSERTION: (u32, u32) = (12, 6);

/// A miss with its insertion: a lock, lines of the shard, and lines of entries.
fn insertion(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    let miss = world.miss(cache);
    let lock = world.of_shard(core.key, 0);
    let (of_shard, of_entries) = match cache.name {
        "quick_cache" => QUICK_CACHE_INSERTION,
        "mutex-lru" => MUTEX_LRU_INSERTION,
        _ => FLOE_INSERTION,
    };
    match core.at {
        0 => core.then(INSERT, LineStep::Work(0.4 * miss)),
        FOUND_NONE => core.then(INSERT, LineStep::Work(0.2 * miss)),
        INSERT => {
            core.left = of_shard + of_entries;
            core.then(INSERT + 1, LineStep::Lock(lock))
        }
        101 if core.left > of_entries => {
            core.left -= 1;
            let line = u64::from(core.left - of_entries) + 1;
            core.then(101, LineStep::Update(world.of_shard(core.key, line)))
        }
        101 if core.left > 0 => {
            core.left -= 1;
            // The first are of the new entry, the others of the evicted one and its neighbours.
            let line = u64::from(core.left) % PER_ENTRY;
            let own = core.left < 2;
            let entry =
                if own { World::of_entry(core.key, line) } else { world.of_any(line, random) };
            core.then(101, LineStep::Update(entry))
        }
        101 => core.then(102, LineStep::Work(0.4 * miss)),
        102 => core.then(103, LineStep::Unlock(lock)),
        103 => core.then(DONE, LineStep::Work(0.2 * miss)),
        _ => LineStep::End,
    }
}

/// Moves an entry to the head of a list below a lock: its own links, those of two neighbours, the
/// list's head, and the entry that was there.
fn move_to_head(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
    own_line: u64,
) -> LineStep {
    let hit = world.hit(cache);
    let lock = world.of_shard(core.key, 0);
    match core.at {
        0 => core.then(1, LineStep::Work(0.4 * hit)),
        1 => core.then(2, LineStep::Lock(lock)),
        2 => core.then(3, LineStep::Update(World::of_entry(core.key, own_line))),
        3 => core.then(4, LineStep::Update(world.of_any(own_line, random))),
        4 => core.then(5, LineStep::Update(world.of_any(own_line, random))),
        5 => core.then(6, LineStep::Update(world.of_shard(core.key, 1))),
        // The entry at the head is the one that the last request moved there.
        6 => core.then(7, LineStep::Update(world.of_shard(core.key, 2))),
        7 => core.then(8, LineStep::Work(0.4 * hit)),
        8 => core.then(9, LineStep::Unlock(lock)),
        9 => core.then(DONE, LineStep::Work(0.2 * hit)),
        _ => LineStep::End,
    }
}

fn floe_lru(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    if core.hits {
        move_to_head(cache, core, world, random, LINKS)
    } else {
        insertion(cache, core, world, random)
    }
}

const MUTEX_LRU_INSERTION: (u32, u32) = (4, 5);

fn mutex_lru(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    if core.hits {
        return move_to_head(cache, core, world, random, ENTRY);
    }
    let lock = world.of_shard(core.key, 0);
    match core.at {
        // The lookup takes the lock, too.
        0 => core.then(1, LineStep::Work(0.1 * world.miss(cache))),
        1 => core.then(2, LineStep::Lock(lock)),
        2 => core.then(3, LineStep::Work(0.1 * world.miss(cache))),
        3 => core.then(FOUND_NONE, LineStep::Unlock(lock)),
        _ => insertion(cache, core, world, random),
    }
}

const QUICK_CACHE_INSERTION: (u32, u32) = (6, 8);

/// Pauses of parking_lot between two tries to share a lock: 2, 4, … 1,024.
const SHARING_SPINS_MAX: u32 = 10;

fn quick_cache(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    // A lookup that finds nothing takes the lock for reading, too.
    let lookup = if core.hits { world.hit(cache) } else { 0.25 * world.miss(cache) };
    let lock = world.of_shard(core.key, 0);
    match core.at {
        0 => core.then(1, LineStep::Work(0.4 * lookup)),
        1 => core.then(2, LineStep::Watch(lock)),
        2 => core.then(3, LineStep::SwapToShare(lock)),
        3 if !core.succeeded => {
            core.spins += 1;
            // The second try follows at once.
            let pauses =
                if core.spins == 1 { 0 } else { 1 << (core.spins - 1).min(SHARING_SPINS_MAX) };
            core.then(1, LineStep::Pause(pauses))
        }
        // The shard's fields lie beside its lock.
        3 => core.then(4, LineStep::Read(lock)),
        4 => core.then(5, LineStep::Work(0.4 * lookup)),
        5 if world.hit_ratio < 1.0 => {
            core.then(6, LineStep::Read(World::of_entry(core.key, ENTRY)))
        }
        5 | 6 => core.then(7, LineStep::Unshare(lock)),
        7 if core.hits => core.then(DONE, LineStep::Work(0.2 * lookup)),
        7 => core.then(FOUND_NONE, LineStep::Work(0.0)),
        _ => insertion(cache, core, world, random),
    }
}

/// Messages that moka's channel holds, and from which on readers drain it.
const CHANNEL: u64 = 384;
const FLUSH_POINT: u64 = 64;
/// A message has 40 bytes.
const MESSAGES_PER_LINE: u64 = 2;
/// Drains of one holder of the lock, one after the other, at most.
const DRAINS: u32 = 4;
/// Lines of the sketch of frequencies.
const SKETCH_LINES: u64 = 64;
/// Pauses of the channel after a failed try: 1, 2, … 64.
const SENDING_SPINS_MAX: u32 = 6;
/// Shares of a hit's time: before its message, behind it, and for a message that is drained.
const MOKA_BEFORE: f64 = 0.45;
const MOKA_AFTER: f64 = 0.19;
const MOKA_DRAIN: f64 = 0.36;

fn moka(
    cache: &SharedCache,
    core: &mut Progress,
    world: &mut World,
    random: &mut SmallRng,
) -> LineStep {
    let time = if core.hits { world.hit(cache) } else { world.miss(cache) };
    let entry = World::of_entry(core.key, ENTRY);
    match core.at {
        0 => core.then(1, LineStep::Work(MOKA_BEFORE * time)),
        // The count of references.
        1 => core.then(2, LineStep::Update(entry)),
        // The length of the channel: the tail, the head, and the tail once more.
        2 => core.then(3, LineStep::Watch(TAIL)),
        3 => core.then(4, LineStep::Read(HEAD)),
        4 => core.then(5, LineStep::Reread(TAIL)),
        5 if !core.succeeded => core.then(4, LineStep::Read(HEAD)),
        5 => core.then(6, LineStep::Read(RUN_AFTER)),
        6 if world.sent - world.received >= FLUSH_POINT => {
            core.then(7, LineStep::TryLock(HOUSEKEEPER))
        }
        6 => core.then(10, LineStep::Watch(TAIL)),
        7 if core.succeeded => {
            core.rounds = DRAINS;
            core.then(20, LineStep::Update(QUEUES))
        }
        7 => core.then(10, LineStep::Watch(TAIL)),
        10 => core.then(11, LineStep::Read(World::of_message(world.sent))),
        11 if world.sent - world.received >= CHANNEL => core.then(16, LineStep::Read(HEAD)),
        11 => core.then(12, LineStep::Swap(TAIL)),
        12 if core.succeeded => {
            core.left = world.sent as u32;
            world.sent += 1;
            core.then(13, LineStep::Store(World::of_message(u64::from(core.left))))
        }
        12 => {
            let pauses = 1 << core.spins.min(SENDING_SPINS_MAX);
            core.spins += 1;
            core.then(10, LineStep::Pause(pauses))
        }
        13 if !core.hits => core.then(14, LineStep::Update(WRITES)),
        13 | 14 => core.then(DONE, LineStep::Work(MOKA_AFTER * time)),
        // The channel is full: the message is dropped, and with it the reference.
        16 => core.then(14, LineStep::Update(entry)),
        20 => {
            core.left = (world.sent - world.received) as u32;
            core.rounds -= 1;
            core.then(21, LineStep::Read(TAIL))
        }
        21 if core.left == 0 => {
            let more = world.sent - world.received >= FLUSH_POINT && core.rounds > 0;
            core.then(if more { 20 } else { 30 }, LineStep::Work(0.0))
        }
        21 => core.then(22, LineStep::Read(HEAD)),
        22 => core.then(23, LineStep::Read(World::of_message(world.received))),
        23 => core.then(24, LineStep::Update(HEAD)),
        24 => {
            let message = World::of_message(world.received);
            world.received += 1;
            core.then(25, LineStep::Store(message))
        }
        25 => {
            let line = SKETCH + random.random_range(0..SKETCH_LINES);
            core.then(26, LineStep::Store(line))
        }
        // Moving the entry in its queue, and returning its reference.
        26 => core.then(29, LineStep::Store(world.of_any(LINKS, random))),
        29 => core.then(33, LineStep::Store(world.of_any(LINKS, random))),
        33 => core.then(27, LineStep::Store(QUEUES)),
        27 => core.then(28, LineStep::Update(World::of_entry(world.draw(random), ENTRY))),
        28 => {
            core.left -= 1;
            core.then(21, LineStep::Work(MOKA_DRAIN * world.hit(cache)))
        }
        30 => core.then(31, LineStep::Store(RUN_AFTER)),
        31 => core.then(32, LineStep::Unlock(HOUSEKEEPER)),
        32 => core.then(10, LineStep::Watch(TAIL)),
        _ => LineStep::End,
    }
}
