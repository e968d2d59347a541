//! What the caches are asked: keys by Zipf's law, what is read and written, and the rows of the
//! benchmark.
//!
//! Keys are 0, 1, 2, …; which of them are popular is shuffled, so that filling a cache in their
//! order does not lay popular values side by side. Every thread has a stream of requests drawn
//! beforehand, the same for every cache.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

const THETA: f64 = 0.99;
/// Requests in a stream at most; it is asked for again and again.
const STREAM_MAX: usize = 1 << 22;
/// Threads whose streams may be that long; those of more threads share the memory.
const LONG_STREAMS: usize = 8;
/// Requests between two looks at the clock. Streams are whole numbers of these.
pub const CHUNK: usize = 1024;
/// Keys in one call of `get_many`.
pub const BATCH: usize = 16;

/// A request as it is stored: the key in the low bits, above it a number that decides between
/// reading and writing.
#[derive(Clone, Copy)]
pub struct Request(u32);

const KEY_BITS: u32 = 20;

impl Request {
    pub fn key(self) -> u64 {
        u64::from(self.0 & ((1 << KEY_BITS) - 1))
    }

    /// Whether it writes where `share` of 4096 requests do.
    pub fn writes(self, share: u32) -> bool {
        self.0 >> KEY_BITS < share
    }
}

/// A number of keys, their popularity, and what the threads ask for.
pub struct Keys {
    /// From the most popular to the least.
    pub ranked: Vec<u32>,
    /// One for each thread.
    pub streams: Vec<Vec<Request>>,
}

impl Keys {
    pub fn none() -> Self {
        Self { ranked: Vec::new(), streams: Vec::new() }
    }

    pub fn new(keys: usize, threads: usize) -> Self {
        assert!(keys <= 1 << KEY_BITS, "a request has {KEY_BITS} bits for its key");
        let mut ranked: Vec<u32> = (0..keys as u32).collect();
        ranked.shuffle(&mut SmallRng::seed_from_u64(keys as u64));
        let law = Zipf::new(keys as f64, THETA).expect("there are keys, and theta is positive");
        let most = STREAM_MAX * LONG_STREAMS / threads.max(LONG_STREAMS);
        let length = most.min(keys << 10).next_multiple_of(CHUNK);
        let stream = |thread| {
            let mut rng = SmallRng::seed_from_u64(1 + thread as u64);
            let draw = |_| {
                let rank = (law.sample(&mut rng) as usize).clamp(1, keys) - 1;
                Request(ranked[rank] | rng.random::<u32>() << KEY_BITS)
            };
            (0..length).map(draw).collect()
        };
        let streams = (0..threads).map(stream).collect();
        Self { ranked, streams }
    }
}

/// Caches of a size filled with values of a size: what the rows of one group share.
#[derive(Clone, Copy, PartialEq)]
pub struct Load {
    pub name: &'static str,
    pub keys: usize,
    /// Entries a cache may hold; none means all keys with room to spare, so that every request
    /// hits.
    pub capacity: Option<usize>,
    pub value_bytes: usize,
    /// Whether every cache has its values behind an `Arc`, as a storage engine's blocks are.
    pub is_shared: bool,
}

/// What is done with the keys.
#[derive(Clone, Copy, PartialEq)]
pub enum Ops {
    /// Get, and insert after a miss.
    Read,
    /// Of 4096 requests this many replace the value instead.
    Write(u32),
    /// `get_many`, where a cache has it.
    Batch,
}

impl Ops {
    const ALL: [(&'static str, Ops); 4] = [
        ("read", Ops::Read),
        ("95-5", Ops::Write(205)),
        ("50-50", Ops::Write(2048)),
        ("batch", Ops::Batch),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, ops)| *ops == self).expect("all have a name").0
    }
}

#[derive(Clone, Copy)]
pub struct Row {
    pub load: Load,
    pub ops: Ops,
    pub threads: usize,
}

/// Rows for which there are goals, as a word on the command line.
const GOALS: &str = "goals";
/// Those with goals for frozen entries.
const GOALS_FROZEN: &str = "goals-frozen";

impl Row {
    /// Every row, those of a group in one run.
    pub fn all() -> Vec<Self> {
        // A million values of 4 KiB would not fit a small machine's memory, once for each cache.
        let hits = [("hits-1k", 1000), ("hits-100k", 100_000), ("hits-1m", 1_000_000)];
        let shares = [("1%", 1), ("10%", 10), ("50%", 50)];
        let mut rows = Vec::new();
        for (value_bytes, most) in [(64, 1_000_000), (4096, 100_000)] {
            let hits = hits.into_iter().filter(|&(_, keys)| keys <= most).map(|(name, keys)| {
                Load { name, keys, capacity: None, value_bytes, is_shared: false }
            });
            let shares = shares.map(|(name, percent)| Load {
                name,
                keys: most,
                capacity: Some(most * percent / 100),
                value_bytes,
                is_shared: false,
            });
            for load in hits.chain(shares) {
                for (_, ops) in Ops::ALL {
                    if ops == Ops::Batch && load.capacity.is_some() {
                        continue; // what is missing has to be inserted one by one
                    }
                    rows.extend([1, 2, 8].map(|threads| Self { load, ops, threads }));
                }
            }
        }
        let load = Load {
            name: "hits-50k",
            keys: 50_000,
            capacity: None,
            value_bytes: 4096,
            is_shared: true,
        };
        for ops in [Ops::Read, Ops::Write(205)] {
            rows.extend([2, 8, 64, 256].map(|threads| Self { load, ops, threads }));
        }
        rows
    }

    /// Whether the latency of each request is measured, too.
    pub fn is_timed(&self) -> bool {
        self.load.is_shared
    }

    pub fn name(&self) -> String {
        self.parts().join("/")
    }

    fn parts(&self) -> [String; 4] {
        let value = match (self.load.is_shared, self.load.value_bytes) {
            (true, _) => "arc",
            (false, 4096) => "4KiB",
            (false, _) => "64B",
        };
        [self.load.name.into(), self.ops.name().into(), format!("{}t", self.threads), value.into()]
    }

    /// Whether `wanted` names it: a whole name, or some parts of one, as `hits-1k/2t`.
    pub fn is(&self, wanted: &str) -> bool {
        if wanted == GOALS {
            let ops = match self.ops {
                Ops::Read => !matches!(self.load.name, "50%"),
                Ops::Batch => true,
                Ops::Write(_) => self.load.keys == 1000 && self.ops.name() == "50-50",
            };
            return self.is_timed() || ops && self.threads <= 2 && self.load.value_bytes == 64;
        }
        if wanted == GOALS_FROZEN {
            let is_asked = match self.ops {
                Ops::Read => true,
                Ops::Batch => self.load.keys == 1_000_000,
                Ops::Write(_) => false,
            };
            return is_asked
                && self.threads <= 2
                && self.load.value_bytes == 64
                && self.load.capacity.is_none();
        }
        let parts = self.parts();
        wanted.split('/').all(|part| parts.iter().any(|own| own == part))
    }
}
