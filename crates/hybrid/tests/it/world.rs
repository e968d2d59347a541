//! A hybrid cache in virtual time: an LRU list as memory, a model of the log on flash, and the
//! admission of the real cache. Everything follows from the seed.

use std::collections::{HashMap, VecDeque};

use floe_hybrid::decisions::{Gate, GateOptions, LogModel, Offer, TimedRead};
use floe_hybrid::{Admission, Declined, WriteBudget};
use floe_policy::mix;
use rand::Rng;
use rand::rngs::SmallRng;

/// Bytes of a record beside key and value, with half a unit of padding.
const RECORD_BYTES: u64 = 16 + 8;
/// Bytes of a record in its segment's footer.
const ENTRY_BYTES: u64 = 12;

/// A request: a key, its size, and whether it stores a new value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    pub(crate) is_insert: bool,
}

/// Returns the size of a key's object: 100 bytes to 100 KB, log-uniform.
pub(crate) fn size_of_key(key: u64) -> u64 {
    let share = (mix(key ^ 0x5125) >> 11) as f64 / (1u64 << 53) as f64;
    (100.0 * 1000.0_f64.powf(share)) as u64
}

/// Keys by Zipf's law.
#[derive(Debug)]
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(keys: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(weights.collect())
    }

    pub(crate) fn rank(&self, random: &mut SmallRng) -> u64 {
        let drawn = random.random::<f64>() * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum < drawn) as u64
    }
}

#[derive(Debug, Clone, Copy)]
struct InMemory {
    stamp: u64,
    bytes: u64,
    uses: u8,
    on_flash: bool,
}

/// Counts of a run, or of a part of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) inserted_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl Counts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            hits: self.hits - before.hits,
            inserted_bytes: self.inserted_bytes - before.inserted_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }

    pub(crate) fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.requests.max(1) as f64
    }

    pub(crate) fn written_per_inserted(&self) -> f64 {
        self.written_bytes as f64 / self.inserted_bytes.max(1) as f64
    }
}

/// Settings of a world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldOptions {
    pub(crate) admission: Admission,
    pub(crate) budget: Option<WriteBudget>,
    pub(crate) memory_bytes: u64,
    pub(crate) flash_bytes: u64,
    pub(crate) object_bytes: u64,
    /// Number of the choice to follow, without a trial.
    pub(crate) fixed: Option<u64>,
    /// Latencies of reads in nanoseconds, without and beside a write; a read is beside one if bytes
    /// were written since the last read.
    pub(crate) read_ns: (u64, u64),
}

/// A cache in virtual time.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) counts: Counts,
    pub(crate) declined: HashMap<Declined, u64>,
    gate: Option<Gate>,
    memory: HashMap<u64, InMemory>,
    order: VecDeque<(u64, u64)>,
    memory_used: u64,
    memory_bytes: u64,
    stamp: u64,
    flash: LogModel,
    hashes: HashMap<u32, u64>,
    read_ns: (u64, u64),
    /// Nanoseconds of all reads of flash.
    pub(crate) reads_ns: u64,
    pub(crate) reads: u64,
    written_at_read: u64,
}

fn tag(hash: u64) -> u32 {
    mix(hash) as u32
}

impl World {
    pub(crate) fn new(options: &WorldOptions) -> Self {
        let gate = GateOptions {
            admission: options.admission,
            budget: options.budget,
            capacity_bytes: options.flash_bytes,
            memory_bytes: options.memory_bytes,
            object_bytes: options.object_bytes,
            fixed: options.fixed,
        };
        Self {
            now_ns: 0,
            counts: Counts::default(),
            declined: HashMap::new(),
            gate: Gate::new(&gate, 0, 0),
            memory: HashMap::new(),
            order: VecDeque::new(),
            memory_used: 0,
            memory_bytes: options.memory_bytes,
            stamp: 0,
            flash: LogModel::new(options.flash_bytes),
            hashes: HashMap::new(),
            read_ns: options.read_ns,
            reads_ns: 0,
            reads: 0,
            written_at_read: 0,
        }
    }

    /// Returns the bytes of memory of the admission, and the number of objects on flash.
    pub(crate) fn memory_and_objects(&self) -> (u64, usize) {
        (self.gate.as_ref().map_or(0, Gate::memory_bytes), self.flash.objects())
    }

    /// Performs a request: an insertion, or a lookup and an insertion after a miss.
    pub(crate) fn request(&mut self, request: &Request) {
        let Request { key, bytes, is_insert } = *request;
        let hash = mix(key);
        if is_insert {
            if self.flash.remove(tag(hash))
                && let Some(gate) = &self.gate
            {
                gate.removed(hash);
            }
            if let Some(old) = self.memory.remove(&key) {
                self.memory_used -= old.bytes;
            }
            self.counts.inserted_bytes += bytes;
            self.put(key, bytes, false);
            return;
        }
        self.counts.requests += 1;
        let stamp = self.stamp;
        if let Some(held) = self.memory.get_mut(&key) {
            self.counts.hits += 1;
            held.uses = (held.uses + 1).min(3);
            held.stamp = stamp;
            self.order.push_back((key, stamp));
            self.stamp += 1;
            return;
        }
        let uses = self.flash.look_up(tag(hash));
        if let Some(gate) = &self.gate {
            gate.looked_up(hash, uses.map(|uses| (bytes, uses)));
        }
        match uses {
            Some(uses) => {
                self.counts.hits += 1;
                self.time_read(bytes);
                if uses > 0 {
                    self.put(key, bytes, true);
                }
            }
            None => {
                self.counts.inserted_bytes += bytes;
                self.put(key, bytes, false);
            }
        }
    }

    fn time_read(&mut self, bytes: u64) {
        let written_bytes = self.counts.written_bytes;
        let beside_write = written_bytes > self.written_at_read;
        self.written_at_read = written_bytes;
        let latency_ns = if beside_write { self.read_ns.1 } else { self.read_ns.0 };
        self.reads_ns += latency_ns;
        self.reads += 1;
        if let Some(gate) = &self.gate {
            gate.read(TimedRead { bytes, latency_ns, beside_write, written_bytes });
        }
    }

    fn put(&mut self, key: u64, bytes: u64, on_flash: bool) {
        self.memory.insert(key, InMemory { stamp: self.stamp, bytes, uses: 0, on_flash });
        self.order.push_back((key, self.stamp));
        self.stamp += 1;
        self.memory_used += bytes;
        while self.memory_used > self.memory_bytes {
            let (key, stamp) = self.order.pop_front().expect("memory has an object");
            let Some(held) = self.memory.get(&key).filter(|held| held.stamp == stamp) else {
                continue;
            };
            let held = *held;
            self.memory.remove(&key);
            self.memory_used -= held.bytes;
            if !held.on_flash {
                self.offer(key, &held);
            }
        }
    }

    fn offer(&mut self, key: u64, held: &InMemory) {
        let hash = mix(key);
        let bytes = held.bytes + RECORD_BYTES;
        let (now_ns, spent) = (self.now_ns, self.counts.written_bytes);
        if let Some(gate) = &self.gate
            && let Err(reason) = gate.offer(now_ns, spent, &Offer { hash, bytes, uses: held.uses })
        {
            *self.declined.entry(reason).or_default() += 1;
            return;
        }
        self.hashes.insert(tag(hash), hash);
        let Self { gate, flash, hashes, .. } = self;
        let (gate, before) = (gate.as_ref(), flash.written_bytes());
        let mut left = Vec::new();
        let keeps = |tag: u32, bytes: u32, uses: u8| {
            gate.is_none_or(|gate| {
                let offer = Offer { hash: hashes[&tag], bytes: bytes.into(), uses };
                gate.keeps(now_ns, spent, &offer)
            })
        };
        flash.insert(tag(hash), bytes as u32, keeps, |tag| left.push(tag));
        for tag in left {
            if let Some(hash) = hashes.remove(&tag)
                && let Some(gate) = gate
            {
                gate.evicted(hash);
            }
        }
        self.counts.written_bytes += flash.written_bytes() - before + ENTRY_BYTES;
    }
}
