//! [`Price`]: the cost of a byte written to flash, in bytes of reads lost.
//!
//! A read beside a write takes longer than one without. The time lost by all reads beside writes,
//! over the time of a read without, is the number of reads lost; their bytes, over the bytes
//! written meanwhile, are the cost. `floe_policy`'s calibration has the same unit
//! ([`Calibrated::write_cost`](floe_policy::admission::registry::Calibrated)), but measures on an
//! idle device before its use.

use std::sync::{Mutex, PoisonError};

/// Reads after which earlier ones count half.
const HALF_LIFE: u64 = 4096;
/// Reads of a kind without which nothing is known.
const LEAST_READS: f64 = 32.0;

/// A read of flash and its latency.
#[derive(Debug, Clone, Copy)]
pub struct TimedRead {
    /// Bytes read.
    pub bytes: u64,
    /// Latency in nanoseconds.
    pub latency_ns: u64,
    /// True if a write was in flight when the read began.
    pub beside_write: bool,
    /// Bytes written to flash so far.
    pub written_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    reads: f64,
    bytes: f64,
    ns: f64,
}

#[derive(Debug, Default)]
struct Latencies {
    alone: Sum,
    beside: Sum,
    written: f64,
    known_written: u64,
    reads: u64,
    per_byte: f64,
}

/// Measures the cost of writes from the latencies of reads.
#[derive(Debug, Default)]
pub(crate) struct Price(Mutex<Latencies>);

impl Price {
    /// Notes a read.
    pub(crate) fn read(&self, read: TimedRead) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = if read.beside_write { &mut state.beside } else { &mut state.alone };
        sum.reads += 1.0;
        sum.bytes += read.bytes as f64;
        sum.ns += read.latency_ns as f64;
        state.reads += 1;
        if state.reads.is_multiple_of(HALF_LIFE / 16) {
            state.update(read.written_bytes);
        }
    }

    /// Returns the bytes of reads lost for each byte written; 0 while unknown.
    pub(crate) fn per_byte(&self) -> f64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).per_byte
    }
}

impl Latencies {
    fn update(&mut self, written_bytes: u64) {
        self.written += written_bytes.saturating_sub(self.known_written) as f64;
        self.known_written = written_bytes;
        let (alone, beside) = (self.alone, self.beside);
        if alone.reads >= LEAST_READS && beside.reads >= LEAST_READS && self.written > 0.0 {
            let slower = (beside.ns / beside.reads) / (alone.ns / alone.reads).max(1.0);
            self.per_byte = beside.bytes * (slower - 1.0).max(0.0) / self.written;
        }
        let kept = 0.5_f64.powf(1.0 / 16.0);
        for sum in [&mut self.alone, &mut self.beside] {
            (sum.reads, sum.bytes, sum.ns) = (sum.reads * kept, sum.bytes * kept, sum.ns * kept);
        }
        self.written *= kept;
    }
}
