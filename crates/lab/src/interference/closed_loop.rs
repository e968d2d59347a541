//! A closed loop on a device: so many operations in flight, some of which write.
//!
//! The writes are spread evenly over the operations, not drawn, so that a share of 2 % is exact
//! even among few operations. Their positions are drawn. Operations in flight when a round begins
//! come from before it; those that end within it count. A round in which the device hardly answers
//! goes on until it has.

use std::io;
use std::time::{Duration, Instant};

use floe_device::{Action, Completion, Operation, Slice};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::testbed::TestBed;

/// Longest latency kept apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// A round's length over that of what goes before it and does not count.
const SETTLE: u32 = 5;

/// Reads that a round has at least, and for how many times its length it waits for them.
const READS_LEAST: u64 = 8;
const PATIENCE: u32 = 100;

/// The mix of requests to the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mix {
    /// Size of every operation.
    pub(super) block_bytes: u64,
    /// Of the operations.
    pub(super) write_share: f64,
    /// Operations in flight.
    pub(super) depth: usize,
}

/// The counts of a round: latencies in nanoseconds of what ended in it.
#[derive(Debug)]
pub(super) struct Round {
    /// Its final length.
    pub(super) seconds: f64,
    pub(super) read_ns: Histogram<u64>,
    pub(super) write_ns: Histogram<u64>,
}

struct Slot {
    buffer: Slice,
    writes: bool,
    began: Instant,
}

/// The operations in flight.
struct Loop<'a> {
    bed: &'a mut TestBed,
    mix: Mix,
    slots: Vec<Slot>,
    random: SmallRng,
    /// Writes that are due, in operations.
    due: f64,
}

/// Runs a mix for a while. The same bed, mix and seed ask for the same operations.
///
/// # Errors
/// The first operation that fails.
pub(super) fn run(bed: &mut TestBed, mix: Mix, length: Duration, seed: u64) -> io::Result<Round> {
    let now = bed.clock.now();
    let slots = (0..mix.depth).map(|_| Slot {
        buffer: bed.random_bytes(mix.block_bytes),
        writes: false,
        began: now,
    });
    let slots = slots.collect();
    let from = now + length / SETTLE;
    let until = from + length;
    let histogram =
        || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
    let mut round =
        Round { seconds: length.as_secs_f64(), read_ns: histogram(), write_ns: histogram() };
    let mut at_work = Loop { bed, mix, slots, random: SmallRng::seed_from_u64(seed), due: 0.0 };
    (0..mix.depth).for_each(|slot| at_work.begin(slot));
    let (mut in_flight, mut done, mut is_over) = (mix.depth, Vec::new(), false);
    while in_flight > 0 {
        at_work.bed.device.poll(&mut done);
        if done.is_empty() {
            at_work.bed.clock.wait_until(at_work.bed.device.next_due())?;
            continue;
        }
        let now = at_work.bed.clock.now();
        for Completion { token, result } in done.drain(..) {
            result?;
            is_over |= now >= until && round.has_enough() || now >= from + length * PATIENCE;
            let slot = &at_work.slots[token as usize];
            if now >= from && !is_over {
                let latencies = if slot.writes { &mut round.write_ns } else { &mut round.read_ns };
                latencies.saturating_record((now - slot.began).as_nanos() as u64);
                round.seconds = round.seconds.max((now - from).as_secs_f64());
            }
            if is_over {
                in_flight -= 1;
            } else {
                at_work.begin(token as usize);
            }
        }
    }
    Ok(round)
}

impl Round {
    /// Returns whether there are enough reads for a result.
    pub(super) fn has_enough(&self) -> bool {
        self.read_ns.len() >= READS_LEAST
    }
}

impl Loop<'_> {
    fn begin(&mut self, at: usize) {
        let Mix { block_bytes, write_share, .. } = self.mix;
        let range = &self.bed.range;
        let blocks = (range.end - range.start) / block_bytes;
        let offset = range.start + self.random.random_range(0..blocks) * block_bytes;
        self.due += write_share;
        let writes = self.due >= 1.0;
        self.due -= f64::from(u8::from(writes));
        let slot = &mut self.slots[at];
        (slot.writes, slot.began) = (writes, self.bed.clock.now());
        let slice = slot.buffer.clone();
        let action = if writes {
            Action::Write { from: slice, durable: false }
        } else {
            Action::Read(slice)
        };
        self.bed.device.submit(Operation { token: at as u64, offset, action });
    }
}
