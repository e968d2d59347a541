//! Summary statistics of a trace, as printed by `floe trace info`.
//!
//! Requests of block traces are counted by the blocks of 4 KiB they touch. The touched blocks are
//! kept as one bit each, 64 neighbours (256 KiB of disk) to a word in a hash table, so that a
//! footprint of terabytes still fits.

use hashbrown::{HashMap, hash_map::Entry};
use serde::Serialize;

use crate::error::Error;
use crate::request::{Op, Request, TraceKind};
use crate::trace::Trace;

/// Block size in which block traces are counted.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Summary statistics of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    /// Path or name with which the trace was opened.
    pub trace: String,
    /// Name of the trace's format.
    pub format: &'static str,
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that read.
    pub reads: u64,
    /// The number of requests that write.
    pub writes: u64,
    /// Number of requests that delete or discard; these touch no key.
    #[serde(skip_serializing_if = "is_zero")]
    pub deletes: u64,
    /// Number of requests whose time is before that of the preceding request.
    #[serde(skip_serializing_if = "is_zero")]
    pub backward_times: u64,
    /// Distinct blocks of 4 KiB of a block trace that are read or written; distinct keys otherwise.
    pub unique: u64,
    /// Bytes in the distinct blocks, or in the distinct objects at the largest size of each. Equals
    /// the number of keys if the trace has no sizes. Simulations size caches as shares of it.
    pub footprint_bytes: u64,
    /// Mean size of a read or write, in bytes.
    pub mean_bytes: f64,
    /// Seconds from the first record to the latest; 0 when the trace has no times.
    pub seconds: f64,
    /// Number of touches of blocks of 4 KiB, or of keys.
    #[serde(skip)]
    pub touches: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Info {
    /// Reads a trace to its end and sums it up.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn of(trace: &mut Trace) -> Result<Self, Error> {
        let mut stats = Stats::new(trace.kind());
        for request in trace.by_ref() {
            stats.add(&request?);
        }
        Ok(stats.info_of(trace))
    }

    /// Returns the share of touches that an infinite cache would hit.
    pub fn rereference_ratio(&self) -> f64 {
        if self.touches == 0 { 0.0 } else { 1.0 - self.unique as f64 / self.touches as f64 }
    }
}

/// Collects the statistics of a trace, one request at a time.
#[derive(Debug)]
pub struct Stats {
    kind: TraceKind,
    requests: u64,
    reads: u64,
    writes: u64,
    deletes: u64,
    backward_times: u64,
    bytes: u128,
    touches: u64,
    unique: u64,
    object_bytes: u64,
    before_ns: u64,
    last_ns: u64,
    /// In block traces, bits of 64 blocks by volume and position; in others, the size of each key.
    seen: HashMap<(u32, u64), u64, foldhash::fast::FixedState>,
}

impl Stats {
    /// Creates empty statistics for a trace of this kind.
    pub fn new(kind: TraceKind) -> Self {
        let seen = HashMap::with_hasher(foldhash::fast::FixedState::default());
        Self {
            kind,
            requests: 0,
            reads: 0,
            writes: 0,
            deletes: 0,
            backward_times: 0,
            bytes: 0,
            touches: 0,
            unique: 0,
            object_bytes: 0,
            before_ns: 0,
            last_ns: 0,
            seen,
        }
    }

    /// Adds a request.
    pub fn add(&mut self, request: &Request) {
        self.requests += 1;
        self.reads += u64::from(request.op == Op::Read);
        self.writes += u64::from(request.op == Op::Write);
        self.backward_times += u64::from(request.time_ns < self.before_ns);
        self.before_ns = request.time_ns;
        self.last_ns = self.last_ns.max(request.time_ns);
        if request.op == Op::Delete {
            self.deletes += 1;
            return;
        }
        self.bytes += u128::from(request.bytes);
        if self.kind == TraceKind::Block {
            self.touch_blocks(request)
        } else {
            self.touch_key(request)
        }
    }

    fn touch_key(&mut self, request: &Request) {
        self.touches += 1;
        let grown = match self.seen.entry((0, request.key)) {
            Entry::Vacant(entry) => {
                self.unique += 1;
                *entry.insert(request.bytes)
            }
            Entry::Occupied(mut entry) => {
                let before = *entry.get();
                *entry.get_mut() = before.max(request.bytes);
                *entry.get() - before
            }
        };
        self.object_bytes = self.object_bytes.saturating_add(grown);
    }

    fn touch_blocks(&mut self, request: &Request) {
        if request.bytes == 0 {
            return;
        }
        let mut block = request.key / BLOCK_BYTES;
        let end = (request.key + request.bytes).div_ceil(BLOCK_BYTES);
        self.touches += end - block;
        while block < end {
            let first_bit = block % 64;
            let bits = (64 - first_bit).min(end - block);
            let mask = (u64::MAX >> (64 - bits)) << first_bit;
            let word = self.seen.entry((request.volume, block / 64)).or_insert(0);
            self.unique += u64::from((mask & !*word).count_ones());
            *word |= mask;
            block += bits;
        }
    }

    /// Returns the nanoseconds from the first record to the latest.
    pub(crate) fn duration_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the statistics so far, with the name and counters of the trace they were read from.
    pub fn info_of(&self, trace: &Trace) -> Info {
        let info = self.info(trace.name(), trace.format().name());
        // Times before the first are 0, so that steps among them do not show in requests.
        Info { backward_times: info.backward_times.max(trace.backward_times()), ..info }
    }

    /// Returns the statistics so far, with this name and format.
    pub fn info(&self, trace: &str, format: &'static str) -> Info {
        let footprint_bytes = if self.kind == TraceKind::Block {
            self.unique * BLOCK_BYTES
        } else {
            self.object_bytes
        };
        Info {
            trace: trace.to_owned(),
            format,
            requests: self.requests,
            reads: self.reads,
            writes: self.writes,
            deletes: self.deletes,
            backward_times: self.backward_times,
            unique: self.unique,
            footprint_bytes,
            mean_bytes: self.bytes as f64 / (self.reads + self.writes).max(1) as f64,
            seconds: self.last_ns as f64 / 1e9,
            touches: self.touches,
        }
    }
}
